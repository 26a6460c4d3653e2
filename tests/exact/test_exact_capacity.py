"""No sum over as many rows as a client may have overflows, wherever they lie; and no block of one is rounded."""

import numpy as np
import pytest

import flower_fedclust as fc
from flower_fedclust.engine.fields import read_most_rows
from flower_fedclust.engine.rounds import ProtocolError
from flower_fedclust.exact.capacity import LARGEST_BOUND, bits_with, entry_bits, with_rows
from flower_fedclust.exact.exponents import entry_sums
from flower_fedclust.exact.factorization import clipped_center_gradient
from flower_fedclust.exact.grid import BITS, ENTRY_BITS, MOST_ROWS
from flower_fedclust.exact.kernel_sums import weighted_sums
from flower_fedclust.exact.kernels import (
    attraction,
    dictionary_gradient,
    factor_sum,
    normalized_moment,
)
from flower_fedclust.exact.rows import Rows
from flower_fedclust.exact.sums import cluster_sums, second_moment, square_sums
from flower_fedclust.exact.terms import powers, squares, total, weighted
from flower_fedclust.strategies.common.frame import RowsInFrame

EDGE, ZERO, ONE = np.array([[2.0**BITS]]), np.zeros((1, 1)), np.ones((1, 1))


def many(row, n_rows):
    return np.repeat(row, n_rows, axis=0)


#: Every sum over rows, of so many rows at the worst place that there is.
SUMS = {
    "rows": lambda n: RowsInFrame(many(EDGE, n), -BITS, 1.0, 2).total()[0].integers,
    "rows by cluster": lambda n: cluster_sums(many(EDGE, n), np.zeros(n, dtype=np.intp), 1)[0],
    "outer products": lambda n: second_moment(many(EDGE, n), -BITS)[0],
    "squares": lambda n: square_sums(many(EDGE, n), -BITS)[0],
    "entries": lambda n: entry_sums(many(ONE, n), 0),
    "weighted rows": lambda n: weighted_sums(many(EDGE, n), np.ones((n, 1)))[0],
    "weights": lambda n: weighted_sums(many(EDGE, n), np.ones((n, 1)))[1],
    "attraction": lambda n: attraction(Rows(many(EDGE, n), -BITS, 1.0), -ONE, 1e-300).integers,
    "factors": lambda n: factor_sum(Rows(many(ZERO, n), -BITS, 1.0), ZERO, 1.0, ONE).integers,
    "moment": lambda n: (
        normalized_moment(
            Rows(many(ZERO, n), -BITS, 1.0), ZERO, 1.0, ONE, ONE[0], -BITS, 0.25
        ).integers
    ),
    "gradient of a dictionary": lambda n: (
        dictionary_gradient(
            Rows(many(EDGE / 4, n), -BITS, 1.0), ZERO, 0.5, 1e6 * ONE, 1e3, 2.0**-20
        ).integers
    ),
    "gradient of centers": lambda n: clipped_center_gradient(
        many(EDGE, n), many(EDGE, n), -EDGE, -BITS, 0.25
    )[0],
    "powers": lambda n: powers(np.ones(n)).integers,
}


@pytest.mark.parametrize("what", list(SUMS))
def test_int64_holds_a_sum_over_as_many_rows_as_a_client_may_have(what):
    one = SUMS[what](1)
    largest = int(np.abs(one).max())
    assert 0 < largest <= 2**ENTRY_BITS
    assert largest * MOST_ROWS < 2**63
    # So many rows that a float64 sum of odd entries would be rounded, were it not made block by block.
    assert np.array_equal(SUMS[what](70_001), 70_001 * one)


@pytest.mark.parametrize("most_rows", [MOST_ROWS + 1, 10**8, LARGEST_BOUND])
@pytest.mark.parametrize("what", list(SUMS))
def test_with_a_larger_bound_on_rows_int64_holds_their_sum_too(what, most_rows):
    with with_rows(most_rows):
        one = SUMS[what](1)
        assert np.array_equal(SUMS[what](20_001), 20_001 * one)
    largest = int(np.abs(one).max())
    assert 0 < largest <= 2 ** bits_with(most_rows)
    assert largest * most_rows < 2**63


def test_a_larger_bound_on_rows_makes_only_the_unit_coarser():
    rows = Rows(
        np.random.default_rng(0).integers(-(2**20), 2**20, (50, 3)).astype(float), -BITS, 1.0
    )
    weights = np.random.default_rng(1).random((50, 4)) / 4
    makers = [
        squares,
        lambda given: weighted(weights, given),
        lambda given: attraction(given, np.zeros((2, 3)), 1.0),
    ]
    for make in makers:
        by_default = make(rows)
        with with_rows(LARGEST_BOUND):
            coarse = make(rows)
        assert coarse.exponent > by_default.exponent
        assert coarse.bound == by_default.bound
        # Each of 50 rows loses less than a unit of each factor of its product.
        unit = 2.0 ** (coarse.exponent + (0 if make is squares else 18))
        assert np.abs(coarse.array.values - by_default.array.values).max() < 50 * 3 * unit
    assert entry_bits() == ENTRY_BITS
    with with_rows(LARGEST_BOUND):
        assert np.array_equal(total(rows).integers, rows.integers.sum(axis=0))


def test_a_client_with_more_rows_than_its_bound_is_refused_when_its_data_is_made():
    assert MOST_ROWS < 12_582_912  # of which the sum of squares had been below 0
    fc.ClientData(np.zeros((10, 2)), most_rows=10)
    with pytest.raises(fc.DataError, match=r"north: 11 rows; a client has at most 10"):
        fc.ClientData(np.zeros((11, 2)), owner="north", most_rows=10)


def test_a_run_states_its_bound_on_rows_and_says_what_it_costs():
    rows = [np.random.default_rng(index).normal(size=(60, 2)) for index in range(2)]
    by_default = fc.simulate("federated-kmeans", rows, n_clusters=2, seed=0)
    large = fc.simulate("federated-kmeans", rows, n_clusters=2, seed=0, most_rows=LARGEST_BOUND)
    # A mean of all rows comes in a coarser unit, sums of rows do not.
    assert np.allclose(large.model.cluster_centers_, by_default.model.cluster_centers_, atol=1e-6)
    assert any("33 bits" in note and "7 fewer" in note for note in large.privacy.notes)
    assert not any("bits to an entry" in note for note in by_default.privacy.notes)


def test_a_client_refuses_a_run_that_allows_fewer_rows_than_it_may_have():
    rows = np.random.default_rng(0).normal(size=(60, 2))
    data = {name: fc.ClientData(rows, owner=name, most_rows=10**9) for name in "ab"}
    with pytest.raises(
        fc.ProtocolError,
        match="the run allows 8,388,607 rows, and this client may have up to 1,000",
    ):
        fc.simulate("k-fed", data, n_clusters=2, seed=0)
    fc.simulate("k-fed", data, n_clusters=2, seed=0, most_rows=10**9)


@pytest.mark.parametrize("most_rows", [0, MOST_ROWS - 1, LARGEST_BOUND + 1])
def test_a_bound_on_rows_outside_of_its_range_is_refused(most_rows):
    with pytest.raises(ValueError, match="most_rows"):
        fc.KFED(n_clusters=2, most_rows=most_rows)
    with pytest.raises(ProtocolError, match="rows; it may be from"):
        read_most_rows({"most_rows": most_rows})


@pytest.mark.parametrize("most_rows", [LARGEST_BOUND + 1, 2**40, 0, 10.5])
def test_a_client_has_a_bound_that_a_run_can_have(most_rows):
    with pytest.raises(ValueError, match=f"most_rows is {most_rows}; it must be an integer"):
        fc.ClientData(np.zeros((10, 2)), most_rows=most_rows)
