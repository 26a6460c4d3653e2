"""A comparison in the terminal: means over the seeds, and the runs that failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from rich.table import Table

from flower_fedclust.lab.comparison_folder import results_frame

_BY = ["strategy", "data", "partition", "epsilon"]
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
    table = Table(title="Mean ± standard deviation over the seeds", title_justify="left")
    for heading in _BY:
        table.add_column(heading, overflow="fold")
    for heading in ("runs", *_SHOWN.values()):
        table.add_column(heading, justify="right")
    for (*names, epsilon), group in frame.groupby(_BY, dropna=False, sort=False):
        done = int((group["status"] == "done").sum())
        table.add_row(
            *(*names, "none" if pd.isna(epsilon) else f"{epsilon:g}"),
            str(done) if done == len(group) else f"{done} of {len(group)}",
            *(_mean_and_deviation(group[column]) for column in _SHOWN),
        )
    return table


def failure_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each reason for which runs failed, with the runs."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["status"] == "failed":
            by_reason.setdefault((row["strategy"], row["reason"]), []).append(row["key"])
    which = {
        key: keys[0] if len(keys) == 1 else f"{len(keys)} runs, {keys[0]} the first" for key, keys in by_reason.items()
    }
    return [f"{strategy} ({runs}): {reason}" for (strategy, reason), runs in which.items()]


def _mean_and_deviation(values: Any) -> str:
    known = values.dropna().astype(float)
    if known.empty:
        return ""
    mean = f"{known.mean():.4g}"
    return mean if len(known) == 1 or known.std() == 0 else f"{mean} ± {known.std():.2g}"
