"""The frame in which rows are measured: a public origin, a ball around it, and a grid of integers.

k-means does not care where the origin is, and noise does: it is calibrated to the longest row that is allowed. So
rows are first moved by a public point, such as the mean of the server rows, and then clipped. What a client computes
from its rows in a frame it computes from integers, so that sums are exact and ties are ties on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine.client import ProtocolClient
from flower_fedclust.engine.rounds import ONE_COUNT, Moved, Round, Sent, Sum, Total, answers
from flower_fedclust.exact.constant import array_key
from flower_fedclust.exact.exponents import (
    SUM_BITS,
    entry_sums,
    exponent_indicator,
    largest_exponent,
    reach_exponent,
    table_exponent,
)
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.sums import cluster_sums, second_moment, upper_triangle
from flower_fedclust.numerics.checks import DataError

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]


class RowsInFrame(Rows):
    """Rows of a client in a frame, with the sums that methods of clients ask for."""

    def counts(self, points: Floats) -> GridArray:
        """Return how many rows are nearest to each public point."""
        return GridArray(np.bincount(self.nearest(points), minlength=len(points)))

    def total(self) -> tuple[GridArray, GridArray]:
        """Return the sum of the rows, of shape (n_columns,), and their number."""
        # Of integers below 2^25, so that a float64 holds the sum of 2^28 rows exactly.
        return GridArray(self.integers.sum(axis=0), self.exponent), GridArray(np.array(len(self.integers)))

    def outer_products(self) -> GridArray:
        """Return the sum of the outer products of the rows, as an upper triangle."""
        matrix, exponent = second_moment(self.integers, self.exponent)
        return GridArray(upper_triangle(matrix), exponent)

    def sums(self, labels: Labels, n_clusters: int) -> tuple[GridArray, GridArray]:
        """Return the sum and the number of the rows in each cluster."""
        sums, counts = cluster_sums(self.integers, labels, n_clusters)
        return GridArray(sums, self.exponent), GridArray(counts)


def enter(rows: Floats, *frame: Floats) -> RowsInFrame:
    """Return rows in the coordinates of a frame, from the arrays of :class:`~flower_fedclust.exact.rows.Frame`."""
    entered = Frame.of_arrays(*frame).rows(rows)
    return RowsInFrame(entered.integers, entered.exponent, entered.radius, entered.norm)


def ball_moved(*frame: Floats) -> Moved:
    """Return how far one row moves a sum of rows in a frame: by the radius, in the norm of the ball."""
    radius, norm = float(frame[1][0]), int(frame[1][1])
    return Moved(radius, radius if norm == 1 else math.inf)


def products_moved(*frame: Floats) -> Moved:
    """Return how far one row moves the sum of the outer products of the rows in a frame, as an upper triangle."""
    return Moved(float(frame[1][0]) ** 2, triangle=True)


def _entries_moved(n_columns: int, exponent: int) -> Moved:
    """Return how far one row moves a sum of rows whose entries are cut to a power of two."""
    largest = math.ldexp(1.0, exponent) if exponent <= 1000 else math.inf
    return Moved(math.sqrt(n_columns) * largest, n_columns * largest)


class FrameClient(ProtocolClient):
    """The answers of a client about how far its rows reach; and its rows in a frame, for what it answers else."""

    def enter(self, *frame: Floats) -> RowsInFrame:
        """Return the client's rows in a frame; kept from round to round while the frame is the same."""
        if self._stand_in is not None:
            return enter(self.rows, *frame)
        return self.data.derived(array_key(*frame), lambda: enter(self.rows, *frame))

    @answers(Sent("binary exponent of the largest entry, as one of many classes", counts="once"))
    def entry_exponent(self) -> GridArray:
        """Return the exponent of the client's largest entry."""
        return GridArray(exponent_indicator(table_exponent(self.rows)))

    @answers(
        Sent("sum of the rows", has_columns=True),
        Sent("number of rows", counts_rows=True),
        moved=lambda known, exponent: (_entries_moved(known.n_columns, exponent), ONE_COUNT),
    )
    def column_sums(self, *, exponent: int) -> tuple[GridArray, GridArray]:
        """Return the sum of the rows, on a grid that no entry is too large for, and their number."""
        return GridArray(entry_sums(self.rows, exponent), exponent - SUM_BITS), GridArray(np.array(len(self.rows)))

    @answers(
        Sent("binary exponent of the distance of the farthest row from the mean, as one of many classes", counts="once")
    )
    def reach(self, origin: Floats) -> GridArray:
        """Return the exponent of the farthest row's distance from an origin."""
        return GridArray(exponent_indicator(reach_exponent(self.rows, origin)))


TOO_FAR = "the sum of the rows, or their distance, is beyond the largest number there is; look for a wrong value."

#: How many rounds :func:`frame_of_rows` takes.
FRAME_ROUNDS = 3


def find_frame(strategy: Any) -> Generator[Round, Total, Frame]:
    """Return the frame of a strategy's rows: the ball of its ``max_norm``, or where none is given one that holds all.

    Parameters
    ----------
    strategy : ClippedStrategy
    """
    if strategy.max_norm is not None:
        return Frame(np.zeros(strategy.n_columns), strategy.max_norm)
    frame, _ = yield from frame_of_rows()
    return frame


def frame_of_rows(*, rows: str = "") -> Generator[Round, Total, tuple[Frame, float]]:
    """Find a frame in which no row is clipped, where none is given: the mean of all rows, and how far they reach.

    In three rounds of sums, which no mechanism covers.

    Parameters
    ----------
    rows : str, default=""
        Which rows of the clients; see :class:`~flower_fedclust.engine.rounds.Round`.

    Returns
    -------
    frame : Frame
        Its radius is a power of two.
    n_rows : float
        How many rows the clients have together.

    Raises
    ------
    DataError
        If the rows are farther apart than the largest float.
    """
    (indicator,) = yield Sum(FrameClient.entry_exponent.asked(), rows=rows)
    total, count = yield Sum(FrameClient.column_sums.asked(exponent=largest_exponent(indicator)), rows=rows)
    mean = total / count
    if not np.isfinite(mean).all():
        raise DataError(TOO_FAR)
    (indicator,) = yield Sum(FrameClient.reach.asked(mean), rows=rows)
    reach = largest_exponent(indicator)
    if reach > 1023:
        raise DataError(TOO_FAR)
    # Rows that are all equal reach nowhere; any ball is large enough.
    return Frame(mean, math.ldexp(1.0, max(reach, -1000))), float(count)
