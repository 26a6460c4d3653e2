"""The sums of spectral clustering over rows on a grid: factors, their moments, gradients of a dictionary; exact by row.

Kernel values are functions of exact squared distances, and every later product is a product of integers. So a row's
contribution depends only on that row and on the public message, and its integer norm stays within the declared bound.

All lengths, and the bandwidth, are in units of the grid, so that neither rows near the largest float nor denormal rows
need a power of two that is out of range.

Rows, (n_rows, n_columns), and points or atoms, (n_points, n_columns), are integers of norm at most 2^25, in a unit
whose exponent is ``exponent``. ``bandwidth`` is r of the Gaussian kernel, in the units of the data.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact.exponents import reach_exponent
from flower_fedclust.exact.grid import (
    ENTRY_BITS,
    ball_in_units,
    from_units,
    integer_norms,
    points_onto_grid,
    rows_onto_grid,
    truncated_to_ball,
    unit_exponent,
)
from flower_fedclust.exact.kernel_sums import columns_onto_grid, gaussian_kernel, linear_features
from flower_fedclust.exact.sums import DIRECTION_BITS, directions_onto_grid
from flower_fedclust.numerics.blocks import BLOCK_ENTRIES, blocks

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Of rows over the roots of their degrees: a product of two entries is at most 2^40, a sum over 2^13 rows 2^53.
MOMENT_BITS = ENTRY_BITS // 2

#: Rows whose moments are added in float64.
MOMENT_ROWS = 2 ** (53 - 2 * MOMENT_BITS)

#: Where rows differ they do by a unit at least: with a narrower kernel none is like another in any case, and with a
#: wider one all are alike.
NARROWEST, WIDEST = 2.0**-400, 2.0**400

#: A direction in which the atoms' kernel nearly vanishes is magnified by this at most.
STEEPEST_FACTOR = 2.0**10

#: Rows whose gradients are computed at a time, at least: as many share the products of the atoms with one another.
GRADIENT_ROWS = 64

#: Entries of the products of atoms with one another that are kept at a time.
PULL_ENTRIES = 2**22


def bandwidth_in_units(bandwidth: float, exponent: int) -> float:
    """Return a bandwidth in units of a grid, within limits beyond which it makes no difference."""
    mantissa, power = math.frexp(bandwidth)
    return min(max(math.ldexp(mantissa, min(max(power - exponent, -1000), 1000)), NARROWEST), WIDEST)


def kernel_values(rows: Floats, points: Floats, exponent: int, bandwidth: float) -> Floats:
    """Return ``exp(-||x - z||^2 / (2 r^2))`` for every row x and point z on a grid, the same bits on every machine."""
    return gaussian_kernel(rows, points, 0, 0.5 / bandwidth_in_units(bandwidth, exponent) ** 2)


def matrix_onto_grid(matrix: Floats) -> Floats:
    """Round a public matrix so that :func:`~flower_fedclust.exact.kernel_sums.linear_features` leaves it as it is.

    The server then knows which matrix clients multiply by.
    """
    # No column is longer than half of 2^scale, so that none becomes longer than 2^scale.
    scale = reach_exponent(np.ascontiguousarray(matrix.T), np.zeros(len(matrix))) + 1
    return from_units(np.rint(np.ldexp(matrix, DIRECTION_BITS - scale)), scale - DIRECTION_BITS)


def distance_of_features(kernel: Floats, matrix: Floats, bound: float) -> float:
    """Return how far apart the linear features of two rows can be, whatever the rows, with all that is rounded.

    ``k(x)' M`` is linear in phi(x), by a map whose norm is the root of the largest eigenvalue of ``M' K M``, and two
    phi(x) are at most ``sqrt(2)`` apart, as no kernel value is negative. Rounded are the kernel values, to multiples of
    2^-b, and the features, to their unit; clipping brings no two features farther apart.
    """
    n_points, n_features = matrix.shape
    matrix = from_units(*columns_onto_grid(matrix))
    kernel_unit = 2.0 ** (((n_points - 1).bit_length() + 1) // 2 + 1 - DIRECTION_BITS)
    in_feature_space = math.sqrt(max(2.0 * float(np.linalg.eigvalsh(matrix.T @ kernel @ matrix)[-1]), 0.0))
    # Of two rows, each entry of the kernel values is off by half a unit, and each feature by one.
    of_kernel = math.sqrt(n_points) * kernel_unit * float(np.linalg.norm(matrix, 2))
    of_features = 2.0 * math.sqrt(n_features) * math.ldexp(1.0, unit_exponent(bound))
    return float(in_feature_space + of_kernel + of_features) * (1.0 + 2.0**-20)


def factor_sum(
    rows: Floats, points: Floats, exponent: int, bandwidth: float, to_factors: Floats
) -> tuple[Integers, int]:
    """Return the sum of the rows' factors ``F' 1``; one row adds an integer vector of norm at most 1."""
    total = np.zeros(to_factors.shape[1], dtype=np.int64)
    for block in blocks(len(rows), len(points)):
        F, _ = linear_features(kernel_values(rows[block], points, exponent, bandwidth), to_factors, 1.0)
        total += F.sum(axis=0).astype(np.int64)
    return total, unit_exponent(1.0)


def normalized_moment(
    rows: Floats,
    points: Floats,
    exponent: int,
    bandwidth: float,
    to_factors: Floats,
    total: Floats,
    total_exponent: int,
    floor: float,
    bound: float,
) -> tuple[Integers, int]:
    """Return ``F' D^-1 F`` where D has the degrees ``F (F' 1)``, or the floor; one row adds at most ``bound^2``.

    A row over the root of its degree is rounded to 20 bits; where that would make it longer than the bound, truncated.
    """
    moment = np.zeros((to_factors.shape[1],) * 2, dtype=np.int64)
    on_grid = points_onto_grid(total[None, :], total_exponent)[0]
    unit = unit_exponent(bound, bits=MOMENT_BITS)
    radius, limit = ball_in_units(bound, 2, unit)
    step = max(1, min(MOMENT_ROWS, BLOCK_ENTRIES // len(points)))
    for block in blocks(len(rows), 1, block_entries=step):
        F, factor_exponent = linear_features(kernel_values(rows[block], points, exponent, bandwidth), to_factors, 1.0)
        degrees = np.maximum(from_units(F @ on_grid, factor_exponent + total_exponent), floor)
        F = from_units(F, factor_exponent) * (1.0 / np.sqrt(degrees))[:, None]
        rounded = np.rint(np.ldexp(F, -unit))
        long = ~(integer_norms(rounded, 2) <= limit)
        if long.any():
            rounded[long] = truncated_to_ball(F[long], np.zeros(F.shape[1]), unit, radius, limit, 2)
        moment += (rounded.T @ rounded).astype(np.int64)
    return moment, 2 * unit


def embedded_rows(
    rows: Floats, points: Floats, exponent: int, bandwidth: float, projection: Floats, bound: float
) -> tuple[Floats, int]:
    """Return ``k(x, Z) P`` scaled to norm 1, on the grid of the unit ball, and the exponent of its unit.

    Kernel values are first divided by the power of two above the largest of their row, so that rows far from every
    point keep their digits. Each embedded row, of integers, is a function of that row alone; 0 for a row whose kernel
    values all vanish.
    """
    n_vectors = projection.shape[1]
    embedded = np.empty((len(rows), n_vectors))
    for block in blocks(len(rows), len(points)):
        kernel = kernel_values(rows[block], points, exponent, bandwidth)
        _, powers = np.frexp(kernel.max(axis=1))
        kernel = np.ldexp(kernel, -powers[:, None])
        features, _ = linear_features(kernel, projection, bound)
        embedded[block] = features / np.sqrt(np.maximum(integer_norms(features, 2), 1.0))[:, None]
    return rows_onto_grid(embedded, np.zeros(n_vectors), 1.0)


def dictionary_gradient(
    rows: Floats,
    atoms: Floats,
    exponent: int,
    bandwidth: float,
    to_codes: Floats,
    code_bound: float,
    bound: float,
) -> tuple[Integers, int]:
    """Return the sum over rows of each row's gradient by the atoms, clipped to a norm.

    The objective of FedSC, and so equation (15), is a sum over rows: a row that is added or removed moves this sum by
    no more than ``bound``, and one that is replaced by no more than twice that. With the code c of a row x, times r:
    ``c_j (sum_l k(z_j, z_l) c_l (z_l - z_j) / r - k(x, z_j) (x - z_j) / r)``. The sum over l is a product of integers:
    of the codes on a grid and of public directions.
    """
    n_atoms, n_columns = atoms.shape
    r = bandwidth_in_units(bandwidth, exponent)
    Kzz = kernel_values(atoms, atoms, exponent, bandwidth)
    # k t is at most exp(-1/2) at a distance of t bandwidths, so that a column of pulls is no longer than 2^scale.
    scale = ((n_atoms - 1).bit_length() + 1) // 2
    total = np.zeros(atoms.size, dtype=np.int64)
    zeros = np.zeros(atoms.size)
    for block in blocks(len(rows), atoms.size, block_entries=max(BLOCK_ENTRIES, GRADIENT_ROWS * atoms.size)):
        kernel = kernel_values(rows[block], atoms, exponent, bandwidth)
        coded, unit = linear_features(kernel, to_codes, code_bound)
        codes = from_units(coded, unit)
        gradients = np.empty((len(coded), n_atoms, n_columns))
        for few in blocks(n_atoms, atoms.size, block_entries=PULL_ENTRIES):
            # Of atom l on atom j, for all l and a few j.
            pulls = (atoms[:, None, :] - atoms[None, few, :]) / r * Kzz[:, few, None]
            directions = directions_onto_grid(pulls.reshape(n_atoms, -1) * 2.0**-scale)
            products = (coded @ directions).reshape(len(coded), -1, n_columns)
            part = gradients[:, few]
            np.subtract(rows[block, None, :], atoms[None, few, :], out=part)
            part /= r
            part *= kernel[:, few, None]
            np.subtract(from_units(products, unit + scale), part, out=part)
            part *= codes[:, few, None]
        on_grid, _ = rows_onto_grid(gradients.reshape(len(coded), -1), zeros, bound)
        total += on_grid.sum(axis=0).astype(np.int64)
    return total.reshape(atoms.shape), unit_exponent(bound)
