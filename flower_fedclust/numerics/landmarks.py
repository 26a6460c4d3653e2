"""The mathematics of federated distribution learning: landmarks Y whose distribution is close to the rows'.

It is section 3 of Qiao, Ma and Fan, "Federated t-SNE and UMAP for distributed data visualization", AAAI 2025, on which
Fed-tSNE, Fed-UMAP and Fed-SpeClust are built. Equations are the paper's. The paper writes samples as columns. Here they
are rows: X_p is (n_rows, n_columns), and Y and all gradients are (n_landmarks, n_columns). The kernel is ``k(x, y) =
exp(-gamma ||x - y||^2)`` with a positive gamma, in one over the squared units of the rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.blocks import cached_blocks

Floats = NDArray[np.float64]

#: Local steps after the first are computed in single precision if the largest squared distance from the landmarks'
#: mean, in units of the kernel's width, is in this range. Outside it, steps could have fewer than 5 digits.
SINGLE_PRECISION = (2.0**-6, 2.0**5)


def landmark_gamma(variance: Floats) -> float:
    """Return ``gamma = 1 / (2 r^2)``, where r^2 is the mean squared distance between two rows; 1 if all are equal."""
    mean_squared_distance = 2.0 * float(np.sum(variance))
    return 0.5 / mean_squared_distance if mean_squared_distance > 0 else 1.0


def mean_similarity(points: Floats, gamma: float) -> float:
    """Return the mean kernel value over ordered pairs of different points; 0 for a single point."""
    n_points = len(points)
    if n_points < 2:
        return 0.0
    width = 1.0 / math.sqrt(2.0 * gamma)
    factor = _factor((points - points.mean(axis=0)) / width)
    total = sum(
        float(_kernel(factor[block], factor).sum()) for block in cached_blocks(n_points, n_points)
    )
    return (total - n_points) / (n_points * (n_points - 1.0))


def longest_pull(gamma: float) -> float:
    """Return the largest value of ``k(x, y) ||x - y||``, which it takes at ``||x - y|| = 1 / sqrt(2 gamma)``."""
    return math.exp(-0.5) / math.sqrt(2.0 * gamma)


def longest_attraction(gamma: float, n_landmarks: int) -> float:
    """Return a tight bound on the norm of the array ``k(x, y_j) (x - y_j)`` of one row x and all n_y landmarks.

    This is the sensitivity of the sum over rows, without clipping. Times ``4 gamma / n_y``, it is the sensitivity of
    the rows' part of the gradient (13), times the number of rows: ``sqrt(8 gamma / (e n_y))``.
    """
    return math.sqrt(n_landmarks) * longest_pull(gamma)


def repulsion_gradient(Y: Floats, gamma: float) -> Floats:
    """Return the landmarks' part of the gradient (13), which needs no rows; 0 for a single landmark."""
    width = 1.0 / math.sqrt(2.0 * gamma)
    factor = _factor((Y - Y.mean(axis=0)) / width)
    repulsion, _ = _pulls(factor, factor)
    gradient: Floats = repulsion * (width / (step_size(gamma, len(Y)) * _n_others(len(Y))))
    return gradient


def step_size(gamma: float, n_landmarks: int) -> float:
    """Return the step size ``n_y / (4 gamma)``, in squared units of the rows.

    Qiao, Ma and Fan (2025) ask for "the reverse of the Lipschitz constant". With n_y landmarks, the curvature of
    the objective is in any direction at most ``(4 gamma / n_y) (1 + 2 exp(-3/2) n_y / (n_y - 1))``. That is 1.89 times
    ``4 gamma / n_y`` with two landmarks, and 1.45 times with many. A gradient step does not raise the objective if its
    size is below 2 over the curvature, which this step size is.
    """
    return n_landmarks / (4.0 * gamma)


@dataclass(frozen=True)
class LocalSteps:
    """What gradient steps on one client's rows find."""

    moves: Floats  #: How far the steps move each landmark; none is moved by more than :func:`longest_move`.
    gradient: Floats  #: The gradient of the last step.
    mmd: float  #: The client's objective before the first step.


def local_steps(rows: Floats, Y: Floats, gamma: float, n_steps: int, *, own: float) -> LocalSteps:
    """Take ``n_steps`` gradient steps from the landmarks Y on one client's rows; at least one.

    It is step 8 in Algorithm 1 of Qiao, Ma and Fan (2025). The client's objective is the squared maximum mean
    discrepancy of rows and landmarks, estimated without bias: f_p in equations (9) and (10). Its first summand does not
    depend on the landmarks, and is given: ``own`` is the :func:`mean_similarity` of the rows. The gradient is equation
    (13).

    No step raises the client's objective. With one step in a round, the mean of the clients' landmarks is a gradient
    step on their mean objective, equation (8), which therefore does not rise either. With several steps it can rise,
    because clients with different rows pull landmarks apart.
    """
    # The unit is the kernel's width and the origin the landmarks' mean: farther out, differences would lose digits.
    width, origin = 1.0 / math.sqrt(2.0 * gamma), Y.mean(axis=0)
    start = (Y - origin) / width
    of_rows, of_landmarks = _factor(_near((rows - origin) / width, start, n_steps)), _factor(start)
    step, objective = _step(of_rows, of_landmarks, len(rows))
    moved = start + step
    if _single_precision_is_enough(of_rows, of_landmarks):
        of_rows = of_rows.astype(np.float32)
    for _ in range(n_steps - 1):
        of_landmarks = _factor(moved).astype(of_rows.dtype)
        step, _ = _step(of_rows, of_landmarks, len(rows))
        moved = moved + step
    gradient = step * (-width / step_size(gamma, len(Y)))
    return LocalSteps((moved - start) * width, gradient, own + objective)


def longest_move(gamma: float, n_steps: int) -> float:
    """Return a bound on how far ``n_steps`` gradient steps move a landmark, up to rounding.

    A step is the mean pull of the rows minus the mean pull of the other landmarks, and each is at most
    :func:`longest_pull`.
    """
    return 2.0 * n_steps * longest_pull(gamma)


def _n_others(n_landmarks: int) -> int:
    """Return the number of other landmarks; 1 for a single landmark, on which nothing pulls."""
    return max(n_landmarks - 1, 1)


def _near(rows: Floats, Y: Floats, n_steps: int) -> Floats:
    """Leave out rows whose kernel values with all landmarks are 0 in floats, before ``n_steps`` steps and after them.

    Times an infinite offset, a kernel value of 0 would give NaN. The unit is the kernel's width.
    """
    farthest = np.abs(Y).max() + n_steps * 2.0 * math.exp(-0.5) + math.sqrt(1500.0)
    near = np.abs(rows).max(axis=1) <= farthest
    return rows if near.all() else rows[near]


def _single_precision_is_enough(of_rows: Floats, of_landmarks: Floats) -> bool:
    """Return whether steps keep 5 digits in single precision."""
    least, most = SINGLE_PRECISION
    farthest = -2.0 * min(of_rows[:, -1].min(initial=0.0), of_landmarks[:, -1].min())
    return bool(least <= farthest <= most)


def _step(of_rows: Floats, of_landmarks: Floats, n_rows: int) -> tuple[Floats, float]:
    """Return a gradient step, in units of the kernel's width, and the objective before it, less its first summand.

    The step is the mean pull of the rows less the mean pull of the other landmarks. The arguments are prepared by
    :func:`_factor`. Of the ``n_rows`` rows, some may be left out by :func:`_near`.
    """
    n_landmarks = len(of_landmarks)
    n_others = _n_others(n_landmarks)
    attraction, between = _pulls(of_rows, of_landmarks)
    repulsion, among = _pulls(of_landmarks, of_landmarks)
    objective = (among - n_landmarks) / n_others - 2.0 * between / n_rows
    return attraction / n_rows - repulsion / n_others, objective / n_landmarks


def _pulls(of_points: Floats, of_landmarks: Floats) -> tuple[Floats, float]:
    """Return ``sum_i k(x_i, y_j) (x_i - y_j)`` for each landmark y_j, and the sum of all kernel values."""
    sums = np.zeros((len(of_landmarks), of_points.shape[1] - 1))
    for block in cached_blocks(len(of_points), len(of_landmarks)):
        sums += _kernel(of_landmarks, of_points[block]) @ of_points[block, :-1]
    pull, weight = sums[:, :-1], sums[:, -1:]
    return pull - weight * of_landmarks[:, :-2], float(weight.sum())


def _factor(points: Floats) -> Floats:
    """Return the columns ``(x, 1, -||x||^2 / 2)`` of points around the origin, in units of the kernel's width."""
    n_columns = points.shape[1]
    factor = np.ones((len(points), n_columns + 2))
    factor[:, :n_columns] = points
    np.multiply(np.einsum("ij,ij->i", points, points), -0.5, out=factor[:, n_columns + 1])
    return factor


def _kernel(of_points: Floats, of_others: Floats) -> Floats:
    """Return the kernel values of points, in rows, and others, in columns; both prepared by :func:`_factor`.

    The exponent ``x.y - ||x||^2 / 2 - ||y||^2 / 2`` is one product, of ``(x, 1, -||x||^2 / 2)`` and ``(y, -||y||^2 / 2,
    1)``. Far from the origin its terms would cancel, and digits would be lost.
    """
    n_columns = of_points.shape[1] - 2
    turned = of_others[:, [*range(n_columns), n_columns + 1, n_columns]]
    exponents: Floats = of_points @ turned.T
    # No squared distance is negative; rounding can make one so. With one bound alone, NumPy is three times as slow.
    np.clip(exponents, -np.inf, 0.0, out=exponents)
    return np.exp(exponents, out=exponents)
