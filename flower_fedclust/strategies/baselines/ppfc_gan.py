"""PPFC-GAN: each client sends rows that a GAN makes from its own, and the server clusters these by deep clustering."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import (
    Entry,
    Gather,
    Outcome,
    Protocol,
    ProtocolClient,
    ProtocolStrategy,
    Sent,
    answers,
    parameter,
)
from flower_fedclust.models import EncodedModel
from flower_fedclust.networks.clustering_autoencoder import common_scale, pretrained_autoencoder, refined_clusters
from flower_fedclust.networks.gan import synthetic_rows
from flower_fedclust.networks.perceptron import outputs
from flower_fedclust.networks.torch_module import require_torch
from flower_fedclust.numerics.checks import DataError, warn_of_empty_clusters
from flower_fedclust.numerics.initialisation import weighted_kmeans

Floats = NDArray[np.float64]

#: Numbers of a code where nothing is said and the rows have more columns (Xie et al. 2016, section 4.3).
N_LATENT = 10


class PPFCGAN(ProtocolStrategy):
    """Federated deep clustering of synthetic rows: one round, whose rows look like the clients' and are not private.

    Each client trains a generative adversarial network on its own rows and sends rows that it makes. The server trains
    an autoencoder on all of them and clusters its codes; with the encoder and the centers, each client finds the
    clusters of its true rows by itself. As the synthetic rows of all clients come together, it does not matter which
    client has which clusters.

    The paper promises privacy because no true row is sent. But nothing keeps a GAN from repeating rows that it was
    trained on, the less the fewer there are, and no mechanism covers what it makes: the privacy report says so.

    What is said here follows the paper's summary: a GAN in each client, "a deep clustering network on the synthetic
    data", "k cluster centroids" that go to the clients. What had to be decided:

    - Deep clustering is DEC, with an encoder of two hidden layers, and one scale for all columns as in DEC's own paper:
      the units of the rows matter, as they do for k-means.
    - The GAN is small, too, and works on columns that each client brings to mean 0 and standard deviation 1 by itself;
      see :func:`~flower_fedclust.networks.gan.synthetic_rows`. The code of the authors' SDA-FC gives
      the generator one of k random classes besides noise; here it has noise alone.
    - A client makes as many rows as it has, so that it counts as much as it would with its own.

    With 4 clients whose rows are drawn at random its accuracy is 0.90 on Iris, 0.90 on breast cancer and 0.77 on moons,
    the mean of three seeds; He et al. 2025, Table 5, have 0.89, 0.82 and 0.76. On digits it is 0.67, where k-means of
    all rows has 0.78: what the networks lose there is more than what they find.

    Needs PyTorch: ``pip install "flower-fedclust[deep]"``. The model that comes out needs none.

    Parameters
    ----------
    n_synthetic : int, optional
        How many rows each client makes; as many as it has, by default, which then is no secret.
    n_epochs : int, optional
        How often a client's GAN goes through its rows; by default as often as 1,500 steps take.
    n_pretraining_epochs : int, optional
        How often the autoencoder goes through the synthetic rows; by default as often as 1,000 steps take.
    n_targets : int, default=30
        How often, at most, DEC computes the assignments that it then comes nearer to. With 0 the clusters are those of
        a k-means of the autoencoder's codes.
    n_hidden : int, default=128
        Units of each hidden layer of the autoencoder.
    n_latent : int, optional
        Numbers of a code; by default 10, or as many as there are columns where these are fewer.

    References
    ----------
    Yan, Liu, Qi and Zhang, "Privacy-preserving federated deep clustering based on GAN", arXiv:2211.16965, 2022. Xie,
    Girshick and Farhadi, "Unsupervised deep embedding for clustering analysis", ICML 2016 (DEC). Yan, Liu, Qi and
    Zhang, "Federated clustering with GAN-based data synthesis", arXiv:2210.16524, 2022, whose code is public (SDA-FC).
    He et al., "Towards federated clustering: a client-wise private graph aggregation framework", arXiv:2511.10915.
    """

    entries = (
        Entry(
            "ppfc-gan",
            "every client sends rows that its GAN makes, the server clusters these by deep clustering; needs PyTorch",
            "Yan, Liu, Qi and Zhang 2022",
            example={"n_epochs": 2, "n_pretraining_epochs": 1},
        ),
    )

    n_synthetic: int | None = parameter(None, at_least=1)
    n_epochs: int | None = parameter(None, at_least=1)
    n_pretraining_epochs: int | None = parameter(None, at_least=1)
    n_targets: int = parameter(30, at_least=0)
    n_hidden: int = parameter(128, at_least=1)
    n_latent: int | None = parameter(None, at_least=1)

    @property
    def n_protocol_rounds(self) -> int:
        """The synthetic rows."""
        return 1

    def privacy_notes(self) -> list[str]:
        """Say that a GAN can repeat the rows that it was trained on."""
        return [
            *super().privacy_notes(),
            "A GAN can repeat the rows that it was trained on, the sooner the fewer there are and the longer it is "
            "trained. No mechanism covers the rows that it makes: what they say of a true row is not bounded. The "
            "server gives the networks' seed, and so knows which random numbers each of these rows was made from.",
        ]

    # The server half.

    def protocol(self) -> Protocol:
        """Gather the clients' synthetic rows, learn codes of them, and cluster the codes."""
        require_torch(self.name)
        replies = yield Gather(
            PPFCGANClient.synthetic_rows.asked(
                n_synthetic=self.n_synthetic or 0, n_epochs=self.n_epochs or 0, random_state=self._seed()
            )
        )
        rows = np.concatenate([reply.arrays[0] for reply in replies])
        if (n_different := len(np.unique(rows, axis=0))) < self.n_clusters:
            raise DataError(
                f"the clients made {n_different} different synthetic rows and n_clusters is {self.n_clusters}; ask for "
                "fewer clusters, or set n_synthetic higher."
            )
        origin, scale = common_scale(rows)
        scaled = (rows - origin) / scale
        autoencoder = pretrained_autoencoder(
            scaled,
            self.n_latent or min(N_LATENT, rows.shape[1]),
            random_state=self._seed(),
            n_epochs=self.n_pretraining_epochs,
            n_hidden=self.n_hidden,
        )
        first = weighted_kmeans(outputs(scaled, autoencoder.encoder), None, self.n_clusters, self.rng)
        clusters = refined_clusters(
            scaled, autoencoder.encoder, first, random_state=self._seed(), n_targets=self.n_targets
        )
        model = EncodedModel(clusters.encoder, clusters.centers, origin=origin, scale=np.full(rows.shape[1], scale))
        warn_of_empty_clusters(self.name, np.bincount(model.predict(rows), minlength=self.n_clusters))
        return Outcome(model, history={"reconstruction_loss": autoencoder.losses, "clustering_loss": clusters.losses})

    def _seed(self) -> int:
        return int(self.rng.integers(2**31))


# The client half.


class PPFCGANClient(ProtocolClient):
    """The answer of a client that sends rows which a GAN makes."""

    @answers(Sent("synthetic rows that the client's GAN makes", "codes", has_columns=True))
    def synthetic_rows(self, *, n_synthetic: int, n_epochs: int, random_state: int) -> Floats:
        """Return so many synthetic rows, or as many as there are rows where the number is 0."""
        require_torch(f"client {self.name}")
        return synthetic_rows(
            self.rows,
            n_synthetic or len(self.rows),
            random_state=int(self.generator(random_state).integers(2**31)),
            n_epochs=n_epochs or None,
            owner=f"client {self.name}",
        )


PPFCGAN.client_type = PPFCGANClient
