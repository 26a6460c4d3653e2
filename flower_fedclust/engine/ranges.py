"""What the server can know of a reply before it uses it: what a client may say, and what it said before.

Each check follows from what the client clips, from the noise that a release adds, or from what most clients sent. None
can tell a client that lies within these limits from one that has other rows.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from flower_fedclust.engine.replies import ReplyError, client_order
from flower_fedclust.engine.rounds import Moved, Round, Sent, Sum
from flower_fedclust.exact.grid import BITS, GridArray
from flower_fedclust.privacy.noise import Sendable
from flower_fedclust.privacy.releases import NoisePlace, PrivacyUnit, Release

#: How many times what the others sent (their median) a reply may be: of what is larger still, nothing else is left in
#: the result.
LARGEST_RATIO = 2.0**16

#: A client that has a larger part of all rows decides nearly alone what a run finds.
LARGEST_PART = 0.8

#: No client has more rows than this.
MOST_ROWS = 2**40

#: With so small a probability the noise of one array is beyond its bound.
TAIL = 2.0**-40

#: A square of what is larger overflows: that much is too large where all others sent zeros.
LARGEST_NUMBER = 2.0**500


def of_largest(name: str, part: float) -> str:
    """Return, in a sentence, that a client has most rows."""
    return f"Client {name} says that it has {100 * part:.3g}% of all rows: the result is nearly its own."


@dataclass
class Ranges:
    """Checks the numbers in the replies of one run."""

    noise: NoisePlace  #: Where the server adds it, replies are exact.
    privacy_unit: PrivacyUnit
    largest_ratio: float = LARGEST_RATIO  #: How many times what the others sent (their median) a reply may be.
    n_clusters: int | None = None  #: Labels are below it.
    #: How many rows clients say they have, in words that no noise covers.
    stated: dict[str, float] = field(default_factory=dict)
    _n_rows: dict[str, tuple[float, float]] = field(default_factory=dict)  # by client: the fewest and the most

    def check(self, name: str, round_: Round, arrays: Sequence[Sendable], moved: Sequence[Moved] | None = None) -> None:
        """Check one reply by itself, and against what its client said before.

        Parameters
        ----------
        name : str
            The client.
        round_ : Round
        arrays : sequence of GridArray or ndarray
        moved : sequence of Moved, optional
            How far one row moves each array, as the client declares it.

        Raises
        ------
        ReplyError
            If an array is not what a client with any rows can send; the message names no number of the array.
        """
        sends = round_.answer.sends
        n_entries = _check_lengths(name, sends, arrays)
        releases = list(round_.releases) or [None] * len(sends)
        tails = [self._tail(release, array) for release, array in zip(releases, arrays, strict=True)]
        fewest, most = self._n_rows.get(name, (1.0, MOST_ROWS))
        if not fewest <= n_entries <= most and not math.isnan(n_entries):
            raise ReplyError(f"client {name} sent entries for {n_entries:.0f} rows, another number than it stated.")
        if not math.isnan(n_entries):
            fewest = most = n_entries
        for sent, array, release, tail in zip(sends, arrays, releases, tails, strict=True):
            if sent.counts == "labels":
                self._check_labels(name, sent, array)
            elif sent.is_positive or (sent.counts and sent.per == "client"):
                _check_counts(name, sent, array, tail)
            low, high = self._rows_in(sent, array, tail)
            if release is None and high < math.inf:
                self.stated[name] = low
            fewest, most = max(fewest, low), min(most, high)
            if fewest > most:
                raise ReplyError(
                    f"client {name} sent {sent.content}, which does not fit the number of rows that it stated."
                )
        if isinstance(round_, Sum):
            declared: Sequence[Moved | None] = moved or [None] * len(sends)
            for sent, array, release, tail, one in zip(sends, arrays, releases, tails, declared, strict=True):
                slack = tail * _size(array) + most * math.ulp(0.0)  # bounds of denormal numbers are rounded
                if any(_norm(array, n) > (bound + slack) * (1 + 1e-9) for n, bound in self._bounds(release, one, most)):
                    raise ReplyError(
                        f"client {name} sent {sent.content}, larger than its clipping allows for the rows that it "
                        "stated."
                    )
        self._n_rows[name] = fewest, most

    def _bounds(self, release: Release | None, moved: Moved | None, n_rows: float) -> list[tuple[str, float]]:
        """Return how long a client's part of a sum can be, each with its norm: every row moves it by so much."""
        found = []
        if release is not None and release.relation == "add-or-remove":
            found.append((release.norm, (n_rows if self.privacy_unit == "record" else 1.0) * release.sensitivity))
        if moved is not None:
            found += [("L2", n_rows * moved.l2), ("L1", n_rows * moved.l1)]
            found += [] if moved.of_client is None else [("L2", moved.of_client)]
        return found

    @property
    def largest(self) -> tuple[str, float] | None:
        """The client that says it has most rows, and which part of all; None of fewer than three clients."""
        total = math.fsum(self.stated.values())
        if len(self.stated) < 3 or total <= 0:
            return None
        name = max(self.stated, key=self.stated.__getitem__)
        return name, self.stated[name] / total

    @property
    def why_likely(self) -> str:
        """What is likely behind an error of a protocol, as one more sentence; empty where nothing is known."""
        return f" {of_largest(*found)}" if (found := self.largest) and found[1] > LARGEST_PART else ""

    def outliers(self, round_: Round, replies: Mapping[str, Sequence[Sendable]]) -> dict[str, str]:
        """Return the clients whose numbers leave nothing of the others', each with a sentence.

        Of two replies the larger is the odd one: it alone would be left of the sum.
        """
        sends, found = round_.answer.sends, dict[str, str]()
        releases = list(round_.releases) or [None] * len(sends)
        for index, (sent, release) in enumerate(zip(sends, releases, strict=True)):
            sizes = {name: _magnitude(sent, arrays[index]) for name, arrays in replies.items() if name not in found}
            if len(sizes) < 2 or (len(sizes) == 2 and min(sizes.values()) == 0):
                continue
            positive = sorted(size for size in sizes.values() if size > 0)
            # The median of the others is this at least, whoever is left out: then nobody is too large.
            if len(positive) > 1 and positive[-1] <= self.largest_ratio * positive[(len(positive) - 2) // 2]:
                continue
            for name in sorted(sizes, key=client_order):
                others = _median_without(positive, sizes[name])
                floor = max(_floor(sent, replies[name][index]), self._tail(release, replies[name][index]))
                usual = max(others, floor)
                if sizes[name] > (self.largest_ratio * usual if usual > 0 else LARGEST_NUMBER):
                    found[name] = (
                        f"client {name} sent {sent.content}, more than {self.largest_ratio:,.0f} times as large as "
                        "most sent; look for a wrong value or another unit."
                    )
        return found

    def _check_labels(self, name: str, sent: Sent, array: Sendable) -> None:
        plain = array.integers if isinstance(array, GridArray) else array
        most = math.inf if self.n_clusters is None else self.n_clusters
        if plain.dtype.kind not in "iu" or not 0 <= int(plain.min(initial=0)) <= int(plain.max(initial=0)) < most:
            raise ReplyError(f"client {name} sent {sent.content} that is none of the clusters.")

    def _rows_in(self, sent: Sent, array: Sendable, tail: float) -> tuple[float, float]:
        """Return how many rows a client has, at least and at most, by what an array counts."""
        is_clipped = self.privacy_unit == "client" and not sent.counts_rows
        is_count = (sent.counts or sent.counts_rows) and sent.per == "client" and sent.counts != "once"
        if is_clipped or not is_count:
            return 0.0, math.inf
        plain = array.values if isinstance(array, GridArray) else array.astype(np.float64)
        slack = tail * plain.size + 1e-9 * float(np.abs(plain).sum())
        total = float(plain.sum())
        return total - slack, math.inf if sent.counts == "some rows" else total + slack

    def _tail(self, release: Release | None, array: Sendable) -> float:
        """Return how large an entry of the noise can be that a reply carries, in the units of the array."""
        if release is None or release.scale == 0 or self.noise == "server":
            return 0.0
        # A share of the noise has no longer tails than twice those of all of it.
        log = math.log(4 * _size(array) / TAIL)
        reach = math.sqrt(2 * log) if release.mechanism == "gaussian" else log
        unit = float(np.ldexp(1.0, array.exponent)) if isinstance(array, GridArray) else 0.0
        return release.scale * reach + unit


def _check_lengths(name: str, sends: Sequence[Sent], arrays: Sequence[Sendable]) -> float:
    """Check that what has an entry for every row, or for every center of the client's own, has equally many.

    Returns
    -------
    float
        For how many rows there are entries; NaN where no array has any. An array may have several for each.
    """
    lengths: dict[str, int] = {}
    for sent, array in zip(sends, arrays, strict=True):
        shape = (array.integers if isinstance(array, GridArray) else array).shape
        if sent.per != "row" and sent.reveals != "centers":
            continue
        kind = "row" if sent.per == "row" else "center"
        length = shape[0] if shape else -1
        if length < (0 if sent.counts == "some rows" else 1):
            raise ReplyError(f"client {name} sent {sent.content} of the shape {shape}, where each {kind} has an entry.")
        first = lengths.setdefault(kind, length)
        if length != first and (kind == "center" or length % max(first, 1)):
            raise ReplyError(
                f"client {name} sent {sent.content} with {length} entries where its other arrays have {first}."
            )
    is_part = any(sent.per == "row" and sent.counts == "some rows" for sent in sends)
    return float("nan") if is_part else float(lengths.get("row", math.nan))


def _check_counts(name: str, sent: Sent, array: Sendable, tail: float) -> None:
    plain = array.values if isinstance(array, GridArray) else array
    if sent.counts == "once" and not plain.size:
        raise ReplyError(f"client {name} sent {sent.content}, without a class.")
    if plain.size and float(plain.min()) < -tail:
        raise ReplyError(f"client {name} sent {sent.content} below 0.")
    if sent.counts == "once" and tail == 0 and float(plain.sum()) != 1.0:
        raise ReplyError(f"client {name} sent {sent.content}, of which it named more than one, or none.")


def _norm(array: Sendable, norm: str) -> float:
    """Return the L1 or the L2 norm, in the units of the array."""
    entries = np.asarray(array.integers if isinstance(array, GridArray) else array, dtype=np.float64).ravel()
    length = float(np.abs(entries).sum()) if norm == "L1" else math.sqrt(float(entries @ entries))
    return float(np.ldexp(length, array.exponent)) if isinstance(array, GridArray) else length


def _median_without(ordered: Sequence[float], one: float) -> float:
    """Return the median of positive numbers in their order, but for one of them; 0 if no other is there."""
    left = len(ordered) - (one > 0)
    if left == 0:
        return 0.0
    gone = bisect.bisect_left(ordered, one) if one > 0 else len(ordered)
    low, high = (place + (place >= gone) for place in ((left - 1) // 2, left // 2))
    return (ordered[low] + ordered[high]) / 2


def _magnitude(sent: Sent, array: Sendable) -> float:
    """Return the largest entry; of a class among many, the power of two that it stands for."""
    if sent.counts == "once":
        plain = array.integers if isinstance(array, GridArray) else array
        # In a logarithm, whose differences are ratios; a class of its own, the first, stands for nothing at all.
        place = int(np.argmax(plain))
        return math.ldexp(1.0, min(max(place - plain.size // 2, -1000), 1000)) if place else 0.0
    if isinstance(array, GridArray):
        return float(np.ldexp(float(array.largest), array.exponent))
    return float(np.abs(array.astype(np.float64)).max(initial=0.0))


def _floor(sent: Sent, array: Sendable) -> float:
    """Return what any client may send, however little the others sent: a row in its unit, or a count."""
    if sent.counts or sent.counts_rows:
        return 0.0 if sent.counts == "once" else 1.0
    return float(np.ldexp(1.0, array.exponent + BITS)) if isinstance(array, GridArray) else 0.0


def _size(array: Sendable) -> int:
    return max(1, (array.integers if isinstance(array, GridArray) else array).size)
