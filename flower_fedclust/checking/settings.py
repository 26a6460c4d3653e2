"""The same strategy on other tables and with other public settings: what holds for one of them must hold for all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.checking.subject import Subject, small_tables

Floats = NDArray[np.float64]

#: Binary digits of a float64 and of a float32: a bound just below a power of two is the last number before it.
DIGITS = (53, 24)


def poles(subject: Subject, reach: float) -> list[Floats]:
    """Return tables whose rows lie in opposite directions, each cluster of them at an end of an axis."""
    rng = np.random.default_rng(13)
    rows = np.vstack(subject.rows)
    center = rows.mean(axis=0)
    radius = reach * max(float(np.linalg.norm(rows - center, axis=1).max()), np.finfo(np.float64).tiny)
    ends = _ends(rows.shape[1])
    found = []
    for rows in subject.rows:
        which = np.arange(len(rows)) % min(max(subject.strategy.n_clusters, 2), len(ends))
        found.append(center + radius * (ends[which] + 0.01 * rng.normal(size=rows.shape)))
    return found


def _ends(n_columns: int) -> Floats:
    """Return both ends of each axis in turn."""
    return np.stack([np.eye(n_columns), -np.eye(n_columns)], axis=1).reshape(-1, n_columns)


def next_below(bound: float, digits: int) -> float:
    """Return the number of so many binary digits that is next below a power of two, twice the bound or more."""
    return math.ldexp(1.0 - 2.0**-digits, math.frexp(bound)[1] + 1)


def with_edges(subject: Subject, digits: int) -> Subject | None:
    """Return the subject with its public bounds, or the radius of its public rows, next below a power of two.

    There quotients are rounded up to that power, and squares have more digits than a float holds. None if the strategy
    has no such bound.
    """
    strategy = subject.strategy
    bounds: dict[str, Any] = {
        name: next_below(float(value), digits)
        for name in strategy.parameter_names()
        if name.endswith("norm") and isinstance(value := getattr(strategy, name), int | float)
    }
    if (public := _public_rows(subject)) is not None:
        ends = _ends(public.shape[1])
        radius = next_below(float(np.linalg.norm(public - public.mean(axis=0), axis=1).max()), digits)
        bounds |= {"server_data": radius * np.tile(ends, (-(-len(public) // len(ends)), 1))}
    return _with(subject, bounds) if bounds else None


def other_settings(subject: Subject) -> Iterator[tuple[str, Subject]]:
    """Yield the subject with other public settings: which, and the subject."""
    for digits in DIGITS:
        if (made := with_edges(subject, digits)) is not None:
            yield f"a bound of {digits} binary digits next below a power of two", made


def _public_rows(subject: Subject) -> Floats | None:
    public = np.asarray(getattr(subject.strategy, "server_data", None), dtype=np.float64)
    return public if public.ndim == 2 else None


def _with(subject: Subject, parameters: dict[str, Any]) -> Subject | None:
    try:
        strategy = subject.with_parameters(**parameters)
    except ValueError:  # a strategy may refuse such a setting
        return None
    sizes = [len(rows) for rows in subject.rows]
    rows, _ = small_tables(strategy, n_clients=len(sizes), n_columns=subject.n_columns)
    return Subject(strategy, rows)
