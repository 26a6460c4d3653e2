import tracemalloc
import warnings
from functools import partial

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import laplacian
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris
from sklearn.linear_model import Lasso
from sklearn.metrics import adjusted_rand_score

from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.spectral import unit_rows
from flower_fedclust_papers import subspaces
from flower_fedclust_papers.subspaces import (
    angle_graph,
    draw_from_sphere,
    expression_graph,
    n_clusters_by_eigengap,
    self_expression,
    squared_residuals,
    subspace_basis,
    subspace_embedding,
)

RNG = np.random.default_rng(3)
BASES = [np.linalg.qr(RNG.normal(size=(12, 2)))[0].T for _ in range(3)]
CLASSES = RNG.integers(3, size=60)
UNION = unit_rows(np.stack([RNG.normal(size=2) @ BASES[c] for c in CLASSES]))
NOISY = unit_rows(UNION + 0.05 * RNG.normal(size=UNION.shape))
ROWS = {
    "union": UNION,
    "noisy union": NOISY,
    "more columns than rows": unit_rows(RNG.normal(size=(20, 35))),
    "iris": unit_rows(load_iris().data[::6]),
    "copies": np.repeat(NOISY[:20], 2, axis=0),
    "of any length": RNG.normal(size=(30, 8)) * RNG.uniform(0.1, 10, size=(30, 1)),
}


def by_lasso(rows, alpha, groups=None):
    """One Lasso of scikit-learn a row; its penalty is on the mean of the squares."""
    groups = np.arange(len(rows)) if groups is None else groups
    C, penalties = np.zeros((len(rows), len(rows))), np.zeros(len(rows))
    for i, row in enumerate(rows):
        others = np.flatnonzero(groups != groups[i])
        penalties[i] = np.abs(rows[others] @ row).max() / alpha
        estimator = Lasso(
            penalties[i] / len(row), fit_intercept=False, tol=1e-8, max_iter=1_000_000
        )
        C[i, others] = estimator.fit(rows[others].T, row).coef_
    return C, penalties


def objective(rows, C, penalties):
    return 0.5 * np.sum((rows - C @ rows) ** 2, axis=1) + penalties * np.abs(C).sum(axis=1)


# Self-expression


@pytest.mark.parametrize("alpha", [1.5, 50.0])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_self_expression_is_a_lasso_for_every_row(rows, alpha):
    expected, penalties = by_lasso(rows, alpha)
    best = objective(rows, expected, penalties)
    lengths = np.sum(rows**2, axis=1)
    C = self_expression(rows, alpha).toarray()
    assert not C.diagonal().any()
    assert (objective(rows, C, penalties) - best <= 1.001 * 1e-4 * lengths / 2).all()


def test_a_row_of_a_union_of_subspaces_is_expressed_by_rows_of_its_own_subspace():
    C = np.abs(self_expression(UNION, 10.0).toarray())
    assert C[CLASSES[:, None] != CLASSES[None, :]].sum() <= 0.01 * C.sum()


def test_the_units_of_the_rows_change_nothing():
    expected = self_expression(NOISY, 10.0).toarray()
    for unit in (1e-8, 1e8):
        np.testing.assert_allclose(
            self_expression(NOISY * unit, 10.0).toarray(), expected, rtol=0, atol=1e-9
        )


def test_blocks_change_nothing_but_the_last_digits(monkeypatch):
    expected = self_expression(NOISY, 10.0)
    for block_entries in (1, 7 * len(NOISY)):
        monkeypatch.setattr(
            subspaces, "cached_blocks", partial(blocks, block_entries=block_entries)
        )
        C = self_expression(NOISY, 10.0)
        np.testing.assert_allclose(C.toarray(), expected.toarray(), rtol=0, atol=1e-9)


def test_no_array_of_all_pairs_of_rows_is_made():
    rows = unit_rows(np.random.default_rng(0).normal(size=(2000, 5)))
    tracemalloc.start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the few steps
        self_expression(rows, 1.5, max_steps=3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2000**2 * 8 / 2


def test_large_supports_take_little_memory():
    rows = unit_rows(np.random.default_rng(0).normal(size=(300, 200)))
    tracemalloc.start()
    C = self_expression(rows, 50.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert C.nnz > 100 * 300
    assert peak < 20e6


def test_rows_that_are_zero_or_orthogonal_to_all_others_are_expressed_by_none():
    rows = np.zeros((6, 5))
    rows[0, 0] = rows[1, 1] = 1.0
    rows[3:] = unit_rows(np.abs(RNG.normal(size=(3, 5))) * [0, 0, 1, 1, 1])
    C = self_expression(rows, 10.0)
    assert np.flatnonzero(np.diff(C.indptr)).tolist() == [3, 4, 5]
    assert self_expression(np.linalg.qr(RNG.normal(size=(9, 9)))[0], 10.0).nnz == 0
    assert self_expression(np.zeros((4, 3)), 10.0).nnz == 0
    assert self_expression(np.ones((1, 3)), 10.0).shape == (1, 1)


# Graphs


def test_the_graph_of_expressions_is_symmetric_and_adds_up_over_groups():
    C = csr_array(np.where(RNG.random((9, 9)) < 0.4, RNG.normal(size=(9, 9)), 0.0))
    dense = np.abs(C.toarray()) + np.abs(C.toarray()).T
    np.testing.assert_allclose(expression_graph(C).toarray(), dense)
    groups = np.array([0, 0, 1, 2, 2, 2, 3, 1, 0])
    expected = [[dense[np.ix_(groups == a, groups == b)].sum() for b in range(4)] for a in range(4)]
    np.testing.assert_allclose(expression_graph(C, groups).toarray(), expected)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("n_neighbors", [1, 4, 100])
def test_the_graph_of_angles_keeps_the_smallest_of_every_row(n_neighbors, grouped):
    groups = np.arange(len(NOISY)) // (3 if grouped else 1)
    A = np.zeros((len(NOISY), len(NOISY)))
    for i, row in enumerate(NOISY):
        cosines = np.where(groups == groups[i], -1.0, np.abs(NOISY @ row))
        for j in np.argsort(-cosines)[: min(n_neighbors, len(NOISY) - 1)]:
            A[i, j] = np.exp(-2 * np.arccos(cosines[j])) if cosines[j] >= 0 else 0.0
    members = np.eye(groups.max() + 1)[groups]
    graph = angle_graph(NOISY, n_neighbors, groups if grouped else None).toarray()
    np.testing.assert_allclose(graph, members.T @ (A + A.T) / 2 @ members, rtol=1e-9, atol=1e-12)


def blocks_graph(sizes, weight):
    """Complete graphs, with edges of some weight between them."""
    of_node = np.repeat(np.arange(len(sizes)), sizes)
    dense = np.where(of_node[:, None] == of_node[None, :], 1.0, weight)
    np.fill_diagonal(dense, 0.0)
    return csr_array(dense)


@pytest.mark.parametrize("weight", [0.0, 0.01])
@pytest.mark.parametrize("sizes", [[7], [5, 9], [4, 6, 8], [3, 3, 3, 20, 5]])
def test_the_eigengap_counts_groups_that_hardly_hang_together(sizes, weight):
    graph = blocks_graph(sizes, weight)
    for at_most in (len(sizes), len(sizes) + 1, 40):
        assert n_clusters_by_eigengap(graph, at_most) == len(sizes)
    assert 1 <= n_clusters_by_eigengap(graph, 2) <= 2


@pytest.mark.parametrize("seed", range(4))
def test_the_eigengap_is_the_largest_step_of_the_laplacian(seed):
    rng = np.random.default_rng(seed)
    dense = np.triu(rng.random((25, 25)) ** 8, 1)
    dense += dense.T
    steps = np.diff(np.linalg.eigvalsh(laplacian(dense, normed=True)))
    for at_most in (3, 8, 24):
        assert n_clusters_by_eigengap(csr_array(dense), at_most) == np.argmax(steps[:at_most]) + 1


def test_components_and_lonely_nodes_are_counted_as_clusters():
    dense = np.zeros((9, 9))
    dense[:6, :6] = blocks_graph([3, 3], 0.0).toarray()
    assert n_clusters_by_eigengap(csr_array(dense), 7) == 5
    assert n_clusters_by_eigengap(csr_array(dense), 3) == 3
    assert n_clusters_by_eigengap(csr_array((1, 1)), 4) == 1


# The embedding


def clusters(embedding, n_clusters):
    return KMeans(n_clusters, n_init=10, random_state=0).fit_predict(embedding)


def test_more_components_than_clusters_are_merged_by_the_angles_between_their_rows():
    # Each row's graph ends at its own half of its line's rows, and rows of one line point both ways.
    lines = np.eye(3)[np.repeat(np.arange(3), 8)] * np.tile([1, -1], 12)[:, None]
    rows = unit_rows(lines + 0.01 * RNG.normal(size=lines.shape))
    half = np.arange(24) // 4
    graph = csr_array((half[:, None] == half[None, :]).astype(float) - np.eye(24))
    embedding = subspace_embedding(graph, rows, 3)
    assert adjusted_rand_score(clusters(embedding, 3), np.repeat(np.arange(3), 8)) == 1.0
    nodes = subspace_embedding(csr_array((6, 6)), rows, 3, half)
    np.testing.assert_allclose(
        nodes[half] @ nodes[half].T, embedding @ embedding.T, rtol=0, atol=1e-9
    )


# Bases


def test_a_basis_spans_the_rows_and_keeps_the_energy_that_it_should():
    rows = RNG.normal(size=(40, 3)) * [10.0, 1.0, 0.1] @ np.linalg.qr(RNG.normal(size=(9, 3)))[0].T
    share = np.cumsum(np.linalg.svd(rows)[1][:3] ** 2) / np.sum(rows**2)
    for energy, n_dimensions in (
        (share[0] - 1e-6, 1),
        (share[0] + 1e-6, 2),
        (share[1] + 1e-9, 3),
        (1.0, 3),
    ):
        basis = subspace_basis(rows, energy=energy)
        assert basis.shape == (n_dimensions, 9)
        np.testing.assert_allclose(basis @ basis.T, np.eye(n_dimensions), atol=1e-12)
        assert np.sum((rows @ basis.T) ** 2) >= energy * np.sum(rows**2) * (1 - 1e-9)
    assert [len(subspace_basis(rows, energy=0.5, n_dimensions=n)) for n in (1, 2, 3, 7)] == [
        1,
        2,
        3,
        3,
    ]
    np.testing.assert_allclose(np.abs(subspace_basis(rows[:1]) @ unit_rows(rows[:1]).T), 1.0)


def test_points_are_drawn_evenly_from_the_sphere_of_a_subspace():
    points = draw_from_sphere(BASES[0], 20_000, np.random.default_rng(0))
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1.0)
    np.testing.assert_allclose(points @ BASES[0].T @ BASES[0], points, atol=1e-12)
    np.testing.assert_allclose(points.T @ points / 20_000, BASES[0].T @ BASES[0] / 2, atol=0.01)
    np.testing.assert_allclose(points.mean(axis=0), 0.0, atol=0.02)


def test_residuals_are_those_of_least_squares():
    rows = RNG.normal(size=(15, 12)) * 1e4
    bases = [*BASES, np.empty((0, 12)), np.eye(12)]
    expected = [
        [np.sum((row - basis.T @ np.linalg.lstsq(basis.T, row)[0]) ** 2) for basis in bases[:3]]
        for row in rows
    ]
    residuals = squared_residuals(rows, bases)
    np.testing.assert_allclose(residuals[:, :3], expected, rtol=1e-9)
    np.testing.assert_allclose(residuals[:, 3], np.sum(rows**2, axis=1))
    assert (residuals[:, 4] == 0).all()
