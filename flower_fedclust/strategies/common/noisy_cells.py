"""The server's work on noisy cells: their best number, solutions of k-means, and imitations of other runs.

A cell is a small region of space. Its mean and its number of rows come from noisy sums. Once they are released, any
number of k-means starts on them costs no privacy, so the server searches them as thoroughly as it would search rows.

To imitate another run is to simulate it: the server draws rows about the cells, and repeats the search on these rows
with new noise and new random numbers. :mod:`.private_search` has the rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from flower_fedclust.numerics.kmeans import (
    centers_of,
    cluster_sums,
    nearest_center,
    nearest_of_each,
    squared_distances,
    sums_of_each,
)
from flower_fedclust.numerics.validity import ALIKE, Repeated, weighted_rand_index

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: The fewest cells for each cluster.
FEWEST_CELLS = 1.5
#: The most cells in all, unless there are many clusters.
MOST_CELLS = 200
#: How many numbers of cells are compared.
N_NUMBERS = 25
#: In the sums of a cell, the count of a row is an entry of this fraction of the bound of offsets. That bound is the
#: second number times the typical distance of a row from the mean of its cell.
CELL_WEIGHT, CELL_REACH = 0.7, 1.3
#: How many rows the server draws about the noisy cells: at least the first number in all, and at least the second for
#: each cluster.
N_DRAWN, DRAWN_FOR_EACH = 6000, 30
#: How often the server runs k-means on the cells, from different starts. If that takes more multiplications than the
#: third number, it starts fewer, but at least the second number.
N_TRIES, FEWEST_TRIES, MOST_TRIED = 60, 6, 2e9
#: The most Lloyd steps of a k-means of the cells, and of its solutions on drawn rows. On these rows a run ends when its
#: centers move by less than the third number, in mean variances of a column.
MOST_STEPS, MOST_REFINED, STILL_REFINED = 50, 30, 1e-4
#: The most solutions that take steps together.
MOST_SOLUTIONS = 30
#: The number of solutions that take steps together is also at most this over the relative excess cost of a noisy step:
#: with more noise, fewer solutions can be told apart.
TOLERATED = 0.01
#: Steps of all solutions before each comparison of their costs.
STEPS_EACH = 2
#: The number of comparisons. The last one leaves one solution.
N_LEVELS = 3
#: Each comparison divides the number of solutions by this.
PART_KEPT = 3
#: Two solutions differ if some center of one is far from every center of the other: the squared distances exceed this
#: fraction of the rows' variance.
APART = 0.01
#: The number of imitated runs, and the fewest of them if there are many clusters.
N_OTHER_RUNS, FEWEST_OTHER_RUNS = 16, 8
#: The fewest rows that are drawn for the imitated runs, which share them.
N_SHARED = 2000
#: In each imitated run: the starts of k-means on the cells, and the Lloyd steps on the drawn rows.
N_STARTS, N_OTHER_STEPS = 10, 3
#: With more clusters than this, there are fewer imitated runs, and they have fewer starts, in inverse proportion to the
#: number of clusters, because their time grows with the square of that number.
MANY_CLUSTERS = 64
#: Imitated runs leave out cells whose count is less than this many standard deviations of its noise.
CLEAR_CELL = 3.0
#: For imitated runs, the count of a cell is multiplied by the mean weight of its drawn rows and of this many further
#: rows of weight 1.
FEW_DRAWN = 3
#: The noise of imitated runs over the noise of the real run: first for judging the clusters that were found, then for
#: choosing the number of clusters, before costs of solutions are known. In 26 runs on 13 tables, 24 of the 66 numbers
#: tried were stable with the second factor, and 19 of these in truth; with the first factor 29 were, and 19 in truth.
ROUGHER, ROUGHER_OF_NUMBER = 2.0, 3.0
#: A safety factor: real rows may lose this many times as much by clipping as drawn rows, and noise may reach this many
#: standard deviations.
UNSURE = 2.0
#: Solutions are equally good if their costs differ by less than this fraction.
EQUALLY_GOOD = 0.01
#: The bound of offsets, in typical distances: REACH if the relative excess cost of a noisy step is REACH_AT, and
#: REACH_GROWS more each time this cost falls by a factor of e; between the last two numbers. With little noise a wide
#: bound is best, because clipping would bias the centers more than noise moves them.
REACH, REACH_GROWS, REACH_AT, LEAST_REACH, MOST_REACH = 1.3, 0.35, 0.003, 1.2, 4.0
#: How many bounds are tried, from the least one on.
N_REACHES = 12
#: The widest of these bounds, in typical distances.
WIDEST_REACH = 12.0
#: The fraction of a step's noise that remains after the other steps.
NOISE_LEFT = 0.2
#: With fewer drawn rows in a cluster than this, its mean is taken to lose nothing by clipping.
FEWEST_DRAWN = 3


def left_by_a_code(variances: Floats, n_points: int) -> float:
    """Return the mean squared distance of a Gaussian's rows from the nearest of n_points points, at best.

    In each direction the mean squared distance is ``min(level, variance)``, with one level for all directions ("reverse
    water-filling"; Cover and Thomas, "Elements of information theory", theorem 10.3.3). The variances are sorted, the
    largest first.
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
    """Choose how many directions and cells to use, so that the rows are nearest to the noisy means of their cells.

    Parameters
    ----------
    variances : ndarray
        The variances of the rows along their directions, the largest first.
    elsewhere : float
        The variance in all other directions.
    norm : callable
        Takes a number of cells; returns how far one row moves the sums of all of them, in typical distances of a row
        from the mean of its cell.
    noise : float
        The standard deviation of the noise in a sum to which each row adds a vector of norm at most 1, divided by the
        number of rows.
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
    """Noisy means and counts of cells, in the directions in which the run searches for clusters."""

    means: Floats
    counts: Floats  #: The counts of the cells, all positive.
    within: Floats  #: The variance of the rows of a cell in each direction.
    of_sums: float  #: The standard deviation of the noise in an entry of a cell's sum.
    of_counts: float  #: The standard deviation of the noise in a count.

    def drawn(self, n_clusters: int, rng: np.random.Generator) -> Floats:
        """Draw rows from Gaussians about the means of the cells: enough of them for n_clusters clusters."""
        return self.drawn_rows(max(N_DRAWN, DRAWN_FOR_EACH * n_clusters), self.within, rng)[1]

    def drawn_rows(
        self, n_rows: int, within: Floats, rng: np.random.Generator
    ) -> tuple[Labels, Floats]:
        """Draw cells by their counts, and a row from a Gaussian about the mean of each; return both.

        ``within`` is the variance of the Gaussians in each direction.
        """
        drawn = rng.choice(len(self.means), n_rows, p=self.counts / self.counts.sum())
        rows = self.means[drawn]
        return drawn, np.asarray(rows + rng.standard_normal(rows.shape) * np.sqrt(within))


def best_solutions(
    cells: NoisyCells, rows: Floats, n_clusters: int, n_wanted: int, rng: np.random.Generator
) -> list[Floats]:
    """Return distinct k-means solutions, the best first: of the cells and, in turn, of rows drawn about the cells.

    Each pair begins with the solution of the cells, which is more reliable: the drawn rows are spread equally about all
    cells, and their spread is uncertain. Half of the k-means weight the cells by a bootstrap, so that they end in other
    minima.
    """
    work = 20 * cells.means.size * n_clusters
    n_tries = int(np.clip(MOST_TRIED / work, FEWEST_TRIES, N_TRIES))
    weights = np.tile(cells.counts, (n_tries, 1))
    weights[1::2] *= rng.exponential(size=weights[1::2].shape)
    runs = kmeans_of_cells(cells.means, weights, n_clusters, rng)
    _, squared = nearest_of_each(cells.means, runs)
    costs = squared @ cells.counts
    solutions: list[tuple[float, Floats]] = []
    for cost, centers in zip(costs.tolist(), runs, strict=True):
        if all(abs(cost - other) > 1e-6 * cost for other, _ in solutions):
            solutions.append((cost, centers))
    solutions.sort(key=lambda solution: solution[0])

    best = np.stack([centers for _, centers in solutions[: 2 * n_wanted]])
    still = STILL_REFINED * float(rows.var(axis=0).mean())
    refined = lloyd_of_each(rows, np.ones(len(rows)), best, MOST_REFINED, still=still)
    _, squared = nearest_of_each(rows, refined)
    order = np.argsort(squared.sum(axis=1), kind="stable")
    pairs = zip((centers for _, centers in solutions), refined[order], strict=False)
    return different(
        [centers for pair in pairs for centers in pair],
        n_wanted,
        APART * float(rows.var(axis=0).sum()),
    )


def kmeans_of_cells(
    means: Floats, weights: Floats, n_clusters: int, rng: np.random.Generator
) -> Floats:
    """Run one k-means of the cells for each row of weights; return centers, of shape (len(weights), n_clusters, ...).

    All runs take their Lloyd steps together. With so few cells, scikit-learn's k-means would take ten times as long.
    """
    apart, number = squared_distances(means, means), min(n_clusters, len(means))
    first = means[spread_out(apart, weights, number, rng)]
    first = first[:, np.resize(np.arange(number), n_clusters)]
    return lloyd_of_each(means, weights, first, MOST_STEPS, at_least=1e-9)


def lloyd_of_each(
    rows: Floats,
    weights: Floats,
    runs: Floats,
    most_steps: int,
    *,
    still: float = 0.0,
    at_least: float = 1.0,
) -> Floats:
    """Take Lloyd steps of each run until its centers hardly move; return the centers.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_columns)
    weights : ndarray of shape (n_runs, n_rows) or (n_rows,)
    runs : ndarray of shape (n_runs, n_clusters, n_columns)
        The centers at the start.
    most_steps : int
    still : float, default=0
        A run ends when the squared distances that its centers have moved add up to at most this.
    at_least : float, default=1
        A center whose rows weigh less stays where it is.
    """
    runs, weights = runs.copy(), np.broadcast_to(weights, (len(runs), len(rows)))
    moving = np.arange(len(runs))
    for _ in range(most_steps):
        labels, _ = nearest_of_each(rows, runs[moving])
        sums, counts = sums_of_each(rows, labels, weights[moving], runs.shape[1])
        centers = centers_of(sums, counts, fallback=runs[moving], at_least=at_least)
        moved = ((centers - runs[moving]) ** 2).sum(axis=(1, 2))
        runs[moving] = centers
        moving = moving[moved > still]
        if not len(moving):
            break
    return runs


def spread_out(apart: Floats, weights: Floats, n_points: int, rng: np.random.Generator) -> Labels:
    """Draw points by greedy k-means++; return their indices, of shape (n_draws, n_points).

    ``apart`` has the squared distances between all cells, and each row of ``weights`` asks for one draw. All draws take
    their steps together. scikit-learn's function would take a hundred times as long.
    """
    n_draws, n_cells = weights.shape
    n_trials = 2 + int(math.log(n_points))
    draws = np.arange(n_draws)
    chosen = np.empty((n_draws, n_points), np.intp)
    chances = np.empty((n_draws, n_points - 1, n_trials))
    for draw, weights_of_draw in enumerate(weights):
        chosen[draw, 0] = rng.choice(n_cells, p=weights_of_draw / weights_of_draw.sum())
        chances[draw] = rng.random(chances[draw].shape)
    nearest = apart[chosen[:, 0]]
    for index in range(1, n_points):
        added_up = np.cumsum(weights * nearest, axis=1)
        places = added_up[:, -1:] * chances[:, index - 1]
        tried = np.array(
            [
                np.searchsorted(sums, place, side="right")
                for sums, place in zip(added_up, places, strict=True)
            ]
        )
        tried = np.minimum(tried, n_cells - 1)
        left = np.minimum(apart[tried], nearest[:, None, :])
        best = (left @ weights[:, :, None])[:, :, 0].argmin(axis=1)
        chosen[:, index] = tried[draws, best]
        nearest = left[draws, best]
    return chosen


def different(solutions: Sequence[Floats], n_wanted: int, apart: float) -> list[Floats]:
    """Return at most n_wanted solutions that differ, the first ones first.

    A solution differs from another if one of its centers has a squared distance of more than ``apart`` from all centers
    of the other. Each solution that is returned differs from all that come before it.
    """
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
    """Offsets of drawn rows from their nearest centers, to estimate what clipping does to the offsets of real rows."""

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
        """Return by how much clipping to a bound shortens the mean offset at each center, as a vector."""
        taken = 1.0 - np.minimum(1.0, bound / np.maximum(self.norms, bound))
        beyond = taken > 0
        sums, _ = cluster_sums(
            self.offsets[beyond] * taken[beyond, None], self.labels[beyond], len(self.sizes)
        )
        return np.where(self.sizes[:, None] >= FEWEST_DRAWN, sums / self.sizes[:, None], 0.0)

    def reach(self, within: float, excess: float) -> float:
        """Choose the bound of offsets, in typical distances, from the relative excess cost of a noisy step.

        The bound is at least :func:`reach_of_offsets`. It is wider if some clusters have far rows, so that clipping
        would move centers by more than the noise does. Real rows may lose UNSURE times as much as drawn rows.
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
    """Return by which fraction the noise of one Lloyd step raises the k-means cost.

    With n / k rows in each of k clusters, the noise moves each mean by a squared distance of ``d (norm k s / n)^2`` on
    average; s / n is ``noise``. Lengths are in units of the typical distance of a row from its center, so that a row
    costs 1.

    Parameters
    ----------
    norm : float
        The most that one row moves the sums, in typical distances.
    noise : float
        The standard deviation of the noise in a sum to which each row adds a vector of norm at most 1, divided by the
        number of rows.
    """
    return n_columns * (n_clusters * norm * noise) ** 2


class BoundOfCosts(NamedTuple):
    """The norm to which a row's costs, less their mean, are clipped; and what the clipping does to the sums."""

    bound: float
    norm: float  #: How far one protected unit (a row or a client) can move the sum after clipping.
    lost: Floats  #: By how much clipping is expected to lower the sum for each solution.


def bound_of_costs(
    rows: Floats,
    solutions: Sequence[Floats],
    n_rows: float,
    noise: float,
    norm: Callable[[Floats, float], float],
) -> BoundOfCosts:
    """Choose the norm to which a row's costs under all solutions, less their mean, are clipped.

    A wide bound needs more noise, and a narrow one loses more by clipping. The loss is estimated on rows that were
    drawn about the cells. Real clusters are less round, so that their rows may lose several times as much.

    Parameters
    ----------
    rows : ndarray
        Drawn rows.
    solutions : sequence of ndarray
    n_rows : float
        The number of real rows.
    noise : float
        The standard deviation of the noise in a sum that one protected unit moves by at most 1.
    norm : callable
        Takes clipped vectors and their bound; returns how far one protected unit moves their sum.
    """
    costs = nearest_of_each(rows, np.stack(solutions))[1].T
    costs = costs - costs.mean(axis=1, keepdims=True)
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
    """Return the cells whose count exceeds ``light`` standard deviations of its noise, the largest count first.

    If these are fewer than ``fewest``, the next largest counts follow.
    """
    order = np.argsort(-counts, kind="stable")[
        : max(int(np.count_nonzero(counts > light * deviation)), fewest)
    ]
    return means[order], np.maximum(counts[order], 1.0)


class Compared(NamedTuple):
    """Solutions of k-means whose costs on the rows a run has compared, and the noisy costs that it released."""

    #: The centers of each solution, of shape (n_solutions, n_clusters, n_columns).
    solutions: Floats
    costs: Floats  #: The mean cost of a row under each solution, up to a constant that all solutions have in common.
    deviation: float  #: The standard deviation of the noise in each of these costs.


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

    The server draws rows about the noisy cells, so that rows between clusters are drawn as well. It moves and weights
    them until they agree with later releases: the means of the clusters, and the costs of the compared solutions. An
    imitated run sees the cells with new noise, chooses among their k-means solutions, takes Lloyd steps on the drawn
    rows, and ends with the noise of its last steps. This noise is ROUGHER times the real one, because a real run would
    also search in other directions. Further runs are imitated without noise: they show what the random
    search alone changes.

    Parameters
    ----------
    centers : ndarray of shape (n_clusters, n_columns)
        The centers found by this run.
    errors : ndarray of shape (n_clusters, 2)
        The variance of the error in an entry of a center, in the directions of the search and elsewhere.
    directions : ndarray of shape (n_columns, n_directions)
        The directions in which the run searched for clusters.
    elsewhere : float
        The variance of the rows in all other directions together.
    compared : sequence of Compared
        The comparisons of the costs of solutions, in the order of the run.
    """
    k, n_compared = len(centers), len(compared[0].solutions) if compared else 1
    cells, table, unmoved = _in_place_of_rows(
        cells, centers, errors, directions, elsewhere, compared, n_compared, rng
    )
    rows, weights = table.rows, table.weights
    labels = nearest_center(rows, centers)
    n_runs = max(math.ceil(N_OTHER_RUNS * min(1.0, MANY_CLUSTERS / k)), FEWEST_OTHER_RUNS)
    noisy = _other_runs(cells, table, rng, ROUGHER, n_runs)
    exact = _other_runs(cells, table, rng, 0.0, n_runs)
    others, _ = nearest_of_each(rows, noisy)
    pairs = combinations(nearest_of_each(rows, exact)[0], 2)
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


def agreement_before_steps(
    cells: NoisyCells, centers: Floats, n_runs: int, rng: Generator
) -> float:
    """Return how well ``n_runs`` imitated runs agree with centers in the directions of the search.

    This is the agreement of :func:`repeated` for centers that have taken no Lloyd steps on the rows, as the centers for
    each number of clusters that is tried. No costs are known yet, so the noise is ROUGHER_OF_NUMBER times the real one.
    """
    k, n_directions = centers.shape
    errors = np.zeros((k, 2))
    cells, table, _ = _in_place_of_rows(
        cells, centers, errors, np.eye(n_directions), 0.0, (), N_STARTS, rng
    )
    labels = nearest_center(table.rows, centers)
    runs = _other_runs(cells, table, rng, ROUGHER_OF_NUMBER, n_runs)
    others, _ = nearest_of_each(table.rows, runs)
    agreements = [adjusted_rand(labels, other, k) for other in others]
    return float(np.mean(agreements))


def _in_place_of_rows(
    cells: NoisyCells,
    centers: Floats,
    errors: Floats,
    directions: Floats,
    elsewhere: float,
    compared: Sequence[Compared],
    n_compared: int,
    rng: Generator,
) -> tuple[NoisyCells, Imitated, Imitated]:
    """Draw rows about the cells, and let rows and cells agree with the centers and with the released costs.

    Returns the cells, the rows with their weights, and the rows as they were drawn.
    """
    k, cells = len(centers), _clear_of_noise(cells, centers @ directions)
    of_cell, drawn = cells.drawn_rows(max(N_SHARED, DRAWN_FOR_EACH * k), cells.within, rng)
    rows = _in_all_columns(drawn, centers, directions, elsewhere, rng)
    unmoved = Imitated(rows, np.ones(len(rows)), errors, directions)
    rows = rows + (centers - unmoved.step(centers[None])[0])[nearest_center(rows, centers)]
    weights = weights_by_costs(rows, compared)
    n_drawn = np.bincount(of_cell, minlength=len(cells.means)) + FEW_DRAWN
    heavier = (np.bincount(of_cell, weights, len(cells.means)) + FEW_DRAWN) / n_drawn
    cells = replace(cells, counts=cells.counts * heavier)
    return cells, Imitated(rows, weights, errors, directions, n_compared), unmoved


def _clear_of_noise(cells: NoisyCells, centers: Floats) -> NoisyCells:
    """Leave out cells of few rows, which new noise would move anywhere; keep at least one cell for each center.

    Later releases have found rows at every center. If noise hides all cells nearest to a center, the largest of them
    stays. If there are none, the center becomes a cell, with the fewest rows that are clear of noise, but one at least.
    """
    means, counts, n_fewest = cells.means, cells.counts, min(len(centers), len(cells.counts))
    clear = CLEAR_CELL * cells.of_counts
    kept = counts >= min(clear, np.sort(counts)[-n_fewest])
    nearest = nearest_center(means, centers)
    for index in np.setdiff1d(np.arange(len(centers)), nearest[kept]):
        own = np.flatnonzero(nearest == index)
        if len(own):
            kept[own[counts[own].argmax()]] = True
    without = np.setdiff1d(np.arange(len(centers)), nearest)
    fewest = max(min(clear, float(np.median(counts[kept]))), 1.0)
    of_centers = np.full(len(without), fewest)
    return replace(
        cells,
        means=np.concatenate([means[kept], centers[without]]),
        counts=np.concatenate([counts[kept], of_centers]),
    )


def weights_by_costs(rows: Floats, compared: Sequence[Compared]) -> Floats:
    """Return weights near 1 for drawn rows, so that their weighted costs agree with the released costs, up to noise.

    Row i of G has the cost of each drawn row under solution i, less the mean cost under all solutions of the same
    comparison. Entry i of e is the released cost of solution i, less the mean of row i of G; v has the variances of the
    noise in e. For m rows the weights are ``1 + G' z / m``, where ``(G G' / m^2 + diag v) z = e``. These are the most
    probable weights if each has the variance 1 beforehand.
    """
    if not compared:
        return np.ones(len(rows))
    costs_of_rows, released_costs, variances_of_noise = [], [], []
    for each in compared:
        _, costs = nearest_of_each(rows, each.solutions)
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
    """Drawn rows that take the place of a run's rows in imitated runs, and how the run searched its rows."""

    rows: Floats
    weights: Floats
    #: The variance of the error in an entry of each center: in the directions of the search, and in all others.
    errors: Floats
    directions: Floats
    n_compared: int = 1  #: The number of solutions in the run's first comparison.

    @cached_property
    def shared(self) -> Floats:
        """The first N_SHARED drawn rows, in the directions of the search."""
        return np.asarray(self.rows[:N_SHARED] @ self.directions)

    def costs(self, runs: Floats) -> Floats:
        """Return the cost of the drawn rows under the centers of each run."""
        return nearest_of_each(self.rows, runs)[1] @ self.weights

    def step(self, runs: Floats) -> Floats:
        """Return the weighted means of the rows nearest to each center of each run."""
        labels, _ = nearest_of_each(self.rows, runs)
        sums, weights = sums_of_each(self.rows, labels, self.weights, runs.shape[1])
        return centers_of(sums, weights, fallback=runs)

    def steps(self, runs: Floats) -> Floats:
        """Return the centers of imitated runs after their Lloyd steps, without noise."""
        for _ in range(N_OTHER_STEPS):
            runs = self.step(runs)
        return runs


def _equal_within(
    table: Imitated, labels_here: Labels, cost: float, compared: Sequence[Compared]
) -> float:
    """Return an upper bound on how much more the nearest rival costs than the chosen solution, relative to its cost.

    A rival is a compared solution with other clusters: its Rand index with the chosen one is below ALIKE. Its bound is
    the released difference of costs plus UNSURE standard deviations of the noise in that difference. The smallest bound
    is returned; infinity if there is no rival.
    """
    bounds, k, weights = [math.inf], len(table.errors), table.weights
    for each in compared:
        labels, _ = nearest_of_each(table.rows, each.solutions)
        alike = np.array(
            [weighted_rand_index(labels_here, other_labels, weights, k) for other_labels in labels]
        )
        worse = each.costs - each.costs[alike.argmax()] + UNSURE * math.sqrt(2.0) * each.deviation
        bounds += worse[alike < ALIKE].tolist()
    return max(min(bounds), 0.0) * len(labels_here) / max(cost, np.finfo(float).tiny)


def _in_all_columns(
    drawn: Floats, centers: Floats, directions: Floats, elsewhere: float, rng: Generator
) -> Floats:
    """Complete rows that were drawn in the directions of the search: elsewhere they lie about their nearest center."""
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
    errors, directions = table.errors, table.directions
    k = len(errors)

    of_means = rng.standard_normal(cells.means.shape) * (cells.of_sums / cells.counts)[:, None]
    of_counts = rng.standard_normal(len(cells.counts)) * cells.of_counts
    means = cells.means + noise * of_means
    counts = np.maximum(cells.counts + noise * of_counts, 1.0)

    n_starts = math.ceil(N_STARTS * min(1.0, MANY_CLUSTERS / k))
    starts = kmeans_of_cells(means, np.tile(counts, (n_starts, 1)), k, rng)
    _, squared = nearest_of_each(means, starts)
    costs = in_seven_digits(squared @ counts)

    # A run compares n_compared solutions by their costs on the rows: those that cost least on the cells.
    _, distinct = np.unique(costs, return_index=True)
    compared = starts[distinct[: table.n_compared]]
    best = compared[0]
    if len(compared) > 1:
        _, squared = nearest_of_each(table.shared, compared)
        of_rows = squared @ table.weights[:N_SHARED]
        best = compared[of_rows.argmin()]

    of_inside = rng.standard_normal((k, directions.shape[1])) * np.sqrt(2 * errors[:, :1])
    of_rest = rng.standard_normal((k, len(directions))) * np.sqrt(2 * errors[:, 1:])
    rest = of_rest - of_rest @ directions @ directions.T
    return best, noise * (of_inside @ directions.T + rest)


def in_seven_digits(costs: Floats) -> Floats:
    """Round costs as a float32 would, at any scale: equal solutions differ in later digits because of rounding."""
    mantissas, exponents = np.frexp(costs)
    return np.ldexp(mantissas.astype(np.float32).astype(np.float64), exponents)


def adjusted_rand(first: Labels, other: Labels, n_clusters: int) -> float:
    """Return the adjusted Rand index of two clusterings of the same rows."""
    return weighted_rand_index(first, other, np.ones(len(first)), n_clusters)


def best_jaccard(
    labels: Labels, others: Labels, n_clusters: int, weights: Floats | float = 1.0
) -> Floats:
    """Return for each cluster of ``labels`` its largest Jaccard index with a cluster of ``others``."""
    table = np.zeros((n_clusters, n_clusters))
    np.add.at(table, (labels, others), weights)
    either = table.sum(axis=1)[:, None] + table.sum(axis=0)[None, :] - table
    return np.asarray(
        np.divide(table, either, out=np.zeros_like(table), where=either > 0).max(axis=1)
    )
