"""Rows moved by a public point, clipped and projected: noise on few columns hides less of them."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import Sum, Total
from flower_fedclust.engine.by_row import by_row, view
from flower_fedclust.engine.rounds import Round
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.sums import directions_onto_grid, triangle_to_symmetric
from flower_fedclust.exact.terms import Term, products
from flower_fedclust.numerics.vectors import top_eigenvectors
from flower_fedclust.strategies.common.frame import FrameClient

Floats = NDArray[np.float64]


def widest_directions(frame: Frame, n_directions: int, *parts: str) -> Generator[Round, Total, Floats]:
    """Find the directions in which the rows are spread most, in one round.

    Parameters
    ----------
    frame : Frame
        To whose radius rows are clipped.
    n_directions : int
        At most as many as there are columns; with as many, the columns are kept and nothing is asked.
    *parts : str
        The part of the budget that pays for the second moment.

    Returns
    -------
    ndarray of shape (n_columns, n_directions)
        Orthonormal columns but for rounding, on the grid on which the clients use them.
    """
    n_columns = len(frame.origin)
    if n_directions >= n_columns:
        return np.eye(n_columns)
    (moment,) = yield Sum(ReducedRowsClient.frame_products.asked(frame=frame), parts=parts)
    return directions_onto_grid(top_eigenvectors(triangle_to_symmetric(moment), n_directions))


class ReducedRowsClient(FrameClient):
    """The answers of a client that works on reduced rows."""

    @by_row(directions="sum of the outer products of the rows (upper triangle)")
    def frame_products(rows: Rows) -> Term:
        """Return X' X of the rows in the frame, as a vector."""
        return products(rows)

    @view
    def reduced(rows: Rows, directions: Floats) -> Rows:
        """Return the rows in a few public directions."""
        return rows.projected(directions)
