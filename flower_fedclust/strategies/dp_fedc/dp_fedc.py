"""DP-FedC: clusters by a factorisation that the clients learn together, with noise on what they send.

Li, Wang, Chi and Quek, "Differentially private federated clustering over non-IID data", IEEE Internet of Things
Journal, 2024. The paper's samples are columns; here rows are samples, so that X is (n, m), H (n, k) and W (k, m). The
lines are those of Algorithm 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.engine import (
    ClippedStrategy,
    Entry,
    Gather,
    Outcome,
    Protocol,
    Question,
    Reply,
    Sum,
    Total,
    parameter,
)
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Round
from flower_fedclust.exact.digits import value_of_digits
from flower_fedclust.exact.exponents import LEAST_EXPONENT, largest_exponent, table_exponent
from flower_fedclust.exact.factorisation import (
    Penalties,
    center_step_size,
    membership_step_divisor,
)
from flower_fedclust.exact.sums import triangle_to_symmetric
from flower_fedclust.models import FactorModel
from flower_fedclust.numerics.checks import checked_rows
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.strategies.common.first_centers import GIVEN_CENTERS_NOTE, check_given_centers
from flower_fedclust.strategies.common.turns import drawn_in_turns, most_turns
from flower_fedclust.strategies.dp_fedc.client import DPFedCClient, LocalSteps

Floats = NDArray[np.float64]

#: eta over the largest eigenvalue of H'H: the paper's; and where every step costs epsilon.
STEP_SCALE, NOISY_STEP_SCALE = 5.0, 2.0

#: rho over the mean squared norm of the centers, in the first round and from the middle of the run on.
GROWING_RHO = (0.1, 0.4)

#: The paper's rho and mu_h, over ||X||^2 / N.
PAPER_RHO, PAPER_MU_H = 1e-7, 1e-10

#: The paper's b; and what stands for all rows.
BATCH_SIZE, ALL_ROWS = 50, 0

#: Without noise: by how many bits the unit of what clients send is finer than the largest entry of the centers. Of an
#: entry that moves by more than 2^17 times that, the rest is cut.
MOVE_BITS = 36


class DPFedC(ClippedStrategy):
    """DP-FedC: soft clusters, whose centers are learned by the clients' gradient steps and averaged.

    Every client keeps how much each of its rows belongs to each cluster (H), and never sends it. In a round all clients
    take gradient steps on theirs, and those that are drawn take steps on the centers (W) too, which the server averages
    (Algorithm 1). A row is in the cluster to which it belongs most.

    With an epsilon the drawn clients send, in place of centers, the sum of their rows' gradients, each clipped, and the
    sum of the outer products of memberships, both with noise; the server takes the step, one a round. It is the average
    of what the clients' single steps with one step size would be, and one row moves it by far less.

    The factorisation is meant for rows without negative entries, near 0 where a thing is absent. Negative ones are
    allowed, as nothing constrains W. But clusters are directions from the origin: two clusters of rows on one ray are
    one, and where the origin is far from all rows, they are hard to tell apart.

    Parameters
    ----------
    n_rounds : int, default=100
        R.
    fraction_fit : float, default=0.3
        K / N, the part of the clients that is drawn for a round; each as often as any other.
    n_membership_steps : int, default=10
        Q_1, gradient steps on H in a round.
    n_center_steps : int, default=10
        Q^: in round t a client takes ``Q_2 = floor(Q^ / t) + 1`` steps on W.
    batch_size : int, optional
        b, rows of a step on W; a client with fewer takes all. 50 by default, as in the paper, and with epsilon all
        rows: what is gained by drawing few is less than what is lost, unless the clients have thousands.
    rho : "growing", "paper" or float, default="growing"
        The penalty that has each row belong to one cluster. "growing" starts at a tenth of the centers' mean squared
        norm and ends at four tenths. The paper's, ``1e-7 ||X||^2 / N``, depends on the unit of the rows, and costs a
        round that nothing protects.
    mu_h : float, optional
        The penalty on H; by default a thousandth of rho, as in the paper.
    mu_w : float, default=0.0
        The penalty on W.
    step_scale : float, optional
        eta over the largest eigenvalue of H'H; 5 by default, as in the paper, and 2 with epsilon, where steps are few.
    update_all : bool, default=True
        Whether the clients that are not drawn update their memberships too (Algorithm 1); it spares their work if not.
    init : array-like of shape (n_clusters, n_columns), optional
        The first W; by default absolute values of N(0, 1), as long as ``max_norm`` where rows are clipped to it.
    epsilon : float, optional
        The privacy budget of the whole run, for one row of one client being replaced. None is no noise, no clipping and
        no guarantee.
    max_gradient_norm : float, optional
        G, to which each row's gradient is clipped with epsilon; half of ``max_norm`` by default.

    Notes
    -----
    Of one row x with memberships h two things enter what is sent with epsilon: its clipped gradient, of Frobenius norm
    at most G, and ``h h'``, of norm at most 1 as h is clipped to 1. Its memberships depend on the row and on W alone,
    so that a row that takes its place changes nothing else: the sums move by at most 2 G and, as ``<h h', g g'> >= 0``,
    by sqrt(2).

    A row is in the messages of its own client alone, so that epsilon counts the rounds for which a client is drawn. To
    keep these few, clients are drawn in turns, each as often as any other or once more; the paper draws anew in every
    round.
    """

    entries = (
        Entry(
            "dp-fedc",
            "soft clusters by a factorisation whose centers are averaged; private with epsilon",
            "Li, Wang, Chi and Quek 2024, Algorithm 1",
            finds="soft",
        ),
    )

    n_rounds: int = parameter(100, at_least=1)
    fraction_fit: float = parameter(0.3, above=0, at_most=1)
    n_membership_steps: int = parameter(10, at_least=1)
    n_center_steps: int = parameter(10, at_least=0)
    batch_size: int | None = parameter(None, at_least=1)
    rho: float | Literal["growing", "paper"] = parameter("growing", at_least=0)
    mu_h: float | None = parameter(None, at_least=0)
    mu_w: float = parameter(0.0, at_least=0)
    step_scale: float | None = parameter(None, above=0)
    update_all: bool = parameter(True)
    init: ArrayLike | None = parameter(None)
    max_gradient_norm: float | None = parameter(None, above=0)

    #: Called after each round with its number, from 1, and the centers: to watch a run.
    on_centers: Callable[[int, Floats], None] | None = dataclasses.field(default=None, init=False)

    #: Of the smallest client, once the rows are counted.
    _fewest_rows: int = dataclasses.field(default=0, init=False)

    #: Without noise: the exponent of the rows' largest entry, where centers of zeros say nothing of a unit.
    _rows_exponent: int = dataclasses.field(default=LEAST_EXPONENT, init=False)

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first parameter which cannot be right."""
        super().check_parameters()
        if self.init is not None:
            check_given_centers(self.init, self.n_clusters)
        if self._is_private and self.rho == "paper":
            raise ValueError("rho is 'paper', which nothing protects; with epsilon give a number, or 'growing'.")

    # The server half.

    def protocol(self) -> Protocol:
        """Run Algorithm 1."""
        self._fewest_rows = 0
        W = self._first_centers()  # line 1
        squared_norm = 0.0
        if self.rho == "paper":
            total = yield Sum(DPFedCClient.squared_norm.asked())
            squared_norm = value_of_digits(total[0]) / total.n_clients
        self._rows_exponent = LEAST_EXPONENT
        if self._asks_for_exponent:
            (indicator,) = yield Sum(DPFedCClient.entry_exponent.asked())
            self._rows_exponent = largest_exponent(indicator)
        clients = (yield from self._count_rows()) if self._is_private else self.client_names
        K = self.n_to_draw(self.fraction_fit, len(clients))
        most = None if self.epsilon is None else self.frozen_plan.shares["gradients"].count
        drawn = drawn_in_turns(clients, K, self.n_rounds, self.rng, most=most)
        objectives: list[float] = []
        for t, S in enumerate(drawn, start=1):
            local = self._local_steps(W, self._penalties(t, W, squared_norm))
            W, mean_objective = yield from self._round(t, W, S, local)
            objectives += [] if mean_objective is None else [mean_objective]
            if self.on_centers is not None:
                self.on_centers(t, W)
        last = self._penalties(self.n_rounds, W, squared_norm)
        history = {"objective": objectives} if objectives else {}
        return Outcome(FactorModel(W, rho=last.rho, mu_h=last.mu_h), history=history)

    def _round(
        self, t: int, W: Floats, S: Sequence[str], local: LocalSteps
    ) -> Generator[Round, Total | None, tuple[Floats, float | None]]:
        """Return W^t, and the mean objective of the drawn clients where nothing is private."""
        if self._is_private:
            return (yield from self._noisy_step(W, S, local)), None
        asked = DPFedCClient.factorise.asked(
            W,
            mu_w=self.mu_w,
            n_center_steps=self._n_center_steps(t),
            batch_size=self.batch_size or BATCH_SIZE,
            step_scale=self.step_scale or STEP_SCALE,
            exponent=max(table_exponent(W), self._rows_exponent) - MOVE_BITS,
            **local,
        )
        total = yield self._of_drawn(asked, W, S, local)
        if total is None:
            return W, None
        moved, objectives = total
        return W + moved / total.n_clients, value_of_digits(objectives) / total.n_clients  # (16)

    def _noisy_step(self, W: Floats, S: Sequence[str], local: LocalSteps) -> Generator[Round, Total | None, Floats]:
        """Take the step that is the average of the drawn clients' with one eta for all.

        Centers are kept as short as rows are. The fit leaves open how much of it is memberships and how much centers,
        and noise would lengthen the centers, until the memberships are too small to be seen in it.
        """
        assert self.max_norm is not None
        asked = DPFedCClient.clipped_gradient.asked(
            W, batch_size=self._private_batch_size, max_gradient_norm=self._max_gradient_norm, **local
        )
        total = yield self._of_drawn(asked, W, S, local, ("gradients", "products"))
        if total is None:
            return W
        gradient, products = total
        mu_w = total.n_clients * self.mu_w
        eta = center_step_size(triangle_to_symmetric(products), self.step_scale or NOISY_STEP_SCALE, mu_w)
        # Where noise leaves no positive eigenvalue, no step size can be found.
        if eta > 0:
            W = W - (gradient + mu_w * W) / eta
        return clip_rows(W, self.max_norm)

    def _of_drawn(
        self, asked: Question, W: Floats, S: Sequence[str], local: LocalSteps, parts: Sequence[str] = ()
    ) -> Sum:
        """Return the round in which the drawn clients answer, and the others take their steps on H (lines 7 to 11)."""
        others = DPFedCClient.update_memberships.asked(W, **local) if self.update_all else None
        return Sum(asked, clients=S, others=others, parts=parts, needed=False)

    # Starts, penalties and steps.

    def _first_centers(self) -> Floats:
        if self.init is not None:
            given = checked_rows(self.init, owner="init")
            return clip_rows(given, self.max_norm) if self._on_grid and self.max_norm is not None else given
        W = np.abs(self.rng.standard_normal((self.n_clusters, self.n_columns)))
        if not self._is_private or self.max_norm is None:
            return W
        scaled: Floats = self.max_norm * W / np.linalg.norm(W, axis=1, keepdims=True)
        return scaled

    def _count_rows(self) -> Generator[Round, list[Reply], list[str]]:
        """Return who may be drawn, once it is known how many rows the smallest client has.

        The gain by sampling depends on it, and Theorem 2. A client that does not say how many it has could have fewer,
        and the noise would not be enough for it.
        """
        replies = yield Gather(DPFedCClient.row_count.asked())
        self._fewest_rows = min(int(reply.arrays[0]) for reply in replies)
        return [reply.client for reply in replies]

    def _penalties(self, t: int, W: Floats, squared_norm: float) -> Penalties:
        if not isinstance(self.rho, str):
            rho = float(self.rho)
        elif self.rho == "paper":
            rho = PAPER_RHO * squared_norm
        else:
            first, last = GROWING_RHO
            progress = min(1.0, 2.0 * (t - 1) / self.n_rounds)
            rho = first * (last / first) ** progress * float(np.mean(np.sum(W**2, axis=1)))
        return Penalties(rho, PAPER_MU_H / PAPER_RHO * rho if self.mu_h is None else self.mu_h, self.mu_w)

    def _local_steps(self, W: Floats, penalties: Penalties) -> LocalSteps:
        return LocalSteps(
            rho=penalties.rho,
            mu_h=penalties.mu_h,
            n_membership_steps=self.n_membership_steps,
            random_state=int(self.rng.integers(2**31)),
            max_norm=self.max_norm if self._is_private and self.max_norm is not None else math.inf,
            divisor=membership_step_divisor(W, penalties) if self._on_grid else 0.0,
        )

    def _n_center_steps(self, t: int) -> int:
        """Return Q_2 of a round (line 12)."""
        return self.n_center_steps // t + 1

    # Bounds and budget.

    @property
    def _is_private(self) -> bool:
        return self.epsilon is not None

    @property
    def _on_grid(self) -> bool:
        """Whether what a client sends must be the same whatever other rows it has, to the last bit."""
        return self._is_private

    @property
    def _asks_for_exponent(self) -> bool:
        return not self._is_private and self.init is not None and not np.any(self.init)

    @property
    def _private_batch_size(self) -> int:
        return self.batch_size or ALL_ROWS

    @property
    def _max_gradient_norm(self) -> float:
        assert self.max_norm is not None
        return self.max_norm / 2 if self.max_gradient_norm is None else self.max_gradient_norm

    def parts(self) -> Mapping[str, Part]:
        """Return nine tenths for the gradients, a tenth for the products of memberships.

        Both depend on the same rows. Before a run knows its clients, as if one had a part in every round.
        """
        b, n = self._private_batch_size, self._fewest_rows
        sample = (b, n) if 0 < b < n else None
        count = most_turns(self, self.fraction_fit, self.n_rounds)
        answer = DPFedCClient.clipped_gradient
        return {
            "gradients": Part(answer, 0.9, count, sample=sample),
            "products": Part(answer, 0.1, count, sample=sample),
        }

    @property
    def plan_waits(self) -> bool:
        """Whether the gain by sampling is known once the rows are counted; a preparation takes noise before that."""
        return self._private_batch_size != ALL_ROWS and self.around is None

    def privacy_notes(self) -> list[str]:
        """Add what is assumed of centers that were given."""
        given = [GIVEN_CENTERS_NOTE] if self._is_private and self.init is not None else []
        return [*super().privacy_notes(), *given]

    @property
    def expected_columns(self) -> int | None:
        """The width of the first centers, where they were given."""
        return None if self.init is None else int(np.asarray(self.init).shape[1])

    @property
    def n_protocol_rounds(self) -> int:
        """R; and one for what the paper's penalties, noise, or centers of zeros have to be told first."""
        return self.n_rounds + (self.rho == "paper") + self._is_private + self._asks_for_exponent


DPFedC.client_type = DPFedCClient
