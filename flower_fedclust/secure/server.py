"""The server of a secure sum: it collects messages, passes them on, removes the masks, and names clients that fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flower_fedclust.secure import keys as crypto
from flower_fedclust.secure.client import (
    DEALT,
    FORWARDED,
    LOCK,
    OPENED,
    PAIRS,
    SEALED,
    SELF,
    Checks,
    check_of_pair,
    mask_of,
)
from flower_fedclust.secure.keys import CHECK, KEY, SIGNED, Bytes, Words
from flower_fedclust.secure.shamir import join


class SumError(Exception):
    """A secure sum cannot be computed; the message is one sentence."""


@dataclass(frozen=True)
class Step:
    """One step of a secure sum: the clients that it asks, and what it sends them."""

    name: str
    clients: list[str]
    #: Called with a client's name and the arrays that the client has sent.
    take: Callable[..., None]
    #: The part of the message that all clients get.
    facts: Mapping[str, Any] = field(default_factory=dict)
    #: The part of the message for each single client.
    arrays: Mapping[str, list[Bytes]] = field(default_factory=dict)


@dataclass
class _Sum:
    """The server's state of one sum. A client is known by its place, its number in the list of all clients."""

    number: int
    dealt: dict[int, list[bytes]] = field(default_factory=dict)
    secrets: dict[int, list[bytes]] = field(default_factory=dict)  #: The checks of the two secrets.
    invited: list[int] = field(default_factory=list)
    masked: dict[int, Words] = field(default_factory=dict)
    arrived: list[int] = field(default_factory=list)
    #: sender -> receiver -> confirmation
    confirmed: dict[int, dict[int, bytes]] = field(default_factory=dict)
    #: Hashes of the questions that the clients say they were asked.
    questions: dict[int, bytes] = field(default_factory=dict)
    shares: dict[int, dict[int, int]] = field(default_factory=dict)  #: dealer -> point -> share
    #: dealer -> clients that cannot use its share
    accused: dict[int, list[int]] = field(default_factory=dict)


class SecureServer:
    """The server of a run.

    It sees answers only under two kinds of masks. The masks of pairs cancel in the sum of all clients; if a client
    drops out, the others' shares give back the keys of its pairs. A client's own mask protects an answer that arrives
    after its client was thought to be gone. For each client, the others open shares for its own mask or shares for the
    keys of its pairs, never both.

    Each ``take_...`` raises a DataError for an array that a client may not send.
    """

    def __init__(self, run: str) -> None:
        self.run = run
        self.names: list[str] = []  #: The names of the clients, in the order of their places.
        self.signed: dict[str, bytes] = {}  #: The clients' keys, by name.
        #: Whether a client has compared the keys with pinned ones.
        self.knows_others: dict[str, bool] = {}
        self._roster = b""
        self._sum = _Sum(0)

    def steps(self, number: int, clients: Sequence[str]) -> Iterator[Step]:
        """Yield the steps of one sum, each once the one before it is over; the first sum begins with the keys.

        The caller asks the clients of each step, passes what they send to ``step.take``, and stops if too few clients
        have taken a step. After the last step, :meth:`total` is the sum.
        """
        if not self.names:
            yield Step("keys", list(clients), self.take_key)
            keys = self.roster([name for name in clients if name in self.signed])
            yield Step(
                "roster",
                self.names,
                self.take_roster,
                {"names": self.names},
                {name: [keys] for name in self.names},
            )
        self.begin(number)
        yield Step("share", self.names, self.take_shares)
        invited = self.invited()
        yield Step("mask", self.named(invited), self.take_masked, {"clients": invited})
        arrived = self.arrived()
        yield Step("confirm", self.named(arrived), self.take_confirmations, {"clients": arrived})
        self.check_questions()
        confirmed = self.named(self.confirmed)
        given = {name: [self.confirmations_for(name), self.shares_for(name)] for name in confirmed}
        yield Step("open", confirmed, self.take_opened, arrays=given)

    def place(self, name: str) -> int:
        """Return the place of a client."""
        return self.names.index(name)

    def named(self, places: Sequence[int]) -> list[str]:
        """Return the names of clients, given their places."""
        return [self.names[place] for place in places]

    @property
    def confirmed(self) -> list[int]:
        """The places of the clients that have confirmed the list of answers that have arrived."""
        return sorted(self._sum.confirmed)

    # The steps of a run.

    def take_key(self, name: str, array: object) -> None:
        """Take a client's signed key."""
        (signed,) = crypto.rows_of(array, 1, SIGNED)
        if not crypto.is_signed(self.run, name, signed):
            raise SumError("a key without its owner's signature")
        self.signed[name] = signed

    def roster(self, names: Sequence[str]) -> Bytes:
        """Fix the clients of the run, and return their keys."""
        self.names = [name for name in names if name in self.signed]
        signed = [self.signed[name] for name in self.names]
        self._roster = crypto.roster_of(self.run, self.names, signed)
        return crypto.as_rows(signed, SIGNED)

    def take_roster(self, name: str, array: object) -> None:
        """Check that a client has the same list of keys."""
        (row,) = crypto.rows_of(array, 1, KEY + 1)
        if row[:KEY] != self._roster:
            raise SumError("that it has another list of keys")
        self.knows_others[name] = row[KEY:] == b"\1"

    # The steps of a sum.

    def begin(self, number: int) -> None:
        """Begin a sum."""
        self._sum = _Sum(number)

    def take_shares(self, name: str, dealt: object, secrets: object) -> None:
        """Take the shares that a client deals."""
        place = self.place(name)
        rows = crypto.rows_of(dealt, len(self.names), DEALT)
        checks = crypto.rows_of(secrets, 2, CHECK)
        # Only now, when both arrays are known to be well-formed: neither is noted without the other.
        self._sum.dealt[place], self._sum.secrets[place] = rows, checks

    def invited(self) -> list[int]:
        """Fix and return the list of clients that have dealt shares."""
        self._sum.invited = sorted(self._sum.dealt)
        return self._sum.invited

    def take_masked(self, name: str, words: Words) -> None:
        """Take a masked answer."""
        self._sum.masked[self.place(name)] = words

    def arrived(self) -> list[int]:
        """Fix and return the list of clients whose masked answers have arrived."""
        self._sum.arrived = sorted(self._sum.masked)
        return self._sum.arrived

    def take_confirmations(self, name: str, array: object, question: object) -> None:
        """Take a client's confirmations of the list of answers that have arrived, and the hash of its question."""
        checks = crypto.rows_of(array, len(self._sum.arrived), CHECK)
        (asked,) = crypto.rows_of(question, 1, KEY)
        place = self.place(name)
        self._sum.confirmed[place] = dict(zip(self._sum.arrived, checks, strict=True))
        self._sum.questions[place] = asked

    def check_questions(self) -> None:
        """Raise a SumError if clients have answered different questions: their masks do not cancel."""
        asked = self._sum.questions
        others = [self.names[place] for place, one in asked.items() if one != self._question]
        if others:
            raise SumError(
                f"{', '.join(others[:5])} answered another question than the other clients, or were asked something "
                "else in an earlier round"
            )

    @property
    def _question(self) -> bytes:
        """The question that most clients say they were asked."""
        return Counter(self._sum.questions.values()).most_common(1)[0][0]

    def confirmations_for(self, name: str) -> Bytes:
        """Return the confirmations of the other clients for a client; zeros for clients that have sent none."""
        place, said = self.place(name), self._sum.confirmed
        return crypto.as_rows(
            [said.get(one, {}).get(place, bytes(CHECK)) for one in self._sum.arrived], CHECK
        )

    def shares_for(self, name: str) -> Bytes:
        """Return the shares that the clients have dealt to one of them, with their checks."""
        place = self.place(name)
        return crypto.as_rows(
            [self._sum.dealt[dealer][place][:FORWARDED] for dealer in self._sum.invited], FORWARDED
        )

    def take_opened(self, name: str, array: object) -> None:
        """Take one share of each client, and check each: if its dealer did not make it, the sender is at fault."""
        this, sender = self._sum, self.place(name)
        rows = crypto.rows_of(array, len(this.invited), OPENED)
        found, check = dict[int, int](), Checks(self._roster, this.number)
        for dealer, row in zip(this.invited, rows, strict=True):
            if row == bytes(OPENED):
                this.accused.setdefault(dealer, []).append(sender)
                continue
            kind = SELF if dealer in this.masked else PAIRS
            at = SEALED + kind * CHECK
            made = this.dealt[dealer][sender][at : at + CHECK]
            if row[:1] != b"\1" or check(dealer, sender, kind, row[1:]) != made:
                raise SumError(f"a share of client {self.names[dealer]} that was not dealt to it")
            found[dealer] = int.from_bytes(row[1:], "big")
        for dealer, share in found.items():
            this.shares.setdefault(dealer, {})[sender + 1] = share

    def total(self) -> Words:
        """Return the sum of the answers that have arrived; a SumError names the client that makes it impossible.

        Two kinds of masks are subtracted: the own masks of the clients whose answers arrived, and the masks that these
        clients share with clients that dropped out. All other masks of pairs cancel.
        """
        this, question = self._sum, self._question
        total = np.zeros(len(next(iter(this.masked.values()))), dtype=np.uint64)
        of_self, of_pair = (
            mask_of(kind, this.invited, question, len(total)) for kind in (SELF, PAIRS)
        )
        for words in this.masked.values():
            total += words
        for dealer in this.arrived:
            total -= of_self(self._secret(dealer, SELF))
        for dealer in set(this.invited) - set(this.arrived):
            for other, key in self._pairs_of(dealer).items():
                if other < dealer:
                    total -= of_pair(key)
                else:
                    total += of_pair(key)
        return total

    def _secret(self, dealer: int, kind: int) -> bytes:
        this, need = self._sum, crypto.threshold(len(self.names))
        shares = this.shares.get(dealer, {})
        if len(shares) < need:
            accused = self.named(this.accused.get(dealer, []))
            by = (
                f"; {', '.join(accused[:5])} could not use the shares that it dealt"
                if accused
                else ""
            )
            raise SumError(
                f"{len(shares)} of {need} shares of client {self.names[dealer]} were opened{by}"
            )
        secret = join(dict(sorted(shares.items())[:need]))
        content = secret.to_bytes(KEY + 1, "big")[1:]
        check = Checks(self._roster, this.number)(dealer, len(self.names), kind, content)
        if secret >> (8 * KEY) or check != this.secrets[dealer][kind]:
            raise SumError(f"client {self.names[dealer]} dealt shares of no secret")
        return content

    def _pairs_of(self, dealer: int) -> dict[int, bytes]:
        """Return the keys of a client that dropped out with each client whose answer has arrived."""
        this = self._sum
        locked = b"".join(row[-KEY:] for row in this.dealt[dealer])
        keys = crypto.xor(locked, crypto.derive(self._secret(dealer, PAIRS), LOCK))
        found = {}
        for other in this.arrived:
            found[other] = key = keys[KEY * other : KEY * (other + 1)]
            said = this.dealt[other][dealer][FORWARDED : FORWARDED + CHECK]
            if check_of_pair(key) != said:
                raise SumError(
                    f"clients {self.names[dealer]} and {self.names[other]} do not agree on the key of their pair"
                )
        return found
