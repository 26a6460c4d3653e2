"""SPP-FGC: its data sets, its ablation (Table 3), its losses by round (Figure 3b), and its graphs (Figure 5)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from flower_fedclust.data import Table, load_dataset, partition
from flower_fedclust.engine import parameter
from flower_fedclust.numerics.global_graph import components_of
from flower_fedclust.numerics.initialisation import weighted_kmeans
from flower_fedclust.numerics.kmeans import nearest_center
from flower_fedclust.numerics.prototypes import Prototypes, jeffreys
from flower_fedclust.numerics.spectral import top_graph_eigenvectors, unit_rows
from flower_fedclust.numerics.structural_graph import rank_constrained_solution
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.common.spectral import cluster_embedding
from flower_fedclust.strategies.spp_fgc.spp_fgc import SPPFGC, joined
from flower_fedclust.strategies.spp_fgc.uploads import Uploads
from reproduce.measures import DRAWINGS, agreement_scores, data, measure, run
from reproduce.tables import Experiment

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]


@data("iris, rows of L1 norm 1")
def iris() -> Table:
    """Return rows whose L1 norm is 1, which the paper's noise assumes."""
    table = load_dataset("iris")
    return Table(table.rows / np.abs(table.rows).sum(axis=1, keepdims=True), table.labels)


@data("breast cancer, columns in [0, 1]")
def breast_cancer() -> Table:
    """Return columns from 0 to 1."""
    table = load_dataset("breast-cancer")
    least = table.rows.min(axis=0)
    return Table((table.rows - least) / (table.rows.max(axis=0) - least), table.labels)


@data("ring")
def ring() -> Table:
    """Return a set with the rows, columns and classes of the paper's RING, which is not described further."""
    return load_dataset("rings-20d", n_rows=5000, radii=(1.0, 2.0, 3.0, 4.0, 5.0))


@measure("agreement and losses")
def agreement_and_losses(experiment: Experiment, seed: int) -> dict[str, float]:
    """Measure the agreement, and the last losses of SPP-FGC+."""
    result, _ = run(experiment, seed)
    last = [values[-1] for values in result.history.values() if values]
    return agreement_scores(result) | dict(zip(("reconstruction loss", "clustering loss"), last, strict=False))


class SPPFGCWithoutGraphs(SPPFGC):
    """SPP-FGC without some of its graphs (Table 3).

    Parameters
    ----------
    private_graph : bool, default=True
        If False ("w/o PSG"), rows of one client are joined by their prototypes, too.
    global_graph : bool, default=True
        If False ("w/o GSG"), each client's graph is clustered by itself, and the clusters by their means. With neither
        of the two, the prototypes are clustered by their means.
    """

    private_graph: bool = parameter(True)
    global_graph: bool = parameter(True)

    def _server_side(self, uploads: Uploads, prototypes: Prototypes) -> Labels:
        if not self.global_graph:
            alone = clusters_of_single_graphs if self.private_graph else clusters_of_prototypes
            return alone(uploads, prototypes, self.n_clusters, self.rng)
        if not self.private_graph:
            empty = [csr_array(block.shape) for block in uploads.blocks]
            uploads = replace(uploads, blocks=empty, client=np.arange(len(prototypes)))
        return super()._server_side(uploads, prototypes)


def clusters_of_prototypes(
    uploads: Uploads, prototypes: Prototypes, n_clusters: int, rng: np.random.Generator
) -> Labels:
    """Cluster all rows by a k-means of their prototypes' means, without any graph."""
    centers = weighted_kmeans(prototypes.means, prototypes.counts, n_clusters, rng)
    return nearest_center(prototypes.means, centers)[uploads.prototype]


def clusters_of_single_graphs(
    uploads: Uploads, prototypes: Prototypes, n_clusters: int, rng: np.random.Generator
) -> Labels:
    """Cluster each client's graph alone, and these clusters by the means of their rows' prototypes."""
    own, means, counts = [], [], []
    ends = np.cumsum([block.shape[0] for block in uploads.blocks])
    n_before = 0
    for block, prototype in zip(uploads.blocks, np.split(uploads.prototype, ends[:-1]), strict=True):
        n_own = min(n_clusters, block.shape[0])
        _, component = components_of(block)
        embedding = unit_rows(top_graph_eigenvectors(block, n_own, np.minimum(component, n_own - 1)))
        labels = np.unique(cluster_embedding(embedding, n_own, rng)[1], return_inverse=True)[1]
        for cluster in range(labels.max() + 1):
            of_cluster = prototype[labels == cluster]
            means.append(prototypes.means[of_cluster].mean(axis=0))
            counts.append(float(len(of_cluster)))
        own.append(labels + n_before)
        n_before += int(labels.max()) + 1
    centers = weighted_kmeans(np.array(means), np.array(counts), n_clusters, rng)
    return nearest_center(np.array(means), centers)[np.concatenate(own)]


class SPPFGCWatched(SPPFGC):
    """SPP-FGC that keeps what its server sees."""

    def _server_side(self, uploads: Uploads, prototypes: Prototypes) -> Labels:
        self.seen = uploads, prototypes
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
    strategy = SPPFGCWatched(n_clusters)
    simulate(strategy, rows.clients, seed=0, progress=False)
    uploads, prototypes = strategy.seen
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
        shown = _means_of_blocks(weights, np.argsort(own_classes, kind="stable"))
        # Most weights are small: the power makes them visible beside the largest.
        axis.imshow(shown**0.4, cmap="Greys", vmax=np.quantile(shown[shown > 0], 0.99) ** 0.4, interpolation="nearest")
        axis.set(xticks=[], yticks=[], title=title)
        within = weights[own_classes[:, None] == own_classes].sum() / weights.sum()
        lines.append(f"{title}: {within:.3f} of the weight is between rows of one class")
    figure.savefig(folder / "spp-fgc-graphs.png", dpi=100, pil_kwargs={"optimize": True})
    return lines


DRAWINGS["graphs"] = draw_graphs
