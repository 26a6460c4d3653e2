"""Clusters that are subspaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.models.base import Model
from flower_fedclust.numerics.checks import checked_rows
from flower_fedclust.numerics.spectral import unit_rows
from flower_fedclust.numerics.subspaces import squared_residuals

#: How far the products of the vectors of a basis may be from those of an orthonormal one.
ORTHONORMAL_TOLERANCE = 1e-6


class SubspaceModel(Model, name="subspaces"):
    """Clusters by the nearest of several subspaces through the origin.

    Parameters
    ----------
    bases : sequence of array-like of shape (n_dimensions, n_columns)
        An orthonormal basis for each cluster; the dimensions may differ. A cluster that nothing is known of has a basis
        of shape (0, n_columns), and gets no row.

    Attributes
    ----------
    bases_ : list of ndarray of shape (n_dimensions, n_columns)

    Raises
    ------
    ValueError
        If there is no basis, if their columns differ, or if one is not orthonormal.
    """

    def __init__(self, bases: Sequence[ArrayLike]) -> None:
        self.bases_ = [_checked_basis(basis, index) for index, basis in enumerate(bases)]
        if not any(len(basis) for basis in self.bases_):
            raise ValueError("bases: there is no vector in them; give at least one cluster a basis.")
        if len({basis.shape[1] for basis in self.bases_}) > 1:
            raise ValueError("bases: they have different numbers of columns; give all of them the same.")

    def __repr__(self) -> str:
        dimensions = ", ".join(str(len(basis)) for basis in self.bases_)
        return f"SubspaceModel({self.n_clusters} subspaces of {dimensions} dimensions in {self._n_columns} columns)"

    @property
    def n_clusters(self) -> int:
        """How many subspaces there are."""
        return len(self.bases_)

    @property
    def _n_columns(self) -> int:
        return int(self.bases_[0].shape[1])

    def residuals(self, rows: ArrayLike) -> NDArray[np.float64]:
        """Return the squared distance of each row, scaled to norm 1, from each subspace, of shape (n_rows, n_clusters).

        It is the squared sine of the angle between the two: from 0 to 1. A row of zeros lies in all subspaces.
        """
        return squared_residuals(unit_rows(self._checked(rows)), self.bases_)

    def predict(self, rows: ArrayLike) -> NDArray[np.intp]:
        """Return the nearest subspace of each row, of shape (n_rows,); of equally near ones the lower number."""
        residuals = self.residuals(rows)
        # A row that is orthogonal to all has no less to do with the clusters that something is known of.
        residuals[:, [len(basis) == 0 for basis in self.bases_]] = np.inf
        return np.asarray(residuals.argmin(axis=1), dtype=np.intp)

    def cost(self, rows: ArrayLike) -> float:
        """Return the sum over rows of the squared distance to the nearest subspace, in squared units of the rows."""
        return float(squared_residuals(self._checked(rows), self.bases_).min(axis=1).sum())

    def to_arrays(self) -> list[NDArray[np.float64]]:
        """Return the bases, one array a cluster."""
        return list(self.bases_)

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[np.float64]]) -> Self:
        """Make the model from its bases."""
        return cls(arrays)

    def _checked(self, rows: ArrayLike) -> NDArray[np.float64]:
        return self.checked_rows(rows, self._n_columns, "the bases have")


def _checked_basis(basis: ArrayLike, index: int) -> NDArray[np.float64]:
    array = np.array(basis, dtype=np.float64)
    if array.ndim == 2 and len(array) == 0 and array.shape[1] > 0:
        return array
    checked = checked_rows(array, owner=f"basis {index}")
    if not np.allclose(checked @ checked.T, np.eye(len(checked)), rtol=0, atol=ORTHONORMAL_TOLERANCE):
        raise ValueError(f"basis {index} is not orthonormal; give vectors of norm 1 at right angles to each other.")
    return checked
