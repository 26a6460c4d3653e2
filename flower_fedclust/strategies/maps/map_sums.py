"""Fed-tSNE and Fed-UMAP from sums alone: the server maps centers, and each client places its own rows among them.

This form is not in the paper (D. Qiao, X. Ma and J. Fan, "Federated t-SNE and UMAP for distributed data
visualization", AAAI 2025). The landmarks of its Algorithm 1 lie off the rows, and a map of them would show little; so
centers are spread among the rows by Lloyd steps instead. Z is the map.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import ClippedStrategy, Entry, Protocol, Sent, Sum, answers, parameter
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Round
from flower_fedclust.exact.rows import Frame
from flower_fedclust.models import MapModel
from flower_fedclust.numerics.embedding import N_ROWS_OF_A_MAP
from flower_fedclust.numerics.initialisation import weighted_kmeans
from flower_fedclust.numerics.nystrom import nearest_others
from flower_fedclust.strategies.common.clusters import ClusterStatistic
from flower_fedclust.strategies.common.moments import (
    MOMENT_ROUNDS,
    Moments,
    MomentsClient,
    column_moments,
    moment_parts,
    noisy_column_moments,
)
from flower_fedclust.strategies.common.private_clusters import lloyd_parts
from flower_fedclust.strategies.maps.drawing import Drawing
from flower_fedclust.strategies.maps.landmarks import check_spread
from flower_fedclust.strategies.maps.reduced_rows import ReducedRowsClient, widest_directions
from flower_fedclust.strategies.maps.spread_centers import SpreadCentersClient, n_splits, spread_centers

Floats = NDArray[np.float64]

#: Columns to which rows are reduced before centers with noise are sought among them.
N_DIRECTIONS = 20

#: Lloyd steps after each split of the centers and at the end: without noise, and with.
LLOYD_STEPS, NOISY_LLOYD_STEPS = (2, 10), (1, 1)

#: With noise: how far from their mean rows may lie before they are clipped, in root mean square distances from it.
RADIUS = 1.25


class FederatedMapSums(ClippedStrategy):
    """What the maps from sums share: all but the drawing.

    Parameters
    ----------
    n_landmarks : int, default=300
        Centers of which the map is made; at most half as many as there are rows.
    """

    n_landmarks: int = parameter(300, at_least=2)

    @property
    @abstractmethod
    def drawing(self) -> Drawing:
        """How the map is drawn."""

    # The server half.

    def protocol(self) -> Protocol:
        """Spread centers, map them, and have each client place its rows."""
        self.drawing.check_installed()
        exact = self.epsilon is None
        centers, sizes, known = yield from (self._exact_centers() if exact else self._noisy_centers())
        # A center without a row would be a place on the map where nobody is.
        if np.count_nonzero(sizes) >= max(self.n_clusters, N_ROWS_OF_A_MAP):
            centers, sizes = centers[sizes > 0], sizes[sizes > 0]
        neighbors, distances = nearest_others(centers, self.drawing.n_needed(len(centers)))
        Z = self.drawing.coordinates(neighbors, distances, self.rng)
        weights = sizes if np.count_nonzero(sizes) >= self.n_clusters else None
        model = self.drawing.model(centers, Z, weighted_kmeans(Z, weights, self.n_clusters, self.rng), **known)
        yield Sum(FederatedMapSumsClient.place_rows.asked(*model.to_arrays()))
        return model

    def _exact_centers(self) -> Generator[Round, Any, tuple[Floats, Floats, dict[str, Floats]]]:
        """Return centers among the rows, and how many rows each has."""
        moments, frame = yield from column_moments()
        check_spread(moments)
        centers, sizes = yield from spread_centers(
            self._n_centers(moments), frame, moments.deviation, self.rng, steps=self._lloyd_steps
        )
        return frame.leave(centers), sizes, {}

    def _noisy_centers(self) -> Generator[Round, Any, tuple[Floats, Floats, dict[str, Floats]]]:
        """Return centers among the rows, reduced to a few directions; about how many rows each has; and the directions.

        Noise on few columns hides less of the rows.
        """
        assert self.max_norm is not None
        moments = yield from noisy_column_moments(self.max_norm, self.n_columns)
        check_spread(moments)
        spread = float(np.linalg.norm(moments.deviation))
        frame = Frame(moments.mean, RADIUS * spread or self.max_norm)
        n_directions = min(N_DIRECTIONS, self.n_columns)
        directions = yield from widest_directions(frame, n_directions, "directions")
        centers, sizes = yield from spread_centers(
            self._n_centers(moments),
            Frame(np.zeros(n_directions), frame.radius),
            np.full(n_directions, spread / math.sqrt(n_directions)),
            self.rng,
            steps=self._lloyd_steps,
            statistic=ClusterStatistic(("sums", "counts"), shrink=True),
            smallest=self.noise_of("counts"),
            view=ReducedRowsClient.reduced.asked(directions, frame=frame),
        )
        return centers, sizes, {"origin": moments.mean, "directions": directions}

    # Rounds and budget.

    def _n_centers(self, moments: Moments) -> int:
        return max(min(self._most_centers, int(moments.n_rows) // 2), N_ROWS_OF_A_MAP, self.n_clusters)

    @property
    def _most_centers(self) -> int:
        return max(self.n_landmarks, N_ROWS_OF_A_MAP, self.n_clusters)

    @property
    def _lloyd_steps(self) -> tuple[int, int]:
        return LLOYD_STEPS if self.epsilon is None else NOISY_LLOYD_STEPS

    @property
    def _n_lloyd_rounds(self) -> int:
        after_split, last = self._lloyd_steps
        return n_splits(self._most_centers) * after_split + last

    @property
    def n_protocol_rounds(self) -> int:
        """For the moments, the directions where there is noise, the centers and the places."""
        return (MOMENT_ROUNDS if self.epsilon is None else 2) + self._n_lloyd_rounds + 1

    def parts(self) -> Mapping[str, Part]:
        """Return those of the moments, the directions, and the sums and counts of the Lloyd steps.

        Rows of few columns are not reduced, and what the directions would cost is for the centers.
        """
        n_columns = self.n_columns if self.client_names else math.inf  # before a run, of many
        reduced = n_columns > N_DIRECTIONS
        return {
            **moment_parts(0.1),
            "directions": Part(ReducedRowsClient.frame_products, 0.3, int(reduced)),
            **lloyd_parts("", 0.45, 0.15, self._n_lloyd_rounds, "record"),
        }


class FedTSNESums(FederatedMapSums):
    """Fed-tSNE from sums alone: nothing leaves a client for a row.

    Centers are spread among the rows, by Lloyd steps on sums over the clients. The server makes a t-SNE map of the
    centers and sends it to the clients; each places its rows on it by itself. With ``epsilon`` every sum takes noise,
    and rows are first reduced to the few directions in which they are spread most.

    Parameters
    ----------
    perplexity : float, default=10
        Of t-SNE; smaller than that of :class:`FedTSNE`, since the map has fewer points.

    References
    ----------
    After Qiao, Ma and Fan, "Federated t-SNE and UMAP for distributed data visualization", AAAI 2025. Linde, Buzo and
    Gray, "An algorithm for vector quantizer design", 1980. Policar, Strazar and Zupan, "openTSNE", 2019.
    """

    entries = (
        Entry(
            "fed-tsne-sums",
            "a t-SNE map of centers that sums give; each client places its own rows; private with epsilon",
            "after Qiao, Ma and Fan 2025",
            finds="map",
        ),
    )

    perplexity: float = parameter(10.0, at_least=1)

    @property
    def drawing(self) -> Drawing:
        """By t-SNE."""
        return Drawing("tsne", self.perplexity, placing=3.0)


class FedUMAPSums(FederatedMapSums):
    """Fed-UMAP from sums alone: nothing leaves a client for a row.

    As :class:`FedTSNESums`, with UMAP in place of t-SNE.

    Parameters
    ----------
    n_neighbors : int, default=10
        Of UMAP, which counts the center itself; fewer than :class:`FedUMAP` takes, since the map has fewer points.
    min_dist : float, default=0.1
        How near to each other rows may come on the map.

    References
    ----------
    After Qiao, Ma and Fan, "Federated t-SNE and UMAP for distributed data visualization", AAAI 2025. Linde, Buzo and
    Gray, "An algorithm for vector quantizer design", 1980. McInnes, Healy and Melville, "UMAP", 2018.
    """

    entries = (
        Entry(
            "fed-umap-sums",
            "a UMAP map of centers that sums give; each client places its own rows; private with epsilon",
            "after Qiao, Ma and Fan 2025",
            finds="map",
        ),
    )

    n_neighbors: int = parameter(10, at_least=2)
    min_dist: float = parameter(0.1, at_least=0, at_most=1)

    @property
    def drawing(self) -> Drawing:
        """By UMAP."""
        return Drawing("umap", self.n_neighbors, placing=3.0, min_dist=self.min_dist)


# The client half.


class FederatedMapSumsClient(MomentsClient, ReducedRowsClient, SpreadCentersClient):
    """What a client answers: sums, and the places of its rows, which it keeps."""

    @answers(Sent("the places of the rows on the map", "codes", per="row", kept_as="places"))
    def place_rows(self, *model: Floats) -> Floats:
        """Return where the rows lie on the map of the centers, to be kept."""
        return MapModel.from_arrays(model).transform(self.rows)


FederatedMapSums.client_type = FederatedMapSumsClient
