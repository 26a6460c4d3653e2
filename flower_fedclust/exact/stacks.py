"""Compute the sums of many small clients at once: the rows of all are in one array, client after client.

Inside :func:`stacked` every term has a first axis with an entry for each client. The integers are the same as if each
client had added up its own rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: The most rows that a client in a stack may have. Sums over more rows could exceed 2^53, beyond which float64 is not
#: exact.
MOST_ROWS_OF_ONE = 2**12


class NotStackedError(Exception):
    """An answer did not return one vector for each row, so that its vectors cannot be told apart by client."""


class Stack:
    """The clients whose rows are in a batch, each with at least one row."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = np.asarray(sizes, dtype=np.int64)  #: The number of rows of each client.
        self.ends = np.cumsum(self.sizes)
        self.starts = self.ends - self.sizes
        self.n_rows = int(self.sizes.sum())

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def owners(self) -> NDArray[np.intp]:
        """The client of each row."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @cached_property
    def _alike(self) -> list[tuple[NDArray[np.intp], NDArray[np.intp] | None]]:
        """The clients grouped by their number of rows, with the places of a group's rows; None means all, in order."""
        found = np.unique(self.sizes)
        if len(found) == 1:
            return [(np.arange(len(self)), None)]
        alike = [(np.flatnonzero(self.sizes == size), size) for size in found]
        return [(clients, self.starts[clients, None] + np.arange(size)) for clients, size in alike]

    def check(self, n_rows: int) -> None:
        """Raise a NotStackedError unless ``n_rows`` is the number of rows of all clients together."""
        if n_rows != self.n_rows:
            raise NotStackedError

    def added(self, values: Floats | Integers) -> Integers:
        """Add up each client's rows, which hold integers."""
        self.check(len(values))
        return np.asarray(np.add.reduceat(values, self.starts, axis=0)).astype(np.int64)

    def products(self, first: Floats, second: Floats) -> Integers:
        """Add up the outer products of each client's rows, which hold integers."""
        self.check(len(first))
        self.check(len(second))
        found = np.empty((len(self), first.shape[1], second.shape[1]), dtype=np.int64)
        for clients, rows in self._alike:
            shape = (len(clients), len(first) // len(clients), -1)
            one, other = (
                part.reshape(shape) if rows is None else part[rows] for part in (first, second)
            )
            found[clients] = one.transpose(0, 2, 1) @ other
        return found


_CURRENT: ContextVar[Stack | None] = ContextVar("stack", default=None)


def current() -> Stack | None:
    """Return the clients whose rows are added up, or None if all rows are one client's."""
    return _CURRENT.get()


@contextmanager
def stacked(stack: Stack | None) -> Iterator[None]:
    """Give terms a first axis with an entry for each client of the stack; with None, terms have no such axis."""
    token = _CURRENT.set(stack)
    try:
        yield
    finally:
        _CURRENT.reset(token)


class Sums:
    """Sums of rows that are added block by block, in order; inside :func:`stacked`, each client has its own sum."""

    def __init__(self, n_rows: int, size: int) -> None:
        self._stack = _CURRENT.get()
        if self._stack is not None:
            self._stack.check(n_rows)
        self.integers = np.zeros(
            size if self._stack is None else (len(self._stack), size), dtype=np.int64
        )

    def add(self, block: slice, values: Floats) -> None:
        """Add a block of rows, which hold integers."""
        if self._stack is None:
            self.integers += values.sum(axis=0).astype(np.int64)
        else:
            owners = self._stack.owners[block]
            starts = np.flatnonzero(np.diff(owners, prepend=-1))
            self.integers[owners[starts]] += np.add.reduceat(values, starts, axis=0).astype(
                np.int64
            )
