"""Reproduced tables for a person to read: in the terminal, as CSV and as Markdown."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable
from rich.text import Text

from flower_fedclust.harness.folder import installed_versions
from flower_fedclust.harness.reproduce.draws import Draws
from flower_fedclust.harness.reproduce.tables import Paper, PaperTable, RowOutcome
from flower_fedclust.results.saving import empty_folder

#: Tables, and the outcomes of each so far.
Outcomes = Sequence[tuple[PaperTable, Sequence[RowOutcome]]]

#: The file of a folder that has what each seed gave.
DRAWS = "draws.jsonl"

_CSV_COLUMNS = (
    *("paper", "table", "title", "row", "column", "seeds", "ours", "deviation"),
    *("beside", "printed", "printed_deviation", "difference", "seconds", "reason"),
)


def rich_table(table: PaperTable, outcomes: Sequence[RowOutcome]) -> RichTable:
    """Return a table with a line for each row and column: our figure, the paper's and the difference."""
    shown = RichTable(
        title=table.title, title_justify="left", caption=table.remark or None, caption_justify="left", highlight=False
    )
    shown.add_column("", overflow="fold")
    shown.add_column("measure", overflow="fold")
    for heading in ("ours", table.beside, "difference"):
        shown.add_column(heading, justify="right")
    for outcome in outcomes:
        for cells in _cells(table, outcome):
            shown.add_row(*cells)
        shown.add_section()
    return shown


def reason_lines(outcomes: Outcomes) -> list[str]:
    """Return a line for each row that could not be run, with the reason."""
    rows = [(table, outcome) for table, rows in outcomes for outcome in rows if outcome.reason]
    return [f"{table.name}, {outcome.row.name}: {outcome.reason}" for table, outcome in rows]


def not_run_lines(paper: Paper, not_run: Mapping[str, str]) -> list[str]:
    """Return a line for everything that was not run: tables (by title) of this command, and the rest of the paper."""
    return [f"{what}: {why}" for what, why in {**not_run, **paper.not_reproduced}.items()]


def list_table(papers: Sequence[Paper]) -> RichTable:
    """Return what can be run of some papers, and about how long it takes."""
    shown = RichTable("paper", "table", "what it is", "seeds", "takes about", highlight=False)
    for paper in papers:
        for table in paper.tables:
            why_not, minutes = table.why_not(), table.minutes * table.n_seeds
            # As Text, because what stands between brackets (an extra) is markup in a string.
            what = Text(table.title if why_not is None else f"{table.title} (not now: {why_not})")
            long = f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.0f} h"
            shown.add_row(
                paper.name, table.name, what, str(table.n_seeds), "less than a minute" if minutes < 1 else long
            )
        shown.add_section()
    return shown


class ReproductionFolder:
    """A folder with ``results.csv`` and ``results.md``, which are written again after each row, and with the draws.

    It is new, or has the draws of the same paper, which are not made again.

    Parameters
    ----------
    path : str or Path
    paper : Paper
    command : str
        The command that was typed, for the reader of the results.

    Raises
    ------
    FileExistsError
        If the folder already holds something else, or draws of other versions.
    """

    def __init__(self, path: str | Path, paper: Paper, command: str) -> None:
        holds_draws = Path(path, DRAWS).exists()
        self.path = Path(path).absolute() if holds_draws else empty_folder(path)
        self.paper = paper
        self.command = command
        self.path.mkdir(parents=True, exist_ok=True)
        self.draws = Draws(self.path / DRAWS, paper.name)

    def write(self, outcomes: Outcomes, not_run: Mapping[str, str]) -> None:
        """Write the outcomes so far; each file is replaced as a whole."""
        text = markdown(self.paper, outcomes, not_run, self.command)
        unfinished = self.path / ".unfinished"
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(self.path / "results.md")
        with unfinished.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, _CSV_COLUMNS)
            writer.writeheader()
            writer.writerows(_csv_rows(self.paper, outcomes))
        unfinished.replace(self.path / "results.csv")


def markdown(paper: Paper, outcomes: Outcomes, not_run: Mapping[str, str], command: str) -> str:
    """Return the results as Markdown, with the command, the versions and the date."""
    versions = ", ".join(f"{name.replace('_', '-')} {found}" for name, found in installed_versions().items() if found)
    lines = [f"# {paper.name}, reproduced", "", f"{paper.source}.", ""]
    lines += [f"`{command}`, {date.today().isoformat()}; {versions}.", ""]
    for table, rows in outcomes:
        lines += [f"## {table.title}", ""]
        if rows:
            n_seeds = rows[0].n_seeds
            seeds = "One seed" if n_seeds == 1 else f"Mean ± standard deviation of {n_seeds} seeds"
            lines += [f"{seeds}. {table.remark}".rstrip(), ""]
        lines += [f"| | measure | ours | {table.beside} | difference |", "|---|---|--:|--:|--:|"]
        lines += [f"| {' | '.join(map(_escaped, cells))} |" for outcome in rows for cells in _cells(table, outcome)]
        lines.append("")
    lines += ["## Not reproduced", "", *(f"- {_escaped(line)}" for line in not_run_lines(paper, not_run)), ""]
    return "\n".join(lines)


def _cells(table: PaperTable, outcome: RowOutcome) -> Iterator[tuple[str, ...]]:
    """Yield row, measure, our figure, the paper's and the difference; the name of the row stands in the first only."""
    name = outcome.row.name
    if outcome.reason:
        yield name, "", "could not be run", "", ""
        return
    for column in table.columns:
        if column in outcome.ours:
            difference = outcome.difference(column)
            yield (
                name,
                column,
                str(outcome.ours[column]),
                str(outcome.row.printed.get(column, "")),
                "" if difference is None else f"{difference:+.4f}",
            )
            name = ""


def _csv_rows(paper: Paper, outcomes: Outcomes) -> Iterator[dict[str, Any]]:
    for table, rows in outcomes:
        for outcome in rows:
            common = {
                "paper": paper.name,
                "table": table.name,
                "title": table.title,
                "row": outcome.row.name,
                "seeds": outcome.n_seeds,
                "seconds": round(outcome.seconds, 3),
                "reason": outcome.reason,
            }
            if outcome.reason:
                yield common
            for column, ours in outcome.ours.items():
                printed = outcome.row.printed.get(column)
                yield common | {
                    "column": column,
                    "ours": ours.mean,
                    "deviation": ours.deviation,
                    "beside": "" if printed is None else table.beside,
                    "printed": None if printed is None else printed.mean,
                    "printed_deviation": None if printed is None else printed.deviation,
                    "difference": outcome.difference(column),
                }


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
