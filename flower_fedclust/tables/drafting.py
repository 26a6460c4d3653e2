"""Draft a schema from a table, for a person to check; and make up tables from a schema.

A draft is TOML with comments. Whatever it takes from the rows is marked "FROM YOUR ROWS", because a
schema goes to the server and to every site: a person must decide whether that is public knowledge.
Columns whose values seem to be names or ids of people are ignored in the draft.
"""

from __future__ import annotations

import datetime
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tomli_w

from flower_fedclust.data.cells import WHY_UNCLEAR, has_unclear_points, typed
from flower_fedclust.tables.missing_codes import MISSING_WORDS, Codes, find_codes, labeled_codes
from flower_fedclust.tables.schema import (
    EPOCH,
    ISO,
    Column,
    MisfitError,
    Schema,
    date_formats,
    has_unclear_commas,
    numbers_of_texts,
    read_column,
    text_of,
)

#: A text column with more different values than this is not drafted as a category: it may hold names or free text.
MOST_CATEGORIES = 50

#: A column of whole numbers is drafted as codes if it has at most MOST_CODES different values, and on average at
#: least ROWS_PER_CODE rows for each.
MOST_CODES, ROWS_PER_CODE = 10, 5

#: A column whose values are more skewed than this (an exponential distribution has 2) may need a logarithm.
SKEWED = 2.0

#: Names of columns that hold ids of people (patient_id, but not patient_age), and texts that look like such ids
#: (P-0017).
_ID_NAME = re.compile(
    r"(?i:(^|[\W_])(id|pid|mrn|ssn)$|^id[\W_]|(unit|subj|case|user)id$"
    r"|^(patient|subject|person|participant|respondent)([\W_]?(id|no|nr|num|number|code))?$)|[a-z]I[dD]$"
)
_ID_TEXT = r"(?=.*\d)(?=.*[^\W\d_])[\w-]+"

#: Names of columns that hold names of people.
_PERSON = re.compile(
    r"(?i)^(sur|last|first|family|given|middle|fore|full|maiden|birth|patient|client|customer|employee)?[\W_]?name$"
    r"|^(vorname|nachname|familienname|pr[ée]nom|nom([\W_]de[\W_]famille)?|nombre|apellidos?|cognome|achternaam|efternamn)$"
    r"|(^|[\W_])(patient|doctor|physician|surgeon|nurse|consultant|attending|examiner|interviewer|operator|contact)$"
)
#: Texts that are written like names of people: words with capital letters, except abbreviations of up to three letters,
#: as for states.
_NAME_TEXT = r"(?![A-Z]{1,3}$)[^\W\d_a-zß-öø-ÿ][^\W\d_]*(?:[ ,.'’-]+[^\W\d_]+)*\.?"

#: Names of columns that say how long rows were followed.
_TIME = re.compile(
    r"(?i)(^|[\W_])(time|days?|weeks?|months?|years?|follow[\W_]?up|survival|futime)($|[\W_])"
)
#: Units of time in such names.
_UNIT = re.compile(r"(?i)(^|[\W_])(days|weeks|months|years)($|[\W_])")
#: Names of columns that hold events.
_EVENT = re.compile(
    r"(?i)(^|[\W_])(event|(vital[\W_]?)?status|dead|death|died|deceased|relapsed?|fustat)($|[\W_])"
)

#: A column of texts counts as numbers if it has at most MOST_WORDS different words, and if at least the share
#: NUMBERS_PART of it are numbers.
MOST_WORDS, NUMBERS_PART = 5, 0.8

HEADER = """\
# A draft, made from {source}. Everything in this file goes to the server and to every site.
# Whatever is marked FROM YOUR ROWS was read from the table. Keep it only if it is known without those rows.
#
# The draft has no bounds. Without bounds, a column's range is found privately, which costs part of the privacy budget.
# Bounds that are public knowledge cost nothing: bounds = [0, 120].
#
# Look for codes among the integers: postcodes, diagnoses, numbers of sites. Their mean is meaningless: make each a
# category, or ignore it. Whole numbers with few values are drafted as categories: look for amounts among them.
#
# A time until something happens, such as death, is no column to cluster by. Make it kind = "time-to-event": a run then
# says what became of each cluster.
"""

SUBJECTS = (
    "FROM YOUR ROWS: if rows with one value of '{name}' are about one person, use the next line too, and run with "
    "--privacy-unit subject:"
)

LISTED = "FROM YOUR ROWS: list every value that may occur at any site, and none that identifies somebody."
MISSING = "FROM YOUR ROWS: values are missing."
MANY = (
    f"FROM YOUR ROWS: more than {MOST_CATEGORIES} different texts, which may be names or free text."
)
UNIQUE = "FROM YOUR ROWS: no value occurs twice; the values may stand for people."
PEOPLE = "FROM YOUR ROWS: by its name, the column names people."
LIKE_NAMES = (
    "FROM YOUR ROWS: the values are written like names. If they name no people (but countries, for example), write "
    'kind = "category", and list all values that may occur at any site.'
)
REPEATED_ID = (
    "FROM YOUR ROWS: this looks like an id, and values occur in several rows. If these are rows of one person, a "
    "guarantee per record protects each row, but not the person: use the subject_column above."
)
MARKED = "FROM YOUR ROWS: some are written like <0.5 (counts as 0.5) or 1,234 (counts as 1234)."
UNCLEAR = "FROM YOUR ROWS: some are written like 1,234 (counts as 1234). If the comma is a decimal comma, write 1.234."
IF_TIME = (
    "If this is how long each row was followed, and the second category of '{event}' means that the event ended that "
    "time, use the next lines instead of all above. Write your own bins, chosen without looking at rows. Rows are then "
    "clustered by neither of the two columns."
)
OF_PERSON = (
    "FROM YOUR ROWS: all rows of a person have one time. Name as row_time the column that says when, from time zero "
    "on, a row was made: only rows up to 0 count."
)
IF_AMOUNTS = 'If these are grades, set kind = "ordinal". If they are amounts, use the next lines instead of all above:'
CODED = "FROM YOUR ROWS: {codes} may stand for a missing value ({why}). If not, delete this line."
IF_CODED = (
    "FROM YOUR ROWS: {codes} may stand for a missing value ({why}). If so, use the next lines too:"
)
NOT_NUMBERS = "FROM YOUR ROWS: {count}, in row {row} for the first time. Correct this."
IF_SKEWED = "FROM YOUR ROWS: a few values are much larger than the others. If these are amounts, use the next line too:"


@dataclass
class _Drafted:
    """A drafted column: its keys, the remarks above them, and the keys below them that are commented out."""

    fields: dict[str, Any]
    remarks: dict[str, str] = field(default_factory=dict)
    #: Keys that are commented out, each with a remark on when to use it.
    instead: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def to_toml(self, name: str) -> str:
        """Return the column as TOML with its remarks as comments."""
        lines = []
        for line in _toml_lines({"columns": {name: self.fields}}):
            remark = self.remarks.get(line.split(" = ")[0].strip(), "")
            lines += [*(f"# {part}" for part in textwrap.wrap(remark, 118)), line]
        for when, fields in self.instead:
            lines += [f"# {part}" for part in (*textwrap.wrap(when, 118), *_toml_lines(fields))]
        return "\n".join(lines) + "\n"


def _toml_lines(fields: dict[str, Any]) -> list[str]:
    """Return fields as lines of TOML; lists of codes and of bins stay on one line."""
    text = tomli_w.dumps(fields).removeprefix("[columns]\n\n")
    for match in re.finditer(r"^(missing|bins) = \[\n(.*?)\n\]$", text, re.MULTILINE | re.DOTALL):
        inside = " ".join(line.strip() for line in match[2].splitlines()).rstrip(",")
        text = text.replace(match[0], f"{match[1]} = [{inside}]")
    return text.splitlines()


def draft(table: Any, *, source: str) -> str:
    """Return a draft of a schema for a DataFrame, as TOML that marks what was read from rows.

    Parameters
    ----------
    table : pandas.DataFrame
    source : str
        The name of the table, for the first comment.
    """
    labels = labeled_codes(table)
    table = typed(table)
    columns = {
        str(name): _drafted(str(name), table[name], labels.get(name, {})) for name in table.columns
    }
    persons = [
        name for name, drafted in columns.items() if drafted.remarks.get("kind") == REPEATED_ID
    ][:1]
    _offer_time(columns, table, persons)
    lines = [
        line
        for name in persons
        for line in (
            *textwrap.wrap(SUBJECTS.format(name=name), 118),
            *_toml_lines({"subject_column": name}),
        )
    ]
    offered = ["".join(f"# {line}\n" for line in lines)] if lines else []
    return "\n".join(
        [
            HEADER.format(source=source),
            *offered,
            *(column.to_toml(name) for name, column in columns.items()),
        ]
    )


def _offer_time(columns: Mapping[str, _Drafted], table: Any, persons: Sequence[str]) -> None:
    """If one column is named like a time and another one like an event, offer a time-to-event column in comments.

    If all rows of a person have the same time, the draft counts it from one date of the person.
    """
    events = [
        name
        for name, column in columns.items()
        if column.fields["kind"] == "binary" and _EVENT.search(name)
    ]
    numbers = [
        name for name, column in columns.items() if column.fields["kind"] in ("number", "integer")
    ]
    lowest = {
        name: np.nanmin(numbers_of_texts(table[name])[0]) for name in numbers if _TIME.search(name)
    }
    for name in (name for name, least in lowest.items() if least >= 0 and events):
        is_one = [
            person_column
            for person_column in persons
            if table.groupby(person_column)[name].nunique().max() == 1
        ]
        unit = _UNIT.search(name)
        fields = {"kind": "time-to-event", "event": events[0], "bins": [12, 24, 36, 48, 60]}
        fields |= {"time_zero": "subject" if is_one else "row"}
        if is_one:
            fields["row_time"] = next(
                (other for other, least in lowest.items() if least < 0), "..."
            )
        fields |= {"unit": unit[2].lower()} if unit else {}
        when = IF_TIME.format(event=events[0]) + (f" {OF_PERSON}" if is_one else "")
        columns[name].instead.append((when, fields))


def _drafted(name: str, series: Any, labels: Mapping[float, str]) -> _Drafted:
    """Draft one column; ``labels`` holds the codes whose labels say that a value is missing.

    The kind follows from the values. Dates and numbers are measured; whole numbers with few values,
    and texts, are categories; a column whose values could stand for people is ignored.
    """
    import pandas as pd

    present = _present(series)
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
    if not pd.api.types.is_numeric_dtype(present.dtype) or pd.api.types.is_bool_dtype(
        present.dtype
    ):
        return _of_texts(name, present, has_gaps, are_codes)
    if has_unclear_points(present):
        return _ignored(f"FROM YOUR ROWS: the column {WHY_UNCLEAR}.")
    numbers = _read_as("number", present)
    if numbers is None:
        return _ignored("FROM YOUR ROWS: a value is infinite.")
    codes = find_codes(numbers.to_numpy(), labels)
    if (numbers % 1 == 0).all():
        if are_codes:
            drafted = _listed([text_of(value) for value in sorted(present.unique())], has_gaps)
            amounts = _measured("integer", has_gaps, [*codes.sure, *codes.unsure]).fields
            drafted.instead = [] if n_values == 2 else [(IF_AMOUNTS, amounts)]
            return drafted
        if people := _why_people(name, present):
            return _ignored(people)
    return _of_numbers(numbers, has_gaps, codes)


def _present(series: Any) -> Any:
    """Return the entries of a column that are no gaps; an empty text is a gap."""
    import pandas as pd

    present = series.dropna()
    if pd.api.types.is_numeric_dtype(present.dtype) or present.dtype.kind in "mM":
        return present
    is_empty = present.map(lambda value: isinstance(value, str) and not value).astype(bool)
    return present[~is_empty]


def _of_texts(name: str, present: Any, has_gaps: bool, are_codes: bool) -> _Drafted:
    """Draft a column of texts or truth values: dates, numbers with words, people, or categories.

    ``are_codes`` says that there are few different values, each of which occurs often.
    """
    import pandas as pd

    texts = present.astype(str)
    words = [word for word in texts.unique() if word.strip().lower() in MISSING_WORDS]
    others = texts[~texts.isin(words)]
    if formats := date_formats(others) if len(others) else []:
        if formats == [ISO] and _read_as("date", others) is not None:
            return _measured("date", has_gaps, words)
        return _ignored(
            f"FROM YOUR ROWS: dates are written as {' and as '.join(formats)}; write all as {ISO}."
        )
    is_plain = pd.to_numeric(texts, errors="coerce").notna().all()  # texts of digits may be codes
    if (
        not (are_codes or is_plain)
        and (drafted := _of_numbers_and_words(name, present, has_gaps)) is not None
    ):
        return drafted
    if people := _why_people(name, present):
        return _ignored(people)
    if present.nunique() > MOST_CATEGORIES:
        return _ignored(MANY)
    return _listed(sorted(set(map(text_of, present.unique()))), has_gaps)


def _of_numbers_and_words(name: str, present: Any, has_gaps: bool) -> _Drafted | None:
    """Draft a column of numbers that are written as texts, a few of which may be words; None for any other column.

    Measurements often have marks such as <0.5, or words such as "unknown" in place of a value.
    Words that are known to stand for a missing value, and words that occur often, are drafted as
    missing. For any other word, a remark names its first row.
    """
    import pandas as pd

    texts = present.astype(str)
    if texts.str.match(r"\s*[+-]?0\d").any():  # for example postcodes
        return None
    numbers, are_words = numbers_of_texts(texts)
    words = texts[are_words].str.strip()
    numbers = pd.Series(numbers[~are_words])
    if (
        len(numbers) < NUMBERS_PART * len(texts)
        or words.nunique() > MOST_WORDS
        or (numbers.abs() >= 2.0**53).any()
    ):
        return None
    if len(words) and numbers.nunique() <= MOST_CODES:
        return None
    if (numbers % 1 == 0).all() and (people := _why_people(name, numbers)):
        return _ignored(people)
    is_known = words.str.lower().isin(MISSING_WORDS) | (
        words.map(words.value_counts()) >= ROWS_PER_CODE
    )
    marks = (
        UNCLEAR
        if has_unclear_commas(present)
        else MARKED
        if texts[~are_words].str.contains("[<>≤≥,]").any()
        else ""
    )
    drafted = _of_numbers(
        numbers, has_gaps, find_codes(numbers.to_numpy(), {}), words[is_known].unique(), marks
    )
    if not is_known.all():
        unknown = words[~is_known]
        count = (
            "an entry is not a number"
            if len(unknown) == 1
            else f"{len(unknown)} entries are not numbers"
        )
        more = NOT_NUMBERS.format(count=count, row=unknown.index[0])
        drafted.remarks["kind"] = f"{marks} {more}".strip()
    return drafted


def _why_people(name: str, present: Any) -> str:
    """Return a remark if the values seem to be ids or names of people; "" if they do not."""
    import pandas as pd

    n_values, are_texts = present.nunique(), not pd.api.types.is_numeric_dtype(present.dtype)
    is_id = n_values > MOST_CODES and _ID_NAME.search(name)
    if n_values == len(present):
        return UNIQUE if is_id or n_values > (MOST_CODES if are_texts else MOST_CATEGORIES) else ""
    is_id = is_id or (
        n_values > MOST_CATEGORIES and present.astype(str).str.fullmatch(_ID_TEXT).all()
    )
    if is_id or not are_texts or n_values <= 2:
        return REPEATED_ID if is_id else ""
    if _PERSON.search(name):
        return PEOPLE
    different = pd.Series(present.unique()).astype(str).str.strip()
    are_like_names = (
        n_values > MOST_CODES and different.str.fullmatch(_NAME_TEXT).mean() > NUMBERS_PART
    )
    return LIKE_NAMES if are_like_names else ""


def _read_as(kind: Any, present: Any) -> Any:
    """Return the values as a schema with this kind reads them; None if it refuses any of them."""
    import pandas as pd

    try:
        return pd.Series(read_column(present, Column(kind=kind)))
    except MisfitError:
        return None


def _ignored(remark: str) -> _Drafted:
    """Draft a column as ignored, with a remark that says why."""
    return _Drafted({"kind": "ignored"}, {"kind": remark})


def _measured(kind: Any, has_gaps: bool, missing: Sequence[Any] = ()) -> _Drafted:
    """Draft a measured column, with its gaps and its words for a missing value."""
    fields = {"kind": kind} | ({"gaps": "mean"} if has_gaps or len(missing) else {})
    fields |= {"missing": list(missing)} if len(missing) else {}
    remarks = {"gaps": MISSING} if has_gaps else {}
    return _Drafted(
        fields, remarks | {"missing": CODED.format(codes=_in_words(missing), why="a word")}
    )


def _of_numbers(
    numbers: Any, has_gaps: bool, codes: Codes, words: Sequence[str] = (), remark: str = ""
) -> _Drafted:
    """Draft a column of numbers, with its codes for missing values and, if it is skewed, the offer of a logarithm."""
    rest = numbers[~numbers.isin([*codes.sure, *codes.unsure])]
    sure = [*codes.sure, *words]
    drafted = _measured("integer" if (rest % 1 == 0).all() else "number", has_gaps, sure)
    drafted.remarks["kind"] = remark
    if codes.sure:
        why = codes.why + (", or a word" if len(words) else "")
        drafted.remarks["missing"] = CODED.format(codes=_in_words(sure), why=why)
    if codes.unsure:
        when = IF_CODED.format(codes=_in_words(codes.unsure), why=codes.why_unsure)
        drafted.instead.append(
            (when, {"missing": codes.unsure} | ({} if has_gaps or sure else {"gaps": "mean"}))
        )
        if sure:
            drafted.instead[-1][1]["missing"] = [*sure, *codes.unsure]
    if rest.min() >= 0 and rest.skew() > SKEWED:
        drafted.instead.append((IF_SKEWED, {"logarithm": True}))
    return drafted


def _in_words(codes: Sequence[Any]) -> str:
    """Join codes with "and"; words are quoted."""
    return " and ".join(f"'{code}'" if isinstance(code, str) else f"{code:g}" for code in codes)


def _listed(categories: list[str], has_gaps: bool) -> _Drafted:
    """Draft a category or a binary column."""
    kind = "category" if len(categories) > 2 or has_gaps else "binary"
    fields = {"kind": kind, "categories": categories} | ({"gaps": "category"} if has_gaps else {})
    return _Drafted(fields, {"categories": LISTED, "gaps": MISSING})


def made_up_table(schema: Schema, n_rows: int, rng: np.random.Generator) -> Any:
    """Return a DataFrame that fits a schema, for rehearsals before anything runs on real rows."""
    import pandas as pd

    return pd.DataFrame(
        {name: _made_up(column, n_rows, rng) for name, column in schema.read.items()}
    )


def _made_up(column: Column, n_rows: int, rng: np.random.Generator) -> Any:
    """Return values at random that fit a column: one of its categories, or evenly spread within its bounds."""
    if column.categories is not None:
        return np.array(column.categories, dtype=object)[
            rng.integers(len(column.categories), size=n_rows)
        ]
    low, high = column.interval or (0.0, column.bins[-1] if column.bins else 100.0)
    values = low + (high - low) * rng.random(n_rows)
    if column.kind == "date":
        return [EPOCH + datetime.timedelta(days=float(day)) for day in np.trunc(values)]
    return np.trunc(values) if column.kind == "integer" else values
