"""What somebody who sees a message without noise can find out about the rows.

To judge a level of noise, attack what left the clients of a rehearsal. An attack that fails proves nothing: a better
one may succeed, and only differential privacy bounds them all.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]


def rows_from_codes(
    dictionary: Floats, codes: Floats, *, bandwidth: float, regularization: float
) -> Floats:
    """Recover rows from FedSC's dictionary Z and codes C, each of shape (n_rows, n_atoms).

    A code solves ``(K_zz + λ I) c = k(Z, x)`` (equation 14), so a product gives the kernel values of its row back.
    Appendix D.4 calls this very difficult. Needs more atoms than columns.
    """
    from sklearn.metrics.pairwise import rbf_kernel

    gamma = 1.0 / (2.0 * bandwidth**2)
    # Distances do not change when everything is moved, and near the origin fewer digits of them are lost.
    gram = rbf_kernel(dictionary - dictionary.mean(axis=0), gamma=gamma)
    gram[np.diag_indices_from(gram)] += regularization
    return rows_from_kernel(dictionary, codes @ gram, gamma=gamma)


def rows_from_kernel(landmarks: Floats, kernel: Floats, *, gamma: float) -> Floats:
    """Recover rows from their Gaussian kernel values with known points, which Fed-SpeClust uploads."""
    # Noise leads out of (0, 1]. A value below the rounding error of a product says no more than "far away".
    return _located(landmarks, -np.log(np.clip(kernel, np.finfo(np.float64).eps, 1.0)) / gamma)


def rows_from_distances(landmarks: Floats, distances: Floats) -> Floats:
    """Recover rows from their distances to known points, which Fed-tSNE and Fed-UMAP upload (Algorithm 2, step 2)."""
    return _located(landmarks, distances**2)


def _located(points: Floats, squared_distances: Floats) -> Floats:
    """Return the rows at these distances from the points, by linear least squares; exact if there is no noise."""
    if len(points) <= points.shape[1]:
        raise ValueError(
            f"Rows of {points.shape[1]} columns need more points than these {len(points)}."
        )
    center = points.mean(axis=0)
    moved = points - center
    # ||z_j||^2 - ||x - z_j||^2 = 2 z_j x - ||x||^2. The last is the same for all points, and their mean is 0: least
    # squares leaves it in the residual.
    squared_norms = np.einsum("ij,ij->i", moved, moved)
    offsets: Floats = np.linalg.lstsq(
        2.0 * moved, (squared_norms - squared_distances).T, rcond=None
    )[0].T
    return offsets + center


def clusters_from_codes(codes: Floats, n_clusters: int, *, random_state: int = 0) -> Labels:
    """Cluster rows by k-means on their codes (FedSC, appendix D.4, "Malicious attack on C", and Table 6)."""
    from sklearn.cluster import KMeans

    return np.asarray(
        KMeans(n_clusters, n_init=10, random_state=random_state).fit(codes).labels_, dtype=np.intp
    )


def clusters_from_graph(
    neighbors: Labels, weights: Floats, n_clusters: int, *, random_state: int = 0
) -> Labels:
    """Cluster rows by the graph of their nearest neighbors; both arrays have shape (n_rows, n_neighbors)."""
    from scipy.sparse import csr_array
    from sklearn.cluster import SpectralClustering

    n_rows, n_neighbors = neighbors.shape
    start = np.arange(0, n_rows * n_neighbors + 1, n_neighbors, dtype=np.int32)
    graph = csr_array(
        (weights.ravel(), neighbors.ravel().astype(np.int32), start), shape=(n_rows, n_rows)
    )
    found = SpectralClustering(n_clusters, affinity="precomputed", random_state=random_state)
    with warnings.catch_warnings():
        # Clusters that are far apart make such a graph, and are what the attack looks for.
        warnings.filterwarnings("ignore", "Graph is not fully connected")
        return np.asarray(found.fit_predict(0.5 * (graph + graph.T)), dtype=np.intp)


def relative_errors(recovered: Floats, rows: Floats) -> Floats:
    """Return the error of each recovered row over the row's distance from the mean row.

    An attacker who answers with the mean row has an error of 1; a row well below 1 has been recovered. For a row that
    is the mean row, the error is 0 if it was recovered exactly, and infinite otherwise.
    """
    errors = np.linalg.norm(recovered - rows, axis=1)
    sizes = np.linalg.norm(rows - rows.mean(axis=0), axis=1)
    worst = np.where(errors > 0, np.inf, 0.0)
    relative: Floats = np.divide(errors, sizes, out=worst, where=sizes > 0)
    return relative


def row_from_sums(
    sums: Floats, counts: Labels, sums_before: Floats, counts_before: Labels
) -> Floats:
    """Return the mean of the rows that came or went between two runs, for each cluster whose count has changed.

    Two runs without noise whose tables differ in one row give that row away, whoever else took part in both.
    """
    change = np.asarray(counts, dtype=np.int64) - np.asarray(counts_before, dtype=np.int64)
    changed = np.flatnonzero(change)
    rows: Floats = (sums - sums_before)[changed] / change[changed, None]
    return rows


def membership_from_centers(centers: Floats, rows: Floats) -> Floats:
    """Score how likely each row belongs to a client that sent centers: minus the squared distance to the nearest.

    A center is drawn to the rows that it is a mean of, and is the row itself if its cluster has only one.
    """
    scores: Floats = -np.sum((rows[:, None, :] - centers[None, :, :]) ** 2, axis=2).min(axis=1)
    return scores


def advantage(scores_of_members: Floats, scores_of_others: Floats) -> float:
    """Return how often an attack ranks a member above another row, from 0.5 (a coin) to 1 (always)."""
    above = scores_of_members[:, None] > scores_of_others[None, :]
    equal = scores_of_members[:, None] == scores_of_others[None, :]
    return float(np.mean(above + 0.5 * equal))


def row_by_replay(observed: Sequence[Floats], answers: Sequence[Sequence[Floats]]) -> Floats:
    """Score rows by minus the distance between the message that a client sent and its message with each row.

    Whoever knows a client's other rows can attack every message without noise in this way. ``answers`` has the message
    for each candidate row; a message of another shape scores minus infinity.
    """

    def distance(answer: Sequence[Floats]) -> float:
        if [np.shape(one) for one in answer] != [np.shape(one) for one in observed]:
            return np.inf
        pairs = zip(observed, answer, strict=True)
        return float(
            np.sqrt(
                sum(np.sum((np.asarray(one) - np.asarray(other)) ** 2.0) for one, other in pairs)
            )
        )

    return np.array([-distance(answer) for answer in answers])


def sums_by_evaluations(
    cost: Callable[[Floats], float], n_rows: int, n_columns: int, *, reach: float
) -> Floats:
    """Compute the sum S of a client's rows from the costs that it reports of models which the server makes up.

    A model of one center c costs ``sum ||x||^2 - 2 c'S + n ||c||^2``: one model for each column, at a distance of
    ``reach`` from 0, and one model at 0 give S.
    """
    at_zero = cost(np.zeros((1, n_columns)))
    costs = np.array([cost(reach * axis[None]) for axis in np.eye(n_columns)])
    sums: Floats = (at_zero + n_rows * reach**2 - costs) / (2.0 * reach)
    return sums


def images_from_prototypes(means: Floats, shape: tuple[int, int]) -> Floats:
    """Return prototypes of images as images with entries from 0 to 1."""
    least, most = float(means.min()), float(means.max())
    images: Floats = ((means - least) / max(most - least, np.finfo(np.float64).tiny)).reshape(
        len(means), *shape
    )
    return images
