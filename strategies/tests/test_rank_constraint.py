"""The rank constraint of SPP-FGC, in clients and server."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import block_diag, subspace_angles
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from sklearn.datasets import make_blobs, make_moons
from sklearn.metrics import adjusted_rand_score
from test_numerics_structural_graph import dense, gamma_of, other_distances, projected

from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.structural_graph import structural_graph
from flower_fedclust_papers import rank_constraint as module
from flower_fedclust_papers.rank_constraint import (
    bottom_eigenvectors,
    mean_gamma,
    project_to_simplex,
    rank_constrained_graph,
    rank_constrained_solution,
)


def laplacian_of(A):
    return np.diag(A.sum(axis=1)) - A


@pytest.mark.parametrize("k", [1, 4, 10, 29])
def test_mean_gamma_is_equation_27(k):
    rows = np.random.default_rng(0).normal(size=(31, 3))
    expected = np.mean([gamma_of(row, k) for row in other_distances(rows)])
    assert mean_gamma(rows, k) == pytest.approx(expected, rel=1e-10)
    assert mean_gamma(3.0 * rows, k) == pytest.approx(9.0 * expected, rel=1e-10)


# The rank constraint


def rank_data():
    moons, of_moon = make_moons(160, noise=0.05, random_state=0)
    blobs, of_blob = make_blobs(90, centers=[[0, 0], [9, 0], [0, 9]], random_state=0)
    touching, of_touching = make_blobs(150, centers=3, cluster_std=1.0, random_state=0)
    return {
        "moons": (moons, of_moon),
        "blobs": (blobs, of_blob),
        "touching": (touching, of_touching),
    }


@pytest.mark.parametrize("k", [3, 5, 10])
@pytest.mark.parametrize("name", ["moons", "blobs", "touching"])
def test_laplacian_has_the_rank_of_rows_less_clusters(name, k):
    rows, truth = rank_data()[name]
    n_clusters = len(set(truth))
    graph = rank_constrained_graph(rows, n_clusters, k)
    E = dense(graph)
    A = 0.5 * (E + E.T)
    assert np.linalg.matrix_rank(laplacian_of(A), tol=1e-9) == len(rows) - n_clusters
    assert graph.n_components == connected_components(A, directed=False)[0] == n_clusters
    np.testing.assert_allclose(E.sum(axis=1), 1.0, rtol=1e-12)
    if name != "touching":
        assert adjusted_rand_score(truth, connected_components(A, directed=False)[1]) == 1.0


def test_of_more_components_than_clusters_k_is_doubled():
    rows, _ = make_blobs(120, centers=[[0, 0], [9, 0], [0, 40], [9, 40]], random_state=0)
    assert structural_graph(rows, 8).n_components == 4
    graph = rank_constrained_graph(rows, 2, 8)
    assert graph.n_components == 2
    assert graph.neighbors.shape[1] in (16, 32)
    component = connected_components(graph.symmetric, directed=False)[1]
    np.testing.assert_array_equal(component == component[0], (rows[:, 1] > 20) == (rows[0, 1] > 20))


@pytest.mark.parametrize("n_rows", [6, 8, 10, 15])
@pytest.mark.parametrize("n_clusters", [2, 3])
def test_few_rows_get_as_many_components_as_clusters_too(n_rows, n_clusters):
    # A component has k + 1 rows at least: with k = 10 there would be one.
    labels = np.arange(n_rows) % n_clusters
    rows = np.random.default_rng(0).normal(size=(n_rows, 2)) + 20.0 * labels[:, None]
    graph = rank_constrained_graph(rows, n_clusters, 10)
    assert graph.n_components == n_clusters
    component = connected_components(graph.symmetric, directed=False)[1]
    assert adjusted_rand_score(labels, component) == 1.0


# Eigenvectors


def random_graph(rng, n_rows, density=0.1):
    A = np.where(rng.random((n_rows, n_rows)) < density, rng.random((n_rows, n_rows)), 0.0)
    A[np.arange(n_rows - 1), np.arange(1, n_rows)] = 0.3
    A = np.triu(A, 1)
    return A + A.T


@pytest.fixture(params=["dense", "sparse"])
def method(request, monkeypatch):
    monkeypatch.setattr(module, "DENSE_ROWS", 10_000 if request.param == "dense" else 0)
    return request.param


@pytest.mark.parametrize("n_vectors", [1, 2, 5])
def test_bottom_eigenvectors_are_those_of_the_laplacian(method, n_vectors):
    A = random_graph(np.random.default_rng(0), 80)
    values, vectors = np.linalg.eigh(laplacian_of(A))
    found = bottom_eigenvectors(csr_array(A), n_vectors)
    assert found.shape == (80, n_vectors)
    np.testing.assert_allclose(found.T @ found, np.eye(n_vectors), atol=1e-8)
    np.testing.assert_allclose(
        np.diag(found.T @ laplacian_of(A) @ found), values[:n_vectors], atol=1e-5
    )
    assert subspace_angles(found, vectors[:, :n_vectors]).max() < 1e-3


@pytest.mark.parametrize("n_vectors", [1, 4, 6, 8])
def test_bottom_eigenvectors_have_every_component(method, n_vectors):
    # The eigenvalue 0 as often as there are components, of which Lanczos' method finds some.
    rng = np.random.default_rng(1)
    A = block_diag(*[random_graph(rng, 25) for _ in range(6)])
    order = rng.permutation(len(A))
    L = laplacian_of(A[np.ix_(order, order)])
    found = bottom_eigenvectors(csr_array(A[np.ix_(order, order)]), n_vectors)
    expected = np.linalg.eigh(L)[0][:n_vectors]
    np.testing.assert_allclose(found.T @ found, np.eye(n_vectors), atol=1e-8)
    np.testing.assert_allclose(np.diag(found.T @ L @ found), expected, atol=1e-5)
    np.testing.assert_allclose(L @ found[:, :6], 0.0, atol=1e-10)


# The simplex


@given(
    st.integers(0, 10_000), st.integers(1, 12), st.sampled_from([1e-3, 1.0, 50.0]), st.booleans()
)
@settings(max_examples=80, deadline=None)
def test_projection_onto_the_simplex_is_that_of_a_search(seed, n_entries, scale, with_ties):
    rng = np.random.default_rng(seed)
    points = scale * rng.normal(size=(5, n_entries))
    if with_ties:
        points = np.round(points)
    found = project_to_simplex(points).toarray()
    np.testing.assert_allclose(found, [projected(point) for point in points], atol=1e-11)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)


def test_a_point_may_keep_more_entries_than_the_largest_eighth():
    points = np.zeros((2, 1000))
    points[1, :3] = 0.5, 0.4, 0.3
    found = project_to_simplex(points)
    np.testing.assert_allclose(found.toarray(), [projected(point) for point in points], atol=1e-11)


# The server's problem


def global_matrix(seed=0):
    """Clients' graphs of two clusters on the diagonal, and weak blocks that say which clusters are the same."""
    rng = np.random.default_rng(seed)
    cluster = np.tile(np.repeat([0, 1], 10), 3)
    rows = rng.normal(size=(60, 2)) + 8.0 * cluster[:, None]
    E = block_diag(
        *[
            structural_graph(rows[start : start + 20], 4).symmetric.toarray()
            for start in (0, 20, 40)
        ]
    )
    client = np.repeat([0, 1, 2], 20)
    E += np.where((client[:, None] != client) & (cluster[:, None] == cluster), 0.02, 0.0)
    return E + np.where(client[:, None] != client, 0.002, 0.0), cluster


def solution(E, n_clusters):
    return rank_constrained_solution(lambda block: E[block], len(E), n_clusters)


@pytest.mark.parametrize("block_entries", [500, 8_000_000])
def test_server_graph_has_as_many_components_as_clusters(monkeypatch, block_entries):
    monkeypatch.setattr(module, "cached_blocks", partial(blocks, block_entries=block_entries))
    E, cluster = global_matrix()
    S, F = solution(E, 2)
    n_components, component = connected_components(S, directed=False)
    assert n_components == 2
    assert adjusted_rand_score(cluster, component) == 1.0
    dense_S = S.toarray()
    np.testing.assert_allclose(dense_S.sum(axis=1), 1.0, rtol=1e-12)
    assert (dense_S >= 0).all()
    L = laplacian_of(0.5 * (dense_S + dense_S.T))
    assert np.linalg.matrix_rank(L, tol=1e-9) == 60 - 2
    np.testing.assert_allclose(L @ F, 0.0, atol=1e-9)
    np.testing.assert_allclose(F.T @ F, np.eye(2), atol=1e-9)


def test_each_row_of_the_server_graph_solves_problem_32(monkeypatch):
    # The F and lambda of the last step: penalties double from 1, and F comes from the graph before.
    E, _ = global_matrix()
    given_F = []

    def watched(graph, n_vectors):
        given_F.append(bottom_eigenvectors(graph, n_vectors))
        return given_F[-1]

    monkeypatch.setattr(module, "bottom_eigenvectors", watched)
    S, _ = solution(E, 2)
    assert len(given_F) >= 2  # in the steps, and of S
    F, penalty = given_F[-2], 2.0 ** (len(given_F) - 1)
    expected = [
        projected(E[i] - 0.5 * penalty * ((F[i] - F) ** 2).sum(axis=1)) for i in range(len(E))
    ]
    np.testing.assert_allclose(S.toarray(), expected, atol=1e-9)


def test_an_edge_in_one_direction_is_an_edge():
    # Row 2 gives to row 1, which gives nothing back: one component, which has to be split.
    E = np.array([[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0.1, 0.45, 0.45], [0, 0, 0.5, 0.5]])
    S, _ = solution(E, 2)
    np.testing.assert_allclose(S.toarray(), np.kron(np.eye(2), np.full((2, 2), 0.5)), atol=0.01)
    assert connected_components(S, directed=False)[0] == 2
