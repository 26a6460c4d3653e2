"""One run: who takes part, what is asked, what comes back, and what is noted of it."""

from __future__ import annotations

import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, TypeGuard

import numpy as np
from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy

from flower_fedclust.data.frames import as_named, in_order, names_of
from flower_fedclust.engine.client import ENROL
from flower_fedclust.engine.journal import Record
from flower_fedclust.engine.parts import Spending
from flower_fedclust.engine.replies import (
    Inspection,
    R,
    RefusalError,
    ReplyError,
    T,
    add_up,
    beyond_63_bits,
    bytes_of,
    check_capacity,
    checked_evaluation,
    client_order,
    evaluation_of,
    ledger_of,
    one_line,
    read_reply,
    unlike_most,
    values_of,
)
from flower_fedclust.engine.rounds import Failure, Outcome, ProtocolError, Question, Reply, Round, Sum, Total, Traffic
from flower_fedclust.engine.shards import Summed
from flower_fedclust.engine.wire import EMPTY, TO_CLIENT, encode, size_of
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.format import FORMAT
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
from flower_fedclust.privacy.releases import NoisePlace, Release
from flower_fedclust.privacy.report import Message

#: How many clients have to answer by default. A sum over a single client would hide nothing.
MIN_CLIENTS = 2

#: Characters of a client's name, which becomes the name of a file.
LONGEST_NAME = 100

#: Most columns of a client, and most characters of their names together.
MOST_COLUMNS, LONGEST_COLUMNS = 2**20, 2**24

#: How many entries of an array that the server does not see one row may change: as many as the row has columns.
UNSEEN_ENTRIES = 2**20

#: Characters of the longest description that sites receive with the model.
LONGEST_DESCRIPTION = 2**18

#: The task under which the log lists the evaluation of the model.
EVALUATE = "evaluate"

#: The name and the columns of an enrolling client.
Stated = tuple[str, int | list[str]]

#: What :meth:`Run.receive` returns if a round takes another message to its clients.
Waiting = Literal["waiting"]
WAITING: Waiting = "waiting"

Messages = list[tuple[ClientProxy, FitIns]]
Answers = Sequence[tuple[ClientProxy, R]]
Failures = Sequence[tuple[ClientProxy, Any] | BaseException]


def put_in_order(strategy: Any, columns: Sequence[str] | None = None, whose: str = "") -> Sequence[str] | None:
    """Put the columns of the server's rows, first centers and origin into one order, and return that order.

    By default it is the order of the first parameter with named columns; None if none has names.
    """
    for name in ("server_data", "init", "origin"):
        given = getattr(strategy, name, None)
        names = names_of(given)
        if names is None:
            continue
        if columns is None:
            columns, whose = names, name
        frame = in_order(as_named(given, name), columns, name, whose)
        setattr(strategy, name, frame.iloc[0] if getattr(given, "ndim", 2) == 1 else frame)
    return columns


class Address(ClientProxy):
    """The address of a client that somebody else sends messages to."""

    def get_properties(self, *_: Any, **__: Any) -> Any:  # noqa: D102
        raise NotImplementedError("an address answers nothing")

    get_parameters = fit = evaluate = reconnect = get_properties


@dataclass
class Member:
    """An enrolled client, connected or not."""

    proxy: ClientProxy
    n_missed: int = 0  #: Rounds missed in a row.
    next_attempt: int = 0  #: The round from which it is asked again.
    asked: set[str] = field(default_factory=set)  #: Tasks that leave something with clients and that it was asked.
    has: set[str] = field(default_factory=set)  #: Tasks that the client has answered, and whose results it holds.

    def note(self, number: int, *, answered: bool) -> None:
        """Note whether the client answered a round."""
        self.n_missed = 0 if answered else self.n_missed + 1
        self.next_attempt = 0 if answered else number + 2 ** (self.n_missed - 1)


@dataclass
class Roster:
    """The clients of one run: names and columns, who is there, and who missed a round that later rounds need."""

    strategy: Any
    server_columns: Sequence[str] | None  #: The column names of the server's rows, if they have names.
    members: dict[str, Member] = field(default_factory=dict)  #: In the order in which replies are added up.
    columns: int | list[str] = 0  #: Of the clients' rows: their number, or their names; 0 before anybody has enrolled.
    in_other_order: bool = False  #: Whether any client has these columns in another order.
    enrolling: set[str] = field(default_factory=set)  #: The nodes that are asked to enrol in the current round.
    _known: set[str] = field(default_factory=set)  # nodes that were asked to enrol, as long as they are connected
    _connected: set[str] = field(default_factory=set)  # nodes, at the last look
    _left: dict[str, Round] = field(default_factory=dict)  # task -> the last round that left something with clients

    @property
    def least(self) -> int:
        """The fewest clients with which a run goes on."""
        return self.strategy.min_clients or MIN_CLIENTS

    # Enrolment.

    def wait_for_clients(self, manager: ClientManager) -> None:
        """Return once enough clients are connected."""
        wanted = max(self.least, self.strategy.expected_clients or 0)
        self._wait_until(lambda: manager.num_available() >= wanted)
        if (n_connected := manager.num_available()) < self.least:
            raise ProtocolError(
                f"{n_connected} clients are connected and min_clients is {self.least}; start more clients, or set "
                "min_clients lower."
            )

    def _wait_until(self, is_enough: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self.strategy.wait_for_clients
        while not is_enough() and time.monotonic() < deadline:
            time.sleep(0.05)

    def ask_new(
        self, number: int, manager: ClientManager, config: Mapping[str, Any], asked: Collection[str] = ()
    ) -> Messages:
        """Return messages that ask newly connected nodes to enrol; other rounds ask them from the next round on."""
        proxies = dict(manager.all())
        self._connected = set(proxies)
        self._known &= self._connected  # a node that comes back enrols again
        self.enrolling = self._connected - self._known - set(asked)  # a node that is asked for something enrols later
        self._known |= self.enrolling
        told: dict[str, Any] = {EMPTY: True, **config, "task": ENROL, "round": number, **self.strategy.enrolment}
        ours = {member.proxy.cid for member in self.members.values()}  # these keep what this run has left with them
        new, back = (FitIns(encode(TO_CLIENT), told | one) for one in ({}, {"goes_on": True}))
        return [(proxy, back if node in ours else new) for node, proxy in proxies.items() if node in self.enrolling]

    def names_to_log(self, stated: Mapping[str, str]) -> dict[str, str]:
        """Return a name for each enrolling node: the one it states, if nobody else has it, or else its id.

        A failure must not be blamed on another client.
        """
        claims = Counter[str]({**self._taken, **stated}.values())
        return {node: name if claims[name := stated.get(node, node)] == 1 else node for node in self.enrolling}

    @property
    def _taken(self) -> dict[str, str]:
        """Node -> name. A connected client keeps its name; one that has gone may come back from another node."""
        return {member.proxy.cid: name for name, member in self.here.items()}

    def take_in(self, said: Mapping[str, Stated], proxies: Mapping[str, ClientProxy]) -> dict[str, str]:
        """Enrol nodes with a unique name and the right columns: as in the server's rows, or at most clients.

        Returns why others are refused, by name or node.
        """
        names = self._taken | {node: name for node, (name, _) in said.items()}
        refused = {node: reason for node, reason in _with_equal_names(names).items() if node in said}
        nodes = {name: node for node, (name, _) in said.items() if node not in refused}
        other = self._with_other_columns({name: said[node][1] for name, node in nodes.items()})
        for name in nodes.keys() - other.keys():
            member = self.members.setdefault(name, Member(proxies[nodes[name]]))
            if member.proxy.cid != nodes[name]:
                member.has.clear()  # the new node has nothing of what was left with the old one
            member.proxy = proxies[nodes[name]]
        self.members = {name: self.members[name] for name in sorted(self.members, key=client_order)}
        self.enrolling = set()
        return refused | other

    def _with_other_columns(self, columns: Mapping[str, int | list[str]]) -> dict[str, str]:
        """Explain which clients have other columns; the first round decides which columns are right."""
        if self.columns == 0 and columns:
            common, _ = unlike_most({name: json.dumps(own) for name, own in columns.items()})
            self.columns = json.loads(str(common))
            if self.server_columns is not None and isinstance(self.columns, list):
                self.columns = list(self.server_columns)
        by_server = self.server_columns is not None and isinstance(self.columns, list)
        right = f"{'the server rows have' if by_server else 'most have'} {_in_words(self.columns)}"
        reasons = {}
        for name, own in columns.items():
            if isinstance(own, list) and isinstance(self.columns, list) and sorted(own) == sorted(self.columns):
                self.in_other_order |= own != self.columns
            elif own != self.columns:
                reasons[name] = f"client {name} has {_in_words(own)} where {right}."
        return reasons

    # Who is there.

    @property
    def here(self) -> dict[str, Member]:
        """The clients that were connected at the last look."""
        return {name: member for name, member in self.members.items() if member.proxy.cid in self._connected}

    def present(self, number: int, manager: ClientManager) -> dict[str, ClientProxy]:
        """Return the clients that can be asked: connected, enrolled, and not silent of late.

        A client that misses two rounds in a row is left alone for one round, then for two, four and so on, so that a
        run does not wait for its time limit in every round. If too few clients would be left, all connected clients
        are asked; if too few are connected, the run waits for them.
        """

        def are_enough() -> bool:
            self._connected = set(manager.all())
            return len(self.here) >= self.least

        self._wait_until(are_enough)
        here = self.here
        awake = {
            name: member
            for name, member in here.items()
            if member.proxy.cid in self._known and member.next_attempt <= number
        }
        return {name: one.proxy for name, one in (awake if len(awake) >= self.least else here).items()}

    # What rounds leave with clients, for later rounds.

    def note_left(self, round_: Round, asked: Collection[str], answered: Collection[str]) -> None:
        """Remember which clients a round has left something with, if it leaves anything: those that have answered."""
        if round_.answer.sends and not round_.answer.keeps:
            return
        self._left[round_.task] = round_
        for name, member in self.members.items():
            (member.asked.add if name in asked else member.asked.discard)(round_.task)
            (member.has.add if name in answered else member.has.discard)(round_.task)

    def missed(self, name: str) -> Round | None:
        """Return the first round that a client has missed and later rounds need, or None.

        A round with noise is not asked a second time: that would be a second release.
        """
        member = self.members[name]
        for task, round_ in self._left.items():
            may_ask = not (round_.is_noisy and task in member.asked) and name in (round_.named or (name,))
            if task not in member.has and may_ask:
                return round_
        return None

    def why_absent(self, name: str) -> str:
        """Explain in a sentence why a client was not asked."""
        member = self.members[name]
        if member.proxy.cid not in self._connected:
            return f"client {name} is not connected."
        if member.proxy.cid not in self._known:
            return f"client {name} is back, and is asked from the next round on."
        if self.missed(name) is not None:
            return f"client {name} missed an earlier round, and is sent what that round left with the others."
        return f"client {name} was silent {member.n_missed} times and was not asked."


def is_name(name: object) -> TypeGuard[str]:
    """Return whether a client may have this name."""
    return isinstance(name, str) and name.isprintable() and 0 < len(name) <= LONGEST_NAME


def _checked_enrolment(node: str, res: FitRes) -> Stated:
    """Return the name of a node, and the number or the names of its columns."""
    name = res.metrics.get("client")
    if not is_name(name):
        raise ReplyError(f"client {node} gave no name, or none of at most {LONGEST_NAME} printable letters.")
    try:
        columns = parse_json(str(res.metrics.get("columns")), LONGEST_COLUMNS)
    except ValueError:
        columns = None
    is_number = type(columns) is int and 0 < columns <= MOST_COLUMNS
    are_names = isinstance(columns, list) and columns and all(isinstance(column, str) for column in columns)
    if not (is_number or (are_names and len(columns) <= MOST_COLUMNS)):
        raise ReplyError(f"client {node} did not say which columns it has.")
    return name, columns


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
            f"Round {number} was asked twice because the run was interrupted: both replies count."
            for number in self.asked_again
        ]
        if self.ended:
            found.append(f"The run ended early, in {self.ended}. What had left the clients by then is listed here.")
        return found

    def of_round(self, number: int) -> dict[str, Any]:
        """Return what is noted of one round, ready for JSON."""
        return {
            "messages": [asdict(one) for one in self.messages if one.round == number],
            "traffic": [asdict(one) for one in self.traffic if one.round == number],
            "failures": [vars(one) for one in self.failures if one.round == number],
            "without_noise": {kept: sorted(names) for kept, names in self._without_noise.items()},
        }

    def add(self, noted: Mapping[str, Any]) -> list[Message]:
        """Undo :meth:`of_round`, in a run that was interrupted, and return the messages."""
        messages = list(map(Message.from_dict, noted["messages"]))
        self.messages += messages
        self.traffic += [Traffic(**one) for one in noted["traffic"]]
        self.failures += [Failure(**one) for one in noted["failures"]]
        self._without_noise = {kept: set(names) for kept, names in noted["without_noise"].items()}
        return messages

    def note_round(
        self,
        number: int,
        round_: Round,
        variations: Sequence[float],
        *,
        asked: Collection[str],
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
        for sent, release, variation in zip(round_.answer.sends, round_.releases, variations, strict=True):
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
                detail += ", with only a part of its noise, because shares of it are missing"
            self.messages.append(
                Message(
                    number,
                    round_.task,
                    sent.content,
                    detail,
                    release,
                    post_processing=derived and not protected,
                    counts_rows=sent.counts_rows,
                    clients=None if everybody else tuple(asked),
                    reveals=sent.reveals,
                    variation=variation,
                )
            )

    def note_failures(self, number: int, task: str, reasons: Mapping[str, str]) -> None:
        """Note clients that did not answer as they should have, each with one sentence."""
        self.failures += [Failure(number, task, name, reason) for name, reason in reasons.items()]

    def reasons(self, number: int, task: str) -> list[str]:
        """Return why clients failed in a round, each reason once."""
        failures = [failure for failure in self.failures if (failure.round, failure.task) == (number, task)]
        return list(dict.fromkeys(failure.reason for failure in in_log_order(failures)))


def in_log_order(entries: Iterable[T]) -> list[T]:
    """Sort failures or traffic by round and client."""
    return sorted(entries, key=lambda entry: (entry.round, client_order(entry.client)))  # type: ignore[attr-defined]


def variations_of(round_: Round, noise: NoisePlace, reply: Sequence[Sendable], n_shares: int) -> list[float]:
    """Return the distance of each array's noise from its law; an array that nobody has seen counts as a long one."""
    found = []
    for index, release in enumerate(round_.releases):
        array = reply[index] if index < len(reply) else None
        if release is None or release.scale == 0:
            found.append(0.0)
        elif not isinstance(array, GridArray):
            # The unit of kept rows is not seen; without shares the distance does not depend on it.
            found.append(UNSEEN_ENTRIES * total_variation(release.mechanism, 1.0))
        else:
            exponent = noise_exponent(release, 1, array.exponent) if noise == "server" else array.exponent
            found.append(variation_of_noise(release, array.integers.size, n_shares, exponent))
    return found


Kind = Literal["round", "others", "earlier"]


@dataclass(frozen=True)
class Asked:
    """A message that a client has not answered yet."""

    name: str  #: The client, or its node while it enrols.
    task: str
    n_bytes: int = 0  #: Of the arrays in the message.
    #: Whether it asks what the round asks, what other clients do, or what an earlier round left with others.
    kind: Kind = "round"


class Run:
    """One run, from the first message to the last."""

    def __init__(self, strategy: Any, server_columns: Sequence[str] | None, run_id: str) -> None:
        self.strategy = strategy  #: A copy from before the run: with the strategy itself, nothing would be freed early.
        self.id = run_id
        self.noise_seed: int | None = strategy.noise_seed
        self.noise: NoisePlace = strategy.noise
        self.n_columns = 0  #: Of the clients' rows, as the strategy sees them.
        self.last_asked = 1  #: The round that was asked last.
        self.log = RunLog()
        self.evaluation: dict[str, float] | None = None
        self.spending: Spending | None = None  #: Of the plan, once it is frozen.
        self.rng = np.random.default_rng(strategy.random_state)  #: Randomness of the server that protects nobody.
        self.roster = Roster(strategy, server_columns)
        self.inspection = Inspection(strategy)
        self.n_extra = 0  #: Messages to each client beyond one for each round.
        self._asked: dict[str, Asked] = {}  # node -> the message that it was sent
        self._sent: FitIns | None = None  # the last message to one of the clients
        self._waits = False  # whether a client waits for the approval of the study

    @property
    def clients(self) -> dict[str, Member]:
        """The clients that enrolled, in the order in which their replies are added up."""
        return self.roster.members

    @property
    def _common(self) -> dict[str, Any]:
        """Return what every message says."""
        return {"format": FORMAT, "client": self.strategy.client_type.key(), "run": self.id}

    @property
    def _order(self) -> dict[str, str]:
        """Return the order of the columns, for a message, if some client has them in another order."""
        return {"columns": json.dumps(self.roster.columns)} if self.roster.in_other_order else {}

    def notes(self) -> list[str]:
        """Return what the report says of how the sums were made."""
        return []

    # Enrolment: every client gives its name and its columns.

    def ask_to_enrol(self, number: int, client_manager: ClientManager, plan: str) -> Messages:
        """Return the messages of the first round; a site may want to see the plan first."""
        self.roster.wait_for_clients(client_manager)
        more: dict[str, Any] = ({"goes_on": True} if self.clients else {}) | ({"plan": plan} if plan else {})
        return self.roster.ask_new(number, client_manager, self._common | more)

    def enrol(self, number: int, results: Answers[FitRes], failures: Failures, *, goes_on: bool = False) -> None:
        """Enrol the clients of a new run, or clients of an interrupted run that are there again."""
        log = self.log
        if goes_on:
            self.log = RunLog()  # the journal has noted the first enrolment
        self._take_in(number, results, failures)
        self.log = log
        if not goes_on:
            columns, tables = self.roster.columns, self.strategy.tables
            n_columns = columns if isinstance(columns, int) else len(columns)
            self.n_columns = self.inspection.n_columns = n_columns if tables is None else tables.n_columns or n_columns
        n_enrolled = len(self.roster.here if goes_on else self.clients)
        # Without a client that will only answer later, the others would spend their budget on another result.
        expected = (self.strategy.expected_clients or 0) if self._waits else 0
        self.check_enough(number, ENROL, n_enrolled, max(self.roster.least, expected))

    def _take_in(self, number: int, results: Answers[FitRes], failures: Failures) -> None:
        """Enrol the nodes that were asked to, and note those that cannot be."""
        new = [(proxy, res) for proxy, res in results if proxy.cid in self.roster.enrolling]
        proxies = {proxy.cid: proxy for proxy, _ in new}
        stated = {}
        for proxy, res in new:
            name = res.metrics.get("client") if isinstance(res.metrics, Mapping) else None
            stated[proxy.cid] = name if is_name(name) else proxy.cid
        asked = {node: Asked(name, ENROL) for node, name in self.roster.names_to_log(stated).items()}
        said = self._read(number, asked, results, failures, lambda one, res: _checked_enrolment(one.name, res))
        self.log.note_failures(number, ENROL, self.roster.take_in(said, proxies))
        self.log.messages.append(Message(number, ENROL, "name and columns", "one per client", harmless=True))

    # A run that was interrupted.

    def go_on(self, record: Record) -> None:
        """Take over what a round left in a run that was interrupted; its clients are away until they enrol again."""
        facts = record.facts
        messages = self.log.add(facts["log"])
        self.last_asked = record.number
        self.roster.members = {name: Member(Address(f"away: {name}")) for name in facts["clients"]}
        self.roster.columns = facts["columns"]
        self.n_columns = self.inspection.n_columns = facts["n_columns"]
        self.rng.bit_generator.state = facts["rng"]
        if self.spending is not None:
            self.spending.go_on(messages, list(self.clients))

    def record(self, number: int, digest: str, received: Total | list[Reply] | None) -> Record:
        """Return what a round has left."""
        facts = {
            "clients": list(self.clients),
            "columns": self.roster.columns,
            "n_columns": self.n_columns,
            "rng": self.rng.bit_generator.state,
            "log": self.log.of_round(number),
        }
        return Record(number, digest, received, facts)

    def note_asked_again(self, number: int, round_: Round) -> None:
        """Note that a round may have been answered before the interruption, with other noise of the clients."""
        if self.noise != "server" and self.noise_seed is None and any(round_.releases):
            self.log.asked_again.append(number)

    # Rounds.

    def ask(self, number: int, round_: Round, client_manager: ClientManager, plan: str) -> Messages:
        """Return the messages of a round, and messages to clients that have come since the last one.

        An optional round that too few clients can answer is skipped.
        """
        self.last_asked = number
        self._check_declared(round_)
        present = self.roster.present(number, client_manager)
        addressees = self._addressees(round_, present)
        named = set(addressees)
        asked = {name: proxy for name, proxy in present.items() if name in named}
        late = {name: (asked[name], left) for name in asked if (left := self.roster.missed(name)) is not None}
        for name in late:
            del asked[name]
        absent = {name: self.roster.why_absent(name) for name in addressees if name not in asked}
        self.log.note_failures(number, round_.task, absent)
        if absent and len(asked) < (required := self._required(round_, len(asked))):
            if round_.needed:
                self.check_enough(number, round_.task, len(asked), required)
            asked = {}
        if self.spending is not None:
            self.spending.spend(round_.task, round_.releases, list(asked))
        if asked:
            check_capacity(round_, len(asked), self._n_shares(round_, len(asked)))
        config = self._config(number, round_, len(asked))
        self._asked = {}
        if isinstance(round_.question, Question):
            messages = self._messages(asked, round_.question, config)
        else:
            messages = [
                message
                for name, proxy in asked.items()
                for message in self._messages({name: proxy}, round_.question_for(name), config)
            ]
        self._sent = messages[0][1] if messages else None
        if round_.others is not None:
            others = {name: proxy for name, proxy in present.items() if name not in named}
            without_noise = {key: value for key, value in config.items() if key not in ("parts", "n_shares")}
            messages += self._messages(others, round_.others, without_noise, "others")
        for name, (proxy, left) in late.items():
            self._catch_up(number, name, left)
            config = self._config(number, left, 1)
            messages += self._messages({name: proxy}, left.question_for(name), config, "earlier")
        facts: dict[str, Any] = {"n_clients": len(messages), **({"plan": plan} if plan else {}), **self._order}
        messages += self.roster.ask_new(number, client_manager, self._common, {proxy.cid for proxy, _ in messages})
        for ins in {id(ins): ins for _, ins in messages}.values():  # many clients share one
            ins.config.update(facts)
        return messages

    def receive(
        self, number: int, round_: Round, results: Answers[FitRes], failures: Failures
    ) -> Total | list[Reply] | Waiting | None:
        """Return the sums or the replies of a round; None for an optional round that too few clients answered."""
        replies, sums = self._checked_replies(number, round_, results, failures)
        arrays: list[Sequence[Sendable]] = [*replies.values(), *(one.arrays for one in sums)]
        n_answered = len(replies) + sum(len(one.nodes) for one in sums)
        n_asked = self._note_replies(number, round_, replies, sums, results, failures)
        required = self._required(round_, n_asked)
        if n_answered < required and not round_.needed:
            return None
        self.check_enough(number, round_.task, n_answered, required)
        if round_.answer.keeps:
            return []
        if isinstance(round_, Sum):
            return self._total(number, round_, add_up(arrays), n_answered, arrays)
        noisy = self.noise == "server" and any(round_.releases)
        releases, source = round_.releases, self._noise(number)
        return [
            Reply(name, values_of(add_noise(arrays, releases, source) if noisy else arrays))
            for name, arrays in replies.items()
        ]

    def _total(
        self,
        number: int,
        round_: Round,
        sums: list[Sendable],
        n_clients: int,
        replies: Sequence[Sequence[Sendable]],
    ) -> Total:
        """Return the sums as the protocol gets them, with the server's noise if it adds any.

        Whether they overflow is looked at once they have their noise.
        """
        before = sums
        if self.noise == "server" and any(round_.releases):
            sums = add_noise(sums, round_.releases, self._noise(number))
        for index in self._overflows(self.inspection.hidden(round_), replies, before, sums):
            raise ProtocolError(
                f"round {number} ('{round_.task}'): with its noise, the sum of {round_.answer.sends[index].content} "
                "exceeds 63 bits. Ask fewer clients, or choose a coarser unit."
            )
        deviations = [0.0 if release is None else self.noise_of_sum(release) for release in round_.releases]
        return Total(values_of(sums), n_clients, deviations)

    def _overflows(
        self,
        hidden: Sequence[bool],
        replies: Sequence[Sequence[Sendable]],
        before: Sequence[Sendable],
        after: Sequence[Sendable],
    ) -> list[int]:
        """Return which sums do not fit 63 bits, now that they have their noise.

        The replies to a sum without noise were small enough, each by itself.
        """
        return beyond_63_bits(hidden, replies, before, after)

    def _note_replies(
        self,
        number: int,
        round_: Round,
        replies: Mapping[str, list[Sendable]],
        sums: Sequence[Summed],
        results: Answers[FitRes],
        failures: Failures,
    ) -> int:
        """Note what has left the clients, whatever becomes of the run; return how many were asked."""
        arrays: list[Sequence[Sendable]] = [*replies.values(), *(one.arrays for one in sums)]
        n_answered = len(replies) + sum(len(one.nodes) for one in sums)
        main = {one.name for one in self._asked.values() if one.kind == "round"}
        asked = [name for name in self.clients if name in main]
        n_asked = len(asked)
        # Before anything can end the run: what the server holds has left the clients.
        n_shares = self._n_shares(round_, n_asked)
        variations = variations_of(round_, self.noise, next(iter(arrays), []), n_shares)
        # The server has not forgotten what a round that is asked again brought before the interruption.
        times = 2 if number in self.log.asked_again else 1
        for _ in range(times if asked else 0):
            self.log.note_round(
                number,
                round_,
                variations,
                asked=asked,
                answered=replies,
                n_clients=len(self.clients),
                is_enough=n_shares <= max(n_answered, 1),
            )
        self.roster.note_left(round_, main, replies)
        if self.roster.enrolling:
            self._take_in(number, results, failures)
        return n_asked

    def noise_of_sum(self, release: Release) -> float:
        """Return the standard deviation of the noise in a sum over all clients, in the array's units.

        With noise="clients" it can exceed the release's own, because every client adds a share.
        """
        if self.noise == "server":
            return release.standard_deviation
        n_clients = len(self.clients)
        n_shares = (self.strategy.min_clients or n_clients) if self.noise == "clients" else 1
        return release.standard_deviation * math.sqrt(n_clients / n_shares)

    # Evaluation of the model.

    def ask_to_evaluate(
        self, number: int, outcome: Outcome, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Return messages with the model: to evaluate, to keep (with the description as printed), or both."""
        model = outcome.model
        sent = encode(model.to_arrays())
        here = self.roster.present(number, client_manager)
        self._asked = {proxy.cid: Asked(name, EVALUATE, size_of(sent)) for name, proxy in here.items()}
        facts = {
            **self._common,
            "model": model.name,
            "evaluate": self.strategy.federated_evaluation,
            "share": self.strategy.share_model,
            **self._order,
        }
        if self.strategy.share_model and len(described := str(outcome.clusters or "")) <= LONGEST_DESCRIPTION:
            facts["clusters"] = described
        ins = EvaluateIns(sent, facts)
        return [(proxy, ins) for proxy in here.values()]

    def receive_evaluation(
        self, number: int, results: Answers[EvaluateRes], failures: Failures, n_clusters: int | None
    ) -> dict[str, float]:
        """Add up the clients' tables and costs. Returns {} if no client replied.

        ``n_clusters`` is None where clients were sent the model to keep, and were asked nothing.
        """
        read = self._read(
            number,
            self._asked,
            results,
            failures,
            lambda one, res: checked_evaluation(one.name, res, n_clusters=n_clusters),
        )
        found = {node: one for node, one in read.items() if one is not None}
        for node, one in found.items():
            self.inspection.stated[self._asked[node].name] = float(one.n_rows)
        self.evaluation = evaluation_of(list(found.values()))  # whatever came, it is not asked for again
        contents = ("k-means cost of the rows", "number of rows", "table of classes by clusters")
        for content in contents if results and n_clusters is not None else ():
            self.log.messages.append(Message(number, EVALUATE, content, "one per client"))
        return self.evaluation

    # Which clients to ask, and how.

    def _check_declared(self, round_: Round) -> None:
        """Raise a ProtocolError unless the strategy's clients have what a round asks for."""
        client_type, others = self.strategy.client_type, round_.others
        for answer in [round_.answer] if others is None else [round_.answer, others.answer]:
            if getattr(client_type, answer.task, None) is None:
                raise ProtocolError(
                    f"{client_type.__name__} has no method '{answer.task}'; the strategy's client_type must inherit "
                    "from the class whose method a round names."
                )
        if others is not None and others.answer.sends:
            raise ProtocolError(
                f"'{others.answer.task}' is for clients that a round does not ask, and sends something."
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
        """Return how many of some clients a fraction is: at least as many as have to answer a round."""
        return max(self.roster.least, round(fraction * n_clients))

    def _config(self, number: int, round_: Round, n_asked: int) -> dict[str, Any]:
        config: dict[str, Any] = {**self._common, "round": number}
        if round_.rows:
            config["rows"] = round_.rows
        if any(round_.releases) and (self.noise != "server" or round_.answer.keeps):
            if not round_.parts:
                raise ProtocolError(f"'{round_.task}' takes noise of the clients; name the parts that pay for it.")
            config["parts"] = json.dumps(list(round_.parts))
            config["n_shares"] = self._n_shares(round_, n_asked)
        return config

    def _n_shares(self, round_: Round, n_asked: int) -> int:
        """Return among how many clients the noise is divided.

        In a Gather round the server sees every reply, and a share alone would protect none.
        """
        return self._required(round_, n_asked) if self._sums_shares(round_) else 1

    def _sums_shares(self, round_: Round) -> bool:
        return self.noise == "clients" and isinstance(round_, Sum) and not round_.answer.keeps

    def _required(self, round_: Round, n_asked: int) -> int:
        """Return how many clients have to answer a round.

        If the clients bring the noise, the share of a client that drops out is missing from the sum. With min_clients
        the shares are so large that any min_clients of them are enough, and sums over fewer are refused.
        """
        if self.strategy.min_clients is None and round_.is_noisy and self._sums_shares(round_):
            return max(n_asked, MIN_CLIENTS)
        return self.roster.least

    def _messages(
        self, proxies: Mapping[str, ClientProxy], question: Question, config: Mapping[str, Any], kind: Kind = "round"
    ) -> Messages:
        arrays, fields = question.to_wire()
        full = {**config, **fields} if arrays else {**config, **fields, EMPTY: True}
        ins = FitIns(encode(arrays or TO_CLIENT), full)
        n_bytes = size_of(ins.parameters) if arrays else 0
        for name, proxy in proxies.items():
            self._asked[proxy.cid] = Asked(name, question.answer.task, n_bytes, kind)
        return [(proxy, ins) for proxy in proxies.values()]

    def _noise(self, number: int) -> NoiseSource:
        return OperatingSystemNoise() if self.noise_seed is None else SeededNoise([self.noise_seed, number])

    def _catch_up(self, number: int, name: str, left: Round) -> None:
        """Spend and note what an earlier round asks of a client that was not there then."""
        member = self.clients[name]
        if left.task in member.asked:
            return
        member.asked.add(left.task)
        if self.spending is not None:
            self.spending.spend(left.task, left.releases, [name])
        if any(one.task == left.task and one.clients is None for one in self.log.messages):
            return  # the report has it for every client
        variations = variations_of(left, self.noise, [], 1)
        self.log.note_round(
            number, left, variations, asked=[name], answered=[], n_clients=len(self.clients), is_enough=True
        )

    # What came back.

    def _read(
        self,
        number: int,
        asked: Mapping[str, Asked],
        results: Answers[R],
        failures: Failures,
        check: Callable[[Asked, R], T],
        summed: Mapping[str, int] = MappingProxyType({}),
    ) -> dict[str, T]:
        """Return what the replies hold, by node; note traffic, and why a reply is missing or cannot be used.

        ``summed`` has the bytes of the replies that came added up.
        """
        answers = {proxy.cid: res for proxy, res in results}
        said = {f"{type(failure).__name__}: {failure}" for failure in failures if isinstance(failure, BaseException)}
        reasons = sorted(one_line(one) for one in said)
        silent = f"did not answer{f' ({reasons[0]})' if reasons else ''}."
        if reasons and all(one.task == ENROL for one in asked.values()):
            silent += " If its ClientApp has mods that change what it sends, remove them."
        found = {}
        for node, one in sorted(asked.items(), key=lambda pair: client_order(pair[1].name)):
            if (n_bytes := summed.get(node)) is not None:
                self.log.traffic.append(Traffic(number, one.task, one.name, one.n_bytes, n_bytes))
                continue
            res = answers.get(node)
            n_bytes = 0 if one.task == ENROL else bytes_of(res)
            traffic = Traffic(number, one.task, one.name, one.n_bytes, n_bytes, ledger_of(res and res.metrics))
            self.log.traffic.append(traffic)
            if res is None:
                self.log.note_failures(number, one.task, {one.name: f"client {one.name} {silent}"})
                continue
            try:
                found[node] = read_reply(one.name, res, partial(check, one))
            except ReplyError as error:
                self._note_refusal(number, one, error)
        return found

    def _note_refusal(self, number: int, asked: Asked, error: ReplyError) -> None:
        """Note a reply that is not used. Why a client cannot answer may say something about its rows."""
        self.log.note_failures(number, asked.task, {asked.name: str(error)})
        if not isinstance(error, RefusalError):
            return
        if error.waits:
            self._waits = True
            return
        if not error.missed:
            content = f"why client {asked.name} could not answer (a row and a column, no value)"
            self.log.messages.append(Message(number, asked.task, content, "one sentence"))
        elif asked.task != ENROL:
            self.clients[asked.name].has.clear()

    def _checked_replies(
        self, number: int, round_: Round, results: Answers[FitRes], failures: Failures
    ) -> tuple[dict[str, list[Sendable]], list[Summed]]:
        """Return the replies that can be used, by client, and the replies that came added up."""
        n_summed = len(self._asked) if isinstance(round_, Sum) else 0
        sums = [res for _, res in results if isinstance(res, Summed)]
        alone = [(proxy, res) for proxy, res in results if not isinstance(res, Summed)]
        for total in sums:
            total.hide(self.inspection.hidden(round_))
            taken_out = total.take_out(self.inspection.suspects(round_, total, n_summed))
            alone += [(Address(node), res) for node, res in taken_out.items()]

        def check(one: Asked, res: FitRes) -> list[Sendable]:
            return self.inspection.checked(one.name, round_, res, n_summed) if one.kind == "round" else []

        summed = {node: total.n_bytes for total in sums for node in total.nodes}
        read = self._read(number, self._asked, alone, failures, check, summed)
        answered = {proxy.cid for proxy, _ in alone} | summed.keys()
        for node, one in self._asked.items():
            self.clients[one.name].note(number, answered=node in answered)
            if one.kind == "earlier" and node in read:
                self.clients[one.name].has.add(one.task)
        replies = {self._asked[node].name: arrays for node, arrays in read.items() if self._asked[node].kind == "round"}
        names = [[self._asked[node].name for node in total.nodes] for total in sums]
        odd = self.inspection.odd_ones(round_, replies, self._sent, sums, names)
        self.log.note_failures(number, round_.task, odd)
        for total, called in zip(sums, names, strict=True):
            if odd:
                total.take_out(np.array([name in odd for name in called]))
            self.inspection.take(round_, total, [name for name in called if name not in odd])
        left = {name: arrays for name, arrays in replies.items() if name not in odd}
        return left, [total for total in sums if total.nodes]

    def check_enough(self, number: int, task: str, n_answered: int, required: int) -> None:
        """Raise a ProtocolError if too few clients answered."""
        if n_answered >= required:
            return
        all_bring_noise = self.noise == "clients" and self.strategy.min_clients is None and task != ENROL
        why = " (with noise='clients' a missing client's share of the noise is missing too)" if all_bring_noise else ""
        reasons = " ".join(self.log.reasons(number, task)[:3])
        raise ProtocolError(
            f"round {number} ('{task}'): {n_answered} clients answered and {required} have to{why}. {reasons}"
        )
