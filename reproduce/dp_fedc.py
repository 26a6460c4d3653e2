"""DP-FedC: first centers without rows, the epsilon of Theorem 2's noise, and the curves of Figures 3 and 4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flower_fedclust.data import partition
from flower_fedclust.models import FactorModel
from flower_fedclust.numerics.metrics import agreement, count_table
from flower_fedclust.privacy.accounting import composed_epsilon
from flower_fedclust.privacy.releases import Release
from flower_fedclust.registry import make_strategy
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.dp_fedc import noise_multiplier, total_epsilon
from reproduce.measures import DRAWINGS, agreement_scores, load, measure, run
from reproduce.tables import Experiment

N_CLIENTS, N_CLUSTERS, DELTA, MAX_NORM = 100, 10, 1e-4, 10.0
SPLITS = {"iid": "IID", "classes:2": "two classes a client", "k-means": "k-means clusters as clients"}
_BUDGET: dict[str, Any] = {"epsilon": 20.0, "delta": DELTA, "max_norm": MAX_NORM}
CURVES: dict[str, dict[str, dict[str, Any]]] = {
    "epsilon": {"no noise": {}, **{f"epsilon {one:g}": {**_BUDGET, "epsilon": one} for one in (20.0, 2.0)}},
    "clients": {f"K = {one}": {**_BUDGET, "fraction_fit": one / N_CLIENTS} for one in (10, 30, 100)},
}


@measure("agreement and epsilon")
def agreement_and_epsilon(experiment: Experiment, seed: int) -> dict[str, float]:
    """Measure the agreement and the epsilon by composition."""
    own = {}
    if experiment.parameters.get("init") == "random":
        # With noise, a first center may depend on no row: random non-negative directions, as long as a row.
        centers = np.abs(np.random.default_rng(seed).standard_normal((N_CLUSTERS, load(experiment.data).rows.shape[1])))
        own["init"] = MAX_NORM * centers / np.linalg.norm(centers, axis=1, keepdims=True)
    result, _ = run(experiment, seed, **own)
    spent = {"epsilon by composition": result.privacy.epsilon} if result.privacy.releases else {}
    return agreement_scores(result) | spent


@measure("theorem 2")
def theorem_2(experiment: Experiment, _: int) -> dict[str, float]:
    """Return the total epsilon by Theorem 3 and by composition, for the noise of Theorem 2 in each round.

    The settings are the paper's: 100 clients of 100 rows, K = 30, b = 50, Q_2 = floor(10 / t) + 1, R = 100.
    """
    epsilon = experiment.parameters["epsilon"]
    n_rows, batch, n_rounds, share = 100, 50, 100, 0.3
    steps = [10 // t + 1 for t in range(1, n_rounds + 1)]
    multipliers = [noise_multiplier(one * batch / n_rows, epsilon, DELTA) for one in steps]
    releases = [Release("gaussian", 1.0, multiplier, "Lemma 2", "replace") for multiplier in multipliers]
    # A client that is drawn evenly over the rounds.
    drawn = [releases[index] for index in np.linspace(1, n_rounds - 1, round(share * n_rounds)).astype(int)]
    return {
        "Theorem 3, c0 = 1": total_epsilon(epsilon, batch / n_rows, share, n_rounds, c0=1.0),
        "drawn 30 times": composed_epsilon(drawn, DELTA),
        "drawn 100 times": composed_epsilon(releases, DELTA),
    }


def watched(split: str, parameters: dict[str, Any]) -> pd.DataFrame:
    """Return the remainder of the factorisation of all rows, per client, and the accuracy, by round."""
    rows = partition(load("mnist-5k"), split, n_clients=N_CLIENTS, random_state=0)
    together, classes = np.concatenate(rows.clients), np.concatenate(rows.labels)
    found: list[tuple[float, float]] = []

    def watch(_: int, centers: NDArray[np.float64]) -> None:
        # With the penalty of the last rounds in every round, so that only the centers differ.
        model = FactorModel(centers, rho=0.4 * float(np.mean(np.sum(centers**2, axis=1))))
        tables = count_table(classes, model.predict(together), N_CLUSTERS)
        found.append((model.cost(together) / N_CLIENTS, agreement(np.stack(list(tables.values())))["accuracy"]))

    settings = {"n_rounds": 100, "fraction_fit": 0.3, "batch_size": 50, **parameters}
    strategy: Any = make_strategy("dp-fedc", n_clusters=N_CLUSTERS, **settings)
    strategy.on_centers = watch
    simulate(strategy, rows.clients, seed=0, progress=False)
    rounds = pd.RangeIndex(1, len(found) + 1, name="round")
    return pd.DataFrame(found, columns=["fit_per_client", "accuracy"], index=rounds)


def draw_curves(folder: Path) -> list[str]:
    """Draw Figures 3 and 4 into a folder, with a CSV file of their numbers."""
    from matplotlib.figure import Figure

    lines = []
    for family, runs in CURVES.items():
        curves = {(split, label): watched(split, change) for split in SPLITS for label, change in runs.items()}
        pd.concat(curves, names=["partition", "run"]).to_csv(folder / f"{family}.csv", float_format="%.6g")
        figure = Figure(figsize=(13, 7), layout="constrained")
        axes = figure.subplots(2, len(SPLITS), sharex=True, sharey="row")
        for (split, label), curve in curves.items():
            column = list(SPLITS).index(split)
            for axis, name in zip(axes[:, column], curve, strict=True):
                axis.plot(curve.index, curve[name], label=label)
            axes[0, column].set(title=SPLITS[split], yscale="log")
            axes[1, column].set(xlabel="round")
            fit, accuracy = curve.iloc[-1]
            lines.append(f"{SPLITS[split]}, {label}: fit {fit:.0f}, accuracy {accuracy:.3f}")
        axes[0, 0].set(ylabel="remainder of the factorisation, per client")
        axes[1, 0].set(ylabel="accuracy")
        axes[1, -1].legend()
        figure.savefig(folder / f"{family}.png", dpi=110)
    return lines


DRAWINGS["curves"] = draw_curves
