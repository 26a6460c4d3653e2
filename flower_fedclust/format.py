"""The format version of everything that one copy of this package writes and another copy reads.

Messages, files and ledgers state the format in which they were written. Other formats are refused,
with a sentence that says what to do; nothing is guessed.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

from flower_fedclust.numerics.checks import DataError, MissingFileError
from flower_fedclust.outside import read_json

#: The format of messages, replies, journals, ledgers, saved results, models and comparisons. Any change raises it by 1.
FORMAT = 5


class FormatError(DataError):
    """A message or a file has another format: another version of this package wrote it."""


def check_format(
    stated: object, label: str, reader: str = "this version", remedy: str = ""
) -> None:
    """Raise a FormatError unless the stated format is the one that this version reads.

    Parameters
    ----------
    stated : object
        The format that the message or the file states; it may come from another party.
    label : str
        What states it, for the error message: "this message", or the path of a file.
    reader : str
        Who reads the message or the file, for the error message.
    remedy : str, optional
        What the user can do, for the error message.
    """
    if type(stated) is int and stated == FORMAT:
        return
    has = (
        f"has format {stated}"
        if type(stated) is int and 0 <= stated < 10**6
        else "states no known format"
    )
    remedy = remedy or "install the same version of flower-fedclust on both"
    raise FormatError(f"{label} {has}, and {reader} reads format {FORMAT}; {remedy}.")


def stamp() -> dict[str, object]:
    """Return the fields that every saved file begins with: the format, and this package's version (None if unknown)."""
    try:
        version: str | None = metadata.version("flower-fedclust")
    except metadata.PackageNotFoundError:
        version = None
    return {"format": FORMAT, "version": version}


def read_stamped(path: Path, *, beside: Path | None = None) -> dict[str, Any]:
    """Return the object in a JSON file, after a check of its format.

    ``beside`` is a file that is saved together with ``path``. If only ``beside`` exists, the error says that saving was
    interrupted, or that an older version wrote the files.
    """
    try:
        content = read_json(path, "run again")
    except FileNotFoundError:
        if beside is not None and beside.exists():
            raise ValueError(
                f"There is no {path.name} beside {beside}: saving was interrupted, or an older version of "
                "flower-fedclust wrote it; run again."
            ) from None
        raise MissingFileError(
            f"There is no {path.name} in {path.parent}; name a folder with a saved run."
        ) from None
    written_by = (
        f" (written by version {content['version']})"
        if isinstance(content.get("version"), str)
        else ""
    )
    check_format(
        content.get("format"),
        f"{path}{written_by}",
        remedy="use the version that wrote it, or run again",
    )
    return content
