"""What left the clients beside the releases, and whether it is said: metrics, sizes, failures, rounds, books."""

from __future__ import annotations

import math
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from flwr.common import FitRes
from scipy.stats import fisher_exact

from flower_fedclust.checking.counting import TOLERANCE
from flower_fedclust.checking.neighbours import Neighbours
from flower_fedclust.checking.runs import Run, Tamper, answer_to, new_context, patient, watched_run
from flower_fedclust.checking.subject import SEED, Subject
from flower_fedclust.engine import ClientData, Sum
from flower_fedclust.engine.client import ENROL
from flower_fedclust.engine.rounds import Askable
from flower_fedclust.engine.run import EVALUATE
from flower_fedclust.engine.wire import EXPONENTS, decode, encode, size_of
from flower_fedclust.privacy.accounting import SAMPLING_PART
from flower_fedclust.privacy.report import PrivacyReport

#: A client that fails is asked so often with each of two tables; the rates differ if chance makes that so rarely.
REPEATED, FAILURES_DIFFER = 40, 1e-4


@dataclass(frozen=True)
class Fact:
    """Something of a run that is no noisy array, and whether rows can be seen in it."""

    what: str
    covered: str  #: Why it is covered, or how it is said that it is not.


def findings_of_books(run: Run, epsilon_counted: float) -> list[str]:
    """Return what the privacy report of a run leaves out or understates."""
    report: PrivacyReport = run.strategy.report
    found = [*_unlisted(run, report), *_samples(run)]
    asked = run.strategy.epsilon
    if asked is not None and run.strategy.privacy_unit in run.strategy.promises and not report.covers_everything:
        lacking = ", ".join(f"'{content}'" for content in dict.fromkeys(one.content for one in report.unprotected))
        found.append(f"a guarantee per {run.strategy.privacy_unit} is promised, and nothing covers {lacking or 'it'}")
    if report.releases and asked is not None:
        stated = report.epsilon
        if stated < asked:
            found.append(f"the report states epsilon {stated:.4g} after the fact, and {asked:g} was calibrated")
        if epsilon_counted > stated * (1 + TOLERANCE) + 1e-6:
            found.append(f"the report states epsilon {stated:.4g}, and the releases compose to {epsilon_counted:.4g}")
        if epsilon_counted > asked * (1 + TOLERANCE) + 1e-6:
            found.append(f"epsilon {asked:g} was asked for, and the releases compose to {epsilon_counted:.4g}")
        if epsilon_counted > report.composed_epsilon * (1 + 5 * TOLERANCE) + 1e-4:
            found.append(
                f"the report composes the releases to {report.composed_epsilon:.4g}, and they are {epsilon_counted:.4g}"
            )
    if report.releases:
        said = " ".join(report.assumptions())
        for what, word in (
            ("labels and metrics", "metrics"),
            ("answer times", "how long it takes"),
            ("failures", "fails"),
        ):
            if word not in said:
                found.append(f"the report does not say that {what} are not covered")
        found += _sampler(run, report)
    return found


def _samples(run: Run) -> list[str]:
    """Return whether a client that was asked has fewer rows than those of which a release says that they are drawn."""
    found = []
    for number, round_ in run.rounds.items():
        fewest = min((len(run.data[one.client].rows) for one in run.asked(number)), default=0)
        for release, sent in zip(round_.releases, round_.answer.sends, strict=False):
            if release is not None and release.sample is not None and release.sample[1] > fewest:
                found.append(
                    f"'{sent.content}' is said to be of rows that are drawn from {release.sample[1]}, and a client has "
                    f"{fewest}"
                )
    return list(dict.fromkeys(found))


def _sampler(run: Run, report: PrivacyReport) -> list[str]:
    """Return whether the distance of the drawn noise from its law is counted: each release owes something of it."""
    owed = sum(message.variation <= 0 for message in report.releases)
    if owed:
        return [f"of {owed} releases it is not counted how far their noise is from its law"]
    asked, delta = run.strategy.epsilon, report.delta
    if asked is None or delta is None:
        return []
    variation = math.fsum(message.variation for message in report.messages)
    with np.errstate(over="ignore"):
        enough = float((1.0 + np.exp(asked)) * variation) <= SAMPLING_PART * delta
    return (
        [] if enough == report.is_noise_exact_enough else ["the report takes the drawn noise to be exacter than it is"]
    )


def _unlisted(run: Run, report: PrivacyReport, *, lacks_replies: bool = False) -> list[str]:
    """Return what left the clients, round by round, and is not in the report as it left.

    Where replies are lacking, shares of the noise may be: then the report may have no release of what was sent.
    """
    listed = {(message.round, message.task, message.content): message for message in report.messages}
    unprotected = {(message.round, message.task, message.content) for message in report.unprotected}
    noisy_rows: set[str] = set()
    found: list[str] = []
    for number, round_ in run.rounds.items():
        releases = list(round_.releases) or [None] * len(round_.answer.sends)
        derived = bool(round_.rows) and round_.rows in noisy_rows
        for sent, release in zip(round_.answer.sends, releases, strict=True):
            noisy = release is not None and release.scale > 0
            key = (number, round_.task, sent.content)
            if sent.kept_as:
                (noisy_rows.add if noisy or derived else noisy_rows.discard)(sent.kept_as)
            if sent.kept_as and not noisy:
                continue
            if key not in listed:
                found.append(f"'{sent.content}' of round {number} is not in the report")
                continue
            free = noisy or derived or (sent.counts_rows and report.relation == "replace")
            if not free and key not in unprotected:
                found.append(f"'{sent.content}' of round {number} has no noise, and is not listed as unprotected")
            if noisy and listed[key].release != release and not (lacks_replies and key in unprotected):
                found.append(f"the report has another release of '{sent.content}' of round {number} than the run")
            clients = listed[key].clients
            if clients is not None and not {one.client for one in run.asked(number)} <= set(clients):
                found.append(f"the report counts round {number} for fewer clients than were asked")
    if any(site.has_evaluated for site in run.sites) and all(message.task != EVALUATE for message in report.messages):
        found.append("clients evaluate the model, and that is not in the report")
    answers = {str(one.ins.config["task"]) for one in run.exchanges} - {ENROL}
    for task in sorted(answers):
        if not isinstance(getattr(run.strategy.client_type, task, None), Askable):
            found.append(f"clients answer '{task}', which is not declared")
    return found


def facts_under_neighbours(run: Run, client: str, pairs: Sequence[Neighbours]) -> tuple[list[str], list[Fact]]:
    """Return in what replies of neighbours differ though no noise covers it, and what was compared."""
    found, failures = dict[str, None](), dict[str, None]()
    covered = "the same for neighbours"
    seconds: list[tuple[float, float]] = []
    for pair in pairs:
        if pair.others is None or (run.strategy.privacy_unit == "client" and len(pair.rows) != len(pair.others)):
            continue
        one, other, again = (_replies(run, client, rows) for rows in (pair.rows, pair.others, pair.rows))
        if any(reply["failure"] for reply in [*one, *other, *again]):
            failures |= dict.fromkeys(_failures(run, client, pair))
            covered = "there are some, no more often for one of two neighbours than for the other"
        for first, second, third in zip(one, other, again, strict=True):
            seconds.append((first["seconds"], second["seconds"]))
            if any(reply["failure"] for reply in (first, second, third)):
                continue
            for what in ("number of examples", "metrics", "size of the reply"):
                # What differs for one and the same table says nothing of how two differ.
                if first[what] != second[what] and first[what] == third[what]:
                    found[f"the {what} of '{first['task']}' is not the same for neighbours ({pair.what})"] = None
    # What every report says is not covered; shown, as a client that fails for one row gives that row away.
    where = f"NOT the same for neighbours: {', '.join(failures)}; not covered, and the report says so"
    facts = [
        Fact(
            "number of examples, metrics, sizes of messages",
            f"{'NOT ' if found else ''}the same for neighbours in {len(seconds)} replies",
        ),
        Fact("failures", where if failures else covered),
    ]
    if seconds:
        medians = 1e3 * np.median(np.array(seconds), axis=0)
        said = f"not covered, and the report says so ({medians[0]:.1f} and {medians[1]:.1f} ms)"
        facts.append(Fact("time of an answer", said))
    for exchange in run.exchanges:
        task = exchange.ins.config["task"]
        allowed = {"format", "client", "failure", "missed", "columns" if task == ENROL else EXPONENTS}
        if exchange.res is not None and (more := set(exchange.res.metrics) - allowed):
            found[f"'{task!s}' sends {', '.join(sorted(more))} beside its arrays"] = None
        if exchange.res is not None and exchange.res.num_examples != 1:
            found[f"'{task!s}' tells how many rows a client has"] = None
    n_ran, n_most = len(run.rounds), run.strategy.num_rounds - 1
    if n_ran > n_most:
        found[f"{n_ran} rounds ran, and {n_most} were announced"] = None
    facts.append(Fact("number of rounds", f"{n_ran} of at most {n_most}; the server decides it from what it received"))
    return list(found), facts


def _failures(run: Run, client: str, pair: Neighbours) -> list[str]:
    """Return which failures are more frequent with one of two tables: a client may fail by a coin of its own."""
    both = [Counter[tuple[str, str]](), Counter[tuple[str, str]]()]
    for counts, rows in zip(both, (pair.rows, pair.others), strict=True):
        for seed in range(REPEATED):
            counts.update((one["task"], one["failure"]) for one in _replies(run, client, rows, seed) if one["failure"])
    found, n_messages = [], Counter(one.ins.config["task"] for one in run.exchanges if one.client == client)
    for task, why in sorted(both[0] | both[1]):
        n = REPEATED * n_messages[task]
        one, other = both[0][task, why], both[1][task, why]
        if float(fisher_exact([[one, n - one], [other, n - other]]).pvalue) < FAILURES_DIFFER:
            found.append(f"{task} ({pair.what}: {one} and {other} of {n})")
    return found


def _replies(run: Run, client: str, rows: Any, seed: int = 0) -> list[dict[str, Any]]:
    data = ClientData(rows, owner=f"client {client}")
    make = partial(run.strategy.client_type, data, name=client, context=new_context(), noise_seed=seed)
    found = []
    for exchange in run.exchanges:
        if exchange.client != client:
            continue
        start = time.perf_counter()
        arrays, n_examples, facts = answer_to(make, exchange.ins, tries=1)
        seconds = time.perf_counter() - start
        round_ = run.rounds.get(exchange.round)
        per_row = round_ is not None and any(sent.per == "row" for sent in round_.answer.sends)
        found.append(
            {
                "task": str(exchange.ins.config["task"]),
                "number of examples": n_examples,
                "metrics": {key: value for key, value in facts.items() if key != "failure"},
                "failure": facts.get("failure"),
                "size of the reply": None if per_row else size_of(encode(arrays)),
                "seconds": seconds,
            }
        )
    return found


# Runs in which something goes wrong.


def _gone(number: int, honest: Callable[[], FitRes]) -> FitRes:  # noqa: ARG001
    """Answer, and have the reply lost: what left the client counts."""
    honest()
    raise TimeoutError("gone")


def _unusable(number: int, honest: Callable[[], FitRes]) -> FitRes:  # noqa: ARG001
    """Answer with an array too many."""
    res = honest()
    return replace(res, parameters=encode([*decode(res.parameters), np.zeros(1)]))


def findings_of_losses(subject: Subject, deadline: float = math.inf) -> tuple[list[str], list[str]]:
    """Return what the books lack where replies are lost or cannot be used, and what of that was not examined.

    One client is lost, then all but one, then all; and all in the last round of every other task.
    """
    if not subject.releases:
        return [], []
    number = subject.releases[-1][0]
    asked = {exchange.client for exchange in subject.run.asked(number)}
    last = {round_.task: number for number, round_ in subject.run.rounds.items()}
    addressed = {other: {one.client for one in subject.run.exchanges if one.round == other} for other in last.values()}
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
    found = _unlisted(run, report, lacks_replies=True)
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


def _run_without(subject: Subject, silent: set[str], number: int, tamper: Tamper) -> Run:
    def of_round(current: int, honest: Callable[[], FitRes]) -> FitRes:
        return tamper(current, lambda: patient(current, honest)) if current == number else patient(current, honest)

    tampers = {name: of_round if name in silent else patient for name in subject.names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return watched_run(subject.strategy, subject.data, seed=SEED, tamper=tampers, keeps_error=True)
