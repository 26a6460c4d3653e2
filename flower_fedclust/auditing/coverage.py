"""What left the clients beside the releases, and whether it is said: metrics, sizes, failures, rounds, books."""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict
from flwr.app.user_config import UserConfig
from flwr.common import FitRes

from flower_fedclust.auditing.counting import TOLERANCE
from flower_fedclust.privacy.report import PrivacyReport
from flower_fedclust.privacy.shares import SAMPLING_PART
from flower_fedclust.protocol import ClientData, Sum
from flower_fedclust.protocol.client import ENROL
from flower_fedclust.protocol.replies import EXPONENTS
from flower_fedclust.protocol.rounds import Askable
from flower_fedclust.protocol.wire import decode, encode, size_of
from flower_fedclust.watching.neighbours import Neighbours
from flower_fedclust.watching.runs import Run, watched_run
from flower_fedclust.watching.subject import Subject


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


def _unlisted(run: Run, report: PrivacyReport) -> list[str]:
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
            if noisy and listed[key].release != release:
                found.append(f"the report has another release of '{sent.content}' of round {number} than the run")
            clients = listed[key].clients
            if clients is not None and not {one.client for one in run.asked(number)} <= set(clients):
                found.append(f"the report counts round {number} for fewer clients than were asked")
    answers = {str(one.ins.config["task"]) for one in run.exchanges} - {ENROL}
    for task in sorted(answers):
        if not isinstance(getattr(run.strategy.client_type, task, None), Askable):
            found.append(f"clients answer '{task}', which is not declared")
    return found


def facts_under_neighbours(run: Run, client: str, pairs: Sequence[Neighbours]) -> tuple[list[str], list[Fact]]:
    """Return in what replies of neighbours differ though no noise covers it, and what was compared.

    Returns
    -------
    findings : list of str
    facts : list of Fact
    """
    found: dict[str, None] = {}
    failed: dict[str, None] = {}
    seconds: list[tuple[float, float]] = []
    n_replies = 0
    for pair in pairs:
        if pair.others is None or (run.strategy.privacy_unit == "client" and len(pair.rows) != len(pair.others)):
            continue
        one, other = _replies(run, client, pair.rows), _replies(run, client, pair.others)
        for first, second in zip(one, other, strict=True):
            task = first["task"]
            n_replies += 1
            seconds.append((first["seconds"], second["seconds"]))
            if first["failure"] != second["failure"]:
                failed[f"{task} ({pair.what})"] = None
                continue
            for what in ("number of examples", "metrics"):
                if first[what] != second[what]:
                    found[f"the {what} of '{task}' is not the same for neighbours ({pair.what})"] = None
            if first["size"] != second["size"] and not first["per row"]:
                found[f"the size of the reply to '{task}' is not the same for neighbours ({pair.what})"] = None
        if len(found) > 5:
            break
    facts = [
        Fact(
            "number of examples, metrics, sizes of messages",
            f"the same for neighbours in {n_replies} replies",
        ),
    ]
    # What every report says is not covered; shown, as a client that fails for one row gives that row away.
    where = f"NOT the same for neighbours: {', '.join(failed)}; not covered, and the report says so"
    facts.append(Fact("failures", where if failed else "the same for neighbours"))
    for exchange in run.exchanges:
        if exchange.res is None:
            continue
        allowed = {"client", "columns"} if exchange.ins.config["task"] == ENROL else {"client", EXPONENTS}
        if more := set(exchange.res.metrics) - allowed:
            found[f"'{exchange.ins.config['task']!s}' sends {', '.join(sorted(more))} beside its arrays"] = None
        if exchange.res.num_examples != 1:
            found[f"'{exchange.ins.config['task']!s}' tells how many rows a client has"] = None
    if seconds:
        medians = np.median(np.array(seconds), axis=0)
        facts.append(
            Fact(
                "time of an answer",
                f"not covered, and the report says so ({1e3 * medians[0]:.1f} and {1e3 * medians[1]:.1f} ms)",
            )
        )
    n_ran, n_most = len(run.rounds), run.strategy.num_rounds - 1
    if n_ran > n_most:
        found[f"{n_ran} rounds ran, and {n_most} were announced"] = None
    facts.append(Fact("number of rounds", f"{n_ran} of at most {n_most}; the server decides it from what it received"))
    return list(found), facts


def _replies(run: Run, client: str, rows: Any) -> list[dict[str, Any]]:
    context = Context(0, 0, UserConfig(), RecordDict(), UserConfig())
    data = ClientData(rows, owner=f"client {client}")
    found = []
    for exchange in run.exchanges:
        if exchange.client != client:
            continue
        shadow = run.strategy.client_type(data, name=client, context=context, noise_seed=0)
        start = time.perf_counter()
        arrays, n_examples, facts = shadow.fit(decode(exchange.ins.parameters), dict(exchange.ins.config))
        seconds = time.perf_counter() - start
        round_ = run.rounds.get(exchange.round)
        found.append(
            {
                "task": str(exchange.ins.config["task"]),
                "number of examples": n_examples,
                "metrics": {key: value for key, value in facts.items() if key != "failure"},
                "failure": facts.get("failure"),
                "size": size_of(encode(arrays)),
                "per row": round_ is not None and any(sent.per == "row" for sent in round_.answer.sends),
                "seconds": seconds,
            }
        )
    return found


# Runs in which something goes wrong.


def findings_of_losses(subject: Subject) -> list[str]:
    """Return what the books lack where a client does not answer, and where a run ends before it should."""
    releases = subject.releases
    if not releases:
        return []
    found: list[str] = []
    victim = subject.names[-1]
    number = releases[-1][0]
    run, report, raised = _run_without(subject, {victim}, number)
    summed = isinstance(subject.run.rounds[number], Sum) and not subject.run.rounds[number].answer.keeps
    asked = {exchange.client for exchange in subject.run.asked(number)}
    if (
        victim in asked
        and subject.strategy.noise == "clients"
        and summed
        and run is not None
        and run.received.get(number) is not None  # or the round was given up
        and subject.strategy.min_clients is None
    ):
        found.append(f"a client is missing in round {number}, and its share of the noise is missing from the sum")
    if victim in asked and report is not None:
        found += _said(report, number, subject)
        if run is not None and not any(failure.client == victim for failure in run.strategy.failures):
            found.append(f"a client does not answer round {number}, and is not among the failures")
    _, report, raised = _run_without(subject, asked - {next(iter(sorted(asked)))}, number)
    if raised:
        if report is None:
            found.append(f"a run that ends early, in round {number}, leaves no privacy report")
        else:
            found += _said(report, number, subject)
            if not any("ended early" in note for note in report.notes):
                found.append("the report of a run that ended early does not say so")
            if not any(message.round == number for message in report.messages):
                found.append(f"what the server held when the run ended in round {number} is not in the report")
            if subject.strategy.epsilon is not None and report.releases and report.epsilon < subject.strategy.epsilon:
                found.append(f"a run that ended early states epsilon {report.epsilon:.4g}, less than was calibrated")
    return list(dict.fromkeys(found))


def _said(report: PrivacyReport, number: int, subject: Subject) -> list[str]:
    if subject.strategy.epsilon is None or any(re.search(rf"\bround {number}\b", note) for note in report.notes):
        return []
    return [f"the report does not say that replies to round {number} were not used"]


def _run_without(subject: Subject, silent: set[str], number: int) -> tuple[Run | None, PrivacyReport | None, bool]:
    def tamper(current: int, honest: Callable[[], FitRes]) -> FitRes:
        if current == number:
            raise TimeoutError("gone")
        return honest()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run = watched_run(subject.strategy, subject.data, seed=5, tamper=dict.fromkeys(silent, tamper))
        except Exception as error:
            return None, getattr(error, "privacy_report", None), True
    return run, run.strategy.report, False
