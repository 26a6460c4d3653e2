"""The server's side: Flower strategies that run a protocol written as a generator, and the names they are known by."""

from __future__ import annotations

import copy
import dataclasses
import math
import secrets
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from flower_fedclust.engine.client import ENROL, ProtocolClient
from flower_fedclust.engine.journal import Journal, digest_of
from flower_fedclust.engine.parameters import Declared, parameter
from flower_fedclust.engine.parts import Part, Spending, relation_of, releases_of_parts, shares_of
from flower_fedclust.engine.replies import LARGEST_RATIO
from flower_fedclust.engine.rounds import (
    KINDS,
    Askable,
    Failure,
    Kind,
    Outcome,
    Protocol,
    ProtocolError,
    Question,
    ReleasedSizes,
    Round,
    Scalar,
    Sum,
    Traffic,
)
from flower_fedclust.engine.run import WAITING, Run, in_log_order, put_in_order
from flower_fedclust.engine.secure_run import N_EACH, N_FIRST, SecureRun, check_rehearsal
from flower_fedclust.engine.wire import PROBE, encode
from flower_fedclust.numerics.checks import LARGEST, SMALLEST, DataError, check_real
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.privacy.accounting import Plan, Share, calibrate, delta_of_composition, divided
from flower_fedclust.privacy.releases import NoisePlace, PrivacyUnit, Relation, Release
from flower_fedclust.privacy.report import PrivacyReport

#: Kinds of results for which a user would choose a strategy.
Finds = Literal["round", "any form", "soft", "map"]


@dataclass(frozen=True)
class Entry:
    """A name of a strategy, as ``fedclust`` and ``flwr run`` know it.

    A class has one or more, in its ``entries``; adding or removing a strategy changes nothing else.

    Parameters
    ----------
    name : str
    summary : str
        One line.
    source : str
        Where the algorithm comes from.
    fixed : mapping of str to anything
        Parameters that the name stands for.
    example : mapping of str to anything
        Values for ``fedclust explain`` and the tests, for parameters without which the strategy cannot run.
    needs : tuple of str
        Parameters that this name requires, although the class does not.
    finds : "round", "any form", "soft", "map" or None
        What a user would choose it for: round clusters, clusters of any form, soft memberships, or a map. None for a
        reference in comparisons.
    strategy : type of ProtocolStrategy
        The class; the registry fills it in.
    """

    name: str
    summary: str
    source: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    example: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    finds: Finds | None = None
    strategy: Any = None

    @property
    def units(self) -> tuple[str, ...]:
        """The units for which a whole run under this name can be private: "record", "client", both or none."""
        return () if "epsilon" in self.fixed else tuple(self.strategy.promises)

    @property
    def reveals(self) -> tuple[Kind, ...]:
        """The kinds of messages that the strategy may ask for, from what its clients declare."""
        client_type = self.strategy.client_type
        asked = [
            value
            for name in dir(client_type)
            if isinstance(value := getattr(client_type, name), Askable) and not hasattr(ProtocolClient, name)
        ]
        found = {sent.reveals for askable in asked for sent in askable.answer.sends if not sent.kept_as}
        return tuple(kind for kind in KINDS if kind in found)

    def is_of(self, strategy: ProtocolStrategy) -> bool:
        """Return whether the name stands for the parameters of a strategy."""
        given = ((getattr(strategy, name), value) for name, value in self.fixed.items())
        return all(type(own) is type(value) and own == value for own, value in given)


class ProtocolStrategy(Declared, Strategy):
    """Base of all strategies: a Flower Strategy whose algorithm is one generator.

    A subclass declares its parameters as fields, its names in ``entries`` and its client half in ``client_type``, and
    writes :meth:`protocol` and :attr:`n_protocol_rounds`. A strategy that can take noise derives from
    :class:`~flower_fedclust.PrivateStrategy`. In the first round of every run, each client gives its name and columns.

    Parameters
    ----------
    n_clusters : int
        How many clusters are sought.
    min_clients : int, optional
        How many clients have to answer a round; 2 by default, and all of them with noise="clients". If it is given,
        the noise of any min_clients clients suffices.
    random_state : int, optional
        Seed of the server's choices: restarts, first centers, clients to ask. It never affects the noise.
    federated_evaluation : bool, default=False
        Whether the clients count their classes and their cost after the run. No mechanism covers this.

    Attributes
    ----------
    outcome : Outcome
        The model, once the protocol has returned it.
    report : PrivacyReport
        Made from the rounds that ran.
    failures : list of Failure
    traffic : list of Traffic
    evaluation : dict or None
        What the federated evaluation found, if it was asked for.
    """

    entries: ClassVar[tuple[Entry, ...]] = ()
    client_type: ClassVar[type[ProtocolClient]] = ProtocolClient
    #: The units for which a whole run can be private.
    promises: ClassVar[tuple[PrivacyUnit, ...]] = ()

    n_clusters: int = parameter(at_least=2, kw_only=False)
    min_clients: int | None = parameter(None, at_least=1)
    random_state: int | None = parameter(None, at_least=0)
    federated_evaluation: bool = parameter(False)

    # Without noise these are constants; PrivateStrategy makes parameters of the first three.
    epsilon: float | None = dataclasses.field(default=None, init=False)
    delta: float = dataclasses.field(default=1e-6, init=False)
    noise: NoisePlace = dataclasses.field(default="server", init=False)
    privacy_unit: PrivacyUnit = dataclasses.field(default="record", init=False)

    # Set by the code that starts a run.

    #: How tables are prepared before the strategy runs, and clusters described: :func:`~flower_fedclust.with_schema`.
    tables: Any = dataclasses.field(default=None, init=False)
    #: One sentence on where the public rows of the server come from, for the privacy report.
    server_data_origin: str = dataclasses.field(default="", init=False)
    #: The column names of the server's rows, if known. Clients with other columns are left out.
    server_columns: Sequence[str] | None = dataclasses.field(default=None, init=False)
    #: How long to wait for the clients of a deployment to appear, in seconds.
    wait_for_clients: float = dataclasses.field(default=60.0, init=False)
    #: How many clients to wait for during that time; after it, and by default at once, min_clients are enough.
    expected_clients: int | None = dataclasses.field(default=None, init=False)
    #: A reply that is more than so many times as large as most is left out: a wrong value, or another unit.
    largest_ratio: float = dataclasses.field(default=LARGEST_RATIO, init=False)
    #: Makes the server's noise repeatable, for experiments only. simulate() sets it on its own copy.
    noise_seed: int | None = dataclasses.field(default=None, init=False)
    #: The name by which sites know a run; they answer each of its rounds once. By default it is random.
    run_id: str | None = dataclasses.field(default=None, init=False)
    #: Holds what the server receives, so that an interrupted run can go on.
    journal: Journal | None = dataclasses.field(default=None, init=False)
    #: Whether the server sees only sums over the clients (docs/secure.md).
    secure: bool = dataclasses.field(default=False, init=False)
    #: Whether every client is sent the model at the end, for a result of its own.
    share_model: bool = dataclasses.field(default=False, init=False)
    #: Called once with the strategy when it has its outcome and evaluation: Flower alone may hold the strategy.
    on_finished: Callable[[ProtocolStrategy], None] | None = dataclasses.field(default=None, init=False)
    #: Called after each round with its number and task.
    on_round: Callable[[int, str], None] | None = dataclasses.field(default=None, init=False)
    #: Called with each round and what it brought, for rehearsals.
    on_received: Callable[[Round, Any], None] | None = dataclasses.field(default=None, init=False)

    _run: Run | None = dataclasses.field(default=None, init=False)
    _protocol: Protocol | None = dataclasses.field(default=None, init=False)
    _pending: Round | None = dataclasses.field(default=None, init=False)
    _n_kept: int = dataclasses.field(default=0, init=False)  # rounds taken from the journal
    _n_skipped: int = dataclasses.field(default=0, init=False)  # rounds that no client was there for
    _is_enrolled: bool = dataclasses.field(default=False, init=False)
    _error: str = dataclasses.field(default="", init=False)  # why the run has ended early
    _n_flower_rounds: int = dataclasses.field(default=0, init=False)
    _outcome: Outcome | None = dataclasses.field(default=None, init=False)
    _sizes: ReleasedSizes | None = dataclasses.field(default=None, init=False)

    # What a subclass writes.

    @abstractmethod
    def protocol(self) -> Protocol:
        """Run the server half of the algorithm: yield rounds, return the outcome."""

    @property
    @abstractmethod
    def n_protocol_rounds(self) -> int:
        """The largest number of rounds that :meth:`protocol` yields."""

    @property
    def expected_columns(self) -> int | None:
        """How many columns the clients must have, if the server knows before the run."""
        return None

    def check_complete(self) -> None:
        """Raise a ValueError if a parameter that a run needs is missing. Extended by subclasses.

        Called after the preparation of tables, which may find some parameters.
        """

    def check_secure(self) -> None:
        """Raise a ValueError if secure sums are asked for together with what they exclude."""
        if self.secure and self.federated_evaluation:
            raise ValueError(
                "federated_evaluation is set, and shows the server each client's table; secure excludes it."
            )
        if self.secure and self.journal is not None:
            raise ValueError("journal is given, and a run with secure sums cannot be continued; leave one of them out.")

    @property
    def plan(self) -> str:
        """The plan of all noise of the run, as JSON, for sites to judge; "" without noise."""
        return ""

    @property
    def first_plan(self) -> str:
        """The plan as far as it is known before clients enrol, for the people who approve studies."""
        return self.plan

    def freeze_plan(self) -> None:
        """Freeze the plan of all noise once the clients have enrolled; before that, check that it can be made."""

    def privacy_notes(self) -> list[str]:
        """Return further notes for the privacy report. Extended by subclasses."""
        if self.noise_seed is None:
            return []
        return ["The noise was drawn from a seed, so that it can be repeated: an experiment, which protects nobody."]

    # What a protocol reads.

    @property
    def rng(self) -> np.random.Generator:
        """Randomness of the server that protects nobody (restarts, sampling), from random_state."""
        return self._current.rng

    @property
    def n_columns(self) -> int:
        """How many columns the clients' rows have; with a schema, the prepared rows."""
        return self._current.n_columns

    @n_columns.setter
    def n_columns(self, n_columns: int) -> None:
        self._current.n_columns = self._current.inspection.n_columns = n_columns

    @property
    def client_names(self) -> list[str]:
        """The enrolled clients, in the order in which their replies are added up; [] before a run."""
        return [] if self._run is None else list(self._run.clients)

    @property
    def most_clusters(self) -> int:
        """The largest number of clusters that are sought."""
        return self.n_clusters

    def n_to_draw(self, fraction: float, n_clients: int) -> int:
        """Return how many of ``n_clients`` a fraction is: at least as many as have to answer a round."""
        return self._current.n_to_draw(fraction, n_clients)

    def with_noise(self, round_: Round) -> Round:
        """Return a round with the noise for which the budget pays."""
        return round_

    def noise_of_sum(self, release: Release) -> float:
        """Return the standard deviation of the noise in a sum over all clients, in the array's units.

        For post-processing: no guarantee rests on it.
        """
        return self._current.noise_of_sum(release)

    # What a user reads.

    @property
    def name(self) -> str:
        """The name of the strategy with these parameters."""
        entries = vars(type(self)).get("entries", ())  # entries are not inherited
        fitting = [entry for entry in entries if entry.is_of(self)] or entries
        return max(fitting, key=lambda entry: len(entry.fixed)).name if fitting else type(self).__name__

    @property
    def num_rounds(self) -> int:
        """The number of rounds for ``ServerConfig(num_rounds=...)``."""
        n_steps = self.n_own_rounds - 1
        return 1 + (N_FIRST + N_EACH * n_steps if self.secure else n_steps)

    @property
    def n_own_rounds(self) -> int:
        """The number of rounds of the protocol, and the enrolment; with secure sums, Flower has more."""
        return 1 + (self.n_protocol_rounds if self.tables is None else self.tables.n_rounds(self))

    @property
    def enrolment(self) -> Mapping[str, Scalar]:
        """What clients are told when they are asked for their names and columns."""
        known = {} if self.expected_columns is None else {"n_columns": self.expected_columns}
        return known if self.tables is None else self.tables.enrolment

    @property
    def outcome(self) -> Outcome:
        """What the protocol returned."""
        if self._outcome is None:
            raise ProtocolError(self._why_not)
        return self._outcome

    @property
    def _why_not(self) -> str:
        """Explain why there is no outcome."""
        if self._error:
            return f"the run ended early: {self._error}"
        if self._run is None:
            return "this strategy has not run yet."
        return (
            f"the run had {self._n_flower_rounds} rounds and stopped before '{self._task}'; it needs up to "
            f"{self.num_rounds}: give ServerConfig(num_rounds={self.num_rounds})."
        )

    @property
    def report(self) -> PrivacyReport:
        """The privacy report of the rounds that ran."""
        private = self.epsilon is not None
        of_tables = [] if self.tables is None else self.tables.notes()
        return PrivacyReport(
            strategy=self.name,
            messages=tuple(self._current.log.messages),
            requested_epsilon=self.epsilon,
            delta=self.delta if private else None,
            unit=self.privacy_unit if private else None,
            noise=self.noise if private else None,
            notes=(*self.privacy_notes(), *of_tables, *self._current.notes(), *self._current.log.notes()),
        )

    @property
    def failures(self) -> list[Failure]:
        """The clients that failed, with reasons, by round."""
        return in_log_order(self._current.log.failures)

    @property
    def traffic(self) -> list[Traffic]:
        """Bytes to and from each client in each round."""
        return in_log_order(self._current.log.traffic)

    @property
    def evaluation(self) -> dict[str, float] | None:
        """The result of the federated evaluation; None if there was none."""
        return self._current.evaluation

    @property
    def released_sizes(self) -> ReleasedSizes | None:
        """The last sizes of clusters that were released, or None."""
        return self._sizes

    @property
    def n_released_rows(self) -> float:
        """About how many rows there are, by the released sizes; 0 if there are none."""
        return 0.0 if self._sizes is None else float(np.maximum(self._sizes.counts, 0.0).sum())

    @property
    def largest_client(self) -> tuple[str, float] | None:
        """The client with the most stated rows, and its part of all rows; None if the run does not see that."""
        return self._current.inspection.largest

    @property
    def is_finished(self) -> bool:
        """Whether the protocol has returned."""
        return self._outcome is not None

    @property
    def sends_model(self) -> bool:
        """Whether clients are sent the model after the protocol has returned."""
        return self.federated_evaluation or self.share_model

    def end_early(self, error: BaseException) -> None:
        """Note an early end of the run, and attach the report of what has left the clients to the error."""
        if not self.is_finished:
            self._error = str(error) or type(error).__name__
        if self._run is not None and not hasattr(error, "privacy_report") and not self.is_finished:
            self._run.log.ended = f"round {self._run.last_asked} ('{self._task}')"
            error.privacy_report = self.report  # type: ignore[attr-defined]

    # Flower's Strategy.

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        """Begin a new run."""
        self.check_parameters()
        self.check_secure()
        columns = None  # with a schema, clients have the schema's columns
        if self.tables is None:
            columns = put_in_order(self)
            columns = columns if self.server_columns is None else self.server_columns
            self.check_complete()
            self._protocol = self.protocol()
        else:
            self._protocol = self.tables.protocol(self)
        self._run = None
        if self.secure:
            check_rehearsal(self, columns)
        of_kind = SecureRun if self.secure else Run
        self._run = of_kind(copy.copy(self), columns, self.run_id or secrets.token_hex(16))
        self.freeze_plan()
        self._pending, self._outcome, self._sizes = None, None, None
        self._n_kept, self._n_skipped, self._is_enrolled = 0, 0, False
        self._error, self._n_flower_rounds = "", 0
        if self.journal is not None:
            self._go_on_from(self.journal)
            self._finish()
        return encode(
            [np.zeros_like(array) for array in PROBE]
        )  # a wrapper that clips what differs from it changes the probe

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Send the pending round; nothing once the protocol has returned."""
        instructions: list[tuple[ClientProxy, FitIns]] = []
        self._n_flower_rounds = server_round
        if self.is_finished and (self._is_enrolled or not self.sends_model):
            return instructions
        with self._run_that_may_end():
            if not self._is_enrolled:
                return self._current.ask_to_enrol(1, client_manager, self.first_plan)
            while not instructions and self._pending is not None:
                number = self._number(server_round)
                instructions = self._current.ask(number, self._pending, client_manager, self.plan)
                if not instructions:  # an optional round that too few clients can answer
                    self._take_in(number, None)
                    self._n_skipped += 1
                elif self.journal is not None and self.journal.ask(number, digest_of(self._pending)):
                    self._current.note_asked_again(number, self._pending)
            return instructions

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Any]]:
        """Give the sums or the replies to the protocol."""
        run, number = self._current, self._number(server_round)
        if self._protocol is None or (self.is_finished and self._is_enrolled):
            return None, {}
        with self._run_that_may_end():
            if self._is_enrolled and self._pending is not None:
                received = run.receive(number, self._pending, results, failures)
                if received != WAITING:
                    self._take_in(number, received)
            elif self._n_kept:
                run.enrol(1, results, failures, goes_on=True)
            else:
                run.enrol(1, results, failures)
                self._take_in(1, None)
            self._is_enrolled = True
        return None if self._outcome is None else encode(self._outcome.model.to_arrays()), {}

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Send the model to all clients once: to evaluate, to keep, or both."""
        if not self.sends_model or self._outcome is None or self._current.evaluation is not None:
            return []
        return self._current.ask_to_evaluate(self._number(server_round), self._outcome, client_manager)

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Any]]:
        """Return the mean cost of a row, and "cost" (if finite), "n_rows", "accuracy", "nmi" and "ari"."""
        n_clusters = self.outcome.model.n_clusters if self.federated_evaluation else None
        metrics = self._current.receive_evaluation(self._number(server_round), results, failures, n_clusters)
        self._finish(is_evaluated=True)
        return (metrics["cost"] / metrics["n_rows"] if "cost" in metrics else None), dict(metrics)

    def evaluate(self, server_round: int, parameters: Parameters) -> None:
        """Do nothing: the server has no rows to evaluate with."""

    # Internals.

    def _number(self, server_round: int) -> int:
        """Return the number of a Flower round within the run, which may have had rounds before an interruption."""
        return server_round + max(self._n_kept - 1, 0) + self._n_skipped - self._current.n_extra

    def _take_in(self, number: int, received: Any) -> None:
        """Write what a round brought to the journal, and give it to the protocol."""
        if self.journal is not None:
            self.journal.keep(self._current.record(number, digest_of(self._pending), received))
        if self.on_round is not None:
            self.on_round(number, self._task)
        self._advance(received)
        if self.is_finished and self.journal is not None:
            self.journal.wait()  # before anybody sees a result
        self._finish()

    def _advance(self, received: Any) -> None:
        """Give the protocol what a round brought, and take its next round or its outcome."""
        assert self._protocol is not None
        if self._pending is not None:
            if self.on_received is not None:
                self.on_received(self._pending, received)
            self._sizes = ReleasedSizes.of_round(self._pending, received) or self._sizes
        self.freeze_plan()
        try:
            with one_thread():
                round_ = self._protocol.send(received)
        except DataError as error:
            raise DataError(f"{error}{self._current.inspection.why_likely}") from error
        except StopIteration as stop:
            self._pending = None
            self._outcome = stop.value if isinstance(stop.value, Outcome) else Outcome(stop.value)
            if self._outcome.model.columns_ is None:
                columns = self._current.roster.columns
                self._outcome.model.columns_ = columns if isinstance(columns, list) else None
            return
        if not round_.question:
            raise ProtocolError(
                f"round {self._current.last_asked + 1}, after '{self._task}', asks no client: its mapping of questions "
                "is empty; leave the round out."
            )
        self._pending = self.with_noise(round_)

    def _go_on_from(self, journal: Journal) -> None:
        """Resume the run of a journal: give the protocol again what it was given before."""
        run = self._current
        given = {name: getattr(self, name) for name in (*self.parameter_names(), "noise_seed")}
        head = journal.begin(self.name, given, run.id)
        run.id = head["run"]
        if self.random_state is None:
            run.rng = np.random.default_rng(head["entropy"])
        for record in journal.checked_records(lambda: digest_of(self._pending)):
            run.go_on(record)
            self._n_kept = record.number
            self._advance(record.received)

    def _finish(self, *, is_evaluated: bool = False) -> None:
        if self.on_finished is not None and self.is_finished and (is_evaluated or not self.sends_model):
            self.on_finished(self)

    @contextmanager
    def _run_that_may_end(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.end_early(error)
            raise

    @property
    def _current(self) -> Run:
        if self._run is None:
            raise ProtocolError("this strategy has not run yet.")
        return self._run

    @property
    def _task(self) -> str:
        return ENROL if self._pending is None else self._pending.task


#: The report warns of a larger delta: for most tables it is not far below one over the number of rows.
LARGE_DELTA = 1e-4


class PrivateStrategy(ProtocolStrategy):
    """Base of strategies that can add noise.

    A subclass names the parts of its privacy budget in :meth:`parts`. A round names the part that pays for each array.
    The plan of a run is made from the parts once, as soon as its clients have enrolled. Nothing that a run finds later
    changes it.

    Parameters
    ----------
    epsilon : float, optional
        The privacy budget of the whole run. None: no noise and no guarantee.
    delta : float, default=1e-6
        The delta of that budget.
    noise : "server", "clients" or "local", default="server"
        Who adds the noise: a trusted server; the clients, each a share (for secure aggregation); or each client all of
        it, so that its reply is private by itself.
    budget : mapping of str to float, optional
        Parts of epsilon, by the names that ``fedclust explain`` shows. Parts that are not named share the rest in their
        usual proportions.
    """

    promises: ClassVar[tuple[PrivacyUnit, ...]] = ("record",)

    # Beyond 1000 the composition is not computed reliably, and nobody is protected anyway.
    epsilon: float | None = parameter(None, above=0, at_most=1000)
    # Below 1e-12 the composition is not computed reliably.
    delta: float = parameter(1e-6, at_least=1e-12, below=1)
    noise: NoisePlace = parameter("server")
    budget: Mapping[str, float] | None = parameter(None)

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first parameter which cannot be right. Extended by subclasses."""
        super().check_parameters()
        if not isinstance(self.budget, Mapping | None):
            raise ValueError(f"budget is {self.budget!r}; it must be parts by name, such as {{'votes': 0.3}}.")
        for name, part in (self.budget or {}).items():
            check_real(f"the budget of {name}", part, above=0, at_most=1)

    def privacy_notes(self) -> list[str]:
        """Add a warning about a large delta."""
        notes = super().privacy_notes()
        if self.epsilon is not None and self.delta > LARGE_DELTA:
            notes.append(
                f"delta is {self.delta:g}: with this probability everything about a row may come out. "
                "Choose it far below one over the number of rows."
            )
        return notes

    def parts(self) -> Mapping[str, Part]:
        """Return the default parts of the privacy budget by name."""
        return {}

    @property
    def relation(self) -> Relation:
        """How neighboring data sets differ: the strongest relation that all parts of the budget support."""
        return relation_of(self.parts())

    def noise_multipliers(self) -> dict[str, float]:
        """Return the noise multipliers with which the whole run is (epsilon, delta)-private."""
        return calibrate(divided(self.shares(), self.budget), self.epsilon, delta_of_composition(self.delta))

    def shares(self) -> dict[str, Share]:
        """Return :meth:`all_parts` as the accounting reads them."""
        inner = self if self.tables is None else self.tables.likely(self)
        return shares_of(self.all_parts(), inner.relation)

    def make_plan(self) -> Plan:
        """Return the plan of all noise, from what is known now."""
        shares = divided(self.shares(), self.budget)
        return Plan(self.epsilon, self.delta, self.noise, self.privacy_unit, shares, self.noise_multipliers())

    @property
    def frozen_plan(self) -> Plan:
        """The plan of the run: fixed once its clients have enrolled, preliminary before that."""
        run = self._run
        if run is None:
            return self.make_plan()
        spending = run.spending or Spending(self.make_plan())
        if run.clients:
            run.spending = spending
        return spending.plan

    def freeze_plan(self) -> None:
        """Freeze the plan, once the names in a budget can be known; a subclass may wait for what rounds find."""
        # Names in a budget may refer to shares that depend on the clients' columns, unknown before they enrol.
        is_early = self.budget is not None and not self.client_names
        if self.epsilon is not None and not is_early:
            _ = self.frozen_plan

    @property
    def plan(self) -> str:
        """The frozen plan as JSON; "" without an epsilon."""
        return "" if self.epsilon is None else self.frozen_plan.to_json()

    @property
    def first_plan(self) -> str:  # noqa: D102
        return self.plan if self.budget is None else ""  # a budget may name shares that the clients' columns decide

    def summed(self, question: Question, *parts: str, at_most: tuple[float | None, ...] = ()) -> Sum:
        """Return the round for a sum over rows, or for a sum of the clients' means if the guarantee is for clients.

        Parameters
        ----------
        question : Question
        *parts : str
            The parts of the budget that pay for the arrays.
        at_most : tuple of (float or None)
            The norms to which a client clips its means.
        """
        return Sum(question.mean(*at_most) if self.privacy_unit == "client" else question, parts=parts)

    def noise_of(self, part: str, bound: float = 1.0) -> float:
        """Return the standard deviation of the noise in a sum that one row, or one client, can change by ``bound``.

        For post-processing; no guarantee rests on it. 0 without an epsilon.
        """
        if self.epsilon is None:
            return 0.0
        plan = self.frozen_plan
        share = plan.shares[part]
        return self.noise_of_sum(Release(share.mechanism, bound, plan.multipliers[part], "", share.relation))

    def noise_scale(self, part: str, bound: float = 1.0) -> float:
        """Return the scale of that noise: the standard deviation of Gaussian noise, the scale of Laplace noise."""
        if self.epsilon is None:
            return 0.0
        is_laplace = self.frozen_plan.shares[part].mechanism == "laplace"
        return self.noise_of(part, bound) / (math.sqrt(2.0) if is_laplace else 1.0)

    def with_noise(self, round_: Round) -> Round:
        """Return a round with the noise for which its parts of the budget pay."""
        if self.epsilon is None:
            return round_
        if any(round_.releases):
            raise ProtocolError(f"'{round_.task}' comes with releases; a round names parts, and the run finds these.")
        if not round_.parts:
            return round_
        declared = self.all_parts()
        for name in round_.parts:
            if name in declared and round_.asks not in declared[name].askables:
                raise ProtocolError(f"part '{name}' of the budget does not pay for '{round_.task}'.")
        questions = round_.question.values() if isinstance(round_.question, Mapping) else [round_.question]
        plan = self.frozen_plan
        found = {releases_of_parts(question, question.moved(), round_.parts, plan) for question in questions}
        if len(found) > 1:
            raise ProtocolError(
                f"'{round_.task}' has other bounds for some clients than for others; ask in several rounds."
            )
        return replace(round_, releases=found.pop())

    def all_parts(self) -> dict[str, Part]:
        """Return the parts of the budget of a run: the strategy's own, and the parts for preparing tables."""
        if self.tables is None:
            return dict(self.parts())
        inner = self.tables.likely(self)
        return {**inner.parts(), **self.tables.parts(inner)}


class ClippedStrategy(PrivateStrategy):
    """Base of private strategies whose clients clip every row to a norm.

    Parameters
    ----------
    max_norm : float, optional
        The Euclidean norm to which every client clips its rows; required with an epsilon. It is public: do not take it
        from data. Choose it together with units and origin.
    """

    max_norm: float | None = parameter(None, at_least=SMALLEST, at_most=LARGEST)

    @property
    def max_norm_of_rows(self) -> float | None:
        """The norm to which rows are clipped; None without an epsilon."""
        return None if self.epsilon is None else self.max_norm

    def check_complete(self) -> None:
        """Raise a ValueError if there is an epsilon but no max_norm."""
        super().check_complete()
        if self.epsilon is not None and self.max_norm is None:
            raise ValueError("max_norm is missing; noise for an epsilon needs a norm to which rows are clipped.")
