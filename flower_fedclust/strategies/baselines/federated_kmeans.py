"""Lloyd's algorithm on rows that stay where they are, without noise and with it.

docs/shape.md shows how a ``yield`` here becomes a round of Flower.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flower_fedclust.engine import ClippedStrategy, Entry, Protocol, parameter
from flower_fedclust.engine.parts import Part
from flower_fedclust.exact.rows import Frame
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.checks import checked_rows
from flower_fedclust.privacy.releases import SUMS_OVER_ROWS
from flower_fedclust.strategies.common.clusters import (
    ClusterClient,
    ClusterStatistic,
    lloyd_step,
    lloyd_steps,
)
from flower_fedclust.strategies.common.first_centers import FirstCentersStrategy, frame_with_centers
from flower_fedclust.strategies.common.frame import FRAME_ROUNDS, frame_of_rows
from flower_fedclust.strategies.common.many_starts import (
    START_ROUNDS,
    StartsClient,
    best_start,
    cells_of_rows,
)


class FederatedKMeansClient(ClusterClient, StartsClient):
    """The client half of :class:`FederatedKMeans`: sums over clusters, and over small cells to find first centers."""


class FederatedKMeans(FirstCentersStrategy):
    """k-means on rows that stay where they are: many starts, then Lloyd's algorithm from the best.

    The centers are the same to the last bit however the rows are distributed over the clients, and
    equal the centers of Lloyd's algorithm on the pooled rows from the same start, to within 2^-24
    of the farthest row's distance from the mean: three rounds of sums find a grid on which every
    client's rows are integers. Nothing hides the sums, and some of them are over few rows or a
    single one; :class:`PrivateKMeans` adds noise.

    Parameters
    ----------
    init : array-like of shape (n_clusters, n_columns), optional
        The first centers. By default 16 rounds of sums find them: up to 60 starts take Lloyd steps
        in the same rounds, and the best is kept.
    n_rounds : int, default=20
        The most further Lloyd steps; fewer if the centers stop moving.
    tol : float, default=1e-6
        The run stops when no center has moved by more than this, in the units of the rows.

    References
    ----------
    Lloyd, "Least squares quantization in PCM", 1982.
    """

    entries = (
        Entry(
            "federated-kmeans",
            "k-means on rows that stay where they are, from the best of many starts, without noise",
            "Lloyd 1982, on sums",
            finds="round",
        ),
    )
    client_type = FederatedKMeansClient

    n_rounds: int = parameter(20, at_least=0)
    tol: float = parameter(1e-6, at_least=0)

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds: for the ball that holds the rows, the first centers, and the Lloyd steps."""
        return FRAME_ROUNDS + (START_ROUNDS if self.init is None else 0) + self.n_rounds

    def protocol(self) -> Protocol:
        """Run Lloyd's algorithm on sums over the clients.

        Find a ball that holds the rows (the frame) and first centers; then move each center to the
        mean of its rows until no center moves.
        """
        frame, n_rows = yield from frame_of_rows()
        if self.init is None:
            cells = yield from cells_of_rows(frame, n_rows, self.n_clusters, self.rng)
            start = frame.leave((yield from best_start(cells, self.n_clusters, frame, self.rng)))
        else:
            start = checked_rows(self.init, owner="init")
        # A center farther than four times the farthest row has no rows if another center lies within that distance.
        frame, first = frame_with_centers(frame, start, times_the_reach=4.0)
        centers = yield from lloyd_steps(first, frame, self.n_rounds, self.tol)
        has_moved = (centers != first).any(axis=1, keepdims=True)
        return KMeansModel(np.where(has_moved, frame.leave(centers), start))


class PrivateFederatedKMeans(ClippedStrategy, FirstCentersStrategy):
    """Lloyd's algorithm on noisy sums, from points that are drawn without looking at the rows.

    This is a poor start if the rows fill a small part of the ball of radius ``max_norm``.
    :class:`PrivateKMeans` finds a better one; if the server has public rows, :class:`FedDPKMeans`
    does.

    Parameters
    ----------
    init : array-like of shape (n_clusters, n_columns), optional
        The first centers, which count as public. By default they are drawn uniformly from the ball
        of radius ``max_norm``.
    n_rounds : int, default=20
        Lloyd steps; all of them are taken.
    epsilon : float, default=1.0
        The privacy budget of the whole run.

    References
    ----------
    Lloyd, "Least squares quantization in PCM", 1982.
    """

    promises = SUMS_OVER_ROWS

    entries = (
        Entry(
            "federated-kmeans-private",
            "Lloyd's algorithm on sums with noise, from random points",
            "Lloyd 1982, on sums with noise",
            example={"max_norm": 1.0},
        ),
    )
    client_type = ClusterClient

    epsilon: float = parameter(1.0, above=0, at_most=1000)
    n_rounds: int = parameter(20, at_least=1)

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds: one for each Lloyd step."""
        return self.n_rounds

    def parts(self) -> Mapping[str, Part]:
        """Return the parts of the budget: three quarters for the sums, a quarter for the counts."""
        return {
            "sums": Part(ClusterClient.cluster_sums, 0.75, self.n_rounds),
            "counts": Part(ClusterClient.cluster_sums, 0.25, self.n_rounds),
        }

    def protocol(self) -> Protocol:
        """Move each center to the noisy mean of its rows, n_rounds times."""
        assert self.max_norm is not None
        centers = yield from self._start.find(self.n_clusters, self.n_columns, self.rng)
        ball = Frame(np.zeros(centers.shape[1]), self.max_norm)
        for _ in range(self.n_rounds):
            centers = yield from lloyd_step(centers, ball, ClusterStatistic(("sums", "counts")))
        return KMeansModel(centers)
