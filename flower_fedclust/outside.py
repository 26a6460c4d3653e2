"""Read files and texts of users and other parties, within limits; errors name the file and quote no value.

Such files and texts can be too large, nested too deeply, damaged, or made to do harm. Every file is opened by
:func:`reading`, and every text is parsed here, so that limits and errors are the same everywhere.
"""

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

#: The largest files of JSON and of TOML that are read, in bytes. Parsing can take fifty times as much memory, and TOML
#: also much time.
LARGEST_JSON, LARGEST_TOML = 2**27, 2**24

#: The longest JSON text that another party may send, in characters, unless a caller sets another limit.
LONGEST_JSON = 2**20
#: The deepest nesting of such a text.
DEEPEST_JSON = 32

#: The part of pandas' message about a wrong line of CSV that quotes no value of the file.
_FIELDS = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")


@contextmanager
def reading(
    path: Path, kind: str, remedy: str, *, name: str | None = None, most: int | None = None
) -> Iterator[Any]:
    """Open a file for a reader, and turn any error of the reader into a DataError.

    The reader's own message may quote rows. The DataError names the file, what it should be, and the remedy. If the
    reader itself raises a DataError, its sentence is kept.

    Parameters
    ----------
    path : Path
    kind : str
        What the file should be: "JSON", "parquet".
    remedy : str
        What the user can do.
    name : str, optional
        The name of the file in messages; by default its path.
    most : int, optional
        The largest number of bytes; by default the size of this machine's memory.
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
    """Turn any error of a parser into a DataError that names the file; see :func:`reading`."""
    try:
        yield
    except DataError as error:
        if name in str(error):
            raise
        raise DataError(f"{name}: {error}") from error
    except Exception as error:
        raise DataError(f"{name} cannot be read as {kind}: {_reason(error)}; {remedy}.") from error


def check_size(n_bytes: int, name: str, most: int | None = None) -> None:
    """Raise a DataError if a file has, or claims to have, more than ``most`` bytes.

    By default the limit is this machine's memory.
    """
    most = machine_memory() if most is None else most
    if n_bytes > most:
        raise DataError(
            f"{name} is too large: {n_bytes:,} bytes, but at most {most:,} are read; give a smaller file."
        )


def parse_json(text: str | bytes, limit: int = LONGEST_JSON) -> Any:
    """Return the content of a JSON text from another party.

    Raises a ValueError if it is longer than ``limit`` characters, nested too deeply, or not JSON.
    """
    if len(text) > limit:
        raise ValueError(f"a JSON text of {len(text)} characters was sent; send at most {limit}.")
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("a JSON text is nested too deeply.") from None
    level = [content]
    for _ in range(DEEPEST_JSON):
        level = [
            entry
            for outer in level
            if isinstance(outer, (dict, list))
            for entry in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return content
    raise ValueError(f"a JSON text is nested too deeply: at most {DEEPEST_JSON} levels are read.")


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Return the object in a JSON file; raise a DataError if it holds anything else."""
    with reading(path, "JSON", remedy, most=LARGEST_JSON) as file:
        content = json.load(file)
        if not isinstance(content, dict):
            raise TypeError("not an object")
        return content


def read_toml(path: Path, remedy: str) -> dict[str, Any]:
    """Return the tables in a TOML file."""
    with reading(path, "TOML", remedy, most=LARGEST_TOML) as file:
        return tomllib.load(file)


def read_csv(path: Path, remedy: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file, each as a dict from column names to values."""
    with (
        reading(path, "CSV", remedy) as file,
        io.TextIOWrapper(file, encoding="utf-8", newline="") as text,
    ):
        return list(csv.DictReader(text, strict=True))


def read_array(file: IO[bytes], n_bytes: int) -> NDArray[Any]:
    """Return an array in NumPy's format; raise a DataError if it claims too many bytes or holds Python objects."""
    version = np.lib.format.read_magic(file)
    read_header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read_header(file)
    if dtype.hasobject:  # objects are pickled, and a pickle may run code
        raise DataError("it holds Python objects; save numbers.")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > n_bytes:
        raise DataError("its header claims more bytes than the file has; save it again.")
    file.seek(0)
    array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array


def read_arrays(path: Path, remedy: str) -> list[NDArray[Any]]:
    """Return the arrays that ``numpy.savez`` wrote."""
    with reading(path, "arrays of NumPy", remedy) as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        # Compressed members, or members that overlap in the file, could expand to terabytes.
        is_compressed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
        if (
            is_compressed
            or sum(member.file_size for member in members) > os.fstat(file.fileno()).st_size
        ):
            raise DataError(
                "its arrays take more bytes than the file has; save it again with numpy.savez."
            )
        arrays = []
        for member in members:
            with archive.open(member) as content:
                arrays.append(read_array(content, member.file_size))
        return arrays


def _opened(path: Path, name: str) -> IO[bytes]:
    """Open a regular file; refuse pipes and devices without waiting for them."""
    try:
        handle = os.open(
            path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        )
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFileError(f"There is no file {path}.") from None
    except IsADirectoryError:
        raise DataError(f"{name} is a folder; give a file.") from None
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise DataError(
        f"{name} is a {'folder' if stat.S_ISDIR(mode) else 'device or pipe'}; give a file."
    )


def machine_memory() -> int:
    """Return this machine's memory in bytes; a terabyte if it is unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**40


def _reason(error: Exception) -> str:
    """Return why a reader failed, without quoting the file (except names in TOML)."""
    if isinstance(error, UnicodeError):
        return "it is not UTF-8 text (in Excel, save it as 'CSV UTF-8')"
    if isinstance(error, MemoryError):
        return "it takes more memory than there is"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, (tomllib.TOMLDecodeError, json.JSONDecodeError)):
        return str(error)
    if match := _FIELDS.search(str(error)):
        return f"line {match[2]} has {match[3]} fields, but earlier lines have {match[1]}"
    return "it is damaged, incomplete, or of another kind or version"
