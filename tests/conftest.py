"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import random
from contextlib import contextmanager
from functools import cache, partial

import numpy as np
import pytest
import typer.main
from tested import PAPERS

# What is imported and collected stays until the end, and is never looked through for cycles.
gc.disable()

# The command is made of its functions anew for every call, always the same: a process calls it once, a test often.
typer.main.get_command = cache(typer.main.get_command)

# As OMP_NUM_THREADS: threads that wait for each other, while other tests run beside them, take longer than one.
os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numba  # noqa: E402  it reads this once

# One process compiles UMAP for all, and for the next time: it takes longer than most tests of maps.
numba.njit = partial(numba.njit, cache=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What takes longest begins first: at the end the other processes would wait for it."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish():
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # what tests leave behind is little beside what is imported
    gc.enable()


@contextmanager
def chance(name):
    """Replace the operating system's entropy: whatever has no seed draws what it drew last time under this name.

    For tests of statistics only, which a sound program may fail once in a thousand runs.
    """
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


def start_twice(patch):
    """Have k-means begin from two places instead of ten."""
    from flower_fedclust.numerics import initialisation
    from flower_fedclust.strategies import private_mixture
    from flower_fedclust.strategies.common import many_starts, private_search, small_clusters, spectral
    from flower_fedclust.strategies.spp_fgc import spp_fgc

    for module in (initialisation, spectral, spp_fgc):
        patch.setattr(module, "N_RESTARTS", 2)
    for module in (many_starts, private_search, small_clusters):
        patch.setattr(module, "N_INIT", 2)
    patch.setattr(private_mixture, "N_EM_ROUNDS", 5)
    if PAPERS:
        from flower_fedclust_papers import coreset_kmedian, pe_means

        patch.setattr(pe_means, "N_INIT_LAST", 2)
        patch.setattr(coreset_kmedian, "weighted_kmedian", partial(coreset_kmedian.weighted_kmedian, n_restarts=2))


@pytest.fixture
def few_restarts(monkeypatch):
    """For tests to which it does not matter how good clusters are."""
    start_twice(monkeypatch)


def draw_quickly(patch):
    """Have maps drawn in few steps."""
    from flower_fedclust.models import maps
    from flower_fedclust.strategies.maps import maps as drawing

    for module, name, option in (
        (drawing, "tsne_map", "n_iter"),
        (drawing, "umap_map", "n_epochs"),
        (maps, "place_tsne", "n_iter"),
        (maps, "place_umap", "n_epochs"),
    ):
        patch.setattr(module, name, partial(getattr(module, name), **{option: 25}))


@pytest.fixture
def quick_maps(monkeypatch):
    """For tests to which it does not matter how good maps are."""
    draw_quickly(monkeypatch)


@pytest.fixture(scope="module")
def few_iterations():
    """Maps and k-means take a third of the time, for tests to which it does not matter how good they are."""
    with pytest.MonkeyPatch.context() as patch:
        start_twice(patch)
        draw_quickly(patch)
        yield
