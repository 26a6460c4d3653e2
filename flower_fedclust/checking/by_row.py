"""Checks that each row's contribution to an answer by row depends on that row alone.

The bound of a term limits how much one row contributes. It also limits the effect of adding a row,
but only if that leaves the contributions of all other rows unchanged. So the answer to a table must
equal the sum of the answers to its rows, in any order and in any batches. All sums are integers and
are compared exactly.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.checking.neighbors import (
    Neighbors,
    difference_between,
    extreme_rows,
    far_rows,
    ratio_of,
)
from flower_fedclust.checking.runs import (
    Exchange,
    Floats,
    WatchedRun,
    data_of,
    new_context,
    sent_or_kept,
)
from flower_fedclust.engine.by_row import ByRow, Finisher
from flower_fedclust.engine.rounds import Question, Round
from flower_fedclust.engine.table_answers import ByTableRow
from flower_fedclust.privacy.noise import Sendable, on_grid
from flower_fedclust.privacy.releases import PrivacyUnit, Relation

Integers = NDArray[np.int64]

#: The number of rows of a small table. The answer to it is compared with the answers to its single rows.
N_ROWS = 24

#: A large table has N_LARGE rows, and is cut into smaller tables at the rows CUTS. The sizes of these tables lie just
#: below, at and above powers of two; some are odd, and some divide no other size.
N_LARGE = 4096
CUTS = (1, 3, 10, 47, 112, 369, 1392, 3440)

#: The sizes of large tables that are compared with the same table without its last row.
SIZES = (37, 74, 2049, N_LARGE)

#: The numbers of rows in a batch. In a batch, a row has another place, and other rows beside it, than in the table.
BATCHES = (2, 7)


def questions_by_row(run: WatchedRun) -> list[tuple[int, Question]]:
    """Return (round, question) for the first and last question of each answer by row about clients' own rows."""
    by_task: dict[str, list[tuple[int, Question]]] = {}
    for number, round_ in run.rounds.items():
        for question in (
            [round_.question] if isinstance(round_.question, Question) else round_.question.values()
        ):
            # Answers about unprepared tables are left out: the package has written them, not the strategy's author.
            if (
                isinstance(question.asks, ByRow)
                and not isinstance(question.asks, ByTableRow)
                and not round_.rows
            ):
                by_task.setdefault(question.answer.task, []).append((number, question))
    return [
        pair
        for pairs in by_task.values()
        for pair in (pairs[:1] + pairs[-1:] if len(pairs) > 1 else pairs)
    ]


def findings_by_row(run: WatchedRun, client: str) -> list[str]:
    """Name the answers by row in which a row's contribution depends on its place, on other rows, or on the batch."""
    rows = hard_rows(run.data[client].rows)
    findings = dict[str, None]()
    for _, question in questions_by_row(run):
        asks = question.asks
        assert isinstance(asks, ByRow)
        try:
            for dependence in _depends_on(asks, question, rows):
                findings[f"the answer to '{question.answer.task}' depends on {dependence}"] = None
        except Exception as error:  # the answer cannot be taken apart, or fails for some rows
            findings[
                f"the answer to '{question.answer.task}' ends with {type(error).__name__} for some rows"
            ] = None
    return list(findings)


def hard_rows(rows: Floats) -> Floats:
    """Return a table of ordinary rows (some of them twice), rows far out, and rows of extreme floats."""
    far = [row for _, row in far_rows(rows)]
    # One row of 1e300 and one of the largest float, both with alternating signs.
    extreme = [row for _, row in extreme_rows(rows.shape[1])[1:4:2]]
    n_ordinary = N_ROWS - len(far) - len(extreme) - 2
    ordinary = rows[:n_ordinary]
    return np.vstack([ordinary, ordinary[:2], *far, *extreme])


def _depends_on(asks: ByRow, question: Question, rows: Floats) -> Iterator[str]:
    """Yield what an answer depends on besides the single rows of the table, although it should be a sum over them."""
    whole = _sums(asks, question, [rows])
    if _sums(asks, question, [np.random.default_rng(0).permutation(rows)]) != whole:
        yield "the order of its rows"
    for size in BATCHES:
        if (
            _sums(
                asks, question, [rows[start : start + size] for start in range(0, len(rows), size)]
            )
            != whole
        ):
            yield "the batches in which rows are read"
            break
    if _sums(asks, question, list(rows[:, None])) != whole:
        yield "other rows: it is not the sum of the answers to its rows one by one"


def _sums(asks: ByRow, question: Question, batches: Sequence[Floats]) -> list[tuple[int, bytes]]:
    """Return the integer sums over batches, as (exponent, bytes) of each array, before the client finishes them."""
    nothing = asks.terms(question, asks.no_rows(question))
    totals: list[Integers] = [term.integers for term in nothing]
    exponents = [term.exponent for term in nothing]
    for batch in batches:
        terms = asks.terms(question, batch)
        totals = [total + term.integers for total, term in zip(totals, terms, strict=True)]
    return [(exponent, total.tobytes()) for exponent, total in zip(exponents, totals, strict=True)]


def findings_of_sizes(
    run: WatchedRun, client: str, deadline: float = math.inf
) -> tuple[list[str], list[str]]:
    """Name the answers by row for which a large table's answer is not the sum of its parts' answers.

    Code may take another path for large tables: other blocks, threads, or a cache. Here a client
    computes its answers as it does in a run. Returns the findings, and what there was no time to
    examine.
    """
    asked = {
        number: question
        for number, question in questions_by_row(run)
        if question.finish is None and not isinstance(question.asks, Finisher)
    }
    rows = hard_rows(run.data[client].rows)
    large = np.resize(rows, (N_LARGE, rows.shape[1]))
    owner = f"client {client}"
    tables = [data_of(run.strategy, table, owner) for table in (large, *np.split(large, CUTS))]
    findings, left = dict[str, None](), list[str]()
    for exchange in run.to_client(client):
        if exchange.round not in asked or exchange.task != run.rounds[exchange.round].task:
            continue
        if time.perf_counter() > deadline:
            left.append(f"the answer to '{exchange.task}' of {N_LARGE} rows")
            continue
        # An answer by row about a client's own rows needs no results of earlier rounds, so an empty memory will do.
        answers = [
            sent_or_kept(run, exchange, table, new_context(), without_noise=True)
            for table in tables
        ]
        sums = [
            [on_grid(array).integers for array in answer]
            for answer in answers
            if answer is not None
        ]
        if len(sums) < len(tables):
            continue  # other checks report a client that fails
        for whole, *parts in zip(*sums, strict=True):
            if not np.array_equal(whole, np.sum(parts, axis=0)):
                task = exchange.task
                findings[
                    f"the answer to '{task}' of {N_LARGE} rows is not the sum of the answers to their parts"
                ] = None
    return list(findings), list(dict.fromkeys(left))


def findings_of_large_tables(
    run: WatchedRun, client: str, unit: PrivacyUnit, relation: Relation, deadline: float = math.inf
) -> tuple[list[str], list[str]]:
    """Name the answers that are not plain sums over rows and that large neighboring tables move too far.

    Plain sums over rows are examined by :func:`findings_of_sizes`. Returns the findings, and what there
    was no time to examine.
    """
    pairs = list(_large_neighbors(run.data[client].rows, unit, relation))
    findings, left = dict[str, None](), dict[str, None]()
    for exchange in run.to_client(client):
        round_ = run.rounds.get(exchange.round)
        if (
            round_ is None
            or round_.task != exchange.task
            or round_.rows
            or _is_sum_over_rows(round_)
        ):
            continue
        noisy = run.noisy(exchange.round)
        if not noisy or any(release.sample is not None for _, release in noisy):
            continue  # a table with one row more or less gives another sample, so answers cannot be compared
        for pair in pairs:
            if time.perf_counter() > deadline:
                left[f"the answer to '{exchange.task}' of {N_LARGE} rows"] = None
                break
            findings |= dict.fromkeys(_moved_too_far(run, exchange, pair))
    return list(findings), list(left)


def _moved_too_far(run: WatchedRun, exchange: Exchange, pair: Neighbors) -> Iterator[str]:
    """Name the arrays of an answer that differ between neighbors by more than the sensitivity.

    Yields nothing if the client fails with one of the tables.
    """

    def answer(rows: Floats) -> list[Sendable] | None:
        data = data_of(run.strategy, rows, f"client {exchange.client}")
        return sent_or_kept(run, exchange, data, new_context(), noise_seed=0, without_noise=True)

    first, other = answer(pair.rows), None if pair.others is None else answer(pair.others)
    if first is None or (other is None and pair.others is not None):
        return
    for index, release in run.noisy(exchange.round):
        difference, exponent = difference_between(
            first[index], None if other is None else other[index]
        )
        if difference is None:
            continue
        ratio, is_too_far = ratio_of(difference, exponent, release)
        if is_too_far:
            content = run.rounds[exchange.round].answer.sends[index].content
            yield f"'{content}' moves by {ratio:.6g} times its sensitivity ({pair.description})"


def _is_sum_over_rows(round_: Round) -> bool:
    """Tell whether a round asks for a plain sum over rows, which clients send without a finish (a mean, clipping)."""
    question = round_.question_for(None) if isinstance(round_.question, Question) else None
    return question is not None and isinstance(question.asks, ByRow) and question.finish is None


def _large_neighbors(rows: Floats, unit: PrivacyUnit, relation: Relation) -> Iterator[Neighbors]:
    """Yield pairs of large tables of equal far rows; the second lacks the last row, or has another row there."""
    (_, far), (_, opposite), *_ = far_rows(rows)
    full = np.tile(far, (N_LARGE, 1))
    if unit == "client":
        other = None if relation == "add-or-remove" else np.tile(opposite, (N_LARGE, 1))
        yield Neighbors(f"a client of {N_LARGE} far rows", full, other)
        return
    for size in SIZES:
        label = f"the last of {size} far rows"
        if relation == "add-or-remove":
            yield Neighbors(f"{label} removed", full[:size], full[: size - 1])
        else:
            yield Neighbors(
                f"{label} replaced", full[:size], np.vstack([full[: size - 1], opposite])
            )
