"""FedSC with noise (Qiao, Ding and Fan, sections 3.1 and 3.2): on the rows, or on the dictionary and the codes."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import Entry, Gather, Protocol, Reply, Sent, answers, parameter
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Round
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.kernel_sums import linear_features
from flower_fedclust.exact.rows import Frame
from flower_fedclust.exact.spectral_sums import (
    distance_of_features,
    kernel_values,
    matrix_onto_grid,
)
from flower_fedclust.exact.terms import Bound
from flower_fedclust.numerics.checks import LARGEST_NORM, SMALLEST_NORM
from flower_fedclust.numerics.dictionary import code_map
from flower_fedclust.strategies.common.spectral import Dictionary, kernel_within
from flower_fedclust.strategies.fedsc import FedSC, FedSCClient, longest_code
from flower_fedclust_papers.perturbed_rows import (
    NOISY_ROWS,
    ROWS_PART,
    PerturbedRowsClient,
    perturb_rows,
)

Floats = NDArray[np.float64]

#: The parameters that set noise without an epsilon, and the value of ``perturb`` that each of them needs.
RELATIVE_NOISE = {
    "relative_data_noise": "data",
    "relative_dictionary_noise": "factors",
    "relative_code_noise": "factors",
}


class FedSCPerturbed(FedSC):
    """FedSC with noise against the server: on the rows, or on the dictionary and the codes.

    At an epsilon that protects, the clusters are mostly noise; :class:`~flower_fedclust.FedSCSums` sends no codes.

    Parameters
    ----------
    perturb : "data" or "factors", default="data"
        "data" (section 3.1): each client adds noise to its rows once, and everything is computed from the noisy rows.
        "factors" (section 3.2): noise on the dictionary in every round and on the codes.
    epsilon : float, optional
        The total privacy budget, for each record against the server. Without one, a level of relative noise is needed.
    relative_data_noise : float, default=0.0
        With "data": the standard deviation of the noise over the standard deviation of the entries of the client's
        rows, beta in the paper. For experiments: this noise has no epsilon, and neither has the noise of the next two
        parameters.
    relative_dictionary_noise, relative_code_noise : float, default=0.0
        With "factors": the standard deviation of the noise over the standard deviation of the entries of the client's
        dictionary or codes, alpha_z and alpha_c of appendix D.4.
    max_code_norm : float, optional
        With "factors": codes are clipped to this norm, tau_C in the paper. By default they are not clipped, because two
        codes are never farther apart than ``1 / sqrt(2 lambda)``.

    References
    ----------
    Qiao, Ding and Fan, "Federated spectral clustering via secure similarity reconstruction", NeurIPS 2023.
    """

    entries: ClassVar[tuple[Entry, ...]] = (
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

    perturb: Literal["data", "factors"] = parameter("data")
    epsilon: float | None = parameter(None, above=0, at_most=1000)
    delta: float = parameter(1e-6, at_least=1e-12, below=1)
    budget: Mapping[str, float] | None = parameter(None)
    max_norm: float | None = parameter(None, at_least=SMALLEST_NORM, at_most=LARGEST_NORM)
    relative_data_noise: float = parameter(0.0, at_least=0)
    relative_dictionary_noise: float = parameter(0.0, at_least=0)
    relative_code_noise: float = parameter(0.0, at_least=0)
    max_code_norm: float | None = parameter(None, above=0)

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first invalid parameter."""
        super().check_parameters()
        used = [name for name in RELATIVE_NOISE if getattr(self, name) > 0]
        for name in used:
            if RELATIVE_NOISE[name] != self.perturb:
                raise ValueError(
                    f"{name} is {getattr(self, name):g} and perturb is '{self.perturb}'; set "
                    f"perturb='{RELATIVE_NOISE[name]}'."
                )
            if self.epsilon is not None:
                raise ValueError(
                    f"epsilon and {name} are both given; relative noise has no epsilon, so give one."
                )
        if self.relative_dictionary_noise > 0 and self.n_rounds == 0:
            raise ValueError(
                "relative_dictionary_noise is given and n_rounds is 0, so that no client sends a dictionary; give 1 or "
                "more."
            )
        if self.epsilon is None and not used:
            levels = [
                name for name, perturbed in RELATIVE_NOISE.items() if perturbed == self.perturb
            ]
            raise ValueError(
                f"perturb is '{self.perturb}' and there is no noise level; give epsilon and max_norm, or "
                f"{' or '.join(levels)}."
            )
        if self.has_noisy_dictionary and self.regularization == 0 and self.max_code_norm is None:
            raise ValueError(
                "regularization is 0 and max_code_norm is not given; one of them has to bound the codes."
            )

    # The server half.

    def protocol(self) -> Protocol:
        """Run stage I (Algorithm 1), then stage II, with noise."""
        rows = ""
        if self.perturb == "data":  # section 3.1, equation 22
            yield from perturb_rows(self.max_norm_of_rows, relative_noise=self.relative_data_noise)
            rows = NOISY_ROWS
        dictionary, frame, objectives = yield from self.learn_dictionary(
            rows=rows, relative_noise=self.relative_dictionary_noise
        )
        replies = yield from self._codes(dictionary, frame, rows)
        return (yield from self.stage_2(dictionary, replies, objectives))

    def _codes(
        self, dictionary: Dictionary, frame: Frame, rows: str
    ) -> Generator[Round, Any, list[Reply]]:
        """Return the clients' codes.

        The paper's clients send C_p^S, their codes for the dictionary before the last average; these codes are for the
        dictionary after it.
        """
        Z, r = dictionary.atoms, dictionary.bandwidth
        if not self.has_noisy_dictionary:
            question = FedSCPerturbedClient.codes.asked(
                Z, **dictionary.kernel, relative_noise=self.relative_code_noise
            )
            replies: list[Reply] = yield Gather(question, rows=rows)
            return replies
        assert self.max_norm is not None
        Z = dictionary.within(frame)
        to_codes = matrix_onto_grid(code_map(Z, **dictionary.kernel))
        bound = longest_code(to_codes, self.regularization)
        bound = bound if self.max_code_norm is None else min(bound, self.max_code_norm)
        question = FedSCPerturbedClient.clipped_codes.asked(
            Z, to_codes, *frame.arrays, bandwidth=r, max_norm=self.max_norm, bound=bound
        )
        replies = yield Gather(question, parts=["codes"], rows=rows)
        return replies

    # Bounds and budget.

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds: as many as :class:`~flower_fedclust.FedSC` takes, and one for noise on the rows."""
        return (self.perturb == "data") + super().n_protocol_rounds

    @property
    def has_noisy_dictionary(self) -> bool:
        """Whether dictionary and codes take calibrated noise."""
        return self.perturb == "factors" and self.epsilon is not None

    def parts(self) -> Mapping[str, Part]:
        """Return the parts of the budget: one for the rows with "data"; else moments, dictionary and codes."""
        if self.perturb == "data":
            return ROWS_PART
        return self.dictionary_parts(0.1, 0.1, replaced=True) | {
            "codes": Part(FedSCPerturbedClient.clipped_codes, 0.8)
        }

    def what_the_server_can_compute(self) -> list[str]:
        """Say what noise without an epsilon is worth."""
        if self.epsilon is not None:
            return []
        return [
            "The noise is relative to the spread of the data, for experiments: it has no epsilon, and the server "
            "still gets a noisy copy of every row."
        ]


# The client half.


def codes_moved(Z: Floats, to_codes: Floats, frame: Frame, bandwidth: float, bound: float) -> Bound:
    """Return how far apart the codes of two rows x and x' can be.

    The code c = (K(Z, Z) + lambda I)^-1 phi(Z)' phi(x) is linear in phi(x), by a map of norm 1 / (2 sqrt(lambda)) at
    most; and ||phi(x) - phi(x')||^2 = 2 - 2 k(x, x') is at most 2. The paper's bound (Lemma J.1) is far larger.
    """
    apart, clipped = (
        distance_of_features(kernel_within(frame, Z, bandwidth), to_codes, bound),
        2.0 * bound,
    )
    words = (
        "no two codes are farther apart"
        if apart < clipped
        else "the client clips every code to half of this norm"
    )
    return Bound(math.inf, apart=min(apart, clipped), words=words)


class FedSCPerturbedClient(PerturbedRowsClient, FedSCClient):
    """The client half of :class:`FedSCPerturbed`."""

    @answers(
        Sent("code of every row", "codes", per="row"),
        moved=lambda _, Z, to_codes, *frame, bandwidth, max_norm, bound: (
            codes_moved(Z, to_codes, Frame.of_arrays(*frame), bandwidth, bound),
        ),
    )
    def clipped_codes(
        self,
        Z: Floats,
        to_codes: Floats,
        *frame: Floats,
        bandwidth: float,
        max_norm: float,
        bound: float,
    ) -> GridArray:
        """Return C_p of the clipped rows, with each code clipped too, as integers for the noise."""
        rows = self.enter(*frame)
        points = rows.points(Z)
        kernel = kernel_values(rows.clipped(max_norm).integers, points, rows.exponent, bandwidth)
        return GridArray(*linear_features(kernel, to_codes, bound))


FedSCPerturbed.client_type = FedSCPerturbedClient
