"""Rows on a grid: integers, so that sums and products of rows are exact, on every machine and in every batch.

The rounding of a float product depends on the processor and on the other rows in the batch, so a tie between clusters
could be decided by another row. Here a row becomes integers in a public unit, computed from that row alone. Their norm
is so small that every later sum and product is exact in float64: below 2^53 no order of additions, no fused
multiplication and no kernel changes a bit.

The arrays are float64 that hold integers, as BLAS wants them, and sums are int64. Rows may lie on another device
(exact/device.py), which gives the same bits. A zero may carry either sign. A unit
is a power of two, and is given as its exponent: ``unit = 2**exponent``.

"From that row alone" holds because only these operations are used: subtraction, multiplication, division and square
root, entry by entry, which every processor rounds alike; maxima, which have no order; exact sums of integers; and sums
of non-negative integers that are only compared with a limit below 2^53. (Such a sum is exact below 2^53, and rounding
is monotone, so a sum that reaches 2^53 never falls below it, in any order.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact.constant import made_once
from flower_fedclust.exact.device import HOST, Held, device_of
from flower_fedclust.exact.lemmas import proven
from flower_fedclust.numerics.blocks import blocks

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Rows and points have a norm of at most 2^25 units: an inner product is at most 2^50, a squared distance 2^52.
BITS = 25

#: One row adds at most 2^40 units to an entry of any sum.
ENTRY_BITS = 40
#: No client has more rows, so no sum over rows overflows an int64. A run may allow more rows, with fewer bits for each
#: (exact/capacity.py). ClientData checks the bound when it gets the rows, before any question: a client that refused an
#: answer because it has too many rows would reveal something about their number, which is not public.
MOST_ROWS = 2 ** (63 - ENTRY_BITS) - 1

#: Entries that are put on the grid at a time: 256 kB of float64, which stays in a processor's cache.
BLOCK_ENTRIES = 2**15


@dataclass(frozen=True, eq=False)
class GridArray:
    """Integers in a public unit: the form of every array that is summed over clients or that noise is added to.

    Parameters
    ----------
    integers : ndarray
        Of any shape; floats that hold integers become int64, as truth values do.
    exponent : int, default=0
        The exponent of the unit, which is ``2**exponent``. Counts have the unit 1.
    """

    integers: Integers
    exponent: int = 0

    def __init__(self, integers: Floats | Integers | NDArray[np.bool_], exponent: int = 0) -> None:
        object.__setattr__(self, "integers", np.asarray(integers).astype(np.int64, copy=False))
        object.__setattr__(self, "exponent", exponent)

    @classmethod
    def clipped(cls, array: Floats, bound: float, *, norm: int = 2) -> GridArray:
        """Return a whole array clipped to a norm, in a unit that follows from it: see :func:`array_onto_grid`."""
        return cls(*array_onto_grid(array, bound, norm=norm))

    @classmethod
    def truncated(cls, array: Floats, exponent: int) -> GridArray:
        """Truncate an array to a given unit; entries beyond 2^53 units are cut, and NaN becomes 0.

        Only for arrays whose norm no guarantee depends on.
        """
        with np.errstate(over="ignore"):
            whole = np.trunc(
                np.ldexp(np.nan_to_num(array, posinf=np.inf, neginf=-np.inf), -exponent)
            )
        return cls(np.clip(whole, -(2.0**53), 2.0**53), exponent)

    @cached_property
    def largest(self) -> int:
        """The largest magnitude of an integer; 0 if there are no integers."""
        return max(int(self.integers.max(initial=0)), -int(self.integers.min(initial=0)))

    @property
    def values(self) -> Floats:
        """The array in the units of the data."""
        return from_units(self.integers, self.exponent)

    def refined(self, exponent: int) -> GridArray:
        """Return the same array in a finer unit; integers that then exceed 63 bits wrap around, as sums do."""
        return GridArray(np.left_shift(self.integers, self.exponent - exponent), exponent)


def unit_exponent(bound: float, *, bits: int = BITS) -> int:
    """Return the exponent of the smallest power of two u with ``bound <= 2**bits * u``."""
    if not 0 < bound < math.inf:
        raise ValueError(f"the bound is {bound}; it must be positive and finite to have a grid.")
    mantissa, exponent = math.frexp(bound)  # mantissa in [1/2, 1)
    return exponent - (mantissa == 0.5) - bits


def from_units(integers: Floats | Integers, exponent: int) -> Floats:
    """Return integers in the units of the data: ``integers * 2**exponent``."""
    floats = np.asarray(integers, dtype=np.float64)
    # The product gives the same as ldexp in a tenth of the time.
    return np.asarray(
        floats * math.ldexp(1.0, exponent)
        if -1022 <= exponent <= 1023
        else np.ldexp(floats, exponent)
    )


@lru_cache(maxsize=256)
def ball_in_units(radius: float, norm: int, exponent: int) -> tuple[float, float]:
    """Return the radius in units, and the largest integer that a row's norm may be (for norm 2: its squared norm)."""
    if norm not in (1, 2):
        raise ValueError(f"norm is {norm}; it must be 1 or 2.")
    bound = Fraction(radius) / Fraction(2) ** exponent
    return float(bound), float(math.floor(bound**norm))


@proven("0")
def rows_onto_grid(
    rows: Held, origin: Floats, radius: float, *, norm: int = 2, out: Held = None
) -> tuple[Held, int]:
    """Move rows by a public origin, clip them to a ball around it, and truncate them to integers in a public unit.

    The integer norm of every row is at most the radius, exactly: adding or removing a row changes a sum by no more. A
    row inside the ball (once it is truncated, which makes it shorter) is only truncated. Every other row is scaled down
    to the radius and truncated towards zero. The integers are written to ``out``, if it is given.
    """
    exponent = unit_exponent(radius)
    return truncated_to_ball(
        rows, origin, exponent, *ball_in_units(float(radius), norm, exponent), norm, out
    ), exponent


def rows_within(rows: Floats, origin: Floats, exponent: int, *, norm: int = 2) -> Floats:
    """Put rows onto the grid of a known unit, clipped to 2^25 units.

    This is for strategies without a radius, which choose the unit with :func:`reach_exponent`, and for public points
    such as centers, which have to be on the grid of the rows.
    """
    on_grid: Floats = truncated_to_ball(
        rows, origin, exponent, 2.0**BITS, 2.0 ** (BITS * norm), norm
    )
    return on_grid


@made_once
def points_onto_grid(points: Floats, exponent: int) -> Floats:
    """Put public points onto the grid of the rows; the points are in the same coordinates as the rows on that grid."""
    on_grid = rows_within(np.asarray(points, dtype=np.float64), np.zeros(points.shape[1]), exponent)
    on_grid.flags.writeable = False
    return on_grid


def array_onto_grid(array: Floats, bound: float, *, norm: int = 2) -> tuple[Floats, int]:
    """Clip a whole array to a norm and truncate it to integers in a unit of its own: one client's contribution."""
    on_grid, exponent = rows_onto_grid(array.reshape(1, -1), np.zeros(1), bound, norm=norm)
    return on_grid.reshape(array.shape), exponent


def truncated_to_ball(
    rows: Held,
    origin: Floats | None,
    exponent: int,
    bound: float,
    limit: float,
    norm: int,
    out: Held = None,
) -> Held:
    """Return ``rows - origin`` in units, truncated, and clipped to the bound if the integer norm exceeds the limit.

    Without an origin nothing is subtracted. A difference that overflows is infinite and never NaN, because rows and
    origin are finite.
    """
    device = device_of(rows)
    on_grid = device.empty(rows.shape) if out is None else out
    held_origin = None if origin is None else device.hold(origin)
    with np.errstate(over="ignore", invalid="ignore"):
        for block in blocks(
            len(rows), max(1, rows.shape[1]), block_entries=device.entries(BLOCK_ENTRIES)
        ):
            part, in_units = on_grid[block], rows[block]
            if held_origin is not None:
                in_units = device.xp.subtract(in_units, held_origin, out=part)
            if exponent:
                in_units = _in_units(in_units, exponent, part)
            device.xp.trunc(in_units, out=part)
            # Written as "not within", so that NaN counts as too long.
            long = ~(integer_norms(part, norm) <= limit)
            if long.any():
                from_here = np.zeros(rows.shape[1]) if origin is None else origin
                part[long] = _clipped(rows[block][long], from_here, exponent, bound, limit, norm)
    return on_grid


def _in_units(rows: Held, exponent: int, out: Held) -> Held:
    """Divide rows by the unit ``2**exponent``."""
    device = device_of(rows)
    if -1022 <= exponent <= 1022:
        return device.xp.multiply(rows, math.ldexp(1.0, -exponent), out=out)
    # Rows may be denormal, or near the largest float.
    out[:] = device.hold(np.ldexp(device.host(rows), -exponent))
    return out


def integer_norms(rows: Held, norm: int) -> Held:
    """Return the L1 norms of rows of integers or, for norm 2, the squares of their norms: exact below 2^53."""
    return abs(rows).sum(axis=1) if norm == 1 else device_of(rows).square_norms(rows)


def _clipped(
    rows: Held, origin: Floats, exponent: int, bound: float, limit: float, norm: int
) -> Held:
    """Scale rows that are too long down to the bound, and truncate them.

    Their distance from the origin is at least 2^24 units. If rounding leaves a row longer than the limit, each of its
    entries loses one unit.
    """
    extreme = 2.0**500
    device = device_of(rows)
    if (
        exponent > -400
        and -extreme < rows.min() <= rows.max() < extreme
        and np.abs(origin).max() < extreme
    ):
        on_grid = scaled_to(rows - device.hold(origin), bound, norm)
    elif device is not HOST:
        return device.hold(_clipped(device.host(rows), origin, exponent, bound, limit, norm))
    else:
        # One power of two for a row and the origin prevents overflow and denormal numbers. It is 1 for rows that could
        # have taken the other branch.
        largest = np.maximum(np.abs(rows).max(axis=1), np.abs(origin).max())
        least = np.where(exponent > -400, 0.0, 2.0**-300)
        factor = np.where(largest >= extreme, 2.0**-512, np.where(largest < least, 2.0**512, 1.0))[
            :, None
        ]
        on_grid = scaled_to(rows * factor - origin * factor, bound, norm)
        on_grid[~np.isfinite(largest)] = 0.0
    long = integer_norms(on_grid, norm) > limit
    if long.any():
        # Rounding can add 2^-50 of the norm. So a squared norm exceeds the limit by at most 4, and an L1 norm by 1.
        # One unit less in every entry takes away more: sum (2 |y| - 1) >= ||y||, and 1 or more.
        on_grid[long] -= device.xp.sign(on_grid[long])
    return on_grid


def scaled_to(rows: Held, bound: float, norm: int) -> Held:
    """Scale rows to the bound and truncate them towards zero; rounding can add 2^-50 of the norm."""
    device = device_of(rows)
    _, scaled, norms = rounded_norms(rows, norm)
    if norm == 2:
        norms = device.sqrt(norms)
    scaled *= device.quotient(bound, norms.clip(1.0))[:, None]
    return device.xp.trunc(scaled, out=scaled)


def rounded_norms(rows: Held, norm: int) -> tuple[Held, Held, Held]:
    """Return, for each row, an exponent p, the row times ``2^p``, and the norm of this product, rounded up.

    For norm 2 the last result is the square of the norm. It is an exact integer: the entries are rounded away from zero
    to integers of m bits, where ``2 m + log2(n_columns) <= 53`` (``m`` instead of ``2 m`` for L1), so that their sum is
    exact in any order.
    """
    bits = (53 - (rows.shape[1] - 1).bit_length()) // norm
    device = device_of(rows)
    exponents = device.xp.frexp(device.xp.amax(abs(rows), 1))[1]  # every entry is below 2^exponent
    # The limit prevents overflow. A row with a denormal norm then keeps fewer bits, and is rounded up as well.
    power = (bits - exponents).clip(None, 1000)
    scaled = rows * device.powers_of_two(power)[:, None]
    above = abs(scaled)
    return power, scaled, integer_norms(device.xp.ceil(above, out=above), norm)
