"""The end of a report: what failed and why, how the comparison was made, and how to repeat it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flower_fedclust.harness.pages import plural
from flower_fedclust.harness.report.data import ComparisonResults, TrialResult
from flower_fedclust.harness.report.texts import NOTHING, capital
from flower_fedclust.harness.summary import failures_by_remedy

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


@dataclass(frozen=True)
class Failures:
    """The runs that failed by what would mend them, the clients that failed, and the runs without a result."""

    by_remedy: Sequence[tuple[str, Sequence[TrialResult]]]
    of_clients: Sequence[Sequence[str]]
    unfinished: Sequence[str]


def failures_of(comparison: ComparisonResults) -> Failures | None:
    """Return what failed; None if nothing did."""
    by_remedy = []
    pairs = [(trial.strategy, trial.text("reason")) for trial in comparison.failed]
    for remedy, runs in failures_by_remedy(pairs).items():
        concerned = [trial for trial in comparison.failed if _remedy(trial) == remedy]
        by_remedy.append((f"{capital(remedy)}: {plural(len(concerned), 'run')} of {', '.join(runs)}", concerned))
    of_clients = []
    for trial in comparison.trials:
        failures = trial.metrics.get("failures") if trial.is_done else None
        for failure in failures if isinstance(failures, list) else []:
            if isinstance(failure, dict):
                of_clients.append(
                    [trial.key, *(str(failure.get(one, NOTHING)) for one in ("client", "round", "reason"))]
                )
    found = Failures(by_remedy, of_clients, comparison.unfinished)
    return found if by_remedy or of_clients or comparison.unfinished else None


def _remedy(trial: TrialResult) -> str:
    return next(iter(failures_by_remedy([(trial.strategy, trial.text("reason"))])))


def settings_of(comparison: ComparisonResults) -> list[tuple[str, str]]:
    """Return the settings and the versions, each with its name."""
    left_out = {"versions", "command"}
    if set(comparison.settings.get("partitions") or ("iid",)) <= {"column", "files"}:
        left_out.add("n_clients")  # which a column or a folder says
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
