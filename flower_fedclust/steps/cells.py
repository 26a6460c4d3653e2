"""Cells of rows that stay where they are, from sums with Laplace noise: a frame, first centers, Lloyd steps, votes.

What SPP-FGC's privacy analysis (He et al., appendix C) leaves out is that the clusters hang on the rows: where a client
finds them by itself, one row can move every other to another cluster. Here a row belongs to the nearest of some centers
that come from noisy sums, so that it counts in one cell, whatever the others are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.initialisation import weighted_kmeans
from flower_fedclust.numerics.kmeans import centers_of, squared_distances
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.accounting import Share
from flower_fedclust.privacy.releases import Release
from flower_fedclust.protocol.rounds import Array, Round, Sum, answers
from flower_fedclust.steps.clusters import ClusterClient, ClusterStatistic
from flower_fedclust.steps.frame import Frame, enter

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: Of a release of sums and counts, the part of epsilon for the sums: a count is one number and takes little.
SUMS_PART = 0.8

#: The radius is that within which this part of the rows lies, about; the others are clipped to it.
WITHIN_RADIUS = 0.9

#: Distances are counted between powers of sqrt(2), from 2 R down; what is nearer than the last is counted there.
N_DISTANCES = 16

#: Up to so many columns the first centers have the directions of the rows; beyond, their deviations by column alone, as
#: the noise on d (d + 1) / 2 products would hide them.
FULL_COLUMNS = 64

#: So many rows, times epsilon, over columns, are worth a cell of their own.
ROWS_PER_CELL = 100.0

#: How many rows a cell has at least, whatever the noise: fewer vote by chance. And how many cells there are at most: so
#: many a cluster, or without noise one for so many rows where that is more, up to a number.
LEAST_ROWS_PER_CELL = 16
CELLS_PER_CLUSTER = 8
ROWS_OF_A_CELL = 25
MOST_CELLS = 200

#: Where there are not so many cells a cluster, there is one.
FEWEST_CELLS_PER_CLUSTER = 2.5

#: How many points are drawn from the Gaussian that the rows have in common, for each of the first centers.
POINTS_PER_CENTER = 100


@dataclass(frozen=True)
class CellNoise:
    """The noise multipliers of the releases, and the bound of the rows; zeros, and infinity, without noise.

    Parameters
    ----------
    origin, radius, directions, centers, last : float
        Multipliers, of each release together: a release of two arrays has both within it. ``centers`` is that of each
        Lloyd step; ``last`` that of the release with which the strategy ends.
    max_l1_norm : float
        R: clients clip rows to this L1 norm. In the units of the rows.
    in_sum : float
        How large the noise in a sum over the clients is, over that of one release: more than 1 where the clients bring
        more than is needed. For what is taken for noise; no guarantee rests on it.
    """

    origin: float = 0.0
    radius: float = 0.0
    directions: float = 0.0
    centers: float = 0.0
    last: float = 0.0
    max_l1_norm: float = math.inf
    in_sum: float = 1.0

    @property
    def is_off(self) -> bool:
        """Whether there is no noise."""
        return self.last == 0

    @classmethod
    def of(cls, multipliers: Sequence[float], max_l1_norm: float, noise_of_sum: Callable[[Release], float]) -> Self:
        """Return the noise of calibrated shares, in the order of :meth:`shares`."""
        origin, radius, directions, centers, last = multipliers
        unit = Release("laplace", 1.0, 1.0, "")
        in_sum = noise_of_sum(unit) / unit.standard_deviation
        return cls(origin, radius, directions, centers, last, max_l1_norm, in_sum)

    @staticmethod
    def shares(budget_split: tuple[float, ...], n_lloyd_rounds: int) -> tuple[Share, ...]:
        """Return the parts of epsilon for origin, radius, directions, centers and the last release, in this order.

        Parameters
        ----------
        budget_split : tuple of five float
        n_lloyd_rounds : int
            Between which the part of the centers is shared out.
        """
        origin, radius, directions, centers, last = budget_split
        single = [Share("laplace", part) for part in (origin, radius, directions)]
        return (*single, Share("laplace", centers / n_lloyd_rounds, n_lloyd_rounds), Share("laplace", last))


@dataclass(frozen=True)
class Cells:
    """Centers, and what is known of the rows around them.

    Parameters
    ----------
    frame : Frame
        In whose coordinates the centers are: an origin, and an L1 ball around it.
    centers : ndarray of shape (n_cells, n_columns)
    counts : ndarray of shape (n_cells,)
        Rows of each in the last step; with noise, about. Positive.
    n_rows : float
        Of all clients; with noise, about.
    """

    frame: Frame
    centers: Floats
    counts: Floats
    n_rows: float

    def __len__(self) -> int:
        return len(self.centers)


def find_cells(
    n_clusters: int,
    n_cells: int | None,
    n_columns: int,
    noise: CellNoise,
    rng: np.random.Generator,
    *,
    epsilon: float | None,
    n_lloyd_rounds: int,
) -> Generator[Round, list[Array], Cells]:
    """Return cells: their frame and directions in one round each (three in all), then Lloyd steps.

    Parameters
    ----------
    n_clusters : int
    n_cells : int or None
        None is as many as the rows allow (:func:`n_cells_for`).
    n_columns : int
    noise : CellNoise
    rng : numpy.random.Generator
        For the first centers, and where a center that has lost its rows is set down.
    epsilon : float or None
        The total, for the number of cells.
    n_lloyd_rounds : int
        1 or more.

    Returns
    -------
    Cells
        Those with hardly a row are dropped, as long as there are more than clusters.

    Raises
    ------
    DataError
        If there are fewer rows than clusters.
    """
    frame, n_rows = yield from _frame(n_columns, noise)
    if noise.is_off and n_rows < n_clusters:
        raise DataError(f"the clients have {n_rows:.0f} rows together and n_clusters is {n_clusters}; ask for fewer.")
    root = yield from _directions(frame, n_rows, noise)
    if n_cells is None:
        n_cells = n_cells_for(n_rows, n_clusters, n_columns, None if epsilon is None else epsilon / noise.in_sum)
    points = rng.standard_normal((POINTS_PER_CENTER * n_cells, n_columns)) @ root.T
    centers = weighted_kmeans(_inside(points, frame), None, n_cells, rng)
    centers, counts = yield from _lloyd(centers, frame, root, noise, rng, n_lloyd_rounds)
    kept = counts > smallest_count(noise.in_sum * noise.centers)
    if np.count_nonzero(kept) < n_clusters:
        kept = np.isin(np.arange(len(counts)), np.argsort(-counts, kind="stable")[:n_clusters])
    return Cells(frame, centers[kept], np.maximum(counts[kept], 1.0), n_rows)


def n_cells_for(n_rows: float, n_clusters: int, n_columns: int, epsilon: float | None) -> int:
    """Return how many cells rows are worth: one a cluster, or several where noise leaves something to see in each.

    Parameters
    ----------
    n_rows : float
    n_clusters, n_columns : int
    epsilon : float or None
        With which as much noise as is in the sums would be one release.
    """
    worth = n_rows / LEAST_ROWS_PER_CELL
    if epsilon is not None:
        worth = min(worth, n_rows * epsilon / (ROWS_PER_CELL * n_columns))
    if worth < FEWEST_CELLS_PER_CLUSTER * n_clusters:
        # A cluster that has one cell while others have several is joined to another, as its rows vote for two.
        return n_clusters
    most = float(CELLS_PER_CLUSTER * n_clusters)
    if epsilon is None:
        most = max(most, min(n_rows / ROWS_OF_A_CELL, MOST_CELLS))
    return int(min(most, worth))


def smallest_count(multiplier: float) -> float:
    """Return the count up to which a cell has hardly a row: two scales of the noise on a count, one half at least."""
    return max(0.5, 2.0 * multiplier / (1.0 - SUMS_PART))


def sums_and_counts_releases(multiplier: float, bound: float) -> tuple[Release | None, Release | None]:
    """Return the releases of sums of rows and counts that together are one Laplace release.

    A row is in one sum and in one count. With Laplace parameters of ``m bound / p`` and ``m / (1 - p)``, the row's
    change, measured in these, is ``p / m + (1 - p) / m`` at most, as it is for one release of multiplier m.

    Parameters
    ----------
    multiplier : float
        m; 0 is none.
    bound : float
        The L1 norm to which rows are clipped.
    """
    if multiplier == 0:
        return None, None
    return (
        Release("laplace", bound, multiplier / SUMS_PART, "the client clips every row to this L1 norm"),
        Release("laplace", 1.0, multiplier / (1.0 - SUMS_PART), "a row is in one cell"),
    )


def _frame(n_columns: int, noise: CellNoise) -> Generator[Round, list[Array], tuple[Frame, float]]:
    """Return the mean of the rows as the origin, the radius around it that holds most rows, and how many there are."""
    bound = noise.max_l1_norm
    everywhere = Frame(np.zeros(n_columns), bound, norm=1)
    statistic = ClusterStatistic(sums_and_counts_releases(noise.origin, bound))
    sums, counts = yield statistic.asked(np.zeros((1, n_columns)), everywhere)
    n_rows = max(float(counts[0]), 1.0)
    origin = clip_rows(sums / n_rows, bound, norm=1)[0]
    if noise.is_off:
        return Frame(origin, math.inf, norm=1), n_rows
    (found,) = yield Sum(
        "distance_counts",
        [origin],
        arguments={"max_l1_norm": bound},
        releases=[Release("laplace", 1.0, noise.radius, "a row is at one distance")],
    )
    return Frame(origin, radius_of(found, bound, noise.in_sum * noise.radius), norm=1), n_rows


def distance_edges(max_l1_norm: float) -> Floats:
    """Return the upper ends of the distances that are counted, ascending, of shape (N_DISTANCES,)."""
    # Two points of a ball are at most its diameter apart.
    return np.asarray(2.0 * max_l1_norm * 2.0 ** (-0.5 * np.arange(N_DISTANCES)[::-1]), dtype=np.float64)


def radius_of(counts: Floats, max_l1_norm: float, scale: float) -> float:
    """Return the distance within which most rows lie, from noisy counts.

    Parameters
    ----------
    counts : ndarray of shape (N_DISTANCES,)
    max_l1_norm : float
    scale : float
        The Laplace parameter of their noise. Counts below twice as much are taken for none.
    """
    rows = np.where(counts > 2.0 * scale, counts, 0.0)
    if not rows.any():
        return float(distance_edges(max_l1_norm)[-1])
    within = np.cumsum(rows) / rows.sum()
    return float(distance_edges(max_l1_norm)[np.argmax(within >= WITHIN_RADIUS)])


def _directions(frame: Frame, n_rows: float, noise: CellNoise) -> Generator[Round, list[Array], Floats]:
    """Return a root of the second moment of the rows in the frame, of shape (n_columns, n_columns)."""
    n_columns = len(frame.origin)
    # |x_i x_j| over i <= j adds up to (||x||_1^2 + ||x||_2^2) / 2, which is ||x||_1^2 at most.
    release = None
    if not noise.is_off:
        bound = frame.radius**2
        release = Release("laplace", bound, noise.directions, "products of a row's entries; the client clips the row")
    (found,) = yield Sum("entry_products", [*frame.arrays], arguments=frame.arguments, releases=[release])
    if n_columns > FULL_COLUMNS:
        variances = np.maximum(found / n_rows, 0.0)
        return np.diag(np.sqrt(np.maximum(variances, 1e-4 * variances.mean())))
    values, vectors = np.linalg.eigh(moment_of(found) / n_rows)
    values = np.maximum(values, 1e-4 * max(float(values.mean()), 0.0))
    root: Floats = vectors * np.sqrt(values)
    return root


def products_of(moment: Floats) -> Floats:
    """Return the upper triangle of a symmetric matrix by rows, each product once."""
    products: Floats = moment[np.triu_indices(len(moment))]
    return products


def moment_of(products: Floats) -> Floats:
    """Undo :func:`products_of`."""
    size = int((np.sqrt(8 * len(products) + 1) - 1) / 2)
    moment = np.empty((size, size))
    first, second = np.triu_indices(size)
    moment[first, second] = moment[second, first] = products
    return moment


def _lloyd(
    centers: Floats, frame: Frame, root: Floats, noise: CellNoise, rng: np.random.Generator, n_rounds: int
) -> Generator[Round, list[Array], tuple[Floats, Floats]]:
    """Take Lloyd steps; a center that has lost its rows is set down beside one of many, but for the last step."""
    statistic = ClusterStatistic(sums_and_counts_releases(noise.centers, frame.radius))
    smallest = smallest_count(noise.in_sum * noise.centers)
    for step in range(n_rounds):
        sums, counts = yield statistic.asked(centers, frame)
        centers = _inside(centers_of(sums, counts, centers, at_least=max(smallest, 1.0)), frame)
        lost = np.flatnonzero(counts <= smallest)
        if step < n_rounds - 1 and 0 < len(lost) < len(centers):
            largest = np.resize(np.argsort(-counts, kind="stable")[: len(centers) - len(lost)], len(lost))
            # A cell is as wide as the rows, over the number of cells in each direction.
            apart = 0.3 * len(centers) ** (-1.0 / len(frame.origin))
            beside = centers[largest] + apart * rng.standard_normal((len(lost), len(root))) @ root.T
            centers[lost] = _inside(beside, frame)
    return centers, counts


def _inside(points: Floats, frame: Frame) -> Floats:
    return clip_rows(points, frame.radius, norm=frame.norm)


def ask_votes(cells: Cells, noise: CellNoise) -> Sum:
    """Return the round that asks each row for its two nearest centers.

    Parameters
    ----------
    cells : Cells
        Two or more.
    noise : CellNoise
    """
    release = None if noise.is_off else Release("laplace", 1.0, noise.last, "a row votes for one pair of centers")
    return Sum("votes", [cells.centers, *cells.frame.arrays], arguments=cells.frame.arguments, releases=[release])


def refine(cells: Cells, noise: CellNoise) -> Generator[Round, list[Array], Cells]:
    """Return cells after one more Lloyd step, for which the last release is spent where there is nothing to vote on.

    It is as private as the votes would be, so that which of the two is asked for may hang on noisy counts.
    """
    statistic = ClusterStatistic(sums_and_counts_releases(noise.last, cells.frame.radius))
    sums, counts = yield statistic.asked(cells.centers, cells.frame)
    at_least = max(smallest_count(noise.in_sum * noise.last), 1.0)
    centers = _inside(centers_of(sums, counts, cells.centers, at_least=at_least), cells.frame)
    return replace(cells, centers=centers, counts=np.maximum(counts, 1.0))


class CellsClient(ClusterClient):
    """The answers of a client among whose rows cells are found. All are sums over rows."""

    @answers("distance_counts", sends=("number of rows at each distance from a point",))
    def distance_counts(self, origin: Floats, *, max_l1_norm: float) -> Floats:
        """Return how many rows lie in each ring around the origin, by L1 distance."""
        distances = np.abs(clip_rows(self.rows, max_l1_norm, norm=1) - origin).sum(axis=1)
        edges = distance_edges(max_l1_norm)
        rings = np.minimum(np.searchsorted(edges, distances), N_DISTANCES - 1)
        return np.bincount(rings, minlength=N_DISTANCES).astype(np.float64)

    @answers("entry_products", sends=("sum over rows of the products of their entries",))
    def entry_products(self, *frame: Floats, radius: float, norm: int) -> Floats:
        """Return the upper triangle of X'X in the frame; of wide rows, the sums of squares alone."""
        rows = enter(self.rows, *frame, radius=radius, norm=norm)
        if rows.shape[1] > FULL_COLUMNS:
            return np.asarray(np.einsum("ij,ij->j", rows, rows))
        return products_of(rows.T @ rows)

    @answers("votes", sends=("number of rows that have two centers as their nearest, by pair of centers",))
    def votes(self, centers: Floats, *frame: Floats, radius: float, norm: int) -> Floats:
        """Return the votes, in the order of the upper triangle of a table of pairs."""
        rows = enter(self.rows, *frame, radius=radius, norm=norm)
        table = np.zeros((len(centers), len(centers)))
        nearest, second = two_nearest(rows, centers)
        np.add.at(table, (np.minimum(nearest, second), np.maximum(nearest, second)), 1.0)
        return table[np.triu_indices(len(centers), 1)]


def two_nearest(rows: Floats, centers: Floats) -> tuple[Labels, Labels]:
    """Return the nearest and the second nearest center of each row, both of shape (n_rows,)."""
    distances = squared_distances(rows, centers)
    index = np.arange(len(rows))
    nearest = distances.argmin(axis=1)
    distances[index, nearest] = np.inf
    return nearest, distances.argmin(axis=1)
