"""How far worst-case neighbors move each release, over its declared bound: at most 1, exactly.

    python benchmarks/neighbors.py [NAME ...]   every strategy with noise, in each place and for each unit; or some

At least two hundred pairs of tables for each: ties, other numbers of rows, duplicates, one row and two, the longest
rows, 1e300, the largest float, denormals, rows of all sizes in between, and absent clients.
"""

from __future__ import annotations

import logging
import sys
import time
import warnings
from pathlib import Path

import numpy as np

from flower_fedclust.checking import (
    Neighbors,
    Subject,
    extreme_rows,
    far_rows,
    how_far,
    neighbor_tables,
    tied_neighbors,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "strategies"))
from test_strategies_every import cases

N_RANDOM = 60


def pairs_of(subject: Subject) -> list[Neighbors]:
    """Return neighbors of a client's table."""
    rng = np.random.default_rng(0)
    rows, d = subject.rows[0], subject.n_columns
    hard = far_rows(rows) + extreme_rows(d)
    for index in range(N_RANDOM):
        row = rng.normal(size=d) * 10.0 ** rng.uniform(-8, 12) + rows[index % len(rows)] * (
            index % 2
        )
        hard.append((f"a random row, number {index}", row))
    hard.append(("a row that is there already", rows[1]))
    unit, relation = subject.neighboring
    found = neighbor_tables(rows, hard, unit, relation)
    if unit == "record" and relation == "add-or-remove":
        found += [
            Neighbors("one row and two", rows[:1], np.vstack([rows[:1], row])) for _, row in hard
        ]
        found += [
            Neighbors("two equal rows and one", np.vstack([row, row]), row[None]) for _, row in hard
        ]
    elif unit == "record":
        found += [Neighbors("one row and another", rows[:1], row[None]) for _, row in hard]
    else:
        found += [
            pair
            for size in (1, 2, 7)
            for pair in neighbor_tables(rows[:size], hard, unit, relation)
        ]
    return found


def main(names: list[str]) -> None:
    """Print a line for each case."""
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)  # clients log that they refuse such rows
    worst, n_pairs = 0.0, 0
    print(f"{'case':44} {'pairs':>6} {'largest':>10}  seconds")
    for case, strategy in cases().items():
        if (names and case.partition(" ")[0] not in names) or strategy.epsilon is None:
            continue
        start, subject = time.perf_counter(), Subject(strategy)
        if not subject.releases:
            continue
        pairs, client = pairs_of(subject), subject.names[0]
        ties = tied_neighbors(subject.run, client, *subject.neighboring)
        pairs += [pair for kind in ties.values() for pair in kind]
        moved, count = list(how_far(subject.run, client, pairs)), len(pairs)
        largest = max(one.ratio for one in moved)
        too_far = [one for one in moved if one.is_too_far]
        print(f"{case:44} {count:6} {largest:10.8f}  {time.perf_counter() - start:.1f}", flush=True)
        for one in too_far[:3]:
            print(
                f"    TOO FAR: {one.neighbors.description}: '{one.content}' of round {one.round}, {one.ratio!r}"
            )
        worst, n_pairs = max(worst, largest), n_pairs + count
    print(f"the largest of all, over {n_pairs} pairs: {worst:.10f}")


if __name__ == "__main__":
    main(sys.argv[1:])
