"""The structural graph of SPP-FGC: each row shares a weight of 1 among its nearest rows.

Equations are numbered as in the paper: He, Wang, Tang, Wang, Wang and Nie, "Towards federated clustering: a client-wise
private graph aggregation framework". Its equations (6) and (22) leave out the positive part, and the inequality (26) is
printed the wrong way round. This module solves the problem from which they follow, without a constraint on the graph's
rank.

Rows are (n_rows, n_columns); C is ``n_clusters``, and k is ``n_neighbors``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.spectral import components_of, symmetric_graph

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]


@dataclass(frozen=True)
class StructuralGraph:
    """A client's graph, E^p in the paper: the nearest rows of each row, and the weights that it gives them."""

    neighbors: Integers  #: The nearest other rows of each row, of shape (n_rows, n_neighbors).
    #: Not negative, of shape (n_rows, n_neighbors); each row adds up to 1, or to 0 if the client has a single row.
    weights: Floats

    @property
    def symmetric(self) -> csr_array:
        """The mean of the graph and its transpose, as in the Laplacian of SPP-FGC, equation (4)."""
        return symmetric_graph(self.neighbors, self.weights)

    @property
    def n_components(self) -> int:
        """The number of connected components, which is n_rows minus the rank of the Laplacian."""
        return components_of(self.symmetric)[0]

    def by_shared_neighbors(self) -> StructuralGraph:
        """Return the graph with each weight times the Jaccard index of the two rows' sets of nearest rows.

        Each set includes the row itself, so no edge is lost. In many dimensions, shared neighbors are more reliable
        than distances (Jarvis and Patrick 1973; Houle et al. 2010).
        """
        n_rows, width = len(self.neighbors), self.neighbors.shape[1] + 1
        nearest = np.column_stack([np.arange(n_rows), self.neighbors])
        shared = np.empty(self.neighbors.shape)
        for block in blocks(n_rows, width**3):
            theirs = nearest[self.neighbors[block]]
            shared[block] = (theirs[:, :, None, :] == nearest[block, None, :, None]).sum(
                axis=(2, 3)
            )
        return StructuralGraph(self.neighbors, self.weights * (shared / (2 * width - shared)))


def client_graph(rows: Floats, n_clusters: int, n_neighbors: int) -> StructuralGraph:
    """Return a client's graph, with the number of neighbors from :func:`neighbors_of_client`."""
    return structural_graph(rows, neighbors_of_client(len(rows), n_clusters, n_neighbors))


#: From this many clusters on, rows have fewer neighbors.
SMALLER_K_FROM = 10


def neighbors_of_client(n_rows: int, n_clusters: int, n_neighbors: int) -> int:
    """Return how many neighbors k a client's rows have: half of the mean size of its clusters, from 3 to n_neighbors.

    From ``SMALLER_K_FROM`` clusters on, k is a tenth of the mean size instead, but at least 5 (or half of the mean
    size, if this is smaller), because farther rows often belong to other clusters. With fewer clusters a client may
    have rows of one cluster only, and the mean size is a poor guide.
    """
    most = max(3, n_rows // (2 * n_clusters))
    if n_clusters >= SMALLER_K_FROM:
        most = min(most, max(5, n_rows // (10 * n_clusters)))
    return max(min(n_neighbors, most, n_rows - 1), 0)


def neighbor_weights(squared: Floats) -> Floats:
    """Return the weights of each row's k nearest other rows, from the squared distances d of the k + 1 nearest.

    The weights are ``(d_k+1 - d_j) / (k d_k+1 - sum_j d_j)``, of shape (n_rows, k). This solves SPP-FGC's problem (19)
    with gamma_i at its upper limit in (26), ``k/2 d_k+1 - 1/2 sum_j d_j``, so that exactly the k nearest rows have a
    weight (equations 22 to 27). The weights of a row add up to 1; equal distances have equal weights.
    """
    last, others = squared[:, -1:], squared[:, :-1]
    gaps = last - others
    total = gaps.sum(axis=1, keepdims=True)
    equal = np.full_like(gaps, 1.0 / gaps.shape[1])
    # Gaps between distances that differ only by rounding are meaningless.
    differ = total > 1e-12 * gaps.shape[1] * last
    weights: Floats = np.divide(gaps, total, out=equal, where=np.broadcast_to(differ, gaps.shape))
    return weights


def structural_graph(rows: Floats, n_neighbors: int) -> StructuralGraph:
    """Return the graph of rows that solves SPP-FGC's problem (3) without the rank constraint, in closed form.

    The number of neighbors k is at most n_rows - 1. For k = n_rows - 1 there is no (k + 1)-th distance; a distance a
    little beyond the k-th takes its place.
    """
    from sklearn.neighbors import NearestNeighbors

    n_neighbors = min(n_neighbors, len(rows) - 1)
    if n_neighbors < 1:
        return StructuralGraph(np.zeros((len(rows), 0), dtype=np.intp), np.zeros((len(rows), 0)))
    n_wanted = min(n_neighbors + 1, len(rows) - 1)
    # The mean is subtracted because far from the origin, distances from a matrix product would lose their digits.
    index = NearestNeighbors(n_neighbors=n_wanted).fit(rows - rows.mean(axis=0))
    distances, neighbors = index.kneighbors()
    squared = distances**2
    if n_wanted == n_neighbors:
        # A distance beyond the k-th, so that the k-th nearest row has a weight.
        squared = np.column_stack([squared, squared[:, -1] + squared.mean(axis=1)])
    return StructuralGraph(neighbors[:, :n_neighbors].astype(np.intp), neighbor_weights(squared))
