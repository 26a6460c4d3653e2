"""Models: what a strategy learns, and what labels rows it has never seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.numerics.checks import checked_rows
from flower_fedclust.numerics.kmeans import kmeans_cost, nearest_center


@runtime_checkable
class Model(Protocol):
    """What every clustering model can do."""

    @property
    def n_clusters(self) -> int:
        """How many clusters there are."""
        ...

    def predict(self, rows: ArrayLike) -> NDArray[np.intp]:
        """Return the cluster of each row, numbered from 0."""
        ...

    def cost(self, rows: ArrayLike) -> float:
        """Return the sum over rows of the squared distance to the center of the row's cluster."""
        ...

    def to_arrays(self) -> list[NDArray[np.float64]]:
        """Return all that the model knows, as arrays that can be sent."""
        ...

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[np.float64]]) -> Self:
        """Make the model from what :meth:`to_arrays` returned."""
        ...


class KMeansModel:
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

    @property
    def n_clusters(self) -> int:
        """How many centers there are."""
        return len(self.cluster_centers_)

    def predict(self, rows: ArrayLike) -> NDArray[np.intp]:
        """Return the index of each row's nearest center.

        Parameters
        ----------
        rows : array-like of shape (n_rows, n_columns)

        Returns
        -------
        ndarray of shape (n_rows,)

        Raises
        ------
        ValueError
            If the rows are not finite numbers, or have another number of columns than the centers.
        """
        return nearest_center(self._checked(rows), self.cluster_centers_)

    def cost(self, rows: ArrayLike) -> float:
        """Return the k-means objective of the rows: a sum of squared distances, in squared units of the rows.

        Parameters
        ----------
        rows : array-like of shape (n_rows, n_columns)
        """
        return kmeans_cost(self._checked(rows), self.cluster_centers_)

    def to_arrays(self) -> list[NDArray[np.float64]]:
        """Return the centers."""
        return [self.cluster_centers_]

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[np.float64]]) -> Self:
        """Make the model from its centers."""
        (cluster_centers,) = arrays
        return cls(cluster_centers)

    def _checked(self, rows: ArrayLike) -> NDArray[np.float64]:
        checked = checked_rows(rows, owner="rows")
        n_columns = self.cluster_centers_.shape[1]
        if checked.shape[1] != n_columns:
            raise ValueError(
                f"rows: {checked.shape[1]} columns where the cluster centers have {n_columns}; "
                "give the columns the model was made from."
            )
        return checked
