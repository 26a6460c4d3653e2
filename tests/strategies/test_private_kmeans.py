"""PrivateKMeans: near the pooled optimum with every option, for every unit; and each step by itself."""

import math

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.datasets import load_breast_cancer, load_digits, make_blobs
from sklearn.metrics import adjusted_rand_score
from sklearn.preprocessing import StandardScaler

import flower_fedclust as fc
from flower_fedclust.engine import ClientData
from flower_fedclust.exact.rows import Frame
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.kmeans import squared_distances
from flower_fedclust.strategies.common import noisy_cells
from flower_fedclust.strategies.common.noisy_cells import NoisyCells, agreement_before_steps
from flower_fedclust.strategies.common.private_search import (
    COSTS,
    FIRST_CELLS,
    GOES_ON,
    LEAST_KEPT,
    N_CLASSES,
    Solution,
    Space,
    Units,
    _left_elsewhere,
    class_of_most,
    class_reach,
    fewest_cells,
    filtered,
    heaviest_split,
    nearer_in_many,
)
from flower_fedclust.strategies.common.small_clusters import (
    NoisyClusters,
    chosen_number,
    clustered,
    weight_of,
)
from flower_fedclust.strategies.private_kmeans import PrivateKMeans, PrivateKMeansClient
from flower_fedclust.strategies.private_mixture import PrivateMixture

K, D = 5, 12
EVERYTHING = np.zeros((0, 0))


def mixture(n_rows, seed=7):
    rng = np.random.default_rng(seed)
    means = rng.uniform(-4, 4, size=(K, D)) + 3
    classes = rng.integers(K, size=n_rows)
    return means[classes] + rng.normal(size=(n_rows, D)), classes


ROWS, CLASSES = mixture(4000)


def run(rows, n_clients, seed=0, n_clusters=K, **parameters):
    strategy = PrivateKMeans(n_clusters, random_state=seed, **parameters)
    return fc.simulate(strategy, np.array_split(rows, n_clients), seed=seed, progress=False)


@pytest.fixture(scope="module")
def times_the_optimum():
    """Return a function that divides a result's cost by the pooled optimum, which is found once for each table."""
    optima = {}

    def quotient(result, rows):
        key = rows.tobytes(), result.model.n_clusters
        if key not in optima:
            pooled = KMeans(result.model.n_clusters, n_init=10, random_state=0).fit(rows)
            optima[key] = pooled.inertia_
        return result.model.cost(rows) / optima[key]

    return quotient


def agreement(result, classes):
    return adjusted_rand_score(classes, np.concatenate(result.labels))


def client(rows):
    return PrivateKMeansClient(ClientData(rows), name="0")


def sent(one, question):
    return [array.values for array in question.asks.reply_of(one, question)]


# How good the clusters are.


@pytest.mark.parametrize("options", [{}, {"server_data": mixture(100)[0]}])
def test_without_noise_the_centers_are_those_of_pooled_kmeans(options, times_the_optimum):
    assert times_the_optimum(run(ROWS, 4, epsilon=None, **options), ROWS) < 1 + 1e-6


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 4))]
)
def test_at_epsilon_1_every_cluster_is_found(seed, times_the_optimum):
    result = run(ROWS, 4, seed, epsilon=1.0, max_norm=20.0)
    assert times_the_optimum(result, ROWS) < 1.01
    assert agreement(result, CLASSES) > 0.99
    assert result.privacy.epsilon <= 1.0


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_generous_radius_costs_little(seed, times_the_optimum):
    # The radius is 20 times as large as the rows need: the noise of the second moment would be 400 times as large.
    rows, classes = mixture(10_000)
    result = run(rows, 10, seed, epsilon=1.0, max_norm=500.0)
    assert times_the_optimum(result, rows) < 1.05
    assert agreement(result, classes) > 0.99


@pytest.mark.long
@pytest.mark.parametrize(
    ("load", "n_clusters", "most", "least"),
    [(load_digits, 10, 1.35, 0.25), (load_breast_cancer, 2, 1.1, 0.55)],
)
def test_real_rows_are_clustered_at_epsilon_1(load, n_clusters, most, least, times_the_optimum):
    """1797 and 569 rows, averaged over three seeds."""
    data = load()
    rows = data.data if load is load_digits else StandardScaler().fit_transform(data.data)
    max_norm = 80.0 if load is load_digits else 10.0
    runs = [run(rows, 3, seed, n_clusters, epsilon=1.0, max_norm=max_norm) for seed in range(3)]
    assert np.mean([times_the_optimum(result, rows) for result in runs]) < most
    assert np.mean([agreement(result, data.target) for result in runs]) > least


PUBLIC = {"server_data": mixture(100)[0], "max_norm": None}


#: Options that change what is asked or who draws the noise; `make check` has each of the others, too.
OPTIONS = [
    {"origin": np.full(D, 3.0), "center_rows": False},
    PUBLIC | {"center_rows": False, "n_rows": 4000},
    {"noise": "clients"},
    {"noise": "local"},
    {"budget": {"cells": 0.5}},
]
MORE_OPTIONS = [
    {},
    {"origin": np.full(D, 3.0)},
    {"n_rows": 4000},
    PUBLIC,
    PUBLIC | {"max_norm": 30.0, "origin": np.full(D, 2.0)},
    {"delta": 1e-9},
]


@pytest.mark.parametrize(
    "options",
    [*OPTIONS, *(pytest.param(options, marks=pytest.mark.long) for options in MORE_OPTIONS)],
    ids=str,
)
@pytest.mark.parametrize(
    ("epsilon", "most"), [pytest.param(0.5, 1.15, marks=pytest.mark.long), (1.0, 1.02)]
)
def test_every_option_keeps_the_clusters(options, epsilon, most, times_the_optimum):
    result = run(ROWS, 4, **{"epsilon": epsilon, "max_norm": 30.0} | options)
    assert times_the_optimum(result, ROWS) < most
    assert 0.75 * epsilon < result.privacy.composed_epsilon <= epsilon


@pytest.mark.parametrize("noise", ["server", pytest.param("clients", marks=pytest.mark.long)])
def test_clients_are_protected_and_the_clusters_are_found(noise, times_the_optimum):
    rows, classes = mixture(16_000)
    result = run(rows, 320, epsilon=4.0, max_norm=30.0, privacy_unit="client", noise=noise)
    assert times_the_optimum(result, rows) < 1.02
    assert agreement(result, classes) > 0.99
    assert (result.privacy.unit, result.privacy.composed_epsilon <= 4.0) == ("client", True)


@pytest.mark.parametrize("rows_per_client", [10, pytest.param(250, marks=pytest.mark.long)])
def test_a_wrong_number_of_rows_per_client_costs_some_accuracy_and_no_privacy(rows_per_client):
    rows, classes = mixture(16_000)
    result = run(
        rows,
        320,
        epsilon=4.0,
        max_norm=30.0,
        privacy_unit="client",
        rows_per_client=rows_per_client,
    )
    assert agreement(result, classes) > 0.95
    assert result.privacy.composed_epsilon <= 4.0


@pytest.mark.long
def test_at_client_level_a_thousand_clients_are_enough_for_epsilon_2(times_the_optimum):
    rows, _ = mixture(50_000)
    assert (
        times_the_optimum(run(rows, 1000, epsilon=2.0, max_norm=50.0, privacy_unit="client"), rows)
        < 1.02
    )


def test_one_column_has_its_clusters(times_the_optimum):
    rows = ROWS[:1000, :1]
    assert times_the_optimum(run(rows, 2, epsilon=100.0, max_norm=30.0), rows) < 1.05


@pytest.mark.parametrize(
    ("n_rows", "n_clients", "parameters"),
    [
        (4000, 2, {"epsilon": 0.01}),
        (12, 4, {"epsilon": 1.0}),
        (1000, 3, {"epsilon": 1.0, "privacy_unit": "client"}),
    ],
)
def test_a_result_that_is_all_noise_says_so(n_rows, n_clients, parameters):
    result = run(ROWS[:n_rows], n_clients, max_norm=30.0, **parameters)
    assert "drowned" in {doubt.code for doubt in result.doubts}


# What leaves the clients, and what it costs.


def test_nothing_leaves_but_sums_that_noise_covers():
    result = run(ROWS[:400], 4, max_norm=30.0)
    assert result.privacy.unprotected == []
    assert {message.detail for message in result.privacy.releases} == {"sum over the clients"}


@pytest.mark.parametrize("unit", ["record", "client"])
def test_a_part_costs_what_the_table_says(unit):
    """c releases of noise multiplier s cost c / s^2, in about the proportions of the table."""
    plan = PrivateKMeans(3, max_norm=1.0, privacy_unit=unit).frozen_plan
    cost = {name: share.count / plan.multipliers[name] ** 2 for name, share in plan.shares.items()}
    assert cost.keys() == COSTS.keys() - ({"row_count"} if unit == "client" else set())
    for name in cost:
        assert cost[name] / cost["cells"] == pytest.approx(COSTS[name] / COSTS["cells"], rel=0.2)


@pytest.mark.parametrize(
    ("options", "without"),
    [
        ({"n_rows": 10}, "row_count"),
        ({"center_rows": False}, "row_sum"),
        ({"privacy_unit": "client"}, "row_count"),
    ],
)
def test_what_is_not_asked_is_not_paid(options, without):
    assert COSTS.keys() - PrivateKMeans(3, max_norm=1.0, **options).frozen_plan.shares.keys() == {
        without
    }


def test_notes_name_what_is_assumed_to_be_public():
    strategy = PrivateKMeans(K, n_rows=99, privacy_unit="client", **PUBLIC)
    notes = " ".join(strategy.privacy_notes())
    assert all(
        words in notes
        for words in ("100 server rows", "number of all rows, 99", "How many clients")
    )


def test_one_row_moves_clipped_offsets_by_no_more_than_the_bound():
    rows, bound = ROWS[:50], 0.37
    ask = {"frame": Frame(np.zeros(D), 100.0), "bound": bound}
    everyone, _ = client(rows).offset_sums(rows[:3], EVERYTHING, **ask)
    moved = []
    for left_out in range(0, 50, 7):
        others, _ = client(np.delete(rows, left_out, axis=0)).offset_sums(
            rows[:3], EVERYTHING, **ask
        )
        difference = (everyone.integers - others.integers).astype(object)
        assert everyone.exponent == others.exponent
        moved.append(math.sqrt(int((difference**2).sum())) * 2.0**everyone.exponent)
    assert 0.99 * bound < max(moved) <= bound


def test_what_a_client_sends_at_client_level_keeps_to_its_bounds():
    one, rows, asks, frame = (
        client(ROWS[:40]),
        ROWS[:9],
        PrivateKMeansClient,
        Frame(np.zeros(D), 100.0),
    )
    cells = asks.cells.asked(rows, EVERYTHING, frame=frame, bound=5.0, weight=3.0)
    steps = asks.steps.asked(np.stack([rows[:4], rows[4:8]]), frame=frame, bound=5.0, weight=2.0)
    costs = asks.costs.asked(np.stack([rows[:4], rows[4:8]]), frame=frame, bound=5.0)
    for question in (cells, steps, costs):
        (mean,) = sent(one, question.mean(0.2))
        assert np.linalg.norm(mean) <= 0.2
    sums, counts = sent(
        one, asks.offset_sums.asked(rows[:3], EVERYTHING, frame=frame, bound=5.0).mean(0.1, 0.3)
    )
    assert np.linalg.norm(sums) <= 0.1
    assert np.linalg.norm(counts) <= 0.3
    (triangle,) = sent(one, asks.second_moment.asked(frame=frame).mean(7.0))
    first, second = np.triu_indices(D)
    assert math.sqrt((triangle**2 * np.where(first == second, 1, 2)).sum()) <= 7.0
    (total,) = sent(one, asks.row_sum.asked(frame=frame).mean(None))
    np.testing.assert_allclose(total, ROWS[:40].mean(axis=0), atol=1e-3)


# The answers of a client, against slow loops.


def test_offsets_are_those_of_a_slow_loop():
    rows, rng = ROWS[:300], np.random.default_rng(1)
    centers, bound, frame = rows[rng.choice(300, 4, replace=False)], 3.0, Frame(np.zeros(D), 100.0)
    sums, counts = client(rows).offset_sums(centers, EVERYTHING, frame=frame, bound=bound)
    expected, n = np.zeros((4, D)), [0] * 4
    for row in rows:
        r = min(range(4), key=lambda r: float(((row - centers[r]) ** 2).sum()))
        offset = row - centers[r]
        expected[r] += offset * min(1.0, bound / max(math.sqrt((offset**2).sum()), 1e-300))
        n[r] += 1
    np.testing.assert_allclose(sums.values, expected, atol=1e-3)
    assert counts.values.tolist() == n


def test_offsets_in_directions_are_those_of_projected_rows():
    rows, directions = ROWS[:200], np.eye(D)[:, :2]
    frame, points = Frame(np.zeros(D), 100.0), ROWS[:6, :2]
    nearest = np.argmin(((rows[:, None, :2] - points) ** 2).sum(axis=2), axis=1)
    sums, counts = client(rows).offset_sums(points, directions, frame=frame, bound=100.0)
    expected = np.zeros((6, 2))
    np.add.at(expected, nearest, rows[:, :2] - points[nearest])
    np.testing.assert_allclose(sums.values, expected, atol=1e-2)
    assert counts.values.tolist() == np.bincount(nearest, minlength=6).tolist()


def test_cells_are_offsets_and_weighted_counts():
    rows, directions, frame = ROWS[:200], np.eye(D)[:, :3], Frame(np.zeros(D), 100.0)
    points, bound, weight = ROWS[:6, :3], 2.0, 0.7
    (cells,) = client(rows).cells(points, directions, frame=frame, bound=bound, weight=weight)
    sums, counts = client(rows).offset_sums(points, directions, frame=frame, bound=bound)
    np.testing.assert_allclose(cells.values[:, :-1], sums.values, atol=1e-4)
    np.testing.assert_allclose(cells.values[:, -1], weight * counts.values, rtol=1e-6)


def test_distances_fall_into_classes_by_half_powers_of_two():
    radius, lengths = 8.0, [8.0, 5.7, 5.6, 4.1, 3.9, 0.0, 20.0]
    rows = np.zeros((len(lengths), 3))
    rows[:, 1] = lengths
    (found,) = client(rows).distances(frame=Frame(np.zeros(3), radius))
    expected = [0] * N_CLASSES
    for length in lengths:
        inside = [
            index
            for index in range(N_CLASSES)
            if min(length, radius) <= radius * class_reach(index)
        ]
        expected[max(inside)] += 1
    assert found.values.tolist() == expected


@pytest.mark.parametrize(
    ("length", "expected"), [(8.0, 0), (5.5, 1), (3.9, 2), (0.0, N_CLASSES - 1)]
)
def test_the_class_of_a_client_is_the_root_of_its_mean_outer_product(length, expected):
    rows = np.zeros((20, 3))
    rows[:, 0] = length
    (size,) = sent(
        client(rows), PrivateKMeansClient.moment_size.asked(frame=Frame(np.zeros(3), 8.0))
    )
    assert size.tolist() == [float(index == expected) for index in range(N_CLASSES)]


# What the server makes of noisy sums.


def test_the_radius_leaves_out_a_tenth_of_the_rows_or_what_may_be_noise():
    assert class_of_most(np.array([0.0, 9.0, 91.0, 0.0]), 100.0, 0.0) == 2
    assert class_of_most(np.array([0.0, 11.0, 89.0, 0.0]), 100.0, 0.0) == 1
    assert class_of_most(np.array([0.0, 11.0, 89.0, 0.0]), 100.0, 10.0) == 2
    assert class_of_most(np.zeros(4), 100.0, 10.0) == 3


def test_noise_in_many_far_classes_does_not_add_up_to_rows():
    classes = np.array([15.0] * 10 + [0.0, 0.0, 0.0, 900.0, 100.0, 0.0])
    assert class_of_most(classes, 1000.0, 30.0) == 13


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 3))]
)
def test_bounds_that_are_far_too_wide_leave_the_origin_near_the_middle(seed):
    rows = np.random.default_rng(seed).standard_normal((3000, 3))
    result = fc.simulate(
        fc.PrivateKMeans(2, epsilon=1.0, max_norm=100.0), [rows[::2], rows[1::2]], seed=seed
    )
    first, second = (sent.release for sent in result.privacy.messages if sent.task == "row_sum")
    assert second.sensitivity < first.sensitivity / 8


@pytest.mark.parametrize("weighted", [0, 1, 2, 6])
def test_there_are_as_many_centers_as_asked_for(weighted):
    points, weights = np.random.default_rng(3).normal(size=(6, 2)), np.zeros(6)
    weights[:weighted] = 1.0
    for n_points in (6, 2):
        centers = clustered(
            points[:n_points], weights[:n_points], 3, np.random.default_rng(0), n_init=1
        )
        assert centers.shape == (3, 2)
        assert np.isfinite(centers).all()


def test_weight_is_that_of_the_nearest_points():
    points, centers = (
        np.array([[0.0, 0.0], [2.0, 0.0], [10.0, 6.0]]),
        np.array([[1.0, 0.0], [10.0, 10.0]]),
    )
    weights = np.array([1.0, 1.0, 2.0])
    assert weight_of(points, weights, centers).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("n_known", [5, 20])
def test_shrinking_reduces_the_error_and_keeps_what_has_no_noise(n_known):
    rng = np.random.default_rng(3)
    directions = np.linalg.qr(rng.normal(size=(20, 20)))[0][:, :n_known]
    truth, variance, errors = rng.normal(size=(8, 20)) * 0.3, np.full(8, 0.5), np.zeros(2)
    expected = np.full((8, 3), 0.09)
    for _ in range(20):
        noisy = truth + rng.normal(size=truth.shape) * np.sqrt(variance)[:, None]
        shrunk, _ = filtered(noisy, variance, directions, 5, expected)
        errors += ((noisy - truth) ** 2).sum(), ((shrunk - truth) ** 2).sum()
    assert errors[1] < 0.4 * errors[0]
    np.testing.assert_allclose(
        filtered(truth, np.zeros(8), directions, 5, expected)[0], truth, atol=1e-9
    )


def test_many_noisy_steps_are_as_good_as_one_with_all_of_their_budget():
    """A cluster's mean, measured 16 times: the filter ends where the mean of the measurements is, not far from it."""
    rng = np.random.default_rng(0)
    truth, noise = rng.normal(size=(6, 20)), np.array([1.0, 1.0, 1.0, 1.0, 1.0, 30.0])
    errors = np.zeros(2)
    for _ in range(20):
        centers, signal = np.zeros((6, 20)), np.full((6, 3), 1.0)
        for _ in range(16):
            measured = truth - centers + noise[:, None] * rng.normal(size=truth.shape)
            moved, signal = filtered(measured, noise**2, np.eye(20), 5, signal)
            centers += moved
        best = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])  # nothing can be seen of the last
        of_mean = truth * (1 - best[:, None]) + rng.normal(size=truth.shape) / 4 * best[:, None]
        errors += ((centers - truth) ** 2).sum(), (of_mean**2).sum()
    assert errors[0] < 2 * errors[1]
    moved, _ = filtered(truth, np.zeros(6), np.eye(20), 5, np.full((6, 3), 1.0))
    np.testing.assert_allclose(moved, truth, atol=1e-9)


def test_noise_is_left_out_where_many_offsets_show_that_centers_do_not_move():
    """100 centers in 384 columns differ in 100 directions; in the other 284 all offsets are noise."""
    rng = np.random.default_rng(0)
    truth = np.zeros((100, 384))
    truth[:, :100] = 0.01 * rng.normal(size=(100, 100))
    centers, signal = np.zeros_like(truth), np.full((100, 3), [1e-2, 5e-4, 5e-4])
    for variance in (3e-5, 3e-5, 1e-5):
        measured = truth - centers + math.sqrt(variance) * rng.normal(size=truth.shape)
        moved, signal = filtered(measured, np.full(100, variance), np.eye(384), 100, signal)
        centers += moved
    of_noise = 100 * 284 * 1e-5  # what the last step alone would add there
    assert (centers[:, 100:] ** 2).sum() < 0.3 * of_noise
    assert ((centers - truth)[:, :100] ** 2).sum() < 100 * 100 * 1e-5


def test_few_offsets_of_zero_rule_out_no_larger_ones_and_many_do():
    """Three centers in five columns did not move, with hardly any noise; nor did 100 centers in 384 columns."""
    _, few = filtered(np.zeros((3, 5)), np.full(3, 1e-6), np.eye(5), 3, np.full((3, 3), 1.0))
    np.testing.assert_allclose(few[:, :2], GOES_ON * LEAST_KEPT, rtol=1e-4)
    _, many = filtered(
        np.zeros((100, 384)), np.full(100, 1e-6), np.eye(384), 100, np.full((100, 3), 1.0)
    )
    assert many[:, :2].max() < 0.1 * GOES_ON * LEAST_KEPT


def test_clusters_have_a_few_cells_each_where_noise_allows_it():
    numbers = [fewest_cells(100, most_counted) for most_counted in (10, 300, 360, 1e4, 1e12)]
    assert numbers == [150, 150, 180, 300, 300]


def test_the_cells_of_two_clusters_are_split_first():
    counts = np.array([500.0, 1000.0, 480.0, 10.0])
    assert heaviest_split(counts, 1).tolist() == [1]
    assert sorted(heaviest_split(counts, 5)) == [0, 1, 1, 1, 2]
    assert heaviest_split(counts, 0).tolist() == []


def test_rows_vary_less_where_centers_have_found_a_part_beside_the_search():
    space = Space(
        Frame(np.zeros(6), 10.0),
        n_rows=1000.0,
        units=Units(1000.0),
        values=np.ones(6),
        directions=np.eye(6),
        n_above=2,
        n_inside=2,
        spread=np.ones(2),
        total=5.0,
    )
    centers = np.eye(6)[:2] * 3.0
    rows = centers[[0, 1, 1, 0], :2]

    def left(part, error):
        moved = centers + part * np.eye(6)[4]
        return _left_elsewhere(space, rows, Solution(moved, np.full((2, 3), error), moved))

    assert left(0.0, 0.0) == left(0.0, 0.1) == 3.0
    assert left(1.0, 0.0) == pytest.approx(2.0)
    assert left(1.0, 0.1) == pytest.approx(2.4)  # the errors of four entries
    assert left(9.0, 0.0) == 0.0


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_larger_epsilon_tends_to_pooled_search(seed, times_the_optimum):
    """Rows whose k-means has many minima: at epsilon 100 the cost is that of the best of many pooled starts."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6000, 6)) * np.array([3.0, 2.0, 1.5, 1.0, 1.0, 0.5])
    result = run(rows, 2, seed, 7, epsilon=100.0, max_norm=30.0)
    assert times_the_optimum(result, rows) < 1.005


def test_solutions_take_the_steps_of_each_by_itself():
    rows, frame = ROWS[:200], Frame(np.zeros(D), 100.0)
    solutions, bound, weight = np.stack([ROWS[:4], ROWS[4:8]]), 2.0, 0.7
    (steps,) = client(rows).steps(solutions, frame=frame, bound=bound, weight=weight)
    for one, points in zip(steps.values, solutions, strict=True):
        (cells,) = client(rows).cells(points, EVERYTHING, frame=frame, bound=bound, weight=weight)
        np.testing.assert_array_equal(one, cells.values)
    question = PrivateKMeansClient.steps.asked(solutions, frame=frame, bound=bound, weight=weight)
    (moved,) = question.moved()
    assert moved.l2 == pytest.approx(math.sqrt(2) * math.hypot(bound, weight))


def test_more_noise_means_fewer_cells_of_fewer_directions():
    variances = 1.0 / np.arange(1, 21)
    chosen = [
        noisy_cells.directions_and_cells(variances, 0.1, lambda _: 1.6, noise, 8, 200)
        for noise in (0.0, 1e-4, 1e-3, 3e-3, 1e-2)
    ]
    directions, cells = zip(*chosen, strict=True)
    assert (cells[0], cells[-1], directions[-1]) == (200, 26, 3)
    assert list(cells) == sorted(cells, reverse=True)
    assert list(directions) == sorted(directions, reverse=True)


def test_the_points_of_a_code_leave_what_theory_says():
    """4,096 points leave rows 4096^(-2 / 64) of their variance in 64 equal directions, and all of a narrow one."""
    variances = np.append(np.full(64, 0.25), 1e-3)
    assert noisy_cells.left_by_a_code(variances, 4096) == pytest.approx(
        16 * 4096 ** (-2 / 64) + 1e-3
    )


def test_what_a_client_adds_is_about_as_long_as_its_bounds_say():
    """Clients of 50 rows like all others: the mean of a row's offset and place is hardly ever longer."""
    rng = np.random.default_rng(0)
    units, n_places, n_columns = Units(400, 50, are_clients=True), 5, 12
    norms = []
    for _ in range(400):
        labels, offsets = (
            rng.integers(n_places, size=50),
            rng.normal(size=(50, n_columns)) / n_columns**0.5,
        )
        sums = np.zeros((n_places, n_columns))
        np.add.at(sums, labels, offsets)
        norms.append(
            np.hypot(
                np.linalg.norm(sums / 50),
                0.4 * np.linalg.norm(np.bincount(labels, minlength=5) / 50),
            )
        )
    norm = units.of_both(1.0, 0.4, n_places)
    assert np.mean(np.array(norms) < norm) > 0.95
    assert norm < 1.5 * np.mean(norms)
    rows = Units(20_000)
    assert (rows.of_offsets(2.0), rows.of_counts(7), rows.of_vectors(np.ones((3, 2)), 2.0)) == (
        2.0,
        1.0,
        2.0,
    )
    assert rows.of_both(2.0, 1.5, 7) == 2.5


@pytest.mark.parametrize("kind", [PrivateKMeans, fc.PrivateMixture, fc.PrivateDensity])
@pytest.mark.parametrize("n_columns", [2, 5])
@pytest.mark.parametrize("epsilon", [None, 1000.0])
def test_a_few_rows_have_no_more_clusters_than_rows(kind, n_columns, epsilon):
    for n_rows in (4, 6, 14):
        rows = np.random.default_rng(0).normal(size=(n_rows, n_columns))
        result = fc.simulate(
            kind("auto", epsilon=epsilon, max_norm=5.0), [rows[::2], rows[1::2]], seed=0
        )
        assert 2 <= result.number.chosen <= n_rows


@pytest.mark.parametrize("kind", [PrivateKMeans, fc.PrivateMixture])
def test_equal_rows_without_noise_are_not_said_to_be_hidden_by_it(kind):
    result = fc.simulate(kind("auto", epsilon=None), [np.ones((30, 2))] * 2, seed=0)
    assert "noise" not in result.number.sentence
    assert "too few different values" in result.number.sentence


@pytest.mark.parametrize("n_columns", [4, 100, 300])
def test_every_first_point_has_rows_in_many_directions_as_in_few(n_columns):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(5000, n_columns))
    points = FIRST_CELLS * nearer_in_many(np.ones(n_columns)) * rng.normal(size=(200, n_columns))
    n_rows_each = np.bincount(squared_distances(rows, points).argmin(axis=1), minlength=200)
    assert np.mean(n_rows_each >= 5) >= 0.95


@pytest.mark.long
def test_wide_clusters_are_found_with_and_without_noise():
    """40 clusters of unit rows in 384 columns: draws from a Gaussian come near to none of them."""
    rng = np.random.default_rng(0)
    classes = rng.integers(40, size=20_000)
    rows = 3 * rng.normal(size=(40, 384))[classes] + rng.normal(size=(20_000, 384))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    planted = np.array([rows[classes == index].mean(axis=0) for index in range(40)])
    cost = KMeansModel(planted).cost(rows)
    for epsilon, most in ((None, 1.0001), (3.0, 1.05)):
        result = run(rows, 2, n_clusters=40, epsilon=epsilon, max_norm=1.0)
        assert agreement(result, classes) > 0.999
        assert result.model.cost(rows) < most * cost


# The number of clusters.


def chosen(rows, n_clusters, n_clients=4, seed=0, **parameters):
    return run(rows, n_clients, seed, n_clusters, **{"max_norm": 60.0} | parameters)


@pytest.mark.parametrize(
    "given",
    [
        {"epsilon": 1.0},
        pytest.param(
            {"epsilon": None, "rows_per_client": 2000, "privacy_unit": "client"},
            marks=pytest.mark.long,
        ),
    ],
)
def test_the_number_of_blobs_is_found_at_no_further_cost(given):
    rows = make_blobs(8000, 6, centers=4, random_state=0)[0]
    found, fixed = chosen(rows, (2, 7), **given), chosen(rows, 7, **given)
    assert (found.number.chosen, found.number.is_clear, fixed.number) == (4, True, None)
    assert found.model.n_clusters == found.summary()["number"]["chosen"] == 4
    releases = [
        [message.release for message in result.privacy.messages][:6] for result in (found, fixed)
    ]
    assert releases[0] == releases[1]


@pytest.mark.long
def test_one_gaussian_has_no_clear_number_and_the_result_says_so():
    result = chosen(np.random.default_rng(0).normal(size=(8000, 6)), "auto")
    assert not result.number.is_clear
    assert [doubt.code for doubt in result.doubts] == ["no-clear-number", "unstable"]


@pytest.mark.long
@pytest.mark.parametrize("n_rows", [300, 600, 1000, 2000])
def test_one_gaussian_of_few_rows_has_no_clear_number_either(n_rows):
    for seed in range(3):
        rows = np.random.default_rng(seed).normal(size=(n_rows, 4))
        assert not chosen(rows, "auto", 5, seed, epsilon=1.0, max_norm=6.0).number.is_clear


def test_noise_that_hides_everything_leaves_no_number():
    result = chosen(np.random.default_rng(0).normal(size=(100, 6)), (2, 5), epsilon=0.1)
    assert not result.number.is_clear
    assert set(result.number.silhouette) == {0.0}


def test_few_rows_are_compared_with_one_gaussian_and_not_with_the_luck_of_a_draw():
    spread = np.array([2.0, 0.5, 0.3])
    means = np.column_stack([np.linspace(-3, 3, 8), np.zeros((8, 2))])
    counts = np.full(8, 150 / 8)
    cells = NoisyCells(means, counts, spread**2 / 8, 0.0, 0.0)
    fine = NoisyClusters(means, counts, float((spread**2).sum()), 0.0, 0.0, cells)
    numbers = [
        chosen_number(fine, spread, 1e4, (2, 3), np.random.default_rng(seed)) for seed in range(8)
    ]
    assert np.std([number.of_one_gaussian[0] for number in numbers]) < 0.02


# Whether another run would find the same clusters.


def expected_agreement(means, counts, of_sums, centers, seed=0):
    within = np.full(means.shape[1], 0.1 / means.shape[1])
    cells = NoisyCells(means, np.maximum(counts, 1.0), within, of_sums, 5.0)
    return agreement_before_steps(cells, centers, 16, np.random.default_rng(seed))


def test_another_run_finds_clusters_that_are_far_apart_unless_noise_hides_them():
    centers = 5 * np.eye(4)
    means = np.repeat(centers, 2, axis=0) + 0.1 * np.random.default_rng(0).standard_normal((8, 4))
    counts = np.full(8, 300.0)
    assert expected_agreement(means, counts, 1.0, centers) > 0.95
    assert expected_agreement(means, counts, 5000.0, centers) < 0.5
    other = np.array([[2.5, 2.5, 0, 0], [0, 0, 2.5, 2.5], [9.0, 0, 0, 0], [0, 9.0, 0, 0]])
    assert expected_agreement(means, counts, 1.0, other) < 0.7


def test_another_run_is_no_certainty_where_the_start_alone_decides():
    around = np.linspace(0, 2 * np.pi, 6, endpoint=False)
    ring = np.column_stack([np.cos(around), np.sin(around)])
    assert expected_agreement(ring, np.full(6, 1e6), 1.0, ring[:2] + ring[1:3]) < 0.7


def test_a_number_is_not_stable_where_rows_between_its_clusters_have_been_released():
    """A square has two halves in two ways. Rows that are drawn about two centers would hide this."""
    places = np.linspace(-1, 1, 6)
    means = np.stack(np.meshgrid(places, places), axis=-1).reshape(-1, 2)
    cells = NoisyCells(means, np.full(36, 500.0), np.full(2, 0.01), 5.0, 5.0)
    halves = np.array([[-0.6, 0.0], [0.6, 0.0]])
    found = [
        agreement_before_steps(cells, halves, 16, np.random.default_rng(seed)) for seed in range(6)
    ]
    assert np.mean(found) < 0.8


@pytest.mark.parametrize("n_cells", [2, 3], ids=["no cell", "a hidden cell"])
def test_an_imitated_run_sees_rows_at_a_center_that_only_later_sums_have_shown(n_cells):
    """With a few hundred rows, all cells that are clear of noise may lie at one center."""
    means = np.array([[0.0, 0.0], [0.2, 0.0], [5.0, 0.0]])[:n_cells]
    cells = NoisyCells(means, np.array([300.0, 200.0, 60.0])[:n_cells], np.full(2, 0.1), 6.0, 28.0)
    centers = np.array([[0.1, 0.0], [5.0, 0.0]])
    again = noisy_cells.repeated(
        cells, centers, np.zeros((2, 2)), np.eye(2), 0.0, (), np.random.default_rng(0)
    )
    assert again.agreement > 0.8
    assert again.each.min() > 0.8


@pytest.mark.parametrize("kind", [PrivateKMeans, PrivateMixture])
def test_a_chosen_number_and_the_doubt_have_one_stability(kind):
    rows = np.random.default_rng(0).normal(size=(3000, 4))
    strategy = kind((2, 4), epsilon=1.0, max_norm=8.0, random_state=0)
    result = fc.simulate(strategy, np.array_split(rows, 3), seed=0, progress=False)
    stability = dict(zip(result.number.numbers, result.number.stability, strict=True))
    (doubt,) = (doubt for doubt in result.doubts if doubt.code == "unstable")
    assert stability[result.model.n_clusters] == doubt.numbers["ari"]
    assert not result.number.is_clear


def test_counts_that_are_all_noise_give_a_figure_as_well():
    assert -1 <= expected_agreement(np.zeros((6, 2)), np.zeros(6), 100.0, np.zeros((3, 2))) <= 1


def test_runs_that_find_the_same_clusters_expect_it_of_each_other():
    first, second = (run(ROWS, 4, seed, epsilon=1.0, max_norm=20.0) for seed in range(2))
    assert agreement(first, np.concatenate(second.labels)) > 0.97
    assert [doubt.code for result in (first, second) for doubt in result.doubts] == []


# Parameters.


def test_a_range_is_a_parameter_like_any_other():
    strategy = PrivateKMeans([2, 5], max_norm=1.0)
    assert clone(strategy).n_clusters == [2, 5]
    assert strategy.most_clusters == 5


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"n_clusters": "some"}, "n_clusters"),
        ({"n_clusters": (5, 2)}, "n_clusters"),
        ({"max_norm": None}, "max_norm"),
        ({"origin": [[0.0, 1.0]]}, "origin"),
        ({"origin": [0.0], "server_data": [[0.0, 1.0], [1.0, 0.0]]}, "origin"),
        ({"server_data": [[1.0, 1.0]] * 3, "max_norm": None}, "server_data"),
        ({"server_data": [[1.0, np.nan]]}, "server_data"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"privacy_unit": "row"}, "privacy_unit"),
        ({"rows_per_client": 0}, "rows_per_client"),
        ({"n_rows": 0}, "n_rows"),
    ],
)
def test_a_wrong_parameter_is_named(parameters, name):
    with pytest.raises(ValueError, match=name):
        PrivateKMeans(**{"n_clusters": 2, "max_norm": 1.0} | parameters).check_complete()


def test_an_origin_of_another_width_than_the_rows_is_named():
    with pytest.raises(ValueError, match="origin"):
        run(ROWS[:100], 2, epsilon=1.0, max_norm=30.0, origin=[1.0, 2.0])


def test_the_first_solution_of_cells_does_not_rest_on_the_width_of_drawn_rows():
    rng = np.random.default_rng(0)
    means = np.column_stack(
        [rng.choice([-3.0, 0.0, 3.0], 24) + 0.3 * rng.standard_normal(24), np.zeros(24)]
    )
    cells = NoisyCells(means, np.full(24, 100.0), np.array([0.1, 60.0]), 0.0, 0.0)
    first = noisy_cells.best_solutions(cells, cells.drawn(3, rng), 3, 1, rng)[0]
    assert np.abs(np.sort(first[:, 0]) - [-3, 0, 3]).max() < 0.3
    assert np.abs(first[:, 1]).max() < 0.01


def test_costs_are_clipped_where_noise_would_weigh_more_than_what_clipping_may_take():
    rng = np.random.default_rng(0)
    rows = rng.exponential(1.0, (4000, 2)) ** 2
    solutions = [rows[rng.choice(4000, 3)] for _ in range(4)]
    costs = np.stack([squared_distances(rows, one).min(axis=1) for one in solutions], axis=1)
    widest = np.linalg.norm(costs - costs.mean(axis=1, keepdims=True), axis=1).max()
    bounds = []
    for noise in (1.0, 10.0, 100.0, 1000.0):
        bound, norm, lost = noisy_cells.bound_of_costs(
            rows, solutions, 4000.0, noise, Units(4000).of_vectors
        )
        assert norm == bound
        assert np.hypot(2 * np.abs(lost).max(), noise * bound) <= noise * widest * (1 + 1e-9)
        bounds.append(bound)
    assert bounds[0] == pytest.approx(widest)
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] < 0.2 * widest


def test_what_clipping_takes_from_means_is_that_of_a_slow_loop():
    rng = np.random.default_rng(0)
    rows, centers = rng.standard_t(2, (300, 3)), rng.normal(size=(4, 3))
    centers = np.concatenate([centers, [[99.0, 0.0, 0.0]]])  # no row is nearest to it
    lost = noisy_cells.DrawnOffsets.of(rows, centers, 2.0).lost(1.8)
    labels = squared_distances(rows, centers).argmin(axis=1)
    for index, center in enumerate(centers):
        taken = [np.zeros(3)]
        for row in rows[labels == index]:
            length = np.sqrt(((row - center) ** 2).sum() + 2.0)
            taken.append((row - center) * max(0.0, 1.0 - 1.8 / length))
        own = max(len(taken) - 1, 1)
        np.testing.assert_allclose(lost[index], np.sum(taken, axis=0) / own, atol=1e-12)


def test_bounds_of_offsets_are_wide_where_a_cluster_has_far_rows_and_noise_is_small():
    rng = np.random.default_rng(0)
    near = rng.normal(size=(2000, 2))
    far = np.concatenate([near, rng.normal([8.0, 0.0], size=(100, 2))])
    centers = np.array([[0.0, 0.0], [0.0, 1.0]])
    reaches = []
    for rows in (near, far):
        drawn = noisy_cells.DrawnOffsets.of(rows, centers, 0.0)
        within = float((drawn.norms**2).mean())
        reaches.append([drawn.reach(within, excess) for excess in (1e-4, 1e-3, 1e-2, 1e-1, 1.0)])
    of_near, of_far = np.array(reaches)
    rule = [noisy_cells.reach_of_offsets(excess) for excess in (1e-4, 1e-3, 1e-2, 1e-1, 1.0)]
    for found in (of_near, of_far):
        assert (found >= np.array(rule) - 1e-9).all()
        assert (np.diff(found) <= 0).all()
        assert found[-1] == pytest.approx(rule[-1])
    assert (of_far[:3] > 1.2 * of_near[:3]).all()


def test_draws_of_points_together_are_the_same_as_one_by_one():
    rng = np.random.default_rng(0)
    points, weights = rng.normal(size=(50, 3)), rng.exponential(size=(4, 50))
    apart = squared_distances(points, points)
    together = noisy_cells.spread_out(apart, weights, 6, np.random.default_rng(1))
    numbers = np.random.default_rng(1)
    alone = [noisy_cells.spread_out(apart, one[None], 6, numbers)[0] for one in weights]
    np.testing.assert_array_equal(together, alone)
    assert all(len(set(one)) == 6 for one in alone)


@pytest.mark.parametrize("n_rows", [500, 300_000])
def test_imitated_runs_step_together_as_they_would_alone(n_rows):
    """With 1,024 columns most of a run's time passed with reading the drawn rows for each imitated run."""
    rng = np.random.default_rng(0)
    rows, runs = rng.normal(size=(n_rows, 3)), rng.normal(size=(5, 4, 3))
    table = noisy_cells.Imitated(rows, 1.0 + rng.random(n_rows), np.zeros((4, 2)), np.eye(3))
    together = table.step(runs)
    for run, moved, cost in zip(runs, together, table.costs(runs), strict=True):
        distances = squared_distances(rows, run)
        assert cost == pytest.approx(table.weights @ distances.min(axis=1))
        for index, center in enumerate(moved):
            own = distances.argmin(axis=1) == index
            np.testing.assert_allclose(
                center, np.average(rows[own], axis=0, weights=table.weights[own]), atol=1e-12
            )


@pytest.mark.parametrize(("n_clusters", "n_starts"), [(64, 10), (128, 5), (1000, 1)])
def test_imitated_runs_have_fewer_starts_with_many_clusters(n_clusters, n_starts, monkeypatch):
    """Their time grew with the square of the clusters: 256 took 7 s of a run of 8 s."""
    seen = []

    def centers(means, weights, n_clusters, rng):
        seen.append(len(weights))
        return np.zeros((len(weights), n_clusters, 1))

    monkeypatch.setattr(noisy_cells, "kmeans_of_cells", centers)
    places = np.arange(float(n_clusters))[:, None]
    cells = NoisyCells(places, np.full(n_clusters, 10.0), np.ones(1), 1.0, 1.0)
    errors = np.full((n_clusters, 2), 0.01)
    table = noisy_cells.Imitated(places, np.ones(n_clusters), errors, np.eye(1))
    noisy_cells._another_run(cells, table, np.random.default_rng(0), 1.0)
    assert seen == [n_starts]


@pytest.mark.parametrize("epsilon", [pytest.param(20.0, marks=pytest.mark.long), 1000.0])
def test_far_groups_leave_no_doubt_where_noise_is_nothing(epsilon):
    """The steps end where they lower the cost no more, long before what is expected of them is nothing."""
    rng = np.random.default_rng(0)
    groups = np.array([[-2.3, -2.3], [4.7, -2.3], [-2.3, 4.7]])
    rows = groups[rng.integers(3, size=4000)] + rng.normal(0, 0.3, (4000, 2))
    strategy = fc.PrivateKMeans(3, epsilon=epsilon, max_norm=10.0)
    assert fc.simulate(strategy, [rows[:2000], rows[2000:]], seed=1).doubts == ()
