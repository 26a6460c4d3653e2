"""Audits by name, with a progress bar, and what they leave in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from flower_fedclust.checking import AuditResult, audit
from flower_fedclust.engine import ProtocolStrategy
from flower_fedclust.engine.progress import is_shown
from flower_fedclust.inputs import make_strategies, needs_server_rows
from flower_fedclust.registry import accepted_parameters, find

#: Bounds for strategies that need one with an epsilon, where none is given.
BOUNDS = {"max_norm": 1.0, "max_l1_norm": 2.0, "max_code_norm": 1.0}


def audit_by_name(
    name: str,
    parameters: Mapping[str, Any],
    n_columns: int,
    *,
    runs: int,
    seconds: float | None,
    seed: int | None = None,
    false_alarm: float = 1e-3,
    show: bool | None = None,
) -> AuditResult:
    """Audit a strategy on made-up rows.

    Parameters
    ----------
    name : str
    parameters : mapping of str to anything
        Of the strategy. What it needs and is not given is made up: public rows, and bounds.
    n_columns : int
    runs, seconds, seed, false_alarm
        As in :func:`flower_fedclust.checking.audit`.
    show : bool, optional
        Whether to show a progress bar; by default only where the output is a terminal.

    Raises
    ------
    ValueError
        If the strategy or a parameter does not exist, or a parameter is not valid.
    """
    strategy = _made(name, parameters, n_columns)
    clients = None if needs_server_rows([name]) else _clients(strategy, n_columns, seed)
    with _bar(name, show) as progress:
        return audit(
            strategy, clients, runs=runs, seconds=seconds, seed=seed, false_alarm=false_alarm, progress=progress
        )


def _made(name: str, parameters: Mapping[str, Any], n_columns: int) -> ProtocolStrategy:
    """Return a strategy with what it is given, what its entry's example has, and a bound where it needs one."""
    accepted = accepted_parameters(name)
    rows = np.random.default_rng(0).normal(size=(20, n_columns)) if needs_server_rows([name]) else None
    given = {**find(name).example, **parameters}
    try:
        return make_strategies([name], given, rows)[0]
    except ValueError:
        bounds = {key: value for key, value in BOUNDS.items() if key in accepted and given.get(key) is None}
        if not bounds or given.get("epsilon") is None:
            raise
        return make_strategies([name], given | bounds, rows)[0]


def _clients(strategy: ProtocolStrategy, n_columns: int, seed: int | None) -> list[Any] | None:
    if strategy.expected_columns is not None:
        return None
    from flower_fedclust.checking.subject import small_tables

    rows, _ = small_tables(strategy, n_columns=n_columns, **({} if seed is None else {"seed": seed}))
    return list(rows)


def save_audit(result: AuditResult, folder: Path) -> Path:
    """Write audit.txt, audit.json and, where a privacy loss was measured, audit.png to a folder; return it."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "audit.txt").write_text(f"{result}\n", encoding="utf-8")
    (folder / "audit.json").write_text(json.dumps(result.to_dict(), indent=2) + "\n", encoding="utf-8")
    if result.loss is not None:
        result.figure(folder / "audit.png")
    return folder


@contextmanager
def _bar(name: str, show: bool | None) -> Iterator[Callable[[str, float], None] | None]:
    if not is_shown(show):
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task(name, total=1.0)
        yield lambda what, part: bar.update(row, completed=part, description=f"{name}: {what}")
