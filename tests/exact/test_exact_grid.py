from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_fedclust.exact.exponents import (
    LEAST_EXPONENT,
    entry_sums,
    exponent_indicator,
    largest_exponent,
    reach_exponent,
    table_exponent,
)
from flower_fedclust.exact.grid import (
    array_onto_grid,
    from_units,
    integer_norms,
    points_onto_grid,
    rows_onto_grid,
    rows_within,
    scaled_to,
    unit_exponent,
)
from flower_fedclust.exact.rows import Frame
from flower_fedclust.exact.sums import (
    DIRECTION_BITS,
    cluster_sums,
    directions_onto_grid,
    is_off_diagonal,
    nearest_point,
    project_rows,
    second_moment,
    square_sums,
    squared_distances,
    triangle_to_symmetric,
    truncated_means,
    upper_triangle,
    within_margin,
)

RADII = [
    1.0,
    3.0,
    0.1,
    7.3e5,
    1e-300,
    1e300,
    5e-324,
    1.7e308,
    2.0**-1000,
    np.nextafter(1.0, 0),
    np.nextafter(1.0, 2),
]


def hard_rows(n_columns=7, seed=0):
    """Rows of every size, on the sphere and just beyond it, zero, denormal, near the largest float, duplicates."""
    rng = np.random.default_rng(seed)
    normal = rng.normal(size=(60, n_columns))
    unit = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    sizes = 10.0 ** rng.uniform(-320, 308, size=(60, 1))
    rows = [
        normal,
        unit,
        unit * (1 + 1e-9),
        unit * (1 - 2.0**-53),
        np.sign(unit) * sizes,
        3 * unit,
        unit * 2.0**-26,
    ]
    special = np.zeros((8, n_columns))
    special[0, 0], special[1, -1], special[2, 0], special[3] = 1e308, -1.797e308, 5e-324, -0.0
    special[4], special[5, 0], special[6, 0], special[7] = 1.797e308, 1e308, 1.0, -1e-310
    special[5, 1:2] = -5e-324
    return np.concatenate([*rows, special, special])


def exact_norms(rows, norm):
    return [sum(abs(int(entry)) ** norm for entry in row) for row in rows]


@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("bits", [16, 25])
def test_the_unit_is_the_smallest_power_of_two_that_holds_the_bound(radius, bits):
    unit = Fraction(2) ** unit_exponent(radius, bits=bits)
    assert unit / 2 * 2**bits < Fraction(radius) <= unit * 2**bits


@pytest.mark.parametrize("bound", [0.0, -1.0, np.inf, np.nan])
def test_a_bound_that_is_not_positive_and_finite_has_no_grid(bound):
    with pytest.raises(ValueError, match="positive and finite"):
        unit_exponent(bound)


def test_another_norm_is_refused():
    with pytest.raises(ValueError, match="norm is 3"):
        rows_onto_grid(np.ones((1, 2)), np.zeros(2), 1.0, norm=3)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("origin", [0.0, 0.37, 1e308, -1e-310])
@pytest.mark.parametrize("n_columns", [1, 7])
def test_no_row_is_longer_than_the_radius_whatever_it_holds(radius, norm, origin, n_columns):
    on_grid, exponent = rows_onto_grid(
        hard_rows(n_columns), np.full(n_columns, origin), radius, norm=norm
    )
    assert np.isfinite(on_grid).all()
    np.testing.assert_array_equal(on_grid, np.trunc(on_grid))
    limit = (Fraction(radius) / Fraction(2) ** exponent) ** norm
    assert max(exact_norms(on_grid, norm)) <= limit <= 2 ** (25 * norm)


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("n_columns", [2, 3, 50, 784])
def test_many_rows_that_are_clipped_keep_to_the_radius_and_are_next_to_it(norm, n_columns):
    # Quotients just below an integer round up: without the check of the integer norm some of these rows are too long.
    rng = np.random.default_rng(n_columns)
    rows = rng.integers(-9, 10, size=(2000, n_columns)) * 1.0
    rows = rows[(rows != 0).any(axis=1)] * 100
    for radius in (1.0, 25.0):
        on_grid, exponent = rows_onto_grid(rows, np.zeros(n_columns), radius, norm=norm)
        limit = int((Fraction(radius) / Fraction(2) ** exponent) ** norm)
        norms = (np.abs(on_grid).astype(np.int64) ** norm).sum(axis=1)  # far below 2^63
        assert norms.max() <= limit
        assert norms.min() > limit * (1 - 1e-4)
        clipped = rows * radius / np.linalg.norm(rows, axis=1, ord=norm)[:, None]
        np.testing.assert_allclose(
            from_units(on_grid, exponent), clipped, atol=radius * 3e-5 / np.sqrt(n_columns)
        )


def test_a_quotient_that_rounds_up_is_taken_back():
    # A radius next below 1: as quotients these rows are just below 2^25, which some are rounded up to.
    radius, rows = float(np.nextafter(1.0, 0.0)), np.zeros((3000, 2))
    rows[:, 0] = np.arange(3000) + 2.0
    limit = 2**50 - 1
    assert (integer_norms(scaled_to(rows, radius * 2.0**25, 2), 2) > limit).sum() > 20
    on_grid, exponent = rows_onto_grid(rows, np.zeros(2), radius)
    assert exponent == -25
    assert max(exact_norms(on_grid, 2)) <= limit
    assert on_grid[:, 0].min() >= 2**25 - 2


@pytest.mark.parametrize("norm", [1, 2])
def test_a_row_within_the_ball_is_only_truncated(norm):
    rows, origin = np.random.default_rng(0).normal(size=(200, 5)), np.arange(5.0)
    on_grid, exponent = rows_onto_grid(rows, origin, 100.0, norm=norm)
    for row, integers in zip(rows, on_grid, strict=True):
        for entry, center, integer in zip(row, origin, integers, strict=True):
            assert int(Fraction(entry - center) / Fraction(2) ** exponent) == integer


@pytest.mark.parametrize("size", [1.0, 1e-100, 1e200, 1.7e308])
def test_a_row_beside_a_far_origin_in_another_column_is_finite(size):
    # No power of two serves both columns: the first would overflow, or the second vanish.
    rows, origin = np.array([[size, 1e-309], [size, 3e-308], [0.0, 1e-309]]), np.array([size, 0.0])
    for norm in (1, 2):
        on_grid, exponent = rows_onto_grid(rows, origin, 1e-310, norm=norm)
        assert np.isfinite(on_grid).all()
        assert (
            max(exact_norms(on_grid, norm)) <= (Fraction(1e-310) / Fraction(2) ** exponent) ** norm
        )
    if size < 1e150:
        assert Fraction(3e-308) <= Fraction(2) ** reach_exponent(rows[:2], origin)


def test_a_row_that_is_not_finite_becomes_0_and_no_other_does():
    rows = np.ones((5, 3))
    rows[1, 1], rows[3, 0] = np.nan, -np.inf
    on_grid, _ = rows_onto_grid(rows, np.zeros(3), 10.0)
    np.testing.assert_array_equal(on_grid.any(axis=1), [True, False, True, False, True])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3),
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3),
    st.floats(min_value=5e-324, max_value=1.7e308),
    st.sampled_from([1, 2]),
)
def test_any_row_any_origin_any_radius(row, origin, radius, norm):
    rows = np.array([row, origin])
    on_grid, exponent = rows_onto_grid(rows, np.array(origin), radius, norm=norm)
    assert max(exact_norms(on_grid, norm)) <= (Fraction(radius) / Fraction(2) ** exponent) ** norm
    assert not on_grid[1].any()
    np.testing.assert_array_equal(
        rows_onto_grid(rows[:1], np.array(origin), radius, norm=norm)[0], on_grid[:1]
    )


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("n_columns", [1, 3, 100])
@pytest.mark.parametrize("radius", [0.9, 1e300])
def test_a_row_is_the_same_alone_and_in_any_batch(norm, n_columns, radius, monkeypatch):
    rows, origin = hard_rows(n_columns), np.full(n_columns, 0.1)
    whole, _ = rows_onto_grid(rows, origin, radius, norm=norm)
    alone = np.concatenate(
        [rows_onto_grid(row[None], origin, radius, norm=norm)[0] for row in rows]
    )
    assert whole.tobytes() == alone.tobytes()
    columns_first = rows_onto_grid(np.asfortranarray(rows)[::-1], origin, radius, norm=norm)[0]
    np.testing.assert_array_equal(columns_first[::-1], whole)
    monkeypatch.setattr("flower_fedclust.exact.grid.BLOCK_ENTRIES", 5 * n_columns)
    assert rows_onto_grid(rows, origin, radius, norm=norm)[0].tobytes() == whole.tobytes()


@pytest.mark.parametrize("norm", [1, 2])
def test_an_array_as_a_whole_is_clipped_as_one_row_is(norm):
    array = np.random.default_rng(0).normal(size=(4, 5)) * 100
    on_grid, exponent = array_onto_grid(array, 3.0, norm=norm)
    assert on_grid.shape == (4, 5)
    assert (
        exact_norms([on_grid.ravel()], norm)[0] <= (Fraction(3) / Fraction(2) ** exponent) ** norm
    )
    expected = array * 3 / np.linalg.norm(array.ravel(), ord=norm)
    np.testing.assert_allclose(from_units(on_grid, exponent), expected, rtol=1e-4)


def grid_and_points(seed=0, n_rows=300, n_columns=4, n_points=6):
    rng = np.random.default_rng(seed)
    rows = rng.integers(-3, 4, size=(n_rows, n_columns)) * 1.0  # many ties and duplicates
    grid, exponent = rows_onto_grid(rows, np.full(n_columns, 0.5), float(np.sqrt(n_columns) * 3.5))
    return grid, points_onto_grid(rows[:n_points] - 0.5, exponent), exponent


def test_distances_and_nearest_points_are_those_of_python_integers():
    rows, points, _ = grid_and_points()
    squared = [
        [sum((int(a) - int(b)) ** 2 for a, b in zip(x, c, strict=True)) for c in points]
        for x in rows
    ]
    assert squared_distances(rows, points).astype(np.int64).tolist() == squared
    assert nearest_point(rows, points).tolist() == [row.index(min(row)) for row in squared]
    assert any(sorted(row)[0] == sorted(row)[1] for row in squared)
    assert nearest_point(rows, points).dtype == np.intp


def test_the_longest_rows_and_points_have_exact_products():
    longest = np.array(
        [[2.0**25, 0, 0], [-(2.0**25), 0, 0], [2.0**24, -(2.0**24), 2.0**24], [2.0**25 - 1, 1, -1]]
    )
    exact = [
        [sum((int(a) - int(b)) ** 2 for a, b in zip(x, c, strict=True)) for c in longest]
        for x in longest
    ]
    assert squared_distances(longest, longest).astype(np.int64).tolist() == exact
    assert exact[0][1] == 2**52


def test_a_tie_goes_to_the_lowest_index_with_any_rows_beside():
    # Row and bisector of the audit: a float product moved such a row with the number of rows beside it.
    rng = np.random.default_rng(3)
    points = rng.normal(size=(2, 10))
    c = points_onto_grid(points, unit_exponent(10.0))
    row = np.trunc(c.sum(axis=0) / 2)
    pair = np.stack([row + (row - c[1]), c[1]])  # exactly as far from one as from the other
    for batch in (1, 2, 3, 17, 64):
        assert (nearest_point(np.tile(row, (batch, 1)), pair) == 0).all()
        assert (nearest_point(np.tile(row, (batch, 1)), pair[::-1].copy()) == 0).all()


@pytest.mark.parametrize(
    ("n_runs", "n_points", "n_rows", "factor"),
    [(3, 4, 7000, 1), (2, 1, 10, 1), (60, 20, 900, 1), (1, 5, 50, 1), (2, 3, 0, 1), (3, 4, 500, 9)],
)
def test_one_product_finds_the_nearest_points_of_several_runs(n_runs, n_points, n_rows, factor):
    # Points on integers have many ties. With the factor they lie outside the rows' ball.
    rng = np.random.default_rng(4)
    rows = Frame(np.zeros(3), 8.0).rows(rng.integers(-3, 4, size=(n_rows, 3)) * 1.0)
    runs = rng.integers(-3, 4, size=(n_runs, n_points, 3)) * float(factor)
    labels = rows.nearest_in_each(runs)
    assert labels.shape == (n_runs, n_rows)
    for run, found in zip(runs, labels, strict=True):
        np.testing.assert_array_equal(found, rows.nearest(run))
        squared = ((rows.values[:, None] - run) ** 2).sum(axis=2)
        np.testing.assert_array_equal(found, squared.argmin(axis=1))


@pytest.mark.parametrize(("n_rows", "n_clusters"), [(1, 1), (2, 6), (300, 6), (5000, 6)])
def test_sums_and_counts_are_those_of_python_integers(n_rows, n_clusters):
    rows, points, _ = grid_and_points(n_rows=max(n_rows, 6))
    rows, points = rows[:n_rows], points[:n_clusters]
    labels = nearest_point(rows, points)
    sums, counts = cluster_sums(rows, labels, n_clusters)
    assert sums.dtype == counts.dtype == np.int64
    for r in range(n_clusters):
        assert counts[r] == (labels == r).sum()
        assert sums[r].tolist() == [
            sum(int(entry) for entry in column) for column in rows[labels == r].T
        ]


def test_truncated_means_drop_the_remainder_and_are_0_without_a_row():
    sums, counts = np.array([[7, -7], [1, 2], [2**60 + 1, -(2**60)]]), np.array([2, 0, 3])
    expected = [[3, -3], [1, 2], [(2**60 + 1) // 3, -(2**60 // 3)]]
    assert truncated_means(sums, counts).tolist() == expected
    assert truncated_means(np.zeros((1, 2), dtype=np.int64), np.array([0])).tolist() == [[0, 0]]


@pytest.mark.parametrize("margin", [1.0, 0.5, 1 / 3])
def test_rows_within_a_margin_are_those_of_exact_distances(margin):
    rows, points, _ = grid_and_points()
    labels = nearest_point(rows, points)
    kept = within_margin(rows, points, labels, margin)
    for row, label, clear in zip(squared_distances(rows, points), labels, kept, strict=True):
        assert clear == all(
            row[label] <= margin**2 * row[s] for s in range(len(points)) if s != label
        )
    assert within_margin(rows, points[:1], labels * 0, margin).all()


def test_a_row_on_the_margin_is_within_and_one_beyond_is_not():
    rows, points = np.array([[4.0], [8.0], [9.0]]), np.array([[0.0], [32.0]])
    assert within_margin(rows, points, np.zeros(3, dtype=np.intp), 1 / 3).tolist() == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("scale", [1.0, 3.0, 1e-3, 1e300])
def test_directions_are_multiples_of_a_power_of_two_and_of_norm_at_most_1(scale):
    directions = np.linalg.qr(np.random.default_rng(0).normal(size=(600, 5)))[0] * scale
    on_grid = directions_onto_grid(directions)
    whole = on_grid * 2.0**DIRECTION_BITS
    np.testing.assert_array_equal(whole, np.trunc(whole))
    assert max(exact_norms(whole.T, 2)) <= 4**DIRECTION_BITS
    np.testing.assert_array_equal(directions_onto_grid(on_grid), on_grid)
    if scale < 1e9:
        np.testing.assert_allclose(on_grid, directions / max(scale, 1.0), atol=2e-7)


def test_the_identity_is_on_the_grid_and_directions_must_be_finite():
    np.testing.assert_array_equal(directions_onto_grid(np.eye(4)), np.eye(4))
    with pytest.raises(ValueError, match="finite"):
        directions_onto_grid(np.array([[np.nan], [1.0]]))


def test_projected_rows_are_exact_and_no_longer_than_the_radius():
    rng = np.random.default_rng(0)
    rows, exponent = rows_onto_grid(rng.normal(size=(100, 6)) * 2, np.zeros(6), 3.0)
    for directions in (np.linalg.qr(rng.normal(size=(6, 2)))[0], np.ones((6, 4)) / np.sqrt(6)):
        Pi = directions_onto_grid(directions)
        projected = project_rows(rows, directions, 3.0)
        exact = [
            [sum(Fraction(a) * Fraction(b) for a, b in zip(x, v, strict=True)) for v in Pi.T]
            for x in rows
        ]
        limit = (Fraction(3) / Fraction(2) ** exponent) ** 2
        for row, found in zip(exact, projected, strict=True):
            whole = [int(entry) for entry in row]
            if sum(entry**2 for entry in whole) <= limit:
                assert whole == found.astype(np.int64).tolist()
        # The server chooses four directions that are one: rows would be twice as long.
        assert max(exact_norms(projected, 2)) <= limit
    np.testing.assert_array_equal(project_rows(rows, np.eye(6), 3.0), rows)


def test_second_moments_are_those_of_python_integers(monkeypatch):
    rows, _, exponent = grid_and_points(n_rows=50)
    matrix, unit = second_moment(rows, exponent)
    coarse = [[int(entry / 2**9) for entry in row] for row in rows]
    assert matrix.tolist() == [
        [sum(row[a] * row[b] for row in coarse) for b in range(4)] for a in range(4)
    ]
    assert unit == 2 * (exponent + 9)
    monkeypatch.setattr("flower_fedclust.exact.sums.BLOCK_ROWS", 7)
    np.testing.assert_array_equal(second_moment(rows, exponent)[0], matrix)


def test_a_row_moves_the_second_moment_by_the_squared_radius_at_most():
    radius = 0.9
    rows, exponent = rows_onto_grid(hard_rows(3), np.zeros(3), radius)
    for row in rows:
        matrix, unit = second_moment(row[None], exponent)
        assert (
            sum(int(entry) ** 2 for entry in matrix.ravel()) * Fraction(4) ** unit
            <= Fraction(radius) ** 4
        )


def test_a_triangle_holds_the_matrix():
    matrix = np.arange(16).reshape(4, 4)
    matrix = matrix + matrix.T
    triangle = upper_triangle(matrix)
    assert triangle.tolist() == [matrix[a, b] for a in range(4) for b in range(a, 4)]
    assert is_off_diagonal(4).tolist() == [a != b for a in range(4) for b in range(a, 4)]
    np.testing.assert_array_equal(triangle_to_symmetric(triangle.astype(np.float64)), matrix)


@pytest.mark.parametrize("size", [1.0, 1e308, 1e-310, 5e-324, 0.3])
def test_without_a_radius_exponents_give_a_unit_that_clips_nothing(size):
    rng = np.random.default_rng(0)
    rows = np.clip(rng.normal(size=(40, 6)), -1.7, 1.7) * size
    exponent = table_exponent(rows)
    assert (
        Fraction(2) ** (exponent - 1)
        < Fraction(float(np.abs(rows).max()))
        <= Fraction(2) ** exponent
    )
    sums = entry_sums(rows, exponent)
    assert np.abs(sums).max() <= len(rows) * 2**38
    mean = from_units(sums / len(rows), exponent - 38)  # divided first: a sum may overflow
    np.testing.assert_allclose(
        mean / size, np.mean(rows / size, axis=0), rtol=1e-9, atol=1e-9 if size > 1e-320 else 1
    )
    e = reach_exponent(rows, mean)
    longest = max(
        sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(r, mean, strict=True)) for r in rows
    )
    assert longest <= Fraction(4) ** e
    assert Fraction(4) ** (e - 2) < longest or size < 1e-300
    on_grid = rows_within(rows, mean, e - 25)
    if 1e-300 < size < 1e300:
        np.testing.assert_allclose(from_units(on_grid, e - 25), rows - mean, atol=2.0 ** (e - 25))
    assert max(exact_norms(on_grid, 2)) <= 2**50


def test_a_table_of_zeros_has_the_least_exponent():
    assert table_exponent(np.zeros((2, 2))) == LEAST_EXPONENT
    assert reach_exponent(np.ones((2, 2)), np.ones(2)) == LEAST_EXPONENT
    assert reach_exponent(np.full((1, 1), 1.797e308), np.full(1, -1.797e308)) == 1025
    total = sum(exponent_indicator(e) for e in (LEAST_EXPONENT, -3, 1025, 7))
    assert total.sum() == 4
    assert largest_exponent(total) == 1025


CHILD = """
import sys
import numpy as np
from flower_fedclust.exact.sums import *
from flower_fedclust.exact.exponents import reach_exponent
from flower_fedclust.exact.grid import *
found = []
for given in np.load(sys.argv[1]).values():
    n_columns = given.shape[1]
    for norm in (1, 2):
        for radius in (0.9, 1e300, 1e-310):
            rows, exponent = rows_onto_grid(given, np.full(n_columns, 0.1), radius, norm=norm)
            points = rows[[0, 61, 130, 200, 251]]
            labels = nearest_point(rows, points)
            directions = (np.arange(n_columns * 3.0) % 7 - 3).reshape(n_columns, 3)
            found += [rows, labels, *cluster_sums(rows, labels, 5), second_moment(rows, exponent)[0]]
            found += [project_rows(rows, directions, radius), squared_distances(rows, points)]
            found += [within_margin(rows, points, labels, 0.7), np.array(reach_exponent(rows, points[0]))]
"""


def test_the_results_are_the_same_bits_with_any_blas_kernel_and_any_numpy_dispatch(
    assert_same_bits,
):
    assert_same_bits(
        CHILD, **{f"rows{n_columns}": hard_rows(n_columns) for n_columns in (1, 3, 100, 333)}
    )


def test_squares_are_truncated_and_no_longer_than_the_squared_norm():
    rng = np.random.default_rng(0)
    rows, exponent = rows_onto_grid(rng.normal(size=(9000, 3)), np.zeros(3), 1.0)
    squares, unit = square_sums(rows, exponent)
    shift = unit - 2 * exponent
    assert squares.tolist() == [
        sum(int(entry) ** 2 >> shift for entry in column) for column in rows.T
    ]
    for row in rows[:200]:
        alone, _ = square_sums(row[None], exponent)
        norm = sum(int(entry) ** 2 for entry in row)
        assert sum(int(entry) ** 2 for entry in alone) * 4**shift <= norm**2


def test_a_difference_that_overflows_keeps_its_direction():
    rows = np.array([[1.7e308, 1.7e308], [-1.7e308, 0.0]])
    on_grid, exponent = rows_onto_grid(rows, np.array([-1.7e308, 1.7e308]), 1.0)
    np.testing.assert_allclose(from_units(on_grid, exponent), [[1.0, 0.0], [0.0, -1.0]], atol=1e-6)


@pytest.mark.parametrize("norm", [1, 2])
def test_every_row_of_a_long_table_is_clipped(norm):
    on_grid, exponent = rows_onto_grid(
        np.tile([3.0, -4.0], (40_000, 1)), np.zeros(2), 1.0, norm=norm
    )
    expected = np.array([3.0, -4.0]) / (7.0 if norm == 1 else 5.0)
    np.testing.assert_allclose(
        np.ldexp(on_grid, exponent), np.tile(expected, (40_000, 1)), rtol=1e-6
    )
