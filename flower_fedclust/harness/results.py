"""What a comparison left in its folder, read back: trials, contenders over their seeds, and scenarios."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.format import check_format
from flower_fedclust.harness.folder import json_object
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.outside import read_csv
from flower_fedclust.privacy.report import PrivacyReport
from flower_fedclust.results.doubts import ABOUT_NOTHING, collapse_of
from flower_fedclust.results.files import read_labels

#: The measures that can decide which strategy is best; the first that any trial has does. Accuracy comes last if there
#: are more or fewer clusters than classes, because it then counts every further cluster as wrong and rewards one large
#: cluster, and if one cluster for everything has a higher accuracy than every strategy.
MEASURES = ("accuracy", "ari", "nmi", "cost_per_row")
_MEASURES_IF_NUMBERS_DIFFER = ("ari", "nmi", "cost_per_row", "accuracy")
#: The names of the measures.
NAMES = {"accuracy": "accuracy", "nmi": "NMI", "ari": "ARI", "cost_per_row": "cost per row", "silhouette": "silhouette"}
# Measured between rows and centers; not comparable with distances in a map or among eigenvectors.
_IN_SPACE_OF_ROWS = ("cost", "cost_per_row", "silhouette", "davies_bouldin", "calinski_harabasz")
#: Names of strategies that pool the rows begin like this; they are references and take no part in the ranking.
_POOLED = "pooled"
#: Shown if there is no value.
NOTHING = "–"


@dataclass(frozen=True)
class TrialResult:
    """The result of one trial."""

    key: str  #: The name of its folder.
    row: Mapping[str, Any]  #: Its row of the results: numbers, texts, or None, as JSON or CSV has them.
    folder: Path | None = None  #: Where its files are; None if there is only the table.

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
    def is_done(self) -> bool:
        """Whether the trial ended as it should."""
        return self.text("status") == "done"

    @property
    def strategy(self) -> str:
        """The name of the strategy."""
        return self.text("strategy") or self.key

    @property
    def is_pooled(self) -> bool:
        """Whether the server had the rows themselves."""
        return self.strategy.startswith(_POOLED)

    @property
    def epsilon(self) -> float | None:
        """The epsilon that was asked for; None if there was none."""
        return self.number("epsilon")

    @cached_property
    def embedding_folder(self) -> Path | None:
        """The folder of the map, if the trial made one."""
        folder = None if self.folder is None else self.folder / "embedding"
        return folder if folder is not None and any(folder.glob("*.csv")) else None

    @cached_property
    def has_comparable_cost(self) -> bool:
        """Whether the cost is measured in the space of the rows, and not in a map or among eigenvectors."""
        if self.embedding_folder is not None or self.number("map_trustworthiness") is not None:
            return False
        return self.folder is None or (self.folder / "centers.csv").exists()

    @cached_property
    def collapse(self) -> str:
        """How the run came to nothing, whatever its measures say; "" if it did not."""
        worst = self.number("cost_of_one_cluster") if self.has_comparable_cost else None
        n_clusters, largest = self.number("n_clusters"), self.number("largest_cluster")
        found = collapse_of(n_clusters, largest, self.number("cost_per_row"), worst)
        return "" if found is None else found[1]

    @cached_property
    def _class_sizes(self) -> list[int]:
        """How many rows each true class has; empty if that is not known."""
        path = None if self.folder is None else self.folder / "classes.csv"
        if path is None or not path.is_file():
            return []
        try:
            return list(Counter(row.get("class") for row in read_csv(path, "run again")).values())
        except DataError:
            return []

    @property
    def n_classes(self) -> float | None:
        """How many true classes the rows have; None if that is not known."""
        return self.number("n_classes") or (float(len(self._class_sizes)) if self._class_sizes else None)

    @property
    def largest_class(self) -> float | None:
        """The share of rows in the largest class, which is the accuracy of one cluster for everything."""
        return max(self._class_sizes) / sum(self._class_sizes) if self._class_sizes else None

    @cached_property
    def metrics(self) -> Mapping[str, Any]:
        """The content of ``metrics.json``; empty if it cannot be read."""
        return {} if self.folder is None else json_object(self.folder / "metrics.json")

    @cached_property
    def history(self) -> dict[str, list[float | None]]:
        """The curves that the strategy recorded, by name; a value that is not a finite number is None."""
        found = self.metrics.get("history")
        curves = {
            str(name): [float(v) if isinstance(v, int | float) and math.isfinite(v) else None for v in values]
            for name, values in (found if isinstance(found, dict) else {}).items()
            if isinstance(values, list)
        }
        return {name: curve for name, curve in curves.items() if any(value is not None for value in curve)}

    @cached_property
    def doubts(self) -> dict[str, str]:
        """What speaks against the result: sentences by code."""
        found = self.metrics.get("doubts")
        listed = [one for one in (found if isinstance(found, list) else []) if isinstance(one, dict)]
        return {str(one.get("code")): str(one.get("sentence")) for one in listed}

    @cached_property
    def labels(self) -> NDArray[np.intp]:
        """The cluster of each row, by client; empty if they cannot be read."""
        files = [] if self.folder is None else sorted(self.folder.glob("labels/*.csv"))
        try:
            parts = [read_labels(file).labels for file in files]
        except DataError:
            parts = []
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.intp)

    @cached_property
    def privacy(self) -> Mapping[str, Any]:
        """The content of ``privacy.json``; empty if it cannot be read."""
        return {} if self.folder is None else json_object(self.folder / "privacy.json")

    @cached_property
    def privacy_report(self) -> PrivacyReport | None:
        """The privacy report; None if there is none that can be read."""
        try:
            return PrivacyReport.from_dict({**self.privacy, "strategy": self.strategy})
        except (KeyError, TypeError, ValueError, AttributeError):
            return None


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and the standard deviation of the sample; None if there is one seed."""

    mean: float
    deviation: float | None
    count: int


@dataclass(frozen=True)
class Contender:
    """One strategy at one budget in one scenario: its trials by seed, those that are done and those that failed."""

    strategy: str
    epsilon: float | None
    trials: Sequence[TrialResult]
    failed: Sequence[TrialResult] = ()
    variant: str = ""  #: The parameters of the grid, or of a strategy that was given as an object.

    @property
    def title(self) -> str:
        """The strategy and its parameters."""
        return f"{self.strategy} ({self.variant})" if self.variant else self.strategy

    @property
    def name(self) -> str:
        """The strategy, its parameters, and the epsilon that was asked for."""
        return self.title if self.epsilon is None else f"{self.title}, epsilon {self.epsilon:g}"

    @property
    def name_in_list(self) -> str:
        """The name for a list with commas."""
        return self.title if self.epsilon is None else f"{self.title} at epsilon {self.epsilon:g}"

    @property
    def is_pooled(self) -> bool:
        """Whether the rows were pooled."""
        return any(trial.is_pooled for trial in (*self.trials, *self.failed))

    @property
    def is_covered(self) -> bool:
        """Whether the guarantee covers the whole run, in every trial."""
        return bool(self.trials) and all(one.text("covers_everything").lower() == "true" for one in self.trials)

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
    def guarantee_texts(self) -> list[str]:
        """How much of the run is covered, whom the guarantee protects, and who draws the noise."""
        if self.guarantee_kind not in ("whole run covered", "covered in part"):
            return ["none"]
        unit, noise = (self.trials[0].text(column) for column in ("privacy_unit", "noise"))
        where = {"server": "server's noise", "clients": "clients' noise", "local": "noise in each reply"}
        detail = ", ".join(filter(None, [f"per {unit}" if unit else "", where.get(noise, "")]))
        return list(filter(None, ["whole run" if self.is_covered else "in part", detail]))

    @property
    def accuracy(self) -> float | None:
        """The mean accuracy; None if there is none, or if a run put all rows into one cluster."""
        spread = self.spread("accuracy")
        return None if spread is None or any(trial.collapse for trial in self.trials) else spread.mean

    def is_comparable(self, column: str) -> bool:
        """Tell whether a value means the same for this strategy as for others; a cost may not."""
        return column not in _IN_SPACE_OF_ROWS or all(trial.has_comparable_cost for trial in self.trials)

    def spread(self, column: str) -> Spread | None:
        """Return mean and deviation of a column over the trials that have it; None if no trial has."""
        values = [value for trial in self.trials if (value := trial.number(column)) is not None]
        if not values:
            return None
        return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))

    def by_seed(self, column: str) -> dict[str, float]:
        """Return the values of a column by seed."""
        return {trial.text("seed"): value for trial in self.trials if (value := trial.number(column)) is not None}


@dataclass(frozen=True)
class Scenario:
    """One data set, spread over clients in one way, and the contenders that were compared on it."""

    data: str
    partition: str
    contenders: Sequence[Contender]
    n_clusters: str = ""  #: The number of clusters, if the comparison has several.

    @property
    def name(self) -> str:
        """The data set, how it is spread and, if there are several, the number of clusters."""
        return ", ".join(filter(None, (self.data, self.partition, self.n_clusters and f"{self.n_clusters} clusters")))

    @cached_property
    def measure(self) -> str:
        """What decides which contender is best: the first measure that there is and that can rank."""
        trials = [trial for one in self.contenders for trial in one.trials]
        n_classes = next((number for trial in trials if (number := trial.n_classes) is not None), None)
        differ = n_classes is not None and any(trial.number("n_clusters") not in (None, n_classes) for trial in trials)
        found = [one.accuracy for one in self.contenders if one.accuracy is not None]
        share = next((share for trial in trials if (share := trial.largest_class) is not None), 0.0)
        one_cluster_wins = bool(found) and max(found) <= share
        measures: tuple[str, ...] = _MEASURES_IF_NUMBERS_DIFFER if differ or one_cluster_wins else MEASURES
        if not self._finds_classes:
            measures = ("cost_per_row", *measures)
        return next((name for name in measures if any(one.spread(name) for one in self.contenders)), MEASURES[0])

    @property
    def measure_name(self) -> str:
        """The measure in words."""
        return NAMES[self.measure]

    @cached_property
    def _finds_classes(self) -> bool:
        """Whether any contender's clusters relate to the classes; if none do, the classes cannot rank."""
        found = [spread.mean for one in self.contenders if (spread := one.spread("nmi")) is not None]
        return not found or max(found) >= ABOUT_NOTHING

    def collapse(self, contender: Contender) -> str:
        """Return how the runs of a contender came to nothing, and how many of them; "" if none did."""
        reasons = []
        for trial in contender.trials:
            nmi = trial.number("nmi")
            tells_nothing = self._finds_classes and nmi is not None and nmi < ABOUT_NOTHING
            if reason := trial.collapse or ("NMI about 0" if tells_nothing else ""):
                reasons.append(reason)
        if not reasons:
            return ""
        share = "" if len(reasons) == len(contender.trials) else f" in {len(reasons)} of {len(contender.trials)} runs"
        return " or ".join(dict.fromkeys(reasons)) + share

    @property
    def higher_is_better(self) -> bool:
        """Whether more of the measure is better."""
        return self.measure != "cost_per_row"

    @property
    def sign(self) -> int:
        """1 if more of the measure is better, -1 if less is."""
        return 1 if self.higher_is_better else -1

    @property
    def pooled(self) -> list[Contender]:
        """The pooled references."""
        return [one for one in self.contenders if one.is_pooled]

    @property
    def federated(self) -> list[Contender]:
        """All contenders that do not pool the rows."""
        return [one for one in self.contenders if not one.is_pooled]

    @cached_property
    def measured(self) -> list[tuple[Contender, Spread]]:
        """The contenders that have a measure which can be compared and did not collapse, with the measure."""
        return [
            (one, spread)
            for one in self.contenders
            if (spread := self.quality(one)) is not None and not self.collapse(one)
        ]

    def quality(self, contender: Contender | None) -> Spread | None:
        """Return the measure of a contender; None if it has none that can be compared."""
        if contender is None or not contender.is_comparable(self.measure):
            return None
        return contender.spread(self.measure)

    def best(self, contenders: Iterable[Contender]) -> Contender | None:
        """Return the best by the measure among those that did not collapse; None if none has it."""
        return next(iter(self.ranked(contenders)), None)

    def ranked(self, contenders: Iterable[Contender]) -> list[Contender]:
        """Return those that have the measure and did not collapse, the best first."""
        wanted = list(contenders)
        found = [(-self.sign * spread.mean, one) for one, spread in self.measured if one in wanted]
        return [one for _, one in sorted(found, key=lambda pair: pair[0])]

    @cached_property
    def reference(self) -> Contender | None:
        """The best of those that pool the rows."""
        return self.best(self.pooled)


@dataclass(frozen=True)
class ComparisonResults:
    """All that was read from the folder of a comparison."""

    settings: Mapping[str, Any]  #: The content of ``comparison.json``.
    trials: Sequence[TrialResult]
    unfinished: Sequence[str] = ()  #: Folders without a result: the trial was stopped, or is still running.

    @cached_property
    def scenarios(self) -> list[Scenario]:
        """The trials by data set and partition, in the order of the settings; others follow in their own order."""
        known = [list(map(str, self._asked(setting))) for setting in ("data", "partitions", "n_clusters")]
        found: dict[tuple[str, str, str], list[TrialResult]] = {}
        for trial in self.trials:
            # A single number of clusters, or one for each data set, needs no mention.
            clusters = trial.text("n_clusters") if known[2] else ""
            found.setdefault((trial.text("data"), trial.text("partition"), clusters), []).append(trial)

        def order(key: tuple[str, str, str]) -> list[int]:
            return [names.index(one) if one in names else len(names) for one, names in zip(key, known, strict=True)]

        return [Scenario(key[0], key[1], _contenders(found[key]), key[2]) for key in sorted(found, key=order)]

    @cached_property
    def strategies(self) -> list[str]:
        """Names of all strategies, in the order of the settings; others follow in their own order."""
        found = dict.fromkeys(trial.strategy for trial in self.trials)
        return list(dict.fromkeys([*(name for name in self._asked("strategies") if name in found), *found]))

    @property
    def failed(self) -> list[TrialResult]:
        """The trials that failed."""
        return [trial for trial in self.trials if not trial.is_done]

    def _asked(self, setting: str) -> list[Any]:
        asked = self.settings.get(setting)
        return asked if isinstance(asked, list) else []


def read_comparison(folder: str | Path) -> ComparisonResults:
    """Read the folder of ``fedclust compare``, finished or not: ``runs/KEY/run.json``, or else ``results.csv``."""
    path = Path(folder).absolute()
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is not a folder; name one that 'fedclust compare' wrote.")
    rows = {one: json_object(one / "run.json") for one in sorted(path.glob("runs/*/"))}
    trials = [_trial(row, one.name, one) for one, row in rows.items() if row]
    if not trials and (path / "results.csv").is_file():
        table = read_csv(path / "results.csv", "let 'fedclust compare' run again")
        trials = [_trial(row, str(number)) for number, row in enumerate(table, 1)]
    if not trials:
        raise ValueError(f"{path} holds no run of a comparison yet; let 'fedclust compare' run first.")
    unfinished = [one.name for one, row in rows.items() if not row]
    settings = json_object(path / "comparison.json")
    if settings:
        check_format(settings.get("format"), str(path / "comparison.json"), remedy="run the comparison again")
    return ComparisonResults(settings, trials, unfinished)


def _trial(row: Mapping[str, Any], key: str, folder: Path | None = None) -> TrialResult:
    plain = {name: value for name, value in row.items() if not isinstance(value, list | dict)}
    return TrialResult(str(plain.get("key") or key), plain, folder)


def _contenders(trials: Sequence[TrialResult]) -> list[Contender]:
    done: dict[tuple[str, float | None, str, str, str], list[TrialResult]] = {}
    failed: dict[tuple[str, float | None, str], list[TrialResult]] = {}
    for trial in trials:
        asked = (trial.strategy, trial.epsilon, trial.text("variant"))
        if trial.is_done:
            done.setdefault((*asked, trial.text("privacy_unit"), trial.text("noise")), []).append(trial)
        else:
            failed.setdefault(asked, []).append(trial)
    # A failed trial may not know its unit: it is listed with the first contender of its strategy and budget.
    found = [
        Contender(*key[:2], sorted(group, key=lambda one: one.number("seed") or 0.0), failed.pop(key[:3], ()), key[2])
        for key, group in done.items()
    ]
    found += [Contender(*key[:2], (), group, key[2]) for key, group in failed.items()]
    return sorted(found, key=lambda one: (one.strategy, one.variant, one.epsilon is None, one.epsilon or 0.0))


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


def measure_text(measure: str, value: float) -> str:
    """Return a value of a measure."""
    return number_text(value) if measure == "cost_per_row" else share_text(value)


def bytes_text(value: float, digits: str = ",.1f") -> str:
    """Return a count of bytes in the unit that fits."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:{digits}} {unit}"
    return f"{value:,.0f} B"


def count_text(value: float) -> str:
    """Return a count, or a mean of counts."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def deviation_text(spread: Spread, text: str) -> str:
    """Return the deviation with as many decimals as ``text``, the mean as it is shown; "" if there is no deviation."""
    if spread.deviation is None:
        return ""
    if "e" in text:
        return f"± {spread.deviation:.1e}"
    if spread.deviation <= 1e-9 * abs(spread.mean):
        return "± 0"  # what is left is rounding
    decimals = len(text.partition(".")[2])
    least = 10.0**-decimals
    if 0 < spread.deviation < least / 2:
        return f"± <{least:.{decimals}f}"
    return f"± {spread.deviation:,.{decimals}f}"


def plural(count: int, noun: str) -> str:
    """Return "1 seed", "3 seeds"."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


def capital(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def listed(names: Sequence[str], most: int = 4) -> str:
    """Return names with commas and "and"; if there are many, the first ones and how many more there are."""
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
