"""One run, from the first message to the last, as a generator that the carrier of its messages drives."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from flwr.common import EvaluateIns, FitIns

from flower_fedclust.engine.fields import ENROL, SECURE
from flower_fedclust.engine.journal import Journal, Record, digest_of
from flower_fedclust.engine.log import RunLog, variations_of
from flower_fedclust.engine.messages import (
    EVALUATE,
    Answers,
    Kind,
    Message,
    Steps,
    Summed,
    WhoIsThere,
)
from flower_fedclust.engine.parts import Budget, Spending
from flower_fedclust.engine.replies import (
    Inspection,
    RefusalError,
    ReplyError,
    T,
    add_up,
    beyond_63_bits,
    check_capacity,
    checked_arrays,
    checked_evaluation,
    evaluation_of,
    one_line,
    read_reply,
    traffic_of,
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
from flower_fedclust.engine.wire import EMPTY, TO_CLIENT, encode, size_of
from flower_fedclust.exact.grid import MOST_ROWS
from flower_fedclust.format import FORMAT
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.privacy.noise import (
    NoiseSource,
    OperatingSystemNoise,
    SeededNoise,
    Sendable,
    add_noise,
    on_grid,
)
from flower_fedclust.privacy.releases import Release
from flower_fedclust.privacy.report import Message as Reported
from flower_fedclust.secure import Step, SumError
from flower_fedclust.secure.keys import FEWEST

#: The most characters of the description of the clusters that sites receive with the model.
LONGEST_DESCRIPTION = 2**18

Messages: TypeAlias = list[Message]

#: What a round brings: sums, the replies of single clients, or None if it was optional and too few could answer.
Brought: TypeAlias = Total | list[Reply] | None

#: A stage of a run: a generator that yields what :meth:`Run.steps` yields, to the same carrier, and returns a result.
Stage: TypeAlias = Generator[WhoIsThere | Messages, Any, T]


class Run:
    """One run, from the first message to the last.

    :meth:`steps` is the run; the other methods are its steps, and the attributes are its state.
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
        self.number = 0  #: The number of the last round that was asked; clients enrol in round 1.
        #: The round that the protocol asks for; None before its first round and after its last.
        self.round: Round | None = None
        self.outcome: Outcome | None = None
        self.sizes: ReleasedSizes | None = None  #: The last sizes of clusters that were released.
        self.rows: ReleasedSizes | None = (
            None  #: The number of all rows that was released with least noise.
        )
        self.evaluation: dict[str, float] | None = None
        self.noise_seed = settings.noise_seed
        self.n_columns = 0  #: The number of columns of the rows that the strategy sees.
        self.n_exchanges = 0  #: How often clients were sent messages.
        #: The budget as far as it is known before clients enrol.
        self.announced: Budget | None = None
        #: The frozen budget and what is spent of it; None before it is frozen.
        self.spending: Spending | None = None
        #: The server's random generator for choices that privacy does not depend on.
        self.rng = np.random.default_rng(settings.random_state)
        self.log = RunLog()
        self.roster = Roster(settings.least, settings.expected_clients or 0, server_columns)
        self.inspection = Inspection(settings)
        self.sums = SecureSums(run_id, settings) if secure else None
        self._waits = False  # whether a client waits for the approval of the study
        # The field that states the order of the columns; made once clients have enrolled.
        self._order: dict[str, str] = {}
        #: The fields of every message.
        self._common: dict[str, Any] = {
            "format": FORMAT,
            "client": settings.client_type.key(),
            "run": run_id,
        }

    # The run.

    def steps(self, strategy: Algorithm) -> Steps:
        """Run a strategy: yield messages, be sent the answers, return the outcome.

        The run asks its carrier for two things: which nodes are connected, and to bring messages. The carrier may throw
        an error, which ends the run. The results of an exchange are released before the next one begins.
        """
        protocol = strategy.begin()
        strategy.freeze_plan()
        for record in self._kept_rounds(strategy):  # replay an interrupted run
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
                # This raises the error, unless the protocol catches it.
                self._next_round(strategy, protocol, error)
                self._keep(strategy, asked, kept)
                continue
            # After the noise, before anything uses it.
            self._keep(strategy, asked, self._record(asked, received))
            self._next_round(strategy, protocol, received)
            del received
        assert self.outcome is not None
        if self.journal is not None:
            self.journal.wait()  # before anybody sees a result
        if self.settings.sends_model and self.evaluation is None:
            self.evaluation = yield from self._send_model(self.outcome)
        return self.outcome

    def _next_round(
        self, strategy: Algorithm, protocol: Protocol, received: Brought | TooFewError
    ) -> None:
        """Send the protocol the results of a round; take its next round, with its noise, or its outcome."""
        if self.round is not None:
            if strategy.on_received is not None and not isinstance(received, TooFewError):
                strategy.on_received(self.round, received)
            self.sizes = ReleasedSizes.of_round(self.round, received) or self.sizes
            rows = ReleasedSizes.of_all_rows(self.round, received)
            if rows is not None and (self.rows is None or rows.deviation < self.rows.deviation):
                self.rows = rows
        strategy.freeze_plan()
        try:
            with one_thread():
                round_ = (
                    protocol.throw(received)
                    if isinstance(received, TooFewError)
                    else protocol.send(received)
                )
        except DataError as error:
            raise DataError(f"{error}{self.inspection.why_likely}") from error
        except StopIteration as stop:
            self.round = None
            self.outcome = stop.value if isinstance(stop.value, Outcome) else Outcome(stop.value)
            if self.outcome.model.columns_ is None and isinstance(self.roster.columns, list):
                self.outcome.model.columns_ = self.roster.columns
            return
        if self.settings.most_rows != MOST_ROWS:
            round_ = allowing(round_, self.settings.most_rows)
        self.round = strategy.with_noise(round_)
        if self.number >= self.settings.n_rounds:
            raise ProtocolError(
                f"'{self.task}' is round {self.number} of the protocol, and n_protocol_rounds says that there are at "
                f"most {self.settings.n_rounds - 1}; the strategy must say how many rounds it can have."
            )

    def _exchange(self, strategy: Algorithm, round_: Round) -> Stage[Brought]:
        """Ask the clients of a round; return its sums with their noise, or the replies.

        Returns None for an optional round that too few clients can answer or did answer.
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
        self.n_exchanges += 1
        return self.receive(round_, messages, (yield messages))

    def _secure_sum(self, sums: SecureSums, strategy: Algorithm, round_: Round) -> Stage[Brought]:
        """Ask for a secure sum, which takes four exchanges (the first takes six); the server sees only the sum."""
        n = sums.n_clients(len(self.roster.members))
        _, n_shares = self._quorum(round_, n)
        sums.check_rows(round_, n, n_shares)
        try:
            for step in sums.steps(self.number, list(self.roster.members)):
                if step.name == "mask":
                    messages = yield from self._ask(
                        strategy, replace(round_, clients=step.clients), step
                    )
                else:
                    messages = yield from self._ask_step(step, round_)
                if not messages:
                    return None
                self.n_exchanges += 1
                answers: Answers = yield messages
                if step.name == "mask":
                    n_left = self._receive_masked(sums, round_, messages, answers)
                else:
                    n_left = self._receive_step(step, messages, answers)
                del answers
                if not self._is_enough(step, round_, n_left):
                    return None
            opened = sums.opened()
        except SumError as error:
            raise ProtocolError(
                f"round {self.number} ('{round_.task}') cannot be added up: {error}."
            ) from None
        total = self._total(round_, opened, sums.n_summed)
        sums.note_rows(round_, total, sums.n_clients(len(self.roster.members)))
        return total

    # The state of the run.

    @property
    def clients(self) -> dict[str, Member]:
        """The clients that enrolled, in the order in which their replies are added up."""
        return self.roster.members

    @property
    def task(self) -> str:
        """The task that clients are asked for at the moment."""
        return ENROL if self.round is None else self.round.task

    def _stated_order(self) -> dict[str, str]:
        """Return the field with the order of the columns; {} unless some client has them in another order.

        With secure sums every message states the order, so that a client that joins later changes no question.
        """
        is_named = isinstance(self.roster.columns, list)
        is_secure = self.sums is not None and not self.settings.has_tables
        is_stated = is_named and (self.roster.in_other_order or is_secure)
        return {"columns": json.dumps(self.roster.columns)} if is_stated else {}

    def _enrolment(self, strategy: Algorithm) -> dict[str, Any]:
        """Return the fields of a message that asks clients to enrol."""
        most_rows = self.settings.most_rows
        return {
            **strategy.enrolment,
            **({} if most_rows == MOST_ROWS else {"most_rows": most_rows}),
        }

    def notes(self) -> list[str]:
        """Return the report's notes on how the sums were made."""
        return (
            []
            if self.sums is None
            else self.sums.notes(len(self.roster.members), self.n_exchanges, self.number)
        )

    # Enrolment: every client gives its name and its columns.

    def _enrol(self, strategy: Algorithm) -> Stage[None]:
        """Enrol the clients of a new run, or the returning clients of an interrupted run."""
        self.roster.connected = dict.fromkeys((yield WhoIsThere("enrol", self.roster.are_expected)))
        self.roster.check_enough_connected()
        goes_on, log = self.number > 0, self.log
        facts: dict[str, Any] = {"goes_on": True} if goes_on and self.roster.members else {}
        if plan := strategy.first_plan:
            facts["plan"] = plan
        told = {**self._common, **facts, "round": 1, **self._enrolment(strategy)}
        messages = self.roster.ask(self.roster.new_nodes(), told)
        if goes_on:
            self.log = RunLog()  # the journal has noted the first enrolment
        self.n_exchanges += 1
        self._take_in(1, messages, (yield messages))
        if goes_on:
            enrolment, self.log = self.log, log
        else:
            enrolment, columns = self.log, self.roster.columns
            n_columns = columns if isinstance(columns, int) else len(columns)
            self.n_columns = self.inspection.n_columns = self.settings.n_prepared or n_columns
        n_enrolled = len(self.roster.here if goes_on else self.roster.members)
        # Wait for a client whose approval is pending: without it, the others would spend budget on a different result.
        expected = self.roster.expected if self._waits else 0
        required = max(self.roster.least, expected)
        if n_enrolled < required:
            raise self._too_few(1, ENROL, n_enrolled, required, enrolment)

    def _take_in(self, number: int, messages: Sequence[Message], answers: Answers) -> None:
        """Enrol the nodes that were asked to enrol, and note a failure for each that cannot take part."""
        nodes = {message.node for message in messages if message.kind == "enrol"}
        stated = {}
        for node in nodes & answers.replies.keys():
            metrics = answers.replies[node].metrics
            name = metrics.get("client") if isinstance(metrics, Mapping) else None
            stated[node] = name if is_name(name) else node
        named = self.roster.names_to_log(stated)
        asked = [
            replace(message, client=named[message.node])
            for message in messages
            if message.node in nodes
        ]
        read = self._read(
            number, asked, answers, lambda message, res, _: checked_enrolment(message.client, res)
        )
        said = {message.node: one for message, one in read}
        self.log.note_failures(number, ENROL, self.roster.take_in(said))
        self._order = self._stated_order()
        self.log.messages.append(
            Reported(number, ENROL, "name and columns", "one per client", harmless=True)
        )

    # The journal of a run that may be interrupted.

    def _kept_rounds(self, strategy: Algorithm) -> Iterator[Record]:
        """Yield the journal's records in order; before each, check that the protocol asks the recorded question."""
        if self.journal is None:
            return
        head = self.journal.begin(strategy.name, strategy.given, self.id)
        self.id = self._common["run"] = head["run"]
        if self.settings.random_state is None:
            self.rng = np.random.default_rng(head["entropy"])
        yield from self.journal.checked_records(lambda: digest_of(self.round))

    def _go_on(self, record: Record) -> None:
        """Restore the state after a recorded round; its clients count as away until they enrol again."""
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
        """Return the journal's record of a round; ``asked`` is None for the enrolment."""
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
        """Write a round to the journal, and call ``on_round``."""
        if self.journal is not None and record is not None:
            self.journal.keep(record)
        if strategy.on_round is not None:
            strategy.on_round(self.number, ENROL if asked is None else asked.task)

    def _note_asked_again(self, round_: Round) -> None:
        """Note that clients may have answered a round before the interruption too, with different noise."""
        if self.settings.noise != "server" and self.noise_seed is None and any(round_.releases):
            self.log.asked_again.append(self.number)

    # Asking.

    def _ask(self, strategy: Algorithm, round_: Round, step: Step | None = None) -> Stage[Messages]:
        """Return the messages of a round, and messages that enrol newly connected clients.

        An optional round that too few clients can answer asks nobody.
        """
        self.roster.connected = dict.fromkeys((yield WhoIsThere("round", self.roster.are_enough)))
        present = self.roster.awake(self.number)
        addressees = self._addressees(round_, present)
        named = set(addressees)
        late = {
            name: left
            for name in addressees
            if name in present and (left := self.roster.missed(name)) is not None
        }
        asked = {name: node for name, node in present.items() if name in named and name not in late}
        absent = {name: self.roster.why_absent(name) for name in addressees if name not in asked}
        required, n_shares = self._quorum(round_, len(asked))
        if absent:
            self.log.note_failures(self.number, round_.task, absent)
            if len(asked) < required:
                if round_.needed:
                    raise self._too_few(self.number, round_.task, len(asked), required)
                asked = {}
        if self.spending is not None:
            self.spending.spend(round_.task, round_.releases, list(asked))
        if asked and isinstance(round_, Sum):
            check_capacity(round_, len(asked), n_shares)
        others = (
            {}
            if round_.others is None
            else {name: node for name, node in present.items() if name not in named}
        )
        n_clients = len(asked) + len(others) + len(late)
        config = self._config(strategy, round_, len(asked), n_clients)
        if step is not None:
            config[SECURE] = field_of(step)
        messages = self._messages(asked, round_.question, config, adds_up=isinstance(round_, Sum))
        if round_.others is not None:
            without_noise = {
                key: value for key, value in config.items() if key not in ("parts", "n_shares")
            }
            messages += self._messages(others, round_.others, without_noise, "others")
        for name, left in late.items():
            self._catch_up(name, left)
            left_config = self._config(strategy, left, 1, n_clients)
            messages += self._messages({name: present[name]}, left.question, left_config, "earlier")
        if new := self.roster.new_nodes({message.node for message in messages}):
            messages += self.roster.ask(
                new, {**self._common, "round": self.number, **self._enrolment(strategy)}
            )
        return messages

    def _check_declared(self, round_: Round) -> None:
        """Raise a ProtocolError unless the strategy's clients have the methods that a round asks for."""
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
        """Return how many clients to draw for a fraction: at least as many as must answer a round."""
        return max(self.roster.least, round(fraction * n_clients))

    def _config(
        self, strategy: Algorithm, round_: Round, n_asked: int, n_clients: int
    ) -> dict[str, Any]:
        """Return the fields that all messages of a round share.

        ``n_asked`` clients get the round's question; ``n_clients`` also counts clients that get another message.
        """
        config: dict[str, Any] = {
            **self._common,
            "round": self.number,
            "n_clients": n_clients,
            **self._order,
        }
        if plan := strategy.plan:
            config["plan"] = plan
        if round_.rows:
            config["rows"] = round_.rows
        if any(round_.releases) and (self.settings.noise != "server" or round_.answer.keeps):
            if not round_.parts:
                raise ProtocolError(
                    f"'{round_.task}' takes noise of the clients; name the parts that pay for it."
                )
            config["parts"] = json.dumps(list(round_.parts))
            _, config["n_shares"] = self._quorum(round_, n_asked)
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
        """Return the messages with a question; clients with the same question share one set of instructions."""
        if not isinstance(question, Question):
            messages: Messages = []
            for name, node in nodes.items():
                messages += self._messages(
                    {name: node}, question[name], config, kind, adds_up=adds_up
                )
            return messages
        arrays, fields = question.to_wire()
        full = {**config, **fields} if arrays else {**config, **fields, EMPTY: True}
        ins = FitIns(encode(arrays or TO_CLIENT), full)
        n_bytes = size_of(ins.parameters) if arrays else 0
        return [Message(node, name, ins, kind, n_bytes, adds_up) for name, node in nodes.items()]

    def _ask_step(self, step: Step, round_: Round) -> Stage[Messages]:
        """Return the messages of a step of a secure sum, other than the step in which clients answer the round."""
        self.roster.connected = dict.fromkeys((yield WhoIsThere("step", self.roster.are_enough)))
        present = self.roster.awake(self.number)
        absent = {
            name: self.roster.why_absent(name) for name in step.clients if name not in present
        }
        self.log.note_failures(self.number, round_.task, absent)
        if not self._is_enough(step, round_, len(step.clients) - len(absent)):
            return []
        about = {"task": task_of(step), SECURE: field_of(step), "n_clients": len(step.clients)}
        config = {**self._common, "round": self.number, **about}
        messages = []
        for name in step.clients:
            if name in present:
                arrays = step.arrays.get(name, [])
                sent = encode(arrays or TO_CLIENT)
                ins = FitIns(sent, config if arrays else {**config, EMPTY: True})
                messages.append(
                    Message(present[name], name, ins, "step", size_of(sent) if arrays else 0)
                )
        return messages

    def _catch_up(self, name: str, left: Round) -> None:
        """Ask a client for an earlier round that it has missed: spend the budget for it, and log what leaves."""
        member = self.roster.members[name]
        if left.task in member.asked:
            return
        member.asked.add(left.task)
        if self.spending is not None:
            self.spending.spend(left.task, left.releases, [name])
        if any(
            message.task == left.task and message.clients is None for message in self.log.messages
        ):
            return  # the report lists this message for all clients already
        variations = variations_of(left, self.settings.noise, [], 1)
        self.log.note_round(
            self.number,
            left,
            variations,
            asked=[name],
            answered=[],
            n_clients=len(self.roster.members),
            is_enough=True,
        )

    # How many clients must answer, and how many share the noise.

    def _quorum(self, round_: Round, n_asked: int) -> tuple[int, int]:
        """Return how many clients must answer a round, and the number of clients among whom the noise is divided.

        With noise="clients", the sum lacks the noise of every client that drops out, so all clients must answer. If
        min_clients is set, the shares are larger: any min_clients of them suffice, and sums over fewer are refused.
        With secure sums, clients that may withhold their share are not counted. In a Gather round the noise is not
        divided: the server sees every reply, and a share of the noise would not protect it.
        """
        fewest = colluders = 0
        if self.sums is not None:
            n_clients = len(self.roster.members)
            fewest, colluders = self.sums.fewest(n_clients), self.sums.n_colluders(n_clients)
        required = max(self.roster.least, fewest)
        if self.settings.noise != "clients" or not isinstance(round_, Sum) or round_.answer.keeps:
            return required, 1
        if self.settings.min_clients is None and round_.is_noisy:
            required = max(n_asked, MIN_CLIENTS, fewest)
        return required, max(1, required - colluders)

    def noise_of_sum(self, release: Release) -> float:
        """Return the standard deviation of the noise in a sum over all clients, in the array's units.

        With noise="clients" it can exceed the release's own, because every client adds a share.
        """
        if self.settings.noise == "server":
            return release.standard_deviation
        n_clients = len(self.roster.members)
        if self.settings.noise != "clients":
            return release.standard_deviation * math.sqrt(n_clients)
        fewest = colluders = 0
        if self.sums is not None:
            fewest, colluders = self.sums.fewest(n_clients), self.sums.n_colluders(n_clients)
            n_clients = self.sums.n_clients(n_clients)
        n_shares = max(1, max(self.settings.min_clients or n_clients, fewest) - colluders)
        return release.standard_deviation * math.sqrt(n_clients / n_shares)

    def _is_enough(self, step: Step, round_: Round, n_left: int) -> bool:
        """Return whether enough clients took a step; raise a TooFewError if not, unless the round is optional."""
        assert self.sums is not None
        n_asked = (
            len(step.clients)
            if step.name == "mask"
            else self.sums.n_clients(len(self.roster.members))
        )
        of_keys = max(self.roster.least, FEWEST)
        required = of_keys if step.name == "keys" else self._quorum(round_, n_asked)[0]
        if n_left >= required:
            return True
        if not round_.needed:
            return False
        reasons = self.log.reasons(self.number, round_.task) or self.log.reasons(
            self.number, task_of(step)
        )
        raise TooFewError(
            f"round {self.number} ('{round_.task}'): {n_left} clients took the step '{step.name}' of a secure sum and "
            f"{required} have to; nothing was opened. {' '.join(reasons[:3])}"
        )

    def _too_few(
        self, number: int, task: str, n_answered: int, required: int, log: RunLog | None = None
    ) -> TooFewError:
        """Return the error that says that too few clients answered, and why."""
        all_bring_noise = (
            self.settings.noise == "clients" and self.settings.min_clients is None and task != ENROL
        )
        why = (
            " (with noise='clients' a missing client's share of the noise is missing too)"
            if all_bring_noise
            else ""
        )
        reasons = " ".join((log or self.log).reasons(number, task)[:3])
        return TooFewError(
            f"round {number} ('{task}'): {n_answered} clients answered and {required} have to{why}. {reasons}"
        )

    def check_enough_usable(self, n_usable: int) -> None:
        """Raise a TooFewError if the protocol can use too few replies of the last round."""
        if n_usable < self.roster.least:
            raise self._too_few(self.number, self.task, n_usable, self.roster.least)

    # Receiving.

    def receive(self, round_: Round, messages: Sequence[Message], answers: Answers) -> Brought:
        """Return the sums or the replies of a round; None for an optional round that too few clients answered.

        Replies are checked first. What has left the clients is logged before anything can end the run. The server's
        noise comes last, and nothing before it decides by values that it will cover.
        """
        replies, sums = self._checked_replies(round_, messages, answers)
        arrays: list[Sequence[Sendable]] = [*replies.values(), *(total.arrays for total in sums)]
        n_answered = len(replies) + sum(len(total.nodes) for total in sums)
        n_asked = self._note_replies(round_, messages, replies, n_answered, arrays)
        if self.roster.enrolling:
            self._take_in(self.number, messages, answers)
        required, _ = self._quorum(round_, n_asked)
        if n_answered < required:
            if round_.needed:
                raise self._too_few(self.number, round_.task, n_answered, required)
            return None
        if round_.answer.keeps:
            return []
        if isinstance(round_, Sum):
            return self._total(round_, add_up(arrays), n_answered, arrays)
        if self.settings.noise == "server" and any(round_.releases):
            releases, source = round_.releases, self._noise()
            return [
                Reply(name, values_of(add_noise(arrays, releases, source)))
                for name, arrays in replies.items()
            ]
        return [Reply(name, values_of(arrays)) for name, arrays in replies.items()]

    def _receive_masked(
        self, sums: SecureSums, round_: Round, messages: Sequence[Message], answers: Answers
    ) -> int:
        """Add masked answers to the sum, after a check of their form; return how many there are."""
        sends, n_columns = round_.answer.sends, self.inspection.n_columns
        ours = [message for message in messages if message.kind != "enrol"]

        def check(message: Message, _: Any, arrays: list[Sendable]) -> list[Sendable]:
            if message.kind != "round":
                return []
            return [
                on_grid(array) for array in checked_arrays(message.client, arrays, sends, n_columns)
            ]

        read = self._read(self.number, ours, answers, check)
        replies = {message.client: arrays for message, arrays in read if message.kind == "round"}
        odd = self.inspection.unlike(round_, replies, messages) if replies else {}
        self.log.note_failures(self.number, round_.task, odd)
        replies = {name: arrays for name, arrays in replies.items() if name not in odd}
        self._note_replies(round_, messages, replies, len(replies), list(replies.values()))
        if self.roster.enrolling:
            self._take_in(self.number, messages, answers)
        for name, arrays in replies.items():
            sums.take_masked(name, arrays)
        return len(replies)

    def _receive_step(self, step: Step, messages: Sequence[Message], answers: Answers) -> int:
        """Process the replies to a step of a secure sum; return how many clients took the step."""

        def take(message: Message, _: Any, arrays: list[Sendable]) -> bool:
            try:
                step.take(message.client, *arrays)
            except (SumError, DataError, TypeError) as error:
                what = (
                    str(error)
                    if isinstance(error, SumError)
                    else "arrays of another form than the step has"
                )
                raise ReplyError(f"client {message.client} sent {what}.") from None
            return True

        return len(self._read(self.number, messages, answers, take))

    def _total(
        self,
        round_: Round,
        sums: list[Sendable],
        n_clients: int,
        replies: Sequence[Sequence[Sendable]] | None = None,
    ) -> Total:
        """Return the sums that the protocol gets, after the server has added its noise, if any.

        Overflow is checked on the noisy sums. ``replies`` are the summed replies; None if they were masked.
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
        deviations = [
            0.0 if release is None else self.noise_of_sum(release) for release in round_.releases
        ]
        return Total(values_of(sums), n_clients, deviations)

    def _noise(self) -> NoiseSource:
        return (
            OperatingSystemNoise()
            if self.noise_seed is None
            else SeededNoise([self.noise_seed, self.number])
        )

    def _note_replies(
        self,
        round_: Round,
        messages: Sequence[Message],
        replies: Mapping[str, list[Sendable]],
        n_answered: int,
        arrays: Sequence[Sequence[Sendable]],
    ) -> int:
        """Log what has left the clients, even if the run ends here; return how many were asked."""
        main = {message.client for message in messages if message.kind == "round"}
        asked = [name for name in self.roster.members if name in main]
        # This comes before anything can end the run, because the server has the replies already.
        _, n_shares = self._quorum(round_, len(asked))
        variations = variations_of(round_, self.settings.noise, next(iter(arrays), []), n_shares)
        # If the round was asked twice because of an interruption, the server has seen both replies.
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
        """Return the usable replies by client, and the sums of replies that the carrier has added up.

        Each reply is checked alone, and then compared with the others. A carrier of simulated clients may bring the sum
        of many replies. Replies that must be checked alone are taken out of it, before or after the comparison.
        """
        ours = [message for message in messages if message.kind != "enrol"]
        n_summed = len(ours) if isinstance(round_, Sum) else 0
        sums, alone = answers.sums, dict(answers.replies)
        for total in sums:
            total.hide(self.inspection.hidden(round_))
            alone |= total.take_out(self.inspection.suspects(round_, total, n_summed))
        read = self._read(
            self.number,
            ours,
            replace(answers, replies=alone),
            lambda message, _, arrays: (
                self.inspection.checked(message.client, round_, arrays, n_summed)
                if message.kind == "round"
                else []
            ),
        )
        replies = {message.client: arrays for message, arrays in read if message.kind == "round"}
        called = {message.node: message.client for message in ours}
        names = [[called[node] for node in total.nodes] for total in sums]
        odd = dict[str, str]()
        if (replies or sums) and not round_.answer.keeps:
            odd = self.inspection.unlike(round_, replies, ours, sums)
            alike = {name: arrays for name, arrays in replies.items() if name not in odd}
            odd |= self.inspection.outliers(round_, alike, sums, names)
            self.log.note_failures(self.number, round_.task, odd)
        for total, of_sum in zip(sums, names, strict=True):
            if odd:
                total.take_out(np.array([name in odd for name in of_sum]))
            self.inspection.take(round_, total, [name for name in of_sum if name not in odd])
        left = {name: arrays for name, arrays in replies.items() if name not in odd}
        return left, [total for total in sums if total.nodes]

    def _read(
        self,
        number: int,
        messages: Sequence[Message],
        answers: Answers,
        check: Callable[[Message, Any, list[Sendable]], T],
    ) -> list[tuple[Message, T]]:
        """Read the replies to messages: return each usable one as ``check`` returns it, with its message.

        This is the only pass over the replies. It notes each client as present or silent, and logs the traffic and why
        a reply is missing or not used.
        """
        said = {f"{type(failure).__name__}: {failure}" for failure in answers.failures}
        reasons = sorted(one_line(message) for message in said)
        silent = f"did not answer{f' ({reasons[0]})' if reasons else ''}."
        if reasons and all(message.kind == "enrol" for message in messages):
            silent += " If its ClientApp has mods that change what it sends, remove them."
        summed = {node: total.n_bytes for total in answers.sums for node in total.nodes}
        contents = []
        for message in messages:
            name = message.client
            res: Any = answers.replies.get(message.node)
            is_summed = message.node in summed
            if message.kind not in ("enrol", "model"):
                answered = is_summed or res is not None
                self.roster.members[name].note(number, answered=answered)
            if is_summed:  # the carrier has checked it, and added it up with others
                n_bytes = summed[message.node]
                self.log.traffic.append(
                    Traffic(number, message.task, name, message.n_bytes, n_bytes)
                )
                continue
            self.log.traffic.append(traffic_of(number, message, res))
            if res is None:
                self.log.note_failures(number, message.task, {name: f"client {name} {silent}"})
                continue
            try:
                contents.append((message, read_reply(name, res, partial(check, message))))
            except ReplyError as error:
                self._note_refusal(number, message, error)
                continue
            if message.kind == "earlier":
                self.roster.members[name].has.add(message.task)
        return contents

    def _note_refusal(self, number: int, asked: Message, error: ReplyError) -> None:
        """Log a reply that is not used; a client's reason counts as a message, because it may reveal something."""
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

    def _send_model(self, outcome: Outcome) -> Stage[dict[str, float]]:
        """Send the model to all clients once; return its evaluation, or {} if no client evaluated it."""
        self.roster.connected = dict.fromkeys((yield WhoIsThere("model", self.roster.are_enough)))
        settings, sent = self.settings, encode(outcome.model.to_arrays())
        facts = {
            **self._common,
            "model": outcome.model.name,
            "evaluate": settings.federated_evaluation,
            "share": settings.share_model,
            **self._order,
        }
        for name, printed in (("clusters", outcome.clusters), ("survival", outcome.survival)):
            if (
                settings.share_model
                and printed is not None
                and len(said := str(printed)) <= LONGEST_DESCRIPTION
            ):
                facts[name] = said
        ins, n_bytes = EvaluateIns(sent, facts), size_of(sent)
        here = self.roster.awake(self.number)
        messages = [Message(node, name, ins, "model", n_bytes) for name, node in here.items()]
        n_clusters = outcome.model.n_clusters if settings.federated_evaluation else None
        answers = (yield messages) if messages else Answers({})
        read = self._read(
            self.number,
            messages,
            answers,
            lambda one, res, _: checked_evaluation(
                one.client, res, n_clusters=n_clusters, most_rows=self.settings.most_rows
            ),
        )
        evaluations = {message.client: one for message, one in read if one is not None}
        for name, one in evaluations.items():
            self.inspection.stated[name] = float(one.n_rows)
        contents = ("k-means cost of the rows", "number of rows", "table of classes by clusters")
        for content in contents if answers.replies and n_clusters is not None else ():
            self.log.messages.append(Reported(self.number, EVALUATE, content, "one per client"))
        return evaluation_of(list(evaluations.values()))
