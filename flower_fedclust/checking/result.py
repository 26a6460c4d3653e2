"""What an audit found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flower_fedclust.checking.coverage import Fact
from flower_fedclust.checking.statistics import FALSE_ALARM, OF_NOISE, Loss, NoiseTest
from flower_fedclust.privacy.releases import Mechanism, NoisePlace, PrivacyUnit, Release

Verdict = Literal["sound", "broken", "not shown", "no guarantee"]

#: An audit has shown something of the noise if it would have noticed noise of less than this part of its scale.
NOTICED = 0.6

#: And if it would have noticed noise that is cut off at so many deviations, or comes from a source of so few bits.
CUT_NOTICED, BITS_NOTICED = 3.0, 16.0


@dataclass(frozen=True)
class AuditedRelease:
    """What was found about one release, over all rounds that make it.

    Parameters
    ----------
    rounds : tuple of int
    task, content : str
    release : Release
        Of the last of these rounds.
    moved : float
        How far neighbours moved the array, over how far its release says that they can; the largest.
    is_too_far : bool
        Whether that is more than 1, by as little as it may be.
    neighbours : str
        Which moved it farthest.
    n_neighbours : int
        How many pairs there were.
    noise : NoiseTest
    """

    rounds: tuple[int, ...]
    task: str
    content: str
    release: Release
    moved: float
    is_too_far: bool
    neighbours: str
    n_neighbours: int
    noise: NoiseTest

    def wrong(self, level: float) -> list[str]:
        """Return what is wrong, a clause each; noise is wrong where its p-value is below a level."""
        where = f"'{self.content}' in {_rounds(self.rounds)}"
        found = []
        if self.is_too_far:
            times = f"{self.moved:.6g} times" if self.moved > 1.00001 else "a little more than"
            found.append(f"{where} moves by {times} its sensitivity ({self.neighbours})")
        found += [
            f"the noise of {where} is {how} ({self.noise.factor:.3g} times as wide)"
            for how, p_value in self.noise.p_values.items()
            if p_value < level
        ]
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {
            "rounds": list(self.rounds),
            "task": self.task,
            "content": self.content,
            "release": self.release.to_dict(),
            "moved": self.moved,
            "is_too_far": self.is_too_far,
            "neighbours": self.neighbours,
            "n_neighbours": self.n_neighbours,
            "noise_numbers": self.noise.n_numbers,
            "noise_factor": None if math.isnan(self.noise.factor) else self.noise.factor,
            "noise_p_values": dict(self.noise.p_values),
        }


@dataclass(frozen=True)
class AuditResult:
    """What an audit found; printed, it is a page.

    Parameters
    ----------
    strategy : str
    epsilon, delta : float or None
        What is promised.
    unit : "record" or "client"
    place : "server", "clients" or "local"
        Where the noise is drawn.
    releases : tuple of AuditedRelease
    loss : Loss or None
        Of the neighbours that are told apart best.
    epsilon_counted : float
        What the releases compose to, counted by the audit.
    findings : tuple of str
        What is broken, besides what the releases and the loss say, a clause each.
    facts : tuple of Fact
    unprotected : tuple of str
        What nothing covers, as the report says.
    covers_everything : bool
    source_bits : float
        Noise from a source of so few bits would have been noticed.
    tails : dict of str to float
        By mechanism: noise cut off at so many deviations would have been noticed.
    n_runs : int
        How often the noise was drawn.
    not_examined : tuple of str
        What there was no time for, with how much of it.
    seconds : float
    false_alarm : float, default=0.001
        How often a sound strategy may be called broken.
    """

    strategy: str
    epsilon: float | None
    delta: float | None
    unit: PrivacyUnit
    place: NoisePlace
    releases: tuple[AuditedRelease, ...]
    loss: Loss | None
    epsilon_counted: float
    findings: tuple[str, ...]
    facts: tuple[Fact, ...]
    unprotected: tuple[str, ...]
    covers_everything: bool
    source_bits: float
    tails: Mapping[Mechanism, float]
    n_runs: int
    not_examined: tuple[str, ...]
    seconds: float
    false_alarm: float = FALSE_ALARM

    @property
    def level(self) -> float:
        """Below which a p-value is called an alarm, so that all together rarely call a sound strategy broken."""
        n_tests = sum(len(release.noise.p_values) for release in self.releases)
        return self.false_alarm * OF_NOISE / max(n_tests, 1)

    @property
    def broken(self) -> list[str]:
        """All that is broken, a clause each; empty where nothing was found."""
        found = [clause for release in self.releases for clause in release.wrong(self.level)]
        if self.loss is not None:
            if self.loss.epsilon_at_least > self.loss.epsilon:
                found.append(
                    f"neighbours can be told apart: epsilon is at least {self.loss.epsilon_at_least:.4g}, and "
                    f"{self.loss.epsilon:g} is promised ({self.loss.pair})"
                )
            if self.loss.delta_at_least > self.loss.delta:
                found.append(
                    f"at epsilon {self.loss.epsilon:g} delta is at least {self.loss.delta_at_least:.3g}, and "
                    f"{self.loss.delta:g} is promised ({self.loss.pair})"
                )
        return [*found, *self.findings]

    @property
    def missing(self) -> list[str]:
        """What there was not enough time or noise for, a clause each; what was not examined is one."""
        found = []
        if self.not_examined:
            more = len(self.not_examined) - 1
            found.append(f"the time was up before {self.not_examined[0]}" + (f", and {more} more" if more else ""))
        for release in self.releases:
            where = f"'{release.content}' in {_rounds(release.rounds)}"
            if release.n_neighbours == 0:
                found.append(f"no neighbours were compared for {where}")
            narrow = release.noise.smallest_factor(self.level, release.release.mechanism)
            if narrow < NOTICED:
                found.append(f"too few runs: noise of {where} that is {narrow:.2g} times as wide could go unnoticed")
        if self.releases and self.loss is None:
            found.append("no neighbours moved anything, so that no privacy loss was measured")
        for mechanism, reach in self.tails.items():
            if reach < CUT_NOTICED:
                found.append(f"too few runs: {mechanism} noise cut off at {reach:.2g} deviations could go unnoticed")
        if self.releases and self.source_bits < BITS_NOTICED:
            found.append(f"too few runs: noise from a source of {self.source_bits:.0f} bits could go unnoticed")
        return found

    @property
    def verdict(self) -> Verdict:
        """In one or two words."""
        if self.broken:
            return "broken"
        if not self.releases:
            return "no guarantee"
        return "not shown" if self.missing else "sound"

    @property
    def sentence(self) -> str:
        """The verdict in one line."""
        if self.verdict == "broken":
            more = len(self.broken) - 1
            return f"broken: {self.broken[0]}" + (f"; and {more} more." if more else ".")
        if self.verdict == "no guarantee":
            return "no guarantee is made, and nothing was found that the report leaves out."
        if self.verdict == "not shown":
            return f"not shown: {self.missing[0]}."
        if not self.covers_everything:
            return (
                f"sound as far as seen, for what noise covers; nothing covers {len(self.unprotected)} kinds of message."
            )
        return "sound as far as seen."

    def to_dict(self) -> dict[str, Any]:
        """Return all of it, ready for JSON."""
        return {
            "strategy": self.strategy,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "broken": self.broken,
            "missing": self.missing,
            "not_examined": list(self.not_examined),
            "epsilon": self.epsilon,
            "delta": self.delta,
            "unit": self.unit,
            "noise": self.place,
            "epsilon_counted": self.epsilon_counted,
            "releases": [release.to_dict() for release in self.releases],
            "loss": None
            if self.loss is None
            else {
                "neighbours": self.loss.pair,
                "sees_noise": self.loss.sees_noise,
                "n_runs": self.loss.n_runs,
                "largest": self.loss.largest,
                "epsilon_at_least": self.loss.epsilon_at_least,
                "most_that_can_be_shown": self.loss.most_that_can_be_shown,
                "epsilon_of_these_neighbours": self.loss.expected,
                "delta_seen": self.loss.delta_seen,
                "delta_at_least": self.loss.delta_at_least,
                "delta_at_most": self.loss.delta_at_most,
            },
            "facts": [{"what": fact.what, "covered": fact.covered} for fact in self.facts],
            "unprotected": list(self.unprotected),
            "covers_everything": self.covers_everything,
            "n_runs": self.n_runs,
            "source_bits": self.source_bits,
            "tails": dict(self.tails),
            "false_alarm": self.false_alarm,
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        lines = [f"Audit of {self.strategy}: {self.sentence}", ""]
        lines += [f"  broken: {clause}." for clause in self.broken[1:]]
        lines += [f"  not shown: {clause}." for clause in self.missing[self.verdict == "not shown" :]]
        if self.not_examined:
            lines += ["Not examined, as the time was up:", *(f"  {one}" for one in self.not_examined), ""]
        if self.epsilon is not None and self.releases:
            lines.append(
                f"Promised: epsilon {self.epsilon:g}, delta {self.delta:g} per {self.unit}, noise by {self.place}. "
                f"Counted again, the releases compose to {self.epsilon_counted:.4g}."
            )
        if self.releases:
            lines += ["", f"{'moved':>9} {'noise':>7} {'numbers':>8}  release"]
            lines += [
                f"{release.moved:9.6f} {release.noise.factor:7.3f} {release.noise.n_numbers:8d}  {release.content} "
                f"({_rounds(release.rounds)}, {release.release.mechanism}, {release.release.sensitivity:.4g})"
                for release in self.releases
            ]
            lines += [
                "  (moved: over the sensitivity, which is the last number; noise: its width over the declared one)"
            ]
            if self.tails:
                reach = " or ".join(f"{reach:.2f} ({kind})" for kind, reach in self.tails.items())
                lines.append(
                    f"All noise together: it would have been noticed if it were cut off at {reach} deviations, or came "
                    f"from a source of {self.source_bits:.0f} bits."
                )
        if (loss := self.loss) is not None:
            how = "from the noise that was drawn" if loss.sees_noise else "from outputs alone"
            lines += [
                "",
                f"Privacy loss of {loss.n_runs} runs, {how}; neighbours: {loss.pair}.",
                f"  largest {loss.largest:.3f}; epsilon at least {loss.epsilon_at_least:.3f} at "
                f"{100 * (1 - self.false_alarm):.10g}% (so many runs show {loss.most_that_can_be_shown:.3f} at most)",
                f"  these neighbours, through the declared noise: {loss.expected:.3f}; promised {loss.epsilon:g}",
                f"  delta at epsilon {loss.epsilon:g}: seen {loss.delta_seen:.2g}, at most {loss.delta_at_most:.2g}; "
                f"promised {loss.delta:g}",
            ]
        lines += ["", "Beside the releases:"]
        lines += [f"  {fact.what}: {fact.covered}" for fact in self.facts]
        lines += [f"  unprotected, as the report says: {content}" for content in self.unprotected]
        lines += ["", f"{self.n_runs} draws, {self.seconds:.1f} seconds."]
        return "\n".join(lines).replace("\n\n\n", "\n\n")

    __repr__ = __str__  # what a notebook shows

    def figure(self, path: str | Path) -> Path:
        """Draw how often a run loses more than so much privacy, beside what is promised, as a PNG.

        Returns
        -------
        Path
            Absolute.

        Raises
        ------
        ValueError
            If no privacy loss was measured.
        """
        from matplotlib.figure import Figure

        if self.loss is None:
            raise ValueError(f"{self.strategy} has no measured privacy loss to draw.")
        loss = self.loss
        figure = Figure(figsize=(7.0, 4.2), dpi=150, layout="constrained", facecolor="white")
        axes = figure.subplots()
        for losses, label in ((loss.of_one, "runs on one table"), (-loss.of_other, "runs on the other")):
            ordered = np.sort(losses)
            axes.step(ordered, 1.0 - np.arange(len(ordered)) / len(ordered), where="post", label=label)
        axes.axvline(loss.epsilon, color="black", linestyle="--", linewidth=1)
        promised, across = f"promised: {loss.epsilon:g} ", axes.get_xaxis_transform()
        axes.text(loss.epsilon, 0.5, promised, transform=across, rotation=90, ha="right", va="center")
        axes.axvline(loss.epsilon_at_least, color="tab:red", linewidth=1, label="epsilon is at least this")
        axes.axhline(loss.delta, color="0.6", linestyle=":", linewidth=1, label=f"delta {loss.delta:g}")
        axes.set_xlim(right=1.05 * max(loss.largest, loss.epsilon))
        axes.set_yscale("log")
        axes.set_ylim(min(loss.delta, 1.0 / loss.n_runs) / 2, 1.5)
        axes.set_xlabel("privacy loss of a run")
        axes.set_ylabel("part of the runs that lose more")
        axes.set_title(f"{self.strategy}: {self.verdict}", loc="left")
        axes.legend(frameon=False, fontsize=8, loc="center left")
        path = Path(path).absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
        return path


def _rounds(rounds: Sequence[int]) -> str:
    return f"round {rounds[0]}" if len(rounds) == 1 else f"rounds {rounds[0]} to {rounds[-1]}"
