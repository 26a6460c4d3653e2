"""Run tables of a paper and show our figures beside the printed ones.

    python -m reproduce --list
    python -m reproduce fedsc --table iris --seeds 3 --out results/fedsc

With ``--out``, results.md and results.csv are written again after each row; the same command continues an interrupted
one. The pages in `strategies/docs/` are put together from such files.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.markdown import Markdown
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from reproduce.tables import (
    Draws,
    Figure,
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
    parser.add_argument("--out", type=Path, help="a folder for the results")
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
        return 0 if reproduce(find_paper(given.paper), console, given.table, given.seeds, given.out) else 1
    except (ValueError, FileExistsError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("Stopped; with --out, the same command continues.", file=sys.stderr)
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
                paper.name, table.name, Text(what), str(table.seeds), f"{minutes:.0f}" if minutes > 1 else "<1"
            )
        shown.add_section()
    console.print(shown)
    for paper in papers:
        _print_list(console, f"Not reproduced of {paper.name} ({paper.source}):", _lines(paper.not_reproduced))


def reproduce(
    paper: Paper, console: Console, tables: Sequence[str] = (), n_seeds: int | None = None, out: Path | None = None
) -> bool:
    """Run tables of a paper and print each; return whether something was run and no row failed."""
    chosen = paper.chosen(list(tables))
    not_run = {table.title: why for table in chosen if (why := table.why_not()) is not None}
    runnable = [table for table in chosen if table.title not in not_run]
    words = [paper.name, *(word for table in tables for word in ("--table", table))]
    command = shlex.join(["python", "-m", "reproduce", *words, *([] if n_seeds is None else ["--seeds", str(n_seeds)])])
    draws = Draws() if out is None else _open_folder(out, paper)
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
    failed = [f"{table.name}, {one.row.name}: {one.reason}" for table, rows in done for one in rows if one.reason]
    _print_list(console, "Could not be run:", failed)
    _print_list(console, "Not reproduced:", _lines({**not_run, **paper.not_reproduced}))
    return bool(runnable) and not failed


def table_lines(table: PaperTable, rows: Sequence[RowOutcome], *, deviations: bool = True) -> list[str]:
    """Return a table in Markdown: a line for each row, with our figures and the printed ones in parentheses."""
    n_seeds = rows[0].n_seeds if rows else table.seeds
    seeds = "One seed." if n_seeds == 1 else f"Mean{' ± standard deviation' if deviations else ''} of {n_seeds} seeds."
    beside = f" In parentheses: {table.beside}." if any(outcome.row.printed for outcome in rows) else ""
    lines = [f"## {table.title}", "", f"{seeds}{beside} {table.remark}".rstrip(), ""]
    measures = [column for column in table.columns if any(column in outcome.ours for outcome in rows)]
    lines += [f"| | {' | '.join(measures)} |", f"|---|{'--:|' * len(measures)}"]
    for outcome in rows:
        cells = ["could not be run"] if outcome.reason else [_cell(outcome, name, deviations) for name in measures]
        lines.append(f"| {' | '.join(map(_escaped, [outcome.row.name, *cells]))} |")
    return [*lines, ""]


def markdown(paper: Paper, outcomes: Outcomes, not_run: Mapping[str, str], command: str) -> str:
    """Return the results as a page, with the command, the versions and the date."""
    versions = ", ".join(f"{name} {version}" for name, version in installed_versions().items())
    lines = [f"# {paper.name}, reproduced", "", f"{paper.source}.", ""]
    lines += [f"`{command}`, {date.today().isoformat()}; {versions}.", ""]
    lines += ["The CSV file beside this page also has the standard deviations and the differences.", ""]
    said = ""
    for table, rows in outcomes:
        shown = table if table.remark != said else dataclasses.replace(table, remark="")  # not the same remark twice
        lines += table_lines(shown, rows, deviations=False)
        said = table.remark
    reasons = _lines({**not_run, **paper.not_reproduced})
    return "\n".join([*lines, "## Not reproduced", "", *(f"- {_escaped(line)}" for line in reasons), ""])


def _cell(outcome: RowOutcome, column: str, deviations: bool) -> str:
    """Return our figure and, in parentheses, the printed one."""
    if column not in outcome.ours:
        return ""
    shown = [
        str(figure if deviations else Figure(figure.mean))
        for figure in (outcome.ours[column], outcome.row.printed.get(column))
        if figure is not None
    ]
    return " (".join(shown) + ")" * (len(shown) - 1)


def _open_folder(out: Path, paper: Paper) -> Draws:
    draws = out / "draws.jsonl"
    if out.exists() and any(out.iterdir()) and not draws.exists():
        raise FileExistsError(f"{out} already holds something else; name a new folder.")
    out.mkdir(parents=True, exist_ok=True)
    return Draws(draws, paper.name)


def _write(out: Path, paper: Paper, outcomes: Outcomes, not_run: Mapping[str, str], command: str) -> None:
    unfinished = out / ".unfinished"
    unfinished.write_text(markdown(paper, outcomes, not_run, command), encoding="utf-8")
    unfinished.replace(out / "results.md")
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        printed = ("printed", "printed_deviation", "difference")
        writer.writerow(("table", "row", "column", "seeds", "ours", "deviation", *printed, "seconds", "reason"))
        for table, outcome in ((table, outcome) for table, rows in outcomes for outcome in rows):
            row, seconds = outcome.row, round(outcome.seconds, 3)
            for column, ours in (outcome.ours or {"": ("", "")}).items():
                beside = (*row.printed.get(column, ("", "")), outcome.difference(column))
                writer.writerow(
                    (table.name, row.name, column, outcome.n_seeds, *ours, *beside, seconds, outcome.reason)
                )
    unfinished.replace(out / "results.csv")


def _lines(reasons: Mapping[str, str]) -> list[str]:
    return [f"{what}: {why}" for what, why in reasons.items()]


def _print_list(console: Console, heading: str, lines: Sequence[str]) -> None:
    if lines:
        console.print("\n  ".join(("\n" + heading, *lines)), markup=False, highlight=False, soft_wrap=True)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
