"""The fields that a message may have, and the question of a parsed message.

A server may send anything. A client refuses a message with an unknown field. If it ignored the field, the server could
ask one question twice in messages that look different. For the same reason two questions are compared by their meaning,
and not by how they are written.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from flower_fedclust.engine.by_row import ByRow, Finish, Finisher, View, finished_answer
from flower_fedclust.engine.rounds import Array, Askable, ProtocolError, Question, Scalar
from flower_fedclust.engine.table_answers import ByTableRow, preparation_from
from flower_fedclust.engine.wire import EMPTY
from flower_fedclust.exact.capacity import LARGEST_BOUND
from flower_fedclust.exact.grid import MOST_ROWS
from flower_fedclust.exact.rows import Frame
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.outside import parse_json
from flower_fedclust.secure.keys import digest
from flower_fedclust.tables.schema import Schema

#: The first task of every run: each client gives its name and its columns.
ENROL = "enrol"

#: The field of a message that names the step of a secure sum.
SECURE = "secure"

#: Fields of every message, and their types.
OF_EVERY_MESSAGE: Mapping[str, type] = {"format": int, "client": str, "run": str, "columns": str}

#: Fields of a message of a round.
OF_ROUND: Mapping[str, type] = {
    **OF_EVERY_MESSAGE,
    **{"round": int, "task": str, EMPTY: bool, "n_clients": int, "plan": str},
    # Fields of the first round, in which clients enrol.
    **{"schema": str, "n_columns": int, "goes_on": bool},
    # Fields of a question.
    **{"arguments": str, "frame": int, "finish": str, "view": str, "most_rows": int},
    **{"rows": str, "parts": str, "n_shares": int, SECURE: str},
}

#: Fields of a message with the model.
OF_MODEL: Mapping[str, type] = {
    **OF_EVERY_MESSAGE,
    **{"model": str, "evaluate": bool, "share": bool, "clusters": str, "survival": str},
}

#: Fields of a question's view (_OF_VIEW), and of a step of a secure sum (_OF_STEP).
_OF_VIEW = {"task": str, "arguments": str, "frame": int, "finish": str, "view": str, "arrays": int}
_OF_STEP = {"step": str, "names": list, "clients": list}

#: A view may be of another view's rows, and so on, up to this depth.
_MOST_VIEWS = 8


def check_is_ours(config: Mapping[str, Any], name: str) -> None:
    """Raise a ProtocolError if a message is not from any version of this package.

    A polite reply instead of an error would not do: another package's strategy would count it as a success.
    """
    if "format" not in config:
        raise ProtocolError(
            f"client {name} answers strategies of flower-fedclust, and this message is not from one: give the server a "
            "strategy of this package, or this node another client."
        )


def check_fields(config: Mapping[str, Any], known: Mapping[str, type], name: str) -> None:
    """Raise a DataError if a message to a client has a field that is not known, or one of another type."""
    _check(config, known, f"client {name}: the message")
    if SECURE in config:
        _check(
            parse_json(str(config[SECURE])),
            _OF_STEP,
            f"client {name}: the step of a secure sum in the message",
        )
    view, n_views = config.get("view"), 0
    while view is not None:
        n_views += 1
        about = parse_json(str(view))
        if n_views > _MOST_VIEWS:
            raise DataError(
                f"client {name}: the message has more than {_MOST_VIEWS} views of views."
            )
        _check(about, _OF_VIEW, f"client {name}: the view in the message")
        view = about.get("view")


def _check(found: object, known: Mapping[str, type], what: str) -> None:
    if not isinstance(found, Mapping):
        raise DataError(f"{what} is not an object with fields.")
    for field, value in found.items():
        if field not in known:
            shown = "".join(letter if letter.isprintable() else "?" for letter in str(field)[:60])
            raise DataError(
                f"{what} has a field '{shown}' that this client does not know; remove what adds it, and install the "
                "same version of flower-fedclust on both sides."
            )
        if not isinstance(value, known[field]) or (known[field] is int and isinstance(value, bool)):
            raise DataError(
                f"{what} has a field '{field}' that is not of the type {known[field].__name__}."
            )


# The question in a message.


def _read_frame(arrays: list[Array]) -> Frame:
    """Return the frame (origin, radius and norm for clipping) that arrays of a message hold."""
    if len(arrays) != 2 or arrays[0].ndim != 1 or arrays[1].shape != (2,):
        raise ProtocolError(
            "a message does not hold the origin and the radius for clipping that it announces."
        )
    frame = Frame.of_arrays(*(np.asarray(array, dtype=np.float64) for array in arrays))
    if not (
        np.isfinite(frame.origin).all() and 0 < frame.radius < math.inf and frame.norm in (1, 2)
    ):
        raise ProtocolError(
            "a message clips rows to a ball with an impossible origin, radius or norm."
        )
    return frame


def read_question(
    asked: Askable[..., Any], arrays: list[Array], fields: Mapping[str, Any], owner: type
) -> Question:
    """Undo ``Question.to_wire``; ``owner`` is the class whose views a message may name.

    Raises a DataError if the question's function does not take the arrays and arguments of the message.
    """
    arguments = _read_arguments(str(fields.get("arguments", "{}")))
    inner: Question | None = None
    if "view" in fields:
        about = parse_json(str(fields["view"]))
        n_arrays = int(about["arrays"])
        named_view = getattr(owner, str(about["task"]), None)
        if not isinstance(named_view, View):
            raise DataError(f"{owner.__name__} has no view of its rows called '{about['task']}'.")
        if not 0 < n_arrays <= len(arrays):
            raise ProtocolError("a message does not describe its view correctly.")
        stand_in = ByRow(named_view.function, {})  # type: ignore[arg-type]
        inner = replace(read_question(stand_in, arrays[-n_arrays:], about, owner), asks=named_view)
        arrays = arrays[:-n_arrays]
    n_frame = int(fields.get("frame", 0))
    if not 0 <= n_frame <= len(arrays):
        raise ProtocolError(
            "a message does not hold the origin and the radius for clipping that it announces."
        )
    frame = _read_frame(arrays[len(arrays) - n_frame :]) if n_frame else None
    asked_arrays = tuple(arrays[: len(arrays) - n_frame])
    most_rows = read_most_rows(fields)
    if not isinstance(asked, ByRow):
        question = Question(asked.answer, asked_arrays, arguments, asked, most_rows=most_rows)
    else:
        has_finish, n_sent = "finish" in fields, len(asked.answer.sends)
        finish = _read_finish(fields["finish"], n_sent) if has_finish else None
        answer = asked.answer if finish is None else finished_answer(asked.answer, finish)
        question = Question(answer, asked_arrays, arguments, asked, frame, inner, finish, most_rows)
    _bound(asked.function, question)
    return question


def read_most_rows(fields: Mapping[str, Any]) -> int:
    """Return the bound on a client's rows that a message states."""
    most_rows = int(fields.get("most_rows", MOST_ROWS))
    if not MOST_ROWS <= most_rows <= LARGEST_BOUND:
        raise ProtocolError(
            f"a message allows {most_rows} rows; it may be from {MOST_ROWS} to {LARGEST_BOUND}."
        )
    return most_rows


def _read_finish(text: Any, n_arrays: int) -> Finish:
    kind, at_most = parse_json(str(text))
    bounds = tuple(None if bound is None else float(bound) for bound in at_most)
    if kind not in ("mean", "total") or len(bounds) != n_arrays:
        raise ProtocolError(
            "a message says in an unknown form how a client finishes its sums; known are 'mean' and 'total', with a "
            "norm or null for each array."
        )
    if not all(bound is None or 0 < bound < math.inf for bound in bounds):
        raise ProtocolError(
            "a message clips a client's sums to an impossible norm; a norm is positive and finite."
        )
    return Finish(kind, bounds)


@lru_cache(maxsize=8)
def _read_arguments(text: str) -> Mapping[str, Scalar]:
    """Parse the arguments of a message; the result is cached, because all clients of a process get the same text."""
    return MappingProxyType(parse_json(text))


# The hash of a parsed message.


def hash_of_schema(schema: Schema | None) -> bytes:
    """Return the hash of an enrolment; its schema is the only field that changes what a client does later."""
    return digest(b"schema", b"" if schema is None else schema.to_json().encode())


def hash_of_question(
    question: Question, more: Iterable[str], led: Sequence[tuple[str, bytes]]
) -> bytes:
    """Return the hash of what a message asks.

    Messages with the same meaning have the same hash: spaces in a text, the type in which a number is written,
    whether an argument is given or left at its default, and the class through which a method is named change nothing.

    Parameters
    ----------
    question : Question
    more : iterable of str
        What else changes the answer: kept rows, noise, the order of the columns.
    led : sequence of (str, bytes)
        The keys and hashes of earlier questions whose results the answer uses.
    """
    earlier = [part for key, asked_before in led for part in (key.encode(), asked_before)]
    own, said = list(_said(question)), [text.encode() for text in more]
    return digest(b"question", len(own), *own, len(said), *said, *earlier)


def _said(question: Question) -> Iterable[bytes]:
    """Yield everything that a question says, as bytes in a fixed order."""
    function = question.asks.function
    yield f"{function.__module__}.{function.__qualname__}".encode()
    if isinstance(question.asks, ByTableRow):
        yield from map(_plain, question.arrays[:1])
    for name, value in _bound(function, question).items():
        yield name.encode()
        if isinstance(value, tuple):
            yield f"{len(value)} arrays".encode()
            yield from map(_plain, value)
        elif isinstance(value, np.ndarray):
            yield _plain(value)
        else:
            yield json.dumps(_number(value)).encode()
    frame = [] if question.frame is None else question.frame.arrays
    yield f"frame of {len(frame)}".encode()
    yield from map(_plain, frame)
    yield repr(question.finish and (question.finish.kind, question.finish.at_most)).encode()
    if question.most_rows != MOST_ROWS:
        yield f"{question.most_rows} rows".encode()
    if question.view is not None:
        yield b"view"
        yield from _said(question.view)


def _bound(function: Callable[..., Any], question: Question) -> dict[str, Any]:
    """Return the arrays and arguments of a question by name, with defaults for those that are missing.

    Raises a DataError if the function does not take them.
    """
    # A function's first argument comes from the client: the client itself, its rows or its table. A finish has two such
    # arguments: totals and numbers of rows.
    n_first = 2 if isinstance(question.asks, Finisher) else 1
    arrays = question.arrays[1:] if isinstance(question.asks, ByTableRow) else question.arrays
    try:
        bound = _signature(function).bind(*(None,) * n_first, *arrays, **question.arguments)
    except TypeError as error:
        raise DataError(
            f"'{question.answer.task}' does not take the arguments of the message ({error})."
        ) from None
    bound.apply_defaults()
    return dict(list(bound.arguments.items())[n_first:])


_signature = lru_cache(maxsize=256)(inspect.signature)


def _number(value: Any) -> Any:
    """Return a number as a float if the float has the same value; return anything else unchanged."""
    if isinstance(value, Mapping):
        return {str(name): _number(entry) for name, entry in value.items()}
    if not isinstance(value, bool | int | float):
        return value
    try:
        as_float = float(value)
    except OverflowError:
        return value
    return as_float + 0.0 if as_float == value else value


def _plain(array: Array) -> bytes:
    """Return an array as bytes; equal numbers give the same bytes, and so do two texts with the same meaning."""
    array = np.asarray(array)
    if array.dtype == np.uint8 and array.ndim == 1:
        return _text(array.tobytes())
    floats = array.astype(np.float64) + 0.0  # -0.0 is 0.0
    same = array.dtype.kind == "f" or bool((floats < 2.0**53).all() and (floats > -(2.0**53)).all())
    plain = floats if same else array.astype(np.uint64 if array.dtype.kind == "u" else np.int64)
    return f"{plain.dtype.str} {plain.shape} ".encode() + np.ascontiguousarray(plain).tobytes()


@lru_cache(maxsize=64)
def _text(content: bytes) -> bytes:
    """Return bytes in one standard form if they are JSON, a schema or a preparation; unchanged otherwise."""
    readers: list[Callable[[], str]] = [
        lambda: json.dumps(preparation_from(content).to_dict()),
        lambda: Schema.from_json(content.decode()).to_json(),
        lambda: json.dumps(parse_json(content)),
    ]
    for read in readers:
        try:
            return b"text " + read().encode()
        except Exception:  # it is not of this kind
            continue
    return b"bytes " + content
