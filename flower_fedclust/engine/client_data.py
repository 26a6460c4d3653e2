"""The rows of one client, checked once, and results computed from them."""

from __future__ import annotations

import copy
import math
import warnings
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.data.batches import BATCH_ENTRIES, Batch, Batches, in_batches
from flower_fedclust.data.federation import ROW
from flower_fedclust.data.frames import (
    as_frame,
    as_list,
    check_same_names,
    check_same_order,
    check_unique,
    ids_of,
    number_rows,
    select,
)
from flower_fedclust.data.identities import identities
from flower_fedclust.data.subjects import Subjects, subjects_in_batches, subjects_of
from flower_fedclust.exact.capacity import LARGEST_BOUND
from flower_fedclust.exact.grid import MOST_ROWS
from flower_fedclust.models import Clustered, Model, TableModel
from flower_fedclust.names import look_up
from flower_fedclust.numerics.checks import DataError, check_integer, checked_rows, out_of_scale
from flower_fedclust.numerics.threads import mapped, usable_threads
from flower_fedclust.outside import machine_memory

if TYPE_CHECKING:
    from flower_fedclust.tables.preparation import Preparation
    from flower_fedclust.tables.schema import Schema

T = TypeVar("T")

#: At most this many rows are hashed to detect changed data.
SAMPLE = 10_000

#: Rows with fewer entries in all are added up by one thread: starting more threads would take longer.
MANY_ENTRIES = 2**20

#: Rows with this many entries in all are evaluated at a time, so that no array besides the rows is large.
EVALUATED_ENTRIES = 2**20

#: Results computed from tables with fewer entries are not cached.
SMALL_TABLE = 4096


@dataclass(frozen=True)
class Outline:
    """Facts about a client's table that are known before anybody looks at its rows."""

    n_rows: int  #: The table has at least this many rows.
    n_columns: int
    #: The names of the columns, in the table's order; None if they have none.
    columns: tuple[str, ...] | None = None
    schema: Schema | None = None  #: The facts about its columns that the site lets others know.
    most_rows: int = MOST_ROWS  #: The public bound on its number of rows.
    #: The table has rows of at least this many persons; 0 if it does not say whose rows are whose.
    n_subjects: int = 0

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that hold for a whole run, as JSON can hold them; only :attr:`n_rows` may grow."""
        return {
            "columns": self.n_columns if self.columns is None else list(self.columns),
            "schema": None if self.schema is None else self.schema.to_json(),
            "subjects": self.n_subjects > 0,
            "n_rows": self.n_rows,
        }


class ClientData:
    """The checked rows of one client, or an unprepared table that a schema turns into rows.

    Parameters
    ----------
    rows : array-like of shape (n_rows, n_columns), table or Batches
        Tables of pandas, Polars and PyArrow have column names. Batches stay in their files; see
        :func:`~flower_fedclust.data.read_batches`.
    labels : array-like of shape (n_rows,), optional
        True classes; used by the federated evaluation and by nothing else.
    columns : sequence of str, optional
        The names of the columns. For a table: the columns to use, in this order.
    row_ids : array-like of shape (n_rows,), optional
        Identifies the rows in files of labels. By default the index of a pandas DataFrame, or else row numbers.
    id_column : str, optional
        The name of the ids; by default the name of the index, or "row".
    owner : str, default="the client"
        Who owns the rows, for messages.
    raw : bool, default=False
        Whether the table is kept unprepared, with its text, dates and gaps, for a run with a schema.
    schema : Schema, optional
        What the site allows to be public about its columns. A run with another schema is refused.
    most_rows : int, default=8388607
        A public bound on the number of rows, at most 2^30 - 1. A run that allows fewer is refused, however many there
        are.
    subject_column : str, optional
        The column of a table that says whose row it is, if a person may have several: text or integers, without gaps.
        It is never clustered by, and never leaves the client.
    subjects : array-like of shape (n_rows,), optional
        The same for rows that are not a table.

    Attributes
    ----------
    rows : ndarray of shape (n_rows, n_columns)
        Computed on first use if the table is kept unprepared. Batches are all read into memory, with a warning.
    table : pandas.DataFrame
        The table, or the rows as one.
    n_rows, n_columns : int

    Raises
    ------
    DataError
        If the rows are empty, not two-dimensional, not finite or not numeric, or if the number of labels differs.
    """

    #: The rows that were searched for numbers that are too large, and what was found.
    _too_large: tuple[NDArray[np.float64] | None, str] = None, ""

    def __init__(
        self,
        rows: ArrayLike | Any,
        labels: ArrayLike | None = None,
        columns: Sequence[str] | None = None,
        owner: str = "the client",
        *,
        row_ids: ArrayLike | None = None,
        id_column: str | None = None,
        raw: bool = False,
        schema: Schema | None = None,
        most_rows: int = MOST_ROWS,
        subject_column: str | None = None,
        subjects: ArrayLike | Subjects | None = None,
    ) -> None:
        self._batches = rows if isinstance(rows, Batches) else None
        frame = None if self._batches is not None else as_frame(rows, owner)
        self.schema = schema
        self.subjects: Subjects | None = None
        if subject_column is not None:
            if subjects is not None:
                raise ValueError("subject_column and subjects are given; give one of them.")
            source = frame if self._batches is None else self._batches
            source, self.subjects = without_subjects(source, subject_column, owner)
            frame, self._batches = (source, None) if self._batches is None else (None, source)
            if columns is not None:
                columns = [name for name in as_list(columns) if name != subject_column]
        elif subjects is not None:
            check_same_order(subjects, frame, owner, "subjects")
            if not isinstance(subjects, Subjects):
                subjects = subjects_of(subjects, f"{owner}: the subjects")
            self.subjects = subjects
        self._rows: NDArray[np.float64] | None = None
        if self._batches is not None:
            self._batches = self._batches if columns is None else self._batches.select(columns)
            columns = self._batches.columns
        elif frame is None:
            self._rows = checked_rows(rows, owner=owner, columns=columns)
        else:
            frame = frame if columns is None else select(frame, columns, owner)
            columns = list(frame.columns)
            if not raw:
                self._rows = number_rows(frame, owner)
            if row_ids is None:
                row_ids, name = ids_of(frame)
                id_column = id_column or name
        self._table = frame
        table: Any = next(one for one in (self._rows, self._batches, frame) if one is not None)
        self.n_rows, self.n_columns = map(int, table.shape)
        check_integer("most_rows", most_rows, at_least=1, at_most=LARGEST_BOUND)
        self.most_rows = most_rows
        if self.n_rows > most_rows:
            raise DataError(
                f"{owner}: {self.n_rows:,} rows; a client has at most {most_rows:,}, so that sums over them are exact. "
                "Give a larger most_rows, to the strategy and to a site, or split the table into two clients."
            )
        if columns is not None and len(columns) != self.n_columns:
            raise DataError(f"{owner}: {len(columns)} column names for {self.n_columns} columns.")
        check_unique(() if columns is None else columns, owner)
        check_same_order(labels, frame, owner)
        check_same_order(row_ids, frame, owner, "row_ids")
        if self.subjects is not None and len(self.subjects) != self.n_rows:
            raise DataError(
                f"{owner}: {len(self.subjects)} subjects for {self.n_rows} rows; give one for each row."
            )
        self.labels = None if labels is None else _checked_labels(labels, self.n_rows, owner)
        self.columns = columns
        self.owner = owner
        self.row_ids = None if row_ids is None else _checked_ids(row_ids, self.n_rows, owner)
        self.id_column = id_column or ROW
        self._derived: dict[Hashable, Any] = {}
        self._prepared: tuple[Preparation, ClientData] | None = None
        # The preparation that made these rows, and the data before it.
        self._raw: tuple[Preparation, ClientData] | None = None
        self._fits: Schema | bool | None = False  # the last check that the batches have passed

    def __repr__(self) -> str:
        with_labels = "" if self.labels is None else ", with labels"
        return f"ClientData({self.owner}: {self.n_rows:,} rows of {self.n_columns:,} columns{with_labels})"

    @property
    def outline(self) -> Outline:
        """The facts that are known without another look at the rows."""
        columns = None if self.columns is None else tuple(self.columns)
        return Outline(
            self.n_rows, self.n_columns, columns, self.schema, self.most_rows, self.n_subjects
        )

    @property
    def n_subjects(self) -> int:
        """The number of persons; 0 if nothing says which rows are one person's."""
        return 0 if self.subjects is None else self.subjects.n_subjects

    @cached_property
    def rows_each(self) -> NDArray[np.int32] | None:
        """For each row, the number of rows that its subject has here; None if the table does not name subjects."""
        return None if self.subjects is None else self.subjects.rows_each

    @cached_property
    def _by_rows_each(self) -> NDArray[np.int32]:
        """The numbers of the rows, sorted by :attr:`rows_each`, so that a batch has few different divisors."""
        assert self.rows_each is not None
        return np.argsort(self.rows_each, kind="stable").astype(np.int32)

    @property
    def rows(self) -> NDArray[np.float64]:
        """The rows."""
        if self._rows is None and self._batches is not None:
            self._check_fits_memory()
            self._rows = np.concatenate([batch.rows for batch in self.batches()])
        elif self._rows is None:
            self._rows = number_rows(self._table, self.owner)
        return self._rows

    @property
    def rows_in_memory(self) -> NDArray[np.float64]:
        """The rows; a DataError if they are in files and would have to be loaded."""
        if self._batches is not None:
            raise DataError(f"{self.owner}: the rows are read batch by batch.")
        return self.rows

    @property
    def source(self) -> NDArray[np.float64] | Batches:
        """The rows, or the Batches that read them from files."""
        return self.rows if self._batches is None else self._batches

    @property
    def is_plain(self) -> bool:
        """Whether the rows are numbers already, and no schema describes their columns."""
        return self._rows is not None and self._batches is None and self.schema is None

    @property
    def table(self) -> Any:
        """The table. Columns without names are called "0", "1" and so on."""
        if self._table is not None:
            return self._table
        import pandas as pd

        if self._batches is not None:
            self._check_fits_memory()
            return pd.concat([batch.table for batch in self.batches()], ignore_index=True)
        names = self.columns or [str(index) for index in range(self.rows.shape[1])]
        return pd.DataFrame(self._rows, columns=list(names), copy=False)

    def _check_fits_memory(self) -> None:
        """Warn that all batches are read into memory, or raise a DataError if they do not fit."""
        n_bytes, memory = 8 * self.n_rows * self.n_columns, machine_memory()
        why = f"{self.owner}: an answer needs all rows at once, {n_bytes / 1e6:,.0f} MB"
        others = "strategies such as private-kmeans, federated-kmeans and spp-fgc-sums read them in batches"
        if n_bytes > memory / 2:
            raise DataError(
                f"{why}, and this machine has {memory / 1e6:,.0f} MB of memory; {others}."
            )
        warnings.warn(
            f"{why}; they are read into memory, while {others}.", RuntimeWarning, stacklevel=3
        )

    @property
    def is_in_memory(self) -> bool:
        """Whether all rows are in memory, and not in files."""
        return self._batches is None

    @property
    def n_jobs(self) -> int:
        """The default number of threads for an answer by row: all for many rows, and at least two for files."""
        if self._batches is not None:
            return max(2, usable_threads())
        return usable_threads() if self.n_rows * self.n_columns >= MANY_ENTRIES else 1

    def batches(self, entries: int | None = None) -> Iterator[Batch]:
        """Yield the rows, and the table from which they were made, in batches of at most ``entries`` entries."""
        batches, start = self._plain_batches(entries), 0
        for batch in batches:
            stop = start + len(batch)
            yield (
                batch
                if self.rows_each is None
                else replace(batch, rows_each=self.rows_each[start:stop])
            )
            start = stop

    def batches_of_subjects(self, entries: int) -> Iterator[Batch]:
        """Yield the rows sorted by how many rows their subject has; rows in files keep the order of the files."""
        if self._batches is not None or self.rows_each is None:
            yield from self.batches(entries)
            return
        step = max(1, entries // max(1, self.n_columns))
        for start in range(0, self.n_rows, step):
            numbers = self._by_rows_each[start : start + step]
            make_rows = partial(_taken, self.rows, numbers)
            make_table = partial(lambda numbers: self.table.iloc[numbers], numbers)
            rows_each = self.rows_each[numbers]
            yield Batch(self.owner, 0, len(numbers), make_table, make_rows, rows_each)

    def _plain_batches(self, entries: int | None = None) -> Iterator[Batch]:
        preparation, source = self._raw or (None, self)
        entries = entries or BATCH_ENTRIES
        if self._batches is None:
            shape, table = (self.n_rows, self.n_columns), source._table
            read = (
                (lambda part: source.table.iloc[part]) if table is None else table.iloc.__getitem__
            )
            return in_batches(
                shape, lambda part: self.rows[part], read, owner=self.owner, entries=entries
            )
        batches = self._batches.read(
            max(1, entries // max(1, self.n_columns, len(self._batches.columns)))
        )
        return batches if preparation is None else map(partial(_prepared, preparation), batches)

    def check(self, schema: Schema | None = None) -> None:
        """Raise a DataError unless the rows fit the schema, or are numbers if there is none; files are read once."""
        if self._batches is None:
            if schema is None:
                _ = self.rows
            else:
                schema.check(self.table, owner=self.owner)
            return

        def fits(batch: Batch) -> None:
            if schema is None:
                _ = batch.rows
            else:
                read = schema.values(
                    batch.table, owner=batch.owner, first_row=batch.first_row, wanted=schema.read
                )
                deque(read, maxlen=0)

        if schema != self._fits:
            if schema is None:
                self._batches.check_numbers()
            deque(mapped(fits, self.batches(), self.n_jobs), maxlen=0)
            self._fits = schema

    def narrowed(self, columns: Collection[str]) -> ClientData:
        """Return data that reads only these columns from its files; tables in memory keep all columns."""
        if self._batches is None:
            return self
        return self._of(
            self._batches.select([name for name in self._batches.columns if name in columns])
        )

    def _of(self, batches: Batches) -> ClientData:
        """Return the data with these batches in place of its own."""
        data = copy.copy(self)
        data._batches, data._rows, data._prepared, data._derived = batches, None, None, {}
        data.columns, data.n_columns = batches.columns, len(batches.columns)
        return data

    def pieces(self) -> Iterator[NDArray[np.float64]]:
        """Yield the rows batch by batch; rows in memory are one piece."""
        if self._batches is None:
            return iter([self.rows])
        return mapped(attrgetter("rows"), self.batches(), self.n_jobs)

    def cluster(self, model: Model, places: NDArray[np.float64] | None = None) -> Clustered:
        """Return the labels and the cost of all rows under a model; rows in files are read batch by batch."""
        if self._batches is None:
            return model.cluster(self.table if isinstance(model, TableModel) else self.rows, places)
        labels, cost, on_map = np.empty(self.n_rows, dtype=np.intp), 0.0, []
        for part, clustered in self.clusters(model):
            labels[part] = clustered.labels
            cost += clustered.cost
            on_map += [] if clustered.places is None else [clustered.places]
        return Clustered(
            labels, cost, np.concatenate(on_map) if on_map and places is None else places
        )

    def clusters(self, model: Model) -> Iterator[tuple[slice, Clustered]]:
        """Yield for each batch the slice of its rows, and their labels and cost under a model."""

        def cluster_batch(batch: Batch) -> Clustered:
            return model.cluster(batch.table if isinstance(model, TableModel) else batch.rows)

        start = 0
        for clustered in mapped(cluster_batch, self.batches(EVALUATED_ENTRIES), self.n_jobs):
            yield slice(start, start := start + len(clustered.labels)), clustered

    @property
    def out_of_scale(self) -> str:
        """Which numbers are too large or too small to be squared, in words; "" if none are, or for a table."""
        return out_of_scale(self._rows, self._column_name)

    @property
    def too_large(self) -> str:
        """Which number is too large to be squared, in words; "" if none is, or for a table. Rows are searched once."""
        rows, found = self._too_large
        if rows is not self._rows:
            found = out_of_scale(self._rows, self._column_name, smallest=0.0)
            self._too_large = self._rows, found
        return found

    def _column_name(self, index: int) -> str:
        return f"column '{self.columns[index]}'" if self.columns else f"column {index}"

    def fingerprint(self) -> NDArray[np.uint64]:
        """Return the number of rows, a hash of each column, and one of the subjects.

        To be fast, the hashes of columns cover at most 10,000 rows, spread over the table.
        """
        of_subjects = [] if self.subjects is None else [self.subjects.fingerprint]
        if self._batches is not None:
            return np.concatenate([self._batches.fingerprint(), *of_subjects])
        chosen = slice(None, None, -(-self.n_rows // SAMPLE))
        if self._table is not None:  # rows may have been computed since
            frame = self._table.iloc[chosen]
            hashes = np.stack([_hashes_of(frame.iloc[:, i]) for i in range(frame.shape[1])], axis=1)
        else:
            hashes = np.ascontiguousarray(self.rows[chosen]).view(np.uint64)
        # Odd, so that the order of the rows matters.
        weights = 2 * np.arange(len(hashes), dtype=np.uint64) + 1
        return np.concatenate(
            [[np.uint64(self.n_rows)], (hashes * weights[:, None]).sum(axis=0), *of_subjects]
        )

    def prepared(self, preparation: Preparation) -> ClientData:
        """Return the data with rows prepared from its table; the last result is cached."""
        if self._prepared is None or self._prepared[0] != preparation:
            if self._batches is None:
                rows = preparation.transform(self.table, owner=self.owner)
                data = ClientData(
                    rows,
                    self.labels,
                    preparation.names,
                    self.owner,
                    row_ids=self.row_ids,
                    id_column=self.id_column,
                    most_rows=self.most_rows,
                )
                data.subjects = self.subjects
            else:
                data = self.narrowed(preparation.schema.read)
                data.columns, data.n_columns = preparation.names, preparation.n_columns
            data._raw = (preparation, self)
            self._prepared = (preparation, data)
        return self._prepared[1]

    @property
    def ids(self) -> NDArray[Any]:
        """Row ids, or row numbers if there are none."""
        return np.arange(self.n_rows) if self.row_ids is None else self.row_ids

    def like(self, other: ClientData) -> ClientData:
        """Return the data with its columns in the order of another client's columns, if they have names."""
        if (other.columns is None) != (self.columns is None):
            named, bare = (self, other) if other.columns is None else (other, self)
            raise DataError(
                f"{named.owner} names its columns and {bare.owner} does not; name the columns of both."
            )
        if other.columns is None:
            if other.n_columns != self.n_columns:
                raise DataError(
                    f"{self.owner} has {self.n_columns} columns where {other.owner} has {other.n_columns}; "
                    "every client needs the same columns."
                )
            return self
        return self.in_order(other.columns, other.owner)

    def in_order(self, columns: Sequence[str], whose: str) -> ClientData:
        """Return the data with its columns in another order."""
        names = list(self.columns or ())
        if names == list(columns):
            return self
        check_same_names(names, columns, self.owner, whose)
        if self._batches is not None:
            return self._of(self._batches.select(columns))
        # The values of an unprepared table may not be read here: a value that is not a number must not raise an error.
        is_raw = self._rows is None
        reordered = ClientData(
            self._table if is_raw else self.rows[:, [names.index(name) for name in columns]],
            self.labels,
            list(columns),
            self.owner,
            row_ids=self.row_ids,
            id_column=self.id_column,
            raw=is_raw,
            schema=self.schema,
            most_rows=self.most_rows,
        )
        reordered.subjects = self.subjects
        return reordered

    def chosen(self, rows: NDArray[np.intp]) -> ClientData:
        """Return some of the rows, by their numbers in ascending order; without ids, the numbers become the ids."""
        if self._batches is not None:
            source: Any = self._batches.chosen(rows)
        else:
            source = self.table.iloc[rows] if self._rows is None else self._rows[rows]
        return ClientData(
            source,
            None if self.labels is None else self.labels[rows],
            self.columns,
            self.owner,
            row_ids=self.ids[rows],
            id_column=self.id_column,
            raw=self._rows is None,
            schema=self.schema,
            most_rows=self.most_rows,
            subjects=None if self.subjects is None else self.subjects[rows],
        )

    def derived(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the result of ``compute`` for the rows, and cache it in place of the last one.

        Small tables are not cached, because computing the result again is as fast.
        """
        kept = self._derived
        if key not in kept:
            kept.clear()
            if self.rows.size < SMALL_TABLE:
                return compute()
            kept[key] = compute()
        result: T = kept[key]
        return result


def _taken(rows: NDArray[np.float64], numbers: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return some rows, in half of the time that ``rows[numbers]`` takes."""
    return rows.take(numbers, axis=0)


def without_subjects(source: Any, column: str, owner: str) -> tuple[Any, Subjects]:
    """Return a table, or Batches, without its column of subjects, and the subjects of its rows."""
    if source is None:
        raise DataError(
            f"{owner}: subject_column is '{column}', and the rows are no table; give subjects instead."
        )
    names = list(source.columns)
    look_up(column, dict.fromkeys(names), f"column of {owner} called")
    where, others = f"{owner}: column '{column}'", [name for name in names if name != column]
    if isinstance(source, Batches):
        pieces = (batch.table[column] for batch in source.select([column]).read(BATCH_ENTRIES))
        return source.select(others), subjects_in_batches(pieces, where)
    return source[others], subjects_of(source[column], where)


def _prepared(preparation: Preparation, batch: Batch) -> Batch:
    """Return a batch of a file whose rows are prepared from its table."""

    def rows() -> NDArray[np.float64]:
        return preparation.transform(batch.table, owner=batch.owner, first_row=batch.first_row)

    return replace(batch, make_table=lambda: batch.table, make_rows=rows)


def _hashes_of(column: Any) -> NDArray[np.uint64]:
    from pandas.util import hash_pandas_object

    try:
        hashes = hash_pandas_object(column, index=False)
    except TypeError:  # lists, in a column that is ignored
        hashes = hash_pandas_object(column.astype(str), index=False)
    return np.asarray(hashes, dtype=np.uint64)


def _checked_ids(ids: ArrayLike, n_rows: int, owner: str) -> NDArray[Any]:
    shape = np.shape(ids)
    if shape != (n_rows,):
        raise DataError(f"{owner}: {math.prod(shape)} ids for {n_rows} rows; give one id per row.")
    missing = _missing(ids, np.asarray(ids))
    if missing.any():
        raise DataError(
            f"{owner}: row {int(missing.argmax())} has no id; give every row one, or none at all."
        )
    return identities(ids, f"{owner}: the ids")


def _checked_labels(labels: ArrayLike, n_rows: int, owner: str) -> NDArray[Any]:
    array = np.asarray(labels)
    if array.ndim != 1:
        raise DataError(f"{owner}: the labels have shape {array.shape}; give one label per row.")
    if len(array) != n_rows:
        raise DataError(f"{owner}: {len(array)} labels for {n_rows} rows; give one label per row.")
    missing = _missing(labels, array)
    if missing.any():
        raise DataError(
            f"{owner}: row {int(missing.argmax())} has no label; give every row one, or none at all."
        )
    return identities(labels, f"{owner}: the labels", are_classes=True)


def _missing(labels: ArrayLike, array: NDArray[Any]) -> NDArray[np.bool_]:
    if array.dtype.kind in "biuf" and not isinstance(labels, np.ma.MaskedArray):
        return np.asarray(array != array)  # only NaN differs from itself
    import pandas as pd

    # NumPy turns NaN in a list of text into 'nan', and a masked entry into whatever lies below the mask.
    values = labels if isinstance(labels, (list, tuple, np.ma.MaskedArray)) else array
    return np.asarray(pd.isna(pd.Series(values)))
