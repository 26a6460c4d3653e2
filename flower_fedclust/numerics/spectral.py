"""Spectral clustering from low-rank factors: the neighbor graph, its eigenvectors, and the dense variant.

The inner products of factors F, of shape (n_rows, n_factors), are the similarities of rows. Graphs are symmetric, of
shape (n_rows, n_rows), with non-negative weights; embeddings are (n_rows, n_vectors). No dense n x n array is made.
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

#: Least degree of a row, as a part of the mean degree; inner products of factors can be negative.
DEGREE_FLOOR = 1e-3

#: Relative tolerance of eigenvectors; k-means needs far less.
EIGENVECTOR_TOLERANCE = 1e-6

#: Eigenvalues that differ by less, as a part of the deflation, are taken as equal.
EIGENVALUE_TOLERANCE = 1e-9


def n_neighbors_of(n_rows: int) -> int:
    """Return ``max(ceil(log n), 1)`` (FedSC, appendix D.3, after von Luxburg 2007)."""
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

    By scikit-learn's brute-force nearest neighbors: with ``sqrt(M - ||f||^2)`` appended to every row f and 0 to every
    query q, ``||q||^2 + M - 2 q . f`` is a squared Euclidean distance. ``without_itself`` leaves row i out for query i;
    then many rows have approximate neighbors.
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
            # A row need not be the most similar to itself. If it is not among the candidates, the last one is surplus.
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

    The mean of A and A', where A has the similarities of each row to its k most similar other rows; negative ones are
    0. ``sizes`` says how many equal rows each row stands for: so many times its row of A.
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

    The factors F are used only if the graph has more components than clusters (``n_vectors``). Then the eigenvectors
    are not unique, and each component is embedded as one point, by the similarities between its rows and all others.
    ``sizes`` says how many equal rows each row stands for.
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

    The eigenvalue 1 has one known eigenvector for each component: the square roots of its degrees. Lanczos' method
    (ARPACK) finds multiple eigenvalues only by chance, so these are deflated, and it finds the others.
    """
    n_rows = len(degrees)
    if n_vectors > n_rows:
        padded = np.zeros((n_rows, n_vectors))
        padded[:, :n_rows] = top_normalized_eigenvectors(product, degrees, n_rows, component)
        return padded
    # A row without an edge is a component of its own, and its eigenvector is 1 there.
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
    """Return known eigenvectors of the largest eigenvalue, normalized, and the top others of a symmetric matrix.

    The matrix is known by its products with vectors. ``deflation`` takes known eigenvalues below all others. Lanczos'
    method can miss vectors of equal eigenvalues, so what it found is deflated too, until nothing larger is left.
    """
    known = known / np.linalg.norm(known, axis=0)
    n_rows, n_wanted = len(known), n_vectors - known.shape[1]
    if n_wanted <= 0:
        return known[:, :n_vectors]
    # Every search needs another start, because a start only finds its own projection onto an eigenspace.
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
    """Return the top eigenvalues and eigenvectors in rising order, with the vectors of ``deflated`` taken out."""
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
    """Return the least degree of a row: a part of the mean row sum of ``F F'``."""
    return max(floor * float(total @ total) / max(n_rows, 1.0), float(np.finfo(float).tiny))


def spectral_projection(normalized_moment: Floats, n_vectors: int, noise: float = 0.0) -> Floats:
    """Return the map from factors to the embedding of the dense variant.

    With ``G = D^-1/2 F``, the top eigenvectors of ``G G'`` (n x n) are ``G V S^-1/2``, where V and S are the
    eigenvectors and eigenvalues of ``G' G = F' D^-1 F``. Because rows of the embedding are scaled to norm 1, D drops
    out. With noise in ``G' G``, of this standard deviation on the diagonal, S has the estimated ``V' G' G V``: these
    are the squared norms of the columns of ``G V``.
    """
    values, vectors = np.linalg.eigh(normalized_moment)
    values, vectors = values[::-1], vectors[:, ::-1]  # the largest first
    values, vectors = variances_along(values, noise)[:n_vectors], vectors[:, :n_vectors]
    kept = values > float(values[0]) * len(vectors) * np.finfo(float).eps
    scale = np.divide(1.0, np.sqrt(np.maximum(values, 0.0)), out=np.zeros_like(values), where=kept)
    projection = np.zeros((len(vectors), n_vectors))
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
    """Return the linear map from factors to an embedding, by ridge regression; it places new rows."""
    gram: Floats = F.T @ F
    gram[np.diag_indices_from(gram)] += penalty
    return np.asarray(np.linalg.solve(gram, F.T @ embedding), dtype=np.float64)


def spectral_coordinates(rows: Floats, Z: Floats, projection: Floats, bandwidth: float) -> Floats:
    """Return where rows lie in a spectral embedding that is a linear map P of their kernel values with atoms Z.

    ``k(x, Z) P``, scaled to norm 1; 0 for a row whose kernel values all vanish.
    """
    coordinates = np.empty((len(rows), projection.shape[1]))
    for block in blocks(len(rows), len(Z)):
        coordinates[block] = unit_rows(gaussian_kernel(rows[block], Z, bandwidth) @ projection)
    return coordinates
