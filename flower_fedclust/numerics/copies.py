"""Find equal rows, which become one node of a neighbor graph: otherwise a row's nearest rows would be its copies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]


@dataclass(frozen=True)
class Copies:
    """Which rows are equal. Without equal rows, ``first`` and ``index`` are 0 to n_rows - 1."""

    first: Integers  #: The position at which each different row first occurs, ascending.
    index: Integers  #: For each row, the index of its first copy in ``first``, of shape (n_rows,).

    @property
    def counts(self) -> Floats:
        """How often each of the different rows occurs."""
        return np.bincount(self.index, minlength=len(self.first)).astype(np.float64)


def copies_of(rows: Floats) -> Copies:
    """Return which rows are equal, entry by entry."""
    entries = np.ascontiguousarray(rows + 0.0)  # -0.0 equals 0.0
    texts = entries.view(np.dtype((np.void, entries.itemsize * entries.shape[1]))).ravel()
    _, first, index = np.unique(texts, return_index=True, return_inverse=True)
    order = np.argsort(first)
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    return Copies(first[order].astype(np.intp), position[index.ravel()].astype(np.intp))


#: Computed rows count as equal if they agree when their entries are rounded to this fraction of the largest entry.
SAME = 2.0**-40


def copies_but_for_rounding(rows: Floats) -> Copies:
    """Return which rows are equal up to rounding errors, which depend on the batches in which rows are computed."""
    largest = float(np.abs(rows).max(initial=0.0))
    return copies_of(np.rint(rows / (SAME * largest)) if largest > 0 else rows)
