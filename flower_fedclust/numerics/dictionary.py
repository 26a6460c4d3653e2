"""The mathematics of stage I of FedSC: a dictionary Z of a few atoms, and codes C, so that phi(X) is about phi(Z) C.

phi is the feature map of the Gaussian kernel. The paper writes samples as columns. Here they are rows: X is (n_rows,
n_columns), Z is (n_atoms, n_columns), and row i of C, (n_rows, n_atoms), is the code of row i of X. ``bandwidth`` is r
of the Gaussian kernel, in the units of the rows; ``regularization`` is lambda, not negative. Equations are FedSC's.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, pinvh

from flower_fedclust.numerics.kernel import gaussian_kernel

Floats = NDArray[np.float64]

#: The largest second derivative of exp(-t^2 / 2), at t^2 = 3.
_STEEPEST = 2.0 * math.exp(-1.5)

_TINY = float(np.finfo(float).tiny)


def codes(rows: Floats, Z: Floats, bandwidth: float, regularization: float) -> Floats:
    """Return the codes that minimize the objective for this dictionary (FedSC, equation 14).

    ``C = K(X, Z) (K(Z, Z) + lambda I)^-1``. If the inverted matrix is singular to the precision of floats (lambda is 0
    and atoms coincide), the shortest minimizer is returned. A row's code is no longer than ``1 / (2 sqrt(lambda))``.
    """
    Kzz = gaussian_kernel(Z, Z, bandwidth)
    Kzz[np.diag_indices_from(Kzz)] += regularization
    Kxz = gaussian_kernel(rows, Z, bandwidth)
    try:
        solved: Floats = cho_solve(cho_factor(Kzz, lower=True), Kxz.T).T
    except LinAlgError:
        solved = Kxz @ pinvh(Kzz)
    return np.ascontiguousarray(solved)


def objective(rows: Floats, Z: Floats, C: Floats, bandwidth: float, regularization: float) -> float:
    """Return f_p of FedSC, equation (8): half of the squared error in feature space, and the penalty on the codes."""
    fit = np.sum(C * gaussian_kernel(rows, Z, bandwidth))
    norm = np.sum((C @ gaussian_kernel(Z, Z, bandwidth)) * C)
    return float(0.5 * len(rows) - fit + 0.5 * norm + 0.5 * regularization * np.sum(C**2))


def curvature(rows: Floats, Z: Floats, C: Floats, bandwidth: float) -> Floats:
    """Return the inverse of the step size of each atom, of shape (n_atoms,)."""
    return _curvature(
        C, C.T @ C, gaussian_kernel(rows, Z, bandwidth), gaussian_kernel(Z, Z, bandwidth), bandwidth
    )


def _gradient(
    rows: Floats, Z: Floats, C: Floats, gram: Floats, Kxz: Floats, Kzz: Floats, bandwidth: float
) -> Floats:
    """Return the derivative of the objective by the atoms: FedSC, equation (15), which writes sigma for r."""
    W = -C * Kxz
    Q = 0.5 * gram * Kzz
    from_rows = W.T @ rows - W.sum(axis=0)[:, None] * Z
    from_atoms = Q @ Z - Q.sum(axis=0)[:, None] * Z
    gradient_: Floats = (from_rows + 2.0 * from_atoms) / bandwidth**2
    return gradient_


def _curvature(C: Floats, gram: Floats, Kxz: Floats, Kzz: Floats, bandwidth: float) -> Floats:
    """Return L, of shape (n_atoms,): as a function of each atom, the objective lies below a parabola of curvature L.

    A summand -c k(x, z) with c > 0 lies below its tangent in ||x - z||^2, because exp(-s) is convex in s; this gives
    the curvature c k / r^2. With c < 0 its curvature is nowhere above |c| 2 exp(-3/2) / r^2. The same holds for
    summands q k(z, z') with the signs reversed. They count twice for each of their atoms, because (a - b)^2 is at most
    2 a^2 + 2 b^2.
    """
    from_rows = np.sum(np.where(C > 0, C * Kxz, -_STEEPEST * C), axis=0)
    pairs = np.where(gram < 0, -gram * Kzz, _STEEPEST * gram)
    from_atoms = pairs.sum(axis=0) - np.diagonal(pairs)  # k(z, z) is 1 wherever z is
    L: Floats = (from_rows + 2.0 * from_atoms) / bandwidth**2
    return L


def dictionary_steps(rows: Floats, Z: Floats, C: Floats, bandwidth: float, n_steps: int) -> Floats:
    """Return the dictionary after ``n_steps`` gradient steps with fixed codes (FedSC, equation 16).

    No step raises the objective. Every atom has its own step size, 1 over its curvature. The paper takes one Lipschitz
    constant for all atoms, which is slower, and is not always above the largest curvature.
    """
    rows, start = _around_the_atoms(rows, Z)
    moved = start
    gram = C.T @ C
    for _ in range(n_steps):
        Kxz, Kzz = gaussian_kernel(rows, moved, bandwidth), gaussian_kernel(moved, moved, bandwidth)
        step = _gradient(rows, moved, C, gram, Kxz, Kzz, bandwidth)
        L = _curvature(C, gram, Kxz, Kzz, bandwidth)[:, None]
        # An atom that no code uses has no curvature and no gradient.
        moved = moved - np.divide(step, L, out=np.zeros_like(step), where=L > _TINY)
    return Z + (moved - start)


def _around_the_atoms(rows: Floats, Z: Floats) -> tuple[Floats, Floats]:
    """Shift rows and atoms by the atoms' mean, because far from the origin their differences would lose digits."""
    origin = Z.mean(axis=0)
    return rows - origin, Z - origin


def row_gradients(rows: Floats, Z: Floats, C: Floats, bandwidth: float) -> tuple[Floats, Floats]:
    """Return the gradient of each row's summand of the objective, after its norm; call it with a few rows at a time."""
    rows, Z = _around_the_atoms(rows, Z)
    Kzz, Kxz = gaussian_kernel(Z, Z, bandwidth), gaussian_kernel(rows, Z, bandwidth)
    gradients = np.matmul(Kzz, C[:, :, None] * Z)
    gradients += (Kxz - C @ Kzz)[:, :, None] * Z
    gradients -= Kxz[:, :, None] * rows[:, None, :]
    gradients *= C[:, :, None] / bandwidth**2
    return np.sqrt(np.einsum("ijk,ijk->i", gradients, gradients)), gradients


def kernel_root(Z: Floats, bandwidth: float) -> Floats:
    """Return ``K(Z, Z)^(1/2)``, which turns codes into factors: ``F = C K(Z, Z)^(1/2)``; see :func:`factors`."""
    values, vectors = np.linalg.eigh(gaussian_kernel(Z, Z, bandwidth))
    root: Floats = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return root


def factors(rows: Floats, Z: Floats, bandwidth: float, regularization: float) -> Floats:
    """Return the factors of rows: ``F = C K(Z, Z)^(1/2)``, where C are the rows' codes.

    The inner products of factors are the reconstructed kernel (FedSC, equation 5). If lambda is positive, the factors
    of every row have a norm below 1.
    """
    return gaussian_kernel(rows, Z, bandwidth) @ factor_map(Z, bandwidth, regularization)


def factor_map(
    Z: Floats,
    bandwidth: float,
    regularization: float,
    *,
    nystrom: bool = False,
    steepest: float = math.inf,
) -> Floats:
    """Return the matrix that turns a row's kernel values with the atoms into its factors.

    The matrix is ``(K(Z, Z) + lambda I)^-1 K(Z, Z)^(1/2)`` or, with ``nystrom``, ``(K(Z, Z) + lambda I)^(-1/2)``.
    Directions in which K(Z, Z) vanishes are left out, and no direction is magnified by more than ``steepest``.
    """
    values, vectors = np.linalg.eigh(gaussian_kernel(Z, Z, bandwidth))
    kept = values > values[-1] * len(values) * np.finfo(float).eps
    regularized = np.where(kept, values + regularization, np.inf)
    weights = np.sqrt(1.0 / regularized if nystrom else np.maximum(values, 0.0) / regularized**2)
    map_: Floats = (vectors * np.minimum(weights, steepest)) @ vectors.T
    return map_


def code_map(Z: Floats, bandwidth: float, regularization: float) -> Floats:
    """Return the matrix that turns a row's kernel values with the atoms into its code (FedSC, equation 14).

    ``(K(Z, Z) + lambda I)^-1``, or its pseudo-inverse.
    """
    Kzz = gaussian_kernel(Z, Z, bandwidth)
    Kzz[np.diag_indices_from(Kzz)] += regularization
    return np.asarray(pinvh(Kzz))


def matched_dictionary(
    mean: Floats, deviation: Floats, n_atoms: int, rng: np.random.Generator
) -> Floats:
    """Draw random atoms with the means and standard deviations of the columns; the paper only says "randomly".

    Atoms of unit scale around the origin may be far from the data, where the kernel is flat and the gradient vanishes.
    """
    return np.asarray(mean + deviation * rng.standard_normal((n_atoms, len(mean))))
