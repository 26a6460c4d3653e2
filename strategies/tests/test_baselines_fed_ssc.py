import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.metrics import adjusted_rand_score

from flower_fedclust.engine import answers
from flower_fedclust.numerics.spectral import unit_rows
from flower_fedclust.simulation import simulate
from flower_fedclust_papers.dsc import OWN_CLUSTERS, LocalClustersClient
from flower_fedclust_papers.fed_ssc import (
    FedSubspaceClustering,
    FedSubspaceClusteringClient,
    cluster_directions,
)
from flower_fedclust_papers.subspace_model import SubspaceModel

K, D = 4, 12
BASES = [np.linalg.qr(np.random.default_rng(c).normal(size=(D, 2)))[0].T for c in range(K)]


def rows_of(classes, rng, noise=0.0):
    rows = np.stack([rng.normal(size=2) @ BASES[c] for c in classes])
    return rows + noise * rng.normal(size=rows.shape)


def federation(seed=0, n_clients=12, noise=0.0):
    """Clients that hold rows of two of the four subspaces each, and more of the one than of the other."""
    rng = np.random.default_rng(seed)
    classes = [np.repeat(rng.choice(K, 2, replace=False), (8, 14)) for _ in range(n_clients)]
    return [rows_of(own, rng, noise) for own in classes], classes


CLIENTS, CLASSES = federation()
FEW = CLIENTS[:4]


class Watched(FedSubspaceClusteringClient):
    """Stores what it sent, what it was sent and what it kept."""

    seen: dict  # set by the fixture

    @answers(*FedSubspaceClusteringClient.subspace_points.answer.sends)
    def subspace_points(self, **options):
        points = super().subspace_points(**options)
        self.seen[self.name] = [points, self.recall(OWN_CLUSTERS)[0]]
        return points

    @answers(*LocalClustersClient.merged_labels.answer.sends)
    def merged_labels(self, merged):
        labels = super().merged_labels(merged)
        self.seen[self.name] += [merged, self.recall("labels")[0]]
        return labels


class WatchedFedSC(FedSubspaceClustering):
    client_type = Watched


@pytest.fixture
def seen():
    Watched.seen = {}
    return Watched.seen


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_samples": 2},
        {"merge": "tsc", "n_neighbors": 3, "n_samples": 3},
        {"n_dimensions": 2},
        {"alpha": 100.0},
    ],
)
def test_a_union_of_subspaces_is_recovered_from_clients_that_hold_some_of_them(options):
    result = simulate(FedSubspaceClustering(K, random_state=0, **options), CLIENTS, labels=CLASSES)
    assert result.metrics["accuracy"] == 1.0
    assert isinstance(result.model, SubspaceModel)
    assert result.model.cost(np.concatenate(CLIENTS)) <= 1e-12


def test_new_rows_go_to_their_subspace_whatever_their_length_and_sign():
    rng = np.random.default_rng(7)
    scaled = [
        rows * rng.choice([-1, 1], size=(len(rows), 1)) * rng.uniform(0.1, 50, (len(rows), 1))
        for rows in CLIENTS
    ]
    result = simulate(FedSubspaceClustering(K, random_state=0), scaled, labels=CLASSES)
    assert result.metrics["accuracy"] == 1.0
    classes = rng.integers(K, size=200)
    rows = rows_of(classes, rng) * rng.uniform(0.01, 100, size=(200, 1))
    labels = result.model.predict(rows)
    assert adjusted_rand_score(labels, classes) == 1.0
    assert np.array_equal(result.model.predict(-3 * rows), labels)
    for cluster, found in enumerate(result.model.bases_):
        basis = BASES[classes[labels == cluster][0]]
        np.testing.assert_allclose(found.T @ found, basis.T @ basis, atol=1e-6)


def test_more_points_help_against_noise():
    clients, classes = federation(1, noise=0.03)
    strategies = (
        FedSubspaceClustering(K, eigengap=True, n_samples=n, random_state=0) for n in (1, 5)
    )
    one, five = (
        simulate(strategy, clients, labels=classes).metrics["accuracy"] for strategy in strategies
    )
    assert one < 0.95
    assert five >= 0.98


def test_clusters_that_spread_in_all_directions_are_found_by_the_directions_of_their_means():
    rng = np.random.default_rng(0)
    classes, means = rng.integers(K, size=600), 3.0 * rng.normal(size=(K, D))
    rows = np.split(means[classes] + rng.normal(size=(600, D)), 6)

    def found(**parameters):
        result = simulate(FedSubspaceClustering(K, **parameters), rows, seed=0)
        return adjusted_rand_score(classes, np.concatenate(result.labels))

    assert found(n_dimensions=1) > 0.95
    # A basis of 95% of the energy spans nearly all columns.
    assert found() < 0.5


def test_iris_has_the_accuracy_of_the_spp_fgc_paper():
    rows, classes = load_iris(return_X_y=True)
    parts = np.array_split(np.random.default_rng(0).permutation(len(rows)), 4)
    clients, labels = [rows[part] for part in parts], [classes[part] for part in parts]
    result = simulate(FedSubspaceClustering(3, random_state=0), clients, labels=labels)
    assert result.metrics["accuracy"] >= 0.89  # Table 5 has 0.8960


# Messages


def test_each_client_sends_points_of_its_clusters_subspaces_and_learns_where_these_went(seen):
    names = [chr(97 + index) for index in range(len(CLIENTS))]
    result = simulate(WatchedFedSC(K, n_samples=3, random_state=0), CLIENTS, names=names)
    for name, rows, classes, labels in zip(names, CLIENTS, CLASSES, result.labels, strict=True):
        points, own, merged, kept = seen[name]
        assert points.shape == (3 * len(merged), D)
        np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1.0)
        for cluster, drawn in enumerate(np.split(points, len(merged))):
            (its_class,) = set(classes[own == cluster])
            basis = BASES[its_class]
            np.testing.assert_allclose(drawn @ basis.T @ basis, drawn, atol=1e-9)
            assert np.abs(drawn @ unit_rows(rows).T).max() < 1 - 1e-9  # no point is a row
        assert np.array_equal(labels, merged[own])
        assert np.array_equal(kept, labels)


@pytest.mark.parametrize("merge", ["ssc", "tsc"])
def test_points_of_one_local_cluster_are_not_connected(merge):
    points = unit_rows(rows_of([0, 0, 1, 1, 0, 0, 1, 1], np.random.default_rng(0)))
    graph = (
        FedSubspaceClustering(2, merge=merge, n_samples=2)
        ._graph(points, np.repeat(np.arange(4), 2))
        .toarray()
    )
    assert not graph.diagonal().any()
    np.testing.assert_allclose(graph, graph.T)
    assert graph[0, 2] > graph[0, 1]
    assert graph[1, 3] > graph[1, 2]


# Unusual rows


def test_the_point_of_a_client_with_one_row_is_that_row(seen):
    clients, classes = [*CLIENTS, CLIENTS[0][:1] * 5], [*CLASSES, CLASSES[0][:1]]
    result = simulate(
        WatchedFedSC(K, random_state=0), clients, labels=classes, names=[*"abcdefghijklm"]
    )
    assert result.metrics["accuracy"] == 1.0
    np.testing.assert_allclose(np.abs(seen["m"][0] @ unit_rows(clients[-1]).T), 1.0)


def test_a_client_whose_rows_are_all_zero_fails_and_the_others_go_on():
    result = simulate(
        FedSubspaceClustering(K, min_clients=3, random_state=0), [*FEW, np.zeros((5, D))]
    )
    assert [failure.client for failure in result.failures] == ["4"]


def test_rows_of_zeros_join_the_largest_of_the_clients_clusters(seen):
    simulate(
        WatchedFedSC(K, random_state=0), [np.insert(rows, [0, 5, 22], 0.0, axis=0) for rows in FEW]
    )
    largest = []
    for _, own, _, _ in seen.values():
        largest.append(np.bincount(np.delete(own, [0, 6, 24])).argmax())
        assert (own[[0, 6, 24]] == largest[-1]).all()
    assert len(set(largest)) > 1  # it is not always the first


def test_equal_rows_are_in_one_cluster(seen):
    clients = [np.repeat(rows, 2, axis=0) for rows in FEW]
    simulate(
        WatchedFedSC(K, eigengap=True, random_state=0), [*clients, np.repeat(FEW[0][:1], 6, axis=0)]
    )
    assert not seen["4"][1].any()
    assert len(seen["4"][0]) == 1
    for _, own, _, _ in seen.values():
        assert np.array_equal(own[::2], own[1::2])


def test_there_are_at_most_as_many_local_clusters_as_rows():
    rows = np.eye(5)[:3]
    for eigengap in (True, False):
        labels = cluster_directions(
            rows, 7, np.random.default_rng(0), alpha=10.0, eigengap=eigengap
        )
        assert sorted(labels) == [0, 1, 2]
    assert cluster_directions(rows[:1], 7, np.random.default_rng(0), alpha=10.0).tolist() == [0]


def test_a_cluster_that_k_means_left_empty_is_reported_and_has_no_subspace(monkeypatch):
    def all_in_one(embedding, n_clusters, rng):
        return None, np.zeros(len(embedding), dtype=np.intp)

    monkeypatch.setattr("flower_fedclust_papers.fed_ssc.cluster_embedding", all_in_one)
    with pytest.warns(RuntimeWarning, match="n_clusters"):
        result = simulate(FedSubspaceClustering(2, random_state=0), FEW)
    assert [len(basis) > 0 for basis in result.model.bases_] == [True, False]
    assert not result.model.predict(np.concatenate(FEW)).any()


@pytest.mark.parametrize("n_different", [1, 2])
def test_equal_rows_are_never_divided(n_different):
    """Copies of a row express each other, so that a cut between them costs nothing."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        different = rng.normal(size=(n_different, 3))
        clients = [different[rng.integers(n_different, size=50)] for _ in range(2)]
        result = simulate("fed-ssc", clients, n_clusters=3, seed=seed)
        rows, labels = np.concatenate(clients), np.concatenate(result.labels)
        found = [set(labels[(rows == row).all(axis=1)]) for row in different]
        assert [len(one) for one in found] == [1] * n_different
        assert len(set.union(*found)) == n_different
