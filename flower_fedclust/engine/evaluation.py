"""What the clients' evaluation of a model comes to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from flwr.common import EvaluateRes
from numpy.typing import NDArray

from flower_fedclust.engine.ranges import MOST_ROWS
from flower_fedclust.engine.replies import ReplyError
from flower_fedclust.numerics.metrics import add_tables, agreement
from flower_fedclust.outside import parse_json

Table = dict[str, NDArray[np.int64]]

#: Letters of a table of classes by clusters: enough for thousands of both.
_LONGEST_TABLE = 2**26


@dataclass(frozen=True)
class Evaluation:
    """What one client found of a model on its rows."""

    cost: float
    n_rows: int
    table: Table | None  #: Of classes by clusters, where the client has labels.


def checked_evaluation(name: str, res: EvaluateRes, *, n_clusters: int | None) -> Evaluation | None:
    """Return what a client found; None without a number of clusters, where nothing was asked.

    Raises
    ------
    ReplyError
        If the table, the cost or the number of rows is not what any rows can give.
    """
    if n_clusters is None:
        return None
    n_rows, cost = res.num_examples, res.loss
    if type(n_rows) is not int or not 1 <= n_rows <= MOST_ROWS or not isinstance(cost, (int, float)) or not cost >= 0:
        raise ReplyError(f"client {name} sent a number of rows, or a cost, that no rows can have.")
    table: Table | None = None
    if "table" in res.metrics:
        given = parse_json(str(res.metrics["table"]), _LONGEST_TABLE)
        table = {str(one): np.array(counts) for one, counts in given}
        for row in table.values():
            if row.shape != (n_clusters,) or row.dtype.kind != "i" or row.min() < 0 or row.max() > n_rows:
                raise ReplyError(f"client {name} sent a table of classes that no rows can have.")
        if sum(int(row.sum()) for row in table.values()) != n_rows or len(table) != len(given):
            raise ReplyError(f"client {name} sent a table of classes that does not fit its number of rows.")
    return Evaluation(float(cost), n_rows, table)


def evaluation_of(found: Sequence[Evaluation]) -> dict[str, float]:
    """Return the cost, the number of rows, and how well the clusters agree with the classes; {} if nobody answered."""
    if not found:
        return {}
    cost = sum(one.cost for one in found)
    scores = {"cost": cost} if math.isfinite(cost) else {}
    scores["n_rows"] = float(sum(one.n_rows for one in found))
    tables = [one.table for one in found if one.table is not None]
    return scores | agreement(add_tables(tables)) if tables else scores
