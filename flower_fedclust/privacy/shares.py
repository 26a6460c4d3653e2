"""Noise in shares, of which each of several clients draws one; and how far rounded noise is from what it stands for."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

import numpy as np

from flower_fedclust.privacy.releases import Mechanism
from flower_fedclust.privacy.sampling import (
    BLOCK,
    CONTEXT,
    MARGIN,
    Integers,
    NoiseSource,
    Table,
    as_decimal,
    check_scale,
    chosen,
    is_below,
    sample_gaussian,
    sample_laplace,
    with_signs,
)

#: The part of delta that is left for how far the noise that is drawn is from the noise that is accounted for.
SAMPLING_PART = 2.0**-10

#: A share of Gaussian noise is at least so many units wide, so that the sum of rounded shares is as good as rounded.
LEAST_SHARE = 4.0


def sample_gaussian_share(scale: float, n_shares: int, size: int, source: NoiseSource) -> Integers:
    """Draw one of n independent shares of Gaussian noise: rounded, of deviation ``scale / sqrt(n)``.

    The sum of n shares is, to the distance that :func:`total_variation` states, ``round(G + V)``, where G is normal
    with the whole deviation and V is independent of it, the sum of n - 1 uniform variables on [-1/2, 1/2]. An integer
    plus that is the rounded sum of the continuous mechanism's output and V, so that its guarantee holds.

    Parameters
    ----------
    scale : float
        The standard deviation of the whole, in units.
    n_shares : int
    size : int
    source : NoiseSource

    Returns
    -------
    ndarray of shape (size,), int64

    Raises
    ------
    ValueError
        If a share is less than 4 units wide: the sum of rounded shares would not be near to a rounded sum.
    """
    if n_shares == 1 or scale == 0:
        return sample_gaussian(scale, size, source)
    _check_share(scale, n_shares)
    # Away from zero, so that rounding the quotient makes no share too narrow.
    return sample_gaussian(scale / math.sqrt(n_shares) * (1 + 2.0**-50), size, source)


def _check_share(scale: float, n_shares: int) -> None:
    if scale < LEAST_SHARE * math.sqrt(n_shares):
        raise ValueError(
            f"Gaussian noise of {scale:g} units in {n_shares} shares leaves each less than {LEAST_SHARE:g} units wide; "
            "choose a finer unit."
        )


@lru_cache(maxsize=64)
def _share_tables(scale: float, n_shares: int) -> tuple[Table, Table, Table]:
    """Return the tables of the number of jumps, of the binary length of a jump, and of the last step."""
    with localcontext(CONTEXT):
        rate = as_decimal(1 / Fraction(scale))
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
        return Table.cumulative(numbers), Table.cumulative(lengths), Table([step, 2 * step])


def sample_laplace_share(scale: float, n_shares: int, size: int, source: NoiseSource) -> Integers:
    """Draw one of ``n_shares`` independent shares of Laplace noise.

    A share is the difference of two Polya variables of shape 1 / n_shares, plus a step W. The differences of n shares
    add up to the discrete Laplace variable, of ratio ``exp(-1 / b)``; and a discrete Laplace variable plus W, which is
    1 or -1 with probability ``1 / (8 cosh(1 / (4 b))^2)`` each, is the rounded Laplace variable, exactly. So the sum of
    n shares is a rounded Laplace variable plus n - 1 further steps, independent of it, which take nothing away.

    That it is: the rounded variable has the probability ``exp(-|k| / b) sinh(t)`` of k other than 0, where
    ``t = 1 / (2 b)``, and the discrete one ``exp(-|k| / b) tanh(t)``. With a probability w of either step the second
    becomes ``exp(-|k| / b) tanh(t) (1 - 2 w + 2 w cosh(2 t))``, which is the first for
    ``w = (cosh(t) - 1) / (2 cosh(2 t) - 2) = 1 / (8 cosh(t / 2)^2)``. What is left for 0 is then the same, too.

    A difference of Polya variables is a sum of a Poisson number of jumps, of mean ``2 ln(1 / (1 - q)) / n``, to either
    side, with lengths k of probability proportional to ``q^k / k``; and that is drawn as a choice of the binary length
    of k, uniform digits and a rejection.

    Parameters
    ----------
    scale : float
        b of the whole, in units.
    n_shares : int
    size : int
    source : NoiseSource

    Returns
    -------
    ndarray of shape (size,), int64
    """
    if n_shares == 1 or scale == 0:
        return sample_laplace(scale, size, source)
    check_scale(scale)
    numbers, lengths, steps = _share_tables(float(scale), n_shares)
    drawn = np.empty(size, dtype=np.int64)
    for start in range(0, size, BLOCK):
        part = drawn[start : start + BLOCK]
        first, last = source.words(2 * len(part)).reshape(2, -1)
        ends = np.cumsum(chosen(numbers, first, source))
        totals = np.concatenate([[0], np.cumsum(_jumps(lengths, float(scale), int(ends[-1]), source))])
        part[:] = np.diff(totals[ends], prepend=0) + np.array([-1, 1, 0])[chosen(steps, last, source)]
    return drawn


def _jumps(lengths: Table, scale: float, size: int, source: NoiseSource) -> Integers:
    """Draw integers, not 0, whose magnitude k has a probability proportional to ``exp(-k / scale) / k``."""
    drawn, n_drawn = np.empty(size, dtype=np.int64), 0
    while n_drawn < size:
        wanted = size - n_drawn
        choice, place, acceptance = source.words(3 * (wanted + wanted // 2 + 8)).reshape(3, -1)
        power = np.left_shift(1, chosen(lengths, choice, source))
        offset = place.astype(np.int64) & (power - 1)
        estimate = power / (power + offset) * np.exp(offset / -scale)
        uniform = acceptance * 2.0**-64
        accepted = uniform < estimate
        for index in np.flatnonzero(np.abs(uniform - estimate) < MARGIN):
            whole, more = int(power[index]), int(offset[index])
            with localcontext(CONTEXT):
                probability = Decimal(whole) / (whole + more) * as_decimal(-more / Fraction(scale)).exp()
                accepted[index] = is_below(int(acceptance[index]), probability, source)
        found = with_signs(power + offset, place >= 2**63)[accepted][:wanted]
        drawn[n_drawn : n_drawn + len(found)] = found
        n_drawn += len(found)
    return drawn


# What the samplers owe.


def total_variation(mechanism: Mechanism, scale: float, n_shares: int = 1) -> float:
    """Return a bound of the total-variation distance, for an entry, from noise that protects as the continuous does.

    Parameters
    ----------
    mechanism : "gaussian" or "laplace"
    scale : float
        Of the whole, in units.
    n_shares : int, default=1
        How many shares are added up.

    Returns
    -------
    float
        Of as many shares together. Distances add up over entries, and over releases.

    Raises
    ------
    ValueError
        If a Gaussian share would be less than 4 units wide.

    Notes
    -----
    Laplace: 64 coins, each to 2^-128, and the digits left out; a share has at most 80 jumps on average, each to 2^-120.
    Gaussian: the midpoint rule, 0.0404 / s^2 at s >= 2^40; what is beyond 14 deviations; 112 thresholds to 2^-128 each.

    The sum of n rounded Gaussian shares of deviation t: by Poisson's summation the characteristic function of each is
    ``sum_j g(x + 2 pi j)``, ``g(x) = exp(-t^2 x^2 / 2) sinc(x / 2)``. That of round(G + V) is
    ``sum_j g(x + 2 pi j)^n``. The difference of the n-th power and this is what tuples (j_1, ..., j_n) that are not
    constant add. Integrated over x in [-pi, pi], tuples equal up to a shift join to an integral over the line,
    ``sqrt(2 pi / n) / t * exp(-2 pi^2 t^2 v)`` at most, where v is the sum of squares about their mean; shifted so that
    the mean is within 1/2, v is at least ``sum j_i^2 / 4``. So their sum is at most ``(1 + r)^n - 1`` times the factor,
    ``r = 2.1 exp(-pi^2 t^2 / 2)``, and 1 / (2 pi) of that bounds the difference of the probabilities of one integer.
    The distance is half of that for each of the integers up to 14 deviations and n / 2 more, and what lies beyond.
    """
    check_scale(scale)
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


def delta_of_composition(delta: float) -> float:
    """Return the part of delta for which noise is calibrated: all but ``SAMPLING_PART`` of it."""
    return delta * (1.0 - SAMPLING_PART)


def delta_of_sampling(epsilon: float, variation: float) -> float:
    """Return what the sampler's distance adds to delta.

    Noise within total variation TV of noise that is (epsilon, delta')-private is
    (epsilon, delta' + (1 + e^epsilon) TV)-private.

    Parameters
    ----------
    epsilon : float
        Not negative.
    variation : float
        TV, over all entries of the run; from :func:`total_variation`.

    Returns
    -------
    float
        At most 1.
    """
    # As a logarithm, so that a large epsilon does not overflow.
    return math.exp(min(math.log(variation) + epsilon + math.log1p(math.exp(-epsilon)), 0.0)) if variation > 0 else 0.0
