"""The tables of the papers, run again: ours beside the paper's.

A module a paper: its printed figures as data beside functions that compute ours. Besides, ``tables`` says what a table
is, ``runs`` makes one run of a strategy, ``running`` runs a table, ``show`` shows it and ``command`` does it all.
"""

from __future__ import annotations

from importlib import import_module

from flower_fedclust.lab.reproduce.running import RowOutcome, run_table
from flower_fedclust.lab.reproduce.tables import Figure, Paper, PaperTable, Row, figures
from flower_fedclust.names import look_up

__all__ = ["PAPERS", "Figure", "Paper", "PaperTable", "Row", "RowOutcome", "figures", "find_paper", "run_table"]

#: The papers, and the modules that hold them.
PAPERS = {
    "feddp-kmeans": "feddp_kmeans",
    "fedsc": "fedsc",
    "maps": "maps",
    "dp-fedc": "dp_fedc",
    "spp-fgc": "spp_fgc",
}
_STRATEGIES = {"fed-tsne": "maps", "fed-umap": "maps", "fed-speclust": "maps", "spp-fgc-plus": "spp_fgc"}


def find_paper(name: str) -> Paper:
    """Return a paper by its name, or by that of one of its strategies.

    Parameters
    ----------
    name : str
        One of ``PAPERS``, or "fed-tsne", "fed-umap" or "fed-speclust" for "maps", or "spp-fgc-plus" for "spp-fgc".

    Raises
    ------
    ValueError
        If there is no such paper; the message gives the nearest name.
    """
    module = look_up(name, PAPERS | _STRATEGIES, "paper called")
    paper: Paper = import_module(f"{__name__}.{module}").PAPER
    return paper
