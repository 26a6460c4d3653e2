"""Nystrom distances (Fed-tSNE, section 4.1): all pairs of rows from their distances to a few landmarks.

With B the distances of rows to landmarks, (n_rows, n_landmarks), and W those between landmarks, equation (22) is ``D^ =
B W^+ B'``. It is no matrix of distances: entries can be negative, and the diagonal is not 0. Here they are 0. (It is
symmetric, as W is.)

Distances have full rank, so that (22) is an approximation with any number of landmarks. Squared distances between
points of m columns have rank m + 2: ``B^2 (W^2)^+ B^2'``, with squares of each entry, is exact from m + 1 landmarks on,
and close for the rows near their span. Noise on B spoils it, because the small eigenvalues of W^2 magnify it.

It is never formed. The eigenvalues of W give factors F and signs s with ``D^_ij = sum_k s_k F_ik F_jk``: the rows
nearest to a row have the largest inner products of their factors with its own, the signs turned round. W, a matrix of
distances, has one positive eigenvalue, and factors are about as large as the root of a distance, so that little
cancels. Rows of ``B W^+``, which the equation suggests, are larger by the condition number of W.
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

#: Eigenvalues of W below so much of the largest are left out, as its pseudo-inverse: landmarks that coincide make W
#: singular, and what is left of their eigenvalues are rounding errors.
EIGENVALUE_CUTOFF = 1e-10

#: A squared distance below so much of the two squared norms has lost too many digits: it is computed anew.
_LOST_DIGITS = 1e-6

#: The longest distance between rows whose square is estimated, in units of the longest between landmarks.
_FARTHEST = 1e70

#: Squares of larger entries, added up, could overflow.
_REACH = 1e150


def within_reach(rows: Floats) -> Floats:
    """Return rows whose distances are finite numbers: one with larger entries is drawn in, in its own direction."""
    within: Floats = rows * (_REACH / np.abs(rows).max(axis=1, keepdims=True, initial=_REACH))
    return within


def landmark_distances(rows: Floats, Y: Floats) -> Floats:
    """Return B: the Euclidean distance of every row from every landmark (equation 21).

    In the units of the rows, to 9 digits; 0 where a row is a landmark.
    """
    origin = Y.mean(axis=0)
    Y = Y - origin
    norms = np.einsum("ij,ij->i", Y, Y)
    distances = np.empty((len(rows), len(Y)))
    for block in blocks(len(rows), len(Y)):
        some = within_reach(rows[block] - origin)
        squared = squared_distances(some, Y)
        # As a difference of large numbers a short distance is all rounding errors, and its root has half the digits.
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
    """Return the nearest landmarks of every row, and their distances in the units of the rows, rising.

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
    """Return the columns of each row's smallest entries, and the entries, rising; among equal entries, the first."""
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

    This checks the triangles of a point, its nearest landmark, and each other landmark.
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
    """Return the projection P that makes factors of distances: ``F = B P``, ``D^ = F diag(s) F'``."""
    values, vectors = np.linalg.eigh(W)
    magnitudes = np.abs(values)
    kept = magnitudes > EIGENVALUE_CUTOFF * magnitudes.max()
    # By falling magnitude, so that the columns do not depend on which eigenvalues are left out.
    order = np.argsort(-magnitudes, kind="stable")[: np.count_nonzero(kept)]
    projection: Floats = vectors[:, order] / np.sqrt(magnitudes[order])
    return projection, np.sign(values[order])


def nystrom_neighbors(
    B: Floats, W: Floats, n_neighbors: int, *, squared: bool
) -> tuple[Integers, Floats]:
    """Return the nearest other rows of every row by the Nystrom distances, and those distances.

    With ``squared``, by the squares of B and W; otherwise by equation (22).
    """
    return _neighbors(B, B, W, n_neighbors, squared=squared, without_itself=True)


def nystrom_neighbors_of_new(
    B_new: Floats, B: Floats, W: Floats, n_neighbors: int, *, squared: bool
) -> tuple[Integers, Floats]:
    """Return, for rows that were not in the run, the nearest of the rows that were, by the Nystrom distances.

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
    """``D^_ij = -q_i . f_j`` with ``q_i = -s f_i``: the nearest rows have the largest inner products."""
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
