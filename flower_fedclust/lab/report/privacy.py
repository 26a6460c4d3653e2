"""What leaves the clients and what protects it, strategy by strategy, in the words of the privacy reports."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flower_fedclust.lab.report.data import ComparisonResults, TrialResult
from flower_fedclust.lab.report.markup import NOTHING, Html, bullets, details, joined, plural, table, tag
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


def privacy_section(comparison: ComparisonResults) -> Html:
    """Return, folded by how much is covered, a table of the strategies and for each of them one of its messages."""
    rows: dict[str, list[list[object]]] = {one: [] for one in (_COVERED, _IN_PART, _NOTHING_COVERED, _UNKNOWN)}
    parts: dict[str, list[Html]] = {}
    for number, name in enumerate(comparison.strategies):
        groups = _groups(comparison.trials, name)
        heading = Html(html.escape(name))
        if not groups:
            rows[_UNKNOWN].append([heading, "No run of it is done, so nothing is known.", NOTHING, NOTHING])
            continue
        for group in groups:
            which = _which(group, groups)
            rows[_kind(group)].append(
                [
                    joined([heading, tag("em", which) if which else None]),
                    _guarantees(group),
                    bullets(_contents(group, UNPROTECTED)) or "nothing that depends on the rows",
                    bullets(_contents(group, PROTECTED)) or "nothing",
                ]
            )
        parts.setdefault(_kind(groups[0]), []).append(_strategy_part(name, groups, f"privacy-{number}"))
    headings = ["strategy", "guarantee", "leaves the clients unprotected", "leaves them protected by noise"]
    return joined(
        details(
            joined([tag("b", kind), ": ", ", ".join(dict.fromkeys(str(row[0]).partition("<")[0] for row in found))]),
            table(f"{kind}.", headings, found, class_="prose", identifier=f"privacy-summary-{number}"),
            *parts.get(kind, []),
        )
        for number, (kind, found) in enumerate(rows.items())
        if found
    )


def _kind(group: Sequence[Reported]) -> str:
    if all(one.trial.text("covers_everything").lower() == "true" for one in group):
        return _COVERED
    return _IN_PART if any(one.report.releases for one in group) else _NOTHING_COVERED


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


def _guarantees(group: Sequence[Reported]) -> Html:
    """Return the guarantees as the reports state them, one a budget; others may differ in the digits of epsilon."""
    first: dict[float | None, str] = {}
    for one in group:
        first.setdefault(one.trial.epsilon, str(one.trial.privacy.get("guarantee", "")))
    if len(first) == 1:
        return joined(first.values())
    names = {epsilon: "no epsilon" if epsilon is None else f"epsilon {epsilon:g}" for epsilon in first}
    return tag("ul", *(tag("li", tag("b", names[one]), f": {sentence}") for one, sentence in first.items()))


def _contents(group: Sequence[Reported], status: str) -> dict[str, None]:
    kinds = [kind for one in group for kind in one.kinds]
    return dict.fromkeys(f"{content} ({detail})" for _, content, detail, kind in kinds if kind == status)


def _strategy_part(name: str, groups: Sequence[Sequence[Reported]], identifier: str) -> Html:
    shown = []
    for number, group in enumerate(groups):
        example = group[0]
        where = f", as in {plural(len(group) - 1, 'run')} more" if len(group) > 1 else ""
        rows = [
            [_rounds([one.round for one in messages]), *kind[:3], _protection(kind[3], _by_epsilon(group, kind))]
            for kind, messages in example.kinds.items()
        ]
        caption = f"{name}: what leaves each client, in {example.trial.key}{where}."
        headings = ["rounds", "asked for", "what is sent", "how fine", "what protects it"]
        shown.append(table(caption, headings, rows, class_="prose", identifier=f"{identifier}-{number}"))
        about = []
        if neighbours := example.trial.privacy.get("neighbouring_relation"):
            about.append(f"Neighbouring data sets differ in {neighbours}.")
        if example.report.releases and example.report.noise in PLACE_SENTENCES:
            about.append(PLACE_SENTENCES[example.report.noise])
        about += dict.fromkeys(note for one in group for note in one.report.notes)
        shown.append(joined([bullets(about)]))
    return details(joined([tag("b", name), ": every message"]), *shown)


def _by_epsilon(group: Sequence[Reported], kind: _Kind) -> dict[float | None, Release]:
    """Return the release that protects a kind of message, one a budget."""
    found: dict[float | None, Release] = {}
    for one in group:
        release = one.kinds[kind][0].release
        if release is not None and release.noise_multiplier > 0:
            found.setdefault(one.trial.epsilon, release)
    return found


def _protection(status: str, releases: Mapping[float | None, Release]) -> Html:
    kind = {UNPROTECTED: "open", PROTECTED: "covered"}.get(status, "neutral")
    text = tag("strong", status, class_=f"status {kind}")
    if status != PROTECTED or not releases:
        return joined([text, f" {_EXPLAINED[status]}" if status in _EXPLAINED else None])
    noise = "; ".join(
        f"noise multiplier {one.noise_multiplier:.4g}, scale {one.scale:.4g}"
        + (f" at epsilon {epsilon:g}" if epsilon is not None and len(releases) > 1 else "")
        for epsilon, one in releases.items()
    )
    first = next(iter(releases.values()))
    sample = "" if first.sample is None else f", on {first.sample[0]} rows drawn from at least {first.sample[1]}"
    return joined(
        [
            text,
            f" {first.mechanism.capitalize()} mechanism, {first.norm} sensitivity {first.sensitivity:.4g} "
            f"({first.bound}), {noise}{sample}",
        ]
    )


def _rounds(rounds: Sequence[int]) -> str:
    if len(rounds) > 2 and list(rounds) == list(range(rounds[0], rounds[0] + len(rounds))):
        return f"{rounds[0]} to {rounds[-1]}"
    return ", ".join(map(str, dict.fromkeys(rounds))) if len(rounds) <= 6 else f"{len(set(rounds))} of them"
