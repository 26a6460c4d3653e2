"""The frame in which rows are measured: a public origin, a ball around it, and a grid of integers.

k-means does not care where the origin is, and noise does: it is calibrated to the longest row that is allowed. So
rows are first moved by a public point, such as the mean of the server rows, and then clipped. What a client computes
from its rows in a frame it computes from integers, so that sums are exact and ties are ties on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.constant import array_key
from flower_fedclust.numerics.exact import cluster_sums, nearest_point, project_rows, second_moment, upper_triangle
from flower_fedclust.numerics.exponents import (
    SUM_BITS,
    entry_sums,
    exponent_indicator,
    largest_exponent,
    reach_exponent,
    table_exponent,
)
from flower_fedclust.numerics.grid import (
    GridArray,
    from_units,
    points_onto_grid,
    rows_onto_grid,
    unit_exponent,
)
from flower_fedclust.numerics.kmeans import nearest_center
from flower_fedclust.protocol.client import ProtocolClient
from flower_fedclust.protocol.rounds import ONE_COUNT, Moved, Round, Sent, Sum, Total, answers

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]


@dataclass(frozen=True)
class RowsInFrame:
    """Rows in the coordinates of a frame, as integers of norm at most its radius."""

    #: Float64 that holds integers, each row computed from that row and the frame alone, of shape (n_rows, n_columns).
    integers: Floats
    exponent: int  #: Of the unit.
    radius: float  #: In the units of the data.
    norm: int
    _projected: dict[Hashable, RowsInFrame] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.integers)

    @property
    def values(self) -> Floats:
        """The rows in the units of the data."""
        return from_units(self.integers, self.exponent)

    def points(self, points: Floats) -> Floats:
        """Return public points of the frame as integers on the grid of the rows."""
        return points_onto_grid(points, self.exponent)

    def nearest(self, points: Floats) -> Labels:
        """Return the index of the public point that is nearest to each row; ties go to the lowest."""
        return nearest_point(self.integers, self.points(points))

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

    def projected(self, directions: Floats) -> RowsInFrame:
        """Return the rows in public directions, of norm at most the radius again; kept until others are asked for.

        Parameters
        ----------
        directions : ndarray of shape (n_columns, n_directions)
            From :func:`~flower_fedclust.numerics.exact.directions_onto_grid`, so that the server knows what they are.
        """
        key = array_key(directions)
        if key not in self._projected:
            self._projected.clear()
            projected = project_rows(self.integers, directions, self.radius, norm=self.norm)
            self._projected[key] = replace(self, integers=projected)
        return self._projected[key]

    def __getitem__(self, kept: NDArray[np.bool_]) -> RowsInFrame:
        return replace(self, integers=self.integers[kept])


@dataclass(frozen=True)
class Frame:
    """A public origin and a public radius; and, after Lemma 16, how each region of space is moved.

    Parameters
    ----------
    origin : ndarray of shape (n_columns,)
    radius : float
        Rows farther from the origin are scaled down to it, by the client.
    anchors : ndarray of shape (n_anchors, n_columns), optional
        Points, in the frame's coordinates before the move, that stand for regions.
    shifts : ndarray of shape (n_anchors, n_columns), optional
        What is added to a row whose nearest anchor this is.
    outer_radius : float, optional
        With anchors: the radius to which rows are clipped where the nearest anchor is sought.
    norm : 1 or 2, default=2
        Whether the ball is one of the L1 norm, for Laplace noise, or of the Euclidean norm.
    """

    origin: Floats
    radius: float
    anchors: Floats | None = None
    shifts: Floats | None = None
    outer_radius: float | None = None
    norm: int = 2

    @classmethod
    def around(cls, server_rows: Floats, *, centered: bool) -> Self:
        """Return the frame of the server rows: their mean (or zero) as the origin, and their radius about it."""
        origin = server_rows.mean(axis=0) if centered else np.zeros(server_rows.shape[1])
        return cls(origin, float(np.linalg.norm(server_rows - origin, axis=1).max()))

    @property
    def arrays(self) -> list[NDArray[Any]]:
        """What a client needs to enter the frame, in the order of :func:`enter`."""
        if self.anchors is None or self.shifts is None or self.outer_radius is None:
            return [self.origin, np.array([self.radius, self.norm])]
        return [self.origin, np.array([self.radius, self.norm, self.outer_radius]), self.anchors, self.shifts]

    def enter(self, rows: Floats) -> Floats:
        """Return public rows in the frame's coordinates, as a client with these rows would have them."""
        return enter(rows, *self.arrays).values

    def leave(self, centers: Floats) -> Floats:
        """Return centers in the coordinates of the data."""
        if self.anchors is not None and self.shifts is not None:
            centers = centers - self.shifts[nearest_center(centers, self.anchors + self.shifts)]
        return centers + self.origin


def enter(rows: Floats, origin: Floats, ball: Floats, *moved: Floats) -> RowsInFrame:
    """Return rows in the coordinates of a frame: translated, moved by region if need be, and clipped.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_columns)
    origin : ndarray of shape (n_columns,)
    ball : ndarray of shape (2,) or (3,)
        The radius, 1 or 2 for the norm in which it is measured, and the outer radius where regions are moved.
    *moved : two ndarray of shape (n_anchors, n_columns), or none
        Anchors and shifts.
    """
    radius, norm = float(ball[0]), int(ball[1])
    if not moved:
        return RowsInFrame(*rows_onto_grid(rows, origin, radius, norm=norm), radius, norm)
    anchors, shifts = moved
    coarse, outer_exponent = rows_onto_grid(rows, origin, float(ball[2]), norm=norm)
    nearest = nearest_point(coarse, points_onto_grid(anchors, outer_exponent))
    # Regions that are moved alike have one origin, around which their rows are put onto a grid that suits the ball.
    moves, of_anchor = np.unique(shifts, axis=0, return_inverse=True)
    moved_by, integers = of_anchor.ravel()[nearest], np.empty(rows.shape)
    for index, move in enumerate(moves):
        part = moved_by == index
        integers[part], _ = rows_onto_grid(rows[part], origin - move, radius, norm=norm)
    return RowsInFrame(integers, unit_exponent(radius), radius, norm)


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


def frame_of_rows(*, rows: str = "") -> Generator[Round, Total, tuple[Frame, float]]:
    """Find a frame in which no row is clipped, where none is given: the mean of all rows, and how far they reach.

    In three rounds of sums, which no mechanism covers.

    Parameters
    ----------
    rows : str, default=""
        Which rows of the clients; see :class:`~flower_fedclust.protocol.rounds.Round`.

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
