"""Terms that take kernel values: what a row adds is bounded by a lemma about kernels, and so the bound stands here."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact import kernel_sums, spectral_sums
from flower_fedclust.exact.grid import BITS
from flower_fedclust.exact.rows import Rows
from flower_fedclust.exact.sums import upper_triangle
from flower_fedclust.exact.terms import CLIPPED_TERM, Bound, Term
from flower_fedclust.numerics.landmarks import longest_attraction

Floats = NDArray[np.float64]


def factor_sum(rows: Rows, points: Floats, bandwidth: float, to_factors: Floats) -> Term:
    """Add the rows' factors, of shape (n_factors,); each is clipped to norm 1.

    Parameters
    ----------
    rows : Rows
    points : ndarray of shape (n_points, n_columns)
        Atoms or landmarks.
    bandwidth : float
        r of the Gaussian kernel, in the units of the data.
    to_factors : ndarray of shape (n_points, n_factors)
        What turns kernel values into factors.
    """
    kernel = (rows.integers, rows.points(points), rows.exponent, bandwidth)
    added = spectral_sums.factor_sum(*kernel, to_factors)
    return Term(*added, Bound(1.0, words="factors are no longer than 1"), 2**BITS, len(rows))


def normalized_moment(
    rows: Rows, points: Floats, bandwidth: float, to_factors: Floats, total: Floats, exponent: int, floor: float
) -> Term:
    """Add the outer products of the factors over the degrees (upper triangle): ``F' D^-1 F``.

    Parameters
    ----------
    rows, points, bandwidth, to_factors
        As for :func:`factor_sum`.
    total : ndarray of shape (n_factors,)
        ``F' 1`` over all rows, on the grid of a unit of this exponent.
    exponent : int
    floor : float
        The smallest degree that a row is given.
    """
    bound = 1.0 / math.sqrt(floor)
    kernel = (rows.integers, rows.points(points), rows.exponent, bandwidth)
    moment, unit = spectral_sums.normalized_moment(*kernel, to_factors, total, exponent, floor, bound)
    words = "factors are no longer than 1, and no degree is below the inverse of this"
    largest = 2 ** (2 * spectral_sums.MOMENT_BITS)
    return Term(upper_triangle(moment), unit, Bound(bound**2, words=words, triangle=True), largest, len(rows))


def attraction(rows: Rows, points: Floats, gamma: float) -> Term:
    """Add how each row attracts the points: ``sum_i k(x_i, y_j) (x_i - y_j)``, of the shape of the points.

    Parameters
    ----------
    rows : Rows
    points : ndarray of shape (n_points, n_columns)
        Landmarks.
    gamma : float
        Of the kernel ``exp(-gamma ||x - y||^2)``, in one over squared units of the data.
    """
    added = kernel_sums.attraction_sums(rows.integers, rows.points(points), rows.exponent, gamma)
    # Of a wide kernel the distance is the bound: rounding to the grid moves neither point by the radius.
    longest = min(longest_attraction(gamma, len(points)), 4.0 * rows.radius * math.sqrt(len(points)))
    largest = 2 ** (kernel_sums.KERNEL_BITS + kernel_sums.ATTRACTED_BITS + 1)
    return Term(*added, Bound(longest, words="no row attracts the landmarks more"), largest, len(rows))


def dictionary_gradient(
    rows: Rows, atoms: Floats, bandwidth: float, to_codes: Floats, code_bound: float, bound: float
) -> Term:
    """Add the gradient of each row by the atoms, clipped to a norm, of the shape of the atoms; lengths in bandwidths.

    Parameters
    ----------
    rows, atoms, bandwidth
        As for :func:`factor_sum`.
    to_codes : ndarray of shape (n_atoms, n_atoms)
        ``(K(Z, Z) + lambda I)^-1``.
    code_bound : float
        To which codes are clipped.
    bound : float
        To which the gradient of a row is clipped.
    """
    kernel = (rows.integers, rows.points(atoms), rows.exponent, bandwidth)
    added = spectral_sums.dictionary_gradient(*kernel, to_codes, code_bound, bound)
    return Term(*added, Bound(bound, words=CLIPPED_TERM), 2**BITS, len(rows))
