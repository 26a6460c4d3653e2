"""The audit of a strategy, from outside: by its messages, its noise and its books."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flower_fedclust.checking.counting import counted_epsilon, epsilon_of
from flower_fedclust.checking.coverage import (
    Fact,
    facts_under_neighbours,
    findings_of_books,
    findings_of_losses,
)
from flower_fedclust.checking.draws import Cell, Drawer
from flower_fedclust.checking.neighbours import extreme_rows, far_rows, neighbours
from flower_fedclust.checking.result import AuditedRelease, AuditResult
from flower_fedclust.checking.runs import Run, patient
from flower_fedclust.checking.samples import findings_of_samples
from flower_fedclust.checking.search import Progress, Search
from flower_fedclust.checking.sources import FEWEST, examine_sources
from flower_fedclust.checking.statistics import FALSE_ALARM, OF_SAMPLES, Loss, losses, test_noise
from flower_fedclust.checking.subject import Subject, small_tables
from flower_fedclust.engine.progress import quiet
from flower_fedclust.inputs import Clients, Strategy, prepared_rows, strategy_of
from flower_fedclust.numerics.checks import check_integer, check_real
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.tables.schema import Schema

#: So many draws are made with seeds, to see whether noise repeats where a seed is given.
N_SEEDED = FEWEST

#: So many draws are made whatever time they take, if so many are asked for: fewer say little of noise.
LEAST_DRAWS = 100


def audit(
    strategy: Strategy,
    clients: Clients | None = None,
    *,
    runs: int = 1000,
    seconds: float | None = None,
    seed: int | None = None,
    false_alarm: float = FALSE_ALARM,
    progress: Progress | None = None,
    labels: Any = None,
    names: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    label_column: str | None = None,
    client_column: str | None = None,
    partition: str | None = None,
    n_clients: int = 10,
    schema: Schema | str | Path | Mapping[str, Any] | None = None,
    **parameters: Any,
) -> AuditResult:
    """Measure what a strategy promises of privacy, from outside.

    A run is made and its messages are kept. A shadow of one client answers them with tables that differ in one row, or
    in all rows of the client, made to be hard: that gives how far a release moves, exactly, beside its sensitivity. The
    noise of every release is drawn again and again, where and how a run draws it: that gives its law, and the privacy
    loss of each draw of all rounds together. What leaves beside the releases is compared between neighbours, and what
    the report states is counted again.

    Parameters
    ----------
    strategy : ProtocolStrategy, class or str
        As for :func:`~flower_fedclust.simulate`: of ours or anybody's. It is not changed.
    clients : optional
        As for :func:`~flower_fedclust.simulate`; by default three small tables are made, within the bounds of the
        strategy.
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
    labels, names, columns, label_column, client_column, partition, n_clients, schema
        With ``clients``, as for :func:`~flower_fedclust.simulate`. With a schema, the tables are prepared before the
        audit begins; the rounds of the preparation are not audited.
    **parameters
        Parameters of a strategy that is given by name or as a class.

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
    if clients is None:
        made = strategy_of(strategy, parameters)
        rows = None if seed is None else small_tables(made, seed=seed)[0]
    else:
        reading = {"label_column": label_column, "client_column": client_column, "n_clients": n_clients}
        reading |= {} if partition is None else {"partition": partition}
        options = {"labels": labels, "names": names, "columns": columns, "schema": schema, "seed": seed, **reading}
        made, rows = prepared_rows(strategy, clients, parameters, **options)
    subject = Subject(made, rows, tamper=patient)
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
        search = Search(subject)
        search.compare(begun + 0.5 * left, says)
        findings, facts, late = _beside(subject, search, begun + 0.6 * left)
        more, drawn_late = findings_of_samples(
            run, search.client, search.worst, OF_SAMPLES * false_alarm, time.perf_counter() + 0.1 * left
        )
        drawer = Drawer(run, search.client, search.worst, search.noise_seed)
        n_runs = _draw(drawer, runs, begun + 0.95 * left, says)
        cells = list(drawer.cells.values())
        sources = examine_sources(cells, list(drawer.seeded.values()), false_alarm)
        loss = _loss(run, search, cells, np.random.default_rng(seed), false_alarm)
        late += drawn_late + ([f"{runs - n_runs} of {runs} draws of the noise"] if cells and n_runs < runs else [])
        says("done", 1.0)
    report = run.strategy.report
    return AuditResult(
        strategy=run.strategy.name,
        epsilon=run.strategy.epsilon,
        delta=run.strategy.delta if run.strategy.epsilon is not None else None,
        unit=run.strategy.privacy_unit,
        place=run.strategy.noise,
        releases=tuple(_audited(run, search, drawer)),
        loss=loss,
        epsilon_counted=counted_epsilon(run, run.strategy.delta),
        source_bits=sources.bits,
        tails=sources.reach,
        findings=tuple(dict.fromkeys([*findings, *more, *sources.findings])),
        facts=tuple(facts),
        unprotected=tuple(dict.fromkeys(message.content for message in report.unprotected)),
        covers_everything=report.covers_everything,
        n_runs=n_runs,
        not_examined=(*search.not_examined, *late),
        seconds=time.perf_counter() - start,
        false_alarm=false_alarm,
    )


def _beside(subject: Subject, search: Search, deadline: float) -> tuple[list[str], list[Fact], list[str]]:
    """Return what is broken beside the releases, the facts, and what was not examined."""
    run = subject.run
    rows = subject.data[search.client].rows
    findings = list(search.broken)
    facts: list[Fact] = []
    if subject.releases:
        hard = [*far_rows(rows)[:2], *extreme_rows(rows.shape[1])[2:3]]
        pairs = neighbours(rows, hard, run.strategy.privacy_unit, subject.releases[0][2].relation)
        more, facts = facts_under_neighbours(run, search.client, pairs)
        findings += more
        if n := search.n_unanswered:
            facts.append(Fact("neighbours", f"{n} of {search.n_compared} were not compared, as the client fails"))
    findings += findings_of_books(run, counted_epsilon(run, run.strategy.delta))
    of_losses, late = findings_of_losses(subject, deadline)
    return findings + of_losses, facts, late


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


def _loss(run: Run, search: Search, cells: Sequence[Cell], rng: np.random.Generator, false_alarm: float) -> Loss | None:
    pair, epsilon = search.worst, run.strategy.epsilon
    moved = search.moves_of(pair)
    if pair is None or epsilon is None:
        return None
    found = losses(cells, {key: one.difference for key, one in moved.items()}, search.client, rng)
    if found is None:
        return None
    of_one, of_other, sees_noise = found
    multipliers = {"gaussian": list[float](), "laplace": list[float]()}
    for key, one in moved.items():
        release = search.release(key)
        if one.ratio > 0:
            multipliers[release.mechanism].append(release.noise_multiplier / one.ratio)
    expected = epsilon_of(multipliers["gaussian"], multipliers["laplace"], run.strategy.delta)
    return Loss(epsilon, run.strategy.delta, of_one, of_other, sees_noise, pair.what, expected, false_alarm)


def _audited(run: Run, search: Search, drawer: Drawer) -> Iterator[AuditedRelease]:
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
        worst = search.largest.get((task, index))
        yield AuditedRelease(
            tuple(number for number, _ in keys),
            task,
            last.answer.sends[index].content,
            release,
            0.0 if worst is None else worst.ratio,
            worst is not None and worst.is_too_far,
            "" if worst is None else worst.neighbours.what,
            search.n_pairs.get((task, index), 0),
            test_noise([drawer.cells[key] for key in keys if key in drawer.cells]),
        )
