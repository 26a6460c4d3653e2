"""PrivateDensity: private clusters of any form, from one noisy histogram of cells.

Under privacy the label of a single row cannot be published usefully, but the regions of clusters can
(arXiv 2508.08749). The rows are counted by the cells of a grid. All later steps use only the noisy
counts, so they cost no privacy: to find out whether clusters are round, to choose the width of a
kernel, and to cut the cells into clusters, at the most persistent peaks of the density or along its
thinnest borders.

A grid has at most three directions. With more columns the search of private k-means comes first. It
finds the directions, and its clusters are the result unless the histogram shows that they are not
round.

docs/shape.md shows how a ``yield`` here becomes a round of Flower.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import Entry, Protocol, parameter
from flower_fedclust.engine.by_row import by_row
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Outcome, Round, Sent, Total
from flower_fedclust.exact.cells import Grid, parts_of
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.sums import directions_onto_grid
from flower_fedclust.exact.terms import Term, at, side_by_side
from flower_fedclust.models import CellModel, KMeansModel
from flower_fedclust.numerics.density import (
    Histogram,
    agreement_of_another_cut,
    cut,
    misfit_of_round_clusters,
)
from flower_fedclust.numerics.validity import PeakNumber, numbers_of
from flower_fedclust.strategies.common.frame import FRAME_ROUNDS, frame_of_rows
from flower_fedclust.strategies.common.noisy_cells import N_OTHER_RUNS, agreement_before_steps
from flower_fedclust.strategies.common.private_search import (
    CELL_ROUNDS,
    Found,
    SearchClient,
    SearchStrategy,
    first_rounds,
    frame_of_most,
    gaussian_part,
    parts_of_cells,
    rough_clusters,
)

Floats = NDArray[np.float64]

#: The cost of each part of the budget: the sum of the inverse squared noise multipliers of its Gaussian releases. With
#: more than three columns private k-means comes first, and its cost is 0.79.
COST_OF_RANGES, COST_OF_GRID = 0.05, 0.95
#: A grid has at most this many dimensions. With more columns than this, they are directions instead of columns.
MOST_DIRECTIONS = 3
#: The number of rounds that narrow the range of each direction.
RANGE_ROUNDS = 2
#: The number of intervals in which each of these rounds counts rows.
N_PARTS = 32
#: In directions of private k-means, ranges at first reach this many standard deviations of the rows from the middle.
#: The variance is taken to be at least the second number times the total variance, because noise can hide it.
REACH, LEAST_VARIANCE = 6.0, 0.01
#: How many neighboring intervals are added up to find the ends of a range.
WINDOWS = (1, 2, 4, 8)
#: The fraction of all rows that such a sum must exceed.
LEAST_PART = 0.001
#: With noise, the number of cells of a grid is the number of rows over the standard deviation of the noise in a cell,
#: times a factor: the first for each number of columns, the second for each number of directions among more columns.
ROWS_OVER_NOISE = {1: 0.6, 2: 0.6, 3: 1.5}
ROWS_OVER_NOISE_OF_DIRECTIONS = {1: 0.6, 2: 0.6, 3: 4.0}
#: Clusters count as round if Gaussians leave at most this fraction of the squared density unexplained.
LARGEST_MISFIT = 0.18
#: At client level, a client's rows are assumed to lie in this many cells of the grid, and intervals of a range.
CELLS_OF_CLIENT, PARTS_OF_CLIENT = 40, 8
ALL_COLUMNS = np.zeros((0, 0))


class PrivateDensity(SearchStrategy):
    """Private clusters of any form: rows count in cells, and the server cuts the noisy counts.

    The run finds privately where the rows lie, and counts them in one grid: about 64 x 64 cells in two columns,
    24 x 24 x 24 in three, and fewer if noise is high. If Gaussians of one form explain the noisy counts, the result is
    a :class:`KMeansModel` of their centers. Otherwise the server estimates the density from the noisy counts, with a
    kernel whose width it chooses, and cuts the cells into clusters: at the most persistent peaks of the density if
    these stand out, and otherwise by a normalized cut of neighboring cells.

    With more than three columns nearly half of the budget pays for private k-means, and the grid lies in the three
    directions in which rows spread most. If Gaussians at the centers of k-means explain the noisy counts, the result is
    a :class:`KMeansModel` of these centers. Otherwise the cells are cut into clusters, which can have other forms, as
    far as the three directions separate them.

    Parameters
    ----------
    n_clusters : int, "auto", or two int
        The number of clusters; or the smallest and the largest number, between which the run
        chooses at no further cost: by how far the peaks of the density rise or, for round clusters,
        in the same way as :class:`PrivateKMeans`. "auto" is (2, 16).
    max_norm : float, optional
        The Euclidean distance from ``origin`` to which every client clips its rows. Needed with an
        epsilon, unless there is a schema. It is public, and must not be computed from the data. It
        may be generous: the run finds privately how far the rows really reach.
    epsilon : float or None, default=1.0
        The privacy budget of the whole run. None means no noise and no guarantee; then no row needs
        to be clipped.
    privacy_unit : "record", "subject" or "client", default="record"
        Whether the guarantee covers a row, a person with all rows that the ``subject_column`` gives
        the person, or everything that one client contributes. "client" needs hundreds of clients.
    rows_per_client : int, default=50
        At client level: the publicly known, approximate number of rows of a client. It sets the
        bounds to which clients clip; a wrong value costs accuracy, not privacy.
    origin : array-like of shape (n_columns,), optional
        A public point about which rows are clipped; 0 by default.
    label_noise : bool, default=False
        Whether rows in regions of low density get the label -1, for noise, instead of the label of
        the nearest cluster. Without an epsilon no cell with a row counts as such a region. If True,
        the cells are always cut, also with more than three columns.

    References
    ----------
    Chazal, Guibas, Oudot and Skraba, "Persistence-based clustering in Riemannian manifolds", J. ACM
    60, 2013; Shi and Malik, "Normalized cuts and image segmentation", PAMI 2000.
    """

    entries = (
        Entry(
            "private-density",
            "private clusters of any form, from one noisy histogram of cells in up to three directions",
            "after Chazal et al. 2013 and Shi and Malik 2000",
            example={"max_norm": 3.0},
            finds="any form",
        ),
    )
    label_noise: bool = parameter(False)

    # The server half.

    def protocol(self) -> Protocol:
        """Find where the rows lie, count them by cell, and cut the cells.

        With up to three columns the grid has these columns. With more columns private k-means comes
        first, and the grid has the three directions in which rows spread most. If the counts in the
        grid look like round clusters, the centers of k-means are the result.
        """
        if self.n_columns <= MOST_DIRECTIONS:
            whole = self.ball if self.max_norm else (yield from frame_of_rows())[0]
            radius = np.full(self.n_columns, whole.radius)
            low, high, _ = yield from self._ranges(whole, ALL_COLUMNS, -radius, radius)
            low, high, n_rows = yield from self._ranges(whole, ALL_COLUMNS, low, high)
            grid = Grid.over(low, high, ROWS_OVER_NOISE[len(low)] * self._rows_over_noise(n_rows))
            return self._cut(
                whole, ALL_COLUMNS, grid, (yield from self._histogram(whole, ALL_COLUMNS, grid))
            )
        frame, n_rows = yield from (
            frame_of_rows() if self.max_norm is None else frame_of_most(self)
        )
        clusters = yield from rough_clusters(self, frame, n_rows)
        space, frame = clusters.space, clusters.space.frame
        directions = directions_onto_grid(
            np.ascontiguousarray(space.directions[:, :MOST_DIRECTIONS])
        )
        reach = REACH * np.sqrt(
            np.maximum(space.values[:MOST_DIRECTIONS], LEAST_VARIANCE * space.total)
        )
        low, high, _ = yield from self._ranges(frame, directions, -reach, reach)
        n_cells = self._rows_over_noise(n_rows) * ROWS_OVER_NOISE_OF_DIRECTIONS[len(low)]
        grid = Grid.over(low, high, n_cells)
        histogram = yield from self._histogram(frame, directions, grid)
        if self.label_noise or not _are_round(clusters, grid, histogram):
            return self._cut(frame, directions, grid, histogram)
        agreement = (
            agreement_before_steps(clusters.fine.cells, clusters.centers, N_OTHER_RUNS, self.rng)
            if self.epsilon
            else None
        )
        number = clusters.number
        if number is not None and agreement is not None:
            number = number.after_run(agreement)
        model = KMeansModel(frame.leave(clusters.centers @ space.inside.T))
        return Outcome(model, number=number, agreement=agreement)

    def _cut(self, frame: Frame, directions: Floats, grid: Grid, histogram: Histogram) -> Outcome:
        """Cut the cells into clusters and return the outcome.

        To choose the number of clusters, the cells are first cut into the largest number, and the
        rises of the peaks of the density decide. With up to three columns, round clusters become a
        k-means model, which is finer than cells.
        """
        number, n_clusters = None, self.most_clusters
        numbers = numbers_of(self.n_clusters)
        if numbers[0] < numbers[1]:
            number = PeakNumber.of(cut(histogram, n_clusters, self.rng).rises, numbers)
            n_clusters = number.chosen
        clusters = cut(histogram, n_clusters, self.rng, thin=self.label_noise)
        agreement = agreement_of_another_cut(clusters, histogram.deviation, n_clusters, self.rng)
        if clusters.centers is not None and not self.label_noise and not directions.size:
            centers = grid.low + grid.width * (clusters.centers + 0.5)
            return Outcome(KMeansModel(frame.leave(centers)), number=number, agreement=agreement)
        model = CellModel(
            clusters.labels,
            n_clusters,
            grid.low,
            grid.width,
            density=clusters.density,
            origin=frame.origin,
            directions=directions if directions.size else None,
        )
        return Outcome(model, number=number, agreement=agreement)

    def _ranges(
        self, frame: Frame, directions: Floats, low: Floats, high: Floats
    ) -> Generator[Round, Total, tuple[Floats, Floats, float]]:
        """Narrow the range of each direction to where rows are; return its ends, and about how many rows there are.

        ``low`` and ``high`` are of shape (n_directions,); empty ``directions`` mean all columns.
        """
        widths = (high - low) / N_PARTS
        question = PrivateDensityClient.rows_in_ranges.asked(low, widths, directions, frame=frame)
        bound = math.sqrt(len(low)) * self._norm_of_client(PARTS_OF_CLIENT)
        (counts,) = received = yield self.summed(question, "ranges", at_most=(bound,))
        # The largest of many Gaussian random numbers hardly exceeds this many standard deviations.
        noise = received.noise[0] * math.sqrt(2 * math.log(counts.size))
        ends = np.array(
            [(_first(count, noise), N_PARTS - _first(count[::-1], noise)) for count in counts]
        )
        ends[ends[:, 0] >= ends[:, 1]] = 0, N_PARTS
        return (
            low + widths * ends[:, 0],
            low + widths * ends[:, 1],
            float(counts.sum()) / len(low) * self._scale,
        )

    def _histogram(
        self, frame: Frame, directions: Floats, grid: Grid
    ) -> Generator[Round, Total, Histogram]:
        """Return the noisy number of rows in each cell."""
        shape = np.array(grid.shape, dtype=np.int64)
        question = PrivateDensityClient.rows_in_cells.asked(
            grid.low, shape, directions, frame=frame, width=grid.width
        )
        (counts,) = received = yield self.summed(
            question, "grid", at_most=(self._norm_of_client(CELLS_OF_CLIENT),)
        )
        return Histogram(
            (counts * self._scale).reshape(grid.shape), received.noise[0] * self._scale
        )

    # Bounds and budget.

    @property
    def n_protocol_rounds(self) -> int:
        """The largest number of rounds: for the search of private k-means, a range, and the histogram.

        With up to three columns there are fewer rounds, because there is no search.
        """
        return (
            max(first_rounds(center_rows=True, counts_rows=True), FRAME_ROUNDS + 3)
            + CELL_ROUNDS
            + 1
            + 1
        )

    @property
    def _scale(self) -> float:
        """The number of rows for which 1 in a sum stands: at client level, the number of a client's rows."""
        return float(self.rows_per_client) if self.privacy_unit == "client" else 1.0

    def _rows_over_noise(self, n_rows: float) -> float:
        """Return the number of rows over the standard deviation of the noise in a cell."""
        noise = self.noise_of("grid", self._norm_of_client(CELLS_OF_CLIENT)) * self._scale
        return n_rows / noise if noise else math.inf

    def _norm_of_client(self, n_parts: int) -> float:
        """Return the typical norm of a client's fractions of rows in n_parts places; 1 unless at client level."""
        return (
            math.sqrt(1 / self.rows_per_client + 1 / n_parts)
            if self.privacy_unit == "client"
            else 1.0
        )

    def parts(self) -> Mapping[str, Part]:
        """Return the parts for ranges and grid; with many columns, also those of private k-means up to its cells."""
        # before a run, the number of columns is unknown: assume many
        n_columns = self.n_columns if self.client_names else math.inf
        is_wide, client = n_columns > MOST_DIRECTIONS, PrivateDensityClient
        return {
            **(
                parts_of_cells(client, counts_rows=self.privacy_unit != "client") if is_wide else {}
            ),
            "ranges": gaussian_part(
                client.rows_in_ranges, COST_OF_RANGES, 1 if is_wide else RANGE_ROUNDS
            ),
            "grid": gaussian_part(client.rows_in_cells, COST_OF_GRID, 1),
        }


def _are_round(clusters: Found, grid: Grid, histogram: Histogram) -> bool:
    """Tell whether Gaussians at the centers of private k-means explain the noisy cells."""
    n_directions = len(grid.shape)
    n_known = min(clusters.centers.shape[1], n_directions)
    means, shares = (
        np.zeros((len(clusters.centers), n_directions)),
        clusters.weights / clusters.weights.sum(),
    )
    means[:, :n_known] = clusters.centers[:, :n_known]
    within = np.diag(clusters.space.values[:n_directions]) - (means.T * shares) @ means
    places = (means - grid.low) / grid.width - 0.5
    return (
        misfit_of_round_clusters(histogram, places, within / grid.width**2, shares) < LARGEST_MISFIT
    )


def _first(counts: Floats, noise: float) -> int:
    """Return the first interval of a range that has more rows than noise can produce; with noise, the one before."""
    least, sums = LEAST_PART * float(counts.sum()), np.concatenate([[0.0], np.cumsum(counts)])
    for last in range(1, len(counts) + 1):
        for window in WINDOWS:
            limit = max(noise * math.sqrt(window), least, 0.5)
            if last >= window and sums[last] - sums[last - window] > limit:
                return max(last - window - (noise > 0), 0)
    return 0


# The client half.


class PrivateDensityClient(SearchClient):
    """The client half of :class:`PrivateDensity`."""

    @by_row(
        ranges=Sent("number of rows in each part of the range of each direction", is_positive=True)
    )
    def rows_in_ranges(rows: Rows, low: Floats, widths: Floats, directions: Floats) -> Term:
        """Count the rows in :data:`N_PARTS` intervals of each direction; empty ``directions`` mean all columns."""
        rows = rows.projected(directions)
        inner = np.arange(1, N_PARTS)
        columns = zip(rows.integers.T, low, widths, strict=True)
        counts = [
            at(parts_of(column, start + width * inner, rows.exponent), N_PARTS)
            for column, start, width in columns
        ]
        return side_by_side(counts, words="a row counts once in each direction").reshaped(
            len(low), N_PARTS
        )

    @by_row(grid=Sent("number of rows in each cell", counts="every row"))
    def rows_in_cells(
        rows: Rows, low: Floats, shape: NDArray[np.int64], directions: Floats, *, width: float
    ) -> Term:
        """Count the rows in each cell of a grid; rows outside the grid count in the cells at its edge."""
        rows, grid = (
            rows.projected(directions),
            Grid(low, width, tuple(int(n_cells) for n_cells in shape)),
        )
        return at(grid.places(rows.integers, rows.exponent), math.prod(grid.shape))


PrivateDensity.client_type = PrivateDensityClient
