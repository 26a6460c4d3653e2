"""DP-FedC with the noise of its paper's Theorem 2, to be compared with what composition gives."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import Entry, Sent, Total, answers, parameter
from flower_fedclust.engine.parts import Part, releases_of_parts
from flower_fedclust.engine.rounds import Round, within
from flower_fedclust.exact.factorisation import center_steps
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.numerics.checks import LARGEST, SMALLEST
from flower_fedclust.privacy.accounting import Share
from flower_fedclust.privacy.plan import Plan
from flower_fedclust.privacy.report import PrivacyReport
from flower_fedclust.strategies.dp_fedc import theorems
from flower_fedclust.strategies.dp_fedc.client import DPFedCClient, LocalSteps
from flower_fedclust.strategies.dp_fedc.dp_fedc import BATCH_SIZE, STEP_SCALE, DPFedC

Floats = NDArray[np.float64]


class DPFedCTheorem2(DPFedC):
    """DP-FedC as printed: the drawn clients send their centers, with noise for an epsilon of every single round.

    For comparison with the paper; :class:`DPFedC` spends a budget far better. The gradient of each minibatch is clipped
    to G, which the paper assumes, and the privacy report says what the rounds compose to.

    Parameters
    ----------
    round_epsilon : float, default=1.0
        The epsilon that Theorem 2 promises for one round, not for the run.
    delta : float, default=1e-6
        The delta of one round, and that for which the report composes the rounds.
    max_norm : float
        The Euclidean norm to which every client clips its rows. It is public, and not taken from data.
    batch_size : int, optional
        b, rows of a step on W; 50 by default. A client with fewer takes all.
    rho : "growing" or float, default="growing"
        The penalty that has each row belong to one cluster. "growing" starts at a tenth of the centers' mean squared
        norm and ends at four tenths.
    step_scale : float, optional
        eta over b, which the largest eigenvalue of H'H is at most where memberships have a norm of 1 at most; 5 by
        default. A step size that depended on the rows would not be a bound.
    max_gradient_norm : float, optional
        G, to which the gradient of each minibatch is clipped; half of ``max_norm`` by default.

    References
    ----------
    Li, Wang, Chi and Quek 2024, Theorem 2, with the noise of equation (29).
    """

    entries = (
        Entry(
            "dp-fedc-theorem-2",
            "DP-FedC with the paper's noise, whose epsilon is that of a single round",
            "Li, Wang, Chi and Quek 2024, Theorem 2",
            example={"max_norm": 1.0},
        ),
    )

    round_epsilon: float = parameter(1.0, above=0, at_most=1000)
    max_norm: float = parameter(at_least=SMALLEST, at_most=LARGEST)
    epsilon: float | None = dataclasses.field(default=None, init=False)
    budget: Mapping[str, float] | None = dataclasses.field(default=None, init=False)

    @property
    def _is_private(self) -> bool:
        return True

    @property
    def _on_grid(self) -> bool:
        # Whatever the rows are, each step is clipped: what is sent has the norm of all steps at most.
        return False

    def _round(
        self, t: int, W: Floats, S: Sequence[str], local: LocalSteps
    ) -> Generator[Round, Total | None, tuple[Floats, None]]:
        b = self.batch_size or BATCH_SIZE
        eta = (self.step_scale or STEP_SCALE) * b
        Q_2 = self._n_center_steps(t)
        asked = DPFedCTheorem2Client.factorise_clipped.asked(
            W,
            mu_w=self.mu_w,
            n_center_steps=Q_2,
            batch_size=b,
            eta=eta,
            max_gradient_norm=self._max_gradient_norm,
            **local,
        )
        total = yield self._of_drawn(asked, W, S, local, [f"{Q_2} steps"])
        if total is None:
            return W, None
        return W + total[0] / total.n_clients, None  # (20)

    def parts(self) -> Mapping[str, Part]:
        """Return none: nothing is calibrated to a budget of the run."""
        return {}

    @property
    def frozen_plan(self) -> Plan:
        """The noise of Theorem 2, which is that of a single round and follows from its steps on W."""
        b, n = self.batch_size or BATCH_SIZE, self._fewest_rows
        counts = Counter(self._n_center_steps(t) for t in range(1, self.n_rounds + 1))
        shares = {f"{Q_2} steps": Share("gaussian", 1.0, count, "replace") for Q_2, count in counts.items()}
        multipliers = {
            f"{Q_2} steps": theorems.noise_multiplier(Q_2 * min(b, n) / n, self.round_epsilon, self.delta)
            for Q_2 in counts
        }
        return Plan(self.round_epsilon, self.delta, self.noise, self.privacy_unit, shares, multipliers)

    @property
    def plan(self) -> str:
        """The noise that clients add, once the rows are counted; empty where the server adds it."""
        return "" if self.noise == "server" or not self._fewest_rows else self.frozen_plan.to_json()

    def with_noise(self, round_: Round) -> Round:
        """Return a round with the noise of Theorem 2."""
        if not round_.parts:
            return round_
        question = round_.question_for(None)
        return replace(round_, releases=releases_of_parts(question, question.moved(), round_.parts, self.frozen_plan))

    def privacy_notes(self) -> list[str]:
        """Add what the paper's epsilon is."""
        return [
            *super().privacy_notes(),
            f"The noise is that of the paper's Theorem 2 for epsilon {self.round_epsilon:g} in every single round; the "
            "guarantee above is what the rounds compose to.",
        ]

    @property
    def report(self) -> PrivacyReport:
        """The privacy report of the rounds that ran; no epsilon was asked for the run."""
        return dataclasses.replace(super().report, delta=self.delta, unit=self.privacy_unit, noise=self.noise)


class DPFedCTheorem2Client(DPFedCClient):
    """The answers of a client that sends its centers."""

    @answers(
        Sent("by how much the client's centers have moved", has_columns=True),
        moved=lambda _, W, *, mu_w, n_center_steps, batch_size, eta, max_gradient_norm, **local: (
            replace(
                within(theorems.sensitivity(max_gradient_norm, n_center_steps, eta) / 2.0),
                words="the client clips the gradient of every minibatch",
            ),
        ),
    )
    def factorise_clipped(
        self,
        W: Floats,
        *,
        mu_w: float,
        n_center_steps: int,
        batch_size: int,
        eta: float,
        max_gradient_norm: float,
        **local: Unpack[LocalSteps],
    ) -> GridArray:
        """Take the steps on H and on W (lines 9 to 15), each gradient clipped; return W_i less W."""
        rows, H = self._clipped_rows(local["max_norm"]).values, self._updated_memberships(W, local)
        part = self._n_drawn(batch_size) / len(rows)
        batches = self._secret_minibatches(n_center_steps, batch_size)
        moved = center_steps(rows, H, W, batches, part * mu_w, eta, max_gradient_norm) - W
        return GridArray.clipped(moved, theorems.sensitivity(max_gradient_norm, n_center_steps, eta) / 2.0)


DPFedCTheorem2.client_type = DPFedCTheorem2Client
