"""Answers by row in which what a row adds depends on more than the row are found by check_strategy and by audits."""

import numpy as np
import pytest
from checking_toys import with_method

from flower_fedclust import authoring
from flower_fedclust.checking import Subject, audit, strategy_checks
from flower_fedclust.checking.by_row import (
    findings_by_row,
    findings_of_large_tables,
    findings_of_sizes,
)
from flower_fedclust.engine import GridArray, Sum
from flower_fedclust.exact import terms
from flower_fedclust.exact.rows import Rows

CHECK = {check.name: check for check in strategy_checks()}["what_a_row_adds_follows_from_that_row"]


def sound(rows):
    return authoring.total(rows)


def less_the_mean(rows):
    mean = rows.values.mean(axis=0) if len(rows) else 0.0
    return authoring.vectors(rows.values - mean, rows.radius)


def by_place(rows):
    return authoring.vectors(rows.values * (1 + np.arange(len(rows)) % 2)[:, None], rows.radius)


def first_of_a_batch(rows):
    return authoring.vectors(
        np.where(np.arange(len(rows)) == 0, 9.0, 0.0)[:, None] + 0 * rows.values, rows.radius
    )


def beyond_the_first(rows):
    beyond = rows.integers[:, 0] > rows.integers[:1, 0]
    return authoring.vectors(rows.values * beyond[:, None], rows.radius)


def one_row_many_times(rows):
    first = np.zeros(len(rows), dtype=np.intp)
    return authoring.total(Rows(rows.integers[first], rows.exponent, rows.radius, rows.norm))


def sums_so_far(rows):
    return authoring.total(
        Rows(np.cumsum(rows.integers, axis=0), rows.exponent, rows.radius, rows.norm)
    )


def large_batches(rows):
    """Rows of a batch of more than 20 are twice as long, as far as the bound allows."""
    return authoring.vectors(rows.values * (2.0 if len(rows) > 20 else 1.0), rows.radius)


def every_37th(rows):
    """Every 37th row of a batch is twice as long, as far as the bound allows."""
    return authoring.vectors(
        rows.values * (1 + (np.arange(len(rows)) % 37 == 36))[:, None], rows.radius
    )


def beyond_2048(rows):
    """Rows beyond the first 2,048 of a batch do not count."""
    return authoring.vectors(rows.values * (np.arange(len(rows)) < 2048)[:, None], rows.radius)


FAULTS = (
    less_the_mean,
    by_place,
    first_of_a_batch,
    beyond_the_first,
    one_row_many_times,
    sums_so_far,
    large_batches,
)


def strategy_of(function):
    """Return a strategy whose one release is this answer."""
    answer = authoring.by_row(sum="what the rows add")(function)
    client = type("Client", (authoring.FrameClient,), {function.__name__: answer})

    class OfRows(authoring.ClippedStrategy):
        client_type = client
        n_protocol_rounds = 1

        def parts(self):
            return {"sum": authoring.Part(answer, 1.0)}

        def protocol(self):
            frame = authoring.Frame(np.zeros(self.n_columns), self.max_norm)
            (total,) = yield Sum(answer.asked(frame=frame), parts=["sum"])
            shift = float(np.clip(np.sum(total), -9, 9))
            return authoring.KMeansModel(shift + np.eye(self.n_clusters, self.n_columns))

    return OfRows(2, epsilon=8.0, max_norm=1.0)


def test_an_answer_that_is_a_sum_of_what_rows_add_is_sound():
    subject = Subject(strategy_of(sound))
    CHECK(subject)
    assert findings_of_sizes(subject.run, subject.names[0]) == ([], [])


@pytest.mark.parametrize("function", FAULTS)
def test_the_suite_finds_what_does_not_follow_from_the_row(function):
    with pytest.raises(AssertionError, match=rf"'{function.__name__}' depends on .*[.]$"):
        CHECK(Subject(strategy_of(function)))


def test_the_order_of_rows_is_found_apart_from_batches():
    subject = Subject(strategy_of(by_place))
    found = findings_by_row(subject.run, subject.names[0])
    assert f"the answer to '{by_place.__name__}' depends on the order of its rows" in found


@pytest.mark.parametrize("function", [every_37th, beyond_2048, large_batches])
def test_tables_of_many_rows_are_compared_with_their_parts(function):
    subject = Subject(strategy_of(function))
    found, left = findings_of_sizes(subject.run, subject.names[0])
    assert found == [
        f"the answer to '{function.__name__}' of 4096 rows is not the sum of the answers to their parts"
    ]
    assert left == []
    assert findings_of_sizes(subject.run, subject.names[0], deadline=0.0)[1]


KINDS = {
    "at": lambda rows: authoring.at((rows.integers[:, 0] > 0).astype(np.intp), 2, rows),
    "counts": lambda rows: authoring.at((rows.integers[:, 0] > 0).astype(np.intp), 2),
    "total": authoring.total,
    "products": authoring.products,
    "squares": authoring.squares,
    "weighted": lambda rows: authoring.weighted(np.abs(rows.values), rows),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_sum_is_the_sum_of_its_parts(kind):
    def summed(rows):
        return KINDS[kind](rows)

    subject = Subject(strategy_of(summed))
    CHECK(subject)
    assert findings_of_sizes(subject.run, subject.names[0]) == ([], [])


@pytest.mark.parametrize("function", [by_place, pytest.param(every_37th, marks=pytest.mark.long)])
def test_an_audit_calls_it_broken(function):
    found = audit(strategy_of(function), runs=10)
    assert found.verdict == "broken"
    assert any(f"the answer to '{function.__name__}'" in one for one in found.broken)


def test_an_answer_that_fails_for_some_rows_is_named():
    def failing(rows):
        if (np.abs(rows.values) > 0.9).any():
            raise RuntimeError("a row is long")
        return authoring.total(rows)

    subject = Subject(strategy_of(failing))
    assert findings_by_row(subject.run, subject.names[0]) == [
        "the answer to 'failing' ends with RuntimeError for some rows"
    ]


def test_terms_that_are_no_sums_over_rows_are_found():
    def rounded_together(rows):
        whole = terms.total(rows)
        return terms.enforced(
            np.trunc(whole.integers / 3.0).astype(np.int64), *whole.form[1:], whole.n_rows
        )

    with pytest.raises(AssertionError, match="the batches in which rows are read"):
        CHECK(Subject(strategy_of(rounded_together)))


# Answers about a whole client, which are not taken apart: neighbors of many rows.


def whole_client(change):
    """Return a toy whose clients' sums are computed after this change of the clipped rows."""

    def sums(self, *, max_norm):
        rows = self._rows(max_norm)
        changed_rows = change(rows.integers)
        return GridArray(changed_rows.sum(axis=0), rows.exponent), np.array(len(changed_rows))

    return Subject(with_method("sums", sums)(2))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: np.vstack([x, x[36::37]]),
        lambda x: np.vstack([x, x[2048:]]),
        lambda x: x * (1 + (len(x) > 4095)),
    ],
    ids=["every 37th row twice", "rows beyond 2,048 twice", "all of 4,096 rows twice"],
)
def test_neighbors_of_many_rows_are_compared_for_answers_of_a_whole_client(change):
    subject = whole_client(change)
    found, left = findings_of_large_tables(subject.run, subject.names[0], *subject.neighboring)
    assert any("'sum of the rows' moves by " in one for one in found)
    assert left == []
    assert findings_of_large_tables(
        subject.run, subject.names[0], *subject.neighboring, deadline=0.0
    )[1]


def test_neighbors_of_many_rows_do_not_move_what_is_sound():
    subject = whole_client(lambda x: x)
    assert findings_of_large_tables(subject.run, subject.names[0], *subject.neighboring) == ([], [])
