"""Keeps on the disk what numba compiles for UMAP, so that one process compiles it for all, and for the next time.

Some of umap-learn's functions ask numba for that, the largest do not: each process that draws a map would compile them
anew, which takes longer than most tests of maps. What is kept is the machine code that it would run anyway, by the
source, numba's version and the CPU.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from functools import partial
from types import ModuleType


class _BeforeUmap(importlib.abc.MetaPathFinder):
    """Finds nothing; where umap is looked for, it is there before umap's functions are defined."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if name == "umap":
            sys.meta_path.remove(self)
            import numba

            numba.njit = partial(numba.njit, cache=True)
        return None


def keep() -> None:
    """Have numba keep what it compiles for UMAP, in a process that has not imported umap yet."""
    if "umap" not in sys.modules:
        sys.meta_path.insert(0, _BeforeUmap())
