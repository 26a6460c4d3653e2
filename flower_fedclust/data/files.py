"""Reading rows from CSV, Parquet and NumPy files."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data.federation import FederatedRows, Table
from flower_fedclust.names import look_up
from flower_fedclust.numerics.checks import DataError, MissingFileError, checked_rows

_ENDINGS = (".csv", ".parquet", ".npy")
_ENDINGS_IN_WORDS = ".csv, .parquet or .npy"


def read_table(
    path: str | PathLike[str],
    *,
    label_column: str | None = None,
    client_column: str | None = None,
    columns: Sequence[str] | None = None,
) -> Table:
    """Read a file of rows.

    Parameters
    ----------
    path : path
        A .csv file with a line of column names, a .parquet file, or a .npy file of two dimensions, whose columns are
        named "0", "1" and so on.
    label_column : str, optional
        The column that holds the true classes.
    client_column : str, optional
        The column that says which client a row belongs to.
    columns : sequence of str, optional
        The columns to use as features, in this order; by default all that are neither labels nor clients.

    Returns
    -------
    Table
        Features as floats (booleans become 0 and 1); labels and owners as in the file, but integers if all are whole.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file cannot be read, a column does not exist, a feature is text, missing or infinite, or a label or a
        client is missing. The message names file, row (from 0) and column, never a value.
    """
    path = Path(path)
    file = path.name
    frame = _read_frame(path)
    if path.suffix == ".csv" and _looks_like_a_row([str(name) for name in frame.columns]):
        raise ValueError(f"{file}: the first line is all numbers; put a line with the names of the columns before it.")
    for name in (label_column, client_column):
        if name is not None:
            _look_up_column(name, frame, file)
    if columns is None:
        features = [name for name in frame.columns if name not in (label_column, client_column)]
    else:
        features = _checked_selection(columns, frame, file, label_column, client_column)
    return Table(
        rows=_feature_rows(frame, features, file),
        labels=None if label_column is None else _names_of_rows(frame, label_column, file, "label"),
        owners=None if client_column is None else _names_of_rows(frame, client_column, file, "client"),
        columns=features,
        name=file,
    )


def read_folder(
    folder: str | PathLike[str], *, label_column: str | None = None, columns: Sequence[str] | None = None
) -> FederatedRows:
    """Read a folder that holds one file for each client.

    Parameters
    ----------
    folder : path
        Its files are read in the order of their names; a client is named after its file. Folders inside it, and files
        whose names begin with "." or "_", are not read.
    label_column : str, optional
        The column that holds the true classes, in every file.
    columns : sequence of str, optional
        The columns to use as features, in this order; by default all but the labels.

    Raises
    ------
    FileNotFoundError
        If there is no such folder.
    ValueError
        If the folder holds no file, a file that cannot be read (see :func:`read_table`), two files with one
        name, or files whose columns differ.
    """
    folder = Path(folder)
    if not folder.exists():
        raise MissingFileError(f"There is no folder {folder}.")
    if not folder.is_dir():
        raise DataError(f"{folder} is a file, not a folder with a file for each client; use read_table.")
    paths = sorted(path for path in folder.iterdir() if path.is_file() and path.name[0] not in "._")
    if not paths:
        raise DataError(f"The folder {folder} holds no {_ENDINGS_IN_WORDS} file; put one there for each client.")
    files_by_client: dict[str, str] = {}
    for path in paths:
        other = files_by_client.setdefault(path.stem, path.name)
        if other != path.name:
            raise DataError(f"{other} and {path.name} would both be the client '{path.stem}'; rename one of them.")
    tables = [read_table(path, label_column=label_column, columns=columns) for path in paths]
    for table in tables[1:]:
        _check_same_columns(table, tables[0])
    return FederatedRows(
        clients=[table.rows for table in tables],
        labels=None if label_column is None else [table.labels for table in tables if table.labels is not None],
        names=list(files_by_client),
        columns=tables[0].columns,
    )


def _read_frame(path: Path) -> Any:
    """Return the file as a pandas DataFrame with at least one row and text as column names."""
    if path.suffix.lower() not in _ENDINGS and not path.is_dir():
        raise DataError(f"{path.name} is not a file that can be read; give a {_ENDINGS_IN_WORDS} file.")
    if not path.exists():
        raise MissingFileError(f"There is no file {path}.")
    if path.is_dir():
        raise DataError(f"{path} is a folder; use read_folder for a folder with a file for each client.")
    if path.stat().st_size == 0:
        raise DataError(f"{path.name} is empty.")
    import pandas as pd

    # index_col=False: a line with one field too many must not turn the first column into row names.
    # low_memory=False: a long column gets one type, not one for each piece of the file.
    # partitioning=None: a folder called "site=3" above the file must not become a column.
    read: Mapping[str, Callable[[Path], Any]] = {
        ".csv": partial(pd.read_csv, index_col=False, low_memory=False),
        ".parquet": partial(pd.read_parquet, engine="pyarrow", partitioning=None),
        ".npy": _read_npy,
    }
    try:
        # ParserWarning is how pandas says that it dropped fields of lines that are too long.
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = read[path.suffix.lower()](path)
    except pd.errors.EmptyDataError:
        raise DataError(f"{path.name} is empty.") from None
    except UnicodeDecodeError:
        raise DataError(f"{path.name} is not UTF-8 text; save it as UTF-8.") from None
    except pd.errors.ParserWarning:
        raise DataError(
            f"{path.name} cannot be read: its lines have more fields than there are column names."
        ) from None
    except DataError:
        raise
    except (ValueError, EOFError, OSError) as error:
        reason = " ".join(str(error).split()).removeprefix("Error tokenizing data. C error: ").rstrip(".")
        # The reader's own message may quote a value, so this is not a DataError.
        raise ValueError(f"{path.name} cannot be read as {path.suffix.lower()[1:]}: {reason}.") from error
    if len(frame) == 0:
        raise DataError(f"{path.name} has no rows; give at least one.")
    frame.columns = [str(name) for name in frame.columns]
    return frame


def _read_npy(path: Path) -> Any:
    import pandas as pd

    # A pickle may run code when it is loaded, so arrays of objects are refused.
    array = np.load(path, allow_pickle=False)
    if array.ndim != 2:
        raise DataError(f"{path.name}: the rows have shape {array.shape}; give two dimensions, one row a sample.")
    if array.dtype.kind not in "fiub":
        raise DataError(f"{path.name} holds entries of type {array.dtype}; give numbers.")
    return pd.DataFrame(array)


def _look_up_column(name: str, frame: Any, file: str) -> None:
    look_up(name, dict.fromkeys(frame.columns), f"column in {file}")


def _looks_like_a_row(names: Sequence[str]) -> bool:
    """Tell whether what stands for names are numbers, and not just 0, 1, 2: names leave a site, and a row must not."""
    try:
        numbers = [float(name) for name in names]
    except ValueError:
        return False
    return numbers != list(range(len(names)))


def _checked_selection(
    columns: Sequence[str], frame: Any, file: str, label_column: str | None, client_column: str | None
) -> list[str]:
    features = [columns] if isinstance(columns, str) else list(columns)
    for name in features:
        _look_up_column(name, frame, file)
        if name in (label_column, client_column):
            kind = "labels" if name == label_column else "clients"
            raise DataError(f"{file}: column '{name}' holds the {kind}; it cannot be a feature too.")
    return features


def _feature_rows(frame: Any, features: list[str], file: str) -> NDArray[np.float64]:
    import pandas as pd

    rows = np.empty((len(frame), len(features)))
    for index, name in enumerate(features):
        if re.fullmatch(r"Unnamed: \d+", name):
            raise DataError(
                f"{file}: column {frame.columns.get_loc(name)} has no name; "
                "name it, or write the file without row numbers (index=False)."
            )
        values = frame[name]
        if not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_complex_dtype(values):
            # The place of the first entry that is not a number; a column of dates has none.
            bad = (pd.to_numeric(values, errors="coerce").isna() & values.notna()).to_numpy()
            place = f"row {bad.argmax()}, " if bad.any() else ""
            raise DataError(f"{file}: {place}column '{name}' is not numeric; encode it as numbers or leave it out.")
        rows[:, index] = values.to_numpy(dtype=np.float64, na_value=np.nan)
    return checked_rows(rows, owner=file, columns=features)


def _names_of_rows(frame: Any, column: str, file: str, kind: str) -> NDArray[Any]:
    """Return the labels or the clients of the rows, and raise DataError if one is missing."""
    values = frame[column]
    missing = values.isna().to_numpy()
    if missing.any():
        raise DataError(f"{file}: row {missing.argmax()}, column '{column}' is missing; every row needs a {kind}.")
    array: NDArray[Any] = values.to_numpy()
    if array.dtype.kind == "f" and np.array_equal(array, np.trunc(array)):
        # A .npy file has one type for all its columns; class 3.0 is class 3.
        return array.astype(np.int64)
    if array.dtype.kind not in "fiub":
        return np.asarray([str(value) for value in array])
    return array


def _check_same_columns(table: Table, first: Table) -> None:
    ours, theirs = table.columns or [], first.columns or []
    if ours == theirs:
        return
    lacks = [f"'{name}'" for name in theirs if name not in ours]
    adds = [f"'{name}'" for name in ours if name not in theirs]
    if not lacks and not adds:
        name = next(name for name, other in zip(ours, theirs, strict=True) if name != other)
        raise DataError(
            f"{table.name} has the columns of {first.name} in another order, from '{name}' on; "
            "put them in the same order."
        )
    differences = [f"{verb} {', '.join(names)}" for verb, names in (("lacks", lacks), ("adds", adds)) if names]
    raise DataError(
        f"{table.name} has other columns than {first.name}: it {' and '.join(differences)}; "
        "give all files the same columns."
    )
