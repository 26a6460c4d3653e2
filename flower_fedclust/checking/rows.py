"""Hard rows: those that lie far out, on what the server sent or along it, or that rounding leaves just too long."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.checking.runs import Run
from flower_fedclust.engine.wire import decode

Floats = NDArray[np.float64]
HardRow = tuple[str, Floats]

#: Directions in which rows just within and just beyond their bound are tried.
N_DIRECTIONS = 12

#: So many rows lie on one axis at distances that are whole numbers; one in 16 is rounded up where it can be.
N_WHOLE = 50


def rows_in_directions(rows: Floats) -> list[HardRow]:
    """Return rows far out in many directions, whose norm rounding leaves just within its bound, or just beyond."""
    rng = np.random.default_rng(11)
    far = 1e3 * (1.0 + np.abs(rows).max())
    return [(f"a far row in direction {index}", far * rng.normal(size=rows.shape[1])) for index in range(N_DIRECTIONS)]


def rows_of_whole_numbers(rows: Floats) -> list[HardRow]:
    """Return far rows along one axis, in turns to either side, whose quotient by their norm is rounded in many ways."""
    first = np.ceil(1e3 * (1.0 + np.abs(rows).max()))
    axis = np.eye(1, rows.shape[1])[0]
    return [
        (f"a row {first + index // 2:g} far out on an axis", (-1.0) ** index * (first + index // 2) * axis)
        for index in range(2 * N_WHOLE)
    ]


def rows_by_message(run: Run, client: str) -> dict[str, list[HardRow]]:
    """Return rows that lie on points which the server sent, far beyond them, and far along directions that it sent.

    Every array with as many columns as the rows is taken for points, and every other with as many rows as these have
    columns for directions. What a client computes of such a row is of one point alone, as far as can be. Directions
    may belong to rows that it keeps, and that a later round asks about.

    Returns
    -------
    dict of str to list of (str, ndarray of shape (n_columns,))
        By task and kind, of the last tasks that sent such arrays.
    """
    n_columns = run.data[client].rows.shape[1]
    found: dict[str, list[HardRow]] = {}
    for number, round_ in run.rounds.items():
        is_noisy = any(release and release.scale > 0 for release in round_.releases)
        for exchange in run.asked(number):
            if exchange.client != client:
                continue
            arrays = [array.astype(float) for array in decode(exchange.ins.parameters) if array.dtype.kind in "fiu"]
            origins = [array for array in arrays if array.shape == (n_columns,)] or [np.zeros(n_columns)]
            for array in arrays:
                if is_noisy and array.ndim == 2 and array.shape[1] == n_columns and len(array) > 1:
                    found[f"about points of '{round_.task}'"] = _about_points(array, origins[0], round_.task)
                elif array.ndim == 2 and array.shape[0] == n_columns and array.shape[1] > 0:
                    found[f"along directions of '{round_.task}'"] = _along(array, origins[0], round_.task)
    return dict(list(found.items())[-4:])


def _about_points(points: Floats, origin: Floats, task: str) -> list[HardRow]:
    apart = np.linalg.norm(points[:, None] - points[None], axis=2) if len(points) <= 64 else None
    pair = (0, 1) if apart is None else np.unravel_index(int(apart.argmax()), apart.shape)
    chosen = list(dict.fromkeys([int(pair[0]), int(pair[1]), *range(min(4, len(points)))]))
    middle, far = points.mean(axis=0), 1e3 * (1.0 + np.abs(points).max())
    on = [(f"a row on point {index} of '{task}'", points[index] + origin) for index in chosen]
    beyond = [
        (f"a row beyond point {index} of '{task}'", middle + far * (points[index] - middle)) for index in chosen[:2]
    ]
    return [*on, *beyond]


def _along(directions: Floats, origin: Floats, task: str) -> list[HardRow]:
    far = 1e3 * (1.0 + np.abs(origin).max()) / max(float(np.abs(directions).max()), np.finfo(np.float64).tiny)
    return [
        (f"a row far along direction {index} of '{task}'", origin + far * side * directions[:, index])
        for index in range(min(2, directions.shape[1]))
        for side in (1.0, -1.0)
    ]
