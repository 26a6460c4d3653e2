"""Gaussian and Laplace noise as integers: no integer is impossible, and every processor draws the same.

An integer plus rounded noise equals the integer plus noise, rounded. So the release is a function of what the
continuous mechanism would release, and its guarantee holds. :func:`total_variation` bounds how far the samplers are
from the rounded distributions: 2^-84 per entry for Gaussian noise, 2^-120 for Laplace noise.

Every choice compares a random word with a probability that is known to 128 bits (from :mod:`decimal`). The first 64-bit
word decides unless it equals the probability's first 64 bits; then a second word decides. A floating-point estimate of
a probability decides only if the word is at least 2^-40 away from it, thousands of times its error. Otherwise decimal
decides. So the same words give the same integers on every machine.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Sequence
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.lemmas import proven
from flower_fedclust.exact.sums import is_off_diagonal
from flower_fedclust.privacy.releases import Mechanism, Release

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

#: An array that a client may send: integers in a unit, or plain numbers, which are neither summed nor given noise.
Sendable: TypeAlias = GridArray | NDArray[Any]

#: Noise wider than this, in units, would leave no room in an int64.
LARGEST_SCALE = 2.0**55

#: Noise is at least 2^10 units wide, times the root of the number of shares, if the unit can be made that fine.
SCALE_BITS = 10

#: The unit is made finer by at most 20 bits: integers of 2^43 still fit into an int64.
MOST_REFINED = 20

#: A share of Gaussian noise is at least 4 units wide, so that the sum of rounded shares is as good as a rounded sum.
LEAST_SHARE = 4.0

#: Precision in which probabilities are computed.
CONTEXT = Context(prec=80, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])

#: A floating-point estimate of a probability decides only if the random word is farther from it than this.
MARGIN = 2.0**-40

#: Entries drawn at a time, so that their words fit a processor's cache. A seed's results depend on it.
BLOCK = 2048


# Random words.


class NoiseSource(Protocol):
    """A source of independent uniform random 64-bit words."""

    def words(self, size: int) -> Words:
        """Return ``size`` words."""
        ...


class OperatingSystemNoise:
    """The operating system's cryptographic generator, which nobody can repeat.

    Many words come from the ChaCha20 key stream under a fresh 256-bit key from that generator. This takes a tenth of
    the time, and Linux itself does the same. No key is kept, so forked processes cannot share one.
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
    """A generator that anybody who knows the seed can repeat: for experiments that protect nobody.

    The seed is the run's seed, followed by numbers for the party and the round, so that no two uses have the same.
    """

    def __init__(self, seed: Sequence[int]) -> None:
        self._generator = np.random.PCG64(list(seed))

    def words(self, size: int) -> Words:
        """Return the next ``size`` words."""
        return np.asarray(self._generator.random_raw(size), dtype=np.uint64)


# Choices to 128 bits.


class Thresholds:
    """Probabilities in [0, 1), as 128-bit integers and as their first and second words."""

    def __init__(self, probabilities: Sequence[Decimal]) -> None:
        self.thresholds = [_fixed(probability) for probability in probabilities]
        self.first = np.array([threshold >> 64 for threshold in self.thresholds], dtype=np.uint64)
        self.second = np.array(
            [threshold & (2**64 - 1) for threshold in self.thresholds], dtype=np.uint64
        )

    @classmethod
    def cumulative(cls, weights: Sequence[Decimal]) -> Thresholds:
        """Return the thresholds from which :func:`choose` draws an index in proportion to the weights."""
        total, sums = sum(weights, Decimal(0)), [Decimal(0)]
        for weight in weights[:-1]:
            sums.append(sums[-1] + weight)
        return cls([part / total for part in sums[1:]])


def _fixed(probability: Decimal) -> int:
    return min(max(int((probability * 2**128).to_integral_value(ROUND_HALF_EVEN)), 0), 2**128 - 1)


def _toss(table: Thresholds, n_trials: int, source: NoiseSource) -> NDArray[np.bool_]:
    """Toss a coin for each probability of the table, ``n_trials`` times; shape (n_trials, n_probabilities)."""
    words = source.words(n_trials * len(table.first)).reshape(n_trials, -1)
    heads: NDArray[np.bool_] = words < table.first
    tied = words == table.first
    if tied.any():
        heads[tied] = source.words(int(tied.sum())) < table.second[np.nonzero(tied)[1]]
    return heads


def choose(table: Thresholds, words: Words, source: NoiseSource) -> Integers:
    """Return one index for each word: how many of the table's probabilities are not above the word."""
    indices = np.searchsorted(table.first, words, side="right").astype(np.int64, copy=False)
    if len(table.first):
        tied = np.flatnonzero((indices > 0) & (words == table.first[indices - 1]))
        if tied.size:
            pairs = zip(words[tied].tolist(), source.words(tied.size).tolist(), strict=True)
            indices[tied] = [
                bisect_right(table.thresholds, (first << 64) | second) for first, second in pairs
            ]
    return indices


def is_below(word: int, probability: Decimal, source: NoiseSource) -> bool:
    """Return whether a word lies below a probability; a second word decides a tie."""
    first, second = divmod(_fixed(probability), 2**64)
    return word < first if word != first else int(source.words(1)[0]) < second


def _decimal(number: Fraction) -> Decimal:
    return Decimal(number.numerator) / Decimal(number.denominator)


def _check_scale(scale: float) -> None:
    if not 0 <= scale <= LARGEST_SCALE:
        raise ValueError(
            f"the noise is {scale:g} units wide; it must be between 0 and 2^55: choose a coarser unit."
        )


# Samplers of rounded noise. Scales are in units.


@lru_cache(maxsize=64)
def _laplace_table(scale: float) -> Thresholds:
    """Return probabilities: that each binary digit is 1, that the variable is not 0, and that it is negative."""
    with localcontext(CONTEXT):
        rate = _decimal(1 / Fraction(scale))
        probabilities = []
        for digit in range(62):
            # The remaining digits are 1 with probability below 2^-129 in total.
            if 2**digit * rate > 90:
                break
            probabilities.append(1 / (1 + (2**digit * rate).exp()))
        return Thresholds([*probabilities, (-rate / 2).exp(), Decimal("0.5")])


def sample_laplace(scale: float, size: int, source: NoiseSource) -> Integers:
    """Draw Laplace variables of parameter b = ``scale``, each rounded to the nearest integer.

    The rounded variable X is 0 with probability ``1 - exp(-1 / (2 b))``. Otherwise |X| - 1 is geometric with ratio
    ``exp(-1 / b)``, and its binary digits are independent: digit i is 1 with probability ``1 / (1 + exp(2^i / b))``.
    So a variable takes a few dozen coins and no floating point. A scale of 0 gives zeros and draws nothing.
    """
    _check_scale(scale)
    drawn = np.zeros(size, dtype=np.int64)
    if scale == 0:
        return drawn
    table = _laplace_table(float(scale))
    for start in range(0, size, BLOCK):
        part = drawn[start : start + BLOCK]
        heads = _toss(table, len(part), source)
        bits = np.zeros((len(part), 64), dtype=np.uint8)
        bits[:, : heads.shape[1] - 2] = heads[:, :-2]
        packed = np.packbits(bits, axis=1, bitorder="little").view("<i8")[:, 0]
        magnitudes = (packed + 1) * heads[:, -2]
        part[:] = np.where(heads[:, -1], -magnitudes, magnitudes)
    return drawn


@lru_cache(maxsize=64)
def _gaussian_table(fine_scale: float, width: int) -> Thresholds:
    """Return the table of the intervals [j 2^width, (j + 1) 2^width), each weighted by its density at the left end."""
    # A probability below 2^-140 lies beyond 14 standard deviations.
    n_intervals = math.ceil(14 * fine_scale / 2**width)
    with localcontext(CONTEXT):
        step = _decimal(-(Fraction(2) ** (2 * width)) / (2 * Fraction(fine_scale) ** 2))
        ratio, change, weights = step.exp(), (2 * step).exp(), [Decimal(1)]
        for _ in range(n_intervals - 1):  # exp(step j^2), by exp(step (2 j + 1))
            weights.append(weights[-1] * ratio)
            ratio *= change
        return Thresholds.cumulative(weights)


def sample_gaussian(scale: float, size: int, source: NoiseSource) -> Integers:
    """Draw Gaussian variables of standard deviation ``scale``, each rounded to the nearest integer.

    On a finer grid, where the deviation s is at least 2^40, |Z| takes the normal density at the middle of each cell [m,
    m + 1): choose an interval, then a uniform point in it, and reject with probability 1 - exp(-((m + 1/2)^2 - a^2) /
    (2 s^2)), where a is the interval's left end. By the midpoint rule, the cells' probabilities differ from the normal
    distribution's by 0.04 / s^2 in total variation, below 2^-84. Rounding the cells to whole units is the same as
    rounding the normal variable itself.
    """
    _check_scale(scale)
    exponent = math.frexp(scale)[1]  # scale in [2^(exponent - 1), 2^exponent)
    finer = max(41 - exponent, 1)
    # With finer > 62, a unit is wider than 2^20 standard deviations, so that all noise rounds to 0.
    if scale == 0 or finer > 62:
        return np.zeros(size, dtype=np.int64)
    fine_scale, width = math.ldexp(scale, finer), exponent + finer - 3
    table = _gaussian_table(fine_scale, width)
    drawn, n_drawn = np.empty(size, dtype=np.int64), 0
    while n_drawn < size:
        wanted = min(size - n_drawn, 8 * BLOCK)
        found = _gaussian_candidates(table, fine_scale, width, wanted + wanted // 8 + 8, source)[
            :wanted
        ]
        drawn[n_drawn : n_drawn + len(found)] = found
        n_drawn += len(found)
    magnitudes = (np.abs(drawn) + 2 ** (finer - 1) - (drawn < 0)) >> finer
    signed: Integers = np.where(drawn < 0, -magnitudes, magnitudes)
    return signed


def _gaussian_candidates(
    table: Thresholds, fine_scale: float, width: int, size: int, source: NoiseSource
) -> Integers:
    """Return the accepted ones of ``size`` candidates: m for the cell [m, m + 1), ``-m - 1`` for [-m - 1, -m)."""
    choice, place, acceptance = source.words(3 * size).reshape(3, size)
    left = choose(table, choice, source) << width
    offset = (place & np.uint64(2**width - 1)).astype(np.int64)
    middle = offset + 0.5
    estimate = np.exp(middle * (2.0 * left + middle) * (-0.5 / fine_scale**2))
    uniform = acceptance * 2.0**-64
    accepted = uniform < estimate
    for index in np.flatnonzero(np.abs(uniform - estimate) < MARGIN):
        start, cell = int(left[index]), int(left[index]) + int(offset[index])
        with localcontext(CONTEXT):
            exponent = Fraction(4 * start**2 - (2 * cell + 1) ** 2) / (
                8 * Fraction(fine_scale) ** 2
            )
            accepted[index] = is_below(int(acceptance[index]), _decimal(exponent).exp(), source)
    # A negative candidate is the complement of m, so that cell 0 has a sign, too.
    candidates: Integers = (left + offset) ^ -(place >> np.uint64(63)).astype(np.int64)
    kept: Integers = candidates[accepted]
    return kept


@proven("6")
def sample_gaussian_share(scale: float, n_shares: int, size: int, source: NoiseSource) -> Integers:
    """Draw one of n independent shares of Gaussian noise: rounded, of deviation ``scale / sqrt(n)``.

    Up to the distance that :func:`total_variation` states, the sum of n shares is ``round(G + V)``, where G is normal
    with the whole deviation, and V is independent of it: the sum of n - 1 uniform variables on [-1/2, 1/2]. So it is a
    function of the continuous mechanism's output, and keeps its guarantee.
    """
    if n_shares == 1 or scale == 0:
        return sample_gaussian(scale, size, source)
    _check_share(scale, n_shares)
    # The quotient may have been rounded down, so it is made slightly larger: no share may be too narrow.
    return sample_gaussian(scale / math.sqrt(n_shares) * (1 + 2.0**-50), size, source)


def _check_share(scale: float, n_shares: int) -> None:
    if scale < LEAST_SHARE * math.sqrt(n_shares):
        raise ValueError(
            f"{n_shares} shares of Gaussian noise of {scale:g} units are each less than {LEAST_SHARE:g} units wide; "
            "choose a finer unit."
        )


@lru_cache(maxsize=64)
def _share_tables(scale: float, n_shares: int) -> tuple[Thresholds, Thresholds, Thresholds]:
    """Return the tables from which :func:`sample_laplace_share` draws a share.

    They are for the number of jumps, for the number of binary digits of a jump's length, and for the step W.
    """
    with localcontext(CONTEXT):
        rate = _decimal(1 / Fraction(scale))
        ratio = (-rate).exp()
        mean = -2 * (1 - ratio).ln() / n_shares
        numbers = [(-mean).exp()]
        while len(numbers) < mean or numbers[-1] > Decimal(2) ** -140:
            numbers.append(numbers[-1] * mean / len(numbers))
        lengths = [(-rate).exp()]
        while len(lengths) < 62 and lengths[-1] > Decimal(2) ** -140:
            lengths.append((-(2 ** len(lengths)) * rate).exp())
        root = (rate / 4).exp()
        step = 1 / (2 * (root + 1 / root) ** 2)
        return (
            Thresholds.cumulative(numbers),
            Thresholds.cumulative(lengths),
            Thresholds([step, 2 * step]),
        )


@proven("5")
def sample_laplace_share(scale: float, n_shares: int, size: int, source: NoiseSource) -> Integers:
    """Draw one of n independent shares of Laplace noise of parameter b = ``scale``.

    A share is the difference of two Polya variables of shape 1 / n, plus a step W. The n differences add up to the
    discrete Laplace variable of ratio ``exp(-1 / b)``. A discrete Laplace variable plus W, which is 1 or -1 with
    probability ``w = 1 / (8 cosh(1 / (4 b))^2)`` each, is exactly the rounded Laplace variable. So n shares add up to a
    rounded Laplace variable plus n - 1 independent steps, which take nothing away.

    Proof, with ``t = 1 / (2 b)``: for k other than 0 the rounded variable has probability ``exp(-|k| / b) sinh(t)`` and
    the discrete one ``exp(-|k| / b) tanh(t)``. With the steps the second becomes
    ``exp(-|k| / b) tanh(t) (1 - 2 w + 2 w cosh(2 t))``, which equals the first for
    ``w = (cosh(t) - 1) / (2 cosh(2 t) - 2) = 1 / (8 cosh(t / 2)^2)``. Then the probabilities of 0 are equal, too.

    A difference of Polya variables is a sum of jumps to either side. Their number is Poisson with mean
    ``2 ln(1 / (1 - q)) / n``, and a jump has length k with probability proportional to ``q^k / k``.
    """
    if n_shares == 1 or scale == 0:
        return sample_laplace(scale, size, source)
    _check_scale(scale)
    numbers, lengths, steps = _share_tables(float(scale), n_shares)
    drawn = np.empty(size, dtype=np.int64)
    for start in range(0, size, BLOCK):
        part = drawn[start : start + BLOCK]
        first, last = source.words(2 * len(part)).reshape(2, -1)
        ends = np.cumsum(choose(numbers, first, source))
        totals = np.concatenate(
            [[0], np.cumsum(_jumps(lengths, float(scale), int(ends[-1]), source))]
        )
        part[:] = (
            np.diff(totals[ends], prepend=0) + np.array([-1, 1, 0])[choose(steps, last, source)]
        )
    return drawn


def _jumps(lengths: Thresholds, scale: float, size: int, source: NoiseSource) -> Integers:
    """Draw nonzero integers whose magnitude k has a probability proportional to ``exp(-k / scale) / k``.

    Choose how many binary digits k has, then choose the digits uniformly, then accept or reject k.
    """
    drawn, n_drawn = np.empty(size, dtype=np.int64), 0
    while n_drawn < size:
        wanted = size - n_drawn
        choice, place, acceptance = source.words(3 * (wanted + wanted // 2 + 8)).reshape(3, -1)
        power = np.left_shift(1, choose(lengths, choice, source))
        offset = place.astype(np.int64) & (power - 1)
        estimate = power / (power + offset) * np.exp(offset / -scale)
        uniform = acceptance * 2.0**-64
        accepted = uniform < estimate
        for index in np.flatnonzero(np.abs(uniform - estimate) < MARGIN):
            whole, more = int(power[index]), int(offset[index])
            with localcontext(CONTEXT):
                probability = (
                    Decimal(whole) / (whole + more) * _decimal(-more / Fraction(scale)).exp()
                )
                accepted[index] = is_below(int(acceptance[index]), probability, source)
        magnitudes = power + offset
        found = np.where(place >= 2**63, -magnitudes, magnitudes)[accepted][:wanted]
        drawn[n_drawn : n_drawn + len(found)] = found
        n_drawn += len(found)
    return drawn


@proven("4", "6")
def total_variation(mechanism: Mechanism, scale: float, n_shares: int = 1) -> float:
    """Return a bound on the total-variation distance of an entry's drawn noise from the noise that is accounted for.

    The bound is for the sum of all shares. Distances add up over entries and over releases.

    Laplace: 64 coins, each to 2^-128, and the digits left out; a share has at most 80 jumps on average, each to 2^-120.
    Gaussian: the midpoint rule, 0.0404 / s^2 at s >= 2^40; the tail beyond 14 deviations; 112 thresholds to 2^-128
    each.

    Sums of Gaussian shares (lemma 6). Compare two integers: A, the sum of n Gaussian variables of deviation t, each
    rounded; and B = round(G + V), where G is Gaussian of deviation ``t sqrt(n)``, and V is the sum of n - 1 independent
    uniform variables on [-1/2, 1/2].

    1. Let ``g(x) = exp(-t^2 x^2 / 2) sin(x / 2) / (x / 2)``. By Poisson's summation, the characteristic function of A
       is ``(sum_j g(x + 2 pi j))^n``, and that of B is ``sum_j g(x + 2 pi j)^n``, with j over all integers.
    2. Multiplied out, the first is a sum over all tuples (j_1, ..., j_n) of integers. The second is the sum over the
       tuples with equal entries. So their difference is the sum over all other tuples.
    3. Integrate the difference over x in [-pi, pi]. A tuple and all its shifts by an integer together give an integral
       over the whole line. It is at most ``c exp(-2 pi^2 t^2 v)``, where ``c = sqrt(2 pi / n) / t``, and v is the sum
       of the squares of the j_i about their mean.
    4. Of these shifts, take one whose mean is within 1/2 of 0. There v is at least ``sum_i j_i^2 / 4``, because n times
       the squared mean is at most ``|sum_i j_i| / 2``. So the sum over all classes of shifts is at most
       ``c ((1 + r)^n - 1)``, with ``r = 2.1 exp(-pi^2 t^2 / 2)``.
    5. The probabilities of one integer under A and under B differ by at most 1 / (2 pi) of this. The distance is half
       of that for each integer up to 14 deviations of G and n / 2 more, to both sides, plus the tail beyond.
    """
    _check_scale(scale)
    if scale == 0:
        return 0.0
    if mechanism == "laplace":
        return 2.0**-120 if n_shares == 1 else n_shares * 2.0**-112
    of_sampler = n_shares * 2.0**-84
    if n_shares == 1:
        return of_sampler
    _check_share(scale, n_shares)
    share = scale / math.sqrt(n_shares)
    aliases = math.expm1(n_shares * math.log1p(2.1 * math.exp(-((math.pi * share) ** 2) / 2)))
    one_integer = aliases / (math.sqrt(2 * math.pi) * scale)
    return of_sampler + (14 * scale + n_shares / 2 + 1) * one_integer + 2.0**-138


# Noise for arrays.


def noise_exponent(release: Release, n_shares: int, exponent: int) -> int:
    """Return the exponent of the unit for noise: the array's own (``exponent``), or a finer one for narrow noise."""
    wanted = math.frexp(release.scale)[1] - 1 - SCALE_BITS - math.ceil(math.log2(n_shares) / 2)
    return min(exponent, max(wanted, exponent - MOST_REFINED))


def add_noise(
    arrays: Sequence[Sendable],
    releases: Sequence[Release | None],
    source: NoiseSource,
    *,
    n_shares: int = 1,
) -> list[Sendable]:
    """Return the arrays with the noise of their releases, or with one of ``n_shares`` shares of it."""
    return [
        array
        if release is None or release.scale == 0
        else _with_noise(array, release, source, n_shares)
        for array, release in zip(arrays, releases, strict=True)
    ]


def on_grid(array: Sendable) -> GridArray:
    """Return an array as integers in a unit; plain integers and booleans get the unit 1, floats raise a TypeError.

    Floats with noise would not be private: which of them can occur depends on the value under the noise, and how values
    are rounded before the noise depends on the machine.
    """
    if isinstance(array, GridArray):
        return array
    if array.dtype.kind not in "iub":
        raise TypeError(
            "an array of floats is to be summed or given noise; the client's method must return GridArray."
        )
    return GridArray(array)


def _with_noise(array: Sendable, release: Release, source: NoiseSource, n_shares: int) -> GridArray:
    array = on_grid(array)
    fine = array.refined(noise_exponent(release, n_shares, array.exponent))
    # Never narrower than declared: the product that gives the scale may have been rounded down.
    scale = math.ldexp(math.nextafter(release.scale, math.inf), -fine.exponent)
    noise = np.zeros(fine.integers.size, dtype=np.int64)
    if release.triangle:
        off = is_off_diagonal((math.isqrt(8 * noise.size + 1) - 1) // 2)
        narrow = math.nextafter(scale * math.sqrt(0.5), math.inf)
        noise[~off] = sample_gaussian_share(scale, n_shares, int((~off).sum()), source)
        noise[off] = sample_gaussian_share(narrow, n_shares, int(off.sum()), source)
    else:
        draw = sample_gaussian_share if release.mechanism == "gaussian" else sample_laplace_share
        noise = draw(scale, n_shares, noise.size, source)
    return GridArray(fine.integers + noise.reshape(fine.integers.shape), fine.exponent)


def variation_of_noise(release: Release, n_entries: int, n_shares: int, exponent: int) -> float:
    """Return a bound on the total-variation distance of an array's noise from the noise that is accounted for."""
    if release.scale == 0:
        return 0.0
    scale = math.ldexp(release.scale, -exponent) * (math.sqrt(0.5) if release.triangle else 1.0)
    return n_entries * total_variation(release.mechanism, scale, n_shares)


def add_relative_noise(array: Floats, relative_noise: float, source: NoiseSource) -> Floats:
    """Return an array with Gaussian noise whose deviation is ``relative_noise`` times the deviation of all entries.

    For experiments as in the papers. It promises nothing: the scale depends on the array, whose entries have no bound.
    """
    scale = relative_noise * float(array.std())
    return array + noise_in_floats("gaussian", scale, array.shape, source) if scale > 0 else array


def noise_in_floats(
    mechanism: Mechanism, scale: float, shape: tuple[int, ...], source: NoiseSource
) -> Floats:
    """Return noise as floats, 40 bits finer than its scale: for experiments that promise nothing."""
    draw = sample_gaussian if mechanism == "gaussian" else sample_laplace
    noise: Floats = draw(2.0**40, math.prod(shape), source).reshape(shape) * np.float64(
        scale * 2.0**-40
    )
    return noise
