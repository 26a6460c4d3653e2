"""Read the folder of a comparison: trials, contenders over their seeds, and scenarios.

A comparison leaves one folder per run. This module turns these folders into three levels that the
page, the tables and the verdict share:

- a trial is one run: one strategy on one data set, at one budget, with one seed;
- a contender is one strategy at one budget, with its trials over all seeds;
- a scenario is one data set, spread over clients in one way, with all contenders that were compared on it.

Nothing is computed again: every number comes from the files that the runs wrote. A comparison that
is still running, or that was stopped, can be read as well. Its missing runs then count as
"waiting".
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data.suite import SUITE
from flower_fedclust.format import check_format
from flower_fedclust.harness.folder import LEFT_OUT, json_object
from flower_fedclust.names import plural
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.privacy.report import PrivacyReport
from flower_fedclust.results.doubts import ABOUT_NOTHING, collapse_of
from flower_fedclust.results.files import read_labels

# Measures of the distances between rows and centers. They cannot be compared with distances in a map or among
# eigenvectors.
_IN_SPACE_OF_ROWS = ("cost", "cost_per_row", "silhouette", "davies_bouldin", "calinski_harabasz")
#: Strategies whose names begin with this word pool the rows of all clients. They are references and are not ranked.
_POOLED = "pooled"
#: Partitions that mean that the clients of the rows were given: by a column, by files, or by a Python caller.
GIVEN = ("column", "files", "as given")
#: For models whose cost is not the distance of a row from a center among the rows: where they measure it instead. The
#: keys are kinds of models.
_OTHER_COSTS = {
    "mixture": "from the mean of its component",
    "map": "on its map",
    "spectral": "among eigenvectors",
    "factors": "from what its factors give",
    "cells": "from the center of its cell",
    "prototypes": "from its prototype",
}
#: The text that is shown if there is no value.
NOTHING = "–"


# Numbers and lists of names as text.


def number_text(value: float | None, significant: int = 4) -> str:
    """Format a number with ``significant`` significant digits.

    Large numbers become whole numbers with commas, and very small ones get an exponent. None, NaN
    and infinity become a dash.
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e9:
        return f"{value:.{significant - 1}e}"
    return f"{value:,.{max(0, significant - 1 - math.floor(math.log10(abs(value))))}f}"


def share_text(value: float) -> str:
    """Format a number between 0 and 1, such as an accuracy, with three decimals."""
    return f"{value + 0.0 if abs(value) >= 0.0005 else 0.0:.3f}"  # never "-0.000"


def bytes_text(value: float, digits: str = ",.1f") -> str:
    """Format a count of bytes in B, kB, MB or GB, whichever fits (powers of 1000)."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:{digits}} {unit}"
    return f"{value:,.0f} B"


def count_text(value: float) -> str:
    """Format a count as a whole number; a mean of counts gets one decimal."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def _seconds_text(value: float) -> str:
    """Format seconds with two decimals below ten seconds, and with one above."""
    return f"{value:.2f}" if value < 10 else f"{value:,.1f}"


def duration_text(seconds: float) -> str:
    """Format a duration in the unit that fits, such as "40 s" or "7 min"."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 1):.0f} s"


def capital(text: str) -> str:
    """Return the text with its first letter as a capital."""
    return text[:1].upper() + text[1:]


def listed(names: Sequence[str], most: int = 4) -> str:
    """Join names with commas and "and".

    If there are more than ``most``, only the first ones are named, followed by how many more there
    are.
    """
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def by_remedy(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Group the rows of runs without a result by what the user can do about them.

    Many such runs lack the same thing, for example a parameter. So the messages "X needs alpha." of
    several strategies become one group, with the remedy "give alpha (--set alpha=...)". Any other
    message is used as the remedy itself.

    Returns a dict from each remedy to the rows of its runs, the largest group first.
    """
    failures: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        reason = str(row.get("reason") or "")
        missing = re.match(
            rf"{re.escape(str(row['strategy']))} needs (\w+)\.$|(\w+) is missing;", reason
        )
        name = missing and (missing[1] or missing[2])
        remedy = f"give {name} (--set {name}=...)" if name else reason or "No reason was written."
        failures.setdefault(remedy, []).append(row)
    return dict(sorted(failures.items(), key=lambda item: -len(item[1])))


# Measures.


@dataclass(frozen=True)
class Spread:
    """The mean of a measure over seeds, and its sample standard deviation (None if there is only one seed)."""

    mean: float
    deviation: float | None


@dataclass(frozen=True)
class Measure:
    """One column of numbers in tables and charts: its heading, its format, and which direction is better."""

    name: str
    heading: str
    show: Callable[[float], str]
    higher_is_better: bool = False
    #: Whether the tables in Markdown, in LaTeX and in the terminal show this measure.
    in_papers: bool = False
    is_last: bool = False  #: Whether the measure stands after the guarantee on the page.

    @property
    def sign(self) -> int:
        """1 if larger values are better, -1 if smaller ones are."""
        return 1 if self.higher_is_better else -1

    def deviation(self, spread: Spread) -> str:
        """Format the standard deviation with as many decimals as the mean has; "" if there is nothing to show.

        A deviation that is only rounding error is shown as "± 0", and one that is too small for the
        decimals of the mean as "± <0.001".
        """
        mean = self.show(spread.mean)
        if spread.deviation is None:
            return ""
        if self.show not in (share_text, number_text, _seconds_text):
            # Counts, such as rounds and bytes, are often the same for every seed; then no deviation is shown.
            return f"± {self.show(spread.deviation)}" if spread.deviation else ""
        if "e" in mean:
            return f"± {spread.deviation:.1e}"
        if spread.deviation <= 1e-9 * abs(spread.mean):
            return "± 0"  # the remaining difference is rounding
        decimals = len(mean.partition(".")[2])
        least = 10.0**-decimals
        if spread.deviation < least / 2:
            return f"± <{least:.{decimals}f}"
        return f"± {spread.deviation:,.{decimals}f}"


#: Everything that is measured, in the order of the tables.
MEASURES = {
    measure.name: measure
    for measure in (
        Measure("accuracy", "accuracy", share_text, higher_is_better=True, in_papers=True),
        Measure("nmi", "NMI", share_text, higher_is_better=True, in_papers=True),
        Measure("ari", "ARI", share_text, higher_is_better=True, in_papers=True),
        Measure("nca", "NCA", share_text, higher_is_better=True, in_papers=True),
        Measure(
            "adjusted_accuracy",
            "adjusted accuracy",
            share_text,
            higher_is_better=True,
            in_papers=True,
        ),
        Measure("cost_per_row", "cost per row", number_text, in_papers=True),
        Measure("silhouette", "silhouette", share_text, higher_is_better=True, in_papers=True),
        Measure("bytes_up", "sent by clients", bytes_text, in_papers=True),
        Measure("seconds", "seconds", _seconds_text, in_papers=True),
        Measure("epsilon_spent", "epsilon spent", number_text, is_last=True),
        Measure("rounds", "rounds", count_text, is_last=True),
        Measure("bytes_down", "sent to clients", bytes_text, is_last=True),
        Measure("peak_memory_mb", "peak memory, MB", count_text, is_last=True),
        Measure("davies_bouldin", "Davies-Bouldin", number_text, is_last=True),
        Measure(
            "calinski_harabasz",
            "Calinski-Harabasz",
            number_text,
            higher_is_better=True,
            is_last=True,
        ),
        Measure(
            "map_ca_10", "map: class by neighbors", share_text, higher_is_better=True, is_last=True
        ),
        Measure(
            "map_npa_10", "map: neighbors kept", share_text, higher_is_better=True, is_last=True
        ),
        Measure("map_nmi", "map: NMI", share_text, higher_is_better=True, is_last=True),
        Measure(
            "map_trustworthiness",
            "map: trustworthiness",
            share_text,
            higher_is_better=True,
            is_last=True,
        ),
    )
}
#: The measures that can decide which strategy is best; the first one that any trial has decides. Accuracy comes last
#: in two cases. The first is that there are more or fewer clusters than classes: accuracy then counts every further
#: cluster as wrong, and rewards one large cluster. The second is that one cluster for all rows would have a higher
#: accuracy than every strategy.
_RANKING = ("accuracy", "ari", "nmi", "cost_per_row")
_RANKING_IF_NUMBERS_DIFFER = ("ari", "nmi", "cost_per_row", "accuracy")


# Trials, contenders and scenarios.


@dataclass(frozen=True)
class TrialResult:
    """The result of one trial, as its folder holds it.

    ``row`` has the numbers of ``run.json``. Everything else (labels, the privacy report, the kind
    of model) is read from the folder when it is first used, and counts as missing if it cannot be
    read.
    """

    key: str  #: The name of the trial's folder.
    #: The trial's row in the table of results: numbers, texts, or None, as in JSON or CSV.
    row: Mapping[str, Any]
    folder: Path  #: The folder of the trial's files; it may not exist yet.

    def text(self, column: str) -> str:
        """Return a value of the row as text; "" if it is missing."""
        value = self.row.get(column)
        return "" if value is None or value != value else str(value)

    def number(self, column: str) -> float | None:
        """Return a value of the row as a finite number; None if it is missing, infinite or not a number."""
        try:
            value = float(self.row.get(column))  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            return None
        return value if math.isfinite(value) else None

    @property
    def status(self) -> str:
        """The status "done", "failed" or "left out"; "" if the trial has not ended."""
        return self.text("status")

    @property
    def strategy(self) -> str:
        """The name of the strategy."""
        return self.text("strategy") or self.key

    @property
    def epsilon(self) -> float | None:
        """The epsilon that the user asked for; None for a run without noise."""
        return self.number("epsilon")

    @cached_property
    def has_map(self) -> bool:
        """Whether the trial made a map of rows."""
        return any(self.folder.glob("embedding/*.csv"))

    @cached_property
    def has_comparable_cost(self) -> bool:
        """Whether the cost is the distance of rows from centers among the rows.

        Only such costs can be compared across strategies. A strategy that clusters a map,
        eigenvectors or factors measures its cost there, in other units.
        """
        if self.has_map or self.number("map_trustworthiness") is not None:
            return False
        return (self.folder / "centers.csv").exists()

    @cached_property
    def cost_is(self) -> str:
        """Where the cost of a row is measured from, if not from a center among the rows.

        It completes the sentence "the cost is measured ...", for example with "on its map". It is
        "" if the kind of model is unknown.
        """
        known = json_object(self.folder / "model.json")
        return _OTHER_COSTS.get(str(known.get("of_prepared_rows", known.get("model"))), "")

    @cached_property
    def collapse(self) -> str:
        """How the clustering collapsed, in words; "" if it did not.

        A clustering collapses if nearly all rows are in one cluster, or if its cost is no lower
        than the cost of one cluster for all rows. Such a run is not ranked, however good its
        accuracy or NMI looks.
        """
        worst = self.number("cost_of_one_cluster") if self.has_comparable_cost else None
        n_clusters, largest = self.number("n_clusters"), self.number("largest_cluster")
        reason = collapse_of(n_clusters, largest, self.number("cost_per_row"), worst)
        return "" if reason is None else reason[1]

    @cached_property
    def metrics(self) -> Mapping[str, Any]:
        """The content of ``metrics.json``; empty if it cannot be read."""
        return json_object(self.folder / "metrics.json")

    @cached_property
    def labels(self) -> NDArray[np.intp]:
        """The cluster of each row, the clients one after the other; empty if the labels cannot be read."""
        files = map(read_labels, sorted(self.folder.glob("labels/*.csv")))
        try:
            return np.concatenate([np.empty(0, dtype=np.intp), *(file.labels for file in files)])
        except DataError:
            return np.empty(0, dtype=np.intp)

    @cached_property
    def privacy(self) -> PrivacyReport | None:
        """The privacy report; None if there is none that can be read."""
        try:
            return PrivacyReport.from_dict(
                {**json_object(self.folder / "privacy.json"), "strategy": self.strategy}
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            return None


#: One entry of a comparison: strategy, epsilon and variant.
Asked = tuple[str, float | None, str]


@dataclass(frozen=True)
class Contender:
    """One strategy at one budget in one scenario, with its trials in the order of their seeds."""

    strategy: str
    epsilon: float | None
    trials: Sequence[TrialResult]  #: The trials that are done.
    others: Sequence[TrialResult] = ()  #: The trials that failed, were left out, or have not ended.
    variant: str = ""  #: The parameters of the grid, or of a strategy that was given as an object.

    @property
    def title(self) -> str:
        """The strategy, with the parameters of the grid in parentheses."""
        return f"{self.strategy} ({self.variant})" if self.variant else self.strategy

    @property
    def name(self) -> str:
        """The title, and the epsilon that was asked for."""
        return self.title if self.epsilon is None else f"{self.title} at epsilon {self.epsilon:g}"

    @property
    def is_pooled(self) -> bool:
        """Whether the server had the rows themselves; such a strategy is a reference and is not ranked."""
        return self.strategy.startswith(_POOLED)

    @property
    def is_covered(self) -> bool:
        """Whether the guarantee covers everything that was sent, in every trial."""
        return bool(self.trials) and all(
            trial.text("covers_everything").lower() == "true" for trial in self.trials
        )

    @property
    def guarantee_kind(self) -> str:
        """The class of the guarantee: one of four phrases that the page uses wherever it sorts by protection.

        "rows pooled" (no protection, a reference), "whole run covered", "covered in part" (some
        messages have noise, and others leave the clients unprotected) or "no guarantee".
        """
        if self.is_pooled:
            return "rows pooled"
        if self.is_covered:
            return "whole run covered"
        has_noise = any(trial.number("epsilon_spent") is not None for trial in self.trials)
        return "covered in part" if has_noise else "no guarantee"

    @property
    def guarantee_detail(self) -> str:
        """What the guarantee protects, and who draws the noise, such as "per record, server's noise".

        It is "" without a guarantee.
        """
        if self.guarantee_kind not in ("whole run covered", "covered in part"):
            return ""
        unit, noise = (self.trials[0].text(column) for column in ("privacy_unit", "noise"))
        where = {
            "server": "server's noise",
            "clients": "clients' noise",
            "local": "noise in each reply",
        }
        return ", ".join(filter(None, [f"per {unit}" if unit else "", where.get(noise, "")]))

    @cached_property
    def collapse(self) -> str:
        """How the runs collapsed, and how many of them; "" if none did."""
        reasons = [trial.collapse for trial in self.trials if trial.collapse]
        if not reasons:
            return ""
        share = (
            ""
            if len(reasons) == len(self.trials)
            else f" in {len(reasons)} of {len(self.trials)} runs"
        )
        return " or ".join(dict.fromkeys(reasons)) + share

    @cached_property
    def has_comparable_cost(self) -> bool:
        """Whether the cost is measured in the space of the rows in every trial."""
        return all(trial.has_comparable_cost for trial in self.trials)

    def is_comparable(self, column: str) -> bool:
        """Return whether a measure can be compared between this contender and others.

        Costs and other measures of distances cannot be compared if this strategy computes them on
        transformed rows.
        """
        return column not in _IN_SPACE_OF_ROWS or self.has_comparable_cost

    def spread(self, column: str) -> Spread | None:
        """Return the mean and the deviation of a column over the trials that have it; None if none has."""
        values = list(self.by_seed(column).values())
        if not values:
            return None
        return Spread(
            statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
        )

    def comparable(self, column: str) -> Spread | None:
        """Return :meth:`spread`, or None if it cannot be compared with other strategies."""
        return self.spread(column) if self.is_comparable(column) else None

    def by_seed(self, column: str) -> dict[str, float]:
        """Return the values of a column by seed, for tests that compare two contenders on the same seeds."""
        return {
            trial.text("seed"): value
            for trial in self.trials
            if (value := trial.number(column)) is not None
        }


@dataclass(frozen=True)
class Scenario:
    """One data set, spread over clients in one way, and the contenders that were compared on it.

    The scenario decides which measure ranks, who takes part in the ranking, and which means get a
    star. Pooled references and collapsed runs are shown but not ranked.
    """

    data: str
    partition: str
    contenders: Sequence[Contender]
    n_clusters: str = ""  #: The number of clusters, if the comparison has several.

    @property
    def name(self) -> str:
        """The data set, its partition unless the data already say it, and the number of clusters if several."""
        partition = "" if self.partition in GIVEN else self.partition
        return ", ".join(
            filter(None, (self.data, partition, self.n_clusters and f"{self.n_clusters} clusters"))
        )

    @property
    def trials(self) -> list[TrialResult]:
        """All trials, whether or not they are done."""
        return [
            trial
            for contender in self.contenders
            for trial in (*contender.trials, *contender.others)
        ]

    @cached_property
    def measure(self) -> Measure:
        """The measure that decides which contender is best.

        By default this is the first of accuracy, ARI, NMI and cost per row that any contender has.
        There are three exceptions, so that no measure decides that rewards the wrong thing.
        Accuracy comes last if there are more or fewer clusters than classes, because it counts
        every further cluster as wrong. It also comes last if one cluster for all rows would have a
        higher accuracy than any contender. The cost decides if no contender's clusters are related
        to the classes.
        """
        columns = ("n_classes", "n_clusters", "largest_class")
        candidates = {
            name: {value for trial in self.trials if (value := trial.number(name)) is not None}
            for name in columns
        }
        sound = [
            contender.spread("accuracy") for contender in self.contenders if not contender.collapse
        ]
        best = max((spread.mean for spread in sound if spread is not None), default=1.0)
        do_numbers_differ = (
            bool(candidates["n_classes"])
            and not candidates["n_clusters"] <= candidates["n_classes"]
        )
        one_cluster_wins = best <= max(candidates["largest_class"], default=0.0)
        names: tuple[str, ...] = (
            _RANKING_IF_NUMBERS_DIFFER if do_numbers_differ or one_cluster_wins else _RANKING
        )
        agreements = [
            spread.mean
            for contender in self.contenders
            if (spread := contender.spread("nmi")) is not None
        ]
        # No contender's clusters relate to the classes.
        if agreements and max(agreements) < ABOUT_NOTHING:
            names = ("cost_per_row", *names)
        return next(
            (
                MEASURES[name]
                for name in names
                if any(contender.spread(name) for contender in self.contenders)
            ),
            _FIRST,
        )

    @property
    def measures(self) -> list[Measure]:
        """All measures that any contender has, beginning with the one that ranks."""
        measures = [
            measure
            for measure in MEASURES.values()
            if any(other.spread(measure.name) for other in self.contenders)
        ]
        return sorted(measures, key=lambda measure: measure is not self.measure)

    @property
    def pooled(self) -> list[Contender]:
        """The pooled references that have a result."""
        return [
            contender for contender in self.contenders if contender.is_pooled and contender.trials
        ]

    @property
    def federated(self) -> list[Contender]:
        """The contenders that do not pool the rows and have a result."""
        return [
            contender
            for contender in self.contenders
            if not contender.is_pooled and contender.trials
        ]

    @property
    def waiting(self) -> list[Contender]:
        """The contenders that have no result yet and may still get one.

        As long as there is such a contender, none is called the best.
        """
        return [
            contender
            for contender in self.contenders
            if not contender.trials and not all(trial.status for trial in contender.others)
        ]

    def quality(self, contender: Contender | None) -> Spread | None:
        """Return the mean and deviation of a contender in the measure that ranks; None if it cannot be compared."""
        return None if contender is None else contender.comparable(self.measure.name)

    def ranked(self, contenders: Iterable[Contender]) -> list[Contender]:
        """Return the contenders that can be ranked, the best first.

        Contenders without the ranking measure, and contenders whose runs collapsed, are left out.
        """
        pairs = [
            (-self.measure.sign * spread.mean, contender)
            for contender in contenders
            if (spread := self.quality(contender)) is not None and not contender.collapse
        ]
        return [contender for _, contender in sorted(pairs, key=lambda pair: pair[0])]

    def best(self, contenders: Iterable[Contender]) -> Contender | None:
        """Return the best contender that did not collapse; None if no contender has the measure."""
        return next(iter(self.ranked(contenders)), None)

    @cached_property
    def reference(self) -> Contender | None:
        """The best contender that pools the rows."""
        return self.best(self.pooled)

    @cached_property
    def groups(self) -> dict[str, list[Contender]]:
        """The rows of a table in three groups: pooled references; ranked contenders, the best first; collapsed ones.

        The keys are also CSS classes: a reader of the page can sort the rows of the groups called
        "sortable".
        """
        dropped = [contender for contender in self.federated if contender.collapse]
        ranked = self.ranked(self.federated)
        # A cost in another space cannot be ranked, so its contender comes after all that can be.
        unranked = [
            contender
            for contender in self.federated
            if contender not in ranked and contender not in dropped
        ]
        return {"pooled": self.pooled, "sortable": ranked + unranked, "sortable collapsed": dropped}

    @property
    def other_costs(self) -> list[str]:
        """The strategies whose cost cannot be compared, each followed by where it measures its cost."""
        costs = {}
        for contender in self.federated:
            if not contender.has_comparable_cost and contender.spread("cost_per_row") is not None:
                measured = next((trial.cost_is for trial in contender.trials if trial.cost_is), "")
                costs[contender.title] = (
                    f"{contender.title} {measured}" if measured else contender.title
                )
        return list(costs.values())

    @cached_property
    def starred(self) -> dict[str, str]:
        """For each measure, by name, the best value, as the text that is shown.

        Texts are compared, not numbers, so that ties are visible: every contender that shows the
        best value gets a star. There are no stars while contenders wait for their results.
        """
        starred = {}
        for measure in [] if self.waiting else self.measures:
            spreads = [group.comparable(measure.name) for group in self.groups["sortable"]]
            means = [spread.mean for spread in spreads if spread is not None]
            if len(means) > 1:
                starred[measure.name] = measure.show(
                    max(means) if measure.higher_is_better else min(means)
                )
        return starred


_FIRST = MEASURES[_RANKING[0]]


@dataclass(frozen=True)
class ComparisonResults:
    """Everything in the folder of a comparison."""

    settings: Mapping[str, Any]  #: The content of ``comparison.json``.
    #: All trials in the order of the table, whether or not they have ended.
    trials: Sequence[TrialResult]

    def of_status(self, status: str) -> list[TrialResult]:
        """Return the trials with a status: "done", "failed", "left out", or "" if they have not ended."""
        return [trial for trial in self.trials if trial.status == status]

    @property
    def progress(self) -> str:
        """The numbers of runs that are done, have failed, and were left out, in a few words."""
        n_done, n_waiting = len(self.of_status("done")), len(self.of_status(""))
        done = (
            f"{n_done} of {plural(len(self.trials), 'run')} so far"
            if n_waiting
            else plural(n_done, "run") + " done"
        )
        counts = [
            (len(self.of_status("failed")), "failed"),
            (len(self.of_status(LEFT_OUT)), "not possible, left out"),
        ]
        return ", ".join([done, *(f"{count} {status}" for count, status in counts if count)])

    @cached_property
    def scenarios(self) -> list[Scenario]:
        """The trials, grouped by data set and partition (and number of clusters, if the comparison has several)."""
        # The number of clusters is named only if the comparison has several, or for a data set of the suite, which
        # may have several.
        has_several = isinstance(self.settings.get("n_clusters"), list)
        groups: dict[tuple[str, str, str], list[TrialResult]] = {}
        for trial in self.trials:
            clusters = (
                trial.text("n_clusters")
                if has_several or trial.text("data").startswith(SUITE)
                else ""
            )
            groups.setdefault((trial.text("data"), trial.text("partition"), clusters), []).append(
                trial
            )
        return [
            Scenario(data, how, _contenders(trials), number)
            for (data, how, number), trials in groups.items()
        ]

    @property
    def strategies(self) -> list[str]:
        """The names of all strategies."""
        return list(dict.fromkeys(trial.strategy for trial in self.trials))


def read_comparison(folder: str | Path) -> ComparisonResults:
    """Read the folder of ``fedclust compare``, whether or not the comparison has finished.

    Parameters
    ----------
    folder : str or Path

    Returns
    -------
    ComparisonResults

    Raises
    ------
    FileNotFoundError
        If there is no such folder.
    ValueError
        If it holds no run of a comparison.
    FormatError
        If another version of this package wrote it.
    """
    path = Path(folder).absolute()
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is not a folder; name one that 'fedclust compare' wrote.")
    settings = json_object(path / "comparison.json")
    if settings:
        check_format(
            settings.get("format"), str(path / "comparison.json"), remedy="run the comparison again"
        )
    planned = settings.get("runs")
    rows = {
        str(row.get("key")): row
        for row in (planned if isinstance(planned, list) else [])
        if isinstance(row, dict)
    }
    ended = {
        folder.name: json_object(folder / "run.json") for folder in sorted(path.glob("runs/*/"))
    }
    # a folder counts only if it has the name of its own trial: results that went beside another one do not count
    rows |= {key: row for key, row in ended.items() if row.get("key") == key}
    trials = []
    for key, row in rows.items():
        plain = {name: value for name, value in row.items() if not isinstance(value, list | dict)}
        trials.append(TrialResult(key, plain, path / "runs" / key))
    if not any(trial.status for trial in trials):
        raise ValueError(
            f"{path} holds no run of a comparison yet; let 'fedclust compare' run first."
        )
    return ComparisonResults(settings, trials)


def _contenders(trials: Sequence[TrialResult]) -> list[Contender]:
    """Group trials into contenders: the same strategy, budget and variant, with the same kind of guarantee.

    The guarantee of a trial that has not ended is not known yet. Such a trial is one of the
    "others" of the first contender with its strategy, budget and variant.
    """
    done: dict[tuple[Asked, str, str], list[TrialResult]] = {}
    others: dict[Asked, list[TrialResult]] = {}
    for trial in sorted(trials, key=_seed_of):
        asked = (trial.strategy, trial.epsilon, trial.text("variant"))
        if trial.status == "done":
            guarantee = (trial.text("privacy_unit"), trial.text("noise"))
            done.setdefault((asked, *guarantee), []).append(trial)
        else:
            others.setdefault(asked, []).append(trial)
    contenders = []
    for (asked, _, _), group in done.items():
        strategy, epsilon, variant = asked
        # The unit of protection of a trial that is not done may be unknown, so the trial belongs to the first
        # contender.
        not_done = others.pop(asked, ())
        contenders.append(Contender(strategy, epsilon, group, not_done, variant))
    for (strategy, epsilon, variant), group in others.items():
        contenders.append(Contender(strategy, epsilon, (), group, variant))
    return sorted(contenders, key=_place_of)


def _seed_of(trial: TrialResult) -> float:
    return trial.number("seed") or 0.0


def _place_of(contender: Contender) -> tuple[str, str, bool, float]:
    """Return the key by which contenders are sorted: strategy, variant, epsilon; runs without noise come last."""
    return (
        contender.strategy,
        contender.variant,
        contender.epsilon is None,
        contender.epsilon or 0.0,
    )
