"""Describe the clusters of a table in its units: in sentences, as a DataFrame, and as the Table One of a paper.

The only input is one sum per cluster over its rows (see
:mod:`~flower_fedclust.tables.cluster_sums`), exact or noisy. Shares, means, standard deviations and
quantiles are estimated from it, each with its error. Each number is compared with the same number
for all other rows, and a difference that stands out of the noise becomes a sentence. Counts below
the floor are hidden, and so is everything from which they could be computed.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.tables import words
from flower_fedclust.tables.cluster_sums import edges_of, places_of, places_of_bins
from flower_fedclust.tables.estimates import (
    ABOVE,
    BELOW,
    MEAN,
    QUANTILES,
    SPREAD,
    Estimate,
    Group,
    floored,
    measures_of,
    on_simplex,
    shares_below,
    shares_of,
    spread_of,
)
from flower_fedclust.tables.floors import DEVIATIONS, FLOOR, LEAST, ROWS, Floor
from flower_fedclust.tables.preparation import Preparation
from flower_fedclust.tables.schema import MEASURED, Column
from flower_fedclust.tables.table_one import TableOne, lines_of_column, lines_of_sizes, standardized

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

#: Numbers of a cluster that are not compared with the same number of all other rows: quantiles, standard deviations,
#: and shares beyond the bounds.
SHAPES = (*QUANTILES, SPREAD, BELOW, ABOVE)
OF_OWN = ("value", "error", "low", "high", "fewer_than")
OF_REST = ("rest", "rest_error", "rest_low", "rest_high", "rest_fewer_than")
DIFFERENCES = ("difference", "difference_error", "effect", "effect_error", "smd", "smd_error")
NUMBERS = (*OF_OWN, *OF_REST, *DIFFERENCES)
#: The decimal places of an effect (a difference in standard deviations) that was computed without noise.
EFFECT_DIGITS = 2
#: How many differences from all other rows are printed for a cluster at most.
MOST_TOLD = 5
#: The smallest difference that is printed, in standard deviations of the column.
LEAST_TOLD = 0.1


@dataclass(frozen=True)
class Clusters:
    """A description of the clusters, with the uncertainty of every number.

    A number is uncertain because of noise, because values were clipped to bounds, and because
    measured columns were counted in intervals. ``print(clusters)`` says in a few sentences how each
    cluster differs from all other rows, and which bounds were used.

    Parameters
    ----------
    preparation : Preparation
        With the intervals in which measured columns were counted.
    sums : ndarray of shape (n_clusters, n_sums)
        The sums of each cluster, with or without noise, in the order of :func:`places_of`.
    deviation : float, default=0
        The standard deviation of the noise in each sum.
    of_clients : bool, default=False
        Whether these are sums of the clients' means, so that all clients count equally.
    floor : int, default=10
        The smallest number of rows that is printed. In place of a smaller number, only "fewer than
        10" is printed. With 0, all numbers are printed. If the noise protects whole clients, the
        floor is not applied, because the sums do not count rows.
    counted : "rows" or "persons", default="rows"
        What the sums count. If each row is a part of a person, they count persons.
    """

    preparation: Preparation
    sums: Floats
    deviation: float = 0.0
    of_clients: bool = False
    floor: int = FLOOR
    counted: str = ROWS

    @property
    def n_clusters(self) -> int:
        """The number of clusters that are described."""
        return len(self.sums)

    @cached_property
    def groups(self) -> Groups:
        """The sums of each cluster, of the rows outside it, and of all rows.

        Exact sums are first replaced by what may be known of them without counts below the floor.
        """
        floor = Floor(0, of_rows=False) if self.of_clients else Floor(self.floor)
        if self.deviation == 0 and floor.least > 0:
            return Groups.of_exact_sums(self.preparation, self.sums, floor)
        whole, n_clusters = self.sums.sum(axis=0, keepdims=True), self.n_clusters
        return Groups(
            cluster=Group(self.preparation, self.sums, self.deviation, floor),
            rest=Group(
                self.preparation,
                whole - self.sums,
                self.deviation * math.sqrt(n_clusters - 1),
                floor,
            ),
            whole=Group(self.preparation, whole, self.deviation * math.sqrt(n_clusters), floor),
        )

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A DataFrame with a row for each number.

        Columns: ``cluster``; ``column`` of the table, empty for the size; ``what`` ("share of rows"
        and "rows", or "share of persons" and "persons"; "mean", "standard deviation", "first
        quartile", "median", "third quartile", "below the bounds" and "above the bounds", which are
        shares; "missing", or a category); ``unit``; ``value``; ``error``, the standard deviation of
        its noise; ``low`` and ``high``, between which the true number lies: two standard deviations
        of the noise on either side, and for quantiles the edges of intervals of the range. A mean
        whose column is clipped has no ``high`` (inf), no ``low`` or neither; the value is then the
        mean of the clipped values. A number of rows below the floor, or its share, has no
        ``value``; instead ``fewer_than`` is the number of rows below which it lies. Columns that
        begin with ``rest`` describe all other rows. Means and shares of categories also have the
        ``difference`` and its error; the ``effect``, which is the difference in standard deviations
        of the column, and its ``effect_error``; and ``smd``, the standardized mean difference that
        papers report, where the unit is the root of the mean of the two variances. ``note`` is
        "few" if there are too few rows for any number, and "noise" if the error is above half of
        the column's standard deviation (then there is no effect). Dates are days since 1970.
        """
        import pandas as pd

        parts = [*self._size_parts()]
        for name, column in self.preparation.schema.used.items():
            parts += self._parts_of_column(name, column)
        table = {
            name: np.concatenate(
                [np.full(self.n_clusters, part.get(name, np.nan)) for part in parts]
            )
            for name in ("column", "what", "unit", *NUMBERS, "note")
        }
        clusters = np.tile(np.arange(self.n_clusters), len(parts))
        return pd.DataFrame({"cluster": clusters, **table}).sort_values(
            "cluster", kind="stable", ignore_index=True
        )

    def _size_parts(self) -> list[dict[str, Any]]:
        """Return the rows of :attr:`frame` about sizes: shares and, unless the sums count clients, numbers of rows."""
        named: dict[str, Any] = {"column": "", "unit": "", "note": ""}
        parts = [{**named, "what": f"share of {self.counted}", **_printed(OF_OWN, self.sizes)}]
        if not self.of_clients:
            cluster = self.groups.cluster
            counts = Estimate.within(
                cluster.n_rows, np.full(self.n_clusters, cluster.noise_of_rows), 0.0
            )
            limit = self.sizes.fewer_than
            low, high = (
                np.where(np.isnan(limit), limits, end)
                for limits, end in ((counts.low, 0.0), (counts.high, limit))
            )
            counts = Estimate(counts.value, counts.error, low, high, limit)
            parts.append({**named, "what": self.counted, **_printed(OF_OWN, counts)})
        return parts

    @cached_property
    def sizes(self) -> Estimate:
        """Each cluster's share of all rows; if the floor hides a share, only its upper limit is known."""
        cluster = self.groups.cluster
        total = max(float(self.groups.whole.n_rows[0]), LEAST)
        shares, half = cluster.n_rows / total, np.zeros(self.n_clusters)
        if cluster.deviation > 0:
            (shares,) = on_simplex(np.maximum(cluster.n_rows, -total)[None, :] / total)
        elif cluster.floor.least > 0:
            known = cluster.floor.known_of(cluster.n_rows[:, None], add_up=False)
            shares, half = known.middle[:, 0] / total, known.half[:, 0] / total
        errors = min(cluster.noise_of_rows / total, 1.0) * np.sqrt(
            (1 - shares) ** 2 + shares**2 * (self.n_clusters - 1)
        )
        return floored(cluster.floor, np.full(self.n_clusters, total), shares, errors, half)

    def _parts_of_column(self, name: str, column: Column) -> list[dict[str, Any]]:
        """Return the rows of the frame about one column of the table.

        There is a row for each number (mean, quantile, share of a category); it also holds the same
        number for all other rows. Without noise, effects are rounded, because exact effects and
        differences together would reveal small counts.
        """
        cluster, rest, whole = (_numbers_of(group, name, column) for group in self.groups)
        few, few_in_rest = self._few(name, column)
        parts = []
        for number in cluster:
            is_share = number not in (MEAN, SPREAD, *QUANTILES)
            in_all = float(whole[number].value[0])
            spread = (
                math.sqrt(in_all * (1 - in_all))
                if is_share
                else spread_of(self.groups.whole, name, column)
            )
            columns: dict[str, Any] = {
                "column": name,
                "what": number,
                "unit": "" if is_share else column.unit,
            }
            columns |= _compared(cluster[number], rest[number], few, few_in_rest, spread)
            if self.groups.cluster.deviation == 0 and self.groups.cluster.floor.least > 0:
                # The difference divided by an exact effect would be the standard deviation of all rows, which reveals
                # small counts.
                columns["effect"] = np.round(columns["effect"], EFFECT_DIGITS)
            if number not in SHAPES:
                columns |= _standardized(number, cluster, rest, few | few_in_rest)
            parts.append(
                {
                    key: columns[key]
                    for key in columns
                    if number not in SHAPES or key not in DIFFERENCES
                }
            )
        return parts

    def _few(self, name: str, column: Column) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Tell for each cluster whether too few of its rows, or of all other rows, have a value in the column."""
        cluster, rest, _ = (_has_few(group, name, column) for group in self.groups)
        return cluster, rest

    def table_one(self) -> TableOne:
        """Return the table that papers begin with: a column for all rows and one for each cluster.

        For each measured column it has the mean and the standard deviation, the median and the
        quartiles; for each category its share; and the standardized mean difference of each cluster
        from all other rows. Beside each number is its error.
        """
        cluster, rest, whole = self.groups
        sizes = _joined(self.sizes, Estimate.within(np.ones(1), np.zeros(1), 0, 1))
        counts = None if self.of_clients else np.concatenate([cluster.n_rows, whole.n_rows])
        noise = np.repeat([cluster.noise_of_rows, whole.noise_of_rows], [self.n_clusters, 1])
        lines = lines_of_sizes(counts, noise, sizes, self.counted)
        for name, column in self.preparation.schema.used.items():
            of_own = _numbers_of(cluster, name, column)
            of_rest = _numbers_of(rest, name, column)
            of_whole = _numbers_of(whole, name, column)
            both = {number: _joined(of_own[number], of_whole[number]) for number in of_own}
            smd = {}
            for number in of_own:
                if number not in SHAPES:
                    smd[number] = standardized(*_compared_by(number, of_own, of_rest))
            few = np.concatenate([_has_few(cluster, name, column), _has_few(whole, name, column)])
            ends = []
            if column.kind in MEASURED:
                ends = edges_of(self.preparation, name, column)[[0, -1]].tolist()
            lines += lines_of_column(name, column, ends, both, smd, few)
        heading = (
            "",
            f"all {self.counted}",
            *(f"cluster {index}" for index in range(self.n_clusters)),
        )
        return TableOne(heading, tuple(lines), tuple(self._notes()))

    def _notes(self) -> list[str]:
        """Return the notes of Table One: what "±" means, and which clusters the floor leaves out."""
        said = []
        if self.deviation > 0:
            said.append(f"± is {DEVIATIONS:g} standard deviations of the noise.")
        elif self.sizes.is_hidden.any():
            said.append(
                f"Clusters of fewer than {self.floor} rows are left out of all rows and of the rest."
            )
        return said

    def sentences(self, cluster: int) -> list[str]:
        """Return the size of a cluster, then how it differs from the rest, the largest difference first.

        At most :data:`MOST_TOLD` differences are returned, and only differences that still exceed
        their error when both are rounded.
        """
        frame = self.frame[self.frame["cluster"] == cluster]
        size = frame.iloc[0]
        error = DEVIATIONS * size["error"]
        said = [words.size(size["value"], error, size["fewer_than"], size["high"], self.counted)]
        clear = frame[frame["effect"].abs() > DEVIATIONS * frame["effect_error"]]
        clear = clear[~clear["what"].isin(SHAPES) & (clear["effect"].abs() >= LEAST_TOLD)]
        numbers = zip(clear["what"], clear["difference"], clear["difference_error"], strict=True)
        told = [
            number != "mean" or words.shows_a_difference(estimate, DEVIATIONS * error)
            for number, estimate, error in numbers
        ]
        clear = clear[np.array(told, dtype=bool)]
        order = clear["effect"].abs().sort_values(ascending=False, kind="stable").index
        for _, row in clear.loc[order].head(MOST_TOLD).iterrows():
            medians = frame[
                (frame["column"] == row["column"]) & (frame["what"] == "median")
            ].to_dict("records")
            column = self.preparation.schema.columns[row["column"]]
            ends = (
                edges_of(self.preparation, row["column"], column)[[0, -1]].tolist()
                if medians
                else ()
            )
            said.append(
                words.difference(
                    column, row, medians[0] if medians else {}, DEVIATIONS, ends, self.counted
                )
            )
        return said

    def part_beyond(self, name: str) -> tuple[float, float]:
        """Return the share of a measured column's values beyond its bounds, and the noise's standard deviation.

        Parameters
        ----------
        name : str
            The name of a measured column.
        """
        below, errors = shares_below(self.groups.whole, name, self.preparation.schema.columns[name])
        return float(1.0 + below[0, 0] - below[0, -1]), float(np.hypot(errors[0, 0], errors[0, -1]))

    @cached_property
    def bounds(self) -> list[str]:
        """The bounds of each measured column, in words.

        For each cluster, they also say the largest share of rows that may lie beyond the bounds.
        """
        said = []
        for name, column in self.preparation.schema.used.items():
            if column.kind in MEASURED:
                ends, clipped = (
                    edges_of(self.preparation, name, column),
                    self.frame[self.frame["column"] == name],
                )
                limits = [
                    clipped.loc[clipped["what"] == side, "high"].tolist() for side in (BELOW, ABOVE)
                ]
                said.append(words.bounds(name, column, ends, limits))
        return said

    def __str__(self) -> str:
        lines = []
        for cluster in range(self.n_clusters):
            size, *others = self.sentences(cluster)
            lines += [f"Cluster {cluster}: {size}", *(f"  {other}" for other in others)]
            if not others:
                lines.append("  nothing stands out of the noise")
        lines += self._notes()
        if self.bounds:
            which = f"clusters 0 to {self.n_clusters - 1}" if self.n_clusters > 1 else "cluster 0"
            said = f"At most this share of the {self.counted} of {which}:"
            lines.append(f"Values beyond these bounds count as the bound. {said}")
            for line in self.bounds:
                lines += textwrap.wrap(line, 116, initial_indent="  ", subsequent_indent="    ")
        return "\n".join(lines)

    __repr__ = __str__

    def to_csv(self, path: str | Path) -> Path:
        """Write :attr:`frame` as CSV, and return its absolute path."""
        target = Path(path).absolute()
        self.frame.to_csv(target, index=False, float_format="%.9g")
        return target

    def to_dict(self) -> dict[str, Any]:
        """Return the fields (the sums and what they mean), ready for JSON."""
        known = {"preparation": self.preparation.to_dict(), "sums": self.sums.tolist()}
        about = {"of_clients": self.of_clients, "floor": self.floor, "counted": self.counted}
        return {**known, "deviation": self.deviation, **about}

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Self:
        """Undo :meth:`to_dict`."""
        preparation = Preparation.from_dict(written["preparation"])
        of_clients, floor, counted = (
            bool(written["of_clients"]),
            int(written["floor"]),
            str(written["counted"]),
        )
        return cls(
            preparation,
            np.array(written["sums"]),
            float(written["deviation"]),
            of_clients,
            floor,
            counted,
        )


class Groups(NamedTuple):
    """The sums of each cluster, of the rows outside it (the rest), and of all rows (the whole)."""

    cluster: Group
    rest: Group
    whole: Group

    @classmethod
    def of_exact_sums(cls, preparation: Preparation, sums: Floats, floor: Floor) -> Groups:
        """Return groups of exact sums from which no count that the floor hides can be computed.

        Clusters below the floor count neither in the rest nor in the whole. Each count below the
        floor is replaced by an interval in which it lies. If fewer rows of a cluster than the floor
        have a value in a column, these values are left out. The number of gaps would reveal how
        many they are, so it is replaced by an interval as well.
        """
        is_shown = ~floor.hides(sums[:, 0], 0.0)
        exact = np.where(is_shown[:, None], sums, 0.0)
        middle, half = exact.copy(), np.zeros_like(exact)
        for name, column in preparation.schema.used.items():
            place = places_of_bins(preparation, name)
            counts = floor.known_of(exact[:, place], add_up=column.kind not in MEASURED)
            middle[is_shown, place], half[is_shown, place] = (
                counts.middle[is_shown],
                counts.half[is_shown],
            )
            if column.kind in MEASURED and column.gaps != "refuse":
                # So few values are not used anywhere. Nor is the number of gaps, which would reveal how many values
                # there are.
                gap, whole = place.stop - 1, places_of(preparation)[name]
                is_few = is_shown & floor.hides(exact[:, 0] - exact[:, gap], 0.0)
                exact[is_few, whole] = 0.0
                exact[is_few, gap] = exact[is_few, 0]
                half[is_few, gap] = (floor.least - 1) / 2
                middle[is_few, gap] = exact[is_few, 0] - half[is_few, gap]
        cluster = Group(
            preparation, np.where(is_shown[:, None], exact, sums), 0.0, floor, (middle, half)
        )
        others = [sums.sum(axis=0, keepdims=True) - sums for sums in (exact, middle, half)]
        in_all = [sums.sum(axis=0, keepdims=True) for sums in (exact, middle, half)]
        return cls(
            cluster,
            Group(preparation, others[0], 0.0, floor, (others[1], others[2])),
            Group(preparation, in_all[0], 0.0, floor, (in_all[1], in_all[2])),
        )


def _has_few(group: Group, name: str, column: Column) -> NDArray[np.bool_]:
    """Tell for each cluster of a group whether too few rows have a value in the column to print any number about it."""
    counts = group.n_present(name, column)
    return group.floor.hides(counts, group.deviation) | ~(counts >= LEAST)


def _numbers_of(group: Group, name: str, column: Column) -> dict[str, Estimate]:
    """Return all numbers of a group about a column, by name."""
    shares = shares_of(group, name, column)
    return measures_of(group, name, column) | shares if column.kind in MEASURED else shares


def _joined(first: Estimate, last: Estimate) -> Estimate:
    """Return the estimates of two sets of groups, one after the other."""
    pairs = (
        (getattr(estimate, name) for estimate in (first, last))
        for name in ("value", "error", "low", "high", "fewer_than")
    )
    return Estimate(*(np.concatenate(list(pair)) for pair in pairs))


def _compared_by(
    number: str, cluster: Mapping[str, Estimate], rest: Mapping[str, Estimate]
) -> tuple[Estimate, ...]:
    """Return the estimates behind a standardized difference: two shares, or two means and two standard deviations."""
    if number != MEAN:
        return cluster[number], rest[number]
    return cluster[MEAN], rest[MEAN], cluster[SPREAD], rest[SPREAD]


def _standardized(
    number: str,
    cluster: Mapping[str, Estimate],
    rest: Mapping[str, Estimate],
    few: NDArray[np.bool_],
) -> dict[str, Floats]:
    """Return the standardized mean differences and their errors; NaN where there are too few rows."""
    pair = standardized(*_compared_by(number, cluster, rest))
    return {
        key: np.where(few, np.nan, values)
        for key, values in zip(("smd", "smd_error"), pair, strict=True)
    }


def _printed(keys: Sequence[str], estimate: Estimate) -> dict[str, Floats]:
    """Return the columns of the frame for an estimate. A share that the floor hides has limits and no value."""
    value, error = (
        np.where(estimate.is_hidden, np.nan, values) for values in (estimate.value, estimate.error)
    )
    # A quantile with an infinite error may lie anywhere, and has no value.
    value, error = (
        np.where(np.isfinite(error) | np.isnan(error), values, np.nan) for values in (value, error)
    )
    return dict(
        zip(keys, (value, error, estimate.low, estimate.high, estimate.fewer_than), strict=True)
    )


def _compared(
    cluster: Estimate,
    rest: Estimate,
    few: NDArray[np.bool_],
    few_in_rest: NDArray[np.bool_],
    spread: float,
) -> dict[str, Any]:
    """Return the columns of the frame that compare a cluster with the rest in one number.

    Parameters
    ----------
    cluster, rest : Estimate
    few, few_in_rest : ndarray of bool of shape (n_clusters,)
        Whether a cluster, or the rest, has too few rows to print any number.
    spread : float
        The standard deviation of the column over all rows; the effect is the difference in this
        unit.
    """
    columns: dict[str, Any] = {
        key: np.where(few, np.nan, values) for key, values in _printed(OF_OWN, cluster).items()
    }
    columns |= {
        key: np.where(few | few_in_rest, np.nan, values)
        for key, values in _printed(OF_REST, rest).items()
    }
    apart, error = cluster.value - rest.value, np.hypot(cluster.error, rest.error)
    is_open = few | few_in_rest | ~np.isfinite(apart) | ~np.isfinite(error)
    is_loud = ~few & ~(cluster.error <= spread / 2)
    hidden = is_open | is_loud | ~(rest.error <= spread / 2)
    limits = (cluster.low, cluster.high, rest.low, rest.high)
    # No difference is given if a mean is only a limit, or if it would reveal a share that the floor hides.
    is_limit = (
        np.any([np.isinf(limit) for limit in limits], axis=0) | cluster.is_hidden | rest.is_hidden
    )
    columns["difference"], columns["difference_error"] = (
        np.where(is_open | is_limit, np.nan, values) for values in (apart, error)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        columns["effect"], columns["effect_error"] = (
            np.where(hidden, np.nan, values / spread) for values in (apart, error)
        )
    if spread == 0:
        columns["effect"] = np.where(few, np.nan, 0.0)
    columns["note"] = np.select([few, is_loud], ["few", "noise"], "")
    return columns
