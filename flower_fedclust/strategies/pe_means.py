"""PE-means: k-means from noisy votes on candidates that evolve.

"PE-means: Improved Differentially Private k-means Clustering through Private Evolution", arXiv 2606.00342 (2026). The
paper's data sit in one place; here the votes are sums over clients, so that nothing else leaves them.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.engine import ClippedStrategy, Entry, Protocol, Sum, parameter
from flower_fedclust.engine.by_row import by_row
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Round, Sent, Total
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.sums import directions_onto_grid
from flower_fedclust.exact.terms import Term, at
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.checks import checked_point
from flower_fedclust.numerics.kmeans import centers_of
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.strategies.private_kmeans import (
    VotesClient,
    clustered,
    gaussian_part,
    in_ball,
    kept_votes,
    mutants,
    packed_in_ball,
)

Floats = NDArray[np.float64]

#: The mutants' steps: their part of the radius, and the index of Levy's law.
STEP, BETA = 0.01, 1.75
#: Candidates of the first population that are packed; the others are drawn from the ball, as packing takes long.
MOST_PACKED = 200
#: Rows for each mutant.
ROWS_A_MUTANT = 5
#: All candidates together have so many entries at most: 8 MB, which are sent to every client.
MOST_ENTRIES = 2**20
#: Parts of what all releases may cost; the count and the last step only where there are such.
COSTS = {"row_count": 0.02, "votes": 0.7, "sums": 0.27, "counts": 0.03}
#: Restarts of the k-means of candidates: in a generation, and in the last one.
N_INIT, N_INIT_LAST = 3, 10


class PEMeansClient(VotesClient):
    """What a client answers: votes and, where they are taken in a projection, the sums of the last step."""

    @by_row(
        sums="sum of the rows in each cluster",
        counts=Sent("number of rows in each cluster", counts="every row", sizes=True),
    )
    def projected_sums(rows: Rows, centers: Floats, directions: Floats) -> tuple[Term, Term]:
        """Return sums, in all columns, of the rows nearest to each center in the projection."""
        nearest = rows.projected(directions).nearest(centers)
        return at(nearest, len(centers), rows), at(nearest, len(centers))


class PEMeans(ClippedStrategy):
    """PE-means: each generation, rows vote for the nearest candidate, and the next candidates are mutants of the best.

    Parameters
    ----------
    max_norm : float, optional
        The radius of the ball about ``origin`` to which every client clips its rows, and which the first candidates
        fill; needed. It is public, and not taken from data; the paper takes it from the rows without paying.
    epsilon : float, default=1.0
        The privacy budget of the whole run, for one row that is added or removed.
    origin : array-like of shape (n_columns,), optional
        The public middle of the ball; 0 by default. The paper takes the mean of the rows without paying.
    n_rows : int, optional
        The number of all rows, where it is public, as in the paper; otherwise a noisy count is paid for.
    n_rounds : int, default=8
        Generations. The paper's number is :meth:`generations`, which grows with the columns and with epsilon.
    n_directions : int, optional
        Votes are taken in a random projection to so many directions, and a last step leaves it; by default in all
        columns. The paper has 16 where there are more than 32 columns.

    References
    ----------
    "PE-means: Improved Differentially Private k-means Clustering through Private Evolution", arXiv 2606.00342.
    """

    entries = (
        Entry(
            "pe-means",
            "private k-means from noisy votes on candidates that evolve",
            "PE-means 2026",
            example={"max_norm": 3.0},
        ),
    )
    client_type = PEMeansClient

    epsilon: float = parameter(1.0, above=0, at_most=1000)
    origin: ArrayLike | None = parameter(None)
    n_rows: int | None = parameter(None, at_least=1)
    n_rounds: int = parameter(8, at_least=1)
    n_directions: int | None = parameter(None, at_least=1)

    @staticmethod
    def generations(n_columns: int, epsilon: float) -> int:
        """Return the paper's number of generations, for the columns in which votes are taken."""
        return max(1, round(4 * math.sqrt(n_columns) * max(epsilon, 1.0)))

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first parameter which cannot be right."""
        super().check_parameters()
        if self.origin is not None:
            checked_point("origin", self.origin)

    def protocol(self) -> Protocol:
        """Vote, cluster the candidates, mutate; at the end leave the projection, if there is one."""
        assert self.max_norm is not None
        origin = np.zeros(self.n_columns) if self.origin is None else np.asarray(self.origin, dtype=np.float64)
        frame = Frame(origin, self.max_norm)
        n_rows = yield from self._count()
        directions = np.zeros((0, 0))
        if self.n_directions is not None:
            drawn = self.rng.standard_normal((self.n_columns, self.n_directions)) / math.sqrt(self.n_directions)
            # On the clients' grid a direction is at most 1 long; all are made shorter alike, which moves no vote.
            directions = directions_onto_grid(drawn / max(float(np.linalg.norm(drawn, axis=0).max()), 1.0))
        centers = yield from self._evolve(frame, directions, n_rows)
        if directions.size:
            centers = yield from self._leave_projection(frame, directions, centers)
        return KMeansModel(frame.leave(centers))

    def _count(self) -> Generator[Round, Total, float]:
        if self.n_rows is not None:
            return float(self.n_rows)
        (count,) = yield Sum(PEMeansClient.row_count.asked(), parts=["row_count"])
        return max(float(count), 1.0)

    def _evolve(self, frame: Frame, directions: Floats, n_rows: float) -> Generator[Round, Total, Floats]:
        """Return the centers of the last generation."""
        k, radius = self.n_clusters, frame.radius
        n_columns = directions.shape[1] if directions.size else self.n_columns
        most = MOST_ENTRIES / (k * n_columns)  # whatever number of rows clients state
        n_mutants = max(1, int(min(n_rows / (ROWS_A_MUTANT * k), most)))  # L
        n_candidates = (n_mutants + 1) * k
        candidates = packed_in_ball(min(n_candidates, MOST_PACKED), n_columns, radius, self.rng)
        drawn = in_ball(n_candidates - len(candidates), n_columns, radius, self.rng)
        candidates = np.concatenate([candidates, drawn])
        for generation in range(self.n_rounds):
            (votes,) = received = yield Sum(
                PEMeansClient.votes.asked(candidates, directions, frame=frame), parts=["votes"]
            )
            variance = received.noise[0] ** 2
            # Where votes are mostly noise, fewer candidates have more votes each.
            if votes @ votes - len(votes) * variance < len(votes) * variance:
                n_mutants = max(1, n_mutants // 2)
            is_last = generation == self.n_rounds - 1
            n_init = N_INIT_LAST if is_last else N_INIT
            centers = clustered(candidates, kept_votes(votes, n_rows), k, self.rng, n_init=n_init)
            moved = mutants(centers, n_mutants, STEP * radius, BETA, radius, self.rng)
            candidates = np.concatenate([centers, moved])
        return centers

    def _leave_projection(self, frame: Frame, directions: Floats, centers: Floats) -> Generator[Round, Total, Floats]:
        """Return the noisy means, in all columns, of the rows nearest to each center in the projection.

        With noise of its own in every column, paid for from the budget: the authors' code adds one number to all
        columns, and calibrates it for two releases fewer than there are.
        """
        question = PEMeansClient.projected_sums.asked(centers, directions, frame=frame)
        sums, counts = yield Sum(question, parts=["sums", "counts"])
        return clip_rows(centers_of(sums, counts, fallback=np.zeros_like(sums)), frame.radius)

    @property
    def n_protocol_rounds(self) -> int:
        """One for the count, unless it is public, one for each generation, and one to leave the projection."""
        return int(self.n_rows is None) + self.n_rounds + int(self.n_directions is not None)

    @property
    def expected_columns(self) -> int | None:
        """The width of the origin, where it was given."""
        return None if self.origin is None else len(np.asarray(self.origin))

    def parts(self) -> Mapping[str, Part]:
        """Return those of the votes, of the count, and of the last step."""
        client, last = PEMeansClient, int(self.n_directions is not None)
        return {
            "row_count": gaussian_part(client.row_count, COSTS["row_count"], int(self.n_rows is None)),
            "votes": gaussian_part(client.votes, COSTS["votes"], self.n_rounds),
            "sums": gaussian_part(client.projected_sums, COSTS["sums"], last),
            "counts": gaussian_part(client.projected_sums, COSTS["counts"], last),
        }

    def privacy_notes(self) -> list[str]:
        """Add what is taken to be public."""
        notes = super().privacy_notes()
        if self.n_rows is not None:
            notes.append(f"The number of all rows, {self.n_rows}, is taken to be public, and no guarantee covers it.")
        return notes
