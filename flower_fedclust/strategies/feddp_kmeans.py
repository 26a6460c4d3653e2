"""FedDP-KMeans (Scott, Lampert and Saulpic, ICML 2025): private k-means that starts well from a few public rows.

P are the clients' rows and Q the server's. The columns of Pi span the subspace in which the rows
spread most; xi are the centers in this subspace, and nu the centers in all columns.

docs/shape.md shows how a ``yield`` here becomes a round of Flower.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import Entry, Protocol, Sent, Sum, Total, parameter
from flower_fedclust.engine.by_row import by_row, finishes
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Question, Round
from flower_fedclust.exact.grid import from_units
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.sums import directions_onto_grid, is_off_diagonal, triangle_to_symmetric
from flower_fedclust.exact.terms import Term, at, clipped_total, products
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.initialization import weighted_kmeans
from flower_fedclust.numerics.vectors import clip_rows, top_eigenvectors
from flower_fedclust.privacy.releases import PrivacyUnit
from flower_fedclust.strategies.common.clusters import (
    ClientBounds,
    ClusterClient,
    ClusterStatistic,
    counting,
    lloyd_parts,
)
from flower_fedclust.strategies.common.server_data import ServerDataStrategy

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: The fractions of epsilon for steps 1 and 2 of Algorithm 1, and for the sums and the counts of step 3 (appendix G.4).
BUDGET: dict[PrivacyUnit, tuple[float, float, float, float]] = {
    "record": (0.2, 0.2, 0.45, 0.15),
    "subject": (0.2, 0.2, 0.45, 0.15),
    "client": (0.35, 0.1, 0.45, 0.1),
}


@dataclass(frozen=True)
class Ball:
    """A ball that holds the clients' rows.

    It is the ball of the frame. If clients first transform their rows by a ``view``, it is the smaller ball of radius
    ``view_radius`` that holds the transformed rows.
    """

    frame: Frame
    view: Question | None = None
    view_radius: float = 0.0  #: Used only with a view.

    @property
    def radius(self) -> float:
        """The radius, in the units of the data."""
        return self.frame.radius if self.view is None else self.view_radius

    @property
    def rows(self) -> dict[str, Any]:
        """The arguments of a question about rows in the ball."""
        return {"frame": self.frame} if self.view is None else {"frame": None, "view": self.view}


class FedDPKMeans(ServerDataStrategy):
    """Private k-means: FedDP-Init (Algorithm 1), then FedDP-Lloyds (Algorithm 2).

    The server needs only sums over the clients: a second moment, one weight for each server row,
    and the sums and counts of the clusters. Each is released with noise, calibrated so that the
    whole run is (epsilon, delta)-private.

    Parameters
    ----------
    n_rounds : int, default=0
        T, Lloyd steps after the initialization; the paper finds 0 or 1 best.
    bounds : ClientBounds, optional
        At client level: the bounds to which clients clip, instead of bounds that follow from
        rows_per_client.

    Notes
    -----
    By default the budget is divided as in appendix G.4. All Lloyd steps together take as much of it
    as step 3 of Algorithm 1. The strategy "feddp-kmeans-proofs" of the second distribution adds the
    steps that only the paper's proofs need (Algorithms 4 and 5, Lemma 16).

    References
    ----------
    "Differentially private federated k-means with server-side data", Algorithms 1 and 2, appendix
    G.
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

    # The server half.

    def protocol(self) -> Protocol:
        """Run FedDP-Init, then FedDP-Lloyds."""
        server_data = self._server_rows()
        frame = Frame.around(server_data, centered=self.center_rows)
        ball, Q = Ball(frame), frame.enter(server_data)

        # Algorithm 1, step 1: the projection onto the top k right singular vectors of P.
        Pi = yield from self._step_1(ball, Q)
        # Step 2: the number of rows that each server row stands for in the data subspace, and the centers there.
        xi = yield from self._step_2(ball, Q, Pi, Q @ Pi)
        # Step 3: the centers in all columns. It is a Lloyd step from the centers Pi xi_r: because Pi has orthonormal
        # columns, a row is nearest to Pi xi_r in all columns if its projection is nearest to xi_r in the subspace.
        nu = yield from self._lloyd_step(ball, Q, xi @ Pi.T, ("sums", "counts"))
        # Algorithm 2.
        for _ in range(self.n_rounds):
            nu = yield from self._lloyd_step(ball, Q, nu, ("lloyd_sums", "lloyd_counts"))
        return KMeansModel(frame.leave(nu))

    def _step_1(self, ball: Ball, Q: Floats) -> Generator[Round, Total, Floats]:
        """Return Pi, a basis of the data subspace, of shape (n_columns, min(n_clusters, n_columns))."""
        if not self._projects:
            return np.eye(self.expected_columns)
        if self.privacy_unit != "client":
            question = FedDPKMeansClient.second_moment.asked(**ball.rows)
        else:
            bound = self._bounds(Q).second_moment
            question = FedDPKMeansClient.traceless_moment.asked(**ball.rows, moment_bound=bound)
        (moment,) = yield Sum(question, parts=["second_moment"])
        return directions_onto_grid(
            top_eigenvectors(triangle_to_symmetric(moment), self.n_clusters)
        )

    def _step_2(
        self, ball: Ball, Q: Floats, Pi: Floats, projected_Q: Floats
    ) -> Generator[Round, Total, Floats]:
        """Return xi, the centers in the data subspace, of shape (n_clusters, n_dimensions of the subspace)."""
        (weights,) = received = yield self._weights_round(
            "weights", self._weights(ball, Pi, projected_Q), Q
        )
        # A weight below one standard deviation of its noise may be noise alone, and could draw a center to an empty
        # place. The paper does not say what to do with negative weights.
        weights = np.where(weights > received.noise[0], weights, 0.0)
        if np.count_nonzero(weights) < self.n_clusters:
            # If too little weight is left, the server rows alone place the centers.
            weights = np.ones(len(projected_Q))
        return weighted_kmeans(projected_Q, weights, self.n_clusters, self.rng)

    def _lloyd_step(
        self, ball: Ball, Q: Floats, centers: Floats, parts: tuple[str, str]
    ) -> Generator[Round, Total, Floats]:
        """Return the centers after one Lloyd step, clipped to the ball."""
        statistic = self._statistic(parts, Q)
        reply = yield statistic.asked(centers, **ball.rows)
        return clip_rows(statistic.next_centers(reply, centers), ball.radius)

    def _weights(self, ball: Ball, Pi: Floats, projected_Q: Floats) -> Question:
        """Return the question for the weights w_q of equation (3)."""
        question: Question = FedDPKMeansClient.weights.asked(projected_Q, Pi, **ball.rows)
        return question

    def _weights_round(self, part: str, question: Question, Q: Floats) -> Sum:
        """Return the round that asks for numbers of rows by server row; at client level clients clip their numbers."""
        if self.privacy_unit == "client":
            question = question.total(self._bounds(Q).weights)
        return Sum(question, parts=[part])

    # Bounds and budget.

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds: for steps 1 to 3 (step 1 only with fewer clusters than columns), and Lloyd steps."""
        return self._projects + 2 + self.n_rounds

    @property
    def _projects(self) -> bool:
        """Whether the data subspace has fewer dimensions than there are columns."""
        return self.n_clusters < self.expected_columns

    def parts(self) -> Mapping[str, Part]:
        """Return the parts of the budget for steps 1 to 3 and for the Lloyd steps."""
        norms, two, sums, counts = BUDGET[self.privacy_unit]
        client, of_counts = FedDPKMeansClient, counting(self.privacy_unit)
        clusters = (client.cluster_sums, client.cluster_means)
        return {
            "second_moment": Part(
                (client.second_moment, client.traceless_moment), norms, int(self._projects)
            ),
            "weights": Part(client.weights, two, 1, of_counts),
            "sums": Part(clusters, sums),
            "counts": Part(clusters, counts, 1, of_counts),
            **lloyd_parts("lloyd_", sums, counts, self.n_rounds, self.privacy_unit),
        }

    def _bounds(self, Q: Floats) -> ClientBounds:
        if self.bounds is not None:
            return self.bounds
        return ClientBounds.from_server_rows(Q, self.n_clusters, self.rows_per_client)

    def _statistic(self, parts: tuple[str, str], Q: Floats) -> ClusterStatistic:
        bound = self._bounds(Q).means if self.privacy_unit == "client" else None
        return ClusterStatistic(parts, self.shrink_centers, bound)


# The client half.


class FedDPKMeansClient(ClusterClient):
    """The client half of :class:`FedDPKMeans`; :class:`ClusterClient` answers step 3 and the Lloyd steps."""

    @by_row(second_moment="sum of the outer products of the rows (upper triangle)")
    def second_moment(rows: Rows) -> Term:
        """Return (P^j)' P^j (Algorithm 1, line 4)."""
        return products(rows)

    @finishes(
        second_moment,
        "moment_bound",
        moment="the client's second moment, less its mean eigenvalue times I",
    )
    def traceless_moment(
        totals: tuple[Term, ...],
        n_rows: Integers,  # noqa: ARG004
        *,
        moment_bound: float,
    ) -> Term:
        """Return (P^j)' P^j less its mean eigenvalue times I: same eigenvectors, but a smaller norm to clip to."""
        moments, n_columns = totals[0].integers.copy(), math.isqrt(2 * totals[0].integers.shape[-1])
        diagonal = ~is_off_diagonal(n_columns)
        moments[:, diagonal] -= moments[:, diagonal].sum(axis=1, keepdims=True) // n_columns
        matrices = triangle_to_symmetric(from_units(moments, totals[0].exponent))
        return clipped_total(
            matrices, moment_bound, triangle=True, words="the client clips its matrix to this norm"
        )

    @by_row(
        weights=Sent(
            "number of rows nearest to each server row, in the data subspace", counts="every row"
        )
    )
    def weights(rows: Rows, projected_Q: Floats, Pi: Floats) -> Term:
        """Return w_q(Pi P^j) of equation (3): how many of the client's rows are nearest to each server row q."""
        return at(rows.projected(Pi).nearest(projected_Q), len(projected_Q))


FedDPKMeans.client_type = FedDPKMeansClient
