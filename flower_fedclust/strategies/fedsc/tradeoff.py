"""How much noise FedSC's clusters withstand, and how much its privacy needs: the paper's bounds, before a run.

There are two ways to add noise. *Perturbed rows*: each client adds noise of standard deviation σ to its rows, once
(section 3.1; :func:`data_noise_range` answers both questions). *Perturbed factors*: noise of σ_Z is added to the
dictionary in every round and noise of σ_C to the codes at the end (section 3.2; :func:`smallest_dictionary_noise` and
:func:`smallest_code_noise` say what privacy needs, :func:`factor_noise_is_useful` whether the clusters withstand it).

All bounds hold for the worst pair of rows and are far from tight: noise that they refuse may well leave the clusters as
they are. What they compute from rows and labels is itself a release of those: use public or made-up rows. The
strategies do not calibrate by these formulas but by dp-accounting.

The functions share the paper's symbols, and these parameters:

- ``n_columns`` is m, ``n_atoms`` d, ``n_rounds`` S; ``bandwidth`` is r of the Gaussian kernel, in units of the rows.
- ``max_norm``, θ or τ_X, is the largest norm of a row. Moving all rows by one vector changes no kernel value and may
  make it smaller. ``max_code_norm``, τ_C, is the largest norm of a code before the noise; ``max_distance``, Υ, the
  largest Euclidean distance of a row from an atom.
- ``t`` says how sure a bound is, see :func:`xi`; ``separation`` is B_1, of :func:`separation`.

Source: FedSC, Qiao, Ding and Fan 2023, sections 3.1 and 3.2, appendices B and F to L. Samples are rows here and columns
in the paper.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.checks import check_integer, check_real

Floats = NDArray[np.float64]
P = ParamSpec("P")
R = TypeVar("R")

#: Differences between rows and their neighbours are made of so many entries at a time: 64 MB of float64.
BLOCK_ENTRIES = 8_000_000

#: What parameters may be, by name: integers of 1 or more, numbers within these bounds, and others not negative.
INTEGERS = {"n_columns", "n_atoms", "n_neighbors", "n_rounds"}
BOUNDS: dict[str, dict[str, float]] = {
    "bandwidth": {"above": 0},
    "regularization": {"above": 0},
    "step_size": {"above": 0},
    "epsilon": {"above": 0},
    "delta": {"above": 0, "below": 1},
    "separation": {},
}


def _checked(function: Callable[P, R]) -> Callable[P, R]:
    """Have a function raise a ValueError that names the parameter which is out of its range."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if name in INTEGERS:
                check_integer(name, value, at_least=1)
            elif name not in ("rows", "labels"):
                check_real(name, value, **BOUNDS.get(name, {"at_least": 0}))
        return function(*args, **kwargs)

    return checked


class NoiseRange(NamedTuple):
    """The standard deviations of the noise that are private enough and leave the clusters as they are."""

    smallest: float
    largest: float

    @property
    def is_empty(self) -> bool:
        """Whether no noise is both."""
        return not self.smallest < self.largest


@_checked
def xi(n_columns: int, t: float) -> float:
    """Return what the norm of a standard Gaussian vector exceeds with probability exp(-t) at most.

    ``ξ = sqrt(m + 2 sqrt(m t) + 2 t)``, beside equation (24) (Laurent and Massart 2000, lemma 1). Equation (83) prints
    ``1 - exp(-t)`` for the probability of exceeding it, which is that of not doing so.

    Parameters
    ----------
    n_columns : int
        m, the length of the vector.
    t : float
        What is stated of all n rows has the probability ``1 - n (n - 1) exp(-t)`` at least, so that
        ``t = ln(n (n - 1) / p)`` leaves a probability p of failure.
    """
    return math.sqrt(n_columns + 2.0 * math.sqrt(n_columns * t) + 2.0 * t)


@_checked
def separation(
    rows: Floats, labels: NDArray[np.integer], *, bandwidth: float, n_neighbors: int, tolerance: float
) -> float:
    """Return the kernel error that clusters withstand: larger where the neighbours of one class are more alike.

    ``B_1 = ε/2 - max_i 1/4 [max_k K_ik^inter - min_k K_ik^intra]`` of equation (29). The maximum and the minimum are
    over those of the nearest neighbours of row i that are of another class, and of its own (definitions 3.2 to 3.4).

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_columns)
        Without noise.
    labels : ndarray of shape (n_rows,)
        The true classes.
    bandwidth : float
        r of the Gaussian kernel.
    n_neighbors : int
        k, below n_rows. A row is not among its own neighbours.
    tolerance : float
        ε of definition 3.5, not negative: by how much the kernel value to a row of another class may exceed that to a
        row of the same class, and the clustering still counts as correct. It is no privacy budget.

    Returns
    -------
    float
        At most tolerance / 2 + 1 / 4. If it is negative or 0, the bounds promise nothing, at whatever noise.

    Notes
    -----
    A row without a neighbour of another class, or without one of its own, has 0 for the kernel value to it: that is
    what stands in the sparse matrix of equation (25) for a row that is no neighbour. The first is the best that can be,
    the second the worst.

    Equation (100) takes the mean of two conditions where both are needed. If the difference in the brackets is positive
    for some row, B_1 is therefore larger than ``ε/2 - max_i 1/2 [...]``, up to which equation (92) proves that the
    clusters are correct; if it is not, B_1 is smaller, and safe.
    """
    if len(labels) != len(rows):
        raise ValueError(f"There are {len(labels)} labels for {len(rows)} rows; give one a row.")
    if n_neighbors >= len(rows):
        raise ValueError(f"n_neighbors is {n_neighbors}; {len(rows)} rows allow {len(rows) - 1} at most.")
    from sklearn.neighbors import NearestNeighbors
    from sklearn.utils import gen_batches

    # Distances do not change when everything is moved, and near the origin fewer digits of them are lost.
    rows = rows - rows.mean(axis=0)
    neighbors = NearestNeighbors(n_neighbors=n_neighbors).fit(rows).kneighbors(return_distance=False)
    largest = -math.inf
    for block in gen_batches(len(rows), max(1, BLOCK_ENTRIES // (n_neighbors * rows.shape[1]))):
        differences = rows[neighbors[block]] - rows[block, None, :]
        kernel = np.exp(-np.einsum("ikj,ikj->ik", differences, differences) / (2.0 * bandwidth**2))
        same_class = labels[neighbors[block]] == labels[block, None]
        inter = np.where(same_class, 0.0, kernel).max(axis=1)
        intra = np.where(same_class.any(axis=1), np.where(same_class, kernel, 1.0).min(axis=1), 0.0)
        largest = max(largest, float((inter - intra).max()))
    return tolerance / 2.0 - largest / 4.0


@_checked
def reconstruction_error(residual: float, *, n_atoms: int, max_code_norm: float) -> float:
    """Return the kernel error of a factorisation that is not exact, noise apart.

    ``B_2 = (sqrt(d) τ_C + 1) γ``, the last term of equation (24).

    Parameters
    ----------
    residual : float
        γ, the largest norm of ``φ(Z) c - φ(x)`` over the rows.
    n_atoms, max_code_norm
        See the top of the module.
    """
    return (math.sqrt(n_atoms) * max_code_norm + 1.0) * residual


@_checked
def kernel_error_of_noisy_rows(
    data_noise: float, *, n_columns: int, bandwidth: float, max_norm: float, t: float, reconstruction_error: float = 0.0
) -> float:
    """Bound the error of each kernel value if the rows are perturbed.

    ``B(σ) = 1/r² [(σ ξ + sqrt(2) θ)² - 2 θ²] + B_2``, equation (24).

    Parameters
    ----------
    data_noise : float
        σ, the standard deviation of the noise on each entry of the rows.
    reconstruction_error : float, default=0
        B_2, of the noisy rows; see :func:`reconstruction_error`.
    n_columns, bandwidth, max_norm, t
        See the top of the module.
    """
    norm = data_noise * xi(n_columns, t)
    return norm * (norm + 2.0 * math.sqrt(2.0) * max_norm) / bandwidth**2 + reconstruction_error


@_checked
def largest_data_noise(
    separation: float, *, n_columns: int, bandwidth: float, max_norm: float, t: float, reconstruction_error: float = 0.0
) -> float:
    """Return the largest noise on the rows with which their clusters stay correct.

    ``σ = 1/ξ [sqrt(r² (B_1 - B_2) + 2 θ²) - sqrt(2) θ]``, equation (30): the kernel error is then B_1.

    Parameters
    ----------
    separation, n_columns, bandwidth, max_norm, t, reconstruction_error
        As for :func:`kernel_error_of_noisy_rows`; see the top of the module.

    Returns
    -------
    float
        0 if B_1 - B_2 is not positive: no noise satisfies the bound.
    """
    room = separation - reconstruction_error
    norm = xi(n_columns, t)
    if room <= 0:
        return 0.0
    # The difference of the roots, written so that it loses no digits where θ is large.
    root = math.sqrt(bandwidth**2 * room + 2.0 * max_norm**2)
    return bandwidth**2 * room / (root + math.sqrt(2.0) * max_norm) / norm


@_checked
def smallest_data_noise(epsilon: float, delta: float, max_norm: float) -> float:
    """Return the smallest noise on the rows that makes each of them (epsilon, delta)-private.

    ``σ = 2 c τ_X / ε`` with ``c² = 2 ln(1.25 / δ)``, proposition 3.7 (Dwork and Roth 2014, theorem 3.22): a row is
    replaced by any other.

    Parameters
    ----------
    epsilon : float in (0, 1]
        Above 1 the formula is not proven, and a ValueError is raised.
    delta : float in (0, 1)
    max_norm : float
        τ_X; rows must be clipped to it.
    """
    return 2.0 * max_norm * _gaussian_multiplier(epsilon, delta)


def data_noise_range(
    epsilon: float, delta: float, separation: float, *, max_norm: float, **others: float
) -> NoiseRange:
    """Return the noise on the rows that is private enough and leaves the clusters correct, equation (31).

    Parameters
    ----------
    epsilon, delta, max_norm
        As for :func:`smallest_data_noise`; max_norm is τ_X there and θ in the upper bound.
    separation, **others
        As for :func:`largest_data_noise`.

    Returns
    -------
    NoiseRange
        ``smallest``, ``largest`` and ``is_empty``.

    Notes
    -----
    With the paper's bandwidth, the mean distance between rows, r is at most 2 θ. Then the range is empty for every data
    set and every epsilon and delta, unless the tolerance is above 1, which tolerates everything: ``separation`` is at
    most 3/4, so that the largest noise is below 0.83 θ / ξ and the smallest above 1.33 θ. What the bound is good for is
    to compare data sets and bandwidths.
    """
    largest = largest_data_noise(separation, max_norm=max_norm, **others)  # type: ignore[arg-type]
    return NoiseRange(smallest_data_noise(epsilon, delta, max_norm), largest)


@_checked
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
    """Bound how far perturbed factors are from the rows in the space of the kernel.

    ``γ_zc = γ + sqrt(d) (σ_C ξ_d + τ_C sqrt(2 (1 - exp(-σ_Z² ξ_m² / (2 r²)))))`` of theorem 3.8, where ξ_d is
    ``xi(n_atoms, t)`` and ξ_m ``xi(n_columns, t)``. The paper prints ξ_d for both, but the noise on an atom has as many
    numbers as there are columns.

    Parameters
    ----------
    dictionary_noise : float
        σ_Z, the standard deviation of the noise on each entry of the dictionary.
    code_noise : float
        σ_C, the same for the codes.
    t : float
        The bound holds with probability ``1 - (n + d) exp(-t)`` at least.
    residual : float, default=0
        γ, the largest norm of ``φ(Z) c - φ(x)`` before the noise.
    n_atoms, n_columns, bandwidth, max_code_norm
        See the top of the module.
    """
    of_an_atom = dictionary_noise * xi(n_columns, t) / bandwidth
    of_the_dictionary = max_code_norm * math.sqrt(-2.0 * math.expm1(-(of_an_atom**2) / 2.0))
    return residual + math.sqrt(n_atoms) * (code_noise * xi(n_atoms, t) + of_the_dictionary)


@_checked
def kernel_error_of_noisy_factors(factor_error: float) -> float:
    """Bound the error of each kernel value if the factors are perturbed: ``γ_zc (γ_zc + 2)``, equation (33).

    Parameters
    ----------
    factor_error : float
        γ_zc, of :func:`factor_error`.
    """
    return factor_error * (factor_error + 2.0)


@_checked
def largest_factor_error(separation: float) -> float:
    """Return the largest γ_zc with which the clusters stay correct: ``-1 + sqrt(1 + B_1)``.

    The kernel error ``γ_zc (γ_zc + 2)`` is then B_1, equation (35). Equation (34) prints ``-1 + 2 sqrt(1 + B_1)`` for
    its root; that would allow an error of 1 where B_1 is 0.

    Parameters
    ----------
    separation : float
        B_1, of :func:`separation`.

    Returns
    -------
    float
        0 if B_1 is not positive; if it is negative, not even exact factors satisfy the bound.
    """
    separation = max(separation, 0.0)
    return separation / (1.0 + math.sqrt(1.0 + separation))


def factor_noise_is_useful(dictionary_noise: float, code_noise: float, separation: float, **others: float) -> bool:
    """Tell whether the clusters stay correct with this noise on the factors: the first line of equation (36).

    Parameters
    ----------
    separation : float
        B_1, of :func:`separation`.
    dictionary_noise, code_noise, **others
        As for :func:`factor_error`.

    Returns
    -------
    bool
        Always False if B_1 is negative.
    """
    error = factor_error(dictionary_noise, code_noise, **others)  # type: ignore[arg-type]
    return separation >= 0 and error <= largest_factor_error(separation)


@_checked
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
    """Return the noise on the dictionary that theorem 3.9 asks for, as printed.

    ``σ_Z = sqrt(8 S Δ² ln(e + ε/δ)) / ε`` with
    ``Δ = 2 sqrt(d) τ_C τ_X η / r² (1 + (τ_X + τ_Z) (τ_X + Υ) / r²)``, the second line of equation (36).

    Parameters
    ----------
    epsilon : float
        ε_Z, the part of the privacy budget for all rounds together; any positive number.
    delta : float in (0, 1)
        δ_Z.
    step_size : float
        η, the largest step of the gradient method.
    max_dictionary_norm : float
        τ_Z, the largest spectral norm of the dictionary.
    n_rounds, n_atoms, bandwidth, max_norm, max_code_norm, max_distance
        See the top of the module.

    Notes
    -----
    The proof of the sensitivity Δ (appendix L) replaces a row and leaves its code and the matrices made of all codes as
    they were, and counts one gradient step in a round. Both are too little: this is a figure to compare with the paper,
    and no guarantee.
    """
    sensitivity = 2.0 * math.sqrt(n_atoms) * max_code_norm * max_norm * step_size / bandwidth**2
    sensitivity *= 1.0 + (max_norm + max_dictionary_norm) * (max_norm + max_distance) / bandwidth**2
    return sensitivity * math.sqrt(8.0 * n_rounds * math.log(math.e + epsilon / delta)) / epsilon


@_checked
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
    """Return the noise on the codes that theorem 3.9 asks for.

    ``σ_C = 2 c sqrt(d) τ_X (τ_X + Υ) / (λ r² ε)`` with ``c² = 2 ln(1.25 / δ)``, the third line of equation (36). It
    covers the codes alone, for a dictionary that was private already.

    Parameters
    ----------
    epsilon : float in (0, 1]
        ε_C, as for :func:`smallest_data_noise`; the whole is (ε_C + ε_Z, δ_C + δ_Z)-private.
    delta : float in (0, 1)
        δ_C.
    regularization : float
        λ.
    n_atoms, bandwidth, max_norm, max_distance
        See the top of the module.
    """
    sensitivity = 2.0 * math.sqrt(n_atoms) * max_norm * (max_norm + max_distance) / (regularization * bandwidth**2)
    return sensitivity * _gaussian_multiplier(epsilon, delta)


def _gaussian_multiplier(epsilon: float, delta: float) -> float:
    """Return the noise multiplier of the Gaussian mechanism by the closed formula."""
    if epsilon > 1:
        raise ValueError(
            f"epsilon is {epsilon:g}; the paper's closed formula holds up to 1. The strategy calibrates its noise by "
            "dp-accounting, for any epsilon."
        )
    return math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon
