"""The audit, which measures from outside whether a strategy keeps its promises of privacy.

An audit never reads the strategy's code. It runs the strategy, looks for neighboring tables that
move a release further than declared, draws the noise a thousand times and measures the privacy
loss, and compares the report with what was sent. The verdict is "sound" only if there was time to
notice the faults that are looked for; otherwise it is "not shown".
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flower_fedclust.checking.books import (
    Fact,
    counted_epsilon,
    epsilon_of,
    facts_under_neighbors,
    findings_of_books,
    findings_of_losses,
    findings_of_wire,
)
from flower_fedclust.checking.by_row import (
    findings_by_row,
    findings_of_large_tables,
    findings_of_sizes,
)
from flower_fedclust.checking.neighbors import (
    Progress,
    Search,
    extreme_rows,
    far_rows,
    findings_of_samples,
    neighbor_tables,
)
from flower_fedclust.checking.noise import (
    FALSE_ALARM,
    FEWEST,
    OF_NOISE,
    OF_SAMPLES,
    OF_STAND_INS,
    Drawer,
    DrawnNoise,
    Loss,
    NoiseTest,
    compare_with_law,
    examine_sources,
    losses,
)
from flower_fedclust.checking.runs import Subject, patient, small_tables
from flower_fedclust.checking.stand_ins import findings_of_stand_ins
from flower_fedclust.engine import ProtocolError, ProtocolStrategy
from flower_fedclust.engine.progress import quiet
from flower_fedclust.inputs import Clients, RowsChoice, Strategy, read_inputs
from flower_fedclust.numerics.checks import DataError, check_integer, check_real
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.privacy.releases import Mechanism, NoisePlace, PrivacyUnit, Release
from flower_fedclust.privacy.report import PrivacyReport
from flower_fedclust.tables.schema import Schema

Verdict = Literal["sound", "broken", "not shown", "no guarantee"]

#: A verdict of "sound" needs enough draws to notice three faults: noise narrower than WIDTH_NOTICED times its scale,
#: noise cut off at CUT_NOTICED standard deviations, and a source with BITS_NOTICED bits or fewer.
WIDTH_NOTICED, CUT_NOTICED, BITS_NOTICED = 0.6, 3.0, 16.0

#: The attribute of an error that ended a run; it holds the report on what had left the clients.
RAN = "privacy_report"

#: This many draws (or ``runs``, if that is fewer) are made even when the time is up.
LEAST_DRAWS = 100


@dataclass(frozen=True)
class AuditedRelease:
    """The findings of an audit about one release (one array of one task), over all rounds that make it."""

    rounds: tuple[int, ...]  #: The numbers of the rounds that make this release.
    task: str  #: The name of the question to the clients.
    content: str  #: The content of the array, in words.
    release: Release  #: The release as the last of these rounds declares it.
    moved: float  #: The largest change between neighbors, divided by the declared sensitivity.
    is_too_far: bool  #: Whether ``moved`` exceeds 1 by any amount.
    neighbors: str  #: The neighbors with the largest change.
    n_neighbors: int  #: Number of pairs compared.
    noise: NoiseTest  #: The comparison of the noise with its declared law.

    @property
    def where(self) -> str:
        """The array and its rounds, in words."""
        return f"'{self.content}' in {self.when}"

    @property
    def when(self) -> str:
        """The rounds, in words."""
        first, last = self.rounds[0], self.rounds[-1]
        return f"round {first}" if len(self.rounds) == 1 else f"rounds {first} to {last}"

    def wrong(self, level: float) -> list[str]:
        """Return a clause about each fault; noise is faulty if the p-value of a test is below ``level``."""
        clauses = []
        if self.is_too_far:
            times = f"{self.moved:.6g} times" if self.moved > 1.00001 else "a little more than"
            clauses.append(f"{self.where} moves by {times} its sensitivity ({self.neighbors})")
        clauses += [
            f"the noise of {self.where} is {how} ({self.noise.factor:.3g} times as wide)"
            for how, p_value in self.noise.p_values.items()
            if p_value < level
        ]
        return clauses


@dataclass(frozen=True)
class AuditResult:
    """The findings of an audit. Printing them gives a page.

    The verdict is "broken" if any promise is broken, "no guarantee" if none is made, "not shown" if
    there was too little time to notice every fault that is looked for, and "sound" otherwise.
    """

    strategy: str  #: The name of the strategy.
    epsilon: float | None  #: The promised epsilon, at the promised delta.
    delta: float | None
    unit: PrivacyUnit  #: Whom the guarantee protects.
    noise: NoisePlace  #: Where the noise is drawn.
    releases: tuple[AuditedRelease, ...]
    loss: Loss | None  #: The privacy loss of the neighbors that are easiest to tell apart.
    #: The epsilon to which the releases compose, computed by the audit itself.
    epsilon_counted: float
    findings: tuple[str, ...]  #: A clause about each other broken promise.
    facts: tuple[Fact, ...]  #: Everything that leaves the clients apart from the releases.
    unprotected: tuple[str, ...]  #: The messages that no mechanism covers, according to the report.
    covers_everything: bool  #: Whether the report says that noise covers everything.
    source_bits: float  #: Noise from a source with at most this many bits would have been noticed.
    #: Noise cut off at this many standard deviations would have been noticed.
    tails: Mapping[Mechanism, float]
    n_runs: int  #: The number of times that the noise was drawn.
    not_examined: tuple[str, ...]  #: Checks that the audit left out because the time was up.
    seconds: float  #: The duration of the audit, in seconds.
    #: The largest probability that a sound strategy is called broken.
    false_alarm: float = FALSE_ALARM

    @property
    def level(self) -> float:
        """The p-value below which noise counts as wrong.

        It is so small that all tests together call a sound strategy broken no more often than
        ``false_alarm`` allows.
        """
        n_tests = sum(len(release.noise.p_values) for release in self.releases)
        return self.false_alarm * OF_NOISE / max(n_tests, 1)

    @property
    def broken(self) -> list[str]:
        """A clause about each broken promise."""
        clauses = [clause for release in self.releases for clause in release.wrong(self.level)]
        if (loss := self.loss) is not None:
            if loss.epsilon_at_least > loss.epsilon:
                clauses.append(
                    f"neighbors can be told apart: epsilon is at least {loss.epsilon_at_least:.4g}, and "
                    f"{loss.epsilon:g} is promised ({loss.pair})"
                )
            if loss.delta_at_least > loss.delta:
                clauses.append(
                    f"at epsilon {loss.epsilon:g} delta is at least {loss.delta_at_least:.3g}, and {loss.delta:g} is "
                    f"promised ({loss.pair})"
                )
        return [*clauses, *self.findings]

    @property
    def missing(self) -> list[str]:
        """A clause about each question that too little time or too few draws left open.

        With few draws a test may pass although the noise is wrong. So the audit computes, for each
        fault that it looks for, how large the fault could be and still go unnoticed. If it could be
        large, the verdict is "not shown".
        """
        clauses, unnoticed = [], []
        if self.not_examined:
            more = len(self.not_examined) - 1
            clauses.append(
                f"the time was up before {self.not_examined[0]}"
                + (f", and {more} more" if more else "")
            )
        for release in self.releases:
            if release.n_neighbors == 0:
                clauses.append(f"no neighbors were compared for {release.where}")
            narrow = release.noise.smallest_factor(self.level, release.release.mechanism)
            if narrow < WIDTH_NOTICED:
                unnoticed.append(f"noise of {release.where} could be {narrow:.2g} times as wide")
        if self.releases and self.loss is None:
            clauses.append("no neighbors moved anything, so no privacy loss was measured")
        for mechanism, reach in self.tails.items():
            if reach < CUT_NOTICED:
                unnoticed.append(
                    f"{mechanism} noise could be cut off at {reach:.2g} standard deviations"
                )
        if self.releases and self.source_bits < BITS_NOTICED:
            unnoticed.append(f"noise could come from a source of {self.source_bits:.0f} bits")
        return clauses + [f"too few runs: {fault} unnoticed" for fault in unnoticed]

    @property
    def verdict(self) -> Verdict:
        """The verdict in one or two words; see the class."""
        if self.broken:
            return "broken"
        if not self.releases:
            return "no guarantee"
        return "not shown" if self.missing else "sound"

    @property
    def sentence(self) -> str:
        """The verdict in one line."""
        if self.verdict == "broken":
            more = len(self.broken) - 1
            return f"broken: {self.broken[0]}" + (f"; and {more} more." if more else ".")
        if self.verdict == "no guarantee":
            return "no guarantee is made; the report lists everything that was seen to leave."
        if self.verdict == "not shown":
            return f"not shown: {self.missing[0]}."
        if not self.covers_everything:
            return f"sound as far as seen, but nothing covers {len(self.unprotected)} kinds of message."
        return "sound as far as seen."

    def to_dict(self) -> dict[str, Any]:
        """Return all findings, ready for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        verdict = {
            name: getattr(self, name) for name in ("verdict", "sentence", "broken", "missing")
        }
        return (
            values
            | verdict
            | {
                "releases": [asdict(release) for release in self.releases],
                "loss": None if self.loss is None else self.loss.to_dict(),
                "facts": [asdict(fact) for fact in self.facts],
            }
        )

    def __str__(self) -> str:
        lines = [f"Audit of {self.strategy}: {self.sentence}", ""]
        lines += [f"  broken: {clause}." for clause in self.broken[1:]]
        lines += [
            f"  not shown: {clause}." for clause in self.missing[self.verdict == "not shown" :]
        ]
        if self.not_examined:
            lines += [
                "Not examined, because the time was up:",
                *(f"  {reason}" for reason in self.not_examined),
                "",
            ]
        if self.epsilon is not None and self.releases:
            lines.append(
                f"Promised: epsilon {self.epsilon:g}, delta {self.delta:g} per {self.unit}, noise by {self.noise}. "
                f"Counted again, the releases compose to {self.epsilon_counted:.4g}."
            )
        lines += [*self._lines_of_releases(), *self._lines_of_loss(), "", "Beside the releases:"]
        lines += [f"  {fact.topic}: {fact.covered}" for fact in self.facts]
        lines += [f"  unprotected, as the report says: {content}" for content in self.unprotected]
        lines += ["", f"{self.n_runs} draws, {self.seconds:.1f} seconds."]
        return "\n".join(lines).replace("\n\n\n", "\n\n")

    __repr__ = __str__  # the representation in a notebook

    def _lines_of_releases(self) -> Iterator[str]:
        """Yield the table of the releases, as lines of text."""
        if not self.releases:
            return
        yield from ("", f"{'moved':>9} {'noise':>7} {'numbers':>8}  release")
        for release in self.releases:
            yield (
                f"{release.moved:9.6f} {release.noise.factor:7.3f} {release.noise.n_numbers:8d}  {release.content} "
                f"({release.when}, {release.release.mechanism}, {release.release.sensitivity:.4g})"
            )
        yield "  (moved: over the sensitivity, which is the last number; noise: its width over the declared one)"
        if self.tails:
            reach = " or ".join(f"{reach:.2f} ({kind})" for kind, reach in self.tails.items())
            yield (
                f"All noise together: a cut-off at {reach} standard deviations, or a source of {self.source_bits:.0f} "
                "bits, would have been noticed."
            )

    def _lines_of_loss(self) -> Iterator[str]:
        """Yield the measured privacy loss, as lines of text."""
        if (loss := self.loss) is None:
            return
        how = "from the noise that was drawn" if loss.sees_noise else "from outputs only"
        yield from ("", f"Privacy loss of {loss.n_runs} runs, {how}; neighbors: {loss.pair}.")
        yield (
            f"  largest {loss.largest:.3f}; epsilon at least {loss.epsilon_at_least:.3f} at "
            f"{100 * (1 - self.false_alarm):.10g}% (so many runs show {loss.most_that_can_be_shown:.3f} at most)"
        )
        yield f"  these neighbors, through the declared noise: {loss.expected:.3f}; promised {loss.epsilon:g}"
        yield (
            f"  delta at epsilon {loss.epsilon:g}: seen {loss.delta_seen:.2g}, at most {loss.delta_at_most:.2g}; "
            f"promised {loss.delta:g}"
        )

    def figure(self, path: str | Path) -> Path:
        """Draw the distribution of the privacy loss and the promise as a PNG, and return its absolute path.

        Raises a ValueError if no privacy loss was measured.
        """
        from flower_fedclust.results.pictures import figure_of, saved_figure

        if (loss := self.loss) is None:
            raise ValueError(f"{self.strategy} has no measured privacy loss to draw.")
        figure = figure_of(7.0, 4.2)
        axes = figure.subplots()
        for values, label in (
            (loss.of_one, "runs on one table"),
            (-loss.of_other, "runs on the other"),
        ):
            axes.ecdf(values, complementary=True, label=label)
        axes.axvline(
            loss.epsilon, color="black", linestyle="--", label=f"promised: {loss.epsilon:g}"
        )
        axes.axvline(loss.epsilon_at_least, color="tab:red", label="lower bound on epsilon")
        axes.axhline(loss.delta, color="0.6", linestyle=":", label=f"delta {loss.delta:g}")
        lowest = min(loss.delta, 1.0 / loss.n_runs) / 2
        axes.set(
            xlabel="privacy loss of a run", ylabel="share of the runs that lose more", yscale="log"
        )
        axes.set(ylim=(lowest, 1.5), title=f"{self.strategy}: {self.verdict}")
        axes.set_xlim(right=1.05 * max(loss.largest, loss.epsilon))
        axes.legend(frameon=False, fontsize=8, loc="center left")
        return saved_figure(figure, path)


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
    """Measure from outside whether a strategy keeps its promises of privacy.

    The audit makes a run and keeps its messages. A copy of one client answers them again with pairs
    of tables that differ in one row, or in all rows of the client. The tables are chosen to be
    hard; they show exactly how far a release moves compared with its sensitivity. Answers that are
    a sum over rows are also computed row by row. The noise of every release is drawn again and
    again by the code that draws it in a run, also for large arrays and large entries. This shows
    its law and the privacy loss of all rounds together. Other data that leaves is compared between
    neighbors, and the numbers in the report are computed again. A strategy whose run ends with an
    error is broken.

    Parameters
    ----------
    strategy : ProtocolStrategy, class or str
        As for :func:`~flower_fedclust.simulate`: one of the package or your own. It is not changed.
    clients : optional
        As for :func:`~flower_fedclust.simulate`; by default three small tables within the
        strategy's bounds.
    runs : int, default=1000
        How often the noise of all rounds is drawn. 60 draws show noise that is far too narrow; a
        lower bound on epsilon of 4 takes 1,000.
    seconds : float, optional
        Stop drawing and comparing after this time; the result names what was left out.
    seed : int, optional
        For the audit's random choices, including the default tables; never for the noise.
    false_alarm : float, default=0.001
        The probability that a sound strategy is called broken, over all tests of the audit
        together.
    progress : callable, optional
        Called with the name of the current step and the fraction of the audit that is done.
    labels, names, columns, label_column, client_column, partition, n_clients, schema
        With ``clients``, as for :func:`~flower_fedclust.simulate`. With a schema, the tables are
        prepared before the audit begins; the preparation is not audited.
    **parameters
        Parameters of a strategy given by name or as a class.

    Returns
    -------
    AuditResult

    Raises
    ------
    ValueError
        If a parameter, or one of the strategy's own, is out of range, or if the strategy cannot use
        the rows.
    """
    check_integer("runs", runs, at_least=2)
    if seconds is not None:
        check_real("seconds", seconds, above=0)
    check_real("false_alarm", false_alarm, above=0, below=1)
    if clients is None:
        audited = read_inputs(strategy, RowsChoice(), parameters).strategy
        rows = None if seed is None else small_tables(audited, seed=seed)[0]
    else:
        options = {
            "labels": labels,
            "names": names,
            "columns": columns,
            "schema": schema,
            "seed": seed,
        }
        options |= {"label_column": label_column, "client_column": client_column}
        options |= {"partition": partition, "n_clients": n_clients}
        audited, rows = read_inputs(strategy, clients, parameters, **options).prepared()
    subject = Subject(audited, rows, tamper=patient)
    return audit_subject(
        subject, runs=runs, seconds=seconds, seed=seed, false_alarm=false_alarm, progress=progress
    )


def audit_subject(
    subject: Subject,
    *,
    runs: int,
    seconds: float | None = None,
    seed: int | None = None,
    false_alarm: float = FALSE_ALARM,
    progress: Progress | None = None,
) -> AuditResult:
    """Audit a strategy that may have run already; the parameters are as for :func:`audit`.

    Each step has a share of the time limit, and leaves out what it has no time for:

    1. Make a run and keep its messages; an error ends the audit.
    2. Compare hard neighbors, until half of the time is over.
    3. Compare everything else that leaves the clients with the report. Compare the answers that
       are sums over rows with the answers to single rows and to smaller tables.
    4. If clients draw samples of their rows, test the samples. Draw noise for large arrays.
    5. Draw the noise of the whole run again and again, and test its law and its source.
    6. Measure the privacy loss on the neighbors that are easiest to tell apart.
    """
    start = time.perf_counter()
    says: Progress = progress or (lambda _what, _part: None)
    # An audit provokes failures; they are not logged.
    with (
        quiet(logging.CRITICAL + 1, "flwr", "flower_fedclust"),
        warnings.catch_warnings(),
        one_thread(),
    ):
        warnings.simplefilter("ignore")
        says("a run", 0.0)
        try:
            run = subject.run
        except Exception as error:
            if _is_about_input(error):
                raise
            return _of_failed_run(subject.strategy, error, time.perf_counter() - start, false_alarm)
        # The time limit does not include the run itself, for example its calibration.
        begun = time.perf_counter()
        left = math.inf if seconds is None else max(start + seconds - begun, 0.3)
        search = Search(subject)
        search.compare(begun + 0.5 * left, says)
        counted = counted_epsilon(run, run.strategy.delta)
        findings, facts, late = _beside(subject, search, counted, begun + 0.6 * left)
        at_latest = time.perf_counter() + 0.1 * left
        of_samples, samples_late = findings_of_samples(
            run, search.client, search.worst, OF_SAMPLES * false_alarm, at_latest
        )
        drawer = Drawer(run, search.client, search.worst, search.noise_seed)
        of_stand_ins, stand_ins_late = findings_of_stand_ins(
            run, drawer, OF_STAND_INS * false_alarm, begun + 0.75 * left
        )
        n_runs = _draw(drawer, runs, begun + 0.95 * left, says)
        drawn = list(drawer.drawn.values())
        sources = examine_sources(drawn, list(drawer.seeded.values()), false_alarm)
        loss = _loss(search, drawn, np.random.default_rng(seed), false_alarm)
        late += samples_late + stand_ins_late
        if drawn and n_runs < runs:
            late.append(f"{runs - n_runs} of {runs} draws of the noise")
        says("done", 1.0)
    report = run.strategy.report
    return AuditResult(
        strategy=run.strategy.name,
        epsilon=run.strategy.epsilon,
        delta=run.strategy.delta if run.strategy.epsilon is not None else None,
        unit=run.strategy.privacy_unit,
        noise=run.strategy.noise,
        releases=tuple(_audited(search, drawer)),
        loss=loss,
        epsilon_counted=counted,
        source_bits=sources.bits,
        tails=sources.reach,
        findings=tuple(dict.fromkeys([*findings, *of_samples, *of_stand_ins, *sources.findings])),
        facts=tuple(facts),
        unprotected=tuple(dict.fromkeys(message.content for message in report.unprotected)),
        covers_everything=report.covers_everything,
        n_runs=n_runs,
        not_examined=(*search.not_examined, *late),
        seconds=time.perf_counter() - start,
        false_alarm=false_alarm,
    )


def _is_about_input(error: Exception) -> bool:
    """Tell whether an error is about the rows or the parameters, which the caller has chosen."""
    return isinstance(error, DataError) or (
        isinstance(error, ValueError) and not hasattr(error, RAN)
    )


def _of_failed_run(
    strategy: ProtocolStrategy, error: Exception, seconds: float, false_alarm: float
) -> AuditResult:
    """Return the audit of a strategy whose run ends with an error; nothing else can be examined.

    An error by which the server refuses something is quoted. Any other error may quote values of
    rows, so only its type is named.
    """
    # Refusals by the server are sentences without values; any other error may quote a value.
    said = (
        f": {str(error).rstrip('.')}" if isinstance(error, ProtocolError | AssertionError) else ""
    )
    report: PrivacyReport | None = getattr(error, RAN, None)
    return AuditResult(
        strategy=strategy.name,
        epsilon=strategy.epsilon,
        delta=strategy.delta if strategy.epsilon is not None else None,
        unit=strategy.privacy_unit,
        noise=strategy.noise,
        releases=(),
        loss=None,
        epsilon_counted=0.0,
        source_bits=0.0,
        tails={},
        findings=(f"a run ends with {type(error).__name__}{said}",),
        facts=(),
        unprotected=()
        if report is None
        else tuple(dict.fromkeys(message.content for message in report.unprotected)),
        covers_everything=False,
        n_runs=0,
        not_examined=("anything but the beginning of a run",),
        seconds=seconds,
        false_alarm=false_alarm,
    )


def _beside(
    subject: Subject, search: Search, epsilon_counted: float, deadline: float
) -> tuple[list[str], list[Fact], list[str]]:
    """Examine everything but the releases.

    Returns findings, facts, and the checks that were left out.
    """
    run = subject.run
    rows = subject.data[search.client].rows
    findings = list(search.broken)
    facts: list[Fact] = []
    if subject.releases:
        hard = [*far_rows(rows)[:2], *extreme_rows(rows.shape[1])[2:3]]
        pairs = neighbor_tables(rows, hard, *subject.neighboring)
        more, facts = facts_under_neighbors(run, search.client, pairs)
        findings += more
        if n := search.n_unanswered:
            facts.append(
                Fact(
                    "neighbors",
                    f"{n} of {search.n_compared} were not compared, as the client fails",
                )
            )
    findings += [*findings_of_wire(run), *findings_of_books(run, epsilon_counted)]
    findings += findings_by_row(run, search.client)
    of_sizes, late = findings_of_sizes(run, search.client, deadline)
    if subject.releases:
        of_large, large_late = findings_of_large_tables(
            run, search.client, *subject.neighboring, deadline
        )
        findings, late = [*findings, *of_large], [*late, *large_late]
    of_losses, losses_late = findings_of_losses(subject, deadline)
    return [*findings, *of_sizes, *of_losses], facts, [*late, *losses_late]


def _draw(drawer: Drawer, runs: int, deadline: float, says: Progress) -> int:
    """Draw the noise ``runs`` times, or until the deadline, and return how often it was drawn."""
    if not drawer.drawn:
        return 0
    # Seeded draws show whether two different uses get the same noise.
    for repetition in range(FEWEST):
        drawer.draw(repetition, seeded=True)
    for repetition in range(runs):
        if repetition % 16 == 0:
            says("noise", 0.45 + 0.5 * repetition / runs)
            if repetition >= LEAST_DRAWS and time.perf_counter() > deadline:
                return repetition
        drawer.draw(repetition)
    return runs


def _loss(
    search: Search, drawn: Sequence[DrawnNoise], rng: np.random.Generator, false_alarm: float
) -> Loss | None:
    """Return the privacy loss on the neighbors that are easiest to tell apart; None if no release moved.

    The result also has the epsilon that the declared noise gives for these neighbors.
    """
    strategy, pair = search.run.strategy, search.worst
    if pair is None or strategy.epsilon is None:
        return None
    measured = losses(
        drawn,
        {(change.round, change.index): change.difference for change in search.changes},
        search.client,
        rng,
    )
    if measured is None:
        return None
    through = [
        (change.release.mechanism, change.release.noise_multiplier / change.ratio)
        for change in search.changes
        if change.ratio > 0
    ]
    expected = epsilon_of(through, strategy.delta)
    return Loss(
        strategy.epsilon, strategy.delta, *measured, pair.description, expected, false_alarm
    )


def _audited(search: Search, drawer: Drawer) -> Iterator[AuditedRelease]:
    """Yield the findings about each release: one task, array and mechanism, over all rounds.

    A finding combines the largest change between any two neighbors with the test of all noise that
    was drawn.
    """
    run = search.run
    groups: dict[tuple[str, int, str], list[tuple[int, Release]]] = {}
    for number, index, release in run.releases:
        groups.setdefault((run.rounds[number].task, index, release.mechanism), []).append(
            (number, release)
        )
    for (task, index, _), releases in groups.items():
        worst, last = search.largest.get((task, index)), releases[-1]
        drawn = [
            drawer.drawn[number, index] for number, _ in releases if (number, index) in drawer.drawn
        ]
        yield AuditedRelease(
            tuple(number for number, _ in releases),
            task,
            run.rounds[last[0]].answer.sends[index].content,
            last[1],
            0.0 if worst is None else worst.ratio,
            worst is not None and worst.is_too_far,
            "" if worst is None else worst.neighbors.description,
            search.n_pairs[task, index],
            compare_with_law(drawn),
        )
