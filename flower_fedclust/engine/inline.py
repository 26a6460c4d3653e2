"""Flower's own Server over clients in this process: no network, no Ray, a hundred thousand clients."""

from __future__ import annotations

import copy
import gc
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Any, Protocol

import numpy as np
from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters, Scalar
from flwr.server import Server, SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.server import EvaluateResultsAndFailures, FitResultsAndFailures

from flower_fedclust.engine.client_data import ClientData
from flower_fedclust.engine.progress import quiet
from flower_fedclust.engine.rounds import Array, Round, Sum
from flower_fedclust.engine.run import Address
from flower_fedclust.engine.shards import Replies, Shard
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.tables.drafting import made_up_table

#: The clients of a rehearsal, the columns of their rows if nobody knows better, and the most clusters.
N_REHEARSING, N_COLUMNS, N_REHEARSED = 4, 16, 8


def rehearse(strategy: Any, columns: Sequence[str] | None, see: Callable[[Round, Any], None]) -> None:
    """Run a strategy's copy on made-up rows; ``see`` takes each round and what it brought. It may end early."""
    rng, n_rows = np.random.default_rng(0), 20 * min(strategy.most_clusters, N_REHEARSED)
    shape = n_rows, strategy.expected_columns or (N_COLUMNS if columns is None else len(columns))
    copied, kept = copy.copy(strategy), dict[str, Any](secure=False, share_model=False, noise_seed=0, on_received=see)
    kept |= {"on_finished": None, "on_round": None, "expected_clients": None, "tables": copy.deepcopy(strategy.tables)}
    if strategy.most_clusters > N_REHEARSED:
        kept["n_clusters"] = N_REHEARSED
    for name, value in kept.items():
        setattr(copied, name, value)
    copied.min_clients = copied.min_clients and min(copied.min_clients, N_REHEARSING)
    with quiet(logging.CRITICAL, "flwr", "flower_fedclust"), warnings.catch_warnings(), suppress(Exception):
        warnings.simplefilter("ignore")
        clients = {
            str(index): ClientData(rng.normal(size=shape), columns=columns)
            if strategy.tables is None
            else ClientData(made_up_table(strategy.tables.schema, n_rows, rng), raw=True)
            for index in range(N_REHEARSING)
        }
        run_inline(copied, clients, range(N_REHEARSING))


def run_inline(strategy: Any, clients: Mapping[str, ClientData], noise_seeds: Sequence[int | None]) -> None:
    """Run a strategy on clients in this process, on one thread."""
    run_shards(strategy, clients, [Shard(strategy.client_type, clients, noise_seeds)])


def run_shards(strategy: Any, clients: Mapping[str, ClientData], shards: Sequence[Asked]) -> None:
    """Run a strategy on the clients of shards, which have them in this order, on one thread of this process."""
    places = [(shard, index) for shard in shards for index in range(len(shard))]
    proxies = {
        name: _InlineClient(node, *place) for node, (name, place) in enumerate(zip(clients, places, strict=True))
    }
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


class Asked(Protocol):
    """Clients that are asked as one: a shard of this process or of another."""

    def __len__(self) -> int: ...
    def begin(self, ins: FitIns | EvaluateIns, members: Sequence[int], *, adds_up: bool) -> Callable[[], Replies]:
        """Ask clients; the returned function waits for the replies, and names the clients to ask one by one."""

    def fit(self, index: int, ins: FitIns) -> FitRes:
        """Return one client's reply."""

    def evaluate(self, index: int, ins: EvaluateIns) -> EvaluateRes:
        """Return what one client finds of a model."""

    def memory(self, index: int) -> dict[str, list[Array]]:
        """Return what one client remembers, by key."""

    def remind(self, index: int, memory: Mapping[str, list[Array]]) -> None:
        """Give one client a memory again."""


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
        found = _replies(instructions, lambda proxy, ins: proxy.fit(ins, timeout, server_round), adds_up=adds_up)
        return *self.strategy.aggregate_fit(server_round, *found), found

    def evaluate_round(
        self, server_round: int, timeout: float | None
    ) -> tuple[float | None, dict[str, Scalar], EvaluateResultsAndFailures] | None:
        """Send the model to the clients."""
        instructions = self.strategy.configure_evaluate(server_round, self.parameters, self.client_manager())
        if not instructions:
            return None
        found = _replies(instructions, lambda proxy, ins: proxy.evaluate(ins, timeout, server_round))
        return *self.strategy.aggregate_evaluate(server_round, *found), found


def _replies(instructions: Sequence[tuple[ClientProxy, Any]], ask: Callable[..., Any], *, adds_up: bool = False) -> Any:
    """Return results and failures: of shards first, and then of clients that have to be asked by themselves."""
    alone, groups = [], dict[tuple[int, int], tuple[Any, list[_InlineClient]]]()
    for proxy, ins in instructions:
        if isinstance(proxy, _InlineClient):
            groups.setdefault((id(proxy.shard), id(ins)), (ins, []))[1].append(proxy)
        else:
            alone.append((proxy, ins))
    results: list[Any] = []
    failures: list[Any] = []
    begun = []
    for ins, proxies in groups.values():
        by_index = {proxy.index: proxy for proxy in proxies}
        begun.append((ins, by_index, proxies[0].shard.begin(ins, list(by_index), adds_up=adds_up)))
    for ins, by_index, wait in begun:
        replies, rest = wait()
        results += [(by_index[index], res) for index, res in replies if not isinstance(res, Exception)]
        failures += [res for _, res in replies if isinstance(res, Exception)]
        alone += [(by_index[index], ins) for index in rest]
    for proxy, ins in alone:
        try:
            results.append((proxy, ask(proxy, ins)))
        except Exception as error:
            failures.append(error)
    return results, failures


class _InlineClient(Address):
    """A client of a shard."""

    def __init__(self, node_id: int, shard: Asked, index: int) -> None:
        super().__init__(str(node_id))
        self.node_id = node_id
        self.shard, self.index = shard, index

    @property
    def memory(self) -> dict[str, list[Array]]:
        """What the client remembers, by key."""
        return self.shard.memory(self.index)

    @memory.setter
    def memory(self, memory: Mapping[str, list[Array]]) -> None:
        self.shard.remind(self.index, memory)

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        return self.shard.fit(self.index, ins)

    def evaluate(self, ins: EvaluateIns, timeout: float | None, group_id: int | None) -> EvaluateRes:
        return self.shard.evaluate(self.index, ins)
