"""Rows that a release says are drawn: whether they are, by what nobody else knows, and no more often than it says."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
from scipy.stats import binom

from flower_fedclust.auditing.messages import Bits, bits_of_answer
from flower_fedclust.privacy.noise import Sendable
from flower_fedclust.testing.neighbours import shadow_answers
from flower_fedclust.testing.runs import Run

#: How often each message is answered with other randomness of the client's; and how often at least, to be compared.
TIMES, FEWEST_TIMES = 100, 10


def findings_of_samples(run: Run, client: str, level: float, deadline: float) -> list[str]:
    """Return in what releases rows are not drawn, or a row counts more often than is declared.

    Every message is answered again and again, without noise, each time by two tables that differ in their first row
    and with one seed for both, so that they draw the same rows: where the answers differ the first row was drawn.

    Parameters
    ----------
    run : Run
    client : str
    level : float
        How often a sound strategy may be called broken by this.
    deadline : float
        Of ``time.perf_counter``; after which nothing more is answered.
    """
    shares: dict[int, float] = {}
    for number, round_ in run.rounds.items():
        parts = [release.sample[0] / release.sample[1] for release in round_.releases if release and release.sample]
        if parts and max(parts) < 1.0 and any(one.client == client for one in run.asked(number)):
            shares[number] = max(parts)
    if not shares:
        return []
    rows = run.data[client].rows
    other = rows.copy()
    other[0] = -1e3 * (1.0 + np.abs(rows).max())
    seen: dict[int, list[Bits]] = {number: [] for number in shares}
    hits: dict[str, int] = {}
    trials: dict[str, int] = {}
    for seed in range(TIMES):
        if seed >= FEWEST_TIMES and time.perf_counter() > deadline:
            break
        one, two = (shadow_answers(run, client, table, noise_seed=seed) for table in (rows, other))
        if seed == 0 and _bits(one, shares) != _bits(shadow_answers(run, client, rows, noise_seed=seed), shares):
            return []  # what is drawn follows from no seed, so that two answers are of no sample in common
        for number in shares:
            task, bits = run.rounds[number].task, bits_of_answer(one.get(number))
            if bits is not None:
                seen[number].append(bits)
                trials[task] = trials.get(task, 0) + 1
                hits[task] = hits.get(task, 0) + (bits != bits_of_answer(two.get(number)))
    found = []
    for number, answers in seen.items():
        task = run.rounds[number].task
        if len(answers) >= FEWEST_TIMES and len(set(answers)) == 1:
            found.append(f"the rows of '{task}' are said to be drawn, and every answer to one message is of the same")
    for task, n_trials in trials.items():
        share = max(share for number, share in shares.items() if run.rounds[number].task == task)
        if float(binom.sf(hits[task] - 1, n_trials, share)) < level / len(trials):
            found.append(
                f"a row counts in {hits[task] / n_trials:.3g} of the answers to '{task}', and {share:.3g} are declared"
            )
    return list(dict.fromkeys(found))


def _bits(answers: Mapping[int, list[Sendable] | None], shares: Mapping[int, float]) -> list[Bits | None]:
    return [bits_of_answer(answers.get(number)) for number in shares]
