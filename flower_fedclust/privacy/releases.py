"""A release: the description of one noisy array, which the code for noise, accounting, reports and tests reads."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from flower_fedclust.numerics.checks import check_choice

if TYPE_CHECKING:
    import dp_accounting

Mechanism = Literal["gaussian", "laplace"]
PrivacyUnit = Literal["record", "subject", "client"]
NoisePlace = Literal["server", "clients", "local"]
Relation = Literal["add-or-remove", "replace"]

PRIVACY_UNITS = get_args(PrivacyUnit)
#: Units of privacy for strategies whose clients only send sums over rows.
SUMS_OVER_ROWS: tuple[PrivacyUnit, ...] = ("record", "subject")
NOISE_PLACES = get_args(NoisePlace)


@dataclass(frozen=True)
class Release:
    """The noise that is added to one array before it leaves the trusted part of a run."""

    mechanism: Mechanism
    #: The largest change of the array by one record, subject or client, in the array's units: in Euclidean norm for the
    #: Gaussian mechanism, in L1 norm for the Laplace mechanism.
    sensitivity: float
    #: The scale of the noise (standard deviation, or Laplace parameter) divided by the sensitivity. 0 means no noise
    #: and no protection.
    noise_multiplier: float
    bound: str  #: How the sensitivity is enforced, in words for the report.
    #: How two neighboring data sets differ: one record (or client) is added or removed, or it is replaced by another.
    #: An array with an entry for every row can only promise "replace".
    relation: Relation = "add-or-remove"
    #: How many rows are drawn, and from how many, if the array depends on rows that a client draws secretly and without
    #: replacement. A row that may not have been drawn has additional protection. Only for "replace".
    sample: tuple[int, int] | None = None
    share: str = ""  #: The name of its share of the privacy budget.
    #: Whether the array is the upper triangle of a symmetric matrix whose Frobenius norm the sensitivity bounds.
    #: Entries off the diagonal count twice in that norm, so their noise has ``1 / sqrt(2)`` of the scale.
    triangle: bool = False

    def __post_init__(self) -> None:
        check_choice("mechanism", self.mechanism, get_args(Mechanism))
        check_choice("relation", self.relation, get_args(Relation))
        if not sys.float_info.min <= self.sensitivity < math.inf:
            # A smaller number is denormal: its products are rounded by more than the last bit.
            raise ValueError(
                f"sensitivity is {self.sensitivity}; it must be finite and at least {sys.float_info.min:g}."
            )
        if not 0 <= self.noise_multiplier < math.inf:
            raise ValueError(
                f"noise_multiplier is {self.noise_multiplier}; it must be finite and not negative."
            )
        if self.triangle and self.mechanism != "gaussian":
            raise ValueError("triangle is only for Gaussian noise.")
        check_sample(self.sample)
        if self.sample is not None and (self.mechanism, self.relation) != ("gaussian", "replace"):
            raise ValueError("sample is only for Gaussian noise and a row that is replaced.")

    @property
    def scale(self) -> float:
        """The standard deviation of Gaussian noise, the parameter of Laplace noise; units of the array."""
        return self.sensitivity * self.noise_multiplier

    @property
    def standard_deviation(self) -> float:
        """The standard deviation of the noise of either mechanism; units of the array."""
        return self.scale if self.mechanism == "gaussian" else self.scale * math.sqrt(2)

    @property
    def norm(self) -> str:
        """The norm in which the sensitivity is measured."""
        return "L2" if self.mechanism == "gaussian" else "L1"

    def event(self, *, sampled: bool = False) -> dp_accounting.DpEvent:
        """Return the event that dp-accounting composes.

        Without ``sampled`` the event ignores the sample, and so understates the protection. Accountants that cannot
        compose samples need this.
        """
        from flower_fedclust.privacy.library import dp_accounting

        if self.mechanism == "laplace":
            return dp_accounting.LaplaceDpEvent(self.noise_multiplier)
        event = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        sample = self.sample if sampled else None
        if sample is None or 2 * sample[0] >= sample[1]:
            return event  # a sample of half of the rows or more gains little, and takes seconds to compose
        return dp_accounting.SampledWithoutReplacementDpEvent(sample[1], sample[0], event)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Create a release from the result of :meth:`to_dict`."""
        sample = fields.get("sample")  # JSON turns a tuple into a list
        return cls(**{**fields, "sample": None if sample is None else tuple(sample)})


def on_the_same_rows(releases: Iterable[Release]) -> list[Release]:
    """Return the releases of one reply without their units, ready for composition with other replies.

    Arrays that depend on the same sample of rows become one Gaussian release: a sampled row is in all of them, and two
    releases on separate samples would cost less.
    """
    multipliers: dict[tuple[Mechanism, Relation, tuple[int, int] | None], list[float]] = {}
    for release in releases:
        key = (release.mechanism, release.relation, release.sample)
        multipliers.setdefault(key, []).append(release.noise_multiplier)
    together = []
    for (mechanism, relation, sample), found in multipliers.items():
        is_joint = sample is not None and len(found) > 1
        joint = [joint_multiplier((multiplier, 1) for multiplier in found)] if is_joint else found
        together += [
            Release(mechanism, 1.0, multiplier, "", relation, sample) for multiplier in joint
        ]
    return together


def joint_multiplier(multipliers: Iterable[tuple[float, int]]) -> float:
    """Return the multiplier of one Gaussian release that protects as much as several (multiplier, count) together."""
    found = list(multipliers)
    smallest = min(multiplier for multiplier, _ in found)
    if smallest == 0:
        return 0.0
    return smallest / math.sqrt(
        math.fsum(count * (smallest / multiplier) ** 2 for multiplier, count in found)
    )


def check_sample(sample: tuple[int, int] | None) -> None:
    """Raise a ValueError unless a sample draws at least one row, and no more rows than there are."""
    if sample is not None and not 1 <= sample[0] <= sample[1]:
        raise ValueError(
            f"sample is {sample}; give the number of rows drawn, at least 1, and the number of rows."
        )
