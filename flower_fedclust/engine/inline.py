"""Flower's own Server over clients in this process: no network, no Ray, thousands of clients."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256

from flwr.app import ArrayRecord, Context, RecordDict
from flwr.app.user_config import UserConfig
from flwr.common import Code, EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters, Scalar, Status
from flwr.server import Server, SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.server import FitResultsAndFailures

from flower_fedclust.engine.client import ProtocolClient
from flower_fedclust.engine.client_data import ClientData
from flower_fedclust.engine.rounds import Array
from flower_fedclust.engine.run import Address
from flower_fedclust.engine.strategy import ProtocolStrategy
from flower_fedclust.engine.wire import decode, encode
from flower_fedclust.numerics.threads import one_thread


def run_inline(
    strategy: ProtocolStrategy, clients: Mapping[str, ClientData], noise_seeds: Sequence[int | None]
) -> None:
    """Run a strategy on clients in this process, on one thread."""
    manager = SimpleClientManager()
    decoded = _Decoded()
    proxies: dict[str, _InlineClient] = {}
    for index, ((name, data), noise_seed) in enumerate(zip(clients.items(), noise_seeds, strict=True)):
        context = Context(0, index, UserConfig(), RecordDict(), UserConfig())
        make = partial(strategy.client_type, data, name=name, context=context, noise_seed=noise_seed)
        proxies[name] = _InlineClient(index, context, make, decoded)
        manager.register(proxies[name])
    if strategy.journal is not None:
        strategy.journal.rows = {
            name: sha256(data.fingerprint().tobytes()).hexdigest() for name, data in clients.items()
        }
        for name, memory in strategy.journal.last_memories().items():
            if name in proxies:
                proxies[name].memory = memory
        strategy.journal.memories = lambda: {name: kept for name, proxy in proxies.items() if (kept := proxy.memory)}
    server = ServerOfThisThread(client_manager=manager, strategy=strategy)
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


class ServerOfThisThread(Server):
    """Flower's Server with clients that answer one after the other in its own thread.

    Flower's pool of threads takes as long for thousands of clients as their answers do.
    """

    def fit_round(
        self, server_round: int, timeout: float | None
    ) -> tuple[Parameters | None, dict[str, Scalar], FitResultsAndFailures] | None:
        """Ask the clients of one round in turn."""
        instructions = self.strategy.configure_fit(server_round, self.parameters, self.client_manager())
        if not instructions:
            return None
        results: list[tuple[ClientProxy, FitRes]] = []
        failures: list[tuple[ClientProxy, FitRes] | BaseException] = []
        for proxy, ins in instructions:
            try:
                results.append((proxy, proxy.fit(ins, timeout, server_round)))
            except Exception as error:
                failures.append(error)
        return *self.strategy.aggregate_fit(server_round, results, failures), (results, failures)


class _InlineClient(Address):
    """A client in this process, made anew for every message, as Flower does."""

    def __init__(self, index: int, context: Context, make: Callable[[], ProtocolClient], decoded: _Decoded) -> None:
        super().__init__(str(index))
        self.node_id = index
        self._context, self._make, self._decoded = context, make, decoded

    @property
    def memory(self) -> dict[str, list[Array]]:
        """What the client remembers, by key."""
        state = self._context.state
        return {key: found.to_numpy_ndarrays() for key, found in state.items() if isinstance(found, ArrayRecord)}

    @memory.setter
    def memory(self, memory: Mapping[str, list[Array]]) -> None:
        for key, arrays in memory.items():
            self._context.state[key] = ArrayRecord(arrays)

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        arrays, n_examples, metrics = self._make().fit(self._decoded(ins.parameters), ins.config)
        return FitRes(Status(Code.OK, ""), encode(arrays), n_examples, metrics)

    def evaluate(self, ins: EvaluateIns, timeout: float | None, group_id: int | None) -> EvaluateRes:
        loss, n_examples, metrics = self._make().evaluate(self._decoded(ins.parameters), ins.config)
        return EvaluateRes(Status(Code.OK, ""), loss, n_examples, metrics)


class _Decoded:
    """Decodes a message once for all its clients; the arrays are read-only."""

    def __init__(self) -> None:
        self._parameters: Parameters | None = None
        self._arrays: list[Array] = []

    def __call__(self, parameters: Parameters) -> list[Array]:
        if parameters is not self._parameters:
            self._arrays = decode(parameters)
            self._parameters = parameters
        return list(self._arrays)
