"""Rows with noise, drawn once and kept by the client: whatever is computed from them later costs no more privacy."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Mapping

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import ClippedStrategy, ProtocolClient, Sent, Sum, answers
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Array, Round
from flower_fedclust.exact.grid import GridArray, rows_onto_grid
from flower_fedclust.exact.terms import CLIPPED, Bound
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.noise import add_relative_noise
from flower_fedclust.privacy.releases import NoisePlace

Floats = NDArray[np.float64]

#: The name by which rounds refer to these rows.
NOISY_ROWS = "noisy rows"


def perturb_rows(
    max_norm: float | None, *, relative_noise: float = 0.0
) -> Generator[Round, list[Array], None]:
    """Have every client add noise to its rows, once, and keep them as ``NOISY_ROWS`` (FedSC, equation 22).

    With an epsilon, rows are clipped to max_norm (tau_X of FedSC, Proposition 3.7), and each record is differentially
    private, also against the server. ``relative_noise`` is for experiments without an epsilon: the standard deviation
    of the noise over the standard deviation of the client's entries. The rows are then not clipped and the noise
    depends on them, so there is no guarantee.
    """
    if max_norm is not None and relative_noise > 0:
        raise ValueError(
            "max_norm and relative_noise are both given; relative noise would move rows beyond their bound."
        )
    question = PerturbedRowsClient.perturb_rows.asked(
        relative_noise=relative_noise, max_norm=max_norm or math.inf
    )
    yield Sum(question, parts=["rows"])


class PerturbedRowsStrategy(ClippedStrategy):
    """Base of strategies that, with an epsilon, use only rows to which each client has added noise."""

    #: The noise protects against the server.
    noise: NoisePlace = dataclasses.field(default="local", init=False)

    def parts(self) -> Mapping[str, Part]:
        """Return one part, for the rows."""
        return ROWS_PART

    def rows_to_work_on(self) -> Generator[Round, list[Array], str]:
        """Have every client add noise to its rows, if there is an epsilon; return their name for later rounds."""
        if self.max_norm_of_rows is None:
            return ""
        yield from perturb_rows(self.max_norm_of_rows)
        return NOISY_ROWS

    def within_norm(self, centers: Floats) -> Floats:
        """Return centers, clipped like the rows."""
        return (
            centers
            if self.epsilon is None or self.max_norm is None
            else clip_rows(centers, self.max_norm)
        )

    def _seed(self) -> int:
        """Return a seed for the clients' draws."""
        return int(self.rng.integers(2**31))


class PerturbedRowsClient(ProtocolClient):
    """The answer of a client that keeps rows with noise."""

    @answers(
        Sent("the rows", "rows", per="row", kept_as=NOISY_ROWS),
        moved=lambda _, relative_noise, max_norm: (Bound(max_norm, words=CLIPPED),),
    )
    def perturb_rows(self, *, relative_noise: float, max_norm: float) -> GridArray | Floats:
        """Return the rows to keep, clipped; the engine adds calibrated noise."""
        if max_norm < math.inf:
            return GridArray(*rows_onto_grid(self.rows, np.zeros(self.rows.shape[1]), max_norm))
        return add_relative_noise(self.rows, relative_noise, self.noise_source)


#: The part of a budget that pays for the noise on the rows: all of it.
ROWS_PART = {"rows": Part(PerturbedRowsClient.perturb_rows, 1.0)}
