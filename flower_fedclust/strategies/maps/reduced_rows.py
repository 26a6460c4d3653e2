"""Rows moved by a public point, clipped and projected, which the client keeps: noise on few columns hides less."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.exact import (
    directions_onto_grid,
    triangle_to_symmetric,
)
from flower_fedclust.numerics.grid import GridArray
from flower_fedclust.numerics.vectors import top_eigenvectors
from flower_fedclust.privacy.releases import Release
from flower_fedclust.protocol import Sent, Sum, answers
from flower_fedclust.protocol.rounds import Array, Round
from flower_fedclust.steps.frame import Frame, FrameClient, products_moved

Floats = NDArray[np.float64]

#: What a round names to work on these rows.
REDUCED_ROWS = "reduced rows"


def reduce_rows(frame: Frame, n_directions: int, release: Release | None) -> Generator[Round, list[Array], Floats]:
    """Find the directions in which the rows are spread most, and have the clients keep their rows in these.

    Parameters
    ----------
    frame : Frame
        To whose radius rows are clipped: one row moves the second moment by the radius squared.
    n_directions : int
        At most as many as there are columns; with as many, the columns are kept and nothing is released.
    release : Release or None
        Of the upper triangle of the second moment.

    Returns
    -------
    ndarray of shape (n_columns, n_directions)
        Orthonormal columns but for rounding, on the grid on which the clients use them.
    """
    n_columns = len(frame.origin)
    directions = np.eye(n_columns)
    if n_directions < n_columns:
        (products,) = yield Sum(ReducedRowsClient.frame_products.asked(*frame.arrays), releases=[release])
        directions = directions_onto_grid(top_eigenvectors(triangle_to_symmetric(products), n_directions))
    yield Sum(ReducedRowsClient.reduce_rows.asked(directions, *frame.arrays))
    return directions


class ReducedRowsClient(FrameClient):
    """The answers of a client that works on reduced rows."""

    @answers(
        "sum of the outer products of the rows (upper triangle)", moved=lambda _, *frame: (products_moved(*frame),)
    )
    def frame_products(self, *frame: Floats) -> GridArray:
        """Return X' X of the rows in the frame, as a vector."""
        return self.enter(*frame).outer_products()

    @answers(Sent("the rows in few columns", "rows", per="row", kept_as=REDUCED_ROWS, of_one_row=True))
    def reduce_rows(self, directions: Floats, *frame: Floats) -> GridArray:
        """Return the rows, clipped and projected, to be kept; on the grid of a frame of this radius about 0."""
        rows = self.enter(*frame).projected(directions)
        return GridArray(rows.integers, rows.exponent)
