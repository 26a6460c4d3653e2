"""FedDP-KMeans with the steps that the paper's proofs need: Algorithms 4 and 5, and Lemma 16."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import Entry, Protocol, Sent, Sum, Total, parameter
from flower_fedclust.engine.by_row import by_row, finishes, view
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Round
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.sums import within_margin
from flower_fedclust.exact.terms import Term, at
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.kmeans import nearest_center
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.strategies.common.clusters import counting, offsets_and_presence
from flower_fedclust.strategies.feddp_kmeans import BUDGET, Ball, FedDPKMeans, FedDPKMeansClient

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Regions:
    """Regions of space that are far apart, and how each is moved so that a smaller ball holds all (Lemma 16)."""

    anchors: Floats  #: Points that stand for regions, of shape (n_anchors, n_columns).
    shifts: Floats  #: How the rows nearest to each anchor are moved, of the same shape.
    radius: float  #: The radius of the ball that holds the moved anchors.

    def enter(self, rows: Rows) -> Rows:
        """Return rows, each moved with its nearest anchor, clipped to the smaller ball."""
        return rows.offsets(-self.shifts, rows.nearest(self.anchors), self.radius)

    def leave(self, centers: Floats) -> Floats:
        """Return moved centers where they were."""
        return centers - self.shifts[nearest_center(centers, self.anchors + self.shifts)]


class FedDPKMeansProofs(FedDPKMeans):
    """FedDP-KMeans with the options that the paper's proofs use.

    With these options the paper's guarantee needs no conditions on the radius and on the server rows
    (Theorem 14). They cost accuracy: on ten Gaussians in 50 columns no option improves on
    :class:`FedDPKMeans`, as docs/papers/feddp-kmeans.md shows. Each option takes a part of the budget.

    Parameters
    ----------
    margin : float in (0, 1], default=0.3333333333333333
        In step 3 a row counts only if its distance to the nearest projected center is at most ``margin`` times its
        distance to every other one: 1/3 in Algorithm 5, part 2.
    simplify_server_data : bool, default=True
        Whether server rows of little weight are removed first (SimplifyServerData, Algorithm 4).
    reduce_diameter : bool, default=True
        Whether regions that are far apart are first moved near to each other (Lemma 16).
    smallest_cluster : float, optional
        w_min, the fraction of the rows in the smallest cluster, for the previous two options; 1 / (2 n_clusters) by
        default.
    spread : float, optional
        sigma_max, the standard deviation of the widest cluster, for ``reduce_diameter``; by default the spread of the
        server rows within their own clusters.

    References
    ----------
    "Differentially private federated k-means with server-side data", Algorithms 4 and 5, Lemma 16.
    """

    entries = (
        Entry(
            "feddp-kmeans-proofs",
            "FedDP-KMeans with the steps that its proofs need, for comparison",
            "Scott, Lampert and Saulpic 2025, Algorithms 4 and 5, Lemma 16",
            finds="round",
        ),
    )

    margin: float = parameter(1 / 3, above=0, at_most=1)
    simplify_server_data: bool = parameter(True)
    reduce_diameter: bool = parameter(True)
    smallest_cluster: float | None = parameter(None, above=0)
    spread: float | None = parameter(None, above=0)

    def protocol(self) -> Protocol:
        """Run FedDP-Init with the options, then FedDP-Lloyds."""
        server_data = self._server_rows()
        frame = Frame.around(server_data, centered=self.center_rows)
        ball, Q = Ball(frame), frame.enter(server_data)
        # Lemma 16.
        regions = (yield from self._reduce_diameter(ball, Q)) if self.reduce_diameter else None
        if regions is not None:
            asked = FedDPKMeansProofsClient.together.asked(
                regions.anchors, regions.shifts, frame=frame, radius=regions.radius
            )
            ball, Q = (
                Ball(frame, asked, regions.radius),
                regions.enter(frame.rows(server_data)).values,
            )

        Pi = yield from self._step_1(ball, Q)
        projected_Q = Q @ Pi
        if self.simplify_server_data:  # Algorithm 4
            projected_Q = yield from self._simplify(ball, Q, Pi, projected_Q)
        xi = yield from self._step_2(ball, Q, Pi, projected_Q)
        nu = yield from self._step_3(ball, Q, Pi, xi)
        for _ in range(self.n_rounds):
            nu = yield from self._lloyd_step(ball, Q, nu, ("lloyd_sums", "lloyd_counts"))
        return KMeansModel(frame.leave(nu if regions is None else regions.leave(nu)))

    def _step_3(
        self, ball: Ball, Q: Floats, Pi: Floats, xi: Floats
    ) -> Generator[Round, Total, Floats]:
        """Return nu from the rows within the margin (Algorithm 5, part 2), of shape (n_clusters, n_columns)."""
        lifted = xi @ Pi.T
        if self.margin == 1.0:
            return (yield from self._lloyd_step(ball, Q, lifted, ("sums", "counts")))
        statistic = self._statistic(("sums", "counts"), Q)
        client, asked = FedDPKMeansProofsClient, (lifted, xi, Pi)
        if statistic.means_bound is None:
            question = client.clear_cluster_sums.asked(*asked, **ball.rows, margin=self.margin)
        else:
            question = client.clear_cluster_means.asked(
                *asked, **ball.rows, margin=self.margin, means_bound=statistic.means_bound
            )
        reply = yield Sum(question, parts=statistic.parts)
        return clip_rows(statistic.next_centers(reply, lifted), ball.radius)

    def _simplify(
        self, ball: Ball, Q: Floats, Pi: Floats, projected_Q: Floats
    ) -> Generator[Round, Total, Floats]:
        """Return F, the server rows that stand for enough rows (Algorithm 4, SimplifyServerData).

        Line 6 compares the noisy weights with 2 log n / epsilon. This is far below their noise Lap(T / epsilon), so
        server rows that stand for no row would be kept. Here the threshold is the proof's, T log(T |Q|) / epsilon,
        which exceeds all of the noise with high probability (Lemma 25). If fewer than k server rows would be kept, all
        are kept.
        """
        T = self._n_simplify_rounds
        scale = self._scale("simplify", Q)
        frozen = np.zeros(len(projected_Q), dtype=bool)  # F
        remaining = ~frozen  # Q_t
        for _ in range(T):
            candidates = np.flatnonzero(frozen | remaining)  # C
            (weights,) = yield self._weights_round(
                "simplify", self._weights(ball, Pi, projected_Q[candidates]), Q
            )
            light = np.zeros(len(projected_Q), dtype=bool)  # L
            light[candidates] = weights <= scale * math.log(T * len(projected_Q))
            frozen |= remaining & ~light
            remaining = light & ~frozen & (self.rng.random(len(projected_Q)) < 0.5)
            if not remaining.any():
                break
        return projected_Q[frozen] if frozen.sum() >= self.n_clusters else projected_Q

    def _reduce_diameter(self, ball: Ball, Q: Floats) -> Generator[Round, Total, Regions | None]:
        """Find regions, in one round, and move them near to each other; None if the ball does not shrink (Lemma 16).

        Server rows that stand for enough rows are kept and connected to their neighbors. Every connected component is
        moved as a whole. Components are put 100 diameters apart, so the ball shrinks only if they are farther apart
        than that.
        """
        from scipy.sparse.csgraph import connected_components
        from sklearn.cluster import KMeans
        from sklearn.neighbors import radius_neighbors_graph

        question = FedDPKMeansProofsClient.regions.asked(Q, **ball.rows)
        (weights,) = yield self._weights_round("regions", question, Q)
        n = max(float(weights.sum()), math.e)
        sigma_max = self.spread
        if sigma_max is None:
            within = KMeans(self.n_clusters, n_init=1, random_state=0).fit(Q).inertia_ / len(Q)
            sigma_max = math.sqrt(within / Q.shape[1])
        D = 4 * math.log(n) * math.sqrt(Q.shape[1]) * sigma_max
        near = radius_neighbors_graph(Q, D, include_self=True)
        # The epsilon in the lemma is one over the scale of the Laplace noise.
        scale = self._scale("regions", Q)
        epsilon = 1 / scale if scale > 0 else math.inf
        frozen = near.sum(axis=1) >= epsilon * n * self._w_min / (200 * math.log(len(Q)))
        kept = np.asarray(frozen).ravel() | (near @ weights >= n * self._w_min / 3)
        if not kept.any():
            return None
        anchors = Q[kept]
        n_components, component = connected_components(near[kept][:, kept], directed=False)
        representatives = anchors[
            [int(np.flatnonzero(component == c)[0]) for c in range(n_components)]
        ]
        # Twice the largest distance to a representative bounds every component's diameter.
        diameter = 2 * float(np.linalg.norm(anchors - representatives[component], axis=1).max())
        targets = np.zeros_like(representatives)
        targets[:, 0] = 100 * diameter * np.arange(n_components)
        shifts = (targets - representatives)[component]
        radius = float(np.linalg.norm(anchors + shifts, axis=1).max())
        return Regions(anchors, shifts, radius) if 0 < radius < ball.radius else None

    # Budget.

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds: as many as :class:`FedDPKMeans` takes, and further rounds for the options."""
        simplify = self._n_simplify_rounds if self.simplify_server_data else 0
        return super().n_protocol_rounds + self.reduce_diameter + simplify

    @property
    def _w_min(self) -> float:
        return (
            self.smallest_cluster
            if self.smallest_cluster is not None
            else 1 / (2 * self.n_clusters)
        )

    @property
    def _n_simplify_rounds(self) -> int:
        """T of Algorithm 4, line 2, with the part of epsilon that the weights have in appendix G.4."""
        parts = BUDGET[self.privacy_unit]
        epsilon = (1.0 if self.epsilon is None else self.epsilon) * parts[1] / sum(parts)
        n_server_rows = len(np.asarray(self.server_data))
        return max(
            1, math.ceil(10 * math.log(4 * math.log(n_server_rows) / (epsilon * self._w_min)))
        )

    def _scale(self, part: str, Q: Floats) -> float:
        """Return the scale of the noise in the numbers of rows by server row."""
        return self.noise_scale(
            part, self._bounds(Q).weights if self.privacy_unit == "client" else 1.0
        )

    def parts(self) -> Mapping[str, Part]:
        """Add the parts of the budget that pay for the options."""
        two, of_counts = BUDGET[self.privacy_unit][1], counting(self.privacy_unit)
        client, parts = FedDPKMeansProofsClient, dict(super().parts())
        clear = (client.clear_cluster_sums, client.clear_cluster_means)
        for name in ("sums", "counts"):
            parts[name] = replace(parts[name], answers=(*parts[name].askables, *clear))
        n_simplify = self._n_simplify_rounds if self.simplify_server_data else 0
        return {
            "regions": Part(client.regions, two, int(self.reduce_diameter), of_counts),
            "simplify": Part(client.weights, two, n_simplify, of_counts),
            **parts,
        }


# The client half.


class FedDPKMeansProofsClient(FedDPKMeansClient):
    """The client half of :class:`FedDPKMeansProofs`."""

    @view
    def together(rows: Rows, anchors: Floats, shifts: Floats, *, radius: float) -> Rows:
        """Return the rows, each moved with its nearest anchor (Lemma 16)."""
        return Regions(anchors, shifts, radius).enter(rows)

    @by_row(regions=Sent("number of rows nearest to each server row", counts="every row"))
    def regions(rows: Rows, Q: Floats) -> Term:
        """Return w_q(P^j), the number of rows nearest to each server row q, in all columns (proof of Lemma 16)."""
        return at(rows.nearest(Q), len(Q))

    @by_row(
        sums="sum of the clear rows in each cluster",
        counts=Sent("number of clear rows in each cluster", counts="some rows", sizes=True),
    )
    def clear_cluster_sums(
        rows: Rows, lifted: Floats, xi: Floats, Pi: Floats, *, margin: float
    ) -> tuple[Term, Term]:
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


FedDPKMeansProofs.client_type = FedDPKMeansProofsClient
