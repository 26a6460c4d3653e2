"""What leaves the clients and what protects it, strategy by strategy, in the words of the privacy reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flower_fedclust.harness.pages import plural
from flower_fedclust.harness.report.data import ComparisonResults, TrialResult
from flower_fedclust.privacy.releases import Release
from flower_fedclust.privacy.report import PLACE_SENTENCES, Message, PrivacyReport

#: What the privacy report calls each kind of message, from the worst to the harmless.
UNPROTECTED = "unprotected"
PROTECTED = "protected by noise"
DERIVED = "computed from nothing but what is protected"
HARMLESS = "independent of the values of the rows"
_COVERED, _IN_PART, _NOTHING_COVERED = "The whole run is covered", "Covered in part", "No guarantee"
_UNKNOWN = "Not known"
_EXPLAINED = {UNPROTECTED: "no mechanism covers it", DERIVED: "it costs no more"}

#: Task, content, how fine, and status.
_Kind = tuple[str, str, str, str]


@dataclass(frozen=True)
class Reported:
    """A trial and its privacy report."""

    trial: TrialResult
    report: PrivacyReport

    def status(self, message: Message) -> str:
        """Return the part of the report in which a message stands."""
        if message in self.report.unprotected:
            return UNPROTECTED
        if message.is_protected:
            return PROTECTED
        return DERIVED if message.post_processing and not message.harmless else HARMLESS

    @property
    def kinds(self) -> dict[_Kind, list[Message]]:
        """The messages by kind, those of repeated rounds together."""
        found: dict[_Kind, list[Message]] = {}
        for message in self.report.messages:
            found.setdefault((message.task, message.content, message.detail, self.status(message)), []).append(message)
        return found


@dataclass(frozen=True)
class SentMessage:
    """A kind of message of a strategy, and what protects it."""

    rounds: str
    task: str
    content: str
    detail: str
    status: str
    protection: str

    @property
    def class_(self) -> str:
        """The look of its status."""
        return {UNPROTECTED: "open", PROTECTED: "covered"}.get(self.status, "neutral")


@dataclass(frozen=True)
class PrivacyGroup:
    """The trials of a strategy that sent the same kinds of messages with the same protection."""

    strategy: str
    id: str = ""
    which: str = ""  #: Which trials of the strategy these are, if there are others.
    trials: Sequence[Reported] = ()

    @property
    def kind(self) -> str:
        """How much of the runs is covered."""
        if not self.trials:
            return _UNKNOWN
        if all(one.trial.text("covers_everything").lower() == "true" for one in self.trials):
            return _COVERED
        return _IN_PART if any(one.report.releases for one in self.trials) else _NOTHING_COVERED

    @property
    def guarantees(self) -> dict[float | None, str]:
        """The guarantees as the reports state them, one a budget; others may differ in the digits of epsilon."""
        first: dict[float | None, str] = {}
        for one in self.trials:
            first.setdefault(one.trial.epsilon, str(one.trial.privacy.get("guarantee", "")))
        return first

    @property
    def unprotected(self) -> list[str]:
        """What leaves the clients unprotected."""
        return self._contents(UNPROTECTED)

    @property
    def protected(self) -> list[str]:
        """What leaves them protected by noise."""
        return self._contents(PROTECTED)

    @property
    def caption(self) -> str:
        """What the table of messages shows."""
        where = f", as in {plural(len(self.trials) - 1, 'run')} more" if len(self.trials) > 1 else ""
        return f"{self.strategy}: what leaves each client, in {self.trials[0].trial.key}{where}."

    @property
    def messages(self) -> list[SentMessage]:
        """Every kind of message, as the first trial sent it."""
        return [
            SentMessage(_rounds([one.round for one in messages]), *kind, self._protection(kind))
            for kind, messages in self.trials[0].kinds.items()
        ]

    @property
    def about(self) -> list[str]:
        """What is to be said of all messages."""
        example = self.trials[0]
        about = []
        if neighbours := example.trial.privacy.get("neighbouring_relation"):
            about.append(f"Neighbouring data sets differ in {neighbours}.")
        if example.report.releases and example.report.noise in PLACE_SENTENCES:
            about.append(PLACE_SENTENCES[example.report.noise])
        return about + list(dict.fromkeys(note for one in self.trials for note in one.report.notes))

    def _contents(self, status: str) -> list[str]:
        kinds = [kind for one in self.trials for kind in one.kinds]
        return list(dict.fromkeys(f"{content} ({detail})" for _, content, detail, kind in kinds if kind == status))

    def _protection(self, kind: _Kind) -> str:
        """Return how a kind of message is protected; the noise differs between budgets."""
        releases: dict[float | None, Release] = {}
        for one in self.trials:
            release = one.kinds[kind][0].release
            if release is not None and release.noise_multiplier > 0:
                releases.setdefault(one.trial.epsilon, release)
        status = kind[3]
        if status != PROTECTED or not releases:
            return _EXPLAINED.get(status, "")
        noise = "; ".join(
            f"noise multiplier {one.noise_multiplier:.4g}, scale {one.scale:.4g}"
            + (f" at epsilon {epsilon:g}" if epsilon is not None and len(releases) > 1 else "")
            for epsilon, one in releases.items()
        )
        first = next(iter(releases.values()))
        sample = "" if first.sample is None else f", on {first.sample[0]} rows drawn from at least {first.sample[1]}"
        return (
            f"{first.mechanism.capitalize()} mechanism, {first.norm} sensitivity {first.sensitivity:.4g} "
            f"({first.bound}), {noise}{sample}"
        )


def privacy_groups(comparison: ComparisonResults) -> dict[str, list[PrivacyGroup]]:
    """Return the strategies by how much of their runs is covered."""
    found: dict[str, list[PrivacyGroup]] = {one: [] for one in (_COVERED, _IN_PART, _NOTHING_COVERED, _UNKNOWN)}
    for number, name in enumerate(comparison.strategies):
        groups = _groups(comparison.trials, name)
        made = [
            PrivacyGroup(name, f"privacy-{number}-{index}", _which(group, groups), group)
            for index, group in enumerate(groups)
        ]
        for one in made or [PrivacyGroup(name)]:
            found[one.kind].append(one)
    return {kind: groups for kind, groups in found.items() if groups}


def _groups(trials: Sequence[TrialResult], strategy: str) -> list[list[Reported]]:
    """Return the trials of a strategy in groups that sent the same kinds of messages with the same protection."""
    reported = [
        Reported(trial, report)
        for trial in sorted(trials, key=lambda one: one.epsilon or float("inf"))
        if trial.is_done and trial.strategy == strategy and (report := trial.privacy_report) is not None
    ]
    groups: dict[frozenset[_Kind], list[Reported]] = {}
    for one in reported:
        groups.setdefault(frozenset(one.kinds), []).append(one)
    return list(groups.values())


def _which(group: Sequence[Reported], groups: Sequence[Sequence[Reported]]) -> str:
    """Return which trials belong to this group, if there is more than one group."""
    if len(groups) == 1:
        return ""
    budgets = dict.fromkeys(one.trial.epsilon for one in group)
    numbers = ", ".join(f"{epsilon:g}" for epsilon in budgets if epsilon is not None)
    text = " or ".join(filter(None, [f"epsilon {numbers}" if numbers else "", "no epsilon" if None in budgets else ""]))
    if any(one.trial.epsilon in budgets for other in groups if other is not group for one in other):
        text += " on " + ", ".join(dict.fromkeys(one.trial.text("data") for one in group))
    return text


def _rounds(rounds: Sequence[int]) -> str:
    if len(rounds) > 2 and list(rounds) == list(range(rounds[0], rounds[0] + len(rounds))):
        return f"{rounds[0]} to {rounds[-1]}"
    return ", ".join(map(str, dict.fromkeys(rounds))) if len(rounds) <= 6 else f"{len(set(rounds))} of them"
