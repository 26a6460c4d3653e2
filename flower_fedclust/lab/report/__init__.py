"""The report of a comparison: one interactive HTML page that needs no network."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

from flower_fedclust.lab.report.about import about_parts, failure_parts
from flower_fedclust.lab.report.data import ComparisonResults, Scenario, read_comparison
from flower_fedclust.lab.report.maps import map_figures
from flower_fedclust.lab.report.markup import Html, count_text, details, joined, plural, tag
from flower_fedclust.lab.report.pictures import bytes_chart, curve_charts, dot_plot, epsilon_charts
from flower_fedclust.lab.report.privacy import privacy_section
from flower_fedclust.lab.report.tables import daggers_sentence, overview_table, scenario_table
from flower_fedclust.lab.report.verdict import certainty, collapsed, doubts, verdict


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
    target = Path(folder).absolute() / "report.html"
    # Written under another name and then moved, so that a full disk leaves the earlier page as it was.
    beside = target.with_name(f".report-{os.getpid()}.part")
    try:
        beside.write_text(report_page(comparison), encoding="utf-8")
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
    return target


def report_page(comparison: ComparisonResults) -> str:
    """Return the page of a comparison."""
    maps: list[dict[str, Any]] = []
    links: list[Html] = []
    sections: list[Html] = []

    def add(identifier: str, link: str, *parts: object, title: str = "") -> None:
        links.append(tag("li", tag("a", link, href=f"#{identifier}")))
        heading = tag("h2", title or link, id=f"{identifier}-heading")
        sections.append(tag("section", heading, *parts, id=identifier, aria_labelledby=f"{identifier}-heading"))

    if len(comparison.scenarios) > 1:
        said = [tag("li", tag("b", f"{one.name}: "), verdict(one)) for one in comparison.scenarios]
        verdicts = tag("ul", *said, class_="verdicts")
        body = overview_table(comparison.scenarios, "overview-table")
        add("overview", "All data sets", verdicts, body, title="All data sets at a glance")
    for number, scenario in enumerate(comparison.scenarios):
        parts, drawn = _scenario_parts(scenario, f"scenario-{number}")
        add(f"scenario-{number}", scenario.name, tag("p", _facts(scenario), class_="facts"), *parts)
        maps += drawn
    if len(comparison.failed) < len(comparison.trials):
        title = "What leaves the clients, and what is protected"
        add("privacy", "What leaves the clients", privacy_section(comparison), title=title)
    if failures := failure_parts(comparison):
        add("failures", "What failed", *failures)
    add("about", "How to repeat it", *about_parts(comparison))
    few = len(comparison.strategies) <= 3
    names = _listed(comparison.strategies) if few else f"{len(comparison.strategies)} strategies"
    data = _listed(list(dict.fromkeys(one.data for one in comparison.scenarios if one.data)))
    parts_of_page = {
        "TITLE": html.escape(f"{names} on {data}" if data else names),
        "SUMMARY": html.escape(_summary(comparison)),
        "LINKS": joined(links),
        "BODY": joined(sections),
        # Only "<" could end a script; in a string of JSON it can be escaped.
        "CONTENT": json.dumps(maps).replace("<", "\\u003c"),
    }
    template = resources.files("flower_fedclust.lab.report").joinpath("page.html").read_text(encoding="utf-8")
    # In one pass, so that a name that looks like a placeholder stays as it is.
    return re.sub("@@([A-Z]+)@@", lambda match: parts_of_page[match[1]], template)


def _scenario_parts(scenario: Scenario, identifier: str) -> tuple[list[object], list[dict[str, Any]]]:
    parts: list[object] = [tag("p", verdict(scenario), class_="verdict")]
    if sure := certainty(scenario):
        parts.append(tag("p", sure, class_="note"))
    if came_to_nothing := collapsed(scenario):
        parts.append(tag("p", tag("strong", "Collapsed, and not ranked. ", class_="failed"), f"{came_to_nothing}."))
    if doubtful := doubts(scenario):
        parts.append(details(f"Doubts ({len(doubtful)})", tag("ul", *(tag("li", one) for one in doubtful))))
    if missing := [one.name for one in scenario.contenders if not one.trials]:
        link = tag("a", "what failed", href="#failures")
        names = ", ".join(missing) if len(missing) <= 3 else f"{len(missing)} of {len(scenario.contenders)} contenders"
        parts.append(tag("p", f"Without a result: {names} (", link, ").", class_="note"))
    if any(one.trials for one in scenario.contenders):
        parts += [scenario_table(scenario, f"{identifier}-table"), daggers_sentence(scenario)]
    panels = epsilon_charts(scenario, f"{identifier}-epsilon")
    if not panels:
        parts.append(dot_plot(scenario, f"{identifier}-dots"))
    charts = [*panels, bytes_chart(scenario, f"{identifier}-bytes")]
    if any(charts):
        parts.append(tag("div", *charts, class_="figures"))
    if curves := curve_charts(scenario, f"{identifier}-curve"):
        about = tag("p", "What strategies recorded by round: a curve that still falls would go on with more rounds.")
        parts.append(
            details(f"Convergence ({plural(len(curves), 'chart')})", about, tag("div", *curves, class_="figures"))
        )
    figures, contents = map_figures(scenario, f"{identifier}-map")
    if figures:
        parts += [tag("h3", "Maps"), _map_controls(identifier, contents), tag("div", *figures, class_="figures maps")]
    return parts, contents


def _map_controls(identifier: str, contents: Sequence[Mapping[str, Any]]) -> Html:
    names = list(dict.fromkeys(one["name"] for content in contents for one in content["groupings"]))
    first = "class" if "class" in names else names[0]
    options = [tag("option", name, value=name, selected=name == first) for name in names]
    label = tag("label", "Colour by ", tag("select", *options, data_colors=identifier))
    hint = " Point at a row for its client and class; on the keyboard, arrow keys go from row to row."
    return tag("p", label, hint, class_="note")


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


def _listed(names: Sequence[str], most: int = 4) -> str:
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
