"""What a run notes: what has left the clients, what was sent to and fro, and what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from flower_fedclust.engine.messages import EVALUATE
from flower_fedclust.engine.replies import T, client_order
from flower_fedclust.engine.rounds import Failure, Round, Sum, Traffic
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.privacy.noise import Sendable, noise_exponent, total_variation, variation_of_noise
from flower_fedclust.privacy.releases import NoisePlace
from flower_fedclust.privacy.report import Message

#: How many entries of an array that the server does not see one row may change: as many as the row has columns.
UNSEEN_ENTRIES = 2**20


@dataclass
class RunLog:
    """What a run notes: what has left the clients, what was sent to and fro, and what went wrong."""

    messages: list[Message] = field(default_factory=list)  #: What has left the clients.
    traffic: list[Traffic] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    ended: str = ""  #: The round in which a run ended before its protocol did; "" otherwise.
    asked_again: list[int] = field(default_factory=list)  #: Rounds that were asked twice because of an interruption.
    _without_noise: dict[str, set[str]] = field(default_factory=dict)  # kept rows -> clients that may have true ones

    def notes(self) -> list[str]:
        """Return the report's notes about replies that were not used, and about an early end."""
        lost = Counter((failure.round, failure.task) for failure in self.failures if failure.task != EVALUATE)
        found = [
            f"{count} client{'s' if count > 1 else ''} did not answer round {number} ('{task}') as asked; what they "
            "may have sent counts as sent."
            for (number, task), count in sorted(lost.items())
        ]
        found += [
            f"Round {number} was asked twice because the run was interrupted: both replies count."
            for number in self.asked_again
        ]
        if self.ended:
            found.append(f"The run ended early, in {self.ended}. What had left the clients by then is listed here.")
        return found

    def of_round(self, number: int) -> dict[str, Any]:
        """Return what is noted of one round, ready for JSON."""
        return {
            "messages": [asdict(one) for one in self.messages if one.round == number],
            "traffic": [asdict(one) for one in self.traffic if one.round == number],
            "failures": [vars(one) for one in self.failures if one.round == number],
            "without_noise": {kept: sorted(names) for kept, names in self._without_noise.items()},
        }

    def add(self, noted: Mapping[str, Any]) -> list[Message]:
        """Undo :meth:`of_round`, in a run that was interrupted, and return the messages."""
        messages = list(map(Message.from_dict, noted["messages"]))
        self.messages += messages
        self.traffic += [Traffic(**one) for one in noted["traffic"]]
        self.failures += [Failure(**one) for one in noted["failures"]]
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
        """Note what has left the clients that were asked: the server may have seen a reply that it did not use.

        ``variations`` are the distances of each array's noise from its law; ``is_enough`` tells whether the shares of
        noise that arrived are all of the noise.
        """
        everybody = len(asked) == n_clients
        derived = round_.rows in self._without_noise and not self._without_noise[round_.rows].intersection(asked)
        for sent, release, variation in zip(round_.answer.sends, round_.releases, variations, strict=True):
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
        failures = [failure for failure in self.failures if (failure.round, failure.task) == (number, task)]
        return list(dict.fromkeys(failure.reason for failure in in_log_order(failures)))


def in_log_order(entries: Iterable[T]) -> list[T]:
    """Sort failures or traffic by round and client."""
    return sorted(entries, key=lambda entry: (entry.round, client_order(entry.client)))  # type: ignore[attr-defined]


def variations_of(round_: Round, noise: NoisePlace, reply: Sequence[Sendable], n_shares: int) -> list[float]:
    """Return the distance of each array's noise from its law; an array that nobody has seen counts as a long one."""
    found = []
    for index, release in enumerate(round_.releases):
        array = reply[index] if index < len(reply) else None
        if release is None or release.scale == 0:
            found.append(0.0)
        elif not isinstance(array, GridArray):
            # The unit of kept rows is not seen; without shares the distance does not depend on it.
            found.append(UNSEEN_ENTRIES * total_variation(release.mechanism, 1.0))
        else:
            exponent = noise_exponent(release, 1, array.exponent) if noise == "server" else array.exponent
            found.append(variation_of_noise(release, array.integers.size, n_shares, exponent))
    return found
