"""Spectral clustering of rows known by factors, from sums over the clients alone: no code, label or row leaves one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.models import SpectralModel
from flower_fedclust.numerics.checks import warn_of_empty_clusters
from flower_fedclust.numerics.dictionary import factor_map
from flower_fedclust.numerics.exact import triangle_to_symmetric, upper_triangle
from flower_fedclust.numerics.exact_spectral import STEEPEST_FACTOR, embedded_rows, factor_sum, normalized_moment
from flower_fedclust.numerics.grid import GridArray, array_onto_grid, from_units
from flower_fedclust.numerics.initialisation import weighted_kmeans
from flower_fedclust.numerics.kmeans import nearest_center
from flower_fedclust.numerics.spectral import (
    DEGREE_FLOOR,
    degree_floor,
    spectral_coordinates,
    spectral_projection,
)
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.accounting import Share
from flower_fedclust.protocol import ClippedStrategy, Sent, Sum, answers, parameter
from flower_fedclust.protocol.rounds import Array, Moved, Round
from flower_fedclust.steps.clusters import ClusterClient
from flower_fedclust.steps.frame import Frame
from flower_fedclust.steps.private_clusters import cluster_statistic
from flower_fedclust.steps.spectral import Dictionary, leave_within_range

Floats = NDArray[np.float64]

#: The name under which a client keeps its embedded rows.
EMBEDDING = "embedding"

#: Where noise is added. The lower the floor of the degrees, the farther one row can move F' D^-1 F.
NOISY_DEGREE_FLOOR = 0.5

#: A sum of factors, or a projection, that is no longer than this is 0.
LEAST_TOTAL = 1e-100

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

    def cluster_by_sums(self, dictionary: Dictionary, frame: Frame) -> Generator[Round, list[Array], SpectralModel]:
        """Cluster the rows by the factors that a dictionary gives them, in at most ``n_clustering_rounds`` rounds.

        Parameters
        ----------
        dictionary : Dictionary
        frame : Frame
            In which the clients measure their rows, with room for the atoms: its ball draws in those outside.
        """
        Z, bandwidth = dictionary.within(frame), dictionary.bandwidth
        to_factors = factor_map(Z, **dictionary.kernel, steepest=STEEPEST_FACTOR)
        # Degrees D = F (F' 1), and the top eigenvectors of D^-1/2 F F' D^-1/2 from F' D^-1 F.
        release = self.release("factor_sum", 1.0, "factors are no longer than 1")
        question = SpectralSumsClient.factor_sum.asked(Z, to_factors, *frame.arrays, bandwidth=bandwidth)
        (total,) = yield Sum(question, releases=[release])
        on_grid, exponent = array_onto_grid(total, max(float(np.linalg.norm(total)), LEAST_TOTAL))
        total = from_units(on_grid, exponent)
        lowest = degree_floor(total, dictionary.n_rows, floor=self._degree_floor)
        bound = 1.0 / math.sqrt(lowest)
        reason = "factors are no longer than 1, and no degree is below the inverse of this"
        release = self.release("normalized_moment", bound**2, reason, triangle=True)
        question = SpectralSumsClient.normalized_moment.asked(
            Z, to_factors, total, *frame.arrays, bandwidth=bandwidth, exponent=exponent, floor=lowest, bound=bound
        )
        (moment,) = yield Sum(question, releases=[release])
        of_factors = spectral_projection(triangle_to_symmetric(moment), self.n_clusters)
        projection = to_factors @ of_factors

        # k-means of the embedded rows, which stay with the clients. They lie on the unit sphere. The rows nearest to
        # each atom are summed up; a k-means of their means, with restarts, says where to start.
        longest = max(float(np.linalg.norm(of_factors, 2)), LEAST_TOTAL)
        yield Sum(SpectralSumsClient.embed_rows.asked(Z, projection, *frame.arrays, bandwidth=bandwidth, bound=longest))
        atoms = spectral_coordinates(Z, Z, projection, bandwidth)
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
        return SpectralModel(leave_within_range(frame, Z), bandwidth, projection, centers)

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

    @answers(
        "sum of the rows' factors",
        moved=lambda _, Z, to_factors, *frame, bandwidth: (Moved(1.0),),
    )
    def factor_sum(self, Z: Floats, to_factors: Floats, *frame: Floats, bandwidth: float) -> GridArray:
        """Return F_p' 1, of shape (n_atoms,)."""
        rows = self.enter(*frame)
        return GridArray(*factor_sum(rows.integers, rows.points(Z), rows.exponent, bandwidth, to_factors))

    @answers(
        "sum of the outer products of the factors, over the degrees (upper triangle)",
        moved=lambda _, Z, to_factors, total, *frame, bandwidth, exponent, floor, bound: (
            Moved(bound**2, triangle=True),
        ),
    )
    def normalized_moment(
        self,
        Z: Floats,
        to_factors: Floats,
        total: Floats,
        *frame: Floats,
        bandwidth: float,
        exponent: int,
        floor: float,
        bound: float,
    ) -> GridArray:
        """Return the upper triangle of F_p' D_p^-1 F_p, where D_p has the degrees ``F_p (F' 1)``, or the floor."""
        rows = self.enter(*frame)
        kernel = (rows.integers, rows.points(Z), rows.exponent, bandwidth)
        moment, unit = normalized_moment(*kernel, to_factors, total, exponent, floor, bound)
        return GridArray(upper_triangle(moment), unit)

    @answers(Sent("the embedded rows", "codes", per="row", kept_as=EMBEDDING, of_one_row=True))
    def embed_rows(self, Z: Floats, projection: Floats, *frame: Floats, bandwidth: float, bound: float) -> GridArray:
        """Return the rows in the embedding, to be kept."""
        rows = self.enter(*frame)
        return GridArray(*embedded_rows(rows.integers, rows.points(Z), rows.exponent, bandwidth, projection, bound))
