import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_fedclust.exact.factorization import (
    Penalties,
    center_gradient,
    center_step_size,
    center_steps,
    clipped_center_gradient,
    exact_membership_steps,
    membership_gradient,
    membership_step_divisor,
    membership_steps,
    memberships_of,
    objective,
)
from flower_fedclust.exact.grid import GridArray, points_onto_grid, rows_onto_grid

RNG = np.random.default_rng(3)
ROWS = RNG.uniform(size=(30, 5))
H = RNG.uniform(size=(30, 3))
W = RNG.normal(size=(3, 5))
PENALTIES = Penalties(rho=0.7, mu_h=0.3, mu_w=0.2)


def slow_objective(rows, H, W, penalties):
    """Equation (14), entry by entry."""
    k = len(W)
    total = sum(
        (rows[j, c] - sum(H[j, l] * W[l, c] for l in range(k))) ** 2  # noqa: E741
        for j in range(len(rows))
        for c in range(rows.shape[1])
    )
    total += penalties.rho / 2 * sum(sum(h) ** 2 - sum(h**2) for h in H)
    return total + penalties.mu_h / 2 * (H**2).sum() + penalties.mu_w / 2 * (W**2).sum()


@st.composite
def factorizations(draw):
    """Rows, memberships, centers and penalties of units that have nothing to do with one another."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, k, m = draw(st.integers(1, 8)), draw(st.integers(1, 6)), draw(st.integers(1, 5))
    scales = [10.0 ** draw(st.integers(-6, 6)) for _ in range(3)]
    rows, W = rng.normal(size=(n, m)) * scales[0], rng.normal(size=(k, m)) * scales[1]
    H = (
        rng.uniform(size=(n, k))
        * scales[2]
        * (rng.uniform(size=(n, k)) < draw(st.sampled_from([1.0, 0.5])))
    )
    if draw(st.booleans()):
        rows, W = np.abs(rows), np.abs(W)
    unit = float(np.mean(np.sum(W**2, axis=1)))
    rho, mu_h, mu_w = (draw(st.sampled_from([0.0, 1e-3, 0.4, 1.0, 30.0])) for _ in range(3))
    return (
        rows,
        H,
        W,
        Penalties(rho * unit, mu_h * unit, mu_w * float(np.mean(np.sum(H**2, axis=1)))),
    )


def size(rows, H, W, penalties):
    """What the rounding of an objective is measured by."""
    return float(np.sum(rows**2) + np.sum((H @ W) ** 2)) + objective(rows, H, W, penalties)


# The objective and its gradients


def test_objective_is_equation_14():
    for penalties in (
        Penalties(),
        PENALTIES,
        Penalties(rho=2.0),
        Penalties(mu_h=2.0),
        Penalties(mu_w=2.0),
    ):
        assert objective(ROWS, H, W, penalties) == pytest.approx(
            slow_objective(ROWS, H, W, penalties), rel=1e-12
        )


def test_memberships_in_one_cluster_alone_are_not_penalised_by_rho():
    alone = np.where(H.max(axis=1, keepdims=True) > H, 0.0, H)
    assert objective(ROWS, alone, W, Penalties(rho=1e6)) == pytest.approx(
        objective(ROWS, alone, W, Penalties())
    )
    assert objective(ROWS, H, W, Penalties(rho=1e6)) > 1e3 * objective(ROWS, H, W, Penalties())


@settings(deadline=None)
@given(factorizations())
def test_gradients_agree_with_finite_differences(case):
    rows, H, W, penalties = case
    rng = np.random.default_rng(0)
    for gradient, moved, at in (
        (
            membership_gradient(rows @ W.T, H, W @ W.T, penalties),
            lambda H: objective(rows, H, W, penalties),
            H,
        ),
        (
            center_gradient(rows, H, W, penalties.mu_w),
            lambda W: objective(rows, H, W, penalties),
            W,
        ),
    ):
        assert gradient.shape == at.shape
        # (14) is a quadratic in H and in W: central differences of any step are its slope but for rounding.
        direction = rng.normal(size=at.shape) * (np.abs(at).max() or 1.0)
        up, down = moved(at + direction), moved(at - direction)
        assert (up - down) / 2 == pytest.approx(
            np.sum(gradient * direction), abs=1e-9 * (abs(up) + abs(down))
        )


# Steps on H


@settings(deadline=None, max_examples=80)
@given(factorizations())
def test_no_step_on_the_memberships_raises_the_objective(case):
    rows, H, W, penalties = case
    for _ in range(6):
        former, H = H, membership_steps(rows, H, W, penalties, 1)
        assert (H >= 0).all()
        allowed = 1e-11 * size(rows, former, W, penalties)
        assert objective(rows, H, W, penalties) <= objective(rows, former, W, penalties) + allowed


@settings(deadline=None)
@given(factorizations(), st.floats(1.0, 10.0))
def test_no_step_on_the_centers_raises_the_objective(case, alpha):
    rows, H, W, penalties = case
    eta = center_step_size(H.T @ H, alpha, penalties.mu_w)
    if eta > 0:
        stepped = W - center_gradient(rows, H, W, penalties.mu_w) / eta
        allowed = 1e-11 * size(rows, H, W, penalties)
        assert objective(rows, H, stepped, penalties) <= objective(rows, H, W, penalties) + allowed


def test_step_on_the_memberships_is_equation_17():
    k = len(W)
    lipschitz = 2 * np.linalg.eigvalsh(W @ W.T)[-1] + 0.7 * (k - 1) + 0.3
    gamma = 1.5 * lipschitz / 2
    expected = H
    for _ in range(4):
        gradient = (
            2 * (expected @ W - ROWS) @ W.T
            + 0.7 * expected @ (np.ones((k, k)) - np.eye(k))
            + 0.3 * expected
        )
        expected = np.maximum(expected - gradient / gamma, 0.0)
    np.testing.assert_allclose(
        membership_steps(ROWS, H, W, PENALTIES, 4), expected, rtol=1e-12, atol=1e-14
    )
    assert (expected == 0).any()
    assert (expected > 0).any()


def test_memberships_of_a_row_depend_on_the_row_the_centers_and_where_they_began_alone():
    together = membership_steps(ROWS, H, W, PENALTIES, 20)
    for taken in ([0], [7, 3], [29, 1, 14, 2, 8], slice(5, 25)):
        alone = membership_steps(ROWS[taken], H[taken], W, PENALTIES, 20)
        np.testing.assert_allclose(alone, together[taken], rtol=1e-12, atol=1e-14)
    replaced, begun = ROWS.copy(), H.copy()
    replaced[4], begun[4] = 1e6, 50.0
    others = np.arange(30) != 4
    assert np.array_equal(
        membership_steps(replaced, begun, W, PENALTIES, 20)[others], together[others]
    )


def test_memberships_stay_where_nothing_depends_on_them():
    assert np.array_equal(membership_steps(ROWS, H, np.zeros_like(W), Penalties(mu_w=1.0), 5), H)
    assert (membership_steps(ROWS, H, np.zeros_like(W), Penalties(mu_h=1.0), 200) < 1e-12).all()


def test_steps_do_not_write_into_what_they_are_given():
    rows, begun, centers = ROWS.copy(), H.copy(), W.copy()
    membership_steps(rows, begun, centers, PENALTIES, 3)
    memberships_of(rows, centers, PENALTIES)
    grids = on_grids(rows, begun, centers)
    before = [array.copy() for array in grids[:3]]
    clipped_center_gradient(*grids, 0.1)
    assert all(map(np.array_equal, before, grids[:3]))
    assert np.array_equal(rows, ROWS)
    assert np.array_equal(begun, H)
    assert np.array_equal(centers, W)


# Memberships for given centers


@settings(deadline=None)
@given(factorizations())
def test_memberships_of_rows_are_no_worse_than_none_and_finite(case):
    rows, _, W, penalties = case
    found = memberships_of(rows, W, penalties)
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    none = objective(rows, np.zeros_like(found), W, penalties)
    assert objective(rows, found, W, penalties) <= none * (1 + 1e-9)


def test_centers_at_right_angles_give_memberships_in_closed_form():
    centers = np.array([[2.0, 0, 0], [0, 0.5, 0]])
    rows = np.array([[1.0, 3.0, 9.0], [-1.0, 0.25, 0.0], [0.0, 0.0, 1.0], [-1.0, -1.0, 0.0]])
    mu_h = 0.4
    squared = np.sum(centers**2, axis=1)
    expected = np.maximum(2 * rows @ centers.T / (2 * squared + mu_h), 0.0)
    np.testing.assert_allclose(
        memberships_of(rows, centers, Penalties(mu_h=mu_h)), expected, atol=1e-4
    )
    np.testing.assert_allclose(
        memberships_of(rows, centers, Penalties()),
        np.maximum(rows @ centers.T / squared, 0.0),
        atol=1e-4,
    )


def test_large_rho_leaves_a_row_in_one_cluster():
    rho = 30.0 * float(np.mean(np.sum(W**2, axis=1)))
    centers = np.abs(W)
    found = memberships_of(ROWS, centers, Penalties(rho=rho))
    assert (np.count_nonzero(found > 1e-6, axis=1) == 1).all()
    assert (np.count_nonzero(memberships_of(ROWS, centers, Penalties()) > 1e-6, axis=1) > 1).any()


def test_no_step_moves_the_memberships_found():
    for penalties in (Penalties(), PENALTIES, Penalties(rho=3.0)):
        found = memberships_of(ROWS, W, penalties)
        moved = np.abs(membership_steps(ROWS, found, W, penalties, 1) - found).max(axis=1)
        assert (moved <= 1e-4 * found.max(axis=1)).all()


def test_row_of_zeros_belongs_to_nothing():
    assert not memberships_of(np.zeros((2, 5)), W, PENALTIES).any()
    assert not memberships_of(ROWS, np.zeros((3, 5)), Penalties()).any()


# Step sizes


@settings(deadline=None)
@given(factorizations(), st.floats(0.5, 10.0))
def test_step_size_of_the_centers_is_alpha_times_the_largest_eigenvalue(case, alpha):
    _, H, _, penalties = case
    largest = np.linalg.norm(H, ord=2) ** 2
    expected = alpha * (largest + penalties.mu_w / 2) if largest > 0 else 0.0
    assert center_step_size(H.T @ H, alpha, penalties.mu_w) == pytest.approx(expected, rel=1e-9)


def test_step_size_is_0_where_no_eigenvalue_is_positive():
    assert center_step_size(np.zeros((3, 3)), 5.0, 1.0) == 0.0
    assert center_step_size(-np.eye(3), 5.0, 1.0) == 0.0
    assert center_step_size(np.diag([-4.0, 2.0]), 5.0, 0.0) == pytest.approx(10.0)


# Clipping


def slow_clipped_gradient(rows, H, W, bound):
    total, norms = np.zeros_like(W), []
    for x, h in zip(rows, H, strict=True):
        gradient = 2.0 * np.outer(h, h @ W - x)
        norm = math.sqrt((gradient**2).sum())
        gradient = gradient * min(1.0, bound / norm) if norm > 0 else gradient
        norms.append(math.sqrt((gradient**2).sum()))
        total = total + gradient
    return total, norms


def on_grids(rows, H, W):
    """Rows, memberships of norm at most 1 and centers as integers, with the exponent of rows and centers."""
    radius = float(max(np.linalg.norm(rows, axis=1).max(), np.linalg.norm(W, axis=1).max()))
    integers, exponent = rows_onto_grid(rows, np.zeros(rows.shape[1]), radius)
    memberships, _ = rows_onto_grid(H, np.zeros(H.shape[1]), 1.0)
    return integers, memberships, points_onto_grid(W, exponent), exponent


def exact_gradient(rows, H, W, bound):
    *arrays, exponent = on_grids(rows, H, W)
    return GridArray(*clipped_center_gradient(*arrays, exponent, bound))


@settings(deadline=None)
@given(factorizations(), st.sampled_from([1e-6, 1e-2, 0.3, 0.9, 2.0]))
def test_clipped_gradient_is_the_sum_of_clipped_gradients_of_single_rows(case, part):
    rows, H, W, _ = case
    H = H / max(np.linalg.norm(H, axis=1).max(), 1e-300)
    largest = max(
        2 * np.linalg.norm(h) * np.linalg.norm(h @ W - x) for x, h in zip(rows, H, strict=True)
    )
    bound = part * largest or 1.0
    total, _ = slow_clipped_gradient(rows, H, W, bound)
    # What truncation takes from a residual, in parts of the longest row or center.
    unit = 2.0**-22 * max(np.linalg.norm(rows, axis=1).max(), np.linalg.norm(W, axis=1).max())
    lost = len(rows) * (min(unit, bound) + 2.0**-13 * bound)
    np.testing.assert_allclose(exact_gradient(rows, H, W, bound).values, total, rtol=0, atol=lost)
    for x, h in zip(rows, H, strict=True):
        own = exact_gradient(x[None], h[None], W, bound)
        assert (
            Fraction(4) ** own.exponent * int((own.integers.astype(object) ** 2).sum())
            <= Fraction(bound) ** 2
        )


def test_gradient_within_the_bound_is_the_gradient_of_the_fit():
    small = 0.5 * H
    found = exact_gradient(ROWS, small, W, 20.0).values
    np.testing.assert_allclose(found, center_gradient(ROWS, small, W, 0.0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("n_clusters", [1, 3, 65, 300])
def test_what_a_row_adds_to_the_gradient_does_not_depend_on_the_others(n_clusters):
    rng = np.random.default_rng(n_clusters)
    rows, memberships = rng.normal(size=(5000, 4)), rng.uniform(size=(5000, n_clusters))
    *arrays, exponent = on_grids(rows, memberships, rng.normal(size=(n_clusters, 4)))
    integers, memberships, centers = arrays

    def gradient(part):
        return clipped_center_gradient(integers[part], memberships[part], centers, exponent, 0.7)[0]

    whole = gradient(slice(None))
    for left_out in (0, 17, 4999):
        assert np.array_equal(
            whole - gradient(slice(left_out, left_out + 1)), gradient(np.arange(5000) != left_out)
        )


def test_row_that_belongs_to_nothing_or_is_met_exactly_has_no_share():
    assert not exact_gradient(ROWS, np.zeros_like(H), W, 0.1).integers.any()
    assert not exact_gradient(
        np.repeat(W, 2, axis=0), np.repeat(np.eye(3), 2, axis=0), W, 0.1
    ).integers.any()


# Steps on a grid


@pytest.mark.parametrize("power", [0, -300, 300])
def test_steps_on_a_grid_are_those_in_floats(power):
    scale = 2.0**power
    penalties = Penalties(PENALTIES.rho * scale**2, PENALTIES.mu_h * scale**2)
    integers, _, centers, exponent = on_grids(ROWS * scale, H, W * scale)
    gamma = membership_step_divisor(W * scale, penalties)
    found = exact_membership_steps(integers, H, centers, exponent, penalties, gamma, 20)
    np.testing.assert_allclose(
        found, membership_steps(ROWS * scale, H, W * scale, penalties, 20), rtol=1e-5, atol=1e-6
    )


def test_steps_on_a_grid_give_a_row_the_same_bits_whatever_rows_stand_beside_it():
    rng = np.random.default_rng(0)
    integers, _, centers, exponent = on_grids(rng.normal(size=(200, 7)), H, rng.normal(size=(5, 7)))
    begun = rng.uniform(size=(200, 5))
    told = (centers, exponent, PENALTIES, 9.0, 15)
    together = exact_membership_steps(integers, begun, *told)
    for part in (slice(0, 1), slice(3, 5), slice(7, 20), slice(0, 199)):
        assert np.array_equal(
            exact_membership_steps(integers[part], begun[part], *told), together[part]
        )


def test_steps_on_a_grid_do_nothing_where_nothing_depends_on_memberships():
    integers, _, centers, exponent = on_grids(ROWS, H, np.zeros_like(W))
    gamma = membership_step_divisor(np.zeros_like(W), Penalties())
    assert gamma == 0
    assert np.array_equal(
        exact_membership_steps(integers, H, centers, exponent, Penalties(), gamma, 5), H
    )


# Steps on the centers


def test_steps_on_the_centers_are_equation_18_one_minibatch_after_the_other():
    batches = [np.array([0, 3, 7]), np.array([2, 9]), np.arange(30)]
    expected = W
    for batch in batches:
        gradient = (
            sum(2 * np.outer(H[j], H[j] @ expected - ROWS[j]) for j in batch) + 0.2 * expected
        )
        expected = expected - gradient / 40.0
    np.testing.assert_allclose(center_steps(ROWS, H, W, batches, 0.2, 40.0), expected, rtol=1e-12)


@pytest.mark.parametrize("bound", [1e-3, 0.5])
def test_a_step_on_the_centers_is_no_longer_than_the_bound_lets_it_be(bound):
    batches = [np.arange(10), np.arange(10, 30)]
    step = center_steps(ROWS, H, W, batches[:1], 0.2, 40.0, bound) - W
    gradient = center_gradient(ROWS[:10], H[:10], W, 0.2)
    np.testing.assert_allclose(step, -gradient / np.linalg.norm(gradient) * bound / 40.0, rtol=1e-9)
    assert np.linalg.norm(
        center_steps(ROWS, H, W, batches, 0.2, 40.0, bound) - W
    ) <= 2 * bound / 40.0 * (1 + 1e-9)


def test_no_center_moves_where_no_row_belongs_to_anything():
    assert center_steps(ROWS, 0 * H, W, [np.arange(30)], 0.2, 0.0) is W
