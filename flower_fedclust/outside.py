"""Files from outside: read within limits; whatever their readers stumble over is one sentence that names the file."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import stat
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.checks import DataError, MissingFileError

#: In bytes. Parsed, a text takes up to fifty times as much memory, and one of TOML much time.
LARGEST_JSON, LARGEST_TOML = 2**27, 2**24

#: What is wrong with a line of CSV, in the words of pandas that hold no value.
_FIELDS = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")


@contextmanager
def reading(path: Path, kind: str, remedy: str, *, name: str | None = None, most: int | None = None) -> Iterator[Any]:
    """Open a file for a reader; raise one DataError in place of whatever the reader raises.

    Every file that a user or another party gives is read in here. The error's sentence is ours: a reader's own may
    quote rows.

    Parameters
    ----------
    path : Path
    kind : str
        What the file should be ("CSV").
    remedy : str
        What to do if it is not.
    name : str, optional
        What to call the file; by default its path.
    most : int, optional
        How many bytes it may have; by default as many as this machine has memory.

    Yields
    ------
    file object
        Open for reading bytes.

    Raises
    ------
    MissingFileError
        If there is no such file.
    DataError
        If it is no regular file, is empty or too large, or if the reader fails. A DataError of the reader keeps its
        sentence.
    """
    name = str(path) if name is None else name
    with parsing(name, kind, remedy), _opened(path, name) as file:
        n_bytes = os.fstat(file.fileno()).st_size
        if n_bytes == 0:
            raise DataError(f"{name} is empty; {remedy}.")
        check_size(n_bytes, name, most)
        yield file


@contextmanager
def parsing(name: str, kind: str, remedy: str) -> Iterator[None]:
    """Raise one DataError that names the file in place of whatever a parser raises; see :func:`reading`."""
    try:
        yield
    except DataError as error:
        if name in str(error):
            raise
        raise DataError(f"{name}: {error}") from error
    except Exception as error:
        raise DataError(f"{name} cannot be read as {kind}: {_reason(error)}; {remedy}.") from error


def check_size(n_bytes: int, name: str, most: int | None = None) -> None:
    """Raise a DataError if a file has, or claims, more bytes than are allowed; by default, than there is memory."""
    most = _memory() if most is None else most
    if n_bytes > most:
        raise DataError(f"{name} is too large: {n_bytes:,} bytes, and {most:,} can be read; give a smaller file.")


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Return the object in a JSON file; errors are those of :func:`reading`."""
    with reading(path, "JSON", remedy, most=LARGEST_JSON) as file:
        found = json.load(file)
        if not isinstance(found, dict):
            raise TypeError("not an object")
        return found


def read_toml(path: Path, remedy: str) -> dict[str, Any]:
    """Return the tables in a TOML file; errors are those of :func:`reading`."""
    with reading(path, "TOML", remedy, most=LARGEST_TOML) as file:
        return tomllib.load(file)


def read_csv(path: Path, remedy: str) -> list[dict[str, str]]:
    """Return the lines of a CSV file by the names of its columns; errors are those of :func:`reading`."""
    with reading(path, "CSV", remedy) as file:
        return list(csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline=""), strict=True))


def read_array(file: IO[bytes], n_bytes: int) -> NDArray[Any]:
    """Return an array in NumPy's format; raise a DataError if it claims more than ``n_bytes`` or holds objects."""
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if dtype.hasobject:  # which are pickled, and a pickle may run code
        raise DataError("it holds Python objects; save numbers.")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > n_bytes:
        raise DataError("its header claims more bytes than the file has; save it again.")
    file.seek(0)
    array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array


def read_arrays(path: Path, remedy: str) -> list[NDArray[Any]]:
    """Return the arrays that ``numpy.savez`` wrote; errors are those of :func:`reading`."""
    with reading(path, "arrays of NumPy", remedy) as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        # A compressed member, or many that share their bytes, could unfold to terabytes.
        is_compressed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
        if is_compressed or sum(member.file_size for member in members) > os.fstat(file.fileno()).st_size:
            raise DataError("its arrays take more bytes than the file has; save it again with numpy.savez.")
        arrays = []
        for member in members:
            with archive.open(member) as content:
                arrays.append(read_array(content, member.file_size))
        return arrays


def _opened(path: Path, name: str) -> IO[bytes]:
    """Open a regular file; never wait for one that is none, such as a pipe."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFileError(f"There is no file {path}.") from None
    except IsADirectoryError:
        raise DataError(f"{name} is a folder; give a file.") from None
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise DataError(f"{name} is a {'folder' if stat.S_ISDIR(mode) else 'device or pipe'}; give a file.")


def _memory() -> int:
    """Return how many bytes of memory this machine has; a terabyte where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**40


def _reason(error: Exception) -> str:
    """Say what a reader stumbled over, in words that hold nothing of the file but names in TOML."""
    if isinstance(error, UnicodeError):
        return "it is not UTF-8 text"
    if isinstance(error, MemoryError):
        return "it takes more memory than there is"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, (tomllib.TOMLDecodeError, json.JSONDecodeError)):
        return str(error)
    if found := _FIELDS.search(str(error)):
        return f"line {found[2]} has {found[3]} fields, and those before it have {found[1]}"
    return "it is damaged, incomplete, or of another kind or version"
