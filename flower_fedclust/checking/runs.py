"""A run whose wire is watched: what every client was sent, what it answered, and what the server made of it."""

# ruff: noqa: ARG002, D102 - Flower's signatures

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from flwr.app import Context, RecordDict
from flwr.app.user_config import UserConfig
from flwr.common import Code, EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters, Status
from flwr.server import SimpleClientManager
from flwr.server.client_proxy import ClientProxy

from flower_fedclust.engine import ClientData, Consent, ProtocolClient, ProtocolStrategy
from flower_fedclust.engine.replies import values_of
from flower_fedclust.engine.rounds import Array, Outcome, Protocol, Round
from flower_fedclust.engine.run import Address
from flower_fedclust.engine.wire import decode, encode, received_arrays
from flower_fedclust.models import Model
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.privacy.noise import Sendable
from flower_fedclust.results.result import Result, result_of
from flower_fedclust.simulation import noise_seed_of

#: What a client does instead of answering: gets the round's number and the honest answer.
Tamper = Callable[[int, Callable[[], FitRes]], FitRes]

#: What a message has where the client adds the noise.
OF_NOISE = frozenset({"parts", "releases"})

#: A client that fails is asked so often: it may fail at random, and a run must not depend on that.
TRIES = 20


def new_context(node_id: int = 0) -> Context:
    """Return what a client that has answered nothing remembers."""
    return Context(0, node_id, UserConfig(), RecordDict(), UserConfig())


def patient(_number: int, honest: Callable[[], FitRes]) -> FitRes:
    """Return the honest answer; a client that fails is asked again."""
    for _ in range(TRIES - 1):
        with suppress(Exception):
            res = honest()
            if "failure" not in res.metrics:
                return res
    return honest()


def answer_to(
    make: Callable[[], ProtocolClient], ins: FitIns, *, tries: int = TRIES, without_noise: bool = False
) -> tuple[list[Array], int, dict[str, Any]]:
    """Answer a message; a client that fails, or raises, is made and asked again."""
    left_out = OF_NOISE if without_noise else ()
    config = {key: value for key, value in ins.config.items() if key not in left_out}
    for _ in range(tries):
        try:
            with one_thread():
                found = make().fit(decode(ins.parameters), dict(config))
        except Exception as error:
            found = [], 1, {"failure": type(error).__name__}
        if "failure" not in found[2]:
            break
    return found


@dataclass(frozen=True)
class Exchange:
    """One message to one client and its answer, if there was one."""

    round: int
    client: str
    ins: FitIns
    res: FitRes | None

    @property
    def sent(self) -> list[Sendable]:
        """What the client sent: integers in a unit, and what is not on a grid as it is."""
        return [] if self.res is None else received_arrays(decode(self.res.parameters), self.res.metrics)

    @property
    def arrays(self) -> list[Array]:
        """What the client sent, in the units of the data."""
        return values_of(self.sent)


class Site(Address):
    """A client whose rows live here. Flower makes a client anew for each message, and so does this.

    Parameters
    ----------
    index : int
    name : str
    client_type : type of ProtocolClient
    data : ClientData or callable
        As in :class:`~flower_fedclust.ProtocolClient`.
    noise_seed : int, optional
    consent : Consent, optional
    tamper : callable, optional
        Called with the round's number and a function that gives the honest answer; what it returns is sent.
    """

    def __init__(
        self,
        index: int,
        name: str,
        client_type: type[ProtocolClient],
        data: ClientData | Callable[[], ClientData],
        *,
        noise_seed: int | None = None,
        consent: Consent | None = None,
        tamper: Tamper | None = None,
    ) -> None:
        super().__init__(str(9000 + index))
        self.node_id = 9000 + index
        self.name = name
        self.context = new_context(self.node_id)
        self.exchanges: list[Exchange] = []
        self.has_evaluated = False
        self._tamper = tamper

        def make() -> ProtocolClient:
            return client_type(data, name=name, context=self.context, noise_seed=noise_seed, consent=consent)

        self.made = make

    def fit(self, ins: FitIns, timeout: float | None = None, group_id: int | None = None) -> FitRes:
        def honest() -> FitRes:
            arrays, n_examples, metrics = self.made().fit(decode(ins.parameters), dict(ins.config))
            return FitRes(Status(Code.OK, ""), encode(arrays), n_examples, metrics)

        number = int(ins.config["round"])
        try:
            res = honest() if self._tamper is None else self._tamper(number, honest)
        except Exception:
            self.exchanges.append(Exchange(number, self.name, ins, None))
            raise
        self.exchanges.append(Exchange(number, self.name, ins, res))
        return res

    def evaluate(self, ins: EvaluateIns, timeout: float | None = None, group_id: int | None = None) -> EvaluateRes:
        self.has_evaluated |= bool(ins.config.get("evaluate", True))
        loss, n_examples, metrics = self.made().evaluate(decode(ins.parameters), dict(ins.config))
        return EvaluateRes(Status(Code.OK, ""), loss, n_examples, metrics)


@dataclass
class Run:
    """A run that was watched.

    Parameters
    ----------
    strategy : ProtocolStrategy
        Which has run.
    data : dict of str to ClientData
    seed : int or None
    rounds : dict of int to Round
        What the protocol yielded, with the noise that its parts pay for, by the number of the Flower round.
    received : dict of int to anything
        What the protocol got for it: a Total, or a list of Reply.
    exchanges : list of Exchange
        In the order of the rounds.
    sites : list of Site
    seconds : float
    error : Exception or None
        With which it ended early.
    """

    strategy: ProtocolStrategy
    data: dict[str, ClientData]
    seed: int | None
    rounds: dict[int, Round] = field(default_factory=dict)
    received: dict[int, Any] = field(default_factory=dict)
    exchanges: list[Exchange] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    seconds: float = 0.0
    error: Exception | None = None

    @cached_property
    def result(self) -> Result:
        """What :func:`flower_fedclust.simulate` would have returned."""
        return result_of(self.strategy, self.data, self.seconds)

    @property
    def clients_remember(self) -> bool:
        """Whether a client keeps anything from one message to the next."""
        return any(site.context.state for site in self.sites)

    def sent(self, number: int) -> dict[str, list[Sendable]]:
        """Return what each client that was asked sent in a round; others may have worked for themselves."""
        return {exchange.client: exchange.sent for exchange in self.asked(number)}

    def asked(self, number: int) -> list[Exchange]:
        """Return the messages of a round to those that it asked."""
        task = self.rounds[number].task
        return [one for one in self.exchanges if one.round == number and one.ins.config["task"] == task]


def watched_run(
    strategy: ProtocolStrategy,
    data: Mapping[str, ClientData],
    *,
    seed: int | None = None,
    order: Sequence[str] | None = None,
    consent: Consent | None = None,
    tamper: Mapping[str, Tamper] | None = None,
    keeps_error: bool = False,
) -> Run:
    """Run a strategy as Flower's Server does, and keep every message.

    Parameters
    ----------
    strategy : ProtocolStrategy
        Not changed: a copy runs.
    data : mapping of str to ClientData
        By the clients' names.
    seed : int, optional
        As in :func:`flower_fedclust.simulate`: the same seed gives the same bits.
    order : sequence of str, optional
        The order in which the clients connect and answer; by default that of the data.
    consent : Consent, optional
        Of every client.
    tamper : mapping of str to callable, optional
        By client; see :class:`Site`.
    keeps_error : bool, default=False
        Whether an error that ends the run is kept in it; by default it is raised.
    """
    strategy = copy.copy(strategy)
    if seed is not None:
        strategy.noise_seed = seed
        if strategy.random_state is None:
            strategy.random_state = seed
    strategy.wait_for_clients = 0.0
    run = Run(strategy, dict(data), seed)
    manager = SimpleClientManager()
    names = list(data)
    for name in order or names:
        index = names.index(name)
        site = Site(
            index,
            name,
            strategy.client_type,
            data[name],
            noise_seed=noise_seed_of(seed, index),
            consent=consent,
            tamper=(tamper or {}).get(name),
        )
        run.sites.append(site)
        manager.register(site)
    start = time.perf_counter()
    try:
        with one_thread():
            _serve(run, manager)
    except Exception as error:
        if not keeps_error:
            raise
        run.error = error
    run.seconds = time.perf_counter() - start
    return run


def _serve(run: Run, manager: SimpleClientManager) -> None:
    strategy = run.strategy
    parameters: Parameters = strategy.initialize_parameters(manager)
    numbers: list[int] = []
    assert strategy._protocol is not None
    strategy._protocol = _listening(strategy._protocol, run, numbers)
    for number in range(1, strategy.num_rounds + 1):
        numbers.append(number)
        results: list[tuple[ClientProxy, FitRes]] = []
        failures: list[Any] = []
        asked = strategy.configure_fit(number, parameters, manager)
        for proxy, ins in asked:
            try:
                results.append((proxy, proxy.fit(ins, None, None)))
            except Exception as error:
                failures.append(error)
            run.exchanges.append(proxy.exchanges[-1])  # type: ignore[attr-defined]
        if not asked:
            break
        aggregated, _ = strategy.aggregate_fit(number, results, failures)
        parameters = aggregated or parameters
        to_evaluate = strategy.configure_evaluate(number, parameters, manager)
        if to_evaluate:
            answers = [(proxy, proxy.evaluate(ins, None, None)) for proxy, ins in to_evaluate]
            strategy.aggregate_evaluate(number, answers, [])


def _listening(protocol: Protocol, run: Run, numbers: list[int]) -> Protocol:
    """Pass everything between the strategy and its protocol on, and keep it."""
    received: Any = None
    while True:
        try:
            round_ = protocol.send(received)
        except StopIteration as stop:
            outcome: Outcome | Model = stop.value
            return outcome
        run.rounds[numbers[-1] + 1] = run.strategy.with_noise(round_)
        received = yield round_
        run.received[numbers[-1]] = copy.deepcopy(received)
