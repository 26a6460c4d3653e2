"""Private files that survive a crash of the machine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, Any


def make_private(folder: Path) -> Path:
    """Create a folder, and its parents, that only its owner can enter; return it."""
    if not folder.exists():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def open_private(
    path: Path, flags: int = os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode: str = "wb"
) -> IO[bytes]:
    """Open a file that only its owner can read; by default a new one."""
    return os.fdopen(os.open(path, flags, 0o600), mode)


def replace_private(path: Path, content: bytes) -> None:
    """Write a file atomically, and return when it is on the disk."""
    fresh = path.with_name(f"{path.name}.new")
    with open_private(fresh) as file:
        file.write(content)
        wait_for_disk([file])
    fresh.replace(path)
    wait_for_names(path.parent)


def wait_for_disk(files: Sequence[IO[bytes]]) -> None:
    """Return when files are on the disk. Waiting for several at once takes little longer than for one."""
    for file in files:
        file.flush()
    others = [_waiting().submit(os.fsync, file.fileno()) for file in files[1:]]
    try:
        os.fsync(files[0].fileno())
    finally:
        wait(others)
    for other in others:
        other.result()  # raises the error of the thread


@lru_cache(maxsize=1)
def _waiting() -> ThreadPoolExecutor:
    """Return a pool of threads that wait; starting a thread for each file would take longer than the wait."""
    return ThreadPoolExecutor(8, thread_name_prefix="fsync")


if hasattr(os, "register_at_fork"):  # a forked process has none of the threads
    os.register_at_fork(after_in_child=_waiting.cache_clear)


def wait_for_names(folder: Path) -> None:
    """Return when the names of a folder's files are on the disk."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def joined(about: Mapping[str, Any], tensors: Sequence[bytes]) -> bytes:
    """Return facts (written as JSON) and tensors as a single bytes object; :func:`parted` undoes this."""
    return b"".join(
        [
            json.dumps({**about, "sizes": [len(tensor) for tensor in tensors]}).encode(),
            b"\n",
            *tensors,
        ]
    )


def parted(content: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Undo :func:`joined`."""
    start = content.index(b"\n") + 1
    try:
        about: dict[str, Any] = json.loads(content[:start])
        ends = [start, *(start + end for end in accumulate(about["sizes"]))]
        if ends != sorted(ends) or ends[-1] > len(content):
            raise ValueError("bytes are missing at the end.")
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError("the facts before the bytes cannot be read.") from error
    return about, [content[begin:end] for begin, end in pairwise(ends)]
