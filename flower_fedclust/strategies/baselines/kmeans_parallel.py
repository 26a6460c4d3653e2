"""k-means||: the first centers are drawn in a few rounds, many at a time, and Lloyd steps follow."""

from __future__ import annotations

import math

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
)
from flower_fedclust.engine.inspection import usable
from flower_fedclust.engine.rounds import Moved
from flower_fedclust.exact.grid import BITS, ENTRY_BITS, GridArray, unit_exponent
from flower_fedclust.exact.rows import Frame
from flower_fedclust.exact.sums import squared_distances
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.initialisation import weighted_kmeans
from flower_fedclust.strategies.common.clusters import ClusterClient, lloyd_steps
from flower_fedclust.strategies.common.frame import FRAME_ROUNDS, RowsInFrame, frame_of_rows
from flower_fedclust.strategies.common.perturbed_rows import PerturbedRowsClient, PerturbedRowsStrategy

Floats = NDArray[np.float64]

#: Of a sum of squared distances, of which one is at most 2^52 squared units of the frame.
COST_EXPONENT = 2 * (BITS + 1) - ENTRY_BITS

#: A row and a candidate are on a grid within 2^25 units of its origin, so that no squared distance is longer.
FARTHEST = 2.0**52

#: A client draws ``oversampling`` rows at most, as expected. More than so many times that, and so many more, it draws
#: with a probability below 2^-60.
MOST_OF_EXPECTED, MOST_OF_NONE = 6.0, 60.0


class KMeansParallel(PerturbedRowsStrategy):
    """k-means||, federated: the clients draw rows that are far from those drawn before, and the server clusters them.

    k-means++ draws k centers one after the other, which would be k rounds. Here each of a few rounds draws about
    ``oversampling`` rows (Algorithm 2). Every candidate gets the number of rows that are nearest to it as its weight,
    the server clusters the weighted candidates, and Lloyd steps on sums go on from there. Three rounds of sums come
    first: they find a grid on which every client's rows are integers, so that costs and weights are exact.

    The rows that are drawn leave the clients as they are. With an epsilon each client first replaces its rows by noisy
    ones, and everything is done with these: differential privacy of each record against the server too, at the price
    of noise that few clusters survive unless epsilon is large.

    Parameters
    ----------
    n_rounds : int, default=20
        Lloyd steps at most; fewer if the centers stop moving.
    tol : float, default=1e-6
        The run stops when no center has moved by more than this, in the units of the rows.
    oversampling : float, optional
        l, about how many rows a round draws, of all clients; by default ``2 * n_clusters``.
    n_sampling_rounds : int, default=5
        The paper's bound is O(log of the cost), and 5 what it finds to be enough.

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
        """Noise, the frame, the first candidate, two for each time that rows are drawn, weights, and Lloyd steps."""
        return (self.epsilon is not None) + FRAME_ROUNDS + 1 + 2 * self.n_sampling_rounds + 1 + self.n_rounds

    # The server half.

    def protocol(self) -> Protocol:
        """Draw candidates (Algorithm 2), cluster them, and take Lloyd steps."""
        rows = yield from self.rows_to_work_on()
        frame, _ = yield from frame_of_rows(rows=rows)
        exponent = unit_exponent(frame.radius)
        # Step 1: a row drawn uniformly from all. Asking first how many rows each client has, and then one of them for a
        # row, would be one round more, and a round that a single client answers.
        replies = yield Gather(KMeansParallelClient.uniform_row.asked(random_state=self._seed()), rows=rows)
        replies = usable(self, replies, lambda reply: _beyond(frame, reply.arrays[0][None, :]))
        n_rows = np.array([float(reply.arrays[1]) for reply in replies])
        first = [reply.arrays[0] - frame.origin for reply in replies]
        candidates = first[self.rng.choice(len(replies), p=n_rows / n_rows.sum())][None, :]
        oversampling = 2.0 * self.n_clusters if self.oversampling is None else self.oversampling
        most = MOST_OF_EXPECTED * oversampling + MOST_OF_NONE
        costs = []
        for _ in range(self.n_sampling_rounds):
            # Step 2, and the same in every round for step 4.
            (cost,) = yield Sum(KMeansParallelClient.candidate_cost.asked(candidates, *frame.arrays), rows=rows)
            costs.append(float(np.ldexp(cost, 2 * exponent)))
            if cost == 0:
                break  # every row is a candidate
            # Steps 4 and 5. Rows that are equal are one candidate: the second would be nearest to none.
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
        if len(candidates) < self.n_clusters:  # a client that states a cost beyond its own keeps all from drawing
            candidates = np.unique(np.concatenate([candidates, first]), axis=0)
        # Step 7.
        (weights,) = yield Sum(KMeansParallelClient.candidate_weights.asked(candidates, *frame.arrays), rows=rows)
        nearest_to_some = weights > 0  # not those of a client that has left since
        if np.count_nonzero(nearest_to_some) < self.n_clusters:
            raise DataError(
                f"the clients drew {np.count_nonzero(nearest_to_some)} different rows and n_clusters is "
                f"{self.n_clusters}; ask for fewer clusters, or set oversampling or n_sampling_rounds higher."
            )
        # Step 8.
        centers = weighted_kmeans(candidates[nearest_to_some], weights[nearest_to_some], self.n_clusters, self.rng)
        centers = frame.leave((yield from lloyd_steps(centers, frame, self.n_rounds, self.tol, rows=rows)))
        centers = self.within_norm(centers)  # where the means of clipped rows must lie
        return Outcome(KMeansModel(centers), history={"candidate_cost": costs})


def _beyond(frame: Frame, rows: Floats, most: float = math.inf) -> str:
    """Return what is wrong with rows that a client has sent: the frame was found so that no row is outside of it."""
    if len(rows) > most:
        return "more rows than it can have drawn"
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(rows / frame.radius - frame.origin / frame.radius, axis=1)
    return "" if lengths.max(initial=0.0) <= 1 + 1e-6 else "a row that lies beyond all rows"


# The client half.


class KMeansParallelClient(PerturbedRowsClient, ClusterClient):
    """What a client answers besides: rows that it draws, how far its rows are from the candidates, and how many."""

    @answers(Sent("one row, drawn uniformly", "rows", has_columns=True), Sent("number of rows", counts_rows=True))
    def uniform_row(self, *, random_state: int) -> tuple[Floats, Floats]:
        """Return any of the rows, and their number."""
        drawn = self.generator(random_state).integers(len(self.rows))
        return self.rows[drawn], np.array(float(len(self.rows)))

    @answers(
        Sent("sum of the squared distances of the rows from the nearest candidate", is_positive=True),
        moved=lambda _, candidates, *frame: (Moved(FARTHEST, FARTHEST),),
    )
    def candidate_cost(self, candidates: Floats, *frame: Floats) -> GridArray:
        """Return the client's part of phi_X(C), in squared units of the frame; 0 only where every row is a candidate.

        Each distance is rounded up to an integer.
        """
        squares = np.ceil(np.ldexp(_least_squares(self.enter(*frame), candidates), -COST_EXPONENT))
        return GridArray(squares.astype(np.int64).sum(), COST_EXPONENT)

    @answers(Sent("the rows that were drawn", "rows", per="row", counts="some rows", has_columns=True))
    def far_rows(
        self, candidates: Floats, *frame: Floats, oversampling: float, cost: float, random_state: int
    ) -> Floats:
        """Return each row with probability ``l d^2(x, C) / phi_X(C)``, and with certainty where that is above 1.

        The rows are those of the data, and the cost is in squared units of the frame.
        """
        chances = oversampling * (_least_squares(self.enter(*frame), candidates) / cost)
        return self.rows[self.generator(random_state).random(len(self.rows)) < chances]

    @answers(Sent("number of rows nearest to each candidate", counts="every row"))
    def candidate_weights(self, candidates: Floats, *frame: Floats) -> GridArray:
        """Return w_x for each candidate x."""
        return self.enter(*frame).counts(candidates)


def _least_squares(rows: RowsInFrame, candidates: Floats) -> Floats:
    """Return each row's squared distance from the nearest candidate, exactly, in squared units of the frame."""
    points = rows.points(candidates)
    found = np.empty(len(rows))
    for block in blocks(len(rows), len(points)):
        found[block] = squared_distances(rows.integers[block], points).min(axis=1)
    return found


KMeansParallel.client_type = KMeansParallelClient
