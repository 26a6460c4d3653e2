"""The log of a run: messages that have left the clients, traffic, and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from flower_fedclust.engine.messages import EVALUATE
from flower_fedclust.engine.replies import T, client_order
from flower_fedclust.engine.rounds import Failure, Round, Sum, Traffic
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.privacy.noise import (
    Sendable,
    noise_exponent,
    total_variation,
    variation_of_noise,
)
from flower_fedclust.privacy.releases import NoisePlace
from flower_fedclust.privacy.report import Message

#: The number of entries that an array is assumed to have if the server never sees it.
UNSEEN_ENTRIES = 2**20


@dataclass
class RunLog:
    """The log of a run: messages that have left the clients, traffic, and failures."""

    #: The messages that have left the clients.
    messages: list[Message] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    ended: str = ""  #: The round in which the run ended early; "" if it did not.
    #: Rounds that were asked twice because of an interruption.
    asked_again: list[int] = field(default_factory=list)
    # Name of kept rows -> clients whose kept rows may lack noise.
    _without_noise: dict[str, set[str]] = field(default_factory=dict)

    def notes(self) -> list[str]:
        """Return the report's notes about replies that were not used, and about an early end."""
        lost = Counter(
            (failure.round, failure.task) for failure in self.failures if failure.task != EVALUATE
        )
        notes = [
            f"{count} client{'s' if count > 1 else ''} did not answer round {number} ('{task}') as asked; what they "
            "may have sent counts as sent."
            for (number, task), count in sorted(lost.items())
        ]
        notes += [
            f"Round {number} was asked twice because the run was interrupted: both replies count."
            for number in self.asked_again
        ]
        if self.ended:
            notes.append(
                f"The run ended early, in {self.ended}. What had left the clients by then is listed here."
            )
        return notes

    def of_round(self, number: int) -> dict[str, Any]:
        """Return the entries about one round, ready for JSON."""
        return {
            "messages": [asdict(entry) for entry in self.messages if entry.round == number],
            "traffic": [asdict(entry) for entry in self.traffic if entry.round == number],
            "failures": [vars(entry) for entry in self.failures if entry.round == number],
            "without_noise": {kept: sorted(names) for kept, names in self._without_noise.items()},
        }

    def add(self, noted: Mapping[str, Any]) -> list[Message]:
        """Add entries that :meth:`of_round` returned before an interruption, and return their messages."""
        messages = list(map(Message.from_dict, noted["messages"]))
        self.messages += messages
        self.traffic += [Traffic(**entry) for entry in noted["traffic"]]
        self.failures += [Failure(**entry) for entry in noted["failures"]]
        self._without_noise = {kept: set(names) for kept, names in noted["without_noise"].items()}
        return messages

    def note_round(
        self,
        number: int,
        round_: Round,
        variations: Sequence[float],
        *,
        asked: Collection[str],
        answered: Collection[str],
        n_clients: int,
        is_enough: bool,
    ) -> None:
        """Note what has left the clients that were asked, including replies that the server did not use.

        ``variations`` has, for each array, the total-variation distance of the noise that is drawn from its declared
        law. ``is_enough`` tells whether enough shares of the noise arrived to make up the whole noise.
        """
        everybody = len(asked) == n_clients
        derived = round_.rows in self._without_noise and not self._without_noise[
            round_.rows
        ].intersection(asked)
        for sent, release, variation in zip(
            round_.answer.sends, round_.releases, variations, strict=True
        ):
            protected = release is not None and release.noise_multiplier > 0
            if sent.kept_as and (protected or derived):
                # A client that did not answer may still have what it kept before.
                self._without_noise.setdefault(sent.kept_as, set()).difference_update(answered)
            elif sent.kept_as:
                self._without_noise.setdefault(sent.kept_as, set()).update(asked)
            if sent.kept_as and not protected:
                continue  # nothing has left the client
            detail = "sum over the clients" if isinstance(round_, Sum) else f"one per {sent.per}"
            if not everybody:
                detail += f", {len(asked)} of {n_clients} clients asked"
            if sent.kept_as:
                detail = f"one per {sent.per}, kept by the client"
            if protected and not is_enough:
                release, variation = None, 0.0
                detail += ", with only a part of its noise, because shares of it are missing"
            self.messages.append(
                Message(
                    number,
                    round_.task,
                    sent.content,
                    detail,
                    release,
                    post_processing=derived and not protected,
                    counts_rows=sent.counts_rows,
                    clients=None if everybody else tuple(asked),
                    reveals=sent.reveals,
                    variation=variation,
                )
            )

    def note_failures(self, number: int, task: str, reasons: Mapping[str, str]) -> None:
        """Note clients that did not answer as they should have, each with one sentence."""
        self.failures += [Failure(number, task, name, reason) for name, reason in reasons.items()]

    def reasons(self, number: int, task: str) -> list[str]:
        """Return why clients failed in a round, each reason once."""
        failures = [
            failure for failure in self.failures if (failure.round, failure.task) == (number, task)
        ]
        return list(dict.fromkeys(failure.reason for failure in in_log_order(failures)))


def in_log_order(entries: Iterable[T]) -> list[T]:
    """Sort failures or traffic by round and client."""
    return sorted(entries, key=lambda entry: (entry.round, client_order(entry.client)))  # type: ignore[attr-defined]


def variations_of(
    round_: Round, noise: NoisePlace, reply: Sequence[Sendable], n_shares: int
) -> list[float]:
    """Return the total-variation distance of each array's drawn noise from its declared law.

    An array that the server does not see counts as one with ``UNSEEN_ENTRIES`` entries.
    """
    variations = []
    for index, release in enumerate(round_.releases):
        array = reply[index] if index < len(reply) else None
        if release is None or release.scale == 0:
            variations.append(0.0)
        elif not isinstance(array, GridArray):
            # The server does not know the unit of kept rows; without shares the variation does not depend on it.
            variations.append(UNSEEN_ENTRIES * total_variation(release.mechanism, 1.0))
        else:
            exponent = (
                noise_exponent(release, 1, array.exponent) if noise == "server" else array.exponent
            )
            variations.append(variation_of_noise(release, array.integers.size, n_shares, exponent))
    return variations
