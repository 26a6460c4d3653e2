"""DP-FedC (Li, Wang, Chi and Quek, IEEE Internet of Things Journal, 2024): a factorization that clients learn together.

The paper's samples are columns. Here they are rows, so that X is (n, m), H (n, k) and W (k, m). Line numbers refer to
Algorithm 1, and equation numbers to the paper.

docs/shape.md shows how a ``yield`` here becomes a round of Flower.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypedDict, Unpack

import numpy as np
from flwr.common import Parameters
from flwr.server.client_manager import ClientManager
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.engine import (
    ClippedStrategy,
    Entry,
    Gather,
    Outcome,
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
from flower_fedclust.exact.exponents import LEAST_EXPONENT, largest_exponent, table_exponent
from flower_fedclust.exact.factorisation import (
    Penalties,
    center_step_size,
    center_steps,
    clipped_center_gradient,
    exact_membership_steps,
    lifted,
    membership_step_divisor,
    membership_steps,
    objective,
)
from flower_fedclust.exact.grid import GridArray, rows_onto_grid
from flower_fedclust.exact.rows import Frame
from flower_fedclust.exact.sums import second_moment, triangle_to_symmetric, upper_triangle
from flower_fedclust.exact.terms import Bound
from flower_fedclust.models import FactorModel
from flower_fedclust.numerics.checks import LARGEST, SMALLEST, checked_rows
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.accounting import MOST_SHARES, Plan, Share
from flower_fedclust.privacy.report import PrivacyReport
from flower_fedclust.strategies.common.client_drawing import draw_equally_often, most_rounds_per_client
from flower_fedclust.strategies.common.first_centers import GIVEN_CENTERS_NOTE, check_given_centers
from flower_fedclust.strategies.common.frame import FRAME_ROUNDS, RowsInFrame, frame_of_rows
from flower_fedclust.strategies.common.moments import MomentsClient

Floats = NDArray[np.float64]

#: rho over the mean squared norm of the centers, in the first round and from the middle of the run on.
GROWING_RHO = (0.1, 0.4)

#: The paper's rho and mu_h, over ||X||^2 / N.
PAPER_RHO, PAPER_MU_H = 1e-7, 1e-10

#: Clusters are rays from the mean where the mean square of a row's distance from it is below this part of its own.
NEAR_MEAN = 0.5

#: About the mean: the coordinate that all rows get, and how far first centers are apart, over the rows' spread.
LIFT, FIRST_SPREAD = 0.5, 0.3

#: The paper's b; and what stands for all rows.
BATCH_SIZE, ALL_ROWS = 50, 0

#: Without noise: by how many bits the unit of what clients send is finer than the largest entry of the centers. Of an
#: entry that moves by more than 2^17 times that, the rest is cut.
MOVE_BITS = 36

#: With noise: the largest norm of one row's memberships in what is sent. A row at a center that is as long has 1.
MAX_MEMBERSHIP = 1.0

#: What enforces the bounds, for the report.
CLIPPED_GRADIENT = "the client clips every row's gradient to half of this norm"

SHORT_MEMBERSHIPS = "a row's memberships have a norm of 1 at most"

#: Where a client keeps H.
MEMBERSHIPS = "memberships"


class LocalSteps(TypedDict):
    """What the server tells every client in a round, under the names of :class:`DPFedC`'s parameters."""

    rho: float
    mu_h: float
    n_membership_steps: int
    random_state: int
    max_norm: float
    #: gamma for clients that compute on a grid; 0 for clients that compute in floats.
    divisor: float


def _of_length(W: Floats, length: float) -> Floats:
    """Return centers that are scaled to a length."""
    scaled: Floats = length * W / np.linalg.norm(W, axis=1, keepdims=True)
    return scaled


@dataclass(frozen=True)
class MovedOrigin:
    """Where the rays of the clusters begin, if not at 0."""

    origin: Floats  #: The mean of all rows, and the coordinate that every row gets: see :func:`lifted`.
    deviation: Floats  #: The standard deviations of the columns.


class DPFedC(ClippedStrategy):
    """DP-FedC: soft clusters, whose centers are learned by the clients' gradient steps and averaged.

    Every client keeps the memberships of its rows in the clusters (H) and never sends them. In each round all clients
    take gradient steps on H, and the drawn clients also take steps on the centers (W), which the server averages
    (Algorithm 1). A row is in the cluster in which its membership is largest.

    With an epsilon, the drawn clients send the sum of their rows' clipped gradients and the sum of the outer products
    of memberships instead of centers, both with noise. The server takes one step in a round. It is the average of
    single steps of the clients with a common step size, and one row moves it far less.

    The factorization suits rows without negative entries, near 0 where a thing is absent. Negative entries are allowed,
    because nothing constrains W. But clusters are directions from the origin: two clusters on one ray are one cluster,
    and if the origin is far from all rows, they all lie on nearly one ray and end in one cluster. Without an epsilon,
    such rows are moved (see ``rays_from``); with an epsilon, subtract public values from the columns first.

    Parameters
    ----------
    n_rounds : int, default=100
        R.
    fraction_fit : float, default=0.3
        K / N, the fraction of the clients that is drawn in a round. All clients are drawn equally often.
    n_membership_steps : int, default=10
        Q_1, gradient steps on H in a round.
    n_center_steps : int, default=10
        Q^: in round t a client takes ``Q_2 = floor(Q^ / t^step_decay) + 1`` steps on W. Theorem 4 needs eta to be at
        least ``sqrt(6) Q_2`` times L_W; with a ``step_scale`` of 5 this holds for Q_2 of at most 2.
    step_decay : float, default=1.0
        1 as in the paper's algorithm. With 0 Q_2 is constant: the 5 of Table I are ``n_center_steps=4, step_decay=0``.
    batch_size : int, optional
        b, the rows for a step on W; a client with fewer rows takes all. By default 50, as in the paper, and all rows
        with epsilon, because drawing few rows only pays off if the clients have thousands.
    rho : "growing", "paper" or float, default="growing"
        The penalty that makes each row belong to one cluster. "growing" starts at a tenth of the centers' mean squared
        norm and ends at four tenths. "paper" is ``1e-7 ||X||^2 / N``, which depends on the unit of the rows and takes
        an unprotected round.
    mu_h : float, optional
        The penalty on H; by default a thousandth of rho, as in the paper.
    mu_w : float, default=0.0
        The penalty on W.
    step_scale : float, default=2.0
        eta over the largest eigenvalue of H'H, the inverse of the step size; 5 in the paper. From 1 on, a step on all
        rows does not raise the objective.
    update_all : bool, default=True
        Whether clients that are not drawn update their memberships too, as in Algorithm 1. False spares them the work.
    rays_from : "auto" or "zero", default="auto"
        Where the rays of the clusters begin. "zero" is the paper's. "auto" is the mean of all rows if they are so close
        to it that their directions from 0 hardly differ: if the mean square of a row's distance from the mean is less
        than half of the mean's squared length. All rows then get one more coordinate, half of their spread, so that
        each ray stands for one point among the rows. To find this out takes four unprotected rounds of sums. With an
        epsilon, and with ``rho="paper"``, it is always 0.
    init : array-like of shape (n_clusters, n_columns), optional
        The first W; by default absolute values of N(0, 1), scaled to ``max_norm`` if rows are clipped to it;
        about the mean, N(0, 1) times three tenths of the columns' standard deviations.
    epsilon : float, optional
        The privacy budget of the whole run, for replacing one row of one client. None means no noise, no clipping and
        no guarantee.
    max_gradient_norm : float, optional
        G, to which each row's gradient is clipped with epsilon; half of ``max_norm`` by default.

    Notes
    -----
    With epsilon, a row x with memberships h contributes its clipped gradient, of Frobenius norm at most G, and
    ``h h'``, of norm at most 1 because h is clipped to 1. Its memberships depend on the row and on W alone, so that
    replacing it changes nothing else: the sums move by at most 2 G and, as ``<h h', g g'> >= 0``, by sqrt(2).

    A row affects the messages of its own client alone, so that epsilon counts the rounds in which a client is drawn. To
    keep these few, clients are drawn in turns, equally often or once more; the paper draws anew in every round.
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
    step_decay: float = parameter(1.0, at_least=0)
    batch_size: int | None = parameter(None, at_least=1)
    rho: float | Literal["growing", "paper"] = parameter("growing", at_least=0)
    mu_h: float | None = parameter(None, at_least=0)
    mu_w: float = parameter(0.0, at_least=0)
    step_scale: float = parameter(2.0, above=0)
    update_all: bool = parameter(True)
    rays_from: Literal["auto", "zero"] = parameter("auto")
    init: ArrayLike | None = parameter(None)
    max_gradient_norm: float | None = parameter(None, above=0)

    #: To watch a run: called after each round with its number, from 1, and the centers.
    on_centers: Callable[[int, Floats], None] | None = dataclasses.field(default=None, init=False)

    #: The number of rows of the smallest client, once the rows are counted; a run's copies share the list.
    _smallest_client: list[int] = dataclasses.field(default_factory=list, init=False)

    #: Without noise: the exponent of the rows' largest entry, needed if the first centers are zeros.
    _rows_exponent: int = dataclasses.field(default=LEAST_EXPONENT, init=False)

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first invalid parameter."""
        super().check_parameters()
        if self.init is not None:
            check_given_centers(self.init, self.n_clusters)
        if self._is_private and self.rho == "paper":
            raise ValueError("rho is 'paper', which nothing protects; with epsilon give a number, or 'growing'.")

    # The server half.

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        """Begin a new run, in which no rows have been counted."""
        self._smallest_client = []
        return super().initialize_parameters(client_manager)

    def protocol(self) -> Protocol:
        """Run Algorithm 1."""
        moved = (yield from self._find_origin()) if self._asks_for_origin else None
        W = self._first_centers(moved)  # line 1
        origin = () if moved is None else (moved.origin,)
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
        drawn = draw_equally_often(clients, K, self.n_rounds, self.rng, most=most)
        objectives: list[float] = []
        for t, S in enumerate(drawn, start=1):
            local = self._local_steps(W, self._penalties(t, W, squared_norm))
            W, mean_objective = yield from self._round(t, W, S, local, origin)
            objectives += [] if mean_objective is None else [mean_objective]
            if self.on_centers is not None:
                self.on_centers(t, W)
        last = self._penalties(self.n_rounds, W, squared_norm)
        history = {"objective": objectives} if objectives else {}
        return Outcome(FactorModel(W, *origin, rho=last.rho, mu_h=last.mu_h), history=history)

    def _round(
        self, t: int, W: Floats, S: Sequence[str], local: LocalSteps, origin: Sequence[Floats]
    ) -> Generator[Round, Total | None, tuple[Floats, float | None]]:
        """Return W^t and, without epsilon, the mean objective of the drawn clients."""
        if self._is_private:
            return (yield from self._noisy_step(W, S, local)), None
        asked = DPFedCClient.factorise.asked(
            W,
            *origin,
            mu_w=self.mu_w,
            n_center_steps=self._n_center_steps(t),
            batch_size=self.batch_size or BATCH_SIZE,
            step_scale=self.step_scale,
            exponent=max(table_exponent(W), self._rows_exponent) - MOVE_BITS,
            **local,
        )
        total = yield self._of_drawn(asked, W, S, local, origin=origin)
        if total is None:
            return W, None
        moved, lifted_moved, objectives = total
        moved = np.column_stack([moved, lifted_moved]) if origin else moved
        return W + moved / total.n_clients, value_of_digits(objectives) / total.n_clients  # (16)

    def _noisy_step(self, W: Floats, S: Sequence[str], local: LocalSteps) -> Generator[Round, Total | None, Floats]:
        """Take the average of the drawn clients' steps, with one eta for all.

        Centers are clipped to the norm of rows. The fit does not determine the scale of centers and memberships, and
        noise would lengthen the centers until it hides the memberships.
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
        eta = center_step_size(triangle_to_symmetric(products), self.step_scale, mu_w)
        # If noise leaves no positive eigenvalue, there is no step size.
        if eta > 0:
            W = W - (gradient + mu_w * W) / eta
        return clip_rows(W, self.max_norm)

    def _of_drawn(
        self,
        asked: Question,
        W: Floats,
        S: Sequence[str],
        local: LocalSteps,
        parts: Sequence[str] = (),
        origin: Sequence[Floats] = (),
    ) -> Sum:
        """Return the round in which the drawn clients answer and the others take steps on H (lines 7 to 11)."""
        others = DPFedCClient.update_memberships.asked(W, *origin, **local) if self.update_all else None
        return Sum(asked, clients=S, others=others, parts=parts, needed=False)

    # Starts, penalties and steps.

    def _find_origin(self) -> Generator[Round, Total, MovedOrigin | None]:
        """Return the mean and the spread of all rows, if the directions of rows from 0 hardly differ."""
        frame, _ = yield from frame_of_rows()
        sums, squares, n_rows = yield Sum(DPFedCClient.clipped_column_sums.asked(frame=frame))
        offset = sums / n_rows
        with np.errstate(over="ignore", invalid="ignore"):  # squares beyond the floats: nothing is moved
            mean, variance = frame.origin + offset, np.maximum(squares / n_rows - offset**2, 0.0)
            is_near = 0 < variance.sum() < NEAR_MEAN * float(mean @ mean) < math.inf
        if not is_near:
            return None
        lift = LIFT * math.sqrt(float(variance.sum()))
        return MovedOrigin(np.append(mean, lift), np.sqrt(variance))

    def _first_centers(self, moved: MovedOrigin | None) -> Floats:
        if self.init is not None:
            given = checked_rows(self.init, owner="init")
            if moved is not None:
                return lifted(given, moved.origin)
            return clip_rows(given, self.max_norm) if self._on_grid and self.max_norm is not None else given
        drawn = self.rng.standard_normal((self.n_clusters, self.n_columns))
        if moved is not None:
            W = np.column_stack([FIRST_SPREAD * moved.deviation * drawn, np.full(len(drawn), moved.origin[-1])])
            return _of_length(W, float(np.linalg.norm(moved.deviation)))
        W = np.abs(drawn)
        return W if not self._is_private or self.max_norm is None else _of_length(W, self.max_norm)

    @property
    def _fewest_rows(self) -> int:
        return self._smallest_client[0] if self._smallest_client else 0

    def _count_rows(self) -> Generator[Round, list[Reply], list[str]]:
        """Find the size of the smallest client, and return the clients that answered, which may be drawn.

        The gain from sampling and Theorem 2 depend on this size. The noise would be too small for a client with fewer
        rows, and a client that does not answer could have fewer.
        """
        replies = yield Gather(DPFedCClient.row_count.asked())
        self._smallest_client[:] = [min(int(reply.arrays[0]) for reply in replies)]
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
        return int(self.n_center_steps / t**self.step_decay) + 1

    # Bounds and budget.

    @property
    def _is_private(self) -> bool:
        return self.epsilon is not None

    @property
    def _on_grid(self) -> bool:
        """Whether a row's contribution must be the same, bit for bit, whatever the client's other rows are."""
        return self._is_private

    @property
    def _asks_for_exponent(self) -> bool:
        return not self._is_private and self.init is not None and not np.any(self.init)

    @property
    def _asks_for_origin(self) -> bool:
        return not self._is_private and self.rays_from == "auto" and self.rho != "paper"

    @property
    def _private_batch_size(self) -> int:
        return self.batch_size or ALL_ROWS

    @property
    def _max_gradient_norm(self) -> float:
        assert self.max_norm is not None
        return self.max_norm / 2 if self.max_gradient_norm is None else self.max_gradient_norm

    def parts(self) -> Mapping[str, Part]:
        """Return nine tenths for the gradients and a tenth for the products of memberships, of the same drawn rows.

        Before a run knows its clients, it assumes that one of them is drawn in every round.
        """
        b, n = self._private_batch_size, self._fewest_rows
        sample = (b, n) if 0 < b < n else None
        count = most_rounds_per_client(self, self.fraction_fit, self.n_rounds)
        answer = DPFedCClient.clipped_gradient
        return {
            "gradients": Part(answer, 0.9, count, sample=sample),
            "products": Part(answer, 0.1, count, sample=sample),
        }

    @property
    def plan_waits(self) -> bool:
        """Whether the plan needs the row counts for the gain from sampling; a preparation takes noise before that."""
        return self._private_batch_size != ALL_ROWS and self.tables is None

    def privacy_notes(self) -> list[str]:
        """Add that given centers are assumed to be public."""
        given = [GIVEN_CENTERS_NOTE] if self._is_private and self.init is not None else []
        return [*super().privacy_notes(), *given]

    @property
    def expected_columns(self) -> int | None:
        """The width of the first centers, if they were given."""
        return None if self.init is None else int(np.asarray(self.init).shape[1])

    @property
    def n_protocol_rounds(self) -> int:
        """R, and the rounds that the origin, the paper's penalties, noise, or first centers of zeros need."""
        before = (FRAME_ROUNDS + 1) * self._asks_for_origin + (self.rho == "paper") + self._asks_for_exponent
        return self.n_rounds + before + self._is_private


class DPFedCTheorem2(DPFedC):
    """DP-FedC as printed: the drawn clients send their centers, with noise for an epsilon of every single round.

    It is for comparison with the paper; :class:`DPFedC` spends a budget far better. The gradient of each minibatch is
    clipped to G, which the paper assumes, and the privacy report says what the rounds compose to.

    Parameters
    ----------
    round_epsilon : float, default=1.0
        The epsilon that Theorem 2 promises for one round, not for the run.
    delta : float, default=1e-6
        The delta of one round, and that for which the report composes the rounds.
    max_norm : float
        The Euclidean norm to which every client clips its rows. It is public, and must not be computed from the data.
    batch_size : int, optional
        b, the rows for a step on W; 50 by default. A client with fewer rows takes all.
    rho : "growing" or float, default="growing"
        The penalty that makes each row belong to one cluster. "growing" starts at a tenth of the centers' mean squared
        norm and ends at four tenths.
    step_scale : float, default=5.0
        eta over b, the largest possible eigenvalue of H'H if memberships have a norm of at most 1. A step size that
        depended on the rows would bound nothing.
    max_gradient_norm : float, optional
        G, to which the gradient of each minibatch is clipped; half of ``max_norm`` by default.

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
    step_scale: float = parameter(5.0, above=0)
    max_norm: float = parameter(at_least=SMALLEST, at_most=LARGEST)
    epsilon: float | None = dataclasses.field(default=None, init=False)
    rays_from: Literal["auto", "zero"] = dataclasses.field(default="zero", init=False)
    budget: Mapping[str, float] | None = dataclasses.field(default=None, init=False)

    @property
    def _is_private(self) -> bool:
        return True

    @property
    def _on_grid(self) -> bool:
        # Each step is clipped, whatever the rows are, and so is their sum.
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
        """How many rounds take each number of steps on W."""
        return Counter(self._n_center_steps(t) for t in range(1, self.n_rounds + 1))

    def _round(
        self,
        t: int,
        W: Floats,
        S: Sequence[str],
        local: LocalSteps,
        origin: Sequence[Floats],  # noqa: ARG002
    ) -> Generator[Round, Total | None, tuple[Floats, None]]:
        b = self.batch_size or BATCH_SIZE
        eta = self.step_scale * b
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
        """Return no parts: nothing is calibrated to a budget of the run."""
        return {}

    @property
    def frozen_plan(self) -> Plan:
        """The noise of Theorem 2 for every single round, which depends on the number of its steps on W."""
        b, n, counts = self.batch_size or BATCH_SIZE, self._fewest_rows, self._rounds_by_steps
        shares = {f"{Q_2} steps": Share("gaussian", 1.0, count, "replace") for Q_2, count in counts.items()}
        multipliers = {
            f"{Q_2} steps": noise_multiplier(Q_2 * min(b, n) / n, self.round_epsilon, self.delta) for Q_2 in counts
        }
        return Plan(self.round_epsilon, self.delta, self.noise, self.privacy_unit, shares, multipliers)

    @property
    def plan(self) -> str:
        """The plan for clients that add the noise, once the rows are counted; empty if the server adds it."""
        return "" if self.noise == "server" or not self._fewest_rows else self.frozen_plan.to_json()

    def with_noise(self, round_: Round) -> Round:
        """Return a round with the noise of Theorem 2."""
        if not round_.parts:
            return round_
        question = round_.question_for(None)
        return replace(round_, releases=releases_of_parts(question, question.moved(), round_.parts, self.frozen_plan))

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
        return dataclasses.replace(super().report, delta=self.delta, unit=self.privacy_unit, noise=self.noise)


# The paper's statements about its noise (section V-B), for comparison. No guarantee of a run rests on them.


def sensitivity(max_gradient_norm: float, n_steps: int, eta: float) -> float:
    """Return ``2 G Q_2 / eta``, how far replacing one row can move a client's centers (Lemma 2, equation 28).

    Each step may differ by two gradients of norm G. This holds only if the gradient of every minibatch is clipped to G.
    """
    return 2.0 * max_gradient_norm * n_steps / eta


def noise_multiplier(sampling_ratio: float, epsilon: float, delta: float) -> float:
    """Return the noise over the sensitivity for (epsilon, delta) in one round of sampling ratio q (Theorem 2).

    By equation (29), ``sigma^2 = 32 G^2 Q_2^2 q^2 ln(1.25 q / delta) / (eta^2 epsilon^2)``. Equation (31) has a factor
    4 where Lemmas 1 and 2 give 8; with 8 it leads to (29). The theorem assumes an epsilon of at most 1. For q above
    1/2, where sampling gains nothing, (29) asks for more noise than Lemma 1 does.
    """
    logarithm = 1.25 * sampling_ratio / delta
    if logarithm <= 1:
        raise ValueError(
            f"the sampling ratio is {sampling_ratio:g} and delta {delta:g}: equation (29) needs 1.25 q above delta."
        )
    return 2.0 * sampling_ratio * math.sqrt(2.0 * math.log(logarithm)) / epsilon


def total_epsilon(epsilon: float, sampling_ratio: float, p: float, n_rounds: int, c0: float) -> float:
    """Return ``c0 q^2 epsilon sqrt(p R / (1 - q))``, the paper's epsilon of R rounds (Theorem 3).

    The paper never gives c0. For q of 1 or more, as in its own settings, the result is NaN.
    """
    if sampling_ratio >= 1:
        return math.nan
    return c0 * sampling_ratio**2 * epsilon * math.sqrt(p * n_rounds / (1.0 - sampling_ratio))


# The client half.


def _n_drawn(n_rows: int, batch_size: int) -> int:
    """Return the number of rows in a minibatch; without a batch size, all of them."""
    return min(batch_size, n_rows) if batch_size > 0 else n_rows


def _gradient_moved(n_rows: int, batch_size: int, max_gradient_norm: float) -> tuple[Bound, Bound]:
    """Return how far replacing one row moves the gradient and the products of a client with at least n_rows rows.

    A row's first memberships depend on its place, so that adding a row would change the memberships of all others.
    """
    sample = (_n_drawn(n_rows, batch_size), n_rows)  # with more rows, a smaller fraction is drawn
    of_products = math.sqrt(2.0) * MAX_MEMBERSHIP**2
    return (
        Bound(math.inf, apart=2.0 * max_gradient_norm, sample=sample, words=CLIPPED_GRADIENT),
        Bound(math.inf, apart=of_products, triangle=True, sample=sample, words=SHORT_MEMBERSHIPS),
    )


class DPFedCClient(MomentsClient):
    """The answers of a client, which keeps its rows' memberships: ``recall("memberships")`` returns them."""

    @answers()
    def update_memberships(self, W: Floats, *origin: Floats, **local: Unpack[LocalSteps]) -> None:
        """Take the steps on H (lines 9 to 11) and send nothing."""
        self._updated_memberships(W, local, self._rows_from(*origin))

    @answers(
        Sent("by how much the client's centers have moved", has_columns=True),
        "by how much the client's centers have moved along the added coordinate",
        "objective of the client's rows, as digits",
    )
    def factorise(
        self,
        W: Floats,
        *origin: Floats,
        mu_w: float,
        n_center_steps: int,
        batch_size: int,
        step_scale: float,
        exponent: int,
        **local: Unpack[LocalSteps],
    ) -> tuple[GridArray, GridArray, GridArray]:
        """Take the steps on H, then on W (lines 9 to 15); return W_i - W, and F_i of (14) from between the two."""
        rows = self._rows_from(*origin)
        H = self._updated_memberships(W, local, rows)
        F_i = objective(rows, H, W, Penalties(local["rho"], local["mu_h"], mu_w))
        # The paper scales the gradient of a minibatch up to all rows (25); here eta is scaled down instead.
        part = self._n_drawn(batch_size) / len(rows)
        eta = center_step_size(part * H.T @ H, step_scale, part * mu_w)
        public = self.generator(local["random_state"])
        batches = self._minibatches(n_center_steps, batch_size, lambda: public.permutation(len(rows)))
        moved = center_steps(rows, H, W, batches, part * mu_w, eta) - W
        n_columns = self.rows.shape[1]
        along = moved[:, n_columns] if origin else np.zeros(len(W))
        return (
            GridArray.truncated(moved[:, :n_columns], exponent),
            GridArray.truncated(along, exponent),
            GridArray(digits_of(F_i)),
        )

    @answers(
        Sent("sum over the rows of the gradients of the centers", has_columns=True),
        "sum over the rows of the products of memberships",
        moved=lambda known, W, *, batch_size, max_gradient_norm, **local: _gradient_moved(
            known.n_rows, batch_size, max_gradient_norm
        ),
        # A row's first memberships are drawn in the order of the rows, so that they depend on its index.
        relation="replace",
    )
    def clipped_gradient(
        self, W: Floats, *, batch_size: int, max_gradient_norm: float, **local: Unpack[LocalSteps]
    ) -> tuple[GridArray, GridArray]:
        """Take the steps on H; return the clipped gradient (18) of one minibatch, and its H'H as a triangle."""
        rows, H = self._clipped_rows(local["max_norm"]), self._updated_memberships(W, local)
        (batch,) = self._secret_minibatches(1, batch_size)
        drawn, unit = rows_onto_grid(H[batch], np.zeros(len(W)), MAX_MEMBERSHIP)
        gradient = clipped_center_gradient(
            rows.integers[batch], drawn, rows.points(W), rows.exponent, max_gradient_norm
        )
        products, unit_of_products = second_moment(drawn, unit)
        return GridArray(*gradient), GridArray(upper_triangle(products), unit_of_products)

    @answers("sum of the squared norms of the rows, as digits")
    def squared_norm(self) -> GridArray:
        """Return the client's part of ||X||^2."""
        return GridArray(digits_of(float(np.sum(self.rows**2))))

    @answers(Sent("number of rows", counts_rows=True))
    def row_count(self) -> Floats:
        """Return n_i."""
        return np.array(float(len(self.rows)))

    def _clipped_rows(self, max_norm: float) -> RowsInFrame:
        """Return the rows as integers on a grid, clipped to max_norm."""
        return self.enter(*Frame(np.zeros(self.rows.shape[1]), max_norm).arrays)

    def _rows_from(self, *origin: Floats) -> Floats:
        """Return the rows as they are, or about an origin."""
        return lifted(self.rows, *origin) if origin else self.rows

    def _updated_memberships(self, W: Floats, local: LocalSteps, unclipped: Floats | None = None) -> Floats:
        """Return and keep the memberships of the rows after Q_1 steps (17).

        They start from uniform random numbers, also for a client that comes late or has lost its memberships.
        """
        kept = self.recall(MEMBERSHIPS)
        if kept is None:
            (start,) = self.generator(local["random_state"]).spawn(1)  # not the numbers that draw the minibatches
            kept = [start.uniform(size=(len(self.rows), len(W)))]
        (H,) = kept
        penalties, n_steps = Penalties(local["rho"], local["mu_h"]), local["n_membership_steps"]
        if local["divisor"] > 0:
            rows = self._clipped_rows(local["max_norm"])
            points = rows.points(W)
            H = exact_membership_steps(rows.integers, H, points, rows.exponent, penalties, local["divisor"], n_steps)
        else:
            max_norm = local["max_norm"]
            given = self.rows if unclipped is None else unclipped
            clipped = given if math.isinf(max_norm) else self._clipped_rows(max_norm).values
            H = membership_steps(clipped, H, W, penalties, n_steps)
        self.remember(MEMBERSHIPS, [H])
        return H

    def _n_drawn(self, batch_size: int) -> int:
        return _n_drawn(len(self.rows), batch_size)

    def _secret_minibatches(self, n_steps: int, batch_size: int) -> Iterator[NDArray[np.intp]]:
        """Draw rows that the server cannot predict, as it could from random_state; the guarantee needs this."""
        return self._minibatches(
            n_steps, batch_size, lambda: np.argsort(self.noise_source.words(len(self.rows)), kind="stable")
        )

    def _minibatches(
        self, n_steps: int, batch_size: int, shuffled: Callable[[], NDArray[np.intp]]
    ) -> Iterator[NDArray[np.intp]]:
        """Draw the rows for each step on W without replacement; no row comes twice before all have come (Remark 1)."""
        size, waiting = self._n_drawn(batch_size), np.empty(0, dtype=np.intp)
        for _ in range(n_steps):
            if len(waiting) < size:
                waiting = shuffled()
            yield waiting[:size]
            waiting = waiting[size:]


class DPFedCTheorem2Client(DPFedCClient):
    """The answers of a client that sends its centers, as the paper's clients do."""

    @answers(
        Sent("by how much the client's centers have moved", has_columns=True),
        moved=lambda _, W, *, mu_w, n_center_steps, batch_size, eta, max_gradient_norm, **local: (
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
        mu_w: float,
        n_center_steps: int,
        batch_size: int,
        eta: float,
        max_gradient_norm: float,
        **local: Unpack[LocalSteps],
    ) -> GridArray:
        """Take the steps on H and on W (lines 9 to 15), with each gradient clipped; return W_i - W."""
        rows, H = self._clipped_rows(local["max_norm"]).values, self._updated_memberships(W, local)
        part = self._n_drawn(batch_size) / len(rows)
        batches = self._secret_minibatches(n_center_steps, batch_size)
        moved = center_steps(rows, H, W, batches, part * mu_w, eta, max_gradient_norm) - W
        return GridArray.clipped(moved, sensitivity(max_gradient_norm, n_center_steps, eta) / 2.0)


DPFedC.client_type = DPFedCClient
DPFedCTheorem2.client_type = DPFedCTheorem2Client
