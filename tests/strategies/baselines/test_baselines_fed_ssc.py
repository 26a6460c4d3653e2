import re
import warnings

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.metrics import adjusted_rand_score

from flower_fedclust.engine import ProtocolError, answers
from flower_fedclust.models import Model, SubspaceModel
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.spectral import unit_rows
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.baselines.fed_ssc import (
    OWN_CLUSTERS,
    FedSubspaceClustering,
    FedSubspaceClusteringClient,
    cluster_directions,
)

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
    """Leaves behind what it sent, what it was sent and what it kept."""

    seen: dict  # set by the test

    @answers(*FedSubspaceClusteringClient.subspace_points.answer.sends)
    def subspace_points(self, **options):
        points = super().subspace_points(**options)
        self.seen[self.name] = [points, self.recall(OWN_CLUSTERS)[0]]
        return points

    @answers(*FedSubspaceClusteringClient.labels_of_rows.answer.sends)
    def labels_of_rows(self, merged):
        labels = super().labels_of_rows(merged)
        self.seen[self.name] += [merged, self.recall("labels")[0]]
        return labels


class WatchedFedSC(FedSubspaceClustering):
    client_type = Watched


@pytest.fixture
def seen():
    Watched.seen = {}
    return Watched.seen


# What it finds


@pytest.mark.parametrize("random_state", range(2))
def test_a_union_of_subspaces_is_recovered_from_clients_that_hold_some_of_them(random_state):
    clients, classes = federation(random_state)
    result = simulate(FedSubspaceClustering(K, random_state=random_state), clients, labels=classes)
    assert result.metrics["accuracy"] == 1.0
    assert isinstance(result.model, SubspaceModel)
    assert isinstance(result.model, Model)
    assert result.model.n_clusters == K
    assert result.model.cost(np.concatenate(clients)) <= 1e-12


@pytest.mark.parametrize(
    "options",
    [
        {"eigengap": False, "n_samples": 2},
        {"merge": "tsc", "n_neighbors": 3, "n_samples": 3},
        {"n_dimensions": 2},
        {"alpha": 100.0},
    ],
)
def test_every_way_recovers_subspaces_without_noise(options):
    result = simulate(FedSubspaceClustering(K, random_state=0, **options), CLIENTS, labels=CLASSES)
    assert result.metrics["accuracy"] == 1.0


def test_new_rows_go_to_their_subspace_whatever_their_length_and_sign():
    result = simulate(FedSubspaceClustering(K, random_state=0), CLIENTS)
    rng = np.random.default_rng(7)
    classes = rng.integers(K, size=200)
    rows = rows_of(classes, rng) * rng.uniform(0.01, 100, size=(200, 1))
    labels = result.model.predict(rows)
    assert adjusted_rand_score(labels, classes) == 1.0
    assert np.array_equal(result.model.predict(-3 * rows), labels)
    assert all(
        np.array_equal(result.model.predict(own), kept) for own, kept in zip(CLIENTS, result.labels, strict=True)
    )
    # The subspaces themselves.
    for cluster in range(K):
        basis = BASES[classes[labels == cluster][0]]
        np.testing.assert_allclose(
            result.model.bases_[cluster].T @ result.model.bases_[cluster], basis.T @ basis, atol=1e-6
        )


def test_more_points_help_against_noise():
    clients, classes = federation(1, noise=0.03)
    strategies = (FedSubspaceClustering(K, eigengap=True, n_samples=n, random_state=0) for n in (1, 5))
    one, five = (simulate(strategy, clients, labels=classes).metrics["accuracy"] for strategy in strategies)
    assert one < 0.95
    assert five >= 0.98


def test_the_length_and_the_sign_of_a_row_say_nothing():
    rng = np.random.default_rng(3)
    scaled = [
        rows * rng.choice([-1, 1], size=(len(rows), 1)) * rng.uniform(0.1, 50, (len(rows), 1)) for rows in CLIENTS
    ]
    result = simulate(FedSubspaceClustering(K, random_state=0), scaled, labels=CLASSES)
    assert result.metrics["accuracy"] == 1.0


@pytest.mark.parametrize("n_clients", [2, 4])
def test_iris_is_told_apart_by_its_directions(n_clients):
    rows, classes = load_iris(return_X_y=True)
    parts = np.array_split(np.random.default_rng(0).permutation(len(rows)), n_clients)
    result = simulate(
        FedSubspaceClustering(3, eigengap=False, random_state=0),
        [rows[part] for part in parts],
        labels=[classes[part] for part in parts],
    )
    # Table 5 of SPP-FGC has 0.8960 for Fed-SC.
    assert result.metrics["accuracy"] >= 0.89


# What goes over the wire


def test_each_client_sends_points_of_its_clusters_subspaces_and_is_told_where_these_went(seen):
    names = [chr(97 + index) for index in range(len(CLIENTS))]
    result = simulate(WatchedFedSC(K, n_samples=3, random_state=0), CLIENTS, names=names)
    for name, rows, classes, labels in zip(names, CLIENTS, CLASSES, result.labels, strict=True):
        points, own, merged, kept = seen[name]
        assert points.shape == (3 * len(merged), D)
        np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1.0)
        for cluster in range(len(merged)):
            drawn = points[3 * cluster : 3 * cluster + 3]
            (its_class,) = set(classes[own == cluster])
            basis = BASES[its_class]
            np.testing.assert_allclose(drawn @ basis.T @ basis, drawn, atol=1e-9)
            # None of them is a row.
            assert np.abs(drawn @ unit_rows(rows).T).max() < 1 - 1e-9
        assert np.array_equal(labels, merged[own])
        assert np.array_equal(kept, labels)
        assert labels.dtype == np.intp


def test_the_points_of_a_line_are_one_point_and_its_opposite(seen):
    simulate(WatchedFedSC(K, n_dimensions=1, n_samples=3, random_state=0), FEW)
    for points, own, _, _ in seen.values():
        for of_cluster in np.split(points, own.max() + 1):
            np.testing.assert_allclose(np.abs(of_cluster @ of_cluster.T), 1.0)


@pytest.mark.parametrize("merge", ["ssc", "tsc"])
def test_points_of_one_local_cluster_say_nothing_of_each_other(merge):
    points = unit_rows(rows_of([0, 0, 1, 1, 0, 0, 1, 1], np.random.default_rng(0)))
    graph = FedSubspaceClustering(2, merge=merge, n_samples=2)._graph(points, np.repeat(np.arange(4), 2)).toarray()
    assert not graph.diagonal().any()
    np.testing.assert_allclose(graph, graph.T)
    assert graph[0, 2] > graph[0, 1]
    assert graph[1, 3] > graph[1, 2]


def test_all_that_leaves_a_client_is_reported_as_unprotected():
    result = simulate(FedSubspaceClustering(K, random_state=0), FEW)
    assert [(message.task, message.content, message.detail) for message in result.privacy.unprotected] == [
        ("subspace_points", "random points of the subspaces of the client's own clusters", "one per client"),
        ("labels_of_rows", "cluster of every row", "one per row"),
    ]
    assert result.privacy.guarantee().startswith("None.")
    assert {(row.round, row.task) for row in result.traffic} == {
        (1, "enrol"),
        (2, "subspace_points"),
        (3, "labels_of_rows"),
    }


def test_a_client_with_one_row_is_as_good_as_any_and_its_point_is_that_row(seen):
    clients, classes = [*CLIENTS, CLIENTS[0][:1] * 5], [*CLASSES, CLASSES[0][:1]]
    result = simulate(WatchedFedSC(K, random_state=0), clients, labels=classes, names=[*"abcdefghijklm"])
    assert result.metrics["accuracy"] == 1.0
    np.testing.assert_allclose(np.abs(seen["m"][0] @ unit_rows(clients[-1]).T), 1.0)


def test_clients_with_the_same_rows_draw_points_of_their_own(seen):
    simulate(WatchedFedSC(2, random_state=0), [CLIENTS[0], CLIENTS[0]], names=["a", "b"])
    assert not np.allclose(np.abs(seen["a"][0]), np.abs(seen["b"][0]))


# Bad inputs, and odd ones


def test_a_client_whose_rows_are_all_zero_fails_with_a_sentence_and_the_others_go_on():
    clients = [*FEW, np.zeros((5, D))]
    result = simulate(FedSubspaceClustering(K, min_clients=3, random_state=0), clients)
    (failure,) = result.failures
    assert failure.reason == "client 4: all rows are zero and have no direction; leave the client out."


def test_rows_of_zeros_go_to_the_largest_of_the_clients_clusters(seen):
    simulate(WatchedFedSC(K, random_state=0), [np.insert(rows, [0, 5, 22], 0.0, axis=0) for rows in FEW])
    largest = []
    for _, own, _, _ in seen.values():
        others = np.delete(own, [0, 6, 24])
        largest.append(np.bincount(others).argmax())
        assert (own[[0, 6, 24]] == largest[-1]).all()
        assert len(own) == len(others) + 3
    assert len(set(largest)) > 1  # it is not the first in all of them


def test_rows_that_are_all_equal_are_one_cluster(seen):
    clients = [*FEW, np.repeat(FEW[0][:1], 6, axis=0)]
    simulate(WatchedFedSC(K, eigengap=True, random_state=0), clients, names=[*"abcdm"])
    assert not seen["m"][1].any()
    assert len(seen["m"][0]) == 1


def test_copies_of_rows_stay_together(seen):
    doubled = [np.repeat(rows, 2, axis=0) for rows in FEW]
    simulate(WatchedFedSC(K, random_state=0), doubled, names=[*"abcd"])
    for _, own, _, _ in seen.values():
        assert np.array_equal(own[::2], own[1::2])


def test_fewer_rows_than_local_clusters_are_at_most_as_many_clusters():
    rows = np.eye(5)[:3]
    for eigengap in (True, False):
        labels = cluster_directions(rows, 7, np.random.default_rng(0), alpha=10.0, eigengap=eigengap)
        assert sorted(labels) == [0, 1, 2]
    assert cluster_directions(rows[:1], 7, np.random.default_rng(0), alpha=10.0).tolist() == [0]


def test_fewer_local_clusters_than_clusters_are_refused_in_a_sentence():
    sentence = "the clients found 2 clusters together and n_clusters is 4; ask for fewer, for more n_local_clusters, or"
    with pytest.raises(DataError, match=sentence):
        simulate(FedSubspaceClustering(4, n_local_clusters=1), CLIENTS[:2])


def test_a_cluster_that_k_means_left_empty_is_told_and_has_no_subspace(monkeypatch):
    def all_in_one(embedding, n_clusters, rng):
        return None, np.zeros(len(embedding), dtype=np.intp)

    monkeypatch.setattr("flower_fedclust.strategies.baselines.fed_ssc.cluster_embedding", all_in_one)
    with pytest.warns(RuntimeWarning, match="fed-ssc found 1 clusters where n_clusters is 2"):
        result = simulate(FedSubspaceClustering(2, random_state=0), FEW)
    assert [len(basis) > 0 for basis in result.model.bases_] == [True, False]
    assert not result.model.predict(np.concatenate(FEW)).any()


def test_a_client_that_has_kept_no_clusters_says_so():
    class Forgetful(FedSubspaceClusteringClient):
        def recall(self, key):
            return None

    class Strategy(FedSubspaceClustering):
        client_type = Forgetful

    with pytest.raises(ProtocolError, match="client 0 has not kept its own clusters; it missed the round"):
        simulate(Strategy(K), FEW)


# The model


def test_a_model_survives_the_way_through_arrays():
    model = SubspaceModel([*BASES[:2], np.empty((0, D))])
    same = SubspaceModel.from_arrays(model.to_arrays())
    rows = np.random.default_rng(0).normal(size=(50, D))
    assert np.array_equal(same.predict(rows), model.predict(rows))
    assert same.cost(rows) == model.cost(rows)
    assert repr(model) == f"SubspaceModel(3 subspaces of 2, 2, 0 dimensions in {D} columns)"


def test_the_cost_is_in_units_of_the_rows_and_the_residuals_are_in_none():
    model = SubspaceModel([np.eye(3)[:1], np.eye(3)[1:]])
    rows = np.array([[3.0, 4.0, 0.0], [0.0, 0.0, -7.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(model.residuals(rows), [[0.64, 0.36], [1.0, 0.0], [0.0, 0.0]], atol=1e-12)
    assert model.predict(rows).tolist() == [1, 1, 0]
    assert model.cost(rows) == pytest.approx(9.0)
    assert model.cost(10 * rows) == pytest.approx(900.0)


def test_a_cluster_that_nothing_is_known_of_gets_no_row():
    model = SubspaceModel([np.empty((0, 3)), np.eye(3)[:1]])
    assert model.predict(np.eye(3)).tolist() == [1, 1, 1]
    assert model.predict(np.zeros((1, 3))).tolist() == [1]


@pytest.mark.parametrize(
    ("bases", "sentence"),
    [
        ([], "bases: there is no vector in them"),
        ([np.empty((0, 3))], "bases: there is no vector in them"),
        ([np.eye(3), np.eye(2)], "bases: they have different numbers of columns"),
        ([np.ones((2, 3))], "basis 0 is not orthonormal; give vectors of norm 1 at right angles"),
        ([np.eye(3), np.full((1, 3), np.nan)], "basis 1: row 0, column 0 is NaN"),
    ],
)
def test_bases_that_cannot_be_right_are_refused_in_a_sentence(bases, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        SubspaceModel(bases)


def test_rows_of_other_columns_are_refused_in_a_sentence():
    model = SubspaceModel(BASES)
    for method in (model.predict, model.cost, model.residuals):
        with pytest.raises(ValueError, match="rows: 3 columns where the bases have 12; give the columns the model"):
            method(np.ones((2, 3)))


def test_no_warning_is_left_over():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        simulate(FedSubspaceClustering(K, random_state=0), FEW)
