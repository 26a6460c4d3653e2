"""The rows of one client, checked once; and what is kept of them from round to round."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.numerics.checks import DataError, checked_rows

T = TypeVar("T")

#: Of tables of fewer entries nothing is kept that could be computed again.
SMALL_TABLE = 4096


@dataclass(frozen=True)
class ClientData:
    """The rows of one client, checked.

    Parameters
    ----------
    rows : array-like of shape (n_rows, n_columns)
    labels : array-like of shape (n_rows,), optional
        True classes; used by the federated evaluation and by nothing else.
    columns : sequence of str, optional
        The names of the columns.
    owner : str, default="the client"
        Whose rows these are, for messages.

    Raises
    ------
    DataError
        If the rows are not two-dimensional, finite and numeric, if there is none, or if the labels are another
        number.
    """

    rows: NDArray[np.float64]
    labels: NDArray[Any] | None = None
    columns: Sequence[str] | None = None
    owner: str = "the client"

    def __init__(
        self,
        rows: ArrayLike,
        labels: ArrayLike | None = None,
        columns: Sequence[str] | None = None,
        owner: str = "the client",
    ) -> None:
        checked = checked_rows(rows, owner=owner, columns=columns)
        if columns is not None and len(columns) != checked.shape[1]:
            raise DataError(f"{owner}: {len(columns)} column names for {checked.shape[1]} columns.")
        object.__setattr__(self, "rows", checked)
        object.__setattr__(self, "labels", None if labels is None else _checked_labels(labels, len(checked), owner))
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "owner", owner)
        object.__setattr__(self, "_derived", {})

    def derived(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return what ``compute`` makes of the rows, and keep it in place of what was kept before.

        Round after round the same is asked of rows that do not change. Of small tables nothing is kept: computing it
        again takes no longer than the rest of an answer.

        Parameters
        ----------
        key : hashable
            Says all that the result follows from, besides the rows.
        compute : callable without arguments
        """
        kept: dict[Hashable, Any] = self._derived  # type: ignore[attr-defined]
        if key not in kept:
            kept.clear()
            if self.rows.size < SMALL_TABLE:
                return compute()
            kept[key] = compute()
        found: T = kept[key]
        return found


def _checked_labels(labels: ArrayLike, n_rows: int, owner: str) -> NDArray[Any]:
    array = np.asarray(labels)
    if array.ndim != 1:
        raise DataError(f"{owner}: the labels have shape {array.shape}; give one dimension, one label a row.")
    if len(array) != n_rows:
        raise DataError(f"{owner}: {len(array)} labels for {n_rows} rows; give one label a row.")
    # NaN is the only thing that is not equal to itself.
    missing = np.array([label is None for label in array]) if array.dtype == object else array != array
    if missing.any():
        raise DataError(f"{owner}: row {int(missing.argmax())} has no label; give every row one, or none at all.")
    # Text in a column of a table is an array of Python objects, which is not sent or stored as numbers are.
    return array.astype(str) if array.dtype == object else array
