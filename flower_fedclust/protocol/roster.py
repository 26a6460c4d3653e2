"""Who takes part: names and columns that clients give, who is there, and who has not answered for a while."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from flwr.common import FitIns, FitRes
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy

from flower_fedclust.privacy.report import Message
from flower_fedclust.protocol.books import Books
from flower_fedclust.protocol.client import ENROL
from flower_fedclust.protocol.replies import ReplyError, client_order, excuse_of, ledger_of, unlike_most
from flower_fedclust.protocol.rounds import ProtocolError, Traffic
from flower_fedclust.protocol.settings import RunSettings
from flower_fedclust.protocol.wire import encode
from flower_fedclust.protocol.wrappers import EMPTY, TO_CLIENT

#: A name is as long at most: it becomes a file's, and stands in every table.
LONGEST_NAME = 100

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
        return self.ask_new(number, manager, config)

    def ask_new(
        self, number: int, manager: ClientManager, config: Mapping[str, Any]
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Return messages to nodes that were not there before: they enrol now, and are asked from the next round on.

        Parameters
        ----------
        number : int
            Of the round.
        manager : ClientManager
        config : mapping
            What every message says.
        """
        proxies = dict(manager.all())
        self._connected = set(proxies)
        self._known &= self._connected  # who comes back has to say again who it is
        self.enrolling = self._connected - self._known
        self._known |= self.enrolling
        ins = FitIns(
            encode(TO_CLIENT), {EMPTY: True, **config, "task": ENROL, "round": number, **self.settings.enrolment}
        )
        return [(proxy, ins) for node, proxy in proxies.items() if node in self.enrolling]

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
        for proxy, res in results:
            name = str(res.metrics.get("client", proxy.cid))
            books.traffic.append(Traffic(number, ENROL, name, 0, 0, ledger_of(res.metrics)))
            try:
                if "failure" in res.metrics:
                    books.note_refusal(number, ENROL, name, excuse_of(name, res.metrics))
                else:
                    said[proxy.cid] = checked_enrolment(proxy.cid, res.metrics)
            except ReplyError as error:
                books.note_failure(number, ENROL, proxy.cid, str(error))
        silent = dict.fromkeys(self.enrolling - nodes.keys(), (ENROL, 0))
        if silent:
            books.note_silence(number, silent, failures)
        # A name whose client is still connected is taken; one whose client has gone has come back.
        taken = {proxy.cid: name for name, proxy in self.clients.items() if proxy.cid in self._connected}
        for node, reason in of_equal_names(taken | {node: name for node, (name, _) in said.items()}).items():
            if node in said:
                books.note_failure(number, ENROL, node, reason)
                del said[node]
        proxies = {name: nodes[node] for node, (name, _) in said.items()}
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
        awake = {name: proxy for name, proxy in here.items() if self._silent.get(name, (0, 0))[1] <= number}
        return awake if len(awake) >= self.settings.least else here

    def note_answers(self, number: int, asked: Mapping[str, object], answered: set[str]) -> None:
        """Remember who of those that were asked did not answer."""
        for name in asked:
            if name in answered:
                self._silent.pop(name, None)
            else:
                times = self._silent.get(name, (0, 0))[0] + 1
                self._silent[name] = times, number + 2 ** (times - 1)

    def why_absent(self, name: str) -> str:
        """Return why a client was not asked, in a sentence."""
        if self.clients[name].cid in self._connected:
            return f"client {name} was silent {self._silent[name][0]} times and was not asked."
        return f"client {name} is not connected."


def is_name(name: object) -> TypeGuard[str]:
    """Tell whether a client can be called so."""
    return isinstance(name, str) and name.isprintable() and 0 < len(name) <= LONGEST_NAME


def checked_enrolment(node: str, metrics: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and the columns (as JSON: their number, or their names) that a node gives.

    Parameters
    ----------
    node : str
        Flower's id of it.
    metrics : mapping
        Of its answer.

    Raises
    ------
    ReplyError
        If one is missing, or is not what a client of this package gives.
    """
    name = metrics.get("client")
    if not is_name(name):
        raise ReplyError(f"client {node} gave no name, or none of at most {LONGEST_NAME} printable letters.")
    try:
        columns = json.loads(str(metrics.get("columns")))
    except ValueError:
        columns = None
    is_number = type(columns) is int and columns > 0
    are_names = isinstance(columns, list) and columns and all(isinstance(column, str) for column in columns)
    if not (is_number or are_names):
        raise ReplyError(f"client {name} did not say which columns it has.")
    return name, json.dumps(columns)


def _in_words(columns: int | list[str]) -> str:
    return f"{columns} columns" if isinstance(columns, int) else f"the columns {json.dumps(columns)}"


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
