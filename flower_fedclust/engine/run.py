"""One run: who takes part, what is asked, what comes back, and what is noted of it."""

from __future__ import annotations

import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeGuard, TypeVar

import numpy as np
from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy

from flower_fedclust.data.frames import as_named, in_order, names_of
from flower_fedclust.engine.client import ENROL
from flower_fedclust.engine.journal import Record, RoundLog
from flower_fedclust.engine.parts import Spending
from flower_fedclust.engine.replies import (
    Evaluation,
    Inspection,
    R,
    Ranges,
    RefusalError,
    ReplyError,
    add_up,
    bytes_of,
    check_capacity,
    check_releases,
    checked_evaluation,
    client_order,
    evaluation_of,
    ledger_of,
    one_line,
    read_reply,
    unlike_most,
    values_of,
)
from flower_fedclust.engine.rounds import (
    Answer,
    Failure,
    ProtocolError,
    Question,
    Reply,
    Round,
    Scalar,
    Sum,
    Total,
    Traffic,
)
from flower_fedclust.engine.wire import EMPTY, TO_CLIENT, by_mod, encode, size_of
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.format import FORMAT
from flower_fedclust.models import Model
from flower_fedclust.outside import parse_json
from flower_fedclust.privacy.noise import (
    NoiseSource,
    OperatingSystemNoise,
    SeededNoise,
    Sendable,
    add_noise,
    noise_exponent,
    total_variation,
    variation_of_noise,
)
from flower_fedclust.privacy.releases import NoisePlace, PrivacyUnit, Release
from flower_fedclust.privacy.report import Message

if TYPE_CHECKING:
    from flower_fedclust.engine.client import ProtocolClient


#: How many clients have to answer where the user says nothing: the sum over a single client hides nothing of it.
MIN_CLIENTS = 2

#: Parameters that have a value for each column.
BY_COLUMN = ("server_data", "init", "origin")


def named_columns(strategy: Any) -> list[str] | None:
    """Return the names of the columns of the first parameter that is a table; None where none has names."""
    return next((names for name in BY_COLUMN if (names := names_of(getattr(strategy, name, None)))), None)


def put_in_order(strategy: Any, columns: Sequence[str] | None = None, whose: str = "") -> None:
    """Give the server's rows, first centers and origin, where their columns have names, the order of others.

    Parameters
    ----------
    strategy : ProtocolStrategy
    columns : sequence of str, optional
        In their order; by default that of the first of them.
    whose : str, optional
        Whose columns these are, for the message.

    Raises
    ------
    DataError
        If the names are others.
    """
    for name in BY_COLUMN:
        given = getattr(strategy, name, None)
        names = names_of(given)
        if names is None:
            continue
        if columns is None:
            columns, whose = names, name
        frame = in_order(as_named(given, name), columns, name, whose)
        setattr(strategy, name, frame.iloc[0] if getattr(given, "ndim", 2) == 1 else frame)


@dataclass(frozen=True)
class RunSettings:
    """What a run takes over from its strategy; each is explained there."""

    client_type: type[ProtocolClient]
    enrolment: Mapping[str, Scalar]
    noise: NoisePlace
    privacy_unit: PrivacyUnit
    n_clusters: int
    min_clients: int | None
    noise_seed: int | None
    random_state: int | None
    server_columns: Sequence[str] | None
    wait_for_clients: float
    expected_clients: int | None
    largest_ratio: float
    prepared_columns: int | None  #: How many columns the clients' rows have once they are prepared.

    @classmethod
    def of(cls, strategy: Any) -> Self:
        """Take over what a strategy says; the columns from a parameter, where it is a table."""
        taken_over: dict[str, Any] = {field.name: getattr(strategy, field.name, None) for field in fields(cls)}
        if strategy.tables is not None:
            taken_over["server_columns"] = None  # the clients' columns are those of the schema
            taken_over["prepared_columns"] = strategy.tables.n_columns
        elif strategy.server_columns is None:
            taken_over["server_columns"] = named_columns(strategy)
        return cls(**taken_over)

    @property
    def least(self) -> int:
        """How many clients have to be there at least."""
        return self.min_clients or MIN_CLIENTS


#: A name is as long at most: it becomes a file's, and stands in every table.
LONGEST_NAME = 100

#: More columns than these, or names of columns with more letters together, are no client's.
MOST_COLUMNS, LONGEST_COLUMNS = 2**20, 2**24

Answers = Sequence[tuple[ClientProxy, FitRes]]
Failures = Sequence[tuple[ClientProxy, Any] | BaseException]


class Address(ClientProxy):
    """Where a client is, for whoever sends the messages; or that one of a run that was interrupted is away."""

    def get_properties(self, *_: Any, **__: Any) -> Any:  # noqa: D102
        raise NotImplementedError("an address answers nothing")

    get_parameters = fit = evaluate = reconnect = get_properties


@dataclass
class Roster:
    """The clients of one run."""

    settings: RunSettings
    #: Those that enrolled, in the order in which their replies are added up, whether they are there or not.
    clients: dict[str, ClientProxy] = field(default_factory=dict)
    #: What they have, as JSON: the number of columns, or their names; empty before the first enrolled.
    columns: str = ""
    in_other_order: bool = False  #: Whether any of them has these columns in another order.
    enrolling: set[str] = field(default_factory=set)  #: The nodes that are asked to enrol in the current round.
    _known: set[str] = field(default_factory=set)  # nodes that were asked to enrol, as long as they are connected
    _connected: set[str] = field(default_factory=set)  # nodes, when it was last looked
    _silent: dict[str, tuple[int, int]] = field(default_factory=dict)  # by name: how often in a row; asked again when
    #: By task: the last round that left something with clients for later rounds, whom it asked, and who may have it.
    _left: dict[str, tuple[Round, set[str], set[str]]] = field(default_factory=dict)

    @property
    def n_columns(self) -> int:
        """How many columns the clients have."""
        known = json.loads(self.columns or "0")
        return known if isinstance(known, int) else len(known)

    @property
    def column_names(self) -> list[str] | None:
        """The names of the columns, where the clients know them."""
        known = json.loads(self.columns or "0")
        return known if isinstance(known, list) else None

    # Enrolment.

    def ask_all(
        self, number: int, manager: ClientManager, config: Mapping[str, Any]
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Return the messages of the first round, once enough clients are connected."""
        least = self.settings.least
        wanted = max(least, self.settings.expected_clients or 0)
        deadline = time.monotonic() + self.settings.wait_for_clients
        while (n_connected := manager.num_available()) < wanted and time.monotonic() < deadline:
            time.sleep(0.05)
        if n_connected < least:
            raise ProtocolError(
                f"{n_connected} clients are connected and min_clients is {least}; start more clients, or set "
                "min_clients lower."
            )
        return self.ask_new(number, manager, {**config, "goes_on": True} if self.clients else config)

    def ask_new(
        self, number: int, manager: ClientManager, config: Mapping[str, Any], asked: Collection[str] = ()
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Return messages to nodes that were not there before: they enrol now, and are asked from the next round on.

        Parameters
        ----------
        number : int
            Of the round.
        manager : ClientManager
        config : mapping
            What every message says.
        asked : collection of str
            The nodes that are asked for something else in this round.
        """
        proxies = dict(manager.all())
        self._connected = set(proxies)
        self._known &= self._connected  # who comes back has to say again who it is
        self.enrolling = self._connected - self._known - set(asked)  # whoever is asked for something enrols later
        self._known |= self.enrolling
        told: dict[str, Any] = {EMPTY: True, **config, "task": ENROL, "round": number, **self.settings.enrolment}
        ours = {proxy.cid for proxy in self.clients.values()}  # what this run has left with them is their own
        return [
            (proxy, FitIns(encode(TO_CLIENT), told | ({"goes_on": True} if node in ours else {})))
            for node, proxy in proxies.items()
            if node in self.enrolling
        ]

    def take_in(self, number: int, results: Answers, failures: Failures, log: RunLog) -> None:
        """Take in the clients that have the columns that most have, or that the server's rows have.

        Parameters
        ----------
        number : int
            Of the round.
        results, failures : sequence
            As Flower gives them, of the nodes that were asked to enrol.
        books : RunLog
        """
        said: dict[str, tuple[str, str]] = {}
        nodes = {proxy.cid: proxy for proxy, _ in results}
        # A name whose client is still connected is taken; one whose client has gone has come back.
        taken = {proxy.cid: name for name, proxy in self.clients.items() if proxy.cid in self._connected}
        stated = {proxy.cid: stated_name(proxy.cid, res) for proxy, res in results}
        claims = Counter((taken | stated).values())
        for proxy, res in results:
            node = proxy.cid
            name = stated[node] if claims[stated[node]] == 1 else node  # a failure must not be another's
            log.note_traffic(number, ENROL, name, 0, res)
            try:
                said[node] = read_reply(name, res, checked_enrolment)
            except ReplyError as error:
                log.note(number, ENROL, name, error)
        silent = dict.fromkeys(self.enrolling - nodes.keys(), (ENROL, 0))
        if silent:
            log.note_silence(number, silent, failures)
        for node, reason in of_equal_names(taken | {node: name for node, (name, _) in said.items()}).items():
            if node in said:
                log.note_failure(number, ENROL, node, reason)
                del said[node]
        proxies = {name: nodes[node] for node, (name, _) in said.items()}
        for name in [name for name in proxies if name in self.clients and self.clients[name].cid != proxies[name].cid]:
            self.forget(name)  # another node has nothing of what was left with the former
        for name, reason in self._of_other_columns(dict(said.values())).items():
            log.note_failure(number, ENROL, name, reason)
            del proxies[name]
        clients = self.clients | proxies
        self.clients = {name: clients[name] for name in sorted(clients, key=client_order)}
        self.enrolling = set()
        log.sort()
        log.messages.append(Message(number, ENROL, "name and columns", "one per client", harmless=True))

    def _of_other_columns(self, columns: Mapping[str, str]) -> dict[str, str]:
        """Return why clients cannot take part that have other columns; the first decide which these are."""
        whose = "most have"
        if self.columns == "" and columns:
            common, _ = unlike_most(columns)
            self.columns = str(common)
            if self.settings.server_columns is not None and isinstance(json.loads(self.columns), list):
                self.columns = json.dumps(list(self.settings.server_columns))
        if self.settings.server_columns is not None and isinstance(json.loads(self.columns or "0"), list):
            whose = "the server rows have"
        wanted = json.loads(self.columns or "0")
        reasons = {}
        for name in sorted(columns, key=client_order):
            own = json.loads(columns[name])
            if isinstance(own, list) and isinstance(wanted, list) and sorted(own) == sorted(wanted):
                self.in_other_order |= own != wanted
            elif own != wanted:
                reasons[name] = f"client {name} has {_in_words(own)} where {whose} {_in_words(wanted)}."
        return reasons

    def go_on(self, names: Sequence[str], columns: str) -> None:
        """Take over the clients of a run that was interrupted; they are away until they have enrolled again."""
        self.clients = {name: Address(f"away: {name}") for name in names}
        self.columns = columns

    @property
    def n_there(self) -> int:
        """How many of the clients were connected when it was last looked."""
        return sum(proxy.cid in self._connected for proxy in self.clients.values())

    # Who is there.

    def present(self, number: int, manager: ClientManager) -> dict[str, ClientProxy]:
        """Return the clients that can be asked: those that are connected, but for those that have been silent of late.

        Whoever comes back enrols first, and is asked from the next round on.
        Whoever did not answer twice in a row is left alone for a round, then for two, four and so on, so that a run
        does not wait for its time limit in every round. Where too few would be left, all that are connected are asked,
        and where too few are connected they are waited for.
        """
        deadline = time.monotonic() + self.settings.wait_for_clients
        while True:
            self._connected = set(manager.all())
            here = {name: proxy for name, proxy in self.clients.items() if proxy.cid in self._connected}
            if len(here) >= self.settings.least or time.monotonic() >= deadline:
                break
            time.sleep(0.05)
        awake = {
            name: proxy
            for name, proxy in here.items()
            if proxy.cid in self._known and self._silent.get(name, (0, 0))[1] <= number
        }
        return awake if len(awake) >= self.settings.least else here

    def note_answers(self, number: int, asked: Mapping[str, object], answered: set[str]) -> None:
        """Remember who of those that were asked did not answer."""
        for name in asked:
            if name in answered:
                self._silent.pop(name, None)
            else:
                times = self._silent.get(name, (0, 0))[0] + 1
                self._silent[name] = times, number + 2 ** (times - 1)

    # What rounds leave with clients, for later rounds.

    def note_left(self, round_: Round, asked: Collection[str]) -> None:
        """Remember whom a round has left something with for later rounds, if it leaves anything."""
        if round_.answer.keeps or not round_.answer.sends:
            self._left[round_.task] = round_, set(asked), set(asked)

    def note_sent_again(self, name: str, task: str) -> bool:
        """Note that a client is sent what a round left with others; return whether it is asked for the first time."""
        _, asked, _ = self._left[task]
        is_first = name not in asked
        asked.add(name)
        return is_first

    def note_caught_up(self, name: str, task: str) -> None:
        """Note that a client has what a round left with others."""
        self._left[task][2].add(name)

    def missed(self, name: str) -> Round | None:
        """Return the first round of which a client has nothing, though later rounds need it; None if there is none.

        One with noise is not asked a second time: that would be a second release.
        """
        for round_, asked, having in self._left.values():
            is_noisy = any(release is not None and release.scale > 0 for release in round_.releases)
            if name not in having and not (is_noisy and name in asked) and name in (round_.named or (name,)):
                return round_
        return None

    def forget(self, name: str) -> None:
        """Take it that a client has nothing of what earlier rounds left with it."""
        for _, _, having in self._left.values():
            having.discard(name)

    def why_absent(self, name: str) -> str:
        """Return why a client was not asked, in a sentence."""
        node = self.clients[name].cid
        if node not in self._connected:
            return f"client {name} is not connected."
        if node not in self._known:
            return f"client {name} is back, and is asked from the next round on."
        if self.missed(name) is not None:
            return f"client {name} missed an earlier round, and is sent what that round left with the others."
        return f"client {name} was silent {self._silent[name][0]} times and was not asked."


def is_name(name: object) -> TypeGuard[str]:
    """Tell whether a client can be called so."""
    return isinstance(name, str) and name.isprintable() and 0 < len(name) <= LONGEST_NAME


def stated_name(node: str, res: FitRes) -> str:
    """Return the name that a node gives itself, or the node's id where nobody can be called so."""
    name = res.metrics.get("client") if isinstance(res.metrics, Mapping) else None
    return name if is_name(name) else node


def checked_enrolment(name: str, res: FitRes) -> tuple[str, str]:
    """Return the name and the columns (as JSON: their number, or their names) that a node gives.

    Parameters
    ----------
    name : str
        What the node is called in messages.
    res : FitRes

    Raises
    ------
    ReplyError
        If one is missing, or is not what a client of this package gives.
    """
    if not is_name(res.metrics.get("client")):
        raise ReplyError(f"client {name} gave no name, or none of at most {LONGEST_NAME} printable letters.")
    try:
        columns = parse_json(str(res.metrics.get("columns")), LONGEST_COLUMNS)
    except ValueError:
        columns = None
    is_number = type(columns) is int and 0 < columns <= MOST_COLUMNS
    are_names = isinstance(columns, list) and columns and all(isinstance(column, str) for column in columns)
    if not (is_number or (are_names and len(columns) <= MOST_COLUMNS)):
        raise ReplyError(f"client {name} did not say which columns it has.")
    return str(res.metrics["client"]), json.dumps(columns)


def _in_words(columns: int | list[str]) -> str:
    return f"{columns} columns" if isinstance(columns, int) else f"the columns {one_line(json.dumps(columns))}"


def of_equal_names(names: Mapping[str, str]) -> dict[str, str]:
    """Return why nodes cannot take part that call themselves alike: who is who cannot be known.

    Parameters
    ----------
    names : mapping of str to str
        By node.

    Returns
    -------
    dict of str to str
        A sentence for each such node.
    """
    nodes = defaultdict[str, list[str]](list)
    for node in sorted(names, key=client_order):
        nodes[names[node]].append(node)
    return {
        node: f"{len(alike)} clients call themselves '{name}' (nodes {', '.join(alike)}), so that none of them takes "
        "part; give every client a name of its own."
        for name, alike in nodes.items()
        if len(alike) > 1
        for node in alike
    }


#: How many entries of an array of which the server sees nothing one row may move: as many as it has columns.
UNSEEN_ENTRIES = 2**20

#: The task under which the books have the evaluation of the model.
EVALUATE = "evaluate"


@dataclass
class RunLog:
    """The books of one run."""

    messages: list[Message] = field(default_factory=list)  #: What has left the clients.
    traffic: list[Traffic] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    ended: str = ""  #: Where the run ended before the protocol did; empty where it did not.
    #: The rounds that were asked twice, because the run was interrupted.
    asked_again: list[int] = field(default_factory=list)
    _without_noise: dict[str, set[str]] = field(default_factory=dict)  # by name of kept rows: who may have true ones

    def notes(self) -> list[str]:
        """Return what the privacy report has to say of replies that were not used, and of an early end."""
        lost = Counter((failure.round, failure.task) for failure in self.failures if failure.task != EVALUATE)
        found = [
            f"{count} client{'s' if count > 1 else ''} did not answer round {number} ('{task}') as asked; what they "
            "may have sent counts as sent."
            for (number, task), count in sorted(lost.items())
        ]
        found += [
            f"Round {number} was asked twice, as the run was interrupted: what left the clients then counts as well."
            for number in self.asked_again
        ]
        if self.ended:
            found.append(f"The run ended early, in {self.ended}. What had left the clients by then is listed here.")
        return found

    def entries(self, number: int) -> RoundLog:
        """Return what the books say of a round."""
        return RoundLog(
            [one for one in self.messages if one.round == number],
            [one for one in self.traffic if one.round == number],
            [one for one in self.failures if one.round == number],
            {kept: sorted(names) for kept, names in self._without_noise.items()},
        )

    def add(self, entries: RoundLog) -> None:
        """Take over what other books say of a round."""
        self.messages += entries.messages
        self.traffic += entries.traffic
        self.failures += entries.failures
        self._without_noise = {kept: set(names) for kept, names in entries.without_noise.items()}

    def note_round(
        self,
        number: int,
        round_: Round,
        releases: Sequence[Release | None],
        variations: Sequence[float],
        *,
        asked: tuple[str, ...],
        answered: Collection[str],
        n_clients: int,
        is_enough: bool,
    ) -> None:
        """Record what a round brought, or what the clients have kept with noise.

        Parameters
        ----------
        number : int
            Of the Flower round.
        round_ : Round
        releases : sequence of (Release or None)
        variations : sequence of float
            How far the noise of each array may be from its law.
        asked : tuple of str
            Whether they answered or not: the server may have seen an answer that it did not use.
        answered : collection of str
            Of these.
        n_clients : int
            In the run.
        is_enough : bool
            Whether so many answered that their shares of the noise are all of it.
        """
        everybody = len(asked) == n_clients
        derived = round_.rows in self._without_noise and not self._without_noise[round_.rows].intersection(asked)
        for sent, release, variation in zip(round_.answer.sends, releases, variations, strict=True):
            protected = release is not None and release.noise_multiplier > 0
            if sent.kept_as and (protected or derived):
                # Who did not answer may still have what it kept before.
                self._without_noise.setdefault(sent.kept_as, set()).difference_update(answered)
            elif sent.kept_as:
                self._without_noise.setdefault(sent.kept_as, set()).update(asked)
            if sent.kept_as and not protected:
                continue  # nothing has left the client
            detail = "sum over the clients" if isinstance(round_, Sum) else f"one per {sent.per}"
            if not everybody:
                detail += f", {len(asked)} of {n_clients} clients asked"
            if sent.kept_as:
                detail = f"one per {sent.per}, kept by the client"
            if protected and not is_enough:
                release, variation = None, 0.0
                detail += ", with a part of its noise: shares of it did not come"
            self.messages.append(
                Message(
                    number,
                    round_.task,
                    sent.content,
                    detail,
                    release,
                    post_processing=derived and not protected,
                    counts_rows=sent.counts_rows,
                    clients=None if everybody else asked,
                    reveals=sent.reveals,
                    variation=variation,
                )
            )

    def note_traffic(self, number: int, task: str, name: str, bytes_down: int, res: FitRes | EvaluateRes) -> None:
        """Record a reply: how many bytes went there and came back, and what its client says of its ledger."""
        self.traffic.append(Traffic(number, task, name, bytes_down, bytes_of(res), ledger_of(res.metrics)))

    def note_failure(self, number: int, task: str, name: str, reason: str) -> None:
        """Record a client that did not answer as it should have."""
        self.failures.append(Failure(number, task, name, reason))

    def note(self, number: int, task: str, name: str, error: ReplyError) -> None:
        """Record a reply that is not used; or why a client cannot answer, which may say something of its rows."""
        self.note_failure(number, task, name, str(error))
        if isinstance(error, RefusalError) and not error.missed:
            content = f"why client {name} could not answer (a row and a column, no value)"
            self.messages.append(Message(number, task, content, "one sentence"))

    def note_silence(
        self,
        number: int,
        silent: Mapping[str, tuple[str, int]],
        failures: Sequence[tuple[ClientProxy, Any] | BaseException],
    ) -> None:
        """Record clients of which nothing came back.

        Parameters
        ----------
        number : int
            Of the round.
        silent : mapping of str to (str, int)
            The task of each, and how many bytes it was sent.
        failures : sequence
            As Flower gives them.
        """
        said = {f"{type(failure).__name__}: {failure}" for failure in failures if isinstance(failure, BaseException)}
        reasons = sorted(one_line(by_mod(one)) for one in said)
        why = f" ({reasons[0]})" if reasons else ""
        for name in sorted(silent, key=client_order):
            task, n_bytes = silent[name]
            self.note_failure(number, task, name, f"client {name} did not answer{why}.")
            self.traffic.append(Traffic(number, task, name, n_bytes, 0))

    def reasons(self, number: int, task: str) -> list[str]:
        """Return why clients failed in a round, each reason once."""
        failures = [failure for failure in self.failures if (failure.round, failure.task) == (number, task)]
        return list(dict.fromkeys(failure.reason for failure in failures))

    def sort(self) -> None:
        """Order failures and traffic by round and client."""
        self.failures.sort(key=lambda failure: (failure.round, client_order(failure.client)))
        self.traffic.sort(key=lambda row: (row.round, client_order(row.client)))


def variations_of(
    noise: NoisePlace, releases: Sequence[Release | None], reply: Sequence[Sendable], n_shares: int
) -> list[float]:
    """Return how far the noise of each array may be from its law; of what nobody has seen, with many entries."""
    found = []
    for index, release in enumerate(releases):
        array = reply[index] if index < len(reply) else None
        if release is None or release.scale == 0:
            found.append(0.0)
        elif not isinstance(array, GridArray):
            # The unit of what is kept is not seen; where noise is not in shares the distance does not depend on it.
            found.append(UNSEEN_ENTRIES * total_variation(release.mechanism, 1.0))
        else:
            exponent = array.exponent
            if noise == "server":
                exponent = noise_exponent(release, 1, exponent)
            found.append(variation_of_noise(release, array.integers.size, n_shares, exponent))
    return found


I = TypeVar("I", FitIns, EvaluateIns)  # noqa: E741


@dataclass
class Run:
    """One run, from the first message to the last."""

    settings: RunSettings
    n_columns: int = 0  #: Of the clients' rows, as the strategy sees them.
    last_asked: int = 1  #: The round that was asked last.
    log: RunLog = field(default_factory=RunLog)
    evaluation: dict[str, float] | None = None
    spending: Spending | None = None  #: Of the plan, once it is frozen.
    inspection: Inspection = field(init=False)  #: Of what clients reply.
    rng: np.random.Generator = field(init=False)  #: Randomness of the server that protects nobody.
    _addressed: dict[str, str] = field(default_factory=dict)  # Flower's client id -> name
    _aside: dict[str, Round | Question] = field(default_factory=dict)  # what those do whose answer is not the round's
    _bytes_down: dict[str, int] = field(default_factory=dict)
    _sent: FitIns = field(init=False)  # to a client of those that were asked last
    _roster: Roster = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.settings.random_state)
        self._roster = Roster(self.settings)
        settings = self.settings
        ranges = Ranges(settings.noise, settings.privacy_unit, settings.largest_ratio, settings.n_clusters)
        self.inspection = Inspection(self.settings.client_type, ranges)

    @property
    def clients(self) -> dict[str, ClientProxy]:
        """Those that enrolled, in the order in which their replies are added up."""
        return self._roster.clients

    @property
    def columns(self) -> list[str] | None:
        """The names of the clients' columns, where they know them."""
        return self._roster.column_names

    @property
    def _to_all(self) -> dict[str, Any]:
        """What every message says."""
        return {"format": FORMAT, "client": self.settings.client_type.key()}

    # Enrolment: every client gives its name and its columns.

    def ask_to_enrol(self, number: int, client_manager: ClientManager) -> list[tuple[ClientProxy, FitIns]]:
        """Return the messages of the first round."""
        return self._roster.ask_all(number, client_manager, self._to_all)

    def go_on(self, record: Record) -> None:
        """Take over what a round left in a run that was interrupted."""
        self.log.add(record.entries)
        self.last_asked = record.number
        self._roster.go_on(record.facts["clients"], record.facts["columns"])
        self.n_columns = self.inspection.n_columns = record.facts["n_columns"]
        self.rng.bit_generator.state = record.facts["rng"]
        if self.spending is not None:
            self.spending.go_on(record.entries.messages, list(self.clients))

    def record(self, number: int, digest: str, received: Total | list[Reply] | None) -> Record:
        """Return what a round has left."""
        facts = {"clients": list(self.clients), "columns": self._roster.columns, "n_columns": self.n_columns}
        facts["rng"] = self.rng.bit_generator.state
        return Record(number, digest, received, self.log.entries(number), facts)

    def note_asked_again(self, number: int, round_: Round | None) -> None:
        """Note that a round may have been answered before the run was interrupted, with other noise of the clients."""
        releases = [] if round_ is None else round_.releases
        if self.settings.noise != "server" and self.settings.noise_seed is None and any(releases):
            self.log.asked_again.append(number)

    def enrol_again(self, number: int, results: Answers, failures: Failures) -> None:
        """Take in the clients that are there of a run that was interrupted; the books have them already."""
        self._roster.take_in(number, results, failures, RunLog())
        self._check_enough(number, ENROL, self._roster.n_there, self.settings.least)

    def enrol(self, number: int, results: Answers, failures: Failures) -> None:
        """Take in the clients that have the columns that most have, or that the server's rows have."""
        self._roster.take_in(number, results, failures, self.log)
        self.n_columns = self.inspection.n_columns = self.settings.prepared_columns or self._roster.n_columns
        self._check_enough(number, ENROL, len(self.clients), self.settings.least)

    # Rounds.

    def ask(self, server_round: int, round_: Round, client_manager: ClientManager) -> list[tuple[ClientProxy, FitIns]]:
        """Return the messages of a round, and those to clients that have come since the last.

        Of a round that is not needed, and that too few could answer, there are none to those that it names.

        Raises
        ------
        ProtocolError
            If the protocol is used against its rules, or if too few clients are there to answer.
        """
        self.last_asked = server_round
        self._check_answered_for(round_.answer)
        check_releases(round_)
        present = self._roster.present(server_round, client_manager)
        addressees = self._addressees(round_, present)
        named = set(addressees)
        asked = {name: proxy for name, proxy in present.items() if name in named}
        late = {name: left for name in asked if (left := self._roster.missed(name)) is not None}
        behind = {name: asked.pop(name) for name in late}
        required = self._required(round_, len(asked))
        absent = [name for name in addressees if name not in asked]
        for name in absent:
            self.log.note_failure(server_round, round_.task, name, self._roster.why_absent(name))
        if len(asked) < required and absent:
            if round_.needed:
                self._check_enough(server_round, round_.task, len(asked), required)
            asked = {}
        others = self._others(round_, {name: present[name] for name in present if name not in named})
        if self.spending is not None:
            self.spending.spend(round_.task, round_.releases, list(asked))
        if asked:
            check_capacity(round_, len(asked), self._n_shares(round_, len(asked)))
        config = self._config(server_round, round_, len(asked))
        instructions: list[tuple[ClientProxy, FitIns]] = []
        self._address(asked | behind | others, dict.fromkeys(others, round_.others) | late)
        if isinstance(round_.question, Question):
            instructions += self._instructions(asked, round_.question, config)
        else:
            for name, proxy in asked.items():
                instructions += self._instructions({name: proxy}, round_.question_for(name), config)
        self._sent = next((ins for _, ins in instructions), FitIns(encode([]), config))
        if round_.others is not None:
            kept = {key: value for key, value in config.items() if key in ("format", "client", "round", "rows")}
            instructions += self._instructions(others, round_.others, kept)
        for name, left in late.items():
            self._ask_again(server_round, name, left)
            kept = self._config(server_round, left, 1)
            instructions += self._instructions({name: behind[name]}, left.question_for(name), kept)
        nodes = {proxy.cid for proxy, _ in instructions}
        return instructions + self._roster.ask_new(server_round, client_manager, self._to_all, nodes)

    def receive(
        self, server_round: int, round_: Round, results: Answers, failures: Failures
    ) -> Total | list[Reply] | None:
        """Return what the protocol gets of a round: the sums, or the replies; None of one that it does not need."""
        answer = round_.answer
        new = [pair for pair in results if pair[0].cid in self._roster.enrolling]
        results = [pair for pair in results if pair[0].cid not in self._roster.enrolling]
        releases = list(round_.releases) or [None] * len(answer.sends)
        n_asked = len(self._addressed) - len(self._aside)
        replies = self._checked_replies(server_round, round_, results, failures)
        if len(replies) < n_asked or self._aside:
            self.log.sort()
        # Before anything can end the run: what the server holds has left the clients.
        addressed = set(self._addressed.values()) - self._aside.keys()
        asked = tuple(name for name in self.clients if name in addressed)
        variations = variations_of(
            self.settings.noise, releases, next(iter(replies.values()), []), self._n_shares(round_, n_asked)
        )
        required = self._required(round_, n_asked)
        # What a round that is asked once more brought before the run was interrupted, the server has not forgotten.
        times = 2 if server_round in self.log.asked_again else 1
        for _ in range(times if asked else 0):
            self.log.note_round(
                server_round,
                round_,
                releases,
                variations,
                asked=asked,
                answered=replies,
                n_clients=len(self.clients),
                is_enough=self._n_shares(round_, n_asked) <= max(len(replies), 1),
            )
        self._roster.note_left(round_, asked)
        if self._roster.enrolling:
            self._roster.take_in(server_round, new, failures, self.log)
        if len(replies) < required and not round_.needed:
            return None
        self._check_enough(server_round, round_.task, len(replies), required)
        if answer.keeps:
            return []
        noisy = self.settings.noise == "server" and any(releases)
        source = self._noise(server_round)
        if isinstance(round_, Sum):
            sums = add_up(list(replies.values()))
            deviations = [0.0 if release is None else self.noise_of_sum(release) for release in releases]
            return Total(values_of(add_noise(sums, releases, source) if noisy else sums), len(replies), deviations)
        return [
            Reply(name, values_of(add_noise(arrays, releases, source) if noisy else arrays))
            for name, arrays in replies.items()
        ]

    def told(self, messages: list[tuple[ClientProxy, I]], **facts: Scalar) -> list[tuple[ClientProxy, I]]:
        """Return messages that say what a site or its policy may ask for, and the columns where their order matters."""
        if self._roster.in_other_order:
            facts["columns"] = self._roster.columns
        for _, ins in messages:
            ins.config.update(facts)
        return messages

    def noise_of_sum(self, release: Release) -> float:
        """Return the standard deviation of the noise that reaches a sum over all clients, in the array's units.

        It is that of the release where the server adds the noise, and more where the clients bring more than is needed.
        """
        n_clients, noise = len(self.clients), self.settings.noise
        if noise == "server":
            return release.standard_deviation
        n_shares = (self.settings.min_clients or n_clients) if noise == "clients" else 1
        return release.standard_deviation * math.sqrt(n_clients / n_shares)

    # Evaluation of the model.

    def ask_to_evaluate(
        self, number: int, model: Model, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Return the messages of the evaluation."""
        sent = encode(model.to_arrays())
        config: dict[str, Any] = {**self._to_all, "model": model.name}
        here = self._roster.present(number, client_manager)
        self._address(here, {})
        self._bytes_down = dict.fromkeys(here, size_of(sent))
        return [(proxy, EvaluateIns(sent, config)) for proxy in here.values()]

    def receive_evaluation(
        self,
        server_round: int,
        results: Sequence[tuple[ClientProxy, EvaluateRes]],
        failures: Sequence[tuple[ClientProxy, EvaluateRes] | BaseException],
        n_clusters: int | None,
    ) -> dict[str, float]:
        """Add the clients' tables and costs up; an empty dict where none has answered.

        Without a number of clusters the clients were sent the model to have it, and nothing was asked of them.
        """
        answers = self._by_name(results)
        answered = {name for name, _ in answers}
        self._note_silence(server_round, dict.fromkeys(self._addressed.values(), EVALUATE), answered, failures)
        found: list[Evaluation] = []
        for name, res in answers:
            self.log.note_traffic(server_round, EVALUATE, name, self._bytes_down[name], res)
            try:
                one = read_reply(name, res, partial(checked_evaluation, n_clusters=n_clusters))
                if one is not None:
                    found.append(one)
                    self.inspection.ranges.stated[name] = float(one.n_rows)
            except ReplyError as error:
                self.log.note(server_round, EVALUATE, name, error)
        self.evaluation = evaluation_of(found)  # whatever came, it is not asked for again
        contents = ("k-means cost of the rows", "number of rows", "table of classes by clusters")
        for content in contents if results and n_clusters is not None else ():
            self.log.messages.append(Message(server_round, EVALUATE, content, "one per client"))
        return self.evaluation

    # Behind them: whom to ask, and how.

    def _check_answered_for(self, answer: Answer) -> None:
        if getattr(self.settings.client_type, answer.task, None) is None:
            raise ProtocolError(
                f"{self.settings.client_type.__name__} has no method '{answer.task}'; the strategy's client_type must "
                "inherit from the class whose method a round names."
            )

    def _addressees(self, round_: Round, present: Mapping[str, ClientProxy]) -> list[str]:
        named = round_.named
        if named is not None:
            return [name for name in self.clients if name in named]
        if round_.fraction == 1.0:
            return list(self.clients)
        names = list(present)
        n_drawn = min(self.n_to_draw(round_.fraction, len(names)), len(names))
        drawn = self.rng.choice(len(names), size=n_drawn, replace=False)
        return [names[index] for index in sorted(drawn)]

    def n_to_draw(self, fraction: float, n_clients: int) -> int:
        """Return how many clients are a part of so many: as many at least as have to answer a round."""
        return max(self.settings.least, round(fraction * n_clients))

    def _others(self, round_: Round, others: dict[str, ClientProxy]) -> dict[str, ClientProxy]:
        """Return the clients that work for themselves: those that the round does not ask, or none."""
        if round_.others is None:
            return {}
        self._check_answered_for(round_.others.answer)
        if round_.others.answer.sends:
            raise ProtocolError(
                f"'{round_.others.answer.task}' is for those that a round does not ask, and sends something."
            )
        return others

    def _config(self, server_round: int, round_: Round, n_asked: int) -> dict[str, Any]:
        config: dict[str, Any] = {**self._to_all, "round": server_round}
        if round_.rows:
            config["rows"] = round_.rows
        keeps = round_.answer.keeps
        if any(round_.releases) and (self.settings.noise != "server" or keeps):
            if not round_.parts:
                raise ProtocolError(f"'{round_.task}' takes noise of the clients; name the parts that pay for it.")
            config["parts"] = json.dumps(list(round_.parts))
            config["n_shares"] = self._n_shares(round_, n_asked)
        return config

    def _n_shares(self, round_: Round, n_asked: int) -> int:
        """Return among how many clients noise is divided.

        Of a Gather round the server sees every reply, and a share alone would protect none.
        """
        summed = self.settings.noise == "clients" and isinstance(round_, Sum) and not round_.answer.keeps
        return self._required(round_, n_asked) if summed else 1

    def _address(self, asked: Mapping[str, ClientProxy], aside: Mapping[str, Any]) -> None:
        self._addressed = {proxy.cid: name for name, proxy in asked.items()}
        self._aside = dict(aside)
        self._bytes_down = {}

    def _instructions(
        self, proxies: Mapping[str, ClientProxy], question: Question, config: Mapping[str, Any]
    ) -> list[tuple[ClientProxy, FitIns]]:
        arrays, fields = question.to_wire()
        sent, full = encode(arrays), {**config, **fields}
        if not arrays:
            full[EMPTY] = True
        self._bytes_down |= dict.fromkeys(proxies, size_of(sent))
        ins = FitIns(sent if arrays else encode(TO_CLIENT), full)
        return [(proxy, ins) for proxy in proxies.values()]

    def _required(self, round_: Round, n_asked: int) -> int:
        """Return how many clients have to answer a round.

        Where the clients bring the noise, the shares of a client that drops out are missing from the sum: they
        are made so large that those of min_clients are enough, and fewer may not be added up.
        """
        if self.settings.min_clients is not None:
            return self.settings.min_clients
        noisy = any(release is not None and release.scale > 0 for release in round_.releases)
        if self.settings.noise == "clients" and noisy and isinstance(round_, Sum) and not round_.answer.keeps:
            return max(n_asked, MIN_CLIENTS)
        return MIN_CLIENTS

    def _noise(self, server_round: int) -> NoiseSource:
        if self.settings.noise_seed is None:
            return OperatingSystemNoise()
        return SeededNoise([self.settings.noise_seed, server_round])

    # Behind them: what came back, and what is noted.

    def _checked_replies(
        self,
        server_round: int,
        round_: Round,
        results: Answers,
        failures: Failures,
    ) -> dict[str, list[Sendable]]:
        own_task = {name: self._aside.get(name, round_).answer.task for name in self._addressed.values()}
        replies: dict[str, list[Sendable]] = {}
        n_summed = len(self._addressed) if isinstance(round_, Sum) else 0
        answers = self._by_name(results)
        answered = {name for name, _ in answers}
        for name, res in answers:
            task = own_task[name]
            self.log.note_traffic(server_round, task, name, self._bytes_down[name], res)
            try:
                if name not in self._aside:
                    replies[name] = self.inspection.checked(name, round_, res, n_summed)
                    continue
                read_reply(name, res, lambda *_: None)
                if isinstance(left := self._aside[name], Round):
                    self._roster.note_caught_up(name, left.task)
            except ReplyError as error:
                self.log.note(server_round, task, name, error)
                if isinstance(error, RefusalError) and error.missed:
                    self._roster.forget(name)
        self._note_silence(server_round, own_task, answered, failures)
        self._roster.note_answers(server_round, own_task, answered)
        for name, reason in self.inspection.odd_ones(round_, replies, self._sent).items():
            self.log.note_failure(server_round, round_.task, name, reason)
            del replies[name]
        return replies

    def _ask_again(self, server_round: int, name: str, left: Round) -> None:
        """Spend and note what an earlier round asks of a client that was not there then."""
        if not self._roster.note_sent_again(name, left.task):
            return
        if self.spending is not None:
            self.spending.spend(left.task, left.releases, [name])
        if any(one.task == left.task and one.clients is None for one in self.log.messages):
            return  # the report has it of everybody
        releases = list(left.releases) or [None] * len(left.answer.sends)
        variations = variations_of(self.settings.noise, releases, [], 1)
        facts: dict[str, Any] = {"asked": (name,), "answered": [], "n_clients": len(self.clients)}
        self.log.note_round(server_round, left, releases, variations, is_enough=True, **facts)

    def _by_name(self, results: Sequence[tuple[ClientProxy, R]]) -> list[tuple[str, R]]:
        """Return one answer of each client that was asked, in the order in which they are added up."""
        found = {self._addressed[proxy.cid]: res for proxy, res in results if proxy.cid in self._addressed}
        return sorted(found.items(), key=lambda pair: client_order(pair[0]))

    def _note_silence(
        self,
        server_round: int,
        tasks: Mapping[str, str],
        answered: set[str],
        failures: Sequence[tuple[ClientProxy, Any] | BaseException],
    ) -> None:
        """Record the clients that were addressed, each with its task, and of which nothing came back."""
        silent = {name: (tasks[name], self._bytes_down.get(name, 0)) for name in tasks.keys() - answered}
        if silent:
            self.log.note_silence(server_round, silent, failures)

    def _check_enough(self, server_round: int, task: str, n_answered: int, required: int) -> None:
        if n_answered >= required:
            return
        all_bring_noise = self.settings.noise == "clients" and self.settings.min_clients is None and task != ENROL
        why = " (with noise='clients' a missing client's share of the noise is missing too)" if all_bring_noise else ""
        reasons = " ".join(self.log.reasons(server_round, task)[:3])
        raise ProtocolError(
            f"round {server_round} ('{task}'): {n_answered} clients answered and {required} have to{why}. {reasons}"
        )
