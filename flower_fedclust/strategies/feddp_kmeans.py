"""FedDP-KMeans (Scott, Lampert and Saulpic, ICML 2025): private k-means that starts well from a few public rows.

P are the clients' rows, Q the server's, Pi spans the data subspace, xi are the projected centers and nu the centers.

docs/shape.md shows how a ``yield`` here becomes a round of Flower.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import Entry, Protocol, Sent, Sum, Total, parameter
from flower_fedclust.engine.by_row import by_row, finishes
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Question, Round
from flower_fedclust.exact.grid import from_units
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.sums import directions_onto_grid, is_off_diagonal, triangle_to_symmetric, within_margin
from flower_fedclust.exact.terms import Term, at, clipped_total, products
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.initialisation import weighted_kmeans
from flower_fedclust.numerics.vectors import clip_rows, top_eigenvectors
from flower_fedclust.privacy.releases import PrivacyUnit
from flower_fedclust.strategies.common.clusters import (
    ClientBounds,
    ClusterClient,
    ClusterStatistic,
    counting,
    lloyd_parts,
    lloyd_step,
    offsets_and_presence,
)
from flower_fedclust.strategies.common.server_data import ServerDataStrategy

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Appendix G.4: the fractions of epsilon for steps 1 and 2, and for the sums and the counts of step 3.
BUDGET: dict[PrivacyUnit, tuple[float, float, float, float]] = {
    "record": (0.2, 0.2, 0.45, 0.15),
    "client": (0.35, 0.1, 0.45, 0.1),
}


class FedDPKMeans(ServerDataStrategy):
    """Private k-means: FedDP-Init (Algorithm 1), then FedDP-Lloyds (Algorithm 2).

    The server needs only sums over the clients: a second moment, one weight for each server row, and the sums and
    counts of the clusters. Each is released with noise, calibrated so that the whole run is (epsilon, delta)-private.

    Parameters
    ----------
    n_rounds : int, default=0
        T, Lloyd steps after the initialization; the paper finds 0 or 1 best.
    bounds : ClientBounds, optional
        At client level: the bounds to which clients clip, instead of bounds that follow from rows_per_client.
    margin : float in (0, 1], default=1
        In step 3 a row counts only if its distance to the nearest projected center is at most ``margin`` times its
        distance to every other one: 1/3 in Algorithm 5, part 2.
    simplify_server_data : bool, default=False
        Whether server rows of little weight are removed first (SimplifyServerData, Algorithm 4).
    reduce_diameter : bool, default=False
        Whether far regions are moved together first (Lemma 16).
    smallest_cluster : float, optional
        w_min, the fraction of the rows in the smallest cluster, for these two options; 1 / (2 n_clusters) by default.
    spread : float, optional
        sigma_max, the standard deviation of the widest cluster, for ``reduce_diameter``; by default the spread of the
        server rows within their own clusters.

    Notes
    -----
    By default the budget is divided as in appendix G.4. All Lloyd steps together take as much as step 3, and each
    option takes a part of its own.

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
            asked = self._weights_round("regions", FedDPKMeansClient.regions.asked(Q, frame=frame), Q)
            scale = self._weights_scale("regions", Q)
            frame = yield from reduce_diameter(frame, Q, asked, scale, self._w_min, self.spread, self.n_clusters)
        Q = frame.enter(server_data)

        # Algorithm 1, step 1: the projection onto the top k singular vectors of P.
        Pi = yield from self._step_1(frame, Q)
        # Step 2: the number of rows that each server row stands for in the data subspace, and the centers there.
        projected_Q = Q @ Pi
        if self.simplify_server_data:  # Algorithm 4
            projected_Q = yield from self._simplify(frame, Q, Pi, projected_Q)
        xi = yield from self._step_2(frame, Q, Pi, projected_Q)
        # Step 3: the centers in the original space.
        nu = yield from self._step_3(frame, Q, Pi, xi)
        # Algorithm 2.
        if self.n_rounds > 0:
            statistic = self._statistic(("lloyd_sums", "lloyd_counts"), Q)
            for _ in range(self.n_rounds):
                nu = yield from lloyd_step(nu, frame, statistic)
        return KMeansModel(frame.leave(nu))

    def _step_1(self, frame: Frame, Q: Floats) -> Generator[Round, Total, Floats]:
        """Return Pi, of shape (n_columns, min(n_clusters, n_columns))."""
        if not self._projects:
            return np.eye(self.expected_columns)
        if self.privacy_unit == "record":
            question = FedDPKMeansClient.second_moment.asked(frame=frame)
        else:
            bound = self._bounds(Q).second_moment
            question = FedDPKMeansClient.traceless_moment.asked(frame=frame, moment_bound=bound)
        (moment,) = yield Sum(question, parts=["second_moment"])
        return directions_onto_grid(top_eigenvectors(triangle_to_symmetric(moment), self.n_clusters))

    def _step_2(self, frame: Frame, Q: Floats, Pi: Floats, projected_Q: Floats) -> Generator[Round, Total, Floats]:
        """Return xi, of shape (n_clusters, n_dimensions of the subspace)."""
        (weights,) = received = yield self._weights_round("weights", self._weights(frame, Pi, projected_Q), Q)
        # A weight below one standard deviation of the noise is more likely noise than rows, and could draw a center
        # to an empty place. The paper does not say what to do with negative weights.
        weights = np.where(weights > received.noise[0], weights, 0.0)
        if np.count_nonzero(weights) < self.n_clusters:
            # If too little weight is left, the server rows alone place the centers.
            weights = np.ones(len(projected_Q))
        return weighted_kmeans(projected_Q, weights, self.n_clusters, self.rng)

    def _step_3(self, frame: Frame, Q: Floats, Pi: Floats, xi: Floats) -> Generator[Round, Total, Floats]:
        """Return nu, of shape (n_clusters, n_columns).

        Pi has orthonormal columns, so that a row is nearest to Pi xi_r in the original space if it is nearest to xi_r
        in the subspace: without a margin, step 3 is a Lloyd step from the lifted centers.
        """
        lifted = xi @ Pi.T
        statistic = self._statistic(("sums", "counts"), Q)
        if self.margin == 1.0:
            return (yield from lloyd_step(lifted, frame, statistic))
        asked, bound = [lifted, xi, Pi], statistic.means_bound
        if bound is None:
            question = FedDPKMeansClient.clear_cluster_sums.asked(*asked, frame=frame, margin=self.margin)
        else:
            question = FedDPKMeansClient.clear_cluster_means.asked(
                *asked, frame=frame, margin=self.margin, means_bound=bound
            )
        reply = yield Sum(question, parts=statistic.parts)
        return clip_rows(statistic.next_centers(reply, lifted), frame.radius)

    def _simplify(self, frame: Frame, Q: Floats, Pi: Floats, projected_Q: Floats) -> Generator[Round, Total, Floats]:
        """Return F, the server rows that stand for enough rows (Algorithm 4, SimplifyServerData).

        Line 6 compares the noisy weights with 2 log n / epsilon, far below their noise Lap(T / epsilon), so that server
        rows that stand for no row would pass. This uses the proof's threshold instead: T log(T |Q|) / epsilon, which
        exceeds all of the noise with high probability (Lemma 25). If fewer than k rows are frozen, all are kept.
        """
        T = self._n_simplify_rounds
        scale = self._weights_scale("simplify", Q)
        frozen = np.zeros(len(projected_Q), dtype=bool)  # F
        remaining = ~frozen  # Q_t
        for _ in range(T):
            candidates = np.flatnonzero(frozen | remaining)  # C
            (weights,) = yield self._weights_round("simplify", self._weights(frame, Pi, projected_Q[candidates]), Q)
            light = np.zeros(len(projected_Q), dtype=bool)  # L
            light[candidates] = weights <= scale * math.log(T * len(projected_Q))
            frozen |= remaining & ~light
            remaining = light & ~frozen & (self.rng.random(len(projected_Q)) < 0.5)
            if not remaining.any():
                break
        return projected_Q[frozen] if frozen.sum() >= self.n_clusters else projected_Q

    def _weights(self, frame: Frame, Pi: Floats, projected_Q: Floats) -> Question:
        """Return the question for the weights w_q of equation (3)."""
        question: Question = FedDPKMeansClient.weights.asked(projected_Q, Pi, frame=frame)
        return question

    def _weights_scale(self, part: str, Q: Floats) -> float:
        """Return the scale of the noise in counts by server row."""
        return self.noise_scale(part, 1.0 if self.privacy_unit == "record" else self._bounds(Q).weights)

    def _weights_round(self, part: str, question: Question, Q: Floats) -> Sum:
        """Return the round for counts by server row; at client level each client clips its counts."""
        if self.privacy_unit == "client":
            question = question.total(self._bounds(Q).weights)
        return Sum(question, parts=[part])

    # Bounds and budget.

    @property
    def n_protocol_rounds(self) -> int:
        """Steps 1 to 3 (step 1 only if the subspace is smaller than space), the options, and the Lloyd steps."""
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

    def parts(self) -> Mapping[str, Part]:
        """Return the parts of steps 1 to 3, of the Lloyd steps, and of the options."""
        one, two, sums, counts = BUDGET[self.privacy_unit]
        client, of_counts = FedDPKMeansClient, counting(self.privacy_unit)
        clear = (client.cluster_sums, client.cluster_means, client.clear_cluster_sums, client.clear_cluster_means)
        n_simplify = self._n_simplify_rounds if self.simplify_server_data else 0
        return {
            "regions": Part(client.regions, two, int(self.reduce_diameter), of_counts),
            "second_moment": Part((client.second_moment, client.traceless_moment), one, int(self._projects)),
            "simplify": Part(client.weights, two, n_simplify, of_counts),
            "weights": Part(client.weights, two, 1, of_counts),
            "sums": Part(clear, sums),
            "counts": Part(clear, counts, 1, of_counts),
            **lloyd_parts("lloyd_", sums, counts, self.n_rounds, self.privacy_unit),
        }

    def _bounds(self, Q: Floats) -> ClientBounds:
        if self.bounds is not None:
            return self.bounds
        return ClientBounds.from_server_rows(Q, self.n_clusters, self.rows_per_client)

    def _statistic(self, parts: tuple[str, str], Q: Floats) -> ClusterStatistic:
        bound = self._bounds(Q).means if self.privacy_unit == "client" else None
        return ClusterStatistic(parts, self.shrink_centers, bound)


def reduce_diameter(
    frame: Frame,
    Q: Floats,
    asked: Sum,
    scale: float,
    w_min: float,
    sigma_max: float | None,
    n_clusters: int,
) -> Generator[Round, Total, Frame]:
    """Return a frame in which far regions have been moved together, in one round (Lemma 16).

    Server rows that stand for enough rows are kept and connected to their neighbors, and every connected component is
    moved as a whole. Components are put 100 diameters apart, so that the frame only shrinks if they are farther apart
    than that. Otherwise it is returned unchanged.
    """
    from scipy.sparse.csgraph import connected_components
    from sklearn.cluster import KMeans
    from sklearn.neighbors import radius_neighbors_graph

    (weights,) = yield asked
    n = max(float(weights.sum()), math.e)
    if sigma_max is None:
        within = KMeans(n_clusters, n_init=1, random_state=0).fit(Q).inertia_ / len(Q)
        sigma_max = math.sqrt(within / Q.shape[1])
    D = 4 * math.log(n) * math.sqrt(Q.shape[1]) * sigma_max
    near = radius_neighbors_graph(Q, D, include_self=True)
    # The lemma's epsilon is 1 / scale of its Laplace noise.
    epsilon = 1 / scale if scale > 0 else math.inf
    frozen = near.sum(axis=1) >= epsilon * n * w_min / (200 * math.log(len(Q)))
    kept = np.asarray(frozen).ravel() | (near @ weights >= n * w_min / 3)
    if not kept.any():
        return frame
    anchors = Q[kept]
    n_components, component = connected_components(near[kept][:, kept], directed=False)
    representatives = anchors[[int(np.flatnonzero(component == c)[0]) for c in range(n_components)]]
    # Twice the largest distance to a representative bounds every component's diameter.
    diameter = 2 * float(np.linalg.norm(anchors - representatives[component], axis=1).max())
    targets = np.zeros_like(representatives)
    targets[:, 0] = 100 * diameter * np.arange(n_components)
    shifts = (targets - representatives)[component]
    radius = float(np.linalg.norm(anchors + shifts, axis=1).max())
    if not 0 < radius < frame.radius:
        return frame
    return replace(frame, radius=radius, anchors=anchors, shifts=shifts, outer_radius=frame.radius)


# The client half.


class FedDPKMeansClient(ClusterClient):
    """The client half of :class:`FedDPKMeans`; :class:`ClusterClient` answers step 3 and the Lloyd steps."""

    @by_row(regions=Sent("number of rows nearest to each server row", counts="every row"))
    def regions(rows: Rows, Q: Floats) -> Term:
        """Return w_q(P^j) in the original space (proof of Lemma 16)."""
        return at(rows.nearest(Q), len(Q))

    @by_row(second_moment="sum of the outer products of the rows (upper triangle)")
    def second_moment(rows: Rows) -> Term:
        """Return (P^j)' P^j (Algorithm 1, line 4)."""
        return products(rows)

    @finishes(second_moment, "moment_bound", moment="the client's second moment, less its mean eigenvalue times I")
    def traceless_moment(totals: tuple[Term, ...], n_rows: Integers, *, moment_bound: float) -> Term:  # noqa: ARG004
        """Return (P^j)' P^j less its mean eigenvalue times I: a shorter matrix with the same eigenvectors."""
        moments, n_columns = totals[0].integers.copy(), math.isqrt(2 * totals[0].integers.shape[-1])
        diagonal = ~is_off_diagonal(n_columns)
        moments[:, diagonal] -= moments[:, diagonal].sum(axis=1, keepdims=True) // n_columns
        matrices = triangle_to_symmetric(from_units(moments, totals[0].exponent))
        return clipped_total(matrices, moment_bound, triangle=True, words="the client clips its matrix to this norm")

    @by_row(weights=Sent("number of rows nearest to each server row, in the data subspace", counts="every row"))
    def weights(rows: Rows, projected_Q: Floats, Pi: Floats) -> Term:
        """Return w_q(Pi P^j) of equation (3)."""
        return at(rows.projected(Pi).nearest(projected_Q), len(projected_Q))

    @by_row(
        sums="sum of the clear rows in each cluster",
        counts=Sent("number of clear rows in each cluster", counts="some rows", sizes=True),
    )
    def clear_cluster_sums(rows: Rows, lifted: Floats, xi: Floats, Pi: Floats, *, margin: float) -> tuple[Term, Term]:
        """Return the sums and counts of the rows within the margin (Algorithm 5, part 2)."""
        projected = rows.projected(Pi)
        labels = projected.nearest(xi)
        clear = within_margin(projected.integers, rows.points(xi), labels, margin)
        labels = np.where(clear, labels, -1)
        return at(labels, len(lifted), rows), at(labels, len(lifted))

    @finishes(
        clear_cluster_sums,
        "means_bound",
        means="mean of the client's clear rows in each cluster, less its center",
        presence=Sent("whether a cluster has a clear row of the client", counts="some rows"),
    )
    def clear_cluster_means(
        totals: tuple[Term, ...],
        n_rows: Integers,  # noqa: ARG004
        lifted: Floats,
        *_: Floats,
        means_bound: float,
        **__: float,
    ) -> tuple[Term, Term]:
        """Return the offsets and the presence of the rows within the margin."""
        return offsets_and_presence(totals, lifted, means_bound)


FedDPKMeans.client_type = FedDPKMeansClient
