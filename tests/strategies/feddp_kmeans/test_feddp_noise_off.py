"""FedDP-KMeans without noise, against the paper's formulas written out slowly on the pooled rows."""

import math

import numpy as np
import pytest
from feddp_forms import feddp
from sklearn.cluster import KMeans
from tested import PAPERS

from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.common.clusters import ClientBounds

K, D = 3, 7


def nearest(point, centers):
    return min(range(len(centers)), key=lambda index: float(((point - centers[index]) ** 2).sum()))


def slow_frame(rows, server_rows, center_rows=True):
    origin = server_rows.mean(axis=0) if center_rows else np.zeros(server_rows.shape[1])
    radius = max(math.sqrt(((row - origin) ** 2).sum()) for row in server_rows)
    P = []
    for row in rows:
        moved = row - origin
        norm = math.sqrt((moved**2).sum())
        P.append(moved * (radius / norm) if norm > radius else moved)
    return np.array(P), server_rows - origin, origin


def slow_subspace(P, k):
    second_moment = np.zeros((P.shape[1], P.shape[1]))
    for p in P:
        second_moment += np.outer(p, p)
    values, vectors = np.linalg.eigh(second_moment)
    return vectors[:, np.argsort(values)[::-1][:k]]


def slow_xi(P, Q, Pi, k, random_state):
    weights = np.zeros(len(Q))
    for p in P @ Pi:
        weights[nearest(p, Q @ Pi)] += 1
    seed = int(np.random.default_rng(random_state).integers(2**31))
    return (
        KMeans(k, n_init=10, random_state=seed).fit(Q @ Pi, sample_weight=weights).cluster_centers_
    )


def slow_means(P, labels, k):
    return np.array(
        [np.mean([p for p, r in zip(P, labels, strict=True) if r == c], axis=0) for c in range(k)]
    )


def slow_feddp_kmeans(
    rows, server_rows, k=K, *, random_state, n_rounds=0, margin=1.0, center_rows=True
):
    P, Q, origin = slow_frame(rows, server_rows, center_rows)
    Pi = slow_subspace(P, k) if k < P.shape[1] else np.eye(P.shape[1])
    xi = slow_xi(P, Q, Pi, k, random_state)
    kept, labels = [], []
    for p in P:
        distances = [math.sqrt(((p @ Pi - x) ** 2).sum()) for x in xi]
        r = int(np.argmin(distances))
        if all(distances[r] <= margin * distances[s] for s in range(k) if s != r):
            kept.append(p)
            labels.append(r)
    nu = slow_means(kept, labels, k)
    for _ in range(n_rounds):
        nu = slow_means(P, [nearest(p, nu) for p in P], k)
    return nu + origin


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(5)
    means = rng.uniform(-4, 4, size=(K, D))
    classes = rng.integers(K, size=240)
    rows = means[classes] + rng.normal(size=(240, D)) * 1.2
    rows[:3] *= 40  # some are clipped
    server_rows = np.concatenate(
        [means.repeat(6, axis=0) + rng.normal(size=(18, D)), rng.uniform(-4, 4, (12, D))]
    )
    return rows, classes, server_rows


def splits(rows, classes):
    order = np.argsort(classes, kind="stable")
    return {
        "halves": [rows[:120], rows[120:]],
        "uneven": [rows[:1], rows[1:3], rows[3:200], rows[200:]],
        "one_row_each": list(rows[:, None, :]),
        "by_class": np.split(rows[order], np.cumsum(np.bincount(classes))[:-1]),
    }


@pytest.mark.parametrize("split", ["halves", "uneven", "one_row_each", "by_class"])
@pytest.mark.parametrize("n_rounds", [0, 2])
def test_noise_off_equals_the_papers_formulas_on_the_pooled_rows(data, split, n_rounds):
    rows, classes, server_rows = data
    strategy = feddp(K, server_data=server_rows, epsilon=None, n_rounds=n_rounds, random_state=3)
    centers = simulate(strategy, splits(rows, classes)[split]).model.cluster_centers_
    expected = slow_feddp_kmeans(rows, server_rows, random_state=3, n_rounds=n_rounds)
    np.testing.assert_allclose(centers, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"center_rows": False},
        *([{"margin": 1 / 3}, {"margin": 0.7, "n_rounds": 1}] if PAPERS else []),
    ],
)
def test_noise_off_equals_the_papers_formulas_with_options(data, options):
    rows, classes, server_rows = data
    strategy = feddp(K, server_data=server_rows, epsilon=None, random_state=3, **options)
    centers = simulate(strategy, splits(rows, classes)["uneven"]).model.cluster_centers_
    expected = slow_feddp_kmeans(rows, server_rows, random_state=3, **options)
    np.testing.assert_allclose(centers, expected, rtol=0, atol=1e-5)
    if "n_rounds" not in options:  # a Lloyd step may well undo the difference
        assert np.abs(expected - slow_feddp_kmeans(rows, server_rows, random_state=3)).max() > 1e-3


@pytest.mark.parametrize("n_columns", [1, 2, 3])
def test_as_many_clusters_as_columns_need_no_projection(data, n_columns):
    rows, classes, server_rows = (part if part.ndim == 1 else part[:, :n_columns] for part in data)
    strategy = feddp(K, server_data=server_rows, epsilon=None, random_state=3)
    result = simulate(strategy, splits(rows, classes)["halves"])
    assert {row.task for row in result.traffic} == {"enrol", "weights", "cluster_sums"}
    expected = slow_feddp_kmeans(rows, server_rows, random_state=3)
    np.testing.assert_allclose(result.model.cluster_centers_, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("margin", [1.0, 1 / 3] if PAPERS else [1.0])
@pytest.mark.parametrize("n_rounds", [0, 1])
def test_noise_off_at_client_level_gives_the_mean_of_the_clients_means(data, n_rounds, margin):
    rows, _, server_rows = data
    clients = np.split(rows, [40, 100, 170])
    bounds = ClientBounds(second_moment=1e5, weights=1e4, means=100.0)
    strategy = feddp(
        K,
        server_data=server_rows,
        epsilon=None,
        privacy_unit="client",
        bounds=bounds,
        rows_per_client=K,
        random_state=3,
        n_rounds=n_rounds,
        **({} if margin == 1.0 else {"margin": margin}),
    )
    centers = simulate(strategy, clients).model.cluster_centers_

    P, Q, origin = slow_frame(rows, server_rows)
    Pi = slow_subspace(P, K)
    xi = slow_xi(P, Q, Pi, K, 3)
    nu = xi @ Pi.T
    for step in range(1 + n_rounds):
        in_space = Pi if step == 0 else np.eye(D)
        means = [[] for _ in range(K)]
        for part in np.split(P, [40, 100, 170]):
            own = [[] for _ in range(K)]
            for p in part:
                distances = [np.linalg.norm(p @ in_space - center @ in_space) for center in nu]
                r = int(np.argmin(distances))
                others = min(distance for s, distance in enumerate(distances) if s != r)
                if step > 0 or distances[r] <= margin * others:
                    own[r].append(p)
            for r in range(K):
                if own[r]:
                    means[r].append(np.mean(own[r], axis=0))
        nu = np.array([np.mean(of_clients, axis=0) for of_clients in means])
    np.testing.assert_allclose(centers, nu + origin, rtol=0, atol=1e-5)


def test_clusters_without_any_weight_left_are_placed_by_the_server_rows(data):
    _, _, server_rows = data
    # All rows are nearest to one server row, so that two clusters have no weight.
    rows = np.repeat(server_rows[:1], 20, axis=0)
    strategy = feddp(K, server_data=server_rows, epsilon=None, random_state=3)
    centers = simulate(strategy, [rows[:10], rows[10:]]).model.cluster_centers_
    assert np.isfinite(centers).all()
    assert np.linalg.norm(centers - server_rows[0], axis=1).min() < 1e-5
