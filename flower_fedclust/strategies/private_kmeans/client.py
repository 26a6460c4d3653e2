"""What a client answers: votes for candidates, how far its rows reach, their second moment, offsets from centers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine.by_row import by_row, finishes
from flower_fedclust.engine.rounds import Sent
from flower_fedclust.exact.grid import ball_in_units, integer_norms
from flower_fedclust.exact.rows import Rows
from flower_fedclust.exact.sums import triangle_to_symmetric
from flower_fedclust.exact.terms import Term, at, count, one_class, products, total
from flower_fedclust.strategies.common.frame import FrameClient

Floats = NDArray[np.float64]

#: Classes of distances: a class reaches sqrt(1/2) times as far as the one before it.
N_CLASSES = 16


def class_reach(index: int) -> float:
    """Return how far a class of distances reaches, as a part of the radius."""
    return float(2.0 ** (-index / 2))


class VotesClient(FrameClient):
    """The answers that PE-means needs, and all that follow it."""

    @by_row(row_count=Sent("number of rows", counts_rows=True))
    def row_count(rows: Rows) -> Term:
        """Count the rows."""
        return count(rows)

    @by_row(votes=Sent("number of rows nearest to each candidate", counts="every row"))
    def votes(rows: Rows, candidates: Floats, directions: Floats) -> Term:
        """Return the votes of the rows, in public directions; an empty array of directions is the whole space."""
        return at(rows.projected(directions).nearest(candidates), len(candidates))

    @by_row(
        sums="sum of the rows' offsets from their nearest centers, clipped",
        counts=Sent("number of rows nearest to each center", counts="every row", sizes=True),
    )
    def offset_sums(rows: Rows, centers: Floats, directions: Floats, *, bound: float) -> tuple[Term, Term]:
        """Return the offsets, in public directions, and the counts."""
        rows = rows.projected(directions)
        nearest = rows.nearest(centers)
        return at(nearest, len(centers), rows.offsets(centers, nearest, bound)), at(nearest, len(centers))


class PrivateKMeansClient(VotesClient):
    """The client half of :class:`~flower_fedclust.strategies.private_kmeans.private_kmeans.PrivateKMeans`."""

    @by_row(row_sum=Sent("sum of the rows, clipped", has_columns=True))
    def row_sum(rows: Rows) -> Term:
        """Return the sum of the rows in the frame."""
        return total(rows)

    @by_row(distances=Sent("number of rows by distance from the origin, in classes", counts="every row"))
    def distances(rows: Rows) -> Term:
        """Return how many rows are in each class, from the farthest to the nearest."""
        bound, _ = ball_in_units(rows.radius, 2, rows.exponent)
        limits = np.floor(bound**2 * np.ldexp(1.0, -np.arange(N_CLASSES - 1, 0, -1)))
        # Integers are compared, so that the class of a row is the same everywhere. The nearest class is the last.
        inside = np.searchsorted(limits, integer_norms(rows.integers, 2), side="left")
        return at(N_CLASSES - 1 - inside, N_CLASSES)

    @by_row(second_moment="sum of the outer products of the rows (upper triangle)")
    def second_moment(rows: Rows) -> Term:
        """Return the second moment of the rows in the frame."""
        return products(rows)

    @finishes(
        second_moment, distances=Sent("size of the client's second moment, as one of many classes", counts="once")
    )
    def moment_size(totals: tuple[Term, ...], n_rows: int) -> Term:
        """Return the class of the root of the Frobenius norm of the client's mean outer product."""
        (moment,) = totals
        matrix = triangle_to_symmetric(moment.array.values) / max(n_rows, 1)
        # Of 20 bits, so that the sum of squares is exact on every machine, and so is the comparison with powers of 4.
        entries = np.trunc(matrix * (2.0**20 / moment.bound.l2))
        square = int(np.vdot(entries, entries))
        # The class is the number of times that the norm can be doubled without exceeding the square of the radius.
        index = N_CLASSES - 1 if square == 0 else next(c for c in range(64) if square * 4 ** (c + 1) > 4**20)
        return one_class(min(max(index, 0), N_CLASSES - 1), N_CLASSES)
