"""CSV files: every cell is read as text, and stays text until the role of its column is known.

A CSV file does not say what its separator is, whether its commas are decimal commas, or whether 01067 is a number or a
postcode. The separator and the decimal mark are found from the first lines (:func:`dialect_of`). PyArrow reads the
cells, or pandas if lines have different numbers of fields. What a cell means is decided later, by the schema.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from flower_fedclust.data.batches import Part
from flower_fedclust.data.cells import are_missing, cells_of, numbers_in
from flower_fedclust.data.frames import check_unique
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.outside import reading

T = TypeVar("T")

#: How many rows of a file are read at a time when its rows are counted and its decimal marks are found.
SCANNED_ROWS = 2**14

#: The most bytes that one of the first lines of a file may have.
LONGEST_LINE = 2**24

#: How many bytes PyArrow parses together: at least _BLOCK, and in batches at most _LARGEST_BLOCK.
_BLOCK, _LARGEST_BLOCK = 2**20, 2**26

#: A first line such as "sep=;", which tells Excel the separator of the file.
_NAMED_SEPARATOR = re.compile(r'"?sep=([;,\t|])"?[;,\t|]*\r?(?:\n|$)', re.IGNORECASE)

#: A number with a decimal comma: alone between two semicolons of a line (_DECIMAL_COMMA); or as a whole cell that may
#: have a comma (_WITH_COMMA).
_DECIMAL_COMMA = re.compile(
    r'(?:^|;)\s*"?[+-]?(?:\d+|\d{1,3}(?:\.\d{3})+),\d+"?\s*(?:;|$)', re.MULTILINE
)
_WITH_COMMA = r"\s*[<>≤≥]?=?\s*[+-]?(?:\d+|\d{1,3}(?:\.\d{3})+)(?:,\d+)?(?:[eE][+-]?\d+)?\s*"

#: A number whose comma must be a decimal comma (in 1,234 it may separate thousands): as a pattern, in quotation marks,
#: and between two tabs.
_SURE_COMMA = r"\s*[+-]?(?:0,\d+|[1-9]\d*,(?:\d{1,2}|\d{4,})|\d{1,3}(?:\.\d{3})+,\d+)\s*"
_QUOTED_COMMA = re.compile(f'"{_SURE_COMMA}"')
_COMMA_IN_TABS = re.compile(f'(?:^|[\\t|])"?{_SURE_COMMA}"?(?:[\\t|]|$)', re.MULTILINE)


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written: its separator, decimal mark and column names, as found in its first lines."""

    separator: str
    decimal: str
    #: The names of the columns. A column without a name gets the name that pandas would give it, "Unnamed: 3".
    columns: list[str]
    #: The number of quotation marks in the file. A cell in quotation marks may contain line breaks.
    n_quotes: int
    #: The number of lines above the column names: 1 if the first line names the separator, otherwise 0.
    n_skipped: int = 0

    @property
    def may_be_open(self) -> bool:
        """Whether a closing quotation mark may be missing: PyArrow would read the rest of the file as one cell.

        Such files are left to pandas, which refuses them.
        """
        return self.n_quotes % 2 == 1

    def of_pandas(self) -> dict[str, Any]:
        """Return the options with which pandas reads all cells as text."""
        # index_col=False: a line with one field too many must not turn the first column into row names.
        as_text = {"dtype": str, "keep_default_na": False, "na_values": [""]}
        return {
            "sep": self.separator,
            "index_col": False,
            "low_memory": False,
            "skiprows": self.n_skipped,
            **as_text,
        }

    def of_arrow(
        self, columns: Sequence[str] | None = None, *, block: int = _BLOCK
    ) -> dict[str, Any]:
        """Return the options with which PyArrow reads all columns, or some, as text; empty cells become missing."""
        import pyarrow as pa
        from pyarrow import csv

        written = [self.written(name) for name in self.columns]
        wanted = None if columns is None else [self.written(name) for name in columns]
        return {
            "read_options": csv.ReadOptions(block_size=block, skip_rows=self.n_skipped),
            "parse_options": csv.ParseOptions(
                delimiter=self.separator, newlines_in_values=self.n_quotes > 0
            ),
            "convert_options": csv.ConvertOptions(
                column_types=dict.fromkeys(written, pa.string()),
                include_columns=wanted,
                null_values=[""],
                strings_can_be_null=True,
            ),
        }

    def written(self, name: str) -> str:
        """Return the name of a column as it stands in the file: "" if it has none."""
        return "" if re.fullmatch(r"Unnamed: \d+", name) else name


def read_csv_file(
    file: IO[bytes], path: Path, names: Collection[str] = (), *, thousands: bool = True
) -> Any:
    """Return the cells of a file as text, in a pandas DataFrame.

    Decimal commas become points, except in the columns ``names``, which hold names of rows, clients or classes. If a
    column with decimal commas also has points, these separate thousands if ``thousands`` is set. Otherwise the column
    stays as it is, because 1.234 may be either number.
    """
    import pandas as pd
    import pyarrow as pa
    from pyarrow import csv

    dialect = dialect_of(file, path)
    try:
        table = None if dialect.may_be_open else csv.read_csv(file, **dialect.of_arrow())
    except pa.ArrowException:
        # For example, lines have different numbers of fields: pandas fills short lines, or reports the error.
        file.seek(0)
        table = None
    if table is None or not _are_all_text(table):
        file.seek(0)
        frame = _as_cells(checked_lines(partial(pd.read_csv, file, **dialect.of_pandas()), path))
    else:
        frame = cells_of(table)
    frame = frame.set_axis(dialect.columns, axis=1)
    if dialect.decimal == ".":
        return frame
    with_points = {
        name: _with_points(values)
        for name, values in frame.items()
        if name not in names and _has_commas(values, thousands)
    }
    return frame.assign(**with_points)


def _are_all_text(table: Any) -> bool:
    """Tell whether all columns of a PyArrow Table are text."""
    import pyarrow as pa

    return all(field.type == pa.string() for field in table.schema)


def _as_cells(frame: Any) -> Any:
    """Return a DataFrame of texts with the type that marks them as cells without a type."""
    import pandas as pd
    import pyarrow as pa

    return frame.astype(pd.ArrowDtype(pa.string()))


def dialect_of(file: IO[bytes], path: Path) -> Dialect:
    """Find out how a file is written.

    Raises a DataError if a line is too long, if the file is empty, if the first line is a row or a title instead of the
    names of the columns, or if two columns have the same name.
    """
    import pandas as pd

    for _ in range(2):  # without line breaks, pandas would read the whole file as column names
        if len(line := file.readline(LONGEST_LINE)) == LONGEST_LINE and not line.endswith(b"\n"):
            raise DataError(
                f"{path.name}: no line ends in {LONGEST_LINE:,} bytes; write one for each row."
            )
    file.seek(0)
    beginning = file.read(2**16).decode("utf-8-sig", errors="replace")
    file.seek(0)
    named = _NAMED_SEPARATOR.match(beginning)
    n_skipped, beginning = (0, beginning) if named is None else (1, beginning[named.end() :])
    separator, decimal = _marks_of(
        beginning, "\t" if path.suffix.lower() == ".tsv" else named and named[1]
    )
    # pandas would rename a second column with the same name.
    options = {
        "sep": separator,
        "header": None,
        "skiprows": n_skipped,
        "dtype": str,
        "keep_default_na": False,
    }
    try:
        first = pd.read_csv(file, nrows=1, **options)
    except pd.errors.EmptyDataError:
        raise DataError(f"{path.name} is empty: it has no line of column names.") from None
    names = first.iloc[0].tolist()
    check_first_line(names, path)
    _check_no_title(beginning, separator, path)
    file.seek(0)
    n_quotes = sum(part.count(b'"') for part in iter(partial(file.read, 2**20), b""))
    file.seek(0)
    columns = [name or f"Unnamed: {index}" for index, name in enumerate(names)]
    return Dialect(separator, decimal, columns, n_quotes, n_skipped)


def _marks_of(beginning: str, separator: str | None) -> tuple[str, str]:
    """Return the separator of the fields, unless it is known, and the decimal mark.

    In countries where one and a half is written 1,5, spreadsheets separate fields by semicolons or tabs, and other
    programs put such numbers in quotation marks. If the decimal mark is a comma, 1.5 stays text; if it is a point, 1,5
    stays text. So a number in the wrong form is refused as text, and never read as another number.
    """
    if separator is None:
        header, first, *_ = [*_without_quotes(beginning), "", ""]
        separator = max(
            ";\t,|", key=lambda mark: (header.count(mark), header.count(mark) == first.count(mark))
        )
        if header.count(separator) == 0:
            separator = ","
    patterns = {";": _DECIMAL_COMMA, ",": _QUOTED_COMMA}
    has_commas = patterns.get(separator, _COMMA_IN_TABS).search(beginning)
    return separator, "," if has_commas else "."


def _without_quotes(beginning: str) -> list[str]:
    """Return the first lines that are not empty, with quoted text left out."""
    text = re.sub(r'"[^"]*"', "", re.sub("\r\n?", "\n", beginning))
    return [line for line in text.split("\n", 50) if line.strip()]


def _check_no_title(beginning: str, separator: str, path: Path) -> None:
    """Raise a DataError if the first line has fewer fields than the next lines: it is then a title or a comment."""
    header, *others = [*_without_quotes(beginning)[:4], ""]
    others = [line for line in others if line]
    marks = dict.fromkeys((separator, *";\t,|"))
    if not others or any(
        {line.count(mark) for line in others} == {header.count(mark)} - {0} for mark in marks
    ):
        return
    for mark in marks:
        counts = {line.count(mark) for line in others}
        may_be_decimal = mark == "," != separator
        if len(counts) == 1 and header.count(mark) < min(counts) and not may_be_decimal:
            raise DataError(
                f"{path.name}: the first line has fewer fields than the next ones, which have {min(counts) + 1}; "
                "delete titles and comments above the line of column names, or quote fields that hold a separator."
            )


def checked_lines(read: Callable[[], T], path: Path) -> T:
    """Call ``read`` to read with pandas; raise a DataError if a line has more fields than there are columns."""
    import pandas as pd

    try:
        # If a line has too many fields, pandas drops some, and only gives a ParserWarning.
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return read()
    except pd.errors.ParserWarning:
        raise DataError(
            f"{path.name} cannot be read: its lines have more fields than there are column names; quote fields that "
            "hold a separator."
        ) from None


def _has_commas(cells: Any, thousands: bool) -> bool:
    """Tell whether a column has decimal commas: some of its numbers have one, and no number has a decimal point."""
    is_number = cells.str.fullmatch(_WITH_COMMA).fillna(False)
    numbers, others = cells[is_number], cells[~is_number]
    if not numbers.str.contains(",", regex=False).any():
        return False
    if not thousands and numbers.str.contains(".", regex=False).any():
        return False
    _, is_text = numbers_in(others)
    return bool((is_text | are_missing(others)).all())


def _with_points(cells: Any) -> Any:
    """Return a column with decimal points in place of commas in its numbers."""
    is_number = cells.str.fullmatch(_WITH_COMMA).fillna(False)
    with_points = cells.str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
    return cells.where(~is_number, with_points)


def rows_above(path: Path) -> int:
    """Return how many rows a spreadsheet shows above the first row of values: the column names and lines above."""
    if path.suffix.lower() not in (".csv", ".tsv"):
        return 1
    n_above, is_named = 0, False
    with path.open("rb") as file:
        while line := file.readline(LONGEST_LINE).decode("utf-8-sig", errors="replace"):
            n_above += 1
            is_named = is_named or (_NAMED_SEPARATOR.fullmatch(line) is None and bool(line.strip()))
            if is_named:
                break
    return n_above


def check_first_line(names: Sequence[str], path: Path) -> None:
    """Raise a DataError if two columns have one name, or if the first line of a file is a row or a title."""
    check_unique([name for name in names if name], path.name)
    if len(names) > 2 and names[0] and not any(names[1:]):
        raise DataError(
            f"{path.name}: the first line names 1 of {len(names)} columns; delete titles and comments above the line "
            "of column names."
        )
    if _looks_like_a_row(names):
        raise DataError(
            f"{path.name}: the first line is all numbers; put a line with the names of the columns before it."
        )


def _looks_like_a_row(names: Sequence[str]) -> bool:
    """Tell whether the names are numbers other than 0, 1, 2, ...: they may be a row, and names leave the site."""
    try:
        numbers = [float(name) for name in names]
    except ValueError:
        return False
    return numbers != list(range(len(names)))


class CsvPart(Part):
    """A .csv file that is read in batches."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.n_rows = 0
        # The columns whose numbers have decimal commas, in this file or in another file of the same client.
        self.with_commas: set[str] = set()
        with self._opened() as file:
            self.dialect = dialect_of(file, path)
            self.columns = self.dialect.columns
        # Whether PyArrow can read the file: all lines have equally many fields, and every quotation mark is closed.
        self._is_even = not self.dialect.may_be_open
        has_points = set[str]()
        for chunk in self._scanned():
            self.n_rows += len(chunk)
            for name, cells in chunk.items() if self.dialect.decimal == "," else ():
                self.with_commas |= {name} if _has_commas(cells, thousands=True) else set()
                has_points |= {name} if _has_points(cells) else set()
        self.with_commas -= has_points

    def _opened(self) -> Any:
        """Open the file, with errors that say what to do."""
        return reading(self.path, "csv", "save the table as csv again", name=self.name, most=2**63)

    def _scanned(self) -> Iterator[Any]:
        """Yield all rows once, by PyArrow if it can read the file, or else by pandas."""
        import pyarrow as pa

        wanted = self.columns if self.dialect.decimal == "," else self.columns[:1]
        try:
            yield from self._chunks(wanted, SCANNED_ROWS)
        except DataError as error:
            if not isinstance(error.__cause__, pa.ArrowException):
                raise
            self.n_rows, self._is_even = 0, False
            yield from self._chunks(wanted, SCANNED_ROWS)

    def _chunks(self, columns: Sequence[str], n_rows: int) -> Iterator[Any]:
        """Yield columns of all rows as DataFrames of cells, about ``n_rows`` at a time."""
        import pandas as pd
        from pyarrow import csv

        with self._opened() as file:
            if self._is_even:
                n_bytes = n_rows * (self.path.stat().st_size // max(1, self.n_rows) + 1)
                block = min(max(n_bytes, _BLOCK), _LARGEST_BLOCK)
                for batch in csv.open_csv(file, **self.dialect.of_arrow(columns, block=block)):
                    yield cells_of(batch).set_axis(list(columns), axis=1)
                return
            chunks = pd.read_csv(file, chunksize=n_rows, **self.dialect.of_pandas())
            while (chunk := checked_lines(lambda: next(chunks, None), self.path)) is not None:
                yield _as_cells(chunk.set_axis(self.columns, axis=1)[list(columns)])

    def read(self, columns: list[str], n_rows: int) -> Generator[Any, None, None]:
        """Yield the named columns of all rows as text, with decimal points."""
        for chunk in self._chunks(columns, n_rows):
            yield chunk.assign(
                **{name: _with_points(chunk[name]) for name in columns if name in self.with_commas}
            )


def _has_points(cells: Any) -> bool:
    """Tell whether some numbers in a column have decimal points."""
    floats, is_text = numbers_in(cells[~cells.str.fullmatch(_WITH_COMMA).fillna(False)])
    return bool((~is_text & (floats == floats)).any())


def agree_on_decimals(parts: Sequence[CsvPart], names: Collection[str]) -> None:
    """Decide for all files together which columns have decimal commas; columns in ``names`` have none."""
    everywhere = set[str]().union(*(part.with_commas for part in parts)).difference(names)
    for part in parts:
        part.with_commas = everywhere if part.dialect.decimal == "," else set()
