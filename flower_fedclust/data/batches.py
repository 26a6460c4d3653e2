"""Rows of files that are read batch by batch, because a sum over rows never needs all of them at once.

A :class:`Part` is one file (or query) that can be read again and again. :class:`Batches` joins parts, one after the
other, and yields :class:`Batch` objects. The rows of a batch are converted only when they are needed. Files must not
change during a run; this is checked after each reading.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data.frames import (
    SCHEMA_ADVICE,
    as_frame,
    check_same_names,
    check_unique,
    number_rows,
)
from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.checks import DataError, refuse_columns
from flower_fedclust.outside import parsing, reading

Floats = NDArray[np.float64]

#: The number of entries in a batch of rows, small enough for a processor core's cache.
BATCH_ENTRIES = 2**18

#: The number of entries that are decoded together. A larger number takes more memory, a smaller one more time.
DECODED_ENTRIES = 2**21

#: The number of bytes of each column that are read at a time.
BUFFER_BYTES = 2**17


@dataclass(frozen=True, eq=False)
class Batch:
    """Consecutive rows of a client, which are converted only when they are needed."""

    owner: str  #: The name of the client or of the file, for messages.
    #: The number of the first row, for messages. If a client has several files, each file begins with row 0.
    first_row: int
    n_rows: int
    make_table: Callable[[], Any]
    make_rows: Callable[[], Floats]
    #: For each row, the number of rows that its subject has at the client.
    rows_each: NDArray[np.integer[Any]] | None = None

    def __len__(self) -> int:
        return self.n_rows

    @cached_property
    def table(self) -> Any:
        """The rows as a pandas DataFrame."""
        return self.make_table()

    @cached_property
    def rows(self) -> Floats:
        """The rows as numbers, of shape (n_rows, n_columns)."""
        return self.make_rows()


def in_batches(
    shape: tuple[int, int],
    rows: Callable[[slice], Floats],
    table: Callable[[slice], Any],
    *,
    owner: str = "",
    entries: int = BATCH_ENTRIES,
) -> Iterator[Batch]:
    """Divide rows that are in memory into batches of at most ``entries`` entries.

    The functions ``rows`` and ``table`` return the rows of a slice, as numbers and as a DataFrame.
    """
    n_rows, n_columns = shape
    for part in blocks(n_rows, max(1, n_columns), block_entries=entries):
        yield Batch(
            owner,
            part.start,
            min(part.stop, n_rows) - part.start,
            partial(table, part),
            partial(rows, part),
        )


class Part:
    """A file, or a query, that can be read again and again."""

    columns: list[str]
    n_rows: int
    #: For each column that is known to hold text, the first row with text.
    first_text: Mapping[str, int] = MappingProxyType({})

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name  # the name is for messages

    @property
    def counted(self) -> str:
        """The name for messages that count rows: these are counted from 0 in it."""
        return self.name

    def stamp(self) -> tuple[int, ...]:
        """Return the file's size and the time of its last change: if the rows change, so does one of them."""
        try:
            status = self.path.stat()
        except OSError:
            return ()
        return status.st_size, status.st_mtime_ns

    def read(self, columns: list[str], n_rows: int) -> Generator[Any, None, None]:
        """Yield the named columns of all rows, about ``n_rows`` at a time, as RecordBatches or DataFrames."""
        raise NotImplementedError


class Batches:
    """Rows of files or of a query, read batch by batch whenever they are needed; from ``read_batches``.

    Attributes
    ----------
    name : str
        For messages.
    columns : list of str
        The columns that are read, in this order.
    shape : tuple of int
        How many rows and columns there are.
    """

    def __init__(self, parts: Sequence[Part], name: str, columns: Sequence[str]) -> None:
        for part in parts[1:]:
            check_same_names(part.columns, parts[0].columns, part.name, parts[0].name)
        self.parts, self.name, self.columns = parts, name, list(columns)
        self.shape = (sum(part.n_rows for part in parts), len(self.columns))
        self._stamps = [part.stamp() for part in parts]

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"Batches({self.name}: {len(self):,} rows of {self.shape[1]:,} columns)"

    def select(self, columns: Sequence[str]) -> Batches:
        """Return the same rows with some of their columns, in this order."""
        selected = Batches(self.parts, self.name, columns)
        selected._stamps = self._stamps
        return selected

    def chosen(self, rows: NDArray[np.intp]) -> Batches:
        """Return some of the rows, given by their numbers in ascending order."""
        ends = np.cumsum([0, *(part.n_rows for part in self.parts)])
        cuts = np.split(rows, np.searchsorted(rows, ends[1:-1]))
        parts = [
            SomeRows(*pair) for pair in zip(self.parts, map(np.subtract, cuts, ends), strict=True)
        ]
        chosen = Batches(parts, self.name, self.columns)
        chosen._stamps = self._stamps
        return chosen

    def fingerprint(self) -> NDArray[np.uint64]:
        """Return numbers that change if a file changes; the files are not read for this."""
        return np.array(
            [len(self), *(number for stamp in self._stamps for number in stamp)], dtype=np.uint64
        )

    def read(self, step: int) -> Iterator[Batch]:
        """Yield all rows in order, in batches of at most ``step`` rows.

        Raises a DataError if a file has changed since it was opened.
        """
        decoded = max(step, DECODED_ENTRIES // max(1, len(self.columns)))
        for part, stamp in zip(self.parts, self._stamps, strict=True):
            first = 0
            with closing(part.read(self.columns, decoded)) as contents:
                for content in contents:
                    for start in range(0, len(content), step):
                        yield _batch_of(content[start : start + step], part.counted, first + start)
                    first += len(content)
            if first != part.n_rows or part.stamp() != stamp:
                raise DataError(
                    f"{part.name} has changed since it was opened; leave it as it is until the run has ended."
                )

    def check_numbers(self) -> None:
        """Raise a DataError if a column is already known to hold text."""
        for part in self.parts:
            texts = [
                f"row {row}, column '{name}' is not numeric"
                for name, row in part.first_text.items()
            ]
            if named := [
                text
                for name, text in zip(part.first_text, texts, strict=True)
                if name in self.columns
            ]:
                refuse_columns(part.name, named, [], SCHEMA_ADVICE)

    def column(self, name: str) -> Any:
        """Return one column of all rows as a pandas Series."""
        import pandas as pd

        return pd.concat(
            [batch.table[name] for batch in self.select([name]).read(BATCH_ENTRIES)],
            ignore_index=True,
        )


def _batch_of(content: Any, name: str, first: int) -> Batch:
    """Return a batch of decoded rows; its numbers are checked when they are first used."""

    def table() -> Any:
        return as_frame(content, name)

    def rows() -> Floats:
        rows_of_batch = _row_major(content)
        # A sum is NaN or infinite if any entry is. Only then is the slower number_rows needed, which names the entry.
        with np.errstate(over="ignore", invalid="ignore"):
            is_finite = rows_of_batch is not None and np.isfinite(rows_of_batch.sum())
        return (
            rows_of_batch
            if rows_of_batch is not None and is_finite
            else number_rows(table(), name, first_row=first)
        )

    return Batch(name, first, len(content), table, rows)


def _row_major(content: Any) -> Floats | None:
    """Return the rows of a RecordBatch as an array; None unless all of its columns are numbers."""
    import pyarrow as pa

    if not isinstance(content, pa.RecordBatch) or not all(
        _is_number(field.type) for field in content.schema
    ):
        return None
    rows = np.empty((content.num_rows, content.num_columns))
    for index, column in enumerate(content.columns):
        plain = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column
        rows[:, index] = plain.to_numpy(zero_copy_only=False)
    return rows


def _is_number(kind: Any) -> bool:
    """Tell whether an Arrow type is a number or a truth value."""
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


class ParquetPart(Part):
    """A Parquet file, whose columns are read a few pages at a time, however large its row groups are."""

    def __init__(self, path: Path) -> None:
        from pyarrow import parquet

        super().__init__(path)
        with reading(
            path, "parquet", "save the table as parquet again", name=self.name, most=2**63
        ) as file:
            schema, self.n_rows = parquet.read_schema(file), parquet.read_metadata(file).num_rows
            names, indices = (
                list(schema.names),
                (schema.pandas_metadata or {}).get("index_columns", []),
            )
        check_unique(names, self.name)
        self.columns = [name for name in names if name not in indices]

    def read(self, columns: list[str], n_rows: int) -> Generator[Any, None, None]:
        """Yield the named columns of all rows, ``n_rows`` at a time."""
        from pyarrow import parquet

        with (
            parsing(self.name, "parquet", "save the table as parquet again"),
            parquet.ParquetFile(self.path, pre_buffer=False, buffer_size=BUFFER_BYTES) as file,
        ):
            for batch in file.iter_batches(n_rows, columns=columns, use_threads=False):
                yield batch.select(columns).replace_schema_metadata(None)


class ArrowPart(Part):
    """A file of Arrow's IPC format, also called Feather, one of its record batches at a time."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with self._opened() as file:
            check_unique(file.schema.names, self.name)
            self.columns: list[str] = file.schema.names
            self.n_rows = sum(
                file.get_batch(index).num_rows for index in range(file.num_record_batches)
            )

    @contextmanager
    def _opened(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Open the file to read all columns, or some."""
        from pyarrow import ipc

        with reading(
            self.path, "arrow", "save the table as arrow again", name=self.name, most=2**63
        ) as file:
            fields = None if columns is None else sorted(map(self.columns.index, columns))
            yield ipc.open_file(
                file, options=ipc.IpcReadOptions(included_fields=fields, use_threads=False)
            )

    def read(self, columns: list[str], n_rows: int) -> Generator[Any, None, None]:  # noqa: ARG002
        """Yield the named columns of all rows, one record batch of the file at a time."""
        with self._opened(columns) as file:
            for index in range(file.num_record_batches):
                yield file.get_batch(index).select(columns).replace_schema_metadata(None)


class SomeRows(Part):
    """Some rows of a part, given by their numbers in ascending order."""

    def __init__(self, part: Part, rows: NDArray[np.intp]) -> None:
        super().__init__(part.path)
        self.part, self.rows, self.n_rows = part, rows, len(rows)
        self.columns, self.first_text = part.columns, part.first_text

    def stamp(self) -> tuple[int, ...]:
        """Return the stamp of the part from which the rows were chosen."""
        return self.part.stamp()

    def read(self, columns: list[str], n_rows: int) -> Generator[Any, None, None]:
        """Yield the named columns of the chosen rows."""
        first = 0
        with closing(self.part.read(columns, n_rows)) as contents:
            for content in contents:
                at = (
                    self.rows[slice(*np.searchsorted(self.rows, (first, first + len(content))))]
                    - first
                )
                first += len(content)
                yield content.iloc[at] if hasattr(content, "iloc") else content.take(at)
