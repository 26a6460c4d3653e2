"""The same strategies under Flower's Message API: an adapter to ``flwr.serverapp.strategy.Strategy``.

The clients need no adapter: the ClientApp that :func:`flower_fedclust.client_app` makes answers both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.compat.common.recorddict_compat import (
    evaluateins_to_recorddict,
    fitins_to_recorddict,
    parameters_to_arrayrecord,
    recorddict_to_evaluateres,
    recorddict_to_fitres,
)
from flwr.server import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from flower_fedclust.engine.replies import R
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
        self._nodes = _Nodes()

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
        """Send the pending round."""
        self._nodes.grid = grid
        if server_round == 1:
            self.strategy.initialize_parameters(self._nodes)
        instructions = self.strategy.configure_fit(server_round, encode([]), self._nodes)
        return [
            Message(fitins_to_recorddict(ins, True), int(proxy.cid), MessageType.TRAIN, group_id=str(server_round))
            for proxy, ins in instructions
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Hand the replies to the protocol."""
        results, failures = _read(replies, partial(recorddict_to_fitres, keep_input=False))
        parameters, _ = self.strategy.aggregate_fit(server_round, results, failures)
        return None if parameters is None else parameters_to_arrayrecord(parameters, keep_input=True), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask for the evaluation, if the strategy was told to have one."""
        instructions = self.strategy.configure_evaluate(server_round, encode([]), self._nodes)
        return [
            Message(
                evaluateins_to_recorddict(ins, True), int(proxy.cid), MessageType.EVALUATE, group_id=str(server_round)
            )
            for proxy, ins in instructions
        ]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Add the clients' tables and costs up."""
        results, failures = _read(replies, recorddict_to_evaluateres)
        if not results and not failures:
            return None
        _, metrics = self.strategy.aggregate_evaluate(server_round, results, failures)
        return MetricRecord({name: float(value) for name, value in metrics.items()}) if metrics else None

    def summary(self) -> None:
        """Log the strategy and its parameters."""
        log.info("%s", self.strategy)


def _read(
    replies: Iterable[Message], to_res: Callable[[RecordDict], R]
) -> tuple[list[tuple[ClientProxy, R]], list[Any]]:
    """Return the replies in the form of Flower's older interface, and the errors of the others."""
    results: list[tuple[ClientProxy, R]] = []
    failures: list[Any] = []
    for reply in replies:
        if reply.has_error():
            failures.append(RuntimeError(reply.error.reason))
            continue
        try:
            results.append((_Address(str(reply.metadata.src_node_id)), to_res(reply.content)))
        except Exception as error:
            failures.append(error)
    return results, failures


class _Address(ClientProxy):
    """The address of a node of a Grid."""

    def get_properties(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("an address answers nothing")

    get_parameters = fit = evaluate = reconnect = get_properties


class _Nodes(SimpleClientManager):
    """The nodes of a Grid, as a ClientManager."""

    grid: Grid | None = None

    def num_available(self) -> int:
        return len(self.all())

    def all(self) -> dict[str, ClientProxy]:
        if self.grid is not None:
            nodes = {str(node_id) for node_id in self.grid.get_node_ids()}
            self.clients = {node: self.clients.get(node) or _Address(node) for node in sorted(nodes)}
        return self.clients
