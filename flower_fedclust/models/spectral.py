"""Clusters by the nearest center in a spectral embedding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.exact.grid import points_onto_grid
from flower_fedclust.exact.spectral_sums import embedded_rows
from flower_fedclust.exact.sums import nearest_point
from flower_fedclust.models.base import Model
from flower_fedclust.numerics.checks import check_real, checked_rows
from flower_fedclust.numerics.kmeans import kmeans_cost, nearest_center
from flower_fedclust.numerics.spectral import spectral_coordinates


class SpectralModel(Model, name="spectral"):
    """Clusters by the nearest center in a spectral embedding, which places rows that were not there, too.

    A row goes to ``k(x, Z) P``, where k is the Gaussian kernel, scaled to norm 1; and from there to the nearest center.

    Parameters
    ----------
    dictionary : array-like of shape (n_atoms, n_columns)
        Z.
    bandwidth : float
        Of the kernel, in the units of the rows.
    projection : array-like of shape (n_atoms, n_dimensions)
        P.
    cluster_centers : array-like of shape (n_clusters, n_dimensions)
        In the embedding.

    Attributes
    ----------
    dictionary_ : ndarray of shape (n_atoms, n_columns)
    bandwidth_ : float
    projection_ : ndarray of shape (n_atoms, n_dimensions)
    embedding_centers_ : ndarray of shape (n_clusters, n_dimensions)
    """

    space = "embedding"

    def __init__(
        self, dictionary: ArrayLike, bandwidth: float, projection: ArrayLike, cluster_centers: ArrayLike
    ) -> None:
        self.dictionary_ = checked_rows(np.array(dictionary), owner="dictionary")
        self.bandwidth_ = check_real("bandwidth", bandwidth, above=0)
        self.projection_ = checked_rows(np.array(projection), owner="projection")
        self.embedding_centers_ = checked_rows(np.array(cluster_centers), owner="cluster_centers")

    def __repr__(self) -> str:
        n_atoms, n_columns = self.dictionary_.shape
        return f"SpectralModel({self.n_clusters} clusters, {n_atoms} atoms of {n_columns} columns)"

    @property
    def cluster_points(self) -> NDArray[np.float64]:
        """The centers, in the embedding."""
        return self.embedding_centers_

    def embed(self, rows: ArrayLike) -> NDArray[np.float64]:
        """Return where rows lie in the embedding, of shape (n_rows, n_dimensions).

        Of norm 1; 0 for a row so far from every atom that its kernel values vanish.
        """
        checked = self.checked_rows(rows, self.dictionary_.shape[1], "the dictionary has")
        return spectral_coordinates(checked, self.dictionary_, self.projection_, self.bandwidth_)

    def predict(self, rows: ArrayLike) -> NDArray[np.intp]:
        """Return the cluster of each row, of shape (n_rows,)."""
        return nearest_center(self.embed(rows), self.embedding_centers_)

    @property
    def exact_points(self) -> NDArray[np.float64]:
        """The atoms of the dictionary."""
        return self.dictionary_

    def exact_clusters(self, rows: NDArray[np.float64], exponent: int) -> NDArray[np.intp]:
        """Return the cluster of each row on a grid, embedded and compared with the centers exactly."""
        n_atoms, n_dimensions = self.projection_.shape
        # Not less than the norm of k(x, Z) P, which is divided by its own: a product with a power of two is exact.
        bound = float(np.abs(self.projection_).max()) * 2.0 ** math.ceil(math.log2(n_atoms * n_dimensions**0.5))
        atoms = points_onto_grid(self.dictionary_, exponent)
        embedded, unit = embedded_rows(rows, atoms, exponent, self.bandwidth_, self.projection_, bound)
        return nearest_point(embedded, points_onto_grid(self.embedding_centers_, unit))

    def cost(self, rows: ArrayLike) -> float:
        """Return the k-means objective of the embedded rows: at most 4 for a row, in no unit."""
        return kmeans_cost(self.embed(rows), self.embedding_centers_)

    def to_arrays(self) -> list[NDArray[np.float64]]:
        """Return dictionary, bandwidth, projection and centers."""
        return [self.dictionary_, np.array([self.bandwidth_]), self.projection_, self.embedding_centers_]

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[np.float64]]) -> Self:
        """Make the model from what :meth:`to_arrays` returned."""
        dictionary, bandwidth, projection, cluster_centers = arrays
        return cls(dictionary, float(bandwidth[0]), projection, cluster_centers)
