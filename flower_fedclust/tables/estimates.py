"""Estimates about groups of rows from noisy sums: shares, means, standard deviations and quantiles, with errors.

Every number is an :class:`Estimate`: a value, the standard deviation of its noise, and two limits.
A limit is infinite if values were clipped and the number may be any larger or smaller. Sampling
error is not included: the estimates describe these rows, and no larger population.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.tables.cluster_sums import MIDDLE_SQUARE, edges_of, places_of, places_of_bins
from flower_fedclust.tables.floors import DEVIATIONS, LEAST, Floor
from flower_fedclust.tables.preparation import Preparation
from flower_fedclust.tables.schema import MEASURED, Column

Floats = NDArray[np.float64]

QUANTILES = {"first quartile": 0.25, "median": 0.5, "third quartile": 0.75}
#: The names of two numbers about a measured column.
MEAN, SPREAD = "mean", "standard deviation"
#: The names of three shares of rows: values that are missing, and values below and above the bounds.
MISSING, BELOW, ABOVE = "missing", "below the bounds", "above the bounds"
#: If a run has found the bounds, and more than this fraction of the values may lie beyond one, a mean has no limit on
#: that side.
MOST_BEYOND = 0.005


class Group:
    """Noisy sums of each cluster, or of the rows outside it; every sum has noise of the same standard deviation.

    In every column each row is in one bin, so the counts of a column's bins must add up to the
    number of rows. With noise they do not, so the counts are adjusted until they do; this gives the
    estimates of least variance. A weighted sum of a column's adjusted counts, with weights w, has a
    variance of ``|w|^2 - (sum w)^2 / B + (sum w / B)^2 / I`` times the variance of one sum. Here B
    is the number of the column's bins, and I is 1 plus the sum of 1 / B over all columns.

    For exact sums, ``known`` holds the middle and the half width of the interval in which each is
    known to lie; see :meth:`Floor.known_of`.
    """

    def __init__(
        self,
        preparation: Preparation,
        sums: Floats,
        deviation: float,
        floor: Floor | None = None,
        known: tuple[Floats, Floats] | None = None,
    ) -> None:
        self.preparation, self.deviation = preparation, deviation
        self.floor = floor or Floor(0)
        self.n_rows: Floats = sums[:, 0]
        # For each column: sums of scaled values, sums of their squares less 1/2, and the number of rows in each bin.
        self.totals, self.squares, self.bins = {}, {}, {}
        for name, place in places_of(preparation).items():
            if preparation.schema.used[name].kind in MEASURED:
                self.totals[name], self.squares[name] = (
                    sums[:, place.start],
                    sums[:, place.start + 1],
                )
            self.bins[name] = sums[:, places_of_bins(preparation, name)]
        self.information = 1.0 + math.fsum(1.0 / bins.shape[1] for bins in self.bins.values())
        if deviation > 0:  # exact counts add up without it
            self._adjust()
        self.known, self.halves = (
            self.bins,
            {name: np.zeros_like(bins) for name, bins in self.bins.items()},
        )
        if known is not None:
            self.known, self.halves = (
                {name: sums[:, places_of_bins(preparation, name)] for name in self.bins}
                for sums in known
            )

    def _adjust(self) -> None:
        """Adjust the number of rows and the counts of every column's bins, so that they add up."""
        means = [bins.mean(axis=1) for bins in self.bins.values()]
        self.n_rows = (self.n_rows + np.sum(means, axis=0)) / self.information
        for name, bins in self.bins.items():
            missing = self.n_rows - bins.sum(axis=1)
            of_each_bin = missing / bins.shape[1]
            self.bins[name] = bins + of_each_bin[:, None]

    @property
    def noise_of_rows(self) -> float:
        """The standard deviation of the noise in the numbers of rows."""
        return self.deviation / math.sqrt(self.information)

    def n_present(self, name: str, column: Column) -> Floats:
        """Return the number of rows with a value in the column, for each cluster."""
        is_smaller = column.kind in MEASURED and column.gaps != "refuse"
        return self.n_rows - self.bins[name][:, -1] if is_smaller else self.n_rows

    def open_gaps(self, name: str, column: Column) -> Floats:
        """Return for each cluster how far the number of gaps may be from its estimate because of the floor."""
        is_smaller = column.kind in MEASURED and column.gaps != "refuse"
        return self.halves[name][:, -1] if is_smaller else np.zeros(len(self.n_rows))

    def noise(self, n_bins: int, squares: Floats | float, total: Floats | float) -> Floats:
        """Return the standard deviation of weighted sums of a column's bins.

        ``total`` and ``squares`` are the sums of the weights and of their squares.
        """
        total = np.asarray(total)
        variance = squares - total**2 / n_bins + (total / n_bins) ** 2 / self.information
        return np.asarray(self.deviation * np.sqrt(np.maximum(variance, 0.0)))


@dataclass(frozen=True)
class Estimate:
    """A number for each group; each field is of shape (n_groups,).

    If the floor hides a share, it may be anything from 0 to ``high``; ``value`` and ``error`` stand
    for this interval.
    """

    value: Floats
    error: Floats  #: The standard deviation of the noise in the number.
    low: Floats
    high: Floats
    #: NaN unless the floor hides the share. Then the number of rows below which the count lies; infinite if sums do
    #: not count rows.
    fewer_than: Floats

    @classmethod
    def within(
        cls, value: Floats, error: Floats, least: float = -math.inf, most: float = math.inf
    ) -> Estimate:
        """Return estimates whose limits are two standard deviations on either side.

        Values and limits are clipped to ``least`` and ``most``.
        """
        low, high = (np.clip(value + sign * DEVIATIONS * error, least, most) for sign in (-1, 1))
        return cls(np.clip(value, least, most), error, low, high, np.full(len(value), np.nan))

    @property
    def is_hidden(self) -> NDArray[np.bool_]:
        """Whether the floor hides each share."""
        return ~np.isnan(self.fewer_than)


# Shares.


def shares_of(group: Group, name: str, column: Column) -> dict[str, Estimate]:
    """Return the share of each category (they add up to 1), or the share of a measured column's gaps."""
    names = [*(column.categories or ()), *([MISSING] if column.gaps != "refuse" else [])]
    shares, errors, halves = _shares_of_bins(group, name)
    first = shares.shape[1] - len(names)
    if column.kind in MEASURED:
        shares = np.maximum(shares, 0.0)
    elif group.deviation > 0:
        shares = on_simplex(shares)
    return {
        number: floored(
            group.floor, group.n_rows, shares[:, place], errors[:, place], halves[:, place]
        )
        for place, number in enumerate(names, start=first)
    }


def _shares_of_bins(group: Group, name: str) -> tuple[Floats, Floats, Floats]:
    """Return the share of rows in each bin, its noise and its uncertainty from the floor.

    All three arrays are of shape (n_groups, n_bins). The second holds standard deviations. The
    third holds half the width of the interval that the floor leaves open.
    """
    counts, n_rows = group.known[name], _positive(group.n_rows)[:, None]
    shares, n_bins = counts / n_rows, counts.shape[1]
    squares = 1 - 2 * shares + n_bins * shares**2
    errors = group.noise(n_bins, squares, 1 - n_bins * shares) / n_rows
    return shares, errors, group.halves[name] / n_rows


def _positive(counts: Floats) -> Floats:
    """Return counts for use as divisors: counts that are not above 0 become NaN."""
    return np.where(counts > 0, counts, np.nan)


def floored(
    floor: Floor, n_rows: Floats, shares: Floats, errors: Floats, halves: Floats
) -> Estimate:
    """Return shares of ``n_rows`` rows as estimates; those below the floor are hidden.

    ``errors`` are the standard deviations of the noise. An exact share has no noise, but because of
    the floor it may be known only up to plus or minus ``halves``.
    """
    n_rows, noise = _positive(n_rows), np.where(halves > 0, halves / DEVIATIONS, errors)
    estimate = Estimate.within(shares, noise, 0, 1)
    is_hidden = floor.hides(shares * n_rows, noise * n_rows)
    limit = floor.limit(shares * n_rows, errors * n_rows, halves * n_rows)
    limit = np.where(np.isnan(limit), floor.least, limit)
    most = np.minimum(np.nan_to_num(limit / n_rows, nan=1.0), 1.0)
    return Estimate(
        value=np.where(is_hidden, most / 2, estimate.value),
        error=np.where(is_hidden, most / 2 / DEVIATIONS, estimate.error),
        low=np.where(is_hidden, 0.0, estimate.low),
        high=np.where(is_hidden, most, estimate.high),
        fewer_than=np.where(is_hidden, limit if floor.of_rows else np.inf, np.nan),
    )


def shares_of_counts(floor: Floor, counts: NDArray[Any], deviation: float) -> Estimate:
    """Return each count as a share of all rows. The total does not include exact counts below the floor."""
    exact, half = np.asarray(counts, dtype=np.float64), np.zeros(len(counts))
    if deviation == 0 and floor.least > 0:
        total = max(float(exact[~floor.hides(exact, 0.0)].sum()), LEAST)
        known = floor.known_of(exact[:, None], add_up=False)
        exact, half = known.middle[:, 0], known.half[:, 0]
    else:
        exact = np.maximum(exact, 0.0)
        total = max(float(exact.sum()), LEAST)
    return floored(
        floor,
        np.full(len(exact), total),
        exact / total,
        np.full(len(exact), deviation / total),
        half / total,
    )


def on_simplex(shares: Floats) -> Floats:
    """Replace each row of the array by the nearest vector without negative entries that adds up to 1."""
    n_groups, n_shares = shares.shape
    ordered = -np.sort(-shares, axis=1)
    # If only the largest j shares stay above 0, each of these has to fall by excess[:, j - 1].
    n_kept = np.arange(1, n_shares + 1)
    excess = (np.cumsum(ordered, axis=1) - 1) / n_kept
    last = np.maximum((ordered > excess).sum(axis=1) - 1, 0)
    falls_by = excess[np.arange(n_groups), last]
    return np.asarray(np.maximum(shares - falls_by[:, None], 0.0))


# Numbers of measured columns.


def measures_of(group: Group, name: str, column: Column) -> dict[str, Estimate]:
    """Return the mean, standard deviation and quantiles of a measured column, and the shares beyond its bounds."""
    tails = _tails(group, name, column)
    is_below, is_above = _may_be_clipped(group, name, column)
    quantiles = _quantiles(group, name, column)
    return {
        MEAN: _mean(group, name, column, is_below, is_above),
        SPREAD: _standard_deviation(group, name, column, is_below | is_above),
        **quantiles,
        **tails,
    }


def shares_below(group: Group, name: str, column: Column) -> tuple[Floats, Floats]:
    """Return the share of each group's values below each edge of a column's intervals, and its noise.

    Both arrays are of shape (n_groups, n_edges); the noise is given as standard deviations. The
    share at the last edge includes values equal to the upper bound.
    """
    bins = group.bins[name]
    n_edges = len(edges_of(group.preparation, name, column))
    n_bins_of_values = n_edges + 1
    counts = group.n_present(name, column)[:, None]
    below = np.cumsum(bins[:, :n_edges], axis=1) / _positive(counts)
    # The share below an edge is a weighted sum of bins: the bins below have the weight 1 - share,
    # the others the weight -share.
    n_below = np.arange(1, n_bins_of_values)
    squares = n_below * (1 - below) ** 2 + (n_bins_of_values - n_below) * below**2
    total = n_below - below * n_bins_of_values
    return below, group.noise(bins.shape[1], squares, total) / counts


def _tail_shares(group: Group, name: str, column: Column) -> dict[str, tuple[Floats, Floats]]:
    """Return the shares of values below and above the bounds, at least 0, and their noise's standard deviations."""
    below, errors = shares_below(group, name, column)
    shares = {BELOW: (below[:, 0], errors[:, 0]), ABOVE: (1 - below[:, -1], errors[:, -1])}
    return {side: (np.maximum(share, 0.0), error) for side, (share, error) in shares.items()}


def _tails(group: Group, name: str, column: Column) -> dict[str, Estimate]:
    """Return the shares of values beyond the bounds, as far as the floor allows them to be known."""
    n_edges = len(edges_of(group.preparation, name, column))
    counts, tails = _positive(group.n_present(name, column)), {}
    for place, (side, (share, error)) in zip(
        (0, n_edges), _tail_shares(group, name, column).items(), strict=True
    ):
        if group.deviation == 0:
            share = group.known[name][:, place] / counts
        tails[side] = floored(
            group.floor, counts, share, error, group.halves[name][:, place] / counts
        )
        open_gaps = group.open_gaps(name, column)
        if open_gaps.any():
            open_found = _open_share(group, name, place, open_gaps)
            tails[side] = Estimate(
                *(
                    np.where(open_gaps > 0, *pair)
                    for pair in zip(astuple(open_found), astuple(tails[side]), strict=True)
                )
            )
    return tails


def _open_share(group: Group, name: str, place: int, open_gaps: Floats) -> Estimate:
    """Return the share of values in a bin, where the floor leaves the number of all values open within limits."""
    known, half, gaps = (
        group.known[name][:, place],
        group.halves[name][:, place],
        group.known[name][:, -1],
    )
    fewest, most = (_positive(group.n_rows - gaps + sign * open_gaps) for sign in (-1, 1))
    low, high = (known - half) / most, (known + half) / fewest
    return floored(group.floor, fewest, (low + high) / 2, np.zeros(len(low)), (high - low) / 2)


def _told(group: Group, name: str, column: Column, values: Floats) -> Floats:
    """Return means or standard deviations, rounded where the number of values must stay hidden.

    The mean of n whole numbers is a fraction with the denominator n, so with many digits it reveals
    n. It is rounded to a multiple of a power of ten. This power is at least the standard deviation
    (and for whole numbers at least 1) divided by the smallest possible number of values.
    """
    open_gaps = group.open_gaps(name, column)
    if not open_gaps.any():
        return values
    edges, counts = (
        edges_of(group.preparation, name, column),
        _positive(group.n_present(name, column)),
    )
    half, mean = (edges[-1] - edges[0]) / 2, _scaled_mean(group, name, column)[0]
    variance = np.clip(group.squares[name] / counts + MIDDLE_SQUARE - mean**2, 0.0, 1.0)
    least = 1.0 if column.kind == "integer" else LEAST
    fewest = np.maximum(counts - 2 * open_gaps, 1.0)
    steps = 10.0 ** np.ceil(np.log10(np.maximum(half * np.sqrt(variance), least) / fewest))
    return np.where(open_gaps > 0, np.round(values / steps) * steps, values)


def _may_be_clipped(
    group: Group, name: str, column: Column
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Tell for which groups too many values may lie below, or above, the bounds that a run has found.

    A mean then has no limit on that side.
    """
    if column.interval is not None:
        nowhere = np.zeros(len(group.n_rows), dtype=bool)
        return nowhere, nowhere
    tails = {
        side: Estimate.within(*tail, 0, 1)
        for side, tail in _tail_shares(group, name, column).items()
    }
    below, above = tails[BELOW], tails[ABOVE]
    is_below = (below.high >= MOST_BEYOND) | (below.value > below.error)
    is_above = (above.high >= MOST_BEYOND) | (above.value > above.error)
    if edges_of(group.preparation, name, column)[0] == 0:
        # The run found a lower bound of 0, because it found no values below 0. So there are none, unless the counts
        # show some.
        is_below &= below.low > 0
    return is_below, is_above


def _scaled_mean(group: Group, name: str, column: Column) -> tuple[Floats, Floats]:
    """Return the mean, scaled so that the bounds are -1 and 1, and the noise in the number of values."""
    n_edges, n_bins = len(edges_of(group.preparation, name, column)), group.bins[name].shape[1]
    counts = group.n_present(name, column)
    return group.totals[name] / _positive(counts), group.noise(n_bins, n_edges + 1, n_edges + 1)


def _mean(
    group: Group,
    name: str,
    column: Column,
    is_below: NDArray[np.bool_],
    is_above: NDArray[np.bool_],
) -> Estimate:
    """Return the mean.

    If values below the bounds may have been clipped, the mean has no lower limit; if values above
    may, no upper limit.
    """
    edges, counts = edges_of(group.preparation, name, column), group.n_present(name, column)
    low, half = edges[0], (edges[-1] - edges[0]) / 2
    mean, of_rows = _scaled_mean(group, name, column)
    error = half * np.hypot(group.deviation, mean * of_rows) / counts
    value = _told(group, name, column, low + half * (1 + np.clip(mean, -1, 1)))
    estimate = Estimate.within(value, error, edges[0], edges[-1])
    least, most = (
        np.where(is_below, -np.inf, estimate.low),
        np.where(is_above, np.inf, estimate.high),
    )
    return Estimate(estimate.value, error, least, most, estimate.fewer_than)


def _standard_deviation(
    group: Group, name: str, column: Column, is_clipped: NDArray[np.bool_]
) -> Estimate:
    """Return the standard deviation. If values were clipped it is a lower limit, since clipping only reduces it.

    For n rows, let T be the sum of the scaled values, and Q the sum of their squares less 1/2. Then
    the variance is ``Q / n + 1/2 - (T / n)^2``.
    """
    edges, counts = (
        edges_of(group.preparation, name, column),
        _positive(group.n_present(name, column)),
    )
    half = (edges[-1] - edges[0]) / 2
    mean, of_rows = _scaled_mean(group, name, column)
    square = group.squares[name] / counts
    variance = np.clip(square + MIDDLE_SQUARE - mean**2, 0.0, 1.0)
    of_sums = group.deviation * np.sqrt(1 + 4 * mean**2)
    error = np.hypot(of_sums, (2 * mean**2 - square) * of_rows) / counts
    value = np.sqrt(variance)
    low, high = (
        np.sqrt(np.clip(variance + sign * DEVIATIONS * error, 0.0, 1.0)) for sign in (-1, 1)
    )
    error = np.maximum(high - value, value - low) / DEVIATIONS
    low, value, high = (_told(group, name, column, half * scaled) for scaled in (low, value, high))
    high = np.where(is_clipped, np.inf, high)
    return Estimate(value, half * error, low, high, np.full(len(value), np.nan))


def _quantiles(group: Group, name: str, column: Column) -> dict[str, Estimate]:
    """Return the median and the quartiles."""
    edges, (below, errors) = (
        edges_of(group.preparation, name, column),
        shares_below(group, name, column),
    )
    is_whole = column.kind == "integer"
    quantiles = {
        quantile: _quantile(part, edges, below, errors, whole=is_whole)
        for quantile, part in QUANTILES.items()
    }
    if group.deviation > 0 or group.floor.least == 0:
        return quantiles
    return {quantile: _middle(estimate) for quantile, estimate in quantiles.items()}


def _middle(estimate: Estimate) -> Estimate:
    """Return an exact quantile as the middle of its interval: an interpolated value would reveal small counts."""
    low, high = estimate.low, estimate.high
    is_between = np.isfinite(low) & np.isfinite(high)
    # Infinite limits are replaced first, because their mean would be NaN.
    finite_low = np.where(is_between, low, 0.0)
    finite_high = np.where(is_between, high, 0.0)
    middle = (finite_low + finite_high) / 2
    value = np.where(is_between, middle, estimate.value)
    return Estimate(value, estimate.error, low, high, estimate.fewer_than)


def _quantile(
    part: float, edges: Floats, below: Floats, errors: Floats, *, whole: bool
) -> Estimate:
    """Return the interval between two edges in which the quantile lies, with noise taken into account.

    From the left, edges are passed as long as clearly less than the share ``part`` of the rows lies
    below them; from the right, as long as clearly more does. The quantile lies between the two
    edges where this ends. If the values are whole numbers (``whole``), an interval of width 1 holds
    only its lower edge.

    Parameters
    ----------
    part : float
        The share of rows below the quantile: 0.5 for the median.
    edges : ndarray of shape (n_edges,)
    below, errors : ndarray of shape (n_groups, n_edges)
        The share of rows below each edge, and the standard deviation of its noise.
    whole : bool
    """
    # The edges with clearly fewer rows below them than the quantile has, and the edges with clearly more.
    surely_fewer = below + DEVIATIONS * errors < part
    surely_more = below - DEVIATIONS * errors >= part
    n_below = np.logical_and.accumulate(surely_fewer, axis=1).sum(axis=1)
    n_above = np.logical_and.accumulate(surely_more[:, ::-1], axis=1).sum(axis=1)
    # The quantile is not below the last edge with fewer rows, and not above the first edge with more.
    lowers = np.concatenate([[-np.inf], edges])
    # If values are whole numbers, an interval of width 1 holds only its lower edge, which is then also the upper
    # limit.
    is_single = whole & (np.diff(edges) == 1)
    is_single[-1:] = False  # the last interval also holds its upper edge
    uppers = np.concatenate([edges[:1], np.where(is_single, edges[:-1], edges[1:]), [np.inf]])
    low, high = lowers[n_below], uppers[len(edges) - n_above]
    high = np.where(np.isfinite(low), np.maximum(low, high), high)
    # Between two edges, the share below is taken to grow in a straight line.
    ascending = np.maximum.accumulate(np.nan_to_num(below), axis=1)
    value = np.array([np.interp(part, row, edges) for row in ascending])
    return Estimate(
        np.clip(value, low, high),
        (high - low) / (2 * DEVIATIONS),
        low,
        high,
        np.full(len(low), np.nan),
    )


def spread_of(whole: Group, name: str, column: Column) -> float:
    """Estimate the standard deviation of a measured column over all rows, from counts that may be known."""
    edges = edges_of(whole.preparation, name, column)
    bins = whole.known[name][:, : len(edges) + 1]
    total = max(float(bins.sum()), LEAST)
    (shares,) = on_simplex(bins / total)
    # A value counts as the middle of its interval, and a value beyond the edges as the outer edge.
    inner = (edges[:-1] + edges[1:]) / 2
    middles = np.concatenate([edges[:1], inner, edges[-1:]])
    mean = shares @ middles
    variance = float(shares @ (middles - mean) ** 2)
    return math.sqrt(max(variance, 0.0))
