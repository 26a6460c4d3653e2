"""Many centers that lie among the rows, from sums alone: Lloyd steps that begin with one center and split it."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine.by_row import by_row
from flower_fedclust.engine.rounds import Question, Round, Sent, Sum, Total
from flower_fedclust.exact.grid import unit_exponent
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.sums import nearest_point
from flower_fedclust.exact.terms import Term, at, unbounded
from flower_fedclust.numerics.kmeans import centers_of
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.strategies.common.clusters import ClusterClient, ClusterStatistic

Floats = NDArray[np.float64]

#: How far the two halves of a center are set apart, in standard deviations of the rows.
SPLIT = 0.05

#: Squared distances, of up to 52 bits, are added in two parts, the lower of so many bits, which are both exact.
LOWER_BITS = 26


def n_splits(n_centers: int) -> int:
    """Return how many times one center must be doubled to give so many."""
    return math.ceil(math.log2(max(n_centers, 1)))


def spread_centers(
    n_centers: int,
    frame: Frame,
    deviation: Floats,
    rng: np.random.Generator,
    *,
    steps: tuple[int, int],
    statistic: ClusterStatistic | None = None,
    smallest: float = 0.0,
    view: Question | None = None,
) -> Generator[Round, Total, tuple[Floats, Floats]]:
    """Return centers spread as the rows are (Linde, Buzo and Gray 1980, on sums).

    The first center is the frame's origin. In turn the centers of the largest cells are split, until there are twice as
    many, and Lloyd steps follow. A cell that has lost its rows gives its center to the largest cell, to be split.

    Large is a cell of a large k-means cost, which the clients send without noise; the largest are split into several.
    With noise it is one of many rows, each of which is split in two: this takes no release besides those of the Lloyd
    steps, but where some clumps of rows are far denser than others, all centers together cost up to twice as much.

    Parameters
    ----------
    n_centers : int
    frame : Frame
        Of the rows; the centers are in its coordinates, and within its radius.
    deviation : ndarray of shape (n_columns,)
        About that of the rows, by column.
    rng : numpy.random.Generator
        For the directions of the splits.
    steps : tuple of two int
        Lloyd steps, one a round: after each split, and at the end.
    statistic : ClusterStatistic, optional
        What the clients send where it takes noise.
    smallest : float, default=0
        A cell with no more rows than this counts as empty; with noise, about one standard deviation of a count.
    view : Question, optional
        What clients make of their rows first.

    Returns
    -------
    centers : ndarray of shape (n_centers, n_columns)
    sizes : ndarray of shape (n_centers,)
        How many rows each had in the last round, 0 at least; with noise, about.
    """
    cells = _Cells(np.zeros((1, len(deviation))), np.ones(1), np.ones(1) if statistic is None else None)
    # Rows are nowhere farther apart; and the deviation of very long ones may have overflowed.
    apart = SPLIT * np.fmin(deviation, frame.radius)
    around_zero = Frame(np.zeros(len(deviation)), frame.radius)
    after_split, last = steps
    numbers = [min(2**split, n_centers) for split in range(1, n_splits(n_centers) + 1) for _ in range(after_split)]
    for number in numbers + [n_centers] * last:
        # On the grid of the rows, so that the server knows from where the clients measure.
        centers = around_zero.enter(_split(cells, number, apart, smallest, rng))
        cells = yield from _lloyd_step(centers, frame, statistic, view)
    return cells.centers, np.where(cells.sizes > smallest, cells.sizes, 0.0)


@dataclass(frozen=True)
class _Cells:
    """The centers, how many rows each has, and their k-means cost where it is known, in squared units of the grid."""

    centers: Floats
    sizes: Floats
    costs: Floats | None


def _lloyd_step(
    centers: Floats, frame: Frame, statistic: ClusterStatistic | None, view: Question | None
) -> Generator[Round, Total, _Cells]:
    of_rows = frame if view is None else None
    if statistic is not None:
        reply = yield statistic.asked(centers, of_rows, view=view)
        # Within the ball, where the means of clipped rows must lie whatever noise does.
        return _Cells(clip_rows(statistic.next_centers(reply, centers), frame.radius), reply[1], None)
    question = SpreadCentersClient.cluster_sums_and_costs.asked(centers, frame=of_rows, view=view)
    sums, counts, (higher, lower) = yield Sum(question)
    new = centers_of(sums, counts, fallback=centers)
    # The clients measure from the former centers; from their mean, the rows of a cell have so much less.
    moved = np.ldexp(new - centers, -unit_exponent(frame.radius))
    costs = 2.0**LOWER_BITS * higher + lower - counts * np.einsum("ij,ij->i", moved, moved)
    return _Cells(new, counts, np.maximum(costs, 0.0))


def _split(cells: _Cells, wanted: int, apart: Floats, smallest: float, rng: np.random.Generator) -> Floats:
    """Return so many centers: those whose cells have rows, and second ones beside the centers of the largest cells."""
    kept = np.flatnonzero(cells.sizes > smallest)
    if len(kept) == 0:
        kept = np.array([int(cells.sizes.argmax())])
    missing = wanted - len(kept)
    if cells.costs is None:
        split = np.resize(kept[np.argsort(-cells.sizes[kept], kind="stable")], missing)
    else:
        split = kept[_shared_out(cells.costs[kept], missing)]
    beside = cells.centers[split]
    return np.concatenate([cells.centers[kept], beside + apart * rng.standard_normal(beside.shape)])


def _shared_out(costs: Floats, missing: int) -> NDArray[np.intp]:
    """Return which cell each missing center goes to: the one whose parts would cost most without it."""
    parts = np.ones(len(costs))
    chosen = np.empty(missing, dtype=np.intp)
    for index in range(missing):
        # Each of k parts has 1 / k^2 of the cost where a cell extends in two directions, and more in many.
        chosen[index] = np.argmax(costs / parts**2)
        parts[chosen[index]] += 1
    return chosen


class SpreadCentersClient(ClusterClient):
    """The answers of a client among whose rows centers are spread."""

    @by_row(
        sums="sum of the rows in each cluster",
        counts=Sent("number of rows in each cluster", counts="every row", sizes=True),
        costs="sum of the squared distances of the rows in each cluster from its center, in squared units of the grid",
    )
    def cluster_sums_and_costs(rows: Rows, centers: Floats) -> tuple[Term, Term, Term]:
        """Return the sum, the number and the k-means cost of the rows in each cluster.

        The cost is exact, in two rows: how many times ``2**LOWER_BITS`` squared units of the grid, and what is left of
        each row's. In squared units of the data it could overflow.
        """
        points = rows.points(centers)
        labels = nearest_point(rows.integers, points)
        offsets = rows.integers - points[labels]
        squared = np.einsum("ij,ij->i", offsets, offsets)  # of integers, and at most 2^52
        higher = np.floor(squared * 2.0**-LOWER_BITS)
        lower = squared - higher * 2.0**LOWER_BITS
        costs = np.array([np.bincount(labels, part, len(centers)) for part in (higher, lower)]).astype(np.int64)
        n_centers = len(centers)
        return at(labels, n_centers, rows), at(labels, n_centers), unbounded(costs, 0, 2**LOWER_BITS)
