"""FedDP-KMeans: private k-means that starts well, because the server has a few public rows.

Anonymous authors, "Differentially private federated k-means with server-side data". The steps below bear the paper's
numbers; P are the clients' rows, Q the server's, Pi spans the data subspace, xi are the projected centers and nu the
centers. Rows are samples here as they are in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.checks import check_budget_split, check_integer, check_real
from flower_fedclust.numerics.initialisation import weighted_kmeans
from flower_fedclust.numerics.kmeans import cluster_sums, nearest_center, within_margin
from flower_fedclust.numerics.vectors import (
    clip_norm,
    clip_rows,
    symmetric_to_vector,
    top_eigenvectors,
    vector_to_symmetric,
)
from flower_fedclust.privacy.accounting import Share, calibrate
from flower_fedclust.privacy.releases import Mechanism, NoisePlace, PrivacyUnit, Release
from flower_fedclust.protocol import Protocol, ProtocolStrategy, Sum, answers
from flower_fedclust.protocol.rounds import Array, Round, Scalar
from flower_fedclust.steps.clusters import ClusterClient, ClusterStatistic, lloyd_step, offsets_and_presence
from flower_fedclust.steps.diameter import DiameterClient, reduce_diameter
from flower_fedclust.steps.frame import Frame, enter
from flower_fedclust.steps.private_clusters import ClientBounds, cluster_statistic
from flower_fedclust.steps.server_data import checked_server_data, server_data_note

Floats = NDArray[np.float64]

#: Appendix G.4: the parts of epsilon for steps 1 and 2, and for the sums and the counts of step 3.
BUDGET_SPLITS: dict[PrivacyUnit, tuple[float, float, float, float]] = {
    "record": (0.2, 0.2, 0.45, 0.15),
    "client": (0.35, 0.1, 0.45, 0.1),
}


@dataclass(frozen=True)
class _Noise:
    """The noise multiplier of each step's release, all calibrated together."""

    regions: float
    second_moment: float
    simplify: float
    weights: float
    clusters: tuple[float, float]
    lloyd: tuple[float, float]


class FedDPKMeans(ProtocolStrategy):
    """Private k-means: FedDP-Init (Algorithm 1), then FedDP-Lloyds (Algorithm 2).

    Everything that the server needs is a sum over the clients: a second moment, one weight a server row, and the sums
    and counts of the clusters. Each is released with noise, calibrated so that the whole run is
    (epsilon, delta)-private.

    Parameters
    ----------
    n_clusters : int
    server_data : array-like of shape (n_server_rows, n_columns)
        Public rows Q; few are enough, and they need not be distributed as the clients' rows are. Nothing protects them.
    epsilon : float or None, default=1.0
        The privacy budget of the whole run. None is no noise and no guarantee.
    delta : float, default=1e-6
    privacy_unit : "record" or "client", default="record"
        Whether the guarantee is for a row or for all that one client contributes.
    noise : "server", "clients" or "local", default="server"
        Who adds the noise: the server, which is trusted to; the clients, each a share (for secure aggregation); or each
        client all of it, so that its reply is private by itself.
    n_rounds : int, default=0
        T, Lloyd steps after the initialisation; the paper finds 0 or 1 best.
    budget_split : tuple of four float, optional
        The parts of epsilon for steps 1 and 2, and for the sums and the counts of step 3; by default those of appendix
        G.4. Each Lloyd step takes as much as step 3 divided by T, and each option its part too.
    rows_per_client : int, default=50
        At client level: about how many rows a client has, as is known publicly. It sets the bounds to which clients
        clip; a wrong value costs accuracy, not privacy.
    bounds : ClientBounds, optional
        At client level: the bounds themselves, instead.
    center_rows : bool, default=True
        Whether rows are first moved by the mean of the server rows, so that the radius, and all noise, is smaller. The
        paper takes the radius about the origin of the data.
    shrink_centers : bool, default=True
        Whether noisy centers are shrunk towards those they were computed from (James and Stein), which costs no
        privacy. The paper does not.
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
    min_clients : int, optional
        How many clients have to answer a round; 2 by default. With noise="clients" all of them by default; if given,
        any min_clients of them bring all the noise.
    random_state : int, optional
        For restarts at the server. It never touches the noise.
    federated_evaluation : bool, default=False
        Whether the clients count their classes and their cost after the run, which no mechanism covers.

    References
    ----------
    "Differentially private federated k-means with server-side data", Algorithms 1, 2, 4, 5, Lemma 16, appendix G.
    """

    name = "feddp-kmeans"

    def __init__(
        self,
        n_clusters: int,
        *,
        server_data: ArrayLike,
        epsilon: float | None = 1.0,
        delta: float = 1e-6,
        privacy_unit: PrivacyUnit = "record",
        noise: NoisePlace = "server",
        n_rounds: int = 0,
        budget_split: Sequence[float] | None = None,
        rows_per_client: int = 50,
        bounds: ClientBounds | None = None,
        center_rows: bool = True,
        shrink_centers: bool = True,
        margin: float = 1.0,
        simplify_server_data: bool = False,
        reduce_diameter: bool = False,
        smallest_cluster: float | None = None,
        spread: float | None = None,
        min_clients: int | None = None,
        random_state: int | None = None,
        federated_evaluation: bool = False,
    ) -> None:
        self.n_clusters = n_clusters
        self.server_data = server_data
        self.epsilon = epsilon
        self.delta = delta
        self.privacy_unit = privacy_unit
        self.noise = noise
        self.n_rounds = n_rounds
        self.budget_split = budget_split
        self.rows_per_client = rows_per_client
        self.bounds = bounds
        self.center_rows = center_rows
        self.shrink_centers = shrink_centers
        self.margin = margin
        self.simplify_server_data = simplify_server_data
        self.reduce_diameter = reduce_diameter
        self.smallest_cluster = smallest_cluster
        self.spread = spread
        self.min_clients = min_clients
        self.random_state = random_state
        self.federated_evaluation = federated_evaluation
        self.check_parameters()

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first parameter which cannot be right."""
        super().check_parameters()
        check_integer("n_clusters", self.n_clusters, at_least=2)
        check_integer("n_rounds", self.n_rounds, at_least=0)
        check_integer("rows_per_client", self.rows_per_client, at_least=1)
        check_real("margin", self.margin, above=0, at_most=1)
        for name in ("smallest_cluster", "spread"):
            if getattr(self, name) is not None:
                check_real(name, getattr(self, name), above=0)
        if self.budget_split is not None:
            check_budget_split(self.budget_split, 4, "steps 1 and 2, and the sums and the counts of step 3")
        checked_server_data(self.server_data, self.n_clusters)

    # The server half.

    def protocol(self) -> Protocol:
        """Run FedDP-Init, then FedDP-Lloyds."""
        noise = self._calibrated()
        server_data = checked_server_data(self.server_data, self.n_clusters)
        frame = Frame.around(server_data, centered=self.center_rows)
        if self.reduce_diameter:  # Lemma 16
            Q = frame.enter(server_data)
            regions = self._weights_release(Q, noise.regions)
            clipping = self._clipping(regions.sensitivity)
            frame = yield from reduce_diameter(frame, Q, regions, clipping, self._w_min, self.spread, self.n_clusters)
        Q = frame.enter(server_data)

        # Algorithm 1, step 1: the projection onto the top k singular vectors of P.
        Pi = yield from self._step_1(frame, Q, noise.second_moment)
        # Step 2: how many rows each server row stands for, in the data subspace; and the centers there.
        projected_Q = Q @ Pi
        if self.simplify_server_data:  # Algorithm 4
            release = self._weights_release(Q, noise.simplify)
            projected_Q = yield from self._simplify(frame, Pi, projected_Q, release)
        xi = yield from self._step_2(frame, Q, Pi, projected_Q, noise.weights)
        # Step 3: the centers in the original space.
        nu = yield from self._step_3(frame, Q, Pi, xi, noise.clusters)
        # Algorithm 2.
        statistic = self._statistic(noise.lloyd, frame, Q)
        for _ in range(self.n_rounds):
            nu = yield from lloyd_step(nu, frame, statistic)
        return KMeansModel(frame.leave(nu))

    def _step_1(self, frame: Frame, Q: Floats, multiplier: float) -> Generator[Round, list[Array], Floats]:
        """Return Pi, of shape (n_columns, min(n_clusters, n_columns))."""
        if not self._projects:
            return np.eye(self.n_columns)
        if self.privacy_unit == "record":
            sensitivity, bound = (
                frame.radius**2,
                "the client clips every row to the radius, whose square this is",
            )
        else:
            sensitivity, bound = (
                self._bounds(Q).second_moment,
                "the client clips the matrix to this Frobenius norm",
            )
        (outer_products,) = yield Sum(
            task="second_moment",
            arrays=frame.arrays,
            arguments=frame.arguments | self._clipping(sensitivity),
            releases=[Release("gaussian", sensitivity, multiplier, bound)],
        )
        return top_eigenvectors(vector_to_symmetric(outer_products), self.n_clusters)

    def _step_2(
        self, frame: Frame, Q: Floats, Pi: Floats, projected_Q: Floats, multiplier: float
    ) -> Generator[Round, list[Array], Floats]:
        """Return xi, of shape (n_clusters, n_dimensions of the subspace)."""
        release = self._weights_release(Q, multiplier)
        weights = yield from self._noisy_weights(frame, Pi, projected_Q, release)
        # A weight below one standard deviation of the noise is more likely noise than rows, and could draw a center
        # to where there is none; the paper does not say what to do with negative weights.
        weights = np.where(weights > self.noise_of_sum(release), weights, 0.0)
        if np.count_nonzero(weights) < self.n_clusters:
            # Too little weight is left to place the centers; the server rows alone still can.
            weights = np.ones(len(projected_Q))
        return weighted_kmeans(projected_Q, weights, self.n_clusters, self.rng)

    def _step_3(
        self, frame: Frame, Q: Floats, Pi: Floats, xi: Floats, multipliers: tuple[float, float]
    ) -> Generator[Round, list[Array], Floats]:
        """Return nu, of shape (n_clusters, n_columns).

        Pi has orthonormal columns, so that a row is nearest to Pi xi_r in the original space where it is nearest to
        xi_r in the subspace: without a margin, step 3 is a Lloyd step from the lifted centers.
        """
        lifted = xi @ Pi.T
        statistic = self._statistic(multipliers, frame, Q)
        if self.margin == 1.0:
            return (yield from lloyd_step(lifted, frame, statistic))
        reply = yield Sum(
            task="clear_" + statistic.task,
            arrays=[lifted, Pi, *frame.arrays],
            arguments=frame.arguments | statistic.arguments | {"margin": self.margin},
            releases=statistic.releases,
        )
        return clip_rows(statistic.next_centers(reply, lifted), frame.radius)

    def _simplify(
        self, frame: Frame, Pi: Floats, projected_Q: Floats, release: Release
    ) -> Generator[Round, list[Array], Floats]:
        """Return F, the server rows that stand for enough rows (Algorithm 4, SimplifyServerData).

        Line 6 compares the noisy weights with 2 log n / epsilon, which is far below their noise Lap(T / epsilon), so
        that server rows without any row would pass. The proof (Lemma 25) freezes a row at T log(T |Q|) / epsilon,
        above all of the noise with high probability: that is taken here. If fewer than k rows are left frozen, all
        server rows are kept.
        """
        T = self._n_simplify_rounds
        frozen = np.zeros(len(projected_Q), dtype=bool)  # F
        remaining = ~frozen  # Q_t
        for _ in range(T):
            candidates = np.flatnonzero(frozen | remaining)  # C
            weights = yield from self._noisy_weights(frame, Pi, projected_Q[candidates], release)
            light = np.zeros(len(projected_Q), dtype=bool)  # L
            light[candidates] = weights <= release.scale * math.log(T * len(projected_Q))
            frozen |= remaining & ~light
            remaining = light & ~frozen & (self.rng.random(len(projected_Q)) < 0.5)
            if not remaining.any():
                break
        return projected_Q[frozen] if frozen.sum() >= self.n_clusters else projected_Q

    def _noisy_weights(
        self, frame: Frame, Pi: Floats, projected_Q: Floats, release: Release
    ) -> Generator[Round, list[Array], Floats]:
        """Return the weights w_q of equation (3), with noise."""
        (weights,) = yield Sum(
            task="weights",
            arrays=[projected_Q, Pi, *frame.arrays],
            arguments=frame.arguments | self._clipping(release.sensitivity),
            releases=[release],
        )
        return weights

    # Bounds and budget.

    @property
    def n_columns(self) -> int:
        """The width of the server rows."""
        return int(np.asarray(self.server_data).shape[1])

    @property
    def n_protocol_rounds(self) -> int:
        """Steps 1 to 3 (step 1 is not needed where the subspace is all of space), the options, the Lloyd steps."""
        simplify = self._n_simplify_rounds if self.simplify_server_data else 0
        return self.reduce_diameter + self._projects + simplify + 2 + self.n_rounds

    def privacy_notes(self) -> list[str]:
        """Add what is said of the server rows."""
        return [*super().privacy_notes(), server_data_note(self.server_data, self.server_data_origin)]

    @property
    def _projects(self) -> bool:
        """Whether the data subspace is smaller than space."""
        return self.n_clusters < self.n_columns

    @property
    def _w_min(self) -> float:
        return self.smallest_cluster if self.smallest_cluster is not None else 1 / (2 * self.n_clusters)

    @property
    def _n_simplify_rounds(self) -> int:
        """T of Algorithm 4, line 2, with the part of epsilon that the weights have."""
        epsilon = (1.0 if self.epsilon is None else self.epsilon) * self._split[1] / sum(self._split)
        n_server_rows = len(np.asarray(self.server_data))
        return max(1, math.ceil(10 * math.log(4 * math.log(n_server_rows) / (epsilon * self._w_min))))

    @property
    def _split(self) -> tuple[float, ...]:
        return tuple(self.budget_split) if self.budget_split is not None else BUDGET_SPLITS[self.privacy_unit]

    def _calibrated(self) -> _Noise:
        """Return the noise multipliers with which the whole run is (epsilon, delta)-private."""
        one, two, sums, counts = self._split
        T = self.n_rounds
        # At record level one row moves one count by 1; at client level all counts move, and Laplace noise for their L1
        # norm would be larger than Gaussian noise for their Euclidean norm.
        counting: Mechanism = "laplace" if self.privacy_unit == "record" else "gaussian"
        shares: dict[str, Share] = {}
        if self.reduce_diameter:
            shares["regions"] = Share(counting, two)
        if self._projects:
            shares["second_moment"] = Share("gaussian", one)
        if self.simplify_server_data:
            shares["simplify"] = Share(counting, two / self._n_simplify_rounds, self._n_simplify_rounds)
        shares["weights"] = Share(counting, two)
        shares["sums"], shares["counts"] = Share("gaussian", sums), Share(counting, counts)
        if T > 0:
            shares["lloyd_sums"] = Share("gaussian", sums / T, T)
            shares["lloyd_counts"] = Share(counting, counts / T, T)
        found = dict(zip(shares, calibrate(tuple(shares.values()), self.epsilon, self.delta), strict=True))
        return _Noise(
            regions=found.get("regions", 0.0),
            second_moment=found.get("second_moment", 0.0),
            simplify=found.get("simplify", 0.0),
            weights=found["weights"],
            clusters=(found["sums"], found["counts"]),
            lloyd=(found.get("lloyd_sums", 0.0), found.get("lloyd_counts", 0.0)),
        )

    def _bounds(self, Q: Floats) -> ClientBounds:
        if self.bounds is not None:
            return self.bounds
        return ClientBounds.from_server_rows(Q, self.n_clusters, self.rows_per_client)

    def _weights_release(self, Q: Floats, multiplier: float) -> Release:
        if self.privacy_unit == "record":
            return Release("laplace", 1.0, multiplier, "a row is nearest to one server row")
        return Release("gaussian", self._bounds(Q).weights, multiplier, "the client clips its counts to this norm")

    def _clipping(self, bound: float) -> dict[str, Scalar]:
        return {"bound": bound} if self.privacy_unit == "client" else {}

    def _statistic(self, multipliers: tuple[float, float], frame: Frame, Q: Floats) -> ClusterStatistic:
        return cluster_statistic(
            self.privacy_unit,
            multipliers,
            frame.radius,
            self._bounds(Q).means,
            self.n_clusters,
            noise_of_sum=self.noise_of_sum if self.shrink_centers else None,
        )


# The client half.


class FedDPKMeansClient(ClusterClient, DiameterClient):
    """What a client answers: always about its rows as they are in the frame, so clipped to the radius.

    Step 3 and the Lloyd steps are :class:`ClusterClient`'s.
    """

    @answers("second_moment", sends=("sum of the outer products of the rows (upper triangle)",))
    def second_moment(self, *frame: Floats, radius: float, bound: float = math.inf) -> Floats:
        """Return (P^j)' P^j (Algorithm 1, line 4), at client level clipped to ``bound``."""
        rows = enter(self.rows, *frame, radius=radius)
        return clip_norm(symmetric_to_vector(rows.T @ rows), bound)

    @answers("weights", sends=("number of rows nearest to each server row, in the data subspace",))
    def weights(
        self, projected_Q: Floats, Pi: Floats, *frame: Floats, radius: float, bound: float = math.inf
    ) -> Floats:
        """Return w_q(Pi P^j) of equation (3), at client level clipped to ``bound``."""
        rows = enter(self.rows, *frame, radius=radius)
        counts = np.bincount(nearest_center(rows @ Pi, projected_Q), minlength=len(projected_Q))
        return clip_norm(counts.astype(np.float64), bound)

    @answers(
        "clear_cluster_sums",
        sends=("sum of the clear rows in each cluster", "number of clear rows in each cluster"),
    )
    def clear_cluster_sums(
        self, lifted: Floats, Pi: Floats, *frame: Floats, radius: float, margin: float
    ) -> tuple[Floats, Floats]:
        """Return the sums and counts of the rows within the margin (Algorithm 5, part 2)."""
        rows, labels = self._clear_rows(lifted, Pi, *frame, radius=radius, margin=margin)
        return cluster_sums(rows, labels, len(lifted))

    @answers(
        "clear_cluster_means",
        sends=(
            "mean of the client's clear rows in each cluster, less its center",
            "whether a cluster has a clear row of the client",
        ),
    )
    def clear_cluster_means(
        self, lifted: Floats, Pi: Floats, *frame: Floats, radius: float, margin: float, means_bound: float
    ) -> tuple[Floats, Floats]:
        """Return the offsets and the presence of the rows within the margin."""
        rows, labels = self._clear_rows(lifted, Pi, *frame, radius=radius, margin=margin)
        return offsets_and_presence(rows, labels, lifted, means_bound)

    def _clear_rows(
        self, lifted: Floats, Pi: Floats, *frame: Floats, radius: float, margin: float
    ) -> tuple[Floats, NDArray[np.intp]]:
        rows = enter(self.rows, *frame, radius=radius)
        projected, xi = rows @ Pi, lifted @ Pi
        labels = nearest_center(projected, xi)
        clear = within_margin(projected, xi, labels, margin)
        return rows[clear], labels[clear]


FedDPKMeans.client_type = FedDPKMeansClient
