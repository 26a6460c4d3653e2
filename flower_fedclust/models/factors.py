"""Soft clusters by a factorisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.exact.factorisation import Penalties, memberships_of
from flower_fedclust.models.base import Model
from flower_fedclust.numerics.checks import check_real, checked_rows


class FactorModel(Model, name="factors"):
    """Clusters by a factorisation: a row is about a sum of components, each as much as the row belongs to it.

    Parameters
    ----------
    components : array-like of shape (n_clusters, n_columns)
        W.
    rho, mu_h : float, default=0
        The penalties with which memberships are found; see :class:`~flower_fedclust.exact.factorisation.Penalties`.

    Attributes
    ----------
    components_ : ndarray of shape (n_clusters, n_columns)
    """

    def __init__(self, components: ArrayLike, *, rho: float = 0.0, mu_h: float = 0.0) -> None:
        self.components_ = checked_rows(np.array(components), owner="components")
        self.penalties = Penalties(check_real("rho", rho, at_least=0), check_real("mu_h", mu_h, at_least=0))

    def __repr__(self) -> str:
        n_clusters, n_columns = self.components_.shape
        return f"FactorModel({n_clusters} components of {n_columns} columns)"

    @property
    def cluster_points(self) -> NDArray[np.float64]:
        """The components."""
        return self.components_

    def memberships(self, rows: ArrayLike) -> NDArray[np.float64]:
        """Return how much each row belongs to each cluster, of shape (n_rows, n_clusters): H for the model's W.

        Each row's is found for itself; not negative, and not scaled to add up to anything.
        """
        checked = self.checked_rows(rows, self.components_.shape[1], "the components have")
        return memberships_of(checked, self.components_, self.penalties)

    def predict(self, rows: ArrayLike) -> NDArray[np.intp]:
        """Return the cluster to which each row belongs most, of shape (n_rows,)."""
        return np.asarray(self.memberships(rows).argmax(axis=1), dtype=np.intp)

    def cost(self, rows: ArrayLike) -> float:
        """Return what the factorisation leaves of the rows, ``||X - H W||^2``, in squared units of the rows."""
        checked = self.checked_rows(rows, self.components_.shape[1], "the components have")
        return float(np.sum((checked - self.memberships(checked) @ self.components_) ** 2))

    def to_arrays(self) -> list[NDArray[np.float64]]:
        """Return the components and the penalties."""
        return [self.components_, np.array([self.penalties.rho, self.penalties.mu_h])]

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[np.float64]]) -> Self:
        """Make the model from what :meth:`to_arrays` returned."""
        components, (rho, mu_h) = arrays
        return cls(components, rho=float(rho), mu_h=float(mu_h))
