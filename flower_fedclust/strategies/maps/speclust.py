"""Fed-SpeClust (Qiao, Ma and Fan, AAAI 2025, Algorithm 3), from the kernel values of all rows or from sums alone.

Y are the landmarks, C the kernel values of all rows with the landmarks, and W the kernel values of
the landmarks with each other. The paper's samples are columns; here they are rows.

docs/shape.md shows how a ``yield`` here becomes a round of Flower.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import (
    Entry,
    Gather,
    Outcome,
    Protocol,
    Sent,
    answers,
    parameter,
    usable,
)
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Reply, Round
from flower_fedclust.numerics.kernel import gaussian_kernel
from flower_fedclust.strategies.common.frame import FRAME_ROUNDS, frame_of_rows
from flower_fedclust.strategies.common.spectral import (
    CodesStrategy,
    Dictionary,
    LabelsClient,
    with_room,
)
from flower_fedclust.strategies.common.spectral_sums import SpectralSumsClient, SpectralSumsStrategy
from flower_fedclust.strategies.maps.landmarks import (
    CodedRowsStrategy,
    Landmarks,
    LandmarksClient,
    LandmarkStrategy,
)

Floats = NDArray[np.float64]


class LandmarkKernelStrategy(LandmarkStrategy):
    """Base of both forms of Fed-SpeClust.

    Parameters
    ----------
    regularization : float, default=0.01
        Added to the diagonal of the landmarks' kernel W before it is inverted. The paper adds
        nothing. Its inverse then magnifies directions in which the landmarks hardly differ, and the
        noise in these directions.
    """

    regularization: float = parameter(0.01, at_least=0)

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first invalid parameter."""
        super().check_parameters()
        if self.n_landmarks < self.n_clusters:
            raise ValueError(
                f"n_landmarks is {self.n_landmarks} and n_clusters is {self.n_clusters}; give as many at least."
            )

    def dictionary(self, landmarks: Landmarks) -> Dictionary:
        """Return the landmarks as a dictionary of FedSC, whose bandwidth r is such that gamma is 1 / (2 r^2)."""
        bandwidth = 1.0 / math.sqrt(2.0 * landmarks.gamma)
        return Dictionary(
            landmarks.points, bandwidth, self.regularization, landmarks.n_rows, nystrom=True
        )


class FedSpeClust(CodedRowsStrategy, LandmarkKernelStrategy, CodesStrategy):
    """Fed-SpeClust: spectral clustering by a kernel that learned landmarks reconstruct.

    The clients together learn landmarks that have the distribution of all rows (FedDL, Algorithm 1
    of the paper). Each client sends the kernel values of its rows with the landmarks. The server
    reconstructs the kernel values between all rows (by the Nystrom method) and clusters the rows.

    Anybody with the landmarks and a row's kernel values with them can compute the row
    (strategies/reproduce/attacks.py does it). :class:`FedSpeClustSums` sends sums alone. The
    strategy "fed-speclust-perturbed" of the second distribution adds the paper's noise.

    Parameters
    ----------
    sparsify : bool, default=True
        Whether each row keeps only its k largest similarities, as in FedSC (equation 25 of its
        paper). Fed-SpeClust's paper keeps all similarities.

    References
    ----------
    Qiao, Ma and Fan, "Federated t-SNE and UMAP for distributed data visualization", AAAI 2025,
    Algorithm 3.
    """

    entries = (
        Entry(
            "fed-speclust",
            "spectral clustering by learned landmarks; the server can read the rows",
            "Qiao, Ma and Fan 2025, Algorithm 3",
        ),
    )
    codes = "kernel"

    # The server half.

    def protocol(self) -> Protocol:
        """Run Algorithm 3."""
        # Step 1: the landmarks.
        landmarks = yield from self.landmarks()
        dictionary = self.dictionary(landmarks)
        # Step 2: every client sends the kernel values of its rows with the landmarks.
        replies = yield from self.kernel_with(dictionary.atoms, dictionary.bandwidth)
        # Step 3: with F = C (W + lambda I)^(-1/2), the kernel C (W + lambda I)^-1 C' is F F'.
        C = np.concatenate([reply.arrays[0] for reply in replies])
        # Step 4: spectral clustering.
        model, by_client = yield from self.cluster_factors(
            dictionary, C @ dictionary.factor_map(dictionary.atoms), replies
        )
        return Outcome(model, by_client, history={"mmd": landmarks.mmds})

    def kernel_with(
        self, Y: Floats, bandwidth: float
    ) -> Generator[Round, list[Reply], list[Reply]]:
        """Gather the kernel values of all rows with the landmarks."""
        replies = yield Gather(
            FedSpeClustClient.landmark_kernel.asked(Y, bandwidth=bandwidth), rows=self.coded_rows
        )
        return usable(self, replies, _not_kernel_values)


def _not_kernel_values(reply: Reply) -> str:
    """Say what is wrong with the values of a Gaussian kernel that a client has sent."""
    values = reply.arrays[0]
    return (
        ""
        if values.min() >= 0 and values.max() <= 1 + 1e-9
        else "values that the kernel does not have"
    )


class FedSpeClustSums(LandmarkKernelStrategy, SpectralSumsStrategy):
    """Fed-SpeClust from sums alone. It finds round clusters, also overlapping ones, but does not separate rings.

    The server receives only sums over the clients. The clients learn landmarks together, as in
    :class:`FedSpeClust`. Each row is then written as a vector of factors, whose inner product with
    another row's factors approximates the similarity of the two rows. These vectors are clustered
    from sums, as in :class:`FedSCSums`. The graph of similarities is dense: nobody sees the
    similarity of two rows, so it cannot be cut down to nearest neighbors. With ``epsilon`` every
    sum takes noise.

    References
    ----------
    After Qiao, Ma and Fan, "Federated t-SNE and UMAP for distributed data visualization", AAAI
    2025, Algorithm 3, whose steps 2 to 4 this replaces.
    """

    entries = (
        Entry(
            "fed-speclust-sums",
            "spectral clustering of round and overlapping clusters by learned landmarks, from sums alone",
            "after Qiao, Ma and Fan 2025, Algorithm 3",
        ),
    )

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first invalid parameter."""
        super().check_parameters()
        if self.epsilon is not None and self.regularization == 0:
            raise ValueError(
                "regularization is 0; with epsilon it must be positive, as it bounds the factors of a row."
            )

    # The server half.

    def protocol(self) -> Protocol:
        """Learn the landmarks (Algorithm 1 of the paper), then cluster the rows from sums."""
        landmarks = yield from self.learn_landmarks()
        if self.epsilon is None or self.max_norm is None:
            frame, _ = yield from frame_of_rows()
            frame = with_room(frame)
        else:
            frame = self._landmark_frame(self.max_norm)
        model = yield from self.cluster_by_sums(self.dictionary(landmarks), frame)
        return Outcome(model, history={"mmd": landmarks.mmds})

    # Rounds and budget.

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds: for the landmarks, for a frame (unless max_norm gives it), and for the clustering."""
        frame_rounds = FRAME_ROUNDS if self.epsilon is None else 0
        return self.n_landmark_rounds + frame_rounds + self.n_clustering_rounds

    def parts(self) -> Mapping[str, Part]:
        """Return the parts of the budget for moments, landmarks' gradients, two sums of factors, and k-means."""
        landmarks = self.landmark_parts(0.1, 0.3)
        return landmarks | self.clustering_parts(
            factor_sum=0.075, normalized_moment=0.375, kmeans=0.15
        )


# The client half.


class FedSpeClustClient(LandmarksClient, LabelsClient):
    """The client half of Algorithm 3: it sends its rows' kernel values with the landmarks, and keeps their labels."""

    @answers(Sent("kernel values of every row with the landmarks", "codes", per="row"))
    def landmark_kernel(self, Y: Floats, *, bandwidth: float) -> Floats:
        """Return K(X_p, Y), the kernel values of the client's rows with the landmarks (Algorithm 3, step 2)."""
        return gaussian_kernel(self.rows, Y, bandwidth)


class FedSpeClustSumsClient(LandmarksClient, SpectralSumsClient):
    """The client half of :class:`FedSpeClustSums`; it adds no answers to those of its two base classes."""


FedSpeClust.client_type, FedSpeClustSums.client_type = FedSpeClustClient, FedSpeClustSumsClient
