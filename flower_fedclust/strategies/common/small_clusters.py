"""Chooses the number of clusters, and estimates whether another run would find them, from sums released already.

The server merges the noisy cells into small clusters, a few for each cluster, and works on these. No
further question is asked, so nothing here costs privacy. Noise alone can make clusters look separate.
Therefore every measure is compared with its value for a single Gaussian with the same spread and noise.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.kmeans import (
    centers_of,
    cluster_sums,
    nearest_center,
    squared_distances,
)
from flower_fedclust.numerics.validity import ClusterNumber, ClusterSums
from flower_fedclust.strategies.common.noisy_cells import (
    MANY_CLUSTERS,
    NoisyCells,
    agreement_before_steps,
)

Floats = NDArray[np.float64]

#: The number of small clusters for each cluster.
FINER = 2
#: Restarts of the k-means that merges cells or small clusters.
N_INIT = 10
#: Small clusters are used only if their number of rows exceeds the first number of standard deviations of its noise;
#: cells, only if it exceeds the second.
DEVIATIONS, DEVIATIONS_OF_CELL = 2.0, 3.0
#: With noise, at least this many small clusters are needed: with fewer, even a single Gaussian would seem to have
#: separate clusters.
FEWEST = 8
#: How many other runs the server simulates for each number of clusters that it tries; see :mod:`.noisy_cells`.
N_RUNS_OF_NUMBER = 8
#: The number of reference samples that are drawn from one Gaussian, and their largest size.
N_REFERENCES, REFERENCE_ROWS = 3, 20_000


class NoisyClusters(NamedTuple):
    """The means and counts of small clusters, with the deviations of their noise."""

    means: Floats
    counts: Floats
    total: float  #: The mean squared norm of a row.
    of_sums: float  #: The standard deviation of the noise in an entry of a cluster's sum.
    of_counts: float  #: The standard deviation of the noise in a count.
    cells: NoisyCells  #: The cells from which the clusters were merged.


def small_clusters(
    cells: NoisyCells, total: float, n_clusters: int, rng: np.random.Generator
) -> NoisyClusters:
    """Merge cells into small clusters, FINER of them for each of n_clusters clusters.

    ``total`` is the mean squared norm of a row. Cells that noise could have produced are left out.
    """
    clear = cells.counts > DEVIATIONS_OF_CELL * cells.of_counts
    clear[np.argmax(cells.counts)] = True
    means, weights = cells.means[clear], cells.counts[clear]
    n_small = min(FINER * n_clusters, max(len(means) // 2, 1))
    small = clustered(means, weights, n_small, rng, n_init=N_INIT)
    # The cells come from two rounds, each of which counted all rows.
    counts = weight_of(means, weights, small) / 2
    times = math.sqrt(len(means) / n_small) / 2
    return NoisyClusters(
        small, counts, total, cells.of_sums * times, cells.of_counts * times, cells
    )


def clustered(
    points: Floats, weights: Floats, n_clusters: int, rng: np.random.Generator, *, n_init: int
) -> Floats:
    """Return centers by weighted k-means; points of weight 0 are used only if too few points have weight.

    With many clusters fewer starts are tried: with 1,000 clusters a start takes two seconds, and
    its cost differs from the best by about 0.2%.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    heaviest = np.argsort(-weights, kind="stable")[
        : max(n_clusters, int(np.count_nonzero(weights)))
    ]
    points, weights = points[heaviest], weights[heaviest]
    if len(points) <= n_clusters:
        return np.resize(points, (n_clusters, points.shape[1]))
    if np.count_nonzero(weights) < n_clusters:
        weights = np.maximum(weights, max(float(weights.max()), 1.0) * 1e-6)
    n_init = math.ceil(n_init * min(1.0, MANY_CLUSTERS / n_clusters))
    estimator = KMeans(
        n_clusters, n_init=n_init, max_iter=50, random_state=int(rng.integers(2**31))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # centers coincide if points do
        return np.asarray(estimator.fit(points, sample_weight=weights).cluster_centers_)


def weight_of(points: Floats, weights: Floats, centers: Floats) -> Floats:
    """Return the total weight of the points nearest to each center."""
    added_up = np.bincount(nearest_center(points, centers), weights=weights, minlength=len(centers))
    return added_up.astype(np.float64, copy=False)


def number_if_asked(
    fine: NoisyClusters,
    spread: Floats,
    n_rows: float,
    numbers: tuple[int, int],
    rng: np.random.Generator,
) -> ClusterNumber | None:
    """Choose a number of clusters from the smallest to the largest of ``numbers``; None if these are equal."""
    return None if numbers[0] == numbers[1] else chosen_number(fine, spread, n_rows, numbers, rng)


def chosen_number(
    fine: NoisyClusters,
    spread: Floats,
    n_rows: float,
    numbers: tuple[int, int],
    rng: np.random.Generator,
) -> ClusterNumber:
    """Choose the number of clusters by the gap statistic (Tibshirani, Walther and Hastie 2001), with the silhouette.

    For each number, the small clusters are merged into that many clusters. The first criterion is
    their simplified silhouette, compared with the silhouette for a single Gaussian of the same
    spread: the server draws rows of the Gaussian, and clusters them as finely. The second criterion
    is stability: whether the small clusters would be merged in the same way if the noise and the
    start were drawn again.

    Parameters
    ----------
    fine : NoisyClusters
    spread : ndarray of shape (n_columns,)
        The standard deviations of the rows.
    n_rows : float
        The number of all rows, perhaps noisy. There are no more clusters than rows, unless ``numbers`` begin higher.
    numbers : (int, int)
        The smallest and the largest number.
    rng : numpy.random.Generator
    """
    n_kept = int(np.count_nonzero(fine.counts > DEVIATIONS * fine.of_counts))
    # A few rows can have more cells than there are rows.
    most = min(numbers[1], n_kept - 1, round(n_rows))
    tried = range(numbers[0], max(most, numbers[0]) + 1)
    measures, of_one = _measures(fine, tried), []
    n_imitated = max(float(fine.counts.sum()), 100.0)
    n_drawn = int(min(n_imitated, REFERENCE_ROWS))
    for _ in range(N_REFERENCES):
        drawn = rng.standard_normal((n_drawn, len(spread))) * spread
        centers = clustered(drawn, np.ones(n_drawn), max(n_kept, 1), rng, n_init=1)
        sums, counts = cluster_sums(drawn, nearest_center(drawn, centers), len(centers))
        sums *= n_imitated / n_drawn
        noisy = counts * (n_imitated / n_drawn) + fine.of_counts * rng.standard_normal(len(counts))
        means = centers_of(
            sums + fine.of_sums * rng.standard_normal(sums.shape), noisy, fallback=centers
        )
        # The second moment of this sample, because in a small sample it differs from the Gaussian's.
        reference = fine._replace(
            means=means, counts=noisy, total=float((drawn**2).sum() / n_drawn)
        )
        of_one.append([measure["silhouette"] for measure in _measures(reference, tried)])
    return ClusterNumber(
        list(tried),
        stability=[
            _stability(fine, n, rng) if measure["silhouette"] else 0.0
            for n, measure in zip(tried, measures, strict=True)
        ],
        silhouette=[measure["silhouette"] for measure in measures],
        davies_bouldin=[measure.get("davies_bouldin", np.nan) for measure in measures],
        calinski_harabasz=[measure.get("calinski_harabasz", np.nan) for measure in measures],
        of_one_gaussian=np.mean(of_one, axis=0).tolist(),
        has_noise=fine.of_counts > 0,
    )


def _stability(fine: NoisyClusters, number: int, rng: np.random.Generator) -> float:
    """Return how well another run would agree if small clusters were merged into ``number`` clusters."""
    kept = fine.counts > DEVIATIONS * fine.of_counts
    centers = clustered(fine.means[kept], fine.counts[kept], number, rng, n_init=N_INIT)
    return agreement_before_steps(fine.cells, centers, N_RUNS_OF_NUMBER, rng)


def _measures(fine: NoisyClusters, numbers: Sequence[int]) -> list[dict[str, float]]:
    """Return measures of the merged clusters for each number, such as the silhouette."""
    from sklearn.cluster import KMeans

    kept = fine.counts > DEVIATIONS * fine.of_counts
    means, counts = fine.means[kept], fine.counts[kept]
    if len(means) <= numbers[0] or (fine.of_counts > 0 and len(means) < FEWEST):
        return [{"silhouette": 0.0} for _ in numbers]
    # The mean squared distance of a row from the mean of its small cluster: the mean squared norm of a row, less the
    # mean squared norm of these means.
    scatter = max(
        fine.total - float(counts @ (means**2).sum(axis=1)) / float(counts.sum()), 0.02 * fine.total
    )
    by_number: list[dict[str, float]] = []
    for number, centers in zip(reversed(numbers), _merged(means, counts, numbers), strict=True):
        if number < len(means):
            estimator = KMeans(number, init=centers, n_init=1, max_iter=50)
            centers = estimator.fit(means, sample_weight=counts).cluster_centers_
        measures = ClusterSums.of_rows(means, centers, counts, scatter=scatter).measures(centers)
        by_number.append({"silhouette": 0.0} | measures)
    return by_number[::-1]


def _merged(means: Floats, counts: Floats, numbers: Sequence[int]) -> list[Floats]:
    """Return first centers for each number of clusters, the largest number first, by Ward's method.

    k-means++ can miss a cluster by chance; a k-means that starts from these centers does not.
    """
    points, weights = means.copy(), counts.copy()
    solutions: list[Floats] = []
    while len(solutions) < len(numbers):
        if len(points) <= numbers[-1 - len(solutions)]:
            solutions.append(points.copy())
            continue
        apart = squared_distances(points, points) * (
            weights[:, None] * weights / (weights[:, None] + weights)
        )
        apart[np.tril_indices(len(points))] = np.inf
        first, second = np.unravel_index(apart.argmin(), apart.shape)
        both = weights[first] + weights[second]
        points[first] += (points[second] - points[first]) * (weights[second] / both)
        weights[first] = both
        points, weights = np.delete(points, second, axis=0), np.delete(weights, second)
    return solutions
