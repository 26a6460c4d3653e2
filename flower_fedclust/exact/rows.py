"""Rows as integers in a frame (a public ball): the only form in which sums over a client's rows see them.

For k-means the origin does not matter, but for noise it does: noise is calibrated to the longest row that is allowed.
So rows are first moved by a public point, such as the mean of the server's rows, and then clipped to a ball around it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact.constant import made_once
from flower_fedclust.exact.device import Held, device_of
from flower_fedclust.exact.exponents import reach_exponent
from flower_fedclust.exact.grid import (
    BITS,
    ball_in_units,
    from_units,
    integer_norms,
    points_onto_grid,
    rows_onto_grid,
    truncated_to_ball,
    unit_exponent,
)
from flower_fedclust.exact.kernel_sums import gaussian_kernel
from flower_fedclust.exact.lemmas import proven
from flower_fedclust.exact.subjects import divisor, parted
from flower_fedclust.exact.sums import (
    cluster_sums,
    nearest_in_each,
    nearest_point,
    project_rows,
    sums_at,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Labels = NDArray[np.intp]


class Nearest(NamedTuple):
    """The last result of :meth:`Rows.nearest`: the points, and which of them is nearest to each row."""

    points: Floats  #: The points, as integers on the grid of the rows.
    labels: Labels
    least: Held  #: ``||c||^2 - 2 x.c`` of each row x and its nearest point c, on the device of the rows.


_reach_exponent = made_once(reach_exponent)


@dataclass(frozen=True)
class Rows:
    """A batch of rows in the coordinates of a frame, as integers whose norm is at most the frame's radius.

    Rows are clipped to their radius when they are made, and nobody changes their integers afterwards: the bounds of
    terms (:mod:`~flower_fedclust.exact.terms`) depend on this. Every method computes each row of its result from that
    row and the method's arguments alone.
    """

    held: Held  #: Integers in float64, of shape (n_rows, n_columns), as an array of NumPy or on another device.
    exponent: int  #: The exponent of the unit.
    radius: float  #: The largest norm of a row, in the units of the data.
    norm: int = 2  #: The norm of the ball: 1 for the L1 norm, 2 for the Euclidean norm.

    def __post_init__(self) -> None:
        if self.exponent < unit_exponent(self.radius):
            raise ValueError(
                f"rows have a radius of more than 2^{BITS} units; take unit_exponent(radius)."
            )
        given = np.asarray(self.held, dtype=np.float64)
        within = ball_in_units(float(self.radius), self.norm, self.exponent)
        clipped = truncated_to_ball(given, None, 0, *within, self.norm)
        clipped.flags.writeable = False
        object.__setattr__(self, "held", clipped)

    def __len__(self) -> int:
        return len(self.held)

    @property
    def integers(self) -> Floats:
        """The integers as an array of NumPy: a copy, if the rows lie on another device."""
        return device_of(self.held).host(self.held)

    @property
    def n_columns(self) -> int:
        """The number of columns."""
        return int(self.held.shape[1])

    @cached_property
    def square_norms(self) -> Floats:
        """The squares of the rows' Euclidean norms, in squared units, of shape (n_rows,)."""
        return device_of(self.held).host(self._square_norms)

    @cached_property
    def _square_norms(self) -> Held:
        """The same as :attr:`square_norms`, on the device of the rows."""
        return integer_norms(self.held, 2)

    def __getitem__(self, kept: NDArray[np.bool_]) -> Self:
        """Return the rows that a mask selects. Indices are refused, because they could select a row more than once."""
        if getattr(kept, "dtype", None) != np.bool_ or kept.shape != (len(self),):
            raise TypeError(
                "rows are chosen by a mask: a NumPy array of True or False for each row."
            )
        return self._with(self.held[device_of(self.held).index(kept)])

    def _with(self, held: Held, exponent: int | None = None, radius: float | None = None) -> Self:
        """Return rows made of integers that the caller has clipped; exponent and radius stay unless they are given."""
        exponent = self.exponent if exponent is None else exponent
        radius = self.radius if radius is None else radius
        return clipped_already(type(self), held, exponent, radius, self.norm)

    @property
    def values(self) -> Floats:
        """The rows in the units of the data."""
        return from_units(self.integers, self.exponent)

    def points(self, points: Floats) -> Floats:
        """Return public points, given in the coordinates of the frame, as integers in the unit of the rows."""
        return points_onto_grid(points, self.exponent)

    def nearest(self, points: Floats) -> Labels:
        """Return the index of the public point that is nearest to each row; ties go to the lowest index.

        If a point lies outside the rows' ball, rows and points are compared on a coarser grid that reaches all points.
        """
        exponent = max(self.exponent, _reach_exponent(points, 0.0) - BITS)
        if exponent > self.exponent:
            coarse = self.held * math.ldexp(1.0, self.exponent - exponent)
            device_of(self.held).xp.trunc(coarse, out=coarse)
            return nearest_point(coarse, points_onto_grid(points, exponent))
        least = device_of(self.held).empty((len(self),))
        on_grid = points_onto_grid(points, exponent)
        labels = nearest_point(self.held, on_grid, least)
        labels.flags.writeable = False
        vars(self)["nearest_points"] = Nearest(on_grid, labels, least)
        return labels

    def nearest_in_each(self, runs: Floats) -> Labels:
        """Return the nearest public point of each of several runs, of shape (n_runs, n_rows).

        ``runs`` has the shape (n_runs, n_points, n_columns). The labels are the ones of :meth:`nearest`.
        """
        points = runs.reshape(-1, self.n_columns)
        is_beyond = _reach_exponent(points, 0.0) - BITS > self.exponent
        if is_beyond or len(runs) == 1:
            return np.stack([self.nearest(points) for points in runs])
        return nearest_in_each(self.held, self.points(points), len(runs))

    def kernel(self, points: Floats, gamma: float) -> Floats:
        """Return ``exp(-gamma ||x - y||^2)`` for each row x and public point y, of shape (n_rows, n_points)."""
        return gaussian_kernel(self.integers, self.points(points), self.exponent, gamma)

    def projected(self, directions: Floats) -> Self:
        """Return the rows projected to public directions, and clipped to the radius again.

        Parameters
        ----------
        directions : ndarray of shape (n_columns, n_directions)
            From :func:`~flower_fedclust.exact.sums.directions_onto_grid`. If it has no entry, rows are not projected.
        """
        if directions.size == 0:
            return self
        return self._with(project_rows(self.held, directions, self.radius, norm=self.norm))

    def offsets(self, centers: Floats, labels: Labels, bound: float) -> Rows:
        """Return each row less its center, clipped to a Euclidean norm, in a unit that suits the bound."""
        if np.shape(labels) != (len(self),):
            raise ValueError(
                f"there are labels of the shape {np.shape(labels)} for {len(self)} rows; give each one."
            )
        points = self.points(centers)
        found: Nearest | None = vars(self).get("nearest_points")
        is_known = (
            found is not None and found.labels is labels and np.array_equal(found.points, points)
        )
        if found is None or not is_known:
            return _one_by_one(self, points, labels, bound, None)
        return OffsetsFromNearest._made_of(self, found, bound, None, unit_exponent(bound), bound)

    def sums_at(self, labels: Labels, n_places: int) -> Integers:
        """Add up the rows, or each row's part of its subject, at each place: integers, (n_places, n_columns)."""
        return sums_at(parted(self.held), labels, n_places)

    @proven("2b")
    def with_constant(self, value: float) -> Rows:
        """Return the rows with one more column, which has the same value in every row, so that sums also count rows.

        The new radius bounds the longer rows: it is the norm of the vector (old radius, value).
        """
        radius = self._radius_with(value)
        exponent = max(self.exponent, unit_exponent(radius))
        device = device_of(self.held)
        wider = device.empty((len(self), self.n_columns + 1))
        coarse = wider[:, :-1]
        coarse[:] = self.held
        if exponent > self.exponent:
            coarse *= math.ldexp(1.0, self.exponent - exponent)
            device.xp.trunc(coarse, out=coarse)
        wider[:, -1] = math.trunc(math.ldexp(value, -exponent))
        return self._with(wider, exponent, radius)

    def _radius_with(self, value: float) -> float:
        """Return the largest norm of a row that has this value as one more column, rounded up."""
        return (
            self.radius + abs(value)
            if self.norm == 1
            else math.hypot(self.radius, value) * (1.0 + 2.0**-50)
        )

    def clipped(self, radius: float) -> Self:
        """Return the rows clipped to a smaller radius, in the same unit."""
        # Raises an error for a radius that is not positive: a negative bound would make a sum of bounds too small.
        unit_exponent(radius)
        radius = min(radius, self.radius)
        within = ball_in_units(radius, self.norm, self.exponent)
        return self._with(truncated_to_ball(self.held, None, 0, *within, self.norm), radius=radius)


R = TypeVar("R", bound=Rows)


def clipped_already(kind: type[R], held: Held, exponent: int, radius: float, norm: int = 2) -> R:
    """Return rows whose integers the caller has clipped to the radius; for modules of this package only."""
    rows = object.__new__(kind)
    if isinstance(held, np.ndarray):  # tensors on another device never leave this package
        held.flags.writeable = False
    rows.__dict__.update({"held": held, "exponent": exponent, "radius": radius, "norm": norm})
    return rows


class OffsetsFromNearest(Rows):
    """The rows' offsets from their nearest points, each clipped to ``bound``; a constant is one more column.

    Adding up offsets does not need each of them: the sum of the offsets from a point is the sum of its rows, less their
    number times the point. The search for the nearest points has already found how long each offset is. Only offsets
    that are too long are computed, clipped and added one by one. Sums of integers are exact, so both ways give the same
    bits.
    """

    rows: Rows
    found: Nearest
    bound: float
    constant: float | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Rows:  # type: ignore[misc]
        """Return plain rows, when an author changes a field with ``dataclasses.replace``."""
        return Rows(*args, **kwargs)

    @classmethod
    def _made_of(
        cls,
        rows: Rows,
        found: Nearest,
        bound: float,
        constant: float | None,
        exponent: int,
        radius: float,
    ) -> OffsetsFromNearest:
        offsets = object.__new__(cls)
        vars(offsets).update({"rows": rows, "found": found, "bound": bound, "constant": constant})
        vars(offsets).update({"exponent": exponent, "radius": radius, "norm": 2})
        return offsets

    @cached_property
    def held(self) -> Held:
        """The integers of the offsets, which are computed one by one when they are first needed."""
        return self._made.held

    @cached_property
    def _made(self) -> Rows:
        """The offsets as plain rows, computed one by one."""
        return _one_by_one(
            self.rows, self.found.points, self.found.labels, self.bound, self.constant
        )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def n_columns(self) -> int:
        """The number of columns."""
        return self.rows.n_columns + (self.constant is not None)

    def _with(self, held: Held, exponent: int | None = None, radius: float | None = None) -> Rows:  # type: ignore[override]
        return self._made._with(held, exponent, radius)

    def with_constant(self, value: float) -> Rows:
        """Return the offsets with one more column."""
        radius = self._radius_with(value)
        exponent = max(self.exponent, unit_exponent(radius))
        if self.constant is not None:
            return self._made.with_constant(value)
        return self._made_of(self.rows, self.found, self.bound, value, exponent, radius)

    @proven("1c")
    def sums_at(self, labels: Labels, n_places: int) -> Integers:
        """Add up the offsets at each place; from the sums of the rows, if the places are the nearest points."""
        rows, found = self.rows, self.found
        if labels is not found.labels or n_places != len(found.points) or divisor() > 1:
            return self._made.sums_at(labels, n_places)
        exponent = unit_exponent(self.bound)
        _, limit = ball_in_units(float(self.bound), 2, exponent)
        squares = (found.least + rows._square_norms) * math.ldexp(
            1.0, min(2 * (rows.exponent - exponent), 900)
        )
        long = ~(squares <= limit)
        coarser = max(self.exponent - rows.exponent, 0)
        sums, counts = _offset_sums(rows, found.points, labels, coarser)
        if long.any():  # offsets that are clipped are added up one by one
            are_long = device_of(long).host(long)
            clipped, own = rows[are_long], labels[are_long]
            more, more_counts = _offset_sums(clipped, found.points, own, coarser)
            sums, counts = sums - more, counts - more_counts
        # Convert the sums to the offsets' unit, and append the sums of the constants.
        sums = np.left_shift(sums, max(rows.exponent - self.exponent, 0))
        if self.constant is not None:
            whole = math.trunc(math.ldexp(self.constant, -self.exponent))
            sums = np.concatenate([sums, (counts * whole)[:, None]], axis=1)
        if long.any():
            made = _one_by_one(clipped, found.points, own, self.bound, self.constant)
            sums += made.sums_at(own, n_places)
        return sums


def _one_by_one(
    rows: Rows, points: Floats, labels: Labels, bound: float, constant: float | None
) -> Rows:
    """Compute each row's clipped offset from its point, with the constant, if there is one, as one more column."""
    device, exponent = device_of(rows.held), unit_exponent(bound)
    differences = rows.held - device.hold(points)[device.index(labels)]  # of integers: exact
    within = ball_in_units(float(bound), 2, exponent)
    clipped = truncated_to_ball(differences, None, exponent - rows.exponent, *within, 2)
    made = clipped_already(Rows, clipped, exponent, bound)
    return made if constant is None else made.with_constant(constant)


def _offset_sums(
    rows: Rows, points: Floats, labels: Labels, coarser: int
) -> tuple[Integers, Integers]:
    """Add up the rows' offsets from their points, not clipped, and count the rows.

    The unit of the offsets is ``2**coarser`` times the unit of the rows; each offset is truncated to it.
    """
    if coarser:
        device = device_of(rows.held)
        offsets = device.hold(points)[device.index(labels)]
        device.xp.subtract(rows.held, offsets, out=offsets)
        offsets *= math.ldexp(1.0, -coarser)
        return cluster_sums(device.xp.trunc(offsets, out=offsets), labels, len(points))
    sums, counts = cluster_sums(rows.held, labels, len(points))
    return sums - counts[:, None] * points.astype(np.int64), counts


@dataclass(frozen=True)
class Frame:
    """A public ball to which rows are moved and clipped, given by its origin and its radius.

    Parameters
    ----------
    origin : ndarray of shape (n_columns,)
    radius : float
        The client scales rows that are farther than this from the origin down to this distance.
    norm : 1 or 2, default=2
        The norm that defines the ball: 1 (L1) for Laplace noise, or 2 (Euclidean).
    """

    origin: Floats
    radius: float
    norm: int = 2

    @classmethod
    def around(cls, server_rows: Floats, *, centered: bool) -> Self:
        """Return the smallest frame of the server rows around their mean, or around zero if not ``centered``."""
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

    def rows(self, values: Held, out: Held = None) -> Rows:
        """Return rows of the data in the frame: translated, clipped and truncated, and written to ``out`` if given."""
        held, exponent = rows_onto_grid(values, self.origin, self.radius, norm=self.norm, out=out)
        return clipped_already(Rows, held, exponent, self.radius, self.norm)

    def enter(self, rows: Floats) -> Floats:
        """Return public rows in the frame's coordinates, clipped and truncated as a client's rows are."""
        return self.rows(rows).values

    def leave(self, centers: Floats) -> Floats:
        """Return centers in the coordinates of the data."""
        return centers + self.origin
