"""Approximate neighbors: close to the exact ones, never a row itself, and in a time that grows with the rows."""

import numpy as np
import pytest
from sklearn.datasets import make_blobs
from sklearn.metrics import normalized_mutual_info_score

from flower_fedclust.numerics import spectral
from flower_fedclust.numerics.dictionary import codes, kernel_root, matched_dictionary
from flower_fedclust.numerics.kernel import mean_distance
from flower_fedclust.numerics.kmeans import nearest_center
from flower_fedclust.numerics.neighbors import _cells, likely_products
from flower_fedclust.numerics.nystrom import (
    distances_between,
    landmark_distances,
    nystrom_projection,
)
from flower_fedclust.numerics.spectral import graph_embedding, largest_products, similarity_graph


def overlapping_blobs(n_rows: int):
    return make_blobs(n_rows, n_features=64, centers=10, cluster_std=11.0, random_state=0)


def kernel_factors(rows, n_atoms=300):
    """Return FedSC's factors of rows, which are the queries, too."""
    Z = matched_dictionary(rows.mean(axis=0), rows.std(axis=0), n_atoms, np.random.default_rng(0))
    bandwidth = mean_distance(rows)
    F = codes(rows, Z, bandwidth, 0.01) @ kernel_root(Z, bandwidth)
    return F, F


def distance_factors(rows, n_landmarks=300):
    """Return factors and queries whose products are the negative Nystrom distances of Fed-UMAP."""
    Y = matched_dictionary(
        rows.mean(axis=0), rows.std(axis=0), n_landmarks, np.random.default_rng(0)
    )
    projection, signs = nystrom_projection(distances_between(Y))
    F = landmark_distances(rows, Y) @ projection
    return F, F * -signs


def recall(F, queries, found, sample):
    """Return how many of the exact neighbors of some rows were found."""
    products = queries[sample] @ F.T
    products[np.arange(len(sample)), sample] = -np.inf
    n_neighbors = found.shape[1]
    exact = np.argsort(-products, axis=1)[:, :n_neighbors]
    return np.mean([np.isin(exact[number], found[row]).mean() for number, row in enumerate(sample)])


@pytest.mark.long
@pytest.mark.parametrize("factors", [kernel_factors, distance_factors])
def test_nearly_all_neighbors_among_20_000_rows_are_found(factors):
    F, queries = factors(overlapping_blobs(20_000)[0])
    found, _ = likely_products(F, queries, 10, n_candidates=12_000)
    assert recall(F, queries, found, np.arange(0, 20_000, 50)) >= 0.95


@pytest.mark.parametrize("factors", [kernel_factors, distance_factors])
@pytest.mark.parametrize("n_neighbors", [1, 7, 40])
def test_compared_with_all_rows_the_neighbors_are_exact(factors, n_neighbors):
    F, queries = factors(overlapping_blobs(1_300)[0], 50)
    found, products = likely_products(F, queries, n_neighbors)
    exact, _ = largest_products(F, queries, n_neighbors, without_itself=True)
    assert found.dtype == np.intp
    # Two may be equally near but for rounding.
    assert (np.sort(found, axis=1) == np.sort(exact, axis=1)).mean() > 0.995
    np.testing.assert_allclose(products, np.einsum("ij,ikj->ik", queries, F[found]), rtol=1e-12)
    assert (np.diff(products, axis=1) <= 0).all()


@pytest.mark.parametrize(
    "F", [np.ones((3_000, 2)), np.zeros((3_000, 2)), np.repeat(np.eye(3), 1_000, axis=0)]
)
def test_equal_rows_have_each_other_and_never_themselves(F):
    found, products = likely_products(F, F, 5, n_candidates=10)
    assert (found != np.arange(len(F))[:, None]).all()
    assert (np.diff(np.sort(found, axis=1), axis=1) > 0).all()
    np.testing.assert_array_equal(products, np.repeat((F**2).sum(axis=1)[:, None], 5, axis=1))


def test_a_large_cell_is_cut_so_that_equal_rows_are_not_all_compared():
    order, starts = _cells(np.ones((5_000, 2), dtype=np.float32))
    assert sorted(order) == list(range(5_000))
    assert np.diff(np.append(starts, 5_000)).max() <= 500


@pytest.mark.parametrize("unit", [1e-150, 1.0, 1e70])
def test_neighbors_do_not_depend_on_the_unit(unit):
    F, queries = kernel_factors(overlapping_blobs(1_300)[0], 50)
    expected, _ = likely_products(F, queries, 5)
    found, _ = likely_products(F * unit, queries, 5)
    assert (found == expected).mean() > 0.995


def test_the_same_rows_give_the_same_bits():
    F, queries = distance_factors(overlapping_blobs(3_000)[0], 50)
    one, other = (likely_products(F, queries, 5, n_candidates=500) for _ in range(2))
    np.testing.assert_array_equal(one[0], other[0])
    np.testing.assert_array_equal(one[1], other[1])


@pytest.mark.long
def test_clusters_with_approximate_neighbors_are_nearly_as_good(monkeypatch):
    rows, truth = overlapping_blobs(6_000)
    F, _ = kernel_factors(rows, 100)
    scores = []
    for most in (20_000, 5_999):
        monkeypatch.setattr(spectral, "MOST_EXACT_ROWS", most)
        embedding = graph_embedding(similarity_graph(F, 9), 10, F)
        means = np.array([embedding[truth == cluster].mean(axis=0) for cluster in range(10)])
        scores.append(normalized_mutual_info_score(truth, nearest_center(embedding, means)))
    assert abs(scores[0] - scores[1]) <= 0.01
    assert scores[0] > 0.8
