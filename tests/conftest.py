"""What holds for all tests."""

from __future__ import annotations

import gc
import logging
import os
import random
from contextlib import contextmanager
from functools import cache, partial

import numpy as np
import pytest
import tested  # noqa: F401  the second distribution counts as not installed, whatever is tested first
import typer.main

# What is imported and collected stays until the end, and is never looked through for cycles.
gc.disable()

# The command is made of its functions anew for every call, always the same: a process calls it once, a test often.
typer.main.get_command = cache(typer.main.get_command)

# As OMP_NUM_THREADS: threads that wait for each other, while other tests run beside them, take longer than one.
os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numba  # noqa: E402  it reads this once

# One process compiles UMAP for all, and for the next time: it takes longer than most tests of maps.
numba.njit = partial(numba.njit, cache=True)


#: With FEDCLUST_CHANCE=system, only the tests of statistics run, each with noise of the operating system.
SYSTEM = os.environ.get("FEDCLUST_CHANCE", "") == "system"
#: How often a sound program may fail a test of statistics.
FALSE_ALARM = 1e-3


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What takes longest begins first: at the end the other processes would wait for it."""
    if SYSTEM:
        items[:] = [
            item for item in items if {"repeatable_noise", "repeatable"} & set(item.fixturenames)
        ]
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_terminal_summary(terminalreporter):
    """Say how likely it is that a sound program has failed: once, and twice in a row."""
    if SYSTEM and (
        n_tests := sum(len(terminalreporter.stats.get(one, ())) for one in ("passed", "failed"))
    ):
        once, twice = (1.0 - (1.0 - likely) ** n_tests for likely in (FALSE_ALARM, FALSE_ALARM**2))
        terminalreporter.write_line(
            f"{n_tests} tests with noise of the operating system: a sound program fails one of them with a probability "
            f"of at most {once:.2g}, and the same one again with at most {twice:.1g}."
        )


def pytest_collection_finish():
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # what tests leave behind is little beside what is imported
    gc.enable()


@contextmanager
def chance(name):
    """Replace the operating system's entropy: whatever has no seed draws what it drew last time under this name.

    For tests of statistics only, which a sound program may fail once in a thousand runs. With FEDCLUST_CHANCE=system
    nothing is replaced.
    """
    if SYSTEM:
        yield
        return
    drawn = random.Random(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.random.bit_generator, "randbits", drawn.getrandbits)
        patch.setattr(os, "urandom", drawn.randbytes)
        random.seed(name)
        yield


@pytest.fixture(scope="session")
def repeatable():
    """Return :func:`chance`, for fixtures of modules."""
    return chance


@pytest.fixture
def repeatable_noise(request):
    """The test draws the same noise in every run."""
    with chance(request.node.nodeid):
        yield


@pytest.fixture(autouse=True)
def _same_log_level():
    """The process of a site logs no failures, which a test of one would leave so for all others."""
    logger = logging.getLogger("flower_fedclust.engine.client")
    level = logger.level
    yield
    logger.setLevel(level)
