"""The rounds that a strategy yields, the results that it gets back, and how clients declare what they send."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
    get_args,
    overload,
)

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact.capacity import bits_with
from flower_fedclust.exact.grid import MOST_ROWS
from flower_fedclust.exact.rows import Frame
from flower_fedclust.exact.terms import Bound
from flower_fedclust.models import Model
from flower_fedclust.numerics.validity import ClusterNumber, PeakNumber, Repeated
from flower_fedclust.privacy.releases import Relation, Release
from flower_fedclust.tables.description import Clusters
from flower_fedclust.tables.survival import Survival

Array: TypeAlias = NDArray[Any]
Scalar: TypeAlias = bool | int | float | str

#: What an integer array holds. "": no counts. "every row": counts in which each row counts once. "some rows": counts in
#: which rows may be missing. "once": a 1 for one class, zeros for all others. "labels": the cluster of each row.
Counts = Literal["", "every row", "some rows", "once", "labels"]

#: What a message reveals to its receiver, from least to most: a sum over the client's rows; centers of its clusters,
#: which are rows where a cluster has only one; codes from which something about each row can be computed; or rows.
Kind = Literal["sums", "centers", "codes", "rows"]
KINDS: tuple[Kind, ...] = get_args(Kind)

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class ProtocolError(RuntimeError):
    """A run cannot go on: too few clients are left, or a round breaks a rule."""


class TooFewError(ProtocolError):
    """Too few clients have answered a round.

    It is raised in the protocol, at the yield of the round. A protocol that catches it may go on without the round.
    """


class MissedRoundError(Exception):
    """A client missed an earlier round and lacks its results. This reveals nothing about its rows."""


@dataclass(frozen=True)
class Sent:
    """One array that a client sends, or keeps.

    Parameters
    ----------
    content : str
        What it holds, in words, for the privacy report.
    reveals : "sums", "centers", "codes" or "rows", default="sums"
        What it reveals where no noise covers it. A deployed site consents to kinds of messages; by default only sums.
    per : "client" or "row", default="client"
        Whether there is one array for each client, or an entry for every row.
    has_columns : bool, default=False
        Whether its last axis stands for the columns of the rows; another length is then a failure.
    counts_rows : bool, default=False
        Whether it is only the number of rows, which a guarantee for replacing a row does not hide.
    sizes : bool, default=False
        Whether it holds the sizes of clusters, or their fractions of all rows. A run compares them with the noise.
    counts : "every row", "some rows", "once" or "labels", optional
        What an integer array holds, so that the server can check it. Counts are never negative. "every row": each row
        counts once, so that the counts add up to the number of rows. "some rows": some rows do not count; with
        ``per="row"``, only rows that were drawn have an entry. "once": one class has a 1. "labels": clusters of rows.
    is_positive : bool, default=False
        Whether no entry is ever negative, as with distances and costs.
    kept_as : str, default=""
        If given, the client keeps the array under this name, with the noise of its release, instead of sending it. A
        later round's ``rows`` may name it.
    """

    content: str
    reveals: Kind = "sums"
    _: KW_ONLY
    per: Literal["client", "row"] = "client"
    has_columns: bool = False
    counts_rows: bool = False
    sizes: bool = False
    counts: Counts = ""
    is_positive: bool = False
    kept_as: str = ""


@dataclass(frozen=True)
class Known:
    """The facts about a client that are known without its rows. Bounds are computed from these alone."""

    n_rows: int = 1  #: The public minimum number of its rows.
    n_columns: int = 0  #: The number of columns of its rows.


def within(bound: float, *, triangle: bool = False) -> Bound:
    """Return the bound of an array that is clipped as a whole: one row can change it to any array within this norm."""
    words = "the client clips the array to this norm"
    return Bound(2.0 * bound, apart=2.0 * bound, triangle=triangle, of_client=bound, words=words)


@dataclass(frozen=True)
class Answer:
    """The arrays that a method of a client sends."""

    task: str  #: The method's name.
    sends: tuple[Sent, ...]  #: One for each array that it returns.
    keeps: bool = field(init=False)  #: Whether all arrays stay with the client.

    def __post_init__(self) -> None:
        object.__setattr__(self, "keeps", bool(self.sends and self.sends[0].kept_as))


@dataclass(frozen=True)
class Question:
    """A client's method and what it is called with; made by ``Client.method.asked(...)``.

    Parameters
    ----------
    answer : Answer
    arrays : tuple of ndarray
        The positional arguments of the method.
    arguments : mapping of str to bool, int, float or str
        The keyword arguments of the method.
    """

    answer: Answer
    arrays: tuple[Array, ...]
    arguments: Mapping[str, Scalar]
    #: The :class:`Askable` that declares the answer.
    asks: Any = field(default=None, compare=False, repr=False)
    # The next three are for answers by row only. Frame: the public origin and radius to which rows are clipped. View: a
    # question that computes new rows, which are added up instead. Finish: what a client makes of its sums before it
    # sends them.
    frame: Frame | None = None
    view: Question | None = None
    finish: Any = None
    #: The public bound on a client's rows, which sets the unit of some sums.
    most_rows: int = MOST_ROWS
    #: 0 if the answer protects single rows. Otherwise it protects subjects: a subject with at least this many rows adds
    #: as much as one row. The client takes the number from the plan that comes with every message.
    rows_per_subject: int = 0

    def moved(self, known: Known | None = None) -> tuple[Bound, ...] | None:
        """Return how much one row, or one client, can change each array; None if nothing bounds it.

        The bounds of an answer by row follow from the message alone. For any other answer, the author has declared a
        function that computes them from the :class:`Known` facts about the client.
        """
        if self.asks.is_by_row:
            return tuple(term.bound for term in self.of_no_rows[1])
        if self.asks.moved is None:
            return None
        moved: tuple[Bound, ...] = self.asks.moved(known or Known(), *self.arrays, **self.arguments)
        return moved

    def largest_of_one_row(self) -> list[tuple[int, int]]:
        """Return the largest integer that a client with one row can send in each array, and the exponent of its unit.

        Only known for answers by row; [] for others.
        """
        if not self.asks.is_by_row:
            return []
        return [(term.largest, term.exponent) for term in self.of_no_rows[1]]

    @functools.cached_property
    def of_no_rows(self) -> Any:
        """A pair for a client without rows: its terms (the sums over its rows), and the arrays that it sends.

        Only for answers by row. The shapes, units and bounds of every client's terms and arrays are read from this
        pair, because they follow from the message alone. Raises an OverflowError if a sum over ``most_rows`` rows could
        overflow.
        """
        nothing = self.asks.terms(self, self.asks.no_rows(self))
        bits = bits_with(self.most_rows)
        if any(term.largest > 2**bits for term in nothing):
            raise OverflowError(
                f"'{self.answer.task}' adds up integers of more than {bits} bits, so that a sum could overflow; "
                "choose a coarser unit."
            )
        return nothing, self.asks.finished_alone(self, nothing, 0)

    def mean(self, *at_most: float | None) -> Question:
        """Return the question for each client's mean over its rows, clipped as a whole, in place of its sum.

        Parameters
        ----------
        *at_most : float or None
            The norms, one for each array; by default what a single row can add.
        """
        finished: Question = self.asks.finished_as(self, "mean", at_most)
        return finished

    def total(self, *at_most: float | None) -> Question:
        """Return the question for each client's sum, clipped as a whole; the arguments are as for :meth:`mean`."""
        finished: Question = self.asks.finished_as(self, "total", at_most)
        return finished

    def to_wire(self) -> tuple[list[Array], dict[str, Any]]:
        """Return the arrays and the fields of a message."""
        frame = [] if self.frame is None else self.frame.arrays
        fields: dict[str, Any] = {
            "task": self.answer.task,
            "arguments": json.dumps(dict(self.arguments)),
        }
        arrays = [*self.arrays, *frame]
        if frame:
            fields["frame"] = len(frame)
        if self.finish is not None:
            fields["finish"] = json.dumps([self.finish.kind, self.finish.at_most])
        if self.most_rows != MOST_ROWS:
            fields["most_rows"] = self.most_rows
        if self.view is not None:
            of_view, about = self.view.to_wire()
            about["task"] = self.view.asks.task
            fields["view"] = json.dumps(about | {"arrays": len(of_view)})
            arrays += of_view
        return arrays, fields


class Askable(Generic[P, R_co]):
    """A declared method of a client. On an instance it is the method; on the class it makes questions."""

    #: The strongest relation that the arrays support; arrays with an entry for every row support only "replace".
    relation: Relation = "add-or-remove"

    #: Whether it is an answer by row: a function of some rows and of the message, whose results the engine adds up.
    is_by_row = False

    #: The keys under which the client has kept results of earlier rounds that the method needs.
    needs: tuple[str, ...] = ()

    def __init__(
        self,
        method: Callable[Concatenate[Any, P], R_co],
        sends: tuple[Sent, ...],
        moved: Callable[..., tuple[Bound, ...]] | None = None,
        relation: Relation = "add-or-remove",
        needs: tuple[str, ...] = (),
    ) -> None:
        self.needs = needs
        self.function: Callable[..., Any] = method
        self.answer = Answer(method.__name__, sends)
        self.moved = moved
        self.relation = relation
        self.__doc__ = method.__doc__

    def reply_of(self, client: Any, question: Question) -> Any:
        """Return the reply of a client."""
        return self.function(client, *question.arrays, **question.arguments)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Callable[P, R_co]: ...
    def __get__(self, instance: object | None, owner: type) -> Self | Callable[P, R_co]:
        return self if instance is None else functools.partial(self.function, instance)

    def asked(self, *args: P.args, **kwargs: P.kwargs) -> Question:
        """Return the question for this method: positional arguments are arrays, keyword arguments are single values."""
        arguments: dict[str, Any] = dict(kwargs)
        plain = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in arguments.items()
        }
        return Question(self.answer, tuple(map(_own, args)), plain, self)


def _own(array: Any) -> Array:
    """Return a read-only copy. A question must not change, because its bounds are computed once."""
    copied = np.array(array)
    copied.flags.writeable = False
    return copied


def as_sent(sent: str | Sent) -> Sent:
    """Return a declaration; a text becomes a declaration with this content."""
    return Sent(sent) if isinstance(sent, str) else sent


def answers(
    *sends: str | Sent,
    moved: Callable[..., tuple[Bound, ...]] | None = None,
    relation: Relation = "add-or-remove",
    needs: Iterable[str] = (),
) -> Callable[[Callable[Concatenate[Any, P], R_co]], Askable[P, R_co]]:
    """Mark a client's method as an answer, and declare every array that it sends.

    Parameters
    ----------
    *sends : str or Sent
        One for each array that the method returns, in order. Either all are sent or all are kept.
    moved : callable, optional
        Takes what is :class:`Known` about the client and the method's arguments, and returns a :class:`Bound` for each
        array. It does not see the rows, so a refusal reveals nothing about them. A site whose policy requires noise
        answers only if it is given.
    relation : "add-or-remove" or "replace", default="add-or-remove"
        The strongest relation for which ``moved`` holds; "replace" for arrays with an entry for every row.
    needs : iterable of str
        Keys under which the client has kept results of earlier rounds that the method recalls. A client that lacks one
        answers that it missed the round, and its budget is not charged.
    """
    declared = tuple(map(as_sent, sends))
    if len({bool(sent.kept_as) for sent in declared}) > 1:
        raise ValueError("a method sends some arrays and keeps others; write two methods.")
    kept = [sent.kept_as for sent in declared if sent.kept_as]
    if len(set(kept)) < len(kept):
        raise ValueError("a method keeps two arrays under one name; give each a name of its own.")
    return lambda method: Askable(method, declared, moved, relation, tuple(needs))


@dataclass(frozen=True)
class Round:
    """One Flower round: the clients to ask, and the question. Use :class:`Sum` or :class:`Gather`.

    Parameters
    ----------
    question : Question, or mapping of str to Question
        The question. A mapping asks only the clients that it names, all for the same method.
    parts : sequence of (str or None)
        The part of the budget that pays for the noise of each array, in the order of the declaration; None for an array
        without noise.
    releases : sequence of (Release or None)
        The noise of each array, which the run computes from the parts.
    clients : iterable of str, optional
        Only these clients are asked.
    fraction : float in (0, 1], default=1
        The fraction of the clients to ask, drawn with the strategy's random_state.
    rows : str, default=""
        The name of the kept rows that the method sees as its own (see :class:`Sent`); by default the true rows.
    others : Question, optional
        A task for all clients that the round does not ask; they send nothing. By default they have none.
    needed : bool, default=True
        Whether the run ends if too few clients answer. If False, the protocol gets None instead, and goes on.
    """

    question: Question | Mapping[str, Question]
    _: KW_ONLY
    parts: Sequence[str | None] = ()
    releases: Sequence[Release | None] = ()
    clients: Iterable[str] | None = None
    fraction: float = 1.0
    rows: str = ""
    others: Question | None = None
    needed: bool = True

    answer: Answer = field(init=False, repr=False, compare=False)  #: The method that is asked for.
    task: str = field(init=False, repr=False, compare=False)  #: The method's name.
    #: The :class:`Askable` of the question.
    asks: Any = field(init=False, repr=False, compare=False)
    #: The clients that the round names; None if it names none.
    named: frozenset[str] | None = field(init=False, repr=False, compare=False)
    is_noisy: bool = field(init=False, repr=False, compare=False)  #: Whether any array gets noise.

    def __post_init__(self) -> None:
        if not self.question:
            raise ProtocolError(
                "a round asks no client: its mapping of questions is empty; leave the round out."
            )
        asked = self.question_for(None)
        clients = None if self.clients is None else tuple(self.clients)
        names = self.question if isinstance(self.question, Mapping) else clients
        releases = tuple(self.releases) or (None,) * len(asked.answer.sends)
        derived = {
            "answer": asked.answer,
            "task": asked.answer.task,
            "asks": asked.asks,
            "clients": clients,
            "named": None if names is None else frozenset(names),
            "releases": releases,
            "is_noisy": any(release is not None and release.scale > 0 for release in releases),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)
        sends = asked.answer.sends
        if len(releases) != len(sends):
            raise ProtocolError(
                f"'{self.task}' sends {len(sends)} arrays; the round has {len(releases)} releases."
            )
        for sent, release in zip(sends, releases, strict=True):
            if (
                release is not None
                and release.scale > 0
                and sent.per == "row"
                and release.relation == "add-or-remove"
            ):
                raise ProtocolError(
                    f"'{self.task}' has an entry for every row, so that the number of rows shows: its release must be "
                    "for rows that are replaced (relation='replace')."
                )

    def question_for(self, client: str | None) -> Question:
        """Return the question for one client, or any client's question if none is named."""
        if isinstance(self.question, Question):
            return self.question
        return next(iter(self.question.values())) if client is None else self.question[client]


def allowing(round_: Round, most_rows: int) -> Round:
    """Return the round with this bound on a client's rows in its questions."""

    def bound(question: Question) -> Question:
        return replace(question, most_rows=most_rows)

    asked, others = round_.question, round_.others
    questions = (
        bound(asked)
        if isinstance(asked, Question)
        else {name: bound(one) for name, one in asked.items()}
    )
    return replace(round_, question=questions, others=None if others is None else bound(others))


class Sum(Round):
    """A round that gives the server the sum over the clients, array by array, and nothing else.

    ``total = yield Sum(Client.method.asked(...))`` gives a :class:`Total`. Clients send integers in a public
    unit (:class:`~flower_fedclust.authoring.GridArray`) or counts, which are added modulo 2^64. So the order does not
    matter, and secure aggregation can compute the sum.
    """


class Gather(Round):
    """A round in which the server sees the reply of every client.

    ``replies = yield Gather(Client.method.asked(...))`` gives a list of :class:`Reply`, sorted by client.
    """


class Total(list[Array]):
    """The sums from a :class:`Sum`, one for each array: ``sums, counts = yield Sum(...)``.

    Parameters
    ----------
    arrays : iterable of ndarray
    n_clients : int
        The number of clients in the sums.
    noise : iterable of float, optional
        The standard deviation of the noise in each sum, in the units of the array; 0 without noise.
    """

    def __init__(
        self, arrays: Iterable[Array], n_clients: int, noise: Iterable[float] = ()
    ) -> None:
        super().__init__(arrays)
        self.n_clients = n_clients
        self.noise = list(noise) or [0.0] * len(self)


@dataclass(frozen=True)
class Reply:
    """One client's reply in a :class:`Gather` round."""

    client: str
    arrays: list[Array]


@dataclass(frozen=True)
class Failure:
    """A client that did not answer as it should have.

    Parameters
    ----------
    round : int
    task : str
    client : str
        Its name, or its node id if it never gave a name.
    reason : str
        One sentence.
    """

    round: int
    task: str
    client: str
    reason: str


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of serialized arrays that went to one client and came back in one round."""

    round: int
    task: str
    client: str
    bytes_down: int
    bytes_up: int
    #: NUMBER:HASH of the last line of a site's ledger, so that the line can be asked for later.
    ledger: str = ""


@dataclass(frozen=True)
class Outcome:
    """The result of a protocol; returning a model alone is the same as ``Outcome(model)``.

    Parameters
    ----------
    model : Model
    labels : mapping of str to ndarray, optional
        The cluster of each row, by client, if the server computed the labels instead of the model.
    embedding : mapping of str to ndarray of shape (n_i, n_dimensions), optional
        The place of each row on a map, by client, if the server computed the places instead of the model.
    history : mapping of str to sequence of float
        Values over the rounds, such as an objective, by name.
    number : ClusterNumber or PeakNumber, optional
        The number of clusters, if the strategy chose it.
    clusters : Clusters, optional
        The description of the clusters, if there is one.
    survival : Survival, optional
        How many rows of each cluster had an event, and when, if the tables record this.
    agreement : float, optional
        The adjusted Rand index expected between these clusters and another run's, if the strategy estimates it.
    again : Repeated, optional
        How well another run would find each cluster again, if the strategy estimates it.
    gain : DensityGain, optional
        How much better a mixture fits than one Gaussian, if the run released this.
    """

    model: Model
    labels: Mapping[str, NDArray[np.intp]] | None = None
    embedding: Mapping[str, NDArray[np.float64]] | None = None
    history: Mapping[str, Sequence[float]] = field(default_factory=dict)
    number: ClusterNumber | PeakNumber | None = None
    clusters: Clusters | None = None
    survival: Survival | None = None
    agreement: float | None = None
    gain: DensityGain | None = None
    again: Repeated | None = None


#: Noise alone exceeds so many of its standard deviations in one of 30,000 runs.
SURE_OF_GAIN = 4.0


@dataclass(frozen=True)
class DensityGain:
    """How much larger a row's log-density is under a mixture than under one Gaussian, as released by a run; in nats."""

    mean: float  #: The mean gain over the rows; each row's gain is clipped.
    deviation: float  #: The standard deviation of the noise in the mean.
    hidden: float  #: How much better one Gaussian may fit than the run's noisy covariance shows.

    @property
    def is_clear(self) -> bool:
        """Whether the mixture fits better than one Gaussian by more than noise can explain."""
        return self.mean - SURE_OF_GAIN * self.deviation > self.hidden


#: The server half of a strategy: it yields rounds, receives their results, and returns a Model or an Outcome.
Protocol: TypeAlias = Generator[Round, Any, Outcome | Model]


#: A cluster may be empty if its noisy size is at most this many standard deviations of the noise.
DEVIATIONS = 2.0


@dataclass(frozen=True)
class ReleasedSizes:
    """Cluster sizes that a run has already released; using them costs no further privacy."""

    #: The noisy sizes, of shape (n_clusters,): numbers of rows, or fractions of all rows.
    counts: NDArray[np.float64]
    deviation: float = 0.0  #: The standard deviation of the noise in each; 0 without noise.
    #: The standard deviation of the noise in each entry of the round's first array, if that is not the sizes; else 0.
    sum_deviation: float = 0.0

    @classmethod
    def of_round(cls, round_: Round, received: object) -> ReleasedSizes | None:
        """Return the cluster sizes in the results of a round; None if it is no sum, or declares no array as sizes."""
        index = next((index for index, sent in enumerate(round_.answer.sends) if sent.sizes), None)
        if index is None or not isinstance(received, Total):
            return None
        noise = received.noise
        return cls(
            np.array(received[index], dtype=np.float64), noise[index], noise[0] if index else 0.0
        )

    @classmethod
    def of_all_rows(cls, round_: Round, received: object) -> ReleasedSizes | None:
        """Return the number of all rows, as one size; None if the round is no sum, or no array counts every row."""
        for index, sent in enumerate(round_.answer.sends):
            counts_all = sent.counts_rows or sent.counts == "every row"
            if counts_all and isinstance(received, Total):
                counts = np.asarray(received[index], dtype=np.float64)
                return cls(
                    counts.sum(keepdims=True).ravel(),
                    received.noise[index] * math.sqrt(counts.size),
                )
        return None
