"""Histograms of columns: the bin of each entry, and the ranges, means and quantiles that noisy counts show.

If the bounds of a column are not public, a run finds them in two steps. The first histogram has a
bin for each sign and binary exponent, so that 159 bins cover all floats; the bins that stand out of
the noise give a rough range. The second histogram divides this range, and gives bounds, quantiles
and a mean.

The bin of an entry is computed from that entry alone, by operations whose rounding IEEE 754 fixes,
so that it is the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.tables.schema import Column, Figures

Floats = NDArray[np.float64]

#: Magnitudes from 2^-30 to 2^49 have bins of their own. Smaller values count as 0, larger ones count in the outermost
#: bin.
LEAST_EXPONENT, LARGEST_EXPONENT = -30, 49
N_MAGNITUDES = LARGEST_EXPONENT - LEAST_EXPONENT

#: One bin for each magnitude of either sign, in ascending order, and one for 0.
N_EXPONENT_BINS = 2 * N_MAGNITUDES + 1

#: The share of rows that lie beyond each bound that a run finds.
PART_BEYOND = 0.005

#: If one of many bins holds more than this share of the rows, the column hardly tells rows apart once it is prepared.
CROWDED = 0.7
#: A column of whole numbers with a range up to this is never called skewed: it may hold grades or codes.
LEAST_AMOUNTS = 20

#: The fewest and the most bins of a histogram with noise.
FEWEST_BINS, N_BINS = 24, 128
#: The bins of a histogram without noise.
N_BINS_WITHOUT_NOISE = 1024
#: The most bins that each have half the width of the next, near a bound of 0.
N_HALVED = 10

#: The largest probability, for a whole run, that in any column a bin stands out because of noise alone.
FALSE_FINDS = 0.05

#: Bounds are used only if at least this share of a column's entries lies within them. Otherwise they show mere noise,
#: or the place of a few entries.
LEAST_HELD = 0.5

#: Entries count as close together if they lie in fewer bins than this.
N_DIFFUSE = 4

#: The most quantiles that are kept of a histogram, unless the scale of the column needs all.
N_QUANTILES = 129


def exponent_bins(values: Floats) -> NDArray[np.intp]:
    """Return, for each entry, the bin of its sign and binary exponent; -1 for a gap (NaN).

    There are :data:`N_EXPONENT_BINS` bins, in ascending order of the entries.
    """
    # The highest 12 bits of a float are its sign and its exponent, raised by 1023.
    return _BIN_OF_CODE[
        (np.ascontiguousarray(values).view(np.uint64) >> np.uint64(52)).view(np.int64)
    ]


def _bins_of_codes() -> NDArray[np.intp]:
    """Return the bin for each of the 4096 pairs of a sign and an exponent.

    Small exponents count as 0. The largest exponent, which floats use for NaN, gets the bin -1.
    """
    exponents = np.arange(2048) - 1022  # 2^(e - 1) <= |value| < 2^e
    magnitudes = np.clip(exponents - LEAST_EXPONENT, 0, N_MAGNITUDES)
    magnitudes[-1] = -1 - N_MAGNITUDES
    bins = np.concatenate([N_MAGNITUDES + magnitudes, N_MAGNITUDES - magnitudes])
    bins[-1] = -1
    return bins.astype(np.intp)


_BIN_OF_CODE = _bins_of_codes()


def _edge(index: int) -> float:
    """Return the lower end of a bin of :func:`exponent_bins`."""
    magnitude = index - N_MAGNITUDES
    if magnitude > 0:
        return math.ldexp(1.0, LEAST_EXPONENT + magnitude - 1)
    return -math.ldexp(1.0, LEAST_EXPONENT - magnitude)


def reach_of_noise(n_tests: int) -> float:
    """Return how many standard deviations the largest of ``n_tests`` counts may reach that are mere noise.

    The largest count exceeds this with a probability of at most :data:`FALSE_FINDS`, whether or not
    the noise of the counts is independent.
    """
    return -NormalDist().inv_cdf(FALSE_FINDS / n_tests)


def range_of(counts: Floats, deviation: float, n_columns: int = 1) -> FoundRange | None:
    """Return the interval of the bins of exponents that stand out of the noise; None if none does.

    A bin stands out if, in at least 19 of 20 runs, noise alone would give no bin of any of the
    ``n_columns`` histograms such a count. Neighboring bins are included as long as their counts
    exceed two standard deviations. Noise seldom adds such a bin, and the next histogram shows
    whether it is empty.
    """
    above = np.flatnonzero(counts > deviation * reach_of_noise(n_columns * len(counts)))
    if len(above) == 0:
        return None
    first, last = int(above[0]), int(above[-1])
    while first > 0 and counts[first - 1] > 2 * deviation:
        first -= 1
    while last + 1 < len(counts) and counts[last + 1] > 2 * deviation:
        last += 1
    n_held = float(counts[first : last + 1].sum())
    if first == last == N_MAGNITUDES:
        return FoundRange(-1.0, 1.0, n_held)  # all entries are 0
    low, high = (
        0.0 if first == N_MAGNITUDES else _edge(first),
        0.0 if last == N_MAGNITUDES else _edge(last + 1),
    )
    return FoundRange(low, high, n_held)


class FoundRange(NamedTuple):
    """An interval that noisy counts show, and the number of entries in it."""

    low: float
    high: float
    n_held: float


def n_bins_for(n_rows: float, deviation: float, fewest: int, most: int) -> int:
    """Return how many bins a histogram should have.

    With too many bins, noise hides most of them; with too few, they are wider than necessary.
    Without noise, there are ``most`` bins.
    """
    if deviation == 0:
        return most
    return int(np.clip((2.0 * max(n_rows, 0.0) / deviation) ** (2 / 3), fewest, most))


def histogram_edges(low: float, high: float, n_bins: int) -> Floats:
    """Return the n_bins + 1 edges of a histogram, with equal bins that get narrower near a bound of 0.

    Near a bound of 0, each bin is half as wide as the next. So quantiles are found equally well
    whether a column is skewed or fills its range.
    """
    n_halved = min(N_HALVED, n_bins // 6) if 0.0 in (low, high) else 0
    edges = np.linspace(low, high, n_bins - n_halved + 1)
    if low == 0.0:
        towards_low = edges[1] * 2.0 ** -np.arange(n_halved, 0, -1)
        return np.concatenate([[low], towards_low, edges[1:]])
    towards_high = edges[-2] * 2.0 ** -np.arange(1, n_halved + 1)
    return np.concatenate([edges[:-1], towards_high, [high]])


def bins_of(values: Floats, edges: Floats) -> NDArray[np.intp]:
    """Return the bin of each entry between ascending edges; a gap (NaN) has the number of bins.

    An entry at an edge is in the bin above it. An entry outside all edges is in the first or the
    last bin.
    """
    bins = np.searchsorted(edges[1:-1], values, side="right")
    bins[np.isnan(values)] = len(edges) - 1
    return bins


def places_in(values: Floats, n_places: int) -> NDArray[np.intp]:
    """Return the index of each entry's value in the column's list of values; n_places for a gap (NaN)."""
    return np.where(np.isnan(values), n_places, values).astype(np.intp)


def on_interval(values: Floats, low: float, high: float) -> Floats:
    """Clip values to an interval, and scale them so that it becomes -1 to 1."""
    with np.errstate(all="ignore"):  # NaN is treated as in bins_of
        return (np.clip(values, low, high) - low) * (2.0 / (np.float64(high) - low)) - 1.0


def distribution(counts: Floats) -> tuple[Floats, float]:
    """Return the share of the entries below each of the n_bins + 1 edges, and the number of entries.

    Noisy counts may be negative, so the shares are the nearest ascending sequence in squared error.
    If there is no entry, the shares grow by the same step from edge to edge.
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
    """Return the value below which the share ``part`` of the entries lies, interpolated within a bin."""
    return float(np.interp(part, parts, edges))


def occupied(counts: Floats, deviation: float, n_columns: int = 1) -> tuple[int, int] | None:
    """Return the first bin that stands out of the noise, and the bin after the last that does; None if none does.

    Sums of up to 16 neighboring bins are compared with their noise, so that a few entries are found
    even if empty bins lie between them. In at least 19 of 20 runs, no bin of any of the
    ``n_columns`` histograms stands out because of noise alone.
    """
    groups = [2**power for power in range(5) if 2**power <= len(counts)]
    least = deviation * reach_of_noise(n_columns * len(counts) * len(groups))
    first, empty = (_first_end(direction, least, groups) for direction in (counts, counts[::-1]))
    if first is None or empty is None:
        return None
    last = len(counts) - empty
    # A bin is added on either side, because the outermost entries may not stand out; but not to a column in few bins,
    # where it would widen the range too much.
    margin = int(deviation > 0 and last - first >= N_DIFFUSE)
    return max(first - margin, 0), min(last + margin, len(counts))


def _first_end(counts: Floats, least: float, groups: Sequence[int]) -> int | None:
    """Return the first bin of the first group of bins that holds enough entries.

    A group of s bins holds enough if its count exceeds ``least * sqrt(s)``; ``groups`` lists the
    sizes of groups. Returns None if no group does.
    """
    sums = np.concatenate([[0.0], np.cumsum(counts)])
    for end in range(1, len(sums)):
        for size in groups:
            if size <= end and float(sums[end] - sums[end - size]) > least * math.sqrt(size):
                return int(end - size)
    return None


def figures_of(
    column: Column,
    known: Figures,
    counts: Floats,
    powers: Floats | None,
    deviation: float,
    *,
    n_columns: int = 1,
    n_entries: float = 0.0,
    n_beyond: float = 0.0,
) -> Figures | None:
    """Return the figures (bounds, mean, quantiles) of a column that its counts show; None if it has no entry.

    Parameters
    ----------
    column : Column
    known : Figures
        The figures so far; they hold the range of the histogram.
    counts : ndarray of shape (n_bins,)
        The first and the last bin also count entries beyond the range, ``n_beyond`` in all.
    powers : ndarray of shape (2,) or None
        The sum of the entries, scaled so that the range is -1 to 1, and the sum of their squares.
    deviation : float
        The standard deviation of the noise in each count and sum.
    n_columns : int
        How many histograms are tested together.
    n_entries : float
        How many entries the column has. Narrower bounds than the range are used only if most
        entries lie within them.
    n_beyond : float
    """
    if column.categories is not None:
        return _listed_figures(column, known, counts, deviation)
    edges = histogram_edges(known.low, known.high, len(counts))
    figures = replace(known, fill=(known.low + known.high) / 2)
    where = occupied(counts, deviation, n_columns)
    is_narrowed = column.bounds is None
    if is_narrowed and where is not None:
        n_held = counts[slice(*where)].sum() - (
            n_beyond if 0 in where or len(counts) in where else 0.0
        )
        # If fewer entries are held, noise hides where in the range most of them are.
        is_narrowed = n_held >= LEAST_HELD * n_entries
    if where is None:
        if deviation == 0:
            return None
        # There may be no value at all, for all that the noise shows: only the range is known.
        where, counts, powers = (0, len(counts)), np.diff(edges), None
        figures = replace(figures, center=figures.fill, spread=(known.high - known.low) / 4)
    first, last = where if is_narrowed else (0, len(counts))
    if 0 < edges[first] < edges[last] / 3 and known.low == 0:
        first = 0  # a column of amounts begins at 0
    edges = edges[first : last + 1]
    parts, n_present = distribution(counts[first:last])
    # Noise hides how many entries there are: only the range is known.
    if powers is not None and n_present <= 0:
        powers, figures = (
            None,
            replace(figures, center=figures.fill, spread=(known.high - known.low) / 4),
        )
    if is_narrowed:
        least = float(edges[-1] - edges[0]) / 64
        low = min(quantile(parts, edges, PART_BEYOND), float(edges[-1]) - least)
        figures = replace(
            figures, low=low, high=max(quantile(parts, edges, 1.0 - PART_BEYOND), low + least)
        )
    n_kept = len(edges) if column.scale == "rank" else min(len(edges), N_QUANTILES)
    kept = np.linspace(0, len(edges) - 1, n_kept).astype(int)
    figures = replace(
        figures, quantiles=tuple(edges[kept].tolist()), ranks=tuple(parts[kept].tolist())
    )
    if powers is not None:
        mean, spread = _mean_and_spread(known, powers / n_present, len(counts))
        figures = replace(figures, fill=min(max(mean, figures.low), figures.high))
        if column.scale == "standard":
            figures = replace(figures, center=mean, spread=spread)
    if column.scale == "robust":
        first_quartile, median, third = (quantile(parts, edges, part) for part in (0.25, 0.5, 0.75))
        least = float(np.diff(edges).min())
        figures = replace(figures, center=median, spread=max(third - first_quartile, least))
    if column.scale == "rank":
        figures = replace(figures, low=float(edges[0]), high=float(edges[-1]))
    return figures


def _listed_figures(
    column: Column, known: Figures, counts: Floats, deviation: float
) -> Figures | None:
    """Return the figures of a column with a list of values: their counts, and the value that fills a gap.

    In an ordinal column, a gap is filled with the mean place in the list; in any other column, with
    the most frequent value.
    """
    kept = np.maximum(counts, 0.0)
    if kept.sum() <= 0:
        return None if deviation == 0 else known
    places = np.arange(len(kept))
    fill = float(kept @ places / kept.sum()) if column.kind == "ordinal" else float(kept.argmax())
    return replace(known, fill=fill, counts=tuple(kept.tolist()))


def _mean_and_spread(known: Figures, moments: Floats, n_bins: int) -> tuple[float, float]:
    """Return the mean and the standard deviation of a column, in its own units.

    ``moments`` are the mean of the entries, scaled so that the range is -1 to 1, and the mean of
    their squares. The standard deviation is at least as large as if the entries were spread evenly
    over one bin.
    """
    middle = (known.low + known.high) / 2
    half = (known.high - known.low) / 2
    mean = float(np.clip(moments[0], -1.0, 1.0))
    of_one_bin = 1.0 / n_bins**2 / 3
    variance = max(float(moments[1]) - mean**2, of_one_bin)
    return middle + half * mean, half * math.sqrt(variance)


def why_it_hardly_counts(column: Column, figures: Figures) -> str:
    """Return "skewed" or "crowded" if most values lie close together within bounds that were found; "" otherwise.

    A column of amounts is skewed if half of them lie below a tenth of the upper bound; a logarithm
    would spread them. A column is crowded if most of its values share one narrow bin that is not at
    0.
    """
    if column.bounds is not None or not figures.quantiles:
        return ""
    edges, parts, width = (
        np.array(figures.quantiles),
        np.array(figures.ranks),
        figures.high - figures.low,
    )
    is_amount = column.kind == "number" or (column.kind == "integer" and width > LEAST_AMOUNTS)
    median = quantile(parts, edges, 0.5)
    if (
        is_amount
        and figures.low >= 0
        and not column.logarithm
        and figures.high / 1000 < median < figures.high / 10
    ):
        return "skewed"
    fullest = int(np.diff(parts).argmax())
    low, high = edges[fullest], edges[fullest + 1]
    # In a single bin, noise hides where the values are.
    is_narrow = width > 8 * (high - low) or len(edges) == 2
    return (
        "crowded"
        if is_narrow and parts[fullest + 1] - parts[fullest] > CROWDED and not low <= 0 <= high
        else ""
    )
