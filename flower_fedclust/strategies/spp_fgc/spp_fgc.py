"""SPP-FGC (He, Wang, Tang, Wang, Wang and Nie, Algorithm 1): clusters from the clients' graphs and prototypes.

v are a client's rows, E^p is its structural graph, P_k are its prototypes, E* is the global graph, S the nearest graph
with as many components as there are clusters, and A the assignments. Comments give the lines of the algorithm.

docs/shape.md shows how a ``yield`` here becomes a round of Flower.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from abc import abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import block_diag, csr_array
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import KMeans
from sklearn.mixture import GaussianMixture

from flower_fedclust.engine import Entry, Gather, Outcome, Protocol, ProtocolStrategy, Sent, answers, parameter
from flower_fedclust.engine.replies import unlike_most
from flower_fedclust.engine.rounds import Array, Reply, Round
from flower_fedclust.exact.sums import triangle_to_symmetric
from flower_fedclust.models import PrototypeModel
from flower_fedclust.numerics.checks import DataError, check_choice, check_max_l1_norm, warn_of_empty_clusters
from flower_fedclust.numerics.copies import Copies, copies_of
from flower_fedclust.numerics.global_graph import (
    GlobalGraph,
    full_affinity,
    parts_of,
    printed_affinity,
    prototype_affinity,
    without_far_edges,
    without_far_links,
)
from flower_fedclust.numerics.initialisation import N_RESTARTS
from flower_fedclust.numerics.prototypes import (
    FULL_COLUMNS,
    Prototypes,
    jeffreys,
    kullback_leibler,
    nearest_covariances,
    prototypes_of,
    shrunk,
)
from flower_fedclust.numerics.spectral import components_of, symmetric_graph, top_graph_eigenvectors, unit_rows
from flower_fedclust.numerics.structural_graph import StructuralGraph, client_graph, rank_constrained_solution
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.noise import NoiseSource, noise_in_floats
from flower_fedclust.privacy.releases import NoisePlace
from flower_fedclust.strategies.common.spectral import LabelsClient, cluster_embedding, send_labels
from flower_fedclust.strategies.spp_fgc.spp_fgc_sums import PAPER

Floats = NDArray[np.float64]

Labels = NDArray[np.intp]


#: The largest number of rows for which the server solves for S, which has an entry for every two rows.
MOST_ROWS_OF_S = 8000

#: By default a client has this many prototypes for each cluster, so that a cluster can have any form.
PROTOTYPES_PER_CLUSTER = 5

#: A client with many rows has one prototype for this many of them if that is more, ...
ROWS_PER_PROTOTYPE = 25

#: ... up to this number.
MOST_PROTOTYPES = 100

#: The arrays of :func:`sent_graph`, which show which rows of a client are similar, and about where each lies.
GRAPH = (
    Sent("prototype of every row", "codes", per="row"),
    Sent("nearest rows of every row", "codes", per="row"),
    Sent("weights of the nearest rows of every row", "codes", per="row"),
)


class StructuralGraphStrategy(ProtocolStrategy):
    """Base of the strategies that run Algorithm 1, which differ in the prototypes that the clients upload.

    Parameters
    ----------
    n_clusters : int
        C.
    n_neighbors : int, default=10
        The largest k; a client with few rows takes half of its rows over n_clusters, but at least 3.
    covariance : "full" or "diagonal", optional
        The form of the prototypes' covariances; by default full for up to 64 columns.
    solver : "spectral" or "clr", default="spectral"
        "clr" finds E^p and S under the constraint that they have n_clusters components (equations 5, 11 and 32), by
        alternating steps. S has an entry for every two rows of all clients: use it for comparisons at small size.
    affinity : "jeffreys" or "kl", default="jeffreys"
        "kl" is equation (10) as printed.
    assignment : "eigenvectors", "components" or "rows-of-s", optional
        "eigenvectors" of E*, the default for solver "spectral"; the "components" of S if there are n_clusters, and
        otherwise a k-means of its eigenvectors, the default for "clr"; or a k-means of the rows of S (Algorithm 1, line
        15).
    """

    n_neighbors: int = parameter(10, at_least=1)
    covariance: Literal["full", "diagonal"] | None = parameter(None)
    solver: Literal["spectral", "clr"] = parameter("spectral")
    affinity: Literal["jeffreys", "kl"] = parameter("jeffreys")
    assignment: Literal["eigenvectors", "components", "rows-of-s"] | None = parameter(None)

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first invalid parameter."""
        super().check_parameters()
        if self.assignment is not None:
            of_solver = ("eigenvectors",) if self.solver == "spectral" else ("components", "rows-of-s")
            check_choice("assignment", self.assignment, of_solver)

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
        """Return what the clients upload: their E^p and their P_k with noise (lines 3 to 9)."""

    def _server_side(self, uploads: Uploads, prototypes: Prototypes) -> Labels:
        """Return A, the cluster of every node: of every row, but equal rows of a client are one (lines 11 to 15)."""
        C = self.n_clusters
        # Line 12: E^g is the same for all rows of two prototypes, and follows from the divergence of these.
        divergences = (jeffreys if self.affinity == "jeffreys" else kullback_leibler)(prototypes)
        # Line 13.
        E = joined(uploads, prototypes, divergences, C, affinity=self.affinity)
        # Lines 14 and 15 if a cluster need not be a component: the eigenvectors of E* itself.
        if self.solver == "spectral":
            return cluster_embedding(E.embedding(C, full_affinity(divergences)), C, self.rng, uploads.sizes)[1]
        # Line 14.
        if uploads.n_nodes > MOST_ROWS_OF_S:
            raise DataError(
                f"the clients have {uploads.n_nodes} different rows together, and S would have an entry for every two "
                f"of them; solver='clr' is for {MOST_ROWS_OF_S} rows at most. Take solver='spectral'."
            )
        S, F = rank_constrained_solution(E.toarray() / uploads.sizes[:, None], C)
        # Line 15 as printed; or the purpose of S.
        if self.assignment == "rows-of-s":
            return cluster_embedding(S.toarray(), C, self.rng, uploads.sizes)[1]
        n_components, component = components_of(S)
        return component if n_components == C else cluster_embedding(F, C, self.rng, uploads.sizes)[1]

    def _model(self, uploads: Uploads, prototypes: Prototypes, labels: Labels) -> PrototypeModel:
        """Return the model in which each prototype is in the cluster of the majority of its rows."""
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
        """One round for the graphs and one for the labels."""
        return 2

    def privacy_notes(self) -> list[str]:
        """Add what noise on the prototypes does not cover."""
        return [
            *super().privacy_notes(),
            "The graph says of each row which rows of its client are nearest to it, and the prototype of each row says "
            "about where it lies: no noise covers either, so that nothing is promised for the run as a whole.",
        ]

    @property
    def _is_diagonal(self) -> bool:
        return (self.covariance or ("full" if self.n_columns <= FULL_COLUMNS else "diagonal")) == "diagonal"


class SPPFGC(StructuralGraphStrategy):
    """Clusters from graphs: each client sends the neighbor graph of its rows, and Gaussian prototypes of them.

    Each client joins each row to its nearest rows (E^p, equations 3 to 6), divides its rows into prototypes, and sends
    the graph, the prototype of each row, and the prototypes' means, covariances and counts. The server joins rows of
    different clients according to the similarity of their prototypes (E*, equations 9 and 10), clusters this graph, and
    sends each client the clusters of its rows. New rows go to the cluster of the likeliest prototype.

    The paper's own recipe (``solver="clr", prototypes="gmm", affinity="kl", assignment="rows-of-s"``, also named
    "spp-fgc-printed") does not do what it promises: on Iris with two clients its accuracy is 0.7. If the paper leaves a
    choice or is wrong, the defaults are what works:

    - clients have no rank constraint, and more, smaller prototypes ("atoms") by spectral clustering of E^p;
    - Jeffreys' divergence replaces KL, which is not symmetric, and is scaled by its usual value between clients; only
      the nearest prototypes are joined; and a row gives all rows of other clients together half of the weight that it
      gives rows of its own client;
    - the clusters come from the normalized eigenvectors of E*, not from a k-means of the rows of S.

    In the paper and here, the graph and the prototype of each row leave the client without noise. So the run as a whole
    has no epsilon, whatever the noise on the prototypes. ``spp-fgc-private-prototypes`` of the second
    distribution covers the prototypes, and :class:`SPPFGCSums` does without the graphs.

    Parameters
    ----------
    n_prototypes : int, optional
        Prototypes of each client, at most half the number of its rows; by default 5 for each cluster, or one for 25
        rows if that is more, up to 100.
    prototypes : "atoms" or "gmm", default="atoms"
        "gmm" is the paper's Gaussian mixture of n_clusters components (Algorithm 1, line 6).
    epsilon : float, optional
        The paper's epsilon, which promises nothing: the scale of the Laplace noise of equation (8) on the means and on
        the covariances, with the sensitivities of appendix C.II, which assume that clusters do not change with a row.
        Needs ``calibration="paper"`` and ``max_l1_norm``.
    calibration : "paper", optional
        Required with an epsilon, as an acknowledgement that it is the paper's.
    max_l1_norm : float, optional
        R: rows are clipped to this L1 norm (1 in the paper). It is public, and must not be computed from the data.

    References
    ----------
    He, Wang, Tang, Wang, Wang and Nie, "Towards federated clustering: a client-wise private graph aggregation
    framework". Nie, Wang, Jordan and Huang, "The constrained Laplacian rank algorithm for graph-based clustering", AAAI
    2016.
    """

    entries = (
        Entry(
            "spp-fgc",
            "clusters of any form from the neighbor graphs of the clients' rows, which are sent, and prototypes",
            f"{PAPER}, Algorithm 1",
            finds="any form",
        ),
        Entry(
            "spp-fgc-printed",
            "SPP-FGC as its paper prints it, for comparison: it does not work as well",
            f"{PAPER}, Algorithm 1",
            {"solver": "clr", "prototypes": "gmm", "affinity": "kl", "assignment": "rows-of-s", "calibration": "paper"},
        ),
    )

    n_prototypes: int | None = parameter(None, at_least=1)
    prototypes: Literal["atoms", "gmm"] = parameter("atoms")
    epsilon: float | None = parameter(None, above=0)
    calibration: Literal["paper"] | None = parameter(None)
    max_l1_norm: float | None = parameter(None, above=0)
    #: The noise would protect against the server.
    noise: NoisePlace = dataclasses.field(default="local", init=False)

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first invalid parameter."""
        super().check_parameters()
        if self.epsilon is not None and self.calibration is None:
            raise ValueError(
                "calibration is missing; the noise that SPPFGC has for an epsilon proves nothing. Take SPPFGCSums, or "
                "say calibration='paper'."
            )

    def check_complete(self) -> None:
        """Raise a ValueError if there is noise and no norm."""
        super().check_complete()
        check_max_l1_norm(self.max_l1_norm, self.epsilon)

    def _client_side(self) -> Generator[Round, list[Reply], Uploads]:
        """Gather what each client computes in lines 5 to 8."""
        replies = yield Gather(
            SPPFGCClient.structural_graph.asked(
                n_clusters=self.n_clusters,
                n_neighbors=self.n_neighbors,
                n_prototypes=self.n_prototypes or 0,
                rank_constraint=self.solver == "clr",
                mixture=self.prototypes == "gmm",
                diagonal=self._is_diagonal,
                random_state=int(self.rng.integers(2**31)),
                epsilon=math.inf if self.epsilon is None else self.epsilon,
                max_l1_norm=math.inf if self.max_l1_norm is None else self.max_l1_norm,
            )
        )
        return read_uploads(replies, self.n_clusters)

    def privacy_notes(self) -> list[str]:
        """Add that the paper's noise guarantees nothing."""
        notes = super().privacy_notes()
        if self.epsilon is not None:
            notes.append(
                "The prototypes carry Laplace noise as the paper scales it, which proves nothing: one row can move "
                "others to another cluster, the size of the smallest cluster is taken from the rows, and the "
                "covariance is bounded in the Frobenius norm where Laplace noise needs the L1 norm. They are listed as "
                "unprotected."
            )
        return notes


def joined(
    uploads: Uploads,
    prototypes: Prototypes,
    divergences: Floats,
    n_clusters: int,
    *,
    affinity: str = "jeffreys",
) -> GlobalGraph:
    """Return E*, symmetric (equations 9 and 10; Algorithm 1, lines 12 and 13).

    With two clients, links are added until there are only n_clusters parts.
    """
    blocks, owner = uploads.diagonal, uploads.client
    if affinity == "jeffreys":
        blocks = without_far_edges(blocks, uploads.prototype, divergences)
        between = prototype_affinity(
            divergences,
            prototypes.counts,
            owner,
            n_nearest=len(uploads.blocks) - 1,
            part=parts_of(blocks, uploads.prototype, len(prototypes)),
            n_parts=n_clusters,
        )
        between = without_far_links(
            between, uploads.diagonal, uploads.prototype, divergences, owner, n_clusters, sizes=uploads.sizes
        )
    else:
        between = printed_affinity(divergences, owner)
        between = 0.5 * (between + between.T)
    return GlobalGraph(blocks, uploads.prototype, between, uploads.sizes)


# What the clients upload (Algorithm 1, line 8).


@dataclass(frozen=True)
class Uploads:
    """What the clients sent, one client after the other."""

    replies: Sequence[Reply]
    #: The clients' graphs E^p, symmetric. Equal rows of a client are one node, with the weights of all.
    blocks: list[csr_array]
    prototype: Labels  #: The prototype of each node, numbered over all clients, of shape (n_nodes,).
    node: Labels  #: The node of each row, numbered over all clients, of shape (n_rows,).
    prototypes: Prototypes  #: Of all clients.
    client: Labels  #: The client of each prototype, of shape (n_prototypes,).
    #: The standard deviation of the noise in an entry of each covariance, of shape (n_prototypes,), if it is known.
    noise_deviation: Floats | None = None

    @property
    def n_rows(self) -> int:
        """The number of rows of all clients."""
        return len(self.node)

    @property
    def n_nodes(self) -> int:
        """The number of rows that differ from the others of their client."""
        return len(self.prototype)

    @property
    def sizes(self) -> Floats:
        """How many rows each node stands for."""
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


def read_uploads(replies: Sequence[Reply], n_clusters: int, noise_deviation: Floats | None = None) -> Uploads:
    """Check and return what the clients sent: the arrays of :func:`sent_graph`, then means, covariances and sizes."""
    blocks, labels, nodes, client, n_prototypes, n_nodes = [], [], [], [], 0, 0
    _, others = unlike_most({reply.client: reply.arrays[4].ndim for reply in replies})
    for index, reply in enumerate(replies):
        check_fits(reply.client, reply.client not in others and _fits_together(reply.arrays[:6]))
        own, neighbors, weights, means = reply.arrays[:4]
        shape = (len(own), -1)
        neighbors, weights = neighbors.reshape(shape).astype(np.intp), weights.reshape(shape).astype(np.float64)
        first = first_equal(neighbors, weights)
        kept, own_node = np.unique(first, return_inverse=True)
        sizes = np.bincount(own_node).astype(np.float64)
        blocks.append(symmetric_graph(own_node[neighbors[kept]], weights[kept] * sizes[:, None]))
        labels.append(own[kept].astype(np.intp) + n_prototypes)
        nodes.append(own_node + n_nodes)
        client.append(np.full(len(means), index))
        n_prototypes += len(means)
        n_nodes += len(kept)
    prototype = np.concatenate(labels)
    node = np.concatenate(nodes)
    if len(node) < n_clusters:
        raise DataError(f"the clients have {len(node)} rows together and n_clusters is {n_clusters}; ask for fewer.")
    means, covariances, counts = (
        np.concatenate([reply.arrays[position] for reply in replies]).astype(np.float64) for position in (3, 4, 5)
    )
    prototypes = Prototypes(means, covariances, counts)
    return Uploads(replies, blocks, prototype, node, prototypes, np.concatenate(client), noise_deviation)


def first_equal(neighbors: Labels, weights: Floats) -> Labels:
    """Return the first of the rows that equal each row, as :func:`sent_graph` sends it; mostly the row itself."""
    itself = np.arange(len(neighbors))
    return np.where((weights == 0).all(axis=1), neighbors[:, 0], itself)


def _fits_together(arrays: Sequence[Array]) -> bool:
    own, neighbors, weights, means, covariances, counts = arrays
    if means.ndim != 2 or not are_indices(own, len(means)):
        return False
    n_prototypes, n_columns = means.shape
    if not (are_indices(neighbors, len(own)) and neighbors.shape == weights.shape and neighbors.size % len(own) == 0):
        return False
    shape = (len(own), -1)
    first = first_equal(neighbors.reshape(shape).astype(np.intp), weights.reshape(shape).astype(np.float64))
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
    """The client half of :class:`SPPFGC`: graph and prototypes, and the labels that come back."""

    @answers(
        *GRAPH,
        Sent("means of the client's prototypes", "centers", has_columns=True),
        Sent("covariances of the client's prototypes", "centers", has_columns=True),
        Sent("sizes of the client's prototypes", "centers", counts="every row"),
    )
    def structural_graph(
        self,
        *,
        n_clusters: int,
        n_neighbors: int,
        n_prototypes: int,
        rank_constraint: bool,
        mixture: bool,
        diagonal: bool,
        random_state: int,
        epsilon: float = math.inf,
        max_l1_norm: float = math.inf,
    ) -> tuple[Array, ...]:
        """Return E^p and P_k; with an epsilon, P_k with the paper's noise."""
        v, rng = clip_rows(self.rows, max_l1_norm, norm=1), self.generator(random_state)
        copies = copies_of(v)
        # Line 5.
        E = client_graph(v[copies.first], n_clusters, n_neighbors, rank_constraint=rank_constraint)
        # Line 6.
        if mixture:
            labels = mixture_labels(v, n_clusters, rng)
        else:
            n_atoms = n_atoms_of(len(v), n_clusters, n_prototypes)
            labels = atoms(v[copies.first], E, n_atoms, rng)[copies.index]
        P = prototypes_of(v, labels, diagonal=diagonal)
        # Line 7.
        if math.isfinite(epsilon):
            P = noisy_as_in_the_paper(P, epsilon, max_l1_norm, self.noise_source)
        # Line 8.
        return (*sent_graph(labels, copies, E, n_neighbors), P.means, P.covariances, P.counts)


def sent_graph(labels: Labels, copies: Copies, graph: StructuralGraph, n_neighbors: int) -> tuple[Array, Array, Array]:
    """Return the arrays in which a client sends the graph of its different rows, and the prototype of each row.

    All clients send at least n_neighbors for each row, with a weight of 0 for missing ones; of several equal rows, only
    the first has weights, and the neighbor of the others is that row. The arrays are flat, because a client under the
    rank constraint may need more.
    """
    own = graph.neighbors.shape[1]
    width = max(n_neighbors, own)
    neighbors = np.repeat(copies.first[copies.index].astype(np.int32)[:, None], width, axis=1)
    weights = np.zeros(neighbors.shape, dtype=np.float32)
    neighbors[copies.first, :own], weights[copies.first, :own] = copies.first[graph.neighbors], graph.weights
    return labels.astype(np.int32), neighbors.ravel(), weights.ravel()


def n_atoms_of(n_rows: int, n_clusters: int, wanted: int) -> int:
    """Return the number of a client's atoms; wanted is 0 for the default, which grows with clusters and rows."""
    by_default = max(PROTOTYPES_PER_CLUSTER * n_clusters, min(n_rows // ROWS_PER_PROTOTYPE, MOST_PROTOTYPES))
    return max(1, min(wanted or by_default, n_rows // 2))


def atoms(rows: Floats, graph: StructuralGraph, n_atoms: int, rng: np.random.Generator) -> Labels:
    """Return small clusters of different rows by normalized spectral clustering of their graph, numbered without a gap.

    If the graph has more components than there are atoms, they come from a k-means of the rows. If there are no more
    rows than atoms, each is one.
    """
    if n_atoms == 1:
        return np.zeros(len(rows), dtype=np.intp)
    if n_atoms >= len(rows):
        return np.arange(len(rows))
    n_components, component = connected_components(graph.symmetric, directed=False)
    points = rows
    if n_components <= n_atoms:
        points = unit_rows(top_graph_eigenvectors(graph.symmetric, n_atoms, component.astype(np.intp)))
    estimator = KMeans(n_atoms, n_init=N_RESTARTS, random_state=int(rng.integers(2**31)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer different rows than atoms
        labels = estimator.fit_predict(points)
    return np.unique(labels, return_inverse=True)[1].astype(np.intp)


def mixture_labels(rows: Floats, n_clusters: int, rng: np.random.Generator) -> Labels:
    """Return the clusters of a Gaussian mixture (Algorithm 1, line 6), numbered without a gap."""
    n_components = min(n_clusters, len(np.unique(rows, axis=0)))
    # scikit-learn adds a constant to the variances, whatever the unit of the rows.
    offsets = rows - rows.mean(axis=0)
    offsets /= np.abs(offsets).max() or 1.0
    mixture = GaussianMixture(n_components, random_state=int(rng.integers(2**31)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has not converged
        labels = mixture.fit_predict(offsets) if len(rows) > 1 else np.zeros(1, dtype=np.intp)
    return np.unique(labels, return_inverse=True)[1].astype(np.intp)


def noisy_as_in_the_paper(found: Prototypes, epsilon: float, max_l1_norm: float, source: NoiseSource) -> Prototypes:
    """Return prototypes with the Laplace noise of equation (8), scaled as in appendix C.II, which guarantees nothing.

    The sensitivities ``2 R / N_min`` and ``(2 sqrt(2) + 4) R^2 / N_min`` assume fixed clusters, and the latter bounds
    the Frobenius norm of the covariance, where Laplace noise needs the L1 norm. N_min, the size of the client's
    smallest cluster, depends on the rows. The counts have no noise.
    """
    smallest = float(found.counts.min())
    of_means = 2.0 * max_l1_norm / smallest / epsilon
    of_covariances = (2.0 * math.sqrt(2.0) + 4.0) * max_l1_norm**2 / smallest / epsilon
    means = found.means + noise_in_floats("laplace", of_means, found.means.shape, source)
    if found.is_diagonal:
        noisy = found.covariances + noise_in_floats("laplace", of_covariances, means.shape, source)
    else:
        n_columns = found.means.shape[1]
        shape = (len(found), n_columns * (n_columns + 1) // 2)
        drawn = noise_in_floats("laplace", of_covariances, shape, source)
        noisy = found.covariances + np.array([triangle_to_symmetric(noise) for noise in drawn])
    return Prototypes(means, nearest_covariances(noisy), found.counts)


SPPFGC.client_type = SPPFGCClient
