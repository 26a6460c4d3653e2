"""What a strategy yields, what it gets back, how a client declares what it sends, and how a run cannot go on."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
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

from flower_fedclust.exact.rows import Frame
from flower_fedclust.exact.terms import Bound
from flower_fedclust.models import Model
from flower_fedclust.numerics.validity import ClusterNumber
from flower_fedclust.privacy.releases import Relation, Release
from flower_fedclust.tables.description import Clusters

Array: TypeAlias = NDArray[Any]
Scalar: TypeAlias = bool | int | float | str

#: What an array of whole numbers counts: each of the client's rows once, some of them, or one thing among many; or that
#: it has the cluster of each row.
Counts = Literal["", "every row", "some rows", "once", "labels"]

#: What a message lets whoever receives it know, from least to most: nothing but a sum over the client's rows; centers
#: of its clusters, which are rows where a cluster has one row; something for each row from which the row, or what it
#: is like, can be computed; rows as they are.
Kind = Literal["sums", "centers", "codes", "rows"]
KINDS: tuple[Kind, ...] = get_args(Kind)

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class ProtocolError(RuntimeError):
    """A run that cannot go on: too few clients are left, or the protocol was used against its rules."""


@dataclass(frozen=True)
class Sent:
    """One array that a client sends, or keeps.

    Parameters
    ----------
    content : str
        What it holds, in words, for the privacy report.
    reveals : "sums", "centers", "codes" or "rows", default="sums"
        What it lets the receiver know where no noise covers it. A deployed site consents to kinds of messages, and by
        default to sums alone.
    per : "client" or "row", default="client"
        Whether it is one array a client, or has an entry for every row.
    has_columns : bool, default=False
        Whether its last axis stands for the columns of the rows, so that another length is a failure.
    counts_rows : bool, default=False
        Whether it is the number of rows, and nothing else: a guarantee for replacing a row does not hide it.
    sizes : bool, default=False
        Whether it is how many rows each cluster has, or which part of them: what a run says of its noise rests on it.
    counts : "every row", "some rows", "once" or "labels", optional
        What the server can check where it holds counts, which are never below 0: each row of the client counts once, so
        that they add up to its number of rows; some rows count, and some do not; or one class among many has a 1. With
        an entry for every row (``per="row"``), "some rows" says that only rows that were drawn have one.
    is_positive : bool, default=False
        Whether no entry is ever below 0, as no distance and no cost is.
    kept_as : str, default=""
        Where it is given, the array is not sent: the client keeps it, with the noise of its release, and a later
        round's ``rows`` may name it.
    of_one_row : bool, default=False
        Whether each of its entries comes of one row, and of nothing that other rows of the client have gone into: then
        one row more or less is one kept row more or less. What is kept of rows for which this does not hold never is.
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
    of_one_row: bool = False


@dataclass(frozen=True)
class Moved:
    """How far one row of a client can move an array, from what the client itself clips, whatever it is asked.

    A release says how far the server believes that a row moves an array. A site that decides by an epsilon of its own
    goes by this instead.
    """

    #: In Euclidean norm, where a row is added or removed, at any place; infinity where other rows' parts then change.
    l2: float
    l1: float = math.inf  #: In L1 norm, for Laplace noise.
    _: KW_ONLY
    apart: float | None = None  #: In Euclidean norm, where a row is replaced; twice ``l2`` by default.
    #: Whether the array is the upper triangle of a symmetric matrix, whose Frobenius norm ``l2`` bounds.
    triangle: bool = False
    #: How many rows the client draws for it, and of how many, without telling which.
    sample: tuple[int, int] | None = None
    #: In Euclidean norm, where all that the client has is added or removed. By default without a bound.
    of_client: float | None = None
    words: str = ""  #: What enforces it, for the report.

    @classmethod
    def of(cls, bound: Bound) -> Self:
        """Return the bound of a term."""
        return cls(
            bound.l2,
            bound.l1,
            apart=bound.replaced,
            triangle=bound.triangle,
            of_client=bound.of_client,
            words=bound.words,
        )

    def multiplier(self, release: Release, *, per_row: bool, of_client: bool = False) -> float:
        """Return the noise multiplier that a release's noise comes to, under the relation that it names."""
        moved = self.l2 if release.mechanism == "gaussian" else self.l1
        if of_client:
            is_known = self.of_client is not None and release.mechanism == "gaussian"
            moved = self.of_client if is_known and self.of_client is not None else math.inf
        elif release.relation == "replace":
            is_known = release.mechanism == "gaussian" and self.apart is not None
            moved = self.apart if is_known and self.apart is not None else 2.0 * moved
        elif per_row:
            return 0.0
        scale = release.scale * (math.sqrt(0.5) if release.triangle and not self.triangle else 1.0)
        return scale / moved if 0 < moved < math.inf else 0.0


@dataclass(frozen=True)
class Known:
    """What may be known of a client without looking at its rows: how far a row moves an answer follows from no more."""

    n_rows: int = 1  #: How many rows it has at least, as its operator has made public.
    n_columns: int = 0  #: How many columns the rows in question have.


#: Of an array of counts in which a row counts once.
ONE_COUNT = Moved(1.0, 1.0, apart=math.sqrt(2.0), words="a row counts once")


def within(bound: float, *, triangle: bool = False) -> Moved:
    """Return how far a row moves an array that is clipped as a whole: from anywhere in a ball to anywhere else."""
    words = "the client clips the array to this norm"
    return Moved(2.0 * bound, apart=2.0 * bound, triangle=triangle, of_client=bound, words=words)


@dataclass(frozen=True)
class Answer:
    """What a method of a client sends."""

    task: str  #: The method's name.
    sends: tuple[Sent, ...]  #: One an array that it returns.

    @property
    def keeps(self) -> bool:
        """Whether the arrays stay with the client: all of them, or none."""
        return bool(self.sends and self.sends[0].kept_as)


@dataclass(frozen=True)
class Question:
    """A client's method and what it is called with; made by ``Client.method.asked(...)``.

    Parameters
    ----------
    answer : Answer
    arrays : tuple of ndarray
        The positional arguments of the method.
    arguments : mapping of str to bool, int, float or str
        Its keyword arguments.
    """

    answer: Answer
    arrays: tuple[Array, ...]
    arguments: Mapping[str, Scalar]
    #: What is asked for, and for an answer by row: in which frame, of what view of the rows, and how it is finished.
    asks: Any = field(default=None, compare=False, repr=False)
    frame: Frame | None = None
    view: Question | None = None
    finish: Any = None

    def moved(self, known: Known | None = None) -> tuple[Moved, ...] | None:
        """Return how much one row, or one client, can change each array; None where nothing bounds it."""
        moved: tuple[Moved, ...] | None = self.asks.moved_by(self, known or Known())
        return moved

    def mean(self, *at_most: float | None) -> Question:
        """Return the question for each client's mean over its rows, clipped as a whole, in place of its sum.

        Parameters
        ----------
        *at_most : float or None
            The norms, one for each array; None, or nothing: what a single row can add.
        """
        finished: Question = self.asks.finished_as(self, "mean", at_most)
        return finished

    def total(self, *at_most: float | None) -> Question:
        """Return the question for each client's sum, clipped as a whole; the arguments are those of :meth:`mean`."""
        finished: Question = self.asks.finished_as(self, "total", at_most)
        return finished

    def to_wire(self) -> tuple[list[Array], dict[str, Any]]:
        """Return the arrays and the fields of a message."""
        frame = [] if self.frame is None else self.frame.arrays
        fields: dict[str, Any] = {"task": self.answer.task, "arguments": json.dumps(dict(self.arguments))}
        arrays = [*self.arrays, *frame]
        if frame:
            fields["frame"] = len(frame)
        if self.finish is not None:
            fields["finish"] = json.dumps([self.finish.kind, self.finish.at_most])
        if self.view is not None:
            of_view, about = self.view.to_wire()
            about["task"] = self.view.asks.task
            fields["view"] = json.dumps(about | {"arrays": len(of_view)})
            arrays += of_view
        return arrays, fields


class Askable(Generic[P, R_co]):
    """A method of a client that may be asked for. On an instance it is the method; on the class it makes questions."""

    #: The strongest relation that its arrays support, but for those with an entry for every row.
    relation: Relation = "add-or-remove"

    def __init__(
        self,
        method: Callable[Concatenate[Any, P], R_co],
        sends: tuple[Sent, ...],
        moved: Callable[..., tuple[Moved, ...]] | None = None,
        relation: Relation = "add-or-remove",
    ) -> None:
        self.method = method
        self.answer = Answer(method.__name__, sends)
        self.moved = moved
        self.relation = relation
        self.__doc__ = method.__doc__

    def moved_by(self, question: Question, known: Known) -> tuple[Moved, ...] | None:
        """Return how much one row, or one client, can change each array of a question."""
        return None if self.moved is None else self.moved(known, *question.arrays, **question.arguments)

    def largest_of_one_row(self, question: Question) -> list[tuple[int, int]]:  # noqa: ARG002
        """Return the largest integer that a client with one row can send in each array; [] where nobody can know."""
        return []

    def reply_of(self, client: Any, question: Question) -> Any:
        """Return what a client answers."""
        method: Callable[..., Any] = self.method
        return method(client, *question.arrays, **question.arguments)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Callable[P, R_co]: ...
    def __get__(self, instance: object | None, owner: type) -> Self | Callable[P, R_co]:
        return self if instance is None else functools.partial(self.method, instance)

    def asked(self, *args: P.args, **kwargs: P.kwargs) -> Question:
        """Return the question that has a client call the method with these arguments.

        Positional arguments are arrays, keyword arguments single numbers, truth values or texts.
        """
        arguments: dict[str, Any] = dict(kwargs)
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in arguments.items()}
        return Question(self.answer, tuple(np.asarray(array) for array in args), plain, self)


def as_sent(sent: str | Sent) -> Sent:
    """Return a declaration, made of words alone where only these are given."""
    return Sent(sent) if isinstance(sent, str) else sent


def answers(
    *sends: str | Sent,
    moved: Callable[..., tuple[Moved, ...]] | None = None,
    relation: Relation = "add-or-remove",
) -> Callable[[Callable[Concatenate[Any, P], R_co]], Askable[P, R_co]]:
    """Mark a client's method as one that may be asked for, and declare every array that it sends.

    Parameters
    ----------
    *sends : str or Sent
        One an array that the method returns, in order. A reply with another number of arrays is not sent. Either all
        are sent or all are kept.
    moved : callable, optional
        Takes what is :class:`Known` of the client and what the method takes, and returns a :class:`Moved` for each
        array: how far one row moves it, from what the method clips. It does not see the rows, so that what a site
        refuses tells nothing of them. A site whose policy asks for noise answers only for methods that say so.
    relation : "add-or-remove" or "replace", default="add-or-remove"
        The strongest relation for which ``moved`` holds; for what has an entry for every row it is "replace".
    """
    declared = tuple(map(as_sent, sends))
    if len({bool(sent.kept_as) for sent in declared}) > 1:
        raise ValueError("a method sends some arrays and keeps others; write two methods.")
    kept = [sent.kept_as for sent in declared if sent.kept_as]
    if len(set(kept)) < len(kept):
        raise ValueError("a method keeps two arrays under one name; give each a name of its own.")
    return lambda method: Askable(method, declared, moved, relation)


@dataclass(frozen=True)
class Round:
    """One Flower round: who is asked for what. Use :class:`Sum` or :class:`Gather`.

    Parameters
    ----------
    question : Question, or mapping of str to Question
        What is asked; or by client, and then only these clients are asked, for the same method.
    parts : sequence of (str or None)
        The part of the budget that pays for the noise of each array, in the order of the declaration. None, or no
        parts: the array takes no noise.
    releases : sequence of (Release or None)
        What protects each array of the reply; found by the run from the parts. Empty: nothing does.
    clients : iterable of str, optional
        Only these clients are asked.
    fraction : float in (0, 1], default=1
        The part of the clients that is asked, drawn with the strategy's random_state.
    rows : str, default=""
        Which rows the client's method gets to see as its own: the true ones, or those that it has kept under this name
        (see :class:`Sent`).
    others : Question, optional
        What the clients that this round does not ask do for themselves, without an answer. By default they hear nothing
        of the round.
    needed : bool, default=True
        Whether a round that too few clients answer ends the run. Where it does not, the protocol gets None.
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

    @property
    def answer(self) -> Answer:
        """The method that is asked for."""
        return self.question_for(None).answer

    @property
    def task(self) -> str:
        """The method's name."""
        return self.answer.task

    @property
    def asks(self) -> Any:
        """What is asked for: an :class:`Askable`."""
        return self.question_for(None).asks

    @property
    def named(self) -> set[str] | None:
        """The clients that the round names; None where it names none."""
        if isinstance(self.question, Mapping):
            return set(self.question)
        return None if self.clients is None else set(self.clients)

    def question_for(self, client: str | None) -> Question:
        """Return what one client is asked; without a name, what any of them is."""
        if isinstance(self.question, Question):
            return self.question
        return next(iter(self.question.values())) if client is None else self.question[client]


class Sum(Round):
    """A round of which the server gets the sum over the clients, array by array, and nothing else.

    ``total = yield Sum(Client.method.asked(...))`` gives a :class:`Total`. What is summed are integers in a public unit
    (:class:`~flower_fedclust.GridArray`, or counts), modulo 2^64, so that a sum has no order and can run under secure
    aggregation.
    """


class Gather(Round):
    """A round in which the server sees the reply of every client.

    ``replies = yield Gather(Client.method.asked(...))`` gives a list of :class:`Reply`, sorted by client.
    """


class Total(list[Array]):
    """The sums that a :class:`Sum` brought, one an array: ``sums, counts = yield Sum(...)``.

    Parameters
    ----------
    arrays : iterable of ndarray
    n_clients : int
        Over how many clients they are: a sum divided by it is a mean over these clients.
    noise : iterable of float, optional
        The standard deviation of the noise in each, in the units of the array; 0 without noise.
    """

    def __init__(self, arrays: Iterable[Array], n_clients: int, noise: Iterable[float] = ()) -> None:
        super().__init__(arrays)
        self.n_clients = n_clients
        self.noise = list(noise) or [0.0] * len(self)


@dataclass(frozen=True)
class Reply:
    """What one client answered in a :class:`Gather` round."""

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
        Its name, or its node id where it never gave a name.
    reason : str
        One sentence.
    """

    round: int
    task: str
    client: str
    reason: str


@dataclass(frozen=True)
class Traffic:
    """What went to one client and came back in one round, in bytes of serialised arrays."""

    round: int
    task: str
    client: str
    bytes_down: int
    bytes_up: int
    #: NUMBER:HASH of the last line of the client's ledger, where it is a site that has one: whether that line is still
    #: there can be asked later.
    ledger: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a protocol leaves behind; one that returns a model leaves ``Outcome(model)``.

    Parameters
    ----------
    model : Model
    labels : mapping of str to ndarray, optional
        The cluster of each row, by client, where the server finds it rather than the model.
    embedding : mapping of str to ndarray of shape (n_i, n_dimensions), optional
        Where each row lies on a map, by client, where the server finds it rather than the model.
    history : mapping of str to sequence of float
        What was watched over the rounds, by name: an objective, say.
    number : ClusterNumber, optional
        How many clusters there are, where the strategy chose.
    clusters : Clusters, optional
        What the clusters are, where they were described.
    """

    model: Model
    labels: Mapping[str, NDArray[np.intp]] | None = None
    embedding: Mapping[str, NDArray[np.float64]] | None = None
    history: Mapping[str, Sequence[float]] = field(default_factory=dict)
    number: ClusterNumber | None = None
    clusters: Clusters | None = None


#: The server half of a strategy: it yields rounds, is sent what they brought, and returns a model, or an Outcome
#: where there is more to leave behind.
Protocol: TypeAlias = Generator[Round, Any, Outcome | Model]


#: A size within so many standard deviations of its noise may be 0.
DEVIATIONS = 2.0


@dataclass(frozen=True)
class ReleasedSizes:
    """The last numbers of rows by cluster that the server was sent, for the centers that it had asked with."""

    #: With noise, if there is any, of shape (n_clusters,); in rows, or in parts of all rows.
    counts: NDArray[np.float64]
    deviation: float = 0.0  #: The standard deviation of the noise in each; 0 without noise.
    #: That of the noise in each entry of the sums that came beside the counts, in the same rows or parts of them.
    sum_deviation: float = 0.0

    @classmethod
    def of_round(cls, round_: Round, received: object, noise: Callable[[Release], float]) -> ReleasedSizes | None:
        """Return the sizes that a round brought; None unless it is a sum, one of whose arrays is declared as sizes."""
        sends = round_.answer.sends
        index = next((index for index, sent in enumerate(sends) if sent.sizes), None)
        if index is None or not isinstance(round_, Sum) or not isinstance(received, Total):
            return None
        deviations = [0.0 if release is None else noise(release) for release in round_.releases] or [0.0] * len(sends)
        return cls(np.array(received[index], dtype=np.float64), deviations[index], deviations[0] if index else 0.0)
