"""Figures and tables of the paper of FedDP-KMeans."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from flower_fedclust.data import Table, load_dataset
from flower_fedclust.harness.reproduce.tables import Figure, Method, Paper, PaperTable, Row
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.registry import make_strategy
from flower_fedclust.simulation import simulate

N_CLUSTERS, DELTA = 10, 1e-6
_NO_PRIVACY = "no privacy"
#: Method by the name of its row; the parameters are those besides the budget.
_METHODS: Mapping[str, Method] = {
    "FedDP-KMeans": ("feddp-kmeans", {}),
    "FedDP-KMeans, one Lloyd step": ("feddp-kmeans", {"n_rounds": 1}),
    **{
        f"{name}, {words}": (f"dp-lloyd-{init}", {"n_rounds": steps})
        for name, init in (
            ("ServerKMeans++", "server-kmeans++"),
            ("ServerLloyds", "server-lloyds"),
            ("SpherePacking", "sphere-packing"),
        )
        for steps, words in ((1, "one Lloyd step"), (2, "two Lloyd steps"))
    },
}
#: Cost over the optimum, by epsilon: the authors' code, with the noise of its second moment corrected for the
#: sensitivity and ten restarts of its weighted k-means.
_RECORD = {0.25: 1.015, 0.5: 1.003, 1.0: 1.001, 2.0: 1.0004}
_CLIENT = {0.25: 1.281, 0.5: 1.141, 1.0: 1.081, 2.0: 1.031, 2.56: 1.017}
_COST = "k-means cost of all rows over that of the pooled optimum, delta 1e-6. The paper has curves without numbers"
_AUTHORS_CODE = (
    f"{_COST}; the figures beside ours are those of the authors' code, run with the noise of its second moment "
    "corrected and with ten restarts."
)


def _mixture(n_rows: int, seed: int) -> Table:
    return load_dataset("gaussian-mixture", random_state=seed, n_rows=n_rows)


@lru_cache(maxsize=64)
def optimum(n_rows: int, seed: int) -> float:
    """Return the cost of Lloyd's algorithm on all rows of the mixture, from the means of its true components."""
    from sklearn.cluster import KMeans

    table = _mixture(n_rows, seed)
    assert table.labels is not None
    means = np.stack([table.rows[table.labels == label].mean(axis=0) for label in np.unique(table.labels)])
    with one_thread():
        centers = KMeans(len(means), init=means, n_init=1).fit(table.rows).cluster_centers_
    return KMeansModel(centers).cost(table.rows)


def _costs(
    name: str, title: str, unit: str, shape: tuple[int, int], reference: Mapping[float, float | None], minutes: float
) -> PaperTable:
    """Return the table of a figure: cost against epsilon, for clients and rows per client as ``shape`` says."""
    n_clients, n_rows = shape
    budgets = {f"epsilon {epsilon:g}": {"epsilon": epsilon} for epsilon in reference}
    common = {"delta": DELTA, "privacy_unit": unit, "rows_per_client": n_rows}
    printed = {f"epsilon {epsilon:g}": Figure(cost) for epsilon, cost in reference.items() if cost is not None}

    def ratio(seed: int, strategy: str, parameters: Mapping[str, Any]) -> float:
        table = _mixture(n_clients * n_rows, seed)
        public = {} if strategy == "k-fed" else {"server_data": table.server_rows}
        made = make_strategy(strategy, n_clusters=N_CLUSTERS, **parameters, **public)
        result = simulate(made, np.split(table.rows, n_clients), seed=seed, progress=False)
        return result.metrics["cost"] / optimum(n_clients * n_rows, seed)

    def row(label: str, method: Method) -> Row:
        strategy, own = method
        return Row(
            label,
            lambda seed: {one: ratio(seed, strategy, {**common, **own, **given}) for one, given in budgets.items()},
            printed if label == "FedDP-KMeans" else {},
        )

    return PaperTable(
        name,
        title,
        (*budgets, _NO_PRIVACY),
        (
            *(row(label, method) for label, method in _METHODS.items()),
            Row("k-FED", lambda seed: {_NO_PRIVACY: ratio(seed, "k-fed", {})}),
        ),
        n_seeds=5,
        minutes=minutes,
        remark=_AUTHORS_CODE if printed else f"{_COST}.",
        beside="the authors' code" if printed else "the paper",
    )


def _radius(seed: int) -> dict[str, float]:
    table = _mixture(1, seed)  # The server's rows do not depend on how many rows the clients have.
    assert table.server_rows is not None
    return {"radius": float(np.linalg.norm(table.server_rows, axis=1).max())}


_NO_FIGURES: dict[float, float | None] = dict.fromkeys(_CLIENT)
_FETCHED = "downloaded; nothing that this library can be installed with contains them."

PAPER = Paper(
    "feddp-kmeans",
    (
        "Scott, Lampert and Saulpic, Differentially private federated k-means clustering with server-side data, "
        "ICML 2025, PMLR 267:53757-53790"
    ),
    (
        PaperTable(
            "radius",
            "Table 1: radius of the mixture of Gaussians",
            ("radius",),
            (Row("mixture of Gaussians", _radius, {"radius": Figure(10.57)}),),
            n_seeds=40,
            minutes=0.001,
            remark=(
                "The norm of the server's longest row, to which the clients' rows are clipped. The paper's is that of "
                "one mixture, ours the mean over one mixture per seed."
            ),
        ),
        _costs(
            "figure-1", "Figure 1, left: record level, 100 clients of 1,000 rows", "record", (100, 1000), _RECORD, 2
        ),
        _costs(
            "figure-2", "Figure 2, left: client level, 2,000 clients of 50 rows", "client", (2000, 50), _CLIENT, 1.5
        ),
        _costs("figure-5", "Figure 5: client level, 1,000 clients of 50 rows", "client", (1000, 50), _NO_FIGURES, 1),
        _costs("figure-6", "Figure 6: client level, 5,000 clients of 50 rows", "client", (5000, 50), _NO_FIGURES, 5),
    ),
    {
        "Table 1, US census; Figure 1, right; Figures 3 and 4": f"the US census rows (folktables) are {_FETCHED}",
        "Figure 2, right; Figures 7, 8 and 9": (
            "the questions of Stack Overflow (TensorFlow Federated) and the model that embeds them are " + _FETCHED
        ),
        "Tables 2 to 5": "they describe the best settings of a search over budgets and steps, which is not repeated.",
    },
)
