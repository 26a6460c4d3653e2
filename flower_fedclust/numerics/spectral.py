"""Spectral clustering of rows whose similarities are the inner products of low-rank factors.

The factors F have the shape (n_rows, n_factors), so the similarities are ``F F'``. The graph has the nearest neighbors
of each row or, in the dense variant, all similarities. Graphs are symmetric, of shape (n_rows, n_rows), with weights
that are not negative; embeddings are (n_rows, n_vectors). No dense n x n array is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.kernel import gaussian_kernel
from flower_fedclust.numerics.kmeans import cluster_sums
from flower_fedclust.numerics.neighbors import MOST_EXACT_ROWS, likely_products
from flower_fedclust.numerics.spectrum import variances_along

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]

#: The least degree of a row, as a fraction of the mean degree: without it, degrees could be negative, because inner
#: products of factors can be.
DEGREE_FLOOR = 1e-3

#: The relative tolerance of eigenvectors; k-means would not need them as exact as this.
EIGENVECTOR_TOLERANCE = 1e-6

#: Eigenvalues that differ by less than this, times the deflation, count as equal.
EIGENVALUE_TOLERANCE = 1e-9


def n_neighbors_of(n_rows: int) -> int:
    """Return the default number of neighbors, ``max(ceil(log n), 1)`` (FedSC, appendix D.3; von Luxburg 2007)."""
    return max(math.ceil(math.log(n_rows)), 1)


def largest_products(
    F: Floats,
    queries: Floats,
    n_neighbors: int,
    *,
    without_itself: bool,
    block_entries: int | None = None,
) -> tuple[Integers, Floats]:
    """Return, for each query, the rows of F with the largest inner products, and these products.

    scikit-learn's brute-force search finds them: if ``sqrt(M - ||f||^2)`` is appended to every row f and 0 to every
    query q, their squared Euclidean distance is ``||q||^2 + M - 2 q . f``. ``without_itself`` leaves out row i for
    query i. With it, and more than MOST_EXACT_ROWS rows, the neighbors are approximate (:func:`likely_products`).
    """
    from sklearn.neighbors import NearestNeighbors

    if without_itself and len(F) > MOST_EXACT_ROWS:
        return likely_products(F, queries, n_neighbors, block_entries=block_entries)
    squared_norms = np.einsum("ij,ij->i", F, F)
    largest = float(squared_norms.max())
    searched = np.column_stack([F, np.sqrt(largest - squared_norms)])
    index = NearestNeighbors(n_neighbors=n_neighbors + without_itself, algorithm="brute").fit(
        searched
    )
    found = np.empty((len(queries), n_neighbors), dtype=np.intp)
    products = np.empty((len(queries), n_neighbors))
    for block in blocks(len(queries), F.shape[1] + 1, block_entries=block_entries):
        # Only the direction of a query matters. With equal lengths, no distance loses digits.
        searching = np.column_stack(
            [unit_rows(queries[block]) * np.sqrt(largest), np.zeros(len(queries[block]))]
        )
        distances, candidates = index.kneighbors(searching)
        if without_itself:
            itself = candidates == np.arange(len(F))[block, None]
            # A row need not be the most similar to itself. If it is not among the candidates, drop the last candidate.
            itself[~itself.any(axis=1), -1] = True
            distances, candidates = (
                each[~itself].reshape(-1, n_neighbors) for each in (distances, candidates)
            )
        found[block] = candidates
        scale = np.linalg.norm(queries[block], axis=1, keepdims=True) / (np.sqrt(largest) or 1.0)
        products[block] = (largest - 0.5 * distances**2) * scale
    return found, products


def similarity_graph(
    F: Floats, n_neighbors: int, *, block_entries: int | None = None, sizes: Floats | None = None
) -> csr_array:
    """Return the sparse graph that keeps the largest similarities of every row (FedSC, equation 25).

    The graph is the mean of A and A', where A has the similarities of each row to its k most similar other rows, with 0
    in place of negative ones. ``sizes`` has the number of equal rows that each row stands for, by which its row of A is
    multiplied.
    """
    from scipy.sparse import csr_array

    n_rows = len(F)
    n_neighbors = min(n_neighbors, n_rows - 1)
    if n_neighbors < 1:
        return csr_array((n_rows, n_rows), dtype=np.float64)
    found, _ = largest_products(F, F, n_neighbors, without_itself=True, block_entries=block_entries)
    weights = np.empty(found.shape)
    for block in blocks(n_rows, n_neighbors * F.shape[1], block_entries=block_entries):
        weights[block] = np.einsum("ij,ikj->ik", F[block], F[found[block]])
    if sizes is not None:
        weights *= sizes[:, None]
    return symmetric_graph(found, np.maximum(weights, 0.0))


def symmetric_graph(neighbors: Integers, weights: Floats) -> csr_array:
    """Return the mean of A and A', where row i of A has ``weights[i]`` at ``neighbors[i]``.

    Both are of shape (n_rows, n_neighbors); a weight of 0 is no edge.
    """
    from scipy.sparse import csr_array

    n_rows, n_neighbors = neighbors.shape
    starts = np.arange(n_rows + 1) * n_neighbors
    graph = csr_array((weights.ravel(), neighbors.ravel(), starts), shape=(n_rows, n_rows))
    return csr_array((graph + graph.T) * 0.5)  # a sum of sparse arrays has no explicit zeros


def components_of(graph: csr_array) -> tuple[int, Integers]:
    """Return how many connected components a graph has, and the component of each row."""
    from scipy.sparse.csgraph import connected_components

    n_components, component = connected_components(graph, directed=False)
    return int(n_components), component.astype(np.intp)


def graph_embedding(
    graph: csr_array, n_vectors: int, F: Floats, sizes: Floats | None = None
) -> Floats:
    """Return the embedding of spectral clustering: rows of the top eigenvectors, scaled to norm 1 (Ng et al. 2001).

    The factors F are used only if the graph has more components than clusters (``n_vectors``). The eigenvectors are
    then not unique, so each component is embedded as one point, by the similarities between its rows and all others.
    ``sizes`` has the number of equal rows that each row stands for.
    """
    n_components, component = components_of(graph)
    if n_components > n_vectors:
        sums, _ = cluster_sums(F if sizes is None else F * sizes[:, None], component, n_components)
        embedding: Floats = low_rank_embedding(sums, n_vectors)[component]
        return embedding
    return unit_rows(top_graph_eigenvectors(graph, n_vectors, component))


def top_graph_eigenvectors(graph: csr_array, n_vectors: int, component: Integers) -> Floats:
    """Return the top eigenvectors of ``D^-1/2 A D^-1/2``, as :func:`top_normalized_eigenvectors` does."""
    degrees = np.asarray(graph.sum(axis=1)).ravel()
    return top_normalized_eigenvectors(
        lambda vectors: graph @ vectors, degrees, n_vectors, component
    )


def top_normalized_eigenvectors(
    product: Callable[[Floats], Floats], degrees: Floats, n_vectors: int, component: Integers
) -> Floats:
    """Return the top eigenvectors of ``D^-1/2 A D^-1/2``, for a graph A that is known by its products with vectors.

    The eigenvalue 1 has one known eigenvector for each component: the square roots of the component's degrees. Lanczos'
    method (ARPACK) finds multiple eigenvalues only by chance, so the known eigenvectors are deflated first, and the
    method finds the others.
    """
    n_rows = len(degrees)
    if n_vectors > n_rows:
        padded = np.zeros((n_rows, n_vectors))
        padded[:, :n_rows] = top_normalized_eigenvectors(product, degrees, n_rows, component)
        return padded
    # A row without an edge is a component of its own, whose eigenvector has a single 1.
    degrees = np.where(degrees > 0, degrees, 1.0)
    known = np.zeros((n_rows, int(component.max()) + 1))
    known[np.arange(n_rows), component] = np.sqrt(degrees)
    scale = 1.0 / np.sqrt(degrees)[:, None]
    # The other eigenvalues lie between -1 and 1.
    return with_top_eigenvectors(
        known, lambda vectors: scale * product(scale * vectors), n_vectors, deflation=3.0
    )


def with_top_eigenvectors(
    known: Floats, product: Callable[[Floats], Floats], n_vectors: int, *, deflation: float
) -> Floats:
    """Return the top eigenvectors of a symmetric matrix, of which some are known; the known ones come first.

    The known eigenvectors, which are normalized, belong to the largest eigenvalue. The matrix is given by its products
    with vectors. ``deflation`` is subtracted from known eigenvalues, so that they are below all others. Lanczos' method
    can miss eigenvectors of equal eigenvalues, so the vectors that it found are deflated too, until no larger
    eigenvalue is left.
    """
    known = known / np.linalg.norm(known, axis=0)
    n_rows, n_wanted = len(known), n_vectors - known.shape[1]
    if n_wanted <= 0:
        return known[:, :n_vectors]
    # Every search needs another start, because a search only finds the projection of its start onto an eigenspace.
    rng = np.random.default_rng(0)
    values, vectors = _top_eigenvectors(known, product, n_wanted, deflation, rng)
    for _ in range(n_wanted if n_vectors < n_rows else 0):
        missed, vector = _top_eigenvectors(
            np.column_stack([known, vectors]), product, 1, deflation, rng
        )
        if missed[0] <= values[0] + EIGENVALUE_TOLERANCE * deflation:
            break
        values, vectors = np.append(values[1:], missed), np.column_stack([vectors[:, 1:], vector])
        order = np.argsort(values)
        values, vectors = values[order], vectors[:, order]
    return np.column_stack([known, vectors[:, ::-1]])


def _top_eigenvectors(
    deflated: Floats,
    product: Callable[[Floats], Floats],
    n_wanted: int,
    deflation: float,
    rng: np.random.Generator,
) -> tuple[Floats, Floats]:
    """Return the top eigenvalues and eigenvectors, ascending, after deflation of the columns of ``deflated``."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    n_rows = len(deflated)

    def matrix(vector: Floats) -> Floats:
        vector = vector.reshape(n_rows, -1)
        result: Floats = product(vector) - deflation * (deflated @ (deflated.T @ vector))
        return result

    if n_wanted >= n_rows - 1:  # Lanczos' method cannot give all eigenvectors; the matrix is tiny
        values, vectors = np.linalg.eigh(matrix(np.eye(n_rows)))
        return values[-n_wanted:], vectors[:, -n_wanted:]
    start = rng.standard_normal(n_rows)
    values, vectors = eigsh(
        LinearOperator((n_rows, n_rows), matvec=matrix, dtype=np.float64),
        k=n_wanted,
        which="LA",
        v0=start - deflated @ (deflated.T @ start),
        # Twice the usual basis: the eigenvalues of a neighbor graph cluster below the largest.
        ncv=min(n_rows, max(4 * n_wanted + 1, 40)),
        maxiter=100 * n_rows,
        tol=EIGENVECTOR_TOLERANCE,
    )
    return values, vectors


def degree_floor(total: Floats, n_rows: float, *, floor: float = DEGREE_FLOOR) -> float:
    """Return the least degree of a row: the fraction ``floor`` of the mean row sum of ``F F'``; ``total`` is F'1."""
    return max(floor * float(total @ total) / max(n_rows, 1.0), float(np.finfo(float).tiny))


def spectral_projection(normalized_moment: Floats, n_vectors: int, noise: float = 0.0) -> Floats:
    """Return the linear map from factors to the spectral embedding with the dense similarities ``F F'``.

    With ``G = D^-1/2 F``, the top eigenvectors of ``G G'`` (n x n) are ``G V S^-1/2``, where V and S are the
    eigenvectors and eigenvalues of ``G' G = F' D^-1 F``. Rows of the embedding are scaled to norm 1, so D makes no
    difference for them. If ``G' G`` has noise, of the standard deviation ``noise`` on the diagonal, S has estimates of
    the squared norms of the columns of ``G V`` instead of the eigenvalues.
    """
    ascending, vectors = np.linalg.eigh(normalized_moment)
    values = variances_along(ascending[::-1], noise)[:n_vectors]
    vectors = vectors[:, ::-1][:, :n_vectors]

    # Values that are 0 up to rounding stand for no direction.
    n_factors = len(vectors)
    least = float(values[0]) * n_factors * np.finfo(float).eps
    roots = np.sqrt(np.maximum(values, 0.0))
    scale = np.divide(1.0, roots, out=np.zeros_like(values), where=values > least)

    # With fewer factors than vectors, the last columns stay 0.
    projection = np.zeros((n_factors, n_vectors))
    projection[:, : vectors.shape[1]] = vectors * scale
    return projection


def low_rank_embedding(F: Floats, n_vectors: int) -> Floats:
    """Return the embedding of spectral clustering with the dense similarities ``F F'``: rows of norm 1, or 0."""
    total = F.sum(axis=0)
    degrees = np.maximum(F @ total, degree_floor(total, len(F)))
    return unit_rows(F @ spectral_projection(normalized_moment(F, degrees), n_vectors))


def normalized_moment(F: Floats, degrees: Floats) -> Floats:
    """Return ``F' D^-1 F``, of shape (n_factors, n_factors): a sum over rows."""
    moment: Floats = F.T @ (F / degrees[:, None])
    return moment


def unit_rows(rows: Floats) -> Floats:
    """Return rows scaled to Euclidean norm 1; a row of zeros stays."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled: Floats = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    return scaled


def fitted_projection(F: Floats, embedding: Floats, *, penalty: float = 1e-3) -> Floats:
    """Return the linear map from factors to an embedding, by ridge regression; it gives new rows their places."""
    gram: Floats = F.T @ F
    gram[np.diag_indices_from(gram)] += penalty
    return np.asarray(np.linalg.solve(gram, F.T @ embedding), dtype=np.float64)


def spectral_coordinates(rows: Floats, Z: Floats, projection: Floats, bandwidth: float) -> Floats:
    """Return the places of rows in a spectral embedding that is linear in their kernel values with the atoms Z.

    The place of a row x is ``k(x, Z) P`` scaled to norm 1, or 0 if all of its kernel values vanish.
    """
    coordinates = np.empty((len(rows), projection.shape[1]))
    for block in blocks(len(rows), len(Z)):
        coordinates[block] = unit_rows(gaussian_kernel(rows[block], Z, bandwidth) @ projection)
    return coordinates
