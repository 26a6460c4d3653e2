"""What every client answers about the clusters of its table, once they have been found.

Which cluster a row is in is an exact choice by public points, on the grid on which rows are integers (Lemma 2 of
docs/exact.md), from the row alone; and a row adds integers to the sums of that cluster and to no other. So it moves
them by the norm of what it adds at most: :func:`~flower_fedclust.tables.description.norm_of_row`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine.memory import Memory
from flower_fedclust.engine.rounds import Known, Moved, answers, within
from flower_fedclust.engine.tables import PREPARATION, preparation_from
from flower_fedclust.exact.grid import GridArray, from_units, rows_onto_grid
from flower_fedclust.models.base import Model
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.tables.description import norm_of_row, sums_by_cluster
from flower_fedclust.tables.histograms import SUM_BITS

if TYPE_CHECKING:
    from flower_fedclust.tables.preparation import Preparation

Floats = NDArray[np.float64]


WITHOUT_SCHEMA = "this run has no schema, so that clusters cannot be described in the units of a table."


def _moved_by_row(known: Known) -> Moved:
    """Return how far a row can move the description."""
    if known.preparation is None:
        raise DataError(WITHOUT_SCHEMA)
    norm = norm_of_row(known.preparation)
    words = "a row is in one cluster, and of a column in one category or part of the range, with a number of -1 to 1"
    return Moved(norm, norm**2, apart=norm_of_row(known.preparation, replaced=True), words=words)


class DescriptionAnswers(Memory):
    """The answers of a client about the clusters of its table."""

    @answers(
        "sums over the rows of each cluster: their number, values and squares, and how many have which category or are "
        "in which part of a range",
        moved=lambda known, *_, **__: (_moved_by_row(known),),
    )
    def description(self, *arrays: Floats, model: str, radius: float) -> GridArray:
        """Return the sums of the rows of each cluster, which is an exact choice.

        Parameters
        ----------
        *arrays : ndarray
            Of the model.
        model : str
            Its name.
        radius : float
            Which no prepared row and no point of the model exceeds.
        """
        return GridArray(self._described(arrays, model, radius), -SUM_BITS)

    @answers(
        "the client's parts of its rows in each cluster, category and part of a range, means of values and of squares",
        moved=lambda _, *arrays, bound, **__: (within(bound),),
    )
    def mean_description(self, *arrays: Floats, model: str, radius: float, bound: float) -> GridArray:
        """Return :meth:`description` over the number of rows, clipped to a norm."""
        means = from_units(self._described(arrays, model, radius), -SUM_BITS) / self.source.n_rows
        return GridArray.clipped(means, bound)

    @answers("sums over the rows of each cluster, of a model whose clusters no exact choice gives")
    def plain_description(self, *arrays: Floats, model: str) -> GridArray:
        """Return the sums of the rows of each cluster, as the model has them: nothing covers these."""
        found = Model.named(model).from_arrays(arrays)
        return GridArray(self._sums(found.predict(self.data.rows), found.n_clusters), -SUM_BITS)

    def _preparation(self) -> Preparation:
        kept = self.recall(PREPARATION)
        if kept is None:
            raise DataError(WITHOUT_SCHEMA)
        return preparation_from(kept[0].tobytes())

    def _described(self, arrays: Sequence[Floats], model: str, radius: float) -> NDArray[np.int64]:
        found = Model.named(model).from_arrays(arrays)
        if found.exact_points is None:
            raise DataError(f"with a model called '{model}' the cluster of a row is no exact choice.")
        rows, exponent = rows_onto_grid(self.data.rows, np.zeros(self.data.rows.shape[1]), radius)
        return self._sums(found.exact_clusters(rows, exponent), found.n_clusters)

    def _sums(self, labels: NDArray[np.intp], n_clusters: int) -> NDArray[np.int64]:
        source = self.source
        return sums_by_cluster(source.table, self._preparation(), labels, n_clusters, owner=source.owner)
