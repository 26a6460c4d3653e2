"""PrivateKMeans: private k-means where the server has no public rows.

It finds small cells in the subspace of FedDP-KMeans (ICML 2025), searches them for many solutions, and lets the best of
these take Lloyd steps on clipped offsets side by side (:mod:`.common.private_search`). At client level it finds small
clusters by the votes on candidates of PE-means (arXiv 2606.00342, 2026).

docs/shape.md shows how a ``yield`` here becomes a round of Flower.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.data.frames import is_table
from flower_fedclust.engine import ClippedStrategy, Entry, Protocol, Sum, parameter
from flower_fedclust.engine.by_row import by_row, finishes
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Outcome, ReleasedSizes, Round, Sent, Total
from flower_fedclust.exact.grid import ball_in_units, integer_norms
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.sums import directions_onto_grid, triangle_to_symmetric
from flower_fedclust.exact.terms import Term, at, costs_beside_mean, count, one_class, side_by_side, total
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.checks import check_scale, checked_point, checked_rows
from flower_fedclust.numerics.kmeans import centers_of, cluster_sums, nearest_center, squared_distances
from flower_fedclust.numerics.validity import ClusterNumber, ClusterSums, numbers_of, stability_of
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.releases import PRIVACY_UNITS, PrivacyUnit
from flower_fedclust.strategies.common import private_search as search
from flower_fedclust.strategies.common.clusters import ClusterClient, lloyd_steps
from flower_fedclust.strategies.common.frame import FRAME_ROUNDS, FrameClient, frame_of_rows
from flower_fedclust.strategies.common.many_starts import (
    START_ROUNDS,
    StartsClient,
    best_start,
    cells_of_rows,
    sketch_of,
    spectrum_of,
)
from flower_fedclust.strategies.common.private_search import NoisyCells, directions_and_cells, dropped_light

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: What each part of the budget costs: the inverse squared noise multipliers of its Gaussian releases, which add up.
#: Chosen on generated mixtures, wine, breast cancer and digits.
COSTS: Mapping[str, float] = {
    "row_sum": 0.03,
    "row_count": 0.01,
    "distances": 0.03,
    "second_moment": 0.20,
    "votes": 0.30,
    "fine_sums": 0.20,
    "fine_counts": 0.02,
    "sums": 0.20,
    "counts": 0.02,
}
#: The same for the search, whose solutions take steps side by side.
SEARCH_COSTS: Mapping[str, float] = {
    "row_sum": 0.02,
    "row_count": 0.005,
    "distances": 0.01,
    "second_moment": 0.22,
    "cells": 0.25,
    "tries_1": 0.24,
    "tries_2": 0.03,
    "tries_3": 0.03,
    "costs": 0.06,
    "steps": 0.05,
    "sums": 0.29,
    "counts": 0.02,
}
#: The most rounds for cells, and steps of the best solution before the last ones.
CELL_ROUNDS, N_STEPS = 3, 5
#: How wide the first points of cells are, beside the rows; how far from a mean it is split, beside the rows of a cell;
#: cells of fewer rows, in deviations of their noise, are dropped; the least variance within cells, beside that of rows.
FIRST_CELLS, SPLIT, LIGHT_CELL, LEAST_WITHIN = 0.8, 0.35, 3.0, 0.03
#: Of the signal that was expected of a step, at least this part is.
LEAST_KEPT = 0.1
#: What is expected of the first step in the directions of the search, beside the rows' variance there, and elsewhere,
#: beside their mean variance; and which part of a step the next one goes.
FIRST_INSIDE, FIRST_OUTSIDE, GOES_ON = 0.1, 0.2, 0.3
#: The time of a run bounds the entries of rows by the number of solutions, of directions of the search, and of cells.
MOST_WORK, MOST_PROJECTED, MOST_CELL_PRODUCTS = 2.5e7, 5e8, 2e9
#: There are at most so many cells for each cluster, if these are more than MOST_CELLS.
CELLS_FOR_EACH = 6
#: The same for the steps of one solution, of which there are at least two.
MOST_STEPPED = 1e8
#: A step that lowers the cost by less than this part is the last but the last ones.
STILL = 3e-5

#: The expected votes for one candidate, in standard deviations of their noise.
DEVIATIONS_A_CANDIDATE = 0.8
#: The smallest and the largest number of candidates for each cluster.
FEWEST_CANDIDATES, MOST_CANDIDATES = 4, 40
#: The fraction of new candidates in each generation that is drawn at random.
PART_FRESH = 0.1
#: The last generation ends with this many centers for each cluster.
FINER = 2
#: The parts of the budget for the last step inside the subspace.
FINE = ("fine_sums", "fine_counts")
#: Sums of cells are clear if a quarter of a cluster has more rows than this many deviations of the noise of votes over
#: the root of the number of directions.
CLEAR = 16.0
#: A row in a cell counts as much as an offset of this part of the bound.
WEIGHT = 0.4
#: Cells with fewer rows are dropped, in deviations of the noise of their sums by the bound of an offset.
LIGHT = 4.0
#: Cells are split no further if that leaves more than this part of the distances within them.
SMALL_GAIN = 0.9
#: No other step is needed if the squared noise of the means is less than this part of the distances within cells.
NO_NOISE = 1e-4
#: How far new points are from the mean that they split, as a fraction of the spread within cells.
BESIDE = 0.25
#: Offsets are clipped to this many root mean square distances of a row from its center.
OFFSET_REACH = 1.3
#: At client level, the bound of the mean offset is this many times its typical norm.
CLIENT_MARGIN = 1.5
#: Restarts of the k-means of candidates, in each generation and in the last one.
N_INIT, N_INIT_LAST = 3, 10
#: Rows are counted by distance in this many classes; each reaches sqrt(1/2) times as far as the one before.
N_CLASSES = 16
#: The fraction of the rows that may lie outside the ball in which the second moment is taken.
PART_OUTSIDE = 0.1
#: A small cluster counts if its number of rows exceeds this many standard deviations of the noise.
DEVIATIONS = 2.0
#: With noise and fewer small clusters than this, even one Gaussian would seem to have separate clusters.
FEWEST = 8
#: Without noise: the most Lloyd steps from the best start.
N_LAST_ROUNDS = 20
#: How many rows show how far a row is from the nearest of the first points.
CODED_ROWS = 2000
#: How many other runs are imitated, and for how many rows: at least so many, and so many for each small cluster.
N_OTHER_RUNS, LEAST_DRAWN, DRAWN_FOR_EACH = 10, 1000, 20
#: With many small clusters each run says more: fewer runs if they are more than this in all, but no fewer than two.
MOST_IMITATED, FEWEST_OTHER_RUNS = 500, 2
#: How many reference samples of one Gaussian are drawn, and their largest size.
N_REFERENCES, REFERENCE_ROWS = 3, 20_000


@dataclass(frozen=True)
class Space:
    """Where the rows lie, as far as the noise shows it."""

    frame: Frame
    n_rows: float
    values: Floats  #: The variances along the directions, the largest first, as far as noise shows them.
    directions: Floats  #: Eigenvectors of the noisy second moment, of shape (n_columns, n_directions).
    n_above: int  #: How many of them stand above the noise.
    n_inside: int  #: How many of these are used: no more than there are clusters.
    spread: Floats  #: The standard deviations along these.
    total: float  #: The mean squared norm of a row.
    noise: float = 0.0  #: The standard deviation of the noise in a variance along a given direction.

    @property
    def variances(self) -> Floats:
        """The variances of the rows along all directions, without what the noise adds to the largest."""
        n_columns = len(self.frame.origin)
        return variances_of(self.values, self.total, self.noise * math.sqrt(2 * n_columns), n_columns)

    @property
    def inside(self) -> Floats:
        """The directions that are used, on the grid."""
        return directions_onto_grid(self.directions[:, : self.n_inside])


class PrivateKMeans(ClippedStrategy):
    """Private k-means without public rows: small cells, many solutions, and Lloyd steps on clipped offsets.

    In each generation the server sends points, and receives noisy sums of the offsets of the rows nearest to each. The
    next points lie where the rows are. From these cells the server finds solutions of k-means, as many as noise can
    tell apart. They take Lloyd steps in the same rounds, and the ones that cost more drop out. A client's rows,
    distances and centers never leave it.

    Parameters
    ----------
    n_clusters : int, "auto", or two int
        The number of clusters; or the smallest and the largest number, between which the run chooses at no further
        cost. "auto" is (2, 16).
    max_norm : float, optional
        The Euclidean distance from ``origin`` to which every client clips its rows. Needed with an epsilon, unless
        there is ``server_data`` or a schema. It is public, and must not be computed from the data. It may be generous:
        the run finds privately how far the rows really reach.
    epsilon : float or None, default=1.0
        The privacy budget of the whole run. None means no noise and no guarantee: the run is then the same as that of
        :class:`FederatedKMeans`, clips no row, and uses no parameter but ``n_clusters`` and ``server_data``.
    privacy_unit : "record" or "client", default="record"
        Whether the guarantee covers a row or everything that one client contributes. For clients, an epsilon of 0.5 or
        less, or a few hundred clients, can be too little: clusters merge.
    rows_per_client : int, default=50
        At client level: the publicly known, approximate number of rows of a client. It sets the bounds to which clients
        clip; a wrong value costs accuracy, not privacy.
    origin : array-like of shape (n_columns,), optional
        A public point about which rows are clipped; 0 by default. A Series is matched to the columns by its index.
    center_rows : bool, default=True
        Whether the run first finds the noisy mean of the rows and measures everything from there. If False, the origin
        should lie near the middle of the rows.
    n_rows : int, optional
        The number of all rows, if it is public; otherwise the budget pays for a noisy count.
    server_data : array-like of shape (n_server_rows, n_columns), optional
        Public rows, which become candidates. Nothing protects them. Their mean is the origin and their radius is
        max_norm, unless these are given.
    n_rounds : int, default=4
        The most generations of points; of cells there are no more than three.
    n_lloyd_rounds : int, default=1
        Lloyd steps at the end, in all columns.
    shrink_centers : bool, default=True
        Whether noisy offsets of centers are shrunk according to their noise, which costs no privacy.

    References
    ----------
    "PE-means: Improved Differentially Private k-means Clustering through Private Evolution", arXiv 2606.00342;
    "Differentially private federated k-means with server-side data", ICML 2025, Algorithm 1, steps 1 and 3.
    """

    entries = (
        Entry(
            "private-kmeans",
            "private k-means without public rows, by sums or votes and clipped Lloyd steps",
            "after PE-means 2026 and FedDP-KMeans 2025",
            example={"max_norm": 3.0},
            finds="round",
        ),
    )
    promises = PRIVACY_UNITS

    n_clusters: Any = parameter(kw_only=False)
    epsilon: float | None = parameter(1.0, above=0, at_most=1000)
    privacy_unit: PrivacyUnit = parameter("record")
    rows_per_client: int = parameter(50, at_least=1)
    origin: ArrayLike | None = parameter(None)
    center_rows: bool = parameter(True)
    n_rows: int | None = parameter(None, at_least=1)
    server_data: ArrayLike | None = parameter(None)
    n_rounds: int = parameter(4, at_least=1)
    n_lloyd_rounds: int = parameter(1, at_least=0)
    shrink_centers: bool = parameter(True)

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first invalid parameter."""
        numbers_of(self.n_clusters)
        super().check_parameters()
        if not is_table(self.server_data):
            self._check_server_data()
        if self.origin is not None:
            origin = checked_point("origin", self.origin)
            if self.server_data is not None and len(origin) != np.asarray(self.server_data).shape[1]:
                raise ValueError("origin and server_data have different numbers of columns.")

    def check_complete(self) -> None:
        """Raise a ValueError if there is noise and nothing bounds the rows."""
        if self.server_data is None and self.epsilon is not None and self.max_norm is None:
            raise ValueError(
                "max_norm is missing. With an epsilon, clients clip rows to it: say how far rows can be from the "
                "origin, as is known without looking at them (--set max_norm=30 on the command line), give a schema "
                "of your table, or give public rows as server_data."
            )
        self._check_server_data()

    def _check_server_data(self) -> None:
        if self.server_data is not None:
            rows = checked_rows(self.server_data, owner="server_data")
            check_scale(rows, "server_data")
            if self.max_norm is None and (rows == rows[0]).all():
                raise ValueError("server_data: all rows are equal, so that their radius is 0; give rows that differ.")

    @property
    def released_sizes(self) -> ReleasedSizes | None:
        """The sizes in the last Lloyd step; None without one, as earlier sizes belong to small clusters."""
        return super().released_sizes if self.n_lloyd_rounds else None

    # The server half.

    def protocol(self) -> Protocol:
        """Find where the rows lie, let them vote, and move the centers."""
        if self.epsilon is None:
            return (yield from self._without_noise())
        if self._searches:
            return (yield from self._searched())
        space, fine, number, inside, weights = yield from self._found()
        centers = inside @ space.inside.T
        for _ in range(self.n_lloyd_rounds):
            within = self._within(space, centers, weights, inside=False)
            moved = yield from self._lloyd_step(space, centers, within, ("sums", "counts"), inside=False)
            centers, weights = moved.means, moved.counts
        agreement = agreement_of_another_run(fine, space.spread, inside, self.rng)
        return Outcome(KMeansModel(space.frame.leave(centers)), number=number, agreement=agreement)

    def _found(self) -> Generator[Round, Total, Found]:
        """Find where the rows lie, small clusters, and centers in the subspace."""
        frame, n_rows = yield from self._frame()
        space = yield from self._space(frame, n_rows)
        fine = yield from (self._cells(space) if self._has_clear_sums(space) else self._votes(space))
        # Against a Gaussian as wide as the rows may be: too narrow a one would show clusters where there are none.
        widest = np.sqrt(space.spread**2 + space.noise)
        number = self._chosen_number(fine._replace(total=float((widest**2).sum())), widest)
        weights = np.maximum(fine.counts, 0.01 * space.n_rows / len(fine.means))
        n_clusters = self.most_clusters if number is None else number.chosen
        inside = clustered(fine.means, weights, n_clusters, self.rng, n_init=N_INIT_LAST)
        return Found(space, fine, number, inside, weight_of(fine.means, weights, inside))

    # The search.

    @property
    def _searches(self) -> bool:
        """Whether solutions take steps side by side: not at client level, and not where another strategy goes on."""
        return self.privacy_unit == "record" and self.n_lloyd_rounds > 0

    def _searched(self) -> Protocol:
        """Find cells, many solutions of k-means on them, and the best of these by steps that they take together."""
        frame, n_rows = yield from self._frame()
        space = yield from self._space(frame, n_rows)
        known, most = len(space.variances), self.most_clusters
        elsewhere = max(space.total - float(space.variances.sum()), 0.0)
        noise = self.noise_of("cells") / n_rows
        products = n_rows * len(frame.origin)
        most_inside = int(min(max(MOST_PROJECTED / products, most), known))
        most_cells = min(
            max(CELLS_FOR_EACH * most, search.MOST_CELLS), max(MOST_CELL_PRODUCTS / products, FEWEST_CANDIDATES * most)
        )
        fewest_cells = math.ceil(search.FEWEST_CELLS * most)
        lost = elsewhere + float(space.variances[most_inside:].sum())
        n_inside, n_cells = directions_and_cells(
            space.variances[:most_inside], lost, noise, fewest_cells, int(most_cells)
        )
        n_inside = max(n_inside, min(space.n_above, most))
        space = replace(space, n_inside=n_inside, spread=np.sqrt(space.variances[:n_inside]))
        cells = yield from self._noisy_cells(space, n_cells)
        fine = self._small_clusters(space, cells)
        number = self._chosen_number(fine, space.spread)
        k = most if number is None else number.chosen
        rows = cells.drawn(k, self.rng)
        best = yield from self._best_of_many(space, cells, rows, k)
        again = search.repeated(
            cells,
            best.centers,
            best.signal[:, :2],
            space.inside,
            space.spread**2,
            elsewhere + float(space.variances[n_inside:].sum()),
            self.rng,
        )
        agreement = agreement_of_another_run(fine, space.spread, best.centers @ space.inside, self.rng)
        model = KMeansModel(space.frame.leave(best.centers))
        return Outcome(model, number=number, agreement=agreement, again=again)

    def _noisy_cells(self, space: Space, n_cells: int) -> Generator[Round, Total, NoisyCells]:
        """Return noisy cells: each round drops cells of few rows, and splits cells of many."""
        variances, most = space.spread**2, self.most_clusters
        points = self.rng.standard_normal((n_cells, space.n_inside)) * space.spread * FIRST_CELLS
        points = self._with_public(space, points)
        within, former = variances, None
        for generation in range(self._n_cell_rounds):
            bound = self._norm_of_offsets(space, search.CELL_REACH, float(within.sum()))
            (both,) = received = yield self._cell_round(space, points, bound, search.CELL_WEIGHT, "cells")
            of_sums, of_counts = received.noise[0], received.noise[0] / (search.CELL_WEIGHT * bound)
            counts = both[:, -1] / (search.CELL_WEIGHT * bound)
            divisor = np.maximum(counts, max(0.3 * of_counts, space.n_rows / len(points) / 20, 1.0))
            means = clip_rows(points + both[:, :-1] / divisor[:, None], space.frame.radius)
            means, counts = dropped_light(means, counts, of_counts, LIGHT_CELL, most)
            parts = counts / counts.sum()
            between = np.maximum(parts @ means**2 - parts @ (of_sums / counts) ** 2, 0.0)
            within = np.maximum(variances - between, LEAST_WITHIN * variances)
            if generation == self._n_cell_rounds - 1:
                break
            former = means, counts
            parents = self.rng.choice(len(means), n_cells - len(means), p=parts)
            beside = SPLIT * np.sqrt(within) * self.rng.standard_normal((len(parents), space.n_inside))
            points = np.concatenate([means, means[parents] + beside])
        if former is not None:
            means, counts = np.concatenate([former[0], means]), np.concatenate([former[1], counts])
        return NoisyCells(means, counts, within, of_sums, of_counts)

    def _cell_round(self, space: Space, points: Floats, bound: float, weight: float, part: str) -> Sum:
        directions = space.inside
        question = PrivateKMeansClient.cells.asked(
            points, directions, frame=space.frame, bound=bound, weight=weight * bound
        )
        return Sum(question, parts=[part])

    def _norm_of_offsets(self, space: Space, reach: float, within: float) -> float:
        """Return the norm to which clients clip offsets: so many typical distances."""
        return min(reach * math.sqrt(max(within, 1e-18 * space.frame.radius**2)), 2 * space.frame.radius)

    def _small_clusters(self, space: Space, cells: NoisyCells) -> NoisyClusters:
        """Merge the cells to small clusters, for the number of clusters and the doubts."""
        clear = cells.counts > LIGHT_CELL * cells.of_counts
        clear[np.argmax(cells.counts)] = True
        means, weights = cells.means[clear], cells.counts[clear]
        n_small = min(FINER * self.most_clusters, max(len(means) // 2, 1))
        small = clustered(means, weights, n_small, self.rng, n_init=N_INIT_LAST)
        # Each of the last two generations counted all rows.
        counts = weight_of(means, weights, small) / 2
        times = math.sqrt(len(means) / n_small) / 2
        total = float((space.spread**2).sum())
        return NoisyClusters(small, counts, total, cells.of_sums * times, cells.of_counts * times)

    def _best_of_many(
        self, space: Space, cells: NoisyCells, rows: Floats, n_clusters: int
    ) -> Generator[Round, Total, Solution]:
        """Let solutions take steps together and drop out by their costs; return the best, in the frame."""
        excess = search.excess_of_a_step(
            len(space.frame.origin), n_clusters, WEIGHT, self.noise_of("tries_1") / space.n_rows
        )
        work = MOST_WORK / (space.n_rows * len(space.frame.origin))
        wanted = int(min(max(min(search.TOLERATED / excess if excess else math.inf, work), 1), search.MOST_SOLUTIONS))
        found = search.best_solutions(cells, rows, n_clusters, wanted, self.rng)
        elsewhere = FIRST_OUTSIDE * space.total / len(space.frame.origin)
        signal = np.tile([FIRST_INSIDE * float((space.spread**2).mean()), elsewhere, elsewhere], (n_clusters, 1))
        solutions = [Solution(one @ space.inside.T, signal) for one in found]
        for level in range(1, search.N_LEVELS + 1):
            parts = [f"tries_{level}"] * search.STEPS_EACH
            if len(solutions) == 1:
                solutions = yield from self._steps_of_one(space, rows, solutions, [*parts, "costs"])
                continue
            for part in parts:
                solutions = yield from self._steps(space, rows, solutions, part)
            n_kept = 1 if level == search.N_LEVELS else -(-len(solutions) // search.PART_KEPT)
            costs = yield from self._costs(space, rows, solutions)
            solutions = [solutions[index] for index in np.argsort(costs, kind="stable")[:n_kept]]
        solutions = yield from self._steps_of_one(space, rows, solutions, ["steps"] * N_STEPS)
        for _ in range(self.n_lloyd_rounds):
            solutions = yield from self._steps(space, rows, solutions, "sums", "counts")
        return solutions[0]

    def _steps_of_one(
        self, space: Space, rows: Floats, solutions: list[Solution], parts: Sequence[str]
    ) -> Generator[Round, Total, list[Solution]]:
        """Take the steps of one solution, until they hardly lower its cost."""
        most = max(2, int(MOST_STEPPED / (space.n_rows * len(space.frame.origin))))
        for part in parts:
            if solutions[0].gain > STILL and solutions[0].n_steps < most:
                solutions = yield from self._steps(space, rows, solutions, part)
        return solutions

    def _steps(
        self, space: Space, rows: Floats, solutions: list[Solution], *parts: str
    ) -> Generator[Round, Total, list[Solution]]:
        """Take one Lloyd step of each solution."""
        n_columns, n_clusters = len(space.frame.origin), len(solutions[0].centers)
        noise = self.noise_of(parts[0], math.sqrt(len(solutions))) / space.n_rows
        weight = 0.0 if len(parts) > 1 else WEIGHT
        excess = search.excess_of_a_step(n_columns, n_clusters, weight, noise)
        total = max(space.total, float((space.spread**2).sum()))
        places = [one.centers @ space.inside for one in solutions]
        of_rows = float((rows**2).sum(axis=1).mean())
        cost = min(float(squared_distances(rows, one).min(axis=1).mean()) for one in places)
        within = max(total - (of_rows - cost), 0.05 * total)
        bound = self._norm_of_offsets(space, search.reach_of_offsets(excess), within)
        if weight:
            question = PrivateKMeansClient.steps.asked(
                np.stack([one.centers for one in solutions]), frame=space.frame, bound=bound, weight=weight * bound
            )
            (both,) = received = yield Sum(question, parts=parts)
            sums, counts = both[..., :-1], both[..., -1] / (weight * bound)
            of_sums, of_counts = received.noise[0], received.noise[0] / (weight * bound)
        else:
            question = PrivateKMeansClient.offset_sums.asked(
                solutions[0].centers, np.zeros((0, 0)), frame=space.frame, bound=bound
            )
            received = yield Sum(question, parts=parts)
            sums, counts = (array[None] for array in received)
            of_sums, of_counts = received.noise
        moved = []
        for solution, of_one, sizes in zip(solutions, sums, counts, strict=True):
            divisor = np.maximum(sizes, max(0.3 * of_counts, space.n_rows / n_clusters / 20, 1.0))
            offsets, variance = of_one / divisor[:, None], (of_sums / divisor) ** 2
            signal = solution.signal
            if self.shrink_centers:
                n_signal = min(max(space.n_inside, space.n_above), n_clusters)  # centers differ in no more
                offsets, signal = filtered(offsets, variance, space.directions, n_signal, signal)
            gain = float(divisor @ (offsets**2).sum(axis=1)) / (space.n_rows * within)
            moved.append(
                Solution(clip_rows(solution.centers + offsets, space.frame.radius), signal, gain, solution.n_steps + 1)
            )
        return moved

    def _costs(self, space: Space, rows: Floats, solutions: list[Solution]) -> Generator[Round, Total, Floats]:
        """Return noisy costs of solutions, up to a number that all have in common."""
        places = [one.centers @ space.inside for one in solutions]
        bound, lost = search.bound_of_costs(rows, places, space.n_rows, self.noise_of("costs"))
        question = PrivateKMeansClient.costs.asked(
            np.stack([one.centers for one in solutions]), frame=space.frame, bound=bound
        )
        (costs,) = yield Sum(question, parts=["costs"])
        return costs + lost

    def _without_noise(self) -> Protocol:
        """Find the centers by k-means of all rows, unclipped, from the best of many starts."""
        frame, n_rows = yield from frame_of_rows()
        public = None if self.server_data is None else frame.enter(np.asarray(self.server_data, dtype=np.float64))
        cells = yield from cells_of_rows(frame, n_rows, self.most_clusters, self.rng, public)
        n_clusters, number = self.most_clusters, None
        if numbers_of(self.n_clusters)[0] < n_clusters:
            points = cells.means @ cells.directions
            fine = clustered(points, cells.counts, FINER * n_clusters, self.rng, n_init=N_INIT_LAST)
            sizes, total = weight_of(points, cells.counts, fine), float((cells.spread**2).sum())
            number = self._chosen_number(NoisyClusters(fine, sizes, total, 0.0, 0.0), cells.spread)
            n_clusters = n_clusters if number is None else number.chosen
        start = yield from best_start(cells, n_clusters, frame, self.rng)
        centers = yield from lloyd_steps(start, frame, N_LAST_ROUNDS, 0.0)
        return Outcome(KMeansModel(frame.leave(centers)), number=number)

    def _chosen_number(self, fine: NoisyClusters, spread: Floats) -> ClusterNumber | None:
        """Choose the number of clusters, if the user asked for that."""
        numbers = numbers_of(self.n_clusters)
        return None if numbers[0] == numbers[1] else chosen_number(fine, spread, numbers, self.rng)

    def _frame(self) -> Generator[Round, Total, tuple[Frame, float]]:
        """Return a frame about the middle of the rows, and the number of rows."""
        radius = self._radius
        frame = Frame(self._origin, radius)
        n_rows = yield from self._n_rows()
        if not self.center_rows:
            return frame, n_rows
        (total,) = received = yield self.summed(PrivateKMeansClient.row_sum.asked(frame=frame), "row_sum")
        mean = clip_rows((total / self._n_units(received, n_rows))[None, :], radius)[0]
        return Frame(frame.origin + mean, radius + float(np.linalg.norm(mean))), n_rows

    def _n_rows(self) -> Generator[Round, Total, float]:
        if self.n_rows is not None:
            return float(self.n_rows)
        if self.privacy_unit == "client":
            return float(self.rows_per_client * len(self.client_names))
        (count,) = yield Sum(PrivateKMeansClient.row_count.asked(), parts=["row_count"])
        return max(float(count), float(self.most_clusters))

    def _space(self, frame: Frame, n_rows: float) -> Generator[Round, Total, Space]:
        """Find the directions in which the rows spread more than the noise does."""
        of_clients = self.privacy_unit == "client"
        # A client's mean outer product is clipped as a whole, and a sketch hides more of it than of a row.
        sketch = {} if of_clients else sketch_of(len(frame.origin), self.rng)
        asked = PrivateKMeansClient.moment_size if of_clients else PrivateKMeansClient.distances
        (classes,) = received = yield Sum(asked.asked(frame=frame), parts=["distances"])
        n_units = self._n_units(received, n_rows)
        reach = frame.radius * class_reach(class_of_most(classes, n_units, received.noise[0]))
        inner = frame if of_clients else Frame(frame.origin, reach)
        question = PrivateKMeansClient.second_moment.asked(frame=inner, **sketch)
        (moment,) = received = yield self.summed(question, "second_moment", at_most=(reach**2,))
        values, directions, n_above, edge, total = spectrum_of(moment, sketch, n_units, received.noise[0])
        n_inside = min(n_above, self.most_clusters)
        spread = np.sqrt(np.maximum(values[:n_inside], edge / 4))
        total = max(total, edge / 4, 1e-12 * frame.radius**2)
        directions, of_variance = np.ascontiguousarray(directions), edge / math.sqrt(2 * len(frame.origin))
        return Space(frame, n_rows, values, directions, n_above, n_inside, spread, total, of_variance)

    def _votes(self, space: Space) -> Generator[Round, Total, NoisyClusters]:
        """Let rows vote for candidates; return the noisy means about centers of the last two generations' votes."""
        k, of_clients = self.most_clusters, self.privacy_unit == "client"
        scale, bound = (self.rows_per_client, _norm_of_parts(self.rows_per_client, k)) if of_clients else (1, 1.0)
        deviation = self.noise_of("votes", bound) * scale
        fewest, most = max(FEWEST_CANDIDATES * k, 8), MOST_CANDIDATES * k
        wanted = space.n_rows / (DEVIATIONS_A_CANDIDATE * deviation) if deviation > 0 else math.inf
        n_candidates = int(min(max(wanted, fewest), most))
        candidates = self._drawn(space, n_candidates)
        former: tuple[Floats, Floats] | None = None
        for generation in range(self.n_rounds):
            question = PrivateKMeansClient.votes.asked(candidates, space.inside, frame=space.frame)
            (votes,) = yield self.summed(question, "votes", at_most=(bound,))
            weights = kept_votes(votes * scale, space.n_rows)
            # The last two generations are used together: each counted all rows, with independent noise.
            points, both = candidates, weights
            if former is not None:
                points, both = np.concatenate([former[0], points]), np.concatenate([former[1], both])
            former = candidates, weights
            is_last = generation == self.n_rounds - 1
            n_centers = max(min(FINER * k, int(np.count_nonzero(both)) // 2, n_candidates // 2), k)
            centers = clustered(points, both, n_centers, self.rng, n_init=N_INIT_LAST if is_last else N_INIT)
            if is_last:
                break
            width = spread_of(points, both, centers)
            n_fresh = int(PART_FRESH * n_candidates)
            n_moved = n_candidates - n_fresh - n_centers
            parents = centers[np.resize(self.rng.permutation(n_centers), n_moved)]
            moved = parents + width * self.rng.standard_normal(parents.shape)
            candidates = np.concatenate([centers, moved, self._drawn(space, n_fresh)])
        within = self._within(space, centers, weight_of(points, both, centers), inside=True)
        # k-means of a few candidates merges or splits neighboring clusters. So the run takes a step with more centers
        # than clusters, and finds the clusters from their noisy means, not from the candidates.
        return (yield from self._lloyd_step(space, centers, within, FINE, inside=True))

    def _has_clear_sums(self, space: Space) -> bool:
        """Tell whether rows are so many that noisy sums say more than noisy votes."""
        if self.privacy_unit == "client":
            return False
        deviations = space.n_rows / (FEWEST_CANDIDATES * self.most_clusters * self.noise_of("votes"))
        return deviations * math.sqrt(space.n_inside) > CLEAR

    def _cells(self, space: Space) -> Generator[Round, Total, NoisyClusters]:
        """Return the noisy means of small cells; each round drops cells of few rows, and splits cells of many."""
        n_cells = FEWEST_CANDIDATES * self.most_clusters
        points, within = code_of_gaussian(space.spread, n_cells, self.rng)
        points = self._with_public(space, points)
        for generation in range(self.n_rounds):
            cells = yield from self._lloyd_step(space, points, within, ("votes",), inside=True)
            deviations = cells.counts * (self._bound(space, within) / cells.of_sums)
            kept = np.argsort(-deviations)[: max(np.count_nonzero(deviations > LIGHT), self.most_clusters)]
            cells = cells._replace(means=cells.means[kept], counts=np.maximum(cells.counts[kept], 1.0))
            points, former, within = cells.means, within, self._within(space, *cells[:2], inside=True)
            if within > SMALL_GAIN * former or generation == self.n_rounds - 1:
                break
            parents = self.rng.choice(len(points), n_cells - len(points), p=cells.counts / cells.counts.sum())
            width = BESIDE * math.sqrt(within / cells.total) * space.spread
            beside = points[parents] + width * self.rng.standard_normal((len(parents), space.n_inside))
            points = np.concatenate([points, beside])
        if space.n_inside * (len(points) * cells.of_sums / space.n_rows) ** 2 < NO_NOISE * within:
            return cells
        return (yield from self._lloyd_step(space, points, within, FINE, inside=True))

    def _drawn(self, space: Space, n_points: int) -> Floats:
        """Return candidates: public rows, as far as there are any, and draws from a Gaussian as wide as the rows."""
        return self._with_public(space, self.rng.standard_normal((n_points, space.n_inside)) * space.spread)

    def _with_public(self, space: Space, points: Floats) -> Floats:
        """Put public rows, as far as there are any, in the place of points."""
        if self.server_data is not None:
            public = space.frame.enter(np.asarray(self.server_data, dtype=np.float64)) @ space.inside
            chosen = public[self.rng.permutation(len(public))[: len(points)]]
            points[: len(chosen)] = chosen
        return points

    def _within(self, space: Space, centers: Floats, weights: Floats, *, inside: bool) -> float:
        """Return the mean squared distance of a row from its center: what the centers leave of the second moment."""
        total = float((space.spread**2).sum()) if inside else space.total
        weights = weights / max(float(weights.sum()), 1.0)
        return max(total - float(weights @ (centers**2).sum(axis=1)), 0.02 * total)

    def _bound(self, space: Space, within: float) -> float:
        """Return the norm to which clients clip offsets."""
        return min(OFFSET_REACH * math.sqrt(max(within, 1e-18 * space.frame.radius**2)), 2 * space.frame.radius)

    def _lloyd_step(
        self, space: Space, centers: Floats, within: float, parts: tuple[str, ...], *, inside: bool
    ) -> Generator[Round, Total, NoisyClusters]:
        """Move the centers by the noisy means of their rows' clipped offsets, inside the subspace or in all columns."""
        frame, n_rows, n_centers = space.frame, space.n_rows, len(centers)
        total = float((space.spread**2).sum()) if inside else space.total
        bound = self._bound(space, within)
        directions = space.inside if inside else np.zeros((0, 0))
        if parts == ("votes",):
            weight = WEIGHT * bound
            question = PrivateKMeansClient.cells.asked(centers, directions, frame=frame, bound=bound, weight=weight)
            (both,) = received = yield Sum(question, parts=parts)
            sums, counts, of_sums = both[:, :-1], both[:, -1] / weight, received.noise[0]
            of_counts = of_sums / weight
        else:
            m = self.rows_per_client
            of_means = (CLIENT_MARGIN * bound / math.sqrt(m), _norm_of_parts(m, n_centers))
            question = PrivateKMeansClient.offset_sums.asked(centers, directions, frame=frame, bound=bound)
            received = yield self.summed(question, *parts, at_most=of_means)
            scale = n_rows / len(self.client_names) if self.privacy_unit == "client" else 1.0
            sums, counts = (array * scale for array in received)
            of_sums, of_counts = (noise * scale for noise in received.noise)
        # Nothing is divided by a count that may be all noise: such a center moves little.
        divisor = np.maximum(counts, max(0.3 * of_counts, n_rows / n_centers / 20, 1.0))
        offsets = sums / divisor[:, None]
        if self.shrink_centers:
            turned = np.eye(space.n_inside) if inside else space.directions
            offsets = shrunk_offsets(offsets, (of_sums / divisor) ** 2, turned, space.n_inside)
        moved = clip_rows(centers + offsets, frame.radius)
        return NoisyClusters(moved, np.maximum(counts, 0.0), total, of_sums, of_counts)

    def _n_units(self, received: Total, n_rows: float) -> float:
        """Return the number of rows in a sum; if the guarantee covers clients, the number of clients."""
        return received.n_clients if self.privacy_unit == "client" else n_rows

    # Parameters and budget.

    @property
    def most_clusters(self) -> int:
        """The number of clusters, or the largest that is tried."""
        return numbers_of(self.n_clusters)[1]

    @property
    def n_protocol_rounds(self) -> int:
        """The rounds for the frame, two for the space, the generations, and the Lloyd steps; others without noise."""
        if self.epsilon is None:
            return FRAME_ROUNDS + START_ROUNDS + N_LAST_ROUNDS
        first = int(self.center_rows) + self._pays_for_count + 2
        if self._searches:
            return (
                first + self._n_cell_rounds + search.N_LEVELS * (search.STEPS_EACH + 1) + N_STEPS + self.n_lloyd_rounds
            )
        return first + self.n_rounds + 1 + self.n_lloyd_rounds

    @property
    def _n_cell_rounds(self) -> int:
        return min(self.n_rounds, CELL_ROUNDS)

    @property
    def expected_columns(self) -> int | None:
        """The width of the server's rows or of the origin, if one of them was given."""
        if self.server_data is not None:
            return int(np.asarray(self.server_data).shape[1])
        return None if self.origin is None else len(np.asarray(self.origin))

    @property
    def _pays_for_count(self) -> bool:
        return self.n_rows is None and self.privacy_unit == "record"

    @property
    def _radius(self) -> float:
        if self.max_norm is not None:
            return self.max_norm
        rows = np.asarray(self.server_data, dtype=np.float64)
        return float(np.linalg.norm(rows - self._origin, axis=1).max())

    @property
    def _origin(self) -> Floats:
        if self.origin is not None:
            return np.asarray(self.origin, dtype=np.float64)
        if self.server_data is not None:
            return np.asarray(np.asarray(self.server_data, dtype=np.float64).mean(axis=0))
        return np.zeros(self.n_columns)

    def parts(self) -> Mapping[str, Part]:
        """Return a part for each round; in rounds for sums, the counts have a small part of their own."""
        client, steps = PrivateKMeansClient, self.n_lloyd_rounds
        if self._searches:
            return self._parts_of_search()
        answers: dict[str, tuple[Any, int]] = {
            "row_sum": (client.row_sum, int(self.center_rows)),
            "row_count": (client.row_count, int(self._pays_for_count)),
            "distances": ((client.distances, client.moment_size), 1),
            "second_moment": (client.second_moment, 1),
            "votes": ((client.votes, client.cells), self.n_rounds),
            "fine_sums": (client.offset_sums, 1),
            "fine_counts": (client.offset_sums, 1),
            "sums": (client.offset_sums, steps),
            "counts": (client.offset_sums, steps),
        }
        return {name: gaussian_part(answer, COSTS[name], at_most) for name, (answer, at_most) in answers.items()}

    def _parts_of_search(self) -> Mapping[str, Part]:
        client, each = PrivateKMeansClient, search.STEPS_EACH
        answers: dict[str, tuple[Any, int]] = {
            "row_sum": (client.row_sum, int(self.center_rows)),
            "row_count": (client.row_count, int(self._pays_for_count)),
            "distances": (client.distances, 1),
            "second_moment": (client.second_moment, 1),
            "cells": (client.cells, self._n_cell_rounds),
            **{f"tries_{level}": (client.steps, each) for level in range(1, search.N_LEVELS + 1)},
            "costs": ((client.costs, client.steps), search.N_LEVELS),
            "steps": (client.steps, N_STEPS),
            "sums": (client.offset_sums, self.n_lloyd_rounds),
            "counts": (client.offset_sums, self.n_lloyd_rounds),
        }
        return {name: gaussian_part(answer, SEARCH_COSTS[name], at_most) for name, (answer, at_most) in answers.items()}

    def privacy_notes(self) -> list[str]:
        """Add what is assumed to be public."""
        notes = super().privacy_notes()
        if self.privacy_unit == "client":
            notes.append("How many clients there are is taken to be public.")
        if self.n_rows is not None:
            notes.append(f"The number of all rows, {self.n_rows}, is taken to be public, and no guarantee covers it.")
        if self.server_data is not None:
            n_rows = len(np.asarray(self.server_data))
            note = f"The {n_rows} server rows are taken to be public, and no guarantee covers them."
            notes.append(f"{note} {self.server_data_origin}".rstrip())
        return notes


def gaussian_part(answers: Any, cost: float, at_most: int) -> Part:
    """Return the part of a budget whose Gaussian releases have this cost together.

    c releases of noise multiplier s cost ``w = c / s^2``. The epsilon of one release is about proportional to 1 / s, so
    that all c take the part ``c / s = sqrt(w c)`` of the sum of epsilons.
    """
    return Part(answers, math.sqrt(cost * at_most), at_most)


def _norm_of_parts(n_rows: int, n_parts: int) -> float:
    """Return the root mean square norm of the fractions when n_rows rows fall into n_parts classes at random."""
    return math.sqrt(1 / n_rows + 1 / n_parts)


# What the server makes of noisy sums. Nothing here sees a row.


def variances_of(values: Floats, total: float, edge: float, n_columns: int) -> Floats:
    """Return what eigenvalues of a noisy second moment are expected to hold of the rows' variance.

    A spike of size s above the mean variance has, with noise, the expected eigenvalue ``s + edge^2 / (4 s)`` (a spiked
    Wigner matrix), so that its direction holds ``sqrt(v^2 - edge^2)`` of what the eigenvalue v shows.
    """
    mean = total / n_columns
    above = np.sqrt(np.maximum(np.maximum(values - mean, 0.0) ** 2 - edge**2, 0.0))
    variances = above + max(total - float(above.sum()), 0.05 * total) / n_columns
    return np.asarray(variances * (total / (float(variances.sum()) + (n_columns - len(values)) * variances.min())))


def class_of_most(classes: Floats, n_units: float, deviation: float) -> int:
    """Return the nearest class beyond which only a few rows lie, or nothing but noise."""
    outside = np.cumsum(classes)
    for index in range(len(classes) - 1):
        noise = 2 * deviation * math.sqrt(index + 1)
        if outside[index] > max(PART_OUTSIDE * n_units, noise) or outside[index] >= n_units / 2:
            return index
    return len(classes) - 1


def kept_votes(votes: Floats, total: float) -> Floats:
    """Keep the largest votes until they add up to a total, and set the rest, which may be noise, to 0 (PE-means)."""
    order = np.argsort(-votes, kind="stable")
    added_up = np.cumsum(np.maximum(votes[order], 0.0))
    n_kept = int(np.searchsorted(added_up, total)) + 1
    kept = np.zeros(len(votes))
    kept[order[:n_kept]] = np.maximum(votes[order[:n_kept]], 0.0)
    return kept


def clustered(points: Floats, weights: Floats, n_clusters: int, rng: np.random.Generator, *, n_init: int) -> Floats:
    """Return centers by weighted k-means; points of weight 0 are used only if too few points have weight."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    heaviest = np.argsort(-weights, kind="stable")[: max(n_clusters, int(np.count_nonzero(weights)))]
    points, weights = points[heaviest], weights[heaviest]
    if len(points) <= n_clusters:
        return np.resize(points, (n_clusters, points.shape[1]))
    if np.count_nonzero(weights) < n_clusters:
        weights = np.maximum(weights, max(float(weights.max()), 1.0) * 1e-6)
    estimator = KMeans(n_clusters, n_init=n_init, max_iter=50, random_state=int(rng.integers(2**31)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # if points coincide, so do centers
        return np.asarray(estimator.fit(points, sample_weight=weights).cluster_centers_)


def code_of_gaussian(spread: Floats, n_points: int, rng: np.random.Generator) -> tuple[Floats, float]:
    """Draw points near which the rows of a Gaussian are, and return the mean squared distance from the nearest.

    The best code for a Gaussian is drawn from a narrower one: its variance in each direction is less by the distortion,
    which n_points points can reduce to ``min(level, spread^2)`` ("reverse water-filling"; Cover and Thomas, "Elements
    of information theory", theorem 10.3.3).
    """
    variance = spread**2
    low, level, high = 0.0, 0.0, float(variance.max())
    for _ in range(60):
        level = (low + high) / 2
        rate = 0.5 * np.log2(np.maximum(variance / max(level, np.finfo(float).tiny), 1.0)).sum()
        low, high = (level, high) if rate > math.log2(n_points) else (low, level)
    points = rng.standard_normal((n_points, len(spread))) * np.sqrt(np.maximum(variance - level, 0.0))
    rows = rng.standard_normal((CODED_ROWS, len(spread))) * spread
    return points, float(((rows - points[nearest_center(rows, points)]) ** 2).sum(axis=1).mean())


def spread_of(points: Floats, weights: Floats, centers: Floats) -> Floats:
    """Return the standard deviation of weighted points about their nearest centers, by column."""
    difference = points - centers[nearest_center(points, centers)]
    return np.asarray(np.sqrt(weights @ difference**2 / max(float(weights.sum()), np.finfo(float).tiny)))


def weight_of(points: Floats, weights: Floats, centers: Floats) -> Floats:
    """Return the total weight of the points nearest to each center."""
    added_up = np.bincount(nearest_center(points, centers), weights=weights, minlength=len(centers))
    return added_up.astype(np.float64, copy=False)


def shrunk_offsets(offsets: Floats, variance: Floats, directions: Floats, n_inside: int) -> Floats:
    """Shrink noisy offsets according to their noise, separately in the data subspace and outside of it.

    An offset z with noise of variance v becomes ``z s / (s + v)``. The signal's variance s is estimated by the mean of
    what the cluster's entries, and the entries of all clusters in this direction, have above v.
    """
    n_columns, n_known = directions.shape
    turned = offsets @ directions
    rest = offsets - turned @ directions.T if n_known < n_columns else None
    for part in (slice(0, n_inside), slice(n_inside, n_known)):
        turned[:, part] = _shrunk(turned[:, part], variance)
    found: Floats = turned @ directions.T
    return found if rest is None else found + _shrunk(rest, variance * (1 - n_known / n_columns))


class Solution(NamedTuple):
    """Centers, and how far they are expected to be from where a step without noise would move them."""

    centers: Floats
    signal: Floats  #: The variance of an entry, by cluster and by part of the directions.
    gain: float = math.inf  #: The part of the cost by which the last step lowered it.
    n_steps: int = 0


def filtered(
    offsets: Floats, variance: Floats, directions: Floats, n_inside: int, signal: Floats
) -> tuple[Floats, Floats]:
    """Shrink noisy offsets of centers by what is expected of them, and return what is expected of the next ones.

    As a Kalman filter does it: an offset z with noise of variance v becomes ``z s / (s + v)``, and what is then unknown
    of the center has the variance ``s v / (s + v)``. The next step would move it on, by a part of this step's move.
    The signal's variance s is a mean of what was expected and of what the offsets show above their noise, by precision.
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
        # The mean of m squares has the variance 2 (s + v)^2 / m; what was expected is as uncertain as it is large.
        n_squares = 2.0 / (float((weight**2).sum()) / float(weight.sum()) ** 2 + 1.0 / max(size, 1))
        precision = n_squares / 2.0 * weight
        found = np.maximum((precision * seen + known**-1) / (precision + known**-2), LEAST_KEPT * known)
        gain = found / (found + noise)
        expected[:, index] = (gain * (noise + GOES_ON * found)).mean(axis=1)
        part *= gain
    moved = turned @ directions.T
    return (moved + rest if rest.size else moved), np.maximum(expected, np.finfo(float).tiny ** 0.25)


def _shrunk(entries: Floats, variance: Floats) -> Floats:
    if entries.size == 0:
        return entries
    noise = variance[:, None]
    of_direction = np.maximum((entries**2 - noise).mean(axis=0), 0.0)[None, :]
    of_cluster = np.maximum((entries**2).mean(axis=1, keepdims=True) - noise, 0.0)
    signal = (of_direction + of_cluster) / 2
    both = signal + noise
    kept: Floats = np.divide(signal, both, out=np.zeros_like(both), where=both > 0)
    return entries * kept


# Two questions that sums answer which were released already: nothing more is asked or paid.


class NoisyClusters(NamedTuple):
    """What a noisy Lloyd step shows of clusters."""

    means: Floats
    counts: Floats
    total: float  #: The mean squared norm of a row.
    of_sums: float  #: The standard deviation of the noise in an entry of a cluster's sum.
    of_counts: float  #: The standard deviation of the noise in a count.


class Found(NamedTuple):
    """What a run knows of the clusters before their last steps."""

    space: Space
    fine: NoisyClusters
    number: ClusterNumber | None  #: If the run chose it.
    centers: Floats  #: Inside the subspace.
    weights: Floats


def chosen_number(
    fine: NoisyClusters, spread: Floats, numbers: tuple[int, int], rng: np.random.Generator
) -> ClusterNumber:
    """Choose the number of clusters by the gap statistic (Tibshirani, Walther and Hastie 2001), with the silhouette.

    The run has many small clusters. For each number they are merged, and the simplified silhouette is compared with the
    silhouette of one Gaussian of the same spread, whose rows the server draws and clusters as finely. The second
    criterion is whether they would be merged in the same way if the noise and the start were drawn again.
    """
    n_kept = int(np.count_nonzero(fine.counts > DEVIATIONS * fine.of_counts))
    tried = range(numbers[0], max(min(numbers[1], n_kept - 1), numbers[0]) + 1)
    own, of_one = _measures(fine, tried), []
    n_rows = max(float(fine.counts.sum()), 100.0)
    n_drawn = int(min(n_rows, REFERENCE_ROWS))
    for _ in range(N_REFERENCES):
        drawn = rng.standard_normal((n_drawn, len(spread))) * spread
        centers = clustered(drawn, np.ones(n_drawn), max(n_kept, 1), rng, n_init=1)
        sums, counts = cluster_sums(drawn, nearest_center(drawn, centers), len(centers))
        sums *= n_rows / n_drawn
        noisy = counts * (n_rows / n_drawn) + fine.of_counts * rng.standard_normal(len(counts))
        means = centers_of(sums + fine.of_sums * rng.standard_normal(sums.shape), noisy, fallback=centers)
        # The second moment of this sample, because a small sample's differs from the Gaussian's.
        reference = fine._replace(means=means, counts=noisy, total=float((drawn**2).sum() / n_drawn))
        of_one.append([one["silhouette"] for one in _measures(reference, tried)])
    return ClusterNumber(
        list(tried),
        stability=[_stability(fine, n, rng) if one["silhouette"] else 0.0 for n, one in zip(tried, own, strict=True)],
        silhouette=[one["silhouette"] for one in own],
        davies_bouldin=[one.get("davies_bouldin", np.nan) for one in own],
        calinski_harabasz=[one.get("calinski_harabasz", np.nan) for one in own],
        of_one_gaussian=np.mean(of_one, axis=0).tolist(),
    )


def _stability(fine: NoisyClusters, number: int, rng: np.random.Generator) -> float:
    """Return how far another run would merge the small clusters in the same way."""
    kept = fine.counts > DEVIATIONS * fine.of_counts
    means, counts = fine.means[kept], fine.counts[kept]
    deviations = fine.of_sums / counts
    return stability_of(means, counts, deviations, number, rng, of_counts=fine.of_counts, n_init=N_INIT_LAST)


def agreement_of_another_run(fine: NoisyClusters, spread: Floats, centers: Floats, rng: np.random.Generator) -> float:
    """Estimate the adjusted Rand index between the clusters of these centers and those that another run would find.

    The server draws rows from Gaussians about the noisy means, and treats them as a run does: it finds small clusters
    from another start, takes a Lloyd step with new noise, and merges them. Noise alone is not enough: runs also differ
    because their small clusters do.
    """
    from sklearn.metrics import adjusted_rand_score

    n_small, n_rows = len(fine.means), max(float(fine.counts.sum()), 100.0)
    parts = np.maximum(fine.counts, 0.01 * n_rows / n_small)
    parts /= parts.sum()
    within = np.sqrt(np.maximum(spread**2 - parts @ fine.means**2, 0.02 * spread**2))
    n_drawn = max(LEAST_DRAWN, DRAWN_FOR_EACH * n_small)
    scale, found = n_rows / n_drawn, []
    for _ in range(min(N_OTHER_RUNS, max(FEWEST_OTHER_RUNS, MOST_IMITATED // n_small))):
        rows = fine.means[rng.choice(n_small, n_drawn, p=parts)]
        rows += within * rng.standard_normal(rows.shape)
        # The votes of a run show small clusters roughly, as do a few rows.
        n_seen = DRAWN_FOR_EACH // 2 * n_small
        small = clustered(rows[:n_seen], np.ones(n_seen), n_small, rng, n_init=1)
        labels = nearest_center(rows, small)
        sums, counts = cluster_sums(rows - small[labels], labels, n_small)
        noisy = scale * counts + fine.of_counts * rng.standard_normal(n_small)
        offsets = scale * sums + fine.of_sums * rng.standard_normal(sums.shape)
        small += centers_of(offsets, noisy, fallback=np.zeros_like(small))
        merged = clustered(small, np.maximum(noisy, 0.01 * n_rows / n_small), len(centers), rng, n_init=N_INIT_LAST)
        found.append(adjusted_rand_score(nearest_center(rows, centers), nearest_center(rows, merged)))
    return float(np.mean(found))


def _measures(fine: NoisyClusters, numbers: Sequence[int]) -> list[dict[str, float]]:
    from sklearn.cluster import KMeans

    kept = fine.counts > DEVIATIONS * fine.of_counts
    means, counts = fine.means[kept], fine.counts[kept]
    if len(means) <= numbers[0] or (fine.of_counts > 0 and len(means) < FEWEST):
        return [{"silhouette": 0.0} for _ in numbers]
    # The mean squared distance of rows from these means: what the means leave of the second moment.
    scatter = max(fine.total - float(counts @ (means**2).sum(axis=1)) / float(counts.sum()), 0.02 * fine.total)
    found: list[dict[str, float]] = []
    for number, centers in zip(reversed(numbers), _merged(means, counts, numbers), strict=True):
        if number < len(means):
            estimator = KMeans(number, init=centers, n_init=1, max_iter=50)
            centers = estimator.fit(means, sample_weight=counts).cluster_centers_
        measures = ClusterSums.of_rows(means, centers, counts, scatter=scatter).measures(centers)
        found.append({"silhouette": 0.0} | measures)
    return found[::-1]


def _merged(means: Floats, counts: Floats, numbers: Sequence[int]) -> list[Floats]:
    """Return first centers for each number of clusters, the largest number first, by Ward's criterion.

    A k-means that starts here misses no cluster that k-means++ would miss by chance.
    """
    points, weights = means.copy(), counts.copy()
    found: list[Floats] = []
    while len(found) < len(numbers):
        if len(points) <= numbers[-1 - len(found)]:
            found.append(points.copy())
            continue
        apart = squared_distances(points, points) * (weights[:, None] * weights / (weights[:, None] + weights))
        apart[np.tril_indices(len(points))] = np.inf
        first, second = np.unravel_index(apart.argmin(), apart.shape)
        both = weights[first] + weights[second]
        points[first] += (points[second] - points[first]) * (weights[second] / both)
        weights[first] = both
        points, weights = np.delete(points, second, axis=0), np.delete(weights, second)
    return found


# The client half.


def class_reach(index: int) -> float:
    """Return how far a class of distances reaches, as a fraction of the radius."""
    return float(2.0 ** (-index / 2))


class VotesClient(FrameClient):
    """The answers that PrivateKMeans and PEMeans share."""

    @by_row(row_count=Sent("number of rows", counts_rows=True))
    def row_count(rows: Rows) -> Term:
        """Count the rows."""
        return count(rows)

    @by_row(votes=Sent("number of rows nearest to each candidate", counts="every row"))
    def votes(rows: Rows, candidates: Floats, directions: Floats) -> Term:
        """Count votes in public directions; an empty array of directions means all columns."""
        return at(rows.projected(directions).nearest(candidates), len(candidates))


class PrivateKMeansClient(VotesClient, StartsClient, ClusterClient):
    """The client half of :class:`PrivateKMeans`."""

    @by_row(row_sum=Sent("sum of the rows, clipped", has_columns=True))
    def row_sum(rows: Rows) -> Term:
        """Return the sum of the rows in the frame."""
        return total(rows)

    @by_row(distances=Sent("number of rows by distance from the origin, in classes", counts="every row"))
    def distances(rows: Rows) -> Term:
        """Return the number of rows in each class, from the farthest to the nearest."""
        bound, _ = ball_in_units(rows.radius, 2, rows.exponent)
        limits = np.floor(bound**2 * np.ldexp(1.0, -np.arange(N_CLASSES - 1, 0, -1)))
        # Integers are compared, so that a row's class is the same on every machine. The nearest class is the last.
        inside = np.searchsorted(limits, integer_norms(rows.integers, 2), side="left")
        return at(N_CLASSES - 1 - inside, N_CLASSES)

    @finishes(
        StartsClient.second_moment,
        distances=Sent("size of the client's second moment, as one of many classes", counts="once"),
    )
    def moment_size(totals: tuple[Term, ...], n_rows: Integers) -> Term:
        """Return the class of the root of the Frobenius norm of each client's mean outer product."""
        (moment,) = totals
        matrices = triangle_to_symmetric(moment.array.values) / np.maximum(n_rows, 1)[:, None, None]
        # 20 bits keep the sum of squares exact on every machine, and so the comparison with powers of 4.
        entries = np.trunc(matrices * (2.0**20 / moment.bound.l2))
        squares = np.einsum("ijk,ijk->i", entries, entries)
        # The class is the number of times that the norm can be doubled without exceeding the square of the radius.
        index = (squares[:, None] <= 4.0 ** np.arange(20)).sum(axis=1)
        return one_class(np.where(squares == 0, N_CLASSES - 1, np.minimum(index, N_CLASSES - 1)), N_CLASSES)

    @by_row(
        sums="sum of the rows' offsets from their nearest centers, clipped",
        counts=Sent("number of rows nearest to each center", counts="every row", sizes=True),
    )
    def offset_sums(rows: Rows, centers: Floats, directions: Floats, *, bound: float) -> tuple[Term, Term]:
        """Return the clipped offsets, in public directions, and the counts."""
        rows = rows.projected(directions)
        nearest = rows.nearest(centers)
        return at(nearest, len(centers), rows.offsets(centers, nearest, bound)), at(nearest, len(centers))

    @by_row(cells="sum of the rows' offsets from their nearest points, clipped, and their number, weighted")
    def cells(rows: Rows, points: Floats, directions: Floats, *, bound: float, weight: float) -> Term:
        """Return the clipped offsets in public directions, and in the last column the counts times the weight."""
        rows = rows.projected(directions)
        nearest = rows.nearest(points)
        return at(nearest, len(points), rows.offsets(points, nearest, bound).with_constant(weight))

    @by_row(steps="sums of the rows' offsets from the nearest center of each solution, clipped, and numbers, weighted")
    def steps(rows: Rows, solutions: Floats, *, bound: float, weight: float) -> Term:
        """Return for each solution the clipped offsets, and in the last column the counts times the weight."""
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
        """Return for each solution the squared distances of the rows from the nearest centers."""
        return costs_beside_mean(rows, solutions, bound)


PrivateKMeans.client_type = PrivateKMeansClient
