"""k-median, which sums distances instead of their squares, and coresets to estimate that sum.

Rows are (n_rows, n_columns), centers (n_clusters, n_columns), non-negative weights (n_rows,), labels (n_rows,).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.initialization import N_RESTARTS
from flower_fedclust.numerics.kmeans import cluster_sums, nearest_center

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]


def nearest_distance(rows: Floats, centers: Floats) -> tuple[Floats, Labels]:
    """Return the Euclidean distance of each row from its nearest center, and that center's index.

    Computed from differences, so that a row that is a center has distance 0, and is never drawn.
    """
    labels = nearest_center(rows, centers)
    distances = np.empty(len(rows))
    for block in blocks(len(rows), rows.shape[1]):
        distances[block] = np.linalg.norm(rows[block] - centers[labels[block]], axis=1)
    return distances, labels


def kmedian_cost(rows: Floats, centers: Floats, weights: Floats | None = None) -> float:
    """Return the k-median objective; weights are 1 by default, and may be negative in a coreset."""
    distances, _ = nearest_distance(rows, centers)
    return float(distances.sum() if weights is None else weights @ distances)


def weiszfeld_step(rows: Floats, weights: Floats, centers: Floats, labels: Labels) -> Floats:
    """Move each center towards the geometric median of its rows, so that the sum of their distances does not rise.

    Weiszfeld's step goes from a center c to the mean of its rows with weights ``w / ||x - c||``, without the rows that
    equal c. Vardi and Zhang (PNAS 2000) go only the fraction ``1 - eta / ||R||`` of that way. R is the sum of
    ``w (x - c) / ||x - c||`` over the other rows, and eta the weight of the rows that equal c. If the fraction is
    negative, c is the median and stays.
    """
    n_clusters = len(centers)
    R = np.zeros_like(centers)
    total, eta = np.zeros(n_clusters), np.zeros(n_clusters)
    for block in blocks(len(rows), rows.shape[1]):
        own_labels = labels[block]
        difference = rows[block] - centers[own_labels]
        distance = np.linalg.norm(difference, axis=1)
        inverse = np.divide(
            weights[block], distance, out=np.zeros_like(distance), where=distance > 0
        )
        R += cluster_sums(difference * inverse[:, None], own_labels, n_clusters)[0]
        total += np.bincount(own_labels, weights=inverse, minlength=n_clusters)
        eta += np.bincount(
            own_labels, weights=np.where(distance > 0, 0.0, weights[block]), minlength=n_clusters
        )
    length = np.linalg.norm(R, axis=1)
    kept = np.divide(
        np.maximum(length - eta, 0.0), length, out=np.zeros(n_clusters), where=length > 0
    )
    step = np.divide(kept, total, out=np.zeros(n_clusters), where=total > 0)
    moved: Floats = centers + step[:, None] * R
    return moved


def alternate(
    rows: Floats, weights: Floats, centers: Floats, *, max_iter: int = 300, tol: float = 1e-6
) -> tuple[Floats, list[float]]:
    """Assign rows to their nearest centers and take a Weiszfeld step, in turn, until the cost hardly falls.

    A center without rows moves to the row that adds most to the cost.
    """
    distances, labels = nearest_distance(rows, centers)
    costs = [float(weights @ distances)]
    for _ in range(max_iter):
        centers = weiszfeld_step(rows, weights, centers, labels)
        empty = np.flatnonzero(np.bincount(labels, minlength=len(centers)) == 0)
        farthest = np.argsort(-weights * distances, kind="stable")[: len(empty)]
        centers[empty[: len(farthest)]] = rows[farthest]
        distances, labels = nearest_distance(rows, centers)
        costs.append(float(weights @ distances))
        if costs[-2] - costs[-1] <= tol * costs[-1]:
            break
    return centers, costs


def kmedian_plusplus(
    rows: Floats, weights: Floats, n_clusters: int, rng: np.random.Generator
) -> Floats:
    """Draw different rows as first centers, by k-means++ with distances in place of squares.

    As in scikit-learn, each center is the best of a few candidates. There must be ``n_clusters`` different rows.
    """
    n_drawn = 2 + int(np.log(n_clusters))
    centers = np.empty((n_clusters, rows.shape[1]))
    centers[0] = rows[rng.choice(len(rows), p=weights / weights.sum())]
    distances = np.linalg.norm(rows - centers[0], axis=1)
    for index in range(1, n_clusters):
        shares = weights * distances
        drawn = rows[rng.choice(len(rows), size=n_drawn, p=shares / shares.sum())]
        remaining = [np.minimum(distances, np.linalg.norm(rows - row, axis=1)) for row in drawn]
        best = int(np.argmin([weights @ left for left in remaining]))
        centers[index], distances = drawn[best], remaining[best]
    return centers


def weighted_kmedian(
    rows: Floats,
    weights: Floats | None,
    n_clusters: int,
    rng: np.random.Generator,
    *,
    n_restarts: int = N_RESTARTS,
    max_iter: int = 300,
    tol: float = 1e-6,
) -> Floats:
    """Return the centers of the best of several runs of :func:`kmedian_plusplus` and :func:`alternate`.

    If there are no more different rows than clusters, they are the centers.
    """
    if weights is None:
        weights = np.ones(len(rows))
    rows, weights = rows[weights > 0], weights[weights > 0]
    different = np.unique(rows, axis=0)
    if len(different) <= n_clusters:
        return different
    runs = []
    for _ in range(n_restarts):
        seeds = kmedian_plusplus(rows, weights, n_clusters, rng)
        runs.append(alternate(rows, weights, seeds, max_iter=max_iter, tol=tol))
    centers, _ = min(runs, key=lambda run: run[1][-1])
    return centers


# The coreset.


def allotted(costs: Floats, n_samples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Divide a number t of samples in proportion to costs: ``t_i = t cost_i / (sum of costs)``, in whole numbers.

    One uniform draw rounds all of them up or down (systematic sampling). They add up to t and are right on average, so
    the coreset is unbiased. If all costs are 0, nothing is drawn.
    """
    reached = np.concatenate([[0.0], np.cumsum(costs)])
    if reached[-1] == 0:
        return np.zeros(len(costs), dtype=np.int64)
    # The last is exactly t; a cost of 0 adds nothing.
    marks = np.floor(n_samples * (reached / reached[-1]) + rng.random())
    n_samples_of_each: NDArray[np.int64] = np.diff(marks).astype(np.int64)
    return n_samples_of_each


def draw_coreset(
    rows: Floats, medians: Floats, n_samples: int, cost_per_sample: float, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    """Draw one client's part of a coreset (Balcan, Ehrlich and Liang, Algorithm 1, round 2).

    Let ``m_p`` be the distance of row p from its nearest median, and t the number of samples of all clients. Each
    sample is row p with probability ``m_p / (sum of m)``. A sample q has the weight ``w_q = (sum of all clients' m) /
    (t m_q)``. A median b has the weight ``w_b = |P_b| - (sum of w_q over the samples in P_b)``, where P_b are the rows
    nearest to b. This weight may be negative.
    """
    distances, labels = nearest_distance(rows, medians)
    drawn = np.empty(0, dtype=np.intp)
    if n_samples > 0:
        drawn = rng.choice(len(rows), size=n_samples, p=distances / distances.sum())
    index, times = np.unique(drawn, return_counts=True)
    sample_weights = times * (cost_per_sample / distances[index])
    sizes = np.bincount(labels, minlength=len(medians)).astype(np.float64)
    sampled = np.bincount(labels[index], weights=sample_weights, minlength=len(medians))
    return rows[index], sample_weights, sizes - sampled


def without_negative_weights(
    samples: Floats, sample_weights: Floats, medians: Floats, median_weights: Floats
) -> tuple[Floats, Floats]:
    """Return non-negative weights of one client's coreset, as solving k-median requires.

    A negative weight of a median becomes 0, and the weights of the samples nearest to the median are scaled down until
    they add up to the number of rows nearest to it. So the total weight around each median stays. Setting the negative
    weight to 0 is not enough: a row very near its median is drawn rarely, but with an immense weight, which the
    median's negative weight cancels.
    """
    labels = nearest_center(samples, medians)
    sampled = np.bincount(labels, weights=sample_weights, minlength=len(medians))
    sizes = np.maximum(sampled + median_weights, 0.0)
    scale = np.divide(sizes, sampled, out=np.ones(len(medians)), where=sampled > sizes)
    return sample_weights * scale[labels], np.maximum(median_weights, 0.0)
