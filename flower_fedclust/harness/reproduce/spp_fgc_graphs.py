"""Figure 5 of the paper of SPP-FGC, as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data import load_dataset, partition
from flower_fedclust.numerics.global_graph import components_of
from flower_fedclust.numerics.prototypes import Prototypes, jeffreys
from flower_fedclust.numerics.structural_graph import rank_constrained_solution
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.spp_fgc.spp_fgc import SPPFGC, joined
from flower_fedclust.strategies.spp_fgc.uploads import Uploads

#: As many rows and columns of a graph are one dot of the picture.
_ROWS_A_DOT = 5


def _dots(graph: NDArray[np.float64], order: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the mean weight of blocks of rows and columns, for the rows in an order."""
    n_dots = len(order) // _ROWS_A_DOT
    kept = order[: n_dots * _ROWS_A_DOT]
    blocks = graph[np.ix_(kept, kept)].reshape(n_dots, _ROWS_A_DOT, n_dots, _ROWS_A_DOT)
    mean: NDArray[np.float64] = blocks.mean(axis=(1, 3))
    return mean


def draw_graphs(folder: Path) -> list[str]:
    """Draw the graphs of two clients, the global graph and its solution on the digits into a folder."""
    from matplotlib.figure import Figure

    seen: list[tuple[Uploads, Prototypes]] = []

    class Watched(SPPFGC):
        def _server_side(self, uploads: Uploads, prototypes: Prototypes) -> NDArray[np.intp]:
            seen.append((uploads, prototypes))
            return super()._server_side(uploads, prototypes)

    rows = partition(load_dataset("digits"), "iid", n_clients=2)
    classes = np.concatenate(rows.labels or [])
    n_clusters = len(np.unique(classes))
    simulate(
        Watched(n_clusters),  # type: ignore[call-arg]
        rows.clients,
        seed=0,
        progress=False,
    )
    uploads, prototypes = seen[0]
    E = joined(uploads, prototypes, jeffreys(prototypes), n_clusters).toarray()
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
    for axis, (title, (weights, own_classes)) in zip(figure.subplots(1, 4), graphs.items(), strict=True):
        shown = _dots(weights, np.argsort(own_classes, kind="stable"))
        # Most weights are small: the power makes them visible beside the largest.
        axis.imshow(shown**0.4, cmap="Greys", vmax=np.quantile(shown[shown > 0], 0.99) ** 0.4, interpolation="nearest")
        ends = np.cumsum(np.bincount(own_classes)) / _ROWS_A_DOT
        axis.set(xticks=ends - np.diff(ends, prepend=0) / 2, yticks=[], title=title)
        axis.set_xticklabels([str(label) for label in range(len(ends))], fontsize=8)
        axis.tick_params(length=0)
        within = weights[own_classes[:, None] == own_classes].sum() / weights.sum()
        lines.append(f"{title}: {within:.3f} of the weight is between rows of one class")
    figure.savefig(folder / "spp-fgc-graphs.png", dpi=100, pil_kwargs={"optimize": True})
    return lines
