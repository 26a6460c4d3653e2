"""Sums of binary exponents, from which a server chooses the unit of the rows' grid if a strategy has no radius.

The largest exponent of any entry gives a first grid, on which the rows are added up to find the origin. The distance of
the farthest row from the origin then gives the unit, so that no row is clipped. No mechanism protects these sums: only
strategies without a guarantee use them, and they are declared as unprotected.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact.capacity import entry_bits
from flower_fedclust.exact.grid import BLOCK_ENTRIES, ENTRY_BITS, rounded_norms
from flower_fedclust.numerics.blocks import blocks

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: The bits of entries that are only added up, by default: float64 holds the sum of 2^15 such entries exactly.
SUM_BITS = ENTRY_BITS - 2

#: The exponent that stands for a table of zeros. Every other table of finite floats has an exponent of at least -1074.
LEAST_EXPONENT = -1100
#: The number of exponents from there on. The last one, 1139, is larger than that of any row's norm.
N_EXPONENTS = 2240


def table_exponent(rows: Floats) -> int:
    """Return the smallest exponent e with every entry at most 2^e; LEAST_EXPONENT if all entries are 0."""
    mantissa, exponent = math.frexp(_largest(rows))
    return exponent - (mantissa == 0.5) if mantissa else LEAST_EXPONENT


def _largest(array: Floats) -> float:
    """Return the largest magnitude of an entry; 0 if there are no entries."""
    return max(float(array.max(initial=0.0)), -float(array.min(initial=0.0)))


def sum_bits() -> int:
    """Return the bits of entries that are only added up: :data:`SUM_BITS`, or fewer if there may be more rows."""
    return entry_bits() - (ENTRY_BITS - SUM_BITS)


def entry_sums(rows: Floats, exponent: int) -> Integers:
    """Return the sum of the rows, whose entries are first truncated to multiples of ``2**(exponent - sum_bits())``."""
    bits = sum_bits()
    most, power = 2.0**bits, bits - exponent
    # A product gives the same as ldexp in a tenth of the time.
    scale = math.ldexp(1.0, power) if -1022 <= power <= 1022 else None
    sums = np.zeros(rows.shape[1], dtype=np.int64)
    for block in blocks(
        len(rows), rows.shape[1], block_entries=min(BLOCK_ENTRIES, 2**14 * rows.shape[1])
    ):
        with np.errstate(over="ignore"):
            whole = np.ldexp(rows[block], power) if scale is None else rows[block] * scale
        np.clip(np.trunc(whole, out=whole), -most, most, out=whole)
        # 2^15 entries of 2^38 are exact in any order.
        sums += whole.sum(axis=0).astype(np.int64)
    return sums


def reach_exponent(rows: Floats, origin: Floats | float = 0.0) -> int:
    """Return an exponent e such that no row is farther than 2^e from the origin: the smallest, or one more.

    ``rows_within(rows, origin, e - 25)`` then clips no row. Norms are Euclidean, and computed exactly from integers
    that were rounded away from zero. If a table has entries above 2^500, differences below 2^-560 are lost, and may be
    clipped.
    """
    origin = np.broadcast_to(origin, rows.shape[1:])
    largest = max(_largest(rows), _largest(origin))
    # One power of two for all, so that no difference overflows or is denormal.
    shift = -512 if largest >= 2.0**500 else 512 if largest < 2.0**-400 else 0
    farthest, reach = 0.0, LEAST_EXPONENT
    for block in blocks(len(rows), rows.shape[1], block_entries=BLOCK_ENTRIES):
        offsets = (
            rows[block] - origin if shift == 0 else rows[block] * 2.0**shift - origin * 2.0**shift
        )
        norms = np.einsum("ij,ij->i", offsets, offsets)
        farthest = max(farthest, float(norms.max()))
        far = offsets[norms >= farthest * _part_of_longest(rows.shape[1])]
        if farthest < 2.0**-900:  # squares may be denormal: too inexact to compare
            far = offsets
        if not len(far):
            continue
        power, _, squares = rounded_norms(far, 2)
        # The smallest e with squares <= 4^e: frexp says exactly where a power of two is reached.
        mantissas, exponents = np.frexp(squares)
        reaches = (exponents - (mantissas == 0.5) + 1) // 2 - power - shift
        reach = max(reach, int(np.where(squares > 0, reaches, LEAST_EXPONENT).max()))
    return reach


def _part_of_longest(n_columns: int) -> float:
    """Return the fraction of the largest squared norm below which a row cannot have the largest rounded norm.

    :func:`rounded_norms` adds at most ``2^(1 - bits)`` of the largest entry to each entry, so a norm grows by a
    fraction of at most ``2 sqrt(n_columns) 2^-bits``. Rounding takes time, so only the few rows above the returned
    fraction are rounded.
    """
    bits = (53 - (n_columns - 1).bit_length()) // 2
    return max(1.0 - 2.0 * math.sqrt(n_columns) * 2.0**-bits - 2.0**-40, 0.0) ** 2


def exponent_indicator(exponent: int) -> Integers:
    """Return a client's exponent as a vector with a single 1; a sum over clients is a histogram."""
    indicator = np.zeros(N_EXPONENTS, dtype=np.int64)
    indicator[exponent - LEAST_EXPONENT] = 1
    return indicator


def largest_exponent(total: Integers) -> int:
    """Return the largest exponent of any client, from the sum of the clients' :func:`exponent_indicator`."""
    return int(np.flatnonzero(total)[-1]) + LEAST_EXPONENT
