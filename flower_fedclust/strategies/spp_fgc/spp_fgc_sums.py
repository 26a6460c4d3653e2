"""SPP-FGC from sums alone: rows vote for the edges of a graph of prototypes that all clients share.

SPP-FGC's privacy analysis (He et al., appendix C) ignores that clusters depend on the rows: if a
client finds clusters by itself, one row can move every other row to another cluster. Here noisy sums
find centers that all clients share. The rows nearest to a center are a cell. So a row counts in one
cell, whatever the other rows are.

docs/shape.md shows how a ``yield`` here becomes a round of Flower.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import Entry, Outcome, PrivateStrategy, Protocol, Sent, Sum, parameter
from flower_fedclust.engine.by_row import by_row
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Array, Round, Total
from flower_fedclust.exact.grid import unit_exponent
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.sums import squared_distances, triangle_to_symmetric
from flower_fedclust.exact.terms import Term, at, joined, products, squares
from flower_fedclust.models import PrototypeModel
from flower_fedclust.numerics.blocks import cached_blocks
from flower_fedclust.numerics.checks import (
    LARGEST_NORM,
    SMALLEST_NORM,
    DataError,
    check_integer,
    check_max_l1_norm,
    warn_of_empty_clusters,
)
from flower_fedclust.numerics.global_graph import (
    EVERY_PAIR,
    EXACT_EVERY_PAIR,
    vote_embedding,
    vote_graph,
)
from flower_fedclust.numerics.initialization import N_RESTARTS, weighted_kmeans
from flower_fedclust.numerics.kmeans import centers_of
from flower_fedclust.numerics.prototypes import FULL_COLUMNS
from flower_fedclust.numerics.spectrum import variances_along
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.releases import SUMS_OVER_ROWS
from flower_fedclust.strategies.common.clusters import ClusterClient
from flower_fedclust.strategies.common.frame import FRAME_ROUNDS, frame_of_rows
from flower_fedclust.strategies.common.spectral import cluster_embedding

PAPER = "Towards federated clustering: a client-wise private graph aggregation framework"

Floats = NDArray[np.float64]

Labels = NDArray[np.intp]

#: The number of Lloyd steps without noise.
LLOYD_ROUNDS = 10

#: With noise there is one Lloyd step, and another for each 30 of epsilon, up to 3 steps.
EPSILON_OF_A_ROUND, MOST_NOISY_LLOYD_ROUNDS = 30.0, 3

#: The sums of a Lloyd step take this fraction of its epsilon; the counts, which are single numbers, need less.
SUMS_PART = 0.8

#: The frame's radius is the distance within which about this fraction of the rows lies; other rows are clipped.
WITHIN_RADIUS = 0.9

#: Rows are counted by distance in this many rings. The outermost ring ends at the distance 2 R (R is max_l1_norm), and
#: each next ring ends at the previous distance over sqrt(2). The innermost ring contains all nearer rows.
N_DISTANCES = 16

#: With noise, the first centers come from a k-means of random points from a Gaussian as wide as the rows: this many
#: points for each center.
POINTS_PER_CENTER = 100
#: The same without noise. Many Lloyd steps on the rows then follow, so that one start with fewer points is enough.
EXACT_POINTS_PER_CENTER = 20

#: The number of these points for each cell beyond :data:`MANY_CELLS`. It is smaller, because Lloyd steps on the rows
#: move the centers anyway.
MORE_POINTS_PER_CENTER = 4

#: The most cells for each cluster, if there are at most :data:`MANY_CLUSTERS` clusters.
CELLS_PER_CLUSTER = 8

#: With more clusters than this, the number of cells grows with the root of the number of clusters. So the number of
#: pairs of cells, for which rows vote, grows no faster than the number of clusters.
MANY_CLUSTERS = 64
MANY_CELLS = CELLS_PER_CLUSTER * MANY_CLUSTERS

#: Without noise there is at least one cell for this many rows, up to :data:`MOST_EXACT_CELLS` cells.
EXACT_ROWS_PER_CELL = 20

#: The most cells that follow from :data:`EXACT_ROWS_PER_CELL`.
MOST_EXACT_CELLS = 300

#: A cell should have at least this many rows on average, first with noise, then without: fewer votes say little.
LEAST_ROWS_PER_CELL, LEAST_EXACT_ROWS_PER_CELL = 16, 10

#: With noise, a cell should have this many rows, times the number of columns, over epsilon: noise would hide the mean
#: of fewer rows.
NOISY_ROWS_PER_CELL = 100.0

#: If there would be fewer cells for each cluster than this, there is one for each. For if some clusters had several
#: cells and one had a single cell, this one would be joined to another cluster: each row votes for two cells.
FEWEST_CELLS_PER_CLUSTER = 2.5


@dataclass(frozen=True)
class Cells:
    """Centers that all clients share, and what is known about the rows nearest to them."""

    #: The frame in which the centers are given. Its ball has the L1 norm, unless rows are unbounded and sums exact.
    frame: Frame
    centers: Floats  #: The centers of the cells, of shape (n_cells, n_columns).
    counts: Floats  #: The number of rows in each cell, positive, and noisy if there is noise; of shape (n_cells,).
    n_rows: float  #: The number of rows of all clients, noisy if there is noise.

    def __len__(self) -> int:
        return len(self.centers)


class CellsStrategy(PrivateStrategy):
    """Base of the strategies whose prototypes are cells: the regions around centers that all clients share.

    Noisy sums first find the middle, the radius and the directions of the rows. This matters because
    Laplace noise is proportional to the longest row that is allowed, and most data lie in a ball far
    smaller than what is known beforehand.

    Parameters
    ----------
    n_prototypes : int, optional
        The number of prototypes, which all clients share. By default there are 8 for each cluster;
        with more than 64 clusters, 64 times the root of their number. Without noise there are more
        if there is then still one for 20 rows, up to 300. There is no more than one for 10 rows.
        With epsilon there is no more than one for 16 rows, and no more than ``n epsilon / (100 d)``
        for n rows of d columns. If this gives fewer than 2.5 for each cluster, each cluster has
        one.
    max_l1_norm : float, optional
        Rows are clipped to this L1 norm R, the sum of their absolute values; needed with an epsilon.
        It is public, and must not be computed from the data. A large R costs little, because only
        the first two releases depend on it.
    """

    n_prototypes: int | None = parameter(None, at_least=1)
    max_l1_norm: float | None = parameter(None, at_least=SMALLEST_NORM, at_most=LARGEST_NORM)

    def check_complete(self) -> None:
        """Raise a ValueError if there is noise and no norm."""
        super().check_complete()
        check_max_l1_norm(self.max_l1_norm, self.epsilon)

    def cell_parts(
        self,
        *,
        origin: float,
        distances: float,
        second_moment: float,
        lloyd: float,
        n_lloyd_rounds: int,
    ) -> dict[str, Part]:
        """Return the parts of a budget that pay for :meth:`find_cells`, with these fractions."""
        client, rest = CellsClient, 1.0 - SUMS_PART
        return {
            "origin_sums": laplace_part(client.cluster_sums, SUMS_PART * origin),
            "origin_counts": laplace_part(client.cluster_sums, rest * origin),
            "distances": laplace_part(client.distance_counts, distances),
            "second_moment": laplace_part(
                (client.entry_products, client.entry_squares), second_moment
            ),
            "lloyd_sums": laplace_part(client.cluster_sums, SUMS_PART * lloyd, n_lloyd_rounds),
            "lloyd_counts": laplace_part(client.cluster_sums, rest * lloyd, n_lloyd_rounds),
        }

    def find_cells(self, n_lloyd_rounds: int) -> Generator[Round, list[Array], Cells]:
        """Find the frame, the directions in which rows spread, and then the cells, by Lloyd steps.

        This takes ``n_frame_rounds``, one round, and ``n_lloyd_rounds``. Nearly empty cells are
        dropped, as long as there are more cells than clusters.
        """
        frame, n_rows = yield from self._frame()
        if self.epsilon is None and n_rows < self.n_clusters:
            raise DataError(
                f"the clients have {n_rows:.0f} rows together and n_clusters is {self.n_clusters}; ask for fewer."
            )
        root = yield from self._directions(frame, n_rows)
        n_cells = self.n_prototypes or n_cells_for(
            n_rows, self.n_clusters, self.n_columns, self._epsilon_of_a_sum
        )
        is_exact = self.epsilon is None
        n_points = min(n_cells, MANY_CELLS) * (
            EXACT_POINTS_PER_CENTER if is_exact else POINTS_PER_CENTER
        )
        n_points += max(n_cells - MANY_CELLS, 0) * MORE_POINTS_PER_CENTER
        points = _inside(self.rng.standard_normal((n_points, self.n_columns)) @ root.T, frame)
        centers = weighted_kmeans(
            points, None, n_cells, self.rng, n_init=1 if is_exact else N_RESTARTS
        )
        scale = self.noise_scale("lloyd_counts")
        centers, counts = yield from self._lloyd(centers, frame, root, scale, n_lloyd_rounds)
        kept = counts > smallest_count(scale)
        if np.count_nonzero(kept) < self.n_clusters:
            kept = np.isin(
                np.arange(len(counts)), np.argsort(-counts, kind="stable")[: self.n_clusters]
            )
        return Cells(frame, centers[kept], np.maximum(counts[kept], 1.0), n_rows)

    @property
    def n_frame_rounds(self) -> int:
        """The number of rounds that find the frame of the rows.

        Without a bound on the rows (``max_l1_norm``), the exact frame takes :data:`FRAME_ROUNDS`.
        With a bound, one round finds the origin, and with noise another one finds the distances of
        the rows from it.
        """
        if self.max_l1_norm is None:
            return FRAME_ROUNDS
        return 1 if self.epsilon is None else 2

    def _frame(self) -> Generator[Round, list[Array], tuple[Frame, float]]:
        """Return a frame around the mean of the rows that holds most rows, and the number of rows."""
        if self.max_l1_norm is None:
            return (yield from frame_of_rows())
        bound = self.max_l1_norm
        everywhere = Frame(np.zeros(self.n_columns), bound, norm=1)
        question = CellsClient.cluster_sums.asked(np.zeros((1, self.n_columns)), frame=everywhere)
        sums, counts = yield Sum(question, parts=["origin_sums", "origin_counts"])
        n_rows = max(float(counts[0]), 1.0)
        origin = clip_rows(sums / n_rows, bound, norm=1)[0]
        if self.epsilon is None:
            # Two points of a ball are at most its diameter apart.
            return Frame(origin, 2.0 * bound, norm=1), n_rows
        question = CellsClient.distance_counts.asked(origin, frame=everywhere)
        (histogram,) = yield Sum(question, parts=["distances"])
        return Frame(
            origin, radius_of(histogram, bound, self.noise_scale("distances")), norm=1
        ), n_rows

    def _directions(self, frame: Frame, n_rows: float) -> Generator[Round, Total, Floats]:
        """Return a root of the second moment of the rows in the frame, of shape (n_columns, n_columns)."""
        is_wide = len(frame.origin) > FULL_COLUMNS
        asked = CellsClient.entry_squares if is_wide else CellsClient.entry_products
        (second_moment,) = received = yield Sum(asked.asked(frame=frame), parts=["second_moment"])
        if not np.isfinite(second_moment).all():
            raise DataError(
                "the rows are so far apart that their squares are beyond the largest number there is; look for a wrong "
                "value."
            )
        if is_wide:
            variances = np.maximum(second_moment / n_rows, 0.0)
            return np.diag(np.sqrt(np.maximum(variances, 1e-4 * variances.mean())))
        values, vectors = np.linalg.eigh(triangle_to_symmetric(second_moment) / n_rows)
        # Laplace noise has the same scale on and off the diagonal.
        values, vectors = (
            variances_along(values[::-1], math.sqrt(2.0) * received.noise[0] / n_rows),
            vectors[:, ::-1],
        )
        values = np.maximum(values, 1e-4 * max(float(values.mean()), 0.0))
        root: Floats = vectors * np.sqrt(values)
        return root

    def _lloyd(
        self,
        centers: Floats,
        frame: Frame,
        root: Floats,
        scale: float,
        n_rounds: int,
    ) -> Generator[Round, list[Array], tuple[Floats, Floats]]:
        """Take Lloyd steps from these centers; return the new centers and the number of rows at each.

        Before the last step, each center without rows is moved close to a center with many.
        ``root``, a root of the rows' second moment, says how close. ``scale`` is the scale of the
        noise in a count.
        """
        for step in range(n_rounds):
            question = CellsClient.cluster_sums.asked(centers, frame=frame)
            sums, counts = yield Sum(question, parts=["lloyd_sums", "lloyd_counts"])
            centers = moved_centers(sums, counts, centers, frame, scale)
            lost = np.flatnonzero(counts <= smallest_count(scale))
            if step < n_rounds - 1 and 0 < len(lost) < len(centers):
                largest = np.resize(
                    np.argsort(-counts, kind="stable")[: len(centers) - len(lost)], len(lost)
                )
                # The width of a cell is the spread of the rows over the number of cells in each direction.
                apart = 0.3 * len(centers) ** (-1.0 / len(frame.origin))
                beside = (
                    centers[largest]
                    + apart * self.rng.standard_normal((len(lost), len(root))) @ root.T
                )
                centers[lost] = _inside(beside, frame)
        return centers, counts

    @property
    def _epsilon_of_a_sum(self) -> float | None:
        """The epsilon at which server-side noise would equal the noise now in the sums."""
        if self.epsilon is None:
            return None
        multiplier = self.frozen_plan.multipliers["origin_counts"]
        return self.epsilon * multiplier / self.noise_scale("origin_counts")


class SPPFGCSums(CellsStrategy):
    """SPP-FGC in which the server receives only sums over the clients, each of which can take noise.

    The paper's clients send a graph of their rows, which no noise protects. Here all clients share
    the prototypes. These are centers that come from noisy sums, and each stands for the rows nearest
    to it. Clients send no graph. Instead, each row votes for the pair of its two nearest centers, so
    that centers with rows between them are joined. Spectral clustering of this graph clusters the
    prototypes, and a row has the cluster of its nearest prototype. With ``epsilon`` the guarantee
    covers the whole run, and it does not matter how the rows are distributed over the clients.

    Parameters
    ----------
    n_lloyd_rounds : int, optional
        The number of Lloyd steps that move the prototypes. By default 10; with an epsilon one, from
        an epsilon of 30 on two, and from 60 on three.

    Notes
    -----
    The origin, the directions and the votes take a fifth of the budget each, the radius takes a
    tenth, and the centers take three tenths. With one prototype for each cluster there is nothing
    to vote on. Then the budget of the votes pays for another Lloyd step.

    References
    ----------
    He, Wang, Tang, Wang, Wang and Nie, "Towards federated clustering: a client-wise private graph
    aggregation framework", whose upload this replaces.
    """

    promises = SUMS_OVER_ROWS

    entries = (
        Entry(
            "spp-fgc-sums",
            "clusters of any form from sums alone: rows vote for pairs of prototypes; private with epsilon",
            f"{PAPER}, with sums in place of graphs",
            finds="any form",
        ),
    )

    n_lloyd_rounds: int | None = parameter(None, at_least=1)

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first invalid parameter."""
        super().check_parameters()
        if self.n_prototypes is not None:
            check_integer("n_prototypes", self.n_prototypes, at_least=self.n_clusters)

    # The server half.

    def protocol(self) -> Protocol:
        """Find the prototypes, let the rows vote, and cluster the prototypes."""
        # Instead of the paper's Algorithm 1, lines 5 to 7: prototypes that all clients share.
        cells = yield from self.find_cells(self._n_lloyd_rounds)
        if len(cells) == self.n_clusters:
            cells, clusters = (yield from self._last_step(cells)), np.arange(self.n_clusters)
        else:
            # Instead of lines 8 to 14: a graph of the prototypes.
            (votes,) = yield Sum(
                CellsClient.votes.asked(cells.centers, frame=cells.frame), parts=["votes"]
            )
            graph = vote_graph(votes, cells.centers, self.noise_scale("votes"))
            # Instead of line 15.
            every_pair = EXACT_EVERY_PAIR if self.epsilon is None else EVERY_PAIR
            embedding = vote_embedding(graph, self.n_clusters, every_pair)
            _, clusters = cluster_embedding(
                embedding, self.n_clusters, self.rng, n_init=n_starts(self.n_clusters)
            )
        warn_of_empty_clusters(self.name, np.bincount(clusters, minlength=self.n_clusters))
        means = cells.frame.leave(cells.centers)
        return Outcome(PrototypeModel(means, clusters, self.n_clusters, counts=cells.counts))

    def _last_step(self, cells: Cells) -> Generator[Round, Total, Cells]:
        """Take a Lloyd step instead of votes if there is nothing to vote on.

        Whether there are votes may depend on noisy counts, so the step must cost the same as votes:
        one release of one array. A row adds its entries, of L1 norm at most R, and a weight w to
        the array. With ``w = R (1 - p) / p`` the norm of both is ``R / p``. The noise is then as
        large as if the sums had the fraction p of epsilon, and the counts the rest.
        """
        radius = cells.frame.radius
        weight = weight_onto_grid(radius * (1.0 - SUMS_PART) / SUMS_PART, radius)
        question = CellsClient.weighted_cell_sums.asked(
            cells.centers, frame=cells.frame, weight=weight
        )
        (votes,) = received = yield Sum(question, parts=["votes"])
        sums, counts = votes[:, :-1], votes[:, -1] / weight
        scale = received.noise[0] / math.sqrt(2.0) / weight
        centers = moved_centers(sums, counts, cells.centers, cells.frame, scale)
        return replace(cells, centers=centers, counts=np.maximum(counts, 1.0))

    # Bounds and budget.

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds: for the frame, the directions, the Lloyd steps, and the votes."""
        return self.n_frame_rounds + 1 + self._n_lloyd_rounds + 1

    @property
    def _n_lloyd_rounds(self) -> int:
        """The number of Lloyd steps that move the prototypes."""
        if self.n_lloyd_rounds is not None:
            return self.n_lloyd_rounds
        if self.epsilon is None:
            return LLOYD_ROUNDS
        return min(MOST_NOISY_LLOYD_ROUNDS, 1 + int(self.epsilon / EPSILON_OF_A_ROUND))

    def parts(self) -> Mapping[str, Part]:
        """Return the parts of the budget for the cells, and for the votes or the Lloyd step that replaces them."""
        cells = self.cell_parts(
            origin=0.2,
            distances=0.1,
            second_moment=0.2,
            lloyd=0.3,
            n_lloyd_rounds=self._n_lloyd_rounds,
        )
        return cells | {
            "votes": laplace_part((CellsClient.votes, CellsClient.weighted_cell_sums), 0.2)
        }


def n_cells_for(n_rows: float, n_clusters: int, n_columns: int, epsilon: float | None) -> int:
    """Return the number of cells: one for each cluster, or more if there are enough rows for each in spite of noise."""
    worth = n_rows / (LEAST_EXACT_ROWS_PER_CELL if epsilon is None else LEAST_ROWS_PER_CELL)
    if epsilon is not None:
        worth = min(worth, n_rows * epsilon / (NOISY_ROWS_PER_CELL * n_columns))
    if worth < FEWEST_CELLS_PER_CLUSTER * n_clusters:
        return n_clusters
    most = CELLS_PER_CLUSTER * math.sqrt(n_clusters * min(n_clusters, MANY_CLUSTERS))
    most = max(most, FEWEST_CELLS_PER_CLUSTER * n_clusters)
    if epsilon is None:
        most = max(most, min(n_rows / EXACT_ROWS_PER_CELL, MOST_EXACT_CELLS))
    return int(min(most, worth))


def n_starts(n_clusters: int) -> int:
    """Return how many starts the k-means of the embedded cells has.

    With many clusters there are fewer starts: a start takes time in proportion to the cube of the
    number of clusters, and the best start is little better than others.
    """
    return max(2, round(N_RESTARTS * min(1.0, MANY_CLUSTERS / n_clusters) ** 2))


def smallest_count(scale: float) -> float:
    """Return the count up to which a cell is nearly empty: twice the scale of its noise, or a half."""
    return max(0.5, 2.0 * scale)


def moved_centers(
    sums: Floats, counts: Floats, centers: Floats, frame: Frame, scale: float
) -> Floats:
    """Return the means of the rows in the cells, inside the frame; a nearly empty cell keeps its center."""
    return _inside(
        centers_of(sums, counts, centers, at_least=max(smallest_count(scale), 1.0)), frame
    )


def distance_edges(max_l1_norm: float) -> Floats:
    """Return the outer ends of the rings in which distances are counted, ascending, of shape (N_DISTANCES,)."""
    # Two points of a ball are at most its diameter apart. One product and powers of two are the same on every machine.
    steps = np.arange(N_DISTANCES)[::-1]
    ends = max_l1_norm * np.where(steps % 2 == 1, math.sqrt(0.5), 1.0)
    return np.asarray(np.ldexp(ends, 1 - steps // 2))


def radius_of(counts: Floats, max_l1_norm: float, scale: float) -> float:
    """Return the distance within which most rows lie; counts of up to twice the scale of their noise are ignored."""
    rows = np.where(counts > 2.0 * scale, counts, 0.0)
    if not rows.any():
        return float(distance_edges(max_l1_norm)[-1])
    within = np.cumsum(rows) / rows.sum()
    return float(distance_edges(max_l1_norm)[np.argmax(within >= WITHIN_RADIUS)])


def _inside(points: Floats, frame: Frame) -> Floats:
    """Return points clipped to the ball of a frame."""
    return clip_rows(points, frame.radius, norm=frame.norm)


def laplace_part(answers: Any, fraction: float, at_most: int = 1) -> Part:
    """Return a part of a budget that pays for at most ``at_most`` releases with Laplace noise."""
    return Part(answers, fraction, at_most, "laplace")


def weight_onto_grid(weight: float, radius: float) -> float:
    """Truncate a weight to the unit of the rows in a frame of this radius."""
    exponent = unit_exponent(radius)
    return math.ldexp(math.floor(math.ldexp(weight, -exponent)), exponent)


# The client half.


class CellsClient(ClusterClient):
    """The client half of the search for cells that all clients share, and of the votes."""

    @by_row(distances=Sent("number of rows at each distance from a point", counts="every row"))
    def distance_counts(rows: Rows, origin: Floats) -> Term:
        """Count the rows in each ring around the origin by L1 distance, comparing integers."""
        edges = np.floor(distance_edges(math.ldexp(rows.radius, -rows.exponent)))
        distances = np.abs(rows.integers - rows.points(origin[None, :])).sum(axis=1)
        return at(np.minimum(np.searchsorted(edges, distances), N_DISTANCES - 1), N_DISTANCES)

    @by_row(second_moment="sum over rows of the products of their entries")
    def entry_products(rows: Rows) -> Term:
        """Return the upper triangle of X'X for the client's rows X in the frame."""
        return products(rows)

    @by_row(second_moment="sum over rows of the squares of their entries")
    def entry_squares(rows: Rows) -> Term:
        """Return the diagonal of X'X for the client's rows X in the frame.

        It is asked for with many columns d. Then the noise in all d (d + 1) / 2 products would hide
        the directions in which rows spread; the d squares still show the deviations by column.
        """
        return squares(rows)

    @by_row(
        votes="sum of the rows in each cell, and in one more column their number times a weight"
    )
    def weighted_cell_sums(rows: Rows, centers: Floats, *, weight: float) -> Term:
        """Return the sums and counts of the rows in each cell as one array; see :func:`weight_onto_grid`."""
        labels, n_cells = rows.nearest(centers), len(centers)
        return joined(at(labels, n_cells, rows), at(labels, n_cells), times=weight)

    @by_row(
        votes=Sent(
            "number of rows that have two centers as their nearest, by pair of centers",
            counts="every row",
        )
    )
    def votes(rows: Rows, centers: Floats) -> Term:
        """Count the rows' votes for each pair of centers, in the order of the upper triangle of a table of pairs."""
        n_centers = len(centers)
        nearest, second = two_nearest(rows.integers, rows.points(centers))
        first, last = np.minimum(nearest, second), np.maximum(nearest, second)
        # The place of a pair is the number of pairs before it: first the pairs with a smaller first center, then those
        # with the same first center.
        n_with_smaller = first * n_centers - first * (first + 1) // 2
        place = n_with_smaller + last - first - 1
        n_pairs = n_centers * (n_centers - 1) // 2
        return at(place, n_pairs)


def two_nearest(rows: Floats, centers: Floats) -> tuple[Labels, Labels]:
    """Return the nearest and the second nearest center of each row; ties between integers go to the lowest index."""
    nearest, second = np.empty(len(rows), dtype=np.intp), np.empty(len(rows), dtype=np.intp)
    for block in cached_blocks(len(rows), len(centers)):
        distances = squared_distances(rows[block], centers)
        nearest[block] = distances.argmin(axis=1)
        distances[np.arange(len(distances)), nearest[block]] = np.inf
        second[block] = distances.argmin(axis=1)
    return nearest, second


SPPFGCSums.client_type = CellsClient
