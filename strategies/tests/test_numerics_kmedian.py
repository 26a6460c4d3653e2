import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

from flower_fedclust.numerics import blocks
from flower_fedclust_papers.kmedian import (
    allotted,
    alternate,
    draw_coreset,
    kmedian_cost,
    kmedian_plusplus,
    nearest_distance,
    weighted_kmedian,
    weiszfeld_step,
    without_negative_weights,
)

RNG = np.random.default_rng(5)
ROWS = RNG.normal(size=(60, 3)) * [1.0, 2.0, 0.5] + 4.0
WEIGHTS = RNG.uniform(0.1, 3.0, size=60)
CENTERS = RNG.normal(size=(4, 3)) + 4.0
ONE = np.zeros(60, dtype=np.intp)


def slow_median(rows, weights):
    """The geometric median by a general optimiser, and by trying every row: where rows are, it is not smooth."""

    def cost(center):
        return weights @ np.linalg.norm(rows - center, axis=1)

    found = minimize(
        cost, rows.mean(axis=0), method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-12}
    )
    return min([cost(found.x), *(cost(row) for row in rows)])


def steps(rows, weights, center, n_steps):
    center = np.atleast_2d(np.asarray(center, dtype=float))
    labels = np.zeros(len(rows), dtype=np.intp)
    for _ in range(n_steps):
        center = weiszfeld_step(rows, weights, center, labels)
    return center


# Distances and the cost


def test_nearest_distance_is_scipys():
    distances, labels = nearest_distance(ROWS, CENTERS)
    expected = cdist(ROWS, CENTERS)
    np.testing.assert_array_equal(labels, expected.argmin(axis=1))
    np.testing.assert_allclose(distances, expected.min(axis=1), rtol=1e-12)


def test_row_that_is_a_center_is_at_distance_0_even_far_from_the_origin():
    rows = ROWS + 1e5
    distances, _ = nearest_distance(rows, rows[[3, 40]])
    assert set(np.flatnonzero(distances == 0)) == {3, 40}


@pytest.mark.parametrize("entries", [1, 7, 100])
def test_block_by_block_gives_what_one_block_gives(monkeypatch, entries):
    distances, labels = nearest_distance(ROWS, CENTERS)
    moved = weiszfeld_step(ROWS, WEIGHTS, CENTERS, labels)
    monkeypatch.setattr(blocks, "BLOCK_ENTRIES", entries)
    np.testing.assert_array_equal(nearest_distance(ROWS, CENTERS)[0], distances)
    np.testing.assert_allclose(weiszfeld_step(ROWS, WEIGHTS, CENTERS, labels), moved, rtol=1e-13)


# Weiszfeld


def test_step_is_the_mean_of_the_rows_weighted_by_their_inverse_distances():
    _, labels = nearest_distance(ROWS, CENTERS)
    moved = weiszfeld_step(ROWS, WEIGHTS, CENTERS, labels)
    for index, center in enumerate(CENTERS):
        own = labels == index
        inverse = WEIGHTS[own] / np.linalg.norm(ROWS[own] - center, axis=1)
        np.testing.assert_allclose(moved[index], inverse @ ROWS[own] / inverse.sum(), rtol=1e-12)


def test_steps_lead_to_the_geometric_median():
    median = steps(ROWS, WEIGHTS, ROWS.mean(axis=0), 300)
    assert kmedian_cost(ROWS, median, WEIGHTS) == pytest.approx(
        slow_median(ROWS, WEIGHTS), rel=1e-9
    )


def test_row_with_more_than_half_of_the_weight_is_the_median_and_is_not_left():
    weights = np.ones(60)
    weights[9] = 61.0
    np.testing.assert_array_equal(steps(ROWS, weights, ROWS[9], 1), ROWS[9:10])
    np.testing.assert_allclose(steps(ROWS, weights, ROWS.mean(axis=0), 2000), ROWS[9:10], atol=1e-6)


def test_center_at_which_all_its_rows_lie_and_center_without_rows_stay():
    rows = np.array([[1.0, 2.0]] * 5)
    centers = np.array([[1.0, 2.0], [9.0, 9.0]])
    np.testing.assert_array_equal(
        weiszfeld_step(rows, np.ones(5), centers, np.zeros(5, dtype=np.intp)), centers
    )


@given(
    seed=st.integers(0, 2**32),
    n_rows=st.integers(2, 40),
    n_clusters=st.integers(1, 6),
    power=st.sampled_from([-100, -8, 0, 8, 100]),
    offset=st.sampled_from([0.0, 1e3]),
    grid=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_cost_never_rises(seed, n_rows, n_clusters, power, offset, grid):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n_rows, 2))
    if grid:  # rows that coincide, with one another and with centers
        rows = rng.integers(-2, 3, size=(n_rows, 2)).astype(float)
    rows = (rows + offset) * 10.0**power
    weights = rng.exponential(size=n_rows)
    centers = rows[rng.integers(n_rows, size=n_clusters)]
    final, costs = alternate(rows, weights, centers, max_iter=40, tol=0.0)
    assert np.isfinite(final).all()
    scale = weights.sum() * np.abs(rows).max()
    assert (np.diff(costs) <= 1e-12 * scale).all()
    assert costs[-1] == pytest.approx(kmedian_cost(rows, final, weights), rel=1e-12)


def test_center_without_a_row_goes_to_the_row_that_costs_most():
    rows = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [30.0, 30.0]])
    centers, costs = alternate(rows, np.ones(4), np.array([[0.0, 0.0], [-500.0, 0.0]]))
    np.testing.assert_allclose(centers[1], [30.0, 30.0])
    assert costs[-1] < 3.0


# Seeds and restarts


def test_seeds_are_different_rows_of_positive_weight():
    rows = np.repeat(np.arange(12.0).reshape(6, 2), 20, axis=0)
    weights = np.ones(120)
    weights[:20] = 0.0
    for seed in range(20):
        seeds = kmedian_plusplus(rows, weights, 5, np.random.default_rng(seed))
        np.testing.assert_array_equal(np.unique(seeds, axis=0), rows[20::20])


def test_seeds_are_drawn_by_distance():
    # From 0, the row at 3 is three times as likely as the row at 1 (four are drawn, and the best is kept).
    rows = np.array([[0.0], [1.0], [3.0]])
    weights = np.array([1e9, 1.0, 1.0])
    second = [
        kmedian_plusplus(rows, weights, 2, np.random.default_rng(seed))[1, 0]
        for seed in range(2000)
    ]
    # The row at 3 leaves a cost of 1, that at 1 a cost of 2: the latter is kept only if both draws gave it.
    assert np.mean(np.array(second) == 1.0) == pytest.approx(
        0.25**2, abs=4 * np.sqrt(0.0625 * 0.94 / 2000)
    )


@pytest.mark.parametrize("seed", range(3))
def test_restarts_find_the_optimum_of_a_tiny_problem(seed):
    rng = np.random.default_rng(seed)
    rows, weights = rng.normal(size=(6, 2)), rng.uniform(0.2, 2.0, size=6)
    best = np.inf
    for of_others in itertools.product([False, True], repeat=5):
        first = np.array([True, *of_others])
        best = min(
            best, sum(slow_median(rows[own], weights[own]) for own in (first, ~first) if own.any())
        )
    centers = weighted_kmedian(
        rows, weights, 2, np.random.default_rng(seed), n_restarts=15, tol=1e-9
    )
    assert kmedian_cost(rows, centers, weights) == pytest.approx(best, rel=1e-5)


def test_weights_count_as_copies():
    times = RNG.integers(1, 4, size=60)
    weighted = weighted_kmedian(ROWS, times.astype(float), 3, np.random.default_rng(0), tol=1e-10)
    copied = weighted_kmedian(
        ROWS.repeat(times, axis=0), None, 3, np.random.default_rng(0), tol=1e-10
    )
    costs = [kmedian_cost(ROWS, centers, times.astype(float)) for centers in (weighted, copied)]
    assert costs[0] == pytest.approx(costs[1], rel=1e-3)


@pytest.mark.parametrize("n_clusters", [3, 4, 9])
def test_no_more_different_rows_than_clusters_are_returned_themselves(n_clusters):
    rows = np.array([[2.0, 1.0], [0.0, 0.0], [2.0, 1.0], [5.0, 5.0], [0.0, 0.0]])
    centers = weighted_kmedian(rows, None, n_clusters, np.random.default_rng(0))
    np.testing.assert_array_equal(centers, [[0.0, 0.0], [2.0, 1.0], [5.0, 5.0]])


# The coreset


def test_samples_are_divided_in_proportion_and_add_up():
    rng = np.random.default_rng(0)
    costs = np.array([3.0, 0.0, 1.0, 0.5, 0.0, 2.2, 0.0])
    shares = 50 * costs / costs.sum()
    drawn = np.array([allotted(costs, 50, rng) for _ in range(4000)])
    assert (drawn.sum(axis=1) == 50).all()
    assert (np.abs(drawn - shares) < 1).all()
    assert (drawn[:, costs == 0] == 0).all()
    np.testing.assert_allclose(drawn.mean(axis=0), shares, atol=4 * 0.5 / np.sqrt(4000))


MEDIANS = ROWS[[4, 11, 50]]
OWN_COST = kmedian_cost(ROWS, MEDIANS)


@pytest.mark.parametrize("n_samples", [0, 1, 20, 500])
def test_weights_add_up_to_the_number_of_rows_in_every_ball(n_samples):
    samples, sample_weights, median_weights = draw_coreset(
        ROWS, MEDIANS, n_samples, OWN_COST / max(n_samples, 1), np.random.default_rng(2)
    )
    _, labels = nearest_distance(ROWS, MEDIANS)
    sizes = np.bincount(labels)
    assert len(np.unique(samples, axis=0)) == len(samples) <= min(n_samples, 60)
    _, of_samples = nearest_distance(samples, MEDIANS)
    balls = median_weights + np.bincount(of_samples, weights=sample_weights, minlength=3)
    np.testing.assert_allclose(balls, sizes, rtol=1e-12)
    positive = without_negative_weights(samples, sample_weights, MEDIANS, median_weights)
    assert min(w.min(initial=0.0) for w in positive) >= 0
    balls = positive[1] + np.bincount(of_samples, weights=positive[0], minlength=3)
    np.testing.assert_allclose(balls, sizes, rtol=1e-12)


def test_samples_are_drawn_by_their_distance_and_weighted_by_its_inverse():
    rng = np.random.default_rng(0)
    distances, _ = nearest_distance(ROWS, MEDIANS)
    mass = np.zeros(60)
    n_runs, n_samples = 400, 30
    for _ in range(n_runs):
        samples, weights, _ = draw_coreset(ROWS, MEDIANS, n_samples, OWN_COST / n_samples, rng)
        index = cdist(samples, ROWS).argmin(axis=1)
        times = weights * distances[index] / (OWN_COST / n_samples)
        np.testing.assert_allclose(times, np.round(times), atol=1e-9)
        mass[index] += times
    chances = distances / OWN_COST
    expected = n_runs * n_samples * chances
    np.testing.assert_allclose(mass, expected, atol=4.5 * np.sqrt(expected.max()))
    assert (mass[[4, 11, 50]] == 0).all()


def test_cost_of_the_coreset_is_unbiased():
    rng = np.random.default_rng(1)
    parts = np.split(ROWS, [7, 8, 30])
    medians = [weighted_kmedian(part, None, 3, rng, n_restarts=1) for part in parts]
    costs = np.array([kmedian_cost(part, own) for part, own in zip(parts, medians, strict=True)])
    t, n_runs = 12, 1200
    found = []
    for _ in range(n_runs):
        total = 0.0
        for part, own, n_samples in zip(parts, medians, allotted(costs, t, rng), strict=True):
            samples, weights, own_weights = draw_coreset(part, own, n_samples, costs.sum() / t, rng)
            total += kmedian_cost(samples, CENTERS, weights) + kmedian_cost(
                own, CENTERS, own_weights
            )
        found.append(total)
    error = np.mean(found) - kmedian_cost(ROWS, CENTERS)
    assert abs(error) < 4 * np.std(found) / np.sqrt(n_runs)


def test_immense_weight_of_a_row_beside_its_median_is_scaled_down_to_its_ball():
    medians = np.array([[0.0, 0.0], [10.0, 0.0]])
    samples = np.array([[1e-6, 0.0], [0.0, 3.0], [12.0, 0.0]])
    weights, of_medians = without_negative_weights(
        samples, np.array([1e6, 2.0, 4.0]), medians, np.array([20.0 - 1e6 - 2.0, 6.0])
    )
    np.testing.assert_allclose(weights, [20.0 * 1e6 / (1e6 + 2.0), 20.0 * 2.0 / (1e6 + 2.0), 4.0])
    np.testing.assert_allclose(of_medians, [0.0, 6.0])
