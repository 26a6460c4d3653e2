"""Gaussian mixtures on a grid: how much each row belongs to each component, and the moments that EM adds up.

A row's offset from a mean, in integers, times a direction of multiples of 2^-27 is exact. Everything after that is done
entry by entry, or column after column, by operations that every machine rounds alike. So a row's vector depends only on
the row and on the public message. A term clips this vector before it is added.

Below, k is the number of components and d the number of columns. A whitening turns each component's covariance into the
identity. It has the shape (k, d, d), with directions as columns, or (k, d), with a factor for each column.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact.capacity import entry_bits
from flower_fedclust.exact.elementary import exponential, logarithm
from flower_fedclust.exact.grid import from_units, points_onto_grid
from flower_fedclust.exact.sums import directions_onto_grid
from flower_fedclust.exact.terms import Term, unbounded
from flower_fedclust.numerics.checks import DataError

Floats = NDArray[np.float64]
#: Structures of covariances: one for each component; the same with independent columns; one variance for each
#: component; or one covariance for all components.
Structure = Literal["full", "diag", "spherical", "tied"]
STRUCTURES: tuple[Structure, ...] = ("full", "diag", "spherical", "tied")


def structure_named(name: str) -> Structure:
    """Return the structure of covariances that a message names; raise a DataError if there is none."""
    for structure in STRUCTURES:
        if structure == name:
            return structure
    raise DataError(f"a message names '{name}'; covariances are {', '.join(STRUCTURES)}.")


#: Whitened offsets are limited to this magnitude, so that their squares are finite. So far from a mean, a density is 0.
FAR = 2.0**200


def whitening_of(weights: Floats, factors: Floats) -> tuple[Floats, Floats]:
    """Return the whitening of the components, and the constants of :func:`log_densities`.

    ``factors`` are the Cholesky factors of the covariances, (k, d, d), or the columns' standard deviations, (k, d).
    """
    if factors.ndim == 2:
        return 1.0 / factors, np.log(weights) - np.log(factors).sum(axis=1)
    whitening = np.ascontiguousarray(np.linalg.inv(factors).transpose(0, 2, 1))
    return whitening, np.log(weights) - np.log(np.einsum("jaa->ja", factors)).sum(axis=1)


def whitened(rows: Floats, means: Floats, whitening: Floats, exponent: int) -> Floats:
    """Return the whitened offsets of integer rows from the means, of shape (k, n_rows, d).

    The rows of a component then have variance 1 in every direction. An offset has a norm of at most 2^26, and
    directions are multiples of 2^-27, so their products are exact.
    """
    found = np.empty((len(means), *rows.shape))
    points = points_onto_grid(means, exponent)
    if whitening.ndim == 3:
        # Each direction is divided by a power of two that is no less than its norm.
        scales = (
            np.frexp(np.abs(whitening).max(axis=1))[1] + (rows.shape[1] - 1).bit_length() // 2 + 1
        )
    with np.errstate(over="ignore", invalid="ignore"):
        for index, offsets in enumerate(found):
            np.subtract(rows, points[index], out=offsets)
            if whitening.ndim == 3:
                directions = directions_onto_grid(np.ldexp(whitening[index], -scales[index]))
                offsets[:] = np.ldexp(offsets @ directions, scales[index] + exponent)
            else:
                offsets[:] = from_units(offsets, exponent) * whitening[index]
    return np.clip(found, -FAR, FAR, out=found)


def log_densities(offsets: Floats, constants: Floats) -> Floats:
    """Return the logarithm of each component's weighted density at each row, up to a constant; shape (n_rows, k).

    From the whitened offsets y it is ``constant_j - ||y_ij||^2 / 2``.
    """
    found = np.zeros((offsets.shape[1], len(offsets)))
    # Column after column, because the order of the additions changes the last bits.
    for column in range(offsets.shape[2]):
        found -= (offsets[:, :, column] * offsets[:, :, column]).T
    found *= 0.5
    found += constants
    return found


def responsibilities(densities: Floats) -> Floats:
    """Return how much every row belongs to every component, of shape (n_rows, k), the same bits on every machine."""
    found = exponential(densities - densities.max(axis=1, keepdims=True))
    total = np.zeros((len(found), 1))
    for column in range(found.shape[1]):
        total += found[:, column : column + 1]
    found /= total
    return found


def log_density(densities: Floats) -> Floats:
    """Return the logarithm of the sum of the components' densities, of shape (n_rows,); same bits on every machine."""
    largest = densities.max(axis=1, keepdims=True)
    parts = exponential(densities - largest)
    total = np.zeros((len(parts), 1))
    for column in range(parts.shape[1]):
        total += parts[:, column : column + 1]
    return np.asarray((logarithm(total) + largest)[:, 0])


def second_moments(offsets: Floats, structure: Structure) -> Floats:
    """Return the entries of ``y y' - 1`` that EM needs for each row and component, in an orthonormal basis.

    For "full" and "tied" it is the upper triangle, whose entries off the diagonal are multiplied by sqrt(2). For "diag"
    it is the diagonal, and for "spherical" the mean of the diagonal times sqrt(d). So the Euclidean norm of a vector
    equals the Frobenius norm of the matrix that it stands for.
    """
    d = offsets.shape[2]
    if structure in ("full", "tied"):
        first, second = np.triu_indices(d)
        found = offsets[:, :, first] * offsets[:, :, second]
        found[:, :, first == second] -= 1.0
        found[:, :, first != second] *= math.sqrt(2.0)
        return found
    squares = offsets * offsets - 1.0
    if structure == "diag":
        return squares
    total = np.zeros((*offsets.shape[:2], 1))
    for column in range(d):
        total += squares[:, :, column : column + 1]
    return np.asarray(total * (1.0 / math.sqrt(d)))


def moments(offsets: Floats, weights: Floats, structure: Structure, scale: float) -> Floats:
    """Return each row's vector for EM: ``scale r_ij``, ``scale r_ij y_ij`` and the :func:`second_moments` times r_ij.

    The vector has these three in this order, each for all components. For tied covariances, the second moments are
    added up over the components.
    """
    n_components = len(offsets)
    by_component = weights.T[:, :, None]
    squares = second_moments(offsets, structure)
    squares *= by_component
    if structure == "tied":
        for index in range(1, n_components):
            squares[0] += squares[index]
        squares = squares[:1]
    return np.concatenate([scale * weights, *(scale * offsets * by_component), *squares], axis=1)


def in_two_parts(values: Floats, bound: float) -> tuple[Term, Term]:
    """Add up vectors without noise, to 2^-80 of a bound: one term has 40 bits of each entry, the other the next 40."""
    bits = entry_bits()
    most = 2.0**bits
    exponent = math.frexp(bound)[1] - bits
    high = np.clip(np.trunc(np.ldexp(values, -exponent)), -most, most)
    below = values - np.ldexp(high, exponent)
    rest = np.clip(np.trunc(np.ldexp(below, bits - exponent)), -most, most)
    return unbounded(high, exponent, 2**bits), unbounded(rest, exponent - bits, 2**bits)
