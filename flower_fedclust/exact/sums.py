"""Sums and products of rows on a grid, and products of rows with public points: exact, in any order of additions.

Rows, (n_rows, n_columns), and points, (n_points, n_columns), come from :mod:`~flower_fedclust.exact.grid`: integers
of norm at most 2^25, in the unit ``2**exponent``.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact.capacity import entry_bits
from flower_fedclust.exact.constant import made_once
from flower_fedclust.exact.device import Held, device_of
from flower_fedclust.exact.grid import (
    BITS,
    ball_in_units,
    scaled_to,
    truncated_to_ball,
    unit_exponent,
)
from flower_fedclust.exact.subjects import parted, rooted
from flower_fedclust.numerics import kmeans
from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.kmeans import to_compare

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Labels = NDArray[np.intp]

#: The bits of rows in second moments: a product of two entries is at most 2^32, and a sum over 2^20 rows at most 2^52.
COARSE_BITS = 16

#: The unit of distances between rows is finer than the unit of rows by this many bits.
DISTANCE_BITS = 10

#: For more rows than this, the mean distance is estimated from a random sample of this size.
N_ROWS_FOR_MEAN_DISTANCE = 4096

#: How many rows' second moments are added in float64, before the sum becomes int64.
BLOCK_ROWS = 2**20

#: Entries of rows that are projected at a time: 0.5 MB, which stays in a processor's cache.
PROJECTED_ENTRIES = 2**16

#: Directions of norm 1 are multiples of 2^-27: a projected row is a multiple of 2^-27 below 2^25, so of 52 bits.
DIRECTION_BITS = 27


def squared_distances(rows: Held, points: Floats) -> Held:
    """Return the squared Euclidean distance of every row from every point, exactly, of shape (n_rows, n_points).

    The distances are integers of at most 2^52, in squared units of the rows.
    """
    device = device_of(rows)
    twice, squares = to_compare(points)
    distances = rows @ device.hold(twice)
    distances += device.hold(squares)
    distances += device.square_norms(rows)[:, None]
    return distances


def nearest_point(rows: Held, points: Floats, least: Held | None = None) -> Labels:
    """Return, for each row, the index of its nearest point; ties, which are exact, go to the lowest index.

    ``||c||^2 - 2 x.c`` is compared. By Cauchy and Schwarz every partial sum of ``x.c`` is at most 2^50, so nothing is
    rounded, in any order of additions. The values of the nearest points are written to ``least``, if it is given.
    """
    return device_of(rows).nearest(rows, *_to_compare(points), least=least)


def nearest_in_each(rows: Held, points: Floats, n_runs: int) -> Labels:
    """Return the nearest point of each of several runs, of shape (n_runs, n_rows), as :func:`nearest_point` does.

    ``points`` holds all points of the first run, then all points of the second, and so on. Each run has equally many.
    One product compares all of them, which takes half the time of a product for each run.
    """
    return device_of(rows).nearest_in_each(rows, *_to_compare(points), n_runs)


_to_compare = made_once(to_compare)


def within_margin(rows: Floats, points: Floats, labels: Labels, margin: float) -> NDArray[np.bool_]:
    """Tell which rows are clearly nearer to their point r than to every other point s: ``d_r^2 <= margin^2 d_s^2``.

    Labels come from :func:`nearest_point`, and the margin is in (0, 1]. The answer for a row is computed from integers,
    with one product for each entry, so it depends on that row alone.
    """
    kept = np.empty(len(rows), dtype=bool)
    for block in blocks(len(rows), len(points)):
        kept[block] = kmeans.within_margin(
            squared_distances(rows[block], points), labels[block], margin
        )
    return kept


def sums_at(rows: Held, labels: Labels, n_places: int) -> Integers:
    """Add up the rows at each place, in int64, of shape (n_places, n_columns).

    The sums are in the rows' unit, and exact: float64 holds the sum of 2^28 rows.
    """
    return device_of(rows).sums_at(rows, labels, n_places).astype(np.int64)


def cluster_sums(rows: Held, labels: Labels, n_clusters: int) -> tuple[Integers, Integers]:
    """Add up the rows of each cluster and count them, in int64: (n_clusters, n_columns) and (n_clusters,)."""
    counts = np.bincount(labels, minlength=n_clusters).astype(np.int64, copy=False)
    return sums_at(rows, labels, n_clusters), counts


def truncated_means(sums: Integers, counts: Integers) -> Integers:
    """Divide integer sums by integer counts and truncate: no mean is longer than the longest row, exactly.

    A cluster without a row has the mean 0.
    """
    return np.asarray(np.sign(sums) * (np.abs(sums) // np.maximum(counts, 1)[..., None]))


# Projections.


@made_once
def directions_onto_grid(directions: Floats) -> Floats:
    """Truncate directions to multiples of 2^-27, each of norm at most 1.

    The server does this before it sends directions, to know what the clients use. A client does it again, in
    :func:`project_rows`, which changes nothing that is on the grid already.
    """
    directions = np.asarray(directions, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        whole = np.trunc(directions * 2.0**DIRECTION_BITS)
        squares = np.einsum("ij,ij->j", whole, whole)
    # Directions of norm 1 have a sum of squares of about 2^54 here. Much longer ones, whose squares could overflow
    # int64, are scaled down without computing it.
    far = ~(squares <= 2.0**55)
    if far.any():
        if not np.isfinite(directions).all():
            raise ValueError(
                "a direction has an entry that is NaN or infinite; directions must be finite."
            )
        whole = np.clip(whole, -(2.0**60), 2.0**60)
    exact = np.where(far, 0.0, whole).astype(np.int64)
    long = far | (np.einsum("ij,ij->j", exact, exact) > 2 ** (2 * DIRECTION_BITS))
    if long.any():
        # Scale them to one unit less than norm 1, because rounding can add almost one unit.
        whole[:, long] = scaled_to(
            np.ascontiguousarray(whole[:, long].T), 2.0**DIRECTION_BITS - 1.0, 2
        ).T
    whole *= 2.0**-DIRECTION_BITS
    whole.flags.writeable = False
    return whole


@lru_cache(maxsize=2)
def random_directions(n_columns: int, n_directions: int, seed: int) -> Floats:
    """Return public directions of norm 1 whose entries have random signs; the same bits on every machine.

    They come from the raw bits of PCG64, which NumPy does not change between versions.
    """
    if not 0 < n_directions <= n_columns:
        raise ValueError(
            f"n_directions is {n_directions}; it must be from 1 to the number of columns, {n_columns}."
        )
    n_bytes = -(-n_columns * n_directions // 8)
    raw = np.random.PCG64(seed).random_raw(-(-n_bytes // 8)).astype("<u8").view(np.uint8)
    signs = np.unpackbits(raw, count=n_columns * n_directions).reshape(n_columns, n_directions)
    return directions_onto_grid((1.0 - 2.0 * signs) / math.sqrt(n_columns))


def project_rows(rows: Held, directions: Floats, radius: float, *, norm: int = 2) -> Held:
    """Project rows on the grid, truncate them to the same grid, and clip each to the radius again.

    The product is a multiple of 2^-27 below 2^25 and therefore exact, and it is truncated alike everywhere. Rows are
    clipped again because the server chooses the directions: a projection to columns of norm 1 can be longer than the
    row.
    """
    device = device_of(rows)
    held = device.hold(directions_onto_grid(directions))
    bound, limit = ball_in_units(float(radius), norm, unit_exponent(radius))
    projected = device.empty((len(rows), directions.shape[1]))
    block_entries = device.entries(PROJECTED_ENTRIES)
    for block in blocks(len(rows), rows.shape[1], block_entries=block_entries):
        part = rows[block] @ held
        truncated_to_ball(part, None, 0, bound, limit, norm, out=projected[block])
    return projected


# Second moments.


def second_moment(rows: Held, exponent: int) -> tuple[Integers, int]:
    """Return the sum of the outer products of rows, ``P' P``, exactly, on a grid of 16 bits.

    A row of norm at most R has an outer product of Frobenius norm at most R^2, exactly.
    """
    n_columns, device = rows.shape[1], device_of(rows)
    matrix = np.zeros((n_columns, n_columns), dtype=np.int64)
    # A block fits into a processor's cache, and has many more rows than columns, so that most time goes into products.
    most = BLOCK_ROWS * n_columns
    block_entries = device.entries(min(max(2**18, 8 * n_columns**2), most), most)
    for block in blocks(len(rows), n_columns, block_entries=block_entries):
        coarse, _ = coarsened(rows[block], exponent)
        matrix += device.host(coarse.T @ coarse).astype(np.int64)
    return matrix, 2 * (exponent + BITS - COARSE_BITS)


def coarse_products(rows: Held, others: Held, exponent: int) -> tuple[Integers, int]:
    """Return the sum of the outer products of rows with other rows in the same unit, exactly, on a grid of 16 bits."""
    matrix = np.zeros((rows.shape[1], others.shape[1]), dtype=np.int64)
    for block in blocks(len(rows), rows.shape[1], block_entries=BLOCK_ROWS * rows.shape[1]):
        product = coarsened(rows[block], 0)[0].T @ coarsened(others[block], 0)[0]
        matrix += device_of(product).host(product).astype(np.int64)
    return matrix, 2 * (exponent + BITS - COARSE_BITS)


def coarsened(rows: Held, exponent: int) -> tuple[Held, int]:
    """Return rows on the grid of second moments, and the exponent of its unit."""
    coarse = rows * 2.0 ** (COARSE_BITS - BITS)
    device_of(rows).xp.trunc(coarse, out=coarse)
    return rooted(coarse), exponent + BITS - COARSE_BITS


def square_sums(rows: Held, exponent: int) -> tuple[Integers, int]:
    """Return the sum of the squares in each column; a row of norm R adds a vector of norm at most R^2, exactly.

    Squares are truncated so that the largest possible one has as many bits as a row may add, 40 by default.
    """
    squares = np.zeros(rows.shape[1], dtype=np.int64)
    for block in blocks(len(rows), rows.shape[1], block_entries=2**12 * rows.shape[1]):
        # The sum of 2^12 truncated squares is exact.
        added = truncated_squares(rows[block], exponent)[0].sum(axis=0)
        squares += device_of(rows).host(added).astype(np.int64)
    return squares, 2 * (exponent + BITS) - entry_bits()


def truncated_squares(rows: Held, exponent: int) -> tuple[Held, int]:
    """Return the square of each entry, computed exactly and then truncated, and the exponent of the unit."""
    squares = rows * rows
    squares *= 2.0 ** (entry_bits() - 2 * BITS)
    device_of(rows).xp.trunc(squares, out=squares)
    return parted(squares), 2 * (exponent + BITS) - entry_bits()


def mean_distance(rows: Floats, exponent: int) -> tuple[int, int]:
    """Return the mean distance over all ordered pairs of rows, truncated, and the exponent of its unit.

    Pairs of a row with itself are included: FedSC, equations (40) and (41) with c = 1.
    """
    if len(rows) > N_ROWS_FOR_MEAN_DISTANCE:
        drawn = np.random.default_rng(0).choice(len(rows), N_ROWS_FOR_MEAN_DISTANCE, replace=False)
        rows = rows[np.sort(drawn)]
    total = 0
    for block in blocks(len(rows), len(rows)):
        # A root is at most 2^26, so that 2^24 of them in these units stay below 2^63.
        total += int(
            (np.sqrt(squared_distances(rows[block], rows)) * 2.0**DISTANCE_BITS)
            .astype(np.int64)
            .sum()
        )
    return total // len(rows) ** 2, exponent - DISTANCE_BITS


@lru_cache(maxsize=32)
def _triangle(size: int) -> NDArray[np.intp]:
    first, second = np.triu_indices(size)
    return np.asarray(first * size + second)


def upper_triangle(matrix: Integers) -> Integers:
    """Return the upper triangle of symmetric matrices by rows, as vectors of ``size (size + 1) / 2`` entries.

    The Euclidean norm of a triangle differs from the Frobenius norm of its matrix. So noise that is calibrated to a
    Frobenius norm has the standard deviation sigma on the diagonal, and sigma / sqrt(2) off it
    (:func:`is_off_diagonal`).
    """
    size = matrix.shape[-1]
    return np.ascontiguousarray(matrix).reshape(*matrix.shape[:-2], size * size)[
        ..., _triangle(size)
    ]


def is_off_diagonal(size: int) -> NDArray[np.bool_]:
    """Tell which entries of the upper triangle of a matrix of this size lie off the diagonal."""
    return np.asarray(_triangle(size) % (size + 1) != 0)


def triangle_to_symmetric(triangle: Floats) -> Floats:
    """Undo :func:`upper_triangle`."""
    size = (math.isqrt(8 * triangle.shape[-1] + 1) - 1) // 2
    matrix, upper = np.empty((*triangle.shape[:-1], size * size)), _triangle(size)
    matrix[..., upper] = triangle
    matrix[..., upper % size * size + upper // size] = triangle
    return matrix.reshape(*triangle.shape[:-1], size, size)
