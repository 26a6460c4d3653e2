"""What a client answers: votes for candidates, how far its rows reach, their second moment, offsets from centers.

Of records every answer is a sum over rows, each by itself; of clients it is the mean over a client's rows, clipped as a
whole.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.blocks import cached_blocks
from flower_fedclust.numerics.exact import cluster_sums, nearest_point, second_moment, upper_triangle
from flower_fedclust.numerics.grid import (
    GridArray,
    ball_in_units,
    from_units,
    integer_norms,
    rows_onto_grid,
    unit_exponent,
)
from flower_fedclust.protocol.rounds import ONE_COUNT, Moved, Sent, answers, within
from flower_fedclust.steps.frame import FrameClient, RowsInFrame, ball_moved, products_moved

Floats = NDArray[np.float64]

#: Classes of distances: a class reaches sqrt(1/2) times as far as the one before it.
N_CLASSES = 16


def class_reach(index: int) -> float:
    """Return how far a class of distances reaches, as a part of the radius."""
    return float(2.0 ** (-index / 2))


def offset_sums(rows: RowsInFrame, centers: Floats, bound: float) -> tuple[GridArray, GridArray]:
    """Return the sum of the rows' offsets from their nearest centers, each clipped to a norm, and the rows' number.

    Parameters
    ----------
    rows : RowsInFrame
    centers : ndarray of shape (n_clusters, n_columns)
    bound : float
        In the units of the rows.
    """
    points, exponent = rows.points(centers), unit_exponent(bound)
    origin = np.zeros(points.shape[1])
    sums, counts = np.zeros(points.shape, dtype=np.int64), np.zeros(len(points), dtype=np.int64)
    for block in cached_blocks(len(rows), max(points.shape)):
        labels = nearest_point(rows.integers[block], points)
        # A difference of integers, which is exact, in a unit of its own, which is no coarser.
        offsets, _ = rows_onto_grid(from_units(rows.integers[block] - points[labels], rows.exponent), origin, bound)
        of_block = cluster_sums(offsets, labels, len(points))
        sums += of_block[0]
        counts += of_block[1]
    return GridArray(sums, exponent), GridArray(counts)


class VotesClient(FrameClient):
    """The answers that PE-means needs, and all that follow it."""

    @answers(Sent("number of rows", counts_rows=True), moved=lambda _: (ONE_COUNT,))
    def row_count(self) -> GridArray:
        """Return how many rows the client has."""
        return GridArray(np.array(len(self.rows)))

    @answers(
        Sent("number of rows nearest to each candidate", counts="every row"),
        moved=lambda _, candidates, directions, *frame: (ONE_COUNT,),
    )
    def votes(self, candidates: Floats, directions: Floats, *frame: Floats) -> GridArray:
        """Return the votes of the rows, in public directions; an empty array of directions is the whole space."""
        return self._projected(directions, *frame).counts(candidates)

    @answers(
        "sum of the rows' offsets from their nearest centers, clipped",
        Sent("number of rows nearest to each center", counts="every row", sizes=True),
        moved=lambda _, centers, directions, *frame, bound: (Moved(bound), ONE_COUNT),
    )
    def offset_sums(
        self, centers: Floats, directions: Floats, *frame: Floats, bound: float
    ) -> tuple[GridArray, GridArray]:
        """Return the offsets, in public directions, and the counts."""
        return offset_sums(self._projected(directions, *frame), centers, bound)

    def _projected(self, directions: Floats, *frame: Floats) -> RowsInFrame:
        rows = self.enter(*frame)
        return rows.projected(directions) if directions.size else rows


class PrivateKMeansClient(VotesClient):
    """The client half of :class:`~flower_fedclust.strategies.private_kmeans.private_kmeans.PrivateKMeans`."""

    @answers(Sent("sum of the rows, clipped", has_columns=True), moved=lambda _, *frame: (ball_moved(*frame),))
    def row_sum(self, *frame: Floats) -> GridArray:
        """Return the sum of the rows in the frame."""
        return self.enter(*frame).total()[0]

    @answers(
        Sent("number of rows by distance from the origin, in classes", counts="every row"),
        moved=lambda _, *frame: (ONE_COUNT,),
    )
    def distances(self, *frame: Floats) -> GridArray:
        """Return how many rows are in each class, from the farthest to the nearest."""
        rows = self.enter(*frame)
        bound, _ = ball_in_units(rows.radius, 2, rows.exponent)
        limits = np.floor(bound**2 * np.ldexp(1.0, -np.arange(N_CLASSES - 1, 0, -1)))
        # Integers are compared, so that the class of a row is the same everywhere. The nearest class is the last.
        inside = np.searchsorted(limits, integer_norms(rows.integers, 2), side="left")
        return GridArray(np.bincount(N_CLASSES - 1 - inside, minlength=N_CLASSES))

    @answers(
        "sum of the outer products of the rows (upper triangle)", moved=lambda _, *frame: (products_moved(*frame),)
    )
    def second_moment(self, *frame: Floats) -> GridArray:
        """Return the second moment of the rows in the frame."""
        return self.enter(*frame).outer_products()

    # At client level.

    @answers(
        Sent("mean of the client's rows, clipped", has_columns=True),
        moved=lambda _, *frame: (within(float(frame[1][0])),),
    )
    def row_mean(self, *frame: Floats) -> GridArray:
        """Return the mean of the rows in the frame."""
        rows = self.enter(*frame)
        return GridArray.clipped(rows.values.mean(axis=0), rows.radius)

    @answers(
        Sent("size of the client's second moment, as one of many classes", counts="once"),
        moved=lambda _, *frame: (Moved(math.sqrt(2.0), 2.0, apart=math.sqrt(2.0), of_client=1.0),),
    )
    def moment_size(self, *frame: Floats) -> GridArray:
        """Return the class of the root of the Frobenius norm of the client's mean outer product."""
        matrix, radius = self._mean_outer_product(*frame)
        # Of 20 bits, so that the sum of squares is exact on every machine, and so is the comparison with powers of 4.
        entries = np.trunc(matrix * (2.0**20 / radius**2))
        square = int(np.vdot(entries, entries))
        # The class is the number of times that the norm can be doubled without exceeding the square of the radius.
        index = N_CLASSES - 1 if square == 0 else next(c for c in range(64) if square * 4 ** (c + 1) > 4**20)
        indicator = np.zeros(N_CLASSES, dtype=bool)
        indicator[min(max(index, 0), N_CLASSES - 1)] = True
        return GridArray(indicator)

    @answers(
        "mean of the outer products of the client's rows (upper triangle), clipped",
        moved=lambda _, *frame, bound: (within(bound, triangle=True),),
    )
    def mean_second_moment(self, *frame: Floats, bound: float) -> GridArray:
        """Return the client's second moment over its number of rows, clipped to this Frobenius norm."""
        matrix, _ = self._mean_outer_product(*frame)
        clipped = GridArray.clipped(matrix, bound)
        return GridArray(upper_triangle(clipped.integers), clipped.exponent)

    @answers(
        "part of the client's rows nearest to each candidate, clipped",
        moved=lambda _, candidates, directions, *frame, bound: (within(bound),),
    )
    def mean_votes(self, candidates: Floats, directions: Floats, *frame: Floats, bound: float) -> GridArray:
        """Return the votes over their number, clipped to this Euclidean norm."""
        votes = self._projected(directions, *frame).counts(candidates)
        return GridArray.clipped(votes.values / len(self.rows), bound)

    @answers(
        "mean of the rows' offsets from their nearest centers, clipped",
        Sent("part of the rows nearest to each center", sizes=True),
        moved=lambda _, centers, directions, *frame, bound, offsets_bound, counts_bound: (
            within(offsets_bound),
            within(counts_bound),
        ),
    )
    def mean_offsets(
        self,
        centers: Floats,
        directions: Floats,
        *frame: Floats,
        bound: float,
        offsets_bound: float,
        counts_bound: float,
    ) -> tuple[GridArray, GridArray]:
        """Return offsets and counts over the number of rows, clipped to Euclidean norms."""
        sums, counts = offset_sums(self._projected(directions, *frame), centers, bound)
        n_rows = len(self.rows)
        return (
            GridArray.clipped(sums.values / n_rows, offsets_bound),
            GridArray.clipped(counts.values / n_rows, counts_bound),
        )

    def _mean_outer_product(self, *frame: Floats) -> tuple[Floats, float]:
        rows = self.enter(*frame)
        matrix, exponent = second_moment(rows.integers, rows.exponent)
        return from_units(matrix, exponent) / len(rows), rows.radius
