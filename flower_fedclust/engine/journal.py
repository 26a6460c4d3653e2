"""What a run's server has received, on disk, so that an interrupted run can go on.

A strategy is a generator: given again what it was given before, it reaches the same point. The journal holds only that:
what the protocol got from each round, with the server's noise, and what the log says of the round. A single client's
reply is in it only if the protocol saw it.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import struct
from binascii import unhexlify
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self
from zlib import crc32

import numpy as np
from filelock import FileLock, Timeout
from flwr.common import Parameters

from flower_fedclust.engine.disk import joined, open_private, parted, replace_private, wait_for_disk, wait_for_names
from flower_fedclust.engine.rounds import Array, ProtocolError, Question, Reply, Round, Total
from flower_fedclust.engine.wire import decode, encode
from flower_fedclust.format import FORMAT, check_format
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.outside import parsing, read_json, reading

#: What a client remembers: arrays by client and key.
Memories = dict[str, dict[str, list[Array]]]

#: The file to which every round is appended, and the length of the header with the checksum of each piece.
ROUNDS, HEAD = "rounds", 24


@dataclass(frozen=True)
class Record:
    """What one round left at the server."""

    number: int  #: Of the round; clients enrol in the first.
    digest: str  #: Of what was asked; see :func:`digest_of`.
    received: Total | list[Reply] | None  #: What the protocol got.
    facts: Mapping[str, Any]  #: What else a run needs to go on, and what its log says of the round, as JSON.


class Journal:
    """The journal of one run, in a folder of its own.

    Pass the folder to :func:`~flower_fedclust.simulate`, or set ``strategy.journal``. If the folder holds the journal
    of an interrupted run, that run goes on.

    Parameters
    ----------
    folder : str or Path
        Created if needed, readable by its owner alone.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        self.memories: Callable[[], Memories] = dict  #: What clients of this process remember.
        self.rows: Mapping[str, str] = {}  #: A digest of the rows of each client of this process, by name.
        self._lock = FileLock(self.folder / "lock")
        self._file: IO[bytes] | None = None
        self._asked: set[int] = set()
        self._last_memory: Path | None = None  # a file that may not be on the disk yet

    def begin(self, strategy: str, parameters: Mapping[str, Any], run_id: str) -> dict[str, Any]:
        """Open the journal, and return its head: the name of the run, and entropy for its seed."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ProtocolError(f"another process is writing the journal {self.folder}; wait until it ends.") from None
        import joblib

        about = {"format": FORMAT, "strategy": strategy, "parameters": joblib.hash(dict(parameters))}
        path = self.folder / "run.json"
        if not path.exists():
            if any(file.name != "lock" for file in self.folder.iterdir()):
                raise ProtocolError(f"{self.folder} already holds other files; choose an empty folder.")
            head = {**about, "run": run_id, "entropy": secrets.randbits(63), "rows": dict(self.rows)}
            replace_private(path, json.dumps(head, indent=2).encode())
            self._open(0)
            return head
        try:
            known = read_json(path, "choose an empty folder")
            check_format(known.get("format"), str(path), remedy="choose an empty folder")
        except DataError as error:
            raise ProtocolError(str(error)) from None
        other = [name for name, value in about.items() if known.get(name) != value]
        if other:
            raise ProtocolError(
                f"{self.folder} holds the journal of a run with another {other[0]}; choose an empty folder."
            )
        if [type(known.get(key)) for key in ("run", "entropy", "rows")] != [str, int, dict] or known["entropy"] < 0:
            raise ProtocolError(f"{path} does not name the run of the journal; choose an empty folder.")
        for name, digest in self.rows.items():
            if known["rows"].get(name, digest) != digest:
                raise ProtocolError(
                    f"client {name} has other rows than when the journal {self.folder} began; use the same "
                    "rows, or choose an empty folder."
                )
        with parsing(str(self.folder / ROUNDS), "a journal", "choose an empty folder"):
            pieces = list(self._pieces())
            self._asked = {about["asked"] for _, about, _ in pieces if "asked" in about}
        self._open(pieces[-1][0] if pieces else 0)
        return known

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let another run open the journal."""
        with self._named(), ExitStack() as stack:  # later steps run even if one fails, as on a full disk
            stack.callback(self._lock.release)
            if self._file is not None:
                stack.callback(setattr, self, "_file", None)
                stack.callback(self._file.close)
                self.wait()

    def ask(self, number: int, digest: str) -> bool:
        """Write that a round is asked; return whether it was asked before the interruption.

        When this returns, this and all earlier rounds are on the disk.
        """
        before = number in self._asked
        self._asked.add(number)
        with self._named():
            self._write({"asked": number, "digest": digest}, [])
            self.wait()
        return before

    def keep(self, record: Record) -> None:
        """Write a record. It survives the process at once, and a machine that stops only after :meth:`wait`.

        A round that is lost is asked again, before anything that follows from it is asked.
        """
        replies = record.received
        arrays: list[Array] = []
        about: dict[str, Any] = {"digest": record.digest, "facts": record.facts}
        if isinstance(replies, Total):
            arrays, about["n_clients"], about["noise"] = list(replies), replies.n_clients, replies.noise
        elif replies is not None:
            arrays = [array for reply in replies for array in reply.arrays]
            about["replies"] = [(reply.client, len(reply.arrays)) for reply in replies]
        with self._named():
            if memories := self.memories():
                content = _memories_to_bytes(memories)
                about["memory"] = crc32(content)
                self._last_memory = self.folder / f"{record.number:05d}.clients"
                with open_private(self._last_memory) as file:
                    file.write(content)
            self._write({"round": record.number, **about}, encode(arrays).tensors)

    def wait(self) -> None:
        """Return when all that was kept is on the disk."""
        assert self._file is not None
        with ExitStack() as stack:
            memory = self._last_memory
            wait_for_disk([self._file, *([stack.enter_context(memory.open("r+b"))] if memory is not None else [])])
        if memory is not None:
            wait_for_names(self.folder)
            for path in self.folder.glob("*.clients"):
                if path.stem < memory.stem:
                    path.unlink()
        self._last_memory = None

    def records(self) -> list[Record]:
        """Return the records, from the first round on."""
        with parsing(str(self.folder / ROUNDS), "a journal", "choose an empty folder"):
            return [_record(about, tensors) for _, about, tensors in self._pieces() if "round" in about]

    def checked_records(self, asks: Callable[[], str]) -> Iterator[Record]:
        """Yield the records, each once the protocol asks what it asked before."""
        before = 0
        for record in self.records():
            if record.digest != asks() or record.number <= before:
                raise ProtocolError(
                    f"round {record.number} is not the one in the journal {self.folder}, which is from another "
                    "version or machine. Choose an empty folder."
                )
            before = record.number
            yield record

    def last_memories(self) -> Memories:
        """Return what clients of this process remembered after the last round that was kept."""
        with parsing(str(self.folder), "a journal", "choose an empty folder"):
            numbers = [about["round"] for _, about, _ in self._pieces() if "round" in about]
            path = self.folder / f"{max(numbers, default=0):05d}.clients"
            content = _content(path)
            return _memories_from_bytes(content) if content else {}

    def _open(self, size: int) -> None:
        """Continue after so many bytes, and drop the incomplete rest."""
        self._file = open_private(self.folder / ROUNDS, os.O_RDWR | os.O_CREAT, "r+b")
        self._file.seek(size)
        self._file.truncate()

    def _write(self, about: Mapping[str, Any], tensors: Sequence[bytes]) -> None:
        assert self._file is not None
        content = joined(about, tensors)
        self._file.write(b"%08x%016x" % (crc32(content), len(content)) + content)
        self._file.flush()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Add the journal's folder to errors of the disk, such as that it is full."""
        try:
            yield
        except OSError as error:
            error.filename = error.filename or str(self.folder)
            raise

    def _pieces(self) -> Iterator[tuple[int, dict[str, Any], list[bytes]]]:
        """Yield the complete pieces: where each ends, its facts, and its arrays as bytes."""
        content = _content(self.folder / ROUNDS)
        end = 0
        while head := content[end : end + HEAD]:
            start = end + HEAD
            try:
                checksum, length = struct.unpack(">IQ", unhexlify(head))
                end = start + length
                piece = content[start:end]
                about, tensors = parted(piece) if len(piece) == length and crc32(piece) == checksum else ({}, [])
            except (ValueError, struct.error):
                return
            # Only the last file of what clients remember exists, and it may be incomplete.
            if not about or (end == len(content) and not self._has_memory(about)):
                return
            yield end, about, tensors

    def _has_memory(self, about: Mapping[str, Any]) -> bool:
        if "memory" not in about:
            return True
        path = self.folder / f"{about['round']:05d}.clients"
        return path.exists() and crc32(_content(path)) == about["memory"]


def digest_of(round_: Round | None) -> str:
    """Return a digest of a round's questions; None stands for the enrolment."""
    if round_ is None:
        return "enrol"
    hashed = hashlib.sha256()
    asked = {"": round_.question} if isinstance(round_.question, Question) else round_.question
    for name, question in asked.items():
        arrays, fields = question.to_wire()
        hashed.update(
            json.dumps([type(round_).__name__, name, fields, round_.rows, sorted(round_.named or ())]).encode()
        )
        for array in arrays:
            hashed.update(f"{array.dtype.str} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


def _content(path: Path) -> bytes:
    """Return what a file of a journal holds; nothing if it does not exist."""
    if not os.path.lexists(path) or (path.is_file() and path.stat().st_size == 0):
        return b""
    with reading(path, "a journal", "choose an empty folder") as file:
        content: bytes = file.read()
        return content


def _record(about: Mapping[str, Any], tensors: list[bytes]) -> Record:
    arrays = _writable(tensors)
    received: Total | list[Reply] | None = None
    if "n_clients" in about:
        received = Total(arrays, about["n_clients"], about["noise"])
    elif "replies" in about:
        rest = iter(arrays)
        received = [Reply(name, [next(rest) for _ in range(count)]) for name, count in about["replies"]]
    return Record(about["round"], about["digest"], received, about["facts"])


def _writable(tensors: list[bytes]) -> list[Array]:
    # Copies, because a protocol may write to what it gets.
    return [array.copy(order="K") for array in decode(Parameters(tensors, "numpy.ndarray"))]


def _memories_to_bytes(memories: Memories) -> bytes:
    sizes = [(name, key, len(arrays)) for name, of_one in memories.items() for key, arrays in of_one.items()]
    everything = [array for of_one in memories.values() for arrays in of_one.values() for array in arrays]
    return joined({"memories": sizes}, encode(everything).tensors)


def _memories_from_bytes(content: bytes) -> Memories:
    about, tensors = parted(content)
    rest = iter(_writable(tensors))
    found: Memories = {}
    for name, key, count in about["memories"]:
        found.setdefault(name, {})[key] = [next(rest) for _ in range(count)]
    return found
