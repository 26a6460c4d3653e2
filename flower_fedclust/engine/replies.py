"""The replies of clients: each is checked alone, then compared with the others, and then they are added up."""

from __future__ import annotations

import bisect
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from flwr.app import Context, RecordDict
from flwr.app.user_config import UserConfig
from flwr.common import Code, EvaluateRes, FitRes
from numpy.typing import NDArray

from flower_fedclust.engine.client_data import ClientData
from flower_fedclust.engine.messages import Message, Summed
from flower_fedclust.engine.rounds import (
    Array,
    Known,
    ProtocolError,
    Question,
    Round,
    Sent,
    Sum,
    Traffic,
)
from flower_fedclust.engine.settings import Settings
from flower_fedclust.engine.wire import EMPTY, decode, size_of, unchanged_arrays
from flower_fedclust.exact.grid import BITS, MOST_ROWS, GridArray
from flower_fedclust.exact.terms import Bound
from flower_fedclust.format import FormatError, check_format
from flower_fedclust.numerics.metrics import add_tables, agreement
from flower_fedclust.outside import parse_json
from flower_fedclust.privacy.noise import Sendable, noise_exponent, on_grid
from flower_fedclust.privacy.releases import Release

log = logging.getLogger(__name__)

#: What NumPy's letters for kinds of types stand for.
KINDS_OF_NUMBERS = {"f": "floats", "i": "integers", "u": "integers", "b": "truth values"}

#: Noise is never larger than this many times its scale, except with a probability below 2^-90.
NOISE_REACH = 64.0

#: The most characters of a client's reason for not answering; the rest is cut off.
LONGEST_EXCUSE = 400


class ReplyError(Exception):
    """A reply that cannot be used; the message is one sentence that names the client."""


class RefusalError(ReplyError):
    """The client explains why it cannot answer."""

    def __init__(self, reason: str, *, missed: bool, waits: bool = False) -> None:
        super().__init__(reason)
        self.missed = missed  #: Whether the reason is that the client missed an earlier round.
        self.waits = waits  #: Whether the reason is that a person has not approved the study yet.


T = TypeVar("T")
R = TypeVar("R", FitRes, EvaluateRes)


def read_reply(name: str, res: R, check: Callable[[R, list[Sendable]], T]) -> T:
    """Return the result of a check of a reply and its arrays. The server reads replies only through this function.

    Any bytes can be in any field, so whatever the check raises is a ReplyError.
    """
    try:
        if res.status.code != Code.OK:
            raise ReplyError(
                f"client {name} answered with an error: {one_line(res.status.message)}."
            )
        check_format(res.metrics.get("format"), f"client {name} sent a reply that", "this server")
        if "failure" in res.metrics:
            missed, waits = (bool(res.metrics.get(key)) for key in ("missed", "waiting"))
            raise RefusalError(_excuse(name, res.metrics["failure"]), missed=missed, waits=waits)
        try:
            arrays = unchanged_arrays(res)  # checked before anything else in the reply
        except ValueError as error:
            raise ReplyError(f"client {name} sent {one_line(error)}.") from None
        return check(res, arrays)
    except ReplyError:
        raise
    except FormatError as error:
        raise ReplyError(str(error)) from None
    except Exception as error:
        log.info("the reply of client %s cannot be read", name, exc_info=error)
        raise ReplyError(
            f"client {name} sent a reply that cannot be read ({type(error).__name__})."
        ) from None


def traffic_of(number: int, message: Message, res: FitRes | EvaluateRes | None) -> Traffic:
    """Return how many bytes a message and its reply take, and the last line of the client's ledger if it states one.

    A reply without arrays, or with unreadable ones, takes no bytes. The array that clients send when they enrol only
    tests the connection, and is not counted.
    """
    n_bytes, ledger = 0, ""
    with suppress(Exception):  # any bytes can be in any field
        stated = res.metrics.get("ledger") if res is not None else None
        if isinstance(stated, str) and re.fullmatch("[0-9]{1,15}:[0-9a-f]{64}", stated):
            ledger = stated
        if message.kind != "enrol" and isinstance(res, FitRes) and not res.metrics.get(EMPTY):
            n_bytes = size_of(res.parameters)
    return Traffic(number, message.task, message.client, message.n_bytes, n_bytes, ledger)


def one_line(text: object) -> str:
    """Return another party's text as one short line of printable characters; any object is accepted."""
    raw = (
        str(text)
        if isinstance(text, (str, BaseException))
        else f"something of type {type(text).__name__}"
    )
    said = " ".join(raw[: 4 * LONGEST_EXCUSE].split())
    said = "".join(letter if letter.isprintable() else "?" for letter in said)
    return said if len(said) <= LONGEST_EXCUSE else f"{said[:LONGEST_EXCUSE]}..."


def _excuse(name: str, excuse: object) -> str:
    """Return a client's reason, marked so that it cannot look like the server's words about another client."""
    said = one_line(excuse)
    return (
        said
        if said.startswith(f"client {name}") and len(said) <= LONGEST_EXCUSE
        else f"client {name} says: {said}"
    )


def client_order(name: str) -> tuple[int, int, str]:
    """Sort key of clients: names that are numbers come first, by value."""
    return (0, int(name), name) if name.isdecimal() else (1, 0, name)


def largest_in_sum(
    n_clients: int, exponent: int, release: Release | None, n_shares: int = 1
) -> int:
    """Return the largest integer that each client may send, so that their sum and its noise have at most 63 bits."""
    largest, finer = 2**63 - 1, 0
    if release is not None and release.scale > 0:
        noise_unit = noise_exponent(release, n_shares, exponent)
        finer = exponent - noise_unit
        with np.errstate(over="ignore"):
            reach = (
                NOISE_REACH
                * float(np.ldexp(release.scale, -noise_unit))
                * max(1.0, n_clients / n_shares)
            )
        largest -= min(largest, math.ceil(min(reach, 2.0**63)))
    return (largest >> finer) // max(n_clients, 1)


def checked_arrays(
    name: str,
    arrays: list[Sendable],
    sends: Sequence[Sent],
    n_columns: int,
    *,
    n_summed: int = 0,
    hidden: Sequence[bool] = (),
) -> list[Sendable]:
    """Return the arrays of one client's reply, as numbers of the usual types.

    ``n_summed`` is the number of clients in the sum, or 0. Arrays that are ``hidden`` are checked only in their form;
    see :meth:`Inspection.hidden`.
    """
    if len(arrays) != len(sends):
        raise ReplyError(
            f"client {name} sent {len(arrays)} arrays where {len(sends)} were asked for."
        )
    arrays = list(arrays)
    for index, (array, sent) in enumerate(zip(arrays, sends, strict=True)):
        plain = _entries(array)
        if sent.has_columns and plain.shape[-1:] != (n_columns,):
            raise ReplyError(
                f"client {name} sent an array of the shape {plain.shape} where the rows have {n_columns} columns."
            )
        if not isinstance(array, GridArray):
            arrays[index] = array = _usual(name, plain)
        if n_summed:
            try:
                arrays[index] = whole = on_grid(array)
            except TypeError:
                message = f"client {name} sent {sent.content} as floats; what is summed must be integers in a unit."
                raise ReplyError(message) from None
            is_hidden = bool(hidden) and hidden[index]
            if not is_hidden and whole.largest > largest_in_sum(n_summed, whole.exponent, None):
                raise ReplyError(
                    f"client {name} sent {sent.content}, so large that the sum could overflow."
                )
    return arrays


def _usual(name: str, array: Array) -> Array:
    """Return finite numbers as float64, int64 or bool, in this machine's byte order."""
    kind = array.dtype.kind
    if kind not in KINDS_OF_NUMBERS:
        raise ReplyError(f"client {name} sent an array that is not made of finite numbers.")
    if kind == "u" and array.size and int(array.max()) >= 2**63:
        raise ReplyError(f"client {name} sent an integer of more than 63 bits.")
    with np.errstate(over="ignore"):
        plain: type = {"f": np.float64, "b": np.bool_}.get(kind, np.int64)
        usual: Array = np.ascontiguousarray(array, dtype=plain).reshape(array.shape)
    if not np.isfinite(usual).all():
        raise ReplyError(f"client {name} sent an array that is not made of finite numbers.")
    return usual


def unlike_most(
    values: Mapping[str, object], expected: Callable[[], object] = lambda: None
) -> tuple[object, list[str]]:
    """Return the most frequent value, and the clients that have another one; ``expected`` breaks a tie."""
    (common, count), *others = Counter(
        values[name] for name in sorted(values, key=client_order)
    ).most_common()
    if others and others[0][1] == count:
        right = expected()
        common = right if right in values.values() else common
    return common, sorted((name for name in values if values[name] != common), key=client_order)


def shapes_of(arrays: Sequence[Sendable], sends: Sequence[Sent] | None = None) -> str:
    """Describe what must be equal in all replies: shapes and units of sums, or types and widths of other arrays."""
    if sends is None:
        return ", ".join(
            f"{array.integers.shape} in units of 2^{array.exponent}"
            if isinstance(array, GridArray)
            else str(array.shape)
            for array in arrays
        )
    plain = list(map(_entries, arrays))
    alike = [
        (
            ("rows", *array.shape[1:]) if sent.per == "row" else ("any",) * array.ndim,
            KINDS_OF_NUMBERS[array.dtype.kind],
        )
        for array, sent in zip(plain, sends, strict=True)
    ]
    return ", ".join(f"{shape} of {kind}".replace("'", "") for shape, kind in alike)


def add_up(replies: Sequence[Sequence[Sendable]]) -> list[Sendable]:
    """Add up replies, array by array: integers modulo 2^64, so the order does not matter and masks can cancel."""
    total: list[Sendable] = []
    for arrays in zip(*replies, strict=True):
        first, *others = map(on_grid, arrays)
        integers = first.integers.copy()
        for other in others:
            integers += other.integers
        total.append(GridArray(integers, first.exponent))
    return total


def beyond_63_bits(
    hidden: Sequence[bool],
    replies: Sequence[Sequence[Sendable]],
    before: Sequence[Sendable],
    after: Sequence[Sendable],
) -> list[int]:
    """Return which hidden arrays exceed 63 bits with their noise, so that their sums have wrapped around.

    ``before`` and ``after`` are the sums of the replies without and with noise. Only the noisy sum decides: it is
    computed without a limit, in two parts of 32 bits. So whether a run ends here depends only on what it releases.
    """
    too_large = []
    for index, is_hidden in enumerate(hidden):
        if not is_hidden:
            continue
        raw, noisy = on_grid(before[index]), on_grid(after[index])
        finer = raw.exponent - noisy.exponent
        noise = np.atleast_1d(noisy.integers) - np.atleast_1d(raw.refined(noisy.exponent).integers)
        high, low = (noise >> finer) >> 32, (noise >> finer) & _LOW
        for arrays in replies:
            integers = np.atleast_1d(on_grid(arrays[index]).integers)
            high += integers >> 32
            low += integers & _LOW
        high += low >> 32
        limit = 2 ** (31 - finer)
        if ((high >= limit) | (high < -limit)).any():
            too_large.append(index)
    return too_large


#: The lower half of 64 bits.
_LOW = 2**32 - 1


def values_of(arrays: Sequence[Sendable]) -> list[Array]:
    """Return the arrays that a protocol gets, in the units of the data."""
    return [array.values if isinstance(array, GridArray) else array for array in arrays]


#: A reply may be at most this many times as large as the median of the others: a larger one would dominate the result.
LARGEST_RATIO = 2.0**16

#: Floats count as zeros when replies are compared, if they are below this fraction of the client's largest array of the
#: same kind.
DUST = 2.0**-40

#: A client that has more than this fraction of all rows nearly decides the result alone.
LARGEST_PART = 0.8

#: The probability that the noise of one array exceeds its assumed reach.
TAIL = 2.0**-40

#: The largest number that a reply may hold if all other replies hold zeros: with larger ones, squares may overflow.
LARGEST_NUMBER = 2.0**500


def of_largest(name: str, part: float) -> str:
    """Return a sentence that says that a client has most rows."""
    return f"Client {name} says that it has {100 * part:.3g}% of all rows: the result is nearly its own."


class Inspection:
    """Checks the replies of one run: each alone, against the client's earlier replies, and against other clients.

    An array that noise will cover goes into the sum and nowhere else, because any decision based on it would be an
    answer without noise. Such an array is only checked for its form, and for errors that no honest client can make:
    negative counts, or a norm above the client's own bound. Other arrays are compared between clients.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        #: The number of columns of the rows; known once the clients have enrolled.
        self.n_columns = 0
        #: client -> its number of rows, where no noise covers it
        self.stated: dict[str, float] = {}
        self._n_rows: dict[str, tuple[float, float]] = {}  # client -> (fewest, most)
        # The last question, and how much one row can change each array of its answer.
        self._moved: tuple[Question | None, Sequence[Bound] | None] = None, None

    def checked(
        self, name: str, round_: Round, arrays: list[Sendable], n_summed: int = 0
    ) -> list[Sendable]:
        """Return the checked arrays of one client's reply; ``n_summed`` is the number of clients in the sum, or 0."""
        sends = () if round_.answer.keeps else round_.answer.sends
        hidden = self.hidden(round_)
        arrays = checked_arrays(
            name, arrays, sends, self.n_columns, n_summed=n_summed, hidden=hidden
        )
        if arrays:
            self.check_numbers(name, round_, arrays)
        return arrays

    def hidden(self, round_: Round) -> list[bool]:
        """Return which arrays must not influence any decision, because they do not have all of their noise yet.

        With noise="local" a reply is private when it arrives, so none of its arrays is hidden.
        """
        comes_later = self._settings.noise != "local"
        return [
            comes_later and release is not None and release.noise_multiplier > 0
            for release in round_.releases
        ]

    def check_numbers(self, name: str, round_: Round, arrays: Sequence[Sendable]) -> None:
        """Check that the client's rows, counts and norms are possible."""
        sends = round_.answer.sends
        n_entries = _check_lengths(name, sends, arrays)
        tails = list(map(self._tail, round_.releases, arrays))
        fewest, most = self._n_rows.get(name, (1.0, self._settings.most_rows))
        if not math.isnan(n_entries):
            if not fewest <= n_entries <= most:
                raise ReplyError(
                    f"client {name} sent entries for {n_entries:.0f} rows, but stated another number."
                )
            fewest = most = n_entries
        for sent, array, release, tail in zip(sends, arrays, round_.releases, tails, strict=True):
            if sent.counts == "labels":
                self._check_labels(name, sent, array)
            elif sent.is_positive or (sent.counts and sent.per == "client"):
                _check_counts(name, sent, array, tail)
            low, high = self._rows_in(sent, array, tail)
            if release is None and high < math.inf:
                self.stated[name] = low
            fewest, most = max(fewest, low), min(most, high)
            if fewest > most:
                raise ReplyError(
                    f"client {name} sent {sent.content}, which does not fit the number of rows that it stated."
                )
        if isinstance(round_, Sum):
            moved: Sequence[Bound | None] = self._moved_by(round_.question_for(name)) or [
                None
            ] * len(sends)
            for sent, array, release, tail, of_one_row in zip(
                sends, arrays, round_.releases, tails, moved, strict=True
            ):
                # Bounds of denormal numbers are rounded.
                slack = tail * _size(array) + most * math.ulp(0.0)
                if any(
                    _norm(array, n) > (bound + slack) * (1 + 1e-9)
                    for n, bound in self._bounds(release, of_one_row, most)
                ):
                    raise ReplyError(
                        f"client {name} sent {sent.content}, larger than its clipping allows for the rows that it "
                        "stated."
                    )
        self._n_rows[name] = fewest, most

    def suspects(self, round_: Round, summed: Summed, n_summed: int) -> NDArray[np.bool_]:
        """Return which clients' replies must be taken out of a sum and checked alone."""
        is_suspect = np.zeros(len(summed.nodes), dtype=bool)
        for sent, array, largest in zip(
            round_.answer.sends, summed.arrays, summed.largest, strict=True
        ):
            is_suspect |= sent.has_columns and array.integers.shape[-1:] != (self.n_columns,)
            if sent.counts != "once" and largest is not None:
                is_suspect |= largest > largest_in_sum(n_summed, array.exponent, None)
        return is_suspect

    def take(self, round_: Round, summed: Summed, names: Sequence[str]) -> None:
        """Note the numbers of rows of the clients whose replies arrived as one sum."""
        for sent, array, release in zip(
            round_.answer.sends, summed.arrays, round_.releases, strict=True
        ):
            one_row = GridArray(np.ones_like(array.integers).ravel()[:1])
            low, high = self._rows_in(sent, one_row, 0.0)
            if high == math.inf:
                continue
            for name, n_rows in zip(names, summed.n_rows.tolist(), strict=True):
                self._n_rows.setdefault(name, (low * n_rows, high * n_rows))
                if release is None:
                    self.stated[name] = low * n_rows

    def _moved_by(self, question: Question) -> Sequence[Bound] | None:
        """Return how much one row can change each array of an answer; None if only the client can know."""
        if self._moved[0] is not question:
            try:
                moved = question.moved(Known(n_columns=self.n_columns))
            except Exception:
                # The bound may need something that an earlier round left with a client.
                moved = None
            self._moved = question, moved
        return self._moved[1]

    def _bounds(
        self, release: Release | None, moved: Bound | None, n_rows: float
    ) -> list[tuple[str, float]]:
        """Return the largest norms of a client's array, from the bounds of one row and the client's number of rows."""
        bounds = []
        if release is not None and release.relation == "add-or-remove":
            n_changed = 1.0 if self._settings.privacy_unit == "client" else n_rows
            bounds.append((release.norm, n_changed * release.sensitivity))
        if moved is not None:
            bounds += [("L2", n_rows * moved.l2), ("L1", n_rows * moved.l1)]
            bounds += [] if moved.of_client is None else [("L2", moved.of_client)]
        return [(norm, bound) for norm, bound in bounds if bound < math.inf]

    def unlike(
        self,
        round_: Round,
        replies: Mapping[str, Sequence[Sendable]],
        messages: Sequence[Message],
        sums: Sequence[Summed] = (),
    ) -> dict[str, str]:
        """Explain which clients sent arrays with other shapes than most clients."""
        if not replies:
            return {}
        # Arrays that are added up must have the same shape. Arrays with an entry per row only need the same width.
        alike = None if isinstance(round_, Sum) else round_.answer.sends
        shapes = {name: shapes_of(arrays, alike) for name, arrays in replies.items()}
        if sums:  # the shapes follow from the message
            common: object = shapes_of(sums[0].arrays)
            unlike = [name for name in shapes if shapes[name] != common]
        else:
            common, unlike = unlike_most(shapes, lambda: self._expected_shapes(messages, alike))
        return {
            name: f"client {name} sent arrays of the shapes {shapes[name]} where most sent {common}."
            for name in unlike
        }

    def _expected_shapes(
        self, messages: Sequence[Message], alike: Sequence[Sent] | None
    ) -> str | None:
        """Return the shapes that a client with one row of zeros would send; None if it cannot answer."""
        context = Context(0, 0, UserConfig(), RecordDict(), UserConfig())
        data = ClientData(np.zeros((1, self.n_columns)))
        try:
            ins = next(message.ins for message in messages if message.kind == "round")
            stand_in = self._settings.client_type(data, name="stand-in", context=context)
            _, arrays = stand_in._answered(decode(ins.parameters), ins.config)
        except Exception:
            return None  # it may lack what an earlier round left with a client
        return shapes_of([on_grid(array) for array in arrays] if alike is None else arrays, alike)

    @property
    def largest(self) -> tuple[str, float] | None:
        """The client with the most stated rows, and its fraction of all rows; None with fewer than three clients."""
        total = math.fsum(self.stated.values())
        if len(self.stated) < 3 or total <= 0:
            return None
        name = max(self.stated, key=self.stated.__getitem__)
        return name, self.stated[name] / total

    @property
    def why_likely(self) -> str:
        """A sentence about the likely cause of a protocol's error, or ""."""
        return (
            f" {of_largest(*largest)}"
            if (largest := self.largest) and largest[1] > LARGEST_PART
            else ""
        )

    def outliers(
        self,
        round_: Round,
        replies: Mapping[str, Sequence[Sendable]],
        sums: Sequence[Summed],
        names: Sequence[Sequence[str]],
    ) -> dict[str, str]:
        """Explain which clients sent numbers so large that they would hide the others.

        Of two replies the larger is the outlier, because it would dominate the sum. Arrays that noise will cover are
        not compared. ``names`` has, for each sum, the clients whose replies are in it.
        """
        largest_ratio, outliers = self._settings.largest_ratio, dict[str, str]()
        hidden = self.hidden(round_)
        for index, (sent, release) in enumerate(
            zip(round_.answer.sends, round_.releases, strict=True)
        ):
            if hidden[index]:
                continue
            of_sums = [
                _magnitudes(sent, sum_.arrays[index], largest)
                for sum_ in sums
                if (largest := sum_.largest[index]) is not None
            ]
            sends = round_.answer.sends
            sizes = {
                name: _noticeable(sends, arrays, index)
                for name, arrays in replies.items()
                if name not in outliers
            }
            everything = np.concatenate([list(sizes.values()), *of_sums])
            if len(everything) < 2 or (len(everything) == 2 and everything.min() == 0):
                continue
            positive = np.sort(everything[everything > 0])
            # Whichever reply is left out, the median of the others is at least this positive number. So if the largest
            # reply is not too large compared with it, no reply is too large.
            if (
                not outliers
                and len(positive) > 1
                and positive[-1] <= largest_ratio * positive[(len(positive) - 2) // 2]
            ):
                continue
            for called, size in zip(names, of_sums, strict=True):
                sizes |= {
                    name: one
                    for name, one in zip(called, size.tolist(), strict=True)
                    if name not in outliers
                }
            ordered = sorted(size for size in sizes.values() if size > 0)
            for name in sorted(sizes, key=client_order):
                others = _median_without(ordered, sizes[name])
                array = replies[name][index] if name in replies else sums[0].arrays[index]
                floor = max(_floor(sent, array), self._tail(release, array))
                usual = max(others, floor)
                if sizes[name] > (largest_ratio * usual if usual > 0 else LARGEST_NUMBER):
                    outliers[name] = (
                        f"client {name} sent {sent.content}, more than {largest_ratio:,.0f} times as large as "
                        "most sent; look for a wrong value or another unit."
                    )
        return outliers

    def _check_labels(self, name: str, sent: Sent, array: Sendable) -> None:
        plain = _entries(array)
        if (
            plain.dtype.kind not in "iu"
            or not 0
            <= int(plain.min(initial=0))
            <= int(plain.max(initial=0))
            < self._settings.most_clusters
        ):
            raise ReplyError(
                f"client {name} sent {sent.content} that are not clusters of this run."
            )

    def _rows_in(self, sent: Sent, array: Sendable, tail: float) -> tuple[float, float]:
        """Return the fewest and the most rows that a client can have, given its counts."""
        is_clipped = self._settings.privacy_unit == "client" and not sent.counts_rows
        is_count = (
            (sent.counts or sent.counts_rows) and sent.per == "client" and sent.counts != "once"
        )
        if is_clipped or not is_count:
            return 0.0, math.inf
        plain = array.values if isinstance(array, GridArray) else array.astype(np.float64)
        slack = tail * plain.size + 1e-9 * float(np.abs(plain).sum())
        total = float(plain.sum())
        # If subjects are protected, a row may count less than 1, so the client may have more rows than it counts.
        is_least = sent.counts == "some rows" or self._settings.privacy_unit == "subject"
        return total - slack, math.inf if is_least else total + slack

    def _tail(self, release: Release | None, array: Sendable) -> float:
        """Return a bound on the noise in each entry of a client's array, in the array's units.

        Some entry exceeds the bound with a probability of at most TAIL. If clients add no noise, the bound is 0.
        """
        if release is None or release.scale == 0 or self._settings.noise == "server":
            return 0.0
        # A share of the noise has tails at most twice as heavy as the whole noise.
        log = math.log(4 * _size(array) / TAIL)
        reach = math.sqrt(2 * log) if release.mechanism == "gaussian" else log
        unit = float(np.ldexp(1.0, array.exponent)) if isinstance(array, GridArray) else 0.0
        return release.scale * reach + unit


def _check_lengths(name: str, sends: Sequence[Sent], arrays: Sequence[Sendable]) -> float:
    """Check that arrays with an entry per row, or per center, have equal lengths; return the number of rows, or NaN."""
    lengths: dict[str, int] = {}
    for sent, array in zip(sends, arrays, strict=True):
        shape = _entries(array).shape
        if sent.per != "row" and sent.reveals != "centers":
            continue
        kind = "row" if sent.per == "row" else "center"
        length = shape[0] if shape else -1
        if length < (0 if sent.counts == "some rows" else 1):
            raise ReplyError(
                f"client {name} sent {sent.content} of the shape {shape}, where each {kind} has an entry."
            )
        first = lengths.setdefault(kind, length)
        if length != first and (kind == "center" or length % max(first, 1)):
            raise ReplyError(
                f"client {name} sent {sent.content} with {length} entries where its other arrays have {first}."
            )
    is_part = any(sent.per == "row" and sent.counts == "some rows" for sent in sends)
    return float("nan") if is_part else float(lengths.get("row", math.nan))


def _check_counts(name: str, sent: Sent, array: Sendable, tail: float) -> None:
    plain = array.values if isinstance(array, GridArray) else array
    if sent.counts == "once" and not plain.size:
        raise ReplyError(f"client {name} sent {sent.content}, without a class.")
    if plain.size and float(plain.min()) < -tail:
        raise ReplyError(f"client {name} sent {sent.content} below 0.")
    if sent.counts == "once" and tail == 0 and float(plain.sum()) != 1.0:
        raise ReplyError(f"client {name} sent {sent.content}, and must set exactly one class.")


def _norm(array: Sendable, norm: str) -> float:
    """Return the L1 or the L2 norm, in the units of the array."""
    entries = np.asarray(_entries(array), dtype=np.float64).ravel()
    length = float(np.abs(entries).sum()) if norm == "L1" else math.sqrt(float(entries @ entries))
    return float(np.ldexp(length, array.exponent)) if isinstance(array, GridArray) else length


def _median_without(ordered: Sequence[float], left_out: float) -> float:
    """Return the median of sorted positive numbers without one of them; 0 if none is left."""
    left = len(ordered) - (left_out > 0)
    if left == 0:
        return 0.0
    gone = bisect.bisect_left(ordered, left_out) if left_out > 0 else len(ordered)
    low, high = (place + (place >= gone) for place in ((left - 1) // 2, left // 2))
    return (ordered[low] + ordered[high]) / 2


def _magnitude(sent: Sent, array: Sendable) -> float:
    """Return the largest absolute entry; for a magnitude sent as one of many bins, the power of two of its bin."""
    if sent.counts == "once":
        plain = _entries(array)
        # A class is a binary logarithm, so its power of two can be compared. The first class stands for no magnitude.
        place = int(np.argmax(plain))
        return math.ldexp(1.0, min(max(place - plain.size // 2, -1000), 1000)) if place else 0.0
    if isinstance(array, GridArray):
        return float(np.ldexp(float(array.largest), array.exponent))
    return float(np.abs(array.astype(np.float64)).max(initial=0.0))


def _noticeable(sends: Sequence[Sent], arrays: Sequence[Sendable], index: int) -> float:
    """Return the magnitude of one of a client's arrays; 0 for floats so small that they may be rounding errors.

    Copies of one row have a variance of nearly 0. Compared with it, any true variance would look like an outlier.
    """
    size, kind = _magnitude(sends[index], arrays[index]), sends[index].reveals
    if isinstance(arrays[index], GridArray):
        return size
    alike = [
        _magnitude(sent, array)
        for sent, array in zip(sends, arrays, strict=True)
        if sent.reveals == kind and not sent.counts and not isinstance(array, GridArray)
    ]
    return size if size > DUST * max(alike, default=0.0) else 0.0


def _magnitudes(sent: Sent, array: GridArray, largest: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return each client's magnitude in a sum, from its largest integer or, if one class counts, from that class."""
    if sent.counts == "once":
        powers = np.clip(largest - array.integers.size // 2, -1000, 1000)
        return np.where(largest > 0, np.ldexp(1.0, powers), 0.0)
    return np.ldexp(largest.astype(np.float64), array.exponent)


def _floor(sent: Sent, array: Sendable) -> float:
    """Return the size up to which no array is an outlier: the size of one row, or a count of one."""
    if sent.counts or sent.counts_rows:
        return 0.0 if sent.counts == "once" else 1.0
    return float(np.ldexp(1.0, array.exponent + BITS)) if isinstance(array, GridArray) else 0.0


def _entries(array: Sendable) -> Array:
    """Return the integers of an array on a grid, or the array itself."""
    return array.integers if isinstance(array, GridArray) else array


def _size(array: Sendable) -> int:
    return max(1, _entries(array).size)


def check_capacity(round_: Round, n_asked: int, n_shares: int) -> None:
    """Raise a ProtocolError if a sum over clients with one row each, and its noise, could exceed 63 bits.

    Sums over more rows are checked when replies arrive: no reply may exceed its share of the 63 bits.
    """
    if round_.answer.keeps:
        return
    largest_of_one_row = round_.question_for(None).largest_of_one_row()
    for sent, release, (largest, exponent) in zip(
        round_.answer.sends, round_.releases, largest_of_one_row, strict=False
    ):
        if largest > largest_in_sum(n_asked, exponent, release, n_shares):
            raise ProtocolError(
                f"'{round_.task}' asks {n_asked} clients for {sent.content}, whose sum with its noise could exceed 63 "
                "bits; ask fewer clients, take a larger epsilon, or choose a coarser unit."
            )


Table = dict[str, NDArray[np.int64]]

#: The most characters of a table of classes by clusters: enough for thousands of both.
_LONGEST_TABLE = 2**26


@dataclass(frozen=True)
class Evaluation:
    """One client's evaluation of a model on its rows."""

    cost: float
    n_rows: int
    table: Table | None  #: Numbers of rows by class and cluster; None if the client has no labels.


def checked_evaluation(
    name: str, res: EvaluateRes, *, n_clusters: int | None, most_rows: int = MOST_ROWS
) -> Evaluation | None:
    """Return a client's evaluation; None if nothing was asked (n_clusters is None)."""
    if n_clusters is None:
        return None
    n_rows, cost = res.num_examples, res.loss
    if (
        type(n_rows) is not int
        or not 1 <= n_rows <= most_rows
        or not isinstance(cost, (int, float))
        or not cost >= 0
    ):
        raise ReplyError(f"client {name} sent an impossible number of rows or cost.")
    table: Table | None = None
    if "table" in res.metrics:
        counts_by_class = parse_json(str(res.metrics["table"]), _LONGEST_TABLE)
        table = {str(name_of_class): np.array(counts) for name_of_class, counts in counts_by_class}
        for row in table.values():
            if (
                row.shape != (n_clusters,)
                or row.dtype.kind != "i"
                or row.min() < 0
                or row.max() > n_rows
            ):
                raise ReplyError(f"client {name} sent an impossible table of classes.")
        if sum(int(row.sum()) for row in table.values()) != n_rows or len(table) != len(
            counts_by_class
        ):
            raise ReplyError(
                f"client {name} sent a table of classes that does not fit its number of rows."
            )
    return Evaluation(float(cost), n_rows, table)


def evaluation_of(evaluations: Sequence[Evaluation]) -> dict[str, float]:
    """Return cost, number of rows, and agreement of clusters and classes. Returns {} if no client replied."""
    if not evaluations:
        return {}
    cost = sum(evaluation.cost for evaluation in evaluations)
    scores = {"cost": cost} if math.isfinite(cost) else {}
    scores["n_rows"] = float(sum(evaluation.n_rows for evaluation in evaluations))
    tables = [evaluation.table for evaluation in evaluations if evaluation.table is not None]
    return scores | agreement(add_tables(tables)) if tables else scores
