"""What holds for all tests."""

from __future__ import annotations

import os
from functools import partial

import compiled
import pytest

compiled.keep()

# As OMP_NUM_THREADS: threads that wait for each other, while other tests run beside them, take longer than one.
os.environ.setdefault("NUMBA_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def few_iterations():
    """Maps are made in a third of the time, for tests to which it does not matter how good they are."""
    from flower_fedclust.models import maps
    from flower_fedclust.strategies.maps import drawing

    with pytest.MonkeyPatch.context() as patch:
        for module, name, option in (
            (drawing, "tsne_map", "n_iter"),
            (drawing, "umap_map", "n_epochs"),
            (maps, "place_tsne", "n_iter"),
            (maps, "place_umap", "n_epochs"),
        ):
            patch.setattr(module, name, partial(getattr(module, name), **{option: 25}))
        yield
