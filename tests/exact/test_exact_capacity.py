"""No sum over as many rows as a client may have overflows, wherever they lie; and no block of one is rounded."""

import numpy as np
import pytest

import flower_fedclust as fc
from flower_fedclust.engine import client_data
from flower_fedclust.exact.exponents import entry_sums
from flower_fedclust.exact.factorisation import clipped_center_gradient
from flower_fedclust.exact.grid import BITS, ENTRY_BITS, MOST_ROWS
from flower_fedclust.exact.kernel_sums import weighted_sums
from flower_fedclust.exact.kernels import attraction, dictionary_gradient, factor_sum, normalized_moment
from flower_fedclust.exact.rows import Rows
from flower_fedclust.exact.sums import cluster_sums, second_moment, square_sums
from flower_fedclust.exact.terms import powers
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
        normalized_moment(Rows(many(ZERO, n), -BITS, 1.0), ZERO, 1.0, ONE, ONE[0], -BITS, 0.25).integers
    ),
    "gradient of a dictionary": lambda n: (
        dictionary_gradient(Rows(many(EDGE / 4, n), -BITS, 1.0), ZERO, 0.5, 1e6 * ONE, 1e3, 2.0**-20).integers
    ),
    "gradient of centers": lambda n: clipped_center_gradient(many(EDGE, n), many(EDGE, n), -EDGE, -BITS, 0.25)[0],
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


def test_a_client_with_more_rows_is_refused_when_its_data_is_made(monkeypatch):
    assert MOST_ROWS < 12_582_912  # of which the sum of squares had been below 0
    monkeypatch.setattr(client_data, "MOST_ROWS", 10)
    fc.ClientData(np.zeros((10, 2)))
    with pytest.raises(fc.DataError, match=r"north: 11 rows; a client has at most 10"):
        fc.ClientData(np.zeros((11, 2)), owner="north")
