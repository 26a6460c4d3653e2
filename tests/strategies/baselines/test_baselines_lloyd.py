import numpy as np
import pytest
from sklearn.cluster import KMeans

from flower_fedclust.checking import watched_run
from flower_fedclust.engine import ClientData
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.baselines.federated_kmeans import (
    FederatedKMeans,
    PrivateFederatedKMeans,
)
from flower_fedclust.strategies.common.clusters import ClusterClient
from flower_fedclust.strategies.common.frame import FRAME_ROUNDS

RNG = np.random.default_rng(3)
K, D = 4, 3

#: In which round the first Lloyd step is taken where clients enrol and a frame is found before.
FIRST_STEP = 1 + FRAME_ROUNDS + 1
MEANS = RNG.uniform(-5, 5, size=(K, D))
ROWS = MEANS[RNG.integers(K, size=300)] + RNG.normal(size=(300, D)) * 1.5
CLIENTS = np.split(ROWS, [20, 21, 100, 230])
SERVER_ROWS = MEANS.repeat(5, axis=0) + RNG.normal(size=(5 * K, D))


def slow_lloyd(rows, centers, n_rounds):
    for _ in range(n_rounds):
        members = [[] for _ in centers]
        for row in rows:
            members[int(np.argmin([((row - center) ** 2).sum() for center in centers]))].append(row)
        centers = [
            np.mean(own, axis=0) if own else center
            for own, center in zip(members, centers, strict=True)
        ]
    return np.array(centers)


@pytest.mark.parametrize("n_rounds", [0, 1, 5])
def test_federated_rounds_equal_pooled_lloyd_steps(n_rounds):
    result = simulate(FederatedKMeans(K, init=ROWS[:K], n_rounds=n_rounds), CLIENTS)
    np.testing.assert_allclose(
        result.model.cluster_centers_, slow_lloyd(ROWS, ROWS[:K], n_rounds), rtol=0, atol=1e-6
    )


def test_federated_kmeans_equals_scikit_learns_after_convergence():
    init = ROWS[:K]
    result = simulate(FederatedKMeans(K, init=init, n_rounds=100, tol=0.0), CLIENTS)
    reference = KMeans(K, init=init, n_init=1, max_iter=1000, tol=0.0).fit(ROWS)
    np.testing.assert_allclose(
        result.model.cluster_centers_, reference.cluster_centers_, rtol=0, atol=1e-6
    )
    assert np.array_equal(np.concatenate(result.labels), reference.labels_)
    assert result.metrics["cost"] == pytest.approx(reference.inertia_, rel=1e-6)


def test_run_stops_when_nothing_moves_and_a_larger_tol_stops_it_earlier():
    rounds = [
        max(
            row.round
            for row in simulate(
                FederatedKMeans(K, init=ROWS[:K], n_rounds=100, tol=tol), CLIENTS
            ).traffic
        )
        for tol in (0.0, 0.3, 100.0)
    ]
    assert 60 > rounds[0] > rounds[1] > rounds[2] == FIRST_STEP


@pytest.mark.parametrize("distance", [30.0, 1e4, 1e200])
def test_a_far_center_without_rows_stays_where_it_is(distance):
    towards = np.array([[1.0, 0.2, 0.0], [0.0, 1.0, 0.1], [-1.0, -1.0, 0.0], [0.0, 0.0, -1.0]])
    near = np.vstack([ROWS[:3], distance * towards[3:]])
    centers = simulate(FederatedKMeans(K, init=near, n_rounds=2), CLIENTS).model.cluster_centers_
    assert np.array_equal(centers[3], near[3])
    np.testing.assert_allclose(centers[:3], slow_lloyd(ROWS, near[:3], 2), rtol=0, atol=3e-6)
    if distance < 1e3:
        far = simulate(
            FederatedKMeans(K, init=distance * towards, n_rounds=2), CLIENTS
        ).model.cluster_centers_
        np.testing.assert_allclose(far, slow_lloyd(ROWS, distance * towards, 2), rtol=0, atol=1e-5)


def test_centers_do_not_depend_on_which_client_has_which_rows_to_the_last_bit():
    parts = [np.split(ROWS, cuts) for cuts in ([20, 21, 100, 230], [150], list(range(1, 300)))]
    one, *others = (
        simulate(FederatedKMeans(K, init=ROWS[:K], n_rounds=3), clients) for clients in parts
    )
    for other in others:
        assert np.array_equal(one.model.cluster_centers_, other.model.cluster_centers_)


def test_federated_kmeans_finds_its_first_centers_in_rounds_of_sums():
    result = simulate(FederatedKMeans(K, n_rounds=1, tol=0.0), CLIENTS, seed=0)
    tasks = [row.task for row in result.traffic if row.client == "0"]
    assert tasks[:8] == [
        "enrol", "entry_exponent", "column_sums", "reach", "second_moment", "start_sums", "start_sums", "start_sums",
    ]  # fmt: skip
    assert set(tasks[8:-1]) == {"start_sums"}
    assert tasks[-1] == "cluster_sums"


def test_sizes_are_released_where_the_first_centers_do_not_move_any_more():
    classes = RNG.integers(K, size=300)
    rows = MEANS[classes] + RNG.normal(size=(300, D)) * 0.1
    sizes = simulate(FederatedKMeans(K), np.split(rows, 3), seed=0).sizes
    assert sorted(sizes.counts) == sorted(np.bincount(classes))


class QuietFederatedKMeans(PrivateFederatedKMeans):
    """The private one without noise."""

    def noise_multipliers(self, shares=None):
        return dict.fromkeys(shares, 0.0)


def test_without_its_noise_the_private_run_is_pooled_lloyd_on_clipped_rows():
    clipped = ROWS * np.minimum(1, 5.0 / np.linalg.norm(ROWS, axis=1))[:, None]
    strategy = QuietFederatedKMeans(K, init=clipped[:K], n_rounds=3, max_norm=5.0)
    np.testing.assert_allclose(
        simulate(strategy, CLIENTS).model.cluster_centers_,
        slow_lloyd(clipped, clipped[:K], 3),
        atol=1e-6,
    )


def test_private_federated_kmeans_declares_how_far_the_worst_row_moves_its_sums_and_its_counts():
    max_norm, centers = 2.5, np.array([[0.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    strategy = PrivateFederatedKMeans(2, init=centers, max_norm=max_norm, n_rounds=1)
    run = watched_run(
        strategy, {str(index): ClientData(rows) for index, rows in enumerate(CLIENTS)}, seed=0
    )
    (round_,) = run.rounds.values()
    of_sums, of_counts = round_.releases
    assert (of_sums.sensitivity, of_counts.sensitivity) == pytest.approx((max_norm, 1.0), rel=1e-12)
    assert {release.relation for release in round_.releases} == {"add-or-remove"}

    def answer(*rows):
        client = ClusterClient(ClientData(np.reshape([[1.0, 0, 0], *rows], (-1, 3))), name="0")
        return [array.values for array in client.cluster_sums(centers, frame=round_.question.frame)]

    # Both are clipped.
    moved = np.max([[np.linalg.norm(a - b) for a, b in zip(answer(row), answer(), strict=True)]
                    for row in ([900.0, 0, 0], [0, -900.0, 0])], axis=0)  # fmt: skip
    np.testing.assert_allclose(moved, [of_sums.sensitivity, of_counts.sensitivity], rtol=1e-12)
