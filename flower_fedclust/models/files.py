"""The files of JSON beside arrays, which say what these are and which version has written them."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

from flower_fedclust.format import check_format
from flower_fedclust.numerics.checks import MissingFileError
from flower_fedclust.outside import read_json


def version() -> str | None:
    """Return the version of this package; None where it runs from its sources."""
    try:
        return metadata.version("flower-fedclust")
    except metadata.PackageNotFoundError:
        return None


def read_description(path: Path, *, instead: Path | None = None) -> dict[str, Any]:
    """Return what a file of JSON says, if it has the format of this version.

    Parameters
    ----------
    path : Path
    instead : Path, optional
        What there is where only an older version has written.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it cannot be read, or has another format.
    """
    try:
        found = read_json(path, "run again")
    except FileNotFoundError:
        if instead is not None and instead.exists():
            raise ValueError(
                f"There is no {path.name} beside {instead}: it was not saved to the end, or by an older version of "
                "flower-fedclust; run again."
            ) from None
        raise MissingFileError(
            f"There is no {path.name} in {path.parent}; name a folder that a run has saved."
        ) from None
    written_by = f" (written by version {found['version']})" if isinstance(found.get("version"), str) else ""
    check_format(found.get("format"), f"{path}{written_by}", remedy="use the version that wrote it, or run again")
    return found
