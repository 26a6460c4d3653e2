"""First centers for k-means, from sums alone: they do not depend on which client has which rows.

Few rounds of sums split space into cells. A k-means of their means, each weighted by its number of rows, costs the
server no round, so it finds many different starts. The best take Lloyd steps together, in the same rounds, and drop out
one after the other.
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
from flower_fedclust.exact.sums import directions_onto_grid, random_directions, triangle_to_symmetric
from flower_fedclust.exact.terms import Term, at, products, side_by_side, sketched_products
from flower_fedclust.numerics.kmeans import centers_of, squared_distances
from flower_fedclust.numerics.spectrum import kept_of_singular, variances_along
from flower_fedclust.numerics.validity import ClusterNumber
from flower_fedclust.strategies.common.clusters import lloyd_steps
from flower_fedclust.strategies.common.frame import FRAME_ROUNDS, FrameClient, frame_of_rows
from flower_fedclust.strategies.common.noisy_cells import spread_out
from flower_fedclust.strategies.common.small_clusters import (
    FINER,
    N_INIT,
    NoisyClusters,
    chosen_number,
    clustered,
    weight_of,
)

Floats = NDArray[np.float64]

#: The number of cells for each cluster, the fewest and the most cells; but no fewer than three for each cluster.
CELLS_FOR_A_CLUSTER, FEWEST_CELLS, MOST_CELLS, LEAST_FOR_A_CLUSTER = 20, 100, 600, 3
#: In how many rounds space is split.
N_SPLITS = 3
#: How far new points are from the mean that they split, as a fraction of the rows' reach.
BESIDE = 2.0**-20
#: Nearest cells are sought in as many directions as there are clusters, but in at least and at most so many.
N_DIRECTIONS, MOST_DIRECTIONS = 64, 128
#: Beyond so many columns, sums of outer products are sketched by so many random directions.
MOST_COLUMNS, N_SKETCHED = 500, 200
#: Restarts of the k-means of cells; fewer, but not below the second number, if they multiply more than this in all.
N_RESTARTS, FEWEST_RESTARTS, MOST_WORK = 200, 10, 4e9
#: How many starts take each of the Lloyd steps together; fewer, in proportion, if the entries of their centers are more
#: than the first number, or the products of a step more than the second. At least two take the first steps.
N_STARTS, MOST_ENTRIES, MOST_PRODUCTS = (60, 60, 30, 30, 15, 15, 15, 15, 6, 6, 6, 6), 2**20, 2e9

#: How many rounds :func:`cells_of_rows` and :func:`best_start` take, one after the other.
START_ROUNDS = 1 + N_SPLITS + len(N_STARTS)
#: The most Lloyd steps from the best start, and the rounds of :func:`kmeans_of_all_rows`.
N_LAST_ROUNDS = 20
ALL_ROWS_ROUNDS = FRAME_ROUNDS + START_ROUNDS + N_LAST_ROUNDS


@dataclass(frozen=True)
class Cells:
    """The rows, summed up by small regions of space; in the coordinates of the frame."""

    means: Floats
    counts: Floats
    directions: Floats  #: In which rows spread most, of shape (n_columns, n_directions).
    spread: Floats  #: The standard deviations of the rows along these.


def cells_of_rows(
    frame: Frame, n_rows: float, n_clusters: int, rng: np.random.Generator, public: Floats | None = None
) -> Generator[Round, Total, Cells]:
    """Split space into cells with about equally many rows; public points, in the frame, are among the first cells."""
    sketch = sketch_of(len(frame.origin), rng)
    (moment,) = yield Sum(StartsClient.second_moment.asked(frame=frame, **sketch))
    values, directions, *_ = spectrum_of(moment, sketch, n_rows, 0.0)
    n_inside = min(max(n_clusters, N_DIRECTIONS), MOST_DIRECTIONS, len(values))
    spread = np.sqrt(np.maximum(values[:n_inside], 0.0))
    inside = directions_onto_grid(np.ascontiguousarray(directions[:, :n_inside]))
    n_cells = int(np.clip(CELLS_FOR_A_CLUSTER * n_clusters, FEWEST_CELLS, MOST_CELLS))
    n_cells = max(n_cells, LEAST_FOR_A_CLUSTER * n_clusters)
    points = rng.standard_normal((n_cells, n_inside)) * spread
    if public is not None:
        chosen = rng.permutation(public @ inside)[:n_cells]
        points[: len(chosen)] = chosen
    for split in range(N_SPLITS):
        (sums,), (counts,) = yield Sum(StartsClient.start_sums.asked(points[None], inside, frame=frame))
        means, counts = sums[counts > 0] / counts[counts > 0, None], counts[counts > 0]
        if split < N_SPLITS - 1:
            points, n_missing = means @ inside, max(n_cells - len(means), 0)
            beside = _beside(points, counts, spread, n_missing, BESIDE * frame.radius, rng)
            points = np.concatenate([points, beside])
    return Cells(means, counts, inside, spread)


def _beside(
    means: Floats, counts: Floats, spread: Floats, n_points: int, distance: float, rng: np.random.Generator
) -> Floats:
    """Return points beside means: half of these are drawn in proportion to their rows, half from all with several rows.

    Points beside a mean share out its rows by direction, however far these are from it: this splits cells of any size,
    as there are beside an outlier. Every second point lies where the rows' spread makes it likely, the others anywhere.
    """
    several = np.maximum(counts > 1, 0.0) + np.finfo(float).tiny
    parents = rng.choice(len(means), n_points, p=(counts / counts.sum() + several / several.sum()) / 2)
    directions = rng.standard_normal((n_points, len(spread)))
    directions[::2] *= spread / max(spread.max(), np.finfo(float).tiny)
    return np.asarray(means[parents] + distance * directions)


def best_start(
    cells: Cells, n_clusters: int, frame: Frame, rng: np.random.Generator
) -> Generator[Round, Total, Floats]:
    """Take Lloyd steps from many starts at once, and return the centers that cost least, in the frame."""
    starts = _starts(cells, n_clusters, rng)
    of_one = starts[0].size * max(float(cells.counts.sum()) / MOST_PRODUCTS, 1 / MOST_ENTRIES)
    most = min(max(1 / of_one, 2.0), N_STARTS[0])
    for n_kept in N_STARTS:
        starts = starts[: math.ceil(n_kept * most / N_STARTS[0])]
        sums, counts = yield Sum(StartsClient.start_sums.asked(starts, np.zeros((0, 0)), frame=frame))
        moved = centers_of(sums, counts, fallback=starts)
        if np.array_equal(moved, starts):
            break
        # A start costs the sum of the rows' squared norms, less this.
        saved = (sums**2 / np.maximum(counts, 1.0)[..., None]).sum(axis=(1, 2))
        starts = moved[np.argsort(-saved, kind="stable")]
    return np.asarray(starts[0])


def kmeans_of_all_rows(
    numbers: tuple[int, int], rng: np.random.Generator, public: Floats | None = None
) -> Generator[Round, Total, tuple[Frame, Floats, ClusterNumber | None]]:
    """Find centers by k-means of all rows, unclipped and without noise, from the best of many starts.

    Returns the frame, the centers in it, and the number of clusters if there was a choice. ``public`` rows, in the
    columns of the data, are among the first cells.
    """
    frame, n_rows = yield from frame_of_rows()
    n_clusters = numbers[1]
    cells = yield from cells_of_rows(frame, n_rows, n_clusters, rng, None if public is None else frame.enter(public))
    number = None
    if numbers[0] < n_clusters:
        points = cells.means @ cells.directions
        small = clustered(points, cells.counts, FINER * n_clusters, rng, n_init=N_INIT)
        sizes, total = weight_of(points, cells.counts, small), float((cells.spread**2).sum())
        number = chosen_number(NoisyClusters(small, sizes, total, 0.0, 0.0), cells.spread, numbers, rng)
        n_clusters = number.chosen
    start = yield from best_start(cells, n_clusters, frame, rng)
    return frame, (yield from lloyd_steps(start, frame, N_LAST_ROUNDS, 0.0)), number


def _starts(cells: Cells, n_clusters: int, rng: np.random.Generator) -> Floats:
    """Return different results of a weighted k-means of the cells, the best first."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    if len(cells.means) <= n_clusters:
        return np.resize(cells.means, (1, n_clusters, cells.means.shape[1]))
    points, sums = cells.means @ cells.directions, cells.means * cells.counts[:, None]
    apart = squared_distances(points, points)
    n_restarts = int(np.clip(MOST_WORK / (20 * points.size * n_clusters), FEWEST_RESTARTS, N_RESTARTS))
    found: dict[np.float32, Floats] = {}
    for n_done in range(n_restarts):
        if n_done > 40 + 3 * len(found):
            break  # there are few different results
        first = points[spread_out(apart, cells.counts, n_clusters, rng)]
        estimator = KMeans(n_clusters, init=first, n_init=1, max_iter=50)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # if cells coincide, so do centers
            labels = estimator.fit(points, sample_weight=cells.counts).labels_
        members = (labels == np.arange(n_clusters)[:, None]).astype(np.float64)
        fallback = estimator.cluster_centers_ @ cells.directions.T
        found[np.float32(estimator.inertia_)] = centers_of(members @ sums, members @ cells.counts, fallback)
    return np.array([found[inertia] for inertia in sorted(found)])


def sketch_of(n_columns: int, rng: np.random.Generator) -> dict[str, int]:
    """Return the arguments of the question for a second moment: for many columns, a sketch of it."""
    if n_columns <= MOST_COLUMNS:
        return {}
    return {"n_directions": N_SKETCHED, "random_state": int(rng.integers(2**31))}


class Spectrum(NamedTuple):
    """What a noisy second moment shows."""

    values: Floats  #: The variances of the rows along the directions, the largest first; estimates if there is noise.
    directions: Floats  #: Of shape (n_columns, n_directions).
    n_above: int  #: How many eigenvalues exceed what noise alone can produce: at least 1.
    edge: float  #: No eigenvalue of the noise exceeds it.
    total: float  #: The mean squared norm of a row.


def spectrum_of(moment: Floats, sketch: dict[str, int], n_rows: float, noise: float) -> Spectrum:
    """Return the directions in which rows spread most, and how far, from the sum of their outer products.

    A sketch Y = M S gives the eigenvectors that stand above the noise, half as many as it has directions at most: the
    matrix is sought in the span U of its largest singular vectors, as ``M = U B U'`` with the B for which ``U B U' S``
    is nearest to Y.

    Parameters
    ----------
    moment : ndarray
        The sum over the rows: an upper triangle or a sketch.
    sketch : dict
        From :func:`sketch_of`.
    n_rows : float
    noise : float
        The standard deviation of the noise in an entry; in an entry of the diagonal, for a triangle.
    """
    if not sketch:
        values, vectors = np.linalg.eigh(triangle_to_symmetric(moment) / n_rows)
        values, of_one = values[::-1], noise / n_rows
        # By the semicircle law.
        edge = of_one * math.sqrt(2 * len(values))
        n_above = max(int(np.count_nonzero(values > edge)), 1)
        return Spectrum(variances_along(values, of_one), vectors[:, ::-1], n_above, edge, float(values.sum()))
    n_columns, n_directions = moment.shape
    times = math.sqrt(n_columns / n_directions)  # with S S' = 1 on average
    S = times * random_directions(n_columns, n_directions, sketch["random_state"])
    Y, of_one = moment * (times / n_rows), noise * times / n_rows
    edge = of_one * (math.sqrt(n_columns) + math.sqrt(n_directions))
    U, singular, _ = np.linalg.svd(Y, full_matrices=False)
    n_kept = min(max(int(np.count_nonzero(singular > edge)), 1), n_directions // 2)
    U, kept = U[:, :n_kept], np.sqrt(kept_of_singular(singular, Y.shape, of_one)[:n_kept])
    B = np.linalg.lstsq((U.T @ S).T, (U.T @ Y).T, rcond=None)[0]
    B = (B + B.T) / 2
    n_above = max(int(np.count_nonzero(np.linalg.eigvalsh(B) > edge)), 1)
    values, vectors = np.linalg.eigh(kept[:, None] * B * kept)
    return Spectrum(values[::-1], U @ vectors[:, ::-1], n_above, edge, float(np.vdot(S, Y)))


class StartsClient(FrameClient):
    """The answers of a client from which first centers are found."""

    @by_row(second_moment="sum of the outer products of the rows (upper triangle), or of rows and short projections")
    def second_moment(rows: Rows, *, n_directions: int = 0, random_state: int = 0) -> Term:
        """Return the second moment of the rows in the frame, or a sketch with so many random directions."""
        return sketched_products(rows, n_directions, random_state) if n_directions else products(rows)

    @by_row(
        sums="sum of the rows nearest to each point, for each set of points",
        counts=Sent("number of rows nearest to each point, for each set of points", is_positive=True),
    )
    def start_sums(rows: Rows, starts: Floats, directions: Floats) -> tuple[Term, Term]:
        """Return sums and counts for each set of points; public directions, if any, say where nearest points are."""
        n_starts, n_points = starts.shape[:2]
        n_columns = rows.integers.shape[1]
        seen = rows.projected(directions)
        nearest = [seen.nearest(points) for points in starts]
        words = "a row is nearest to one point of each set"
        sums = [at(labels, n_points, rows).reshaped(n_points * n_columns) for labels in nearest]
        counts = [at(labels, n_points) for labels in nearest]
        return (
            side_by_side(sums, words=words).reshaped(n_starts, n_points, n_columns),
            side_by_side(counts, words=words).reshaped(n_starts, n_points),
        )
