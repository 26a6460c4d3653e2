"""Soft clusters: rows as sums of components, weighted by memberships."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.exact.factorization import Penalties, lifted, memberships_of
from flower_fedclust.models.base import Clustered, RowModel
from flower_fedclust.numerics.checks import check_real, checked_point, checked_rows

Floats = NDArray[np.float64]

#: With an origin, a component is represented by the point where its ray from the origin meets the plane of the rows. A
#: ray with a smaller slope against this plane than LEAST_SLOPE is treated as if it had this slope.
LEAST_SLOPE = 0.1


class FactorModel(RowModel, name="factors"):
    """Clusters by a factorization: each row is approximated by a sum of components, weighted by its memberships.

    A row's cluster is the one with the largest membership. The cost is ``||X - H W||^2`` for the rows X, their
    memberships H and the components W, in squared units of the rows.

    Parameters
    ----------
    components : array-like of shape (n_clusters, n_columns), or (n_clusters, n_columns + 1) with an origin
        The components, W.
    origin : array-like of shape (n_columns + 1,), optional
        The point that is subtracted from rows and, last, one more coordinate that every row gets; see
        :func:`~flower_fedclust.exact.factorization.lifted`.
    rho, mu_h : float, default=0
        The penalties for finding memberships; see
        :class:`~flower_fedclust.exact.factorization.Penalties`.

    Attributes
    ----------
    components_ : ndarray of shape (n_clusters, n_columns), or (n_clusters, n_columns + 1) with an origin
    """

    columns_from = "the components have"

    def __init__(
        self,
        components: ArrayLike,
        origin: ArrayLike | None = None,
        *,
        rho: float = 0.0,
        mu_h: float = 0.0,
    ) -> None:
        self.cluster_points = self.components_ = checked_rows(
            np.array(components), owner="components"
        )
        self.n_columns = self.components_.shape[1]
        self._origin: Floats | None = None
        if origin is not None:
            self._origin = checked_point("origin", origin)
            if self._origin.shape != (self.n_columns,):
                raise ValueError(
                    f"origin has {len(self._origin)} entries where the components have {self.n_columns}; give as many."
                )
            self.n_columns -= 1
            along = np.maximum(
                self.components_[:, -1:],
                LEAST_SLOPE * np.linalg.norm(self.components_, axis=1)[:, None],
            )
            met = self.components_[:, :-1] * np.divide(
                self._origin[-1], along, out=0.0 * along, where=along > 0
            )
            self.cluster_points = self._origin[:-1] + met
        self.penalties = Penalties(
            check_real("rho", rho, at_least=0), check_real("mu_h", mu_h, at_least=0)
        )

    def __repr__(self) -> str:
        return f"FactorModel({self.n_clusters} components of {self.n_columns} columns)"

    @property
    def mean_points(self) -> Floats | None:
        """The origin in the space of the rows; None without one. Components are directions, not means of rows."""
        return None if self._origin is None else self._origin[None, :-1]

    def memberships(self, rows: ArrayLike) -> Floats:
        """Return the memberships H: how much each row belongs to each cluster, of shape (n_rows, n_clusters).

        Each row's memberships depend on that row only. They are not negative, and need not add up to 1.
        """
        return memberships_of(
            self._about_origin(self._checked(rows)), self.components_, self.penalties
        )

    def cluster_block(self, rows: Floats) -> Clustered:
        """Return each row's cluster, the one with the largest membership, and the factorization's squared error."""
        rows = self._about_origin(rows)
        memberships = memberships_of(rows, self.components_, self.penalties)
        residuals = rows - memberships @ self.components_
        with np.errstate(over="ignore"):  # a cost that is infinite is left out of the metrics
            cost = float(np.sum(residuals**2))
        return Clustered(memberships.argmax(axis=1), cost)

    def _about_origin(self, rows: Floats) -> Floats:
        """Return rows in the coordinates of the components: moved and with one more column, if there is an origin."""
        return rows if self._origin is None else lifted(rows, self._origin)

    def to_arrays(self) -> list[Floats]:
        """Return the components, the penalties and the origin (an empty array if there is none)."""
        origin = np.empty(0) if self._origin is None else self._origin
        return [self.components_, np.array([self.penalties.rho, self.penalties.mu_h]), origin]

    @classmethod
    def from_arrays(cls, arrays: Sequence[Floats]) -> Self:
        """Make the model from the arrays that :meth:`to_arrays` returned."""
        components, (rho, mu_h), origin = arrays
        return cls(components, origin if origin.size else None, rho=float(rho), mu_h=float(mu_h))
