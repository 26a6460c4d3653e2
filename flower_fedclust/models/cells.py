"""Clusters made of the cells of a grid.

Rows are projected to at most three directions, which the grid covers. A cluster is a set of cells, so it may have any
shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.exact.cells import MOST_CELLS, Grid
from flower_fedclust.exact.grid import points_onto_grid
from flower_fedclust.exact.sums import directions_onto_grid
from flower_fedclust.models.base import Clustered, RowModel
from flower_fedclust.numerics.checks import DataError, check_integer

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]


class CellModel(RowModel, name="cells"):
    """Clusters of any shape: each cell of a grid has a cluster, or -1 for noise.

    A row outside the grid belongs to the nearest cell. The cost is the sum of the squared distances of rows from the
    centers of their cells, in the directions of the grid and in squared units of the rows.

    Parameters
    ----------
    labels : array-like of int, of one to three dimensions
        The cluster of each cell, from 0; -1 for noise.
    n_clusters : int
    low : array-like of shape (n_dimensions,)
        The corner of the grid at which the first cell begins.
    width : float
        The width of a cell, the same in each direction.
    density : array-like of the shape of the labels
        The estimated number of rows in each cell; not negative.
    origin : array-like of shape (n_columns,)
        The point in the space of the rows that is the grid's origin.
    directions : array-like of shape (n_columns, n_dimensions), optional
        The directions of the grid; by default the columns.

    Attributes
    ----------
    labels_ : ndarray of intp
    density_ : ndarray
    grid_ : Grid
    origin_ : ndarray of shape (n_columns,)
    directions_ : ndarray of shape (n_columns, n_dimensions), or without an entry
    """

    columns_from = "the grid has"

    def __init__(
        self,
        labels: ArrayLike,
        n_clusters: int,
        low: ArrayLike,
        width: float,
        *,
        density: ArrayLike,
        origin: ArrayLike,
        directions: ArrayLike | None = None,
    ) -> None:
        numbers = np.array(labels, dtype=np.float64)
        self.density_, self.origin_ = (
            np.array(density, dtype=np.float64),
            np.array(origin, dtype=np.float64),
        )
        self.grid_ = Grid(np.array(low, dtype=np.float64), float(width), numbers.shape)
        self._n_clusters = check_integer("n_clusters", n_clusters, at_least=1)
        if not ((numbers >= -1) & (numbers < n_clusters) & (numbers == np.floor(numbers))).all():
            raise DataError(
                f"labels: every cell needs a cluster from 0 to {n_clusters - 1}, or -1."
            )
        if (
            self.density_.shape != numbers.shape
            or not (np.isfinite(self.density_) & (self.density_ >= 0)).all()
        ):
            raise DataError(
                f"density: give finite numbers of shape {numbers.shape} that are not negative."
            )
        self.labels_ = numbers.astype(np.intp)
        self.directions_ = (
            np.zeros((0, 0)) if directions is None else np.array(directions, dtype=np.float64)
        )
        n_dimensions = numbers.ndim
        self.n_columns = len(self.directions_) or n_dimensions
        if self.directions_.shape not in ((0, 0), (self.n_columns, n_dimensions)) or (
            self.directions_.size
            and not (np.isfinite(self.directions_) & (np.abs(self.directions_) <= 1)).all()
        ):
            raise DataError(
                f"directions: give numbers from -1 to 1 of shape (n_columns, {n_dimensions})."
            )
        if self.origin_.shape != (self.n_columns,) or not np.isfinite(self.origin_).all():
            raise DataError(
                f"origin: give a finite number for each of the {self.n_columns} columns."
            )
        self.cluster_points: Floats = self._leave(self._means())
        self.exact_points = np.concatenate([self.origin_[None, :], self.cluster_points])

    def __repr__(self) -> str:
        cells = " x ".join(map(str, self.grid_.shape))
        return f"CellModel({self.n_clusters} clusters, {cells} cells, {self.n_columns} columns)"

    @property
    def n_clusters(self) -> int:
        """The number of clusters; a cluster may have no cell."""
        return self._n_clusters

    @property
    def sizes_(self) -> Floats:
        """The approximate number of rows in each cluster, of shape (n_clusters,)."""
        labels = self.labels_.ravel()
        inside = labels >= 0
        return np.asarray(
            np.bincount(labels[inside], self.density_.ravel()[inside], self.n_clusters),
            dtype=np.float64,
        )

    def _means(self) -> Floats:
        """Return the mean of each cluster's rows, estimated from the cells; the mean of all rows if it has none."""
        weights = self.density_.ravel() + 1e-9
        centers, labels = self.grid_.centers(), self.labels_.ravel()
        inside = labels >= 0
        sums = [
            np.bincount(labels[inside], (weights * column)[inside], self.n_clusters)
            for column in centers.T
        ]
        totals = np.bincount(labels[inside], weights[inside], self.n_clusters)[:, None]
        means = np.stack(sums, axis=1) / np.maximum(totals, 1e-12)
        return np.where(totals > 0, means, weights @ centers / weights.sum())

    def _leave(self, places: Floats) -> Floats:
        """Return points on the grid as points in the space of the rows."""
        return self.origin_ + (places @ self.directions_.T if self.directions_.size else places)

    def cluster_block(self, rows: Floats) -> Clustered:
        """Return the cluster of each row's cell, and the cost."""
        with np.errstate(over="ignore", invalid="ignore"):
            places = rows - self.origin_
            places = places @ self.directions_ if self.directions_.size else places
            cells = self.grid_.nearest(np.nan_to_num(places))
            offsets = places - self.grid_.centers(cells)
            return Clustered(
                self.labels_.ravel()[cells], float(np.einsum("ij,ij->", offsets, offsets))
            )

    def exact_clusters(self, rows: Floats, exponent: int) -> Labels:
        """Return the cluster of each row's cell, computed exactly from rows on a grid of integers."""
        moved = rows - points_onto_grid(self.origin_[None, :], exponent)
        if self.directions_.size:
            moved = np.trunc(moved @ directions_onto_grid(self.directions_))
        return self.labels_.ravel()[self.grid_.places(moved, exponent)]

    def readable(self) -> dict[str, Any]:
        """Return the grid, and the size, mean and extent of each cluster, for ``model.json``.

        Without directions, coordinates are the ones of the rows; with directions, they are measured from the origin
        along the directions.
        """
        shift = 0.0 if self.directions_.size else self.origin_
        labels, centers, half = (
            self.labels_.ravel(),
            self.grid_.centers() + shift,
            self.grid_.width / 2,
        )
        regions = []
        for cluster, size in enumerate(self.sizes_):
            cells = centers[(labels == cluster) & (self.density_.ravel() > 0)]
            region = {"cluster": cluster, "rows": round(float(size), 1), "cells": len(cells)}
            region["mean"] = self.cluster_points[cluster].tolist()
            if len(cells):
                region |= {
                    "from": (cells.min(axis=0) - half).tolist(),
                    "to": (cells.max(axis=0) + half).tolist(),
                }
            regions.append(region)
        grid = {
            "low": (self.grid_.low + shift).tolist(),
            "width": self.grid_.width,
            "cells": list(self.grid_.shape),
        }
        return {"grid": {**grid, "directions": self.directions_.T.tolist()}, "regions": regions}

    def to_arrays(self) -> list[Floats]:
        """Return labels, density, corner, width and number of clusters, origin and directions."""
        facts = np.array([self.grid_.width, float(self.n_clusters)])
        labels = self.labels_.astype(np.float64)
        return [labels, self.density_, self.grid_.low, facts, self.origin_, self.directions_]

    @classmethod
    def from_arrays(cls, arrays: Sequence[Floats]) -> Self:
        """Make the model from the arrays that :meth:`to_arrays` returned; they may come from another party."""
        labels, density, low, (width, n_clusters), origin, directions = arrays
        if (
            not 1 <= n_clusters <= MOST_CELLS
            or n_clusters != int(n_clusters)
            or labels.size > MOST_CELLS
        ):
            raise DataError(f"a model of cells has 1 to {MOST_CELLS} clusters and cells.")
        return cls(
            labels,
            int(n_clusters),
            low,
            float(width),
            density=density,
            origin=origin,
            directions=directions if directions.size else None,
        )
