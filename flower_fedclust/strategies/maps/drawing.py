"""How a map is drawn from nearest neighbours, and how other rows are placed on it: t-SNE or UMAP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.models import MapModel
from flower_fedclust.numerics.embedding import check_installed, tsne_map, tsne_n_neighbors, umap_map, umap_n_neighbors

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Drawing:
    """A way to draw a map."""

    method: Literal["tsne", "umap"]
    n_neighbors: float  #: The perplexity of t-SNE; or of UMAP the number of neighbours, a point itself counted.
    placing: float  #: The same for a row that is placed on the map: it is to lie with the few points that are like it.
    min_dist: float = 0.0  #: UMAP's.

    def check_installed(self) -> None:
        """Raise a DataError where the library is missing."""
        check_installed(self.method)

    def n_needed(self, n_points: int) -> int:
        """Return how many neighbours of each point the map needs."""
        if self.method == "tsne":
            return tsne_n_neighbors(n_points, self.n_neighbors)
        return umap_n_neighbors(n_points, int(self.n_neighbors))

    def coordinates(self, neighbors: NDArray[np.intp], distances: Floats, rng: np.random.Generator) -> Floats:
        """Return the map of points whose nearest others are known, of shape (n_points, 2)."""
        seed = int(rng.integers(2**31))
        if self.method == "tsne":
            return tsne_map(neighbors, distances, perplexity=self.n_neighbors, random_state=seed)
        return umap_map(
            neighbors, distances, n_neighbors=int(self.n_neighbors), min_dist=self.min_dist, random_state=seed
        )

    def model(self, landmarks: Floats, coordinates: Floats, centers: Floats, **known: Floats | None) -> MapModel:
        """Return the model that places rows on the map; the arguments are those of MapModel."""
        return MapModel(
            self.method,
            landmarks,
            coordinates,
            centers,
            n_neighbors=self.placing,
            min_dist=self.min_dist,
            **known,
        )
