"""Files of labels: a line for every row of a table, also for those that were left out, and why."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data.federation import ROW
from flower_fedclust.outside import reading

# With these a spreadsheet takes a cell for a formula.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_CLUSTER, _WHY = "cluster", "why"


def as_cell(text: object) -> object:
    """Return what is written for a name or an id: text that a spreadsheet would run gets a quote before it.

    Text that is a number, such as -5, stays as it is.
    """
    if not isinstance(text, str) or _FORMULA.match(text) is None:
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def from_cell(text: str) -> str:
    """Undo :func:`as_cell`."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


@dataclass(frozen=True)
class Labels:
    """The labels of a file."""

    row_ids: NDArray[Any]  #: Of all rows, of shape (n_rows,): their numbers, or their ids.
    labels: NDArray[np.intp]  #: Of those rows that have one, of shape (n_labels,).
    id_column: str = ROW
    why: str = ""  #: Why others have none; of the first of them.


def write_labels(
    path: Path,
    row_ids: Iterable[Any],
    labels: Iterable[int | None],
    *,
    id_column: str = ROW,
    why: Iterable[str] | None = None,
) -> None:
    """Write a file of labels, which only its owner can read.

    Parameters
    ----------
    path : Path
        A new file.
    row_ids : iterable of anything, one a row
    labels : iterable of int or None, one a row
        None of a row that was left out.
    id_column : str, default="row"
        What the ids are called; where labels are called so too, "(id)" is added.
    why : iterable of str, one a row, optional
        Why rows were left out; empty text of those that were not.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            ids_are_called = f"{id_column} (id)" if id_column in (_CLUSTER, _WHY) else id_column
            table.writerow([as_cell(ids_are_called), _CLUSTER, *([] if why is None else [_WHY])])
            cells = map(as_cell, row_ids)
            table.writerows(zip(cells, labels, strict=True) if why is None else zip(cells, labels, why, strict=True))
    except BaseException:
        path.unlink(missing_ok=True)  # a file that ends too early looks like a whole one
        raise


def write_left_out(path: Path, row_ids: NDArray[Any], *, id_column: str, why: str) -> None:
    """Write a file for rows that have no labels, all for one reason."""
    n_rows = len(row_ids)
    write_labels(path, row_ids.tolist(), repeat(None, n_rows), id_column=id_column, why=repeat(why, n_rows))


def read_labels(path: Path) -> Labels:
    """Read what :func:`write_labels` wrote; ids are text unless all are whole numbers.

    Raises
    ------
    DataError
        If it cannot be read.
    """
    import pandas as pd

    with reading(path, "a file of labels", "run again, or predict again") as file:
        frame = pd.read_csv(file, dtype=str, keep_default_na=False)
        clusters, ids = frame[_CLUSTER], frame.iloc[:, 0]
        has_none = (clusters == "").to_numpy()
        reasons = frame[_WHY][has_none].tolist() if _WHY in frame else []
        labels = clusters[~has_none].astype(np.intp).to_numpy()
        return Labels(_as_ids([from_cell(name) for name in ids]), labels, from_cell(frame.columns[0]), *reasons[:1])


def _as_ids(names: list[str]) -> NDArray[Any]:
    """Return whole numbers as numbers, unless one is written in a way of its own, such as 007."""
    try:
        numbers = np.array([int(name) for name in names], dtype=np.int64)
    except (ValueError, OverflowError):
        return np.array(names)
    return numbers if list(map(str, numbers.tolist())) == names else np.array(names)
