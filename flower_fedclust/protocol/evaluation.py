"""What the clients' evaluation of a model comes to."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np
from flwr.common import EvaluateRes
from numpy.typing import NDArray

from flower_fedclust.numerics.metrics import add_tables, agreement
from flower_fedclust.protocol.replies import ReplyError

Table = dict[str, NDArray[np.int64]]


def checked_table(name: str, res: EvaluateRes, n_clusters: int) -> Table | None:
    """Return the table of classes by clusters that a client sent, if it sent one.

    Raises
    ------
    ReplyError
        If the table, the cost or the number of rows is not what any rows can give.
    """
    n_rows = res.num_examples
    if type(n_rows) is not int or n_rows < 1 or not isinstance(res.loss, (int, float)) or not res.loss >= 0:
        raise ReplyError(f"client {name} sent a number of rows, or a cost, that no rows can have.")
    if "table" not in res.metrics:
        return None
    try:
        given = json.loads(str(res.metrics["table"]))
        table: Table = {str(one): np.array(counts, dtype=np.int64) for one, counts in given}
        sound = all(row.shape == (n_clusters,) and row.min() >= 0 for row in table.values())
    except (ValueError, TypeError, OverflowError):
        sound = False
    if not sound or sum(int(row.sum()) for row in table.values()) != n_rows:
        raise ReplyError(f"client {name} sent a table of classes that does not fit its number of rows.")
    return table


def evaluation_of(replies: Sequence[EvaluateRes], tables: Sequence[Table]) -> dict[str, float]:
    """Return the cost, the number of rows, and how well the clusters agree with the classes; of no reply, nothing."""
    if not replies:
        return {}
    cost = float(sum(res.loss for res in replies))
    found = ({"cost": cost} if math.isfinite(cost) else {}) | {
        "n_rows": float(sum(res.num_examples for res in replies))
    }
    return found | agreement(add_tables(tables)) if tables else found
