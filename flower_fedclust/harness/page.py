"""The page of a comparison: one interactive HTML file that needs no network.

This module collects what the templates in ``report/`` show: for each scenario the verdict, the
table, charts and maps; over all scenarios an overview; then what left the clients and how it was
protected, what failed, and the settings with which the comparison can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import tomli_w

from flower_fedclust.harness.charts import KINDS, bytes_chart, epsilon_charts, quality_axis
from flower_fedclust.harness.folder import LEFT_OUT, ComparisonFolder
from flower_fedclust.harness.pictures import map_of_trial
from flower_fedclust.harness.results import (
    NOTHING,
    ComparisonResults,
    Contender,
    Scenario,
    TrialResult,
    by_remedy,
    capital,
    count_text,
    listed,
    read_comparison,
)
from flower_fedclust.harness.verdict import (
    certainty,
    collapsed,
    doubts,
    ranks_over_scenarios,
    ranks_over_seeds,
    undecided,
    verdict,
)
from flower_fedclust.names import plural
from flower_fedclust.outside import parsing, reading
from flower_fedclust.results.page import page_of


def write_report(folder: str | Path) -> Path:
    """Write ``report.html`` into the folder of a comparison, and return its absolute path.

    The comparison may still be running. The page shows where each row lies on a map, its client and
    its class, and why runs failed. So it must be as well protected as the rows.
    """
    comparison = read_comparison(folder)
    with parsing(str(Path(folder).absolute()), "a comparison", "let 'fedclust compare' run again"):
        content = report_page(comparison)
    ComparisonFolder(folder).write("report.html", content.encode())
    return Path(folder).absolute() / "report.html"


def report_page(comparison: ComparisonResults) -> str:
    """Return the HTML of a comparison's page.

    All content is computed here, and the templates only arrange it. If a template uses a name that
    is not given to it, an error is raised.
    """
    scenarios = [
        _scenario(scenario, f"scenario-{number}")
        for number, scenario in enumerate(comparison.scenarios)
    ]
    names = (
        comparison.strategies
        if len(comparison.strategies) <= 3
        else [f"{len(comparison.strategies)} strategies"]
    )
    data = listed(
        list(dict.fromkeys(scenario.data for scenario in comparison.scenarios if scenario.data))
    )
    return page_of(
        "flower_fedclust.harness",
        "report/page.html",
        title=f"{listed(names)} on {data}" if data else listed(names),
        summary=_summary(comparison),
        overview=_overview(comparison.scenarios) if len(scenarios) > 1 else None,
        scenarios=scenarios,
        privacy=privacy_groups(comparison),
        failures=_failures(comparison),
        is_repeatable=is_repeatable(comparison.settings),
        settings=settings_as_toml(comparison.settings),
        versions=comparison.settings.get("versions", {}),
        maps=[map_["content"] for scenario in scenarios for map_ in scenario["maps"]],
        kinds=KINDS,
        gap_to_pooled=gap_to_pooled,
    )


def _summary(comparison: ComparisonResults) -> str:
    """Return the first paragraph: the progress, what is compared, and when the comparison started.

    A setting with a single value, such as one data set, is not mentioned, because the tables below
    name it.
    """

    def number_of(noun: str, values: set[str]) -> str:
        return plural(len(values), noun) if len(values) > 1 else ""

    trials = comparison.trials
    budgets = sorted({trial.epsilon for trial in trials if trial.epsilon is not None})
    parts = [
        f"{len(comparison.strategies)} strategies"
        if len(comparison.strategies) != 1
        else "one strategy",
        number_of("data set", {trial.text("data") for trial in trials}),
        number_of("partition", {trial.text("partition") for trial in trials}),
        f"epsilon {listed([f'{epsilon:g}' for epsilon in budgets], len(budgets))}"
        if budgets
        else "",
    ]
    n_seeds = len({trial.text("seed") for trial in trials})
    started = str(comparison.settings.get("started", ""))
    with suppress(ValueError):  # a time in another format is shown as it is
        started = datetime.fromisoformat(started).strftime("%Y-%m-%d, %H:%M %Z").strip()
    text = f"{comparison.progress}: {', '.join(filter(None, parts))}; {plural(n_seeds, 'seed')}."
    return f"{text} Started {started}." if started else text


def _overview(scenarios: Sequence[Scenario]) -> dict[str, Any]:
    """Return a row per strategy and budget, with its results in all scenarios.

    Strategies that have no result in any scenario are left out.
    """
    everyone = {
        contender.name: contender
        for scenario in scenarios
        for contender in scenario.contenders
        if contender.trials
    }

    def order(contender: Contender) -> tuple[bool, str, bool, float]:
        return (
            not contender.is_pooled,
            contender.title,
            contender.epsilon is None,
            contender.epsilon or 0.0,
        )

    def cell(scenario: Scenario, name: str) -> tuple[str, bool]:
        same_name = [contender for contender in scenario.contenders if contender.name == name]
        spread = scenario.quality(scenario.best(same_name))
        if spread is None:
            failed = any(
                trial.status == "failed" for contender in same_name for trial in contender.others
            )
            return "collapsed" if any(
                contender.collapse for contender in same_name
            ) else "failed" if failed else "", False
        text = scenario.measure.show(spread.mean)
        return text, not same_name[0].is_pooled and text == scenario.starred.get(
            scenario.measure.name
        )

    rows = [
        {
            "contender": contender,
            "cells": [cell(scenario, contender.name) for scenario in scenarios],
        }
        for contender in sorted(everyone.values(), key=order)
    ]
    return {"scenarios": scenarios, "rows": rows, "ranks": ranks_over_scenarios(scenarios)}


# One scenario.


def _scenario(scenario: Scenario, identifier: str) -> dict[str, Any]:
    """Return what the page shows about one scenario, for the template.

    ``identifier`` is unique on the page; scripts and links use it.
    """
    missing = [contender.name for contender in scenario.contenders if not contender.trials]
    traffic = bytes_chart(scenario)
    maps = _maps(scenario, identifier)
    near, near_says = undecided(scenario)
    return {
        "id": identifier,
        "scenario": scenario,
        "facts": _facts(scenario),
        "verdict": verdict(scenario),
        "certainty": certainty(scenario),
        "collapsed": collapsed(scenario),
        "doubts": doubts(scenario),
        "missing": listed(missing),
        "axis": quality_axis(scenario, scenario.contenders)
        if scenario.ranked(scenario.contenders)
        else None,
        "near": near,
        "near_says": near_says,
        "ranks": ranks_over_seeds(scenario),
        "charts": [*epsilon_charts(scenario), *([] if traffic is None else [traffic])],
        "maps": maps,
        "map_colors": list(
            dict.fromkeys(
                grouping["name"] for map in maps for grouping in map["content"]["groupings"]
            )
        ),
    }


def _facts(scenario: Scenario) -> str:
    """Return the size of a data set in one sentence: rows, columns, clients and clusters."""
    facts = []
    for column, noun in (
        ("n_rows", "rows"),
        ("n_public", "further rows set aside as public"),
        ("n_columns", "columns"),
        ("n_clients", "clients"),
        ("n_clusters", "clusters"),
    ):
        values = {value for trial in scenario.trials if (value := trial.number(column))}
        if values:
            span = dict.fromkeys(map(count_text, (min(values), max(values))))
            facts.append(f"{' to '.join(span)} {noun}")
    return f"{', '.join(facts)}." if facts else ""


def gap_to_pooled(scenario: Scenario, contender: Contender) -> tuple[str, float] | None:
    """Return the distance of a contender from the best pooled reference, as text and as a number to sort by.

    The distance is a difference if larger values of the measure are better, and a ratio if the
    measure is a cost. Returns None if there is no reference, or if this contender is the reference.
    """
    top, quality = scenario.quality(scenario.reference), scenario.quality(contender)
    if top is None or quality is None or contender is scenario.reference:
        return None
    if not scenario.measure.higher_is_better:
        return (
            (f"× {quality.mean / top.mean:.3g}", quality.mean / top.mean) if top.mean > 0 else None
        )
    gap = quality.mean - top.mean
    # A small negative gap would become "-0.000".
    return (f"{gap:+.3f}".replace("-", "−") if abs(gap) >= 0.0005 else "0.000"), gap


def _maps(scenario: Scenario, identifier: str) -> list[dict[str, Any]]:
    """Return a figure for each contender that made a map: the map of its first trial that has one."""
    figures: list[dict[str, Any]] = []
    for contender in scenario.contenders:
        trial = next((trial for trial in contender.trials if trial.has_map), None)
        content = None if trial is None else map_of_trial(trial.folder)
        if trial is not None and content is not None:
            number = f"{identifier}-map-{len(figures)}"
            n_shown, n_rows = content.pop("n_shown"), content.pop("n_rows")
            of = "" if n_shown == n_rows else f" of {n_rows:,}, drawn at random"
            about = f"{plural(n_shown, 'row')}{of}; seed {trial.text('seed') or 'unknown'}."
            name = f"{scenario.name}: {contender.name}"
            figures.append(
                {
                    "title": contender.name,
                    "name": name,
                    "about": about,
                    "content": {"id": number, **content},
                }
            )
    return figures


# Messages that leave the clients.

_COVERED, _IN_PART, _NONE = "The whole run is covered", "Covered in part", "No guarantee"


@dataclass
class PrivacyGroup:
    """Trials of one strategy whose messages had the same content and the same protection, at any budget."""

    #: The strategy's name; "without epsilon" is added if other trials of the strategy have an epsilon.
    strategy: str
    unprotected: Sequence[str]
    protected: Sequence[str]
    report: str  #: The whole report of the first trial.
    guarantees: dict[str, str] = field(default_factory=dict)  #: The guarantee of each budget.


def privacy_groups(comparison: ComparisonResults) -> dict[str, list[PrivacyGroup]]:
    """Group the strategies by how much of their runs a guarantee covers.

    Returns lists of :class:`PrivacyGroup` by heading: the whole run is covered, covered in part, or
    no guarantee. Empty groups are left out.
    """
    groups: dict[tuple[str, str, tuple[str, ...], tuple[str, ...]], PrivacyGroup] = {}
    with_epsilon = {trial.strategy for trial in comparison.trials if trial.epsilon is not None}
    for trial in sorted(
        comparison.of_status("done"), key=lambda trial: trial.epsilon or float("inf")
    ):
        if trial.privacy is None:
            continue
        unprotected, protected = (
            tuple(dict.fromkeys(f"{message.content} ({message.detail})" for message in messages))
            for messages in (trial.privacy.unprotected, trial.privacy.releases)
        )
        is_covered = trial.text("covers_everything").lower() == "true"
        kind = _COVERED if is_covered else _IN_PART if trial.privacy.releases else _NONE
        key = (kind, trial.strategy, unprotected, protected)
        if key not in groups:
            without = (
                " without epsilon"
                if trial.epsilon is None and trial.strategy in with_epsilon
                else ""
            )
            groups[key] = PrivacyGroup(
                f"{trial.strategy}{without}", unprotected, protected, _report_of(trial)
            )
        budget = "no epsilon" if trial.epsilon is None else f"epsilon {trial.epsilon:g}"
        groups[key].guarantees.setdefault(budget, trial.text("guarantee"))
    by_kind = {
        kind: [group for (group_kind, *_), group in groups.items() if group_kind == kind]
        for kind in (_COVERED, _IN_PART, _NONE)
    }
    return {kind: groups for kind, groups in by_kind.items() if groups}


def _report_of(trial: TrialResult) -> str:
    """Return the privacy report of a trial as text, under the trial's key."""
    with reading(trial.folder / "privacy.txt", "a privacy report", "run again") as file:
        return f"{trial.key}\n\n{file.read().decode()}"


# Failures, and how to repeat the comparison.


def _failures(comparison: ComparisonResults) -> dict[str, Any]:
    """Return the runs without a result, grouped by remedy, and the clients that failed in runs with a result."""
    failures: dict[str, Any] = {}
    for status in ("failed", LEFT_OUT):
        rows = [
            {**trial.row, "strategy": trial.strategy, "key": trial.key}
            for trial in comparison.of_status(status)
        ]
        failures[status] = []
        for remedy, same in by_remedy(rows).items():
            names = listed(list(dict.fromkeys(row["strategy"] for row in same)))
            failures[status].append(
                (f"{capital(remedy).rstrip('.')}: {plural(len(same), 'run')} of {names}", same)
            )
    failures["clients"] = [
        [trial.key, *(str(failure.get(key, NOTHING)) for key in ("client", "round", "reason"))]
        for trial in comparison.of_status("done")
        for failure in trial.metrics.get("failures", ())
    ]
    return failures


def is_repeatable(settings: Mapping[str, Any]) -> bool:
    """Tell whether a file of settings can repeat a comparison: Python objects cannot be written into one."""
    return bool(settings) and not (
        settings.get("python_objects") or "clients" in settings.get("files", {})
    )


def settings_as_toml(settings: Mapping[str, Any]) -> str:
    """Return the settings as a TOML file that ``fedclust compare`` reads.

    Settings without a value are left out. So are partitions, if a column or a folder already
    assigns the rows to clients.
    """
    data, files = list(settings.get("data", ())), settings.get("files", {})
    kept: tuple[str, ...] = (
        "strategies",
        "datasets",
        "data",
        "partitions",
        "n_clusters",
        "epsilons",
        "seeds",
        "client_column",
    )
    kept += (
        "label_column",
        "subject_column",
        "columns",
        "schema",
        "server_data",
        "n_server_rows",
        "n_clients",
        "delta",
        "engine",
    )
    # A file of the user's own comes last, after the data sets.
    data_table = data.pop() if data and ({"data", "clients"} & set(files)) else None
    # A column or a folder determines by itself how the rows are spread.
    partitions = [
        partition
        for partition in settings.get("partitions", ())
        if partition not in ("column", "files", "as given")
    ]
    content = {**settings, "datasets": data, "data": data_table, "partitions": partitions}
    wanted = {name: content.get(name) for name in kept}
    wanted |= {"set": settings.get("parameters"), "grid": settings.get("grid")}
    return tomli_w.dumps(
        {
            name: _without_null(value)
            for name, value in wanted.items()
            if value not in (None, [], {})
        }
    )


def _without_null(value: Any) -> Any:
    """Return a JSON value with "none" in the place of null, which TOML does not have."""
    if isinstance(value, dict):
        return {name: _without_null(inner) for name, inner in value.items()}
    return (
        [_without_null(inner) for inner in value]
        if isinstance(value, list)
        else "none"
        if value is None
        else value
    )
