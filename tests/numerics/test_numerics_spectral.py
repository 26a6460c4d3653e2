import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import block_diag, subspace_angles
from scipy.sparse import csr_array, issparse
from scipy.sparse.csgraph import connected_components
from sklearn.linear_model import Ridge

from flower_fedclust.numerics.spectral import (
    DEGREE_FLOOR,
    degree_floor,
    fitted_projection,
    graph_embedding,
    largest_products,
    low_rank_embedding,
    n_neighbors_of,
    normalized_moment,
    similarity_graph,
    spectral_projection,
    symmetric_graph,
    top_graph_eigenvectors,
    unit_rows,
)

BLOCK_ENTRIES = [64, 10_000_000]


def other_products(F):
    """F F' with minus infinity for each row and itself."""
    products = F @ F.T
    np.fill_diagonal(products, -np.inf)
    return products


def components_of(graph):
    return connected_components(graph, directed=False)[1]


def normalized_dense(graph):
    """D^-1/2 A D^-1/2, where a row without an edge is tied to itself alone."""
    A = graph.toarray()
    alone = A.sum(axis=1) == 0
    A[alone, alone] = 1.0
    roots = np.sqrt(A.sum(axis=1))
    return A / roots[:, None] / roots[None, :]


@pytest.mark.parametrize("n_rows", [1, 2, 3, 8, 150, 70_000])
def test_the_number_of_neighbors_is_the_logarithm_rounded_up(n_rows):
    least = n_neighbors_of(n_rows)
    assert least >= 1
    assert math.exp(least) >= n_rows
    assert least == 1 or math.exp(least - 1) < n_rows


# The most similar rows


@pytest.fixture(
    params=["positive", "of both signs", "all norms", "unit", "one column", "negative products"]
)
def factors(request):
    rng = np.random.default_rng(0)
    normal = rng.normal(size=(60, 5))
    return {
        "positive": abs(normal),
        "of both signs": normal,
        "all norms": normal * 10 ** rng.uniform(-4, 1, (60, 1)),
        "unit": normal / np.linalg.norm(normal, axis=1, keepdims=True),
        "one column": normal[:, :1],
        "negative products": np.vstack([np.eye(5) - 0.25, -np.eye(5)]) + 0.01 * rng.random((10, 5)),
    }[request.param]


@pytest.mark.parametrize("block_entries", BLOCK_ENTRIES)
@pytest.mark.parametrize("n_neighbors", [1, 5, 9])
def test_the_most_similar_rows_are_those_of_a_dense_sort(factors, n_neighbors, block_entries):
    products = other_products(factors)
    found = largest_products(
        factors, factors, n_neighbors, without_itself=True, block_entries=block_entries
    )[0]
    assert found.dtype == np.intp
    assert found.shape == (len(factors), n_neighbors)
    expected = -np.sort(-products, axis=1)[:, :n_neighbors]
    values = -np.sort(-np.take_along_axis(products, found, axis=1), axis=1)
    largest = np.abs(products[np.isfinite(products)]).max()
    np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-12 * largest)
    for i, row in enumerate(found):
        assert i not in row
        assert len(set(row)) == n_neighbors


def test_rows_that_are_equal_have_each_other_and_never_themselves():
    F = np.repeat(np.eye(3), 4, axis=0)
    found = largest_products(F, F, 3, without_itself=True)[0]
    for i, row in enumerate(found):
        assert sorted([i, *row]) == [4 * (i // 4) + number for number in range(4)]
    for n_neighbors in (1, 2, 11):
        found = largest_products(
            np.ones((12, 2)), np.ones((12, 2)), n_neighbors, without_itself=True
        )[0]
        for i, row in enumerate(found):
            assert i not in row
            assert len(set(row)) == n_neighbors


# The graph


@pytest.mark.parametrize("block_entries", BLOCK_ENTRIES)
@pytest.mark.parametrize("n_neighbors", [1, 9])
def test_the_graph_is_the_mean_of_both_directions_of_equation_25(
    factors, n_neighbors, block_entries
):
    products = factors @ factors.T
    expected = np.zeros_like(products)
    for i in range(len(factors)):
        others = [j for j in np.argsort(-products[i]) if j != i][:n_neighbors]
        for j in others:
            expected[i, j] += 0.5 * max(products[i, j], 0.0)
            expected[j, i] += 0.5 * max(products[i, j], 0.0)
    graph = similarity_graph(factors, n_neighbors, block_entries=block_entries)
    assert issparse(graph)
    np.testing.assert_allclose(graph.toarray(), expected, rtol=1e-9, atol=1e-13)


def test_a_symmetric_graph_is_the_mean_of_a_matrix_and_its_transpose():
    neighbors = np.array([[1, 2], [0, 2], [3, 1], [0, 1]])
    weights = np.array([[1.0, 2.0], [3.0, 0.0], [5.0, 0.0], [7.0, 8.0]])
    A = np.zeros((4, 4))
    np.put_along_axis(A, neighbors, weights, axis=1)
    graph = symmetric_graph(neighbors, weights)
    np.testing.assert_array_equal(graph.toarray(), (A + A.T) / 2)
    # Rows 1 and 2 gave each other 0: that is no edge.
    assert graph.nnz == 10


def test_a_graph_of_4000_rows_takes_far_less_memory_than_all_their_pairs():
    F = np.random.default_rng(0).random((4000, 20))
    tracemalloc.start()
    graph = similarity_graph(F, 10, block_entries=20_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert graph.nnz >= 40_000
    assert peak < 5e6  # all pairs are 128 MB


# Its eigenvectors


def random_graph(rng, n_rows, density=0.3):
    """A connected one: a path through all rows, and more edges."""
    A = np.triu(rng.random((n_rows, n_rows)) * (rng.random((n_rows, n_rows)) < density), 1)
    A[np.arange(n_rows - 1), np.arange(1, n_rows)] = rng.uniform(0.1, 1, n_rows - 1)
    return A + A.T


def assert_top_eigenvectors(graph, vectors, n_vectors, tolerance=1e-5):
    M = normalized_dense(graph)
    assert vectors.shape == (graph.shape[0], n_vectors)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(n_vectors), atol=1e-8)
    values, dense = np.linalg.eigh(M)
    values, dense = values[::-1], dense[:, ::-1]
    found = np.einsum("ij,ij->j", vectors, M @ vectors)
    np.testing.assert_allclose(found, values[:n_vectors], atol=tolerance)
    np.testing.assert_allclose(M @ vectors, vectors * found, atol=tolerance)
    if n_vectors < len(values) and values[n_vectors - 1] - values[n_vectors] > 1e-3:
        assert subspace_angles(vectors, dense[:, :n_vectors]).max() < 100 * tolerance


@pytest.mark.parametrize("n_more", [0, 1, 2, 5])
@pytest.mark.parametrize("sizes", [[90], [50, 40], [60, 20, 10], [70, 1], [50, 30, 1]], ids=str)
def test_the_top_eigenvectors_are_those_of_a_dense_solver(sizes, n_more):
    n_vectors = len(sizes) + n_more
    rng = np.random.default_rng(0)
    A = block_diag(*[random_graph(rng, size, 0.1) for size in sizes])
    shuffled = rng.permutation(len(A))
    graph = csr_array(A[shuffled][:, shuffled])
    assert_top_eigenvectors(
        graph, top_graph_eigenvectors(graph, n_vectors, components_of(graph)), n_vectors
    )


@pytest.mark.parametrize("bridge", [1e-3, 1e-12, 1e-300])
@pytest.mark.parametrize(
    ("n_rings", "n_rows"), [(2, 60), (2, 600), pytest.param(5, 600, marks=pytest.mark.long)]
)
def test_rings_with_weak_bridges_are_told_apart(n_rings, n_rows, bridge):
    # Every ring has many eigenvalues as near to 1 as the ones that separate rings, and those are equal.
    ring = np.roll(np.eye(n_rows), 1, axis=1) + np.roll(np.eye(n_rows), 2, axis=1)
    A = block_diag(*[ring + ring.T] * n_rings)
    for first in np.arange(1, n_rings) * n_rows:
        A[0, first] = A[first, 0] = bridge
    vectors = unit_rows(
        top_graph_eigenvectors(csr_array(A), n_rings, np.zeros(len(A), dtype=np.intp))
    )
    of_ring = np.repeat(np.arange(n_rings), n_rows)
    np.testing.assert_allclose(vectors @ vectors.T, of_ring[:, None] == of_ring, atol=0.05)


def test_a_row_of_another_size_finds_the_neighbors_of_its_direction():
    rng = np.random.default_rng(0)
    F = unit_rows(rng.normal(size=(60, 4)))
    expected = np.sort(largest_products(F, F, 5, without_itself=True)[0], axis=1)
    for size in (1e-30, 1e-15):
        F_small = F.copy()
        F_small[7] *= size
        assert np.array_equal(
            np.sort(largest_products(F_small, F_small, 5, without_itself=True)[0], axis=1)[7],
            expected[7],
        )


@settings(max_examples=200, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), n_rows=st.integers(3, 9), wanted=st.integers(1, 9))
def test_small_graphs_have_the_eigenvectors_of_a_dense_solver(seed, n_rows, wanted):
    graph = csr_array(random_graph(np.random.default_rng(seed), n_rows, 0.5))
    # The last of all would be the eigenvalue -1, if the graph has two sides.
    n_vectors = min(wanted, n_rows - 1)
    vectors = top_graph_eigenvectors(graph, n_vectors, components_of(graph))
    assert_top_eigenvectors(graph, vectors, n_vectors)


# The embedding of a graph


@pytest.mark.parametrize("n_components", [1, 2, 3, 5])
def test_as_many_components_as_vectors_are_the_embedding(n_components):
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 20, n_components)
    A = block_diag(*[random_graph(rng, size) for size in sizes])
    graph, labels = csr_array(A), np.repeat(np.arange(n_components), sizes)
    embedding = graph_embedding(graph, n_components, np.ones((len(A), 2)))
    np.testing.assert_allclose(
        embedding @ embedding.T, labels[:, None] == labels[None, :], atol=1e-12
    )


def test_the_embedding_is_the_top_eigenvectors_with_rows_of_norm_1():
    rng = np.random.default_rng(0)
    graph = csr_array(random_graph(rng, 70, 0.1))
    embedding = graph_embedding(graph, 3, rng.random((70, 4)))
    _, dense = np.linalg.eigh(normalized_dense(graph))
    expected = unit_rows(dense[:, -3:])
    np.testing.assert_allclose(embedding @ embedding.T, expected @ expected.T, atol=1e-3)


def pieces(n_pieces, n_rows, seed=0):
    """Components of a graph, the even ones with factors about one direction, the odd ones about another."""
    rng = np.random.default_rng(seed)
    graph = csr_array(block_diag(*[random_graph(rng, n_rows) for _ in range(n_pieces)]))
    component = np.repeat(np.arange(n_pieces), n_rows)
    directions = np.array([[1.0, 0.1, 0.0], [0.1, 1.0, 0.0]])
    return graph, component, directions[component % 2] + rng.uniform(0, 0.2, (len(component), 3))


@pytest.mark.parametrize("n_pieces", [3, 6])
def test_of_more_components_than_vectors_those_with_similar_factors_are_near_each_other(n_pieces):
    graph, component, F = pieces(n_pieces, 8)
    shuffled = np.random.default_rng(1).permutation(len(F))
    graph, component, F = csr_array(graph[shuffled][:, shuffled]), component[shuffled], F[shuffled]
    embedding = graph_embedding(graph, 2, F)
    cosines, similar = embedding @ embedding.T, (component[:, None] - component) % 2 == 0
    assert cosines[similar].min() > 0.9
    assert cosines[~similar].max() < 0.5


@pytest.mark.parametrize("n_zeros", [1, 3, 20, 40])
@pytest.mark.parametrize("n_vectors", [1, 2, 3, 10])
def test_rows_of_zeros_never_make_the_embedding_nan(n_zeros, n_vectors):
    F = np.random.default_rng(0).random((40, 4))
    F[:n_zeros] = 0.0
    with np.errstate(invalid="raise", divide="raise"):
        graph = similarity_graph(F, 5)
        assert np.isfinite(graph.data).all()
        for embedding in (graph_embedding(graph, n_vectors, F), low_rank_embedding(F, n_vectors)):
            assert embedding.shape == (40, n_vectors)
            assert np.isfinite(embedding).all()


# The dense variant


def dense_low_rank_embedding(F, n_vectors):
    similarities = F @ F.T
    degrees = similarities.sum(axis=1)
    degrees = np.maximum(degrees, DEGREE_FLOOR * degrees.mean())
    _, vectors = np.linalg.eigh(similarities / np.sqrt(np.outer(degrees, degrees)))
    return unit_rows(vectors[:, ::-1][:, :n_vectors])


@pytest.mark.parametrize("n_vectors", [1, 2, 3, 5])
@pytest.mark.parametrize("signs", ["positive", "some negative degrees"])
def test_the_low_rank_embedding_is_that_of_the_dense_matrix(n_vectors, signs):
    rng = np.random.default_rng(1)
    F = rng.random((70, 5)) * [2, 1, 1, 1, 0.5]
    if signs != "positive":
        F[:9] -= 1.0
        assert (F @ F.sum(axis=0) < 0).any()
    embedding, expected = low_rank_embedding(F, n_vectors), dense_low_rank_embedding(F, n_vectors)
    for column in range(n_vectors):
        same = np.sign(embedding[:, column] @ expected[:, column])
        np.testing.assert_allclose(embedding[:, column], same * expected[:, column], atol=1e-8)


def test_the_first_column_of_the_low_rank_eigenvectors_is_the_root_of_the_degrees():
    F = np.random.default_rng(0).random((50, 4))
    degrees = (F @ F.T).sum(axis=1)
    first = F @ spectral_projection(normalized_moment(F, degrees), 1)[:, 0] / np.sqrt(degrees)
    np.testing.assert_allclose(abs(first), np.sqrt(degrees / degrees.sum()), rtol=1e-10)


def test_the_columns_of_the_low_rank_eigenvectors_are_orthonormal():
    F = np.random.default_rng(0).random((50, 4))
    degrees = (F @ F.T).sum(axis=1)
    vectors = F @ spectral_projection(normalized_moment(F, degrees), 4) / np.sqrt(degrees)[:, None]
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(4), atol=1e-9)


def test_a_projection_of_a_moment_that_noise_made_negative_is_finite():
    moment = np.diag([0.9, 0.2, -0.1, -3.0])
    with np.errstate(all="raise"):
        projection = spectral_projection(moment, 4)
        np.testing.assert_array_equal(spectral_projection(-np.eye(3), 2), np.zeros((3, 2)))
    np.testing.assert_allclose(
        abs(projection[:, :2]), [[0.9**-0.5, 0], [0, 0.2**-0.5], [0, 0], [0, 0]], atol=1e-12
    )
    np.testing.assert_array_equal(projection[:, 2:], 0.0)


def test_factors_that_add_up_to_0_have_a_finite_embedding():
    F = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert np.isfinite(low_rank_embedding(F, 2)).all()


@pytest.mark.parametrize("floor", [0.0, DEGREE_FLOOR, 0.5])
def test_the_floor_of_the_degrees_is_a_part_of_the_mean_row_sum_of_all_products(floor):
    F = np.random.default_rng(0).random((60, 4))
    F[:6] -= 1.0
    sums = (F @ F.T).sum(axis=1)
    assert (sums < 0).any()
    found = degree_floor(F.sum(axis=0), 60, floor=floor)
    assert found > 0
    assert found == pytest.approx(floor * sums.mean(), rel=1e-12)


def test_the_normalized_moment_is_a_sum_over_clients():
    rng = np.random.default_rng(0)
    F, degrees = rng.random((30, 4)), rng.uniform(1, 2, 30)
    expected = sum(np.outer(row, row) / degree for row, degree in zip(F, degrees, strict=True))
    np.testing.assert_allclose(normalized_moment(F, degrees), expected, rtol=1e-12)
    parts = normalized_moment(F[:10], degrees[:10]) + normalized_moment(F[10:], degrees[10:])
    np.testing.assert_allclose(parts, expected, rtol=1e-12)


# Rows and maps


def test_unit_rows_have_norm_1_or_are_0():
    rows = np.array([[3.0, 4.0], [0.0, 0.0], [1e-200, 0.0], [-2.0, 0.0]])
    with np.errstate(invalid="raise", divide="raise"):
        units = unit_rows(rows)
    np.testing.assert_allclose(units[[0, 1, 3]], [[0.6, 0.8], [0, 0], [-1, 0]], rtol=1e-15)
    assert np.isfinite(units).all()
    np.testing.assert_array_equal(rows[0], [3.0, 4.0])


@pytest.mark.parametrize("penalty", [1e-3, 0.5])
def test_a_fitted_projection_is_scikit_learns_ridge(penalty):
    rng = np.random.default_rng(0)
    F, embedding = rng.normal(size=(50, 6)), rng.normal(size=(50, 3))
    expected = Ridge(penalty, fit_intercept=False).fit(F, embedding).coef_.T
    np.testing.assert_allclose(
        fitted_projection(F, embedding, penalty=penalty), expected, rtol=1e-8
    )
    if penalty == 1e-3:
        np.testing.assert_array_equal(
            fitted_projection(F, embedding), fitted_projection(F, embedding, penalty=penalty)
        )
