"""A release: one noisy array, as a value that the noise, the accounting, the report and the tests all read."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

if TYPE_CHECKING:
    import dp_accounting

Mechanism = Literal["gaussian", "laplace"]
PrivacyUnit = Literal["record", "client"]
NoisePlace = Literal["server", "clients", "local"]
Relation = Literal["add-or-remove", "replace"]

PRIVACY_UNITS = get_args(PrivacyUnit)
NOISE_PLACES = get_args(NoisePlace)


@dataclass(frozen=True)
class Release:
    """What is added to one array before anybody who is not trusted sees it.

    Parameters
    ----------
    mechanism : "gaussian" or "laplace"
    sensitivity : float
        How far one record or one client can move the array: in Euclidean norm for the Gaussian mechanism, in L1
        norm for the Laplace mechanism. The units are those of the array.
    noise_multiplier : float
        The scale of the noise (standard deviation, or Laplace parameter) divided by the sensitivity. 0 is no
        noise, and no protection.
    bound : str
        What enforces the sensitivity, in words, for the report.
    relation : "add-or-remove" or "replace", default="add-or-remove"
        What the record or the client does in the two data sets that the sensitivity compares: it is there or is not,
        or it is another. Where as many arrays leave a client as it has rows, only "replace" can be promised.
    sample : tuple of two int, optional
        How many rows are drawn, and of how many, where the array depends on rows that a client draws without
        replacement and keeps to itself: a row that may not have been drawn is protected by that, too. For "replace".
    share : str, default=""
        The name of its share of the privacy budget.
    triangle : bool, default=False
        Whether the array is the upper triangle of a symmetric matrix, whose Frobenius norm the sensitivity bounds: what
        is off the diagonal counts twice in it, so that noise of ``1 / sqrt(2)`` of the scale does there.
    """

    mechanism: Mechanism
    sensitivity: float
    noise_multiplier: float
    bound: str
    relation: Relation = "add-or-remove"
    sample: tuple[int, int] | None = None
    share: str = ""
    triangle: bool = False

    def __post_init__(self) -> None:
        if self.mechanism not in get_args(Mechanism):
            raise ValueError(f"mechanism is {self.mechanism!r}; it must be one of: {', '.join(get_args(Mechanism))}.")
        if self.relation not in get_args(Relation):
            raise ValueError(f"relation is {self.relation!r}; it must be one of: {', '.join(get_args(Relation))}.")
        if not sys.float_info.min <= self.sensitivity < float("inf"):
            # Below the smallest normal number products are rounded by more than the last bit.
            raise ValueError(
                f"sensitivity is {self.sensitivity}; it must be finite and at least {sys.float_info.min:g}."
            )
        if not 0 <= self.noise_multiplier < float("inf"):
            raise ValueError(f"noise_multiplier is {self.noise_multiplier}; it must be finite and not negative.")
        if self.triangle and self.mechanism != "gaussian":
            raise ValueError("triangle is given; only Gaussian noise has a narrower part off the diagonal.")
        check_sample(self.sample)
        if self.sample is not None and (self.mechanism, self.relation) != ("gaussian", "replace"):
            raise ValueError("sample is given; only the Gaussian mechanism for replacing a row is composed with one.")

    @property
    def scale(self) -> float:
        """The standard deviation of Gaussian noise, the parameter of Laplace noise; units of the array."""
        return self.sensitivity * self.noise_multiplier

    @property
    def standard_deviation(self) -> float:
        """The standard deviation of the noise, whatever the mechanism; units of the array."""
        return self.scale if self.mechanism == "gaussian" else self.scale * math.sqrt(2)

    @property
    def norm(self) -> str:
        """The norm in which the sensitivity is measured."""
        return "L2" if self.mechanism == "gaussian" else "L1"

    def event(self, *, sampled: bool = False) -> dp_accounting.DpEvent:
        """Return the event that dp-accounting composes.

        Parameters
        ----------
        sampled : bool, default=False
            Whether the event says that the rows are a sample, which not every accountant can compose. Without, the
            event is one that protects less.
        """
        return event_of(self.mechanism, self.noise_multiplier, self.sample if sampled else None)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Undo :meth:`to_dict`."""
        sample = fields.get("sample")  # a list, where it has been JSON
        return cls(**{**fields, "sample": None if sample is None else tuple(sample)})


def event_of(mechanism: Mechanism, noise_multiplier: float, sample: tuple[int, int] | None) -> dp_accounting.DpEvent:
    """Return the event that dp-accounting composes; the parameters are those of :class:`Release`."""
    import dp_accounting

    if mechanism == "laplace":
        return dp_accounting.LaplaceDpEvent(noise_multiplier)
    event = dp_accounting.GaussianDpEvent(noise_multiplier)
    if sample is None or 2 * sample[0] >= sample[1]:
        return event  # little is gained from half of the rows or more, and it takes seconds to find
    return dp_accounting.SampledWithoutReplacementDpEvent(sample[1], sample[0], event)


def on_the_same_rows(releases: Iterable[Release]) -> list[Release]:
    """Return what the releases of one reply are together, free of units, for composition with those of other replies.

    Arrays that depend on one sample of the rows are one Gaussian release: a row that was drawn is in all of them, and
    two releases of samples of their own would cost less.
    """
    multipliers: dict[tuple[Mechanism, Relation, tuple[int, int] | None], list[float]] = {}
    for release in releases:
        key = (release.mechanism, release.relation, release.sample)
        multipliers.setdefault(key, []).append(release.noise_multiplier)
    together = []
    for (mechanism, relation, sample), found in multipliers.items():
        of_sample = (
            [joint_multiplier((multiplier, 1) for multiplier in found)]
            if sample is not None and len(found) > 1
            else found
        )
        together += [Release(mechanism, 1.0, multiplier, "", relation, sample) for multiplier in of_sample]
    return together


def joint_multiplier(multipliers: Iterable[tuple[float, int]]) -> float:
    """Return the multiplier of the Gaussian release that protects as much as several together.

    Parameters
    ----------
    multipliers : iterable of tuple of (float, int)
        The multipliers, and how many releases have each.
    """
    found = list(multipliers)
    smallest = min(multiplier for multiplier, _ in found)
    if smallest == 0:
        return 0.0
    return smallest / math.sqrt(math.fsum(count * (smallest / multiplier) ** 2 for multiplier, count in found))


def check_sample(sample: tuple[int, int] | None) -> None:
    """Raise a ValueError unless there is no sample, or one of at least a row."""
    if sample is not None and not 1 <= sample[0] <= sample[1]:
        raise ValueError(f"sample is {sample}; it must be how many rows are drawn, 1 at least, and of how many.")
