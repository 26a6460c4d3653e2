"""Answers by row: an author writes a pure function of some rows and of the message; the engine adds up its results.

The engine calls the function for each batch of a client's rows. The function has no access to the client. It returns
terms (:mod:`flower_fedclust.exact.terms`), which clip each row and state the bound that they enforce.

What a row adds must follow from that row and the message alone. The function sees a whole batch, so nothing here can
enforce this rule, and the bounds hold only if authors keep it. ``check_strategy`` and the audit test it: they compare
answers to rows in another order, in other batches and one by one.

For guarantees that cover all rows of a client, an answer can have a finish: a function that computes what the client
sends from its totals (the sums over its rows) and its number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data.batches import BATCH_ENTRIES, Batch, in_batches
from flower_fedclust.engine.client_data import ClientData
from flower_fedclust.engine.kept_rows import KeptOfClient, kept_rows
from flower_fedclust.engine.rounds import Answer, Askable, Question, Scalar, Sent, as_sent
from flower_fedclust.exact.capacity import with_rows
from flower_fedclust.exact.device import CARD_THREADS, current_device, device_of
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.stacks import NotStackedError, Stack, stacked
from flower_fedclust.exact.subjects import parts_of
from flower_fedclust.exact.sums import triangle_to_symmetric
from flower_fedclust.exact.terms import (
    Term,
    added_up,
    as_stack,
    clipped_total,
    of_one_client,
)
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.threads import mapped

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Finish:
    """Whether a client sends the mean of its rows' terms or their total, and the norms to which it clips this."""

    kind: str  #: "mean" or "total".
    #: The norm to which each array is clipped; None stands for the largest change that one row can make.
    at_most: tuple[float | None, ...]


class ByRow(Askable[..., Any]):
    """An answer by row: a sum over the client's rows, declared with :func:`by_row`."""

    relation = "add-or-remove"
    is_by_row = True

    #: Whether the function sees a table rather than prepared rows.
    sees_tables = False

    def __init__(
        self, function: Callable[..., Term | tuple[Term, ...]], sends: Mapping[str, Sent]
    ) -> None:
        self.function = function
        self.names = tuple(sends)
        self.answer = Answer(function.__name__, tuple(sends.values()))
        self.__doc__ = function.__doc__

    def asked(
        self,
        *arrays: Any,
        frame: Frame | None = None,
        view: Question | None = None,
        **arguments: Scalar,
    ) -> Question:
        """Return the question that asks clients for the sum of this answer over their rows."""
        return replace(super().asked(*arrays, **arguments), asks=self, frame=frame, view=view)

    def __get__(self, instance: Any, owner: type) -> Any:
        """On the class, return this declaration; on a client, return a function that answers from its rows."""
        return (
            self
            if instance is None
            else lambda *args, **kwargs: self.reply_of(instance, self.asked(*args, **kwargs))
        )

    def finished_as(
        self, question: Question, kind: str, at_most: tuple[float | None, ...]
    ) -> Question:
        """Return the question with a finish: clients send their clipped mean or total instead of the sum."""
        finish = Finish(kind, at_most or (None,) * len(self.names))
        return replace(question, answer=finished_answer(self.answer, finish), finish=finish)

    def terms(self, question: Question, values: Floats | Rows) -> tuple[Term, ...]:
        """Return the terms of a batch of rows, one for each array. Rows that the run keeps are integers already."""
        with with_rows(question.most_rows):
            terms = self.function(
                _rows_of(question, values), *question.arrays, **question.arguments
            )
        return terms if isinstance(terms, tuple) else (terms,)

    def taken(self, values: Any, part: NDArray[np.intp] | slice) -> Any:
        """Return some of a batch's rows."""
        return values[part if isinstance(part, slice) else device_of(values).index(part)]

    def no_rows(self, question: Question) -> Any:
        """Return a table without rows, as the function takes it."""
        frame = _frame_of(question)
        return np.zeros((0, 0 if frame is None else len(frame.origin)))

    def reply(
        self,
        question: Question,
        source: Floats | ClientData,
        seen: Callable[[Batch], Any] = attrgetter("rows"),
    ) -> list[GridArray]:
        """Return a client's arrays, added up batch by batch; ``seen`` turns a batch into what the function takes."""
        nothing, sent_of_nothing = question.of_no_rows
        device = current_device()

        def values_of(number: int, batch: Batch | Rows) -> Any:
            """Return what the function takes; if the run keeps rows, the batch is clipped and kept as integers."""
            if isinstance(batch, Rows):
                return batch
            if kept is not None and number in kept.batches:
                return kept.batches[number]
            values = seen(batch) if self.sees_tables else device.hold(seen(batch))
            return values if kept is None else kept.keep(number, values)

        def added(item: tuple[int, Batch | Rows]) -> tuple[int, tuple[Term, ...]]:
            number, batch = item
            values, by_divisor = values_of(number, batch), list[tuple[Term, ...]]()
            parts = _divisors(question, batch)
            for divisor, part in parts:
                with parts_of(divisor):
                    terms = self.terms(
                        question, values if len(parts) == 1 else self.taken(values, part)
                    )
                n_given = part.stop - part.start if isinstance(part, slice) else len(part)
                self._check_form(terms, nothing, n_given)
                by_divisor.append(terms)
            return len(batch), reduce(
                lambda left, right: tuple(map(added_up, left, right)), by_divisor
            )

        totals, n_rows = nothing, 0
        # A batch has more entries than the totals, so that adding up large totals takes little time.
        entries = min(
            max(BATCH_ENTRIES, 2 * sum(term.integers.size for term in nothing)), 8 * BATCH_ENTRIES
        )
        entries = entries if self.sees_tables else device.entries(entries)
        kept = None if self.sees_tables else _kept_of(question, source, entries)
        entries = entries if kept is None else kept.entries
        batches = self._batches_of(question, source, kept, entries)
        n_jobs = 1 if isinstance(source, np.ndarray) else source.n_jobs
        n_jobs = min(n_jobs, CARD_THREADS) if device.is_card else n_jobs
        for n_added, terms in mapped(added, enumerate(batches), n_jobs):
            totals = tuple(map(added_up, terms, totals))
            n_rows += n_added
        if kept is not None:
            kept.ends_with(n_rows)
        finished = self.finished_alone(question, totals, n_rows)
        self._check_form(finished, sent_of_nothing, n_rows)
        return [term.array for term in finished]

    def _batches_of(
        self,
        question: Question,
        source: Floats | ClientData,
        kept: KeptOfClient | None,
        entries: int,
    ) -> Iterable[Batch | Rows]:
        """Return a client's rows in batches: the batches that the run has kept, or else new ones."""
        if question.rows_per_subject and (
            isinstance(source, np.ndarray) or source.rows_each is None
        ):
            raise DataError(
                f"'{self.answer.task}' is to protect persons, and nothing says which rows are one person's: name the "
                "subject_column of the table."
            )
        if isinstance(source, np.ndarray):
            take = source.__getitem__
            return in_batches(source.shape, take, take, entries=entries)
        if kept is not None and kept.is_complete:
            return kept.batches.values()
        if question.rows_per_subject and not self.sees_tables:
            return source.batches_of_subjects(entries)
        return source.batches(entries)

    def replies_of_many(self, question: Question, rows: Sequence[Floats]) -> list[GridArray]:
        """Return the arrays of many small clients at once; the first axis of each array stands for clients.

        Raises an error if any client cannot answer, and a NotStackedError if the sums of different clients cannot be
        kept apart.
        """
        nothing, sent_of_nothing = question.of_no_rows
        stack = Stack([len(part) for part in rows])
        with stacked(stack):
            totals = self.terms(question, np.concatenate(rows))
            self._check_form(totals, nothing, stack.n_rows)
            finished = self.finished(question, totals, stack.sizes)
            self._check_form(finished, sent_of_nothing, stack.n_rows)
        # A function that reorders rows would give clients the sums of other clients. To notice this, the answer of the
        # first client is also computed alone.
        of_first = self.terms(question, rows[0])
        self._check_form(of_first, nothing, len(rows[0]))
        pairs = zip(self.finished_alone(question, of_first, len(rows[0])), finished, strict=True)
        if any(not np.array_equal(alone.integers, many.integers[0]) for alone, many in pairs):
            raise NotStackedError
        return [term.array for term in finished]

    def finished(
        self, question: Question, totals: tuple[Term, ...], n_rows: Integers
    ) -> tuple[Term, ...]:
        """Return what many clients send, from their totals and numbers of rows; the first axis stands for clients."""
        if question.finish is None:
            return totals
        divisor = np.maximum(n_rows, 1) if question.finish.kind == "mean" else np.ones_like(n_rows)
        pairs = zip(totals, question.finish.at_most, strict=True)
        return tuple(_clipped(term, divisor, at_most) for term, at_most in pairs)

    def finished_alone(
        self, question: Question, totals: tuple[Term, ...], n_rows: int
    ) -> tuple[Term, ...]:
        """Return the arrays of one client, computed from its totals."""
        if question.finish is None and not isinstance(self, Finisher):
            return totals
        stack = Stack([n_rows])
        with stacked(stack):
            finished = self.finished(question, tuple(map(as_stack, totals)), stack.sizes)
        return tuple(map(of_one_client, finished))

    def reply_of(self, client: Any, question: Question) -> list[GridArray]:
        """Return a client's arrays."""
        return self.reply(question, client.rows_in_batches)

    def _check_form(self, terms: tuple[Term, ...], nothing: tuple[Term, ...], n_rows: int) -> None:
        """Check that terms have the shapes, units and bounds from which the noise was computed."""
        if [term.form for term in terms] != [term.form for term in nothing]:
            raise RuntimeError(
                f"'{self.answer.task}' returns a term whose shape, unit or bound depends on the rows; let them follow "
                "from the message alone."
            )
        if any(term.n_rows > n_rows for term in terms):
            raise RuntimeError(
                f"'{self.answer.task}' adds more than one vector for each row; add one at most."
            )


class Finisher(ByRow):
    """A finish written by a strategy's author: a function of a client's totals and of further arguments."""

    def __init__(
        self, of: ByRow, function: Callable[..., Any], sends: Mapping[str, Sent], own: Iterable[str]
    ) -> None:
        super().__init__(function, sends)
        self.of = of
        self._own = frozenset(own)

    def _of_rows(self, question: Question) -> Question:
        arguments = {
            name: value for name, value in question.arguments.items() if name not in self._own
        }
        return replace(question, asks=self.of, answer=self.of.answer, arguments=arguments)

    def terms(self, question: Question, values: Floats | Rows) -> tuple[Term, ...]:
        """Return the terms that a batch of rows adds to the totals."""
        return self.of.terms(self._of_rows(question), values)

    def finished(
        self, question: Question, totals: tuple[Term, ...], n_rows: Integers
    ) -> tuple[Term, ...]:
        """Return what many clients send: the author's function of their totals. The first axis stands for clients."""
        terms = self.function(totals, n_rows, *question.arrays, **question.arguments)
        return terms if isinstance(terms, tuple) else (terms,)


class View:
    """A function that computes each row of a new table from one row; a question can ask for sums over the new rows."""

    def __init__(self, function: Callable[..., Rows]) -> None:
        self.function = function
        self.task = function.__name__
        self.__doc__ = function.__doc__

    def asked(self, *arrays: Any, frame: Frame, **arguments: Scalar) -> Question:
        """Return this view with these arguments, to be passed as the ``view`` of another question."""
        stand_in: Askable[..., Any] = Askable(self.function, ())
        return replace(stand_in.asked(*arrays, **arguments), asks=self, frame=frame)


def by_row(**arrays: str | Sent) -> Callable[[Callable[..., Any]], ByRow]:
    """Mark a function of rows and of the message as an answer, and declare every array that clients send.

    The function takes :class:`~flower_fedclust.exact.rows.Rows`, the arrays and the arguments of the question, and
    returns a term for each array, in the order of the declaration. It must also work without any row.

    Parameters
    ----------
    **arrays : str or Sent
        Each array's name, and what it holds.
    """
    sends = {name: as_sent(sent) for name, sent in arrays.items()}
    return lambda function: ByRow(function, sends)


def finishes(
    of: ByRow, *own: str, **arrays: str | Sent
) -> Callable[[Callable[..., Any]], Finisher]:
    """Mark a function as a finish: it computes what a client sends from the client's totals of an answer by row.

    The function takes the totals as terms, the number of rows, and the question's arrays and arguments. It is called
    for many clients at once: the first axis of the totals, of the numbers of rows and of the result has an entry for
    each client. The result for a client must follow from that client's totals and number of rows alone.

    Parameters
    ----------
    of : ByRow
    *own : str
        The arguments that the finish takes and the answer by row does not.
    **arrays : str or Sent
        Each array's name, and what it holds.
    """
    sends = {name: as_sent(sent) for name, sent in arrays.items()}
    return lambda function: Finisher(of, function, sends, own)


def view(function: Callable[..., Rows]) -> View:
    """Mark a function that computes new rows, each from one row alone."""
    return View(function)


def _rows_of(question: Question, values: Floats | Rows) -> Rows:
    if question.view is not None:
        inner = question.view
        assert isinstance(inner.asks, View)
        rows = inner.asks.function(_rows_of(inner, values), *inner.arrays, **inner.arguments)
        if not isinstance(rows, Rows):  # Rows are always clipped; a plain array would not be
            raise TypeError(
                f"the view '{inner.asks.task}' returns {type(rows).__name__}; it must return Rows."
            )
        return rows
    if question.frame is None:
        return Rows(np.zeros((len(values), 0)), 0, 1.0)
    return values if isinstance(values, Rows) else question.frame.rows(values)


def _kept_of(question: Question, source: Floats | ClientData, entries: int) -> KeptOfClient | None:
    """Return a client's kept rows in the frame (origin and radius) of a question; None if the run keeps none."""
    frame, store = _frame_of(question), kept_rows()
    if (
        frame is None
        or store is None
        or isinstance(source, np.ndarray)
        or question.rows_per_subject
    ):
        return None
    return store.of(source, frame, entries)


def _divisors(
    question: Question, batch: Batch | Rows
) -> list[tuple[int, NDArray[np.intp] | slice]]:
    """Return pairs of a divisor and the rows that are divided by it, as row numbers or a slice.

    The divisor of a row is the number of its subject's rows, or ``rows_per_subject`` if that is larger. The answer's
    function is called once for each divisor, so it cannot confuse the divisors of two subjects.
    """
    if not question.rows_per_subject:
        return [(1, slice(0, len(batch)))]
    assert isinstance(batch, Batch)
    assert batch.rows_each is not None
    divisors = np.maximum(batch.rows_each, question.rows_per_subject)
    order = None if (divisors[1:] >= divisors[:-1]).all() else np.argsort(divisors, kind="stable")
    ascending = divisors if order is None else divisors[order]
    starts = [0, *(np.flatnonzero(ascending[1:] != ascending[:-1]) + 1).tolist()]
    parts = [slice(*ends) for ends in pairwise([*starts, len(divisors)])]
    return [(int(ascending[part.start]), part if order is None else order[part]) for part in parts]


def _frame_of(question: Question) -> Frame | None:
    """Return the frame into which the client's own rows are clipped: the innermost view's, if there are views."""
    while question.view is not None:
        question = question.view
    return question.frame


def _clipped(term: Term, divisor: Integers, at_most: float | None) -> Term:
    """Return each client's total over ``divisor``, clipped as a whole."""
    bound = term.bound.l2 if at_most is None else at_most
    values = term.array.values
    values /= divisor.reshape(-1, *(1,) * (values.ndim - 1))
    if not term.bound.triangle:
        return clipped_total(values, bound)
    return clipped_total(triangle_to_symmetric(values), bound, triangle=True)


def finished_answer(answer: Answer, finish: Finish) -> Answer:
    """Return the declaration of what clients send after a finish."""
    words = "mean over the client's rows" if finish.kind == "mean" else "of one client"
    sends = tuple(
        replace(sent, content=f"{sent.content} ({words}, clipped)", counts="", counts_rows=False)
        for sent in answer.sends
    )
    return Answer(answer.task, sends)
