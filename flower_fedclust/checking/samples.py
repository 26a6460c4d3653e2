"""Rows that a release says are drawn: whether they are, by what nobody else knows, and no more often than it says."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from flower_fedclust.checking.messages import Bits, bits_of_answer
from flower_fedclust.checking.neighbours import Neighbours, shadow_answers
from flower_fedclust.checking.runs import Run

Floats = NDArray[np.float64]

#: How often each message is answered with other randomness of the client's; and how often at least, to be compared.
TIMES, FEWEST_TIMES = 40, 12

#: So many rows are changed, one at a time, to see which of them an answer is of.
MOST_CHANGED = 64

#: Among so many seeds one is sought with which a row is drawn.
SEEDS_TRIED = 40


def findings_of_samples(
    run: Run, client: str, pair: Neighbours | None, level: float, deadline: float = math.inf
) -> tuple[list[str], list[str]]:
    """Return in what releases rows are not drawn, or a row counts too often; and what of that was not examined.

    Every message is answered again and again, without noise, by tables that differ in one row, with one seed for both,
    so that they draw the same rows: where the answers differ, that row was drawn. It may not be drawn too often, nor
    may too many rows be drawn at once; and the answers of the client's own table to one message must differ.
    """
    samples = _samples(run, client)
    if not samples:
        return [], []
    own = run.data[client].rows
    first, second = (own, own) if pair is None or pair.others is None else (pair.rows, pair.others)

    def answers(table: Floats, seed: int) -> dict[int, Bits | None]:
        return _answers(run, client, table, seed, samples)

    known = answers(own, 0)
    if known != answers(own, 0):
        # What is drawn follows from no seed, so that two tables' answers have no sample in common.
        return [], ["how often a row is drawn, as clients draw other rows each time, whatever their seed"]
    n_drawn = Counter[int]()
    for row in range(min(len(own), MOST_CHANGED)):
        changed = own.copy()
        changed[row] = next((one for one, other in zip(first, second, strict=False) if (one != other).any()), -own[row])
        n_drawn.update(number for number, answer in answers(changed, 0).items() if answer != known[number])
    seen: dict[int, set[Bits | None]] = {number: set() for number in samples}
    hits, n_times = Counter[str](), 0
    while n_times < TIMES and (n_times < FEWEST_TIMES or time.perf_counter() < deadline):
        whole, one, two = (answers(table, n_times) for table in (own, first, second))
        n_times += 1
        for number in samples:
            seen[number].add(whole[number])
            hits[run.rounds[number].task] += one[number] != two[number]
    found, tasks = [], Counter(run.rounds[number].task for number in samples)
    for number, different in seen.items():
        task = run.rounds[number].task
        if len(different) == 1 and different != {None}:
            found.append(f"the rows of '{task}' are said to be drawn, and every answer to one message is of the same")
        if n_drawn[number] > samples[number][0]:
            found.append(
                f"{n_drawn[number]} rows count in an answer to '{task}', and {samples[number][0]} are declared"
            )
    for task, n_rounds in tasks.items():
        share = max(b / n for number, (b, n) in samples.items() if run.rounds[number].task == task)
        if float(binom.sf(hits[task] - 1, n_rounds * n_times, share)) < level / len(tasks):
            counted = f"a row counts in {hits[task] / (n_rounds * n_times):.3g} of the answers to '{task}'"
            found.append(f"{counted}, and {share:.3g} are declared")
    left = [f"{TIMES - n_times} of {TIMES} answers in which rows are drawn"] if n_times < TIMES else []
    return list(dict.fromkeys(found)), left


def seed_that_draws(run: Run, client: str, pairs: Sequence[Neighbours]) -> int:
    """Return a seed with which most rounds are answered, and the rows in which neighbours differ are drawn in most.

    Where a client does not answer, or does not draw a row, nothing moves, and a comparison says nothing.
    """
    samples = _samples(run, client)
    found: list[tuple[int, int]] = []
    for seed in range(SEEDS_TRIED):
        given = shadow_answers(run, client, pairs[0].rows, noise_seed=seed).values()
        n_answers = sum(answer is not None for answer in given)
        both = [
            [_answers(run, client, table, seed, samples) for table in (pair.rows, pair.others)]
            for pair in pairs
            if samples and pair.others is not None
        ]
        found.append((n_answers, sum(one[number] != two[number] for one, two in both for number in samples)))
        if not samples and n_answers == len(given):
            break
    return found.index(max(found))


def _samples(run: Run, client: str) -> dict[int, tuple[int, int]]:
    """Return of the rounds in which a client was asked for rows that it draws: how many at most, and of how many."""
    found: dict[int, tuple[int, int]] = {}
    for number, round_ in run.rounds.items():
        samples = [release.sample for release in round_.releases if release and release.sample]
        if samples and samples[0][0] < samples[0][1] and any(one.client == client for one in run.asked(number)):
            found[number] = samples[0]
    return found


def _answers(run: Run, client: str, table: Floats, seed: int, rounds: Iterable[int]) -> dict[int, Bits | None]:
    given = shadow_answers(run, client, table, noise_seed=seed)
    return {number: bits_of_answer(given.get(number)) for number in rounds}
