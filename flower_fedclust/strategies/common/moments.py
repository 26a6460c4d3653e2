"""Moments of the columns over all clients, from sums: number of rows, means, standard deviations, mean distance."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine.by_row import by_row
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Round, Sent, Sum, Total, answers
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.sums import mean_distance, square_sums
from flower_fedclust.exact.terms import Term, count, squares, total
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.strategies.common.frame import FRAME_ROUNDS, FrameClient, frame_of_rows

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """The number, the means and the deviations of all clients' rows."""

    n_rows: float  #: Approximate if there is noise.
    mean: Floats  #: The mean of each column, of shape (n_columns,).
    deviation: Floats  #: Standard deviations, of shape (n_columns,).
    #: Without noise: the mean distance between two rows of a client, averaged over the clients (FedSC, equation 42 with
    #: c = 1). With noise: the root mean square distance between two of all rows, computed from the deviations.
    distance: float


#: The number of rounds of :func:`column_moments`.
MOMENT_ROUNDS = FRAME_ROUNDS + 1

#: The parts of a budget that pay for :func:`noisy_column_moments`.
MOMENTS = ("column_sums", "column_squares", "row_count")


def column_moments(*, rows: str = "") -> Generator[Round, Total, tuple[Moments, Frame]]:
    """Find the moments of the columns in four rounds without noise; also return the frame from the first three.

    Squares are measured from the mean that the first rounds found, so that columns far from 0 lose
    no digits.
    """
    frame, _ = yield from frame_of_rows(rows=rows)
    # A client may have dropped out since the frame was found, so rows are counted again.
    reply = yield Sum(MomentsClient.column_spread.asked(*frame.arrays), rows=rows)
    sums, of_squares, distances, n_clients, n_rows = reply
    offset = sums / n_rows
    variance = np.maximum(of_squares / n_rows - offset**2, 0.0)
    # A client with a single row has no distance, and is left out of the mean.
    distance = float(distances / max(n_clients, 1.0))
    return Moments(float(n_rows), frame.origin + offset, np.sqrt(variance), distance), frame


def moment_parts(fraction: float, *, replaced: bool = False) -> dict[str, Part]:
    """Return the parts of a budget that pay for :func:`noisy_column_moments`; ``fraction`` is their total.

    If the guarantee is for replaced rows, the number of rows is public and takes no noise.
    """
    names = MOMENTS[:2] if replaced else MOMENTS
    return {name: Part(MomentsClient.clipped_column_sums, fraction / len(names)) for name in names}


def noisy_column_moments(
    max_norm: float, n_columns: int, *, replaced: bool = False
) -> Generator[Round, Total, Moments]:
    """Return the moments of rows clipped to a norm, in one round with noise."""
    frame = Frame(np.zeros(n_columns), max_norm)
    parts = (*MOMENTS[:2], None) if replaced else MOMENTS
    sums, of_squares, noisy_count = yield Sum(
        MomentsClient.clipped_column_sums.asked(frame=frame), parts=parts
    )
    n_rows = max(float(noisy_count), 1.0)
    # The mean of clipped rows lies in this ball.
    mean = clip_rows((sums / n_rows)[None, :], max_norm)[0]
    variance = np.clip(of_squares / n_rows - mean**2, 0.0, max_norm**2)
    if not variance.any():
        # Noise can hide the spread entirely; then assume rows all over the ball.
        return Moments(n_rows, mean, np.full(len(mean), max_norm / np.sqrt(len(mean))), max_norm)
    return Moments(n_rows, mean, np.sqrt(variance), float(np.sqrt(2.0 * variance.sum())))


def checked_bandwidth(bandwidth: float | None, moments: Moments) -> float:
    """Return the given bandwidth, or the mean distance; raise a DataError if it would be 0."""
    # The mean of equal numbers can differ from these numbers in the last digit.
    if moments.distance == 0 and np.all(moments.deviation <= 1e-12 * np.abs(moments.mean)):
        raise DataError(
            "all rows are equal, so there is nothing to cluster by; give rows that differ."
        )
    if bandwidth is not None:
        return bandwidth
    if moments.distance > 0:
        return moments.distance
    raise DataError(
        "the bandwidth r would be 0, because no client has two different rows; give bandwidth a positive value, in the "
        "units of the rows."
    )


class MomentsClient(FrameClient):
    """A client's answers about the moments of its columns."""

    @answers(
        Sent("sum of the rows, less the mean", has_columns=True),
        Sent(
            "sum of the squared distances from the mean, by column",
            has_columns=True,
            is_positive=True,
        ),
        Sent("mean distance between two of the client's rows", is_positive=True),
        Sent("whether the client has two rows", counts="some rows"),
        Sent("number of rows", counts_rows=True),
    )
    def column_spread(
        self, *frame: Floats
    ) -> tuple[GridArray, GridArray, GridArray, GridArray, GridArray]:
        """Return sum and squares about the mean, mean distance (FedSC, equation 41), whether it exists, and n_rows."""
        rows = self.enter(*frame)
        sums, n_rows = rows.total()
        distance, unit = mean_distance(rows.integers, rows.exponent)
        return (
            sums,
            GridArray(*square_sums(rows.integers, rows.exponent)),
            GridArray(np.array(distance), unit),
            GridArray(np.array(len(rows) > 1)),
            n_rows,
        )

    @by_row(
        column_sums=Sent("sum of the clipped rows", has_columns=True),
        column_squares=Sent("sum of the squares of the clipped rows, by column", has_columns=True),
        row_count=Sent("number of rows", counts_rows=True),
    )
    def clipped_column_sums(rows: Rows) -> tuple[Term, Term, Term]:
        """Return sum, sum of squares and number of the rows, clipped to the frame's radius."""
        return total(rows), squares(rows), count(rows)
