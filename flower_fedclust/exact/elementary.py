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

#: Entries that are computed at a time: a few arrays of this size fit into a processor's second-level cache.
BLOCK_ENTRIES = 2**14

#: The table of exponentials has 2^TABLE_BITS entries between two powers of two; STEPS is this number.
TABLE_BITS = 11
STEPS = 2**TABLE_BITS

#: Adding this float to another one rounds it to an integer, which is then in the lowest bits of the sum's mantissa.
SHIFT = 1.5 * 2.0**52

#: For x from LEAST to LARGEST, e^x and the powers of two in its computation are normal floats. Below 2 LEAST_HALF e^x
#: is 0, and above 2 LARGEST_HALF it is infinite.
LEAST, LARGEST, LEAST_HALF, LARGEST_HALF = -708.0, 709.0, -373.0, 355.0

#: A logarithm is computed from the logarithm of the nearest multiple of 1/128.
N_PARTS = 128


def _split(value: Fraction) -> tuple[float, float]:
    """Split a number into a multiple of 2^-41, whose products with small integers are exact, and the rest."""
    high = Fraction(math.floor(value * 2**41), 2**41)
    return float(high), float(value - high)


@lru_cache(maxsize=1)
def _exponential_table() -> tuple[NDArray[np.uint64], float, float, float]:
    """Return the table of exponentials, ``2048 / ln 2``, and ``ln 2 / 2048`` in two parts.

    Entry j has the bits of the float ``2^(j / 2048)``, less j shifted to where :func:`_exponential_within` adds k.
    """
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
    """Return the logarithms of the multiples of 1/128 from 1/2 to 3/2, and ln 2, each as a high and a low part."""
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

    With ``k = rint(2048 x / ln 2) = 2048 e + j`` and a rest r of at most ``ln 2 / 4096``, ``e^x`` is
    ``2^e 2^(j/2048) e^r``: a power of two, an entry of a table, and a polynomial of degree 3. The relative error is
    below 2^-50 where the result is in the normal range. For x <= 0 the result is at most 1.
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
            # e^x as the square of e^(x/2): only this product can leave the normal range, and every processor rounds a
            # product alike.
            halves = np.clip(0.5 * part[far], LEAST_HALF, LARGEST_HALF)
            _exponential_within(halves, halves, scratch)
            _exponential_within(np.where(far, 0.0, part), results[block], scratch)
            results[block][far] = halves * halves
    return result


def _exponential_within(x: Floats, out: Floats, scratch: Floats) -> None:
    """Write ``e^x`` to ``out``, which may be x itself; x must lie between LEAST and LARGEST."""
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
    # Shift k: its lowest 11 bits line up with the highest bits of the mantissa, and the others with the exponent.
    bits, index, power = shifted.view(np.uint64), out.view(np.int64), rest.view(np.uint64)
    np.bitwise_and(bits, np.uint64(STEPS - 1), out=out.view(np.uint64))
    np.take(table, index, out=power, mode="clip")
    bits <<= np.uint64(52 - TABLE_BITS)
    power += bits
    value *= rest
    np.add(value, rest, out=out)


def logarithm(x: Floats) -> Floats:
    """Return the natural logarithm, the same bits on every machine.

    With ``x = 2^e m`` and the multiple c of 1/128 that is nearest to m, the logarithm is
    ``e ln 2 + ln c + 2 artanh((m - c) / (m + c))``. The relative error is below 2^-50, also for x near 1.
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

    The logarithm is ``e ln 2 + ln c + ln(m / c)``. The last summand is a short series in ``(m - c) / (m + c)``. The
    logarithms of 2 and c are stored as a high and a low part each, so that the sum loses little by rounding.
    """
    table_high, table_low, high, low = _logarithm_table()
    mantissa, exponent = np.frexp(x)
    # The mantissa is moved to between 0.7 and 1.4, so that e ln 2 and ln c never nearly cancel.
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

    It is ``e^(exponent ln base)``, with a relative error below 2^-40 where the result is in the normal range.
    """
    if exponent == 0:
        return np.ones(base.shape)
    logarithms = logarithm(base)
    with np.errstate(over="ignore"):
        logarithms *= exponent
    return exponential(logarithms, out=logarithms)
