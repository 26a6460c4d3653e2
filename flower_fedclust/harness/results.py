"""Read the folder of a comparison: trials, contenders over their seeds, and scenarios."""

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

# Measured between rows and centers; not comparable with distances in a map or among eigenvectors.
_IN_SPACE_OF_ROWS = ("cost", "cost_per_row", "silhouette", "davies_bouldin", "calinski_harabasz")
#: Strategies whose names begin like this pool the rows; they are references and take no part in the ranking.
_POOLED = "pooled"
#: The partitions of rows that came with their clients: by a column, in files, or in Python.
GIVEN = ("column", "files", "as given")
#: How models measure the cost of a row that is not its distance from a center among the rows, by the model's name.
_OTHER_COSTS = {
    "mixture": "from the mean of its component",
    "map": "on its map",
    "spectral": "among eigenvectors",
    "factors": "from what its factors give",
    "cells": "from the center of its cell",
    "prototypes": "from its prototype",
}
#: Shown if there is no value.
NOTHING = "–"


# Numbers and words as a person reads them.


def number_text(value: float | None, significant: int = 4) -> str:
    """Return a number rounded to significant digits; large numbers as whole numbers with commas."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e9:
        return f"{value:.{significant - 1}e}"
    return f"{value:,.{max(0, significant - 1 - math.floor(math.log10(abs(value))))}f}"


def share_text(value: float) -> str:
    """Return a number between 0 and 1, such as an accuracy, with three decimals."""
    return f"{value + 0.0 if abs(value) >= 0.0005 else 0.0:.3f}"  # never "-0.000"


def bytes_text(value: float, digits: str = ",.1f") -> str:
    """Return a count of bytes in the unit that fits."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:{digits}} {unit}"
    return f"{value:,.0f} B"


def count_text(value: float) -> str:
    """Return a count, or a mean of counts."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def _seconds_text(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.1f}"


def duration_text(seconds: float) -> str:
    """Return a duration in the unit that fits, such as "40 s" or "7 min"."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 1):.0f} s"


def capital(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def listed(names: Sequence[str], most: int = 4) -> str:
    """Return names with commas and "and"; if there are many, the first ones and how many more there are."""
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def by_remedy(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Group the rows of runs without a result by remedy, the largest group first."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        reason = str(row.get("reason") or "")
        missing = re.match(
            rf"{re.escape(str(row['strategy']))} needs (\w+)\.$|(\w+) is missing;", reason
        )
        name = missing and (missing[1] or missing[2])
        remedy = f"give {name} (--set {name}=...)" if name else reason or "No reason was written."
        found.setdefault(remedy, []).append(row)
    return dict(sorted(found.items(), key=lambda one: -len(one[1])))


# Measures.


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and the standard deviation of the sample; None if there is one seed."""

    mean: float
    deviation: float | None


@dataclass(frozen=True)
class Measure:
    """One column of numbers: how they are shown, and whether more or less of it is better."""

    name: str
    heading: str
    show: Callable[[float], str]
    higher_is_better: bool = False
    #: Whether the tables in Markdown, in LaTeX and in the terminal have it.
    in_papers: bool = False
    is_last: bool = False  #: Whether the measure stands after the guarantee on the page.

    @property
    def sign(self) -> int:
        """1 if more is better, -1 if less is."""
        return 1 if self.higher_is_better else -1

    def deviation(self, spread: Spread) -> str:
        """Return the deviation with as many decimals as the mean; "" if there is none to show."""
        mean = self.show(spread.mean)
        if spread.deviation is None:
            return ""
        if self.show not in (share_text, number_text, _seconds_text):
            # Rounds and bytes seldom depend on the seed; then there is nothing to say.
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
    one.name: one
    for one in (
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
#: What can decide which strategy is best; the first measure that any trial has does. Accuracy comes last if there are
#: more or fewer clusters than classes, because it then counts every further cluster as wrong and rewards one large
#: cluster, and if one cluster for everything has a higher accuracy than every strategy.
_RANKING = ("accuracy", "ari", "nmi", "cost_per_row")
_RANKING_IF_NUMBERS_DIFFER = ("ari", "nmi", "cost_per_row", "accuracy")


# Trials, contenders and scenarios.


@dataclass(frozen=True)
class TrialResult:
    """The result of one trial."""

    key: str  #: The name of its folder.
    #: Its row of the results: numbers, texts, or None, as JSON or CSV has them.
    row: Mapping[str, Any]
    folder: Path  #: Where its files are, or will be.

    def text(self, column: str) -> str:
        """Return a value as text, "" if there is none."""
        value = self.row.get(column)
        return "" if value is None or value != value else str(value)

    def number(self, column: str) -> float | None:
        """Return a finite number, or None if there is none."""
        try:
            value = float(self.row.get(column))  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            return None
        return value if math.isfinite(value) else None

    @property
    def status(self) -> str:
        """Return "done", "failed", "left out", or "" if it has not ended."""
        return self.text("status")

    @property
    def strategy(self) -> str:
        """The name of the strategy."""
        return self.text("strategy") or self.key

    @property
    def epsilon(self) -> float | None:
        """The epsilon that was asked for; None if there was none."""
        return self.number("epsilon")

    @cached_property
    def has_map(self) -> bool:
        """Whether the trial made a map of rows."""
        return any(self.folder.glob("embedding/*.csv"))

    @cached_property
    def has_comparable_cost(self) -> bool:
        """Whether the cost is measured in the space of the rows, and not in a map or among eigenvectors."""
        if self.has_map or self.number("map_trustworthiness") is not None:
            return False
        return (self.folder / "centers.csv").exists()

    @cached_property
    def cost_is(self) -> str:
        """From where the cost of a row is measured, if not from a center among the rows; "" if that is unknown."""
        known = json_object(self.folder / "model.json")
        return _OTHER_COSTS.get(str(known.get("of_prepared_rows", known.get("model"))), "")

    @cached_property
    def collapse(self) -> str:
        """How the clustering came to nothing, whatever its measures say; "" if it did not."""
        worst = self.number("cost_of_one_cluster") if self.has_comparable_cost else None
        n_clusters, largest = self.number("n_clusters"), self.number("largest_cluster")
        found = collapse_of(n_clusters, largest, self.number("cost_per_row"), worst)
        return "" if found is None else found[1]

    @cached_property
    def metrics(self) -> Mapping[str, Any]:
        """The content of ``metrics.json``; empty if it cannot be read."""
        return json_object(self.folder / "metrics.json")

    @cached_property
    def labels(self) -> NDArray[np.intp]:
        """The cluster of each row, by client; empty if they cannot be read."""
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
        """The strategy and its parameters."""
        return f"{self.strategy} ({self.variant})" if self.variant else self.strategy

    @property
    def name(self) -> str:
        """The strategy, its parameters, and the epsilon that was asked for."""
        return self.title if self.epsilon is None else f"{self.title} at epsilon {self.epsilon:g}"

    @property
    def is_pooled(self) -> bool:
        """Whether the server had the rows themselves."""
        return self.strategy.startswith(_POOLED)

    @property
    def is_covered(self) -> bool:
        """Whether the guarantee covers the whole run, in every trial."""
        return bool(self.trials) and all(
            trial.text("covers_everything").lower() == "true" for trial in self.trials
        )

    @property
    def guarantee_kind(self) -> str:
        """The class of the guarantee, as the page calls it wherever it sorts by it."""
        if self.is_pooled:
            return "rows pooled"
        if self.is_covered:
            return "whole run covered"
        has_noise = any(trial.number("epsilon_spent") is not None for trial in self.trials)
        return "covered in part" if has_noise else "no guarantee"

    @property
    def guarantee_detail(self) -> str:
        """Whom the guarantee protects, and who draws the noise."""
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
        """How the runs came to nothing, and how many of them; "" if none did."""
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
        """Return whether a measure can be compared between this strategy and others; a cost may not be comparable."""
        return column not in _IN_SPACE_OF_ROWS or self.has_comparable_cost

    def spread(self, column: str) -> Spread | None:
        """Return mean and deviation of a column over the trials that have it; None if no trial has."""
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
        """Return the values of a column by seed."""
        return {
            trial.text("seed"): value
            for trial in self.trials
            if (value := trial.number(column)) is not None
        }


@dataclass(frozen=True)
class Scenario:
    """One data set, spread over clients in one way, and the contenders that were compared on it."""

    data: str
    partition: str
    contenders: Sequence[Contender]
    n_clusters: str = ""  #: The number of clusters, if the comparison has several.

    @property
    def name(self) -> str:
        """The data set, how it is spread unless the data say so, and the number of clusters if there are several."""
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
        """The measure that decides which contender is best: the first one that exists and can rank."""
        columns = ("n_classes", "n_clusters", "largest_class")
        found = {
            name: {value for trial in self.trials if (value := trial.number(name)) is not None}
            for name in columns
        }
        sound = [
            contender.spread("accuracy") for contender in self.contenders if not contender.collapse
        ]
        best = max((spread.mean for spread in sound if spread is not None), default=1.0)
        do_numbers_differ = (
            bool(found["n_classes"]) and not found["n_clusters"] <= found["n_classes"]
        )
        one_cluster_wins = best <= max(found["largest_class"], default=0.0)
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
        """The measures of any contender, beginning with the one that ranks."""
        found = [
            one
            for one in MEASURES.values()
            if any(other.spread(one.name) for other in self.contenders)
        ]
        return sorted(found, key=lambda one: one is not self.measure)

    @property
    def pooled(self) -> list[Contender]:
        """The pooled references that have a result."""
        return [one for one in self.contenders if one.is_pooled and one.trials]

    @property
    def federated(self) -> list[Contender]:
        """The contenders that do not pool the rows and have a result."""
        return [one for one in self.contenders if not one.is_pooled and one.trials]

    @property
    def waiting(self) -> list[Contender]:
        """The contenders without a result that may still get one: while there are any, nobody is the best."""
        return [
            one
            for one in self.contenders
            if not one.trials and not all(trial.status for trial in one.others)
        ]

    def quality(self, contender: Contender | None) -> Spread | None:
        """Return the measure of a contender; None if it has none that can be compared."""
        return None if contender is None else contender.comparable(self.measure.name)

    def ranked(self, contenders: Iterable[Contender]) -> list[Contender]:
        """Return the contenders that have the measure and did not collapse, the best first."""
        found = [
            (-self.measure.sign * spread.mean, contender)
            for contender in contenders
            if (spread := self.quality(contender)) is not None and not contender.collapse
        ]
        return [one for _, one in sorted(found, key=lambda pair: pair[0])]

    def best(self, contenders: Iterable[Contender]) -> Contender | None:
        """Return the best contender that did not collapse; None if no contender has the measure."""
        return next(iter(self.ranked(contenders)), None)

    @cached_property
    def reference(self) -> Contender | None:
        """The best contender that pools the rows."""
        return self.best(self.pooled)

    @cached_property
    def groups(self) -> dict[str, list[Contender]]:
        """The rows of a table in three groups: pooled references; others, the best first; and collapsed contenders."""
        dropped = [one for one in self.federated if one.collapse]
        ranked = self.ranked(self.federated)
        # A cost in another space cannot be ranked; it comes after those that can.
        unranked = [one for one in self.federated if one not in ranked and one not in dropped]
        return {"pooled": self.pooled, "sortable": ranked + unranked, "sortable collapsed": dropped}

    @property
    def other_costs(self) -> list[str]:
        """The strategies whose cost cannot be compared, and from where they measure it."""
        found = {}
        for one in self.federated:
            if not one.has_comparable_cost and one.spread("cost_per_row") is not None:
                measured = next((trial.cost_is for trial in one.trials if trial.cost_is), "")
                found[one.title] = f"{one.title} {measured}" if measured else one.title
        return list(found.values())

    @cached_property
    def starred(self) -> dict[str, str]:
        """The best mean of each measure as it is shown, so that ties are ties; none while contenders are missing."""
        found = {}
        for measure in [] if self.waiting else self.measures:
            spreads = [group.comparable(measure.name) for group in self.groups["sortable"]]
            means = [spread.mean for spread in spreads if spread is not None]
            if len(means) > 1:
                found[measure.name] = measure.show(
                    max(means) if measure.higher_is_better else min(means)
                )
        return found


_FIRST = MEASURES[_RANKING[0]]


@dataclass(frozen=True)
class ComparisonResults:
    """Everything in the folder of a comparison."""

    settings: Mapping[str, Any]  #: The content of ``comparison.json``.
    #: All trials in the order of the table, whether or not they have ended.
    trials: Sequence[TrialResult]

    def of_status(self, status: str) -> list[TrialResult]:
        """Return the trials that are "done", "failed" or "left out", or that have not ended ("")."""
        return [trial for trial in self.trials if trial.status == status]

    @property
    def progress(self) -> str:
        """How many runs are done, or why others are not."""
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
        return ", ".join([done, *(f"{count} {what}" for count, what in counts if count)])

    @cached_property
    def scenarios(self) -> list[Scenario]:
        """The trials by data set and partition."""
        # A single number of clusters, or one for each data set, needs no mention; a set of the suite may have several.
        has_several = isinstance(self.settings.get("n_clusters"), list)
        found: dict[tuple[str, str, str], list[TrialResult]] = {}
        for trial in self.trials:
            clusters = (
                trial.text("n_clusters")
                if has_several or trial.text("data").startswith(SUITE)
                else ""
            )
            found.setdefault((trial.text("data"), trial.text("partition"), clusters), []).append(
                trial
            )
        return [
            Scenario(data, how, _contenders(trials), number)
            for (data, how, number), trials in found.items()
        ]

    @property
    def strategies(self) -> list[str]:
        """The names of all strategies."""
        return list(dict.fromkeys(trial.strategy for trial in self.trials))


def read_comparison(folder: str | Path) -> ComparisonResults:
    """Read the folder of ``fedclust compare``, finished or not."""
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
    ended = {one.name: json_object(one / "run.json") for one in sorted(path.glob("runs/*/"))}
    # files beside a finished run do not count
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
    """Return the contenders of a comparison: trials of one strategy, budget and variant, and of one guarantee."""
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
        # A trial that is not done may not know its unit: it belongs to the first contender of its strategy and budget.
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
