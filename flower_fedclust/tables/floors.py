"""Floors: the smallest count that is printed for people, and the text that replaces a smaller one.

A count is printed if its estimate is at least the floor, and at least three standard deviations of
its noise. Else only a limit is printed, "fewer than 10", which follows from the floor and the noise
wherever the estimate is below the floor.

Exact counts need more, because a total less the other counts gives the one that is hidden. So exact
sums are replaced by what may be known of them before anything is computed: :meth:`Floor.known_of`.
Every printed number follows from that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.numerics.checks import check_integer

Floats = NDArray[np.float64]

#: The smallest count that is printed by default, and the least in standard deviations of its noise.
FLOOR, FLOOR_DEVIATIONS = 10, 3.0
#: What sums count: rows or, if each row is a part of a person, persons.
ROWS, PERSONS = "rows", "persons"
#: The smallest divisor, in place of a count of 0.
LEAST = 1e-9
#: The half width of "±" and of every interval, in standard deviations.
DEVIATIONS = 2.0


@dataclass(frozen=True)
class Counts:
    """Counts as far as they may be known: each lies within ``middle`` ± ``half``.

    ``half`` is 0 where a count may be known exactly, or where it has noise.
    """

    middle: Floats
    half: Floats


@dataclass(frozen=True)
class Floor:
    """The smallest count that is printed; with 0, everything is printed that noise does not hide."""

    least: int = FLOOR
    #: Whether the counts are numbers of rows. Otherwise limits are printed as shares only.
    of_rows: bool = True

    def __post_init__(self) -> None:
        check_integer("floor", self.least, at_least=0)

    def hides(self, counts: ArrayLike, deviation: ArrayLike) -> NDArray[np.bool_]:
        """Tell for each count whether it must not be printed.

        ``deviation`` is the standard deviation of the noise in the counts; three of them hide a
        count, too.
        """
        threshold = np.maximum(float(self.least), FLOOR_DEVIATIONS * np.asarray(deviation))
        return np.asarray(~(np.asarray(counts, dtype=np.float64) >= threshold))

    def limit(self, counts: ArrayLike, deviation: ArrayLike, half: ArrayLike = 0.0) -> Floats:
        """Return the number below which each hidden count is known to be.

        It is the floor, or two standard deviations above the estimate if that is larger.
        """
        half = np.asarray(half, dtype=np.float64)
        most = np.asarray(counts, dtype=np.float64) + half + (half > 0)
        return np.asarray(np.maximum(most, self.least) + DEVIATIONS * np.asarray(deviation))

    def known_of(self, exact: Floats, *, add_up: bool) -> Counts:
        """Return what may be known of exact counts, of shape (n_clusters, n_kinds).

        A count below the floor may be any number below it. If the counts of a cluster add up to a
        printed number (``add_up``), the other counts would give the hidden one away. So the largest
        count of the cluster is only known up to as many rows as are hidden. Where it is too small
        to hide them, no count of the cluster is known.
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
        """Return the middles and halves of one cluster's counts whose sum is printed; see :meth:`known_of`."""
        largest, total = int(exact.argmax()), float(exact.sum())
        most_hidden = self._most * np.count_nonzero(is_small)
        # This number is known: it is the total less the printed counts.
        hidden = exact[largest] + exact[is_small].sum()
        if is_small[largest] or hidden - most_hidden < self.least:
            return np.full(len(exact), total / 2), np.full(len(exact), total / 2)
        middle, half = (
            np.where(is_small, self._most / 2, exact),
            np.where(is_small, self._most / 2, 0.0),
        )
        middle[largest], half[largest] = hidden - most_hidden / 2, most_hidden / 2
        return middle, half
