"""The global graph E* of SPP-FGC (equation 9): all rows are nodes, and edges between clients are never written out.

A prototype stands for rows of one client. Two rows of different clients are as similar as their prototypes, so the
edges between clients are ``U A U'``: U assigns each row to its prototype, and A has the affinities of prototypes. A
product with E* takes one addition for each edge of the clients' graphs and for each row.

``blocks``, (n_rows, n_rows), has the clients' symmetric graphs on the diagonal. ``prototype``, (n_rows,), has the
prototype of each row, and ``client``, (n_prototypes,), the client of each prototype. The divergences J and the
affinities A are (n_prototypes, n_prototypes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.kmeans import cluster_sums, squared_distances
from flower_fedclust.numerics.spectral import components_of, top_normalized_eigenvectors, unit_rows
from flower_fedclust.numerics.structural_graph import SMALLER_K_FROM

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: The total weight that a row gives to rows of other clients if there is one other client; to rows of its own client it
#: gives 1. To the rows of m other clients it gives sqrt(m) times as much, because more of its nearest rows are there.
BETWEEN_CLIENTS = 0.5

#: Each prototype is linked to as many prototypes of other clients as there are other clients, and at least to this many
#: prototypes.
FEWEST_LINKS = 2

#: With many clients, a prototype is linked to at most 10 others, or to a twentieth of the prototypes of a mean cluster
#: if that is more. Farther prototypes often belong to other clusters.
ENOUGH_LINKS, CLUSTER_OF_LINKS = 10, 20

#: The length of a usual link is the length at a third of the kept links.
PART_FOR_SCALE = 3

#: An edge within a client counts as too long if many prototypes, of any client, are nearer to both of its ends: a
#: client with few rows of a cluster joins them to its other rows, however far. "Many" prototypes stand for a twelfth of
#: the rows of a mean cluster, if each client's rows are divided evenly among its prototypes.
CLUSTER_OF_NEAR = 12

#: The fewest nearer prototypes for which an edge is too long: 5, or 4 from ``SMALLER_K_FROM`` clusters on.
FEWEST_NEAR = 5, 4

#: For how many prototypes the nearest prototypes are found at a time.
AT_A_TIME = 1024

#: The fraction of their weight that the longest edges keep. Without any weight, outliers would become clusters.
LEAST_PART = 0.03

#: The power with which too long edges within clients, and too long links between clients, lose weight.
FADING = 8

#: A client has few rows if it has less than this fraction of the rows of a mean cluster.
FEW_ROWS = 0.25


def prototype_affinity(
    divergences: Floats,
    counts: Floats,
    client: Labels,
    *,
    n_nearest: int | None = None,
    weight: float | None = None,
    part: Labels | None = None,
    n_clusters: int = 1,
) -> Floats:
    """Return A: the weight that a row of one prototype gives to each row of another client's prototype.

    ``exp(-J / tau)``. Each prototype keeps its links to the nearest prototypes of other clients: as many as there are
    other clients, within the limits ``FEWEST_LINKS`` and ``ENOUGH_LINKS``. tau is the median, over prototypes, of the J
    at a third of the kept links, rounded up. With up to four clients this is the nearest. With more it is not, because
    the more clients there are, the nearer is the nearest, and in the end each prototype would be joined to hardly more
    than one other. The weights that a row of a gives to all rows of other clients, ``sum_b A_ab n_b``, add up to
    ``weight``, by default ``BETWEEN_CLIENTS sqrt(m)`` for m other clients; to rows of its own client it gives 1.

    With two clients, links that are not mutual are dropped, because the other client may lack a cluster. If the graph
    then has more than ``n_clusters`` components, the shortest dropped links join them again.

    A is symmetric, and 0 between prototypes of one client.
    """
    foreign = client[:, None] != client
    if not foreign.any():
        return np.zeros_like(divergences)
    n_others = len(np.unique(client)) - 1
    weight = BETWEEN_CLIENTS * float(np.sqrt(n_others)) if weight is None else weight
    distances = np.where(foreign, divergences, np.inf)
    enough = max(ENOUGH_LINKS, len(client) // (CLUSTER_OF_LINKS * n_clusters))
    n_wanted = n_nearest or max(min(n_others, enough), FEWEST_LINKS)
    n_kept = min(n_wanted, int(foreign.sum(axis=1).min()))
    nearest = np.sort(distances, axis=1)
    reach, usual = nearest[:, n_kept - 1], nearest[:, (n_kept - 1) // PART_FOR_SCALE]
    # All equally near prototypes are kept, so that their order does not matter.
    kept = foreign & (distances <= reach[:, None])
    if n_others == 1:
        kept = _with_bridges(
            kept & kept.T, distances, np.arange(len(kept)) if part is None else part, n_clusters
        )
    exponents = np.where(kept, np.log(counts) - distances / _scale(usual), -np.inf)
    largest = exponents.max(axis=1, keepdims=True)  # without it, all could underflow
    shares = np.exp(exponents - np.where(np.isfinite(largest), largest, 0.0))
    total = shares.sum(axis=1, keepdims=True)
    shares /= np.where(total > 0, total, 1.0)
    affinity: Floats = weight * shares / counts
    return 0.5 * (affinity + affinity.T)


def _with_bridges(
    kept: NDArray[np.bool_], distances: Floats, part: Labels, n_parts: int
) -> NDArray[np.bool_]:
    """Add the shortest links until at most ``n_parts`` components are left; equally short links are added together."""
    from scipy.sparse import csr_array

    n_left, component = components_of(csr_array(kept | (part[:, None] == part)))
    while n_left > n_parts:
        between = np.where(component[:, None] != component, distances, np.inf)
        shortest = between.min()
        if not np.isfinite(shortest):
            break
        bridges = between == shortest
        kept = kept | bridges
        n_left, component = components_of(csr_array(bridges | (component[:, None] == component)))
    return kept


def parts_of(blocks: csr_array, prototype: Labels, n_prototypes: int) -> Labels:
    """Return the connected component of each prototype, where an edge between two rows joins their prototypes."""
    from scipy.sparse import coo_array, csr_array

    edges = blocks.tocoo()
    ends = (prototype[edges.coords[0]], prototype[edges.coords[1]])
    return components_of(
        csr_array(coo_array((np.ones(edges.nnz), ends), shape=(n_prototypes, n_prototypes)))
    )[1]


def without_far_edges(
    blocks: csr_array,
    prototype: Labels,
    divergences: Floats,
    client: Labels,
    n_clusters: int,
    *,
    sizes: Floats | None = None,
) -> csr_array:
    """Return the clients' graphs with less weight on long edges, which pooled rows would not have.

    A client joins each row to the nearest of its own rows, but other clients may have nearer rows. The weight of an
    edge between rows of prototypes a and b is multiplied by ``min(1, s / J_ab)^8``, but by at least ``LEAST_PART``,
    where s is the larger of the reaches (:func:`_reach`) of a and b. J is symmetric, and 0 on the diagonal. ``sizes``
    has the numbers of equal rows, as in :class:`GlobalGraph`.
    """
    from scipy.sparse import coo_array, csr_array

    if len(divergences) < 2:
        return blocks
    n_rows = np.bincount(client[prototype], weights=sizes, minlength=client.max() + 1)
    reach = _reach(divergences, (n_rows / np.maximum(np.bincount(client), 1))[client], n_clusters)
    edges = blocks.tocoo()
    first, second = prototype[edges.coords[0]], prototype[edges.coords[1]]
    across, within = divergences[first, second], np.maximum(reach[first], reach[second])
    factors = np.divide(within, across, out=np.ones(edges.nnz), where=across > within) ** FADING
    return csr_array(
        coo_array((edges.data * np.maximum(factors, LEAST_PART), edges.coords), shape=blocks.shape)
    )


def _reach(divergences: Floats, n_rows: Floats, n_clusters: int) -> Floats:
    """Return the reach of each prototype: its distance from the n-th nearest other prototype.

    n is chosen so that the nearer prototypes stand for a twelfth of the rows of a mean cluster. But n is at least 5 (4
    from ten clusters on), and at most half of the prototypes of a mean cluster. Rows are counted, and not prototypes,
    because a client with few rows has many small prototypes near each other, which would cut all longer edges.
    """
    most = max(1, len(divergences) // (2 * n_clusters))
    fewest = min(FEWEST_NEAR[n_clusters >= SMALLER_K_FROM], most)
    # A little less than the exact number of rows, so that the rounding of sums does not matter.
    wanted = (1 - 1e-9) * n_rows.sum() / (CLUSTER_OF_NEAR * n_clusters)
    reach = np.empty(len(divergences))
    for start in range(0, len(divergences), AT_A_TIME):
        own = slice(start, start + AT_A_TIME)
        # The nearest is the prototype itself.
        nearest = np.argpartition(divergences[own], most, axis=1)[:, : most + 1]
        lengths = np.take_along_axis(divergences[own], nearest, axis=1)
        order = np.argsort(lengths, axis=1)
        rows = n_rows[np.take_along_axis(nearest, order, axis=1)]
        n_lacking = (rows.cumsum(axis=1) - n_rows[own, None] < wanted).sum(axis=1)
        n_near = np.clip(n_lacking, fewest, most)[:, None]
        lengths = np.take_along_axis(lengths, order, axis=1)
        reach[own] = np.take_along_axis(lengths, n_near, axis=1)[:, 0]
    return reach


def without_far_links(
    affinity: Floats,
    blocks: csr_array,
    prototype: Labels,
    divergences: Floats,
    client: Labels,
    n_clusters: int,
    *,
    sizes: Floats | None = None,
) -> Floats:
    """Return A with less weight on links between clients that are longer than the edges within clients.

    If no other client has rows of a cluster, the links of its prototypes lead to another cluster. A_ab is multiplied
    by ``min(1, s / J_ab)^8``, where s is the weighted median of J over the edges that join two prototypes of one
    client. A client with few rows cannot be a cluster, so the shortest link of each of its prototypes keeps its weight.
    ``sizes`` has the numbers of equal rows, as in :class:`GlobalGraph`.
    """
    edges = blocks.tocoo()
    first, second = prototype[edges.coords[0]], prototype[edges.coords[1]]
    lengths, weights = divergences[first, second][first != second], edges.data[first != second]
    if not weights.any():
        return affinity
    order = np.argsort(lengths)
    total = np.cumsum(weights[order])
    usual = float(lengths[order][np.searchsorted(total, 0.5 * total[-1])])
    if usual == 0:  # most edges join equal prototypes, so their length is no measure
        return affinity
    n_rows = np.bincount(client[prototype], weights=sizes, minlength=client.max() + 1)
    is_small = (n_rows < FEW_ROWS * n_rows.sum() / n_clusters)[client]
    shortest = np.where(client[:, None] != client, divergences, np.inf).min(axis=1)
    kept = np.where(is_small, np.maximum(shortest, usual), usual)
    kept = np.maximum(kept[:, None], kept)
    fading = (
        np.divide(kept, divergences, out=np.ones_like(divergences), where=divergences > kept)
        ** FADING
    )
    faded: Floats = affinity * fading
    return faded


def full_affinity(divergences: Floats) -> Floats:
    """Return ``1 / (1 + J / tau)`` between all prototypes of all clients; tau is the median of the nearest J.

    Unlike an exponential, it does not become 0 between distant prototypes, so it still ranks them. J is made symmetric
    first.
    """
    if len(divergences) < 2:
        return np.ones_like(divergences)
    symmetric = 0.5 * (divergences + divergences.T)
    others = np.where(np.eye(len(symmetric), dtype=bool), np.inf, symmetric)
    affinity: Floats = 1.0 / (1.0 + symmetric / _scale(others.min(axis=1)))
    return affinity


def _scale(divergences: Floats) -> float:
    """Return the median of divergences; if it is 0, their mean; and 1 if all are 0."""
    for scale in (float(np.median(divergences)), float(np.mean(divergences))):
        if scale > 0:
            return scale
    return 1.0


@dataclass(frozen=True)
class GlobalGraph:
    """The graph ``E* = blockdiag(E^p) + U A U'`` of all clients' rows: SPP-FGC, equation (9)."""

    #: The clients' symmetric graphs, as blocks on the diagonal of a matrix of shape (n_rows, n_rows).
    blocks: csr_array
    prototype: Labels  #: U, of shape (n_rows,): which prototype each row belongs to.
    affinity: Floats  #: A, of shape (n_prototypes, n_prototypes): symmetric, not negative.
    #: How many equal rows each row of this graph stands for, of shape (n_rows,); 1 by default. The weights in
    #: ``blocks`` are already multiplied by these numbers.
    sizes: Floats | None = None

    @property
    def n_rows(self) -> int:
        """The number of rows of all clients; equal rows of a client count once."""
        return len(self.prototype)

    def product(self, vectors: Floats) -> Floats:
        """Return E* times vectors of shape (n_rows, n_vectors)."""
        sums, _ = cluster_sums(self._by_size(vectors), self.prototype, len(self.affinity))
        product: Floats = self.blocks @ vectors + self._by_size(
            (self.affinity @ sums)[self.prototype]
        )
        return product

    def _by_size(self, vectors: Floats) -> Floats:
        return vectors if self.sizes is None else vectors * self.sizes[:, None]

    @property
    def degrees(self) -> Floats:
        """The row sums of E*, of shape (n_rows,)."""
        return self.product(np.ones((self.n_rows, 1)))[:, 0]

    def components(self) -> tuple[int, Labels]:
        """Return the number of connected components, and the component of each row.

        An edge between prototypes connects all of their rows, so rows and prototypes are the nodes of a sparse graph
        with the same components.
        """
        from scipy.sparse import coo_array, csr_array

        n_prototypes = len(self.affinity)
        # A prototype without a row, which noise can cause, connects nothing.
        has_row = np.bincount(self.prototype, minlength=n_prototypes) > 0
        edge = (self.affinity > 0) & np.outer(has_row, has_row)
        linked = np.flatnonzero(np.asarray(edge.any(axis=1))[self.prototype])
        first, second = np.nonzero(edge)
        edges = self.blocks.tocoo()
        heads = np.concatenate([edges.coords[0], linked, first + self.n_rows])
        tails = np.concatenate(
            [edges.coords[1], self.prototype[linked] + self.n_rows, second + self.n_rows]
        )
        size = self.n_rows + n_prototypes
        graph = csr_array(coo_array((np.ones(len(heads)), (heads, tails)), shape=(size, size)))
        found = components_of(graph)[1][: self.n_rows]
        values, component = np.unique(found, return_inverse=True)
        return len(values), component.astype(np.intp)

    def embedding(self, n_vectors: int, fallback: Floats) -> Floats:
        """Return the rows of the top eigenvectors of ``D^-1/2 E* D^-1/2``, scaled to norm 1."""
        n_components, component = self.components()
        if n_components <= n_vectors:
            return unit_rows(
                top_normalized_eigenvectors(self.product, self.degrees, n_vectors, component)
            )
        # Each component is embedded as one point.
        table = np.zeros((n_components, len(fallback)))
        np.add.at(table, (component, self.prototype), 1.0 if self.sizes is None else self.sizes)
        return unit_rows(_top_eigenvectors_of(table @ fallback @ table.T, n_vectors))[component]

    def toarray(self) -> Floats:
        """Return E* as a dense array of shape (n_rows, n_rows): for pictures and tests, not for many rows."""
        between = self._by_size(
            self._by_size(self.affinity[np.ix_(self.prototype, self.prototype)]).T
        )
        dense: Floats = self.blocks.toarray() + between
        return dense


def _top_eigenvectors_of(graph: Floats, n_vectors: int) -> Floats:
    """Return the top eigenvectors of a small, dense and connected graph."""
    together = np.zeros(len(graph), dtype=np.intp)
    return top_normalized_eigenvectors(
        lambda vectors: graph @ vectors, graph.sum(axis=1), n_vectors, together
    )


# A graph of centers. An edge is weighted by votes: the number of rows that lie between its two centers.

#: The weight that is added to every pair of centers to connect the graph, as a fraction of the mean degree divided by
#: the number of centers. The second value is for graphs without noise, whose degrees differ more because votes are
#: squared: with the first value, a thin ring with a third of the votes would be cut.
EVERY_PAIR, EXACT_EVERY_PAIR = 1e-3, 1e-4


def vote_graph(votes: Floats, centers: Floats, scale: float) -> Floats:
    """Return the weights between centers; votes that noise may have made are dropped, but every center has a neighbor.

    Without noise (``scale`` is 0) the weights are the squares of the votes, which weakens the few votes across a gap.
    """
    n_centers = len(centers)
    graph = np.zeros((n_centers, n_centers))
    threshold = scale * np.log(max(len(votes) / 2.0, 1.0))
    graph[np.triu_indices(n_centers, 1)] = np.where(
        votes > threshold, votes if scale else votes**2, 0.0
    )
    graph += graph.T
    if n_centers == 1:
        return graph
    distances = squared_distances(centers, centers)
    np.fill_diagonal(distances, np.inf)
    alone = np.flatnonzero(graph.sum(axis=1) == 0)
    nearest = distances[alone].argmin(axis=1)
    graph[alone, nearest] = graph[nearest, alone] = graph[graph > 0].mean() if graph.any() else 1.0
    return graph


def vote_embedding(graph: Floats, n_vectors: int, every_pair: float = EVERY_PAIR) -> Floats:
    """Return the rows of the top eigenvectors of the normalized graph, scaled to norm 1."""
    from scipy.linalg import eigh

    n_centers = len(graph)
    normalized = graph + every_pair * graph.sum() / n_centers**2
    roots = np.sqrt(normalized.sum(axis=1))
    normalized /= roots
    normalized /= roots[:, None]
    # Not Lanczos' method, which misses eigenvectors if clusters are so far apart that eigenvalues are equal.
    top = (max(n_centers - n_vectors, 0), n_centers - 1)
    # The transpose, which is the same matrix, is in Fortran's order and need not be copied.
    vectors = eigh(normalized.T, subset_by_index=top, overwrite_a=True)[1]
    return unit_rows(vectors[:, ::-1])
