"""What is public of a table: its columns, what they mean, and how they are to be measured."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from flower_fedclust.numerics.checks import DataError, MissingFileError
from flower_fedclust.outside import parsing, read_toml
from flower_fedclust.tables.columns import Column, MisfitError, read_column

#: How many columns a message names; of the others it says how many they are.
MOST_NAMED = 10

#: What is said of pydantic's own reasons, which speak of Python.
_REASONS = {
    "extra_forbidden": "is no key of a column; there are {keys}",
    "literal_error": "must be one of: {expected}",
    "finite_number": "must be finite",
    "greater_than": "must be above {gt:g}",
    "less_than": "must be below {lt:g}",
    "missing": "is missing",
}


class Schema(BaseModel):
    """What is public of a table: the names of its columns, and of each what :class:`Column` says.

    Columns are found by name, in whatever order a table has them. A table with others does not fit.

    Parameters
    ----------
    columns : mapping of str to Column

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

    @model_validator(mode="after")
    def _is_of_use(self) -> Self:
        if not self.used:
            raise ValueError("the schema has no column that is used; name at least one")
        return self

    # Where it comes from, and where it goes.

    @classmethod
    def of(cls, given: Schema | str | Path | Mapping[str, Any]) -> Schema:
        """Return a schema as a user gives it: itself, a mapping, TOML, or the name of a TOML file.

        Raises
        ------
        ValueError
            Naming every key that cannot be right.
        FileNotFoundError
            If there is no such file.
        """
        if isinstance(given, Schema):
            return given
        if isinstance(given, Mapping):
            return cls._validated(given, "the schema")
        if isinstance(given, str) and "\n" in given:
            return cls.from_toml(given)
        path = Path(given)
        try:
            return cls._validated(read_toml(path, "correct it"), path.name)
        except FileNotFoundError:
            raise MissingFileError(
                f"There is no schema file {path}; 'fedclust schema init FILE' drafts one from a table."
            ) from None

    @classmethod
    def from_toml(cls, text: str, *, source: str = "the schema") -> Schema:
        """Return the schema that a TOML text describes: a table ``[columns.NAME]`` for each column.

        Parameters
        ----------
        text : str
        source : str
            What messages call it.

        Raises
        ------
        ValueError
            Naming every key that cannot be right.
        """
        with parsing(source, "TOML", "correct it"):
            fields = tomllib.loads(text)
        return cls._validated(fields, source)

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Return the schema that :meth:`to_json` wrote."""
        return _from_json(text)

    @classmethod
    def _validated(cls, fields: Mapping[str, Any], source: str) -> Schema:
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            reasons = dict.fromkeys(map(_in_words, error.errors()))
            raise ValueError(f"{source}: {_some(list(reasons))}.") from None

    def to_json(self) -> str:
        """Return the schema as one line of JSON, as it is sent to sites."""
        return self.model_dump_json(exclude_defaults=True)

    def to_toml(self) -> str:
        """Return the schema as TOML."""
        return tomli_w.dumps(self.model_dump(exclude_defaults=True, exclude_none=True))

    # What it says.

    @property
    def used(self) -> dict[str, Column]:
        """The columns that are not ignored."""
        return {name: column for name, column in self.columns.items() if column.kind != "ignored"}

    def of_columns(self, wanted: Callable[[Column], bool]) -> Schema | None:
        """Return a schema with some of the used columns; None if there are none."""
        columns = {name: column for name, column in self.used.items() if wanted(column)}
        return Schema(columns=columns) if columns else None

    def check(self, table: Any, *, owner: str) -> None:
        """Raise a DataError that says of every column why it does not fit, unless all do.

        Parameters
        ----------
        table : pandas.DataFrame
        owner : str
            Whose table it is, for the message. It names columns and rows, and never a value.
        """
        names = [str(name) for name in table.columns]
        reasons = _reasons_of_names(names, self.columns)
        if not reasons:
            if len(table) == 0:
                raise DataError(f"{owner}: the table has no rows; give at least one.")
            places = {name: index for index, name in enumerate(names)}
            for name, column in self.used.items():
                try:
                    read_column(table.iloc[:, places[name]], column)
                except MisfitError as misfit:
                    reasons.append(f"column '{name}': {misfit}")
        if reasons:
            raise DataError(f"{owner}: the table does not fit the schema: {_some(reasons)}.")

    def check_equal(self, other: Schema | None, *, owner: str) -> None:
        """Raise a DataError unless a run says of the columns what a site knows of them.

        Parameters
        ----------
        other : Schema or None
            That of the run.
        owner : str
            The site.
        """
        others = {} if other is None else other.columns
        differ = [f"'{name}'" for name in dict.fromkeys((*self.columns, *others)) if self._differs(others, name)]
        if differ:
            verb = "the run has no schema, or another one" if not others else "the run's schema is another"
            raise DataError(f"{owner}: {verb} than the site agreed to, in {_some(differ)}; agree on one file.")

    def _differs(self, others: Mapping[str, Column], name: str) -> bool:
        return self.columns.get(name) != others.get(name)

    def values(
        self, table: Any, *, owner: str, rows: slice = slice(None), wanted: Collection[str] | None = None
    ) -> Iterator[tuple[str, Column, Any]]:
        """Yield name, column and values of every used column of a table: numbers, days or codes; NaN for gaps.

        Parameters
        ----------
        table : pandas.DataFrame
            That fits, but for the order of its columns.
        owner : str
            Whose table it is, for messages.
        rows : slice, optional
            Which rows.
        wanted : collection of str, optional
            Which of the used columns; by default all.

        Raises
        ------
        DataError
            Naming the first column that does not fit.
        """
        names = [str(name) for name in table.columns]
        if reasons := _reasons_of_names(names, self.columns):
            raise DataError(f"{owner}: the table does not fit the schema: {_some(reasons)}.")
        places = {name: index for index, name in enumerate(names)}
        for name, column in self.used.items():
            if wanted is not None and name not in wanted:
                continue
            try:
                values = read_column(table.iloc[rows, places[name]], column, first_row=rows.start or 0)
            except MisfitError as misfit:
                raise DataError(f"{owner}: the table does not fit the schema: column '{name}': {misfit}.") from None
            yield name, column, values


@lru_cache(maxsize=16)
def _from_json(text: str) -> Schema:
    return Schema.model_validate_json(text)


def _reasons_of_names(names: Sequence[str], columns: Mapping[str, Column]) -> list[str]:
    """Return what is wrong with the names of a table's columns."""
    there = set(names)
    if len(there) < len(names):
        repeated = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        return [f"column '{name}': the name is there twice; rename one" for name in repeated]
    lacking = [
        f"column '{name}': it is not there; add it, or mend its name"
        for name, column in columns.items()
        if name not in there and column.kind != "ignored"
    ]
    return lacking + [
        f"column '{name}': the schema does not have it; leave it out, or list it with kind = \"ignored\""
        for name in names
        if name not in columns
    ]


def _some(reasons: Sequence[str]) -> str:
    """Return reasons in one sentence, the first ten of them."""
    more = len(reasons) - MOST_NAMED
    return "; ".join(reasons[:MOST_NAMED]) + (f"; and {more:,} more" if more > 0 else "")


def _in_words(error: Mapping[str, Any]) -> str:
    """Return what pydantic found as part of a sentence: which column, which key, and what would be right."""
    place = [str(part) for part in error["loc"]]
    where = f"column '{place[1]}'" if place[:1] == ["columns"] and len(place) > 1 else ""
    key = ".".join(place[2:3] if where else place)
    reason = _REASONS.get(error["type"], str(error["msg"]).removeprefix("Value error, "))
    context = {**error.get("ctx", {}), "keys": ", ".join(Column.model_fields)}
    reason = reason[:1].lower() + reason[1:].format(**context) if error["type"] in _REASONS else reason
    return ": ".join(part for part in (where, f"{key} {reason}" if key else reason) if part)
