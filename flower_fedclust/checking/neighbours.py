"""Neighbouring tables, and how far they move what a client releases: for `check_strategy`, and for audits.

The messages of a run are answered once more, by shadow clients: one with a table, one with its neighbour, both without
noise. What lies between their answers is what the noise of a release has to hide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np
from flwr.app import ArrayRecord, Context
from numpy.typing import NDArray

from flower_fedclust.checking.runs import Exchange, Run, answer_to, new_context
from flower_fedclust.engine import ClientData
from flower_fedclust.engine.wire import decode, received_arrays
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.sums import is_off_diagonal
from flower_fedclust.privacy.noise import Sendable
from flower_fedclust.privacy.releases import PrivacyUnit, Relation, Release

Floats = NDArray[np.float64]
Arrays = list[Sendable]

#: What clients answered, by round, for tables as bytes.
Answered = dict[bytes, dict[int, Arrays | None]]


@dataclass(frozen=True)
class Neighbours:
    """Two tables of one client that a guarantee must not tell apart.

    Parameters
    ----------
    what : str
        In which way they are a hard case.
    rows : ndarray of shape (n_rows, n_columns)
    others : ndarray of shape (n_other_rows, n_columns), optional
        None: nothing of the client is there.
    """

    what: str
    rows: Floats
    others: Floats | None


@dataclass(frozen=True)
class Moved:
    """How far two neighbours move one array, over how far its release says that they can.

    Parameters
    ----------
    round : int
    task : str
    content : str
    ratio : float
    is_too_far : bool
        Whether it is farther than declared, by as little as it may be: of integers this is compared exactly.
    neighbours : Neighbours
    index : int
        Of the array in the answer.
    difference : ndarray
        By which the array moves, in its units, as one axis.
    """

    round: int
    task: str
    content: str
    ratio: float
    is_too_far: bool
    neighbours: Neighbours
    index: int
    difference: Floats


def shadow_answers(
    run: Run, client: str, rows: Floats | ClientData, *, noise_seed: int = 0, only: int | None = None
) -> dict[int, Arrays | None]:
    """Return what a client would have sent, or kept, in every round of a run if its rows had been others.

    Parameters
    ----------
    run : Run
    client : str
        Whose messages are answered.
    rows : ndarray of shape (n_rows, n_columns), or ClientData
        A ClientData may have answered others before.
    noise_seed : int, default=0
        For what a method draws itself: the same for both neighbours, so that they draw the same.
    only : int, optional
        The round whose message alone is answered, where the clients remember nothing of earlier ones.

    Returns
    -------
    dict of int to (list of ndarray or None)
        By round; None where there is no answer.
    """
    context = new_context()
    data = rows if isinstance(rows, ClientData) else ClientData(rows, owner=f"client {client}")
    answers: dict[int, Arrays | None] = {}
    for exchange in run.exchanges:
        if exchange.client == client and (run.clients_remember or only in (None, exchange.round)):
            make = partial(run.strategy.client_type, data, name=client, context=context, noise_seed=noise_seed)
            arrays, _, facts = answer_to(make, exchange.ins, without_noise=True)
            kept = _kept(run, exchange, context)
            answers[exchange.round] = None if "failure" in facts else kept or received_arrays(arrays, facts)
    return answers


def _kept(run: Run, exchange: Exchange, context: Context) -> Arrays:
    round_ = run.rounds.get(exchange.round)
    if round_ is None or not round_.answer.keeps or exchange.ins.config["task"] != round_.task:
        return []
    records = (context.state.get(f"fedclust.{sent.kept_as}") for sent in round_.answer.sends)
    return [record.to_numpy_ndarrays()[0] for record in records if isinstance(record, ArrayRecord)]


def how_far(
    run: Run,
    client: str,
    pairs: Iterable[Neighbours],
    *,
    only: int | None = None,
    noise_seed: int = 0,
    known: Answered | None = None,
) -> Iterator[Moved]:
    """Yield how far neighbours move every array that a run released with noise.

    Parameters
    ----------
    run : Run
    client : str
    pairs : iterable of Neighbours
    only, noise_seed
        As in :func:`shadow_answers`.
    known : dict, optional
        Answers of an earlier call with the same parameters, pairs apart; those of this one are entered.

    Raises
    ------
    AssertionError
        If an array is not made of finite numbers, or if the neighbours' arrays have different shapes.
    """
    known = {} if known is None else known

    def answered(rows: Floats) -> dict[int, Arrays | None]:
        key = rows.tobytes()
        if key not in known:
            known[key] = shadow_answers(run, client, rows, only=only, noise_seed=noise_seed)
        return known[key]

    for pair in pairs:
        true = answered(pair.rows)
        other = true if pair.others is None else answered(pair.others)
        for number, round_ in run.rounds.items():
            one, another = true.get(number), other.get(number)
            if not one or not another:  # there is no answer, or it was not this client that was asked for one
                continue
            for index, release in enumerate(round_.releases):
                if release is None or release.scale == 0:
                    continue
                content = round_.answer.sends[index].content
                ratio, is_too_far = _distance(one[index], None if pair.others is None else another[index], release)
                if math.isnan(ratio):
                    raise AssertionError(f"'{content}' is not of one shape and of finite numbers for {pair.what}.")
                difference = _difference(one[index], None if pair.others is None else another[index])
                yield Moved(number, round_.task, content, ratio, is_too_far, pair, index, difference)


def _distance(first: Sendable, second: Sendable | None, release: Release) -> tuple[float, bool]:
    """Return the distance over the sensitivity, and whether it exceeds 1; NaN where there is no distance."""
    exponent = first.exponent if isinstance(first, GridArray) else 0
    arrays = [
        array.integers if isinstance(array, GridArray) else array for array in (first, second) if array is not None
    ]
    if len({array.shape for array in arrays}) > 1 or not all(np.isfinite(array).all() for array in arrays):
        return math.nan, True
    if isinstance(second, GridArray) and second.exponent != exponent:
        return math.nan, True
    moved = np.ravel(arrays[0] if second is None else arrays[0] - arrays[1])
    weights = np.ones(moved.size, dtype=np.int64)
    if release.triangle:
        weights[is_off_diagonal((math.isqrt(8 * moved.size + 1) - 1) // 2)] = 2
    norm = 1 if release.norm == "L1" else 2
    if moved.dtype != np.int64:
        length = float(np.linalg.norm(moved, ord=norm))
        return length / release.sensitivity, length > release.sensitivity * (1 + 1e-12)
    # Python's integers and fractions, which neither overflow nor round.
    present = np.flatnonzero(moved)
    total = sum(
        weight * abs(entry) ** norm
        for weight, entry in zip(weights[present].tolist(), moved[present].tolist(), strict=True)
    )
    share = Fraction(total) / (Fraction(release.sensitivity) / Fraction(2) ** exponent) ** norm
    return float(share) ** (1.0 / norm), share > 1


def _difference(first: Sendable, second: Sendable | None) -> Floats:
    if isinstance(first, GridArray) and (second is None or isinstance(second, GridArray)):
        moved = first.integers if second is None else first.integers - second.integers
        return np.ravel(np.ldexp(moved.astype(np.float64), first.exponent))
    one, other = (np.asarray(array, dtype=np.float64) for array in (first, 0.0 if second is None else second))
    return np.ravel(one - other)


def neighbours(
    rows: Floats, hard: Sequence[tuple[str, Floats]], unit: PrivacyUnit, relation: Relation, *, each: int = 4
) -> list[Neighbours]:
    """Return neighbouring tables in which hard rows come, go or replace one another.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_columns)
        A table of a client.
    hard : sequence of (str, ndarray of shape (n_columns,))
        What makes each row hard, and the row.
    unit : "record" or "client"
    relation : "add-or-remove" or "replace"
    each : int, default=4
        In how many ways at most each row comes and goes, the hardest first: among its like, at the top, at the end,
        and in a table of two rows or one.
    """
    pairs: list[Neighbours] = []
    for index, (what, row) in enumerate(hard):
        full = np.tile(row, (len(rows), 1))
        _, opposite = hard[index - 1]
        if unit == "client" and relation == "add-or-remove":
            ways = [Neighbours(f"a client of {what}", full, None)]
        elif unit == "client":
            ways = [
                Neighbours(f"a client of {what}", full, np.tile(opposite, (len(rows), 1))),
                Neighbours(f"a client of {what}", full, rows),
            ]
        elif relation == "add-or-remove":
            ways = [
                Neighbours(f"{what}, many times", full, full[1:]),
                Neighbours(f"{what} removed from the top", np.vstack([row, rows[1:]]), rows[1:]),
                Neighbours(f"{what} added", rows, np.vstack([rows, row])),
                Neighbours(f"{what} above a single row", rows[:1], np.vstack([row, rows[:1]])),
            ]
        else:
            ways = [
                Neighbours(f"{what} among its like", full, np.vstack([opposite, full[1:]])),
                Neighbours(f"{what} replaced by another", np.vstack([row, rows[1:]]), np.vstack([opposite, rows[1:]])),
                Neighbours(f"{what} at the end", np.vstack([rows[:-1], row]), rows),
                Neighbours(f"{what} alone", row[None], opposite[None]),
            ]
        pairs += ways[:each]
    if unit == "client":
        pairs.append(Neighbours("a client's own rows", rows, None if relation == "add-or-remove" else rows[::-1]))
    return pairs


def far_rows(rows: Floats) -> list[tuple[str, Floats]]:
    """Return rows that lie far out, in opposite directions, and some that lie among the others."""
    spread = 1e3 * (1.0 + np.abs(rows).max())
    axis = np.zeros(rows.shape[1])
    axis[0] = spread
    ones = np.full(rows.shape[1], spread)
    named = {"a long row": axis, "its opposite": -axis, "a long diagonal row": ones, "its own opposite": -ones}
    return [*named.items(), ("a row of zeros", np.zeros(rows.shape[1])), ("a row twice", rows[0])]


def extreme_rows(n_columns: int) -> list[tuple[str, Floats]]:
    """Return rows at the ends of what a float can say."""
    largest = np.finfo(np.float64).max
    found = []
    for what, value in (("1e300", 1e300), ("the largest float", largest), ("1e-300", 1e-300)):
        mixed = np.where(np.arange(n_columns) % 2 == 0, value, -value)
        found += [(f"a row of {what}", np.full(n_columns, value)), (f"a row of {what} and its negative", mixed)]
    return [*found, ("a row of the smallest float", np.full(n_columns, 5e-324))]


def tied_tables(run: Run, client: str, n_rows: int = 16, *, mirrored: bool = False) -> dict[int, list[Floats]]:
    """Return tables whose rows lie half way between two points that the server sent, where it sent points.

    Every array of as many columns as the rows is taken for points, and every vector of that length for an origin. All
    rows of a table are as far from the one point as from the other, but for rounding. Of the rounds of one task the
    last is taken.

    Parameters
    ----------
    run : Run
    client : str
        To which the points were sent.
    n_rows : int, default=16
        Of a table.
    mirrored : bool, default=False
        Whether the columns of the second point are those of the first in reverse. Then rows are the same both ways, and
        on a tie to the last digit.

    Returns
    -------
    dict of int to list of ndarray
        By round.
    """
    rng = np.random.default_rng(3)
    n_columns = run.data[client].rows.shape[1]
    of_task: dict[str, tuple[int, list[Floats]]] = {}
    for number, round_ in run.rounds.items():
        for exchange in run.asked(number):
            if exchange.client != client or not any(release and release.scale > 0 for release in round_.releases):
                continue
            arrays = [array.astype(float) for array in decode(exchange.ins.parameters) if array.dtype.kind in "fiu"]
            origins = [array for array in arrays if array.shape == (n_columns,)] or [np.zeros(n_columns)]
            tables = []
            for points in arrays:
                if points.ndim == 2 and points.shape[1] == n_columns and len(points) > 1:
                    across = points[1] - points[0]
                    along = rng.normal(size=(n_rows, n_columns)) * 0.1 * np.abs(across).max()
                    tiny = np.finfo(np.float64).tiny
                    along -= np.outer(along @ across, across) / max(float(across @ across), tiny)
                    if mirrored:
                        along += along[:, ::-1]
                    tables.append(0.5 * (points[0] + points[1]) + along + origins[0])
            if tables:
                of_task[round_.task] = (number, tables)
    return dict(of_task.values())


def tied_neighbours(tables: Sequence[Floats], unit: PrivacyUnit, relation: Relation) -> list[Neighbours]:
    """Return neighbours whose rows all lie on ties; what a row is compared with must not depend on the other rows."""
    pairs = []
    for table in tables:
        if unit == "client":
            pairs.append(Neighbours("rows on ties", table, None if relation == "add-or-remove" else table[::-1]))
        elif relation == "replace":
            pairs.append(Neighbours("rows on ties", table, np.vstack([table[1:2], table[1:]])))
        else:
            # A matrix product takes another way through a single row than through several, and through few than many.
            for n_rows in (len(table), 9, 4):
                pairs.append(Neighbours("rows on ties, the first removed", table[:n_rows], table[1:n_rows]))
            for row in table[:, None]:
                pairs.append(Neighbours("a row on a tie, one of two removed", np.vstack([row, row]), row))
    return pairs
