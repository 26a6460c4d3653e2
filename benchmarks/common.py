"""Shared by the benchmarks: time, peak memory, a process for each case, and slopes on log axes."""

from __future__ import annotations

import math
import multiprocessing
import platform
import resource
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from flower_fedclust.harness.runner import forget_peak_memory, peak_memory_mb

DELTA = 1e-6


def timed(
    work: Callable[[], object], runs: int = 5, *, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, float, float]:
    """Return the least, the median and the greatest time in seconds, after a first run that does not count."""
    work()
    seconds = []
    for _ in range(runs):
        start = clock()
        work()
        seconds.append(clock() - start)
    return min(seconds), statistics.median(seconds), max(seconds)


def measured(work: Callable[[], object]) -> dict[str, float]:
    """Return the seconds of some work, those of the processor, the peak memory during it, and the memory before it."""
    forget_peak_memory()
    before = peak_memory_mb() or float("nan")
    start, used = time.perf_counter(), time.process_time()
    work()
    spent = {"seconds": time.perf_counter() - start, "processor": time.process_time() - used}
    return {**spent, "megabytes": peak_memory_mb() or float("nan"), "before": before}


def in_own_process(
    work: Callable[..., dict[str, float]], *arguments: Any, limit: float | None = None
) -> dict[str, float] | str:
    """Run a function in its own process; return its result, or why there is none within the limit of processor time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["__main__", "flower_fedclust", "sklearn.cluster", work.__module__]
    )
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, work, arguments, limit))
    process.start()
    sender.close()
    try:
        answer: dict[str, float] | str = receiver.recv()
        return answer
    except EOFError:
        process.join()
        if process.exitcode == -signal.SIGXCPU:
            return f"more than {limit:g} s"
        return f"the process ended with code {process.exitcode}"
    finally:
        process.kill()
        process.join()


def _answer(
    sender: Any,
    work: Callable[..., dict[str, float]],
    arguments: Sequence[Any],
    limit: float | None,
) -> None:
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit), resource.RLIM_INFINITY))
    try:
        sender.send(work(*arguments))
    except Exception as error:  # the next point is measured anyway
        sender.send(f"{type(error).__name__}: {error}")


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of a line through points on log axes: 1 is linear, 2 is quadratic."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def header() -> str:
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("flwr", "numpy", "scikit-learn", "dp-accounting")
    )
    return f"Python {platform.python_version()} on {sys.platform}, {packages}"
