"""The privacy report: what left the clients, what protects it, and what protects nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from decimal import ROUND_CEILING, Context
from functools import cached_property
from typing import Any, Self

from flower_fedclust.privacy.accounting import (
    SAMPLING_PART,
    composed_epsilon,
    delta_of_composition,
    delta_of_sampling,
)
from flower_fedclust.privacy.releases import (
    NoisePlace,
    PrivacyUnit,
    Relation,
    Release,
    on_the_same_rows,
)

#: How neighboring data sets differ.
NEIGHBOR_SENTENCES: dict[tuple[PrivacyUnit, Relation], str] = {
    ("record", "add-or-remove"): (
        "one row of one client, added or removed (that a client has rows at all is not hidden)"
    ),
    ("client", "add-or-remove"): (
        "all that one client contributes, added or removed (that the client took part is not hidden)"
    ),
    ("subject", "add-or-remove"): (
        "all rows of one person at one client, added or removed (that a client has rows at all is not hidden)"
    ),
    ("subject", "replace"): (
        "all rows of one person at one client, replaced by another person's (how many rows a client has is not hidden)"
    ),
    (
        "record",
        "replace",
    ): "one row of one client, replaced by any other (how many rows a client has is not hidden)",
    (
        "client",
        "replace",
    ): "all rows of one client, replaced by as many others (how many it has is not hidden)",
}

#: For each unit, two texts for a person: the condition under which the guarantee covers them, and what it then hides.
YOURS: dict[PrivacyUnit, tuple[str, str]] = {
    "record": ("a row is yours", "your row"),
    "subject": ("you have rows at a site", "any of your rows"),
    "client": ("a client is you", "your data"),
}

#: Who adds the noise.
PLACE_SENTENCES: dict[NoisePlace, str] = {
    "server": (
        "The server adds the noise to the sum, or to each reply where it needs them one by one. It is trusted to add "
        "it, and to forget what it received before. The guarantee holds against everybody who sees only the model and "
        "whatever else the server publishes."
    ),
    "clients": (
        "Each client adds its share of the noise. The guarantee holds against a server that sees only the sum, "
        "that is, under secure aggregation; one client's reply alone carries only a share of the noise."
    ),
    "local": "Each client adds all the noise to its own reply, so that every reply is private by itself.",
}

#: How a message that noise covers leaves a site.
LEAVING_SENTENCES: dict[NoisePlace, str] = {
    "server": "Leaves each site without noise, and the server adds the noise before anybody else sees it:",
    "clients": "Leaves each site with its share of the noise, and is covered once all shares are added:",
    "local": "Leaves each site with noise that covers it:",
}

#: Facts that colluding clients learn.
COLLUSION_SENTENCES: dict[NoisePlace, str] = {
    "server": "Clients that collude learn no more about the others than the server publishes.",
    "clients": (
        "Clients that tell the server their shares of the noise take them away: only the noise of the others is left, "
        "and the guarantee is weaker. The same holds if the server itself plays some of the clients."
    ),
    "local": "Whoever colludes, nobody learns more about a client than its own replies say.",
}

#: Assumptions of every guarantee, and facts that no guarantee covers.
TRUST_SENTENCES = (
    "Each client is trusted to clip its own rows, and to run this software unchanged.",
    "Labels, metrics and costs in a result, and doubts that rest on them, are exact: each site computes them from its "
    "own rows, and no noise covers them. Do not publish them with the model.",
    "Sums are sums of integers, so rounding adds nothing to a sensitivity. Noise consists of integers, too. A part of "
    "delta covers how far it is from the noise that is accounted for.",
    "Before the noise, nothing is decided on a value that it covers: a reply is left out for its form, or for what no "
    "honest client can send. Not covered: when a client answers, how long it takes, and that it fails.",
)


@dataclass(frozen=True)
class Message:
    """One array, or one fact, that every client asked in a round sent to the server."""

    round: int  #: The Flower round, from 1.
    task: str  #: The task that the client was asked for.
    content: str  #: The content of the array, in words.
    detail: str  #: What there is one of: "sum over the clients", "one per client" or "one per row".
    #: The release that protects the message. None means that nothing does, unless the message is post-processing.
    release: Release | None = None
    #: Whether it was computed only from an earlier release of the same client, so that it costs no more.
    post_processing: bool = False
    #: Whether it is a number of rows. A guarantee about replaced rows, not added or removed ones, does not hide it.
    counts_rows: bool = False
    #: Whether it says nothing about a row (a name, the columns): listed, but not counted as unprotected.
    harmless: bool = False
    #: The clients that were asked, if not all were. The message does not depend on the others.
    clients: tuple[str, ...] | None = None
    #: The kind of the message: what the receiver would learn from it without noise.
    reveals: str = "sums"
    #: A bound on the total-variation distance of the drawn noise from the noise that is accounted for.
    variation: float = 0.0

    @property
    def is_protected(self) -> bool:
        """Whether noise of its own covers this message."""
        return self.release is not None and self.release.noise_multiplier > 0

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Self:
        """Create a message from its fields as JSON has them; others are left out."""
        release, clients = written.get("release"), written.get("clients")
        known = {one.name: written[one.name] for one in fields(cls) if one.name in written}
        known["release"] = None if release is None else Release.from_dict(release)
        return cls(**known | {"clients": None if clients is None else tuple(clients)})


@dataclass(frozen=True, repr=False)
class PrivacyReport:
    """The guarantee of a run, made from the rounds that ran.

    Parameters
    ----------
    strategy : str
    messages : sequence of Message
        Everything that left the clients, in order.
    requested_epsilon : float or None
        What the user asked for; None without noise.
    delta : float or None
    unit : "record", "subject", "client" or None
    noise : "server", "clients", "local" or None
    notes : sequence of str
        Sentences that a reader must know: public rows, a seed, assumptions.
    sites_per_subject : int, default=1
        At how many clients a person can have rows, for a guarantee per subject.
    """

    strategy: str
    messages: Sequence[Message]
    requested_epsilon: float | None = None
    delta: float | None = None
    unit: PrivacyUnit | None = None
    noise: NoisePlace | None = None
    notes: Sequence[str] = field(default_factory=tuple)
    sites_per_subject: int = 1

    @property
    def releases(self) -> list[Message]:
        """The messages that noise protects."""
        return [message for message in self.messages if message.is_protected]

    @property
    def unprotected(self) -> list[Message]:
        """The messages that depend on rows and that nothing protects."""
        return [
            message
            for message in self.messages
            if not (message.is_protected or message.post_processing or self._is_harmless(message))
        ]

    def _is_harmless(self, message: Message) -> bool:
        is_open = message.counts_rows and self.relation == "replace" and not message.is_protected
        return message.harmless or is_open

    @property
    def relation(self) -> Relation | None:
        """How neighboring data sets differ; None if there is no release."""
        return next(
            (message.release.relation for message in self.releases if message.release is not None),
            None,
        )

    @property
    def neighbors(self) -> str | None:
        """How neighboring data sets differ, in words; None if there is no guarantee."""
        return NEIGHBOR_SENTENCES[self.unit, self.relation] if self.unit and self.relation else None

    @cached_property
    def epsilon(self) -> float:
        """The epsilon of all releases, at delta; infinity if there is no release.

        It is the requested epsilon. It is larger only if the releases compose to more, which happens if the noise was
        not calibrated to a budget of the whole run. It does not become smaller if the run ends early, because noisy
        results may decide when a run ends.
        """
        if not self.releases or self.delta is None:
            return float("inf")
        return max(self.requested_epsilon or 0.0, self.composed_epsilon)

    @cached_property
    def composed_epsilon(self) -> float:
        """The epsilon that the releases of the run compose to; infinity if there is none.

        A client's rows are only in the messages that this client was asked for, so this is the largest epsilon of any
        client. It may be smaller than the requested epsilon. The smaller number is no promise, because noisy results
        may decide which releases are made.
        """
        if not self.releases or self.delta is None:
            return float("inf")
        delta = delta_of_composition(self.delta)
        return max(
            composed_epsilon(group, delta, near=self.requested_epsilon) for group in self._groups()
        )

    def epsilon_at_sites(self, n_sites: int) -> float:
        """Return the epsilon, at delta, of a person with rows at this many clients; infinity without a release.

        At each of these clients the person can move a sum by the sensitivity for one client. The noise was calibrated
        to ``sites_per_subject`` times this sensitivity.
        """
        if not self.releases or self.delta is None:
            return float("inf")
        if n_sites <= self.sites_per_subject:
            return self.epsilon
        part = self.sites_per_subject / n_sites
        delta = delta_of_composition(self.delta)
        found = []
        for group in self._groups():
            weaker = Counter[Release]()
            for release, count in group.items():
                weaker[replace(release, noise_multiplier=release.noise_multiplier * part)] += count
            found.append(composed_epsilon(weaker, delta))
        return max(self.epsilon, *found)

    @property
    def is_noise_exact_enough(self) -> bool:
        """Whether SAMPLING_PART of delta covers how far the drawn noise is from the noise that is accounted for."""
        if self.delta is None:
            return True
        variation = math.fsum(message.variation for message in self.messages)
        return delta_of_sampling(self.epsilon, variation) <= SAMPLING_PART * self.delta

    def _groups(self) -> list[Counter[Release]]:
        """Return each client's releases; leave out clients whose releases are all among another client's."""
        named = [name for message in self.releases for name in message.clients or ()]
        # A client that no message names has only the releases that all clients have, so it need not be counted.
        drawn = dict.fromkeys(named) or {"": None}
        replies: dict[str, dict[int, list[Release]]] = {name: {} for name in drawn}
        for message in self.releases:
            for name in drawn if message.clients is None else message.clients:
                if message.release is not None:
                    replies[name].setdefault(message.round, []).append(message.release)
        counted = [
            Counter(part for reply in rounds.values() for part in on_the_same_rows(reply))
            for rounds in replies.values()
        ]
        different = {frozenset(counts.items()): counts for counts in counted}.values()
        largest: list[Counter[Release]] = []
        for counts in sorted(different, key=Counter.total, reverse=True):
            if not any(counts <= larger for larger in largest):
                largest.append(counts)
        return largest

    @property
    def covers_everything(self) -> bool:
        """Whether every message that depends on rows is a release. Epsilon holds for the whole run only if so."""
        return bool(self.releases) and self.delta is not None and not self.unprotected

    def guarantee(self) -> str:
        """Return the guarantee in one or two sentences."""
        if not self.releases or self.delta is None:
            return "None. Nothing that depends on the rows is covered by a privacy mechanism."
        if not self.is_noise_exact_enough:
            return (
                f"None that can be stated: at epsilon {_at_most(self.epsilon)} and delta {self.delta:g} the noise that "
                "is drawn is too far from the noise that is accounted for. Such a budget protects nobody."
            )
        whom = f" per {self.unit}" if self.unit else ""
        statement = f"({_at_most(self.epsilon)}, {self.delta:g})-differential privacy{whom}"
        if self.covers_everything:
            return f"The whole run is covered by {statement}."
        return (
            f"The releases below compose to {statement}. The run as a whole has NO such guarantee: "
            f"{len(self.unprotected)} kind{'s' * (len(self.unprotected) > 1)} of message left the clients unprotected."
        )

    def meaning(self) -> str | None:
        """Return what the guarantee means for one person, as the odds of a guess; None without a guarantee.

        A guess between two equally likely hypotheses from an (epsilon, delta)-private output is right with probability
        ``(e^epsilon + delta) / (e^epsilon + 1)`` at most. A test with false positive rate a has a true positive rate of
        ``e^epsilon a + delta`` at most.
        """
        if (
            not self.releases
            or self.delta is None
            or not self.is_noise_exact_enough
            or not self.unit
        ):
            return None
        factor = math.exp(min(self.epsilon, 50.0))
        right = (factor + self.delta) / (factor + 1.0)
        odds = (factor + self.delta) / (1.0 - self.delta)
        found = min(1.0, factor * 0.01 + self.delta, 1.0 - (0.99 - self.delta) / factor)
        whose, what = YOURS[self.unit]
        asked = (
            f"whether {what} is in the data"
            if self.relation == "add-or-remove"
            else f"which of two values {what} has"
        )
        sentence = (
            f"If {whose}: think of somebody who knows everything else, sees all that is covered, and guesses {asked}. "
            f"That guess is right with a probability of at most {_at_most(100 * right, 3)}%, which is odds of "
            f"{_at_most(odds, 3)} to 1; tossing a coin gives 50%. A test that accuses 1 in 100 wrongly finds at most "
            f"{_at_most(100 * found, 3)} in 100."
        )
        if self.unit == "record":
            sentence += (
                " If k rows are yours, you are protected less: epsilon is k times as large, and delta "
                "k e^((k - 1) epsilon) times."
            )
        if self.unit == "subject":
            sentence += f" {self._at_more_sites()}"
        if not self.covers_everything:
            sentence += " None of this limits what is listed as unprotected."
        return sentence

    def _at_more_sites(self) -> str:
        """Say what the guarantee is for a person who has rows at more clients than it covers."""
        most = self.sites_per_subject
        known = "at one site" if most == 1 else f"at {most} sites at most"
        one, two = (
            f"{_at_most(self.epsilon_at_sites(most + more))} at {most + more}" for more in (1, 2)
        )
        return f"This is for your rows {known}. If you have rows at more of them, epsilon is {one} sites, and {two}."

    def assumptions(self) -> list[str]:
        """Return sentences: who is trusted with what, and what the guarantee does not cover. [] without a guarantee."""
        if not self.releases:
            return []
        places = (
            [PLACE_SENTENCES[self.noise], COLLUSION_SENTENCES[self.noise]] if self.noise else []
        )
        return [*places, *TRUST_SENTENCES]

    def what_leaves(self) -> str:
        """Return what leaves each site, in three short lists: covered by noise, unprotected, and harmless."""
        covered = [
            message for message in self.messages if message.is_protected or message.post_processing
        ]
        harmless = [
            message
            for message in self.messages
            if self._is_harmless(message) and message not in covered
        ]
        lines = [LEAVING_SENTENCES[self.noise or "server"], *_contents(covered)] if covered else []
        lines += ["Leaves each site, unprotected:", *(_contents(self.unprotected) or ["  nothing"])]
        if harmless:
            lines += [
                "Leaves each site, and says nothing about the values of its rows:",
                *_contents(harmless),
            ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the report, ready for JSON; an infinite epsilon is None."""
        finite = self.epsilon < float("inf")
        return {
            "strategy": self.strategy,
            "guarantee": self.guarantee(),
            "meaning": self.meaning(),
            "assumptions": self.assumptions(),
            "epsilon": self.epsilon if finite else None,
            "composed_epsilon": self.composed_epsilon if finite else None,
            "requested_epsilon": self.requested_epsilon,
            "delta": self.delta,
            "unit": self.unit,
            "sites_per_subject": self.sites_per_subject,
            "neighboring_relation": self.neighbors,
            "noise": self.noise,
            "covers_everything": self.covers_everything,
            "messages": [asdict(message) for message in self.messages],
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Self:
        """Create a report from the result of :meth:`to_dict`, also after JSON; raise an error for anything else."""
        return cls(
            str(written.get("strategy")),
            tuple(map(Message.from_dict, written["messages"])),
            requested_epsilon=written.get("requested_epsilon"),
            delta=written.get("delta"),
            unit=written.get("unit"),
            noise=written.get("noise"),
            notes=tuple(written.get("notes") or ()),
            sites_per_subject=int(written.get("sites_per_subject") or 1),
        )

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        lines = [f"Privacy report of {self.strategy}", "", f"Guarantee: {self.guarantee()}"]
        if self.neighbors:
            lines.append(f"Neighboring data sets differ in {self.neighbors}.")
        if self.releases and self.unit == "subject":
            lines.append(
                "A row adds its part of a person, so every number of rows below counts persons."
            )
        if self.releases and self.requested_epsilon is not None and self.delta is not None:
            lines.append(
                f"Asked for: epsilon {self.requested_epsilon:g}, delta {self.delta:g}. The releases that were made "
                f"compose to {_at_most(self.composed_epsilon)}."
            )
        if meaning := self.meaning():
            lines += ["", "What this means for one person:", f"  {meaning}"]
        if assumptions := self.assumptions():
            lines += ["", "Who is trusted, and with what:"]
            lines += [f"  - {assumption}" for assumption in assumptions]
        derived = [
            message
            for message in self.messages
            if message.post_processing and not self._is_harmless(message)
        ]
        harmless = [message for message in self.messages if self._is_harmless(message)]
        for heading, found in (
            ("Protected by noise:", _grouped(self.releases)),
            (
                "Computed from nothing but what is protected above, so that it costs no more:",
                _grouped(derived),
            ),
            (
                "Unprotected (no mechanism covers these messages):",
                _grouped(self.unprotected) or ["  nothing that depends on the rows"],
            ),
            ("Sent, and independent of the values of the rows:", _grouped(harmless)),
            ("Notes:", [f"  - {note}" for note in self.notes]),
        ):
            if found:
                lines += ["", heading, *found]
        return "\n".join(lines)


def _at_most(value: float, digits: int = 4) -> str:
    """Write an upper bound with ``digits`` digits, rounded up."""
    if not math.isfinite(value):
        return str(value)
    context = Context(prec=digits, rounding=ROUND_CEILING)
    return f"{float(context.create_decimal(repr(value))):g}"


def _contents(messages: Sequence[Message]) -> list[str]:
    """Return one line for each different content of the messages."""
    return list(dict.fromkeys(f"  - {message.content} ({message.detail})" for message in messages))


def _grouped(messages: Sequence[Message]) -> list[str]:
    """Return a few lines for each kind of message; they list the rounds in which it was sent."""
    kinds: dict[tuple[Any, ...], list[Message]] = {}
    for message in messages:
        # Sensitivities may differ between rounds, and do not need lines of their own. Noise multipliers do: from them a
        # reader can compose epsilon.
        how = message.release and replace(message.release, sensitivity=1.0)
        kinds.setdefault((message.task, message.content, message.detail, how), []).append(message)
    lines = []
    for group in kinds.values():
        first = group[0]
        rounds = list(dict.fromkeys(message.round for message in group))
        lines.append(f"  {_rounds(rounds)} '{first.task}': {first.content} ({first.detail})")
        if first.is_protected:
            lines.append(
                "      "
                + _mechanism([message.release for message in group if message.release is not None])
            )
    return lines


def _mechanism(releases: Sequence[Release]) -> str:
    """Describe the noise that protects releases of one kind."""
    first = releases[0]
    said = (
        f"{first.mechanism.capitalize()} mechanism, {first.norm} sensitivity "
        f"{_range([release.sensitivity for release in releases])} ({first.bound}), noise multiplier "
        f"{first.noise_multiplier:.6g}, noise scale {_range([release.scale for release in releases])}"
    )
    if first.share:
        said += f", from the budget's share '{first.share}'"
    if first.sample is not None:
        said += f", on {first.sample[0]} rows drawn from at least {first.sample[1]}"
    return said


def _range(values: Sequence[float]) -> str:
    """Write one value, or the smallest and the largest of several."""
    least, largest = f"{min(values):.6g}", f"{max(values):.6g}"
    return least if least == largest else f"{least} to {largest}"


def _rounds(rounds: Sequence[int]) -> str:
    if len(rounds) == 1:
        return f"round {rounds[0]}"
    if list(rounds) == list(range(rounds[0], rounds[0] + len(rounds))):
        return f"rounds {rounds[0]} to {rounds[-1]}"
    return "rounds " + ", ".join(map(str, rounds))
