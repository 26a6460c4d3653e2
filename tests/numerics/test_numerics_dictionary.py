import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from sklearn.datasets import load_iris

from flower_fedclust.numerics.dictionary import (
    codes,
    curvature,
    dictionary_steps,
    factor_map,
    factors,
    kernel_root,
    matched_dictionary,
    objective,
    row_gradients,
)
from flower_fedclust.numerics.kernel import mean_distance
from flower_fedclust.numerics.threads import one_thread

# Rows are samples here, where the paper has columns.


def slow_kernel(rows, others, bandwidth):
    return np.exp(-cdist(rows, others, "sqeuclidean") / (2 * bandwidth**2))


def slow_objective(rows, Z, C, bandwidth, regularization):
    """Equation (8), written out row by row and atom by atom with nothing but kernel values."""
    Kxz, Kzz = slow_kernel(rows, Z, bandwidth), slow_kernel(Z, Z, bandwidth)
    total = 0.0
    for i in range(len(rows)):
        squared_error = 1.0
        for j in range(len(Z)):
            squared_error -= 2 * C[i, j] * Kxz[i, j]
            squared_error += sum(C[i, j] * C[i, l] * Kzz[j, l] for l in range(len(Z)))  # noqa: E741
        total += 0.5 * squared_error + 0.5 * regularization * sum(C[i] ** 2)
    return total


def gradient(rows, Z, C, bandwidth):
    """The derivative of the objective, as the sum of that of every row."""
    return row_gradients(rows, Z, C, bandwidth)[1].sum(axis=0)


def random_case(seed, n_rows=9, n_atoms=5, n_columns=3, spread=1.0):
    rng = np.random.default_rng(seed)
    rows, Z = rng.normal(size=(n_rows, n_columns)), spread * rng.normal(size=(n_atoms, n_columns))
    return rows, Z, rng.normal(size=(n_rows, n_atoms))


CASES = [(0, 9, 5, 3), (1, 1, 1, 1), (2, 4, 1, 2), (3, 1, 6, 2), (4, 12, 3, 20)]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("bandwidth", [0.4, 1.0, 5.0])
def test_the_objective_is_equation_8_written_out(case, bandwidth):
    rows, Z, C = random_case(*case)
    for regularization in (0.0, 0.01, 3.0):
        expected = slow_objective(rows, Z, C, bandwidth, regularization)
        assert objective(rows, Z, C, bandwidth, regularization) == pytest.approx(
            expected, rel=1e-11
        )


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("bandwidth", [0.4, 1.0, 5.0])
def test_the_gradient_15_is_that_of_central_differences(case, bandwidth):
    rows, Z, C = random_case(*case)
    expected = np.empty_like(Z)
    for index in np.ndindex(*Z.shape):
        step = np.zeros_like(Z)
        step[index] = 1e-5 * bandwidth
        above, below = (
            slow_objective(rows, Z + sign * step, C, bandwidth, 0.2) for sign in (1, -1)
        )
        expected[index] = (above - below) / (2e-5 * bandwidth)
    np.testing.assert_allclose(
        gradient(rows, Z, C, bandwidth), expected, rtol=1e-6, atol=1e-7 / bandwidth
    )


@pytest.mark.parametrize("offset", [1e3, 1e6])
def test_gradients_codes_and_steps_do_not_depend_on_where_the_origin_is(offset):
    rows, Z, _ = random_case(0)
    C = codes(rows, Z, 1.0, 0.01)
    tolerance = {"rtol": 0, "atol": 1e-13 * offset * 100}
    np.testing.assert_allclose(codes(rows + offset, Z + offset, 1.0, 0.01), C, **tolerance)
    moved = dictionary_steps(rows + offset, Z + offset, C, 1.0, 5) - offset
    np.testing.assert_allclose(moved, dictionary_steps(rows, Z, C, 1.0, 5), **tolerance)
    norms, gradients = row_gradients(rows + offset, Z + offset, C, 1.0)
    np.testing.assert_allclose(norms, row_gradients(rows, Z, C, 1.0)[0], **tolerance)
    np.testing.assert_allclose(gradients, row_gradients(rows, Z, C, 1.0)[1], **tolerance)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("regularization", [1e-3, 0.01, 2.0])
def test_codes_are_those_of_equation_14(case, regularization):
    rows, Z, _ = random_case(*case)
    inverse = np.linalg.inv(slow_kernel(Z, Z, 0.8) + regularization * np.eye(len(Z)))
    C = codes(rows, Z, 0.8, regularization)
    assert C.shape == (len(rows), len(Z))
    np.testing.assert_allclose(C, slow_kernel(rows, Z, 0.8) @ inverse, rtol=1e-8, atol=1e-10)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    n_atoms=st.integers(1, 12),
    n_columns=st.integers(1, 3),
    bandwidth=st.floats(0.05, 50),
    log_regularization=st.floats(-12, 2),
)
def test_codes_are_no_longer_than_a_half_over_the_root_of_lambda(
    seed, n_atoms, n_columns, bandwidth, log_regularization
):
    rows, Z, _ = random_case(seed, 20, n_atoms, n_columns)
    regularization = 10**log_regularization
    lengths = np.linalg.norm(codes(np.vstack([rows, Z]), Z, bandwidth, regularization), axis=1)
    assert lengths.max() <= (1 + 1e-6) / (2 * np.sqrt(regularization))


@pytest.mark.parametrize("offset", [0.0, 0.3, 1000.0])
@pytest.mark.parametrize("n_copies", [1, 3])
def test_coinciding_atoms_without_a_penalty_share_the_code_that_one_of_them_would_have(
    offset, n_copies
):
    rows, Z, _ = random_case(0, spread=3.0)
    rows, Z = rows + offset, Z + offset
    alone = codes(rows, Z, 1.0, 0.0)
    shared = codes(rows, np.vstack([Z] + [Z[:2]] * n_copies), 1.0, 0.0)
    expected = np.hstack([alone] + [alone[:, :2]] * n_copies)
    for columns in (slice(0, 2), slice(len(Z), None)):
        expected[:, columns] /= n_copies + 1
    np.testing.assert_allclose(shared, expected, atol=1e-8)


# Steps


def assert_no_step_raises_the_objective(rows, Z, C, bandwidth, n_steps=3):
    scale_ = 1.0 + abs(C).sum() + (abs(C) @ np.ones((len(Z), len(Z))) * abs(C)).sum()
    for _ in range(n_steps):
        after = dictionary_steps(rows, Z, C, bandwidth, 1)
        assert np.isfinite(after).all()
        assert (
            objective(rows, after, C, bandwidth, 0.0)
            <= objective(rows, Z, C, bandwidth, 0.0) + 1e-14 * scale_
        )
        Z = after


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 100_000),
    shape=st.tuples(st.integers(1, 8), st.integers(1, 6), st.integers(1, 4)),
    log_bandwidth=st.floats(-3, 3),
    log_spread=st.floats(-2, 1.5),
    log_far=st.floats(-2, 1.5),
    log_codes=st.floats(-4, 3),
    signs=st.sampled_from(["both", "positive", "negative", "sparse", "of equation 14"]),
)
def test_no_step_raises_the_objective(
    seed, shape, log_bandwidth, log_spread, log_far, log_codes, signs
):
    n_rows, n_atoms, n_columns = shape
    bandwidth = 10**log_bandwidth
    rows, Z, C = random_case(seed, n_rows, n_atoms, n_columns)
    rows, Z, C = rows * bandwidth * 10**log_spread, Z * bandwidth * 10**log_far, C * 10**log_codes
    if signs == "positive":
        C = abs(C)
    elif signs == "negative":
        C = -abs(C)
    elif signs == "sparse":
        C = np.maximum(C - 0.5 * 10**log_codes, 0.0)
    elif signs == "of equation 14":
        C = codes(rows, Z, bandwidth, 10 ** min(0.0, log_codes - 3))
    assert_no_step_raises_the_objective(rows, Z, C, bandwidth)


places = st.floats(-3, 3).map(lambda value: round(value, 2))


@pytest.mark.parametrize("bandwidth", [0.5, 1.0, 30.0])
def test_an_atom_moves_by_the_gradient_over_the_largest_second_derivative(bandwidth):
    """The four kinds of terms of the objective, each where it is most curved: a longer step could raise it there."""

    def second_derivative_and_curvature(rows, Z, C, direction):
        move = np.asarray(direction, dtype=float) * 1e-3 * bandwidth
        values = [objective(rows, Z + times * move, C, bandwidth, 0.0) for times in (-1, 0, 1)]
        second = (values[0] - 2 * values[1] + values[2]) / np.sum(move**2)
        slope, step = (
            gradient(rows, Z, C, bandwidth),
            dictionary_steps(rows, Z, C, bandwidth, 1) - Z,
        )
        return second, -slope[0, 0] / step[0, 0]

    # Terms of a row and an atom: attraction is most curved on the row, repulsion at sqrt(3) r from it.
    for distance, code in ((1e-3, 2.0), (np.sqrt(3), -2.0)):
        rows, Z, C = np.zeros((1, 1)), np.array([[distance * bandwidth]]), np.array([[code]])
        second, found = second_derivative_and_curvature(rows, Z, C, [[1]])
        assert found == pytest.approx(second, rel=1e-4)
    # Terms of two atoms, far from all rows, that move towards each other.
    rows = np.array([[1e3 * bandwidth], [-1e3 * bandwidth]])
    for distance, C in ((1e-2, [[1.0, -2.0], [0.0, 0.0]]), (np.sqrt(3), [[0.0, 0.0], [0.5, 3.0]])):
        Z, C = np.array([[0.0], [distance * bandwidth]]), np.array(C)
        second, found = second_derivative_and_curvature(rows, Z, C, [[1], [-1]])
        repelled_by_rows = 2 * np.exp(-1.5) * np.maximum(-C, 0).sum(axis=0)[0] / bandwidth**2
        assert found - repelled_by_rows == pytest.approx(second, rel=1e-3)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("offset", [0.0, 1e5])
def test_a_step_is_the_gradient_over_the_curvature(case, offset):
    rows, Z, C = random_case(*case)
    moved = dictionary_steps(rows + offset, Z + offset, C, 0.9, 1) - offset
    expected = Z - gradient(rows, Z, C, 0.9) / curvature(rows, Z, C, 0.9)[:, None]
    np.testing.assert_allclose(moved, expected, rtol=1e-9, atol=1e-9 if offset else 1e-12)


def test_an_atom_that_no_code_uses_stays_where_it_is():
    rows, Z, C = random_case(0)
    C[:, 2] = 0.0
    with np.errstate(all="raise"):
        after = dictionary_steps(rows, Z, C, 1.0, 3)
    np.testing.assert_array_equal(after[2], Z[2])
    assert (np.delete(after, 2, axis=0) != np.delete(Z, 2, axis=0)).all()


# Gradients of single rows


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rows_gradient_is_the_gradient_of_that_row_alone(case):
    rows, Z, C = random_case(*case)
    norms, gradients = row_gradients(rows, Z, C, 0.7)
    assert gradients.shape == (len(rows), *Z.shape)
    for i in range(len(rows)):
        alone = gradient(rows[i : i + 1], Z, C[i : i + 1], 0.7)
        np.testing.assert_allclose(gradients[i], alone, rtol=1e-9, atol=1e-12)
        assert norms[i] == pytest.approx(np.linalg.norm(alone), rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(
        gradients.sum(axis=0), gradient(rows, Z, C, 0.7), rtol=1e-9, atol=1e-11
    )


# Factors


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_kernel_root_is_the_positive_root_of_the_kernel_of_the_atoms(case):
    _, Z, _ = random_case(*case)
    root = kernel_root(Z, 0.8)
    np.testing.assert_allclose(root, root.T, atol=1e-14)
    np.testing.assert_allclose(root @ root, slow_kernel(Z, Z, 0.8), atol=1e-12)
    assert np.linalg.eigvalsh(root).min() >= -1e-12


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("regularization", [1e-4, 0.01, 2.0])
def test_factors_are_codes_times_the_root_and_their_products_equation_5(case, regularization):
    rows, Z, _ = random_case(*case)
    C, F = codes(rows, Z, 0.8, regularization), factors(rows, Z, 0.8, regularization)
    np.testing.assert_allclose(F, C @ kernel_root(Z, 0.8), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(F @ F.T, C @ slow_kernel(Z, Z, 0.8) @ C.T, rtol=1e-8, atol=1e-9)
    mapped = slow_kernel(rows, Z, 0.8) @ factor_map(Z, 0.8, regularization)
    np.testing.assert_allclose(F, mapped, rtol=1e-10, atol=1e-12)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    n_atoms=st.integers(1, 30),
    bandwidth=st.floats(0.05, 1e3),
    log_regularization=st.floats(-6, 1),
)
def test_factors_have_a_norm_below_1(seed, n_atoms, bandwidth, log_regularization):
    rows, Z, _ = random_case(seed, 20, n_atoms)
    F = factors(np.vstack([rows, Z]), Z, bandwidth, 10**log_regularization)
    assert np.linalg.norm(F, axis=1).max() < 1


def test_without_a_penalty_atoms_that_coincide_count_once_in_the_factors():
    rows, Z, _ = random_case(0, spread=3.0)
    doubled = factors(rows, np.vstack([Z, Z]), 1.0, 0.0)
    single = factors(rows, Z, 1.0, 0.0)
    assert np.isfinite(doubled).all()
    np.testing.assert_allclose(doubled @ doubled.T, single @ single.T, atol=1e-10)
    assert np.linalg.norm(factors(Z, Z, 1.0, 0.0), axis=1) == pytest.approx(1.0)


# The start


def test_a_matched_dictionary_has_the_means_and_deviations_asked_for():
    mean, deviation = np.array([0.0, -5.0, 1e3]), np.array([1.0, 0.0, 50.0])
    Z = matched_dictionary(mean, deviation, 40_000, np.random.default_rng(0))
    assert Z.shape == (40_000, 3)
    np.testing.assert_allclose(Z.mean(axis=0), mean, atol=0.02 * 50)
    np.testing.assert_allclose(Z.std(axis=0), deviation, rtol=0.02)
    assert (Z[:, 1] == -5.0).all()
    assert abs(np.corrcoef(Z[:, 0], Z[:, 2])[0, 1]) < 0.02


# Rounds of stage I, all clients taking part, on data. lambda is the paper's, r the mean of the clients' (equation 42).

REGULARIZATION = 0.01


def data_set(name):
    if name == "iris":
        return load_iris().data, 3
    rng = np.random.default_rng(0)
    angle, labels = rng.uniform(0, 2 * np.pi, 800), np.repeat([0, 1], 400)
    circle = np.column_stack([np.cos(angle), np.sin(angle)])
    return circle * np.where(labels == 0, 2.0, 4.0)[:, None] + rng.normal(0, 0.1, (800, 2)), 2


@one_thread()
def stage_one(name, n_rounds=10, n_steps=5):
    """Return the rows, the bandwidth, and the dictionary after the rounds."""
    rows, n_clusters = data_set(name)
    rng = np.random.default_rng(0)
    clients = np.array_split(rows[rng.permutation(len(rows))], 8)
    bandwidth = np.mean([mean_distance(client) for client in clients])
    Z = matched_dictionary(rows.mean(axis=0), rows.std(axis=0), max(10 * n_clusters, 50), rng)
    for _ in range(n_rounds):
        C = [codes(client, Z, bandwidth, REGULARIZATION) for client in clients]
        moved = [
            dictionary_steps(client, Z, code, bandwidth, n_steps)
            for client, code in zip(clients, C, strict=True)
        ]
        Z = np.mean(moved, axis=0)
    return rows, bandwidth, Z


@pytest.mark.parametrize("name", ["iris", "circles"])
def test_the_reconstructed_kernel_is_within_3_per_cent_of_the_true_one(name):
    rows, bandwidth, Z = stage_one(name)
    F, K = factors(rows, Z, bandwidth, REGULARIZATION), slow_kernel(rows, rows, bandwidth)
    assert np.linalg.norm(F @ F.T - K) < 0.03 * np.linalg.norm(K)
