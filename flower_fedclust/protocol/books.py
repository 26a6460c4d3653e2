"""What a run writes down: what has left the clients, what each was sent and answered, and what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from flwr.server.client_proxy import ClientProxy

from flower_fedclust.privacy.releases import Release
from flower_fedclust.privacy.report import Message
from flower_fedclust.protocol.replies import client_order
from flower_fedclust.protocol.rounds import Failure, Round, Sum, Traffic
from flower_fedclust.protocol.wrappers import by_mod

#: The task under which the books have the evaluation of the model.
EVALUATE = "evaluate"


@dataclass(frozen=True)
class Entries:
    """What the books say of one round, the evaluation of the model apart."""

    messages: Sequence[Message]
    traffic: Sequence[Traffic]
    failures: Sequence[Failure]
    #: By the name of kept rows: which clients may have true ones, after the round.
    without_noise: Mapping[str, Sequence[str]]

    def to_dict(self) -> dict[str, Any]:
        """Return the entries, ready for JSON."""
        return {
            "messages": [asdict(one) for one in self.messages],
            "traffic": [vars(one) for one in self.traffic],
            "failures": [vars(one) for one in self.failures],
            "without_noise": self.without_noise,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Undo :meth:`to_dict`."""
        messages = [
            Message(
                **{
                    **one,
                    "release": None if one["release"] is None else Release.from_dict(one["release"]),
                    "clients": None if one["clients"] is None else tuple(one["clients"]),
                }
            )
            for one in fields["messages"]
        ]
        traffic = [Traffic(**one) for one in fields["traffic"]]
        return cls(messages, traffic, [Failure(**one) for one in fields["failures"]], fields["without_noise"])


@dataclass
class Books:
    """The books of one run."""

    messages: list[Message] = field(default_factory=list)  #: What has left the clients.
    traffic: list[Traffic] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    ended: str = ""  #: Where the run ended before the protocol did; empty where it did not.
    #: The rounds that were asked twice, because the run was interrupted.
    asked_again: list[int] = field(default_factory=list)
    _without_noise: dict[str, set[str]] = field(default_factory=dict)  # by name of kept rows: who may have true ones

    def notes(self) -> list[str]:
        """Return what the privacy report has to say of replies that were not used, and of an early end."""
        lost = Counter((failure.round, failure.task) for failure in self.failures if failure.task != EVALUATE)
        found = [
            f"{count} client{'s' if count > 1 else ''} did not answer round {number} ('{task}') as asked; what they "
            "may have sent counts as sent."
            for (number, task), count in sorted(lost.items())
        ]
        found += [
            f"Round {number} was asked twice, as the run was interrupted: what left the clients then counts as well."
            for number in self.asked_again
        ]
        if self.ended:
            found.append(f"The run ended early, in {self.ended}. What had left the clients by then is listed here.")
        return found

    def entries(self, number: int) -> Entries:
        """Return what the books say of a round."""
        return Entries(
            [one for one in self.messages if one.round == number],
            [one for one in self.traffic if one.round == number],
            [one for one in self.failures if one.round == number],
            {kept: sorted(names) for kept, names in self._without_noise.items()},
        )

    def add(self, entries: Entries) -> None:
        """Take over what other books say of a round."""
        self.messages += entries.messages
        self.traffic += entries.traffic
        self.failures += entries.failures
        self._without_noise = {kept: set(names) for kept, names in entries.without_noise.items()}

    def note_round(
        self,
        number: int,
        round_: Round,
        releases: Sequence[Release | None],
        variations: Sequence[float],
        *,
        asked: tuple[str, ...],
        answered: Collection[str],
        n_clients: int,
        is_enough: bool,
    ) -> None:
        """Record what a round brought, or what the clients have kept with noise.

        Parameters
        ----------
        number : int
            Of the Flower round.
        round_ : Round
        releases : sequence of (Release or None)
        variations : sequence of float
            How far the noise of each array may be from its law.
        asked : tuple of str
            Whether they answered or not: the server may have seen an answer that it did not use.
        answered : collection of str
            Of these.
        n_clients : int
            In the run.
        is_enough : bool
            Whether so many answered that their shares of the noise are all of it.
        """
        everybody = len(asked) == n_clients
        derived = round_.rows in self._without_noise and not self._without_noise[round_.rows].intersection(asked)
        for sent, release, variation in zip(round_.answer.sends, releases, variations, strict=True):
            protected = release is not None and release.noise_multiplier > 0
            if sent.kept_as and (protected or derived):
                # Who did not answer may still have what it kept before.
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
                detail += ", with a part of its noise: shares of it did not come"
            self.messages.append(
                Message(
                    number,
                    round_.task,
                    sent.content,
                    detail,
                    release,
                    post_processing=derived and not protected,
                    counts_rows=sent.counts_rows,
                    clients=None if everybody else asked,
                    reveals=sent.reveals,
                    variation=variation,
                )
            )

    def note_failure(self, number: int, task: str, name: str, reason: str) -> None:
        """Record a client that did not answer as it should have."""
        self.failures.append(Failure(number, task, name, reason))

    def note_refusal(self, number: int, task: str, name: str, reason: str, *, missed: bool = False) -> None:
        """Record a client that says why it cannot answer: something that it says of its rows, or of a missed round."""
        self.note_failure(number, task, name, reason)
        if missed:
            return
        content = f"why client {name} could not answer (a row and a column, no value)"
        self.messages.append(Message(number, task, content, "one sentence"))

    def note_silence(
        self,
        number: int,
        silent: Mapping[str, tuple[str, int]],
        failures: Sequence[tuple[ClientProxy, Any] | BaseException],
    ) -> None:
        """Record clients of which nothing came back.

        Parameters
        ----------
        number : int
            Of the round.
        silent : mapping of str to (str, int)
            The task of each, and how many bytes it was sent.
        failures : sequence
            As Flower gives them.
        """
        reasons = sorted({by_mod(_one_line(failure)) for failure in failures if isinstance(failure, BaseException)})
        why = f" ({reasons[0]})" if reasons else ""
        for name in sorted(silent, key=client_order):
            task, n_bytes = silent[name]
            self.note_failure(number, task, name, f"client {name} did not answer{why}.")
            self.traffic.append(Traffic(number, task, name, n_bytes, 0))

    def reasons(self, number: int, task: str) -> list[str]:
        """Return why clients failed in a round, each reason once."""
        failures = [failure for failure in self.failures if (failure.round, failure.task) == (number, task)]
        return list(dict.fromkeys(failure.reason for failure in failures))

    def sort(self) -> None:
        """Order failures and traffic by round and client."""
        self.failures.sort(key=lambda failure: (failure.round, client_order(failure.client)))
        self.traffic.sort(key=lambda row: (row.round, client_order(row.client)))


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
