"""A row adds its part: its integers over the number of its subject's rows, truncated towards zero (Lemma 2f)."""

import math
from fractions import Fraction

import numpy as np
import pytest
from test_exact_terms import FRAMES, KERNELS, TERMS, norms

from flower_fedclust.exact import terms
from flower_fedclust.exact.subjects import COUNT_BITS, count_of_one_row, parted, parts_of, rooted

SOME_KERNELS = {
    name: make
    for name, make in KERNELS.items()
    if "r=2" in name or "bandwidth 2" in name or "0.3" in name
}
CASES = [(name, make, norm) for name, make in (TERMS | SOME_KERNELS).items() for norm in (1, 2)]
#: Of a length of one row, a sum of roundings in the statement of a bound.
ALLOWANCE = 1 + Fraction(1, 2**48)


def rows_of_one_person(n_rows, n_columns):
    """Rows of one person: all far out in one direction, ordinary ones, and the largest and smallest floats."""
    rng = np.random.default_rng(n_rows)
    far = np.tile(1e9 * rng.normal(size=n_columns), (n_rows, 1))
    mixed = rng.normal(size=(n_rows, n_columns)) * rng.choice(
        [1e-300, 1.0, 1e9, 1e300], size=(n_rows, 1)
    )
    return {
        "far out": far,
        "alike": np.tile(rng.normal(size=n_columns), (n_rows, 1)),
        "mixed": mixed,
    }


@pytest.mark.parametrize("n_rows", [1, 20, 500])
@pytest.mark.parametrize(
    ("name", "make", "norm"), CASES, ids=[f"{name}, L{norm}" for name, _, norm in CASES]
)
def test_all_rows_of_a_person_add_no_more_than_one_row_may(name, make, norm, n_rows):
    frame = FRAMES[norm]
    for rows in rows_of_one_person(n_rows, len(frame.origin)).values():
        with parts_of(n_rows):
            term = make(frame.rows(rows))
        l1, square = norms(term.integers, term)
        assert square <= Fraction(term.bound.l2) ** 2 * ALLOWANCE
        if term.bound.l1 < math.inf:
            assert l1 <= Fraction(term.bound.l1) * ALLOWANCE


@pytest.mark.parametrize(
    ("name", "make", "norm"), CASES, ids=[f"{name}, L{norm}" for name, _, norm in CASES]
)
def test_form_and_bound_do_not_depend_on_the_divisor(name, make, norm):
    rows = FRAMES[norm].rows(np.random.default_rng(0).normal(size=(7, len(FRAMES[norm].origin))))
    with parts_of(3):
        assert make(rows).form == make(rows).form
        parts = make(rows)
    whole = make(rows)
    assert parts.form == whole.form
    assert (np.abs(parts.integers) <= np.abs(whole.integers).max(initial=0)).all()


def test_quotients_are_truncated_towards_zero_and_never_rounded_up():
    rng = np.random.default_rng(0)
    for divisor in (1, 2, 3, 7, 49, 500, 2**20 - 1):
        whole = [
            *rng.integers(-(2**40), 2**40, size=1000).tolist(),
            0,
            divisor,
            -divisor,
            2**40,
            2**40 - 1,
        ]
        square_bounded = [*rng.integers(-(2**20), 2**20, size=1000).tolist(), 2**20, 2**20 - 1]
        with parts_of(divisor):
            found = parted(np.array(whole, dtype=np.float64)).tolist()
            roots = rooted(np.array(square_bounded, dtype=np.float64)).tolist()
        assert found == [math.trunc(Fraction(one, divisor)) for one in whole]
        assert [abs(root) for root in roots] == [
            math.isqrt(one * one // divisor) for one in square_bounded
        ]


def test_a_count_has_units_of_which_many_rows_have_a_part():
    for divisor in (1, 2, 40, 500):
        with parts_of(divisor):
            assert count_of_one_row() == 2**COUNT_BITS // divisor
            found = terms.at(np.zeros(divisor, dtype=np.intp), 1).array.values[0]
        assert 1 - divisor / 2**COUNT_BITS < found <= 1
    assert terms.at(np.zeros(3, dtype=np.intp), 1).array.values.tolist() == [3.0]


@pytest.mark.parametrize("divisor", [0, -1, 1.5, 2.0, True, np.int64(3)])
def test_a_divisor_is_a_positive_integer(divisor):
    with pytest.raises(ValueError, match="divisor"), parts_of(divisor):
        pass


def test_a_divisor_ends_with_its_block():
    with pytest.raises(RuntimeError), parts_of(5):
        raise RuntimeError
    assert count_of_one_row() == 2**COUNT_BITS
