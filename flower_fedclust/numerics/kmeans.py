"""The two halves of a Lloyd step, and the k-means cost.

Rows are (n_rows, n_columns), centers (n_clusters, n_columns), labels (n_rows,). :func:`nearest_by_product` takes no
care of rounding: :mod:`~flower_fedclust.exact.sums` calls it with integers that a float64 holds exactly. The other
functions take any rows. If the centers are far from the origin compared with their differences, they first move the
origin to a center, because a product would lose digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.blocks import blocks, cached_blocks
from flower_fedclust.numerics.threads import mapped, threads_for

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: Distances that are computed and compared at a time: 256 kB, which fit into a processor's first caches.
COMPARED_ENTRIES = 2**15

#: Several runs are compared with rows together, up to this many centers in all; and this many rows by each thread.
COMPARED_CENTERS, COMPARED_ROWS = 1024, 512


def squared_distances(rows: Floats, centers: Floats) -> Floats:
    """Return the squared Euclidean distance of every row from every center, by one matrix product.

    ``-2 x.c + ||c||^2 + ||x||^2``, added in this order; of shape (n_rows, n_clusters), and not negative. With many rows
    and centers all cores share the rows, in blocks that do not depend on the number of cores.
    """
    origin, offsets = from_the_first(centers)
    twice, squares = to_compare(offsets)
    distances = np.empty((len(rows), len(centers)))

    def compare(block: slice) -> None:
        from_origin = rows[block] if origin is None else rows[block] - origin
        part = np.matmul(from_origin, twice, out=distances[block])
        part += squares
        part += np.einsum("ij,ij->i", from_origin, from_origin)[:, None]
        np.maximum(part, 0.0, out=part)

    threads = threads_for(rows.size * len(centers))
    if threads == 1:
        compare(slice(None))
        return distances
    for _ in mapped(compare, blocks(len(rows), 1, block_entries=COMPARED_ROWS), threads):
        pass
    return distances


def to_compare(centers: Floats) -> tuple[Floats, Floats]:
    """Return ``-2 c'`` and ``||c||^2`` for the centers c: the arguments of :func:`nearest_by_product`."""
    return -2.0 * centers.T, np.einsum("ij,ij->i", centers, centers)


def nearest_by_product(
    rows: Floats,
    twice: Floats,
    squares: Floats,
    origin: Floats | None = None,
    least: Floats | None = None,
) -> Labels:
    """Return, for each row x, the index of the center c with the smallest ``||c||^2 - 2 x.c``; ties: the lower index.

    This is the squared distance less ``||x||^2``, which is the same for all centers. Rows are measured from ``origin``,
    a few at a time. The smallest values are written to ``least``, if it is given.
    """
    n_centers, labels = len(squares), np.empty(len(rows), dtype=np.intp)
    for block, _, distances in _compared_by_product(rows, twice, squares, origin):
        found = distances.argmin(axis=1, out=labels[block])
        if least is not None:
            places = np.arange(0, distances.size, n_centers) + found
            # "clip" lets NumPy write without a copy; no place is beyond the array.
            distances.ravel().take(places, out=least[block], mode="clip")
    return labels


def nearest_in_each_by_product(rows: Floats, twice: Floats, squares: Floats, n_runs: int) -> Labels:
    """Return the nearest center of each row in each of several runs, of shape (n_runs, n_rows), by one product.

    ``twice`` and ``squares`` hold the centers of the first run, then of the second, and so on; each run has equally
    many.
    """
    labels = np.empty((n_runs, len(rows)), dtype=np.intp)
    for block, few, distances in _compared_by_product(rows, twice, squares, None):
        labels[:, block] = distances.reshape(len(few), n_runs, -1).argmin(axis=2).T
    return labels


def _compared_by_product(
    rows: Floats, twice: Floats, squares: Floats, origin: Floats | None
) -> Iterator[tuple[slice, Floats, Floats]]:
    """Yield blocks of rows: their place, the rows from the origin, and their ``||c||^2 - 2 x.c`` to all points.

    The next block overwrites these values, so that memory is allocated once.
    """
    most = _most_compared(len(squares))
    buffer = np.empty((min(most // len(squares), len(rows)), len(squares)))
    # NumPy adds two whole arrays several times as fast as an array and a short vector.
    for_each_row = np.tile(squares, (len(buffer), 1))
    for block in compared_together(len(rows), len(squares)):
        few = rows[block] if origin is None else rows[block] - origin
        distances = np.matmul(few, twice, out=buffer[: len(few)])
        distances += for_each_row[: len(few)]
        yield block, few, distances


def compared_together(n_rows: int, n_centers: int) -> Iterable[slice]:
    """Yield slices of the rows that one product compares with the centers.

    The last bits of a row's distances can depend on the other rows of the product.
    """
    return blocks(n_rows, n_centers, block_entries=_most_compared(n_centers))


def _most_compared(n_centers: int) -> int:
    """Return how many distances are computed at a time."""
    return max(COMPARED_ENTRIES, 64 * n_centers)


def nearest_center(rows: Floats, centers: Floats) -> Labels:
    """Return, for each row, the index of its nearest center, of shape (n_rows,); ties go to the lower index."""
    if len(centers) == 1:
        return np.zeros(len(rows), dtype=np.intp)
    origin, offsets = from_the_first(centers)
    return nearest_by_product(rows, *to_compare(offsets), origin)


def from_the_first(centers: Floats) -> tuple[Floats | None, Floats]:
    """Return an origin for distances, and the centers less this origin.

    The origin is the first center if the centers are so far from 0 that a product would lose their differences.
    Otherwise it is None, which stands for 0.
    """
    first = centers[0]
    offsets = centers - first
    if first @ first <= 1e6 * np.einsum("ij,ij->i", offsets, offsets).max():
        return None, centers
    return first, offsets


def nearest_two(rows: Floats, centers: Floats) -> tuple[Labels, Floats, Floats]:
    """Return the nearest center of each row, and the squared distances of it and of the second nearest.

    The labels are the ones of :func:`nearest_center`. With one center the second distance is infinite.
    """
    origin, offsets = from_the_first(centers)
    twice, squares = to_compare(offsets)
    labels = np.empty(len(rows), dtype=np.intp)
    first = np.empty(len(rows))
    second = np.empty(len(rows))
    for block, few, distances in _compared_by_product(rows, twice, squares, origin):
        found = distances.argmin(axis=1, out=labels[block])
        index = np.arange(len(few))
        from_origin = np.einsum("ij,ij->i", few, few)
        first[block] = distances[index, found] + from_origin
        distances[index, found] = np.inf
        second[block] = distances.min(axis=1) + from_origin
    return labels, np.maximum(first, 0.0, out=first), np.maximum(second, 0.0, out=second)


def nearest_of_each(rows: Floats, runs: Floats) -> tuple[Labels, Floats]:
    """Return the nearest center of each row in each of several runs, and its squared distance; (n_runs, n_rows) each.

    Rows are (n_rows, n_columns), and runs are (n_runs, n_clusters, n_columns). With many rows and centers all cores
    compare them.
    """
    n_runs, k, n_columns = runs.shape
    origin, offsets = from_the_first(runs.reshape(n_runs * k, n_columns))
    labels = np.empty((n_runs, len(rows)), dtype=np.intp)
    squared = np.empty((n_runs, len(rows)))

    def compare(part: tuple[slice, slice]) -> None:
        some_rows, some_runs = part
        centers = offsets.reshape(runs.shape)[some_runs].reshape(-1, n_columns)
        own_labels = labels[some_runs, some_rows]
        own_squared = squared[some_runs, some_rows]
        compared = _compared_by_product(rows[some_rows], *to_compare(centers), origin)
        for block, few, values in compared:
            of_runs = values.reshape(len(few), -1, k)
            own_labels[:, block] = of_runs.argmin(axis=2).T
            from_origin = np.einsum("ij,ij->i", few, few)
            own_squared[:, block] = np.maximum(of_runs.min(axis=2).T + from_origin, 0.0)

    parts = product(
        blocks(len(rows), 1, block_entries=COMPARED_ROWS),
        blocks(n_runs, k, block_entries=COMPARED_CENTERS),
    )
    for _ in mapped(compare, parts, threads_for(rows.size * n_runs * k)):
        pass
    return labels, squared


def sums_of_each(
    rows: Floats, labels: Labels, weights: Floats, n_clusters: int
) -> tuple[Floats, Floats]:
    """Add up the weighted rows of each cluster of several runs, (n_runs, n_clusters, n_columns); and their weights.

    Labels are (n_runs, n_rows), and weights the same or (n_rows,). The sums are the product of a sparse matrix and the
    rows: one pass over them for all runs.
    """
    from scipy.sparse import csc_array

    n_runs, n_rows = labels.shape
    places = labels + n_clusters * np.arange(n_runs)[:, None]
    of_each = np.broadcast_to(weights, labels.shape)
    first = np.arange(0, n_runs * n_rows + 1, n_runs)
    shape = n_runs * n_clusters, n_rows
    membership = csc_array((of_each.T.ravel(), places.T.ravel(), first), shape=shape)
    sums: Floats = (membership @ rows).reshape(n_runs, n_clusters, rows.shape[1])
    counts = np.bincount(places.ravel(), of_each.ravel(), n_runs * n_clusters)
    return sums, counts.astype(np.float64, copy=False).reshape(n_runs, n_clusters)


def within_margin(distances: Floats, labels: Labels, margin: float) -> NDArray[np.bool_]:
    """Tell which rows are clearly nearer to their center r than to every other center s: ``d_r^2 <= margin^2 d_s^2``.

    ``distances`` are squared distances, of shape (n_rows, n_clusters). The array is overwritten.
    """
    if distances.shape[1] < 2:
        return np.ones(len(distances), dtype=bool)
    index = np.arange(len(distances))
    nearest = distances[index, labels]
    distances[index, labels] = np.inf
    kept: NDArray[np.bool_] = nearest <= margin**2 * distances.min(axis=1)
    return kept


def cluster_sums(rows: Floats, labels: Labels, n_clusters: int) -> tuple[Floats, Floats]:
    """Add up the rows of each cluster, and count them: of the shapes (n_clusters, n_columns) and (n_clusters,).

    The sums are the product of a sparse matrix, with a 1 where a row is in a cluster, and the rows: one pass over them.
    """
    from scipy.sparse import csc_array

    membership = csc_array(
        (np.ones(len(rows)), labels, np.arange(len(rows) + 1)), shape=(n_clusters, len(rows))
    )
    sums: Floats = membership @ rows
    return sums, np.bincount(labels, minlength=n_clusters).astype(np.float64)


def centers_of(sums: Floats, counts: Floats, fallback: Floats, *, at_least: float = 1.0) -> Floats:
    """Divide sums by counts, and keep the former center of a cluster that is too small to have a mean."""
    large = counts >= at_least
    return np.where(large[..., None], sums / np.where(large, counts, 1.0)[..., None], fallback)


def shrunk_towards(known: Floats, noisy: Floats, noise_variance: Floats) -> Floats:
    """Move noisy centers back towards known centers: the noisier the difference, the further.

    This is the positive-part estimator of James and Stein. For d columns and noise of variance v, the difference is
    multiplied by ``1 - (d - 2) v / ||difference||^2``, or by 0 if this is negative. From three columns on, its expected
    squared error is smaller than without shrinking, wherever the true centers are.
    """
    difference = noisy - known
    squared_norm = np.einsum("ij,ij->i", difference, difference)
    lost = max(known.shape[1] - 2, 0) * noise_variance
    kept = 1.0 - np.divide(
        lost, squared_norm, out=np.ones_like(squared_norm), where=squared_norm > lost
    )
    return np.where((lost > 0)[:, None], known + kept[:, None] * difference, noisy)


def kmeans_cost(rows: Floats, centers: Floats, labels: Labels | None = None) -> float:
    """Return the k-means objective: the sum over rows of the squared distance to the nearest center.

    This is equation (1) of FedDP-KMeans.
    """
    cost, labels = 0.0, nearest_center(rows, centers) if labels is None else labels
    for block in cached_blocks(len(rows), rows.shape[1]):
        difference = rows[block] - centers[labels[block]]
        cost += float(np.einsum("ij,ij->", difference, difference))
    return cost
