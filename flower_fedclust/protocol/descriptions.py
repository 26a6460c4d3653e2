"""What every client answers about the clusters of its table, once they have been found.

Which cluster a row is in is an exact choice among public centers, on the grid on which rows are integers (Lemma 2 of
docs/exact.md), from the row alone; and a row adds integers to the sums of that cluster and to no other. So it moves
them by the norm of what it adds at most: :func:`~flower_fedclust.tables.description.norm_of_row`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.exact import nearest_point
from flower_fedclust.numerics.grid import GridArray, from_units, points_onto_grid, rows_onto_grid
from flower_fedclust.protocol.rounds import Moved, answers, within
from flower_fedclust.protocol.tables import PREPARATION, preparation_from
from flower_fedclust.tables.description import norm_of_row, sums_by_cluster
from flower_fedclust.tables.histograms import SUM_BITS

if TYPE_CHECKING:
    from flower_fedclust.protocol.client_data import ClientData
    from flower_fedclust.tables.preparation import Preparation

Floats = NDArray[np.float64]


class DescriptionAnswers:
    """The answers of a client about the clusters of its table."""

    if TYPE_CHECKING:  # what a client has besides

        @property
        def source(self) -> ClientData:
            """What the client has: rows, or a table."""

        @property
        def data(self) -> ClientData:
            """The same, prepared."""

        def recall(self, key: str) -> list[NDArray[Any]] | None:
            """Return what was kept, or None."""

    @answers(
        "sums over the rows of each cluster: their number, values and squares, and how many have which category",
        moved=lambda client, *_, **__: (client.moved_by_description(),),
    )
    def description(self, centers: Floats, *, radius: float) -> GridArray:
        """Return the sums of the rows nearest to each center.

        Parameters
        ----------
        centers : ndarray of shape (n_clusters, n_prepared_columns)
        radius : float
            Which no prepared row and no center exceeds.
        """
        return GridArray(self._description(centers, radius), -SUM_BITS)

    @answers(
        "the client's parts of its rows in each cluster and category, and means of values and squares",
        moved=lambda _, centers, *, radius, bound: (within(bound),),
    )
    def mean_description(self, centers: Floats, *, radius: float, bound: float) -> GridArray:
        """Return :meth:`description` over the number of rows, clipped to a norm."""
        means = from_units(self._description(centers, radius), -SUM_BITS) / self.source.n_rows
        return GridArray.clipped(means, bound)

    def moved_by_description(self) -> Moved:
        """Return how far a row can move the description."""
        preparation = self._preparation()
        norm = norm_of_row(preparation)
        return Moved(norm, norm**2, apart=norm_of_row(preparation, replaced=True))

    def _preparation(self) -> Preparation:
        kept = self.recall(PREPARATION)
        if kept is None:
            raise DataError("this run has no schema, so that clusters cannot be described in the units of a table.")
        return preparation_from(kept[0].tobytes())

    def _description(self, centers: Floats, radius: float) -> NDArray[np.int64]:
        rows, exponent = rows_onto_grid(self.data.rows, np.zeros(centers.shape[1]), radius)
        labels = nearest_point(rows, points_onto_grid(centers, exponent))
        source = self.source
        return sums_by_cluster(source.table, self._preparation(), labels, len(centers), owner=source.owner)
