"""Answers about the outcomes of the rows of each cluster: how many rows had an event, and when.

Each row is counted in at most one place, and its place follows from that row and the message alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine.rounds import Sent, answers
from flower_fedclust.engine.table_answers import (
    ByTableRow,
    TableRows,
    agreed_schema,
    preparation_from,
)
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.terms import Term
from flower_fedclust.models.base import Model
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.tables.schema import Column, Schema
from flower_fedclust.tables.survival import time_sums

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]

CONTENT = "numbers of rows of each cluster by the bin of their time, with and without the event"


class ByRowsOutcome(ByTableRow):
    """An answer by row about outcomes: its function only sees the columns with each row's times and event."""

    def columns_of(self, schema: Schema) -> Mapping[str, Column]:
        """Return the columns that record a row's outcome."""
        return schema.of_outcome


def _survival(table: TableRows, ends: Floats, *arrays: Floats, model: str, floor: int = 0) -> Term:  # noqa: ARG001
    """Count the rows of each cluster by time and event, for a model that finds the clusters of rows in exact integers.

    ``floor`` is the smallest number of rows that the server will print, for the policies of sites.
    """
    fitted = Model.named(model).from_arrays(arrays)
    if fitted.exact_points is None or table.preparation is None:
        raise DataError(f"the clusters of a model called '{model}' cannot be found exactly.")
    clusters = fitted.exact_clusters(table.rows.integers, table.rows.exponent)
    return time_sums(
        table.columns, checked_ends(ends, table.preparation.schema), clusters, fitted.n_clusters
    )


_survival.__name__ = "survival"
survival = ByRowsOutcome(_survival, {"survival": Sent(CONTENT)})


@answers(f"{CONTENT}, for a model whose clusters cannot be found exactly")
def plain_survival(
    client: Any,
    described: Bytes,
    ends: Floats,
    *arrays: Floats,
    model: str,
    floor: int = 0,  # noqa: ARG001
) -> GridArray:
    """Count the rows of each predicted cluster by time and event; no privacy mechanism covers these counts.

    ``floor`` is as for :func:`survival`.
    """
    source, rows = client.source, client.data.rows
    preparation = preparation_from(described.tobytes())
    fitted = Model.named(model).from_arrays(arrays)
    schema = agreed_schema(client, preparation.schema)
    columns = schema.values(source.table, owner=source.owner, wanted=schema.of_outcome)
    return time_sums(
        columns, checked_ends(ends, schema), fitted.predict(rows), fitted.n_clusters
    ).array


def checked_ends(ends: Floats, schema: Schema) -> Floats:
    """Return the ends of bins in a message; a DataError unless they are among the schema's, and include its last."""
    bins = next((column.bins for column in schema.of_outcome.values() if column.bins), ())
    agreed = np.array(bins)
    if not len(agreed) or ends.ndim != 1 or not len(ends) or not np.isin(ends, agreed).all():
        raise DataError("the message counts rows in other bins of time than the run's schema.")
    if not (np.diff(ends) > 0).all() or ends[-1] != agreed[-1]:
        raise DataError("the bins of time in a message must ascend to the schema's last one.")
    return ends
