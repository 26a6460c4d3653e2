"""All tables of all papers: what fits in the hours is run, and one page has every item of every paper.

Figures that a run does not renew are kept in ``kept.csv``, each with its date. The pages in `strategies/docs/` are
written from this file and from the printed figures.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from reproduce.tables import (
    FAILURES,
    HERE,
    Draw,
    Draws,
    Figure,
    Paper,
    drawn,
    find_paper,
    measure_of,
    outcome_of,
)

#: The file with the figures that were measured before.
KEPT = HERE / "kept.csv"

#: A figure: its paper, table, row and column.
Key = tuple[str, str, str, str]

#: A draw: its paper, table, row and seed.
Task = tuple[str, str, str, int]


class Kept(NamedTuple):
    """A figure of ours."""

    seeds: int
    figure: Figure
    date: str  #: The date of the last draw.
    seconds: float  #: The processor time of all draws of the row, in seconds.


def read_kept(path: Path = KEPT) -> dict[Key, Kept]:
    """Return the figures that were measured before."""
    found = {}
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            key = (line["paper"], line["table"], line["row"], line["column"])
            figure = Figure(
                float(line["ours"]), float(line["deviation"]) if line["deviation"] else None
            )
            found[key] = Kept(
                int(line["seeds"]), figure, line["date"], float(line["seconds"] or 0.0)
            )
    return found


def write_kept(path: Path, papers: Sequence[Paper], figures: Mapping[Key, Kept]) -> None:
    """Write figures in the order of the papers' tables; what no table has any more is left out."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ("paper", "table", "row", "column", "seeds", "ours", "deviation", "date", "seconds")
        )
        for key in keys_of(papers):
            if (kept := figures.get(key)) is not None:
                mean, deviation = kept.figure
                numbers = [f"{mean:.6g}", "" if deviation is None else f"{deviation:.3g}"]
                writer.writerow((*key, kept.seeds, *numbers, kept.date, f"{kept.seconds:.4g}"))


def keys_of(papers: Sequence[Paper]) -> Iterator[Key]:
    """Yield all figures that tables can have."""
    for paper in papers:
        for table in paper.tables:
            for row in table.rows:
                for column in row.columns:
                    yield paper.name, table.name, row.name, column


# Running.


def tasks_that_fit(
    papers: Sequence[Paper], draws: Draws, minutes: float, kept: Collection[Key] = ()
) -> list[Task]:
    """Return the missing draws of the tables that fit in these minutes of one processor.

    Tables without any kept figure come first, and the quickest of them before the others. A table is run seed by seed,
    so that all of its rows have as many seeds if the time is over. A row that several tables have is run once.
    """
    measured_before = {key[:2] for key in kept}
    missing: list[tuple[bool, float, list[Task]]] = []
    equal = {paper.name: equal_rows(paper) for paper in papers}
    for paper in papers:
        for table in paper.tables:
            if table.why_not() is not None:
                continue
            left = [
                (paper.name, table.name, row.name, seed)
                for seed in range(table.seeds)
                for row in table.rows
                if first_known(draws, paper.name, equal[paper.name][table.name, row.name], seed)
                is None
            ]
            needed = table.minutes * len(left) / len(table.rows)
            missing.append(((paper.name, table.name) in measured_before, needed, left))
    fitting: dict[Task, None] = {}
    remaining = minutes
    for _, needed, left in sorted(missing, key=lambda one: one[:2]):
        if needed > remaining:
            continue
        remaining -= needed
        for task in left:
            paper_name, table_name, row_name, seed = task
            others = equal[paper_name][table_name, row_name]
            if not any((paper_name, *other, seed) in fitting for other in others):
                fitting[task] = None
    return list(fitting)


def equal_rows(paper: Paper) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Return whose draws count for each row, as pairs of table and row: its own, and draws of equal rows.

    Rows are equal if they run the same and the other table has all columns of this one: the map of one figure, without
    noise, can be a map of another.
    """
    rows = [
        (table.name, row.name, set(row.columns), row.without_names())
        for table in paper.tables
        for row in table.rows
    ]
    return {
        (table, name): [
            (table, name),
            *(
                (other_table, other_name)
                for other_table, other_name, other_columns, other_runs in rows
                if other_runs == runs
                and columns <= other_columns
                and (other_table, other_name) != (table, name)
            ),
        ]
        for table, name, columns, runs in rows
    }


def first_known(
    draws: Draws, paper: str, rows: Iterable[tuple[str, str]], seed: int
) -> Draw | None:
    """Return the draw of the first of these rows that has one for a seed; None if there is none."""
    known = (draws.known(paper, table, row, seed) for table, row in rows)
    return next((draw for draw in known if draw is not None), None)


_paper = cache(find_paper)


def measured(task: Task) -> Draw | str:
    """Measure one draw in a process of its own; return why it failed if it did."""
    paper, table, row, seed = task
    rows = {one.name: one for one in _paper(paper).chosen([table])[0].rows}
    try:
        return drawn(measure_of(rows[row], seed))
    except FAILURES as error:
        return str(error)


def run(
    tasks: Sequence[Task],
    draws: Draws,
    *,
    seconds: float,
    n_processes: int,
    on_run: Callable[[Task], object] = lambda _: None,
) -> dict[Task, str]:
    """Measure draws until the time is over; return those that failed, with their reasons."""
    end, waiting, failed = time.monotonic() + seconds, list(reversed(tasks)), {}
    running: dict[Future[Draw | str], Task] = {}
    pool = _pool(n_processes)
    try:
        while waiting or running:
            while waiting and len(running) < n_processes and time.monotonic() < end:
                task = waiting.pop()
                running[pool.submit(measured, task)] = task
            if not running:
                break
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                task = running.pop(future)
                try:
                    found = future.result()
                except BrokenProcessPool:
                    found = "its process ended; perhaps it needs more memory than there is."
                    pool = _pool(n_processes)
                if isinstance(found, str):
                    failed[task] = found
                else:
                    draws.add(*task, draw=found)
                on_run(task)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return failed


def _pool(n_processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(n_processes, mp_context=get_context("spawn"))


def figures_of(
    papers: Sequence[Paper], draws: Draws, kept: Mapping[Key, Kept] | None = None
) -> dict[Key, Kept]:
    """Return all figures: of the draws, and kept ones of rows without draws.

    If only some of a row's seeds are known, its kept figure stays if it has more seeds. The draws of a row count for
    equal rows of other tables, too.
    """
    found = dict(kept or {})
    for paper in papers:
        equal = equal_rows(paper)
        for table in paper.tables:
            for row in table.rows:
                known = [
                    first_known(draws, paper.name, equal[table.name, row.name], seed)
                    for seed in range(table.seeds)
                ]
                own = [draw for draw in known if draw is not None]
                if not own:
                    continue
                outcome = outcome_of(row, own, len(own))
                date = max(draw.date for draw in own)
                for column, figure in outcome.ours.items():
                    key = (paper.name, table.name, row.name, column)
                    if len(own) == table.seeds or key not in found or found[key].seeds <= len(own):
                        found[key] = Kept(len(own), figure, date, outcome.seconds)
    return found
