"""SPP-FGC (He, Wang, Tang, Wang, Wang and Nie, Algorithm 1): clusters from the clients' graphs and prototypes.

v are a client's rows. E^p is its structural graph, which joins each row to its nearest rows. P_k are
its prototypes: small groups of rows with their means, covariances and counts. E* is the global graph
of all clients' rows, and A the clusters of the rows. "Algorithm 1" and the numbers of lines and
equations refer to the paper.

docs/shape.md shows how a ``yield`` here becomes a round of Flower.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import block_diag, csr_array
from sklearn.cluster import AgglomerativeClustering, KMeans

from flower_fedclust.engine import (
    Entry,
    Gather,
    Outcome,
    Protocol,
    ProtocolStrategy,
    Sent,
    answers,
    parameter,
)
from flower_fedclust.engine.replies import unlike_most
from flower_fedclust.engine.rounds import Array, Reply, Round
from flower_fedclust.models import PrototypeModel
from flower_fedclust.numerics.checks import DataError, warn_of_empty_clusters
from flower_fedclust.numerics.copies import SAME, Copies, copies_but_for_rounding, copies_of
from flower_fedclust.numerics.global_graph import (
    GlobalGraph,
    full_affinity,
    parts_of,
    prototype_affinity,
    without_far_edges,
    without_far_links,
)
from flower_fedclust.numerics.initialization import N_RESTARTS
from flower_fedclust.numerics.prototypes import (
    FULL_COLUMNS,
    Prototypes,
    mean_distances,
    prototypes_of,
    shrunk,
)
from flower_fedclust.numerics.spectral import symmetric_graph
from flower_fedclust.numerics.structural_graph import StructuralGraph, client_graph
from flower_fedclust.strategies.common.spectral import LabelsClient, cluster_embedding, send_labels
from flower_fedclust.strategies.spp_fgc.spp_fgc_sums import PAPER

Floats = NDArray[np.float64]

Labels = NDArray[np.intp]


#: By default a client has this many prototypes for each cluster, so that a cluster can have any form.
PROTOTYPES_PER_CLUSTER = 10

#: A client with many rows has at least one prototype for this many rows, up to :data:`MOST_PROTOTYPES`: for as many as
#: a row and its ten neighbors, because a larger prototype can bridge a gap that the client's graph does not bridge.
ROWS_PER_PROTOTYPE = 11

#: The most prototypes to which many rows lead.
MOST_PROTOTYPES = 100

#: With at most this many different rows, prototypes come from Ward's method, whose memory grows with the square of this
#: number.
MOST_ROWS_OF_WARD = 2000

#: The arrays of :func:`sent_graph`. They reveal which rows of a client are similar, and about where each row lies.
GRAPH = (
    Sent("prototype of every row", "codes", per="row"),
    Sent("nearest rows of every row", "codes", per="row"),
    Sent("weights of the nearest rows of every row", "codes", per="row"),
)

#: The arrays that describe a client's prototypes.
PROTOTYPES = (
    Sent("means of the client's prototypes", "centers", has_columns=True),
    Sent("covariances of the client's prototypes", "centers", has_columns=True),
    Sent("sizes of the client's prototypes", "centers", counts="every row"),
)


class StructuralGraphStrategy(ProtocolStrategy):
    """Base of the strategies that run SPP-FGC's Algorithm 1; they differ in the prototypes that clients upload.

    Parameters
    ----------
    n_clusters : int
        The number of clusters, C in the paper.
    n_neighbors : int, default=10
        The most neighbors of a row in a client's graph, k in the paper. A client takes at most
        n_rows / (2 n_clusters), but this limit is at least 3. With ten or more clusters it also
        takes at most n_rows / (10 n_clusters), but this limit is at least 5.
    covariance : "full" or "diagonal", optional
        The form of the prototypes' covariances; by default full for up to 64 columns.
    """

    n_neighbors: int = parameter(10, at_least=1)
    covariance: Literal["full", "diagonal"] | None = parameter(None)

    # The server half.

    def protocol(self) -> Protocol:
        """Run Algorithm 1."""
        # Lines 3 to 9.
        uploads = yield from self._client_side()
        prototypes = shrunk(uploads.prototypes, noise_deviation=uploads.noise_deviation)
        # Lines 11 to 15.
        A = self._server_side(uploads, prototypes)
        warn_of_empty_clusters(self.name, np.bincount(A, minlength=self.n_clusters))
        # Line 17. The paper does not say how the assignments reach the clients.
        by_client = yield from send_labels(A[uploads.node], uploads.replies)
        return Outcome(self._model(uploads, prototypes, A), by_client)

    @abstractmethod
    def _client_side(self) -> Generator[Round, list[Reply], Uploads]:
        """Return the uploads of the clients: their E^p and their P_k with noise (lines 3 to 9)."""

    def _server_side(self, uploads: Uploads, prototypes: Prototypes) -> Labels:
        """Return A, the cluster of every node, from the uploads (lines 11 to 15).

        A node is a row; equal rows of a client are one node.
        """
        value = _values_of(prototypes)
        if value is not None and value.max() < self.n_clusters:
            # No more different rows than clusters: each is a cluster, which a cut of the graph would divide.
            return value[uploads.prototype]
        # Lines 12 and 13.
        E, divergences = self._global_graph(uploads, prototypes)
        # Lines 14 and 15. The paper first solves for a graph S that has a component for each cluster. Here a cluster
        # need not be a component, and the eigenvectors of E* are used instead.
        embedding = E.embedding(self.n_clusters, full_affinity(divergences))
        return cluster_embedding(embedding, self.n_clusters, self.rng, uploads.sizes)[1]

    def _global_graph(self, uploads: Uploads, prototypes: Prototypes) -> tuple[GlobalGraph, Floats]:
        """Return E* and the divergences between the prototypes (lines 12 and 13).

        E^g, the edges between rows of different clients, is the same for all rows of two prototypes,
        and follows from the distance between their means.
        """
        divergences = mean_distances(prototypes)
        return joined(uploads, prototypes, divergences, self.n_clusters), divergences

    def _model(self, uploads: Uploads, prototypes: Prototypes, labels: Labels) -> PrototypeModel:
        """Return the model in which each prototype has the cluster of most of its rows."""
        table = uploads.rows_of_prototypes(labels, self.n_clusters)
        kept = table.sum(axis=1) > 0
        return PrototypeModel(
            prototypes.means[kept],
            table[kept].argmax(axis=1),
            self.n_clusters,
            covariances=prototypes.covariances[kept],
            counts=prototypes.counts[kept],
        )

    @property
    def n_protocol_rounds(self) -> int:
        """Two rounds: one for the graphs and one for the labels."""
        return 2

    def privacy_notes(self) -> list[str]:
        """Add the messages that noise on the prototypes does not cover."""
        return [
            *super().privacy_notes(),
            "The graph says of each row which rows of its client are nearest to it, and the prototype of each row says "
            "about where it lies: no noise covers either, so that nothing is promised for the run as a whole.",
        ]

    @property
    def _is_diagonal(self) -> bool:
        """Whether the prototypes' covariances are diagonal."""
        return (
            self.covariance or ("full" if self.n_columns <= FULL_COLUMNS else "diagonal")
        ) == "diagonal"


class SPPFGC(StructuralGraphStrategy):
    """Clusters from graphs: each client sends the neighbor graph of its rows, and Gaussian prototypes of its rows.

    Each client joins each row to its nearest rows (E^p, equations 3 to 6), divides its rows into
    prototypes, and sends the graph, the prototype of each row, and the prototypes' means,
    covariances and counts. The server joins rows of different clients according to the similarity
    of their prototypes (E*, equations 9 and 10), clusters this graph, and sends each client the
    clusters of its rows. New rows go to the cluster of the likeliest prototype.

    The paper's own recipe ("spp-fgc-printed" of the second distribution) does not do what it
    promises: on Iris with two clients its accuracy is 0.7. Where the paper leaves a choice or is
    wrong, this class does what works:

    - The graph of a client need not have one component for each cluster (the paper's rank constraint).
    - A client has more and smaller prototypes ("atoms"), from Ward's method.
    - The squared distance of means, divided by its usual value between clients, replaces the KL divergence, which is
      not symmetric. Only the nearest prototypes are joined. The more clients there are, the more weight a row gives to
      rows of other clients.
    - An edge within a client counts less if nearer prototypes lie at other clients.
    - The clusters come from the normalized eigenvectors of E*, not from a k-means of the rows of the paper's graph S.

    In the paper and here, the graph and the prototype of each row leave the client without noise.
    So the run as a whole has no epsilon, even if the prototypes had noise, which they do not have
    here. "spp-fgc-private-prototypes" of the second distribution protects the prototypes, and
    :class:`SPPFGCSums` needs no graphs of the clients.

    Parameters
    ----------
    n_prototypes : int, optional
        Prototypes of each client, at most half the number of its rows; by default 10 for each
        cluster, or one for 11 rows if that is more, up to 100.

    References
    ----------
    He, Wang, Tang, Wang, Wang and Nie, "Towards federated clustering: a client-wise private graph
    aggregation framework". Nie, Wang, Jordan and Huang, "The constrained Laplacian rank algorithm
    for graph-based clustering", AAAI 2016.
    """

    entries = (
        Entry(
            "spp-fgc",
            "clusters of any form from the neighbor graphs of the clients' rows, which are sent, and prototypes",
            f"{PAPER}, Algorithm 1",
            finds="any form",
        ),
    )

    n_prototypes: int | None = parameter(None, at_least=1)

    def _client_side(self) -> Generator[Round, list[Reply], Uploads]:
        """Gather the graph and the prototypes that each client computes in lines 5 to 8."""
        replies = yield Gather(
            SPPFGCClient.structural_graph.asked(
                n_clusters=self.n_clusters,
                n_neighbors=self.n_neighbors,
                n_prototypes=self.n_prototypes or 0,
                diagonal=self._is_diagonal,
                random_state=int(self.rng.integers(2**31)),
            )
        )
        return read_uploads(replies, self.n_clusters)


def _values_of(prototypes: Prototypes) -> Labels | None:
    """Return which prototypes stand for equal rows, as a number for each; None if a prototype has rows that differ."""
    rounding = SAME * float(np.abs(prototypes.means).max(initial=0.0))
    if np.abs(prototypes.covariances).max(initial=0.0) > rounding**2:
        return None
    return copies_but_for_rounding(prototypes.means).index


def joined(
    uploads: Uploads, prototypes: Prototypes, divergences: Floats, n_clusters: int
) -> GlobalGraph:
    """Return E*, symmetric (equations 9 and 10; Algorithm 1, lines 12 and 13).

    With two clients, links are added until the graph has only n_clusters connected parts.
    """
    owner, prototype = uploads.client, uploads.prototype
    blocks = without_far_edges(
        uploads.diagonal, prototype, divergences, owner, n_clusters, sizes=uploads.sizes
    )
    between = prototype_affinity(
        divergences,
        prototypes.counts,
        owner,
        part=parts_of(blocks, prototype, len(prototypes)),
        n_clusters=n_clusters,
    )
    between = without_far_links(
        between, uploads.diagonal, prototype, divergences, owner, n_clusters, sizes=uploads.sizes
    )
    return GlobalGraph(blocks, prototype, between, uploads.sizes)


# The uploads of the clients (Algorithm 1, line 8).


@dataclass(frozen=True)
class Uploads:
    """The arrays that the clients sent, one client after the other."""

    replies: Sequence[Reply]
    #: The clients' graphs E^p, made symmetric. Equal rows of a client are one node, with the weights of all of them.
    blocks: list[csr_array]
    #: The prototype of each node, numbered over all clients, of shape (n_nodes,).
    prototype: Labels
    node: Labels  #: The node of each row, numbered over all clients, of shape (n_rows,).
    prototypes: Prototypes  #: The prototypes of all clients.
    client: Labels  #: The client of each prototype, of shape (n_prototypes,).
    #: The standard deviation of the noise in an entry of each covariance, of shape (n_prototypes,), if it is known.
    noise_deviation: Floats | None = None

    @property
    def n_rows(self) -> int:
        """The number of rows of all clients."""
        return len(self.node)

    @property
    def n_nodes(self) -> int:
        """The number of nodes: the different rows of each client, over all clients."""
        return len(self.prototype)

    @property
    def sizes(self) -> Floats:
        """The number of rows that each node stands for."""
        return np.bincount(self.node, minlength=self.n_nodes).astype(np.float64)

    @property
    def diagonal(self) -> csr_array:
        """One graph with the clients' graphs on its diagonal."""
        return csr_array(block_diag(self.blocks))

    def rows_of_prototypes(self, labels: Labels, n_clusters: int) -> Floats:
        """Count the rows of each prototype in each cluster, from the cluster of each node.

        Of shape (n_prototypes, n_clusters).
        """
        table = np.zeros((len(self.prototypes), n_clusters))
        np.add.at(table, (self.prototype, labels), self.sizes)
        return table


def read_uploads(
    replies: Sequence[Reply], n_clusters: int, noise_deviation: Floats | None = None
) -> Uploads:
    """Check what the clients sent, and return it with nodes and prototypes numbered over all clients.

    Each reply has the arrays of :func:`sent_graph`, then means, covariances and sizes of
    prototypes. Equal rows of a client become one node, with the weights of all of them. Raises a
    DataError that names a client whose arrays do not fit together.
    """
    blocks, labels, nodes, client, n_prototypes, n_nodes = [], [], [], [], 0, 0
    _, others = unlike_most({reply.client: reply.arrays[4].ndim for reply in replies})
    for index, reply in enumerate(replies):
        check_fits(reply.client, reply.client not in others and _fits_together(reply.arrays[:6]))
        own_prototypes, neighbors, weights, means = reply.arrays[:4]
        shape = (len(own_prototypes), -1)
        neighbors, weights = (
            neighbors.reshape(shape).astype(np.intp),
            weights.reshape(shape).astype(np.float64),
        )
        first = first_equal(neighbors, weights)
        kept, own_node = np.unique(first, return_inverse=True)
        sizes = np.bincount(own_node).astype(np.float64)
        blocks.append(symmetric_graph(own_node[neighbors[kept]], weights[kept] * sizes[:, None]))
        labels.append(own_prototypes[kept].astype(np.intp) + n_prototypes)
        nodes.append(own_node + n_nodes)
        client.append(np.full(len(means), index))
        n_prototypes += len(means)
        n_nodes += len(kept)
    prototype = np.concatenate(labels)
    node = np.concatenate(nodes)
    if len(node) < n_clusters:
        raise DataError(
            f"the clients have {len(node)} rows together and n_clusters is {n_clusters}; ask for fewer."
        )
    means, covariances, counts = (
        np.concatenate([reply.arrays[position] for reply in replies]).astype(np.float64)
        for position in (3, 4, 5)
    )
    prototypes = Prototypes(means, covariances, counts)
    return Uploads(
        replies, blocks, prototype, node, prototypes, np.concatenate(client), noise_deviation
    )


def first_equal(neighbors: Labels, weights: Floats) -> Labels:
    """Return for each row the first row that equals it, mostly itself, from the arrays of :func:`sent_graph`."""
    itself = np.arange(len(neighbors))
    return np.where((weights == 0).all(axis=1), neighbors[:, 0], itself)


def _fits_together(arrays: Sequence[Array]) -> bool:
    """Tell whether a client's arrays have shapes and indices that agree with each other."""
    prototypes, neighbors, weights, means, covariances, counts = arrays
    if means.ndim != 2 or not are_indices(prototypes, len(means)):
        return False
    n_prototypes, n_columns = means.shape
    if not (
        are_indices(neighbors, len(prototypes))
        and neighbors.shape == weights.shape
        and neighbors.size % len(prototypes) == 0
    ):
        return False
    shape = (len(prototypes), -1)
    first = first_equal(
        neighbors.reshape(shape).astype(np.intp), weights.reshape(shape).astype(np.float64)
    )
    return bool(
        (first[first] == first).all()
        and (weights >= 0).all()
        and covariances.shape in ((n_prototypes, n_columns), (n_prototypes, n_columns, n_columns))
        and counts.shape == (n_prototypes,)
        and (counts > 0).all()
    )


def are_indices(array: Array, size: int) -> bool:
    """Tell whether this is a one-dimensional array of indices below size."""
    return bool(array.ndim == 1 and array.size > 0 and ((array >= 0) & (array < size)).all())


def check_fits(client: str, fits: bool) -> None:
    """Raise a DataError that names the client unless its arrays fit together."""
    if not fits:
        raise DataError(f"client {client} sent a graph and prototypes that do not fit together.")


# The client half.


class SPPFGCClient(LabelsClient):
    """The client half of :class:`SPPFGC`: it sends its graph and prototypes, and keeps the labels of its rows."""

    @answers(*GRAPH, *PROTOTYPES)
    def structural_graph(
        self,
        *,
        n_clusters: int,
        n_neighbors: int,
        n_prototypes: int,
        diagonal: bool,
        random_state: int,
    ) -> tuple[Array, ...]:
        """Return the graph E^p of the client's rows and their prototypes P_k."""
        v, rng = self.rows, self.generator(random_state)
        copies = copies_of(v)
        # Line 5.
        E = client_graph(v[copies.first], n_clusters, n_neighbors)
        # Line 6.
        n_atoms = n_atoms_of(len(v), n_clusters, n_prototypes)
        labels = atoms(v[copies.first], n_atoms, rng)[copies.index]
        P = prototypes_of(v, labels, diagonal=diagonal)
        # Line 8.
        return (*sent_graph(labels, copies, E, n_neighbors), P.means, P.covariances, P.counts)


def sent_graph(
    labels: Labels, copies: Copies, graph: StructuralGraph, n_neighbors: int
) -> tuple[Array, Array, Array]:
    """Return the arrays in which a client sends the graph of its different rows, and the prototype of each row.

    Every row has at least n_neighbors neighbors, and missing ones have the weight 0. Of several
    equal rows, only the first has weights; the others have that row as their only neighbor. The
    arrays are flat, because a client whose graph has the paper's rank constraint may need more
    neighbors.
    """
    n_own_neighbors = graph.neighbors.shape[1]
    width = max(n_neighbors, n_own_neighbors)
    neighbors = np.repeat(copies.first[copies.index].astype(np.int32)[:, None], width, axis=1)
    weights = np.zeros(neighbors.shape, dtype=np.float32)
    neighbors[copies.first, :n_own_neighbors], weights[copies.first, :n_own_neighbors] = (
        copies.first[graph.neighbors],
        graph.weights,
    )
    return labels.astype(np.int32), neighbors.ravel(), weights.ravel()


def n_atoms_of(n_rows: int, n_clusters: int, wanted: int) -> int:
    """Return the number of a client's atoms (prototypes): ``wanted``, or if that is 0, a default; see the constants."""
    by_default = max(
        PROTOTYPES_PER_CLUSTER * n_clusters, min(n_rows // ROWS_PER_PROTOTYPE, MOST_PROTOTYPES)
    )
    return max(1, min(wanted or by_default, n_rows // 2))


def atoms(rows: Floats, n_atoms: int, rng: np.random.Generator) -> Labels:
    """Divide rows, no two of them equal, into small clusters (atoms), and return the rows' labels.

    Up to MOST_ROWS_OF_WARD rows are divided by Ward's method, more by k-means. The client's graph
    is not used: where a client has few rows of a cluster, its graph connects them to other
    clusters, and so would prototypes made from the graph. If there are no more rows than atoms,
    each row is an atom. Labels are numbered without a gap.
    """
    if n_atoms == 1:
        return np.zeros(len(rows), dtype=np.intp)
    if n_atoms >= len(rows):
        return np.arange(len(rows))
    # In the units of the rows, squares could overflow.
    points = rows - rows.mean(axis=0)
    points /= np.abs(points).max() or 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer different rows than atoms, after rounding
        if len(rows) <= MOST_ROWS_OF_WARD:
            labels = AgglomerativeClustering(n_atoms).fit_predict(points)
        else:
            labels = KMeans(
                n_atoms, n_init=N_RESTARTS, random_state=int(rng.integers(2**31))
            ).fit_predict(points)
    return np.unique(labels, return_inverse=True)[1].astype(np.intp)


SPPFGC.client_type = SPPFGCClient
