"""Floors: the smallest count that is printed for people, and the text that replaces a smaller one.

A count is printed if its estimate is at least the floor, and at least three standard deviations of
its noise. Otherwise only a limit is printed, such as "fewer than 10". The limit follows from the
floor and the noise, and not from the estimate as long as this is below the floor.

Exact counts need more care, because a total less all printed counts would give the hidden one. So
before anything is computed, exact counts are replaced by intervals in which they are known to lie:
:meth:`Floor.known_of`. Every printed number follows from these intervals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.numerics.checks import check_integer

Floats = NDArray[np.float64]

#: A count is printed by default if it is at least FLOOR, and at least FLOOR_DEVIATIONS standard deviations of its
#: noise.
FLOOR, FLOOR_DEVIATIONS = 10, 3.0
#: What sums count: rows or, if each row is a part of a person, persons.
ROWS, PERSONS = "rows", "persons"
#: The divisor that replaces a count of 0.
LEAST = 1e-9
#: How many standard deviations "±" means; every interval is as wide, to either side.
DEVIATIONS = 2.0


@dataclass(frozen=True)
class Counts:
    """What may be known of counts: each lies within ``middle`` ± ``half``.

    ``half`` is 0 if a count may be known exactly, or if the count has noise.
    """

    middle: Floats
    half: Floats


@dataclass(frozen=True)
class Floor:
    """The smallest count that is printed; with 0, only noise hides counts."""

    least: int = FLOOR
    #: Whether the counts are numbers of rows. If not, limits are printed only as shares.
    of_rows: bool = True

    def __post_init__(self) -> None:
        check_integer("floor", self.least, at_least=0)

    def hides(self, counts: ArrayLike, deviation: ArrayLike) -> NDArray[np.bool_]:
        """Tell for each count whether it must not be printed.

        A count is hidden below the floor, and below three times ``deviation``, the standard
        deviation of its noise.
        """
        threshold = np.maximum(float(self.least), FLOOR_DEVIATIONS * np.asarray(deviation))
        return np.asarray(~(np.asarray(counts, dtype=np.float64) >= threshold))

    def limit(self, counts: ArrayLike, deviation: ArrayLike, half: ArrayLike = 0.0) -> Floats:
        """Return the number below which each hidden count is known to lie.

        It is the floor, or the highest possible estimate if this is larger, plus two standard
        deviations of the noise.
        """
        half = np.asarray(half, dtype=np.float64)
        most = np.asarray(counts, dtype=np.float64) + half + (half > 0)
        return np.asarray(np.maximum(most, self.least) + DEVIATIONS * np.asarray(deviation))

    def known_of(self, exact: Floats, *, add_up: bool) -> Counts:
        """Return what may be known of exact counts, of shape (n_clusters, n_kinds).

        All that is known of a count below the floor is that it is below. If the counts of a cluster
        add up to a printed number (``add_up``), the other counts would give the hidden one away. So
        the largest count of the cluster is blurred as well: it is known only up to the number of
        rows that the hidden counts may have. If it is too small for that, none of the cluster's
        counts is known.
        """
        is_small = self.hides(exact, 0.0)
        middle, half = (
            np.where(is_small, self._most / 2, exact),
            np.where(is_small, self._most / 2, 0.0),
        )
        if add_up:
            for cluster in np.flatnonzero(is_small.any(axis=1)):
                middle[cluster], half[cluster] = self._without_difference(
                    exact[cluster], is_small[cluster]
                )
        return Counts(middle, half)

    @property
    def _most(self) -> float:
        """The largest count that is hidden."""
        return max(self.least - 1.0, 0.0)

    def _without_difference(
        self, exact: Floats, is_small: NDArray[np.bool_]
    ) -> tuple[Floats, Floats]:
        """Return middles and half widths for the counts of a cluster whose sum is printed; see :meth:`known_of`."""
        largest, total = int(exact.argmax()), float(exact.sum())
        most_hidden = self._most * np.count_nonzero(is_small)
        # Everybody can compute this number: it is the total less the printed counts.
        hidden = exact[largest] + exact[is_small].sum()
        if is_small[largest] or hidden - most_hidden < self.least:
            return np.full(len(exact), total / 2), np.full(len(exact), total / 2)
        middle, half = (
            np.where(is_small, self._most / 2, exact),
            np.where(is_small, self._most / 2, 0.0),
        )
        middle[largest], half[largest] = hidden - most_hidden / 2, most_hidden / 2
        return middle, half
