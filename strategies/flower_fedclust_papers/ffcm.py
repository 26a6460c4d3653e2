"""Federated fuzzy c-means (FFCM), without noise and with it."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import (
    ClippedStrategy,
    Entry,
    Gather,
    Protocol,
    Question,
    Sent,
    Sum,
    answers,
    parameter,
)
from flower_fedclust.engine.by_row import by_row
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Array, Round
from flower_fedclust.exact.elementary import power
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.terms import Term, weighted
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.initialization import weighted_kmeans
from flower_fedclust.numerics.kmeans import centers_of, squared_distances
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.releases import SUMS_OVER_ROWS
from flower_fedclust.strategies.common.client_drawing import (
    draw_equally_often,
    most_rounds_per_client,
)
from flower_fedclust.strategies.common.first_centers import (
    FirstCentersStrategy,
    LocalCentersClient,
    frame_with_centers,
)
from flower_fedclust.strategies.common.frame import FRAME_ROUNDS, FrameClient, frame_of_rows
from flower_fedclust_papers.fuzzy import fuzzy_memberships, fuzzy_steps, more_bits_for

Floats = NDArray[np.float64]

#: Without noise, a cluster counts as empty if its weight is below this many rows.
SMALLEST_WEIGHT = 2.0**-40

#: What each client sends about its clusters. With merge="average" the server sees the sum over the clients; with
#: merge="k-means" it sees what each client sends.
SUMS = (
    Sent("sum of the rows in each cluster, weighted by membership", has_columns=True),
    Sent("sum of the weights in each cluster", sizes=True),
)
OWN_SUMS = (
    Sent(
        "sum of the client's rows in each cluster, weighted by membership",
        "centers",
        has_columns=True,
    ),
    Sent("sum of the client's weights in each cluster", "centers"),
)


class FuzzyStrategy(FirstCentersStrategy):
    """Base of :class:`FFCM` and :class:`PrivateFFCM`: the rounds of fuzzy c-means.

    Parameters
    ----------
    fuzzifier : float, default=2.0
        The exponent m of the memberships, above 1; near 1 the clusters are those of k-means. In many columns it must be
        smaller than 2, or all centers move to the mean of the rows.
    merge : "average" or "k-means", default="average"
        How the server merges the clients' centers. "average", the paper's first rule, is the weighted average of the
        centers with the same number, and needs only sums over the clients. "k-means", the second, clusters the centers
        of all clients, so the server sees them. It helps if clients have different clusters and take many local steps.
    fraction_fit : float, default=1.0
        The fraction of the clients that is drawn for a round; every client is drawn equally often.
    """

    fuzzifier: float = parameter(2.0, above=1)
    merge: Literal["average", "k-means"] = parameter("average")
    n_rounds: int = parameter(20, at_least=1)
    fraction_fit: float = parameter(1.0, above=0, at_most=1)

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds: one for first centers by k-FED, if they are not given or drawn, and ``n_rounds``."""
        return self.n_rounds + self._start.by_k_fed

    def _drawn(self, *, most: int | None = None) -> list[list[str]]:
        """Return the clients that take part in each round; no client takes part in more than ``most`` rounds."""
        n_drawn = self.n_to_draw(self.fraction_fit, len(self.client_names))
        return draw_equally_often(self.client_names, n_drawn, self.n_rounds, self.rng, most=most)

    def _step(
        self,
        question: Question,
        centers: Floats,
        frame: Frame,
        clients: Sequence[str],
        *,
        parts: Sequence[str] = (),
    ) -> Generator[Round, Any, Floats]:
        """Return the merged centers of one round, in the coordinates of the frame."""
        # With noise, a weight below one row is mostly noise; dividing by it would magnify the noise of the sum.
        at_least = 1.0 if parts else SMALLEST_WEIGHT

        def divided(sums_and_weights: Sequence[Array]) -> Floats:
            sums, weights = sums_and_weights
            # Averages of clipped rows lie in the ball, whatever noise does to the sums.
            return clip_rows(
                centers_of(sums, weights, fallback=centers, at_least=at_least), frame.radius
            )

        if self.merge == "average":
            total = yield Sum(question, clients=clients, parts=parts, needed=False)
            return centers if total is None else divided(total)
        replies = yield Gather(question, clients=clients, parts=parts, needed=False)
        if replies is None:
            return centers
        local_centers = np.concatenate([divided(reply.arrays) for reply in replies])
        weights = None
        if parts:
            # If a client's weight is pure noise, the former center replaces its center and counts as one row.
            weights = np.maximum(np.concatenate([reply.arrays[1] for reply in replies]), 1.0)
        return _merged_by_kmeans(local_centers, weights, centers, self.rng)


class FFCM(FuzzyStrategy):
    """Federated fuzzy c-means: every row belongs to every cluster, and more to the nearer ones.

    In a round, every client starts from the server's centers and takes steps of fuzzy c-means on its own rows. For each
    cluster it sends the sum of its rows, each weighted by its membership to the power of the fuzzifier, and the sum of
    these weights. The server merges the clients' centers. With one local step and merge="average" this is fuzzy c-means
    on the pooled rows, however they are distributed. Sums are exact, because three rounds of sums first find a grid on
    which rows are integers. Nothing hides what is sent; :class:`PrivateFFCM` adds noise.

    The model predicts by the nearest center, which is where a row's membership is largest.

    So that sums are exact, weights are multiples of 2^-25; with more than 4,096 rows, of a larger unit up to 2^-15.
    With k clusters, the weight of a row far from all of them may be as small as ``k^-m``. If the fuzzifier m makes this
    smaller than the unit, it becomes 0, and a cluster without weight keeps its center.

    Parameters
    ----------
    init : array-like of shape (n_clusters, n_columns), optional
        The first centers. By default k-FED finds them, in one round in which the server sees each client's own centers.
    n_rounds : int, default=20
        The most rounds; fewer if the centers stop moving.
    n_local_steps : int, default=1
        Iterations of a client in a round. With more than one, the clients' centers drift towards their own rows, and
        the average is no longer fuzzy c-means on the pooled rows.
    tol : float, default=1e-6
        The run stops when no center has moved by more than this, in the units of the rows.

    References
    ----------
    Stallmann and Wilbik, "Towards federated clustering: a federated fuzzy c-means algorithm (FFCM)", 2022,
    arXiv:2201.07316. Fuzzy c-means: Bezdek, "Pattern recognition with fuzzy objective function algorithms", 1981.
    """

    entries = (
        Entry(
            "ffcm",
            "fuzzy c-means on rows that stay where they are, without noise",
            "Stallmann and Wilbik 2022",
            finds="soft",
        ),
    )

    n_local_steps: int = parameter(1, at_least=1)
    tol: float = parameter(1e-6, at_least=0)

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds: for the frame, for k-FED, and one for each round of steps."""
        return FRAME_ROUNDS + super().n_protocol_rounds

    def protocol(self) -> Protocol:
        """Send the centers, let the clients move them, and merge the results, until nothing moves."""
        frame, n_rows = yield from frame_of_rows()
        start = yield from self._start.find(self.n_clusters, self.n_columns, self.rng)
        # A center farther away than this has almost no weight, unless all centers are as far away.
        frame, first = frame_with_centers(frame, start, times_the_reach=256.0)
        asked = FuzzyClient.fuzzy_sums if self.merge == "average" else FuzzyClient.own_fuzzy_sums
        centers, more_bits = first, more_bits_for(n_rows)
        for clients in self._drawn():
            question = asked.asked(
                centers,
                *frame.arrays,
                fuzzifier=self.fuzzifier,
                n_local_steps=self.n_local_steps,
                more_bits=more_bits,
            )
            former, centers = centers, (yield from self._step(question, centers, frame, clients))
            if np.linalg.norm(centers - former, axis=1).max() <= self.tol:
                break
        has_moved = (centers != first).any(axis=1, keepdims=True)
        return KMeansModel(np.where(has_moved, frame.leave(centers), start))


class PrivateFFCM(ClippedStrategy, FuzzyStrategy):
    """Federated fuzzy c-means on noisy sums, with one local step in each round.

    A row's memberships add up to 1, so one row changes the sums of fuzzy clusters by no more than the sums of k-means.
    With merge="k-means" each client's center counts by its noisy weight, because a center of little weight is mostly
    noise.

    Parameters
    ----------
    init : array-like of shape (n_clusters, n_columns), optional
        The first centers, which count as public. By default they are drawn uniformly from the ball of radius
        ``max_norm``: a poor start if the rows fill a small part of it.
    n_rounds : int, default=20
        All of them are run, because the budget is for all.
    epsilon : float, default=1.0
        The privacy budget of the whole run.

    Notes
    -----
    A row x adds w and ``w x^T`` to the sums, with ``w_j = u_j^m``. Its memberships u depend only on x and on the
    server's centers. Because they add up to 1 and m > 1, w has no negative entry and ``||w||_2 <= ||w||_1 <= 1``; and
    ``||w x^T||_F = ||w||_2 ||x||_2 <= max_norm``.

    References
    ----------
    Stallmann and Wilbik 2022, with noise on what is sent.
    """

    promises = SUMS_OVER_ROWS

    entries = (
        Entry(
            "ffcm-private",
            "fuzzy c-means on sums with noise, from random points",
            "Stallmann and Wilbik 2022, with noise on what is sent",
            example={"max_norm": 1.0},
            finds="soft",
        ),
    )

    epsilon: float = parameter(1.0, above=0, at_most=1000)

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first parameter which cannot be right."""
        super().check_parameters()
        if self.merge == "k-means" and self.noise == "clients":
            raise ValueError(
                "noise='clients' does not go with merge='k-means': the server sees each client's reply, and a share of "
                "the noise protects none; use noise='local', noise='server' or merge='average'."
            )

    def parts(self) -> Mapping[str, Part]:
        """Return the parts of the budget: three quarters for the sums, a quarter for the weights.

        Until a run knows its clients, it assumes that one of them takes part in every round.
        """
        count = most_rounds_per_client(self, self.fraction_fit, self.n_rounds)
        answers = (PrivateFuzzyClient.weighted_rows, PrivateFuzzyClient.own_weighted_rows)
        return {"sums": Part(answers, 0.75, count), "weights": Part(answers, 0.25, count)}

    def protocol(self) -> Protocol:
        """Send the centers, let the clients move them, and merge the results."""
        assert self.max_norm is not None
        centers = yield from self._start.find(self.n_clusters, self.n_columns, self.rng)
        ball = Frame(np.zeros(centers.shape[1]), self.max_norm)
        client = PrivateFuzzyClient
        asked = client.weighted_rows if self.merge == "average" else client.own_weighted_rows
        for clients in self._drawn(most=self.frozen_plan.shares["sums"].count):
            question = asked.asked(centers, frame=ball, fuzzifier=self.fuzzifier)
            centers = yield from self._step(
                question, centers, ball, clients, parts=("sums", "weights")
            )
        return KMeansModel(centers)


def _merged_by_kmeans(
    local_centers: Floats, weights: Floats | None, former: Floats, rng: np.random.Generator
) -> Floats:
    """Cluster all clients' centers by k-means, and return the new centers in the order of the former ones.

    Each new center gets the number of the former center that it continues, so that a center that stays where it is has
    not moved. If the clients' centers have fewer distinct points than there are clusters, the other former centers
    stay.
    """
    from scipy.optimize import linear_sum_assignment

    # In units of the largest entry, because squares of large numbers overflow; a power of two rounds nothing.
    exponent = int(np.frexp(max(np.abs(local_centers).max(), np.abs(former).max()))[1])
    pool, merged = np.ldexp(local_centers, -exponent), np.ldexp(former, -exponent)
    n_clusters = min(len(former), len(np.unique(pool, axis=0)))
    centers = weighted_kmeans(pool, weights, n_clusters, rng)
    mine, theirs = linear_sum_assignment(squared_distances(centers, merged))
    merged[theirs] = centers[mine]
    return np.ldexp(merged, exponent)


class FuzzyClient(FrameClient):
    """A client that takes steps of fuzzy c-means on its own rows, without noise."""

    @answers(*SUMS)
    def fuzzy_sums(
        self, centers: Floats, *frame: Floats, fuzzifier: float, n_local_steps: int, more_bits: int
    ) -> tuple[GridArray, GridArray]:
        """Return ``sum_i u_ij^m x_i`` and ``sum_i u_ij^m``, whose quotient is the client's center after its steps."""
        if not 0 <= more_bits <= more_bits_for(len(self.rows)):
            raise DataError(
                f"client {self.name}: sums of weights with {more_bits} more bits could overflow."
            )
        rows = self.enter(*frame)
        points = rows.points(centers)
        sums, weights, unit = fuzzy_steps(
            rows.integers, points, fuzzifier, n_local_steps, more_bits=more_bits
        )
        return GridArray(sums, rows.exponent + unit), GridArray(weights, unit)

    @answers(*OWN_SUMS)
    def own_fuzzy_sums(
        self, centers: Floats, *frame: Floats, fuzzifier: float, n_local_steps: int, more_bits: int
    ) -> tuple[GridArray, GridArray]:
        """Return the same to a server that sees every client's sums, and so its centers."""
        return self.fuzzy_sums(
            centers, *frame, fuzzifier=fuzzifier, n_local_steps=n_local_steps, more_bits=more_bits
        )


class FFCMClient(FuzzyClient, LocalCentersClient):
    """The client half of :class:`FFCM`: sums of fuzzy clusters, and the client's own centers for k-FED."""


class PrivateFuzzyClient(FrameClient):
    """The client half of :class:`PrivateFFCM`: one step of fuzzy c-means, as a sum over rows."""

    @by_row(sums=SUMS[0], weights=SUMS[1])
    def weighted_rows(rows: Rows, centers: Floats, *, fuzzifier: float) -> tuple[Term, Term]:
        """Return ``sum_i u_ij^m x_i`` and ``sum_i u_ij^m``."""
        return _weighted_rows(rows, centers, fuzzifier)

    @by_row(sums=OWN_SUMS[0], weights=OWN_SUMS[1])
    def own_weighted_rows(rows: Rows, centers: Floats, *, fuzzifier: float) -> tuple[Term, Term]:
        """Return the same to a server that sees every client's sums, and so its centers."""
        return _weighted_rows(rows, centers, fuzzifier)


def _weighted_rows(rows: Rows, centers: Floats, fuzzifier: float) -> tuple[Term, Term]:
    memberships = fuzzy_memberships(rows.integers, rows.points(centers), fuzzifier)
    weights = power(memberships, fuzzifier)
    return weighted(weights, rows), weighted(weights)


FFCM.client_type = FFCMClient
PrivateFFCM.client_type = PrivateFuzzyClient
