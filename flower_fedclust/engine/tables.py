"""What every client answers about a table, before a strategy sees any of it as rows of numbers.

**What one row can move.** A row has one entry in each column. In each of d histograms it adds 1 to one bin: which bin
is computed from that entry alone (:mod:`flower_fedclust.tables.histograms`), and counts are integers. It adds to the
sums of the entries and of their squares at most 1 each in magnitude, for m columns. So it moves the array of
histograms and sums by at most the square root of d + 2 m in Euclidean norm, and that of binary exponents of d columns
by at most the square root of d. A row that is replaced takes 1 from a bin and adds 1 to another, and moves each sum by
at most 2: the square root of 2 d + 8 m. At client level a client sends these over its number of rows, which has the
norm of one row at most, and clips it to that norm as a whole (Lemma 3 of docs/exact.md), so that a client that is
added or removed moves the sum by that norm, and one that is replaced by twice that norm.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine.memory import Memory
from flower_fedclust.engine.rounds import Moved, answers, within
from flower_fedclust.engine.wire import as_text
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.outside import parse_json
from flower_fedclust.tables.histograms import (
    POWER_BITS,
    bin_counts,
    exponent_counts,
    sums_of_powers,
)
from flower_fedclust.tables.preparation import Preparation, measured
from flower_fedclust.tables.schema import Schema

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

Floats = NDArray[np.float64]

#: What a client remembers: the schema from its enrolment, and the preparation.
SCHEMA, PREPARATION = "schema", "preparation"

#: Characters of a preparation: 1024 quantiles of each of 500 columns.
PREPARATION_LIMIT = 2**25


@lru_cache(maxsize=16)
def preparation_from(content: bytes) -> Preparation:
    """Return the preparation that an array of :func:`as_bytes` holds."""
    return Preparation.from_dict(parse_json(content, PREPARATION_LIMIT))


#: Bins of a histogram at most: as many as the values of a column whose values are listed.
MOST_BINS = 2**20


class TableAnswers(Memory):
    """The answers of a client about its table."""

    @answers(
        "binary exponents of the entries of each column without public bounds: how many rows have which",
        moved=lambda _, columns: (moved_by_row(len(_names_in(columns))),),
    )
    def exponents(self, columns: NDArray[np.uint8]) -> GridArray:
        """Return, of each of these columns, how many entries have which sign and binary exponent.

        Parameters
        ----------
        columns : ndarray
            The names of the columns in the order of the schema, as JSON in bytes.
        """
        return GridArray(self._exponents(columns))

    @answers(
        "the client's parts of its rows that have which binary exponent, in each column without public bounds",
        moved=lambda _, columns, *, bound: (within(bound),),
    )
    def mean_exponents(self, columns: NDArray[np.uint8], *, bound: float) -> GridArray:
        """Return :meth:`exponents` over the number of rows, clipped to a norm."""
        return GridArray.clipped(self._exponents(columns) / self.source.n_rows, bound)

    @answers(
        "histograms of columns, gaps among them; and sums of entries and of their squares",
        moved=lambda _, columns, intervals: (moved_by_row(*_numbers_of(columns)),),
    )
    def histograms(self, columns: NDArray[np.uint8], intervals: Floats) -> GridArray:
        """Return the histograms of columns one after the other, then their sums, in one array.

        Parameters
        ----------
        columns : ndarray
            As JSON in bytes, for each column in the order of the schema: its name, its number of bins, and whether its
            sums are wanted.
        intervals : ndarray of shape (n_columns, 2)
            Of each column the ends of the first and the last bin. The bins are equal.
        """
        counts, sums = self._histograms(columns, intervals)
        return GridArray(np.concatenate([np.left_shift(counts, POWER_BITS), sums]), -POWER_BITS)

    @answers(
        "the client's parts of its rows in the bins of histograms; and means of entries and of their squares",
        moved=lambda _, columns, intervals, *, bound: (within(bound),),
    )
    def mean_histograms(self, columns: NDArray[np.uint8], intervals: Floats, *, bound: float) -> GridArray:
        """Return :meth:`histograms` over the number of rows, clipped to a norm."""
        counts, sums = self._histograms(columns, intervals)
        means = np.concatenate([counts.astype(np.float64), sums * 2.0**-POWER_BITS]) / self.source.n_rows
        return GridArray.clipped(means, bound)

    @answers()
    def prepare(self, preparation: NDArray[np.uint8]) -> None:
        """Take the preparation: from here on the client's rows are prepared rows.

        Parameters
        ----------
        preparation : ndarray
            As JSON in bytes.

        Raises
        ------
        DataError
            If it is of another schema than the run began with: to that one the site has agreed. Or if it has figures
            with which some rows could not be prepared: later rounds must not fail for some rows and not for others.
        """
        try:
            given = preparation_from(preparation.tobytes())
        except ValueError as error:
            raise DataError(f"client {self.name}: {error}") from None
        schema = self.recall(SCHEMA)
        if schema is None or Schema.from_json(as_text(schema[0])) != given.schema:
            raise DataError(f"client {self.name}: the preparation is of another schema than the run began with.")
        self.remember(PREPARATION, [preparation])

    # Behind them.

    def _values(self, names: Collection[str]) -> Iterator[Floats]:
        """Yield the values of columns as they are measured, in the order of the schema."""
        source, kept = self.source, self.recall(SCHEMA)
        schema = None if kept is None else Schema.from_json(as_text(kept[0]))
        if schema is None or [name for name in schema.used if name in names] != list(names):
            raise DataError("the columns that are asked for are not columns of the schema, in its order.")
        found = schema.values(source.table, owner=source.owner, wanted=names)
        return (measured(values, column) for _, column, values in found)

    def _exponents(self, columns: NDArray[np.uint8]) -> NDArray[np.int64]:
        return np.stack([exponent_counts(values) for values in self._values(_names_in(columns))])

    def _histograms(self, columns: NDArray[np.uint8], intervals: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        asked = _asked_in(columns)
        if intervals.shape != (len(asked), 2) or not (intervals[:, 1] - intervals[:, 0] > 0).all():
            raise DataError("the intervals of histograms are not one a column, from its low to its high end.")
        counts, sums = [], [np.empty(0, dtype=np.int64)]
        values = self._values([name for name, _, _ in asked])
        for (_, n_bins, with_sums), (low, high), entries in zip(asked, intervals, values, strict=True):
            counts.append(bin_counts(entries, float(low), float(high), n_bins))
            if with_sums:
                sums.append(sums_of_powers(entries, float(low), float(high)))
        return np.concatenate(counts), np.concatenate(sums)


def norm_of_row(n_histograms: int, n_sums: int = 0, *, replaced: bool = False) -> float:
    """Return how far a row can move the histograms of so many columns, and the sums of so many, together."""
    return math.sqrt(2 * n_histograms + 8 * n_sums if replaced else n_histograms + 2 * n_sums)


def moved_by_row(n_histograms: int, n_sums: int = 0) -> Moved:
    """Return how far a row moves the histograms of so many columns, and the sums of so many, together."""
    words = f"a row is in one bin of each of {n_histograms} histograms"
    words += f", and adds at most 1 to each of {2 * n_sums} sums" if n_sums else ""
    return Moved(
        norm_of_row(n_histograms, n_sums),
        n_histograms + 2.0 * n_sums,
        apart=norm_of_row(n_histograms, n_sums, replaced=True),
        words=words,
    )


def _numbers_of(columns: NDArray[np.uint8]) -> tuple[int, int]:
    """Return of how many columns there are histograms, and of how many sums."""
    asked = _asked_in(columns)
    return len(asked), sum(with_sums for _, _, with_sums in asked)


def _names_in(columns: NDArray[np.uint8]) -> list[str]:
    """Return the names of columns in a message."""
    names = parse_json(as_text(columns))
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise DataError("the columns that are asked for are not a list of names.")
    return names


def _asked_in(columns: NDArray[np.uint8]) -> list[tuple[str, int, bool]]:
    """Return which histograms a message asks for: names, numbers of bins, and whether sums are wanted."""
    asked = parse_json(as_text(columns))
    if not isinstance(asked, list) or not asked or not all(map(_is_histogram, asked)):
        raise DataError("the histograms that are asked for are not a list of names with numbers of bins.")
    return [(name, n_bins, with_sums) for name, n_bins, with_sums in asked]


def _is_histogram(one: object) -> bool:
    if not isinstance(one, list) or [type(part) for part in one] != [str, int, bool]:
        return False
    return bool(0 < one[1] <= MOST_BINS)
