import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from flower_fedclust.exact import kernel_sums
from flower_fedclust.exact.grid import from_units, points_onto_grid, rows_onto_grid
from flower_fedclust.exact.kernel_sums import (
    WEIGHT_BITS,
    gaussian_kernel,
    linear_features,
    weighted_sums,
)
from flower_fedclust.exact.kernels import attraction
from flower_fedclust.exact.rows import Rows
from flower_fedclust.numerics.landmarks import local_steps, longest_attraction, repulsion_gradient


def attraction_sums(rows, points, exponent, gamma):
    """The attraction of rows on the grid by points on the grid."""
    term = attraction(
        Rows(rows, exponent, math.ldexp(1.0, exponent + 25)), from_units(points, exponent), gamma
    )
    return term.integers, term.exponent


def some_rows(n_rows=200, n_columns=4, n_points=6, seed=0, radius=3.0):
    """Rows on the grid, some of them equal, on the sphere, zero, or equal to a point."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n_rows, n_columns))
    rows[: n_rows // 5] = np.rint(rows[: n_rows // 5])
    rows[-3:], rows[-4] = 0.0, 100.0
    points = rng.normal(size=(n_points, n_columns))
    points[0] = rows[0]
    on_grid, exponent = rows_onto_grid(rows, np.zeros(n_columns), radius)
    return on_grid, points_onto_grid(points, exponent), exponent


def exact_exponential(x):
    """Return e^x of a Fraction to 50 digits."""
    with localcontext() as context:
        context.prec = 60
        return Fraction((Decimal(x.numerator) / Decimal(x.denominator)).exp())


def exact_kernel_value(x, y, exponent, gamma):
    squared = sum((int(a) - int(b)) ** 2 for a, b in zip(x, y, strict=True))
    return exact_exponential(-Fraction(gamma) * squared * Fraction(4) ** exponent)


# Kernel values.


@pytest.mark.parametrize("gamma", [0.3, 1e-9, 20.0])
def test_kernel_values_are_those_of_decimals(gamma):
    rows, points, exponent = some_rows(n_rows=60)
    kernel = gaussian_kernel(rows, points, exponent, gamma)
    for x, found in zip(rows, kernel, strict=True):
        for y, value in zip(points, found, strict=True):
            exact = exact_kernel_value(x, y, exponent, gamma)
            if value > 1e-300:
                assert abs(Fraction(value) / exact - 1) < 2.0**-43
    assert kernel[0, 0] == 1.0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("exponent", [-1126, -1000, -540, -25, 0, 400, 999])
@pytest.mark.parametrize("gamma", [0.0, 5e-324, 1e-300, 1e-3, 1.0, 1e300, 1.7e308])
def test_kernel_values_of_extreme_units_lie_between_0_and_1(exponent, gamma):
    rows = np.array([[0.0, 0.0], [1.0, 0.0], [2.0**25, 0.0], [-(2.0**25), 0.0], [3.0, -4.0]])
    kernel = gaussian_kernel(rows, rows, exponent, gamma)
    assert ((kernel >= 0) & (kernel <= 1)).all()
    np.testing.assert_array_equal(np.diag(kernel), 1.0)
    for y, value in zip(rows, kernel[0], strict=True):
        squared = sum(int(b) ** 2 for b in y)
        scaled = Fraction(gamma) * Fraction(4) ** exponent * squared
        exact = 0.0 if scaled > 800 else float(exact_exponential(-scaled))
        assert value == pytest.approx(exact, rel=1e-12, abs=1e-320)


@pytest.mark.parametrize("gamma", [-1.0, math.nan, math.inf])
def test_a_gamma_that_is_negative_or_not_finite_is_refused(gamma):
    for function in (gaussian_kernel, attraction_sums):
        with pytest.raises(ValueError, match="gamma"):
            function(np.zeros((1, 1)), np.zeros((1, 1)), -25, gamma)
    with pytest.raises(ValueError, match="must be positive"):
        attraction_sums(np.zeros((1, 1)), np.zeros((1, 1)), -25, 0.0)


# One row, whatever stands beside it.


@pytest.mark.parametrize("n_columns", [1, 5])
@pytest.mark.parametrize("n_points", [1, 9])
def test_what_a_row_gives_is_the_same_alone_and_among_others(n_columns, n_points, monkeypatch):
    rows, points, exponent = some_rows(1000, n_columns, n_points)
    matrix = np.random.default_rng(1).normal(size=(n_points, 3))
    kernel = gaussian_kernel(rows, points, exponent, 0.4)
    features, _ = linear_features(kernel, matrix, 0.9)
    permutation = np.random.default_rng(2).permutation(1000)
    for i in (0, 3, 500, 996, 999):
        alone = gaussian_kernel(rows[i : i + 1], points, exponent, 0.4)
        assert alone.tobytes() == kernel[i].tobytes()
        np.testing.assert_array_equal(linear_features(alone, matrix, 0.9)[0][0], features[i])
    assert (
        gaussian_kernel(rows[permutation], points, exponent, 0.4).tobytes()
        == kernel[permutation].tobytes()
    )
    np.testing.assert_array_equal(
        linear_features(kernel[permutation], matrix, 0.9)[0], features[permutation]
    )
    # Sums: those of single rows, of any order, and of blocks of any size.
    sums = [attraction_sums(rows, points, exponent, 0.4)[0], *weighted_sums(rows, kernel)]
    single = [0, 0, 0]
    for i in range(0, 1000, 50):
        part = slice(i, i + 50)
        pieces = [
            attraction_sums(rows[part], points, exponent, 0.4)[0],
            *weighted_sums(rows[part], kernel[part]),
        ]
        single = [total + piece for total, piece in zip(single, pieces, strict=True)]
    for name, entries in {
        "KERNEL_ENTRIES": 40,
        "BLOCK_ENTRIES": 2**13,
        "WEIGHTED_ROWS": 11,
    }.items():
        monkeypatch.setattr(kernel_sums, name, entries)
    monkeypatch.setattr("flower_fedclust.exact.kernels.ATTRACTED_ENTRIES", 2**13)
    order = [attraction_sums(rows[permutation], points, exponent, 0.4)[0]]
    order += weighted_sums(rows[permutation], kernel[permutation])
    for whole, added, permuted in zip(sums, single, order, strict=True):
        assert whole.dtype == np.int64
        assert whole.tolist() == added.tolist() == permuted.tolist()


# Linear features.


def inverse_root(kernel):
    values, vectors = np.linalg.eigh(kernel + 0.01 * np.eye(len(kernel)))
    return vectors / np.sqrt(values) @ vectors.T


@pytest.mark.parametrize("n_columns", [2, 20])
def test_linear_features_are_right_to_3e_6(n_columns):
    rows, _, exponent = some_rows(400, n_columns, radius=3 * math.sqrt(n_columns))
    kernel = gaussian_kernel(rows, rows[50:150], exponent, 0.25 / n_columns)
    matrix = inverse_root(kernel[50:150])
    features, unit = linear_features(kernel, matrix, 3.0)
    np.testing.assert_array_equal(features, np.trunc(features))
    error = from_units(features, unit) - kernel @ matrix
    assert np.abs(error).max() < 3e-6
    assert error.std() < 1e-6
    assert unit == -23


@pytest.mark.parametrize("n_points", [1, 2, 3, 16, 17])
def test_the_product_is_that_of_fractions(n_points):
    rng = np.random.default_rng(n_points)
    kernel, matrix = rng.uniform(size=(20, n_points)), rng.normal(size=(n_points, 2))
    kernel[0] = 1.0
    features, unit = linear_features(kernel, matrix, 1000.0)
    # The power of two that makes columns no longer than 1 is chosen by their exact norm.
    longest = max(sum(Fraction(entry) ** 2 for entry in column) for column in matrix.T)
    scale = min(e for e in range(-10, 20) if longest <= Fraction(4) ** e)
    bits = max(b for b in range(27) if n_points * 4**b <= 4**26)
    for row, found in zip(kernel, features, strict=True):
        for column, integer in zip(matrix.T, found, strict=True):
            whole = sum(
                Fraction(round(Fraction(k) * 2**bits), 2**bits)
                * Fraction(round(Fraction(m) * 2**27 / 2**scale), 2**27)
                for k, m in zip(row, column, strict=True)
            )
            assert int(whole * Fraction(2) ** (scale - unit)) == integer


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [0.0, 5e-324, 1e-200, 1.0, 1e5, 1e308])
@pytest.mark.parametrize("bound", [1e-310, 0.7, 3.0, 1e300])
def test_no_feature_is_longer_than_the_bound(size, bound):
    rng = np.random.default_rng(0)
    kernel = np.concatenate(
        [rng.uniform(size=(50, 5)), np.ones((1, 5)), np.zeros((1, 5)), np.eye(5)]
    )
    matrix = rng.uniform(-1, 1, size=(5, 3)) * size
    matrix[:, 0] = size
    features, unit = linear_features(kernel, matrix, bound)
    limit = (Fraction(bound) / Fraction(2) ** unit) ** 2
    norms = [sum(int(entry) ** 2 for entry in row) for row in features]
    assert max(norms) <= limit <= 2**50
    assert norms[51] == 0
    if size / bound > 10:
        assert norms[50] > limit * Fraction(999, 1000)


def test_a_matrix_must_be_finite_and_a_bound_positive():
    with pytest.raises(ValueError, match="matrix"):
        linear_features(np.ones((1, 1)), np.array([[np.nan]]), 1.0)
    with pytest.raises(ValueError, match="bound"):
        linear_features(np.ones((1, 1)), np.ones((1, 1)), 0.0)


# Weighted sums.


def test_weighted_sums_are_those_of_python_integers():
    rows, points, exponent = some_rows(300)
    weights = gaussian_kernel(rows, points, exponent, 0.4)
    weights[:2] = [[1.0], [0.0]]
    sums, totals = weighted_sums(rows, weights)
    whole = [[int(Fraction(w) * 2**WEIGHT_BITS) for w in row] for row in weights]
    for r in range(len(points)):
        assert totals[r] == sum(row[r] for row in whole)
        for column in range(rows.shape[1]):
            assert sums[r, column] == sum(
                row[r] * int(x[column]) for row, x in zip(whole, rows, strict=True)
            )


def test_the_longest_rows_with_weight_1_have_exact_sums():
    # A float64 sum of more than 2^13 of them would no longer be exact: 2^25 - 1 is odd.
    rows = np.full((20_001, 1), 2.0**25 - 1)
    weights = np.full((20_001, 2), 1.0)
    weights[:, 1] = np.nextafter(1.0, 0.0)
    sums, totals = weighted_sums(rows, weights)
    assert sums.tolist() == [[20_001 * 2**15 * (2**25 - 1)], [20_001 * (2**15 - 1) * (2**25 - 1)]]
    assert totals.tolist() == [20_001 * 2**15, 20_001 * (2**15 - 1)]


def test_a_row_moves_weighted_sums_by_the_norm_of_its_weights_times_its_own():
    rows, points, exponent = some_rows(50)
    weights = gaussian_kernel(rows, points, exponent, 0.4)
    for row, weight in zip(rows, weights, strict=True):
        sums, totals = weighted_sums(row[None], weight[None])
        squared = sum(int(entry) ** 2 for entry in row)
        weight_squared = sum(int(entry) ** 2 for entry in totals)
        assert sum(int(entry) ** 2 for entry in sums.ravel()) == squared * weight_squared
        assert weight_squared <= sum(Fraction(entry) ** 2 for entry in weight) * 4**WEIGHT_BITS


# Attraction.


def exact_attraction(rows, points, exponent, gamma):
    """Return the sums in Python's integers, with kernel values from decimals."""
    rows, points = (
        [[round(Fraction(int(entry), 16)) for entry in row] for row in array]
        for array in (rows, points)
    )
    sums = [[0] * len(points[0]) for _ in points]
    for j, y in enumerate(points):
        for x in rows:
            kernel = int(
                exact_kernel_value(x, y, exponent + 4, gamma) * (1 - Fraction(1, 2**40)) * 2**18
            )
            sums[j] = [total + kernel * (a - b) for total, a, b in zip(sums[j], x, y, strict=True)]
    return sums


@pytest.mark.parametrize("gamma", [0.3, 1e-9, 20.0])
def test_attraction_sums_are_those_of_python_integers(gamma):
    rows, points, exponent = some_rows(60)
    sums, unit = attraction_sums(rows, points, exponent, gamma)
    assert sums.tolist() == exact_attraction(rows, points, exponent, gamma)
    assert unit == exponent - 14


def test_attraction_sums_are_those_of_floats_to_1e_5_of_the_bound():
    rows, points, exponent = some_rows(5000, 10, 20, radius=10.0)
    gamma = 0.025
    sums, unit = attraction_sums(rows, points, exponent, gamma)
    X, Y = from_units(rows, exponent), from_units(points, exponent)
    gradient = local_steps(X, Y, gamma, 1, own=0.0).gradient
    floats = 5000 * (gradient - repulsion_gradient(Y, gamma))
    longest = 4 * gamma / 20 * longest_attraction(gamma, 20) * 5000
    assert np.abs(-4 * gamma / 20 * from_units(sums, unit) - floats).max() < 1e-5 * longest


def assert_within_the_bound(row, points, exponent, gamma):
    """Return the part of the bound that the row's contribution reaches."""
    sums, unit = attraction_sums(row[None], points, exponent, gamma)
    squared = sum(int(entry) ** 2 for entry in sums.ravel()) * Fraction(4) ** unit
    bound = len(points) * exact_exponential(Fraction(-1)) / (2 * Fraction(gamma))
    assert squared <= bound
    # And below what is declared, which was computed in floats.
    assert squared <= Fraction(longest_attraction(gamma, len(points))) ** 2
    assert squared <= Fraction(math.sqrt(len(points)) * math.exp(-0.5) / math.sqrt(2 * gamma)) ** 2
    return float(squared / bound) ** 0.5


@pytest.mark.parametrize("exponent", [-25, -300, 100])
def test_a_row_at_the_worst_distance_from_all_points_is_within_the_bound_and_reaches_it(exponent):
    part = []
    for distance in range(2**22 - 16 * 40, 2**22, 16):
        points = np.concatenate([np.eye(3), -np.eye(3)]) * distance
        gamma = float(Fraction(1, 2 * distance**2) / Fraction(4) ** exponent)
        part.append(assert_within_the_bound(np.zeros(3), points, exponent, gamma))
    assert min(part) > 1 - 2.0**-17


def test_the_bound_holds_at_every_distance_and_for_any_gamma():
    rng = np.random.default_rng(0)
    for gamma in 10.0 ** rng.uniform(-6, 6, 40):
        worst = 1 / math.sqrt(2 * gamma)
        distances = np.clip(
            worst * 2.0**25 * np.array([1.0, 0.999, 1.001, 0.5, 2.0, 6.0]), -(2.0**24), 2.0**24
        )
        points = np.trunc(distances[:, None])
        for row in (np.zeros(1), np.array([2.0**24]), np.array([-(2.0**25)])):
            assert_within_the_bound(row, points, -25, gamma)
            assert_within_the_bound(row, points[:1], -25, gamma)


def test_a_row_that_is_equal_to_a_point_or_far_from_it_does_not_pull_it():
    rows = np.array([[2.0**25, 0.0], [0.0, 8.0]])
    sums, _ = attraction_sums(rows, np.array([[2.0**25, 0.0], [-(2.0**25), 0.0]]), -25, 1e3)
    assert not sums.any()


def test_the_longest_rows_have_exact_attraction():
    # With gamma next to 0 every kernel value is the largest there is; 40,001 rows are more than a float64 sum holds.
    rows, points = np.full((40_001, 1), 2.0**25 - 16), np.array([[-(2.0**25)], [0.0]])
    sums, _ = attraction_sums(rows, points, -25, 1e-300)
    assert sums.tolist() == [
        [40_001 * (2**18 - 1) * (2**22 - 1)],
        [40_001 * (2**18 - 1) * (2**21 - 1)],
    ]


# Machines.

CHILD = """
import sys
import numpy as np
from flower_fedclust.exact.elementary import *
from flower_fedclust.exact.kernel_sums import *
from flower_fedclust.exact.kernels import attraction
from flower_fedclust.exact.rows import Rows
given = np.load(sys.argv[1])
found = [exponential(given["x"]), logarithm(np.abs(given["x"])), power(np.abs(given["x"]), -0.37)]
for n_columns in (1, 3, 100):
    rows, points = given[f"rows{n_columns}"], given[f"points{n_columns}"]
    for gamma in (1e-9, 0.3, 20.0):
        kernel = gaussian_kernel(rows, points, -24, gamma)
        found += [kernel, *linear_features(kernel, given["matrix"][:, : len(points)].T, 0.9)]
        found += [*weighted_sums(rows, kernel), attraction(Rows(rows, -24, 2.0), points * 2.0**-24, gamma).integers]
"""


def test_the_results_are_the_same_bits_with_any_blas_kernel_and_any_numpy_dispatch(
    assert_same_bits,
):
    rng = np.random.default_rng(0)
    arrays = {"x": np.concatenate([-rng.exponential(5, 2000), rng.uniform(-800, 800, 500)])}
    arrays["matrix"] = rng.normal(size=(30, 40))
    for n_columns in (1, 3, 100):
        rows, points, exponent = some_rows(700, n_columns, 40, radius=3.0)
        assert exponent == -23
        arrays |= {f"rows{n_columns}": rows, f"points{n_columns}": points}
    assert_same_bits(CHILD, **arrays)
