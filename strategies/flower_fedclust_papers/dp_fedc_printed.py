"""DP-FedC as printed (Li, Wang, Chi and Quek 2024): Algorithm 1, its penalties and steps, and the noise of Theorem 2.

:class:`~flower_fedclust.DPFedC` has the algorithm in the form that works. This module has what the paper's tables need
in addition. X are the rows, H their memberships and W the centers; numbers in brackets are the paper's equations.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import (
    Entry,
    Gather,
    Protocol,
    Question,
    Reply,
    Sent,
    Sum,
    Total,
    answers,
    parameter,
)
from flower_fedclust.engine.parts import Part, releases_of_parts
from flower_fedclust.engine.rounds import Round, within
from flower_fedclust.exact.digits import digits_of, value_of_digits
from flower_fedclust.exact.factorization import Penalties, center_steps
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.terms import Bound
from flower_fedclust.numerics.checks import LARGEST_NORM, SMALLEST_NORM
from flower_fedclust.privacy.accounting import MOST_SHARES, Plan, Share
from flower_fedclust.privacy.report import PrivacyReport
from flower_fedclust.strategies.dp_fedc import (
    BATCH_SIZE,
    DPFedC,
    DPFedCClient,
    LocalSteps,
    clipped_sums,
    growing_rho,
    moved_by_a_row,
    n_drawn,
)

Floats = NDArray[np.float64]

#: The paper's penalty rho, divided by ||X||^2 / N.
PAPER_RHO = 1e-7


class DPFedCPrinted(DPFedC):
    """DP-FedC as printed, for comparison: by default nothing is protected, and clients send their centers.

    Algorithm 1 with the paper's penalties, steps and origin. Only the step on memberships is not the printed one, with
    which they diverge. :class:`~flower_fedclust.DPFedC` finds better clusters, as docs/papers/dp-fedc.md shows.

    Parameters
    ----------
    step_decay : float, default=1.0
        In round t a client takes ``Q_2 = floor(Q^ / t^step_decay) + 1`` steps on W, where Q^ is ``n_center_steps``. In
        Algorithm 1 step_decay is 1. With 0 the number of steps is constant: ``n_center_steps=4, step_decay=0`` gives
        the 5 steps of Table I. Theorem 4 needs eta to be at least ``sqrt(6) Q_2`` times L_W; with a ``step_scale`` of 5
        this holds for Q_2 of at most 2.
    batch_size : int, optional
        The number of rows for a step on W, b in the paper; a client with fewer rows takes all. By default 50, as in the
        paper, and all rows with epsilon, because drawing few rows only pays off if the clients have thousands.
    rho : "paper", "growing" or float, optional
        The penalty that makes each row belong to one cluster. "paper" is ``1e-7 ||X||^2 / N``, which depends on the
        unit of the rows and takes an unprotected round. By default "paper", and "growing" with epsilon.
    mu_w : float, default=0.0
        The penalty on W.
    step_scale : float, default=5.0
        A step on W is the gradient over eta, and eta is this many times the largest eigenvalue of H'H.
    update_all : bool, default=True
        Whether clients that are not drawn update their memberships, too, as in Algorithm 1. False saves them the work.
    rays_from : "zero" or "auto", default="zero"
        Where the rays of the clusters begin. "auto" is as in :class:`~flower_fedclust.DPFedC`. With an epsilon, and
        with the paper's rho, they always begin at 0.

    References
    ----------
    Li, Wang, Chi and Quek 2024, Algorithm 1.
    """

    entries = (
        Entry(
            "dp-fedc-printed",
            "DP-FedC as printed, but for its step on memberships; for comparison",
            "Li, Wang, Chi and Quek 2024, Algorithm 1",
            finds="soft",
        ),
    )

    step_decay: float = parameter(1.0, at_least=0)
    batch_size: int | None = parameter(None, at_least=1)
    rho: float | Literal["growing", "paper"] | None = parameter(None, at_least=0)  # type: ignore[assignment]  # wider
    mu_w: float = parameter(0.0, at_least=0)
    step_scale: float = parameter(5.0, above=0)
    update_all: bool = parameter(True)
    rays_from: Literal["auto", "zero"] = parameter("zero")

    #: The number of rows of the smallest client, once rows are counted; in a list that copies of the strategy share.
    _smallest_client: list[int] = dataclasses.field(default_factory=list, init=False)

    #: The clients that have answered how many rows they have.
    _counted: list[str] = dataclasses.field(default_factory=list, init=False)

    #: ||X||^2 / N, once it is known.
    _squared_norm: float = dataclasses.field(default=0.0, init=False)

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first invalid parameter."""
        super().check_parameters()
        if self._is_private and self.rho == "paper":
            raise ValueError(
                "rho is 'paper', which nothing protects; with epsilon give a number, or 'growing'."
            )

    def begin(self) -> Protocol:
        """Begin a new run, in which no rows have been counted."""
        self._smallest_client = []
        return super().begin()

    def protocol(self) -> Protocol:
        """Ask for what the paper's penalty and the noise of small batches depend on, then run Algorithm 1."""
        if self._has_papers_rho:
            total = yield Sum(DPFedCPrintedClient.squared_norm.asked())
            self._squared_norm = value_of_digits(total[0]) / total.n_clients
        if self._counts_rows:
            yield from self._count_rows()
        return (yield from super().protocol())

    def _count_rows(self) -> Generator[Round, list[Reply], None]:
        """Find the size of the smallest client, and the clients that answered, which may be drawn.

        The noise depends on this size, because drawing few of many rows needs less noise (also in Theorem 2). For a
        client with fewer rows the noise would be too small, and a client that does not answer could have fewer.
        """
        replies = yield Gather(DPFedCPrintedClient.row_count.asked())
        self._smallest_client[:] = [min(int(reply.arrays[0]) for reply in replies)]
        self._counted = [reply.client for reply in replies]

    @property
    def _may_be_drawn(self) -> Sequence[str]:
        return self._counted if self._counts_rows else self.client_names

    def _of_drawn(
        self,
        asked: Question,
        W: Floats,
        S: Sequence[str],
        local: LocalSteps,
        parts: Sequence[str] = (),
        origin: Sequence[Floats] = (),
    ) -> Sum:
        round_ = super()._of_drawn(asked, W, S, local, parts, origin)
        return round_ if self.update_all else replace(round_, others=None)

    def _asked_for_gradient(self, W: Floats, local: LocalSteps) -> Question:
        if self.batch_size is None:
            return super()._asked_for_gradient(W, local)
        return DPFedCPrintedClient.drawn_gradient.asked(
            W, batch_size=self.batch_size, max_gradient_norm=self._max_gradient_norm, **local
        )

    # Penalties and steps.

    @property
    def _has_papers_rho(self) -> bool:
        return self.rho == "paper" or (self.rho is None and not self._is_private)

    def _rho(self, t: int, W: Floats) -> float:
        if self._has_papers_rho:
            return PAPER_RHO * self._squared_norm
        return growing_rho(W, t, self.n_rounds) if self.rho is None else super()._rho(t, W)

    def _penalties(self, t: int, W: Floats) -> Penalties:
        return replace(super()._penalties(t, W), mu_w=self.mu_w)

    def _n_center_steps(self, t: int) -> int:
        """Return Q_2, the number of steps on W in a round (line 12)."""
        return int(self.n_center_steps / t**self.step_decay) + 1

    @property
    def _batch_size(self) -> int:
        return self.batch_size or BATCH_SIZE

    @property
    def _asks_for_origin(self) -> bool:
        return self.rays_from == "auto" and not self._has_papers_rho and super()._asks_for_origin

    # Bounds and budget.

    @property
    def _counts_rows(self) -> bool:
        """Whether rows are counted, because the noise depends on the smallest client."""
        return self.epsilon is not None and self.batch_size is not None

    @property
    def _fewest_rows(self) -> int:
        return self._smallest_client[0] if self._smallest_client else 0

    @property
    def _waits_for_counts(self) -> bool:
        """Whether the plan must wait until rows are counted. With tables it cannot: their preparation needs noise."""
        return self._counts_rows and self.tables is None and not self._smallest_client

    def parts(self) -> Mapping[str, Part]:
        """Return the parts of the budget, for gradients of drawn rows if batches are small."""
        if self.batch_size is None:
            return super().parts()
        b, n = self.batch_size, self._fewest_rows
        sample, answer = (b, n) if b < n else None, DPFedCPrintedClient.drawn_gradient
        return {
            name: replace(part, answers=answer, sample=sample)
            for name, part in super().parts().items()
        }

    def freeze_plan(self) -> None:
        """Freeze the plan, unless it depends on rows that have not been counted."""
        if not self._waits_for_counts:
            super().freeze_plan()

    @property
    def plan(self) -> str:
        """The frozen plan as JSON; "" without an epsilon, or until the rows are counted."""
        return "" if self._waits_for_counts else super().plan

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds: as many as :class:`DPFedC` takes, and others for the penalty and for counting rows."""
        return super().n_protocol_rounds + self._has_papers_rho + self._counts_rows


class DPFedCTheorem2(DPFedCPrinted):
    """DP-FedC with the paper's noise: the drawn clients send their centers, with an epsilon for every single round.

    It is for comparison with the paper; :class:`~flower_fedclust.DPFedC` spends a budget far better. The paper assumes
    that the gradient of each minibatch has a norm of at most G; here it is clipped to G. The privacy report says which
    epsilon all rounds have together.

    Parameters
    ----------
    round_epsilon : float, default=1.0
        The epsilon that Theorem 2 promises for one round, not for the run.
    delta : float, default=1e-6
        The delta of one round, and also the delta at which the report states the epsilon of all rounds.
    max_norm : float
        The Euclidean norm to which every client clips its rows. It is public, and must not be computed from the data.
    batch_size : int, default=50
        The number of rows for a step on W, b in the paper. A client with fewer rows takes all.
    rho : "growing" or float, default="growing"
        The penalty that makes each row belong to one cluster; the paper's would take an unprotected round.
    step_scale : float, default=5.0
        A step on W is the gradient over eta, and eta is this many times b, the largest possible eigenvalue of H'H if
        memberships have a norm of at most 1. With a step size that depended on the rows, nothing would be bounded.
    max_gradient_norm : float, optional
        The norm G to which the gradient of each minibatch is clipped; half of ``max_norm`` by default.

    References
    ----------
    Li, Wang, Chi and Quek 2024, Theorem 2, with the noise of equation (29).
    """

    entries = (
        Entry(
            "dp-fedc-theorem-2",
            "DP-FedC with the paper's noise, whose epsilon is for a single round",
            "Li, Wang, Chi and Quek 2024, Theorem 2",
            example={"max_norm": 1.0},
        ),
    )

    round_epsilon: float = parameter(1.0, above=0, at_most=1000)
    rho: float | Literal["growing"] = parameter("growing", at_least=0)
    batch_size: int = parameter(BATCH_SIZE, at_least=1)
    step_scale: float = parameter(5.0, above=0)
    max_norm: float = parameter(at_least=SMALLEST_NORM, at_most=LARGEST_NORM)
    epsilon: float | None = dataclasses.field(default=None, init=False)
    rays_from: Literal["auto", "zero"] = dataclasses.field(default="zero", init=False)
    budget: Mapping[str, float] | None = dataclasses.field(default=None, init=False)

    @property
    def _is_private(self) -> bool:
        return True

    @property
    def _counts_rows(self) -> bool:
        return True

    @property
    def _on_grid(self) -> bool:
        # Each step is clipped, whatever the rows are, which also bounds the sum of the steps.
        return False

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first invalid parameter."""
        super().check_parameters()
        n_parts = len(self._rounds_by_steps)
        if self.noise != "server" and n_parts > MOST_SHARES:
            raise ValueError(
                f"n_center_steps is {self.n_center_steps}, so that rounds differ in {n_parts} numbers of steps; "
                f"clients accept plans of at most {MOST_SHARES} parts: give fewer steps, or noise='server'."
            )

    @property
    def _rounds_by_steps(self) -> Counter[int]:
        """The number of rounds that take each number of steps on W."""
        return Counter(self._n_center_steps(t) for t in range(1, self.n_rounds + 1))

    def _round(
        self,
        t: int,
        W: Floats,
        S: Sequence[str],
        local: LocalSteps,
        origin: Sequence[Floats],  # noqa: ARG002
    ) -> Generator[Round, Total | None, tuple[Floats, None]]:
        b = self.batch_size
        eta = self.step_scale * b
        Q_2 = self._n_center_steps(t)
        asked = DPFedCTheorem2Client.factorise_clipped.asked(
            W,
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
        """Return no parts: nothing is calibrated to a budget of the run."""
        return {}

    @property
    def frozen_plan(self) -> Plan:
        """The noise of Theorem 2 for every single round, which depends on the number of its steps on W."""
        b, n, counts = self.batch_size, self._fewest_rows, self._rounds_by_steps
        shares = {
            f"{Q_2} steps": Share("gaussian", 1.0, count, "replace")
            for Q_2, count in counts.items()
        }
        multipliers = {
            f"{Q_2} steps": noise_multiplier(Q_2 * min(b, n) / n, self.round_epsilon, self.delta)
            for Q_2 in counts
        }
        return Plan(
            self.round_epsilon, self.delta, self.noise, self.privacy_unit, shares, multipliers
        )

    @property
    def plan(self) -> str:
        """The plan for clients that add noise, once rows are counted; empty if the server adds the noise."""
        return "" if self.noise == "server" or not self._fewest_rows else self.frozen_plan.to_json()

    def with_noise(self, round_: Round) -> Round:
        """Return a round with the noise of Theorem 2."""
        if not round_.parts:
            return round_
        question = round_.question_for(None)
        return replace(
            round_,
            releases=releases_of_parts(question, question.moved(), round_.parts, self.frozen_plan),
        )

    def privacy_notes(self) -> list[str]:
        """Add what the paper's epsilon means."""
        return [
            *super().privacy_notes(),
            f"The noise follows the paper's Theorem 2 for epsilon {self.round_epsilon:g} in every single round; the "
            "guarantee above is what the rounds compose to.",
        ]

    @property
    def report(self) -> PrivacyReport:
        """The privacy report of the rounds that ran; no epsilon was asked for the run."""
        return dataclasses.replace(
            super().report, delta=self.delta, unit=self.privacy_unit, noise=self.noise
        )


# The paper's statements about its noise (section V-B), for comparison. No guarantee of a run rests on them.


def sensitivity(max_gradient_norm: float, n_steps: int, eta: float) -> float:
    """Return ``2 G Q_2 / eta``, how far replacing one row can move a client's centers (Lemma 2, equation 28).

    Each step may differ by two gradients of norm G. This holds only if the gradient of every minibatch is clipped to G.
    """
    return 2.0 * max_gradient_norm * n_steps / eta


def noise_multiplier(sampling_ratio: float, epsilon: float, delta: float) -> float:
    """Return the noise over the sensitivity for (epsilon, delta) in one round of sampling ratio q (Theorem 2).

    By equation (29), ``sigma^2 = 32 G^2 Q_2^2 q^2 ln(1.25 q / delta) / (eta^2 epsilon^2)``. Equation (31) has a factor
    4 where Lemmas 1 and 2 give 8, and with 8 it leads to (29). The theorem assumes an epsilon of at most 1. For q above
    1/2 sampling gains nothing, and (29) asks for more noise than Lemma 1.
    """
    logarithm = 1.25 * sampling_ratio / delta
    if logarithm <= 1:
        raise ValueError(
            f"the sampling ratio is {sampling_ratio:g} and delta {delta:g}: equation (29) needs 1.25 q above delta."
        )
    return 2.0 * sampling_ratio * math.sqrt(2.0 * math.log(logarithm)) / epsilon


def total_epsilon(
    epsilon: float, sampling_ratio: float, p: float, n_rounds: int, c0: float
) -> float:
    """Return ``c0 q^2 epsilon sqrt(p R / (1 - q))``, the paper's epsilon of R rounds (Theorem 3).

    The paper never gives c0. For q of 1 or more, as in its own settings, the result is NaN.
    """
    if sampling_ratio >= 1:
        return math.nan
    return c0 * sampling_ratio**2 * epsilon * math.sqrt(p * n_rounds / (1.0 - sampling_ratio))


# The client half.


def moved_by_a_drawn_row(
    n_rows: int, batch_size: int, max_gradient_norm: float
) -> tuple[Bound, ...]:
    """Return how far replacing one row moves the two sums of a client that draws from at least n_rows rows."""
    sample = (n_drawn(n_rows, batch_size), n_rows)  # with more rows, a smaller fraction is drawn
    return tuple(replace(bound, sample=sample) for bound in moved_by_a_row(max_gradient_norm))


class DPFedCPrintedClient(DPFedCClient):
    """The client half of :class:`DPFedCPrinted`, which can compute a clipped gradient on a few drawn rows."""

    @answers(
        Sent("sum over the rows of the gradients of the centers", has_columns=True),
        "sum over the rows of the products of memberships",
        moved=lambda known, W, *, batch_size, max_gradient_norm, **local: moved_by_a_drawn_row(
            known.n_rows, batch_size, max_gradient_norm
        ),
        # A row's first memberships are drawn in the order of the rows, so that they depend on its index.
        relation="replace",
    )
    def drawn_gradient(
        self, W: Floats, *, batch_size: int, max_gradient_norm: float, **local: Unpack[LocalSteps]
    ) -> tuple[GridArray, GridArray]:
        """Take the steps on H; return the clipped gradient (18) of one minibatch, and its H'H as a triangle."""
        rows, H = self._clipped_rows(local["max_norm"]), self._updated_memberships(W, local)
        (batch,) = self.secret_minibatches(1, batch_size)
        return clipped_sums(rows, H, W, max_gradient_norm, batch)

    @answers("sum of the squared norms of the rows, as digits")
    def squared_norm(self) -> GridArray:
        """Return the client's part of ||X||^2."""
        return GridArray(digits_of(float(np.sum(self.rows**2))))

    @answers(Sent("number of rows", counts_rows=True))
    def row_count(self) -> Floats:
        """Return n_i, the number of the client's rows."""
        return np.array(float(len(self.rows)))

    def secret_minibatches(self, n_steps: int, batch_size: int) -> Iterator[NDArray[np.intp]]:
        """Draw rows that the server cannot predict, as it could from random_state; the guarantee needs this."""
        return self.minibatches(
            n_steps,
            batch_size,
            lambda: np.argsort(self.noise_source.words(len(self.rows)), kind="stable"),
        )


class DPFedCTheorem2Client(DPFedCPrintedClient):
    """The answers of a client that sends its centers, as the paper's clients do."""

    clips_rows = True

    @answers(
        Sent("by how much the client's centers have moved", has_columns=True),
        moved=lambda _, W, *, n_center_steps, batch_size, eta, max_gradient_norm, **local: (
            replace(
                within(sensitivity(max_gradient_norm, n_center_steps, eta) / 2.0),
                words="the client clips the gradient of every minibatch",
            ),
        ),
    )
    def factorise_clipped(
        self,
        W: Floats,
        *,
        n_center_steps: int,
        batch_size: int,
        eta: float,
        max_gradient_norm: float,
        **local: Unpack[LocalSteps],
    ) -> GridArray:
        """Take the steps on H and on W (lines 9 to 15), with each gradient clipped; return W_i - W."""
        rows, H = self._clipped_rows(local["max_norm"]).values, self._updated_memberships(W, local)
        part = n_drawn(len(rows), batch_size) / len(rows)
        batches = self.secret_minibatches(n_center_steps, batch_size)
        moved = center_steps(rows, H, W, batches, part * local["mu_w"], eta, max_gradient_norm) - W
        return GridArray.clipped(moved, sensitivity(max_gradient_norm, n_center_steps, eta) / 2.0)


DPFedCPrinted.client_type = DPFedCPrintedClient
DPFedCTheorem2.client_type = DPFedCTheorem2Client
