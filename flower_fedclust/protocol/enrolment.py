"""Who takes part: the names and columns that clients give when they enrol, checked before anything rests on them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from flower_fedclust.protocol.replies import ReplyError, client_order

#: A name is as long at most: it becomes a file's, and stands in every table.
LONGEST_NAME = 100


def checked_enrolment(node: str, metrics: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and the columns (as JSON: their number, or their names) that a node gives.

    Parameters
    ----------
    node : str
        Flower's id of it.
    metrics : mapping
        Of its answer.

    Raises
    ------
    ReplyError
        If one is missing, or is not what a client of this package gives.
    """
    name = metrics.get("client")
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= LONGEST_NAME:
        raise ReplyError(f"client {node} gave no name, or none of at most {LONGEST_NAME} printable letters.")
    try:
        columns = json.loads(str(metrics.get("columns")))
    except ValueError:
        columns = None
    is_number = type(columns) is int and columns > 0
    are_names = isinstance(columns, list) and columns and all(isinstance(column, str) for column in columns)
    if not (is_number or are_names):
        raise ReplyError(f"client {name} did not say which columns it has.")
    return name, json.dumps(columns)


def of_equal_names(names: Mapping[str, str]) -> dict[str, str]:
    """Return why nodes cannot take part that call themselves alike: who is who cannot be known.

    Parameters
    ----------
    names : mapping of str to str
        By node.

    Returns
    -------
    dict of str to str
        A sentence for each such node.
    """
    nodes = defaultdict[str, list[str]](list)
    for node in sorted(names, key=client_order):
        nodes[names[node]].append(node)
    return {
        node: f"{len(alike)} clients call themselves '{name}' (nodes {', '.join(alike)}), so that none of them takes "
        "part; give every client a name of its own."
        for name, alike in nodes.items()
        if len(alike) > 1
        for node in alike
    }
