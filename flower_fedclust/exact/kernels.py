"""Terms (bounded sums over rows) made of kernel values: lemmas about kernels bound what a row adds.

``points`` and ``atoms`` have the shape (n_points, n_columns). ``bandwidth`` is r of the Gaussian kernel in the units of
the data. ``to_factors``, (n_points, n_factors), turns a row's kernel values into its factors: a vector whose inner
products with other rows' factors approximate the kernel.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact.capacity import entry_bits
from flower_fedclust.exact.grid import (
    BITS,
    ball_in_units,
    from_units,
    integer_norms,
    points_onto_grid,
    rows_onto_grid,
    truncated_to_ball,
    unit_exponent,
)
from flower_fedclust.exact.kernel_sums import gaussian_kernel, linear_features
from flower_fedclust.exact.lemmas import proven
from flower_fedclust.exact.rows import Rows
from flower_fedclust.exact.spectral_sums import bandwidth_in_units, kernel_values
from flower_fedclust.exact.stacks import Sums, current
from flower_fedclust.exact.subjects import parted, rooted
from flower_fedclust.exact.sums import directions_onto_grid, upper_triangle
from flower_fedclust.exact.terms import CLIPPED_TERM, Bound, Term, enforced
from flower_fedclust.numerics.blocks import BLOCK_ENTRIES, blocks
from flower_fedclust.numerics.landmarks import longest_attraction

Floats = NDArray[np.float64]

#: How many rows' moments are added in float64: a product of two entries is at most 2^40, so that a sum over 2^13 rows
#: is at most 2^53 and exact.
MOMENT_ROWS = 2**13

#: How many rows' attraction is added in float64.
ATTRACTED_ROWS = 2**14
#: How many kernel values are multiplied at a time: 4 MB.
ATTRACTED_ENTRIES = 2**19

#: Kernel values are reduced by this fraction before they are truncated, by more than all rounding can add.
SHRINKAGE = 2.0**-40


#: The fewest rows whose gradients are computed together: they share the products of the atoms with one another.
GRADIENT_ROWS = 64

#: How many entries of the products of atoms with one another are in memory at a time.
PULL_ENTRIES = 2**22


def moment_bits() -> int:
    """Return the bits of rows divided by the roots of their degrees: by default 20, so a product of two has 40 bits."""
    return entry_bits() // 2


def attraction_bits() -> tuple[int, int]:
    """Return the bits of kernel values and of rows in attraction sums: 18 and 21, or fewer if there may be more rows.

    A kernel value times an entry of a row is at most 2^39, and times a difference of a row and a point, which can be
    twice as long as a row, 2^40. Rows have three bits more than kernel values, because the rounding errors of a row add
    up over its columns.
    """
    of_kernel = (entry_bits() - 4) // 2
    return of_kernel, entry_bits() - 1 - of_kernel


@proven("1b")
def factor_sum(rows: Rows, points: Floats, bandwidth: float, to_factors: Floats) -> Term:
    """Add up the rows' factors: ``F' 1``, of shape (n_factors,). The factors of each row are clipped to norm 1."""
    added = Sums(len(rows), to_factors.shape[1])
    on_grid = rows.points(points)
    integers = rows.integers  # one copy, if they lie on a card
    for block in blocks(len(rows), len(points)):
        kernel = kernel_values(integers[block], on_grid, rows.exponent, bandwidth)
        added.add(block, parted(linear_features(kernel, to_factors, 1.0)[0]))
    return enforced(
        added.integers,
        unit_exponent(1.0),
        Bound(1.0, words="factors are no longer than 1"),
        2**BITS,
        len(rows),
    )


@proven("2i")
def normalized_moment(
    rows: Rows,
    points: Floats,
    bandwidth: float,
    to_factors: Floats,
    total: Floats,
    exponent: int,
    floor: float,
) -> Term:
    """Add up the outer products of each row's factors, divided by the row's degree: ``F' D^-1 F``, upper triangle.

    The diagonal matrix D has the degrees ``F (F' 1)``, but at least ``floor``. The factors of a row, divided by the
    root of its degree, are rounded to :func:`moment_bits`. If that makes them longer than the bound, they are truncated
    instead.
    """
    bound = 1.0 / math.sqrt(floor)
    atoms, integers = rows.points(points), rows.integers
    moment = np.zeros((to_factors.shape[1],) * 2, dtype=np.int64)
    stack, parts = current(), list[Floats]()
    on_total = points_onto_grid(total[None, :], exponent)[0]
    bits = moment_bits()
    unit = unit_exponent(bound, bits=bits)
    radius, limit = ball_in_units(bound, 2, unit)
    step = max(1, min(MOMENT_ROWS, BLOCK_ENTRIES // len(points)))
    for block in blocks(len(rows), 1, block_entries=step):
        F, factor_exponent = linear_features(
            kernel_values(integers[block], atoms, rows.exponent, bandwidth), to_factors, 1.0
        )
        degrees = np.maximum(from_units(F @ on_total, factor_exponent + exponent), floor)
        F = from_units(F, factor_exponent) * (1.0 / np.sqrt(degrees))[:, None]
        rounded = np.rint(np.ldexp(F, -unit))
        long = ~(integer_norms(rounded, 2) <= limit)
        if long.any():
            rounded[long] = truncated_to_ball(F[long], None, unit, radius, limit, 2)
        rounded = rooted(rounded)
        if stack is None:
            moment += (rounded.T @ rounded).astype(np.int64)
        else:
            parts.append(rounded)
    if stack is not None:
        rounded = np.concatenate(parts)
        moment = stack.products(rounded, rounded)
    words = "factors are no longer than 1, and no degree is below the inverse of this"
    made = Bound(bound**2, words=words, triangle=True)
    return enforced(upper_triangle(moment), 2 * unit, made, 2 ** (2 * bits), len(rows))


@proven("2j")
def attraction(rows: Rows, points: Floats, gamma: float) -> Term:
    """Add up how each row attracts the points: ``sum_i k(x_i, y_j) (x_i - y_j)``, of the shape of the points.

    This term times ``-4 gamma / n_points`` is the rows' part of the gradient (13) of Qiao, Ma and Fan (2025), times the
    number of rows. The norm of what one row adds is at most ``sqrt(n_points) exp(-1/2) / sqrt(2 gamma)``, exactly:

    Rows and points are first rounded to a coarser grid, so ``k ||x - y||`` is at most ``exp(-1/2) / sqrt(2 gamma)`` for
    the true kernel k of these integers. The integer for k is no larger: it is 0 unless k is at least 2^-18, where
    :func:`gaussian_kernel` is right to 2^-48, and k is made smaller by 2^-40, more than that and the rounding of the
    bound together, before it is truncated towards zero. Its products with ``x - y`` are exact.

    Measured with the mean squared distance as ``1 / (2 gamma)``, the relative error of the sums is 6e-6; with 20 times
    that gamma, where most kernel values are near 2^-15, it is 7e-4.
    """
    if not 0 < gamma < math.inf:
        raise ValueError(f"gamma is {gamma}; it must be positive and finite.")
    kernel_bits, row_bits = attraction_bits()
    coarser = BITS - row_bits
    integers, coarse_points = rows.integers, np.rint(rows.points(points) * 2.0**-coarser)
    pull = np.zeros(points.shape, dtype=np.int64)
    weight = Sums(len(rows), len(points))
    stack, kernels, parts = current(), list[Floats](), list[Floats]()
    # Never more than ATTRACTED_ROWS.
    n_entries = max(*points.shape, ATTRACTED_ENTRIES // ATTRACTED_ROWS)
    for block in blocks(len(rows), n_entries, block_entries=ATTRACTED_ENTRIES):
        coarse = integers[block] * 2.0**-coarser
        np.rint(coarse, out=coarse)
        kernel = gaussian_kernel(coarse, coarse_points, rows.exponent + coarser, gamma)
        kernel *= 2.0**kernel_bits * (1.0 - SHRINKAGE)
        # The divisor of a subject's rows reduces the weight, not the difference.
        kernel = parted(np.trunc(kernel, out=kernel))
        weight.add(block, kernel)
        if stack is None:
            pull += (kernel.T @ coarse).astype(np.int64)
        else:
            kernels.append(kernel)
            parts.append(coarse)
    if stack is not None:
        pull = stack.products(np.concatenate(kernels), np.concatenate(parts))
    pull -= weight.integers[..., None] * coarse_points.astype(np.int64)
    # In a wide kernel, the distance bounds the attraction: rounding moves a row or a point by less than the radius, so
    # that they are at most 4 radii apart.
    longest = min(
        longest_attraction(gamma, len(points)), 4.0 * rows.radius * math.sqrt(len(points))
    )
    bound = Bound(longest, words="no row attracts the landmarks more")
    unit = rows.exponent + coarser - kernel_bits
    return enforced(pull, unit, bound, 2 ** (kernel_bits + row_bits + 1), len(rows))


@proven("1b")
def dictionary_gradient(
    rows: Rows, atoms: Floats, bandwidth: float, to_codes: Floats, code_bound: float, bound: float
) -> Term:
    """Add up each row's gradient by the atoms, clipped to a norm; lengths are in units of the bandwidth r.

    The objective of FedSC is a sum over rows, and so is its gradient (FedSC, equation 15). A row x with the code c
    adds, times r, ``c_j (sum_l k(z_j, z_l) c_l (z_l - z_j) / r - k(x, z_j) (x - z_j) / r)`` for each atom z_j. The sum
    over l is a product of integers: of the codes on a grid and of public directions.
    """
    n_atoms, n_columns = atoms.shape
    integers, exponent, atoms = rows.integers, rows.exponent, rows.points(atoms)
    r = bandwidth_in_units(bandwidth, exponent)
    Kzz = kernel_values(atoms, atoms, exponent, bandwidth)
    # k t is at most exp(-1/2) at a distance of t bandwidths, so that a column of pulls is no longer than 2^scale.
    scale = ((n_atoms - 1).bit_length() + 1) // 2
    total = Sums(len(rows), atoms.size)
    zeros = np.zeros(atoms.size)
    for block in blocks(
        len(rows), atoms.size, block_entries=max(BLOCK_ENTRIES, GRADIENT_ROWS * atoms.size)
    ):
        kernel = kernel_values(integers[block], atoms, exponent, bandwidth)
        coded, unit = linear_features(kernel, to_codes, code_bound)
        codes = from_units(coded, unit)
        gradients = np.empty((len(coded), n_atoms, n_columns))
        for few in blocks(n_atoms, atoms.size, block_entries=PULL_ENTRIES):
            # The pull of atom l on atom j, for all l and a few j.
            pulls = (atoms[:, None, :] - atoms[None, few, :]) / r * Kzz[:, few, None]
            directions = directions_onto_grid(pulls.reshape(n_atoms, -1) * 2.0**-scale)
            products = (coded @ directions).reshape(len(coded), -1, n_columns)
            part = gradients[:, few]
            np.subtract(integers[block, None, :], atoms[None, few, :], out=part)
            part /= r
            part *= kernel[:, few, None]
            np.subtract(from_units(products, unit + scale), part, out=part)
            part *= codes[:, few, None]
        on_grid, _ = rows_onto_grid(gradients.reshape(len(coded), -1), zeros, bound)
        total.add(block, parted(on_grid))
    made = Bound(bound, words=CLIPPED_TERM)
    added = total.integers.reshape((*total.integers.shape[:-1], *atoms.shape))
    return enforced(added, unit_exponent(bound), made, 2**BITS, len(rows))
