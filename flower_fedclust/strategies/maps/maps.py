"""Fed-tSNE and Fed-UMAP (Qiao, Ma and Fan, AAAI 2025, Algorithm 2): maps of rows that stay at their clients.

Y are the landmarks, B the distances of all rows to the landmarks, W the distances between the
landmarks, and Z the map. The paper's samples are columns; here they are rows.

docs/shape.md shows how a ``yield`` here becomes a round of Flower.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import (
    Entry,
    Gather,
    Outcome,
    Protocol,
    Sent,
    answers,
    parameter,
    usable,
)
from flower_fedclust.engine.rounds import Reply, Round
from flower_fedclust.models import MapModel
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.embedding import (
    N_ROWS_OF_A_MAP,
    check_installed,
    tsne_map,
    tsne_n_neighbors,
    umap_map,
    umap_n_neighbors,
)
from flower_fedclust.numerics.initialization import weighted_kmeans
from flower_fedclust.numerics.kmeans import nearest_center
from flower_fedclust.numerics.nystrom import (
    are_distances,
    distances_between,
    landmark_distances,
    nystrom_neighbors,
)
from flower_fedclust.strategies.common.spectral import split_by_client
from flower_fedclust.strategies.maps.landmarks import CodedRowsStrategy, LandmarksClient

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Drawing:
    """A way to draw a map."""

    method: Literal["tsne", "umap"]
    #: t-SNE's perplexity, or UMAP's number of neighbors, which counts the point itself.
    n_neighbors: float
    #: The same for rows that are placed on the finished map. It is smaller, so that they come to lie near the most
    #: similar points.
    placing: float
    min_dist: float = 0.0  #: The parameter min_dist of UMAP.

    def check_installed(self) -> None:
        """Raise a DataError if the library is missing."""
        check_installed(self.method)

    def n_needed(self, n_points: int) -> int:
        """Return how many neighbors of each point must be known to draw a map of n_points points."""
        if self.method == "tsne":
            return tsne_n_neighbors(n_points, self.n_neighbors)
        return umap_n_neighbors(n_points, int(self.n_neighbors))

    def coordinates(
        self, neighbors: NDArray[np.intp], distances: Floats, rng: np.random.Generator
    ) -> Floats:
        """Return the map of points with known neighbors, of shape (n_points, 2)."""
        seed = int(rng.integers(2**31))
        if self.method == "tsne":
            return tsne_map(neighbors, distances, perplexity=self.n_neighbors, random_state=seed)
        return umap_map(
            neighbors,
            distances,
            n_neighbors=int(self.n_neighbors),
            min_dist=self.min_dist,
            random_state=seed,
        )

    def model(
        self, landmarks: Floats, coordinates: Floats, centers: Floats, **known: Any
    ) -> MapModel:
        """Return the model that places rows on the map."""
        return MapModel(
            self.method,
            landmarks,
            coordinates,
            centers,
            n_neighbors=self.placing,
            min_dist=self.min_dist,
            **known,
        )


class FederatedMap(CodedRowsStrategy):
    """Base of Fed-tSNE and Fed-UMAP, which differ in how they draw the map."""

    codes = "distances"

    @property
    @abstractmethod
    def drawing(self) -> Drawing:
        """How the strategy draws the map."""

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first invalid parameter."""
        super().check_parameters()
        if self.federated_evaluation:
            raise ValueError(
                "federated_evaluation would send each client what all rows have sent, which is in the model; take "
                f"{type(self).__name__}Sums, or leave it out."
            )

    # The server half.

    def protocol(self) -> Protocol:
        """Run Algorithm 2, and cluster the map.

        The clients agree on landmarks, and send the distances of their rows to them. From these
        distances the server estimates the neighbors of every row among the rows of all clients,
        draws the map and clusters its points. It sends each client the places and clusters of the
        client's own rows.
        """
        self.drawing.check_installed()
        # Step 1: the landmarks.
        landmarks = yield from self.landmarks()
        Y = landmarks.points
        # Step 2: every client sends the distances of its rows to the landmarks.
        replies = yield from self.distances_to(Y)
        # Step 3: the distances of equations (21) and (22), but only between each row and its nearest neighbors.
        B = np.concatenate([reply.arrays[0] for reply in replies])
        self._check_enough_rows(len(B))
        n_needed = self.drawing.n_needed(len(B))
        neighbors, distances = nystrom_neighbors(
            B, distances_between(Y), n_needed, squared=self.squares_distances
        )
        # Step 4: the map, and clusters on it.
        Z = self.drawing.coordinates(neighbors, distances, self.rng)
        centers = weighted_kmeans(Z, None, self.n_clusters, self.rng)
        places, clusters = (
            split_by_client(array, replies) for array in (Z, nearest_center(Z, centers))
        )
        yield Gather(
            {
                client: FederatedMapClient.keep_places.asked(places[client], clusters[client])
                for client in places
            }
        )
        model = self.drawing.model(Y, Z, centers, distances=B, squared=self.squares_distances)
        return Outcome(model, clusters, places, {"mmd": landmarks.mmds})

    @property
    def squares_distances(self) -> bool:
        """Whether distances to landmarks are squared first, which makes estimated distances between rows better."""
        return True

    def distances_to(self, Y: Floats) -> Generator[Round, list[Reply], list[Reply]]:
        """Gather the distances of all rows to the landmarks."""
        replies = yield Gather(FederatedMapClient.landmark_distances.asked(Y), rows=self.coded_rows)
        return usable(self, replies, partial(_not_distances, distances_between(Y)))

    def _check_enough_rows(self, n_rows: int) -> None:
        needed = max(self.n_clusters, N_ROWS_OF_A_MAP)
        if n_rows < needed:
            raise DataError(
                f"the clients have {n_rows} rows together; a map of {self.n_clusters} clusters needs {needed}."
            )


class FedTSNE(FederatedMap):
    """Fed-tSNE: a t-SNE map of rows that stay where they are.

    The clients together learn landmarks that have the distribution of all rows (FedDL, Algorithm 1
    of the paper). Each client sends the distances of its rows to the landmarks. From these the
    server estimates the distance between any two rows (by the Nystrom method), draws the map, and
    sends each client the places of its own rows. The clusters come from k-means on the map.

    Anybody with the landmarks and a row's distances to them can compute the row
    (strategies/reproduce/attacks.py does it). :class:`FedTSNESums` sends sums alone. The strategy
    "fed-tsne-perturbed" of the second distribution adds the paper's noise.

    Parameters
    ----------
    perplexity : float, default=30
        t-SNE's perplexity.

    References
    ----------
    Qiao, Ma and Fan, "Federated t-SNE and UMAP for distributed data visualization", AAAI 2025.
    Policar, Strazar and Zupan, "openTSNE", 2019.
    """

    entries = (
        Entry(
            "fed-tsne",
            "a t-SNE map by learned landmarks; the server can read the rows",
            "Qiao, Ma and Fan 2025, Algorithms 1 and 2",
            finds="map",
        ),
    )

    perplexity: float = parameter(30.0, at_least=1)

    @property
    def drawing(self) -> Drawing:
        """Draw the map by t-SNE."""
        return Drawing("tsne", self.perplexity, placing=5.0)


class FedUMAP(FederatedMap):
    """Fed-UMAP: a UMAP map of rows that stay where they are.

    The same as :class:`FedTSNE`, with UMAP instead of t-SNE. :class:`FedUMAPSums` sends sums alone.

    Parameters
    ----------
    n_neighbors : int, default=15
        UMAP's number of neighbors, which counts the row itself.
    min_dist : float, default=0.1
        The smallest distance between rows on the map.

    References
    ----------
    Qiao, Ma and Fan, "Federated t-SNE and UMAP for distributed data visualization", AAAI 2025.
    McInnes, Healy and Melville, "UMAP", 2018.
    """

    entries = (
        Entry(
            "fed-umap",
            "a UMAP map by learned landmarks; the server can read the rows",
            "Qiao, Ma and Fan 2025, Algorithms 1 and 2",
            finds="map",
        ),
    )

    n_neighbors: int = parameter(15, at_least=2)
    min_dist: float = parameter(0.1, at_least=0, at_most=1)

    @property
    def drawing(self) -> Drawing:
        """Draw the map by UMAP."""
        return Drawing("umap", self.n_neighbors, placing=5.0, min_dist=self.min_dist)


def _not_distances(W: Floats, reply: Reply) -> str:
    """Say what is wrong with the distances of a client's rows to landmarks with distances W between them."""
    return "" if are_distances(reply.arrays[0], W) else "distances that no row can have"


# The client half.


class FederatedMapClient(LandmarksClient):
    """The client half of Algorithm 2: it sends its rows' distances to the landmarks, and keeps the rows' places."""

    @answers(Sent("distances of every row to the landmarks", "codes", per="row"))
    def landmark_distances(self, Y: Floats) -> Floats:
        """Return B_p, the distances of the client's rows to the landmarks (Algorithm 2, step 2)."""
        return landmark_distances(self.rows, Y)

    @answers()
    def keep_places(self, places: Floats, labels: NDArray[np.intp]) -> None:
        """Keep the rows' places and clusters; ``recall("places")`` and ``recall("labels")`` return them."""
        self.remember("places", [places])
        self.remember("labels", [labels])


FederatedMap.client_type = FederatedMapClient
