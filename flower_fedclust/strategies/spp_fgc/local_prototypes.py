"""How a client of SPP-FGC divides its rows into prototypes, and the noise that the paper puts on these."""

from __future__ import annotations

import math
import warnings

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import KMeans
from sklearn.mixture import GaussianMixture

from flower_fedclust.exact.sums import triangle_to_symmetric
from flower_fedclust.numerics.initialisation import N_RESTARTS
from flower_fedclust.numerics.prototypes import Prototypes, nearest_covariances
from flower_fedclust.numerics.spectral import top_graph_eigenvectors, unit_rows
from flower_fedclust.numerics.structural_graph import StructuralGraph
from flower_fedclust.privacy.noise import noise_in_floats
from flower_fedclust.privacy.sampling import NoiseSource

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: By default a client has so many prototypes for each cluster, so that a cluster can have any form.
PROTOTYPES_PER_CLUSTER = 5

#: A client with many rows has one prototype for so many of them where that is more, ...
ROWS_PER_PROTOTYPE = 25

#: ... up to this number.
MOST_PROTOTYPES = 100


def n_atoms_of(n_rows: int, n_clusters: int, wanted: int) -> int:
    """Return how many atoms a client makes: at most half as many as it has rows.

    Parameters
    ----------
    n_rows, n_clusters : int
    wanted : int
        0 is the default, which grows with clusters and rows.
    """
    by_default = max(PROTOTYPES_PER_CLUSTER * n_clusters, min(n_rows // ROWS_PER_PROTOTYPE, MOST_PROTOTYPES))
    return max(1, min(wanted or by_default, n_rows // 2))


def atoms(rows: Floats, graph: StructuralGraph, n_atoms: int, rng: np.random.Generator) -> Labels:
    """Return small clusters of rows, by normalised spectral clustering of their graph, numbered from 0 without a gap.

    Where the graph has more components than there are to be atoms, they are those of a k-means of the rows.
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
    """Return prototypes with the Laplace noise of equation (8), scaled as in appendix C.II. It proves nothing.

    The sensitivities ``2 R / N_min`` and ``(2 sqrt(2) + 4) R^2 / N_min`` hold for clusters that are given, and the
    latter for the Frobenius norm of the covariance where Laplace noise needs the L1 norm. N_min, the size of the
    client's smallest cluster, depends on the rows. The counts have no noise.
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
