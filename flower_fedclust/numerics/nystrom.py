"""Nystrom distances: estimate the distances of all pairs of rows from their distances to a few landmarks.

This is section 4.1 of Qiao, Ma and Fan, "Federated t-SNE and UMAP for distributed data visualization", AAAI 2025. Let B
be the distances of rows to landmarks, (n_rows, n_landmarks), and W the distances between landmarks. Equation (22)
estimates the distances between rows by the symmetric matrix ``D^ = B W^+ B'``. Some of its entries can be negative, and
its diagonal is not 0; here negative entries and the diagonal count as 0.

Matrices of distances have full rank, so (22) is an approximation with any number of landmarks. Squared distances
between points of m columns have rank m + 2. So ``B^2 (W^2)^+ B^2'``, with squares of each entry, is exact from m + 1
landmarks on, and close for rows near the span of the landmarks. But it cannot be used if B has noise, which the small
eigenvalues of W^2 magnify.

``D^`` is never formed. The eigenvalues of W give factors F and signs s with ``D^_ij = sum_k s_k F_ik F_jk``. The
nearest rows are the ones with the largest ``-D^_ij``, an inner product of factors. W, a matrix of distances, has one
positive eigenvalue, and factors are about as large as the root of a distance, so that few digits cancel. Rows of
``B W^+``, which equation (22) suggests, are larger by the condition number of W.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.kmeans import squared_distances
from flower_fedclust.numerics.spectral import largest_products

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]

#: Eigenvalues of W below this fraction of the largest are left out, as in a pseudo-inverse: landmarks that coincide
#: make W singular, and these eigenvalues are rounding errors.
EIGENVALUE_CUTOFF = 1e-10

#: A squared distance below this fraction of the sum of the two squared norms has lost too many digits, and is computed
#: again.
_LOST_DIGITS = 1e-6

#: Longer distances are reduced to this before they are squared; the unit is the longest distance between landmarks.
_FARTHEST = 1e70

#: Entries of rows are limited to this magnitude: sums of the squares of larger ones could overflow.
_REACH = 1e150


def within_reach(rows: Floats) -> Floats:
    """Return rows whose distances are finite numbers: a row with too large entries is scaled down."""
    within: Floats = rows * (_REACH / np.abs(rows).max(axis=1, keepdims=True, initial=_REACH))
    return within


def landmark_distances(rows: Floats, Y: Floats) -> Floats:
    """Return B: the Euclidean distance of every row from every landmark (Qiao, Ma and Fan 2025, equation 21).

    The distances are in the units of the rows, exact to 9 digits, and 0 if a row is a landmark.
    """
    origin = Y.mean(axis=0)
    Y = Y - origin
    norms = np.einsum("ij,ij->i", Y, Y)
    distances = np.empty((len(rows), len(Y)))
    for block in blocks(len(rows), len(Y)):
        some = within_reach(rows[block] - origin)
        squared = squared_distances(some, Y)
        # A short distance is a difference of large numbers, so most of it can be rounding errors.
        near, landmark = np.nonzero(
            squared <= _LOST_DIGITS * (np.einsum("ij,ij->i", some, some)[:, None] + norms[None, :])
        )
        for part in blocks(len(near), Y.shape[1]):
            difference = some[near[part]] - Y[landmark[part]]
            squared[near[part], landmark[part]] = np.einsum("ij,ij->i", difference, difference)
        np.sqrt(squared, out=distances[block])
    return distances


def distances_between(Y: Floats) -> Floats:
    """Return W: the Euclidean distances between landmarks, symmetric and with a diagonal of 0."""
    distances = landmark_distances(Y, Y)
    distances = 0.5 * (distances + distances.T)
    np.fill_diagonal(distances, 0.0)
    return distances


def nearest_landmarks(rows: Floats, Y: Floats, n_neighbors: int) -> tuple[Integers, Floats]:
    """Return the nearest landmarks of every row, and their distances, in ascending order.

    Both are of shape (n_rows, n_neighbors); there are at most n_landmarks of them.
    """
    neighbors = np.empty((len(rows), n_neighbors), dtype=np.intp)
    distances = np.empty((len(rows), n_neighbors))
    for block in blocks(len(rows), len(Y)):
        neighbors[block], distances[block] = _smallest(
            landmark_distances(rows[block], Y), n_neighbors
        )
    return neighbors, distances


def nearest_others(Y: Floats, n_neighbors: int) -> tuple[Integers, Floats]:
    """Return the nearest other landmarks of every landmark, and their distances; for a map of the landmarks alone.

    Both are of shape (n_landmarks, n_neighbors); there are fewer than n_landmarks of them.
    """
    W = distances_between(Y)
    np.fill_diagonal(W, np.inf)
    return _smallest(W, n_neighbors)


def _smallest(distances: Floats, n_neighbors: int) -> tuple[Integers, Floats]:
    """Return the columns of each row's smallest entries, and the entries, ascending; ties go to the first column."""
    columns = np.argpartition(distances, n_neighbors - 1, axis=1)[:, :n_neighbors]
    columns = np.sort(columns, axis=1)
    largest = np.take_along_axis(distances, columns, axis=1).max(axis=1, keepdims=True)
    # If more entries are as small as the largest one, the partition may have taken any of them.
    tied = np.count_nonzero(distances <= largest, axis=1) > n_neighbors
    columns[tied] = np.argsort(distances[tied], axis=1, kind="stable")[:, :n_neighbors]
    smallest = np.take_along_axis(distances, columns, axis=1)
    order = np.argsort(smallest, axis=1, kind="stable")
    columns = np.take_along_axis(columns, order, axis=1)
    return columns, np.take_along_axis(smallest, order, axis=1)


def are_distances(B: Floats, W: Floats) -> bool:
    """Tell whether points can have distances B from landmarks whose distances from each other are W.

    This checks the triangle inequality for each point, its nearest landmark, and each other landmark.
    """
    if B.min(initial=0.0) < 0:
        return False
    nearest = B.argmin(axis=1)
    shortest = np.take_along_axis(B, nearest[:, None], axis=1)
    between = W[nearest]
    slack = 1e-6 * float(W.max(initial=0.0))
    too_far = np.abs(B - shortest) > between + slack + 1e-6 * B
    if too_far.any():
        return False
    return bool((B + shortest >= between - slack - 1e-6 * B).all())


def nystrom_projection(W: Floats) -> tuple[Floats, Floats]:
    """Return the projection P and the signs s that turn distances into factors: ``F = B P``, ``D^ = F diag(s) F'``."""
    values, vectors = np.linalg.eigh(W)
    magnitudes = np.abs(values)
    kept = magnitudes > EIGENVALUE_CUTOFF * magnitudes.max()
    # In descending order of magnitude, so that the columns do not depend on which eigenvalues are left out.
    order = np.argsort(-magnitudes, kind="stable")[: np.count_nonzero(kept)]
    projection: Floats = vectors[:, order] / np.sqrt(magnitudes[order])
    return projection, np.sign(values[order])


def nystrom_neighbors(
    B: Floats, W: Floats, n_neighbors: int, *, squared: bool
) -> tuple[Integers, Floats]:
    """Return the nearest other rows of every row by the Nystrom distances, and those distances.

    With ``squared``, distances are estimated from the squares of B and W; otherwise by equation (22) of Qiao, Ma and
    Fan (2025).
    """
    return _neighbors(B, B, W, n_neighbors, squared=squared, without_itself=True)


def nystrom_neighbors_of_new(
    B_new: Floats, B: Floats, W: Floats, n_neighbors: int, *, squared: bool
) -> tuple[Integers, Floats]:
    """Return, for each new row, the nearest rows of the run, and their Nystrom distances.

    ``B_new`` has the distances of the new rows from the landmarks.
    """
    return _neighbors(B, B_new, W, n_neighbors, squared=squared, without_itself=False)


def _neighbors(
    B: Floats,
    B_searching: Floats,
    W: Floats,
    n_neighbors: int,
    *,
    squared: bool,
    without_itself: bool,
) -> tuple[Integers, Floats]:
    """Return the nearest rows: as ``D^_ij = -q_i . f_j`` with ``q_i = -s f_i``, their inner products are largest."""
    unit = 2.0 ** math.frexp(float(W.max()))[1]
    if squared:
        B, B_searching, W = (
            np.minimum(each / unit, _FARTHEST) ** 2 for each in (B, B_searching, W)
        )
    projection, signs = nystrom_projection(W)
    queries = (B_searching @ projection) * -signs
    neighbors, products = largest_products(
        B @ projection, queries, n_neighbors, without_itself=without_itself
    )
    distances = np.maximum(-products, 0.0)
    return neighbors, unit * np.sqrt(distances) if squared else distances
