import math

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs

from flower_fedclust.engine import ClientData
from flower_fedclust.exact.rows import Frame
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.baselines.federated_kmeans import FederatedKMeans
from flower_fedclust_papers.ffcm import FFCM, PrivateFFCM, PrivateFuzzyClient

RNG = np.random.default_rng(8)
K, D = 4, 3
MEANS = RNG.uniform(-5, 5, size=(K, D))
CLASSES = RNG.integers(K, size=300)
ROWS = MEANS[CLASSES] + RNG.normal(size=(300, D)) * 1.2
CLIENTS = np.split(ROWS, [20, 21, 100, 230])  # the second has a single row
INIT = ROWS[[3, 50, 120, 200]] + 0.1
RADIUS = float(np.linalg.norm(ROWS, axis=1).max())
MERGES = pytest.mark.parametrize("merge", ["average", "k-means"])


class QuietFFCM(PrivateFFCM):
    """The private one without noise."""

    def noise_multipliers(self, shares=None):
        return dict.fromkeys(shares, 0.0)


def slow_step(rows, centers, fuzzifier=2.0):
    """One iteration of fuzzy c-means, row by row: the sums of the weighted rows, and the weights."""
    sums, weights = np.zeros_like(centers), np.zeros(len(centers))
    for row in rows:
        distances = [math.dist(row, center) for center in centers]
        on = [d < 1e-12 for d in distances]
        if any(on):
            memberships = [here / sum(on) for here in on]
        else:
            memberships = [
                1 / sum((d / other) ** (2 / (fuzzifier - 1)) for other in distances)
                for d in distances
            ]
        for j, membership in enumerate(memberships):
            sums[j] += membership**fuzzifier * row
            weights[j] += membership**fuzzifier
    return sums, weights


def slow_centers(rows, centers, n_steps, fuzzifier=2.0):
    for _ in range(n_steps):
        sums, weights = slow_step(rows, centers, fuzzifier)
        centers = np.array(
            [s / w if w > 0 else c for s, w, c in zip(sums, weights, centers, strict=True)]
        )
    return centers


def centers_of_run(strategy, clients=CLIENTS, **options):
    return simulate(strategy, clients, **options).model.cluster_centers_


def off(centers, expected):
    """The distance of each expected center from its own, where no two have the same."""
    distances = np.linalg.norm(expected[:, None] - centers, axis=2)
    assert len(set(distances.argmin(axis=1))) == len(expected)
    return distances.min(axis=1)


# The average


@pytest.mark.parametrize("fuzzifier", [1.1, 2.0, 3.0])
@pytest.mark.parametrize("n_rounds", [1, 6])
def test_rounds_equal_pooled_fuzzy_c_means(n_rounds, fuzzifier):
    strategy = FFCM(K, init=INIT, n_rounds=n_rounds, fuzzifier=fuzzifier, tol=0.0)
    expected = slow_centers(ROWS, INIT, n_rounds, fuzzifier)
    np.testing.assert_allclose(centers_of_run(strategy), expected, rtol=0, atol=5e-6)


def test_the_partition_of_the_rows_changes_nothing():
    shuffled = ROWS[np.random.default_rng(3).permutation(300)]
    strategy = FFCM(K, init=INIT, n_rounds=4, tol=0.0)
    one, other = (
        centers_of_run(strategy, np.split(shuffled, cuts)) for cuts in ([150], list(range(1, 300)))
    )
    assert np.array_equal(one, other)


def test_local_steps_are_averaged_by_their_weights():
    strategy = FFCM(K, init=INIT, n_rounds=2, n_local_steps=3, tol=0.0)
    centers = INIT
    for _ in range(2):
        replies = [slow_step(rows, slow_centers(rows, centers, 2)) for rows in CLIENTS]
        centers = sum(s for s, _ in replies) / sum(w for _, w in replies)[:, None]
    np.testing.assert_allclose(centers_of_run(strategy), centers, rtol=0, atol=1e-6)


def test_a_fuzzifier_near_1_gives_lloyds_centers():
    fuzzy = FFCM(K, init=INIT, fuzzifier=1.01, n_rounds=30)
    hard = FederatedKMeans(K, init=INIT, n_rounds=30)
    np.testing.assert_allclose(centers_of_run(fuzzy), centers_of_run(hard), atol=0.05)


def test_a_cluster_without_weight_keeps_its_center():
    points = np.array([[0.0, 0.0], [1.0, 0.0]])
    init = np.array([[0.0, 0.0], [1.0, 0.0], [7.0, 7.0]])
    for merge in ("average", "k-means"):
        centers = centers_of_run(
            FFCM(3, init=init, n_rounds=3, merge=merge), [points[[0, 1, 1]], points[[0]]]
        )
        np.testing.assert_allclose(centers, init, atol=1e-6)
        assert np.array_equal(centers[2], init[2])


# k-means


def test_k_means_keeps_the_numbers_of_the_clusters_so_that_a_run_can_stop():
    means = 6.0 * np.vstack([np.eye(D), -np.ones(D)])
    clients = [
        means[CLASSES[:100]] + np.random.default_rng(seed).normal(size=(100, D))
        for seed in range(3)
    ]
    for order in ([0, 1, 2, 3], [2, 3, 1, 0]):
        result = simulate(
            FFCM(K, merge="k-means", n_rounds=60, init=means[order], random_state=0), clients
        )
        assert max(row.round for row in result.traffic) < 40
        assert np.array_equal(result.model.predict(means[order]), np.arange(K))


def test_k_means_finds_the_means_where_the_clients_have_different_clusters():
    means = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0], [5.0, 30.0]])
    classes = np.repeat(np.arange(5), 60)
    rows = means[classes] + np.random.default_rng(0).normal(size=(300, 2)) * 0.3
    clients = [rows[np.isin(classes, pair)] for pair in ((0, 1), (1, 2), (2, 3), (3, 4), (4, 0))]

    def run(merge):
        return simulate(
            FFCM(5, merge=merge, n_local_steps=20, fuzzifier=1.5, n_rounds=5, random_state=0),
            clients,
        )

    merged = run("k-means")
    assert off(merged.model.cluster_centers_, means).max() < 1.0
    assert merged.metrics["cost"] < 0.2 * run("average").metrics["cost"]


# Whole runs


# Privacy


@pytest.mark.parametrize("factor", [1.0, 5.0, 1e6])
@pytest.mark.parametrize("fuzzifier", [1.01, 2.0, 20.0])
def test_a_clients_answer_is_moved_by_no_more_than_the_declared_sensitivity(fuzzifier, factor):
    max_norm, centers = 2.5, np.array([[0.0, 0, 0], [0, 0, 1.0]])
    strategy = PrivateFFCM(2, init=centers, max_norm=max_norm, n_rounds=2)
    releases = [m.release for m in simulate(strategy, CLIENTS).privacy.releases]
    assert [release.sensitivity for release in releases[:2]] == pytest.approx([max_norm, 1.0])
    assert {(release.relation, release.mechanism) for release in releases} == {
        ("add-or-remove", "gaussian")
    }

    def answer(rows):
        client = PrivateFuzzyClient(ClientData(rows), name="0")
        ball = Frame(np.zeros(3), max_norm)
        return [
            array.values for array in client.weighted_rows(centers, frame=ball, fuzzifier=fuzzifier)
        ]

    rows = np.random.default_rng(0).normal(size=(6, 3)) * factor
    # Rows on centers have the largest weights, far ones the largest norms.
    for added in np.vstack([np.eye(3) * factor * 9, -np.eye(3) * factor * 9, centers]):
        for one, other, release in zip(
            answer(rows), answer(np.vstack([rows, added])), releases[:2], strict=True
        ):
            assert np.linalg.norm(one - other) <= release.sensitivity


def test_the_declared_sensitivity_is_reached_so_no_smaller_one_holds():
    centers, ball = np.array([[0.0, 0.0], [0.0, 1.9]]), Frame(np.zeros(2), 1.0)
    client = PrivateFuzzyClient(ClientData(np.array([[1.0, 0.0]])), name="0")
    sums, weights = client.weighted_rows(centers, frame=ball, fuzzifier=1.01)
    assert (np.linalg.norm(sums.values), np.linalg.norm(weights.values)) == (1.0, 1.0)


def test_a_client_that_is_drawn_for_some_rounds_pays_for_these():
    few, all_ = (
        PrivateFFCM(K, max_norm=3.0, n_rounds=6, fraction_fit=fraction) for fraction in (0.4, 1.0)
    )
    few, all_ = (simulate(strategy, CLIENTS, seed=0).privacy for strategy in (few, all_))
    assert 0.99 < few.composed_epsilon <= 1.0 + 1e-9
    assert (
        few.releases[0].release.noise_multiplier < 0.75 * all_.releases[0].release.noise_multiplier
    )


def test_without_its_noise_the_private_run_is_that_of_the_clipped_rows():
    radius = 0.7 * RADIUS
    clipped = ROWS * np.minimum(1, radius / np.linalg.norm(ROWS, axis=1))[:, None]
    strategy = QuietFFCM(K, init=INIT, max_norm=radius, n_rounds=3)
    # With noise weights have 15 bits.
    np.testing.assert_allclose(
        centers_of_run(strategy), slow_centers(clipped, INIT, 3), rtol=0, atol=1e-3
    )


@MERGES
def test_a_noisy_weight_below_one_row_keeps_the_former_center(merge):
    # A client's two rows have less than the weight of one in the first cluster, and next to none in the others.
    rows = np.array([[1.0, 0.3], [1.0, -0.3]])
    init = np.array([[-0.1, 0.0], [-1.0, 1.0], [-1.0, -1.0]])
    strategy = QuietFFCM(3, merge=merge, init=init, max_norm=2.0, n_rounds=1, random_state=0)
    centers = centers_of_run(strategy, [rows, rows])
    sums, weights = slow_step(np.vstack([rows, rows]), init)
    assert 1.0 < weights[0] < 2.0
    assert weights[1:].max() < 0.2
    # In the sum the first cluster has enough; in the clients it has not.
    expected = sums[0] / weights[0] if merge == "average" else init[0]
    np.testing.assert_allclose(centers, [expected, *init[1:]], atol=1e-4)


def test_local_centers_count_by_their_noisy_weights_with_noise():
    few, many = np.full((2, 1), 0.2), np.full((38, 1), 0.4)
    one, other = np.vstack([few, few - 1]), np.vstack([many, many - 1.4])
    init = np.array([[0.3], [-0.9]])
    asked = {"init": init, "merge": "k-means", "n_rounds": 1, "fuzzifier": 1.01, "random_state": 0}
    weighted = centers_of_run(QuietFFCM(2, max_norm=2.0, **asked), [one, other])
    alike = centers_of_run(FFCM(2, **asked), [one, other])
    np.testing.assert_allclose(weighted.ravel(), [0.39, -0.99], atol=1e-6)
    np.testing.assert_allclose(alike.ravel(), [0.3, -0.9], atol=1e-6)


@pytest.mark.parametrize(
    ("merge", "epsilon", "factor"),
    [("average", 10.0, 1.9), ("k-means", 10.0, 7.0), ("average", 100.0, 1.05)],
)
def test_many_rows_bear_the_noise(merge, epsilon, factor):
    rows, _ = make_blobs(
        6000, 4, centers=5, cluster_std=0.05, center_box=(-0.5, 0.5), random_state=1
    )
    clients = np.array_split(rows[np.random.default_rng(0).permutation(6000)], 6)
    init = np.random.default_rng(0).normal(size=(5, 4)) * 0.3
    strategy = PrivateFFCM(5, merge=merge, epsilon=epsilon, max_norm=1.2, n_rounds=10, init=init)
    reference = KMeans(5, n_init=10, random_state=0).fit(rows).inertia_
    costs = [simulate(strategy, clients, seed=seed).metrics["cost"] for seed in range(3)]
    assert np.median(costs) < factor * reference
