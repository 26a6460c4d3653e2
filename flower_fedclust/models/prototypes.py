"""Clusters made of prototypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.exact.grid import points_onto_grid
from flower_fedclust.exact.sums import nearest_point
from flower_fedclust.models.base import Model
from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.checks import check_integer, checked_rows
from flower_fedclust.numerics.kmeans import kmeans_cost, nearest_center
from flower_fedclust.numerics.prototypes import Prototypes, log_densities


class PrototypeModel(Model, name="prototypes"):
    """Clusters made of prototypes, each of which stands for rows: by its Gaussian, or by its mean alone.

    Parameters
    ----------
    means : array-like of shape (n_prototypes, n_columns)
    clusters : array-like of shape (n_prototypes,)
        The cluster of each prototype, from 0.
    n_clusters : int
    covariances : array-like of shape (n_prototypes, n_columns, n_columns) or (n_prototypes, n_columns), optional
        Full or diagonal, with an inverse. With them a row goes to the cluster of the largest density, that of its
        prototypes' Gaussians by their counts; without, to the cluster of the nearest mean.
    counts : array-like of shape (n_prototypes,), optional
        How many rows each stands for, about; equal by default.

    Attributes
    ----------
    means_ : ndarray of shape (n_prototypes, n_columns)
    covariances_ : ndarray or None
    counts_ : ndarray of shape (n_prototypes,)
    clusters_ : ndarray of shape (n_prototypes,), intp
    """

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
        self.counts_ = np.ones(len(self.means_)) if counts is None else np.array(counts, dtype=np.float64)
        self.covariances_ = None if covariances is None else np.array(covariances, dtype=np.float64)
        n_prototypes, n_columns = self.means_.shape
        if self.clusters_.shape != (n_prototypes,) or self.counts_.shape != (n_prototypes,):
            raise ValueError(f"there are {n_prototypes} means; give as many clusters and counts.")
        if not ((self.clusters_ >= 0) & (self.clusters_ < n_clusters)).all():
            raise ValueError(f"clusters: every prototype needs one from 0 to {n_clusters - 1}.")
        shapes = ((n_prototypes, n_columns), (n_prototypes, n_columns, n_columns))
        if self.covariances_ is not None and self.covariances_.shape not in shapes:
            raise ValueError(f"covariances have the shape {self.covariances_.shape}; give {shapes[0]} or {shapes[1]}.")
        if self.covariances_ is not None and not np.isfinite(self.covariances_).all():
            raise ValueError("covariances: every entry must be a finite number.")
        if not (np.isfinite(self.counts_) & (self.counts_ > 0)).all():
            raise ValueError("counts: every prototype needs a finite number above 0.")

    def __repr__(self) -> str:
        n_prototypes, n_columns = self.means_.shape
        return f"PrototypeModel({self.n_clusters} clusters, {n_prototypes} prototypes of {n_columns} columns)"

    @property
    def n_clusters(self) -> int:
        """How many clusters there are; one may have no prototype."""
        return self._n_clusters

    @property
    def cluster_points(self) -> NDArray[np.float64]:
        """The mean of each cluster's prototypes, by their counts; of all of them for a cluster that has none."""
        weights = (self.clusters_[:, None] == np.arange(self.n_clusters)) * self.counts_[:, None]
        weights[:, weights.sum(axis=0) == 0] = self.counts_[:, None]
        return np.asarray((weights / weights.sum(axis=0)).T @ self.means_)

    def predict(self, rows: ArrayLike) -> NDArray[np.intp]:
        """Return the cluster of each row, of shape (n_rows,): that of the largest density, or of the nearest mean."""
        from scipy.special import logsumexp

        checked = self._checked(rows)
        if self.covariances_ is None:
            return self.clusters_[nearest_center(checked, self.means_)]
        labels = np.empty(len(checked), dtype=np.intp)
        for block in blocks(len(checked), len(self.means_) + checked.shape[1]):
            by_prototype = self._log_densities(checked[block])
            by_cluster = np.full((len(by_prototype), self.n_clusters), -np.inf)
            for cluster in np.unique(self.clusters_):
                by_cluster[:, cluster] = logsumexp(by_prototype[:, self.clusters_ == cluster], axis=1)
            labels[block] = by_cluster.argmax(axis=1)
        return labels

    @property
    def exact_points(self) -> NDArray[np.float64] | None:
        """The means, if a row goes to the nearest."""
        return self.means_ if self.covariances_ is None else None

    def exact_clusters(self, rows: NDArray[np.float64], exponent: int) -> NDArray[np.intp]:
        """Return the cluster of the nearest mean of each row on a grid, exactly."""
        return self.clusters_[nearest_point(rows, points_onto_grid(self.means_, exponent))]

    def cost(self, rows: ArrayLike) -> float:
        """Return the sum of the squared distances of rows from the mean of their prototype, in squared units."""
        checked = self._checked(rows)
        if self.covariances_ is None:
            return kmeans_cost(checked, self.means_)
        cost = 0.0
        for block in blocks(len(checked), len(self.means_) + checked.shape[1]):
            offsets = checked[block] - self.means_[self._log_densities(checked[block]).argmax(axis=1)]
            cost += float(np.einsum("ij,ij->", offsets, offsets))
        return cost

    def _checked(self, rows: ArrayLike) -> NDArray[np.float64]:
        return self.checked_rows(rows, self.means_.shape[1], "the prototypes have")

    def _log_densities(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        assert self.covariances_ is not None
        return log_densities(rows, Prototypes(self.means_, self.covariances_, self.counts_))

    def to_arrays(self) -> list[NDArray[np.float64]]:
        """Return means, covariances (or an empty array), counts, clusters and their number."""
        covariances = np.empty(0) if self.covariances_ is None else self.covariances_
        clusters = self.clusters_.astype(np.float64)
        return [self.means_, covariances, self.counts_, clusters, np.array([float(self.n_clusters)])]

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[np.float64]]) -> Self:
        """Make the model from what :meth:`to_arrays` returned."""
        means, covariances, counts, clusters, n_clusters = arrays
        return cls(
            means,
            clusters,
            int(n_clusters[0]),
            covariances=covariances if covariances.size else None,
            counts=counts,
        )
