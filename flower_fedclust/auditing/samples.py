"""Rows that a release says are drawn: whether they are, by what nobody else knows, and no more often than it says."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from flower_fedclust.auditing.messages import Bits, bits_of_answer
from flower_fedclust.testing.neighbours import Neighbours, shadow_answers
from flower_fedclust.testing.runs import Run

Floats = NDArray[np.float64]

#: How often each message is answered with other randomness of the client's; and how often at least, to be compared.
TIMES, FEWEST_TIMES = 100, 12

#: Among so many seeds one is sought with which a row is drawn.
SEEDS_TRIED = 40


def findings_of_samples(
    run: Run, client: str, pair: Neighbours | None, level: float, deadline: float = math.inf
) -> list[str]:
    """Return in what releases rows are not drawn, or a row counts more often than is declared.

    Every message is answered again and again, without noise, by two tables that differ in one row, with one seed for
    both, so that they draw the same rows: where the answers differ, that row was drawn. And the answers of the client's
    own table to one message must differ.

    Parameters
    ----------
    run : Run
    client : str
    pair : Neighbours or None
        Whose answers differ as far as can be, if the row is drawn.
    level : float
        How often a sound strategy may be called broken by this.
    deadline : float, default=infinity
        Of ``time.perf_counter``; after which nothing more is answered.
    """
    shares = _shares(run, client)
    if not shares:
        return []
    own = run.data[client].rows
    others = own if pair is None or pair.others is None else pair.others
    tables = own, own if pair is None else pair.rows, others

    def answers(table: Floats, seed: int) -> dict[int, Bits | None]:
        return _answers(run, client, table, seed, shares)

    if answers(own, 0) != answers(own, 0):
        return []  # what is drawn follows from no seed, so that two tables' answers have no sample in common
    seen: dict[int, set[Bits | None]] = {number: set() for number in shares}
    hits, trials = Counter[str](), Counter[str]()
    for seed in range(TIMES):
        if seed >= FEWEST_TIMES and time.perf_counter() > deadline:
            break
        whole, one, two = (answers(table, seed) for table in tables)
        for number in shares:
            seen[number].add(whole[number])
            trials[run.rounds[number].task] += 1
            hits[run.rounds[number].task] += one[number] != two[number]
    found = []
    for number, different in seen.items():
        task = run.rounds[number].task
        if len(different) == 1 and different != {None}:
            found.append(f"the rows of '{task}' are said to be drawn, and every answer to one message is of the same")
    for task, n_trials in trials.items():
        share = max(share for number, share in shares.items() if run.rounds[number].task == task)
        if float(binom.sf(hits[task] - 1, n_trials, share)) < level / len(trials):
            found.append(
                f"a row counts in {hits[task] / n_trials:.3g} of the answers to '{task}', and {share:.3g} are declared"
            )
    return list(dict.fromkeys(found))


def seed_that_draws(run: Run, client: str, pairs: Sequence[Neighbours]) -> int:
    """Return a seed with which the rows in which neighbours differ are drawn, in as many rounds as can be; or else 0.

    Where a row is not drawn it moves nothing, and a comparison says nothing.
    """
    shares = _shares(run, client)
    if not shares:
        return 0
    found: list[int] = []
    for seed in range(SEEDS_TRIED):
        answers = [
            [_answers(run, client, table, seed, shares) for table in (pair.rows, pair.others)]
            for pair in pairs
            if pair.others is not None
        ]
        found.append(sum(one[number] != two[number] for one, two in answers for number in shares))
    return int(np.argmax(found))


def _shares(run: Run, client: str) -> dict[int, float]:
    """Return of the rounds in which a client was asked for rows that it draws: how likely a row is to be drawn."""
    found = {}
    for number, round_ in run.rounds.items():
        parts = [release.sample[0] / release.sample[1] for release in round_.releases if release and release.sample]
        if parts and max(parts) < 1.0 and any(one.client == client for one in run.asked(number)):
            found[number] = max(parts)
    return found


def _answers(run: Run, client: str, table: Floats, seed: int, rounds: Iterable[int]) -> dict[int, Bits | None]:
    given = shadow_answers(run, client, table, noise_seed=seed)
    return {number: bits_of_answer(given.get(number)) for number in rounds}
