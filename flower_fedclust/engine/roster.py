"""The clients of a run: their names and columns, who is connected, and who missed a round that later rounds need."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from flwr.common import FitIns, FitRes

from flower_fedclust.engine.fields import ENROL
from flower_fedclust.engine.messages import Message
from flower_fedclust.engine.replies import ReplyError, client_order, one_line, unlike_most
from flower_fedclust.engine.rounds import ProtocolError, Round
from flower_fedclust.engine.wire import EMPTY, TO_CLIENT, encode
from flower_fedclust.outside import parse_json

#: The most characters of a client's name. It becomes the name of a file.
LONGEST_NAME = 100

#: The most columns of a client (MOST_COLUMNS), and the most characters of their names together (LONGEST_COLUMNS).
MOST_COLUMNS, LONGEST_COLUMNS = 2**20, 2**24

#: The name and the columns of an enrolling client.
Stated = tuple[str, int | list[str]]


@dataclass
class Member:
    """An enrolled client, connected or not."""

    node: str  #: Its address; "" for a client of an interrupted run that has not come back.
    n_missed: int = 0  #: Rounds missed in a row.
    next_attempt: int = 0  #: The round from which it is asked again.
    #: The tasks that this client was asked to do, of those that leave results with clients.
    asked: set[str] = field(default_factory=set)
    #: The tasks that this client has done, of those that leave results with clients.
    has: set[str] = field(default_factory=set)

    def note(self, number: int, *, answered: bool) -> None:
        """Note whether the client answered a round."""
        self.n_missed = 0 if answered else self.n_missed + 1
        self.next_attempt = 0 if answered else number + 2 ** (self.n_missed - 1)


@dataclass
class Roster:
    """The clients of one run: names and columns, who is connected, and who missed a round that later rounds need."""

    least: int  #: The fewest clients with which a run goes on.
    expected: int  #: How many clients to wait for at the beginning.
    #: The column names of the server's rows, if they have names.
    server_columns: Sequence[str] | None
    #: The clients, in the order in which their replies are added up.
    members: dict[str, Member] = field(default_factory=dict)
    #: The columns of the clients' rows: their number or names; 0 before anybody has enrolled.
    columns: int | list[str] = 0
    in_other_order: bool = False  #: Whether any client has the columns in another order.
    connected: Collection[str] = ()  #: The nodes that were connected at the last look.
    #: The nodes that are asked to enrol in the current round.
    enrolling: set[str] = field(default_factory=set)
    # Nodes that were asked to enrol, as long as they are connected.
    _known: set[str] = field(default_factory=set)
    # Task -> the last round that left something with clients.
    _left: dict[str, Round] = field(default_factory=dict)

    # The connected nodes.

    def are_expected(self, nodes: Sequence[str]) -> bool:
        """Return whether enough nodes are connected to begin."""
        return len(nodes) >= max(self.least, self.expected)

    def are_enough(self, nodes: Sequence[str]) -> bool:
        """Return whether enough clients of the run are among the connected nodes."""
        connected = set(nodes)
        return sum(member.node in connected for member in self.members.values()) >= self.least

    def check_enough_connected(self) -> None:
        """Raise a ProtocolError if too few nodes are connected to begin."""
        if len(self.connected) < self.least:
            raise ProtocolError(
                f"{len(self.connected)} clients are connected and min_clients is {self.least}; start more clients, or "
                "set min_clients lower."
            )

    @property
    def here(self) -> dict[str, Member]:
        """The clients that were connected at the last look."""
        return {
            name: member for name, member in self.members.items() if member.node in self.connected
        }

    def awake(self, number: int) -> dict[str, str]:
        """Return the clients to ask, with their nodes: connected, enrolled, and not silent recently.

        A client that misses two rounds in a row is left alone for one round, then for two, four and so on, so that a
        run does not wait for its time limit in every round. If too few clients would be left, all connected clients
        are asked.
        """
        here = self.here
        awake = {
            name: member
            for name, member in here.items()
            if member.node in self._known and member.next_attempt <= number
        }
        chosen = awake if len(awake) >= self.least else here
        return {name: member.node for name, member in chosen.items()}

    def why_absent(self, name: str) -> str:
        """Explain in a sentence why a client was not asked."""
        member = self.members[name]
        if member.node not in self.connected:
            return f"client {name} is not connected."
        if member.node not in self._known:
            return f"client {name} is back, and is asked from the next round on."
        if self.missed(name) is not None:
            return f"client {name} missed an earlier round, and is sent what that round left with the others."
        return f"client {name} was silent {member.n_missed} times and was not asked."

    # Enrolment.

    def new_nodes(self, asked: Collection[str] = ()) -> list[str]:
        """Return the newly connected nodes, which enrol in this round and get questions from the next round on.

        Nodes in ``asked`` have a message in this round already, and enrol later.
        """
        self._known &= set(self.connected)  # a node that comes back enrols again
        new = [node for node in self.connected if node not in self._known and node not in asked]
        self.enrolling = set(new)
        self._known |= self.enrolling
        return new

    def ask(self, nodes: Sequence[str], config: Mapping[str, Any]) -> list[Message]:
        """Return messages that ask nodes to enrol."""
        told = {EMPTY: True, **config, "task": ENROL}
        # The message tells these clients, which come back, to keep what the run has left with them.
        ours = {member.node for member in self.members.values()}
        new, back = (FitIns(encode(TO_CLIENT), told | more) for more in ({}, {"goes_on": True}))
        return [Message(node, node, back if node in ours else new, "enrol") for node in nodes]

    def names_to_log(self, stated: Mapping[str, str]) -> dict[str, str]:
        """Return a name for each enrolling node: the one it states, if nobody else has it, or else its id.

        A failure must not be blamed on another client.
        """
        claims = Counter[str]({**self._taken, **stated}.values())
        return {
            node: name if claims[name := stated.get(node, node)] == 1 else node
            for node in self.enrolling
        }

    @property
    def _taken(self) -> dict[str, str]:
        """Node -> name of the connected clients. The name of a client that has gone is free for another node."""
        return {member.node: name for name, member in self.here.items()}

    def take_in(self, said: Mapping[str, Stated]) -> dict[str, str]:
        """Enrol nodes with a unique name and the right columns: the server's, or the columns that most clients have.

        Returns the reason for each node or client that is refused.
        """
        names = self._taken | {node: name for node, (name, _) in said.items()}
        refused = {
            node: reason for node, reason in _with_equal_names(names).items() if node in said
        }
        nodes = {name: node for node, (name, _) in said.items() if node not in refused}
        other = self._with_other_columns({name: said[node][1] for name, node in nodes.items()})
        for name in nodes.keys() - other.keys():
            member = self.members.setdefault(name, Member(nodes[name]))
            if member.node != nodes[name]:
                member.has.clear()  # the new node lacks what earlier rounds left at the old node
            member.node = nodes[name]
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
        reasons = {}
        for name, own in columns.items():
            if (
                isinstance(own, list)
                and isinstance(self.columns, list)
                and sorted(own) == sorted(self.columns)
            ):
                self.in_other_order |= own != self.columns
            elif own != self.columns:
                by_server = self.server_columns is not None and isinstance(self.columns, list)
                whose = "the server rows have" if by_server else "most have"
                right = _in_words(self.columns)
                reasons[name] = f"client {name} has {_in_words(own)} where {whose} {right}."
        return reasons

    # Results that rounds leave with clients, for later rounds.

    def note_left(self, round_: Round, asked: Collection[str], answered: Collection[str]) -> None:
        """After a round that leaves results with clients, note who was asked and who answered."""
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
            may_ask = not (round_.is_noisy and task in member.asked) and name in (
                round_.named or (name,)
            )
            if task not in member.has and may_ask:
                return round_
        return None


def is_name(name: object) -> TypeGuard[str]:
    """Return whether a client may have this name."""
    return isinstance(name, str) and name.isprintable() and 0 < len(name) <= LONGEST_NAME


def checked_enrolment(node: str, res: FitRes) -> Stated:
    """Return the name of a node, and the number or the names of its columns."""
    name = res.metrics.get("client")
    if not is_name(name):
        raise ReplyError(
            f"client {node} gave no name, or none of at most {LONGEST_NAME} printable letters."
        )
    try:
        columns = parse_json(str(res.metrics.get("columns")), LONGEST_COLUMNS)
    except ValueError:
        columns = None
    is_number = type(columns) is int and 0 < columns <= MOST_COLUMNS
    are_names = (
        isinstance(columns, list) and columns and all(isinstance(column, str) for column in columns)
    )
    if not (is_number or (are_names and len(columns) <= MOST_COLUMNS)):
        raise ReplyError(f"client {node} did not say which columns it has.")
    return name, columns


def _in_words(columns: int | list[str]) -> str:
    return (
        f"{columns} columns"
        if isinstance(columns, int)
        else f"the columns {one_line(json.dumps(columns))}"
    )


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
