"""Fed-SC: every client clusters its own rows by their subspaces, and the server clusters points drawn from these."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from flower_fedclust.engine import (
    Entry,
    Gather,
    Outcome,
    Protocol,
    ProtocolClient,
    ProtocolStrategy,
    Sent,
    answers,
    parameter,
)
from flower_fedclust.engine.memory import MissedRoundError
from flower_fedclust.models import SubspaceModel
from flower_fedclust.numerics.checks import DataError, warn_of_empty_clusters
from flower_fedclust.numerics.spectral import unit_rows
from flower_fedclust.numerics.subspaces import (
    angle_graph,
    draw_from_sphere,
    expression_graph,
    n_clusters_by_eigengap,
    self_expression,
    subspace_basis,
    subspace_embedding,
)
from flower_fedclust.strategies.common.spectral import cluster_embedding

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: The name under which a client keeps the clusters that it found by itself.
OWN_CLUSTERS = "own clusters"

#: The fewest neighbors of a point in the server's graph of angles.
FEWEST_NEIGHBORS = 3

#: Of the points of a cluster, one in so many is a neighbor, where that is more.
POINTS_PER_NEIGHBOR = 20


class FedSubspaceClustering(ProtocolStrategy):
    """Fed-SC: one-shot federated subspace clustering. The clusters are subspaces through the origin; no privacy.

    1. Each client scales its rows to norm 1, expresses each by few of the others (sparse subspace clustering, SSC), and
       clusters the graph of these expressions.
    2. For each of its clusters it draws a point from the unit sphere of the subspace that the rows of the cluster span,
       and sends the points.
    3. The server clusters the points in the same way, or by their angles (thresholding-based, TSC).
    4. Each client learns which of its clusters went where, and its rows follow.

    For data whose classes are subspaces of few dimensions, and for many clients: the server finds a subspace of d
    dimensions from more than d points of it, of which each client sends one. It is called "fed-ssc" here, as "Fed-SC"
    and FedSC (:class:`FedSC`) are two methods of two papers.

    What had to be decided. Bases are of rows at norm 1, and keep a part of their energy; the authors' program cuts them
    at the largest gap between singular values. The weights of the graph are ``|C| + |C|'``; their program scales the
    rows of C first. Where a graph falls apart into more components than there are to be clusters, these are clustered
    by the squared cosines between their rows. With more than one point for each local cluster, which their program
    leaves for later, the points of one do not express each other, and the server clusters the local clusters, with the
    sums of the weights between their points. A row of zeros, which lies in every subspace, goes to the largest of its
    client's clusters. The labels of the rows are sent to the server, since they are part of a run's result; the
    paper's clients keep them.

    The model places new rows in the nearest of the subspaces that the server knows: those that the points of each
    cluster span, as far as they keep the same part of the energy. They are as good as the points are many, and a row
    of a client need not be placed where its client's cluster went.

    A point protects nobody. It lies in the subspace of a local cluster; that of one row is the row itself, scaled and
    up to its sign, and as many points as there are dimensions give the subspace away.

    Parameters
    ----------
    n_local_clusters : int, optional
        In each client at most; n_clusters by default.
    eigengap : bool, default=False
        Whether a client takes as many clusters as the eigenvalues of its graph show, as the paper has it. Where classes
        are no clean subspaces they often show one, from which nothing can be recovered. By default it takes
        n_local_clusters, or as many as it has rows; the server can merge what this splits.
    alpha : float, default=10
        Above 1. The penalty on the expression of a row is its largest absolute cosine with another, over alpha. The
        authors' program has 500, which suits subspaces without noise; a small one finds them through noise as well.
    energy : float in (0, 1], default=0.95
        The part of the squared norms of a cluster's rows, or points, that its subspace keeps.
    n_dimensions : int, optional
        Of every subspace, whatever its energy.
    n_samples : int, default=1
        Points for each local cluster.
    merge : "ssc" or "tsc", default="ssc"
        How the server clusters the points: by sparse expressions of each other, or by angles.
    n_neighbors : int, optional
        q, of "tsc"; by default 3, or a twentieth of the points that a cluster has on average where that is more.

    References
    ----------
    Xie, Wu, Liao, Chen, Liu, Shen, Tang and Sun, "Fed-SC: one-shot federated subspace clustering over high-dimensional
    data", ICDE 2023; the authors' program is github.com/SongjieXie/Fed-SC. Elhamifar and Vidal, "Sparse subspace
    clustering: algorithm, theory, and applications", IEEE TPAMI 2013. Heckel and Bölcskei, "Robust subspace clustering
    via thresholding", IEEE Transactions on Information Theory 2015.
    """

    entries = (
        Entry(
            "fed-ssc",
            "every client clusters its rows by the subspaces they lie in, the server clusters points drawn from these",
            "Xie et al. 2023 (Fed-SC)",
        ),
    )

    n_local_clusters: int | None = parameter(None, at_least=1)
    eigengap: bool = parameter(False)
    alpha: float = parameter(10.0, above=1)
    energy: float = parameter(0.95, above=0, at_most=1)
    n_dimensions: int | None = parameter(None, at_least=1)
    n_samples: int = parameter(1, at_least=1)
    merge: Literal["ssc", "tsc"] = parameter("ssc")
    n_neighbors: int | None = parameter(None, at_least=1)

    @property
    def n_protocol_rounds(self) -> int:
        """The points of the clients' clusters, and where these went."""
        return 2

    # The server half.

    def protocol(self) -> Protocol:
        """Gather points of the clients' subspaces, cluster them, and tell each client where its clusters went."""
        # Steps 1 and 2.
        replies = yield Gather(
            FedSubspaceClusteringClient.subspace_points.asked(
                n_clusters=self.n_local_clusters or self.n_clusters,
                eigengap=self.eigengap,
                alpha=self.alpha,
                energy=self.energy,
                n_dimensions=self.n_dimensions or 0,
                n_samples=self.n_samples,
                random_state=int(self.rng.integers(2**31)),
            )
        )
        # Step 3.
        sizes = [len(reply.arrays[0]) // self.n_samples for reply in replies]
        points = unit_rows(np.concatenate([reply.arrays[0] for reply in replies]))
        if sum(sizes) < self.n_clusters:
            raise DataError(
                f"the clients found {sum(sizes)} clusters together and n_clusters is {self.n_clusters}; ask for fewer, "
                "for more n_local_clusters, or for eigengap=False."
            )
        local_cluster = np.repeat(np.arange(sum(sizes)), self.n_samples)
        embedding = subspace_embedding(self._graph(points, local_cluster), points, self.n_clusters, local_cluster)
        _, merged = cluster_embedding(embedding, self.n_clusters, self.rng)
        warn_of_empty_clusters(self.name, np.bincount(merged, minlength=self.n_clusters))
        model = self._model(points, merged[local_cluster])
        # Step 4.
        parts = np.split(merged, np.cumsum(sizes)[:-1])
        of_client = zip((reply.client for reply in replies), parts, strict=True)
        replies = yield Gather(
            {client: FedSubspaceClusteringClient.labels_of_rows.asked(own) for client, own in of_client}
        )
        return Outcome(model, {reply.client: reply.arrays[0].astype(np.intp) for reply in replies})

    def _graph(self, points: Floats, local_cluster: Labels) -> csr_array:
        """Return the graph of the local clusters."""
        if self.merge == "ssc":
            return expression_graph(self_expression(points, self.alpha, groups=local_cluster), local_cluster)
        usual = max(FEWEST_NEIGHBORS, math.ceil(len(points) / self.n_clusters / POINTS_PER_NEIGHBOR))
        return angle_graph(points, self.n_neighbors or usual, local_cluster)

    def _model(self, points: Floats, labels: Labels) -> SubspaceModel:
        """Return the subspaces that the points of each cluster span; one without a point has no direction."""
        bases = [np.empty((0, points.shape[1]))] * self.n_clusters
        for cluster in np.unique(labels):
            bases[cluster] = subspace_basis(
                points[labels == cluster], energy=self.energy, n_dimensions=self.n_dimensions
            )
        return SubspaceModel(bases)


# The client half.


class FedSubspaceClusteringClient(ProtocolClient):
    """The answers of a client that clusters its own rows by their subspaces."""

    @answers(Sent("random points of the subspaces of the client's own clusters", "centers", has_columns=True))
    def subspace_points(
        self,
        *,
        n_clusters: int,
        eigengap: bool,
        alpha: float,
        energy: float,
        n_dimensions: int,
        n_samples: int,
        random_state: int,
    ) -> Floats:
        """Return points from the subspaces of the client's own clusters, and keep which row is in which."""
        has_direction = self.rows.any(axis=1)
        if not has_direction.any():
            raise DataError(f"client {self.name}: all rows are zero and have no direction; leave the client out.")
        directions = unit_rows(self.rows[has_direction])
        # Of the client alone, and no protection: the server knows the seed.
        rng = self.generator(random_state)
        found = cluster_directions(directions, n_clusters, rng, alpha=alpha, eigengap=eigengap)
        labels = np.full(len(self.rows), np.bincount(found).argmax(), dtype=np.intp)
        labels[has_direction] = found
        self.remember(OWN_CLUSTERS, [labels])
        bases = [
            subspace_basis(directions[found == cluster], energy=energy, n_dimensions=n_dimensions or None)
            for cluster in range(int(found.max()) + 1)
        ]
        return np.concatenate([draw_from_sphere(basis, n_samples, rng) for basis in bases])

    @answers(Sent("cluster of every row", "codes", per="row", counts="labels"))
    def labels_of_rows(self, merged: Labels) -> Labels:
        """Return the cluster that each row's own cluster went to; ``recall("labels")`` gives them back."""
        own = self.recall(OWN_CLUSTERS)
        if own is None:
            raise MissedRoundError(
                f"client {self.name} has not kept its own clusters; it missed the round that makes them."
            )
        labels: Labels = merged[own[0]]
        self.remember("labels", [labels])
        return labels


def cluster_directions(
    directions: Floats, n_clusters: int, rng: np.random.Generator, *, alpha: float, eigengap: bool = True
) -> Labels:
    """Cluster rows by sparse subspace clustering.

    Parameters
    ----------
    directions : ndarray of shape (n_rows, n_columns)
        Of norm 1.
    n_clusters : int
        At most; with fewer rows, as many as there are.
    rng : numpy.random.Generator
        For the restarts of k-means.
    alpha : float
        As in :func:`self_expression`.
    eigengap : bool, default=True
        Whether the number of clusters is that which the eigenvalues of the graph show.

    Returns
    -------
    ndarray of shape (n_rows,)
        From 0, and no number is left out.
    """
    n_clusters = min(n_clusters, len(directions))
    if n_clusters == 1:
        return np.zeros(len(directions), dtype=np.intp)
    graph = expression_graph(self_expression(directions, alpha))
    if eigengap:
        n_clusters = n_clusters_by_eigengap(graph, n_clusters)
    _, found = cluster_embedding(subspace_embedding(graph, directions, n_clusters), n_clusters, rng)
    # k-means may leave a cluster empty.
    return np.unique(found, return_inverse=True)[1].astype(np.intp)


FedSubspaceClustering.client_type = FedSubspaceClusteringClient
