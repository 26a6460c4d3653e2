"""Fuzzy c-means on a grid: memberships of rows, and the sums that move the centers.

Memberships are computed from exact squared distances, by operations that every machine rounds alike, and become
integers before anything is added. So a row's contribution depends only on the row and on the centers, not on the order
of additions.

Rows, (n_rows, n_columns), and centers, (n_clusters, n_columns), are integers of norm at most 2^25. The fuzzifier m is
above 1. With m near 1 a row belongs almost only to the nearest center; with a large m it belongs to all about equally.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact.elementary import power
from flower_fedclust.exact.grid import BITS, points_onto_grid, rows_onto_grid
from flower_fedclust.exact.kernel_sums import WEIGHT_BITS, weight_bits, weighted_sums
from flower_fedclust.exact.sums import squared_distances
from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.kmeans import centers_of

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: The most bits that weights can have in addition to WEIGHT_BITS.
MOST_MORE_BITS = BITS - WEIGHT_BITS


def fuzzy_memberships(rows: Floats, centers: Floats, fuzzifier: float) -> Floats:
    """Return how much every row belongs to every cluster (Bezdek 1981), the same bits on every machine.

    ``u_ij = 1 / sum_l (||x_i - c_j|| / ||x_i - c_l||)^(2 / (m - 1))``, of shape (n_rows, n_clusters). A row that equals
    one or several centers belongs only to these centers, in equal parts.
    """
    distances = squared_distances(rows, centers)
    nearest = distances.min(axis=1, keepdims=True)
    # At most 1, so that no power overflows.
    ratios = np.divide(nearest, distances, out=np.ones_like(distances), where=distances > 0)
    memberships = power(ratios, 1.0 / (fuzzifier - 1.0))
    total = np.zeros((len(rows), 1))
    # Added one after the other, because the order of additions matters.
    for column in range(len(centers)):
        total += memberships[:, column : column + 1]
    memberships /= total
    return memberships


def more_bits_for(n_rows: float) -> int:
    """Return how many more bits the weights can have so that their sums over n_rows rows still fit into an int64."""
    return int(
        np.clip(62 - BITS - WEIGHT_BITS - np.ceil(np.log2(max(n_rows, 1.0))), 0, MOST_MORE_BITS)
    )


def fuzzy_sums(
    rows: Floats, centers: Floats, fuzzifier: float, *, more_bits: int = 0
) -> tuple[Integers, Integers, int]:
    """Add up the rows of each cluster by their weights, exactly.

    The weights of a row are truncated, and add up to at most 1. So what a row adds to the weights has a norm of at most
    1, and what it adds to the sums has at most the row's norm. Both hold exactly.
    """
    sums, totals = np.zeros(centers.shape, dtype=np.int64), np.zeros(len(centers), dtype=np.int64)
    nothing, own_bits = np.zeros(len(centers)), weight_bits()
    for block in blocks(len(rows), max(rows.shape[1], len(centers))):
        powers = power(fuzzy_memberships(rows[block], centers, fuzzifier), fuzzifier)
        weights = rows_onto_grid(powers, nothing, 1.0, norm=1)[0] * 2.0**-BITS
        parts = [weights]
        if more_bits:
            high = np.trunc(weights * 2.0**own_bits) * 2.0**-own_bits
            low = np.trunc((weights - high) * 2.0 ** (own_bits + more_bits)) * 2.0**-own_bits
            parts = [high, low]
        for part, bits in zip(parts, (more_bits, 0), strict=False):
            of_rows, of_weights = weighted_sums(rows[block], part)
            sums += of_rows << bits
            totals += of_weights << bits
    return sums, totals, -own_bits - more_bits


def fuzzy_steps(
    rows: Floats, centers: Floats, fuzzifier: float, n_steps: int, *, more_bits: int = 0
) -> tuple[Integers, Integers, int]:
    """Take iterations of fuzzy c-means; return the sums and weights of the last one, as :func:`fuzzy_sums` does."""
    sums, weights, exponent = fuzzy_sums(rows, centers, fuzzifier, more_bits=more_bits)
    for _ in range(n_steps - 1):
        # These are in units of the rows: the unit of the sums is finer by the same factor as the unit of the weights.
        moved = centers_of(sums.astype(np.float64), weights.astype(np.float64), fallback=centers)
        centers = points_onto_grid(moved, 0)
        sums, weights, exponent = fuzzy_sums(rows, centers, fuzzifier, more_bits=more_bits)
    return sums, weights, exponent
