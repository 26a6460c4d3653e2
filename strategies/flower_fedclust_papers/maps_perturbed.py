"""Fed-tSNE, Fed-UMAP and Fed-SpeClust with the noise of their paper (Qiao, Ma and Fan, section 5 and appendix A).

Clients send a code for each row: its distances to the landmarks, or its kernel values with them. The paper's Fed-tSNE+
adds noise to the landmarks or to their gradients alone, which protects neither the rows nor their codes. Numbers in
brackets are the paper's equations.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import Entry, Gather, Reply, Sent, answers, parameter
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Askable, Round
from flower_fedclust.exact.grid import BITS, GridArray, ball_in_units, truncated_to_ball
from flower_fedclust.exact.rows import Frame
from flower_fedclust.exact.spectral_sums import kernel_values
from flower_fedclust.exact.sums import squared_distances
from flower_fedclust.exact.terms import Bound
from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.checks import LARGEST_NORM, SMALLEST_NORM
from flower_fedclust.numerics.kernel import gaussian_kernel
from flower_fedclust.numerics.nystrom import landmark_distances
from flower_fedclust.privacy.noise import add_relative_noise
from flower_fedclust.privacy.releases import Relation
from flower_fedclust.strategies.common.spectral import kernel_within
from flower_fedclust.strategies.maps.landmarks import Averaging, CodedRowsStrategy, Landmarks
from flower_fedclust.strategies.maps.maps import FederatedMap, FederatedMapClient, FedTSNE, FedUMAP
from flower_fedclust.strategies.maps.speclust import FedSpeClust, FedSpeClustClient
from flower_fedclust_papers.perturbed_rows import (
    NOISY_ROWS,
    ROWS_PART,
    PerturbedRowsClient,
    perturb_rows,
)

Floats = NDArray[np.float64]


class PerturbedCodes(CodedRowsStrategy):
    """Base of the strategies that add noise to rows, landmarks, gradients or codes.

    Parameters
    ----------
    perturb : "data", "landmarks", "gradients", or the codes of each row, default="data"
        To what noise is added. Noise on "data" (section 5.1) protects everything that clients send. So does noise on
        the codes of each row ("distances" in Fed-tSNE and Fed-UMAP, "kernel" in Fed-SpeClust); with epsilon, the
        landmarks' gradients then take noise, too. Noise on "landmarks" or "gradients" alone (the paper's Fed-tSNE+)
        protects neither the rows nor their codes. With epsilon these two are the same, because noise on the gradients
        moves the landmarks as much.
    epsilon : float, optional
        The total privacy budget, for each record against the server. Without one, relative_noise is needed.
    relative_noise : float, default=0.0
        The standard deviation of the noise over the standard deviation of what it is added to, beta of appendix A. For
        experiments: this noise has no epsilon.
    averaging : "landmarks" or "gradients", default="landmarks"
        Whether the clients' landmarks (15) or their gradients (16) are averaged. Gradients with calibrated noise are
        always averaged.
    """

    #: The answer that sends codes with calibrated noise.
    codes_answer: ClassVar[Askable[..., Any]]
    #: The guarantee is for replacing a row: because each row has a code, the number of rows is not hidden.
    relation: ClassVar[Relation | None] = "replace"

    perturb: str = parameter("data")
    epsilon: float | None = parameter(None, above=0, at_most=1000)
    delta: float = parameter(1e-6, at_least=1e-12, below=1)
    budget: Mapping[str, float] | None = parameter(None)
    max_norm: float | None = parameter(None, at_least=SMALLEST_NORM, at_most=LARGEST_NORM)
    relative_noise: float = parameter(0.0, at_least=0)
    averaging: Averaging = parameter("landmarks")

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first invalid parameter."""
        super().check_parameters()
        perturb, relative, private = self.perturb, self.relative_noise > 0, self.epsilon is not None
        on_landmarks = perturb in ("landmarks", "gradients")
        wrong = [
            (
                perturb == "landmarks" and self.averaging == "gradients",
                "perturb is 'landmarks' and averaging is 'gradients', where no client sends landmarks; set "
                "perturb='gradients' or averaging='landmarks'.",
            ),
            (
                on_landmarks and self.n_rounds == 0,
                f"perturb is '{perturb}' and n_rounds is 0, so that no client sends {perturb}; give 1 or more.",
            ),
            (
                relative and private,
                "epsilon and relative_noise are both given; relative noise has no epsilon, so give one.",
            ),
            (
                not (relative or private),
                f"perturb is '{perturb}' and there is no noise level; give epsilon and max_norm, or relative_noise.",
            ),
        ]
        for holds, sentence in wrong:
            if holds:
                raise ValueError(sentence)

    def what_the_server_can_compute(self) -> list[str]:
        """Return the notes of the privacy report that say what the noise protects."""
        notes = []
        if self.perturb not in ("data", self.codes):
            (note,) = super().what_the_server_can_compute()
            notes.append(f"{note} Noise on the landmarks changes nothing of that.")
        if self.relative_noise > 0:
            notes.append(
                "The noise is relative to the spread of what it is added to, for experiments: it has no epsilon."
            )
        return notes

    def landmarks(self) -> Generator[Round, Any, Landmarks]:
        """Run Algorithm 1, on noisy rows if perturb is "data"."""
        if self.perturb == "data":
            yield from perturb_rows(self.max_norm_of_rows, relative_noise=self.relative_noise)
        return (
            yield from self.learn_landmarks(
                averaging="gradients" if self.perturb == "gradients" else self.averaging,
                relative_noise=self.relative_noise
                if self.perturb in ("landmarks", "gradients")
                else 0.0,
                rows=self.coded_rows,
            )
        )

    @property
    def coded_rows(self) -> str:
        """The name of the rows whose codes clients send: noisy rows if perturb is "data"."""
        return NOISY_ROWS if self.perturb == "data" else ""

    # Rounds and budget.

    @property
    def landmarks_cost_epsilon(self) -> bool:
        """Whether every round of Algorithm 1 is a release. It is not if it uses noisy rows, which are paid for."""
        return self.epsilon is not None and self.perturb != "data"

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds: as many as without noise, and one for noise on the rows."""
        return super().n_protocol_rounds + (self.perturb == "data")

    def parts(self) -> Mapping[str, Part]:
        """Return the parts of the moments, the landmarks' gradients and the codes; or one part for the rows."""
        if self.perturb == "data":
            return ROWS_PART
        of_codes = Part(type(self).codes_answer, 0.7, int(self.perturb == self.codes))
        return {**self.landmark_parts(0.1, 0.2, replaced=True), self.codes: of_codes}


class PerturbedMap(PerturbedCodes, FederatedMap):
    """Base of both maps with noise."""

    perturb: Literal["data", "landmarks", "gradients", "distances"] = parameter("data")

    @property
    def squares_distances(self) -> bool:
        """Whether distances are squared first. Noisy distances are not, because squaring magnifies their noise."""
        return self.perturb != "distances"

    def distances_to(self, Y: Floats) -> Generator[Round, list[Reply], list[Reply]]:
        """Gather the distances of all rows to the landmarks: of noisy rows, or with noise on them, or without noise."""
        if self.perturb == "distances" and self.epsilon is not None and self.max_norm is not None:
            frame = self._landmark_frame(self.max_norm)
            question = PerturbedMapClient.clipped_distances.asked(
                Y, *frame.arrays, max_norm=self.max_norm
            )
            return (yield Gather(question, parts=["distances"]))
        if self.perturb == "distances":
            return (
                yield Gather(
                    PerturbedMapClient.noisy_distances.asked(Y, relative_noise=self.relative_noise)
                )
            )
        return (yield from super().distances_to(Y))


class FedTSNEPerturbed(PerturbedMap, FedTSNE):
    """Fed-tSNE with noise against the server.

    The maps by sums (:class:`~flower_fedclust.FedTSNESums`) send no codes, and need less noise.

    References
    ----------
    Qiao, Ma and Fan, "Federated t-SNE and UMAP for distributed data visualization", AAAI 2025, section 5.
    """

    entries = (
        Entry(
            "fed-tsne-perturbed",
            "Fed-tSNE with noise on rows, landmarks or distances",
            "Qiao, Ma and Fan 2025, section 5",
            example={"epsilon": 1.0, "max_norm": 1.0},
            finds="map",
        ),
    )


class FedUMAPPerturbed(PerturbedMap, FedUMAP):
    """Fed-UMAP with noise against the server; the same as :class:`FedTSNEPerturbed`, with UMAP instead of t-SNE.

    References
    ----------
    Qiao, Ma and Fan, "Federated t-SNE and UMAP for distributed data visualization", AAAI 2025, section 5.
    """

    entries = (
        Entry(
            "fed-umap-perturbed",
            "Fed-UMAP with noise on rows, landmarks or distances",
            "Qiao, Ma and Fan 2025, section 5",
            example={"epsilon": 1.0, "max_norm": 1.0},
            finds="map",
        ),
    )


class FedSpeClustPerturbed(PerturbedCodes, FedSpeClust):
    """Fed-SpeClust with noise against the server.

    :class:`~flower_fedclust.FedSpeClustSums` sends no codes, and needs less noise.

    References
    ----------
    Qiao, Ma and Fan, "Federated t-SNE and UMAP for distributed data visualization", AAAI 2025, section 5.
    """

    entries = (
        Entry(
            "fed-speclust-perturbed",
            "Fed-SpeClust with noise on rows, landmarks or kernel values",
            "Qiao, Ma and Fan 2025, section 5",
            example={"epsilon": 1.0, "max_norm": 1.0},
        ),
    )

    perturb: Literal["data", "landmarks", "gradients", "kernel"] = parameter("data")

    def kernel_with(
        self, Y: Floats, bandwidth: float
    ) -> Generator[Round, list[Reply], list[Reply]]:
        """Gather all rows' kernel values with the landmarks: of noisy rows, or with noise on them, or without noise."""
        if self.perturb == "kernel" and self.epsilon is not None and self.max_norm is not None:
            frame = self._landmark_frame(self.max_norm)
            question = FedSpeClustPerturbedClient.landmark_kernel_on_grid.asked(
                Y, *frame.arrays, bandwidth=bandwidth
            )
            return (yield Gather(question, parts=["kernel"]))
        if self.perturb == "kernel":
            question = FedSpeClustPerturbedClient.noisy_kernel.asked(
                Y, bandwidth=bandwidth, relative_noise=self.relative_noise
            )
            return (yield Gather(question))
        return (yield from super().kernel_with(Y, bandwidth))


# The client half.


def distances_moved(max_norm: float, n_landmarks: int) -> Bound:
    """Return how far apart the distances of two rows of norm max_norm can be: each as far as the rows are."""
    words = "the client clips every row, and every distance to what a row of this norm can have"
    return Bound(math.inf, apart=2.0 * max_norm * math.sqrt(n_landmarks), words=words)


class PerturbedMapClient(PerturbedRowsClient, FederatedMapClient):
    """The client half of the maps with noise."""

    @answers(Sent("distances of every row to the landmarks", "codes", per="row"))
    def noisy_distances(self, Y: Floats, *, relative_noise: float) -> Floats:
        """Return B_p, the distances of the client's rows to the landmarks, with relative noise."""
        return add_relative_noise(
            landmark_distances(self.rows, Y), relative_noise, self.noise_source
        )

    @answers(
        Sent("distances of every clipped row to the landmarks", "codes", per="row"),
        moved=lambda _, Y, *frame, max_norm: (distances_moved(max_norm, len(Y)),),
    )
    def clipped_distances(self, Y: Floats, *frame: Floats, max_norm: float) -> GridArray:
        """Return B_p of rows of norm at most ``max_norm``, as integers for the noise.

        A distance is the truncated root of an exact integer. A row of norm at most R has a distance between
        ``||y|| - R`` and ``||y|| + R`` from y. Distances that rounding puts outside are clipped, so that no two rows'
        distances are more than 2 R apart.
        """
        rows = self.enter(*frame)
        points, zeros = rows.points(Y), np.zeros(Y.shape[1])
        bound, limit = ball_in_units(max_norm, 2, rows.exponent)
        of_zero = np.trunc(np.sqrt(squared_distances(zeros[None], points)))
        nearest, farthest = of_zero - math.floor(bound), of_zero + math.floor(bound)
        distances = np.empty((len(rows), len(Y)), dtype=np.int64)
        for block in blocks(len(rows), len(Y)):
            clipped = truncated_to_ball(rows.integers[block], None, 0, bound, limit, 2)
            distances[block] = np.clip(
                np.sqrt(squared_distances(clipped, points)), nearest, farthest
            )
        return GridArray(distances, rows.exponent)


def kernel_values_apart(W: Floats) -> float:
    """Return how far apart the truncated kernel values of two rows can be, given the kernel W of the points.

    phi(Y)' phi(x) is linear in phi(x), with the root of W's largest eigenvalue as its norm, and two phi(x) are at most
    sqrt(2) apart; and each value lies between 0 and 1. Truncation adds at most a unit to a difference.
    """
    in_feature_space = math.sqrt(2.0 * float(np.linalg.eigvalsh(W)[-1])) * (1.0 + 2.0**-30)
    truncated = 2.0 * math.sqrt(len(W)) * 2.0**-BITS
    return min(in_feature_space + truncated, math.sqrt(len(W)))


def _kernel_moved(Y: Floats, frame: Frame, bandwidth: float) -> Bound:
    apart = kernel_values_apart(kernel_within(frame, Y, bandwidth))
    return Bound(math.inf, apart=apart, words="no two rows' kernel values are farther apart")


class FedSpeClustPerturbedClient(PerturbedRowsClient, FedSpeClustClient):
    """The client half of :class:`FedSpeClustPerturbed`."""

    @answers(Sent("kernel values of every row with the landmarks", "codes", per="row"))
    def noisy_kernel(self, Y: Floats, *, bandwidth: float, relative_noise: float) -> Floats:
        """Return K(X_p, Y), the kernel values of the client's rows with the landmarks, with relative noise."""
        return add_relative_noise(
            gaussian_kernel(self.rows, Y, bandwidth), relative_noise, self.noise_source
        )

    @answers(
        Sent("kernel values of every row with the landmarks", "codes", per="row"),
        moved=lambda _, Y, *frame, bandwidth: (
            _kernel_moved(Y, Frame.of_arrays(*frame), bandwidth),
        ),
    )
    def landmark_kernel_on_grid(self, Y: Floats, *frame: Floats, bandwidth: float) -> GridArray:
        """Return K(X_p, Y) as integers for the noise."""
        rows = self.enter(*frame)
        kernel = kernel_values(rows.integers, rows.points(Y), rows.exponent, bandwidth)
        return GridArray.truncated(kernel, -BITS)


PerturbedMap.client_type, PerturbedMap.codes_answer = (
    PerturbedMapClient,
    PerturbedMapClient.clipped_distances,
)
FedSpeClustPerturbed.client_type = FedSpeClustPerturbedClient
FedSpeClustPerturbed.codes_answer = FedSpeClustPerturbedClient.landmark_kernel_on_grid
