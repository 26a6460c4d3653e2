"""Describe the clusters of a table in its units, from sums over the rows of each cluster.

Each row adds a vector to the sums of its cluster: 1; for a measured column the value, on the scale on which the
column's bounds are -1 and 1, and 1 at the part of the range that holds the value, or below or above all parts; for a
listed column 1 at its value; and 1 where a value is missing. With m measured columns and c listed ones, the Euclidean
norm of this vector is at most the square root of ``1 + 2 m + c``.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact.rows import Frame
from flower_fedclust.exact.terms import Term, at, side_by_side
from flower_fedclust.tables import words
from flower_fedclust.tables.histograms import histogram_edges, on_interval, places_in
from flower_fedclust.tables.preparation import Preparation
from flower_fedclust.tables.schema import MEASURED, Column, Figures

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

#: Fewer rows than this, or than this many standard deviations of their noise, are not described.
FLOOR, FLOOR_DEVIATIONS = 10, 3.0
#: A number of rows that is not 0, to divide by.
LEAST = 1e-9
#: Fewest parts of the range of a measured column in which rows are counted.
FEWEST_PARTS = 16
QUANTILES = {"first quartile": 0.25, "median": 0.5, "third quartile": 0.75}
#: The shares of rows whose values lie below and above the bounds.
BELOW, ABOVE = "below the bounds", "above the bounds"
#: Numbers that are not compared with the rest.
SHAPES = (*QUANTILES, BELOW, ABOVE)
OF_OWN, OF_REST = ("value", "error", "low", "high"), ("rest", "rest_error", "rest_low", "rest_high")
DIFFERENCES = ("difference", "difference_error", "effect", "effect_error")
NUMBERS = (*OF_OWN, *OF_REST, *DIFFERENCES)
#: If more rows than this may lie beyond a bound that was found, a mean is only a limit.
MOST_BEYOND = 0.005
#: How many standard deviations "±" and every interval have on either side.
DEVIATIONS = 2.0
#: The largest logarithm of a bound; beyond it the bound would not be a float.
LARGEST_LOGARITHM = 709.0
#: How many differences to the rest to print for a cluster, and the least, in standard deviations of the column.
MOST_TOLD, LEAST_TOLD = 5, 0.1


# The parts of a range, and the sums.


def with_parts(preparation: Preparation, n_parts: int) -> Preparation:
    """Return a preparation that says in which parts of its range each measured column is counted."""
    used, figures = preparation.schema.used, dict(preparation.figures)
    for name, column in used.items():
        if column.kind in MEASURED:
            figures[name] = replace(figures[name], parts=_parts(column, figures[name], n_parts))
    return replace(preparation, figures=figures)


def _parts(column: Column, found: Figures, n_parts: int) -> tuple[float, ...]:
    """Return the edges of the parts, in the table's units: half of them follow the rows, half of them the range.

    Where nothing was released about the rows, they are the bins of a histogram of the range.
    """
    known = np.array(found.quantiles or (found.low, found.high))
    even = (known - known[0]) / (known[-1] - known[0])
    if found.quantiles:
        edges = np.interp(np.linspace(0, 1, n_parts + 1), (np.array(found.ranks) + even) / 2, known)
    else:
        edges = histogram_edges(found.low, found.high, n_parts)
    edges = _natural(column, edges)
    if column.interval is not None:
        edges[0], edges[-1] = column.interval
    return tuple(words.round_edges(edges, whole=column.kind != "number", ends=column.interval is None).tolist())


def _natural(column: Column, values: Floats) -> Floats:
    """Return values of a measured column in its own units, or in days since 1970."""
    return np.expm1(np.minimum(values, LARGEST_LOGARITHM)) if column.logarithm else values


def edges_of(preparation: Preparation, name: str, column: Column) -> Floats:
    """Return the edges of the parts of a measured column, in its own units, or in days since 1970."""
    found = preparation.figures[name]
    return np.array(found.parts) if found.parts else _natural(column, np.array([found.low, found.high]))


def _bins(preparation: Preparation, name: str, column: Column) -> tuple[int, bool]:
    """Return the number of a column's bins of rows, and whether the last one is for gaps."""
    has_gaps = column.gaps != "refuse"
    if column.kind not in MEASURED:
        return len(column.categories or ()) + has_gaps, has_gaps
    return len(edges_of(preparation, name, column)) + 1 + has_gaps, has_gaps


def places_of(preparation: Preparation) -> dict[str, slice]:
    """Return the places of each column's sums; the number of rows has the first place."""
    found, start = {}, 1
    for name, column in preparation.schema.used.items():
        width = _bins(preparation, name, column)[0] + (column.kind in MEASURED)
        found[name] = slice(start, start := start + width)
    return found


def cluster_sums(
    columns: Iterable[tuple[str, Column, Floats]],
    preparation: Preparation,
    labels: NDArray[np.intp],
    n_clusters: int,
) -> Term:
    """Add what describes each row to the sums of its cluster; of shape (n_clusters, n_sums)."""
    labels = np.where((labels >= 0) & (labels < n_clusters), labels, n_clusters)  # a row in no cluster counts nowhere
    interval = Frame(np.zeros(1), 1.0)
    terms = [at(labels, n_clusters).reshaped(n_clusters, 1)]
    for name, column, values in columns:
        n_bins, has_gaps = _bins(preparation, name, column)
        if column.kind in MEASURED:
            edges = edges_of(preparation, name, column)
            scaled, gaps = on_interval(values, float(edges[0]), float(edges[-1])), np.isnan(values)
            there = np.where(gaps, n_clusters, labels)
            terms.append(at(there, n_clusters, interval.rows(np.nan_to_num(scaled)[:, None])))
            edges[-1] = np.nextafter(edges[-1], np.inf)  # a value at the upper bound is not beyond it
            codes = np.where(gaps, n_bins - has_gaps, np.searchsorted(edges, values, side="right"))
        else:
            codes = places_in(values, n_bins - has_gaps)
        places = np.where(codes < n_bins, labels * n_bins + codes, n_clusters * n_bins)
        terms.append(at(places, n_clusters * n_bins).reshaped(n_clusters, n_bins))
    said = "a row is in one cluster, and in each column in one category or part of the range, with a number of -1 to 1"
    return side_by_side(terms, words=said)


# What noisy sums say.


class Group:
    """Noisy sums of each cluster, or of the rows outside it; all have the same standard deviation.

    In every column each row is in one bin, so the bins of a column and the number of rows are adjusted to agree: the
    estimate of least variance. A weighted sum of a column's adjusted bins has a variance of ``|w|^2 - (sum w)^2 / B +
    (sum w / B)^2 / I`` times that of one sum, with B bins and with I from the number of rows and all columns.
    """

    def __init__(self, preparation: Preparation, sums: Floats, deviation: float) -> None:
        self.preparation, self.deviation = preparation, deviation
        self.totals, self.bins = {}, {}  # sums of scaled values, and numbers of rows in each bin; by column
        for name, place in places_of(preparation).items():
            self.totals[name], bins = sums[:, place.start], sums[:, place]
            self.bins[name] = bins[:, 1:] if preparation.schema.used[name].kind in MEASURED else bins
        shares = [bins.mean(axis=1) for bins in self.bins.values()]
        self.information = 1.0 + math.fsum(1.0 / bins.shape[1] for bins in self.bins.values())
        self.n_rows: Floats = sums[:, 0]
        if deviation > 0:  # exact sums agree
            self.n_rows = (sums[:, 0] + np.sum(shares, axis=0)) / self.information
            for name, bins in self.bins.items():
                self.bins[name] = bins + ((self.n_rows - bins.sum(axis=1)) / bins.shape[1])[:, None]

    def n_present(self, name: str, column: Column) -> Floats:
        """Return the rows of each cluster that its numbers about a column rest on."""
        is_smaller = column.kind in MEASURED and column.gaps != "refuse"
        return self.n_rows - self.bins[name][:, -1] if is_smaller else self.n_rows

    def noise(self, n_bins: int, squares: Floats | float, total: Floats | float) -> Floats:
        """Return the deviation of weighted sums of bins, from the sums of the weights and of their squares."""
        total = np.asarray(total)
        variance = squares - total**2 / n_bins + (total / n_bins) ** 2 / self.information
        return np.asarray(self.deviation * np.sqrt(np.maximum(variance, 0.0)))


#: Value, standard error, lower and upper limit of a number, each of shape (n_clusters,).
Estimate = tuple[Floats, Floats, Floats, Floats]


def _within(value: Floats, error: Floats, least: float = -math.inf, most: float = math.inf) -> Estimate:
    low, high = (np.clip(value + sign * DEVIATIONS * error, least, most) for sign in (-1, 1))
    return np.clip(value, least, most), error, low, high


def _shares(group: Group, name: str, column: Column) -> dict[str, Estimate]:
    """Return the share of each category, which add up to 1; of a measured column that of its gaps."""
    bins, n_rows = group.bins[name], np.where(group.n_rows > 0, group.n_rows, np.nan)
    shares, n_bins = bins / n_rows[:, None], bins.shape[1]
    errors = group.noise(n_bins, 1 - 2 * shares + n_bins * shares**2, 1 - n_bins * shares) / n_rows[:, None]
    names = list(column.categories or ()) + ["missing"] * (column.gaps != "refuse")
    shares, errors = shares[:, n_bins - len(names) :], errors[:, n_bins - len(names) :]
    shares = np.maximum(shares, 0.0) if column.kind in MEASURED else on_simplex(shares)
    return {what: _within(shares[:, place], errors[:, place], 0, 1) for place, what in enumerate(names)}


def on_simplex(shares: Floats) -> Floats:
    """Return the nearest rows of numbers that are not negative and add up to 1."""
    ordered = -np.sort(-shares, axis=1)
    excess = (np.cumsum(ordered, axis=1) - 1) / np.arange(1, shares.shape[1] + 1)
    last = np.maximum((ordered > excess).sum(axis=1) - 1, 0)
    return np.asarray(np.maximum(shares - excess[np.arange(len(shares)), last][:, None], 0.0))


def shares_below(group: Group, name: str, column: Column) -> tuple[Floats, Floats]:
    """Return the share of each cluster's values below each edge of a measured column, and the deviations of its noise.

    At the last edge it is the share of values that are not above the bounds.
    """
    bins, n_present = group.bins[name], len(edges_of(group.preparation, name, column)) + 1
    counts = group.n_present(name, column)[:, None]
    below = np.cumsum(bins[:, : n_present - 1], axis=1) / np.where(counts > 0, counts, np.nan)
    places = np.arange(1, n_present)
    squares = places * (1 - below) ** 2 + (n_present - places) * below**2
    return below, group.noise(bins.shape[1], squares, places - below * n_present) / counts


def _measures(group: Group, name: str, column: Column) -> dict[str, Estimate]:
    """Return the mean and the quantiles of a measured column, and the shares of values beyond its bounds."""
    edges, counts = edges_of(group.preparation, name, column), group.n_present(name, column)
    below, errors = shares_below(group, name, column)
    found = {}
    for what, part in QUANTILES.items():
        found[what] = _quantile(part, edges, below, errors, whole=column.kind == "integer")
    for what, share, error in (BELOW, below[:, 0], errors[:, 0]), (ABOVE, 1 - below[:, -1], errors[:, -1]):
        found[what] = _within(np.maximum(share, 0.0), error, 0, 1)
    low, half = edges[0], (edges[-1] - edges[0]) / 2
    mean = group.totals[name] / np.where(counts > 0, counts, np.nan)
    n_bins, n_present = group.bins[name].shape[1], len(edges) + 1
    error = half * np.hypot(group.deviation, mean * group.noise(n_bins, n_present, n_present)) / counts
    value, error, least, most = _within(low + half * (1 + np.clip(mean, -1, 1)), error, edges[0], edges[-1])
    if column.interval is None:
        tails = ((found[what], found[what][3] >= MOST_BEYOND) for what in (BELOW, ABOVE))
        is_below, is_above = (may_be_much | (tail[0] > tail[1]) for tail, may_be_much in tails)
        if low == 0:  # no sign below 0 stood out; there are none unless the counts say so
            is_below &= found[BELOW][2] > 0
        least, most = np.where(is_below, -np.inf, least), np.where(is_above, np.inf, most)
    return {"mean": (value, error, least, most), **found}


def _quantile(part: float, edges: Floats, below: Floats, errors: Floats, *, whole: bool) -> Estimate:
    """Return the interval of edges at which the share of rows below, with its noise, crosses a part."""
    # The first edges at which fewer rows lie below than the part, and the last ones at which more do, noise or not.
    surely_fewer = below + DEVIATIONS * errors < part
    surely_more = below - DEVIATIONS * errors >= part
    n_below = np.logical_and.accumulate(surely_fewer, axis=1).sum(axis=1)
    n_above = np.logical_and.accumulate(surely_more[:, ::-1], axis=1).sum(axis=1)
    # The quantile is not below the last of the former, and not above the first of the latter.
    lowers = np.concatenate([[-np.inf], edges])
    # Of a part with a single whole number, the upper limit is that number.
    is_single = whole & (np.diff(edges) == 1)
    is_single[-1:] = False  # the last part also holds its upper end
    uppers = np.concatenate([edges[:1], np.where(is_single, edges[:-1], edges[1:]), [np.inf]])
    low, high = lowers[n_below], uppers[len(edges) - n_above]
    high = np.where(np.isfinite(low), np.maximum(low, high), high)
    # Between two edges a line is the best guess.
    ascending = np.maximum.accumulate(np.nan_to_num(below), axis=1)
    value = np.array([np.interp(part, row, edges) for row in ascending])
    return np.clip(value, low, high), (high - low) / (2 * DEVIATIONS), low, high


def _spread(whole: Group, name: str, column: Column) -> float:
    """Return about the standard deviation of a measured column over all rows, within its bounds."""
    edges = edges_of(whole.preparation, name, column)
    bins = whole.bins[name][:, : len(edges) + 1]
    (shares,) = on_simplex(bins / max(float(bins.sum()), LEAST))
    middles = np.concatenate([edges[:1], (edges[:-1] + edges[1:]) / 2, edges[-1:]])
    return math.sqrt(max(float(shares @ (middles - shares @ middles) ** 2), 0.0))


@dataclass(frozen=True)
class Clusters:
    """A description of the clusters, with what noise, bounds and parts of ranges leave open about every number.

    ``print(clusters)`` says in a few sentences how each cluster differs from the rest, and which bounds were used.

    Parameters
    ----------
    preparation : Preparation
        With the parts in which measured columns were counted.
    sums : ndarray of shape (n_clusters, n_sums)
        With noise; see :func:`places_of`.
    deviation : float, default=0
        The standard deviation of the noise in each sum.
    of_clients : bool, default=False
        Whether they are sums of the clients' means, so that all clients count equally.
    """

    preparation: Preparation
    sums: Floats
    deviation: float = 0.0
    of_clients: bool = False

    @property
    def n_clusters(self) -> int:
        """The number of clusters."""
        return len(self.sums)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A DataFrame with a row for each number.

        Columns: ``cluster``; ``column`` of the table, empty for the size; ``what`` ("share of rows", "mean", "first
        quartile", "median", "third quartile", "below the bounds" and "above the bounds", which are shares of rows,
        "missing", or a category); ``unit``; ``value``; ``error``, the standard deviation of its noise; ``low`` and
        ``high``, between which the true number lies: two standard deviations of the noise on either side, and for
        quantiles the edges of parts of the range. A mean whose column is clipped has no ``high`` (inf), no ``low`` or
        neither; the value is then the mean of the clipped values. Columns that begin with ``rest`` describe all
        other rows. Means and shares of categories also have the ``difference``, its error, and the ``effect``, which is
        the difference in standard deviations of the column, with its ``effect_error``. ``note`` is "few" if there are
        too few rows for any number, and "noise" if the error is above half of the column's standard deviation (then
        there is no effect). Dates are days since 1970.
        """
        import pandas as pd

        own = Group(self.preparation, self.sums, self.deviation)
        whole = self.sums.sum(axis=0, keepdims=True)
        rest = Group(self.preparation, whole - self.sums, self.deviation * math.sqrt(self.n_clusters - 1))
        all_rows = Group(self.preparation, whole, self.deviation * math.sqrt(self.n_clusters))
        parts = [self._sizes(own)]
        for name, column in self.preparation.schema.used.items():
            groups = (own, rest, all_rows)
            numbers = [_shares(group, name, column) for group in groups]
            if column.kind in MEASURED:
                numbers = [_measures(group, name, column) | _shares(group, name, column) for group in groups]
            for what in numbers[0]:
                estimates = [one[what] for one in numbers]
                is_share = what in (*column.values, BELOW, ABOVE, "missing")
                in_all = float(estimates[2][0][0])
                spread = math.sqrt(in_all * (1 - in_all)) if is_share else _spread(all_rows, name, column)
                few = ~(own.n_present(name, column) >= self._fewest(own.deviation))
                of_rest = rest.n_present(name, column) >= self._fewest(rest.deviation)
                found = {"column": name, "what": what, "unit": "" if is_share else column.unit}
                found |= _compared(estimates[0], estimates[1], few, ~of_rest, spread)
                parts.append({key: found[key] for key in found if what not in SHAPES or key not in DIFFERENCES})
        table = {
            name: np.concatenate([np.full(self.n_clusters, part.get(name, np.nan)) for part in parts])
            for name in ("column", "what", "unit", *NUMBERS, "note")
        }
        clusters = np.tile(np.arange(self.n_clusters), len(parts))
        return pd.DataFrame({"cluster": clusters, **table}).sort_values("cluster", kind="stable", ignore_index=True)

    def _sizes(self, own: Group) -> dict[str, Any]:
        total = max(float(own.n_rows.sum()), LEAST)
        (shares,) = on_simplex(own.n_rows[None, :] / total)
        errors = min(own.deviation / math.sqrt(own.information) / total, 1.0)
        errors = errors * np.sqrt((1 - shares) ** 2 + shares**2 * (self.n_clusters - 1))
        sizes = dict(zip(OF_OWN, _within(shares, errors, 0, 1), strict=True))
        return {"column": "", "what": "share of rows", "unit": "", "note": "", **sizes}

    def _fewest(self, deviation: float) -> float:
        return max(0.0 if self.of_clients else FLOOR, FLOOR_DEVIATIONS * deviation, LEAST)

    def sentences(self, cluster: int) -> list[str]:
        """Return the size of a cluster and how it differs from the rest, the largest difference first."""
        frame = self.frame[self.frame["cluster"] == cluster]
        size = frame.iloc[0]
        said = [f"{words.percent(size['value'], DEVIATIONS * size['error'])} of the rows"]
        clear = frame[frame["effect"].abs() > DEVIATIONS * frame["effect_error"]]
        clear = clear[~clear["what"].isin(SHAPES) & (clear["effect"].abs() >= LEAST_TOLD)]
        numbers = zip(clear["what"], clear["difference"], clear["difference_error"], strict=True)
        told = [what != "mean" or words.shows_a_difference(one, DEVIATIONS * error) for what, one, error in numbers]
        clear = clear[np.array(told, dtype=bool)]
        order = clear["effect"].abs().sort_values(ascending=False, kind="stable").index
        for _, row in clear.loc[order].head(MOST_TOLD).iterrows():
            medians = frame[(frame["column"] == row["column"]) & (frame["what"] == "median")].to_dict("records")
            column = self.preparation.schema.columns[row["column"]]
            ends = edges_of(self.preparation, row["column"], column)[[0, -1]].tolist() if medians else ()
            said.append(words.difference(column, row, medians[0] if medians else {}, DEVIATIONS, ends))
        return said

    def part_beyond(self, name: str) -> tuple[float, float]:
        """Return the part of a measured column's values in all rows beyond its bounds, and the deviation of its noise.

        Parameters
        ----------
        name : str
            Of a measured column.
        """
        whole = Group(
            self.preparation, self.sums.sum(axis=0, keepdims=True), self.deviation * math.sqrt(self.n_clusters)
        )
        below, errors = shares_below(whole, name, self.preparation.schema.columns[name])
        return float(1.0 + below[0, 0] - below[0, -1]), float(np.hypot(errors[0, 0], errors[0, -1]))

    @cached_property
    def bounds(self) -> list[str]:
        """For each measured column its bounds, and the largest shares of each cluster's rows that may lie beyond."""
        said = []
        for name, column in self.preparation.schema.used.items():
            if column.kind in MEASURED:
                ends, found = edges_of(self.preparation, name, column), self.frame[self.frame["column"] == name]
                limits = [found.loc[found["what"] == what, "high"].tolist() for what in (BELOW, ABOVE)]
                said.append(words.bounds(name, column, ends, limits))
        return said

    def __str__(self) -> str:
        lines = []
        for cluster in range(self.n_clusters):
            size, *others = self.sentences(cluster)
            lines += [f"Cluster {cluster}: {size}", *(f"  {one}" for one in others)]
            if not others:
                lines.append("  nothing stands out of the noise")
        if self.deviation > 0:
            lines.append(f"± is {DEVIATIONS:g} standard deviations of the noise.")
        if self.bounds:
            which = f"clusters 0 to {self.n_clusters - 1}" if self.n_clusters > 1 else "cluster 0"
            lines.append(f"Values beyond these bounds count as the bound. At most this share of the rows of {which}:")
            for one in self.bounds:
                lines += textwrap.wrap(one, 116, initial_indent="  ", subsequent_indent="    ")
        return "\n".join(lines)

    __repr__ = __str__

    def to_csv(self, path: str | Path) -> Path:
        """Write :attr:`frame` as CSV, and return its absolute path."""
        target = Path(path).absolute()
        self.frame.to_csv(target, index=False, float_format="%.9g")
        return target

    def to_dict(self) -> dict[str, Any]:
        """Return the description, ready for JSON."""
        known = {"preparation": self.preparation.to_dict(), "sums": self.sums.tolist()}
        return {**known, "deviation": self.deviation, "of_clients": self.of_clients}

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Self:
        """Undo :meth:`to_dict`."""
        preparation = Preparation.from_dict(written["preparation"])
        return cls(preparation, np.array(written["sums"]), float(written["deviation"]), bool(written["of_clients"]))


def _compared(
    own: Estimate, rest: Estimate, few: NDArray[np.bool_], few_in_rest: NDArray[np.bool_], spread: float
) -> dict[str, Any]:
    """Compare a cluster's numbers of one kind with the rest; NaN where there are too few rows."""
    found: dict[str, Any] = {key: np.where(few, np.nan, one) for key, one in zip(OF_OWN, own, strict=True)}
    found |= {key: np.where(few | few_in_rest, np.nan, one) for key, one in zip(OF_REST, rest, strict=True)}
    for key, error in ("value", "error"), ("rest", "rest_error"):  # a quantile that may lie anywhere
        found[key] = np.where(np.isfinite(found[error]) | np.isnan(found[error]), found[key], np.nan)
    apart, error = found["value"] - found["rest"], np.hypot(found["error"], found["rest_error"])
    is_loud = ~few & ~(found["error"] <= spread / 2)
    hidden = few | is_loud | ~(found["rest_error"] <= spread / 2)
    limits = [found[key] for key in ("low", "high", "rest_low", "rest_high")]
    clipped = np.any([np.isinf(one) for one in limits], axis=0)
    found["difference"], found["difference_error"] = (np.where(clipped, np.nan, one) for one in (apart, error))
    with np.errstate(divide="ignore", invalid="ignore"):
        found["effect"], found["effect_error"] = (np.where(hidden, np.nan, one / spread) for one in (apart, error))
    if spread == 0:
        found["effect"] = np.where(few, np.nan, 0.0)
    found["note"] = np.select([few, is_loud], ["few", "noise"], "")
    return found
