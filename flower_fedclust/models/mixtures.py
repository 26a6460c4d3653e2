"""Clusters by a Gaussian mixture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.exact.mixtures import (
    STRUCTURES,
    Structure,
    log_densities,
    structure_named,
    whitened,
    whitening_of,
)
from flower_fedclust.models.base import Clustered, RowModel
from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.checks import DataError, checked_rows
from flower_fedclust.numerics.prototypes import Prototypes
from flower_fedclust.numerics.prototypes import log_densities as densities_of

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]


class MixtureModel(RowModel, name="mixture"):
    """A Gaussian mixture: a row belongs to the component with the largest membership.

    The cost is the sum of squared distances to the means of these components, in squared units of
    the rows.

    Parameters
    ----------
    weights : array-like of shape (n_components,)
        Above 0; they add up to 1.
    means : array-like of shape (n_components, n_columns)
    covariances : array-like of shape (n_components, n_columns, n_columns) or (n_components, n_columns)
        Full covariances, or the variances of the columns; positive.
    covariance_type : "full", "diag", "spherical" or "tied"
        The structure of the covariances, as in scikit-learn's GaussianMixture.

    Attributes
    ----------
    weights_ : ndarray of shape (n_components,)
    means_ : ndarray of shape (n_components, n_columns)
    covariances_ : ndarray
    covariance_type_ : str

    Raises
    ------
    ValueError
        If the arrays do not fit each other, or a covariance is not positive.
    """

    columns_from = "the means have"

    def __init__(
        self,
        weights: ArrayLike,
        means: ArrayLike,
        covariances: ArrayLike,
        covariance_type: Structure,
    ) -> None:
        self.means_ = checked_rows(np.array(means), owner="means")
        self.weights_ = np.array(weights, dtype=np.float64)
        self.covariances_ = np.array(covariances, dtype=np.float64)
        self.covariance_type_ = structure_named(covariance_type)
        k, self.n_columns = self.means_.shape
        if (
            self.weights_.shape != (k,)
            or not (self.weights_ > 0).all()
            or abs(self.weights_.sum() - 1) > 1e-6
        ):
            raise DataError(f"weights: give {k} numbers above 0 that add up to 1.")
        shapes = (self.means_.shape, (k, self.n_columns, self.n_columns))
        if self.covariances_.shape not in shapes or not np.isfinite(self.covariances_).all():
            raise DataError(
                f"covariances: give finite numbers of shape {shapes[1]} or {shapes[0]}."
            )
        try:
            if self.covariances_.ndim == 2 and not (self.covariances_ > 0).all():
                raise np.linalg.LinAlgError
            root = np.sqrt if self.covariances_.ndim == 2 else np.linalg.cholesky
            self._whitening = whitening_of(
                self.weights_, np.asarray(root(self.covariances_), dtype=np.float64)
            )
        except np.linalg.LinAlgError:
            raise DataError("covariances: every covariance has to be positive.") from None
        self.cluster_points = self.exact_points = self.means_

    def __repr__(self) -> str:
        return f"MixtureModel({self.n_clusters} {self.covariance_type_} components of {self.n_columns} columns)"

    def predict_proba(self, rows: ArrayLike) -> Floats:
        """Return the memberships of rows, of shape (n_rows, n_components).

        Parameters
        ----------
        rows : array-like of shape (n_rows, n_columns), or table
        """
        from scipy.special import softmax

        return np.asarray(softmax(self._log_densities(rows), axis=1))

    def score_samples(self, rows: ArrayLike) -> Floats:
        """Return the logarithm of the density at each row, of shape (n_rows,).

        Parameters
        ----------
        rows : array-like of shape (n_rows, n_columns), or table
        """
        from scipy.special import logsumexp

        return np.asarray(logsumexp(self._log_densities(rows), axis=1))

    def _log_densities(self, rows: ArrayLike) -> Floats:
        """Return the logarithm of each component's weighted density at each row: (n_rows, n_components)."""
        checked = self._checked(rows)
        parts = [
            densities_of(checked[block], self._prototypes)
            for block in blocks(len(checked), self._widest)
        ]
        return np.concatenate(parts)

    @property
    def _prototypes(self) -> Prototypes:
        """The components as :class:`Prototypes`, whose densities are computed in floats."""
        return Prototypes(self.means_, self.covariances_, self.weights_)

    def exact_clusters(self, rows: Floats, exponent: int) -> Labels:
        """Return the most probable component of each row on a grid of integers, with the same bits on every machine."""
        whitening, constants = self._whitening
        return np.asarray(
            log_densities(whitened(rows, self.means_, whitening, exponent), constants).argmax(
                axis=1
            )
        )

    def cluster_block(self, rows: Floats) -> Clustered:
        """Return each row's most probable component, and the sum of the squared distances to their means."""
        labels = densities_of(rows, self._prototypes).argmax(axis=1)
        offsets = rows - self.means_[labels]
        return Clustered(labels, float(np.einsum("ij,ij->", offsets, offsets)))

    def to_arrays(self) -> list[Floats]:
        """Return weights, means, covariances and their type."""
        structure = np.array([float(STRUCTURES.index(self.covariance_type_))])
        return [self.weights_, self.means_, self.covariances_, structure]

    @classmethod
    def from_arrays(cls, arrays: Sequence[Floats]) -> Self:
        """Make the model from the arrays that :meth:`to_arrays` returned."""
        weights, means, covariances, structure = arrays
        return cls(weights, means, covariances, STRUCTURES[int(structure[0])])
