"""Guarantees for subjects: a row adds only a part of its integers, divided by the number of its subject's rows.

A subject is a person who may have many rows at a site. The quotients, called parts, are truncated towards zero. By
Lemma 2f of docs/exact.md, the parts of all rows of a subject together are no longer than one row may be, in L1,
Euclidean and Frobenius norm. So every bound on a row is also a bound on a subject.

Inside :func:`parts_of` every term adds parts. All rows of a call have the same divisor: the engine calls an answer once
for each divisor, so no function can confuse the divisors of two subjects.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from flower_fedclust.exact.device import Held, device_of
from flower_fedclust.exact.lemmas import proven

#: Counts are in units of 2^-15: a row counts 2^15 units, so that a part of a row is not truncated to 0.
COUNT_BITS = 15

_DIVISOR: ContextVar[int] = ContextVar("divisor", default=1)


@proven("2f")
@contextmanager
def parts_of(divisor: int) -> Iterator[None]:
    """Divide what rows add to terms by this divisor, which all of their subjects have; for the engine only."""
    if type(divisor) is not int or divisor < 1:
        raise ValueError(
            f"the divisor of a row is {divisor!r}; it must be an integer of at least 1."
        )
    token = _DIVISOR.set(divisor)
    try:
        yield
    finally:
        _DIVISOR.reset(token)


def divisor() -> int:
    """Return the divisor of the rows that are added up now."""
    return _DIVISOR.get()


def _truncated_quotient(integers: Held, divisor: float) -> Held:
    """Divide and truncate towards zero, so that no part is longer than its share."""
    device = device_of(integers)
    quotient = device.quotient(integers, divisor)
    return device.xp.trunc(quotient, out=quotient)


def parted(integers: Held) -> Held:
    """Return what the rows add: integers below 2^50 (as floats), divided by the divisor and truncated.

    Rounding never raises a quotient to an integer. If ``a = q n - r`` with r of at least 1, then ``a / n`` is at least
    ``1 / n`` below q. Rounding changes it by at most ``q 2^-53``, which is less because ``q n`` is below 2^53.
    """
    divisor = _DIVISOR.get()
    return integers if divisor == 1 else _truncated_quotient(integers, divisor)


def rooted(integers: Held) -> Held:
    """Return rows for second moments: integers t of at most 2^20 (as floats), divided by the root of n and truncated.

    n is the divisor. Rounding never raises a quotient to an integer q: if ``t / sqrt(n)`` is below q, then ``q^2 n``
    exceeds ``t^2`` by at least 1, and the quotient is smaller than q by a fraction of at least 2^-42. Rounding the root
    and the quotient changes it by a fraction of at most 2^-52.
    """
    divisor = _DIVISOR.get()
    return integers if divisor == 1 else _truncated_quotient(integers, math.sqrt(divisor))


def count_of_one_row() -> int:
    """Return how many units of 2^-15 a row counts: fewer if its subject has several rows."""
    return int(2**COUNT_BITS // _DIVISOR.get())
