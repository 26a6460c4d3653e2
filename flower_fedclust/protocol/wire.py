"""Arrays as bytes, in NumPy's own format, as Flower sends them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
from flwr.common import Parameters, ndarrays_to_parameters
from numpy.typing import NDArray

Array = NDArray[Any]


def encode(arrays: Sequence[Array]) -> Parameters:
    """Return the arrays as Flower's Parameters."""
    return ndarrays_to_parameters([np.asarray(array) for array in arrays])


def decode(parameters: Parameters) -> list[Array]:
    """Return the arrays that Parameters hold, read-only and without a copy.

    Flower's own function parses the header of every array anew, which is most of the time of a round with thousands of
    clients; their headers are all the same.

    Raises
    ------
    ValueError
        If the bytes are not an array in NumPy's format, or one of Python objects.
    """
    try:
        return [_decode(tensor) for tensor in parameters.tensors]
    except Exception as error:
        # Whatever NumPy stumbles over in bytes that anybody may have sent, the bytes are not an array.
        raise ValueError(f"not an array in NumPy's format ({error})") from error


def _decode(tensor: bytes) -> Array:
    # The magic string and the version are 8 bytes, the length of the header 2 (format 1.0) or 4.
    size = (
        10 + int.from_bytes(tensor[8:10], "little")
        if tensor[6:7] == b"\x01"
        else 12 + int.from_bytes(tensor[8:12], "little")
    )
    shape, fortran_order, dtype = _header(tensor[:size])
    array = np.frombuffer(tensor, dtype=dtype, offset=size)
    return array.reshape(shape, order="F" if fortran_order else "C")


@lru_cache(maxsize=1024)
def _header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    stream = BytesIO(header)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("an array of Python objects was sent; only numbers are read.")
    return shape, fortran_order, dtype
