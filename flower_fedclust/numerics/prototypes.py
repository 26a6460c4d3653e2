"""Gaussian prototypes: clusters of rows, described by means, covariances and counts; and distances between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.kmeans import cluster_sums

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: By default, covariances are full up to this many columns, and diagonal for more columns.
FULL_COLUMNS = 64

#: In every direction, the variance of a prototype is at least this fraction of the mean variance.
COVARIANCE_FLOOR = 0.01


@dataclass(frozen=True)
class Prototypes:
    """Clusters of rows, each described by a Gaussian."""

    means: Floats  #: Of shape (n_prototypes, n_columns).
    #: Of shape (n_prototypes, n_columns, n_columns), or (n_prototypes, n_columns) if they are diagonal.
    covariances: Floats
    #: How many rows each prototype stands for (with noise, an estimate): positive, of shape (n_prototypes,).
    counts: Floats

    def __len__(self) -> int:
        return len(self.means)

    @property
    def is_diagonal(self) -> bool:
        """Whether covariances are vectors of variances."""
        return self.covariances.ndim == 2

    @property
    def variances(self) -> Floats:
        """The variance of each column, of shape (n_prototypes, n_columns)."""
        return self.covariances if self.is_diagonal else np.einsum("aii->ai", self.covariances)


def prototypes_of(rows: Floats, labels: Labels, *, diagonal: bool = False) -> Prototypes:
    """Return the means, covariances (over n, not n - 1) and counts of the clusters of rows."""
    n_prototypes, n_columns = int(labels.max()) + 1, rows.shape[1]
    sums, counts = cluster_sums(rows, labels, n_prototypes)
    means = sums / counts[:, None]
    offsets = rows - means[labels]
    if diagonal:
        squares, _ = cluster_sums(offsets**2, labels, n_prototypes)
        return Prototypes(means, squares / counts[:, None], counts)
    covariances = np.empty((n_prototypes, n_columns, n_columns))
    order = np.argsort(labels, kind="stable")
    for index, own in enumerate(np.split(offsets[order], np.cumsum(counts.astype(int))[:-1])):
        covariances[index] = own.T @ own / len(own)
    return Prototypes(means, covariances, counts)


def shrunk(
    prototypes: Prototypes,
    *,
    noise_deviation: Floats | None = None,
    floor: float = COVARIANCE_FLOOR,
) -> Prototypes:
    """Return prototypes whose covariances can be inverted: each is shrunk towards the mean covariance.

    The fewer rows a prototype has, the more its covariance S is shrunk, to ``w S + (1 - w) S_mean + floor s I``. Here s
    is the mean variance, and w is ``n / (n + d + 1)`` for full covariances of d columns, and ``n / (n + 2)`` for
    diagonal ones. If covariances have noise of the standard deviation t, w is multiplied by ``s^2 / (s^2 + t^2)``. The
    paper of SPP-FGC does not say how covariances are made invertible.
    """
    counts, covariances = prototypes.counts, prototypes.covariances
    n_columns = prototypes.means.shape[1]
    pooled = np.average(covariances, axis=0, weights=counts)
    spread = float(np.mean(np.average(prototypes.variances, axis=0, weights=counts)))
    if spread <= 0:
        eye = np.ones(n_columns) if prototypes.is_diagonal else np.eye(n_columns)
        return Prototypes(prototypes.means, np.broadcast_to(eye, covariances.shape).copy(), counts)
    own = counts / (counts + (2.0 if prototypes.is_diagonal else n_columns + 1.0))
    if noise_deviation is not None:
        own = own * spread**2 / (spread**2 + noise_deviation**2)
    own = own.reshape(-1, *[1] * (covariances.ndim - 1))
    smallest = (
        floor * spread * (np.ones(n_columns) if prototypes.is_diagonal else np.eye(n_columns))
    )
    return Prototypes(prototypes.means, own * covariances + (1.0 - own) * pooled + smallest, counts)


def nearest_covariances(covariances: Floats) -> Floats:
    """Return noisy covariances in which negative variances, in any direction, are replaced by 0."""
    if covariances.ndim == 2:
        return np.maximum(covariances, 0.0)
    values, vectors = np.linalg.eigh(covariances)
    repaired: Floats = (vectors * np.maximum(values, 0.0)[:, None, :]) @ vectors.transpose(0, 2, 1)
    return 0.5 * (repaired + repaired.transpose(0, 2, 1))


#: The largest rounding error of a difference, as a fraction of the sum of the magnitudes from which it is computed.
DUST = 1e-13


def kullback_leibler(prototypes: Prototypes) -> Floats:
    """Return the divergence KL(N_a || N_b) for each pair of prototypes a and b: SPP-FGC, equation (10)."""
    means, covariances = prototypes.means, prototypes.covariances
    n_prototypes, n_columns = means.shape
    if prototypes.is_diagonal:
        inverses = 1.0 / covariances
        log_determinants = np.log(covariances).sum(axis=1)
        traces = covariances @ inverses.T
        centered = means - means.mean(axis=0)
        from_mean = centered**2 @ inverses.T
        from_mean += np.einsum("bi,bi->b", centered**2, inverses)
        squares = from_mean - 2.0 * centered @ (centered * inverses).T
    else:
        inverses = np.asarray(np.linalg.inv(covariances), dtype=np.float64)
        log_determinants = np.asarray(np.linalg.slogdet(covariances)[1], dtype=np.float64)
        traces = covariances.reshape(n_prototypes, -1) @ inverses.reshape(n_prototypes, -1).T
        squares = np.empty((n_prototypes, n_prototypes))
        from_mean = squares  # here no large numbers cancel, because differences are squared
        for b, inverse in enumerate(inverses):
            differences = means - means[b]
            squares[:, b] = np.einsum("ai,ai->a", differences @ inverse, differences)
    determinants = log_determinants - log_determinants[:, None]
    divergences = 0.5 * (traces + squares - n_columns + determinants)
    # Between equal prototypes, only rounding errors are left, which depend on the processor.
    divergences[divergences <= DUST * (traces + from_mean + n_columns + np.abs(determinants))] = 0.0
    np.fill_diagonal(divergences, 0.0)
    return np.asarray(divergences)


def mean_distances(prototypes: Prototypes) -> Floats:
    """Return the squared distances between the prototypes' means, of shape (n_prototypes, n_prototypes): symmetric.

    Up to a factor, the distances are the divergences of Gaussians with one common spherical covariance. They are for
    prototypes of few rows, whose own covariances would make outliers far from everything.
    """
    centered = prototypes.means - prototypes.means.mean(axis=0)
    squares = np.einsum("ai,ai->a", centered, centered)
    together = squares[:, None] + squares
    distances = together - 2.0 * centered @ centered.T
    # Between equal means, only rounding errors are left, which depend on the processor.
    distances[distances <= DUST * together] = 0.0
    np.fill_diagonal(distances, 0.0)
    symmetric: Floats = 0.5 * (distances + distances.T)
    return symmetric


def log_densities(rows: Floats, prototypes: Prototypes) -> Floats:
    """Return the logarithm of each prototype's density times its count, at each row: (n_rows, n_prototypes)."""
    from scipy.stats import Covariance, multivariate_normal

    found = np.empty((len(rows), len(prototypes)))
    for index, (mean, covariance) in enumerate(
        zip(prototypes.means, prototypes.covariances, strict=True)
    ):
        if prototypes.is_diagonal:
            shape = Covariance.from_diagonal(covariance)
        else:
            shape = Covariance.from_cholesky(np.linalg.cholesky(covariance))
        found[:, index] = np.log(prototypes.counts[index]) + multivariate_normal.logpdf(
            rows, mean, shape
        )
    return found
