"""Spectral clustering of rows known by factors, from sums over the clients alone: no code, label or row leaves one."""

from __future__ import annotations

import warnings
from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.models import SpectralModel
from flower_fedclust.numerics.checks import warn_of_empty_clusters
from flower_fedclust.numerics.dictionary import factor_map, factors
from flower_fedclust.numerics.initialisation import weighted_kmeans
from flower_fedclust.numerics.kmeans import nearest_center
from flower_fedclust.numerics.spectral import (
    DEGREE_FLOOR,
    degree_floor,
    normalized_moment,
    spectral_coordinates,
    spectral_projection,
)
from flower_fedclust.numerics.vectors import clip_rows, symmetric_to_vector, vector_to_symmetric
from flower_fedclust.privacy.accounting import Share
from flower_fedclust.protocol import ClippedStrategy, Sent, Sum, answers, parameter
from flower_fedclust.protocol.rounds import Array, Round
from flower_fedclust.steps.clusters import ClusterClient
from flower_fedclust.steps.frame import Frame
from flower_fedclust.steps.private_clusters import cluster_statistic
from flower_fedclust.steps.spectral import Dictionary

Floats = NDArray[np.float64]

#: The name under which a client keeps its embedded rows.
EMBEDDING = "embedding"

#: Where noise is added. The lower the floor of the degrees, the farther one row can move F' D^-1 F.
NOISY_DEGREE_FLOOR = 0.5

#: Lloyd steps without noise, and with.
LLOYD_ROUNDS, NOISY_LLOYD_ROUNDS = 20, 1


class SpectralSumsStrategy(ClippedStrategy):
    """Base of strategies that cluster the rows of all clients by the dense graph of ``F F'``, from sums alone.

    F are the rows' factors. The degrees of the graph are ``F (F' 1)``, and its normalised eigenvectors follow from
    ``F' D^-1 F``, which is as wide as there are atoms. Both are sums over rows. Each client embeds its own rows with
    these eigenvectors, and the k-means at the end is Lloyd's algorithm on sums.

    Parameters
    ----------
    n_lloyd_rounds : int, optional
        Lloyd steps of the last k-means at most; by default 20, and 1 with epsilon.
    degree_floor : float in (0, 1], optional
        The degree that a row is given at least, as a part of the mean degree; by default 0.001, and 0.5 with epsilon:
        it bounds what one row can do to ``F' D^-1 F``.
    """

    n_lloyd_rounds: int | None = parameter(None, at_least=0)
    degree_floor: float | None = parameter(None, above=0, at_most=1)

    def cluster_by_sums(self, dictionary: Dictionary) -> Generator[Round, list[Array], SpectralModel]:
        """Cluster the rows by the factors that a dictionary gives them, in at most ``n_clustering_rounds`` rounds."""
        Z, kernel = dictionary.atoms, dictionary.kernel
        # Degrees D = F (F' 1), and the top eigenvectors of D^-1/2 F F' D^-1/2 from F' D^-1 F.
        release = self.release("factor_sum", 1.0, "factors are no longer than 1")
        (total,) = yield Sum(SpectralSumsClient.factor_sum.asked(Z, **kernel), releases=[release])
        lowest = degree_floor(total, dictionary.n_rows, floor=self._degree_floor)
        bound = "factors are no longer than 1, and no degree is below the inverse of this"
        release = self.release("normalized_moment", 1.0 / lowest, bound)
        question = SpectralSumsClient.normalized_moment.asked(Z, total, **kernel, floor=lowest)
        (moment,) = yield Sum(question, releases=[release])
        projection = spectral_projection(vector_to_symmetric(moment), self.n_clusters)
        projection = factor_map(Z, **kernel) @ projection

        # k-means of the embedded rows, which stay with the clients. They lie on the unit sphere. The rows nearest to
        # each atom are summed up; a k-means of their means, with restarts, says where to start.
        yield Sum(SpectralSumsClient.embed_rows.asked(Z, projection, bandwidth=dictionary.bandwidth))
        atoms = spectral_coordinates(Z, Z, projection, dictionary.bandwidth)
        means, counts, smallest = yield from self._lloyd_step(("cell_sums", "cell_counts"), atoms)
        counts = np.where(counts > smallest, counts, 0.0)
        if np.count_nonzero(counts) < self.n_clusters:
            counts = np.ones(len(atoms))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # means that coincide
            centers = weighted_kmeans(means, counts, self.n_clusters, self.rng)
        cells = np.bincount(nearest_center(means, centers), counts, minlength=self.n_clusters)
        sizes = np.asarray(cells, dtype=np.float64)

        for _ in range(self._n_lloyd_rounds):
            former = centers
            centers, sizes, smallest = yield from self._lloyd_step(("lloyd_sums", "lloyd_counts"), centers)
            if np.array_equal(former, centers):
                break
        warn_of_empty_clusters(self.name, sizes > smallest)
        return SpectralModel(Z, dictionary.bandwidth, projection, centers)

    def _lloyd_step(
        self, shares: tuple[str, str], centers: Floats
    ) -> Generator[Round, list[Array], tuple[Floats, Floats, float]]:
        """Return new centers, the rows in each cluster, and the standard deviation of the noise on their number."""
        statistic = cluster_statistic(self, shares, 1.0, self.n_clusters)
        reply = yield statistic.asked(centers, Frame(np.zeros(centers.shape[1]), 1.0), rows=EMBEDDING)
        release = self.release(shares[1], 1.0, "a row is in one cluster")
        return clip_rows(statistic.next_centers(reply, centers), 1.0), reply[1], self.noise_of_sum(release)

    @property
    def n_clustering_rounds(self) -> int:
        """Two sums of the factors, the embedding, the cells, and the Lloyd steps."""
        return 4 + self._n_lloyd_rounds

    def clustering_shares(self, factor_sum: float, normalized_moment: float, kmeans: float) -> dict[str, Share]:
        """Return the shares of a budget that pay for :meth:`cluster_by_sums`.

        Parameters
        ----------
        factor_sum, normalized_moment, kmeans : float
            The fractions for ``F' 1``, for ``F' D^-1 F``, and for all sums and counts of k-means together.
        """
        shares = {
            "factor_sum": Share("gaussian", factor_sum),
            "normalized_moment": Share("gaussian", normalized_moment),
            "cell_sums": Share("gaussian", kmeans / 4),
            "cell_counts": Share("laplace", kmeans / 4),
        }
        if self._n_lloyd_rounds > 0:
            shares["lloyd_sums"] = Share("gaussian", kmeans / 4, self._n_lloyd_rounds)
            shares["lloyd_counts"] = Share("laplace", kmeans / 4, self._n_lloyd_rounds)
        return shares

    @property
    def _n_lloyd_rounds(self) -> int:
        if self.n_lloyd_rounds is not None:
            return self.n_lloyd_rounds
        return LLOYD_ROUNDS if self.epsilon is None else NOISY_LLOYD_ROUNDS

    @property
    def _degree_floor(self) -> float:
        if self.degree_floor is not None:
            return self.degree_floor
        return DEGREE_FLOOR if self.epsilon is None else NOISY_DEGREE_FLOOR


class SpectralSumsClient(ClusterClient):
    """The answers of a client whose rows are clustered by their factors. What has an entry for a row, it keeps."""

    @answers("sum of the rows' factors")
    def factor_sum(self, Z: Floats, *, bandwidth: float, regularization: float) -> Floats:
        """Return F_p' 1, of shape (n_atoms,)."""
        return np.asarray(factors(self.rows, Z, bandwidth, regularization).sum(axis=0))

    @answers("sum of the outer products of the factors, over the degrees (upper triangle)")
    def normalized_moment(
        self, Z: Floats, total: Floats, *, bandwidth: float, regularization: float, floor: float
    ) -> Floats:
        """Return F_p' D_p^-1 F_p as a vector, where D_p has the degrees ``F_p (F' 1)``, or the floor."""
        F = factors(self.rows, Z, bandwidth, regularization)
        return symmetric_to_vector(normalized_moment(F, np.maximum(F @ total, floor)))

    @answers(Sent("the embedded rows", "codes", per="row", kept_as=EMBEDDING))
    def embed_rows(self, Z: Floats, projection: Floats, *, bandwidth: float) -> Floats:
        """Return the rows in the embedding, to be kept."""
        return spectral_coordinates(self.rows, Z, projection, bandwidth)
