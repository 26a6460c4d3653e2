"""Run tables of a paper and show our figures beside the printed ones.

    python -m reproduce --list
    python -m reproduce fedsc --table iris --seeds 3 --out results/fedsc

With ``--out``, results.md and results.csv are written again after each row; the same command continues an interrupted
one.

    python -m reproduce --everything results/everything

runs the tables of all papers that fit in three hours on two processors, and continues in the same way. Tables that
have no figures yet come first, and the quickest before the others. Its folder has everything.md, with every item of
every paper and the largest gaps first, a page for each paper, and kept.csv with all figures and their dates. Kept in
`strategies/docs/` and `strategies/reproduce/kept.csv`, they are what the next run starts from.
"""

from __future__ import annotations

import argparse
import csv
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.markdown import Markdown
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from reproduce.everything import Task, figures_of, read_kept, run, tasks_that_fit, write_kept
from reproduce.pages import Outcomes, lines_of_reasons, markdown, pages_of, table_lines
from reproduce.tables import (
    Draws,
    Paper,
    PaperTable,
    RowOutcome,
    find_paper,
    paper_names,
    run_table,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if something was run and no row failed."""
    parser = argparse.ArgumentParser(
        "python -m reproduce",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "paper", nargs="?", help=f"a paper or one of its strategies: {', '.join(paper_names())}"
    )
    parser.add_argument(
        "--table", action="append", default=[], help="one of its tables; may be repeated"
    )
    parser.add_argument(
        "--seeds", type=int, help="how many seeds; by default each table's own number"
    )
    parser.add_argument("--out", type=Path, help="a folder for the results")
    parser.add_argument(
        "--everything", type=Path, metavar="FOLDER", help="run all papers, and write one page"
    )
    parser.add_argument(
        "--hours", type=float, default=3.0, help="with --everything: for how long; 0 only writes"
    )
    parser.add_argument(
        "--processes", type=int, default=2, help="with --everything: how many at a time"
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="list the tables, their time, and what is not reproduced",
    )
    given = parser.parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a log has no width; 80 columns would cut the table
    try:
        if given.list:
            list_papers(
                [find_paper(name) for name in ([given.paper] if given.paper else paper_names())],
                console,
            )
            return 0
        if given.everything is not None:
            if (
                given.paper is not None
                or given.table
                or given.seeds is not None
                or given.out is not None
            ):
                parser.error("--everything takes no paper, --table, --seeds or --out")
            if not 0 <= given.hours < math.inf or given.processes < 1:
                parser.error("--hours must be a number of at least 0, and --processes at least 1")
            return (
                0
                if reproduce_everything(given.everything, console, given.hours, given.processes)
                else 1
            )
        if given.paper is None:
            parser.error(f"name a paper: {', '.join(paper_names())}")
        if given.seeds is not None and given.seeds < 1:
            parser.error("--seeds must be at least 1")
        return (
            0
            if reproduce(find_paper(given.paper), console, given.table, given.seeds, given.out)
            else 1
        )
    except (ValueError, FileExistsError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("Stopped; with --out or --everything, the same command continues.", file=sys.stderr)
        return 130


def list_papers(papers: Sequence[Paper], console: Console) -> None:
    """Print what can be run, about how long it takes, and what is not reproduced and why."""
    shown = Table("paper", "table", "what it is", "seeds", "minutes", highlight=False)
    for paper in papers:
        for table in paper.tables:
            why_not, minutes = table.why_not(), table.minutes * table.seeds
            what = table.title if why_not is None else f"{table.title} (not now: {why_not})"
            # Text, because a string's brackets (of an extra) are markup.
            shown.add_row(
                paper.name,
                table.name,
                Text(what),
                str(table.seeds),
                f"{minutes:.0f}" if minutes > 1 else "<1",
            )
        shown.add_section()
    console.print(shown)
    for paper in papers:
        _print_list(
            console,
            f"Not reproduced of {paper.name} ({paper.source}):",
            lines_of_reasons(paper.not_reproduced),
        )


def reproduce(
    paper: Paper,
    console: Console,
    tables: Sequence[str] = (),
    n_seeds: int | None = None,
    out: Path | None = None,
) -> bool:
    """Run tables of a paper and print each; return whether something was run and no row failed."""
    chosen = paper.chosen(list(tables))
    not_run = {table.title: why for table in chosen if (why := table.why_not()) is not None}
    runnable = [table for table in chosen if table.title not in not_run]
    words = [paper.name, *(word for table in tables for word in ("--table", table))]
    command = shlex.join(
        [
            "python",
            "-m",
            "reproduce",
            *words,
            *([] if n_seeds is None else ["--seeds", str(n_seeds)]),
        ]
    )
    draws = Draws() if out is None else _open_folder(out, paper.name)
    done: list[tuple[PaperTable, list[RowOutcome]]] = []
    for table in runnable:
        outcomes: list[RowOutcome] = []
        done.append((table, outcomes))
        bar = Progress(console=console)
        task = bar.add_task("runs", total=len(table.rows) * (n_seeds or table.seeds))
        with Live(bar, console=console) as live:
            for outcome in run_table(table, n_seeds, on_run=lambda: bar.advance(task), draws=draws):  # noqa: B023
                outcomes.append(outcome)
                live.update(Group(Markdown("\n".join(table_lines(table, outcomes))), bar))
                if out is not None:
                    _write(out, paper, done, not_run, command)
            live.update(Markdown("\n".join(table_lines(table, outcomes))))
    failed = [
        f"{table.name}, {one.row.name}: {one.reason}"
        for table, rows in done
        for one in rows
        if one.reason
    ]
    _print_list(console, "Could not be run:", failed)
    _print_list(console, "Not reproduced:", lines_of_reasons({**not_run, **paper.not_reproduced}))
    return bool(runnable) and not failed


def reproduce_everything(
    out: Path, console: Console, hours: float = 3.0, n_processes: int = 2
) -> bool:
    """Run the tables that fit in these hours, and write the pages; return whether no row failed."""
    papers = [find_paper(name) for name in paper_names()]
    draws = _open_folder(out, "everything")
    kept = read_kept()
    tasks = tasks_that_fit(papers, draws, 60.0 * hours * n_processes, kept)
    failed: dict[Task, str] = {}
    bar = Progress(console=console)
    try:
        with bar:
            of_all = bar.add_task("runs", total=len(tasks))
            failed = run(
                tasks,
                draws,
                seconds=3600.0 * hours,
                n_processes=n_processes,
                on_run=lambda _: bar.advance(of_all),
            )
    finally:
        figures = figures_of(papers, draws, kept)
        write_kept(out / "kept.csv", papers, figures)
        # The pages have the figures as they are kept, which are rounded.
        for name, text in pages_of(papers, read_kept(out / "kept.csv")).items():
            (out / name).write_text(text, encoding="utf-8")
    skipped = {
        table.title: why
        for paper in papers
        for table in paper.tables
        if (why := table.why_not()) is not None
    }
    _print_list(console, "Not run:", lines_of_reasons(skipped))
    left = sum(draws.known(*task) is None for task in tasks) - len(failed)
    if left:
        console.print(f"The time is over; {left} runs are left, and the same command continues.")
    _print_list(
        console,
        "Could not be run:",
        [f"{', '.join(map(str, task))}: {why}" for task, why in failed.items()],
    )
    console.print(f"Every item of the papers is in {out / 'everything.md'}.", soft_wrap=True)
    return not failed


def _open_folder(out: Path, paper: str) -> Draws:
    draws = out / "draws.jsonl"
    if out.exists() and any(out.iterdir()) and not draws.exists():
        raise FileExistsError(f"{out} already holds something else; name a new folder.")
    out.mkdir(parents=True, exist_ok=True)
    return Draws(draws, paper)


def _write(
    out: Path, paper: Paper, outcomes: Outcomes, not_run: Mapping[str, str], command: str
) -> None:
    unfinished = out / ".unfinished"
    unfinished.write_text(markdown(paper, outcomes, not_run, command), encoding="utf-8")
    unfinished.replace(out / "results.md")
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        printed = ("printed", "printed_deviation", "difference")
        writer.writerow(
            ("table", "row", "column", "seeds", "ours", "deviation", *printed, "seconds", "reason")
        )
        for table, outcome in ((table, outcome) for table, rows in outcomes for outcome in rows):
            row, seconds = outcome.row, round(outcome.seconds, 3)
            for column, ours in (outcome.ours or {"": ("", "")}).items():
                beside = (*row.printed.get(column, ("", "")), outcome.difference(column))
                writer.writerow(
                    (
                        table.name,
                        row.name,
                        column,
                        outcome.n_seeds,
                        *ours,
                        *beside,
                        seconds,
                        outcome.reason,
                    )
                )
    unfinished.replace(out / "results.csv")


def _print_list(console: Console, heading: str, lines: Sequence[str]) -> None:
    if lines:
        console.print(
            "\n  ".join(("\n" + heading, *lines)), markup=False, highlight=False, soft_wrap=True
        )


if __name__ == "__main__":
    sys.exit(main())
