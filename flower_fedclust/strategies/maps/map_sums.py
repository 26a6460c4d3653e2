"""Fed-tSNE and Fed-UMAP from sums alone: the server maps centers, and each client places its own rows among them.

This form is not in the paper (Qiao, Ma and Fan, AAAI 2025). The landmarks of the paper's Algorithm 1
do not lie among the rows, so a map of the landmarks would show little. Instead, Lloyd steps spread
centers among the rows. Z is the map.

docs/shape.md shows how a ``yield`` here becomes a round of Flower.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import (
    ClippedStrategy,
    Entry,
    Protocol,
    Sent,
    Sum,
    Total,
    answers,
    parameter,
)
from flower_fedclust.engine.by_row import by_row, view
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Question, Round
from flower_fedclust.exact.grid import unit_exponent
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.sums import directions_onto_grid, nearest_point, triangle_to_symmetric
from flower_fedclust.exact.terms import Term, at, products, unbounded
from flower_fedclust.models import MapModel
from flower_fedclust.numerics.embedding import N_ROWS_OF_A_MAP
from flower_fedclust.numerics.initialization import weighted_kmeans
from flower_fedclust.numerics.kmeans import centers_of
from flower_fedclust.numerics.nystrom import nearest_others
from flower_fedclust.numerics.vectors import clip_rows, top_eigenvectors
from flower_fedclust.privacy.releases import SUMS_OVER_ROWS
from flower_fedclust.strategies.common.clusters import ClusterClient, ClusterStatistic, lloyd_parts
from flower_fedclust.strategies.common.frame import FrameClient
from flower_fedclust.strategies.common.moments import (
    MOMENT_ROUNDS,
    Moments,
    MomentsClient,
    column_moments,
    moment_parts,
    noisy_column_moments,
)
from flower_fedclust.strategies.maps.landmarks import check_spread
from flower_fedclust.strategies.maps.maps import Drawing

Floats = NDArray[np.float64]

#: With noise, rows are projected to this many directions before centers are spread among them.
N_DIRECTIONS = 20

#: Lloyd steps after each split of the centers, and after the last split; first without noise, then with noise.
LLOYD_STEPS, NOISY_LLOYD_STEPS = (2, 10), (1, 1)

#: With noise, rows are clipped to this many times their root mean square distance from their mean.
RADIUS = 1.25

#: The distance between the two halves of a split center, in standard deviations of the rows.
SPLIT = 0.05

#: Squared distances of up to 52 bits are added exactly in two parts; the lower part has this many bits.
LOWER_BITS = 26


class FederatedMapSums(ClippedStrategy):
    """Base of the maps from sums, which differ in how they draw the map.

    Parameters
    ----------
    n_landmarks : int, default=300
        The number of centers on the map, but at most half the number of rows.
    """

    promises = SUMS_OVER_ROWS

    n_landmarks: int = parameter(300, at_least=2)

    @property
    @abstractmethod
    def drawing(self) -> Drawing:
        """How the map is drawn."""

    # The server half.

    def protocol(self) -> Protocol:
        """Spread centers, map them, and have each client place its rows."""
        self.drawing.check_installed()
        exact = self.epsilon is None
        centers, sizes, known = yield from (
            self._exact_centers() if exact else self._noisy_centers()
        )
        # A center without rows would be an empty place on the map.
        if np.count_nonzero(sizes) >= max(self.n_clusters, N_ROWS_OF_A_MAP):
            centers, sizes = centers[sizes > 0], sizes[sizes > 0]
        neighbors, distances = nearest_others(centers, self.drawing.n_needed(len(centers)))
        Z = self.drawing.coordinates(neighbors, distances, self.rng)
        weights = sizes if np.count_nonzero(sizes) >= self.n_clusters else None
        model = self.drawing.model(
            centers, Z, weighted_kmeans(Z, weights, self.n_clusters, self.rng), **known
        )
        yield Sum(FederatedMapSumsClient.place_rows.asked(*model.to_arrays()))
        return model

    def _exact_centers(self) -> Generator[Round, Any, tuple[Floats, Floats, dict[str, Floats]]]:
        """Return centers among the rows, and the number of rows at each."""
        moments, frame = yield from column_moments()
        check_spread(moments)
        centers, sizes = yield from spread_centers(
            self._n_centers(moments), frame, moments.deviation, self.rng, steps=self._lloyd_steps
        )
        return frame.leave(centers), sizes, {}

    def _noisy_centers(self) -> Generator[Round, Any, tuple[Floats, Floats, dict[str, Floats]]]:
        """Return centers among the rows, the number of rows at each, and a few directions in which the centers lie.

        In a few directions the noise is smaller than in all columns.
        """
        assert self.max_norm is not None
        moments = yield from noisy_column_moments(self.max_norm, self.n_columns)
        check_spread(moments)
        spread = float(np.linalg.norm(moments.deviation))
        frame = Frame(moments.mean, RADIUS * spread or self.max_norm)
        n_directions = min(N_DIRECTIONS, self.n_columns)
        directions = yield from widest_directions(frame, n_directions, "directions")
        centers, sizes = yield from spread_centers(
            self._n_centers(moments),
            Frame(np.zeros(n_directions), frame.radius),
            np.full(n_directions, spread / math.sqrt(n_directions)),
            self.rng,
            steps=self._lloyd_steps,
            statistic=ClusterStatistic(("sums", "counts"), shrink=True),
            smallest=self.noise_of("counts"),
            view=ReducedRowsClient.reduced.asked(directions, frame=frame),
        )
        return centers, sizes, {"origin": moments.mean, "directions": directions}

    # Rounds and budget.

    def _n_centers(self, moments: Moments) -> int:
        """Return how many centers the map has: n_landmarks, but at most half the number of rows."""
        return max(
            min(self._most_centers, int(moments.n_rows) // 2), N_ROWS_OF_A_MAP, self.n_clusters
        )

    @property
    def _most_centers(self) -> int:
        """The most centers that the map can have."""
        return max(self.n_landmarks, N_ROWS_OF_A_MAP, self.n_clusters)

    @property
    def _lloyd_steps(self) -> tuple[int, int]:
        """The numbers of Lloyd steps after each split of the centers, and after the last split."""
        return LLOYD_STEPS if self.epsilon is None else NOISY_LLOYD_STEPS

    @property
    def _n_lloyd_rounds(self) -> int:
        """The number of Lloyd steps in all."""
        after_split, last = self._lloyd_steps
        return n_splits(self._most_centers) * after_split + last

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds: for the moments, the directions if there is noise, the centers and the places."""
        return (MOMENT_ROUNDS if self.epsilon is None else 2) + self._n_lloyd_rounds + 1

    def parts(self) -> Mapping[str, Part]:
        """Return the parts of the budget for moments, directions, and the sums and counts of the Lloyd steps.

        If there are few columns, rows are not projected, and the Lloyd steps also get the budget of
        the directions.
        """
        # before a run, the number of columns is unknown: assume many
        n_columns = self.n_columns if self.client_names else math.inf
        reduced = n_columns > N_DIRECTIONS
        return {
            **moment_parts(0.1),
            "directions": Part(ReducedRowsClient.frame_products, 0.3, int(reduced)),
            **lloyd_parts("", 0.45, 0.15, self._n_lloyd_rounds, "record"),
        }


class FedTSNESums(FederatedMapSums):
    """Fed-tSNE from sums alone: nothing about a single row leaves a client.

    Lloyd steps on sums over the clients spread centers among the rows. The server makes a t-SNE map
    of the centers and sends it to the clients, which place their own rows on it. With ``epsilon``
    every sum takes noise, and rows are first projected to the few directions in which they spread
    most.

    Parameters
    ----------
    perplexity : float, default=10
        t-SNE's perplexity; smaller than in :class:`FedTSNE`, because the map has fewer points.

    References
    ----------
    After Qiao, Ma and Fan, "Federated t-SNE and UMAP for distributed data visualization", AAAI
    2025. Linde, Buzo and Gray, "An algorithm for vector quantizer design", 1980. Policar, Strazar
    and Zupan, "openTSNE", 2019.
    """

    entries = (
        Entry(
            "fed-tsne-sums",
            "a t-SNE map of centers that sums give; each client places its own rows; private with epsilon",
            "after Qiao, Ma and Fan 2025",
            finds="map",
        ),
    )

    perplexity: float = parameter(10.0, at_least=1)

    @property
    def drawing(self) -> Drawing:
        """By t-SNE."""
        return Drawing("tsne", self.perplexity, placing=3.0)


class FedUMAPSums(FederatedMapSums):
    """Fed-UMAP from sums alone: nothing about a single row leaves a client.

    The same as :class:`FedTSNESums`, with UMAP instead of t-SNE.

    Parameters
    ----------
    n_neighbors : int, default=10
        UMAP's number of neighbors, which counts the center itself; fewer than in :class:`FedUMAP`,
        because the map has fewer points.
    min_dist : float, default=0.1
        The smallest distance between rows on the map.

    References
    ----------
    After Qiao, Ma and Fan, "Federated t-SNE and UMAP for distributed data visualization", AAAI
    2025. Linde, Buzo and Gray, "An algorithm for vector quantizer design", 1980. McInnes, Healy and
    Melville, "UMAP", 2018.
    """

    entries = (
        Entry(
            "fed-umap-sums",
            "a UMAP map of centers that sums give; each client places its own rows; private with epsilon",
            "after Qiao, Ma and Fan 2025",
            finds="map",
        ),
    )

    n_neighbors: int = parameter(10, at_least=2)
    min_dist: float = parameter(0.1, at_least=0, at_most=1)

    @property
    def drawing(self) -> Drawing:
        """By UMAP."""
        return Drawing("umap", self.n_neighbors, placing=3.0, min_dist=self.min_dist)


def widest_directions(
    frame: Frame, n_directions: int, *parts: str
) -> Generator[Round, Total, Floats]:
    """Find the directions in which the rows spread most, in one round; return an empty array if all columns stay."""
    n_columns = len(frame.origin)
    if n_directions >= n_columns:
        return np.eye(n_columns)
    (moment,) = yield Sum(ReducedRowsClient.frame_products.asked(frame=frame), parts=parts)
    return directions_onto_grid(top_eigenvectors(triangle_to_symmetric(moment), n_directions))


def n_splits(n_centers: int) -> int:
    """Return how many times centers must be doubled, beginning with one, until there are n_centers."""
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
    """Spread centers as the rows are spread (Linde, Buzo and Gray 1980, on sums); return also the rows at each.

    A cell is the set of rows nearest to one center. The first center is the frame's origin. Then
    centers of the largest cells are split until there are twice as many centers, and Lloyd steps
    follow; this is repeated. The center of a cell with at most ``smallest`` rows moves to the
    largest cell.

    Without noise, a cell's size is its k-means cost, and a large cell may be split into several.
    With noise, it is its number of rows, and a large cell is split in two. This takes no further
    release. But if some clumps of rows are far denser than others, the k-means cost of all centers
    is up to twice as large.

    Parameters
    ----------
    n_centers : int
    frame : Frame
    deviation : ndarray of shape (n_columns,)
        The approximate standard deviation of the rows, by column.
    rng : numpy.random.Generator
    steps : (int, int)
        The numbers of Lloyd steps after each split, and after the last split.
    statistic : ClusterStatistic, optional
        How noisy sums are asked for. If None, exact sums and costs are asked for.
    smallest : float
        A cell with at most this many rows counts as empty.
    view : Question, optional
        The transformation that clients first apply to their rows.
    """
    cells = _Cells(
        np.zeros((1, len(deviation))), np.ones(1), np.ones(1) if statistic is None else None
    )
    # The deviation may have overflowed if rows are very long.
    apart = SPLIT * np.fmin(deviation, frame.radius)
    around_zero = Frame(np.zeros(len(deviation)), frame.radius)
    after_split, last = steps
    numbers = [
        min(2**split, n_centers)
        for split in range(1, n_splits(n_centers) + 1)
        for _ in range(after_split)
    ]
    for number in numbers + [n_centers] * last:
        # The centers are rounded to the grid of the rows, so that clients measure distances from just these points.
        centers = around_zero.enter(_split(cells, number, apart, smallest, rng))
        cells = yield from _lloyd_step(centers, frame, statistic, view)
    return cells.centers, np.where(cells.sizes > smallest, cells.sizes, 0.0)


@dataclass(frozen=True)
class _Cells:
    """Centers, the number of rows at each, and their k-means cost if it is known, in squared units of the grid."""

    centers: Floats
    sizes: Floats
    costs: Floats | None


def _lloyd_step(
    centers: Floats, frame: Frame, statistic: ClusterStatistic | None, view: Question | None
) -> Generator[Round, Total, _Cells]:
    """Take one Lloyd step, and return the cells with their sizes and, without noise, their costs."""
    of_rows = frame if view is None else None
    if statistic is not None:
        reply = yield statistic.asked(centers, of_rows, view=view)
        # The means of clipped rows must lie within the ball, whatever the noise.
        return _Cells(
            clip_rows(statistic.next_centers(reply, centers), frame.radius), reply[1], None
        )
    question = SpreadCentersClient.cluster_sums_and_costs.asked(centers, frame=of_rows, view=view)
    sums, counts, (higher, lower) = yield Sum(question)
    new = centers_of(sums, counts, fallback=centers)
    # The clients measure costs from the former centers. Measured from its new center, its mean, a cell costs less.
    moved = np.ldexp(new - centers, -unit_exponent(frame.radius))
    costs = 2.0**LOWER_BITS * higher + lower - counts * np.einsum("ij,ij->i", moved, moved)
    return _Cells(new, counts, np.maximum(costs, 0.0))


def _split(
    cells: _Cells, wanted: int, apart: Floats, smallest: float, rng: np.random.Generator
) -> Floats:
    """Keep the centers whose cells have rows, and add centers beside the centers of the largest cells."""
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
    """Choose for each missing center the cell that it will split: the cell whose parts cost most so far."""
    parts = np.ones(len(costs))
    chosen = np.empty(missing, dtype=np.intp)
    for index in range(missing):
        # In two directions each of k parts of a cell has 1 / k^2 of its cost; in more directions, more.
        chosen[index] = np.argmax(costs / parts**2)
        parts[chosen[index]] += 1
    return chosen


# The client half.


class ReducedRowsClient(FrameClient):
    """A client's answers about its rows in a few directions."""

    @by_row(directions="sum of the outer products of the rows (upper triangle)")
    def frame_products(rows: Rows) -> Term:
        """Return X' X of the client's rows X in the frame, as a vector."""
        return products(rows)

    @view
    def reduced(rows: Rows, directions: Floats) -> Rows:
        """Return the rows' coordinates along a few public directions."""
        return rows.projected(directions)


class SpreadCentersClient(ClusterClient):
    """The answers of a client for :func:`spread_centers` without noise."""

    @by_row(
        sums="sum of the rows in each cluster",
        counts=Sent("number of rows in each cluster", counts="every row", sizes=True),
        costs="sum of the squared distances of the rows in each cluster from its center, in squared units of the grid",
    )
    def cluster_sums_and_costs(rows: Rows, centers: Floats) -> tuple[Term, Term, Term]:
        """Return the sum, the number and the k-means cost of the rows in each cluster.

        The exact cost has two rows: the multiples of ``2**LOWER_BITS`` squared units of the grid,
        and the remainders. In squared units of the data the cost could overflow.
        """
        points = rows.points(centers)
        labels = nearest_point(rows.integers, points)
        offsets = rows.integers - points[labels]
        # Squared distances of integers, at most 2^52.
        squared = np.einsum("ij,ij->i", offsets, offsets)
        higher = np.floor(squared * 2.0**-LOWER_BITS)
        lower = squared - higher * 2.0**LOWER_BITS
        n_centers = len(centers)
        costs = unbounded(np.stack([higher, lower], axis=1), 0, 2**LOWER_BITS, labels, n_centers)
        return at(labels, n_centers, rows), at(labels, n_centers), costs


class FederatedMapSumsClient(MomentsClient, ReducedRowsClient, SpreadCentersClient):
    """The client half: a client sends sums, and keeps the places of its rows."""

    @answers(Sent("the places of the rows on the map", "codes", per="row", kept_as="places"))
    def place_rows(self, *model: Floats) -> Floats:
        """Return the rows' places on the map of the centers, to be kept."""
        return MapModel.from_arrays(model).transform(self.rows)


FederatedMapSums.client_type = FederatedMapSumsClient
