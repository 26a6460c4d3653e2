"""What every client answers about what became of the rows of each cluster: how many had an event, and when.

Each row is counted in at most one place, and its place follows from that row and the message alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine.rounds import Sent, answers
from flower_fedclust.engine.table_answers import ByTableRow, TableRows, agreed_schema, preparation_from
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
    """An answer by row about what became of the rows: the function sees the time, the event and the time of the row."""

    def columns_of(self, schema: Schema) -> Mapping[str, Column]:
        """Return the columns about what became of a row."""
        return schema.of_outcome


def _survival(table: TableRows, ends: Floats, *arrays: Floats, model: str, floor: int = 0) -> Term:  # noqa: ARG001
    """Count the rows of each cluster of a model, which is an exact choice for each row, by their time and event.

    ``floor`` is the smallest number of rows that the server will print, for the policies of sites.
    """
    found = Model.named(model).from_arrays(arrays)
    if found.exact_points is None or table.preparation is None:
        raise DataError(f"the clusters of a model called '{model}' cannot be found exactly.")
    clusters = found.exact_clusters(table.rows.integers, table.rows.exponent)
    return time_sums(table.columns, checked_ends(ends, table.preparation.schema), clusters, found.n_clusters)


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
    """Count the rows of each cluster, as the model predicts it, by their time and event; no mechanism covers them.

    ``floor`` is as for :func:`survival`.
    """
    source, rows, preparation = client.source, client.data.rows, preparation_from(described.tobytes())
    found = Model.named(model).from_arrays(arrays)
    schema = agreed_schema(client, preparation.schema)
    columns = schema.values(source.table, owner=source.owner, wanted=schema.of_outcome)
    return time_sums(columns, checked_ends(ends, schema), found.predict(rows), found.n_clusters).array


def checked_ends(ends: Floats, schema: Schema) -> Floats:
    """Return the ends of bins from a message; a DataError unless they are some of the schema's, with the last one."""
    bins = next((column.bins for column in schema.of_outcome.values() if column.bins), ())
    agreed = np.array(bins)
    if not len(agreed) or ends.ndim != 1 or not len(ends) or not np.isin(ends, agreed).all():
        raise DataError("the message counts rows in other bins of time than the run's schema.")
    if not (np.diff(ends) > 0).all() or ends[-1] != agreed[-1]:
        raise DataError("the bins of time in a message must ascend to the schema's last one.")
    return ends
