"""Clustering by a factorization of the rows into memberships and centers: rows are about H W, with H >= 0.

The rows are X (n, m), the memberships H (n, k), the centers W (k, m): the paper's matrices, transposed. Numbers of
equations refer to Li et al., "Differentially private federated clustering over non-IID data", 2024. Their objective has
no 1/2 before the fit, so gradients have a factor of 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact.capacity import entry_bits
from flower_fedclust.exact.grid import (
    BITS,
    ball_in_units,
    integer_norms,
    truncated_to_ball,
    unit_exponent,
)
from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.vectors import clip_norm

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: alpha_1 in Theorem 4 of Li et al. (2024), above 1: the divisor of a gradient step on H is this multiple of its limit,
#: half of the gradient's Lipschitz constant.
ALPHA_H = 1.5

#: For fixed centers, memberships take at most MOST_STEPS steps. They have converged if ten steps change them by no more
#: than the fraction SMALL_CHANGE.
MOST_STEPS, SMALL_CHANGE = 300, 1e-6

#: How many rows' outer products are added in float64: an entry of one is at most 2^40, so that a sum over 2^13 rows is
#: at most 2^53 and exact. And how many entries are worked on at a time.
GRADIENT_ROWS, BLOCK_ENTRIES = 2**13, 2**18


@dataclass(frozen=True)
class Penalties:
    """The weights of the penalties in the objective, equation (14) of Li et al. (2024)."""

    #: Weight of the products of two memberships of one row: the larger, the more a row belongs to one cluster alone.
    rho: float = 0.0
    mu_h: float = 0.0  #: Weight of the squared memberships.
    mu_w: float = 0.0  #: Weight of the squared centers.


def lifted(rows: Floats, origin: Floats) -> Floats:
    """Return the rows minus an origin, each with one more coordinate: the last entry of ``origin``, the same for all.

    The factorization's clusters are rays from 0. The new rows lie in a plane that does not contain 0, and a ray from 0
    meets this plane in at most one point. So each cluster becomes a point, and its rows lie around it.
    """
    n_columns = rows.shape[1]
    found = np.empty((len(rows), n_columns + 1))
    np.subtract(rows, origin[:n_columns], out=found[:, :n_columns])
    found[:, n_columns] = origin[n_columns]
    return found


def objective(rows: Floats, H: Floats, W: Floats, penalties: Penalties) -> float:
    """Return the objective F_i, equation (14) of Li et al. (2024), in squared units of the rows.

    ``||X - H W||^2 + rho/2 sum_j ((1' h_j)^2 - ||h_j||^2) + mu_h/2 ||H||^2 + mu_w/2 ||W||^2``
    """
    squared = float(np.sum(H**2))
    return (
        float(np.sum((rows - H @ W) ** 2))
        + penalties.rho / 2 * (float(np.sum(H.sum(axis=1) ** 2)) - squared)
        + penalties.mu_h / 2 * squared
        + penalties.mu_w / 2 * float(np.sum(W**2))
    )


def membership_gradient(XW: Floats, H: Floats, WW: Floats, penalties: Penalties) -> Floats:
    """Return the objective's gradient in H from the products ``X W'`` and ``W W'``.

    The gradient is ``2 (H W - X) W' + rho (H 1 1' - H) + mu_h H``.
    """
    of_fit: Floats = 2.0 * (H @ WW - XW)
    of_penalties: Floats = (penalties.mu_h - penalties.rho) * H + penalties.rho * H.sum(
        axis=1, keepdims=True
    )
    return of_fit + of_penalties


def center_gradient(rows: Floats, H: Floats, W: Floats, mu_w: float) -> Floats:
    """Return the objective's gradient in the centers W: ``2 H' (H W - X) + mu_w W``."""
    gradient: Floats = 2.0 * H.T @ (H @ W - rows) + mu_w * W
    return gradient


def membership_steps(
    rows: Floats, H: Floats, W: Floats, penalties: Penalties, n_steps: int
) -> Floats:
    """Take ``n_steps`` projected gradient steps on the memberships H: equation (17) of Li et al. (2024).

    A step is divided by ``gamma = alpha_1 L_H / 2``, where L_H is the gradient's Lipschitz constant. alpha_1 is above
    1, so no step raises the objective. If W and the penalties are 0, H stays as it is. A row's memberships depend on no
    other row.
    """
    return _membership_steps(rows @ W.T, H, W @ W.T, penalties, n_steps)


def _membership_steps(
    XW: Floats, H: Floats, WW: Floats, penalties: Penalties, n_steps: int
) -> Floats:
    """Take projected gradient steps on H, from the products ``X W'`` and ``W W'``: no step needs the rows again."""
    gamma = _step_divisor(WW, penalties)
    if gamma == 0:
        return H
    for _ in range(n_steps):
        H = np.maximum(H - membership_gradient(XW, H, WW, penalties) / gamma, 0.0)
    return H


def membership_step_divisor(W: Floats, penalties: Penalties) -> float:
    """Return gamma, the divisor of a gradient step on the memberships H: equation (17) of Li et al. (2024).

    It is in squared units of the centers, and 0 if the centers and the penalties are all 0.
    """
    return _step_divisor(W @ W.T, penalties)


def _step_divisor(WW: Floats, penalties: Penalties) -> float:
    """Return ``ALPHA_H L_H / 2``, where ``L_H = 2 lambda_max(W W') + rho (k - 1) + mu_h`` is the Lipschitz constant."""
    lipschitz = 2.0 * _largest_eigenvalue(WW) + penalties.rho * (len(WW) - 1) + penalties.mu_h
    return ALPHA_H / 2 * lipschitz


def exact_membership_steps(
    rows: Floats,
    H: Floats,
    W: Floats,
    exponent: int,
    penalties: Penalties,
    gamma: float,
    n_steps: int,
) -> Floats:
    """Take the steps of :func:`membership_steps` by operations that every machine rounds alike, row by row.

    Products of rows and centers are products of integers, and exact. Everything else is done entry by entry, and one
    cluster after the other, so the bits of a row depend on no other row.
    """
    if gamma == 0:
        return H
    XW, WW = rows @ W.T, W @ W.T
    rho, mu_h, divisor = np.ldexp([penalties.rho, penalties.mu_h, gamma], -2 * exponent)
    for _ in range(n_steps):
        fit, total = -XW, np.zeros((len(rows), 1))
        for column, products in enumerate(WW):
            own = H[:, column : column + 1]
            fit += own * products
            total += own
        H = np.maximum(H - (2.0 * fit + (mu_h - rho) * H + rho * total) / divisor, 0.0)
    return H


def memberships_of(rows: Floats, W: Floats, penalties: Penalties) -> Floats:
    """Return the memberships of rows for given centers: :func:`membership_steps` until they have converged.

    The penalty on products is not convex, so the result depends on the start: the first step from 0.
    """
    XW, WW = rows @ W.T, W @ W.T
    H = _membership_steps(XW, np.zeros_like(XW), WW, penalties, 1)
    moving = np.arange(len(rows))
    for _ in range(MOST_STEPS // 10):
        former = H[moving]
        moved = _membership_steps(XW[moving], former, WW, penalties, 10)
        H[moving] = moved
        # Each row stops by itself, so its result does not depend on the other rows.
        moving = moving[
            np.abs(moved - former).max(axis=1) > SMALL_CHANGE * np.abs(moved).max(axis=1)
        ]
        if len(moving) == 0:
            break
    return H


def _largest_eigenvalue(symmetric: Floats) -> float:
    """Return the largest eigenvalue of a matrix whose eigenvalues are negative only by rounding."""
    return max(float(np.linalg.eigvalsh(symmetric)[-1]), 0.0)


def center_step_size(HH: Floats, alpha: float, mu_w: float) -> float:
    """Return eta, the divisor of a gradient step on the centers: ``alpha (lambda_max + mu_w / 2)``; 0 if H is 0.

    ``lambda_max`` is the largest eigenvalue of ``H'H``, with which Li et al. (2024) estimate L_W. The Lipschitz
    constant of the gradient is ``2 lambda_max + mu_w``, so with alpha above 1 no step raises the objective.
    """
    largest = _largest_eigenvalue((HH + HH.T) / 2)
    return alpha * (largest + mu_w / 2) if largest > 0 else 0.0


def center_steps(
    rows: Floats,
    H: Floats,
    W: Floats,
    batches: Iterable[NDArray[np.intp]],
    mu_w: float,
    eta: float,
    bound: float = math.inf,
) -> Floats:
    """Take a gradient step on the centers W for each minibatch: equation (18) of Li et al. (2024)."""
    if eta == 0:
        return W
    for batch in batches:
        W = W - clip_norm(center_gradient(rows[batch], H[batch], W, mu_w), bound) / eta
    return W


def clipped_center_gradient(
    rows: Floats, H: Floats, W: Floats, exponent: int, bound: float
) -> tuple[Integers, int]:
    """Return the exact sum of the rows' gradients in W, each clipped to a norm, and the exponent of its unit.

    Only the squared error counts, not the penalties. A row x with memberships h has the gradient ``2 h (h W - x)'``:
    the outer product of the direction of h, of norm 1, with ``2 ||h|| (h W - x)``, which has the norm of the gradient.
    The first vector is truncated to 15 bits (fewer if there can be more rows), the second is clipped to the bound and
    truncated to 25 bits. So one row adds integers whose Frobenius norm is at most the bound.
    """
    n_clusters, n_columns = W.shape
    # A column of W is at most sqrt(k) times as long as a row may be: with ``dropped`` bits less, products stay below
    # 2^53.
    dropped = max(0, ((n_clusters - 1).bit_length() + 1) // 2 - 3)
    unit = unit_exponent(bound)
    within, bits = ball_in_units(float(bound), 2, unit), entry_bits() - BITS
    gradient = np.zeros(W.shape, dtype=np.int64)
    widest = max(n_clusters, n_columns)
    for block in blocks(
        len(rows), widest, block_entries=min(BLOCK_ENTRIES, GRADIENT_ROWS * widest)
    ):
        residuals = np.trunc(H[block] * 2.0**-dropped) @ W
        residuals -= rows[block] * 2.0 ** (BITS - dropped)
        lengths = np.sqrt(integer_norms(H[block], 2))[:, None]
        residuals *= lengths * 2.0 ** (1 - BITS)
        # This subtracts more than rounding can have added.
        directions = np.trunc(H[block] / np.maximum(lengths, 1.0) * (2.0**bits * (1.0 - 2.0**-40)))
        finer = unit - (exponent - BITS + dropped)
        pulls = truncated_to_ball(residuals, None, finer, *within, 2)
        gradient += (directions.T @ pulls).astype(np.int64)
    return gradient, unit - bits
