"""Schemas: the public facts about the columns of a table, and how their values are read as numbers.

Real tables hold numbers, codes, words, dates and gaps. A schema says for each column which of these
it holds, and how much it counts. All sites get the same schema, so it must not be derived from
rows: its bounds and categories are known before anybody looks at a row. This module has the schema
itself, the checks of a table against it, and the reading of each entry as a float. Figures that the
sites find together (means, quantiles) are used in :mod:`~flower_fedclust.tables.preparation`.

Each entry is read from that entry alone, and messages name rows and columns, never a value.
"""

from __future__ import annotations

import datetime
import math
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import tomli_w
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
    with_config,
)

from flower_fedclust.data.cells import (
    READ_AS_MISSING,
    are_cells,
    are_missing,
    as_cells,
    numbers_in,
    unclear_points,
    why_unclear,
)
from flower_fedclust.data.identities import most_exact
from flower_fedclust.data.identities import text_of as text_of
from flower_fedclust.names import some
from flower_fedclust.numerics.checks import DataError, MissingFileError
from flower_fedclust.outside import parsing, read_toml

Floats = NDArray[np.float64]
Kind: TypeAlias = Literal[
    "number", "integer", "category", "ordinal", "binary", "date", "time-to-event", "ignored"
]
Gaps: TypeAlias = Literal["refuse", "mean", "category"]
Scale: TypeAlias = Literal["bounds", "standard", "robust", "rank"]
Bound: TypeAlias = float | datetime.date | datetime.datetime

#: Kinds that are measured on a scale, and kinds with a list of values.
MEASURED, LISTED = ("number", "integer", "date"), ("category", "ordinal", "binary")
#: A column of this kind holds the time until an event. MOST_TIMES is the most bins that it may have, and OF_TIME
#: lists the keys that only this kind has.
TIME, MOST_TIMES = "time-to-event", 120
OF_TIME = ("event", "bins", "time_zero", "row_time", "happened")

#: The most characters of a schema that another party may send: enough for a thousand columns of a thousand
#: characters.
LONGEST_SCHEMA = 2**20

EPOCH = datetime.date(1970, 1, 1)

#: Numbers with a mark such as < or >=, or with commas between thousands: <0.5, >=90, 1,234.5. The comma in 0,125 is a
#: decimal comma, and does not match.
_MARKED = r"(?:[<>]=?|[≤≥])?\s*([+-]?(?:\d+|[1-9]\d{0,2}(?:,\d{3})+)(?:\.\d*)?)"

#: The format in which dates are read, and common formats that are refused. Messages name the format of a value and do
#: not quote the value.
ISO = "YYYY-MM-DD"
_DATE_FORMATS = {
    ISO: r"\d{4}-\d\d-\d\d(?:[T ].*)?",
    "YYYY/MM/DD": r"\d{4}/\d{1,2}/\d{1,2}(?: .*)?",
    "DD/MM/YYYY or MM/DD/YYYY": r"\d{1,2}/\d{1,2}/(?:\d\d|\d{4})(?: .*)?",
    "DD.MM.YYYY": r"\d{1,2}\.\d{1,2}\.(?:\d\d|\d{4})(?: .*)?",
    "DD-MM-YYYY or MM-DD-YYYY": r"\d{1,2}-\d{1,2}-\d{4}(?: .*)?",
    "day, name of the month, year": r"\d{1,2}\.?[ -]?[^\W\d_]{3,}\.?[ ,-]*(?:\d\d|\d{4})",
    "name of the month, day, year": r"[^\W\d_]{3,}\.? \d{1,2},? \d{4}",
}


class MisfitError(Exception):
    """Why a column does not fit its schema. The message is a part of a sentence; it names rows, and never a value."""


def repeated_in(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once, in their order."""
    return [name for name, count in Counter(names).items() if count > 1]


def days_of(bound: float | datetime.date) -> float:
    """Return a bound as a number; a date becomes days since 1970."""
    if isinstance(bound, datetime.datetime):
        naive = bound.astimezone(datetime.UTC).replace(tzinfo=None) if bound.tzinfo else bound
        return (naive - datetime.datetime.combine(EPOCH, datetime.time())) / datetime.timedelta(
            days=1
        )
    return float((bound - EPOCH).days) if isinstance(bound, datetime.date) else float(bound)


class Column(BaseModel):
    """The public facts about one column. Every site gets all of these facts, so none may be taken from rows.

    Parameters
    ----------
    kind : "number", "integer", "category", "ordinal", "binary", "date", "time-to-event" or "ignored"
        Numbers, integers and dates are measured. Categories, ordinal columns (whose values have an
        order) and binary columns (two values) have a list of values. A time to an event is an
        outcome: rows are never clustered by it, and it gives a survival curve for each cluster. An
        ignored column may exist, but is not used.
    unit : str, default=""
        The unit of measurement, for descriptions.
    bounds : tuple of two numbers or dates, optional
        Bounds of a measured column; values beyond them are clipped. By default they are found
        privately.
    categories : sequence, optional
        All values of a category, an ordinal or a binary column.
    weight : float, default=1
        How much the column counts. With 2, distances in the column count twice.
    gaps : "refuse", "mean" or "category", default="refuse"
        What to do with missing values: "refuse" refuses the table; "mean" takes the mean over all
        sites, or the most frequent category; "category" makes them a category of their own.
    scale : "bounds", "standard", "robust" or "rank", default="bounds"
        How to scale a measured column. "bounds": its bounds become -1 and 1. "standard": its mean
        becomes 0 and its standard deviation 1. "robust": its median becomes 0 and its interquartile
        range 1. "rank": its ranks become -1 to 1.
    logarithm : bool, default=False
        Whether to replace each value x by log(1 + x) before scaling; values below 0 count as 0.
    missing : sequence, optional
        Codes and words that stand for a missing value, such as 999, -99, "unknown" or ".".
    event : str, optional
        For a time to an event: the binary column that says whether the event ended the time (its
        second category) or the row was last seen without it (its first).
    bins : sequence of float, optional
        For a time to an event: ascending upper ends of the bins of time in which rows are counted;
        the first bin begins at 0.
    time_zero : "row" or "subject", optional
        For a time to an event: whether the time begins at the row's own date, or at a date of the
        subject that is the same for all rows of this subject.
    row_time : str, optional
        With ``time_zero = "subject"``: the column that says when the row was made, counted from the
        subject's date. Only rows made up to that date (0) count: subjects who live longer have more
        later rows, and would make the curve too high.
    happened : str, default="had the event"
        For a time to an event: words for those who had the event, such as "had died".
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: Kind
    unit: str = ""
    bounds: tuple[Bound, Bound] | None = None
    categories: tuple[str, ...] | None = None
    weight: float = Field(default=1.0, gt=0, lt=1e100)
    gaps: Gaps = "refuse"
    scale: Scale = "bounds"
    logarithm: bool = False
    missing: tuple[str, ...] = ()
    event: str = ""
    bins: tuple[float, ...] = ()
    time_zero: Literal["", "row", "subject"] = ""
    row_time: str = ""
    happened: str = ""

    @model_validator(mode="before")
    @classmethod
    def _is_one_event(cls, value: Any) -> Any:
        """Refuse keys for kinds of studies that would not be counted correctly here, and give the reason."""
        if isinstance(value, Mapping) and value.get("kind") == TIME:
            for key, why in _NOT_COUNTED.items():
                if key in value:
                    raise ValueError(f"{key} is given, but {why}")
        return value

    @field_validator("categories", "missing", mode="before")
    @classmethod
    def _as_texts(cls, value: Any) -> Any:
        """Turn categories and codes into texts, however they were written."""
        return tuple(map(text_of, value)) if isinstance(value, (list, tuple)) else value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Refuse keys that contradict each other, or that this kind of column does not have.

        Only listed kinds have categories, only measured kinds have bounds, a scale or a logarithm,
        and only a time to an event has an event and bins. Pydantic calls this after it has checked
        each key alone, and turns the ValueError into an error that names the column.
        """
        if self.kind in LISTED:
            self._check_listed()
        elif self.categories is not None:
            raise ValueError(f"categories are given, but the kind {self.kind} has none")
        if self.kind not in MEASURED:
            for name, default in (("bounds", None), ("scale", "bounds"), ("logarithm", False)):
                if getattr(self, name) != default:
                    raise ValueError(
                        f"{name} is given, but only the kinds {', '.join(MEASURED)} have it"
                    )
        if self.kind == TIME:
            self._check_time()
        else:
            for name in OF_TIME:
                if getattr(self, name):
                    raise ValueError(f"{name} is given, but only the kind {TIME} has it")
        self._check_missing()
        if self.logarithm and self.kind == "date":
            raise ValueError("logarithm is given, but a date has none")
        if self.bounds is not None:
            self._check_bounds(self.bounds)
        return self

    def _check_listed(self) -> None:
        """Refuse categories that are missing, too few or repeated."""
        if self.categories is None:
            raise ValueError(
                "categories are missing; list the values that are known without looking at rows"
            )
        if repeated := repeated_in(self.categories):
            raise ValueError(f"categories has '{repeated[0]}' twice")
        if self.gaps == "category" and "missing" in self.categories:
            raise ValueError(
                "categories has 'missing', which gaps = \"category\" adds; call yours something else"
            )
        wanted = 2 if self.kind == "binary" else None
        if len(self.categories) < 2 or len(self.categories) != (wanted or len(self.categories)):
            raise ValueError(
                f"categories has {len(self.categories)}; give {'2' if wanted else '2 or more'}"
            )

    def _check_time(self) -> None:
        """Refuse a time to an event that lacks an event, bins or ``time_zero``.

        If the time begins at one date of a subject, row_time must say when each row was made.
        Otherwise subjects who live longer would have more rows, and the curve would be too high.
        """
        if self.weight != 1 or self.gaps == "mean":
            name = "weight" if self.weight != 1 else 'gaps = "mean"'
            raise ValueError(f"{name} is given, but nothing is clustered by a {TIME}")
        if not self.event:
            raise ValueError(
                "event is missing; name the binary column that says whether the event ended the time"
            )
        if not self.bins or len(self.bins) > MOST_TIMES:
            raise ValueError(
                f"bins has {len(self.bins)} ends; give the upper ends of 1 to {MOST_TIMES} bins of time"
            )
        ends = np.array((0.0, *self.bins))
        if not (np.diff(ends) > 1e-100).all() or ends[-1] > 1e100:
            raise ValueError("bins must ascend and begin above 0")
        if not self.time_zero:
            raise ValueError(
                'time_zero is missing; say whether time is counted from each row\'s own date ("row") or from one date '
                'of a subject ("subject", with row_time)'
            )
        if (self.time_zero == "subject") != bool(self.row_time):
            raise ValueError(
                'time_zero = "subject" needs row_time, the column with the time at which a row was made: whoever lives '
                "longer has more rows, so only rows up to time 0 count"
                if not self.row_time
                else 'row_time is given, but time_zero = "row" counts from the row itself'
            )

    def _check_missing(self) -> None:
        """Refuse codes for missing values that are repeated, or that are categories, too."""
        if repeated := repeated_in(self.missing):
            raise ValueError(f"missing has '{repeated[0]}' twice")
        if self.kind == "ignored" and self.missing:
            raise ValueError("missing is given, but an ignored column is not used")
        listed = set(map(_other_spelling, self.categories or ()))
        if both := [code for code in self.missing if _other_spelling(code) in listed]:
            raise ValueError(
                f"missing has '{both[0]}', which is also among the categories; leave it out of one"
            )

    def _check_bounds(self, bounds: tuple[Bound, Bound]) -> None:
        """Refuse bounds of another type, in the wrong order, or impossible to compute with."""
        are_dates = [isinstance(bound, datetime.date) for bound in bounds]
        if (self.kind == "date") != all(are_dates) or (self.kind != "date" and any(are_dates)):
            raise ValueError(f"bounds must be two {'dates' if self.kind == 'date' else 'numbers'}")
        low, high = map(days_of, bounds)
        if not low < high:
            raise ValueError("bounds must be two different values, the lower one first")
        if self.logarithm and low < 0:
            raise ValueError("bounds begin below 0, which has no logarithm")
        if not 1e-100 < high - low < 1e100 or (
            self.logarithm and not math.log(1 + high) - math.log(1 + low) > 1e-12
        ):
            raise ValueError("bounds are too near to each other, or too far apart, to compute with")

    @property
    def values(self) -> tuple[str, ...]:
        """The values that each become a prepared column: the listed values, and "missing" if gaps are a category."""
        listed = self.categories or ()
        return (*listed, "missing") if self.gaps == "category" else listed

    @property
    def interval(self) -> tuple[float, float] | None:
        """The public bounds as numbers, before the logarithm; dates become days since 1970."""
        return None if self.bounds is None else (days_of(self.bounds[0]), days_of(self.bounds[1]))

    @property
    def is_one_hot(self) -> bool:
        """Whether each value of the column becomes a prepared column of its own."""
        return self.kind == "category" or (self.kind == "binary" and self.gaps == "category")

    @property
    def needs_mean(self) -> bool:
        """Whether a run has to find the mean of this measured column."""
        return self.kind in MEASURED and (self.gaps != "refuse" or self.scale == "standard")

    @property
    def needs_histogram(self) -> bool:
        """Whether a run has to find a histogram of the column, because it needs a figure that is not public.

        Such figures are bounds, a mean, quantiles, or frequencies of categories.
        """
        if self.kind in MEASURED:
            return self.bounds is None or self.needs_mean or self.scale in ("robust", "rank")
        return self.gaps == "mean" or (self.gaps == "category" and not self.is_one_hot)


#: If the second category of an event is one of these words, the two categories are in the wrong order.
_WORDS_FOR_NONE = {"no", "false", "0", "none", "alive", "censored"}

#: Key -> why a time to an event with this key, which some studies would need, is refused.
_NOT_COUNTED = {
    "entry": "delayed entry is not counted: rows that are seen only from a later time on are not at risk before, and "
    "counting them from 0 would make everybody seem to live longer; let time begin at the entry",
    "competing": "competing risks are not counted: after another event this one can no longer happen, so calling it "
    "censored would overstate how many have this event; make one event of both",
}


@with_config(ConfigDict(extra="forbid", strict=True))
@dataclass(frozen=True)
class Figures:
    """The numbers with which one column is prepared: public ones, or numbers that a run has found with noise.

    All numbers are after the logarithm, if one is taken; dates are days since 1970.

    Parameters
    ----------
    low, high : float
        The bounds to which values are clipped. For a list of values, its first and last place.
    fill : float, default=0
        The number that replaces a missing value; for a list of values, a place in the list.
    center, spread : float
        For the scales "standard" and "robust": ``center`` is subtracted from a value, and the
        result is divided by ``spread``.
    quantiles : tuple of float
        Ascending values, from the lowest to the highest that stood out of the noise; for the scale
        "rank", from ``low`` to ``high``. Empty if no histogram was needed.
    ranks : tuple of float
        The share of all rows, 0 to 1, below each quantile.
    parts : tuple of float
        For a description: the ascending edges of the intervals in which rows are counted, in the
        table's own units (before a logarithm). For a mean, values are clipped to the first and the
        last edge.
    counts : tuple of float
        The frequency of each value of the list, with noise if the run has noise; empty if it was
        not needed.
    """

    low: float = 0.0
    high: float = 1.0
    fill: float = 0.0
    center: float = 0.0
    spread: float = 1.0
    quantiles: tuple[float, ...] = ()
    ranks: tuple[float, ...] = ()
    parts: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()


#: Pydantic's type of an error -> plain words for it, because pydantic's own words assume knowledge of Python.
_REASONS = {
    "extra_forbidden": "is not a key of a column; the keys are {keys}",
    "literal_error": "must be one of: {expected}",
    "finite_number": "must be finite",
    "greater_than": "must be above {gt:g}",
    "less_than": "must be below {lt:g}",
    "missing": "is missing",
    "tuple_type": "must be a list, such as {example}",
}

#: Examples of the keys whose values are lists; other lists are of texts.
_EXAMPLES = {"bounds": "[0, 100]", "bins": "[12, 24, 36]"}


class Schema(BaseModel):
    """The public facts about a table: the names of its columns, and a :class:`Column` for each.

    Columns are found by name, in any order. A table with other columns does not fit.

    Parameters
    ----------
    columns : mapping of str to Column
    subject_column : str, optional
        The column that names the person of each row, if a person may have several rows. It has no
        other use: if it is among ``columns``, its kind must be "ignored".

    Examples
    --------
    >>> schema = Schema.from_toml('''
    ... [columns.age]
    ... kind = "integer"
    ... bounds = [0, 100]
    ...
    ... [columns.work]
    ... kind = "category"
    ... categories = ["private", "public"]
    ... gaps = "category"
    ... ''')
    >>> list(schema.columns)
    ['age', 'work']
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    columns: Mapping[str, Column]
    subject_column: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _ignores_subjects(cls, value: Any) -> Any:
        """List the subject column as ignored, so that a table may have it."""
        if not isinstance(value, Mapping) or not isinstance(value.get("columns"), Mapping):
            return value
        name, columns = value.get("subject_column"), value["columns"]
        return (
            value
            if name is None or name in columns
            else {**value, "columns": {**columns, name: {"kind": "ignored"}}}
        )

    @model_validator(mode="after")
    def _is_of_use(self) -> Self:
        """Refuse a schema without columns to cluster by, or with two times to an event.

        A schema that clusters by the subject column is refused as well.
        """
        if self.subject_column is not None and self.columns[self.subject_column].kind != "ignored":
            raise ValueError(
                f"column '{self.subject_column}' is the subject_column, which says whose row it is, and rows are not "
                'clustered by it; leave it out of the columns, or write kind = "ignored"'
            )
        times = [name for name, column in self.columns.items() if column.kind == TIME]
        if len(times) > 1:
            raise ValueError(
                f"columns '{times[0]}' and '{times[1]}' are both times to an event; a run counts one, so ignore one"
            )
        for name in times:
            self._check_event(name, self.columns[name])
        if not self.used:
            raise ValueError("the schema has no column that is used; name at least one")
        return self

    def _check_event(self, name: str, time: Column) -> None:
        """Refuse a time to an event whose event or row time is not a suitable column.

        The event must be a binary column, whose first category means no event and whose second
        means the event; rows are not clustered by it. Several events are refused, because the curve
        would be wrong if they are competing risks.
        """
        event, row_time = self.columns.get(time.event), self.columns.get(time.row_time)
        if event is None or event.kind != "binary":
            n_values = 0 if event is None else len(event.categories or ())
            competing = (
                f"; with several events, {_NOT_COUNTED['competing']}" if n_values > 2 else ""
            )
            raise ValueError(
                f"column '{name}': event names '{time.event}', which must be a binary column of the schema, first "
                f"without and then with the event{competing}"
            )
        without, with_event = event.categories or ("", "")
        if with_event.strip().casefold() in _WORDS_FOR_NONE:
            raise ValueError(
                f"column '{time.event}': '{with_event}' is the second category, which means that the event ended the "
                f'time; write categories = ["{with_event}", "{without}"]'
            )
        if event.gaps == "mean" or event.weight != 1:
            raise ValueError(
                f"column '{time.event}' has gaps = \"mean\" or a weight, but nothing is clustered by an event"
            )
        if time.row_time and (
            row_time is None or row_time.kind not in ("number", "integer") or row_time.logarithm
        ):
            raise ValueError(
                f"column '{name}': row_time names '{time.row_time}', which must be a number or an integer of the schema"
            )

    @classmethod
    def of(cls, schema: Schema | str | Path | Mapping[str, Any]) -> Schema:
        """Return a schema from a Schema, a mapping, a TOML text, or the name of a TOML file.

        Raises
        ------
        ValueError
            If a key is wrong; the message names every such key.
        FileNotFoundError
            If there is no such file.
        """
        if isinstance(schema, Schema):
            return schema
        if isinstance(schema, Mapping):
            return cls._validated(schema, "the schema")
        if isinstance(schema, str) and "\n" in schema:
            return cls.from_toml(schema)
        path = Path(schema)
        try:
            return cls._validated(read_toml(path, "correct it"), path.name)
        except FileNotFoundError:
            raise MissingFileError(
                f"There is no schema file {path}; 'fedclust schema init FILE' drafts one from a table."
            ) from None

    @classmethod
    def from_toml(cls, text: str, *, source: str = "the schema") -> Schema:
        """Return the schema in a TOML text, which has a table ``[columns.NAME]`` for each column."""
        with parsing(source, "TOML", "correct it"):
            fields = tomllib.loads(text)
        return cls._validated(fields, source)

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Return the schema that :meth:`to_json` wrote.

        Raises a ValueError for any other text, and for one of more than :data:`LONGEST_SCHEMA`
        characters.
        """
        if len(text) > LONGEST_SCHEMA:
            raise ValueError(
                f"a schema of {len(text)} characters was sent; send at most {LONGEST_SCHEMA}."
            )
        return _from_json(text)

    @classmethod
    def _validated(cls, fields: Mapping[str, Any], source: str) -> Schema:
        """Return a schema from its fields; errors name ``source``."""
        with _explained(source):
            return cls.model_validate(fields)

    def to_json(self) -> str:
        """Return the schema as one line of JSON, for messages to sites."""
        return self.model_dump_json(exclude_defaults=True)

    def to_toml(self) -> str:
        """Return the schema as TOML."""
        return tomli_w.dumps(self.model_dump(exclude_defaults=True, exclude_none=True))

    @property
    def used(self) -> dict[str, Column]:
        """The columns to cluster by: all columns except ignored ones and the time to an event."""
        others = self.of_outcome
        return {
            name: column
            for name, column in self.columns.items()
            if column.kind != "ignored" and name not in others
        }

    @property
    def of_outcome(self) -> dict[str, Column]:
        """The columns about the outcome of the rows: the time to an event, the event, and the time of the row.

        Rows are never clustered by these columns. There are none if the schema has no time to an
        event.
        """
        for name, column in self.columns.items():
            if column.kind == TIME:
                names = (name, column.event, column.row_time)
                return {name: self.columns[name] for name in names if name}
        return {}

    @property
    def read(self) -> dict[str, Column]:
        """The columns that are read: those to cluster by, and those about the outcome."""
        return self.used | self.of_outcome

    def of_columns(
        self, wanted: Callable[[Column], bool], *, among: Collection[str] | None = None
    ) -> Schema | None:
        """Return a schema with the used columns for which ``wanted`` returns True; None if there are none.

        With ``among``, only columns with these names are considered.
        """
        used = (
            self.used
            if among is None
            else {name: column for name, column in self.used.items() if name in among}
        )
        columns = {name: column for name, column in used.items() if wanted(column)}
        return Schema(columns=columns) if columns else None

    def without(self, names: Collection[str]) -> Schema:
        """Return the schema with some of its columns ignored."""
        ignored = Column(kind="ignored")
        columns = {
            name: ignored if name in names else column for name, column in self.columns.items()
        }
        return Schema(columns=columns, subject_column=self.subject_column)

    def subjects_in(self, subject: str | None) -> str | None:
        """Return the column that names the subject of each row: ``subject``, or the schema's own.

        Raises a ValueError if both are given and differ.
        """
        if subject is not None and self.subject_column not in (None, subject):
            raise ValueError(
                f"subject_column is '{subject}', and in the schema it is '{self.subject_column}'; give one of them."
            )
        return subject or self.subject_column

    def check(self, table: Any, *, owner: str) -> None:
        """Raise a DataError if a table does not fit; its message names every column that does not, and says why.

        Parameters
        ----------
        table : pandas.DataFrame
        owner : str
            Whose table it is, for the message.
        """
        names = [str(name) for name in table.columns]
        reasons = _reasons_of_names(names, self.columns)
        if not reasons:
            if len(table) == 0:
                raise DataError(f"{owner}: the table has no rows; give at least one.")
            places = {name: index for index, name in enumerate(names)}
            for name, column in self.read.items():
                try:
                    read_column(table.iloc[:, places[name]], column)
                except MisfitError as misfit:
                    reasons.append(f"column '{name}': {misfit}")
        if reasons:
            raise DataError(
                f"{owner}: the table does not fit the schema: {some(reasons, between='; ')}."
            )

    def check_names(self, names: Sequence[str], *, owner: str) -> None:
        """Raise a DataError that names every column that is missing or unknown; no row is read."""
        if reasons := _reasons_of_names(names, self.columns):
            raise DataError(
                f"{owner}: the table does not fit the schema: {some(reasons, between='; ')}."
            )

    def check_roles(self, **roles: str | None) -> None:
        """Raise a ValueError if a column with a role ("label", "client", "id" or "subject") is read as a feature."""
        for role, name in roles.items():
            if name in self.read:
                raise ValueError(
                    f"'{name}' is the {role}_column; remove it from the schema, or leave out {role}_column."
                )

    def check_has_no_clients(self, names: Sequence[str], *, owner: str) -> None:
        """Raise a DataError as :meth:`check_names` does, with a hint if an unknown column may name the clients."""
        try:
            self.check_names(names, owner=owner)
        except DataError as error:
            unknown = [name for name in names if name not in self.columns]
            if not unknown:
                raise
            raise DataError(
                f"{error} If {quoted(unknown)} says whose row it is, name it as the client_column."
                if len(unknown) == 1
                else f"{error} If one of the columns says whose row it is, name it as the client_column."
            ) from None

    def check_equal(self, other: Schema | None, *, owner: str) -> None:
        """Raise a DataError unless a run's schema is the one that a site has agreed to."""
        others = {} if other is None else other.columns
        names = dict.fromkeys((*self.columns, *others))
        differ = [f"'{name}'" for name in names if self.columns.get(name) != others.get(name)]
        if other is not None and other.subject_column != self.subject_column:
            differ.append("subject_column")
        if differ:
            other_schema = "another" if others else "no"
            raise DataError(
                f"{owner}: the run has {other_schema} schema; the site has agreed to one that differs in "
                f"{some(differ)}. Agree on one file."
            )

    def values(
        self, table: Any, *, owner: str, first_row: int = 0, wanted: Collection[str] | None = None
    ) -> Iterator[tuple[str, Column, Any]]:
        """Yield (name, column, values) for each used column, or for each wanted one.

        The values are floats; see :func:`read_column`. The columns about the outcome may be absent
        from the table, unless they are wanted. Raises a DataError that names the first column that
        does not fit; rows are counted from ``first_row``.
        """
        names, wanted = (
            [str(name) for name in table.columns],
            self.used if wanted is None else wanted,
        )
        if reasons := _reasons_of_names(names, self.columns, wanted):
            raise DataError(
                f"{owner}: the table does not fit the schema: {some(reasons, between='; ')}."
            )
        places = {name: index for index, name in enumerate(names)}
        for name, column in self.read.items():
            if name not in wanted:
                continue
            try:
                values = read_column(table.iloc[:, places[name]], column, first_row=first_row)
            except MisfitError as misfit:
                raise DataError(
                    f"{owner}: the table does not fit the schema: column '{name}': {misfit}."
                ) from None
            yield name, column, values


@lru_cache(maxsize=16)
def _from_json(text: str) -> Schema:
    """Parse a schema, which sites get with every message; recent ones are cached."""
    with _explained("the schema"):
        return Schema.model_validate_json(text)


@contextmanager
def _explained(source: str) -> Iterator[None]:
    """Turn pydantic's error about a schema into a ValueError that names every wrong key."""
    try:
        yield
    except ValidationError as error:
        reasons = dict.fromkeys(
            map(_in_words, error.errors(include_url=False, include_input=False))
        )
        raise ValueError(f"{source}: {some(list(reasons), between='; ')}.") from None


def _reasons_of_names(
    names: Sequence[str], columns: Mapping[str, Column], wanted: Collection[str] | None = None
) -> list[str]:
    """Explain what is wrong with the names of a table's columns; [] if nothing is.

    All columns of the schema that are not ignored must be there; if ``wanted`` is given, only these
    must.
    """
    there = set(names)
    if repeated := repeated_in(names):
        return [f"column '{name}': two columns have this name; rename one" for name in repeated]
    lacking = [
        f"column '{name}': the table does not have it; add it, or correct its name"
        for name, column in columns.items()
        if name not in there and column.kind != "ignored" and (wanted is None or name in wanted)
    ]
    return lacking + [
        f"column '{name}': the schema does not have it; leave it out, or list it with kind = \"ignored\""
        for name in names
        if name not in columns
    ]


def quoted(names: Sequence[str]) -> str:
    """Join the first ten names of columns, and say how many others there are."""
    return some([f"'{name}'" for name in names])


def _in_words(error: Mapping[str, Any]) -> str:
    """Put an error of pydantic into words: the column, the key, and what it should be."""
    place = [str(part) for part in error["loc"]]
    where = f"column '{place[1]}'" if place[:1] == ["columns"] and len(place) > 1 else ""
    key = ".".join(place[2:3] if where else place)
    if error["type"] in _REASONS:
        template = _REASONS[error["type"]]
        context = {
            **error.get("ctx", {}),
            "keys": ", ".join(Column.model_fields),
            "example": _EXAMPLES.get(key, '["a", "b"]'),
        }
        reason = template[:1].lower() + template[1:].format(**context)
    else:
        reason = str(error["msg"]).removeprefix("Value error, ")
    sentence = f"{key} {reason}" if key else reason
    return f"{where}: {sentence}" if where else sentence


# Columns as numbers.


def read_column(series: Any, column: Column, *, first_row: int = 0) -> Floats:
    """Return the values of a pandas Series as floats, each read from its own entry alone.

    Numbers stay numbers, and dates become days since 1970. A category becomes its place in the list
    of categories. If gaps count as a category, a gap gets the place after the last; otherwise it
    becomes NaN.

    Raises
    ------
    MisfitError
        If a value does not fit the column. The message names the first such row, counted from
        ``first_row``.
    """
    if str(series.dtype) == "bool[pyarrow]":  # PyArrow cannot compare bool with numbers
        series = series.astype("boolean")
    if column.missing:
        series = series.mask(are_coded_missing(series, column))
    if column.categories is not None:
        values = _codes(series, column.categories, first_row)
    elif column.kind == "date":
        values = _days(series, first_row)
    else:
        if column.kind == TIME:
            _refuse_dates(series)
        values = _numbers(series, first_row)
        if column.kind == TIME:
            _refuse(
                values < 0, True, first_row, "is a time below 0; correct it, or leave the row out"
            )
        if column.kind == "integer":
            _refuse(
                values != np.trunc(values),
                ~np.isnan(values),
                first_row,
                "is not a whole number; correct it",
            )
        if column.kind in ("number", "integer"):
            _refuse_truth_values(series, values, first_row, or_all=column.kind == "number")
    with np.errstate(over="ignore", invalid="ignore"):
        total = values.sum()
    if np.isfinite(total):  # a sum is finite only if all values are
        return values
    _refuse(np.isinf(values), True, first_row, "is infinite; correct it")
    gaps = np.isnan(values)
    if column.gaps == "refuse":
        remedies = '"category"' if column.kind == TIME else '"mean" or "category"'
        _refuse(
            gaps,
            True,
            first_row,
            f"is missing; fill it in, or let the schema say gaps = {remedies}",
        )
    elif column.is_one_hot and column.gaps == "category":
        values[gaps] = len(column.categories or ())
    return values


def are_coded_missing(series: Any, column: Column) -> NDArray[np.bool_]:
    """Tell for each entry whether it is one of the column's codes or words for a missing value.

    A code matches as a number, however it is written (99, 99.0), and a word as a text without
    surrounding spaces.
    """
    import pandas as pd

    if not column.missing:
        return np.zeros(len(series), dtype=bool)
    are_numbers = pd.api.types.is_numeric_dtype(series.dtype) and not pd.api.types.is_bool_dtype(
        series.dtype
    )
    codes, are_words = numbers_in(as_cells(column.missing))
    codes = codes[~are_words]
    if are_numbers:
        if series.dtype.kind == "f" and series.dtype.itemsize < 8:
            # In a column of float32, 99.9 is stored as another number than in float64.
            codes = codes.astype(f"f{series.dtype.itemsize}")
        is_code: NDArray[np.bool_] = series.isin(codes).to_numpy(dtype=bool, na_value=False)
        return is_code
    if series.dtype.kind == "M":
        series = series.dt.strftime("%Y-%m-%d")
    if not are_cells(series):
        series = as_cells(series.astype(object).map(text_of, na_action="ignore").to_numpy())
    texts = series.str.strip()
    words = {*column.missing, *map(_other_spelling, column.missing)}
    is_code = texts.isin(list(words)).to_numpy(dtype=bool, na_value=False)
    return (
        is_code | np.isin(numbers_in(texts)[0], codes)
        if column.kind in ("number", "integer")
        else is_code
    )


def is_unlisted(series: Any, column: Column) -> NDArray[np.bool_]:
    """Tell for each entry whether it is a value that the column does not list.

    False everywhere if the entries cannot be read as categories.
    """
    try:
        unlisted = np.asarray(_places(series, column.categories or (), 0) == -1.0)
        return unlisted & ~are_coded_missing(series, column)
    except MisfitError:
        return np.zeros(len(series), dtype=bool)


def _numbers(series: Any, first_row: int) -> Floats:
    """Return the entries of a column of numbers as floats; NaN for gaps."""
    import pandas as pd

    are_unclear = unclear_points(series)
    if are_unclear.any():
        raise MisfitError(f"it {why_unclear(first_row + int(are_unclear.argmax()))}")
    kind = getattr(series.dtype, "kind", "O")
    if kind in "mM" or isinstance(series.dtype, pd.PeriodDtype):
        raise MisfitError("it holds dates or times, but the schema says numbers; change the kind")
    if kind == "c":
        raise MisfitError("it holds complex numbers; give real ones")
    if pd.api.types.is_numeric_dtype(series.dtype):
        parsed: Floats = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return parsed
    numbers, are_words = numbers_of_texts(series)
    _refuse(
        are_words,
        True,
        first_row,
        "is not a number; correct it, or list it in the schema, under 'missing'",
    )
    return numbers


def _refuse_truth_values(series: Any, numbers: Floats, first_row: int, *, or_all: bool) -> None:
    """Raise a MisfitError if an entry that counts as 1 or 0 is written as True or False.

    With ``or_all``, a column is accepted if all of its entries are written so.
    """
    import pandas as pd

    is_bool = pd.api.types.is_bool_dtype(series.dtype)
    if (pd.api.types.is_numeric_dtype(series.dtype) and not is_bool) or (is_bool and or_all):
        return
    are_bits = np.isin(numbers, (0.0, 1.0))
    words = series[are_bits].astype(str).str.strip().str.lower()
    are_truths = are_bits.copy()
    are_truths[are_bits] = words.isin(["true", "false"]).to_numpy(dtype=bool)
    present = ~np.isnan(numbers)
    if or_all and np.array_equal(are_truths, present):
        return
    remedy = 'set the kind to "binary"' if np.array_equal(are_bits, present) else "correct it"
    _refuse(are_truths, True, first_row, f"is True or False; {remedy}")


def _refuse_dates(series: Any) -> None:
    """Raise a MisfitError if a time to an event holds dates."""
    import pandas as pd

    are_texts = not pd.api.types.is_numeric_dtype(series.dtype) and series.dtype.kind not in "mM"
    present = series[~are_missing(series)] if are_texts else series[:0]
    if series.dtype.kind == "M" or (len(present) and date_formats(present[:100])):
        raise MisfitError(
            "it holds dates, but a time to an event is a number, such as of days or months; subtract the date at which "
            "time begins"
        )


def numbers_of_texts(series: Any) -> tuple[Floats, NDArray[np.bool_]]:
    """Return texts as numbers (NaN for gaps), and which texts are neither a number nor a gap.

    A mark such as < is left out: <0.5 counts as 0.5. So are commas between thousands: 1,234 counts
    as 1234.
    """
    import pandas as pd

    numbers: Floats
    if are_cells(series):
        numbers, marked = numbers_in(series)
    else:
        numbers = pd.to_numeric(series, errors="coerce").to_numpy(
            np.float64, copy=True, na_value=np.nan
        )
        marked = np.isnan(numbers) & ~are_missing(series)
    if marked.any():
        texts = series[marked].astype(str).str.strip().str.extract(f"^{_MARKED}$", expand=False)
        numbers[marked] = texts.str.replace(",", "").astype(np.float64)
    return numbers, np.isnan(numbers) & marked


def columns_with_unclear_commas(tables: Iterable[Any], schema: Schema) -> list[str]:
    """Return the columns in which 1,234 counts as 1234, although it may mean 1.234.

    A column is unclear if no number in it shows whether its commas are decimal commas. ``tables``
    are the parts of one table; they are read until every column is clear.
    """
    unclear = {
        name: False for name, column in schema.used.items() if column.kind in ("number", "integer")
    }
    for table in tables:
        for place, name in enumerate(map(str, table.columns)):
            if (
                name in unclear
                and (is_unclear := _has_unclear_commas(table.iloc[:, place])) is not None
            ):
                unclear[name] |= is_unclear
                if not is_unclear:
                    del unclear[name]
        if not unclear:
            break
    return [name for name, is_unclear in unclear.items() if is_unclear]


def has_unclear_commas(series: Any) -> bool:
    """Tell whether every comma in a column of numbers may be a decimal comma, or a mark of thousands."""
    return _has_unclear_commas(series) is True


def _has_unclear_commas(series: Any) -> bool | None:
    """Tell whether the commas of a column are unclear; None if it has neither commas nor points."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(series.dtype) or series.dtype.kind in "mM":
        return False
    texts = series[~are_missing(series)].astype(str)
    if texts.str.contains(".", regex=False).any():
        return False
    with_comma = texts[texts.str.contains(",", regex=False)]
    may_be_decimal = with_comma.str.fullmatch(r"\s*(?:[<>]=?|[≤≥])?\s*[+-]?[1-9]\d{0,2},\d{3}\s*")
    return bool(may_be_decimal.all()) if len(with_comma) else None


def _days(series: Any, first_row: int) -> Floats:
    """Return the entries of a column of dates as days since 1970; NaN for gaps.

    Dates are written as YYYY-MM-DD, or as the text YYYYMMDD, with or without a time; a time with a
    zone is converted to UTC. Any other format is refused by name, because 03/04/2020 has two
    meanings.
    """
    import pandas as pd

    if pd.api.types.is_numeric_dtype(series.dtype):
        raise MisfitError("it holds numbers, but the schema says dates; change the kind")
    if series.dtype.kind != "M":
        were_cells = are_cells(series)
        series = series.where(~are_missing(series))
        if were_cells:
            series = series.astype(object).where(series.notna(), None)
        series = _with_hyphens(series)
        texts = series.astype(str).str.strip()
        # pandas reads 2021 as the first day of a year, and an integer as nanoseconds.
        is_number = texts.str.fullmatch(r"[+-]?\d+(?:\.0*)?", na=False).to_numpy(bool)
        _refuse(is_number, True, first_row, f"is a number; write it as {ISO}")
        # pandas also reads years before Christ, and "now" and "today".
        is_other = texts.str.fullmatch(
            r"(?i:[+-].*|\d+(?:\.\d+)?(?:e[+-]?\d+)?|now|today)", na=False
        )
        _refuse(is_other.to_numpy(bool), True, first_row, f"is not a date; write it as {ISO}")
    dates = (
        series
        if series.dtype.kind == "M"
        else pd.to_datetime(series, errors="coerce", format="ISO8601", utc=True)
    )
    is_bad = dates.isna() & series.notna()
    if is_bad.any() and len(formats := date_formats(series.dropna())) > 1:
        raise MisfitError(f"dates are written as {' and as '.join(formats)}; write all as {ISO}")
    _refuse(is_bad.to_numpy(), True, first_row, f"is not a date; write it as {ISO}")
    if getattr(dates.dtype, "tz", None) is not None:
        dates = dates.dt.tz_convert("UTC").dt.tz_localize(None)
    gaps = dates.isna().to_numpy()
    days: Floats = dates.to_numpy(dtype="datetime64[us]").astype(np.int64) / 86_400e6
    days[gaps] = np.nan
    return days


def _with_hyphens(series: Any) -> Any:
    """Return entries of any type, in which a text such as 20210301 is written as 2021-03-01."""
    import pandas as pd

    are_digits = series.astype(str).str.fullmatch(r"\s*[0-9]{8}\s*", na=False)
    may_be = are_digits.to_numpy(dtype=bool, copy=True)
    may_be[may_be] = (
        series[may_be].astype(object).map(type).eq(str).to_numpy()
    )  # an integer is not a date
    if not may_be.any():
        return series
    written = series[may_be].astype(str).str.strip()
    parts = written.str.replace(r"(\d{4})(\d\d)(\d\d)", r"\1-\2-\3", regex=True)
    result = series.to_numpy(dtype=object, copy=True)
    result[may_be] = parts.to_numpy(dtype=object)
    return pd.Series(result, index=series.index, dtype=object)


def date_formats(present: Any) -> list[str]:
    """Name the formats in which the texts of a Series write dates; [] if any of them is not a date."""
    texts, formats = present.astype(str).drop_duplicates().str.strip(), []
    for name, pattern in _DATE_FORMATS.items():
        is_so = texts.str.fullmatch(pattern)
        formats += [name] if is_so.any() else []
        texts = texts[~is_so]
    return [] if len(texts) else formats


def _codes(series: Any, categories: tuple[str, ...], first_row: int) -> Floats:
    """Return the place of each entry in the list of categories; refuse a value that is not listed."""
    values = _places(series, categories, first_row)
    remedy = "is a category that the schema does not list; correct it, or add it to the schema"
    _refuse(values == -1.0, True, first_row, remedy)
    return values


def _places(series: Any, categories: tuple[str, ...], first_row: int) -> Floats:
    """Return the place of each entry in the list of categories: -1 if it is not listed, NaN for gaps.

    Each entry is read by itself. First its text is looked up, and then its other spelling, because
    a program may have read the code 01 as the number 1. In a column of floats, a code is refused if
    a float cannot hold all of its digits.
    """
    import pandas as pd

    is_mixed = series.dtype == object and pd.api.types.infer_dtype(series).startswith("mixed")
    try:  # pandas takes the objects True and 1 for the same value
        codes, distinct = pd.factorize(
            series.map(text_of, na_action="ignore") if is_mixed else series
        )
    except TypeError:
        raise MisfitError(
            "it holds values that cannot be categories, such as lists; leave it out"
        ) from None
    if distinct.dtype.kind == "f":
        are_long = np.append(
            np.abs(np.asarray(distinct, dtype=np.float64)) >= most_exact(distinct.dtype),
            False,
        )[codes]
        _refuse(
            are_long,
            True,
            first_row,
            "is a code too long for a column of floats; make the column text or integers",
        )
    places = _places_of_names(categories)
    texts = [text_of(value) for value in distinct]
    if not are_cells(series):  # a program such as pandas may have read a category as missing
        for name in READ_AS_MISSING.intersection(categories).difference(texts):
            why = f"is missing, because '{name}' in a file is read as missing; rename that category in both files"
            _refuse(codes == -1, True, first_row, why)
    place_of = np.array([*(_place_of(text, places) for text in texts), np.nan])
    values: Floats = place_of[codes]  # a gap has the code -1
    return values


@lru_cache(maxsize=256)
def _places_of_names(categories: tuple[str, ...]) -> Mapping[str, float]:
    """Return the place of each category by its name, and also by its other spelling if that is unique."""
    others = [_other_spelling(name) for name in categories]
    how_many = Counter(others)
    places = {name: float(place) for place, name in enumerate(others) if how_many[name] == 1}
    return places | {name: float(place) for place, name in enumerate(categories)}


def _place_of(text: str, places: Mapping[str, float]) -> float:
    """Return the place of one value: NaN if it is read as missing, -1 if it is not listed."""
    if text not in places and text in READ_AS_MISSING:
        return math.nan
    return places.get(text, places.get(_other_spelling(text), -1.0))


def _other_spelling(name: str) -> str:
    """Return how a code is spelled after a program has read it as a number or truth value: 01 as 1, 1.0 as 1."""
    if re.fullmatch(r"[+-]?\d{1,40}(\.0*)?", name) and name.isascii():
        return str(int(name.partition(".")[0]))
    if re.fullmatch(r"[+-]?\d+,\d+", name):
        return name.replace(",", ".")  # for example 1,0 in a file with decimal commas
    return name.lower() if name.lower() in ("true", "false") else name


def _refuse(
    is_bad: NDArray[np.bool_], counts: NDArray[np.bool_] | bool, first_row: int, why: str
) -> None:
    """Raise a MisfitError that names the first bad row, if there is any. Only rows in ``counts`` are considered."""
    bad = is_bad & counts
    if bad.any():
        raise MisfitError(f"row {first_row + int(bad.argmax())} {why}")
