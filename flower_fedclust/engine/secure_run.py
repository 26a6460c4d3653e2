"""A run whose sums are secure: each ``Sum`` takes four messages to each client, and the strategy does not notice."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.common import FitIns, FitRes
from flwr.server.client_manager import ClientManager

from flower_fedclust.engine.fields import SECURE
from flower_fedclust.engine.inline import rehearse
from flower_fedclust.engine.masked import STEPS, like, words_of
from flower_fedclust.engine.replies import (
    NOISE_REACH,
    Inspection,
    ReplyError,
    checked_reply,
    client_order,
    largest_in_sum,
)
from flower_fedclust.engine.rounds import Array, ProtocolError, Question, Reply, Round, Sum, Total
from flower_fedclust.engine.run import WAITING, Answers, Asked, Failures, Messages, Run, Waiting
from flower_fedclust.engine.wire import EMPTY, TO_CLIENT, decode, encode, size_of
from flower_fedclust.exact.grid import MOST_ROWS, GridArray
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.privacy.noise import Sendable, on_grid
from flower_fedclust.privacy.releases import Release
from flower_fedclust.secure import SecureServer, SumError
from flower_fedclust.secure.keys import FEWEST, noise_colluders, threshold, tolerated

#: A masked sum beyond this, with its noise, may have overflowed.
LARGEST_MASKED = 2**62

#: How many messages a run takes to exchange keys, and how many each sum.
N_FIRST, N_EACH = 2, 4


def is_masked(round_: Round) -> bool:
    """Return whether a round brings sums."""
    return isinstance(round_, Sum) and bool(round_.answer.sends) and not round_.answer.keeps


def check_round(round_: Round) -> None:
    """Raise a ProtocolError if a round would show the server single replies, or asks clients for different things."""
    if not is_masked(round_):
        seen = [] if round_.answer.keeps else [one for one in round_.answer.sends if not one.counts_rows]
        if seen:
            raise ProtocolError(
                f"secure is set, and round '{round_.task}' collects {seen[0].content} from each client; leave secure "
                "out, or choose a strategy that takes only sums."
            )
    elif not isinstance(round_.question, Question) or round_.others is not None or round_.fraction != 1.0:
        raise ProtocolError(
            f"secure is set, and round '{round_.task}' does not ask all clients for the same; leave secure out, or "
            "have all of them take part."
        )


def check_rehearsal(strategy: Any, columns: Sequence[str] | None) -> None:
    """Raise a ProtocolError if a rehearsal comes to a round that :func:`check_round` refuses: nobody is asked then."""
    refused: list[ProtocolError] = []

    def see(round_: Round, received: Any) -> None:  # noqa: ARG001
        try:
            check_round(round_)
        except ProtocolError as error:
            refused.append(error)
            raise

    rehearse(strategy, columns, see)
    if refused:
        raise refused[0]


class SecureRun(Run):
    """One run with secure sums."""

    def __init__(self, strategy: Any, server_columns: Sequence[str] | None, run_id: str) -> None:
        super().__init__(strategy, server_columns, run_id)
        self.inspection = _MaskedInspection(strategy)
        self._server = SecureServer(run_id)
        self._step = STEPS[0]
        self._forms: list[GridArray] = []
        self._counted = math.inf  # the most rows that all clients can have, from a number of rows with its noise

    # Asking.

    @property
    def _order(self) -> dict[str, str]:
        """Return the order of the columns for every message: with a client that comes later, no question changes."""
        is_named = self.strategy.tables is None and isinstance(self.roster.columns, list)
        return {"columns": json.dumps(self.roster.columns)} if is_named else {}

    def ask(self, number: int, round_: Round, client_manager: ClientManager, plan: str) -> Messages:
        """Return the messages of the next step of a sum, or of a round that brings none."""
        check_round(round_)
        self._check_rows(round_)
        server, step = self._server, self._step
        if is_masked(round_) and step == "mask":
            round_ = replace(round_, clients=server.named(server.invited()))
            messages = super().ask(number, round_, client_manager, plan)
            if not any(one.kind == "round" for one in self._asked.values()):
                self._step = "share"
            return messages
        if not is_masked(round_):
            return super().ask(number, round_, client_manager, plan)
        self.last_asked = number
        names, facts, arrays = list(self.clients), dict[str, Any](), dict[str, list[Array]]()
        if step == "roster":
            keys, names = server.roster(sorted(server.signed, key=client_order)), server.names
            arrays, facts = {name: [keys] for name in names}, {"names": names}
        elif step == "share":
            server.begin(number)
            names = server.names
        elif step == "confirm":
            facts = {"clients": server.arrived()}
            names = server.named(facts["clients"])
        elif step == "open":
            names = server.named(server.confirmed)
            arrays = {name: [server.confirmations_for(name), server.shares_for(name)] for name in names}
        present = self.roster.present(number, client_manager)
        absent = {name: self.roster.why_absent(name) for name in names if name not in present}
        self.log.note_failures(number, round_.task, absent)
        self._asked = {}
        if not self._is_enough(number, round_, len(names) - len(absent)):
            return []
        about = json.dumps({"step": step, **facts})
        config = {**self._common, "round": number, "task": self._task, SECURE: about, "n_clients": len(names)}
        messages = []
        for name in names:
            if name in present:
                given = arrays.get(name, [])
                sent = encode(given or TO_CLIENT)
                messages.append((present[name], FitIns(sent, config if given else {**config, EMPTY: True})))
                self._asked[present[name].cid] = Asked(name, self._task, size_of(sent) if given else 0)
        return messages

    def _check_rows(self, round_: Round) -> None:
        """Raise a ProtocolError if a sum and its noise could exceed 63 bits, given the most rows that there can be.

        In a run without a plan of noise, each client looks at its own answer. At client level each client clips it.
        Before a number of rows is released, nothing is refused: clients have far fewer rows than they may have.
        """
        if self.strategy.privacy_unit == "client" or self._counted == math.inf or not is_masked(round_):
            return
        n, most = self._n, min(self._counted, self._n * MOST_ROWS)
        found = round_.asks.largest_of_one_row(round_.question_for(None))
        for sent, release, (largest, exponent) in zip(round_.answer.sends, round_.releases, found, strict=False):
            if most * largest > n * largest_in_sum(n, exponent, release, self._n_shares(round_, n)):
                raise ProtocolError(
                    f"'{round_.task}' asks {n} clients for {sent.content}; with up to {most:,.0f} rows their "
                    "secure sum could exceed 63 bits unnoticed. Ask fewer clients, or leave secure out."
                )

    def _note_rows(self, round_: Round, total: Total) -> None:
        """Note the most rows that all clients can have, once a number of rows has its noise."""
        missing = (self._n - total.n_clients) * MOST_ROWS
        for sent, release, array in zip(round_.answer.sends, round_.releases, total, strict=True):
            if sent.counts_rows and release is not None and np.size(array) == 1:
                reach = NOISE_REACH * self.noise_of_sum(release)
                self._counted = min(self._counted, max(float(np.sum(array)), 0.0) + reach + missing)

    def _config(self, number: int, round_: Round, n_asked: int) -> dict[str, Any]:
        config = super()._config(number, round_, n_asked)
        if is_masked(round_):
            config[SECURE] = json.dumps({"step": "mask", "clients": self._server.invited()})
        return config

    # Receiving.

    def receive(
        self, number: int, round_: Round, results: Answers[FitRes], failures: Failures
    ) -> Total | list[Reply] | Waiting | None:
        """Take the replies of a step; return the sum after the last one."""
        if not is_masked(round_):
            return super().receive(number, round_, results, failures)
        if self._step == "mask":
            replies, sums = self._checked_replies(number, round_, results, failures)
            self._note_replies(number, round_, replies, sums, results, failures)
            for name, arrays in replies.items():
                self._forms = [on_grid(array) for array in arrays]
                self._server.take_masked(name, words_of(self._forms))
            n_left = len(replies)
        else:
            answered = {proxy.cid for proxy, _ in results}
            for node, one in self._asked.items():
                self.clients[one.name].note(number, answered=node in answered)
            n_left = len(self._read(number, self._asked, results, failures, self._taken))
        if not self._is_enough(number, round_, n_left):
            return None
        if self._step == "confirm":
            try:
                self._server.check_questions()
            except SumError as error:
                raise self._impossible(number, round_, error) from None
        if self._step == STEPS[-1]:
            self._step = "share"
            return self._opened(number, round_)
        self._step = STEPS[STEPS.index(self._step) + 1]
        self.n_extra += 1
        return WAITING

    def _taken(self, one: Asked, res: FitRes) -> bool:
        """Take the arrays of one client's step; raise a ReplyError if they cannot be used."""
        server = self._server
        take: dict[str, Callable[..., None]] = {
            "keys": server.take_key,
            "roster": server.take_roster,
            "share": server.take_shares,
            "confirm": server.take_confirmations,
            "open": server.take_opened,
        }
        try:
            take[self._step](one.name, *([] if res.metrics.get(EMPTY) else decode(res.parameters)))
        except (SumError, DataError, TypeError) as error:
            what = str(error) if isinstance(error, SumError) else "arrays of another form than the step has"
            raise ReplyError(f"client {one.name} sent {what}.") from None
        return True

    def _impossible(self, number: int, round_: Round, error: SumError) -> ProtocolError:
        return ProtocolError(f"round {number} ('{round_.task}') cannot be added up: {error}.")

    def _opened(self, number: int, round_: Round) -> Total:
        """Return the sum without its masks."""
        try:
            words = self._server.total()
        except SumError as error:
            raise self._impossible(number, round_, error) from None
        sums = like(self._forms, words.view(np.int64))
        total = self._total(number, round_, list(sums), len(self._server.arrived()), [])
        self._note_rows(round_, total)
        return total

    def _overflows(
        self,
        hidden: Sequence[bool],
        replies: Sequence[Sequence[Sendable]],
        before: Sequence[Sendable],
        after: Sequence[Sendable],
    ) -> list[int]:
        """Return which sums may have overflowed: masked answers are added modulo 2^64, so nobody knows for sure.

        Without a plan of noise, each client has looked at its own answer.
        """
        if replies:  # they came without masks
            return super()._overflows(hidden, replies, before, after)
        if self.strategy.epsilon is None:
            return []
        return [index for index, array in enumerate(after) if on_grid(array).largest >= LARGEST_MASKED]

    # What the report says.

    def notes(self) -> list[str]:
        """Return what secure sums protect in this run, and what they do not."""
        n, t, c = self._n, threshold(self._n), noise_colluders(self._n)
        n_knowing = sum(self._server.knows_others.values())
        found = [
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
        if self.strategy.epsilon is None:
            found.append(
                "Without noise, secure sums do not stop differencing: similar questions, or one question to different "
                "clients, may reveal an answer. Clients refuse only to answer the very same question among others."
            )
        elif self.noise == "clients":
            least = self._least_with_noise
            found.append(
                f"Each client adds 1/{least - c} of the noise, and no sum of fewer than {least} clients is opened. So "
                f"the guarantee holds even if {c} of the clients add no noise, or tell it to the server, and against "
                "a client that knows its own noise. If masks fail, only its own share of noise protects a client."
            )
        elif self.noise == "server":
            found.append("If masks fail, the server sees answers without noise, as it would without secure sums.")
        n_sent = self.last_asked + self.n_extra
        found.append(f"{n_sent} messages went to each client; without secure sums it would be {self.last_asked}.")
        return found

    # How many clients are enough.

    def _is_enough(self, number: int, round_: Round, n_left: int) -> bool:
        """Return whether a step has enough clients; if not, end the run, or leave out an optional round."""
        n_asked = len(self._server.invited()) if self._step == "mask" else self._n
        required = self._required(round_, n_asked) if self._server.names else max(FEWEST, self.roster.least)
        if n_left >= required:
            return True
        if not round_.needed:
            self._step = "share" if self._server.names else STEPS[0]
            return False
        reasons = " ".join(self.log.reasons(number, round_.task)[:3] or self.log.reasons(number, self._task)[:3])
        raise ProtocolError(
            f"round {number} ('{round_.task}'): {n_left} clients took the step '{self._step}' of a secure sum and "
            f"{required} have to; nothing was opened. {reasons}"
        )

    @property
    def _task(self) -> str:
        return f"{SECURE} {self._step}"

    @property
    def _n(self) -> int:
        return len(self._server.names) or len(self.clients)

    def _required(self, round_: Round, n_asked: int) -> int:
        return max(super()._required(round_, n_asked), threshold(self._n))

    def _n_shares(self, round_: Round, n_asked: int) -> int:
        """Return among how many clients the noise is divided: so many are left without those that may withhold it."""
        required = self._required(round_, n_asked)
        return max(1, required - noise_colluders(self._n)) if self._sums_shares(round_) else 1

    def noise_of_sum(self, release: Release) -> float:
        """Return the standard deviation of the noise in a sum over all clients, in the array's units."""
        if self.noise != "clients":
            return super().noise_of_sum(release)
        n_shares = max(1, self._least_with_noise - noise_colluders(self._n))
        return float(release.standard_deviation * (self._n / n_shares) ** 0.5)

    @property
    def _least_with_noise(self) -> int:
        return max(self.strategy.min_clients or self._n, threshold(self._n))


class _MaskedInspection(Inspection):
    """Checks masked replies, which show nothing but their form."""

    def checked(self, name: str, round_: Round, res: FitRes, n_summed: int = 0) -> list[Sendable]:
        """Return the arrays of one client's reply."""
        if not is_masked(round_):
            return super().checked(name, round_, res, n_summed)
        return [on_grid(array) for array in checked_reply(name, res, round_.answer.sends, self.n_columns)]

    def _outliers(self, round_: Round, *replies: Any) -> dict[str, str]:
        return {} if is_masked(round_) else super()._outliers(round_, *replies)
