"""One run: who takes part, what is asked, and what comes back."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy

from flower_fedclust.models import Model
from flower_fedclust.numerics.grid import GridArray
from flower_fedclust.privacy.noise import Sendable, add_noise, noise_exponent, variation_of_noise
from flower_fedclust.privacy.releases import NoisePlace, PrivacyUnit, Release
from flower_fedclust.privacy.report import Message
from flower_fedclust.privacy.sampling import NoiseSource, OperatingSystemNoise, SeededNoise
from flower_fedclust.privacy.shares import total_variation
from flower_fedclust.protocol.books import EVALUATE, Books
from flower_fedclust.protocol.client import ENROL, ProtocolClient
from flower_fedclust.protocol.enrolment import checked_enrolment, of_equal_names
from flower_fedclust.protocol.evaluation import Table, checked_table, evaluation_of
from flower_fedclust.protocol.inspection import Inspection
from flower_fedclust.protocol.ranges import Ranges
from flower_fedclust.protocol.replies import (
    ReplyError,
    add_up,
    client_order,
    excuse_of,
    unlike_most,
    values_of,
)
from flower_fedclust.protocol.rounds import Answer, Question, Reply, Round, Scalar, Sum, Total, Traffic
from flower_fedclust.protocol.wire import encode, size_of

#: How many clients have to answer where the user says nothing: the sum over a single client hides nothing of it.
MIN_CLIENTS = 2

#: How many entries of an array of which the server sees nothing one row may move: as many as it has columns.
UNSEEN_ENTRIES = 2**20


class ProtocolError(RuntimeError):
    """A run that cannot go on: too few clients are left, or the protocol was used against its rules."""


@dataclass(frozen=True)
class RunSettings:
    """What a run takes over from its strategy; each is explained there."""

    client_type: type[ProtocolClient]
    enrolment: Mapping[str, Scalar]
    noise: NoisePlace
    privacy_unit: PrivacyUnit
    min_clients: int | None
    noise_seed: int | None
    random_state: int | None
    server_columns: Sequence[str] | None
    wait_for_clients: float
    expected_clients: int | None


@dataclass
class Run:
    """One run, from the first message to the last.

    Attributes
    ----------
    rng : numpy.random.Generator
        Randomness of the server that protects nobody.
    clients : dict of str to ClientProxy
        Those that enrolled, in the order in which their replies are added up.
    n_columns : int
    books : Books
    evaluation : dict of str to float, or None
    """

    settings: RunSettings
    clients: dict[str, ClientProxy] = field(default_factory=dict)
    n_columns: int = 0
    books: Books = field(default_factory=Books)
    evaluation: dict[str, float] | None = None
    rng: np.random.Generator = field(init=False)
    _addressed: dict[str, str] = field(default_factory=dict)  # Flower's client id -> name
    _bystanders: set[str] = field(default_factory=set)  # of these, those of whom no answer is wanted
    _bytes_down: dict[str, int] = field(default_factory=dict)
    _sent: FitIns = field(init=False)  # to a client of those that were asked last
    _inspection: Inspection = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.settings.random_state)
        ranges = Ranges(self.settings.noise, self.settings.privacy_unit)
        self._inspection = Inspection(self.settings.client_type, ranges)

    @property
    def _key(self) -> str:
        return self.settings.client_type.key()

    # Enrolment: every client gives its name and its columns.

    def ask_to_enrol(self, server_round: int, client_manager: ClientManager) -> list[tuple[ClientProxy, FitIns]]:
        """Return the messages of the first round."""
        config: dict[str, Any] = {"client": self._key, "task": ENROL, "round": server_round, **self.settings.enrolment}
        proxies = self._wait(client_manager)
        self._address(proxies, {})
        self._bytes_down = dict.fromkeys(proxies, 0)
        ins = FitIns(encode([]), config)
        return [(proxy, ins) for proxy in proxies.values()]

    def enrol(
        self,
        server_round: int,
        results: Sequence[tuple[ClientProxy, FitRes]],
        failures: Sequence[tuple[ClientProxy, FitRes] | BaseException],
    ) -> None:
        """Take in the clients that have the columns that most have, or that the server's rows have."""
        said: dict[str, tuple[str, str]] = {}
        proxies = {proxy.cid: proxy for proxy, _ in results}
        for proxy, res in results:
            self.books.traffic.append(Traffic(server_round, ENROL, str(res.metrics.get("client", proxy.cid)), 0, 0))
            try:
                if "failure" in res.metrics:
                    name = str(res.metrics.get("client", proxy.cid))
                    self.books.note_refusal(server_round, ENROL, name, excuse_of(name, res.metrics))
                else:
                    said[proxy.cid] = checked_enrolment(proxy.cid, res.metrics)
            except ReplyError as error:
                self.books.note_failure(server_round, ENROL, proxy.cid, str(error))
        for node, reason in of_equal_names({node: name for node, (name, _) in said.items()}).items():
            self.books.note_failure(server_round, ENROL, node, reason)
            del said[node]
        self._note_silence(server_round, dict.fromkeys(self._addressed.values(), ENROL), set(proxies), failures)
        proxies = {name: proxies[node] for node, (name, _) in said.items()}
        columns = dict(said.values())
        if columns:
            common, others = unlike_most(columns)
            whose = "most have"
            if self.settings.server_columns is not None and isinstance(json.loads(str(common)), list):
                common, whose = json.dumps(list(self.settings.server_columns)), "the server rows have"
                others = sorted((name for name in columns if columns[name] != common), key=client_order)
            for name in others:
                reason = f"client {name} has the columns {columns[name]} where {whose} {common}."
                self.books.note_failure(server_round, ENROL, name, reason)
                del proxies[name]
            known = json.loads(str(common))
            self.n_columns = self._inspection.n_columns = known if isinstance(known, int) else len(known)
        self.clients = {name: proxies[name] for name in sorted(proxies, key=client_order)}
        self.books.sort()
        self.books.messages.append(Message(server_round, ENROL, "name and columns", "one per client", harmless=True))
        self._check_enough(server_round, ENROL, len(self.clients), self.settings.min_clients or MIN_CLIENTS)

    # Rounds.

    def ask(self, server_round: int, round_: Round) -> list[tuple[ClientProxy, FitIns]]:
        """Return the messages of a round."""
        self._check_answered_for(round_.answer)
        _check_releases(round_)
        asked = {name: self.clients[name] for name in self._addressees(round_)}
        others = self._others(round_, asked)
        config = self._config(server_round, round_, len(asked))
        instructions: list[tuple[ClientProxy, FitIns]] = []
        self._address(asked, others)
        if isinstance(round_.question, Question):
            instructions += self._instructions(asked, round_.question, config)
        else:
            for name, proxy in asked.items():
                instructions += self._instructions({name: proxy}, round_.question_for(name), config)
        self._sent = next((ins for _, ins in instructions), FitIns(encode([]), config))
        if round_.others is not None:
            kept = {key: value for key, value in config.items() if key in ("client", "round", "rows")}
            instructions += self._instructions(others, round_.others, kept)
        return instructions

    def receive(
        self,
        server_round: int,
        round_: Round,
        results: Sequence[tuple[ClientProxy, FitRes]],
        failures: Sequence[tuple[ClientProxy, FitRes] | BaseException],
    ) -> Total | list[Reply]:
        """Return what the protocol gets of a round: the sums, or the replies."""
        answer = round_.answer
        releases = list(round_.releases) or [None] * len(answer.sends)
        n_asked = len(self._addressed) - len(self._bystanders)
        replies = self._checked_replies(server_round, round_, results, failures)
        if len(replies) < n_asked or self._bystanders:
            self.books.sort()
        # Before anything can end the run: what the server holds has left the clients.
        addressed = set(self._addressed.values()) - self._bystanders
        asked = tuple(name for name in self.clients if name in addressed)
        variations = self._variations(round_, releases, next(iter(replies.values()), []), n_asked)
        required = self._required(round_, n_asked)
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
        self._check_enough(server_round, round_.task, len(replies), required)
        if answer.keeps:
            return []
        noisy = self.settings.noise == "server" and any(releases)
        source = self._noise(server_round)
        if isinstance(round_, Sum):
            sums = add_up(list(replies.values()))
            return Total(values_of(add_noise(sums, releases, source) if noisy else sums), len(replies))
        return [
            Reply(name, values_of(add_noise(arrays, releases, source) if noisy else arrays))
            for name, arrays in replies.items()
        ]

    # Evaluation of the model.

    def ask_to_evaluate(self, model: Model) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Return the messages of the evaluation."""
        sent = encode(model.to_arrays())
        config: dict[str, Any] = {"client": self._key, "model": model.name}
        self._address(self.clients, {})
        self._bytes_down = dict.fromkeys(self.clients, size_of(sent))
        return [(proxy, EvaluateIns(sent, config)) for proxy in self.clients.values()]

    def receive_evaluation(
        self,
        server_round: int,
        results: Sequence[tuple[ClientProxy, EvaluateRes]],
        failures: Sequence[tuple[ClientProxy, EvaluateRes] | BaseException],
        n_clusters: int,
    ) -> dict[str, float]:
        """Add the clients' tables and costs up; an empty dict where none has answered."""
        answered = {self._addressed[proxy.cid] for proxy, _ in results}
        self._note_silence(server_round, dict.fromkeys(self._addressed.values(), EVALUATE), answered, failures)
        used: list[EvaluateRes] = []
        tables: list[Table] = []
        for proxy, res in sorted(results, key=lambda pair: client_order(self._addressed[pair[0].cid])):
            name = self._addressed[proxy.cid]
            self.books.traffic.append(Traffic(server_round, EVALUATE, name, self._bytes_down[name], 0))
            if "failure" in res.metrics:
                self.books.note_refusal(server_round, EVALUATE, name, excuse_of(name, res.metrics))
                continue
            try:
                table = checked_table(name, res, n_clusters)
            except ReplyError as error:
                self.books.note_failure(server_round, EVALUATE, name, str(error))
                continue
            used.append(res)
            tables += [] if table is None else [table]
        self.evaluation = evaluation_of(used, tables)  # whatever came, it is not asked for again
        contents = ("k-means cost of the rows", "number of rows", "table of classes by clusters") if results else ()
        for content in contents:
            self.books.messages.append(Message(server_round, EVALUATE, content, "one per client"))
        return self.evaluation

    # Behind them: whom to ask, and how.

    def _wait(self, client_manager: ClientManager) -> dict[str, ClientProxy]:
        required = self.settings.min_clients or MIN_CLIENTS
        wanted = max(required, self.settings.expected_clients or 0)
        deadline = time.monotonic() + self.settings.wait_for_clients
        while (connected := client_manager.num_available()) < wanted and time.monotonic() < deadline:
            time.sleep(0.05)
        if connected < required:
            raise ProtocolError(
                f"{connected} clients are connected and min_clients is {required}; start more clients, or set "
                "min_clients lower."
            )
        return dict(client_manager.all())

    def _check_answered_for(self, answer: Answer) -> None:
        if getattr(self.settings.client_type, answer.task, None) is None:
            raise ProtocolError(
                f"{self.settings.client_type.__name__} has no method '{answer.task}'; the strategy's client_type must "
                "inherit from the class whose method a round names."
            )

    def _addressees(self, round_: Round) -> list[str]:
        names = list(self.clients)
        if round_.named is not None:
            return [name for name in names if name in round_.named]
        if round_.fraction == 1.0:
            return names
        n_drawn = min(self.n_to_draw(round_.fraction, len(names)), len(names))
        drawn = self.rng.choice(len(names), size=n_drawn, replace=False)
        return [names[index] for index in sorted(drawn)]

    def n_to_draw(self, fraction: float, n_clients: int) -> int:
        """Return how many clients are a part of so many: as many at least as have to answer a round."""
        return max(self.settings.min_clients or MIN_CLIENTS, round(fraction * n_clients))

    def _others(self, round_: Round, asked: Mapping[str, ClientProxy]) -> dict[str, ClientProxy]:
        """Return the clients that work for themselves."""
        if round_.others is None:
            return {}
        self._check_answered_for(round_.others.answer)
        if round_.others.answer.sends:
            raise ProtocolError(
                f"'{round_.others.answer.task}' is for those that a round does not ask, and sends something."
            )
        return {name: proxy for name, proxy in self.clients.items() if name not in asked}

    def _config(self, server_round: int, round_: Round, n_asked: int) -> dict[str, Any]:
        config: dict[str, Any] = {"client": self._key, "round": server_round}
        if round_.rows:
            config["rows"] = round_.rows
        keeps = round_.answer.keeps
        if any(round_.releases) and (self.settings.noise != "server" or keeps):
            config["releases"] = json.dumps([release and release.to_dict() for release in round_.releases])
            config["n_shares"] = self._n_shares(round_, n_asked)
        return config

    def _n_shares(self, round_: Round, n_asked: int) -> int:
        """Return among how many clients noise is divided.

        Of a Gather round the server sees every reply, and a share alone would protect none.
        """
        summed = self.settings.noise == "clients" and isinstance(round_, Sum) and not round_.answer.keeps
        return self._required(round_, n_asked) if summed else 1

    def _address(self, asked: Mapping[str, ClientProxy], others: Mapping[str, ClientProxy]) -> None:
        self._addressed = {proxy.cid: name for name, proxy in (dict(asked) | dict(others)).items()}
        self._bystanders = set(others)
        self._bytes_down = {}

    def _instructions(
        self, proxies: Mapping[str, ClientProxy], question: Question, config: Mapping[str, Any]
    ) -> list[tuple[ClientProxy, FitIns]]:
        sent = encode(question.arrays)
        full = {**config, "task": question.answer.task, "arguments": json.dumps(dict(question.arguments))}
        self._bytes_down |= dict.fromkeys(proxies, size_of(sent))
        ins = FitIns(sent, full)
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
            return n_asked
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
        results: Sequence[tuple[ClientProxy, FitRes]],
        failures: Sequence[tuple[ClientProxy, FitRes] | BaseException],
    ) -> dict[str, list[Sendable]]:
        others = round_.others
        own_task = {
            name: others.answer.task if others is not None and name in self._bystanders else round_.task
            for name in self._addressed.values()
        }
        replies: dict[str, list[Sendable]] = {}
        n_summed = len(self._addressed) if isinstance(round_, Sum) else 0
        for proxy, res in sorted(results, key=lambda pair: client_order(self._addressed[pair[0].cid])):
            name = self._addressed[proxy.cid]
            task = own_task[name]
            self.books.traffic.append(
                Traffic(server_round, task, name, self._bytes_down[name], size_of(res.parameters))
            )
            if "failure" in res.metrics:
                missed = bool(res.metrics.get("missed"))
                self.books.note_refusal(server_round, task, name, excuse_of(name, res.metrics), missed=missed)
            elif name not in self._bystanders:
                try:
                    replies[name] = self._inspection.checked(name, round_, res, n_summed)
                except ReplyError as error:
                    self.books.note_failure(server_round, task, name, str(error))
        answered = {self._addressed[proxy.cid] for proxy, _ in results}
        self._note_silence(server_round, own_task, answered, failures)
        for name, reason in self._inspection.odd_ones(round_, replies, self._sent).items():
            self.books.note_failure(server_round, round_.task, name, reason)
            del replies[name]
        return replies

    def _variations(
        self, round_: Round, releases: Sequence[Release | None], reply: Sequence[Sendable], n_asked: int
    ) -> list[float]:
        """Return how far the noise of each array may be from its law; of what nobody has seen, with many entries."""
        n_shares, found = self._n_shares(round_, n_asked), []
        for index, release in enumerate(releases):
            array = reply[index] if index < len(reply) else None
            if release is None or release.scale == 0:
                found.append(0.0)
            elif not isinstance(array, GridArray):
                # The unit of what is kept is not seen; where noise is not in shares the distance does not depend on it.
                found.append(UNSEEN_ENTRIES * total_variation(release.mechanism, 1.0))
            else:
                exponent = array.exponent
                if self.settings.noise == "server":
                    exponent = noise_exponent(release, 1, exponent)
                found.append(variation_of_noise(release, array.integers.size, n_shares, exponent))
        return found

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


def _check_releases(round_: Round) -> None:
    """Raise a ProtocolError unless each array of a round has a release, or none has, of a kind that it can have."""
    sends, releases = round_.answer.sends, round_.releases
    if releases and len(releases) != len(sends):
        raise ProtocolError(f"'{round_.task}' sends {len(sends)} arrays; the round has {len(releases)} releases.")
    for sent, release in zip(sends, releases, strict=False):
        if release is not None and release.scale > 0 and sent.per == "row" and release.relation == "add-or-remove":
            raise ProtocolError(
                f"'{round_.task}' has an entry for every row, so that the number of rows shows: its release must be "
                "for rows that are replaced (relation='replace')."
            )
