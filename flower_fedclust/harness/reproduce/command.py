"""Reproducing a paper from the command line: the tables as they grow, and what is not run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.progress import Progress
from rich.table import Table as RichTable

from flower_fedclust.harness.reproduce.show import (
    ReproductionFolder,
    list_table,
    not_run_lines,
    reason_lines,
    rich_table,
)
from flower_fedclust.harness.reproduce.tables import Paper, PaperTable, RowOutcome, run_table
from flower_fedclust.harness.run import print_lines
from flower_fedclust.harness.runner import progress_columns
from flower_fedclust.numerics.checks import check_integer


def list_papers(papers: Sequence[Paper], console: Console) -> None:
    """Print what can be run of some papers, and what cannot and why."""
    console.print(list_table(papers))
    for paper in papers:
        _print_list(console, f"Not reproduced of {paper.name} ({paper.source}):", not_run_lines(paper, {}))


def reproduce_paper(
    paper: Paper,
    console: Console,
    *,
    tables: Sequence[str] = (),
    n_seeds: int | None = None,
    out: str | Path | None = None,
    progress: bool | None = None,
) -> bool:
    """Run tables of a paper and print each beside the paper's.

    Parameters
    ----------
    paper : Paper
    console : Console
    tables : sequence of str
        Their names; all tables if there are none.
    n_seeds : int, optional
        By default each table's own number.
    out : str or Path, optional
        A folder for ``results.csv`` and ``results.md``, which are written again after each row, for pictures, and for
        what each seed gave: a command that was interrupted goes on from there.
    progress : bool, optional
        Whether to show rows and a bar while a table runs; by default only in a terminal.

    Returns
    -------
    bool
        Whether something was run and no row failed.

    Raises
    ------
    ValueError
        If there is no such table, or the number of seeds is not valid.
    FileExistsError
        If the folder already holds something else.
    """
    if n_seeds is not None:
        check_integer("seeds", n_seeds, at_least=1)
    chosen = paper.chosen(list(tables))
    not_run = {table.title: why for table in chosen if (why := table.why_not()) is not None}
    not_run |= {one.title: "it is a picture; give a folder with --out." for one in chosen if one.draw and out is None}
    runnable = [table for table in chosen if table.title not in not_run]
    folder = None if out is None else ReproductionFolder(out, paper, _command(paper, tables, n_seeds))
    done: list[tuple[PaperTable, list[RowOutcome]]] = []
    for table in runnable:
        if table.draw and folder is not None:
            _print_list(console, f"{table.title}:", table.draw(folder.path))
            continue
        outcomes: list[RowOutcome] = []
        done.append((table, outcomes))
        total = len(table.rows) * (table.n_seeds if n_seeds is None else n_seeds)
        with _shown(table, outcomes, total, console, progress) as bar:
            draws = None if folder is None else folder.draws
            for outcome in run_table(table, n_seeds, on_run=partial(bar.advance, bar.task_ids[0]), draws=draws):
                outcomes.append(outcome)
                if folder is not None:
                    folder.write(done, not_run)
        console.print()
    if folder is not None:
        folder.write(done, not_run)
    failed = reason_lines(done)
    _print_list(console, "Could not be run:", failed)
    _print_list(console, "Not reproduced:", not_run_lines(paper, not_run))
    if folder is not None:
        print_lines(console, f"\nSaved in {folder.path}")
    return bool(runnable) and not failed


class _Screen:
    """A table as it grows, with a progress bar below it."""

    def __init__(self, table: PaperTable, outcomes: Sequence[RowOutcome], bar: Progress) -> None:
        self.table = table
        self.outcomes = outcomes
        self.bar = bar

    def __rich_console__(self, *_: object) -> Iterator[RichTable | Progress]:
        yield rich_table(self.table, self.outcomes)
        if not self.bar.finished:
            yield self.bar


@contextmanager
def _shown(
    table: PaperTable, outcomes: Sequence[RowOutcome], total: int, console: Console, progress: bool | None
) -> Iterator[Progress]:
    """Show a table while it grows or, if that is not wanted, print it at the end."""
    bar = Progress(*progress_columns(), console=console)
    bar.add_task("runs", total=total)
    if console.is_terminal if progress is None else progress:
        with Live(_Screen(table, outcomes, bar), console=console, refresh_per_second=4):
            yield bar
    else:
        try:
            yield bar
        finally:
            console.print(rich_table(table, outcomes))


def _command(paper: Paper, tables: Sequence[str], n_seeds: int | None) -> str:
    """Return the command that gives these results, without the folder."""
    chosen = [word for table in tables for word in ("--table", table)]
    seeds = [] if n_seeds is None else ["--seeds", str(n_seeds)]
    return shlex.join(["fedclust", "reproduce", paper.name, *chosen, *seeds])


def _print_list(console: Console, heading: str, lines: Sequence[str]) -> None:
    if lines:
        print_lines(console, "\n" + "\n  ".join((heading, *lines)))
