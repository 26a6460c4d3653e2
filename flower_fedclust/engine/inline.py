"""Carries a run to clients in this process, up to a hundred thousand of them, without a network and without Ray.

The clients of a shard answer together where this gives the same bits as answering one after the other. Messages and
replies pass as bytes, as in a deployment, so limits and parsing are always exercised.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Protocol

from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes

from flower_fedclust.engine.client import ProtocolClient
from flower_fedclust.engine.client_data import ClientData
from flower_fedclust.engine.journal import Journal
from flower_fedclust.engine.messages import Answers, Message, Steps, Summed, drive
from flower_fedclust.engine.rounds import Array
from flower_fedclust.engine.shards import Replies, Shard
from flower_fedclust.numerics.threads import one_thread


class Runnable(Protocol):
    """What :func:`run_inline` needs of a strategy."""

    @property
    def client_type(self) -> type[ProtocolClient]:
        """The client half."""

    @property
    def journal(self) -> Journal | None:
        """Keeps what an interrupted run needs to go on."""

    def steps(self) -> Steps:
        """Begin a run."""


class Asked(Protocol):
    """Clients that are asked as one: a shard of this process or of another."""

    def __len__(self) -> int: ...
    def begin(
        self, ins: FitIns | EvaluateIns, members: Sequence[int], *, adds_up: bool
    ) -> Callable[[], Replies]:
        """Ask clients; the returned function waits for the replies, and names the clients to ask one by one."""

    def fit(self, index: int, ins: FitIns) -> FitRes:
        """Return one client's reply."""

    def evaluate(self, index: int, ins: EvaluateIns) -> EvaluateRes:
        """Return one client's evaluation of a model."""

    def memory(self, index: int) -> dict[str, list[Array]]:
        """Return what one client remembers, by key."""

    def remind(self, index: int, memory: Mapping[str, list[Array]]) -> None:
        """Give one client a memory again."""


def run_inline(
    strategy: Runnable,
    clients: Mapping[str, ClientData],
    noise_seeds: Sequence[int | None],
    shards: Sequence[Asked] = (),
) -> None:
    """Run a strategy on one thread of this process.

    ``shards`` hold the clients, in this order. By default there is one shard, in this process.
    """
    carrier = ShardsCarrier(shards or [Shard(strategy.client_type, clients, noise_seeds)])
    if strategy.journal is not None:
        carrier.remember(strategy.journal, clients)
    with one_thread(), _rare_garbage_collection():
        drive(strategy.steps(), carrier)


class ShardsCarrier:
    """Brings messages to the clients of shards; nodes are their numbers."""

    def __init__(self, shards: Sequence[Asked]) -> None:
        places = [(shard, index) for shard in shards for index in range(len(shard))]
        self._places = {str(node): place for node, place in enumerate(places)}

    def nodes(self) -> list[str]:
        """Return all nodes; simulated clients are always connected."""
        return list(self._places)

    def remember(self, journal: Journal, clients: Mapping[str, ClientData]) -> None:
        """Let a journal keep the clients' memories, and restore those that it kept before an interruption."""
        journal.rows = {
            name: sha256(data.fingerprint().tobytes()).hexdigest() for name, data in clients.items()
        }
        places = dict(zip(clients, self._places.values(), strict=True))
        for name, memory in journal.last_memories().items():
            if name in places:
                shard, index = places[name]
                shard.remind(index, memory)
        journal.memories = lambda: {
            name: kept for name, (shard, index) in places.items() if (kept := shard.memory(index))
        }

    def carry(self, messages: Sequence[Message]) -> Answers:
        """Ask shards first, all at once, and then clients that have to be asked by themselves."""
        groups = dict[tuple[int, int], list[Message]]()
        for message in messages:
            groups.setdefault((id(self._places[message.node][0]), id(message.ins)), []).append(
                message
            )
        begun = []
        for group in groups.values():
            nodes = {self._places[message.node][1]: message.node for message in group}
            shard, ins = self._places[group[0].node][0], group[0].ins
            begun.append(
                (shard, ins, nodes, shard.begin(ins, list(nodes), adds_up=group[0].adds_up))
            )
        replies, failures, sums = dict[str, Any](), list[Exception](), list[Summed]()
        for shard, ins, nodes, wait in begun:
            together, rest = wait()
            for index, res in together:
                if isinstance(res, Summed):
                    sums.append(res)
                elif isinstance(res, Exception):
                    failures.append(res)
                else:
                    replies[nodes[index]] = res
            for index in rest:
                try:
                    replies[nodes[index]] = (
                        shard.fit(index, ins)
                        if isinstance(ins, FitIns)
                        else shard.evaluate(index, ins)
                    )
                except Exception as error:
                    failures.append(error)
        return Answers(replies, failures, sums)


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Collect cycles less often: thousands of replies live until a round ends, and none is a cycle.

    With 2,000 clients the collector took a fifth of the time.
    """
    former = gc.get_threshold()
    gc.set_threshold(max(former[0], 100_000) if former[0] else 0, *former[1:])
    try:
        yield
    finally:
        gc.set_threshold(*former)
