"""The client's side: a ``NumPyClient`` that answers only what its class declares and its operator consents to."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import Parameters
from numpy.typing import NDArray

from flower_fedclust.data.frames import check_same_names, check_unique
from flower_fedclust.engine import survival_answers, table_answers
from flower_fedclust.engine.client_data import ClientData, Outline
from flower_fedclust.engine.fields import (
    ENROL,
    OF_MODEL,
    OF_ROUND,
    SECURE,
    check_fields,
    check_is_ours,
    hash_of_question,
    hash_of_schema,
    read_most_rows,
    read_question,
)
from flower_fedclust.engine.masked import answer_step
from flower_fedclust.engine.parts import check_adds_parts, releases_of_parts
from flower_fedclust.engine.rounds import (
    KINDS,
    Answer,
    Array,
    Askable,
    Known,
    MissedRoundError,
    ProtocolError,
    Question,
)
from flower_fedclust.engine.table_answers import PREPARATION, SCHEMA, ByTableRow, preparation_from
from flower_fedclust.engine.wire import (
    EMPTY,
    PROBE,
    TO_SERVER,
    as_bytes,
    as_numbers,
    as_text,
    decode,
    hashed,
    sent_arrays,
)
from flower_fedclust.exact.capacity import with_rows
from flower_fedclust.exact.device import Device, on_device, open_device
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.terms import Bound
from flower_fedclust.format import FORMAT, check_format
from flower_fedclust.models import Model
from flower_fedclust.numerics.checks import DataError, check_choice
from flower_fedclust.numerics.metrics import add_tables, count_table
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.outside import parse_json
from flower_fedclust.privacy.accounting import LONGEST_PLAN, Plan
from flower_fedclust.privacy.noise import (
    NoiseSource,
    OperatingSystemNoise,
    SeededNoise,
    Sendable,
    add_noise,
)
from flower_fedclust.privacy.releases import PRIVACY_UNITS, PrivacyUnit, Release
from flower_fedclust.secure.client import Trust
from flower_fedclust.tables.schema import Schema

log = logging.getLogger(__name__)

#: The key "x of" holds the name of the noisy rows from which the value under the key "x" was computed.
OF = " of"

#: The key "x asked" holds the hash of the question that led to the value under the key "x".
ASKED = " asked"

#: The key of what a client said about its table when it enrolled in a run.
ENROLLED = "enrolled"


@dataclass(frozen=True)
class Request:
    """The arrays that one message asks a client to send."""

    name: str  #: The client.
    answer: Answer  #: The arrays that the client would send.
    #: The client's own noise on each array, from its bounds and the run's plan.
    releases: tuple[Release | None, ...]
    n_shares: int = 1  #: The number of clients among whom the noise is divided.
    #: Whether the answer is computed from kept rows that carry noise, and so reveals nothing more.
    is_derived: bool = False
    #: How many rows the client has; only for a policy that lets the number leave.
    n_rows: int = 0
    n_clients: int = 0  #: The number of clients that are asked, according to the server.
    plan: str = ""  #: The plan of the run's releases that the message announces, as JSON.
    is_masked: bool = False  #: Whether the answer leaves masked, for a secure sum.
    #: Computes :meth:`moved` from the public minimum number of rows.
    find_moved: Callable[[int], tuple[Bound, ...] | None] = field(
        default=lambda n_rows: None, repr=False
    )

    def moved(self, n_rows: int) -> tuple[Bound | None, ...]:
        """Return how much one row can change each array; None where that is unknown."""
        return self.find_moved(n_rows) or (None,) * len(self.answer.sends)

    @property
    def noisy(self) -> list[bool]:
        """Whether each array would carry all of its noise, not just a share."""
        return [
            release is not None and release.noise_multiplier > 0 and self.n_shares == 1
            for release in self.releases
        ]


@dataclass(frozen=True)
class Asking:
    """A parsed message. The answer follows from it and from what the client has: its rows and its memory."""

    #: Takes the keys and hashes of the earlier questions on which the answer rests, and returns the hash of this
    #: question. None for a client that answers no message.
    hashed: Callable[[Sequence[tuple[str, bytes]]], bytes] | None = None
    order: list[str] | None = None  #: The run's order of the columns, if the message states one.
    question: Question | None = None
    #: The name of the kept rows that replace the client's rows; "" for the client's rows themselves.
    rows: str = ""
    #: The kept rows that ``rows`` names; None if the client's own rows are read.
    stand_in: NDArray[np.float64] | None = field(default=None, repr=False)
    #: A request for the operator's consent, before anything is computed.
    request: Request | None = None
    round: int = 0  #: The number of the round, from which seeded noise follows.
    #: The name of the noisy rows to which the answer is confined; "" if it may read the true rows.
    derives_from: str = ""


#: The state of a client that has no message to answer.
NOTHING_ASKED = Asking()


@dataclass
class Seen:
    """Record of what an answer has looked at so far."""

    keys: set[str] = field(default_factory=set)  #: The keys that it has recalled.
    rows: bool = False  #: Whether it has read rows.


class Approval(Protocol):
    """Decides what a client answers: a :class:`Consent`, or the policy of a site."""

    @property
    def says_what_failed(self) -> bool:
        """Whether the server hears about the failure of a task that sends nothing."""

    def check(self, request: Request) -> None:
        """Raise an exception unless everything that the request would send may leave."""

    def check_evaluation(self, name: str) -> None:
        """Raise an exception unless models may be evaluated."""


@dataclass(frozen=True)
class Consent:
    """The kinds of questions that a client answers.

    Parameters
    ----------
    kinds : iterable of "sums", "centers", "codes" or "rows"
        The kinds of messages that may leave without noise added by the site; by default all, as in a simulation. A
        message that carries all of its noise when it leaves (noise="local") needs no consent.
    evaluation : bool, default=True
        Whether models are evaluated on the site's rows, and labels counted.
    """

    kinds: Iterable[str] = KINDS
    _: KW_ONLY
    evaluation: bool = True
    says_what_failed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        kinds = frozenset([self.kinds] if isinstance(self.kinds, str) else self.kinds)
        for kind in sorted(kinds):
            check_choice("consent", kind, KINDS)
        object.__setattr__(self, "kinds", kinds)

    def check(self, request: Request) -> None:
        """Raise a DataError unless everything that the request would send may leave."""
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
            raise DataError(
                f"client {name} does not evaluate models; its operator would have to allow it."
            )


#: The default consent, made once because Flower makes a new client for every message.
EVERYTHING = Consent()


class UnitError(DataError):
    """The run protects another privacy unit than this client needs. No row was read to find this out."""


class ProtocolClient(NumPyClient):
    """A client that answers questions about the methods that are marked with ``@answers``.

    Flower makes a new client for every message; :meth:`remember` keeps what later messages need.

    Parameters
    ----------
    data : ClientData, or callable without arguments that returns it
        A callable is called when rows are first needed. So if it fails, the client can tell the server why.
    name : str
        What the server calls this client; no two clients may have the same name.
    context : flwr.app.Context, optional
        Holds what :meth:`remember` keeps.
    consent : Consent, or the policy of a site, optional
        What the client answers; by default everything.
    noise_seed : int, optional
        For experiments only: repeatable noise protects nobody. The seed never comes from a message.
    trust : Trust, optional
        For secure sums: the client's own key, and the keys of others.
    outline : Outline, optional
        What is known about the table without its rows. If it is given, nothing is loaded before ``consent`` has
        allowed an answer: a client enrols by its columns, and errors in its rows are found only afterwards. By default
        it is computed from the data, and a client that enrols checks its rows.

    Attributes
    ----------
    rows : ndarray of shape (n_rows, n_columns)
    noise_source : NoiseSource
        Randomness for a method that draws noise itself, fresh for every message.
    """

    #: Whether answers clip rows also without an epsilon of the run, so that no row is too large.
    clips_rows: ClassVar[bool] = False

    # Answers about tables, which every client has.
    exponents = table_answers.exponents
    histograms = table_answers.histograms
    prepare = table_answers.prepare
    description = table_answers.description
    plain_description = table_answers.plain_description
    survival = survival_answers.survival
    plain_survival = survival_answers.plain_survival

    def __init__(
        self,
        data: ClientData | Callable[[], ClientData],
        *,
        name: str,
        context: Context | None = None,
        consent: Approval | None = None,
        noise_seed: int | None = None,
        trust: Trust | None = None,
        outline: Outline | None = None,
    ) -> None:
        self._given_data = data
        self._given_outline = outline
        self.name = name
        self.context = context
        self.trust = trust
        self.consent: Approval = EVERYTHING if consent is None else consent
        self._noise_seed = noise_seed
        # Each message is answered by a copy, which holds the question and records what it reads; see `_who_answers`.
        self._asking = NOTHING_ASKED
        self._seen = Seen()
        #: Why the last message was not answered, for whoever made the client; the server hears less.
        self.error: Exception | None = None

    def _who_answers(self, asking: Asking) -> Self:
        """Return a copy of the client to answer this message, with the same rows and the same memory."""
        answering = object.__new__(type(self))  # copy.copy takes ten times as long
        vars(answering).update(vars(self))
        answering._asking, answering._seen = asking, Seen({asking.rows} if asking.rows else set())
        return answering

    @classmethod
    def key(cls) -> str:
        """Return the name by which messages address this class."""
        return f"{cls.__module__}.{cls.__qualname__}"

    @property
    def source(self) -> ClientData:
        """The client's rows or table, as loaded; a DataError if the current answer may read noisy rows only."""
        if noisy := self._asking.derives_from:
            raise DataError(
                f"client {self.name}: what was asked for takes the client's own rows, and not its {noisy}."
            )
        self._seen.rows = True
        return self._loaded if self._asking.order is None else self._in_order_of_run

    @cached_property
    def _loaded(self) -> ClientData:
        """The client's data, loaded on first use; a DataError if it has changed since the run began."""
        data = self._given_data() if callable(self._given_data) else self._given_data
        if not isinstance(data, ClientData):
            raise DataError(f"client {self.name}: its rows are not wrapped; give ClientData(rows).")
        outline = self._given_outline
        if outline is not None:
            if (data.n_columns, data.outline.columns) != (outline.n_columns, outline.columns):
                raise DataError(
                    f"client {self.name}: the columns of its table have changed; enrol again."
                )
            if data.n_rows < outline.n_rows:
                raise DataError(
                    f"client {self.name}: its table has lost rows, and its noise was announced for more."
                )
        if self._may_change:
            self._check_unchanged(data)
        return data

    @cached_property
    def _in_order_of_run(self) -> ClientData:
        """The loaded data, with the columns in the order that the message states."""
        assert self._asking.order is not None
        return self._loaded.in_order(self._asking.order, "the run")

    @cached_property
    def outline(self) -> Outline:
        """What is known about the table without its rows; computed from the data if the client was given no outline."""
        return self._loaded.outline if self._given_outline is None else self._given_outline

    @property
    def data(self) -> ClientData:
        """The rows, labels and column names; a table as prepared rows."""
        own = self.source
        self._seen.keys |= {PREPARATION, SCHEMA}
        if (kept := self._kept(PREPARATION)) is not None:
            return own.prepared(preparation_from(kept[0].tobytes()))
        if self._kept(SCHEMA) is not None:
            raise MissedRoundError(
                f"client {self.name} has no preparation of its table; it missed the round of it."
            )
        return own

    @property
    def stand_in(self) -> NDArray[np.float64] | None:
        """The kept rows that this round uses in place of the client's own; None if it uses the client's own."""
        return self._asking.stand_in

    @property
    def rows(self) -> NDArray[np.float64]:
        """The rows, of shape (n_rows, n_columns): the client's own, or the kept rows that the round names."""
        stand_in = self._asking.stand_in
        if stand_in is None:
            return self.data.rows
        self._seen.rows = True
        return stand_in

    @property
    def has_own_rows(self) -> bool:
        """Whether :attr:`rows` are the client's data as loaded: neither prepared nor replaced by kept rows."""
        return self.stand_in is None and self.recall(PREPARATION) is None

    @cached_property
    def noise_source(self) -> NoiseSource:
        """Randomness for a method that draws noise itself, fresh for every message."""
        if self._noise_seed is None:
            return OperatingSystemNoise()
        return SeededNoise([self._noise_seed, self._asking.round])

    @property
    def rows_in_batches(self) -> NDArray[np.float64] | ClientData:
        """The rows of :attr:`rows`, for answers that read them batch by batch."""
        return self.data if self.stand_in is None else self.rows

    def pieces(self) -> Iterator[NDArray[np.float64]]:
        """Yield the rows of :attr:`rows` in pieces; rows in memory are one piece."""
        source = self.rows_in_batches
        return iter([source]) if isinstance(source, np.ndarray) else source.pieces()

    def generator(self, random_state: int) -> np.random.Generator:
        """Return a generator for choices on which no privacy rests. Only the seed and the client's name decide it."""
        return np.random.default_rng([random_state, *self.name.encode()])

    # What a client remembers from one message to the next, in the Context that Flower gives it.

    def question(self) -> bytes:
        """Return the hash of the current question, and of the earlier questions whose results its answer recalled.

        Masks are bound to this hash: the masks of two clients cancel only if both were asked the same.
        """
        earlier = [
            (key, hashes[0].tobytes())
            for key in sorted(self._seen.keys)
            if (hashes := self._kept(key + ASKED))
        ]
        if self._asking.hashed is None:
            raise RuntimeError("a client that answers no message has no question.")
        return self._asking.hashed(earlier)

    def remember(self, key: str, arrays: Sequence[Array], *, is_own: bool = False) -> None:
        """Keep arrays in the Context's state until a later round.

        ``is_own`` states that the arrays depend on the key and the client's rows alone, and not on any question.
        """
        self._remember(key, arrays, derives_from=self._asking.derives_from, is_own=is_own)

    def _remember(
        self, key: str, arrays: Sequence[Array], *, derives_from: str = "", is_own: bool = False
    ) -> None:
        if self.context is None:
            raise RuntimeError("a client without a Context cannot remember; give it context=...")
        self.context.state[f"fedclust.{key}"] = ArrayRecord([np.asarray(array) for array in arrays])
        origin = f"fedclust.{key}{OF}"
        self.context.state.pop(origin, None)
        if derives_from:
            self.context.state[origin] = ArrayRecord([as_bytes(derives_from)])
        if self._asking.hashed is not None and not is_own:
            asked = np.frombuffer(self.question(), dtype=np.uint8)
            self.context.state[f"fedclust.{key}{ASKED}"] = ArrayRecord([asked])

    def recall(self, key: str) -> list[Array] | None:
        """Return what :meth:`remember` kept under this key, or None.

        While an answer is computed from noisy rows, only what was computed from the same rows is returned.
        """
        self._seen.keys.add(key)
        if self._asking.derives_from:
            origin = self._kept(f"{key}{OF}")
            if origin is None or as_text(origin[0]) != self._asking.derives_from:
                return None
        return self._kept(key)

    def _kept(self, key: str) -> list[Array] | None:
        if self.context is None or f"fedclust.{key}" not in self.context.state:
            return None  # the usual case; looking up a missing record is slow
        record = self.context.state[f"fedclust.{key}"]
        if not isinstance(record, ArrayRecord):
            return None
        kept = Parameters([array.data for array in record.values()], "numpy.ndarray")
        return [array.copy("K") for array in decode(kept)]  # faster than Flower's own function

    def _forget(self) -> None:
        """Drop what an earlier run left here, because this run's report does not cover it."""
        if self.context is not None:
            # Enrolling again must not let a server restart a secure sum, or use a table that has changed.
            kept = {f"fedclust.{SECURE}", f"fedclust.{ENROLLED}"}
            for key in [
                key for key in self.context.state if key.startswith("fedclust.") and key not in kept
            ]:
                del self.context.state[key]

    # Flower's two calls.

    def fit(
        self, parameters: list[Array], config: dict[str, Any]
    ) -> tuple[list[Array], int, dict[str, Any]]:
        """Answer one task.

        The number of examples is always 1: the true number would reveal how many rows the client has.
        """
        facts: dict[str, Any] = {"format": FORMAT, "client": self.name}
        try:
            with one_thread():
                check_fields(config, OF_ROUND, self.name)
                if config["task"] == ENROL:
                    # An interrupted run needs the memory that it left here.
                    if not config.get("goes_on"):
                        self._forget()
                    self._check_as_enrolled(config)
                    facts["columns"] = self._columns(config)
                    self._remember_enrolled(config)
                    return list(PROBE), 1, hashed(PROBE, facts)
                asked = [] if config.get(EMPTY) else parameters
                arrays, units = sent_arrays(
                    answer_step(self, asked, config)
                    if SECURE in config
                    else self._answered(asked, config)[1]
                )
                return arrays, 1, hashed(arrays, facts | units)
        except MissedRoundError as error:
            self.error = error
            return [], 1, said_instead(self.name, str(error)) | {"missed": True}
        except Exception as error:
            return [], 1, said_instead(self.name, self.reason_of(error))

    def evaluate(
        self, parameters: list[Array], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Count the true classes in each cluster of the model, and compute the k-means cost of the rows."""
        facts: dict[str, Any] = {"format": FORMAT, "client": self.name}
        if not config.get("evaluate", True):
            return 0.0, 0, hashed([], facts, (0.0, 0))
        try:
            # A client without an outline would read its rows for this, which only consent allows.
            if self._given_outline is not None:
                self._check_as_enrolled(config)
            self.consent.check_evaluation(self.name)
            check_fields(config, OF_MODEL, self.name)
            with one_thread():
                model = Model.named(str(config["model"])).from_arrays(parameters)
                source, cost, tables = self._in_order_of(config).source, 0.0, []
                for part, clustered in source.clusters(model):
                    cost += float(clustered.cost)
                    if source.labels is not None:
                        tables.append(
                            count_table(source.labels[part], clustered.labels, model.n_clusters)
                        )
                if tables:
                    names = sorted({name for table in tables for name in table})
                    counts = add_tables(tables).tolist()
                    facts["table"] = json.dumps(
                        [[str(name), row] for name, row in zip(names, counts, strict=True)]
                    )
                return cost, source.n_rows, hashed([], facts, (cost, source.n_rows))
        except Exception as error:
            return 0.0, 0, said_instead(self.name, self.reason_of(error))

    # An answer: parse the message; judge and charge; compute, add noise; keep, or send.

    def _answered(
        self, arrays: list[Array], config: Mapping[str, Any]
    ) -> tuple[Self, list[Sendable]]:
        """Return the client as it has answered a message, and the arrays that it sends.

        Nothing depends on the values of rows until the site has consented. So the site can charge for the answer when
        it consents.
        """
        asking = self._parsed(arrays, config)
        question, request = asking.question, asking.request
        assert question is not None
        assert request is not None
        self.consent.check(request)
        answering = self._who_answers(asking)
        computed = answering._computed(question)
        if any(request.releases):
            computed = add_noise(
                computed, request.releases, answering.noise_source, n_shares=request.n_shares
            )
        if not question.answer.keeps:
            return answering, computed
        for sent, array, release in zip(
            question.answer.sends, computed, request.releases, strict=True
        ):
            noisy = request.is_derived or (release is not None and release.noise_multiplier > 0)
            kept = array.values if isinstance(array, GridArray) else array
            answering._remember(sent.kept_as, [kept, np.array([noisy])])
        return answering, []

    def _parsed(self, arrays: list[Array], config: Mapping[str, Any]) -> Asking:
        """Return what a message asks; an error if it makes no sense, or if an earlier round was missed."""
        asks = getattr(type(self), str(config["task"]), None)
        if not isinstance(asks, Askable):
            raise DataError(f"{type(self).__name__} has no answer called '{config['task']}'.")
        self._check_as_enrolled(config)
        question = read_question(asks, list(map(as_numbers, arrays)), config, type(self))
        self._check_most_rows(question.most_rows)
        answer, rows = question.answer, str(config.get("rows", ""))
        find_moved = partial(self.moved, rows, question)
        releases = self._releases(question, find_moved, config) if "parts" in config else ()
        if releases and len(releases) != len(answer.sends):
            raise DataError(
                f"'{answer.task}' sends {len(answer.sends)} arrays; {len(releases)} releases were given."
            )
        order = self._order_in(config) if "columns" in config else None
        n_shares = int(config.get("n_shares", 1))
        if config.get("plan"):
            question = self._for_its_unit(question, config)
        self._check_not_missed(question)
        stand_in, is_derived = self._rows_of_round(rows) if rows else (None, False)
        request = Request(
            self.name,
            answer,
            releases or (None,) * len(answer.sends),
            n_shares,
            is_derived=is_derived,
            n_rows=self.outline.n_rows,
            n_clients=int(config.get("n_clients", 0)),
            plan=str(config.get("plan", "")),
            is_masked=SECURE in config,
            find_moved=find_moved,
        )
        hashed_as = partial(self._hash, question, rows, order, releases, n_shares)
        derives_from = rows if is_derived else ""
        return Asking(
            hashed_as, order, question, rows, stand_in, request, int(config["round"]), derives_from
        )

    def _for_its_unit(self, question: Question, config: Mapping[str, Any]) -> Question:
        """Return the question with the privacy unit of the run's plan; a UnitError if this client needs another.

        If the plan protects subjects, everything that is sent must be a sum over the client's own rows. Arrays that the
        client keeps may be anything, because they do not leave it.
        """
        unit, rows_per_subject = _read_unit(str(config["plan"]))
        has_subjects = self.outline.n_subjects > 0
        if unit == "record" and has_subjects:
            raise UnitError(
                f"client {self.name}: its rows have a subject_column, and the run protects single rows; set "
                "privacy_unit to 'subject'."
            )
        if unit != "subject":
            return question
        if not has_subjects:
            raise UnitError(
                f"client {self.name}: the run protects persons, and nothing says which rows are one person's; name its "
                "subject_column (where each row is another person: a column of ids)."
            )
        if config.get("rows"):
            raise UnitError(
                f"client {self.name}: a run that protects persons takes no rows that were kept."
            )
        if question.answer.sends and not question.answer.keeps:
            try:
                check_adds_parts(question)
            except ProtocolError as error:
                raise UnitError(f"client {self.name}: {error}") from None
        return replace(question, rows_per_subject=rows_per_subject)

    def _in_order_of(self, config: Mapping[str, Any]) -> Self:
        """Return a client with the columns in the order that a message states, if it states one."""
        order = self._order_in(config) if "columns" in config else None
        return self if order is None else self._who_answers(Asking(order=order))

    # Helpers of the calls above.

    def reason_of(self, error: Exception) -> str:
        """Return one sentence about an error that the server may read.

        A DataError names a row and a column. Any other error may quote a value, so its text stays in the client's log.
        """
        self.error = error
        if isinstance(error, DataError):
            return str(error)
        log.error("client %s failed", self.name, exc_info=error)
        if where := "" if "_loaded" not in vars(self) else self._loaded.out_of_scale:
            return f"client {self.name}: {where}"
        return f"client {self.name} failed with {type(error).__name__}; its own log says more."

    def _rows_of_round(self, key: str) -> tuple[NDArray[np.float64], bool]:
        """Return the kept rows that a round names, and whether they carry noise."""
        kept = self._kept(key)
        if kept is None:
            raise MissedRoundError(
                f"client {self.name} has not kept its {key}; it missed the round that makes them."
            )
        # Only arrays that are declared with kept_as may be used in place of the client's rows.
        if key not in _kept_by(type(self)):
            raise DataError(f"{type(self).__name__} keeps no rows called '{key}'.")
        return np.asarray(kept[0], dtype=np.float64), bool(kept[1][0])

    def moved(self, rows: str, question: Question, n_rows: int = 1) -> tuple[Bound, ...] | None:
        """Return how much one row can change each array of an answer, without reading the rows; None if unknown."""
        if rows:
            return None
        kept = self._kept(PREPARATION)
        n_columns = (
            self.outline.n_columns
            if kept is None
            else preparation_from(kept[0].tobytes()).n_columns
        )
        return question.moved(Known(n_rows, n_columns))

    def _check_not_missed(self, question: Question) -> None:
        """Raise a MissedRoundError if an earlier round, which the answer needs, has left nothing here.

        This comes before the consent, so that a site charges nothing for it.
        """
        if needs := [key for key in question.asks.needs if self._kept(key) is None]:
            raise MissedRoundError(
                f"client {self.name} has no {needs[0]}; it missed the round that leaves them."
            )
        of_prepared_rows = question.frame is not None or not isinstance(question.asks, ByTableRow)
        is_prepared = self._kept(SCHEMA) is None or self._kept(PREPARATION) is not None
        if (
            of_prepared_rows
            and question.answer.task != table_answers.prepare.answer.task
            and not is_prepared
        ):
            raise MissedRoundError(
                f"client {self.name} has no preparation of its table; it missed the round of it."
            )

    def _hash(
        self,
        question: Question,
        rows: str,
        order: list[str] | None,
        releases: Sequence[Release | None],
        n_shares: int,
        led: Sequence[tuple[str, bytes]],
    ) -> bytes:
        """Return the hash of a question and of everything else that changes its answer, as the client understands it.

        With a schema the order of the columns in the table changes nothing, so the order is left out.
        """
        has_schema = self._kept(SCHEMA) is not None
        own_columns = self.outline.columns
        columns = None if has_schema or own_columns is None else order or list(own_columns)
        noise = repr([release and replace(release, share="") for release in releases])
        more = [
            rows,
            json.dumps(columns),
            noise,
            str(n_shares) if releases else "",
            str(question.rows_per_subject),
        ]
        return hash_of_question(question, more, led)

    def _check_scale(self) -> None:
        """Raise a DataError if a row is too large to compute with and the run has no epsilon.

        With an epsilon rows are clipped first, so that any row will do, and a failure would tell something about rows.
        The same holds for a client that always clips. A site whose failures must not tell anything answers as well as
        it can.
        """
        request = self._asking.request
        has_no_plan = request is not None and not request.plan and self.stand_in is None
        may_fail = has_no_plan and not self.clips_rows and self.consent.says_what_failed
        if may_fail and (where := self._loaded.too_large):
            raise DataError(f"client {self.name}: {where}")

    def _computed(self, question: Question) -> list[Sendable]:
        """Return the arrays that a declared method computes from the rows."""
        answer = question.answer
        try:
            with with_rows(question.most_rows):
                self._check_scale()
                reply = question.asks.reply_of(self, question)
        except Exception as error:
            is_paid_for = answer.sends and not answer.keeps
            if self.consent.says_what_failed or is_paid_for or not self._seen.rows:
                raise
            # If the server heard of this failure, it would learn about rows without noise. So the client keeps zeros.
            self.reason_of(error)
            reply = [GridArray(np.zeros((self.outline.n_rows, 1))) for _ in answer.sends]
        arrays = (
            list(reply) if isinstance(reply, (list, tuple)) else [] if reply is None else [reply]
        )
        if len(arrays) != len(answer.sends):
            raise RuntimeError(
                f"'{answer.task}' declares {len(answer.sends)} arrays and its method returned {len(arrays)}."
            )
        return [array if isinstance(array, GridArray) else np.asarray(array) for array in arrays]

    def _releases(
        self,
        question: Question,
        find_moved: Callable[[], tuple[Bound, ...] | None],
        config: Mapping[str, Any],
    ) -> tuple[Release | None, ...]:
        """Return the noise that each array needs, from the client's own bounds and the run's plan."""
        parts, plan = parse_json(config["parts"]), _read_plan(str(config.get("plan", "")))
        if not isinstance(parts, list) or not all(
            name is None or isinstance(name, str) for name in parts
        ):
            raise DataError("a message names parts of a budget, and they are not texts.")
        return releases_of_parts(question, find_moved(), parts, plan)

    def _check_most_rows(self, allowed: int) -> None:
        """Raise a DataError if a run allows fewer rows than the client's public bound; the true number is not used."""
        own = self.outline.most_rows
        if own > allowed:
            raise DataError(
                f"client {self.name}: the run allows {allowed:,} rows, and this client may have up to {own:,}; give "
                f"the strategy most_rows={own}."
            )

    def _order_in(self, config: Mapping[str, Any]) -> list[str] | None:
        """Return the run's order of the columns, as a message states it; None if the client's columns have no names."""
        own_columns = self.outline.columns
        if own_columns is None:
            return None
        columns = parse_json(str(config["columns"]))
        if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
            raise DataError(f"client {self.name}: the columns of the run are not a list of names.")
        check_unique(columns, "the run")
        check_same_names(own_columns, columns, f"client {self.name}", "the run")
        return columns

    def _check_unchanged(self, data: ClientData) -> None:
        """Raise a DataError if data that is loaded for every message has changed since the run first looked at it."""
        fingerprint, before = data.fingerprint(), self._kept("fingerprint")
        if before is None:
            self.remember("fingerprint", [fingerprint], is_own=True)
        elif len(fingerprint) != len(before[0]) or (fingerprint != before[0]).any():
            names = [*(data.columns or map(str, range(len(fingerprint) - 1))), "of the subjects"]
            changed = "its number of rows or its columns" if data.is_in_memory else "its files"
            if (
                data.is_in_memory
                and len(fingerprint) == len(before[0])
                and fingerprint[0] == before[0][0]
            ):
                differ = np.flatnonzero(fingerprint[1:] != before[0][1:]).tolist()
                changed = "column " + ", ".join(f"'{names[index]}'" for index in differ)
            raise DataError(
                f"client {self.name}: the data has changed since the run began ({changed}); leave it as it is until "
                "the run has ended."
            )

    def _remember_enrolled(self, config: Mapping[str, Any]) -> None:
        """Keep what the client says about its table when it first enrols in a run."""
        if self._enrolled(config) is None and self._may_change:
            facts = {"run": self._run_of(config)} | self.outline.facts
            self._remember(ENROLLED, [as_bytes(json.dumps(facts))], is_own=True)

    def _check_as_enrolled(self, config: Mapping[str, Any]) -> None:
        """Raise a DataError if what the client said about its table when it enrolled is no longer true.

        A site hears of such a change only when it reads its table after a charge. Without this check that answer would
        fail, and the next one would be computed from another table than the run is about.
        """
        if (then := self._enrolled(config)) is None:
            return
        now = self.outline.facts
        changed = [name for name in ("columns", "schema", "subjects") if now[name] != then[name]]
        if now["n_rows"] < then["n_rows"]:
            changed.append("number of rows")
        if changed:
            raise DataError(
                f"client {self.name}: its table, or the policy about it, has changed since it enrolled in this run "
                f"({', '.join(changed)}); restore it and start this client again, or start another run."
            )

    def _enrolled(self, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what the client said about its table when it enrolled in this run; None if it did not."""
        if not self._may_change or (kept := self._kept(ENROLLED)) is None:
            return None
        facts: dict[str, Any] = json.loads(as_text(kept[0]))
        return facts if facts["run"] == self._run_of(config) else None

    @property
    def _may_change(self) -> bool:
        """Whether the table may change between two messages, because it is loaded for each."""
        return callable(self._given_data) and self.context is not None

    def _run_of(self, config: Mapping[str, Any]) -> str:
        """Return the name of a message's run."""
        assert self.context is not None
        return str(config.get("run") or self.context.run_id)

    def _columns(self, config: Mapping[str, Any]) -> str:
        """Return the columns with which the client takes part, as JSON.

        A client without an outline also checks its rows here, before a budget is spent on a run that it cannot answer.
        """
        outline, may_look, owner = self.outline, self._given_outline is None, f"client {self.name}"
        self._check_most_rows(read_most_rows(config))
        schema = self._schema_of(config, outline.schema)
        if outline.schema is not None:
            outline.schema.check_equal(schema, owner=owner)
        if schema is not None:
            if may_look:
                self.source.check(schema)
            else:
                schema.check_names(
                    outline.columns or [str(index) for index in range(outline.n_columns)],
                    owner=owner,
                )
            enrolling = self._who_answers(Asking(lambda _: hash_of_schema(schema)))
            enrolling.remember(SCHEMA, [as_bytes(str(config["schema"]))])
            return json.dumps(list(schema.used))
        if may_look:
            self.data.check()
        n_columns, expected = outline.n_columns, config.get("n_columns")
        if expected is not None and n_columns != expected:
            raise DataError(
                f"client {self.name} has {n_columns} columns where the server expects {expected}."
            )
        return json.dumps(list(outline.columns) if outline.columns is not None else n_columns)

    def _schema_of(self, config: Mapping[str, Any], own_schema: Schema | None) -> Schema | None:
        """Return the schema of a message; if its text equals the client's own schema, it is not parsed again."""
        if "schema" not in config:
            return None
        text = str(config["schema"])
        return (
            own_schema
            if own_schema is not None and own_schema.to_json() == text
            else Schema.from_json(text)
        )


@lru_cache(maxsize=256)
def _kept_by(kind: type[ProtocolClient]) -> frozenset[str]:
    """Return the names under which a class keeps rows."""
    asked = [value for name in dir(kind) if isinstance(value := getattr(kind, name), Askable)]
    return frozenset(
        sent.kept_as for askable in asked for sent in askable.answer.sends if sent.kept_as
    )


@lru_cache(maxsize=8)
def _read_unit(text: str) -> tuple[PrivacyUnit, int]:
    """Return a plan's privacy unit and its rows_per_subject.

    The rest of a plan is read later, to compute noise from it or to charge a site's budget.
    """
    found = parse_json(text, LONGEST_PLAN)
    unit, rows = (
        (found.get(key) for key in ("unit", "rows_per_subject"))
        if isinstance(found, dict)
        else (None, None)
    )
    known = next((one for one in PRIVACY_UNITS if one == unit), None)
    if known is None or type(rows) is not int or not 1 <= rows < 2**53:
        raise DataError("a message has a plan that does not say whom it protects.")
    return known, rows


@lru_cache(maxsize=8)
def _read_plan(text: str) -> Plan:
    return Plan.from_dict(parse_json(text, LONGEST_PLAN))


def said_instead(name: str, reason: str) -> dict[str, Any]:
    """Return the facts of a reply that states why there is no answer."""
    return {"format": FORMAT, "client": name, "failure": reason}


def client_name(context: Context) -> str:
    """Return the name of a client: ``name`` in its node config, else its partition, else its node id."""
    config = context.node_config
    return str(config.get("name", config.get("partition-id", context.node_id)))


class _Dispatcher(NumPyClient):
    """Hands each message to the client class that it names."""

    def __init__(self, types: Iterable[type[ProtocolClient]], **arguments: Any) -> None:
        self._types = {client_type.key(): client_type for client_type in types}
        self._name: str = arguments["name"]
        self._arguments = arguments

    def fit(
        self, parameters: list[Array], config: dict[str, Any]
    ) -> tuple[list[Array], int, dict[str, Any]]:
        try:
            client = self._client(config)
            with on_device(self._device(client)):
                arrays, _, facts = client.fit(parameters, config)
        except DataError as error:
            arrays, facts = [], said_instead(self._name, str(error))
        return (arrays, 1, facts) if arrays else (TO_SERVER, 1, facts | {EMPTY: True})

    def evaluate(
        self, parameters: list[Array], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        try:
            return self._client(config).evaluate(parameters, config)
        except DataError as error:
            return 0.0, 0, said_instead(self._name, str(error))

    def _client(self, config: Mapping[str, Any]) -> ProtocolClient:
        """Return the client half that a message names."""
        check_is_ours(config, self._name)
        check_format(config.get("format"), "this message", f"client {self._name}")
        client_type = self._types.get(str(config.get("client")))
        if client_type is None:
            raise DataError(f"client {self._name} does not answer for {config.get('client')}.")
        return client_type(**self._arguments)

    def _device(self, client: ProtocolClient) -> Device | None:
        """Return the device of a client; an error that the server may read, if it cannot be opened."""
        try:
            return _device_of(client.context)
        except ValueError as error:
            raise DataError(f"client {self._name}: {error}") from None
        except Exception as error:
            # A graphics card may be busy or broken; the text of its error stays in the client's log.
            raise DataError(client.reason_of(error)) from None


def _device_of(context: Context | None) -> Device | None:
    """Return the device that a SuperNode's own config names, as in ``--node-config 'device="cuda"'``."""
    named = None if context is None else context.node_config.get("device")
    return None if named is None else open_device(str(named))


def client_fn(
    client_type: type[ProtocolClient] | Iterable[type[ProtocolClient]],
    load: Callable[[Context], ClientData],
    *,
    name: Callable[[Context], str] = client_name,
    consent: Approval | None = None,
    noise_seed: Callable[[Context], int | None] = lambda context: None,
) -> Callable[[Context], Client]:
    """Return the function that Flower's ``ClientApp(client_fn=...)`` takes.

    Parameters
    ----------
    client_type : type of ProtocolClient, or several
        The client classes of the strategies to answer: ``strategy.client_type``.
    load : callable
        Takes the Context and returns the client's data. What it raises as a DataError reaches the server as the
        reason why this client failed.
    name : callable, optional
        Takes the Context and returns the client's name.
    consent : Consent, or the policy of a site, optional
        What the client answers; by default everything, which suits a simulation.
    noise_seed : callable, optional
        For experiments only; see :class:`ProtocolClient`.
    """
    types = [client_type] if isinstance(client_type, type) else list(client_type)

    def make(context: Context) -> Client:
        return _Dispatcher(
            types,
            data=lambda: load(context),
            name=name(context),
            context=context,
            consent=consent,
            noise_seed=noise_seed(context),
        ).to_client()

    return make


def client_app(
    client_type: type[ProtocolClient] | Iterable[type[ProtocolClient]],
    load: Callable[[Context], ClientData],
    **options: Any,
) -> ClientApp:
    """Return a Flower ClientApp that answers for strategies; it takes the arguments of :func:`client_fn`."""
    return ClientApp(client_fn=client_fn(client_type, load, **options))
