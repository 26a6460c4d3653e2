"""Shamir's scheme: a secret below 2^256 in shares. Any ``threshold`` shares give it back; fewer reveal nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from operator import add

#: The smallest prime above 2^256: a secret of 32 bytes is below it.
PRIME = 2**256 + 297

#: Bytes of a share.
SHARE_BYTES = 33

#: The differences are reduced modulo PRIME once in so many additions, so that the numbers stay short.
STEPS = 64


def split(secret: int, n_shares: int, threshold: int) -> list[int]:
    """Return the values at 1, ..., n of a random polynomial of degree ``threshold - 1`` that is the secret at 0.

    The polynomial is given by its random differences d_j at 0: f(x) is the sum of d_j times (x choose j). It is as
    uniform as with random coefficients, and its values at all points take only additions.
    """
    # Each number is drawn with about 128 bits more than the prime has, so that its remainder is uniform up to 2^-127.
    drawn = os.urandom(48 * (threshold - 1))
    random = (int.from_bytes(drawn[at : at + 48], "big") % PRIME for at in range(0, len(drawn), 48))
    differences = [secret, *random, *[0] * (n_shares + 1 - threshold)]
    shares = []
    for point in range(1, n_shares + 1):
        differences = list(map(add, differences, differences[1:]))
        if point % STEPS == 0:
            differences = [value % PRIME for value in differences]
        shares.append(differences[0] % PRIME)
    return shares


def join(shares: Mapping[int, int]) -> int:
    """Return the secret from shares, given by point; there must be at least ``threshold`` of them."""
    points = tuple(sorted(shares))
    return (
        sum(weight * shares[point] for point, weight in zip(points, _weights(points), strict=True))
        % PRIME
    )


@lru_cache(maxsize=8)
def _weights(points: tuple[int, ...]) -> list[int]:
    """Return Lagrange's weights, by which the value at 0 is the weighted sum of the values at these points."""
    weights = []
    for point in points:
        above = below = 1
        for other in points:
            if other != point:
                above, below = above * other % PRIME, below * (other - point) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights
