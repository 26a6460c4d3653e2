"""Clusters made of prototypes, each of which stands for many rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.exact.grid import points_onto_grid
from flower_fedclust.exact.sums import nearest_point
from flower_fedclust.models.base import Clustered, RowModel
from flower_fedclust.models.centers import nearest_centers
from flower_fedclust.numerics.checks import check_integer, checked_rows
from flower_fedclust.numerics.prototypes import Prototypes, log_densities

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]


class PrototypeModel(RowModel, name="prototypes"):
    """Clusters made of prototypes, each of which represents rows by a Gaussian, or by its mean only.

    The cost is the sum of the squared distances of rows to the mean of the prototype with the largest density at the
    row (without covariances: the nearest mean), in squared units of the rows.

    Parameters
    ----------
    means : array-like of shape (n_prototypes, n_columns)
    clusters : array-like of shape (n_prototypes,)
        The cluster of each prototype, from 0.
    n_clusters : int
    covariances : array-like of shape (n_prototypes, n_columns, n_columns) or (n_prototypes, n_columns), optional
        Full or diagonal, and invertible. With them, a row belongs to the cluster with the largest
        density, the sum of its prototypes' Gaussians weighted by their counts; without, to the
        cluster of the nearest mean.
    counts : array-like of shape (n_prototypes,), optional
        About how many rows each prototype stands for; equal by default.

    Attributes
    ----------
    means_ : ndarray of shape (n_prototypes, n_columns)
    covariances_ : ndarray or None
    counts_ : ndarray of shape (n_prototypes,)
    clusters_ : ndarray of shape (n_prototypes,), intp
    """

    columns_from = "the prototypes have"

    def __init__(
        self,
        means: ArrayLike,
        clusters: ArrayLike,
        n_clusters: int,
        *,
        covariances: ArrayLike | None = None,
        counts: ArrayLike | None = None,
    ) -> None:
        self.means_ = checked_rows(np.array(means), owner="means")
        self.clusters_ = np.array(clusters, dtype=np.intp)
        self._n_clusters = check_integer("n_clusters", n_clusters, at_least=1)
        self.counts_ = (
            np.ones(len(self.means_)) if counts is None else np.array(counts, dtype=np.float64)
        )
        self.covariances_ = None if covariances is None else np.array(covariances, dtype=np.float64)
        n_prototypes, self.n_columns = self.means_.shape
        if self.clusters_.shape != (n_prototypes,) or self.counts_.shape != (n_prototypes,):
            raise ValueError(f"there are {n_prototypes} means; give as many clusters and counts.")
        if not ((self.clusters_ >= 0) & (self.clusters_ < n_clusters)).all():
            raise ValueError(f"clusters: every prototype needs one from 0 to {n_clusters - 1}.")
        if self.covariances_ is not None:
            shapes = (self.means_.shape, (*self.means_.shape, self.n_columns))
            if self.covariances_.shape not in shapes or not np.isfinite(self.covariances_).all():
                raise ValueError(
                    f"covariances: give finite numbers of shape {shapes[0]} or {shapes[1]}."
                )
        if not (np.isfinite(self.counts_) & (self.counts_ > 0)).all():
            raise ValueError("counts: every prototype needs a finite number above 0.")
        self.exact_points = self.means_ if self.covariances_ is None else None
        # The weighted mean of each cluster's prototypes; the mean of all prototypes for a cluster without any.
        weights = (self.clusters_[:, None] == np.arange(n_clusters)) * self.counts_[:, None]
        weights[:, weights.sum(axis=0) == 0] = self.counts_[:, None]
        self.cluster_points = np.asarray((weights / weights.sum(axis=0)).T @ self.means_)

    def __repr__(self) -> str:
        n_prototypes = len(self.means_)
        return f"PrototypeModel({self.n_clusters} clusters, {n_prototypes} prototypes of {self.n_columns} columns)"

    @property
    def n_clusters(self) -> int:
        """The number of clusters; a cluster may have no prototype."""
        return self._n_clusters

    @property
    def _widest(self) -> int:
        """The entries per row of the largest array that :meth:`cluster_block` makes."""
        return len(self.means_) + self.n_columns

    def exact_clusters(self, rows: Floats, exponent: int) -> Labels:
        """Return the cluster of the nearest mean of each row on a grid of integers, exactly."""
        return self.clusters_[nearest_point(rows, points_onto_grid(self.means_, exponent))]

    def cluster_block(self, rows: Floats) -> Clustered:
        """Return the clusters with the largest density, or with the nearest mean, and the cost."""
        from scipy.special import logsumexp

        if self.covariances_ is None:
            nearest = nearest_centers(rows, self.means_)
            return Clustered(self.clusters_[nearest.labels], nearest.cost)
        by_prototype = log_densities(rows, Prototypes(self.means_, self.covariances_, self.counts_))
        by_cluster = np.full((len(rows), self.n_clusters), -np.inf)
        for cluster in np.unique(self.clusters_):
            by_cluster[:, cluster] = logsumexp(by_prototype[:, self.clusters_ == cluster], axis=1)
        offsets = rows - self.means_[by_prototype.argmax(axis=1)]
        return Clustered(by_cluster.argmax(axis=1), float(np.einsum("ij,ij->", offsets, offsets)))

    def to_arrays(self) -> list[Floats]:
        """Return means, covariances (or an empty array), counts, clusters and their number."""
        covariances = np.empty(0) if self.covariances_ is None else self.covariances_
        clusters = self.clusters_.astype(np.float64)
        return [
            self.means_,
            covariances,
            self.counts_,
            clusters,
            np.array([float(self.n_clusters)]),
        ]

    @classmethod
    def from_arrays(cls, arrays: Sequence[Floats]) -> Self:
        """Make the model from the arrays that :meth:`to_arrays` returned."""
        means, covariances, counts, clusters, (n_clusters,) = arrays
        known_covariances = covariances if covariances.size else None
        return cls(means, clusters, int(n_clusters), covariances=known_covariances, counts=counts)
