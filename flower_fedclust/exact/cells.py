"""A grid of cells in one to three dimensions, and the cell of each row, found by comparing integers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact.grid import points_onto_grid
from flower_fedclust.numerics.checks import DataError

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: By number of columns: about how many cells a grid has (N_CELLS), and the fewest that noise may reduce them to
#: (LEAST_CELLS). No grid may have more than MOST_CELLS.
N_CELLS = {1: 256, 2: 64**2, 3: 24**3}
LEAST_CELLS = {1: 64, 2: 24**2, 3: 8**3}
MOST_CELLS = 2**16


@dataclass(frozen=True)
class Grid:
    """A grid of equal cubic cells over one to three columns.

    Parameters
    ----------
    low : ndarray of shape (n_columns,)
        The corner at which the first cell begins.
    width : float
    shape : tuple of int
        The number of cells in each column.
    """

    low: Floats
    width: float
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        n_columns = len(self.shape)
        if n_columns not in N_CELLS or min(self.shape) < 1 or math.prod(self.shape) > MOST_CELLS:
            raise DataError(
                f"a grid has 1 to 3 columns and 1 to {MOST_CELLS} cells; its shape is {self.shape}."
            )
        corners = np.concatenate([self.low, self.low + self.width * np.array(self.shape)])
        if self.low.shape != (n_columns,) or not np.isfinite(corners).all() or not self.width > 0:
            raise DataError("a grid needs a finite corner for each column, and a width above 0.")

    @classmethod
    def over(cls, low: Floats, high: Floats, n_cells: float = math.inf) -> Self:
        """Return a grid over a box, with about ``n_cells`` cells, but from LEAST_CELLS to N_CELLS of them."""
        n_columns = len(low)
        lengths = high - low
        wanted = max(n_cells, LEAST_CELLS[n_columns])
        most = min(wanted, N_CELLS[n_columns])

        # Cubes of this width would fill the box, but no column may have more cells than the whole grid.
        log_volume = math.fsum(np.log(lengths))
        width = math.exp(log_volume / n_columns - math.log(most) / n_columns)
        width = max(width, float(lengths.max()) / most)

        # Each column has a whole number of cells. 1e-9 makes up for quotients that rounding made a little too small.
        n_fitting = np.floor(lengths / width + 1e-9)
        n_fitting = np.maximum(n_fitting, 1)
        width = float((lengths / n_fitting).max())
        n_covering = np.ceil(lengths / width - 1e-9)
        n_covering = np.maximum(n_covering, 1)

        # Cells that reach beyond the box do so equally on both sides.
        corner = (low + high - width * n_covering) / 2
        shape = n_covering.astype(int)
        return cls(corner, width, tuple(shape.tolist()))

    def places(self, integers: Floats, exponent: int) -> Labels:
        """Return the cell of each row, given as integers of the unit ``2**exponent``.

        A cell is an index into the flattened grid. A row outside the grid is in the nearest cell at the edge.
        """
        found = np.zeros(len(integers), dtype=np.intp)
        for column, n_cells in enumerate(self.shape):
            edges = self.low[column] + self.width * np.arange(1, n_cells)
            found = found * n_cells + parts_of(integers[:, column], edges, exponent)
        return found

    def nearest(self, points: Floats) -> Labels:
        """Return the cell of each point, given in floats, as :meth:`places` does for integers."""
        last = np.array(self.shape) - 1
        with np.errstate(over="ignore"):
            cells = np.clip(np.floor((points - self.low) / self.width), 0, last).astype(np.intp)
        return np.asarray(np.ravel_multi_index(tuple(cells.T), self.shape), dtype=np.intp)

    def centers(self, places: Labels | None = None) -> Floats:
        """Return the centers of cells, by default of all, of shape (n_cells, n_columns)."""
        places = np.arange(math.prod(self.shape)) if places is None else places
        cells = np.stack(np.unravel_index(places, self.shape), axis=1)
        return np.asarray(self.low + self.width * (cells + 0.5))


def parts_of(integers: Floats, edges: Floats | Sequence[float], exponent: int) -> Labels:
    """Return the index of the interval, between ascending edges, in which each integer lies; 0 is below the first."""
    on_grid = points_onto_grid(np.asarray(edges, dtype=np.float64)[:, None], exponent)[:, 0]
    return np.searchsorted(on_grid, integers, side="right").astype(np.intp, copy=False)
