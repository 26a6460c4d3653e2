"""A journal: what a run's server keeps on disk, so that an interrupted run can go on.

A strategy is a generator: if it is sent the same results again, it reaches the same point. So for each round the
journal holds the result that the protocol received, with the server's noise, and the round's entries in the log. It
holds a single client's reply only if the protocol saw that reply. It also holds the head of the run (its name, the
entropy for its seed, its strategy, and digests of the parameters and of the rows), a digest of the questions of each
round that was asked, and the memories of clients in the same process after the last round.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from flwr.common import Parameters

from flower_fedclust.engine.disk import joined, parted
from flower_fedclust.engine.rounds import (
    Array,
    ProtocolError,
    Question,
    Reply,
    Round,
    TooFewError,
    Total,
)
from flower_fedclust.engine.store import BusyError, Store
from flower_fedclust.engine.wire import decode, encode
from flower_fedclust.format import FORMAT, check_format
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.outside import parsing

#: The memory of clients: arrays by client and key.
Memories = dict[str, dict[str, list[Array]]]

#: The journal's file in its folder.
FILE = "journal.sqlite"
#: A folder with this file was written by an older version.
OLDER = "run.json"

#: The file's four places (see :class:`Store`): the head of the run, the rounds asked, the results received, and the
#: memories of clients.
RUN, ASKED, RECEIVED, MEMORIES = "run", "asked", "received", "memories"

#: The remedy if the file cannot be read.
REMEDY = "choose an empty folder"


@dataclass(frozen=True)
class Record:
    """The record of one round at the server."""

    number: int  #: The round's number; clients enrol in round 1.
    digest: str  #: A hash of the questions; see :func:`digest_of`.
    received: Total | list[Reply] | TooFewError | None  #: The result that the protocol got.
    #: Further facts that a run needs to go on, and its log of the round, as JSON.
    facts: Mapping[str, Any]


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
        self.memories: Callable[[], Memories] = dict  #: The memory of clients in this process.
        #: A digest of the rows of each client of this process, by name.
        self.rows: Mapping[str, str] = {}
        self._store = Store(self.folder / FILE, "a journal", REMEDY, alone=True)
        self._is_open = False
        self._asked: set[str] = set()

    def begin(self, strategy: str, parameters: Mapping[str, Any], run_id: str) -> dict[str, Any]:
        """Open the journal, and return its head: the name of the run, and entropy for its seed."""
        import joblib

        about = {
            "format": FORMAT,
            "strategy": strategy,
            "parameters": joblib.hash(dict(parameters)),
        }
        self._check_folder()
        with self._as_protocol_errors():
            self._store.__enter__()
            self._is_open = True
            content = self._store.get(RUN, RUN)
        if content is None:
            head = {
                **about,
                "run": run_id,
                "entropy": secrets.randbits(63),
                "rows": dict(self.rows),
            }
            with self._store.changing():
                self._store.put(RUN, RUN, json.dumps(head).encode())
            return head
        with self._as_protocol_errors(), parsing(str(self._store.path), "a journal", REMEDY):
            known: dict[str, Any] = json.loads(content)
            check_format(known.get("format"), str(self._store.path), remedy=REMEDY)
        other = [name for name, value in about.items() if known.get(name) != value]
        if other:
            raise ProtocolError(
                f"{self.folder} holds the journal of a run with another {other[0]}; choose an empty folder."
            )
        if [type(known.get(key)) for key in ("run", "entropy", "rows")] != [
            str,
            int,
            dict,
        ] or known["entropy"] < 0:
            raise ProtocolError(
                f"{self._store.path} does not name the run of the journal; choose an empty folder."
            )
        for name, digest in self.rows.items():
            if known["rows"].get(name, digest) != digest:
                raise ProtocolError(
                    f"client {name} has other rows than when the journal {self.folder} began; use the same "
                    "rows, or choose an empty folder."
                )
        self._asked = {name for name, _ in self._store.items(ASKED)}
        return known

    def _check_folder(self) -> None:
        """Raise a ProtocolError if the folder holds anything but a journal."""
        if (self.folder / OLDER).exists():
            raise ProtocolError(
                f"{self.folder} holds the journal of an older version, which this one does not read; choose an empty "
                "folder, or go on with the version that wrote it."
            )
        others = (file.name for file in (self.folder.iterdir() if self.folder.exists() else ()))
        if any(not name.startswith(FILE) for name in others):
            raise ProtocolError(f"{self.folder} already holds other files; choose an empty folder.")

    @contextmanager
    def _as_protocol_errors(self) -> Iterator[None]:
        try:
            yield
        except BusyError:
            raise ProtocolError(
                f"another process is writing the journal {self.folder}; wait until it ends."
            ) from None
        except DataError as error:
            raise ProtocolError(str(error)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let another run open the journal."""
        if self._is_open:
            self._is_open = False
            self._store.__exit__(None, None, None)  # which waits until all is on the disk

    def ask(self, number: int, digest: str) -> bool:
        """Record that a round is about to be asked; return whether it was asked before the interruption.

        When this returns, this and all earlier rounds are on the disk.
        """
        before = _name(number) in self._asked
        self._asked.add(_name(number))
        with self._store.changing():
            self._store.put(ASKED, _name(number), digest.encode())
        return before

    def keep(self, record: Record) -> None:
        """Write a record. It now survives a crash of the process; after :meth:`wait`, also a crash of the machine.

        If the record of a round is lost, the round is asked again before any later one.
        """
        replies = record.received
        arrays: list[Array] = []
        about: dict[str, Any] = {
            "round": record.number,
            "digest": record.digest,
            "facts": record.facts,
        }
        if isinstance(replies, Total):
            arrays, about["n_clients"], about["noise"] = (
                list(replies),
                replies.n_clients,
                replies.noise,
            )
        elif isinstance(replies, TooFewError):
            about["too_few"] = str(replies)
        elif replies is not None:
            arrays = [array for reply in replies for array in reply.arrays]
            about["replies"] = [(reply.client, len(reply.arrays)) for reply in replies]
        memories = self.memories()
        with self._store.changing(at_once=False):
            self._store.put(RECEIVED, _name(record.number), joined(about, encode(arrays).tensors))
            if memories:
                self._store.put(MEMORIES, MEMORIES, _memories_to_bytes(memories))

    def wait(self) -> None:
        """Return when all that was kept is on the disk."""
        with self._store.changing():
            # A change that waits for the disk also waits for all earlier changes.
            self._store.put(ASKED, "", b"")

    def records(self) -> list[Record]:
        """Return the records, from the first round on."""
        with self._as_protocol_errors():
            contents = list(self._store.items(RECEIVED))
            with parsing(str(self._store.path), "a journal", REMEDY):
                return [_record(*parted(content)) for _, content in contents]

    def checked_records(self, asks: Callable[[], str]) -> Iterator[Record]:
        """Yield the records in order; before each, check that the protocol asks the recorded question."""
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
        """Return the memories of this process's clients after the last recorded round."""
        with self._as_protocol_errors():
            content = self._store.get(MEMORIES, MEMORIES)
            with parsing(str(self._store.path), "a journal", REMEDY):
                return _memories_from_bytes(content) if content else {}


def _name(number: int) -> str:
    return f"{number:05d}"


def digest_of(round_: Round | None) -> str:
    """Return a digest of a round's questions; None stands for the enrolment."""
    if round_ is None:
        return "enrol"
    hashed = hashlib.sha256()
    asked = {"": round_.question} if isinstance(round_.question, Question) else round_.question
    for name, question in asked.items():
        arrays, fields = question.to_wire()
        hashed.update(
            json.dumps(
                [type(round_).__name__, name, fields, round_.rows, sorted(round_.named or ())]
            ).encode()
        )
        for array in arrays:
            hashed.update(
                f"{array.dtype.str} {array.shape}".encode() + np.ascontiguousarray(array).tobytes()
            )
    return hashed.hexdigest()


def _record(about: Mapping[str, Any], tensors: list[bytes]) -> Record:
    arrays = _writable(tensors)
    received: Total | list[Reply] | TooFewError | None = None
    if "n_clients" in about:
        received = Total(arrays, about["n_clients"], about["noise"])
    elif "too_few" in about:
        received = TooFewError(str(about["too_few"]))
    elif "replies" in about:
        rest = iter(arrays)
        received = [
            Reply(name, [next(rest) for _ in range(count)]) for name, count in about["replies"]
        ]
    return Record(about["round"], about["digest"], received, about["facts"])


def _writable(tensors: list[bytes]) -> list[Array]:
    # Copies, because a protocol may write to the arrays that it gets.
    return [array.copy(order="K") for array in decode(Parameters(tensors, "numpy.ndarray"))]


def _memories_to_bytes(memories: Memories) -> bytes:
    sizes = [
        (name, key, len(arrays))
        for name, of_one in memories.items()
        for key, arrays in of_one.items()
    ]
    everything = [
        array for of_one in memories.values() for arrays in of_one.values() for array in arrays
    ]
    return joined({"memories": sizes}, encode(everything).tensors)


def _memories_from_bytes(content: bytes) -> Memories:
    about, tensors = parted(content)
    rest = iter(_writable(tensors))
    memories: Memories = {}
    for name, key, count in about["memories"]:
        memories.setdefault(name, {})[key] = [next(rest) for _ in range(count)]
    return memories
