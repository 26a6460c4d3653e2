"""Parts of a subject: a row adds its integers over the number of the subject's rows, truncated towards zero.

A subject is a person who may have many rows at a site. Lemma 2f of docs/exact.md: the parts of all rows of a subject
together are no longer than one row may be, in L1, Euclidean and Frobenius norm. So every bound of a row is a bound of a
subject.

Inside :func:`parts_of` every term adds parts. The divisor is one number for all rows of a call: the engine calls an
answer once for each divisor, so no function can give one subject's divisor to another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from flower_fedclust.exact.device import Held, device_of
from flower_fedclust.exact.lemmas import proven

#: A row counts 2^15 units, so that a part of it counts too.
COUNT_BITS = 15

_DIVISOR: ContextVar[int] = ContextVar("divisor", default=1)


@proven("2f")
@contextmanager
def parts_of(divisor: int) -> Iterator[None]:
    """Give terms of rows whose subjects all have this divisor; for the engine only."""
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
    """Divide, and drop what lies behind the point: so no part is longer than its share."""
    device = device_of(integers)
    quotient = device.quotient(integers, divisor)
    return device.xp.trunc(quotient, out=quotient)


def parted(integers: Held) -> Held:
    """Return what the rows add: floats that hold integers below 2^50, over the divisor, truncated.

    A quotient is not rounded up to an integer: with ``a = q n - r`` and r of at least 1, it is at least 1 / n below q,
    and rounding moves it by at most ``q 2^-53``, which is less, as ``q n`` is below 2^53.
    """
    divisor = _DIVISOR.get()
    return integers if divisor == 1 else _truncated_quotient(integers, divisor)


def rooted(integers: Held) -> Held:
    """Return rows for second moments: floats that hold integers of at most 2^20, over the divisor's root, truncated.

    The square of an integer q times n exceeds ``t^2`` by 1 at least, or not at all. So a quotient ``t / sqrt(n)`` below
    q is below it by a part of 2^-42 at least, and root and quotient are rounded by 2^-52 of it together.
    """
    divisor = _DIVISOR.get()
    return integers if divisor == 1 else _truncated_quotient(integers, math.sqrt(divisor))


def count_of_one_row() -> int:
    """Return how many units a row counts."""
    return int(2**COUNT_BITS // _DIVISOR.get())
