"""FedSC: federated spectral clustering through a dictionary that all clients share.

D. Qiao, C. Ding and J. Fan, "Federated spectral clustering via secure similarity reconstruction", NeurIPS 2023. The
paper writes samples as columns. Here they are rows: the rows of Z are atoms, and those of C are the codes of rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import Entry, Gather, Outcome, Protocol, Reply, Sent, answers, parameter
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Moved, Round
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.kernel_sums import linear_features
from flower_fedclust.exact.rows import Frame
from flower_fedclust.exact.spectral_sums import distance_of_features, kernel_values, matrix_onto_grid
from flower_fedclust.numerics.dictionary import code_map, codes
from flower_fedclust.privacy.noise import add_relative_noise
from flower_fedclust.privacy.releases import NoisePlace
from flower_fedclust.strategies.common.perturbed_rows import (
    NOISY_ROWS,
    ROWS_PART,
    PerturbedRowsClient,
    perturb_rows,
)
from flower_fedclust.strategies.common.spectral import CodesStrategy, Dictionary, LabelsClient, kernel_within
from flower_fedclust.strategies.fedsc.dictionary import (
    DictionaryClient,
    DictionaryStrategy,
    longest_code,
)

Floats = NDArray[np.float64]

#: Noise without epsilon, and what has to be perturbed for it.
RELATIVE_NOISE = {
    "relative_data_noise": "data",
    "relative_dictionary_noise": "factors",
    "relative_code_noise": "factors",
}


class FedSC(DictionaryStrategy, CodesStrategy):
    """FedSC: spectral clustering of all rows by a kernel that the server reconstructs from codes, not from rows.

    The clients learn a dictionary Z of a few atoms together, by sums alone. Then every client sends the code of each of
    its rows: how the row is made of the atoms in the feature space of a Gaussian kernel. From dictionary and codes the
    server reconstructs how similar any two rows are, keeps the largest similarities of each row, clusters the graph,
    and sends each client the clusters of its rows.

    Whoever has the dictionary and a row's code can compute the row: without ``perturb`` nothing is hidden from the
    server (:func:`flower_fedclust.privacy.attacks.rows_from_codes` does it). :class:`FedSCSums` sends no codes.

    Parameters
    ----------
    perturb : "nothing", "data" or "factors", default="nothing"
        "data" (section 3.1): each client adds noise to its rows, once, and all else is computed from these. "factors"
        (section 3.2): noise on the dictionary in every round and on the codes.
    relative_data_noise : float, default=0.0
        beta, with "data": the noise over the standard deviation of the client's entries. For experiments: it has no
        epsilon. The same holds for the next two.
    relative_dictionary_noise, relative_code_noise : float, default=0.0
        alpha_z and alpha_c of appendix D.4, with "factors": the noise over the standard deviation of the client's
        dictionary or codes.
    epsilon : float, optional
        The total privacy budget, with "data" or "factors": differential privacy of each record against the server.
    max_code_norm : float, optional
        tau_C, with "factors": codes are clipped to it. By default they are not: two codes are never farther apart than
        ``1 / sqrt(2 lambda)``.

    References
    ----------
    Qiao, Ding and Fan, "Federated spectral clustering via secure similarity reconstruction", NeurIPS 2023.
    """

    entries = (
        Entry(
            "fedsc",
            "spectral clustering by a shared dictionary; the server can read the rows",
            "Qiao, Ding and Fan 2023, Algorithm 1",
            fixed={"perturb": "nothing", "epsilon": None, "max_norm": None},
            finds="any form",
        ),
        Entry(
            "fedsc-perturbed-data",
            "FedSC on rows to which each client has added noise",
            "Qiao, Ding and Fan 2023, section 3.1",
            fixed={"perturb": "data"},
            example={"epsilon": 1.0, "max_norm": 1.0},
        ),
        Entry(
            "fedsc-perturbed-factors",
            "FedSC with noise on the dictionary and the codes",
            "Qiao, Ding and Fan 2023, section 3.2",
            fixed={"perturb": "factors"},
            example={"epsilon": 1.0, "max_norm": 1.0},
        ),
    )

    perturb: Literal["nothing", "data", "factors"] = parameter("nothing")
    relative_data_noise: float = parameter(0.0, at_least=0)
    relative_dictionary_noise: float = parameter(0.0, at_least=0)
    relative_code_noise: float = parameter(0.0, at_least=0)
    max_code_norm: float | None = parameter(None, above=0)

    #: The server is who the noise protects from.
    noise: NoisePlace = dataclasses.field(default="local", init=False)

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first parameter which cannot be right."""
        if self.epsilon is not None and self.perturb == "nothing":
            raise ValueError(
                "epsilon is given and perturb is 'nothing'; set perturb='data' or 'factors', or take FedSCSums."
            )
        super().check_parameters()
        given = [name for name in RELATIVE_NOISE if getattr(self, name) > 0]
        for name in given:
            if RELATIVE_NOISE[name] != self.perturb:
                raise ValueError(
                    f"{name} is {getattr(self, name):g} and perturb is '{self.perturb}'; set "
                    f"perturb='{RELATIVE_NOISE[name]}'."
                )
            if self.epsilon is not None:
                raise ValueError(f"epsilon and {name} are both given; relative noise has no epsilon, so give one.")
        if self.relative_dictionary_noise > 0 and self.n_rounds == 0:
            raise ValueError(
                "relative_dictionary_noise is given and n_rounds is 0, so that no client sends a dictionary; give 1 or "
                "more."
            )
        if self.perturb != "nothing" and self.epsilon is None and not given:
            levels = [name for name, perturbed in RELATIVE_NOISE.items() if perturbed == self.perturb]
            raise ValueError(
                f"perturb is '{self.perturb}' and there is no noise level; give epsilon and max_norm, or "
                f"{' or '.join(levels)}."
            )
        if self.has_noisy_dictionary and self.regularization == 0 and self.max_code_norm is None:
            raise ValueError("regularization is 0 and max_code_norm is not given; one of them has to bound the codes.")

    # The server half.

    def protocol(self) -> Protocol:
        """Run stage I (Algorithm 1), then stage II."""
        rows = ""
        if self.perturb == "data":  # section 3.1, equation 22
            yield from perturb_rows(self.max_norm_of_rows, relative_noise=self.relative_data_noise)
            rows = NOISY_ROWS
        dictionary, frame, objectives = yield from self.learn_dictionary(
            rows=rows, relative_noise=self.relative_dictionary_noise
        )
        replies = yield from self._codes(dictionary, frame, rows)
        # Stage II: the reconstructed kernel C K(Z, Z) C', of which each row keeps its largest entries (equation 25).
        C = np.concatenate([reply.arrays[0] for reply in replies])
        model, by_client = yield from self.cluster_codes(dictionary, C, replies)
        return Outcome(model, by_client, history={"objective": objectives})

    def _codes(self, dictionary: Dictionary, frame: Frame, rows: str) -> Generator[Round, Any, list[Reply]]:
        """Return the clients' codes.

        The paper sends C_p^S, which belongs to the dictionary before the last average; these belong to the last one.
        """
        Z, r = dictionary.atoms, dictionary.bandwidth
        if not self.has_noisy_dictionary:
            question = FedSCClient.codes.asked(Z, **dictionary.kernel, relative_noise=self.relative_code_noise)
            replies: list[Reply] = yield Gather(question, rows=rows)
            return replies
        assert self.max_norm is not None
        Z = dictionary.within(frame)
        to_codes = matrix_onto_grid(code_map(Z, **dictionary.kernel))
        bound = longest_code(to_codes, self.regularization)
        bound = bound if self.max_code_norm is None else min(bound, self.max_code_norm)
        question = FedSCClient.clipped_codes.asked(
            Z, to_codes, *frame.arrays, bandwidth=r, max_norm=self.max_norm, bound=bound
        )
        replies = yield Gather(question, parts=["codes"], rows=rows)
        return replies

    # Bounds and budget.

    @property
    def n_protocol_rounds(self) -> int:
        """The noise on the rows, stage I, the codes, and the labels."""
        return (self.perturb == "data") + self.n_dictionary_rounds + 2

    @property
    def has_noisy_dictionary(self) -> bool:
        """Whether dictionary and codes take calibrated noise."""
        return self.perturb == "factors" and self.epsilon is not None

    def parts(self) -> Mapping[str, Part]:
        """Return that of the rows with "data"; with "factors" those of the moments, the dictionary and the codes."""
        if self.perturb == "nothing":
            return {}
        if self.perturb == "data":
            return ROWS_PART
        return self.dictionary_parts(0.1, 0.1, replaced=True) | {"codes": Part(FedSCClient.clipped_codes, 0.8)}

    def privacy_notes(self) -> list[str]:
        """Add what the server can compute."""
        notes = super().privacy_notes()
        if self.perturb == "nothing":
            notes.append(
                "The server can read the rows: the dictionary and a row's code give the row's distance to every atom, "
                "and with more atoms than columns the row itself, to the last digits. Nothing is hidden from it."
            )
        elif self.epsilon is None:
            notes.append(
                "The noise is relative to the spread of the data, for experiments: it has no epsilon, and the server "
                "still gets a noisy copy of every row."
            )
        return notes


# The client half.


def codes_moved(Z: Floats, to_codes: Floats, frame: Frame, bandwidth: float, bound: float) -> Moved:
    """Return how far apart the codes of two rows can be.

    c = (K(Z, Z) + lambda I)^-1 phi(Z)' phi(x) is linear in phi(x), by a map of norm 1 / (2 sqrt(lambda)) at most; and
    ||phi(x) - phi(x')||^2 = 2 - 2 k(x, x') is at most 2. The paper's bound (Lemma J.1) is far larger.
    """
    apart, clipped = distance_of_features(kernel_within(frame, Z, bandwidth), to_codes, bound), 2.0 * bound
    words = "no two codes are farther apart" if apart < clipped else "the client clips every code to half of this norm"
    return Moved(math.inf, apart=min(apart, clipped), words=words)


class FedSCClient(DictionaryClient, PerturbedRowsClient, LabelsClient):
    """What a client answers besides: the codes of its rows."""

    @answers(Sent("code of every row", "codes", per="row"))
    def codes(self, Z: Floats, *, bandwidth: float, regularization: float, relative_noise: float) -> Floats:
        """Return C_p (equation 14), with relative noise where that was asked for."""
        return add_relative_noise(codes(self.rows, Z, bandwidth, regularization), relative_noise, self.noise_source)

    @answers(
        Sent("code of every row", "codes", per="row"),
        moved=lambda _, Z, to_codes, *frame, bandwidth, max_norm, bound: (
            codes_moved(Z, to_codes, Frame.of_arrays(*frame), bandwidth, bound),
        ),
    )
    def clipped_codes(
        self, Z: Floats, to_codes: Floats, *frame: Floats, bandwidth: float, max_norm: float, bound: float
    ) -> GridArray:
        """Return C_p of the clipped rows, each code clipped too: integers, as they take noise."""
        rows = self.enter(*frame)
        points = rows.points(Z)
        kernel = kernel_values(rows.clipped(max_norm).integers, points, rows.exponent, bandwidth)
        return GridArray(*linear_features(kernel, to_codes, bound))


FedSC.client_type = FedSCClient
