"""A private mixture of von Mises-Fisher distributions: clusters of directions, such as embeddings of texts.

It is an example of a strategy that the package does not have; `docs/tutorials/own-strategy.md` explains its parts.

    PYTHONPATH=examples fedclust run von_mises_fisher:SphericalMixture --dataset iris --n-clusters 3

The rows and the means have norm 1, so that ``exp(kappa x.m)`` is ``exp(-kappa/2 ||x - m||^2)`` up to a factor.
"""

import numpy as np

from flower_fedclust import authoring


class SphericalMixtureClient(authoring.FrameClient):
    """Responsibilities of the components, and what they add up to."""

    @authoring.by_row(sums="rows weighted by responsibility", weights="responsibilities")
    def expectation(rows, means, shares, *, concentration):
        """Return ``sum_i r_ij x_i`` and ``sum_i r_ij`` with ``r_ij ~ pi_j exp(kappa x_i.m_j)`` (the E step)."""
        likelihood = shares * rows.kernel(means, concentration / 2)
        responsibilities = likelihood / np.maximum(likelihood.sum(axis=1, keepdims=True), 1e-300)
        return authoring.weighted(responsibilities, rows), authoring.weighted(responsibilities)


class SphericalMixture(authoring.ClippedStrategy):
    """EM for a mixture of von Mises-Fisher distributions that share a concentration (Banerjee et al., 2005).

    Parameters
    ----------
    n_rounds : int, default=10
        EM steps.
    concentration : float, default=10.0
        kappa: the larger, the narrower the components.
    max_norm : float, default=1.0
        Longer rows are scaled down to it.
    privacy_unit : "record" or "client", default="record"
        Whom the guarantee protects.
    """

    entries = (
        authoring.Entry(
            "spherical-mixture", "mixture of von Mises-Fisher distributions", "Banerjee et al. 2005"
        ),
    )
    client_type = SphericalMixtureClient
    promises = ("record", "client")

    n_rounds: int = authoring.parameter(10, at_least=1)
    concentration: float = authoring.parameter(10.0, above=0)
    max_norm: float = authoring.parameter(1.0, above=0)
    privacy_unit: str = authoring.parameter("record")

    @property
    def n_protocol_rounds(self):
        """One for each EM step."""
        return self.n_rounds

    def parts(self):
        """Spend most on the sums, which have many entries."""
        return {
            "sums": authoring.Part(SphericalMixtureClient.expectation, 0.8, self.n_rounds),
            "weights": authoring.Part(SphericalMixtureClient.expectation, 0.2, self.n_rounds),
        }

    def protocol(self):
        """Alternate the E step at the clients with the M step at the server."""
        frame = authoring.Frame(np.zeros(self.n_columns), self.max_norm)
        means = self.rng.normal(size=(self.n_clusters, self.n_columns))
        means, shares = (
            means / np.linalg.norm(means, axis=1)[:, None],
            np.full(self.n_clusters, 1 / self.n_clusters),
        )
        for _ in range(self.n_rounds):
            question = SphericalMixtureClient.expectation.asked(
                means, shares, frame=frame, concentration=self.concentration
            )
            sums, weights = yield self.summed(question, "sums", "weights")
            lengths = np.linalg.norm(sums, axis=1)[:, None]
            means = np.where(lengths > 0, sums / np.maximum(lengths, 1e-12), means)
            shares = np.maximum(weights, 1.0) / np.maximum(weights, 1.0).sum()
        return authoring.KMeansModel(frame.leave(means))
