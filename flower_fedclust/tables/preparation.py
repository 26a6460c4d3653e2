"""How a table becomes rows of numbers that lie in a ball: what was found of each column, and what follows from it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data.frames import as_frame
from flower_fedclust.exact.elementary import logarithm
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.tables.columns import MEASURED, Column, Figures, Floats
from flower_fedclust.tables.schema import Schema
from flower_fedclust.tables.transformers import transformer_of

#: Of what :meth:`Preparation.to_dict` writes. A model with another one is refused.
VERSION = 1

#: No figure is larger, and no two of which the difference divides are nearer to each other: so nothing overflows.
LARGEST, NEAREST = 1e120, 1e-120

#: No prepared value is so many deviations (or distances between quartiles) from the middle, before its weight.
MOST_DEVIATIONS = 2.0**20

#: Quantiles of a column at most.
MOST_QUANTILES = 2**14

#: Rows that are prepared at a time: what becomes of them stays in a processor's cache.
BLOCK_ROWS = 4096


@dataclass(frozen=True)
class Preparation:
    """How a table becomes rows of numbers: the schema, and what was found of its columns.

    A measured column becomes one column, of -1 to 1 times its weight where it is scaled by its bounds. A category
    becomes a column for each of its values, which is 0 or the weight divided by the square root of 2; a binary column
    becomes one of plus or minus half of the weight. So two rows that differ in a category are as far apart as two that
    differ by half of the range of a number. Where a gap of a number is a category of its own, there is a column for it
    as for a binary one.

    Attributes
    ----------
    places : dict of str to slice
        Which prepared columns came from which column of the table.
    names : list of str
        What the prepared columns are called: "age", "work=public", "age is missing".
    n_columns : int
        How many prepared columns there are.
    transformer_ : sklearn.pipeline.Pipeline
        The same as scikit-learn's own transformers, to look at or to use elsewhere.
    radius, l1_radius : float
        The Euclidean and the L1 norm that no prepared row exceeds. They follow from the schema and the figures.

    Raises
    ------
    ValueError
        If the figures are not of the schema's columns, or such that no row could be prepared; the message names the
        column. Every table that fits the schema can then be prepared, whatever values it holds.
    """

    schema: Schema
    figures: Mapping[str, Figures]  #: Of the columns that are used.

    def __post_init__(self) -> None:
        used = self.schema.used
        if set(self.figures) != set(used):
            raise ValueError("the figures of a preparation are of other columns than its schema uses.")
        for name, column in used.items():
            if reason := _wrong_in(self.figures[name], column):
                raise ValueError(f"the preparation of column '{name}': {reason}.")

    # To a file, and back.

    def to_dict(self) -> dict[str, Any]:
        """Return all there is to know, ready for JSON."""
        figures = {
            name: {key: value for key, value in asdict(found).items() if value != getattr(_DEFAULT, key)}
            for name, found in self.figures.items()
        }
        return {"version": VERSION, "schema": json.loads(self.schema.to_json()), "figures": figures}

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Self:
        """Undo :meth:`to_dict`.

        Raises
        ------
        ValueError
            If another version has written it, or if it is no preparation.
        """
        if not isinstance(written, Mapping) or not {"version", "schema", "figures"} <= written.keys():
            raise ValueError("a preparation has a version, a schema and figures.")
        if written["version"] != VERSION:
            raise ValueError(
                f"this preparation has version {written.get('version')} and {VERSION} is read; make the model anew, or "
                "use the version of flower-fedclust that made it."
            )
        if not isinstance(written["figures"], Mapping):
            raise ValueError("the figures of a preparation are given by column.")
        figures = {name: _figures_from(name, found) for name, found in written["figures"].items()}
        return cls(Schema.from_json(json.dumps(written["schema"])), figures)

    # What follows from it.

    @property
    def columns_(self) -> list[str]:
        """The names of the table's columns that are used."""
        return list(self.schema.used)

    @cached_property
    def places(self) -> dict[str, slice]:
        """Which prepared columns came from which column of the table."""
        found, start = {}, 0
        for name, column in self.schema.used.items():
            found[name] = slice(start, start := start + width_of(column))
        return found

    @cached_property
    def names(self) -> list[str]:
        """What the prepared columns are called."""
        names: list[str] = []
        for name, column in self.schema.used.items():
            if column.is_one_hot:
                names += [f"{name}={value}" for value in column.values]
            elif column.kind == "binary":
                assert column.categories is not None
                names.append(f"{name}={column.categories[1]}")
            else:
                names += [name, f"{name} is missing"][: width_of(column)]
        return names

    @property
    def n_columns(self) -> int:
        """How many prepared columns there are."""
        return len(self.names)

    @cached_property
    def _reaches(self) -> tuple[Floats, Floats]:
        """How far from 0 the prepared values of each column of the table can be, in Euclidean and in L1 norm."""
        pairs = [self._reach(name, column) for name, column in self.schema.used.items()]
        euclidean, l1 = zip(*pairs, strict=True)
        return np.array(euclidean), np.array(l1)

    def _reach(self, name: str, column: Column) -> tuple[float, float]:
        if column.is_one_hot:
            return column.weight * math.sqrt(0.5), column.weight * math.sqrt(0.5)
        if column.kind == "binary":
            return column.weight / 2, column.weight / 2
        found = self.figures[name]
        reach = 1.0
        if column.scale in ("standard", "robust"):
            reach = _reach(found)
        missing = 0.5 if column.gaps == "category" else 0.0
        return column.weight * math.hypot(reach, missing), column.weight * (reach + missing)

    @property
    def radius(self) -> float:
        """The Euclidean norm that no prepared row exceeds."""
        return float(np.linalg.norm(self._reaches[0])) * (1 + 2.0**-30)

    @property
    def l1_radius(self) -> float:
        """The L1 norm that no prepared row exceeds."""
        return float(self._reaches[1].sum()) * (1 + 2.0**-30)

    @cached_property
    def transformer_(self) -> Any:
        """The preparation as a Pipeline of scikit-learn's own transformers, fitted to what was found."""
        return transformer_of(self.schema, self.figures)

    # What it does.

    def transform(self, table: Any, *, owner: str = "the table") -> NDArray[np.float64]:
        """Return the rows of a table as numbers, each from its own row alone.

        Parameters
        ----------
        table : table of pandas, Polars or PyArrow
            With the columns of the schema, in any order.
        owner : str
            Whose table it is, for messages.

        Returns
        -------
        ndarray of shape (n_rows, n_columns)

        Raises
        ------
        DataError
            If the table does not fit the schema; the message names columns and rows, and no value.
        """
        frame = as_frame(table, owner)
        if frame is None:
            raise DataError(
                f"{owner}: the schema finds columns by their names, and these rows have none; give a table."
            )
        if len(frame) == 0:
            raise DataError(f"{owner}: the table has no rows; give at least one.")
        columns = list(self.schema.values(frame, owner=owner))
        rows = np.empty((len(frame), self.n_columns))
        # A block is made column by column, where each is in one piece, and turned when it is whole.
        turned = np.empty((self.n_columns, BLOCK_ROWS))
        for start in range(0, len(frame), BLOCK_ROWS):
            part = rows[start : start + BLOCK_ROWS]
            block = turned[:, : len(part)]
            for name, column, values in columns:
                self._place(name, column, values[start : start + BLOCK_ROWS], block[self.places[name]])
            part[:] = block.T
        return rows

    def _place(self, name: str, column: Column, values: Floats, out: Floats) -> None:
        """Write the prepared values of a column."""
        found = self.figures[name]
        missing = np.isnan(values) if np.isnan(values.min()) else None  # a minimum is NaN if any entry is
        if column.is_one_hot or column.kind == "binary":
            places = (values if missing is None else np.where(missing, found.fill, values)).astype(np.intp)
            if column.is_one_hot:
                for place in range(len(out)):
                    np.multiply(places == place, column.weight * math.sqrt(0.5), out=out[place])
            else:
                np.multiply(places - 0.5, column.weight, out=out[0])
            return
        values = measured(values, column)
        if missing is not None:
            values = np.where(missing, found.fill, values)
        np.multiply(scaled(np.clip(values, found.low, found.high), column, found), column.weight, out=out[0])
        if column.gaps == "category":
            out[1] = ((0.0 if missing is None else missing) - 0.5) * column.weight


_DEFAULT = Figures()
_LISTS = [field.name for field in fields(Figures) if isinstance(field.default, tuple)]


def _figures_from(name: str, written: Any) -> Figures:
    """Return the figures of a column from JSON, all of them floats."""
    if not isinstance(written, Mapping) or not written.keys() <= {field.name for field in fields(Figures)}:
        raise ValueError(f"the preparation of column '{name}': only figures can be given.")
    found: dict[str, Any] = {}
    for key, value in written.items():
        numbers = value if key in _LISTS else [value]
        is_right = _is_truth if key == "is_crowded" else _is_number
        if not isinstance(numbers, (list, tuple)) or not all(map(is_right, numbers)):
            raise ValueError(f"the preparation of column '{name}': {key} is not made of numbers.")
        given = numbers if key == "is_crowded" else [_as_float(one) for one in numbers]
        found[key] = tuple(given) if key in _LISTS else given[0]
    return Figures(**found)


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _as_float(number: float) -> float:
    """Return a number of JSON as a float; infinity for a whole number that is larger than every float."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _wrong_in(found: Figures, column: Column) -> str:
    """Return what is wrong with the figures of a column; nothing if all that fits the schema can be prepared."""
    lists = (found.quantiles, found.ranks, found.counts)
    figures = np.array(
        [found.low, found.high, found.fill, found.center, found.spread, *(x for one in lists for x in one)]
    )
    if not (np.abs(figures) <= LARGEST).all():
        return f"a figure is not finite, or beyond {LARGEST:g}"
    if column.kind not in MEASURED:
        n_places = len(column.categories or ())
        if (found.low, found.high) != (0.0, n_places - 1.0) or not 0 <= found.fill <= n_places - 1:
            return "low, high or fill is no place in the list of its categories"
        if column.kind != "ordinal" and found.fill != math.trunc(found.fill):
            return "fill is no place in the list of its categories"
        return "counts are not one for each category" if len(found.counts) not in (0, n_places) else ""
    known = public_interval(column)
    if known is not None and (found.low, found.high) != known:
        return "low and high are not the bounds in the schema"
    if not found.high - found.low > NEAREST:
        return "high is not above low, or too near to it"
    if column.scale in ("standard", "robust") and not _reach(found) <= MOST_DEVIATIONS:
        return "spread is not positive, or too small for low, center and high"
    return _wrong_in_ranks(found) if column.scale == "rank" else ""


def _wrong_in_ranks(found: Figures) -> str:
    quantiles, ranks = np.array(found.quantiles), np.array(found.ranks)
    if len(quantiles) != len(ranks) or not 2 <= len(ranks) <= MOST_QUANTILES:
        return f"quantiles and ranks are not as many, from 2 to {MOST_QUANTILES}"
    steps = np.diff(quantiles)
    if not ((steps == 0) | (steps > NEAREST)).all() or (quantiles[0], quantiles[-1]) != (found.low, found.high):
        return "quantiles do not ascend from low to high"
    if (np.diff(ranks) < 0).any() or ranks[0] < 0 or ranks[-1] > 1:
        return "ranks do not ascend between 0 and 1"
    return ""


def _reach(found: Figures) -> float:
    """Return how far from 0 a value can be once it is divided by the spread; infinity where that cannot be done."""
    if not found.spread > 0:
        return math.inf
    return max(abs(found.low - found.center), abs(found.high - found.center)) / found.spread


def width_of(column: Column) -> int:
    """Return how many prepared columns a column becomes."""
    if column.is_one_hot:
        return len(column.values)
    return 2 if column.gaps == "category" else 1


def measured(values: Floats, column: Column) -> Floats:
    """Return the values of a column, or log(1 + x) of them, the same on every machine."""
    if not column.logarithm:
        return values
    return np.where(np.isnan(values), np.nan, logarithm(1.0 + np.maximum(np.nan_to_num(values), 0.0)))


def public_interval(column: Column) -> tuple[float, float] | None:
    """Return the bounds that are public, as values are measured: after the logarithm, or places in a list."""
    if column.kind not in MEASURED:
        return 0.0, float(len(column.categories or ()) - 1)
    if column.interval is None:
        return None
    low, high = measured(np.array(column.interval), column)
    return float(low), float(high)


def scaled(values: Floats, column: Column, found: Figures) -> Floats:
    """Return measured values, already within their bounds, as their column is scaled, before its weight."""
    if column.scale == "bounds":
        moved = values - found.low
        moved *= 2.0 / (found.high - found.low)
        moved -= 1.0
        return moved
    if column.scale == "rank":
        # Where a quantile is there twice: the mean of the first and of the last of its ranks, as scikit-learn has it.
        quantiles, ranks = np.array(found.quantiles), np.array(found.ranks)
        below = np.interp(values, quantiles, ranks)
        above = -np.interp(-values, -quantiles[::-1], -ranks[::-1])
        return np.asarray(below + above - 1.0)
    return (values - found.center) / found.spread
