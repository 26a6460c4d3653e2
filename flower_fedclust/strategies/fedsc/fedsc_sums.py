"""FedSC by sums alone: the dense variant of FedSC, in which no code, label or row leaves a client."""

from __future__ import annotations

from collections.abc import Mapping

from flower_fedclust.engine import Entry, Outcome, Protocol
from flower_fedclust.engine.parts import Part
from flower_fedclust.strategies.common.spectral_sums import SpectralSumsClient, SpectralSumsStrategy
from flower_fedclust.strategies.fedsc.dictionary import DictionaryClient, DictionaryStrategy


class FedSCSums(DictionaryStrategy, SpectralSumsStrategy):
    """FedSC in which the server gets nothing but sums over the clients.

    With the rows' factors F, whose inner products are the reconstructed kernel, the degrees of the dense graph are
    ``F (F' 1)``, and its normalised eigenvectors follow from ``F' D^-1 F``, which is as wide as there are atoms. Both
    are sums over rows. Each client embeds its own rows with these eigenvectors, and the k-means at the end is Lloyd's
    algorithm on sums. So the protocol runs under secure aggregation as it is, and every sum can take noise.

    The graph is dense: it does not separate rings and moons, as the sparse one of :class:`FedSC` does.

    References
    ----------
    Qiao, Ding and Fan, "Federated spectral clustering via secure similarity reconstruction", NeurIPS 2023, whose stage
    II this replaces.
    """

    entries = (
        Entry(
            "fedsc-sums",
            "spectral clustering from sums alone: no code, label or row leaves a client",
            "Qiao, Ding and Fan 2023, with a stage II of sums",
        ),
    )

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first parameter which cannot be right."""
        super().check_parameters()
        if self.n_atoms is not None and self.n_atoms < self.n_clusters:
            raise ValueError(f"n_atoms is {self.n_atoms} and n_clusters is {self.n_clusters}; give as many at least.")
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
        """Stage I, and the clustering."""
        return self.n_dictionary_rounds + self.n_clustering_rounds

    def parts(self) -> Mapping[str, Part]:
        """Return those of the moments, the dictionary, the two sums of the factors, and k-means."""
        stage_1 = self.dictionary_parts(0.1, 0.1)
        return stage_1 | self.clustering_parts(factor_sum=0.1, normalized_moment=0.5, kmeans=0.2)


# The client half.


class FedSCSumsClient(DictionaryClient, SpectralSumsClient):
    """The client half: what it sends is in the two classes that it is made of. None of it has an entry for a row."""


FedSCSums.client_type = FedSCSumsClient
