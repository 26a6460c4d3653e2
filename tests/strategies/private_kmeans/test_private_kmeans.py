"""PrivateKMeans: near the pooled optimum with noise and without, and what its clients send."""

import math

import numpy as np
import pytest
from sklearn.cluster import KMeans

from flower_fedclust.engine import ClientData
from flower_fedclust.exact.rows import Frame
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.private_kmeans import N_CLASSES, PrivateKMeans, PrivateKMeansClient, class_reach

K, D = 5, 12


def mixture(n_rows, seed=7):
    rng = np.random.default_rng(seed)
    means = rng.uniform(-4, 4, size=(K, D)) + 3
    return means[rng.integers(K, size=n_rows)] + rng.normal(size=(n_rows, D))


def times_the_optimum(result, rows):
    optimum = KMeans(K, n_init=10, random_state=0).fit(rows).inertia_
    return result.model.cost(rows) / optimum


def run(rows, n_clients, **parameters):
    strategy = PrivateKMeans(n_clusters=K, random_state=0, **parameters)
    return simulate(strategy, np.array_split(rows, n_clients), seed=0, progress=False)


def client(rows):
    return PrivateKMeansClient(ClientData(rows), name="0")


@pytest.mark.parametrize("n_lloyd_rounds", [1, 3])
def test_without_noise_the_centers_are_those_of_pooled_kmeans(n_lloyd_rounds):
    rows = mixture(2000)
    assert times_the_optimum(run(rows, 4, epsilon=None, n_lloyd_rounds=n_lloyd_rounds), rows) < 1.01


def test_a_record_is_protected_without_public_rows_and_the_cost_is_near_the_optimum():
    rows = mixture(10_000)
    result = run(rows, 10, epsilon=1.0, max_norm=50.0)
    assert times_the_optimum(result, rows) < 1.02
    assert result.privacy.epsilon <= 1.0


@pytest.mark.long
def test_a_client_is_protected_and_the_cost_is_near_the_optimum():
    rows = mixture(50_000)
    result = run(rows, 1000, epsilon=2.0, max_norm=50.0, privacy_unit="client")
    assert times_the_optimum(result, rows) < 1.02


def test_public_rows_give_origin_and_radius_and_take_part():
    rows = mixture(4000)
    result = run(rows, 4, epsilon=1.0, server_data=mixture(100), center_rows=False, n_rows=4000)
    assert times_the_optimum(result, rows) < 1.05
    assert "100 server rows" in str(result.privacy)


def test_a_generous_radius_costs_little():
    # The radius is 20 times what the rows need: the second moment's noise would be 400 times as large.
    rows = mixture(10_000)
    assert times_the_optimum(run(rows, 10, epsilon=1.0, max_norm=500.0), rows) < 1.05


def test_offsets_are_those_of_a_slow_loop():
    rows, rng = mixture(300), np.random.default_rng(1)
    centers, bound, frame = rows[rng.choice(300, 4, replace=False)], 3.0, Frame(np.zeros(D), 100.0)
    sums, counts = client(rows).offset_sums(centers, np.zeros((0, 0)), frame=frame, bound=bound)
    expected, n = np.zeros((4, D)), [0] * 4
    for row in rows:
        r = min(range(4), key=lambda r: float(((row - centers[r]) ** 2).sum()))
        offset = row - centers[r]
        expected[r] += offset * min(1.0, bound / max(math.sqrt((offset**2).sum()), 1e-300))
        n[r] += 1
    np.testing.assert_allclose(sums.values, expected, atol=1e-3)
    assert counts.integers.tolist() == n


def test_one_row_moves_clipped_offsets_by_no_more_than_the_bound():
    rows, bound = mixture(50), 0.37
    ask = {"frame": Frame(np.zeros(D), 100.0), "bound": bound}
    everyone, _ = client(rows).offset_sums(rows[:3], np.zeros((0, 0)), **ask)
    moved = []
    for left_out in range(0, 50, 7):
        others, _ = client(np.delete(rows, left_out, axis=0)).offset_sums(rows[:3], np.zeros((0, 0)), **ask)
        difference = (everyone.integers - others.integers).astype(object)
        assert everyone.exponent == others.exponent
        moved.append(math.sqrt(int((difference**2).sum())) * 2.0**everyone.exponent)
    assert max(moved) <= bound
    assert max(moved) > 0.99 * bound


def test_distances_fall_into_classes_by_half_powers_of_two():
    radius = 8.0
    lengths = [8.0, 5.7, 5.6, 4.1, 3.9, 0.0, 20.0]
    rows = np.zeros((len(lengths), 3))
    rows[:, 1] = lengths
    (found,) = client(rows).distances(frame=Frame(np.zeros(3), radius))
    expected = [0] * N_CLASSES
    for length in lengths:
        inside = [index for index in range(N_CLASSES) if min(length, radius) <= radius * class_reach(index)]
        expected[max(inside)] += 1
    assert found.integers.tolist() == expected


def test_what_a_client_sends_at_client_level_keeps_to_its_bounds():
    one, rows, asks = client(mixture(40)), mixture(9), PrivateKMeansClient
    everything, frame = np.zeros((0, 0)), Frame(np.zeros(D), 100.0)

    def sent(question):
        return [array.values for array in question.asks.reply_of(one, question)]

    (votes,) = sent(asks.votes.asked(rows, everything, frame=frame).mean(0.2))
    assert np.linalg.norm(votes) <= 0.2
    sums, counts = sent(asks.offset_sums.asked(rows[:3], everything, frame=frame, bound=5.0).mean(0.1, 0.3))
    assert np.linalg.norm(sums) <= 0.1
    assert np.linalg.norm(counts) <= 0.3
    (triangle,) = sent(asks.second_moment.asked(frame=frame).mean(7.0))
    first, second = np.triu_indices(D)
    assert math.sqrt((triangle**2 * np.where(first == second, 1, 2)).sum()) <= 7.0
    (size,) = sent(asks.moment_size.asked(frame=frame))
    assert size.sum() == 1


def test_the_origin_must_be_a_point():
    with pytest.raises(ValueError, match="origin must be a point"):
        PrivateKMeans(n_clusters=2, max_norm=1.0, origin=[[0.0, 1.0]])
    with pytest.raises(ValueError, match="max_norm is missing"):
        PrivateKMeans(n_clusters=2).check_complete()


def test_an_origin_of_another_width_than_the_rows_is_named():
    with pytest.raises(ValueError, match="the clients have 12 columns where the origin has 2"):
        run(mixture(100), 2, epsilon=1.0, max_norm=30.0, origin=[1.0, 2.0])


@pytest.mark.parametrize(
    ("n_rows", "n_clients", "parameters"),
    [(4000, 2, {"epsilon": 0.01}), (12, 4, {"epsilon": 1.0}), (1000, 3, {"epsilon": 1.0, "privacy_unit": "client"})],
)
def test_a_result_that_is_all_noise_says_so(n_rows, n_clients, parameters):
    result = run(mixture(n_rows), n_clients, max_norm=30.0, **parameters)
    assert "cannot be told from noise" in " ".join(map(str, result.doubts))


def test_one_column_over_two_clients_at_a_large_epsilon_has_the_clusters_that_are_there():
    rows = mixture(1000)[:, :1]
    assert times_the_optimum(run(rows, 2, epsilon=100.0, max_norm=30.0), rows) < 1.05
