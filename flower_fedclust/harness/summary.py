"""A comparison in the terminal: means over the seeds, and the runs that failed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from rich.table import Table

from flower_fedclust.harness.comparison_folder import results_frame

_BY = ["strategy", "data", "partition", "n_clusters", "variant", "epsilon"]
_SHOWN = {
    "accuracy": "accuracy",
    "nmi": "NMI",
    "cost_per_row": "cost per row",
    "epsilon_spent": "epsilon spent",
    "kilobytes_up": "kB up",
    "seconds": "seconds",
}


def summary_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return mean ± standard deviation over the seeds, a row per strategy, data set, partition and budget."""
    frame = results_frame(rows)
    frame["kilobytes_up"] = frame["bytes_up"] / 1e3
    # What is the same in all rows of the table says nothing.
    by = [name for name in _BY if name not in ("n_clusters", "variant") or frame[name].nunique(dropna=False) > 1]
    table = Table(title="Mean ± standard deviation over the seeds", title_justify="left")
    for heading in by:
        table.add_column(heading, overflow="fold")
    for heading in ("runs", *_SHOWN.values()):
        table.add_column(heading, justify="right")
    for (*names, epsilon), group in frame.groupby(by, dropna=False, sort=False):
        done = int((group["status"] == "done").sum())
        table.add_row(
            *("" if pd.isna(name) else str(name) for name in names),
            "none" if pd.isna(epsilon) else f"{epsilon:g}",
            str(done) if done == len(group) else f"{done} of {len(group)}",
            *(_mean_and_deviation(group[column]) for column in _SHOWN),
        )
    return table


def failures_by_remedy(failed: Iterable[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Return what would mend runs that failed, and how many runs of which strategies it would mend, the most first.

    Parameters
    ----------
    failed : iterable of (str, str)
        Strategy and reason of each run.
    """
    found: dict[str, dict[str, int]] = {}
    for strategy, reason in failed:
        missing = re.match(rf"{re.escape(strategy)} needs (\w+)\.$|(\w+) is missing;", reason)
        name = missing and (missing[1] or missing[2])
        remedy = f"give {name} (--set {name}=...)" if name else reason or "No reason was written."
        runs = found.setdefault(remedy, {})
        runs[strategy] = runs.get(strategy, 0) + 1
    return dict(sorted(found.items(), key=lambda one: -sum(one[1].values())))


def failure_lines(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each remedy, with the number of runs and the strategies that it would mend."""
    failed = ((str(row["strategy"]), str(row["reason"] or "")) for row in rows if row["status"] == "failed")
    return [
        f"{sum(runs.values())} of {', '.join(runs)}: {remedy}" for remedy, runs in failures_by_remedy(failed).items()
    ]


def _mean_and_deviation(values: Any) -> str:
    known = values.dropna().astype(float)
    if known.empty:
        return ""
    mean = f"{known.mean():.4g}"
    # A deviation that is nothing but rounding says nothing.
    is_rounding = len(known) == 1 or known.std() <= 1e-9 * abs(known.mean())
    return mean if is_rounding else f"{mean} ± {known.std():.2g}"
