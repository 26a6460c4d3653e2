"""The audit of a strategy, from outside: by its messages, its noise and its books."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.auditing.counting import counted_epsilon, epsilon_of
from flower_fedclust.auditing.coverage import (
    Fact,
    facts_under_neighbours,
    findings_of_books,
    findings_of_losses,
)
from flower_fedclust.auditing.draws import Drawer
from flower_fedclust.auditing.messages import altered_runs, mirrored_run, remembered
from flower_fedclust.auditing.result import AuditedRelease, AuditResult
from flower_fedclust.auditing.rows import HardRow, rows_by_message, rows_in_directions, rows_of_whole_numbers
from flower_fedclust.auditing.samples import findings_of_samples, seed_that_draws
from flower_fedclust.auditing.settings import other_settings, poles
from flower_fedclust.auditing.statistics import FALSE_ALARM, OF_SAMPLES, Loss, losses, repeated, test_noise
from flower_fedclust.numerics.checks import check_integer, check_real
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.privacy.releases import PrivacyUnit, Relation, Release
from flower_fedclust.progress import quiet
from flower_fedclust.protocol import ProtocolStrategy
from flower_fedclust.watching.neighbours import (
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
from flower_fedclust.watching.runs import Run, watched_run
from flower_fedclust.watching.subject import SEED, Subject, small_tables

Floats = NDArray[np.float64]

#: So many draws are made with seeds, to see whether noise repeats where a seed is given.
N_SEEDED = 20

#: So many draws are made whatever time they take, if so many are asked for: fewer say little of noise.
LEAST_DRAWS = 100

#: If there is less time, no second run is made.
HARD_RUN_SECONDS = 4.0

Progress = Callable[[str, float], None]

#: Neighbours, and the round through which alone they are compared, if they are hard in one.
Pairs = list[tuple[Neighbours, int | None]]


def audit(
    strategy: ProtocolStrategy,
    clients: Sequence[ArrayLike] | None = None,
    *,
    runs: int = 1000,
    seconds: float | None = None,
    seed: int | None = None,
    false_alarm: float = FALSE_ALARM,
    progress: Progress | None = None,
) -> AuditResult:
    """Measure what a strategy promises of privacy, from outside.

    A run is made and its messages are kept. A shadow of one client answers them with tables that differ in one row, or
    in all rows of the client, made to be hard: that gives how far a release moves, exactly, beside its sensitivity. The
    noise of every release is drawn again and again, where and how a run draws it: that gives its law, and the privacy
    loss of each draw of all rounds together. What leaves beside the releases is compared between neighbours, and what
    the report states is counted again.

    Parameters
    ----------
    strategy : ProtocolStrategy
        Of ours or anybody's. It is not changed.
    clients : sequence of array-like of shape (n_i, n_columns), optional
        Tables; by default three small ones are made, within the bounds of the strategy.
    runs : int, default=1000
        How often the noise of all rounds is drawn. 60 tell noise that is far too narrow; a lower bound on epsilon of 4
        takes 1,000.
    seconds : float, optional
        After which no more is drawn or compared; what was not is said.
    seed : int, optional
        Of what the auditor chooses, the tables that are made among it. Never of the noise.
    false_alarm : float, default=0.001
        How often a sound strategy may be called broken, over all tests of the audit together.
    progress : callable, optional
        Called with what is done and which part of it is.

    Returns
    -------
    AuditResult

    Raises
    ------
    ValueError
        If a parameter, or the strategy's own, cannot be right.
    """
    check_integer("runs", runs, at_least=2)
    if seconds is not None:
        check_real("seconds", seconds, above=0)
    check_real("false_alarm", false_alarm, above=0, below=1)
    if clients is None and seed is not None:
        clients, _ = small_tables(strategy, seed=seed)
    subject = Subject(strategy, clients)
    return audit_subject(subject, runs=runs, seconds=seconds, seed=seed, false_alarm=false_alarm, progress=progress)


def audit_subject(
    subject: Subject,
    *,
    runs: int,
    seconds: float | None = None,
    seed: int | None = None,
    false_alarm: float = FALSE_ALARM,
    progress: Progress | None = None,
) -> AuditResult:
    """Audit a strategy whose run may be there already; the parameters are those of :func:`audit`."""
    start = time.perf_counter()
    says: Progress = progress or (lambda _what, _part: None)
    # Failures that an audit provokes are no news.
    with quiet(logging.CRITICAL + 1, "flwr", "flower_fedclust"), warnings.catch_warnings(), one_thread():
        warnings.simplefilter("ignore")
        says("a run", 0.0)
        run = subject.run
        # What calibration takes, and maps, is not charged to what is compared and drawn.
        begun = time.perf_counter()
        left = math.inf if seconds is None else max(start + seconds - begun, 0.3)
        moves = _Moves(subject)
        moves.compare(begun + 0.3 * left, says)
        if left > HARD_RUN_SECONDS:
            moves.compare_hard(begun + 0.5 * left, says)
        findings, facts = _beside(subject, moves)
        findings += findings_of_samples(
            run, moves.client, moves.worst, OF_SAMPLES * false_alarm, time.perf_counter() + 0.1 * left
        )
        drawer = Drawer(run, moves.client, moves.worst)
        n_runs = _draw(drawer, runs, begun + 0.95 * left, says)
        findings += repeated(list(drawer.cells.values()), list(drawer.seeded.values()))
        loss = _loss(run, moves, drawer, np.random.default_rng(seed), false_alarm)
        says("done", 1.0)
    report = run.strategy.report
    return AuditResult(
        strategy=run.strategy.name,
        epsilon=run.strategy.epsilon,
        delta=run.strategy.delta if run.strategy.epsilon is not None else None,
        unit=run.strategy.privacy_unit,
        place=run.strategy.noise,
        releases=tuple(_audited(run, moves, drawer)),
        loss=loss,
        epsilon_counted=counted_epsilon(run, run.strategy.delta),
        findings=tuple(dict.fromkeys(findings)),
        facts=tuple(facts),
        unprotected=tuple(dict.fromkeys(message.content for message in report.unprotected)),
        covers_everything=report.covers_everything,
        n_runs=n_runs,
        seconds=time.perf_counter() - start,
        false_alarm=false_alarm,
    )


class _Moves:
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
        self.noise_seed = 0

    def compare(self, deadline: float, says: Progress) -> None:
        """Compare neighbours through the messages of the run, and through others that a server could send."""
        if not self.subject.releases:
            return
        first = self._neighbours(self.run, far_rows(self._rows(self.run))[:3], each=1)
        self.noise_seed = seed_that_draws(self.run, self.client, first)
        pairs = list(self._pairs(self.run))
        now = time.perf_counter()
        self._compare(self.run, pairs, now + 0.7 * (deadline - now), says, at_least=8)
        few: Pairs = [(pair, None) for pair in self._neighbours(self.run, far_rows(self._rows(self.run))[:2], each=1)]
        few += [pair for pair in pairs if "along direction" in pair[0].what]
        mirrored, tables = mirrored_run(self.run, self.client)
        ties: Pairs = [(pair, number) for number in tables for pair in tied_neighbours(tables[number], *self._relation)]
        self._compare(mirrored, _named(ties, "of points that mirror each other"), deadline, says)
        for where, run in altered_runs(self.run):
            with suppress(ValueError):  # a client may refuse it
                self._compare(run, _named(few, where), deadline, says)

    def compare_hard(self, deadline: float, says: Progress) -> None:
        """Do the same in runs on rows at the ends of the space, and in runs with other public settings."""
        if not self.subject.releases:
            return
        runs = [
            ("rows at the ends of the space", Subject(self.subject.strategy, poles(self.subject, reach)))
            for reach in (3.0, 0.9)
        ]
        runs += other_settings(self.subject)
        for index, (where, subject) in enumerate(runs):
            now = time.perf_counter()
            if now > deadline:
                break
            until = now + (deadline - now) / (len(runs) - index)
            try:
                run = watched_run(subject.strategy, subject.data, seed=SEED)
                self.broken += remembered(self.run, run, self.client)
            except Exception as error:
                self.broken.append(f"a run with {where} ends with {type(error).__name__}")
                continue
            pairs = self._pairs(run)
            if index > 1:
                whole = rows_of_whole_numbers(self._rows(run))
                pairs = [*((pair, None) for pair in self._neighbours(run, whole, each=1)), *pairs]
            self._compare(run, _named(pairs, f"with {where}"), until, says)

    def _compare(self, run: Run, pairs: Pairs, deadline: float, says: Progress, *, at_least: int = 0) -> None:
        """Compare neighbours, each through the round that is named beside it or through all, until the time is over."""
        known: dict[int | None, Answered] = {}
        for index, (pair, only) in enumerate(pairs):
            if time.perf_counter() > deadline and index >= at_least:
                break
            says("neighbours", 0.4 * index / len(pairs))
            try:
                answers = known.setdefault(only, {})
                for moved in how_far(run, self.client, [pair], only=only, noise_seed=self.noise_seed, known=answers):
                    self._take(moved, is_measured=run is self.run)
            except AssertionError as broken:
                self.broken.append(str(broken).rstrip("."))

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

    def _neighbours(self, run: Run, hard: list[HardRow], *, each: int = 3) -> list[Neighbours]:
        return neighbours(self._rows(run), hard, *self._relation, each=each)

    def _pairs(self, run: Run) -> Pairs:
        rows = self._rows(run)
        hard = (
            far_rows(rows),
            extreme_rows(rows.shape[1]),
            rows_in_directions(rows),
            *rows_by_message(run, self.client),
        )
        kinds: list[Pairs] = [[(pair, None) for pair in self._neighbours(run, kind)] for kind in hard]
        kinds += [
            [(pair, number) for pair in tied_neighbours(tables, *self._relation)]
            for number, tables in tied_tables(run, self.client).items()
        ]
        # In turns, so that there are some of every kind where there is no time for all.
        return [one for turn in zip_longest(*kinds) for one in turn if one is not None]

    @property
    def worst(self) -> Neighbours | None:
        """The neighbours that are told apart best through all the noise together."""
        best, found = 0.0, None
        for pair, moves in self.by_pair.values():
            cost = sum((moved.ratio / self._release(key).noise_multiplier) ** 2 for key, moved in moves.items())
            if cost > best:
                best, found = cost, pair
        return found

    def moves_of(self, pair: Neighbours | None) -> dict[tuple[int, int], Moved]:
        """Return how far two neighbours move each release."""
        return self.by_pair[id(pair)][1] if pair is not None else {}

    def _release(self, key: tuple[int, int]) -> Release:
        release = self.run.rounds[key[0]].releases[key[1]]
        assert release is not None
        return release


def _named(pairs: Pairs, where: str) -> Pairs:
    return [(replace(pair, what=f"{pair.what}, {where}"), only) for pair, only in pairs]


def _beside(subject: Subject, moves: _Moves) -> tuple[list[str], list[Fact]]:
    """Return what is broken beside the releases: facts that follow from rows, and books that lack something."""
    run = subject.run
    rows = subject.data[moves.client].rows
    relation = subject.releases[0][2].relation if subject.releases else "replace"
    findings = list(moves.broken)
    facts: list[Fact] = []
    if subject.releases:
        pairs = neighbours(
            rows, [*far_rows(rows)[:2], *extreme_rows(rows.shape[1])[2:3]], run.strategy.privacy_unit, relation
        )
        more, facts = facts_under_neighbours(run, moves.client, pairs)
        findings += more
    findings += findings_of_books(run, counted_epsilon(run, run.strategy.delta))
    findings += findings_of_losses(subject)
    return findings, facts


def _draw(drawer: Drawer, runs: int, deadline: float, says: Progress) -> int:
    if not drawer.cells:
        return 0
    for repetition in range(N_SEEDED):
        drawer.draw_seeded(repetition)
    for repetition in range(runs):
        if repetition % 16 == 0:
            says("noise", 0.45 + 0.5 * repetition / runs)
            if repetition >= LEAST_DRAWS and time.perf_counter() > deadline:
                return repetition
        drawer.draw(repetition)
    return runs


def _loss(run: Run, moves: _Moves, drawer: Drawer, rng: np.random.Generator, false_alarm: float) -> Loss | None:
    pair, epsilon = moves.worst, run.strategy.epsilon
    moved = moves.moves_of(pair)
    if pair is None or epsilon is None:
        return None
    found = losses(list(drawer.cells.values()), {key: one.difference for key, one in moved.items()}, moves.client, rng)
    if found is None:
        return None
    of_one, of_other, sees_noise = found
    multipliers = {"gaussian": list[float](), "laplace": list[float]()}
    for key, one in moved.items():
        release = moves._release(key)
        if one.ratio > 0:
            multipliers[release.mechanism].append(release.noise_multiplier / one.ratio)
    expected = epsilon_of(multipliers["gaussian"], multipliers["laplace"], run.strategy.delta)
    return Loss(epsilon, run.strategy.delta, of_one, of_other, sees_noise, pair.what, expected, false_alarm)


def _audited(run: Run, moves: _Moves, drawer: Drawer) -> Iterator[AuditedRelease]:
    """Yield what was found about the releases, those of one method and array together."""
    groups: dict[tuple[str, int, str], list[tuple[int, int]]] = {}
    for number, round_ in run.rounds.items():
        for index, release in enumerate(round_.releases):
            if release is not None and release.scale > 0:
                groups.setdefault((round_.task, index, release.mechanism), []).append((number, index))
    for (task, index, _), keys in groups.items():
        last = run.rounds[keys[-1][0]]
        release = last.releases[index]
        assert release is not None
        worst = moves.largest.get((task, index))
        yield AuditedRelease(
            tuple(number for number, _ in keys),
            task,
            last.answer.sends[index].content,
            release,
            0.0 if worst is None else worst.ratio,
            worst is not None and worst.is_too_far,
            "" if worst is None else worst.neighbours.what,
            moves.n_pairs.get((task, index), 0),
            test_noise([drawer.cells[key] for key in keys if key in drawer.cells]),
        )
