"""Gagolewski's benchmark suite: batteries of data sets with reference labelings (gagolews/clustering-data-v1).

A set is the file ``BATTERY/SET.data.gz``, with ``SET.labels0.gz``, ``SET.labels1.gz`` and so on
beside it. Rows with the label 0 are noise, and are not scored. The package does not contain the suite; users name the
folder of their copy.
"""

from __future__ import annotations

import gzip
import os
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data.federation import Table
from flower_fedclust.names import look_up
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.outside import reading

#: The prefix of the names of the suite's sets.
SUITE = "suite:"
#: The environment variable that names the folder of the suite.
FOLDER = "FEDCLUST_SUITE"

_ROWS = ".data.gz"


def sets_named(name: str) -> list[str]:
    """Return the names of all sets of a battery; for the name of a single set, only this name.

    Examples
    --------
    ``suite:graves/ring`` is one set, ``suite:graves`` is its battery.
    """
    battery, slash, which = name.removeprefix(SUITE).partition("/")
    if not (folder := os.environ.get(FOLDER)):
        raise ValueError(
            f"'{name}' is read from a folder; name it in the environment variable {FOLDER}."
        )
    batteries = (
        {path.name: path for path in Path(folder).iterdir()} if Path(folder).is_dir() else {}
    )
    if not batteries:
        raise ValueError(
            f"{FOLDER} is {folder}, and there is no battery; name the folder that holds the suite."
        )
    paths = look_up(battery, batteries, "battery of the suite called").glob(f"*{_ROWS}")
    sets = {path.name.removesuffix(_ROWS): path for path in sorted(paths)}
    chosen = (
        [look_up(which, {name: name for name in sets}, f"set of the battery {battery} called")]
        if slash
        else sets
    )
    return [f"{SUITE}{battery}/{name}" for name in chosen]


def read_set(name: str) -> Table:
    """Return one set of the suite as a table with ``labelings``."""
    (name,) = sets_named(name)
    path = Path(os.environ[FOLDER], name.removeprefix(SUITE))
    rows = _numbers(path.with_name(path.name + _ROWS))
    files = takewhile(
        Path.exists, (path.with_name(f"{path.name}.labels{number}.gz") for number in count())
    )
    labelings = [_labels(file, len(rows)) for file in files]
    if not labelings:
        raise DataError(
            f"{path}.labels0.gz is missing; every set of the suite has reference labels."
        )
    return Table(rows, labelings=np.column_stack(labelings), name=name)


def _numbers(path: Path) -> NDArray[np.float64]:
    """Read a compressed file of numbers, of shape (n_lines, n_numbers)."""
    with (
        reading(path, "rows of numbers", "copy the suite again") as file,
        gzip.open(file, "rt") as text,
    ):
        return np.loadtxt(text, ndmin=2)


def _labels(path: Path, n_rows: int) -> NDArray[Any]:
    """Read the labels of a set, one for each row: whole numbers from 1, and 0 for noise."""
    labels = _numbers(path).ravel()
    if (
        len(labels) != n_rows
        or (labels < 0).any()
        or (labels % 1 != 0).any()
        or not (labels > 0).any()
    ):
        raise DataError(
            f"{path} must have {n_rows} whole numbers, one for each row: 1 and more, or 0 for noise."
        )
    return labels.astype(np.intp)
