"""The server's half of SPP-FGC: from the clients' graphs and prototypes to clusters of all rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.global_graph import (
    GlobalGraph,
    components_of,
    full_affinity,
    printed_affinity,
    prototype_affinity,
)
from flower_fedclust.numerics.initialisation import weighted_kmeans
from flower_fedclust.numerics.kmeans import nearest_center
from flower_fedclust.numerics.prototypes import Prototypes, jeffreys, kullback_leibler
from flower_fedclust.numerics.spectral import top_graph_eigenvectors, unit_rows
from flower_fedclust.numerics.structural_graph import rank_constrained_solution
from flower_fedclust.steps.prototypes import Gathered
from flower_fedclust.steps.spectral import cluster_embedding

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: Rows up to which the server solves for S, which has an entry for every two of them.
MOST_ROWS_OF_S = 8000


@dataclass(frozen=True)
class Recipe:
    """What the server does with graphs and prototypes; the fields are the parameters of :class:`SPPFGC`."""

    solver: str = "spectral"
    affinity: str = "jeffreys"
    assignment: str = "eigenvectors"
    private_graph: bool = True
    global_graph: bool = True


def clusters_of_rows(
    found: Gathered, prototypes: Prototypes, n_clusters: int, recipe: Recipe, rng: np.random.Generator
) -> Labels:
    """Return the clusters of all rows (Algorithm 1, lines 11 to 15).

    Parameters
    ----------
    found : Gathered
    prototypes : Prototypes
        Its prototypes, with covariances that have an inverse.
    n_clusters : int
    recipe : Recipe
    rng : numpy.random.Generator
        For the restarts of k-means.

    Returns
    -------
    ndarray of shape (n_rows,), intp

    Raises
    ------
    DataError
        If there are fewer rows than clusters, or more than the solver "clr" takes.
    """
    if found.n_rows < n_clusters:
        raise DataError(f"the clients have {found.n_rows} rows together and n_clusters is {n_clusters}; ask for fewer.")
    if not recipe.global_graph:
        return _without_global_graph(found, prototypes, n_clusters, recipe, rng)
    divergences = (jeffreys if recipe.affinity == "jeffreys" else kullback_leibler)(prototypes)
    graph = global_graph(found, prototypes, divergences, recipe)
    if recipe.solver == "spectral":
        return cluster_embedding(graph.embedding(n_clusters, full_affinity(divergences)), n_clusters, rng)[1]
    if found.n_rows > MOST_ROWS_OF_S:
        raise DataError(
            f"the clients have {found.n_rows} rows together, and S would have an entry for every two of them; "
            f"solver='clr' is for {MOST_ROWS_OF_S} rows at most. Take solver='spectral'."
        )
    S, F = rank_constrained_solution(graph.toarray(), n_clusters)
    if recipe.assignment == "rows-of-s":
        return cluster_embedding(S.toarray(), n_clusters, rng)[1]
    n_components, component = components_of(S)
    return component if n_components == n_clusters else cluster_embedding(F, n_clusters, rng)[1]


def global_graph(found: Gathered, prototypes: Prototypes, divergences: Floats, recipe: Recipe) -> GlobalGraph:
    """Return E* (equation 9), symmetric.

    Parameters
    ----------
    found : Gathered
    prototypes : Prototypes
    divergences : ndarray of shape (n_prototypes, n_prototypes)
    recipe : Recipe
    """
    blocks, owner = found.diagonal, found.client
    if not recipe.private_graph:
        blocks, owner = blocks * 0.0, np.arange(len(prototypes))
        blocks.eliminate_zeros()
    if recipe.affinity == "jeffreys":
        n_others = len(found.blocks) - 1
        affinity = prototype_affinity(divergences, prototypes.counts, owner, n_nearest=n_others)
    else:
        affinity = printed_affinity(divergences, owner)
        affinity = 0.5 * (affinity + affinity.T)
    return GlobalGraph(blocks, found.prototype, affinity)


def _without_global_graph(
    found: Gathered, prototypes: Prototypes, n_clusters: int, recipe: Recipe, rng: np.random.Generator
) -> Labels:
    """Return what comes out where clients' graphs, or only their prototypes, are clustered one by one."""
    if not recipe.private_graph:
        centers = weighted_kmeans(prototypes.means, prototypes.counts, n_clusters, rng)
        return nearest_center(prototypes.means, centers)[found.prototype]
    own, means, counts = [], [], []
    ends = np.cumsum([block.shape[0] for block in found.blocks])
    n_before = 0
    for block, prototype in zip(found.blocks, np.split(found.prototype, ends[:-1]), strict=True):
        n_own = min(n_clusters, block.shape[0])
        _, component = components_of(block)
        embedding = unit_rows(top_graph_eigenvectors(block, n_own, np.minimum(component, n_own - 1)))
        labels = np.unique(cluster_embedding(embedding, n_own, rng)[1], return_inverse=True)[1]
        for cluster in range(labels.max() + 1):
            of_cluster = prototype[labels == cluster]
            means.append(prototypes.means[of_cluster].mean(axis=0))
            counts.append(float(len(of_cluster)))
        own.append(labels + n_before)
        n_before += int(labels.max()) + 1
    centers = weighted_kmeans(np.array(means), np.array(counts), n_clusters, rng)
    return nearest_center(np.array(means), centers)[np.concatenate(own)]


def rows_of_prototypes(found: Gathered, labels: Labels, n_clusters: int) -> Floats:
    """Return how many rows of each prototype are in each cluster, of shape (n_prototypes, n_clusters)."""
    table = np.zeros((len(found.prototypes), n_clusters))
    np.add.at(table, (found.prototype, labels), 1.0)
    return table
