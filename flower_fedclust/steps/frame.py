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
        return [self.origin, np.array([self.radius, self.norm]), *moved]

    def enter(self, rows: Floats) -> Floats:
        """Return public rows in the frame's coordinates."""
        return enter(rows, *self.arrays)

    def leave(self, centers: Floats) -> Floats:
        """Return centers in the coordinates of the data."""
        if self.anchors is not None and self.shifts is not None:
            centers = centers - self.shifts[nearest_center(centers, self.anchors + self.shifts)]
        return centers + self.origin


def enter(rows: Floats, origin: Floats, ball: Floats, *moved: Floats) -> Floats:
    """Return rows in the coordinates of a frame: translated, moved by region if need be, and clipped.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_columns)
    origin : ndarray of shape (n_columns,)
    ball : ndarray of shape (2,)
        The radius, and 1 or 2 for the norm in which it is measured.
    *moved : two ndarray of shape (n_anchors, n_columns), or none
        Anchors and shifts.

    Returns
    -------
    ndarray of shape (n_rows, n_columns)
        Of norm at most the radius.
    """
    entered = rows - origin
    if moved:
        anchors, shifts = moved
        entered += shifts[nearest_center(entered, anchors)]
    return clip_rows(entered, float(ball[0]), norm=int(ball[1]))
