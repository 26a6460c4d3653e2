"""What every model can do, and the check of its rows that all share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.numerics.checks import checked_rows


@runtime_checkable
class Model(Protocol):
    """What every clustering model can do."""

    @property
    def n_clusters(self) -> int:
        """How many clusters there are."""
        ...

    def predict(self, rows: ArrayLike) -> NDArray[np.intp]:
        """Return the cluster of each row, numbered from 0."""
        ...

    def cost(self, rows: ArrayLike) -> float:
        """Return the sum over rows of the squared distance to the nearest center, in the space of the centers."""
        ...

    def to_arrays(self) -> list[NDArray[np.float64]]:
        """Return all that the model knows, as arrays that can be sent."""
        ...

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[np.float64]]) -> Self:
        """Make the model from what :meth:`to_arrays` returned."""
        ...


def checked_columns(rows: ArrayLike, n_columns: int, who_has: str) -> NDArray[np.float64]:
    """Return rows that a model can place, checked.

    Parameters
    ----------
    rows : array-like of shape (n_rows, n_columns)
    n_columns : int
    who_has : str
        What has so many columns ("the cluster centers have"), for the message.

    Raises
    ------
    ValueError
        If the rows are not finite numbers, or have another number of columns.
    """
    checked = checked_rows(rows, owner="rows")
    if checked.shape[1] != n_columns:
        raise ValueError(
            f"rows: {checked.shape[1]} columns where {who_has} {n_columns}; give the columns the model was made from."
        )
    return checked
