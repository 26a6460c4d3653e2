"""The outcomes of the rows of each cluster: survival curves from one sum over rows, and their errors.

Each cluster has a count for each bin of time with the event, one for each bin without it, one for
times after the last bin, and one for missing outcomes. Each row is counted in one of these. So a
row adds 1 to at most one entry, whatever its time. The counts may have noise, and everything else
(curves, medians, the log-rank test) follows from them by :mod:`flower_fedclust.numerics.survival`.

Exact counts need care, because a curve with many digits reveals them. So they are added up over
several bins until none is too small to be printed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact.terms import Term, at
from flower_fedclust.names import some
from flower_fedclust.numerics.survival import DEVIATIONS, LEVEL, Interval, LifeTables, LogRank
from flower_fedclust.tables.floors import FLOOR, FLOOR_DEVIATIONS, ROWS
from flower_fedclust.tables.schema import TIME, Column, Schema

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

#: The curves are said to differ if the p-value is below this.
CLEAR = 0.05
#: Words for the rows with the event, if the schema has none.
HAPPENED = "had the event"


def n_places(n_bins: int) -> int:
    """Return the number of counts of a cluster; see :class:`Survival`."""
    return 2 * n_bins + 2


def time_sums(
    columns: Iterable[tuple[str, Column, Floats]],
    ends: Floats,
    labels: NDArray[np.intp],
    n_clusters: int,
) -> Term:
    """Count each row at one place of its cluster.

    Parameters
    ----------
    columns : iterable of (name, Column, values)
        The time to the event, the event and, if the schema has it, the time at which the row was
        made (``row_time``). A row that was made after time 0 is not counted.
    ends : ndarray of shape (n_bins,)
        Upper ends of the bins of time.
    labels : ndarray of shape (n_rows,)
        The cluster of each row; a row is not counted unless this is from 0 to n_clusters - 1.
    n_clusters : int

    Returns
    -------
    Term of shape (n_clusters, n_places)
    """
    read = {name: (column, values) for name, column, values in columns}
    (time,) = (column for column, _ in read.values() if column.kind == TIME)
    times = next(values for column, values in read.values() if column.kind == TIME)
    events, n_bins = read[time.event][1], len(ends)
    bins = np.searchsorted(ends, times, side="left")
    # A row without a known event counts as missing, even if its time is after all bins: otherwise only such rows with
    # a long time would count, and lift the curve.
    is_missing = np.isnan(times) | ~np.isin(events, (0.0, 1.0))
    codes = np.select(
        [is_missing, bins >= n_bins, events == 1.0],
        [2 * n_bins + 1, 2 * n_bins, bins],
        n_bins + bins,
    )
    counts = (labels >= 0) & (labels < n_clusters)
    if time.row_time:
        # A row whose row_time is missing may have been made after time 0, and is not counted (NaN <= 0 is False).
        counts &= read[time.row_time][1] <= 0.0
    places = np.where(counts, labels * n_places(n_bins) + codes, -1)
    return at(places, n_clusters * n_places(n_bins)).reshaped(n_clusters, n_places(n_bins))


@dataclass(frozen=True)
class Survival:
    """The outcomes of the rows of each cluster: curves, medians and a test, with their uncertainty.

    The uncertainty comes from noise and from sampling. ``print(survival)`` says in a sentence for
    each cluster when half of its rows had the event.

    Parameters
    ----------
    ends : ndarray of shape (n_bins,)
        Upper ends of the bins of time in which rows were counted.
    sums : ndarray of shape (n_clusters, 2 * n_bins + 2)
        For each cluster: the numbers of rows with an event in each bin, of rows without one in each
        bin, of rows after the last bin, and of rows whose time or event is missing; possibly with
        noise.
    deviation : float, default=0
        The standard deviation of the noise in each sum.
    unit : str, default=""
        Of time.
    happened : str, default="had the event"
        Words for those who had the event.
    floor : int, default=10
        The smallest number of rows that is printed. Numbers below three standard deviations of
        their noise are not printed either.
    counted : "rows" or "persons", default="rows"
        What the sums count. If each row is a part of a person, they count persons.
    """

    ends: Floats
    sums: Floats
    deviation: float = 0.0
    unit: str = ""
    happened: str = HAPPENED
    floor: int = FLOOR
    counted: str = ROWS

    @property
    def n_clusters(self) -> int:
        """The number of clusters."""
        return len(self.sums)

    @cached_property
    def tables(self) -> LifeTables:
        """The life tables of all counts as they were released.

        Everything that is printed follows from :attr:`printed` instead.
        """
        n_bins = len(self.ends)
        events, censored, beyond, _ = np.split(
            self.sums, [n_bins, 2 * n_bins, 2 * n_bins + 1], axis=1
        )
        return LifeTables(
            self.ends, events, censored, beyond[:, 0], self.deviation, fewest=self.floor
        )

    @cached_property
    def compared(self) -> list[int]:
        """The clusters that the log-rank test compares: all if there is noise, else those with a curve."""
        if self.deviation > 0:
            return list(range(self.n_clusters))
        return [cluster for cluster, places in enumerate(self._pooled) if len(places)]

    @cached_property
    def log_rank(self) -> LogRank | None:
        """The test of whether the clusters in :attr:`compared` have the same curve; None if too few rows are at risk.

        The p-value of all exact counts would reveal hidden ones. So without noise, the test uses
        only the counts at those ends of bins that the printed life tables of all these clusters
        have in common.
        """
        if self.deviation > 0:
            return self.tables.log_rank()
        if len(self.compared) < 2 or not len(self._in_common):
            return None
        each = [self._pooled_table(cluster, self._in_common) for cluster in self.compared]
        events, censored, beyond = (
            np.concatenate([getattr(table, name) for table in each])
            for name in ("events", "censored", "beyond")
        )
        return LifeTables(
            self.ends[self._in_common], events, censored, beyond, fewest=self.floor
        ).log_rank()

    @cached_property
    def printed(self) -> list[LifeTables]:
        """The life table of each cluster, from which its curve, rows at risk, median and mean are computed.

        With noise, the table has all counts. Exact counts are pooled, that is, added up over
        several bins: a curve with many digits would reveal them, and a cluster's size less its rows
        at risk would reveal how many rows are missing. They are pooled so far that between two ends
        of bins, three numbers are each 0 or at least the floor: rows that had the event, rows last
        seen, and rows that remain. If fewer rows than the floor have a missing outcome, they count
        as last seen in the first bin.
        """
        return [self._table_of(cluster) for cluster in range(self.n_clusters)]

    def _table_of(self, cluster: int) -> LifeTables:
        """Return the life table of a cluster; exact counts are pooled."""
        if self.deviation == 0:
            return self._pooled_table(cluster, self._pooled[cluster])
        tables = self.tables
        events, censored, beyond = (
            counts[[cluster]] for counts in (tables.events, tables.censored, tables.beyond)
        )
        return LifeTables(self.ends, events, censored, beyond, self.deviation, fewest=self.floor)

    def _exact(self, cluster: int) -> tuple[Floats, Floats, float]:
        """Return a cluster's events and censored rows in each bin, and the number of rows after the last bin.

        If fewer rows than the floor have a missing outcome, they count as censored in the first bin.
        """
        tables, missing = self.tables, float(self.sums[cluster, -1])
        censored = tables.censored[cluster].copy()
        censored[0] += missing if missing < self.floor else 0.0
        return tables.events[cluster], censored, float(tables.beyond[cluster])

    def _pooled_table(self, cluster: int, places: NDArray[np.intp]) -> LifeTables:
        """Return the life table of a cluster's exact counts, pooled so that only the bins in ``places`` have an end."""
        events, censored, beyond = self._exact(cluster)
        starts, stop = np.append(0, places[:-1] + 1), places[-1] + 1 if len(places) else 0
        later = events[stop:].sum() + censored[stop:].sum() + beyond
        died, lost = (
            np.add.reduceat(counts[:stop], starts) if stop else counts[:0]
            for counts in (events, censored)
        )
        return LifeTables(
            self.ends[places], died[None], lost[None], np.array([later]), fewest=self.floor
        )

    @cached_property
    def _in_common(self) -> NDArray[np.intp]:
        """The bins at whose ends exact counts may be printed for every cluster that has a curve."""
        alone = [self._ends_of([cluster]) for cluster in range(self.n_clusters)]
        return self._ends_of([cluster for cluster, places in enumerate(alone) if len(places)])

    @cached_property
    def _pooled(self) -> list[NDArray[np.intp]]:
        """For each cluster, the bins at whose ends its exact counts may be printed.

        These include the bins that all clusters have in common. So whatever can be computed from
        the common bins can also be computed from each cluster's own table.
        """
        alone = [self._ends_of([cluster]) for cluster in range(self.n_clusters)]
        common = self._in_common.tolist()
        return [
            self._ends_of([cluster], common) if len(places) else places
            for cluster, places in enumerate(alone)
        ]

    def _ends_of(self, clusters: Sequence[int], kept: Sequence[int] = ()) -> NDArray[np.intp]:
        """Return the bins at whose ends the exact counts of some clusters may be printed, with all bins in ``kept``.

        Between two such ends, and between an end and the next one in ``kept``, the number of rows
        that had the event is 0 or at least the floor in each cluster. So is the number of rows last
        seen, and so is the number of rows that remain.
        """
        if not len(clusters):
            return np.empty(0, dtype=np.intp)
        # By the end of each bin: how many rows had the event, how many were last seen, and how many are left.
        columns = []
        for events, censored, beyond in map(self._exact, clusters):
            died, lost = np.cumsum(events), np.cumsum(censored)
            columns += [died, lost, died[-1] + lost[-1] + beyond - died - lost]
        left = np.array(columns).reshape(len(clusters), 3, -1)
        ends, last = list[int](), np.zeros((len(clusters), 2))
        for place in range(len(self.ends)):
            here, until = left[:, :2, place], [end for end in kept if end >= place][:1]
            to_next = [left[:, :2, end] - here for end in until]
            numbers = np.concatenate([here - last, left[:, 2:, place], *to_next], axis=1)
            if ((numbers == 0) | (numbers >= self.floor)).all():
                ends.append(place)
                last = here
        return np.array(ends, dtype=np.intp)

    @cached_property
    def medians(self) -> list[Interval]:
        """For each cluster, the time by which half of its rows have had the event, with its limits."""
        return [table.medians[0] for table in self.printed]

    @cached_property
    def shared_time(self) -> float:
        """The last time at which all curves are shown; 0 if there is none."""
        shown = [self.ends[self.shown(cluster)] for cluster in range(self.n_clusters)]
        shared = reduce(np.intersect1d, [times for times in shown if len(times)] or [np.empty(0)])
        return float(shared[-1]) if len(shared) else 0.0

    @cached_property
    def restricted_means(self) -> list[Interval]:
        """For each cluster, the mean time without the event until :attr:`shared_time`, with its limits."""
        return [table.restricted_means(self.shared_time)[0] for table in self.printed]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A DataFrame with a row for each number.

        Columns: ``cluster``; ``what`` ("survival", "at risk", "median", "restricted mean",
        "missing"); ``time``, from 0 on, for curves and for rows at risk, and for a restricted mean
        the time until which it is taken; ``value``; ``low`` and ``high``. A curve lies within its
        limits at all times at once with a probability of 95%; other limits are two standard
        deviations to either side. The limits of curves, medians and means include noise and
        sampling error; the limits of numbers of rows include noise only. ``note`` is "few", and no
        number is given, if the number of rows left is below the floor (10 by default) or below
        three standard deviations of its noise. Without noise, the end of a bin is shown only if 0
        or at least 10 rows have had the event since the last end that is shown, and 0 or at least
        10 rows were last seen.
        """
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for cluster in range(self.n_clusters):
            rows += self._curve(cluster) + self._rows_at_risk(cluster)
            numbers = {
                "median": self.medians[cluster],
                "restricted mean": self.restricted_means[cluster],
            }
            for number, interval in numbers.items():
                until = self.shared_time if number == "restricted mean" else math.nan
                note = "few" if math.isnan(interval.value) else ""
                rows.append({"what": number, "time": until, **interval._asdict(), "note": note})
            rows.append(
                {
                    "what": "missing",
                    "time": math.nan,
                    **self._printed(self._missing_rows(cluster), self.deviation),
                }
            )
            for row in rows:
                row.setdefault("cluster", cluster)
        return pd.DataFrame(
            rows, columns=["cluster", "what", "time", "value", "low", "high", "note"]
        )

    def shown(self, cluster: int) -> NDArray[np.intp]:
        """Return the bins at whose ends the curve of a cluster is shown."""
        table = self.printed[cluster]
        return np.asarray(np.searchsorted(self.ends, table.ends[table.is_known[0]]), dtype=np.intp)

    def curve(self, cluster: int) -> tuple[Floats, Floats, Floats, Floats]:
        """Return the curve of a cluster and its simultaneous band.

        Returns
        -------
        times, values, lower, upper : ndarray of shape (n_times,)
            The times begin with 0.
        """
        table = self.printed[cluster]
        known = table.is_known[0]
        lower, upper = table.simultaneous
        curve, low, high = (
            np.append(1.0, values[0][known]) for values in (table.survival, lower, upper)
        )
        return np.append(0.0, table.ends[known]), curve, low, high

    def _curve(self, cluster: int) -> list[dict[str, Any]]:
        """Return the rows of the frame about a cluster's curve."""
        columns = ("time", "value", "low", "high")
        return [
            {"what": "survival", **dict(zip(columns, map(float, point), strict=True)), "note": ""}
            for point in zip(*self.curve(cluster), strict=True)
        ]

    def _rows_at_risk(self, cluster: int) -> list[dict[str, Any]]:
        """Return the rows of the frame about the rows at risk in a cluster."""
        table = self.printed[cluster]
        times = np.append(0.0, table.ends[table.is_known[0]])
        counts = zip(times.tolist(), table.starting[0], table.starting_deviation, strict=False)
        return [
            {"what": "at risk", "time": time, **self._printed(count, deviation)}
            for time, count, deviation in counts
        ]

    def at_risk_as_text(self, cluster: int, place: int) -> str:
        """Return, rounded, how many rows of a cluster reach the beginning of a bin, or the time after all bins.

        Without noise, the text is "" at times at which the curve is not shown.
        """
        if self.deviation == 0 and place > 0 and place - 1 not in self.shown(cluster):
            return ""
        table = self.printed[cluster]
        n_periods = np.count_nonzero(table.ends <= np.append(0.0, self.ends)[place])
        count, deviation = table.starting[0, n_periods], table.starting_deviation[n_periods]
        fewest = self._fewest(deviation)
        if count < fewest:
            return f"<{max(math.ceil(fewest), 1)}"
        unit = 10.0 ** math.floor(math.log10(max(deviation, 1.0)))
        return f"{round(round(count / unit) * unit):,}"

    def _fewest(self, deviation: float) -> float:
        """Return the smallest count that is printed, given the deviation of its noise."""
        return max(float(self.floor), FLOOR_DEVIATIONS * deviation)

    def _printed(self, count: float, deviation: float) -> dict[str, Any]:
        """Return a count with its limits for the frame; no number and the note "few" if it is too small."""
        if count < self._fewest(deviation):
            return {"value": math.nan, "low": math.nan, "high": math.nan, "note": "few"}
        reach = DEVIATIONS * deviation
        return {
            "value": float(count),
            "low": float(max(count - reach, 0.0)),
            "high": float(count + reach),
            "note": "",
        }

    # Words.

    def _time(self, *times: float) -> str:
        """Format one time, or an interval of two, with the unit."""
        unit = f" {self.unit}" if self.unit else ""
        return " to ".join(f"{time:,.6g}" for time in dict.fromkeys(times)) + unit

    def sentence(self, cluster: int) -> str:
        """Return a sentence about when half of the rows of a cluster had the event."""
        median, until = self.medians[cluster], self.curve(cluster)[0][-1]
        if math.isnan(median.value) or until == 0:
            return f"Cluster {cluster}: too few {self.counted} for a curve."
        half = f"Half of cluster {cluster}"
        if math.isfinite(median.high):
            if median.low == 0:
                return f"{half} {self.happened} within {self._time(median.high)}."
            return f"{half} {self.happened} after {self._time(median.low, median.high)}."
        _, _, low, high = (values[-1] for values in self.curve(cluster))
        part = f"after {self._time(until)}, {100 * (1 - high):.0f} to {100 * (1 - low):.0f}% {self.happened}"
        if low > 0.5:
            return f"{half}: not reached; {part}."
        return f"{half} {self.happened} after {self._time(median.low)} at the earliest; {part}."

    @property
    def is_informative(self) -> bool:
        """Whether the curves clearly differ, or the band of one is clearly below 1 where the curve ends.

        Both follow from what is printed.
        """
        test = self.log_rank
        if test is not None and test.p_value < CLEAR:
            return True
        upper = [self.curve(cluster)[3] for cluster in range(self.n_clusters)]
        return any(limits[-1] < 1.0 for limits in upper)

    @property
    def difference(self) -> str:
        """A sentence about whether the curves of the clusters differ."""
        test = self.log_rank
        if test is None:
            return f"Too few {self.counted} are at risk to compare the curves."
        p_value = f"p = {test.p_value:.2g}" if test.p_value >= 1e-4 else "p < 0.0001"
        left_out = sorted(set(range(self.n_clusters)) - set(self.compared))
        without = f"; without {_named(left_out)}" if left_out else ""
        if test.p_value < CLEAR:
            return f"The curves differ between the clusters (log-rank test, {p_value}{without})."
        return f"The curves may all be the same (log-rank test, {p_value}{without})."

    @property
    def means(self) -> list[str]:
        """A line on each cluster's mean time without the event, up to the last time at which all curves are shown.

        Clusters whose mean is unknown are left out. The list is empty if there is no time at which
        all curves are shown.
        """
        until = self.shared_time
        if until == 0:
            return []
        known = [
            (cluster, mean)
            for cluster, mean in enumerate(self.restricted_means)
            if not math.isnan(mean.value)
        ]
        return [
            f"cluster {cluster}: {self._rounded(mean)} of {self._time(until)}"
            for cluster, mean in known
        ]

    @staticmethod
    def _rounded(number: Interval) -> str:
        """Format an interval with as many digits as its width leaves."""
        digits = max(0, 1 - math.floor(math.log10(max(number.high - number.low, 1e-6))))
        return f"{number.low:,.{digits}f} to {number.high:,.{digits}f}"

    def _missing_rows(self, cluster: int) -> float:
        """Return how many rows of a cluster are missing.

        For exact counts, it returns 0 if the true number, together with the cluster's size, would
        reveal that fewer other rows are left than the floor.
        """
        missing = float(self.sums[cluster, -1])
        others = float(self.sums[cluster].sum()) - missing
        tells_few = self.deviation == 0 and 0 < others < self.floor
        return 0.0 if tells_few else missing

    @property
    def missing(self) -> list[str]:
        """A sentence for each cluster in which at least the floor of rows have no known time or event."""
        lines = []
        for cluster, places in enumerate(self.sums):
            missing = self._missing_rows(cluster)
            if missing >= self._fewest(self.deviation) and places.sum() > 0:
                share = 100.0 * min(missing / places.sum(), 1.0)
                lines.append(
                    f"Cluster {cluster}: {share:.0f}% of its {self.counted} have no time or no event, and its curve "
                    "leaves them out. It is wrong if they differ from the others."
                )
        return lines

    @property
    def errors(self) -> str:
        """A sentence about which errors the intervals contain."""
        noise = "noise and chance" if self.deviation > 0 else "chance"
        return f"Intervals and test contain {noise}; {self.counted} are taken to be independent."

    def __str__(self) -> str:
        lines = [self.sentence(cluster) for cluster in range(self.n_clusters)]
        lines.append(self.difference)
        if self.means:
            lines.append(f"Mean time without the event: {'; '.join(self.means)}.")
        return "\n".join([*lines, *self.missing, self.errors])

    __repr__ = __str__

    def to_csv(self, path: str | Path) -> Path:
        """Write :attr:`frame` as CSV, and return its absolute path."""
        target = Path(path).absolute()
        self.frame.to_csv(target, index=False, float_format="%.9g")
        return target

    def to_dict(self) -> dict[str, Any]:
        """Return the released counts about time, ready for JSON."""
        known = {
            "ends": self.ends.tolist(),
            "sums": self.sums.tolist(),
            "deviation": self.deviation,
        }
        return {
            **known,
            "unit": self.unit,
            "happened": self.happened,
            "floor": self.floor,
            "counted": self.counted,
        }

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Self:
        """Undo :meth:`to_dict`."""
        ends, sums = (
            np.array(written["ends"], dtype=np.float64),
            np.array(written["sums"], dtype=np.float64),
        )
        if ends.ndim != 1 or sums.ndim != 2 or sums.shape[1] != n_places(len(ends)):
            raise ValueError("the counts of a survival are not as many as its bins need.")
        words = str(written["unit"]), str(written["happened"])
        return cls(
            ends,
            sums,
            float(written["deviation"]),
            *words,
            int(written["floor"]),
            str(written["counted"]),
        )


def _named(clusters: Sequence[int]) -> str:
    """Return "cluster 2" or "clusters 1, 2"."""
    return f"cluster{'s' if len(clusters) > 1 else ''} {some(list(map(str, clusters)))}"


def survival_of(
    schema: Schema,
    ends: Floats,
    sums: Floats,
    deviation: float,
    floor: int = FLOOR,
    counted: str = ROWS,
) -> Survival:
    """Return a :class:`Survival` from counts, with the unit and the words of the schema."""
    (time,) = (column for column in schema.of_outcome.values() if column.kind == TIME)
    return Survival(ends, sums, deviation, time.unit, time.happened or HAPPENED, floor, counted)


__all__ = ["FLOOR", "LEVEL", "Survival", "n_places", "survival_of", "time_sums"]
