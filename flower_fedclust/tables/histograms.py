"""Histograms of columns: which bin an entry is in, and what counts with noise say of ranges and quantiles.

Which bin an entry is in is computed from that entry alone, by operations that IEEE 754 rounds alike everywhere, and
counts are integers: a row is in one bin of each histogram, whatever stands beside it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.blocks import blocks

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Magnitudes are told apart from 2^-30 to 2^49; smaller ones are 0, and larger ones count as the largest.
LEAST_EXPONENT, LARGEST_EXPONENT = -30, 49
N_MAGNITUDES = LARGEST_EXPONENT - LEAST_EXPONENT

#: One bin for each magnitude of either sign, in ascending order, and one for 0.
N_EXPONENT_BINS = 2 * N_MAGNITUDES + 1

#: The part of the rows that lies beyond each of the bounds that are found.
PART_BEYOND = 0.005

#: Bounds are found by quantiles where noise allows a part beyond them of this or less.
LARGEST_PART_BEYOND = 0.05

#: Where so large a part of the rows is in one bin, of a range of many, they hardly differ once they are prepared.
CROWDED = 0.7

#: Entries that are counted at a time: they stay in a processor's cache.
BLOCK = 2**14

#: Bins of a histogram that has noise, and of one without.
N_BINS, N_BINS_WITHOUT_NOISE = 64, 1024


def exponent_counts(values: Floats) -> Integers:
    """Return how many entries have which sign and binary exponent; gaps count nowhere.

    Parameters
    ----------
    values : ndarray of shape (n_rows,)
        NaN for gaps.

    Returns
    -------
    ndarray of shape (N_EXPONENT_BINS,), int64
    """
    # The highest 12 bits of a float are its sign and its exponent, raised by 1023. An exponent of 0 has values below
    # all that are told apart; the largest has the gaps.
    bits = np.ascontiguousarray(values).view(np.uint64)
    codes = np.zeros(4096, dtype=np.int64)
    for part in blocks(len(values), 1, block_entries=BLOCK):
        codes += np.bincount((bits[part] >> np.uint64(52)).view(np.int64), minlength=4096)
    counts = np.zeros(N_EXPONENT_BINS, dtype=np.int64)
    exponents = np.arange(2047) - 1022  # 2^(e - 1) <= |value| < 2^e
    magnitudes = np.clip(exponents - LEAST_EXPONENT, 0, N_MAGNITUDES)
    np.add.at(counts, N_MAGNITUDES + magnitudes, codes[:2047])
    np.add.at(counts, N_MAGNITUDES - magnitudes, codes[2048:4095])
    return counts


def _edge(index: int) -> float:
    """Return the lower end of a bin of exponents."""
    magnitude = index - N_MAGNITUDES
    if magnitude > 0:
        return math.ldexp(1.0, LEAST_EXPONENT + magnitude - 1)
    return -math.ldexp(1.0, LEAST_EXPONENT - magnitude)


def range_of(counts: Floats, deviation: float) -> tuple[float, float] | None:
    """Return an interval that holds what stands out of the noise in counts of exponents.

    A bin stands out where noise alone would reach it in none of 20 histograms or fewer; the bins beside those that do
    are taken along while they are above two standard deviations.

    Parameters
    ----------
    counts : ndarray of shape (N_EXPONENT_BINS,)
    deviation : float
        Of the noise.

    Returns
    -------
    tuple of (float, float), or None
        None if nothing stands out.
    """
    high = deviation * math.sqrt(2 * math.log(20 * len(counts)))
    above = np.flatnonzero(counts > high)
    if len(above) == 0:
        return None
    first, last = int(above[0]), int(above[-1])
    while first > 0 and counts[first - 1] > 2 * deviation:
        first -= 1
    while last + 1 < len(counts) and counts[last + 1] > 2 * deviation:
        last += 1
    if first == last == N_MAGNITUDES:
        return (-1.0, 1.0)  # nothing but zeros
    return (0.0 if first == N_MAGNITUDES else _edge(first), 0.0 if last == N_MAGNITUDES else _edge(last + 1))


def bin_counts(values: Floats, low: float, high: float, n_bins: int) -> Integers:
    """Return how many entries are in which of equal parts of an interval, and last how many are missing.

    Parameters
    ----------
    values : ndarray of shape (n_rows,)
        What lies outside of the interval counts in its first or last part; NaN is missing.
    low, high : float
    n_bins : int

    Returns
    -------
    ndarray of shape (n_bins + 1,), int64
    """
    counts = np.zeros(n_bins + 1, dtype=np.int64)
    for part in blocks(len(values), 1, block_entries=BLOCK):
        counts += np.bincount(bins_of(values[part], low, high, n_bins), minlength=n_bins + 1)
    return counts


def bins_of(values: Floats, low: float, high: float, n_bins: int) -> NDArray[np.intp]:
    """Return in which of equal parts of an interval each entry is, from the entry alone; n_bins for what is missing."""
    scaled = _scaled(values, low, high, float(n_bins))
    np.clip(scaled, 0, n_bins - 1, out=scaled)
    if np.isnan(scaled.sum()):
        scaled[np.isnan(scaled)] = n_bins
    return scaled.astype(np.intp)


#: Sums of values: an entry of 1 is 2^13 units before it is squared, and 2^26 units of what is sent.
VALUE_BITS, POWER_BITS = 13, 26

#: Of other sums: an entry of 1 is 2^20 units.
SUM_BITS = 20


def sums_of_powers(values: Floats, low: float, high: float) -> Integers:
    """Return the sums of entries and of their squares, on the scale on which an interval is -1 to 1.

    Parameters
    ----------
    values : ndarray of shape (n_rows,)
        Clipped to the interval, and rounded to 2^-13 of it; NaN adds nothing.
    low, high : float

    Returns
    -------
    ndarray of shape (2,), int64
        In units of 2^-26. An entry adds at most 1 to each in magnitude.
    """
    sums = np.zeros(2, dtype=np.int64)
    for part in blocks(len(values), 1, block_entries=BLOCK):
        units = _scaled(values[part], low, high, 2.0 ** (VALUE_BITS + 1))
        units -= 2.0**VALUE_BITS
        np.rint(units, out=units)
        first = units.sum()
        if np.isnan(first):
            np.nan_to_num(units, copy=False)
            first = units.sum()
        # Sums of integers, below 2^40: exact in any order.
        sums += np.array([first * 2.0 ** (POWER_BITS - VALUE_BITS), units @ units]).astype(np.int64)
    return sums


def _scaled(values: Floats, low: float, high: float, length: float) -> Floats:
    """Return values, clipped to an interval, as places on a scale from 0 to a length."""
    scaled = np.clip(values, low, high)
    scaled -= low
    scaled *= length / (high - low)
    return np.minimum(scaled, length, out=scaled)  # a product may have been rounded up


def distribution(counts: Floats) -> tuple[Floats, float]:
    """Return the part of the entries up to each edge of the bins, and how many entries there are.

    With noise it is made to ascend: the nearest such sequence, in squares.

    Parameters
    ----------
    counts : ndarray of shape (n_bins,)
        With or without noise; without that of missing entries.

    Returns
    -------
    parts : ndarray of shape (n_bins + 1,)
        From 0 to 1; at equal steps where the counts say nothing.
    total : float
    """
    from sklearn.isotonic import isotonic_regression

    sums = np.concatenate([[0.0], np.cumsum(counts)])
    total = float(sums[-1])
    if total <= 0:
        return np.linspace(0.0, 1.0, len(sums)), 0.0
    ascending = sums if (counts >= 0).all() else isotonic_regression(sums)
    parts = np.clip(ascending / total, 0.0, 1.0)
    parts[0], parts[-1] = 0.0, 1.0
    return parts, total


def quantile(parts: Floats, edges: Floats, part: float) -> float:
    """Return where a part of the entries lies below, to the width of a bin.

    Parameters
    ----------
    parts : ndarray of shape (n_bins + 1,)
        From :func:`distribution`.
    edges : ndarray of shape (n_bins + 1,)
    part : float
    """
    return float(np.interp(part, parts, edges))


def part_beyond(total: float, deviation: float, n_bins: int) -> float:
    """Return the part of the entries that is to lie beyond a bound, so that noise does not decide where it is."""
    if deviation == 0 or total <= 0:
        return PART_BEYOND if total > 0 else 1.0
    return max(PART_BEYOND, 2 * deviation * math.sqrt(n_bins) / 4 / total)
