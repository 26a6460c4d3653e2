"""The steps of private k-means, as generators of rounds that strategies share.

A strategy that derives from :class:`SearchStrategy` writes in its protocol::

    frame, n_rows = yield from frame_of_most(self)
    space = yield from space_of_rows(self, frame, n_rows)
    space, cells = yield from cells_of_rows(self, space)

A frame is the ball to which clients clip their rows; a space adds the directions in which the rows spread most; cells
are small regions in these directions. In place of the last two lines, ``found = yield from rough_clusters(self, frame,
n_rows)`` also clusters the cells by k-means. To go on with many solutions it writes ::

    best = yield from best_of_many(self, space, cells, n_clusters)

The client of such a strategy derives from :class:`SearchClient`. The first three lines need the parts of
:func:`parts_of_cells` in the budget, and take :func:`first_rounds` and CELL_ROUNDS rounds. :func:`best_of_many` needs
the parts of :func:`parts_of_solutions`, and takes at most SOLUTION_ROUNDS rounds.

The solutions that cost little on the cells take noisy Lloyd steps in the same rounds. Their costs are then compared by
one sum, to which a row adds one number for each solution. The noise decides how many cells, directions and solutions
there are. With much noise there is a single solution, which takes all steps. Without noise the result is the same as
from many starts on the pooled rows. If the guarantee covers clients, each client adds the mean over its rows to a sum.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.engine import ClippedStrategy, Sum, parameter
from flower_fedclust.engine.by_row import by_row, finishes
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Round, Sent, Total
from flower_fedclust.exact.grid import ball_in_units, integer_norms
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.sums import directions_onto_grid, triangle_to_symmetric
from flower_fedclust.exact.terms import (
    Term,
    at,
    costs_beside_mean,
    count,
    one_class,
    side_by_side,
    total,
)
from flower_fedclust.numerics.checks import checked_point
from flower_fedclust.numerics.kmeans import nearest_center, nearest_of_each
from flower_fedclust.numerics.validity import ClusterNumber, numbers_of
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.releases import PRIVACY_UNITS, PrivacyUnit
from flower_fedclust.strategies.common.many_starts import StartsClient, sketch_of, spectrum_of
from flower_fedclust.strategies.common.noisy_cells import (
    CELL_REACH,
    CELL_WEIGHT,
    FEWEST_CELLS,
    MOST_CELLS,
    MOST_SOLUTIONS,
    N_LEVELS,
    PART_KEPT,
    REACH,
    STEPS_EACH,
    TOLERATED,
    UNSURE,
    Compared,
    DrawnOffsets,
    NoisyCells,
    best_solutions,
    bound_of_costs,
    directions_and_cells,
    dropped_light,
    excess_of_a_step,
)
from flower_fedclust.strategies.common.small_clusters import (
    N_INIT,
    NoisyClusters,
    clustered,
    number_if_asked,
    small_clusters,
    weight_of,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: The cost of each part of the budget: the inverse squared noise multipliers of its Gaussian releases. All costs add up
#: to 1.
COSTS: Mapping[str, float] = {
    "row_sum": 0.016,
    "row_count": 0.004,
    "distances": 0.008,
    "second_moment": 0.18,
    "cells": 0.205,
    "tries_1": 0.195,
    "tries_2": 0.025,
    "tries_3": 0.025,
    "costs": 0.05,
    "steps": 0.04,
    "sums": 0.236,
    "counts": 0.016,
}
#: The costs for strategies that only take cells from the search, and go on by themselves.
COSTS_OF_CELLS: Mapping[str, float] = {
    "row_sum": 0.03,
    "row_count": 0.01,
    "distances": 0.03,
    "second_moment": 0.20,
    "cells": 0.52,
}
#: How many rounds make the cells.
CELL_ROUNDS = 3
#: The most Lloyd steps that the best solution takes before its last step.
N_STEPS = 5
#: The most rounds of :func:`best_of_many`.
SOLUTION_ROUNDS = N_LEVELS * (STEPS_EACH + 1) + N_STEPS + 1
#: Rows are counted by their distance from the origin in this many classes. Each class reaches sqrt(1/2) times as far as
#: the class before it.
N_CLASSES = 16
#: The fraction of the rows that may lie outside the ball in which the second moment is taken.
PART_OUTSIDE = 0.1
#: How many neighboring classes of distance are added up.
N_NEIGHBORING = 3
#: How many standard deviations of its noise this sum must exceed to show that rows lie there.
CLEAR_CLASS = 2.5
#: The variance along a direction is taken to be at least this fraction of the mean variance.
LEAST_VARIANCE = 0.02
#: The spread of the first random points, over the spread of the rows.
FIRST_CELLS = 0.8
#: The distance of a new point from the mean of the cell that it splits, over the spread of the rows in cells.
SPLIT = 0.35
#: A cell is dropped if its count is below this many standard deviations of its noise.
LIGHT_CELL = 2.0
#: The least variance within cells, over the variance of the rows.
LEAST_WITHIN = 0.03
#: In more directions than this, random points are moved towards the middle, until they are as far from it as they would
#: be in this number of directions; see :func:`nearer_in_many`.
FEW_DIRECTIONS = 16.0
#: There are at most this many cells for each cluster, or MOST_CELLS if that is more. A bound on the time of a run can
#: lower this limit, but not below the second number for each cluster.
CELLS_FOR_EACH, FEWEST_FOR_EACH = 6, 4
#: The number of cells is chosen as if all rows came from one Gaussian. In many directions few cells are then best, and
#: two clusters may share one. So there are at least this many cells for each cluster, but no more of them than the
#: second number times as many as the noise in their counts allows. In FEW_DIRECTIONS nothing changes.
FEWEST_CLEAR, CLEAR_CELLS = 3.0, 0.5
#: In the sums of a Lloyd step, the count of a row is an entry of this fraction of the bound of offsets.
WEIGHT = 0.4
#: The variance of the true offsets in a step is taken to be at least this fraction of the variance that was expected,
#: unless the step's offsets rule this out, as the many offsets of many clusters in many columns can.
LEAST_KEPT = 0.5
#: The variance of the offsets that is expected in the first step, in the directions of the search, over the rows'
#: variance there.
FIRST_INSIDE = 1.0
#: The same in other directions, over the rows' mean variance.
FIRST_OUTSIDE = 0.2
#: The variance that is expected of the next step's offsets, over the variance of this step's.
GOES_ON = 1.0
#: Bounds on the time of a run. The number of entries of all rows, multiplied by the number of solutions, of directions
#: of the search, or of cells, should be at most the first, second or third number.
MOST_WORK, MOST_PROJECTED, MOST_CELL_PRODUCTS = 2.5e7, 2e8, 1e9
#: The same bound for the number of steps of a single solution, which takes at least two steps before its last one.
MOST_STEPPED = 4e7
#: If a step lowers the cost by at most this fraction, the final step is next.
STILL = 3e-5
#: The cost of a solution is taken to be at least this fraction of the cost with a single center.
LEAST_COST = 0.05
#: At client level, the bound of the mean offset is this many times its typical norm.
CLIENT_MARGIN = 1.5


class SearchStrategy(ClippedStrategy):
    """Base of private strategies that look for clusters in noisy cells.

    Parameters
    ----------
    n_clusters : int, "auto", or two int
        The number of clusters; or the smallest and the largest number, between which the run chooses at no further
        cost. "auto" is (2, 16).
    max_norm : float, optional
        The Euclidean distance from ``origin`` to which every client clips its rows. Needed with an epsilon, unless
        there is a schema. It is public, and must not be computed from the data. It may be generous: the run finds
        privately how far the rows really reach.
    epsilon : float or None, default=1.0
        The privacy budget of the whole run. None means no noise and no guarantee.
    privacy_unit : "record", "subject" or "client", default="record"
        Whether the guarantee covers a row, a person with all rows that the ``subject_column`` gives the person, or
        everything that one client contributes. For clients, an epsilon of 0.5 or less, or a few hundred clients, can be
        too little: clusters merge.
    rows_per_client : int, default=50
        At client level: the publicly known, approximate number of rows of a client. It sets the bounds to which clients
        clip; a wrong value costs accuracy, not privacy.
    origin : array-like of shape (n_columns,), optional
        A public point about which rows are clipped; 0 by default. A Series is matched to the columns by its index.
    """

    promises = PRIVACY_UNITS

    n_clusters: Any = parameter(kw_only=False)
    epsilon: float | None = parameter(1.0, above=0, at_most=1000)
    privacy_unit: PrivacyUnit = parameter("record")
    rows_per_client: int = parameter(50, at_least=1)
    origin: ArrayLike | None = parameter(None)

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first invalid parameter."""
        numbers_of(self.n_clusters)
        super().check_parameters()
        if self.origin is not None:
            checked_point("origin", self.origin)

    @property
    def most_clusters(self) -> int:
        """The number of clusters, or the largest that is tried."""
        return numbers_of(self.n_clusters)[1]

    @property
    def fewest_clusters(self) -> int:
        """The number of clusters, or the smallest that is tried."""
        return numbers_of(self.n_clusters)[0]

    @property
    def expected_columns(self) -> int | None:
        """The width of the origin, if it was given."""
        return None if self.origin is None else len(np.asarray(self.origin))

    @property
    def ball(self) -> Frame:
        """The ball to which clients clip their rows at first."""
        assert self.max_norm is not None
        origin = (
            np.zeros(self.n_columns)
            if self.origin is None
            else np.asarray(self.origin, dtype=np.float64)
        )
        return Frame(origin, self.max_norm)

    def privacy_notes(self) -> list[str]:
        """Add the assumptions about what is public."""
        notes = super().privacy_notes()
        if self.privacy_unit == "client":
            notes.append("How many clients there are is taken to be public.")
        return notes

    def units(self, n_rows: float) -> Units:
        """Return the units (rows or clients) that the guarantee covers, if there are n_rows rows."""
        if self.privacy_unit != "client":
            return Units(n_rows)
        return Units(len(self.client_names), n_rows / len(self.client_names), are_clients=True)


# Whom the noise protects.


@dataclass(frozen=True)
class Units:
    """The units that the guarantee covers: rows, or clients.

    A row adds its own vector to a sum. A client adds the mean over its rows, and clips this mean.
    """

    number: float
    rows_each: float = 1.0
    are_clients: bool = False

    def of_offsets(self, bound: float) -> float:
        """Return the norm of what a unit adds to sums of offsets that are clipped to a bound."""
        return CLIENT_MARGIN * bound / math.sqrt(self.rows_each) if self.are_clients else bound

    def of_counts(self, n_places: int) -> float:
        """Return the norm of a unit's fractions of rows at ``n_places`` places, if its rows are like all rows."""
        return math.sqrt(1.0 / self.rows_each + 1.0 / n_places) if self.are_clients else 1.0

    def of_vectors(self, values: Floats, bound: float) -> float:
        """Return the norm of what a unit adds to a sum of vectors, each clipped to a bound.

        ``values`` are vectors that rows are expected to have, one for each row.
        """
        if not self.are_clients:
            return bound
        mean, mean_square = values.mean(axis=0), float((values**2).sum(axis=1).mean())
        return max(
            math.sqrt(float(mean @ mean) + CLIENT_MARGIN**2 * mean_square / self.rows_each),
            1e-9 * bound,
        )

    def of_both(self, bound: float, weight: float, n_places: int) -> float:
        """Return the norm of what a unit adds to sums of clipped offsets and to numbers of rows times a weight."""
        return math.hypot(self.of_offsets(bound), weight * self.of_counts(n_places))


# Where the rows lie.


@dataclass(frozen=True)
class Space:
    """Where the rows lie, and in which directions they spread, as far as noise does not hide it."""

    frame: Frame
    n_rows: float
    units: Units
    #: The estimated variances of the rows along the directions, the largest first.
    values: Floats
    #: Eigenvectors of the noisy second moment, of shape (n_columns, n_directions).
    directions: Floats
    n_above: int  #: The number of directions whose variance exceeds what noise alone can produce.
    n_inside: int  #: The number of directions in which clusters are searched.
    spread: Floats  #: The standard deviations of the rows along these directions.
    total: float  #: The mean squared norm of a row.
    #: The standard deviation of the noise in a variance along a given direction.
    noise: float = 0.0

    @property
    def n_columns(self) -> int:
        """The number of all columns."""
        return len(self.frame.origin)

    @property
    def variances(self) -> Floats:
        """The variances of the rows along all directions, each at least LEAST_VARIANCE of the mean variance."""
        return np.maximum(self.values, LEAST_VARIANCE * self.total / self.n_columns)

    @property
    def inside(self) -> Floats:
        """The directions in which clusters are searched, rounded to the clients' grid."""
        return directions_onto_grid(self.directions[:, : self.n_inside])

    @property
    def elsewhere(self) -> float:
        """The mean squared norm of a row in all other directions."""
        return max(self.total - self.total_inside, 0.0)

    @property
    def total_inside(self) -> float:
        """The mean squared norm of a row in the directions in which clusters are searched."""
        return float((self.spread**2).sum())

    def norm_of_offsets(self, reach: float, within: float) -> float:
        """Return the norm to which clients clip offsets: ``reach`` times the root of ``within``.

        ``within`` is the mean squared distance of a row from its center. No offset is longer than the ball is wide.
        """
        return min(
            reach * math.sqrt(max(within, 1e-18 * self.frame.radius**2)), 2 * self.frame.radius
        )


def first_rounds(*, center_rows: bool, counts_rows: bool) -> int:
    """Return how many rounds :func:`frame_of_most` and :func:`space_of_rows` take."""
    return 2 * int(center_rows) + int(counts_rows) + 2


def frame_of_most(
    strategy: SearchStrategy, *, center_rows: bool = True, n_rows: int | None = None
) -> Generator[Round, Total, tuple[Frame, float]]:
    """Return a frame around the noisy mean of the rows, and the number of rows, which is noisy unless it is public."""
    frame = strategy.ball
    if n_rows is not None:
        number = float(n_rows)
    elif strategy.privacy_unit == "client":
        number = float(strategy.rows_per_client * len(strategy.client_names))
    else:
        (counted,) = yield Sum(SearchClient.row_count.asked(), parts=["row_count"])
        number = max(float(counted), float(strategy.fewest_clusters))
    return (
        yield from _centered(strategy, frame, frame.radius, number)
    ) if center_rows else frame, number


def _centered(
    strategy: SearchStrategy, frame: Frame, reach: float, n_rows: float
) -> Generator[Round, Total, Frame]:
    """Return a frame around the noisy mean of the rows, which are first clipped to the distance ``reach``."""
    question = SearchClient.row_sum.asked(frame=Frame(frame.origin, reach))
    (added_up,) = received = yield strategy.summed(question, "row_sum", at_most=(reach,))
    mean = clip_rows((added_up / _n_units(strategy, received, n_rows))[None, :], reach)[0]
    return Frame(frame.origin + mean, frame.radius + float(np.linalg.norm(mean)))


def space_of_rows(
    strategy: SearchStrategy, frame: Frame, n_rows: float, *, center_rows: bool = True
) -> Generator[Round, Total, Space]:
    """Find the directions in which the rows spread more than noise does.

    First find how far most rows reach; with ``center_rows``, then clip rows to that distance and move the frame to
    their mean, which needs less noise than the mean in :func:`frame_of_most`.
    """
    units = strategy.units(n_rows)
    # A client's mean outer product is clipped as a whole, and a sketch would lose more of it than of a row's.
    sketch = {} if units.are_clients else sketch_of(len(frame.origin), strategy.rng)
    asked = SearchClient.moment_size if units.are_clients else SearchClient.distances
    (classes,) = received = yield Sum(asked.asked(frame=frame), parts=["distances"])
    n_units = _n_units(strategy, received, n_rows)
    reach = frame.radius * class_reach(class_of_most(classes, n_units, received.noise[0]))
    if center_rows:
        centered = yield from _centered(strategy, frame, reach, n_rows)
        moved = float(np.linalg.norm(centered.origin - frame.origin))
        frame, reach = centered, math.sqrt(max(reach**2 - moved**2, reach**2 / 4))
    inner = frame if units.are_clients else Frame(frame.origin, reach)
    question = SearchClient.second_moment.asked(frame=inner, **sketch)
    (moment,) = received = yield strategy.summed(question, "second_moment", at_most=(reach**2,))
    values, directions, n_above, edge, mean_square = spectrum_of(
        moment, sketch, n_units, received.noise[0]
    )
    n_inside = min(n_above, strategy.most_clusters)
    spread = np.sqrt(np.maximum(values[:n_inside], edge / 4))
    mean_square = max(mean_square, edge / 4, 1e-12 * frame.radius**2)
    directions, noise = np.ascontiguousarray(directions), edge / math.sqrt(2 * len(frame.origin))
    return Space(
        frame, n_rows, units, values, directions, n_above, n_inside, spread, mean_square, noise
    )


def _n_units(strategy: SearchStrategy, received: Total, n_rows: float) -> float:
    """Return the number of rows; if the guarantee covers clients, the number of clients in a sum."""
    return received.n_clients if strategy.privacy_unit == "client" else n_rows


# Cells.


def cells_of_rows(
    strategy: SearchStrategy, space: Space, public: Floats | None = None
) -> Generator[Round, Total, tuple[Space, NoisyCells]]:
    """Choose directions and return noisy cells in them; each round drops cells of few rows, and splits cells of many.

    ``public`` rows, in the coordinates of the frame, are among the first points.
    """
    space, n_cells = _with_cells(strategy, space)
    rng, units, variances = strategy.rng, space.units, space.spread**2
    points = (
        rng.standard_normal((n_cells, space.n_inside))
        * space.spread
        * FIRST_CELLS
        * nearer_in_many(variances)
    )
    if public is not None:
        chosen = rng.permutation(public @ space.inside)[:n_cells]
        points[: len(chosen)] = chosen
    within, former = variances, None
    is_wide = nearer_in_many(variances) < 1.0
    for generation in range(CELL_ROUNDS):
        bound = space.norm_of_offsets(CELL_REACH, float(within.sum()))
        weight = CELL_WEIGHT * bound
        question = SearchClient.cells.asked(
            points, space.inside, frame=space.frame, bound=bound, weight=weight
        )
        at_most = units.of_both(bound, weight, len(points))
        (both,) = received = yield strategy.summed(question, "cells", at_most=(at_most,))
        sums, counts = units.rows_each * both[:, :-1], units.rows_each * both[:, -1] / weight
        of_sums = units.rows_each * received.noise[0]
        of_counts = of_sums / weight
        divisor = np.maximum(counts, max(0.3 * of_counts, space.n_rows / len(points) / 20, 1.0))
        means = clip_rows(points + sums / divisor[:, None], space.frame.radius)
        means, counts = dropped_light(means, counts, of_counts, LIGHT_CELL, strategy.most_clusters)
        parts = counts / counts.sum()
        between = np.maximum(parts @ means**2 - parts @ (of_sums / counts) ** 2, 0.0)
        within = np.maximum(variances - between, LEAST_WITHIN * variances)
        if generation == CELL_ROUNDS - 1:
            break
        former = means, counts
        n_new = n_cells - len(means)
        parents = (
            heaviest_split(counts, n_new) if is_wide else rng.choice(len(means), n_new, p=parts)
        )
        split = SPLIT * nearer_in_many(within) * np.sqrt(within)
        beside = split * rng.standard_normal((len(parents), space.n_inside))
        points = np.concatenate([means, means[parents] + beside])
    if former is not None:
        means, counts = np.concatenate([former[0], means]), np.concatenate([former[1], counts])
    return space, NoisyCells(means, counts, within, of_sums, of_counts)


def heaviest_split(counts: Floats, number: int) -> Integers:
    """Return which cells to split by ``number`` new points.

    Each new point goes to the cell whose points would then have the most rows each. So a cell with the rows of two
    clusters is split before a cell with the rows of one.
    """
    shares = counts[:, None] / np.arange(2, number + 2)
    order = np.argsort(-shares, axis=None, kind="stable")[:number]
    return order // max(number, 1)


def nearer_in_many(variances: Floats) -> float:
    """Return the factor, at most 1, by which random first points, and the halves of a split cell, move to the middle.

    In many directions, a random point with the norm of a row is farther from most rows than the middle is. Without the
    factor, a few points near the middle would be nearest to almost all rows. ``variances`` are the variances of the
    rows, or of the rows in a cell, along the directions.
    """
    # A power of two changes no digit, and the squares of the quotients fit into floats.
    relative = np.ldexp(variances, -math.frexp(float(variances.max()))[1])
    effective = float(relative.sum()) ** 2 / float((relative**2).sum())
    return min(1.0, math.sqrt(FEW_DIRECTIONS / effective))


def _with_cells(strategy: SearchStrategy, space: Space) -> tuple[Space, int]:
    """Choose the numbers of directions and cells for which rows are nearest to the noisy means of their cells."""
    variances, units, most = space.variances, space.units, strategy.most_clusters
    noise, products = strategy.noise_of("cells") / units.number, space.n_rows * space.n_columns
    most_inside = int(min(max(MOST_PROJECTED / products, most), len(variances)))
    most_cells = min(
        max(CELLS_FOR_EACH * most, MOST_CELLS),
        max(MOST_CELL_PRODUCTS / products, FEWEST_FOR_EACH * most),
    )
    # On average, a cell must have more rows than LIGHT_CELL standard deviations of the noise in its count.
    of_count = units.of_both(1.0, CELL_WEIGHT, FEWEST_FOR_EACH * most) / CELL_WEIGHT
    most_counted = 1.0 / max(LIGHT_CELL * of_count * noise, 1e-12)
    wide = 1.0 - nearer_in_many(variances[:most_inside])
    least_cells = fewest_cells(most, wide * most_counted)
    most_cells = max(min(most_cells, most_counted), least_cells)
    n_inside, n_cells = directions_and_cells(
        variances[:most_inside],
        max(space.total - float(variances[:most_inside].sum()), 0.0),
        lambda n_cells: units.of_both(CELL_REACH, CELL_REACH * CELL_WEIGHT, n_cells),
        noise,
        least_cells,
        int(most_cells),
    )
    n_inside = max(n_inside, min(space.n_above, most))
    return replace(space, n_inside=n_inside, spread=np.sqrt(variances[:n_inside])), n_cells


def fewest_cells(n_clusters: int, most_counted: float) -> int:
    """Return the least number of cells, if the noise in counts allows ``most_counted`` of them in many directions."""
    wanted = max(CLEAR_CELLS * most_counted, FEWEST_CELLS * n_clusters)
    return math.ceil(min(wanted, FEWEST_CLEAR * n_clusters))


class Found(NamedTuple):
    """The clusters that a run has found from noisy cells."""

    space: Space
    fine: NoisyClusters
    number: ClusterNumber | None  #: The number of clusters, if the run has chosen it.
    centers: Floats  #: The centers, in the directions of the search.
    weights: Floats


def rough_clusters(
    strategy: SearchStrategy, frame: Frame, n_rows: float
) -> Generator[Round, Total, Found]:
    """Find where the rows lie, divide them into cells, and cluster the cells, for strategies with other last steps."""
    space = yield from space_of_rows(strategy, frame, n_rows)
    space, cells = yield from cells_of_rows(strategy, space)
    fine = small_clusters(cells, space.total_inside, strategy.most_clusters, strategy.rng)
    numbers = numbers_of(strategy.n_clusters)
    number = number_if_asked(fine, space.spread, n_rows, numbers, strategy.rng)
    n_clusters = strategy.most_clusters if number is None else number.chosen
    weights = np.maximum(fine.counts, 0.01 * n_rows / len(fine.means))
    centers = clustered(fine.means, weights, n_clusters, strategy.rng, n_init=N_INIT)
    return Found(space, fine, number, centers, weight_of(fine.means, weights, centers))


# Solutions.


class Solution(NamedTuple):
    """Centers, and their expected distance from where a Lloyd step without noise would move them."""

    centers: Floats  #: The centers, in the coordinates of the frame.
    #: The expected variance of an entry of the next offsets, by cluster and by group of directions: of the search,
    #: other known ones, and the rest.
    signal: Floats
    #: The variance of the error in an entry of the centers, in the same form: ``signal``, or what the last step shows
    #: if that is smaller: UNSURE^2 times the sum of its noise's variance and its offset's squared length.
    errors: Floats
    gain: float = math.inf  #: The fraction by which the last step lowered the cost.
    n_steps: int = 0
    #: The comparisons of costs by which this solution was chosen; set only for the best.
    compared: Sequence[Compared] = ()


def best_of_many(
    strategy: SearchStrategy,
    space: Space,
    cells: NoisyCells,
    n_clusters: int,
    *,
    last: Sequence[str] = ("sums", "counts"),
) -> Generator[Round, Total, Solution]:
    """Let many solutions take Lloyd steps in the same rounds, and drop those that cost more; return the best.

    ``last`` names the parts of the budget that pay for the last step; without parts there is no last step.
    """
    rows = cells.drawn(n_clusters, strategy.rng)
    norm = space.units.of_both(REACH, WEIGHT * REACH, n_clusters)
    excess = excess_of_a_step(
        space.n_columns, n_clusters, norm, strategy.noise_of("tries_1") / space.units.number
    )
    work = MOST_WORK / (space.n_rows * space.n_columns)
    wanted = int(min(max(min(TOLERATED / excess if excess else math.inf, work), 1), MOST_SOLUTIONS))
    found = best_solutions(cells, rows, n_clusters, wanted, strategy.rng)
    elsewhere = FIRST_OUTSIDE * space.total / space.n_columns
    signal = np.tile(
        [FIRST_INSIDE * float((space.spread**2).mean()), elsewhere, elsewhere], (n_clusters, 1)
    )
    solutions = [Solution(one @ space.inside.T, signal, signal) for one in found]
    compared: list[Compared] = []
    for level in range(1, N_LEVELS + 1):
        parts = [f"tries_{level}"] * STEPS_EACH
        if len(solutions) == 1:
            solutions = yield from _steps_of_one(
                strategy, space, rows, solutions, [*parts, "costs"]
            )
            continue
        for part in parts:
            solutions = yield from _steps(strategy, space, rows, solutions, part)
        n_kept = 1 if level == N_LEVELS else -(-len(solutions) // PART_KEPT)
        compared.append((yield from _compared(strategy, space, rows, solutions)))
        solutions = [
            solutions[index] for index in np.argsort(compared[-1].costs, kind="stable")[:n_kept]
        ]
    solutions = yield from _steps_of_one(strategy, space, rows, solutions, ["steps"] * N_STEPS)
    if last:
        solutions = yield from _steps(strategy, space, rows, solutions, *last)
    return solutions[0]._replace(compared=compared)


def more_steps(
    strategy: SearchStrategy,
    space: Space,
    cells: NoisyCells,
    solution: Solution,
    parts: Sequence[str],
) -> Generator[Round, Total, Solution]:
    """Take further Lloyd steps of one solution: one step for each of ``parts``, which pays for it."""
    rows, solutions = cells.drawn(len(solution.centers), strategy.rng), [solution]
    for part in parts:
        solutions = yield from _steps(strategy, space, rows, solutions, part)
    return solutions[0]


def _steps_of_one(
    strategy: SearchStrategy,
    space: Space,
    rows: Floats,
    solutions: list[Solution],
    parts: Sequence[str],
) -> Generator[Round, Total, list[Solution]]:
    """Take Lloyd steps of one solution, one for each of ``parts``, until they hardly lower its cost."""
    most = max(2, int(MOST_STEPPED / (space.n_rows * space.n_columns)))
    for part in parts:
        if solutions[0].gain > STILL and solutions[0].n_steps < most:
            solutions = yield from _steps(strategy, space, rows, solutions, part)
    return solutions


def _steps(
    strategy: SearchStrategy, space: Space, rows: Floats, solutions: list[Solution], *parts: str
) -> Generator[Round, Total, list[Solution]]:
    """Take one Lloyd step of each solution in one round, for which ``parts`` pay.

    The last step of a run has two parts: one pays for the sums, the other for the cluster sizes.
    """
    n_clusters, units = len(solutions[0].centers), space.units
    elsewhere = [_left_elsewhere(space, rows, solution) for solution in solutions]
    within = _cost_of_best(space, rows, solutions, elsewhere)
    noise = strategy.noise_of(parts[0], math.sqrt(len(solutions))) / units.number
    weight = 0.0 if len(parts) > 1 else WEIGHT
    excess = excess_of_a_step(
        space.n_columns, n_clusters, units.of_both(REACH, weight * REACH, n_clusters), noise
    )
    drawn = [
        DrawnOffsets.of(rows, solution.centers @ space.inside, left)
        for solution, left in zip(solutions, elsewhere, strict=True)
    ]
    bound = space.norm_of_offsets(drawn[0].reach(within, excess), within)
    if weight:
        question = SearchClient.steps.asked(
            np.stack([one.centers for one in solutions]),
            frame=space.frame,
            bound=bound,
            weight=weight * bound,
        )
        at_most = math.sqrt(len(solutions)) * units.of_both(bound, weight * bound, n_clusters)
        (both,) = received = yield strategy.summed(question, *parts, at_most=(at_most,))
        sums, counts = both[..., :-1], both[..., -1] / (weight * bound)
        of_sums, of_counts = received.noise[0], received.noise[0] / (weight * bound)
    else:
        question = SearchClient.offset_sums.asked(
            solutions[0].centers, np.zeros((0, 0)), frame=space.frame, bound=bound
        )
        of_means = units.of_offsets(bound), units.of_counts(n_clusters)
        received = yield strategy.summed(question, *parts, at_most=of_means)
        sums, counts = (array[None] for array in received)
        of_sums, of_counts = received.noise
    scale, moved = units.rows_each, []
    for solution, of_drawn, of_one, sizes in zip(
        solutions, drawn, scale * sums, scale * counts, strict=True
    ):
        divisor = np.maximum(
            sizes, max(0.3 * scale * of_counts, space.n_rows / n_clusters / 20, 1.0)
        )
        variance = (scale * of_sums / divisor) ** 2
        offsets, signal = filtered(
            of_one / divisor[:, None],
            variance,
            space.directions,
            _n_signal(space, n_clusters),
            solution.signal,
        )
        # Add what clipping is estimated to have taken from the means.
        offsets = offsets + of_drawn.lost(bound) @ space.inside.T
        gain = float(divisor @ (offsets**2).sum(axis=1)) / (space.n_rows * within)
        centers = clip_rows(solution.centers + offsets, space.frame.radius)
        accounted = variance[:, None] + (offsets**2).sum(axis=1, keepdims=True)
        errors = np.minimum(signal, UNSURE**2 * accounted)
        moved.append(Solution(centers, signal, errors, gain, solution.n_steps + 1))
    return moved


def _left_elsewhere(space: Space, rows: Floats, solution: Solution) -> float:
    """Estimate a row's mean squared distance from its center in directions outside the search.

    Centers start with no part in these directions, and gain one in their steps. The squared norm of this part, less its
    expected error, is what the rows no longer vary by.
    """
    centers = solution.centers
    inside = centers @ space.inside
    n_signal = _n_signal(space, len(centers))
    n_known = space.directions.shape[1]
    n_entries = np.array(
        [
            n_signal - min(space.n_inside, n_signal),
            n_known - max(space.n_inside, n_signal),
            space.n_columns - n_known,
        ]
    )
    found = (centers**2).sum(axis=1) - (inside**2).sum(axis=1) - solution.signal @ n_entries
    sizes = np.bincount(nearest_center(rows, inside), minlength=len(centers)) / len(rows)
    return max(space.elsewhere - float(sizes @ np.maximum(found, 0.0)), 0.0)


def _n_signal(space: Space, n_clusters: int) -> int:
    """Return in how many directions centers may differ: k centers differ in fewer than k directions."""
    return min(max(space.n_inside, space.n_above), n_clusters)


def _cost_of_best(
    space: Space, rows: Floats, solutions: list[Solution], elsewhere: list[float]
) -> float:
    """Estimate, from drawn rows, the mean squared distance of a row from its center in the best solution.

    ``elsewhere`` has each solution's part of this distance in directions outside the search.
    """
    places = np.stack([solution.centers @ space.inside for solution in solutions])
    mean_square = float((rows**2).sum(axis=1).mean())
    _, squared = nearest_of_each(rows, places)
    cost = float((squared.mean(axis=1) + elsewhere).min())
    all_rows = max(space.total, space.total_inside)
    return max(all_rows - space.elsewhere - (mean_square - cost), LEAST_COST * all_rows)


def _compared(
    strategy: SearchStrategy, space: Space, rows: Floats, solutions: list[Solution]
) -> Generator[Round, Total, Compared]:
    """Compare solutions by their noisy costs, which are known up to a constant that is the same for all solutions."""
    units = space.units
    centers = np.stack([solution.centers for solution in solutions])
    places = [solution.centers @ space.inside for solution in solutions]
    noise = units.rows_each * strategy.noise_of("costs")
    clip = bound_of_costs(rows, places, space.n_rows, noise, units.of_vectors)
    question = SearchClient.costs.asked(centers, frame=space.frame, bound=clip.bound)
    (costs,) = received = yield strategy.summed(question, "costs", at_most=(clip.norm,))
    of_a_row = (units.rows_each * costs + clip.lost) / space.n_rows
    return Compared(centers, of_a_row, units.rows_each * received.noise[0] / space.n_rows)


# Computations of the server on noisy sums. No function here sees a row.


def class_of_most(classes: Floats, n_units: float, deviation: float) -> int:
    """Return the nearest class of distances beyond which only a few rows lie, or nothing but noise.

    Counts of a few neighboring classes are added up. The sum over all farther classes would add up more noise.
    """
    within = np.cumsum(classes)
    for index in range(len(classes) - 1):
        n_looked_at = min(index + 1, N_NEIGHBORING)
        outside = within[index] - (within[index - n_looked_at] if n_looked_at <= index else 0.0)
        if outside > max(PART_OUTSIDE * n_units, CLEAR_CLASS * deviation * math.sqrt(n_looked_at)):
            return index
        if within[index] >= n_units / 2:
            return index
    return len(classes) - 1


def filtered(
    offsets: Floats, variance: Floats, directions: Floats, n_inside: int, signal: Floats
) -> tuple[Floats, Floats]:
    """Shrink noisy offsets of centers, and return the variance that is expected of the next offsets.

    The rule is that of a Kalman filter: an offset z with noise of variance v becomes ``z s / (s + v)``, where s is the
    variance of true offsets. The center is then uncertain by the variance ``s v / (s + v)``, and the next step would
    move it farther, by a part of this step's offset. s is the mean, weighted by precision, of the variance that was
    expected (``signal``) and the variance that the offsets show beyond their noise. It is at least LEAST_KEPT of the
    former, or the largest variance with which the offsets are no more than UNSURE standard deviations too small,
    whichever is less. Few offsets rule out no variance.
    """
    n_columns, n_known = directions.shape
    turned, expected = offsets @ directions, signal.copy()
    rest = offsets - turned @ directions.T if n_known < n_columns else np.zeros((len(offsets), 0))
    parts = (turned[:, :n_inside], turned[:, n_inside:n_known], rest)
    sizes = (n_inside, n_known - n_inside, n_columns - n_known)
    for index, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        if not part.size:
            continue
        noise = variance[:, None] * (size / part.shape[1])
        known = signal[:, index, None]
        above, weight = part**2 - noise, (known + noise) ** -2
        of_direction = ((weight * above).sum(axis=0) / weight.sum())[None, :]
        seen = (of_direction + above.mean(axis=1, keepdims=True)) / 2
        # The mean of m squares has the variance 2 (s + v)^2 / m. The standard deviation of the expected variance is
        # taken to be as large as this variance itself.
        n_squares = 2.0 / (float((weight**2).sum()) / float(weight.sum()) ** 2 + 1.0 / max(size, 1))
        precision = n_squares / 2.0 * weight
        # The mean of the squares can be UNSURE of its standard deviations below s + v. Then s may be as large as this.
        lowest = 1.0 - UNSURE * math.sqrt(2.0 / n_squares)
        possible = (
            (np.maximum(seen, 0.0) + noise) / lowest - noise
            if lowest > 0
            else np.full_like(seen, math.inf)
        )
        found = np.maximum(
            (precision * seen + known**-1) / (precision + known**-2),
            np.minimum(LEAST_KEPT * known, possible),
        )
        gain = found / (found + noise)
        expected[:, index] = (gain * (noise + GOES_ON * found)).mean(axis=1)
        part *= gain
    moved = turned @ directions.T
    return (moved + rest if rest.size else moved), np.maximum(
        expected, np.finfo(float).tiny ** 0.25
    )


# The budget.


def parts_of_cells(
    client: type[SearchClient],
    *,
    center_rows: bool = True,
    counts_rows: bool,
    costs: Mapping[str, float] = COSTS_OF_CELLS,
) -> dict[str, Part]:
    """Return the parts of a budget that pay for finding where rows lie and for the cells."""
    answers: dict[str, tuple[Any, int]] = {
        "row_sum": (client.row_sum, 2 * int(center_rows)),
        "row_count": (client.row_count, int(counts_rows)),
        "distances": ((client.distances, client.moment_size), 1),
        "second_moment": (client.second_moment, 1),
        "cells": (client.cells, CELL_ROUNDS),
    }
    return {
        name: gaussian_part(answer, costs[name], at_most)
        for name, (answer, at_most) in answers.items()
    }


def parts_of_solutions(client: type[SearchClient], *, has_last: bool = True) -> dict[str, Part]:
    """Return the parts that pay for :func:`best_of_many`; in the last step, cluster sizes have a part of their own."""
    answers: dict[str, tuple[Any, int]] = {
        **{f"tries_{level}": (client.steps, STEPS_EACH) for level in range(1, N_LEVELS + 1)},
        "costs": ((client.costs, client.steps), N_LEVELS),
        "steps": (client.steps, N_STEPS),
    }
    if has_last:
        answers |= {"sums": (client.offset_sums, 1), "counts": (client.offset_sums, 1)}
    return {
        name: gaussian_part(answer, COSTS[name], at_most)
        for name, (answer, at_most) in answers.items()
    }


def gaussian_part(answers: Any, cost: float, at_most: int) -> Part:
    """Return the part of a budget for at most ``at_most`` Gaussian releases that together cost ``cost``.

    c releases with noise multiplier s cost ``w = c / s^2``. The epsilon of one release is about proportional to 1 / s,
    so the fraction of all c releases is ``c / s = sqrt(w c)``.
    """
    return Part(answers, math.sqrt(cost * at_most), at_most)


# The client half.


def class_reach(index: int) -> float:
    """Return how far a class of distances reaches, as a fraction of the radius."""
    return float(2.0 ** (-index / 2))


class SearchClient(StartsClient):
    """The client half of the search."""

    @by_row(row_count=Sent("number of rows", counts_rows=True))
    def row_count(rows: Rows) -> Term:
        """Count the rows."""
        return count(rows)

    @by_row(row_sum=Sent("sum of the rows, clipped", has_columns=True))
    def row_sum(rows: Rows) -> Term:
        """Return the sum of the rows in the frame."""
        return total(rows)

    @by_row(
        distances=Sent("number of rows by distance from the origin, in classes", counts="every row")
    )
    def distances(rows: Rows) -> Term:
        """Return the number of rows in each class of distances, from the farthest class to the nearest."""
        bound, _ = ball_in_units(rows.radius, 2, rows.exponent)
        limits = np.floor(bound**2 * np.ldexp(1.0, -np.arange(N_CLASSES - 1, 0, -1)))
        # Integers are compared, so that a row's class is the same on every machine. The nearest class is the last.
        norms = np.asarray(integer_norms(rows.integers, 2))
        inside = np.searchsorted(limits, norms, side="left")
        return at(N_CLASSES - 1 - inside, N_CLASSES)

    @finishes(
        StartsClient.second_moment,
        distances=Sent("size of the client's second moment, as one of many classes", counts="once"),
    )
    def moment_size(totals: tuple[Term, ...], n_rows: Integers) -> Term:
        """Return for each client the class of a distance: the root of the Frobenius norm of its mean outer product."""
        (moment,) = totals
        matrices = triangle_to_symmetric(moment.array.values) / np.maximum(n_rows, 1)[:, None, None]
        # 20 bits keep the sum of squares exact on every machine, and so the comparison with powers of 4.
        entries = np.trunc(matrices * (2.0**20 / moment.bound.l2))
        squares = np.einsum("ijk,ijk->i", entries, entries)
        # The class is the number of times that the norm can be doubled without exceeding the square of the radius.
        index = (squares[:, None] <= 4.0 ** np.arange(20)).sum(axis=1)
        return one_class(
            np.where(squares == 0, N_CLASSES - 1, np.minimum(index, N_CLASSES - 1)), N_CLASSES
        )

    @by_row(
        sums="sum of the rows' offsets from their nearest centers, clipped",
        counts=Sent("number of rows nearest to each center", counts="every row", sizes=True),
    )
    def offset_sums(
        rows: Rows, centers: Floats, directions: Floats, *, bound: float
    ) -> tuple[Term, Term]:
        """Return the sums of clipped offsets and the numbers of rows at each center, in public directions."""
        rows = rows.projected(directions)
        nearest = rows.nearest(centers)
        return at(nearest, len(centers), rows.offsets(centers, nearest, bound)), at(
            nearest, len(centers)
        )

    @by_row(
        cells="sum of the rows' offsets from their nearest points, clipped, and their number, weighted"
    )
    def cells(
        rows: Rows, points: Floats, directions: Floats, *, bound: float, weight: float
    ) -> Term:
        """Return the sums of clipped offsets at each point, in public directions.

        The last column has the numbers of rows, times the weight.
        """
        rows = rows.projected(directions)
        nearest = rows.nearest(points)
        return at(nearest, len(points), rows.offsets(points, nearest, bound).with_constant(weight))

    @by_row(
        steps="sums of the rows' offsets from the nearest center of each solution, clipped, and numbers, weighted"
    )
    def steps(rows: Rows, solutions: Floats, *, bound: float, weight: float) -> Term:
        """Return for each solution the sums of clipped offsets; the last column has weighted numbers of rows."""
        n_solutions, n_points, n_columns = solutions.shape
        sums = []
        for points in solutions:
            nearest = rows.nearest(points)
            offsets = rows.offsets(points, nearest, bound).with_constant(weight)
            sums.append(at(nearest, n_points, offsets).reshaped(n_points * (n_columns + 1)))
        words = "a row adds an offset of at most this norm to each solution"
        return side_by_side(sums, words=words).reshaped(n_solutions, n_points, n_columns + 1)

    @by_row(costs="costs of the rows under each solution, less their mean, clipped")
    def costs(rows: Rows, solutions: Floats, *, bound: float) -> Term:
        """Return for each solution the sum of the rows' squared distances from the nearest centers.

        From each row's distances their mean over the solutions is subtracted, and the rest is clipped to ``bound``.
        """
        return costs_beside_mean(rows, solutions, bound)
