"""Messages as bytes: arrays in NumPy's format, integers with their units, and a hash of each reply."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from io import BytesIO
from typing import Any, TypeVar

import numpy as np
from flwr.common import EvaluateRes, FitRes, Parameters
from numpy.typing import NDArray

from flower_fedclust.engine.rounds import Array
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.outside import parse_json
from flower_fedclust.privacy.noise import Sendable

#: The longest axis of an array without entries. Only the header states its length, so any number could be there.
_LONGEST_EMPTY = 2**20


def encode(arrays: Sequence[Array]) -> Parameters:
    """Return the arrays as Flower's Parameters, with the same bytes as Flower's own function.

    Thousands of clients send arrays of the same shape and type, so headers are cached, here and in :func:`decode`.
    """
    tensors = []
    for raw in arrays:
        array = np.asarray(raw)
        by_columns = array.flags.f_contiguous and not array.flags.c_contiguous
        header = _written_header(array.shape, by_columns, array.dtype.str)
        tensors.append(header + array.tobytes("F" if by_columns else "C"))
    return Parameters(tensors, "numpy.ndarray")


def decode(parameters: Parameters) -> list[Array]:
    """Return the arrays that Parameters hold, read-only and without a copy."""
    arrays = []
    try:
        for tensor in parameters.tensors:
            # A header begins with 8 bytes for the magic string and the version, and its own length: 2 bytes in format
            # 1.0, later 4.
            width = 2 if tensor[6:7] == b"\x01" else 4
            start = 8 + width + int.from_bytes(tensor[8 : 8 + width], "little")
            shape, by_columns, dtype = _header(tensor[:start])
            if min(shape, default=0) < 0 or (0 in shape and max(shape) > _LONGEST_EMPTY):
                raise ValueError("its shape does not fit its bytes.")
            array = np.frombuffer(tensor, dtype=dtype, offset=start)
            arrays.append(array.reshape(shape, order="F" if by_columns else "C"))
    except Exception as error:
        # Anybody may have sent these bytes, so NumPy may raise an error of any class.
        raise ValueError(f"not an array in NumPy's format ({error})") from error
    return arrays


def as_numbers(array: Array) -> Array:
    """Return another party's array with floats as float64 and integers unchanged."""
    if array.dtype.kind not in "iubf":
        raise ValueError(f"an array of the type {array.dtype} was sent; send numbers.")
    wanted = np.dtype(np.float64) if array.dtype.kind == "f" else array.dtype.newbyteorder("=")
    return array.astype(wanted, copy=False)


def size_of(parameters: Parameters) -> int:
    """Return how many bytes the arrays take."""
    return sum(map(len, parameters.tensors))


def as_bytes(text: str) -> NDArray[np.uint8]:
    """Return a text as an array, as it is sent and remembered."""
    return np.frombuffer(text.encode(), dtype=np.uint8)


def as_text(array: NDArray[np.uint8]) -> str:
    """Undo :func:`as_bytes`."""
    return np.asarray(array, dtype=np.uint8).tobytes().decode()


@lru_cache(maxsize=1024)
def _written_header(shape: tuple[int, ...], by_columns: bool, descr: str) -> bytes:
    stream = BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"shape": shape, "fortran_order": by_columns, "descr": descr}
    )
    return stream.getvalue()


@lru_cache(maxsize=1024)
def _header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    stream = BytesIO(header)
    version = np.lib.format.read_magic(stream)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, fortran_order, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("an array of Python objects was sent; only numbers are read.")
    return shape, fortran_order, dtype


#: Flower's mods cannot read a message without arrays. So a message that has none carries a placeholder, and this field
#: says so.
EMPTY = "empty"
TO_CLIENT: list[Array] = [np.zeros(1)]
TO_SERVER: list[Array] = [np.ones(1)]

#: What a client sends when it enrols. A mod that clips or adds noise, or a wrapper around the strategy, may change
#: arrays on their way. It then changes this array, too, and the reply's hash shows it before any question about rows.
PROBE: list[Array] = [np.array([2.0**80 / 3, 2.0**53 - 1, 1.0, -1e-9 / 7])]


class ChangedError(ValueError):
    """Something between a client half and the server has changed the arrays of the client."""

    def __init__(self) -> None:
        super().__init__(
            "a reply that something has changed on the way to the server, as a mod of its ClientApp does that clips or "
            "adds noise, or a wrapper around the strategy; remove it, and give epsilon to the strategy instead"
        )


#: The metric of a reply that holds the hash of what the client half has sent.
HASH = "hash"

#: The metric of a reply that holds the exponents of its arrays' units, as JSON; null for an array without a unit.
EXPONENTS = "exponents"

#: The other metrics that the hash covers. It cannot cover the last line of a site's ledger, which is added later.
_COUNTED = ("format", "client", "columns", EXPONENTS, "table")

R = TypeVar("R", FitRes, EvaluateRes)


def hashed(
    arrays: Sequence[Array], facts: Mapping[str, Any], numbers: Sequence[float] = ()
) -> dict[str, Any]:
    """Return the facts of a reply with the hash of its arrays, of these facts, and of an evaluation's numbers.

    The hash detects accidental changes. Anybody who changes a reply on purpose can compute a new hash.
    """
    digest = hashlib.sha256(repr([*numbers, *map(facts.get, _COUNTED)]).encode())
    for array in arrays:
        digest.update(_described(array.dtype.str, array.shape))
        digest.update(array.tobytes())
    return {**facts, HASH: digest.hexdigest()}


def with_hash(res: R) -> R:
    """Return a reply with a new hash of its contents."""
    return replace(res, metrics=hashed(*_contents(res)))


def unchanged_arrays(res: FitRes | EvaluateRes) -> list[Sendable]:
    """Return the arrays of a reply, in their units: the only place where a reply is decoded.

    Raises a ChangedError unless the reply arrived as it was sent, and a ValueError if its arrays cannot be read.
    """
    arrays, facts, numbers = _contents(res)
    if hashed(arrays, facts, numbers)[HASH] != facts.get(HASH):
        raise ChangedError
    return received_arrays(arrays, facts)


def _contents(res: FitRes | EvaluateRes) -> tuple[list[Array], Mapping[str, Any], Sequence[float]]:
    """Return the decoded arrays of a reply, its facts, and the numbers of an evaluation."""
    if isinstance(res, EvaluateRes):
        return [], res.metrics, (res.loss, res.num_examples)
    return [] if res.metrics.get(EMPTY) else decode(res.parameters), res.metrics, ()


@lru_cache(maxsize=1024)
def _described(dtype: str, shape: tuple[int, ...]) -> bytes:
    return f"{dtype}{shape}".encode()


#: The largest exponent, in magnitude, that a unit of floats can have.
EXTREME_EXPONENT = 4000


def sent_arrays(arrays: Sequence[Sendable]) -> tuple[list[Array], dict[str, str]]:
    """Return the arrays to send, with grid arrays as integers, and a metric with their units."""
    exponents = tuple(array.exponent if isinstance(array, GridArray) else None for array in arrays)
    plain = [
        array.integers if isinstance(array, GridArray) else np.asarray(array) for array in arrays
    ]
    return plain, {EXPONENTS: _written(exponents)} if any(
        exponent is not None for exponent in exponents
    ) else {}


# Cached, as thousands of replies have the same units.
_written = lru_cache(maxsize=64)(json.dumps)
_read = lru_cache(maxsize=64)(parse_json)


def received_arrays(arrays: Sequence[Array], metrics: Mapping[str, Any]) -> list[Sendable]:
    """Undo :func:`sent_arrays`."""
    exponents = _read(str(metrics.get(EXPONENTS, "null")))
    if exponents is None:
        return list(arrays)
    if not isinstance(exponents, list) or len(exponents) != len(arrays):
        raise ValueError("a list of units of another length than its arrays")
    received: list[Sendable] = []
    for array, exponent in zip(arrays, exponents, strict=True):
        if exponent is None:
            received.append(array)
        elif (
            type(exponent) is not int or abs(exponent) > EXTREME_EXPONENT or array.dtype != np.int64
        ):
            raise ValueError(
                "an array in a unit that is not a power of two, or not of 64-bit integers"
            )
        else:
            received.append(GridArray(array, exponent))
    return received
