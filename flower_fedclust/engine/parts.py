"""Parts of a privacy budget: the noise that a part pays for, and how much of the plan has been spent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from flower_fedclust.engine.by_row import ByRow, Finisher
from flower_fedclust.engine.rounds import Askable, ProtocolError, Question, Round, Sent
from flower_fedclust.exact.terms import Bound
from flower_fedclust.privacy.accounting import Plan, Share
from flower_fedclust.privacy.releases import Mechanism, PrivacyUnit, Relation, Release
from flower_fedclust.privacy.report import Message


@dataclass(frozen=True)
class Part:
    """A part of a strategy's privacy budget.

    Parameters
    ----------
    answers : Askable, or tuple of Askable
        The answers whose noise this part pays for.
    fraction : float
        The part's epsilon relative to the other parts; the fractions need not add up to 1.
    at_most : int, default=1
        The largest number of rounds that use this part; they share the fraction equally.
    mechanism : "gaussian" or "laplace", default="gaussian"
    sample : tuple of two int, optional
        As in :class:`~flower_fedclust.privacy.releases.Release`.
    """

    answers: Askable[..., Any] | tuple[Askable[..., Any], ...]
    fraction: float
    at_most: int = 1
    mechanism: Mechanism = "gaussian"
    sample: tuple[int, int] | None = None
    #: The answers, as a tuple.
    askables: tuple[Askable[..., Any], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        askables = self.answers if isinstance(self.answers, tuple) else (self.answers,)
        object.__setattr__(self, "askables", askables)


def relation_of(parts: Mapping[str, Part]) -> Relation:
    """Return the strongest relation that all parts support."""
    answers = [answer for part in parts.values() for answer in part.askables]
    only = any(_only_replaced(answer, answer.answer.sends) for answer in answers)
    return "replace" if only else "add-or-remove"


def _only_replaced(answer: Askable[..., Any], sends: Iterable[Sent]) -> bool:
    """Return whether arrays can hide the replacement of a row, but not its addition or removal."""
    return answer.relation == "replace" or any(sent.per == "row" for sent in sends)


def shares_of(parts: Mapping[str, Part], relation: Relation) -> dict[str, Share]:
    """Return each part as a :class:`Share`, the form that the accountant reads; unused parts are left out."""
    return {
        name: Share(part.mechanism, part.fraction, part.at_most, relation, part.sample)
        for name, part in parts.items()
        if part.at_most > 0
    }


def release_of(
    moved: Bound,
    name: str,
    share: Share,
    multiplier: float,
    unit: PrivacyUnit,
    sites_per_subject: int = 1,
) -> Release:
    """Return the noise of one array; the sensitivity is that of one site times ``sites_per_subject``."""
    replaced, bound = share.relation == "replace", moved.of(share.mechanism, share.relation, unit)
    if not 0 < bound < math.inf:
        raise ProtocolError(
            f"part '{name}' of the budget pays for {share.mechanism} noise, and nothing bounds how much one {unit} "
            f"that is {'replaced' if replaced else 'added or removed'} changes the array."
        )
    words = f"{moved.words}, and one is replaced" if replaced else moved.words
    # A bound made of roots and products may have been rounded down; the sensitivity must not be below the true bound.
    sensitivity = sites_per_subject * bound * (1.0 + 2.0**-50)
    triangle = moved.triangle and share.mechanism == "gaussian"
    return Release(
        share.mechanism,
        sensitivity,
        multiplier,
        words,
        share.relation,
        share.sample,
        share=name,
        triangle=triangle,
    )


def releases_of_parts(
    question: Question,
    moved: Sequence[Bound] | None,
    parts: Sequence[str | None],
    plan: Plan | None,
) -> tuple[Release | None, ...]:
    """Return the noise of the arrays of one answer. Only here is noise computed from a bound and a budget."""
    if plan is None:
        return (None,) * len(parts)
    named = [name for name in parts if name is not None]
    unknown = [name for name in named if name not in plan.shares]
    if unknown or len(set(named)) < len(named):
        raise ProtocolError(
            f"a round names part '{unknown[0]}', which is not in the run's plan."
            if unknown
            else "two arrays of a round name one part of the budget; give each a part of its own."
        )
    if moved is None or len(moved) != len(parts):
        raise ProtocolError(
            f"'{question.answer.task}' names parts of the budget, and nothing bounds what it sends."
        )
    if plan.unit == "subject":
        check_adds_parts(question)
    paid = [
        sent for sent, name in zip(question.answer.sends, parts, strict=True) if name is not None
    ]
    only = _only_replaced(question.asks, paid)
    if only and any(plan.shares[name].relation != "replace" for name in named):
        raise ProtocolError(
            f"'{question.answer.task}' can only be private for rows that are replaced."
        )
    return tuple(
        None
        if name is None
        else release_of(
            bound,
            name,
            plan.shares[name],
            plan.multipliers[name],
            plan.unit,
            plan.sites_per_subject,
        )
        for bound, name in zip(moved, parts, strict=True)
    )


def check_adds_parts(question: Question) -> None:
    """Raise a ProtocolError unless an answer is a plain sum over rows, so that a row can be weighted by its subject."""
    if (
        not isinstance(question.asks, ByRow)
        or isinstance(question.asks, Finisher)
        or question.finish is not None
    ):
        raise ProtocolError(
            f"'{question.answer.task}' is no sum over rows, so that nothing bounds how much one person with several "
            "rows changes it; choose a strategy of sums over rows, or make one row for each person first."
        )


@dataclass(frozen=True)
class Budget:
    """The budget of a run as a value: its parts, and the noise that they pay for.

    A run makes two: an announced budget before clients enrol, and the frozen one once they have enrolled.
    """

    parts: Mapping[str, Part]
    plan: Plan

    @cached_property
    def text(self) -> str:
        """The plan as JSON, for messages."""
        return self.plan.to_json()

    def check_pays_for(self, round_: Round) -> None:
        """Raise a ProtocolError if a round names a part that pays for other answers."""
        for name in round_.parts:
            if (
                name is not None
                and name in self.parts
                and round_.asks not in self.parts[name].askables
            ):
                raise ProtocolError(
                    f"part '{name}' of the budget does not pay for '{round_.task}'."
                )


class Spending:
    """A frozen budget, with a count of how often each client was asked for each share.

    Nothing that a run learns changes the plan, and no round may exceed it. So the epsilon of the report is at most the
    requested one, whatever a strategy does.
    """

    def __init__(self, budget: Budget) -> None:
        budget.plan.check()
        self.budget, self.plan = budget, budget.plan
        self._asked: Counter[tuple[str, str]] = Counter()

    def spend(self, task: str, releases: Iterable[Release | None], clients: Sequence[str]) -> None:
        """Count the releases of a round for the clients that are asked."""
        if self.plan.epsilon is None:
            return
        noisy = [
            release for release in releases if release is not None and release.noise_multiplier > 0
        ]
        for release in noisy:
            share = self.plan.shares.get(release.share)
            if (
                share is None
                or (share.mechanism, share.relation, share.sample)
                != (release.mechanism, release.relation, release.sample)
                or release.noise_multiplier < self.plan.multipliers[release.share]
            ):
                raise ProtocolError(
                    f"'{task}' has a release of '{release.share}' that the plan of the run does not have; name "
                    "a part that parts() names before the run begins."
                )
        names = [release.share for release in noisy]
        if len(set(names)) < len(names):
            raise ProtocolError(
                f"'{task}' has two releases of one share; a share pays for one array of a round."
            )
        for name in names:
            self._asked.update((client, name) for client in clients)
            if any(self._asked[client, name] > self.plan.shares[name].count for client in clients):
                raise ProtocolError(
                    f"'{task}' is asked more often than the plan of the run allows for '{name}': "
                    f"{self.plan.shares[name].count} times."
                )

    def go_on(self, messages: Iterable[Message], clients: Sequence[str]) -> None:
        """Count the releases of a round that was asked before the interruption; a round asked twice counts once."""
        for message in dict.fromkeys(messages):
            if message.release is not None:
                self._asked.update(
                    (client, message.release.share) for client in message.clients or clients
                )
