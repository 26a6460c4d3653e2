"""Pages of results: a paper with its tables, and one page with every item of every paper."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import accumulate

from reproduce.everything import Kept, Key
from reproduce.tables import Experiment, Figure, Paper, PaperTable, RowOutcome, installed_versions

NOT_RUN = "not run yet."
SOME_NOT_RUN = "some rows have not been run yet."
NOT_POSSIBLE = "not possible"

#: Of one core: three hours on two.
MINUTES = 360.0

#: Tables, and the outcomes of each so far.
Outcomes = Sequence[tuple[PaperTable, Sequence[RowOutcome]]]


def table_lines(
    table: PaperTable, rows: Sequence[RowOutcome], *, deviations: bool = True, dates: str = ""
) -> list[str]:
    """Return a table in Markdown: a line for each row, with our figures and the printed ones in parentheses."""
    counts = sorted({outcome.n_seeds for outcome in rows}) or [table.seeds]
    number = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    seeds = (
        "One seed."
        if counts == [1]
        else f"Mean{' ± standard deviation' if deviations else ''} of {number} seeds."
    )
    beside = (
        f" In parentheses: {table.beside}." if any(outcome.row.printed for outcome in rows) else ""
    )
    measured = f"`{table.name}`, {dates}. " if dates else ""
    lines = [f"## {table.title}", "", f"{measured}{seeds}{beside} {table.remark}".rstrip(), ""]
    measures = [
        column for column in table.columns if any(column in outcome.ours for outcome in rows)
    ]
    lines += [f"| | {' | '.join(measures)} |", f"|---|{'--:|' * len(measures)}"]
    for outcome in rows:
        cells = (
            ["could not be run"]
            if outcome.reason
            else [_cell(outcome, name, deviations) for name in measures]
        )
        lines.append(f"| {' | '.join(map(escaped, [outcome.row.name, *cells]))} |")
    return [*lines, ""]


def markdown(paper: Paper, outcomes: Outcomes, not_run: Mapping[str, str], command: str) -> str:
    """Return the results as a page, with the command, the versions and the date."""
    versions = ", ".join(f"{name} {version}" for name, version in installed_versions().items())
    lines = [f"# {paper.name}, reproduced", "", f"{paper.source}.", ""]
    lines += [f"`{command}`, {date.today().isoformat()}; {versions}.", ""]
    lines += [
        "The CSV file beside this page also has the standard deviations and the differences.",
        "",
    ]
    return "\n".join(
        [*lines, *_tables([(*one, "") for one in outcomes]), *_not_reproduced(paper, not_run)]
    )


def _tables(outcomes: Sequence[tuple[PaperTable, Sequence[RowOutcome], str]]) -> Iterator[str]:
    """Yield the lines of tables with dates."""
    said = ""
    for table, rows, dates in outcomes:
        # Not the same remark twice.
        shown = table if table.remark != said else dataclasses.replace(table, remark="")
        yield from table_lines(shown, rows, deviations=False, dates=dates)
        said = table.remark


def _not_reproduced(paper: Paper, not_run: Mapping[str, str]) -> list[str]:
    reasons = lines_of_reasons({**not_run, **paper.not_reproduced})
    return ["## Not reproduced", "", *(f"- {escaped(line)}" for line in reasons), ""]


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


def lines_of_reasons(reasons: Mapping[str, str]) -> list[str]:
    """Return a line for each thing that is not reproduced, with the reason."""
    return [f"{what}: {why}" for what, why in reasons.items()]


def escaped(text: str) -> str:
    """Return a text for a cell of a table."""
    return text.replace("|", "\\|")


# Every item of every paper.


@dataclass(frozen=True)
class Line:
    """A line of the page: an item of a paper, and the figure that is the farthest below the printed one."""

    paper: str
    item: str
    what: str = ""  #: Row and column of the figure.
    printed: str = ""
    ours: str = ""
    gap: float | None = None  #: Ours less the printed figure.
    shortfall: float = 0.0  #: By how much ours is worse.
    as_good: str = ""  #: How many of the item's figures are at least as good as the printed ones.
    measured: str = ""  #: Seeds and date.
    reasons: tuple[str, ...] = ()  #: Why figures differ, or why there are none.


def lines_of(paper: Paper, figures: Mapping[Key, Kept]) -> Iterator[Line]:
    """Yield the lines of a paper.

    A table has a line for the paper's own methods and one for the methods beside them; each has the figure with the
    largest gap. A table without printed figures has one line, and so has an item that is not reproduced.
    """
    for table in paper.tables:
        printed = [
            (row, column, figure) for row in table.rows for column, figure in row.printed.items()
        ]
        for own in (True, False):
            group = [one for one in printed if paper.is_own(*one[:2]) == own]
            if group:
                yield _line_of_group(paper, table, group, _reasons_of(paper, table, own), figures)
        if not printed:
            of_table = [
                kept for key, kept in figures.items() if key[:2] == (paper.name, table.name)
            ]
            rows = {key[2] for key in figures if key[:2] == (paper.name, table.name)}
            missing = (SOME_NOT_RUN,) if len(rows) < len(table.rows) else ()
            yield Line(
                paper.name,
                table.title,
                printed="none",
                ours=_figures(len(of_table)) if of_table else "",
                measured=_when(*of_table) if of_table else "",
                reasons=missing if of_table else (NOT_RUN,),
            )
    for item, reason in paper.not_reproduced.items():
        substitutes = [
            kept
            for key, kept in figures.items()
            if key[0] == paper.name and key[1] in paper.instead.get(item, ())
        ]
        yield Line(
            paper.name,
            item,
            ours=f"{NOT_POSSIBLE}; instead {_figures(len(substitutes))}"
            if substitutes
            else NOT_POSSIBLE,
            measured=_when(*substitutes) if substitutes else "",
            reasons=(reason,),
        )


def _reasons_of(paper: Paper, table: PaperTable, own: bool) -> tuple[str, ...]:
    """Return why figures of a table can differ: of the paper's own methods, or of those beside them."""
    if own:
        return table.reasons
    of_all = (reason for reason in table.reasons if reason not in paper.reasons_of_own)
    return (*of_all, *paper.reasons_of_others)


def _line_of_group(
    paper: Paper,
    table: PaperTable,
    printed: Sequence[tuple[Experiment, str, Figure]],
    reasons: tuple[str, ...],
    figures: Mapping[Key, Kept],
) -> Line:
    """Return the line of some printed figures of a table: the one that is the farthest above ours."""
    found = [
        (row, column, figure, kept)
        for row, column, figure in printed
        if (kept := figures.get((paper.name, table.name, row.name, column))) is not None
    ]
    if not found:
        return Line(
            paper.name, table.title, printed=_figures(len(printed)), reasons=(NOT_RUN, *reasons)
        )
    sign = 1.0 if table.better == "lower" else -1.0
    shortfalls = [sign * (kept.figure.mean - figure.mean) for _, _, figure, kept in found]
    n_good = sum(shortfall <= 0 for shortfall in shortfalls)
    row, column, figure, kept = found[shortfalls.index(max(shortfalls))]
    return Line(
        paper.name,
        table.title,
        f"{row.name}: {column}",
        str(Figure(figure.mean)),
        str(Figure(kept.figure.mean)),
        kept.figure.mean - figure.mean,
        max(shortfalls),
        f"{n_good} of {len(found)}",
        _when(*(one[3] for one in found)),
        (*reasons, *([SOME_NOT_RUN] if len(found) < len(printed) else [])),
    )


def _figures(count: int) -> str:
    return f"{count} figure{'s' * (count > 1)}"


def _when(*kept: Kept) -> str:
    fewest, most = min(one.seeds for one in kept), max(one.seeds for one in kept)
    number = str(most) if fewest == most else f"{fewest} to {most}"
    return f"{number} seed{'s' * (most > 1)}, {_dates(kept)}"


def _dates(kept: Sequence[Kept]) -> str:
    first, last = min(one.date for one in kept), max(one.date for one in kept)
    return first if first == last else f"{first} to {last}"


def pages_of(papers: Sequence[Paper], figures: Mapping[Key, Kept]) -> dict[str, str]:
    """Return all pages by the names of their files: one with every item, and one for each paper."""
    return {"everything.md": page(papers, figures)} | {
        f"{paper.name}.md": page_of_paper(paper, figures) for paper in papers
    }


def page_of_paper(paper: Paper, figures: Mapping[Key, Kept]) -> str:
    """Return the page of a paper: its tables with the dates of their figures."""
    outcomes = list(outcomes_of(paper, figures))
    without = {table.title for table in paper.tables} - {table.title for table, _, _ in outcomes}
    lines = [f"# {paper.name}, reproduced", "", f"{paper.source}.", ""]
    lines += [
        "Each table begins with its name in the command, "
        f"`python -m reproduce {paper.name} --table NAME`, and with the date of its figures.",
        "",
    ]
    return "\n".join(
        [
            *lines,
            *_tables(outcomes),
            *_not_reproduced(paper, dict.fromkeys(sorted(without), NOT_RUN)),
        ]
    )


def page(papers: Sequence[Paper], figures: Mapping[Key, Kept]) -> str:
    """Return the page with every item of every paper, the largest gaps first."""
    lines = [line for paper in papers for line in lines_of(paper, figures)]
    worse = sorted((line for line in lines if line.shortfall > 0), key=lambda line: -line.shortfall)
    absent = [
        line
        for line in lines
        if line.gap is None and (not line.measured or line.ours.startswith(NOT_POSSIBLE))
    ]
    others = [line for line in lines if line.gap is not None and line.shortfall <= 0]
    unprinted = [line for line in lines if line.gap is None and line not in absent]
    shown = [*worse, *absent, *others, *unprinted]
    reasons = list(dict.fromkeys(reason for line in shown for reason in line.reasons))
    n_better, n_compared = _compared(papers, figures)
    lengths = sorted(
        (table.minutes * table.seeds, f"{paper.name} {table.name}")
        for paper in papers
        for table in paper.tables
    )
    ends = accumulate(minutes for minutes, _ in lengths)
    too_long = [name for (_, name), end in zip(lengths, ends, strict=True) if end > MINUTES]
    hours = sum(minutes for minutes, _ in lengths) / 60
    text = [
        "# Every item of the papers, printed and ours",
        "",
        "`python -m reproduce --everything FOLDER` writes this page, and a page for each paper with all figures. It "
        "runs the tables that fit in three hours on two cores, and keeps older figures of the others, with their "
        f"dates. All tables together take about {hours:.0f} hours of one core"
        f"{'; too long are ' + ', '.join(too_long) if too_long else ''}.",
        "",
        f"Of {n_compared} printed figures, {n_compared - n_better} of ours are at least as good. A line is a table or "
        "a figure of a paper: first the paper's own methods, then, in a line of their own, the methods beside them. "
        "It shows the figure that is the farthest below the printed one, and in how many figures ours are at least "
        "as good. The largest gaps come first, then items without figures of ours, items without a gap, and items "
        "without printed numbers. The numbers in the last column are reasons below the table.",
        "",
        "| paper | item | row: column | printed | ours | gap | as good | measured | why |",
        "|---|---|---|--:|--:|--:|--:|---|---|",
    ]
    for line in shown:
        cells = (
            f"[{line.paper}]({line.paper}.md)",
            line.item,
            line.what,
            line.printed,
            line.ours,
            "" if line.gap is None else f"{line.gap:+.4f}",
            line.as_good,
            line.measured,
            ", ".join(str(reasons.index(reason) + 1) for reason in line.reasons),
        )
        text.append(f"| {' | '.join(map(escaped, cells))} |")
    text += ["", "## Reasons", ""]
    return "\n".join(
        [
            *text,
            *(f"{n}. {reason[0].upper() + reason[1:]}" for n, reason in enumerate(reasons, 1)),
            "",
        ]
    )


def _compared(papers: Sequence[Paper], figures: Mapping[Key, Kept]) -> tuple[int, int]:
    """Count the printed figures that are better than ours, and all that have one of ours beside them."""
    shortfalls = [
        (1.0 if table.better == "lower" else -1.0) * (kept.figure.mean - figure.mean)
        for paper in papers
        for table in paper.tables
        for row in table.rows
        for column, figure in row.printed.items()
        if (kept := figures.get((paper.name, table.name, row.name, column))) is not None
    ]
    return sum(shortfall > 0 for shortfall in shortfalls), len(shortfalls)


def outcomes_of(
    paper: Paper, figures: Mapping[Key, Kept]
) -> Iterator[tuple[PaperTable, list[RowOutcome], str]]:
    """Yield the tables that have figures, with their rows and dates."""
    for table in paper.tables:
        rows: list[RowOutcome] = []
        dates: list[Kept] = []
        for row in table.rows:
            found = {
                column: figures.get((paper.name, table.name, row.name, column))
                for column in row.columns
            }
            own = {column: kept for column, kept in found.items() if kept is not None}
            if own:
                seeds = max(kept.seeds for kept in own.values())
                ours = {column: kept.figure for column, kept in own.items()}
                rows.append(
                    RowOutcome(row, seeds, ours, max(kept.seconds for kept in own.values()))
                )
                dates += own.values()
        if rows:
            yield table, rows, _dates(dates)


#: "Tables 1 and 3", "Figure 2", "Tables 2 to 5".
_NUMBER = r"(?:\d{1,2}|[IVX]+)\b(?!,\d)"
_ITEMS = re.compile(rf"(Table|Figure)s? ({_NUMBER}(?:(?:, | and | to ){_NUMBER})*)")


def items_named(text: str) -> set[str]:
    """Return the tables and figures that a title names."""
    found = set()
    for kind, numbers in _ITEMS.findall(text):
        for part in re.split(", | and ", numbers):
            first, _, last = part.partition(" to ")
            found |= {
                f"{kind} {n}" for n in (range(int(first), int(last) + 1) if last else [first])
            }
    return found
