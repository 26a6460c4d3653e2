"""The report of a comparison: one interactive HTML page that needs no network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from flower_fedclust.harness.pages import page as page
from flower_fedclust.harness.pages import plural
from flower_fedclust.harness.report.about import command_of, failures_of, settings_of
from flower_fedclust.harness.report.data import ComparisonResults, Scenario, read_comparison
from flower_fedclust.harness.report.maps import map_figures
from flower_fedclust.harness.report.pictures import bytes_chart, curve_charts, dot_plot, epsilon_charts, rank_plot
from flower_fedclust.harness.report.privacy import privacy_groups
from flower_fedclust.harness.report.ranks import ranks_over_scenarios, ranks_over_seeds
from flower_fedclust.harness.report.tables import ResultsTable, overview_rows
from flower_fedclust.harness.report.texts import NAMES, count_text, listed
from flower_fedclust.harness.report.verdict import certainty, collapsed, doubts, verdict
from flower_fedclust.outside import parsing


def write_report(folder: str | Path) -> Path:
    """Write ``report.html`` into the folder of a comparison (finished or stopped), and return its absolute path.

    The page contains the places, clients and classes of the rows of maps, and the reasons of failures, so it must be
    protected as they are.

    Raises
    ------
    FileNotFoundError
        If the folder does not exist.
    ValueError
        If it holds no run.
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
        failures=failures_of(comparison),
        command=command_of(comparison.settings),
        settings=settings_of(comparison),
        names=NAMES,
        maps=[one.content for scenario in scenarios for one in scenario["maps"]],
    )


def _overview(scenarios: Sequence[Scenario]) -> dict[str, Any]:
    ranks = ranks_over_scenarios(scenarios)
    plot = None if ranks is None else rank_plot(ranks, "All data sets")
    return {"scenarios": scenarios, "rows": overview_rows(scenarios), "ranks": plot}


def _scenario(scenario: Scenario, identifier: str) -> dict[str, Any]:
    """Return what the page shows of a data set."""
    missing = [one.name for one in scenario.contenders if not one.trials]
    epsilons, traffic, maps = epsilon_charts(scenario), bytes_chart(scenario), map_figures(scenario, identifier)
    ranks = ranks_over_seeds(scenario)
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
        "dots": None if epsilons else dot_plot(scenario),
        "ranks": None if ranks is None else rank_plot(ranks, scenario.name),
        "charts": epsilons if traffic is None else [*epsilons, traffic],
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
