"""What a run's server has received, on disk, so that a run that was interrupted goes on where it was.

A strategy is a generator: whoever gives it once more what it was given before has it where it was. The journal holds
that and nothing else: what the protocol got of each round, with the noise that the server added, and what the reports
say of it. What a client sent for itself is not in it where only a sum, or a noisy reply, goes to the protocol.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import joblib
import numpy as np
from filelock import FileLock, Timeout
from flwr.common import Parameters

from flower_fedclust.protocol.books import Entries
from flower_fedclust.protocol.rounds import Array, Question, Reply, Round, Total
from flower_fedclust.protocol.settings import ProtocolError
from flower_fedclust.protocol.wire import decode, encode

#: What a client remembers: arrays by client and key.
Memories = dict[str, dict[str, list[Array]]]

FORMAT = 1


@dataclass(frozen=True)
class Record:
    """What one round left at the server.

    Parameters
    ----------
    number : int
        Of the round; the first is that in which the clients enrolled.
    digest : str
        Of what was asked; see :func:`digest_of`.
    received : Total, list of Reply, or None
        What the protocol got.
    entries : Entries
        What the books say of the round.
    facts : mapping
        What else a run needs to go on, ready for JSON.
    """

    number: int
    digest: str
    received: Total | list[Reply] | None
    entries: Entries
    facts: Mapping[str, Any]


class Journal:
    """The journal of one run, in a folder of its own.

    Give it to :func:`fedclust.simulate <flower_fedclust.simulate>`, or to a strategy as ``strategy.journal``. A folder
    that holds the journal of a run which was interrupted has it go on.

    Parameters
    ----------
    folder : str or Path
        Made if need be, for its owner alone.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        self.memories: Callable[[], Memories] = dict  #: What clients of this process remember.
        self._lock = FileLock(self.folder / "lock")

    def begin(self, strategy: str, parameters: Mapping[str, Any], run_id: str) -> dict[str, Any]:
        """Open the journal, and return what it says of its run: of a new one its name, and a seed.

        Parameters
        ----------
        strategy : str
        parameters : mapping of str to anything
            What has to be the same where a run goes on.
        run_id : str
            The name of the run, if it is a new one.

        Raises
        ------
        ProtocolError
            If the folder holds the journal of another run, or something else, or if a run is going on with it.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ProtocolError(f"another process writes the journal {self.folder}; let it end first.") from None
        about = {"format": FORMAT, "strategy": strategy, "parameters": joblib.hash(dict(parameters))}
        path = self.folder / "run.json"
        if not path.exists():
            if any(file.name != "lock" for file in self.folder.iterdir()):
                raise ProtocolError(f"{self.folder} already holds something that is no journal; name a new folder.")
            head = {**about, "run": run_id, "entropy": secrets.randbits(63)}
            self._write("run.json", json.dumps(head, indent=2).encode())
            return head
        known: dict[str, Any] = json.loads(path.read_bytes())
        other = [name for name, value in about.items() if known.get(name) != value]
        if other:
            raise ProtocolError(f"{self.folder} holds the journal of a run with another {other[0]}; name a new folder.")
        return known

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let another run open the journal."""
        self._lock.release()

    def ask(self, number: int, digest: str) -> bool:
        """Write that a round is asked, and tell whether it was asked before, without an end."""
        name = f"{number:05d}.asked"
        before = (self.folder / name).exists()
        self._write(name, digest.encode())
        return before

    def keep(self, record: Record) -> None:
        """Write a record, and return when it is on the disk."""
        if memories := self.memories():
            self._write(f"{record.number:05d}.clients", _memories_to_bytes(memories))
        replies = record.received
        arrays: list[Array] = []
        about: dict[str, Any] = {"digest": record.digest, "entries": record.entries.to_dict(), "facts": record.facts}
        if isinstance(replies, Total):
            arrays, about["n_clients"] = list(replies), replies.n_clients
        elif replies is not None:
            arrays = [array for reply in replies for array in reply.arrays]
            about["replies"] = [(reply.client, len(reply.arrays)) for reply in replies]
        self._write(f"{record.number:05d}.round", _to_bytes(about, arrays))
        for path in self.folder.glob("*.clients"):
            if path.stem < f"{record.number:05d}":
                path.unlink()

    def records(self) -> list[Record]:
        """Return the records, from the first round on."""
        found: list[Record] = []
        while (path := self.folder / f"{len(found) + 1:05d}.round").exists():
            about, arrays = _from_bytes(path.read_bytes())
            received: Total | list[Reply] | None = None
            if "n_clients" in about:
                received = Total(arrays, about["n_clients"])
            elif "replies" in about:
                rest = iter(arrays)
                received = [Reply(name, [next(rest) for _ in range(count)]) for name, count in about["replies"]]
            entries = Entries.from_dict(about["entries"])
            found.append(Record(len(found) + 1, about["digest"], received, entries, about["facts"]))
        return found

    def checked_records(self, asks: Callable[[], str]) -> Iterator[Record]:
        """Yield the records, each once the protocol asks what it asked before.

        Parameters
        ----------
        asks : callable
            Returns the digest of the round that the protocol asks now.

        Raises
        ------
        ProtocolError
            If it asks something else.
        """
        for record in self.records():
            if record.digest != asks():
                raise ProtocolError(
                    f"round {record.number} does not ask what the journal {self.folder} says that it asked: it is of "
                    "another version, or another machine. Name a new folder."
                )
            yield record

    def last_memories(self) -> Memories:
        """Return what clients of this process remembered after the last round that was kept."""
        numbers = [path.stem for path in self.folder.glob("*.round")]
        path = self.folder / f"{max(numbers, default='')}.clients"
        return _memories_from_bytes(path.read_bytes()) if path.exists() else {}

    def _write(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all."""
        unfinished = self.folder / f"{name}.new"
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.folder / name)
        if hasattr(os, "O_DIRECTORY"):  # not on Windows, which has no directory to synchronise
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(folder)
            os.close(folder)


def digest_of(round_: Round | None) -> str:
    """Return a digest of what a round asks of whom; None stands for the enrolment."""
    if round_ is None:
        return "enrol"
    hashed = hashlib.sha256()
    asked = {"": round_.question} if isinstance(round_.question, Question) else round_.question
    for name, question in asked.items():
        said = [type(round_).__name__, name, question.answer.task, dict(question.arguments), round_.rows]
        hashed.update(json.dumps([*said, sorted(round_.named or ())]).encode())
        for array in question.arrays:
            hashed.update(f"{array.dtype.str} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


def _to_bytes(about: Mapping[str, Any], arrays: Sequence[Array]) -> bytes:
    tensors = encode(arrays).tensors
    return b"".join([json.dumps({**about, "sizes": [len(one) for one in tensors]}).encode(), b"\n", *tensors])


def _from_bytes(content: bytes) -> tuple[dict[str, Any], list[Array]]:
    head, _, rest = content.partition(b"\n")
    about: dict[str, Any] = json.loads(head)
    tensors, start = [], 0
    for size in about["sizes"]:
        tensors.append(rest[start : start + size])
        start += size
    # Copies: what a protocol gets of a round may be written to.
    return about, [array.copy(order="K") for array in decode(Parameters(tensors, "numpy.ndarray"))]


def _memories_to_bytes(memories: Memories) -> bytes:
    sizes = [(name, key, len(arrays)) for name, of_one in memories.items() for key, arrays in of_one.items()]
    everything = [array for of_one in memories.values() for arrays in of_one.values() for array in arrays]
    return _to_bytes({"memories": sizes}, everything)


def _memories_from_bytes(content: bytes) -> Memories:
    about, arrays = _from_bytes(content)
    rest = iter(arrays)
    found: Memories = {}
    for name, key, count in about["memories"]:
        found.setdefault(name, {})[key] = [next(rest) for _ in range(count)]
    return found
