"""DSC: every client clusters its own rows by spectral clustering, and the server merges their clusters."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import (
    Entry,
    Gather,
    Outcome,
    Protocol,
    ProtocolClient,
    ProtocolStrategy,
    Sent,
    answers,
    parameter,
)
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.checks import DataError, warn_of_empty_clusters
from flower_fedclust.numerics.initialisation import weighted_kmeans
from flower_fedclust.numerics.kmeans import centers_of, cluster_sums, nearest_center
from flower_fedclust.strategies.common.spectral import cluster_rows, split_by_client

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: The name under which a client keeps the clusters that it found by itself.
OWN_LABELS = "own labels"


class DSC(ProtocolStrategy):
    """Distributed spectral clustering, as FedSC's authors describe what they compare with: two rounds, no privacy.

    "DSC performs spectral clustering on each local dataset" (section 5.3), and they say no more. What had to be
    decided: each client has the kernel and the graph of :class:`PooledSpectral`, with a bandwidth and a number of
    neighbors for its own rows. The clusters are merged by a k-means of their means, weighted by their sizes. A row is
    in the cluster that its client's cluster was merged into, which need not be the one with the nearest center; new
    rows go to the nearest.

    On Iris with 8 clients this is right for 0.88 of the rows, and their Table 1 says 0.55: about what comes out (0.49)
    where the clients' clusters keep the numbers that each client gave them, and are not matched.

    Parameters
    ----------
    n_local_clusters : int, optional
        In each client; n_clusters by default. A client with fewer different rows finds as many as it has.

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

    n_local_clusters: int | None = parameter(None, at_least=1)

    @property
    def n_protocol_rounds(self) -> int:
        """The clients' clusters, and which they were merged into."""
        return 2

    # The server half.

    def protocol(self) -> Protocol:
        """Gather the clients' clusters, merge them, and tell each client which of its clusters went where."""
        replies = yield Gather(
            DSCClient.spectral_clusters.asked(
                n_clusters=self.n_local_clusters or self.n_clusters,
                random_state=int(self.rng.integers(2**31)),
            )
        )
        means, sizes = (np.concatenate([reply.arrays[index] for reply in replies]) for index in (0, 1))
        if len(means) < self.n_clusters:
            raise DataError(
                f"the clients found {len(means)} clusters together and n_clusters is {self.n_clusters}; ask for fewer, "
                "or for more n_local_clusters."
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # means that coincide
            centers = weighted_kmeans(means, sizes, self.n_clusters, self.rng)
        merged = nearest_center(means, centers)
        warn_of_empty_clusters(self.name, np.bincount(merged, minlength=self.n_clusters))

        by_client = split_by_client(merged, replies)
        replies = yield Gather({client: DSCClient.merged_labels.asked(own) for client, own in by_client.items()})
        return Outcome(KMeansModel(centers), {reply.client: reply.arrays[0].astype(np.intp) for reply in replies})


# The client half.


class DSCClient(ProtocolClient):
    """The answers of a client that clusters its own rows, and hides little of them."""

    @answers(
        Sent("means of the client's own clusters", "centers", has_columns=True),
        Sent("sizes of the client's own clusters", "centers", counts="every row"),
    )
    def spectral_clusters(self, *, n_clusters: int, random_state: int) -> tuple[Floats, Floats]:
        """Return the means and the sizes of the client's own clusters, and keep which row is in which."""
        labels = np.zeros(len(self.rows), dtype=np.intp)
        n_clusters = min(n_clusters, len(np.unique(self.rows, axis=0)))
        if n_clusters > 1:
            _, found = cluster_rows(self.rows, n_clusters, np.random.default_rng(random_state))
            labels = np.unique(found, return_inverse=True)[1]  # k-means may leave a cluster empty
        self.remember(OWN_LABELS, [labels])
        sums, sizes = cluster_sums(self.rows, labels, int(labels.max()) + 1)
        return centers_of(sums, sizes, fallback=sums), sizes

    @answers(Sent("cluster of every row", "codes", per="row", counts="labels"))
    def merged_labels(self, merged: Labels) -> Labels:
        """Return the cluster that each row's own cluster was merged into; ``recall("labels")`` gives them back."""
        own = self.recall(OWN_LABELS)
        if own is None:
            raise DataError(f"client {self.name} has not kept its own clusters; it missed the round that makes them.")
        labels: Labels = merged[own[0]]
        self.remember("labels", [labels])
        return labels


DSC.client_type = DSCClient
