"""Neighboring tables, and how much a client's releases differ between them.

Differential privacy speaks of neighbors: two tables that differ in one row (or person, or client).
The sensitivity that a release declares must be at least the change between any two neighbors. This
module looks for neighbors that change a release by more. Two copies of a client answer the messages of a run again,
one with a table and one with its neighbor, both without noise, and their answers are compared
exactly.

Random rows would rarely find a fault. So the tables are chosen to be hard: rows far out, which must
be clipped; rows half way between two centers, where rounding decides; rows of the largest and the
smallest floats; and rows along the directions that the server sent. Tables are also compared in runs
whose messages an honest server would never send.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import count, zip_longest
from typing import Any

import numpy as np
from flwr.common import FitIns
from numpy.typing import NDArray
from scipy.stats import binom

from flower_fedclust.checking.runs import (
    SEED,
    Floats,
    Subject,
    WatchedRun,
    data_of,
    patient,
    shadow_answers,
    small_tables,
    watched_run,
)
from flower_fedclust.engine.wire import decode, encode
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.sums import is_off_diagonal
from flower_fedclust.privacy.noise import Sendable
from flower_fedclust.privacy.releases import PrivacyUnit, Relation, Release

Progress = Callable[[str, float], None]
Answers = dict[int, list[Sendable] | None]

#: A hard row as (what makes it hard, its values).
HardRow = tuple[str, Floats]

#: The number of rows at distances 1, 2, 3 and so on along one axis. Code that can round up does so for about one such
#: row in 16.
N_WHOLE = 50

#: The number of rows in a table whose rows are ties: each is as far from one of two points as from the other.
N_TIED = 16

#: The number of directions in which rows are placed far out.
N_DIRECTIONS = 12

#: The binary digits of a float64 and of a float32; bounds just below a power of two are made with so many.
DIGITS = (53, 24)

#: The number of entries of a table that is so large that clients cache its results.
LARGE_TABLE = 2**13

#: To test samples of rows, each message is answered TIMES times, each time with other random choices of the client; if
#: the time is up, at least FEWEST_TIMES times.
TIMES, FEWEST_TIMES = 40, 12

#: The most rows that are changed, one at a time, to see which rows an answer depends on.
MOST_CHANGED = 64

#: The most seeds that are tried to find one with which a client draws a given row.
SEEDS_TRIED = 40

#: This many pairs of each kind are compared even if the time is up, unless they need a run of their own.
SURE_TURNS = 3

#: Of up to this many points, the two that are farthest apart are taken; of more points, the first two.
MOST_POINTS = 64


@dataclass(frozen=True)
class Neighbors:
    """Two tables of one client that a guarantee makes indistinguishable.

    ``rows`` is the first table and ``others`` the second. ``others`` is None if the client is absent
    in place of having a second table. Both have shape (n_rows, n_columns), but may have different
    numbers of rows.
    """

    description: str
    rows: Floats
    others: Floats | None
    only: int | None = None  #: The only round in which these tables are hard; None for all rounds.
    #: The subject of each row, for a guarantee per subject; by default each row belongs to another person.
    owners: NDArray[np.intp] | None = None
    owners_of_others: NDArray[np.intp] | None = None


#: Hard neighbors by kind.
Kinds = dict[str, list[Neighbors]]


@dataclass(frozen=True)
class Change:
    """The difference of one array between two neighbors."""

    round: int
    index: int  #: The place of the array in the answer.
    task: str
    content: str
    release: Release
    ratio: float  #: The change divided by the declared sensitivity.
    is_too_far: bool  #: Whether the ratio exceeds 1 by any amount; integers are compared exactly.
    neighbors: Neighbors
    difference: Floats  #: The change of each entry, in the array's units.


def how_far(
    run: WatchedRun,
    client: str,
    pairs: Iterable[Neighbors],
    *,
    noise_seed: int = 0,
    known: dict[tuple[int | None, bytes], Answers] | None = None,
) -> Iterator[Change]:
    """Yield the change between neighbors of every array that a run released with noise.

    Parameters
    ----------
    run : WatchedRun
    client : str
        The client whose copies answer.
    pairs : iterable of Neighbors
    noise_seed : int
        The seed of the client's own random choices, such as a sample of its rows.
    known : dict, optional
        Stores the answers to tables, for further calls with the same run, client and seed.

    Raises
    ------
    AssertionError
        If neighbors give arrays of different shapes, or numbers that are not finite.
    """
    known = {} if known is None else known

    def answered(rows: Floats, owners: NDArray[np.intp] | None, only: int | None) -> Answers:
        """Return the client's answers with these rows, computed only once for each table."""
        key = (only, rows.tobytes() + (b"" if owners is None else owners.tobytes()))
        if key not in known:
            data = data_of(run.strategy, rows, f"client {client}", subjects_of_rows=owners)
            known[key] = shadow_answers(run, client, data, only=only, noise_seed=noise_seed)
        return known[key]

    for pair in pairs:
        first = answered(pair.rows, pair.owners, pair.only)
        second = (
            first
            if pair.others is None
            else answered(pair.others, pair.owners_of_others, pair.only)
        )
        for number, index, release in run.releases:
            before, after = first.get(number), second.get(number)
            if not before or not after:  # it fails, or another client was asked
                continue
            difference, exponent = difference_between(
                before[index], None if pair.others is None else after[index]
            )
            round_ = run.rounds[number]
            content = round_.answer.sends[index].content
            if difference is None:
                raise AssertionError(
                    f"'{content}' is not of one shape and of finite numbers for {pair.description}."
                )
            ratio, is_too_far = ratio_of(difference, exponent, release)
            values = np.ldexp(difference.astype(np.float64), exponent)
            yield Change(
                number, index, round_.task, content, release, ratio, is_too_far, pair, values
            )


def difference_between(first: Sendable, second: Sendable | None) -> tuple[NDArray[Any] | None, int]:
    """Return the flattened difference of two arrays, and the exponent of its unit.

    Arrays of integers in a unit are subtracted as integers, so nothing is rounded. The difference is
    None if the arrays do not match in shape or unit, or hold numbers that are not finite. Without a
    second array, the first one itself is the difference.
    """
    exponent = first.exponent if isinstance(first, GridArray) else 0
    if isinstance(second, GridArray) and second.exponent != exponent:
        return None, exponent
    arrays = [
        array.integers if isinstance(array, GridArray) else array
        for array in (first, second)
        if array is not None
    ]
    if len({array.shape for array in arrays}) > 1 or not all(
        np.isfinite(array).all() for array in arrays
    ):
        return None, exponent
    return np.ravel(arrays[0] if second is None else arrays[0] - arrays[1]), exponent


def ratio_of(difference: NDArray[Any], exponent: int, release: Release) -> tuple[float, bool]:
    """Return the norm of a change divided by the sensitivity, and whether it exceeds 1.

    ``difference`` holds integers in units of 2^exponent, or floats. For integers the comparison is
    exact (with Python's integers and fractions), so a change that is too large by one unit is
    noticed. In a release of a triangle, each entry off the diagonal stands for two entries of the
    matrix.
    """
    norm = 1 if release.norm == "L1" else 2
    if difference.dtype != np.int64:
        length = float(np.linalg.norm(difference, ord=norm))
        return length / release.sensitivity, length > release.sensitivity * (1 + 1e-12)
    weights = np.ones(difference.size, dtype=np.int64)
    if release.triangle:
        weights[is_off_diagonal((math.isqrt(8 * difference.size + 1) - 1) // 2)] = 2
    # Python's integers and fractions neither overflow nor round.
    present = np.flatnonzero(difference)
    entries = zip(weights[present].tolist(), difference[present].tolist(), strict=True)
    total = sum(weight * abs(entry) ** norm for weight, entry in entries)
    share = Fraction(total) / (Fraction(release.sensitivity) / Fraction(2) ** exponent) ** norm
    return float(share) ** (1.0 / norm), share > 1


# Hard rows and hard tables.


def neighbor_tables(
    rows: Floats, hard: Sequence[HardRow], unit: PrivacyUnit, relation: Relation, *, each: int = 4
) -> list[Neighbors]:
    """Return neighboring tables in which hard rows are added, removed or replaced.

    Each hard row is placed in up to ``each`` ways, hardest first: among equal rows, at the top, at
    the end, and in a table of one or two rows. The unit and the relation of the guarantee decide how
    the two tables differ.
    """
    pairs: list[Neighbors] = []
    for index, (label, row) in enumerate(hard):
        full = np.tile(row, (len(rows), 1))
        _, opposite = hard[index - 1]
        if unit == "client" and relation == "add-or-remove":
            ways = [Neighbors(f"a client of {label}", full, None)]
        elif unit == "client":
            ways = [
                Neighbors(f"a client of {label}", full, np.tile(opposite, (len(rows), 1))),
                Neighbors(f"a client of {label}", full, rows),
            ]
        elif unit == "subject":
            ways = _persons(label, row, opposite, rows)
        elif relation == "add-or-remove":
            ways = [
                Neighbors(f"{label}, many times", full, full[1:]),
                Neighbors(f"{label} removed from the top", np.vstack([row, rows[1:]]), rows[1:]),
                Neighbors(f"{label} added", rows, np.vstack([rows, row])),
                Neighbors(f"{label} above a single row", rows[:1], np.vstack([row, rows[:1]])),
            ]
        else:
            ways = [
                Neighbors(f"{label} among its like", full, np.vstack([opposite, full[1:]])),
                Neighbors(
                    f"{label} replaced by another",
                    np.vstack([row, rows[1:]]),
                    np.vstack([opposite, rows[1:]]),
                ),
                Neighbors(f"{label} at the end", np.vstack([rows[:-1], row]), rows),
                Neighbors(f"{label} alone", row[None], opposite[None]),
            ]
        pairs += ways[:each]
    if unit == "client":
        pairs.append(
            Neighbors(
                "a client's own rows", rows, None if relation == "add-or-remove" else rows[::-1]
            )
        )
    return pairs


#: How many rows the person has in whom two neighboring tables differ.
ROWS_OF_PERSONS = (1, 20, 500)


def _persons(description: str, row: Floats, opposite: Floats, rows: Floats) -> list[Neighbors]:
    """Return tables that differ in one person, who may have many rows; everybody else has two rows.

    The person's rows are equal or mixed, and stand together or among other rows, because neither
    may change how much a person's rows add.
    """
    others = np.arange(len(rows)) // 2
    pairs = []
    for size in (ROWS_OF_PERSONS[1], ROWS_OF_PERSONS[2], ROWS_OF_PERSONS[0]):
        rows_of_person = np.tile(row, (size, 1))
        owners = np.concatenate([np.full(size, len(rows)), others])
        pairs.append(
            Neighbors(
                f"a person with {size} rows of {description}",
                np.vstack([rows_of_person, rows]),
                rows,
                None,
                owners,
                others,
            )
        )
    mixed = np.vstack([row, *rows[:3], opposite, row, rows[0]])
    among = np.concatenate([np.full(4, len(rows)), others, np.full(3, len(rows))])
    table = np.vstack([mixed[:4], rows, mixed[4:]])
    return [
        *pairs,
        Neighbors(
            f"a person with {description} among other rows", table, rows, None, among, others
        ),
    ]


def far_rows(rows: Floats) -> list[HardRow]:
    """Return rows far out in opposite directions, a row of zeros, and a row that the table has already."""
    spread = 1e3 * (1.0 + np.abs(rows).max())
    axis = np.zeros(rows.shape[1])
    axis[0] = spread
    ones = np.full(rows.shape[1], spread)
    named = {
        "a long row": axis,
        "its opposite": -axis,
        "a long diagonal row": ones,
        "its own opposite": -ones,
    }
    return [*named.items(), ("a row of zeros", np.zeros(rows.shape[1])), ("a row twice", rows[0])]


def extreme_rows(n_columns: int) -> list[HardRow]:
    """Return rows of the largest and the smallest floats."""
    largest = np.finfo(np.float64).max
    hard = []
    for label, value in (("1e300", 1e300), ("the largest float", largest), ("1e-300", 1e-300)):
        mixed = np.where(np.arange(n_columns) % 2 == 0, value, -value)
        hard += [
            (f"a row of {label}", np.full(n_columns, value)),
            (f"a row of {label} and its negative", mixed),
        ]
    return [*hard, ("a row of the smallest float", np.full(n_columns, 5e-324))]


def rows_in_directions(rows: Floats) -> list[HardRow]:
    """Return far rows in many directions.

    They have to be clipped to the bound, and rounding may leave the clipped norm just above it.
    """
    rng = np.random.default_rng(11)
    far = 1e3 * (1.0 + np.abs(rows).max())
    return [
        (f"a far row in direction {index}", far * rng.normal(size=rows.shape[1]))
        for index in range(N_DIRECTIONS)
    ]


def rows_of_whole_numbers(rows: Floats) -> list[HardRow]:
    """Return far rows at distances that are whole numbers, alternately on both sides along one axis.

    If such a row is divided by its norm, the quotient is rounded differently for each distance, now
    and then upwards.
    """
    first = np.ceil(1e3 * (1.0 + np.abs(rows).max()))
    axis = np.eye(1, rows.shape[1])[0]
    return [
        (
            f"a row {first + index // 2:g} far out on an axis",
            (-1.0) ** index * (first + index // 2) * axis,
        )
        for index in range(2 * N_WHOLE)
    ]


def _matrices_sent(run: WatchedRun, client: str) -> Iterator[tuple[int, str, bool, Floats, Floats]]:
    """Yield (round, task, whether the answer takes noise, matrix, origin) for each matrix sent to a client.

    A vector with an entry for each column counts as an origin.
    """
    n_columns = run.data[client].rows.shape[1]
    for number, round_ in run.rounds.items():
        for exchange in run.asked(number):
            if exchange.client != client:
                continue
            arrays = [
                array.astype(float)
                for array in decode(exchange.ins.parameters)
                if array.dtype.kind in "fiu"
            ]
            origins = [array for array in arrays if array.shape == (n_columns,)] or [
                np.zeros(n_columns)
            ]
            for array in arrays:
                if array.ndim == 2 and array.size:
                    yield number, round_.task, bool(run.noisy(number)), array, origins[0]


def rows_by_message(run: WatchedRun, client: str) -> dict[str, list[HardRow]]:
    """Return, by task and kind, hard rows that follow from what the server sent.

    A matrix with as many columns as the rows counts as points: hard rows lie on them and beyond
    them. A matrix with as many rows as the table has columns counts as directions: hard rows lie
    far out along them. Only the last four kinds are kept.
    """
    n_columns = run.data[client].rows.shape[1]
    hard: dict[str, list[HardRow]] = {}
    for _, task, is_noisy, array, origin in _matrices_sent(run, client):
        if is_noisy and array.shape[1] == n_columns and len(array) > 1:
            hard[f"about points of '{task}'"] = _about_points(array, origin, task)
        elif array.shape[0] == n_columns:
            hard[f"along directions of '{task}'"] = _along(array, origin, task)
    return dict(list(hard.items())[-4:])


def _about_points(points: Floats, origin: Floats, task: str) -> list[HardRow]:
    """Return rows on the first four points, on the two that are farthest apart, and far beyond these two."""
    pair = (0, 1)
    if len(points) <= MOST_POINTS:
        apart = np.linalg.norm(points[:, None] - points[None], axis=2)
        first, second = np.unravel_index(int(apart.argmax()), apart.shape)
        pair = (int(first), int(second))
    chosen = list(dict.fromkeys([*pair, *range(min(4, len(points)))]))
    hard = [(f"a row on point {index} of '{task}'", points[index] + origin) for index in chosen]
    middle = points.mean(axis=0)
    far = 1e3 * (1.0 + np.abs(points).max())
    for index in chosen[:2]:
        row = middle + far * (points[index] - middle)
        hard.append((f"a row beyond point {index} of '{task}'", row))
    return hard


def _along(directions: Floats, origin: Floats, task: str) -> list[HardRow]:
    """Return rows far out along the first two directions, on both sides."""
    far = (
        1e3
        * (1.0 + np.abs(origin).max())
        / max(float(np.abs(directions).max()), np.finfo(np.float64).tiny)
    )
    return [
        (
            f"a row far along direction {index} of '{task}'",
            origin + far * side * directions[:, index],
        )
        for index in range(min(2, directions.shape[1]))
        for side in (1.0, -1.0)
    ]


def tied_neighbors(
    run: WatchedRun, client: str, unit: PrivacyUnit, relation: Relation, *, mirrored: bool = False
) -> Kinds:
    """Return neighbors whose rows lie half way between two points that the server sent.

    Except for rounding, such a row is as far from one point as from the other (a tie). How the tie
    is broken must not depend on the table's other rows. Such neighbors are returned for the last
    round of each task. ``mirrored`` is for points of which the second has the columns of the first
    in reverse: then the rows read the same in reverse, so that both distances are exactly equal.
    """
    rng = np.random.default_rng(3)
    n_columns = run.data[client].rows.shape[1]
    of_task: dict[str, tuple[int, list[Neighbors]]] = {}
    for number, task, is_noisy, points, origin in _matrices_sent(run, client):
        if not is_noisy or points.shape[1] != n_columns or len(points) < 2:
            continue
        across = points[1] - points[0]
        along = rng.normal(size=(N_TIED, n_columns)) * 0.1 * np.abs(across).max()
        along -= np.outer(along @ across, across) / max(
            float(across @ across), np.finfo(np.float64).tiny
        )
        if mirrored:
            along += along[:, ::-1]
        table = 0.5 * (points[0] + points[1]) + along + origin
        before = of_task[task][1] if task in of_task and of_task[task][0] == number else []
        of_task[task] = number, [*before, *_neighbors_of_ties(table, number, unit, relation)]
    return {f"on ties of round {number}": pairs for number, pairs in of_task.values()}


def _neighbors_of_ties(
    table: Floats, number: int, unit: PrivacyUnit, relation: Relation
) -> list[Neighbors]:
    """Return neighbors that differ in one row of a table of ties, for one round."""
    if unit == "client":
        return [
            Neighbors(
                "rows on ties", table, None if relation == "add-or-remove" else table[::-1], number
            )
        ]
    if relation == "replace":
        return [Neighbors("rows on ties", table, np.vstack([table[1:2], table[1:]]), number)]
    # Matrix products may use other code for one row, for a few rows and for many, so tables of several sizes are tried.
    fewer = [
        Neighbors("rows on ties, the first removed", table[:size], table[1:size], number)
        for size in (N_TIED, 9, 4)
    ]
    twice = [
        Neighbors("a row on a tie, one of two removed", np.vstack([row, row]), row, number)
        for row in table[:, None]
    ]
    return [*fewer, *twice]


# Runs with altered messages, which an honest server would never send. The client enforces the sensitivity, so the
# sensitivity must hold for any points and directions that a server sends.

ALTERED: Mapping[str, Callable[[Floats], Floats]] = {
    "with all columns alike": lambda array: np.repeat(array[:, :1], array.shape[1], axis=1),
    "with all rows alike": lambda array: np.repeat(array[:1], array.shape[0], axis=0),
    "a thousand times as large": lambda array: 1e3 * array,
}


def altered_run(run: WatchedRun, alter: Callable[[Floats], Floats]) -> WatchedRun:
    """Return the run with ``alter`` applied to every matrix of floats that its messages carry."""
    exchanges = []
    for exchange in run.exchanges:
        sent = decode(exchange.ins.parameters)
        arrays = [
            alter(array) if array.ndim == 2 and array.dtype.kind == "f" and array.size else array
            for array in sent
        ]
        exchanges.append(replace(exchange, ins=FitIns(encode(arrays), exchange.ins.config)))
    return replace(run, exchanges=exchanges)


def mirrored_run(run: WatchedRun, client: str) -> WatchedRun:
    """Return the run with points that alternate between one point and the same point with its columns in reverse.

    A row that reads the same in reverse is exactly as far from both. The points have many digits,
    so products with them are rounded.
    """
    n_columns = run.data[client].rows.shape[1]

    def mirror(array: Floats) -> Floats:
        """Return points that alternate between one row and the same row with its columns in reverse."""
        if array.shape[1] != n_columns or len(array) < 2:
            return array
        first = array[0] / 3.0
        return np.array([first, first[::-1]])[np.arange(len(array)) % 2]

    return altered_run(run, mirror)


def remembered(run: WatchedRun, earlier: WatchedRun, client: str) -> list[str]:
    """Name the answers that change if the client's table was used in the ``earlier`` run before.

    A client may cache results for large tables. Its answers in one run must not depend on what it
    has cached in another run.
    """
    rows = run.data[client].rows
    rows = np.tile(rows, (-(-LARGE_TABLE // rows.size), 1))
    used = data_of(run.strategy, rows, f"client {client}")
    shadow_answers(earlier, client, used)
    fresh, again, after = (shadow_answers(run, client, table) for table in (rows, rows, used))
    return [
        f"the answer to '{run.rounds[number].task}' depends on a run that the client has answered before"
        for number in fresh.keys() & run.rounds.keys()
        if _bits(fresh[number]) == _bits(again[number]) != _bits(after[number])
    ]


def _bits(answer: list[Sendable] | None) -> Any:
    """Return an answer in a form that can be compared and hashed; None if there is no answer."""
    return answer and tuple(
        (array.exponent, array.integers.tobytes())
        if isinstance(array, GridArray)
        else array.tobytes()
        for array in answer
    )


# Runs of the strategy on other tables, and with other public settings.


def tables_at_ends(subject: Subject, reach: float) -> list[Floats]:
    """Return tables in which each cluster lies at an end of an axis, at ``reach`` times the radius of the rows."""
    rng = np.random.default_rng(13)
    rows = np.vstack(subject.rows)
    center = rows.mean(axis=0)
    radius = reach * max(
        float(np.linalg.norm(rows - center, axis=1).max()), np.finfo(np.float64).tiny
    )
    ends = _ends(rows.shape[1])
    tables = []
    for rows in subject.rows:
        which = np.arange(len(rows)) % min(max(subject.strategy.n_clusters, 2), len(ends))
        tables.append(center + radius * (ends[which] + 0.01 * rng.normal(size=rows.shape)))
    return tables


def _ends(n_columns: int) -> Floats:
    """Return both ends of each axis in turn."""
    return np.stack([np.eye(n_columns), -np.eye(n_columns)], axis=1).reshape(-1, n_columns)


def with_edges(subject: Subject, digits: int) -> Subject | None:
    """Return the subject with public bounds, or public rows, just below a power of two; None if it has neither.

    With such a bound, quotients may be rounded up to the power of two, and squares have more digits
    than a float holds. In both cases rounding can exceed a bound by the last digit. ``digits`` is
    how many binary digits the bound has.
    """

    def next_below(bound: float) -> float:
        """Return the largest number with that many binary digits below the next power of two."""
        return math.ldexp(1.0 - 2.0**-digits, math.frexp(bound)[1] + 1)

    strategy = subject.strategy
    bounds: dict[str, Any] = {
        name: next_below(float(value))
        for name in strategy.parameter_names()
        if name.endswith("norm") and isinstance(value := getattr(strategy, name), int | float)
    }
    public = np.asarray(getattr(strategy, "server_data", None), dtype=np.float64)
    if public.ndim == 2:
        ends = _ends(public.shape[1])
        radius = next_below(float(np.linalg.norm(public - public.mean(axis=0), axis=1).max()))
        bounds["server_data"] = radius * np.tile(ends, (-(-len(public) // len(ends)), 1))
    if not bounds:
        return None
    try:
        strategy = subject.with_parameters(**bounds)
    except ValueError:
        return None
    rows, _ = small_tables(strategy, n_clients=len(subject.rows), n_columns=subject.n_columns)
    return Subject(strategy, rows)


# Rows that a client draws for an answer.


def findings_of_samples(
    run: WatchedRun, client: str, pair: Neighbors | None, level: float, deadline: float = math.inf
) -> tuple[list[str], list[str]]:
    """Check that rows are really drawn, that the draw is secret, and that it happens at the declared rate.

    Guarantees that count on subsampling need all three. A client answers every message again and
    again, without noise, with two tables that differ in one row, and with one seed for both. Where
    the answers differ, that row was drawn.

    Returns the findings, and the checks that were left out.
    """
    samples = _samples(run, client)
    if not samples:
        return [], []
    own_rows = run.data[client].rows
    first, second = (
        (own_rows, own_rows) if pair is None or pair.others is None else (pair.rows, pair.others)
    )
    answers = partial(_answers_by_sample, run, client, samples=samples)
    known = answers(own_rows, 0)
    if known != answers(own_rows, 0):
        # The client's sample does not follow from the seed, so the samples from two tables cannot be made the same.
        return [], [
            "how often a row is drawn, because clients draw other rows each time, whatever their seed"
        ]
    n_drawn = Counter[int]()
    for row in range(min(len(own_rows), MOST_CHANGED)):
        changed = own_rows.copy()
        changed[row] = next(
            (
                differing
                for differing, other in zip(first, second, strict=False)
                if (differing != other).any()
            ),
            -own_rows[row],
        )
        n_drawn.update(
            number for number, answer in answers(changed, 0).items() if answer != known[number]
        )
    seen: dict[int, set[Any]] = {number: set() for number in samples}
    hits, n_times = Counter[str](), 0
    while n_times < TIMES and (n_times < FEWEST_TIMES or time.perf_counter() < deadline):
        whole, of_first, of_second = (
            answers(table, n_times) for table in (own_rows, first, second)
        )
        n_times += 1
        for number in samples:
            seen[number].add(whole[number])
            hits[run.rounds[number].task] += of_first[number] != of_second[number]
    left = (
        [f"{TIMES - n_times} of {TIMES} answers in which rows are drawn"] if n_times < TIMES else []
    )
    findings = []
    for number, different in seen.items():
        task, declared = run.rounds[number].task, samples[number][0]
        if len(different) == 1 and different != {None}:
            findings.append(
                f"'{task}' is said to draw rows, and every answer to one message is of the same rows"
            )
        if n_drawn[number] > declared:
            findings.append(
                f"{n_drawn[number]} rows count in an answer to '{task}', and {declared} are declared"
            )
    findings += _drawn_too_often(run, samples, hits, n_times, level)
    return list(dict.fromkeys(findings)), left


def _drawn_too_often(
    run: WatchedRun,
    samples: Mapping[int, tuple[int, int]],
    hits: Counter[str],
    n_times: int,
    level: float,
) -> Iterator[str]:
    """Yield a sentence for each task in which a row counts significantly more often than declared."""
    tasks = Counter(run.rounds[number].task for number in samples)
    for task, n_rounds in tasks.items():
        share = max(b / n for number, (b, n) in samples.items() if run.rounds[number].task == task)
        if float(binom.sf(hits[task] - 1, n_rounds * n_times, share)) < level / len(tasks):
            counted = f"a row counts in {hits[task] / (n_rounds * n_times):.3g} of the answers to '{task}'"
            yield f"{counted}, and {share:.3g} are declared"


def seed_that_draws(run: WatchedRun, client: str, pairs: Sequence[Neighbors]) -> int:
    """Return the seed with which the client answers most rounds, and most often draws the rows that differ.

    A comparison of two tables shows nothing if the client does not answer, or if the row in which
    they differ is not in its sample.
    """
    samples = _samples(run, client)
    scores: list[tuple[int, int]] = []
    for seed in range(SEEDS_TRIED):
        answers = shadow_answers(run, client, pairs[0].rows, noise_seed=seed).values()
        n_answers = sum(answer is not None for answer in answers)
        both = [
            [
                _answers_by_sample(run, client, table, seed, samples)
                for table in (pair.rows, pair.others)
            ]
            for pair in pairs
            if samples and pair.others is not None
        ]
        scores.append(
            (
                n_answers,
                sum(
                    of_first[number] != of_second[number]
                    for of_first, of_second in both
                    for number in samples
                ),
            )
        )
        if not samples and n_answers == len(answers):
            break
    return scores.index(max(scores))


def _samples(run: WatchedRun, client: str) -> dict[int, tuple[int, int]]:
    """Return round -> (most rows drawn, number of rows they are drawn from), where a client draws rows."""
    by_round: dict[int, tuple[int, int]] = {}
    for number, round_ in run.rounds.items():
        samples = [release.sample for release in round_.releases if release and release.sample]
        if (
            samples
            and samples[0][0] < samples[0][1]
            and any(exchange.client == client for exchange in run.asked(number))
        ):
            by_round[number] = samples[0]
    return by_round


def _answers_by_sample(
    run: WatchedRun, client: str, table: Floats, seed: int, samples: Iterable[int]
) -> dict[int, Any]:
    """Return the client's answer to each sampled round, in a form that can be compared."""
    answers = shadow_answers(run, client, table, noise_seed=seed)
    return {number: _bits(answers.get(number)) for number in samples}


# The search.


def hard_pairs(subject: Subject, run: WatchedRun, client: str, *, all_kinds: bool = True) -> Kinds:
    """Return hard neighbors by kind, the hardest kinds first.

    These are ties, rows far out and rows of extreme floats; with ``all_kinds`` also rows that
    follow from the messages, and rows in many directions.
    """
    rows = run.data[client].rows
    hard = {"far out": far_rows(rows), "of extreme floats": extreme_rows(rows.shape[1])}
    if all_kinds:
        hard |= {**rows_by_message(run, client), "in many directions": rows_in_directions(rows)}
    pairs = {
        kind: neighbor_tables(rows, rows_of_kind, *subject.neighboring)
        for kind, rows_of_kind in hard.items()
    }
    return tied_neighbors(run, client, *subject.neighboring) | pairs


@dataclass
class Place:
    """A run with which neighbors are compared: the original run, or one with other messages, rows or bounds.

    Each turn takes one pair of neighbors of each kind, so that a search that ends early has seen
    some of all kinds.
    """

    where: str  #: Completes "neighbors ..." in messages; "" for the original run.
    #: The run, and neighbors by kind; None if it fails.
    make: Callable[[], tuple[WatchedRun, Kinds] | None]
    takes_a_run: bool = False
    run: WatchedRun | None = None
    turns: list[list[Neighbors]] | None = None
    n_turns: int = 0
    known: dict[tuple[int | None, bytes], Answers] = field(default_factory=dict)

    def turn(self) -> list[Neighbors]:
        """Return the next pair of neighbors of each kind; [] if none is left."""
        if self.turns is None:
            self.run, kinds = self.make() or (None, {})
            self.turns = [
                [pair for pair in turn if pair is not None] for turn in zip_longest(*kinds.values())
            ]
        self.n_turns += 1
        return self.turns[self.n_turns - 1] if self.n_turns <= len(self.turns) else []

    @property
    def not_examined(self) -> str:
        """The neighbors that were not compared, in words; "" if all were."""
        if self.turns is None:
            return f"all neighbors {self.where}, and whether a client remembers that run"
        left = sum(map(len, self.turns[self.n_turns :]))
        return (
            f"{left} of {sum(map(len, self.turns))} neighbors {self.where}".rstrip() if left else ""
        )


class Search:
    """Measures how much each release of a run differs between neighbors, and keeps the largest changes.

    It also keeps the pair of neighbors that is easiest to tell apart from all noisy releases
    together. The privacy loss is measured on this pair.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject, self.run = subject, subject.run
        noisy = [number for number, _, _ in subject.releases]
        asked = {
            name: sum(name in self.run.sent(number) for number in noisy) for name in subject.names
        }
        self.client = max(subject.names, key=lambda name: asked[name])
        self.largest: dict[
            tuple[str, int], Change
        ] = {}  #: The largest change of each array, by task and array.
        self.n_pairs = Counter[tuple[str, int]]()
        #: The neighbors that are easiest to tell apart from all noisy releases together.
        self.worst: Neighbors | None = None
        self.changes: list[Change] = []  #: The change of each release between these neighbors.
        self.broken: list[str] = []
        self.n_compared = self.n_unanswered = 0
        self.noise_seed = 0
        self._places: list[Place] = []
        self._largest_cost = 0.0

    def compare(self, deadline: float, says: Progress) -> None:
        """Compare neighbors in every run, one pair of each kind in turn, until the deadline.

        The first few turns are always made. ``says`` is called to report the progress.
        """
        if not self.subject.releases:
            return
        rows = self.run.data[self.client].rows
        first = neighbor_tables(rows, far_rows(rows)[:3], *self.subject.neighboring, each=1)
        self.noise_seed = seed_that_draws(self.run, self.client, first)
        self._places = list(self._made_places())
        for turn in count():
            n_before = self.n_compared
            for place in self._places:
                is_sure = turn < SURE_TURNS and not place.takes_a_run
                if is_sure or time.perf_counter() < deadline:
                    says("neighbors", 0.4 * (1 - 0.9**turn))
                    for pair in place.turn():
                        self._compare(place, pair)
            if self.n_compared == n_before:
                return

    @property
    def not_examined(self) -> list[str]:
        """The comparisons that were left out because the time was up."""
        return [left for place in self._places if (left := place.not_examined)]

    def _made_places(self) -> Iterator[Place]:
        """Yield the runs in which neighbors are compared, the original one first.

        Next is the original run with altered messages, which does not need a new run: points that
        mirror each other, points that are all alike, and points far away. Last are new runs on other
        tables, and with bounds just below a power of two.
        """
        rows, neighboring = self.run.data[self.client].rows, self.subject.neighboring
        kinds = hard_pairs(self.subject, self.run, self.client)
        yield Place("", lambda: (self.run, kinds))
        mirrored = mirrored_run(self.run, self.client)
        ties = tied_neighbors(mirrored, self.client, *neighboring, mirrored=True)
        yield Place("of points that mirror each other", lambda: (mirrored, ties))
        some = {
            "far out": neighbor_tables(rows, far_rows(rows)[:2], *neighboring, each=3),
            "along directions": [
                pair
                for kind in kinds.values()
                for pair in kind
                if "along direction" in pair.description
            ],
        }
        for change, alter in ALTERED.items():
            where = f"where the server sends points {change}"
            yield Place(where, lambda alter=alter: (altered_run(self.run, alter), some))  # type: ignore[misc]
        for where, reach in (
            ("with rows beyond the ends of the space", 3.0),
            ("with rows near its ends", 0.9),
        ):
            subject = Subject(self.subject.strategy, tables_at_ends(self.subject, reach))
            yield Place(where, partial(self._other_run, where, subject), takes_a_run=True)
        for digits in DIGITS:
            if (other := with_edges(self.subject, digits)) is not None:
                where = f"with a bound of {digits} binary digits next below a power of two"
                yield Place(
                    where, partial(self._other_run, where, other, rounds_up=True), takes_a_run=True
                )

    def _other_run(
        self, where: str, subject: Subject, *, rounds_up: bool = False
    ) -> tuple[WatchedRun, Kinds] | None:
        """Run on other rows or with other public settings; report a run that fails or changes later answers."""
        try:
            run = watched_run(
                subject.strategy,
                subject.data,
                seed=SEED,
                tamper=dict.fromkeys(subject.data, patient),
            )
            self.broken += remembered(self.run, run, self.client)
        except Exception as error:
            self.broken.append(f"a run {where} ends with {type(error).__name__}")
            return None
        kinds = hard_pairs(self.subject, run, self.client)
        if rounds_up:
            rows = run.data[self.client].rows
            whole = rows_of_whole_numbers(rows)
            kinds["of whole numbers"] = neighbor_tables(
                rows, whole, *self.subject.neighboring, each=1
            )
        return run, kinds

    def _compare(self, place: Place, pair: Neighbors) -> None:
        """Compare one pair of neighbors in a run, and update the largest changes.

        Only a pair in the original run can become the pair on which the privacy loss is measured: the
        pair with the largest sum of the squares of (change over sensitivity) / (noise multiplier),
        as Gaussian releases compose.
        """
        assert place.run is not None
        if place.where:
            pair = replace(pair, description=f"{pair.description}, {place.where}")
        self.n_compared += 1
        try:
            changes = list(
                how_far(
                    place.run, self.client, [pair], noise_seed=self.noise_seed, known=place.known
                )
            )
        except AssertionError as broken:
            self.broken.append(str(broken).rstrip("."))
            return
        self.n_unanswered += not changes
        for change in changes:
            # Other runs may have other rounds; task and array are the same.
            key = change.task, change.index
            self.n_pairs[key] += 1
            before = self.largest.get(key)
            if before is None or (change.is_too_far, change.ratio) > (
                before.is_too_far,
                before.ratio,
            ):
                self.largest[key] = change
        cost = math.fsum(
            (change.ratio / change.release.noise_multiplier) ** 2 for change in changes
        )
        if place.run is self.run and cost > self._largest_cost:
            self._largest_cost, self.worst, self.changes = cost, pair, changes
