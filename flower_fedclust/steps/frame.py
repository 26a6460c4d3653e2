"""The frame in which rows are measured: translated by a public point and clipped to a ball around it.

k-means does not care where the origin is, and noise does: it is calibrated to the longest row that is allowed. So
rows are first moved by the mean of the server rows, and then clipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.kmeans import nearest_center
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.protocol.rounds import Scalar

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Frame:
    """A public origin and a public radius; and, after Lemma 16, how each region of space is moved.

    Parameters
    ----------
    origin : ndarray of shape (n_columns,)
    radius : float
        Rows farther from the origin are scaled down to it, by the client.
    anchors : ndarray of shape (n_anchors, n_columns), optional
        Points, in the frame's coordinates before the move, that stand for regions.
    shifts : ndarray of shape (n_anchors, n_columns), optional
        What is added to a row whose nearest anchor this is.
    norm : 1 or 2, default=2
        Whether the ball is one of the L1 norm, for Laplace noise, or of the Euclidean norm.
    """

    origin: Floats
    radius: float
    anchors: Floats | None = None
    shifts: Floats | None = None
    norm: int = 2

    @classmethod
    def around(cls, server_rows: Floats, *, centered: bool) -> Self:
        """Return the frame of the server rows: their mean (or zero) as the origin, and their radius about it."""
        origin = server_rows.mean(axis=0) if centered else np.zeros(server_rows.shape[1])
        return cls(origin, float(np.linalg.norm(server_rows - origin, axis=1).max()))

    @property
    def arrays(self) -> list[NDArray[Any]]:
        """What a client needs to enter the frame, in the order of :func:`enter`."""
        moved = [] if self.anchors is None or self.shifts is None else [self.anchors, self.shifts]
        return [self.origin, *moved]

    @property
    def arguments(self) -> dict[str, Scalar]:
        """The radius, and the norm unless it is Euclidean: the keyword arguments of the client's method."""
        return {"radius": self.radius} if self.norm == 2 else {"radius": self.radius, "norm": self.norm}

    def enter(self, rows: Floats) -> Floats:
        """Return public rows in the frame's coordinates."""
        return enter(rows, *self.arrays, radius=self.radius, norm=self.norm)

    def leave(self, centers: Floats) -> Floats:
        """Return centers in the coordinates of the data."""
        if self.anchors is not None and self.shifts is not None:
            centers = centers - self.shifts[nearest_center(centers, self.anchors + self.shifts)]
        return centers + self.origin


def enter(rows: Floats, origin: Floats, *moved: Floats, radius: float, norm: int = 2) -> Floats:
    """Return rows in the coordinates of a frame: translated, moved by region if need be, and clipped.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_columns)
    origin : ndarray of shape (n_columns,)
    *moved : two ndarray of shape (n_anchors, n_columns), or none
        Anchors and shifts.
    radius : float
    norm : 1 or 2, default=2

    Returns
    -------
    ndarray of shape (n_rows, n_columns)
        Of norm at most ``radius``.
    """
    entered = rows - origin
    if moved:
        anchors, shifts = moved
        entered += shifts[nearest_center(entered, anchors)]
    return clip_rows(entered, radius, norm=norm)
