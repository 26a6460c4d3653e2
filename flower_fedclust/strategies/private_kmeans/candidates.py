"""What the server makes of noisy votes: weights, clusters of candidates, new candidates, centers that noise has moved.

Nothing here sees a row: all of it is computed from what was released.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.kmeans import nearest_center
from flower_fedclust.numerics.vectors import clip_rows

Floats = NDArray[np.float64]

#: The part of the rows that may lie outside of the ball in which the second moment is taken.
PART_OUTSIDE = 0.1
#: Attempts for each point of a packing, and halvings of the distance.
PACKING_ATTEMPTS, PACKING_STEPS = 100, 8


def kept_votes(votes: Floats, total: float) -> Floats:
    """Keep the largest votes until they add up to a total; the rest is taken for noise, and is 0.

    PE-means, where the total is the number of rows.

    Parameters
    ----------
    votes : ndarray of shape (n_candidates,)
        Noise may have made them negative.
    total : float

    Returns
    -------
    ndarray of shape (n_candidates,)
        Not negative.
    """
    order = np.argsort(-votes, kind="stable")
    added_up = np.cumsum(np.maximum(votes[order], 0.0))
    n_kept = int(np.searchsorted(added_up, total)) + 1
    kept = np.zeros(len(votes))
    kept[order[:n_kept]] = np.maximum(votes[order[:n_kept]], 0.0)
    return kept


def clustered(points: Floats, weights: Floats, n_clusters: int, rng: np.random.Generator, *, n_init: int) -> Floats:
    """Return centers of points by weighted k-means; points without weight count only where too few have any.

    Parameters
    ----------
    points : ndarray of shape (n_points, n_columns)
    weights : ndarray of shape (n_points,)
        Not negative.
    n_clusters : int
    rng : numpy.random.Generator
    n_init : int
        Restarts.

    Returns
    -------
    ndarray of shape (n_clusters, n_columns)
        If there are not so many points, some of them come twice.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    heaviest = np.argsort(-weights, kind="stable")[: max(n_clusters, int(np.count_nonzero(weights)))]
    points, weights = points[heaviest], weights[heaviest]
    if len(points) <= n_clusters:
        return np.resize(points, (n_clusters, points.shape[1]))
    if np.count_nonzero(weights) < n_clusters:
        weights = np.maximum(weights, max(float(weights.max()), 1.0) * 1e-6)
    estimator = KMeans(n_clusters, n_init=n_init, max_iter=50, random_state=int(rng.integers(2**31)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # points that coincide: centers coincide then, too
        return np.asarray(estimator.fit(points, sample_weight=weights).cluster_centers_)


def spread_of(points: Floats, weights: Floats, centers: Floats) -> Floats:
    """Return the standard deviation of weighted points about their nearest centers, by column."""
    difference = points - centers[nearest_center(points, centers)]
    return np.asarray(np.sqrt(weights @ difference**2 / max(float(weights.sum()), np.finfo(float).tiny)))


def weight_of(points: Floats, weights: Floats, centers: Floats) -> Floats:
    """Return how much weight is nearest to each center."""
    added_up = np.bincount(nearest_center(points, centers), weights=weights, minlength=len(centers))
    return added_up.astype(np.float64, copy=False)


def shrunk_offsets(offsets: Floats, variance: Floats, directions: Floats, n_inside: int) -> Floats:
    """Shrink noisy offsets of centers by what noise can have added, in the data subspace and outside of it apart.

    Of an offset z with noise of variance v, ``s / (s + v)`` is kept, where s is what the signal's variance seems to be:
    the mean of what the cluster's other entries, and the other clusters' entries in that direction, have above v.

    Parameters
    ----------
    offsets : ndarray of shape (n_clusters, n_columns)
    variance : ndarray of shape (n_clusters,)
        v, of each entry of a cluster's offset.
    directions : ndarray of shape (n_columns, n_columns)
        Orthonormal columns; the first ``n_inside`` span the subspace.
    n_inside : int

    Returns
    -------
    ndarray of shape (n_clusters, n_columns)
    """
    turned = offsets @ directions
    noise = variance[:, None]
    for part in (slice(0, n_inside), slice(n_inside, None)):
        entries = turned[:, part]
        if entries.size == 0:
            continue
        of_direction = np.maximum((entries**2 - noise).mean(axis=0), 0.0)[None, :]
        of_cluster = np.maximum((entries**2).mean(axis=1, keepdims=True) - noise, 0.0)
        signal = (of_direction + of_cluster) / 2
        both = signal + noise
        turned[:, part] = entries * np.divide(signal, both, out=np.zeros_like(both), where=both > 0)
    return np.asarray(turned @ directions.T)


def in_ball(n_points: int, n_columns: int, radius: float, rng: np.random.Generator) -> Floats:
    """Draw points uniformly from the ball."""
    points = rng.standard_normal((n_points, n_columns))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return np.asarray(radius * points * rng.random((n_points, 1)) ** (1 / n_columns))


def packed_in_ball(n_points: int, n_columns: int, radius: float, rng: np.random.Generator) -> Floats:
    """Spread points over a ball: each at least some distance from those before it, which is searched by bisection.

    Returns
    -------
    ndarray of shape (n_points, n_columns)
    """

    def packed(distance: float) -> Floats | None:
        points = np.empty((n_points, n_columns))
        for index in range(n_points):
            attempts = in_ball(PACKING_ATTEMPTS, n_columns, radius, rng)
            before = points[:index]
            squares = np.einsum("ij,ij->i", before, before) - 2 * attempts @ before.T
            nearest = squares.min(axis=1, initial=np.inf) + np.einsum("ij,ij->i", attempts, attempts)
            if nearest.max() < distance**2:
                return None
            points[index] = attempts[int((nearest >= distance**2).argmax())]
        return points

    low, high = 0.0, 2 * radius
    best = in_ball(n_points, n_columns, radius, rng)
    for _ in range(PACKING_STEPS):
        middle = (low + high) / 2
        if (points := packed(middle)) is None:
            high = middle
        else:
            low, best = middle, points
    return best


def levy_steps(shape: tuple[int, ...], beta: float, rng: np.random.Generator) -> Floats:
    """Draw steps with heavy tails, about as Levy's stable law of index beta has them (Mantegna 1994)."""
    from scipy.special import gamma

    scale = (gamma(1 + beta) * np.sin(np.pi * beta / 2) / (gamma((1 + beta) / 2) * beta * 2 ** ((beta - 1) / 2))) ** (
        1 / beta
    )
    return np.asarray(scale * rng.standard_normal(shape) / np.abs(rng.standard_normal(shape)) ** (1 / beta))


def mutants(centers: Floats, n_each: int, step: float, beta: float, radius: float, rng: np.random.Generator) -> Floats:
    """Return centers moved by steps with heavy tails, some of each, within the ball."""
    repeated = np.repeat(centers, n_each, axis=0)
    return clip_rows(repeated + step * levy_steps(repeated.shape, beta, rng), radius)


def class_of_most(classes: Floats, n_units: float, deviation: float) -> int:
    """Return the nearest class outside of which there is but a small part of all, or nothing but noise."""
    outside = np.cumsum(classes)
    for index in range(len(classes) - 1):
        noise = 2 * deviation * math.sqrt(index + 1)
        if outside[index] > max(PART_OUTSIDE * n_units, noise) or outside[index] >= n_units / 2:
            return index
    return len(classes) - 1
