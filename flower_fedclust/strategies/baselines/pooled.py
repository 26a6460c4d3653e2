"""The pooled references, without privacy: every client sends its rows, and the server clusters them.

docs/shape.md shows how a ``yield`` here becomes a round of Flower.
"""

from __future__ import annotations

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
from flower_fedclust.numerics.checks import warn_of_empty_clusters
from flower_fedclust.numerics.initialization import weighted_kmeans
from flower_fedclust.strategies.common.spectral import LabelsClient, cluster_rows, send_labels


class PooledRowsClient(ProtocolClient):
    """A client that sends its rows as they are."""

    @answers(Sent("the rows themselves", "rows", per="row", has_columns=True))
    def all_rows(self) -> NDArray[np.float64]:
        """Return the rows."""
        return self.rows


class PooledKMeans(ProtocolStrategy):
    """scikit-learn's k-means of all rows, which every client sends: "Optimal" in FedDP-KMeans, section 5."""

    entries = (
        Entry(
            "pooled-kmeans",
            "k-means on all rows, sent to the server: the pooled reference, without any privacy",
            "scikit-learn's KMeans",
        ),
    )
    client_type = PooledRowsClient
    n_protocol_rounds = 1

    def protocol(self) -> Protocol:
        """Gather all rows and cluster them."""
        replies = yield Gather(PooledRowsClient.all_rows.asked())
        rows = np.concatenate([reply.arrays[0] for reply in replies])
        return KMeansModel(weighted_kmeans(rows, None, self.n_clusters, self.rng))


class PooledSpectralClient(PooledRowsClient, LabelsClient):
    """Sends its rows and keeps its labels."""


class PooledSpectral(ProtocolStrategy):
    """Spectral clustering of all rows, which every client sends: "SC" in FedSC, section 5.3.

    The steps are the same as in :class:`FedSC`, except that the server computes the kernel exactly
    from the rows, where FedSC reconstructs it from codes.

    Parameters
    ----------
    bandwidth : float, optional
        The bandwidth r of the Gaussian kernel, in the units of the rows. Defaults to the mean
        distance between the rows of all clients (FedSC, equation 40), which does not depend on
        which client has which rows. FedSC has to average over clients (equation 42).
    n_neighbors : int, optional
        The number k of neighbors of a row in the graph; defaults to ``ceil(log n)`` for n rows.

    References
    ----------
    Qiao, Ding and Fan, "Federated spectral clustering via secure similarity reconstruction",
    NeurIPS 2023, section 5.3. Ng, Jordan and Weiss, "On spectral clustering: analysis and an
    algorithm", NIPS 2001.
    """

    entries = (
        Entry(
            "pooled-spectral",
            "spectral clustering of all rows, sent to the server: the pooled reference for fedsc, without any privacy",
            "Qiao, Ding and Fan 2023, section 5.3",
        ),
    )
    client_type = PooledSpectralClient
    n_protocol_rounds = 2

    bandwidth: float | None = parameter(None, above=0)
    n_neighbors: int | None = parameter(None, at_least=1)

    def protocol(self) -> Protocol:
        """Gather all rows, cluster them, and send each client its labels."""
        replies = yield Gather(PooledSpectralClient.all_rows.asked())
        rows = np.concatenate([reply.arrays[0] for reply in replies])
        model, labels = cluster_rows(
            rows, self.n_clusters, self.rng, bandwidth=self.bandwidth, n_neighbors=self.n_neighbors
        )
        warn_of_empty_clusters(self.name, np.bincount(labels, minlength=self.n_clusters))
        return Outcome(model, (yield from send_labels(labels, replies)))
