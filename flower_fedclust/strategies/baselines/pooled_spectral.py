"""Spectral clustering of all rows, sent to the server: the pooled reference for FedSC, without any privacy."""

from __future__ import annotations

import numpy as np

from flower_fedclust.engine import Entry, Gather, Outcome, Protocol, ProtocolStrategy, parameter
from flower_fedclust.numerics.checks import warn_of_empty_clusters
from flower_fedclust.strategies.common.pooled_rows import PooledRowsClient
from flower_fedclust.strategies.common.spectral import LabelsClient, cluster_rows, send_labels


class PooledSpectral(ProtocolStrategy):
    """Spectral clustering of all rows, which every client sends. "SC" in FedSC, section 5.3.

    Kernel, graph, eigenvectors and k-means are those of :class:`FedSC`, with the kernel itself where FedSC has one that
    it reconstructs. What separates the two is the reconstruction, and nothing else.

    Parameters
    ----------
    bandwidth : float, optional
        r of the kernel, in the units of the rows. By default the mean distance between the rows of all clients
        (equation 40), so that nothing depends on which client has which rows; FedSC has to take the mean over clients
        (equation 42).
    n_neighbors : int, optional
        k of the graph; by default ``ceil(log n)``.

    References
    ----------
    Qiao, Ding and Fan, "Federated spectral clustering via secure similarity reconstruction", NeurIPS 2023, section 5.3.
    Ng, Jordan and Weiss, "On spectral clustering: analysis and an algorithm", NIPS 2001.
    """

    entries = (
        Entry(
            "pooled-spectral",
            "spectral clustering of all rows, sent to the server: the pooled reference for fedsc, without any privacy",
            "Qiao, Ding and Fan 2023, section 5.3",
        ),
    )

    bandwidth: float | None = parameter(None, above=0)
    n_neighbors: int | None = parameter(None, at_least=1)

    @property
    def n_protocol_rounds(self) -> int:
        """The rows, and the labels."""
        return 2

    def protocol(self) -> Protocol:
        """Gather all rows, cluster them, and send each client its labels."""
        replies = yield Gather(PooledSpectralClient.all_rows.asked())
        model, labels = cluster_rows(
            np.concatenate([reply.arrays[0] for reply in replies]),
            self.n_clusters,
            self.rng,
            bandwidth=self.bandwidth,
            n_neighbors=self.n_neighbors,
        )
        warn_of_empty_clusters(self.name, np.bincount(labels, minlength=self.n_clusters))
        return Outcome(model, (yield from send_labels(labels, replies)))


class PooledSpectralClient(PooledRowsClient, LabelsClient):
    """The client half: it hides nothing, and keeps the labels."""


PooledSpectral.client_type = PooledSpectralClient
