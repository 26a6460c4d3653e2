"""Containers of rows: a table in one place, and the rows of several clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data.subjects import Subjects

#: The name of row numbers in files of labels, if rows have no ids.
ROW = "row"


def _check_length(label: str, length: int, expected: int, of: str) -> None:
    """Raise a ValueError unless ``length`` is ``expected``; the message names what there should be one of for each."""
    if length != expected:
        raise ValueError(f"There are {length} {label} for {expected} {of}; give one for each.")


# eq=False, because arrays are compared entry by entry, so that a generated __eq__ would only raise an error.
@dataclass(frozen=True, eq=False, repr=False)
class FederatedRows:
    """Rows of several clients, as simulate() and the apps take them.

    Parameters
    ----------
    clients : list of ndarray of shape (n_i, n_columns), or of pandas.DataFrame
        The rows of each client. DataFrames are raw tables, which need a schema.
    labels : list of ndarray of shape (n_i,), or None
        The true classes, if they are known. No strategy sees them; they only score the result.
    names : list of str
        One name for each client.
    columns : list of str, optional
        The names of the columns.
    server_rows : ndarray of shape (n_server_rows, n_columns), optional
        Public rows that the server has.
    server_rows_origin : str, default ""
        Where the server rows come from, in one sentence, for the privacy report.
    row_ids : list of ndarray of shape (n_i,), optional
        The ids of each client's rows, which identify rows in files of labels; by default the row numbers, from 0.
    id_column : str, default="row"
        The name of the ids.
    server_row_ids : ndarray of shape (n_server_rows,), optional
        The ids of the server rows, if they were taken from the clients' table.
    empty : sequence of str, default=()
        The files without rows, whose clients are therefore left out.
    subjects : list of Subjects, optional
        Which rows are one person's, at each client.

    Raises
    ------
    ValueError
        If there is not one name for each client, or not one label for each row.
    """

    clients: list[Any]
    labels: list[NDArray[Any]] | None
    names: list[str]
    columns: list[str] | None = None
    server_rows: NDArray[np.float64] | None = None
    server_rows_origin: str = ""
    row_ids: list[NDArray[Any]] | None = None
    id_column: str = ROW
    server_row_ids: NDArray[Any] | None = None
    empty: Sequence[str] = ()
    subjects: list[Subjects] | None = None

    def __repr__(self) -> str:
        n_rows = sum(map(len, self.clients))
        n_columns = self.clients[0].shape[1] if self.clients else 0
        return f"FederatedRows({n_rows:,} rows of {n_columns:,} columns at {len(self.clients):,} clients)"

    def __post_init__(self) -> None:
        _check_length("names", len(self.names), len(self.clients), "clients")
        if self.labels is not None:
            _check_length("arrays of labels", len(self.labels), len(self.clients), "clients")
            for name, rows, labels in zip(self.names, self.clients, self.labels, strict=True):
                _check_length("labels", len(labels), len(rows), f"rows of {name}")


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Rows in one place, which are not yet divided among clients.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_columns), or pandas.DataFrame
        A DataFrame is a raw table, which needs a schema.
    labels : ndarray of shape (n_rows,), optional
        The true classes, if they are known.
    owners : ndarray of shape (n_rows,), optional
        The client to which each row belongs, if the data says so.
    columns : list of str, optional
        The names of the columns.
    server_rows : ndarray of shape (n_server_rows, n_columns), optional
        Public rows for the server; they are not included in ``rows``.
    server_rows_origin : str, default ""
        Where the server rows come from, in one sentence, for the privacy report.
    name : str, default "the table"
        The name of this table in messages.
    row_ids : ndarray of shape (n_rows,), optional
        The ids of the rows, which identify rows in files of labels; by default the row numbers, from 0.
    id_column : str, default="row"
        The name of the ids.
    server_row_ids : ndarray of shape (n_server_rows,), optional
        The ids of the server rows, if they were taken from this table.
    labelings : ndarray of shape (n_rows, n_labelings), optional
        Several columns of true classes, instead of ``labels``: integers from 1, and 0 for rows that are not scored.
        Only comparisons score results with them. Partitions by class use the first column.
    subjects : Subjects, optional
        Which rows are one person's.

    Raises
    ------
    ValueError
        If there is not one label, one owner or one id for each row.
    """

    rows: Any
    labels: NDArray[Any] | None = None
    owners: NDArray[Any] | None = None
    columns: list[str] | None = None
    server_rows: NDArray[np.float64] | None = None
    server_rows_origin: str = ""
    name: str = "the table"
    row_ids: NDArray[Any] | None = None
    id_column: str = ROW
    server_row_ids: NDArray[Any] | None = None
    labelings: NDArray[np.intp] | None = None
    subjects: Subjects | None = None

    @property
    def row_ids_or_numbers(self) -> NDArray[Any]:
        """The ids of the rows, or the row numbers if there are no ids."""
        return np.arange(len(self.rows)) if self.row_ids is None else self.row_ids

    def __repr__(self) -> str:
        return f"Table({self.name}: {len(self.rows):,} rows of {self.rows.shape[1]:,} columns)"

    def __post_init__(self) -> None:
        for label, values in (
            ("labels", self.labels),
            ("owners", self.owners),
            ("ids", self.row_ids),
            ("labelings", self.labelings),
            ("subjects", self.subjects),
        ):
            if values is not None:
                _check_length(label, len(values), len(self.rows), f"rows of {self.name}")
