"""What a run takes over from its strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from flower_fedclust.data.frames import names_of
from flower_fedclust.privacy.releases import NoisePlace, PrivacyUnit
from flower_fedclust.protocol.rounds import Scalar

if TYPE_CHECKING:
    from flower_fedclust.protocol.client import ProtocolClient

#: How many clients have to answer where the user says nothing: the sum over a single client hides nothing of it.
MIN_CLIENTS = 2


@dataclass(frozen=True)
class RunSettings:
    """What a run takes over from its strategy; each is explained there."""

    client_type: type[ProtocolClient]
    enrolment: Mapping[str, Scalar]
    noise: NoisePlace
    privacy_unit: PrivacyUnit
    n_clusters: int
    min_clients: int | None
    noise_seed: int | None
    random_state: int | None
    server_columns: Sequence[str] | None
    wait_for_clients: float
    expected_clients: int | None
    largest_ratio: float

    @classmethod
    def of(cls, strategy: Any) -> Self:
        """Take over what a strategy says; the columns of the server's rows from these, where they are a table."""
        taken_over = {field.name: getattr(strategy, field.name) for field in fields(cls)}
        if strategy.around is not None:
            taken_over["server_columns"] = None  # the clients' columns are those of the schema
        elif strategy.server_columns is None:
            taken_over["server_columns"] = names_of(getattr(strategy, "server_data", None))
        return cls(**taken_over)

    @property
    def least(self) -> int:
        """How many clients have to be there at least."""
        return self.min_clients or MIN_CLIENTS
