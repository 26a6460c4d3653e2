"""PE-means: k-means from noisy votes on candidates that evolve (arXiv 2606.00342, 2026).

The paper has all rows in one place. Here clients send only the numbers of votes of their rows, which are added up.
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
from flower_fedclust.exact.terms import Term, at, count
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.checks import checked_point
from flower_fedclust.numerics.kmeans import centers_of
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.releases import SUMS_OVER_ROWS
from flower_fedclust.strategies.common.frame import FrameClient
from flower_fedclust.strategies.common.private_search import gaussian_part
from flower_fedclust.strategies.common.small_clusters import clustered

Floats = NDArray[np.float64]

#: The random steps from candidates to their mutants: their length over the radius, and the index of Levy's law.
STEP, BETA = 0.01, 1.75
#: The most candidates of the first population that are spread out by packing, which is slow; the others are drawn
#: uniformly from the ball.
MOST_PACKED = 200
#: The attempts to place each point of a packing, and the bisection steps for the distance between points.
PACKING_ATTEMPTS, PACKING_STEPS = 100, 8
#: How many rows there are, on average, for each mutant.
ROWS_A_MUTANT = 5
#: The largest number of entries of all candidates together: 8 MB, which every client receives.
MOST_ENTRIES = 2**20
#: The cost of each part of the budget, as in PrivateKMeans.
COSTS = {"row_count": 0.02, "votes": 0.7, "sums": 0.27, "counts": 0.03}
#: Restarts of the k-means of candidates, in each generation and in the last one.
N_INIT, N_INIT_LAST = 3, 10


class PEMeans(ClippedStrategy):
    """PE-means: rows vote for the nearest of some candidate centers, and the next candidates are mutants of the best.

    Parameters
    ----------
    max_norm : float, optional
        The radius of the ball around ``origin`` to which every client clips its rows, and from which the first
        candidates are taken; needed. It is public, and must not be computed from the data. The paper takes it from the
        rows, without spending budget on it.
    epsilon : float, default=1.0
        The privacy budget of the whole run, for one row that is added or removed.
    origin : array-like of shape (n_columns,), optional
        The public center of the ball; 0 by default. The paper takes the mean of the rows, without spending budget.
    n_rows : int, optional
        The number of all rows, if it is public, as in the paper; otherwise the budget pays for a noisy count.
    n_rounds : int, default=8
        The number of generations, each of which is one vote. The paper's number is :meth:`generations`, which grows
        with the columns and with epsilon.
    n_directions : int, optional
        If given, rows are projected to this many random directions for the votes, and a last step finds the centers in
        all columns. By default votes are taken in all columns. The paper takes 16 if there are more than 32 columns.

    References
    ----------
    "PE-means: Improved Differentially Private k-means Clustering through Private Evolution", arXiv 2606.00342.
    """

    promises = SUMS_OVER_ROWS

    entries = (
        Entry(
            "pe-means",
            "private k-means from noisy votes on candidates that evolve",
            "PE-means 2026",
            example={"max_norm": 3.0},
        ),
    )

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
        """Raise a ValueError that names the first invalid parameter."""
        super().check_parameters()
        if self.origin is not None:
            checked_point("origin", self.origin)

    def protocol(self) -> Protocol:
        """Let rows vote, cluster the candidates and mutate them; at the end leave the projection, if there is one."""
        assert self.max_norm is not None
        origin = (
            np.zeros(self.n_columns)
            if self.origin is None
            else np.asarray(self.origin, dtype=np.float64)
        )
        frame = Frame(origin, self.max_norm)
        n_rows = yield from self._count()
        directions = np.zeros((0, 0))
        if self.n_directions is not None:
            drawn = self.rng.standard_normal((self.n_columns, self.n_directions)) / math.sqrt(
                self.n_directions
            )
            # Clients need directions of norm at most 1 on their grid. Shortening all by one factor changes no vote.
            directions = directions_onto_grid(
                drawn / max(float(np.linalg.norm(drawn, axis=0).max()), 1.0)
            )
        centers = yield from self._evolve(frame, directions, n_rows)
        if directions.size:
            centers = yield from self._leave_projection(frame, directions, centers)
        return KMeansModel(frame.leave(centers))

    def _count(self) -> Generator[Round, Total, float]:
        if self.n_rows is not None:
            return float(self.n_rows)
        (count,) = yield Sum(PEMeansClient.row_count.asked(), parts=["row_count"])
        return max(float(count), 1.0)

    def _evolve(
        self, frame: Frame, directions: Floats, n_rows: float
    ) -> Generator[Round, Total, Floats]:
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
            # If votes are mostly noise, the next generation has fewer candidates, each with more votes.
            if votes @ votes - len(votes) * variance < len(votes) * variance:
                n_mutants = max(1, n_mutants // 2)
            n_init = N_INIT_LAST if generation == self.n_rounds - 1 else N_INIT
            centers = clustered(candidates, kept_votes(votes, n_rows), k, self.rng, n_init=n_init)
            repeated = np.repeat(centers, n_mutants, axis=0)
            mutants = clip_rows(
                repeated + STEP * radius * levy_steps(repeated.shape, BETA, self.rng), radius
            )
            candidates = np.concatenate([centers, mutants])
        return centers

    def _leave_projection(
        self, frame: Frame, directions: Floats, centers: Floats
    ) -> Generator[Round, Total, Floats]:
        """Return the noisy means, in all columns, of the rows nearest to each center in the projection.

        The noise is independent in every column. The authors' code adds one random number to all columns, and
        calibrates it for two releases fewer than there are.
        """
        question = PEMeansClient.projected_sums.asked(centers, directions, frame=frame)
        sums, counts = yield Sum(question, parts=["sums", "counts"])
        return clip_rows(centers_of(sums, counts, fallback=np.zeros_like(sums)), frame.radius)

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds: for the count, unless it is public, each generation, and leaving the projection."""
        return int(self.n_rows is None) + self.n_rounds + int(self.n_directions is not None)

    @property
    def expected_columns(self) -> int | None:
        """The width of the origin, if it was given."""
        return None if self.origin is None else len(np.asarray(self.origin))

    def parts(self) -> Mapping[str, Part]:
        """Return the parts of the count, the votes and the last step."""
        client, last = PEMeansClient, int(self.n_directions is not None)
        return {
            "row_count": gaussian_part(
                client.row_count, COSTS["row_count"], int(self.n_rows is None)
            ),
            "votes": gaussian_part(client.votes, COSTS["votes"], self.n_rounds),
            "sums": gaussian_part(client.projected_sums, COSTS["sums"], last),
            "counts": gaussian_part(client.projected_sums, COSTS["counts"], last),
        }

    def privacy_notes(self) -> list[str]:
        """Add what is assumed to be public."""
        notes = super().privacy_notes()
        if self.n_rows is not None:
            notes.append(
                f"The number of all rows, {self.n_rows}, is taken to be public, and no guarantee covers it."
            )
        return notes


def in_ball(n_points: int, n_columns: int, radius: float, rng: np.random.Generator) -> Floats:
    """Draw points uniformly from the ball."""
    points = rng.standard_normal((n_points, n_columns))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return np.asarray(radius * points * rng.random((n_points, 1)) ** (1 / n_columns))


def packed_in_ball(
    n_points: int, n_columns: int, radius: float, rng: np.random.Generator
) -> Floats:
    """Spread points over a ball, at least some distance apart; bisection finds the largest possible distance."""

    def packed(distance: float) -> Floats | None:
        points = np.empty((n_points, n_columns))
        for index in range(n_points):
            attempts = in_ball(PACKING_ATTEMPTS, n_columns, radius, rng)
            before = points[:index]
            squares = np.einsum("ij,ij->i", before, before) - 2 * attempts @ before.T
            nearest = squares.min(axis=1, initial=np.inf) + np.einsum(
                "ij,ij->i", attempts, attempts
            )
            if nearest.max() < distance**2:
                return None
            points[index] = attempts[int((nearest >= distance**2).argmax())]
        return points

    low, high = 0.0, 2 * radius
    best = in_ball(n_points, n_columns, radius, rng)
    for _ in range(PACKING_STEPS):
        middle = (low + high) / 2
        if (points := packed(middle)) is None:
            high = middle
        else:
            low, best = middle, points
    return best


def levy_steps(shape: tuple[int, ...], beta: float, rng: np.random.Generator) -> Floats:
    """Draw steps whose tails are about as heavy as in Levy's stable law of index beta (Mantegna 1994)."""
    from scipy.special import gamma

    ratio = (
        gamma(1 + beta)
        * np.sin(np.pi * beta / 2)
        / (gamma((1 + beta) / 2) * beta * 2 ** ((beta - 1) / 2))
    )
    scale = ratio ** (1 / beta)
    return np.asarray(
        scale * rng.standard_normal(shape) / np.abs(rng.standard_normal(shape)) ** (1 / beta)
    )


def kept_votes(votes: Floats, total: float) -> Floats:
    """Keep the largest votes until they add up to a total, and set the rest, which may be noise, to 0."""
    order = np.argsort(-votes, kind="stable")
    added_up = np.cumsum(np.maximum(votes[order], 0.0))
    n_kept = int(np.searchsorted(added_up, total)) + 1
    kept = np.zeros(len(votes))
    kept[order[:n_kept]] = np.maximum(votes[order[:n_kept]], 0.0)
    return kept


# The client half.


class PEMeansClient(FrameClient):
    """The client half of :class:`PEMeans`: votes, and the sums that leave a projection."""

    @by_row(row_count=Sent("number of rows", counts_rows=True))
    def row_count(rows: Rows) -> Term:
        """Count the rows."""
        return count(rows)

    @by_row(votes=Sent("number of rows nearest to each candidate", counts="every row"))
    def votes(rows: Rows, candidates: Floats, directions: Floats) -> Term:
        """Count votes for the nearest candidate in public directions; no directions mean all columns."""
        return at(rows.projected(directions).nearest(candidates), len(candidates))

    @by_row(
        sums="sum of the rows in each cluster",
        counts=Sent("number of rows in each cluster", counts="every row", sizes=True),
    )
    def projected_sums(rows: Rows, centers: Floats, directions: Floats) -> tuple[Term, Term]:
        """Return sums, in all columns, of the rows nearest to each center in the projection."""
        nearest = rows.projected(directions).nearest(centers)
        return at(nearest, len(centers), rows), at(nearest, len(centers))


PEMeans.client_type = PEMeansClient
