"""What leaves clients beside the releases, and whether the privacy report lists and counts all of it."""

from __future__ import annotations

import math
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
    new_context,
    patient,
    watched_run,
)
from flower_fedclust.engine import ClientData, Sum
from flower_fedclust.engine.client import ENROL
from flower_fedclust.engine.rounds import Askable
from flower_fedclust.engine.run import EVALUATE
from flower_fedclust.engine.wire import EXPONENTS, decode, encode, size_of
from flower_fedclust.privacy.accounting import SAMPLING_PART
from flower_fedclust.privacy.report import PrivacyReport

#: Relative error of an epsilon that is counted again: both are rounded upwards.
TOLERANCE = 2e-3

#: A larger epsilon is no privacy at all, and is only estimated.
LARGEST_COUNTED = 1e5

ORDERS = (*range(2, 33), *range(36, 65, 4), 80, 128, 256)

#: How often a client that fails is asked with each of two tables, and the p-value at which the rates differ.
REPEATED, FAILURES_DIFFER = 40, 1e-4

#: What a report has to say is not covered, and a word by which it does.
NOT_COVERED = {"labels and metrics": "metrics", "answer times": "how long it takes", "failures": "fails"}


@dataclass(frozen=True)
class Fact:
    """Something of a run that is no noisy array, and whether rows can be seen in it."""

    what: str
    covered: str  #: Why it is covered, or how the report says that it is not.


# Epsilon, counted again from the rounds that ran and from who was asked.


def counted_epsilon(run: WatchedRun, delta: float) -> float:
    """Return the largest epsilon, over the clients, that the releases of a run compose to."""
    largest = 0.0
    for client in run.data:
        asked = [number for number in run.rounds if any(one.client == client for one in run.asked(number))]
        rounds = [[release for _, release in run.noisy(number)] for number in asked]
        releases = [release for together in rounds for release in together]
        if not releases:
            continue
        epsilon = epsilon_of(
            [release.noise_multiplier for release in releases if release.mechanism == "gaussian"],
            [release.noise_multiplier for release in releases if release.mechanism == "laplace"],
            delta,
        )
        if any(release.sample for release in releases):
            epsilon = min(epsilon, _epsilon_of_samples(rounds, delta))
        largest = max(largest, epsilon)
    return largest


def epsilon_of(gaussian: Sequence[float], laplace: Sequence[float], delta: float) -> float:
    """Return the epsilon of releases with these noise multipliers, by dp-accounting's privacy loss distributions."""
    return _epsilon_of(tuple(sorted(gaussian)), tuple(sorted(laplace)), delta)


@lru_cache(maxsize=64)
def _epsilon_of(gaussian: tuple[float, ...], laplace: tuple[float, ...], delta: float) -> float:
    with np.errstate(over="ignore"):
        squared, pure = (float(np.sum(np.power(m, power))) for m, power in ((gaussian, -2.0), (laplace, -1.0)))
    rough = 0.5 * squared + math.sqrt(2.0 * squared * math.log(1.0 / delta)) + pure
    if not rough < LARGEST_COUNTED:
        return rough  # an upper bound
    accountant = pld.PLDAccountant(value_discretization_interval=max(5e-5 * rough, 1e-6))
    if gaussian:  # together they are one Gaussian release
        accountant.compose(dp_accounting.GaussianDpEvent(squared**-0.5))
    for multiplier, n_releases in sorted(Counter(laplace).items()):
        accountant.compose(dp_accounting.LaplaceDpEvent(multiplier), n_releases)
    return min(rough, float(accountant.get_epsilon(delta)))


def _epsilon_of_samples(rounds: Sequence[Sequence[Any]], delta: float) -> float:
    """Return the epsilon by Renyi divergences; releases of one round are about the same sample."""
    accountant = rdp.RdpAccountant(ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
    for releases in rounds:
        joint: dict[tuple[int, int] | None, float] = {}
        for release in releases:
            joint[release.sample] = joint.get(release.sample, 0.0) + release.noise_multiplier**-2
        for sample, precision in joint.items():
            event: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(precision**-0.5)
            if sample is not None and sample[0] < sample[1]:
                event = dp_accounting.SampledWithoutReplacementDpEvent(sample[1], sample[0], event)
            accountant.compose(event)
    return float(accountant.get_epsilon(delta))


# What the wire carries, and what the report says of it.


def findings_of_wire(run: WatchedRun) -> list[str]:
    """Name everything that clients send without declaring it, or that the report does not list as it left."""
    report = run.strategy.report
    listed = {(message.round, message.task, message.content) for message in report.messages}
    found = dict[str, None]()
    for exchange in run.exchanges:
        task = exchange.task
        asked = getattr(run.strategy.client_type, task, None)
        if task != ENROL and not isinstance(asked, Askable):
            found[f"clients answer '{task}', which is not marked with @answers"] = None
        if exchange.res is None:
            continue
        allowed = {"format", "client", "failure", "missed", "columns" if task == ENROL else EXPONENTS}
        if more := set(exchange.res.metrics) - allowed:
            found[f"'{task}' sends {', '.join(sorted(more))} beside its arrays"] = None
        if exchange.res.num_examples != 1:
            found[f"'{task}' tells how many rows a client has"] = None
        if exchange.has_failed or not isinstance(asked, Askable):
            continue
        round_ = run.rounds.get(exchange.round)
        answer = asked.answer if round_ is None or round_.task != task else round_.answer
        sends = () if answer.keeps else answer.sends
        if len(exchange.arrays) != len(sends):
            found[f"'{task}' declares {len(sends)} arrays and sends {len(exchange.arrays)}"] = None
        for sent in sends:
            if (exchange.round, task, sent.content) not in listed:
                found[f"'{sent.content}' of round {exchange.round} is not in the report"] = None
    for message in report.messages:
        if message.harmless and message.task != ENROL:
            found[f"'{message.content}' is called harmless"] = None
        if message.is_protected and message in report.unprotected:
            found[f"'{message.content}' carries noise and is listed as unprotected"] = None
    return list(found | dict.fromkeys(unlisted(run, report)))


def unlisted(run: WatchedRun, report: PrivacyReport, *, lacks_replies: bool = False) -> list[str]:
    """Name what a run's rounds release that the report does not list as it left.

    If replies were lost, shares of the noise may be lost with them; then a release may be listed as unprotected.
    """
    listed = {(message.round, message.task, message.content): message for message in report.messages}
    unprotected = {(message.round, message.task, message.content) for message in report.unprotected}
    found: list[str] = []
    for number, round_, sent, release, from_noisy in run.declared():
        key = (number, round_.task, sent.content)
        if sent.kept_as and release is None:
            continue
        if key not in listed:
            found.append(f"'{sent.content}' of round {number} is not in the report")
            continue
        free = release is not None or from_noisy or (sent.counts_rows and report.relation == "replace")
        if not free and key not in unprotected:
            found.append(f"'{sent.content}' of round {number} has no noise, and is not listed as unprotected")
        if release is not None and listed[key].release != release and not (lacks_replies and key in unprotected):
            found.append(f"the report has another release of '{sent.content}' of round {number} than the run")
        clients = listed[key].clients
        if clients is not None and not {one.client for one in run.asked(number)} <= set(clients):
            found.append(f"the report counts round {number} for fewer clients than were asked")
    if any(site.has_evaluated for site in run.sites) and all(message.task != EVALUATE for message in report.messages):
        found.append("clients evaluate the model, and that is not in the report")
    return found


def findings_of_books(run: WatchedRun, epsilon_counted: float) -> list[str]:
    """Name what the privacy report of a run understates or does not say."""
    report: PrivacyReport = run.strategy.report
    found = list(_too_large_samples(run))
    asked = run.strategy.epsilon
    if asked is not None and run.strategy.privacy_unit in run.strategy.promises and not report.covers_everything:
        lacking = ", ".join(f"'{content}'" for content in dict.fromkeys(one.content for one in report.unprotected))
        found.append(f"a guarantee per {run.strategy.privacy_unit} is promised, and nothing covers {lacking or 'it'}")
    if not report.releases:
        return found
    if asked is not None:
        stated, composed = report.epsilon, report.composed_epsilon
        if stated < asked:
            found.append(f"the report states epsilon {stated:.4g} after the run, and {asked:g} was calibrated")
        for what, limit, tolerance in (
            (f"the report states epsilon {stated:.4g}", stated, TOLERANCE),
            (f"epsilon {asked:g} was asked for", asked, TOLERANCE),
            (f"the report composes the releases to epsilon {composed:.4g}", composed, 5 * TOLERANCE),
        ):
            if epsilon_counted > limit * (1 + tolerance) + (1e-6 if tolerance == TOLERANCE else 1e-4):
                found.append(f"{what}, and the releases compose to {epsilon_counted:.4g}")
    said = " ".join(report.assumptions())
    found += [
        f"the report does not say that {what} are not covered" for what, w in NOT_COVERED.items() if w not in said
    ]
    return found + _findings_of_sampler(run, report)


def _too_large_samples(run: WatchedRun) -> Iterator[str]:
    """Name releases that claim a sample from more rows than some client has."""
    for number in run.rounds:
        fewest = min((len(run.data[one.client].rows) for one in run.asked(number)), default=0)
        for index, release in run.noisy(number):
            if release.sample is not None and release.sample[1] > fewest:
                content = run.rounds[number].answer.sends[index].content
                yield f"'{content}' is said to draw rows from {release.sample[1]}, and a client has {fewest}"


def _findings_of_sampler(run: WatchedRun, report: PrivacyReport) -> list[str]:
    """Check that the report counts how far the drawn noise is from its law."""
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


def facts_under_neighbors(run: WatchedRun, client: str, pairs: Sequence[Neighbors]) -> tuple[list[str], list[Fact]]:
    """Name what differs between replies of neighbors though no noise covers it, and say what was compared."""
    found, failures = dict[str, None](), dict[str, None]()
    covered = "the same for neighbors"
    seconds: list[tuple[float, float]] = []
    for pair in pairs:
        if pair.others is None or (run.strategy.privacy_unit == "client" and len(pair.rows) != len(pair.others)):
            continue
        one, other, again = (_replies(run, client, rows) for rows in (pair.rows, pair.others, pair.rows))
        if any(reply["failure"] for reply in [*one, *other, *again]):
            failures |= dict.fromkeys(_failures(run, client, pair))
            covered = "there are some, no more often for one of two neighbors than for the other"
        for first, second, third in zip(one, other, again, strict=True):
            seconds.append((first["seconds"], second["seconds"]))
            if any(reply["failure"] for reply in (first, second, third)):
                continue
            for what in ("number of examples", "metrics", "size of the reply"):
                # What differs between two answers of one table shows nothing about two tables.
                if first[what] != second[what] and first[what] == third[what]:
                    found[f"the {what} of '{first['task']}' is not the same for neighbors ({pair.what})"] = None
    n_ran, n_most = len(run.rounds), run.strategy.num_rounds - 1
    if n_ran > n_most:
        found[f"{n_ran} rounds ran, and {n_most} were announced"] = None
    # Every report says that failures are not covered. They are shown because a client that fails for one row gives
    # that row away.
    where = f"NOT the same for neighbors: {', '.join(failures)}; not covered, and the report says so"
    facts = [
        Fact(
            "number of examples, metrics, sizes of messages",
            f"{'NOT ' if found else ''}the same for neighbors in {len(seconds)} replies",
        ),
        Fact("failures", where if failures else covered),
    ]
    if seconds:
        medians = 1e3 * np.median(np.array(seconds), axis=0)
        said = f"not covered, and the report says so ({medians[0]:.1f} and {medians[1]:.1f} ms)"
        facts.append(Fact("time of an answer", said))
    facts.append(Fact("number of rounds", f"{n_ran} of at most {n_most}; the server decides it from what it received"))
    return list(found), facts


def _failures(run: WatchedRun, client: str, pair: Neighbors) -> list[str]:
    """Name failures that are more frequent with one of two tables; a client may also fail at random."""
    both = [Counter[tuple[str, str]](), Counter[tuple[str, str]]()]
    for counts, rows in zip(both, (pair.rows, pair.others), strict=True):
        for seed in range(REPEATED):
            counts.update((one["task"], one["failure"]) for one in _replies(run, client, rows, seed) if one["failure"])
    found, n_messages = [], Counter(one.task for one in run.to_client(client))
    for task, why in sorted(both[0] | both[1]):
        n = REPEATED * n_messages[task]
        one, other = both[0][task, why], both[1][task, why]
        if float(fisher_exact([[one, n - one], [other, n - other]]).pvalue) < FAILURES_DIFFER:
            found.append(f"{task} ({pair.what}: {one} and {other} of {n})")
    return found


def _replies(run: WatchedRun, client: str, rows: Any, seed: int = 0) -> list[dict[str, Any]]:
    data = ClientData(rows, owner=f"client {client}")
    make = partial(run.strategy.client_type, data, name=client, context=new_context(), noise_seed=seed)
    found = []
    for exchange in run.to_client(client):
        start = time.perf_counter()
        arrays, n_examples, facts = answer_to(make, exchange.ins, tries=1)
        seconds = time.perf_counter() - start
        round_ = run.rounds.get(exchange.round)
        per_row = round_ is not None and any(sent.per == "row" for sent in round_.answer.sends)
        found.append(
            {
                "task": exchange.task,
                "number of examples": n_examples,
                "metrics": {key: value for key, value in facts.items() if key != "failure"},
                "failure": facts.get("failure"),
                "size of the reply": None if per_row else size_of(encode(arrays)),
                "seconds": seconds,
            }
        )
    return found


# Runs in which replies are lost.


def _gone(_number: int, honest: Callable[[], FitRes]) -> FitRes:
    """Answer, but lose the reply: what left the client counts."""
    honest()
    raise TimeoutError("gone")


def _unusable(_number: int, honest: Callable[[], FitRes]) -> FitRes:
    """Answer with an array too many."""
    res = honest()
    return replace(res, parameters=encode([*decode(res.parameters), np.zeros(1)]))


def findings_of_losses(subject: Subject, deadline: float = math.inf) -> tuple[list[str], list[str]]:
    """Name what the report lacks if replies are lost or cannot be used, and what there was no time to examine.

    One client's reply is lost, then all but one, then all; and all in the last round of every other task.
    """
    if not subject.releases:
        return [], []
    run, number = subject.run, subject.releases[-1][0]
    asked = {exchange.client for exchange in run.asked(number)}
    last = {round_.task: number for number, round_ in run.rounds.items()}
    addressed = {other: {one.client for one in run.exchanges if one.round == other} for other in last.values()}
    cases = [
        (number, asked & {subject.names[-1]}, _gone, "one client does not answer"),
        (number, asked - {min(asked)}, _gone, "one client alone answers"),
        (number, asked, _gone, "nobody answers"),
        (number, asked, _unusable, "no answer can be used in"),
        *((other, names, _gone, "nobody answers") for other, names in addressed.items() if other != number),
    ]
    found, left = list[str](), list[str]()
    for index, (number, silent, tamper, what) in enumerate(cases):
        if index > 2 and time.perf_counter() > deadline:
            left.append(f"what the report says where {what} round {number}")
        elif silent:
            found += _findings_of_loss(subject, silent, number, tamper)
    return list(dict.fromkeys(found)), left


def _findings_of_loss(subject: Subject, silent: set[str], number: int, tamper: Tamper) -> list[str]:
    run = _run_without(subject, silent, number, tamper)
    report = run.strategy.report if run.error is None else getattr(run.error, "privacy_report", None)
    if report is None:
        return [f"a run that ends early, in round {number}, leaves no privacy report"]
    found = unlisted(run, report, lacks_replies=True)
    epsilon, round_ = subject.strategy.epsilon, subject.run.rounds[number]
    if epsilon is not None and not any(re.search(rf"\bround {number}\b", note) for note in report.notes):
        found.append(f"the report does not say that replies to round {number} were not used")
    if run.error is not None:
        if not any("ended early" in note for note in report.notes):
            found.append("the report of a run that ended early does not say so")
        if epsilon is not None and report.releases and report.epsilon < epsilon:
            found.append(f"a run that ended early states epsilon {report.epsilon:.4g}, less than was calibrated")
        return found
    if not silent <= {failure.client for failure in run.strategy.failures}:
        found.append(f"a client does not answer round {number}, and is not among the failures")
    in_shares = subject.strategy.noise == "clients" and subject.strategy.min_clients is None and any(round_.releases)
    is_used = run.received.get(number) is not None  # or the round was given up
    if in_shares and is_used and isinstance(round_, Sum) and not round_.answer.keeps:
        found.append(f"a client is missing in round {number}, and its share of the noise is missing from the sum")
    return found


def _run_without(subject: Subject, silent: set[str], number: int, tamper: Tamper) -> WatchedRun:
    def of_round(current: int, honest: Callable[[], FitRes]) -> FitRes:
        return tamper(current, lambda: patient(current, honest)) if current == number else patient(current, honest)

    tampers = {name: of_round if name in silent else patient for name in subject.names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return watched_run(subject.strategy, subject.data, seed=SEED, tamper=tampers, keeps_error=True)
