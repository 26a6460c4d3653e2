"""k-means||: the first centers are drawn in a few rounds, many at a time, and Lloyd steps follow."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import (
    Entry,
    Gather,
    Outcome,
    Protocol,
    Sent,
    Sum,
    answers,
    parameter,
    usable,
)
from flower_fedclust.engine.by_row import by_row
from flower_fedclust.engine.rounds import Round
from flower_fedclust.exact.capacity import entry_bits
from flower_fedclust.exact.grid import BITS, unit_exponent
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.sums import squared_distances
from flower_fedclust.exact.terms import Term, at, unbounded
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.initialization import weighted_kmeans
from flower_fedclust.strategies.common.clusters import ClusterClient, lloyd_steps
from flower_fedclust.strategies.common.frame import FRAME_ROUNDS, frame_of_rows
from flower_fedclust_papers.perturbed_rows import PerturbedRowsClient, PerturbedRowsStrategy

Floats = NDArray[np.float64]

#: A limit on the rows that a client may send in a round: MOST_OF_EXPECTED times ``oversampling``, the most that it is
#: expected to draw, plus MOST_OF_NONE. It draws more with a probability below 2^-60.
MOST_OF_EXPECTED, MOST_OF_NONE = 6.0, 60.0


def cost_exponent() -> int:
    """Return the exponent of the unit of a sum of squared distances.

    A row and a candidate lie on a grid within 2^25 units of its origin, so a squared distance is at most 2^52 squared
    units of the frame.
    """
    return 2 * (BITS + 1) - entry_bits()


class KMeansParallel(PerturbedRowsStrategy):
    """k-means||, federated: clients draw rows far from those drawn before, and the server clusters them.

    k-means++ draws k centers one after the other, which would take k rounds. Here each of a few rounds draws about
    ``oversampling`` rows as candidates (the paper's Algorithm 2). The weight of a candidate is the number of rows
    nearest to it. The server clusters the weighted candidates, and Lloyd steps on sums follow. Three rounds of sums
    come first. They find a grid on which every client's rows are integers, so that costs and weights are exact.

    The drawn rows leave the clients unchanged. With an epsilon, each client first replaces its rows by noisy ones and
    uses only these. Each record is then differentially private, against the server too, but few clusters survive the
    noise unless epsilon is large.

    Parameters
    ----------
    n_rounds : int, default=20
        The most Lloyd steps; fewer if the centers stop moving.
    tol : float, default=1e-6
        The run stops when no center has moved by more than this, in the units of the rows.
    oversampling : float, optional
        About how many rows a round draws from all clients together, l in the paper; defaults to ``2 * n_clusters``.
    n_sampling_rounds : int, default=5
        How many times rows are drawn. The paper's bound is O(log of the cost), and its experiments find 5 to be enough.

    References
    ----------
    Bahmani, Moseley, Vattani, Kumar and Vassilvitskii, "Scalable k-means++", VLDB 2012.
    """

    entries = (
        Entry(
            "k-means-parallel",
            "k-means||: rows far from those drawn before are drawn in a few rounds, then Lloyd steps; some rows are "
            "sent",
            "Bahmani, Moseley, Vattani, Kumar and Vassilvitskii 2012",
        ),
    )

    n_rounds: int = parameter(20, at_least=0)
    tol: float = parameter(1e-6, at_least=0)
    oversampling: float | None = parameter(None, above=0)
    n_sampling_rounds: int = parameter(5, at_least=1)

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds.

        The noise, the frame and the first candidate come first. Then each drawing of rows takes two
        rounds. One round for the weights follows, and the Lloyd steps.
        """
        return (
            (self.epsilon is not None)
            + FRAME_ROUNDS
            + 1
            + 2 * self.n_sampling_rounds
            + 1
            + self.n_rounds
        )

    def protocol(self) -> Protocol:
        """Draw candidates (Algorithm 2), cluster them, and take Lloyd steps."""
        rows = yield from self.rows_to_work_on()
        frame, _ = yield from frame_of_rows(rows=rows)
        candidates, costs = yield from self._candidates(frame, rows)
        # Step 7.
        (weights,) = yield Sum(
            KMeansParallelClient.candidate_weights.asked(candidates, frame=frame), rows=rows
        )
        has_rows = weights > 0  # a candidate may come from a client that has left since
        if np.count_nonzero(has_rows) < self.n_clusters:
            raise DataError(
                f"n_clusters={self.n_clusters} is too large: the clients drew {np.count_nonzero(has_rows)} distinct "
                "rows; set it lower, or oversampling or n_sampling_rounds higher."
            )
        # Step 8.
        centers = weighted_kmeans(
            candidates[has_rows], weights[has_rows], self.n_clusters, self.rng
        )
        centers = frame.leave(
            (yield from lloyd_steps(centers, frame, self.n_rounds, self.tol, rows=rows))
        )
        centers = self.within_norm(centers)  # where the means of clipped rows must lie
        return Outcome(KMeansModel(centers), history={"candidate_cost": costs})

    def _candidates(
        self, frame: Frame, rows: str
    ) -> Generator[Round, Any, tuple[Floats, list[float]]]:
        """Return the candidates, in the coordinates of the frame, and the cost before each drawing of rows."""
        # Step 1: one row, drawn uniformly from all. Each client sends one of its rows and their number, and the server
        # draws a client. If it first asked for the numbers only, that would take one more round.
        replies = yield Gather(
            KMeansParallelClient.uniform_row.asked(random_state=self._seed()), rows=rows
        )
        replies = usable(self, replies, lambda reply: _beyond(frame, reply.arrays[0][None, :]))
        n_rows = np.array([float(reply.arrays[1]) for reply in replies])
        first = [reply.arrays[0] - frame.origin for reply in replies]
        candidates = first[self.rng.choice(len(replies), p=n_rows / n_rows.sum())][None, :]
        oversampling = 2.0 * self.n_clusters if self.oversampling is None else self.oversampling
        most = MOST_OF_EXPECTED * oversampling + MOST_OF_NONE
        costs = []
        for _ in range(self.n_sampling_rounds):
            # Step 2 and, in later rounds, step 4.
            (cost,) = yield Sum(
                KMeansParallelClient.candidate_cost.asked(candidates, frame=frame), rows=rows
            )
            costs.append(float(np.ldexp(cost, 2 * unit_exponent(frame.radius))))
            if cost == 0:
                break  # every row is a candidate
            # Steps 4 and 5. Equal rows are one candidate: the second would be nearest to no row.
            question = KMeansParallelClient.far_rows.asked(
                candidates,
                *frame.arrays,
                oversampling=oversampling,
                cost=float(cost),
                random_state=self._seed(),
            )
            replies = yield Gather(question, rows=rows)
            replies = usable(self, replies, lambda reply: _beyond(frame, reply.arrays[0], most))
            drawn = [reply.arrays[0] - frame.origin for reply in replies]
            candidates = np.unique(np.concatenate([candidates, *drawn]), axis=0)
        # There are too few candidates if a client overstates its cost, because then all clients draw fewer rows.
        if len(candidates) < self.n_clusters:
            candidates = np.unique(np.concatenate([candidates, first]), axis=0)
        return candidates, costs


def _beyond(frame: Frame, rows: Floats, most: float = math.inf) -> str:
    """Return what is wrong with the rows that a client sent: too many, or outside the frame that holds all rows."""
    if len(rows) > most:
        return "more rows than it can have drawn"
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(rows / frame.radius - frame.origin / frame.radius, axis=1)
    return "" if lengths.max(initial=0.0) <= 1 + 1e-6 else "a row that lies beyond all rows"


class KMeansParallelClient(PerturbedRowsClient, ClusterClient):
    """Draws rows, and adds up their distances from the candidates."""

    @answers(
        Sent("one row, drawn uniformly", "rows", has_columns=True),
        Sent("number of rows", counts_rows=True),
    )
    def uniform_row(self, *, random_state: int) -> tuple[Floats, Floats]:
        """Return one of the rows, and their number."""
        drawn = self.generator(random_state).integers(len(self.rows))
        return self.rows[drawn], np.array(float(len(self.rows)))

    @by_row(
        cost=Sent(
            "sum of the squared distances of the rows from the nearest candidate", is_positive=True
        )
    )
    def candidate_cost(rows: Rows, candidates: Floats) -> Term:
        """Return phi_X(C), the sum of the rows' squared distances from the nearest candidates.

        In squared units of the frame, with distances rounded up, so that it is 0 only if all rows are candidates.
        """
        exponent = cost_exponent()
        squares = np.ceil(np.ldexp(_least_squares(rows, candidates), -exponent))
        return unbounded(squares, exponent, 2 ** entry_bits())

    @answers(
        Sent("the rows that were drawn", "rows", per="row", counts="some rows", has_columns=True)
    )
    def far_rows(
        self,
        candidates: Floats,
        *frame: Floats,
        oversampling: float,
        cost: float,
        random_state: int,
    ) -> Floats:
        """Return each row with probability ``min(1, l d^2(x, C) / phi_X(C))``, in squared units of the frame."""
        chances = oversampling * (_least_squares(self.enter(*frame), candidates) / cost)
        return self.rows[self.generator(random_state).random(len(self.rows)) < chances]

    @by_row(weights=Sent("number of rows nearest to each candidate", counts="every row"))
    def candidate_weights(rows: Rows, candidates: Floats) -> Term:
        """Return w_x for each candidate x."""
        return at(rows.nearest(candidates), len(candidates))


def _least_squares(rows: Rows, candidates: Floats) -> Floats:
    """Return each row's squared distance from the nearest candidate, exactly, in squared units of the frame."""
    points = rows.points(candidates)
    solutions = np.empty(len(rows))
    for block in blocks(len(rows), len(points)):
        solutions[block] = squared_distances(rows.integers[block], points).min(axis=1)
    return solutions


KMeansParallel.client_type = KMeansParallelClient
