"""Spectral clustering at the server, of rows or of codes that stand for rows; and sending clients their labels."""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import ProtocolStrategy, parameter
from flower_fedclust.engine.client import ProtocolClient
from flower_fedclust.engine.rounds import Array, Gather, Reply, Round, answers
from flower_fedclust.exact.grid import from_units, points_onto_grid, rows_within, unit_exponent
from flower_fedclust.exact.rows import Frame
from flower_fedclust.exact.spectral_sums import kernel_values
from flower_fedclust.models import SpectralModel
from flower_fedclust.numerics.checks import DataError, warn_of_empty_clusters
from flower_fedclust.numerics.copies import copies_but_for_rounding, copies_of
from flower_fedclust.numerics.dictionary import factor_map
from flower_fedclust.numerics.initialization import N_RESTARTS
from flower_fedclust.numerics.kernel import gaussian_kernel, mean_distance
from flower_fedclust.numerics.spectral import (
    fitted_projection,
    graph_embedding,
    low_rank_embedding,
    n_neighbors_of,
    similarity_graph,
    symmetric_graph,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: The regularization lambda of FedSC, used where the server has the rows themselves.
REGULARIZATION = 0.01

#: The default number of atoms (see :class:`Dictionary`): the first number for each cluster, but at least the second.
ATOMS_PER_CLUSTER, FEWEST_ATOMS = 10, 50


@dataclass(frozen=True)
class Dictionary:
    """A few points (atoms) by which each row becomes a vector of factors.

    The factors of a row follow from its kernel values with the atoms. The inner product of two rows'
    factors approximates the kernel of the two rows. The atoms are the dictionary of FedSC or the
    landmarks of Fed-SpeClust.
    """

    atoms: Floats  #: The atoms Z, of shape (n_atoms, n_columns).
    bandwidth: float  #: The bandwidth r of the Gaussian kernel, in the units of the rows.
    #: The regularization lambda, added to the diagonal of the atoms' kernel before it is inverted.
    regularization: float
    n_rows: float  #: The number of all clients' rows; approximate if there is noise.
    #: Whether the kernel of two rows is ``k (K + lambda I)^-1 k'``, from a row's kernel values k with the atoms and the
    #: atoms' kernel values K with each other. If not, it is reconstructed from FedSC's codes.
    nystrom: bool = False

    @property
    def kernel(self) -> dict[str, float]:
        """Bandwidth and regularization, as keyword arguments of the functions that compute codes and factors."""
        return {"bandwidth": self.bandwidth, "regularization": self.regularization}

    def factor_map(self, atoms: Floats, steepest: float = math.inf) -> Floats:
        """Return the matrix that turns a row's kernel values with the atoms into its factors."""
        return factor_map(atoms, **self.kernel, nystrom=self.nystrom, steepest=steepest)

    def within(self, frame: Frame) -> Floats:
        """Return the atoms in the coordinates of a frame, on the grid of its rows.

        Atoms outside the frame's ball are moved into it.
        """
        exponent = unit_exponent(frame.radius)
        return from_units(rows_within(self.atoms, frame.origin, exponent), exponent)


#: Atoms have the spread of the rows in each column, so some can lie farther out than any row. A ball this many times as
#: wide holds them.
ROOM_FOR_ATOMS = 4.0


def with_room(frame: Frame) -> Frame:
    """Return a frame with a ball wide enough for atoms too, so that neither atoms nor rows are moved into it."""
    return replace(frame, radius=min(ROOM_FOR_ATOMS * frame.radius, 2.0**1023))


def kernel_within(frame: Frame, points: Floats, bandwidth: float) -> Floats:
    """Return the kernel values of points with one another, computed as clients do, on the grid of the frame."""
    exponent = unit_exponent(frame.radius)
    on_grid = points_onto_grid(points, exponent)
    return kernel_values(on_grid, on_grid, exponent, bandwidth)


def leave_within_range(frame: Frame, points: Floats) -> Floats:
    """Convert points from a frame to the coordinates of the data; what overflows becomes the largest float."""
    largest = np.finfo(np.float64).max
    with np.errstate(over="ignore"):
        return np.clip(frame.leave(points), -largest, largest)


def kernel_graph(
    rows: Floats, bandwidth: float, n_neighbors: int, sizes: Floats | None = None
) -> csr_array:
    """Return the sparse graph that keeps the k largest kernel values of every row (FedSC, equation 25).

    The graph is the mean of A and A', where the sparse array A has the kernel values of each row
    with its k nearest other rows. ``sizes`` says how many equal rows each row stands for.
    """
    from scipy.sparse import csr_array
    from sklearn.neighbors import NearestNeighbors

    n_neighbors = min(n_neighbors, len(rows) - 1)
    if n_neighbors < 1:
        return csr_array((len(rows), len(rows)), dtype=np.float64)
    # Far from the origin, distances from a matrix product would lose their digits.
    index = NearestNeighbors(n_neighbors=n_neighbors).fit(rows - rows.mean(axis=0))
    distances, neighbors = index.kneighbors()
    weights = np.exp(-0.5 * (distances / bandwidth) ** 2)
    if sizes is not None:
        weights *= sizes[:, None]
    return symmetric_graph(neighbors.astype(np.intp), weights)


def cluster_rows(
    rows: Floats,
    n_clusters: int,
    rng: np.random.Generator,
    *,
    bandwidth: float | None = None,
    n_neighbors: int | None = None,
) -> tuple[SpectralModel, Labels]:
    """Cluster rows like FedSC's server, but with the exact kernel where FedSC reconstructs one.

    Some rows are drawn as atoms. The factors that follow from them place new rows, and embed the
    components of a graph that has more components than clusters. The bandwidth r is by default the
    mean distance between the rows (FedSC, equation 40).
    """
    if bandwidth is None:
        bandwidth = mean_distance(rows)
        if bandwidth == 0:
            raise DataError(
                "all rows are equal, so the bandwidth r would be 0; give rows that differ."
            )
        if not np.isfinite(bandwidth):
            raise DataError(
                "the rows are so far apart that their mean distance overflows; look for a wrong value."
            )
    n_atoms = min(max(ATOMS_PER_CLUSTER * n_clusters, FEWEST_ATOMS), len(rows))
    Z = rows[np.sort(rng.choice(len(rows), n_atoms, replace=False))]
    to_factors = factor_map(Z, bandwidth, REGULARIZATION)
    F = gaussian_kernel(rows, Z, bandwidth) @ to_factors
    copies = copies_of(rows)
    different, sizes = rows[copies.first], copies.counts
    graph = kernel_graph(different, bandwidth, n_neighbors or n_neighbors_of(len(different)), sizes)
    embedding = graph_embedding(graph, n_clusters, F[copies.first], sizes)
    centers, labels = cluster_embedding(embedding, n_clusters, rng, sizes)
    embedding, labels = embedding[copies.index], labels[copies.index]
    return SpectralModel(
        Z, bandwidth, to_factors @ fitted_projection(F, embedding), centers
    ), labels


#: The most bytes of an array at the server, except for the clients' replies and the graph.
WORKING_MEMORY = 64 * 2**20


class CodesStrategy(ProtocolStrategy):
    """Base of strategies whose server clusters the rows of all clients by their codes: stage II of FedSC.

    Parameters
    ----------
    sparsify : bool, default=True
        Whether each row keeps its k largest similarities only (FedSC, equation 25), or all of them.
    n_neighbors : int, optional
        The number k of similarities that each row keeps; by default ``ceil(log n)`` for n rows.
    """

    sparsify: bool = parameter(True)
    n_neighbors: int | None = parameter(None, at_least=1)

    def cluster_factors(
        self, dictionary: Dictionary, F: Floats, replies: Sequence[Reply]
    ) -> Generator[Round, list[Reply], tuple[SpectralModel, dict[str, Labels]]]:
        """Cluster rows by their factors F (FedSC, equations 12 and 25), and send each client the labels of its rows."""
        if self.sparsify:
            # Equal rows are one node of the graph; otherwise their nearest neighbors would all be their equals.
            copies = copies_but_for_rounding(F)
            n_block = max(1, int(WORKING_MEMORY / F.itemsize))
            embedding, centers, labels = self._by_graph(F[copies.first], copies.counts, n_block)
            embedding, labels = embedding[copies.index], labels[copies.index]
        else:
            embedding = low_rank_embedding(F, self.n_clusters)
            centers, labels = cluster_embedding(embedding, self.n_clusters, self.rng)
        projection = dictionary.factor_map(dictionary.atoms) @ fitted_projection(F, embedding)
        warn_of_empty_clusters(self.name, np.bincount(labels, minlength=self.n_clusters))
        return SpectralModel(dictionary.atoms, dictionary.bandwidth, projection, centers), (
            yield from send_labels(labels, replies)
        )

    def _by_graph(
        self, F: Floats, sizes: Floats, block_entries: int
    ) -> tuple[Floats, Floats, Labels]:
        """Return embedding, centers and labels of distinct rows; ``sizes`` says how many equal rows each stands for."""
        k = n_neighbors_of(len(F)) if self.n_neighbors is None else self.n_neighbors
        graph = similarity_graph(F, k, block_entries=block_entries, sizes=sizes)
        embedding = graph_embedding(graph, self.n_clusters, F, sizes)
        return embedding, *cluster_embedding(embedding, self.n_clusters, self.rng, sizes)


def cluster_embedding(
    embedding: Floats | csr_array,
    n_clusters: int,
    rng: np.random.Generator,
    sizes: Floats | None = None,
    *,
    n_init: int = N_RESTARTS,
) -> tuple[Floats, Labels]:
    """Cluster embedded rows by scikit-learn's k-means, the last step of spectral clustering.

    Parameters
    ----------
    embedding : ndarray or sparse array of shape (n_rows, n_dimensions)
    n_clusters : int
    rng : numpy.random.Generator
    sizes : ndarray of shape (n_rows,), optional
        How many equal rows each row stands for; 1 by default.
    n_init : int
        How many starts are tried.

    Returns
    -------
    centers, labels : ndarray
        If there are fewer different rows than ``n_clusters``, some clusters are empty.
    """
    from sklearn.cluster import KMeans

    n_points = embedding.shape[0]
    n_rows = n_points if sizes is None else int(sizes.sum())
    if n_rows < n_clusters:
        raise DataError(
            f"the clients have {n_rows} rows together, but n_clusters={n_clusters}; ask for fewer clusters."
        )
    # Then each row is a cluster of its own, and the other clusters are empty.
    if n_points < n_clusters:
        return embedding[np.minimum(np.arange(n_clusters), n_points - 1)], np.arange(n_points)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's own warning about too few clusters
        estimator = KMeans(n_clusters, n_init=n_init, random_state=int(rng.integers(2**31)))
        # Weights of 1 could change the last bits of the result, so no weights are passed then.
        weights = None if sizes is None or (sizes == 1).all() else sizes
        labels = estimator.fit_predict(embedding, sample_weight=weights).astype(np.intp)
    return np.asarray(estimator.cluster_centers_), labels


def send_labels(
    labels: Labels, replies: Sequence[Reply]
) -> Generator[Round, list[Reply], dict[str, Labels]]:
    """Send each client the labels of its rows, in one round, and return the labels by client.

    ``labels`` has the rows of one client after the other, in the order of the replies.
    """
    by_client = split_by_client(labels, replies)
    yield Gather(
        {
            client: LabelsClient.keep_labels.asked(labels_of_client)
            for client, labels_of_client in by_client.items()
        }
    )
    return by_client


def split_by_client(array: Array, replies: Sequence[Reply]) -> dict[str, Array]:
    """Split an array with an entry for each row by client.

    The first array of each reply has an entry for each row of that client.
    """
    ends = np.cumsum([len(reply.arrays[0]) for reply in replies])
    return dict(zip((reply.client for reply in replies), np.split(array, ends[:-1]), strict=True))


class LabelsClient(ProtocolClient):
    """A client that receives the labels of its rows from the server."""

    @answers()
    def keep_labels(self, labels: Labels) -> None:
        """Keep the labels of the rows: ``recall("labels")`` returns them."""
        self.remember("labels", [labels])
