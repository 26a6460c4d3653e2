"""How many clusters there are, from sums that were released already: nothing more is asked, and nothing more is paid.

The run clusters more finely than is sought: noisy means and numbers of rows of many small clusters, and the second
moment of all rows, from which follows how far rows lie from these means. The small clusters are merged, and for each
number of clusters the simplified silhouette is compared with that of one Gaussian of the same second moment, whose rows
the server draws and clusters as finely. So it is the gap statistic (Tibshirani, Walther and Hastie 2001), with the
silhouette in place of the cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from flower_fedclust.numerics.checks import check_integer
from flower_fedclust.numerics.kmeans import centers_of, cluster_sums, nearest_center, squared_distances
from flower_fedclust.numerics.validity import ClusterNumber, ClusterSums

Floats = NDArray[np.float64]

#: The numbers that are tried where the user leaves the choice.
AUTO = (2, 16)
#: How often one Gaussian is drawn, and how many rows of it at most.
N_REFERENCES, REFERENCE_ROWS = 3, 20_000


class Fine(NamedTuple):
    """More clusters than are sought: their means, how many rows each has, and how far rows lie from their means.

    ``scatter`` is the mean squared distance of a row from its mean.
    """

    means: Floats
    counts: Floats
    scatter: float


def numbers_of(n_clusters: Any) -> tuple[int, int]:
    """Return the least and the largest number of clusters that a user asked for.

    Parameters
    ----------
    n_clusters : int, "auto", or two int

    Raises
    ------
    ValueError
        If it is none of these.
    """
    if n_clusters == "auto":
        return AUTO
    if isinstance(n_clusters, (tuple, list)) and len(n_clusters) == 2:
        fewest, most = (check_integer("n_clusters", one, at_least=2) for one in n_clusters)
        if fewest < most:
            return fewest, most
    elif not isinstance(n_clusters, (str, tuple, list)):
        number = check_integer("n_clusters", n_clusters, at_least=2)
        return number, number
    raise ValueError(f"n_clusters is {n_clusters!r}; it must be a number, 'auto', or a range such as (2, 12).")


def chosen_number(
    fine: Fine, like_fine: Callable[[Floats], Floats], rows: Callable[[int], Floats], numbers: tuple[int, int]
) -> ClusterNumber:
    """Return how many clusters there are.

    Parameters
    ----------
    fine : Fine
        Of the clients' rows; with counts of 0 where there may be no row.
    like_fine : callable
        Takes made-up rows, returns as many centers of them as the clients' rows have.
    rows : callable
        Draws so many rows of one Gaussian.
    numbers : tuple of two int
        The least and the largest number of clusters.
    """
    n_drawn = int(min(max(float(fine.counts.sum()), 1000.0), REFERENCE_ROWS))
    tried = range(numbers[0], numbers[1] + 1)
    own, of_one = _measures(fine, tried), []
    for _ in range(N_REFERENCES):
        drawn = rows(n_drawn)
        centers = like_fine(drawn)
        labels = nearest_center(drawn, centers)
        sums, counts = cluster_sums(drawn, labels, len(centers))
        means = centers_of(sums, counts, fallback=centers)
        reference = Fine(means, counts, float(((drawn - means[labels]) ** 2).sum()) / n_drawn)
        of_one.append([one["silhouette"] for one in _measures(reference, tried)])
    return ClusterNumber(
        list(tried),
        silhouette=[one["silhouette"] for one in own],
        davies_bouldin=[one.get("davies_bouldin", np.nan) for one in own],
        calinski_harabasz=[one.get("calinski_harabasz", np.nan) for one in own],
        of_one_gaussian=np.mean(of_one, axis=0).tolist(),
    )


def _measures(fine: Fine, numbers: Sequence[int]) -> list[dict[str, float]]:
    kept = fine.counts > 0
    means, counts = fine.means[kept], fine.counts[kept]
    found: list[dict[str, float]] = []
    for number, start in zip(reversed(numbers), _merged(means, counts, numbers), strict=True):
        centers = start
        if number < len(means):
            centers = (
                KMeans(number, init=start, n_init=1, max_iter=50).fit(means, sample_weight=counts).cluster_centers_
            )
        measures = ClusterSums.of_rows(means, centers, counts, scatter=fine.scatter).measures(centers)
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
