"""The search for neighbours that move a release too far: the hardest first, and what there was no time for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.checking.messages import altered_runs, mirrored_run, remembered
from flower_fedclust.checking.neighbours import (
    Answered,
    Moved,
    Neighbours,
    extreme_rows,
    far_rows,
    how_far,
    neighbours,
    tied_neighbours,
    tied_tables,
)
from flower_fedclust.checking.rows import HardRow, rows_by_message, rows_in_directions, rows_of_whole_numbers
from flower_fedclust.checking.runs import Run, patient, watched_run
from flower_fedclust.checking.samples import seed_that_draws
from flower_fedclust.checking.settings import other_settings, poles
from flower_fedclust.checking.subject import SEED, Subject
from flower_fedclust.privacy.releases import PrivacyUnit, Relation, Release

Floats = NDArray[np.float64]

Progress = Callable[[str, float], None]

#: Neighbours, and the round through which alone they are compared, if they are hard in one.
Pairs = list[tuple[Neighbours, int | None]]

#: Of each kind of neighbours so many are compared whatever time it takes, where no further run is needed.
SURE_TURNS = 3


@dataclass
class Place:
    """A run through which neighbours are compared, one of each kind in every turn."""

    where: str  #: Follows the word "neighbours"; empty for the run itself.
    make: Callable[[], tuple[Run, dict[str, Pairs]] | None]  #: The run and its neighbours by kind; None if it fails.
    takes_a_run: bool = False
    made: tuple[Run | None, dict[str, Pairs]] | None = None
    n_turns: int = 0
    answers: dict[int | None, Answered] = field(default_factory=dict)

    def turn(self) -> Pairs:
        """Return the next pair of each kind."""
        if self.made is None:
            self.made = self.make() or (None, {})
        self.n_turns += 1
        return [pairs[self.n_turns - 1] for pairs in self.made[1].values() if len(pairs) >= self.n_turns]

    @property
    def not_examined(self) -> str:
        """Which neighbours were not compared; empty if all were."""
        if self.made is None:
            return f"all neighbours {self.where}, and whether a client remembers that run"
        left = {kind: len(pairs) - self.n_turns for kind, pairs in self.made[1].items() if len(pairs) > self.n_turns}
        kinds = ", ".join(f"{kind} {number} of {len(self.made[1][kind])}" for kind, number in left.items())
        return f"{sum(left.values())} neighbours {self.where} ({kinds})".replace("  ", " ") if left else ""


class Search:
    """How far neighbours move each release of a run, and what else comparing them shows."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self.run = subject, subject.run
        noisy = [number for number, _, _ in subject.releases]
        asked = {name: sum(name in self.run.sent(number) for number in noisy) for name in subject.names}
        self.client = max(subject.names, key=lambda name: asked[name])
        self.largest: dict[tuple[str, int], Moved] = {}
        self.n_pairs: dict[tuple[str, int], int] = {}
        self.by_pair: dict[int, tuple[Neighbours, dict[tuple[int, int], Moved]]] = {}
        self.broken: list[str] = []
        self.n_compared = self.n_unanswered = 0
        self.noise_seed = 0
        self._places: list[Place] = []

    def compare(self, deadline: float, says: Progress) -> None:
        """Compare neighbours through every run there is, one of each kind in turns, until the time is over."""
        if not self.subject.releases:
            return
        rows = self._rows(self.run)
        first = [pair for pair, _ in self._neighbours(self.run, far_rows(rows)[:3], each=1)]
        self.noise_seed = seed_that_draws(self.run, self.client, first)
        self._places = list(self._made_places())
        for turn in count():
            n_before = self.n_compared
            for place in self._places:
                is_sure = turn < SURE_TURNS and not place.takes_a_run
                if is_sure or time.perf_counter() < deadline:
                    says("neighbours", 0.4 * (1 - 0.9**turn))
                    for pair, only in place.turn():
                        self._compare(place, pair, only)
            if self.n_compared == n_before:
                return

    @property
    def not_examined(self) -> list[str]:
        """What there was no time for."""
        return [left for place in self._places if (left := place.not_examined)]

    def _made_places(self) -> Iterator[Place]:
        yield Place("", lambda: (self.run, self._pairs(self.run)))
        mirrored, tables = mirrored_run(self.run, self.client)
        yield Place("of points that mirror each other", lambda: (mirrored, self._ties(tables)))
        for where, run in altered_runs(self.run):
            yield Place(where, partial(self._altered, run))
        for where, reach in (("with rows beyond the ends of the space", 3.0), ("with rows near its ends", 0.9)):
            subject = Subject(self.subject.strategy, poles(self.subject, reach))
            yield Place(where, partial(self._other_run, where, subject), takes_a_run=True)
        for setting, subject in other_settings(self.subject):
            where = f"with {setting}"
            yield Place(where, partial(self._other_run, where, subject, rounds_up=True), takes_a_run=True)

    def _altered(self, run: Run) -> tuple[Run, dict[str, Pairs]]:
        along = [
            pair for pairs in self._pairs(self.run).values() for pair in pairs if "along direction" in pair[0].what
        ]
        return run, {"far out": self._neighbours(run, far_rows(self._rows(run))[:2], each=3), "along directions": along}

    def _other_run(
        self, where: str, subject: Subject, *, rounds_up: bool = False
    ) -> tuple[Run, dict[str, Pairs]] | None:
        """Run on other rows, or with other public settings; it must end, and leave no trace in later answers."""
        try:
            run = watched_run(subject.strategy, subject.data, seed=SEED, tamper=dict.fromkeys(subject.data, patient))
            self.broken += remembered(self.run, run, self.client)
        except Exception as error:
            self.broken.append(f"a run {where} ends with {type(error).__name__}")
            return None
        whole = rows_of_whole_numbers(self._rows(run)) if rounds_up else []
        return run, self._pairs(run) | {"of whole numbers": self._neighbours(run, whole, each=1)}

    def _compare(self, place: Place, pair: Neighbours, only: int | None) -> None:
        """Compare two neighbours through the round that is named, or through all."""
        assert place.made is not None
        assert place.made[0] is not None
        run, known = place.made[0], place.answers.setdefault(only, {})
        if place.where:
            pair = replace(pair, what=f"{pair.what}, {place.where}")
        self.n_compared += 1
        try:
            found = list(how_far(run, self.client, [pair], only=only, noise_seed=self.noise_seed, known=known))
        except AssertionError as broken:
            self.broken.append(str(broken).rstrip("."))
            return
        self.n_unanswered += not found
        for moved in found:
            self._take(moved, is_measured=run is self.run)

    def _take(self, moved: Moved, *, is_measured: bool) -> None:
        # Other runs may have other rounds: what is the same is the method that was asked, and the array.
        key = (moved.task, moved.index)
        self.n_pairs[key] = self.n_pairs.get(key, 0) + 1
        before = self.largest.get(key)
        if before is None or (moved.is_too_far, moved.ratio) > (before.is_too_far, before.ratio):
            self.largest[key] = moved
        if is_measured:
            here = moved.round, moved.index
            self.by_pair.setdefault(id(moved.neighbours), (moved.neighbours, {}))[1][here] = moved

    def _rows(self, run: Run) -> Floats:
        return run.data[self.client].rows

    @property
    def _relation(self) -> tuple[PrivacyUnit, Relation]:
        return self.subject.strategy.privacy_unit, self.subject.releases[0][2].relation

    def _neighbours(self, run: Run, hard: list[HardRow], *, each: int = 4) -> Pairs:
        relation = self._relation
        return [(pair, None) for pair in neighbours(self._rows(run), hard, *relation, each=each)] if hard else []

    def _ties(self, tables: Mapping[int, Sequence[Floats]]) -> dict[str, Pairs]:
        return {
            f"on ties of round {number}": [(pair, number) for pair in tied_neighbours(tables[number], *self._relation)]
            for number in tables
        }

    def _pairs(self, run: Run) -> dict[str, Pairs]:
        """Return neighbours by kind, the hardest kinds first."""
        rows = self._rows(run)
        hard = {
            "far out": far_rows(rows),
            "of extreme floats": extreme_rows(rows.shape[1]),
            **rows_by_message(run, self.client),
            "in many directions": rows_in_directions(rows),
        }
        ties = self._ties(tied_tables(run, self.client))
        return ties | {kind: self._neighbours(run, given) for kind, given in hard.items()}

    @property
    def worst(self) -> Neighbours | None:
        """The neighbours that are told apart best through all the noise together."""
        best, found = 0.0, None
        for pair, moves in self.by_pair.values():
            cost = sum((moved.ratio / self.release(key).noise_multiplier) ** 2 for key, moved in moves.items())
            if cost > best:
                best, found = cost, pair
        return found

    def moves_of(self, pair: Neighbours | None) -> dict[tuple[int, int], Moved]:
        """Return how far two neighbours move each release."""
        return self.by_pair[id(pair)][1] if pair is not None else {}

    def release(self, key: tuple[int, int]) -> Release:
        """Return the release of a round and an array."""
        release = self.run.rounds[key[0]].releases[key[1]]
        assert release is not None
        return release
