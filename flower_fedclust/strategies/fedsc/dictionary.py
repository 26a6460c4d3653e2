"""Stage I of FedSC (Algorithm 1): a dictionary that all clients share, learned from sums over the clients."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import ClippedStrategy, Sent, Sum, answers, parameter
from flower_fedclust.engine.by_row import by_row
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Round
from flower_fedclust.exact.grid import BITS, GridArray
from flower_fedclust.exact.kernels import dictionary_gradient
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.terms import Term
from flower_fedclust.numerics.dictionary import (
    code_map,
    codes,
    curvature,
    dictionary_steps,
    matched_dictionary,
    objective,
    row_gradients,
)
from flower_fedclust.numerics.kernel import FARTHEST
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.noise import add_relative_noise
from flower_fedclust.strategies.common.moments import (
    MOMENT_ROUNDS,
    Moments,
    MomentsClient,
    checked_bandwidth,
    column_moments,
    moment_parts,
    noisy_column_moments,
)
from flower_fedclust.strategies.common.spectral import (
    ATOMS_PER_CLUSTER,
    FEWEST_ATOMS,
    Dictionary,
    leave_within_range,
    with_room,
)

Floats = NDArray[np.float64]

#: S, where nothing is said and a round costs no epsilon.
DEFAULT_ROUNDS = 10

#: How much finer than rows the dictionaries of clients are, which are averaged.
ATOM_BITS = 13

#: The unit of objectives is 2 to this: they are between 0 and half of the number of rows.
OBJECTIVE_EXPONENT = -32

#: Bandwidths in radii of the frame: with a smaller one no two rows are alike, with a larger one all are.
NARROWEST, WIDEST = 1e-100, 1e100

#: How many made-up rows tell the server how long a row's gradient is, and how long a step may be.
N_MADE_UP_ROWS = 512


class DictionaryStrategy(ClippedStrategy):
    """Base of the strategies that learn FedSC's dictionary.

    Parameters
    ----------
    n_atoms : int, optional
        d. By default 10 a cluster and at least 50, but no more than half of the rows.
    bandwidth : float, optional
        r of the kernel, in the units of the rows. By default the mean over clients of the mean distance between a
        client's rows (equation 42); where the sums take noise, the root mean square distance that the noisy moments
        give.
    regularization : float, default=0.01
        lambda, the penalty on the codes.
    n_rounds : int, optional
        S at most, each one step of averaging; by default 10, and 0 where each would cost epsilon: the first dictionary
        is drawn with the means and deviations of the columns, and the steps improve the kernel more than the clusters.
    n_local_steps : int, default=5
        Q, gradient steps of a client in a round; 1 where each costs epsilon.
    tol : float, default=1e-3
        Stage I stops when no atom has moved by more than this part of the bandwidth.
    fraction_fit : float in (0, 1], default=1.0
        The part of the clients that takes part in a round of stage I; all of them where each costs epsilon.
    """

    n_atoms: int | None = parameter(None, at_least=1)
    bandwidth: float | None = parameter(None, above=0)
    regularization: float = parameter(0.01, at_least=0)
    n_rounds: int | None = parameter(None, at_least=0)
    n_local_steps: int = parameter(5, at_least=1)
    tol: float = parameter(1e-3, at_least=0)
    fraction_fit: float = parameter(1.0, above=0, at_most=1)

    # The server half.

    def learn_dictionary(
        self, *, rows: str = "", relative_noise: float = 0.0
    ) -> Generator[Round, Any, tuple[Dictionary, Frame, list[float]]]:
        """Run stage I, in at most ``n_dictionary_rounds`` rounds.

        Parameters
        ----------
        rows : str, default=""
            Which rows of the clients; see :class:`~flower_fedclust.engine.rounds.Round`.
        relative_noise : float, default=0
            alpha_z of appendix D.4: the noise that every client adds to its dictionary, over the standard deviation of
            its entries. For experiments.

        Returns
        -------
        dictionary : Dictionary
        frame : Frame
            In which rows and atoms have room.
        objectives : list of float
            For each round, the objective (7) of the dictionary that it began with, with the codes that are best for
            it, over the clients that took part, divided by the number of their rows. With noise: empty.
        """
        if self.has_noisy_dictionary:
            return *(yield from self._learn_with_noise()), []
        moments, frame = yield from column_moments(rows=rows)
        first = self._first_dictionary(moments)
        Z, objectives = first.atoms - frame.origin, []  # line 1
        for _ in range(self.n_steps):  # lines 3 to 21; the base draws the clients (lines 2 and 20)
            question = DictionaryClient.dictionary_steps.asked(
                Z, *frame.arrays, **first.kernel, n_steps=self.n_local_steps, relative_noise=relative_noise
            )
            total = yield Sum(question, fraction=self.fraction_fit, rows=rows)
            former, Z = Z, total[0] / total.n_clients  # line 4, equation 11
            objectives.append(float(total[1] / total[2]))
            if np.linalg.norm(Z / first.bandwidth - former / first.bandwidth, axis=1).max() <= self.tol:
                break
        return dataclasses.replace(first, atoms=leave_within_range(frame, Z)), with_room(frame), objectives

    def _learn_with_noise(self) -> Generator[Round, Any, tuple[Dictionary, Frame]]:
        """Run stage I with one local step a round (Q = 1), of which the noisy sum over the rows is released.

        With Q = 1 the mean of the clients' dictionaries (11) is a step along the sum of their gradients. That is a sum
        over rows: each row's part is clipped, which bounds what a row can do, where Theorem 3.9 assumes four bounds
        that nothing enforces. Neither the bound nor the length of the step depends on a row: the server takes both from
        rows that it makes up, with the noisy moments. Lengths are in bandwidths here, the gradient's too.
        """
        assert self.max_norm is not None
        frame = with_room(Frame(np.zeros(self.n_columns), self.max_norm))
        replaced = "row_count" not in self.parts()
        moments = yield from noisy_column_moments(self.max_norm, self.n_columns, replaced=replaced)
        found = self._first_dictionary(moments)
        bandwidth = found.bandwidth
        for _ in range(self.n_steps):
            Z = found.within(frame)
            drawn = matched_dictionary(moments.mean, moments.deviation, N_MADE_UP_ROWS, self.rng)
            made_up = in_bandwidths(clip_rows(drawn, self.max_norm), bandwidth)
            atoms = in_bandwidths(Z, bandwidth)
            C = codes(made_up, atoms, 1.0, self.regularization)
            bound = float(np.median(row_gradients(made_up, atoms, C, 1.0)[0]))
            L = curvature(made_up, atoms, C, 1.0) * (moments.n_rows / N_MADE_UP_ROWS)
            if bound == 0:
                break  # no row would move an atom
            to_codes = code_map(Z, **found.kernel)
            question = DictionaryClient.clipped_gradient.asked(
                Z,
                to_codes,
                frame=frame,
                bandwidth=bandwidth,
                max_norm=self.max_norm,
                code_bound=longest_code(to_codes, self.regularization),
                bound=bound,
            )
            (step,) = yield Sum(question, parts=["dictionary_steps"])
            found = dataclasses.replace(found, atoms=Z - bandwidth * (step / np.maximum(L, L.mean())[:, None]))
        return found, frame

    def _first_dictionary(self, moments: Moments) -> Dictionary:
        """Return Z^0, and the kernel that it is for."""
        bandwidth = checked_bandwidth(self.bandwidth, moments)
        n_atoms = n_atoms_of(self.n_atoms, self.n_clusters, moments.n_rows)
        Z = matched_dictionary(moments.mean, moments.deviation, n_atoms, self.rng)
        return Dictionary(Z, bandwidth, self.regularization, moments.n_rows)

    # Budget.

    @property
    def has_noisy_dictionary(self) -> bool:
        """Whether the sums of stage I take calibrated noise."""
        return self.epsilon is not None

    @property
    def n_steps(self) -> int:
        """S."""
        if self.n_rounds is not None:
            return self.n_rounds
        return 0 if self.has_noisy_dictionary else DEFAULT_ROUNDS

    @property
    def n_dictionary_rounds(self) -> int:
        """The moments (four rounds, or one with noise), and S."""
        return (1 if self.has_noisy_dictionary else MOMENT_ROUNDS) + self.n_steps

    def dictionary_parts(self, moments: float, steps: float, *, replaced: bool = False) -> dict[str, Part]:
        """Return the parts of a budget that pay for stage I, with their fractions."""
        of_steps = Part(DictionaryClient.clipped_gradient, steps, self.n_steps)
        return {**moment_parts(moments, replaced=replaced), "dictionary_steps": of_steps}


def longest_code(to_codes: Floats, regularization: float) -> float:
    """Return a bound on the norm of a code, whatever the row.

    ``(K(Z, Z) + lambda I)^-1 phi(Z)'`` has the norm ``1 / (2 sqrt(lambda))`` at most. Without lambda, d kernel values
    have a norm of ``sqrt(d)`` at most.

    Parameters
    ----------
    to_codes : ndarray of shape (n_atoms, n_atoms)
        What turns kernel values into codes.
    regularization : float
        lambda.
    """
    if regularization > 0:
        return 0.5 / math.sqrt(regularization)
    return math.sqrt(len(to_codes)) * float(np.linalg.norm(to_codes, 2))


def in_bandwidths(points: Floats, bandwidth: float) -> Floats:
    """Return points in units of the bandwidth, drawn in where squares would overflow."""
    with np.errstate(over="ignore"):
        return np.clip(points / bandwidth, -FARTHEST, FARTHEST)


def n_atoms_of(given: int | None, n_clusters: int, n_rows: float) -> int:
    """Return d: what was given, or ten atoms a cluster and 50 at least, but no more than half of the rows.

    The paper's rule (equation 43) needs the eigenvalues of the pooled kernel, which nobody has; its Table 4 counts
    atoms in multiples of the number of clusters. More atoms than rows are of no use: at most as many are taken.

    Parameters
    ----------
    given : int or None
    n_clusters : int
    n_rows : float
        With noise, about.
    """
    n_rows = max(int(n_rows), n_clusters)
    if given is not None:
        return min(given, n_rows)
    return max(min(max(ATOMS_PER_CLUSTER * n_clusters, FEWEST_ATOMS), n_rows // 2), n_clusters)


# The client half.


class DictionaryClient(MomentsClient):
    """The answers of a client that helps to learn a dictionary."""

    @answers(
        Sent("dictionary after the client's own steps", has_columns=True),
        "objective of the client's rows",
        Sent("number of rows", counts_rows=True),
    )
    def dictionary_steps(
        self,
        Z: Floats,
        *frame: Floats,
        bandwidth: float,
        regularization: float,
        n_steps: int,
        relative_noise: float,
    ) -> tuple[GridArray, GridArray, GridArray]:
        """Return Z_p^s (Algorithm 1, lines 8 to 15), and the objective before the steps.

        Both are computed in floats, with lengths in radii of the frame, and truncated.
        """
        rows = self.enter(*frame)
        power = rows.exponent + BITS
        X, start, origin = rows.integers * 2.0**-BITS, np.ldexp(Z, -power), np.ldexp(frame[0], -power)
        mantissa, exponent = math.frexp(bandwidth)
        r = min(max(math.ldexp(mantissa, exponent - power), NARROWEST), WIDEST)
        C = codes(X, start, r, regularization)
        value = objective(X, start, C, r, regularization)
        # The noise is relative to the entries as they are in the coordinates of the data.
        own = dictionary_steps(X, start, C, r, n_steps) + origin
        own = add_relative_noise(own, relative_noise, self.noise_source) - origin
        return (
            GridArray.truncated(np.ldexp(own, power), rows.exponent - ATOM_BITS),
            GridArray.truncated(np.array(value), OBJECTIVE_EXPONENT),
            GridArray(np.array(len(rows))),
        )

    @by_row(dictionary_steps=Sent("sum over the rows of the dictionary's clipped gradient", has_columns=True))
    def clipped_gradient(
        rows: Rows,
        Z: Floats,
        to_codes: Floats,
        *,
        bandwidth: float,
        max_norm: float,
        code_bound: float,
        bound: float,
    ) -> Term:
        """Return the sum of the gradients (15) of single rows, each clipped to ``bound``; lengths are in bandwidths."""
        return dictionary_gradient(rows.clipped(max_norm), Z, bandwidth, to_codes, code_bound, bound)
