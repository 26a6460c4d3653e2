"""What all of the noise of a run will be, said before it begins, so that a site can decide by it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Self

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

#: More releases than any run has; a plan may come from anybody.
MOST_RELEASES = 10_000

#: An epsilon near which compositions are computed fast, and not finely.
COARSE = 100.0


@dataclass(frozen=True)
class Plan:
    """The releases of a run."""

    epsilon: float  #: What the noise was calibrated to, with delta.
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
    def from_json(cls, text: str) -> Self:
        """Undo :meth:`to_json`; the text may come from anybody.

        Raises
        ------
        ValueError
            If it is not a plan.
        """
        try:
            return cls(*_read(text))
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"the plan of a run cannot be read ({type(error).__name__}: {error}).") from None

    def epsilon_of_row(self, delta: float) -> float:
        """Return the epsilon of all releases together for one row of a client, at a delta of the reader's own.

        Where the unit is a client, a release is calibrated to how long the client's array can be. One row more or less
        makes another array of at most that length: they are twice as far apart.
        """
        factor = 0.5 if self.unit == "client" else 1.0
        multipliers = {name: factor * multiplier for name, multiplier in self.multipliers.items()}
        return _composed(tuple(releases_of(self.shares, multipliers)), delta_of_composition(delta), self.epsilon)


@lru_cache(maxsize=64)
def _composed(releases: tuple[Release, ...], delta: float, near: float) -> float:
    # Whoever announces a budget far below what the noise comes to would have the reader compute very finely.
    coarse = composed_epsilon(releases, delta, near=COARSE)
    return composed_epsilon(releases, delta, near=near if coarse < 1.2 * near + 0.1 else coarse)


@lru_cache(maxsize=16)
def _read(
    text: str,
) -> tuple[float, float, NoisePlace, PrivacyUnit, dict[str, Share], dict[str, float]]:
    found = json.loads(text)
    check_choice("noise", found["noise"], NOISE_PLACES)
    check_choice("unit", found["unit"], PRIVACY_UNITS)
    shares: dict[str, Share] = {}
    multipliers: dict[str, float] = {}
    for name, fields in found["shares"].items():
        multipliers[str(name)] = float(fields["multiplier"])
        sample = fields["sample"]
        shares[str(name)] = Share(
            fields["mechanism"],
            float(fields["fraction"]),
            int(fields["count"]),
            fields["relation"],
            None if sample is None else (int(sample[0]), int(sample[1])),
        )
        Release(
            fields["mechanism"], 1.0, multipliers[str(name)], "", fields["relation"], shares[str(name)].sample
        )  # checks them
        if shares[str(name)].count < 1:
            raise ValueError(f"the share {name} of a plan is for {shares[str(name)].count} releases.")
    if sum(share.count for share in shares.values()) > MOST_RELEASES:
        raise ValueError(f"a plan has more than {MOST_RELEASES} releases.")
    if len({share.relation for share in shares.values()}) > 1:
        raise ValueError("a plan has releases for different relations.")
    epsilon, delta = float(found["epsilon"]), float(found["delta"])
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise ValueError("a plan has an epsilon or a delta that cannot be.")
    return epsilon, delta, found["noise"], found["unit"], shares, multipliers
