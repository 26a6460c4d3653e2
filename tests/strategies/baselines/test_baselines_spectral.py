import re
import tracemalloc
import warnings

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import SpectralClustering
from sklearn.datasets import load_iris
from sklearn.metrics import adjusted_rand_score

from flower_fedclust.data import load_dataset
from flower_fedclust.engine import DataError, ProtocolError, Sent, answers
from flower_fedclust.models import KMeansModel, SpectralModel
from flower_fedclust.numerics.kernel import gaussian_kernel, mean_distance
from flower_fedclust.numerics.kmeans import nearest_center
from flower_fedclust.numerics.metrics import agreement, count_table
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.baselines.dsc import DSC, OWN_LABELS, DSCClient
from flower_fedclust.strategies.baselines.pooled_spectral import PooledSpectral
from flower_fedclust.strategies.common.spectral import cluster_rows, kernel_graph

RNG = np.random.default_rng(5)
K, D = 4, 6
MEANS = RNG.normal(size=(K, D)) * 10
CLASSES = RNG.integers(K, size=400)
ROWS = MEANS[CLASSES] + RNG.normal(size=(400, D)) * 0.5
CUTS = [60, 200, 290]
CLIENTS = np.split(ROWS, CUTS)
BASELINES = pytest.mark.parametrize("strategy_type", [PooledSpectral, DSC])


def iid(rows, classes, n_clients=8, seed=0):
    parts = np.array_split(np.random.default_rng(seed).permutation(len(rows)), n_clients)
    return [rows[part] for part in parts], [classes[part] for part in parts]


def accuracy(classes, labels):
    return agreement(np.stack(list(count_table(classes, labels, int(labels.max()) + 1).values())))["accuracy"]


def dense_graph(rows, bandwidth, n_neighbors):
    """Equation (25) by the letter, and the mean of A and A'."""
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
        warnings.simplefilter("ignore")  # that the graph is not connected
        return estimator.fit_predict(dense_graph(rows, mean_distance(rows), n_neighbors))


# The graph


@pytest.mark.parametrize("n_neighbors", [1, 4, 79, 200])
@pytest.mark.parametrize("far", [0.0, 1e7])
@pytest.mark.parametrize("n_columns", [2, 40])
def test_the_graph_keeps_the_largest_kernel_values_of_every_row(n_columns, far, n_neighbors):
    rows = np.random.default_rng(0).normal(size=(80, n_columns))
    graph = kernel_graph(rows + far, 1.7, n_neighbors)
    np.testing.assert_allclose(graph.toarray(), dense_graph(rows, 1.7, n_neighbors), rtol=1e-6, atol=1e-9)


def test_a_row_is_not_its_own_neighbor_where_others_are_equal_to_it():
    graph = kernel_graph(np.repeat(np.eye(3), 5, axis=0), 1.0, 2).toarray()
    assert not graph.diagonal().any()
    assert (np.count_nonzero(graph, axis=1) >= 2).all()
    assert set(np.unique(graph)) <= {0.0, 0.5, 1.0}


def test_one_row_is_a_graph_without_edges():
    assert kernel_graph(np.ones((1, 3)), 1.0, 4).nnz == 0


def test_no_array_of_all_pairs_of_rows_is_made():
    n_rows = 4000
    rows = np.random.default_rng(0).normal(size=(n_rows, 20))
    tracemalloc.start()
    cluster_rows(rows, 3, np.random.default_rng(0), bandwidth=5.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < n_rows**2 * 8 / 8


# PooledSpectral


@pytest.mark.parametrize("n_neighbors", [None, 150])
@pytest.mark.parametrize("random_state", [0, 1])
def test_pooled_spectral_finds_the_clusters_of_scikit_learn_on_the_same_graph(random_state, n_neighbors):
    result = simulate(PooledSpectral(K, n_neighbors=n_neighbors, random_state=random_state), CLIENTS)
    labels = np.concatenate(result.labels)
    assert adjusted_rand_score(labels, by_scikit_learn(ROWS, K, n_neighbors or 6)) == 1.0
    assert adjusted_rand_score(labels, CLASSES) == 1.0


def test_pooled_spectral_is_as_good_on_iris_as_scikit_learn():
    rows, classes = load_iris(return_X_y=True)
    clients, labels = iid(rows, classes)
    result = simulate(PooledSpectral(3, random_state=0), clients, labels=labels)
    assert abs(result.metrics["accuracy"] - accuracy(classes, by_scikit_learn(rows, 3, 6))) <= 0.02
    # Table 1 of FedSC.
    assert abs(result.metrics["accuracy"] - 0.9000) <= 0.01


@pytest.mark.parametrize("random_state", range(3))
def test_pooled_spectral_tells_concentric_circles_apart_and_places_new_points_on_them(random_state):
    table = load_dataset("circles")
    clients, labels = iid(table.rows, np.asarray(table.labels))
    result = simulate(PooledSpectral(2, random_state=random_state), clients, labels=labels)
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


def test_the_atoms_are_rows_of_the_clients_ten_a_cluster_and_fifty_at_least():
    for n_clusters, n_atoms in ((2, 50), (7, 70)):
        atoms = simulate(PooledSpectral(n_clusters, random_state=0), CLIENTS).model.dictionary_
        assert len(atoms) == n_atoms
        assert len({row.tobytes() for row in atoms} & {row.tobytes() for row in ROWS}) == n_atoms
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
        np.concatenate(simulate(PooledSpectral(2, n_neighbors=k, random_state=0), np.split(moons, 3)).labels)
        for k in (None, 6, 60)
    )
    assert np.array_equal(by_default, given)
    assert not np.array_equal(by_default, other)


def test_clients_keep_their_labels():
    kept = {}

    class Remembering(PooledSpectral.client_type):
        @answers()
        def keep_labels(self, labels):
            super().keep_labels(labels)
            kept[self.name] = self.recall("labels")[0]

    class Strategy(PooledSpectral):
        client_type = Remembering

    result = simulate(Strategy(K, random_state=0), CLIENTS, names=["10", "9", "b", "a"])
    assert [len(labels) for labels in result.labels] == [len(rows) for rows in CLIENTS]
    for name, labels in zip(result.names, result.labels, strict=True):
        assert np.array_equal(kept[name], labels)


def test_pooled_spectral_reports_that_the_rows_themselves_leave_the_clients():
    result = simulate(PooledSpectral(K), CLIENTS)
    (message,) = result.privacy.unprotected
    assert (message.content, message.detail) == ("the rows themselves", "one per row")
    assert result.privacy.guarantee().startswith("None.")
    assert {(row.round, row.task) for row in result.traffic} == {(1, "enrol"), (2, "all_rows"), (3, "keep_labels")}


def test_rows_that_are_all_equal_are_refused_in_a_sentence():
    with pytest.raises(DataError, match=re.escape("all rows are equal, so that the bandwidth r comes out as 0")):
        simulate(PooledSpectral(2), [np.full((5, 2), 0.1), np.full((7, 2), 0.1)])


def test_more_clusters_than_rows_are_refused_where_the_clients_rows_are_not_at_hand():
    with pytest.raises(DataError, match="the clients have 3 rows together and n_clusters is 4; ask for fewer"):
        cluster_rows(ROWS[:3], 4, np.random.default_rng(0))


def test_rows_too_alike_for_so_many_clusters_are_told():
    with pytest.warns(RuntimeWarning, match="pooled-spectral found 1 clusters where n_clusters is 3"):
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


def test_a_bandwidth_so_small_that_the_kernel_vanishes_is_no_failure():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = simulate(PooledSpectral(K, bandwidth=1e-9), CLIENTS)
    assert [len(labels) for labels in result.labels] == [len(rows) for rows in CLIENTS]


# Both


@BASELINES
def test_a_client_with_one_row_is_as_good_as_any(strategy_type):
    clients = [ROWS[:150], ROWS[150:151], ROWS[151:]]
    labels = np.split(CLASSES, [150, 151])
    result = simulate(strategy_type(K, random_state=0), clients, labels=labels)
    assert result.metrics["accuracy"] == 1.0
    assert [len(part) for part in result.labels] == [150, 1, 249]


# DSC


class Watched(DSCClient):
    """Leaves behind what it was sent and what it kept."""

    seen: dict  # set by the test

    @answers(Sent("cluster of every row", "codes", per="row"))
    def merged_labels(self, merged):
        labels = super().merged_labels(merged)
        self.seen[self.name] = (merged, self.recall(OWN_LABELS)[0], self.recall("labels")[0])
        return labels


class WatchedDSC(DSC):
    client_type = Watched


@pytest.fixture
def seen():
    Watched.seen = {}
    return Watched.seen


@pytest.mark.parametrize("random_state", range(3))
def test_dsc_finds_separated_blobs_and_the_means_of_all_their_rows(random_state):
    labels = np.split(CLASSES, CUTS)
    result = simulate(DSC(K, random_state=random_state), CLIENTS, labels=labels)
    assert result.metrics["accuracy"] == 1.0
    expected = np.array([ROWS[c == CLASSES].mean(axis=0) for c in range(K)])
    assert isinstance(result.model, KMeansModel)
    centers = result.model.cluster_centers_
    # Means of means, weighted by the sizes: the clients have other numbers of rows.
    np.testing.assert_allclose(centers[nearest_center(expected, centers)], expected, rtol=0, atol=1e-9)


def test_dsc_merges_the_clusters_of_clients_that_have_two_classes_only():
    pairs = [(0, 1), (1, 2), (2, 3), (3, 0)]
    parts = [np.isin(CLASSES, pair) for pair in pairs]
    result = simulate(
        DSC(K, n_local_clusters=2, random_state=0),
        [ROWS[part] for part in parts],
        labels=[CLASSES[part] for part in parts],
    )
    assert result.metrics["accuracy"] == 1.0


def test_dsc_sends_means_sizes_and_labels_and_reports_all_as_unprotected():
    result = simulate(DSC(K), CLIENTS)
    assert [(message.task, message.content, message.detail) for message in result.privacy.unprotected] == [
        ("spectral_clusters", "means of the client's own clusters", "one per client"),
        ("spectral_clusters", "sizes of the client's own clusters", "one per client"),
        ("merged_labels", "cluster of every row", "one per row"),
    ]
    assert result.privacy.guarantee().startswith("None.")
    assert {(row.round, row.task) for row in result.traffic} == {
        (1, "enrol"),
        (2, "spectral_clusters"),
        (3, "merged_labels"),
    }


def test_each_client_is_told_of_its_own_clusters_and_keeps_what_they_were_merged_into(seen):
    clients = [ROWS[:150], ROWS[150:151], ROWS[151:300], np.repeat(ROWS[300:301], 5, axis=0), ROWS[301:]]
    names = ["10", "9", "b", "a", "c"]
    result = simulate(WatchedDSC(K, n_local_clusters=7, random_state=0), clients, names=names)
    assert [len(seen[name][0]) for name in names] == [7, 1, 7, 1, 7]
    for rows, name, labels in zip(clients, names, result.labels, strict=True):
        merged, own, kept = seen[name]
        assert np.array_equal(labels, merged[own])
        assert np.array_equal(kept, labels)
        means = np.array([rows[own == cluster].mean(axis=0) for cluster in range(len(merged))])
        assert np.array_equal(merged, nearest_center(means, result.model.cluster_centers_))


def test_a_clients_own_clusters_are_those_of_spectral_clustering(seen):
    table = load_dataset("circles")
    clients, labels = iid(table.rows, np.asarray(table.labels), n_clients=2)
    result = simulate(WatchedDSC(2, random_state=0), clients)
    for name, classes in zip(result.names, labels, strict=True):
        assert adjusted_rand_score(seen[name][1], classes) == 1.0
    # The labels are these clusters, merged; not the nearest centers.
    assert not np.array_equal(result.labels[0], result.model.predict(clients[0]))


def test_fewer_different_rows_than_local_clusters_are_as_many_clusters(seen):
    few = np.repeat(MEANS[:3], 4, axis=0)
    simulate(WatchedDSC(K, random_state=0), [ROWS, few])
    assert len(seen["1"][0]) == 3
    assert adjusted_rand_score(seen["1"][1], np.repeat(np.arange(3), 4)) == 1.0


def test_a_cluster_that_k_means_left_empty_is_not_sent(seen, monkeypatch):
    monkeypatch.setattr(
        "flower_fedclust.strategies.baselines.dsc.cluster_rows", lambda rows, *_: (None, 2 * (rows[:, 0] > 0))
    )
    rows = np.repeat([[-3.0], [5.0]], 4, axis=0)
    result = simulate(WatchedDSC(2, n_local_clusters=3, random_state=0), [rows, rows])
    assert [len(merged) for merged, _, _ in seen.values()] == [2, 2]
    assert sorted(result.model.cluster_centers_.ravel()) == [-3.0, 5.0]


def test_fewer_local_clusters_than_clusters_are_refused_in_a_sentence():
    sentence = "the clients found 3 clusters together and n_clusters is 4; ask for fewer, or for more n_local_clusters"
    with pytest.raises(DataError, match=sentence):
        simulate(DSC(4, n_local_clusters=1), np.split(ROWS, [100, 200]))


def test_means_that_coincide_are_told():
    rows = np.repeat(np.eye(2), 6, axis=0)
    with pytest.warns(RuntimeWarning, match="dsc found 2 clusters where n_clusters is 3"):
        simulate(DSC(3), [rows, rows])


def test_a_client_that_has_kept_no_clusters_says_so():
    class Forgetful(DSCClient):
        def recall(self, key):
            return None

    class Strategy(DSC):
        client_type = Forgetful

    with pytest.raises(ProtocolError, match="client 0 has not kept its own clusters; it missed the round"):
        simulate(Strategy(K), CLIENTS)


def test_the_kernel_of_the_tests_is_that_of_the_library():
    rows = ROWS[:5]
    dense = dense_graph(rows, 3.0, 4)
    np.fill_diagonal(dense, 1.0)
    np.testing.assert_allclose(dense, gaussian_kernel(rows, rows, 3.0), rtol=1e-9)
