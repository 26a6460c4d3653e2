"""Answers about tables, which every client has: histograms of columns, and sums that describe clusters.

Each answer is a sum over rows, and what a row adds follows from that row and the message alone. A row is in one bin of
each histogram, and in one cluster.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data.batches import Batch
from flower_fedclust.engine.by_row import ByRow
from flower_fedclust.engine.rounds import Question, Scalar, Sent, answers
from flower_fedclust.engine.wire import as_bytes, as_text
from flower_fedclust.exact.capacity import with_rows
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.terms import Term, at, powers, side_by_side
from flower_fedclust.models.base import Model
from flower_fedclust.models.tables import LONGEST_PREPARATION
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.outside import parse_json
from flower_fedclust.tables.cluster_sums import cluster_sums
from flower_fedclust.tables.histograms import (
    N_EXPONENT_BINS,
    bins_of,
    exponent_bins,
    on_interval,
    places_in,
)
from flower_fedclust.tables.preparation import Preparation, measured
from flower_fedclust.tables.schema import Column, Schema

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]
Columns: TypeAlias = Iterable[tuple[str, Column, Floats]]

#: The keys under which a client remembers the schema from its enrolment, and the preparation.
SCHEMA, PREPARATION = "schema", "preparation"

#: The most bins of a histogram.
MOST_BINS = 2**20


@lru_cache(maxsize=16)
def preparation_from(content: bytes) -> Preparation:
    """Read a preparation from the bytes of a message."""
    return Preparation.from_dict(parse_json(content, LONGEST_PREPARATION))


@lru_cache(maxsize=16)
def _schema_from(content: bytes) -> Schema:
    return Schema.from_json(content.decode())


def preparation_as_bytes(preparation: Preparation) -> Bytes:
    """Return a preparation as an array for a message."""
    return as_bytes(json.dumps(preparation.to_dict()))


# Answers by row whose function sees a table.


@dataclass(frozen=True)
class TableRows:
    """A batch of rows of a table, as the function of an answer sees them."""

    #: Name, column and values (NaN for gaps) of each column that the message describes.
    columns: Columns
    rows: Rows  #: The prepared rows, in the frame of the question.
    preparation: Preparation | None  #: From the message.


class ByTableRow(ByRow):
    """An answer by row about a table.

    The first array of a question is the schema of the columns that the function needs, or a preparation with that
    schema. The remaining arrays and arguments go to the function.
    """

    sees_tables = True

    def asked(
        self,
        *arrays: Any,
        frame: Frame | None = None,
        view: Question | None = None,
        **arguments: Scalar,
    ) -> Question:
        """Return the question; ``arrays`` begins with a schema or, if the question has a frame, a preparation."""
        described, *others = arrays
        if isinstance(described, Preparation):
            described = preparation_as_bytes(described)
        elif isinstance(described, Schema):
            described = as_bytes(described.to_json())
        return super().asked(described, *others, frame=frame, view=view, **arguments)

    def terms(self, question: Question, values: Any) -> tuple[Term, ...]:
        """Return the terms of a batch of rows."""
        columns, prepared = values
        rows = Rows(prepared, 0, 1.0) if question.frame is None else question.frame.rows(prepared)
        table = TableRows(columns, rows, _described(question)[1])
        with with_rows(question.most_rows):
            term = self.function(table, *question.arrays[1:], **question.arguments)
        return term if isinstance(term, tuple) else (term,)

    def columns_of(self, schema: Schema) -> Mapping[str, Column]:
        """Return the columns of a message's schema that the function sees."""
        return schema.used

    def taken(self, values: Any, part: NDArray[np.intp] | slice) -> Any:
        """Return some rows of the columns, and of the prepared rows."""
        columns, prepared = values
        return [(name, column, entries[part]) for name, column, entries in columns], prepared[part]

    def no_rows(self, question: Question) -> tuple[Columns, Floats]:
        """Return the columns of a table without rows, and no prepared rows."""
        wanted = self.columns_of(_described(question)[0])
        no_values = [(name, column, np.empty(0)) for name, column in wanted.items()]
        return no_values, super().no_rows(question)

    def reply_of(self, client: Any, question: Question) -> list[GridArray]:
        """Return a client's arrays from its table, which is read batch by batch."""
        data = client.source if question.frame is None else client.data
        described = _described(question)[0]
        schema, wanted = agreed_schema(client, described), self.columns_of(described)

        def seen(batch: Batch) -> tuple[Columns, Floats]:
            columns = schema.values(
                batch.table, owner=batch.owner, first_row=batch.first_row, wanted=wanted
            )
            prepared = np.empty((len(batch), 0)) if question.frame is None else batch.rows
            return list(columns) if question.rows_per_subject else columns, prepared

        return self.reply(question, data, seen)


def by_table_row(content: str) -> Callable[[Callable[..., Term]], ByTableRow]:
    """Mark a function of :class:`TableRows` and of the message as an answer that sends one array."""
    return lambda function: ByTableRow(function, {function.__name__: Sent(content)})


def _described(question: Question) -> tuple[Schema, Preparation | None]:
    """Return a question's schema and, if it has a frame and so is about prepared rows, its preparation."""
    if not question.arrays or question.arrays[0].dtype != np.uint8:
        raise ValueError("a message about a table begins with a schema or a preparation, as bytes.")
    content = question.arrays[0].tobytes()
    if question.frame is None:
        return _schema_from(content), None
    preparation = preparation_from(content)
    return preparation.schema, preparation


def agreed_schema(client: Any, asked: Schema) -> Schema:
    """Return the schema of a client's enrolment; a DataError if the message describes columns differently."""
    kept = client.recall(SCHEMA)
    agreed = None if kept is None else Schema.from_json(as_text(kept[0]))
    wanted = asked.read
    if agreed is None or list(wanted.items()) != [
        item for item in agreed.read.items() if item[0] in wanted
    ]:
        raise DataError(
            f"client {client.name}: the message is about other columns than the run's schema."
        )
    return agreed


# The answers.


@by_table_row("numbers of rows by sign and binary exponent, for each column without public bounds")
def exponents(table: TableRows) -> Term:
    """Return a histogram of the signs and binary exponents of each column."""
    counts = [
        at(exponent_bins(measured(values, column)), N_EXPONENT_BINS)
        for _, column, values in table.columns
    ]
    words = f"a row is in one bin of each of {len(counts)} histograms"
    return side_by_side(counts, words=words).reshaped(len(counts), N_EXPONENT_BINS)


@by_table_row("histograms of columns, with a bin for gaps; sums of values and of their squares")
def histograms(table: TableRows, edges: Floats) -> Term:
    """Return the histograms of the columns one after the other, then the sums of the columns whose mean is needed.

    ``edges`` has the ascending edges of the bins of each measured column; a bin for gaps follows them. A listed column
    has a bin for each of its values instead.
    """
    if edges.ndim != 2 or not 1 < edges.shape[1] <= MOST_BINS or not (np.diff(edges) > 0).all():
        raise DataError(f"edges must ascend in each column, and be from 2 to {MOST_BINS}.")
    counts, sums = [], []
    for (_, column, values), ends in zip(table.columns, edges, strict=True):
        if column.categories is not None:
            counts.append(at(places_in(values, len(column.categories)), len(column.categories) + 1))
            continue
        entries = measured(values, column)
        counts.append(at(bins_of(entries, ends), len(ends)))
        if column.needs_mean:
            sums.append(powers(on_interval(entries, float(ends[0]), float(ends[-1]))).reshaped(2))
    words = f"a row is in one bin of each of {len(counts)} histograms"
    words += f", and adds at most 1 to each of {2 * len(sums)} sums" if sums else ""
    return side_by_side([*counts, *sums], words=words)


@by_table_row(
    "sums over the rows of each cluster: their number and values, and how many have which category or are in which "
    "part of a range"
)
def description(table: TableRows, *arrays: Floats, model: str, floor: int = 0) -> Term:  # noqa: ARG001
    """Return the sums of the rows of each cluster, for a model that finds the clusters of rows in exact integers.

    ``floor`` is the smallest number of rows that the server will print, for the policies of sites.
    """
    fitted = Model.named(model).from_arrays(arrays)
    if fitted.exact_points is None or table.preparation is None:
        raise DataError(f"the clusters of a model called '{model}' cannot be found exactly.")
    clusters = fitted.exact_clusters(table.rows.integers, table.rows.exponent)
    return cluster_sums(table.columns, table.preparation, clusters, fitted.n_clusters)


@answers("sums over the rows of each cluster, for a model whose clusters cannot be found exactly")
def plain_description(
    client: Any,
    described: Bytes,
    *arrays: Floats,
    model: str,
    floor: int = 0,  # noqa: ARG001
) -> GridArray:
    """Return the sums of the rows of each predicted cluster; no privacy mechanism covers these sums.

    ``floor`` is as for :func:`description`.
    """
    source, rows = client.source, client.data.rows
    preparation = preparation_from(described.tobytes())
    fitted = Model.named(model).from_arrays(arrays)
    columns = agreed_schema(client, preparation.schema).values(
        source.table, owner=source.owner, wanted=preparation.schema.used
    )
    return cluster_sums(columns, preparation, fitted.predict(rows), fitted.n_clusters).array


@answers()
def prepare(client: Any, preparation: Bytes) -> None:
    """Keep the preparation: from now on the client's rows are the prepared rows.

    Its schema must be the enrolment's, except for columns that the run leaves out. No rows are read, so
    success does not depend on them.
    """
    try:
        received = preparation_from(preparation.tobytes())
    except ValueError as error:
        raise DataError(f"client {client.name}: {error}") from None
    schema = client.recall(SCHEMA)
    agreed = None if schema is None else Schema.from_json(as_text(schema[0]))
    if (
        agreed is None
        or agreed.without(agreed.used.keys() - received.schema.used.keys()) != received.schema
    ):
        raise DataError(
            f"client {client.name}: the preparation has another schema than the run began with."
        )
    client.remember(PREPARATION, [preparation])
