"""What has left a site: a file of JSON lines that only grows, each line chained to the one before by its hash."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from filelock import FileLock

from flower_fedclust.protocol.disk import make_private, open_private, wait_for_disk, wait_for_names

#: The hash before the first line.
START = "0" * 64

#: What stands in a line before its hash, which is of all before it.
MARK = b',"hash":"'


class LedgerError(Exception):
    """A ledger that has been changed, or that nobody can go on writing; the message says in which line."""


class Ledger:
    """A ledger.

    Parameters
    ----------
    path : str or Path
        The file; it and its folder are made when the first entry is written, for their owner alone.

    Attributes
    ----------
    entries : list of dict
        As they were when the ledger was last read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.entries: list[dict[str, Any]] = []
        self._last = START
        self._n_bytes = 0

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the ledger alone, and know all of it: nobody else writes between a decision and its entry."""
        make_private(self.path.parent)
        with FileLock(f"{self.path}.lock", mode=0o600):  # made anew: one that is there before a fork is not taken
            self.read()
            yield

    def read(self) -> list[dict[str, Any]]:
        """Read what was written since the last time, and check that every line follows from the one before.

        Returns
        -------
        list of dict
            All entries.

        Raises
        ------
        LedgerError
            If a line was changed, added, removed or moved.
        """
        if not self.path.exists():
            if self._n_bytes:
                raise LedgerError(f"{self.path} is gone; put it back, or the site does not know what has left it.")
            return self.entries
        with self.path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            if file.tell() < self._n_bytes:
                raise LedgerError(f"{self.path} has become shorter; lines were taken away at its end.")
            file.seek(self._n_bytes)
            fresh = file.read()
        # A line without an end was being written when the machine stopped: nothing of it has left the site.
        whole = fresh[: fresh.rfind(b"\n") + 1]
        for line in whole.splitlines():
            self._take(line)
        self._n_bytes += len(whole)
        return self.entries

    def append(self, entry: Mapping[str, Any], beside: Sequence[IO[bytes]] = ()) -> dict[str, Any]:
        """Write an entry, and return when it is on the disk. Call it while the ledger is :meth:`locked`.

        Parameters
        ----------
        entry : mapping
            Ready for JSON. ``number`` and ``hash`` are added.
        beside : sequence of files
            What has to be on the disk as well; they wait for it together with the ledger.
        """
        full = {"number": len(self.entries) + 1, **entry}
        body = json.dumps(full, separators=(",", ":"), allow_nan=False).encode()
        full["hash"] = _hash(self._last, body)
        line = body[:-1] + MARK + full["hash"].encode() + b'"}\n'
        with open_private(self.path, os.O_RDWR | os.O_CREAT, "r+b") as file:
            file.seek(self._n_bytes)
            file.truncate()
            file.write(line)
            wait_for_disk([file, *beside])
        if len(self.entries) == 0:
            wait_for_names(self.path.parent)
        self.entries.append(full)
        self._last = full["hash"]
        self._n_bytes += len(line)
        return full

    def _take(self, line: bytes) -> None:
        number = len(self.entries) + 1
        body, _, said = line.rpartition(MARK)
        try:
            entry = json.loads(line)
            found = _hash(self._last, body + b"}")
            follows = said == f'{found}"}}'.encode() and entry["number"] == number
        except (ValueError, KeyError, TypeError):
            raise LedgerError(f"{self.path}, line {number}: this is no entry of a ledger.") from None
        if not follows:
            raise LedgerError(
                f"{self.path}, line {number}: the entry does not follow from the lines before it; somebody has changed "
                "this line or one before."
            )
        self.entries.append(entry)
        self._last = found


def _hash(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + body).hexdigest()
