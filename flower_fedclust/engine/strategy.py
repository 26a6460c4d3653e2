"""The server's side: Flower strategies that run a protocol written as a generator, and the names of strategies."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import logging
import math
import secrets
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from flower_fedclust.data.frames import as_named, in_order, names_of
from flower_fedclust.engine.client import ProtocolClient
from flower_fedclust.engine.client_data import ClientData
from flower_fedclust.engine.inline import run_inline
from flower_fedclust.engine.journal import Journal
from flower_fedclust.engine.log import in_log_order
from flower_fedclust.engine.messages import Answers, CalledBack, Steps
from flower_fedclust.engine.parameters import Declared, parameter
from flower_fedclust.engine.parts import (
    Budget,
    Part,
    Spending,
    relation_of,
    releases_of_parts,
    shares_of,
)
from flower_fedclust.engine.progress import quiet
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
    Reply,
    Round,
    Scalar,
    Sum,
    Traffic,
)
from flower_fedclust.engine.run import Run
from flower_fedclust.engine.secure_sums import N_EACH, N_FIRST, check_round
from flower_fedclust.engine.settings import Settings
from flower_fedclust.engine.wire import PROBE, encode
from flower_fedclust.exact.capacity import LARGEST_BOUND, bits_with
from flower_fedclust.exact.grid import ENTRY_BITS, MOST_ROWS
from flower_fedclust.numerics.checks import LARGEST_NORM, SMALLEST_NORM, check_real
from flower_fedclust.privacy.accounting import Plan, Share, calibrate, delta_of_composition, divided
from flower_fedclust.privacy.releases import NoisePlace, PrivacyUnit, Relation, Release
from flower_fedclust.privacy.report import PrivacyReport
from flower_fedclust.tables.drafting import made_up_table

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
        Values that the name gives to some parameters.
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
        """The units for which a whole run under this name can be private: "record", "subject", "client", or none."""
        has_an_epsilon = (
            "epsilon" in self.strategy.parameter_names() and "epsilon" not in self.fixed
        )
        return tuple(self.strategy.promises) if has_an_epsilon else ()

    @property
    def reveals(self) -> tuple[Kind, ...]:
        """The kinds of messages that the strategy may ask for, according to its clients' declarations."""
        client_type = self.strategy.client_type
        asked = [
            value
            for name in dir(client_type)
            if isinstance(value := getattr(client_type, name), Askable)
            and not hasattr(ProtocolClient, name)
        ]
        kinds = {
            sent.reveals for askable in asked for sent in askable.answer.sends if not sent.kept_as
        }
        return tuple(kind for kind in KINDS if kind in kinds)

    def is_of(self, strategy: ProtocolStrategy) -> bool:
        """Return whether the name stands for the parameters of a strategy."""
        pairs = ((getattr(strategy, name), fixed) for name, fixed in self.fixed.items())
        return all(type(value) is type(fixed) and value == fixed for value, fixed in pairs)


class ProtocolStrategy(Declared, Strategy):
    """Base of all strategies: a Flower Strategy whose algorithm is one generator.

    A subclass declares its parameters as fields, its names in ``entries`` and its client half in ``client_type``, and
    writes :meth:`protocol` and :attr:`n_protocol_rounds`. A strategy that can take noise derives from
    :class:`~flower_fedclust.authoring.PrivateStrategy`. In the first round of every run, each client gives its name and
    columns.

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
    most_rows : int, default=8388607
        A public bound on the rows of a client, up to 2^30 - 1. Each doubling costs some sums one bit of precision. A
        site refuses a run that allows fewer rows than it may have.

    Attributes
    ----------
    outcome : Outcome
        The model, once the protocol has returned it.
    report : PrivacyReport
        Made from the rounds that ran.
    failures : list of Failure
    traffic : list of Traffic
    evaluation : dict or None
        The result of the federated evaluation, if it was asked for.
    """

    entries: ClassVar[tuple[Entry, ...]] = ()
    client_type: ClassVar[type[ProtocolClient]] = ProtocolClient
    #: The units for which a whole run can be private.
    promises: ClassVar[tuple[PrivacyUnit, ...]] = ()

    n_clusters: int = parameter(at_least=2, kw_only=False)
    min_clients: int | None = parameter(None, at_least=1)
    random_state: int | None = parameter(None, at_least=0)
    federated_evaluation: bool = parameter(False)
    most_rows: int = parameter(MOST_ROWS, at_least=MOST_ROWS, at_most=LARGEST_BOUND)

    # Without noise these are constants; PrivateStrategy makes parameters of the first three.
    epsilon: float | None = dataclasses.field(default=None, init=False)
    delta: float = dataclasses.field(default=1e-6, init=False)
    noise: NoisePlace = dataclasses.field(default="server", init=False)
    privacy_unit: PrivacyUnit = dataclasses.field(default="record", init=False)
    rows_per_subject: int = dataclasses.field(default=1, init=False)
    sites_per_subject: int = dataclasses.field(default=1, init=False)

    # Set by the code that starts a run.

    #: Prepares the clients' tables before the strategy runs, and describes the clusters after it; set by
    #: :func:`~flower_fedclust.with_schema`.
    tables: Any = dataclasses.field(default=None, init=False)
    #: One sentence on where the public rows of the server come from, for the privacy report.
    server_data_origin: str = dataclasses.field(default="", init=False)
    #: The column names of the server's rows, if known. Clients with other columns are left out.
    server_columns: Sequence[str] | None = dataclasses.field(default=None, init=False)
    #: How long to wait for the clients of a deployment to appear, in seconds.
    wait_for_clients: float = dataclasses.field(default=60.0, init=False)
    #: How many clients to wait for during that time; after it, and by default at once, min_clients are enough.
    expected_clients: int | None = dataclasses.field(default=None, init=False)
    #: A reply more than so many times as large as most is left out, because it may have a wrong value or another unit.
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
    #: Called once with the strategy when it has its outcome and evaluation, for callers that gave the strategy to
    #: Flower and have no reference to it.
    on_finished: Callable[[ProtocolStrategy], None] | None = dataclasses.field(
        default=None, init=False
    )
    #: Called after each round with the number and the task of the round.
    on_round: Callable[[int, str], None] | None = dataclasses.field(default=None, init=False)
    #: Called with each round and its result, for rehearsals.
    on_received: Callable[[Round, Any], None] | None = dataclasses.field(default=None, init=False)

    _run: Run | None = dataclasses.field(default=None, init=False)
    _error: str = dataclasses.field(default="", init=False)  # why the run has ended early
    # The next three are for runs that Flower carries: the run, Flower's proxy of each node, and how often Flower has
    # asked for messages.
    _carried: CalledBack | None = dataclasses.field(default=None, init=False)
    _proxies: Mapping[str, ClientProxy] = dataclasses.field(default_factory=dict, init=False)
    _n_flower_rounds: int = dataclasses.field(default=0, init=False)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        hidden = [
            name
            for name in inspect.get_annotations(cls)
            if inspect.isfunction(getattr(ProtocolStrategy, name, None))
        ]
        if hidden:
            raise TypeError(
                f"{cls.__name__} has a parameter '{hidden[0]}', which would hide the method of every strategy that is "
                "called so; give it another name."
            )
        super().__init_subclass__(**kwargs)

    # Methods that a subclass writes.

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
        """Raise a ValueError if secure sums are asked for together with options that they exclude."""
        if self.secure and self.federated_evaluation:
            raise ValueError(
                "federated_evaluation is set, and shows the server each client's table; secure excludes it."
            )
        if self.secure and self.journal is not None:
            raise ValueError(
                "journal is given, and a run with secure sums cannot be continued; leave one of them out."
            )

    @property
    def plan(self) -> str:
        """The plan of all noise of the run, as JSON, for sites to judge; "" without noise."""
        return ""

    @property
    def first_plan(self) -> str:
        """The plan as far as it is known before clients enrol. People at the sites read it to approve a run."""
        return self.plan

    def freeze_plan(self) -> None:
        """Freeze the plan of all noise once the clients have enrolled; before that, check that it can be made."""

    def privacy_notes(self) -> list[str]:
        """Return further notes for the privacy report. Extended by subclasses."""
        if self.noise_seed is None:
            return []
        return [
            "The noise was drawn from a seed, so that it can be repeated: an experiment, which protects nobody."
        ]

    # Attributes that a protocol reads.

    @property
    def rng(self) -> np.random.Generator:
        """The server's randomness, from random_state, for choices on which no privacy rests (restarts, sampling)."""
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

    @property
    def fewest_clusters(self) -> int:
        """The smallest number of clusters that are sought; rows that are fewer cannot be clustered."""
        return self.most_clusters

    def n_to_draw(self, fraction: float, n_clients: int) -> int:
        """Return how many clients to draw for a fraction: at least as many as must answer a round."""
        return self._current.n_to_draw(fraction, n_clients)

    def with_noise(self, round_: Round) -> Round:
        """Return the round with the noise that the budget pays for."""
        return round_

    def noise_of_sum(self, release: Release) -> float:
        """Return the standard deviation of the noise in a sum over all clients, in the array's units.

        For post-processing: no guarantee rests on it.
        """
        return self._current.noise_of_sum(release)

    # Attributes that a user reads.

    @property
    def name(self) -> str:
        """The name of the strategy with these parameters."""
        entries = vars(type(self)).get("entries", ())  # entries are not inherited
        fitting = [entry for entry in entries if entry.is_of(self)] or entries
        return (
            max(fitting, key=lambda entry: len(entry.fixed)).name
            if fitting
            else type(self).__name__
        )

    @property
    def num_rounds(self) -> int:
        """The number of rounds for ``ServerConfig(num_rounds=...)``."""
        n_steps = self.n_own_rounds - 1
        return 1 + (N_FIRST + N_EACH * n_steps if self.secure else n_steps)

    @property
    def n_own_rounds(self) -> int:
        """The number of rounds of the protocol, plus the enrolment; with secure sums, Flower counts more rounds."""
        return 1 + (self.n_protocol_rounds if self.tables is None else self.tables.n_rounds(self))

    @property
    def enrolment(self) -> Mapping[str, Scalar]:
        """The strategy's fields of a message that asks clients to enrol."""
        known = {} if self.expected_columns is None else {"n_columns": self.expected_columns}
        return known if self.tables is None else self.tables.enrolment

    @property
    def outcome(self) -> Outcome:
        """The outcome that the protocol has returned."""
        if self._run is None or self._run.outcome is None:
            raise ProtocolError(self._why_not)
        return self._run.outcome

    @property
    def _why_not(self) -> str:
        """Explain why there is no outcome."""
        if self._error:
            return f"the run ended early: {self._error}"
        if self._run is None:
            return "this strategy has not run yet."
        return (
            f"the run had {self._n_flower_rounds} rounds and stopped before '{self._run.task}'; it needs up to "
            f"{self.num_rounds}: give ServerConfig(num_rounds={self.num_rounds}), or leave num_rounds out of "
            "MessageStrategy.start."
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
            sites_per_subject=self.sites_per_subject,
            noise=self.noise if private else None,
            notes=(
                *self.privacy_notes(),
                *self._notes_of_rows(),
                *of_tables,
                *self._current.notes(),
                *self._current.log.notes(),
            ),
        )

    def _notes_of_rows(self) -> list[str]:
        """Return a note on the cost of a larger most_rows; [] if it is the default."""
        if self.most_rows == MOST_ROWS:
            return []
        bits = bits_with(self.most_rows)
        return [
            f"Each client may have up to {self.most_rows:,} rows, so a row adds at most {bits} bits to an entry of a "
            f"sum: {ENTRY_BITS - bits} fewer than by default. Sums of squares and weighted sums are coarser by this; "
            "sums of rows and counts are not."
        ]

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
        return None if self._run is None else self._run.sizes

    @property
    def released_rows(self) -> ReleasedSizes | None:
        """The number of all rows that was released with least noise, as one size, or None."""
        return None if self._run is None else self._run.rows

    @property
    def n_released_rows(self) -> float:
        """The approximate number of rows, from the released sizes; 0 if no sizes were released."""
        sizes = None if self._run is None else self._run.sizes
        return 0.0 if sizes is None else float(np.maximum(sizes.counts, 0.0).sum())

    @property
    def largest_client(self) -> tuple[str, float] | None:
        """The client with the most stated rows, and its fraction of all rows; None if the run does not see them."""
        return self._current.inspection.largest

    @property
    def is_finished(self) -> bool:
        """Whether the protocol has returned."""
        return self._run is not None and self._run.outcome is not None

    @property
    def sends_model(self) -> bool:
        """Whether clients are sent the model after the protocol has returned."""
        return self.federated_evaluation or self.share_model

    def end_early(self, error: BaseException) -> None:
        """Note an early end of the run, and attach the report of what has left the clients to the error."""
        if not self.is_finished:
            self._error = str(error) or type(error).__name__
        if self._run is not None and not hasattr(error, "privacy_report") and not self.is_finished:
            self._run.log.ended = f"round {max(self._run.number, 1)} ('{self._run.task}')"
            error.privacy_report = self.report  # type: ignore[attr-defined]

    # The run, for whoever carries its messages.

    def steps(self) -> Steps:
        """Begin a new run, and return it as a generator: it yields messages and is sent the answers.

        If an error ends the run, the error carries the privacy report of what had left the clients.
        """
        self._run, self._error = None, ""
        try:
            self._run = self._new_run()
            outcome = yield from self._run.steps(self)
            if self.on_finished is not None:
                self.on_finished(self)
        except GeneratorExit:
            raise  # the carrier has gone away
        except BaseException as error:
            self.end_early(error)
            raise
        return outcome

    def begin(self) -> Protocol:
        """Return the protocol, extended by the preparation and description of tables if there is a schema."""
        protocol: Protocol = self.protocol() if self.tables is None else self.tables.protocol(self)
        return protocol

    @property
    def given(self) -> dict[str, Any]:
        """The parameters. They must be the same when an interrupted run goes on."""
        return {name: getattr(self, name) for name in (*self.parameter_names(), "noise_seed")}

    def _new_run(self) -> Run:
        self.check_parameters()
        self.check_secure()
        columns = None  # stays None with a schema: then the schema names the columns
        if self.tables is None:
            columns = put_in_order(self)
            columns = columns if self.server_columns is None else self.server_columns
            self.check_complete()
        if self.secure:
            check_rehearsal(self, columns)
        run_id = self.run_id or secrets.token_hex(16)
        return Run(self._settings, columns, run_id, secure=self.secure, journal=self.journal)

    @property
    def _settings(self) -> Settings:
        return Settings(
            client_type=self.client_type,
            min_clients=self.min_clients,
            expected_clients=self.expected_clients,
            epsilon=self.epsilon,
            noise=self.noise,
            privacy_unit=self.privacy_unit,
            noise_seed=self.noise_seed,
            random_state=self.random_state,
            largest_ratio=self.largest_ratio,
            most_clusters=self.most_clusters,
            federated_evaluation=self.federated_evaluation,
            share_model=self.share_model,
            has_tables=self.tables is not None,
            most_rows=self.most_rows,
            n_prepared=0 if self.tables is None else self.tables.n_columns,
            n_rounds=self.n_own_rounds,
        )

    # The methods that Flower calls on a strategy; they carry the run.

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        """Begin a new run."""
        self.called_back()
        # A wrapper may clip how far a reply is from these parameters. They are zeros, so that it then changes the probe
        # that clients send when they enrol, and is found before any question about rows.
        return encode([np.zeros_like(array) for array in PROBE])

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Return the messages of the run's next exchange; [] once the protocol has returned."""
        return self._to_send(client_manager, of_model=False)

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Any]]:
        """Pass the answers to the run; return the model once there is one."""
        if self._carried is not None:
            self._carried.answer(_answers(results, failures), of_model=False)
        return encode(self.outcome.model.to_arrays()) if self.is_finished else None, {}

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Send the model to all clients once: to evaluate, to keep, or both."""
        return self._to_send(client_manager, of_model=True)

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Any]]:
        """Return the mean cost of a row, and "cost" (if finite), "n_rows", "accuracy", "nmi" and "ari"."""
        if self._carried is None or not self._carried.answer(
            _answers(results, failures), of_model=True
        ):
            return None, {}
        metrics = dict(self.evaluation or {})
        return (metrics["cost"] / metrics["n_rows"] if "cost" in metrics else None), metrics

    def evaluate(self, server_round: int, parameters: Parameters) -> None:
        """Do nothing: the server has no rows to evaluate with."""

    def called_back(self) -> CalledBack:
        """Begin a new run for a framework that calls the strategy's methods; see :class:`CalledBack`."""
        self._n_flower_rounds, self._carried = 0, None
        self._carried = CalledBack(self.steps(), self.wait_for_clients)
        return self._carried

    def _to_send(self, manager: ClientManager, *, of_model: bool) -> list[tuple[ClientProxy, Any]]:
        def look() -> Mapping[str, ClientProxy]:
            # Some client managers look for clients only when this is called.
            manager.num_available()
            self._proxies = dict(manager.all())
            return self._proxies

        if self._carried is None:
            return []
        self._n_flower_rounds += not of_model
        return [
            (self._proxies[message.node], message.ins)
            for message in self._carried.messages(look, of_model=of_model)
        ]

    # Internals.

    @property
    def _current(self) -> Run:
        if self._run is None:
            raise ProtocolError("this strategy has not run yet.")
        return self._run


def _answers(results: Sequence[tuple[ClientProxy, Any]], failures: Sequence[object]) -> Answers:
    """Return Flower's results as replies by node, and its errors as failures."""
    return Answers(
        {proxy.cid: res for proxy, res in results},
        [failure for failure in failures if isinstance(failure, BaseException)],
    )


def usable(
    strategy: ProtocolStrategy, replies: Sequence[Reply], why_not: Callable[[Reply], str]
) -> list[Reply]:
    """Return the usable replies of the last round, and note a failure for each other reply.

    ``why_not`` returns what is wrong with a reply, or "". The text completes "client x sent ...".
    """
    run = strategy._current
    reasons = {
        reply.client: f"client {reply.client} sent {reason}."
        for reply in replies
        if (reason := why_not(reply))
    }
    run.log.note_failures(run.number, run.task, reasons)
    left = [reply for reply in replies if reply.client not in reasons]
    run.check_enough_usable(len(left))
    return left


def put_in_order(
    strategy: ProtocolStrategy, columns: Sequence[str] | None = None, whose: str = ""
) -> Sequence[str] | None:
    """Put the columns of the server's rows, of first centers and of the origin into one order, and return the order.

    The default order is taken from the first of these parameters with named columns; None if there is none.
    """
    for name in ("server_data", "init", "origin"):
        value = getattr(strategy, name, None)
        names = names_of(value)
        if names is None:
            continue
        if columns is None:
            columns, whose = names, name
        frame = in_order(as_named(value, name), columns, name, whose)
        setattr(strategy, name, frame.iloc[0] if getattr(value, "ndim", 2) == 1 else frame)
    return columns


# Rehearsals.

#: A rehearsal has N_REHEARSING clients, by default N_COLUMNS columns, and at most N_REHEARSED clusters.
N_REHEARSING, N_COLUMNS, N_REHEARSED = 4, 16, 8


def rehearse(
    strategy: ProtocolStrategy, columns: Sequence[str] | None, see: Callable[[Round, Any], None]
) -> None:
    """Run a copy of the strategy on made-up rows; ``see`` is called with each round and its results.

    Errors end the rehearsal silently.
    """
    rng, n_rows = np.random.default_rng(0), 20 * min(strategy.most_clusters, N_REHEARSED)
    shape = n_rows, strategy.expected_columns or (N_COLUMNS if columns is None else len(columns))
    copied = copy.copy(strategy)
    changed: dict[str, Any] = {
        "secure": False,
        "share_model": False,
        "noise_seed": 0,
        "on_received": see,
        "on_finished": None,
        "on_round": None,
        "expected_clients": None,
        "tables": copy.deepcopy(strategy.tables),
    }
    if strategy.most_clusters > N_REHEARSED:
        changed["n_clusters"] = N_REHEARSED
    for name, value in changed.items():
        setattr(copied, name, value)
    copied.min_clients = copied.min_clients and min(copied.min_clients, N_REHEARSING)
    with (
        quiet(logging.CRITICAL, "flwr", "flower_fedclust"),
        warnings.catch_warnings(),
        suppress(Exception),
    ):
        warnings.simplefilter("ignore")
        subjects = np.arange(n_rows) if strategy.privacy_unit == "subject" else None
        clients = {
            str(index): ClientData(rng.normal(size=shape), columns=columns, subjects=subjects)
            if strategy.tables is None
            else ClientData(
                made_up_table(strategy.tables.schema, n_rows, rng), raw=True, subjects=subjects
            )
            for index in range(N_REHEARSING)
        }
        run_inline(copied, clients, range(N_REHEARSING))


def check_rehearsal(strategy: ProtocolStrategy, columns: Sequence[str] | None) -> None:
    """Rehearse the run; raise a ProtocolError if it has a round that :func:`check_round` refuses."""
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


#: The report warns if delta is larger. Delta should be far below one over the number of rows, and for most tables a
#: larger one is not.
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
        Fractions of epsilon for parts of the run, by the names that ``fedclust explain`` shows. Parts without a name
        here share the rest in their usual proportions.
    privacy_unit : "record", "subject" or "client", default="record"
        Whom the guarantee covers: a row; a person with all rows that the person has at a site, as a ``subject_column``
        says; or everything that one client contributes. Not every strategy can cover all three.
    rows_per_subject : int, default=1
        Only for the unit "subject"; choose it from public knowledge. A person with n rows counts as one row if n
        is this number or more, and otherwise as n / rows_per_subject of a row. It costs no privacy.
    sites_per_subject : int, default=1
        Only for the unit "subject"; choose it from public knowledge. The most sites at which a person has rows. All
        noise grows in proportion.
    """

    promises: ClassVar[tuple[PrivacyUnit, ...]] = ("record",)
    #: Why the strategy cannot protect subjects; completes an error message.
    why_not_subjects: ClassVar[str] = (
        "it sends more than sums over rows, and nothing bounds how much one person with several rows changes that"
    )
    #: How neighboring data sets differ; by default the strongest relation that all parts of the budget support.
    relation: ClassVar[Relation | None] = None

    # Beyond 1000 the composition is not computed reliably, and nobody is protected anyway.
    epsilon: float | None = parameter(None, above=0, at_most=1000)
    # Below 1e-12 the composition is not computed reliably.
    delta: float = parameter(1e-6, at_least=1e-12, below=1)
    noise: NoisePlace = parameter("server")
    budget: Mapping[str, float] | None = parameter(None)
    privacy_unit: PrivacyUnit = parameter("record")
    rows_per_subject: int = parameter(1, at_least=1, at_most=2**20)
    sites_per_subject: int = parameter(1, at_least=1, at_most=2**20)

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first invalid parameter. Extended by subclasses."""
        super().check_parameters()
        if not isinstance(self.budget, Mapping | None):
            raise ValueError(
                f"budget is {self.budget!r}; it must be parts by name, such as {{'votes': 0.3}}."
            )
        for name, part in (self.budget or {}).items():
            check_real(f"the budget of {name}", part, above=0, at_most=1)
        self._check_unit()

    def _check_unit(self) -> None:
        """Raise a ValueError unless the strategy can protect the chosen privacy_unit."""
        unit = self.privacy_unit
        if unit != "record" and unit not in self.promises:
            why = (
                f": {self.why_not_subjects}. Make one row for each person first"
                if unit == "subject"
                else ""
            )
            raise ValueError(
                f"privacy_unit is '{unit}', and {self.name} cannot protect a {unit}{why}."
            )
        if unit == "subject" and self.epsilon is None:
            raise ValueError(
                "privacy_unit is 'subject', and there is no epsilon; give one, or leave privacy_unit out."
            )
        if unit != "subject" and (self.rows_per_subject, self.sites_per_subject) != (1, 1):
            raise ValueError(
                "rows_per_subject and sites_per_subject are for privacy_unit='subject'."
            )

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

    def noise_multipliers(self, shares: Mapping[str, Share] | None = None) -> dict[str, float]:
        """Return the noise multipliers that make the whole run (epsilon, delta)-private.

        ``shares`` are the shares of the divided budget; by default :meth:`shares`, divided by ``budget``.
        """
        chosen = divided(self.shares(), self.budget) if shares is None else shares
        return calibrate(chosen, self.epsilon, delta_of_composition(self.delta))

    def shares(self, parts: Mapping[str, Part] | None = None) -> dict[str, Share]:
        """Return parts (by default :meth:`all_parts`) in the form that the accounting reads."""
        chosen = self.all_parts() if parts is None else parts
        return shares_of(chosen, self.relation or relation_of(chosen))

    def make_budget(self) -> Budget:
        """Return the budget of a run as known now: its parts, and the plan of all noise."""
        parts = self.all_parts()
        shares = divided(self.shares(parts), self.budget)
        multipliers = self.noise_multipliers(shares)
        of_subjects = self.rows_per_subject, self.sites_per_subject
        plan = Plan(
            self.epsilon,
            self.delta,
            self.noise,
            self.privacy_unit,
            shares,
            multipliers,
            *of_subjects,
        )
        return Budget(parts, plan)

    @property
    def run_budget(self) -> Budget:
        """The budget of the run: frozen once its clients have enrolled, and preliminary before that."""
        run = self._run
        if run is None:
            return self.make_budget()
        if run.spending is None and run.clients:
            run.spending = Spending(self.make_budget())
        if run.spending is not None:
            return run.spending.budget
        if run.announced is None:
            run.announced = Spending(self.make_budget()).budget
        return run.announced

    @property
    def frozen_plan(self) -> Plan:
        """The plan of the run's noise; see :attr:`run_budget`."""
        return self.run_budget.plan

    def freeze_plan(self) -> None:
        """Freeze the budget as soon as all names in it can be known; a subclass may wait for later rounds."""
        # Names in a budget may refer to shares that depend on the clients' columns, unknown before they enrol.
        is_early = self.budget is not None and not self.client_names
        if self.epsilon is not None and not is_early:
            _ = self.run_budget

    @property
    def plan(self) -> str:
        """The frozen plan as JSON; "" without an epsilon."""
        return "" if self.epsilon is None else self.run_budget.text

    @property
    def first_plan(self) -> str:  # noqa: D102
        # With ``budget``, the plan is known only once clients have enrolled: the shares that it names may depend on the
        # clients' columns.
        return self.plan if self.budget is None else ""

    def summed(
        self, question: Question, *parts: str, at_most: tuple[float | None, ...] = ()
    ) -> Sum:
        """Return the round for a sum over rows, or for a sum of the clients' means if the guarantee is for clients.

        Parameters
        ----------
        question : Question
        *parts : str
            The parts of the budget that pay for the arrays.
        at_most : tuple of (float or None)
            The norms to which a client clips its means.
        """
        return Sum(
            question.mean(*at_most) if self.privacy_unit == "client" else question, parts=parts
        )

    def noise_of(self, part: str, bound: float = 1.0) -> float:
        """Return the standard deviation of the noise in a sum that one row, or one client, can change by ``bound``.

        For post-processing; no guarantee rests on it. 0 without an epsilon.
        """
        if self.epsilon is None:
            return 0.0
        plan = self.frozen_plan
        share, bound = plan.shares[part], bound * self.sites_per_subject
        return self.noise_of_sum(
            Release(share.mechanism, bound, plan.multipliers[part], "", share.relation)
        )

    def noise_scale(self, part: str, bound: float = 1.0) -> float:
        """Return the scale of the noise of :meth:`noise_of`: Gaussian noise's standard deviation, Laplace noise's b."""
        if self.epsilon is None:
            return 0.0
        is_laplace = self.frozen_plan.shares[part].mechanism == "laplace"
        return self.noise_of(part, bound) / (math.sqrt(2.0) if is_laplace else 1.0)

    def with_noise(self, round_: Round) -> Round:
        """Return the round with the noise that its parts of the budget pay for."""
        if self.epsilon is None:
            return round_
        if any(round_.releases):
            raise ProtocolError(
                f"'{round_.task}' comes with releases; a round names parts, and the run finds these."
            )
        if not round_.parts:
            return round_
        budget = self.run_budget
        budget.check_pays_for(round_)
        questions = (
            round_.question.values() if isinstance(round_.question, Mapping) else [round_.question]
        )
        releases = {
            releases_of_parts(question, question.moved(), round_.parts, budget.plan)
            for question in questions
        }
        if len(releases) > 1:
            raise ProtocolError(
                f"'{round_.task}' has other bounds for some clients than for others; ask in several rounds."
            )
        return replace(round_, releases=releases.pop())

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

    max_norm: float | None = parameter(None, at_least=SMALLEST_NORM, at_most=LARGEST_NORM)

    @property
    def max_norm_of_rows(self) -> float | None:
        """The norm to which rows are clipped; None without an epsilon."""
        return None if self.epsilon is None else self.max_norm

    def check_complete(self) -> None:
        """Raise a ValueError if there is an epsilon but no max_norm."""
        super().check_complete()
        if self.epsilon is not None and self.max_norm is None:
            raise ValueError(
                "max_norm is missing; noise for an epsilon needs a norm to which rows are clipped."
            )
