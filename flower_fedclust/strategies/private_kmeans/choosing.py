"""How many clusters there are, from sums that were released already: nothing more is asked, and nothing more is paid.

The run clusters more finely than is sought: noisy means and numbers of rows of many small clusters, and the second
moment of all rows, from which follows how far rows lie from these means. The small clusters are merged, and for each
number of clusters the simplified silhouette is compared with that of one Gaussian of the same second moment, whose rows
the server draws and clusters as finely. So it is the gap statistic (Tibshirani, Walther and Hastie 2001), with the
silhouette in place of the cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.kmeans import centers_of, cluster_sums, nearest_center, squared_distances
from flower_fedclust.numerics.validity import ClusterNumber, ClusterSums

Floats = NDArray[np.float64]

#: A small cluster is one if its rows are more than so many standard deviations of noise.
DEVIATIONS = 2.0
#: Where noise leaves fewer of them, those of one Gaussian look as if they were apart.
FEWEST = 8
#: How often one Gaussian is drawn, and how many rows of it at most.
N_REFERENCES, REFERENCE_ROWS = 3, 20_000


class Fine(NamedTuple):
    """More clusters than are sought, as noise lets see them.

    ``total`` is the mean squared norm of a row; then come the standard deviations of the noise in an entry of the sum
    of a cluster's rows, and in their number.
    """

    means: Floats
    counts: Floats
    total: float
    of_sums: float
    of_counts: float


def chosen_number(
    fine: Fine,
    like_fine: Callable[[Floats, int], Floats],
    rows: Callable[[int], Floats],
    numbers: tuple[int, int],
    rng: np.random.Generator,
) -> ClusterNumber:
    """Return how many clusters there are.

    Parameters
    ----------
    fine : Fine
        Of the clients' rows.
    like_fine : callable
        Takes made-up rows and a number, returns so many centers of them: as many as noise left of the clients'.
    rows : callable
        Draws so many rows of one Gaussian.
    numbers : tuple of two int
        The least and the largest number of clusters.
    rng : numpy.random.Generator
    """
    n_kept = int(np.count_nonzero(fine.counts > DEVIATIONS * fine.of_counts))
    tried = range(numbers[0], max(min(numbers[1], n_kept - 1), numbers[0]) + 1)
    own, of_one = _measures(fine, tried), []
    n_rows = max(float(fine.counts.sum()), 100.0)
    n_drawn = int(min(n_rows, REFERENCE_ROWS))
    for _ in range(N_REFERENCES):
        drawn = rows(n_drawn)
        centers = like_fine(drawn, max(n_kept, 1))
        sums, counts = cluster_sums(drawn, nearest_center(drawn, centers), len(centers))
        sums *= n_rows / n_drawn
        noisy = counts * (n_rows / n_drawn) + fine.of_counts * rng.standard_normal(len(counts))
        means = centers_of(sums + fine.of_sums * rng.standard_normal(sums.shape), noisy, fallback=centers)
        # A few rows of a Gaussian have a second moment of their own, of which their means leave so much.
        reference = fine._replace(means=means, counts=noisy, total=float((drawn**2).sum() / n_drawn))
        of_one.append([one["silhouette"] for one in _measures(reference, tried)])
    return ClusterNumber(
        list(tried),
        silhouette=[one["silhouette"] for one in own],
        davies_bouldin=[one.get("davies_bouldin", np.nan) for one in own],
        calinski_harabasz=[one.get("calinski_harabasz", np.nan) for one in own],
        of_one_gaussian=np.mean(of_one, axis=0).tolist(),
    )


def _measures(fine: Fine, numbers: Sequence[int]) -> list[dict[str, float]]:
    from sklearn.cluster import KMeans

    kept = fine.counts > DEVIATIONS * fine.of_counts
    means, counts = fine.means[kept], fine.counts[kept]
    if len(means) <= numbers[0] or (fine.of_counts > 0 and len(means) < FEWEST):
        return [{"silhouette": 0.0} for _ in numbers]
    # How far rows lie from these means: what the means leave of the second moment.
    scatter = max(fine.total - float(counts @ (means**2).sum(axis=1)) / float(counts.sum()), 0.02 * fine.total)
    found: list[dict[str, float]] = []
    for number, start in zip(reversed(numbers), _merged(means, counts, numbers), strict=True):
        centers = start
        if number < len(means):
            centers = (
                KMeans(number, init=start, n_init=1, max_iter=50).fit(means, sample_weight=counts).cluster_centers_
            )
        measures = ClusterSums.of_rows(means, centers, counts, scatter=scatter).measures(centers)
        found.append({"silhouette": 0.0} | measures)
    return found[::-1]


def _merged(means: Floats, counts: Floats, numbers: Sequence[int]) -> list[Floats]:
    """Return centers of so many clusters, the largest number first: each time the two merge that raise the cost least.

    Ward's criterion. A k-means that starts from these misses no cluster that k-means++ would miss by chance.
    """
    points, weights = means.copy(), counts.copy()
    found: list[Floats] = []
    while len(found) < len(numbers):
        if len(points) <= numbers[-1 - len(found)]:
            found.append(points.copy())
            continue
        apart = squared_distances(points, points) * (weights[:, None] * weights / (weights[:, None] + weights))
        apart[np.tril_indices(len(points))] = np.inf
        first, second = np.unravel_index(apart.argmin(), apart.shape)
        both = weights[first] + weights[second]
        points[first] += (points[second] - points[first]) * (weights[second] / both)
        weights[first] = both
        points, weights = np.delete(points, second, axis=0), np.delete(weights, second)
    return found
