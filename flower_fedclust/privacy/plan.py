"""What all of the noise of a run will be: frozen before the first release, and announced so that a site can decide."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Self

from flower_fedclust.numerics.checks import check_choice
from flower_fedclust.privacy.accounting import Share, composed_epsilon, releases_of
from flower_fedclust.privacy.releases import (
    NOISE_PLACES,
    PRIVACY_UNITS,
    NoisePlace,
    PrivacyUnit,
    Release,
)
from flower_fedclust.privacy.shares import delta_of_composition

#: A plan may come from anybody. No run has so many shares, or so many releases of them together, with such names.
MOST_SHARES, MOST_RELEASES, LONGEST_NAME = 32, 10_000, 64

#: So many characters are more than any plan has.
LONGEST_PLAN = MOST_SHARES * 512

#: What a plan may cost at most, as :func:`_cost` counts: beyond the largest epsilon that a strategy takes by far. With
#: less noise, to compose it would take very long.
MOST_COST = 4_000.0

#: An epsilon near which compositions are computed fast, and not finely.
COARSE = 100.0


@dataclass(frozen=True)
class Plan:
    """The releases of a run."""

    epsilon: float | None  #: What the noise was calibrated to, with delta. None is no noise.
    delta: float
    noise: NoisePlace  #: Who draws it.
    unit: PrivacyUnit
    shares: Mapping[str, Share]  #: The parts of the budget, by name, with the number of releases of each.
    multipliers: Mapping[str, float]  #: The noise multiplier of each release, by the same names.

    def to_json(self) -> str:
        """Return the plan as one line."""
        shares = {name: asdict(share) | {"multiplier": self.multipliers[name]} for name, share in self.shares.items()}
        about = {"epsilon": self.epsilon, "delta": self.delta, "noise": self.noise, "unit": self.unit}
        return json.dumps(about | {"shares": shares})

    @classmethod
    def from_dict(cls, found: Any) -> Self:
        """Return the plan from what :meth:`to_json` wrote, once JSON is read; it may come from anybody.

        Raises
        ------
        ValueError
            If it is not a plan.
        """
        try:
            return cls(*_read(found))
        except (LookupError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"the plan of a run cannot be read ({type(error).__name__}).") from None

    def check(self) -> None:
        """Raise a ValueError if the plan composes to more than was asked for.

        A share without noise is not counted: the report lists what it would pay for as unprotected.
        """
        if self.epsilon is None:
            return
        noisy = {name: share for name, share in self.shares.items() if self.multipliers[name] > 0}
        spent = composed_epsilon(
            releases_of(noisy, self.multipliers), delta_of_composition(self.delta), near=self.epsilon
        )
        if spent > self.epsilon:
            raise ValueError(
                f"epsilon is {self.epsilon:g} and the noise of the run composes to {spent:.6g}; the noise multipliers "
                f"of {', '.join(noisy)} must be larger."
            )

    def epsilon_of_row(self, delta: float) -> float:
        """Return the epsilon of all releases together for one row of a client, at a delta of the reader's own.

        Where the unit is a client, a release is calibrated to how long the client's array can be. One row more or less
        makes another array of at most that length: they are twice as far apart.
        """
        factor = 0.5 if self.unit == "client" else 1.0
        multipliers = {name: factor * multiplier for name, multiplier in self.multipliers.items()}
        releases = tuple(releases_of(self.shares, multipliers).items())
        return _composed(releases, delta_of_composition(delta), self.epsilon or COARSE)


@lru_cache(maxsize=64)
def _composed(releases: tuple[tuple[Release, int], ...], delta: float, near: float) -> float:
    # Whoever announces a budget far below what the noise comes to would have the reader compute very finely.
    coarse = composed_epsilon(dict(releases), delta, near=COARSE)
    return composed_epsilon(dict(releases), delta, near=near if coarse < 1.2 * near + 0.1 else coarse)


def _read(
    found: Any,
) -> tuple[float, float, NoisePlace, PrivacyUnit, dict[str, Share], dict[str, float]]:
    check_choice("noise", found["noise"], NOISE_PLACES)
    check_choice("unit", found["unit"], PRIVACY_UNITS)
    given: Mapping[str, Mapping[str, Any]] = found["shares"]
    if len(given) > MOST_SHARES or max(map(len, given), default=0) > LONGEST_NAME:
        raise ValueError(f"a plan has more than {MOST_SHARES} shares, or a name of more than {LONGEST_NAME} letters.")
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
        Release(share.mechanism, 1.0, multipliers[name], "", share.relation, share.sample)  # checks them
    if sum(share.count for share in shares.values()) > MOST_RELEASES:
        raise ValueError(f"a plan has more than {MOST_RELEASES} releases.")
    if len({share.relation for share in shares.values()}) > 1:
        raise ValueError("a plan has releases for different relations.")
    if not _cost((share, multipliers[name]) for name, share in shares.items()) <= MOST_COST:
        raise ValueError("a plan has next to no noise.")
    epsilon, delta = _number(found["epsilon"]), _number(found["delta"])
    if delta >= 1:
        raise ValueError("a plan has a delta that cannot be.")
    return epsilon, delta, found["noise"], found["unit"], shares, multipliers


def _cost(releases: Iterable[tuple[Share, float]]) -> float:
    """Return the largest privacy loss of Laplace releases, and the mean one of Gaussian releases, added up."""
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
        raise ValueError("a plan has a number that is no positive integer.")
    return value
