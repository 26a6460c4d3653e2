"""One run, from the first message to the last, as a generator: whoever carries messages drives it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from flwr.common import EvaluateIns, FitIns

from flower_fedclust.engine.fields import ENROL, SECURE
from flower_fedclust.engine.journal import Journal, Record, digest_of
from flower_fedclust.engine.log import RunLog, variations_of
from flower_fedclust.engine.messages import EVALUATE, Answers, Kind, Message, Steps, Summed, WhoIsThere
from flower_fedclust.engine.parts import Budget, Spending
from flower_fedclust.engine.replies import (
    Inspection,
    RefusalError,
    ReplyError,
    T,
    add_up,
    beyond_63_bits,
    bytes_of,
    check_capacity,
    checked_evaluation,
    checked_masked,
    client_order,
    evaluation_of,
    ledger_of,
    one_line,
    read_reply,
    values_of,
)
from flower_fedclust.engine.roster import Member, Roster, checked_enrolment, is_name
from flower_fedclust.engine.rounds import (
    Outcome,
    Protocol,
    ProtocolError,
    Question,
    ReleasedSizes,
    Reply,
    Round,
    Sum,
    TooFewError,
    Total,
    Traffic,
    allowing,
)
from flower_fedclust.engine.secure_sums import SecureSums, check_round, field_of, is_masked, task_of
from flower_fedclust.engine.settings import MIN_CLIENTS, Algorithm, Settings
from flower_fedclust.engine.wire import EMPTY, TO_CLIENT, decode, encode, size_of
from flower_fedclust.exact.grid import MOST_ROWS
from flower_fedclust.format import FORMAT
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.privacy.noise import NoiseSource, OperatingSystemNoise, SeededNoise, Sendable, add_noise
from flower_fedclust.privacy.releases import Release
from flower_fedclust.privacy.report import Message as Reported
from flower_fedclust.secure import Step, SumError
from flower_fedclust.secure.keys import FEWEST

#: Characters of the longest description that sites receive with the model.
LONGEST_DESCRIPTION = 2**18

Messages: TypeAlias = list[Message]

#: What a round brings: sums, the replies of single clients, or None if it was optional and too few could answer.
Brought: TypeAlias = Total | list[Reply] | None

#: Part of a run that yields as a run does, and returns something.
Part: TypeAlias = Generator[WhoIsThere | Messages, Any, T]


class Run:
    """One run, from the first message to the last.

    :meth:`steps` is the run; everything else is one of its steps, or what it knows.
    """

    def __init__(
        self,
        settings: Settings,
        server_columns: Sequence[str] | None,
        run_id: str,
        *,
        secure: bool = False,
        journal: Journal | None = None,
    ) -> None:
        self.settings = settings
        self.id = run_id
        self.journal = journal
        self.number = 0  #: Of the round that was asked last; clients enrol in the first.
        self.round: Round | None = None  #: What the protocol asks; None before it does, and in the end.
        self.outcome: Outcome | None = None
        self.sizes: ReleasedSizes | None = None  #: The last sizes of clusters that were released.
        self.evaluation: dict[str, float] | None = None
        self.noise_seed = settings.noise_seed
        self.n_columns = 0  #: Of the clients' rows, as the strategy sees them.
        self.n_exchanges = 0  #: How often clients were sent messages.
        self.announced: Budget | None = None  #: As it is known before clients enrol.
        self.spending: Spending | None = None  #: Of the budget, once it is frozen.
        self.rng = np.random.default_rng(settings.random_state)  #: Randomness of the server that protects nobody.
        self.log = RunLog()
        self.roster = Roster(settings.least, settings.expected_clients or 0, server_columns)
        self.inspection = Inspection(settings)
        self.sums = SecureSums(run_id, settings) if secure else None
        self._waits = False  # whether a client waits for the approval of the study
        #: What every message says.
        self._common: dict[str, Any] = {"format": FORMAT, "client": settings.client_type.key(), "run": run_id}

    # The run.

    def steps(self, strategy: Algorithm) -> Steps:
        """Run a strategy: yield messages, be sent the answers, return the outcome.

        A carrier is asked for two things: who is there, and to bring messages. It may throw an error, which ends the
        run. Nothing of an exchange is held while the next one is under way.
        """
        protocol = strategy.begin()
        strategy.freeze_plan()
        for record in self._kept_rounds(strategy):  # of a run that was interrupted: the protocol gets again what it got
            self._go_on(record)
            self._next_round(strategy, protocol, record.received)
        if self.outcome is None or self.settings.sends_model:
            yield from self._enrol(strategy)
        if self.number == 0:
            self.number = 1
            self._keep(strategy, None, self._record(None, None))
            self._next_round(strategy, protocol, None)
        while self.round is not None:
            self.number += 1
            asked = self.round
            try:
                received = yield from self._exchange(strategy, asked)
            except TooFewError as error:
                kept = self._record(asked, error)
                self._next_round(strategy, protocol, error)  # which raises the error, unless the protocol goes on
                self._keep(strategy, asked, kept)
                continue
            self._keep(strategy, asked, self._record(asked, received))  # after the noise, before anything follows
            self._next_round(strategy, protocol, received)
            del received
        assert self.outcome is not None
        if self.journal is not None:
            self.journal.wait()  # before anybody sees a result
        if self.settings.sends_model and self.evaluation is None:
            self.evaluation = yield from self._send_model(self.outcome)
        return self.outcome

    def _next_round(self, strategy: Algorithm, protocol: Protocol, received: Brought | TooFewError) -> None:
        """Give the protocol what a round brought, and take its next round, with its noise, or its outcome."""
        if self.round is not None:
            if strategy.on_received is not None and not isinstance(received, TooFewError):
                strategy.on_received(self.round, received)
            self.sizes = ReleasedSizes.of_round(self.round, received) or self.sizes
        strategy.freeze_plan()
        try:
            with one_thread():
                round_ = protocol.throw(received) if isinstance(received, TooFewError) else protocol.send(received)
        except DataError as error:
            raise DataError(f"{error}{self.inspection.why_likely}") from error
        except StopIteration as stop:
            self.round = None
            self.outcome = stop.value if isinstance(stop.value, Outcome) else Outcome(stop.value)
            if self.outcome.model.columns_ is None and isinstance(self.roster.columns, list):
                self.outcome.model.columns_ = self.roster.columns
            return
        self.round = strategy.with_noise(allowing(round_, self.settings.most_rows))
        if self.number >= self.settings.n_rounds:
            raise ProtocolError(
                f"'{self.task}' is round {self.number} of the protocol, and n_protocol_rounds says that there are at "
                f"most {self.settings.n_rounds - 1}; the strategy must say how many rounds it can have."
            )

    def _exchange(self, strategy: Algorithm, round_: Round) -> Part[Brought]:
        """Ask the clients of a round; return its sums with their noise, or the replies.

        An optional round that too few clients can answer, or that too few have answered, brings None.
        """
        self._check_declared(round_)
        if self.sums is not None:
            check_round(round_)
            if is_masked(round_):
                return (yield from self._secure_sum(self.sums, strategy, round_))
        messages = yield from self._ask(strategy, round_)
        if not messages:
            return None
        if self.journal is not None and self.journal.ask(self.number, digest_of(round_)):
            self._note_asked_again(round_)
        return self.receive(round_, messages, (yield from self._sent(messages)))

    def _secure_sum(self, sums: SecureSums, strategy: Algorithm, round_: Round) -> Part[Brought]:
        """Ask for a sum in four exchanges, the first one in six: the server sees nothing but the sum."""
        n = sums.n_clients(len(self.roster.members))
        sums.check_rows(round_, n, self._n_shares(round_, n))
        try:
            for step in sums.steps(self.number, list(self.roster.members)):
                if step.name == "mask":
                    messages = yield from self._ask(strategy, replace(round_, clients=step.clients), step)
                    if not messages:
                        return None
                    n_left = self._receive_masked(sums, round_, messages, (yield from self._sent(messages)))
                else:
                    messages = yield from self._ask_step(step, round_)
                    if not messages:
                        return None
                    n_left = self._receive_step(step, messages, (yield from self._sent(messages)))
                if not self._is_enough(step, round_, n_left):
                    return None
            opened = sums.opened()
        except SumError as error:
            raise ProtocolError(f"round {self.number} ('{round_.task}') cannot be added up: {error}.") from None
        total = self._total(round_, opened, sums.n_summed)
        sums.note_rows(round_, total, sums.n_clients(len(self.roster.members)))
        return total

    def _sent(self, messages: Messages) -> Part[Answers]:
        """Send messages, and return their answers."""
        self.n_exchanges += 1
        answers: Answers = yield messages
        return answers

    # What the run knows.

    @property
    def clients(self) -> dict[str, Member]:
        """The clients that enrolled, in the order in which their replies are added up."""
        return self.roster.members

    @property
    def task(self) -> str:
        """What is asked for at the moment."""
        return ENROL if self.round is None else self.round.task

    @property
    def _order(self) -> dict[str, str]:
        """Return the order of the columns, for a message, if some client has them in another order.

        With secure sums every message states it, so that a client that comes later changes no question.
        """
        is_named = isinstance(self.roster.columns, list)
        is_secure = self.sums is not None and not self.settings.has_tables
        is_stated = is_named and (self.roster.in_other_order or is_secure)
        return {"columns": json.dumps(self.roster.columns)} if is_stated else {}

    def _enrolment(self, strategy: Algorithm) -> dict[str, Any]:
        """Return what clients are told when they are asked for their names and columns."""
        most_rows = self.settings.most_rows
        return {**strategy.enrolment, **({} if most_rows == MOST_ROWS else {"most_rows": most_rows})}

    def notes(self) -> list[str]:
        """Return what the report says of how the sums were made."""
        return [] if self.sums is None else self.sums.notes(len(self.roster.members), self.n_exchanges, self.number)

    # Enrolment: every client gives its name and its columns.

    def _enrol(self, strategy: Algorithm) -> Part[None]:
        """Enrol the clients of a new run, or clients of an interrupted run that are there again."""
        self.roster.see((yield WhoIsThere("enrol", self.roster.are_expected)))
        self.roster.check_enough_connected()
        goes_on, log = self.number > 0, self.log
        facts: dict[str, Any] = {"goes_on": True} if goes_on and self.roster.members else {}
        if plan := strategy.first_plan:
            facts["plan"] = plan
        told = {**self._common, **facts, "round": 1, **self._enrolment(strategy)}
        messages = self.roster.ask(self.roster.new_nodes(), told)
        if goes_on:
            self.log = RunLog()  # the journal has noted the first enrolment
        self._take_in(1, messages, (yield from self._sent(messages)))
        if goes_on:
            enrolment, self.log = self.log, log
        else:
            enrolment, columns = self.log, self.roster.columns
            n_columns = columns if isinstance(columns, int) else len(columns)
            self.n_columns = self.inspection.n_columns = self.settings.n_prepared or n_columns
        n_enrolled = len(self.roster.here if goes_on else self.roster.members)
        # Without a client that will only answer later, the others would spend their budget on another result.
        expected = self.roster.expected if self._waits else 0
        self._check_enough(1, ENROL, n_enrolled, max(self.roster.least, expected), enrolment)

    def _take_in(self, number: int, messages: Sequence[Message], answers: Answers) -> None:
        """Enrol the nodes that were asked to, and note those that cannot be."""
        nodes = {one.node for one in messages if one.kind == "enrol"}
        stated = {}
        for node in nodes & answers.replies.keys():
            metrics = answers.replies[node].metrics
            name = metrics.get("client") if isinstance(metrics, Mapping) else None
            stated[node] = name if is_name(name) else node
        named = self.roster.names_to_log(stated)
        asked = [replace(one, client=named[one.node]) for one in messages if one.node in nodes]
        said = self._read(number, asked, answers, lambda one, res: checked_enrolment(one.client, res))
        self.log.note_failures(number, ENROL, self.roster.take_in(said))
        self.log.messages.append(Reported(number, ENROL, "name and columns", "one per client", harmless=True))

    # The journal of a run that may be interrupted.

    def _kept_rounds(self, strategy: Algorithm) -> Iterator[Record]:
        """Yield what the journal holds, each record once the protocol asks what it asked before."""
        if self.journal is None:
            return
        head = self.journal.begin(strategy.name, strategy.given, self.id)
        self.id = self._common["run"] = head["run"]
        if self.settings.random_state is None:
            self.rng = np.random.default_rng(head["entropy"])
        yield from self.journal.checked_records(lambda: digest_of(self.round))

    def _go_on(self, record: Record) -> None:
        """Take over what a round left in a run that was interrupted; its clients are away until they enrol again."""
        facts = record.facts
        messages = self.log.add(facts["log"])
        self.number = record.number
        self.roster.members = {name: Member("") for name in facts["clients"]}
        self.roster.columns = facts["columns"]
        self.n_columns = self.inspection.n_columns = facts["n_columns"]
        self.rng.bit_generator.state = facts["rng"]
        if self.spending is not None:
            self.spending.go_on(messages, list(self.roster.members))

    def _record(self, asked: Round | None, received: Brought | TooFewError) -> Record | None:
        """Return what a round left at the server, for the journal; the enrolment asks no question."""
        if self.journal is None:
            return None
        facts = {
            "clients": list(self.roster.members),
            "columns": self.roster.columns,
            "n_columns": self.n_columns,
            "rng": self.rng.bit_generator.state,
            "log": self.log.of_round(self.number),
        }
        return Record(self.number, digest_of(asked), received, facts)

    def _keep(self, strategy: Algorithm, asked: Round | None, record: Record | None) -> None:
        """Write a round to the journal, and say that it is over."""
        if self.journal is not None and record is not None:
            self.journal.keep(record)
        if strategy.on_round is not None:
            strategy.on_round(self.number, ENROL if asked is None else asked.task)

    def _note_asked_again(self, round_: Round) -> None:
        """Note that a round may have been answered before the interruption, with other noise of the clients."""
        if self.settings.noise != "server" and self.noise_seed is None and any(round_.releases):
            self.log.asked_again.append(self.number)

    # Asking.

    def _ask(self, strategy: Algorithm, round_: Round, step: Step | None = None) -> Part[Messages]:
        """Return the messages of a round, and messages to clients that have come since the last one.

        An optional round that too few clients can answer asks nobody.
        """
        self.roster.see((yield WhoIsThere("round", self.roster.are_enough)))
        present = self.roster.awake(self.number)
        addressees = self._addressees(round_, present)
        named = set(addressees)
        late = {name: left for name in addressees if name in present and (left := self.roster.missed(name)) is not None}
        asked = {name: node for name, node in present.items() if name in named and name not in late}
        absent = {name: self.roster.why_absent(name) for name in addressees if name not in asked}
        self.log.note_failures(self.number, round_.task, absent)
        if absent and len(asked) < (required := self._required(round_, len(asked))):
            if round_.needed:
                self._check_enough(self.number, round_.task, len(asked), required)
            asked = {}
        if self.spending is not None:
            self.spending.spend(round_.task, round_.releases, list(asked))
        if asked:
            check_capacity(round_, len(asked), self._n_shares(round_, len(asked)))
        others = {} if round_.others is None else {name: node for name, node in present.items() if name not in named}
        n_clients = len(asked) + len(others) + len(late)
        config = self._config(strategy, round_, len(asked), n_clients)
        if step is not None:
            config[SECURE] = field_of(step)
        messages = self._messages(asked, round_.question, config, adds_up=isinstance(round_, Sum))
        if round_.others is not None:
            without_noise = {key: value for key, value in config.items() if key not in ("parts", "n_shares")}
            messages += self._messages(others, round_.others, without_noise, "others")
        for name, left in late.items():
            self._catch_up(name, left)
            left_config = self._config(strategy, left, 1, n_clients)
            messages += self._messages({name: present[name]}, left.question, left_config, "earlier")
        return messages + self._ask_new(strategy, {one.node for one in messages})

    def _ask_new(self, strategy: Algorithm, asked: Collection[str]) -> Messages:
        """Return messages that ask newly connected nodes to enrol, but for those that are asked for something else."""
        new = self.roster.new_nodes(asked)
        return self.roster.ask(new, {**self._common, "round": self.number, **self._enrolment(strategy)}) if new else []

    def _check_declared(self, round_: Round) -> None:
        """Raise a ProtocolError unless the strategy's clients have what a round asks for."""
        client_type, others = self.settings.client_type, round_.others
        for answer in [round_.answer] if others is None else [round_.answer, others.answer]:
            if getattr(client_type, answer.task, None) is None:
                raise ProtocolError(
                    f"{client_type.__name__} has no method '{answer.task}'; the strategy's client_type must inherit "
                    "from the class whose method a round names."
                )
        if others is not None and others.answer.sends:
            raise ProtocolError(
                f"'{others.answer.task}' is for clients that a round does not ask, and sends something."
            )

    def _addressees(self, round_: Round, present: Mapping[str, str]) -> list[str]:
        named = round_.named
        if named is not None:
            return [name for name in self.roster.members if name in named]
        if round_.fraction == 1.0:
            return list(self.roster.members)
        names = list(present)
        n_drawn = min(self.n_to_draw(round_.fraction, len(names)), len(names))
        drawn = self.rng.choice(len(names), size=n_drawn, replace=False)
        return [names[index] for index in sorted(drawn)]

    def n_to_draw(self, fraction: float, n_clients: int) -> int:
        """Return how many of some clients a fraction is: at least as many as have to answer a round."""
        return max(self.roster.least, round(fraction * n_clients))

    def _config(self, strategy: Algorithm, round_: Round, n_asked: int, n_clients: int) -> dict[str, Any]:
        """Return what all messages of a round say: ``n_asked`` clients answer it, and ``n_clients`` get a message."""
        config: dict[str, Any] = {**self._common, "round": self.number, "n_clients": n_clients, **self._order}
        if plan := strategy.plan:
            config["plan"] = plan
        if round_.rows:
            config["rows"] = round_.rows
        if any(round_.releases) and (self.settings.noise != "server" or round_.answer.keeps):
            if not round_.parts:
                raise ProtocolError(f"'{round_.task}' takes noise of the clients; name the parts that pay for it.")
            config["parts"] = json.dumps(list(round_.parts))
            config["n_shares"] = self._n_shares(round_, n_asked)
        return config

    def _messages(
        self,
        nodes: Mapping[str, str],
        question: Question | Mapping[str, Question],
        config: Mapping[str, Any],
        kind: Kind = "round",
        *,
        adds_up: bool = False,
    ) -> Messages:
        """Return the messages with a question: one that all share, or one for each client that has its own."""
        if not isinstance(question, Question):
            alone = [({name: node}, question[name]) for name, node in nodes.items()]
            return [one for of_one, own in alone for one in self._messages(of_one, own, config, kind, adds_up=adds_up)]
        arrays, fields = question.to_wire()
        full = {**config, **fields} if arrays else {**config, **fields, EMPTY: True}
        ins = FitIns(encode(arrays or TO_CLIENT), full)
        n_bytes = size_of(ins.parameters) if arrays else 0
        return [Message(node, name, ins, kind, n_bytes, adds_up) for name, node in nodes.items()]

    def _ask_step(self, step: Step, round_: Round) -> Part[Messages]:
        """Return the messages of a step of a secure sum that asks for no answer of the round."""
        self.roster.see((yield WhoIsThere("step", self.roster.are_enough)))
        present = self.roster.awake(self.number)
        absent = {name: self.roster.why_absent(name) for name in step.clients if name not in present}
        self.log.note_failures(self.number, round_.task, absent)
        if not self._is_enough(step, round_, len(step.clients) - len(absent)):
            return []
        about = {"task": task_of(step), SECURE: field_of(step), "n_clients": len(step.clients)}
        config = {**self._common, "round": self.number, **about}
        messages = []
        for name in step.clients:
            if name in present:
                given = step.arrays.get(name, [])
                sent = encode(given or TO_CLIENT)
                ins = FitIns(sent, config if given else {**config, EMPTY: True})
                messages.append(Message(present[name], name, ins, "step", size_of(sent) if given else 0))
        return messages

    def _catch_up(self, name: str, left: Round) -> None:
        """Spend and note what an earlier round asks of a client that was not there then."""
        member = self.roster.members[name]
        if left.task in member.asked:
            return
        member.asked.add(left.task)
        if self.spending is not None:
            self.spending.spend(left.task, left.releases, [name])
        if any(one.task == left.task and one.clients is None for one in self.log.messages):
            return  # the report has it for every client
        variations = variations_of(left, self.settings.noise, [], 1)
        self.log.note_round(
            self.number, left, variations, asked=[name], answered=[], n_clients=len(self.roster.members), is_enough=True
        )

    # How many clients are enough, and among how many the noise is divided.

    def _sums_shares(self, round_: Round) -> bool:
        return self.settings.noise == "clients" and isinstance(round_, Sum) and not round_.answer.keeps

    def _required(self, round_: Round, n_asked: int) -> int:
        """Return how many clients have to answer a round.

        If the clients bring the noise, the share of a client that drops out is missing from the sum. With min_clients
        the shares are so large that any min_clients of them are enough, and sums over fewer are refused.
        """
        fewest = 0 if self.sums is None else self.sums.fewest(len(self.roster.members))
        if self.settings.min_clients is None and round_.is_noisy and self._sums_shares(round_):
            return max(n_asked, MIN_CLIENTS, fewest)
        return max(self.roster.least, fewest)

    def _n_shares(self, round_: Round, n_asked: int) -> int:
        """Return among how many clients the noise is divided.

        In a Gather round the server sees every reply, and a share alone would protect none. With secure sums so many
        are left without the clients that may withhold their share.
        """
        colluders = 0 if self.sums is None else self.sums.n_colluders(len(self.roster.members))
        return max(1, self._required(round_, n_asked) - colluders) if self._sums_shares(round_) else 1

    def noise_of_sum(self, release: Release) -> float:
        """Return the standard deviation of the noise in a sum over all clients, in the array's units.

        With noise="clients" it can exceed the release's own, because every client adds a share.
        """
        if self.settings.noise == "server":
            return release.standard_deviation
        n, n_shares = len(self.roster.members), 1
        if self.settings.noise == "clients":
            fewest, colluders = 0, 0
            if self.sums is not None:
                n, fewest, colluders = self.sums.n_clients(n), self.sums.fewest(n), self.sums.n_colluders(n)
            n_shares = max(1, max(self.settings.min_clients or n, fewest) - colluders)
        return release.standard_deviation * math.sqrt(n / n_shares)

    def _is_enough(self, step: Step, round_: Round, n_left: int) -> bool:
        """Return whether enough clients take a step; if not, end the run, or leave out an optional round."""
        assert self.sums is not None
        n_asked = len(step.clients) if step.name == "mask" else self.sums.n_clients(len(self.roster.members))
        of_keys = max(self.roster.least, FEWEST)
        required = of_keys if step.name == "keys" else self._required(round_, n_asked)
        if n_left >= required:
            return True
        if not round_.needed:
            return False
        reasons = self.log.reasons(self.number, round_.task) or self.log.reasons(self.number, task_of(step))
        raise TooFewError(
            f"round {self.number} ('{round_.task}'): {n_left} clients took the step '{step.name}' of a secure sum and "
            f"{required} have to; nothing was opened. {' '.join(reasons[:3])}"
        )

    def _check_enough(self, number: int, task: str, n_answered: int, required: int, log: RunLog | None = None) -> None:
        """Raise a TooFewError if too few clients answered."""
        if n_answered >= required:
            return
        all_bring_noise = self.settings.noise == "clients" and self.settings.min_clients is None and task != ENROL
        why = " (with noise='clients' a missing client's share of the noise is missing too)" if all_bring_noise else ""
        reasons = " ".join((log or self.log).reasons(number, task)[:3])
        raise TooFewError(
            f"round {number} ('{task}'): {n_answered} clients answered and {required} have to{why}. {reasons}"
        )

    def check_enough_usable(self, n_usable: int) -> None:
        """Raise a TooFewError if a protocol can use too few of the replies of the last round."""
        self._check_enough(self.number, self.task, n_usable, self.roster.least)

    # Receiving.

    def receive(self, round_: Round, messages: Sequence[Message], answers: Answers) -> Brought:
        """Return the sums or the replies of a round; None for an optional round that too few clients answered."""
        replies, sums = self._checked_replies(round_, messages, answers)
        arrays: list[Sequence[Sendable]] = [*replies.values(), *(one.arrays for one in sums)]
        n_answered = len(replies) + sum(len(one.nodes) for one in sums)
        n_asked = self._note_replies(round_, messages, replies, n_answered, arrays)
        if self.roster.enrolling:
            self._take_in(self.number, messages, answers)
        required = self._required(round_, n_asked)
        if n_answered < required and not round_.needed:
            return None
        self._check_enough(self.number, round_.task, n_answered, required)
        if round_.answer.keeps:
            return []
        if isinstance(round_, Sum):
            return self._total(round_, add_up(arrays), n_answered, arrays)
        if self.settings.noise == "server" and any(round_.releases):
            releases, source = round_.releases, self._noise()
            return [Reply(name, values_of(add_noise(arrays, releases, source))) for name, arrays in replies.items()]
        return [Reply(name, values_of(arrays)) for name, arrays in replies.items()]

    def _receive_masked(self, sums: SecureSums, round_: Round, messages: Sequence[Message], answers: Answers) -> int:
        """Take masked answers, which show nothing but their form; return how many there are."""
        sends, n_columns = round_.answer.sends, self.inspection.n_columns
        ours = [one for one in messages if one.kind != "enrol"]
        read = self._read(
            self.number,
            ours,
            answers,
            lambda one, res: checked_masked(one.client, res, sends, n_columns) if one.kind == "round" else [],
        )
        replies = self._by_client(ours, answers, read)
        odd = self.inspection.unlike(round_, replies, _first_of(messages))
        self.log.note_failures(self.number, round_.task, odd)
        replies = {name: arrays for name, arrays in replies.items() if name not in odd}
        self._note_replies(round_, messages, replies, len(replies), list(replies.values()))
        if self.roster.enrolling:
            self._take_in(self.number, messages, answers)
        for name, arrays in replies.items():
            sums.take_masked(name, arrays)
        return len(replies)

    def _receive_step(self, step: Step, messages: Sequence[Message], answers: Answers) -> int:
        """Take what clients send in a step of a secure sum; return how many have taken it."""

        def take(one: Message, res: Any) -> bool:
            try:
                step.take(one.client, *([] if res.metrics.get(EMPTY) else decode(res.parameters)))
            except (SumError, DataError, TypeError) as error:
                what = str(error) if isinstance(error, SumError) else "arrays of another form than the step has"
                raise ReplyError(f"client {one.client} sent {what}.") from None
            return True

        for one in messages:
            self.roster.members[one.client].note(self.number, answered=one.node in answers.replies)
        return len(self._read(self.number, messages, answers, take))

    def _total(
        self,
        round_: Round,
        sums: list[Sendable],
        n_clients: int,
        replies: Sequence[Sequence[Sendable]] | None = None,
    ) -> Total:
        """Return the sums as the protocol gets them, with the server's noise if it adds any.

        Whether they overflow is looked at once they have their noise. ``replies`` are what was added up; None if that
        was masked.
        """
        before = sums
        if self.settings.noise == "server" and any(round_.releases):
            sums = add_noise(sums, round_.releases, self._noise())
        if replies is not None:
            too_large = beyond_63_bits(self.inspection.hidden(round_), replies, before, sums)
        else:
            assert self.sums is not None
            too_large = self.sums.overflows(sums)
        for index in too_large:
            raise ProtocolError(
                f"round {self.number} ('{round_.task}'): with its noise, the sum of "
                f"{round_.answer.sends[index].content} exceeds 63 bits. Ask fewer clients, or choose a coarser unit."
            )
        deviations = [0.0 if release is None else self.noise_of_sum(release) for release in round_.releases]
        return Total(values_of(sums), n_clients, deviations)

    def _noise(self) -> NoiseSource:
        return OperatingSystemNoise() if self.noise_seed is None else SeededNoise([self.noise_seed, self.number])

    def _note_replies(
        self,
        round_: Round,
        messages: Sequence[Message],
        replies: Mapping[str, list[Sendable]],
        n_answered: int,
        arrays: Sequence[Sequence[Sendable]],
    ) -> int:
        """Note what has left the clients, whatever becomes of the run; return how many were asked."""
        main = {one.client for one in messages if one.kind == "round"}
        asked = [name for name in self.roster.members if name in main]
        # Before anything can end the run: what the server holds has left the clients.
        n_shares = self._n_shares(round_, len(asked))
        variations = variations_of(round_, self.settings.noise, next(iter(arrays), []), n_shares)
        # The server has not forgotten what a round that is asked again brought before the interruption.
        times = 2 if self.number in self.log.asked_again else 1
        for _ in range(times if asked else 0):
            self.log.note_round(
                self.number,
                round_,
                variations,
                asked=asked,
                answered=replies,
                n_clients=len(self.roster.members),
                is_enough=n_shares <= max(n_answered, 1),
            )
        self.roster.note_left(round_, main, replies)
        return len(asked)

    def _checked_replies(
        self, round_: Round, messages: Sequence[Message], answers: Answers
    ) -> tuple[dict[str, list[Sendable]], list[Summed]]:
        """Return the replies that can be used, by client, and the replies that came added up."""
        ours = [one for one in messages if one.kind != "enrol"]
        n_summed = len(ours) if isinstance(round_, Sum) else 0
        sums, alone = answers.sums, dict(answers.replies)
        for total in sums:
            total.hide(self.inspection.hidden(round_))
            taken_out = total.take_out(self.inspection.suspects(round_, total, n_summed))
            alone |= taken_out
        summed = {node: total.n_bytes for total in sums for node in total.nodes}

        def check(one: Message, res: Any) -> list[Sendable]:
            return self.inspection.checked(one.client, round_, res, n_summed) if one.kind == "round" else []

        alone_answers = replace(answers, replies=alone)
        read = self._read(self.number, ours, alone_answers, check, summed)
        replies = self._by_client(ours, alone_answers, read)
        called = {one.node: one.client for one in ours}
        names = [[called[node] for node in total.nodes] for total in sums]
        odd = self.inspection.odd_ones(round_, replies, _first_of(messages), sums, names)
        self.log.note_failures(self.number, round_.task, odd)
        for total, of_sum in zip(sums, names, strict=True):
            if odd:
                total.take_out(np.array([name in odd for name in of_sum]))
            self.inspection.take(round_, total, [name for name in of_sum if name not in odd])
        left = {name: arrays for name, arrays in replies.items() if name not in odd}
        return left, [total for total in sums if total.nodes]

    def _by_client(
        self, messages: Sequence[Message], answers: Answers, read: Mapping[str, list[Sendable]]
    ) -> dict[str, list[Sendable]]:
        """Note who has answered, and return the replies of the round itself by client."""
        nodes, called = answers.nodes, dict[str, str]()
        for one in messages:
            self.roster.members[one.client].note(self.number, answered=one.node in nodes)
            if one.kind == "earlier" and one.node in read:
                self.roster.members[one.client].has.add(one.task)
            if one.kind == "round":
                called[one.node] = one.client
        return {called[node]: arrays for node, arrays in read.items() if node in called}

    def _read(
        self,
        number: int,
        messages: Sequence[Message],
        answers: Answers,
        check: Callable[[Message, Any], T],
        summed: Mapping[str, int] = MappingProxyType({}),
    ) -> dict[str, T]:
        """Return what the replies hold, by node; note traffic, and why a reply is missing or cannot be used.

        ``summed`` has the bytes of the replies that came added up.
        """
        said = {f"{type(failure).__name__}: {failure}" for failure in answers.failures}
        reasons = sorted(one_line(one) for one in said)
        silent = f"did not answer{f' ({reasons[0]})' if reasons else ''}."
        if reasons and all(one.kind == "enrol" for one in messages):
            silent += " If its ClientApp has mods that change what it sends, remove them."
        found = {}
        for one in sorted(messages, key=lambda one: client_order(one.client)):
            if (n_bytes := summed.get(one.node)) is not None:
                self.log.traffic.append(Traffic(number, one.task, one.client, one.n_bytes, n_bytes))
                continue
            res: Any = answers.replies.get(one.node)
            n_bytes = 0 if one.kind == "enrol" else bytes_of(res)
            ledger = ledger_of(res and res.metrics)
            self.log.traffic.append(Traffic(number, one.task, one.client, one.n_bytes, n_bytes, ledger))
            if res is None:
                self.log.note_failures(number, one.task, {one.client: f"client {one.client} {silent}"})
                continue
            try:
                found[one.node] = read_reply(one.client, res, partial(check, one))
            except ReplyError as error:
                self._note_refusal(number, one, error)
        return found

    def _note_refusal(self, number: int, asked: Message, error: ReplyError) -> None:
        """Note a reply that is not used. Why a client cannot answer may say something about its rows."""
        self.log.note_failures(number, asked.task, {asked.client: str(error)})
        if not isinstance(error, RefusalError):
            return
        if error.waits:
            self._waits = True
            return
        if not error.missed:
            content = f"why client {asked.client} could not answer (a row and a column, no value)"
            self.log.messages.append(Reported(number, asked.task, content, "one sentence"))
        elif asked.kind != "enrol":
            self.roster.members[asked.client].has.clear()

    # The model, to evaluate or to keep.

    def _send_model(self, outcome: Outcome) -> Part[dict[str, float]]:
        """Send the model to all clients once; return what they find of it, {} if nobody was asked or replied."""
        self.roster.see((yield WhoIsThere("model", self.roster.are_enough)))
        settings, sent = self.settings, encode(outcome.model.to_arrays())
        facts = {
            **self._common,
            "model": outcome.model.name,
            "evaluate": settings.federated_evaluation,
            "share": settings.share_model,
            **self._order,
        }
        if settings.share_model and len(described := str(outcome.clusters or "")) <= LONGEST_DESCRIPTION:
            facts["clusters"] = described
        ins, n_bytes = EvaluateIns(sent, facts), size_of(sent)
        here = self.roster.awake(self.number)
        messages = [Message(node, name, ins, "model", n_bytes) for name, node in here.items()]
        n_clusters = outcome.model.n_clusters if settings.federated_evaluation else None
        answers = (yield messages) if messages else Answers({})
        read = self._read(
            self.number,
            messages,
            answers,
            lambda one, res: checked_evaluation(
                one.client, res, n_clusters=n_clusters, most_rows=self.settings.most_rows
            ),
        )
        called = {one.node: one.client for one in messages}
        found = {node: one for node, one in read.items() if one is not None}
        for node, one in found.items():
            self.inspection.stated[called[node]] = float(one.n_rows)
        contents = ("k-means cost of the rows", "number of rows", "table of classes by clusters")
        for content in contents if answers.replies and n_clusters is not None else ():
            self.log.messages.append(Reported(self.number, EVALUATE, content, "one per client"))
        return evaluation_of(list(found.values()))


def _first_of(messages: Sequence[Message]) -> FitIns | None:
    """Return the message to one of the clients that a round asks."""
    return next((one.ins for one in messages if one.kind == "round" and isinstance(one.ins, FitIns)), None)
