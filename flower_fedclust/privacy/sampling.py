"""Noise for integers: Gaussian and Laplace noise rounded to integers, without holes and alike on every processor.

An integer plus rounded noise is the integer plus noise, rounded: what is released is computed from what the continuous
mechanism would release, so that whatever is proved of that holds. The samplers draw the rounded distributions to a
total-variation distance that :func:`~flower_fedclust.privacy.shares.total_variation` states: 2^-84 an entry for a
Gaussian variable, 2^-120 for a Laplace variable.

Every choice compares random words with a probability that is known to 128 bits, from :mod:`decimal`. A first word of 64
bits settles it unless it equals the first 64 bits of the probability; then a second word does. Where a floating-point
estimate stands for the probability, it decides only if the word is 2^-40 away from it, thousands of times its error;
otherwise decimal decides. So the same words give the same integers on every machine.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Sequence
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

#: Noise wider than this, in units, would not leave room in an int64.
LARGEST_SCALE = 2.0**55

#: In which probabilities are computed.
CONTEXT = Context(prec=80, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])

#: How near to a probability its estimate does not decide.
MARGIN = 2.0**-40

#: Entries drawn at a time, so that their words stay in a processor's cache. It orders the words, and so belongs to what
#: a seed gives.
BLOCK = 2048


class NoiseSource(Protocol):
    """Gives independent uniform random words of 64 bits."""

    def words(self, size: int) -> Words:
        """Return ``size`` words."""
        ...


class OperatingSystemNoise:
    """The operating system's cryptographic generator: nobody can repeat what it gives.

    Many words are the key stream of ChaCha20 under a fresh key of 256 bits from that generator, which takes a tenth of
    the time (and is what Linux itself does). No key is kept, so that none can be shared by processes that fork.
    """

    def words(self, size: int) -> Words:
        """Return ``size`` words."""
        n_bytes = 8 * size
        if n_bytes <= 4096:
            stream = os.urandom(n_bytes)
        else:
            cipher = Cipher(algorithms.ChaCha20(os.urandom(32), bytes(16)), mode=None)
            stream = cipher.encryptor().update(bytes(n_bytes))
        return np.frombuffer(stream, dtype="<u8").astype(np.uint64, copy=False)


class SeededNoise:
    """A generator that whoever knows the seed can repeat: for experiments, where nobody has to be protected.

    Parameters
    ----------
    seed : sequence of int
        The seed of the run, then what tells this use from every other (who, round).
    """

    def __init__(self, seed: Sequence[int]) -> None:
        self._seed = list(seed)

    @cached_property
    def _generator(self) -> np.random.PCG64:
        """Made when the first word is drawn: most messages draw none."""
        return np.random.PCG64(self._seed)

    def words(self, size: int) -> Words:
        """Return the next ``size`` words."""
        return np.asarray(self._generator.random_raw(size), dtype=np.uint64)


# Choices to 128 bits.


class Table:
    """Numbers in [0, 1), as integers of 128 bits and as their first words."""

    def __init__(self, probabilities: Sequence[Decimal]) -> None:
        self.thresholds = [_fixed(probability) for probability in probabilities]
        self.first = np.array([threshold >> 64 for threshold in self.thresholds], dtype=np.uint64)
        self.second = np.array([threshold & (2**64 - 1) for threshold in self.thresholds], dtype=np.uint64)

    @classmethod
    def cumulative(cls, weights: Sequence[Decimal]) -> Table:
        """Return the table from which :func:`chosen` draws an index in proportion to the weights."""
        total, sums = sum(weights, Decimal(0)), [Decimal(0)]
        for weight in weights[:-1]:
            sums.append(sums[-1] + weight)
        return cls([part / total for part in sums[1:]])


def _fixed(probability: Decimal) -> int:
    return min(max(int((probability * 2**128).to_integral_value(ROUND_HALF_EVEN)), 0), 2**128 - 1)


def _happened(table: Table, n_trials: int, source: NoiseSource) -> NDArray[np.bool_]:
    """Return, of shape (n_trials, n_probabilities), which events of these probabilities happen."""
    words = source.words(n_trials * len(table.first)).reshape(n_trials, -1)
    happened: NDArray[np.bool_] = words < table.first
    tied = words == table.first
    if tied.any():
        happened[tied] = source.words(int(tied.sum())) < table.second[np.nonzero(tied)[1]]
    return happened


def chosen(table: Table, words: Words, source: NoiseSource) -> Integers:
    """Return one index a word: how many of the table's numbers are not above it."""
    indices = np.searchsorted(table.first, words, side="right").astype(np.int64, copy=False)
    if len(table.first):
        tied = np.flatnonzero((indices > 0) & (words == table.first[indices - 1]))
        if tied.size:
            pairs = zip(words[tied].tolist(), source.words(tied.size).tolist(), strict=True)
            indices[tied] = [bisect_right(table.thresholds, (first << 64) | second) for first, second in pairs]
    return indices


def is_below(word: int, probability: Decimal, source: NoiseSource) -> bool:
    """Tell whether a word, and another where that does not settle it, lies below a probability."""
    first, second = divmod(_fixed(probability), 2**64)
    return word < first if word != first else int(source.words(1)[0]) < second


def as_decimal(number: Fraction) -> Decimal:
    """Return a quotient of integers to the digits of the context."""
    return Decimal(number.numerator) / Decimal(number.denominator)


def check_scale(scale: float) -> None:
    """Raise a ValueError unless noise of this scale, in units, fits into an int64."""
    if not 0 <= scale <= LARGEST_SCALE:
        raise ValueError(f"the noise is {scale:g} units wide; it must be between 0 and 2^55: choose a coarser unit.")


def with_signs(magnitudes: Integers, negative: NDArray[np.bool_]) -> Integers:
    """Return the magnitudes, negative where it is said."""
    with_sign: Integers = np.where(negative, -magnitudes, magnitudes)
    return with_sign


# Laplace.


@lru_cache(maxsize=64)
def _laplace_table(scale: float) -> Table:
    """Return the probabilities of each binary digit, of not 0, and of the sign."""
    with localcontext(CONTEXT):
        rate = as_decimal(1 / Fraction(scale))
        probabilities = []
        for digit in range(62):
            if 2**digit * rate > 90:  # what follows is 1 with less than 2^-129 in all
                break
            probabilities.append(1 / (1 + (2**digit * rate).exp()))
        return Table([*probabilities, (-rate / 2).exp(), Decimal("0.5")])


def sample_laplace(scale: float, size: int, source: NoiseSource) -> Integers:
    """Draw Laplace variables, each rounded to the nearest integer.

    The rounded variable X is 0 with probability ``1 - exp(-1 / (2 b))``; otherwise |X| - 1 is geometric with ratio
    ``exp(-1 / b)``, and its binary digits are independent: the i-th is 1 with probability ``1 / (1 + exp(2^i / b))``.
    So a variable is a few dozen coins, and nothing is computed in floating point.

    Parameters
    ----------
    scale : float
        b, in units: the Laplace parameter of the variable that is rounded. 0 gives zeros and draws nothing.
    size : int
    source : NoiseSource

    Returns
    -------
    ndarray of shape (size,), int64

    Raises
    ------
    ValueError
        If the scale is negative, or above 2^55.
    """
    check_scale(scale)
    drawn = np.zeros(size, dtype=np.int64)
    if scale == 0:
        return drawn
    table = _laplace_table(float(scale))
    for start in range(0, size, BLOCK):
        part = drawn[start : start + BLOCK]
        happened = _happened(table, len(part), source)
        bits = np.zeros((len(part), 64), dtype=np.uint8)
        bits[:, : happened.shape[1] - 2] = happened[:, :-2]
        packed = np.packbits(bits, axis=1, bitorder="little").view("<i8")[:, 0]
        part[:] = with_signs((packed + 1) * happened[:, -2], happened[:, -1])
    return drawn


# Gaussian.


@lru_cache(maxsize=64)
def _gaussian_table(fine_scale: float, width: int) -> Table:
    """Return the table of the intervals [j 2^width, (j + 1) 2^width), as heavy as if each kept its first density."""
    n_intervals = math.ceil(14 * fine_scale / 2**width)  # beyond 14 deviations there is less than 2^-140
    with localcontext(CONTEXT):
        step = as_decimal(-(Fraction(2) ** (2 * width)) / (2 * Fraction(fine_scale) ** 2))
        ratio, change, weights = step.exp(), (2 * step).exp(), [Decimal(1)]
        for _ in range(n_intervals - 1):  # exp(step j^2), by exp(step (2 j + 1))
            weights.append(weights[-1] * ratio)
            ratio *= change
        return Table.cumulative(weights)


def sample_gaussian(scale: float, size: int, source: NoiseSource) -> Integers:
    """Draw Gaussian variables, each rounded to the nearest integer.

    On a finer grid, where the standard deviation s is at least 2^40, |Z| has the density of the normal distribution in
    the middle of each cell [m, m + 1): a choice of one of some intervals, a uniform point in it, and a rejection with
    probability 1 - exp(-((m + 1/2)^2 - a^2) / (2 s^2)), where a is the interval's left end. By the midpoint rule the
    cells' probabilities differ from the normal distribution's by 0.04 / s^2 in total variation, below 2^-84. The cells
    are then rounded to whole units, which is what rounding the normal variable itself gives.

    Parameters
    ----------
    scale : float
        The standard deviation of the variable that is rounded, in units. 0 gives zeros and draws nothing.
    size : int
    source : NoiseSource

    Returns
    -------
    ndarray of shape (size,), int64

    Raises
    ------
    ValueError
        If the scale is negative, or above 2^55.
    """
    check_scale(scale)
    exponent = math.frexp(scale)[1]  # scale in [2^(exponent - 1), 2^exponent)
    finer = max(41 - exponent, 1)
    if scale == 0 or finer > 62:  # a unit is then more than 2^20 deviations
        return np.zeros(size, dtype=np.int64)
    fine_scale, width = math.ldexp(scale, finer), exponent + finer - 3
    table = _gaussian_table(fine_scale, width)
    drawn, n_drawn = np.empty(size, dtype=np.int64), 0
    while n_drawn < size:
        wanted = min(size - n_drawn, 8 * BLOCK)
        found = _gaussian_candidates(table, fine_scale, width, wanted + wanted // 8 + 8, source)[:wanted]
        drawn[n_drawn : n_drawn + len(found)] = found
        n_drawn += len(found)
    magnitudes = (np.abs(drawn) + 2 ** (finer - 1) - (drawn < 0)) >> finer
    return with_signs(magnitudes, drawn < 0)


def _gaussian_candidates(table: Table, fine_scale: float, width: int, size: int, source: NoiseSource) -> Integers:
    """Return those of so many candidates that are accepted: m for the cell [m, m + 1), ``-m - 1`` for [-m - 1, -m)."""
    choice, place, acceptance = source.words(3 * size).reshape(3, size)
    left = chosen(table, choice, source) << width
    offset = (place & np.uint64(2**width - 1)).astype(np.int64)
    middle = offset + 0.5
    estimate = np.exp(middle * (2.0 * left + middle) * (-0.5 / fine_scale**2))
    uniform = acceptance * 2.0**-64
    accepted = uniform < estimate
    for index in np.flatnonzero(np.abs(uniform - estimate) < MARGIN):
        start, cell = int(left[index]), int(left[index]) + int(offset[index])
        with localcontext(CONTEXT):
            exponent = Fraction(4 * start**2 - (2 * cell + 1) ** 2) / (8 * Fraction(fine_scale) ** 2)
            accepted[index] = is_below(int(acceptance[index]), as_decimal(exponent).exp(), source)
    # Of the complement of m the sign is the variable's, whatever m is.
    candidates: Integers = (left + offset) ^ -(place >> np.uint64(63)).astype(np.int64)
    kept: Integers = candidates[accepted]
    return kept
