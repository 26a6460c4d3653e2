import numpy as np
import pytest
from sklearn.cluster import KMeans

from flower_fedclust.engine import Reply
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.baselines.kfed import KFED
from flower_fedclust.strategies.baselines.pooled_kmeans import PooledKMeans
from flower_fedclust.strategies.common.local_centers import merge_local_centers

RNG = np.random.default_rng(4)
K, D = 5, 10
MEANS = RNG.normal(size=(K, D)) * 10
CLASSES = RNG.integers(K, size=1000)
ROWS = MEANS[CLASSES] + RNG.normal(size=(1000, D)) * 0.5


def off(centers):
    distances = np.linalg.norm(centers[:, None] - MEANS, axis=2)
    assert sorted(distances.argmin(axis=1)) == list(range(K))
    return distances.min(axis=1).max()


@pytest.mark.parametrize("random_state", range(3))
def test_k_fed_finds_the_means_of_separated_gaussians(random_state):
    result = simulate(KFED(K, random_state=random_state), np.split(ROWS, 5))
    assert off(result.model.cluster_centers_) < 0.25


@pytest.mark.parametrize("random_state", range(3))
def test_k_fed_finds_the_means_where_each_client_has_two_classes_only(random_state):
    pairs = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]
    clients = [ROWS[np.isin(CLASSES, pair)] for pair in pairs]
    result = simulate(KFED(K, n_local_clusters=2, random_state=random_state), clients)
    assert off(result.model.cluster_centers_) < 0.25
    labels = np.concatenate(result.labels)
    true = np.concatenate([CLASSES[np.isin(CLASSES, pair)] for pair in pairs])
    assert len(set(zip(labels, true, strict=True))) == K


def test_k_fed_is_the_mean_of_the_clients_own_centers():
    clients = np.split(ROWS, 4)
    centers = simulate(KFED(K, random_state=0), clients).model.cluster_centers_
    own = [
        np.array([part[classes == c].mean(axis=0) for c in range(K)])
        for part, classes in zip(clients, np.split(CLASSES, 4), strict=True)
    ]
    expected = np.mean(own, axis=0)
    order = np.linalg.norm(centers[:, None] - expected, axis=2).argmin(axis=1)
    np.testing.assert_allclose(centers, expected[order], atol=1e-9)


def test_k_fed_takes_clients_with_fewer_rows_than_clusters():
    clients = [ROWS[:400], ROWS[400:402], ROWS[402:403], ROWS[403:]]
    centers = simulate(KFED(K, random_state=0), clients).model.cluster_centers_
    assert centers.shape == (K, D)
    assert off(centers) < 1.0


def test_k_fed_takes_a_client_whose_rows_are_all_equal():
    clients = [ROWS[:500], np.repeat(ROWS[:1], 30, axis=0), ROWS[500:]]
    assert off(simulate(KFED(K, random_state=0), clients).model.cluster_centers_) < 1.0


def test_k_fed_begins_with_the_client_whose_centers_fit_those_of_all_best():
    merging = merge_local_centers(2, 2, np.random.default_rng(0))
    next(merging)
    replies = [Reply("0", [np.array([[0.0], [0.3]])]), Reply("1", [np.array([[0.0], [10.0]])])]
    with pytest.raises(StopIteration) as stop:
        merging.send(replies)
    np.testing.assert_allclose(stop.value.value, [[0.1], [10.0]])


def test_k_fed_is_one_round_that_shows_every_clients_centers():
    result = simulate(KFED(K), np.split(ROWS, 5))
    assert {(row.round, row.task) for row in result.traffic} == {(1, "enrol"), (2, "local_centers")}
    (message,) = result.privacy.unprotected
    assert message.content == "centers of the client's own clusters"
    assert (message.detail, message.reveals) == ("one per client", "centers")


@pytest.mark.parametrize("random_state", [0, 1])
@pytest.mark.parametrize("spread", [0.5, 8.0])
def test_pooled_kmeans_equals_scikit_learn(random_state, spread):
    rows = MEANS[CLASSES] + np.random.default_rng(0).normal(size=ROWS.shape) * spread
    result = simulate(PooledKMeans(K, random_state=random_state), np.split(rows, [100, 300, 350]))
    seed = int(np.random.default_rng(random_state).integers(2**31))
    reference = KMeans(K, n_init=10, random_state=seed).fit(rows)
    np.testing.assert_allclose(result.model.cluster_centers_, reference.cluster_centers_, rtol=0, atol=1e-10)
    assert result.metrics["cost"] == pytest.approx(reference.inertia_, rel=1e-9)


def test_pooled_kmeans_reports_that_the_rows_themselves_leave_the_clients():
    report = simulate(PooledKMeans(K), np.split(ROWS, 5)).privacy
    (message,) = report.unprotected
    assert (message.content, message.detail, message.reveals) == ("the rows themselves", "one per row", "rows")
