"""Privacy loss distributions as dp-accounting makes them, to the last bit, in half of its time."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss, LaplacePrivacyLoss
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: dp-accounting keeps a table of so many entries or fewer as a dictionary.
FEW = 1000


def composed_losses(event: dp_accounting.DpEvent, interval: float) -> Any:
    """Return the privacy loss distribution of Gaussian and Laplace releases.

    dp-accounting composes them; only the table that it stores of each is made here, in one go, not entry by entry. A
    multiplier says all: it is the scale of the noise over the sensitivity under the release's own relation.

    Parameters
    ----------
    event : ComposedDpEvent of SelfComposedDpEvent
        Without noise-free releases.
    interval : float
        The step of the privacy loss in which distributions are stored.

    Returns
    -------
    dp_accounting.pld.privacy_loss_distribution.PrivacyLossDistribution
    """
    composed = privacy_loss_distribution.identity(interval)
    for part in event.events:
        multiplier = part.event.noise_multiplier
        if isinstance(part.event, dp_accounting.GaussianDpEvent):
            deviation = multiplier / math.sqrt(part.count)
            losses = _losses(GaussianPrivacyLoss(deviation), _gaussian_cutoffs, deviation, interval)
        else:
            losses = _losses(LaplacePrivacyLoss(multiplier), _laplace_cutoffs, multiplier, interval)
            losses = losses.self_compose(part.count)
        composed = composed.compose(losses)
    return composed


def _losses(loss: Any, cutoffs: Any, scale: float, interval: float) -> Any:
    """Return the distribution of one release ("connect the dots", Doroshenko and others 2022)."""
    bounds = loss.connect_dots_bounds()
    lower, upper = math.floor(bounds.epsilon_lower / interval), math.ceil(bounds.epsilon_upper / interval)
    epsilons = np.arange(lower, upper + 1) * interval
    points = cutoffs(epsilons, scale)
    deltas = loss.mu_upper_cdf(points) - np.exp(epsilons + loss.mu_lower_log_cdf(points))
    deltas = np.clip(deltas, 0, 1)
    if len(deltas) <= FEW:
        table = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, lower, upper, deltas)
    else:
        table = _dense(interval, lower, np.minimum.accumulate(deltas))
    return privacy_loss_distribution.PrivacyLossDistribution(table)


def _dense(interval: float, lower: int, deltas: Floats) -> Any:
    """Return the probabilities of losses that are each one step above the last, from the deltas at them."""
    falls = np.diff(deltas)
    inner = (falls[1:] - falls[:-1] * math.exp(interval)) / math.expm1(interval)
    first, last = 1 - deltas[0] + falls[0] / math.expm1(interval), falls[-1] / math.expm1(-interval)
    probabilities = np.maximum(0.0, np.concatenate([[first], inner, [last]]))
    return pld_pmf.DensePLDPmf(interval, lower, probabilities, deltas[-1], pessimistic_estimate=True)


def _gaussian_cutoffs(epsilons: Floats, scale: float) -> Floats:
    """Return the largest outputs at which the privacy loss is an epsilon, where the sensitivity is 1."""
    return -0.5 - epsilons * scale**2


def _laplace_cutoffs(epsilons: Floats, scale: float) -> Floats:
    losses = epsilons * scale
    return np.where(losses > 1, -math.inf, np.where(losses <= -1, math.inf, 0.5 * (-1 - losses)))
