"""FedSC (Qiao, Ding and Fan, NeurIPS 2023): spectral clustering through a dictionary that all clients share.

The paper's samples are columns. Here they are rows: the rows of Z, the dictionary, are points called
atoms, and the rows of C are codes. Stage I learns the dictionary, stage II clusters. "Algorithm 1"
and the numbers of lines, equations, theorems and appendices refer to the paper.

docs/shape.md shows how a ``yield`` here becomes a round of Flower.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import (
    ClippedStrategy,
    Entry,
    Gather,
    Outcome,
    Protocol,
    Reply,
    Sent,
    Sum,
    answers,
    parameter,
)
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
    kernel_root,
    matched_dictionary,
    objective,
    row_gradients,
)
from flower_fedclust.numerics.kernel import FARTHEST, gaussian_kernel
from flower_fedclust.numerics.spectral import unit_rows
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.noise import add_relative_noise
from flower_fedclust.privacy.releases import NoisePlace
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
    CodesStrategy,
    Dictionary,
    LabelsClient,
    leave_within_range,
    with_room,
)
from flower_fedclust.strategies.common.spectral_sums import SpectralSumsClient, SpectralSumsStrategy

Floats = NDArray[np.float64]

#: The default number S of rounds that improve the dictionary, if a round costs no epsilon.
DEFAULT_ROUNDS = 10

#: The unit of a client's dictionary is this many bits finer than the unit of rows, because dictionaries are averaged.
ATOM_BITS = 13

#: The binary exponent of the unit in which clients send objectives, which are between 0 and n_rows / 2.
OBJECTIVE_EXPONENT = -32

#: The limits of the bandwidth, in radii of the frame: below the first no two rows are similar, above the second all.
NARROWEST, WIDEST = 1e-100, 1e100

#: The most atoms d that are taken because of the eigenvalues of the kernel; see :func:`n_atoms_of`.
MOST_BY_SPECTRUM = 50

#: The d largest eigenvalues of the kernel add up to at least this fraction of its trace (equation 43).
PART_OF_TRACE = 0.99

#: The number of random rows that the server draws to choose the bound of a row's gradient, and the step size.
N_MADE_UP_ROWS = 512


class DictionaryStrategy(ClippedStrategy):
    """Base of the strategies that learn FedSC's dictionary.

    Parameters
    ----------
    n_atoms : int, optional
        The number of atoms in the dictionary, d in the paper. By default 10 for each cluster, or up
        to 50 if more eigenvalues of the kernel matter, but no more than half of the rows.
    bandwidth : float, optional
        The bandwidth r of the Gaussian kernel, in the units of the rows. By default the mean over
        clients of the mean distance between a client's rows (equation 42); if the sums take noise,
        the root mean square distance between rows, from the noisy moments of the columns.
    regularization : float, default=0.01
        The penalty on the codes, lambda in the paper.
    n_rounds : int, optional
        The largest number of rounds that improve the dictionary, S in the paper; by default 10. It
        is 0 if each round costs epsilon: then the dictionary is drawn with the means and deviations
        of the columns, because rounds improve the kernel more than the clusters.
    n_local_steps : int, default=5
        The gradient steps of a client in a round, Q in the paper; 1 if each costs epsilon.
    tol : float, default=1e-3
        Stage I stops when no atom has moved by more than this fraction of the bandwidth.
    fraction_fit : float in (0, 1], default=1.0
        The fraction of the clients that takes part in a round of stage I; all of them if each costs
        epsilon.
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
        """Run stage I; return the dictionary, the frame, and (without noise) the mean objective (7) in each round.

        Parameters
        ----------
        rows : str, default=""
            The name of rows that clients keep, to use instead of their own; see
            :class:`~flower_fedclust.engine.rounds.Round`.
        relative_noise : float, default=0
            alpha_z of appendix D.4: the standard deviation of the noise that every client adds to
            its dictionary, over the standard deviation of the dictionary's entries.
        """
        if self.has_noisy_dictionary:
            return *(yield from self._learn_with_noise()), []
        moments, frame = yield from column_moments(rows=rows)
        first = self._first_dictionary(moments)
        Z, objectives = first.atoms - frame.origin, []  # line 1
        # Lines 3 to 21; the engine draws the clients (lines 2 and 20).
        for _ in range(self.n_steps):
            question = DictionaryClient.dictionary_steps.asked(
                Z,
                *frame.arrays,
                **first.kernel,
                n_steps=self.n_local_steps,
                relative_noise=relative_noise,
            )
            total = yield Sum(question, fraction=self.fraction_fit, rows=rows)
            former, Z = Z, total[0] / total.n_clients  # line 4, equation 11
            objectives.append(float(total[1] / total[2]))
            if (
                np.linalg.norm(Z / first.bandwidth - former / first.bandwidth, axis=1).max()
                <= self.tol
            ):
                break
        return (
            dataclasses.replace(first, atoms=leave_within_range(frame, Z)),
            with_room(frame),
            objectives,
        )

    def _learn_with_noise(self) -> Generator[Round, Any, tuple[Dictionary, Frame]]:
        """Run stage I with one local step in each round (Q = 1), and release the sum of gradients with noise.

        With Q = 1 the mean of the clients' dictionaries (11) is a step along the sum of their
        gradients, which is a sum over rows. Each row's gradient is clipped, which bounds what the
        row can change; Theorem 3.9 assumes four bounds that nothing enforces. Neither the bound nor
        the step size depends on a single row: the server computes both from random rows that it
        draws with the noisy moments. All lengths, including the gradient's, are in bandwidths.
        """
        assert self.max_norm is not None
        frame = with_room(Frame(np.zeros(self.n_columns), self.max_norm))
        replaced = "row_count" not in self.parts()
        moments = yield from noisy_column_moments(self.max_norm, self.n_columns, replaced=replaced)
        dictionary = self._first_dictionary(moments)
        bandwidth = dictionary.bandwidth
        for _ in range(self.n_steps):
            Z = dictionary.within(frame)
            drawn = matched_dictionary(moments.mean, moments.deviation, N_MADE_UP_ROWS, self.rng)
            made_up = in_bandwidths(clip_rows(drawn, self.max_norm), bandwidth)
            atoms = in_bandwidths(Z, bandwidth)
            C = codes(made_up, atoms, 1.0, self.regularization)
            bound = float(np.median(row_gradients(made_up, atoms, C, 1.0)[0]))
            L = curvature(made_up, atoms, C, 1.0) * (moments.n_rows / N_MADE_UP_ROWS)
            if bound == 0:
                break  # then no row would move an atom
            to_codes = code_map(Z, **dictionary.kernel)
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
            dictionary = dataclasses.replace(
                dictionary, atoms=Z - bandwidth * (step / np.maximum(L, L.mean())[:, None])
            )
        return dictionary, frame

    def _first_dictionary(self, moments: Moments) -> Dictionary:
        """Return the first dictionary Z^0, with the parameters of its kernel."""
        bandwidth = checked_bandwidth(self.bandwidth, moments)
        deviation = in_bandwidths(moments.deviation, bandwidth)
        n_atoms = n_atoms_of(self.n_atoms, self.n_clusters, moments.n_rows, deviation)
        Z = matched_dictionary(moments.mean, moments.deviation, n_atoms, self.rng)
        return Dictionary(Z, bandwidth, self.regularization, moments.n_rows)

    # Budget.

    @property
    def has_noisy_dictionary(self) -> bool:
        """Whether the sums of stage I take noise that is calibrated to epsilon."""
        return self.epsilon is not None

    @property
    def n_steps(self) -> int:
        """The largest number S of rounds that improve the dictionary: ``n_rounds``, or a default (0 with noise)."""
        if self.n_rounds is not None:
            return self.n_rounds
        return 0 if self.has_noisy_dictionary else DEFAULT_ROUNDS

    @property
    def n_dictionary_rounds(self) -> int:
        """The number of rounds of stage I.

        First come the rounds for the moments of the columns: four, or a single one with noise. Then come ``n_steps``.
        """
        return (1 if self.has_noisy_dictionary else MOMENT_ROUNDS) + self.n_steps

    def dictionary_parts(
        self, moments: float, steps: float, *, replaced: bool = False
    ) -> dict[str, Part]:
        """Return the parts of a budget that pay for stage I."""
        of_steps = Part(DictionaryClient.clipped_gradient, steps, self.n_steps)
        return {**moment_parts(moments, replaced=replaced), "dictionary_steps": of_steps}


class FedSC(DictionaryStrategy, CodesStrategy):
    """FedSC: spectral clustering of all rows by a kernel that the server reconstructs from codes, not from rows.

    The clients together learn a dictionary Z of a few points (atoms), from sums alone. Then every
    client sends a code for each of its rows. The code writes the row as a combination of the atoms,
    in the feature space of a Gaussian kernel. From the dictionary and the codes the server
    reconstructs the similarity of any two rows, keeps the largest similarities of each row,
    clusters this graph, and sends each client the clusters of its rows.

    Anybody with the dictionary and a row's code can compute the row
    (strategies/reproduce/attacks.py does it): nothing is hidden from the server. :class:`FedSCSums`
    sends no codes. In the second distribution, ``fedsc-perturbed-data`` adds the paper's noise to
    rows, and ``fedsc-perturbed-factors`` adds it to dictionary and codes.

    References
    ----------
    Qiao, Ding and Fan, "Federated spectral clustering via secure similarity reconstruction",
    NeurIPS 2023.
    """

    entries: ClassVar[tuple[Entry, ...]] = (
        Entry(
            "fedsc",
            "spectral clustering by a shared dictionary; the server can read the rows",
            "Qiao, Ding and Fan 2023, Algorithm 1",
            finds="any form",
        ),
    )

    #: This form has no noise.
    epsilon: float | None = dataclasses.field(default=None, init=False)
    delta: float = dataclasses.field(default=1e-6, init=False)
    budget: Mapping[str, float] | None = dataclasses.field(default=None, init=False)
    max_norm: float | None = dataclasses.field(default=None, init=False)
    #: The noise protects against the server.
    noise: NoisePlace = dataclasses.field(default="local", init=False)

    # The server half.

    def protocol(self) -> Protocol:
        """Run stage I (Algorithm 1), then stage II."""
        dictionary, _, objectives = yield from self.learn_dictionary()
        # The paper's clients send C_p^S, their codes for the dictionary before the last average. Here the codes are for
        # the dictionary after it.
        replies = yield Gather(
            FedSCClient.codes.asked(dictionary.atoms, **dictionary.kernel, relative_noise=0.0)
        )
        return (yield from self.stage_2(dictionary, replies, objectives))

    def stage_2(
        self, dictionary: Dictionary, replies: list[Reply], objectives: list[float]
    ) -> Generator[Round, Any, Outcome]:
        """Cluster the rows by their codes C: each row of the kernel C K(Z, Z) C' keeps its largest entries (25)."""
        C = np.concatenate([reply.arrays[0] for reply in replies])
        F = C @ kernel_root(dictionary.atoms, dictionary.bandwidth)
        # k(x, x) is 1 for every row, but reconstructed it is larger for rows that the atoms fit better. Without
        # scaling, such a row would be a neighbor of every row.
        if self.sparsify:
            F = unit_rows(F)
        model, by_client = yield from self.cluster_factors(dictionary, F, replies)
        return Outcome(model, by_client, history={"objective": objectives})

    # Bounds and budget.

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds: for stage I, one for the codes, and one for the labels."""
        return self.n_dictionary_rounds + 2

    def parts(self) -> Mapping[str, Part]:
        """Return no parts: nothing takes noise."""
        return {}

    def privacy_notes(self) -> list[str]:
        """Add that the server can compute the rows."""
        return [*super().privacy_notes(), *self.what_the_server_can_compute()]

    def what_the_server_can_compute(self) -> list[str]:
        """Return the notes of the privacy report that say what the codes reveal."""
        return [
            "The server can read the rows: the dictionary and a row's code give the row's distance to every atom, "
            "and with more atoms than columns the row itself, to the last digits. Nothing is hidden from it."
        ]


class FedSCSums(DictionaryStrategy, SpectralSumsStrategy):
    """FedSC from sums alone. It finds round clusters, also overlapping ones, but does not separate rings or moons.

    The server receives only sums over the clients. Each row is written as a vector of factors,
    whose inner product with another row's factors is the reconstructed similarity of the two rows.
    The graph of similarities is dense: nobody sees them, so it cannot be cut down to the largest
    ones. With F for the factors of all rows, its degrees are ``D = F (F' 1)``, and its normalized
    eigenvectors follow from ``F' D^-1 F``, a matrix with a row for each atom. Both ``F' 1`` and
    this matrix are sums over rows. Each client embeds its own rows with the eigenvectors, and the
    final k-means is Lloyd's algorithm on sums. So the protocol works with secure aggregation, and
    every sum can take noise. :class:`SPPFGCSums` finds clusters of any form from sums.

    References
    ----------
    Qiao, Ding and Fan, "Federated spectral clustering via secure similarity reconstruction",
    NeurIPS 2023, whose stage II this replaces.
    """

    entries = (
        Entry(
            "fedsc-sums",
            "spectral clustering of round and overlapping clusters from sums alone",
            "Qiao, Ding and Fan 2023, with a stage II of sums",
        ),
    )

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first invalid parameter."""
        super().check_parameters()
        if self.n_atoms is not None and self.n_atoms < self.n_clusters:
            raise ValueError(
                f"n_atoms is {self.n_atoms} and n_clusters is {self.n_clusters}; give as many at least."
            )
        if self.epsilon is not None and self.regularization == 0:
            raise ValueError(
                "regularization is 0; with epsilon it must be positive, as it bounds the factors of a row."
            )

    # The server half.

    def protocol(self) -> Protocol:
        """Run stage I of FedSC, then stage II on sums."""
        dictionary, frame, objectives = yield from self.learn_dictionary()
        model = yield from self.cluster_by_sums(dictionary, frame)
        return Outcome(model, history={"objective": objectives})

    # Budget.

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds: for stage I and for the clustering."""
        return self.n_dictionary_rounds + self.n_clustering_rounds

    def parts(self) -> Mapping[str, Part]:
        """Return the parts of the budget for moments, dictionary, two sums of factors, and k-means."""
        stage_1 = self.dictionary_parts(0.1, 0.1)
        return stage_1 | self.clustering_parts(factor_sum=0.1, normalized_moment=0.5, kmeans=0.2)


def longest_code(to_codes: Floats, regularization: float) -> float:
    """Return a bound on the norm of any row's code.

    The code of x is ``(K(Z, Z) + lambda I)^-1 phi(Z)' phi(x)``, where phi(x) has norm 1 and the
    matrix before it has a norm of at most ``1 / (2 sqrt(lambda))``. If lambda is 0, the bound
    follows from the kernel values of x with the d atoms, which have a norm of at most ``sqrt(d)``.
    """
    if regularization > 0:
        return 0.5 / math.sqrt(regularization)
    return math.sqrt(len(to_codes)) * float(np.linalg.norm(to_codes, 2))


def in_bandwidths(points: Floats, bandwidth: float) -> Floats:
    """Return points in units of the bandwidth, clipped so that squares do not overflow."""
    with np.errstate(over="ignore"):
        return np.clip(points / bandwidth, -FARTHEST, FARTHEST)


def n_atoms_of(wanted: int | None, n_clusters: int, n_rows: float, deviation: Floats) -> int:
    """Return the number of atoms d: ``wanted``, but at most the number of rows; or a default.

    By default there are ten for each cluster, as the paper's Table 4 counts them, or as many as
    equation 43 says, if that is more, but at most 50; and at most half as many as rows.
    ``deviation`` has the columns' standard deviations, in bandwidths.
    """
    n_rows = max(int(n_rows), n_clusters)
    if wanted is not None:
        return min(wanted, n_rows)
    n_atoms = ATOMS_PER_CLUSTER * n_clusters
    if n_atoms < MOST_BY_SPECTRUM:
        n_atoms = max(n_atoms, min(n_large_eigenvalues(deviation), MOST_BY_SPECTRUM))
    return max(min(n_atoms, n_rows // 2), n_clusters)


def n_large_eigenvalues(deviation: Floats) -> int:
    """Return how many eigenvalues make up 99% of the kernel's trace (equation 43), for random rows.

    Nobody has the kernel of all rows, which the equation needs. Instead, rows are drawn from a
    normal distribution with the columns' deviations, in bandwidths, always with the same seed.
    """
    rows = deviation * np.random.default_rng(0).standard_normal((N_MADE_UP_ROWS, len(deviation)))
    values = np.linalg.eigvalsh(gaussian_kernel(rows, rows, 1.0))[::-1]
    return int(np.searchsorted(np.cumsum(values), PART_OF_TRACE * N_MADE_UP_ROWS)) + 1


# The client half.


class DictionaryClient(MomentsClient):
    """The client half of stage I, which learns the dictionary."""

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
        """Return the client's dictionary Z_p^s after its steps (Algorithm 1, lines 8 to 15), and the objective before.

        Both are computed in floats. Z is the dictionary that the server sent. ``frame`` has the
        origin and the scale of the coordinates in which the rows, Z and the bandwidth are measured.
        The third array is the client's number of rows.
        """
        rows = self.enter(*frame)
        power = rows.exponent + BITS
        X, start, origin = (
            rows.integers * 2.0**-BITS,
            np.ldexp(Z, -power),
            np.ldexp(frame[0], -power),
        )
        mantissa, exponent = math.frexp(bandwidth)
        r = min(max(math.ldexp(mantissa, exponent - power), NARROWEST), WIDEST)
        C = codes(X, start, r, regularization)
        value = objective(X, start, C, r, regularization)
        # The noise is in proportion to the deviation of the entries in the coordinates of the data.
        dictionary = dictionary_steps(X, start, C, r, n_steps) + origin
        dictionary = add_relative_noise(dictionary, relative_noise, self.noise_source) - origin
        return (
            GridArray.truncated(np.ldexp(dictionary, power), rows.exponent - ATOM_BITS),
            GridArray.truncated(np.array(value), OBJECTIVE_EXPONENT),
            GridArray(np.array(len(rows))),
        )

    @by_row(
        dictionary_steps=Sent(
            "sum over the rows of the dictionary's clipped gradient", has_columns=True
        )
    )
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
        """Return the sum of the rows' gradients (15), each clipped to ``bound``; all lengths are in bandwidths."""
        return dictionary_gradient(
            rows.clipped(max_norm), Z, bandwidth, to_codes, code_bound, bound
        )


class FedSCClient(DictionaryClient, LabelsClient):
    """The client half of :class:`FedSC`."""

    @answers(Sent("code of every row", "codes", per="row"))
    def codes(
        self, Z: Floats, *, bandwidth: float, regularization: float, relative_noise: float
    ) -> Floats:
        """Return C_p, the codes of the client's rows (equation 14), with relative noise."""
        return add_relative_noise(
            codes(self.rows, Z, bandwidth, regularization), relative_noise, self.noise_source
        )


class FedSCSumsClient(DictionaryClient, SpectralSumsClient):
    """The client half of :class:`FedSCSums`; it adds no answers to those of its two base classes."""


FedSC.client_type = FedSCClient
FedSCSums.client_type = FedSCSumsClient
