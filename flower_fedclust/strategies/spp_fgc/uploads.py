"""What SPP-FGC's clients upload (Algorithm 1, line 8): how graphs and prototypes are sent, and how they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import block_diag, csr_array

from flower_fedclust.engine.replies import unlike_most
from flower_fedclust.engine.rounds import Array, Reply, Sent
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.prototypes import Prototypes
from flower_fedclust.numerics.spectral import symmetric_graph
from flower_fedclust.numerics.structural_graph import StructuralGraph

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: The arrays of :func:`sent_graph`, which show which rows of a client are similar, and about where each lies.
GRAPH = (
    Sent("prototype of every row", "codes", per="row"),
    Sent("nearest rows of every row", "codes", per="row"),
    Sent("weights of the nearest rows of every row", "codes", per="row"),
)


@dataclass(frozen=True)
class Uploads:
    """What the clients sent, one client after the other."""

    replies: Sequence[Reply]
    blocks: list[csr_array]  #: The clients' graphs E^p, symmetric.
    prototype: Labels  #: The prototype of each row, numbered over all clients, of shape (n_rows,).
    prototypes: Prototypes  #: Of all clients.
    client: Labels  #: The client of each prototype, of shape (n_prototypes,).
    #: The standard deviation of the noise in an entry of each covariance, of shape (n_prototypes,), if it is known.
    noise_deviation: Floats | None = None

    @property
    def n_rows(self) -> int:
        """The number of rows of all clients."""
        return len(self.prototype)

    @property
    def diagonal(self) -> csr_array:
        """One graph with the clients' graphs on its diagonal."""
        return csr_array(block_diag(self.blocks))

    def rows_of_prototypes(self, labels: Labels, n_clusters: int) -> Floats:
        """Count the rows of each prototype in each cluster; of shape (n_prototypes, n_clusters)."""
        table = np.zeros((len(self.prototypes), n_clusters))
        np.add.at(table, (self.prototype, labels), 1.0)
        return table


def sent_graph(labels: Labels, graph: StructuralGraph, n_neighbors: int) -> tuple[Array, Array, Array]:
    """Return the arrays in which a client sends its graph and the prototype of each row.

    All clients send at least n_neighbors for each row, with a weight of 0 for missing ones. The arrays are flat,
    because a client under the rank constraint may need more.
    """
    n_rows, own = graph.neighbors.shape
    width = max(n_neighbors, own)
    neighbors = np.repeat(np.arange(n_rows, dtype=np.int32)[:, None], width, axis=1)
    weights = np.zeros((n_rows, width), dtype=np.float32)
    neighbors[:, :own], weights[:, :own] = graph.neighbors, graph.weights
    return labels.astype(np.int32), neighbors.ravel(), weights.ravel()


def read_uploads(replies: Sequence[Reply], n_clusters: int, noise_deviation: Floats | None = None) -> Uploads:
    """Check and return what the clients sent: the arrays of :func:`sent_graph`, then means, covariances and sizes."""
    blocks, labels, client, n_prototypes = [], [], [], 0
    _, others = unlike_most({reply.client: reply.arrays[4].ndim for reply in replies})
    for index, reply in enumerate(replies):
        check_fits(reply.client, reply.client not in others and _fits_together(reply.arrays[:6]))
        own, neighbors, weights, means = reply.arrays[:4]
        shape = (len(own), -1)
        blocks.append(
            symmetric_graph(neighbors.reshape(shape).astype(np.intp), weights.reshape(shape).astype(np.float64))
        )
        labels.append(own.astype(np.intp) + n_prototypes)
        client.append(np.full(len(means), index))
        n_prototypes += len(means)
    prototype = np.concatenate(labels)
    if len(prototype) < n_clusters:
        raise DataError(
            f"the clients have {len(prototype)} rows together and n_clusters is {n_clusters}; ask for fewer."
        )
    means, covariances, counts = (
        np.concatenate([reply.arrays[position] for reply in replies]).astype(np.float64) for position in (3, 4, 5)
    )
    prototypes = Prototypes(means, covariances, counts)
    return Uploads(replies, blocks, prototype, prototypes, np.concatenate(client), noise_deviation)


def _fits_together(arrays: Sequence[Array]) -> bool:
    own, neighbors, weights, means, covariances, counts = arrays
    if means.ndim != 2 or not are_indices(own, len(means)):
        return False
    n_prototypes, n_columns = means.shape
    return bool(
        are_indices(neighbors, len(own))
        and neighbors.shape == weights.shape
        and neighbors.size % len(own) == 0
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
