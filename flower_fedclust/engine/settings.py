"""A run's view of its strategy: values that are fixed when the run begins, and the methods that it calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from typing import Protocol as Interface

from flower_fedclust.engine.client import ProtocolClient
from flower_fedclust.engine.rounds import Protocol, Round, Scalar
from flower_fedclust.privacy.releases import NoisePlace, PrivacyUnit

#: How many clients have to answer by default. A sum over a single client would hide nothing.
MIN_CLIENTS = 2


@dataclass(frozen=True)
class Settings:
    """The parameters of a strategy that a run needs, fixed when it begins; the names are the strategy's."""

    client_type: type[ProtocolClient]
    min_clients: int | None
    expected_clients: int | None
    epsilon: float | None
    noise: NoisePlace
    privacy_unit: PrivacyUnit
    noise_seed: int | None
    random_state: int | None
    largest_ratio: float
    most_clusters: int
    federated_evaluation: bool
    share_model: bool
    has_tables: bool  #: Whether rows are prepared from tables with a schema.
    #: The number of columns of the rows that are prepared from tables; 0 if it is not known before the run.
    n_prepared: int
    most_rows: int  #: The public bound on the rows of a client.
    n_rounds: int  #: The most rounds, the enrolment included.

    @property
    def least(self) -> int:
        """The fewest clients with which a run goes on."""
        return self.min_clients or MIN_CLIENTS

    @property
    def sends_model(self) -> bool:
        """Whether clients are sent the model in the end."""
        return self.federated_evaluation or self.share_model


class Algorithm(Interface):
    """The methods of a strategy that a run calls."""

    @property
    def name(self) -> str:
        """The name of the strategy with its parameters."""

    @property
    def given(self) -> Mapping[str, Any]:
        """The parameters. They must be the same when an interrupted run goes on: its journal is for one set of them."""

    def begin(self) -> Protocol:
        """Return the protocol, extended by the preparation and description of tables if there is a schema."""

    def with_noise(self, round_: Round) -> Round:
        """Return a round with the noise for which the budget pays."""

    def freeze_plan(self) -> None:
        """Fix the plan of all noise once the clients have enrolled; before that, check that it can be made."""

    @property
    def plan(self) -> str:
        """The plan of all noise as JSON, for sites to judge; "" without noise."""

    @property
    def first_plan(self) -> str:
        """The plan as far as it is known before clients enrol."""

    @property
    def enrolment(self) -> Mapping[str, Scalar]:
        """The strategy's fields of a message that asks clients to enrol."""

    @property
    def on_round(self) -> Callable[[int, str], None] | None:
        """Called after each round with its number and task."""

    @property
    def on_received(self) -> Callable[[Round, Any], None] | None:
        """Called after each round, with the round and its result."""
