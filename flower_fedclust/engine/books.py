"""What a run writes down: what has left the clients, what each was sent and answered, and what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from flwr.common import EvaluateRes, FitRes
from flwr.server.client_proxy import ClientProxy

from flower_fedclust.engine.replies import RefusalError, ReplyError, bytes_of, client_order, ledger_of, one_line
from flower_fedclust.engine.rounds import Failure, Round, Sum, Traffic
from flower_fedclust.engine.wrappers import by_mod
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.privacy.noise import Sendable, noise_exponent, total_variation, variation_of_noise
from flower_fedclust.privacy.releases import NoisePlace, Release
from flower_fedclust.privacy.report import Message

#: How many entries of an array of which the server sees nothing one row may move: as many as it has columns.
UNSEEN_ENTRIES = 2**20

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

    def note_traffic(self, number: int, task: str, name: str, bytes_down: int, res: FitRes | EvaluateRes) -> None:
        """Record a reply: how many bytes went there and came back, and what its client says of its ledger."""
        self.traffic.append(Traffic(number, task, name, bytes_down, bytes_of(res), ledger_of(res.metrics)))

    def note_failure(self, number: int, task: str, name: str, reason: str) -> None:
        """Record a client that did not answer as it should have."""
        self.failures.append(Failure(number, task, name, reason))

    def note(self, number: int, task: str, name: str, error: ReplyError) -> None:
        """Record a reply that is not used; or why a client cannot answer, which may say something of its rows."""
        self.note_failure(number, task, name, str(error))
        if isinstance(error, RefusalError) and not error.missed:
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
        said = {f"{type(failure).__name__}: {failure}" for failure in failures if isinstance(failure, BaseException)}
        reasons = sorted(one_line(by_mod(one)) for one in said)
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


def variations_of(
    noise: NoisePlace, releases: Sequence[Release | None], reply: Sequence[Sendable], n_shares: int
) -> list[float]:
    """Return how far the noise of each array may be from its law; of what nobody has seen, with many entries."""
    found = []
    for index, release in enumerate(releases):
        array = reply[index] if index < len(reply) else None
        if release is None or release.scale == 0:
            found.append(0.0)
        elif not isinstance(array, GridArray):
            # The unit of what is kept is not seen; where noise is not in shares the distance does not depend on it.
            found.append(UNSEEN_ENTRIES * total_variation(release.mechanism, 1.0))
        else:
            exponent = array.exponent
            if noise == "server":
                exponent = noise_exponent(release, 1, exponent)
            found.append(variation_of_noise(release, array.integers.size, n_shares, exponent))
    return found
