"""Kernel values and spectral embeddings of rows on a grid: each row's result is exact, and depends on no other row.

All lengths, and the bandwidth, are first converted to units of the grid. So no power of two is out of range, even for
rows near the largest float or denormal rows.

Rows, (n_rows, n_columns), and points or atoms, (n_points, n_columns), are integers of norm at most 2^25, in a unit
whose exponent is ``exponent``. ``bandwidth`` is r of the Gaussian kernel, in the units of the data.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact.exponents import reach_exponent
from flower_fedclust.exact.grid import (
    from_units,
    integer_norms,
    rows_onto_grid,
    unit_exponent,
)
from flower_fedclust.exact.kernel_sums import columns_onto_grid, gaussian_kernel, linear_features
from flower_fedclust.exact.sums import DIRECTION_BITS
from flower_fedclust.numerics.blocks import blocks

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Limits of the bandwidth, in units of the grid. Different rows are at least one unit apart: in a narrower kernel no
#: row resembles another, and in a wider one all rows do.
NARROWEST, WIDEST = 2.0**-400, 2.0**400

#: The most by which factors magnify a direction in which the atoms' kernel matrix nearly vanishes.
STEEPEST_FACTOR = 2.0**10


def bandwidth_in_units(bandwidth: float, exponent: int) -> float:
    """Return a bandwidth in units of a grid, limited to NARROWEST and WIDEST."""
    mantissa, power = math.frexp(bandwidth)
    return min(
        max(math.ldexp(mantissa, min(max(power - exponent, -1000), 1000)), NARROWEST), WIDEST
    )


def kernel_values(rows: Floats, points: Floats, exponent: int, bandwidth: float) -> Floats:
    """Return ``exp(-||x - z||^2 / (2 r^2))`` for every row x and point z on a grid, the same bits on every machine."""
    return gaussian_kernel(rows, points, 0, 0.5 / bandwidth_in_units(bandwidth, exponent) ** 2)


def matrix_onto_grid(matrix: Floats) -> Floats:
    """Round a public matrix so that :func:`~flower_fedclust.exact.kernel_sums.linear_features` leaves it as it is.

    The server then knows which matrix clients multiply by.
    """
    # No column is longer than half of 2^scale, so that rounding makes none longer than 2^scale.
    scale = reach_exponent(np.ascontiguousarray(matrix.T), np.zeros(len(matrix))) + 1
    return from_units(np.rint(np.ldexp(matrix, DIRECTION_BITS - scale)), scale - DIRECTION_BITS)


def distance_of_features(kernel: Floats, matrix: Floats, bound: float) -> float:
    """Bound the distance between the linear features of any two rows, including all rounding.

    ``k(x)' M`` is linear in phi(x), the row's image in the kernel's feature space, by a map whose norm is the root of
    the largest eigenvalue of ``M' K M``. Two images are at most ``sqrt(2)`` apart, because no kernel value is negative.
    Kernel values are rounded to multiples of 2^-b, and features to their unit. Clipping does not increase distances.
    """
    n_points, n_features = matrix.shape
    matrix = from_units(*columns_onto_grid(matrix))
    kernel_unit = 2.0 ** (((n_points - 1).bit_length() + 1) // 2 + 1 - DIRECTION_BITS)
    in_feature_space = math.sqrt(
        max(2.0 * float(np.linalg.eigvalsh(matrix.T @ kernel @ matrix)[-1]), 0.0)
    )
    # In each of the two rows, a kernel value is off by at most half a unit, and a feature by at most one unit.
    of_kernel = math.sqrt(n_points) * kernel_unit * float(np.linalg.norm(matrix, 2))
    of_features = 2.0 * math.sqrt(n_features) * math.ldexp(1.0, unit_exponent(bound))
    return float(in_feature_space + of_kernel + of_features) * (1.0 + 2.0**-20)


def embedded_rows(
    rows: Floats, points: Floats, exponent: int, bandwidth: float, projection: Floats, bound: float
) -> tuple[Floats, int]:
    """Return ``k(x, Z) P`` scaled to norm 1, on the grid of the unit ball, and the exponent of its unit.

    Kernel values are first divided by the power of two above the largest of their row, so that rows far from every
    point keep their digits. Each embedded row is a vector of integers that depends on that row alone; it is 0 if all
    kernel values of the row vanish.
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
