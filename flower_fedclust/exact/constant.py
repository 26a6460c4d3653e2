"""Cache results computed from immutable arrays: thousands of simulated clients get the same message."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

import numpy as np
from numpy.typing import NDArray

Ts = TypeVarTuple("Ts")
R = TypeVar("R")


def is_constant(array: NDArray[Any]) -> bool:
    """Tell whether an array and its base are read-only; arrays of messages are views of bytes."""
    base: object = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    return base is None or isinstance(base, bytes)


def array_key(*arrays: NDArray[Any]) -> tuple[tuple[str, tuple[int, ...], bytes], ...]:
    """Cache key of arrays: their bytes together with their type and shape."""
    return tuple((array.dtype.str, array.shape, array.tobytes()) for array in arrays)


def made_once(function: Callable[[NDArray[Any], *Ts], R]) -> Callable[[NDArray[Any], *Ts], R]:
    """Make a function remember its results for the last arrays with the same entries.

    It recognizes the last immutable array without reading it.
    """
    last: tuple[NDArray[Any], tuple[*Ts], R] | None = None

    @functools.lru_cache(maxsize=8)
    def made(given: bytes, dtype: str, shape: tuple[int, ...], *args: *Ts) -> R:
        return function(np.frombuffer(given, dtype).reshape(shape), *args)

    def kept(array: NDArray[Any], *args: *Ts) -> R:
        nonlocal last
        found = last  # read once, because another thread may replace it
        if found is not None and found[0] is array and found[1] == args:
            return found[2]
        result = made(array.tobytes(), array.dtype.str, array.shape, *args)
        if is_constant(array):
            last = array, args, result
        return result

    functools.update_wrapper(kept, function)
    return kept
