"""Spectral clustering at the server, of rows or of their codes, and the labels that it sends back."""

from __future__ import annotations

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
from flower_fedclust.numerics.dictionary import factor_map, kernel_root
from flower_fedclust.numerics.initialisation import N_RESTARTS
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

#: lambda of the factors of rows that are at hand: FedSC's.
REGULARIZATION = 0.01

#: Atoms, where nothing is said: so many a cluster, and not fewer than the second number.
ATOMS_PER_CLUSTER, FEWEST_ATOMS = 10, 50


@dataclass(frozen=True)
class Dictionary:
    """Atoms (FedSC's dictionary, Fed-SpeClust's landmarks) whose kernel with a row gives the factors of the row."""

    atoms: Floats  #: Z, of shape (n_atoms, n_columns).
    bandwidth: float  #: r of the Gaussian kernel, in the units of the rows.
    regularization: float  #: lambda, added to the diagonal of the atoms' kernel before it is inverted.
    n_rows: float  #: Of all clients; with noise, about.

    @property
    def kernel(self) -> dict[str, float]:
        """Bandwidth and regularization, as the keyword arguments of what computes codes and factors."""
        return {"bandwidth": self.bandwidth, "regularization": self.regularization}

    def within(self, frame: Frame) -> Floats:
        """Return the atoms in the coordinates of a frame, on the grid of its rows; its ball draws in those outside."""
        exponent = unit_exponent(frame.radius)
        return from_units(rows_within(self.atoms, frame.origin, exponent), exponent)


#: Atoms are spread as rows are, column by column, so that some lie farther out than any row: by so much at most.
ROOM_FOR_ATOMS = 4.0


def with_room(frame: Frame) -> Frame:
    """Return a frame with room for atoms outside of the ball, where neither they nor rows are drawn in."""
    return replace(frame, radius=min(ROOM_FOR_ATOMS * frame.radius, 2.0**1023))


def kernel_within(frame: Frame, points: Floats, bandwidth: float) -> Floats:
    """Return the kernel of points of a frame with one another as clients compute it, on the frame's grid."""
    exponent = unit_exponent(frame.radius)
    on_grid = points_onto_grid(points, exponent)
    return kernel_values(on_grid, on_grid, exponent, bandwidth)


def leave_within_range(frame: Frame, points: Floats) -> Floats:
    """Return points of a frame in the coordinates of the data; what is beyond the largest float is drawn in to it."""
    largest = np.finfo(np.float64).max
    with np.errstate(over="ignore"):
        return np.clip(frame.leave(points), -largest, largest)


def kernel_graph(rows: Floats, bandwidth: float, n_neighbors: int) -> csr_array:
    """Return the sparse graph that keeps the k largest kernel values of every row (FedSC, equation 25).

    They are those of its nearest rows, so that no array of n_rows x n_rows entries is made: the mean of A and A', where
    A has the kernel values of each row with its k nearest others, or with all of them where they are fewer.
    """
    from scipy.sparse import csr_array
    from sklearn.neighbors import NearestNeighbors

    n_neighbors = min(n_neighbors, len(rows) - 1)
    if n_neighbors < 1:
        return csr_array((len(rows), len(rows)), dtype=np.float64)
    # Far from the origin, distances that come out of a matrix product would lose their digits.
    index = NearestNeighbors(n_neighbors=n_neighbors).fit(rows - rows.mean(axis=0))
    distances, neighbors = index.kneighbors()
    return symmetric_graph(neighbors.astype(np.intp), np.exp(-0.5 * (distances / bandwidth) ** 2))


def cluster_rows(
    rows: Floats,
    n_clusters: int,
    rng: np.random.Generator,
    *,
    bandwidth: float | None = None,
    n_neighbors: int | None = None,
) -> tuple[SpectralModel, Labels]:
    """Cluster rows as FedSC's server does, with the kernel itself where FedSC has one that it reconstructs.

    Some of the rows are drawn as atoms. The factors that they give place rows that were not there; and they embed the
    components of a graph that has more of them than clusters.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_columns)
    n_clusters : int
    rng : numpy.random.Generator
        For the atoms and the restarts of k-means.
    bandwidth : float, optional
        r; by default the mean distance between the rows (FedSC, equation 40).
    n_neighbors : int, optional
        k; by default ``ceil(log n)``.

    Returns
    -------
    model : SpectralModel
    labels : ndarray of shape (n_rows,)

    Raises
    ------
    DataError
        If no bandwidth was given and all rows are equal or their distances overflow, or if there are fewer rows than
        clusters.
    """
    if bandwidth is None:
        bandwidth = mean_distance(rows)
        if bandwidth == 0:
            raise DataError("all rows are equal, so that the bandwidth r comes out as 0; give rows that differ.")
        if not np.isfinite(bandwidth):
            raise DataError("the rows are so far apart that their mean distance overflows; look for a wrong value.")
    n_atoms = min(max(ATOMS_PER_CLUSTER * n_clusters, FEWEST_ATOMS), len(rows))
    Z = rows[np.sort(rng.choice(len(rows), n_atoms, replace=False))]
    to_factors = factor_map(Z, bandwidth, REGULARIZATION)
    F = gaussian_kernel(rows, Z, bandwidth) @ to_factors
    graph = kernel_graph(rows, bandwidth, n_neighbors_of(len(rows)) if n_neighbors is None else n_neighbors)
    embedding = graph_embedding(graph, n_clusters, F)
    centers, labels = cluster_embedding(embedding, n_clusters, rng)
    return SpectralModel(Z, bandwidth, to_factors @ fitted_projection(F, embedding), centers), labels


class CodesStrategy(ProtocolStrategy):
    """Base of strategies whose server clusters the rows of all clients by their codes: stage II of FedSC.

    Parameters
    ----------
    sparsify : bool, default=True
        Whether each row keeps its k largest similarities only (FedSC, equation 25), or all of them.
    n_neighbors : int, optional
        k; by default ``ceil(log n)``.
    working_memory : float, default=64.0
        How many MiB an array of the server may have, besides what the clients send and the graph.
    """

    sparsify: bool = parameter(True)
    n_neighbors: int | None = parameter(None, at_least=1)
    working_memory: float = parameter(64.0, above=0)

    def cluster_codes(
        self, dictionary: Dictionary, C: Floats, replies: Sequence[Reply]
    ) -> Generator[Round, list[Reply], tuple[SpectralModel, dict[str, Labels]]]:
        """Cluster rows that are known by their codes (equations 5, 12 and 25), and send each client those of its rows.

        Parameters
        ----------
        dictionary : Dictionary
        C : ndarray of shape (n_rows, n_atoms)
            The codes.
        replies : sequence of Reply
            Whose codes they are.

        Raises
        ------
        DataError
            If there are fewer rows than clusters.
        """
        Z, bandwidth = dictionary.atoms, dictionary.bandwidth
        F = C @ kernel_root(Z, bandwidth)
        if self.sparsify:
            k = n_neighbors_of(len(F)) if self.n_neighbors is None else self.n_neighbors
            graph = similarity_graph(F, k, block_entries=max(1, int(self.working_memory * 2**20 / C.itemsize)))
            embedding = graph_embedding(graph, self.n_clusters, F)
        else:
            embedding = low_rank_embedding(F, self.n_clusters)
        centers, labels = cluster_embedding(embedding, self.n_clusters, self.rng)
        projection = factor_map(Z, **dictionary.kernel) @ fitted_projection(F, embedding)
        warn_of_empty_clusters(self.name, np.bincount(labels, minlength=self.n_clusters))
        return SpectralModel(Z, bandwidth, projection, centers), (yield from send_labels(labels, replies))


def cluster_embedding(embedding: Floats, n_clusters: int, rng: np.random.Generator) -> tuple[Floats, Labels]:
    """Cluster embedded rows by scikit-learn's k-means: the last step of spectral clustering.

    Returns
    -------
    centers : ndarray of shape (n_clusters, n_dimensions)
    labels : ndarray of shape (n_rows,)
        Where rows are too alike, fewer clusters than were asked for.

    Raises
    ------
    DataError
        If there are fewer rows than clusters.
    """
    from sklearn.cluster import KMeans

    if len(embedding) < n_clusters:
        raise DataError(
            f"the clients have {len(embedding)} rows together and n_clusters is {n_clusters}; ask for fewer."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's own warning of too few clusters names its parameter
        estimator = KMeans(n_clusters, n_init=N_RESTARTS, random_state=int(rng.integers(2**31)))
        labels = estimator.fit_predict(embedding).astype(np.intp)
    return np.asarray(estimator.cluster_centers_), labels


def send_labels(labels: Labels, replies: Sequence[Reply]) -> Generator[Round, list[Reply], dict[str, Labels]]:
    """Send each client the clusters of its rows, in one round.

    Parameters
    ----------
    labels : ndarray of shape (n_rows,)
        Of the rows of all clients, one client after the other.
    replies : sequence of Reply
        In the same order; the first array of each has an entry for every row of the client.

    Returns
    -------
    dict of str to ndarray of shape (n_i,)
        The labels by client.
    """
    by_client = split_by_client(labels, replies)
    yield Gather({client: LabelsClient.keep_labels.asked(own) for client, own in by_client.items()})
    return by_client


def split_by_client(array: Array, replies: Sequence[Reply]) -> dict[str, Array]:
    """Return the part of an array that is of each client's rows, one client after the other as in the replies.

    The first array of each reply has an entry for every row of its client.
    """
    ends = np.cumsum([len(reply.arrays[0]) for reply in replies])
    return dict(zip((reply.client for reply in replies), np.split(array, ends[:-1]), strict=True))


class LabelsClient(ProtocolClient):
    """The answer of a client whose rows the server has clustered."""

    @answers()
    def keep_labels(self, labels: Labels) -> None:
        """Keep the clusters of the rows: ``recall("labels")`` gives them back."""
        self.remember("labels", [labels])
