"""A graph of centers, weighted by votes: how many rows lie between two centers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.kmeans import squared_distances
from flower_fedclust.numerics.spectral import top_normalized_eigenvectors, unit_rows

Floats = NDArray[np.float64]

#: Weight added to every pair of centers, as a part of the mean degree over their number: it connects the graph.
EVERY_PAIR = 1e-3


def vote_graph(votes: Floats, centers: Floats, scale: float) -> Floats:
    """Return the weights between centers."""
    n_centers = len(centers)
    graph = np.zeros((n_centers, n_centers))
    threshold = scale * np.log(max(len(votes) / 2.0, 1.0))
    graph[np.triu_indices(n_centers, 1)] = np.where(votes > threshold, votes, 0.0)
    graph += graph.T
    if n_centers == 1:
        return graph
    distances = squared_distances(centers, centers)
    np.fill_diagonal(distances, np.inf)
    alone = np.flatnonzero(graph.sum(axis=1) == 0)
    nearest = distances[alone].argmin(axis=1)
    graph[alone, nearest] = graph[nearest, alone] = graph[graph > 0].mean() if graph.any() else 1.0
    return graph


def vote_embedding(graph: Floats, n_vectors: int) -> Floats:
    """Return the rows of the top eigenvectors of the normalized graph, scaled to norm 1."""
    connected = graph + EVERY_PAIR * graph.sum() / len(graph) ** 2
    degrees = connected.sum(axis=1)
    together = np.zeros(len(graph), dtype=np.intp)
    return unit_rows(top_normalized_eigenvectors(lambda vectors: connected @ vectors, degrees, n_vectors, together))
