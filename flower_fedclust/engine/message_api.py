"""Runs strategies under Flower's Message API: a carrier that is a ``flwr.serverapp.strategy.Strategy``.

The clients need no adapter: the ClientApp that :func:`flower_fedclust.client_app` makes answers both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common import EvaluateIns, EvaluateRes, FitRes
from flwr.compat.common.recorddict_compat import (
    evaluateins_to_recorddict,
    fitins_to_recorddict,
    parameters_to_arrayrecord,
    recorddict_to_evaluateres,
    recorddict_to_fitres,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from flower_fedclust.engine.messages import Answers, CalledBack
from flower_fedclust.engine.strategy import ProtocolStrategy
from flower_fedclust.engine.wire import encode

log = logging.getLogger(__name__)


class MessageStrategy(Strategy):
    """Runs a :class:`ProtocolStrategy` where Flower wants a strategy of its Message API.

    Parameters
    ----------
    strategy : ProtocolStrategy
        Keeps the state of the run: its ``outcome``, ``report``, ``failures`` and ``evaluation`` are read from it.

    Examples
    --------
    ::

        @app.main()
        def main(grid, context):
            strategy = fc.FedDPKMeans(n_clusters=8, server_data=public_rows)
            fc.MessageStrategy(strategy).start(grid)
            print(strategy.outcome.model.cluster_centers_, strategy.report)
    """

    def __init__(self, strategy: ProtocolStrategy) -> None:
        self.strategy = strategy
        self._carried: CalledBack | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        *args: Any,
        **options: Any,
    ) -> Result:
        """Run the strategy; Flower's own ``start`` explains the further arguments.

        Raises
        ------
        ProtocolError
            If the rounds were too few for the strategy: a run without a result must not look like a success.
        """
        n_rounds = num_rounds or self.strategy.num_rounds
        result = super().start(grid, initial_arrays or ArrayRecord(), n_rounds, *args, **options)
        _ = self.strategy.outcome
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of the run's next exchange."""
        if server_round == 1:
            self._carried = self.strategy.called_back()
        self.strategy._n_flower_rounds = server_round
        return self._messages(grid, server_round, of_model=False)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Pass the answers to the run; return the model once there is one."""
        self._answer(replies, partial(recorddict_to_fitres, keep_input=False), of_model=False)
        arrays = self.strategy.outcome.model.to_arrays() if self.strategy.is_finished else None
        return None if arrays is None else parameters_to_arrayrecord(
            encode(arrays), keep_input=True
        ), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model to all clients once: to evaluate, to keep, or both."""
        return self._messages(grid, server_round, of_model=True)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the federated evaluation of the model, if there was one."""
        was_asked = self._answer(replies, recorddict_to_evaluateres, of_model=True)
        scores = self.strategy.evaluation if was_asked else None
        return (
            MetricRecord({name: float(value) for name, value in scores.items()}) if scores else None
        )

    def _messages(self, grid: Grid, server_round: int, *, of_model: bool) -> list[Message]:
        """Return the run's messages to the nodes of a grid, in Flower's form."""
        if self._carried is None:
            return []
        return [
            Message(
                evaluateins_to_recorddict(message.ins, True)
                if isinstance(message.ins, EvaluateIns)
                else fitins_to_recorddict(message.ins, True),
                int(message.node),
                MessageType.EVALUATE if of_model else MessageType.TRAIN,
                group_id=str(server_round),
            )
            for message in self._carried.messages(lambda: _nodes_of(grid), of_model=of_model)
        ]

    def _answer(
        self,
        replies: Iterable[Message],
        to_res: Callable[[RecordDict], FitRes | EvaluateRes],
        *,
        of_model: bool,
    ) -> bool:
        """Pass replies to the run; return whether it was waiting for them."""
        by_node, failures = dict[str, FitRes | EvaluateRes](), list[Exception]()
        for reply in replies:
            try:
                if reply.has_error():
                    raise RuntimeError(reply.error.reason)
                by_node[str(reply.metadata.src_node_id)] = to_res(reply.content)
            except Exception as error:
                failures.append(error)
        return self._carried is not None and self._carried.answer(
            Answers(by_node, failures), of_model=of_model
        )

    def summary(self) -> None:
        """Log the strategy and its parameters."""
        log.info("%s", self.strategy)


def _nodes_of(grid: Grid) -> list[str]:
    return sorted(str(node_id) for node_id in grid.get_node_ids())
