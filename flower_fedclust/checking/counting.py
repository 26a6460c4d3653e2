"""Epsilon counted again, by other means than those that calibrated it: from the rounds that ran and who was asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import dp_accounting
import numpy as np
from dp_accounting import rdp
from numpy.typing import NDArray
from scipy.special import ndtr

from flower_fedclust.checking.runs import Run
from flower_fedclust.privacy.releases import Release

Floats = NDArray[np.float64]

#: Into how many steps the privacy loss is divided.
N_STEPS = 2**17

#: By how much of itself a stated epsilon may be smaller than what is counted here, which is rounded.
TOLERANCE = 2e-3

ORDERS = (*range(2, 33), *range(36, 65, 4), 80, 128, 256)


def releases_of(run: Run) -> dict[str, list[list[Release]]]:
    """Return, for each client, the releases of each round for which it was asked."""
    found: dict[str, list[list[Release]]] = {name: [] for name in run.data}
    for number, round_ in run.rounds.items():
        noisy = [release for release in round_.releases if release is not None and release.scale > 0]
        for exchange in run.asked(number) if noisy else ():
            found[exchange.client].append(noisy)
    return found


def counted_epsilon(run: Run, delta: float) -> float:
    """Return the largest epsilon, over the clients, that the releases of a run compose to."""
    return max((_composed(rounds, delta) for rounds in releases_of(run).values()), default=0.0)


def _composed(rounds: Sequence[Sequence[Release]], delta: float) -> float:
    multipliers = {"gaussian": list[float](), "laplace": list[float]()}
    for releases in rounds:
        for release in releases:
            multipliers[release.mechanism].append(release.noise_multiplier)
    if not any(multipliers.values()):
        return 0.0
    epsilon = epsilon_of(multipliers["gaussian"], multipliers["laplace"], delta)
    if not any(release.sample for releases in rounds for release in releases):
        return epsilon
    return min(epsilon, _sampled(rounds, delta))


def _sampled(rounds: Sequence[Sequence[Release]], delta: float) -> float:
    """Return what the divergences of Renyi say, told by hand that the releases of a round are of the same sample."""
    accountant = rdp.RdpAccountant(ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
    for releases in rounds:
        joint: dict[tuple[int, int] | None, float] = {}
        for release in releases:
            joint[release.sample] = joint.get(release.sample, 0.0) + release.noise_multiplier**-2
        for sample, precision in joint.items():
            event: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(precision**-0.5)
            if sample is not None and sample[0] < sample[1]:
                event = dp_accounting.SampledWithoutReplacementDpEvent(sample[1], sample[0], event)
            accountant.compose(event)
    return float(accountant.get_epsilon(delta))


def epsilon_of(gaussian: Sequence[float], laplace: Sequence[float], delta: float) -> float:
    """Return the smallest epsilon of which releases with these noise multipliers have this delta.

    All Gaussian releases together are one, whose privacy loss is normal with the variance ``mu^2 = sum m^-2`` and the
    mean ``mu^2 / 2``. The loss of a Laplace release is ``1 / m`` in one case of two, ``-1 / m`` with probability
    ``exp(-1 / m) / 2``, and of the density ``exp((l - 1 / m) / 2) / 4`` between.
    """
    return _epsilon_of(tuple(sorted(gaussian)), tuple(sorted(laplace)), delta)


@lru_cache(maxsize=64)
def _epsilon_of(gaussian: tuple[float, ...], laplace: tuple[float, ...], delta: float) -> float:
    """Count once what is the same for several clients."""
    squared = math.fsum(m**-2.0 for m in gaussian)
    pure = math.fsum(1.0 / m for m in laplace)
    reach = 0.5 * squared + 9.0 * math.sqrt(squared) + pure
    reach *= 1.01
    step = 2.0 * reach / N_STEPS
    grid = step * np.arange(-N_STEPS // 2, N_STEPS // 2)
    edges = np.append(grid - 0.5 * step, grid[-1] + 0.5 * step)
    spectrum = np.ones(N_STEPS // 2 + 1, dtype=complex)
    if squared > 0:
        spectrum *= _transformed(np.diff(ndtr((edges - 0.5 * squared) / math.sqrt(squared))))
    for multiplier in sorted(set(laplace)):
        part = _transformed(_laplace_losses(edges, 1.0 / multiplier, step))
        spectrum *= part ** laplace.count(multiplier)
    density = np.clip(np.roll(np.fft.irfft(spectrum, N_STEPS), N_STEPS // 2), 0.0, None)
    return _epsilon(np.asarray(grid, dtype=np.float64), np.asarray(density, dtype=np.float64), delta, reach)


def _transformed(density: Floats) -> NDArray[np.complex128]:
    found: NDArray[np.complex128] = np.fft.rfft(np.roll(density, -N_STEPS // 2))
    return found


def _laplace_losses(edges: Floats, pure: float, step: float) -> Floats:
    inside = np.clip(edges, -pure, pure)
    mass = np.diff(0.5 * np.exp(0.5 * (inside - pure)))
    # The two atoms, each divided between the two steps beside it so that the mean is right.
    for place, weight in ((pure, 0.5), (-pure, 0.5 * math.exp(-pure))):
        where = (place - edges[0]) / step - 0.5
        low = math.floor(where)
        mass[low] += weight * (low + 1 - where)
        mass[min(low + 1, len(mass) - 1)] += weight * (where - low)
    return mass


def _epsilon(grid: Floats, density: Floats, delta: float, reach: float) -> float:
    low, high = 0.0, reach
    for _ in range(60):
        middle = 0.5 * (low + high)
        above = grid > middle
        found = float(np.sum(density[above] * -np.expm1(middle - grid[above])))
        low, high = (middle, high) if found > delta else (low, middle)
    return high
