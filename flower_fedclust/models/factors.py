"""Soft clusters by a factorization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.exact.factorisation import Penalties, memberships_of
from flower_fedclust.models.base import Clustered, RowModel
from flower_fedclust.numerics.checks import check_real, checked_rows

Floats = NDArray[np.float64]


class FactorModel(RowModel, name="factors"):
    """Clusters by a factorization: a row is about a sum of components, weighted by its memberships.

    A row's cluster is the one with the largest membership. The cost is ``||X - H W||^2``, in squared units of the rows.

    Parameters
    ----------
    components : array-like of shape (n_clusters, n_columns)
        W.
    rho, mu_h : float, default=0
        The penalties for finding memberships; see :class:`~flower_fedclust.exact.factorisation.Penalties`.

    Attributes
    ----------
    components_ : ndarray of shape (n_clusters, n_columns)
    """

    columns_from = "the components have"

    def __init__(self, components: ArrayLike, *, rho: float = 0.0, mu_h: float = 0.0) -> None:
        self.cluster_points = self.components_ = checked_rows(np.array(components), owner="components")
        self.n_columns = self.components_.shape[1]
        self.penalties = Penalties(check_real("rho", rho, at_least=0), check_real("mu_h", mu_h, at_least=0))

    def __repr__(self) -> str:
        return f"FactorModel({self.n_clusters} components of {self.n_columns} columns)"

    def memberships(self, rows: ArrayLike) -> Floats:
        """Return how much each row belongs to each cluster, of shape (n_rows, n_clusters): H for the model's W.

        Each row's memberships depend on that row only. They are not negative, and need not add up to 1.
        """
        return memberships_of(self._checked(rows), self.components_, self.penalties)

    def cluster_block(self, rows: Floats) -> Clustered:
        """Return the clusters with the largest memberships, and what the factorization leaves."""
        memberships = memberships_of(rows, self.components_, self.penalties)
        residuals = rows - memberships @ self.components_
        return Clustered(memberships.argmax(axis=1), float(np.sum(residuals**2)))

    def to_arrays(self) -> list[Floats]:
        """Return the components and the penalties."""
        return [self.components_, np.array([self.penalties.rho, self.penalties.mu_h])]

    @classmethod
    def from_arrays(cls, arrays: Sequence[Floats]) -> Self:
        """Make the model from the arrays that :meth:`to_arrays` returned."""
        components, (rho, mu_h) = arrays
        return cls(components, rho=float(rho), mu_h=float(mu_h))
