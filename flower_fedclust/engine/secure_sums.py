"""How secure sums change a run: the rounds that it may ask, the clients that it needs, and its report."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

import numpy as np

from flower_fedclust.engine.fields import SECURE
from flower_fedclust.engine.masked import like, words_of
from flower_fedclust.engine.replies import NOISE_REACH, client_order, largest_in_sum
from flower_fedclust.engine.rounds import ProtocolError, Question, Round, Sum, Total
from flower_fedclust.engine.settings import Settings
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.privacy.noise import Sendable, on_grid
from flower_fedclust.secure import SecureServer, Step
from flower_fedclust.secure.keys import noise_colluders, threshold, tolerated

#: A masked sum beyond this, with its noise, may have overflowed.
LARGEST_MASKED = 2**62

#: How many messages each client gets to exchange keys, once in a run (N_FIRST), and for each sum (N_EACH).
N_FIRST, N_EACH = 2, 4


def is_masked(round_: Round) -> bool:
    """Return whether the replies to a round are masked: it is a sum whose arrays are sent."""
    return isinstance(round_, Sum) and bool(round_.answer.sends) and not round_.answer.keeps


def check_round(round_: Round) -> None:
    """Raise a ProtocolError if a round would show the server single replies, or asks clients for different things."""
    if not is_masked(round_):
        seen = (
            []
            if round_.answer.keeps
            else [sent for sent in round_.answer.sends if not sent.counts_rows]
        )
        if seen:
            raise ProtocolError(
                f"secure is set, and round '{round_.task}' collects {seen[0].content} from each client; leave secure "
                "out, or choose a strategy that takes only sums."
            )
    elif (
        not isinstance(round_.question, Question)
        or round_.others is not None
        or round_.fraction != 1.0
    ):
        raise ProtocolError(
            f"secure is set, and round '{round_.task}' does not ask all clients for the same; leave secure out, or "
            "have all of them take part."
        )


class SecureSums:
    """The secure sums of one run: the server's half of the protocol, and a bound on how large the sums can be."""

    def __init__(self, run_id: str, settings: Settings) -> None:
        self.server = SecureServer(run_id)
        self._settings = settings
        self._forms: list[GridArray] = []
        # An upper bound on the number of rows of all clients together, from a released noisy number.
        self._most_rows = math.inf

    # How many clients are needed.

    def n_clients(self, n_enrolled: int) -> int:
        """Return how many clients have exchanged keys; before that, how many have enrolled."""
        return len(self.server.names) or n_enrolled

    def fewest(self, n_enrolled: int) -> int:
        """Return how many clients the masks need."""
        return threshold(self.n_clients(n_enrolled))

    def n_colluders(self, n_enrolled: int) -> int:
        """Return how many clients may withhold their share of the noise, or tell it to the server."""
        return noise_colluders(self.n_clients(n_enrolled))

    # The steps of a sum.

    def steps(self, number: int, clients: Sequence[str]) -> Iterator[Step]:
        """Yield the steps of one sum."""
        return self.server.steps(number, sorted(clients, key=client_order))

    def take_masked(self, name: str, arrays: Sequence[Sendable]) -> None:
        """Take a client's masked answer."""
        self._forms = [on_grid(array) for array in arrays]
        self.server.take_masked(name, words_of(self._forms))

    def opened(self) -> list[Sendable]:
        """Return the sum without its masks."""
        return list(like(self._forms, self.server.total().view(np.int64)))

    @property
    def n_summed(self) -> int:
        """How many clients' answers are in the last sum."""
        return len(self.server.arrived())

    # How large a sum can be.

    def check_rows(self, round_: Round, n_clients: int, n_shares: int) -> None:
        """Raise a ProtocolError if a sum and its noise could exceed 63 bits with the most rows that clients may have.

        Nothing is refused before a noisy number of rows is released, because the bound on the rows would be far too
        large. So in a run without a plan of noise, each client checks that its own answer is not too large. With
        privacy_unit="client", each client clips its answer.
        """
        if self._settings.privacy_unit == "client" or self._most_rows == math.inf:
            return
        most = min(self._most_rows, n_clients * self._settings.most_rows)
        largest_of_one_row = round_.question_for(None).largest_of_one_row()
        for sent, release, (largest, exponent) in zip(
            round_.answer.sends, round_.releases, largest_of_one_row, strict=False
        ):
            if most * largest > n_clients * largest_in_sum(n_clients, exponent, release, n_shares):
                raise ProtocolError(
                    f"'{round_.task}' asks {n_clients} clients for {sent.content}; with up to {most:,.0f} rows their "
                    "secure sum could exceed 63 bits unnoticed. Ask fewer clients, or leave secure out."
                )

    def note_rows(self, round_: Round, total: Total, n_clients: int) -> None:
        """Update the bound on the rows of all clients from a noisy number of rows."""
        missing = (n_clients - total.n_clients) * self._settings.most_rows
        for sent, release, array, noise in zip(
            round_.answer.sends, round_.releases, total, total.noise, strict=True
        ):
            if sent.counts_rows and release is not None and np.size(array) == 1:
                most = max(float(np.sum(array)), 0.0) + NOISE_REACH * noise + missing
                self._most_rows = min(self._most_rows, most)

    def overflows(self, sums: Sequence[Sendable]) -> list[int]:
        """Return which sums may have overflowed; masked answers are added modulo 2^64, so nobody knows for sure.

        Without a plan of noise, [] is returned: each client has checked that its own answer is not too large.
        """
        if self._settings.epsilon is None:
            return []
        return [
            index for index, array in enumerate(sums) if on_grid(array).largest >= LARGEST_MASKED
        ]

    # Sentences for the report.

    def notes(self, n_enrolled: int, n_messages: int, n_rounds: int) -> list[str]:
        """Return sentences on what secure sums protect in this run, and what they do not protect."""
        n = self.n_clients(n_enrolled)
        t, c = threshold(n), noise_colluders(n)
        n_knowing = sum(self.server.knows_others.values())
        notes = [
            f"Secure sums of {n} clients: the server learns the sum of at least {t} clients' answers, and nothing else "
            "of them. If clients help it, it learns the sum of the others. This holds if no more than "
            f"{tolerated(n)} of the clients help it, or no more than {t - 1} if the server keeps to the protocol. "
            "Clients learn only what the server publishes.",
            f"{n_knowing} of {n} clients have compared the others' keys with keys that they knew. The other clients "
            "believe the server: if it hands out keys of its own, it can read their answers.",
            "Still visible: who took part and when, and the sizes of messages. All clients but one can compute that "
            "one's answer from a sum that is published.",
            "The server cannot look for outliers, wrong units, or a client that outweighs the others.",
        ]
        settings = self._settings
        if settings.epsilon is None:
            notes.append(
                "Without noise, secure sums do not stop differencing: similar questions, or one question to different "
                "clients, may reveal an answer. Clients refuse only to answer the very same question among others."
            )
        elif settings.noise == "clients":
            least = max(settings.min_clients or n, t)
            notes.append(
                f"Each client adds 1/{least - c} of the noise, and no sum of fewer than {least} clients is opened. So "
                f"the guarantee holds even if {c} of the clients add no noise, or tell it to the server, and against "
                "a client that knows its own noise. If masks fail, only its own share of noise protects a client."
            )
        elif settings.noise == "server":
            notes.append(
                "If masks fail, the server sees answers without noise, as it would without secure sums."
            )
        notes.append(
            f"{n_messages} messages went to each client; without secure sums it would be {n_rounds}."
        )
        return notes


def task_of(step: Step) -> str:
    """Return the task under which a step is asked and logged."""
    return f"{SECURE} {step.name}"


def field_of(step: Step) -> str:
    """Return the field of a message that describes a step, as JSON."""
    return json.dumps({"step": step.name, **step.facts})
