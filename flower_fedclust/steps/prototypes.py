"""What a client says of its rows in SPP-FGC: their structural graph, and prototypes of clusters that it finds."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import block_diag, csr_array
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import KMeans
from sklearn.mixture import GaussianMixture

from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.initialisation import N_RESTARTS
from flower_fedclust.numerics.kmeans import nearest_center
from flower_fedclust.numerics.prototypes import Prototypes, nearest_covariances, prototypes_of
from flower_fedclust.numerics.spectral import symmetric_graph, top_graph_eigenvectors, unit_rows
from flower_fedclust.numerics.structural_graph import (
    StructuralGraph,
    neighbors_of_client,
    rank_constrained_graph,
    structural_graph,
)
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.noise import NoiseSource, draw
from flower_fedclust.privacy.releases import Release
from flower_fedclust.protocol.replies import unlike_most
from flower_fedclust.protocol.rounds import Array, Reply, Sent, answers
from flower_fedclust.steps.cells import CellsClient, moment_of, products_of
from flower_fedclust.steps.frame import Frame, enter

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: Prototypes of a client, by default, for each cluster; and rows for each, where that gives more, and how many at most.
PROTOTYPES_PER_CLUSTER = 5
ROWS_PER_PROTOTYPE = 25
MOST_PROTOTYPES = 100

GRAPH = (
    Sent("prototype of every row", per="row"),
    Sent("nearest rows of every row", per="row"),
    Sent("weights of the nearest rows of every row", per="row"),
)


@dataclass(frozen=True)
class Gathered:
    """What the clients sent, one client after the other.

    Parameters
    ----------
    blocks : list of csr_array
        The clients' graphs, symmetric.
    prototype : ndarray of shape (n_rows,), intp
        Which of all the prototypes each row belongs to.
    prototypes : Prototypes
        Of all clients.
    client : ndarray of shape (n_prototypes,), intp
        Whose each is.
    """

    blocks: list[csr_array]
    prototype: Labels
    prototypes: Prototypes
    client: Labels

    @property
    def n_rows(self) -> int:
        """Of all clients."""
        return len(self.prototype)

    @property
    def diagonal(self) -> csr_array:
        """The clients' graphs on the diagonal of one."""
        return csr_array(block_diag(self.blocks))


def gathered(replies: Sequence[Reply]) -> Gathered:
    """Return what clients answered to "structural_graph", checked.

    Raises
    ------
    DataError
        If a client's reply does not fit together.
    """
    blocks, labels, client, n_prototypes = [], [], [], 0
    _, others = unlike_most({reply.client: reply.arrays[4].ndim for reply in replies})
    for index, reply in enumerate(replies):
        own, neighbors, weights, means = reply.arrays[:4]
        _check(reply.client, reply.client not in others and _fits_together(reply.arrays))
        shape = (len(own), -1)
        blocks.append(
            symmetric_graph(neighbors.reshape(shape).astype(np.intp), weights.reshape(shape).astype(np.float64))
        )
        labels.append(own.astype(np.intp) + n_prototypes)
        client.append(np.full(len(means), index))
        n_prototypes += len(means)
    means, covariances, counts = (
        np.concatenate([reply.arrays[position] for reply in replies]).astype(np.float64) for position in (3, 4, 5)
    )
    return Gathered(blocks, np.concatenate(labels), Prototypes(means, covariances, counts), np.concatenate(client))


def _fits_together(arrays: Sequence[Array]) -> bool:
    own, neighbors, weights, means, covariances, counts = arrays
    if means.ndim != 2 or not _are_indices(own, len(means)):
        return False
    n_prototypes, n_columns = means.shape
    return bool(
        _are_indices(neighbors, len(own))
        and neighbors.shape == weights.shape
        and neighbors.size % len(own) == 0
        and (weights >= 0).all()
        and covariances.shape in ((n_prototypes, n_columns), (n_prototypes, n_columns, n_columns))
        and counts.shape == (n_prototypes,)
        and (counts > 0).all()
    )


def _are_indices(array: Array, size: int) -> bool:
    return bool(array.ndim == 1 and array.size > 0 and ((array >= 0) & (array < size)).all())


def _check(client: str, fits: bool) -> None:
    if not fits:
        raise DataError(f"client {client} sent a graph and prototypes that do not fit together.")


class GraphClient(CellsClient):
    """The answers of a client that sends the graph of its rows as it is, and prototypes of them."""

    @answers(
        "structural_graph",
        sends=(
            *GRAPH,
            Sent("means of the client's prototypes", has_columns=True),
            Sent("covariances of the client's prototypes", has_columns=True),
            "sizes of the client's prototypes",
        ),
    )
    def structural_graph(
        self,
        *,
        n_clusters: int,
        n_neighbors: int,
        n_prototypes: int,
        solver: str,
        prototypes: str,
        diagonal: bool,
        random_state: int,
        epsilon: float = math.inf,
        max_l1_norm: float = math.inf,
    ) -> tuple[Array, ...]:
        """Return E^p and the prototypes of Algorithm 1, lines 5 to 8; with an epsilon, noise as the paper has it."""
        rows = clip_rows(self.rows, max_l1_norm, norm=1)
        graph = own_graph(rows, n_clusters, n_neighbors, solver)
        rng = self.generator(random_state)
        if prototypes == "gmm":
            labels = mixture_labels(rows, n_clusters, rng)
        else:
            labels = atoms(rows, graph, n_atoms_of(len(rows), n_clusters, n_prototypes), rng)
        found = prototypes_of(rows, labels, diagonal=diagonal)
        if math.isfinite(epsilon):
            found = noisy_as_in_the_paper(found, epsilon, max_l1_norm, self.noise_source)
        return (*sent_graph(labels, graph, n_neighbors), found.means, found.covariances, found.counts)

    @answers(
        "cell_prototypes",
        sends=(
            *GRAPH,
            Sent("sum of the client's rows in each cell", has_columns=True),
            "sum over the client's rows of the products of their entries, by cell",
            "number of the client's rows in each cell",
        ),
    )
    def cell_prototypes(
        self,
        centers: Floats,
        *frame: Floats,
        radius: float,
        norm: int,
        n_clusters: int,
        n_neighbors: int,
        solver: str,
        diagonal: bool,
    ) -> tuple[Array, ...]:
        """Return E^p, the cell of each row, and of each cell what means and covariances are made of."""
        graph = own_graph(self.rows, n_clusters, n_neighbors, solver)
        rows = enter(self.rows, *frame, radius=radius, norm=norm)
        labels = nearest_center(rows, centers)
        counts = np.bincount(labels, minlength=len(centers)).astype(np.float64)
        width = rows.shape[1] if diagonal else len(products_of(np.eye(rows.shape[1])))
        sums, products = np.zeros_like(centers), np.zeros((len(centers), width))
        for cell in np.flatnonzero(counts):
            own = rows[labels == cell]
            sums[cell] = own.sum(axis=0)
            products[cell] = np.einsum("ij,ij->j", own, own) if diagonal else products_of(own.T @ own)
        return (*sent_graph(labels, graph, n_neighbors), sums, products, counts)


def own_graph(rows: Floats, n_clusters: int, n_neighbors: int, solver: str) -> StructuralGraph:
    """Return a client's E^p: with solver="clr" under the rank constraint, otherwise without (see :class:`SPPFGC`)."""
    own = neighbors_of_client(len(rows), n_clusters, n_neighbors)
    if solver == "clr" and len(rows) > n_clusters:
        return rank_constrained_graph(rows, n_clusters, own)
    return structural_graph(rows, own)


def sent_graph(labels: Labels, graph: StructuralGraph, n_neighbors: int) -> tuple[Array, Array, Array]:
    """Return the arrays in which a graph travels: what is missing is a weight of 0.

    Neighbors and weights are flat, as under the rank constraint a client may need more than n_neighbors of each row.
    """
    n_rows, own = graph.neighbors.shape
    width = max(n_neighbors, own)
    neighbors = np.repeat(np.arange(n_rows, dtype=np.int32)[:, None], width, axis=1)
    weights = np.zeros((n_rows, width), dtype=np.float32)
    neighbors[:, :own], weights[:, :own] = graph.neighbors, graph.weights
    return labels.astype(np.int32), neighbors.ravel(), weights.ravel()


def n_atoms_of(n_rows: int, n_clusters: int, wanted: int) -> int:
    """Return how many prototypes a client makes: those wanted, or by default as many as its rows can tell apart.

    Parameters
    ----------
    n_rows : int
    n_clusters : int
    wanted : int
        0 is the default: several a cluster, so that a cluster can have any form, and more where there are many rows.
    """
    by_default = max(PROTOTYPES_PER_CLUSTER * n_clusters, min(n_rows // ROWS_PER_PROTOTYPE, MOST_PROTOTYPES))
    return max(1, min(wanted or by_default, n_rows // 2))


def atoms(rows: Floats, graph: StructuralGraph, n_atoms: int, rng: np.random.Generator) -> Labels:
    """Return small clusters of rows, by normalised spectral clustering of their graph, numbered from 0 without a gap.

    Of a graph with more components than atoms, by k-means of the rows.
    """
    if n_atoms == 1:
        return np.zeros(len(rows), dtype=np.intp)
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
    """Return the clusters of a Gaussian mixture (Algorithm 1, line 6), numbered from 0 without a gap."""
    n_components = min(n_clusters, len(np.unique(rows, axis=0)))
    # What scikit-learn adds to the variances is not measured in units of the rows.
    offsets = rows - rows.mean(axis=0)
    offsets /= np.abs(offsets).max() or 1.0
    mixture = GaussianMixture(n_components, random_state=int(rng.integers(2**31)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has not converged
        labels = mixture.fit_predict(offsets) if len(rows) > 1 else np.zeros(1, dtype=np.intp)
    return np.unique(labels, return_inverse=True)[1].astype(np.intp)


def noisy_as_in_the_paper(found: Prototypes, epsilon: float, max_l1_norm: float, source: NoiseSource) -> Prototypes:
    """Return prototypes with the Laplace noise of equation (8), scaled as in appendix C.II. It protects nothing proved.

    The sensitivities ``2 R / N_min`` and ``(2 sqrt(2) + 4) R^2 / N_min`` hold for given clusters, and for the Frobenius
    norm of the covariance where Laplace noise needs the L1 norm; N_min, the client's smallest cluster, hangs on the
    rows. The counts have no noise.
    """
    smallest = float(found.counts.min())
    of_means = Release("laplace", 2.0 * max_l1_norm / smallest, 1.0 / epsilon, "")
    of_covariances = Release("laplace", (2.0 * math.sqrt(2.0) + 4.0) * max_l1_norm**2 / smallest, 1.0 / epsilon, "")
    means = found.means + draw(of_means, found.means.size, source).reshape(found.means.shape)
    if found.is_diagonal:
        noisy = found.covariances + draw(of_covariances, found.covariances.size, source).reshape(means.shape)
    else:
        n_products = len(products_of(found.covariances[0]))
        drawn = draw(of_covariances, len(found) * n_products, source).reshape(len(found), n_products)
        noisy = found.covariances + np.array([moment_of(noise) for noise in drawn])
    return Prototypes(means, nearest_covariances(noisy), found.counts)


def prototypes_of_cells(
    reply: Reply, frame: Frame, centers: Floats, multipliers: tuple[float, float, float]
) -> tuple[Reply, Floats]:
    """Return a client's reply to "cell_prototypes" in the form of one to "structural_graph".

    Cells with hardly a row, by their noisy count, are dropped: their rows go to the nearest cell that is left.

    Parameters
    ----------
    reply : Reply
    frame : Frame
    centers : ndarray of shape (n_cells, n_columns)
        In the frame.
    multipliers : tuple of three float
        The Laplace parameters of the sums, the products and the counts over their sensitivities.

    Returns
    -------
    reply : Reply
        With the means of the kept cells in the coordinates of the data.
    deviation : ndarray of shape (n_kept,)
        The standard deviation of the noise in an entry of each covariance, about.

    Raises
    ------
    DataError
        If the reply does not fit together.
    """
    own, neighbors, weights, sums, products, noisy_counts = reply.arrays
    n_cells, n_columns = centers.shape
    widths = (n_columns, n_columns * (n_columns + 1) // 2)
    shapes_fit = sums.shape == centers.shape and products.shape in [(n_cells, width) for width in widths]
    _check(reply.client, shapes_fit and noisy_counts.shape == (n_cells,) and _are_indices(own, n_cells))
    kept = noisy_counts > max(2.0 * multipliers[2], 0.5)
    if not kept.any():
        kept = noisy_counts >= noisy_counts.max()
    counts = np.maximum(noisy_counts[kept], 1.0)
    means = clip_rows(sums[kept] / counts[:, None], frame.radius, norm=1)
    moments = products[kept] / counts[:, None]
    if moments.shape[1] == means.shape[1]:
        covariances = nearest_covariances(moments - means**2)
    else:
        full = np.array([moment_of(moment) for moment in moments])
        covariances = nearest_covariances(full - means[:, :, None] * means[:, None, :])
    position = np.cumsum(kept) - 1
    moved = np.where(kept, position, nearest_center(centers, centers[kept]))[np.asarray(own, dtype=np.intp)]
    deviation = math.sqrt(2.0) * frame.radius**2 * multipliers[1] / counts
    return Reply(reply.client, [moved, neighbors, weights, frame.leave(means), covariances, counts]), deviation
