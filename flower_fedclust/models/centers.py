"""Clusters by the nearest center: in the space of the rows, or in a space to which the model maps rows."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.exact.grid import points_onto_grid
from flower_fedclust.exact.spectral_sums import embedded_rows
from flower_fedclust.exact.sums import nearest_point
from flower_fedclust.models.base import Clustered, RowModel
from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.checks import check_real, checked_rows
from flower_fedclust.numerics.kmeans import kmeans_cost, nearest_center
from flower_fedclust.numerics.spectral import spectral_coordinates

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]


class CenterModel(RowModel):
    """Base of models that map each row to a place in some space, where it belongs to the nearest center."""

    cluster_points: Floats

    @abstractmethod
    def place(self, rows: Floats) -> Floats:
        """Return where checked rows lie in the space of the centers, of shape (n_rows, n_dimensions)."""

    def cluster_block(self, rows: Floats) -> Clustered:
        """Return the nearest centers, and the k-means objective in the space of the centers."""
        return nearest_centers(self.place(rows), self.cluster_points)

    def transform(self, rows: ArrayLike) -> Floats:
        """Return the distances of rows to the centers, of shape (n_rows, n_clusters), in the space of the centers."""
        checked = self._checked(rows)
        return np.concatenate(
            [self.transform_block(checked[block]) for block in blocks(len(checked), self._widest)]
        )

    def transform_block(self, rows: Floats) -> Floats:
        """Return the distances of a block of checked rows to the centers."""
        # imported here, because the import is slow and a site does not need it
        from scipy.spatial.distance import cdist

        distances: Floats = cdist(self.place(rows), self.cluster_points)
        return distances


def nearest_centers(places: Floats, centers: Floats) -> Clustered:
    """Return the nearest center of each place as its label, and the k-means objective as the cost."""
    labels = nearest_center(places, centers)
    return Clustered(labels, kmeans_cost(places, centers, labels), places)


class KMeansModel(CenterModel, name="k-means"):
    """Clusters by the nearest center. The cost is in squared units of the rows.

    Parameters
    ----------
    cluster_centers : array-like of shape (n_clusters, n_columns)

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_columns)
    """

    columns_from = "the cluster centers have"

    def __init__(self, cluster_centers: ArrayLike) -> None:
        self.cluster_centers_ = checked_rows(np.array(cluster_centers), owner="cluster_centers")
        self.cluster_points = self.exact_points = self.cluster_centers_
        self.n_columns = self.cluster_centers_.shape[1]

    def __repr__(self) -> str:
        return f"KMeansModel({self.n_clusters} centers of {self.n_columns} columns)"

    def exact_clusters(self, rows: Floats, exponent: int) -> Labels:
        """Return the index of the nearest center of each row on a grid of integers, exactly."""
        return nearest_point(rows, points_onto_grid(self.cluster_centers_, exponent))

    def place(self, rows: Floats) -> Floats:
        """Return the rows themselves, because centers are in the space of the rows."""
        return rows

    def to_arrays(self) -> list[Floats]:
        """Return the centers."""
        return [self.cluster_centers_]

    @classmethod
    def from_arrays(cls, arrays: Sequence[Floats]) -> Self:
        """Make the model from its centers."""
        (cluster_centers,) = arrays
        return cls(cluster_centers)


class SpectralModel(CenterModel, name="spectral"):
    """Clusters by the nearest center in a spectral embedding, which also places new rows.

    The place of a row x is ``k(x, Z) P`` scaled to norm 1, where k is the Gaussian kernel. The cost of a row is at most
    4 and has no unit.

    Parameters
    ----------
    dictionary : array-like of shape (n_atoms, n_columns)
        The atoms, Z.
    bandwidth : float
        The bandwidth of the kernel, in the units of the rows.
    projection : array-like of shape (n_atoms, n_dimensions)
        The matrix P, which turns kernel values into places.
    cluster_centers : array-like of shape (n_clusters, n_dimensions)
        The centers in the embedding.

    Attributes
    ----------
    dictionary_ : ndarray of shape (n_atoms, n_columns)
    bandwidth_ : float
    projection_ : ndarray of shape (n_atoms, n_dimensions)
    embedding_centers_ : ndarray of shape (n_clusters, n_dimensions)
    """

    space = "embedding"
    columns_from = "the dictionary has"

    def __init__(
        self,
        dictionary: ArrayLike,
        bandwidth: float,
        projection: ArrayLike,
        cluster_centers: ArrayLike,
    ) -> None:
        self.exact_points = self.dictionary_ = checked_rows(
            np.array(dictionary), owner="dictionary"
        )
        self.n_columns = self.dictionary_.shape[1]
        self.bandwidth_ = check_real("bandwidth", bandwidth, above=0)
        self.projection_ = checked_rows(np.array(projection), owner="projection")
        self.cluster_points = self.embedding_centers_ = checked_rows(
            np.array(cluster_centers), owner="cluster_centers"
        )

    def __repr__(self) -> str:
        n_atoms = len(self.dictionary_)
        return f"SpectralModel({self.n_clusters} clusters, {n_atoms} atoms of {self.n_columns} columns)"

    def exact_clusters(self, rows: Floats, exponent: int) -> Labels:
        """Return the cluster of each row on a grid of integers, embedded and compared with the centers exactly."""
        n_atoms, n_dimensions = self.projection_.shape
        # An upper bound on the norm of k(x, Z) P. Its factor is a power of two, so that the product is exact.
        bound = float(np.abs(self.projection_).max()) * 2.0 ** math.ceil(
            math.log2(n_atoms * n_dimensions**0.5)
        )
        atoms = points_onto_grid(self.dictionary_, exponent)
        embedded, unit = embedded_rows(
            rows, atoms, exponent, self.bandwidth_, self.projection_, bound
        )
        return nearest_point(embedded, points_onto_grid(self.embedding_centers_, unit))

    def embed(self, rows: ArrayLike) -> Floats:
        """Return the places of rows in the embedding, of shape (n_rows, n_dimensions).

        A place has the norm 1, or 0 if the row is so far from every atom that its kernel values vanish.
        """
        return self.place(self._checked(rows))

    def place(self, rows: Floats) -> Floats:
        """Return the places of checked rows."""
        return spectral_coordinates(rows, self.dictionary_, self.projection_, self.bandwidth_)

    def to_arrays(self) -> list[Floats]:
        """Return dictionary, bandwidth, projection and centers."""
        return [
            self.dictionary_,
            np.array([self.bandwidth_]),
            self.projection_,
            self.embedding_centers_,
        ]

    @classmethod
    def from_arrays(cls, arrays: Sequence[Floats]) -> Self:
        """Make the model from the arrays that :meth:`to_arrays` returned."""
        dictionary, bandwidth, projection, cluster_centers = arrays
        return cls(dictionary, float(bandwidth[0]), projection, cluster_centers)
