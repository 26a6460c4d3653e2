"""Small tables for trying a strategy, runs that keep every message, and clients that answer the messages again.

A :class:`WatchedRun` is a complete run in this process with all its messages and replies. Because a
client is a function of its rows, its memory and a message, a copy of it can answer the same
messages again: with other rows, without noise, or with another seed. All other checks rest on this.
"""

# ruff: noqa: ARG002 - Flower's signatures

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Error, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp
from flwr.common import Code, EvaluateIns, EvaluateRes, FitIns, FitRes, Status
from flwr.server.client_proxy import ClientProxy
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.engine import ClientData, Consent, ProtocolClient, ProtocolStrategy, Sum
from flower_fedclust.engine.messages import Answers, Message, drive
from flower_fedclust.engine.parameters import check_is_strategy
from flower_fedclust.engine.progress import quiet
from flower_fedclust.engine.replies import values_of
from flower_fedclust.engine.rounds import Array, Round, Sent
from flower_fedclust.engine.wire import decode, encode, received_arrays
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.privacy.noise import Sendable
from flower_fedclust.privacy.releases import PrivacyUnit, Relation, Release
from flower_fedclust.results.result import Result, result_of
from flower_fedclust.simulation import noise_seed_of

Floats = NDArray[np.float64]

#: Replaces a client's answer. It is called with the round's number and a function that returns the honest answer.
Tamper = Callable[[int, Callable[[], FitRes]], FitRes]

SEED = 5

#: Client names whose order is neither alphabetical nor numerical.
NAMES = ("site-b", "10", "9")

#: The fields of a message that make a client add noise.
NOISE_FIELDS = frozenset({"parts", "releases"})

#: How often a failing client is asked: it may fail at random, and comparisons must not depend on chance.
TRIES = 20


@dataclass(frozen=True)
class Exchange:
    """One message to one client, and its reply (None if there was none)."""

    round: int
    client: str
    ins: FitIns
    res: FitRes | None

    @property
    def task(self) -> str:
        """The name of the question."""
        return str(self.ins.config["task"])

    @property
    def has_failed(self) -> bool:
        """Whether there is no reply, or one that says that the client failed."""
        return self.res is None or "failure" in self.res.metrics

    @property
    def sent(self) -> list[Sendable]:
        """The arrays that the client sent; integers that have a unit come with it."""
        return (
            []
            if self.res is None
            else received_arrays(decode(self.res.parameters), self.res.metrics)
        )

    @property
    def arrays(self) -> list[Array]:
        """The arrays that the client sent, in the units of the data."""
        return values_of(self.sent)


class WatchedSite(ClientProxy):
    """A client in this process that keeps its exchanges.

    It makes a new client object for each message, as Flower does, so only the context carries
    memory between rounds. ``tamper`` is called in place of the honest client: it may change the
    reply, or fail.
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
        """Make a site with a name and rows, and with a node id that follows from its index.

        A client is made for every message, as in a real site. ``noise_seed`` makes its noise
        repeatable, ``consent`` says what it agrees to answer, and ``tamper`` may change an answer
        before it leaves.
        """
        self.node_id = 9000 + index
        super().__init__(str(self.node_id))
        self.name = name
        self.context = new_context(self.node_id)
        self.exchanges: list[Exchange] = []
        self.has_evaluated = False
        self.new_client = partial(
            client_type,
            data,
            name=name,
            context=self.context,
            noise_seed=noise_seed,
            consent=consent,
        )
        self._tamper = tamper

    def fit(self, ins: FitIns, timeout: float | None = None, group_id: int | None = None) -> FitRes:
        """Answer a question and keep the exchange, also if the client fails."""

        def honest() -> FitRes:
            arrays, n_examples, metrics = self.new_client().fit(
                decode(ins.parameters), dict(ins.config)
            )
            return FitRes(Status(Code.OK, ""), encode(arrays), n_examples, metrics)

        number, res = int(ins.config["round"]), None
        try:
            res = honest() if self._tamper is None else self._tamper(number, honest)
            return res
        finally:
            self.exchanges.append(Exchange(number, self.name, ins, res))

    def evaluate(
        self, ins: EvaluateIns, timeout: float | None = None, group_id: int | None = None
    ) -> EvaluateRes:
        """Answer Flower's evaluation, and note that it was asked for."""
        self.has_evaluated |= bool(ins.config.get("evaluate", True))
        loss, n_examples, metrics = self.new_client().evaluate(
            decode(ins.parameters), dict(ins.config)
        )
        return EvaluateRes(Status(Code.OK, ""), loss, n_examples, metrics)

    def get_properties(self, *_: Any, **__: Any) -> Any:
        """Refuse: a strategy of this package only asks for rounds and evaluation."""
        raise NotImplementedError("a watched site answers rounds alone")

    get_parameters = reconnect = get_properties


class WatchedSites:
    """Carries a run's messages to watched sites, one after the other in the order of the messages."""

    def __init__(self, sites: Sequence[WatchedSite]) -> None:
        self._sites = {site.cid: site for site in sites}

    def nodes(self) -> list[str]:
        """Return the ids of all sites."""
        return list(self._sites)

    def carry(self, messages: Sequence[Message]) -> Answers:
        """Deliver messages, and return the replies by node and the errors of sites that failed."""
        replies, failures = dict[str, Any](), list[Exception]()
        for message in messages:
            site = self._sites[message.node]
            try:
                replies[message.node] = (
                    site.fit(message.ins)
                    if isinstance(message.ins, FitIns)
                    else site.evaluate(message.ins)
                )
            except Exception as error:
                failures.append(error)
        return Answers(replies, failures)


@dataclass
class WatchedRun:
    """A run with all its messages: its rounds by number, and each client's question and reply."""

    strategy: ProtocolStrategy
    data: dict[str, ClientData]
    seed: int | None
    #: The rounds that were asked, with their releases.
    rounds: dict[int, Round] = field(default_factory=dict)
    #: The result of each round: a Total, a list of Reply, or None.
    received: dict[int, Any] = field(default_factory=dict)
    exchanges: list[Exchange] = field(default_factory=list)
    sites: list[WatchedSite] = field(default_factory=list)
    seconds: float = 0.0
    error: Exception | None = None  #: The error that ended the run early.

    def take(self, round_: Round, received: Any = None) -> None:
        """Keep a round and its result, unless no client was asked.

        The strategy calls this as its ``on_received``.
        """
        number = self.strategy._current.number
        if number not in self.rounds and any(
            exchange.round == number for exchange in self.exchanges
        ):
            self.rounds[number], self.received[number] = round_, copy.deepcopy(received)

    @cached_property
    def result(self) -> Result:
        """The result that :func:`flower_fedclust.simulate` would have returned."""
        return result_of(self.strategy, self.data, self.seconds)

    @property
    def releases(self) -> list[tuple[int, int, Release]]:
        """All releases with noise, as (number of the round, index of the array, release)."""
        return [
            (number, index, release)
            for number in self.rounds
            for index, release in self.noisy(number)
        ]

    @property
    def clients_remember(self) -> bool:
        """Whether a client keeps anything from one message to the next."""
        return any(site.context.state for site in self.sites)

    def noisy(self, number: int) -> list[tuple[int, Release]]:
        """Return (index, release) for each array of a round that takes noise."""
        releases = enumerate(self.rounds[number].releases)
        return [
            (index, release)
            for index, release in releases
            if release is not None and release.scale > 0
        ]

    def asked(self, number: int) -> list[Exchange]:
        """Return the exchanges about a round's own question, but not those about its ``others`` task."""
        task = self.rounds[number].task
        return [
            exchange
            for exchange in self.exchanges
            if exchange.round == number and exchange.task == task
        ]

    def sent(self, number: int) -> dict[str, list[Sendable]]:
        """Return the arrays that each asked client sent in a round."""
        return {exchange.client: exchange.sent for exchange in self.asked(number)}

    def to_client(self, client: str) -> list[Exchange]:
        """Return all exchanges with one client, in order."""
        return [exchange for exchange in self.exchanges if exchange.client == client]

    def replies(self, number: int) -> list[list[Array]]:
        """Return the arrays that the protocol received in a round: one list for a sum, else a list for each reply."""
        received = self.received.get(number)
        if received is None:
            return []
        return (
            [list(received)]
            if isinstance(self.rounds[number], Sum)
            else [reply.arrays for reply in received]
        )

    def declared(self) -> Iterator[tuple[int, Round, Sent, Release | None, bool]]:
        """Yield (round number, round, declared array, release, from noisy rows) for each array that was asked for.

        The release is None without noise. The last value tells whether the array was computed only
        from kept rows that carry noise.
        """
        noisy_rows: set[str] = set()
        for number, round_ in self.rounds.items():
            from_noisy = bool(round_.rows) and round_.rows in noisy_rows
            noisy = dict(self.noisy(number))
            for index, sent in enumerate(round_.answer.sends):
                if sent.kept_as:
                    (noisy_rows.add if index in noisy or from_noisy else noisy_rows.discard)(
                        sent.kept_as
                    )
                yield number, round_, sent, noisy.get(index), from_noisy


class Subject:
    """A strategy to be checked, and the tables to check it on; by default three tables of about 25 rows.

    The strategy itself is never changed: each run takes a copy. ``tamper`` applies to every client
    in :attr:`run`.
    """

    def __init__(
        self,
        strategy: ProtocolStrategy,
        clients: Sequence[ArrayLike] | None = None,
        labels: Sequence[ArrayLike] | None = None,
        *,
        tamper: Tamper | None = None,
    ) -> None:
        check_is_strategy(strategy)
        self._given, self._tamper = strategy, tamper
        tables, classes = small_tables(strategy) if clients is None else (clients, labels)
        self.names = [*NAMES, *map(str, range(20, 20 + len(tables)))][: len(tables)]
        self.data = {
            name: data_of(
                strategy, rows, f"client {name}", labels=None if classes is None else classes[index]
            )
            for index, (name, rows) in enumerate(zip(self.names, tables, strict=True))
        }

    @property
    def strategy(self) -> ProtocolStrategy:
        """A copy of the strategy; its ``random_state`` is set, so that runs can be compared."""
        copied = copy.copy(self._given)
        copied.random_state = SEED if copied.random_state is None else copied.random_state
        return copied

    def with_parameters(self, **parameters: Any) -> ProtocolStrategy:
        """Return a new strategy with some parameters changed."""
        current = {name: getattr(self.strategy, name) for name in self._given.parameter_names()}
        changed: ProtocolStrategy = type(self._given)(**(current | parameters))
        for name in ("server_data_origin", "server_columns"):
            setattr(changed, name, getattr(self._given, name))
        return changed

    @property
    def rows(self) -> list[Floats]:
        """Each client's rows, in the order of the clients."""
        return [client.rows for client in self.data.values()]

    @property
    def n_columns(self) -> int:
        """The number of columns of the tables."""
        return int(self.rows[0].shape[1])

    @cached_property
    def run(self) -> WatchedRun:
        """A seeded run of the strategy, made when it is first needed.

        Raises an AssertionError if the protocol does not end within its announced number of rounds.
        """
        tamper = None if self._tamper is None else dict.fromkeys(self.data, self._tamper)
        run = watched_run(self.strategy, self.data, seed=SEED, tamper=tamper)
        if not run.strategy.is_finished:
            raise AssertionError(
                f"it has not ended after n_protocol_rounds={self.strategy.n_protocol_rounds} rounds."
            )
        return run

    @property
    def releases(self) -> list[tuple[int, int, Release]]:
        """The releases of :attr:`run`."""
        return self.run.releases

    @property
    def neighboring(self) -> tuple[PrivacyUnit, Relation]:
        """The unit and the relation of the guarantee; the run must have a release."""
        return self._given.privacy_unit, self.releases[0][2].relation

    @cached_property
    def epsilon(self) -> float:
        """The epsilon to which the releases of :attr:`run` compose, by the strategy's own report."""
        return self.run.strategy.report.composed_epsilon

    def changed(self, name: str, rows: ArrayLike) -> dict[str, ClientData]:
        """Return the data with other rows at one client; its labels are left out."""
        return self.data | {name: data_of(self._given, rows, f"client {name}")}


def data_of(
    strategy: ProtocolStrategy,
    rows: ArrayLike,
    owner: str,
    *,
    labels: ArrayLike | None = None,
    subjects_of_rows: ArrayLike | None = None,
) -> ClientData:
    """Return a client's data.

    If the guarantee is per subject, ``subjects_of_rows`` has the subject of each row; by default
    each row belongs to another subject.
    """
    subjects = None
    if strategy.privacy_unit == "subject":
        subjects = (
            np.arange(len(np.asarray(rows))) if subjects_of_rows is None else subjects_of_rows
        )
    return ClientData(rows, labels, owner=owner, subjects=subjects)


def small_tables(
    strategy: ProtocolStrategy, n_clients: int = 3, n_columns: int = 4, *, seed: int = 7
) -> tuple[list[Floats], list[NDArray[np.intp]]]:
    """Return tables of about 25 clustered rows, and the cluster of each row.

    The rows fit the strategy: they lie within its public rows and bounds, and have the number of
    columns that it expects.
    """
    rng = np.random.default_rng(seed)
    public = np.asarray(getattr(strategy, "server_data", np.empty(0)), dtype=float)
    n_columns = strategy.expected_columns or n_columns
    center, radius = np.zeros(n_columns), 1.0
    if public.ndim == 2:
        center = public.mean(axis=0)
        radius = float(np.linalg.norm(public - center, axis=1).max())
    for name in ("max_norm", "max_l1_norm"):
        if getattr(strategy, name, None) is not None:
            center, radius = (
                np.zeros(n_columns),
                float(getattr(strategy, name)) / np.sqrt(n_columns),
            )
    directions = rng.normal(size=(strategy.n_clusters, n_columns))
    means = center + 0.6 * radius * directions / np.linalg.norm(directions, axis=1)[:, None]
    sizes = [25 + 3 * index for index in range(n_clients)]
    labels = [np.arange(size) % strategy.n_clusters for size in sizes]
    rows = [
        means[classes] + 0.05 * radius * rng.normal(size=(len(classes), n_columns))
        for classes in labels
    ]
    return rows, labels


# Runs.


def watched_run(
    strategy: ProtocolStrategy,
    data: Mapping[str, ClientData],
    *,
    seed: int | None = None,
    order: Sequence[str] | None = None,
    consent: Consent | None = None,
    tamper: Mapping[str, Tamper] | None = None,
    keeps_error: bool = False,
) -> WatchedRun:
    """Run a copy of a strategy in this process, and keep every message.

    Parameters
    ----------
    strategy : ProtocolStrategy
    data : mapping of str to ClientData
    seed : int, optional
        Gives the bits of :func:`flower_fedclust.simulate` with this seed. Without one, noise comes
        from the operating system.
    order : sequence of str, optional
        The order in which clients connect and answer; by default the order of the data.
    consent : Consent, optional
        What all sites are willing to send.
    tamper : mapping of str to Tamper, optional
        What replaces the honest reply, by client.
    keeps_error : bool, default=False
        Keep an error that ends the run in ``error``, and do not raise it.

    Returns
    -------
    WatchedRun
    """
    strategy = copy.copy(strategy)
    if seed is not None:
        strategy.noise_seed = seed
        strategy.random_state = seed if strategy.random_state is None else strategy.random_state
    run = WatchedRun(strategy, dict(data), seed)
    strategy.on_received = run.take
    names = list(data)
    for name in order or names:
        index = names.index(name)
        site = WatchedSite(
            index,
            name,
            strategy.client_type,
            data[name],
            noise_seed=noise_seed_of(seed, index),
            consent=consent,
            tamper=(tamper or {}).get(name),
        )
        site.exchanges = run.exchanges
        run.sites.append(site)
    start = time.perf_counter()
    try:
        with one_thread(), quiet(logging.ERROR, "flwr"):
            drive(strategy.steps(), WatchedSites(run.sites))
    except Exception as error:
        if not keeps_error:
            raise
        run.error = error
        if strategy._run is not None and strategy._run.round is not None:  # the round that failed
            run.take(strategy._run.round)
    run.seconds = time.perf_counter() - start
    return run


def difference(first_result: Result, other: Result, *, leave_out: Collection[str] = ()) -> str:
    """Name the parts in which two results differ; "" if they are equal bit for bit."""
    first, second = bits_of(first_result), bits_of(other)
    return ", ".join(
        name for name in first if name not in leave_out and first[name] != second[name]
    )


def bits_of(result: Result) -> dict[str, Any]:
    """Return everything in a result that must be equal for equal runs, by name."""
    return {
        "model": [array.tobytes() for array in result.model.to_arrays()],
        "labels": [labels.tobytes() for labels in result.labels_of_clients],
        "embedding": [places.tobytes() for places in result.embedding],
        "metrics": result.metrics,
        "messages": tuple(result.privacy.messages),
        "traffic": result.traffic,
        "failures": result.failures,
        "history": result.history,
    }


# Clients that answer the messages of a run again.


def new_context(node_id: int = 0) -> Context:
    """Return the context of a client that has answered nothing yet."""
    return Context(0, node_id, UserConfig(), RecordDict(), UserConfig())


def patient(_number: int, honest: Callable[[], FitRes]) -> FitRes:
    """Return the honest reply; if the client fails, ask it again, up to :data:`TRIES` times."""
    for _ in range(TRIES - 1):
        with suppress(Exception):
            res = honest()
            if "failure" not in res.metrics:
                return res
    return honest()


def answer_to(
    make: Callable[[], ProtocolClient],
    ins: FitIns,
    *,
    tries: int = TRIES,
    without_noise: bool = False,
) -> tuple[list[Array], int, dict[str, Any]]:
    """Answer a message with a new client, and return its arrays, number of examples and facts.

    If the client fails or raises, a new one is tried, up to ``tries`` times. ``without_noise``
    takes the request for noise out of the message.
    """
    config = {
        key: value
        for key, value in ins.config.items()
        if not (without_noise and key in NOISE_FIELDS)
    }
    for _ in range(tries):
        try:
            with one_thread():
                answer = make().fit(decode(ins.parameters), dict(config))
        except Exception as error:
            answer = [], 1, {"failure": type(error).__name__}
        if "failure" not in answer[2]:
            break
    return answer


def sent_or_kept(
    run: WatchedRun,
    exchange: Exchange,
    data: ClientData,
    context: Context,
    *,
    client_type: type[ProtocolClient] | None = None,
    noise_seed: int | None = None,
    without_noise: bool = False,
) -> list[Sendable] | None:
    """Answer a message again, and return the arrays that the client sends, or keeps for a later round.

    None if it fails. ``client_type`` replaces the strategy's class of clients.
    """
    make = partial(
        client_type or run.strategy.client_type,
        data,
        name=exchange.client,
        context=context,
        noise_seed=noise_seed,
    )
    arrays, _, facts = answer_to(make, exchange.ins, without_noise=without_noise)
    if "failure" in facts:
        return None
    round_ = run.rounds.get(exchange.round)
    if round_ is None or not round_.answer.keeps or exchange.task != round_.task:
        return received_arrays(decode(encode(arrays)), facts)
    records = (context.state.get(f"fedclust.{sent.kept_as}") for sent in round_.answer.sends)
    return [record.to_numpy_ndarrays()[0] for record in records if isinstance(record, ArrayRecord)]


def shadow_answers(
    run: WatchedRun,
    client: str,
    rows: Floats | ClientData,
    *,
    noise_seed: int = 0,
    only: int | None = None,
) -> dict[int, list[Sendable] | None]:
    """Return the arrays that a client with other rows would have sent or kept, without noise, by round.

    An entry is None if the client fails in that round. ``noise_seed`` is for the client's random
    choices, such as a sample of its rows. With ``only``, the client answers just that round, unless
    clients remember something from earlier rounds.
    """
    context = new_context()
    data = rows if isinstance(rows, ClientData) else data_of(run.strategy, rows, f"client {client}")
    return {
        exchange.round: sent_or_kept(
            run, exchange, data, context, noise_seed=noise_seed, without_noise=True
        )
        for exchange in run.to_client(client)
        if run.clients_remember or only in (None, exchange.round)
    }


# The Message API.


class LocalGrid(Grid):
    """Flower's Grid over a ClientApp in this process; the partitions in ``silent`` reply with an error.

    As in a deployment, the ids of nodes differ from the numbers of their partitions, and replies
    arrive in another order than the messages were sent.
    """

    def __init__(self, app: ClientApp, n_nodes: int, silent: Iterable[int] = ()) -> None:
        self.app = app
        self.silent = set(silent)
        self.contexts = {
            9000 - index: Context(
                1,
                9000 - index,
                UserConfig({"partition-id": index, "num-partitions": n_nodes}),
                RecordDict(),
                UserConfig(),
            )
            for index in range(n_nodes)
        }
        # Variables that Flower sets in the process of a ServerApp.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def _not_needed(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: a run only uses ``send_and_receive``."""
        raise NotImplementedError("send_and_receive is enough")

    set_run = create_message = get_nodes = push_messages = pull_messages = _not_needed

    @property
    def run(self) -> Any:
        """The run; only its id is set."""
        return SimpleNamespace(run_id=1)

    def get_node_ids(self) -> list[int]:
        """Return the ids of all nodes."""
        return list(self.contexts)

    def send_and_receive(
        self, messages: Iterable[FlowerMessage], *, timeout: float | None = None
    ) -> list[FlowerMessage]:
        """Deliver messages to the ClientApp, and return the replies in reverse order."""
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = str(node)
            message.metadata.__dict__["_run_id"] = 1
            if self.contexts[node].node_config["partition-id"] in self.silent:
                replies.append(FlowerMessage(Error(code=0, reason="gone"), reply_to=message))
            else:
                replies.append(self.app(message, self.contexts[node]))
        return replies[::-1]
