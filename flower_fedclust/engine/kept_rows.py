"""Rows on the grid, kept between the rounds of a run as long as their frame stays the same."""

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

#: The default bound is this part of the machine's memory, or of what is free on a card.
PART_OF_MEMORY, PART_OF_CARD = 1 / 8, 4 / 5

#: Entries of a batch of rows that are kept, at least: more than of other batches, so that what a batch takes by itself
#: counts less.
KEPT_ENTRIES = 2**20

#: Rows of fewer entries are put on the grid again: it takes no time.
FEWEST_ENTRIES = 2**16


class KeptOfClient:
    """The batches of one client's rows in one frame, by number.

    On a processor they lie in one array, which the next frame's rows take over: new memory costs as much time as some
    rounds.
    """

    def __init__(self, store: KeptRows, frame: Frame, entries: int, room: Floats | None) -> None:
        self.frame, self.entries, self.room = frame, entries, room
        self.batches: dict[int, Rows] = {}
        self.is_complete = False
        self._store, self._lock, self._n_taken = store, Lock(), 0

    def keep(self, number: int, values: Held) -> Rows:
        """Put a batch onto the grid, and keep it if there is room.

        The rows are valid until rows of the same client are kept in another frame, which take their memory over.
        """
        n_bytes = _bytes_of(*values.shape)
        if not self._store.has_taken(n_bytes):
            return self.frame.rows(values)
        try:
            rows = self.batches[number] = self.frame.rows(values, out=self._next(len(values)))
        except BaseException:
            # The place of this batch in the array is lost, so a second try gets memory of its own.
            self.room = None
            self._store.give_back(n_bytes)
            raise
        return rows

    def _next(self, n_rows: int) -> Held:
        """Return the part of the array in which the next batch lies; None without one."""
        if self.room is None:
            return None
        with self._lock:
            start, self._n_taken = self._n_taken, self._n_taken + n_rows
        return self.room[start : start + n_rows]

    def ends_with(self, n_rows: int) -> None:
        """Note that all rows were read: if all were kept, they need not be read again."""
        if not self.is_complete and sum(map(len, self.batches.values())) == n_rows:
            self.batches, self.is_complete = dict(sorted(self.batches.items())), True

    @property
    def n_bytes(self) -> int:
        """How many bytes its batches have."""
        return sum(_bytes_of(len(rows), rows.n_columns) for rows in self.batches.values())


class KeptRows:
    """The rows on the grid that a run keeps, up to a number of bytes.

    Rounds often ask in the same frame, so a batch is kept until the frame of its client changes. A batch that finds no
    room is made again in each round. Rows in files are kept on a card alone, so that the memory of this machine does
    not have to hold them.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self.n_bytes = most_bytes, 0
        self._of: WeakKeyDictionary[ClientData, KeptOfClient] = WeakKeyDictionary()
        self._lock = Lock()

    def of(self, source: ClientData, frame: Frame, entries: int) -> KeptOfClient | None:
        """Return the kept batches of a client's rows in a frame; None if these rows are not kept.

        Batches that are kept have ``entries`` entries or more; the caller goes on with their size.
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
            # Rows in the former frame, and rows of clients that are gone, have freed their room.
            self._of.pop(source, None)
            self.n_bytes = sum(other.n_bytes for other in self._of.values())
            room = None if kept is None else kept.room
            kept = self._of[source] = KeptOfClient(self, frame, entries, self._room(source, room))
        return kept

    def _room(self, source: ClientData, former: Floats | None) -> Floats | None:
        """Return an array for all rows of a client on a processor, if they are within the bound: the former, or new."""
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
    # With room for their norms, and for the points that the last question found to be nearest.
    return 8 * n_rows * (n_columns + 4)


_KEPT: ContextVar[KeptRows | None] = ContextVar("kept_rows", default=None)


def kept_rows() -> KeptRows | None:
    """Return what the run keeps; None outside of :func:`keeping_rows`."""
    return _KEPT.get()


@contextmanager
def keeping_rows(most_gigabytes: float | None) -> Iterator[None]:
    """Keep rows inside this context; None stands for a part of the memory of the machine, or of the card."""
    if most_gigabytes is None:
        free = current_device().free_memory()
        most_bytes = PART_OF_MEMORY * machine_memory() if free is None else PART_OF_CARD * free
    else:
        check_real("kept_rows", most_gigabytes, at_least=0)
        most_bytes = 1e9 * most_gigabytes
    token = _KEPT.set(KeptRows(int(most_bytes)))
    try:
        yield
    finally:
        _KEPT.reset(token)
