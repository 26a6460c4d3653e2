import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.spatial.distance import cdist

from flower_fedclust.numerics.structural_graph import (
    neighbor_weights,
    neighbors_of_client,
    structural_graph,
)


def other_distances(rows):
    """Squared distances, with infinity for each row and itself."""
    distances = cdist(rows, rows, "sqeuclidean")
    np.fill_diagonal(distances, np.inf)
    return distances


def dense(graph):
    """E^p written out."""
    E = np.zeros((len(graph.neighbors), len(graph.neighbors)))
    np.put_along_axis(E, graph.neighbors, graph.weights, axis=1)
    return E


def projected(point):
    """The nearest point of the simplex, by a search for the number that is taken off."""

    def excess(threshold):
        return np.maximum(point - threshold, 0.0).sum() - 1.0

    return np.maximum(
        point - brentq(excess, point.min() - 2.0, point.max(), xtol=1e-15, rtol=1e-14), 0.0
    )


def solution_of_19(distances, gamma):
    """The row of problem (19), with ``lambda d^f`` among the distances: what (20) projects onto the simplex."""
    return projected(-distances / (2.0 * gamma))


def gamma_of(distances, k):
    """The upper end of (26)."""
    ordered = np.sort(distances)
    return 0.5 * (k * ordered[k] - ordered[:k].sum())


# One row


@given(st.integers(0, 10_000), st.integers(1, 6), st.booleans())
@settings(max_examples=60, deadline=None)
def test_closed_form_is_the_projection_onto_the_simplex(seed, k, with_ties):
    rng = np.random.default_rng(seed)
    distances = rng.integers(1, 6, 9).astype(float) if with_ties else rng.uniform(0, 5, 9)
    ordered = np.sort(distances)
    gamma = gamma_of(distances, k)
    weights = neighbor_weights(ordered[None, : k + 1])[0]
    if gamma > 0:
        np.testing.assert_allclose(weights, solution_of_19(ordered, gamma)[:k], atol=1e-12)
    else:  # all k + 1 are equally far: then gamma does not say anything
        np.testing.assert_array_equal(weights, np.full(k, 1 / k))
    assert weights.sum() == pytest.approx(1.0, abs=1e-14)
    assert (weights >= 0).all()


@pytest.mark.parametrize("k", [1, 3, 6])
def test_equation_26_is_printed_the_wrong_way_round(k):
    distances = np.sort(np.random.default_rng(k).uniform(0.5, 4.0, 12))
    lower = 0.5 * (k * distances[k - 1] - distances[:k].sum())
    upper = gamma_of(distances, k)
    assert lower < upper  # printed as upper < gamma <= lower, which no gamma is
    for part, n_positive in [(1e-6, k), (0.5, k), (1.0, k), (1.0 + 1e-6, k + 1)]:
        gamma = lower + part * (upper - lower)
        assert np.count_nonzero(solution_of_19(distances, gamma) > 1e-12) == n_positive
    if lower > 0:
        assert np.count_nonzero(solution_of_19(distances, lower) > 1e-12) == k - 1


def test_equal_distances_have_equal_weights_though_rounding_makes_them_differ():
    tiny = np.array([[2.0, 2.0 + 5e-16, 2.0 + 9e-16], [0.0, 0.0, 0.0], [7e5, 7e5, 7e5]])
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(neighbor_weights(tiny), np.full((3, 2), 0.5))
    # A difference that is real counts, however small the distances are.
    np.testing.assert_allclose(
        neighbor_weights(np.array([[1e-12, 2e-12, 3e-12]])), [[2 / 3, 1 / 3]]
    )


# All rows


@pytest.mark.parametrize("n_columns", [2, 20])
@pytest.mark.parametrize("k", [1, 3, 10])
def test_graph_is_that_of_a_dense_sort(n_columns, k):
    rows = np.random.default_rng(0).normal(size=(60, n_columns)) + 1000.0
    distances = other_distances(rows)
    expected = np.array(
        [solution_of_19(row[np.isfinite(row)], gamma_of(row, k)) for row in distances]
    )
    graph = structural_graph(rows, k)
    E = dense(graph)
    np.testing.assert_allclose(E[~np.eye(60, dtype=bool)].reshape(60, 59), expected, atol=1e-9)
    assert (np.count_nonzero(E, axis=1) == k).all()
    assert not E.diagonal().any()
    np.testing.assert_allclose(E.sum(axis=1), 1.0, rtol=1e-14)
    assert graph.neighbors.dtype == np.intp
    assert graph.neighbors.shape == graph.weights.shape == (60, k)


@pytest.mark.parametrize("k", [1, 5])
def test_an_edge_counts_as_far_as_both_rows_have_the_same_neighbors(k, monkeypatch):
    # Some rows at a time.
    monkeypatch.setattr("flower_fedclust.numerics.blocks.BLOCK_ENTRIES", 7 * (k + 1) ** 3)
    graph = structural_graph(np.random.default_rng(0).normal(size=(30, 3)), k)
    nearest = [{row, *neighbors} for row, neighbors in enumerate(graph.neighbors.tolist())]
    weighed = graph.by_shared_neighbors()
    np.testing.assert_array_equal(weighed.neighbors, graph.neighbors)
    for row, neighbors in enumerate(graph.neighbors):
        shared = [
            len(nearest[row] & nearest[other]) / len(nearest[row] | nearest[other])
            for other in neighbors
        ]
        np.testing.assert_allclose(weighed.weights[row], graph.weights[row] * shared, rtol=1e-14)
    alone = structural_graph(np.ones((1, 3)), k).by_shared_neighbors()
    assert alone.weights.shape == (1, 0)


@pytest.mark.parametrize("n_copies", [2, 4, 7])
@pytest.mark.parametrize("n_columns", [2, 20])
def test_no_row_is_its_own_neighbor_where_rows_are_equal(n_copies, n_columns):
    # Whole numbers, whose products are exact, so that copies are at the distance 0 on every CPU.
    rows = np.repeat(
        np.random.default_rng(0).integers(-99, 99, size=(6, n_columns)) * 1.0, n_copies, axis=0
    )
    graph = structural_graph(rows, 3)
    E = dense(graph)
    assert not E.diagonal().any()
    np.testing.assert_allclose(E.sum(axis=1), 1.0, rtol=1e-12)
    if n_copies > 4:  # all k + 1 are copies
        np.testing.assert_allclose(graph.weights, 1 / 3, rtol=1e-12)
        assert graph.n_components == 6


@pytest.mark.parametrize("k", [4, 5, 50])
def test_with_as_many_neighbors_as_there_are_rows_every_other_row_has_a_weight(k):
    rows = np.array([[0.0], [1.0], [3.0], [7.0], [20.0]])
    graph = structural_graph(rows, k)
    assert graph.neighbors.shape == (5, 4)
    assert (graph.weights > 0).all()
    np.testing.assert_allclose(graph.weights.sum(axis=1), 1.0, rtol=1e-14)
    # Of row 0: the squares 1, 9, 49, 400, and 400 + their mean in the place of a fifth.
    np.testing.assert_array_equal(graph.neighbors[0], [1, 2, 3, 4])
    gaps = 400 + 459 / 4 - np.array([1, 9, 49, 400])
    np.testing.assert_allclose(graph.weights[0], gaps / gaps.sum(), rtol=1e-12)
    assert graph.n_components == 1


@pytest.mark.parametrize("factor", [1e-9, 0.1, 1e9])
def test_neither_units_nor_the_origin_matter(factor):
    rows = np.random.default_rng(0).normal(size=(40, 3))
    expected = dense(structural_graph(rows, 5))
    np.testing.assert_allclose(dense(structural_graph(factor * rows, 5)), expected, atol=1e-10)
    np.testing.assert_allclose(dense(structural_graph(rows + 1e4, 5)), expected, atol=1e-8)
    turned = rows @ np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    np.testing.assert_allclose(dense(structural_graph(turned, 5)), expected, atol=1e-10)


@pytest.mark.parametrize(
    ("n_rows", "n_clusters", "n_neighbors", "expected"),
    [
        (999, 3, 10, 10),
        (999, 3, 2, 2),
        (48, 3, 10, 8),
        (30, 3, 10, 5),
        (20, 5, 10, 3),
        (4, 3, 10, 3),
        (1, 2, 10, 0),
        (1440, 9, 10, 10),
        (1440, 20, 10, 7),  # a tenth from ten clusters on
        (360, 20, 10, 5),  # but at least 5
        (180, 20, 10, 4),  # if half is
        (4000, 20, 10, 10),
    ],
)
def test_number_of_neighbors_of_a_client(n_rows, n_clusters, n_neighbors, expected):
    assert neighbors_of_client(n_rows, n_clusters, n_neighbors) == expected
