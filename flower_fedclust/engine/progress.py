"""Whether a run shows a progress bar, and which log messages it hides."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from threading import Lock
from typing import Any

# Logger -> (its level before, the levels that overlapping runs ask for).
_QUIET: dict[str, tuple[int, list[int]]] = {}
_LOCK = Lock()


@contextmanager
def quiet(level: int, *names: str) -> Iterator[None]:
    """Hide log messages below a level, in all threads; runs that overlap share the strictest level."""
    with _LOCK:
        for name in names:
            _, asked = _QUIET.setdefault(name, (logging.getLogger(name).level, []))
            asked.append(level)
            _set_level(name, max(asked))
    try:
        yield
    finally:
        with _LOCK:
            for name in names:
                before, asked = _QUIET[name]
                asked.remove(level)
                _set_level(name, max(asked, default=before))
                if not asked:
                    del _QUIET[name]


def _set_level(name: str, level: int) -> None:
    if logging.getLogger(name).level != level:  # setting a level visits all loggers of the process
        logging.getLogger(name).setLevel(level)


def is_shown(progress: bool | None) -> bool:
    """Return whether to show a progress bar; by default in a terminal, and in a notebook with ipywidgets."""
    if progress is not None:
        return progress
    if sys.stderr is None:  # there is no console
        return False
    if sys.stderr.isatty():
        return True
    if "IPython" not in sys.modules or find_spec("ipywidgets") is None:
        return False
    from rich.console import Console

    return Console(stderr=True).is_jupyter


@contextmanager
def bar(name: str, total: float, show: bool | None, done: int = 0) -> Iterator[Callable[..., Any]]:
    """Show a progress bar on standard error; yields a function that takes the current step and how much is done."""
    if not is_shown(show):
        yield lambda _what, _done: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    counts = [MofNCompleteColumn()] if total > 1 else []
    columns = (*Progress.get_default_columns(), *counts, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        row = shown.add_task(name, total=total, completed=done)
        yield lambda what, part: shown.update(
            row, completed=part, description=f"{name}: {what}" if what else name
        )
