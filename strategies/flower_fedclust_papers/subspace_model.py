"""Clusters that are subspaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.models.base import Clustered, RowModel
from flower_fedclust.numerics.checks import checked_rows
from flower_fedclust.numerics.spectral import unit_rows
from flower_fedclust_papers.subspaces import squared_residuals

Floats = NDArray[np.float64]

#: How far the products of a basis's vectors may deviate from the identity.
ORTHONORMAL_TOLERANCE = 1e-6


class SubspaceModel(RowModel, name="subspaces"):
    """Clusters by the nearest of several subspaces through the origin. The cost is in squared units of the rows.

    Parameters
    ----------
    bases : sequence of array-like of shape (n_dimensions, n_columns)
        An orthonormal basis for each cluster; the dimensions may differ. A cluster with an empty basis, of shape
        (0, n_columns), gets no row.

    Attributes
    ----------
    bases_ : list of ndarray of shape (n_dimensions, n_columns)

    Raises
    ------
    ValueError
        If there is no basis, if their columns differ, or if one is not orthonormal.
    """

    columns_from = "the bases have"

    def __init__(self, bases: Sequence[ArrayLike]) -> None:
        self.bases_ = [_checked_basis(basis, index) for index, basis in enumerate(bases)]
        if not any(len(basis) for basis in self.bases_):
            raise ValueError(
                "bases: there is no vector in them; give at least one cluster a basis."
            )
        if len({basis.shape[1] for basis in self.bases_}) > 1:
            raise ValueError(
                "bases: they have different numbers of columns; give all of them the same."
            )
        self.n_columns = self.bases_[0].shape[1]

    def __repr__(self) -> str:
        dimensions = ", ".join(str(len(basis)) for basis in self.bases_)
        return f"SubspaceModel({self.n_clusters} subspaces of {dimensions} dimensions in {self.n_columns} columns)"

    @property
    def n_clusters(self) -> int:
        """The number of subspaces."""
        return len(self.bases_)

    def residuals(self, rows: ArrayLike) -> Floats:
        """Return the squared distance of each row, scaled to norm 1, from each subspace, of shape (n_rows, n_clusters).

        It is the squared sine of the angle between them: from 0 to 1. A row of zeros lies in all subspaces.
        """
        return squared_residuals(unit_rows(self._checked(rows)), self.bases_)

    def cluster_block(self, rows: Floats) -> Clustered:
        """Return the nearest subspaces, the first of equally near ones, and the squared distances from them."""
        residuals = squared_residuals(unit_rows(rows), self.bases_)
        # A row that is orthogonal to all subspaces must not join a cluster without one.
        residuals[:, [len(basis) == 0 for basis in self.bases_]] = np.inf
        return Clustered(
            residuals.argmin(axis=1), float(squared_residuals(rows, self.bases_).min(axis=1).sum())
        )

    def to_arrays(self) -> list[Floats]:
        """Return the bases, one array for each cluster."""
        return list(self.bases_)

    @classmethod
    def from_arrays(cls, arrays: Sequence[Floats]) -> Self:
        """Make the model from its bases."""
        return cls(arrays)


def _checked_basis(basis: ArrayLike, index: int) -> Floats:
    array = np.array(basis, dtype=np.float64)
    if array.ndim == 2 and len(array) == 0 and array.shape[1] > 0:
        return array
    checked = checked_rows(array, owner=f"basis {index}")
    if not np.allclose(
        checked @ checked.T, np.eye(len(checked)), rtol=0, atol=ORTHONORMAL_TOLERANCE
    ):
        raise ValueError(
            f"basis {index} is not orthonormal; give vectors of norm 1 at right angles to each other."
        )
    return checked
