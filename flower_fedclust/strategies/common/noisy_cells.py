"""The server's work on noisy cells: their best number, solutions of k-means, and imitations of other runs.

Released cells are searched as hard as rows would be, because any number of starts on them costs no privacy.
:mod:`.private_search` has the rounds.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.kmeans import (
    centers_of,
    cluster_sums,
    nearest_center,
    squared_distances,
)
from flower_fedclust.numerics.validity import ALIKE, Repeated, weighted_rand_index

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: The fewest cells for each cluster, and the most cells; how many numbers of cells are compared.
FEWEST_CELLS, MOST_CELLS, N_NUMBERS = 1.5, 200, 25
#: The count of a row weighs as much as an offset of this fraction of the bound. The bound is this many typical
#: distances.
CELL_WEIGHT, CELL_REACH = 0.7, 1.3
#: Rows that the server draws about the noisy cells, at least and for each cluster.
N_DRAWN, DRAWN_FOR_EACH = 6000, 30
#: The k-means of the cells that the server starts; fewer, but not below the second number, beyond so many products.
N_TRIES, FEWEST_TRIES, MOST_TRIED = 60, 6, 2e9
#: The most steps of such a k-means.
MOST_STEPS = 50
#: The most solutions that take steps together, and the relative excess cost at which they are told apart.
MOST_SOLUTIONS, TOLERATED = 30, 0.01
#: Steps of all solutions before their costs are compared, and how many are left of them each time.
STEPS_EACH, N_LEVELS, PART_KEPT = 2, 3, 3
#: Two solutions differ if a center of one has a squared distance of more than this part of the rows' variance from
#: every center of the other.
APART = 0.01
#: Other runs that are imitated, the rows that they share, the starts of each, and their steps.
N_OTHER_RUNS, N_SHARED, N_STARTS, N_OTHER_STEPS = 16, 2000, 10, 3
#: Beyond so many clusters an imitated run has fewer starts, in inverse proportion: its time grows with their square.
MANY_CLUSTERS = 64
#: Cells of fewer rows, in deviations of their noise, are not imitated.
CLEAR_CELL = 3.0
#: A cell whose drawn rows have other weights on average counts otherwise, as if so many more of weight 1 were drawn.
FEW_DRAWN = 3
#: Imitated runs have this many times the noise of the run: to judge its clusters, and to choose their number.
ROUGHER, ROUGHER_OF_NUMBER = 2.0, 3.0
#: Rows about clusters have at least this part of the variance of all rows in each direction.
LEAST_LEFT = 0.003
#: The loss of costs by clipping may differ from the expected loss by this factor.
UNSURE = 2.0
#: Solutions are equally good if their costs differ by less than this fraction.
EQUALLY_GOOD = 0.01
#: Offsets are clipped to so many typical distances, which grows as noise falls: a wide bound has no bias.
REACH, REACH_GROWS, REACH_AT, LEAST_REACH, MOST_REACH = 1.3, 0.35, 0.003, 1.2, 4.0
#: How many wider bounds are tried, the widest of them, and the part of a step's noise that other steps leave.
N_REACHES, WIDEST_REACH, NOISE_LEFT = 12, 12.0, 0.2
#: Fewer drawn rows than this say nothing of their cluster's mean.
FEWEST_DRAWN = 3


def left_by_a_code(variances: Floats, n_points: int) -> float:
    """Return the mean squared distance of rows of a Gaussian from the best n_points points.

    In each direction the distance is ``min(level, variance)`` ("reverse water-filling"; Cover and Thomas, "Elements of
    information theory", theorem 10.3.3). The variances are sorted, the largest first.
    """
    logarithms = np.log(np.maximum(variances, np.finfo(float).tiny))
    # The level, if the first directions are divided and the others are not.
    numbers = np.arange(1, len(variances) + 1)
    levels = np.exp((np.cumsum(logarithms) - 2.0 * math.log(n_points)) / numbers)
    n_divided = int(np.count_nonzero(levels <= variances))
    level = levels[max(n_divided - 1, 0)]
    return float(np.minimum(level, variances).sum())


def directions_and_cells(
    variances: Floats,
    elsewhere: float,
    norm: Callable[[int], float],
    noise: float,
    fewest: int,
    most: int,
) -> tuple[int, int]:
    """Choose the numbers of directions and cells with which noisy means of cells are nearest to the rows.

    Parameters
    ----------
    variances : ndarray
        The variances of the rows along their directions, the largest first.
    elsewhere : float
        The variance in all other directions.
    norm : callable
        How far a row moves the sums of so many cells, in typical distances of a row from the mean of its cell.
    noise : float
        The standard deviation of the noise of a sum whose bound is 1, by the number of rows.
    fewest, most : int
        Bounds on the number of cells.
    """
    best = (math.inf, 1, fewest)
    numbers_of_cells = np.geomspace(fewest, max(most, fewest), N_NUMBERS).astype(int)
    numbers_of_directions = np.geomspace(1, len(variances), N_NUMBERS).round().astype(int)
    for q in np.unique(numbers_of_directions).tolist():
        seen = variances[:q]
        lost = float(variances[q:].sum()) + elsewhere
        for n_cells in np.unique(numbers_of_cells).tolist():
            within = left_by_a_code(seen, n_cells)
            of_mean = q * (norm(n_cells) * noise * n_cells) ** 2
            distance = lost + within * (1.0 + of_mean)
            best = min(best, (distance, q, n_cells))
    return best[1:]


@dataclass(frozen=True)
class NoisyCells:
    """Noisy cells of the rows, in the directions of the search."""

    means: Floats
    counts: Floats  #: The counts of the cells, all positive.
    within: Floats  #: The variance of the rows of a cell in each direction.
    of_sums: float  #: The standard deviation of the noise in an entry of a cell's sum.
    of_counts: float  #: The standard deviation of the noise in a count.

    def drawn(self, n_clusters: int, rng: np.random.Generator) -> Floats:
        """Draw rows from Gaussians about the means, enough for so many clusters."""
        return self.drawn_rows(max(N_DRAWN, DRAWN_FOR_EACH * n_clusters), self.within, rng)[1]

    def drawn_rows(
        self, n_rows: int, within: Floats, rng: np.random.Generator
    ) -> tuple[Labels, Floats]:
        """Draw cells, and rows from Gaussians about their means, of this variance in each direction."""
        drawn = rng.choice(len(self.means), n_rows, p=self.counts / self.counts.sum())
        rows = self.means[drawn]
        return drawn, np.asarray(rows + rng.standard_normal(rows.shape) * np.sqrt(within))


def best_solutions(
    cells: NoisyCells, rows: Floats, n_clusters: int, n_wanted: int, rng: np.random.Generator
) -> list[Floats]:
    """Return distinct k-means solutions, the best first, alternating between cells and rows drawn about them.

    The solutions of the cells come first: rows are drawn equally wide about all cells, and how wide is uncertain. Half
    of the k-means weight the cells by a bootstrap, so that they end in other minima.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    n_tries = int(np.clip(MOST_TRIED / (20 * cells.means.size * n_clusters), FEWEST_TRIES, N_TRIES))
    weights = np.tile(cells.counts, (n_tries, 1))
    weights[1::2] *= rng.exponential(size=weights[1::2].shape)
    solutions: list[tuple[float, Floats]] = []
    for centers in kmeans_of_cells(cells.means, weights, n_clusters, rng):
        cost = float(cells.counts @ squared_distances(cells.means, centers).min(axis=1))
        if all(abs(cost - other) > 1e-6 * cost for other, _ in solutions):
            solutions.append((cost, centers))
    solutions.sort(key=lambda solution: solution[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # centers coincide if rows do
        refined = [
            KMeans(n_clusters, init=centers, n_init=1, max_iter=30).fit(rows)
            for _, centers in solutions[: 2 * n_wanted]
        ]
    refined.sort(key=lambda model: float(model.inertia_))
    pairs = zip(
        (centers for _, centers in solutions),
        (np.asarray(model.cluster_centers_) for model in refined),
        strict=False,
    )
    return different(
        [centers for pair in pairs for centers in pair],
        n_wanted,
        APART * float(rows.var(axis=0).sum()),
    )


def kmeans_of_cells(
    means: Floats, weights: Floats, n_clusters: int, rng: np.random.Generator
) -> Floats:
    """Return the centers of one k-means of cells for each row of weights, of shape (len(weights), n_clusters, ...).

    All of them take their Lloyd steps together: cells are so few that scikit-learn's takes ten times as long.
    """
    apart, number = squared_distances(means, means), min(n_clusters, len(means))
    first = means[spread_out(apart, weights, number, rng)]
    first = first[:, np.resize(np.arange(number), n_clusters)]
    solutions = np.empty(first.shape)
    for block in blocks(len(weights), len(means) * n_clusters, block_entries=2**20):
        centers, former = first[block], np.zeros(0)
        for _ in range(MOST_STEPS):
            distances = (centers**2).sum(axis=2)[:, None, :] - 2.0 * means @ centers.transpose(
                0, 2, 1
            )
            labels = distances.argmin(axis=2)
            if np.array_equal(former, labels):
                break
            former = labels
            members = np.where(
                labels[:, None, :] == np.arange(n_clusters)[:, None],
                weights[block][:, None, :],
                0.0,
            )
            centers = centers_of(
                members @ means, members.sum(axis=2), fallback=centers, at_least=1e-9
            )
        solutions[block] = centers
    return solutions


def spread_out(apart: Floats, weights: Floats, n_points: int, rng: np.random.Generator) -> Labels:
    """Draw points by greedy k-means++, from their squared distances: scikit-learn's takes a hundred times as long.

    There is one draw for each row of weights, of shape (n_draws, n_points): their steps are taken together.
    """
    n_draws, n_cells = weights.shape
    n_trials, draws = 2 + int(math.log(n_points)), np.arange(n_draws)
    chosen, chances = (
        np.empty((n_draws, n_points), np.intp),
        np.empty((n_draws, n_points - 1, n_trials)),
    )
    for draw, weights_of_draw in enumerate(weights):
        chosen[draw, 0] = rng.choice(n_cells, p=weights_of_draw / weights_of_draw.sum())
        chances[draw] = rng.random(chances[draw].shape)
    nearest = apart[chosen[:, 0]]
    for index in range(1, n_points):
        added_up = np.cumsum(weights * nearest, axis=1)
        places = zip(added_up, added_up[:, -1:] * chances[:, index - 1], strict=True)
        tried = np.array([np.searchsorted(sums, place, side="right") for sums, place in places])
        tried = np.minimum(tried, n_cells - 1)
        left = np.minimum(apart[tried], nearest[:, None, :])
        best = (left @ weights[:, :, None])[:, :, 0].argmin(axis=1)
        chosen[:, index], nearest = tried[draws, best], left[draws, best]
    return chosen


def different(solutions: Sequence[Floats], n_wanted: int, apart: float) -> list[Floats]:
    """Return the first solutions that have a center farther than this squared distance from all earlier solutions."""
    kept: list[Floats] = []
    for solution in solutions:
        if len(kept) < n_wanted and all(
            squared_distances(solution, other).min(axis=1).max() > apart for other in kept
        ):
            kept.append(solution)
    return kept


def reach_of_offsets(excess: float) -> float:
    """Return the bound of offsets in typical distances, from the relative excess cost of a noisy step."""
    wanted = REACH - REACH_GROWS * math.log(max(excess, 1e-300) / REACH_AT)
    return min(max(wanted, LEAST_REACH), MOST_REACH)


@dataclass(frozen=True)
class DrawnOffsets:
    """Offsets of drawn rows from the nearest of some centers: how real rows' offsets are expected to be clipped."""

    labels: Labels
    offsets: Floats
    norms: Floats  #: The expected length of an offset in all columns.
    sizes: Floats  #: The number of drawn rows of each center, at least 1.

    @classmethod
    def of(cls, rows: Floats, centers: Floats, elsewhere: float) -> DrawnOffsets:
        """Return the offsets of drawn rows; ``elsewhere`` is the rows' variance in all other directions."""
        labels = nearest_center(rows, centers)
        offsets = rows - centers[labels]
        norms = np.sqrt(np.einsum("ij,ij->i", offsets, offsets) + elsewhere)
        sizes = np.maximum(np.bincount(labels, minlength=len(centers)), 1).astype(np.float64)
        return cls(labels, offsets, norms, sizes)

    def lost(self, bound: float) -> Floats:
        """Return what clipping to a bound takes from the mean offset of each center."""
        taken = 1.0 - np.minimum(1.0, bound / np.maximum(self.norms, bound))
        beyond = taken > 0
        sums, _ = cluster_sums(
            self.offsets[beyond] * taken[beyond, None], self.labels[beyond], len(self.sizes)
        )
        return np.where(self.sizes[:, None] >= FEWEST_DRAWN, sums / self.sizes[:, None], 0.0)

    def reach(self, within: float, excess: float) -> float:
        """Choose the bound of offsets in typical distances, from the relative excess cost of a noisy step.

        It is wider than without drawn rows where clipping would move centers by more than the noise: where clusters
        have rows far away. What clipping takes from real rows may be UNSURE times as much as from drawn rows.
        """
        least, best = reach_of_offsets(excess), math.inf
        chosen = least
        for reach in np.geomspace(least, WIDEST_REACH, N_REACHES).tolist():
            moved = (self.lost(reach * math.sqrt(within)) ** 2).sum(axis=1)
            by_clipping = UNSURE**2 * float(self.sizes @ moved) / (len(self.labels) * within)
            by_noise = NOISE_LEFT * excess * (reach / REACH) ** 2
            if by_clipping + by_noise < best:
                best, chosen = by_clipping + by_noise, reach
        return chosen


def excess_of_a_step(n_columns: int, n_clusters: int, norm: float, noise: float) -> float:
    """Return the relative excess cost of one noisy step.

    The means of k clusters of n / k rows have noise of variance ``d (norm k s / n)^2`` each, where s / n is ``noise``.
    Lengths are in units of the typical distance, whose square is the cost of a row; the norm is the most that a row
    moves the sums, in this unit.

    Parameters
    ----------
    noise : float
        The standard deviation of the noise of a sum whose bound is 1, by the number of rows.
    """
    return n_columns * (n_clusters * norm * noise) ** 2


class BoundOfCosts(NamedTuple):
    """A bound for clipping a row's costs minus their mean, and its effects."""

    bound: float
    norm: float  #: How far one protected unit can move the sum after clipping.
    lost: Floats  #: The expected loss of each sum by clipping.


def bound_of_costs(
    rows: Floats,
    solutions: Sequence[Floats],
    n_rows: float,
    noise: float,
    norm: Callable[[Floats, float], float],
) -> BoundOfCosts:
    """Choose a bound for the costs of a row beside their mean.

    It balances the noise with the largest part that clipping takes, by rows that were drawn from the cells. Real rows,
    which are less round, may have several times as much clipped.

    Parameters
    ----------
    rows : ndarray
        Drawn rows.
    solutions : sequence of ndarray
    n_rows : float
        The number of real rows.
    noise : float
        The standard deviation of the noise of a sum whose norm is 1.
    norm : callable
        How far one unit moves the sum of these vectors, which are clipped to a bound.
    """
    costs = np.stack(
        [squared_distances(rows, centers).min(axis=1) for centers in solutions], axis=1
    )
    costs -= costs.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(costs, axis=1)
    least = max(1e-9 * float(norms.max()), np.finfo(float).tiny * 2**60)
    best, smallest = BoundOfCosts(least, least, np.zeros(len(solutions))), math.inf
    for part in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0):
        bound = max(float(np.quantile(norms, part)), least)
        clipped = costs * np.minimum(1.0, bound / np.maximum(norms, bound))[:, None]
        tried = BoundOfCosts(bound, norm(clipped, bound), (costs - clipped).mean(axis=0) * n_rows)
        by_clipping, by_noise = UNSURE * float(np.abs(tried.lost).max()), noise * tried.norm
        if by_clipping**2 + by_noise**2 < smallest:
            best, smallest = tried, by_clipping**2 + by_noise**2
    return best


def dropped_light(
    means: Floats, counts: Floats, deviation: float, light: float, fewest: int
) -> tuple[Floats, Floats]:
    """Return the cells whose count exceeds ``light`` standard deviations of the noise; at least the heaviest ones."""
    order = np.argsort(-counts, kind="stable")[
        : max(int(np.count_nonzero(counts > light * deviation)), fewest)
    ]
    return means[order], np.maximum(counts[order], 1.0)


class Compared(NamedTuple):
    """Solutions whose costs a run has compared, and what it released of them."""

    #: The centers of each solution, of shape (n_solutions, n_clusters, n_columns).
    solutions: Floats
    costs: Floats  #: The mean cost of a row, up to a number that all have in common.
    deviation: float  #: The standard deviation of the noise in such a cost.


def repeated(
    cells: NoisyCells,
    centers: Floats,
    errors: Floats,
    directions: Floats,
    elsewhere: float,
    compared: Sequence[Compared],
    rng: np.random.Generator,
) -> Repeated:
    """Imitate other runs with what this run has released, and compare their clusters with its own.

    The server draws rows about the noisy cells, so that rows between clusters are drawn as well. They are moved and
    weighted until they agree with what the run has released since: the means of its clusters, and the costs of the
    solutions that it has compared. Another run sees the cells with other noise, chooses among solutions of them, takes
    steps on these rows, and ends with the noise of its last steps. The imitated noise is ROUGHER than the real one,
    because another run also finds other directions. Runs without any noise are imitated as well, to tell what the noise
    does from what search and table do.

    Parameters
    ----------
    centers : ndarray of shape (n_clusters, n_columns)
        The centers found by this run.
    errors : ndarray of shape (n_clusters, 2)
        The variance of the error in an entry of a center, in the directions of the search and elsewhere.
    directions : ndarray of shape (n_columns, n_directions)
        The directions of the search.
    elsewhere : float
        The variance of the rows in all other directions together.
    compared : sequence of Compared
        Each comparison of the costs of solutions, the last one last.
    """
    k, cells = len(centers), _clear_of_noise(cells, len(centers))
    of_cell, drawn = cells.drawn_rows(max(N_SHARED, DRAWN_FOR_EACH * k), cells.within, rng)
    rows = _in_all_columns(drawn, centers, directions, elsewhere, rng)
    unmoved = Imitated(rows, np.ones(len(rows)), errors, directions)
    rows = rows + (centers - unmoved.step(centers[None])[0])[nearest_center(rows, centers)]
    weights = weights_by_costs(rows, compared)
    n_drawn = np.bincount(of_cell, minlength=len(cells.means)) + FEW_DRAWN
    heavier = (np.bincount(of_cell, weights, len(cells.means)) + FEW_DRAWN) / n_drawn
    cells = replace(cells, counts=cells.counts * heavier)
    labels = nearest_center(rows, centers)
    table = Imitated(
        rows, weights, errors, directions, len(compared[0].solutions) if compared else 1
    )
    noisy = _other_runs(cells, table, rng, ROUGHER, N_OTHER_RUNS)
    exact = _other_runs(cells, table, rng, 0.0, N_OTHER_RUNS)
    others, pairs = nearest_of_each(rows, noisy), combinations(nearest_of_each(rows, exact), 2)
    best = unmoved.costs(np.concatenate([unmoved.steps(centers[None]), exact])).min()
    return Repeated(
        agreement=float(
            np.mean(
                [weighted_rand_index(labels, other_labels, weights, k) for other_labels in others]
            )
        ),
        each=np.mean(
            [best_jaccard(labels, other_labels, k, weights) for other_labels in others], axis=0
        ),
        without_noise=float(
            np.mean([weighted_rand_index(first, other, weights, k) for first, other in pairs])
        ),
        excess=float(unmoved.costs(centers[None])[0] / max(best, np.finfo(float).tiny)) - 1.0,
        equal_within=_equal_within(table, labels, float(table.costs(centers[None])[0]), compared),
    )


def _clear_of_noise(cells: NoisyCells, fewest: int) -> NoisyCells:
    """Leave out cells of few rows: with other noise again, they would be anywhere."""
    kept = cells.counts >= min(
        CLEAR_CELL * cells.of_counts, np.sort(cells.counts)[-min(fewest, len(cells.counts))]
    )
    return replace(cells, means=cells.means[kept], counts=cells.counts[kept])


def weights_by_costs(rows: Floats, compared: Sequence[Compared]) -> Floats:
    """Return weights of drawn rows, near 1, with which solutions cost as much as the run has released, up to its noise.

    Let row i of G be the costs of all drawn rows under solution i, less their mean over the solutions that were
    compared with it, e what was released less the mean of G, and v the variances of its noise. For m rows the weights
    are ``1 + G' z / m`` with ``(G G' / m^2 + diag v) z = e``: the most probable ones if each has the variance 1.
    """
    if not compared:
        return np.ones(len(rows))
    costs_of_rows, released_costs, variances_of_noise = [], [], []
    for each in compared:
        costs = costs_of_each(rows, each.solutions)
        costs_of_rows.append(costs - costs.mean(axis=0))
        released_costs.append(each.costs - each.costs.mean())
        variances_of_noise.append(np.full(len(each.costs), each.deviation**2))
    G = np.concatenate(costs_of_rows)
    e = np.concatenate(released_costs) - G.mean(axis=1)
    v = np.concatenate(variances_of_noise)
    # Without noise the matrix may be singular.
    least = np.finfo(float).eps * float((G**2).mean()) + np.finfo(float).tiny
    inner = G @ G.T / len(rows) ** 2 + np.diag(v + least)
    z = np.linalg.solve(inner, e)
    weights = np.maximum(1.0 + G.T @ z / len(rows), 0.0)
    return np.asarray(weights / weights.mean())


@dataclass(frozen=True)
class Imitated:
    """Drawn rows that stand for the rows of a run, and how the run searched them."""

    rows: Floats
    weights: Floats
    #: The variance of the error in an entry of a center, in the directions of the search and elsewhere.
    errors: Floats
    directions: Floats
    n_compared: int = 1  #: The number of solutions that the run compared at first.

    @cached_property
    def shared(self) -> Floats:
        """The first drawn rows, in the directions of the search."""
        return np.asarray(self.rows[:N_SHARED] @ self.directions)

    def costs(self, runs: Floats) -> Floats:
        """Return the cost of the drawn rows under the centers of each run."""
        return costs_of_each(self.rows, runs) @ self.weights

    def step(self, runs: Floats) -> Floats:
        """Return the weighted means of the rows nearest to each center of each run.

        Some runs step together: with many columns, most of the time passes with reading the rows.
        """
        k, moved = runs.shape[1], np.empty(runs.shape)
        for block in _some_runs(self.rows, runs):
            labels = nearest_of_each(self.rows, runs[block])
            members = np.where(labels[:, None, :] == np.arange(k)[:, None], self.weights, 0.0)
            sums = members.reshape(-1, len(self.rows)) @ self.rows
            moved[block] = centers_of(
                sums.reshape(runs[block].shape), members.sum(axis=2), fallback=runs[block]
            )
        return moved

    def steps(self, runs: Floats) -> Floats:
        """Return the centers after the steps of imitated runs, without noise."""
        for _ in range(N_OTHER_STEPS):
            runs = self.step(runs)
        return runs


def _some_runs(rows: Floats, runs: Floats) -> Iterable[slice]:
    """Divide runs into blocks, so that the distances of all rows from their centers take little memory."""
    return blocks(len(runs), len(rows) * runs.shape[1], block_entries=2**20)


def _distances_of_each(rows: Floats, runs: Floats) -> Iterator[Floats]:
    """Yield squared distances of the rows from the centers of some runs, (n_rows, n_runs, n_clusters)."""
    for block in _some_runs(rows, runs):
        centers = runs[block].reshape(-1, runs.shape[2])
        yield squared_distances(rows, centers).reshape(len(rows), -1, runs.shape[1])


def nearest_of_each(rows: Floats, runs: Floats) -> Labels:
    """Return the labels of the rows by the centers of each run, of shape (n_runs, n_rows)."""
    return np.concatenate(
        [distances.argmin(axis=2).T for distances in _distances_of_each(rows, runs)]
    )


def costs_of_each(rows: Floats, runs: Floats) -> Floats:
    """Return the squared distances of the rows from the nearest center of each run, (n_runs, n_rows)."""
    return np.concatenate([distances.min(axis=2).T for distances in _distances_of_each(rows, runs)])


def _equal_within(
    table: Imitated, labels_here: Labels, cost: float, compared: Sequence[Compared]
) -> float:
    """Return by which part of the cost a solution that divides the rows otherwise is worse at most.

    It is the least bound over all solutions that the run has compared: the released difference, and UNSURE deviations
    of its noise. Without such a solution it is infinite.
    """
    bounds, k, weights = [math.inf], len(table.errors), table.weights
    for each in compared:
        labels = nearest_of_each(table.rows, each.solutions)
        alike = np.array(
            [weighted_rand_index(labels_here, other_labels, weights, k) for other_labels in labels]
        )
        worse = each.costs - each.costs[alike.argmax()] + UNSURE * math.sqrt(2.0) * each.deviation
        bounds += worse[alike < ALIKE].tolist()
    return max(min(bounds), 0.0) * len(labels_here) / max(cost, np.finfo(float).tiny)


def agreement_inside(
    cells: NoisyCells, centers: Floats, variances: Floats, n_runs: int, rng: Generator
) -> float:
    """Return the agreement that :func:`repeated` would expect of so many runs, within the directions of the search.

    It is for clusters that have taken no steps, such as those of each number of clusters that is tried.
    """
    directions, errors, k = np.eye(centers.shape[1]), np.zeros((len(centers), 2)), len(centers)
    rows = _in_all_columns(
        _rows_about(cells, centers, variances, rng), centers, directions, 0.0, rng
    )
    labels, table = (
        nearest_center(rows, centers),
        Imitated(rows, np.ones(len(rows)), errors, directions, N_STARTS),
    )
    others = nearest_of_each(rows, _other_runs(cells, table, rng, ROUGHER_OF_NUMBER, n_runs))
    return float(np.mean([adjusted_rand(labels, other, k) for other in others]))


def _rows_about(cells: NoisyCells, centers: Floats, variances: Floats, rng: Generator) -> Floats:
    """Draw rows from Gaussians about the clusters, as many for each as its cells have."""
    n_rows, k = max(N_SHARED, DRAWN_FOR_EACH * len(centers)), len(centers)
    sizes = np.bincount(nearest_center(cells.means, centers), cells.counts, k)
    between = sizes / sizes.sum() @ centers**2
    clusters = replace(cells, means=centers, counts=np.maximum(sizes, 1.0))
    return clusters.drawn_rows(
        n_rows, np.maximum(variances - between, LEAST_LEFT * variances), rng
    )[1]


def _in_all_columns(
    drawn: Floats, centers: Floats, directions: Floats, elsewhere: float, rng: Generator
) -> Floats:
    """Return rows that are drawn in the directions of the search; elsewhere they lie about the nearest center."""
    inside = centers @ directions
    outside, n_others = centers - inside @ directions.T, max(np.subtract(*directions.shape), 1)
    rest = rng.standard_normal((len(drawn), len(centers[0]))) * math.sqrt(
        max(elsewhere, 0.0) / n_others
    )
    rest -= rest @ directions @ directions.T
    return np.asarray(drawn @ directions.T + outside[nearest_center(drawn, inside)] + rest)


def _other_runs(
    cells: NoisyCells, table: Imitated, rng: Generator, noise: float, n_runs: int
) -> Floats:
    """Return the centers of other runs on these rows, (n_runs, n_clusters, n_columns)."""
    other_runs = [_another_run(cells, table, rng, noise) for _ in range(n_runs)]
    starts, added = (np.stack(arrays) for arrays in zip(*other_runs, strict=True))
    return np.asarray(table.steps(starts @ table.directions.T) + added)


def _another_run(
    cells: NoisyCells, table: Imitated, rng: Generator, noise: float
) -> tuple[Floats, Floats]:
    """Imitate another run: return the centers from which it starts, and the noise of its last Lloyd step.

    It starts from the best of a few k-means solutions of cells with new noise, in the directions of the search.
    """
    errors, directions, k = table.errors, table.directions, len(table.errors)
    means = cells.means + noise * (cells.of_sums / cells.counts)[:, None] * rng.standard_normal(
        cells.means.shape
    )
    counts = np.maximum(
        cells.counts + noise * cells.of_counts * rng.standard_normal(len(means)), 1.0
    )
    n_starts = math.ceil(N_STARTS * min(1.0, MANY_CLUSTERS / k))
    starts = kmeans_of_cells(means, np.tile(counts, (n_starts, 1)), k, rng)
    costs = costs_of_each(means, starts) @ counts
    # The run compares the costs of n_compared solutions on the rows. Those with the lowest costs on the cells are kept.
    _, distinct = np.unique(np.asarray(costs, dtype=np.float32), return_index=True)
    best = starts[distinct[: table.n_compared]]
    if len(best) > 1:
        of_rows = costs_of_each(table.shared, best) @ table.weights[:N_SHARED]
        best = best[of_rows.argmin() :]
    of_inside = rng.standard_normal((k, directions.shape[1])) * np.sqrt(2 * errors[:, :1])
    of_rest = rng.standard_normal((k, len(directions))) * np.sqrt(2 * errors[:, 1:])
    rest = of_rest - of_rest @ directions @ directions.T
    return best[0], noise * (of_inside @ directions.T + rest)


def adjusted_rand(first: Labels, other: Labels, n_clusters: int) -> float:
    """Return the adjusted Rand index of two clusterings of the same rows."""
    return weighted_rand_index(first, other, np.ones(len(first)), n_clusters)


def best_jaccard(
    labels: Labels, others: Labels, n_clusters: int, weights: Floats | float = 1.0
) -> Floats:
    """Return for each own cluster the largest Jaccard index with a cluster of another run."""
    table = np.zeros((n_clusters, n_clusters))
    np.add.at(table, (labels, others), weights)
    either = table.sum(axis=1)[:, None] + table.sum(axis=0)[None, :] - table
    return np.asarray(
        np.divide(table, either, out=np.zeros_like(table), where=either > 0).max(axis=1)
    )
