import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_fedclust.numerics import landmarks
from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.landmarks import (
    landmark_gamma,
    local_steps,
    longest_attraction,
    longest_move,
    mean_similarity,
    repulsion_gradient,
)


def random_case(seed, n_rows=12, n_landmarks=5, n_columns=3, spread=1.0):
    rng = np.random.default_rng(seed)
    return spread * rng.normal(size=(n_rows, n_columns)), spread * rng.normal(
        size=(n_landmarks, n_columns)
    )


CASES = [
    (0,),
    (1, 1),
    (2, 20, 1),
    (3, 1, 1),
    (4, 7, 2),
    (5, 9, 9, 1),
    (6, 30, 6, 4, 3.0),
    (7, 4, 8, 2, 0.1),
]


def mmd(rows, Y, gamma):
    return local_steps(rows, Y, gamma, 1, own=mean_similarity(rows, gamma)).mmd


def mmd_gradient(rows, Y, gamma):
    return local_steps(rows, Y, gamma, 1, own=0.0).gradient


def attraction_sum(rows, Y, gamma):
    return len(rows) * (mmd_gradient(rows, Y, gamma) - repulsion_gradient(Y, gamma))


def k(x, y, gamma):
    return math.exp(-gamma * sum((a - b) ** 2 for a, b in zip(x, y, strict=True)))


def slow_mmd(rows, Y, gamma):
    """Equation (9) as it is written."""
    n, m = len(rows), len(Y)
    own = sum(k(rows[i], rows[j], gamma) for i in range(n) for j in range(n) if i != j)
    between = sum(k(x, y, gamma) for x in rows for y in Y)
    landmarks = sum(k(Y[i], Y[j], gamma) for i in range(m) for j in range(m) if i != j)
    return own / max(n * (n - 1), 1) - 2 * between / (n * m) + landmarks / max(m * (m - 1), 1)


def slow_row_gradient(x, Y, gamma):
    return np.array([-4 * gamma / len(Y) * k(x, y, gamma) * (x - y) for y in Y])


# The objective


@pytest.mark.parametrize("gamma", [0.05, 1.0, 4.0])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_objective_is_the_double_sum_of_equation_9(case, gamma):
    rows, Y = random_case(*case)
    assert mmd(rows, Y, gamma) == pytest.approx(slow_mmd(rows, Y, gamma), rel=1e-10, abs=1e-13)


def test_objective_and_gradient_are_the_same_block_by_block(monkeypatch):
    rows, Y = random_case(0, 40)
    objective, gradient = mmd(rows, Y, 0.7), mmd_gradient(rows, Y, 0.7)
    for n_rows in (1, 7, 12, 39):
        monkeypatch.setattr(
            landmarks,
            "cached_blocks",
            lambda n, n_entries, n_rows=n_rows: blocks(
                n, n_entries, block_entries=n_rows * n_entries
            ),
        )
        assert mmd(rows, Y, 0.7) == pytest.approx(objective, rel=1e-12)
        np.testing.assert_allclose(mmd_gradient(rows, Y, 0.7), gradient, rtol=1e-12, atol=1e-15)


# Its gradient


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_gradient_is_that_of_finite_differences(case):
    rows, Y = random_case(*case)
    gradient, step = mmd_gradient(rows, Y, 0.4), 1e-5
    for j, column in np.ndindex(*Y.shape):
        up, down = Y.copy(), Y.copy()
        up[j, column] += step
        down[j, column] -= step
        slope = (slow_mmd(rows, up, 0.4) - slow_mmd(rows, down, 0.4)) / (2 * step)
        assert gradient[j, column] == pytest.approx(slope, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_gradient_is_equation_13_with_samples_as_columns(case):
    rows, Y = random_case(*case)
    gamma, n, m = 0.4, len(rows), len(Y)
    kernel = np.array([[k(x, y, gamma) for y in Y] for x in rows])
    first = -4 * gamma / (n * m) * (rows.T @ kernel - Y.T @ np.diag(np.ones(n) @ kernel))
    among = np.array([[k(x, y, gamma) for y in Y] for x in Y])
    second = 4 * gamma / max(m * (m - 1), 1) * (Y.T @ among - Y.T @ np.diag(np.ones(m) @ among))
    np.testing.assert_allclose(
        mmd_gradient(rows, Y, gamma), (first + second).T, rtol=1e-9, atol=1e-13
    )
    np.testing.assert_allclose(repulsion_gradient(Y, gamma), second.T, rtol=1e-9, atol=1e-13)


def test_the_gradient_keeps_its_digits_far_from_the_origin():
    rows, Y = random_case(0)
    np.testing.assert_allclose(
        mmd_gradient(rows + 1e7, Y + 1e7, 0.4), mmd_gradient(rows, Y, 0.4), atol=1e-8
    )


# Gradients of single rows


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_sum_over_rows_is_a_loop_over_rows(case):
    rows, Y = random_case(*case)
    expected = sum(slow_row_gradient(x, Y, 0.7) for x in rows)
    np.testing.assert_allclose(attraction_sum(rows, Y, 0.7), expected, rtol=1e-9, atol=1e-13)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    n_landmarks=st.integers(1, 20),
    gamma=st.floats(1e-3, 1e2),
    log_row=st.floats(-3, 8),
)
def test_one_row_moves_the_sum_by_no_more_than_the_longest_gradient(
    seed, n_landmarks, gamma, log_row
):
    rows, Y = random_case(seed, n_landmarks=n_landmarks)
    rows[0] *= 10**log_row
    # Rows far out cost digits of the sum over the others, which have none of their own there.
    longest = 4 * gamma / n_landmarks * longest_attraction(gamma, n_landmarks) * (1 + 1e-9)
    whole, without = attraction_sum(rows, Y, gamma), attraction_sum(rows[1:], Y, gamma)
    assert np.linalg.norm(whole - without) <= longest
    rows[0] = 2 * Y[0] - rows[1]
    assert np.linalg.norm(whole - attraction_sum(rows, Y, gamma)) <= 2 * longest


@pytest.mark.parametrize("gamma", [0.01, 3.0])
def test_a_row_at_one_distance_from_all_landmarks_reaches_the_bound(gamma):
    directions = np.random.default_rng(0).normal(size=(7, 4))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    Y = directions / math.sqrt(2 * gamma)
    norm = np.linalg.norm(attraction_sum(np.zeros((1, 4)), Y, gamma))
    expected = 4 * gamma / 7 * math.sqrt(7) * math.exp(-0.5) / math.sqrt(2 * gamma)
    assert norm == pytest.approx(expected, rel=1e-9)
    assert 4 * gamma / 7 * longest_attraction(gamma, 7) == pytest.approx(expected, rel=1e-12)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    n_landmarks=st.integers(1, 8),
    n_steps=st.integers(1, 4),
    gamma=st.floats(1e-2, 1e2),
    scale=st.sampled_from([0.01, 1.0, 50.0]),
)
def test_no_landmark_is_moved_farther_than_the_bound(seed, n_landmarks, n_steps, gamma, scale):
    rows, Y = random_case(seed, n_landmarks=n_landmarks)
    moves = local_steps(scale * rows, Y, gamma, n_steps, own=0.0).moves
    assert np.linalg.norm(moves, axis=1).max() <= longest_move(gamma, n_steps) * (1 + 1e-9)


# Curvature and steps


def curvature(gamma, n_landmarks):
    """The bound on the curvature that justifies the step size."""
    third_term = 8.0 * math.exp(-1.5) * gamma / (n_landmarks - 1) if n_landmarks > 1 else 0.0
    return 4.0 * gamma / n_landmarks + third_term


def directional_curvature(rows, Y, gamma, u, step=1e-3):
    """By differences of slopes."""
    u = u / np.linalg.norm(u)
    slopes = [np.sum(mmd_gradient(rows, Y + sign * step * u, gamma) * u) for sign in (-1, 1)]
    return (slopes[1] - slopes[0]) / (2 * step)


def test_4_gamma_over_n_y_is_no_bound_on_the_curvature():
    # Two landmarks where their repulsion bends most, the rows where they are.
    Y = np.array([[0.0], [math.sqrt(1.5)]])
    found = directional_curvature(Y, Y, 1.0, np.array([[1.0], [-1.0]]))
    assert found > 1.15 * 4 * 1.0 / 2
    assert found < curvature(1.0, 2)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    n_rows=st.integers(1, 12),
    n_landmarks=st.integers(1, 6),
    gamma=st.floats(0.01, 10),
)
def test_no_direction_has_more_than_the_curvature(seed, n_rows, n_landmarks, gamma):
    rng = np.random.default_rng(seed)
    rows, Y = random_case(seed, n_rows, n_landmarks, 2)
    # Landmarks in two places, moved against each other, are the worst.
    places = np.where(rng.random((n_landmarks, 1)) < 0.5, -1.0, 1.0) * np.array([[1.0, 0.0]])
    for points, u in (
        (Y, rng.normal(size=Y.shape)),
        (0.5 * math.sqrt(1.5 / gamma) * places, places),
    ):
        found = directional_curvature(rows, points, gamma, u, 1e-4 / math.sqrt(gamma))
        assert found <= curvature(gamma, n_landmarks) * (1 + 1e-5)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    n_rows=st.integers(1, 20),
    n_landmarks=st.integers(1, 12),
    spread=st.sampled_from([1e-3, 0.3, 1.0, 4.0]),
    repeated=st.booleans(),
)
def test_no_step_raises_the_objective(seed, n_rows, n_landmarks, spread, repeated):
    rows, Y = random_case(seed, n_rows, n_landmarks, spread=spread)
    if repeated:
        Y[:] = np.where(np.arange(n_landmarks)[:, None] % 2, rows[0] + 1.2 * spread, rows[0])
    for gamma in (0.1, 1.0, 10.0):
        moved = Y
        values = [mmd(rows, moved, gamma)]
        for _ in range(6):
            moved = moved + local_steps(rows, moved, gamma, 1, own=0.0).moves
            values.append(mmd(rows, moved, gamma))
        assert (np.diff(values) <= 1e-13).all()


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 0.06, 0.1, 1.0, 2.0, 10.0, 1e3])
def test_several_steps_are_single_steps_in_turn_to_5_digits(scale):
    rows, Y = random_case(0, 200, 30, 4, 0.5 * scale)
    moved = Y
    for _ in range(5):
        last = local_steps(rows, moved, 1.0, 1, own=0.0)
        moved = moved + last.moves
    found = local_steps(rows, Y, 1.0, 5, own=0.0)
    longest = np.abs(moved - Y).max()
    np.testing.assert_allclose(found.moves, moved - Y, rtol=0, atol=1e-5 * longest)
    np.testing.assert_allclose(
        found.gradient, last.gradient, rtol=0, atol=1e-5 * np.abs(last.gradient).max()
    )


# gamma


def test_gamma_is_that_of_the_mean_squared_distance():
    rows, _ = random_case(0, 40, spread=5.0)
    squared = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
    assert landmark_gamma(rows.var(axis=0)) == pytest.approx(1 / (2 * squared.mean()), rel=1e-12)
    assert landmark_gamma(np.zeros(3)) == 1.0
