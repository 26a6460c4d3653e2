"""Persons with many rows: clusters of rows that add their parts, beside clusters of one mean row for each person.

``python benchmarks/subjects.py``. 5,000 persons of 1 to 40 rows at two clients; at epsilon 1, the cost of rows that are
weighted by one over the number of their person's rows. Persons stay in one of 8 clusters, or each row is in one of
three clusters of the person. The last column is the processor time, divided by the time of a run on the same rows
without persons; a first run, which is not timed, has imported what both need.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

import flower_fedclust as fc
from flower_fedclust.engine import ClientData

N_PERSONS, MOST_ROWS, N_CLUSTERS, N_COLUMNS = 5_000, 40, 8, 5
OPTIONS: dict[str, Any] = {"n_clusters": N_CLUSTERS, "epsilon": 1.0, "max_norm": 15.0}


def persons(*, move: bool, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows, and the person of each."""
    rng = np.random.default_rng(seed)
    centers = 5.0 * rng.normal(size=(N_CLUSTERS, N_COLUMNS)) / np.sqrt(N_COLUMNS) * 1.5
    each = rng.integers(1, MOST_ROWS + 1, size=N_PERSONS)
    whose = np.repeat(np.arange(N_PERSONS), each)
    own = np.array([rng.choice(N_CLUSTERS, 3, replace=False) for _ in range(N_PERSONS)])
    state = own[whose, rng.integers(3, size=len(whose)) if move else 0]
    return centers[state] + rng.normal(size=(len(whose), N_COLUMNS)), whose


def cost_of(result: fc.Result, rows: np.ndarray, weights: np.ndarray) -> float:
    """Return the weighted mean squared distance of rows from their nearest centers."""
    centers = result.model.cluster_centers_
    squares = ((rows[:, None] - centers[None]) ** 2).sum(axis=2).min(axis=1)
    return float(np.average(squares, weights=weights))


def measured(move: bool, seed: int) -> tuple[float, float, float]:
    """Return both costs, and the ratio of processor times."""
    rows, whose = persons(move=move, seed=seed)
    counts = np.bincount(whose)
    means = np.stack([np.bincount(whose, column) for column in rows.T], axis=1) / counts[:, None]
    first, first_mean = whose < N_PERSONS // 2, np.arange(N_PERSONS) < N_PERSONS // 2
    clients = {
        name: ClientData(rows[part], owner=name, subjects=whose[part])
        for name, part in (("a", first), ("b", ~first))
    }
    options = OPTIONS | {"seed": seed, "progress": False}
    start = time.process_time()
    of_persons = fc.simulate("private-kmeans", clients, privacy_unit="subject", **options)
    middle = time.process_time()
    fc.simulate("private-kmeans", [rows[first], rows[~first]], **options)
    ratio = (middle - start) / (time.process_time() - middle)
    of_means = fc.simulate("private-kmeans", [means[first_mean], means[~first_mean]], **options)
    weights = 1.0 / counts[whose]
    return cost_of(of_persons, rows, weights), cost_of(of_means, rows, weights), ratio


def main() -> None:
    """Print a line for each case."""
    fc.simulate(
        "private-kmeans", [np.eye(5), np.eye(5)], **OPTIONS | {"n_clusters": 2, "progress": False}
    )
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
    print("persons | cost, parts | cost, mean rows | parts over mean rows | time over records")
    for move in (False, True):
        for seed in seeds:
            parts, means, ratio = measured(move, seed)
            what = "move" if move else "stay"
            print(
                f"{what} | {parts:.4f} | {means:.4f} | {parts / means:.4f} | {ratio:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
