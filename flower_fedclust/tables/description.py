"""Describe the clusters of a table in its units, from sums over the rows of each cluster.

Each row adds a vector to the sums of its cluster: 1; for a measured column the value and its square, on the scale on
which the column's bounds are -1 and 1, and 1 at the part of the range that holds the value; for a listed column 1 at
its value; and 1 where a value is missing. With m measured columns and c listed ones, the Euclidean norm of this vector
is at most the square root of ``1 + 3 m + c``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact.terms import Term, at, powers, side_by_side
from flower_fedclust.tables.histograms import bins_of, on_interval
from flower_fedclust.tables.preparation import Preparation, measured
from flower_fedclust.tables.schema import EPOCH, MEASURED, Column

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

#: Fewer rows than this, or than this many standard deviations of their noise, are not described: among many rare
#: categories, noise would make some look frequent.
FLOOR, FLOOR_DEVIATIONS = 10, 3.0
#: Equal parts of the range of a measured column in which rows are counted for quantiles.
N_PARTS = 16
QUANTILES = {"first quartile": 0.25, "median": 0.5, "third quartile": 0.75}
NUMBERS = ("value", "error", "rest", "rest_error", "difference", "difference_error", "effect")
#: Numbers that are in the table, but in no sentence.
SHAPES = ("standard deviation", *QUANTILES)
#: The largest logarithm of a bound; beyond it the bound would not be a float.
LARGEST_LOGARITHM = 709.0
#: How many differences to the rest to print for a cluster, and the least, in standard deviations of the column.
MOST_TOLD, LEAST_TOLD = 5, 0.1


def places_of(preparation: Preparation) -> dict[str, slice]:
    """Return the places of each column's sums; the number of rows has the first place."""
    found, start = {}, 1
    for name, column in preparation.schema.used.items():
        width = 2 + N_PARTS if column.kind in MEASURED else len(column.categories or ())
        found[name] = slice(start, start := start + width + (column.gaps != "refuse"))
    return found


def cluster_sums(
    columns: Iterable[tuple[str, Column, Floats]],
    preparation: Preparation,
    labels: NDArray[np.intp],
    n_clusters: int,
) -> Term:
    """Add what describes each row to the sums of its cluster; of shape (n_clusters, n_sums)."""
    labels = np.where((labels >= 0) & (labels < n_clusters), labels, n_clusters)  # a row in no cluster counts nowhere
    terms = [at(labels, n_clusters).reshaped(n_clusters, 1)]
    for name, column, values in columns:
        if column.kind in MEASURED:
            found, n_places = preparation.figures[name], N_PARTS
            ends = natural_bounds(preparation, name, column)
            terms.append(powers(on_interval(values, *ends), labels, n_clusters))
            codes = bins_of(measured(values, column), found.low, found.high, n_places)
        else:
            n_places = len(column.categories or ())
            codes = np.where(np.isnan(values), n_places, values).astype(np.intp)
        width = n_places + (column.gaps != "refuse")
        places = np.where(codes < width, labels * width + codes, n_clusters * width)
        terms.append(at(places, n_clusters * width).reshaped(n_clusters, width))
    words = "a row is in one cluster, and in each column in one category or part of the range, with a number of -1 to 1"
    return side_by_side(terms, words=words)


def natural_bounds(preparation: Preparation, name: str, column: Column) -> tuple[float, float]:
    """Return the bounds of a measured column in its own units, or in days since 1970."""
    found = preparation.figures[name]
    if not column.logarithm:
        return found.low, found.high
    low, high = (math.expm1(min(bound, LARGEST_LOGARITHM)) for bound in (found.low, found.high))
    return low, high


@dataclass(frozen=True)
class Clusters:
    """A description of the clusters, with the standard error of every number from the noise.

    ``print(clusters)`` says in a few sentences how each cluster differs from the rest; ``±`` is two standard errors.

    Parameters
    ----------
    preparation : Preparation
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

        Columns: ``cluster``; ``column`` of the table, empty for the size; ``what`` ("share of rows", "mean", "standard
        deviation", "first quartile", "median", "third quartile", "missing", or a category); ``unit``; ``value`` and its
        ``error``; the same for the ``rest`` of the rows; their ``difference``, its error, and the ``effect``, which is
        the difference in standard deviations of the column; ``note``: "few" if there are too few rows, and "noise" if
        the standard error is above half of the column's standard deviation (such numbers are left out); and ``width``,
        the part of the range in which a quantile is interpolated. Errors are standard errors, of the noise alone. Dates
        are days since 1970.
        """
        import pandas as pd

        parts = [self._sizes()]
        whole = self.sums.sum(axis=0, keepdims=True)
        rest = whole - self.sums, self.deviation * math.sqrt(self.n_clusters - 1)
        for name, column in self.preparation.schema.used.items():
            own, others, all_rows = (
                self._numbers(name, column, *sums) for sums in ((self.sums, self.deviation), rest, (whole, 0.0))
            )
            for what, (value, error, counts) in own.items():
                beside, of_beside, _ = others[what]
                in_all = float(all_rows[what][0][0])
                is_share = what == "missing" or column.kind not in MEASURED
                spread = all_rows["standard deviation"][0][0] if not is_share else math.sqrt(in_all * (1 - in_all))
                few = counts < max(0.0 if self.of_clients else FLOOR, FLOOR_DEVIATIONS * self.deviation)
                loud = ~few & ~(error <= spread / 2)
                shown, both = ~few & ~loud, ~few & ~loud & (of_beside <= spread / 2)
                value, error = np.where(shown, value, np.nan), np.where(shown, error, np.nan)
                beside, of_beside = np.where(both, beside, np.nan), np.where(both, of_beside, np.nan)
                found: dict[str, Any] = {"column": name, "what": what, "unit": "" if is_share else column.unit}
                found |= {"value": value, "error": error, "rest": beside, "rest_error": of_beside}
                found |= {"difference": value - beside, "difference_error": np.hypot(error, of_beside)}
                found["effect"] = (value - beside) / spread if spread > 0 else 0.0
                found["note"] = np.select([few, loud], ["few", "noise"], "")
                if what in QUANTILES:
                    edges = self._edges(name, column)
                    found["width"] = np.diff(edges)[np.clip(np.searchsorted(edges, value) - 1, 0, N_PARTS - 1)]
                parts.append(found)
        table = {
            name: np.concatenate([np.full(self.n_clusters, part.get(name, np.nan)) for part in parts])
            for name in ("column", "what", "unit", *NUMBERS, "note", "width")
        }
        clusters = np.tile(np.arange(self.n_clusters), len(parts))
        return pd.DataFrame({"cluster": clusters, **table}).sort_values("cluster", kind="stable", ignore_index=True)

    def _sizes(self) -> dict[str, Any]:
        total = max(float(self.sums[:, 0].sum()), np.finfo(float).tiny)
        shares = self.sums[:, 0] / total
        errors = self.deviation / total * np.sqrt((1 - shares) ** 2 + shares**2 * (self.n_clusters - 1))
        sizes = {"value": np.clip(shares, 0.0, 1.0), "error": errors}
        return {"column": "", "what": "share of rows", "unit": "", "note": "", **sizes}

    def _numbers(
        self, name: str, column: Column, sums: Floats, noise: float
    ) -> dict[str, tuple[Floats, Floats, Floats]]:
        """Return values, their standard errors, and their numbers of rows, by what they are."""
        part = sums[:, places_of(self.preparation)[name]]
        n_rows = sums[:, 0]
        missing = part[:, -1] if column.gaps != "refuse" else None
        counts = n_rows if missing is None else n_rows - missing
        kept = np.where(counts > 0, counts, np.nan)
        n_noises = 1 if missing is None else 2
        found = {}
        if column.kind in MEASURED:
            low, high = natural_bounds(self.preparation, name, column)
            half = (high - low) / 2
            mean, square = part[:, 0] / kept, part[:, 1] / kept
            error = noise / kept * np.sqrt(1 + n_noises * mean**2)
            variance = np.maximum(square - mean**2, 0.0)
            of_variance = noise / kept * np.sqrt(1 + 4 * mean**2 + n_noises * (2 * mean**2 - square) ** 2)
            # If the variance may be noise alone, its root is meaningless.
            deviation = np.sqrt(np.where(variance >= 2 * of_variance, variance, np.nan))
            found["mean"] = (low + half * (1 + np.clip(mean, -1, 1)), half * error, counts)
            found["standard deviation"] = (
                half * deviation,
                half * of_variance / np.maximum(2 * deviation, np.finfo(float).tiny),
                counts,
            )
            found |= self._quantiles(name, column, part[:, 2 : 2 + N_PARTS], counts, noise, n_noises)
        else:
            for place, category in enumerate(column.categories or ()):
                found[category] = _share(part[:, place], n_rows, noise)
        if missing is not None:
            found["missing"] = _share(missing, n_rows, noise)
        return found

    def _edges(self, name: str, column: Column) -> Floats:
        bounds = self.preparation.figures[name]
        edges = np.linspace(bounds.low, bounds.high, N_PARTS + 1)
        return np.expm1(edges) if column.logarithm else edges

    def _quantiles(
        self, name: str, column: Column, parts: Floats, counts: Floats, noise: float, n_noises: int
    ) -> dict[str, tuple[Floats, Floats, Floats]]:
        """Return the quantiles of a measured column, from the numbers of rows in the parts of its range.

        The error of a quantile is half of the distance to the quantiles two standard errors of its rank away. There is
        no quantile if one of these is beyond the range.
        """
        edges, found = self._edges(name, column), {}
        values, errors = np.full((2, len(QUANTILES), len(counts)), np.nan)
        for cluster, (own, n_rows) in enumerate(zip(parts, counts, strict=True)):
            if not n_rows > 0:
                continue
            ranks, variances = _ranks(own, n_rows, n_noises)
            for index, part in enumerate(QUANTILES.values()):
                value = np.interp(part, ranks, edges)
                variance = np.interp(part, ranks, variances) + part**2 * n_noises
                reach = 2 * noise * math.sqrt(variance) / n_rows
                if reach < min(part, 1 - part):
                    ends = np.interp([part - reach, part + reach], ranks, edges)
                    values[index, cluster], errors[index, cluster] = value, np.abs(ends - value).max() / 2
        for what, value, error in zip(QUANTILES, values, errors, strict=True):
            found[what] = value, error, counts
        return found

    def sentences(self, cluster: int) -> list[str]:
        """Return the size of a cluster and how it differs from the rest, the largest difference first."""
        frame = self.frame[self.frame["cluster"] == cluster]
        size = frame.iloc[0]
        said = [f"{_percent(size['value'], size['error'])} of the rows"]
        clear = frame[frame["difference"].abs() > 2 * frame["difference_error"]]
        clear = clear[~clear["what"].isin(SHAPES) & (clear["effect"].abs() >= LEAST_TOLD)]
        order = clear["effect"].abs().sort_values(ascending=False, kind="stable").index
        for _, row in clear.loc[order].head(MOST_TOLD).iterrows():
            said.append(self._told(row))
        return said

    def _told(self, row: Any) -> str:
        if row["what"] != "mean":
            name = "is missing" if row["what"] == "missing" else f"is {row['what']}"
            beside = _percent(row["rest"], row["rest_error"])
            return f"{row['column']} {name}: {_percent(row['value'], row['error'])}, in the rest {beside}"
        column = self.preparation.schema.columns[row["column"]]
        unit = f" {column.unit}" if column.unit else ""
        more = "more" if row["difference"] > 0 else "less"
        if column.kind == "date":
            day = str(np.datetime64(EPOCH) + round(row["value"]))
            when = "later" if row["difference"] > 0 else "earlier"
            apart = _with_error(abs(row["difference"]), row["difference_error"])
            return f"{row['column']}: about {day}, {apart} days {when} than the rest"
        own = _with_error(row["value"], row["error"])
        apart = _with_error(abs(row["difference"]), row["difference_error"])
        return f"{row['column']}: {own}{unit}, {apart} {more} than the rest"

    def __str__(self) -> str:
        lines = []
        for cluster in range(self.n_clusters):
            size, *others = self.sentences(cluster)
            lines += [f"Cluster {cluster}: {size}", *(f"  {one}" for one in others)]
            if not others:
                lines.append("  nothing stands out of the noise")
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

    def to_json(self) -> str:
        """Return :meth:`to_dict` as JSON."""
        return json.dumps(self.to_dict())


def _ranks(parts: Floats, n_rows: float, n_noises: int) -> tuple[Floats, Floats]:
    """Return the part of the rows below each edge, in ascending order, and the variance of that number of rows.

    The rows below an edge are counted from below and, with the number of rows, from above. The two are weighted by
    their noise: a count has variance 1, the number of rows ``n_noises``.
    """
    from sklearn.isotonic import isotonic_regression

    below = np.concatenate([[0.0], np.cumsum(parts)])
    above = n_rows - (below[-1] - below)
    from_below = np.arange(len(below), dtype=np.float64)
    from_above = len(parts) - from_below + n_noises
    weight = from_above / (from_below + from_above)
    ascending = isotonic_regression(weight * below + (1 - weight) * above)
    ranks = np.clip(ascending / n_rows, 0.0, 1.0)
    ranks[0], ranks[-1] = 0.0, 1.0
    return ranks, from_below * weight


def _share(counts: Floats, n_rows: Floats, noise: float) -> tuple[Floats, Floats, Floats]:
    kept = np.where(n_rows > 0, n_rows, np.nan)
    share = counts / kept
    return np.clip(share, 0.0, 1.0), noise / kept * np.sqrt(1 + share**2), counts


def _percent(share: float, error: float) -> str:
    return f"{_with_error(100 * share, 100 * error)}%"


def _with_error(value: float, error: float) -> str:
    """Return a number and two of its standard errors, with as many digits as the error leaves."""
    two = 2 * error
    if not two > 0:
        return f"{value:.3g}"
    decimals = max(-math.floor(math.log10(two)), 0)
    return f"{value:,.{decimals}f} ± {two:,.{decimals}f}"
