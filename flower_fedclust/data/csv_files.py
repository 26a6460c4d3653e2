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
from flower_fedclust.data.cells import UNCLEAR_POINTS, cells_of, numbers_in
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
#: have a comma (_WITH_COMMA). Points may separate thousands, unless the number begins with 0.
_DECIMAL_COMMA = re.compile(
    r'(?:^|;)\s*"?[+-]?(?:\d+|\d{1,3}(?:\.\d{3})+),\d+"?\s*(?:;|$)', re.MULTILINE
)
_WITH_COMMA = r"\s*[<>≤≥]?=?\s*[+-]?(?:\d+|[1-9]\d{0,2}(?:\.\d{3})+)(?:,\d+)?(?:[eE][+-]?\d+)?\s*"

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


@dataclass(frozen=True)
class Decimals:
    """How the numbers in the columns of a file are written, as :func:`agree_on_decimals` found it."""

    #: The columns with decimal commas, in which points separate thousands.
    with_commas: frozenset[str] = frozenset()
    #: The columns in which 1.234 may be 1234 or 1.234.
    unclear: frozenset[str] = frozenset()

    def applied(self, cells: Any) -> Any:
        """Return a DataFrame of cells with decimal points, and mark its unclear columns (see UNCLEAR_POINTS)."""
        changed = cells.assign(
            **{name: _with_points(cells[name]) for name in cells if name in self.with_commas}
        )
        if self.unclear:
            changed.attrs = {UNCLEAR_POINTS: sorted(self.unclear)}
        return changed


class _Marks:
    """The columns of a file in which a decimal comma, a decimal point, or a point that may separate thousands occurs.

    Attributes
    ----------
    commas : set of str
        Columns with decimal commas.
    sure : set of str
        Columns with numbers such as 2.345,5, which show that their points separate thousands.
    points : set of str
        Columns with numbers such as 0.5 or 1.25, whose points cannot separate thousands.
    either : set of str
        Columns with numbers such as 1.234, whose points may be decimal points, or separate thousands.
    """

    def __init__(self) -> None:
        self.commas, self.sure = set[str](), set[str]()
        self.points, self.either = set[str](), set[str]()

    def add(self, cells: Any) -> None:
        """Look at a DataFrame of cells."""
        for name, column in cells.items():
            is_number = column.str.fullmatch(_WITH_COMMA).fillna(False)
            numbers = column[is_number]
            has_comma = numbers.str.contains(",", regex=False)
            has_point = numbers.str.contains(".", regex=False)
            if has_comma.any():
                self.commas.add(name)
            if (has_comma & has_point).any():
                self.sure.add(name)
            if (has_point & ~has_comma).any():
                self.either.add(name)
            floats, is_text = numbers_in(column[~is_number])
            if (~is_text & (floats == floats)).any():
                self.points.add(name)


def read_csv_file(
    file: IO[bytes],
    path: Path,
    names: Collection[str] = (),
    *,
    thousands: bool = True,
    decimals: Decimals | None = None,
) -> Any:
    """Return the cells of a file as text, in a pandas DataFrame, with decimal points in place of decimal commas.

    Parameters
    ----------
    file, path
        The opened file, and its path.
    names : collection of str
        Columns with names of rows, clients or classes, which stay as they are.
    thousands : bool, default=True
        As for :func:`agree_on_decimals`.
    decimals : Decimals, optional
        How its numbers are written, if this was decided together with other files of the table.
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
    if decimals is None:
        marks = _Marks()
        if dialect.decimal == ",":
            marks.add(frame)
        decimals = _decided(marks, marks.commas, [marks], names, thousands=thousands)
    return decimals.applied(frame)


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
    is_tsv = path.suffix.lower() == ".tsv"
    separator, decimal = _marks_of(beginning, named and named[1], prefers_tabs=is_tsv)
    if is_tsv and named is None and separator == "," and _may_be_one_column(beginning):
        raise DataError(
            f"{path.name} has no tabs, and its commas may separate two columns, or be decimal commas of one; if it has "
            "two, save it with tabs or as .csv, and if it has one, write its name in quotation marks."
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


def _marks_of(
    beginning: str, separator: str | None, *, prefers_tabs: bool = False
) -> tuple[str, str]:
    """Return the separator of the fields, unless it is known, and the decimal mark.

    With ``prefers_tabs``, another mark separates the fields only if the first two lines have it equally often, and the
    first line has no tab.

    In countries where one and a half is written 1,5, spreadsheets separate fields by semicolons or tabs, and other
    programs put such numbers in quotation marks. The mark is a comma if some numbers have a decimal comma; then each
    column is looked at (see :func:`agree_on_decimals`). If it is a point, 1,5 stays text, and is refused as a number.
    """
    if separator is None:
        header, first, *_ = [*_without_quotes(beginning), "", ""]
        separator = max(
            ";\t,|", key=lambda mark: (header.count(mark), header.count(mark) == first.count(mark))
        )
        if prefers_tabs and ("\t" in header or header.count(separator) != first.count(separator)):
            separator = "\t"
        if header.count(separator) == 0:
            separator = "\t" if prefers_tabs else ","
    patterns = {";": _DECIMAL_COMMA, ",": _QUOTED_COMMA}
    has_commas = patterns.get(separator, _COMMA_IN_TABS).search(beginning)
    return separator, "," if has_commas else "."


def _may_be_one_column(beginning: str) -> bool:
    """Tell whether each of the first rows may be one number with a decimal comma."""
    rows = _without_quotes(beginning)[1:4]
    return bool(rows) and all(re.fullmatch(_WITH_COMMA, row) for row in rows)


def _without_quotes(beginning: str) -> list[str]:
    """Return the first lines that are not empty, with nothing between quotation marks."""
    text = re.sub(r'"[^"]*"', '""', re.sub("\r\n?", "\n", beginning))
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


def _decided(
    own: _Marks,
    commas: Collection[str],
    alike: Sequence[_Marks],
    names: Collection[str],
    *,
    thousands: bool,
) -> Decimals:
    """Decide how the numbers of a file are written in a table with decimal commas.

    What other files show counts only if it is certain: only a number such as 2.345,5 makes 1.234 in another file 1234.

    Parameters
    ----------
    own : _Marks
        The marks in the file's numbers.
    commas : collection of str
        The columns whose commas are known to be decimal commas from this file alone.
    alike : sequence of _Marks
        The marks in all files that are written like this one, and in this one.
    names, thousands
        As for :func:`agree_on_decimals`.
    """
    sure = set[str]().union(*(one.sure for one in alike))
    points = set[str]().union(*(one.points for one in alike))
    of_itself = set(commas) - own.points
    of_others = (own.commas | own.either) & (sure - points)
    with_commas = of_itself | of_others
    if not thousands:
        with_commas -= own.either
    unclear = own.either - own.points - (points - sure) - with_commas
    return Decimals(frozenset(with_commas.difference(names)), frozenset(unclear.difference(names)))


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
        #: How the numbers are written; see agree_on_decimals.
        self.decimals = Decimals()
        with self._opened() as file:
            self.dialect = dialect_of(file, path)
            self.columns = self.dialect.columns
        # Whether PyArrow can read the file: all lines have equally many fields, and every quotation mark is closed.
        self._is_even = not self.dialect.may_be_open
        self._marks: _Marks | None = None
        self._scan(self.dialect.decimal == ",")

    def _opened(self) -> Any:
        """Open the file, with errors that say what to do."""
        return reading(self.path, "csv", "save the table as csv again", name=self.name, most=2**63)

    @property
    def marks(self) -> _Marks:
        """The marks in the file's numbers."""
        if self._marks is None:
            self._scan(True)
        assert self._marks is not None
        return self._marks

    def _scan(self, for_marks: bool) -> None:
        """Read all rows once, by PyArrow if it can read the file, or else by pandas: count them, and find the marks."""
        import pyarrow as pa

        try:
            self._scan_chunks(for_marks)
        except DataError as error:
            if not (self._is_even and isinstance(error.__cause__, pa.ArrowException)):
                raise
            self._is_even = False
            self._scan_chunks(for_marks)

    def _scan_chunks(self, for_marks: bool) -> None:
        """Read all rows once, to count them and to find the marks."""
        wanted = self.columns if for_marks else self.columns[:1]
        n_rows, marks = 0, _Marks()
        for chunk in self._chunks(wanted, SCANNED_ROWS):
            n_rows += len(chunk)
            if for_marks:
                marks.add(chunk)
        self.n_rows = n_rows
        if for_marks:
            self._marks = marks

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
            yield self.decimals.applied(chunk)


def agree_on_decimals(
    parts: Sequence[CsvPart], names: Collection[str], *, thousands: bool = True
) -> None:
    """Decide how the numbers in each column of each file are written, if a file of the table has decimal commas.

    In a column with decimal commas, points separate thousands. In another column of such a file, 1.234 is unclear,
    unless a file with decimal commas has a number such as 2.345,5 (then it is 1234) or 0.5 (then it is 1.234) in that
    column. The same holds for a file that shows neither decimal commas nor decimal points; for it, files with the same
    separator count. A file with decimal points, or with commas between its fields, stays as it is.

    Parameters
    ----------
    parts : sequence of CsvPart
    names : collection of str
        Columns with names of rows, clients or classes, which stay as they are.
    thousands : bool, default=True
        Whether points separate thousands in a column with decimal commas. Otherwise such a column is unclear.
    """
    with_commas = [part for part in parts if part.dialect.decimal == ","]
    if not with_commas:
        return
    for part in parts:
        separator, has_commas = part.dialect.separator, part.dialect.decimal == ","
        if not has_commas and (separator == "," or part.marks.points):
            continue
        others = [other for other in parts if other.dialect.separator == separator]
        alike = [other.marks for other in (with_commas if has_commas else others)]
        commas = part.marks.commas if has_commas else ()
        part.decimals = _decided(part.marks, commas, alike, names, thousands=thousands)


def decimals_of(
    paths: Sequence[Path], names: Collection[str], *, thousands: bool
) -> dict[Path, Decimals]:
    """Decide how the numbers are written in the .csv files of one table; see :func:`agree_on_decimals`.

    Files are read for this only if one of them has decimal commas.
    """
    if not any(map(_has_decimal_commas, paths)):
        return {}
    parts = [CsvPart(path) for path in paths]
    agree_on_decimals(parts, names, thousands=thousands)
    return {part.path: part.decimals for part in parts}


def _has_decimal_commas(path: Path) -> bool:
    """Tell whether the first lines of a file have decimal commas."""
    with reading(path, "csv", "save the table as csv again", name=path.name, most=2**63) as file:
        return dialect_of(file, path).decimal == ","
