"""How much noise FedSC's clusters withstand, and how much its privacy needs: the paper's bounds, before a run.

Noise goes on the rows (σ, section 3.1; `data_noise_range` answers both questions), or on the dictionary in every round
(σ_Z) and on the codes at the end (σ_C, section 3.2; `smallest_dictionary_noise`, `smallest_code_noise` and
`factor_noise_is_useful`). All bounds hold for the worst pair of rows and are far from tight: noise that they refuse may
leave the clusters as they are. What they compute from rows and labels is a release of those, so use public rows. The
strategies calibrate their noise by dp-accounting instead.

``n_columns`` is m, ``n_atoms`` d, ``n_rounds`` S, ``bandwidth`` r of the Gaussian kernel. ``max_norm`` (θ or τ_X) is
the largest norm of a row, ``max_code_norm`` (τ_C) of a code before the noise, ``max_dictionary_norm`` (τ_Z) the largest
spectral norm of the dictionary, ``max_distance`` (Υ) the largest distance of a row from an atom, ``step_size`` (η) the
largest gradient step, ``regularization`` λ. A statement about n rows holds with probability ``1 - n (n - 1) exp(-t)``,
one about n rows and d atoms with ``1 - (n + d) exp(-t)``.

Source: Qiao, Ding and Fan 2023, sections 3.1 and 3.2, appendices B and F to L. Rows are columns in the paper.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class NoiseRange(NamedTuple):
    """The standard deviations of the noise that are private enough and leave the clusters as they are."""

    smallest: float
    largest: float

    @property
    def is_empty(self) -> bool:
        """Whether no noise is both."""
        return not self.smallest < self.largest


def xi(n_columns: int, t: float) -> float:
    """Return ``ξ = sqrt(m + 2 sqrt(m t) + 2 t)``, which a Gaussian vector's norm exceeds with probability exp(-t).

    Equation (83) prints ``1 - exp(-t)`` for this probability, which is that of the opposite.
    """
    return math.sqrt(n_columns + 2.0 * math.sqrt(n_columns * t) + 2.0 * t)


def separation(
    rows: Floats, labels: NDArray[np.integer], *, bandwidth: float, n_neighbors: int, tolerance: float
) -> float:
    """Return the kernel error that clusters withstand, ``B_1 = ε/2 - max_i 1/4 [max_k K_ik^inter - min_k K_ik^intra]``.

    Equation (29); ``tolerance`` is ε of definition 3.5, no privacy budget. Maximum and minimum are over the nearest
    neighbors of row i in another class and in its own; a missing one has the kernel value 0, as in equation (25).
    Equation (100) takes the mean of two conditions where both are needed: where the brackets are positive, B_1 is
    larger than ``ε/2 - max_i 1/2 [...]``, up to which equation (92) proves that the clusters are correct.
    """
    from sklearn.neighbors import NearestNeighbors

    # Distances do not change when everything is moved, and near the origin fewer digits of them are lost.
    found = NearestNeighbors(n_neighbors=n_neighbors).fit(rows - rows.mean(axis=0)).kneighbors()
    distances, neighbors = found
    kernel = np.exp(-(distances**2) / (2.0 * bandwidth**2))
    same_class = labels[neighbors] == labels[:, None]
    inter = np.where(same_class, 0.0, kernel).max(axis=1)
    intra = np.where(same_class.any(axis=1), np.where(same_class, kernel, 1.0).min(axis=1), 0.0)
    return tolerance / 2.0 - float((inter - intra).max()) / 4.0


def reconstruction_error(residual: float, *, n_atoms: int, max_code_norm: float) -> float:
    """Return ``B_2 = (sqrt(d) τ_C + 1) γ`` (equation 24), where γ is the largest norm of ``φ(Z) c - φ(x)``."""
    return (math.sqrt(n_atoms) * max_code_norm + 1.0) * residual


def kernel_error_of_noisy_rows(
    data_noise: float, *, n_columns: int, bandwidth: float, max_norm: float, t: float, reconstruction_error: float = 0.0
) -> float:
    """Bound the error of each kernel value, ``B(σ) = 1/r² [(σ ξ + sqrt(2) θ)² - 2 θ²] + B_2`` (equation 24)."""
    norm = data_noise * xi(n_columns, t)
    return norm * (norm + 2.0 * math.sqrt(2.0) * max_norm) / bandwidth**2 + reconstruction_error


def largest_data_noise(
    separation: float, *, n_columns: int, bandwidth: float, max_norm: float, t: float, reconstruction_error: float = 0.0
) -> float:
    """Return the noise at which the kernel error is B_1, ``σ = 1/ξ [sqrt(r² (B_1 - B_2) + 2 θ²) - sqrt(2) θ]``, or 0.

    Equation (30).
    """
    room = max(separation - reconstruction_error, 0.0)
    # The difference of the roots, written so that it loses no digits where θ is large.
    root = math.sqrt(bandwidth**2 * room + 2.0 * max_norm**2)
    return bandwidth**2 * room / (root + math.sqrt(2.0) * max_norm) / xi(n_columns, t)


def smallest_data_noise(epsilon: float, delta: float, max_norm: float) -> float:
    """Return ``σ = 2 c τ_X / ε`` with ``c² = 2 ln(1.25 / δ)`` (proposition 3.7), for rows clipped to τ_X."""
    return 2.0 * max_norm * _gaussian_multiplier(epsilon, delta)


def data_noise_range(epsilon: float, delta: float, separation: float, *, max_norm: float, **others: Any) -> NoiseRange:
    """Return the noise on the rows that is private enough and leaves the clusters correct (equation 31).

    With the paper's bandwidth, the mean distance between rows, r is at most 2 θ. The range is then empty for all data
    and budgets unless the tolerance is above 1: B_1 is at most 3/4, so that the largest noise is below 0.83 θ / ξ and
    the smallest above 1.33 θ. The bound can only compare data sets and bandwidths.
    """
    largest = largest_data_noise(separation, max_norm=max_norm, **others)
    return NoiseRange(smallest_data_noise(epsilon, delta, max_norm), largest)


def factor_error(
    dictionary_noise: float,
    code_noise: float,
    *,
    n_atoms: int,
    n_columns: int,
    bandwidth: float,
    max_code_norm: float,
    t: float,
    residual: float = 0.0,
) -> float:
    """Bound how far noisy factors are from the rows in the space of the kernel (theorem 3.8).

    ``γ_zc = γ + sqrt(d) (σ_C ξ_d + τ_C sqrt(2 (1 - exp(-σ_Z² ξ_m² / (2 r²)))))``. The paper prints ξ_d for ξ_m too, but
    the noise on an atom has as many numbers as there are columns.
    """
    of_an_atom = dictionary_noise * xi(n_columns, t) / bandwidth
    of_the_dictionary = max_code_norm * math.sqrt(-2.0 * math.expm1(-(of_an_atom**2) / 2.0))
    return residual + math.sqrt(n_atoms) * (code_noise * xi(n_atoms, t) + of_the_dictionary)


def kernel_error_of_noisy_factors(factor_error: float) -> float:
    """Bound the error of each kernel value, ``γ_zc (γ_zc + 2)`` (equation 33)."""
    return factor_error * (factor_error + 2.0)


def largest_factor_error(separation: float) -> float:
    """Return the γ_zc at which the kernel error is B_1 (equation 35), ``-1 + sqrt(1 + B_1)``, or 0.

    Equation (34) prints ``-1 + 2 sqrt(1 + B_1)``, which would allow an error of 1 where B_1 is 0.
    """
    separation = max(separation, 0.0)
    return separation / (1.0 + math.sqrt(1.0 + separation))


def factor_noise_is_useful(dictionary_noise: float, code_noise: float, separation: float, **others: Any) -> bool:
    """Tell whether the clusters stay correct with this noise on the factors (first line of equation 36)."""
    error = factor_error(dictionary_noise, code_noise, **others)
    return separation >= 0 and error <= largest_factor_error(separation)


def smallest_dictionary_noise(
    epsilon: float,
    delta: float,
    *,
    n_rounds: int,
    n_atoms: int,
    step_size: float,
    bandwidth: float,
    max_norm: float,
    max_code_norm: float,
    max_dictionary_norm: float,
    max_distance: float,
) -> float:
    """Return the noise on the dictionary that theorem 3.9 asks for, for all rounds together.

    ``σ_Z = sqrt(8 S Δ² ln(e + ε/δ)) / ε`` with ``Δ = 2 sqrt(d) τ_C τ_X η / r² (1 + (τ_X + τ_Z) (τ_X + Υ) / r²)``. This
    is no guarantee: the proof of Δ (appendix L) replaces a row and leaves all codes as they were, and counts one
    gradient step in a round.
    """
    sensitivity = 2.0 * math.sqrt(n_atoms) * max_code_norm * max_norm * step_size / bandwidth**2
    sensitivity *= 1.0 + (max_norm + max_dictionary_norm) * (max_norm + max_distance) / bandwidth**2
    return sensitivity * math.sqrt(8.0 * n_rounds * math.log(math.e + epsilon / delta)) / epsilon


def smallest_code_noise(
    epsilon: float,
    delta: float,
    *,
    n_atoms: int,
    bandwidth: float,
    regularization: float,
    max_norm: float,
    max_distance: float,
) -> float:
    """Return ``σ_C = 2 c sqrt(d) τ_X (τ_X + Υ) / (λ r² ε)`` with ``c² = 2 ln(1.25 / δ)`` (theorem 3.9).

    It covers the codes alone, for a dictionary that was private already.
    """
    sensitivity = 2.0 * math.sqrt(n_atoms) * max_norm * (max_norm + max_distance) / (regularization * bandwidth**2)
    return sensitivity * _gaussian_multiplier(epsilon, delta)


def _gaussian_multiplier(epsilon: float, delta: float) -> float:
    if not 0 < epsilon <= 1:
        raise ValueError(f"epsilon is {epsilon:g}; the paper's closed formula holds above 0 and up to 1.")
    return math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon
