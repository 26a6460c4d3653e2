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
    """Tell whether nothing can change an array: it is read-only, and so is what it is a view of.

    Arrays of messages are views of bytes.
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
    """Make a function remember its result for the last immutable array that it was given."""
    last: tuple[NDArray[Any], tuple[*Ts], R] | None = None

    def kept(array: NDArray[Any], *args: *Ts) -> R:
        nonlocal last
        found = last  # looked at once, as another thread may put another there
        if found is not None and found[0] is array and found[1] == args:
            return found[2]
        made = function(array, *args)
        if is_constant(array):
            last = array, args, made
        return made

    functools.update_wrapper(kept, function)
    return kept
