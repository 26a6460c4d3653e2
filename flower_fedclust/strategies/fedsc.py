"""FedSC (Qiao, Ding and Fan, NeurIPS 2023): spectral clustering through a dictionary that all clients share.

The paper's samples are columns. Here they are rows: the rows of Z are atoms, and the rows of C are
codes.

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

#: The default number of rounds S, if a round costs no epsilon.
DEFAULT_ROUNDS = 10

#: The unit of the clients' dictionaries is this many bits finer than the unit of rows, because they are averaged.
ATOM_BITS = 13

#: The binary exponent of the unit of objectives, which lie between 0 and half of the number of rows.
OBJECTIVE_EXPONENT = -32

#: Bandwidths in radii of the frame: with a smaller one no two rows are similar, with a larger one all are.
NARROWEST, WIDEST = 1e-100, 1e100

#: The largest number of atoms d that follows from the spectrum of the kernel.
MOST_BY_SPECTRUM = 50

#: The d largest eigenvalues of the kernel add up to at least this part of its trace (equation 43).
PART_OF_TRACE = 0.99

#: The number of made-up rows from which the server learns the length of a row's gradient, and of a step.
N_MADE_UP_ROWS = 512


class DictionaryStrategy(ClippedStrategy):
    """Base of the strategies that learn FedSC's dictionary.

    Parameters
    ----------
    n_atoms : int, optional
        d. By default 10 for each cluster, and up to 50 if so many eigenvalues of the kernel matter,
        but no more than half of the rows.
    bandwidth : float, optional
        r of the kernel, in the units of the rows. By default the mean over clients of the mean
        distance between a client's rows (equation 42); if the sums take noise, the root mean square
        distance by the noisy moments.
    regularization : float, default=0.01
        lambda, the penalty on the codes.
    n_rounds : int, optional
        S, the largest number of averaging steps; by default 10, and 0 if each costs epsilon: the
        first dictionary is drawn with the means and deviations of the columns, and the steps
        improve the kernel more than the clusters.
    n_local_steps : int, default=5
        Q, gradient steps of a client in a round; 1 if each costs epsilon.
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
        """Run stage I; return the dictionary, the frame, and without noise each round's mean objective (7).

        Parameters
        ----------
        rows : str, default=""
            Which kept rows to use; see :class:`~flower_fedclust.engine.rounds.Round`.
        relative_noise : float, default=0
            alpha_z of appendix D.4: the noise that every client adds to its dictionary, in units of
            the deviation of its
            entries.
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
        """Run stage I with one local step in each round (Q = 1), and release its noisy sum over the rows.

        With Q = 1 the mean of the clients' dictionaries (11) is a step along the sum of their
        gradients, which is a sum over rows. Clipping each row's gradient bounds its influence,
        where Theorem 3.9 assumes four bounds that nothing enforces. Neither the bound nor the step
        size depends on a row: the server takes both from rows that it makes up by the noisy
        moments. All lengths, including the gradient's, are in bandwidths.
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
        """Return Z^0 and its kernel."""
        bandwidth = checked_bandwidth(self.bandwidth, moments)
        deviation = in_bandwidths(moments.deviation, bandwidth)
        n_atoms = n_atoms_of(self.n_atoms, self.n_clusters, moments.n_rows, deviation)
        Z = matched_dictionary(moments.mean, moments.deviation, n_atoms, self.rng)
        return Dictionary(Z, bandwidth, self.regularization, moments.n_rows)

    # Budget.

    @property
    def has_noisy_dictionary(self) -> bool:
        """Whether the sums of stage I take calibrated noise."""
        return self.epsilon is not None

    @property
    def n_steps(self) -> int:
        """The number of rounds S."""
        if self.n_rounds is not None:
            return self.n_rounds
        return 0 if self.has_noisy_dictionary else DEFAULT_ROUNDS

    @property
    def n_dictionary_rounds(self) -> int:
        """The number of rounds of stage I: for the moments four, or one with noise; and S."""
        return (1 if self.has_noisy_dictionary else MOMENT_ROUNDS) + self.n_steps

    def dictionary_parts(
        self, moments: float, steps: float, *, replaced: bool = False
    ) -> dict[str, Part]:
        """Return the parts of a budget that pay for stage I."""
        of_steps = Part(DictionaryClient.clipped_gradient, steps, self.n_steps)
        return {**moment_parts(moments, replaced=replaced), "dictionary_steps": of_steps}


class FedSC(DictionaryStrategy, CodesStrategy):
    """FedSC: spectral clustering of all rows by a kernel that the server reconstructs from codes, not from rows.

    The clients learn a dictionary Z of a few atoms together, from sums alone. Then every client
    sends a code for each of its rows, which combines the atoms in the feature space of a Gaussian
    kernel. From the dictionary and the codes the server reconstructs the similarity of any two
    rows, keeps the largest similarities of each row, clusters this graph, and sends each client the
    clusters of its rows.

    Anybody with the dictionary and a row's code can compute the row
    (strategies/reproduce/attacks.py does it): nothing is hidden from the server. :class:`FedSCSums`
    sends no codes. The paper's noise on rows, or on dictionary and codes, is in
    ``fedsc-perturbed-data`` and ``fedsc-perturbed-factors`` of the second distribution.

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
        # The paper sends C_p^S, codes by the dictionary before the last average; these are codes by the last average.
        replies = yield Gather(
            FedSCClient.codes.asked(dictionary.atoms, **dictionary.kernel, relative_noise=0.0)
        )
        return (yield from self.stage_2(dictionary, replies, objectives))

    def stage_2(
        self, dictionary: Dictionary, replies: list[Reply], objectives: list[float]
    ) -> Generator[Round, Any, Outcome]:
        """Cluster the codes: each row of the reconstructed kernel C K(Z, Z) C' keeps its largest entries (25)."""
        C = np.concatenate([reply.arrays[0] for reply in replies])
        F = C @ kernel_root(dictionary.atoms, dictionary.bandwidth)
        # k(x, x) is 1; a row that the atoms fit better would otherwise be everybody's neighbor.
        if self.sparsify:
            F = unit_rows(F)
        model, by_client = yield from self.cluster_factors(dictionary, F, replies)
        return Outcome(model, by_client, history={"objective": objectives})

    # Bounds and budget.

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds: those of stage I, one for the codes, and one for the labels."""
        return self.n_dictionary_rounds + 2

    def parts(self) -> Mapping[str, Part]:
        """Return no parts: nothing takes noise."""
        return {}

    def privacy_notes(self) -> list[str]:
        """Add that the server can compute the rows."""
        return [*super().privacy_notes(), *self.what_the_server_can_compute()]

    def what_the_server_can_compute(self) -> list[str]:
        """Return the notes on what the codes show."""
        return [
            "The server can read the rows: the dictionary and a row's code give the row's distance to every atom, "
            "and with more atoms than columns the row itself, to the last digits. Nothing is hidden from it."
        ]


class FedSCSums(DictionaryStrategy, SpectralSumsStrategy):
    """FedSC from sums alone, for round and overlapping clusters: the graph is dense and separates no rings or moons.

    The server receives only sums over the clients. With the rows' factors F, whose inner products
    are the reconstructed kernel, the degrees of the dense graph are ``F (F' 1)``. Its normalized
    eigenvectors follow from ``F' D^-1 F``, a matrix with a row for each atom. Both are sums over
    rows. Each client embeds its own rows with these eigenvectors, and the final k-means is Lloyd's
    algorithm on sums. So the protocol works with secure aggregation, and every sum can take noise.
    :class:`SPPFGCSums` finds clusters of any form from sums.

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
        """Return the parts of the moments, the dictionary, the two sums of the factors, and k-means."""
        stage_1 = self.dictionary_parts(0.1, 0.1)
        return stage_1 | self.clustering_parts(factor_sum=0.1, normalized_moment=0.5, kmeans=0.2)


def longest_code(to_codes: Floats, regularization: float) -> float:
    """Return a bound on the norm of any row's code.

    ``(K(Z, Z) + lambda I)^-1 phi(Z)'`` has a norm of at most ``1 / (2 sqrt(lambda))``. Without
    lambda, d kernel values have a norm of at most ``sqrt(d)``.
    """
    if regularization > 0:
        return 0.5 / math.sqrt(regularization)
    return math.sqrt(len(to_codes)) * float(np.linalg.norm(to_codes, 2))


def in_bandwidths(points: Floats, bandwidth: float) -> Floats:
    """Return points in units of the bandwidth, clipped so that squares do not overflow."""
    with np.errstate(over="ignore"):
        return np.clip(points / bandwidth, -FARTHEST, FARTHEST)


def n_atoms_of(wanted: int | None, n_clusters: int, n_rows: float, deviation: Floats) -> int:
    """Return d: at most the number of rows; by default ten for each cluster, and at most half of the rows.

    With few clusters there are as many as equation 43 says, but at most 50. The paper's Table 4
    counts atoms in multiples of the number of clusters. ``deviation`` has the columns' deviations
    in bandwidths.
    """
    n_rows = max(int(n_rows), n_clusters)
    if wanted is not None:
        return min(wanted, n_rows)
    n_atoms = ATOMS_PER_CLUSTER * n_clusters
    if n_atoms < MOST_BY_SPECTRUM:
        n_atoms = max(n_atoms, min(n_large_eigenvalues(deviation), MOST_BY_SPECTRUM))
    return max(min(n_atoms, n_rows // 2), n_clusters)


def n_large_eigenvalues(deviation: Floats) -> int:
    """Return how many eigenvalues make up 99% of the kernel's trace (equation 43), for made-up rows.

    Nobody has the pooled kernel of the equation. The rows are drawn from the normal distribution
    with the columns' deviations, in bandwidths, always in the same way.
    """
    rows = deviation * np.random.default_rng(0).standard_normal((N_MADE_UP_ROWS, len(deviation)))
    values = np.linalg.eigvalsh(gaussian_kernel(rows, rows, 1.0))[::-1]
    return int(np.searchsorted(np.cumsum(values), PART_OF_TRACE * N_MADE_UP_ROWS)) + 1


# The client half.


class DictionaryClient(MomentsClient):
    """The answers of a client in stage I."""

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
        """Return Z_p^s (Algorithm 1, lines 8 to 15) and the objective before the steps, both computed in floats.

        Z is the dictionary that the server sent, and ``frame`` the origin and scale in which rows
        are read. The rows are expressed in it as integers over a power of two, and the bandwidth in
        the same unit. The third array is the client's number of rows.
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
        # The noise is relative to the entries in the coordinates of the data.
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
        """Return the sum of the rows' gradients (15), each clipped to ``bound``, with lengths in bandwidths."""
        return dictionary_gradient(
            rows.clipped(max_norm), Z, bandwidth, to_codes, code_bound, bound
        )


class FedSCClient(DictionaryClient, LabelsClient):
    """The client half of :class:`FedSC`."""

    @answers(Sent("code of every row", "codes", per="row"))
    def codes(
        self, Z: Floats, *, bandwidth: float, regularization: float, relative_noise: float
    ) -> Floats:
        """Return C_p (equation 14), with relative noise."""
        return add_relative_noise(
            codes(self.rows, Z, bandwidth, regularization), relative_noise, self.noise_source
        )


class FedSCSumsClient(DictionaryClient, SpectralSumsClient):
    """The client half of :class:`FedSCSums`, which has answers of its two bases alone."""


FedSC.client_type = FedSCClient
FedSCSums.client_type = FedSCSumsClient
