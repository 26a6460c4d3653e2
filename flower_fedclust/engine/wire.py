"""Arrays as bytes, in NumPy's own format, as Flower sends them; and texts as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
from flwr.common import Parameters
from numpy.typing import NDArray

Array = NDArray[Any]

#: Of an array without entries nothing but its header says how long its axes are; whoever reads it may make arrays so.
_LONGEST_EMPTY = 2**20


def encode(arrays: Sequence[Array]) -> Parameters:
    """Return the arrays as Flower's Parameters: the bytes that Flower's own function makes.

    The header of an array follows from its shape and type, and thousands of clients send the same ones: it is written
    once. So it is with reading, in :func:`decode`.
    """
    tensors = []
    for given in arrays:
        array = np.asarray(given)
        by_columns = array.flags.f_contiguous and not array.flags.c_contiguous
        header = _written_header(array.shape, by_columns, array.dtype.str)
        tensors.append(header + array.tobytes("F" if by_columns else "C"))
    return Parameters(tensors, "numpy.ndarray")


def decode(parameters: Parameters) -> list[Array]:
    """Return the arrays that Parameters hold, read-only and without a copy.

    Raises
    ------
    ValueError
        If the bytes are not an array in NumPy's format, or one of Python objects, or if their shape says what their
        number does not.
    """
    try:
        return [_decode(tensor) for tensor in parameters.tensors]
    except Exception as error:
        # Whatever NumPy stumbles over in bytes that anybody may have sent, the bytes are not an array.
        raise ValueError(f"not an array in NumPy's format ({error})") from error


def as_numbers(array: Array) -> Array:
    """Return an array of another party as a method takes it: floats as float64, whole numbers as they are.

    Raises
    ------
    ValueError
        If it holds anything else, such as text or dates.
    """
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


def _decode(tensor: bytes) -> Array:
    # The magic string and the version are 8 bytes, the length of the header 2 (format 1.0) or 4.
    size = (
        10 + int.from_bytes(tensor[8:10], "little")
        if tensor[6:7] == b"\x01"
        else 12 + int.from_bytes(tensor[8:12], "little")
    )
    shape, fortran_order, dtype = _header(tensor[:size])
    if min(shape, default=0) < 0 or (0 in shape and max(shape) > _LONGEST_EMPTY):
        raise ValueError("its shape is none that its bytes can have.")
    array = np.frombuffer(tensor, dtype=dtype, offset=size)
    return array.reshape(shape, order="F" if fortran_order else "C")


@lru_cache(maxsize=1024)
def _written_header(shape: tuple[int, ...], by_columns: bool, descr: str) -> bytes:
    stream = BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"shape": shape, "fortran_order": by_columns, "descr": descr})
    return stream.getvalue()


@lru_cache(maxsize=1024)
def _header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    stream = BytesIO(header)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("an array of Python objects was sent; only numbers are read.")
    return shape, fortran_order, dtype
