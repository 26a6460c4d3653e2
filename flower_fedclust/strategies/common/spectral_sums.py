"""Spectral clustering from sums over the clients alone: no row, no label, and nothing else about one row is sent."""

from __future__ import annotations

import warnings
from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import ClippedStrategy, Sum, Total, parameter
from flower_fedclust.engine.by_row import by_row, view
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Question, Round
from flower_fedclust.exact.grid import array_onto_grid, from_units
from flower_fedclust.exact.kernels import factor_sum, normalized_moment
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.spectral_sums import STEEPEST_FACTOR, embedded_rows
from flower_fedclust.exact.sums import triangle_to_symmetric
from flower_fedclust.exact.terms import Term
from flower_fedclust.models import SpectralModel
from flower_fedclust.numerics.checks import warn_of_empty_clusters
from flower_fedclust.numerics.initialization import weighted_kmeans
from flower_fedclust.numerics.kmeans import nearest_center
from flower_fedclust.numerics.spectral import (
    DEGREE_FLOOR,
    degree_floor,
    spectral_coordinates,
    spectral_projection,
)
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.releases import SUMS_OVER_ROWS
from flower_fedclust.strategies.common.clusters import ClusterClient, ClusterStatistic, lloyd_parts
from flower_fedclust.strategies.common.spectral import Dictionary, leave_within_range

Floats = NDArray[np.float64]

#: The default ``degree_floor`` with noise. The lower the floor, the more one row can change the sum F' D^-1 F.
NOISY_DEGREE_FLOOR = 0.5

#: A sum of factors, or a projection, of at most this norm counts as 0.
LEAST_TOTAL = 1e-100

#: The number of Lloyd steps, without noise and with noise.
LLOYD_ROUNDS, NOISY_LLOYD_ROUNDS = 20, 1


class SpectralSumsStrategy(ClippedStrategy):
    """Base of strategies that cluster the rows of all clients by the dense graph ``F F'``, from sums alone.

    Each row of F has a row's factors: a vector for each row, so that the inner product of two rows'
    factors approximates their similarity. The degrees of the graph are ``D = F (F' 1)``. Its
    normalized eigenvectors follow from ``F' D^-1 F``, which has a row and a column for each atom.
    Both ``F' 1`` and this matrix are sums over rows. Each client embeds its own rows with the
    eigenvectors, and the k-means at the end is Lloyd's algorithm on sums.

    Parameters
    ----------
    n_lloyd_rounds : int, optional
        The most Lloyd steps of the k-means at the end; by default 20, and 1 with epsilon.
    degree_floor : float in (0, 1], optional
        Smaller degrees are raised to this fraction of the mean degree, which bounds how much one
        row can change ``F' D^-1 F``; by default 0.001, and 0.5 with epsilon.
    """

    promises = SUMS_OVER_ROWS

    n_lloyd_rounds: int | None = parameter(None, at_least=0)
    degree_floor: float | None = parameter(None, above=0, at_most=1)

    def cluster_by_sums(
        self, dictionary: Dictionary, frame: Frame
    ) -> Generator[Round, Total, SpectralModel]:
        """Cluster the rows by their factors, in at most ``n_clustering_rounds`` rounds.

        The ball of the frame must contain all atoms of the dictionary: an atom outside would be
        moved into it.
        """
        Z, bandwidth = dictionary.within(frame), dictionary.bandwidth
        to_factors = dictionary.factor_map(Z, STEEPEST_FACTOR)
        # Degrees D = F (F' 1), and the top eigenvectors of D^-1/2 F F' D^-1/2 from F' D^-1 F.
        question = SpectralSumsClient.factor_sum.asked(
            Z, to_factors, frame=frame, bandwidth=bandwidth
        )
        (total,) = yield Sum(question, parts=["factor_sum"])
        on_grid, exponent = array_onto_grid(total, max(float(np.linalg.norm(total)), LEAST_TOTAL))
        total = from_units(on_grid, exponent)
        lowest = degree_floor(total, dictionary.n_rows, floor=self._degree_floor)
        question = SpectralSumsClient.normalized_moment.asked(
            Z, to_factors, total, frame=frame, bandwidth=bandwidth, exponent=exponent, floor=lowest
        )
        (moment,) = received = yield Sum(question, parts=["normalized_moment"])
        of_factors = spectral_projection(
            triangle_to_symmetric(moment), self.n_clusters, received.noise[0]
        )
        projection = to_factors @ of_factors

        # k-means of the embedded rows, which stay at the clients and lie on the unit sphere. Sums over the rows nearest
        # to each embedded atom give means; a k-means of these means, with restarts, gives the first centers.
        longest = max(float(np.linalg.norm(of_factors, 2)), LEAST_TOTAL)
        embedded = SpectralSumsClient.embedded.asked(
            Z, projection, frame=frame, bandwidth=bandwidth, bound=longest
        )
        atoms = spectral_coordinates(Z, Z, projection, bandwidth)
        means, counts, smallest = yield from self._lloyd_step(
            ("cell_sums", "cell_counts"), atoms, embedded
        )
        counts = np.where(counts > smallest, counts, 0.0)
        if np.count_nonzero(counts) < self.n_clusters:
            counts = np.ones(len(atoms))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # k-means warns if means coincide
            centers = weighted_kmeans(means, counts, self.n_clusters, self.rng)
        cells = np.bincount(nearest_center(means, centers), counts, minlength=self.n_clusters)
        sizes = np.asarray(cells, dtype=np.float64)

        for _ in range(self._n_lloyd_rounds):
            former = centers
            centers, sizes, smallest = yield from self._lloyd_step(
                ("lloyd_sums", "lloyd_counts"), centers, embedded
            )
            if np.array_equal(former, centers):
                break
        warn_of_empty_clusters(self.name, sizes > smallest)
        return SpectralModel(leave_within_range(frame, Z), bandwidth, projection, centers)

    def _lloyd_step(
        self, parts: tuple[str, str], centers: Floats, embedded: Question
    ) -> Generator[Round, Total, tuple[Floats, Floats, float]]:
        """Return new centers, the number of rows in each cluster, and the standard deviation of its noise."""
        statistic = ClusterStatistic(parts, shrink=True)
        reply = yield statistic.asked(centers, None, view=embedded)
        return clip_rows(statistic.next_centers(reply, centers), 1.0), reply[1], reply.noise[1]

    @property
    def n_clustering_rounds(self) -> int:
        """The number of rounds: two sums of factors, a sum over the rows nearest to each atom, and the Lloyd steps."""
        return 3 + self._n_lloyd_rounds

    def clustering_parts(
        self, factor_sum: float, normalized_moment: float, kmeans: float
    ) -> dict[str, Part]:
        """Return the parts of a budget that pay for :meth:`cluster_by_sums`, with these fractions.

        ``kmeans`` is for all sums and counts of k-means together.
        """
        return {
            "factor_sum": Part(SpectralSumsClient.factor_sum, factor_sum),
            "normalized_moment": Part(SpectralSumsClient.normalized_moment, normalized_moment),
            **lloyd_parts("cell_", kmeans / 4, kmeans / 4, 1, "record"),
            **lloyd_parts("lloyd_", kmeans / 4, kmeans / 4, self._n_lloyd_rounds, "record"),
        }

    @property
    def _n_lloyd_rounds(self) -> int:
        """The most Lloyd steps of the k-means at the end."""
        if self.n_lloyd_rounds is not None:
            return self.n_lloyd_rounds
        return LLOYD_ROUNDS if self.epsilon is None else NOISY_LLOYD_ROUNDS

    @property
    def _degree_floor(self) -> float:
        """The fraction of the mean degree to which smaller degrees are raised."""
        if self.degree_floor is not None:
            return self.degree_floor
        return DEGREE_FLOOR if self.epsilon is None else NOISY_DEGREE_FLOOR


class SpectralSumsClient(ClusterClient):
    """The answers of a client whose rows are clustered by their factors."""

    @by_row(factor_sum="sum of the rows' factors")
    def factor_sum(rows: Rows, Z: Floats, to_factors: Floats, *, bandwidth: float) -> Term:
        """Return F_p' 1, the sum of the factors of the client's rows, of shape (n_atoms,)."""
        return factor_sum(rows, Z, bandwidth, to_factors)

    @by_row(
        normalized_moment="sum of the outer products of the factors, over the degrees (upper triangle)"
    )
    def normalized_moment(
        rows: Rows,
        Z: Floats,
        to_factors: Floats,
        total: Floats,
        *,
        bandwidth: float,
        exponent: int,
        floor: float,
    ) -> Term:
        """Return F_p' D_p^-1 F_p, where D_p has the degrees of the client's rows in the graph of all clients' rows."""
        return normalized_moment(rows, Z, bandwidth, to_factors, total, exponent, floor)

    @view
    def embedded(
        rows: Rows, Z: Floats, projection: Floats, *, bandwidth: float, bound: float
    ) -> Rows:
        """Return the rows' spectral coordinates, on the unit sphere."""
        return Rows(
            *embedded_rows(
                rows.integers, rows.points(Z), rows.exponent, bandwidth, projection, bound
            ),
            1.0,
        )
