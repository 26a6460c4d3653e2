"""Approximate neighbors, for more rows than can all be compared with each other.

Neighbors are the rows with the largest inner products. The rows are first divided into cells of similar rows. A cell is
compared only with the cells whose mean products with it are largest, in single precision and in a few directions. Full
products then decide among the best candidates. So the time grows about linearly with the rows. PyNNDescent found fewer
of the neighbors in the same time, and compiled for half a minute in each process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.kmeans import centers_of, cluster_sums, nearest_center

Floats = NDArray[np.float64]
Singles = NDArray[Any]  #: Arrays of float32.
Integers = NDArray[np.intp]

#: Up to this many rows, all pairs are compared.
MOST_EXACT_ROWS = 20_000

#: If there are more rows than MOST_EXACT_ROWS, each is compared with about this many others.
N_CANDIDATES = 40_000

#: The average number of rows in a cell. Cells with more than twice as many are divided.
ROWS_PER_CELL = 250

#: Cells are found by CELL_STEPS steps of k-means from random rows, on a sample of ROWS_FOR_A_CELL rows for each cell.
CELL_STEPS, ROWS_FOR_A_CELL = 5, 20

#: How many directions are used for the first comparison: the ones along which the rows vary most.
N_DIRECTIONS = 96

#: Full products are computed for the most promising rows only: SPARE times as many as are wanted.
SPARE = 3

#: To find the largest of many products, they are divided into groups of this many: only the groups with the largest
#: maxima can contain them.
GROUP = 32


def likely_products(
    F: Floats,
    queries: Floats,
    n_neighbors: int,
    *,
    n_candidates: int = N_CANDIDATES,
    block_entries: int | None = None,
) -> tuple[Integers, Floats]:
    """Return, for each row i of F, other rows that have about the largest inner products with query i.

    The products are returned as well, in descending order. Similar rows must have similar queries. The random numbers
    have a fixed seed.
    """
    points, searching = _in_few_directions(F, queries)
    order, starts = _cells(points)
    points, searching, ends = points[order], searching[order], np.append(starts[1:], len(F))
    sizes = ends - starts
    means, likely = (
        np.add.reduceat(array, starts) / sizes[:, None] for array in (points, searching)
    )
    n_best = min(SPARE * n_neighbors, len(F) - 1)
    found = np.empty((len(F), n_neighbors), dtype=np.intp)
    products = np.empty((len(F), n_neighbors))
    for cell, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        mean_products = means @ likely[cell]
        mean_products[cell] = np.inf  # its own rows come first
        best_cells = np.argsort(-mean_products, kind="stable")
        n_compared = (
            np.searchsorted(np.cumsum(sizes[best_cells]), max(n_candidates, n_best + 1)) + 1
        )
        places = np.concatenate(
            [np.arange(starts[one], ends[one]) for one in best_cells[:n_compared]]
        )
        compared, candidates = points[places].T, order[places]
        for block in blocks(
            size, max(len(places), n_best * F.shape[1]), block_entries=block_entries
        ):
            itself = np.arange(size)[block]
            rough = searching[start + itself] @ compared
            rough[np.arange(len(itself)), itself] = -np.inf
            rows, best = candidates[itself], candidates[_largest(rough, n_best)]
            full = np.einsum("ij,ikj->ik", queries[rows], F[best])
            kept = np.argsort(-full, axis=1, kind="stable")[:, :n_neighbors]
            found[rows], products[rows] = (
                np.take_along_axis(array, kept, axis=1) for array in (best, full)
            )
    return found, products


def _in_few_directions(F: Floats, queries: Floats) -> tuple[Singles, Singles]:
    """Return rows and queries in few directions; up to a constant for each query, products stay nearly the same.

    Rows and queries are measured from their means, so that near rows still differ in single precision.
    """
    mean, mean_query = F.mean(axis=0), queries.mean(axis=0)
    covariance = F.T @ F / len(F) - np.outer(mean, mean)
    _, vectors = np.linalg.eigh(covariance)
    widest_first = vectors[:, ::-1]
    directions = widest_first[:, :N_DIRECTIONS]
    projected = F @ directions - mean @ directions
    projected_queries = queries @ directions - mean_query @ directions
    # Products with the mean query depend on the row alone: they are one more column, times 1.
    of_mean_query = F @ mean_query - mean @ mean_query
    points = np.column_stack([projected, of_mean_query])
    searching = np.column_stack([projected_queries, np.ones(len(F))])
    return _in_single_precision(points), _in_single_precision(searching)


def _in_single_precision(array: Floats) -> Singles:
    """Return an array divided by its largest entry, so that none overflows; the order of products stays the same."""
    largest = np.abs(array).max() or 1.0
    return (array / largest).astype(np.float32)


def _cells(points: Singles) -> tuple[Integers, Integers]:
    """Return the rows sorted by cell, and where each cell starts; cells with too many rows are divided."""
    rng = np.random.default_rng(0)
    n_cells = -(-len(points) // ROWS_PER_CELL)
    sample = points[
        rng.choice(len(points), min(ROWS_FOR_A_CELL * n_cells, len(points)), replace=False)
    ]
    centers = sample[:n_cells]
    for _ in range(CELL_STEPS):
        centers = centers_of(
            *cluster_sums(sample, nearest_center(sample, centers), n_cells), fallback=centers
        )
    cell = nearest_center(points, centers)
    order = np.argsort(cell, kind="stable")
    sizes = np.bincount(cell, minlength=n_cells)
    place = np.arange(len(points)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return order, np.flatnonzero(place % (2 * ROWS_PER_CELL) == 0)


def _largest(products: Singles, n_best: int) -> Integers:
    """Return the columns of the largest entries of each row, in no order."""
    n_columns = products.shape[1]
    n_groups = n_columns // GROUP
    if n_groups <= 2 * n_best:
        return np.argpartition(products, n_columns - n_best, axis=1)[:, n_columns - n_best :]
    # Column j is in group j modulo n_groups. The last columns, which do not fill a group, are always compared.
    whole = products[:, : n_groups * GROUP].reshape(len(products), GROUP, n_groups)
    maxima = whole.max(axis=1)
    groups = np.argpartition(maxima, n_groups - n_best, axis=1)[:, n_groups - n_best :]
    members = (groups[:, :, None] + n_groups * np.arange(GROUP)).reshape(len(products), -1)
    rest = np.broadcast_to(
        np.arange(n_groups * GROUP, n_columns), (len(products), n_columns - n_groups * GROUP)
    )
    members = np.hstack([members, rest])
    entries = np.take_along_axis(products, members, axis=1)
    best = np.argpartition(entries, entries.shape[1] - n_best, axis=1)[
        :, entries.shape[1] - n_best :
    ]
    return np.take_along_axis(members, best, axis=1)
