"""What dp-accounting computes of the privacy loss of Gaussian and Laplace releases, in less time and to the same bits.

Its accountant finds the noise at which the loss has a given value for one value after the other, in Python; here all
values at which a distribution is stored are one array. Of the normal distribution it takes one value at a time through
a function for arrays of all kinds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import dp_accounting
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from dp_accounting.pld.privacy_loss_mechanism import AdditiveNoisePrivacyLoss

Floats = NDArray[np.float64]


def composed_loss(event: dp_accounting.DpEvent, interval: float) -> PrivacyLossDistribution | None:
    """Return the distribution of the privacy loss of what is composed, under adding or removing a record.

    Parameters
    ----------
    event : DpEvent
        A ``ComposedDpEvent`` of Gaussian and Laplace events, each in a ``SelfComposedDpEvent`` that says how often.
    interval : float
        The step of the loss in which distributions are stored; rounding is upwards.

    Returns
    -------
    PrivacyLossDistribution or None
        None if one of them has no noise: then the loss is not bounded.
    """
    from dp_accounting import GaussianDpEvent
    from dp_accounting.pld.privacy_loss_distribution import identity

    composed = identity(value_discretization_interval=interval)
    for part in event.events:
        multiplier, count = part.event.noise_multiplier, part.count
        if multiplier == 0:
            return None
        if isinstance(part.event, GaussianDpEvent):
            composed = composed.compose(_gaussian(multiplier / math.sqrt(count), interval))
        else:
            composed = composed.compose(_laplace(multiplier, interval).self_compose(count))
    return composed


def _gaussian(deviation: float, interval: float) -> PrivacyLossDistribution:
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

    return _stored(GaussianPrivacyLoss(deviation), interval, lambda losses: -0.5 - losses * deviation**2)


def _laplace(scale: float, interval: float) -> PrivacyLossDistribution:
    from dp_accounting.pld.privacy_loss_mechanism import LaplacePrivacyLoss

    def noise_of(losses: Floats) -> Floats:
        scaled = losses * scale
        return np.where(scaled > 1, -math.inf, np.where(scaled <= -1, math.inf, 0.5 * (-1 - scaled)))

    return _stored(LaplacePrivacyLoss(scale), interval, noise_of)


def _stored(
    mechanism: AdditiveNoisePrivacyLoss, interval: float, noise_of: Callable[[Floats], Floats]
) -> PrivacyLossDistribution:
    """Return the distribution in steps; noise_of is the largest noise at which the loss is at least so much.

    The steps, and how the mass between two of them is given to both, are those of dp-accounting (Doroshenko et al.
    2022, "Connect the dots").
    """
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    bounds = mechanism.connect_dots_bounds()
    lowest, highest = math.floor(bounds.epsilon_lower / interval), math.ceil(bounds.epsilon_upper / interval)
    losses = np.arange(lowest, highest + 1) * interval
    noise = noise_of(losses)
    deltas = mechanism.mu_upper_cdf(noise) - np.exp(losses + mechanism.mu_lower_log_cdf(noise))
    return PrivacyLossDistribution(
        create_pmf_pessimistic_connect_dots_fixed_gap(interval, lowest, highest, np.clip(deltas, 0, 1))
    )


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """Return the noise multiplier of one Gaussian release that is (epsilon, delta)-private.

    Parameters
    ----------
    epsilon : float
        Not negative, and finite.
    delta : float in (0, 1)
    """
    log_delta = np.log(delta)
    low, high = 0.1, 1.0
    while _log_delta(low, epsilon) < log_delta:
        low, high = low / 10, low
    while _log_delta(high, epsilon) > log_delta:
        low, high = high, high * 10
    return _root(lambda multiplier: _log_delta(multiplier, epsilon) - log_delta, low, high)


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """Return the epsilon of one Gaussian release: 0 where delta alone covers it, infinity without noise.

    Parameters
    ----------
    multiplier : float
        Not negative.
    delta : float in (0, 1)
    """
    log_delta = np.log(delta)
    if multiplier == 0:
        return math.inf
    if math.isinf(multiplier) or _log_delta(multiplier, 0.0) < log_delta:
        return 0.0
    low, high = 0.0, 1.0
    while _log_delta(multiplier, high) > log_delta:
        low, high = high, high * 10
    return _root(lambda epsilon: _log_delta(multiplier, epsilon) - log_delta, low, high)


def _log_delta(multiplier: float, epsilon: float) -> float:
    """Return log delta of one Gaussian release (Balle and Wang 2018, theorem 8)."""
    from scipy.special import log_ndtr

    point = epsilon * multiplier + 1 / (2 * multiplier)
    first, second = log_ndtr(1 / multiplier - point), epsilon + log_ndtr(-point)
    return float(first + np.log1p(-np.exp(second - first))) if second < first else -math.inf


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    from scipy.optimize import brentq

    return float(brentq(function, low, high, xtol=1e-12))
