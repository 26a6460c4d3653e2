"""FedDP-KMeans: private k-means that starts well, because the server has a few public rows.

J. Scott, C. H. Lampert and D. Saulpic, "Differentially private federated k-means with server-side data", ICML 2025,
PMLR 267:53757-53790. The steps below bear the paper's numbers; P are the clients' rows, Q the server's, Pi spans the
data subspace, xi are the projected centers and nu the centers. Rows are samples here as they are in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.exact import (
    directions_onto_grid,
    second_moment,
    triangle_to_symmetric,
    upper_triangle,
    within_margin,
)
from flower_fedclust.numerics.grid import GridArray, from_units
from flower_fedclust.numerics.initialisation import weighted_kmeans
from flower_fedclust.numerics.vectors import clip_rows, top_eigenvectors
from flower_fedclust.privacy.accounting import Share
from flower_fedclust.privacy.releases import PrivacyUnit, Release
from flower_fedclust.protocol import Entry, Protocol, Sent, Sum, answers, parameter
from flower_fedclust.protocol.rounds import ONE_COUNT, Array, Round, within
from flower_fedclust.steps.clusters import (
    ClusterClient,
    ClusterStatistic,
    lloyd_step,
    offsets_and_presence,
    presence_moved,
)
from flower_fedclust.steps.frame import Frame, RowsInFrame, ball_moved, products_moved
from flower_fedclust.steps.private_clusters import ClientBounds, cluster_statistic, counting
from flower_fedclust.steps.server_data import ServerDataStrategy
from flower_fedclust.strategies.feddp_kmeans.diameter import (
    DiameterClient,
    clipped_counts,
    counts_moved,
    reduce_diameter,
)

Floats = NDArray[np.float64]

#: Appendix G.4: the parts of epsilon for steps 1 and 2, and for the sums and the counts of step 3.
BUDGET: dict[PrivacyUnit, tuple[float, float, float, float]] = {
    "record": (0.2, 0.2, 0.45, 0.15),
    "client": (0.35, 0.1, 0.45, 0.1),
}


class FedDPKMeans(ServerDataStrategy):
    """Private k-means: FedDP-Init (Algorithm 1), then FedDP-Lloyds (Algorithm 2).

    Everything that the server needs is a sum over the clients: a second moment, one weight a server row, and the sums
    and counts of the clusters. Each is released with noise, calibrated so that the whole run is
    (epsilon, delta)-private.

    Parameters
    ----------
    n_rounds : int, default=0
        T, Lloyd steps after the initialisation; the paper finds 0 or 1 best.
    bounds : ClientBounds, optional
        At client level: the bounds to which clients clip, in place of those that follow from rows_per_client.
    margin : float in (0, 1], default=1
        In step 3 a row counts only if it is within ``margin`` times its distance to every other projected center: 1/3
        in Algorithm 5, part 2.
    simplify_server_data : bool, default=False
        Whether server rows of little weight are thinned out first (SimplifyServerData, Algorithm 4).
    reduce_diameter : bool, default=False
        Whether far regions are moved together first (Lemma 16).
    smallest_cluster : float, optional
        w_min, the part of the rows in the smallest cluster, for the two options above; 1 / (2 n_clusters) by default.
    spread : float, optional
        sigma_max, the standard deviation of the widest cluster, for ``reduce_diameter``; by default that of the server
        rows within their own clusters.

    Notes
    -----
    By default the budget is divided as in appendix G.4; each Lloyd step takes as much as step 3 divided by T, and each
    option its part too.

    References
    ----------
    "Differentially private federated k-means with server-side data", Algorithms 1, 2, 4, 5, Lemma 16, appendix G.
    """

    entries = (
        Entry(
            "feddp-kmeans",
            "private k-means that starts from a few public rows of the server",
            "Scott, Lampert and Saulpic 2025, Algorithms 1 and 2",
            finds="round",
        ),
    )

    n_rounds: int = parameter(0, at_least=0)
    bounds: ClientBounds | None = parameter(None)
    margin: float = parameter(1.0, above=0, at_most=1)
    simplify_server_data: bool = parameter(False)
    reduce_diameter: bool = parameter(False)
    smallest_cluster: float | None = parameter(None, above=0)
    spread: float | None = parameter(None, above=0)

    # The server half.

    def protocol(self) -> Protocol:
        """Run FedDP-Init, then FedDP-Lloyds."""
        server_data = self._server_rows()
        frame = Frame.around(server_data, centered=self.center_rows)
        if self.reduce_diameter:  # Lemma 16
            Q = frame.enter(server_data)
            regions, bound = self._weights_release("regions", Q)
            frame = yield from reduce_diameter(frame, Q, regions, bound, self._w_min, self.spread, self.n_clusters)
        Q = frame.enter(server_data)

        # Algorithm 1, step 1: the projection onto the top k singular vectors of P.
        Pi = yield from self._step_1(frame, Q)
        # Step 2: how many rows each server row stands for, in the data subspace; and the centers there.
        projected_Q = Q @ Pi
        if self.simplify_server_data:  # Algorithm 4
            projected_Q = yield from self._simplify(frame, Q, Pi, projected_Q)
        xi = yield from self._step_2(frame, Q, Pi, projected_Q)
        # Step 3: the centers in the original space.
        nu = yield from self._step_3(frame, Q, Pi, xi)
        # Algorithm 2.
        if self.n_rounds > 0:
            statistic = self._statistic(("lloyd_sums", "lloyd_counts"), frame, Q)
            for _ in range(self.n_rounds):
                nu = yield from lloyd_step(nu, frame, statistic)
        return KMeansModel(frame.leave(nu))

    def _step_1(self, frame: Frame, Q: Floats) -> Generator[Round, list[Array], Floats]:
        """Return Pi, of shape (n_columns, min(n_clusters, n_columns))."""
        if not self._projects:
            return np.eye(self.expected_columns)
        bound = math.inf
        if self.privacy_unit == "record":
            clipped = "the client clips every row to the radius, whose square this is"
            release = self.release("second_moment", frame.radius**2, clipped, triangle=True)
        else:
            bound = self._bounds(Q).second_moment
            clipped = "the client clips the matrix to this Frobenius norm"
            release = self.release("second_moment", bound, clipped, triangle=True)
        (outer_products,) = yield Sum(
            FedDPKMeansClient.second_moment.asked(*frame.arrays, bound=bound), releases=[release]
        )
        return directions_onto_grid(top_eigenvectors(triangle_to_symmetric(outer_products), self.n_clusters))

    def _step_2(
        self, frame: Frame, Q: Floats, Pi: Floats, projected_Q: Floats
    ) -> Generator[Round, list[Array], Floats]:
        """Return xi, of shape (n_clusters, n_dimensions of the subspace)."""
        release, bound = self._weights_release("weights", Q)
        weights = yield from self._noisy_weights(frame, Pi, projected_Q, release, bound)
        # A weight below one standard deviation of the noise is more likely noise than rows, and could draw a center
        # to where there is none; the paper does not say what to do with negative weights.
        weights = np.where(weights > self.noise_of_sum(release), weights, 0.0)
        if np.count_nonzero(weights) < self.n_clusters:
            # Too little weight is left to place the centers; the server rows alone still can.
            weights = np.ones(len(projected_Q))
        return weighted_kmeans(projected_Q, weights, self.n_clusters, self.rng)

    def _step_3(self, frame: Frame, Q: Floats, Pi: Floats, xi: Floats) -> Generator[Round, list[Array], Floats]:
        """Return nu, of shape (n_clusters, n_columns).

        Pi has orthonormal columns, so that a row is nearest to Pi xi_r in the original space where it is nearest to
        xi_r in the subspace: without a margin, step 3 is a Lloyd step from the lifted centers.
        """
        lifted = xi @ Pi.T
        statistic = self._statistic(("sums", "counts"), frame, Q)
        if self.margin == 1.0:
            return (yield from lloyd_step(lifted, frame, statistic))
        asked = [lifted, xi, Pi, *frame.arrays]
        if statistic.means_bound is None:
            question = FedDPKMeansClient.clear_cluster_sums.asked(*asked, margin=self.margin)
        else:
            question = FedDPKMeansClient.clear_cluster_means.asked(
                *asked, margin=self.margin, means_bound=statistic.means_bound
            )
        reply = yield Sum(question, releases=statistic.releases)
        return clip_rows(statistic.next_centers(reply, lifted), frame.radius)

    def _simplify(
        self, frame: Frame, Q: Floats, Pi: Floats, projected_Q: Floats
    ) -> Generator[Round, list[Array], Floats]:
        """Return F, the server rows that stand for enough rows (Algorithm 4, SimplifyServerData).

        Line 6 compares the noisy weights with 2 log n / epsilon, which is far below their noise Lap(T / epsilon), so
        that server rows without any row would pass. The proof (Lemma 25) freezes a row at T log(T |Q|) / epsilon,
        above all of the noise with high probability: that is taken here. If fewer than k rows are left frozen, all
        server rows are kept.
        """
        T = self._n_simplify_rounds
        release, bound = self._weights_release("simplify", Q)
        frozen = np.zeros(len(projected_Q), dtype=bool)  # F
        remaining = ~frozen  # Q_t
        for _ in range(T):
            candidates = np.flatnonzero(frozen | remaining)  # C
            weights = yield from self._noisy_weights(frame, Pi, projected_Q[candidates], release, bound)
            light = np.zeros(len(projected_Q), dtype=bool)  # L
            light[candidates] = weights <= release.scale * math.log(T * len(projected_Q))
            frozen |= remaining & ~light
            remaining = light & ~frozen & (self.rng.random(len(projected_Q)) < 0.5)
            if not remaining.any():
                break
        return projected_Q[frozen] if frozen.sum() >= self.n_clusters else projected_Q

    def _noisy_weights(
        self, frame: Frame, Pi: Floats, projected_Q: Floats, release: Release, bound: float
    ) -> Generator[Round, list[Array], Floats]:
        """Return the weights w_q of equation (3), with noise."""
        question = FedDPKMeansClient.weights.asked(projected_Q, Pi, *frame.arrays, bound=bound)
        (weights,) = yield Sum(question, releases=[release])
        return weights

    # Bounds and budget.

    @property
    def n_protocol_rounds(self) -> int:
        """Steps 1 to 3 (step 1 is not needed where the subspace is all of space), the options, the Lloyd steps."""
        simplify = self._n_simplify_rounds if self.simplify_server_data else 0
        return self.reduce_diameter + self._projects + simplify + 2 + self.n_rounds

    @property
    def _projects(self) -> bool:
        """Whether the data subspace is smaller than space."""
        return self.n_clusters < self.expected_columns

    @property
    def _w_min(self) -> float:
        return self.smallest_cluster if self.smallest_cluster is not None else 1 / (2 * self.n_clusters)

    @property
    def _n_simplify_rounds(self) -> int:
        """T of Algorithm 4, line 2, with the part of epsilon that the weights have in appendix G.4."""
        parts = BUDGET[self.privacy_unit]
        epsilon = (1.0 if self.epsilon is None else self.epsilon) * parts[1] / sum(parts)
        n_server_rows = len(np.asarray(self.server_data))
        return max(1, math.ceil(10 * math.log(4 * math.log(n_server_rows) / (epsilon * self._w_min))))

    def shares(self) -> Mapping[str, Share]:
        """Return those of steps 1 and 2, sums and counts of step 3, those of the Lloyd steps, and the options."""
        one, two, sums, counts = BUDGET[self.privacy_unit]
        of_counts = counting(self.privacy_unit)
        shares: dict[str, Share] = {}
        if self.reduce_diameter:
            shares["regions"] = Share(of_counts, two)
        if self._projects:
            shares["second_moment"] = Share("gaussian", one)
        if self.simplify_server_data:
            shares["simplify"] = Share(of_counts, two, self._n_simplify_rounds)
        shares["weights"] = Share(of_counts, two)
        shares["sums"], shares["counts"] = Share("gaussian", sums), Share(of_counts, counts)
        if self.n_rounds > 0:
            shares["lloyd_sums"] = Share("gaussian", sums, self.n_rounds)
            shares["lloyd_counts"] = Share(of_counts, counts, self.n_rounds)
        return shares

    def _bounds(self, Q: Floats) -> ClientBounds:
        if self.bounds is not None:
            return self.bounds
        return ClientBounds.from_server_rows(Q, self.n_clusters, self.rows_per_client)

    def _weights_release(self, share: str, Q: Floats) -> tuple[Release, float]:
        """Return the release of counts by server row, and the norm to which a client clips them."""
        if self.privacy_unit == "record":
            return self.release(share, 1.0, "a row is nearest to one server row"), math.inf
        bound = self._bounds(Q).weights
        return self.release(share, bound, "the client clips its counts to this norm"), bound

    def _statistic(self, shares: tuple[str, str], frame: Frame, Q: Floats) -> ClusterStatistic:
        bound = self._bounds(Q).means if self.privacy_unit == "client" else None
        return cluster_statistic(
            self, shares, frame.radius, self.n_clusters, means_bound=bound, shrink=self.shrink_centers
        )


# The client half.


class FedDPKMeansClient(ClusterClient, DiameterClient):
    """What a client answers: always about its rows as they are in the frame, so clipped to the radius.

    Step 3 and the Lloyd steps are :class:`ClusterClient`'s.
    """

    @answers(
        "sum of the outer products of the rows (upper triangle)",
        moved=lambda _, *frame, bound=math.inf: (
            products_moved(*frame) if math.isinf(bound) else within(bound, triangle=True),
        ),
    )
    def second_moment(self, *frame: Floats, bound: float = math.inf) -> GridArray:
        """Return (P^j)' P^j (Algorithm 1, line 4), at client level clipped to ``bound``."""
        rows = self.enter(*frame)
        matrix, exponent = second_moment(rows.integers, rows.exponent)
        if math.isfinite(bound):
            clipped = GridArray.clipped(from_units(matrix, exponent), bound)
            matrix, exponent = clipped.integers, clipped.exponent
        return GridArray(upper_triangle(matrix), exponent)

    @answers(
        Sent("number of rows nearest to each server row, in the data subspace", counts="every row"),
        moved=lambda _, projected_Q, Pi, *frame, bound=math.inf: (counts_moved(bound),),
    )
    def weights(self, projected_Q: Floats, Pi: Floats, *frame: Floats, bound: float = math.inf) -> GridArray:
        """Return w_q(Pi P^j) of equation (3), at client level clipped to ``bound``."""
        return clipped_counts(self.enter(*frame).projected(Pi).counts(projected_Q), bound)

    @answers(
        "sum of the clear rows in each cluster",
        Sent("number of clear rows in each cluster", counts="some rows", sizes=True),
        moved=lambda _, lifted, xi, Pi, *frame, margin: (ball_moved(*frame), ONE_COUNT),
    )
    def clear_cluster_sums(
        self, lifted: Floats, xi: Floats, Pi: Floats, *frame: Floats, margin: float
    ) -> tuple[GridArray, GridArray]:
        """Return the sums and counts of the rows within the margin (Algorithm 5, part 2)."""
        rows, labels = self._clear_rows(xi, Pi, *frame, margin=margin)
        return rows.sums(labels, len(lifted))

    @answers(
        "mean of the client's clear rows in each cluster, less its center",
        Sent("whether a cluster has a clear row of the client", counts="some rows"),
        moved=lambda _, lifted, xi, Pi, *frame, margin, means_bound: (within(means_bound), presence_moved(lifted)),
    )
    def clear_cluster_means(
        self, lifted: Floats, xi: Floats, Pi: Floats, *frame: Floats, margin: float, means_bound: float
    ) -> tuple[GridArray, GridArray]:
        """Return the offsets and the presence of the rows within the margin."""
        rows, labels = self._clear_rows(xi, Pi, *frame, margin=margin)
        return offsets_and_presence(rows, labels, lifted, means_bound)

    def _clear_rows(
        self, xi: Floats, Pi: Floats, *frame: Floats, margin: float
    ) -> tuple[RowsInFrame, NDArray[np.intp]]:
        rows = self.enter(*frame)
        projected, points = rows.projected(Pi), rows.points(xi)
        labels = projected.nearest(xi)
        clear = within_margin(projected.integers, points, labels, margin)
        return rows[clear], labels[clear]


FedDPKMeans.client_type = FedDPKMeansClient
