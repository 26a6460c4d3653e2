"""PrivateDensity: private clusters of any form, from one noisy histogram of cells.

Under privacy the label of a single row cannot be published usefully, but the regions that clusters occupy can (arXiv
2508.08749). All rows count in one grid. What follows sees noisy counts only, whose noise is known, and costs no
privacy: the width of a kernel, and a cut at the most persistent peaks or along the thinnest borders.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.engine import ClippedStrategy, Entry, Protocol, parameter
from flower_fedclust.engine.by_row import by_row
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Outcome, Round, Sent, Total
from flower_fedclust.exact.cells import Grid, parts_of
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.sums import directions_onto_grid, triangle_to_symmetric
from flower_fedclust.exact.terms import Term, at, side_by_side
from flower_fedclust.models import CellModel
from flower_fedclust.numerics.checks import DataError, checked_point
from flower_fedclust.numerics.density import Histogram, agreement_of_another_run, cut
from flower_fedclust.numerics.validity import PeakNumber, numbers_of
from flower_fedclust.privacy.releases import PRIVACY_UNITS, PrivacyUnit
from flower_fedclust.strategies.common.frame import FRAME_ROUNDS, frame_of_rows
from flower_fedclust.strategies.common.many_starts import StartsClient

Floats = NDArray[np.float64]

#: What each part of the budget costs: the inverse squared noise multipliers of its Gaussian releases, which add up.
COST_OF_RANGES, COST_OF_DIRECTIONS = 0.05, 0.20
#: A grid has at most this many columns; of more columns it takes directions.
MOST_DIRECTIONS = 3
#: The range of each direction is found in this many rounds, in each of which it is counted in so many parts.
RANGE_ROUNDS, N_PARTS = 2, 32
#: How many neighboring parts are added up to find the ends of a range, and the part of all rows that they hold.
WINDOWS, LEAST_PART = (1, 2, 4, 8), 0.001
#: With noise, a grid has this many cells for each standard deviation of a cell's noise among all rows.
ROWS_OVER_NOISE = 0.6
#: Directions come from rows clipped to this part of half the diagonal of the box in which they lie.
PART_OF_DIAGONAL = 0.7
#: At client level, a client's rows are taken to fall into this many cells, and this many parts of a range.
CELLS_OF_CLIENT, PARTS_OF_CLIENT = 40, 8
ALL_COLUMNS = np.zeros((0, 0))


class PrivateDensity(ClippedStrategy):
    """Private clusters of any form in up to three columns: rows count in cells, and the server cuts the noisy counts.

    With more columns take PrivateKMeans: there the grid lies in the three directions in which rows spread most, and
    clusters that overlap in these are joined.

    The run finds privately where the rows lie, and counts them in one grid: about 64 x 64 cells in two columns,
    24 x 24 x 24 in three, and fewer if noise is high. The server chooses the width of a kernel from the noisy counts
    and cuts the cells into clusters: at the most persistent peaks if these stand out, and otherwise by a normalized cut
    of neighboring cells.

    Parameters
    ----------
    n_clusters : int, "auto", or two int
        The number of clusters; or the smallest and the largest number, between which the run chooses at no further
        cost, by how far the peaks of the density rise. "auto" is (2, 16).
    max_norm : float, optional
        The Euclidean distance from ``origin`` to which every client clips its rows. Needed with an epsilon, unless
        there is a schema. It is public, and must not be computed from the data. It may be generous: the run finds
        privately how far the rows really reach.
    epsilon : float or None, default=1.0
        The privacy budget of the whole run. None means no noise and no guarantee; then no row needs to be clipped.
    privacy_unit : "record" or "client", default="record"
        Whether the guarantee covers a row or everything that one client contributes. For clients it takes hundreds.
    rows_per_client : int, default=50
        At client level: the publicly known, approximate number of rows of a client. It sets the bounds to which clients
        clip; a wrong value costs accuracy, not privacy.
    origin : array-like of shape (n_columns,), optional
        A public point about which rows are clipped; 0 by default.
    label_noise : bool, default=False
        Whether rows in thin regions have the label -1, for noise, and not the label of the nearest cluster.
        Without an epsilon no cell with a row is thin.

    References
    ----------
    Chazal, Guibas, Oudot and Skraba, "Persistence-based clustering in Riemannian manifolds", J. ACM 60, 2013; Shi and
    Malik, "Normalized cuts and image segmentation", PAMI 2000.
    """

    entries = (
        Entry(
            "private-density",
            "private clusters of any form in up to three columns, from one noisy histogram of cells",
            "after Chazal et al. 2013 and Shi and Malik 2000",
            example={"max_norm": 3.0},
            finds="any form",
        ),
    )
    promises = PRIVACY_UNITS

    n_clusters: Any = parameter(kw_only=False)
    epsilon: float | None = parameter(1.0, above=0, at_most=1000)
    privacy_unit: PrivacyUnit = parameter("record")
    rows_per_client: int = parameter(50, at_least=1)
    origin: ArrayLike | None = parameter(None)
    label_noise: bool = parameter(False)

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first invalid parameter."""
        numbers_of(self.n_clusters)
        super().check_parameters()
        if self.origin is not None:
            checked_point("origin", self.origin)

    # The server half.

    def protocol(self) -> Protocol:
        """Find where the rows lie, count them by cell, and cut the cells."""
        frame = yield from self._frame()
        radius = np.full(self.n_columns, frame.radius)
        low, high, middle, _ = yield from self._ranges(frame, ALL_COLUMNS, -radius, radius)
        directions = ALL_COLUMNS
        if self.n_columns > MOST_DIRECTIONS:
            frame, directions = yield from self._directions(frame, high - low, middle)
            high = np.full(MOST_DIRECTIONS, frame.radius)
            low = -high
        low, high, _, signal = yield from self._ranges(frame, directions, low, high)
        # Clusters of many columns overlap in three directions; only fine cells keep them apart.
        grid = Grid.over(low, high, math.inf if directions.size else ROWS_OVER_NOISE * signal)
        counts, deviation = yield from self._cells(frame, directions, grid)
        histogram = Histogram(counts.reshape(grid.shape), deviation)
        number, n_clusters = None, self.most_clusters
        numbers = numbers_of(self.n_clusters)
        if numbers[0] < numbers[1]:
            number = PeakNumber.of(cut(histogram, n_clusters, self.rng).rises, numbers)
            n_clusters = number.chosen
        found = cut(histogram, n_clusters, self.rng, thin=self.label_noise)
        model = CellModel(
            found.labels,
            n_clusters,
            grid.low,
            grid.width,
            density=found.density,
            origin=frame.origin,
            directions=directions if directions.size else None,
        )
        agreement = agreement_of_another_run(found, deviation, n_clusters, self.rng)
        return Outcome(model, number=number, agreement=agreement)

    def _frame(self) -> Generator[Round, Total, Frame]:
        """Return the ball of ``max_norm``; without one, and without noise, a ball that holds all rows."""
        if self.max_norm is None:
            frame, _ = yield from frame_of_rows()
            return frame
        origin = np.zeros(self.n_columns) if self.origin is None else np.asarray(self.origin, dtype=np.float64)
        return Frame(origin, self.max_norm)

    def _ranges(
        self, frame: Frame, directions: Floats, low: Floats, high: Floats
    ) -> Generator[Round, Total, tuple[Floats, Floats, Floats, float]]:
        """Narrow the range of each direction to where rows are.

        Also return the mean of the rows, about, and how many there are for each standard deviation of noise in a cell.
        """
        widths = (high - low) / N_PARTS
        question = PrivateDensityClient.parts_of_range.asked(low, widths, directions, frame=frame)
        bound = math.sqrt(len(low)) * self._norm_of_client(PARTS_OF_CLIENT)
        (counts,) = received = yield self.summed(question, "ranges", at_most=(bound,))
        counts, deviation = counts * self._scale, received.noise[0] * self._scale
        # By the extreme values of Gaussians, noise hardly exceeds this many standard deviations anywhere.
        noise = deviation * math.sqrt(2 * math.log(counts.size))
        ends = np.array([(_first(one, noise), N_PARTS - _first(one[::-1], noise)) for one in counts])
        ends[ends[:, 0] >= ends[:, 1]] = 0, N_PARTS
        parts = np.arange(N_PARTS)
        inside = counts * ((parts >= ends[:, :1]) & (parts < ends[:, 1:]))
        means = inside @ (parts + 0.5) / np.maximum(inside.sum(axis=1), 1.0)
        part, cells = (self.parts()[one] for one in ("ranges", "cells"))
        ratio = bound / self._norm_of_client(CELLS_OF_CLIENT) * cells.fraction / part.fraction * part.at_most
        signal = float(counts.sum()) / len(low) / deviation * ratio if deviation else math.inf
        places = low + widths * np.stack([ends[:, 0], ends[:, 1], np.clip(means, 0, N_PARTS)])
        return places[0], places[1], places[2], signal

    def _directions(
        self, frame: Frame, ranges: Floats, middle: Floats
    ) -> Generator[Round, Total, tuple[Frame, Floats]]:
        """Return a frame about the middle of the rows, and the directions in which they spread most."""
        reach = PART_OF_DIAGONAL * float(np.linalg.norm(ranges)) / 2
        frame = Frame(frame.origin + middle, reach)
        question = PrivateDensityClient.second_moment.asked(frame=frame)
        (triangle,) = yield self.summed(question, "second_moment", at_most=(reach**2,))
        if not np.isfinite(triangle).all():
            raise DataError("the rows are so far apart that their squares overflow; look for a wrong value.")
        _, vectors = np.linalg.eigh(triangle_to_symmetric(triangle))
        return frame, directions_onto_grid(np.ascontiguousarray(vectors[:, : -MOST_DIRECTIONS - 1 : -1]))

    def _cells(self, frame: Frame, directions: Floats, grid: Grid) -> Generator[Round, Total, tuple[Floats, float]]:
        """Return the noisy number of rows in each cell, and the standard deviation of the noise."""
        shape = np.array(grid.shape, dtype=np.int64)
        question = PrivateDensityClient.cells.asked(grid.low, shape, directions, frame=frame, width=grid.width)
        (counts,) = received = yield self.summed(question, "cells", at_most=(self._norm_of_client(CELLS_OF_CLIENT),))
        return counts * self._scale, received.noise[0] * self._scale

    # Bounds and budget.

    @property
    def most_clusters(self) -> int:
        """The number of clusters, or the largest that is tried."""
        return numbers_of(self.n_clusters)[1]

    @property
    def n_protocol_rounds(self) -> int:
        """The rounds for the frame, the ranges, the directions, and the cells."""
        return FRAME_ROUNDS * (self.max_norm is None) + RANGE_ROUNDS + 1 + 1

    @property
    def expected_columns(self) -> int | None:
        """The width of the origin, if it was given."""
        return None if self.origin is None else len(np.asarray(self.origin))

    @property
    def _scale(self) -> float:
        """How many rows one unit of a sum stands for."""
        return float(self.rows_per_client) if self.privacy_unit == "client" else 1.0

    def _norm_of_client(self, n_parts: int) -> float:
        """Return the typical norm of the fractions of a client's rows in so many parts; 1 for a row."""
        return math.sqrt(1 / self.rows_per_client + 1 / n_parts) if self.privacy_unit == "client" else 1.0

    def parts(self) -> Mapping[str, Part]:
        """Return parts for the ranges (a twentieth of the cost), any directions (a fifth), and the cells."""
        n_columns = self.n_columns if self.client_names else math.inf  # before a run, assume many
        client, n_moments = PrivateDensityClient, int(n_columns > MOST_DIRECTIONS)
        of_cells = 1.0 - COST_OF_RANGES - n_moments * COST_OF_DIRECTIONS
        return {
            "ranges": Part(client.parts_of_range, math.sqrt(COST_OF_RANGES * RANGE_ROUNDS), RANGE_ROUNDS),
            "second_moment": Part(client.second_moment, math.sqrt(COST_OF_DIRECTIONS), n_moments),
            "cells": Part(client.cells, math.sqrt(of_cells)),
        }

    def privacy_notes(self) -> list[str]:
        """Add what is assumed to be public."""
        notes = super().privacy_notes()
        return [*notes, "How many clients there are is taken to be public."] if self.privacy_unit == "client" else notes


def _first(counts: Floats, noise: float) -> int:
    """Return the first part of a range that holds more rows than noise; with noise, the one before."""
    least, sums = LEAST_PART * float(counts.sum()), np.concatenate([[0.0], np.cumsum(counts)])
    for last in range(1, len(counts) + 1):
        for window in WINDOWS:
            limit = max(noise * math.sqrt(window), least, 0.5)
            if last >= window and sums[last] - sums[last - window] > limit:
                return max(last - window - (noise > 0), 0)
    return 0


# The client half.


class PrivateDensityClient(StartsClient):
    """The client half of :class:`PrivateDensity`."""

    @by_row(ranges=Sent("number of rows in each part of the range of each direction", is_positive=True))
    def parts_of_range(rows: Rows, low: Floats, widths: Floats, directions: Floats) -> Term:
        """Count the rows in :data:`N_PARTS` parts of each direction; empty directions mean all columns."""
        rows = rows.projected(directions)
        inner = np.arange(1, N_PARTS)
        columns = zip(rows.integers.T, low, widths, strict=True)
        counts = [at(parts_of(one, start + width * inner, rows.exponent), N_PARTS) for one, start, width in columns]
        return side_by_side(counts, words="a row counts once in each direction").reshaped(len(low), N_PARTS)

    @by_row(cells=Sent("number of rows in each cell", counts="every row"))
    def cells(rows: Rows, low: Floats, shape: NDArray[np.int64], directions: Floats, *, width: float) -> Term:
        """Count the rows in each cell of a grid; rows outside count in the cells at its edge."""
        rows, grid = rows.projected(directions), Grid(low, width, tuple(int(one) for one in shape))
        return at(grid.places(rows.integers, rows.exponent), math.prod(grid.shape))


PrivateDensity.client_type = PrivateDensityClient
