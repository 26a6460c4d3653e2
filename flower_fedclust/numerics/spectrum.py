"""Estimate the eigenvalues of a matrix from the eigenvalues of the matrix with noise.

The largest eigenvalues of a noisy matrix are too large and the smallest too small, because their eigenvectors follow
the noise. Only their sum is right on average. By Stein's lemma the error has an unbiased estimate, which needs nothing
but the noisy eigenvalues and the deviation of the noise. For one large eigenvalue it is what random matrices predict
(Bun, Allez, Bouchaud and Potters, "Rotational invariant estimator for general noisy matrices", 2016).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def variances_along(values: Floats, noise: float) -> Floats:
    """Estimate ``v' M v`` for the eigenvectors v of a noisy positive matrix ``M + W``, from its eigenvalues.

    If M is a second moment, the estimates are the variances of the rows along the directions that the server has found.
    The error ``v_i' W v_i`` is on average ``noise^2 sum_j 1 / (values_i - values_j)``, and is subtracted. Neighboring
    estimates in the wrong order are replaced by their mean. Of the eigenvalues that noise alone could have made, all
    estimates are reduced by the same number, but not below 0. So they keep their sum, which is right on average, unless
    this sum is negative.

    Parameters
    ----------
    values : ndarray
        All noisy eigenvalues, the largest first.
    noise : float
        The standard deviation of the noise W on the diagonal; off the diagonal it is smaller by the factor sqrt(2).
    """
    if noise == 0.0:
        return values
    falling = _falling(values - noise**2 * _inverse_gaps(values))
    # Larger eigenvalues than noise alone makes, by the semicircle law.
    n_clear = int(np.count_nonzero(values > noise * math.sqrt(2 * len(values))))
    return np.concatenate([np.maximum(falling[:n_clear], 0.0), _positive(falling[n_clear:])])


def kept_of_singular(values: Floats, shape: tuple[int, int], noise: float) -> Floats:
    """Estimate the fraction of each singular value of a noisy matrix that is not noise, from 0 to 1.

    For the singular vectors u and v of ``A + W``, the fraction is ``u' A v`` divided by the singular value.

    Parameters
    ----------
    values : ndarray
        All noisy singular values, the largest first.
    shape : tuple of int
        Of the matrix.
    noise : float
        The standard deviation of the noise in each entry.
    """
    if noise == 0.0:
        return np.ones(len(values))
    positive = np.maximum(values, 1e-6 * noise)
    # 2 y_i / (y_i^2 - y_j^2) = 1 / (y_i - y_j) + 1 / (y_i + y_j)
    sums = (1.0 / (positive[:, None] + positive)).sum(axis=1) - 0.5 / positive
    error = noise**2 * (abs(shape[0] - shape[1]) / positive + _inverse_gaps(positive) + sums)
    return np.asarray(np.clip(_falling(positive - error) / positive, 0.0, 1.0))


def mean_if_positive(estimate: float, deviation: float) -> float:
    """Return the expected value of a positive number, given an estimate of it with a Gaussian error.

    A variance that noise hides is then estimated about as large as noise can hide, and not as 0.
    """
    if deviation == 0.0:
        return max(estimate, 0.0)
    from scipy.special import log_ndtr

    at = estimate / deviation
    slope = math.exp(-0.5 * at**2 - 0.5 * math.log(2 * math.pi) - float(log_ndtr(at)))
    return float(max(estimate + deviation * slope, 0.0))


def _inverse_gaps(values: Floats) -> Floats:
    """Return ``sum_j 1 / (values_i - values_j)`` over the other values; equal ones add nothing."""
    gaps = values[:, None] - values
    return np.asarray(np.divide(1.0, gaps, out=np.zeros_like(gaps), where=gaps != 0).sum(axis=1))


def _falling(estimates: Floats) -> Floats:
    """Return the nearest numbers that do not rise: neighbors in the wrong order get their mean."""
    from scipy.optimize import isotonic_regression

    return np.asarray(isotonic_regression(estimates, increasing=False).x, dtype=np.float64)


def _positive(falling: Floats) -> Floats:
    """Return the nearest numbers that are not negative and have the same sum; 0 if that is negative."""
    total = float(falling.sum())
    if total <= 0.0:
        return np.zeros(len(falling))
    too_much = (np.cumsum(falling) - total) / np.arange(1, len(falling) + 1)
    last = int(np.flatnonzero(falling > too_much)[-1])
    return np.asarray(np.maximum(falling - too_much[last], 0.0))
