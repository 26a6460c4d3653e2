"""Exponentials, logarithms and powers that have the same bits on every machine and in every batch.

NumPy's own differ in the last digit between processors. These use only operations that IEEE 754 rounds alike everywhere
(sums, products and quotients, entry by entry, not fused), integers, and tables computed from integers and decimals.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.blocks import blocks

Floats = NDArray[np.float64]

#: Entries at a time: a few arrays of so many stay in a processor's second cache.
BLOCK_ENTRIES = 2**14

#: Between two powers of two lie 2^11 entries of the table of exponentials.
TABLE_BITS = 11
STEPS = 2**TABLE_BITS

#: Adding this float rounds to an integer, which then stands in the lowest bits of the mantissa.
SHIFT = 1.5 * 2.0**52

#: Within, no power of two leaves the normal range; beyond twice the others an exponential is 0 or infinite.
LEAST, LARGEST, LEAST_HALF, LARGEST_HALF = -708.0, 709.0, -373.0, 355.0

#: A logarithm is computed from the logarithm of the nearest multiple of 1/128.
N_PARTS = 128


def _split(value: Fraction) -> tuple[float, float]:
    """Return a multiple of 2^-41, whose products with integers of 21 bits are exact, and the rest."""
    high = Fraction(math.floor(value * 2**41), 2**41)
    return float(high), float(value - high)


@lru_cache(maxsize=1)
def _exponential_table() -> tuple[NDArray[np.uint64], float, float, float]:
    """Return the bits of ``2^(j / 2048)`` less ``j`` in the place where k is added, ``2048 / ln 2`` and its inverse."""
    precision = 256
    root = 2 << precision
    for _ in range(TABLE_BITS):
        root = math.isqrt(root << precision)
    powers, power = [], 1 << precision
    for _ in range(STEPS):
        powers.append(power / (1 << precision))  # a quotient of integers gives the nearest float
        power = power * root >> precision
    bits = np.array(powers).view(np.uint64) - (
        np.arange(STEPS, dtype=np.uint64) << np.uint64(52 - TABLE_BITS)
    )
    step = _logarithm_of(Fraction(2)) / STEPS
    return bits, float(1 / step), *_split(step)


@lru_cache(maxsize=1)
def _logarithm_table() -> tuple[Floats, Floats, float, float]:
    """Return the logarithms of multiples of 1/128 from 1/2 to 3/2 in two parts, and ln 2 in two parts."""
    parts = [
        _split(_logarithm_of(Fraction(j, N_PARTS))) for j in range(N_PARTS // 2, 3 * N_PARTS // 2)
    ]
    high, low = np.array(parts).T.copy()
    return high, low, *_split(_logarithm_of(Fraction(2)))


def _logarithm_of(value: Fraction) -> Fraction:
    """Return the natural logarithm to 60 digits, for tables that are the same on every machine."""
    with localcontext() as context:
        context.prec = 60
        return Fraction((Decimal(value.numerator) / value.denominator).ln())


def exponential(x: Floats, *, out: Floats | None = None) -> Floats:
    """Return ``e^x``, the same bits on every machine.

    With ``k = rint(2048 x / ln 2) = 2048 e + j`` and a rest r of at most ``ln 2 / 4096``, it is ``2^e 2^(j/2048) e^r``:
    a power of two, an entry of a table, and a polynomial of degree 3. The relative error is below 2^-50 where the
    result is in the normal range. Of x <= 0 the result is at most 1.
    """
    result = np.empty(x.shape) if out is None else out
    if result.shape != x.shape or result.dtype != np.float64 or not result.flags.c_contiguous:
        raise ValueError("out must be a contiguous array of float64 in the shape of x.")
    entries, results = x.reshape(-1), result.reshape(-1)
    scratch = np.empty((3, min(len(entries), BLOCK_ENTRIES)))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for block in blocks(len(entries), 1, block_entries=BLOCK_ENTRIES):
            part = entries[block]
            if part.min() >= LEAST and part.max() <= LARGEST:
                _exponential_within(part, results[block], scratch)
                continue
            far = ~((part >= LEAST) & (part <= LARGEST))
            # The square of e^(x/2), so that a product, which every processor rounds alike, leaves the normal range.
            halves = np.clip(0.5 * part[far], LEAST_HALF, LARGEST_HALF)
            _exponential_within(halves, halves, scratch)
            _exponential_within(np.where(far, 0.0, part), results[block], scratch)
            results[block][far] = halves * halves
    return result


def _exponential_within(x: Floats, out: Floats, scratch: Floats) -> None:
    """Write ``e^x`` to out, which may be x, for x where all powers of two are normal."""
    table, per_step, high, low = _exponential_table()
    shifted, value, rest = scratch[:, : len(x)]
    np.multiply(x, per_step, out=shifted)
    shifted += SHIFT
    np.subtract(shifted, SHIFT, out=value)  # k
    np.multiply(value, high, out=rest)
    np.subtract(x, rest, out=rest)
    value *= low
    rest -= value
    # e^r - 1 = r (1 + r (1/2 + r / 6)), and r^4 / 24 is below 2^-54.
    np.multiply(rest, 1.0 / 6.0, out=value)
    value += 0.5
    value *= rest
    value += 1.0
    value *= rest
    # k moves to where its lowest bits stand over the mantissa's highest, and the others over the exponent.
    bits, index, power = shifted.view(np.uint64), out.view(np.int64), rest.view(np.uint64)
    np.bitwise_and(bits, np.uint64(STEPS - 1), out=out.view(np.uint64))
    np.take(table, index, out=power, mode="clip")
    bits <<= np.uint64(52 - TABLE_BITS)
    power += bits
    value *= rest
    np.add(value, rest, out=out)


def logarithm(x: Floats) -> Floats:
    """Return the natural logarithm, the same bits on every machine.

    With ``x = 2^e m`` and c the multiple of 1/128 next to m, it is ``e ln 2 + ln c + 2 artanh((m - c) / (m + c))``. The
    relative error is below 2^-50, next to 1 as well.
    """
    result = np.empty(x.shape)
    entries, results = x.reshape(-1), result.reshape(-1)
    with np.errstate(invalid="ignore"):
        for block in blocks(len(entries), 1, block_entries=BLOCK_ENTRIES):
            results[block] = _logarithm_within(entries[block])
    special = ~((entries > 0) & (entries < np.inf))
    if special.any():
        of = entries[special]
        results[special] = np.where(of == 0, -np.inf, np.where(of > 0, np.inf, np.nan))
    return result


def _logarithm_within(x: Floats) -> Floats:
    """Return the logarithm of positive, normal floats ``x = 2^e m``, where m is near an entry c of the table.

    It is ``e ln 2 + ln c + ln(m / c)``. The last part is a short series in ``(m - c) / (m + c)``, and the logarithms of
    2 and c are stored in two parts, so that rounding takes little from the sum.
    """
    table_high, table_low, high, low = _logarithm_table()
    mantissa, exponent = np.frexp(x)
    # From 0.7 to 1.4, so that e ln 2 and ln c never nearly cancel.
    small = mantissa < 0.70703125
    mantissa = np.where(small, 2.0 * mantissa, mantissa)
    whole = (exponent - small).astype(np.float64)
    nearest = np.rint(mantissa * N_PARTS)
    index = nearest.astype(np.intp) - N_PARTS // 2
    nearest *= 1.0 / N_PARTS
    ratio = (mantissa - nearest) / (mantissa + nearest)
    square = ratio * ratio
    tail = ratio * square * (2.0 / 3.0 + square * (2.0 / 5.0 + square * (2.0 / 7.0)))
    tail += whole * low + table_low.take(index, mode="clip")
    found: Floats = (whole * high + table_high.take(index, mode="clip")) + (2.0 * ratio + tail)
    return found


def power(base: Floats, exponent: float) -> Floats:
    """Return ``base ** exponent``, the same bits on every machine.

    ``e^(exponent ln base)``: the relative error is below 2^-40 where the result is in the normal range.
    """
    if exponent == 0:
        return np.ones(base.shape)
    logarithms = logarithm(base)
    with np.errstate(over="ignore"):
        logarithms *= exponent
    return exponential(logarithms, out=logarithms)
