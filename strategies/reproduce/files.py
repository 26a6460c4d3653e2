"""Data sets that are read from a folder of the user: the .mat files of FedSC's authors.

The package has none of them. They are in the folder ``datasets`` of jicongfan/Federated-Spectral-Clustering.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from flower_fedclust.data import Table
from flower_fedclust.numerics.checks import DataError

#: The environment variable that names the folder, and the repository that has the files.
FOLDER, SOURCE = "FEDCLUST_FEDSC", "jicongfan/Federated-Spectral-Clustering"

#: Data sets by name: the file, and the name of the rows in it. COIL20 has images of 20 x 20 pixels, Bank banknotes,
#: Mice proteins of mice; Figure 3 has the circles.
SETS = {
    **{name: (name, "X") for name in ("COIL20", "Bank", "Mice", "Yeast")},
    "circles of Figure 3": ("Concentric_Circles", "X"),
    "noisy circles of Figure 3": ("Concentric_Circles", "Xn"),
}


def path_of(name: str) -> Path | None:
    """Return the file of a data set; None if the folder does not have it or is not named."""
    folder = os.environ.get(FOLDER)
    paths = [Path(folder, f"{name}{ending}.mat") for ending in ("", "_tsne")] if folder else []
    return next((path for path in paths if path.is_file()), None)


def why_absent(names: Iterable[str]) -> str | None:
    """Return why these data sets cannot be read; None if they can."""
    absent = [name for name in names if path_of(name) is None]
    if not absent:
        return None
    return f"it needs {', '.join(absent)} of {SOURCE}; name its folder datasets in {FOLDER}."


def read_mat(name: str, rows: str = "X") -> Table:
    """Return the rows and labels of a file, which has rows as columns."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    if (reason := why_absent([name])) is not None:
        raise ValueError(reason[0].upper() + reason[1:])
    path = path_of(name)
    try:
        found = loadmat(str(path), variable_names=[rows, "Label"])
        X, labels = np.asarray(found[rows], dtype=np.float64).T, np.asarray(found["Label"]).ravel()
    except (MatReadError, KeyError, ValueError, NotImplementedError, OSError) as error:
        raise DataError(
            f"{path} has no numbers {rows} and Label; copy it again from {SOURCE}."
        ) from error
    if X.ndim != 2 or len(X) != len(labels) or not np.isfinite(X).all():
        raise DataError(
            f"{path} must have a finite column of {rows} for each Label; copy it again from {SOURCE}."
        )
    return Table(np.ascontiguousarray(X), np.unique(labels, return_inverse=True)[1], name=name)
