import tracemalloc
import warnings

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import KMeans, SpectralClustering
from sklearn.datasets import load_iris
from sklearn.metrics import adjusted_rand_score

from flower_fedclust.data import load_dataset
from flower_fedclust.engine import DataError, Reply
from flower_fedclust.models import SpectralModel
from flower_fedclust.numerics.kernel import mean_distance
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.baselines.kfed import KFED
from flower_fedclust.strategies.baselines.pooled import PooledKMeans, PooledSpectral
from flower_fedclust.strategies.common.first_centers import LocalCentersClient, merge_local_centers
from flower_fedclust.strategies.common.spectral import cluster_rows, kernel_graph

RNG = np.random.default_rng(5)
K, D = 4, 6
MEANS = RNG.normal(size=(K, D)) * 10
CLASSES = RNG.integers(K, size=400)
ROWS = MEANS[CLASSES] + RNG.normal(size=(400, D)) * 0.5
CLIENTS = np.split(ROWS, [60, 200, 290])


def largest_offset(centers):
    """The largest distance of a mean from its center, of which no two are the same."""
    distances = np.linalg.norm(centers[:, None] - MEANS, axis=2)
    assert sorted(distances.argmin(axis=1)) == list(range(K))
    return distances.min(axis=1).max()


def split_evenly(rows, classes, n_clients):
    parts = np.array_split(np.random.default_rng(0).permutation(len(rows)), n_clients)
    return {"clients": [rows[part] for part in parts], "labels": [classes[part] for part in parts]}


# k-means


@pytest.mark.parametrize("spread", [0.5, 8.0])
def test_pooled_kmeans_equals_scikit_learn(spread):
    rows = MEANS[CLASSES] + np.random.default_rng(0).normal(size=ROWS.shape) * spread
    result = simulate(PooledKMeans(K, random_state=1), np.split(rows, [100, 300, 350]))
    seed = int(np.random.default_rng(1).integers(2**31))
    reference = KMeans(K, n_init=10, random_state=seed).fit(rows)
    np.testing.assert_allclose(
        result.model.cluster_centers_, reference.cluster_centers_, rtol=0, atol=1e-10
    )


def test_k_feds_message_declares_that_it_reveals_centers():
    assert [sent.reveals for sent in LocalCentersClient.local_centers.answer.sends] == ["centers"]


# k-FED


@pytest.mark.parametrize("random_state", range(2))
def test_k_fed_finds_the_means_where_each_client_has_two_classes_only(random_state):
    clients = [ROWS[np.isin(CLASSES, pair)] for pair in ((0, 1), (1, 2), (2, 3), (3, 0))]
    result = simulate(KFED(K, n_local_clusters=2, random_state=random_state), clients)
    assert largest_offset(result.model.cluster_centers_) < 0.3


def test_k_fed_is_the_mean_of_the_clients_own_centers():
    centers = simulate(KFED(K, random_state=0), np.split(ROWS, 4)).model.cluster_centers_
    parts = zip(np.split(ROWS, 4), np.split(CLASSES, 4), strict=True)
    expected = np.mean(
        [[part[classes == c].mean(axis=0) for c in range(K)] for part, classes in parts], axis=0
    )
    order = np.linalg.norm(centers[:, None] - expected, axis=2).argmin(axis=1)
    np.testing.assert_allclose(centers, expected[order], atol=1e-9)


def test_k_fed_begins_with_the_client_whose_centers_fit_all_centers_best():
    merging = merge_local_centers(2, 2, np.random.default_rng(0))
    next(merging)
    replies = [Reply("0", [np.array([[0.0], [0.3]])]), Reply("1", [np.array([[0.0], [10.0]])])]
    with pytest.raises(StopIteration) as stop:
        merging.send(replies)
    np.testing.assert_allclose(stop.value.value, [[0.1], [10.0]])


# The graph of spectral clustering


def dense_graph(rows, bandwidth, n_neighbors):
    """Equation (25) literally, and the mean of A and A'."""
    kernel = np.array([np.exp(-np.sum((x - rows) ** 2, axis=1) / (2 * bandwidth**2)) for x in rows])
    np.fill_diagonal(kernel, -np.inf)
    A = np.zeros_like(kernel)
    for i, row in enumerate(kernel):
        largest = np.argsort(-row)[: min(n_neighbors, len(rows) - 1)]
        A[i, largest] = row[largest]
    return (A + A.T) / 2


def by_scikit_learn(rows, n_clusters, n_neighbors):
    estimator = SpectralClustering(n_clusters, affinity="precomputed", random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a graph that is not connected
        return estimator.fit_predict(dense_graph(rows, mean_distance(rows), n_neighbors))


@pytest.mark.parametrize("n_neighbors", [1, 4, 200])
@pytest.mark.parametrize("far", [0.0, 1e7])
@pytest.mark.parametrize("n_columns", [2, 40])
def test_the_graph_keeps_the_largest_kernel_values_of_every_row(n_columns, far, n_neighbors):
    rows = np.random.default_rng(0).normal(size=(80, n_columns))
    graph = kernel_graph(rows + far, 1.7, n_neighbors)
    np.testing.assert_allclose(
        graph.toarray(), dense_graph(rows, 1.7, n_neighbors), rtol=1e-6, atol=1e-9
    )


def test_a_row_is_not_its_own_neighbor_where_others_are_equal_to_it():
    graph = kernel_graph(np.repeat(np.eye(3), 5, axis=0), 1.0, 2).toarray()
    assert not graph.diagonal().any()
    assert (np.count_nonzero(graph, axis=1) >= 2).all()
    assert kernel_graph(np.ones((1, 3)), 1.0, 4).nnz == 0


def test_no_array_of_all_pairs_of_rows_is_made():
    rows = np.random.default_rng(0).normal(size=(4000, 20))
    tracemalloc.start()
    cluster_rows(rows, 3, np.random.default_rng(0), bandwidth=5.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4000**2 * 8 / 8


# Spectral clustering


@pytest.mark.parametrize("n_neighbors", [None, 150])
def test_pooled_spectral_finds_the_clusters_of_scikit_learn_on_the_same_graph(n_neighbors):
    result = simulate(PooledSpectral(K, n_neighbors=n_neighbors, random_state=0), CLIENTS)
    labels = np.concatenate(result.labels)
    assert adjusted_rand_score(labels, by_scikit_learn(ROWS, K, n_neighbors or 6)) == 1.0
    assert adjusted_rand_score(labels, CLASSES) == 1.0


def test_pooled_spectral_has_the_papers_accuracy_on_iris():
    rows, classes = load_iris(return_X_y=True)
    result = simulate(PooledSpectral(3, random_state=0), **split_evenly(rows, classes, 8))
    assert result.metrics["accuracy"] == pytest.approx(0.9000, abs=0.01)  # Table 1 of FedSC


def test_pooled_spectral_separates_concentric_circles_and_places_new_points_on_them():
    table = load_dataset("circles")
    result = simulate(
        PooledSpectral(2, random_state=0), **split_evenly(table.rows, np.asarray(table.labels), 8)
    )
    assert result.metrics["accuracy"] == 1.0
    angles = np.random.default_rng(1).uniform(0, 2 * np.pi, 500)
    circle = np.column_stack([np.cos(angles), np.sin(angles)])
    inner, outer = (np.unique(result.model.predict(radius * circle)) for radius in (2.0, 4.0))
    assert len(inner) == len(outer) == 1
    assert inner != outer


def test_new_rows_go_where_the_rows_about_them_are():
    result = simulate(PooledSpectral(K, random_state=0), CLIENTS)
    assert isinstance(result.model, SpectralModel)
    new = MEANS[CLASSES] + np.random.default_rng(9).normal(size=ROWS.shape) * 0.5
    assert np.array_equal(result.model.predict(new), np.concatenate(result.labels))


def test_the_atoms_are_ten_rows_of_the_clients_for_each_cluster_and_at_least_fifty():
    for n_clusters, n_atoms in ((2, 50), (7, 70)):
        atoms = simulate(PooledSpectral(n_clusters, random_state=0), CLIENTS).model.dictionary_
        assert (
            len({row.tobytes() for row in atoms} & {row.tobytes() for row in ROWS})
            == len(atoms)
            == n_atoms
        )
    few = simulate(PooledSpectral(2, random_state=0), [ROWS[:9], ROWS[9:20]]).model.dictionary_
    assert np.array_equal(few, ROWS[:20])


def test_the_bandwidth_is_the_mean_distance_of_all_rows_however_they_are_split():
    for clients in (CLIENTS, [ROWS[c == CLASSES] for c in range(K)]):
        model = simulate(PooledSpectral(K, random_state=0), clients).model
        assert model.bandwidth_ == pytest.approx(mean_distance(ROWS), rel=1e-12)
    assert simulate(PooledSpectral(K, bandwidth=3.5), CLIENTS).model.bandwidth_ == 3.5


def test_the_number_of_neighbors_is_the_logarithm_of_all_rows():
    moons = load_dataset("moons", noise=0.08, n_rows=300).rows
    by_default, given, other = (
        np.concatenate(
            simulate(PooledSpectral(2, n_neighbors=k, random_state=0), np.split(moons, 3)).labels
        )
        for k in (None, 6, 60)
    )
    assert np.array_equal(by_default, given)
    assert not np.array_equal(by_default, other)


def test_rows_that_cannot_be_clustered_are_refused_or_reported():
    with pytest.raises(DataError):
        simulate(PooledSpectral(2), [np.full((5, 2), 0.1), np.full((7, 2), 0.1)])
    with pytest.raises(DataError, match="n_clusters"):
        cluster_rows(ROWS[:3], 4, np.random.default_rng(0))
    with pytest.warns(RuntimeWarning, match="n_clusters"):
        simulate(PooledSpectral(3, bandwidth=1e12), CLIENTS)  # four components, all alike


def test_a_graph_with_more_components_than_clusters_is_merged_by_the_kernel():
    places = np.array([[0.0, 0], [1, 0], [20, 0], [21, 0], [10, 17], [11, 17]])
    group = np.repeat(np.arange(3), 60)
    rows = np.repeat(places, 30, axis=0) + np.random.default_rng(0).normal(size=(180, 2)) * 0.05
    order = np.random.default_rng(1).permutation(180)
    assert connected_components(kernel_graph(rows, mean_distance(rows), 6))[0] >= 6
    result = simulate(PooledSpectral(3, random_state=0), np.split(rows[order], 4))
    assert adjusted_rand_score(np.concatenate(result.labels), group[order]) == 1.0
    assert adjusted_rand_score(result.model.predict(rows), group) == 1.0
