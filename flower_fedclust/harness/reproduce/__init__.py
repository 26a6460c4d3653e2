"""The tables of the papers, run again: our figures beside the paper's.

A module per paper, ``PAPER`` in it, has the printed figures as data beside functions that compute ours. Besides these,
``tables`` defines and runs a table, ``show`` shows it, and ``command`` does all of this from the command line.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from flower_fedclust.harness.reproduce.tables import Figure, Paper, PaperTable, Row, RowOutcome, figures, run_table
from flower_fedclust.names import look_up

__all__ = ["PAPERS", "Figure", "Paper", "PaperTable", "Row", "RowOutcome", "figures", "find_paper", "run_table"]

_MODULES = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
#: The papers by name: those of all modules here that have one.
PAPERS: dict[str, Paper] = {module.PAPER.name: module.PAPER for module in _MODULES if hasattr(module, "PAPER")}


def find_paper(name: str) -> Paper:
    """Return a paper by its name or by that of one of its strategies.

    Raises
    ------
    ValueError
        If there is no such paper; the message gives the nearest name.
    """
    by_strategy = {strategy: paper for paper in PAPERS.values() for strategy in paper.strategies}
    return look_up(name, by_strategy | PAPERS, "paper called")
