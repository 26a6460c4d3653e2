"""Find a frame for the rows of all clients, and convert a client's rows to it (see exact/rows.py).

A frame is a ball that holds the rows, with a grid on which rows are integers: exact sums need
integers, and the unit of the grid must suit the rows. With ``max_norm`` the frame is public.
Without ``max_norm`` (and without noise) three sums find a frame in which no row is clipped.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine.client import ProtocolClient
from flower_fedclust.engine.rounds import Round, Sent, Sum, Total, answers
from flower_fedclust.exact.constant import array_key
from flower_fedclust.exact.exponents import (
    entry_sums,
    exponent_indicator,
    largest_exponent,
    reach_exponent,
    sum_bits,
    table_exponent,
)
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.rows import Frame, Rows, clipped_already
from flower_fedclust.exact.sums import cluster_sums
from flower_fedclust.exact.terms import ONE_COUNT, Bound
from flower_fedclust.numerics.checks import DataError

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]


class RowsInFrame(Rows):
    """A client's rows in a frame, and their sums, for answers that do not add up one term for each row."""

    def total(self) -> tuple[GridArray, GridArray]:
        """Return the sum of the rows, of shape (n_columns,), and their number."""
        # Integers below 2^25: a float64 holds the sum of 2^28 rows exactly.
        return GridArray(self.integers.sum(axis=0), self.exponent), GridArray(
            np.array(len(self.integers))
        )

    def sums(self, labels: Labels, n_clusters: int) -> tuple[GridArray, GridArray]:
        """Return the sum and the number of the rows in each cluster."""
        sums, counts = cluster_sums(self.integers, labels, n_clusters)
        return GridArray(sums, self.exponent), GridArray(counts)


def enter(rows: Floats, *frame: Floats) -> RowsInFrame:
    """Return rows in the coordinates of a frame, given by its arrays.

    See :class:`~flower_fedclust.exact.rows.Frame`.
    """
    entered = Frame.of_arrays(*frame).rows(rows)
    return clipped_already(
        RowsInFrame, entered.held, entered.exponent, entered.radius, entered.norm
    )


def _entries_moved(n_columns: int, exponent: int) -> Bound:
    """Return how far one row moves a sum of rows whose entries are clipped to a power of two."""
    largest = math.ldexp(1.0, exponent) if exponent <= 1000 else math.inf
    return Bound(math.sqrt(n_columns) * largest, n_columns * largest)


class FrameClient(ProtocolClient):
    """A client's answers about how far its rows reach, and its rows in a frame for other answers."""

    def enter(self, *frame: Floats) -> RowsInFrame:
        """Return the client's rows in a frame; the result is cached while rounds use the same frame."""
        if self.stand_in is not None:
            return enter(self.rows, *frame)
        return self.data.derived(array_key(*frame), lambda: enter(self.rows, *frame))

    @answers(Sent("binary exponent of the largest entry, as one of many classes", counts="once"))
    def entry_exponent(self) -> GridArray:
        """Return the exponent of the client's largest entry."""
        return GridArray(exponent_indicator(max(map(table_exponent, self.pieces()))))

    @answers(
        Sent("sum of the rows", has_columns=True),
        Sent("number of rows", counts_rows=True),
        moved=lambda known, exponent: (_entries_moved(known.n_columns, exponent), ONE_COUNT),
    )
    def column_sums(self, *, exponent: int) -> tuple[GridArray, GridArray]:
        """Return the sum of the rows, whose entries are at most 2^exponent, and their number."""
        pairs = [(entry_sums(rows, exponent), len(rows)) for rows in self.pieces()]
        sums, counts = zip(*pairs, strict=True)
        return GridArray(sum(sums), exponent - sum_bits()), GridArray(np.array(sum(counts)))

    @answers(
        Sent(
            "binary exponent of the distance of the farthest row from the mean, as one of many classes",
            counts="once",
        )
    )
    def reach(self, origin: Floats) -> GridArray:
        """Return the exponent of the farthest row's distance from an origin."""
        return GridArray(
            exponent_indicator(max(reach_exponent(rows, origin) for rows in self.pieces()))
        )


TOO_FAR = (
    "the sum of the rows, or their distance, is beyond the largest float; look for a wrong value."
)

#: The number of rounds of :func:`frame_of_rows`.
FRAME_ROUNDS = 3


def find_frame(strategy: Any) -> Generator[Round, Total, Frame]:
    """Return the frame of a strategy's rows.

    It is the ball of radius ``max_norm``. Without ``max_norm`` it is a ball that holds all rows,
    which takes the three unprotected rounds of :func:`frame_of_rows`.

    Parameters
    ----------
    strategy : ClippedStrategy
    """
    if strategy.max_norm is not None:
        return Frame(np.zeros(strategy.n_columns), strategy.max_norm)
    frame, _ = yield from frame_of_rows()
    return frame


def frame_of_rows(*, rows: str = "") -> Generator[Round, Total, tuple[Frame, float]]:
    """Return a frame around the mean of all rows, in which no row is clipped, and the number of rows.

    This takes three rounds of sums, which no privacy mechanism covers: the exponent of the largest
    entry, the mean, and the exponent of the largest distance from it. The radius is a power of two.
    """
    (indicator,) = yield Sum(FrameClient.entry_exponent.asked(), rows=rows)
    total, count = yield Sum(
        FrameClient.column_sums.asked(exponent=largest_exponent(indicator)), rows=rows
    )
    mean = total / count
    if not np.isfinite(mean).all():
        raise DataError(TOO_FAR)
    (indicator,) = yield Sum(FrameClient.reach.asked(mean), rows=rows)
    reach = largest_exponent(indicator)
    if reach > 1023:
        raise DataError(TOO_FAR)
    # If all rows are equal, no row is away from the mean, and any ball is large enough.
    return Frame(mean, math.ldexp(1.0, max(reach, -1000))), float(count)
