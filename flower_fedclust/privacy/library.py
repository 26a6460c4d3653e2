"""dp-accounting, without SciPy's signal processing until a composition needs it.

Only the privacy losses of Laplace noise are composed by convolution. Importing SciPy's convolution takes as long as
importing the rest of dp-accounting.
"""

from __future__ import annotations

import importlib.util
import sys

import scipy


def _defer(name: str) -> None:
    """Let a module of SciPy be loaded when one of its attributes is first used."""
    spec = importlib.util.find_spec(f"scipy.{name}")
    if f"scipy.{name}" in sys.modules or spec is None or spec.loader is None:
        return
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    setattr(scipy, name, module)  # "from scipy import signal" then looks no further


_defer("signal")

import dp_accounting  # noqa: E402

__all__ = ["dp_accounting"]
