"""Stores contents that must survive a crash, by name, in one SQLite file.

A change is atomic: after ``kill -9`` or a power cut, the file is as the last finished change left it. Processes wait
for each other. One table holds everything; ``sqlite3 FILE "select place, name, content from kept"`` shows it.

SQLite keeps a change apart until it is complete, in one of two ways, because file systems differ. Files that several
processes share (``alone=False``) use its rollback journal, which needs only the locks of the file system; a write-ahead
log would need memory that all processes share, which network file systems lack. A file of one process (``alone=True``)
stays locked while it is open. So its write-ahead log needs no shared memory, and a change that need not outlive a power
cut does not wait for the disk.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from zlib import crc32

from flower_fedclust.engine.disk import make_private, open_private, wait_for_names
from flower_fedclust.numerics.checks import DataError

#: Marks files of this package ("fclu"), as SQLite's application id, and the version of their table.
APPLICATION, VERSION = 0x66636C75, 1

#: SQLite takes contents of at most a gigabyte, so larger ones are kept in pieces of so many bytes.
PIECE = 2**26

#: The smallest page of SQLite; only a new file is smaller.
SMALLEST = 512

#: How long a process waits for other processes, in seconds; a change takes milliseconds.
PATIENCE = 60.0

_TABLE = """
CREATE TABLE kept (
    place TEXT NOT NULL, name TEXT NOT NULL, piece INTEGER NOT NULL,
    changed REAL NOT NULL, checksum INTEGER NOT NULL, content BLOB NOT NULL,
    UNIQUE (place, name, piece)
)
"""


class BusyError(RuntimeError):
    """Another process has the file."""


class Store:
    """Stores contents (bytes) by place and name, in a file that only its owner can read.

    Use it as a context manager where several reads and changes belong together; otherwise every call opens the file for
    itself. Reading creates no file.

    Parameters
    ----------
    path : Path
    what : str
        What the file holds, for messages.
    remedy : str
        What to do if the file cannot be read.
    alone : bool, default=False
        Whether one process locks the file while the store is open; other processes get a BusyError at once.

    Raises
    ------
    DataError
        If the file is damaged, or is something else.
    OSError
        If the disk is full, or the file may not be read or written. It names the file.
    BusyError
        If another process has the file.
    """

    def __init__(self, path: Path, what: str, remedy: str, *, alone: bool = False) -> None:
        self.path = path
        self._what = what
        self._remedy = remedy
        self._alone = alone
        #: The open connection: of this thread, or of the process that has the file alone.
        self._held: Any = SimpleNamespace() if alone else threading.local()

    @property
    def _open(self) -> sqlite3.Connection | None:
        connection: sqlite3.Connection | None = getattr(self._held, "connection", None)
        return connection

    def __enter__(self) -> Self:
        """Open the file, and create it if needed."""
        make_private(self.path.parent)
        if os.path.lexists(self.path) and not self.path.is_file():
            raise DataError(f"{self.path} is no file; {self._remedy}.")
        # SQLite would take so small a file for a new one, and overwrite it.
        if self.path.exists() and 0 < self.path.stat().st_size < SMALLEST:
            raise self._damaged()
        if not self.path.exists():
            open_private(self.path, os.O_WRONLY | os.O_CREAT).close()
            wait_for_names(self.path.parent)
        with self._told():
            self._held.connection = self._connected()
        return self

    def __exit__(self, *_: object) -> None:
        if (connection := self._open) is not None:
            self._held.connection = None
            with self._told():
                connection.close()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Keep the file open for several uses, if it exists; this makes no other process wait."""
        if self._open is not None or not self.path.exists():
            yield
            return
        with self:
            yield

    def _connected(self) -> sqlite3.Connection:
        """Return a connection to a file that this package has written, or that is new."""
        patience = 0.0 if self._alone else PATIENCE
        connection = sqlite3.connect(
            self.path, timeout=patience, isolation_level=None, check_same_thread=False
        )
        try:
            if self._alone:
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("BEGIN")  # one view of the file: another process may be creating it
            is_new = self._is_new(connection)
            connection.execute("COMMIT")
            if is_new:
                connection.execute("PRAGMA auto_vacuum = FULL")
                _prepare_to_write(connection, alone=self._alone)
                connection.execute("BEGIN IMMEDIATE")
                if self._is_new(connection):  # another process may have been faster
                    connection.execute(_TABLE)
                    connection.execute(f"PRAGMA application_id = {APPLICATION}")
                    connection.execute(f"PRAGMA user_version = {VERSION}")
                connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        return connection

    def _is_new(self, connection: sqlite3.Connection) -> bool:
        """Return whether the file is empty; raise a DataError if another program has written it."""
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if (application, version) == (APPLICATION, VERSION):
            return False
        (n_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if (application, version, n_tables) == (0, 0, 0):
            return True
        if application != APPLICATION:
            raise DataError(f"{self.path} is the database of another program; {self._remedy}.")
        raise DataError(
            f"{self.path} has format {version}, and this version reads {VERSION}; {self._remedy}."
        )

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn SQLite's errors into a DataError, a BusyError or an OSError that names the file."""
        try:
            yield
        except UnicodeDecodeError as error:
            # A damaged text, in the file or quoted in SQLite's message.
            raise self._damaged() from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise BusyError(
                    f"another process is writing {self.path}; wait until it ends."
                ) from None
            of_disk = {
                sqlite3.SQLITE_FULL: errno.ENOSPC,
                sqlite3.SQLITE_IOERR: errno.EIO,
                sqlite3.SQLITE_CANTOPEN: errno.EACCES,
                sqlite3.SQLITE_READONLY: errno.EACCES,
                sqlite3.SQLITE_PERM: errno.EACCES,
            }.get(code)
            if of_disk is not None:
                raise OSError(of_disk, os.strerror(of_disk), str(self.path)) from error
            raise self._damaged() from error

    def _damaged(self) -> DataError:
        return DataError(f"{self.path} is damaged, or does not hold {self._what}; {self._remedy}.")

    @contextmanager
    def _used(self) -> Iterator[sqlite3.Connection]:
        """Yield the open connection, or open the file for one use."""
        if self._open is not None:
            with self._told():
                yield self._open
            return
        with self, self._told():
            assert self._open is not None
            yield self._open

    @contextmanager
    def changing(self, *, at_once: bool = True) -> Iterator[None]:
        """Make a change of several reads and writes, all or nothing.

        With ``at_once``, the change is on the disk when the context ends. Otherwise, which only a file of one process
        allows, the change survives the end of the process, but a power cut only once a later change is on the disk.
        """
        with self._used() as connection:
            _prepare_to_write(connection, alone=self._alone, at_once=at_once)
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # a full disk may have ended it
                    connection.execute("ROLLBACK")
                raise

    def put(self, place: str, name: str, content: bytes) -> None:
        """Store a content, in place of a former one of the same name. Allowed only inside :meth:`changing`."""
        view = memoryview(content)
        pieces = [view[start : start + PIECE] for start in range(0, max(1, len(view)), PIECE)]
        with self._used() as connection:
            for number, piece in enumerate(pieces):
                connection.execute(
                    "INSERT INTO kept VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (place, name, piece) DO UPDATE SET"
                    " content = excluded.content, checksum = excluded.checksum, changed = excluded.changed",
                    (place, name, number, time.time(), crc32(piece), piece),
                )
            connection.execute(
                "DELETE FROM kept WHERE place = ? AND name = ? AND piece >= ?",
                (place, name, len(pieces)),
            )

    def forget(self, place: str, name: str | None = None) -> None:
        """Remove a content, or all contents of a place. Allowed only inside :meth:`changing`."""
        with self._used() as connection:
            connection.execute(
                "DELETE FROM kept WHERE place = ? AND name = ifnull(?, name)", (place, name)
            )

    def get(self, place: str, name: str) -> bytes | None:
        """Return a content, or None."""
        return dict(self.items(place, name)).get(name)

    def items(self, place: str, name: str | None = None) -> Iterator[tuple[str, bytes]]:
        """Yield the names and contents of a place, in the order in which they were first put."""
        if not self.path.exists():
            return
        with self._used() as connection:
            names = connection.execute(
                "SELECT name FROM kept WHERE place = ? AND name = ifnull(?, name) AND piece = 0 ORDER BY rowid",
                (place, name),
            ).fetchall()
            for (key,) in names:
                pieces = connection.execute(
                    "SELECT piece, checksum, content FROM kept WHERE place = ? AND name = ? ORDER BY piece",
                    (place, key),
                ).fetchall()
                for number, (piece, checksum, content) in enumerate(pieces):
                    if (number, type(content)) != (piece, bytes) or crc32(content) != checksum:
                        raise self._damaged()
                yield (
                    key,
                    pieces[0][2]
                    if len(pieces) == 1
                    else b"".join(content for *_, content in pieces),
                )

    def names(self) -> list[tuple[str, str, float]]:
        """Return place, name and the time of the last change of every content."""
        if not self.path.exists():
            return []
        with self._used() as connection:
            return connection.execute(
                "SELECT place, name, changed FROM kept WHERE piece = 0 ORDER BY rowid"
            ).fetchall()


def _prepare_to_write(connection: sqlite3.Connection, *, alone: bool, at_once: bool = True) -> None:
    """Say how a change reaches the disk; a connection that only reads need not know."""
    connection.execute(f"PRAGMA journal_mode = {'WAL' if alone else 'TRUNCATE'}").fetchall()
    connection.execute(f"PRAGMA synchronous = {'FULL' if at_once else 'NORMAL'}")
    # What a site forgets, such as secrets, is overwritten.
    connection.execute("PRAGMA secure_delete = ON")
