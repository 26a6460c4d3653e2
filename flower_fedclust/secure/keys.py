"""Keys, derived keys, masks and checks of secure sums: every primitive comes from ``cryptography``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from numpy.typing import NDArray

from flower_fedclust.numerics.checks import DataError

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]

#: Part of every derived key, signature and check, so that versions of the protocol cannot be mixed.
VERSION = b"flower-fedclust secure sums 1"

KEY = 32  #: Bytes of a key.
#: Bytes of a check: to find a second value with the same check takes about 2^128 attempts.
CHECK = 16
SIGNED = 128  #: Bytes of a signed key: the key, the identity, the signature.

#: The fewest clients in a sum. Of two clients, each would learn the other's answer: the sum minus its own answer.
FEWEST = 3

#: With more clients than this, a client would deal shares for seconds; see docs/secure.md.
MOST = 1000

_SHA256 = SHA256()


def threshold(n_clients: int) -> int:
    """Return how many clients have to open shares: more than two thirds, so that two lists cannot both be opened."""
    return 2 * n_clients // 3 + 1


def tolerated(n_clients: int) -> int:
    """Return how many clients may help an active server without breaking the protection."""
    return 2 * threshold(n_clients) - n_clients - 1


def noise_colluders(n_clients: int) -> int:
    """Return how many clients may withhold their noise, or tell it to the server: a tenth, and at least one."""
    return max(1, n_clients // 10)


def bound(*parts: bytes | int) -> bytes:
    """Return parts as bytes, in an encoding that no other parts share."""
    pieces = (part.to_bytes(8, "big") if isinstance(part, int) else part for part in parts)
    return b"".join(len(piece).to_bytes(4, "big") + piece for piece in pieces)


def digest(*parts: bytes | int) -> bytes:
    """Return a hash of parts."""
    return hashlib.sha256(bound(VERSION, *parts)).digest()


def derive(key: bytes, purpose: bytes, length: int = KEY) -> bytes:
    """Return the key that follows from ``key`` for one purpose; the purpose is a hash from :func:`digest`."""
    return HKDFExpand(_SHA256, length, purpose).derive(key)


def code(key: bytes, message: bytes) -> bytes:
    """Return a check (an authentication code) of a message. Nobody can make it without the key."""
    return hashlib.blake2b(message, key=key, digest_size=CHECK).digest()


def pair_key(own: X25519PrivateKey, other: bytes, roster: bytes, low: int, high: int) -> bytes:
    """Return the key of an ordered pair of clients for one run, from a private and the other public key."""
    agreed = own.exchange(X25519PublicKey.from_public_bytes(other))
    return HKDF(_SHA256, KEY, roster, bound(VERSION, b"pair", low, high)).derive(agreed)


def stream(key: bytes, n_bytes: int) -> bytes:
    """Return the key stream of ChaCha20; a key is used for one stream."""
    return Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(n_bytes))


def mask(key: bytes, n_words: int) -> Words:
    """Return a mask: ``n_words`` uniform 64-bit words."""
    return np.frombuffer(stream(key, 8 * n_words), dtype="<u8").astype(np.uint64, copy=False)


def drawn(key: bytes, marks: Words) -> Words:
    """Return a number for each row of ``marks``, which has an even number of columns.

    The numbers come from CBC-MAC with AES, computed for all rows at once. Equal rows get the same number. Without the
    key, the numbers of different rows look independent and random.
    """
    cipher = Cipher(algorithms.AES(key), modes.ECB())
    state = np.zeros((len(marks), 2), dtype="<u8")
    for start in range(0, marks.shape[1], 2):
        block = np.ascontiguousarray(state ^ marks[:, start : start + 2], dtype="<u8")
        state = np.frombuffer(cipher.encryptor().update(block.tobytes()), dtype="<u8").reshape(
            -1, 2
        )
    return state[:, 0].astype(np.uint64)


def xor(data: bytes, key: bytes) -> bytes:
    """Encrypt, or decrypt, under a key that is used once."""
    return (
        np.frombuffer(data, np.uint8) ^ np.frombuffer(stream(key, len(data)), np.uint8)
    ).tobytes()


def sign(identity: Ed25519PrivateKey, run: str, name: str, public: bytes) -> bytes:
    """Return a public key of a run, signed by its owner."""
    signature = identity.sign(bound(VERSION, b"key", run.encode(), name.encode(), public))
    return public + identity.public_key().public_bytes_raw() + signature


@lru_cache(maxsize=4096)  # thousands of simulated clients check the same signatures
def is_signed(run: str, name: str, signed: bytes) -> bool:
    """Return whether a signed key is its owner's for this run."""
    public, identity, signature = signed[:KEY], signed[KEY : 2 * KEY], signed[2 * KEY :]
    try:
        message = bound(VERSION, b"key", run.encode(), name.encode(), public)
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def roster_of(run: str, names: Sequence[str], signed: Sequence[bytes]) -> bytes:
    """Return the hash of a run and of its clients with their keys: every derived key of the run depends on it."""
    return digest(b"roster", run.encode(), *(name.encode() for name in names), *signed)


def list_of(clients: Iterable[int]) -> bytes:
    """Return the hash of a list of clients."""
    return digest(b"list", np.array(sorted(clients), dtype="<u4").tobytes())


def rows_of(array: object, n_rows: int, width: int) -> list[bytes]:
    """Return the rows of another party's array of bytes; raise a DataError if it has another form."""
    if (
        not isinstance(array, np.ndarray)
        or array.dtype != np.uint8
        or array.shape != (n_rows, width)
    ):
        raise DataError("an array of a secure sum has another type or shape than its step needs.")
    whole = np.ascontiguousarray(array).tobytes()
    return [whole[at : at + width] for at in range(0, n_rows * width, width)]


def as_rows(rows: Sequence[bytes], width: int) -> Bytes:
    """Return byte strings of equal length as the rows of an array."""
    return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), width)
