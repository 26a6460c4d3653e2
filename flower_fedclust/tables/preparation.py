"""Turn a table into rows of numbers in a ball, by the schema and the figures of each column.

Clustering needs rows of numbers whose norm is bounded. The schema gives the kind and the weight of
each column; its figures (bounds, mean, quantiles) are public, or were found with noise in a first
round. Once schema and figures are fixed, each row is prepared from its own entries alone. So
everybody can compute a bound on the norm of a prepared row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from flower_fedclust.data.frames import as_frame
from flower_fedclust.exact.elementary import logarithm
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.tables.schema import MEASURED, Column, Figures, Floats, Schema

#: The version of :meth:`Preparation.to_dict`; other versions are refused.
VERSION = 1

#: No figure may exceed LARGEST, and no two bounds or quantiles may be closer than NEAREST, so that nothing overflows.
LARGEST, NEAREST = 1e120, 1e-120

#: The largest prepared value before its weight, in standard deviations or interquartile ranges.
MOST_DEVIATIONS = 2.0**20

#: The most quantiles that a column may have, and the most intervals of its range in which a description counts rows.
MOST_QUANTILES, MOST_PARTS = 2**14, 128

#: How many rows are prepared at a time: so few that they stay in a processor's cache.
BLOCK_ROWS = 4096


@dataclass(frozen=True)
class Preparation:
    """How a table becomes rows of numbers: the schema, and the figures of its columns.

    A measured column becomes one column. If it is scaled by its bounds, the range becomes -1 to 1,
    times the weight. A category becomes a column for each of its values, which holds 0, or the
    weight divided by the square root of 2. A binary column becomes one column, which holds plus or
    minus half the weight. So two rows that differ in a category are as far apart as two rows that
    differ by half the range of a number. If the gaps of a number count as a category, there is one
    more column, like a binary one.

    Attributes
    ----------
    places : dict of str to slice
        For each column of the table, the prepared columns that it becomes.
    names : list of str
        The names of the prepared columns: "age", "work=public", "age is missing".
    n_columns : int
        The number of prepared columns.
    radius, l1_radius : float
        The largest Euclidean and L1 norm of a prepared row. They follow from the schema and the
        figures.

    Raises
    ------
    ValueError
        If the figures belong to other columns, or if there could be a row that cannot be prepared
        with them; the message names the column. So with figures that pass, every table that fits
        the schema can be prepared.
    """

    schema: Schema
    figures: Mapping[str, Figures]  #: The figures of each column that is clustered by.

    def __post_init__(self) -> None:
        used = self.schema.used
        if set(self.figures) != set(used):
            raise ValueError(
                "the figures of a preparation are for other columns than its schema uses."
            )
        for name, column in used.items():
            if reason := _wrong_in(self.figures[name], column):
                raise ValueError(f"the preparation of column '{name}': {reason}.")

    def to_dict(self) -> dict[str, Any]:
        """Return the preparation, ready for JSON."""
        figures = {
            name: {
                key: value
                for key, value in asdict(figures).items()
                if value != getattr(_DEFAULT, key)
            }
            for name, figures in self.figures.items()
        }
        return {"version": VERSION, "schema": json.loads(self.schema.to_json()), "figures": figures}

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Self:
        """Undo :meth:`to_dict`; raise a ValueError for another version, or for anything that is not a preparation."""
        if (
            not isinstance(written, Mapping)
            or not {"version", "schema", "figures"} <= written.keys()
        ):
            raise ValueError("a preparation has a version, a schema and figures.")
        if written["version"] != VERSION:
            raise ValueError(
                f"this preparation has version {written['version']}, but this flower-fedclust reads version {VERSION}; "
                "run the strategy again, or use the flower-fedclust that wrote it."
            )
        try:
            figures = _FIGURES.validate_json(json.dumps(written["figures"]))
        except ValidationError as error:
            name = next(iter(error.errors()[0]["loc"]), "")
            raise ValueError(
                f"the preparation of column '{name}': its figures cannot be read."
            ) from None
        return cls(Schema.from_json(json.dumps(written["schema"])), figures)

    @property
    def columns_(self) -> list[str]:
        """The names of the table's columns that are used."""
        return list(self.schema.used)

    @cached_property
    def places(self) -> dict[str, slice]:
        """For each column of the table, the prepared columns that it becomes."""
        places, start = {}, 0
        for name, column in self.schema.used.items():
            places[name] = slice(start, start := start + width_of(column))
        return places

    @cached_property
    def names(self) -> list[str]:
        """The names of the prepared columns."""
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
        """The number of prepared columns."""
        return len(self.names)

    @cached_property
    def _reaches(self) -> tuple[Floats, Floats]:
        """The largest Euclidean and L1 norm that each column of the table can have after its preparation."""
        pairs = [self._reach(name, column) for name, column in self.schema.used.items()]
        euclidean, l1 = zip(*pairs, strict=True)
        return np.array(euclidean), np.array(l1)

    def _reach(self, name: str, column: Column) -> tuple[float, float]:
        """Return the largest Euclidean and L1 norm of one column's prepared values."""
        if column.is_one_hot:
            return column.weight * math.sqrt(0.5), column.weight * math.sqrt(0.5)
        if column.kind == "binary":
            return column.weight / 2, column.weight / 2
        figures = self.figures[name]
        reach = 1.0
        if column.scale in ("standard", "robust"):
            reach = _reach(figures)
        missing = 0.5 if column.gaps == "category" else 0.0
        return column.weight * math.hypot(reach, missing), column.weight * (reach + missing)

    @property
    def radius(self) -> float:
        """The largest Euclidean norm of a prepared row."""
        return float(np.linalg.norm(self._reaches[0])) * (1 + 2.0**-30)

    @property
    def l1_radius(self) -> float:
        """The largest L1 norm of a prepared row."""
        return float(self._reaches[1].sum()) * (1 + 2.0**-30)

    def transform(
        self, table: Any, *, owner: str = "the table", first_row: int = 0
    ) -> NDArray[np.float64]:
        """Return the rows of a table as numbers, each computed from its own entries alone.

        Parameters
        ----------
        table : table of pandas, Polars or PyArrow
            With the columns of the schema, in any order.
        owner : str
            Whose table it is, for messages.
        first_row : int, default=0
            The number of the table's first row, for messages.

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
        columns = list(self.schema.values(frame, owner=owner, first_row=first_row))
        rows = np.empty((len(frame), self.n_columns))
        # A block is computed with one prepared column per row of the array, which is contiguous, and then transposed.
        turned = np.empty((self.n_columns, BLOCK_ROWS))
        for start in range(0, len(frame), BLOCK_ROWS):
            part = rows[start : start + BLOCK_ROWS]
            block = turned[:, : len(part)]
            for name, column, values in columns:
                self._place(
                    name, column, values[start : start + BLOCK_ROWS], block[self.places[name]]
                )
            part[:] = block.T
        return rows

    def _place(self, name: str, column: Column, values: Floats, out: Floats) -> None:
        """Write the prepared values of a column into ``out``, of shape (n_prepared_columns, n_rows).

        A category becomes 0 or weight / sqrt(2) for each of its values, and a binary column plus or
        minus half the weight. A measured value is clipped to its bounds, scaled, and multiplied by
        the weight.
        """
        figures = self.figures[name]
        # The minimum is NaN if any entry is NaN.
        missing = np.isnan(values) if np.isnan(values.min()) else None
        if column.is_one_hot or column.kind == "binary":
            places = (
                values if missing is None else np.where(missing, figures.fill, values)
            ).astype(np.intp)
            if column.is_one_hot:
                for place in range(len(out)):
                    np.multiply(places == place, column.weight * math.sqrt(0.5), out=out[place])
            else:
                np.multiply(places - 0.5, column.weight, out=out[0])
            return
        values = measured(values, column)
        if missing is not None:
            values = np.where(missing, figures.fill, values)
        np.multiply(
            scaled(np.clip(values, figures.low, figures.high), column, figures),
            column.weight,
            out=out[0],
        )
        if column.gaps == "category":
            out[1] = ((0.0 if missing is None else missing) - 0.5) * column.weight


_DEFAULT = Figures()
_FIGURES = TypeAdapter(dict[str, Figures])


def _wrong_in(figure: Figures, column: Column) -> str:
    """Explain why these figures cannot prepare a column; "" if they can, for every value that fits the schema.

    Figures may come from another party, in a message or in a saved model. So every number must be
    finite and not too large, bounds must agree with the schema, and lists must be in ascending
    order.
    """
    lists = (figure.quantiles, figure.ranks, figure.parts, figure.counts)
    figures = np.array(
        [
            figure.low,
            figure.high,
            figure.fill,
            figure.center,
            figure.spread,
            *(x for list_ in lists for x in list_),
        ]
    )
    if not (np.abs(figures) <= LARGEST).all():
        return f"a figure is not finite, or beyond {LARGEST:g}"
    if column.kind not in MEASURED:
        n_places = len(column.categories or ())
        if (figure.low, figure.high) != (
            0.0,
            n_places - 1.0,
        ) or not 0 <= figure.fill <= n_places - 1:
            return "low, high or fill is no place in the list of its categories"
        if column.kind != "ordinal" and figure.fill != math.trunc(figure.fill):
            return "fill is no place in the list of its categories"
        return (
            "counts are not one for each category"
            if len(figure.counts) not in (0, n_places)
            else ""
        )
    known = public_interval(column)
    if known is not None and (figure.low, figure.high) != known:
        return "low and high are not the bounds in the schema"
    if not figure.high - figure.low > NEAREST:
        return "high is not above low, or too near to it"
    if column.scale in ("standard", "robust") and not _reach(figure) <= MOST_DEVIATIONS:
        return "spread is not positive, or too small for low, center and high"
    return _wrong_in_parts(figure) or _wrong_in_ranks(figure, column)


def _wrong_in_parts(figures: Figures) -> str:
    """Explain what is wrong with the intervals of a range (``parts``); "" if nothing is."""
    parts = np.array(figures.parts)
    if len(parts) == 1 or len(parts) > MOST_PARTS + 1 or not (np.diff(parts) > NEAREST).all():
        return f"parts are not up to {MOST_PARTS}, or their edges do not ascend"
    return ""


def _wrong_in_ranks(figures: Figures, column: Column) -> str:
    """Explain what is wrong with quantiles and ranks; "" if nothing is."""
    if column.scale != "rank":
        return ""
    quantiles, ranks = np.array(figures.quantiles), np.array(figures.ranks)
    if len(quantiles) != len(ranks) or not 2 <= len(ranks) <= MOST_QUANTILES:
        return f"quantiles and ranks are not as many, from 2 to {MOST_QUANTILES}"
    steps = np.diff(quantiles)
    if not ((steps == 0) | (steps > NEAREST)).all() or (quantiles[0], quantiles[-1]) != (
        figures.low,
        figures.high,
    ):
        return "quantiles do not ascend from low to high"
    if (np.diff(ranks) < 0).any() or ranks[0] < 0 or ranks[-1] > 1:
        return "ranks do not ascend between 0 and 1"
    return ""


def _reach(figures: Figures) -> float:
    """Return the largest scaled value that the figures allow; infinity if the spread is not positive."""
    if not figures.spread > 0:
        return math.inf
    return (
        max(abs(figures.low - figures.center), abs(figures.high - figures.center)) / figures.spread
    )


def width_of(column: Column) -> int:
    """Return how many prepared columns a column of the table becomes."""
    if column.is_one_hot:
        return len(column.values)
    return 2 if column.gaps == "category" else 1


def measured(values: Floats, column: Column) -> Floats:
    """Return the values of a column, or their log(1 + x) if the column has a logarithm.

    The bits are the same on every machine.
    """
    if not column.logarithm:
        return values
    return np.where(
        np.isnan(values), np.nan, logarithm(1.0 + np.maximum(np.nan_to_num(values), 0.0))
    )


def public_interval(column: Column) -> tuple[float, float] | None:
    """Return the public bounds after the logarithm; for a listed column, its first and last place.

    None if the bounds are not public.
    """
    if column.kind not in MEASURED:
        return 0.0, float(len(column.categories or ()) - 1)
    if column.interval is None:
        return None
    low, high = measured(np.array(column.interval), column)
    return float(low), float(high)


def scaled(values: Floats, column: Column, figures: Figures) -> Floats:
    """Return clipped values of a measured column on the column's scale, before they are multiplied by its weight."""
    if column.scale == "bounds":
        moved = values - figures.low
        moved *= 2.0 / (figures.high - figures.low)
        moved -= 1.0
        return moved
    if column.scale == "rank":
        # If a quantile occurs more than once, its value gets the mean of its first and its last rank, as in
        # scikit-learn.
        quantiles, ranks = np.array(figures.quantiles), np.array(figures.ranks)
        below = np.interp(values, quantiles, ranks)
        above = -np.interp(-values, -quantiles[::-1], -ranks[::-1])
        return np.asarray(below + above - 1.0)
    return (values - figures.center) / figures.spread
