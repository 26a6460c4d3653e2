"""Rows, strategies and parameters from what a user typed, in the command or in a run config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data import (
    FederatedRows,
    Table,
    hold_out_server_rows,
    load_dataset,
    partition,
    read_folder,
    read_table,
)
from flower_fedclust.data.files import rows_in_order
from flower_fedclust.engine import ProtocolStrategy
from flower_fedclust.names import look_up
from flower_fedclust.numerics.checks import check_integer
from flower_fedclust.registry import accepted_parameters, find, make_strategy
from flower_fedclust.strategies.common.description import check_schema
from flower_fedclust.strategies.common.preparation import with_schema
from flower_fedclust.tables.schema import Schema

#: How many server rows per cluster are taken out of a data set if none are given: as in appendix G.1 of FedDP-KMeans.
SERVER_ROWS_PER_CLUSTER = 20


@dataclass(frozen=True)
class ReadRows:
    """The rows that a choice names, as they were read: before any is drawn, and before they are spread over clients."""

    rows: Table | FederatedRows  #: A folder's files have their clients already.
    public: Table | None = None  #: The file of public rows.

    def labels(self) -> list[NDArray[Any]] | None:
        """Return the true classes, in one or more arrays; None if they are unknown."""
        if isinstance(self.rows, Table):
            return None if self.rows.labels is None else [self.rows.labels]
        return self.rows.labels


@dataclass(frozen=True)
class RowsChoice:
    """A choice of rows, and of how they are spread over clients."""

    dataset: str | None = None  #: A data set by name; give either this or ``data``.
    data: str | Path | None = None  #: A file, or a folder with one file per client.
    label_column: str | None = None  #: Columns of the file.
    client_column: str | None = None  #: Columns of the file.
    columns: tuple[str, ...] | None = None  #: The columns to cluster by; all others by default.
    partition: str = "iid"  #: How the rows are spread; see :func:`flower_fedclust.data.partition`.
    n_clients: int = 10
    server_data: str | Path | None = None  #: A file of public rows.
    n_server_rows: int | None = None  #: How many rows are drawn as public rows if there are none.
    seed: int = 0  #: The seed of the data set and the partition.
    schema: Schema | None = None  #: What is public of the columns; rows are then read as they are.
    id_column: str | None = None  #: The column that tells rows apart, for files of labels.

    def __post_init__(self) -> None:
        check_integer("seed", self.seed, at_least=0)
        check_integer("n_clients", self.n_clients, at_least=1)

    @property
    def gives_server_rows(self) -> bool:
        """Whether the user gave public rows, or said how many rows to make public."""
        return self.server_data is not None or self.n_server_rows is not None

    @property
    def is_folder(self) -> bool:
        """Whether the rows are in a folder with one file per client."""
        return self.data is not None and Path(self.data).is_dir()

    @property
    def partition_name(self) -> str:
        """How the rows are spread over clients, in one word."""
        return "column" if self.client_column is not None else "files" if self.is_folder else self.partition

    def read(self) -> ReadRows:
        """Return the rows as they are in data set, file or folder.

        Raises
        ------
        ValueError
            If neither or both of data set and file were given, or if their content cannot be used.
        FileNotFoundError
            If a file does not exist.
        """
        if (self.dataset is None) == (self.data is None):
            raise ValueError("give either a data set or a file of your own: --dataset NAME or --data FILE.")
        public = None
        selected: dict[str, Any] = {"label_column": self.label_column, "columns": self.columns}
        selected["raw"] = self.schema is not None
        if self.server_data is not None:
            public = read_table(self.server_data, **selected)
        if self.data is None:
            assert self.dataset is not None
            return ReadRows(load_dataset(self.dataset, random_state=self.seed), public)
        selected["id_column"] = self.id_column
        if self.is_folder:
            return ReadRows(read_folder(self.data, **selected), public)
        return ReadRows(read_table(self.data, client_column=self.client_column, **selected), public)

    def load(self, n_clusters: int, *, needs_server_rows: bool, read: ReadRows | None = None) -> FederatedRows:
        """Return the rows of the clients and, if they are needed, those of the server.

        Parameters
        ----------
        n_clusters : int
        needs_server_rows : bool
        read : ReadRows, optional
            What :meth:`read` returned, perhaps on another machine; by default it is read now.

        Raises
        ------
        ValueError
            If neither or both of data set and file were given, or if their content cannot be used.
        FileNotFoundError
            If a file does not exist.
        """
        found = read or self.read()
        must_draw = needs_server_rows and self.server_data is None
        if isinstance(found.rows, FederatedRows):
            if must_draw:
                raise ValueError(
                    "public rows cannot be drawn from a folder with one file per client; give them with --server-data."
                )
            rows = found.rows
        else:
            table = found.rows
            if must_draw:
                n_rows = self.n_server_rows or SERVER_ROWS_PER_CLUSTER * n_clusters
                table = hold_out_server_rows(table, n_rows, random_state=self.seed)
            rows = partition(table, self.partition_name, n_clients=self.n_clients, random_state=self.seed)
        if (public := found.public) is None:
            return rows
        same = self.schema is not None or rows.columns is None
        public_rows = public.rows if same else rows_in_order(public, rows.columns or (), "the clients")
        return replace(rows, server_rows=public_rows, server_rows_origin=f"They were read from {self.server_data}.")

    def n_classes(self, read: ReadRows | None = None) -> int | None:
        """Return how many true classes all rows have, public ones included; None if they are unknown."""
        labels = (read or self.read()).labels()
        return None if labels is None else len(np.unique(np.concatenate(labels)))


def make_strategies(
    names: Sequence[str],
    parameters: Mapping[str, Any],
    server_rows: Any,
    server_rows_origin: str = "",
    *,
    were_given: bool = True,
    schema: Schema | None = None,
    describe: bool = False,
) -> list[ProtocolStrategy]:
    """Return strategies that share parameters; each takes those that it accepts.

    Parameters
    ----------
    names : sequence of str
    parameters : mapping of str to anything
        Each must be accepted by at least one of the strategies.
    server_rows : ndarray or None
    server_rows_origin : str
        Their origin, for the privacy report.
    were_given : bool, default=True
        Whether the user gave the server rows. Others, which were made public for a strategy that needs them, do not go
        to one that can do without.
    schema : Schema, optional
        What is public of the columns of the clients' tables.
    describe : bool, default=False
        Whether clusters are described in the units of the tables.

    Raises
    ------
    ValueError
        If a strategy is named twice, if it or a parameter does not exist, if a parameter is not valid, or if server
        rows are missing.
    """
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{twice} is named twice; name it once.")
    accepted = {name: accepted_parameters(name) for name in names}
    known = dict.fromkeys(sorted(set().union(*accepted.values())))
    for parameter in parameters:
        look_up(parameter, known, f"parameter of {', '.join(names)} called")
    strategies = []
    check_schema(describe, schema)
    for name in names:
        own = {key: value for key, value in parameters.items() if key in accepted[name]}
        needs_rows = needs_server_rows([name])
        if needs_rows or ("server_data" in accepted[name] and were_given and server_rows is not None):
            if server_rows is None:
                raise ValueError(f"{name} needs public rows at the server; give a file of them with server-data.")
            own["server_data"] = server_rows
        strategy = make_strategy(name, **own)
        strategy.server_data_origin = server_rows_origin
        if schema is None:
            strategy.check_complete()
        strategies.append(strategy if schema is None else with_schema(strategy, schema, describe=describe))
    return strategies


def needs_server_rows(names: Sequence[str], n_server_rows: int | None = None) -> bool:
    """Tell whether rows must be made public if no file has any: where a strategy cannot do without them.

    Where a number of them was asked for, it suffices that a strategy can use them.
    """
    required = any("server_data" in find(name).strategy.required_parameters() for name in names)
    return required or (n_server_rows is not None and can_use_server_rows(names))


def can_use_server_rows(names: Sequence[str]) -> bool:
    """Tell whether any of the strategies can use public rows."""
    return any("server_data" in accepted_parameters(name) for name in names)
