"""The end of a report: what failed and why, how the comparison was made, and how to repeat it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from flower_fedclust.lab.report.data import ComparisonResults, TrialResult
from flower_fedclust.lab.report.markup import NOTHING, Html, capital, details, plural, table, tag
from flower_fedclust.lab.summary import failures_by_remedy

_VERSIONS = {
    "flower_fedclust": "flower-fedclust",
    "flwr": "Flower",
    "python": "Python",
    "numpy": "NumPy",
    "scikit_learn": "scikit-learn",
}
#: Settings that are options of the same name, and the value that each has if it is not given.
_OPTIONS = {
    **dict.fromkeys(("client_column", "label_column", "columns", "server_data", "n_server_rows")),
    "n_clients": 10,
    "n_clusters": None,
    "delta": 1e-6,
    "engine": "inline",
}


def failure_parts(comparison: ComparisonResults) -> list[Html]:
    """Return the runs that failed with their reasons, the clients that failed, and the runs without a result."""
    parts: list[Html] = []
    pairs = [(trial.strategy, trial.text("reason")) for trial in comparison.failed]
    for remedy, runs in failures_by_remedy(pairs).items():
        concerned = [trial for trial in comparison.failed if _remedy(trial) == remedy]
        summary = f"{capital(remedy)}: {plural(len(concerned), 'run')} of {', '.join(runs)}"
        reasons = tag("ul", *(tag("li", f"{one.key}: {one.text('reason')}") for one in concerned))
        parts.append(details(summary, reasons))
    refused = []
    for trial in comparison.trials:
        failures = trial.metrics.get("failures") if trial.is_done else None
        for failure in failures if isinstance(failures, list) else []:
            if isinstance(failure, dict):
                texts = (str(failure.get(name, NOTHING)) for name in ("client", "round", "reason"))
                refused.append([tag("th", trial.key, scope="row", class_="key"), *texts])
    if refused:
        caption = "Clients that failed, in runs that went on without them."
        headings = ["run", "client", "round", "reason"]
        parts.append(table(caption, headings, refused, class_="prose", identifier="refused"))
    if comparison.unfinished:
        names = ", ".join(comparison.unfinished)
        parts.append(tag("p", f"Without a result, since they were stopped or are still at work: {names}."))
    return parts


def _remedy(trial: TrialResult) -> str:
    return next(iter(failures_by_remedy([(trial.strategy, trial.text("reason"))])))


def about_parts(comparison: ComparisonResults) -> list[Html]:
    """Return the command, the settings and the versions."""
    parts = []
    if command := command_of(comparison.settings):
        parts.append(tag("pre", tag("code", command)))
    settings = {key: value for key, value in comparison.settings.items() if key not in ("versions", "command")}
    rows = [[key.replace("_", " "), _setting_text(value)] for key, value in settings.items() if value not in (None, {})]
    versions = comparison.settings.get("versions")
    for column, name in _VERSIONS.items():
        found = {trial.text(column) for trial in comparison.trials}
        if isinstance(versions, dict):
            found.add(str(versions.get(column) or ""))
        if found := found - {""}:
            rows.append([name, ", ".join(sorted(found))])
    if rows:
        caption = "The settings of the comparison, and the versions that it ran on."
        parts.append(table(caption, ["setting", "value"], rows, class_="prose", identifier="settings"))
    return parts


def command_of(settings: Mapping[str, Any]) -> str:
    """Return the command that repeats the comparison in a new folder; "" if ``comparison.json`` is not complete."""
    strategies, data, partitions, epsilons, seeds = (
        list(value) if isinstance(value := settings.get(name), list) else []
        for name in ("strategies", "data", "partitions", "epsilons", "seeds")
    )
    if not strategies or not data:
        return ""
    files = settings.get("files")
    # A file of the user's own is the last, after the data sets.
    own = [data.pop()] if isinstance(files, dict) and "data" in files else []
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
    parameters = settings.get("parameters")
    for name, value in (parameters if isinstance(parameters, dict) else {}).items():
        words += ["--set", f"{name}={_plain(value)}"]
    grid = settings.get("grid")
    for name, values in (grid if isinstance(grid, dict) else {}).items():
        words += ["--grid", f"{name}={_plain(values)}"]
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
