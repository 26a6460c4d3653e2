import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import cdist

from flower_fedclust.exact.grid import BITS, ENTRY_BITS, MOST_ROWS, points_onto_grid
from flower_fedclust.exact.sums import squared_distances
from flower_fedclust.numerics import blocks
from flower_fedclust_papers.fuzzy import fuzzy_memberships, fuzzy_steps, fuzzy_sums, more_bits_for
from flower_fedclust_papers.kmeans_parallel import cost_exponent

RNG = np.random.default_rng(6)
#: On a grid of 2^-20.
ROWS = points_onto_grid(RNG.normal(2, 3, (60, 4)), -20)
CENTERS = points_onto_grid(RNG.normal(2, 3, (5, 4)), -20)
FUZZIFIERS = pytest.mark.parametrize("fuzzifier", [1.05, 1.5, 2.0, 3.7, 50.0])


def slow_memberships(rows, centers, fuzzifier):
    """Bezdek's formula by the letter, for rows that lie on no center."""
    distances = cdist(rows, centers)
    return np.array(
        [
            [1 / sum((d / other) ** (2 / (fuzzifier - 1)) for other in row) for d in row]
            for row in distances
        ]
    )


@FUZZIFIERS
def test_memberships_are_those_of_the_formula(fuzzifier):
    expected = slow_memberships(ROWS, CENTERS, fuzzifier)
    np.testing.assert_allclose(
        fuzzy_memberships(ROWS, CENTERS, fuzzifier), expected, rtol=1e-9, atol=1e-12
    )


ENTRIES = st.one_of(st.integers(-3, 3), st.integers(-(2**24), 2**24), st.just(2**24))


@settings(max_examples=200, deadline=None)
@given(
    rows=arrays(np.int64, st.tuples(st.integers(1, 6), st.just(3)), elements=ENTRIES),
    centers=arrays(np.int64, st.tuples(st.integers(1, 5), st.just(3)), elements=ENTRIES),
    fuzzifier=st.one_of(st.floats(1.0001, 5), st.sampled_from([1 + 1e-15, 1e300])),
)
def test_memberships_are_finite_and_add_up_to_1_whatever_the_magnitudes(rows, centers, fuzzifier):
    memberships = fuzzy_memberships(rows.astype(float), centers.astype(float), fuzzifier)
    assert memberships.shape == (len(rows), len(centers))
    assert ((memberships >= 0) & (memberships <= 1)).all()
    np.testing.assert_allclose(memberships.sum(axis=1), 1.0, rtol=1e-14)


@settings(max_examples=200, deadline=None)
@given(
    rows=arrays(np.int64, st.tuples(st.integers(1, 6), st.just(3)), elements=ENTRIES),
    centers=arrays(np.int64, st.tuples(st.integers(1, 5), st.just(3)), elements=ENTRIES),
    fuzzifier=st.one_of(st.floats(1.0001, 5), st.sampled_from([1 + 1e-15, 1e300])),
    more_bits=st.integers(0, 10),
)
def test_weights_of_a_row_are_integers_that_add_up_to_1_at_most(
    rows, centers, fuzzifier, more_bits
):
    for row in rows.astype(float):
        sums, weights, exponent = fuzzy_sums(
            row[None], centers.astype(float), fuzzifier, more_bits=more_bits
        )
        assert exponent == -15 - more_bits
        assert weights.min() >= 0
        assert weights.sum() <= 2**-exponent
        assert np.array_equal(sums, np.outer(weights, row.astype(np.int64)))


@FUZZIFIERS
def test_what_a_row_adds_does_not_depend_on_the_rows_beside_it(fuzzifier):
    for more_bits in (0, 5):
        whole = fuzzy_sums(ROWS, CENTERS, fuzzifier, more_bits=more_bits)[:2]
        for parts in ([1, 30], [2, 3, 59], list(range(1, 60))):
            each = [
                fuzzy_sums(part, CENTERS, fuzzifier, more_bits=more_bits)[:2]
                for part in np.split(ROWS, parts)
            ]
            for index in (0, 1):
                assert np.array_equal(sum(found[index] for found in each), whole[index])


@pytest.mark.parametrize(
    ("n_rows", "more_bits"),
    [(1, 10), (2**12, 10), (2**12 + 1, 9), (2**17, 5), (2**22, 0), (1e9, 0)],
)
def test_weights_are_as_fine_as_their_sums_allow(n_rows, more_bits):
    assert more_bits_for(n_rows) == more_bits
    assert n_rows > 2**22 or n_rows * 2.0 ** (25 + 15 + more_bits) < 2**63


@FUZZIFIERS
def test_a_row_on_a_center_belongs_to_it_and_one_on_two_to_both_alike(fuzzifier):
    centers = 2.0**20 * np.array([[0.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 8.0]])
    memberships = fuzzy_memberships(centers[:2], centers, fuzzifier)
    assert np.array_equal(memberships, [[1, 0, 0, 0], [0, 0.5, 0.5, 0]])


def test_all_centers_at_the_origin_are_as_good_as_any():
    assert np.array_equal(fuzzy_memberships(ROWS, np.zeros((4, 4)), 2.0), np.full((60, 4), 0.25))
    assert np.array_equal(
        fuzzy_memberships(np.zeros((1, 4)), np.zeros((4, 4)), 2.0), np.full((1, 4), 0.25)
    )


@FUZZIFIERS
def test_the_largest_membership_is_that_of_the_nearest_center(fuzzifier):
    memberships = fuzzy_memberships(ROWS, CENTERS, fuzzifier)
    assert np.array_equal(memberships.argmax(axis=1), cdist(ROWS, CENTERS).argmin(axis=1))


def in_floats(found):
    """Sums in units of the rows, and weights in rows."""
    sums, weights, exponent = found
    return sums * 2.0**exponent, weights * 2.0**exponent


@FUZZIFIERS
@pytest.mark.parametrize(("more_bits", "unit"), [(0, 2.0**-15), (10, 2.0**-25)])
def test_sums_and_weights_are_those_of_a_loop_over_rows(fuzzifier, more_bits, unit):
    sums, weights = in_floats(fuzzy_sums(ROWS, CENTERS, fuzzifier, more_bits=more_bits))
    powers = slow_memberships(ROWS, CENTERS, fuzzifier) ** fuzzifier
    expected = [
        sum(p[j] * row for p, row in zip(powers, ROWS, strict=True)) for j in range(len(CENTERS))
    ]
    np.testing.assert_allclose(
        sums, expected, rtol=0, atol=1.001 * unit * np.abs(ROWS).sum(axis=0).max()
    )
    np.testing.assert_allclose(weights, powers.sum(axis=0), rtol=0, atol=1.001 * unit * len(ROWS))


def test_sums_block_by_block_are_those_of_one_block(monkeypatch):
    whole = fuzzy_sums(ROWS, CENTERS, 2.0)
    for entries in (1, 17, 5 * len(ROWS) - 1):
        monkeypatch.setattr(blocks, "BLOCK_ENTRIES", entries)
        for one, other in zip(fuzzy_sums(ROWS, CENTERS, 2.0), whole, strict=True):
            assert np.array_equal(one, other)


@pytest.mark.parametrize("n_steps", [1, 2, 6])
def test_steps_are_sums_from_the_centers_of_the_step_before(n_steps):
    centers = CENTERS
    for _ in range(n_steps - 1):
        powers = slow_memberships(ROWS, centers, 2.0) ** 2
        centers = powers.T @ ROWS / powers.sum(axis=0)[:, None]
    expected = in_floats(fuzzy_sums(ROWS, np.trunc(centers), 2.0, more_bits=10))
    found = in_floats(fuzzy_steps(ROWS, CENTERS, 2.0, n_steps, more_bits=10))
    np.testing.assert_allclose(
        found[0], expected[0], rtol=0, atol=1e-6 * np.abs(ROWS).sum(axis=0).max()
    )
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)


def test_a_center_without_weight_stays_where_it_is():
    rows, centers = np.array([[1.0, 1.0]] * 3) * 2**20, np.array([[1.0, 1.0], [5.0, 5.0]]) * 2**20
    sums, weights = in_floats(fuzzy_steps(rows, centers, 2.0, 4))
    assert np.array_equal(weights, [3.0, 0.0])
    assert np.array_equal(sums / 2**20, [[3.0, 3.0], [0.0, 0.0]])


@pytest.mark.parametrize("fuzzifier", [1.05, 1.5, 2.0, 3.7])
def test_steps_never_raise_the_objective(fuzzifier):
    def objective(centers):
        return np.sum(
            slow_memberships(ROWS, centers, fuzzifier) ** fuzzifier
            * cdist(ROWS, centers, "sqeuclidean")
        )

    sums, weights = in_floats(fuzzy_sums(ROWS, CENTERS, fuzzifier, more_bits=10))
    assert objective(sums / weights[:, None]) < objective(CENTERS)


def many(row, n_rows):
    return np.repeat(row, n_rows, axis=0)


EDGE = np.array([[2.0**BITS]])
#: Sums over rows that lie as far from a center as a row can.
SUMS = {
    "fuzzy weights": lambda n: fuzzy_sums(
        many(EDGE, n), EDGE, 2.0, more_bits=more_bits_for(MOST_ROWS)
    )[0],
    "costs": lambda n: (
        (squared_distances(many(EDGE, n), -EDGE) * 2.0 ** -cost_exponent())
        .sum(axis=0)
        .astype(np.int64)
    ),
}


@pytest.mark.parametrize("what", list(SUMS))
def test_int64_holds_a_sum_over_as_many_rows_as_a_client_may_have(what):
    one = SUMS[what](1)
    largest = int(np.abs(one).max())
    assert 0 < largest <= 2**ENTRY_BITS
    assert largest * MOST_ROWS < 2**63
    assert np.array_equal(SUMS[what](70_001), 70_001 * one)
