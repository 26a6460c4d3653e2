"""DP Lloyd: the baselines in the paper of FedDP-KMeans, with the first centers of its appendix G.3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from flower_fedclust.engine import Entry, Protocol, parameter
from flower_fedclust.engine.parts import Part
from flower_fedclust.exact.rows import Frame
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.initialization import SERVER_INITIALISATIONS
from flower_fedclust.strategies.common.clusters import (
    ClientBounds,
    ClusterClient,
    ClusterStatistic,
    lloyd_parts,
    lloyd_step,
)
from flower_fedclust.strategies.common.server_data import ServerDataStrategy


class DPLloyd(ServerDataStrategy):
    """DP Lloyd: FedDP-Lloyds (Algorithm 2) from centers that cost no privacy because they use no client's rows.

    These are the baselines in the paper of FedDP-KMeans (section 5 and appendix G.3); FedDP-Lloyds is its Algorithm 2.
    All of the budget pays for the Lloyd steps.

    Parameters
    ----------
    init : "server-kmeans++", "server-lloyds" or "sphere-packing", default="server-lloyds"
        How to find the first centers in the server rows or, for sphere packing, in their ball.
    n_rounds : int, default=1
        Lloyd steps.

    References
    ----------
    Su et al., "Differentially private k-means clustering", 2016.
    """

    entries = tuple(
        Entry(
            f"dp-lloyd-{init}",
            f"private Lloyd steps from {start}",
            "Scott, Lampert and Saulpic 2025, appendix G.3",
            {"init": init},
        )
        for init, start in (
            ("server-kmeans++", "k-means++ on the server's rows"),
            ("server-lloyds", "a k-means of the server's rows"),
            ("sphere-packing", "centers spread over space, whatever the rows"),
        )
    )
    client_type = ClusterClient

    init: Literal["server-kmeans++", "server-lloyds", "sphere-packing"] = parameter("server-lloyds")
    n_rounds: int = parameter(1, at_least=1)

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds: one for each Lloyd step."""
        return self.n_rounds

    def parts(self) -> Mapping[str, Part]:
        """Return the parts of the budget: three quarters for the sums, a quarter for the counts."""
        return lloyd_parts("", 0.75, 0.25, self.n_rounds, self.privacy_unit)

    def protocol(self) -> Protocol:
        """Find first centers in the server rows, then take the Lloyd steps of Algorithm 2."""
        server_data = self._server_rows()
        frame = Frame.around(server_data, centered=self.center_rows)
        server_rows = frame.enter(server_data)
        centers = SERVER_INITIALISATIONS[self.init](
            server_rows, self.n_clusters, frame.radius, self.rng
        )
        bound = None
        if self.privacy_unit == "client":
            bound = ClientBounds.from_server_rows(
                server_rows, self.n_clusters, self.rows_per_client
            ).means
        statistic = ClusterStatistic(("sums", "counts"), self.shrink_centers, bound)
        for _ in range(self.n_rounds):
            centers = yield from lloyd_step(centers, frame, statistic)
        return KMeansModel(frame.leave(centers))
