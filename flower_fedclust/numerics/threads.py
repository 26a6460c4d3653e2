"""One thread for linear algebra: the order of additions, and so the last bits, depend on how many there are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

# Imported for their libraries: what is loaded only after the controller is made would escape it.
import sklearn.cluster  # noqa: F401
from threadpoolctl import ThreadpoolController

_depth = 0


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread for BLAS and OpenMP in this process, for as long as the context lasts.

    The number of threads is the whole process's. An inner context costs nothing.
    """
    global _depth
    if _depth > 0:
        yield
        return
    with _controller().limit(limits=1):
        _depth += 1
        try:
            yield
        finally:
            _depth -= 1
