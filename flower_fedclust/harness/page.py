"""The page of a comparison: one interactive HTML file that needs no network."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray

from flower_fedclust.harness.charts import (
    Chart,
    bytes_chart,
    curve_charts,
    epsilon_charts,
    quality_dots,
    rank_dots,
)
from flower_fedclust.harness.results import (
    NOTHING,
    ComparisonResults,
    Contender,
    Scenario,
    Spread,
    TrialResult,
    bytes_text,
    capital,
    count_text,
    deviation_text,
    listed,
    measure_text,
    number_text,
    plural,
    read_comparison,
    share_text,
)
from flower_fedclust.harness.runner import failures_by_remedy
from flower_fedclust.harness.verdict import (
    LEVEL,
    certainty,
    collapsed,
    differences,
    doubts,
    ranks_over_scenarios,
    ranks_over_seeds,
    verdict,
)
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.outside import parsing, reading
from flower_fedclust.privacy.releases import Release
from flower_fedclust.privacy.report import PLACE_SENTENCES, Message, PrivacyReport
from flower_fedclust.results.files import read_labels
from flower_fedclust.results.pictures import NO_COLOR, Grouping, base64_text, groupings_of, natural_order


def write_report(folder: str | Path) -> Path:
    """Write ``report.html`` into the folder of a comparison (finished or stopped), and return its absolute path.

    The page contains the places, clients and classes of the rows of maps, and the reasons of failures, so it must be
    protected as they are.
    """
    comparison = read_comparison(folder)
    with parsing(str(Path(folder).absolute()), "a comparison", "let 'fedclust compare' run again"):
        content = report_page(comparison)
    target = Path(folder).absolute() / "report.html"
    # Written under another name and then moved, so that a full disk leaves the earlier page as it was.
    beside = target.with_name(f".report-{os.getpid()}.part")
    try:
        beside.write_text(content, encoding="utf-8")
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
    return target


def report_page(comparison: ComparisonResults) -> str:
    """Return the page of a comparison."""
    scenarios = [_scenario(one, f"scenario-{number}") for number, one in enumerate(comparison.scenarios)]
    names = comparison.strategies if len(comparison.strategies) <= 3 else [f"{len(comparison.strategies)} strategies"]
    data = listed(list(dict.fromkeys(one.data for one in comparison.scenarios if one.data)))
    is_any_done = len(comparison.failed) < len(comparison.trials)
    return page(
        "report/page.html",
        title=f"{listed(names)} on {data}" if data else listed(names),
        summary=_summary(comparison),
        overview=_overview(comparison.scenarios) if len(scenarios) > 1 else None,
        scenarios=scenarios,
        privacy=privacy_groups(comparison) if is_any_done else None,
        failures=_failures(comparison),
        command=command_of(comparison.settings),
        settings=settings_of(comparison),
        maps=[one.content for scenario in scenarios for one in scenario["maps"]],
    )


def page(template: str, **content: Any) -> str:
    """Return a page, complete in itself; every text of the content is escaped."""
    return _environment().get_template(template).render(content)


@cache
def _environment() -> Environment:
    """Return the templates; a name that does not exist is an error."""
    environment = Environment(
        loader=PackageLoader("flower_fedclust.harness"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"plural": plural, "short": "{:g}".format, "tenth": "{:.1f}".format}
    return environment


def _overview(scenarios: Sequence[Scenario]) -> dict[str, Any]:
    ranks = ranks_over_scenarios(scenarios)
    plot = None if ranks is None else rank_dots(ranks, "All data sets")
    return {"scenarios": scenarios, "rows": overview_rows(scenarios), "ranks": plot}


def _scenario(scenario: Scenario, identifier: str) -> dict[str, Any]:
    """Return what the page shows of a data set."""
    missing = [one.name for one in scenario.contenders if not one.trials]
    epsilons, traffic, maps = epsilon_charts(scenario), bytes_chart(scenario), map_figures(scenario, identifier)
    ranks = ranks_over_seeds(scenario)
    charts: list[Chart] = epsilons if traffic is None else [*epsilons, traffic]
    return {
        "id": identifier,
        "scenario": scenario,
        "facts": _facts(scenario),
        "verdict": verdict(scenario),
        "certainty": certainty(scenario),
        "collapsed": collapsed(scenario),
        "doubts": doubts(scenario),
        "missing": ", ".join(missing)
        if len(missing) <= 3
        else f"{len(missing)} of {len(scenario.contenders)} contenders",
        "table": ResultsTable(scenario) if len(missing) < len(scenario.contenders) else None,
        "dots": None if epsilons else quality_dots(scenario),
        "ranks": None if ranks is None else rank_dots(ranks, scenario.name),
        "charts": charts,
        "curves": curve_charts(scenario),
        "maps": maps,
        "map_colors": list(dict.fromkeys(one["name"] for map in maps for one in map.content["groupings"])),
    }


def _facts(scenario: Scenario) -> str:
    """Return how large a data set is, according to the trials on it."""
    trials = [trial for one in scenario.contenders for trial in (*one.trials, *one.failed)]
    found = []
    for noun in ("rows", "columns", "clients", "clusters"):
        values = {value for trial in trials if (value := trial.number(f"n_{noun}")) is not None}
        if values:
            span = dict.fromkeys(map(count_text, (min(values), max(values))))
            found.append(f"{' to '.join(span)} {noun}")
    return f"{', '.join(found)}." if found else ""


def _summary(comparison: ComparisonResults) -> str:
    failed = len(comparison.failed)
    done = len(comparison.trials) - failed
    seeds = {trial.text("seed") for trial in comparison.trials} - {""}
    budgets = sorted({trial.epsilon for trial in comparison.trials if trial.epsilon is not None})
    data = {scenario.data for scenario in comparison.scenarios}
    partitions = {scenario.partition for scenario in comparison.scenarios}
    parts = [
        f"{len(comparison.strategies)} strategies" if len(comparison.strategies) != 1 else "One strategy",
        plural(len(data), "data set") if len(data) > 1 else "",
        f"{len(partitions)} ways to spread the rows" if len(partitions) > 1 else "",
        f"epsilon {', '.join(f'{epsilon:g}' for epsilon in budgets)}" if budgets else "",
        plural(len(seeds), "seed") if seeds else "",
    ]
    text = f"{', '.join(filter(None, parts))}: {plural(done, 'run')} done" + (f", {failed} failed." if failed else ".")
    started = _moment(comparison.settings.get("started"))
    version = next(filter(None, (trial.text("flower_fedclust") for trial in comparison.trials)), "")
    more = [f"Started {started}." if started else "", f"flower-fedclust {version}." if version else ""]
    return " ".join(filter(None, [text, *more]))


def _moment(text: Any) -> str:
    """Return a date and time as a person writes it."""
    try:
        return datetime.fromisoformat(str(text)).strftime("%Y-%m-%d, %H:%M %Z").strip()
    except ValueError:
        return "" if text is None else str(text)


# The tables.


@dataclass(frozen=True)
class Measure:
    """One column of numbers: how they are shown, and whether more or less of it is better."""

    name: str
    heading: str
    show: Callable[[float], str]
    higher_is_better: bool = False
    is_last: bool = False  #: Whether it stands after the guarantee.

    def best(self, contenders: Sequence[Contender]) -> str | None:
        """Return the best mean as it is shown, so that ties are ties; None if fewer than two have one."""
        comparable = (one.spread(self.name) for one in contenders if one.is_comparable(self.name))
        means = [spread.mean for spread in comparable if spread is not None]
        if len(means) < 2:
            return None
        return self.show(max(means) if self.higher_is_better else min(means))

    def deviation(self, spread: Spread, text: str) -> str:
        """Return the deviation beside a mean that is shown as ``text``."""
        if self.show in (share_text, number_text, _seconds):
            return deviation_text(spread, text)
        # Rounds and bytes seldom depend on the seed; then there is nothing to say.
        return f"± {self.show(spread.deviation)}" if spread.deviation else ""


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.1f}"


MEASURES = (
    Measure("accuracy", "accuracy", share_text, higher_is_better=True),
    Measure("nmi", "NMI", share_text, higher_is_better=True),
    Measure("ari", "ARI", share_text, higher_is_better=True),
    Measure("cost_per_row", "cost per row", number_text),
    Measure("silhouette", "silhouette", share_text, higher_is_better=True),
    Measure("bytes_up", "sent by clients", bytes_text),
    Measure("seconds", "seconds", _seconds),
    Measure("rounds", "rounds", count_text, is_last=True),
    Measure("bytes_down", "sent to clients", bytes_text, is_last=True),
    Measure("peak_memory_mb", "peak memory, MB", count_text, is_last=True),
    Measure("davies_bouldin", "Davies-Bouldin", number_text, is_last=True),
    Measure("calinski_harabasz", "Calinski-Harabasz", number_text, higher_is_better=True, is_last=True),
    Measure("map_ca_10", "map: class by neighbors", share_text, higher_is_better=True, is_last=True),
    Measure("map_npa_10", "map: neighbors kept", share_text, higher_is_better=True, is_last=True),
    Measure("map_nmi", "map: NMI", share_text, higher_is_better=True, is_last=True),
    Measure("map_trustworthiness", "map: trustworthiness", share_text, higher_is_better=True, is_last=True),
)


@dataclass(frozen=True)
class ResultsTable:
    """The table of one scenario: the pooled references, then the others, the best first, then what collapsed."""

    scenario: Scenario

    @cached_property
    def done(self) -> list[Contender]:
        """The contenders that have a result."""
        return [one for one in self.scenario.contenders if one.trials]

    @cached_property
    def groups(self) -> dict[str, list[Contender]]:
        """The rows by the class of their body."""
        federated = [one for one in self.scenario.federated if one.trials]
        dropped = [one for one in federated if self.scenario.collapse(one)]
        ranked = self.scenario.ranked(federated)
        # A cost in another space cannot be ranked; it comes after those that can.
        unranked = [one for one in federated if one not in ranked and one not in dropped]
        pooled = [one for one in self.scenario.pooled if one.trials]
        return {"pooled": pooled, "sortable": ranked + unranked, "sortable collapsed": dropped}

    @cached_property
    def columns(self) -> list[Measure]:
        """The columns that any contender has, the ranking's first."""
        columns = [one for one in MEASURES if any(contender.spread(one.name) for contender in self.done)]
        return sorted(columns, key=lambda column: column.name != self.scenario.measure)

    @cached_property
    def best(self) -> dict[str, str | None]:
        """The best of each column, among those that neither pool the rows nor collapsed."""
        return {column.name: column.best(self.groups["sortable"]) for column in self.columns}

    @cached_property
    def near(self) -> list[Contender]:
        """Those that are not significantly worse than the best."""
        return [one.other for one in differences(self.scenario) if one.p_value >= LEVEL]

    @property
    def has_gap(self) -> bool:
        """Whether there is a column for the distance to the pooled reference."""
        return self.scenario.reference is not None and bool(self.scenario.federated)

    @property
    def guarantees(self) -> list[str]:
        """The classes of guarantees to choose from."""
        return list(dict.fromkeys(one.guarantee_kind for one in self.done if not one.is_pooled))

    @property
    def has_daggers(self) -> bool:
        """Whether any value is marked as one that cannot be compared."""
        return any(one.spread("cost_per_row") and not one.is_comparable("cost_per_row") for one in self.done)

    @property
    def caption(self) -> str:
        """What the numbers and signs are."""
        counts = sorted({len(one.trials) for one in self.done})
        over = "mean and standard deviation over " if counts[-1] > 1 else ""
        fewer = ", or fewer where runs failed or have not ended" if len(counts) > 1 else ""
        stars = " ★ marks the best of a column among those that neither pool the rows nor collapsed."
        near = " ≈ marks those that may be as good." if self.near else ""
        return (
            f"{self.scenario.name}: {over}{plural(counts[-1], 'seed')}{fewer}."
            f"{stars if self.scenario.federated else ''}{near}"
        )

    def notes(self, one: Contender) -> list[str]:
        """Return what stands below the name of a contender."""
        collapse = self.scenario.collapse(one)
        kind = "pooled reference" if one.is_pooled else f"collapsed: {collapse}" if collapse else ""
        return list(filter(None, (one.variant, kind)))

    def gap(self, one: Contender) -> tuple[str, float] | None:
        """Return the distance to the best pooled reference, as text and number: a difference, or for a cost a ratio."""
        top, own = self.scenario.quality(self.scenario.reference), self.scenario.quality(one)
        if top is None or own is None or one is self.scenario.reference:
            return None
        if not self.scenario.higher_is_better:
            return (f"× {own.mean / top.mean:.3g}", own.mean / top.mean) if top.mean > 0 else None
        gap = own.mean - top.mean
        # The condition avoids "-0.000".
        return (f"{gap:+.3f}".replace("-", "−") if abs(gap) >= 0.0005 else "0.000"), gap


def overview_rows(scenarios: Sequence[Scenario]) -> list[dict[str, Any]]:
    """Return a row per strategy and budget with its results in all scenarios; what failed everywhere is left out."""
    best = [scenario.quality(scenario.best(scenario.federated)) for scenario in scenarios]

    def key(one: Contender) -> tuple[bool, str, bool, float]:
        return (not one.is_pooled, one.title, one.epsilon is None, one.epsilon or 0.0)

    def cell(scenario: Scenario, top: Spread | None, group: list[Contender]) -> tuple[str, bool]:
        own = [one for one in group if one in scenario.contenders]
        spread = scenario.quality(scenario.best(own))
        if spread is None:
            failed = any(one.failed and not one.trials for one in own)
            return ("collapsed" if any(map(scenario.collapse, own)) else "failed" if failed else ""), False
        text = measure_text(scenario.measure, spread.mean)
        return text, not own[0].is_pooled and top is not None and text == measure_text(scenario.measure, top.mean)

    rows = []
    everyone = sorted((one for scenario in scenarios for one in scenario.contenders), key=key)
    for _, same in groupby(everyone, key):
        group = list(same)
        if any(one.trials for one in group):
            first = group[0]
            cells = [cell(scenario, top, group) for scenario, top in zip(scenarios, best, strict=True)]
            rows.append({"title": first.title, "epsilon": first.epsilon, "is_pooled": first.is_pooled, "cells": cells})
    return rows


# What leaves the clients, in the words of the privacy reports.

#: What the privacy report calls each kind of message, from the worst to the harmless.
UNPROTECTED = "unprotected"
PROTECTED = "protected by noise"
DERIVED = "computed from nothing but what is protected"
HARMLESS = "independent of the values of the rows"
_COVERED, _IN_PART, _NOTHING_COVERED = "The whole run is covered", "Covered in part", "No guarantee"
_UNKNOWN = "Not known"
_EXPLAINED = {UNPROTECTED: "no mechanism covers it", DERIVED: "it costs no more"}

#: Task, content, how fine, and status.
_Kind = tuple[str, str, str, str]


@dataclass(frozen=True)
class Reported:
    """A trial and its privacy report."""

    trial: TrialResult
    report: PrivacyReport

    def status(self, message: Message) -> str:
        """Return the part of the report that lists a message."""
        if message in self.report.unprotected:
            return UNPROTECTED
        if message.is_protected:
            return PROTECTED
        return DERIVED if message.post_processing and not message.harmless else HARMLESS

    @cached_property
    def kinds(self) -> dict[_Kind, list[Message]]:
        """The messages by kind; repeated rounds count as one kind."""
        found: dict[_Kind, list[Message]] = {}
        for message in self.report.messages:
            found.setdefault((message.task, message.content, message.detail, self.status(message)), []).append(message)
        return found


@dataclass(frozen=True)
class PrivacyGroup:
    """The trials of a strategy that sent the same kinds of messages with the same protection."""

    strategy: str
    id: str = ""
    which: str = ""  #: Which trials of the strategy these are, if there are others.
    trials: Sequence[Reported] = ()

    @property
    def kind(self) -> str:
        """How much of the runs is covered."""
        if not self.trials:
            return _UNKNOWN
        if all(one.trial.text("covers_everything").lower() == "true" for one in self.trials):
            return _COVERED
        return _IN_PART if any(one.report.releases for one in self.trials) else _NOTHING_COVERED

    @property
    def guarantees(self) -> dict[str, str]:
        """The guarantee of each budget, as the first of its reports states it."""
        first: dict[str, str] = {}
        for one in self.trials:
            budget = "no epsilon" if one.trial.epsilon is None else f"epsilon {one.trial.epsilon:g}"
            first.setdefault(budget, str(one.trial.privacy.get("guarantee", "")))
        return first

    def contents(self, *statuses: str) -> list[str]:
        """Return what leaves the clients with one of these statuses."""
        kinds = [kind for one in self.trials for kind in one.kinds]
        return list(dict.fromkeys(f"{content} ({detail})" for _, content, detail, kind in kinds if kind in statuses))

    @property
    def caption(self) -> str:
        """What the table of messages shows."""
        where = f", as in {plural(len(self.trials) - 1, 'other run')}" if len(self.trials) > 1 else ""
        return f"{self.strategy}: what leaves each client, in {self.trials[0].trial.key}{where}."

    @property
    def messages(self) -> list[dict[str, str]]:
        """Every kind of message, as the first trial sent it, with the look of its status and what protects it."""
        looks = {UNPROTECTED: "open", PROTECTED: "covered"}
        return [
            {
                "rounds": _rounds([one.round for one in messages]),
                **dict(zip(("task", "content", "detail", "status"), kind, strict=True)),
                "look": looks.get(kind[3], "neutral"),
                "protection": self._protection(kind),
            }
            for kind, messages in self.trials[0].kinds.items()
        ]

    @property
    def about(self) -> list[str]:
        """What is true of all messages."""
        example = self.trials[0]
        about = []
        if neighbours := example.trial.privacy.get("neighbouring_relation"):
            about.append(f"Neighboring data sets differ in {neighbours}.")
        if example.report.releases and example.report.noise in PLACE_SENTENCES:
            about.append(PLACE_SENTENCES[example.report.noise])
        return about + list(dict.fromkeys(note for one in self.trials for note in one.report.notes))

    def _protection(self, kind: _Kind) -> str:
        """Return how a kind of message is protected; the noise differs between budgets."""
        releases: dict[float | None, Release] = {}
        for one in self.trials:
            release = one.kinds[kind][0].release
            if release is not None and release.noise_multiplier > 0:
                releases.setdefault(one.trial.epsilon, release)
        if kind[3] != PROTECTED or not releases:
            return _EXPLAINED.get(kind[3], "")
        noise = "; ".join(
            f"noise multiplier {one.noise_multiplier:.4g}, scale {one.scale:.4g}"
            + (f" at epsilon {epsilon:g}" if epsilon is not None and len(releases) > 1 else "")
            for epsilon, one in releases.items()
        )
        first = next(iter(releases.values()))
        sample = "" if first.sample is None else f", on {first.sample[0]} rows drawn from at least {first.sample[1]}"
        return (
            f"{first.mechanism.capitalize()} mechanism, {first.norm} sensitivity {first.sensitivity:.4g} "
            f"({first.bound}), {noise}{sample}"
        )


def privacy_groups(comparison: ComparisonResults) -> dict[str, list[PrivacyGroup]]:
    """Return the strategies by how much of their runs is covered."""
    found: dict[str, list[PrivacyGroup]] = {one: [] for one in (_COVERED, _IN_PART, _NOTHING_COVERED, _UNKNOWN)}
    for number, name in enumerate(comparison.strategies):
        groups: dict[frozenset[_Kind], list[Reported]] = {}
        for trial in sorted(comparison.trials, key=lambda one: one.epsilon or float("inf")):
            if trial.is_done and trial.strategy == name and trial.privacy_report is not None:
                one = Reported(trial, trial.privacy_report)
                groups.setdefault(frozenset(one.kinds), []).append(one)
        alike = list(groups.values())
        made = [
            PrivacyGroup(name, f"privacy-{number}-{index}", _which(group, alike), group)
            for index, group in enumerate(alike)
        ]
        for group in made or [PrivacyGroup(name)]:
            found[group.kind].append(group)
    return {kind: groups for kind, groups in found.items() if groups}


def _which(group: Sequence[Reported], groups: Sequence[Sequence[Reported]]) -> str:
    """Return which trials belong to this group, if there is more than one group."""
    if len(groups) == 1:
        return ""
    budgets = dict.fromkeys(one.trial.epsilon for one in group)
    numbers = ", ".join(f"{epsilon:g}" for epsilon in budgets if epsilon is not None)
    text = " or ".join(filter(None, [f"epsilon {numbers}" if numbers else "", "no epsilon" if None in budgets else ""]))
    if any(one.trial.epsilon in budgets for other in groups if other is not group for one in other):
        text += " on " + ", ".join(dict.fromkeys(one.trial.text("data") for one in group))
    return text


def _rounds(rounds: Sequence[int]) -> str:
    if len(rounds) > 2 and list(rounds) == list(range(rounds[0], rounds[0] + len(rounds))):
        return f"{rounds[0]} to {rounds[-1]}"
    return ", ".join(map(str, dict.fromkeys(rounds))) if len(rounds) <= 6 else f"{len(set(rounds))} of them"


# The maps: a few thousand rows of each, to be drawn and pointed at in the page.

#: How many rows of a map the page holds.
MOST_ROWS = 5000
#: The background of pictures, as in the style sheet.
PANELS = {"light": "#ffffff", "dark": "#1c2127"}
#: The least contrast of graphics (WCAG 2.1, criterion 1.4.11).
LEAST_CONTRAST = 3.0


@dataclass(frozen=True)
class MapOfRows:
    """The places of rows, and the client, the class and the cluster of each."""

    places: NDArray[np.float64]
    numbers: NDArray[np.intp]
    groupings: Sequence[Grouping]
    n_rows: int


@dataclass(frozen=True)
class MapFigure:
    """The map of one contender: what the page says about it, and what it needs to draw it."""

    id: str
    title: str
    name: str
    about: str
    group: str  #: What the table below has a row for each of: "class" or "cluster".
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    content: dict[str, Any]


def map_figures(scenario: Scenario, identifier: str) -> list[MapFigure]:
    """Return a figure for each contender that made a map."""
    figures: list[MapFigure] = []
    for one in scenario.contenders:
        trial = next((trial for trial in one.trials if trial.embedding_folder is not None), None)
        drawn = None if trial is None else read_map(trial)
        if trial is not None and drawn is not None:
            figures.append(_map_figure(scenario, one, trial, drawn, f"{identifier}-map-{len(figures)}"))
    return figures


def read_map(trial: TrialResult, most_rows: int = MOST_ROWS) -> MapOfRows | None:
    """Return the map that a trial saved, or a random sample of ``most_rows`` of it; None if it cannot be read."""
    folder = trial.embedding_folder
    if folder is None or trial.folder is None:
        return None
    files = sorted(folder.glob("*.csv"), key=lambda file: natural_order(file.stem))
    try:
        places = [_read_places(file) for file in files]
        label_files = [trial.folder / "labels" / file.name for file in files]
        clusters = [_read_clusters(file, len(part)) for file, part in zip(label_files, places, strict=True)]
        known = _read_classes(trial.folder / "classes.csv")
    except DataError:
        return None
    names = _client_names([file.stem for file in files], list(known))
    classes = [
        values if (values := known.get(name)) is not None and len(values) == len(part) else None
        for name, part in zip(names, places, strict=True)
    ]
    if not sum(map(len, places)):
        return None
    labels = classes if any(part is not None for part in classes) else None
    columns = {"cluster": clusters} if any(part is not None for part in clusters) else {}
    groupings = groupings_of(places, names, labels, columns)
    xy, numbers = np.concatenate(places), np.concatenate([np.arange(len(part)) for part in places])
    chosen = np.arange(len(xy))
    if len(xy) > most_rows:
        chosen = np.sort(np.random.default_rng(0).choice(len(xy), most_rows, replace=False))
    drawn = [Grouping(one.name, one.groups, one.colors, one.codes[chosen]) for one in groupings]
    return MapOfRows(xy[chosen], numbers[chosen], drawn, len(xy))


def _map_figure(scenario: Scenario, one: Contender, trial: TrialResult, drawn: MapOfRows, identifier: str) -> MapFigure:
    """Return the figure, with the median and the spread of each class, or cluster, as the picture shows them."""
    of = "" if len(drawn.places) == drawn.n_rows else f" of {drawn.n_rows:,}, drawn at random"
    names = [grouping.name for grouping in drawn.groupings]
    grouping = drawn.groupings[names.index("class") if "class" in names else -1]
    rows = []
    for code, group in enumerate(grouping.groups):
        part = drawn.places[grouping.codes == code]
        if len(part):
            middle = np.median(part, axis=0)
            spread = float(np.median(np.hypot(*(part - middle).T)))
            rows.append([group, f"{len(part):,}", *(number_text(float(value), 3) for value in (*middle, spread))])
    low = drawn.places.min(axis=0)
    widest = float((drawn.places.max(axis=0) - low).max()) or 1.0
    content = {
        "id": identifier,
        # Places in 65,536 steps of the wider side, finer than any screen.
        "places": base64_text(np.rint((drawn.places - low) / widest * 65535), "<u2"),
        "numbers": base64_text(drawn.numbers, "<u4"),
        "groupings": [
            {"name": one.name, "groups": one.groups, "colors": _colors(one), "codes": base64_text(one.codes, "<u2")}
            for one in drawn.groupings
        ],
    }
    about = f"{plural(len(drawn.places), 'row')}{of}; seed {trial.text('seed') or 'unknown'}."
    headings = [grouping.name, "rows", "median x", "median y", "median distance from there"]
    name = f"{scenario.name}: {one.name}"
    return MapFigure(identifier, one.name, name, about, grouping.name, headings, rows, content)


def _colors(grouping: Grouping) -> dict[str, list[str]]:
    """Return the colors in both schemes; only the color of rows without a class may have a low contrast."""
    return {
        scheme: [color if color == NO_COLOR else readable_color(color, panel) for color in grouping.colors]
        for scheme, panel in PANELS.items()
    }


def readable_color(color: str, behind: str) -> str:
    """Return a color, made darker or lighter just enough to have the least contrast (WCAG 2) with another."""

    def shifted(amount: int) -> str:
        return "#" + "".join(f"{min(max(channel + amount, 0), 255):02x}" for channel in _channels(color))

    sign = max((-1, 1), key=lambda sign: _contrast(shifted(255 * sign), behind))
    shades = (shifted(sign * step) for step in range(256))
    return next(one for one in shades if _contrast(one, behind) >= LEAST_CONTRAST)


def _contrast(one: str, other: str) -> float:
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color: str) -> float:
    shares = [channel / 255 for channel in _channels(color)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _channels(color: str) -> list[int]:
    return [int(color[at : at + 2], 16) for at in (1, 3, 5)]


def _read_places(file: Path) -> NDArray[np.float64]:
    import pandas as pd

    with reading(file, "a map", "run again") as opened:
        array: NDArray[np.float64] = pd.read_csv(opened).to_numpy(dtype=np.float64)
        if array.shape[1] != 2 or not np.isfinite(array).all():
            raise DataError(f"{file} does not hold 2 columns of finite numbers.")
        return array


def _read_clusters(file: Path, n_rows: int) -> NDArray[np.intp] | None:
    if not file.is_file():
        return None
    clusters = read_labels(file).labels
    return clusters if len(clusters) == n_rows else None


def _read_classes(file: Path) -> dict[str, NDArray[Any]]:
    """Return the true classes by client, in the clients' order."""
    import pandas as pd

    if not file.is_file():
        return {}
    with reading(file, "a file of classes", "run again") as opened:
        frame = pd.read_csv(opened, dtype={"client": str}, keep_default_na=False, na_values={"class": [""]})
        return {str(name): part.to_numpy(dtype=object) for name, part in frame.groupby("client", sort=False)["class"]}


def _client_names(stems: Sequence[str], clients: Sequence[str]) -> list[str]:
    """Return the clients of files: a file may be named by the client's number and a name similar to the client's."""
    names = []
    for stem in stems:
        number = stem.partition("-")[0]
        is_number = stem not in clients and number.isdecimal() and int(number) < len(clients)
        names.append(clients[int(number)] if is_number else stem)
    return names


# What failed, how the comparison was made, and how to repeat it.

_VERSIONS = {
    "flower_fedclust": "flower-fedclust",
    "flwr": "Flower",
    "python": "Python",
    "numpy": "NumPy",
    "scikit_learn": "scikit-learn",
}
#: Settings that are options of the same name, and the value that each has if it is not given.
_OPTIONS = {
    **dict.fromkeys(("client_column", "label_column", "columns", "schema", "server_data", "n_server_rows")),
    "n_clients": 10,
    "n_clusters": None,
    "delta": 1e-6,
    "engine": "inline",
}


def _failures(comparison: ComparisonResults) -> dict[str, Any] | None:
    """Return the runs that failed by what would mend them, the clients that failed, and the runs without a result."""
    reasons = {trial.key: (trial.strategy, trial.text("reason")) for trial in comparison.failed}
    remedies = {key: next(iter(failures_by_remedy([reason]))) for key, reason in reasons.items()}
    by_remedy = []
    for remedy, runs in failures_by_remedy(list(reasons.values())).items():
        concerned = [trial for trial in comparison.failed if remedies[trial.key] == remedy]
        by_remedy.append((f"{capital(remedy)}: {plural(len(concerned), 'run')} of {', '.join(runs)}", concerned))
    of_clients = []
    for trial in comparison.trials:
        failures = trial.metrics.get("failures") if trial.is_done else None
        for failure in failures if isinstance(failures, list) else []:
            if isinstance(failure, dict):
                said = (str(failure.get(one, NOTHING)) for one in ("client", "round", "reason"))
                of_clients.append([trial.key, *said])
    found = {"by_remedy": by_remedy, "of_clients": of_clients, "unfinished": comparison.unfinished}
    return found if any(found.values()) else None


def settings_of(comparison: ComparisonResults) -> list[tuple[str, str]]:
    """Return the settings and the versions, each with its name."""
    left_out = {"versions", "command"}
    if set(comparison.settings.get("partitions") or ("iid",)) <= {"column", "files", "as given"}:
        left_out.add("n_clients")  # which the rows say
    settings = {key: value for key, value in comparison.settings.items() if key not in left_out}
    rows = [(key.replace("_", " "), _setting_text(value)) for key, value in settings.items() if value not in (None, {})]
    versions = comparison.settings.get("versions")
    for column, name in _VERSIONS.items():
        found = {trial.text(column) for trial in comparison.trials}
        if isinstance(versions, dict):
            found.add(str(versions.get(column) or ""))
        if found := found - {""}:
            rows.append((name, ", ".join(sorted(found))))
    return rows


def command_of(settings: Mapping[str, Any]) -> str:
    """Return the command that repeats the comparison in a new folder; "" if no command can."""
    strategies, data, partitions, epsilons, seeds = (
        list(value) if isinstance(value := settings.get(name), list) else []
        for name in ("strategies", "data", "partitions", "epsilons", "seeds")
    )
    files = settings.get("files")
    files = files if isinstance(files, dict) else {}
    if not strategies or not data or settings.get("python_objects") or "clients" in files:
        return ""
    # A file of the user's own is the last, after the data sets.
    own = [data.pop()] if "data" in files else []
    # A column or a folder determines by itself how the rows are spread.
    partitions = [one for one in partitions if one not in ("column", "files")]
    is_count = seeds == list(range(len(seeds)))
    options: dict[str, Any] = {
        "strategies": strategies,
        "datasets": data,
        "data": own,
        "partitions": [] if partitions == ["iid"] else partitions,
        "epsilons": epsilons,
        # One number is how many seeds there are, so a list of one seed ends in a comma.
        "seeds": len(seeds) if is_count and seeds else [*seeds, ""] if len(seeds) == 1 else seeds,
    }
    options |= {name: value for name, usual in _OPTIONS.items() if (value := settings.get(name, usual)) != usual}
    words = ["fedclust", "compare"]
    for name, value in options.items():
        if value != []:
            words += [f"--{name.replace('_', '-')}", _plain(value)]
    for option, given in (("--set", settings.get("parameters")), ("--grid", settings.get("grid"))):
        for name, value in (given if isinstance(given, dict) else {}).items():
            words += [option, f"{name}={_plain(value)}"]
    return shlex.join([*words, "--out", "DIR"])


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_plain, value))
    if value is None:
        return "none"
    if isinstance(value, dict):
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _setting_text(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_setting_text(one)}" for key, one in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(_setting_text, value)) or "none"
    return "none" if value != value else _plain(value)
