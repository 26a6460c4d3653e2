"""The accountant: shares of a budget, the noise that they pay for, the composition of releases, and the plan of a run.

All composition is by dp-accounting, in one function, :func:`composed_epsilon`. Calibration, plan, report and site call
it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from flower_fedclust.names import look_up
from flower_fedclust.numerics.checks import check_choice, check_real
from flower_fedclust.privacy.releases import (
    NOISE_PLACES,
    PRIVACY_UNITS,
    Mechanism,
    NoisePlace,
    PrivacyUnit,
    Relation,
    Release,
    check_sample,
    joint_multiplier,
    on_the_same_rows,
)

if TYPE_CHECKING:
    import dp_accounting

T = TypeVar("T")

#: Orders of the Renyi divergences. Each is slow to compute for samples, and dp-accounting's further default orders gain
#: nothing.
ORDERS = (*range(2, 33), *range(36, 65, 4), 80, 128, 256)

#: The fraction of delta that covers the distance between the drawn noise and the noise that is accounted for.
SAMPLING_PART = 2.0**-10

#: Limits for plans, which another party may send. No run has as many shares or releases, or such long names.
MOST_SHARES, MOST_RELEASES, LONGEST_NAME = 32, 10_000, 64

#: The largest size of a plan, in characters.
LONGEST_PLAN = MOST_SHARES * 512

#: The largest cost of a plan, as :func:`_cost` counts: far beyond the largest epsilon that a strategy takes. Composing
#: releases with less noise would take very long.
MOST_COST = 4_000.0

#: An epsilon near which compositions are computed fast, but coarsely.
COARSE = 100.0


# Shares of a budget.


@dataclass(frozen=True)
class Share:
    """A named part of a privacy budget, and the releases whose noise it pays for."""

    mechanism: Mechanism
    #: The share's epsilon in proportion to the other shares'; the fractions need not add up to 1.
    fraction: float
    #: The number of releases, each in a round of its own; they divide the fraction equally.
    count: int = 1
    #: As in :class:`~flower_fedclust.privacy.releases.Release`; the same for all shares of a budget.
    relation: Relation = "add-or-remove"
    #: As in :class:`~flower_fedclust.privacy.releases.Release`. Shares with the same sample depend on the same rows,
    #: round by round.
    sample: tuple[int, int] | None = None


def divided(shares: Mapping[str, Share], budget: Mapping[str, float] | None) -> dict[str, Share]:
    """Return the shares with the fractions that a user has chosen.

    ``budget`` holds fractions of the whole budget, by name. The shares that it does not name divide the rest in
    proportion to their fractions.
    """
    if budget is None:
        return dict(shares)
    for name in budget:
        look_up(name, shares, "part of the budget called")
    budget = {
        name: check_real(f"the budget of {name}", part, above=0, at_most=1)
        for name, part in budget.items()
    }
    rest = 1.0 - math.fsum(budget.values())
    left = [name for name in shares if name not in budget]
    others = math.fsum(shares[name].fraction for name in left)
    if rest < -1e-9 or (others > 0) != (rest > 1e-9):
        remedy = f"leave some for: {', '.join(left)}." if left else "its parts must add up to 1."
        raise ValueError(f"budget adds up to {1.0 - rest:g}; {remedy}")
    return {
        name: replace(
            share, fraction=budget.get(name, rest * share.fraction / others if others else 0.0)
        )
        for name, share in shares.items()
    }


# Composition.


def composed_epsilon(
    releases: Iterable[Release] | Mapping[Release, int], delta: float, *, near: float | None = None
) -> float:
    """Return the epsilon that releases of one relation spend together at this delta.

    A mapping says how often each release is made. All Gaussian releases together have a closed form; otherwise
    dp-accounting composes privacy loss distributions. If rows are sampled, dp-accounting also composes Renyi
    divergences, which can use the sampling. The smaller result counts, because for large samples the Renyi bound loses
    more than the sampling gains. Each sampled release has a sample of its own;
    :func:`~flower_fedclust.privacy.releases.on_the_same_rows` joins releases that share one.

    ``near`` is the expected epsilon, which sets the resolution of the privacy loss. With the epsilon asked for, the
    result is computed exactly as when the noise was calibrated. The result is 0 for no release, and infinite if one
    carries no noise. Releases for different relations raise a ValueError.
    """
    uses = Counter(releases)
    if len({release.relation for release in uses}) > 1:
        raise ValueError(
            "releases for adding or removing a record do not compose with releases for replacing one."
        )
    event = _event(uses)
    if near is None:
        coarse = _epsilon(event, delta, 1e-2)
        near = coarse if 0 < coarse < math.inf else 1.0
    epsilon = _epsilon(event, delta, _resolution(near))
    if math.isinf(epsilon) or not any(release.sample for release in uses):
        return epsilon
    return min(epsilon, _sampled_epsilon(_event(uses, sampled=True), delta))


def _event(uses: Mapping[Release, int], *, sampled: bool = False) -> dp_accounting.DpEvent:
    """Return releases as one event that does not depend on their order.

    All Gaussian releases together equal a single one (Dong, Roth and Su 2022, Corollary 3.3).
    """
    from flower_fedclust.privacy.library import dp_accounting

    counts: Counter[dp_accounting.DpEvent] = Counter()
    for release, count in uses.items():
        counts[release.event(sampled=sampled)] += count
    gaussian = {
        event: count
        for event, count in counts.items()
        if isinstance(event, dp_accounting.GaussianDpEvent)
    }
    # Sorted, so that the same releases give the same epsilon to the last digit.
    others = {event: counts[event] for event in sorted(counts.keys() - gaussian.keys(), key=repr)}
    if gaussian:
        joint = joint_multiplier(
            (event.noise_multiplier, count) for event, count in gaussian.items()
        )
        others[dp_accounting.GaussianDpEvent(joint)] = 1
        if len(others) == 1:
            return next(iter(others))
    # A tuple, so that the event is hashable for the caches below.
    return dp_accounting.ComposedDpEvent(
        tuple(dp_accounting.SelfComposedDpEvent(event, count) for event, count in others.items())
    )


def _resolution(epsilon: float) -> float:
    """Return the step to which privacy losses are rounded up: a small fraction of epsilon, within limits."""
    return min(max(epsilon * 1e-4, 1e-5), 1e-2)


@lru_cache(maxsize=1024)
def _epsilon(event: dp_accounting.DpEvent, delta: float, interval: float) -> float:
    from flower_fedclust.privacy.library import dp_accounting

    if isinstance(event, dp_accounting.GaussianDpEvent):
        # The closed form's delta is right to one part in 10^7. delta_of_composition keeps back a thousandth, which
        # covers this error.
        with np.errstate(divide="ignore"):
            return float(dp_accounting.get_epsilon_gaussian(event.noise_multiplier, delta))
    # Computed for add-or-remove, and right for "replace", too: the multiplier is the noise over the sensitivity under
    # the release's own relation.
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    return float(
        dp_accounting.pld.PLDAccountant(relation, interval).compose(event).get_epsilon(delta)
    )


@lru_cache(maxsize=1024)
def _sampled_epsilon(event: dp_accounting.DpEvent, delta: float) -> float:
    from flower_fedclust.privacy.library import dp_accounting

    # Of dp-accounting's accountants, only the Renyi accountant composes sampled releases.
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    return float(
        dp_accounting.rdp.RdpAccountant(ORDERS, relation).compose(event).get_epsilon(delta)
    )


def delta_of_composition(delta: float) -> float:
    """Return the part of delta for which noise is calibrated: all but ``SAMPLING_PART`` of it."""
    return delta * (1.0 - SAMPLING_PART)


def delta_of_sampling(epsilon: float, variation: float) -> float:
    """Return what the sampler's total-variation distance, over all entries of the run, adds to delta.

    Noise within total variation TV of (epsilon, delta')-private noise is (epsilon, delta' + (1 + e^epsilon)
    TV)-private.
    """
    # As a logarithm, so that a large epsilon does not overflow.
    return (
        math.exp(min(math.log(variation) + epsilon + math.log1p(math.exp(-epsilon)), 0.0))
        if variation > 0
        else 0.0
    )


# Calibration.


def calibrate(shares: Mapping[str, Share], epsilon: float | None, delta: float) -> dict[str, float]:
    """Return the noise multiplier of each share, by name, with which all releases together spend epsilon at delta.

    As in section 5 of FedDP-KMeans (Scott, Lampert and Saulpic 2025), each release alone would be (its epsilon, its
    delta)-private. The epsilons are
    proportional to the fractions, with the largest common factor for which all releases together stay within the total.
    The paper gives each release the total delta. Here each has a part of it, so the factor exists for any number of
    releases.

    Without an epsilon every multiplier is 0. A fraction that is not positive raises a ValueError, as do shares for
    different relations.
    """
    return dict(zip(shares, _calibrated(tuple(shares.values()), epsilon, delta), strict=True))


@lru_cache(maxsize=256)
def _calibrated(
    shares: tuple[Share, ...], epsilon: float | None, delta: float
) -> tuple[float, ...]:
    from flower_fedclust.privacy.library import dp_accounting

    _check_shares(shares, epsilon)
    if epsilon is None or not shares:
        return (0.0,) * len(shares)
    total = sum(share.fraction for share in shares)
    n_releases = sum(share.count for share in shares)
    parts = dict(enumerate(shares))

    def multipliers(factor: float) -> tuple[float, ...]:
        return tuple(
            _multiplier(
                share.mechanism, factor * share.fraction / share.count / total, delta / n_releases
            )
            for share in shares
        )

    def event(factor: float, *, sampled: bool = False) -> dp_accounting.DpEvent:
        return _event(releases_of(parts, dict(enumerate(multipliers(factor)))), sampled=sampled)

    interval = _resolution(epsilon)
    bracket = dp_accounting.LowerEndpointAndGuess(epsilon * 1e-3, epsilon)
    tolerance = epsilon * 1e-4
    factor = dp_accounting.calibrate_dp_mechanism(
        lambda: _Accountant(partial(_epsilon, interval=interval)),
        event,
        epsilon,
        delta,
        bracket,
        tol=tolerance,
    )
    # For a small epsilon at a small delta, the divergences of these orders give no bound, whatever the noise.
    if any(share.sample for share in shares) and (
        _sampled_epsilon(event(bracket.lower_endpoint, sampled=True), delta) < epsilon
    ):
        bracket = dp_accounting.LowerEndpointAndGuess(bracket.lower_endpoint, factor)
        of_samples = dp_accounting.calibrate_dp_mechanism(
            lambda: _Accountant(_sampled_epsilon),
            lambda factor: event(factor, sampled=True),
            epsilon,
            delta,
            bracket,
            tol=10 * tolerance,
        )
        factor = max(factor, of_samples)
    return multipliers(factor)


class _Accountant:
    """Gives dp-accounting's calibration the epsilon of one event, from the cached functions above."""

    def __init__(self, epsilon: Callable[[dp_accounting.DpEvent, float], float]) -> None:
        from flower_fedclust.privacy.library import dp_accounting

        self._epsilon = epsilon
        self.ledger = self._event = dp_accounting.NoOpDpEvent()

    def compose(self, event: dp_accounting.DpEvent) -> _Accountant:
        self._event = event
        return self

    def get_epsilon(self, delta: float) -> float:
        return self._epsilon(self._event, delta)


def _check_shares(shares: Sequence[Share], epsilon: float | None) -> None:
    for share in shares:
        check_sample(share.sample)
        if not 0 < share.fraction < math.inf or share.count < 1:
            raise ValueError(
                f"a part of the privacy budget is {share.fraction} for {share.count} releases; every part must be "
                "positive and finite, for one release or more."
            )
    if len({share.relation for share in shares}) > 1:
        raise ValueError(
            "shares for adding or removing a record do not compose with shares for replacing one."
        )
    if epsilon is not None and not epsilon > 0:
        raise ValueError(f"epsilon is {epsilon}; it must be positive.")


@lru_cache(maxsize=1024)
def _multiplier(mechanism: Mechanism, epsilon: float, delta: float) -> float:
    """Return the noise multiplier with which one release by itself is (epsilon, delta)-private."""
    if mechanism == "laplace":
        return 1.0 / epsilon
    from flower_fedclust.privacy.library import dp_accounting

    return float(dp_accounting.get_sigma_gaussian(epsilon, delta))


def releases_of(shares: Mapping[T, Share], multipliers: Mapping[T, float]) -> Counter[Release]:
    """Return the releases of shares, without units, as if they were made in as few rounds as possible.

    That is the worst case: releases on one sample cost more than releases on separate samples.
    """
    uses: Counter[Release] = Counter()
    found = {
        name: Release(share.mechanism, 1.0, multipliers[name], "", share.relation, share.sample)
        for name, share in shares.items()
    }
    before = 0
    for count in sorted({share.count for share in shares.values()}):
        together = [found[name] for name, share in shares.items() if share.count >= count]
        for release in on_the_same_rows(together):
            uses[release] += count - before
        before = count
    return uses


# The plan of a run.


@dataclass(frozen=True)
class Plan:
    """All releases of a run: frozen before the first one, and announced so that a site can decide."""

    #: The epsilon, at ``delta``, to which the noise was calibrated; None without noise.
    epsilon: float | None
    delta: float
    noise: NoisePlace  #: The party that draws the noise.
    unit: PrivacyUnit
    #: The parts of the budget, by name, with the number of releases of each.
    shares: Mapping[str, Share]
    multipliers: Mapping[str, float]  #: The noise multiplier of each release, by the same names.
    #: For the unit "subject": a row's terms are divided by its person's number of rows, or by this if it is larger.
    rows_per_subject: int = 1
    #: For the unit "subject": the most sites at which a person has rows.
    sites_per_subject: int = 1

    def to_json(self) -> str:
        """Return the plan as one line."""
        shares = {
            name: asdict(share) | {"multiplier": self.multipliers[name]}
            for name, share in self.shares.items()
        }
        about = {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "noise": self.noise,
            "unit": self.unit,
        }
        of_subjects = {
            "rows_per_subject": self.rows_per_subject,
            "sites_per_subject": self.sites_per_subject,
        }
        return json.dumps(about | of_subjects | {"shares": shares})

    @classmethod
    def from_dict(cls, found: Any) -> Self:
        """Return the plan that :meth:`to_json` wrote; raise a ValueError for any other JSON, which anybody may send."""
        try:
            return cls(*_read(found))
        except (LookupError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(
                f"the plan of a run cannot be read ({type(error).__name__})."
            ) from None

    def check(self) -> None:
        """Raise a ValueError if the plan composes to more than was asked for.

        A share without noise does not count: the report lists its arrays as unprotected.
        """
        if self.epsilon is None:
            return
        noisy = {name: share for name, share in self.shares.items() if self.multipliers[name] > 0}
        releases = releases_of(noisy, self.multipliers)
        spent = composed_epsilon(releases, delta_of_composition(self.delta), near=self.epsilon)
        if spent > self.epsilon:
            raise ValueError(
                f"epsilon is {self.epsilon:g} and the noise of the run composes to {spent:.6g}; the noise multipliers "
                f"of {', '.join(noisy)} must be larger."
            )

    def epsilon_of_row(self, delta: float, *, in_sample: bool = False) -> float:
        """Return the epsilon of all releases together for one row, or one subject, at a delta of the caller's choice.

        In two cases a row can move a release by up to twice the sensitivity to which its noise was calibrated:

        - The unit is a client, and the sensitivity is the largest norm of the client's array. With one row more or less
          the array can be any other array of at most this norm.
        - The row replaces another one in a sample (``in_sample``), and the sensitivity is that of adding or removing a
          row.
        """
        multipliers = {
            name: multiplier
            * (
                0.5
                if self.unit == "client" or (in_sample and self.shares[name].relation != "replace")
                else 1.0
            )
            for name, multiplier in self.multipliers.items()
        }
        uses = tuple(releases_of(self.shares, multipliers).items())
        return _epsilon_of_plan(uses, delta_of_composition(delta), self.epsilon or COARSE)


@lru_cache(maxsize=64)
def _epsilon_of_plan(uses: tuple[tuple[Release, int], ...], delta: float, near: float) -> float:
    # The announced epsilon sets the resolution. If it is far below the epsilon that the noise gives, the computation
    # would be needlessly fine and slow. Then the coarse epsilon sets the resolution.
    coarse = composed_epsilon(dict(uses), delta, near=COARSE)
    return composed_epsilon(dict(uses), delta, near=near if coarse < 1.2 * near + 0.1 else coarse)


#: The fields of a plan in JSON, and of each of its shares.
_PLAN_FIELDS = {
    "epsilon",
    "delta",
    "noise",
    "unit",
    "rows_per_subject",
    "sites_per_subject",
    "shares",
}
_SHARE_FIELDS = {"mechanism", "fraction", "count", "relation", "sample", "multiplier"}


def _read(
    found: Any,
) -> tuple[float, float, NoisePlace, PrivacyUnit, dict[str, Share], dict[str, float], int, int]:
    check_choice("noise", found["noise"], NOISE_PLACES)
    check_choice("unit", found["unit"], PRIVACY_UNITS)
    given: Mapping[str, Mapping[str, Any]] = found["shares"]
    if set(found) != _PLAN_FIELDS or any(set(fields) != _SHARE_FIELDS for fields in given.values()):
        raise ValueError("a plan has other fields than a plan of this version.")
    if len(given) > MOST_SHARES or max(map(len, given), default=0) > LONGEST_NAME:
        raise ValueError(
            f"a plan has more than {MOST_SHARES} shares, or a name of more than {LONGEST_NAME} letters."
        )
    shares: dict[str, Share] = {}
    multipliers: dict[str, float] = {}
    for name, fields in given.items():
        sample = fields["sample"]
        shares[name] = share = Share(
            fields["mechanism"],
            _number(fields["fraction"]),
            _integer(fields["count"]),
            fields["relation"],
            None if sample is None else (_integer(sample[0]), _integer(sample[1])),
        )
        multipliers[name] = _number(fields["multiplier"])
        # The constructor checks these values.
        Release(share.mechanism, 1.0, multipliers[name], "", share.relation, share.sample)
    if sum(share.count for share in shares.values()) > MOST_RELEASES:
        raise ValueError(f"a plan has more than {MOST_RELEASES} releases.")
    if len({share.relation for share in shares.values()}) > 1:
        raise ValueError("a plan has releases for different relations.")
    if not _cost((share, multipliers[name]) for name, share in shares.items()) <= MOST_COST:
        raise ValueError("a plan has next to no noise.")
    epsilon, delta = _number(found["epsilon"]), _number(found["delta"])
    if delta >= 1:
        raise ValueError("a plan has a delta of 1 or more.")
    of_subjects = _integer(found["rows_per_subject"]), _integer(found["sites_per_subject"])
    if found["unit"] != "subject" and of_subjects != (1, 1):
        raise ValueError("a plan that is not for subjects has numbers of their rows or sites.")
    return epsilon, delta, found["noise"], found["unit"], shares, multipliers, *of_subjects


def _cost(releases: Iterable[tuple[Share, float]]) -> float:
    """Return the sum of the largest privacy losses of Laplace releases and the mean losses of Gaussian ones."""
    return math.fsum(
        share.count * (1.0 / multiplier if share.mechanism == "laplace" else 0.5 / multiplier**2)
        if multiplier > 1.0 / MOST_COST
        else math.inf
        for share, multiplier in releases
    )


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError("a plan has a number that is not positive and finite.")
    return float(value)


def _integer(value: Any) -> int:
    if type(value) is not int or not 0 < value < 2**53:
        raise ValueError("a plan has a count that is not a positive integer.")
    return value
