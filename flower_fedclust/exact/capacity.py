"""The bound on a client's number of rows, and the number of bits that it leaves for each row in a sum.

A sum over rows has 63 bits. The more rows there may be, the fewer bits are left for each, so sums of squares, of
weighted rows and of kernel values come in a coarser unit. The bound is public: it is part of a message, and does not
depend on how many rows a client really has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from flower_fedclust.exact.grid import ENTRY_BITS, MOST_ROWS

#: The largest bound on a client's rows that a run may have. It leaves 33 bits for each row, which second moments need.
LARGEST_BOUND = 2**30 - 1

_CURRENT: ContextVar[int] = ContextVar("entry_bits", default=ENTRY_BITS)


def bits_with(most_rows: int) -> int:
    """Return how many bits a row may add to an entry of a sum, if a client may have ``most_rows`` rows."""
    if not MOST_ROWS <= most_rows <= LARGEST_BOUND:
        raise ValueError(
            f"most_rows is {most_rows}; it must be from {MOST_ROWS} to {LARGEST_BOUND}."
        )
    return 63 - most_rows.bit_length()


def entry_bits() -> int:
    """Return how many bits a row may add to an entry of a sum, under the bound that :func:`with_rows` has set."""
    return _CURRENT.get()


@contextmanager
def with_rows(most_rows: int) -> Iterator[None]:
    """Set the bound on a client's number of rows for sums that are made inside this context."""
    token = _CURRENT.set(bits_with(most_rows))
    try:
        yield
    finally:
        _CURRENT.reset(token)
