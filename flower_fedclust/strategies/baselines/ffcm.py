"""Federated fuzzy c-means (FFCM), without noise and with it."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import (
    ClippedStrategy,
    Entry,
    Gather,
    Protocol,
    Sent,
    Sum,
    answers,
    parameter,
)
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import ONE_COUNT, Array, Moved, Round
from flower_fedclust.exact.fuzzy import fuzzy_steps, more_bits_for
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.rows import Frame
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.initialisation import weighted_kmeans
from flower_fedclust.numerics.kmeans import centers_of, squared_distances
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.strategies.common.first_centers import FirstCentersStrategy, frame_with_centers
from flower_fedclust.strategies.common.frame import FRAME_ROUNDS, FrameClient, frame_of_rows
from flower_fedclust.strategies.common.local_centers import LocalCentersClient
from flower_fedclust.strategies.common.turns import drawn_in_turns, most_turns

Floats = NDArray[np.float64]

#: A cluster whose weight is smaller, in rows, has no row.
SMALLEST_WEIGHT = 2.0**-40


class FuzzyStrategy(FirstCentersStrategy):
    """Base of the two: what a round is.

    Parameters
    ----------
    fuzzifier : float, default=2.0
        m, above 1: near 1 the clusters are those of k-means. In many columns a smaller one than 2 is needed, or all
        centers move to the mean of the rows.
    merge : "average" or "k-means", default="average"
        The first rule of the paper, the weighted average of the local centers of one number, needs nothing but sums
        over the clients. The second clusters the local centers of all clients by k-means, for which the server sees
        them; it helps where the clients have different clusters and take many local steps.
    fraction_fit : float, default=1.0
        The part of the clients that is drawn for a round, each as often as any other.
    """

    fuzzifier: float = parameter(2.0, above=1)
    merge: Literal["average", "k-means"] = parameter("average")
    n_rounds: int = parameter(20, at_least=1)
    fraction_fit: float = parameter(1.0, above=0, at_most=1)

    @property
    def n_protocol_rounds(self) -> int:
        """One for each round of steps, and one for k-FED."""
        return self.n_rounds + self._start.by_k_fed

    def _drawn(self, *, most: int | None = None) -> list[list[str]]:
        """Return the clients of each round; no client in more rounds than ``most``."""
        n_drawn = self.n_to_draw(self.fraction_fit, len(self.client_names))
        return drawn_in_turns(self.client_names, n_drawn, self.n_rounds, self.rng, most=most)

    def _step(
        self,
        centers: Floats,
        frame: Frame,
        clients: Sequence[str],
        *,
        n_local_steps: int = 1,
        more_bits: int = 0,
        parts: Sequence[str] = (),
    ) -> Generator[Round, Any, Floats]:
        """Return the merged centers of one round, in the coordinates of the frame."""
        # With noise, a weight below that of one row is noise, and would only magnify the noise of the sum.
        at_least = 1.0 if parts else SMALLEST_WEIGHT

        def divided(sums_and_weights: Sequence[Array]) -> Floats:
            sums, weights = sums_and_weights
            # Averages of clipped rows lie in the ball, whatever noise does to the sums.
            return clip_rows(centers_of(sums, weights, fallback=centers, at_least=at_least), frame.radius)

        asked = FuzzyClient.fuzzy_sums if self.merge == "average" else FuzzyClient.own_fuzzy_sums
        question = asked.asked(
            centers, *frame.arrays, fuzzifier=self.fuzzifier, n_local_steps=n_local_steps, more_bits=more_bits
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
            # A former center in the place of one that is all noise counts as one row.
            weights = np.maximum(np.concatenate([reply.arrays[1] for reply in replies]), 1.0)
        return _merged_by_kmeans(local_centers, weights, centers, self.rng)


class FFCM(FuzzyStrategy):
    """Federated fuzzy c-means: every row belongs to every cluster, to the nearer ones more.

    In a round every client starts from the server's centers, takes steps of fuzzy c-means on its own rows, and sends
    of each cluster the sum of its rows, each weighted by its membership to the power of the fuzzifier, and the sum of
    these weights. The server merges the clients' centers. With one local step and merge="average" it is fuzzy c-means
    on the pooled rows, whichever client has which: three rounds of sums find a grid on which rows are integers, and
    sums are exact. Nothing hides what is sent; see :class:`PrivateFFCM` for noise.

    The model predicts by the nearest center, in which a row's membership is the largest.

    Weights are multiples of 2^-25, or of up to 2^-15 where there are more than 4,096 rows, so that their sums are
    exact. In k clusters the weight of a row that is in none may be as small as ``k^-m``: a fuzzifier for which this is
    below these multiples leaves clusters without weight, and their centers where they are.

    Parameters
    ----------
    init : array-like of shape (n_clusters, n_columns), optional
        The first centers; by default they are found by k-FED, which takes one round in which the server sees each
        client's own centers.
    n_rounds : int, default=20
        At most; fewer if the centers stop moving.
    n_local_steps : int, default=1
        Iterations of a client in a round. With more than one the clients' centers drift towards their own rows, and
        the average is not fuzzy c-means on the pooled rows any more.
    tol : float, default=1e-6
        The run stops when no center has moved by more than this, in the units of the rows.

    References
    ----------
    Stallmann and Wilbik, "Towards federated clustering: a federated fuzzy c-means algorithm (FFCM)", 2022,
    arXiv:2201.07316. Of fuzzy c-means: Bezdek, "Pattern recognition with fuzzy objective function algorithms", 1981.
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
        """Those that find the frame, one for k-FED, and one for each round of steps."""
        return FRAME_ROUNDS + super().n_protocol_rounds

    def protocol(self) -> Protocol:
        """Send the centers, have them moved by the clients, merge what comes back; until nothing moves."""
        frame, n_rows = yield from frame_of_rows()
        given = yield from self._start.find(self.n_clusters, self.n_columns, self.rng)
        # A center that is farther still has hardly a weight, unless all are.
        frame, first = frame_with_centers(frame, given, times_the_reach=256.0)
        centers, more_bits, n_steps = first, more_bits_for(n_rows), self.n_local_steps
        for clients in self._drawn():
            step = self._step(centers, frame, clients, n_local_steps=n_steps, more_bits=more_bits)
            former, centers = centers, (yield from step)
            if np.linalg.norm(centers - former, axis=1).max() <= self.tol:
                break
        has_moved = (centers != first).any(axis=1, keepdims=True)
        return KMeansModel(np.where(has_moved, frame.leave(centers), given))


class PrivateFFCM(ClippedStrategy, FuzzyStrategy):
    """Federated fuzzy c-means with noise on the sums and the weights, from points drawn without a look at the rows.

    As :class:`FFCM` with one local step: after a second one every weight would depend on all rows of the client, and
    nothing would bound what one row does. With merge="k-means" a local center counts by its noisy weight, as one with
    little weight is mostly noise.

    Parameters
    ----------
    init : array-like of shape (n_clusters, n_columns), optional
        The first centers, which count as public; by default points drawn uniformly from the ball of radius
        ``max_norm``: a poor start where the rows fill a small part of it.
    n_rounds : int, default=20
        All of them are run, as the budget is for all.
    epsilon : float, default=1.0
        The privacy budget of the whole run.

    Notes
    -----
    A row x sends w and ``w x^T`` with ``w_j = u_j^m``, where u depends on x and on the server's centers alone. As u
    adds up to 1 and m > 1, w has no negative entry and ``||w||_2 <= ||w||_1 <= 1``; and ``||w x^T||_F = ||w||_2 ||x||_2
    <= max_norm``.

    References
    ----------
    Stallmann and Wilbik 2022, with noise on what is sent.
    """

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
                "noise is 'clients' and merge is 'k-means', for which the server sees each client's reply, and a share "
                "of the noise protects none; give noise='local', noise='server' or merge='average'."
            )

    def parts(self) -> Mapping[str, Part]:
        """Return three quarters for the sums, a quarter for the weights.

        Before a run knows its clients, as if one had a part in every round.
        """
        count = most_turns(self, self.fraction_fit, self.n_rounds)
        answers = (FuzzyClient.fuzzy_sums, FuzzyClient.own_fuzzy_sums)
        return {"sums": Part(answers, 0.75, count), "weights": Part(answers, 0.25, count)}

    def protocol(self) -> Protocol:
        """Send the centers, have them moved by the clients, merge what comes back."""
        assert self.max_norm is not None
        centers = yield from self._start.find(self.n_clusters, self.n_columns, self.rng)
        ball = Frame(np.zeros(centers.shape[1]), self.max_norm)
        for clients in self._drawn(most=self.frozen_plan.shares["sums"].count):
            centers = yield from self._step(centers, ball, clients, parts=("sums", "weights"))
        return KMeansModel(centers)


def _merged_by_kmeans(
    local_centers: Floats, weights: Floats | None, former: Floats, rng: np.random.Generator
) -> Floats:
    """Return the k-means centers of all clients' centers, in the order of the former centers that they are nearest to.

    So numbered, centers that stay where they are have not moved. Where the clients' centers are fewer different points
    than there are clusters, the former centers that are left over stay.
    """
    from scipy.optimize import linear_sum_assignment

    # In units of the largest entry, as squares of large numbers overflow; a power of two rounds nothing.
    exponent = int(np.frexp(max(np.abs(local_centers).max(), np.abs(former).max()))[1])
    pool, merged = np.ldexp(local_centers, -exponent), np.ldexp(former, -exponent)
    n_clusters = min(len(former), len(np.unique(pool, axis=0)))
    found = weighted_kmeans(pool, weights, n_clusters, rng)
    mine, theirs = linear_sum_assignment(squared_distances(found, merged))
    merged[theirs] = found[mine]
    return np.ldexp(merged, exponent)


# The client half.


def _fuzzy_moved(*frame: Floats, fuzzifier: float, n_local_steps: int, more_bits: int) -> tuple[Moved, Moved]:
    """Return how far one row moves weighted sums and weights: weights to a power of 1 or more add up to 1 at most.

    After more steps than one the weights of a row depend on all rows; and whether finer weights are refused, on their
    number.
    """
    if n_local_steps > 1 or not fuzzifier >= 1 or more_bits:
        return Moved(math.inf), Moved(math.inf)
    words = "the client clips every row to this norm, and its weights add up to 1 at most"
    return Moved(float(frame[1][0]), words=words), replace(ONE_COUNT, words="a row's weights add up to 1 at most")


class FuzzyClient(FrameClient):
    """The answers of a client about its part of a round."""

    @answers(
        Sent("sum of the rows in each cluster, weighted by membership", has_columns=True),
        Sent("sum of the weights in each cluster", sizes=True),
        moved=lambda _, centers, *frame, **steps: _fuzzy_moved(*frame, **steps),
    )
    def fuzzy_sums(
        self, centers: Floats, *frame: Floats, fuzzifier: float, n_local_steps: int, more_bits: int
    ) -> tuple[GridArray, GridArray]:
        """Return ``sum_i u_ij^m x_i`` and ``sum_i u_ij^m``, whose quotient is the client's center after its steps.

        Raises
        ------
        DataError
            If weights are to be so fine that the sums could overflow. Those that get noise are not finer than need be.
        """
        if more_bits and not 0 <= more_bits <= more_bits_for(len(self.rows)):
            raise DataError(f"client {self.name}: sums of weights with {more_bits} more bits could overflow.")
        rows = self.enter(*frame)
        points = rows.points(centers)
        sums, weights, unit = fuzzy_steps(rows.integers, points, fuzzifier, n_local_steps, more_bits=more_bits)
        return GridArray(sums, rows.exponent + unit), GridArray(weights, unit)

    @answers(
        Sent("sum of the client's rows in each cluster, weighted by membership", "centers", has_columns=True),
        Sent("sum of the client's weights in each cluster", "centers"),
        moved=lambda _, centers, *frame, **steps: _fuzzy_moved(*frame, **steps),
    )
    def own_fuzzy_sums(
        self, centers: Floats, *frame: Floats, fuzzifier: float, n_local_steps: int, more_bits: int
    ) -> tuple[GridArray, GridArray]:
        """Return the same to a server that sees the sums of every client, and so its centers."""
        return self.fuzzy_sums(centers, *frame, fuzzifier=fuzzifier, n_local_steps=n_local_steps, more_bits=more_bits)


class FFCMClient(FuzzyClient, LocalCentersClient):
    """The same, and k-FED's answer for the first centers."""


FFCM.client_type = FFCMClient
PrivateFFCM.client_type = FuzzyClient
