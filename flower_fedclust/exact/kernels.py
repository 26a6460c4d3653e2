"""Terms made of kernel values: a lemma about kernels bounds what a row adds, so the bound is written here.

``points`` and ``atoms`` have the shape (n_points, n_columns), ``bandwidth`` is r of the Gaussian kernel in the units of
the data, and ``to_factors``, (n_points, n_factors), turns kernel values into factors.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact import kernel_sums, spectral_sums
from flower_fedclust.exact.grid import BITS
from flower_fedclust.exact.rows import Rows
from flower_fedclust.exact.sums import upper_triangle
from flower_fedclust.exact.terms import CLIPPED_TERM, Bound, Term, enforced
from flower_fedclust.numerics.landmarks import longest_attraction

Floats = NDArray[np.float64]


def factor_sum(rows: Rows, points: Floats, bandwidth: float, to_factors: Floats) -> Term:
    """Add the rows' factors, of shape (n_factors,); each is clipped to norm 1."""
    kernel = (rows.integers, rows.points(points), rows.exponent, bandwidth)
    added = spectral_sums.factor_sum(*kernel, to_factors)
    return enforced(*added, Bound(1.0, words="factors are no longer than 1"), 2**BITS, len(rows))


def normalized_moment(
    rows: Rows, points: Floats, bandwidth: float, to_factors: Floats, total: Floats, exponent: int, floor: float
) -> Term:
    """Add the outer products of the factors over the degrees (upper triangle): ``F' D^-1 F``."""
    bound = 1.0 / math.sqrt(floor)
    kernel = (rows.integers, rows.points(points), rows.exponent, bandwidth)
    moment, unit = spectral_sums.normalized_moment(*kernel, to_factors, total, exponent, floor, bound)
    words = "factors are no longer than 1, and no degree is below the inverse of this"
    largest = 2 ** (2 * spectral_sums.MOMENT_BITS)
    return enforced(upper_triangle(moment), unit, Bound(bound**2, words=words, triangle=True), largest, len(rows))


def attraction(rows: Rows, points: Floats, gamma: float) -> Term:
    """Add how each row attracts the points: ``sum_i k(x_i, y_j) (x_i - y_j)``, of the shape of the points."""
    added = kernel_sums.attraction_sums(rows.integers, rows.points(points), rows.exponent, gamma)
    # Of a wide kernel the distance is the bound: rounding to the grid moves neither point by the radius.
    longest = min(longest_attraction(gamma, len(points)), 4.0 * rows.radius * math.sqrt(len(points)))
    largest = 2 ** (kernel_sums.KERNEL_BITS + kernel_sums.ATTRACTED_BITS + 1)
    return enforced(*added, Bound(longest, words="no row attracts the landmarks more"), largest, len(rows))


def dictionary_gradient(
    rows: Rows, atoms: Floats, bandwidth: float, to_codes: Floats, code_bound: float, bound: float
) -> Term:
    """Add the gradient of each row by the atoms, clipped to a norm; lengths are in bandwidths."""
    kernel = (rows.integers, rows.points(atoms), rows.exponent, bandwidth)
    added = spectral_sums.dictionary_gradient(*kernel, to_codes, code_bound, bound)
    return enforced(*added, Bound(bound, words=CLIPPED_TERM), 2**BITS, len(rows))
