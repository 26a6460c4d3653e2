"""The pooled reference: k-means on rows that are all sent to the server."""

from __future__ import annotations

import numpy as np

from flower_fedclust.engine import Entry, Gather, Protocol, ProtocolStrategy
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.initialisation import weighted_kmeans
from flower_fedclust.strategies.common.pooled_rows import PooledRowsClient


class PooledKMeans(ProtocolStrategy):
    """scikit-learn's k-means on all rows, which every client sends. "Optimal" in FedDP-KMeans, section 5."""

    entries = (
        Entry(
            "pooled-kmeans",
            "k-means on all rows, sent to the server: the pooled reference, without any privacy",
            "scikit-learn's KMeans",
        ),
    )
    client_type = PooledRowsClient

    @property
    def n_protocol_rounds(self) -> int:
        """One."""
        return 1

    def protocol(self) -> Protocol:
        """Gather all rows and cluster them."""
        replies = yield Gather(PooledRowsClient.all_rows.asked())
        rows = np.concatenate([reply.arrays[0] for reply in replies])
        return KMeansModel(weighted_kmeans(rows, None, self.n_clusters, self.rng))
