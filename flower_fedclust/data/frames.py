"""Tables of pandas, Polars, PyArrow and other libraries that support Arrow, with columns found by name.

Whatever table a user passes becomes a pandas DataFrame whose column names are texts; data without column names become
None. pandas and PyArrow are only imported if the user passes a table.
"""

from __future__ import annotations

import re
import sys
import unicodedata
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data.cells import are_cells, numbers_in, unclear_points, why_unclear
from flower_fedclust.names import look_up, some
from flower_fedclust.numerics.blocks import cached_blocks
from flower_fedclust.numerics.checks import (
    DataError,
    checked_rows,
    first_not_finite,
    refuse_columns,
)

#: What messages about columns that are not numbers advise.
SCHEMA_ADVICE = ", or give a schema, which takes text, dates and gaps"


def as_frame(table: Any, owner: str, *, names: Collection[str] = ()) -> Any:
    """Return a table with named columns as a pandas DataFrame with texts as names; None for anything else.

    Takes a pandas or Polars DataFrame, a Polars LazyFrame, a PyArrow Table, a DuckDB relation, or anything else with
    columns and an Arrow stream. Values of Arrow's decimal types become numbers, except in the columns ``names``, which
    hold names of rows, clients or classes: there they become text. Raises a DataError for two columns with one name, or
    for unusual types.
    """
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(table, pandas.DataFrame):
        called = [str(name) for name in table.columns]
        check_unique(called, owner)
        return table if called == list(table.columns) else table.set_axis(called, axis=1)
    if hasattr(table, "collect_schema") and hasattr(table, "collect"):
        table = table.collect()
    if not is_table(table):
        return None
    import pandas as pd
    import pyarrow as pa

    try:
        arrow = pa.table(table)
        check_unique(arrow.column_names, owner)
        # Without types_mapper, booleans with missing values would become Python objects.
        fields = [_plain_field(field, is_name=field.name in names) for field in arrow.schema]
        schema = pa.schema(fields, metadata=arrow.schema.metadata)
        return arrow.cast(schema).to_pandas(
            date_as_object=False,
            split_blocks=True,
            types_mapper={pa.bool_(): pd.BooleanDtype()}.get,
        )
    except pa.ArrowException:  # its message may quote a value
        raise DataError(
            f"{owner}: a column has a type that cannot be taken, such as integers of 128 bits or times of day; cast it "
            "to numbers or text, or leave it out."
        ) from None


def is_table(value: object) -> bool:
    """Tell whether :func:`as_frame` takes this value as a table with named columns."""
    speaks_arrow = hasattr(value, "__arrow_c_stream__") and (
        hasattr(value, "columns") or hasattr(value, "schema")
    )
    return speaks_arrow or hasattr(value, "collect_schema")


def _plain_field(field: Any, *, is_name: bool) -> Any:
    """Return the type to which a field is cast: decimals to integers, floats or text, and string views to text."""
    import pyarrow as pa

    if pa.types.is_decimal(field.type):
        is_long = field.type.scale > 0 or field.type.precision > 18
        return field.with_type(pa.string() if is_name else pa.float64() if is_long else pa.int64())
    return field.with_type(pa.large_string()) if str(field.type) == "string_view" else field


def check_unique(
    names: Sequence[str], owner: str, remedy: str = "give each a name of its own"
) -> None:
    """Raise a DataError if two columns have the same name."""
    if len(set(names)) < len(names):
        twice = [f"'{name}'" for name, count in Counter(names).items() if count > 1]
        raise DataError(f"{owner}: more than one column is called {', '.join(twice)}; {remedy}.")


def number_rows(
    frame: Any, owner: str, advice: str = SCHEMA_ADVICE, *, first_row: int = 0
) -> NDArray[np.float64]:
    """Return the columns of a pandas DataFrame as floats, of shape (n_rows, n_columns); booleans become 0 and 1.

    If a column has text, dates, mixed types, missing or infinite entries, raises a DataError. It names all such columns
    and the first such row of each (counted from ``first_row``), and never a value.
    """
    _refuse_unclear_points(frame, owner, first_row)
    reasons, read = {}, {}
    for name, values in frame.items():
        if are_cells(values):
            read[name], is_bad = numbers_in(values)
            reasons[name] = (
                f"row {first_row + int(is_bad.argmax())}, {{}} is not numeric"
                if is_bad.any()
                else None
            )
        else:
            reasons[name] = _why_not_numeric(values, first_row)
    numeric = [name for name, reason in reasons.items() if reason is None]
    if read:
        others = {
            name: frame[name].to_numpy(np.float64, na_value=np.nan)
            for name in numeric
            if name not in read
        }
        rows = _side_by_side([(read | others)[name] for name in numeric], len(frame))
    else:
        # All columns at once: one column after the other would take ten times as long, because the result is stored by
        # rows.
        rows = frame[numeric].to_numpy(dtype=np.float64, na_value=np.nan)
    not_numeric = [
        reason.format(f"column '{name}'") for name, reason in reasons.items() if reason is not None
    ]
    not_finite = first_not_finite(rows, lambda index: f"column '{numeric[index]}'", first_row)
    if not_numeric or not_finite:
        refuse_columns(owner, not_numeric, not_finite, advice)
    return checked_rows(rows, owner=owner, columns=numeric)


def _refuse_unclear_points(frame: Any, owner: str, first_row: int) -> None:
    """Raise a DataError that names the columns in which 1.234 may be 1234 or 1.234, and the first such row."""
    masks = {f"'{name}'": unclear_points(values) for name, values in frame.items()}
    first_rows = {name: int(mask.argmax()) for name, mask in masks.items() if mask.any()}
    if first_rows:
        columns, verb = ("column", "has") if len(first_rows) == 1 else ("columns", "have")
        why = why_unclear(first_row + min(first_rows.values()), verb)
        raise DataError(f"{owner}: {columns} {some(list(first_rows))} {why}.")


def _side_by_side(columns: Sequence[NDArray[np.float64]], n_rows: int) -> NDArray[np.float64]:
    """Return an array of rows from columns, copied in blocks that fit into the processor's cache."""
    rows = np.empty((n_rows, len(columns)))
    for block in cached_blocks(n_rows, max(1, len(columns))):
        for index, column in enumerate(columns):
            rows[block, index] = column[block]
    return rows


def _why_not_numeric(values: Any, first_row: int) -> str | None:
    """Return why a column is not numeric, as a text with {} in place of the column's name; None if it is numeric."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_complex_dtype(values):
        return None
    if pd.api.types.is_datetime64_any_dtype(values):
        return "{} is dates"
    # If no entry is bad, all entries are numbers stored as text.
    bad = (pd.to_numeric(values, errors="coerce").isna() & values.notna()).to_numpy()
    if not bad.any():
        return "{} is not numeric"
    is_mixed = values.dtype == object and values[~bad].map(type).isin([int, float, bool]).any()
    return f"row {first_row + bad.argmax()}, {{}} {'is of mixed types' if is_mixed else 'is not numeric'}"


def in_order(frame: Any, columns: Sequence[str], owner: str, source: str) -> Any:
    """Return a DataFrame with its columns in the given order; raise a DataError if it has other columns."""
    names = list(frame.columns)
    if names == list(columns):
        return frame
    check_same_names(names, columns, owner, source)
    return frame[list(columns)]


def as_named(rows: Any, owner: str) -> Any:
    """Return a table as :func:`as_frame` does; a pandas Series with a value for each column becomes one row."""
    pandas = sys.modules.get("pandas")
    is_series = pandas is not None and isinstance(rows, pandas.Series)
    return as_frame(rows.to_frame().T if is_series else rows, owner)


def as_new_rows(rows: Any, owner: str) -> Any:
    """Return new rows for a model as a DataFrame; None if their columns have no names.

    A mapping of column names to values, or a Series, is one row; a list of mappings is several rows.
    """
    is_row = isinstance(rows, Mapping) and all(np.ndim(value) == 0 for value in rows.values())
    are_rows = (
        isinstance(rows, list) and bool(rows) and all(isinstance(row, Mapping) for row in rows)
    )
    if is_row or are_rows:
        import pandas as pd

        rows = pd.DataFrame([rows] if is_row else rows)
    return as_named(rows, owner)


def known_columns(
    frame: Any, needed: Collection[str], known: Collection[str], owner: str, source: str
) -> Any:
    """Return a DataFrame without its unknown columns, and warn that these are not used.

    If a needed column is missing, the DataFrame is returned unchanged, and the caller raises the error.
    """
    others = [name for name in frame.columns if name not in known]
    if not others or not set(needed) <= set(frame.columns):
        return frame
    listed = some([f"'{name}'" for name in others])
    warnings.warn(
        f"{owner} has columns that {source} does not know; they are not used: {listed}.",
        stacklevel=4,
    )
    return frame.drop(columns=others)


def names_of(table: Any) -> list[str] | None:
    """Return the names of a table's columns; None if they are 0, 1, 2, ..., or if it is not a table."""
    frame = as_named(table, "the table")
    names = None if frame is None else list(frame.columns)
    return None if names == [str(index) for index in range(len(names or ()))] else names


def select(frame: Any, columns: Sequence[str], owner: str) -> Any:
    """Return some columns of a frame; raise a ValueError if one does not exist, or is named twice."""
    names = as_list(columns)
    for name in names:
        look_up(name, dict.fromkeys(frame.columns), f"column of {owner} called")
    check_unique(names, f"the columns chosen of {owner}", "name it once")
    return frame[names]


def as_list(columns: str | Sequence[str]) -> list[str]:
    """Return one name or several as a list of texts."""
    return [columns] if isinstance(columns, str) else [str(name) for name in columns]


def ids_of(frame: Any) -> tuple[NDArray[Any] | None, str | None]:
    """Return the index of a DataFrame, as ids of its rows, and the index's name.

    Both are None if the index only numbers the rows, is not unique, or has several levels.
    """
    index = frame.index
    is_plain = (
        index.name is None
        and index.dtype.kind == "i"
        and np.array_equal(index, np.arange(len(index)))
    )
    if is_plain or index.nlevels > 1 or not index.is_unique:
        return None, None
    return index.to_numpy(), None if index.name is None else str(index.name)


def check_same_order(labels: Any, frame: Any, owner: str, label: str = "labels") -> None:
    """Raise a DataError if labels are a Series with the same index as the table, but in another order."""
    pandas = sys.modules.get("pandas")
    if pandas is None or frame is None or not isinstance(labels, pandas.Series):
        return
    ours, theirs = frame.index, labels.index
    if (
        len(ours) == len(theirs)
        and not ours.equals(theirs)
        and theirs.is_unique
        and theirs.isin(ours).all()
    ):
        raise DataError(
            f"{owner}: the {label} have the index of the table in another order; give {label}.loc[table.index] if they "
            f"belong to the rows with the same index, or {label}.to_numpy() if not."
        )


def check_same_names(names: Sequence[str], columns: Sequence[str], owner: str, source: str) -> None:
    """Raise a DataError unless two tables have the same columns, in any order."""
    known, wanted = set(names), set(columns)
    lacks = [f"'{name}'" for name in columns if name not in known]
    adds = [f"'{name}'" for name in names if name not in wanted]
    if lacks or adds:
        differences = [
            f"{verb} {some(names_listed)}"
            for verb, names_listed in (("lacks", lacks), ("adds", adds))
            if names_listed
        ]
        alike = {_as_read(name) for name in known - wanted} & {
            _as_read(name) for name in wanted - known
        }
        hint = (
            " Names that look alike differ in spaces, capitals, or how Unicode spells a letter."
            if alike
            else ""
        )
        raise DataError(
            f"{owner} has other columns than {source}: it {' and '.join(differences)}; "
            f"give both the same columns.{hint}"
        )


def _as_read(name: str) -> str:
    """Return a name in a form that is the same for names that look alike: only letters and digits, without case."""
    return "".join(
        letter for letter in unicodedata.normalize("NFKC", name).casefold() if letter.isalnum()
    )


def is_unnamed(name: str) -> bool:
    """Tell whether a name, such as "Unnamed: 3", is the one that pandas gives to a column without a name."""
    return re.fullmatch(r"Unnamed: \d+", name) is not None


def take(rows: Any, part: NDArray[np.intp]) -> Any:
    """Return some rows of an array or of a pandas DataFrame, by their numbers."""
    return rows.iloc[part] if hasattr(rows, "iloc") else rows[part]
