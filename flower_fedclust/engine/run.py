"""One run: who takes part, what is asked, and what comes back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
from flwr.common import EvaluateIns, EvaluateRes, FitIns
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy

from flower_fedclust.engine.books import EVALUATE, Books, variations_of
from flower_fedclust.engine.client import ENROL
from flower_fedclust.engine.evaluation import Evaluation, checked_evaluation, evaluation_of
from flower_fedclust.engine.inspection import Inspection, check_capacity, check_releases
from flower_fedclust.engine.journal import Record
from flower_fedclust.engine.ranges import Ranges
from flower_fedclust.engine.replies import (
    R,
    RefusalError,
    ReplyError,
    add_up,
    client_order,
    read_reply,
    values_of,
)
from flower_fedclust.engine.roster import Answers, Failures, Roster
from flower_fedclust.engine.rounds import Answer, ProtocolError, Question, Reply, Round, Scalar, Sum, Total
from flower_fedclust.engine.settings import MIN_CLIENTS, RunSettings
from flower_fedclust.engine.spending import Spending
from flower_fedclust.engine.wire import encode, size_of
from flower_fedclust.engine.wrappers import EMPTY, TO_CLIENT
from flower_fedclust.format import FORMAT
from flower_fedclust.models import Model
from flower_fedclust.privacy.noise import NoiseSource, OperatingSystemNoise, SeededNoise, Sendable, add_noise
from flower_fedclust.privacy.releases import Release
from flower_fedclust.privacy.report import Message

I = TypeVar("I", FitIns, EvaluateIns)  # noqa: E741


@dataclass
class Run:
    """One run, from the first message to the last."""

    settings: RunSettings
    n_columns: int = 0  #: Of the clients' rows, as the strategy sees them.
    last_asked: int = 1  #: The round that was asked last.
    books: Books = field(default_factory=Books)
    evaluation: dict[str, float] | None = None
    spending: Spending | None = None  #: Of the plan, once it is frozen.
    inspection: Inspection = field(init=False)  #: Of what clients reply.
    rng: np.random.Generator = field(init=False)  #: Randomness of the server that protects nobody.
    _addressed: dict[str, str] = field(default_factory=dict)  # Flower's client id -> name
    _aside: dict[str, Round | Question] = field(default_factory=dict)  # what those do whose answer is not the round's
    _bytes_down: dict[str, int] = field(default_factory=dict)
    _sent: FitIns = field(init=False)  # to a client of those that were asked last
    _roster: Roster = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.settings.random_state)
        self._roster = Roster(self.settings)
        settings = self.settings
        ranges = Ranges(settings.noise, settings.privacy_unit, settings.largest_ratio, settings.n_clusters)
        self.inspection = Inspection(self.settings.client_type, ranges)

    @property
    def clients(self) -> dict[str, ClientProxy]:
        """Those that enrolled, in the order in which their replies are added up."""
        return self._roster.clients

    @property
    def columns(self) -> list[str] | None:
        """The names of the clients' columns, where they know them."""
        return self._roster.column_names

    @property
    def _to_all(self) -> dict[str, Any]:
        """What every message says."""
        return {"format": FORMAT, "client": self.settings.client_type.key()}

    # Enrolment: every client gives its name and its columns.

    def ask_to_enrol(self, number: int, client_manager: ClientManager) -> list[tuple[ClientProxy, FitIns]]:
        """Return the messages of the first round."""
        return self._roster.ask_all(number, client_manager, self._to_all)

    def go_on(self, record: Record) -> None:
        """Take over what a round left in a run that was interrupted."""
        self.books.add(record.entries)
        self.last_asked = record.number
        self._roster.go_on(record.facts["clients"], record.facts["columns"])
        self.n_columns = self.inspection.n_columns = record.facts["n_columns"]
        self.rng.bit_generator.state = record.facts["rng"]
        if self.spending is not None:
            self.spending.go_on(record.entries.messages, list(self.clients))

    def record(self, number: int, digest: str, received: Total | list[Reply] | None) -> Record:
        """Return what a round has left."""
        facts = {"clients": list(self.clients), "columns": self._roster.columns, "n_columns": self.n_columns}
        facts["rng"] = self.rng.bit_generator.state
        return Record(number, digest, received, self.books.entries(number), facts)

    def note_asked_again(self, number: int, round_: Round | None) -> None:
        """Note that a round may have been answered before the run was interrupted, with other noise of the clients."""
        releases = [] if round_ is None else round_.releases
        if self.settings.noise != "server" and self.settings.noise_seed is None and any(releases):
            self.books.asked_again.append(number)

    def enrol_again(self, number: int, results: Answers, failures: Failures) -> None:
        """Take in the clients that are there of a run that was interrupted; the books have them already."""
        self._roster.take_in(number, results, failures, Books())
        self._check_enough(number, ENROL, self._roster.n_there, self.settings.least)

    def enrol(self, number: int, results: Answers, failures: Failures) -> None:
        """Take in the clients that have the columns that most have, or that the server's rows have."""
        self._roster.take_in(number, results, failures, self.books)
        self.n_columns = self.inspection.n_columns = self.settings.prepared_columns or self._roster.n_columns
        self._check_enough(number, ENROL, len(self.clients), self.settings.least)

    # Rounds.

    def ask(self, server_round: int, round_: Round, client_manager: ClientManager) -> list[tuple[ClientProxy, FitIns]]:
        """Return the messages of a round, and those to clients that have come since the last.

        Of a round that is not needed, and that too few could answer, there are none to those that it names.

        Raises
        ------
        ProtocolError
            If the protocol is used against its rules, or if too few clients are there to answer.
        """
        self.last_asked = server_round
        self._check_answered_for(round_.answer)
        check_releases(round_)
        present = self._roster.present(server_round, client_manager)
        addressees = self._addressees(round_, present)
        named = set(addressees)
        asked = {name: proxy for name, proxy in present.items() if name in named}
        late = {name: left for name in asked if (left := self._roster.missed(name)) is not None}
        behind = {name: asked.pop(name) for name in late}
        required = self._required(round_, len(asked))
        absent = [name for name in addressees if name not in asked]
        for name in absent:
            self.books.note_failure(server_round, round_.task, name, self._roster.why_absent(name))
        if len(asked) < required and absent:
            if round_.needed:
                self._check_enough(server_round, round_.task, len(asked), required)
            asked = {}
        others = self._others(round_, {name: present[name] for name in present if name not in named})
        if self.spending is not None:
            self.spending.spend(round_.task, round_.releases, list(asked))
        if asked:
            check_capacity(round_, len(asked), self._n_shares(round_, len(asked)))
        config = self._config(server_round, round_, len(asked))
        instructions: list[tuple[ClientProxy, FitIns]] = []
        self._address(asked | behind | others, dict.fromkeys(others, round_.others) | late)
        if isinstance(round_.question, Question):
            instructions += self._instructions(asked, round_.question, config)
        else:
            for name, proxy in asked.items():
                instructions += self._instructions({name: proxy}, round_.question_for(name), config)
        self._sent = next((ins for _, ins in instructions), FitIns(encode([]), config))
        if round_.others is not None:
            kept = {key: value for key, value in config.items() if key in ("format", "client", "round", "rows")}
            instructions += self._instructions(others, round_.others, kept)
        for name, left in late.items():
            self._ask_again(server_round, name, left)
            kept = self._config(server_round, left, 1)
            instructions += self._instructions({name: behind[name]}, left.question_for(name), kept)
        nodes = {proxy.cid for proxy, _ in instructions}
        return instructions + self._roster.ask_new(server_round, client_manager, self._to_all, nodes)

    def receive(
        self, server_round: int, round_: Round, results: Answers, failures: Failures
    ) -> Total | list[Reply] | None:
        """Return what the protocol gets of a round: the sums, or the replies; None of one that it does not need."""
        answer = round_.answer
        new = [pair for pair in results if pair[0].cid in self._roster.enrolling]
        results = [pair for pair in results if pair[0].cid not in self._roster.enrolling]
        releases = list(round_.releases) or [None] * len(answer.sends)
        n_asked = len(self._addressed) - len(self._aside)
        replies = self._checked_replies(server_round, round_, results, failures)
        if len(replies) < n_asked or self._aside:
            self.books.sort()
        # Before anything can end the run: what the server holds has left the clients.
        addressed = set(self._addressed.values()) - self._aside.keys()
        asked = tuple(name for name in self.clients if name in addressed)
        variations = variations_of(
            self.settings.noise, releases, next(iter(replies.values()), []), self._n_shares(round_, n_asked)
        )
        required = self._required(round_, n_asked)
        # What a round that is asked once more brought before the run was interrupted, the server has not forgotten.
        times = 2 if server_round in self.books.asked_again else 1
        for _ in range(times if asked else 0):
            self.books.note_round(
                server_round,
                round_,
                releases,
                variations,
                asked=asked,
                answered=replies,
                n_clients=len(self.clients),
                is_enough=self._n_shares(round_, n_asked) <= max(len(replies), 1),
            )
        self._roster.note_left(round_, asked)
        if self._roster.enrolling:
            self._roster.take_in(server_round, new, failures, self.books)
        if len(replies) < required and not round_.needed:
            return None
        self._check_enough(server_round, round_.task, len(replies), required)
        if answer.keeps:
            return []
        noisy = self.settings.noise == "server" and any(releases)
        source = self._noise(server_round)
        if isinstance(round_, Sum):
            sums = add_up(list(replies.values()))
            deviations = [0.0 if release is None else self.noise_of_sum(release) for release in releases]
            return Total(values_of(add_noise(sums, releases, source) if noisy else sums), len(replies), deviations)
        return [
            Reply(name, values_of(add_noise(arrays, releases, source) if noisy else arrays))
            for name, arrays in replies.items()
        ]

    def told(self, messages: list[tuple[ClientProxy, I]], **facts: Scalar) -> list[tuple[ClientProxy, I]]:
        """Return messages that say what a site or its policy may ask for, and the columns where their order matters."""
        if self._roster.in_other_order:
            facts["columns"] = self._roster.columns
        for _, ins in messages:
            ins.config.update(facts)
        return messages

    def noise_of_sum(self, release: Release) -> float:
        """Return the standard deviation of the noise that reaches a sum over all clients, in the array's units.

        It is that of the release where the server adds the noise, and more where the clients bring more than is needed.
        """
        n_clients, noise = len(self.clients), self.settings.noise
        if noise == "server":
            return release.standard_deviation
        n_shares = (self.settings.min_clients or n_clients) if noise == "clients" else 1
        return release.standard_deviation * math.sqrt(n_clients / n_shares)

    # Evaluation of the model.

    def ask_to_evaluate(
        self, number: int, model: Model, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Return the messages of the evaluation."""
        sent = encode(model.to_arrays())
        config: dict[str, Any] = {**self._to_all, "model": model.name}
        here = self._roster.present(number, client_manager)
        self._address(here, {})
        self._bytes_down = dict.fromkeys(here, size_of(sent))
        return [(proxy, EvaluateIns(sent, config)) for proxy in here.values()]

    def receive_evaluation(
        self,
        server_round: int,
        results: Sequence[tuple[ClientProxy, EvaluateRes]],
        failures: Sequence[tuple[ClientProxy, EvaluateRes] | BaseException],
        n_clusters: int | None,
    ) -> dict[str, float]:
        """Add the clients' tables and costs up; an empty dict where none has answered.

        Without a number of clusters the clients were sent the model to have it, and nothing was asked of them.
        """
        answers = self._by_name(results)
        answered = {name for name, _ in answers}
        self._note_silence(server_round, dict.fromkeys(self._addressed.values(), EVALUATE), answered, failures)
        found: list[Evaluation] = []
        for name, res in answers:
            self.books.note_traffic(server_round, EVALUATE, name, self._bytes_down[name], res)
            try:
                one = read_reply(name, res, partial(checked_evaluation, n_clusters=n_clusters))
                if one is not None:
                    found.append(one)
                    self.inspection.ranges.stated[name] = float(one.n_rows)
            except ReplyError as error:
                self.books.note(server_round, EVALUATE, name, error)
        self.evaluation = evaluation_of(found)  # whatever came, it is not asked for again
        contents = ("k-means cost of the rows", "number of rows", "table of classes by clusters")
        for content in contents if results and n_clusters is not None else ():
            self.books.messages.append(Message(server_round, EVALUATE, content, "one per client"))
        return self.evaluation

    # Behind them: whom to ask, and how.

    def _check_answered_for(self, answer: Answer) -> None:
        if getattr(self.settings.client_type, answer.task, None) is None:
            raise ProtocolError(
                f"{self.settings.client_type.__name__} has no method '{answer.task}'; the strategy's client_type must "
                "inherit from the class whose method a round names."
            )

    def _addressees(self, round_: Round, present: Mapping[str, ClientProxy]) -> list[str]:
        named = round_.named
        if named is not None:
            return [name for name in self.clients if name in named]
        if round_.fraction == 1.0:
            return list(self.clients)
        names = list(present)
        n_drawn = min(self.n_to_draw(round_.fraction, len(names)), len(names))
        drawn = self.rng.choice(len(names), size=n_drawn, replace=False)
        return [names[index] for index in sorted(drawn)]

    def n_to_draw(self, fraction: float, n_clients: int) -> int:
        """Return how many clients are a part of so many: as many at least as have to answer a round."""
        return max(self.settings.least, round(fraction * n_clients))

    def _others(self, round_: Round, others: dict[str, ClientProxy]) -> dict[str, ClientProxy]:
        """Return the clients that work for themselves: those that the round does not ask, or none."""
        if round_.others is None:
            return {}
        self._check_answered_for(round_.others.answer)
        if round_.others.answer.sends:
            raise ProtocolError(
                f"'{round_.others.answer.task}' is for those that a round does not ask, and sends something."
            )
        return others

    def _config(self, server_round: int, round_: Round, n_asked: int) -> dict[str, Any]:
        config: dict[str, Any] = {**self._to_all, "round": server_round}
        if round_.rows:
            config["rows"] = round_.rows
        keeps = round_.answer.keeps
        if any(round_.releases) and (self.settings.noise != "server" or keeps):
            if not round_.parts:
                raise ProtocolError(f"'{round_.task}' takes noise of the clients; name the parts that pay for it.")
            config["parts"] = json.dumps(list(round_.parts))
            config["n_shares"] = self._n_shares(round_, n_asked)
        return config

    def _n_shares(self, round_: Round, n_asked: int) -> int:
        """Return among how many clients noise is divided.

        Of a Gather round the server sees every reply, and a share alone would protect none.
        """
        summed = self.settings.noise == "clients" and isinstance(round_, Sum) and not round_.answer.keeps
        return self._required(round_, n_asked) if summed else 1

    def _address(self, asked: Mapping[str, ClientProxy], aside: Mapping[str, Any]) -> None:
        self._addressed = {proxy.cid: name for name, proxy in asked.items()}
        self._aside = dict(aside)
        self._bytes_down = {}

    def _instructions(
        self, proxies: Mapping[str, ClientProxy], question: Question, config: Mapping[str, Any]
    ) -> list[tuple[ClientProxy, FitIns]]:
        arrays, fields = question.to_wire()
        sent, full = encode(arrays), {**config, **fields}
        if not arrays:
            full[EMPTY] = True
        self._bytes_down |= dict.fromkeys(proxies, size_of(sent))
        ins = FitIns(sent if arrays else encode(TO_CLIENT), full)
        return [(proxy, ins) for proxy in proxies.values()]

    def _required(self, round_: Round, n_asked: int) -> int:
        """Return how many clients have to answer a round.

        Where the clients bring the noise, the shares of a client that drops out are missing from the sum: they
        are made so large that those of min_clients are enough, and fewer may not be added up.
        """
        if self.settings.min_clients is not None:
            return self.settings.min_clients
        noisy = any(release is not None and release.scale > 0 for release in round_.releases)
        if self.settings.noise == "clients" and noisy and isinstance(round_, Sum) and not round_.answer.keeps:
            return max(n_asked, MIN_CLIENTS)
        return MIN_CLIENTS

    def _noise(self, server_round: int) -> NoiseSource:
        if self.settings.noise_seed is None:
            return OperatingSystemNoise()
        return SeededNoise([self.settings.noise_seed, server_round])

    # Behind them: what came back, and what is noted.

    def _checked_replies(
        self,
        server_round: int,
        round_: Round,
        results: Answers,
        failures: Failures,
    ) -> dict[str, list[Sendable]]:
        own_task = {name: self._aside.get(name, round_).answer.task for name in self._addressed.values()}
        replies: dict[str, list[Sendable]] = {}
        n_summed = len(self._addressed) if isinstance(round_, Sum) else 0
        answers = self._by_name(results)
        answered = {name for name, _ in answers}
        for name, res in answers:
            task = own_task[name]
            self.books.note_traffic(server_round, task, name, self._bytes_down[name], res)
            try:
                if name not in self._aside:
                    replies[name] = self.inspection.checked(name, round_, res, n_summed)
                    continue
                read_reply(name, res, lambda *_: None)
                if isinstance(left := self._aside[name], Round):
                    self._roster.note_caught_up(name, left.task)
            except ReplyError as error:
                self.books.note(server_round, task, name, error)
                if isinstance(error, RefusalError) and error.missed:
                    self._roster.forget(name)
        self._note_silence(server_round, own_task, answered, failures)
        self._roster.note_answers(server_round, own_task, answered)
        for name, reason in self.inspection.odd_ones(round_, replies, self._sent).items():
            self.books.note_failure(server_round, round_.task, name, reason)
            del replies[name]
        return replies

    def _ask_again(self, server_round: int, name: str, left: Round) -> None:
        """Spend and note what an earlier round asks of a client that was not there then."""
        if not self._roster.note_sent_again(name, left.task):
            return
        if self.spending is not None:
            self.spending.spend(left.task, left.releases, [name])
        if any(one.task == left.task and one.clients is None for one in self.books.messages):
            return  # the report has it of everybody
        releases = list(left.releases) or [None] * len(left.answer.sends)
        variations = variations_of(self.settings.noise, releases, [], 1)
        facts: dict[str, Any] = {"asked": (name,), "answered": [], "n_clients": len(self.clients)}
        self.books.note_round(server_round, left, releases, variations, is_enough=True, **facts)

    def _by_name(self, results: Sequence[tuple[ClientProxy, R]]) -> list[tuple[str, R]]:
        """Return one answer of each client that was asked, in the order in which they are added up."""
        found = {self._addressed[proxy.cid]: res for proxy, res in results if proxy.cid in self._addressed}
        return sorted(found.items(), key=lambda pair: client_order(pair[0]))

    def _note_silence(
        self,
        server_round: int,
        tasks: Mapping[str, str],
        answered: set[str],
        failures: Sequence[tuple[ClientProxy, Any] | BaseException],
    ) -> None:
        """Record the clients that were addressed, each with its task, and of which nothing came back."""
        silent = {name: (tasks[name], self._bytes_down.get(name, 0)) for name in tasks.keys() - answered}
        if silent:
            self.books.note_silence(server_round, silent, failures)

    def _check_enough(self, server_round: int, task: str, n_answered: int, required: int) -> None:
        if n_answered >= required:
            return
        all_bring_noise = self.settings.noise == "clients" and self.settings.min_clients is None and task != ENROL
        why = " (with noise='clients' a missing client's share of the noise is missing too)" if all_bring_noise else ""
        reasons = " ".join(self.books.reasons(server_round, task)[:3])
        raise ProtocolError(
            f"round {server_round} ('{task}'): {n_answered} clients answered and {required} have to{why}. {reasons}"
        )
