import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from flower_fedclust.data import load_dataset
from flower_fedclust.engine import DataError, answers
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.kmeans import nearest_center
from flower_fedclust.simulation import simulate
from flower_fedclust_papers.dsc import DSC, OWN_CLUSTERS, DSCClient, LocalClustersClient

RNG = np.random.default_rng(5)
K, D = 4, 6
MEANS = RNG.normal(size=(K, D)) * 10
CLASSES = RNG.integers(K, size=400)
ROWS = MEANS[CLASSES] + RNG.normal(size=(400, D)) * 0.5
CUTS = [60, 200, 290]
CLIENTS = np.split(ROWS, CUTS)


class Watched(DSCClient):
    """Stores what it was sent and what it kept."""

    seen: dict  # set by the fixture

    @answers(*LocalClustersClient.merged_labels.answer.sends)
    def merged_labels(self, merged):
        labels = super().merged_labels(merged)
        self.seen[self.name] = (merged, self.recall(OWN_CLUSTERS)[0], self.recall("labels")[0])
        return labels


class WatchedDSC(DSC):
    client_type = Watched


@pytest.fixture
def seen():
    Watched.seen = {}
    return Watched.seen


def test_separated_blobs_and_the_means_of_all_their_rows_are_found():
    result = simulate(DSC(K, random_state=0), CLIENTS, labels=np.split(CLASSES, CUTS))
    assert result.metrics["accuracy"] == 1.0
    assert isinstance(result.model, KMeansModel)
    expected = np.array([ROWS[c == CLASSES].mean(axis=0) for c in range(K)])
    centers = result.model.cluster_centers_
    # They are means of means, weighted by sizes that differ between clients.
    np.testing.assert_allclose(
        centers[nearest_center(expected, centers)], expected, rtol=0, atol=1e-9
    )


def test_clusters_of_clients_that_have_two_classes_only_are_merged():
    parts = [np.isin(CLASSES, pair) for pair in ((0, 1), (1, 2), (2, 3), (3, 0))]
    strategy = DSC(K, n_local_clusters=2, random_state=0)
    result = simulate(
        strategy, [ROWS[part] for part in parts], labels=[CLASSES[part] for part in parts]
    )
    assert result.metrics["accuracy"] == 1.0


def test_each_client_learns_of_its_own_clusters_and_keeps_what_they_were_merged_into(seen):
    clients = [
        ROWS[:150],
        ROWS[150:151],
        ROWS[151:300],
        np.repeat(ROWS[300:301], 5, axis=0),
        ROWS[301:],
    ]
    names = ["10", "9", "b", "a", "c"]
    result = simulate(WatchedDSC(K, n_local_clusters=7, random_state=0), clients, names=names)
    assert [len(seen[name][0]) for name in names] == [7, 1, 7, 1, 7]
    for rows, name, labels in zip(clients, names, result.labels, strict=True):
        merged, own, kept = seen[name]
        assert np.array_equal(labels, merged[own])
        assert np.array_equal(kept, labels)
        means = np.array([rows[own == cluster].mean(axis=0) for cluster in range(len(merged))])
        assert np.array_equal(merged, nearest_center(means, result.model.cluster_centers_))


def test_a_clients_own_clusters_come_from_spectral_clustering(seen):
    table = load_dataset("circles")
    parts = np.array_split(np.random.default_rng(0).permutation(len(table.rows)), 2)
    clients = [table.rows[part] for part in parts]
    result = simulate(WatchedDSC(2, random_state=0), clients)
    for name, part in zip(result.names, parts, strict=True):
        assert adjusted_rand_score(seen[name][1], np.asarray(table.labels)[part]) == 1.0
    # The labels are these clusters, merged; not the nearest centers.
    assert not np.array_equal(result.labels[0], result.model.predict(clients[0]))


def test_fewer_distinct_rows_than_local_clusters_are_as_many_clusters(seen):
    few = np.repeat(MEANS[:3], 4, axis=0)
    simulate(WatchedDSC(K, random_state=0), [ROWS, few])
    assert len(seen["1"][0]) == 3
    assert adjusted_rand_score(seen["1"][1], np.repeat(np.arange(3), 4)) == 1.0


def test_a_cluster_that_k_means_left_empty_is_not_sent(seen, monkeypatch):
    monkeypatch.setattr(
        "flower_fedclust_papers.dsc.cluster_rows", lambda rows, *_: (None, 2 * (rows[:, 0] > 0))
    )
    rows = np.repeat([[-3.0], [5.0]], 4, axis=0)
    result = simulate(WatchedDSC(2, n_local_clusters=3, random_state=0), [rows, rows])
    assert [len(merged) for merged, _, _ in seen.values()] == [2, 2]
    assert sorted(result.model.cluster_centers_.ravel()) == [-3.0, 5.0]


def test_too_few_local_clusters_are_refused_and_means_that_coincide_are_reported():
    with pytest.raises(DataError, match="n_clusters"):
        simulate(DSC(4, n_local_clusters=1), np.split(ROWS, [100, 200]))
    rows = np.repeat(np.eye(2), 6, axis=0)
    with pytest.warns(RuntimeWarning, match="n_clusters"):
        simulate(DSC(3), [rows, rows])
