"""Google's clustering by locality-sensitive hashing, for a curator who holds all rows: to compare with."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from flower_fedclust.engine import Entry, parameter
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.accounting import Share, calibrate, composed_epsilon
from flower_fedclust.privacy.releases import Release
from flower_fedclust.strategies.baselines.central_private_kmeans import CentralPrivateKMeans

Floats = NDArray[np.float64]

#: How deep the tree is at most; a row is counted once in each level, and in the root.
MOST_DEPTH = 20
#: The scale of a count's noise, over the deviation of a sum's.
COUNT_OVER_SUM = 20.0
#: A leaf has so many rows that noise moves its mean by about a tenth of the radius, or half a cluster's.
ROWS_OVER_NOISE = 10.0
#: A node has children if it has so many times as many rows as a leaf.
BRANCHING = 3


class CentralLSH(CentralPrivateKMeans):
    """k-means of the noisy means of the leaves of a tree of random halves, as Google's library has it.

    Each level of the tree halves the rows of every node that has enough of them, by the sign of their product with a
    random vector. The counts of all nodes have Laplace noise, and the sums of the leaves Gaussian noise, both
    calibrated together; the leaves' means, weighted by their noisy counts, are clustered.

    Its relation: a row is added or removed. Nothing else is taken from the rows, and the number of rows is paid for.
    The library counts discrete Laplace noise as if it were continuous, which says too little of delta, and so does
    this. Its noise is of floats.

    Parameters
    ----------
    max_entry : float, default=1.0
        The radius of the ball about 0 to which rows are clipped. A public bound.
    central_delta : float, default=1e-6
        Of the curator, as ``central_epsilon`` is.

    References
    ----------
    Chang, Ghazi, Kumar and Manurangsi, "Locally private k-means in one round", ICML 2021, in the central model; the
    defaults are those of ``learning/clustering`` in google/differential-privacy.
    """

    entries = (
        Entry(
            "central-lsh",
            "Google's LSH clustering: central, pooled rows, noise in the centers alone",
            "Chang, Ghazi, Kumar and Manurangsi 2021",
            example={"max_entry": 3.0},
        ),
    )

    central_delta: float = parameter(1e-6, above=0, below=1)

    def noisy_centers(self, rows: Floats, rng: np.random.Generator) -> Floats:
        """Cluster the leaves of a tree."""
        from sklearn.cluster import KMeans

        deviation = noise_of_sums(self.central_epsilon, self.central_delta)
        means, weights = noisy_leaves(clip_rows(rows, 1.0), self.n_clusters, deviation, rng)
        n_centers = min(self.n_clusters, len(np.unique(means, axis=0)))
        found = KMeans(n_centers, n_init=1, random_state=int(rng.integers(2**31))).fit(means, sample_weight=weights)
        # Fewer leaves than clusters: the last center stands for those that are missing.
        return np.asarray(found.cluster_centers_[np.minimum(np.arange(self.n_clusters), n_centers - 1)])


@lru_cache(maxsize=64)
def noise_of_sums(epsilon: float, delta: float) -> float:
    """Return the deviation of a sum's noise, of rows of norm 1, such that sums and counts compose to a budget."""

    def missing(deviation: float) -> float:
        count = Release("laplace", 1.0, COUNT_OVER_SUM * deviation, "")
        releases = [Release("gaussian", 1.0, deviation, ""), *[count] * (MOST_DEPTH + 1)]
        return composed_epsilon(releases, delta, near=epsilon) - epsilon

    alone = calibrate({"sums": Share("gaussian", 1.0)}, epsilon, delta)["sums"]
    return float(brentq(missing, 0.99 * alone, 4.0 * alone, rtol=1e-3))


def noisy_leaves(
    rows: Floats, n_clusters: int, deviation: float, rng: np.random.Generator
) -> tuple[Floats, NDArray[np.int64]]:
    """Return noisy means and counts of the leaves of a tree of random halves.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_columns)
        Of norm at most 1.
    n_clusters : int
    deviation : float
        Of the noise of a sum, in every column.
    rng : numpy.random.Generator

    Returns
    -------
    means : ndarray of shape (n_leaves, n_columns)
        Of norm at most 1.
    counts : ndarray of shape (n_leaves,)
        At least 1.
    """
    n_columns = rows.shape[1]
    odds = -np.expm1(-1.0 / (COUNT_OVER_SUM * deviation))

    def noisy_count(part: Floats) -> int:
        first, second = rng.geometric(odds, size=2)
        return len(part) + int(first - second)

    count = noisy_count(rows)
    fewest = max(1, min(int(ROWS_OVER_NOISE * np.sqrt(n_columns) * deviation), count // (2 * n_clusters)))
    level, leaves = [(rows, max(count, 1))], list[tuple[Floats, int]]()
    for vector in rng.normal(size=(MOST_DEPTH, n_columns)):
        children = list[tuple[Floats, int]]()
        for part, count in level:
            halves = []
            if count >= BRANCHING * fewest:
                side = part @ vector >= 0
                halves = [(half, noisy_count(half)) for half in (part[side], part[~side])]
            kept = [half for half in halves if half[1] >= fewest]
            children += kept
            if not kept:
                leaves.append((part, count))
        level = children
    leaves += level
    sums = np.array([part.sum(axis=0) for part, _ in leaves]) + deviation * rng.normal(size=(len(leaves), n_columns))
    counts = np.array([count for _, count in leaves], dtype=np.int64)
    return clip_rows(sums / counts[:, None], 1.0), counts
