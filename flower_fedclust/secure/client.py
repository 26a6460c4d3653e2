"""The client of a secure sum: its work in each step, and its refusals. The server may send anything."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from itertools import pairwise
from struct import Struct
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import NDArray

from flower_fedclust.numerics.checks import DataError
from flower_fedclust.secure import keys as crypto
from flower_fedclust.secure.keys import CHECK, FEWEST, KEY, MOST, SIGNED, Bytes, Words
from flower_fedclust.secure.shamir import SHARE_BYTES, split

#: Bytes of a nonce.
NONCE = 12

#: Bytes of two encrypted shares: the nonce, the shares, and the cipher's tag of 16 bytes.
SEALED = NONCE + 2 * SHARE_BYTES + 16

#: Bytes that a dealer sends for each other client: two shares that only the receiver can read, the two checks of these
#: shares, the check of the key of this pair of clients, and that key, encrypted.
DEALT = SEALED + 3 * CHECK + KEY

#: Bytes that a client gets from each dealer before it opens shares.
FORWARDED = SEALED + 2 * CHECK

#: Bytes of an opened share: one byte that tells whether the share fits the dealer's check, then the share.
OPENED = 1 + SHARE_BYTES

#: The two kinds of shares: SELF of the secret for a client's own mask, PAIRS of the secret that encrypts the keys of
#: the client's pairs.
SELF, PAIRS = 0, 1

#: The purposes of the three keys that a pair of clients has in one round: for masks, for shares, for confirmations.
MASKS, SHARES, CODES = KINDS_OF_KEYS = range(3)

PLACES = Struct(">HHH")

#: The most runs that one client remembers, so that it sends only one key for each run.
MOST_RUNS = 4096

#: The purpose of the secret that encrypts the keys of a client's pairs.
LOCK = crypto.digest(b"lock")


class Refusal(DataError):  # noqa: N818
    """A client refuses to take a step. The reason follows from messages alone, and says nothing about rows."""


@dataclass(frozen=True)
class Trust:
    """The identity of a client, the keys that it knows, and the fewest clients that it accepts in a sum.

    Parameters
    ----------
    identity : bytes, optional
        The private Ed25519 key with which the client signs its other keys; by default a new one for each run.
    peers : mapping of str to bytes, optional
        The public keys of the clients that this client takes part with, by name. By default it accepts the keys that
        the server sends.
    fewest : int, default=3
        The fewest clients in a sum.
    """

    identity: bytes | None = field(default=None, repr=False)
    peers: Mapping[str, bytes] | None = None
    fewest: int = FEWEST


@dataclass
class _Facts:
    """A client's memory of a run. It holds the secrets of a sum only until the sum is opened."""

    run: str
    private: str = ""  #: The private key of the run, until the keys of the pairs are known.
    public: str = ""
    index: int = -1  #: The place of this client among all clients.
    n: int = 0  #: How many clients take part in the run.
    roster: str = ""
    #: The number of the last sum for which shares were dealt. Sums have ascending numbers, and none is used twice.
    last: int = 0
    step: str = "keys"  #: The last step that was taken.
    #: The two secrets: for its own mask, and for the keys of its pairs.
    secrets: list[str] = field(default_factory=list)
    question: str = ""
    invited: list[int] = field(default_factory=list)
    arrived: list[int] = field(default_factory=list)
    least: int = 0
    #: question -> the list of clients over which its sum was confirmed
    confirmed: dict[str, str] = field(default_factory=dict)
    #: Hashes of earlier runs for which it has sent a key.
    former: list[str] = field(default_factory=list)


class Checks:
    """Computes the checks of the shares of one sum."""

    def __init__(self, roster: bytes, number: int) -> None:
        self._start = crypto.digest(b"share", roster, number)

    def __call__(self, dealer: int, recipient: int, kind: int, share: bytes) -> bytes:
        """Return a dealer's check of a share, or of the secret itself if ``recipient`` is n, the number of clients."""
        return sha256(self._start + PLACES.pack(dealer, recipient, kind) + share).digest()[:CHECK]


def check_of_pair(key: bytes) -> bytes:
    """Return the check of a pair's key of one round. Both clients of the pair send it."""
    return sha256(b"pair" + key).digest()[:CHECK]


def mask_of(
    kind: int, invited: Sequence[int], question: bytes, n_words: int
) -> Callable[[bytes], Words]:
    """Return a function that makes a mask from a secret, for one list of clients and one question."""
    purpose = crypto.digest(b"mask", kind, crypto.list_of(invited), question)
    return lambda secret: crypto.mask(crypto.derive(secret, purpose), n_words)


class SecureClient:
    """One client of a run; ``kept`` is what :meth:`to_arrays` returned after the last step."""

    def __init__(
        self, name: str, trust: Trust | None = None, kept: Sequence[NDArray[Any]] | None = None
    ) -> None:
        self.name = name
        self.trust = trust or Trust()
        self._facts: _Facts | None = None
        self._pairs = self._round = b""
        if kept is not None:
            about, _, keys = np.asarray(kept[0], dtype=np.uint8).tobytes().partition(b"\0")
            self._facts = _Facts(**json.loads(about))
            self._pairs, self._round = keys[: KEY * self._facts.n], keys[KEY * self._facts.n :]

    def to_arrays(self) -> list[Bytes]:
        """Return all that the client has to remember, as one array; secret."""
        about = json.dumps(vars(self._known)).encode()
        return [np.frombuffer(about + b"\0" + self._pairs + self._round, dtype=np.uint8)]

    @property
    def _known(self) -> _Facts:
        if self._facts is None:
            raise Refusal(
                f"client {self.name} has no keys for this run, or has lost them; it takes no part."
            )
        return self._facts

    # The two steps of a run.

    def keys(self, run: str) -> Bytes:
        """Return a new key for a run, signed; only once."""
        former = [] if self._facts is None else [*self._facts.former, _short(self._facts.run)]
        if _short(run) in former:
            raise Refusal(f"client {self.name} has sent its key for this run before.")
        if len(former) >= MOST_RUNS:
            raise Refusal(
                f"client {self.name} has sent keys for {MOST_RUNS} runs; start its node anew."
            )
        private, given = X25519PrivateKey.generate(), self.trust.identity
        identity = (
            Ed25519PrivateKey.generate()
            if given is None
            else Ed25519PrivateKey.from_private_bytes(given)
        )
        public = private.public_key().public_bytes_raw()
        self._facts = _Facts(run, private.private_bytes_raw().hex(), public.hex(), former=former)
        self._pairs = self._round = b""
        return crypto.as_rows([crypto.sign(identity, run, self.name, public)], SIGNED)

    def roster(self, run: str, names: object, keys: object) -> Bytes:
        """Take the keys of all clients, for the whole run; return their hash, and whether they were pinned."""
        facts = self._at(run, "keys")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise Refusal(f"client {self.name}: the names of the clients are not a list of names.")
        n = len(names)
        fewest = max(self.trust.fewest, FEWEST)
        if not fewest <= n <= MOST:
            raise Refusal(
                f"client {self.name}: {n} clients take part; it takes part with {fewest} to {MOST}."
            )
        signed = crypto.rows_of(keys, n, SIGNED)
        own = [index for index, name in enumerate(names) if name == self.name]
        if len(own) != 1 or signed[own[0]][:KEY].hex() != facts.public:
            raise Refusal(
                f"client {self.name}: the list of keys does not have its own key under its name."
            )
        publics = {one[:KEY] for one in signed}
        if (
            len(set(names)) < n
            or len(publics) < n
            or len({one[KEY : 2 * KEY] for one in signed}) < n
        ):
            raise Refusal(f"client {self.name}: two clients of the list have one name or one key.")
        for name, one in zip(names, signed, strict=True):
            if not crypto.is_signed(run, name, one):
                raise Refusal(
                    f"client {self.name}: the key of client {name} is not signed by its owner."
                )
            if (
                self.trust.peers is not None
                and name != self.name
                and self.trust.peers.get(name) != one[KEY : 2 * KEY]
            ):
                raise Refusal(
                    f"client {self.name}: the key of client {name} is not signed with the key pinned for it."
                )
        facts.roster = crypto.roster_of(run, names, signed).hex()
        facts.index, facts.n, roster = own[0], n, bytes.fromhex(facts.roster)
        try:
            own_key = X25519PrivateKey.from_private_bytes(bytes.fromhex(facts.private))
            me = facts.index
            self._pairs = b"".join(
                crypto.pair_key(own_key, one[:KEY], roster, min(me, other), max(me, other))
                for other, one in enumerate(signed)
            )
        except ValueError:  # a point of small order, which leads to the same key with everybody
            raise Refusal(f"client {self.name}: one of the keys is not a key.") from None
        facts.private, facts.step = "", "ready"
        return crypto.as_rows([roster + bytes([self.trust.peers is not None])], KEY + 1)

    # The four steps of a sum.

    def share(self, run: str, number: int) -> tuple[Bytes, Bytes]:
        """Draw two secrets, and deal shares of them: return a row for each client, and the checks of the secrets."""
        facts = self._at(run)
        if facts.step == "keys" or not facts.last < number < 2**31:
            raise Refusal(
                f"client {self.name}: sum {number} comes before the keys, or it was begun before."
            )
        me, n, check = facts.index, facts.n, Checks(bytes.fromhex(facts.roster), number)
        purpose = crypto.digest(b"round", bytes.fromhex(facts.roster), number)
        pairs = (self._pairs[KEY * other : KEY * (other + 1)] for other in range(n))
        self._round = b"".join(
            crypto.derive(pair, purpose, KEY * len(KINDS_OF_KEYS)) for pair in pairs
        )
        secrets = [os.urandom(KEY), os.urandom(KEY)]
        shares = [
            split(int.from_bytes(secret, "big"), n, crypto.threshold(n)) for secret in secrets
        ]
        of_masks = self._keys(MASKS)
        locked = crypto.xor(b"".join(of_masks), crypto.derive(secrets[PAIRS], LOCK))
        nonce, sender, rows = os.urandom(NONCE), _as_sender(me), []
        for other, key in enumerate(self._keys(SHARES)):
            pair = [dealt[other].to_bytes(SHARE_BYTES, "big") for dealt in shares]
            sealed = ChaCha20Poly1305(key).encrypt(nonce, b"".join(pair), sender)
            checks = [check(me, other, kind, share) for kind, share in enumerate(pair)]
            checks.append(check_of_pair(of_masks[other]))
            rows.append(b"".join([nonce, sealed, *checks, locked[KEY * other : KEY * (other + 1)]]))
        facts.last, facts.step = number, "share"
        facts.secrets = [secret.hex() for secret in secrets]
        facts.question, facts.invited, facts.arrived = "", [], []
        of_secrets = [check(me, n, kind, secret) for kind, secret in enumerate(secrets)]
        return crypto.as_rows(rows, DEALT), crypto.as_rows(of_secrets, CHECK)

    def invite(self, run: str, number: int, invited: object, n_shares: int = 1) -> int:
        """Take the list of clients that mask their answers, before anything is computed; return how many they are.

        The noise is divided into ``n_shares`` shares. The list must be so long that as many shares are in the sum even
        if :func:`~flower_fedclust.secure.keys.noise_colluders` clients withhold theirs.
        """
        facts = self._at(run, "share", number)
        facts.least = max(
            n_shares + crypto.noise_colluders(facts.n), self.trust.fewest, crypto.threshold(facts.n)
        )
        facts.invited = self._listed(invited, range(facts.n), "dealt shares")
        return len(facts.invited)

    def mask(self, question: bytes, words: Words) -> Words:
        """Return an answer, masked: bound to the round, the list of clients and the question."""
        facts = self._known
        if facts.step != "share" or not facts.invited:
            raise Refusal(
                f"client {self.name} was asked for a masked answer of a sum to which it was not invited."
            )
        of_self, of_pair = (
            mask_of(kind, facts.invited, question, len(words)) for kind in (SELF, PAIRS)
        )
        masked, keys = words + of_self(bytes.fromhex(facts.secrets[SELF])), self._keys(MASKS)
        for other in facts.invited:
            if facts.index < other:
                masked += of_pair(keys[other])
            elif other < facts.index:
                masked -= of_pair(keys[other])
        facts.question, facts.step = question.hex(), "mask"
        return masked

    def confirm(self, run: str, number: int, arrived: object) -> tuple[Bytes, Bytes]:
        """Take the list of clients whose answers have arrived; return a confirmation for each, and the question."""
        facts = self._at(run, "mask", number)
        listed = self._listed(arrived, facts.invited, "masked their answers")
        named = crypto.list_of(listed).hex()
        if facts.confirmed.setdefault(facts.question, named) != named:
            raise Refusal(
                f"client {self.name}: the same question was asked before, and answered by other clients; the "
                "difference would show single answers."
            )
        facts.arrived, facts.step = listed, "confirm"
        confirmation, keys = self._confirmation(), self._keys(CODES)
        said = crypto.as_rows([confirmation(keys[other], facts.index) for other in listed], CHECK)
        return said, crypto.as_rows([bytes.fromhex(facts.question)], KEY)

    def open(self, run: str, number: int, confirmed: object, forwarded: object) -> Bytes:
        """Return one share of each client, if enough clients have confirmed the same list.

        For a client whose answer has arrived, it is the share of the secret for that client's own mask. For any other
        client, it is the share of the secret for the keys of that client's pairs. Both are never opened.
        """
        facts = self._at(run, "confirm", number)
        said = crypto.rows_of(confirmed, len(facts.arrived), CHECK)
        dealt = crypto.rows_of(forwarded, len(facts.invited), FORWARDED)
        confirmation, keys = self._confirmation(), self._keys(CODES)
        n_agree = sum(
            one == facts.index or compare_digest(row, confirmation(keys[one], one))
            for one, row in zip(facts.arrived, said, strict=True)
        )
        if n_agree < crypto.threshold(facts.n):
            raise Refusal(
                f"client {self.name}: {n_agree} clients have confirmed its list of the answers that arrived; "
                f"{crypto.threshold(facts.n)} have to."
            )
        arrived, keys = set(facts.arrived), self._keys(SHARES)
        check = Checks(bytes.fromhex(facts.roster), number)
        opened = []
        for dealer, row in zip(facts.invited, dealt, strict=True):
            try:
                pair = ChaCha20Poly1305(keys[dealer]).decrypt(
                    row[:NONCE], row[NONCE:SEALED], _as_sender(dealer)
                )
            except InvalidTag:
                opened.append(bytes(OPENED))
                continue
            kind = SELF if dealer in arrived else PAIRS
            share = pair[SHARE_BYTES * kind :][:SHARE_BYTES]
            made = row[SEALED + CHECK * kind :][:CHECK]
            fits = made == check(dealer, facts.index, kind, share)
            opened.append(b"\1" + share if fits else bytes(OPENED))
        facts.step, facts.secrets, self._round = "ready", [], b""
        return crypto.as_rows(opened, OPENED)

    # Helpers of the steps.

    def _at(self, run: str, step: str = "", number: int = 0) -> _Facts:
        """Return the client's memory of a run; a Refusal unless this step of this sum was the last that it took."""
        facts = self._known
        if facts.run != run:
            raise Refusal(f"client {self.name} has no keys for this run; it takes no part.")
        if (step and facts.step != step) or (number and facts.last != number):
            raise Refusal(
                f"client {self.name} was asked for a step of a secure sum that does not follow its last one."
            )
        return facts

    def _keys(self, kind: int) -> list[bytes]:
        """Return this sum's keys of one kind with each client."""
        width = KEY * len(KINDS_OF_KEYS)
        return [self._round[at : at + KEY] for at in range(KEY * kind, len(self._round), width)]

    def _confirmation(self) -> Callable[[bytes, int], bytes]:
        """Return a function from a key and its sender to a confirmation of the list of answers that have arrived."""
        facts = self._known
        said = crypto.digest(
            b"list",
            bytes.fromhex(facts.question),
            crypto.list_of(facts.invited),
            crypto.list_of(facts.arrived),
        )
        return lambda key, sender: crypto.code(key, said + _as_sender(sender))

    def _listed(self, listed: object, among: Sequence[int], what: str) -> list[int]:
        """Check a list of clients from the server: it ascends, and has this client and enough others."""
        facts = self._known
        is_list = isinstance(listed, list) and all(type(one) is int for one in listed)
        found: list[int] = listed if is_list else []  # type: ignore[assignment]
        if (
            not found
            or any(one >= other for one, other in pairwise(found))
            or not set(found) <= set(among)
        ):
            raise Refusal(f"client {self.name}: the list of clients that {what} is none.")
        if facts.index not in found:
            raise Refusal(f"client {self.name} is not in the list of clients that {what}.")
        if len(found) < facts.least:
            raise Refusal(
                f"client {self.name}: {len(found)} clients have {what}; at least {facts.least} have to, or nothing "
                "is opened."
            )
        return found


def _short(run: str) -> str:
    """Return a hash of the name of a run, which a server chooses."""
    return crypto.digest(b"run", run.encode()).hex()[:32]


def _as_sender(place: int) -> bytes:
    """Return the place of a sender as bytes. They bind a message to it: no message can pass as another client's."""
    return place.to_bytes(2, "big")
