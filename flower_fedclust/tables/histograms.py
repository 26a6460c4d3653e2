"""Histograms of columns: the bin of each entry, and the ranges, means and quantiles that noisy counts show.

The bin of an entry is computed from that entry alone, by operations that IEEE 754 rounds alike everywhere.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.tables.schema import Column, Figures

Floats = NDArray[np.float64]

#: Magnitudes are distinguished from 2^-30 to 2^49; smaller ones count as 0, larger ones as the largest.
LEAST_EXPONENT, LARGEST_EXPONENT = -30, 49
N_MAGNITUDES = LARGEST_EXPONENT - LEAST_EXPONENT

#: One bin for each magnitude of either sign, in ascending order, and one for 0.
N_EXPONENT_BINS = 2 * N_MAGNITUDES + 1

#: The part of the rows beyond each bound that is found.
PART_BEYOND = 0.005

#: Bounds are quantiles only if the noise allows that at most this part of the rows lies beyond.
LARGEST_PART_BEYOND = 0.05

#: If one bin of many holds this part of the rows, they hardly differ after the preparation.
CROWDED = 0.7

#: Bins of a histogram with noise, and of one without.
N_BINS, N_BINS_WITHOUT_NOISE = 64, 1024


def exponent_bins(values: Floats) -> NDArray[np.intp]:
    """Return the bin of each entry's sign and binary exponent, of ``N_EXPONENT_BINS``; -1 for a gap (NaN)."""
    # The highest 12 bits of a float are its sign and its exponent, raised by 1023.
    return _BIN_OF_CODE[(np.ascontiguousarray(values).view(np.uint64) >> np.uint64(52)).view(np.int64)]


def _bins_of_codes() -> NDArray[np.intp]:
    """Return the bin of each sign and exponent: the least exponents count as 0, the last one has the gaps."""
    exponents = np.arange(2048) - 1022  # 2^(e - 1) <= |value| < 2^e
    magnitudes = np.clip(exponents - LEAST_EXPONENT, 0, N_MAGNITUDES)
    magnitudes[-1] = -1 - N_MAGNITUDES
    bins = np.concatenate([N_MAGNITUDES + magnitudes, N_MAGNITUDES - magnitudes])
    bins[-1] = -1
    return bins.astype(np.intp)


_BIN_OF_CODE = _bins_of_codes()


def _edge(index: int) -> float:
    """Return the lower end of a bin of exponents."""
    magnitude = index - N_MAGNITUDES
    if magnitude > 0:
        return math.ldexp(1.0, LEAST_EXPONENT + magnitude - 1)
    return -math.ldexp(1.0, LEAST_EXPONENT - magnitude)


def range_of(counts: Floats, deviation: float) -> tuple[float, float] | None:
    """Return an interval that holds the bins of exponents that stand out of the noise; None if none does.

    A bin stands out if noise alone would reach its count in at most one of 20 histograms. Neighbouring bins are
    included while they are above two standard deviations.
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


def bins_of(values: Floats, low: float, high: float, n_bins: int) -> NDArray[np.intp]:
    """Return in which of equal parts of an interval each entry is, from the entry alone; n_bins for a gap (NaN).

    What lies outside of the interval is in its first or last part.
    """
    with np.errstate(all="ignore"):  # the ends may be so far out that they are equal, or their difference infinite
        scaled = (np.clip(values, low, high) - low) * (n_bins / (np.float64(high) - low))
    np.clip(scaled, 0, n_bins - 1, out=scaled)
    if np.isnan(scaled.sum()):
        scaled[np.isnan(scaled)] = n_bins
    return scaled.astype(np.intp)


def on_interval(values: Floats, low: float, high: float) -> Floats:
    """Return values, clipped to an interval, on the scale on which the interval is -1 to 1."""
    with np.errstate(all="ignore"):  # as in bins_of
        return (np.clip(values, low, high) - low) * (2.0 / (np.float64(high) - low)) - 1.0


def distribution(counts: Floats) -> tuple[Floats, float]:
    """Return the part of the entries up to each of the n_bins + 1 edges, and the number of entries.

    With noise, it is the nearest ascending sequence in squared error; with no entry, the parts are equal.
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
    """Return the value below which this part of the entries lies, to the width of a bin."""
    return float(np.interp(part, parts, edges))


def part_beyond(total: float, deviation: float, n_bins: int) -> float:
    """Return the part of the entries to leave beyond a bound, so that noise does not decide where it is."""
    if deviation == 0 or total <= 0:
        return PART_BEYOND if total > 0 else 1.0
    return max(PART_BEYOND, 2 * deviation * math.sqrt(n_bins) / 4 / total)


def figures_of(
    column: Column, known: Figures, counts: Floats, powers: Floats | None, deviation: float
) -> Figures | None:
    """Return a column's figures; None if it has no entry.

    ``known`` has the range of the histogram. ``powers`` are the sums of the entries and of their squares on the scale
    on which the range is -1 to 1; ``deviation`` is the noise of each count and sum.
    """
    if column.categories is not None:
        kept = np.maximum(counts, 0.0)
        if kept.sum() <= 0:
            return None if deviation == 0 else known
        places = np.arange(len(kept))
        fill = float(kept @ places / kept.sum()) if column.kind == "ordinal" else float(kept.argmax())
        return replace(known, fill=fill, counts=tuple(kept.tolist()))
    parts, n_present = distribution(counts)
    edges = np.linspace(known.low, known.high, len(parts))
    found = replace(known, fill=(known.low + known.high) / 2)
    if n_present <= 2 * deviation * math.sqrt(len(counts)):
        if deviation == 0:
            return None
        # Because of the noise there may be no value at all: only the range is known.
        n_present, parts, powers = 0.0, np.linspace(0.0, 1.0, len(parts)), None
        found = replace(found, center=found.fill, spread=(known.high - known.low) / 4)
    if column.bounds is None:
        beyond = part_beyond(n_present, deviation, len(counts))
        width = edges[1] - edges[0]
        if beyond <= LARGEST_PART_BEYOND:
            low, high = quantile(parts, edges, beyond), quantile(parts, edges, 1.0 - beyond)
            found = replace(found, low=low, high=max(high, low + width))
        fullest = int(np.diff(parts).argmax())
        is_about_0 = edges[fullest] <= 0 <= edges[fullest + 1]  # a column that is 0 for most rows
        is_full = parts[fullest + 1] - parts[fullest] > CROWDED and found.high - found.low > 8 * width
        found = replace(found, is_crowded=bool(is_full and not is_about_0))
    if powers is not None:
        middle, half = (known.low + known.high) / 2, (known.high - known.low) / 2
        mean = float(np.clip(powers[0] / n_present, -1.0, 1.0))
        variance = max(float(powers[1] / n_present) - mean**2, 1.0 / len(counts) ** 2 / 3)
        mean, spread = middle + half * mean, half * math.sqrt(variance)
        found = replace(found, fill=min(max(mean, found.low), found.high))
        if column.scale == "standard":
            found = replace(found, center=mean, spread=spread)
    if column.scale == "robust":
        first, median, third = (quantile(parts, edges, part) for part in (0.25, 0.5, 0.75))
        found = replace(found, center=median, spread=max(third - first, float(edges[1] - edges[0])))
    if column.scale == "rank":
        found = replace(
            found, low=known.low, high=known.high, quantiles=tuple(edges.tolist()), ranks=tuple(parts.tolist())
        )
    return found
