"""DP-FedC (Li, Wang, Chi and Quek, IEEE Internet of Things Journal, 2024): a factorization that clients learn together.

The rows X, (n, m), are approximated by H W. H, (n, k), has the membership of each row in each
cluster, and the rows of W, (k, m), are the centers. The paper's samples are columns; here they are
rows. Line numbers refer to the paper's Algorithm 1, and numbers in brackets to its equations.

docs/shape.md shows how a ``yield`` here becomes a round of Flower.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.engine import (
    ClippedStrategy,
    Entry,
    Outcome,
    Protocol,
    Question,
    Sent,
    Sum,
    Total,
    answers,
    parameter,
)
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Round
from flower_fedclust.exact.digits import digits_of, value_of_digits
from flower_fedclust.exact.exponents import LEAST_EXPONENT, largest_exponent, table_exponent
from flower_fedclust.exact.factorization import (
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
from flower_fedclust.numerics.checks import checked_rows
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.strategies.common.client_drawing import (
    draw_equally_often,
    most_rounds_per_client,
)
from flower_fedclust.strategies.common.first_centers import GIVEN_CENTERS_NOTE, check_given_centers
from flower_fedclust.strategies.common.frame import FRAME_ROUNDS, RowsInFrame, frame_of_rows
from flower_fedclust.strategies.common.moments import MomentsClient

Floats = NDArray[np.float64]

#: The penalty rho over the mean squared norm of the centers: in the first round, and from the middle of the run on.
GROWING_RHO = (0.1, 0.4)

#: The ratio of the penalties mu_h and rho, as in the paper.
MU_H_OVER_RHO = 1e-10 / 1e-7

#: Clusters are rays from the mean of the rows, instead of from 0, if the mean squared distance of a row from the mean
#: is below this fraction of the mean's squared norm.
NEAR_MEAN = 0.5

#: For rays from the mean, in units of the rows' spread: the further coordinate that all rows get, and the spread of
#: the first centers.
LIFT, FIRST_SPREAD = 0.5, 0.3

#: The paper's batch size b.
BATCH_SIZE = 50

#: Without noise, the unit of the clients' replies is this many bits finer than the largest entry of the centers. A
#: client moves no entry by more than 2^17 times that largest entry.
MOVE_BITS = 36

#: With noise, the memberships of a row are clipped to this norm before they enter a sum. A row that equals a center has
#: memberships of norm 1.
MAX_MEMBERSHIP = 1.0

#: How the two bounds are enforced, in words for the privacy report.
CLIPPED_GRADIENT = "the client clips every row's gradient to half of this norm"

SHORT_MEMBERSHIPS = "a row's memberships have a norm of 1 at most"

#: The name under which a client remembers H.
MEMBERSHIPS = "memberships"


class LocalSteps(TypedDict):
    """The settings of a round that every client gets: the penalties, and how to take steps on H."""

    rho: float
    mu_h: float
    mu_w: float
    n_membership_steps: int
    random_state: int
    max_norm: float
    #: gamma, by which the gradient of H is divided in a step, for clients that compute on a grid; 0 for other clients,
    #: which compute gamma themselves.
    divisor: float


def growing_rho(W: Floats, t: int, n_rounds: int) -> float:
    """Return rho in round t: a tenth of the centers' mean squared norm at first, and four tenths from the middle on."""
    first, last = GROWING_RHO
    progress = min(1.0, 2.0 * (t - 1) / n_rounds)
    part: float = first * (last / first) ** progress
    return part * float(np.mean(np.sum(W**2, axis=1)))


def _of_length(W: Floats, length: float) -> Floats:
    """Return the centers, each scaled to the same norm."""
    scaled: Floats = length * W / np.linalg.norm(W, axis=1, keepdims=True)
    return scaled


@dataclass(frozen=True)
class MovedOrigin:
    """Where the rays of the clusters begin, if not at 0."""

    #: The mean of all rows, and as one more entry the value of the coordinate that :func:`lifted` appends to every row.
    origin: Floats
    deviation: Floats  #: The standard deviations of the columns.


class DPFedC(ClippedStrategy):
    """DP-FedC: soft clusters, whose centers are learned by the clients' gradient steps and averaged.

    Every client keeps the memberships of its rows in the clusters (H) and never sends them. In each
    round all clients take gradient steps on H. The clients that are drawn for the round also take
    steps on the centers (W), and the server averages their centers (Algorithm 1). A row is in the
    cluster in which its membership is largest.

    With an epsilon, the drawn clients do not send centers, but two sums over their rows, both with
    noise: of the clipped gradients, and of the outer products of memberships. The server takes one
    step in a round. This step is the average of single steps of the clients with a common step
    size. One row moves the sums far less than it moves its client's centers.

    The factorization suits rows of amounts, which are 0 if a thing is absent, and never negative.
    Negative entries are allowed, because nothing constrains W. But a cluster is a ray from the
    origin: two groups of rows on one ray are one cluster. If the origin is far from all rows, they
    lie on nearly the same ray and end in one cluster. In this case rays begin at the mean if there
    is no epsilon (see Notes); with an epsilon, subtract public values from the columns first.

    Parameters
    ----------
    n_rounds : int, default=100
        The number of rounds, R in the paper.
    fraction_fit : float, default=0.3
        The fraction of the clients that is drawn in a round, K / N in the paper. All clients are
        drawn equally often.
    n_membership_steps : int, default=10
        The gradient steps on H in a round, Q_1 in the paper.
    n_center_steps : int, default=10
        Q^ in the paper: in round t a client takes ``Q_2 = floor(Q^ / t) + 1`` steps on W, each on
        50 of its rows, or on all if it has fewer. With an epsilon the server takes one step, on all
        rows.
    rho : "growing" or float, default="growing"
        The penalty that makes each row belong to one cluster. "growing" starts at a tenth of the
        centers' mean squared norm and ends at four tenths.
    mu_h : float, optional
        The penalty on H; by default a thousandth of rho, as in the paper.
    step_scale : float, default=2.0
        A step on W is the gradient over eta, and eta is this many times the largest eigenvalue of
        H'H; 5 in the paper. From 1 on, a step on all rows does not raise the objective.
    init : array-like of shape (n_clusters, n_columns), optional
        The first W. By default its entries are absolute values of normal random numbers, and
        centers are scaled to ``max_norm`` if rows are clipped to it. If rays begin at the mean (see
        Notes), the entries are normal random numbers with three tenths of the columns' standard
        deviations.
    epsilon : float, optional
        The privacy budget of the whole run, for replacing one row of one client. None means no
        noise, no clipping and no guarantee.
    max_gradient_norm : float, optional
        The norm G to which each row's gradient is clipped with epsilon; half of ``max_norm`` by
        default.

    Notes
    -----
    Rays begin at the mean of all rows if the directions of the rows from 0 hardly differ: if the
    mean squared distance of a row from the mean is less than half of the mean's squared norm. All
    rows then get one more coordinate, half of their spread, so that each ray stands for one point
    among the rows. Four unprotected rounds of sums find out whether this is so. With an epsilon
    rays always begin at 0.

    With epsilon, a row with memberships h contributes its clipped gradient, of Frobenius norm at
    most G, and ``h h'``, of norm at most 1 because h is clipped to norm 1. The memberships depend
    on this row and on W alone, so that replacing the row changes nothing else. The sum of gradients
    then moves by at most 2 G. If the new row has memberships g, the sum of products moves by at
    most sqrt(2), because ``<h h', g g'> >= 0``.

    A row affects only the messages of its own client, so that epsilon counts the rounds in which a
    client is drawn. To keep these few, clients are drawn in turns: the numbers of rounds of two
    clients differ by at most one. The paper draws anew in every round.

    The algorithm as printed is ``dp-fedc-printed`` of the second distribution, and
    ``dp-fedc-theorem-2`` has the paper's noise.
    """

    entries = (
        Entry(
            "dp-fedc",
            "soft clusters by a factorization whose centers are averaged; private with epsilon",
            "Li, Wang, Chi and Quek 2024, Algorithm 1",
            finds="soft",
        ),
    )

    n_rounds: int = parameter(100, at_least=1)
    fraction_fit: float = parameter(0.3, above=0, at_most=1)
    n_membership_steps: int = parameter(10, at_least=1)
    n_center_steps: int = parameter(10, at_least=0)
    rho: float | Literal["growing"] = parameter("growing", at_least=0)
    mu_h: float | None = parameter(None, at_least=0)
    step_scale: float = parameter(2.0, above=0)
    init: ArrayLike | None = parameter(None)
    max_gradient_norm: float | None = parameter(None, above=0)

    #: A function to watch a run. It is called after each round with the number of the round, from 1, and the centers.
    on_centers: Callable[[int, Floats], None] | None = dataclasses.field(default=None, init=False)

    #: Without noise: the binary exponent of the rows' largest entry; needed only if the first centers are all zeros.
    _rows_exponent: int = dataclasses.field(default=LEAST_EXPONENT, init=False)

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first invalid parameter."""
        super().check_parameters()
        if self.init is not None:
            check_given_centers(self.init, self.n_clusters)

    # The server half.

    def protocol(self) -> Protocol:
        """Run Algorithm 1."""
        moved = (yield from self._find_origin()) if self._asks_for_origin else None
        W = self._first_centers(moved)  # line 1
        origin = () if moved is None else (moved.origin,)
        self._rows_exponent = LEAST_EXPONENT
        if self._asks_for_exponent:
            (indicator,) = yield Sum(DPFedCClient.entry_exponent.asked())
            self._rows_exponent = largest_exponent(indicator)
        clients = self._may_be_drawn
        K = self.n_to_draw(self.fraction_fit, len(clients))
        most = None if self.epsilon is None else self.frozen_plan.shares["gradients"].count
        drawn = draw_equally_often(clients, K, self.n_rounds, self.rng, most=most)
        objectives: list[float] = []
        for t, S in enumerate(drawn, start=1):
            local = self._local_steps(W, self._penalties(t, W))
            W, mean_objective = yield from self._round(t, W, S, local, origin)
            objectives += [] if mean_objective is None else [mean_objective]
            if self.on_centers is not None:
                self.on_centers(t, W)
        last = self._penalties(self.n_rounds, W)
        history = {"objective": objectives} if objectives else {}
        return Outcome(FactorModel(W, *origin, rho=last.rho, mu_h=last.mu_h), history=history)

    def _round(
        self, t: int, W: Floats, S: Sequence[str], local: LocalSteps, origin: Sequence[Floats]
    ) -> Generator[Round, Total | None, tuple[Floats, float | None]]:
        """Return W^t and, without epsilon, the mean objective of the drawn clients."""
        if self._is_private:
            return (yield from self._noisy_step(W, S, local)), None
        asked = DPFedCClient.factorize.asked(
            W,
            *origin,
            n_center_steps=self._n_center_steps(t),
            batch_size=self._batch_size,
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

    def _noisy_step(
        self, W: Floats, S: Sequence[str], local: LocalSteps
    ) -> Generator[Round, Total | None, Floats]:
        """Take the average of the drawn clients' steps, with one eta for all.

        Centers are clipped to the norm of the rows. The objective does not fix the scale of the
        centers: longer centers with smaller memberships fit as well. Noise would lengthen the
        centers until it hides the memberships.
        """
        assert self.max_norm is not None
        asked = self._asked_for_gradient(W, local)
        total = yield self._of_drawn(asked, W, S, local, ("gradients", "products"))
        if total is None:
            return W
        gradient, products = total
        mu_w = total.n_clients * local["mu_w"]
        eta = center_step_size(triangle_to_symmetric(products), self.step_scale, mu_w)
        # If noise leaves no positive eigenvalue, there is no step size.
        if eta > 0:
            W = W - (gradient + mu_w * W) / eta
        return clip_rows(W, self.max_norm)

    def _asked_for_gradient(self, W: Floats, local: LocalSteps) -> Question:
        """Return the question for the clipped gradients."""
        return DPFedCClient.clipped_gradient.asked(
            W, max_gradient_norm=self._max_gradient_norm, **local
        )

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
        others = DPFedCClient.update_memberships.asked(W, *origin, **local)
        return Sum(asked, clients=S, others=others, parts=parts, needed=False)

    # First centers, penalties and steps.

    def _find_origin(self) -> Generator[Round, Total, MovedOrigin | None]:
        """Return the mean and the spread of all rows if, seen from 0, they lie in nearly the same direction."""
        frame, _ = yield from frame_of_rows()
        sums, squares, n_rows = yield Sum(DPFedCClient.clipped_column_sums.asked(frame=frame))
        offset = sums / n_rows
        # If the squares overflow, the comparison is false, and the origin stays at 0.
        with np.errstate(over="ignore", invalid="ignore"):
            mean, variance = frame.origin + offset, np.maximum(squares / n_rows - offset**2, 0.0)
            is_near = 0 < variance.sum() < NEAR_MEAN * float(mean @ mean) < math.inf
        if not is_near:
            return None
        lift = LIFT * math.sqrt(float(variance.sum()))
        return MovedOrigin(np.append(mean, lift), np.sqrt(variance))

    def _first_centers(self, moved: MovedOrigin | None) -> Floats:
        """Return W^0, the first centers: the user's, or random ones at the scale of the rows."""
        if self.init is not None:
            centers = checked_rows(self.init, owner="init")
            if moved is not None:
                return lifted(centers, moved.origin)
            return (
                clip_rows(centers, self.max_norm)
                if self._on_grid and self.max_norm is not None
                else centers
            )
        drawn = self.rng.standard_normal((self.n_clusters, self.n_columns))
        if moved is not None:
            W = np.column_stack(
                [FIRST_SPREAD * moved.deviation * drawn, np.full(len(drawn), moved.origin[-1])]
            )
            return _of_length(W, float(np.linalg.norm(moved.deviation)))
        W = np.abs(drawn)
        return W if not self._is_private or self.max_norm is None else _of_length(W, self.max_norm)

    @property
    def _may_be_drawn(self) -> Sequence[str]:
        """The clients among which each round draws."""
        return self.client_names

    def _penalties(self, t: int, W: Floats) -> Penalties:
        """Return the penalties of a round."""
        rho = self._rho(t, W)
        return Penalties(rho, MU_H_OVER_RHO * rho if self.mu_h is None else self.mu_h)

    def _rho(self, t: int, W: Floats) -> float:
        """Return rho of a round, the penalty on memberships in several clusters, which grows by default."""
        return growing_rho(W, t, self.n_rounds) if isinstance(self.rho, str) else float(self.rho)

    def _local_steps(self, W: Floats, penalties: Penalties) -> LocalSteps:
        """Return the settings of the clients' steps, as they are sent with the round."""
        return LocalSteps(
            rho=penalties.rho,
            mu_h=penalties.mu_h,
            mu_w=penalties.mu_w,
            n_membership_steps=self.n_membership_steps,
            random_state=int(self.rng.integers(2**31)),
            max_norm=self.max_norm if self._is_private and self.max_norm is not None else math.inf,
            divisor=membership_step_divisor(W, penalties) if self._on_grid else 0.0,
        )

    def _n_center_steps(self, t: int) -> int:
        """Return Q_2, the number of steps on W in a round (line 12)."""
        return self.n_center_steps // t + 1

    @property
    def _batch_size(self) -> int:
        """Return b, the number of rows on which a client takes one step on W."""
        return BATCH_SIZE

    # Bounds and budget.

    @property
    def _is_private(self) -> bool:
        """Whether the run has an epsilon."""
        return self.epsilon is not None

    @property
    def _on_grid(self) -> bool:
        """Whether a row's contribution must be the same, bit for bit, whatever the client's other rows are."""
        return self._is_private

    @property
    def _asks_for_exponent(self) -> bool:
        """Whether clients are asked for the exponent of their largest entry: if the first centers are all zeros."""
        return not self._is_private and self.init is not None and not np.any(self.init)

    @property
    def _asks_for_origin(self) -> bool:
        """Whether a round asks if the rows lie far from 0."""
        return not self._is_private

    @property
    def _max_gradient_norm(self) -> float:
        """G, the norm to which each row's gradient is clipped."""
        assert self.max_norm is not None
        return self.max_norm / 2 if self.max_gradient_norm is None else self.max_gradient_norm

    def parts(self) -> Mapping[str, Part]:
        """Return the parts of the budget: 0.9 for the gradients, and 0.1 for the products of memberships.

        Until a run knows its clients, it assumes that one of them is drawn in every round.
        """
        count = most_rounds_per_client(self, self.fraction_fit, self.n_rounds)
        answer = DPFedCClient.clipped_gradient
        return {
            "gradients": Part(answer, 0.9, count),
            "products": Part(answer, 0.1, count),
        }

    def privacy_notes(self) -> list[str]:
        """Add that given centers are assumed to be public."""
        notes = [GIVEN_CENTERS_NOTE] if self._is_private and self.init is not None else []
        return [*super().privacy_notes(), *notes]

    @property
    def expected_columns(self) -> int | None:
        """The width of the first centers, if they were given."""
        return None if self.init is None else int(np.asarray(self.init).shape[1])

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds: ``n_rounds``, and further rounds for the origin or for first centers of zeros."""
        return self.n_rounds + (FRAME_ROUNDS + 1) * self._asks_for_origin + self._asks_for_exponent


# The client half.


def n_drawn(n_rows: int, batch_size: int) -> int:
    """Return the number of rows in a minibatch; without a batch size, all of them."""
    return min(batch_size, n_rows) if batch_size > 0 else n_rows


def moved_by_a_row(max_gradient_norm: float) -> tuple[Bound, Bound]:
    """Return how far replacing one row moves a client's sum of gradients and its sum of products.

    Adding a row is not considered, because a row's first memberships depend on its place among the
    rows: an added row would change the memberships of all others.
    """
    of_products = math.sqrt(2.0) * MAX_MEMBERSHIP**2
    return (
        Bound(math.inf, apart=2.0 * max_gradient_norm, words=CLIPPED_GRADIENT),
        Bound(math.inf, apart=of_products, triangle=True, words=SHORT_MEMBERSHIPS),
    )


def clipped_sums(
    rows: RowsInFrame,
    H: Floats,
    W: Floats,
    max_gradient_norm: float,
    batch: slice | NDArray[np.intp] = slice(None),
) -> tuple[GridArray, GridArray]:
    """Return two sums over some rows: their clipped gradients, and the products of their memberships."""
    drawn, unit = rows_onto_grid(H[batch], np.zeros(len(W)), MAX_MEMBERSHIP)
    gradient = clipped_center_gradient(
        rows.integers[batch], drawn, rows.points(W), rows.exponent, max_gradient_norm
    )
    products, unit_of_products = second_moment(drawn, unit)
    return GridArray(*gradient), GridArray(upper_triangle(products), unit_of_products)


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
    def factorize(
        self,
        W: Floats,
        *origin: Floats,
        n_center_steps: int,
        batch_size: int,
        step_scale: float,
        exponent: int,
        **local: Unpack[LocalSteps],
    ) -> tuple[GridArray, GridArray, GridArray]:
        """Take the steps on H, then on W (lines 9 to 15); return W_i - W, and the objective F_i (14) before those on W.

        H holds the memberships of the client's rows in the clusters, and each row of W is a center.
        With an origin, rows and centers have one more column. The change of this column is the
        second array, which is all zeros without an origin. All changes are rounded to multiples of
        ``2^exponent``, which secure sums add exactly.
        """
        rows = self._rows_from(*origin)
        H = self._updated_memberships(W, local, rows)
        mu_w = local["mu_w"]
        F_i = objective(rows, H, W, Penalties(local["rho"], local["mu_h"], mu_w))
        # The paper multiplies the gradient of a minibatch, as if it had all rows (25); here eta is divided instead.
        part = n_drawn(len(rows), batch_size) / len(rows)
        eta = center_step_size(part * H.T @ H, step_scale, part * mu_w)
        public = self.generator(local["random_state"])
        batches = self.minibatches(
            n_center_steps, batch_size, lambda: public.permutation(len(rows))
        )
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
        moved=lambda _, W, *, max_gradient_norm, **local: moved_by_a_row(max_gradient_norm),
        # A row's first memberships are drawn in the order of the rows, so that they depend on its index.
        relation="replace",
    )
    def clipped_gradient(
        self, W: Floats, *, max_gradient_norm: float, **local: Unpack[LocalSteps]
    ) -> tuple[GridArray, GridArray]:
        """Take the steps on H; return the sum of the rows' clipped gradients (18), and H'H as a triangle."""
        rows, H = self._clipped_rows(local["max_norm"]), self._updated_memberships(W, local)
        return clipped_sums(rows, H, W, max_gradient_norm)

    def _clipped_rows(self, max_norm: float) -> RowsInFrame:
        """Return the rows as integers on a grid, clipped to max_norm."""
        return self.enter(*Frame(np.zeros(self.rows.shape[1]), max_norm).arrays)

    def _rows_from(self, *origin: Floats) -> Floats:
        """Return the rows as they are, or measured from an origin and with the further coordinate."""
        return lifted(self.rows, *origin) if origin else self.rows

    def _updated_memberships(
        self, W: Floats, local: LocalSteps, unclipped: Floats | None = None
    ) -> Floats:
        """Take Q_1 steps (17) on the memberships of the rows; keep and return them.

        Memberships start from uniform random numbers; a client that joins late, or has lost its
        memberships, starts in the same way.
        """
        kept = self.recall(MEMBERSHIPS)
        if kept is None:
            # other random numbers than those for the minibatches
            (start,) = self.generator(local["random_state"]).spawn(1)
            kept = [start.uniform(size=(len(self.rows), len(W)))]
        (H,) = kept
        penalties, n_steps = Penalties(local["rho"], local["mu_h"]), local["n_membership_steps"]
        if local["divisor"] > 0:
            rows = self._clipped_rows(local["max_norm"])
            points = rows.points(W)
            H = exact_membership_steps(
                rows.integers, H, points, rows.exponent, penalties, local["divisor"], n_steps
            )
        else:
            max_norm = local["max_norm"]
            unclipped_rows = self.rows if unclipped is None else unclipped
            clipped = (
                unclipped_rows if math.isinf(max_norm) else self._clipped_rows(max_norm).values
            )
            H = membership_steps(clipped, H, W, penalties, n_steps)
        self.remember(MEMBERSHIPS, [H])
        return H

    def minibatches(
        self, n_steps: int, batch_size: int, shuffled: Callable[[], NDArray[np.intp]]
    ) -> Iterator[NDArray[np.intp]]:
        """Draw the rows for each step on W without replacement; no row comes twice before all have come (Remark 1)."""
        size, waiting = n_drawn(len(self.rows), batch_size), np.empty(0, dtype=np.intp)
        for _ in range(n_steps):
            if len(waiting) < size:
                waiting = shuffled()
            yield waiting[:size]
            waiting = waiting[size:]


DPFedC.client_type = DPFedCClient
