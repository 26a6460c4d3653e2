"""Checks of what a strategy promises about privacy."""

# ruff: noqa: D401 - the docstrings are promises, not orders

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import cast

import numpy as np

from flower_fedclust.checking.about_runs import evaluated
from flower_fedclust.checking.check import check, require
from flower_fedclust.checking.draws import Drawer
from flower_fedclust.checking.neighbours import (
    Neighbours,
    extreme_rows,
    far_rows,
    how_far,
    neighbours,
    tied_neighbours,
    tied_tables,
)
from flower_fedclust.checking.runs import Run, watched_run
from flower_fedclust.checking.statistics import test_noise
from flower_fedclust.checking.subject import SEED, Floats, Subject, bits_of
from flower_fedclust.engine import Consent, PrivateStrategy, ProtocolError, Sum
from flower_fedclust.engine.replies import add_up, values_of
from flower_fedclust.engine.run import EVALUATE
from flower_fedclust.privacy.accounting import divided

#: Of what was asked for, the part that a run must spend where its releases are all there is.
SPENT = 0.97

#: How many numbers are drawn of each release, and how rarely sound noise may look wrong. Together they find noise
#: that is half too wide or a third too narrow. The seeds are always the same, and so is the verdict.
N_NUMBERS, FALSE_ALARM = 200, 5e-7


def _is_private(subject: Subject) -> bool:
    return isinstance(subject.strategy, PrivateStrategy) and subject.strategy.epsilon is not None


def _noisy_arrays(run: Run) -> list[bytes]:
    """Return what the protocol received with noise, and what the clients sent with it."""
    found = []
    for number, round_ in run.rounds.items():
        protected = [release is not None and release.scale > 0 for release in round_.releases]
        received = run.received.get(number) or []
        replies = [list(received)] if isinstance(round_, Sum) else [reply.arrays for reply in received]
        replies += [values_of(arrays) for arrays in run.sent(number).values() if run.strategy.noise != "server"]
        found += [array.tobytes() for reply in replies for array, one in zip(reply, protected, strict=False) if one]
    return found


@check
def noise_that_protects_is_never_repeated(subject: Subject) -> None:
    """Without a seed no two runs have the same noise, whatever random_state is; another seed gives other noise."""
    if not subject.releases:
        return
    first, second = (_noisy_arrays(watched_run(subject.strategy, subject.data)) for _ in range(2))
    require(not set(first) & set(second), "two runs of one random_state have the same noise.")
    seeded = set(_noisy_arrays(subject.run))
    require(
        not seeded & set(_noisy_arrays(watched_run(subject.strategy, subject.data, seed=SEED + 1))), "a seed repeats."
    )


@check
def random_state_never_reaches_the_noise(subject: Subject) -> None:
    """A seeded run with another random_state draws the same noise in its first round with a release."""
    if not subject.releases or subject.strategy.noise != "server":
        return
    other = subject.strategy
    other.random_state = SEED + 1
    number = subject.releases[0][0]
    drawn = []
    for run in (subject.run, watched_run(other, subject.data, seed=SEED)):
        round_, received = run.rounds[number], run.received[number]
        sent = list(run.sent(number).values())
        if (
            not isinstance(round_, Sum)
            or round_.answer.keeps
            or round_.fraction < 1.0
            or len(sent) < len(subject.names)
        ):
            return
        drawn.append([one - total for one, total in zip(received, values_of(add_up(sent)), strict=True)])
    index = subject.releases[0][1]
    scale = subject.releases[0][2].scale
    same = drawn[0][index].shape == drawn[1][index].shape and np.allclose(
        drawn[0][index], drawn[1][index], atol=1e-6 * scale
    )
    require(same, "the noise follows random_state.")


@check
def epsilon_is_spent_and_not_exceeded(subject: Subject) -> None:
    """The report's epsilon is at most what was asked for; where all is covered and all rounds ran, nearly all of it."""
    if not _is_private(subject):
        return
    strategy = subject.run.strategy
    asked = cast(float, strategy.epsilon)
    report = strategy.report
    require(report.releases, f"epsilon is {asked:g} and no message carries noise.")
    require(
        subject.epsilon <= asked * (1 + 1e-6), f"epsilon {asked:g} was asked for and {subject.epsilon:.6g} is spent."
    )
    drawn = any(message.clients is not None for message in report.messages)
    if report.covers_everything and len(subject.run.rounds) == strategy.num_rounds - 1 and not drawn:
        least = SPENT * asked
        require(subject.epsilon >= least, f"of epsilon {asked:g} only {subject.epsilon:.4g} is spent.")


@check
def the_class_says_for_whom_it_can_be_private(subject: Subject) -> None:
    """A run is covered as a whole for those alone whom the class promises it, and then for them."""
    strategy, report = subject.run.strategy, subject.run.strategy.report
    promised = strategy.privacy_unit in strategy.promises
    if report.covers_everything:
        require(promised, f"all is covered for a {report.unit}, and promises is {strategy.promises}.")
    elif _is_private(subject):
        found = sorted({message.content for message in report.unprotected})
        require(not promised, f"promises is {strategy.promises}, and nothing covers {', '.join(found)}.")


@check
def the_budget_can_be_divided_by_name(subject: Subject) -> None:
    """Each release belongs to a share; a budget by name changes the multipliers of these shares and not the total."""
    if not _is_private(subject):
        return
    strategy = cast(PrivateStrategy, subject.run.strategy)
    shares = strategy.shares()
    require(shares, "an epsilon is given, and shares() is empty.")
    used = Counter(release.share for _, _, release in subject.releases)
    require(set(used) <= set(shares), f"releases belong to {sorted(set(used) - set(shares))}, which is no share.")
    for name, n_releases in used.items():
        allowed = shares[name].count
        require(n_releases <= allowed, f"share {name} is for {allowed} releases, and {n_releases} carry its noise.")
    current = {name: share.fraction for name, share in divided(shares, strategy.budget).items()}
    total = math.fsum(current.values())
    for name in shares:
        part = 1.0 if len(shares) == 1 else 0.5 * current[name] / total
        changed = divided(shares, {name: part})
        require(math.isclose(changed[name].fraction, part), f"budget={{'{name}': {part:g}}} is not heard.")
    if len(shares) > 1:
        _check_division(subject, {name: fraction / total for name, fraction in current.items()})


def _check_division(subject: Subject, current: dict[str, float]) -> None:
    wanted = {name: part * (0.5 if index % 2 else 1.0) for index, (name, part) in enumerate(current.items())}
    budget = {name: part / math.fsum(wanted.values()) for name, part in wanted.items()}
    other = Subject(subject.with_parameters(budget=budget), subject.rows)
    before = {release.share: release.noise_multiplier for _, _, release in subject.releases}
    after = {release.share: release.noise_multiplier for _, _, release in other.releases}
    for name in before.keys() & after.keys():
        more = budget[name] > current[name]
        heard = after[name] < before[name] if more else after[name] > before[name]
        require(heard, f"{'more' if more else 'less'} budget for {name} gives a multiplier of {after[name]:.4g}.")
    asked = cast(float, subject.strategy.epsilon)
    require(other.epsilon <= asked * (1 + 1e-6), f"another budget spends {other.epsilon:.6g} of epsilon {asked:g}.")
    if subject.epsilon >= SPENT * asked:
        require(other.epsilon >= SPENT * asked, f"another budget spends only {other.epsilon:.4g} of {asked:g}.")


@check
def noise_off_is_no_noise(subject: Subject) -> None:
    """Without epsilon the protocol gets the sums as they are, and the report makes no promise."""
    strategy = subject.strategy
    if _is_private(subject):
        try:
            strategy = subject.with_parameters(epsilon=None, budget=None)
        except ValueError:
            return  # a class that is never without
    elif subject.releases:
        return  # noise that follows from something else than an epsilon
    run = watched_run(strategy, subject.data, seed=SEED)
    require(not run.strategy.report.releases, "without epsilon the report has releases.")
    require("None" in run.strategy.report.guarantee(), "without epsilon the report gives a guarantee.")
    order = run.strategy.client_names
    for number, round_ in run.rounds.items():
        if isinstance(round_, Sum) and not round_.answer.keeps and round_.answer.sends:
            asked = [name for name in order if name in run.sent(number) and run.sent(number)[name]]
            exact = values_of(add_up([run.sent(number)[name] for name in asked]))
            same = all(np.array_equal(one, two) for one, two in zip(run.received[number], exact, strict=True))
            require(same, f"without epsilon the sums of '{round_.task}' are not those of the replies.")
            require(run.received[number].n_clients == len(asked), "a sum is over another number of clients.")


@check
def noise_has_its_declared_scale(subject: Subject) -> None:
    """The noise of every release is as wide as the release says, wherever it is drawn."""
    if not subject.releases:
        return
    drawer = Drawer(subject.run, subject.names[0])
    drawer.draw_numbers(N_NUMBERS)
    for cell in drawer.seeded.values():
        found = test_noise([cell])
        wrong = ", ".join(what for what, likely in found.p_values.items() if likely <= FALSE_ALARM)
        where = f"the noise of '{cell.content}' in round {cell.round}"
        require(not wrong, f"{where} is {found.factor:.3g} times what is declared: {wrong}.")


def _pairs(subject: Subject, hard: Sequence[tuple[str, Floats]]) -> list[Neighbours]:
    relation = subject.releases[0][2].relation
    return neighbours(subject.rows[0], hard, subject.strategy.privacy_unit, relation)


def _check_moved(subject: Subject, pairs: Sequence[Neighbours], *, only: int | None = None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for moved in how_far(subject.run, subject.names[0], pairs, only=only):
            require(
                not moved.is_too_far,
                f"{moved.neighbours.what}: '{moved.content}' of round {moved.round} moves by {moved.ratio:.6g} times "
                "its sensitivity.",
            )


@check
def no_neighbour_moves_a_release_too_far(subject: Subject) -> None:
    """A row, or a client, that comes, goes or is another moves no release by more than its sensitivity."""
    if subject.releases:
        _check_moved(subject, _pairs(subject, far_rows(subject.rows[0])))


@check
def no_tie_moves_a_release_too_far(subject: Subject) -> None:
    """The same for rows half way between two points that the server sent, beside other numbers of rows."""
    if subject.releases:
        unit, relation = subject.strategy.privacy_unit, subject.releases[0][2].relation
        for number, tables in tied_tables(subject.run, subject.names[0]).items():
            _check_moved(subject, tied_neighbours(tables, unit, relation), only=number)


@check
def no_extreme_value_moves_a_release_too_far(subject: Subject) -> None:
    """The same for rows of 1e300, of the largest float and of the smallest."""
    if subject.releases:
        _check_moved(subject, _pairs(subject, extreme_rows(subject.n_columns)))


@check
def a_site_can_tell_what_noise_is_worth(subject: Subject) -> None:
    """Every method that takes noise declares how far a row moves what it sends, and as far as its release says."""
    of_client = subject.strategy.privacy_unit == "client"
    site = subject.run.sites[0].made()
    for number, index, release in subject.releases:
        round_ = subject.run.rounds[number]
        question, sent = round_.question_for(None), round_.answer.sends[index]
        moved = site.moved(round_.rows, question)
        require(
            moved is not None,
            f"'{round_.task}' takes noise and does not declare how far one row moves what it sends: give "
            "@answers(..., moved=...), or sites with a policy of their own do not answer it.",
        )
        if moved is not None:
            found = moved[index].multiplier(release, per_row=sent.per == "row", of_client=of_client)
            require(
                found > release.noise_multiplier * (1 - 1e-9),
                f"'{round_.task}' has a noise multiplier of {release.noise_multiplier:.6g} as its release says, and of "
                f"{found:.6g} as its client does.",
            )


@check
def a_site_that_allows_sums_alone_sends_nothing_else(subject: Subject) -> None:
    """Where a site consents to sums, a run that needs more stops with a sentence that names what; others run."""
    refused = _kinds_beyond_sums(subject.run)
    try:
        run = watched_run(subject.strategy, subject.data, seed=SEED, consent=Consent({"sums"}))
    except ProtocolError as error:
        require(refused, f"it sends sums alone, and a site that consents to sums refuses: {error}")
        named = any(f"does not send {kind}" in str(error) for kind in refused)
        require(named, f"the refusal does not name {' or '.join(sorted(refused))}: {error}")
    else:
        require(not refused, f"a site that consents to sums sends {' and '.join(sorted(refused))}.")
        same = bits_of(run)["model"] == bits_of(subject.run)["model"]
        require(same, "a site's consent changes the result.")


def _kinds_beyond_sums(run: Run) -> set[str]:
    noisy_rows: set[str] = set()
    kinds: set[str] = set()
    for round_ in run.rounds.values():
        answer, releases = round_.answer, list(round_.releases) or [None] * len(round_.answer.sends)
        derived = bool(round_.rows) and round_.rows in noisy_rows
        for sent, release in zip(answer.sends, releases, strict=True):
            noisy = release is not None and release.scale > 0
            local = run.strategy.noise == "local" or (run.strategy.noise == "clients" and not isinstance(round_, Sum))
            if sent.kept_as:
                if noisy or derived:
                    noisy_rows.add(sent.kept_as)
            elif sent.reveals != "sums" and not (derived or (noisy and local)):
                kinds.add(sent.reveals)
    return kinds


@check
def a_site_that_does_not_evaluate_is_not_evaluated(subject: Subject) -> None:
    """Where a site does not allow the evaluation, it says so by name and sends neither a cost nor a table."""
    strategy = evaluated(subject)
    if strategy is None:
        return
    run = watched_run(strategy, subject.data, seed=SEED, consent=Consent(evaluation=False))
    reasons = [failure.reason for failure in run.strategy.failures if failure.task == EVALUATE]
    require(len(reasons) == len(subject.names), f"{len(reasons)} of {len(subject.names)} sites refuse to be evaluated.")
    require(all("does not evaluate" in reason for reason in reasons), f"a site refuses with: {reasons[0]}")
    require(not run.strategy.evaluation, "sites that do not allow the evaluation were evaluated.")
