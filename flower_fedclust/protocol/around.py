"""What runs around a strategy, within the same run and the same privacy budget."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from flower_fedclust.privacy.accounting import Share
from flower_fedclust.protocol.rounds import Protocol, Scalar

if TYPE_CHECKING:
    from flower_fedclust.protocol.client_data import ClientData

#: The strategies around which it runs.
S = TypeVar("S")


class Around(ABC, Generic[S]):
    """What runs around a strategy: rounds before it and after it, in the same run and books.

    It is set as ``strategy.around``, and belongs to a run. The strategy itself does not change: :meth:`protocol` runs
    its own rounds, then ``yield from`` a copy of the strategy, then more rounds of its own, and returns an outcome
    whose model knows of all of them. Its shares stand beside those of the strategy in one budget, so that
    ``strategy.release(name, ...)`` finds them, ``budget={name: 0.1}`` changes them and ``fedclust explain`` shows them.

    Its rounds ask for methods that every client has: those of :class:`~flower_fedclust.protocol.tables.TableAnswers`.
    """

    @property
    @abstractmethod
    def enrolment(self) -> Mapping[str, Scalar]:
        """What each client is told when it is asked for its name and columns."""

    @abstractmethod
    def check(self, data: ClientData) -> None:
        """Raise a DataError unless a client's table, or its rows, can be taken."""

    @property
    @abstractmethod
    def n_columns(self) -> int:
        """How many columns the clients' rows have once they are prepared, which is public before the run."""

    @abstractmethod
    def likely(self, strategy: S) -> S:
        """Return a copy of the strategy as it will run, as far as its shares and its number of rounds go."""

    @abstractmethod
    def shares(self, strategy: S) -> Mapping[str, Share]:
        """Return the parts of the budget that are its own, in proportion to those of the strategy."""

    @abstractmethod
    def n_rounds(self, strategy: S) -> int:
        """Return the largest number of rounds of a run after the first: its own, and those of the strategy."""

    @abstractmethod
    def protocol(self, strategy: S) -> Protocol:
        """Run everything: its own rounds and those of the strategy."""

    @abstractmethod
    def notes(self) -> list[str]:
        """Return what a reader of the privacy report has to know besides."""
