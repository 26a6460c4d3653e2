"""Rows that were clipped and rounded to integers, kept between rounds as long as their frame stays the same.

A frame is the public origin and radius to which rows are clipped; see :class:`~flower_fedclust.exact.rows.Frame`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine.client_data import ClientData
from flower_fedclust.exact.constant import array_key
from flower_fedclust.exact.device import Held, Host, current_device
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.numerics.checks import check_real
from flower_fedclust.outside import machine_memory

Floats = NDArray[np.float64]

#: By default kept rows take at most this fraction of the machine's memory (PART_OF_MEMORY), or of the free memory of a
#: graphics card (PART_OF_CARD).
PART_OF_MEMORY, PART_OF_CARD = 1 / 8, 4 / 5

#: The fewest entries of a batch that is kept. Other batches may be smaller; in large ones the fixed time that a batch
#: takes counts less.
KEPT_ENTRIES = 2**20

#: Rows with fewer entries in all are not kept: to clip and round them again takes hardly any time.
FEWEST_ENTRIES = 2**16


class KeptOfClient:
    """The kept batches of one client's rows in one frame, by number.

    Without a graphics card, the batches lie in one array. When the frame changes, the new rows overwrite it, because
    allocating new memory takes as long as a few rounds.
    """

    def __init__(self, store: KeptRows, frame: Frame, entries: int, room: Floats | None) -> None:
        self.frame, self.entries, self.room = frame, entries, room
        self.batches: dict[int, Rows] = {}
        self.is_complete = False
        self._store, self._lock, self._n_taken = store, Lock(), 0

    def keep(self, number: int, values: Held) -> Rows:
        """Clip a batch to the frame and round it to integers; keep the result if there is room.

        The result is valid until rows of the same client are kept in another frame: these overwrite it.
        """
        n_bytes = _bytes_of(*values.shape)
        if not self._store.has_taken(n_bytes):
            return self.frame.rows(values)
        try:
            rows = self.batches[number] = self.frame.rows(values, out=self._next(len(values)))
        except BaseException:
            # The slice for this batch has been given out, so a second try gets other memory than the array.
            self.room = None
            self._store.give_back(n_bytes)
            raise
        return rows

    def _next(self, n_rows: int) -> Held:
        """Return the slice of the array for the next batch; None if there is no array."""
        if self.room is None:
            return None
        with self._lock:
            start, self._n_taken = self._n_taken, self._n_taken + n_rows
        return self.room[start : start + n_rows]

    def ends_with(self, n_rows: int) -> None:
        """Note that all ``n_rows`` rows were read; if all of them were kept, they need not be read again."""
        if not self.is_complete and sum(map(len, self.batches.values())) == n_rows:
            self.batches, self.is_complete = dict(sorted(self.batches.items())), True

    @property
    def n_bytes(self) -> int:
        """How many bytes the batches take."""
        return sum(_bytes_of(len(rows), rows.n_columns) for rows in self.batches.values())


class KeptRows:
    """The clipped and rounded rows that a run keeps, up to a number of bytes.

    Many rounds use the same frame, so a batch is kept until the frame of its client changes. A batch for which there is
    no room is made again in each round. Rows that are read from files are kept only on a graphics card, because they
    may not fit into the memory of the machine.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self.n_bytes = most_bytes, 0
        self._of: WeakKeyDictionary[ClientData, KeptOfClient] = WeakKeyDictionary()
        self._lock = Lock()

    def of(self, source: ClientData, frame: Frame, entries: int) -> KeptOfClient | None:
        """Return the kept batches of a client's rows in a frame; None if these rows are not kept.

        Kept batches have at least ``entries`` entries. Their size may be larger, and the caller must use it.
        """
        entries = max(entries, KEPT_ENTRIES)
        if source.n_rows * source.n_columns < FEWEST_ENTRIES:
            return None
        if not (source.is_in_memory or current_device().is_card):
            return None
        kept = self._of.get(source)
        if (
            kept is None
            or array_key(*kept.frame.arrays) != array_key(*frame.arrays)
            or kept.entries < entries
        ):
            # Count the bytes again: the rows in the former frame, and the rows of clients that are gone, are freed.
            self._of.pop(source, None)
            self.n_bytes = sum(other.n_bytes for other in self._of.values())
            room = None if kept is None else kept.room
            kept = self._of[source] = KeptOfClient(self, frame, entries, self._room(source, room))
        return kept

    def _room(self, source: ClientData, former: Floats | None) -> Floats | None:
        """Return an array for all rows of a client: the former if it fits. None on a card, or if there is no room."""
        shape = source.n_rows, source.n_columns
        if (
            not isinstance(current_device(), Host)
            or self.n_bytes + _bytes_of(*shape) > self.most_bytes
        ):
            return None
        return np.empty(shape) if former is None or former.shape != shape else former

    def has_taken(self, n_bytes: int) -> bool:
        """Reserve this many bytes; return whether there was room for them."""
        with self._lock:
            has_room = self.n_bytes + n_bytes <= self.most_bytes
            self.n_bytes += n_bytes if has_room else 0
        return has_room

    def give_back(self, n_bytes: int) -> None:
        """Free bytes that were reserved for a batch that was not kept."""
        with self._lock:
            self.n_bytes -= n_bytes


def _bytes_of(n_rows: int, n_columns: int) -> int:
    # 8 bytes an entry; four more for each row hold its norm, and the points that the last question found nearest to it.
    return 8 * n_rows * (n_columns + 4)


_KEPT: ContextVar[KeptRows | None] = ContextVar("kept_rows", default=None)


def kept_rows() -> KeptRows | None:
    """Return the current run's kept rows; None outside of :func:`keeping_rows`."""
    return _KEPT.get()


@contextmanager
def keeping_rows(most_gigabytes: float | None) -> Iterator[None]:
    """Keep rows inside this context, up to so many gigabytes; None stands for PART_OF_MEMORY or PART_OF_CARD."""
    if most_gigabytes is None:
        free = current_device().free_memory()
        most_bytes = PART_OF_MEMORY * machine_memory() if free is None else PART_OF_CARD * free
    else:
        check_real("kept_rows", most_gigabytes, at_least=0)
        most_bytes = 1e9 * most_gigabytes
    # 1e300 gigabytes are infinitely many bytes, and mean that all rows are kept.
    token = _KEPT.set(KeptRows(int(min(most_bytes, 2.0**62))))
    try:
        yield
    finally:
        _KEPT.reset(token)
