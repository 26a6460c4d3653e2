"""Table One, as papers print it: a column for all rows and one for each cluster, and each number with its error."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.tables import words
from flower_fedclust.tables.estimates import MEAN, MISSING, QUANTILES, SPREAD, Estimate
from flower_fedclust.tables.floors import DEVIATIONS, ROWS
from flower_fedclust.tables.schema import MEASURED, Column

Floats = NDArray[np.float64]

#: With more clusters than this, Table One is too wide to be printed or shown on a page, and is only saved in files.
WIDEST_TABLE = 8
#: The text of a cell whose number may not be printed.
NOTHING = "–"
#: The label of a line of standardized mean differences.
SMD = "  SMD to the rest"
#: A spreadsheet runs a cell that begins with one of these as a formula.
_RUN = tuple("=+-@\t\r")
_LATEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


@dataclass(frozen=True)
class TableOne:
    """The table that papers begin with: ``print(table)``, or a file as CSV, Markdown or LaTeX.

    Parameters
    ----------
    heading : tuple of str
        The headings of the columns; the first column holds the labels of the lines.
    lines : tuple of tuple of str
        A label, and a cell for each other column.
    notes : tuple of str
        Sentences that a reader needs to understand the numbers.
    """

    heading: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [self.heading, *self.lines]
        of_labels, *widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        texts = []
        for label, *cells in lines:
            padded = [label.ljust(of_labels)]
            padded += [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
            texts.append("  ".join(padded).rstrip())
        return "\n".join([*texts, *self.notes])

    __repr__ = __str__

    @property
    def width(self) -> int:
        """The number of characters in the longest line of the text, without the notes."""
        return max(map(len, str(self).splitlines()[: 1 + len(self.lines)]))

    def markdown(self) -> str:
        """Return the table in Markdown."""
        rows = [self.heading, ("---", *["---:"] * (len(self.heading) - 1)), *self.lines]
        said = [f"| {' | '.join(_in_markdown(cell) for cell in row)} |" for row in rows]
        return "\n".join([*said, "", *self.notes]) + "\n"

    def latex(self) -> str:
        """Return a LaTeX tabular, which needs the package booktabs."""
        first, *others = (
            " & ".join(map(_in_latex, row)) + r" \\" for row in (self.heading, *self.lines)
        )
        layout = f"l{'r' * (len(self.heading) - 1)}"
        body = [
            rf"\begin{{tabular}}{{{layout}}}",
            r"\toprule",
            first,
            r"\midrule",
            *others,
            r"\bottomrule",
        ]
        return "\n".join([*body, r"\end{tabular}", *(f"% {note}" for note in self.notes)]) + "\n"

    def save(self, folder: str | Path, name: str = "table-one") -> list[Path]:
        """Write NAME.csv, NAME.md and NAME.tex into a folder, which may be new, and return their absolute paths."""
        stem = Path(folder).absolute() / name
        stem.parent.mkdir(parents=True, exist_ok=True)
        files = [stem.with_name(f"{name}.{ending}") for ending in ("csv", "md", "tex")]
        with files[0].open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerows(
                (_as_label(label), *cells) for label, *cells in (self.heading, *self.lines)
            )
        files[1].write_text(self.markdown(), encoding="utf-8")
        files[2].write_text(self.latex(), encoding="utf-8")
        return files


def _as_label(text: str) -> str:
    """Return a label, with a quote in front if a spreadsheet would run it as a formula."""
    return f"'{text}" if text.startswith(_RUN) else text


def _in_markdown(text: str) -> str:
    """Escape a cell for Markdown, and keep its indentation."""
    inside = text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
    n_spaces = len(inside) - len(inside.lstrip(" "))
    return "&nbsp;" * n_spaces + inside.lstrip(" ")


def _in_latex(text: str) -> str:
    """Escape a cell for LaTeX, and keep its indentation."""
    n_spaces = len(text) - len(text.lstrip(" "))
    return r"\quad " * (n_spaces // 2) + "".join(
        _LATEX.get(letter, letter) for letter in text.strip()
    )


# Lines. The last group holds all rows, and is printed first.

Numbers = Mapping[str, Estimate]


def lines_of_sizes(
    counts: Floats | None, noise: Floats, shares: Estimate, counted: str
) -> list[tuple[str, ...]]:
    """Return the lines about sizes: the numbers of rows (unless the sums count clients), and the shares.

    In ``counts``, ``noise`` and ``shares``, the last entry is about all rows.
    """
    lines = []
    hidden = shares.is_hidden
    if counts is not None:
        told = [
            words.with_error(count, DEVIATIONS * error)
            for count, error in zip(counts, noise, strict=True)
        ]
        cells = [
            _fewer(shares, place).partition(" (")[0] if hidden[place] else said
            for place, said in enumerate(told)
        ]
        lines.append(_line("n" if counted == ROWS else f"n ({counted})", cells))
    return [*lines, _line("share", [_share(shares, place) for place in range(len(hidden))])]


def lines_of_column(
    name: str,
    column: Column,
    ends: Sequence[float],
    numbers: Numbers,
    smd: Mapping[str, tuple[Floats, Floats]],
    few: NDArray[np.bool_],
) -> list[tuple[str, ...]]:
    """Return the lines about one column of the table.

    A measured column has a line for mean and standard deviation and one for the median and
    quartiles; a listed one has a line for the share of each category. Lines with standardized mean
    differences follow.

    Parameters
    ----------
    name : str
    column : Column
    ends : sequence of float
        The bounds of a measured column.
    numbers : mapping of str to Estimate
        The estimates of each cluster; the last entry is about all rows.
    smd : mapping of str to (differences, errors)
    few : ndarray of bool
        Which groups have too few rows to print any number.
    """

    def cells(said: Sequence[str]) -> list[str]:
        return [NOTHING if hidden else text for text, hidden in zip(said, few, strict=True)]

    def differences(number: str) -> list[tuple[str, ...]]:
        told = [_difference(*pair) for pair in zip(*smd[number], strict=True)]
        return [_line(SMD, [*cells([*told, ""])[:-1], ""])]

    lines, places = [], range(len(few))
    if column.kind in MEASURED:
        unit = f", {column.unit}" if column.unit else ""
        means = [_mean_and_spread(column, numbers, place, ends) for place in places]
        quartiles = [_median_and_quartiles(column, numbers, place) for place in places]
        lines += [_line(f"{name}{unit}: mean (sd)", cells(means)), *differences(MEAN)]
        lines.append(_line("  median (quartiles)", cells(quartiles)))
        if MISSING in numbers:
            lines.append(
                _line(
                    f"{name}: {MISSING}",
                    cells([_share(numbers[MISSING], place) for place in places]),
                )
            )
        return lines
    for number in numbers:
        lines.append(
            _line(f"{name}: {number}", cells([_share(numbers[number], place) for place in places]))
        )
        lines += differences(number)
    return lines


def standardized(
    cluster: Estimate,
    rest: Estimate,
    own_spread: Estimate | None = None,
    rest_spread: Estimate | None = None,
) -> tuple[Floats, Floats]:
    """Return the standardized mean difference of each cluster from all other rows, and its noise's deviation.

    The unit is the root of the mean of the two variances; a share p has the variance ``p (1 - p)``.
    The difference is NaN if a mean or a standard deviation is only a limit, if the unit may be 0
    because of noise, or if the floor hides a share.
    """
    if own_spread is None or rest_spread is None:
        variances = [share.value * (1 - share.value) for share in (cluster, rest)]
        errors = [np.abs(1 - 2 * share.value) * share.error for share in (cluster, rest)]
    else:
        variances = [spread.value**2 for spread in (own_spread, rest_spread)]
        errors = [2 * spread.value * spread.error for spread in (own_spread, rest_spread)]
    scale = np.sqrt((variances[0] + variances[1]) / 2)
    is_open = cluster.is_hidden | rest.is_hidden | ~(scale > 0)
    for values in (
        cluster,
        rest,
        *(() if own_spread is None or rest_spread is None else (own_spread, rest_spread)),
    ):
        is_open |= ~np.isfinite(values.low) | ~np.isfinite(values.high)
    scale = np.where(is_open, np.nan, scale)
    of_scale = np.hypot(*errors) / 4 / scale**2  # the relative error of the scale
    scale = np.where(DEVIATIONS * of_scale < 1, scale, np.nan)
    difference = (cluster.value - rest.value) / scale
    return difference, np.hypot(np.hypot(cluster.error, rest.error) / scale, difference * of_scale)


def _line(label: str, cells: Sequence[str]) -> tuple[str, ...]:
    """Return a line of the table: the label, the total (the last cell), and the other cells."""
    return label, cells[-1], *cells[:-1]


def _share(shares: Estimate, place: int) -> str:
    """Format a share of one group, or its limit if the floor hides the share."""
    if shares.is_hidden[place]:
        return _fewer(shares, place)
    return words.percent(float(shares.value[place]), DEVIATIONS * float(shares.error[place]))


def _fewer(shares: Estimate, place: int) -> str:
    """Format a share that the floor hides."""
    return words.fewer(float(shares.fewer_than[place]), float(shares.high[place]))


def _difference(value: float, error: float) -> str:
    """Format a standardized difference; a dash if there is none."""
    if np.isnan(value):
        return NOTHING
    return words.with_error(value, DEVIATIONS * error) if error > 0 else words.plain(value, 2)


def _mean_and_spread(column: Column, numbers: Numbers, place: int, ends: Sequence[float]) -> str:
    """Format the mean and the standard deviation of one group."""
    value, error, low, high = _at(numbers[MEAN], place)
    mean = words.mean(column, value, DEVIATIONS * error, low, high, ends, with_unit=False)
    value, error, low, high = _at(numbers[SPREAD], place)
    return f"{mean} ({words.spread(value, DEVIATIONS * error, low, high)})"


def _median_and_quartiles(column: Column, numbers: Numbers, place: int) -> str:
    """Format the intervals of the median and the quartiles of one group."""
    first, median, third = (
        words.between(*_at(numbers[quantile], place)[2:], column) for quantile in QUANTILES
    )
    return f"{median} ({first}; {third})"


def _at(estimate: Estimate, place: int) -> tuple[float, float, float, float]:
    return (
        float(estimate.value[place]),
        float(estimate.error[place]),
        float(estimate.low[place]),
        float(estimate.high[place]),
    )
