"""How much noise FedSC's clusters withstand, and how much its privacy needs: the paper's bounds, before a run.

All bounds hold for the worst pair of rows and are far from tight: noise that they refuse may leave the clusters as they
are. What they compute from rows and labels is a release of those, so use public rows. The strategies calibrate their
noise by dp-accounting instead.

Source: Qiao, Ding and Fan 2023, sections 3.1 and 3.2, appendices B and F to L. Rows are columns in the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def xi(n_columns: int, t: float) -> float:
    """Return ``ξ = sqrt(m + 2 sqrt(m t) + 2 t)``, which a Gaussian vector's norm exceeds with probability exp(-t).

    Equation (83) prints ``1 - exp(-t)``, the probability of the opposite.
    """
    return math.sqrt(n_columns + 2.0 * math.sqrt(n_columns * t) + 2.0 * t)


def separation(
    rows: NDArray[np.float64],
    labels: NDArray[np.integer],
    *,
    bandwidth: float,
    n_neighbors: int,
    tolerance: float,
) -> float:
    """Return the kernel error that clusters withstand, ``B_1 = ε/2 - max_i 1/4 [max_k K_ik^inter - min_k K_ik^intra]``.

    Equation (29); ``tolerance`` is ε of definition 3.5, no privacy budget. Maximum and minimum are over the nearest
    neighbors of row i in another class and in its own; a missing one has the kernel value 0, as in equation (25).
    Equation (100) takes the mean of two conditions where both are needed: where the brackets are positive, B_1 is
    larger than ``ε/2 - max_i 1/2 [...]``, up to which equation (92) proves that the clusters are correct.
    """
    from sklearn.neighbors import NearestNeighbors

    # Distances do not change when everything is moved, and near the origin fewer digits of them are lost.
    distances, neighbors = (
        NearestNeighbors(n_neighbors=n_neighbors).fit(rows - rows.mean(axis=0)).kneighbors()
    )
    kernel = np.exp(-(distances**2) / (2.0 * bandwidth**2))
    same_class = labels[neighbors] == labels[:, None]
    inter = np.where(same_class, 0.0, kernel).max(axis=1)
    intra = np.where(same_class.any(axis=1), np.where(same_class, kernel, 1.0).min(axis=1), 0.0)
    return tolerance / 2.0 - float((inter - intra).max()) / 4.0


def largest_factor_error(separation: float) -> float:
    """Return the γ_zc at which the kernel error is B_1 (equation 35), ``-1 + sqrt(1 + B_1)``, or 0.

    Equation (34) prints ``-1 + 2 sqrt(1 + B_1)``, which would allow an error of 1 where B_1 is 0.
    """
    separation = max(separation, 0.0)
    return separation / (1.0 + math.sqrt(1.0 + separation))


def kernel_error_of_noisy_factors(factor_error: float) -> float:
    """Bound the error of each kernel value, ``γ_zc (γ_zc + 2)`` (equation 33)."""
    return factor_error * (factor_error + 2.0)


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """Return ``c / ε`` with ``c² = 2 ln(1.25 / δ)``, which holds for an epsilon of at most 1."""
    if not 0 < epsilon <= 1:
        raise ValueError(
            f"epsilon is {epsilon:g}; the paper's closed formula holds above 0 and up to 1."
        )
    return math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon


@dataclass(frozen=True)
class FedSCBounds:
    """The bounds for one setting, of which each method needs a part."""

    n_columns: int = 0  #: m.
    n_atoms: int = 0  #: d.
    n_rounds: int = 0  #: S.
    bandwidth: float = math.nan  #: r of the Gaussian kernel, in units of the rows.
    max_norm: float = math.nan  #: θ or τ_X, the largest norm of a row.
    max_code_norm: float = math.nan  #: τ_C, of a code before the noise.
    max_dictionary_norm: float = math.nan  #: τ_Z, the largest spectral norm of the dictionary.
    max_distance: float = math.nan  #: Υ, the largest distance of a row from an atom.
    residual: float = 0.0  #: γ, the largest norm of ``φ(Z) c - φ(x)``.
    step_size: float = math.nan  #: η, the largest gradient step.
    regularization: float = math.nan  #: λ.
    #: Bounds for n rows hold with probability ``1 - n (n - 1) exp(-t)``, with d atoms ``1 - (n + d) exp(-t)``.
    t: float = math.nan

    def reconstruction_error(self) -> float:
        """Return ``B_2 = (sqrt(d) τ_C + 1) γ``, the last term of equation (24); 0 if there is no residual."""
        return (
            (math.sqrt(self.n_atoms) * self.max_code_norm + 1.0) * self.residual
            if self.residual
            else 0.0
        )

    def kernel_error_of_noisy_rows(self, data_noise: float) -> float:
        """Bound the error of each kernel value, ``B(σ) = 1/r² [(σ ξ + sqrt(2) θ)² - 2 θ²] + B_2`` (equation 24)."""
        norm = data_noise * xi(self.n_columns, self.t)
        return (
            norm * (norm + 2.0 * math.sqrt(2.0) * self.max_norm) / self.bandwidth**2
            + self.reconstruction_error()
        )

    def largest_data_noise(self, separation: float) -> float:
        """Return the noise at which it is B_1, ``1/ξ [sqrt(r² (B_1 - B_2) + 2 θ²) - sqrt(2) θ]`` (equation 30)."""
        room = self.bandwidth**2 * max(separation - self.reconstruction_error(), 0.0)
        # The difference of the roots, written so that it loses no digits where θ is large.
        roots = math.sqrt(room + 2.0 * self.max_norm**2) + math.sqrt(2.0) * self.max_norm
        return room / roots / xi(self.n_columns, self.t)

    def smallest_data_noise(self, epsilon: float, delta: float) -> float:
        """Return ``σ = 2 c τ_X / ε`` (proposition 3.7), for rows clipped to τ_X.

        With the paper's bandwidth, the mean distance between rows, r is at most 2 θ. This is then above the largest
        noise (equation 31) for all data and budgets unless the tolerance is above 1: B_1 is at most 3/4, so that the
        largest is below 0.83 θ / ξ and the smallest above 1.33 θ. The bounds can only compare data sets and bandwidths.
        """
        return 2.0 * self.max_norm * gaussian_multiplier(epsilon, delta)

    def factor_error(self, dictionary_noise: float, code_noise: float) -> float:
        """Bound how far noisy factors are from the rows in the space of the kernel (theorem 3.8).

        ``γ_zc = γ + sqrt(d) (σ_C ξ_d + τ_C sqrt(2 (1 - exp(-σ_Z² ξ_m² / (2 r²)))))``. The paper prints ξ_d for ξ_m too,
        but the noise on an atom has as many numbers as there are columns.
        """
        of_an_atom = dictionary_noise * xi(self.n_columns, self.t) / self.bandwidth
        of_the_dictionary = self.max_code_norm * math.sqrt(
            -2.0 * math.expm1(-(of_an_atom**2) / 2.0)
        )
        return self.residual + math.sqrt(self.n_atoms) * (
            code_noise * xi(self.n_atoms, self.t) + of_the_dictionary
        )

    def factor_noise_is_useful(
        self, dictionary_noise: float, code_noise: float, separation: float
    ) -> bool:
        """Tell whether the clusters stay correct with this noise on the factors (first line of equation 36)."""
        error = self.factor_error(dictionary_noise, code_noise)
        return separation >= 0 and error <= largest_factor_error(separation)

    def smallest_dictionary_noise(self, epsilon: float, delta: float) -> float:
        """Return the noise on the dictionary that theorem 3.9 asks for, for all rounds together.

        ``σ_Z = sqrt(8 S Δ² ln(e + ε/δ)) / ε`` with ``Δ = 2 sqrt(d) τ_C τ_X η / r² (1 + (τ_X + τ_Z) (τ_X + Υ) / r²)``.
        This is no guarantee: the proof of Δ (appendix L) replaces a row and leaves all codes as they were, and counts
        one gradient step in a round.
        """
        squared = self.bandwidth**2
        sensitivity = (
            2.0
            * math.sqrt(self.n_atoms)
            * self.max_code_norm
            * self.max_norm
            * self.step_size
            / squared
        )
        spread = (self.max_norm + self.max_dictionary_norm) * (self.max_norm + self.max_distance)
        sensitivity *= 1.0 + spread / squared
        return (
            sensitivity
            * math.sqrt(8.0 * self.n_rounds * math.log(math.e + epsilon / delta))
            / epsilon
        )

    def smallest_code_noise(self, epsilon: float, delta: float) -> float:
        """Return ``σ_C = 2 c sqrt(d) τ_X (τ_X + Υ) / (λ r² ε)`` (theorem 3.9), if the dictionary is already private."""
        reach = math.sqrt(self.n_atoms) * self.max_norm * (self.max_norm + self.max_distance)
        return (
            2.0
            * reach
            / (self.regularization * self.bandwidth**2)
            * gaussian_multiplier(epsilon, delta)
        )
