"""The mathematics of federated distribution learning: landmarks Y whose distribution is close to the rows'.

It is section 3 of Qiao, Ma and Fan, "Federated t-SNE and UMAP for distributed data visualization", AAAI 2025, on which
Fed-tSNE, Fed-UMAP and Fed-SpeClust are built. Equations are the paper's. The paper writes samples as columns. Here they
are rows: X_p is (n_rows, n_columns), and Y and all gradients are (n_landmarks, n_columns). The kernel is ``k(x, y) =
exp(-gamma ||x - y||^2)`` with a positive gamma, in one over the squared units of the rows.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.blocks import blocks

Floats = NDArray[np.float64]

#: Kernel values that are computed at a time: 2 MB.
KERNEL_ENTRIES = 2**18


def landmark_gamma(variance: Floats) -> float:
    """Return ``gamma = 1 / (2 r^2)``, where r^2 is the mean squared distance between two rows; 1 if all are equal."""
    mean_squared_distance = 2.0 * float(np.sum(variance))
    return 0.5 / mean_squared_distance if mean_squared_distance > 0 else 1.0


def mmd(rows: Floats, Y: Floats, gamma: float, *, own: float | None = None) -> float:
    """Return the squared maximum mean discrepancy of rows and landmarks, estimated without bias.

    It is f_p in equations (9) and (10) of Qiao, Ma and Fan (2025).
    """
    between = _kernel_sum(rows, Y, gamma) / (len(rows) * len(Y))
    own = mean_similarity(rows, gamma) if own is None else own
    return own - 2.0 * between + mean_similarity(Y, gamma)


def mean_similarity(points: Floats, gamma: float) -> float:
    """Return the mean kernel value over ordered pairs of different points; 0 for a single point.

    For rows it is the first summand of :func:`mmd`, and for landmarks the third.
    """
    n_points = len(points)
    if n_points < 2:
        return 0.0
    return (_kernel_sum(points, points, gamma) - n_points) / (n_points * (n_points - 1.0))


def mmd_gradient(rows: Floats, Y: Floats, gamma: float) -> Floats:
    """Return the derivative of :func:`mmd` by the landmarks: equation (13) of Qiao, Ma and Fan (2025)."""
    return attraction_sum(rows, Y, gamma) / len(rows) + repulsion_gradient(Y, gamma)


def attraction_sum(rows: Floats, Y: Floats, gamma: float) -> Floats:
    """Return the rows' part of :func:`mmd_gradient`, times the number of rows.

    For the landmark y_j it is ``sum_i -(4 gamma / n_y) k(x_i, y_j) (x_i - y_j)``, where n_y is the number of landmarks.

    :func:`~flower_fedclust.exact.kernels.attraction` computes it on the grid, without the factor.
    """
    rows, Y = _around_the_landmarks(rows, Y)
    # Rows that are farther than this from all landmarks are left out: their kernel values are 0 in floats, and times an
    # infinite offset they would give NaN.
    near = np.abs(rows).max(axis=1) <= np.abs(Y).max() + math.sqrt(750.0 / gamma)
    pull, weight = _pulls(rows if near.all() else rows[near], Y, gamma)
    return -(4.0 * gamma / len(Y)) * (pull - weight * Y)


def longest_pull(gamma: float) -> float:
    """Return the largest value of ``k(x, y) ||x - y||``, which it takes at ``||x - y|| = 1 / sqrt(2 gamma)``."""
    return math.exp(-0.5) / math.sqrt(2.0 * gamma)


def longest_attraction(gamma: float, n_landmarks: int) -> float:
    """Return a tight bound on the norm of the array ``k(x, y_j) (x - y_j)`` of one row x and all n_y landmarks.

    This is the sensitivity of the sum over rows, without clipping. Times ``4 gamma / n_y``, it is the sensitivity of
    :func:`attraction_sum`: ``sqrt(8 gamma / (e n_y))``.
    """
    return math.sqrt(n_landmarks) * longest_pull(gamma)


def repulsion_gradient(Y: Floats, gamma: float) -> Floats:
    """Return the landmarks' part of :func:`mmd_gradient`, which needs no rows; 0 for a single landmark."""
    n_landmarks = len(Y)
    if n_landmarks < 2:
        return np.zeros_like(Y)
    Y = Y - Y.mean(axis=0)
    pull, weight = _pulls(Y, Y, gamma)
    gradient: Floats = (4.0 * gamma / (n_landmarks * (n_landmarks - 1.0))) * (pull - weight * Y)
    return gradient


def step_size(gamma: float, n_landmarks: int) -> float:
    """Return the step size ``n_y / (4 gamma)``, in squared units of the rows.

    Qiao, Ma and Fan (2025) ask for "the reverse of the Lipschitz constant". With n_y landmarks, the curvature of
    :func:`mmd` is in any direction at most ``(4 gamma / n_y) (1 + 2 exp(-3/2) n_y / (n_y - 1))``. That is 1.89 times
    ``4 gamma / n_y`` with two landmarks, and 1.45 times with many. A gradient step does not raise the objective if its
    size is below 2 over the curvature, which this step size is.
    """
    return n_landmarks / (4.0 * gamma)


def landmark_steps(rows: Floats, Y: Floats, gamma: float, n_steps: int) -> Floats:
    """Return the landmarks after ``n_steps`` gradient steps on one client's rows.

    It is step 8 in Algorithm 1 of Qiao, Ma and Fan (2025). No step raises the client's objective. With one step in a
    round, the mean of the clients' landmarks is a gradient step on their mean objective, equation (8), which therefore
    does not rise either. With several steps it can rise, because clients with different rows pull landmarks apart.
    """
    return Y + landmark_moves(rows, Y, gamma, n_steps)


def landmark_moves(rows: Floats, Y: Floats, gamma: float, n_steps: int) -> Floats:
    """Return the moves of the landmarks by :func:`landmark_steps`; none is longer than :func:`longest_move`."""
    rows, start = _around_the_landmarks(rows, Y)
    moved = start
    size = step_size(gamma, len(Y))
    for _ in range(n_steps):
        moved = moved - size * mmd_gradient(rows, moved, gamma)
    return moved - start


def longest_move(gamma: float, n_steps: int) -> float:
    """Return a bound on how far ``n_steps`` gradient steps move a landmark, up to rounding.

    A step is the mean pull of the rows minus the mean pull of the other landmarks, and each is at most
    :func:`longest_pull`.
    """
    return 2.0 * n_steps * longest_pull(gamma)


def _pulls(rows: Floats, Y: Floats, gamma: float) -> tuple[Floats, Floats]:
    """Return the sums over the rows of ``k(x_i, y_j) x_i`` and, as a column, of ``k(x_i, y_j)``, for each landmark."""
    n_columns = rows.shape[1]
    sums = np.zeros((len(Y), n_columns + 1))
    for block in blocks(len(rows), len(Y), block_entries=KERNEL_ENTRIES):
        kernel, second = _kernel_and_factor(Y, rows[block], gamma)
        sums += kernel @ second[:, :-1]
    return sums[:, :-1], sums[:, -1:]


def _kernel(rows: Floats, Y: Floats, gamma: float) -> Floats:
    return _kernel_and_factor(rows, Y, gamma)[0]


def _kernel_and_factor(rows: Floats, Y: Floats, gamma: float) -> tuple[Floats, Floats]:
    """Return kernel values of rows and landmarks around the origin, and the columns ``(y, 1, -gamma ||y||^2)``.

    The exponent ``2 gamma x.y - gamma ||x||^2 - gamma ||y||^2`` is one product, with ``(2 gamma x, -gamma ||x||^2,
    1)``. Far from the origin its terms would cancel, and digits would be lost.
    """
    n_columns = rows.shape[1]
    squared_norms = np.einsum("ij,ij->i", rows, rows)
    of_rows = np.ones((len(rows), n_columns + 2))
    np.multiply(rows, 2.0 * gamma, out=of_rows[:, :n_columns])
    np.multiply(squared_norms, -gamma, out=of_rows[:, n_columns])

    squared_norms = np.einsum("ij,ij->i", Y, Y)
    of_landmarks = np.ones((len(Y), n_columns + 2))
    of_landmarks[:, :n_columns] = Y
    np.multiply(squared_norms, -gamma, out=of_landmarks[:, n_columns + 1])

    exponents: Floats = of_rows @ of_landmarks.T
    # No squared distance is negative; rounding can make one so.
    np.minimum(exponents, 0.0, out=exponents)
    return np.exp(exponents, out=exponents), of_landmarks


def _kernel_sum(rows: Floats, others: Floats, gamma: float) -> float:
    """Return the sum of the kernel over all pairs of a row and another point."""
    rows, others = _around_the_landmarks(rows, others)
    return sum(
        float(_kernel(rows[block], others, gamma).sum())
        for block in blocks(len(rows), len(others), block_entries=KERNEL_ENTRIES)
    )


def _around_the_landmarks(rows: Floats, Y: Floats) -> tuple[Floats, Floats]:
    """Subtract the landmarks' mean from both, because far from the origin their differences would lose digits."""
    origin = Y.mean(axis=0)
    return rows - origin, Y - origin
