"""Clusters by the nearest center."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.exact.grid import points_onto_grid
from flower_fedclust.exact.sums import nearest_point
from flower_fedclust.models.base import Clustered, Model
from flower_fedclust.numerics.checks import checked_rows
from flower_fedclust.numerics.kmeans import kmeans_cost, nearest_center


class KMeansModel(Model, name="k-means"):
    """Clusters by the nearest center.

    Parameters
    ----------
    cluster_centers : array-like of shape (n_clusters, n_columns)

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_columns)
    """

    def __init__(self, cluster_centers: ArrayLike) -> None:
        self.cluster_centers_ = checked_rows(np.array(cluster_centers), owner="cluster_centers")

    def __repr__(self) -> str:
        n_clusters, n_columns = self.cluster_centers_.shape
        return f"KMeansModel({n_clusters} centers of {n_columns} columns)"

    def predict(self, rows: ArrayLike) -> NDArray[np.intp]:
        """Return the index of each row's nearest center, of shape (n_rows,)."""
        return nearest_center(self._checked(rows), self.cluster_centers_)

    @property
    def cluster_points(self) -> NDArray[np.float64]:
        """The centers."""
        return self.cluster_centers_

    @property
    def exact_points(self) -> NDArray[np.float64]:
        """The centers."""
        return self.cluster_centers_

    def exact_clusters(self, rows: NDArray[np.float64], exponent: int) -> NDArray[np.intp]:
        """Return the index of the nearest center of each row on a grid, exactly."""
        return nearest_point(rows, points_onto_grid(self.cluster_centers_, exponent))

    def cost(self, rows: ArrayLike) -> float:
        """Return the k-means objective of the rows: a sum of squared distances, in squared units of the rows."""
        return kmeans_cost(self._checked(rows), self.cluster_centers_)

    def cluster(self, rows: ArrayLike, places: NDArray[np.float64] | None = None) -> Clustered:
        """Return labels and cost of rows; the nearest centers are sought once for both."""
        checked = self._checked(rows)
        labels = nearest_center(checked, self.cluster_centers_)
        return Clustered(labels, kmeans_cost(checked, self.cluster_centers_, labels), places)

    def _checked(self, rows: ArrayLike) -> NDArray[np.float64]:
        return self.checked_rows(rows, self.cluster_centers_.shape[1], "the cluster centers have")

    def to_arrays(self) -> list[NDArray[np.float64]]:
        """Return the centers."""
        return [self.cluster_centers_]

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[np.float64]]) -> Self:
        """Make the model from its centers."""
        (cluster_centers,) = arrays
        return cls(cluster_centers)
