"""Factors, moments, embedded rows and gradients of rows on a grid: what they are, and what one row adds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from flower_fedclust.exact import kernels
from flower_fedclust.exact.grid import array_onto_grid, from_units, rows_onto_grid
from flower_fedclust.exact.kernel_sums import linear_features
from flower_fedclust.exact.kernels import dictionary_gradient, factor_sum, normalized_moment
from flower_fedclust.exact.rows import Rows
from flower_fedclust.exact.spectral_sums import (
    bandwidth_in_units,
    distance_of_features,
    embedded_rows,
    kernel_values,
    matrix_onto_grid,
)
from flower_fedclust.exact.sums import triangle_to_symmetric
from flower_fedclust.numerics.dictionary import code_map, codes, factor_map, factors, row_gradients

RADIUS, BANDWIDTH, PENALTY = 8.0, 2.5, 0.01
TOLERANCE = {"rtol": 1e-5, "atol": 2e-5}


def on_grid(points, radius=RADIUS):
    return rows_onto_grid(points, np.zeros(points.shape[1]), radius)


def random_case(seed=0, n_rows=60, n_atoms=7, n_columns=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n_rows, n_columns)) * 2, rng.normal(size=(n_atoms, n_columns)) * 2


def framed(rows):
    return Rows(*on_grid(rows), RADIUS)


def sums_of(rows, Z, floor=0.5):
    to_factors = factor_map(Z, BANDWIDTH, PENALTY)
    F = factors(rows, Z, BANDWIDTH, PENALTY)
    total = F.sum(axis=0)
    return F, to_factors, total, floor * (F @ total).mean()


@pytest.mark.parametrize("scale", [1e-300, 1e-5, 1.0, 1e5, 1e300])
def test_kernel_values_do_not_depend_on_the_unit_of_the_data(scale):
    rows, Z = random_case()
    X, exponent = on_grid(rows * scale, RADIUS * scale)
    atoms, _ = on_grid(Z * scale, RADIUS * scale)
    expected = np.exp(-cdist(rows, Z, "sqeuclidean") / (2 * BANDWIDTH**2))
    np.testing.assert_allclose(
        kernel_values(X, atoms, exponent, BANDWIDTH * scale), expected, atol=1e-6
    )


@pytest.mark.parametrize(
    ("bandwidth", "others"), [(5e-324, 0.0), (1e-300, 0.0), (1e300, 1.0), (1.7e308, 1.0)]
)
def test_a_bandwidth_out_of_all_proportion_makes_all_rows_alike_or_none(bandwidth, others):
    rows, _ = random_case(n_rows=5)
    X, exponent = on_grid(rows)
    kernel = kernel_values(X, X, exponent, bandwidth)
    assert np.array_equal(kernel, np.where(np.eye(5) == 1, 1.0, others))
    assert 0 < bandwidth_in_units(bandwidth, exponent) < np.inf


def test_sums_of_factors_are_those_in_floats():
    rows, Z = random_case()
    F, to_factors, total, _ = sums_of(rows, Z)
    np.testing.assert_allclose(
        factor_sum(framed(rows), Z, BANDWIDTH, to_factors).array.values, total, **TOLERANCE
    )
    assert np.abs(F).max() > 0.1


@pytest.mark.parametrize("floor", [1e-3, 0.9, 3.0])
def test_the_normalized_moment_is_that_in_floats(floor):
    rows, Z = random_case()
    F, to_factors, total, floor = sums_of(rows, Z, floor)
    expected = F.T @ (F / np.maximum(F @ total, floor)[:, None])
    on_total, unit = array_onto_grid(total, float(np.linalg.norm(total)))
    term = normalized_moment(
        framed(rows), Z, BANDWIDTH, to_factors, from_units(on_total, unit), unit, floor
    )
    moment = triangle_to_symmetric(term.array.values)
    np.testing.assert_allclose(moment, expected, rtol=1e-4, atol=3e-5 * np.abs(expected).max())


def test_embedded_rows_are_those_in_floats_and_far_rows_keep_their_digits():
    rows, Z = random_case()
    rows[0] = [7.9, 0.0, 0.0]  # whose kernel values are far below a unit, with a narrow kernel
    (X, exponent), (atoms, _) = on_grid(rows), on_grid(Z)
    P = np.random.default_rng(1).normal(size=(len(Z), 3))
    for bandwidth in (BANDWIDTH, 0.5):
        expected = np.exp(-cdist(rows, Z, "sqeuclidean") / (2 * bandwidth**2)) @ P
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        integers, unit = embedded_rows(
            X, atoms, exponent, bandwidth, P, float(np.linalg.norm(P, 2))
        )
        np.testing.assert_allclose(from_units(integers, unit), expected, atol=1e-4)


def test_a_row_without_kernel_values_is_embedded_at_zero():
    X, exponent = on_grid(np.array([[7.0, 0.0], [0.0, 0.0]]))
    integers, _ = embedded_rows(
        X, on_grid(np.zeros((1, 2)))[0], exponent, 0.01, np.ones((1, 2)), 1.0
    )
    assert np.array_equal(integers[0], [0.0, 0.0])
    assert (integers[1] > 0).all()


@pytest.mark.parametrize("bound", [1e-6, 0.05, 0.25, 1e3])
def test_the_gradient_is_the_sum_of_those_of_single_rows_shortened_to_the_bound(bound):
    rows, Z = random_case()
    given, atoms = framed(rows), from_units(*on_grid(Z))
    rows, Z = given.values / BANDWIDTH, atoms / BANDWIDTH
    norms, gradients = row_gradients(rows, Z, codes(rows, Z, 1.0, PENALTY), 1.0)
    assert (norms > bound).any() == (bound < 1)
    expected = np.einsum("i,ijk->jk", np.minimum(1.0, bound / norms), gradients)
    asked = code_map(Z, 1.0, PENALTY), 0.5 / PENALTY**0.5, bound
    total = dictionary_gradient(given, atoms, BANDWIDTH, *asked).array.values
    room = len(rows) * 2.0**-24 * bound + 1e-4  # what is truncated, and the codes
    assert np.abs(total - expected).max() <= min(room, 0.01 * bound * len(rows))


def test_sums_are_the_same_bits_whatever_rows_stand_beside_and_in_any_blocks(monkeypatch):
    rows, Z = random_case(n_rows=40, n_atoms=11)
    X, exponent = on_grid(rows)
    others = on_grid(Z)[0], exponent, BANDWIDTH
    _, to_factors, total, floor = sums_of(rows, Z)
    on_total, unit = array_onto_grid(total, float(np.linalg.norm(total)))
    moment = to_factors, from_units(on_total, unit), unit, floor
    gradient = code_map(Z, BANDWIDTH, PENALTY), 5.0, 0.1
    P = to_factors[:, :3]

    def found(X):
        given = Rows(X, exponent, RADIUS), Z, BANDWIDTH
        terms = (
            factor_sum(*given, to_factors),
            normalized_moment(*given, *moment),
            dictionary_gradient(*given, *gradient),
        )
        return [term.integers for term in terms]

    whole, embedded = found(X), embedded_rows(X, *others, P, 10.0)[0]
    for name, value in {
        "BLOCK_ENTRIES": 3 * Z.size,
        "PULL_ENTRIES": 4 * Z.size,
        "GRADIENT_ROWS": 1,
    }.items():
        monkeypatch.setattr(kernels, name, value)
    one_by_one = [
        sum(parts) for parts in zip(*(found(X[i : i + 1]) for i in range(len(X))), strict=True)
    ]
    for parts in (one_by_one, found(X), found(X[::-1])):
        assert all(np.array_equal(one, other) for one, other in zip(whole, parts, strict=True))
    for i in range(len(X)):
        assert np.array_equal(embedded_rows(X[i : i + 1], *others, P, 10.0)[0][0], embedded[i])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    log_bound=st.floats(-6, 3),
    log_bandwidth=st.floats(-3, 3),
    log_row=st.floats(-3, 9),
    penalty=st.sampled_from([1e-6, 0.01, 1.0]),
)
def test_one_row_adds_no_more_than_the_bounds(seed, log_bound, log_bandwidth, log_row, penalty):
    rows, Z = random_case(seed, n_rows=1)
    bandwidth, bound = 10**log_bandwidth, 10**log_bound
    asked = framed(rows * 10**log_row), Z, bandwidth
    to_factors = factor_map(Z, bandwidth, penalty)
    total = factor_sum(*asked, to_factors)
    assert np.sum(total.integers.astype(object) ** 2) * 4**total.exponent <= 1
    kept = array_onto_grid(np.random.default_rng(seed).normal(size=len(Z)), 9.0)
    term = normalized_moment(*asked, to_factors, from_units(*kept), kept[1], bound**-2)
    moment = triangle_to_symmetric(term.integers).astype(object)
    assert float(np.sum(moment**2)) <= (bound**2 / 2.0**term.exponent) ** 2 * (1 + 1e-14)
    gradient = dictionary_gradient(
        *asked, code_map(Z, bandwidth, penalty), 0.5 / penalty**0.5, bound
    )
    assert float(np.sum(gradient.integers.astype(object) ** 2)) <= (
        bound / 2.0**gradient.exponent
    ) ** 2 * (1 + 1e-15)


# Codes that take noise


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    log_bandwidth=st.floats(-2, 2),
    penalty=st.sampled_from([1e-4, 0.01, 1.0]),
)
def test_no_two_codes_are_farther_apart_than_is_declared(seed, log_bandwidth, penalty):
    rng = np.random.default_rng(seed)
    rows, Z = random_case(seed, n_rows=40)
    rows = np.concatenate([rows, Z, 1e3 * rng.normal(size=(3, 3))])
    (X, exponent), (atoms, _) = on_grid(rows), on_grid(Z)
    bandwidth, bound = 10**log_bandwidth, 0.5 / penalty**0.5
    to_codes = matrix_onto_grid(code_map(from_units(atoms, exponent), bandwidth, penalty))
    C = from_units(*linear_features(kernel_values(X, atoms, exponent, bandwidth), to_codes, bound))
    declared = distance_of_features(
        kernel_values(atoms, atoms, exponent, bandwidth), to_codes, bound
    )
    assert cdist(C, C).max() <= declared
    assert declared <= (2 * penalty) ** -0.5 * (1 + 1e-3)


def test_two_rows_on_atoms_that_are_unlike_are_as_far_apart_as_is_declared():
    matrix = matrix_onto_grid(0.5 * np.eye(2))
    assert distance_of_features(np.eye(2), matrix, 1.0) == pytest.approx(np.sqrt(0.5), rel=1e-5)


@pytest.mark.parametrize("n_atoms", [64, 256])
def test_rounding_that_a_server_has_chosen_is_part_of_the_distance(n_atoms):
    # Of atoms that are one, with a matrix whose columns add up to nothing, only the rounding is left of the codes.
    atoms = np.zeros((n_atoms, 2))
    normal = np.random.default_rng(0).normal(size=(n_atoms, n_atoms - 1))
    directions = np.linalg.qr(np.column_stack([np.ones(n_atoms), normal]))[0][:, 1:]
    matrix = (np.floor(0.999 * directions * 2.0**27) + 0.499) * 2.0**-27
    C = from_units(
        *linear_features(
            kernel_values(np.array([[0.0, 0], [2**25, 0]]), atoms, 0, 1.0), matrix, 1e-4
        )
    )
    apart = np.linalg.norm(C[0] - C[1])
    assert 2e-7 < apart <= distance_of_features(np.ones((n_atoms, n_atoms)), matrix, 1e-4)


def test_a_matrix_on_the_grid_is_what_features_are_computed_with():
    M = np.random.default_rng(0).normal(size=(9, 4)) * 1e7
    rounded = matrix_onto_grid(M)
    np.testing.assert_allclose(rounded, M, atol=2.0**-26 * np.linalg.norm(M, axis=0).max() * 2)
    assert np.array_equal(matrix_onto_grid(rounded), rounded)
    features, unit = linear_features(np.eye(9), rounded, 2.0**28)
    np.testing.assert_allclose(from_units(features, unit), rounded, rtol=0, atol=2.0**unit)
