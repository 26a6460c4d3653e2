"""The version of everything that one copy of this package writes and another reads.

Messages, files and ledgers state the format that they were written in. Another format is refused
with a sentence that says what to do; it is never guessed.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

from flower_fedclust.numerics.checks import DataError, MissingFileError
from flower_fedclust.outside import read_json

#: The format of messages, replies, journals, ledgers, saved results, models and comparisons, raised by any change.
FORMAT = 5


class FormatError(DataError):
    """A message or a file that another version of this package wrote."""


def check_format(
    stated: object, label: str, reader: str = "this version", remedy: str = ""
) -> None:
    """Raise a FormatError unless the stated format is the one that this version reads.

    Parameters
    ----------
    stated : object
        What the message or the file states; it may come from another party.
    label : str
        What it is, for the error: "this message", or the path of a file.
    reader : str
        Who reads it.
    remedy : str, optional
        What to do.
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
    """Return the fields that every written file has: the format, and the version of this package (None if unknown)."""
    try:
        version: str | None = metadata.version("flower-fedclust")
    except metadata.PackageNotFoundError:
        version = None
    return {"format": FORMAT, "version": version}


def read_stamped(path: Path, *, beside: Path | None = None) -> dict[str, Any]:
    """Return the object in a JSON file, after a check of its format.

    If ``beside`` exists and ``path`` does not, saving was interrupted, or an older version wrote
    the files; the error says so.
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
