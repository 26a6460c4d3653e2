"""FedDL, Algorithm 1: landmarks that all clients learn together, so that they are spread as the rows are.

D. Qiao, X. Ma and J. Fan, "Federated t-SNE and UMAP for distributed data visualization", AAAI 2025. X_p are the rows of
client p, Y the landmarks, S the rounds, Q the local steps. The paper's samples are columns; here they are rows.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.dictionary import matched_dictionary
from flower_fedclust.numerics.landmarks import (
    attraction_sum,
    landmark_gamma,
    landmark_steps,
    longest_row_gradient,
    mean_similarity,
    mmd,
    mmd_gradient,
    repulsion_gradient,
    step_size,
)
from flower_fedclust.privacy.accounting import Share
from flower_fedclust.privacy.noise import add_relative_noise
from flower_fedclust.privacy.releases import Relation
from flower_fedclust.protocol import ClippedStrategy, Sent, Sum, answers, parameter
from flower_fedclust.protocol.rounds import Round
from flower_fedclust.steps.moments import (
    Moments,
    MomentsClient,
    column_moments,
    moment_releases,
    moment_shares,
    noisy_column_moments,
)

Floats = NDArray[np.float64]
Averaging = Literal["landmarks", "gradients"]

#: S of Algorithm 1, where nothing is said; and where every round costs epsilon.
DEFAULT_ROUNDS, DEFAULT_NOISY_ROUNDS = 50, 10

#: The name under which a client keeps the term of its MMD that does not change.
OWN_SIMILARITY = "own similarity"


@dataclass(frozen=True)
class Landmarks:
    """What FedDL ends with.

    Parameters
    ----------
    points : ndarray of shape (n_landmarks, n_columns)
        Y.
    gamma : float
        Of the kernel ``exp(-gamma ||x - y||^2)``, in one over the squared units of the rows.
    n_rows : float
        Of all clients; with noise, about.
    mmds : tuple of float
        For each round, the mean over the clients that took part of their MMD from the landmarks that it began with.
        Empty with noise on the gradients.
    """

    points: Floats
    gamma: float
    n_rows: float
    mmds: tuple[float, ...] = ()


class LandmarkStrategy(ClippedStrategy):
    """Base of the strategies that begin with Algorithm 1.

    Parameters
    ----------
    n_landmarks : int, default=300
        n_y.
    gamma : float, optional
        Of the kernel ``exp(-gamma ||x - y||^2)``, in one over squared units of the rows. By default 1 over twice the
        mean squared distance between rows, which follows from the deviations of the columns.
    n_rounds : int, optional
        S, rounds of Algorithm 1 at most; by default 50, and 10 where each costs epsilon.
    n_local_steps : int, default=5
        Q, gradient steps of a client in a round; one where each costs epsilon.
    averaging : "landmarks" or "gradients", default="landmarks"
        What is averaged: the clients' landmarks (15), or their gradients (16), as always where these take calibrated
        noise. With clients that are unlike and several local steps the MMD can rise, with gradients more so.
    tol : float, default=0.0
        Algorithm 1 stops when no landmark has moved by more than this in a round, in units of the kernel's width. Not
        used where each round costs epsilon.
    fraction_fit : float, default=1.0
        The part of the clients that takes part in a round of Algorithm 1; all of them where each costs epsilon.
    """

    n_landmarks: int = parameter(300, at_least=2)
    gamma: float | None = parameter(None, above=0)
    n_rounds: int | None = parameter(None, at_least=0)
    n_local_steps: int = parameter(5, at_least=1)
    averaging: Averaging = parameter("landmarks")
    tol: float = parameter(0.0, at_least=0)
    fraction_fit: float = parameter(1.0, above=0, at_most=1)

    # The server half.

    def learn_landmarks(
        self, *, averaging: Averaging | None = None, relative_noise: float = 0.0, rows: str = ""
    ) -> Generator[Round, Any, Landmarks]:
        """Run Algorithm 1, after the rounds that find the moments of the columns.

        Parameters
        ----------
        averaging : "landmarks" or "gradients", optional
            In place of the strategy's own.
        relative_noise : float, default=0
            beta of appendix A: the noise that every client adds to what it sends, over the standard deviation of its
            entries. For experiments.
        rows : str, default=""
            Which rows of the clients; see :class:`~flower_fedclust.protocol.rounds.Round`.
        """
        if self.landmarks_cost_epsilon:
            return (yield from self._learn_noisy_landmarks())
        averaging = averaging or self.averaging
        moments = yield from column_moments(rows=rows)
        # Line 1.
        Y, gamma = self._first_landmarks(moments)
        eta = step_size(gamma, len(Y))
        mmds = []
        for _ in range(self.max_landmark_rounds):
            # Lines 3 to 12.
            question = LandmarksClient.landmark_steps.asked(
                Y, gamma=gamma, n_steps=self.n_local_steps, averaging=averaging, relative_noise=relative_noise
            )
            replies = yield Sum(question, fraction=self.fraction_fit, rows=rows)
            mean, discrepancy = (total / replies.n_clients for total in replies)
            # Lines 13 to 15: equation (15), or (16).
            former, Y = Y, mean if averaging == "landmarks" else Y - eta * mean
            mmds.append(float(discrepancy))
            if np.linalg.norm(Y - former, axis=1).max() * math.sqrt(2.0 * gamma) <= self.tol:
                break
        return Landmarks(Y, gamma, moments.n_rows, tuple(mmds))

    def _learn_noisy_landmarks(self) -> Generator[Round, Any, Landmarks]:
        """Run Algorithm 1 on gradients with noise (section 5.2).

        Only the first term of the gradient (13) depends on rows, and it is a mean over rows. Its sum is released: one
        row moves it by no more than :func:`~flower_fedclust.numerics.landmarks.longest_row_gradient`, whatever the
        row, so that nothing has to be clipped; the bound of Theorem 6 rests on norms that nothing enforces. All rows
        weigh the same then, where (8) weighs all clients the same.
        """
        assert self.max_norm is not None
        moments = yield from noisy_column_moments(self.max_norm, moment_releases(self, self.max_norm))
        Y, gamma = self._first_landmarks(moments)
        eta = step_size(gamma, len(Y))
        for _ in range(self.max_landmark_rounds):
            replaced = self.shares()["landmarks"].relation == "replace"
            release = self.release(
                "landmarks",
                longest_row_gradient(gamma, len(Y)) * (2.0 if replaced else 1.0),
                "no row's gradient is longer" + (", and one is replaced" if replaced else ""),
            )
            (attraction,) = yield Sum(LandmarksClient.landmark_attraction.asked(Y, gamma=gamma), releases=[release])
            Y = Y - eta * (attraction / moments.n_rows + repulsion_gradient(Y, gamma))
        return Landmarks(Y, gamma, moments.n_rows)

    def _first_landmarks(self, moments: Moments) -> tuple[Floats, float]:
        """Return Y^0, drawn with the moments of the columns, and gamma."""
        check_spread(moments)
        gamma = landmark_gamma(moments.deviation**2) if self.gamma is None else self.gamma
        return matched_dictionary(moments.mean, moments.deviation, self.n_landmarks, self.rng), gamma

    # Rounds and budget.

    @property
    def landmarks_cost_epsilon(self) -> bool:
        """Whether every round of Algorithm 1 is a release."""
        return self.epsilon is not None

    @property
    def max_landmark_rounds(self) -> int:
        """S."""
        if self.n_rounds is not None:
            return self.n_rounds
        return DEFAULT_NOISY_ROUNDS if self.landmarks_cost_epsilon else DEFAULT_ROUNDS

    @property
    def n_landmark_rounds(self) -> int:
        """Those of :meth:`learn_landmarks` at most."""
        return (1 if self.landmarks_cost_epsilon else 2) + self.max_landmark_rounds

    def landmark_shares(self, moments: float, landmarks: float, relation: Relation) -> dict[str, Share]:
        """Return the shares of the moments and of the landmarks' gradients, with these fractions for each."""
        S = self.max_landmark_rounds
        of_gradients = {"landmarks": Share("gaussian", landmarks, S, relation)} if S > 0 else {}
        return moment_shares(moments, relation) | of_gradients


def check_spread(moments: Moments) -> None:
    """Raise a DataError if all rows are equal."""
    if not np.any(moments.deviation > 1e-12 * np.abs(moments.mean)):
        raise DataError("all rows are equal, so that there is no map of them; give rows that differ.")


# The client half.


class LandmarksClient(MomentsClient):
    """The answers of a client that helps to learn landmarks."""

    @answers(
        Sent("landmarks after the client's own steps, or their gradient", has_columns=True),
        "MMD of the client's rows from the landmarks",
    )
    def landmark_steps(
        self, Y: Floats, *, gamma: float, n_steps: int, averaging: Averaging, relative_noise: float
    ) -> tuple[Floats, Floats]:
        """Return Y_p^s, or the gradient after all but one of the steps (Algorithm 1, lines 5 to 11)."""
        if averaging == "landmarks":
            own = landmark_steps(self.rows, Y, gamma, n_steps)
        else:
            own = mmd_gradient(self.rows, landmark_steps(self.rows, Y, gamma, n_steps - 1), gamma)
        discrepancy = mmd(self.rows, Y, gamma, own=self._own_similarity(gamma))
        return add_relative_noise(own, relative_noise, self.noise_source), np.array(discrepancy)

    def _own_similarity(self, gamma: float) -> float:
        """Return the term of the MMD that no landmark changes; it takes all pairs of rows, and is computed once."""
        if (known := self.recall(OWN_SIMILARITY)) is None:
            known = [np.array(mean_similarity(self.rows, gamma))]
            self.remember(OWN_SIMILARITY, known)
        return float(known[0])

    @answers(Sent("sum over the rows of the landmarks' gradient", has_columns=True))
    def landmark_attraction(self, Y: Floats, *, gamma: float) -> Floats:
        """Return the sum over rows of the first term of (13), without its ``1 / n_p``."""
        return attraction_sum(self.rows, Y, gamma)
