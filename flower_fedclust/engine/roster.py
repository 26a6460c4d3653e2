"""Who takes part: names and columns that clients give, who is there, and who has not answered for a while."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from flwr.common import FitIns, FitRes
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy

from flower_fedclust.engine.books import Books
from flower_fedclust.engine.client import ENROL
from flower_fedclust.engine.replies import ReplyError, client_order, one_line, read_reply, unlike_most
from flower_fedclust.engine.rounds import ProtocolError, Round
from flower_fedclust.engine.settings import RunSettings
from flower_fedclust.engine.wire import encode
from flower_fedclust.engine.wrappers import EMPTY, TO_CLIENT
from flower_fedclust.outside import parse_json
from flower_fedclust.privacy.report import Message

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

    def take_in(self, number: int, results: Answers, failures: Failures, books: Books) -> None:
        """Take in the clients that have the columns that most have, or that the server's rows have.

        Parameters
        ----------
        number : int
            Of the round.
        results, failures : sequence
            As Flower gives them, of the nodes that were asked to enrol.
        books : Books
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
            books.note_traffic(number, ENROL, name, 0, res)
            try:
                said[node] = read_reply(name, res, checked_enrolment)
            except ReplyError as error:
                books.note(number, ENROL, name, error)
        silent = dict.fromkeys(self.enrolling - nodes.keys(), (ENROL, 0))
        if silent:
            books.note_silence(number, silent, failures)
        for node, reason in of_equal_names(taken | {node: name for node, (name, _) in said.items()}).items():
            if node in said:
                books.note_failure(number, ENROL, node, reason)
                del said[node]
        proxies = {name: nodes[node] for node, (name, _) in said.items()}
        for name in [name for name in proxies if name in self.clients and self.clients[name].cid != proxies[name].cid]:
            self.forget(name)  # another node has nothing of what was left with the former
        for name, reason in self._of_other_columns(dict(said.values())).items():
            books.note_failure(number, ENROL, name, reason)
            del proxies[name]
        clients = self.clients | proxies
        self.clients = {name: clients[name] for name in sorted(clients, key=client_order)}
        self.enrolling = set()
        books.sort()
        books.messages.append(Message(number, ENROL, "name and columns", "one per client", harmless=True))

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
