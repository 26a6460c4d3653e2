"""Use one thread for linear algebra, because with another number additions have another order and other last bits.

Exact sums may be added up in any order, so several threads compute their batches: :func:`mapped`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import lru_cache
from typing import TypeVar

import threadpoolctl
from threadpoolctl import ThreadpoolController, threadpool_limits

from flower_fedclust.numerics.checks import check_integer

_lock = threading.Lock()
_n_inside = 0
_blas_limit: threadpool_limits | None = None
_this_thread = threading.local()
_NOTHING = nullcontext()
_n_jobs: ContextVar[int | None] = ContextVar("n_jobs", default=None)

#: More threads than this would only wait for each other.
MOST_THREADS = 256

#: For fewer multiplications than this, starting threads takes longer than they save.
MANY_MULTIPLICATIONS = 2**27

T = TypeVar("T")
S = TypeVar("S")


class _EndError(Exception):
    """There are no more items."""


def usable_threads() -> int:
    """Return how many threads this process may use: OMP_NUM_THREADS (which Ray sets to 1), or else its cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_for(n_multiplications: int) -> int:
    """Return the ``n_jobs`` of :func:`mapped` for a computation of this size: all cores, or one thread."""
    return -1 if n_multiplications >= MANY_MULTIPLICATIONS else 1


@contextmanager
def jobs(n_jobs: int | None) -> Iterator[None]:
    """Let :func:`mapped` use this many threads inside the context; -1 means one per core, None changes nothing."""
    if n_jobs is not None and n_jobs != -1:
        check_integer("n_jobs", n_jobs, at_least=1)
    before = _n_jobs.set(_n_jobs.get() if n_jobs is None else n_jobs)
    try:
        yield
    finally:
        _n_jobs.reset(before)


def mapped(function: Callable[[T], S], items: Iterable[T], n_jobs: int = 1) -> Iterator[S]:
    """Yield the function of each item, in order; threads take the items in turn and compute at the same time.

    ``n_jobs`` is the number of threads unless :func:`jobs` sets it. About as many items and results are in memory as
    there are threads. An error is raised when its item is due, so that any number of threads raises the same error.
    The function itself uses one thread, so that its results have the same bits with any number of threads.
    """
    n_threads = _n_jobs.get() or n_jobs
    n_threads = min(usable_threads() if n_threads < 0 else n_threads, MOST_THREADS)
    if n_threads == 1:
        for item in items:
            with one_thread():
                result = function(item)
            yield result
        return
    turn, source = threading.Lock(), iter(items)
    results: deque[Future[S]] = deque()

    def work() -> None:
        result: Future[S] = Future()
        try:
            with turn:
                results.append(result)
                try:
                    item = next(source)
                except StopIteration:
                    raise _EndError from None
            with one_thread(), jobs(1):  # a function that maps by itself starts no more threads
                result.set_result(function(item))
        except BaseException as error:
            result.set_exception(error)

    with ThreadPoolExecutor(n_threads) as pool:
        tasks = deque(pool.submit(work) for _ in range(n_threads + 1))
        while True:
            tasks.popleft().result()  # it has put its result into ``results``
            try:
                found = results.popleft().result()
            except _EndError:
                return
            tasks.append(pool.submit(work))
            yield found


def _libraries(user_api: str) -> ThreadpoolController:
    _load_libraries()
    # A new library comes with a module that needs it (openTSNE, numba), so look again only if there are new modules.
    return _found(user_api, len(sys.modules))


@lru_cache(maxsize=1)
def _load_libraries() -> None:
    """Import modules that load thread libraries, because a controller misses libraries that are loaded later.

    If the environment allows only one thread, later libraries obey it as well, and nothing is imported.
    """
    if (
        os.environ.get("OMP_NUM_THREADS") == "1"
        and os.environ.get("OPENBLAS_NUM_THREADS", "1") == "1"
    ):
        return
    import sklearn.cluster  # noqa: F401


@lru_cache(maxsize=2)
def _found(user_api: str, n_modules: int) -> ThreadpoolController:  # noqa: ARG001
    return ThreadpoolController().select(user_api=user_api)


def one_thread() -> AbstractContextManager[None]:
    """Use one thread for BLAS and OpenMP inside this context.

    BLAS has one number of threads for the whole process: the first context sets it, and the last one to end restores
    it. OpenMP has a number for each calling thread. A worker thread that enters a context while another thread is in
    one stays at one thread, because asking for its former number costs more than a small task. A nested context costs
    nothing.
    """
    return _NOTHING if getattr(_this_thread, "is_inside", False) else _one_thread()


@contextmanager
def _one_thread() -> Iterator[None]:
    is_worker = _limit_blas()
    _this_thread.is_inside = True
    openmp_limit = None
    if is_worker:
        libraries = _libraries("openmp")
        if getattr(_this_thread, "limited", None) is not libraries:
            for library in libraries.lib_controllers:
                library.set_num_threads(1)
            _this_thread.limited = libraries
    else:
        openmp_limit = _libraries("openmp").limit(limits=1)
    try:
        yield
    finally:
        if openmp_limit is not None:
            openmp_limit.restore_original_limits()
        _this_thread.is_inside = False
        _release_blas()


def _limit_blas() -> bool:
    """Limit BLAS; return whether another thread had already done so."""
    global _n_inside, _blas_limit
    with _lock:
        if _n_inside == 0:
            _let_any_thread_set_blas()
            _blas_limit = _libraries("blas").limit(limits=1)
        _n_inside += 1
        return _n_inside > 1


def _release_blas() -> None:
    global _n_inside, _blas_limit
    with _lock:
        _n_inside -= 1
        if _n_inside == 0 and _blas_limit is not None:
            _let_any_thread_set_blas()
            _blas_limit.restore_original_limits()
            _let_any_thread_set_blas()
            _blas_limit = None


def _let_any_thread_set_blas() -> None:
    """Let any thread limit OpenBLAS; threadpoolctl (from 3.7) allows only the thread that did so first.

    The first to enter and the last to leave may be different threads; the lock above synchronizes them.
    """
    clear = getattr(threadpoolctl.OpenBLASController, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)
