"""Where a progress bar is shown."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def is_shown(progress: bool | None) -> bool:
    """Return whether to show a progress bar: as was asked; by default in a terminal, and in a notebook that can.

    Parameters
    ----------
    progress : bool or None
        What the user asked for. A notebook draws the bar with ipywidgets; where these are missing it has none unless it
        is asked for.
    """
    if progress is not None:
        return progress
    if sys.stderr.isatty():
        return True
    if "IPython" not in sys.modules or find_spec("ipywidgets") is None:
        return False
    from rich.console import Console

    return Console(stderr=True).is_jupyter
