"""Replies before they are used: each by itself, and beside those of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict
from flwr.app.user_config import UserConfig
from flwr.common import FitIns, FitRes

from flower_fedclust.engine.client import ProtocolClient
from flower_fedclust.engine.client_data import ClientData
from flower_fedclust.engine.ranges import Ranges
from flower_fedclust.engine.replies import checked_reply, largest_in_sum, read_reply, shapes_of, unlike_most
from flower_fedclust.engine.rounds import Known, Moved, ProtocolError, Question, Reply, Round, Sent, Sum
from flower_fedclust.engine.wire import decode
from flower_fedclust.privacy.noise import Sendable, on_grid


@dataclass
class Inspection:
    """Looks at the replies of one run."""

    client_type: type[ProtocolClient]
    ranges: Ranges
    n_columns: int = 0  #: Of the rows; known once the clients have enrolled.
    _moved: tuple[Question | None, Sequence[Moved] | None] = field(default=(None, None))  # of the last question

    def checked(self, name: str, round_: Round, res: FitRes, n_summed: int) -> list[Sendable]:
        """Return the arrays of one client's reply.

        Parameters
        ----------
        name : str
            The client.
        round_ : Round
        res : FitRes
        n_summed : int
            Over how many clients the arrays are to be summed; 0 where they are not.

        Raises
        ------
        ReplyError
            If the reply cannot be used.
        """
        sends = () if round_.answer.keeps else round_.answer.sends
        moved = self._moved_by(round_.question_for(name))
        added = round_.releases if self.ranges.noise == "server" else ()
        options: dict[str, Any] = {"n_summed": n_summed, "releases": added}

        def check(name: str, res: FitRes) -> list[Sendable]:
            arrays = checked_reply(name, res.parameters, res.metrics, sends, self.n_columns, **options)
            if sends:
                self.ranges.check(name, round_, arrays, moved)
            return arrays

        return read_reply(name, res, check)

    def odd_ones(self, round_: Round, replies: Mapping[str, Sequence[Sendable]], sent: FitIns) -> dict[str, str]:
        """Return the clients whose replies are unlike those of most, each with a sentence.

        Parameters
        ----------
        round_ : Round
        replies : mapping of str to sequence of (GridArray or ndarray)
            By client.
        sent : FitIns
            The message to one of them.
        """
        if not replies or round_.answer.keeps:
            return {}
        # What is summed must have one shape; what has an entry for every row, one width.
        alike = None if isinstance(round_, Sum) else round_.answer.sends
        shapes = {name: shapes_of(arrays, alike) for name, arrays in replies.items()}
        common, unlike = unlike_most(shapes, lambda: self._expected_shapes(sent, alike))
        odd = {
            name: f"client {name} sent arrays of the shapes {shapes[name]} where most sent {common}." for name in unlike
        }
        return odd | self.ranges.outliers(round_, {name: replies[name] for name in replies if name not in odd})

    def _expected_shapes(self, sent: FitIns, alike: Sequence[Sent] | None) -> str | None:
        """Return the shapes that a client with one row of zeros would send; None where it could not answer."""
        try:
            arrays = self._stand_in()._answer(decode(sent.parameters), sent.config)
        except Exception:
            return None  # it may lack what an earlier round left with a client
        return shapes_of([on_grid(array) for array in arrays] if alike is None else arrays, alike)

    def _moved_by(self, question: Question) -> Sequence[Moved] | None:
        """Return how far one row moves each array of an answer; None where nobody but the client can know."""
        if self._moved[0] is not question:
            try:
                found = question.moved(Known(n_columns=self.n_columns))
            except Exception:
                found = None  # it may depend on what an earlier round left with a client
            self._moved = question, found
        return self._moved[1]

    def _stand_in(self) -> ProtocolClient:
        """Return a client with one row of zeros."""
        context = Context(0, 0, UserConfig(), RecordDict(), UserConfig())
        return self.client_type(ClientData(np.zeros((1, self.n_columns))), name="stand-in", context=context)


def usable(strategy: Any, replies: Sequence[Reply], why_not: Callable[[Reply], str]) -> list[Reply]:
    """Return the replies of the last round that a protocol can use; a failure names the client of every other.

    Parameters
    ----------
    strategy : ProtocolStrategy
        Whose protocol has just been given the replies.
    replies : sequence of Reply
    why_not : callable
        Takes a reply; returns what is wrong with it, to follow "client x sent", or "" where nothing is.

    Raises
    ------
    ProtocolError
        If too few are left.
    """
    run, task = strategy._current, strategy._task
    reasons = {reply.client: why_not(reply) for reply in replies}
    for name, reason in reasons.items():
        if reason:
            run.books.note_failure(run.last_asked, task, name, f"client {name} sent {reason}.")
    run.books.sort()
    left = [reply for reply in replies if not reasons[reply.client]]
    run._check_enough(run.last_asked, task, len(left), run.settings.least)
    return left


def check_capacity(round_: Round, n_asked: int, n_shares: int) -> None:
    """Raise a ProtocolError if a sum over clients with one row each, and its noise, could exceed 63 bits.

    The sum over the rows that clients really have is checked when it comes: no reply may be larger than its part.
    """
    if not isinstance(round_, Sum) or round_.answer.keeps:
        return
    releases = list(round_.releases) or [None] * len(round_.answer.sends)
    found = round_.asks.largest_of_one_row(round_.question_for(None))
    for sent, release, (largest, exponent) in zip(round_.answer.sends, releases, found, strict=False):
        if largest > largest_in_sum(n_asked, exponent, release, n_shares):
            raise ProtocolError(
                f"'{round_.task}' asks {n_asked} clients for {sent.content}, whose sum with its noise could exceed 63 "
                "bits; ask fewer clients, take a larger epsilon, or choose a coarser unit."
            )


def check_releases(round_: Round) -> None:
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
