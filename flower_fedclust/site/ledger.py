"""The ledger of what has left a site: JSON lines that are only added; the hash of a line covers the line before.

So nobody can change, remove or insert a line without changing the hash of every later line. A
second file, the head, holds the number and the hash of the last line, and so shows if lines are
missing at the end. Every write goes first to the ledger and then to the head, and returns when both
are on the disk. So if a machine stops, the ledger may have one line more than the head, but never a
line less.

Each line is one charge, the entry about an answer, or facts that were added to an earlier charge:
whether the answer was sent, and how large it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from flower_fedclust.engine.disk import make_private, open_private, wait_for_disk, wait_for_names
from flower_fedclust.format import FORMAT, FormatError, check_format

#: The hash that the first line covers in place of the hash of a line before it.
START = "0" * 64

#: This text separates the hash from the rest of a line; the hash covers everything before this text.
MARK = b',"hash":"'


class LedgerError(ValueError):
    """A ledger is missing or was changed; the message names the file and the line."""


class Ledger:
    """A ledger in a file, with its head in a second file beside it.

    Only :meth:`create` makes these files. ``entries`` holds every charge and its outcome, as they
    were at the last :meth:`read`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.head = self.path.with_suffix(".head")
        self.entries: list[dict[str, Any]] = []
        self._hashes: list[str] = []  # the hashes of the lines
        self._by_line: dict[int, dict[str, Any]] = {}
        self._n_bytes = 0

    @property
    def witness(self) -> str:
        """The number and the hash of the last line.

        Anybody who has noted this text can check later, with :meth:`has`, that the line is still
        there.
        """
        return f"{len(self._hashes)}:{self._hashes[-1]}"

    def has(self, witness: str) -> bool:
        """Return whether the ledger has a line, given by its hash or by its number and hash."""
        recorded = witness.rpartition(":")[2]
        return recorded in self._hashes and witness in (
            recorded,
            f"{self._hashes.index(recorded) + 1}:{recorded}",
        )

    def create(self) -> None:
        """Begin a ledger; raise a LedgerError if there already is a ledger or a head."""
        make_private(self.path.parent)
        with self._lock():
            for path in (self.path, self.head):
                if path.exists():
                    raise LedgerError(
                        f"{path} exists already; a ledger is created only once, in a new folder."
                    )
            open_private(self.path).close()
            self._write({"format": FORMAT})

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Read the ledger, and hold its lock, so that nobody else writes between a decision and its entry.

        Raises a LedgerError in the cases of :meth:`read`, and if the head is more than one line
        behind the ledger.
        """
        if not self.path.parent.exists():
            raise self._missing()
        with self._lock():
            self.read()
            self.check_head()
            yield

    def check_head(self) -> None:
        """Raise a LedgerError if the head is more than one line behind what was read."""
        n_known = int(self._read_head().partition(":")[0])
        if n_known < len(self._hashes) - 1:
            raise LedgerError(f"{self.head} is older than {self.path}: it ends at line {n_known}.")

    def _lock(self) -> FileLock:
        """Return the lock of the ledger."""
        # a new object each time, because one from before a fork does not exclude the other process
        return FileLock(f"{self.path}.lock", mode=0o600)

    def read(self) -> list[dict[str, Any]]:
        """Read what was written since the last time, check the chain of hashes, and return all entries.

        Raises a LedgerError if a line was changed, added, removed or moved, or if lines are
        missing.
        """
        # The head is read before the ledger: another process may be writing, and the ledger only grows.
        head = self._read_head()
        with self.path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            if file.tell() < self._n_bytes:
                raise LedgerError(f"{self.path} has become shorter; lines at its end were removed.")
            file.seek(self._n_bytes)
            fresh = file.read()
        # The machine stopped while a line without an end was written; nothing was computed for this line.
        *whole, _ = fresh.split(b"\n")
        for line in whole:
            self._take(line)
            self._n_bytes += len(line) + 1
        if not self.has(head):
            raise LedgerError(
                f"{self.path} has {len(self._hashes)} whole lines, but not line {head}, which {self.head} says is the "
                "last: lines were removed or rewritten, or one of the two files is from a backup."
            )
        return self.entries

    def append(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Charge an entry, and return it when it is on the disk; the ledger must be :meth:`locked`."""
        return self._write(entry)

    def note(self, entry: dict[str, Any], **facts: Any) -> dict[str, Any]:
        """Add facts to an entry, and return it once they are on the disk."""
        self._write({"of": entry["number"], **facts})
        return entry

    def _write(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Write a line with its number, a salt and its hash, then the head; return the line's facts."""
        # Without the salt, somebody who knows a hash could guess the line and compare its hash.
        full = {"number": len(self._hashes) + 1, **facts, "salt": secrets.token_hex(16)}
        body = json.dumps(full, separators=(",", ":"), allow_nan=False).encode()
        full["hash"] = _hash(self._last, body)
        line = body[:-1] + MARK + full["hash"].encode() + b'"}\n'
        fresh = self.head.with_suffix(".head.new")
        with open_private(self.path, os.O_RDWR, "r+b") as file, open_private(fresh) as head:
            file.seek(self._n_bytes)
            file.truncate()
            file.write(line)
            head.write(f"{full['number']}:{full['hash']}\n".encode())
            wait_for_disk([file, head])
        fresh.replace(self.head)
        wait_for_names(self.path.parent)
        self._n_bytes += len(line)
        return self._know(full)

    @property
    def _last(self) -> str:
        """The hash of the last line."""
        return self._hashes[-1] if self._hashes else START

    def _read_head(self) -> str:
        """Return the content of the head; raise a LedgerError if it is missing or malformed."""
        for path in (self.path, self.head):
            if not path.exists():
                raise self._missing()
        said = self.head.read_bytes()
        if re.fullmatch(rb"[1-9][0-9]{0,14}:[0-9a-f]{64}\n", said) is None:
            raise LedgerError(f"{self.head}, line 1: this is not the number and hash of a line.")
        return said[:-1].decode()

    def _missing(self) -> LedgerError:
        """Return the error that says which of the two files is missing."""
        there = [path for path in (self.path, self.head) if path.exists()]
        if there or self._hashes:
            gone = next(path for path in (self.path, self.head) if path not in there)
            return LedgerError(
                f"{gone} is gone; put it back: without it the site does not know what has left it."
            )
        return LedgerError(
            f"{self.path} does not exist: 'fedclust site --init' creates it, once, before a site's first run."
        )

    def _take(self, line: bytes) -> None:
        """Check one more line of the file, and take over its content.

        The line must be JSON in the format of the ledger, have the next number, and end with the
        hash of its content and of the line before it. Raises a LedgerError with the file and the
        line's number otherwise.
        """
        number = len(self._hashes) + 1
        body, _, said = line.rpartition(MARK)
        try:
            full = json.loads(line)
            form = full.get("format") if number == 1 else FORMAT
            follows = full["number"] == number and ("of" not in full or full["of"] in self._by_line)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise LedgerError(
                f"{self.path}, line {number}: this is not an entry of a ledger."
            ) from None
        try:
            check_format(
                form,
                f"{self.path}, line 1:",
                remedy="use the version that wrote it, or begin a new ledger",
            )
        except FormatError as error:
            raise LedgerError(str(error)) from None
        if not follows or said != f'{_hash(self._last, body + b"}")}"}}'.encode():
            raise LedgerError(
                f"{self.path}, line {number}: the entry does not follow from the lines before it; this line, or one "
                "before, was changed."
            )
        self._know(full)

    def _know(self, full: dict[str, Any]) -> dict[str, Any]:
        """Take over the content of a line that is on the disk, and return the content."""
        self._hashes.append(full["hash"])
        if "of" in full:
            self._by_line[full["of"]].update(
                {
                    key: value
                    for key, value in full.items()
                    if key not in ("number", "of", "salt", "hash")
                }
            )
        elif "format" not in full:
            self.entries.append(full)
            self._by_line[full["number"]] = full
        return full


def _hash(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + body).hexdigest()
