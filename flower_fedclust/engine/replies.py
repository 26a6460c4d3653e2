"""What came back from the clients: checked one by one, compared with one another, and added up."""

from __future__ import annotations

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from flwr.common import Code, EvaluateRes, FitRes, Parameters

from flower_fedclust.engine.rounds import Array, Sent
from flower_fedclust.engine.wire import decode, size_of
from flower_fedclust.engine.wrappers import EMPTY
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.format import FormatError, check_format
from flower_fedclust.outside import parse_json
from flower_fedclust.privacy.noise import Sendable, noise_exponent, on_grid
from flower_fedclust.privacy.releases import Release

log = logging.getLogger(__name__)

#: Where a reply names the units of its arrays: exponents as JSON, null for one that is not on a grid.
EXPONENTS = "exponents"

#: What NumPy's letters stand for.
KINDS_OF_NUMBERS = {"f": "floats", "i": "integers", "u": "integers", "b": "truth values"}

#: No unit that fits rows of floats is beyond these.
EXTREME_EXPONENT = 4000


#: Noise never comes out larger than so many times its scale: the chance is below 2^-90.
NOISE_REACH = 64.0

#: What a client says of why it cannot answer is cut off after so many letters.
LONGEST_EXCUSE = 400


class ReplyError(Exception):
    """A reply that cannot be used; the message is one sentence that names the client."""


class RefusalError(ReplyError):
    """A client says why it cannot answer."""

    def __init__(self, reason: str, *, missed: bool) -> None:
        super().__init__(reason)
        self.missed = missed  #: Whether the reason is that it was not in an earlier round.


T = TypeVar("T")
R = TypeVar("R", FitRes, EvaluateRes)


def read_reply(name: str, res: R, check: Callable[[str, R], T]) -> T:
    """Return what a check makes of a reply. The server looks at what a client says in this way, and in no other.

    Whatever a check stumbles over is the reply's fault: any bytes can be in any field.

    Raises
    ------
    RefusalError
        If the client says that it cannot answer.
    ReplyError
        If the reply cannot be used.
    """
    try:
        if res.status.code != Code.OK:
            raise ReplyError(f"client {name} answered with an error: {one_line(res.status.message)}.")
        check_format(res.metrics.get("format"), f"client {name} sent a reply that", "this server")
        if "failure" in res.metrics:
            raise RefusalError(_excuse(name, res.metrics["failure"]), missed=bool(res.metrics.get("missed")))
        return check(name, res)
    except ReplyError:
        raise
    except FormatError as error:
        raise ReplyError(str(error)) from None
    except Exception as error:
        log.info("the reply of client %s cannot be read", name, exc_info=error)
        raise ReplyError(f"client {name} sent a reply that cannot be read ({type(error).__name__}).") from None


def bytes_of(res: FitRes | EvaluateRes) -> int:
    """Return how many bytes the arrays of a reply take; 0 where it has none, or nobody can say."""
    try:
        return 0 if isinstance(res, EvaluateRes) or res.metrics.get(EMPTY) else size_of(res.parameters)
    except Exception:
        return 0


def ledger_of(metrics: object) -> str:
    """Return the number and the hash of the last line of a client's ledger; empty where it says no such thing."""
    said = metrics.get("ledger") if isinstance(metrics, Mapping) else None
    return said if isinstance(said, str) and re.fullmatch("[0-9]{1,15}:[0-9a-f]{64}", said) else ""


def one_line(text: object) -> str:
    """Return what somebody else says, whatever it is, as printable letters of one line that is not too long."""
    given = str(text) if isinstance(text, (str, BaseException)) else f"something of type {type(text).__name__}"
    said = " ".join(given[: 4 * LONGEST_EXCUSE].split())
    said = "".join(letter if letter.isprintable() else "?" for letter in said)
    return said if len(said) <= LONGEST_EXCUSE else f"{said[:LONGEST_EXCUSE]}..."


def _excuse(name: str, excuse: object) -> str:
    """Return why a client says that it cannot answer, so that it is not taken for what the server says of another."""
    said = one_line(excuse)
    return said if said.startswith(f"client {name}") and len(said) <= LONGEST_EXCUSE else f"client {name} says: {said}"


def client_order(name: str) -> tuple[int, int, str]:
    """Return the key by which clients are sorted: names that are numbers by their value, before all others."""
    return (0, int(name), name) if name.isdecimal() else (1, 0, name)


def sent_arrays(arrays: Sequence[Sendable]) -> tuple[list[Array], dict[str, str]]:
    """Return what goes over the wire: the arrays, those on a grid as integers, and a metric that has their units."""
    exponents = tuple(array.exponent if isinstance(array, GridArray) else None for array in arrays)
    plain = [array.integers if isinstance(array, GridArray) else np.asarray(array) for array in arrays]
    return plain, {EXPONENTS: _written(exponents)} if any(exponent is not None for exponent in exponents) else {}


@lru_cache(maxsize=64)
def _written(exponents: tuple[int | None, ...]) -> str:
    """Write units once for the thousands of replies that have the same ones; so it is with reading."""
    return json.dumps(exponents)


@lru_cache(maxsize=64)
def _read(exponents: str) -> Any:
    return parse_json(exponents)


def received_arrays(arrays: Sequence[Array], metrics: Mapping[str, Any]) -> list[Sendable]:
    """Undo :func:`sent_arrays`.

    Raises
    ------
    ValueError
        If the units are not one an array, or one that no grid has, or if the array in a unit is not of int64.
    """
    exponents = _read(str(metrics.get(EXPONENTS, "null")))
    if exponents is None:
        return list(arrays)
    if not isinstance(exponents, list) or len(exponents) != len(arrays):
        raise ValueError("units that are not one an array")
    found: list[Sendable] = []
    for array, exponent in zip(arrays, exponents, strict=True):
        if exponent is None:
            found.append(array)
        elif type(exponent) is not int or abs(exponent) > EXTREME_EXPONENT or array.dtype != np.int64:
            raise ValueError("an array in a unit that is not made of integers of 64 bits and a power of two")
        else:
            found.append(GridArray(array, exponent))
    return found


def largest_in_sum(n_clients: int, exponent: int, release: Release | None, n_shares: int = 1) -> int:
    """Return the largest integer that each client may send, so that their sum and its noise have at most 63 bits.

    Parameters
    ----------
    n_clients : int
        How many are summed.
    exponent : int
        Of the unit of what they send.
    release : Release or None
        Whose noise is still to be added.
    n_shares : int, default=1
        Among how many clients the noise is divided.
    """
    largest, finer = 2**63 - 1, 0
    if release is not None and release.scale > 0:
        noise_unit = noise_exponent(release, n_shares, exponent)
        finer = exponent - noise_unit
        with np.errstate(over="ignore"):
            reach = NOISE_REACH * float(np.ldexp(release.scale, -noise_unit)) * max(1.0, n_clients / n_shares)
        largest -= min(largest, math.ceil(min(reach, 2.0**63)))
    return (largest >> finer) // max(n_clients, 1)


def checked_reply(
    name: str,
    parameters: Parameters,
    metrics: Mapping[str, Any],
    sends: Sequence[Sent],
    n_columns: int,
    *,
    n_summed: int = 0,
    releases: Sequence[Release | None] = (),
) -> list[Sendable]:
    """Return the arrays of one client's reply.

    Parameters
    ----------
    name : str
        The client.
    parameters : Parameters
    metrics : mapping
        Of the reply; has the units of the arrays that are on a grid.
    sends : sequence of Sent
        What was asked for.
    n_columns : int
        Of the rows.
    n_summed : int, default=0
        Over how many clients the arrays are to be summed, so that all must be on a grid; 0 where they are not.
    releases : sequence of (Release or None)
        Whose noise the server adds to the sums.

    Raises
    ------
    ReplyError
        If the bytes are not arrays, if there are more or fewer than were asked for, or if one is not made of finite
        numbers, has other columns than the rows, or is to be summed and not on a grid, or too large to be.
    """
    n_sent = 0 if metrics.get(EMPTY) else len(parameters.tensors)
    if n_sent != len(sends):
        raise ReplyError(f"client {name} sent {n_sent} arrays where {len(sends)} were asked for.")
    try:
        arrays = received_arrays(decode(parameters), metrics) if n_sent else []
    except ValueError as error:
        raise ReplyError(f"client {name} sent {one_line(error)}.") from None
    for index, (array, sent) in enumerate(zip(arrays, sends, strict=True)):
        plain = array.integers if isinstance(array, GridArray) else array
        if sent.has_columns and plain.shape[-1:] != (n_columns,):
            raise ReplyError(
                f"client {name} sent an array of the shape {plain.shape} where the rows have {n_columns} columns."
            )
        if plain.dtype.kind not in KINDS_OF_NUMBERS:
            raise ReplyError(f"client {name} sent an array that is not made of finite numbers.")
        if not isinstance(array, GridArray):
            arrays[index] = array = plain = _usual(name, plain)
        if n_summed:
            try:
                arrays[index] = whole = on_grid(array)
            except TypeError:
                message = f"client {name} sent {sent.content} as floats; what is summed must be integers in a unit."
                raise ReplyError(message) from None
            release = releases[index] if releases else None
            if whole.largest > largest_in_sum(n_summed, whole.exponent, release):
                raise ReplyError(f"client {name} sent {sent.content}, so large that the sum would not be what it is.")
    return arrays


def _usual(name: str, array: Array) -> Array:
    """Return finite numbers in the type in which a protocol computes, and in the order of bytes of this machine."""
    kind = array.dtype.kind
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
    """Return the value that most clients have, and the clients that have another.

    Parameters
    ----------
    values : mapping of str to anything hashable
        By client, not empty.
    expected : callable, optional
        Asked where two values are equally frequent: which of them should be. Where that does not say, it is that of the
        first client.
    """
    (common, count), *others = Counter(values[name] for name in sorted(values, key=client_order)).most_common()
    if others and others[0][1] == count:
        right = expected()
        common = right if right in values.values() else common
    return common, sorted((name for name in values if values[name] != common), key=client_order)


def shapes_of(arrays: Sequence[Sendable], sends: Sequence[Sent] | None = None) -> str:
    """Return the shapes, the types and the units of arrays that must be alike, for messages.

    Parameters
    ----------
    arrays : sequence of GridArray or ndarray
    sends : sequence of Sent, optional
        Where the replies are not summed: of an array with an entry for every row only the rest of the shape counts, and
        of others the number of dimensions.
    """
    if sends is None:
        return ", ".join(
            f"{array.integers.shape} in units of 2^{array.exponent}"
            if isinstance(array, GridArray)
            else str(array.shape)
            for array in arrays
        )
    plain = [array.integers if isinstance(array, GridArray) else array for array in arrays]
    alike = [
        (("rows", *array.shape[1:]) if sent.per == "row" else ("any",) * array.ndim, KINDS_OF_NUMBERS[array.dtype.kind])
        for array, sent in zip(plain, sends, strict=True)
    ]
    return ", ".join(f"{shape} of {kind}".replace("'", "") for shape, kind in alike)


def add_up(replies: Sequence[Sequence[Sendable]]) -> list[Sendable]:
    """Add the replies up, array by array: integers modulo 2^64, so that there is no order, and masks could cancel."""
    total: list[Sendable] = []
    for arrays in zip(*replies, strict=True):
        first, *others = map(on_grid, arrays)
        integers = first.integers.copy()
        for other in others:
            integers += other.integers
        total.append(GridArray(integers, first.exponent))
    return total


def values_of(arrays: Sequence[Sendable]) -> list[Array]:
    """Return what a protocol gets: numbers in the units of the data."""
    return [array.values if isinstance(array, GridArray) else array for array in arrays]
