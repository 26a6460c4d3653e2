"""Reading rows from CSV, Parquet, NumPy, Excel, Stata and SPSS files, and from databases.

A table is read in one of three ways. Small files are read whole (:func:`read_table`). Large ones
are opened, and read in batches in every round of a run (:func:`read_batches`). A large file with
the rows of several clients is first spread over a temporary file for each client
(:func:`read_by_client`). :func:`read_rows` and :func:`read_source` choose.

Columns may have roles: a label, a client, an id or a subject. All others are features. Messages
name the file, the row and the column, and never a value.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data.batches import BATCH_ENTRIES, ArrowPart, Batches, ParquetPart, Part
from flower_fedclust.data.by_client import clients_in, spread
from flower_fedclust.data.cells import LABELS
from flower_fedclust.data.csv_files import (
    CsvPart,
    Decimals,
    agree_on_decimals,
    check_first_line,
    decimals_of,
    read_csv_file,
    rows_above,
)
from flower_fedclust.data.federation import ROW, FederatedRows, Table
from flower_fedclust.data.frames import (
    as_frame,
    as_list,
    check_same_names,
    check_unique,
    is_unnamed,
    number_rows,
)
from flower_fedclust.data.identities import check_spellings, identities
from flower_fedclust.data.subjects import Subjects, subjects_in_batches, subjects_of
from flower_fedclust.names import look_up, some
from flower_fedclust.numerics.checks import DataError, MissingFileError
from flower_fedclust.outside import check_size, machine_memory, read_array, reading

T = TypeVar("T")

#: Files with more bytes than this are read in batches. The size of a .parquet file is the size of its rows as floats,
#: and of other files the size on disk.
MOST_IN_MEMORY = 2**30

#: A file of several clients with more bytes than this (counted as for MOST_IN_MEMORY) is divided into a temporary file
#: for each client.
MOST_TO_SPREAD = 2**28

_ENDINGS_IN_WORDS = (
    ".csv, .tsv, .parquet, .arrow, .feather, .npy, .xlsx, .dta (Stata) or .sav (SPSS)"
)

#: The packages that pandas needs to read some kinds of files; flower-fedclust does not require them.
_NEEDED = {".xlsx": "openpyxl", ".sav": "pyreadstat"}


def read_table(
    path: str | PathLike[str],
    *,
    label_column: str | None = None,
    client_column: str | None = None,
    id_column: str | None = None,
    subject_column: str | None = None,
    columns: Sequence[str] | None = None,
    raw: bool = False,
) -> Table:
    """Read a file of rows.

    Parameters
    ----------
    path : path
        A .csv or .tsv file with a line of column names, a .parquet file, a .npy file of two
        dimensions (its columns are named "0", "1" and so on), an .xlsx file with rows on one sheet,
        or a file of Stata (.dta) or SPSS (.sav). Commas, semicolons, tabs or | separate the fields
        of a .csv file (or what Excel's line "sep=;" says); with semicolons, tabs or quotes, it may
        have decimal commas. Values that all have a label (in Stata and SPSS) are read as their
        labels. Excel needs openpyxl, and SPSS pyreadstat.
    label_column : str, optional
        The column that holds the true classes.
    client_column : str, optional
        The column that says which client a row belongs to.
    id_column : str, optional
        The column with the ids of the rows, which identify rows in files of labels; by default they are the row
        numbers, from 0.
    subject_column : str, optional
        The column that says which person a row is about, if a person may have several rows: text or integers, without
        gaps.
    columns : sequence of str, optional
        The columns to use as features, in this order; by default all except labels, clients, ids
        and subjects.
    raw : bool, default=False
        Whether the features stay a pandas DataFrame, with text and gaps, for a schema.

    Returns
    -------
    Table
        Features as floats (booleans become 0 and 1), or a DataFrame; labels and owners as in the
        file, but integers if all are whole.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ImportError
        If the package that reads such files is not installed.
    ValueError
        If the file cannot be read, a column does not exist, two columns have one name, a feature is
        text, missing or infinite, a label, client or id is missing, or two rows have one id. The
        message names the file, the row (from 0) and every such column, and never a value.
    """
    roles = {
        "label": label_column,
        "client": client_column,
        "id": id_column,
        "subject": subject_column,
    }
    return _read_whole(Path(path), roles, columns, raw=raw)


def _read_whole(
    path: Path,
    roles: Mapping[str, str | None],
    columns: Sequence[str] | None,
    *,
    raw: bool,
    decimals: Decimals | None = None,
) -> Table:
    """Read a file of rows into memory; see :func:`table_of` and :func:`_read_frame` for the parameters."""
    size, memory = _size_of(path), machine_memory()
    if memory / 2 < size < math.inf:
        raise DataError(
            f"{path.name}: its rows take {size / 1e6:,.0f} MB, more than half of this machine's memory, and are read "
            "as a whole; write a file for each client into a folder, where large files are read in batches."
        )
    frame = _read_frame(path, roles, raw=raw, decimals=decimals)
    return table_of(frame, path.name, roles, columns, raw=raw)


def read_query(
    query: str,
    database: str = "",
    *,
    label_column: str | None = None,
    client_column: str | None = None,
    id_column: str | None = None,
    subject_column: str | None = None,
    columns: Sequence[str] | None = None,
    raw: bool = False,
) -> Table:
    """Read the rows that an SQL query returns, from a database or from files.

    Parameters
    ----------
    query : str
        SQL, such as ``SELECT age, dose FROM '/data/visits/*.parquet' WHERE year > 2020``.
    database : str, default=""
        A URL for SQLAlchemy (``postgresql://...``, ``sqlite:////data/visits.db``), or the path of a
        DuckDB file. By default (or with "duckdb://") DuckDB reads the files that the query names.
        All of these need ``flower-fedclust[sql]``.
    label_column, client_column, id_column, subject_column, columns, raw
        As in :func:`read_table`.

    Raises
    ------
    ImportError
        If DuckDB or SQLAlchemy is not installed.
    ValueError
        As in :func:`read_table`, or if the database refuses the query. The database's own message may quote rows and
        passwords, so it is only attached as the cause of the error.
    """
    roles = {
        "label": label_column,
        "client": client_column,
        "id": id_column,
        "subject": subject_column,
    }
    with _database(database, _named(roles)) as ask, _asking(database):
        frame = ask(query)
        if frame is None:
            raise DataError("the query gives no rows; begin it with SELECT.")
    return table_of(frame, "the query", roles, columns, raw=raw)


def read_source(
    data: str | PathLike[str],
    query: str | None = None,
    *,
    most_in_memory: int | None = None,
    **options: Any,
) -> Table:
    """Read the rows of a site: from a file, from a folder of parts or, with a query, from a database.

    Rows of more than ``most_in_memory`` bytes are opened and read in batches. ``options`` are those
    of :func:`read_table`.
    """
    most = MOST_IN_MEMORY if most_in_memory is None else most_in_memory
    if query is not None:
        is_duckdb = "://" not in str(data).removeprefix("duckdb://")
        part = _QueryPart(query, str(data)) if is_duckdb else None
        if part is None or 8 * part.n_rows * len(part.columns) <= most:
            return read_query(query, str(data), **options)
        return read_batches(
            data, query, **{name: value for name, value in options.items() if name != "raw"}
        )
    if "://" in str(data):
        raise DataError("the rows are in a database; say with a query what to read from it.")
    return read_rows(data, most_in_memory=most, **options)


@contextmanager
def _duckdb(database: str, **options: Any) -> Iterator[Any]:
    """Open a DuckDB file, or (for "") a connection that can query files."""
    duckdb = _imported("duckdb")
    if database:
        path = Path(database)
        remedy = f"to query files, name them in the query (FROM '{path.name}'), and give 'duckdb://' as the database"
        with reading(path, "a DuckDB database", remedy, name=path.name, most=2**63):
            connection = duckdb.connect(database, read_only=True, **options)
    else:
        connection = duckdb.connect(**options)
    with connection:
        yield connection


@contextmanager
def _asking(database: str) -> Iterator[None]:
    """Turn an error of the database into one without the database's message, which may quote rows and passwords."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise ValueError(
            f"the query{_called(database)} failed with {type(error).__name__}; run it in the database itself."
        ) from error


@contextmanager
def _database(database: str, names: Collection[str]) -> Iterator[Callable[[str], Any]]:
    """Open a database, and yield a function that takes a query and returns a DataFrame.

    SQLAlchemy opens a URL, and DuckDB anything else. ``names`` are columns with names of rows, clients or classes:
    decimal numbers in them become text.
    """
    database = database.removeprefix("duckdb://")
    if "://" in database:
        import pandas as pd

        sqlalchemy = _imported("sqlalchemy")
        try:
            engine = sqlalchemy.create_engine(database)
            connection = engine.connect()
        except Exception as error:  # the message may quote the URL, and with it a password
            raise DataError(
                f"the database cannot be opened ({type(error).__name__}); check its URL, that its driver is installed, "
                "and that it answers."
            ) from error
        try:
            with connection:
                yield lambda query: as_frame(
                    pd.read_sql(sqlalchemy.text(query), connection), "the query", names=names
                )
        finally:
            engine.dispose()
        return
    with _duckdb(database) as connection:
        yield lambda query: as_frame(connection.sql(query), "the query", names=names)


def _called(database: str) -> str:
    """Return the name of a database file for messages; "" for a URL, which may hold a password."""
    name = Path(database.removeprefix("duckdb://")).name
    return f" of {name}" if name and "://" not in database.removeprefix("duckdb://") else ""


def _imported(module: str, label: str = "a query", install: str = "'flower-fedclust[sql]'") -> Any:
    """Import a module; if it is missing, raise an ImportError that says what needs it and how to install it."""
    try:
        return import_module(module)
    except ImportError:
        raise ImportError(f"{label} needs {module}; pip install {install}.") from None


def table_of(
    frame: Any,
    file: str,
    roles: Mapping[str, str | None],
    columns: Sequence[str] | None,
    *,
    raw: bool,
) -> Table:
    """Return a DataFrame as a :class:`Table`, divided by the roles of its columns.

    Parameters
    ----------
    frame : pandas.DataFrame
    file : str
        The name of the source, for messages.
    roles : mapping of str to str or None
        The names of the columns with labels, clients, ids and subjects, under the keys "label", "client", "id" and
        "subject".
    columns : sequence of str, optional
        The features; by default all columns without a role.
    raw : bool
        Whether the features stay a DataFrame.
    """
    if len(frame) == 0:
        raise DataError(f"{file} has no rows; give at least one.")
    features = _features_of(list(frame.columns), file, roles, columns)
    subject_column = roles.get("subject")
    subjects = (
        None
        if subject_column is None
        else subjects_of(frame[subject_column], f"{file}: column '{subject_column}'")
    )
    named = {
        role: None if name is None else _names_of_rows(frame, name, file, role)
        for role, name in roles.items()
        if role != "subject"
    }
    if named["client"] is not None:
        check_spellings(map(str, np.unique(named["client"])), f"{file}: column '{roles['client']}'")
    ids = named["id"]
    _check_ids(ids, file, roles["id"])
    return Table(
        rows=frame[features] if raw else number_rows(frame[features], file),
        labels=named["label"],
        owners=named["client"],
        columns=features,
        name=file,
        row_ids=ids,
        id_column=roles["id"] or ROW,
        subjects=subjects,
    )


def _check_ids(ids: NDArray[Any] | None, file: str, column: str | None) -> None:
    """Raise a DataError if two rows have the same id."""
    if ids is not None and len(np.unique(ids)) < len(ids):
        raise DataError(
            f"{file}: column '{column}' has one id for several rows; give each row an id of its own."
        )


def _features_of(
    names: Sequence[str], file: str, roles: Mapping[str, str | None], columns: Sequence[str] | None
) -> list[str]:
    """Return the columns to cluster by; raise a DataError if one does not exist or cannot be used.

    Parameters
    ----------
    names : sequence of str
        All columns of the file.
    file : str
        The name of the file, for messages.
    roles : mapping of str to str or None
        The columns with labels, clients, ids and subjects; they cannot be features.
    columns : sequence of str, optional
        The columns that the user chose.
    """
    for name in (*roles.values(), *(() if columns is None else as_list(columns))):
        if name is not None:
            look_up(name, dict.fromkeys(names), f"column in {file} called")
    if columns is None:
        features = [name for name in names if name not in roles.values()]
    else:
        features = as_list(columns)
        check_unique(features, f"the columns chosen of {file}", "name it once")
        for role, name in roles.items():
            if name in features:
                raise DataError(
                    f"{file}: column '{name}' holds the {role}s; it cannot also be a feature."
                )
    chosen = set(features)
    if unnamed := [
        index for index, name in enumerate(names) if name in chosen and is_unnamed(name)
    ]:
        raise DataError(
            f"{file}: column {unnamed[0]} has no name; name it, or write the file without row numbers (index=False)."
        )
    if not features:
        raise DataError(f"{file} has no columns; give at least one.")
    return features


def read_batches(
    data: str | PathLike[str],
    query: str | None = None,
    *,
    label_column: str | None = None,
    id_column: str | None = None,
    subject_column: str | None = None,
    columns: Sequence[str] | None = None,
) -> Table:
    """Open rows that are read batch by batch, in every round of a run, and are never in memory all at once.

    Parameters
    ----------
    data : path
        A .parquet, .csv, .arrow or .feather file, or a folder of such files, which together hold one client's rows, in
        the order of the files' names. Files whose names begin with "." or "_" are not read. With a query, the database
        that DuckDB opens.
    query : str, optional
        SQL for DuckDB, as in :func:`read_query`. Without ORDER BY, DuckDB may give the rows in
        another order each time.
    label_column, id_column, subject_column, columns
        As in :func:`read_table`. Classes, ids, and a number for the subject of each row are read into memory.

    Returns
    -------
    Table
        Its rows are :class:`~flower_fedclust.data.Batches`.

    Raises
    ------
    FileNotFoundError
        If there is no such file or folder.
    ValueError
        If a file cannot be read in batches, a column does not exist, two columns have one name, or
        the parts have other columns than the first one. Entries are checked when they are read.
    """
    parts: list[Part]
    if query is not None:
        name, parts = "the query", [_QueryPart(query, str(data))]
    else:
        path = Path(data)
        name, paths = path.name, _files_in(path) if path.is_dir() else [path]
        parts = [
            _open_part(file_path)
            for file_path in paths
            if path == file_path or file_path.stat().st_size > 0
        ]
    parts = [part for part in parts if part.n_rows]
    if not parts:
        raise DataError(f"{name} has no rows; give at least one.")
    roles = {"label": label_column, "id": id_column, "subject": subject_column}
    agree_on_decimals([part for part in parts if isinstance(part, CsvPart)], _named(roles))
    return _table_in_batches(parts, name, roles, columns)


def _table_in_batches(
    parts: Sequence[Part],
    name: str,
    roles: Mapping[str, str | None],
    columns: Sequence[str] | None,
) -> Table:
    """Return files as a Table whose rows are read in batches; see :func:`table_of` for the parameters."""
    rows = Batches(parts, name, _features_of(parts[0].columns, name, roles, columns))
    read = {
        role: None
        if column is None
        else _names_of_rows(rows.column(column).to_frame(), column, name, role)
        for role, column in roles.items()
        if role in ("label", "id")
    }
    _check_ids(read["id"], name, roles["id"])
    return Table(
        rows=rows,
        labels=read["label"],
        columns=rows.columns,
        name=name,
        row_ids=read["id"],
        id_column=roles["id"] or ROW,
        subjects=_subjects_in(rows, roles["subject"], name),
    )


def _subjects_in(rows: Batches, column: str | None, name: str) -> Subjects | None:
    """Return the subject of each row, from a column that is read in batches; None without such a column."""
    if column is None:
        return None
    batches = (batch.table[column] for batch in rows.select([column]).read(BATCH_ENTRIES))
    return subjects_in_batches(batches, f"{name}: column '{column}'")


def with_rows_of_spreadsheet(reason: str, path: Path) -> str:
    """Add the row numbers that a spreadsheet shows to a message in which rows are counted from 0."""
    rows = [int(row) for row in dict.fromkeys(re.findall(r"\brow (\d+)", reason))]
    if not rows or not path.is_file() or path.suffix.lower() not in (".csv", ".tsv", ".xlsx"):
        return reason
    first = rows_above(path) + 1
    counted = [str(row + first) for row in rows]
    return f"{reason} (In a spreadsheet: row{'s' if len(rows) > 1 else ''} {some(counted)}.)"


def read_by_client(
    path: str | PathLike[str],
    client_column: str,
    *,
    label_column: str | None = None,
    id_column: str | None = None,
    subject_column: str | None = None,
    columns: Sequence[str] | None = None,
) -> FederatedRows | None:
    """Divide a large .parquet, .arrow or .feather file among its clients.

    It is read in batches, into a temporary file for each client. These files are deleted when the returned rows are no
    longer used. Returns None if the file is small, or has too many clients. Parameters are as in :func:`read_table`.
    """
    path = Path(path)
    if (
        path.suffix.lower() not in (".parquet", ".arrow", ".feather")
        or _size_of(path) <= MOST_TO_SPREAD
    ):
        return None
    part = _open_part(path)
    roles = {
        "label": label_column,
        "client": client_column,
        "id": id_column,
        "subject": subject_column,
    }
    features = _features_of(part.columns, path.name, roles, columns)
    clients = clients_in(part, client_column)
    if clients is None:
        return None
    names, codes = clients
    whole, read = Batches([part], path.name, features), {}
    for role in ("label", "id"):
        column = roles[role]
        if column is not None:
            read[role] = _names_of_rows(whole.column(column).to_frame(), column, path.name, role)
    _check_ids(read.get("id"), path.name, id_column)
    rows = [np.flatnonzero(codes == number) for number in range(len(names))]
    ids, subjects = read.get("id"), _subjects_in(whole, subject_column, path.name)
    return FederatedRows(
        clients=list(spread(part, features, names, codes)),
        labels=None
        if label_column is None
        else [read["label"][client_rows] for client_rows in rows],
        names=names,
        columns=features,
        row_ids=rows if ids is None else [ids[client_rows] for client_rows in rows],
        id_column=id_column or ROW,
        subjects=None if subjects is None else [subjects[client_rows] for client_rows in rows],
    )


def _size_of(path: Path) -> float:
    """Return about how many bytes the rows of a file take: see MOST_IN_MEMORY.

    Returns infinity for a folder, and 0 for a file that cannot be read in batches.
    """
    ending = path.suffix.lower()
    if path.is_dir() or ending not in _PARTS:
        return math.inf if path.is_dir() else 0.0
    if ending == ".parquet" and path.is_file() and path.stat().st_size > 0:
        part = ParquetPart(path)
        return 8.0 * int(part.n_rows) * len(part.columns)
    return path.stat().st_size if path.is_file() else 0.0


def read_rows(
    path: str | PathLike[str],
    *,
    most_in_memory: int | None = None,
    decimals: Decimals | None = None,
    **options: Any,
) -> Table:
    """Read a file, or open it to be read in batches if it is large or a folder of parts.

    Takes the same ``options`` as :func:`read_table`. ``decimals`` says how the numbers of a .csv file are written, if
    this was decided with other files; see :func:`decimals_in`.
    """
    path = Path(path)
    roles = {role: options.get(f"{role}_column") for role in ("label", "client", "id", "subject")}
    columns, raw = options.get("columns"), options.get("raw", False)
    if _size_of(path) <= (MOST_IN_MEMORY if most_in_memory is None else most_in_memory):
        return _read_whole(path, roles, columns, raw=raw, decimals=decimals)
    if decimals is not None:
        return _table_in_batches([_open_csv(path, decimals)], path.name, roles, columns)
    return read_batches(path, **{name: value for name, value in options.items() if name != "raw"})


def decimals_in(
    paths: Sequence[Path], names: Collection[str], *, thousands: bool
) -> dict[Path, Decimals]:
    """Decide how the numbers are written in the .csv files among the files of several clients.

    Returns {} if none of them has decimal commas. Parameters are as for
    :func:`~flower_fedclust.data.csv_files.agree_on_decimals`.
    """
    csv_paths = [
        path
        for path in paths
        if _READERS.get(path.suffix.lower()) is read_csv_file
        and path.is_file()
        and path.stat().st_size > 0
    ]
    return decimals_of(csv_paths, names, thousands=thousands)


def _open_csv(path: Path, decimals: Decimals) -> CsvPart:
    """Open a .csv file whose numbers are written as other files of the table showed."""
    part = CsvPart(path)
    part.decimals = decimals
    return part


def _open_part(path: Path) -> Part:
    """Open a file that can be read in batches."""
    if path.suffix.lower() not in _PARTS:
        raise DataError(
            f"{path.name} cannot be read in batches; save it as one of: {', '.join(_PARTS)}."
        )
    return _PARTS[path.suffix.lower()](path)


def _files_in(folder: Path) -> list[Path]:
    """Return the files of a folder, sorted by name, without hidden files and files that programs make."""
    paths = sorted(
        path for path in folder.iterdir() if not path.is_dir() and not _is_of_a_program(path.name)
    )
    if others := [path.name for path in paths if path.suffix.lower() not in _READERS]:
        raise DataError(
            f"The folder {folder} holds {some(others)}, and only {_ENDINGS_IN_WORDS} files are read: save tables as "
            "one of these, and move other files out of the folder, or begin their names with '_'."
        )
    return paths


def _is_of_a_program(name: str) -> bool:
    """Tell whether a file holds no rows: it is hidden, Excel's mark of an open table, or written by Windows."""
    return name[0] in "._" or name.startswith("~$") or name.lower() in ("thumbs.db", "desktop.ini")


def read_folder(
    folder: str | PathLike[str],
    *,
    label_column: str | None = None,
    id_column: str | None = None,
    subject_column: str | None = None,
    columns: Sequence[str] | None = None,
    raw: bool = False,
) -> FederatedRows:
    """Read a folder that holds one file for each client.

    Parameters
    ----------
    folder : path
        Its files are read in the order of their names; each client is named after its file. Folders
        inside it, files whose names begin with ".", "_" or "~$", Thumbs.db and desktop.ini are not
        read.
    label_column : str, optional
        The column that holds the true classes, in every file.
    id_column : str, optional
        The column with the ids of the rows; by default their numbers, from 0.
    subject_column : str, optional
        As in :func:`read_table`, in every file.
    columns : sequence of str, optional
        The columns to use as features, in this order; by default all except labels and ids, in the
        first file's order.
    raw : bool, default=False
        As in :func:`read_table`.

    Raises
    ------
    FileNotFoundError
        If there is no such folder.
    ValueError
        If the folder has no file, a file that cannot be read (see :func:`read_table`), two files
        for one client, or files with different columns. A file without rows is left out, and
        ``empty`` names it.
    """
    folder = Path(folder)
    if not folder.exists():
        raise MissingFileError(f"There is no folder {folder}.")
    if not folder.is_dir():
        raise DataError(
            f"{folder} is a file, not a folder with a file for each client; use read_table."
        )
    paths = _files_in(folder)
    if not paths:
        raise DataError(
            f"The folder {folder} holds no {_ENDINGS_IN_WORDS} file; put one there for each client."
        )
    files_by_client: dict[str, str] = {}
    for path in paths:
        other = files_by_client.setdefault(path.stem, path.name)
        if other != path.name:
            raise DataError(
                f"{other} and {path.name} would both be the client '{path.stem}'; rename one of them."
            )
    check_spellings(files_by_client, f"the folder {folder}")
    roles = {"label": label_column, "client": None, "id": id_column, "subject": subject_column}
    decimals = decimals_in(paths, _named(roles), thousands=raw)
    tables, empty = [], []
    for path in paths:
        if path.is_file() and _size_of(path) > MOST_IN_MEMORY:
            part = _open_csv(path, decimals[path]) if path in decimals else _open_part(path)
            tables.append(_table_in_batches([part], path.name, roles, columns))
        elif (path.is_file() and path.stat().st_size == 0) or len(
            frame := _read_frame(path, roles, raw=raw, decimals=decimals.get(path))
        ) == 0:
            empty.append(path.name)
        else:
            tables.append(table_of(frame, path.name, roles, columns, raw=raw))
    if not tables:
        raise DataError(f"the files of {folder} have no rows; give at least one.")
    wanted = tables[0].columns or []
    return FederatedRows(
        clients=[rows_in_order(table, wanted, tables[0].name) for table in tables],
        labels=None
        if label_column is None
        else [table.labels for table in tables if table.labels is not None],
        names=[name for name, file in files_by_client.items() if file not in empty],
        columns=wanted,
        row_ids=None
        if id_column is None
        else [table.row_ids for table in tables if table.row_ids is not None],
        id_column=tables[0].id_column,
        empty=empty,
        subjects=None
        if subject_column is None
        else [table.subjects for table in tables if table.subjects is not None],
    )


def rows_in_order(table: Table, wanted: Sequence[str], source: str) -> Any:
    """Return a table's rows with its columns in the wanted order; raise a DataError if it has other columns."""
    if table.columns is None:
        return table.rows
    check_same_names(table.columns, wanted, table.name, source)
    if table.columns == wanted:
        return table.rows
    if isinstance(table.rows, Batches):
        return table.rows.select(wanted)
    order = [table.columns.index(name) for name in wanted]
    return table.rows.iloc[:, order] if hasattr(table.rows, "iloc") else table.rows[:, order]


def _read_frame(
    path: Path, roles: Mapping[str, str | None], *, raw: bool, decimals: Decimals | None = None
) -> Any:
    """Read a file into a pandas DataFrame whose column names are text.

    ``decimals`` says how the numbers of a .csv file are written, if this was decided with other files.
    """
    if path.is_dir():
        raise DataError(
            f"{path} is a folder; name one file of it (read_folder reads a folder with a file for each client)."
        )
    ending = path.suffix.lower()
    if ending not in _READERS:
        raise DataError(
            f"{path.name} is not a file that can be read; give a {_ENDINGS_IN_WORDS} file."
        )
    if (needed := _NEEDED.get(ending)) is not None and path.exists():
        _imported(needed, f"reading {path.name}", needed)
    names = _named(roles)
    with reading(path, ending[1:], f"save the table as {ending[1:]} again", name=path.name) as file:
        if _READERS[ending] is read_csv_file:
            frame = read_csv_file(file, path, names, thousands=raw, decimals=decimals)
            return as_frame(frame, path.name)
        return as_frame(_READERS[ending](file, path), path.name, names=names)


def _named(roles: Mapping[str, str | None]) -> list[str]:
    """Return the names of the columns that have a role."""
    return [name for name in roles.values() if name is not None]


def _read_excel(file: IO[bytes], path: Path) -> Any:
    """Return the only filled sheet of an .xlsx file as a DataFrame."""
    import pandas as pd

    with zipfile.ZipFile(file) as archive:
        check_size(sum(member.file_size for member in archive.infolist()), path.name)
    # All cells are read as they are: text stays text, even if it looks like a missing value or a number.
    options = {"dtype": object, "keep_default_na": False, "na_values": [""]}
    sheets = pd.read_excel(file, sheet_name=None, header=None, **options)
    filled = [sheet for sheet in sheets.values() if len(sheet)]
    if len(filled) != 1:
        problem = f"{len(filled)} sheets with cells" if filled else "no cell with a value"
        raise DataError(
            f"{path.name} has {problem}; save the one with the rows as a file of its own."
        )
    names = ["" if name != name else str(name) for name in filled[0].iloc[0]]
    check_first_line(names, path)
    frame = filled[0].iloc[1:].infer_objects().reset_index(drop=True)
    return frame.set_axis([name or f"Unnamed: {index}" for index, name in enumerate(names)], axis=1)


def _read_labeled(_file: IO[bytes], path: Path) -> Any:
    """Return a file of Stata or SPSS as a DataFrame.

    A column whose values all have a label gets the labels. Other columns keep their codes.
    """
    import pandas as pd

    read = pd.read_stata
    if path.suffix.lower() == ".sav":
        read = pd.read_spss
        _, metadata = import_module("pyreadstat").read_sav(path, metadataonly=True)
        check_size(8 * (metadata.number_rows or 0) * metadata.number_columns, path.name)
    frame = read(path, convert_categoricals=False)
    for name, values in frame.items():
        if not pd.api.types.is_numeric_dtype(values.dtype):
            frame[name] = values.mask(values == "")  # in these programs, an empty text is a gap
    try:
        labeled = read(path, convert_categoricals=True)
    except ValueError:  # two codes have the same label
        return frame
    some_labeled = {}
    for name, values in labeled.items():
        if isinstance(values.dtype, pd.CategoricalDtype):
            if pd.api.types.is_string_dtype(values.cat.categories):
                frame[name] = values.astype(object)
            else:
                some_labeled[str(name)] = _labels_of(frame[name], values)
    frame.attrs = {LABELS: some_labeled}
    return frame


def _labels_of(codes: Any, labeled: Any) -> dict[float, str]:
    """Return the label of each code that occurs in the column and has a label."""
    labels = {category for category in labeled.cat.categories if isinstance(category, str)}
    pairs = zip(codes[labeled.isin(labels)], labeled[labeled.isin(labels)], strict=True)
    return {float(code): label for code, label in dict(pairs).items()}


def _read_parquet(file: IO[bytes], path: Path) -> Any:
    """Return a .parquet file as a PyArrow Table."""
    from pyarrow import parquet

    footer = parquet.read_metadata(file)
    check_size(8 * footer.num_rows * footer.num_columns, path.name)
    # partitioning=None, because a folder called "site=3" above the file must not become a column.
    return parquet.read_table(path, partitioning=None)


def _read_arrow(file: IO[bytes], _path: Path) -> Any:
    """Return an .arrow or .feather file as a PyArrow Table."""
    from pyarrow import ipc

    return ipc.open_file(file).read_all()


def _read_npy(file: IO[bytes], path: Path) -> Any:
    """Return a .npy file of numbers as a DataFrame."""
    import pandas as pd

    array = read_array(file, path.stat().st_size)
    if array.ndim != 2:
        raise DataError(
            f"{path.name}: the rows have shape {array.shape}; give two dimensions, one row a sample."
        )
    if array.dtype.kind not in "fiub":
        raise DataError(f"{path.name} holds entries of type {array.dtype}; give numbers.")
    return pd.DataFrame(array)


class _QueryPart(Part):
    """The result of a DuckDB query, read by one thread, so that its order does not change."""

    def __init__(self, query: str, database: str) -> None:
        super().__init__(Path("the query"))
        self.query, self.database = query.strip().rstrip(";"), database.removeprefix("duckdb://")
        if "://" in database and not database.startswith("duckdb://"):
            raise DataError(
                "only DuckDB is read in batches; leave out batches, or let DuckDB attach the database."
            )
        with self._relation() as relation:
            self.columns = list(relation.columns)
            check_unique(self.columns, self.name)
            hashed = f"hash({', '.join(map(_quoted, self.columns))})"
            ((self.n_rows, self.hash),) = relation.aggregate(
                f"count(*), sum({hashed} % 4294967296)"
            ).fetchall()

    @contextmanager
    def _relation(self) -> Iterator[Any]:
        """Run the query, and yield DuckDB's relation, from which the rows can be read in batches."""
        with _duckdb(self.database, config={"threads": 1}) as connection, _asking(self.database):
            relation = connection.sql(self.query)
            if relation is None:
                raise DataError("the query gives no rows; begin it with SELECT.")
            yield relation

    def stamp(self) -> tuple[int, ...]:
        """Return a hash of the result, which changes if the rows do."""
        return (int(self.hash or 0),)

    def read(self, columns: list[str], n_rows: int) -> Generator[Any, None, None]:
        """Yield the named columns of all rows, about ``n_rows`` at a time."""
        with self._relation() as relation:
            yield from relation.project(", ".join(map(_quoted, columns))).fetch_arrow_reader(n_rows)


def _quoted(name: str) -> str:
    """Return a name in the quotation marks of SQL."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


_READERS: Mapping[str, Callable[[IO[bytes], Path], Any]] = {
    ".csv": read_csv_file,
    ".tsv": read_csv_file,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
    ".feather": _read_arrow,
    ".npy": _read_npy,
    ".xlsx": _read_excel,
    ".dta": _read_labeled,
    ".sav": _read_labeled,
}

#: The file name endings that can be read.
ENDINGS = tuple(_READERS)

#: Files that can be read in batches.
_PARTS: Mapping[str, Callable[[Path], Part]] = {
    ".parquet": ParquetPart,
    ".csv": CsvPart,
    ".tsv": CsvPart,
    ".arrow": ArrowPart,
    ".feather": ArrowPart,
}


def _names_of_rows(frame: Any, column: str, file: str, kind: str) -> NDArray[Any]:
    """Return the labels, clients or ids of the rows; raise a DataError if one is missing."""
    values = frame[column]
    missing = values.isna().to_numpy()
    if missing.any():
        raise DataError(
            f"{file}: row {missing.argmax()}, column '{column}' is missing; give every row its {kind}."
        )
    return identities(values, f"{file}: column '{column}'", are_classes=kind == "label")
