"""Rows with noise, drawn once and kept by the client: all that is computed from them later costs no more privacy."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Mapping

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.grid import GridArray, rows_onto_grid
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.accounting import Share
from flower_fedclust.privacy.noise import add_relative_noise
from flower_fedclust.privacy.releases import NoisePlace, Release
from flower_fedclust.protocol import ClippedStrategy, ProtocolClient, Sent, Sum, answers
from flower_fedclust.protocol.rounds import Array, Moved, Round

Floats = NDArray[np.float64]

#: What a round names to work on these rows.
NOISY_ROWS = "noisy rows"


#: The share of a budget that pays for the noise on the rows: all of it.
ROWS_SHARE = {"rows": Share("gaussian", 1.0, relation="replace")}


def rows_release(strategy: ClippedStrategy) -> Release | None:
    """Return the release of rows on which a whole budget is spent, or None where none was asked for.

    Replacing a row that is clipped to max_norm (tau_X of FedSC, Proposition 3.7) moves the array by twice that.

    Parameters
    ----------
    strategy : ClippedStrategy
        Its shares are ``ROWS_SHARE``.
    """
    if strategy.epsilon is None or strategy.max_norm is None:
        return None
    return strategy.release("rows", 2.0 * strategy.max_norm, "the client clips every row to half of this norm")


def perturb_rows(*, release: Release | None = None, relative_noise: float = 0.0) -> Generator[Round, list[Array], None]:
    """Have every client add noise to its rows, once, and keep them as ``NOISY_ROWS`` (FedSC, equation 22).

    Parameters
    ----------
    release : Release, optional
        From :func:`rows_release`: differential privacy for each record, against the server too.
    relative_noise : float, default=0
        Without a release: the standard deviation of the noise over that of all the entries of the client's rows. For
        experiments: the scale depends on the rows, which are not clipped, so that nothing is promised.
    """
    if release is not None and relative_noise > 0:
        raise ValueError(
            "release and relative_noise are both given; relative noise would move rows beyond their bound."
        )
    max_norm = math.inf if release is None else release.sensitivity / 2.0
    question = PerturbedRowsClient.perturb_rows.asked(relative_noise=relative_noise, max_norm=max_norm)
    yield Sum(question, releases=[release])


class PerturbedRowsStrategy(ClippedStrategy):
    """Base of strategies that, with an epsilon, do everything with rows to which each client has added noise."""

    #: The noise protects from the server.
    noise: NoisePlace = dataclasses.field(default="local", init=False)

    def shares(self) -> Mapping[str, Share]:
        """Return one, for the rows."""
        return ROWS_SHARE

    def rows_to_work_on(self) -> Generator[Round, list[Array], str]:
        """Have every client add noise to its rows, if there is an epsilon; return what rounds call these rows."""
        release = rows_release(self)
        if release is None:
            return ""
        yield from perturb_rows(release=release)
        return NOISY_ROWS

    def within_norm(self, centers: Floats) -> Floats:
        """Return centers, clipped as the rows were."""
        return centers if self.epsilon is None or self.max_norm is None else clip_rows(centers, self.max_norm)

    def _seed(self) -> int:
        """Return a seed for what the clients draw."""
        return int(self.rng.integers(2**31))


class PerturbedRowsClient(ProtocolClient):
    """The answer of a client that works on rows with noise."""

    @answers(
        Sent("the rows", "rows", per="row", kept_as=NOISY_ROWS),
        moved=lambda _, relative_noise, max_norm: (Moved(max_norm),),
    )
    def perturb_rows(self, *, relative_noise: float, max_norm: float) -> GridArray | Floats:
        """Return the rows to be kept, clipped; calibrated noise is added by the protocol."""
        if max_norm < math.inf:
            return GridArray(*rows_onto_grid(self.rows, np.zeros(self.rows.shape[1]), max_norm))
        return add_relative_noise(self.rows, relative_noise, self.noise_source)
