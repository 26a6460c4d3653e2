"""A run on made-up rows, which shows what a strategy sends before it touches real rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flower_fedclust.inputs import make_strategies, needs_server_rows
from flower_fedclust.numerics.checks import check_integer
from flower_fedclust.numerics.validity import numbers_of
from flower_fedclust.privacy.report import PrivacyReport
from flower_fedclust.registry import find
from flower_fedclust.simulation import simulate
from flower_fedclust.tables.drafting import made_up_table
from flower_fedclust.tables.schema import Schema

N_CLIENTS = 4


def rehearse(
    name: str, parameters: Mapping[str, Any], n_columns: int, schema: str | Path | None = None
) -> PrivacyReport:
    """Return the privacy report of a strategy on made-up rows, from the rounds that ran as every report is.

    Raises
    ------
    ValueError
        If the strategy or a parameter does not exist, or a parameter is not valid.
    """
    check_integer("n_columns", n_columns, at_least=1)
    example = dict(find(name).example)
    if schema is not None:  # whose preparation says how far rows reach
        example = {key: value for key, value in example.items() if key not in ("max_norm", "max_l1_norm")}
    parameters = {**example, **parameters}
    rng = np.random.default_rng(0)
    n_rows = 20 * numbers_of(parameters.get("n_clusters", 2))[1]
    known, rows = None, list[Any](rng.normal(size=(N_CLIENTS + 1, n_rows, n_columns)))
    if schema is not None:
        known = Schema.of(schema)
        rows = [made_up_table(known, 50 * n_rows, rng) for _ in range(N_CLIENTS + 1)]
    public = rows[0] if needs_server_rows([name]) else None
    (strategy,) = make_strategies([name], parameters, public, schema=known)
    if strategy.min_clients is not None:
        strategy.min_clients = min(strategy.min_clients, N_CLIENTS)
    report = simulate(strategy, rows[1:], progress=False).privacy
    made_up = "made-up tables" if known else f"made-up rows of {n_columns} columns and spread 1"
    note = (
        f"This is a rehearsal on {made_up} at {N_CLIENTS} clients. On your rows "
        "the noise multipliers are the same; sensitivities and noise scales depend on the radius of your server rows, "
        "or on max_norm, and on the results of earlier rounds."
    )
    return replace(report, notes=(*report.notes, note))
