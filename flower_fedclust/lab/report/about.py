"""The end of a report: what failed and why, how the comparison was made, and how to make it again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from flower_fedclust.lab.report.data import Comparison
from flower_fedclust.lab.report.markup import NOTHING, Html, details, plural, table, tag

_VERSIONS = {
    "flower_fedclust": "flower-fedclust",
    "flwr": "Flower",
    "python": "Python",
    "numpy": "NumPy",
    "scikit_learn": "scikit-learn",
}
#: Settings whose option is called as they are, where their value is not the one that is taken anyway.
_OPTIONS = {
    "client_column": None,
    "label_column": None,
    "columns": None,
    "server_data": None,
    "n_server_rows": None,
    "n_clients": 10,
    "n_clusters": None,
    "delta": 1e-6,
    "engine": "inline",
}


def failure_parts(comparison: Comparison) -> list[Html]:
    """Return the runs that failed with their sentences, the clients that did, and the runs without a result."""
    parts: list[Html] = []
    if comparison.failed:
        alike: dict[tuple[str, str], list[str]] = {}
        for run in comparison.failed:
            reason = run.text("reason") or "No reason was written."
            alike.setdefault((run.strategy, reason), []).append(run.key)
        rows = [[strategy, reason, _keys(keys)] for (strategy, reason), keys in alike.items()]
        caption = "Runs that failed; the rest went on."
        parts.append(table(caption, ["strategy", "reason", "runs"], rows, class_="prose", identifier="failed"))
    refused = [
        [
            tag("th", run.key, scope="row", class_="key"),
            *(str(failure.get(name, NOTHING)) for name in ("client", "round", "reason")),
        ]
        for run in comparison.runs
        if run.is_done
        for failure in _failures(run.read_json("metrics.json"))
    ]
    if refused:
        caption = "Clients that failed, in runs that went on without them."
        headings = ["run", "client", "round", "reason"]
        parts.append(table(caption, headings, refused, class_="prose", identifier="refused"))
    if comparison.unfinished:
        names = ", ".join(comparison.unfinished)
        parts.append(tag("p", f"Without a result, since they were stopped or are still at work: {names}."))
    return parts


def about_parts(comparison: Comparison) -> list[Html]:
    """Return the command, the settings and the versions."""
    parts = []
    if command := command_of(comparison.settings):
        parts.append(tag("pre", tag("code", command)))
    settings = {key: value for key, value in comparison.settings.items() if key not in ("versions", "command")}
    rows = [[key.replace("_", " "), _setting_text(value)] for key, value in settings.items() if value not in (None, {})]
    versions = comparison.settings.get("versions")
    for column, name in _VERSIONS.items():
        found = {run.text(column) for run in comparison.runs}
        if isinstance(versions, dict):
            found.add(str(versions.get(column) or ""))
        if found := found - {""}:
            rows.append([name, ", ".join(sorted(found))])
    if rows:
        caption = "The settings of the comparison, and the versions that it ran on."
        parts.append(table(caption, ["setting", "value"], rows, class_="prose", identifier="settings"))
    return parts


def command_of(settings: Mapping[str, Any]) -> str:
    """Return the command that makes the comparison again, into a new folder; "" where the settings are not known.

    Parameters
    ----------
    settings : mapping of str to anything
        What ``comparison.json`` holds.
    """
    strategies, data = _list(settings, "strategies"), _list(settings, "data")
    if not strategies or not data:
        return ""
    files = settings.get("files")
    # A file of the user's own is the last, after the data sets.
    own = [data.pop()] if isinstance(files, dict) and "data" in files else []
    words = ["fedclust", "compare", "--strategies", _comma(strategies)]
    words += ["--datasets", _comma(data)] if data else []
    words += ["--data", *own] if own else []
    # A column or a folder says by itself how the rows are spread.
    partitions = [one for one in _list(settings, "partitions") if one not in ("column", "files")]
    if partitions not in ([], ["iid"]):
        words += ["--partitions", _comma(partitions)]
    if epsilons := _list(settings, "epsilons"):
        words += ["--epsilons", _comma(epsilons)]
    if seeds := _list(settings, "seeds"):
        # One number says how many seeds there are: a list of one ends in a comma.
        is_count = seeds == list(range(len(seeds)))
        words += ["--seeds", str(len(seeds)) if is_count else _comma(seeds) + ("," if len(seeds) == 1 else "")]
    for name, usual in _OPTIONS.items():
        value = settings.get(name, usual)
        if value != usual:
            words += [f"--{name.replace('_', '-')}", _comma(value) if isinstance(value, list) else _plain(value)]
    parameters = settings.get("parameters")
    for name, value in (parameters if isinstance(parameters, dict) else {}).items():
        words += ["--set", f"{name}={_comma(value) if isinstance(value, list) else _plain(value)}"]
    return shlex.join([*words, "--out", "DIR"])


def _keys(keys: Sequence[str]) -> Html:
    shown = tag("ul", *(tag("li", key) for key in keys), class_="key")
    return details(plural(len(keys), "run"), shown)


def _failures(metrics: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    failures = metrics.get("failures")
    return [one for one in failures if isinstance(one, dict)] if isinstance(failures, list) else []


def _list(settings: Mapping[str, Any], name: str) -> list[Any]:
    value = settings.get(name)
    return list(value) if isinstance(value, list) else []


def _comma(values: Sequence[Any]) -> str:
    return ",".join(map(_plain, values))


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _setting_text(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_setting_text(one)}" for key, one in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(_setting_text, value)) or "none"
    return "none" if value is None or value != value else _plain(value)
