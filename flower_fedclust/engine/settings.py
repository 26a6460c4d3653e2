"""What a run takes over from its strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from flower_fedclust.data.frames import as_named, in_order, names_of
from flower_fedclust.engine.rounds import Scalar
from flower_fedclust.privacy.releases import NoisePlace, PrivacyUnit

if TYPE_CHECKING:
    from flower_fedclust.engine.client import ProtocolClient

#: How many clients have to answer where the user says nothing: the sum over a single client hides nothing of it.
MIN_CLIENTS = 2

#: Parameters that have a value for each column.
BY_COLUMN = ("server_data", "init", "origin")


def named_columns(strategy: Any) -> list[str] | None:
    """Return the names of the columns of the first parameter that is a table; None where none has names."""
    return next((names for name in BY_COLUMN if (names := names_of(getattr(strategy, name, None)))), None)


def put_in_order(strategy: Any, columns: Sequence[str] | None = None, whose: str = "") -> None:
    """Give the server's rows, first centers and origin, where their columns have names, the order of others.

    Parameters
    ----------
    strategy : ProtocolStrategy
    columns : sequence of str, optional
        In their order; by default that of the first of them.
    whose : str, optional
        Whose columns these are, for the message.

    Raises
    ------
    DataError
        If the names are others.
    """
    for name in BY_COLUMN:
        given = getattr(strategy, name, None)
        names = names_of(given)
        if names is None:
            continue
        if columns is None:
            columns, whose = names, name
        frame = in_order(as_named(given, name), columns, name, whose)
        setattr(strategy, name, frame.iloc[0] if getattr(given, "ndim", 2) == 1 else frame)


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
    prepared_columns: int | None  #: How many columns the clients' rows have once they are prepared.

    @classmethod
    def of(cls, strategy: Any) -> Self:
        """Take over what a strategy says; the columns from a parameter, where it is a table."""
        taken_over: dict[str, Any] = {field.name: getattr(strategy, field.name, None) for field in fields(cls)}
        if strategy.tables is not None:
            taken_over["server_columns"] = None  # the clients' columns are those of the schema
            taken_over["prepared_columns"] = strategy.tables.n_columns
        elif strategy.server_columns is None:
            taken_over["server_columns"] = named_columns(strategy)
        return cls(**taken_over)

    @property
    def least(self) -> int:
        """How many clients have to be there at least."""
        return self.min_clients or MIN_CLIENTS
