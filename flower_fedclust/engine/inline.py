"""Flower's own Server over clients in this process: no network, no Ray, a hundred thousand clients."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256

from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters, Scalar
from flwr.server import Server, SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.server import FitResultsAndFailures

from flower_fedclust.engine.client_data import ClientData
from flower_fedclust.engine.rounds import Array, Sum
from flower_fedclust.engine.run import Address
from flower_fedclust.engine.shards import Shard
from flower_fedclust.engine.strategy import ProtocolStrategy
from flower_fedclust.numerics.threads import one_thread


def run_inline(
    strategy: ProtocolStrategy, clients: Mapping[str, ClientData], noise_seeds: Sequence[int | None]
) -> None:
    """Run a strategy on clients in this process, on one thread."""
    shard = Shard(strategy.client_type, clients, noise_seeds)
    proxies = {name: _InlineClient(index, shard) for index, name in enumerate(clients)}
    if strategy.journal is not None:
        strategy.journal.rows = {
            name: sha256(data.fingerprint().tobytes()).hexdigest() for name, data in clients.items()
        }
        for name, memory in strategy.journal.last_memories().items():
            if name in proxies:
                proxies[name].memory = memory
        strategy.journal.memories = lambda: {name: kept for name, proxy in proxies.items() if (kept := proxy.memory)}
    server = ServerOfThisThread(client_manager=manager_of(proxies.values()), strategy=strategy)
    server.set_max_workers(1)
    with one_thread(), _rare_garbage_collection():
        server.fit(num_rounds=strategy.num_rounds, timeout=None)


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


def manager_of(proxies: Iterable[ClientProxy]) -> SimpleClientManager:
    """Return a manager of clients that are all there; Flower's own wakes its waiting threads for each."""
    manager = SimpleClientManager()
    manager.clients = {proxy.cid: proxy for proxy in proxies}
    return manager


class ServerOfThisThread(Server):
    """Flower's Server with clients that answer in its own thread, the clients of a shard together.

    Flower's pool of threads takes as long for thousands of clients as their answers do.
    """

    def fit_round(
        self, server_round: int, timeout: float | None
    ) -> tuple[Parameters | None, dict[str, Scalar], FitResultsAndFailures] | None:
        """Ask the clients of one round."""
        instructions = self.strategy.configure_fit(server_round, self.parameters, self.client_manager())
        if not instructions:
            return None
        adds_up = isinstance(getattr(self.strategy, "_pending", None), Sum)
        results: list[tuple[ClientProxy, FitRes]] = []
        failures: list[tuple[ClientProxy, FitRes] | BaseException] = []
        for proxy, ins in self._alone(instructions, results, adds_up=adds_up):
            try:
                results.append((proxy, proxy.fit(ins, timeout, server_round)))
            except Exception as error:
                failures.append(error)
        return *self.strategy.aggregate_fit(server_round, results, failures), (results, failures)

    def _alone(
        self,
        instructions: list[tuple[ClientProxy, FitIns]],
        results: list[tuple[ClientProxy, FitRes]],
        *,
        adds_up: bool,
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Ask the clients of a shard that can answer together, and return the messages to the others."""
        alone, groups = [], dict[int, list[_InlineClient]]()
        for proxy, ins in instructions:
            if isinstance(proxy, _InlineClient):
                groups.setdefault(id(ins), []).append(proxy)
            else:
                alone.append((proxy, ins))
        messages = {id(ins): ins for _, ins in instructions}
        for key, proxies in groups.items():
            by_index, ins = {proxy.node_id: proxy for proxy in proxies}, messages[key]
            replies, rest = proxies[0].shard.together(ins, list(by_index), adds_up=adds_up)
            results += [(by_index[index], res) for index, res in replies]
            alone += [(by_index[index], ins) for index in rest]
        return alone


class _InlineClient(Address):
    """A client of a shard in this process."""

    def __init__(self, index: int, shard: Shard) -> None:
        super().__init__(str(index))
        self.node_id = index
        self.shard = shard

    @property
    def memory(self) -> dict[str, list[Array]]:
        """What the client remembers, by key."""
        return self.shard.memory(self.node_id)

    @memory.setter
    def memory(self, memory: Mapping[str, list[Array]]) -> None:
        self.shard.remind(self.node_id, memory)

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        return self.shard.fit(self.node_id, ins)

    def evaluate(self, ins: EvaluateIns, timeout: float | None, group_id: int | None) -> EvaluateRes:
        return self.shard.evaluate(self.node_id, ins)
