"""Table 3 of SPP-FGC, "w/o GSG": what comes out where the server joins no rows of different clients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.global_graph import components_of
from flower_fedclust.numerics.initialisation import weighted_kmeans
from flower_fedclust.numerics.kmeans import nearest_center
from flower_fedclust.numerics.prototypes import Prototypes
from flower_fedclust.numerics.spectral import top_graph_eigenvectors, unit_rows
from flower_fedclust.strategies.common.spectral import cluster_embedding
from flower_fedclust.strategies.spp_fgc.uploads import Uploads

Labels = NDArray[np.intp]


def clusters_of_prototypes(
    uploads: Uploads, prototypes: Prototypes, n_clusters: int, rng: np.random.Generator
) -> Labels:
    """Return the clusters of all rows where there is no graph at all: a k-means of the prototypes' means."""
    centers = weighted_kmeans(prototypes.means, prototypes.counts, n_clusters, rng)
    return nearest_center(prototypes.means, centers)[uploads.prototype]


def clusters_of_single_graphs(
    uploads: Uploads, prototypes: Prototypes, n_clusters: int, rng: np.random.Generator
) -> Labels:
    """Return the clusters of all rows where each client's graph is clustered alone, and these clusters by their means.

    Parameters
    ----------
    uploads : Uploads
    prototypes : Prototypes
        The mean of a client's cluster is that of the prototypes of its rows.
    n_clusters : int
        In each client, and of the whole.
    rng : numpy.random.Generator
    """
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
