"""Divide one large file with the rows of several clients: it is read once, into a temporary file for each client."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data.batches import DECODED_ENTRIES, ArrowPart, Batches, Part
from flower_fedclust.data.frames import as_frame
from flower_fedclust.data.identities import check_spellings, identities
from flower_fedclust.numerics.checks import DataError

#: A file with more clients than this is not divided but read into memory, because each client needs an open file.
MOST_CLIENTS = 200

#: How many entries of a client are written together. A smaller number makes more pieces, which take longer to read.
WRITTEN_ENTRIES = 2**16


class Folder:
    """A temporary folder that is deleted when no part that reads from it is left."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="fedclust-"))
        self._remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class ClientPart(ArrowPart):
    """The rows of one client, which were copied from a file of several clients to a temporary file."""

    def __init__(self, folder: Folder, number: int, name: str, whole: Part) -> None:
        super().__init__(folder.path / f"{number}.arrow")
        self.name, self.client, self.number, self._whole = whole.name, name, number, whole
        self._folder: Folder | None = folder

    @property
    def counted(self) -> str:
        """The name for messages that count rows: only the rows of the client are counted."""
        return f"{self._whole.name}, among the rows of client {self.client}"

    def stamp(self) -> tuple[int, ...]:
        """Return numbers that change if the original file of all clients changes."""
        return (*self._whole.stamp(), self.number)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the folder when the part is sent to another process, which may read but not delete it."""
        return {**self.__dict__, "_folder": None}


def clients_in(part: Part, column: str) -> tuple[list[str], NDArray[np.intp]] | None:
    """Return the sorted names of the clients and, for each row, the index of its client; None if there are too many.

    Parameters
    ----------
    part : Part
        The file.
    column : str
        The column that names the client of each row.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    values: Any = None
    for first, clients in _columns(part, column):
        missing = pc.is_null(clients, nan_is_null=True).to_numpy(zero_copy_only=False)
        if missing.any():
            at = first + int(missing.argmax())
            raise DataError(
                f"{part.name}: row {at}, column '{column}' is missing; give every row its client."
            )
        values = pc.unique(
            clients if values is None else pa.concat_arrays([values, pc.unique(clients)])
        )
        if len(values) > MOST_CLIENTS:
            return None
    where = f"{part.name}: column '{column}'"
    frame = as_frame(pa.table({column: values}), part.name, names=[column])
    known, of_value = np.unique(identities(frame[column], where), return_inverse=True)
    names = [str(client) for client in known]
    check_spellings(names, where)
    codes = np.empty(part.n_rows, dtype=np.intp)
    for first, clients in _columns(part, column):
        codes[first : first + len(clients)] = of_value[
            pc.index_in(clients, value_set=values).to_numpy()
        ]
    return names, codes


def _columns(part: Part, column: str) -> Iterator[tuple[int, Any]]:
    """Yield the values of a column in pieces, each after the number of its first row."""
    import pyarrow as pa

    first = 0
    for batch in part.read([column], DECODED_ENTRIES):
        clients = batch.column(0)
        yield (
            first,
            clients.dictionary_decode() if pa.types.is_dictionary(clients.type) else clients,
        )
        first += len(batch)


class _Writer:
    """Collects the rows of one client, and writes many at a time to the client's file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[Any] = []
        self._file: Any = None

    def add(self, rows: Any) -> None:
        """Take some rows, as a RecordBatch."""
        self._waiting.append(rows)
        if sum(len(part_rows) for part_rows in self._waiting) * rows.num_columns >= WRITTEN_ENTRIES:
            self._write()

    def _write(self) -> None:
        """Write the waiting rows as one record batch."""
        import pyarrow as pa

        table = pa.Table.from_batches(self._waiting).combine_chunks()
        if self._file is None:
            self._file = pa.ipc.new_file(self._path, table.schema)
        self._file.write_table(table)
        self._waiting = []

    def close(self) -> None:
        """Write the last rows."""
        if self._waiting:
            self._write()
        if self._file is not None:
            self._file.close()


def spread(
    part: Part, columns: Sequence[str], names: Sequence[str], codes: NDArray[np.intp]
) -> list[Batches]:
    """Write each client's rows into a temporary file, and return for each client rows that are read from its file.

    ``codes`` has the index of each row's client in ``names``.
    """
    folder = Folder()
    with ExitStack() as stack:
        writers = [
            stack.enter_context(closing(_Writer(folder.path / f"{n}.arrow")))
            for n in range(len(names))
        ]
        first, n_rows = 0, max(1, DECODED_ENTRIES // max(1, len(columns)))
        for batch in part.read(list(columns), n_rows):
            part_codes = codes[first : first + len(batch)]
            first += len(batch)
            plain = _without_dictionaries(batch)
            for number in np.unique(part_codes):
                writers[number].add(plain.take(np.flatnonzero(part_codes == number)))
    parts = [ClientPart(folder, number, name, part) for number, name in enumerate(names)]
    return [Batches([part], part.name, columns) for part in parts]


def _without_dictionaries(batch: Any) -> Any:
    """Return a RecordBatch whose dictionary codes are replaced by values, because dictionaries may differ by batch."""
    import pyarrow as pa

    plain = [
        column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(plain, names=batch.schema.names)
