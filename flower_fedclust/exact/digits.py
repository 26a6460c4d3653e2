"""A float as integer digits that can be added up exactly, for numbers whose size is not known in advance.

A sum on a grid needs a unit that is chosen before the numbers are known. The digits of a float to the base 2^32, over
the whole range of floats, need none: adding the digits over clients adds the numbers.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: The least significant digit counts multiples of 2^-1152: fine enough for the least float, 2^-1074, with 53 bits.
N_FRACTION_BITS = 1152

#: The number of digits, of 32 bits each: enough for the largest float, which is below 2^1024.
N_DIGITS = (N_FRACTION_BITS + 1024) // 32


def digits_of(value: float) -> Integers:
    """Return the digits of a number, the least significant first; all are negative (or 0) for a negative number.

    A number that is not finite counts as the largest float.
    """
    if not math.isfinite(value):
        value = sys.float_info.max
    mantissa, exponent = math.frexp(abs(value))
    whole = int(math.ldexp(mantissa, 53)) << (exponent - 53 + N_FRACTION_BITS)
    digits = np.frombuffer(whole.to_bytes(4 * N_DIGITS, "little"), dtype="<u4").astype(np.int64)
    return -digits if value < 0 else digits


def value_of_digits(digits: Floats | Integers) -> float:
    """Return the number that digits, or sums of digits, stand for, rounded once; infinite if it is too large."""
    whole = sum(int(digit) << (32 * position) for position, digit in enumerate(digits))
    try:
        return whole / (1 << N_FRACTION_BITS)
    except OverflowError:
        return math.inf if whole > 0 else -math.inf
