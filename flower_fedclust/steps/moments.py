"""What a server can know of the columns from sums: how many rows, their means, their spread, how far apart they are."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.exact import mean_distance, square_sums
from flower_fedclust.numerics.grid import GridArray
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.accounting import Share
from flower_fedclust.privacy.releases import Relation, Release
from flower_fedclust.protocol import PrivateStrategy
from flower_fedclust.protocol.rounds import ONE_COUNT, Moved, Round, Sent, Sum, Total, answers
from flower_fedclust.steps.frame import FRAME_ROUNDS, Frame, FrameClient, ball_moved, frame_of_rows

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """The columns of all rows together."""

    n_rows: float  #: Of all clients; with noise, about.
    mean: Floats  #: Of shape (n_columns,).
    deviation: Floats  #: Standard deviations, of shape (n_columns,).
    #: The mean over clients of the mean distance between a client's rows (FedSC, equation 42, c = 1); with noise, the
    #: root mean square distance between all rows, which the deviations give.
    distance: float


#: How many rounds :func:`column_moments` takes.
MOMENT_ROUNDS = FRAME_ROUNDS + 1


def column_moments(*, rows: str = "") -> Generator[Round, Total, tuple[Moments, Frame]]:
    """Return the moments, and the frame in which they were taken, in four rounds, without noise.

    The squares are taken about the mean, which the first rounds find, so that columns far from 0 lose no digits.

    Parameters
    ----------
    rows : str, default=""
        Which rows of the clients; see :class:`~flower_fedclust.protocol.rounds.Round`.
    """
    frame, _ = yield from frame_of_rows(rows=rows)
    # A client may have dropped out since, so that the rows are counted again.
    total, squares, distances, n_clients, count = yield Sum(MomentsClient.column_spread.asked(*frame.arrays), rows=rows)
    offset = total / count
    variance = np.maximum(squares / count - offset**2, 0.0)
    # A client with a single row has no distance to speak of, and is left out of the mean.
    distance = float(distances / max(n_clients, 1.0))
    return Moments(float(count), frame.origin + offset, np.sqrt(variance), distance), frame


def moment_shares(fraction: float, relation: Relation) -> dict[str, Share]:
    """Return the shares of a budget that pay for :func:`noisy_column_moments`.

    Parameters
    ----------
    fraction : float
        For all of them together.
    relation : "add-or-remove" or "replace"
        Where rows are replaced, their number is the same, and takes no noise.
    """
    names = ["column_sums", "column_squares"] + (["row_count"] if relation == "add-or-remove" else [])
    return {name: Share("gaussian", fraction / len(names), relation=relation) for name in names}


def moment_releases(strategy: PrivateStrategy, max_norm: float) -> list[Release | None]:
    """Return the releases of :func:`noisy_column_moments`, paid for by the shares of :func:`moment_shares`.

    Parameters
    ----------
    strategy : PrivateStrategy
        Whose budget it is.
    max_norm : float
        To which clients clip their rows.
    """
    shares = strategy.frozen_plan.shares
    replaced = shares["column_sums"].relation == "replace"
    # Two vectors of squares have no negative entries, and so are at most sqrt(2) as far apart as they are long.
    of_sums, of_squares = (2.0, float(np.sqrt(2.0))) if replaced else (1.0, 1.0)
    clipped = "the client clips every row" + (", and one is replaced" if replaced else "")
    return [
        strategy.release("column_sums", of_sums * max_norm, clipped),
        # ||x o x||_2 <= ||x||_2^2
        strategy.release("column_squares", of_squares * max_norm**2, clipped),
        strategy.release("row_count", 1.0, "a row counts once") if "row_count" in shares else None,
    ]


def noisy_column_moments(
    max_norm: float, n_columns: int, releases: Sequence[Release | None]
) -> Generator[Round, Total, Moments]:
    """Return the moments of rows clipped to a norm, in one round, with noise.

    Parameters
    ----------
    max_norm : float
    n_columns : int
    releases : sequence of three (Release or None)
        From :func:`moment_releases`.
    """
    frame = Frame(np.zeros(n_columns), max_norm)
    total, squares, noisy_count = yield Sum(MomentsClient.clipped_column_sums.asked(*frame.arrays), releases=releases)
    count = max(float(noisy_count), 1.0)
    mean = clip_rows((total / count)[None, :], max_norm)[0]  # where the mean of clipped rows must lie
    variance = np.clip(squares / count - mean**2, 0.0, max_norm**2)
    if not variance.any():
        # Noise can hide all of the spread; rows anywhere in the ball are then the least wrong.
        return Moments(count, mean, np.full(len(mean), max_norm / np.sqrt(len(mean))), max_norm)
    return Moments(count, mean, np.sqrt(variance), float(np.sqrt(2.0 * variance.sum())))


def checked_bandwidth(given: float | None, moments: Moments) -> float:
    """Return the bandwidth that was given, or the mean distance.

    Raises
    ------
    DataError
        If all rows are equal, or if none was given and the distance is 0.
    """
    # Means of equal numbers are not always these to the last digit.
    if moments.distance == 0 and np.all(moments.deviation <= 1e-12 * np.abs(moments.mean)):
        raise DataError("all rows are equal, so that there is nothing to cluster by; give rows that differ.")
    if given is not None:
        return given
    if moments.distance > 0:
        return moments.distance
    raise DataError(
        "the bandwidth r comes out as 0, because no client has two rows that differ; give bandwidth a positive value, "
        "in the units of the rows."
    )


def _squares_moved(*frame: Floats) -> Moved:
    """Return how far one row moves the sum of squares: squares have no negative entries, so that they are not opposite.

    ||x o x||_2 <= ||x||_2^2, and ||x o x||_1 = ||x||_2^2.
    """
    square = float(frame[1][0]) ** 2
    return Moved(square, square, apart=math.sqrt(2.0) * square)


class MomentsClient(FrameClient):
    """The answers of a client about its columns."""

    @answers(
        Sent("sum of the rows, less the mean", has_columns=True),
        Sent("sum of the squared distances from the mean, by column", has_columns=True, is_positive=True),
        Sent("mean distance between two of the client's rows", is_positive=True),
        Sent("whether the client has two rows", counts="some rows"),
        Sent("number of rows", counts_rows=True),
    )
    def column_spread(self, *frame: Floats) -> tuple[GridArray, GridArray, GridArray, GridArray, GridArray]:
        """Return sum and squares about the mean, the mean distance (FedSC, equation 41), 1 or 0, and how many rows."""
        rows = self.enter(*frame)
        total, count = rows.total()
        distance, unit = mean_distance(rows.integers, rows.exponent)
        return (
            total,
            GridArray(*square_sums(rows.integers, rows.exponent)),
            GridArray(np.array(distance), unit),
            GridArray(np.array(len(rows) > 1)),
            count,
        )

    @answers(
        Sent("sum of the clipped rows", has_columns=True),
        Sent("sum of the squares of the clipped rows, by column", has_columns=True),
        Sent("number of rows", counts_rows=True),
        moved=lambda _, *frame: (ball_moved(*frame), _squares_moved(*frame), ONE_COUNT),
    )
    def clipped_column_sums(self, *frame: Floats) -> tuple[GridArray, GridArray, GridArray]:
        """Return sum, sum of squares and number of the rows, clipped to the frame's radius."""
        rows = self.enter(*frame)
        total, count = rows.total()
        return total, GridArray(*square_sums(rows.integers, rows.exponent)), count
