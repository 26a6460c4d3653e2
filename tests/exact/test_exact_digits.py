import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_fedclust.exact.digits import digits_of, value_of_digits

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(FINITE, min_size=1, max_size=20))
def test_sums_of_digits_are_the_sums_of_the_numbers_rounded_once(values):
    total = sum(map(Fraction, values), Fraction(0))
    digits = np.sum([digits_of(value) for value in values], axis=0)
    try:
        expected = float(total)
    except OverflowError:
        expected = math.inf if total > 0 else -math.inf
    assert value_of_digits(digits) == expected
    assert value_of_digits(digits.astype(float)) == expected  # as a protocol receives it


@pytest.mark.parametrize(
    "value", [0.0, -0.0, 5e-324, -5e-324, 1.0, -1.7976931348623157e308, math.pi]
)
def test_digits_of_a_single_number_are_that_number_and_fit_into_32_bits(value):
    digits = digits_of(value)
    assert digits.dtype == np.int64
    assert np.abs(digits).max() < 2**32
    assert value_of_digits(digits) == value


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_counts_as_the_largest_float(value):
    assert value_of_digits(digits_of(value)) == np.finfo(float).max
