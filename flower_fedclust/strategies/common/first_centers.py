"""First centers for strategies that move centers: given, found by k-FED, or drawn without a look at the rows."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.data.frames import is_table
from flower_fedclust.engine import ProtocolStrategy, parameter
from flower_fedclust.engine.rounds import Reply, Round
from flower_fedclust.exact.grid import unit_exponent
from flower_fedclust.exact.rows import Frame
from flower_fedclust.numerics.checks import checked_rows
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.strategies.common.local_centers import merge_local_centers

Floats = NDArray[np.float64]


#: For the report of a run with an epsilon whose first centers were given.
GIVEN_CENTERS_NOTE = "The first centers were given and count as public: the rows they may come from are not covered."


def check_given_centers(init: ArrayLike, n_clusters: int) -> None:
    """Raise a ValueError unless these are as many centers as there are clusters."""
    centers: Any = init if is_table(init) else checked_rows(init, owner="init")
    if len(centers) != n_clusters:
        raise ValueError(f"init has {len(centers)} centers and n_clusters is {n_clusters}.")


@dataclass(frozen=True)
class FirstCenters:
    """Where centers begin."""

    #: The centers, of shape (n_clusters, n_columns). By default they are found by k-FED, or drawn from a ball where a
    #: radius is given.
    init: ArrayLike | None
    radius: float | None = None  #: With noise: of the ball in which the rows lie, and from which centers are drawn.

    @property
    def by_k_fed(self) -> bool:
        """Whether it takes the round of k-FED."""
        return self.init is None and self.radius is None

    @property
    def n_columns(self) -> int | None:
        """The width of the centers, where they were given."""
        return None if self.init is None else int(np.asarray(self.init).shape[1])

    def privacy_notes(self) -> list[str]:
        """Return what is assumed of centers that were given."""
        return [] if self.radius is None or self.init is None else [GIVEN_CENTERS_NOTE]

    def find(self, n_clusters: int, n_columns: int, rng: np.random.Generator) -> Generator[Round, list[Reply], Floats]:
        """Return the centers, in at most one round.

        Parameters
        ----------
        n_clusters, n_columns : int
        rng : numpy.random.Generator

        Returns
        -------
        ndarray of shape (n_clusters, n_columns)
            With a radius, in its ball.
        """
        if self.init is not None:
            centers: Floats = checked_rows(self.init, owner="init")
        elif self.radius is None:
            centers = yield from merge_local_centers(n_clusters, n_clusters, rng)
        else:
            centers = points_in_ball(n_clusters, n_columns, self.radius, rng)
        return clip_rows(centers, math.inf if self.radius is None else self.radius)


class FirstCentersStrategy(ProtocolStrategy):
    """Base of strategies that move centers: those that are given, or else others that they find."""

    init: ArrayLike | None = parameter(None)

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first parameter which cannot be right."""
        super().check_parameters()
        if self.init is not None:
            check_given_centers(self.init, self.n_clusters)

    @property
    def _start(self) -> FirstCenters:
        """Where centers begin; of a strategy that clips rows, in the ball to which it clips them."""
        return FirstCenters(self.init, getattr(self, "max_norm", None))

    @property
    def expected_columns(self) -> int | None:
        """The width of the first centers, where they were given."""
        return self._start.n_columns

    def privacy_notes(self) -> list[str]:
        """Add what is assumed of centers that were given."""
        return [*super().privacy_notes(), *self._start.privacy_notes()]


def points_in_ball(n_points: int, n_columns: int, radius: float, rng: np.random.Generator) -> Floats:
    """Draw points uniformly from a ball around the origin."""
    directions = rng.standard_normal((n_points, n_columns))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    points: Floats = radius * rng.uniform(size=(n_points, 1)) ** (1.0 / n_columns) * directions
    return points


def frame_with_centers(frame: Frame, centers: Floats, *, times_the_reach: float) -> tuple[Frame, Floats]:
    """Return a frame that has room for first centers as well as for rows, and the centers in it.

    The wider the ball, the coarser its grid. So it is only widened for centers beyond it, and not without limit: to
    some times the reach of the rows, or of the nearest center where this is farther. Centers beyond that are moved
    towards the origin.

    Parameters
    ----------
    frame : Frame
        In which no row is clipped.
    centers : ndarray of shape (n_clusters, n_columns)
        In the coordinates of the data.
    times_the_reach : float

    Returns
    -------
    frame : Frame
    centers : ndarray of shape (n_clusters, n_columns)
        In the coordinates of the frame.
    """
    # Halves, as a difference may be too large a number; and a power of two as the unit, which rounds nothing.
    halves = 0.5 * centers - 0.5 * frame.origin
    power = math.frexp(float(np.abs(halves).max()))[1]
    scaled = np.ldexp(halves, -power)
    distances, reach = np.linalg.norm(scaled, axis=1), _times_power(frame.radius, -1 - power)
    wanted = min(float(distances.max()), times_the_reach * max(reach, float(distances.min())))
    if wanted > reach:
        frame = replace(frame, radius=math.ldexp(1.0, min(unit_exponent(wanted, bits=0) + 1 + power, 1023)))
    # So far inside that no rounding takes one out again.
    within = clip_rows(scaled, _times_power(frame.radius, -1 - power) * (1.0 - 2.0**-40))
    return frame, np.ldexp(within, 1 + power)


def _times_power(radius: float, power: int) -> float:
    """Return ``radius * 2**power``, infinite where it is too large."""
    with np.errstate(over="ignore"):
        return float(np.ldexp(radius, power))
