"""The Gaussian kernel and its bandwidth."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.kmeans import squared_distances

Floats = NDArray[np.float64]

#: Entries are limited to this magnitude, because squares of larger ones could overflow; so far away, the kernel is 0.
FARTHEST = 1e150

#: For bandwidths from 2^-300 to 2^300, the squares of the bandwidth and of its inverse neither overflow nor vanish.
EXTREME_POWER = 300


def gaussian_kernel(rows: Floats, others: Floats, bandwidth: float) -> Floats:
    """Return ``exp(-||x - y||^2 / (2 r^2))`` for every row x and every other row y (FedSC, footnote 2)."""
    bandwidth, power = math.frexp(bandwidth)
    if abs(power) > EXTREME_POWER:
        with np.errstate(over="ignore"):
            rows, others = (np.ldexp(points, -power) for points in (rows, others))
    else:
        bandwidth = math.ldexp(bandwidth, power)
    kernel = squared_distances(*(np.clip(points, -FARTHEST, FARTHEST) for points in (rows, others)))
    kernel *= -0.5 / bandwidth**2
    return np.exp(kernel, out=kernel)


#: For more rows than this, the mean distance is estimated from a random sample of this size.
N_ROWS_FOR_MEAN_DISTANCE = 4096


def mean_distance(rows: Floats) -> float:
    """Return the mean Euclidean distance over all ordered pairs of rows, including pairs of a row with itself.

    This is FedSC, equations (40) and (41) with c = 1.
    """
    if len(rows) > N_ROWS_FOR_MEAN_DISTANCE:
        drawn = np.random.default_rng(0).choice(len(rows), N_ROWS_FOR_MEAN_DISTANCE, replace=False)
        rows = rows[np.sort(drawn)]
    total = 0.0
    for block in blocks(len(rows), len(rows)):
        squared = squared_distances(rows[block], rows)
        # Rounding can make a row's distance from itself positive.
        squared[np.arange(len(squared)), np.arange(len(rows))[block]] = 0.0
        total += float(np.sqrt(squared).sum())
    return total / len(rows) ** 2 if np.ptp(rows, axis=0).any() else 0.0
