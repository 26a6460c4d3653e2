"""Clients as people have them: a list of arrays, tables by name, ClientData, or what a reader of files gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from flower_fedclust.data.federation import FederatedRows, Table
from flower_fedclust.data.frames import as_frame
from flower_fedclust.engine import ClientData
from flower_fedclust.engine.roster import LONGEST_NAME, is_name

#: What simulate() takes as clients.
Clients = Sequence[Any] | Mapping[str, Any] | FederatedRows


def clients_of(
    clients: Clients,
    labels: Sequence[ArrayLike] | Mapping[str, ArrayLike] | None = None,
    names: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    *,
    raw: bool = False,
) -> dict[str, ClientData]:
    """Return the rows of clients by name, checked, with their columns in one order.

    Parameters
    ----------
    clients, labels, names, columns
        As :func:`flower_fedclust.simulate` takes them.
    raw : bool, default=False
        Whether tables stay as they are, for a schema.

    Raises
    ------
    ValueError
        If rows, labels, names or columns cannot be right.
    """
    row_ids, id_column = None, None
    if isinstance(clients, FederatedRows):
        labels = clients.labels if labels is None else labels
        names = clients.names if names is None else names
        columns = clients.columns if columns is None else columns
        row_ids, id_column = clients.row_ids, clients.id_column
        parts = list(clients.clients)
    elif isinstance(clients, Mapping):
        if names is not None:
            raise ValueError("the keys of clients are the names of the clients; leave names out.")
        names, parts = [str(name) for name in clients], list(clients.values())
    elif isinstance(clients, Table) or as_frame(clients, "clients") is not None:
        raise ValueError("clients is one table; give one for each client, as {name: table}.")
    elif isinstance(clients, np.ndarray) and clients.ndim == 2:
        raise ValueError("clients is one array of rows; give one for each client, as {name: rows}.")
    else:
        parts = list(clients)
    if isinstance(labels, Mapping):
        labels = {str(name): part for name, part in labels.items()}
        labels = [labels[name] for name in names or () if name in labels]
    if labels is not None and len(labels) != len(parts):
        raise ValueError(f"labels has {len(labels)} entries for {len(parts)} clients; give one a client.")
    called = [str(name) for name in (range(len(parts)) if names is None else names)]
    if len(called) != len(parts) or len(set(called)) != len(called):
        raise ValueError(f"names must be {len(parts)} different names, one a client.")
    for index, name in enumerate(called):
        if not is_name(name):
            raise ValueError(f"the name of client {index} must be 1 to {LONGEST_NAME} printable letters; rename it.")
    if (labels is not None or columns is not None) and any(isinstance(part, ClientData) for part in parts):
        raise ValueError("labels or columns are given, and clients are ClientData, which have their own.")
    found = {
        name: part
        if isinstance(part, ClientData)
        else ClientData(
            part,
            None if labels is None else labels[index],
            columns,
            owner=f"client {name}",
            row_ids=None if row_ids is None else row_ids[index],
            id_column=id_column,
            raw=raw,
        )
        for index, (name, part) in enumerate(zip(called, parts, strict=True))
    }
    if raw:
        return found
    return {name: data.like(next(iter(found.values()))) for name, data in found.items()}
