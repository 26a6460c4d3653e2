"""First centers for k-means: from public rows, at random without any rows, or from a client's own rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.kmeans import (
    cluster_sums,
    nearest_center,
    squared_distances,
    within_margin,
)
from flower_fedclust.numerics.vectors import top_eigenvectors

Floats = NDArray[np.float64]

#: The number of starts of k-means on rows that are at hand: with one start, about half of the seeds merge two clusters.
N_RESTARTS = 10

#: If a matrix has more rows and more columns than this, its top singular vectors are computed by a randomized method.
MOST_DECOMPOSED = 500


def weighted_kmeans(
    rows: Floats,
    weights: Floats | None,
    n_clusters: int,
    rng: np.random.Generator,
    *,
    n_init: int = N_RESTARTS,
) -> Floats:
    """Return the centers of the best of several runs of scikit-learn's k-means, of shape (n_clusters, n_columns).

    Weights, of shape (n_rows,), are not negative, and not all zero; None gives every row the weight 1.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    estimator = KMeans(n_clusters, n_init=n_init, random_state=int(rng.integers(2**31)))
    with warnings.catch_warnings():
        # scikit-learn warns if there are fewer different rows than clusters; some centers then coincide.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(estimator.fit(rows, sample_weight=weights).cluster_centers_)


def server_kmeans_plusplus(
    server_rows: Floats,
    n_clusters: int,
    radius: float,
    rng: np.random.Generator,
) -> Floats:
    """Draw centers among the server rows by k-means++ (ServerKMeans++, FedDP-KMeans section 5)."""
    from sklearn.cluster import kmeans_plusplus

    centers, _ = kmeans_plusplus(server_rows, n_clusters, random_state=int(rng.integers(2**31)))
    return np.asarray(centers)


def server_lloyds(
    server_rows: Floats,
    n_clusters: int,
    radius: float,
    rng: np.random.Generator,
) -> Floats:
    """Cluster the server rows (ServerLloyds, FedDP-KMeans section 5)."""
    return weighted_kmeans(server_rows, None, n_clusters, rng)


def sphere_packing(
    server_rows: Floats, n_clusters: int, radius: float, rng: np.random.Generator
) -> Floats:
    """Spread centers over the cube without looking at any row (FedDP-KMeans appendix G.3).

    Random centers are drawn in the cube ``[-radius, radius]^d`` one after the other, with 1,000 attempts for each. A
    center must be at least ``a`` from the corners of the cube and ``2 a`` from the centers before it. Bisection finds
    the largest ``a`` for which this succeeds. Of the server's rows only the number of columns is used.
    """
    n_columns = server_rows.shape[1]

    def packed(a: float) -> Floats | None:
        centers = np.empty((n_clusters, n_columns))
        for index in range(n_clusters):
            attempts = rng.uniform(-radius, radius, size=(1000, n_columns))
            feasible = np.linalg.norm(radius - np.abs(attempts), axis=1) >= a
            for center in centers[:index]:
                feasible &= np.linalg.norm(attempts - center, axis=1) >= 2 * a
            if not feasible.any():
                return None
            centers[index] = attempts[feasible.argmax()]
        return centers

    low, high = 0.0, radius * np.sqrt(n_columns)
    best = packed(low)
    assert best is not None, "every center is feasible at distance 0"
    for _ in range(20):
        middle = (low + high) / 2
        if (centers := packed(middle)) is None:
            high = middle
        else:
            low, best = middle, centers
    return best


#: The initializations of FedDP-KMeans, appendix G.3, by name.
SERVER_INITIALISATIONS: dict[str, Callable[[Floats, int, float, np.random.Generator], Floats]] = {
    "server-kmeans++": server_kmeans_plusplus,
    "server-lloyds": server_lloyds,
    "sphere-packing": sphere_packing,
}


def top_singular_vectors(rows: Floats, n_vectors: int, rng: np.random.Generator) -> Floats:
    """Return the right singular vectors with the largest singular values, as columns."""
    n_rows, n_columns = rows.shape
    if n_columns <= MOST_DECOMPOSED:
        return top_eigenvectors(rows.T @ rows, n_vectors)
    if n_rows <= MOST_DECOMPOSED:
        left = top_eigenvectors(rows @ rows.T, n_vectors)
        return np.asarray(np.linalg.qr(rows.T @ left)[0])
    from sklearn.utils.extmath import randomized_svd

    return np.asarray(randomized_svd(rows, n_vectors, random_state=int(rng.integers(2**31)))[2].T)


def awasthi_sheffet(rows: Floats, n_clusters: int, rng: np.random.Generator) -> Floats:
    """Cluster rows by the algorithm of Awasthi and Sheffet (2012), which k-FED runs in every client.

    Project the rows onto their top singular vectors; cluster them there; for each center take the mean of the rows
    that are at most a third as far from it as from any other center; and run Lloyd's algorithm from those means.
    Algorithm 3 of FedDP-KMeans is the same. There are at most as many centers as different rows.
    """
    from sklearn.cluster import KMeans

    # Rows are compared as bytes, because np.unique takes minutes for thousands of columns. Adding 0.0 makes -0.0 a 0.0.
    n_different = len(
        np.unique(np.ascontiguousarray(rows + 0.0).view(f"V{rows.itemsize * rows.shape[1]}"))
    )
    n_clusters = min(n_clusters, n_different)
    projected = rows @ top_singular_vectors(rows, n_clusters, rng)
    projected_centers = weighted_kmeans(projected, None, n_clusters, rng)
    labels = nearest_center(projected, projected_centers)
    clear = within_margin(squared_distances(projected, projected_centers), labels, 1 / 3)
    sums, counts = cluster_sums(rows[clear], labels[clear], n_clusters)
    all_sums, all_counts = cluster_sums(rows, labels, n_clusters)
    # A cluster without a clear row starts from the mean of all its rows.
    kept = counts > 0
    centers = (
        np.where(kept[:, None], sums, all_sums)
        / np.where(kept, counts, np.maximum(all_counts, 1))[:, None]
    )
    return np.asarray(
        KMeans(n_clusters, init=centers, n_init=1, max_iter=300).fit(rows).cluster_centers_
    )
