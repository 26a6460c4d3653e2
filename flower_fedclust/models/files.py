"""Models as files: a JSON file that says what a model is, and its arrays beside it. Nothing is pickled."""

from __future__ import annotations

import json
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from flower_fedclust.models.base import Model
from flower_fedclust.models.tables import TableModel

#: Of the files that this version writes. Another number is refused.
FORMAT = 1
_DESCRIPTION, _ARRAYS = "model.json", "model.npz"


def version() -> str | None:
    """Return the version of this package; None where it runs from its sources."""
    try:
        return metadata.version("flower-fedclust")
    except metadata.PackageNotFoundError:
        return None


def save_model(model: Model, folder: Path) -> None:
    """Write a model; see :meth:`Model.save`."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / _ARRAYS, *model.to_arrays())
    description: dict[str, Any] = {
        "format": FORMAT,
        "version": version(),
        "model": model.name,
        "class": type(model).__name__,
        "n_clusters": model.n_clusters,
        "columns": None if model.columns_ is None else list(model.columns_),
    }
    if isinstance(model, TableModel):  # for people; it is in the arrays as well
        description["preparation"] = model.preparation.to_dict()
    (folder / _DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")


def load_model(folder: Path) -> Model:
    """Read a model; see :meth:`Model.load`."""
    description = read_description(folder / _DESCRIPTION, instead=folder / _ARRAYS)
    try:
        with np.load(folder / _ARRAYS, allow_pickle=False) as stored:
            arrays = [stored[name] for name in stored.files]
        model = Model.named(str(description["model"])).from_arrays(arrays)
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} has no {_ARRAYS}, which holds the arrays of the model.") from None
    except (ValueError, TypeError, KeyError, IndexError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{folder / _ARRAYS} cannot be read: {error}") from error
    if model.columns_ is None:
        model.columns_ = description.get("columns")
    return model


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
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it holds no object")
    except FileNotFoundError:
        if instead is not None and instead.exists():
            raise ValueError(
                f"{instead} was written by a version of flower-fedclust that wrote no {path.name} beside it, and does "
                "not say what it is; run again with this version."
            ) from None
        raise FileNotFoundError(
            f"There is no {path.name} in {path.parent}; name a folder that a run has saved."
        ) from None
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}.") from None
    if found.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {found.get('format')}, of version {found.get('version')} of flower-fedclust, and this "
            f"version reads format {FORMAT}; use that version, or run again with this one."
        )
    return found
