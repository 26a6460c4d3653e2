import warnings

import numpy as np
import pytest
from scipy.spatial.distance import cdist, pdist
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris, make_blobs

from flower_fedclust.numerics.initialization import (
    awasthi_sheffet,
    server_kmeans_plusplus,
    server_lloyds,
    sphere_packing,
    top_singular_vectors,
    weighted_kmeans,
)
from flower_fedclust.numerics.kmeans import kmeans_cost


def rng(seed=0):
    return np.random.default_rng(seed)


def by_first_column(centers):
    return centers[np.lexsort(centers.T[::-1])]


def separated(seed=0, n_clusters=5, n_columns=8):
    means = rng(seed).normal(0, 30, (n_clusters, n_columns))
    rows, labels = make_blobs(200 * n_clusters, centers=means, cluster_std=1.0, random_state=seed)
    return rows, np.stack([rows[labels == index].mean(axis=0) for index in range(n_clusters)])


def test_integer_weights_are_the_same_as_repeated_rows():
    rows, _ = make_blobs(120, 3, centers=4, cluster_std=0.3, random_state=1)
    weights = rng(2).integers(1, 6, size=len(rows))
    weighted = weighted_kmeans(rows, weights.astype(float), 4, rng())
    repeated = weighted_kmeans(np.repeat(rows, weights, axis=0), None, 4, rng())
    np.testing.assert_allclose(by_first_column(weighted), by_first_column(repeated), rtol=1e-10)
    unweighted = weighted_kmeans(rows, None, 4, rng())
    assert np.abs(by_first_column(weighted) - by_first_column(unweighted)).max() > 1e-3


def test_weighted_kmeans_is_as_good_as_ten_restarts_of_scikit_learn():
    rows, _ = make_blobs(500, 2, centers=12, cluster_std=0.4, random_state=5)
    best = KMeans(12, n_init=10, random_state=7).fit(rows).inertia_
    for seed in range(5):
        assert kmeans_cost(rows, weighted_kmeans(rows, None, 12, rng(seed))) <= 1.05 * best


def test_server_kmeans_plusplus_draws_different_server_rows():
    rows = rng().normal(size=(50, 3))
    centers = server_kmeans_plusplus(rows, 10, 1.0, rng())
    assert (cdist(centers, rows).min(axis=1) == 0).all()
    assert len(np.unique(centers, axis=0)) == 10


def test_server_lloyds_finds_the_means_of_separated_server_rows():
    rows, means = separated()
    centers = server_lloyds(rows, 5, 1.0, rng())
    np.testing.assert_allclose(by_first_column(centers), by_first_column(means), atol=1e-9)


def packing_distance(centers, radius):
    """The largest a that the definition of appendix G.3 allows for these centers."""
    corner = np.linalg.norm(radius - np.abs(centers), axis=1).min()
    return min([corner, *(pdist(centers) / 2)])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("n_clusters", "optimum"),
    [(2, 0.5), (3, 1 / 3), (4, 0.25)],
)
def test_packing_of_an_interval_comes_near_the_best_distance(n_clusters, optimum, seed):
    # Of n centers in [-1, 1], a from each end and 2 a from each other: 2 n a = 2. The first centers are random and
    # leave the last ones less room than that.
    centers = sphere_packing(np.zeros((1, 1)), n_clusters, 1.0, rng(seed))
    distance = packing_distance(centers, 1.0)
    assert (0.8 if n_clusters == 2 else 0.6) * optimum <= distance <= optimum


@pytest.mark.parametrize("n_columns", [2, 10, 100])
def test_packed_centers_lie_in_the_cube_at_a_distance_from_each_other_that_grows_with_the_radius(
    n_columns,
):
    centers = sphere_packing(np.zeros((1, n_columns)), 6, 3.0, rng())
    assert centers.shape == (6, n_columns)
    assert np.abs(centers).max() <= 3.0
    random = rng().uniform(-3, 3, size=(200, 6, n_columns))
    assert packing_distance(centers, 3.0) > np.median(
        [packing_distance(each, 3.0) for each in random]
    )
    np.testing.assert_allclose(
        sphere_packing(np.zeros((1, n_columns)), 6, 6.0, rng()), 2 * centers, rtol=1e-12
    )


def test_packing_never_reads_a_value_of_a_row():
    class OnlyShape:
        shape = (7, 3)

    np.testing.assert_array_equal(
        sphere_packing(OnlyShape(), 4, 1.0, rng()),
        sphere_packing(np.full((2, 3), np.nan), 4, 1.0, rng()),
    )


@pytest.mark.parametrize("seed", range(4))
def test_awasthi_sheffet_finds_the_means_of_separated_gaussians(seed):
    rows, means = separated(seed)
    centers = awasthi_sheffet(rows, 5, rng(seed))
    np.testing.assert_allclose(by_first_column(centers), by_first_column(means), atol=1e-9)


@pytest.mark.parametrize("n_different", [1, 2, 3])
def test_awasthi_sheffet_of_few_different_rows_returns_each_of_them(n_different):
    different = rng().normal(size=(n_different, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        centers = awasthi_sheffet(np.repeat(different, 5, axis=0), 8, rng())
    np.testing.assert_allclose(by_first_column(centers), by_first_column(different), rtol=1e-12)


def test_awasthi_sheffet_is_a_fixed_point_of_lloyds_algorithm():
    rows = load_iris().data
    centers = awasthi_sheffet(rows, 3, rng())
    labels = cdist(rows, centers).argmin(axis=1)
    np.testing.assert_allclose(
        centers, [rows[labels == index].mean(axis=0) for index in range(3)], rtol=1e-6
    )


@pytest.mark.parametrize(("n_rows", "n_columns"), [(60, 501), (501, 501), (60, 20)])
def test_singular_vectors_are_the_same_by_either_side_and_by_the_randomized_method(
    n_rows, n_columns
):
    rows = rng(1).normal(size=(n_rows, 3)) @ (
        np.array([9.0, 5.0, 3.0])[:, None] * rng(2).normal(size=(3, n_columns))
    )
    rows += 0.01 * rng(3).normal(size=rows.shape)
    found = top_singular_vectors(rows, 3, rng())
    expected = np.linalg.svd(rows)[2][:3]
    np.testing.assert_allclose(np.abs(expected @ found), np.eye(3), atol=1e-3)
