"""SPP-FGC as its paper prints it (He, Wang, Tang, Wang, Wang and Nie, Algorithm 1), to compare its parts with ours.

The clients' graphs E^p, and the server's graph S, have as many components as there are clusters (equations 5, 11 and
32). Prototypes come from a Gaussian mixture and carry the paper's noise. In the global graph E* the similarity of
prototypes is exp(-KL). The clusters are a k-means of the rows of S.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Generator
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.mixture import GaussianMixture

from flower_fedclust.engine import Entry, Gather, Reply, answers, parameter
from flower_fedclust.engine.rounds import Array, Round
from flower_fedclust.exact.sums import triangle_to_symmetric
from flower_fedclust.numerics.checks import (
    LARGEST_NORM,
    SMALLEST_NORM,
    DataError,
    check_max_l1_norm,
)
from flower_fedclust.numerics.copies import copies_of
from flower_fedclust.numerics.global_graph import GlobalGraph
from flower_fedclust.numerics.prototypes import (
    Prototypes,
    kullback_leibler,
    nearest_covariances,
    prototypes_of,
)
from flower_fedclust.numerics.spectral import components_of
from flower_fedclust.numerics.structural_graph import client_graph
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.noise import NoiseSource, noise_in_floats
from flower_fedclust.privacy.releases import NoisePlace
from flower_fedclust.strategies.common.spectral import cluster_embedding
from flower_fedclust.strategies.spp_fgc.spp_fgc import (
    GRAPH,
    PROTOTYPES,
    SPPFGC,
    SPPFGCClient,
    Uploads,
    atoms,
    n_atoms_of,
    read_uploads,
    sent_graph,
)
from flower_fedclust.strategies.spp_fgc.spp_fgc_sums import PAPER
from flower_fedclust_papers.rank_constraint import (
    constrained_client_graph,
    rank_constrained_solution,
)

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: The largest number of rows for which the server solves for S, which has an entry for every two rows.
MOST_ROWS_OF_S = 8000


class SPPFGCPrinted(SPPFGC):
    """SPP-FGC as its paper prints it, for comparison: it does not work as well.

    On Iris with two clients its accuracy is 0.7. Each of the first four parameters can replace one step of the paper by
    the step that :class:`~flower_fedclust.SPPFGC` has.

    Parameters
    ----------
    solver : "clr" or "spectral", default="clr"
        "clr" finds E^p and S under the constraint that they have n_clusters components (equations 5, 11 and 32), by
        alternating steps. S has an entry for every two rows of all clients: use it for comparisons at small size.
        "spectral" takes the eigenvectors of E*.
    prototypes : "gmm" or "atoms", default="gmm"
        "gmm" is a Gaussian mixture of n_clusters components (Algorithm 1, line 6).
    affinity : "kl" or "distances", default="kl"
        "kl" is equation (10) as printed.
    assignment : "rows-of-s" or "components", default="rows-of-s"
        With "clr": a k-means of the rows of S (Algorithm 1, line 15); or the components of S if there are n_clusters,
        and otherwise a k-means of its eigenvectors.
    epsilon : float, optional
        The paper's epsilon, which promises nothing. It sets the scale of the Laplace noise on the means and on the
        covariances (equation 8), with the sensitivities of appendix C.II. These wrongly assume that clusters do not
        change with a row. Needs ``max_l1_norm``.
    max_l1_norm : float, optional
        Rows are clipped to this L1 norm R (1 in the paper). It is public, and must not be computed from the data.

    References
    ----------
    He, Wang, Tang, Wang, Wang and Nie, "Towards federated clustering: a client-wise private graph aggregation
    framework". Nie, Wang, Jordan and Huang, "The constrained Laplacian rank algorithm for graph-based clustering", AAAI
    2016.
    """

    entries = (
        Entry(
            "spp-fgc-printed",
            "SPP-FGC as its paper prints it, for comparison: it does not work as well",
            f"{PAPER}, Algorithm 1",
        ),
    )

    solver: Literal["clr", "spectral"] = parameter("clr")
    prototypes: Literal["gmm", "atoms"] = parameter("gmm")
    affinity: Literal["kl", "distances"] = parameter("kl")
    assignment: Literal["rows-of-s", "components"] = parameter("rows-of-s")
    epsilon: float | None = parameter(None, above=0)
    max_l1_norm: float | None = parameter(None, at_least=SMALLEST_NORM, at_most=LARGEST_NORM)
    #: Clients add the noise, which would protect against the server.
    noise: NoisePlace = dataclasses.field(default="local", init=False)

    def check_complete(self) -> None:
        """Raise a ValueError if there is noise and no norm."""
        super().check_complete()
        check_max_l1_norm(self.max_l1_norm, self.epsilon)

    def _client_side(self) -> Generator[Round, list[Reply], Uploads]:
        """Gather the graph and the prototypes that each client computes in lines 5 to 8."""
        replies = yield Gather(
            SPPFGCPrintedClient.printed_graph.asked(
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

    def _global_graph(self, uploads: Uploads, prototypes: Prototypes) -> tuple[GlobalGraph, Floats]:
        """Return E* by exp(-KL), without the corrections of edges and links."""
        if self.affinity == "distances":
            return super()._global_graph(uploads, prototypes)
        divergences = kullback_leibler(prototypes)
        between = printed_affinity(divergences, uploads.client)
        graph = GlobalGraph(
            uploads.diagonal, uploads.prototype, 0.5 * (between + between.T), uploads.sizes
        )
        return graph, divergences

    def _server_side(self, uploads: Uploads, prototypes: Prototypes) -> Labels:
        """Return the cluster of every node, by S (lines 14 and 15)."""
        if self.solver == "spectral":
            return super()._server_side(uploads, prototypes)
        C = self.n_clusters
        E, _ = self._global_graph(uploads, prototypes)
        if uploads.n_nodes > MOST_ROWS_OF_S:
            raise DataError(
                f"the clients have {uploads.n_nodes} different rows together, and S would have an entry for every two "
                f"of them; solver='clr' is for {MOST_ROWS_OF_S} rows at most. Take solver='spectral'."
            )
        S, F = rank_constrained_solution(
            lambda block: rows_of_graph(E, uploads.sizes, block), uploads.n_nodes, C
        )
        if self.assignment == "rows-of-s":
            return cluster_embedding(S, C, self.rng, uploads.sizes)[1]
        n_components, component = components_of(S)
        return (
            component if n_components == C else cluster_embedding(F, C, self.rng, uploads.sizes)[1]
        )

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


def printed_affinity(divergences: Floats, client: Labels) -> Floats:
    """Return the affinity of equation (10), ``exp(-KL)``, between prototypes of different clients; not symmetric."""
    return np.where(client[:, None] != client, np.exp(-divergences), 0.0)


def rows_of_graph(E: GlobalGraph, sizes: Floats, block: slice) -> Floats:
    """Return some rows of E*, of which each is divided by the number of equal rows that it stands for."""
    between = np.take(E.affinity[E.prototype[block]], E.prototype, axis=1)
    between *= sizes
    between += E.blocks[block].toarray() / sizes[block, None]
    return between


# The client half.


class SPPFGCPrintedClient(SPPFGCClient):
    """The client half of :class:`SPPFGCPrinted`."""

    @answers(*GRAPH, *PROTOTYPES)
    def printed_graph(
        self,
        *,
        n_clusters: int,
        n_neighbors: int,
        n_prototypes: int,
        rank_constraint: bool,
        mixture: bool,
        diagonal: bool,
        random_state: int,
        epsilon: float,
        max_l1_norm: float,
    ) -> tuple[Array, ...]:
        """Return E^p and P_k; with an epsilon, P_k with the paper's noise."""
        v, rng = clip_rows(self.rows, max_l1_norm, norm=1), self.generator(random_state)
        copies = copies_of(v)
        # Line 5.
        graph_of = constrained_client_graph if rank_constraint else client_graph
        E = graph_of(v[copies.first], n_clusters, n_neighbors)
        # Line 6.
        if mixture:
            labels = mixture_labels(v, n_clusters, rng)
        else:
            n_atoms = n_atoms_of(len(v), n_clusters, n_prototypes)
            labels = atoms(v[copies.first], n_atoms, rng)[copies.index]
        P = prototypes_of(v, labels, diagonal=diagonal)
        # Line 7.
        if math.isfinite(epsilon):
            P = noisy_as_in_the_paper(P, epsilon, max_l1_norm, self.noise_source)
        # Line 8.
        return (*sent_graph(labels, copies, E, n_neighbors), P.means, P.covariances, P.counts)


def mixture_labels(rows: Floats, n_clusters: int, rng: np.random.Generator) -> Labels:
    """Return the clusters of a Gaussian mixture (Algorithm 1, line 6), numbered without a gap."""
    n_components = min(n_clusters, len(np.unique(rows, axis=0)))
    # Rows are scaled first, because scikit-learn adds a constant to variances that does not depend on their unit.
    offsets = rows - rows.mean(axis=0)
    offsets /= np.abs(offsets).max() or 1.0
    mixture = GaussianMixture(n_components, random_state=int(rng.integers(2**31)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning that the mixture has not converged
        labels = mixture.fit_predict(offsets) if len(rows) > 1 else np.zeros(1, dtype=np.intp)
    return np.unique(labels, return_inverse=True)[1].astype(np.intp)


def noisy_as_in_the_paper(
    prototypes: Prototypes, epsilon: float, max_l1_norm: float, source: NoiseSource
) -> Prototypes:
    """Return prototypes with the Laplace noise of equation (8), scaled as in appendix C.II, which guarantees nothing.

    The sensitivities, ``2 R / N_min`` of means and ``(2 sqrt(2) + 4) R^2 / N_min`` of covariances, assume fixed
    clusters. The second bounds the Frobenius norm of a covariance, but Laplace noise needs its L1 norm. N_min, the size
    of the client's smallest cluster, depends on the rows. The counts have no noise.
    """
    smallest = float(prototypes.counts.min())
    of_means = 2.0 * max_l1_norm / smallest / epsilon
    of_covariances = (2.0 * math.sqrt(2.0) + 4.0) * max_l1_norm**2 / smallest / epsilon
    means = prototypes.means + noise_in_floats("laplace", of_means, prototypes.means.shape, source)
    if prototypes.is_diagonal:
        noisy = prototypes.covariances + noise_in_floats(
            "laplace", of_covariances, means.shape, source
        )
    else:
        n_columns = prototypes.means.shape[1]
        shape = (len(prototypes), n_columns * (n_columns + 1) // 2)
        drawn = noise_in_floats("laplace", of_covariances, shape, source)
        noisy = prototypes.covariances + np.array([triangle_to_symmetric(noise) for noise in drawn])
    return Prototypes(means, nearest_covariances(noisy), prototypes.counts)


SPPFGCPrinted.client_type = SPPFGCPrintedClient
