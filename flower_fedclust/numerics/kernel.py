"""The Gaussian kernel, its bandwidth, and how well factors reproduce it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.kmeans import squared_distances

Floats = NDArray[np.float64]

#: Beyond it squares overflow, and a row that is so far away has kernel values of 0 wherever it is.
FARTHEST = 1e150

#: Between 2^-300 and 2^300 neither the bandwidth nor its inverse has a square that is out of range.
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


#: The mean distance of more rows than this is that of so many of them, drawn at random.
N_ROWS_FOR_MEAN_DISTANCE = 4096


def mean_distance(rows: Floats) -> float:
    """Return the mean Euclidean distance over all ordered pairs of rows, each row and itself included.

    FedSC, equations (40) and (41) with c = 1.
    """
    if len(rows) > N_ROWS_FOR_MEAN_DISTANCE:
        drawn = np.random.default_rng(0).choice(len(rows), N_ROWS_FOR_MEAN_DISTANCE, replace=False)
        rows = rows[np.sort(drawn)]
    total = 0.0
    for block in blocks(len(rows), len(rows)):
        squared = squared_distances(rows[block], rows)
        # A row's distance from itself comes out of a difference of large numbers, and so not always as 0.
        squared[np.arange(len(squared)), np.arange(len(rows))[block]] = 0.0
        total += float(np.sqrt(squared).sum())
    return total / len(rows) ** 2 if np.ptp(rows, axis=0).any() else 0.0


def relative_kernel_error(rows: Floats, factors: Floats, bandwidth: float) -> float:
    """Return ``||F F' - K||_F / ||K||_F`` over all pairs of rows."""
    squared_error = squared_norm = 0.0
    for block in blocks(len(rows), len(rows)):
        kernel = gaussian_kernel(rows[block], rows, bandwidth)
        squared_norm += float(np.sum(kernel**2))
        kernel -= factors[block] @ factors.T
        squared_error += float(np.sum(kernel**2))
    return float(np.sqrt(squared_error / squared_norm))
