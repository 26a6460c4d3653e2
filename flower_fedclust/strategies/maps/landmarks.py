"""FedDL (Qiao, Ma and Fan, AAAI 2025, Algorithm 1): landmarks that all clients learn together, spread as the rows are.

X_p are the rows of client p, Y the landmarks, S the number of rounds, and Q the number of local
steps. MMD is the maximum mean discrepancy, which measures how much the distribution of the
landmarks differs from the distribution of the rows. "Algorithm 1", "section", "line" and numbers in
brackets refer to the paper. Its samples are columns; here they are rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import ClippedStrategy, Sent, Sum, answers, parameter
from flower_fedclust.engine.by_row import by_row
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Round
from flower_fedclust.exact.grid import GridArray, unit_exponent
from flower_fedclust.exact.kernels import attraction
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.terms import Term
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.dictionary import matched_dictionary
from flower_fedclust.numerics.landmarks import (
    landmark_gamma,
    local_steps,
    longest_move,
    mean_similarity,
    repulsion_gradient,
    step_size,
)
from flower_fedclust.privacy.noise import add_relative_noise
from flower_fedclust.privacy.releases import NoisePlace
from flower_fedclust.strategies.common.moments import (
    MOMENT_ROUNDS,
    Moments,
    MomentsClient,
    column_moments,
    moment_parts,
    noisy_column_moments,
)

Floats = NDArray[np.float64]

Averaging = Literal["landmarks", "gradients"]

#: The default number of rounds S: first if rounds cost no epsilon, then if every round does.
DEFAULT_ROUNDS, DEFAULT_NOISY_ROUNDS = 50, 10

#: The name under which a client keeps the term of its MMD that does not depend on the landmarks.
OWN_SIMILARITY = "own similarity"

#: The moves of landmarks that clients send are integers of this many bits. With the noise for experiments
#: (``relative_noise``) they may have 15 bits more.
MOVE_BITS = 38

#: The binary exponent of the unit in which an MMD, between -2 and 2, is sent.
MMD_EXPONENT = -40

#: In a round, landmarks move at most this many times as far as rows and landmarks reach. Only with kernels so wide that
#: they are nearly flat would they move farther.
FARTHEST_MOVE = 64.0

#: With noise on the gradients, the ball around 0 that holds rows and landmarks is this many times as wide as max_norm.
#: Landmarks have the spread of the rows in each column, so that some lie farther out than any row.
REACH = 4.0


@dataclass(frozen=True)
class Landmarks:
    """The landmarks that FedDL found, and its kernel."""

    points: Floats  #: The landmarks Y, of shape (n_landmarks, n_columns).
    #: The factor in the kernel ``exp(-gamma ||x - y||^2)``; its unit is one over the squared unit of the rows.
    gamma: float
    n_rows: float  #: The number of rows of all clients; approximate if there is noise.
    #: For each round, the mean over its clients of the MMD between their rows and the landmarks at the beginning of the
    #: round. Empty with noise on the gradients.
    mmds: tuple[float, ...] = ()


class LandmarkStrategy(ClippedStrategy):
    """Base of the strategies that begin with FedDL (Qiao, Ma and Fan, AAAI 2025, Algorithm 1).

    In each round of FedDL the clients move the landmarks by gradient steps, and the server averages.

    Parameters
    ----------
    n_landmarks : int, default=300
        The number of landmarks, n_y in the paper.
    gamma : float, optional
        The factor in the kernel ``exp(-gamma ||x - y||^2)``; its unit is one over the squared unit
        of the rows. By default 1 over twice the mean squared distance between rows, which follows
        from the deviations of the columns.
    n_rounds : int, optional
        The largest number of rounds that move the landmarks, S in the paper; by default 50, and 10
        if each round costs epsilon.
    n_local_steps : int, default=5
        The gradient steps of a client in a round, Q in the paper; one if each round costs epsilon.
    tol : float, default=0.0
        The landmarks are final when none has moved by more than this in a round, in units of the
        kernel's width. Not used if each round costs epsilon.
    fraction_fit : float, default=1.0
        The fraction of the clients that takes part in a round that moves the landmarks; all of them
        if each round costs epsilon.
    """

    n_landmarks: int = parameter(300, at_least=2)
    gamma: float | None = parameter(None, above=0)
    n_rounds: int | None = parameter(None, at_least=0)
    n_local_steps: int = parameter(5, at_least=1)
    tol: float = parameter(0.0, at_least=0)
    fraction_fit: float = parameter(1.0, above=0, at_most=1)

    # The server half.

    def learn_landmarks(
        self, *, averaging: Averaging = "landmarks", relative_noise: float = 0.0, rows: str = ""
    ) -> Generator[Round, Any, Landmarks]:
        """Run Algorithm 1, after the rounds that find the moments of the columns.

        ``averaging`` says whether the server averages the clients' landmarks (15) or their
        gradients (16). If clients differ and take several local steps, the MMD can rise, and more
        so with gradients. ``relative_noise`` is beta of the paper's appendix A: every client adds
        noise of this many times the standard deviation of the entries that it sends. ``rows`` names
        the rows to use, as in :class:`~flower_fedclust.engine.rounds.Round`.
        """
        if self.landmarks_cost_epsilon:
            return (yield from self._learn_noisy_landmarks())
        moments, frame = yield from column_moments(rows=rows)
        check_spread(moments)
        # Line 1. Everything is measured from the origin of the frame, in units of its radius. The radius is a power of
        # two, so that nothing overflows and the unit of the data changes no bit. Deviations are at most 1, unless very
        # long rows overflow.
        radius = frame.radius
        given_gamma = None if self.gamma is None else _in_other_units(self.gamma, radius, 1)
        deviation = np.fmin(moments.deviation / radius, 1.0)
        Y, gamma = self._first_landmarks(
            moments.mean / radius - frame.origin / radius, deviation, given_gamma
        )
        eta = step_size(gamma, len(Y))
        mmds = []
        for _ in range(self.max_landmark_rounds):
            # Lines 3 to 12.
            question = LandmarksClient.landmark_steps.asked(
                Y,
                *frame.arrays,
                gamma=gamma,
                n_steps=self.n_local_steps,
                averaging=averaging,
                relative_noise=relative_noise,
                exponent=self._exponent_of_moves(Y, frame, gamma, averaging, relative_noise),
            )
            replies = yield Sum(question, fraction=self.fraction_fit, rows=rows)
            mean, discrepancy = (total / replies.n_clients for total in replies)
            # Lines 13 to 15: add the clients' mean move (15), or take a step along their mean gradient (16).
            former, Y = Y, Y + mean if averaging == "landmarks" else Y - eta * mean
            mmds.append(float(discrepancy))
            if np.linalg.norm(Y - former, axis=1).max() * math.sqrt(2.0 * gamma) <= self.tol:
                break
        gamma = _in_other_units(gamma, radius, -1) if self.gamma is None else self.gamma
        return Landmarks(Y * radius + frame.origin, gamma, moments.n_rows, tuple(mmds))

    def _exponent_of_moves(
        self, Y: Floats, frame: Frame, gamma: float, averaging: Averaging, relative_noise: float
    ) -> int:
        """Return the binary exponent of the unit in which clients send moves or gradients."""
        # Clients that send gradients move by a single step, divided by the step size.
        steps = self.n_local_steps if averaging == "landmarks" else 1
        bound = min(longest_move(gamma, steps), FARTHEST_MOVE * (1.0 + float(np.abs(Y).max())))
        if averaging == "landmarks":
            # The noise is in proportion to the deviation of the landmarks in the data's coordinates, measured from 0.
            farthest = float(np.abs(Y + frame.origin / frame.radius).max())
            return unit_exponent(bound + relative_noise * farthest, bits=MOVE_BITS)
        return unit_exponent(
            (1.0 + relative_noise) * bound / step_size(gamma, len(Y)), bits=MOVE_BITS
        )

    def _learn_noisy_landmarks(self) -> Generator[Round, Any, Landmarks]:
        """Run Algorithm 1 on gradients with noise (section 5.2).

        The gradient (13) has two terms, and only the first, a mean over rows, depends on rows. Its sum is released
        without the factor ``-4 gamma / n_y``, which the step size cancels. Any row moves this sum by at most
        :func:`~flower_fedclust.numerics.landmarks.longest_attraction`, so that nothing has to be clipped. The paper's
        bound (Theorem 6) needs norms that nothing enforces. Here all rows weigh the same; in (8), all clients do.
        """
        assert self.max_norm is not None
        replaced = "row_count" not in self.parts()
        moments = yield from noisy_column_moments(self.max_norm, self.n_columns, replaced=replaced)
        check_spread(moments)
        Y, gamma = self._first_landmarks(moments.mean, moments.deviation, self.gamma)
        eta = step_size(gamma, len(Y))
        frame = self._landmark_frame(self.max_norm)
        # Landmarks are rounded to the grid of the rows, so that the clients and the server use the same ones.
        Y = frame.enter(Y)
        for _ in range(self.max_landmark_rounds):
            question = LandmarksClient.landmark_attraction.asked(Y, frame=frame, gamma=gamma)
            (pull,) = yield Sum(question, parts=["landmarks"])
            Y = frame.enter(Y + pull / moments.n_rows - eta * repulsion_gradient(Y, gamma))
        return Landmarks(Y, gamma, moments.n_rows)

    def _landmark_frame(self, max_norm: float) -> Frame:
        """Return a frame whose ball holds rows and landmarks, for answers that take noise."""
        return Frame(np.zeros(self.n_columns), REACH * max_norm)

    def _first_landmarks(
        self, mean: Floats, deviation: Floats, gamma: float | None
    ) -> tuple[Floats, float]:
        """Return the first landmarks Y^0, drawn with the columns' means and deviations, and gamma."""
        gamma = landmark_gamma(deviation**2) if gamma is None else gamma
        return matched_dictionary(mean, deviation, self.n_landmarks, self.rng), gamma

    # Rounds and budget.

    @property
    def landmarks_cost_epsilon(self) -> bool:
        """Whether every round of Algorithm 1 releases a noisy sum."""
        return self.epsilon is not None

    @property
    def max_landmark_rounds(self) -> int:
        """The largest number S of rounds that move the landmarks: ``n_rounds``, or a default."""
        if self.n_rounds is not None:
            return self.n_rounds
        return DEFAULT_NOISY_ROUNDS if self.landmarks_cost_epsilon else DEFAULT_ROUNDS

    @property
    def n_landmark_rounds(self) -> int:
        """The largest number of rounds that :meth:`learn_landmarks` takes."""
        return (1 if self.landmarks_cost_epsilon else MOMENT_ROUNDS) + self.max_landmark_rounds

    def landmark_parts(
        self, moments: float, landmarks: float, *, replaced: bool = False
    ) -> dict[str, Part]:
        """Return the parts of a budget for the moments and for the landmarks' gradients, with these fractions."""
        of_gradients = Part(
            LandmarksClient.landmark_attraction, landmarks, self.max_landmark_rounds
        )
        return {**moment_parts(moments, replaced=replaced), "landmarks": of_gradients}


class CodedRowsStrategy(LandmarkStrategy):
    """Base of the strategies whose clients send, for each row, values from which the row can be computed (its code)."""

    #: The code of each row that a client sends: "distances" or "kernel" values.
    codes: ClassVar[str]

    #: This form has no noise.
    epsilon: float | None = dataclasses.field(default=None, init=False)
    delta: float = dataclasses.field(default=1e-6, init=False)
    budget: Mapping[str, float] | None = dataclasses.field(default=None, init=False)
    max_norm: float | None = dataclasses.field(default=None, init=False)
    #: If there were noise, the clients would add it, to protect against the server, which sees a code of every row.
    noise: NoisePlace = dataclasses.field(default="local", init=False)

    def privacy_notes(self) -> list[str]:
        """Add that the server can compute the rows."""
        return [*super().privacy_notes(), *self.what_the_server_can_compute()]

    def what_the_server_can_compute(self) -> list[str]:
        """Return the notes of the privacy report that say what the codes reveal."""
        codes = "distances to" if self.codes == "distances" else "kernel values with"
        return [
            f"The server can read the rows: their {codes} the landmarks, which it knows, give each row by solving "
            "linear equations where there are more landmarks than columns."
        ]

    def landmarks(self) -> Generator[Round, Any, Landmarks]:
        """Learn the landmarks by Algorithm 1."""
        return self.learn_landmarks()

    @property
    def coded_rows(self) -> str:
        """The name of the rows whose codes clients send, as in :class:`~flower_fedclust.engine.rounds.Round`."""
        return ""

    # Rounds and budget.

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds: for the landmarks, for the codes, and for the result that clients receive."""
        return self.n_landmark_rounds + 2

    def parts(self) -> Mapping[str, Part]:
        """Return no parts: nothing takes noise."""
        return {}


def _in_other_units(gamma: float, scale: float, direction: Literal[-1, 1]) -> float:
    """Convert gamma from the unit of the data to the unit ``scale``, or back; always return a normal float.

    ``scale`` is a power of two. Gamma's unit is one over the squared unit of the rows.
    """
    mantissa, power = math.frexp(gamma)
    return math.ldexp(
        mantissa, min(max(power + 2 * direction * (math.frexp(scale)[1] - 1), -1000), 1000)
    )


def check_spread(moments: Moments) -> None:
    """Raise a DataError if all rows are equal."""
    if not np.any(moments.deviation > 1e-12 * np.abs(moments.mean)):
        raise DataError(
            "all rows are equal, so that there is no map of them; give rows that differ."
        )


# The client half.


class LandmarksClient(MomentsClient):
    """The client half of FedDL (Qiao, Ma and Fan, AAAI 2025, Algorithm 1), which learns the landmarks."""

    @answers(
        Sent(
            "how far the client's own steps move the landmarks, or their gradient", has_columns=True
        ),
        "MMD of the client's rows from the landmarks",
    )
    def landmark_steps(
        self,
        Y: Floats,
        origin: Floats,
        ball: Floats,
        *,
        gamma: float,
        n_steps: int,
        averaging: Averaging,
        relative_noise: float,
        exponent: int,
    ) -> tuple[GridArray, GridArray]:
        """Return how far the client's steps move the landmarks, or the last gradient; and the MMD (lines 5 to 11).

        Y_p^s are the client's landmarks after its steps: the move is ``Y_p^s - Y``. Landmarks are
        measured from the origin in units of the ball's radius, a power of two; gamma is in the same
        unit. The steps are computed in floats, so that their last digits depend on the processor.
        """
        scale = 1.0 / float(ball[0])
        rows = self.rows * scale - origin * scale
        own = self._own_similarity(rows, gamma)
        found = local_steps(rows, Y, gamma, n_steps, own=own)
        if averaging == "landmarks":
            landmarks = Y + origin * scale + found.moves
            moved_landmarks = found.moves + (
                add_relative_noise(landmarks, relative_noise, self.noise_source) - landmarks
            )
        else:
            moved_landmarks = add_relative_noise(found.gradient, relative_noise, self.noise_source)
        return GridArray.truncated(moved_landmarks, exponent), GridArray.truncated(
            np.array(found.mmd), MMD_EXPONENT
        )

    def _own_similarity(self, rows: Floats, gamma: float) -> float:
        """Return the term of the MMD that does not depend on landmarks; computed once, because it takes all pairs."""
        key = f"{OWN_SIMILARITY} {gamma!r}"
        if (known := self.recall(key)) is None:
            known = [np.array(mean_similarity(rows, gamma))]
            self.remember(key, known, is_own=self.has_own_rows)
        return float(known[0])

    @by_row(landmarks=Sent("sum over the rows of how they attract the landmarks", has_columns=True))
    def landmark_attraction(rows: Rows, Y: Floats, *, gamma: float) -> Term:
        """Return the sum over rows of ``k(x, y_j) (x - y_j)`` for each landmark y_j, as in the first term of (13)."""
        return attraction(rows, Y, gamma)
