"""One thread for linear algebra: the order of additions, and so the last bits, depend on how many there are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

# Imported for their libraries: what is loaded only after a controller is made would escape it.
import scipy.linalg  # noqa: F401
import sklearn.cluster  # noqa: F401
from threadpoolctl import ThreadpoolController, threadpool_limits

_lock = threading.Lock()
_n_inside = 0
_blas_limit: threadpool_limits | None = None
_this_thread = threading.local()


@cache
def _libraries(user_api: str) -> ThreadpoolController:
    return ThreadpoolController().select(user_api=user_api)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread for BLAS and OpenMP, for as long as the context lasts.

    BLAS counts its threads for the whole process: the first context sets them and the last to leave restores them.
    OpenMP counts them for each thread that calls it. A context inside another of the same thread costs nothing.
    """
    if getattr(_this_thread, "is_inside", False):
        yield
        return
    _this_thread.is_inside = True
    _limit_blas()
    try:
        with _libraries("openmp").limit(limits=1):
            yield
    finally:
        _release_blas()
        _this_thread.is_inside = False


def _limit_blas() -> None:
    global _n_inside, _blas_limit
    with _lock:
        if _n_inside == 0:
            _blas_limit = _libraries("blas").limit(limits=1)
        _n_inside += 1


def _release_blas() -> None:
    global _n_inside, _blas_limit
    with _lock:
        _n_inside -= 1
        if _n_inside == 0 and _blas_limit is not None:
            _blas_limit.restore_original_limits()
            _blas_limit = None
