"""DSC: every client clusters its own rows by spectral clustering, and the server merges the clients' clusters."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Sequence

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import (
    Entry,
    Gather,
    Outcome,
    Protocol,
    ProtocolClient,
    ProtocolStrategy,
    Reply,
    Sent,
    answers,
    parameter,
)
from flower_fedclust.engine.rounds import MissedRoundError, Round
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.checks import DataError, warn_of_empty_clusters
from flower_fedclust.numerics.initialization import weighted_kmeans
from flower_fedclust.numerics.kmeans import centers_of, cluster_sums, nearest_center
from flower_fedclust.strategies.common.spectral import cluster_rows

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: The name under which a client keeps its own clusters.
OWN_CLUSTERS = "own clusters"


class LocalClustersClient(ProtocolClient):
    """A client that first clusters its own rows, and later learns into which cluster each of its own was merged."""

    @answers(
        Sent("cluster of every row", "codes", per="row", counts="labels"), needs=[OWN_CLUSTERS]
    )
    def merged_labels(self, merged: Labels) -> Labels:
        """Return the merged cluster of each row, and keep these labels."""
        own_clusters = self.recall(OWN_CLUSTERS)
        if own_clusters is None:
            raise MissedRoundError(
                f"client {self.name} has no clusters of its own; it missed the round before."
            )
        labels: Labels = merged[own_clusters[0]]
        self.remember("labels", [labels])
        return labels


def gather_merged_labels(
    merged: Labels, replies: Sequence[Reply], n_per_client: Sequence[int]
) -> Generator[Round, list[Reply], dict[str, Labels]]:
    """Tell each client into which clusters its own were merged; return the labels of its rows, by client."""
    parts = np.split(merged, np.cumsum(n_per_client)[:-1])
    questions = {
        reply.client: LocalClustersClient.merged_labels.asked(part)
        for reply, part in zip(replies, parts, strict=True)
    }
    replies = yield Gather(questions)
    return {reply.client: reply.arrays[0].astype(np.intp) for reply in replies}


class DSC(ProtocolStrategy):
    """Distributed spectral clustering, as FedSC's authors describe their baseline: two rounds, no privacy.

    The paper says only that "DSC performs spectral clustering on each local dataset" (section 5.3). We chose the rest:
    each client uses the kernel and the graph of :class:`PooledSpectral`, with a bandwidth and a number of neighbors for
    its own rows. The server merges the clients' clusters by a k-means of their means, weighted by their sizes. A row's
    label is the cluster into which its client's cluster was merged, which need not be the one with the nearest center;
    new rows go to the nearest center.

    On Iris with 8 clients the accuracy is 0.88; FedSC's Table 1 reports 0.55 for DSC. If clusters with the same number
    at different clients count as one cluster, without merging, the accuracy is 0.49.

    Parameters
    ----------
    n_local_clusters : int, optional
        The number of clusters in each client; defaults to n_clusters. A client with fewer distinct rows finds as many
        clusters as it has distinct rows.

    References
    ----------
    Hernández-Pereira, Fontenla-Romero, Guijarro-Berdiñas and Pérez-Sánchez, "Federated learning approach for spectral
    clustering", ESANN 2021. Qiao, Ding and Fan, "Federated spectral clustering via secure similarity reconstruction",
    NeurIPS 2023, section 5.3.
    """

    entries = (
        Entry(
            "dsc",
            "every client clusters its rows by spectral clustering, the server merges the clusters; without noise",
            "Hernández-Pereira et al. 2021, as in Qiao, Ding and Fan 2023, section 5.3",
        ),
    )
    n_protocol_rounds = 2

    n_local_clusters: int | None = parameter(None, at_least=1)

    def protocol(self) -> Protocol:
        """Gather the clients' clusters, merge them, and tell each client the result."""
        replies = yield Gather(
            DSCClient.spectral_clusters.asked(
                n_clusters=self.n_local_clusters or self.n_clusters,
                random_state=int(self.rng.integers(2**31)),
            )
        )
        means, sizes = (
            np.concatenate([reply.arrays[index] for reply in replies]) for index in (0, 1)
        )
        if len(means) < self.n_clusters:
            raise DataError(
                f"n_clusters={self.n_clusters} is too large: the clients found {len(means)} clusters together; "
                "set it lower, or n_local_clusters higher."
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # k-means warns if means coincide
            centers = weighted_kmeans(means, sizes, self.n_clusters, self.rng)
        merged = nearest_center(means, centers)
        warn_of_empty_clusters(self.name, np.bincount(merged, minlength=self.n_clusters))
        n_per_client = [len(reply.arrays[0]) for reply in replies]
        return Outcome(
            KMeansModel(centers), (yield from gather_merged_labels(merged, replies, n_per_client))
        )


class DSCClient(LocalClustersClient):
    """Clusters its own rows by spectral clustering."""

    @answers(
        Sent("means of the client's own clusters", "centers", has_columns=True),
        Sent("sizes of the client's own clusters", "centers", counts="every row"),
    )
    def spectral_clusters(self, *, n_clusters: int, random_state: int) -> tuple[Floats, Floats]:
        """Return the means and the sizes of the client's own clusters, and keep which row is in which."""
        labels = np.zeros(len(self.rows), dtype=np.intp)
        n_clusters = min(n_clusters, len(np.unique(self.rows, axis=0)))
        if n_clusters > 1:
            _, clusters = cluster_rows(self.rows, n_clusters, np.random.default_rng(random_state))
            labels = np.unique(clusters, return_inverse=True)[
                1
            ]  # k-means may leave a cluster empty
        self.remember(OWN_CLUSTERS, [labels])
        sums, sizes = cluster_sums(self.rows, labels, int(labels.max()) + 1)
        return centers_of(sums, sizes, fallback=sums), sizes


DSC.client_type = DSCClient
