"""Turn what a user gives into strategies and clients.

Users give a strategy by its name, as a class or as an object, and rows as arrays, tables, files, folders, data sets or
ClientData objects. :func:`read_inputs` turns all of these into :class:`Inputs`: strategies as objects, and clients by
name. ``fc.simulate``, ``fc.plan``, ``fc.audit``, ``fc.run_app``, ``fedclust run`` and the app of ``flwr run`` use it.
``fc.compare`` takes the same inputs, and makes a :class:`RowsChoice` for each trial, which reads its own rows.

Everything that needs no rows (names, parameters, files) is checked before any row is read.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.data import (
    FederatedRows,
    Table,
    hold_out_server_rows,
    load_dataset,
    partition,
    read_folder,
    read_table,
)
from flower_fedclust.data.csv_files import Decimals
from flower_fedclust.data.files import (
    ENDINGS,
    decimals_in,
    read_by_client,
    read_rows,
    rows_in_order,
    table_of,
)
from flower_fedclust.data.frames import as_frame, is_table
from flower_fedclust.data.identities import check_spellings
from flower_fedclust.engine import ClientData, ProtocolStrategy
from flower_fedclust.engine.inline import run_inline
from flower_fedclust.engine.progress import quiet
from flower_fedclust.engine.roster import LONGEST_NAME, is_name
from flower_fedclust.exact.grid import MOST_ROWS
from flower_fedclust.names import look_up, some
from flower_fedclust.numerics.checks import check_integer
from flower_fedclust.numerics.validity import numbers_of
from flower_fedclust.registry import accepted_parameters, find, make_strategy
from flower_fedclust.strategies.common.tables import check_schema, with_schema
from flower_fedclust.tables.floors import FLOOR
from flower_fedclust.tables.schema import Schema

#: A strategy: an object, a class, a name in the registry, or "module:Class".
Strategy = ProtocolStrategy | type[ProtocolStrategy] | str

#: The forms of clients that :func:`~flower_fedclust.simulate` takes.
Clients = (
    Sequence[Any] | Mapping[str, Any] | FederatedRows | Table | Callable[..., Any] | str | Path
)

#: How many rows for each cluster are taken out of a data set as server rows by default (FedDP-KMeans, appendix G.1).
SERVER_ROWS_PER_CLUSTER = 20


# Strategies.


def strategy_name(strategy: object) -> str:
    """Return the name of a strategy that is given by name or as a class.

    Raises a TypeError for anything else.
    """
    if isinstance(strategy, str):
        return strategy.strip()
    if isinstance(strategy, type) and issubclass(strategy, ProtocolStrategy):
        entries = [entry.name for entry in vars(strategy).get("entries", ()) if not entry.fixed]
        known = entries[:1] if strategy.__module__.startswith("flower_fedclust.") else []
        return known[0] if known else f"{strategy.__module__}:{strategy.__qualname__}"
    raise TypeError(
        f"strategy is {strategy!r}; give a strategy such as KFED(n_clusters=4), its class, or its name."
    )


def strategies_of(strategies: Strategy | Sequence[Strategy]) -> list[Strategy]:
    """Return one or several strategies as a list; a text may hold several names, separated by commas."""
    flat: list[Strategy] = []
    for strategy in strategies if isinstance(strategies, (list, tuple)) else [strategies]:
        if isinstance(strategy, str):
            flat += [part.strip() for part in strategy.split(",")]
        else:
            if not isinstance(strategy, ProtocolStrategy):
                strategy_name(strategy)  # raises a TypeError unless it is a strategy
            flat.append(strategy)  # type: ignore[arg-type]
    return flat


@dataclass(frozen=True)
class RunSettings:
    """Settings of a run that are not parameters of a strategy.

    A setting has the same name as the attribute of the strategy that it sets.

    Parameters
    ----------
    wait_for_clients : float, default=60.0
        How long to wait for clients to appear, in seconds.
    expected_clients : int, optional
        How many clients to wait for during that time.
    server_columns : sequence of str, optional
        The column names of the server's rows, if known.
    share_model : bool, default=False
        Whether every client is sent the model at the end.
    secure : bool, default=False
        Whether the server sees only sums over the clients.
    noise_seed : int, optional
        Makes the noise repeatable, for experiments only; also the random_state of a strategy that
        has none.
    """

    wait_for_clients: float = 60.0
    expected_clients: int | None = None
    server_columns: Sequence[str] | None = None
    share_model: bool = False
    secure: bool = False
    noise_seed: int | None = None

    def give(self, strategy: ProtocolStrategy) -> None:
        """Set these attributes on a strategy that has not begun to run."""
        for setting in fields(self):
            setattr(strategy, setting.name, getattr(self, setting.name))
        if strategy.random_state is None:
            strategy.random_state = self.noise_seed


def make_strategies(
    strategies_given: Sequence[Strategy],
    parameters: Mapping[str, Any],
    server_rows: Any,
    server_rows_origin: str = "",
    *,
    were_given: bool = True,
    schema: Schema | None = None,
    describe: bool | float = False,
    floor: int = FLOOR,
    settings: RunSettings | None = None,
) -> list[Any]:
    """Return strategies as objects, with the settings of the run.

    Parameters
    ----------
    strategies_given : sequence of strategies
        Strategies as names, classes or objects.
    parameters : mapping
        Parameters for the strategies that are given by name or class: each gets the ones that it accepts.
    server_rows : array-like or None
        Public rows for the strategies that need them, or can use them.
    server_rows_origin : str
        Where these rows come from, for the privacy report.
    were_given : bool, default=True
        Whether the user gave the server rows. If not, only strategies that cannot do without them
        get them.
    schema : Schema, optional
        The public facts about the columns. With a schema, the returned strategies are copies that take tables.
    describe, floor
        As for :func:`~flower_fedclust.simulate`.
    settings : RunSettings, optional
    """
    check_strategies(strategies_given, parameters)
    check_schema(describe, schema)
    strategies = []
    for entry in strategies_given:
        strategy: Any = entry
        if not isinstance(entry, ProtocolStrategy):
            strategy = _made(entry, parameters, server_rows, were_given=were_given)
            strategy.server_data_origin = server_rows_origin
            if schema is None:  # with a schema, the preparation of tables finds the missing bounds
                strategy.check_complete()
        strategies.append(
            strategy
            if schema is None
            else with_schema(strategy, schema, describe=describe, floor=floor)
        )
        if settings is not None:
            settings.give(strategies[-1])
    return strategies


def check_strategies(strategies: Sequence[Strategy], parameters: Mapping[str, Any]) -> None:
    """Raise an error for a strategy that is named twice, or for a parameter that no strategy takes."""
    names = [strategy for strategy in strategies if not isinstance(strategy, ProtocolStrategy)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{twice} is named twice; name it once.")
    if parameters and strategies and not names:
        raise TypeError(
            f"There is no argument '{next(iter(parameters))}'; parameters of a strategy can only be given here "
            "together with its name or class."
        )
    known = dict.fromkeys(sorted(set().union(*map(accepted_parameters, names))))
    for parameter in parameters:
        look_up(
            parameter, known, f"parameter of {', '.join(find(name).name for name in names)} called"
        )


def _made(
    name: str | type[ProtocolStrategy],
    parameters: Mapping[str, Any],
    server_rows: Any,
    *,
    were_given: bool,
) -> ProtocolStrategy:
    """Make a strategy by name or class; it gets server rows if it needs them, or can use some that the user gave."""
    accepted = accepted_parameters(name)
    taken = {key: value for key, value in parameters.items() if key in accepted}
    needs_rows = needs_server_rows([name])
    if needs_rows or ("server_data" in accepted and were_given and server_rows is not None):
        if server_rows is None:
            raise ValueError(
                f"{find(name).name} needs public rows at the server; give them as server_data."
            )
        taken["server_data"] = server_rows
    return make_strategy(name, **taken)


def needs_server_rows(strategies: Sequence[Strategy], n_server_rows: int | None = None) -> bool:
    """Tell whether public rows are needed at the server.

    They are needed if a strategy requires them; or if a strategy can use them, and the user asked for ``n_server_rows``
    of them.
    """
    names = [strategy for strategy in strategies if not isinstance(strategy, ProtocolStrategy)]
    required = any("server_data" in find(name).strategy.required_parameters() for name in names)
    return required or (
        n_server_rows is not None
        and any("server_data" in accepted_parameters(name) for name in names)
    )


# Strategies and clients.


@dataclass(frozen=True)
class Inputs:
    """The strategies and the rows that a user gave, in the form that a run needs."""

    strategies: list[Any]  #: Strategies as objects; with a schema, copies that take tables.
    #: The rows: FederatedRows, or a sequence or a mapping with a table, an array or a file for each client.
    source: Any
    schema: Schema | None
    about: Mapping[str, Any]  #: Labels, names and columns, as arguments of :func:`clients_of`.

    @property
    def strategy(self) -> Any:
        """The strategy, if there is only one."""
        (strategy,) = self.strategies
        return strategy

    @property
    def rows(self) -> FederatedRows | None:
        """The rows, if they are FederatedRows; None if the user gave each client its own rows."""
        return self.source if isinstance(self.source, FederatedRows) else None

    @cached_property
    def clients(self) -> dict[str, ClientData]:
        """The clients by name."""
        raw = self.schema is not None or any(
            getattr(strategy, "tables", None) is not None for strategy in self.strategies
        )
        most_rows = max(
            (getattr(strategy, "most_rows", MOST_ROWS) for strategy in self.strategies),
            default=MOST_ROWS,
        )
        return clients_of(self.source, **self.about, raw=raw, most_rows=most_rows)

    def prepared(self) -> tuple[Any, list[NDArray[np.float64]]]:
        """Return the strategy and each client's rows, both for rows of numbers.

        With a schema, the tables are prepared without noise, and the bounds and public rows of the strategy are
        replaced by ones for prepared rows.
        """
        if self.schema is None:
            return self.strategy, [data.rows for data in self.clients.values()]
        strategy = copy.copy(self.strategy)
        strategy.tables = None
        if not self.clients:
            return strategy, []
        (pooled,) = make_strategies(
            ["pooled-kmeans"], {"n_clusters": 2, "random_state": 0}, None, schema=self.schema
        )
        with quiet(logging.ERROR, "flwr"):
            run_inline(pooled, self.clients, [None] * len(self.clients))
        preparation = pooled.outcome.model.preparation
        for name, bound in (
            ("max_norm", preparation.radius),
            ("max_l1_norm", preparation.l1_radius),
        ):
            if name in strategy.parameter_names() and getattr(strategy, name) is None:
                setattr(strategy, name, bound)
        for name in ("server_data", "init"):
            if is_table(public_table := getattr(strategy, name, None)):
                setattr(strategy, name, preparation.transform(public_table, owner=name))
        return strategy, [
            preparation.transform(data.table, owner=data.owner) for data in self.clients.values()
        ]


def read_inputs(
    strategies: Strategy | Sequence[Strategy],
    clients: Any,
    parameters: Mapping[str, Any] | None = None,
    *,
    labels: Sequence[ArrayLike] | Mapping[str, ArrayLike] | None = None,
    names: Sequence[str] | None = None,
    describe: bool | float = False,
    floor: int = FLOOR,
    settings: RunSettings | None = None,
    several: bool = False,
    **how: Any,
) -> Inputs:
    """Turn what a user gives into strategies and clients.

    Everything that needs no rows is checked before any row is read.

    Parameters
    ----------
    strategies : ProtocolStrategy, class, str, or sequence of them
        A text may hold several names with commas between.
    clients : RowsChoice, or as for :func:`~flower_fedclust.simulate`
        The rows; ``RowsChoice()`` if there are no rows in this process.
    parameters : mapping, optional
        For strategies that are given by name or class.
    labels, names : optional
        As for :func:`~flower_fedclust.simulate`.
    describe : bool or float, default=False
    floor : int, default=10
    settings : RunSettings, optional
    several : bool, default=False
        Whether there may be several strategies, or none.
    **how
        How rows are read, as fields of :class:`RowsChoice`; only if ``clients`` is not a RowsChoice itself.
    """
    choice = clients if isinstance(clients, RowsChoice) else RowsChoice.of(clients, **how)
    check_schema(describe, choice.schema)
    strategies_listed, own_parameters = strategies_of(strategies), dict(parameters or {})
    if len(strategies_listed) != 1 and not several:
        raise ValueError(
            "strategy names several strategies; give one, or compare them with fc.compare."
        )
    check_strategies(strategies_listed, own_parameters)
    server_rows = (
        own_parameters.pop("server_data", None)
        if any(not isinstance(strategy, ProtocolStrategy) for strategy in strategies_listed)
        else None
    )
    wants = server_rows is None and needs_server_rows(strategies_listed, choice.n_server_rows)
    rows = choice.load(_most_clusters(own_parameters), needs_server_rows=wants)
    origin, were_given = "", True
    if server_rows is None and isinstance(rows, FederatedRows):
        server_rows, origin = rows.server_rows, rows.server_rows_origin
        were_given = choice.gives_server_rows
        if settings is not None:
            settings = replace(settings, server_columns=rows.columns)
    instances = make_strategies(
        strategies_listed,
        own_parameters,
        server_rows,
        origin,
        were_given=were_given,
        schema=choice.schema,
        describe=describe,
        floor=floor,
        settings=settings,
    )
    about: dict[str, Any] = {"labels": labels, "names": names}
    if not choice.is_read:  # rows from files and data sets already have their columns and classes
        about |= {
            "columns": choice.columns,
            "label_column": choice.label_column,
            "subject_column": choice.subject_column,
        }
    return Inputs(instances, rows, choice.schema, about)


def _most_clusters(parameters: Mapping[str, Any]) -> int:
    """Return the largest number of clusters that a run may find.

    It is 1 if ``n_clusters`` is not valid; the strategy then raises the error.
    """
    try:
        return numbers_of(parameters.get("n_clusters", 1))[1]
    except ValueError:
        return 1


# Clients.


def is_file(name: str) -> bool:
    """Tell whether a text names a file or a folder, not a data set."""
    is_path = "/" in name and ":" not in name
    return is_path or Path(name).suffix in ENDINGS or Path(name).exists()


def dataset_name(dataset: object) -> str:
    """Return the name of a data set, given by name or as a function ("module:function")."""
    if isinstance(dataset, str):
        return dataset.strip()
    if not hasattr(dataset, "__qualname__"):
        raise TypeError(f"{dataset!r} has no name; give data sets by name or as functions.")
    return f"{dataset.__module__}:{dataset.__qualname__}"


def clients_of(
    clients: Clients,
    labels: Sequence[ArrayLike] | Mapping[str, ArrayLike] | None = None,
    names: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    *,
    raw: bool = False,
    label_column: str | None = None,
    most_rows: int = MOST_ROWS,
    subject_column: str | None = None,
) -> dict[str, ClientData]:
    """Return clients by name, as ClientData whose columns have one order; raw tables are not changed.

    Parameters
    ----------
    clients : as for :func:`~flower_fedclust.simulate`
    labels, names, columns : optional
        As for :func:`~flower_fedclust.simulate`.
    raw : bool, default=False
        Whether the clients have raw tables, for a strategy with a schema.
    label_column, subject_column : str, optional
        The names of the columns with true classes and with subjects, in tables and files.
    most_rows : int
        The public bound on the number of rows of a client.

    Raises
    ------
    ValueError
        If names, labels or columns do not fit the clients.
    """
    row_ids, id_column, subjects = None, None, None
    if isinstance(clients, FederatedRows):
        labels = clients.labels if labels is None else labels
        names = clients.names if names is None else names
        columns = clients.columns if columns is None else columns
        row_ids, id_column, subjects = clients.row_ids, clients.id_column, clients.subjects
        subject_column = subject_column if subjects is None else None
        parts = list(clients.clients)
    elif isinstance(clients, Mapping):
        if names is not None:
            raise ValueError("the keys of clients are the names of the clients; leave names out.")
        names, parts = [str(name) for name in clients], list(clients.values())
    elif isinstance(clients, np.ndarray) and clients.ndim == 2:
        raise ValueError("clients is one array of rows; give one for each client, as {name: rows}.")
    else:
        parts = _parts_of(clients)
    if isinstance(labels, Mapping):
        labels = {str(name): part for name, part in labels.items()}
        labels = [labels[name] for name in names or () if name in labels]
    if labels is not None and len(labels) != len(parts):
        raise ValueError(
            f"labels has {len(labels)} arrays but there are {len(parts)} clients; pass one per client."
        )
    called = _checked_names(range(len(parts)) if names is None else names, len(parts))
    of_data = [part for part in parts if isinstance(part, ClientData)]
    if of_data and (labels is not None or columns is not None):
        raise ValueError("labels or columns are given, and clients are ClientData, with their own.")
    if subject_column is not None and any(client_data.subjects is None for client_data in of_data):
        raise ValueError(
            "subject_column is given, and clients are ClientData without it; give it to ClientData."
        )
    paths = [Path(part) for part in parts if isinstance(part, (str, Path))]
    roles = [name for name in (label_column, subject_column) if name is not None]
    decimals = decimals_in(paths, roles, thousands=True)
    by_name: dict[str, ClientData] = {}
    for index, (name, part) in enumerate(zip(called, parts, strict=True)):
        if isinstance(part, ClientData):
            by_name[name] = part
            continue
        rows, classes, persons = _read_part(
            part, f"client {name}", columns, label_column, subject_column, decimals
        )
        by_name[name] = ClientData(
            rows,
            classes if labels is None else labels[index],
            columns,
            owner=f"client {name}",
            row_ids=None if row_ids is None else row_ids[index],
            id_column=id_column,
            raw=raw,
            most_rows=most_rows,
            subjects=persons if subjects is None else subjects[index],
        )
    return (
        by_name
        if raw
        else {name: data.like(next(iter(by_name.values()))) for name, data in by_name.items()}
    )


def _checked_names(names: Iterable[object], n_clients: int) -> list[str]:
    """Return the clients' names as texts; raise a ValueError unless they are printable and all different."""
    called = [str(name) for name in names]
    if len(called) != n_clients or len(set(called)) != len(called):
        raise ValueError(f"names must be {n_clients} different names, one per client.")
    check_spellings(called, "clients")
    for index, name in enumerate(called):
        if not is_name(name):
            raise ValueError(
                f"the name of client {index} must have 1 to {LONGEST_NAME} printable letters; rename it."
            )
    return called


def why_not_its_unit(
    strategy: ProtocolStrategy, names: Sequence[str], without: Sequence[str]
) -> str:
    """Return why the clients' rows do not fit the strategy's privacy unit (record or subject); "" if they do.

    Parameters
    ----------
    strategy : ProtocolStrategy
    names : sequence of str
        The names of the clients.
    without : sequence of str
        The names of the clients that do not say which rows belong to one person.
    """
    if strategy.epsilon is None:
        return ""
    if strategy.privacy_unit == "subject" and without:
        return (
            f"privacy_unit is 'subject', and nothing says which rows of {some(without, 3)} are one person's; name the "
            "subject_column."
        )
    if strategy.privacy_unit == "record" and len(without) < len(names):
        return (
            "subject_column is given, here or by the schema, and privacy_unit is 'record', which protects single rows "
            "of a person; set privacy_unit to 'subject'."
        )
    return ""


def _parts_of(clients: Any) -> list[Any]:
    """Return a list with an entry for each client; for anything else, raise an error that explains the right form."""
    is_grouped = hasattr(clients, "get_group")
    if not is_grouped and not isinstance(clients, Iterable):
        raise _no_clients(clients)
    parts = [] if is_grouped else list(clients)
    are_pairs = all(
        isinstance(part, tuple) and len(part) == 2 and is_table(part[1]) for part in parts
    )
    if is_grouped or (parts and are_pairs):
        raise ValueError(
            "clients is a table that was grouped; give dict(list(table.groupby(...))), or the table itself and its "
            "client_column."
        )
    return parts


def _no_clients(value: object) -> TypeError:
    """Return the error for a value that cannot be clients."""
    return TypeError(
        f"clients is {value!r}; give a table or an array for each client, as {{name: rows}}."
    )


def _read_part(
    part: Any,
    owner: str,
    columns: Sequence[str] | None,
    label_column: str | None,
    subject_column: str | None,
    decimals: Mapping[Path, Decimals],
) -> tuple[Any, Any, Any]:
    """Return one client's rows, true classes and subjects; the last two are None unless its file or table has them.

    A path is read, a table is divided by the roles of its columns, and anything else is returned as
    it is. ``decimals`` says how numbers are written in the files of all clients.
    """
    names = [name for name in (label_column, subject_column) if name is not None]
    if isinstance(part, (str, Path)):
        part = read_rows(
            part,
            label_column=label_column,
            subject_column=subject_column,
            columns=columns,
            raw=True,
            decimals=decimals.get(Path(part)),
        )
    elif names and (frame := as_frame(part, owner, names=names)) is not None:
        roles = {"label": label_column, "client": None, "id": None, "subject": subject_column}
        part = table_of(frame, owner, roles, columns, raw=True)
    elif subject_column is not None:
        raise ValueError(
            f"{owner}: subject_column is given, and its rows are no table; give ClientData with subjects."
        )
    return (
        (part.rows, part.labels, part.subjects) if isinstance(part, Table) else (part, None, None)
    )


def federated_rows(by_name: Mapping[str, ClientData], *, raw: bool = False) -> FederatedRows:
    """Return clients by name as FederatedRows, for a comparison."""
    data = list(by_name.values())
    labels: list[Any] = [client_data.labels for client_data in data]
    ids: list[Any] = [client_data.row_ids for client_data in data]
    subjects: list[Any] = [client_data.subjects for client_data in data]
    return FederatedRows(
        clients=[
            client_data.table if raw and client_data.is_in_memory else client_data.source
            for client_data in data
        ],
        labels=None if any(part is None for part in labels) else labels,
        names=list(by_name),
        columns=None if raw or data[0].columns is None else list(data[0].columns),
        row_ids=None if any(part is None for part in ids) else ids,
        id_column=data[0].id_column,
        subjects=None if any(part is None for part in subjects) else subjects,
    )


# Rows, before they are spread over clients.


@dataclass(frozen=True)
class ReadRows:
    """The rows of a :class:`RowsChoice`, before server rows are drawn from them and the rest is spread over clients."""

    rows: Any  #: A Table; or the rows of each client, as FederatedRows or as the user gave them.
    public: Table | None = None  #: The rows of the file of public rows, if there is one.


@dataclass(frozen=True)
class RowsChoice:
    """Which rows to use, and how they are spread over clients.

    A choice of a data set or a file only names rows, so it is small, can be compared with other choices, and can be
    sent to other processes. :meth:`load` reads the rows.
    """

    #: The name of a data set; the path of a file, or of a folder with one file per client; or rows from Python: a
    #: Table, FederatedRows, or a sequence or mapping with an entry for each client. None if there are no rows here.
    source: Any = None
    label_column: str | None = None  #: The file's column of true classes.
    client_column: str | None = None  #: The file's column that names the client of each row.
    columns: Sequence[str] | None = None  #: The columns to cluster by; all others by default.
    #: How rows are spread over clients; see :func:`flower_fedclust.data.partition`.
    partition: str = "iid"
    n_clients: int = 10
    server_data: str | Path | None = None  #: A file of public rows.
    #: How many of the rows to make public server rows, if there are no other public rows.
    n_server_rows: int | None = None
    seed: int = 0  #: The seed of the data set and the partition.
    #: The public facts about the columns. With a schema, rows are read as raw tables.
    schema: Schema | None = None
    id_column: str | None = None  #: The column that identifies rows in files of labels.
    #: The column that says which person a row is about, if a person may have several rows.
    subject_column: str | None = None

    def __post_init__(self) -> None:
        check_integer("seed", self.seed, at_least=0)
        check_integer("n_clients", self.n_clients, at_least=1)
        if self.schema is not None:
            object.__setattr__(self, "subject_column", self.schema.subjects_in(self.subject_column))
            self.schema.check_roles(
                label=self.label_column,
                client=None if isinstance(self.source, Table) else self.client_column,
                id=self.id_column,
                subject=self.subject_column,
            )
        if self.client_column is not None and self.is_folder:
            raise ValueError(
                f"client_column is given, but the files of {self.data} are the clients; leave out client_column."
            )

    @classmethod
    def of(
        cls,
        clients: object,
        *,
        schema: Schema | str | Path | Mapping[str, Any] | None = None,
        seed: int | None = None,
        partition: str | None = None,
        **how: Any,
    ) -> RowsChoice:
        """Return the choice for clients in any form that :func:`~flower_fedclust.simulate` takes.

        Raises a ValueError for a single table or file if neither ``client_column`` nor ``partition`` says which client
        has which rows.
        """
        if clients is None:
            raise _no_clients(clients)
        known = None if schema is None else Schema.of(schema)
        choice = cls(clients, schema=known, seed=seed or 0, partition=partition or "iid", **how)
        if isinstance(clients, (str, Path)) or callable(clients):
            is_path = isinstance(clients, Path) or (isinstance(clients, str) and is_file(clients))
            choice = replace(
                choice, source=Path(str(clients)) if is_path else dataset_name(clients)
            )
            whole = "file" if is_path and not choice.names_folder else None
            frame = None
        else:
            if isinstance(clients, Table) and clients.owners is not None:
                choice = replace(choice, client_column=choice.client_column or "client")
            are_apart = isinstance(clients, (FederatedRows, Mapping))
            names = [] if choice.subject_column is None else [choice.subject_column]
            frame = (
                None
                if are_apart or isinstance(clients, Table)
                else as_frame(clients, "clients", names=names)
            )
            whole = "table" if frame is not None or isinstance(clients, Table) else None
        if whole is not None and choice.client_column is None and partition is None:
            raise ValueError(
                f"clients is one {whole}; name the column that says whose row it is as client_column, or give one "
                f"{whole} for each client, as {{name: {whole}}}."
            )
        if frame is None:
            return choice
        roles = {
            "label": choice.label_column,
            "client": choice.client_column,
            "id": choice.id_column,
            "subject": choice.subject_column,
        }
        return replace(
            choice, source=table_of(frame, "clients", roles, choice.columns, raw=known is not None)
        )

    @property
    def dataset(self) -> str | None:
        """The name of the data set, if it is one."""
        return self.source if isinstance(self.source, str) else None

    @property
    def data(self) -> Path | None:
        """The file or folder, if it is one."""
        return self.source if isinstance(self.source, Path) else None

    @property
    def is_read(self) -> bool:
        """Whether the source of the rows also determines their columns and classes."""
        return isinstance(self.source, (str, Path, Table)) or self.source is None

    @property
    def gives_server_rows(self) -> bool:
        """Whether the user gave public rows, or said how many rows to make public."""
        has_own_rows = (
            isinstance(self.source, FederatedRows) and self.source.server_rows is not None
        )
        return has_own_rows or self.server_data is not None or self.n_server_rows is not None

    @property
    def names_folder(self) -> bool:
        """Whether the rows are in a folder, or would be if it existed."""
        path = self.data
        return path is not None and (
            self.is_folder or not (path.exists() or path.suffix.lower() in ENDINGS)
        )

    @property
    def is_folder(self) -> bool:
        """Whether the rows are in a folder with one file per client."""
        return self.data is not None and self.data.is_dir()

    @property
    def partition_name(self) -> str:
        """How the rows are spread over clients, as a short name for tables of results and for keys of trials."""
        if not self.is_read:
            return "as given"
        return (
            "column"
            if self.client_column is not None
            else "files"
            if self.is_folder
            else self.partition
        )

    def read(self, *, whole: bool = False) -> ReadRows:
        """Return the rows as they are in the data set, file, folder or Python object.

        A large file of several clients is read in batches, unless ``whole`` is set, because server rows will be drawn
        from all rows.
        """
        public = (
            None if self.server_data is None else read_table(self.server_data, **self._selected)
        )
        if self.dataset is not None:
            return ReadRows(load_dataset(self.dataset, random_state=self.seed), public)
        if self.data is None:
            return ReadRows(
                FederatedRows([], None, []) if self.source is None else self.source, public
            )
        selected = {
            **self._selected,
            "id_column": self.id_column,
            "subject_column": self.subject_column,
        }
        if self.names_folder:
            return ReadRows(read_folder(self.data, **selected), public)
        if self.client_column is not None and not whole:
            of_clients = {name: value for name, value in selected.items() if name != "raw"}
            if (spread := read_by_client(self.data, self.client_column, **of_clients)) is not None:
                return ReadRows(spread, public)
        table = read_table(self.data, client_column=self.client_column, **selected)
        if self.schema is not None and self.client_column is None:
            self.schema.check_has_no_clients(table.columns or (), owner=table.name)
        return ReadRows(table, public)

    @property
    def _selected(self) -> dict[str, Any]:
        """The options with which files of rows are read."""
        return {
            "label_column": self.label_column,
            "columns": self.columns,
            "raw": self.schema is not None,
        }

    def load(
        self, n_clusters: int, *, needs_server_rows: bool, read: ReadRows | None = None
    ) -> Any:
        """Return the rows of the clients and, if they are needed, of the server.

        Parameters
        ----------
        n_clusters : int
            The number of clusters, which determines how many rows are made public unless ``n_server_rows`` does.
        needs_server_rows : bool
        read : ReadRows, optional
            The result of an earlier :meth:`read`, if there is one, so that rows are not read again.
        """
        must_draw = needs_server_rows and self.server_data is None
        rows_read = read or self.read(whole=must_draw)
        rows, public = rows_read.rows, rows_read.public
        if isinstance(rows, Table):
            if must_draw:
                n_rows = self.n_server_rows or SERVER_ROWS_PER_CLUSTER * n_clusters
                rows = hold_out_server_rows(rows, n_rows, random_state=self.seed)
            rows = partition(
                rows, self.partition_name, n_clients=self.n_clients, random_state=self.seed
            )
        elif must_draw and self.source is not None and getattr(rows, "server_rows", None) is None:
            raise ValueError(
                "public rows cannot be drawn where each client has its own table; give them as server_data."
            )
        if public is None:
            return rows
        origin = f"They were read from {self.server_data}."
        if not rows.clients:
            return replace(
                rows, columns=public.columns, server_rows=public.rows, server_rows_origin=origin
            )
        same = self.schema is not None or rows.columns is None
        public_rows = (
            public.rows if same else rows_in_order(public, rows.columns or (), "the clients")
        )
        return replace(rows, server_rows=public_rows, server_rows_origin=origin)

    def numbers_of_classes(self, read: ReadRows | None = None) -> tuple[int, ...]:
        """Return how many true classes the rows have: one number for each labeling, () if there are no labels."""
        rows = (read or self.read()).rows
        if isinstance(rows, Table) and rows.labelings is not None:
            return tuple(
                dict.fromkeys(
                    len(np.unique(labeling[labeling > 0])) for labeling in rows.labelings.T
                )
            )
        if rows.labels is None:
            return ()
        return (
            len(np.unique(rows.labels if isinstance(rows, Table) else np.concatenate(rows.labels))),
        )


# Values from text that a user has typed.


def parse_epsilon(text: object) -> float | None:
    """Return epsilon as a number, or None for the text "none"; raise a ValueError for any other text."""
    if str(text).lower() == "none":
        return None
    try:
        return float(str(text))
    except ValueError:
        raise ValueError(
            f"epsilon is '{text}'; it must be a number, or 'none' for no noise."
        ) from None


def parse_value(text: str) -> Any:
    """Return the value of a text on the command line: a number, truth value, None, tuple of numbers, or the text."""
    try:
        value = json.loads(f"[{text}]")
    except json.JSONDecodeError:
        return {"True": True, "False": False, "none": None, "None": None}.get(text, text)
    return value[0] if len(value) == 1 else tuple(value)


def number_of_clusters(text: str) -> Any:
    """Return the value of a text for n_clusters: a number, "auto", or a pair for a range such as "2-12"."""
    if text == "auto":
        return text
    fewest, dash, most = text.partition("-")
    try:
        return (int(fewest), int(most)) if dash else int(text)
    except ValueError:
        raise ValueError(
            f"n-clusters is '{text}'; it must be a number, a range such as 2-12, or 'auto'."
        ) from None


def parsed_parameters(parameters: Iterable[str]) -> dict[str, Any]:
    """Return the parameters in texts of the form "name=value" or "strategy.name=value", as ``--set`` takes them.

    A name may be written with hyphens.
    """
    parsed = {}
    for text in parameters:
        written, equals, value = text.partition("=")
        strategy, dot, parameter = written.rpartition(".")
        name = strategy + dot + parameter.replace("-", "_")
        if not equals:
            raise ValueError(f"--set {text} has no value; write --set name=value.")
        if name in parsed:
            raise ValueError(f"{name} is given twice; leave one of them out.")
        parsed[name] = parse_value(value)
    return parsed
