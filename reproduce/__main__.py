"""Run tables of a paper and show our figures beside the printed ones.

    python -m reproduce --list
    python -m reproduce fedsc --table iris --seeds 3 --out results/fedsc

With ``--out``, results.md and results.csv are written again after each row; the same command continues an interrupted
one. `docs/reproduced/` holds such files.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from reproduce.measures import DRAWINGS
from reproduce.tables import (
    DRAWS,
    Draws,
    Paper,
    PaperTable,
    RowOutcome,
    find_paper,
    installed_versions,
    paper_names,
    run_table,
)

#: Tables, and the outcomes of each so far.
Outcomes = Sequence[tuple[PaperTable, Sequence[RowOutcome]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if something was run and no row failed."""
    parser = argparse.ArgumentParser(
        "python -m reproduce", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paper", nargs="?", help=f"a paper or one of its strategies: {', '.join(paper_names())}")
    parser.add_argument("--table", action="append", default=[], help="one of its tables; may be repeated")
    parser.add_argument("--seeds", type=int, help="how many seeds; by default each table's own number")
    parser.add_argument("--out", type=Path, help="a folder for the results and for pictures")
    parser.add_argument("--list", action="store_true", help="list the tables, their time, and what is not reproduced")
    given = parser.parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a log has no width; 80 columns would cut the table
    try:
        if given.list:
            list_papers([find_paper(name) for name in ([given.paper] if given.paper else paper_names())], console)
            return 0
        if given.paper is None:
            parser.error(f"name a paper: {', '.join(paper_names())}")
        if given.seeds is not None and given.seeds < 1:
            parser.error("--seeds must be at least 1")
        paper = find_paper(given.paper)
        return 0 if reproduce(paper, console, given.table, given.seeds, given.out) else 1
    except (ValueError, FileExistsError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("Stopped; with --out, the same command continues.", file=sys.stderr)
        return 130


def list_papers(papers: Sequence[Paper], console: Console) -> None:
    """Print what can be run, about how long it takes, and what is not reproduced and why."""
    shown = Table("paper", "table", "what it is", "seeds", "takes about", highlight=False)
    for paper in papers:
        for table in paper.tables:
            why_not, minutes = table.why_not(), table.minutes * table.n_seeds
            what = table.title if why_not is None else f"{table.title} (not now: {why_not})"
            long = f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.0f} h"
            long = "less than a minute" if minutes < 1 else long
            # Text, because a string's brackets (of an extra) are markup.
            shown.add_row(paper.name, table.name, Text(what), str(table.n_seeds), long)
        shown.add_section()
    console.print(shown)
    for paper in papers:
        _print_list(console, f"Not reproduced of {paper.name} ({paper.source}):", _lines(paper.not_reproduced))


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
    not_run |= {one.title: "it is a picture; give a folder with --out." for one in chosen if one.draw and out is None}
    runnable = [table for table in chosen if table.title not in not_run]
    words = [paper.name, *(word for table in tables for word in ("--table", table))]
    command = shlex.join(["python", "-m", "reproduce", *words, *([] if n_seeds is None else ["--seeds", str(n_seeds)])])
    draws = Draws() if out is None else _open_folder(out, paper)
    done: list[tuple[PaperTable, list[RowOutcome]]] = []
    for table in runnable:
        if table.draw and out is not None:
            _print_list(console, f"{table.title}:", DRAWINGS[table.draw](out))
            continue
        outcomes: list[RowOutcome] = []
        done.append((table, outcomes))
        bar = Progress(console=console)
        bar.add_task("runs", total=len(table.rows) * (table.n_seeds if n_seeds is None else n_seeds))
        with Live(bar, console=console) as live:
            for outcome in run_table(table, n_seeds, on_run=lambda: bar.advance(bar.task_ids[0]), draws=draws):  # noqa: B023
                outcomes.append(outcome)
                live.update(Group(rich_table(table, outcomes), bar))
                if out is not None:
                    _write(out, paper, done, not_run, command)
            live.update(rich_table(table, outcomes))
    if out is not None:
        _write(out, paper, done, not_run, command)
    failed = [f"{table.name}, {one.row.name}: {one.reason}" for table, rows in done for one in rows if one.reason]
    _print_list(console, "Could not be run:", failed)
    _print_list(console, "Not reproduced:", _lines({**not_run, **paper.not_reproduced}))
    return bool(runnable) and not failed


def rich_table(table: PaperTable, outcomes: Sequence[RowOutcome]) -> Table:
    """Return a table with a line for each row and column: our figure, the paper's and the difference."""
    shown = Table(title=table.title, caption=table.remark or None, caption_justify="left", highlight=False)
    shown.add_column("", overflow="fold")
    shown.add_column("measure", overflow="fold")
    for heading in ("ours", table.beside, "difference"):
        shown.add_column(heading, justify="right")
    for outcome in outcomes:
        for cells in _cells(outcome):
            shown.add_row(*cells)
        shown.add_section()
    return shown


def markdown(paper: Paper, outcomes: Outcomes, not_run: Mapping[str, str], command: str) -> str:
    """Return the results as a page, with the command, the versions and the date."""
    versions = ", ".join(f"{name} {version}" for name, version in installed_versions().items())
    lines = [f"# {paper.name}, reproduced", "", f"{paper.source}.", ""]
    lines += [f"`{command}`, {date.today().isoformat()}; {versions}.", ""]
    for table, rows in outcomes:
        lines += [f"## {table.title}", ""]
        if rows:
            n_seeds = rows[0].n_seeds
            seeds = "One seed" if n_seeds == 1 else f"Mean ± standard deviation of {n_seeds} seeds"
            lines += [f"{seeds}. {table.remark}".rstrip(), ""]
        lines += [f"| | measure | ours | {table.beside} | difference |", "|---|---|--:|--:|--:|"]
        for outcome in rows:
            lines += [f"| {' | '.join(map(_escaped, cells))} |" for cells in _cells(outcome)]
        lines.append("")
    reasons = _lines({**not_run, **paper.not_reproduced})
    return "\n".join([*lines, "## Not reproduced", "", *(f"- {_escaped(line)}" for line in reasons), ""])


def _cells(outcome: RowOutcome) -> Iterator[tuple[str, ...]]:
    """Yield row, measure, our figure, the paper's and the difference; only the first line has the row's name."""
    name = outcome.row.name
    if outcome.reason:
        yield name, "", "could not be run", "", ""
    for column, ours in outcome.ours.items():
        difference = outcome.difference(column)
        printed = str(outcome.row.printed.get(column, ""))
        yield name, column, str(ours), printed, "" if difference is None else f"{difference:+.4f}"
        name = ""


def _open_folder(out: Path, paper: Paper) -> Draws:
    if out.exists() and any(out.iterdir()) and not (out / DRAWS).exists():
        raise FileExistsError(f"{out} already holds something else; name a new folder.")
    out.mkdir(parents=True, exist_ok=True)
    return Draws(out / DRAWS, paper.name)


def _write(out: Path, paper: Paper, outcomes: Outcomes, not_run: Mapping[str, str], command: str) -> None:
    unfinished = out / ".unfinished"
    unfinished.write_text(markdown(paper, outcomes, not_run, command), encoding="utf-8")
    unfinished.replace(out / "results.md")
    lines = [line for table, rows in outcomes for outcome in rows for line in _csv_lines(table, outcome)]
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("table", "row", "column", "seeds", "ours", "deviation", *_PRINTED, "seconds", "reason"))
        writer.writerows(lines)
    unfinished.replace(out / "results.csv")


_PRINTED = ("printed", "printed_deviation", "difference")


def _csv_lines(table: PaperTable, outcome: RowOutcome) -> Iterator[tuple[Any, ...]]:
    seconds = round(outcome.seconds, 3)
    if outcome.reason:
        yield table.name, outcome.row.name, "", outcome.n_seeds, *[""] * 5, seconds, outcome.reason
    for column, ours in outcome.ours.items():
        printed = (*outcome.row.printed.get(column, ("", "")), outcome.difference(column))
        yield table.name, outcome.row.name, column, outcome.n_seeds, *ours, *printed, seconds, ""


def _lines(reasons: Mapping[str, str]) -> list[str]:
    return [f"{what}: {why}" for what, why in reasons.items()]


def _print_list(console: Console, heading: str, lines: Sequence[str]) -> None:
    if lines:
        console.print("\n  ".join(("\n" + heading, *lines)), markup=False, highlight=False, soft_wrap=True)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
