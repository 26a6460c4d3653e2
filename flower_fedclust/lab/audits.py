"""Audits by name, with a progress bar; what they leave in a folder; and the table of all strategies' verdicts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, get_args

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from flower_fedclust.auditing import AuditResult, audit
from flower_fedclust.lab.jobs import make_strategies, needs_server_rows
from flower_fedclust.progress import is_shown
from flower_fedclust.protocol import ProtocolStrategy
from flower_fedclust.registry import accepted_parameters, find, strategies

#: Bounds for strategies that need one with an epsilon, where none is given.
BOUNDS = {"max_norm": 1.0, "max_l1_norm": 2.0, "max_code_norm": 1.0}

#: What makes a run short, for strategies that have it.
SHORT = {
    "n_rounds": 3,
    "n_lloyd_rounds": 2,
    "n_local_steps": 2,
    "n_membership_steps": 2,
    "n_average_rounds": 1,
    "n_landmarks": 6,
    "n_atoms": 6,
    "n_prototypes": 6,
    "coreset_size": 6,
    "perplexity": 5.0,
    "n_neighbors": 5,
}


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
        As in :func:`flower_fedclust.privacy.audit.audit`.
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
    from flower_fedclust.testing.subject import small_tables

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


# All strategies of this version.


def every_private_strategy() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each way in which each strategy can be private, as a name and short parameters."""
    for name, entry in strategies().items():
        cls, accepted = entry.strategy, accepted_parameters(name)
        if "epsilon" not in cls.parameter_names() and "epsilon" not in entry.fixed:
            continue
        options = {key: value for key, value in SHORT.items() if key in accepted} | dict(entry.example)
        options |= {key: value for key, value in BOUNDS.items() if key in accepted and options.get(key) is None}
        if "epsilon" in accepted:
            options.setdefault("epsilon", 1.0)
        hints = {key: hint for key, hint in _choices(cls).items() if key in accepted}
        for place in hints.get("noise", (None,)):
            for unit in hints.get("privacy_unit", (None,)):
                chosen = {"noise": place, "privacy_unit": unit}
                yield name, options | {key: value for key, value in chosen.items() if value is not None}


def _choices(cls: type[ProtocolStrategy]) -> dict[str, tuple[Any, ...]]:
    from flower_fedclust.protocol.parameters import _declared

    return {name: get_args(hint) for name, hint, _ in _declared(cls) if name in ("noise", "privacy_unit")}


def audit_every(
    runs: int, seconds: float, say: Callable[[str], None], *, seed: int | None = None, false_alarm: float = 1e-6
) -> list[tuple[str, dict[str, Any], AuditResult]]:
    """Audit every strategy of the registry in every way in which it can be private.

    A seed is that of the tables and of what strategies choose at random.
    """
    found = []
    for name, parameters in every_private_strategy():
        given = {"n_clusters": 3, **parameters, "random_state": seed}
        with suppress(ValueError):  # a class that is never private for that unit, or there
            start = time.process_time()
            result = audit_by_name(
                name, given, 4, runs=runs, seconds=seconds, seed=seed, false_alarm=false_alarm, show=False
            )
            found.append((name, parameters, result))
            used = time.process_time() - start
            say(f"{used:6.1f} s of CPU  {name} ({result.place}, {result.unit}): {result.sentence}")
    return found


def table_of(audits: list[tuple[str, dict[str, Any], AuditResult]]) -> str:
    """Return the verdicts as a table in Markdown."""
    lines = [
        "| strategy | noise by | per | promised | counted | these neighbours | at least | moved | verdict |",
        "|---|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for name, _, result in audits:
        moved = max((release.moved for release in result.releases), default=0.0)
        epsilon = "none" if result.epsilon is None else f"{result.epsilon:g}"
        loss = result.loss
        measured = ("", "") if loss is None else (f"{loss.expected:.3f}", f"{loss.epsilon_at_least:.3f}")
        lines.append(
            f"| `{name}` | {result.place} | {result.unit} | {epsilon} | {result.epsilon_counted:.3f} | {measured[0]} | "
            f"{measured[1]} | {moved:.6f} | {result.sentence} |"
        )
    return "\n".join(lines) + "\n"


@contextmanager
def _bar(name: str, show: bool | None) -> Iterator[Callable[[str, float], None] | None]:
    if not is_shown(show):
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task(name, total=1.0)
        yield lambda what, part: bar.update(row, completed=part, description=f"{name}: {what}")
