"""k-FED: one round, no privacy."""

from __future__ import annotations

from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.checks import check_integer
from flower_fedclust.protocol import Protocol, ProtocolStrategy
from flower_fedclust.steps.local_centers import LocalCentersClient, merge_local_centers


class KFED(ProtocolStrategy):
    """k-FED: every client clusters its own rows, and the server clusters the clients' centers. One round, no privacy.

    Parameters
    ----------
    n_clusters : int
        k, of the whole.
    n_local_clusters : int, optional
        k', in each client; n_clusters by default. The paper's theory is for clients that hold few of the clusters.
    min_clients, random_state, federated_evaluation
        As in :class:`FederatedKMeans`.

    References
    ----------
    Dennis, Li and Smith, "Heterogeneity for the win: one-shot federated clustering", ICML 2021. In the clients:
    Awasthi and Sheffet, "Improved spectral-norm bounds for clustering", 2012.
    """

    name = "k-fed"
    client_type = LocalCentersClient

    def __init__(
        self,
        n_clusters: int,
        *,
        n_local_clusters: int | None = None,
        min_clients: int | None = None,
        random_state: int | None = None,
        federated_evaluation: bool = False,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_local_clusters = n_local_clusters
        self.min_clients = min_clients
        self.random_state = random_state
        self.federated_evaluation = federated_evaluation
        self.check_parameters()

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first parameter which cannot be right."""
        super().check_parameters()
        check_integer("n_clusters", self.n_clusters, at_least=2)
        if self.n_local_clusters is not None:
            check_integer("n_local_clusters", self.n_local_clusters, at_least=1)

    @property
    def n_protocol_rounds(self) -> int:
        """One."""
        return 1

    def protocol(self) -> Protocol:
        """Gather the clients' centers and cluster them."""
        n_local_clusters = self.n_local_clusters or self.n_clusters
        centers = yield from merge_local_centers(self.n_clusters, n_local_clusters, self.rng)
        return KMeansModel(centers)
