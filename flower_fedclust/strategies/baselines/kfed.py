"""k-FED (Dennis, Li and Smith, ICML 2021): the server clusters the clients' own centers, without privacy.

docs/shape.md shows how a ``yield`` here becomes a round of Flower.
"""

from __future__ import annotations

from flower_fedclust.engine import Entry, Protocol, ProtocolStrategy, parameter
from flower_fedclust.models import KMeansModel
from flower_fedclust.strategies.common.first_centers import LocalCentersClient, merge_local_centers


class KFED(ProtocolStrategy):
    """k-FED: every client clusters its own rows, and the server clusters the clients' centers. One round, no privacy.

    Parameters
    ----------
    n_local_clusters : int, optional
        k', the number of clusters in each client; defaults to n_clusters. The paper's theory
        assumes that each client has only a few of the clusters.

    References
    ----------
    Dennis, Li and Smith, "Heterogeneity for the win: one-shot federated clustering", ICML 2021.
    Clients use the algorithm of Awasthi and Sheffet, "Improved spectral-norm bounds for
    clustering", 2012.
    """

    entries = (
        Entry(
            "k-fed",
            "every client clusters its rows, the server clusters the centers; one round, without noise",
            "Dennis, Li and Smith 2021",
            finds="round",
        ),
    )
    client_type = LocalCentersClient
    n_protocol_rounds = 1

    n_local_clusters: int | None = parameter(None, at_least=1)

    def protocol(self) -> Protocol:
        """Gather the clients' centers and cluster them."""
        n_local_clusters = self.n_local_clusters or self.n_clusters
        centers = yield from merge_local_centers(self.n_clusters, n_local_clusters, self.rng)
        return KMeansModel(centers)
