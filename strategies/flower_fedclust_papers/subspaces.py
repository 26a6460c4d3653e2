"""Clustering rows by the subspaces that they lie in: expressing rows by other rows, graphs of rows, and bases.

A subspace here goes through the origin. Rows are compared by their directions, up to the sign: x and -x span one line.

Rows are (n_rows, n_columns). The nodes of a graph are rows, or groups of rows; ``groups``, (n_rows,), has each row's
group. Graphs are symmetric, with non-negative weights. A basis is orthonormal, (n_dimensions,
n_columns).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.blocks import blocks, cached_blocks
from flower_fedclust.numerics.spectral import (
    components_of,
    low_rank_embedding,
    symmetric_graph,
    top_graph_eigenvectors,
    unit_rows,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]

#: A row's self-expression is final when its duality gap is at most this fraction of ``||x||^2 / 2``.
EXPRESSION_TOLERANCE = 1e-4

#: The most steps of a self-expression. Some hundreds are usual, and a few thousand for almost collinear rows.
MAX_EXPRESSION_STEPS = 10_000

#: Smaller cosines count as 0: they are rounding errors of orthogonal rows.
ORTHOGONAL = 1e-12

#: Steps between two checks of the duality gaps; a check costs as much as ten steps.
_STEPS_PER_LOOK = 20

#: Two parameters of ADMM, which solves the Lasso: its penalty, over the penalty of the Lasso; and its over-relaxation,
#: between 1 and 2.
_STEP_PENALTY = 10.0
_RELAXATION = 1.8

#: What is added to the diagonal of products of rows before they are inverted, over the rows' squared lengths.
_RIDGE = 1e-12

#: A solution on a support of s of the n rows takes s^2 products of rows. It is worth the time if s^2 is at most this
#: many times n: of wide rows with much noise most are in the support, and ADMM is ten times as fast.
_LARGEST_SUPPORT = 4


def self_expression(
    rows: Floats,
    alpha: float,
    *,
    groups: Integers | None = None,
    tolerance: float = EXPRESSION_TOLERANCE,
    max_steps: int = MAX_EXPRESSION_STEPS,
) -> csr_array:
    """Express every row by few other rows: the Lasso of sparse subspace clustering.

    Row i of C minimizes ``||x_i - C_i X||^2 / 2 + lambda_i ||C_i||_1`` with ``C_ii = 0``, where
    ``lambda_i = max_j |x_i . x_j| / alpha``: at ``alpha = 1``, C is 0.

    ADMM solves for some rows together: given the singular vectors of X, a step is two matrix products, without an array
    of all pairs of rows. A row drops out when the solution on the support that ADMM has found is good enough.
    """
    from scipy.sparse import csr_array, vstack

    groups = np.arange(len(rows)) if groups is None else groups
    U, singular_values, _ = np.linalg.svd(rows, full_matrices=False)
    parts = [
        _expression_of(block, rows, groups, U, singular_values**2, alpha, tolerance, max_steps)
        for block in cached_blocks(len(rows), len(rows))
    ]
    return csr_array(vstack(parts, format="csr"))


def _expression_of(
    block: slice,
    rows: Floats,
    groups: Integers,
    U: Floats,
    squared_values: Floats,
    alpha: float,
    tolerance: float,
    max_steps: int,
) -> csr_array:
    """Return the rows of C for a block of rows. In the computation each of them is a column."""
    from scipy.sparse import csr_array

    expressed = np.zeros((len(rows), len(rows[block])))
    products, same_group = rows @ rows[block].T, groups[:, None] == groups[None, block]
    penalties = _largest(products, np.nonzero(same_group)) / alpha
    lengths = np.einsum("ij,ij->i", rows[block], rows[block])
    # The columns that have not converged. For each of them ADMM has a smooth solution and a scaled multiplier; their
    # difference is the sparse solution.
    longest = np.linalg.norm(rows, axis=1).max()
    left = np.flatnonzero(penalties * alpha > ORTHOGONAL * longest * np.sqrt(lengths))
    smooth = np.zeros((len(rows), len(left)))
    multiplier, step = np.zeros_like(smooth), 0
    while len(left):
        n_steps = min(_STEPS_PER_LOOK, max_steps - step)
        stiffness, forbidden = _STEP_PENALTY * penalties[left], np.nonzero(same_group[:, left])
        shrinkage = squared_values[:, None] / (squared_values[:, None] + stiffness)
        target = products[:, left] / stiffness
        _take_steps(smooth, multiplier, target, U, shrinkage, forbidden, n_steps)
        step += n_steps
        sparse = _on_its_support(smooth - multiplier, rows, products[:, left], penalties[left])
        gaps = _duality_gaps(rows, rows[block][left], sparse, forbidden, penalties[left])
        kept = gaps > tolerance * 0.5 * lengths[left]
        if step == max_steps and kept.any():
            warnings.warn(
                f"the self-expression of {int(kept.sum())} rows is not exact after {max_steps} steps.",
                RuntimeWarning,
                stacklevel=4,
            )
            kept[:] = False
        if not kept.all():
            expressed[:, left[~kept]] = sparse[:, ~kept]
            left, smooth, multiplier = left[kept], smooth[:, kept], multiplier[:, kept]
    return csr_array(expressed.T)


def _take_steps(
    smooth: Floats,
    multiplier: Floats,
    target: Floats,
    U: Floats,
    shrinkage: Floats,
    forbidden: tuple[Integers, ...],
    n_steps: int,
) -> None:
    """Take steps of ADMM, in place. The sparse solution, S - M, is 0 at the forbidden entries: the own groups."""
    # The penalty of the Lasso over the stiffness is the same for all columns.
    most = 1.0 / _STEP_PENALTY
    change = np.empty_like(smooth)
    for _ in range(n_steps):
        # S becomes S + r (T - M - U d U' (S - 2 M + T)), where T is the target, and U d U' is X X' (X X' + s I)^-1 with
        # the stiffness s of each column.
        np.multiply(multiplier, -2.0, out=change)
        change += smooth
        change += target
        np.matmul(U, shrinkage * (U.T @ change), out=change)
        change += multiplier
        change -= target
        change *= _RELAXATION
        smooth -= change
        np.clip(smooth, -most, most, out=multiplier)
        multiplier[forbidden] = smooth[forbidden]


def _on_its_support(sparse: Floats, rows: Floats, products: Floats, penalties: Floats) -> Floats:
    """Solve each column exactly, given which of its entries are not 0 and their signs.

    A column stays as it is where the solution has other signs, or the support is large or has more rows than columns.
    ADMM finds the support in about half of the steps after which its own solution has converged.
    """
    columns, entries = np.nonzero(sparse.T)
    sizes = np.bincount(columns, minlength=sparse.shape[1])
    places = np.arange(len(columns)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    largest = min(rows.shape[1], math.isqrt(_LARGEST_SUPPORT * len(rows)))
    solvable = sizes[columns] <= largest
    columns, entries, places = columns[solvable], entries[solvable], places[solvable]
    if not len(columns):
        return sparse
    # X_S for each column, padded with rows of zeros.
    n_places = int(places.max()) + 1
    support = np.zeros((len(sizes), n_places, rows.shape[1]))
    support[columns, places] = rows[entries]
    right = np.zeros((len(sizes), n_places, 1))
    signs = np.sign(sparse[entries, columns])
    right[columns, places, 0] = products[entries, columns] - penalties[columns] * signs
    gram = support @ support.transpose(0, 2, 1)
    padded = np.ones((len(sizes), n_places))
    padded[columns, places] = _RIDGE * gram[columns, places, places]
    gram[:, np.arange(n_places), np.arange(n_places)] += padded
    solution = np.linalg.solve(gram, right)[columns, places, 0]
    changed = np.zeros(len(sizes), dtype=bool)
    changed[columns[solution * signs <= 0]] = True
    solved = ~changed[columns]
    found = sparse.copy()
    found[entries[solved], columns[solved]] = solution[solved]
    return found


def _largest(products: Floats, forbidden: tuple[Integers, ...]) -> Floats:
    """Return the largest absolute value of each column, without a row's own group."""
    magnitudes = np.abs(products)
    magnitudes[forbidden] = 0.0
    largest: Floats = magnitudes.max(axis=0)
    return largest


def _duality_gaps(
    rows: Floats,
    expressed: Floats,
    sparse: Floats,
    forbidden: tuple[Integers, ...],
    penalties: Floats,
) -> Floats:
    """Return an upper bound on how far the objective of each column is above its minimum.

    The residual, shortened until its product with every row is at most the penalty, is a point of the dual problem.
    """
    residuals = expressed - sparse.T @ rows
    largest = _largest(rows @ residuals.T, forbidden)
    scale = np.minimum(1.0, penalties / np.maximum(largest, np.finfo(float).tiny))
    primal = 0.5 * np.einsum("ij,ij->i", residuals, residuals) + penalties * np.abs(sparse).sum(
        axis=0
    )
    short = expressed - scale[:, None] * residuals
    dual = 0.5 * np.einsum("ij,ij->i", expressed, expressed) - 0.5 * np.einsum(
        "ij,ij->i", short, short
    )
    gaps: Floats = primal - dual
    return gaps


def expression_graph(C: csr_array, groups: Integers | None = None) -> csr_array:
    """Return the graph ``|C| + |C|'``, where C comes from :func:`self_expression`.

    The weight between two groups is the sum over their pairs of rows.
    """
    from scipy.sparse import csr_array

    weights = csr_array(abs(C) + abs(C).T)
    return weights if groups is None else _between_groups(weights, groups)


def angle_graph(rows: Floats, n_neighbors: int, groups: Integers | None = None) -> csr_array:
    """Return the graph of thresholding-based subspace clustering (Heckel and Bölcskei 2015) of rows of norm 1 or 0.

    The weight between two rows is ``exp(-2 arccos |x_i . x_j|)`` if each is among the other's q nearest by angle (q is
    ``n_neighbors``), half of that if only one of them is, and 0 if they are orthogonal. Rows of one group are never
    neighbors. The weight between two groups is the sum over their pairs of rows.
    """
    from scipy.sparse import csr_array

    group_of_row = np.arange(len(rows)) if groups is None else groups
    n_neighbors = min(n_neighbors, len(rows) - 1)
    if n_neighbors < 1:
        return csr_array((len(rows), len(rows)), dtype=np.float64)
    neighbors = np.empty((len(rows), n_neighbors), dtype=np.intp)
    cosines = np.empty(neighbors.shape)
    for block in blocks(len(rows), len(rows)):
        similar = np.where(
            group_of_row[block, None] == group_of_row[None, :], 0.0, np.abs(rows[block] @ rows.T)
        )
        neighbors[block] = np.argpartition(similar, -n_neighbors, axis=1)[:, -n_neighbors:]
        cosines[block] = np.take_along_axis(similar, neighbors[block], axis=1)
    weights = np.where(
        cosines > ORTHOGONAL, np.exp(-2.0 * np.arccos(np.minimum(cosines, 1.0))), 0.0
    )
    graph = symmetric_graph(neighbors, weights)
    return graph if groups is None else _between_groups(graph, groups)


def _between_groups(graph: csr_array, groups: Integers) -> csr_array:
    from scipy.sparse import csr_array

    members = csr_array((np.ones(len(groups)), groups, np.arange(len(groups) + 1)))
    return csr_array(members.T @ graph @ members)


def n_clusters_by_eigengap(graph: csr_array, at_most: int) -> int:
    """Return the number of clusters of a graph, at most ``at_most``, by its largest eigengap."""
    n_components, component = components_of(graph)
    at_most = min(at_most, graph.shape[0])
    if n_components >= at_most:
        return at_most
    vectors = top_graph_eigenvectors(graph, min(at_most + 1, graph.shape[0]), component)
    degrees = np.asarray(graph.sum(axis=1)).ravel()
    scaled = vectors / np.sqrt(np.where(degrees > 0, degrees, 1.0))[:, None]
    # The eigenvectors of D^-1/2 A D^-1/2, where a row without an edge counts as a row with a loop.
    values = np.einsum("ij,ij->j", scaled, graph @ scaled) + np.sum(
        vectors[degrees <= 0] ** 2, axis=0
    )
    values = np.sort(values)[::-1]
    return int(np.argmax(values[:-1] - values[1:])) + 1


def subspace_embedding(
    graph: csr_array, rows: Floats, n_vectors: int, groups: Integers | None = None
) -> Floats:
    """Return the embedding of spectral clustering: rows of the top eigenvectors, scaled to norm 1 (Ng et al. 2001).

    Rows, of norm 1, are used only if the graph has more components than clusters (``n_vectors``). Then the eigenvectors
    are not unique, and each component is embedded as one point, by the squared cosines between its rows and all others.
    """
    from scipy.sparse import csr_array

    n_components, component = components_of(graph)
    if n_components <= n_vectors:
        return unit_rows(top_graph_eigenvectors(graph, n_vectors, component))
    of_rows = component if groups is None else component[groups]
    members = csr_array(
        (np.ones(len(rows)), of_rows, np.arange(len(rows) + 1)), shape=(len(rows), n_components)
    )
    similarities = np.zeros((n_components, n_components))
    for block in blocks(len(rows), len(rows)):
        similarities += members[block].T @ ((rows[block] @ rows.T) ** 2 @ members)
    # Squared cosines are inner products of outer products, so that the matrix has a root.
    values, vectors = np.linalg.eigh(similarities)
    embedding: Floats = low_rank_embedding(vectors * np.sqrt(np.maximum(values, 0.0)), n_vectors)[
        component
    ]
    return embedding


def subspace_basis(rows: Floats, *, energy: float = 1.0, n_dimensions: int | None = None) -> Floats:
    """Return an orthonormal basis of the subspace in or near which the rows lie: their top right singular vectors."""
    _, values, vectors = np.linalg.svd(rows, full_matrices=False)
    rank = int(np.count_nonzero(values > values[0] * max(rows.shape) * np.finfo(float).eps))
    if n_dimensions is None:
        kept = np.cumsum(values**2)
        n_dimensions = int(np.searchsorted(kept, energy * kept[-1])) + 1
    basis: Floats = vectors[: min(n_dimensions, rank)]
    return basis


def draw_from_sphere(basis: Floats, n_points: int, rng: np.random.Generator) -> Floats:
    """Draw points uniformly from the unit sphere of a subspace, of shape (n_points, n_columns)."""
    return unit_rows(unit_rows(rng.standard_normal((n_points, len(basis)))) @ basis)


def squared_residuals(rows: Floats, bases: Sequence[Floats]) -> Floats:
    """Return the squared distance of every row from every subspace, of shape (n_rows, n_subspaces).

    In squared units of the rows. A basis of 0 vectors is the origin alone.
    """
    residuals = np.empty((len(rows), len(bases)))
    for block in blocks(len(rows), rows.shape[1]):
        for index, basis in enumerate(bases):
            # The residual itself, not the difference of two norms, which would lose the digits of a small one.
            away = rows[block] - (rows[block] @ basis.T) @ basis
            residuals[block, index] = np.einsum("ij,ij->i", away, away)
    return residuals
