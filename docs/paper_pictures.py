"""Draw the pictures of docs/papers: ``python docs/paper_pictures.py dp-fedc FOLDER``, or spp-fgc."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flower_fedclust.data import load_dataset, partition
from flower_fedclust.models import FactorModel
from flower_fedclust.numerics.metrics import agreement, count_table
from flower_fedclust.numerics.prototypes import Prototypes, mean_distances
from flower_fedclust.numerics.spectral import components_of
from flower_fedclust.registry import make_strategy
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.spp_fgc.spp_fgc import SPPFGC, Uploads, joined
from flower_fedclust_papers.rank_constraint import rank_constrained_solution

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

N_CLIENTS, N_CLUSTERS, DELTA, MAX_NORM = 100, 10, 1e-4, 10.0
SPLITS = {
    "iid": "IID",
    "classes:2": "two classes a client",
    "k-means": "k-means clusters as clients",
}
_BUDGET: dict[str, Any] = {"epsilon": 20.0, "delta": DELTA, "max_norm": MAX_NORM}
CURVES: dict[str, dict[str, dict[str, Any]]] = {
    "epsilon": {
        "no noise": {},
        **{f"epsilon {one:g}": {**_BUDGET, "epsilon": one} for one in (20.0, 2.0)},
    },
    "clients": {
        f"K = {one}": {**_BUDGET, "fraction_fit": one / N_CLIENTS} for one in (10, 30, 100)
    },
}


def watched(split: str, parameters: dict[str, Any]) -> pd.DataFrame:
    """Return the remainder of the factorization of all rows, per client, and the accuracy, by round."""
    rows = partition(load_dataset("mnist-5k"), split, n_clients=N_CLIENTS, random_state=0)
    together, classes = np.concatenate(rows.clients), np.concatenate(rows.labels)
    found: list[tuple[float, float]] = []

    def watch(_: int, centers: NDArray[np.float64]) -> None:
        # With the penalty of the last rounds in every round, so that only the centers differ.
        model = FactorModel(centers, rho=0.4 * float(np.mean(np.sum(centers**2, axis=1))))
        tables = count_table(classes, model.predict(together), N_CLUSTERS)
        found.append(
            (
                model.cost(together) / N_CLIENTS,
                agreement(np.stack(list(tables.values())))["accuracy"],
            )
        )

    form = {"rho": "growing", "rays_from": "auto", "step_scale": 2.0}
    settings = {"n_rounds": 100, "fraction_fit": 0.3, "batch_size": 50, **form, **parameters}
    strategy: Any = make_strategy("dp-fedc-printed", n_clusters=N_CLUSTERS, **settings)
    strategy.on_centers = watch
    simulate(strategy, rows.clients, seed=0, progress=False)
    rounds = pd.RangeIndex(1, len(found) + 1, name="round")
    return pd.DataFrame(found, columns=["fit_per_client", "accuracy"], index=rounds)


def draw_curves(folder: Path) -> list[str]:
    """Draw Figures 3 and 4 into a folder, with a CSV file of their numbers."""
    from matplotlib.figure import Figure

    lines = []
    for family, runs in CURVES.items():
        curves = {
            (split, label): watched(split, change)
            for split in SPLITS
            for label, change in runs.items()
        }
        pd.concat(curves, names=["partition", "run"]).to_csv(
            folder / f"{family}.csv", float_format="%.6g"
        )
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
        axes[0, 0].set(ylabel="remainder of the factorization, per client")
        axes[1, 0].set(ylabel="accuracy")
        axes[1, -1].legend()
        figure.savefig(folder / f"{family}.png", dpi=110)
    return lines


class SPPFGCWatched(SPPFGC):
    """SPP-FGC that keeps what its server sees; a run works on a copy of the strategy."""

    seen: ClassVar[list[tuple[Uploads, Prototypes]]] = []

    def _server_side(self, uploads: Uploads, prototypes: Prototypes) -> Labels:
        self.seen.append((uploads, prototypes))
        return super()._server_side(uploads, prototypes)


def _means_of_blocks(graph: Floats, order: Labels, n_rows: int = 5) -> Floats:
    """Return the mean weights of blocks of rows and columns, for the rows in an order."""
    n_blocks = len(order) // n_rows
    kept = order[: n_blocks * n_rows]
    blocks = graph[np.ix_(kept, kept)].reshape(n_blocks, n_rows, n_blocks, n_rows)
    return np.asarray(blocks.mean(axis=(1, 3)))


def draw_graphs(folder: Path) -> list[str]:
    """Draw the graphs of two clients, the global graph and its solution on the digits."""
    from matplotlib.figure import Figure

    rows = partition(load_dataset("digits"), "iid", n_clients=2)
    classes = np.concatenate(rows.labels)
    n_clusters = len(np.unique(classes))
    simulate(SPPFGCWatched(n_clusters), rows.clients, seed=0, progress=False)
    uploads, prototypes = SPPFGCWatched.seen[-1]
    E = joined(uploads, prototypes, mean_distances(prototypes), n_clusters).toarray()
    S = rank_constrained_solution(E, n_clusters)[0]
    n_first = uploads.blocks[0].shape[0]
    graphs = {
        "$E^{p,1}$, client 1": (uploads.blocks[0].toarray(), classes[:n_first]),
        "$E^{p,2}$, client 2": (uploads.blocks[1].toarray(), classes[n_first:]),
        "$E^*$, the global graph": (E, classes),
        "$S$, with a component a cluster": (S.toarray(), classes),
    }
    lines = [f"S has {components_of(S)[0]} components."]
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    for axis, (title, (weights, own_classes)) in zip(
        figure.subplots(1, 4), graphs.items(), strict=True
    ):
        shown = _means_of_blocks(weights, np.argsort(own_classes, kind="stable"))
        # Most weights are small: the power makes them visible beside the largest.
        axis.imshow(
            shown**0.4,
            cmap="Greys",
            vmax=np.quantile(shown[shown > 0], 0.99) ** 0.4,
            interpolation="nearest",
        )
        axis.set(xticks=[], yticks=[], title=title)
        within = weights[own_classes[:, None] == own_classes].sum() / weights.sum()
        lines.append(f"{title}: {within:.3f} of the weight is between rows of one class")
    figure.savefig(folder / "spp-fgc-graphs.png", dpi=100, pil_kwargs={"optimize": True})
    return lines


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    print("\n".join({"dp-fedc": draw_curves, "spp-fgc": draw_graphs}[sys.argv[1]](folder)))
