"""One run: who takes part, what is asked, what comes back, and what is noted of it."""

from __future__ import annotations

import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
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


#: How many clients have to answer by default. A sum over a single client would hide nothing.
MIN_CLIENTS = 2

#: Parameters that have a value for each column.
BY_COLUMN = ("server_data", "init", "origin")


def named_columns(strategy: Any) -> list[str] | None:
    """Return the column names of the first parameter that is a table; None if none is."""
    return next((names for name in BY_COLUMN if (names := names_of(getattr(strategy, name, None)))), None)


def put_in_order(strategy: Any, columns: Sequence[str] | None = None, whose: str = "") -> None:
    """Put the columns of the server's rows, first centers and origin into the given order, if they have names."""
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
    """What a run takes from its strategy, where each is explained."""

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
        """Read the settings of a strategy; the columns come from a parameter if one is a table."""
        taken_over: dict[str, Any] = {field.name: getattr(strategy, field.name, None) for field in fields(cls)}
        if strategy.tables is not None:
            taken_over["server_columns"] = None  # the clients' columns are those of the schema
            taken_over["prepared_columns"] = strategy.tables.n_columns
        elif strategy.server_columns is None:
            taken_over["server_columns"] = named_columns(strategy)
        return cls(**taken_over)

    @property
    def least(self) -> int:
        """The fewest clients with which a run goes on."""
        return self.min_clients or MIN_CLIENTS


#: Characters of a client's name, which becomes the name of a file.
LONGEST_NAME = 100

#: Most columns of a client, and most characters of their names together.
MOST_COLUMNS, LONGEST_COLUMNS = 2**20, 2**24

Answers = Sequence[tuple[ClientProxy, FitRes]]
Failures = Sequence[tuple[ClientProxy, Any] | BaseException]


class Address(ClientProxy):
    """The address of a client that somebody else sends messages to."""

    def get_properties(self, *_: Any, **__: Any) -> Any:  # noqa: D102
        raise NotImplementedError("an address answers nothing")

    get_parameters = fit = evaluate = reconnect = get_properties


@dataclass
class Roster:
    """The clients of one run: names and columns, who is there, and who missed a round that later rounds need."""

    settings: RunSettings
    #: Enrolled clients, present or not, in the order in which their replies are added up.
    clients: dict[str, ClientProxy] = field(default_factory=dict)
    columns: int | list[str] = 0  #: Of the clients' rows: their number, or their names; 0 before anybody has enrolled.
    in_other_order: bool = False  #: Whether any client has these columns in another order.
    enrolling: set[str] = field(default_factory=set)  #: The nodes that are asked to enrol in the current round.
    _known: set[str] = field(default_factory=set)  # nodes that were asked to enrol, as long as they are connected
    _connected: set[str] = field(default_factory=set)  # nodes, at the last look
    #: client -> (rounds missed in a row, round of the next attempt)
    _silent: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: task -> the last round that left something with clients, the clients it asked, and those that may have it
    _left: dict[str, tuple[Round, set[str], set[str]]] = field(default_factory=dict)

    # Enrolment.

    def wait_for_clients(self, manager: ClientManager) -> None:
        """Return once enough clients are connected."""
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

    def ask_new(
        self, number: int, manager: ClientManager, config: Mapping[str, Any], asked: Collection[str] = ()
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Return messages that ask newly connected nodes to enrol; other rounds ask them from the next round on."""
        proxies = dict(manager.all())
        self._connected = set(proxies)
        self._known &= self._connected  # a node that comes back enrols again
        self.enrolling = self._connected - self._known - set(asked)  # a node that is asked for something enrols later
        self._known |= self.enrolling
        told: dict[str, Any] = {EMPTY: True, **config, "task": ENROL, "round": number, **self.settings.enrolment}
        ours = {proxy.cid for proxy in self.clients.values()}  # these keep what this run has left with them
        return [
            (proxy, FitIns(encode(TO_CLIENT), told | ({"goes_on": True} if node in ours else {})))
            for node, proxy in proxies.items()
            if node in self.enrolling
        ]

    def take_in(self, number: int, results: Answers, failures: Failures, log: RunLog) -> None:
        """Enrol the clients whose names are unique and whose columns are those of most, or of the server's rows."""
        said: dict[str, tuple[str, int | list[str]]] = {}
        nodes = {proxy.cid: proxy for proxy, _ in results}
        # A client that is still connected keeps its name; one that has gone may come back from another node.
        taken = {proxy.cid: name for name, proxy in self.clients.items() if proxy.cid in self._connected}
        stated = {proxy.cid: _stated_name(proxy.cid, res) for proxy, res in results}
        claims = Counter((taken | stated).values())
        for proxy, res in results:
            node = proxy.cid
            name = stated[node] if claims[stated[node]] == 1 else node  # a failure must not be blamed on another client
            log.note_traffic(number, ENROL, name, 0, res)
            try:
                said[node] = read_reply(name, res, _checked_enrolment)
            except ReplyError as error:
                log.note(number, ENROL, name, error)
        log.note_silence(number, dict.fromkeys(self.enrolling - nodes.keys(), (ENROL, 0)), failures)
        for node, reason in _with_equal_names(taken | {node: name for node, (name, _) in said.items()}).items():
            if node in said:
                log.note_failure(number, ENROL, node, reason)
                del said[node]
        proxies = {name: nodes[node] for node, (name, _) in said.items()}
        for name, proxy in proxies.items():
            if name in self.clients and self.clients[name].cid != proxy.cid:
                self.forget(name)  # the new node has nothing of what was left with the old one
        for name, reason in self._with_other_columns(dict(said.values())).items():
            log.note_failure(number, ENROL, name, reason)
            del proxies[name]
        clients = self.clients | proxies
        self.clients = {name: clients[name] for name in sorted(clients, key=client_order)}
        self.enrolling = set()
        log.sort()
        log.messages.append(Message(number, ENROL, "name and columns", "one per client", harmless=True))

    def _with_other_columns(self, columns: Mapping[str, int | list[str]]) -> dict[str, str]:
        """Explain which clients have other columns; the first round decides which columns are right."""
        server_columns = self.settings.server_columns
        if self.columns == 0 and columns:
            common, _ = unlike_most({name: json.dumps(own) for name, own in columns.items()})
            self.columns = json.loads(str(common))
            if server_columns is not None and isinstance(self.columns, list):
                self.columns = list(server_columns)
        by_server = server_columns is not None and isinstance(self.columns, list)
        right = f"{'the server rows have' if by_server else 'most have'} {_in_words(self.columns)}"
        reasons = {}
        for name in sorted(columns, key=client_order):
            own = columns[name]
            if isinstance(own, list) and isinstance(self.columns, list) and sorted(own) == sorted(self.columns):
                self.in_other_order |= own != self.columns
            elif own != self.columns:
                reasons[name] = f"client {name} has {_in_words(own)} where {right}."
        return reasons

    def go_on(self, names: Sequence[str], columns: int | list[str]) -> None:
        """Take over the clients of an interrupted run; they are away until they have enrolled again."""
        self.clients = {name: Address(f"away: {name}") for name in names}
        self.columns = columns

    @property
    def n_there(self) -> int:
        """How many of the clients were connected at the last look."""
        return sum(proxy.cid in self._connected for proxy in self.clients.values())

    # Who is there.

    def present(self, number: int, manager: ClientManager) -> dict[str, ClientProxy]:
        """Return the clients that can be asked: connected, enrolled, and not silent of late.

        A client that misses two rounds in a row is left alone for one round, then for two, four and so on, so that a
        run does not wait for its time limit in every round. If too few clients would be left, all connected clients
        are asked; if too few are connected, the run waits for them.
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

    def note_answers(self, number: int, asked: Iterable[str], answered: set[str]) -> None:
        """Count the rounds that each client has missed in a row."""
        for name in asked:
            if name in answered:
                self._silent.pop(name, None)
            else:
                times = self._silent.get(name, (0, 0))[0] + 1
                self._silent[name] = times, number + 2 ** (times - 1)

    # What rounds leave with clients, for later rounds.

    def note_left(self, round_: Round, asked: Collection[str]) -> None:
        """Remember which clients a round has left something with, if it leaves anything."""
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
        """Return the first round that a client has missed and later rounds need, or None.

        A round with noise is not asked a second time: that would be a second release.
        """
        for round_, asked, having in self._left.values():
            is_noisy = any(release is not None and release.scale > 0 for release in round_.releases)
            if name not in having and not (is_noisy and name in asked) and name in (round_.named or (name,)):
                return round_
        return None

    def forget(self, name: str) -> None:
        """Note that a client has nothing of what earlier rounds left with it."""
        for _, _, having in self._left.values():
            having.discard(name)

    def why_absent(self, name: str) -> str:
        """Explain in a sentence why a client was not asked."""
        node = self.clients[name].cid
        if node not in self._connected:
            return f"client {name} is not connected."
        if node not in self._known:
            return f"client {name} is back, and is asked from the next round on."
        if self.missed(name) is not None:
            return f"client {name} missed an earlier round, and is sent what that round left with the others."
        return f"client {name} was silent {self._silent[name][0]} times and was not asked."


def is_name(name: object) -> TypeGuard[str]:
    """Return whether a client may have this name."""
    return isinstance(name, str) and name.isprintable() and 0 < len(name) <= LONGEST_NAME


def _stated_name(node: str, res: FitRes) -> str:
    """Return the name that a node gives itself, or the node's id if a client may not have that name."""
    name = res.metrics.get("client") if isinstance(res.metrics, Mapping) else None
    return name if is_name(name) else node


def _checked_enrolment(name: str, res: FitRes) -> tuple[str, int | list[str]]:
    """Return the name of a node, and the number or the names of its columns."""
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
    return str(res.metrics["client"]), columns


def _in_words(columns: int | list[str]) -> str:
    return f"{columns} columns" if isinstance(columns, int) else f"the columns {one_line(json.dumps(columns))}"


def _with_equal_names(names: Mapping[str, str]) -> dict[str, str]:
    """Explain why nodes with duplicate names are refused: they cannot be told apart."""
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


#: How many entries of an array that the server does not see one row may change: as many as the row has columns.
UNSEEN_ENTRIES = 2**20

#: The task under which the log lists the evaluation of the model.
EVALUATE = "evaluate"


@dataclass
class RunLog:
    """What a run notes: what has left the clients, what was sent to and fro, and what went wrong."""

    messages: list[Message] = field(default_factory=list)  #: What has left the clients.
    traffic: list[Traffic] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    ended: str = ""  #: The round in which a run ended before its protocol did; "" otherwise.
    asked_again: list[int] = field(default_factory=list)  #: Rounds that were asked twice because of an interruption.
    _without_noise: dict[str, set[str]] = field(default_factory=dict)  # kept rows -> clients that may have true ones

    def notes(self) -> list[str]:
        """Return the report's notes about replies that were not used, and about an early end."""
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

    def of_round(self, number: int) -> RoundLog:
        """Return what is noted of one round."""
        return RoundLog(
            [one for one in self.messages if one.round == number],
            [one for one in self.traffic if one.round == number],
            [one for one in self.failures if one.round == number],
            {kept: sorted(names) for kept, names in self._without_noise.items()},
        )

    def add(self, entries: RoundLog) -> None:
        """Take over what a run noted of a round before it was interrupted."""
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
        """Note what has left the clients that were asked: the server may have seen a reply that it did not use.

        ``variations`` are the distances of each array's noise from its law; ``is_enough`` tells whether the shares of
        noise that arrived are all of the noise.
        """
        everybody = len(asked) == n_clients
        derived = round_.rows in self._without_noise and not self._without_noise[round_.rows].intersection(asked)
        for sent, release, variation in zip(round_.answer.sends, releases, variations, strict=True):
            protected = release is not None and release.noise_multiplier > 0
            if sent.kept_as and (protected or derived):
                # A client that did not answer may still have what it kept before.
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
        """Note the bytes of a message and its reply, and what the client says of its ledger."""
        self.traffic.append(Traffic(number, task, name, bytes_down, bytes_of(res), ledger_of(res.metrics)))

    def note_failure(self, number: int, task: str, name: str, reason: str) -> None:
        """Note a client that did not answer as it should have."""
        self.failures.append(Failure(number, task, name, reason))

    def note(self, number: int, task: str, name: str, error: ReplyError) -> None:
        """Note a reply that is not used. Why a client cannot answer may say something about its rows."""
        self.note_failure(number, task, name, str(error))
        if isinstance(error, RefusalError) and not error.missed:
            content = f"why client {name} could not answer (a row and a column, no value)"
            self.messages.append(Message(number, task, content, "one sentence"))

    def note_silence(self, number: int, silent: Mapping[str, tuple[str, int]], failures: Failures) -> None:
        """Note clients that sent no reply; ``silent`` has the task of each, and the bytes that it was sent."""
        if not silent:
            return
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
        """Sort failures and traffic by round and client."""
        self.failures.sort(key=lambda failure: (failure.round, client_order(failure.client)))
        self.traffic.sort(key=lambda row: (row.round, client_order(row.client)))


def variations_of(
    noise: NoisePlace, releases: Sequence[Release | None], reply: Sequence[Sendable], n_shares: int
) -> list[float]:
    """Return the distance of each array's noise from its law; an array that nobody has seen counts as a long one."""
    found = []
    for index, release in enumerate(releases):
        array = reply[index] if index < len(reply) else None
        if release is None or release.scale == 0:
            found.append(0.0)
        elif not isinstance(array, GridArray):
            # The unit of kept rows is not seen; without shares the distance does not depend on it.
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
    roster: Roster = field(init=False)
    inspection: Inspection = field(init=False)  #: Of the clients' replies.
    rng: np.random.Generator = field(init=False)  #: Randomness of the server that protects nobody.
    _addressed: dict[str, str] = field(default_factory=dict)  # Flower's client id -> name
    _aside: dict[str, Round | Question] = field(default_factory=dict)  # client -> what it is asked besides the round
    _bytes_down: dict[str, int] = field(default_factory=dict)
    _sent: FitIns = field(init=False)  # the last message to one of the clients

    def __post_init__(self) -> None:
        settings = self.settings
        self.rng = np.random.default_rng(settings.random_state)
        self.roster = Roster(settings)
        ranges = Ranges(settings.noise, settings.privacy_unit, settings.largest_ratio, settings.n_clusters)
        self.inspection = Inspection(settings.client_type, ranges)
        self._common: dict[str, Any] = {"format": FORMAT, "client": settings.client_type.key()}  # in every message

    @property
    def clients(self) -> dict[str, ClientProxy]:
        """The clients that enrolled, in the order in which their replies are added up."""
        return self.roster.clients

    # Enrolment: every client gives its name and its columns.

    def ask_to_enrol(self, number: int, client_manager: ClientManager) -> list[tuple[ClientProxy, FitIns]]:
        """Return the messages of the first round."""
        self.roster.wait_for_clients(client_manager)
        goes_on = {"goes_on": True} if self.clients else {}
        return self.roster.ask_new(number, client_manager, self._common | goes_on)

    def enrol(self, number: int, results: Answers, failures: Failures, *, goes_on: bool = False) -> None:
        """Enrol the clients of a new run; or those that are there again of a run that was interrupted."""
        self.roster.take_in(number, results, failures, RunLog() if goes_on else self.log)
        if not goes_on:
            columns = self.roster.columns
            n_columns = columns if isinstance(columns, int) else len(columns)
            self.n_columns = self.inspection.n_columns = self.settings.prepared_columns or n_columns
        n_enrolled = self.roster.n_there if goes_on else len(self.clients)
        self.check_enough(number, ENROL, n_enrolled, self.settings.least)

    # A run that was interrupted.

    def go_on(self, record: Record) -> None:
        """Take over what a round left in a run that was interrupted."""
        self.log.add(record.entries)
        self.last_asked = record.number
        self.roster.go_on(record.facts["clients"], record.facts["columns"])
        self.n_columns = self.inspection.n_columns = record.facts["n_columns"]
        self.rng.bit_generator.state = record.facts["rng"]
        if self.spending is not None:
            self.spending.go_on(record.entries.messages, list(self.clients))

    def record(self, number: int, digest: str, received: Total | list[Reply] | None) -> Record:
        """Return what a round has left."""
        facts: dict[str, Any] = {
            "clients": list(self.clients),
            "columns": self.roster.columns,
            "n_columns": self.n_columns,
        }
        facts["rng"] = self.rng.bit_generator.state
        return Record(number, digest, received, self.log.of_round(number), facts)

    def note_asked_again(self, number: int, round_: Round | None) -> None:
        """Note that a round may have been answered before the interruption, with other noise of the clients."""
        releases = [] if round_ is None else round_.releases
        if self.settings.noise != "server" and self.settings.noise_seed is None and any(releases):
            self.log.asked_again.append(number)

    # Rounds.

    def ask(self, server_round: int, round_: Round, client_manager: ClientManager) -> list[tuple[ClientProxy, FitIns]]:
        """Return the messages of a round, and messages to clients that have come since the last one.

        An optional round that too few clients can answer is skipped.
        """
        self.last_asked = server_round
        self._check_declared(round_)
        present = self.roster.present(server_round, client_manager)
        addressees = self._addressees(round_, present)
        named = set(addressees)
        asked = {name: proxy for name, proxy in present.items() if name in named}
        late = {name: left for name in asked if (left := self.roster.missed(name)) is not None}
        behind = {name: asked.pop(name) for name in late}
        required = self._required(round_, len(asked))
        absent = [name for name in addressees if name not in asked]
        for name in absent:
            self.log.note_failure(server_round, round_.task, name, self.roster.why_absent(name))
        if len(asked) < required and absent:
            if round_.needed:
                self.check_enough(server_round, round_.task, len(asked), required)
            asked = {}
        others: dict[str, ClientProxy] = {}
        self._aside = dict(late)
        if round_.others is not None:
            others = {name: proxy for name, proxy in present.items() if name not in named}
            self._aside |= dict.fromkeys(others, round_.others)
        if self.spending is not None:
            self.spending.spend(round_.task, round_.releases, list(asked))
        if asked:
            check_capacity(round_, len(asked), self._n_shares(round_, len(asked)))
        config = self._config(server_round, round_, len(asked))
        self._addressed = {proxy.cid: name for name, proxy in (asked | behind | others).items()}
        self._bytes_down = {}
        messages: list[tuple[ClientProxy, FitIns]] = []
        if isinstance(round_.question, Question):
            messages += self._messages(asked, round_.question, config)
        else:
            for name, proxy in asked.items():
                messages += self._messages({name: proxy}, round_.question_for(name), config)
        self._sent = next((ins for _, ins in messages), FitIns(encode([]), config))
        if round_.others is not None:
            kept = {key: value for key, value in config.items() if key in ("format", "client", "round", "rows")}
            messages += self._messages(others, round_.others, kept)
        for name, left in late.items():
            self._ask_again(server_round, name, left)
            messages += self._messages(
                {name: behind[name]}, left.question_for(name), self._config(server_round, left, 1)
            )
        nodes = {proxy.cid for proxy, _ in messages}
        return messages + self.roster.ask_new(server_round, client_manager, self._common, nodes)

    def receive(
        self, server_round: int, round_: Round, results: Answers, failures: Failures
    ) -> Total | list[Reply] | None:
        """Return the sums or the replies of a round; None for an optional round that too few clients answered."""
        enrolling = self.roster.enrolling
        new = [pair for pair in results if pair[0].cid in enrolling]
        results = [pair for pair in results if pair[0].cid not in enrolling]
        releases = list(round_.releases) or [None] * len(round_.answer.sends)
        n_asked = len(self._addressed) - len(self._aside)
        replies = self._checked_replies(server_round, round_, results, failures)
        if len(replies) < n_asked or self._aside:
            self.log.sort()
        # Before anything can end the run: what the server holds has left the clients.
        addressed = set(self._addressed.values()) - self._aside.keys()
        asked = tuple(name for name in self.clients if name in addressed)
        n_shares = self._n_shares(round_, n_asked)
        variations = variations_of(self.settings.noise, releases, next(iter(replies.values()), []), n_shares)
        # The server has not forgotten what a round that is asked again brought before the interruption.
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
                is_enough=n_shares <= max(len(replies), 1),
            )
        self.roster.note_left(round_, asked)
        if enrolling:
            self.roster.take_in(server_round, new, failures, self.log)
        required = self._required(round_, n_asked)
        if len(replies) < required and not round_.needed:
            return None
        self.check_enough(server_round, round_.task, len(replies), required)
        if round_.answer.keeps:
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
        """Add to messages what a site may ask about a run, and the columns if some client has them in another order."""
        if self.roster.in_other_order:
            facts["columns"] = json.dumps(self.roster.columns)
        for _, ins in messages:
            ins.config.update(facts)
        return messages

    def noise_of_sum(self, release: Release) -> float:
        """Return the standard deviation of the noise in a sum over all clients, in the array's units.

        With noise="clients" it can exceed the release's own, because every client adds a share.
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
        here = self.roster.present(number, client_manager)
        self._addressed, self._aside = {proxy.cid: name for name, proxy in here.items()}, {}
        self._bytes_down = dict.fromkeys(here, size_of(sent))
        return [(proxy, EvaluateIns(sent, {**self._common, "model": model.name})) for proxy in here.values()]

    def receive_evaluation(
        self,
        server_round: int,
        results: Sequence[tuple[ClientProxy, EvaluateRes]],
        failures: Failures,
        n_clusters: int | None,
    ) -> dict[str, float]:
        """Add up the clients' tables and costs. Returns {} if no client replied.

        ``n_clusters`` is None where clients were sent the model to keep, and were asked nothing.
        """
        answers = self._by_name(results)
        self._note_silence(server_round, dict.fromkeys(self._addressed.values(), EVALUATE), answers, failures)
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

    # Which clients to ask, and how.

    def _check_declared(self, round_: Round) -> None:
        """Raise a ProtocolError unless the strategy's clients have what a round asks for, and its releases fit."""
        for answer in (round_.answer, *([] if round_.others is None else [round_.others.answer])):
            if getattr(self.settings.client_type, answer.task, None) is None:
                raise ProtocolError(
                    f"{self.settings.client_type.__name__} has no method '{answer.task}'; the strategy's client_type "
                    "must inherit from the class whose method a round names."
                )
        if round_.others is not None and round_.others.answer.sends:
            raise ProtocolError(
                f"'{round_.others.answer.task}' is for clients that a round does not ask, and sends something."
            )
        check_releases(round_)

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
        """Return how many of some clients a fraction is: at least as many as have to answer a round."""
        return max(self.settings.least, round(fraction * n_clients))

    def _config(self, server_round: int, round_: Round, n_asked: int) -> dict[str, Any]:
        config: dict[str, Any] = {**self._common, "round": server_round}
        if round_.rows:
            config["rows"] = round_.rows
        if any(round_.releases) and (self.settings.noise != "server" or round_.answer.keeps):
            if not round_.parts:
                raise ProtocolError(f"'{round_.task}' takes noise of the clients; name the parts that pay for it.")
            config["parts"] = json.dumps(list(round_.parts))
            config["n_shares"] = self._n_shares(round_, n_asked)
        return config

    def _n_shares(self, round_: Round, n_asked: int) -> int:
        """Return among how many clients the noise is divided.

        In a Gather round the server sees every reply, and a share alone would protect none.
        """
        summed = self.settings.noise == "clients" and isinstance(round_, Sum) and not round_.answer.keeps
        return self._required(round_, n_asked) if summed else 1

    def _messages(
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

        If the clients bring the noise, the share of a client that drops out is missing from the sum. With min_clients
        the shares are so large that any min_clients of them are enough, and sums over fewer are refused.
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

    # What came back.

    def _checked_replies(
        self, server_round: int, round_: Round, results: Answers, failures: Failures
    ) -> dict[str, list[Sendable]]:
        own_task = {name: self._aside.get(name, round_).answer.task for name in self._addressed.values()}
        replies: dict[str, list[Sendable]] = {}
        n_summed = len(self._addressed) if isinstance(round_, Sum) else 0
        answers = self._by_name(results)
        for name, res in answers:
            task = own_task[name]
            self.log.note_traffic(server_round, task, name, self._bytes_down[name], res)
            try:
                if name not in self._aside:
                    replies[name] = self.inspection.checked(name, round_, res, n_summed)
                    continue
                read_reply(name, res, lambda *_: None)
                if isinstance(left := self._aside[name], Round):
                    self.roster.note_caught_up(name, left.task)
            except ReplyError as error:
                self.log.note(server_round, task, name, error)
                if isinstance(error, RefusalError) and error.missed:
                    self.roster.forget(name)
        self._note_silence(server_round, own_task, answers, failures)
        self.roster.note_answers(server_round, own_task, {name for name, _ in answers})
        for name, reason in self.inspection.odd_ones(round_, replies, self._sent).items():
            self.log.note_failure(server_round, round_.task, name, reason)
            del replies[name]
        return replies

    def _ask_again(self, server_round: int, name: str, left: Round) -> None:
        """Spend and note what an earlier round asks of a client that was not there then."""
        if not self.roster.note_sent_again(name, left.task):
            return
        if self.spending is not None:
            self.spending.spend(left.task, left.releases, [name])
        if any(one.task == left.task and one.clients is None for one in self.log.messages):
            return  # the report has it for every client
        releases = list(left.releases) or [None] * len(left.answer.sends)
        variations = variations_of(self.settings.noise, releases, [], 1)
        facts: dict[str, Any] = {"asked": (name,), "answered": [], "n_clients": len(self.clients)}
        self.log.note_round(server_round, left, releases, variations, is_enough=True, **facts)

    def _by_name(self, results: Sequence[tuple[ClientProxy, R]]) -> list[tuple[str, R]]:
        """Return one reply of each client that was asked, in the order in which they are added up."""
        found = {self._addressed[proxy.cid]: res for proxy, res in results if proxy.cid in self._addressed}
        return sorted(found.items(), key=lambda pair: client_order(pair[0]))

    def _note_silence(
        self, server_round: int, tasks: Mapping[str, str], answers: Sequence[tuple[str, Any]], failures: Failures
    ) -> None:
        """Note the clients that were addressed, each with its task, and sent no reply."""
        silent = tasks.keys() - {name for name, _ in answers}
        sent = {name: (tasks[name], self._bytes_down.get(name, 0)) for name in silent}
        self.log.note_silence(server_round, sent, failures)

    def check_enough(self, server_round: int, task: str, n_answered: int, required: int) -> None:
        """Raise a ProtocolError if too few clients answered."""
        if n_answered >= required:
            return
        all_bring_noise = self.settings.noise == "clients" and self.settings.min_clients is None and task != ENROL
        why = " (with noise='clients' a missing client's share of the noise is missing too)" if all_bring_noise else ""
        reasons = " ".join(self.log.reasons(server_round, task)[:3])
        raise ProtocolError(
            f"round {server_round} ('{task}'): {n_answered} clients answered and {required} have to{why}. {reasons}"
        )
