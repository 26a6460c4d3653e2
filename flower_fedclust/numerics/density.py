"""Clusters of any shape from a noisy histogram of cells.

The histogram is smoothed by a kernel, and cut into clusters in one of three ways: into round clusters, at the peaks of
the density, or by a normalized cut of the graph of neighboring cells.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.initialization import weighted_kmeans
from flower_fedclust.numerics.kmeans import nearest_center, squared_distances
from flower_fedclust.numerics.validity import weighted_rand_index

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: Entries that are computed at a time, one for each cell and cluster: 2 MB.
CELL_ENTRIES = 2**18
#: The widths of the Gaussian kernel that are tried, in cells.
WIDTHS = (0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.2, 1.4, 1.7, 2.0, 2.4, 2.8)
#: The kernel has this fraction of the width with the least estimated risk, because smoothing joins clusters; but at
#: least LEAST_WIDTH, in cells.
PART_OF_WIDTH, LEAST_WIDTH = 0.7, 0.5
#: Without noise, a cell with a smaller density is empty.
LEAST_DENSITY = 0.1
#: A group of touching cells is kept if its number of rows is at least this many standard deviations of its noise.
DEVIATIONS_OF_A_GROUP = 4.0
#: Clusters are cut at the peaks if each peak rises CLEAR_RISE standard deviations above the cell where it meets a
#: higher one, and if clusters have CELLS_OF_A_SHAPE cells on average: among fewer cells, noise makes peaks too easily.
CLEAR_RISE, CELLS_OF_A_SHAPE = 2.0, 40
#: Clusters are round if equal Gaussians leave at most this fraction of the squared density unexplained. The Gaussians
#: are fitted by N_EM_STEPS steps of EM.
MISFIT_OF_ROUND, N_EM_STEPS = 0.05, 30
#: A round cluster has at least this fraction of all rows.
LEAST_SIZE = 1e-3
#: For a normalized cut: the least width of the kernel.
LEAST_WIDTH_OF_A_CUT = 0.7
#: For a normalized cut: the most cells. If there are more, neighboring cells are joined first.
MOST_CELLS_OF_A_CUT = 1500
#: For a normalized cut: a group of touching cells is left out if it is below this fraction of an average cluster.
LEAST_PART = 0.15
#: When peaks are ranked, a mass above this fraction of an average cluster counts as this fraction.
PART_OF_A_CLUSTER = 0.5
#: How often k-means restarts.
N_INIT = 3
#: How often the Gaussians of given round clusters are adapted.
N_ADAPTED = 6
#: How many other runs are simulated, to estimate how far they would agree.
N_OTHER_RUNS = 3


class Histogram(NamedTuple):
    """Noisy numbers of rows in the cells of a grid, and the standard deviation of the noise."""

    counts: Floats
    deviation: float

    def coarse(self) -> Histogram:
        """Return the histogram of cells twice as wide."""
        counts = self.counts
        for axis, n_cells in enumerate(counts.shape):
            counts = np.add.reduceat(counts, np.arange(0, n_cells, 2), axis=axis)
        return Histogram(counts, self.deviation * 2 ** (counts.ndim / 2))

    def smoothed(self, width: float) -> tuple[Floats, float, float]:
        """Return the counts smoothed by a Gaussian kernel, its largest weight, and the sum of its squared weights."""
        from scipy.ndimage import correlate1d  # slow to import

        reach, density = int(4 * width + 0.5), self.counts
        weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
        weights /= weights.sum()
        for axis in range(density.ndim):
            density = correlate1d(density, weights, axis, mode="constant")
        return (
            density,
            float(weights.max()) ** density.ndim,
            float((weights**2).sum()) ** density.ndim,
        )


def width_of(histogram: Histogram) -> float:
    """Return the width of the kernel, by Stein's unbiased risk estimate for counts with a Poisson distribution."""
    counts = histogram.counts
    variance = counts.size * histogram.deviation**2 + max(float(counts.sum()), 0.0)
    risks = []
    for width in WIDTHS:
        density, largest, _ = histogram.smoothed(width)
        risks.append(float(((density - counts) ** 2).sum()) + 2 * largest * variance)
    return max(PART_OF_WIDTH * WIDTHS[int(np.argmin(risks))], LEAST_WIDTH)


@dataclass(frozen=True)
class Density:
    """Smoothed numbers of rows in the cells that are not empty, the densest cell first."""

    shape: tuple[int, ...]
    places: Labels  #: The cell of each value, as an index into the flattened grid.
    values: Floats
    squares: float  #: The sum of the kernel's squared weights.
    deviation: float  #: The standard deviation of the noise in a value.

    @classmethod
    def of(cls, histogram: Histogram, width: float) -> Density:
        """Smooth a histogram, and leave out cells and groups of cells that noise could have made."""
        counts, deviation = histogram
        density, _, squares = histogram.smoothed(width)
        smooth, noise = density.ravel(), deviation * float(np.sqrt(squares))
        places = np.flatnonzero(smooth > max(noise, LEAST_DENSITY))
        places = places[np.argsort(-smooth[places], kind="stable")]
        found = cls(counts.shape, places, smooth[places], squares, noise)
        if not len(places) or not deviation:
            return found
        group = found.peaks().group
        sizes = np.bincount(group)
        is_real = np.bincount(
            group, counts.ravel()[places]
        ) >= DEVIATIONS_OF_A_GROUP * deviation * np.sqrt(sizes)
        kept = is_real[group] if is_real.any() else np.ones(len(places), dtype=bool)
        return cls(counts.shape, places[kept], found.values[kept], squares, noise)

    def pairs(self) -> tuple[Labels, Labels, Floats]:
        """Return the denser and the thinner cell of each pair of neighbors, and the distance of their centers.

        Cells are given by their positions in :attr:`places`, in which the densest cell is 0.
        """
        rank = np.full(self.shape, -1, dtype=np.intp)
        rank.flat[self.places] = np.arange(len(self.places))
        rank, found = np.pad(rank, 1, constant_values=-1), []
        cells = np.stack(np.unravel_index(self.places, self.shape), axis=1) + 1
        for step in product((-1, 0, 1), repeat=len(self.shape)):
            if step > (0,) * len(step):
                other = rank[tuple((cells + step).T)]
                one = np.flatnonzero(other >= 0)
                ends = one, other[one]
                found.append(
                    (np.minimum(*ends), np.maximum(*ends), np.full(len(one), np.linalg.norm(step)))
                )
        denser, thinner, distances = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return denser, thinner, distances

    def peaks(self, kept: Labels | None = None) -> Peaks:
        """Group the cells around peaks, from the densest cell to the thinnest.

        Each cell joins the groups of its denser neighbors. Groups that meet become one, unless both contain a peak that
        is in ``kept``.
        """
        n_cells = len(self.values)
        denser, thinner, _ = self.pairs()
        denser = denser[np.argsort(thinner, kind="stable")]
        starts = np.searchsorted(np.sort(thinner), np.arange(n_cells + 1)).tolist()
        is_kept = np.isin(np.arange(n_cells), [] if kept is None else kept)
        values, near = self.values.tolist(), denser.tolist()
        top, masses, rises = list(range(n_cells)), list(values), list(values)

        def top_of(cell: int) -> int:
            while top[cell] != cell:
                top[cell] = cell = top[top[cell]]
            return cell

        for cell in range(n_cells):
            tops = sorted({top_of(other) for other in near[starts[cell] : starts[cell + 1]]})
            if not tops or is_kept[cell]:
                continue
            highest = next((one for one in tops if is_kept[one]), tops[0])
            top[cell] = highest
            for one in tops:
                if one != highest and not is_kept[one]:
                    rises[one], top[one] = values[one] - values[cell], highest
                    masses[highest] += masses[one]
            masses[highest] += values[cell]
        group = np.array([top_of(cell) for cell in range(n_cells)], dtype=np.intp)
        summits = np.flatnonzero(np.diff(starts) == 0)  # the cells without a denser neighbor
        return Peaks(summits, np.array(rises)[summits], np.array(masses)[summits], group)

    def labeled(self, labels: Labels) -> Labels:
        """Return the label of each cell of the grid; a cell that is empty or has -1 gets the label of the nearest."""
        from scipy.ndimage import distance_transform_edt

        grid = np.full(self.shape, -1, dtype=np.intp)
        grid.flat[self.places] = labels
        nearest = distance_transform_edt(grid < 0, return_distances=False, return_indices=True)
        return np.asarray(grid[tuple(nearest)])


class Peaks(NamedTuple):
    """The peaks of a density. Cells are given by their positions in :attr:`Density.places`, the densest as 0."""

    tops: Labels  #: Each peak's densest cell.
    #: How far each peak rises above the cell where it meets a higher peak, or above 0.
    rises: Floats
    masses: Floats  #: The sum of each peak's density down to the cell where it meets a higher peak.
    group: Labels  #: For each cell, the densest cell of its group.


class Cut(NamedTuple):
    """Clusters of cells, with the density and the peaks from which they were cut."""

    labels: Labels  #: The cluster of each cell; with ``thin``, -1 for an empty cell.
    density: Floats  #: The smoothed number of rows in each cell; 0 in an empty cell.
    rises: Floats  #: How far each peak rises, in standard deviations, in descending order.
    centers: Floats | None = None  #: The centers of round clusters, in cells.


def cut(
    histogram: Histogram, n_clusters: int, rng: np.random.Generator, *, thin: bool = False
) -> Cut:
    """Cut the cells into clusters: by k-means, at the most persistent peaks, or by a normalized cut.

    k-means is used if equal Gaussians explain the histogram: it estimates fewer numbers than a cut, so noise harms it
    less. Otherwise the peaks are used if they are clear.
    """
    width = width_of(histogram)
    density = Density.of(histogram, width)
    if not len(density.places):
        nothing = np.zeros(density.shape)
        return Cut((nothing - thin).astype(np.intp), nothing, np.zeros(0))
    peaks = density.peaks()
    heights = density.values[peaks.tops]
    rises = peaks.rises / np.sqrt(density.deviation**2 + heights * density.squares)
    masses = np.minimum(peaks.masses, PART_OF_A_CLUSTER * float(density.values.sum()) / n_clusters)
    best = np.argsort(-peaks.rises / heights * masses, kind="stable")[:n_clusters]
    are_enough = len(best) == n_clusters and len(density.places) >= CELLS_OF_A_SHAPE * n_clusters
    are_clear = are_enough and rises[best].min() >= CLEAR_RISE
    centers = _round_centers(histogram, density, n_clusters, rng)
    if centers is not None:
        labels: Labels | None = nearest_center(_cells(density.shape), centers).reshape(
            density.shape
        )
    else:
        labels = None if are_clear else _normalized(histogram, width, n_clusters, rng)
    if labels is None:
        cluster = np.full(len(density.places), -1, dtype=np.intp)
        cluster[peaks.tops[best]] = np.arange(len(best))
        labels = density.labeled(cluster[density.peaks(peaks.tops[best]).group])
    values = np.zeros(density.shape)
    values.flat[density.places] = density.values
    return Cut(
        np.where(values > 0, labels, -1) if thin else labels, values, np.sort(rises)[::-1], centers
    )


def agreement_of_another_cut(
    found: Cut, deviation: float, n_clusters: int, rng: np.random.Generator
) -> float | None:
    """Estimate the adjusted Rand index between this cut and the cut of a run with other noise; None without noise."""
    if not deviation or not found.density.any():
        return None
    indices, labels = [], np.maximum(found.labels.ravel(), 0)
    for _ in range(N_OTHER_RUNS):
        noisy = found.density + deviation * rng.standard_normal(found.density.shape)
        other = cut(Histogram(noisy, deviation), n_clusters, rng).labels
        indices.append(
            weighted_rand_index(labels, other.ravel(), found.density.ravel(), n_clusters)
        )
    return float(np.mean(indices))


def _round_centers(
    histogram: Histogram, density: Density, n_clusters: int, rng: np.random.Generator
) -> Floats | None:
    """Return the centers of k-means, in cells, if equal Gaussians explain the histogram."""
    if len(density.places) <= n_clusters:
        return None
    cells = _cells(density.shape)[density.places]
    centers = weighted_kmeans(cells, density.values, n_clusters, rng, n_init=N_INIT)
    return centers if misfit_of_equal_gaussians(histogram, centers) <= MISFIT_OF_ROUND else None


def misfit_of_equal_gaussians(histogram: Histogram, centers: Floats) -> float:
    """Return the fraction of the squared density that Gaussians with one common covariance leave unexplained.

    The Gaussians start at these centers, in cells. EM adapts their means, their sizes and the covariance to the
    difference between the density and the Gaussians. So noise, which has a mean of 0, makes them neither wider nor
    larger.
    """
    counts, (smooth, _, squares) = histogram.counts, histogram.smoothed(1.0)
    density, n_rows = smooth.ravel(), max(float(counts.sum()), 1.0)
    least = max(histogram.deviation * float(np.sqrt(squares)), LEAST_DENSITY)
    cells, means = _cells(counts.shape), centers
    nearest = nearest_center(cells, means)
    seen = np.where(density > least, density, 0.0)
    sizes = np.maximum(np.bincount(nearest, seen, len(means)), LEAST_SIZE * n_rows)
    within = ((cells - means[nearest]).T * seen) @ (cells - means[nearest]) / sizes.sum()
    explained = np.empty(len(cells))
    for _ in range(N_EM_STEPS):
        values, vectors = np.linalg.eigh(within)
        values = np.maximum(values, 1.0 + 1 / 12)  # variance of the kernel and of a cell
        places, around = cells @ vectors / np.sqrt(values), means @ vectors / np.sqrt(values)
        height = sizes / np.sqrt((2 * np.pi) ** counts.ndim * values.prod())
        more, moved, weights = np.zeros(len(means)), np.zeros_like(means), np.empty(len(cells))
        for block in _blocks(cells, means):
            rows = height * np.exp(-0.5 * squared_distances(places[block], around))
            explained[block] = rows.sum(axis=1)
            rows *= ((density[block] - explained[block]) / (explained[block] + least))[:, None]
            more += rows.sum(axis=0)
            moved += rows.T @ cells[block]
            weights[block] = rows.sum(axis=1)
        sizes = np.maximum(sizes + more, LEAST_SIZE * n_rows)
        both = means.T @ moved
        spread = (cells.T * weights) @ cells - both - both.T + (means.T * more) @ means
        within = (vectors * values) @ vectors.T
        within = within + (spread - more.sum() * within) / sizes.sum()
        means = np.clip(
            means + (moved - more[:, None] * means) / sizes[:, None],
            0.0,
            np.array(counts.shape) - 1.0,
        )
    return _unexplained(histogram, density, squares, explained)


def _unexplained(histogram: Histogram, density: Floats, squares: float, rows: Floats) -> float:
    """Return the fraction of the squared density that these rows leave unexplained; 0 if it may all be noise."""
    counts, deviation = histogram
    noise = squares * (counts.size * deviation**2 + max(float(counts.sum()), 1.0))
    total, rest = float((density**2).sum()) - noise, float(((density - rows) ** 2).sum()) - noise
    return rest / total if total > 0 else 0.0


def _cells(shape: tuple[int, ...]) -> Floats:
    """Return the indices of all cells of a grid, in the order of the flattened grid."""
    return np.indices(shape).reshape(len(shape), -1).T.astype(np.float64)


def misfit_of_round_clusters(
    histogram: Histogram, means: Floats, within: Floats, shares: Floats
) -> float:
    """Return the fraction of the squared density that Gaussians leave unexplained; 0 if it may all be noise.

    The Gaussians start with the given means and shares of the rows, and with the covariance ``within``, all in cells.
    Then the share of each is adapted, and a factor by which its covariance is multiplied.
    """
    counts, deviation = histogram
    smooth, _, squares = histogram.smoothed(1.0)
    density, d = smooth.ravel(), counts.ndim
    n_rows = max(float(counts.sum()), 1.0)
    least = max(deviation * float(np.sqrt(squares)), LEAST_DENSITY)
    values, vectors = np.linalg.eigh(within)
    # Add the variance of the kernel, 1, and of a uniform distribution in a cell, 1/12.
    widths = np.sqrt(np.maximum(values, 0.0) + 1.0 + 1 / 12)
    cells = _cells(counts.shape)
    places, around = cells @ vectors / widths, means @ vectors / widths
    spread, explained = np.ones(len(means)), np.empty(len(cells))
    for _ in range(N_ADAPTED):
        height = n_rows * shares / (np.sqrt(2 * np.pi * spread) ** d * widths.prod())
        own, within_each = np.zeros(len(means)), np.zeros(len(means))
        for block in _blocks(cells, means):
            distances = squared_distances(places[block], around)
            rows = height * np.exp(-0.5 * distances / spread)
            explained[block] = rows.sum(axis=1)
            rows *= (density[block] / (explained[block] + least))[:, None]
            own += rows.sum(axis=0)
            within_each += np.einsum("ij,ij->j", rows, distances)
        sizes = np.maximum(own, 1e-3 * n_rows)
        shares, spread = sizes / n_rows, np.clip(within_each / (d * sizes), 0.1, 10.0)
    return _unexplained(histogram, density, squares, explained)


def _blocks(cells: Floats, means: Floats) -> Iterable[slice]:
    """Yield slices of the cells, because an array with an entry for every cell and cluster can be large."""
    return blocks(len(cells), len(means), block_entries=CELL_ENTRIES)


def _normalized(
    histogram: Histogram, width: float, n_clusters: int, rng: np.random.Generator
) -> Labels | None:
    """Cut the graph of neighboring cells, weighted by the square of the lower density; None for too few cells."""
    density = Density.of(histogram, max(width, LEAST_WIDTH_OF_A_CUT))
    if len(density.places) > MOST_CELLS_OF_A_CUT:
        found = _normalized(histogram.coarse(), width, n_clusters, rng)
        if found is None:
            return None
        fine = np.kron(found, np.ones((2,) * found.ndim, dtype=np.intp))
        return fine[tuple(slice(0, n) for n in density.shape)]
    n_cells, values = len(density.values), density.values
    if n_cells <= n_clusters:
        return None
    group = density.peaks().group
    mass = np.bincount(group, values, n_cells)
    kept = np.flatnonzero(mass[group] >= min(LEAST_PART * values.sum() / n_clusters, mass.max()))
    if len(kept) <= n_clusters:
        return None
    from scipy.linalg import eigh

    denser, thinner, distances = density.pairs()
    graph = np.zeros((n_cells, n_cells))
    graph[denser, thinner] = graph[thinner, denser] = values[thinner] ** 2 / distances
    graph = graph[np.ix_(kept, kept)]
    least = 1e-7 * graph.sum() / len(kept)
    scale = 1.0 / np.sqrt(graph.sum(axis=1) + least)
    graph[np.diag_indices_from(graph)] = least
    _, vectors = eigh(
        scale[:, None] * graph * scale, subset_by_index=[len(kept) - n_clusters, len(kept) - 1]
    )
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    centers = weighted_kmeans(vectors, values[kept], n_clusters, rng, n_init=N_INIT)
    labels = np.full(n_cells, -1, dtype=np.intp)
    labels[kept] = nearest_center(vectors, centers)
    return density.labeled(labels)
