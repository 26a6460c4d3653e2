"""Checks that the privacy report lists and counts everything that leaves the clients.

The report is what a hospital's officer reads, so an entry that is missing is as bad as noise that
is missing. These checks compare the report with the messages of a run: is every array declared and
listed, does the epsilon agree with one that is computed by other means, do replies of neighbors
differ in anything but noisy arrays (their size, their failures), and does the report still say the
truth if replies are lost?
"""

from __future__ import annotations

import math
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting import pld, rdp
from flwr.common import FitRes
from scipy.stats import fisher_exact

from flower_fedclust.checking.neighbors import Neighbors
from flower_fedclust.checking.runs import (
    SEED,
    Subject,
    Tamper,
    WatchedRun,
    answer_to,
    data_of,
    new_context,
    patient,
    watched_run,
)
from flower_fedclust.engine import Sum
from flower_fedclust.engine.fields import ENROL
from flower_fedclust.engine.messages import EVALUATE
from flower_fedclust.engine.rounds import Askable
from flower_fedclust.engine.wire import EXPONENTS, HASH, decode, encode, size_of
from flower_fedclust.privacy.accounting import SAMPLING_PART
from flower_fedclust.privacy.releases import Mechanism, Release
from flower_fedclust.privacy.report import PrivacyReport

#: The relative difference that two computations of one epsilon may have, because both round up.
TOLERANCE = 2e-3

#: An epsilon above this, which protects nobody, is only estimated.
LARGEST_COUNTED = 1e5

ORDERS = (*range(2, 33), *range(36, 65, 4), 80, 128, 256)

#: A failing client is asked REPEATED times with each of two tables. Its failure rates differ if the p-value is below
#: FAILURES_DIFFER.
REPEATED, FAILURES_DIFFER = 40, 1e-4

#: A fact that the report must name as not covered -> words that the report then contains.
NOT_COVERED = {
    "labels and metrics": "metrics",
    "answer times": "how long it takes",
    "failures": "fails",
}


@dataclass(frozen=True)
class Fact:
    """Something other than arrays that leaves a client, such as a reply's size or the time it takes."""

    topic: str
    covered: str  #: Why it reveals nothing about rows, or that the report names it as not covered.


# Epsilon, computed again without the package's own accountant.


def counted_epsilon(run: WatchedRun, delta: float) -> float:
    """Return the epsilon to which the releases of a run compose, for the client with the largest one.

    It is computed without this package's accountant.
    """
    largest = 0.0
    for client in run.data:
        rounds = [
            [release for _, release in run.noisy(number)]
            for number in run.rounds
            if any(exchange.client == client for exchange in run.asked(number))
        ]
        releases = [release for together in rounds for release in together]
        if releases:
            epsilon = epsilon_of(
                [(release.mechanism, release.noise_multiplier) for release in releases], delta
            )
            if any(release.sample for release in releases):
                epsilon = min(epsilon, _epsilon_of_samples(rounds, delta))
            largest = max(largest, epsilon)
    return largest


def epsilon_of(releases: Iterable[tuple[Mechanism, float]], delta: float) -> float:
    """Return the epsilon at ``delta`` of releases, given as (mechanism, noise multiplier).

    It uses privacy loss distributions, with all Gaussian releases combined into one. An epsilon
    above :data:`LARGEST_COUNTED` is only estimated, from above.
    """
    return _epsilon_of(tuple(sorted(releases)), delta)


@lru_cache(maxsize=64)
def _epsilon_of(releases: tuple[tuple[Mechanism, float], ...], delta: float) -> float:
    """Compute :func:`epsilon_of` for a sorted tuple, whose results are cached."""
    with np.errstate(over="ignore"):
        squared = float(
            np.sum([np.float64(m) ** -2 for mechanism, m in releases if mechanism == "gaussian"])
        )
        pure = float(
            np.sum([1 / np.float64(m) for mechanism, m in releases if mechanism == "laplace"])
        )
    rough = 0.5 * squared + math.sqrt(2.0 * squared * math.log(1.0 / delta)) + pure
    if not rough < LARGEST_COUNTED:
        return rough  # an upper bound
    accountant = pld.PLDAccountant(value_discretization_interval=max(5e-5 * rough, 1e-6))
    if squared:  # together they are one Gaussian release
        accountant.compose(dp_accounting.GaussianDpEvent(squared**-0.5))
    for (mechanism, multiplier), n_releases in Counter(releases).items():
        if mechanism == "laplace":
            accountant.compose(dp_accounting.LaplaceDpEvent(multiplier), n_releases)
    return min(rough, float(accountant.get_epsilon(delta)))


def _epsilon_of_samples(rounds: Sequence[Sequence[Release]], delta: float) -> float:
    """Return the epsilon of releases that depend on random samples of rows, by Renyi divergences.

    All releases of one round depend on the same sample.
    """
    accountant = rdp.RdpAccountant(ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
    for releases in rounds:
        joint = Counter[tuple[int, int] | None]()
        for release in releases:
            joint[release.sample] += release.noise_multiplier**-2  # type: ignore[assignment]
        for sample, precision in joint.items():
            event: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(precision**-0.5)
            if sample is not None and sample[0] < sample[1]:
                event = dp_accounting.SampledWithoutReplacementDpEvent(sample[1], sample[0], event)
            accountant.compose(event)
    return float(accountant.get_epsilon(delta))


# The messages, compared with the report.


def findings_of_wire(run: WatchedRun) -> list[str]:
    """Name data that clients send without declaring it, and data that the report does not list correctly.

    Every message of the run is taken apart: is its question marked with ``@answers``; does the
    reply carry anything beside its arrays; are there as many arrays as declared; is each of them in
    the report of its round; and does the report call nothing harmless that is not, and nothing
    unprotected that carries noise?
    """
    report = run.strategy.report
    listed = {(message.round, message.task, message.content) for message in report.messages}
    findings = dict[str, None]()
    for exchange in run.exchanges:
        task = exchange.task
        asked = getattr(run.strategy.client_type, task, None)
        if task != ENROL and not isinstance(asked, Askable):
            findings[f"clients answer '{task}', which is not marked with @answers"] = None
        if exchange.res is None:
            continue
        allowed = {
            "format",
            "client",
            "failure",
            "missed",
            HASH,
            "columns" if task == ENROL else EXPONENTS,
        }
        if more := set(exchange.res.metrics) - allowed:
            findings[f"'{task}' sends {', '.join(sorted(more))} beside its arrays"] = None
        if exchange.res.num_examples != 1:
            findings[f"'{task}' tells how many rows a client has"] = None
        if exchange.has_failed or not isinstance(asked, Askable):
            continue
        round_ = run.rounds.get(exchange.round)
        answer = asked.answer if round_ is None or round_.task != task else round_.answer
        sends = () if answer.keeps else answer.sends
        if len(exchange.arrays) != len(sends):
            findings[f"'{task}' declares {len(sends)} arrays and sends {len(exchange.arrays)}"] = (
                None
            )
        for sent in sends:
            if (exchange.round, task, sent.content) not in listed:
                findings[f"'{sent.content}' of round {exchange.round} is not in the report"] = None
    for message in report.messages:
        if message.harmless and message.task != ENROL:
            findings[f"'{message.content}' is called harmless"] = None
        if message.is_protected and message in report.unprotected:
            findings[f"'{message.content}' carries noise and is listed as unprotected"] = None
    return list(findings | dict.fromkeys(unlisted(run, report)))


def unlisted(run: WatchedRun, report: PrivacyReport, *, lacks_replies: bool = False) -> list[str]:
    """Name releases of a run that the report does not list correctly.

    With ``lacks_replies``, shares of the noise may have been lost with replies; a release may then
    be listed as unprotected.
    """
    listed = {
        (message.round, message.task, message.content): message for message in report.messages
    }
    unprotected = {(message.round, message.task, message.content) for message in report.unprotected}
    findings: list[str] = []
    for number, round_, sent, release, from_noisy in run.declared():
        key = (number, round_.task, sent.content)
        if sent.kept_as and release is None:
            continue
        if key not in listed:
            findings.append(f"'{sent.content}' of round {number} is not in the report")
            continue
        free = (
            release is not None or from_noisy or (sent.counts_rows and report.relation == "replace")
        )
        if not free and key not in unprotected:
            findings.append(
                f"'{sent.content}' of round {number} has no noise, and is not listed as unprotected"
            )
        if (
            release is not None
            and listed[key].release != release
            and not (lacks_replies and key in unprotected)
        ):
            findings.append(
                f"the report has another release of '{sent.content}' of round {number} than the run"
            )
        clients = listed[key].clients
        if clients is not None and not {exchange.client for exchange in run.asked(number)} <= set(
            clients
        ):
            findings.append(f"the report counts round {number} for fewer clients than were asked")
    if any(site.has_evaluated for site in run.sites) and all(
        message.task != EVALUATE for message in report.messages
    ):
        findings.append("clients evaluate the model, and that is not in the report")
    return findings


def findings_of_books(run: WatchedRun, epsilon_counted: float) -> list[str]:
    """Name figures that the privacy report of a run understates, and facts that it leaves out.

    ``epsilon_counted`` is the epsilon from :func:`counted_epsilon`.
    """
    report, asked, unit = run.strategy.report, run.strategy.epsilon, run.strategy.privacy_unit
    findings = list(_too_large_samples(run))
    if asked is not None and unit in run.strategy.promises and not report.covers_everything:
        lacking = ", ".join(
            f"'{content}'"
            for content in dict.fromkeys(message.content for message in report.unprotected)
        )
        findings.append(f"a guarantee per {unit} is promised, and nothing covers {lacking or 'it'}")
    if not report.releases:
        return findings
    if asked is not None:
        stated, composed = report.epsilon, report.composed_epsilon
        if stated < asked:
            findings.append(
                f"the report states epsilon {stated:.4g} after the run, and {asked:g} was calibrated"
            )
        for name, limit, tolerance in (
            (f"the report states epsilon {stated:.4g}", stated, TOLERANCE),
            (f"epsilon {asked:g} was asked for", asked, TOLERANCE),
            (
                f"the report composes the releases to epsilon {composed:.4g}",
                composed,
                5 * TOLERANCE,
            ),
        ):
            if epsilon_counted > limit * (1 + tolerance) + (
                1e-6 if tolerance == TOLERANCE else 1e-4
            ):
                findings.append(f"{name}, and the releases compose to {epsilon_counted:.4g}")
    said = " ".join(report.assumptions())
    unsaid = [gap for gap, word in NOT_COVERED.items() if word not in said]
    return (
        findings
        + [f"the report does not say that {gap} are not covered" for gap in unsaid]
        + _sampler_errors(run)
    )


def _too_large_samples(run: WatchedRun) -> Iterator[str]:
    """Name releases that declare a sample from more rows than some client has."""
    for number in run.rounds:
        fewest = min(
            (len(run.data[exchange.client].rows) for exchange in run.asked(number)), default=0
        )
        for index, release in run.noisy(number):
            if release.sample is not None and release.sample[1] > fewest:
                content = run.rounds[number].answer.sends[index].content
                yield f"'{content}' is said to draw rows from {release.sample[1]}, and a client has {fewest}"


def _sampler_errors(run: WatchedRun) -> list[str]:
    """Return a finding if the report does not count how far the drawn noise is from its law."""
    report = run.strategy.report
    owed = sum(message.variation <= 0 for message in report.releases)
    if owed:
        return [f"the report does not count how far the noise of {owed} releases is from its law"]
    asked, delta = run.strategy.epsilon, report.delta
    if asked is None or delta is None:
        return []
    variation = math.fsum(message.variation for message in report.messages)
    with np.errstate(over="ignore"):
        is_enough = float((1.0 + np.exp(asked)) * variation) <= SAMPLING_PART * delta
    wrong = is_enough != report.is_noise_exact_enough
    return ["the report takes the drawn noise to be more exact than it is"] if wrong else []


# Replies of neighbors, compared in everything but their arrays.


@dataclass(frozen=True)
class _Reply:
    """Everything in a reply except its arrays."""

    task: str
    failure: str | None
    about: dict[str, Any]  #: Properties that must be equal for neighbors.
    seconds: float


def facts_under_neighbors(
    run: WatchedRun, client: str, pairs: Sequence[Neighbors]
) -> tuple[list[str], list[Fact]]:
    """Compare the replies of neighbors in everything but their arrays.

    Returns findings about differences that no noise covers, and facts that say what was compared.
    """
    findings, failures = dict[str, None](), dict[str, None]()
    covered = "the same for neighbors"
    seconds: list[tuple[float, float]] = []
    for pair in pairs:
        if pair.others is None or (
            run.strategy.privacy_unit == "client" and len(pair.rows) != len(pair.others)
        ):
            continue
        of_one, of_other, again = (
            _replies(run, client, rows) for rows in (pair.rows, pair.others, pair.rows)
        )
        seconds += [
            (first.seconds, second.seconds) for first, second in zip(of_one, of_other, strict=True)
        ]
        if any(reply.failure for reply in [*of_one, *of_other, *again]):
            failures |= dict.fromkeys(_failures(run, client, pair))
            covered = "there are some, no more often for one of two neighbors than for the other"
        for first, second, third in zip(of_one, of_other, again, strict=True):
            if not (first.failure or second.failure or third.failure):
                for topic in first.about:
                    # If even two answers for the same table differ, a difference between two tables shows nothing.
                    if (
                        first.about[topic] != second.about[topic]
                        and first.about[topic] == third.about[topic]
                    ):
                        findings[
                            f"the {topic} of '{first.task}' is not the same for neighbors ({pair.description})"
                        ] = None
    n_ran, n_most = len(run.rounds), run.strategy.num_rounds - 1
    if n_ran > n_most:
        findings[f"{n_ran} rounds ran, and {n_most} were announced"] = None
    # Every report says that failures are not covered. The audit shows them nevertheless: a client that fails only if it
    # has a certain row gives that row away.
    where = (
        f"NOT the same for neighbors: {', '.join(failures)}; not covered, and the report says so"
    )
    same = f"{'NOT ' if findings else ''}the same for neighbors in {len(seconds)} replies"
    facts = [
        Fact("number of examples, metrics, sizes of messages", same),
        Fact("failures", where if failures else covered),
    ]
    if seconds:
        medians = 1e3 * np.median(np.array(seconds), axis=0)
        said = f"not covered, and the report says so ({medians[0]:.1f} and {medians[1]:.1f} ms)"
        facts.append(Fact("time of an answer", said))
    facts.append(
        Fact(
            "number of rounds",
            f"{n_ran} of at most {n_most}; the server decides it from what it received",
        )
    )
    return list(findings), facts


def _failures(run: WatchedRun, client: str, pair: Neighbors) -> list[str]:
    """Name failures that are more frequent with one of two neighboring tables than with the other.

    A client may also fail at random, so it is asked many times, and Fisher's exact test compares
    the rates.
    """
    both = [
        Counter(
            (reply.task, reply.failure)
            for seed in range(REPEATED)
            for reply in _replies(run, client, rows, seed)
            if reply.failure is not None
        )
        for rows in (pair.rows, pair.others)
    ]
    problems, n_messages = [], Counter(message.task for message in run.to_client(client))
    for task, why in sorted(both[0] | both[1]):
        n = REPEATED * n_messages[task]
        first_count, other = both[0][task, why], both[1][task, why]
        if (
            float(fisher_exact([[first_count, n - first_count], [other, n - other]]).pvalue)
            < FAILURES_DIFFER
        ):
            problems.append(f"{task} ({pair.description}: {first_count} and {other} of {n})")
    return problems


def _replies(run: WatchedRun, client: str, rows: Any, seed: int = 0) -> list[_Reply]:
    """Let a copy of a client with these rows answer all messages, and describe each reply."""
    data = data_of(run.strategy, rows, f"client {client}")
    make = partial(
        run.strategy.client_type, data, name=client, context=new_context(), noise_seed=seed
    )
    replies = []
    for exchange in run.to_client(client):
        start = time.perf_counter()
        arrays, n_examples, facts = answer_to(make, exchange.ins, tries=1)
        seconds = time.perf_counter() - start
        failure, round_ = facts.pop("failure", None), run.rounds.get(exchange.round)
        facts.pop(HASH, None)  # it follows from the arrays, and the server has checked it
        about = {"number of examples": n_examples, "metrics": facts}
        if round_ is None or all(sent.per != "row" for sent in round_.answer.sends):
            about["size of the reply"] = size_of(encode(arrays))
        replies.append(_Reply(exchange.task, failure, about, seconds))
    return replies


# Runs in which replies are lost.


def _gone(_number: int, honest: Callable[[], FitRes]) -> FitRes:
    """Answer, but lose the reply. Its data has left the client, so the report must count it."""
    honest()
    raise TimeoutError("gone")


def _unusable(_number: int, honest: Callable[[], FitRes]) -> FitRes:
    """Answer with one array more than was asked for."""
    res = honest()
    return replace(res, parameters=encode([*decode(res.parameters), np.zeros(1)]))


def findings_of_losses(subject: Subject, deadline: float = math.inf) -> tuple[list[str], list[str]]:
    """Name what the report lacks if replies are lost or unusable.

    A run is made for each case: one client's reply is lost, all replies but one, all replies, and
    all replies in the last round of each other task. Returns the findings, and the cases for which
    there was no time.
    """
    if not subject.releases:
        return [], []
    run, number = subject.run, subject.releases[-1][0]
    asked = {exchange.client for exchange in run.asked(number)}
    last = {round_.task: number for number, round_ in run.rounds.items()}
    addressed = {
        other: {loss.client for loss in run.exchanges if loss.round == other}
        for other in last.values()
    }
    cases = [
        (number, asked & {subject.names[-1]}, _gone, "one client does not answer"),
        (number, asked - {min(asked)}, _gone, "only one client answers"),
        (number, asked, _gone, "nobody answers"),
        (number, asked, _unusable, "no answer can be used in"),
        *(
            (other, names, _gone, "nobody answers")
            for other, names in addressed.items()
            if other != number
        ),
    ]
    lost, left = list[str](), list[str]()
    for index, (number, silent, tamper, event) in enumerate(cases):
        if index > 2 and time.perf_counter() > deadline:
            left.append(f"what the report says where {event} round {number}")
        elif silent:
            lost += _findings_of_loss(subject, silent, number, tamper)
    return list(dict.fromkeys(lost)), left


def _findings_of_loss(subject: Subject, silent: set[str], number: int, tamper: Tamper) -> list[str]:
    """Return the findings about one run in which ``tamper`` changes or loses the replies of ``silent`` clients.

    Such a run may go on or end early. In both cases the report must count what had left the clients
    by then, say which round was not used, and name the clients that failed. If shares of the noise
    are lost, the sum must not be used.
    """
    run = _run_without(subject, silent, number, tamper)
    report = (
        run.strategy.report if run.error is None else getattr(run.error, "privacy_report", None)
    )
    if report is None:
        return [f"a run that ends early, in round {number}, leaves no privacy report"]
    findings = unlisted(run, report, lacks_replies=True)
    epsilon, round_ = subject.strategy.epsilon, subject.run.rounds[number]
    if epsilon is not None and not any(
        re.search(rf"\bround {number}\b", note) for note in report.notes
    ):
        findings.append(f"the report does not say that replies to round {number} were not used")
    if run.error is not None:
        if not any("ended early" in note for note in report.notes):
            findings.append("the report of a run that ended early does not say so")
        if epsilon is not None and report.releases and report.epsilon < epsilon:
            findings.append(
                f"a run that ended early states epsilon {report.epsilon:.4g}, less than was calibrated"
            )
        return findings
    if not silent <= {failure.client for failure in run.strategy.failures}:
        findings.append(f"a client does not answer round {number}, and is not among the failures")
    in_shares = (
        subject.strategy.noise == "clients"
        and subject.strategy.min_clients is None
        and any(round_.releases)
    )
    is_used = run.received.get(number) is not None  # otherwise the run has given the round up
    if in_shares and is_used and isinstance(round_, Sum) and not round_.answer.keeps:
        findings.append(
            f"a client is missing in round {number}, and its share of the noise is missing from the sum"
        )
    return findings


def _run_without(subject: Subject, silent: set[str], number: int, tamper: Tamper) -> WatchedRun:
    """Make a run in which the ``silent`` clients treat one round as ``tamper`` says."""

    def of_round(current: int, honest: Callable[[], FitRes]) -> FitRes:
        return (
            tamper(current, lambda: patient(current, honest))
            if current == number
            else patient(current, honest)
        )

    tampers = {name: of_round if name in silent else patient for name in subject.names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return watched_run(
            subject.strategy, subject.data, seed=SEED, tamper=tampers, keeps_error=True
        )
