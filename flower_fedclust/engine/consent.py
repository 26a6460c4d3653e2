"""What a message asks of a client, and whether the client's operator lets it be answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from flower_fedclust.engine.rounds import KINDS, Answer, Kind, Moved
from flower_fedclust.numerics.checks import DataError, check_choice
from flower_fedclust.privacy.releases import Release


@dataclass(frozen=True)
class Request:
    """What one message asks a client to send."""

    name: str  #: The client.
    answer: Answer  #: What the client would send.
    #: The client's own noise on each array, from its bounds and the run's plan.
    releases: tuple[Release | None, ...]
    n_shares: int = 1  #: Among how many clients the noise is divided.
    #: Whether the answer is computed from kept rows that carry noise, and so reveals nothing more.
    is_derived: bool = False
    #: How many rows the client has; only for a policy that lets the number leave.
    n_rows: int = 0
    n_clients: int = 0  #: How many clients are asked, as the server says.
    plan: str = ""  #: The plan of the run's releases that the message announces, as JSON.
    #: Takes the public minimum number of rows; see :meth:`moved`.
    find_moved: Callable[[int], tuple[Moved, ...] | None] = field(default=lambda n_rows: None, repr=False)

    def moved(self, n_rows: int) -> tuple[Moved | None, ...]:
        """Return how much one row can change each array; None where that is unknown."""
        return self.find_moved(n_rows) or (None,) * len(self.answer.sends)

    @property
    def noisy(self) -> list[bool]:
        """Whether each array would carry all of its noise, not just a share."""
        return [
            release is not None and release.noise_multiplier > 0 and self.n_shares == 1 for release in self.releases
        ]


class Approval(Protocol):
    """Decides what a client answers: a :class:`Consent`, or the policy of a site."""

    @property
    def says_what_failed(self) -> bool:
        """Whether the server hears about the failure of a task that sends nothing."""

    def check(self, request: Request) -> None:
        """Raise an exception unless all that a method sends may leave."""

    def check_evaluation(self, name: str) -> None:
        """Raise an exception unless models may be evaluated."""


@dataclass(frozen=True)
class Consent:
    """What a client answers.

    Parameters
    ----------
    kinds : iterable of "sums", "centers", "codes" or "rows"
        The kinds of messages that may leave without noise of the site's own; by default all, as in a simulation. A
        message that carries all of its noise when it leaves (noise="local") needs no consent.
    evaluation : bool, default=True
        Whether models are evaluated on the site's rows, and labels counted.
    """

    kinds: frozenset[Kind] = frozenset(KINDS)
    evaluation: bool = True
    says_what_failed: ClassVar[bool] = True

    def __init__(self, kinds: Iterable[str] = KINDS, *, evaluation: bool = True) -> None:
        given = frozenset([kinds] if isinstance(kinds, str) else kinds)
        for kind in sorted(given):
            check_choice("consent", kind, KINDS)
        object.__setattr__(self, "kinds", given)
        object.__setattr__(self, "evaluation", evaluation)

    def check(self, request: Request) -> None:
        """Raise a DataError unless all that a method sends may leave."""
        if request.is_derived:
            return
        for sent, is_noisy in zip(request.answer.sends, request.noisy, strict=True):
            if sent.kept_as or is_noisy or sent.reveals in self.kinds:
                continue
            raise DataError(
                f"client {request.name} does not send {sent.reveals} ({sent.content}); its operator would have to "
                f"consent to '{sent.reveals}'."
            )

    def check_evaluation(self, name: str) -> None:
        """Raise a DataError unless models may be evaluated."""
        if not self.evaluation:
            raise DataError(f"client {name} does not evaluate models; its operator would have to allow it.")
