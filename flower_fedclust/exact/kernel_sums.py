"""Gaussian kernels of rows on a grid, and exact sums of rows with kernel values as weights.

A kernel value is a function of an exact squared distance, computed by operations that every machine rounds alike. It
becomes an integer before anything is multiplied or added, so a row's contribution depends only on the row and on the
public message.

Rows, (n_rows, n_columns), and points, (n_points, n_columns), are integers of norm at most 2^25, in the unit
``2**exponent``. ``gamma`` is in one over the squared units of the data.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact.capacity import entry_bits
from flower_fedclust.exact.device import Held, device_of
from flower_fedclust.exact.elementary import exponential
from flower_fedclust.exact.exponents import reach_exponent
from flower_fedclust.exact.grid import (
    BITS,
    ENTRY_BITS,
    ball_in_units,
    truncated_to_ball,
    unit_exponent,
)
from flower_fedclust.exact.sums import DIRECTION_BITS, directions_onto_grid, squared_distances
from flower_fedclust.numerics.blocks import blocks

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: The bits of weights between 0 and 1, by default: a weight times an entry of a row is at most 2^40, so that a sum over
#: 2^13 rows is at most 2^53 and exact in float64.
WEIGHT_BITS = ENTRY_BITS - BITS

#: How many weighted rows are added in float64, before the sum becomes int64.
WEIGHTED_ROWS = 2 ** (53 - BITS - WEIGHT_BITS)

#: Kernel values that are computed at a time: 512 kB of float64, which fit into a processor's second-level cache.
KERNEL_ENTRIES = 2**16

#: Kernel values that are multiplied at a time: 4 MB of float64.
BLOCK_ENTRIES = 2**19


def weight_bits() -> int:
    """Return the bits of weights between 0 and 1: :data:`WEIGHT_BITS`, or fewer if there may be more rows."""
    return entry_bits() - BITS


def gaussian_kernel(rows: Floats, points: Floats, exponent: int, gamma: float) -> Floats:
    """Return ``exp(-gamma ||x - y||^2)`` for every row x and point y on a grid, the same bits on every machine."""
    if not 0 <= gamma < math.inf:
        raise ValueError(f"gamma is {gamma}; it must be finite and not negative.")
    mantissa, power = math.frexp(gamma)
    # A squared distance is 0 or lies between 1 and 2^52: beyond these limits the kernel is 0 or 1 in any case.
    factor = math.ldexp(mantissa, min(max(power + 2 * exponent, -900), 900))
    kernel = np.empty((len(rows), len(points)))
    for block in blocks(len(rows), len(points), block_entries=KERNEL_ENTRIES):
        distances = squared_distances(rows[block], points)
        distances *= -factor
        exponential(distances, out=kernel[block])
    return kernel


def columns_onto_grid(matrix: Floats) -> tuple[Floats, int]:
    """Return the rounded matrix by which :func:`linear_features` multiplies, and the exponent of its scale.

    Its columns are divided by ``2**scale``, which makes them no longer than 1.
    """
    if not np.isfinite(matrix).all():
        raise ValueError("the matrix has an entry that is NaN or infinite.")
    # No column is longer than 2^scale, by an exact integer norm.
    scale = reach_exponent(np.ascontiguousarray(matrix.T), np.zeros(len(matrix)))
    rounded = np.rint(np.ldexp(matrix, DIRECTION_BITS - scale)) * 2.0**-DIRECTION_BITS
    # directions_onto_grid shortens columns that rounding has made longer than 1.
    return directions_onto_grid(rounded), scale


def linear_features(kernel: Floats, matrix: Floats, bound: float) -> tuple[Floats, int]:
    """Return ``kernel @ matrix``, each row clipped to a Euclidean norm and truncated to integers in a public unit.

    Kernel values are rounded to multiples of 2^-b, so that a row has a norm of at most ``sqrt(n_points)``, and the
    matrix to multiples of 2^-27 after a power of two has made its columns no longer than 1. With ``b = 26 - ceil(log4
    n_points)`` every partial sum of the product is below ``2^53`` units, and the product exact.

    Rounding gives an entry an error with a standard deviation of about 0.3 times ``2^-b ||m||``, where m is its column
    of the matrix. Truncation adds an error of at most one unit.
    """
    n_points, n_features = matrix.shape
    exponent = unit_exponent(bound)
    within = ball_in_units(float(bound), 2, exponent)
    directions, scale = columns_onto_grid(matrix)
    kernel_unit = 2.0 ** (DIRECTION_BITS - 1 - ((n_points - 1).bit_length() + 1) // 2)
    features = np.empty((len(kernel), n_features))
    for block in blocks(len(kernel), max(n_points, n_features), block_entries=BLOCK_ENTRIES):
        products: Floats = np.rint(kernel[block] * kernel_unit) @ directions
        products *= 1.0 / kernel_unit
        features[block] = truncated_to_ball(products, None, exponent - scale, *within, 2)
    return features, exponent


def weighted_sums(rows: Held, weights: Floats) -> tuple[Integers, Integers]:
    """Add up weighted rows, and the weights: for each cluster r the sums ``sum_i w_ir x_i`` and ``sum_i w_ir``.

    Weights are truncated to integers of :func:`weight_bits` bits, 15 by default. A row x with the vector w of these
    integers adds w to the sums of weights, and the outer product w x', whose Frobenius norm is exactly ``||w|| ||x||``,
    to the sums of rows.
    """
    device = device_of(rows)
    n_clusters, n_columns = weights.shape[1], rows.shape[1]
    scale = 2.0 ** weight_bits()
    sums_of_rows = np.zeros((n_clusters, n_columns), dtype=np.int64)
    sums_of_weights = np.zeros(n_clusters, dtype=np.int64)
    for block in blocks(len(rows), 1, block_entries=WEIGHTED_ROWS):
        whole = np.trunc(weights[block] * scale)
        products = device.hold(whole).T @ rows[block]
        sums_of_rows += device.host(products).astype(np.int64)
        sums_of_weights += whole.sum(axis=0).astype(np.int64)
    return sums_of_rows, sums_of_weights
