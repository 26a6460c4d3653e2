"""Rows as integers in a public frame: the only form in which an answer by row sees them.

k-means does not care where the origin is, but noise does: it is calibrated to the longest row that is allowed. So rows
are first moved by a public point, such as the mean of the server's rows, and then clipped to a ball around it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact.constant import made_once
from flower_fedclust.exact.exponents import reach_exponent
from flower_fedclust.exact.grid import (
    BITS,
    ball_in_units,
    from_units,
    points_onto_grid,
    rows_onto_grid,
    truncated_to_ball,
    unit_exponent,
)
from flower_fedclust.exact.kernel_sums import gaussian_kernel
from flower_fedclust.exact.lemmas import proven
from flower_fedclust.exact.sums import nearest_point, project_rows

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]


@made_once
def _reach_from_zero(points: Floats) -> int:
    return reach_exponent(points, np.zeros(points.shape[1]))


@dataclass(frozen=True)
class Rows:
    """A batch of rows in the coordinates of a frame, as integers whose norm is at most its radius.

    Whoever makes rows has them clipped to their radius, and nobody changes the integers of rows that were made: terms
    rest on it. Every method computes each row of its result from that row and its arguments alone.
    """

    integers: Floats  #: Float64 that holds integers, of shape (n_rows, n_columns).
    exponent: int  #: The exponent of the unit.
    radius: float  #: The largest norm of a row, in the units of the data.
    norm: int = 2  #: The norm of the ball: 1 for the L1 norm, 2 for the Euclidean norm.

    def __post_init__(self) -> None:
        if self.exponent < unit_exponent(self.radius):
            raise ValueError(f"rows have a radius of more than 2^{BITS} units; take unit_exponent(radius).")
        given = np.asarray(self.integers, dtype=np.float64)
        within = ball_in_units(float(self.radius), self.norm, self.exponent)
        clipped = truncated_to_ball(given, np.zeros(given.shape[1]), 0, *within, self.norm)
        clipped.flags.writeable = False
        object.__setattr__(self, "integers", clipped)

    def __len__(self) -> int:
        return len(self.integers)

    def __getitem__(self, kept: NDArray[np.bool_]) -> Self:
        """Return some of the rows, by a mask: indices could take a row more than once."""
        if getattr(kept, "dtype", None) != np.bool_ or kept.shape != (len(self),):
            raise TypeError("rows are chosen by a mask: a NumPy array of True or False for each row.")
        return self._with(self.integers[kept])

    def _with(self, integers: Floats, exponent: int | None = None, radius: float | None = None) -> Self:
        """Return rows that are clipped already, to this radius or another."""
        exponent, radius = self.exponent if exponent is None else exponent, self.radius if radius is None else radius
        return clipped_already(type(self), integers, exponent, radius, self.norm)

    @property
    def values(self) -> Floats:
        """The rows in the units of the data."""
        return from_units(self.integers, self.exponent)

    def points(self, points: Floats) -> Floats:
        """Return public points of the frame as integers in the unit of the rows."""
        return points_onto_grid(points, self.exponent)

    def nearest(self, points: Floats) -> Labels:
        """Return the index of the public point that is nearest to each row; ties go to the lowest index.

        Beside points outside of the ball rows are put onto a grid that reaches as far as the points do.
        """
        exponent = max(self.exponent, _reach_from_zero(points) - BITS)
        if exponent == self.exponent:
            return nearest_point(self.integers, self.points(points))
        coarse = np.trunc(np.ldexp(self.integers, self.exponent - exponent))
        return nearest_point(coarse, points_onto_grid(points, exponent))

    def kernel(self, points: Floats, gamma: float) -> Floats:
        """Return ``exp(-gamma ||x - y||^2)`` for each row x and public point y, of shape (n_rows, n_points)."""
        return gaussian_kernel(self.integers, self.points(points), self.exponent, gamma)

    def projected(self, directions: Floats) -> Self:
        """Return the rows in public directions, clipped to the radius again.

        Parameters
        ----------
        directions : ndarray of shape (n_columns, n_directions)
            From :func:`~flower_fedclust.exact.sums.directions_onto_grid`. Without an entry: all columns.
        """
        if directions.size == 0:
            return self
        return self._with(project_rows(self.integers, directions, self.radius, norm=self.norm))

    def offsets(self, centers: Floats, labels: Labels, bound: float) -> Rows:
        """Return each row less its center, clipped to a Euclidean norm, in a unit that suits the bound."""
        if np.shape(labels) != (len(self),):
            raise ValueError(f"there are labels of the shape {np.shape(labels)} for {len(self)} rows; give each one.")
        # A difference of integers is exact.
        differences = from_units(self.integers - self.points(centers)[labels], self.exponent)
        integers, exponent = rows_onto_grid(differences, np.zeros(differences.shape[1]), bound)
        return clipped_already(Rows, integers, exponent, bound)

    @proven("2b")
    def with_constant(self, value: float) -> Self:
        """Return the rows with one more column, which holds the same value in every row: so sums count rows, too.

        The radius becomes the norm of the old radius and the value, and the unit suits it.
        """
        radius = self.radius + abs(value) if self.norm == 1 else math.hypot(self.radius, value) * (1.0 + 2.0**-50)
        exponent = max(self.exponent, unit_exponent(radius))
        integers = np.empty((len(self), self.integers.shape[1] + 1))
        coarse = integers[:, :-1]
        np.ldexp(self.integers, self.exponent - exponent, out=coarse)
        np.trunc(coarse, out=coarse)
        integers[:, -1] = math.trunc(math.ldexp(value, -exponent))
        return self._with(integers, exponent, radius)

    def clipped(self, radius: float) -> Self:
        """Return the rows clipped to a smaller radius, in the same unit."""
        # raises an error for a radius that is not positive: a negative bound would make a sum of bounds smaller
        unit_exponent(radius)
        radius = min(radius, self.radius)
        within = ball_in_units(radius, self.norm, self.exponent)
        zeros = np.zeros(self.integers.shape[1])
        return self._with(truncated_to_ball(self.integers, zeros, 0, *within, self.norm), radius=radius)


R = TypeVar("R", bound=Rows)


def clipped_already(kind: type[R], integers: Floats, exponent: int, radius: float, norm: int = 2) -> R:
    """Return rows whose integers the caller has clipped to the radius; for modules of this package only."""
    rows = object.__new__(kind)
    integers.flags.writeable = False
    rows.__dict__.update({"integers": integers, "exponent": exponent, "radius": radius, "norm": norm})
    return rows


@dataclass(frozen=True)
class Frame:
    """A public origin and a public radius.

    Parameters
    ----------
    origin : ndarray of shape (n_columns,)
    radius : float
        Rows farther from the origin are scaled down to it, by the client.
    norm : 1 or 2, default=2
        Whether the ball is one of the L1 norm, for Laplace noise, or of the Euclidean norm.
    """

    origin: Floats
    radius: float
    norm: int = 2

    @classmethod
    def around(cls, server_rows: Floats, *, centered: bool) -> Self:
        """Return the frame of the server rows: their mean (or zero) as the origin, and their radius about it."""
        origin = server_rows.mean(axis=0) if centered else np.zeros(server_rows.shape[1])
        return cls(origin, float(np.linalg.norm(server_rows - origin, axis=1).max()))

    @property
    def arrays(self) -> list[NDArray[Any]]:
        """The frame as arrays of a message; :meth:`of_arrays` reads them."""
        return [self.origin, np.array([self.radius, self.norm])]

    @classmethod
    def of_arrays(cls, origin: Floats, ball: Floats) -> Self:
        """Undo :attr:`arrays`."""
        return cls(origin, float(ball[0]), int(ball[1]))

    @property
    def exponent(self) -> int:
        """The exponent of the unit of rows in the frame."""
        return unit_exponent(self.radius)

    def rows(self, values: Floats) -> Rows:
        """Return rows of the data in the frame: translated, clipped and truncated."""
        integers, exponent = rows_onto_grid(values, self.origin, self.radius, norm=self.norm)
        return clipped_already(Rows, integers, exponent, self.radius, self.norm)

    def enter(self, rows: Floats) -> Floats:
        """Return public rows in the frame's coordinates, as a client with these rows would have them."""
        return self.rows(rows).values

    def leave(self, centers: Floats) -> Floats:
        """Return centers in the coordinates of the data."""
        return centers + self.origin
