"""Composition and calibration, both by dp-accounting."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from flower_fedclust.names import look_up
from flower_fedclust.numerics.checks import check_real
from flower_fedclust.privacy.releases import (
    Mechanism,
    Relation,
    Release,
    check_sample,
    joint_multiplier,
    on_the_same_rows,
)

if TYPE_CHECKING:
    import dp_accounting

#: The orders of the Renyi divergences that dp-accounting is asked for: those of samples are slow, and the many of its
#: default gain nothing.
ORDERS = (*range(2, 33), *range(36, 65, 4), 80, 128, 256)


@dataclass(frozen=True)
class Share:
    """A named part of a privacy budget: the releases whose noise it pays for.

    Parameters
    ----------
    mechanism : "gaussian" or "laplace"
    fraction : float
        Its epsilon in proportion to those of the other shares; the fractions need not add up to 1.
    count : int, default=1
        How many releases there are, each in a round of its own; they divide the fraction equally.
    relation : "add-or-remove" or "replace", default="add-or-remove"
        As in :class:`~flower_fedclust.privacy.releases.Release`; the same for all shares of a budget.
    sample : tuple of two int, optional
        As in :class:`~flower_fedclust.privacy.releases.Release`. Shares with the same sample depend on the same rows,
        round by round.
    """

    mechanism: Mechanism
    fraction: float
    count: int = 1
    relation: Relation = "add-or-remove"
    sample: tuple[int, int] | None = None


def divided(shares: Mapping[str, Share], budget: Mapping[str, float] | None) -> dict[str, Share]:
    """Return the shares with the fractions that a user has chosen.

    Parameters
    ----------
    shares : mapping of str to Share
        By name.
    budget : mapping of str to float, optional
        Parts of the whole, by name; the shares that it does not name divide the rest as they would divide the whole.

    Raises
    ------
    ValueError
        If there is no share of that name (the message gives the nearest), if a part is not positive, or if the parts
        add up to more than the whole, or to less where all are named.
    """
    if budget is None:
        return dict(shares)
    for name in budget:
        look_up(name, shares, "part of the budget called")
    budget = {name: check_real(f"the budget of {name}", part, above=0, at_most=1) for name, part in budget.items()}
    rest = 1.0 - math.fsum(budget.values())
    others = math.fsum(share.fraction for name, share in shares.items() if name not in budget)
    if rest < -1e-9 or (others > 0) != (rest > 1e-9):
        raise ValueError(
            f"budget adds up to {1.0 - rest:g}; its parts are parts of 1"
            + (
                ", of which some must be left for: " + ", ".join(name for name in shares if name not in budget) + "."
                if others > 0
                else "."
            )
        )
    return {
        name: replace(share, fraction=budget.get(name, rest * share.fraction / others if others else 0.0))
        for name, share in shares.items()
    }


def composed_epsilon(
    releases: Iterable[Release] | Mapping[Release, int], delta: float, *, near: float | None = None
) -> float:
    """Return the epsilon that all the releases together spend at this delta, under the relation that they share.

    Calibration, plan, report and site all compose by the same function, so that they cannot differ.

    In closed form where all are Gaussian, otherwise by privacy loss distributions. Where rows are sampled, by Renyi
    divergences too, which alone know of samples, and the smaller of the two: a large sample costs their bound more than
    it gains.

    Parameters
    ----------
    releases : iterable of Release, or mapping of Release to int
        With how often each is made. Each is on a sample of its own, where rows are sampled; see
        :func:`~flower_fedclust.privacy.releases.on_the_same_rows` for those that are not.
    delta : float in (0, 1)
    near : float, optional
        What epsilon is expected to be, which sets how finely dp-accounting stores the privacy loss. The epsilon
        asked for, where there is one: then the answer is computed as it was when the noise was calibrated.

    Returns
    -------
    float
        0 if there is no release, infinity if one of them carries no noise.

    Raises
    ------
    ValueError
        If the releases are for different relations.
    """
    uses = Counter(releases)
    if len({release.relation for release in uses}) > 1:
        raise ValueError("releases for adding or removing a record do not compose with releases for replacing one.")
    event = _event(uses)
    if near is None:
        coarse = _epsilon(event, delta, 1e-2)
        near = coarse if 0 < coarse < math.inf else 1.0
    epsilon = _epsilon(event, delta, _discretization(near))
    if math.isinf(epsilon) or not any(release.sample for release in uses):
        return epsilon
    return min(epsilon, _sampled_epsilon(_event(uses, sampled=True), delta))


def calibrate(shares: Mapping[str, Share], epsilon: float | None, delta: float) -> dict[str, float]:
    """Find the noise multiplier of each share, so that all the releases together spend epsilon at delta.

    As in section 5 of FedDP-KMeans, a share is a release that would be (its epsilon, its delta)-private alone; the
    epsilons stand in the proportion of the fractions, and their common factor is the largest for which
    dp-accounting's composition of all the releases stays within the total. The paper gives each the total delta; here
    each has its part of it, so that there always is such a factor, however many releases there are.

    Parameters
    ----------
    shares : mapping of str to Share
        By name.
    epsilon : float or None
        The total. None is no noise: every multiplier is 0.
    delta : float in (0, 1)
        The total.

    Returns
    -------
    dict of str to float
        By the same names.

    Raises
    ------
    ValueError
        If a fraction is not positive, or if the shares are for different relations.
    """
    return dict(zip(shares, _calibrated(tuple(shares.values()), epsilon, delta), strict=True))


@lru_cache(maxsize=256)
def _calibrated(shares: tuple[Share, ...], epsilon: float | None, delta: float) -> tuple[float, ...]:
    import dp_accounting

    for share in shares:
        check_sample(share.sample)
        if not 0 < share.fraction < math.inf or share.count < 1:
            raise ValueError(
                f"a part of the privacy budget is {share.fraction} for {share.count} releases; every part must be "
                "positive and finite, for one release or more."
            )
    if len({share.relation for share in shares}) > 1:
        raise ValueError("shares for adding or removing a record do not compose with shares for replacing one.")
    if epsilon is not None and not epsilon > 0:
        raise ValueError(f"epsilon is {epsilon}; it must be positive.")
    if epsilon is None or not shares:
        return (0.0,) * len(shares)

    total = sum(share.fraction for share in shares)
    n_releases = sum(share.count for share in shares)

    def multipliers(factor: float) -> tuple[float, ...]:
        return tuple(
            _multiplier(share.mechanism, factor * share.fraction / share.count / total, delta / n_releases)
            for share in shares
        )

    def event(factor: float, *, sampled: bool = False) -> dp_accounting.DpEvent:
        return _event(_uses(shares, multipliers(factor)), sampled=sampled)

    interval = _discretization(epsilon)
    bracket = dp_accounting.LowerEndpointAndGuess(epsilon * 1e-3, epsilon)
    tolerance = epsilon * 1e-4
    factor = dp_accounting.calibrate_dp_mechanism(
        lambda: _Remembering(partial(_epsilon, interval=interval)), event, epsilon, delta, bracket, tol=tolerance
    )
    # Of a small epsilon at a small delta the divergences of these orders know nothing, whatever the noise.
    if any(share.sample for share in shares) and (
        _sampled_epsilon(event(bracket.lower_endpoint, sampled=True), delta) < epsilon
    ):
        bracket = dp_accounting.LowerEndpointAndGuess(bracket.lower_endpoint, factor)
        of_samples = dp_accounting.calibrate_dp_mechanism(
            lambda: _Remembering(_sampled_epsilon),
            lambda factor: event(factor, sampled=True),
            epsilon,
            delta,
            bracket,
            tol=10 * tolerance,
        )
        factor = max(factor, of_samples)
    return multipliers(factor)


def releases_of(shares: Mapping[str, Share], multipliers: Mapping[str, float]) -> Counter[Release]:
    """Return the releases that shares of a budget pay for, and how often, for :func:`composed_epsilon`.

    Parameters
    ----------
    shares : mapping of str to Share
        By name.
    multipliers : mapping of str to float
        The noise multipliers, by the same names.

    Returns
    -------
    Counter of Release
        Free of units.
    """
    return _uses(list(shares.values()), [multipliers[name] for name in shares])


def _uses(shares: Sequence[Share], multipliers: Sequence[float]) -> Counter[Release]:
    """Return the releases of a run whose shares are released in the same rounds, as far as their counts allow.

    That costs most: releases on one sample cost more than releases on samples of their own.
    """
    uses: Counter[Release] = Counter()
    found = [
        Release(share.mechanism, 1.0, multiplier, "", share.relation, share.sample)
        for share, multiplier in zip(shares, multipliers, strict=True)
    ]
    before = 0
    for count in sorted({share.count for share in shares}):
        together = [release for release, share in zip(found, shares, strict=True) if share.count >= count]
        for release in on_the_same_rows(together):
            uses[release] += count - before
        before = count
    return uses


@lru_cache(maxsize=1024)
def _multiplier(mechanism: Mechanism, epsilon: float, delta: float) -> float:
    """Return the noise multiplier of one release that is (epsilon, delta)-private alone."""
    if mechanism == "laplace":
        return 1.0 / epsilon
    import dp_accounting

    return float(dp_accounting.get_sigma_gaussian(epsilon, delta))


def _event(uses: Mapping[Release, int], *, sampled: bool = False) -> dp_accounting.DpEvent:
    """Return what releases are together, as one event, whatever their order."""
    counts: Counter[dp_accounting.DpEvent] = Counter()
    for release, count in uses.items():
        counts[release.event(sampled=sampled)] += count
    return _composed(counts)


def _composed(counts: Counter[dp_accounting.DpEvent]) -> dp_accounting.DpEvent:
    """Return what the events are together: all the Gaussian ones are one (Dong, Roth and Su 2022, Corollary 3.3)."""
    import dp_accounting

    gaussian = {event: count for event, count in counts.items() if isinstance(event, dp_accounting.GaussianDpEvent)}
    # In one order, so that the same releases give the same epsilon to the last digit.
    others = {event: counts[event] for event in sorted(counts.keys() - gaussian.keys(), key=repr)}
    if gaussian:
        joint = joint_multiplier((event.noise_multiplier, count) for event, count in gaussian.items())
        others[dp_accounting.GaussianDpEvent(joint)] = 1
        if len(others) == 1:
            return next(iter(others))
    # A tuple, so that the event can be looked up among those whose epsilon is known.
    return dp_accounting.ComposedDpEvent(
        tuple(dp_accounting.SelfComposedDpEvent(event, count) for event, count in others.items())
    )


def _discretization(epsilon: float) -> float:
    """Return the step of the privacy loss in which distributions are stored; the rounding is upwards.

    Fine enough that rounding costs a small part of epsilon, coarse enough that a large epsilon is affordable.
    """
    return min(max(epsilon * 1e-4, 1e-5), 1e-2)


class _Remembering:
    """An accountant for dp-accounting's calibration, which asks for both ends of its bracket and for its root twice.

    Parameters
    ----------
    epsilon : callable
        From an event and delta; remembers what it has answered.
    """

    def __init__(self, epsilon: Callable[[dp_accounting.DpEvent, float], float]) -> None:
        import dp_accounting

        self._epsilon = epsilon
        self.ledger = self._event = dp_accounting.NoOpDpEvent()

    def compose(self, event: dp_accounting.DpEvent) -> _Remembering:
        self._event = event
        return self

    def get_epsilon(self, delta: float) -> float:
        return self._epsilon(self._event, delta)


@lru_cache(maxsize=1024)
def _epsilon(event: dp_accounting.DpEvent, delta: float, interval: float) -> float:
    import dp_accounting

    if isinstance(event, dp_accounting.GaussianDpEvent):
        # In closed form. Its delta is right to 1e-7, which the thousandth that delta_of_composition keeps back covers.
        with np.errstate(divide="ignore"):
            return float(dp_accounting.get_epsilon_gaussian(event.noise_multiplier, delta))
    # A multiplier says all: it is the scale of the noise over the sensitivity under the release's own relation.
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    return float(dp_accounting.pld.PLDAccountant(relation, interval).compose(event).get_epsilon(delta))


@lru_cache(maxsize=1024)
def _sampled_epsilon(event: dp_accounting.DpEvent, delta: float) -> float:
    import dp_accounting

    # Only the accountant of Renyi divergences composes releases of sampled rows.
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    return float(dp_accounting.rdp.RdpAccountant(ORDERS, relation).compose(event).get_epsilon(delta))
