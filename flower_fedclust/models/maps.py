"""Maps of rows, and clusters on them.

A map is a plane in which similar rows lie close together. It is made once, from landmarks or from noisy rows. A new row
gets its place by its distances to the points from which the map was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.models.base import Clustered
from flower_fedclust.models.centers import CenterModel, nearest_centers
from flower_fedclust.numerics.checks import check_choice, check_real, checked_rows
from flower_fedclust.numerics.embedding import place_tsne, place_umap, tsne_n_neighbors
from flower_fedclust.numerics.nystrom import (
    distances_between,
    landmark_distances,
    nearest_landmarks,
    nystrom_neighbors_of_new,
    within_reach,
)

Floats = NDArray[np.float64]


class MapModel(CenterModel, name="map"):
    """A map of rows, which also places new rows, and clusters by the nearest center on the map.

    The cost is in squared units of the map.

    Parameters
    ----------
    method : "tsne" or "umap"
        How the map was made, and how rows are placed.
    landmarks : array-like of shape (n_landmarks, n_columns)
        Points whose distances to a row determine its place.
    coordinates : array-like of shape (n_points, n_dimensions)
        The map: of the landmarks, or of the rows whose ``distances`` are given.
    cluster_centers : array-like of shape (n_clusters, n_dimensions)
        On the map.
    n_neighbors : float
        How a row is placed: the perplexity for "tsne", or the number of neighbors for "umap".
    min_dist : float, default=0.1
        The parameter of this name of UMAP, for "umap".
    distances : array-like of shape (n_points, n_landmarks), optional
        Distances of the map's rows from the landmarks. They reveal as much as the rows themselves,
        so a model that has them stays with the server.
    squared : bool, default=True
        Whether the distances between rows are estimated from the squares of ``distances``. This is more exact without
        noise, and much worse with noise.
    origin : array-like of shape (n_columns_of_the_rows,), optional
    directions : array-like of shape (n_columns_of_the_rows, n_columns), optional
        Given together with ``origin``: rows are moved by the origin and projected to the directions, and the landmarks
        are points of the projection.

    Attributes
    ----------
    coordinates_ : ndarray of shape (n_points, n_dimensions)
    map_centers_ : ndarray of shape (n_clusters, n_dimensions)
    """

    _METHODS = ("tsne", "umap")

    space = "map"
    columns_from = "the map has"

    def __init__(
        self,
        method: str,
        landmarks: ArrayLike,
        coordinates: ArrayLike,
        cluster_centers: ArrayLike,
        *,
        n_neighbors: float,
        min_dist: float = 0.1,
        distances: ArrayLike | None = None,
        squared: bool = True,
        origin: ArrayLike | None = None,
        directions: ArrayLike | None = None,
    ) -> None:
        check_choice("method", method, self._METHODS)
        self.method = method
        self.landmarks_ = checked_rows(np.array(landmarks), owner="landmarks")
        self.coordinates_ = checked_rows(np.array(coordinates), owner="coordinates")
        self.cluster_points = self.map_centers_ = checked_rows(
            np.array(cluster_centers), owner="cluster_centers"
        )
        self.n_neighbors = check_real("n_neighbors", n_neighbors, above=0)
        self.min_dist = check_real("min_dist", min_dist, at_least=0)
        self._squared = squared
        self._distances = None if distances is None else checked_rows(distances, owner="distances")
        self.stays_with_server = self._distances is not None
        n_points = len(self.landmarks_ if self._distances is None else self._distances)
        if len(self.coordinates_) != n_points:
            raise ValueError(
                f"coordinates: {len(self.coordinates_)} places for {n_points} points; give one for each."
            )
        self._origin = None if origin is None else np.asarray(origin, dtype=np.float64)
        self._directions = (
            None if directions is None else checked_rows(np.array(directions), owner="directions")
        )
        if (origin is None) != (directions is None):
            raise ValueError("origin and directions go together; give both or neither.")
        self.n_columns = self.landmarks_.shape[1] if self._origin is None else len(self._origin)

    @property
    def mean_points(self) -> Floats | None:
        """The mean of the landmarks, in the space of the rows."""
        landmarks = self.landmarks_
        if self._origin is not None and self._directions is not None:
            landmarks = self._origin + landmarks @ self._directions.T
        return np.asarray(landmarks.mean(axis=0, keepdims=True))

    def __repr__(self) -> str:
        return (
            f"MapModel({self.method}, {len(self.coordinates_)} points, {self.n_clusters} clusters)"
        )

    @property
    def _widest(self) -> int:
        """The entries per row of the largest array that is made when rows are placed."""
        return len(self.landmarks_) + self.n_columns

    def transform_block(self, rows: Floats) -> Floats:
        """Return where checked rows lie on the map, instead of their distances to its centers."""
        return self.place(rows)

    def transform(self, rows: ArrayLike) -> Floats:
        """Return where rows lie on the map, of shape (n_rows, n_dimensions); a place depends on its row only."""
        return super().transform(rows)

    def place(self, rows: Floats) -> Floats:
        """Return where checked rows lie on the map, of shape (n_rows, n_dimensions).

        A row is placed among its nearest points of the map, weighted as in t-SNE or UMAP. Other new rows make no
        difference.
        """
        if self._origin is not None and self._directions is not None:
            rows = within_reach(rows - self._origin) @ self._directions
        n_points = len(self.coordinates_)
        wanted = (
            tsne_n_neighbors(n_points + 1, self.n_neighbors)
            if self.method == "tsne"
            else int(self.n_neighbors)
        )
        wanted = min(wanted, n_points)
        if self._distances is None:
            neighbors, distances = nearest_landmarks(rows, self.landmarks_, wanted)
        else:
            B = landmark_distances(rows, self.landmarks_)
            W = distances_between(self.landmarks_)
            neighbors, distances = nystrom_neighbors_of_new(
                B, self._distances, W, wanted, squared=self._squared
            )
        if self.method == "tsne":
            return place_tsne(neighbors, distances, self.coordinates_, perplexity=self.n_neighbors)
        return place_umap(
            neighbors, distances, self.coordinates_, n_neighbors=wanted, min_dist=self.min_dist
        )

    def cluster(self, rows: ArrayLike, places: Floats | None = None) -> Clustered:
        """Return labels, cost and places of rows; rows with known places are not placed again."""
        return nearest_centers(
            self.transform(rows) if places is None else places, self.map_centers_
        )

    def to_arrays(self) -> list[Floats]:
        """Return the settings, the landmarks, the map, its centers, and the optional arrays, which may be empty."""
        settings = np.array(
            [self._METHODS.index(self.method), self.n_neighbors, self.min_dist, self._squared]
        )
        optional = [(self._distances, (0, 0)), (self._origin, (0,)), (self._directions, (0, 0))]
        return [
            settings,
            self.landmarks_,
            self.coordinates_,
            self.map_centers_,
            *(np.empty(shape) if array is None else array for array, shape in optional),
        ]

    @classmethod
    def from_arrays(cls, arrays: Sequence[Floats]) -> Self:
        """Make the model from the arrays that :meth:`to_arrays` returned."""
        settings, landmarks, coordinates, centers, *optional = arrays
        distances, origin, directions = (array if array.size else None for array in optional)
        return cls(
            cls._METHODS[int(settings[0])],
            landmarks,
            coordinates,
            centers,
            n_neighbors=float(settings[1]),
            min_dist=float(settings[2]),
            distances=distances,
            squared=bool(settings[3]),
            origin=origin,
            directions=directions,
        )
