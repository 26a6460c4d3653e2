"""The rank constraint of SPP-FGC: graphs with as many connected components as there are clusters.

Numbers in brackets are equations of He, Wang, Tang, Wang, Wang and Nie, "Towards federated clustering: a client-wise
private graph aggregation framework". In its solutions (6), (13), (22) and (35) negative weights are not set to 0. This
module solves the problems (19) and (32), from which they follow.

Rows are (n_rows, n_columns); C is ``n_clusters``, and k is ``n_neighbors``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.blocks import cached_blocks
from flower_fedclust.numerics.kmeans import squared_distances
from flower_fedclust.numerics.spectral import components_of, with_top_eigenvectors
from flower_fedclust.numerics.structural_graph import (
    StructuralGraph,
    neighbors_of_client,
    structural_graph,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Floats = NDArray[np.float64]
Graph = TypeVar("Graph")

#: The most steps that double or halve the penalty lambda until the graph has as many components as clusters.
RANK_STEPS = 60

#: Up to this number of rows, a dense eigendecomposition is faster than Lanczos' method.
DENSE_ROWS = 500


def constrained_client_graph(rows: Floats, n_clusters: int, n_neighbors: int) -> StructuralGraph:
    """Return a client's graph E^p; if there are more rows than clusters, it has n_clusters components."""
    wanted = neighbors_of_client(len(rows), n_clusters, n_neighbors)
    return (
        rank_constrained_graph(rows, n_clusters, wanted)
        if len(rows) > n_clusters
        else structural_graph(rows, wanted)
    )


def rank_constrained_graph(rows: Floats, n_clusters: int, n_neighbors: int) -> StructuralGraph:
    """Return E^p with the rank constraint of problem (3): as many components as clusters (equations 5, 6, 15 to 22).

    F are the bottom eigenvectors of the graph, found in turn with the graph itself. For given F, problem (19) has for
    rows i and j the distance ``||x_i - x_j||^2 + lambda ||f_i - f_j||^2``: the distance of rows to which ``sqrt(lambda)
    f`` is appended. lambda begins at gamma (27). A component has at least k + 1 rows, which limits k. If the graph has
    too many components even without F, k is doubled first.
    """
    centered = rows - rows.mean(axis=0)
    n_neighbors = max(min(n_neighbors, len(rows) // n_clusters - 1), 1)
    graph = structural_graph(centered, n_neighbors)
    while graph.n_components > n_clusters and n_neighbors < len(rows) - 1:
        n_neighbors = min(2 * n_neighbors, len(rows) - 1)
        graph = structural_graph(centered, n_neighbors)
    penalty = mean_gamma(centered, n_neighbors)
    if penalty == 0:
        return graph  # all rows are equal, or there is only one

    def solved(F: Floats, penalty: float) -> StructuralGraph:
        return structural_graph(np.column_stack([centered, np.sqrt(penalty) * F]), n_neighbors)

    return _of_rank(graph, n_clusters, penalty, solved, lambda graph: graph.symmetric)


def _of_rank(
    graph: Graph,
    n_clusters: int,
    penalty: float,
    solved: Callable[[Floats, float], Graph],
    symmetric: Callable[[Graph], csr_array],
) -> Graph:
    """Solve for the graph and its bottom eigenvectors F in turn, until there are as many components as clusters.

    lambda, the penalty, is doubled while there are too few components, and halved while there are too many.
    """
    F: Floats | None = None
    for _ in range(RANK_STEPS):
        n_components, _ = components_of(symmetric(graph))
        if n_components == n_clusters:
            break
        if n_components < n_clusters or F is None:
            F = bottom_eigenvectors(symmetric(graph), n_clusters)
        penalty *= 2.0 if n_components < n_clusters else 0.5
        graph = solved(F, penalty)
    return graph


def mean_gamma(rows: Floats, n_neighbors: int) -> float:
    """Return gamma (27): the mean over rows of ``k/2 d_k+1 - 1/2 sum_j d_j``, from squared distances d to neighbors."""
    from sklearn.neighbors import NearestNeighbors

    n_wanted = min(n_neighbors + 1, len(rows) - 1)
    if n_wanted < 1:
        return 0.0
    squared = NearestNeighbors(n_neighbors=n_wanted).fit(rows).kneighbors()[0] ** 2
    return float(np.mean(0.5 * np.sum(squared[:, -1:] - squared[:, :n_neighbors], axis=1)))


def bottom_eigenvectors(graph: csr_array, n_vectors: int) -> Floats:
    """Return the eigenvectors of the Laplacian D - A with the smallest eigenvalues (equations 18 and 30).

    Orthonormal columns, by rising eigenvalue, of shape (n_rows, n_vectors). The graph A is symmetric, with non-negative
    weights.
    """
    from scipy.sparse import csr_array, diags_array

    n_rows = graph.shape[0]
    degrees = np.asarray(graph.sum(axis=1)).ravel()
    laplacian = csr_array(diags_array(degrees) - graph)
    if n_rows <= DENSE_ROWS or n_vectors >= n_rows - 1:
        vectors: Floats = np.linalg.eigh(laplacian.toarray())[1][:, :n_vectors]
        return vectors
    # The eigenvalue 0 has one eigenvector for each component.
    n_components, component = components_of(graph)
    known = (component[:, None] == np.arange(min(n_components, n_vectors))).astype(np.float64)
    # The largest eigenvalues of c I - L are the smallest of L; c is twice the largest degree, which bounds them.
    shift = 2.0 * float(degrees.max())
    return with_top_eigenvectors(
        known, lambda vector: shift * vector - laplacian @ vector, n_vectors, deflation=2.0 * shift
    )


def project_to_simplex(points: Floats) -> csr_array:
    """Return the nearest points whose entries are not negative and add up to 1, row by row (Duchi et al. 2008)."""
    from scipy.sparse import csr_array

    n_points, n_entries = points.shape
    # Few entries stay positive, so that an eighth of them is usually enough to find the threshold.
    threshold = _threshold_of_simplex(points, max(n_entries // 8, 64))
    row, column = np.nonzero(points > threshold[:, None])
    starts = np.searchsorted(row, np.arange(n_points + 1))
    # scikit-learn's k-means takes indices of 32 bits only.
    indices, starts = column.astype(np.int32), starts.astype(np.int32)
    return csr_array(
        (points[row, column] - threshold[row], indices, starts), shape=(n_points, n_entries)
    )


def _threshold_of_simplex(points: Floats, n_largest: int) -> Floats:
    """Return what is subtracted from each row; it is found from the ``n_largest`` entries, or more if necessary."""
    first = points.shape[1] - n_largest
    ordered = np.partition(points, first, axis=1)[:, first:] if first > 0 else points
    ordered = np.sort(ordered, axis=1)[:, ::-1]
    excess = np.cumsum(ordered, axis=1) - 1.0
    positions = np.arange(1, ordered.shape[1] + 1)
    n_positive = np.count_nonzero(ordered - excess / positions > 0, axis=1)
    if first > 0 and (n_positive == n_largest).any():
        return _threshold_of_simplex(points, points.shape[1])
    threshold: Floats = excess[np.arange(len(points)), n_positive - 1] / n_positive
    return threshold


def rank_constrained_solution(
    rows_of_graph: Callable[[slice], Floats], n_rows: int, n_clusters: int
) -> tuple[csr_array, Floats]:
    """Return S, the nearest graph to E* with as many components as clusters (problem 11, equation 32).

    ``rows_of_graph`` returns some rows of E*, which as a whole is dense and large.

    Row i of S is the projection of ``e*_i - lambda/2 ||f_i - f_j||^2`` onto the simplex; F are the bottom eigenvectors
    of the Laplacian of S. The paper's (13) and (35) solve another problem, whose distances between rows the server does
    not have.
    """
    from scipy.sparse import csr_array, vstack

    def solved(F: Floats | None, penalty: float) -> csr_array:
        parts = []
        for block in cached_blocks(n_rows, n_rows):
            points = rows_of_graph(block)
            if F is not None:
                points = points - 0.5 * penalty * squared_distances(F[block], F)
            parts.append(project_to_simplex(points))
        return csr_array(vstack(parts))

    def symmetric(S: csr_array) -> csr_array:
        return csr_array(0.5 * (S + S.T))

    S = _of_rank(solved(None, 0.0), n_clusters, 1.0, solved, symmetric)
    return S, bottom_eigenvectors(symmetric(S), n_clusters)
