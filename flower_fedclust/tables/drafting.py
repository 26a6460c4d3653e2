"""Draft a schema from a table, for a person to check; and make up tables from a schema."""

from __future__ import annotations

import datetime
import re
import textwrap
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tomli_w

from flower_fedclust.data.cells import typed
from flower_fedclust.tables.schema import (
    EPOCH,
    ISO,
    Column,
    MisfitError,
    Schema,
    date_formats,
    has_unclear_commas,
    read_column,
    text_of,
)

#: A text column with more different values is not drafted as a category: it may hold names, or free text.
MOST_CATEGORIES = 50

#: Whole numbers with at most this many values, each in at least this many rows on average, are drafted as codes.
MOST_CODES, ROWS_PER_CODE = 10, 5

#: A column whose values are more skewed than this (an exponential distribution has 2) may need a logarithm.
SKEWED = 2.0

#: Names of columns that tell people apart (patient_id, but not patient_age), and texts that do (P-0017).
_ID_NAME = re.compile(
    r"(?i:(^|[\W_])(id|pid|mrn|ssn)$|^id[\W_]|(unit|subj|case|user)id$"
    r"|^(patient|subject|person|participant|respondent)([\W_]?(id|no|nr|num|number|code))?$)|[a-z]I[dD]$"
)
_ID_TEXT = r"(?=.*\d)(?=.*[^\W\d_])[\w-]+"

HEADER = """\
# A draft, made from {source}. Everything in this file goes to the server and to every site.
# Whatever is marked FROM YOUR ROWS was read from the table. Keep it only if it is known without those rows.
#
# The draft has no bounds. Without bounds, a column's range is found privately, which costs part of the privacy budget.
# Bounds that are public knowledge cost nothing: bounds = [0, 120].
#
# Look for codes among the integers: postcodes, diagnoses, numbers of sites. Their mean is meaningless: make each a
# category, or ignore it. Whole numbers with few values are drafted as categories: look for amounts among them.
"""

LISTED = "FROM YOUR ROWS: list every value that may occur at any site, and none that identifies somebody."
MISSING = "FROM YOUR ROWS: values are missing."
MANY = f"FROM YOUR ROWS: more than {MOST_CATEGORIES} different texts, which may be names or free text."
UNIQUE = "FROM YOUR ROWS: no value occurs twice; the values may stand for people."
REPEATED_ID = (
    "FROM YOUR ROWS: this looks like an id, and values occur in several rows. If these are rows of one person, a "
    "guarantee per record protects each row, but not the person: make one row for each person first."
)
MARKED = "FROM YOUR ROWS: some are written like <0.5 (counts as 0.5) or 1,234 (counts as 1234)."
UNCLEAR = "FROM YOUR ROWS: some are written like 1,234 (counts as 1234). If the comma is a decimal comma, write 1.234."
IF_AMOUNTS = 'If these are grades, set kind = "ordinal". If they are amounts, use the next lines instead of all above:'
IF_SKEWED = "FROM YOUR ROWS: a few values are much larger than the others. If these are amounts, use the next line too:"


@dataclass
class _Drafted:
    """A column's keys, remarks to put above them, and keys that are commented out below them."""

    fields: dict[str, Any]
    remarks: dict[str, str] = field(default_factory=dict)
    instead: tuple[str, dict[str, Any]] | None = None  #: When to use the keys, and the keys.

    def to_toml(self, name: str) -> str:
        lines = []
        for line in tomli_w.dumps({"columns": {name: self.fields}}).removeprefix("[columns]\n\n").splitlines():
            remark = self.remarks.get(line.split(" = ")[0].strip(), "")
            lines += [*(f"# {part}" for part in textwrap.wrap(remark, 118)), line]
        if self.instead is not None:
            when, fields = self.instead
            lines += [f"# {part}" for part in (*textwrap.wrap(when, 118), *tomli_w.dumps(fields).splitlines())]
        return "\n".join(lines) + "\n"


def draft(table: Any, *, source: str) -> str:
    """Return a draft of a schema for a pandas DataFrame, as TOML that marks what was read from rows."""
    table = typed(table)
    columns = [_drafted(str(name), table[name]).to_toml(str(name)) for name in table.columns]
    return "\n".join([HEADER.format(source=source), *columns])


def _drafted(name: str, series: Any) -> _Drafted:
    import pandas as pd

    present = series.dropna()
    has_gaps = len(present) < len(series)
    try:
        n_values = present.nunique()
    except TypeError:
        return _ignored("It holds values such as lists.")
    if n_values < 2:
        return _ignored(f"FROM YOUR ROWS: the column has {'only one' if n_values else 'no'} value.")
    if pd.api.types.is_datetime64_any_dtype(present.dtype):
        return _measured("date", has_gaps)
    are_codes = n_values <= MOST_CODES and len(present) >= ROWS_PER_CODE * n_values
    if not pd.api.types.is_numeric_dtype(present.dtype) or pd.api.types.is_bool_dtype(present.dtype):
        return _of_texts(name, present, has_gaps, are_codes)
    numbers = _read_as("number", present)
    if numbers is None:
        return _ignored("FROM YOUR ROWS: a value is infinite.")
    if (numbers % 1 == 0).all():
        if are_codes:
            drafted = _listed([text_of(value) for value in sorted(present.unique())], has_gaps)
            drafted.instead = None if n_values == 2 else (IF_AMOUNTS, _measured("integer", has_gaps).fields)
            return drafted
        if people := _why_people(name, present):
            return _ignored(people)
    return _of_numbers(numbers, has_gaps)


def _of_texts(name: str, present: Any, has_gaps: bool, are_codes: bool) -> _Drafted:
    import pandas as pd

    formats, texts = date_formats(present), present.astype(str)
    if formats == [ISO] and _read_as("date", present) is not None:
        return _measured("date", has_gaps)
    if formats and formats != [ISO]:
        return _ignored(f"FROM YOUR ROWS: dates are written as {' and as '.join(formats)}; write all as {ISO}.")
    is_plain = pd.to_numeric(texts, errors="coerce").notna().all()  # digits alone may be codes
    if not (are_codes or is_plain) and (numbers := _read_as("number", texts)) is not None:
        return _of_numbers(numbers, has_gaps, UNCLEAR if has_unclear_commas(present) else MARKED)
    if people := _why_people(name, present):
        return _ignored(people)
    if present.nunique() > MOST_CATEGORIES:
        return _ignored(MANY)
    return _listed(sorted(set(map(text_of, present.unique()))), has_gaps)


def _why_people(name: str, present: Any) -> str:
    """Return a remark if texts or whole numbers seem to tell people apart, and otherwise ""."""
    n_values = present.nunique()
    is_id = n_values > MOST_CODES and _ID_NAME.search(name)
    if n_values == len(present):
        return UNIQUE if is_id or n_values > MOST_CATEGORIES else ""
    is_id = is_id or (n_values > MOST_CATEGORIES and present.astype(str).str.fullmatch(_ID_TEXT).all())
    return REPEATED_ID if is_id else ""


def _read_as(kind: Any, present: Any) -> Any:
    """Return the values as a schema with this kind reads them; None if it refuses one."""
    import pandas as pd

    try:
        return pd.Series(read_column(present, Column(kind=kind)))
    except MisfitError:
        return None


def _ignored(remark: str) -> _Drafted:
    return _Drafted({"kind": "ignored"}, {"kind": remark})


def _measured(kind: Any, has_gaps: bool) -> _Drafted:
    return _Drafted({"kind": kind} | ({"gaps": "mean"} if has_gaps else {}), {"gaps": MISSING})


def _of_numbers(numbers: Any, has_gaps: bool, remark: str = "") -> _Drafted:
    drafted = _measured("integer" if (numbers % 1 == 0).all() else "number", has_gaps)
    drafted.remarks["kind"] = remark
    if numbers.min() >= 0 and numbers.skew() > SKEWED:
        drafted.instead = IF_SKEWED, {"logarithm": True}
    return drafted


def _listed(categories: list[str], has_gaps: bool) -> _Drafted:
    kind = "category" if len(categories) > 2 or has_gaps else "binary"
    fields = {"kind": kind, "categories": categories} | ({"gaps": "category"} if has_gaps else {})
    return _Drafted(fields, {"categories": LISTED, "gaps": MISSING})


def made_up_table(schema: Schema, n_rows: int, rng: np.random.Generator) -> Any:
    """Return a DataFrame that fits a schema, for rehearsals before anything runs on real rows."""
    import pandas as pd

    return pd.DataFrame({name: _made_up(column, n_rows, rng) for name, column in schema.used.items()})


def _made_up(column: Column, n_rows: int, rng: np.random.Generator) -> Any:
    if column.categories is not None:
        return np.array(column.categories, dtype=object)[rng.integers(len(column.categories), size=n_rows)]
    low, high = column.interval or (0.0, 100.0)
    values = low + (high - low) * rng.random(n_rows)
    if column.kind == "date":
        return [EPOCH + datetime.timedelta(days=float(day)) for day in np.trunc(values)]
    return np.trunc(values) if column.kind == "integer" else values
