"""First centers for k-means, from sums alone, so that it does not matter which client has which rows.

A few rounds of sums split space into cells. The server clusters the means of the cells, weighted by their numbers of
rows. This takes no round, so the server can try many starts. The best results take Lloyd steps together, in the same
rounds, and the results that cost more drop out step by step.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine.by_row import by_row
from flower_fedclust.engine.rounds import Round, Sent, Sum, Total
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.sums import (
    directions_onto_grid,
    random_directions,
    triangle_to_symmetric,
)
from flower_fedclust.exact.terms import Term, at, products, side_by_side, sketched_products
from flower_fedclust.numerics.kmeans import centers_of, squared_distances
from flower_fedclust.numerics.spectrum import kept_of_singular, variances_along
from flower_fedclust.numerics.validity import ClusterNumber
from flower_fedclust.strategies.common.clusters import lloyd_steps
from flower_fedclust.strategies.common.frame import FRAME_ROUNDS, FrameClient, frame_of_rows
from flower_fedclust.strategies.common.noisy_cells import (
    NoisyCells,
    different,
    in_seven_digits,
    spread_out,
)
from flower_fedclust.strategies.common.small_clusters import (
    FINER,
    N_INIT,
    NoisyClusters,
    chosen_number,
    clustered,
    weight_of,
)

Floats = NDArray[np.float64]

#: Cells for each cluster.
CELLS_FOR_A_CLUSTER = 20
#: The fewest and the most cells in all.
FEWEST_CELLS, MOST_CELLS = 100, 600
#: The fewest cells for each cluster, even if these are more than the most in all.
LEAST_FOR_A_CLUSTER = 3
#: Bounds on the time of a run: the number of entries of all rows times the number of cells is at most the first number,
#: unless there are only as many cells for each cluster as the second number. The same, for directions instead of cells,
#: with the third and the fourth number.
MOST_CELL_PRODUCTS, FEWEST_FOR_A_CLUSTER, MOST_PROJECTED, DIRECTIONS_FOR_A_CLUSTER = 3e9, 10, 1e9, 2
#: The number of rounds that split space into cells.
N_SPLITS = 3
#: The distance of new points from the mean that they split, as a fraction of the frame's radius.
BESIDE = 2.0**-20
#: Nearest cells are sought in as many directions as there are clusters, but in at least the first and at most the
#: second number.
N_DIRECTIONS, MOST_DIRECTIONS = 64, 128
#: With more columns than the first number, clients send a sketch of the sum of their rows' outer products: its product
#: with random directions. The second number says with how many.
MOST_COLUMNS, N_SKETCHED = 500, 200
#: Restarts of the k-means of the cells. If they take more multiplications than the third number, there are fewer, but
#: at least the second number. There are also at most the fourth number for each start that takes Lloyd steps.
N_RESTARTS, FEWEST_RESTARTS, MOST_WORK, RESTARTS_FOR_A_START = 200, 10, 4e9, 10
#: How many starts take each Lloyd step together. There are fewer, in proportion, if all their centers have more entries
#: than the second number, or a step takes more multiplications than the third; but at least two take the first steps.
N_STARTS, MOST_ENTRIES, MOST_PRODUCTS = (60, 60, 30, 30, 15, 15, 15, 15, 6, 6, 6, 6), 2**20, 2e9

#: Two starts count as the same if each center of one is near a center of the other: their squared distance is at most
#: this fraction of the smallest squared distance between two centers of the best start.
SAME_PLACE = 0.04

#: The number of rounds of :func:`cells_of_rows` and :func:`best_start` together.
START_ROUNDS = 1 + N_SPLITS + len(N_STARTS)
#: The most Lloyd steps from the best start.
N_LAST_ROUNDS = 20
#: The number of rounds of :func:`kmeans_of_all_rows`.
ALL_ROWS_ROUNDS = FRAME_ROUNDS + START_ROUNDS + N_LAST_ROUNDS


@dataclass(frozen=True)
class Cells:
    """Small regions of space with the means and the numbers of their rows, in the coordinates of the frame."""

    means: Floats
    counts: Floats
    #: The directions in which rows spread most, of shape (n_columns, n_directions).
    directions: Floats
    spread: Floats  #: The standard deviations of the rows along these directions.


def cells_of_rows(
    frame: Frame,
    n_rows: float,
    n_clusters: int,
    rng: np.random.Generator,
    public: Floats | None = None,
) -> Generator[Round, Total, Cells]:
    """Split space into cells with about equally many rows.

    ``public`` rows, in the coordinates of the frame, are among the first points of the cells.
    """
    sketch = sketch_of(len(frame.origin), rng)
    (moment,) = yield Sum(StartsClient.second_moment.asked(frame=frame, **sketch))
    values, directions, *_ = spectrum_of(moment, sketch, n_rows, 0.0)
    n_inside = min(max(n_clusters, N_DIRECTIONS), MOST_DIRECTIONS, len(values))
    n_entries = n_rows * len(frame.origin)
    most_inside = max(MOST_PROJECTED / n_entries, DIRECTIONS_FOR_A_CLUSTER * n_clusters)
    n_inside = min(n_inside, int(most_inside))
    spread = np.sqrt(np.maximum(values[:n_inside], 0.0))
    inside = directions_onto_grid(np.ascontiguousarray(directions[:, :n_inside]))
    n_cells = int(np.clip(CELLS_FOR_A_CLUSTER * n_clusters, FEWEST_CELLS, MOST_CELLS))
    n_cells = max(n_cells, LEAST_FOR_A_CLUSTER * n_clusters)
    most_cells = max(MOST_CELL_PRODUCTS / n_entries, FEWEST_FOR_A_CLUSTER * n_clusters)
    n_cells = min(n_cells, int(most_cells))
    points = rng.standard_normal((n_cells, n_inside)) * spread
    if public is not None:
        chosen = rng.permutation(public @ inside)[:n_cells]
        points[: len(chosen)] = chosen
    for split in range(N_SPLITS):
        (sums,), (counts,) = yield Sum(
            StartsClient.start_sums.asked(points[None], inside, frame=frame)
        )
        means, counts = sums[counts > 0] / counts[counts > 0, None], counts[counts > 0]
        if split < N_SPLITS - 1:
            points, n_missing = means @ inside, max(n_cells - len(means), 0)
            beside = _beside(points, counts, spread, n_missing, BESIDE * frame.radius, rng)
            points = np.concatenate([points, beside])
    return Cells(means, counts, inside, spread)


def _beside(
    means: Floats,
    counts: Floats,
    spread: Floats,
    n_points: int,
    distance: float,
    rng: np.random.Generator,
) -> Floats:
    """Return points close to some means, to split their cells.

    Half of the means are drawn in proportion to their numbers of rows, half uniformly from all means with several rows.
    A point close to a mean takes the rows of the cell that lie in its direction, however far they are. So cells of any
    size are split, even those that an outlier makes large. Every second direction is drawn with the spread of the rows,
    the others uniformly.
    """
    several = np.maximum(counts > 1, 0.0) + np.finfo(float).tiny
    parents = rng.choice(
        len(means), n_points, p=(counts / counts.sum() + several / several.sum()) / 2
    )
    directions = rng.standard_normal((n_points, len(spread)))
    directions[::2] *= spread / max(spread.max(), np.finfo(float).tiny)
    return np.asarray(means[parents] + distance * directions)


def best_start(
    cells: Cells, n_clusters: int, frame: Frame, rng: np.random.Generator
) -> Generator[Round, Total, Floats]:
    """Take Lloyd steps from many starts at once; return the centers with the least cost, in the frame.

    A start drops out if its cost is high, or if all its centers come close to the centers of a better start, because
    both would end with the same centers.
    """
    n_entries = n_clusters * len(frame.origin)
    work_of_a_start = n_entries * max(float(cells.counts.sum()) / MOST_PRODUCTS, 1 / MOST_ENTRIES)
    most = min(max(1 / work_of_a_start, 2.0), N_STARTS[0])
    starts = _starts(cells, n_clusters, math.ceil(RESTARTS_FOR_A_START * most), rng)
    # With fewer starts, only the first step takes all of them: the cost barely changes, and the time does.
    n_kept_by_step = N_STARTS if most == N_STARTS[0] else N_STARTS[:1] + N_STARTS[2:]
    for n_kept in n_kept_by_step:
        starts = _apart(starts, math.ceil(n_kept * most / N_STARTS[0]))
        sums, counts = yield Sum(
            StartsClient.start_sums.asked(starts, np.zeros((0, 0)), frame=frame)
        )
        moved = centers_of(sums, counts, fallback=starts)
        if np.array_equal(moved, starts):
            break
        # The cost of a start is the sum of the rows' squared norms minus this number.
        saved = (sums**2 / np.maximum(counts, 1.0)[..., None]).sum(axis=(1, 2))
        starts = moved[np.argsort(-saved, kind="stable")]
    return np.asarray(starts[0])


def _apart(starts: Floats, most: int) -> Floats:
    """Return the first ``most`` starts that differ; see :data:`SAME_PLACE`."""
    between = squared_distances(starts[0], starts[0])
    np.fill_diagonal(between, np.inf)
    return np.stack(different(list(starts), most, SAME_PLACE * float(between.min())))


def kmeans_of_all_rows(
    numbers: tuple[int, int], rng: np.random.Generator, public: Floats | None = None
) -> Generator[Round, Total, tuple[Frame, Floats, ClusterNumber | None]]:
    """Find centers by k-means of all rows, unclipped and without noise, from the best of many starts.

    Returns the frame, the centers in its coordinates, and the number of clusters if there was a choice. ``public``
    rows, in the coordinates of the data, are among the first points of the cells.
    """
    frame, n_rows = yield from frame_of_rows()
    n_clusters = numbers[1]
    cells = yield from cells_of_rows(
        frame, n_rows, n_clusters, rng, None if public is None else frame.enter(public)
    )
    number = None
    if numbers[0] < n_clusters:
        points = cells.means @ cells.directions
        small = clustered(points, cells.counts, FINER * n_clusters, rng, n_init=N_INIT)
        sizes, total = weight_of(points, cells.counts, small), float((cells.spread**2).sum())
        number = chosen_number(
            NoisyClusters(small, sizes, total, 0.0, 0.0, _as_cells(small, sizes, cells.spread)),
            cells.spread,
            n_rows,
            numbers,
            rng,
        )
        n_clusters = number.chosen
    start = yield from best_start(cells, n_clusters, frame, rng)
    centers = yield from lloyd_steps(start, frame, N_LAST_ROUNDS, 0.0)
    return frame, centers, number


def _as_cells(means: Floats, sizes: Floats, spread: Floats) -> NoisyCells:
    """Return small clusters as cells without noise, about which rows are drawn to imitate other runs."""
    between = sizes @ means**2 / sizes.sum()
    within = np.maximum(spread**2 - between, 0.0)
    return NoisyCells(means, np.maximum(sizes, 1.0), within, 0.0, 0.0)


def _starts(cells: Cells, n_clusters: int, most_restarts: int, rng: np.random.Generator) -> Floats:
    """Return the distinct results of a weighted k-means of the cells, the best first."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    if len(cells.means) <= n_clusters:
        return np.resize(cells.means, (1, n_clusters, cells.means.shape[1]))
    points, sums = cells.means @ cells.directions, cells.means * cells.counts[:, None]
    apart = squared_distances(points, points)
    n_restarts = int(
        np.clip(
            MOST_WORK / (20 * points.size * n_clusters),
            FEWEST_RESTARTS,
            min(N_RESTARTS, most_restarts),
        )
    )
    by_cost: dict[float, Floats] = {}
    for n_done in range(n_restarts):
        if n_done > 40 + 3 * len(by_cost):
            break  # there are only few distinct results
        first = points[spread_out(apart, cells.counts[None], n_clusters, rng)[0]]
        estimator = KMeans(n_clusters, init=first, n_init=1, max_iter=50)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # centers coincide if cells do
            labels = estimator.fit(points, sample_weight=cells.counts).labels_
        members = (labels == np.arange(n_clusters)[:, None]).astype(np.float64)
        fallback = estimator.cluster_centers_ @ cells.directions.T
        by_cost[float(in_seven_digits(estimator.inertia_))] = centers_of(
            members @ sums, members @ cells.counts, fallback
        )
    return np.array([by_cost[inertia] for inertia in sorted(by_cost)])


def sketch_of(n_columns: int, rng: np.random.Generator) -> dict[str, int]:
    """Return the arguments of the question for a second moment: none, or with many columns a sketch's."""
    if n_columns <= MOST_COLUMNS:
        return {}
    return {"n_directions": N_SKETCHED, "random_state": int(rng.integers(2**31))}


class Spectrum(NamedTuple):
    """The eigenvalues and eigenvectors of the rows' second moment, estimated from a noisy one or from its sketch."""

    #: The variances of the rows along the directions, the largest first; estimates if there is noise.
    values: Floats
    directions: Floats  #: The eigenvectors, as columns, of shape (n_columns, n_directions).
    n_above: int  #: The number of eigenvalues that exceed what noise alone can produce; at least 1.
    edge: float  #: The largest eigenvalue that the noise alone can have.
    total: float  #: The mean squared norm of a row.


def spectrum_of(moment: Floats, sketch: dict[str, int], n_rows: float, noise: float) -> Spectrum:
    """Return the directions in which rows spread most, and their variances, from the sum of their outer products.

    Let M be the second moment and ``Y = M S`` its sketch by random directions S. The sketch gives the eigenvectors of M
    whose eigenvalues exceed the noise, but at most half as many as S has columns. Let U be the left singular vectors of
    Y with the largest singular values. Then M is estimated as ``U B U'``, with the B for which ``U B U' S`` is nearest
    to Y.

    Parameters
    ----------
    moment : ndarray
        The sum over the rows: an upper triangle or a sketch.
    sketch : dict
        From :func:`sketch_of`.
    n_rows : float
    noise : float
        The standard deviation of the noise in an entry; for a triangle, in an entry of the diagonal.
    """
    if not sketch:
        values, vectors = np.linalg.eigh(triangle_to_symmetric(moment) / n_rows)
        values, noise_of_mean = values[::-1], noise / n_rows
        # By the semicircle law, the largest eigenvalue of a matrix of noise.
        edge = noise_of_mean * math.sqrt(2 * len(values))
        n_above = max(int(np.count_nonzero(values > edge)), 1)
        return Spectrum(
            variances_along(values, noise_of_mean),
            vectors[:, ::-1],
            n_above,
            edge,
            float(values.sum()),
        )
    n_columns, n_directions = moment.shape
    times = math.sqrt(n_columns / n_directions)  # because S S' is 1 on average
    S = times * random_directions(n_columns, n_directions, sketch["random_state"])
    Y, noise_of_mean = moment * (times / n_rows), noise * times / n_rows
    edge = noise_of_mean * (math.sqrt(n_columns) + math.sqrt(n_directions))
    U, singular, _ = np.linalg.svd(Y, full_matrices=False)
    n_kept = min(max(int(np.count_nonzero(singular > edge)), 1), n_directions // 2)
    U, kept = U[:, :n_kept], np.sqrt(kept_of_singular(singular, Y.shape, noise_of_mean)[:n_kept])
    B = np.linalg.lstsq((U.T @ S).T, (U.T @ Y).T, rcond=None)[0]
    B = (B + B.T) / 2
    n_above = max(int(np.count_nonzero(np.linalg.eigvalsh(B) > edge)), 1)
    values, vectors = np.linalg.eigh(kept[:, None] * B * kept)
    return Spectrum(values[::-1], U @ vectors[:, ::-1], n_above, edge, float(np.vdot(S, Y)))


class StartsClient(FrameClient):
    """A client's answers from which the server finds first centers."""

    @by_row(
        second_moment="sum of the outer products of the rows (upper triangle), or of rows and short projections"
    )
    def second_moment(rows: Rows, *, n_directions: int = 0, random_state: int = 0) -> Term:
        """Return the sum of the rows' outer products in the frame, or its sketch by n_directions random directions."""
        return (
            sketched_products(rows, n_directions, random_state) if n_directions else products(rows)
        )

    @by_row(
        sums="sum of the rows nearest to each point, for each set of points",
        counts=Sent(
            "number of rows nearest to each point, for each set of points", is_positive=True
        ),
    )
    def start_sums(rows: Rows, starts: Floats, directions: Floats) -> tuple[Term, Term]:
        """Return for each start the sums and numbers of the rows nearest to its points.

        Distances are measured in the given directions or, without directions, in all columns.
        """
        n_starts, n_points = starts.shape[:2]
        n_columns = rows.n_columns
        seen = rows.projected(directions)
        nearest = seen.nearest_in_each(starts)
        words = "a row is nearest to one point of each set"
        sums = [at(labels, n_points, rows).reshaped(n_points * n_columns) for labels in nearest]
        counts = [at(labels, n_points) for labels in nearest]
        return (
            side_by_side(sums, words=words).reshaped(n_starts, n_points, n_columns),
            side_by_side(counts, words=words).reshaped(n_starts, n_points),
        )
