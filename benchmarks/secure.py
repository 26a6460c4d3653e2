"""What a secure sum costs a client, in processor seconds and bytes, and 100 clients of one process.

python benchmarks/secure.py

One client is real. What the others would send it is made with the keys that it shares with them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import header
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from flower_fedclust.secure import SecureClient, SecureServer
from flower_fedclust.secure.client import (
    CHECK,
    CODES,
    NONCE,
    OPENED,
    PAIRS,
    SELF,
    SHARES,
    Checks,
    _as_sender,
)
from flower_fedclust.secure.keys import SIGNED, as_rows, is_signed, sign
from flower_fedclust.secure.shamir import SHARE_BYTES

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "secure"))

from secure_runs import begun, clients_of, confirm, mask, masked, open_shares, share, words_of

RUN = "a run"


def timed(work: Callable[[], object], times: list[float]) -> object:
    start = time.process_time()
    found = work()
    times.append(time.process_time() - start)
    return found


def signed(name: str) -> bytes:
    public = X25519PrivateKey.generate().public_key().public_bytes_raw()
    return sign(Ed25519PrivateKey.generate(), RUN, name, public)


def forwarded(client: SecureClient, n: int, number: int) -> np.ndarray:
    """Return the shares that the others would have dealt to the first client."""
    roster, rows, keys = bytes.fromhex(client._facts.roster), [], client._keys(SHARES)
    check = Checks(roster, number)
    for other in range(n):
        shares, nonce = (
            [bytes([0]) + os.urandom(SHARE_BYTES - 1) for _ in (SELF, PAIRS)],
            os.urandom(NONCE),
        )
        sealed = ChaCha20Poly1305(keys[other]).encrypt(nonce, b"".join(shares), _as_sender(other))
        checks = [check(other, 0, kind, one) for kind, one in enumerate(shares)]
        rows.append(b"".join([nonce, sealed, *checks]))
    return as_rows(rows, len(rows[0]))


def of_one_client(n: int, n_entries: int, repeats: int = 3) -> tuple[float, float, int, int]:
    """Return the seconds of a run's first two steps, and of a sum; the bytes of these, to and from the client."""
    names = [f"site {index}" for index in range(n)]
    first, each, server = [], [], SecureServer(RUN)
    for repeat in range(repeats):
        is_signed.cache_clear()
        times: list[float] = []
        client = SecureClient(names[0])
        own = timed(lambda: client.keys(RUN), times)  # noqa: B023
        keys = np.concatenate([own, *(as_rows([signed(name)], SIGNED) for name in names[1:])])
        timed(lambda: client.roster(RUN, names, keys), times)  # noqa: B023
        first.append(sum(times))
        times, number, everybody = [], repeat + 1, list(range(n))
        words = np.zeros(n_entries, np.uint64)
        dealt, checks = timed(lambda: client.share(RUN, number), times)  # noqa: B023
        answer = timed(lambda: masked(client, server, everybody, words, number), times)  # noqa: B023
        said, asked = timed(lambda: client.confirm(RUN, number, everybody), times)  # noqa: B023
        confirmation = client._confirmation()
        confirmed = as_rows(
            [confirmation(key, one) for one, key in enumerate(client._keys(CODES))], CHECK
        )
        shares = forwarded(client, n, number)
        opened = timed(lambda: client.open(RUN, number, confirmed, shares), times)  # noqa: B023
        assert opened[:, 0].all()
        assert opened.shape == (n, OPENED)
        each.append(sum(times))
    up = dealt.nbytes + checks.nbytes + answer.nbytes + said.nbytes + asked.nbytes + opened.nbytes
    return min(first), min(each), up, confirmed.nbytes + shares.nbytes


def inline(n: int, n_entries: int, repeats: int = 5) -> tuple[float, float]:
    """Return the seconds of all clients and the server of one process: of the first two steps, and of a sum."""
    clients, first, each = clients_of(n), [], []
    start = time.process_time()
    server = begun(clients)
    first.append(time.process_time() - start)
    words = words_of(clients, n_entries)
    for number in range(1, repeats + 1):
        start = time.process_time()
        share(server, clients, number)
        mask(server, clients, words, number, question=b"%d" % number)
        confirm(server, clients, number)
        open_shares(server, clients, number)
        server.total()
        each.append(time.process_time() - start)
    return min(first), min(each)


def size(n_bytes: int) -> str:
    return f"{n_bytes / 1e3:.0f} kB" if n_bytes < 1e6 else f"{n_bytes / 1e6:.1f} MB"


def main() -> None:
    print(header())
    print(
        "| clients | entries | seconds: keys | seconds: sum | from a client | to a client, besides the question |"
    )
    print("|---|---|---|---|---|---|")
    for n in (10, 100, 1000):
        for n_entries in (100, 10_000, 300_000):
            first, each, up, down = of_one_client(n, n_entries)
            print(
                f"| {n:,} | {n_entries:,} | {first:.3f} | {each:.3f} | {size(up)} | {size(down)} |"
            )
    first, each = inline(100, 1000)
    print(
        f"100 clients of one process, 1,000 entries: {first:.2f} s for the keys, {each:.2f} s for a sum"
    )


if __name__ == "__main__":
    main()
