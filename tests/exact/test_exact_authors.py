"""What an author of answers by row gets wrong is refused, or clipped: it never breaks a bound."""

import math
from dataclasses import FrozenInstanceError, replace
from types import SimpleNamespace

import numpy as np
import pytest

from flower_fedclust import authoring
from flower_fedclust.engine import by_row as engine
from flower_fedclust.exact import terms
from flower_fedclust.exact.rows import Frame, Rows

FRAME = Frame(np.zeros(2), 4.0)
ROWS = np.random.default_rng(0).normal(size=(30, 2)) * 3.0


def longest(rows):
    return 1.0 + float(np.abs(rows.values).max(initial=0.0))


class Wrong(authoring.FrameClient):
    @authoring.by_row(array="a bound that depends on the rows")
    def bound_of_rows(rows):
        return terms.vectors(rows.values, longest(rows))

    @authoring.by_row(array="a shape that depends on the rows")
    def shape_of_rows(rows):
        return terms.at(np.zeros(len(rows), dtype=np.intp), 1 + len(rows))

    @authoring.by_row(array="another array where there are rows")
    def number_of_rows(rows):
        return (terms.count(rows),) * (1 + (len(rows) > 0))

    @authoring.by_row(counts="each row at two places")
    def twice(rows):
        return terms.at(np.repeat(np.zeros(len(rows), dtype=np.intp), 2), 3)

    @authoring.by_row(weights="each row with two sets of weights")
    def weighted_twice(rows):
        return terms.weighted(np.ones((2 * len(rows), 3)))

    @authoring.by_row(array="integers of many bits")
    def fine(rows, *, largest):
        return terms.unbounded(np.zeros((len(rows), 1)), 0, largest)

    @authoring.by_row(total="total")
    def total(rows):
        return terms.total(rows)

    @authoring.finishes(total, array="a bound that depends on the client")
    def finish_of_rows(totals, n_rows):
        return terms.clipped_total(totals[0].array.values, 1.0 + n_rows.max())

    @authoring.view
    def longer(rows):
        return Rows(1e6 * rows.integers + 0.5, rows.exponent, rows.radius)

    @authoring.view
    def more(rows):
        return Rows(np.repeat(rows.integers, 3, axis=0), rows.exponent, rows.radius)

    @authoring.view
    def nothing_of_ours(rows):
        return SimpleNamespace(
            integers=1e6 * rows.integers, exponent=rows.exponent, radius=1e-3, norm=2
        )

    @authoring.view
    def narrower(rows):
        return rows.clipped(rows.radius / longest(rows))

    @authoring.by_row(array="a total of each batch, clipped as a client's would be")
    def batch_clipped(rows):
        return terms.clipped_total(rows.values.sum(axis=0)[None], 0.5)

    @authoring.by_row(there="whether a batch has a row")
    def batch_is_there(rows):
        return terms.presence(np.full((1, 1), len(rows) > 0))

    @authoring.by_row(there="the class of a batch")
    def batch_class(rows):
        return terms.one_class(np.array([min(len(rows), 1)]), 2)


def reply_to(question, rows=ROWS):
    return question.asks.reply(question, rows)


@pytest.mark.parametrize("name", ["bound_of_rows", "shape_of_rows", "finish_of_rows"])
def test_forms_that_depend_on_rows_are_refused(name):
    with pytest.raises(
        RuntimeError,
        match=f"'{name}' returns a term whose shape, unit or bound depends on the rows",
    ):
        reply_to(getattr(Wrong, name).asked(frame=FRAME))


def test_nobody_else_makes_a_term_or_changes_one():
    term = terms.total(FRAME.rows(ROWS))
    with pytest.raises(TypeError, match="a term is made by"):
        terms.Term(np.full(2, 2**40), 0, terms.Bound(1e-9), 1)
    with pytest.raises(TypeError, match="a term is made by"):
        replace(term, bound=terms.Bound(1e-9))
    with pytest.raises(ValueError, match="read-only"):
        term.integers += 2**40
    with pytest.raises(FrozenInstanceError):
        term.bound = terms.Bound(1e-9)


def test_a_number_of_arrays_that_depends_on_rows_is_refused():
    with pytest.raises(RuntimeError, match="'number_of_rows'"):
        reply_to(Wrong.number_of_rows.asked(frame=FRAME))


@pytest.mark.parametrize("name", ["twice", "weighted_twice"])
def test_a_row_that_is_added_twice_is_refused(name):
    with pytest.raises(RuntimeError, match=f"'{name}' adds more than one vector for each row"):
        reply_to(getattr(Wrong, name).asked(frame=FRAME))


#: Second arrays that a row moves by more than 1.
SECONDS = {
    "counts": lambda rows: terms.at(np.zeros(len(rows), dtype=np.intp), 1),
    "vectors": lambda rows: terms.vectors(rows.values[:, :1], 1e3),
    "products": terms.products,
    "weights": lambda rows: terms.weighted(np.ones((len(rows), 1))),
    "rows": terms.total,
}


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("times", [-3.0, 0.0, 0.7, 1e-9])
def test_joined_adds_up_the_bounds_of_what_it_joins(name, times, norm):
    frame = Frame(np.zeros(2), 4.0, norm=norm)
    long = 1e9 * np.array([[1.0, 1.0], [1.0, 0.0], [0.0, -1.0]])
    for row in long:
        rows = frame.rows(row[None])
        second = SECONDS[name](rows)
        first = terms.at(np.zeros(1, dtype=np.intp), second.integers.size, rows)
        found = terms.joined(first, second, times=times)
        values = found.array.values
        assert np.linalg.norm(values) <= found.bound.l2 * (1 + 1e-12)
        assert np.abs(values).sum() <= found.bound.l1 * (1 + 1e-12)
        assert np.abs(found.integers).max() <= found.largest
        assert not np.isnan(found.bound.l1)


@pytest.mark.parametrize("times", [np.inf, -np.inf, np.nan])
def test_joined_needs_a_finite_weight(times):
    rows = FRAME.rows(ROWS)
    with pytest.raises(ValueError, match="times is"):
        terms.joined(
            terms.at(np.zeros(30, dtype=np.intp), 1, rows), SECONDS["counts"](rows), times=times
        )


@pytest.mark.parametrize(
    "chosen",
    [
        np.zeros(30, dtype=np.intp),
        np.arange(3),
        slice(0, 3),
        0,
        [True] * 30,
        np.ones(29, dtype=bool),
        np.eye(30) > 0,
    ],
    ids=["one row many times", "indices", "a slice", "a number", "a list", "too few", "a matrix"],
)
def test_rows_are_chosen_by_a_mask_alone(chosen):
    rows = FRAME.rows(ROWS)
    assert len(rows[np.arange(30) % 2 == 0]) == 15
    with pytest.raises(TypeError, match="rows are chosen by a mask"):
        rows[chosen]


def test_terms_are_added_up_by_the_engine_alone():
    assert not hasattr(terms.total(FRAME.rows(ROWS)), "plus")


@pytest.mark.parametrize(
    "made",
    [
        lambda rows: Rows(1e6 * rows.integers + 0.5, rows.exponent, rows.radius),
        lambda rows: replace(rows, radius=1e-3),
        lambda rows: replace(rows, held=rows.integers * np.nan),
        lambda rows: replace(rows, exponent=rows.exponent + 9),
        lambda rows: replace(rows, norm=1),
    ],
    ids=["longer", "another radius", "no numbers", "another unit", "another norm"],
)
@pytest.mark.parametrize("make", [terms.total, terms.products, terms.squares])
def test_rows_that_an_author_makes_are_clipped(made, make):
    for row in 1e3 * ROWS:
        term = make(made(FRAME.rows(row[None])))
        assert np.linalg.norm(term.array.values) <= term.bound.l2
        assert np.abs(term.array.values).sum() <= term.bound.l1


def test_nobody_changes_rows_that_were_made():
    for rows in (FRAME.rows(ROWS), FRAME.rows(ROWS).clipped(1.0), Rows(np.ones((2, 2)), -20, 1.0)):
        with pytest.raises(ValueError, match="read-only"):
            rows.integers[:] = 2.0**40


@pytest.mark.parametrize("name", ["batch_clipped", "batch_is_there", "batch_class"])
def test_a_bound_for_all_that_a_client_has_is_not_one_for_a_batch(name):
    with pytest.raises(RuntimeError, match="marked with finishes"):
        reply_to(getattr(Wrong, name).asked(frame=FRAME))


def test_what_a_view_makes_longer_is_clipped():
    question = Wrong.total.asked(view=Wrong.longer.asked(frame=FRAME))
    for row in ROWS:
        (reply,) = reply_to(question, row[None])
        assert np.linalg.norm(reply.values) == pytest.approx(4.0, rel=1e-6)
        assert np.linalg.norm(reply.values) <= 4.0


def test_a_view_returns_rows_and_nothing_else():
    with pytest.raises(
        TypeError, match="'nothing_of_ours' returns SimpleNamespace; it must return Rows"
    ):
        reply_to(Wrong.total.asked(view=Wrong.nothing_of_ours.asked(frame=FRAME)))


@pytest.mark.parametrize(
    ("view", "reason"), [("more", "more than one vector"), ("narrower", "depends on the rows")]
)
def test_a_view_that_makes_more_rows_or_a_radius_of_them_is_refused(view, reason):
    with pytest.raises(RuntimeError, match=reason):
        reply_to(Wrong.total.asked(view=getattr(Wrong, view).asked(frame=FRAME)))


def test_no_rows_are_answered_with_zeros():
    (reply,) = reply_to(Wrong.total.asked(frame=FRAME), np.empty((0, 2)))
    assert reply.integers.tolist() == [0, 0]


@pytest.mark.parametrize("entries", [2, 14, 40, 2**18])
def test_answers_are_the_same_in_batches_of_any_size(monkeypatch, entries):
    expected = [reply.integers.tolist() for reply in reply_to(Wrong.total.asked(frame=FRAME))]
    monkeypatch.setattr(engine, "BATCH_ENTRIES", entries)
    assert [
        reply.integers.tolist() for reply in reply_to(Wrong.total.asked(frame=FRAME))
    ] == expected


@pytest.mark.parametrize("rows", [ROWS, ROWS[:0]], ids=["rows", "no rows"])
def test_terms_in_so_fine_a_unit_that_a_sum_could_overflow_are_refused_whatever_the_rows(rows):
    assert reply_to(Wrong.fine.asked(largest=2**40), rows)
    with pytest.raises(OverflowError, match="choose a coarser unit"):
        reply_to(Wrong.fine.asked(largest=2**41), rows)


@pytest.mark.parametrize("radius", [-1.0, 0.0, math.nan, math.inf, -math.inf])
def test_rows_are_clipped_to_a_radius_alone(radius):
    """With a radius of -1, rows of norm 1 had a bound of -1, and joined to counts one of 0."""
    with pytest.raises(ValueError, match="must be positive and finite"):
        FRAME.rows(ROWS).clipped(radius)


@pytest.mark.parametrize("n_labels", [0, 1, 2, 5])
def test_each_row_has_one_offset(n_labels):
    """One row that a mask leaves had been repeated for as many labels as an author gave."""
    rows = FRAME.rows(ROWS)[np.arange(len(ROWS)) == 3]
    if n_labels == len(rows):
        assert (
            len(
                rows.offsets(
                    np.zeros((2, rows.integers.shape[1])), np.zeros(n_labels, dtype=int), 1.0
                )
            )
            == 1
        )
        return
    with pytest.raises(ValueError, match=r"labels of the shape \(.*\) for 1 rows; give each one"):
        rows.offsets(np.zeros((2, rows.integers.shape[1])), np.zeros(n_labels, dtype=int), 1.0)
