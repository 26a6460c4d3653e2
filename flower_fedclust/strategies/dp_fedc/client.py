"""The client half of DP-FedC: memberships that stay with the client, and steps on the centers.

The equations and lines are those of the paper that :mod:`~flower_fedclust.strategies.dp_fedc.dp_fedc` names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import Sent, answers
from flower_fedclust.engine.rounds import Moved
from flower_fedclust.exact.digits import digits_of
from flower_fedclust.exact.factorisation import (
    Penalties,
    center_step_size,
    center_steps,
    clipped_center_gradient,
    exact_membership_steps,
    membership_steps,
    objective,
)
from flower_fedclust.exact.grid import GridArray, rows_onto_grid
from flower_fedclust.exact.rows import Frame
from flower_fedclust.exact.sums import second_moment, upper_triangle
from flower_fedclust.strategies.common.frame import FrameClient, RowsInFrame

Floats = NDArray[np.float64]

#: With noise: the largest norm of one row's memberships in what is sent. A row at a center that is as long has 1.
MAX_MEMBERSHIP = 1.0

#: What enforces the bounds, for the report.
CLIPPED_GRADIENT = "the client clips every row's gradient to half of this norm"
SHORT_MEMBERSHIPS = "a row's memberships have a norm of 1 at most"

#: Where a client keeps H.
MEMBERSHIPS = "memberships"


class LocalSteps(TypedDict):
    """What every client is told of a round; the names are those of :class:`DPFedC`'s parameters."""

    rho: float
    mu_h: float
    n_membership_steps: int
    random_state: int
    max_norm: float
    #: gamma, for clients that work on a grid; 0 for those that work in floats.
    divisor: float


def _n_drawn(n_rows: int, batch_size: int) -> int:
    """Return how many rows a minibatch has: all of them, unless the server says how many."""
    return min(batch_size, n_rows) if batch_size > 0 else n_rows


def _gradient_moved(n_rows: int, batch_size: int, max_gradient_norm: float) -> tuple[Moved, Moved]:
    """Return how far one row moves the gradient and the products of a client with so many rows at least.

    Where a row's memberships begin depends on its place, so that one more at the top changes those of all others.
    """
    sample = (_n_drawn(n_rows, batch_size), n_rows)  # of more rows no larger part is drawn
    of_products = math.sqrt(2.0) * MAX_MEMBERSHIP**2
    return (
        Moved(math.inf, apart=2.0 * max_gradient_norm, sample=sample, words=CLIPPED_GRADIENT),
        Moved(math.inf, apart=of_products, triangle=True, sample=sample, words=SHORT_MEMBERSHIPS),
    )


class DPFedCClient(FrameClient):
    """The answers of a client that keeps its rows' memberships: ``recall("memberships")`` gives them."""

    @answers()
    def update_memberships(self, W: Floats, **local: Unpack[LocalSteps]) -> None:
        """Take the steps on H (lines 9 to 11), and send nothing."""
        self._updated_memberships(W, local)

    @answers(
        Sent("by how much the client's centers have moved", has_columns=True),
        "objective of the client's rows, as digits",
    )
    def factorise(
        self,
        W: Floats,
        *,
        mu_w: float,
        n_center_steps: int,
        batch_size: int,
        step_scale: float,
        exponent: int,
        **local: Unpack[LocalSteps],
    ) -> tuple[GridArray, GridArray]:
        """Take the steps on H and on W (lines 9 to 15); return W_i less W, and F_i of (14) between the two.

        The average of the differences added to W is that of the centers (16).
        """
        rows, H = self.rows, self._updated_memberships(W, local)
        F_i = objective(rows, H, W, Penalties(local["rho"], local["mu_h"], mu_w))
        # The gradient of a minibatch, scaled up, is on average that of all rows (25); here eta is scaled down instead.
        part = self._n_drawn(batch_size) / len(rows)
        eta = center_step_size(part * H.T @ H, step_scale, part * mu_w)
        public = self.generator(local["random_state"])
        batches = self._minibatches(n_center_steps, batch_size, lambda: public.permutation(len(rows)))
        moved = center_steps(rows, H, W, batches, part * mu_w, eta) - W
        return GridArray.truncated(moved, exponent), GridArray(digits_of(F_i))

    @answers(
        Sent("sum over the rows of the gradients of the centers", has_columns=True),
        "sum over the rows of the products of memberships",
        moved=lambda known, W, *, batch_size, max_gradient_norm, **local: _gradient_moved(
            known.n_rows, batch_size, max_gradient_norm
        ),
        # What one row adds depends on its index: its memberships begin with numbers that are drawn in order.
        relation="replace",
    )
    def clipped_gradient(
        self, W: Floats, *, batch_size: int, max_gradient_norm: float, **local: Unpack[LocalSteps]
    ) -> tuple[GridArray, GridArray]:
        """Take the steps on H; return the clipped gradient of (18) of one minibatch, and its H'H as a triangle."""
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
        """Return the rows as integers on a grid, clipped to a norm."""
        return self.enter(*Frame(np.zeros(self.rows.shape[1]), max_norm).arrays)

    def _updated_memberships(self, W: Floats, local: LocalSteps) -> Floats:
        """Return the memberships of the rows, which are clipped if need be, after Q_1 steps (17), and keep them.

        They begin uniformly random; so do those of a client that comes late, or has lost what it kept.
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
            clipped = self.rows if math.isinf(max_norm) else self._clipped_rows(max_norm).values
            H = membership_steps(clipped, H, W, penalties, n_steps)
        self.remember(MEMBERSHIPS, [H])
        return H

    def _n_drawn(self, batch_size: int) -> int:
        return _n_drawn(len(self.rows), batch_size)

    def _secret_minibatches(self, n_steps: int, batch_size: int) -> Iterator[NDArray[np.intp]]:
        """Draw rows that the server cannot foresee, as it could from random_state: part of the guarantee."""
        return self._minibatches(
            n_steps, batch_size, lambda: np.argsort(self.noise_source.words(len(self.rows)), kind="stable")
        )

    def _minibatches(
        self, n_steps: int, batch_size: int, shuffled: Callable[[], NDArray[np.intp]]
    ) -> Iterator[NDArray[np.intp]]:
        """Draw the rows of each step on W, without replacement, and no row twice before all were drawn (Remark 1)."""
        size, waiting = self._n_drawn(batch_size), np.empty(0, dtype=np.intp)
        for _ in range(n_steps):
            if len(waiting) < size:
                waiting = shuffled()
            yield waiting[:size]
            waiting = waiting[size:]
