"""SPP-FGC+ (He, Wang, Tang, Wang, Wang and Nie, Algorithm 2): SPP-FGC on codes that an autoencoder learns in rounds.

Z_k are the codes of client k's rows, and P_g the global prototypes: the mean codes of the clusters. A client's graph
E^p and prototypes P_k, and the global graph E*, are as in Algorithm 1 (:mod:`flower_fedclust.strategies.spp_fgc`).
Comments give the lines of Algorithm 2.

docs/shape.md shows how a ``yield`` here becomes a round of Flower.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import (
    Entry,
    Gather,
    Outcome,
    Protocol,
    ProtocolStrategy,
    Reply,
    Sent,
    Sum,
    answers,
    parameter,
)
from flower_fedclust.engine.rounds import Array, MissedRoundError, Round
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.sums import second_moment, triangle_to_symmetric, upper_triangle
from flower_fedclust.numerics.checks import LARGEST_NORM, SMALLEST_NORM, warn_of_empty_clusters
from flower_fedclust.numerics.copies import copies_of
from flower_fedclust.numerics.global_graph import full_affinity
from flower_fedclust.numerics.kmeans import centers_of
from flower_fedclust.numerics.prototypes import FULL_COLUMNS, mean_distances, prototypes_of, shrunk
from flower_fedclust.numerics.structural_graph import client_graph
from flower_fedclust.numerics.vectors import clip_rows, n_axes_that_hold, top_eigenvectors
from flower_fedclust.privacy.accounting import Share, calibrate
from flower_fedclust.privacy.releases import NoisePlace
from flower_fedclust.strategies.common.moments import MOMENT_ROUNDS, MomentsClient, column_moments
from flower_fedclust.strategies.common.spectral import LabelsClient, cluster_embedding, send_labels
from flower_fedclust.strategies.spp_fgc.spp_fgc import (
    GRAPH,
    atoms,
    joined,
    n_atoms_of,
    read_uploads,
    sent_graph,
)
from flower_fedclust.strategies.spp_fgc.spp_fgc_sums import PAPER
from flower_fedclust_papers.encoded_model import EncodedModel
from flower_fedclust_papers.networks.layers import layers_exponent, layers_onto_grid
from flower_fedclust_papers.networks.vae import codes_of, encoder_of, new_vae, trained_vae
from flower_fedclust_papers.spp_fgc_printed import noisy_as_in_the_paper

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: The exponent of the unit in which the losses of clients are summed.
LOSS_EXPONENT = -20

#: By default a code has the first number of entries or, if that is more, as many as the principal axes that together
#: hold the second number, a fraction, of the rows' variance.
FEWEST_LATENT, HELD_VARIANCE = 10, 0.7

#: If codes have more entries than this, edges of the graph depend on shared neighbors, not on distances alone.
MOST_FOR_DISTANCES = 10


class SPPFGCPlus(ProtocolStrategy):
    """SPP-FGC on learned codes, for images and other rows whose own distances show no clusters. Needs PyTorch.

    Each client trains a variational autoencoder (VAE) on its rows. In each round it sends the graph and the prototypes
    of its codes as in :class:`SPPFGC`. The server finds clusters and sends back their mean codes: the global prototypes
    P_g, towards which the clients continue to train (equation 14).

    The paper does not say how the codes of different clients become comparable. Here all clients begin with the same
    layers, and the server averages the layers after every round. If layers stayed at the clients, they would drift
    apart (accuracy on rings in 20 columns: 0.50 instead of 1.00). The following also helps, and is not in the paper:

    - The network begins linear, so that the first codes are coordinates along the principal axes of all rows, found
      from sums. A code that is as wide as its row begins as the row, with no training before the first graph.
    - A row is drawn to the mean code of the cluster that the server's graph found for it. Deep embedded clustering
      (DEC) draws it to the nearest mean, which cuts clusters that are not round if clustering_weight is large.
    - As in :class:`SPPFGC`, a client has several prototypes for each cluster; in the paper they are its DEC clusters.
    - If a code has more than 10 numbers, edges of the graph are weighted by the nearest rows that both rows share,
      because distances alone say less in many dimensions.

    Nothing is proved about its privacy, whatever the noise: graphs are sent without noise, and codes come from layers
    that were trained on the rows, so that one row can move all codes of its client. For a guarantee, encode the rows by
    a network that was trained on other rows, and use :class:`SPPFGCSums` on the codes.

    Parameters
    ----------
    n_clusters : int
        The number of clusters, C in the paper.
    n_rounds : int, default=5
        The number of rounds of training towards the global prototypes, T in the paper.
    n_pretraining_rounds : int, default=6
        The number of rounds of training before these, without prototypes; none if a code is as wide as its row.
    n_local_steps : int, default=50
        Steps of a client in a round, of 128 rows each; a client goes through its rows at least once.
    n_latent : int, optional
        The number of entries of a code, at most the number of columns. By default it is 10 or, if that is more, the
        number of principal axes that together hold 70% of the variance of all rows (up to half of n_hidden).
    n_hidden : int, default=256
        The number of units between the two layers of the encoder, and of the decoder.
    clustering_weight : float, default=0.15
        The weight lambda of the clustering loss in equation (14), relative to the mean squared error of an entry.
    n_neighbors : int, default=10
        The most neighbors of a row in a client's graph, as in :class:`SPPFGC`.
    n_prototypes : int, optional
        Prototypes of each client, as in :class:`SPPFGC`.
    epsilon : float, optional
        Adds the paper's Laplace noise to the prototypes (equation 8). All rounds together would spend epsilon if the
        sensitivities of appendix C.II were right and the layers that make codes did not depend on rows. Neither is
        true. The noise is for comparison, and the report promises nothing.
    delta : float, default=1e-6
        The delta of that epsilon.
    max_l1_norm : float, optional
        With epsilon, codes are clipped to this L1 norm; by default twice the number of entries of a code.

    References
    ----------
    He, Wang, Tang, Wang, Wang and Nie, "Towards federated clustering: a client-wise private graph aggregation
    framework". Xie, Girshick and Farhadi, "Unsupervised deep embedding for clustering analysis", ICML 2016.
    """

    entries = (
        Entry(
            "spp-fgc-plus",
            "SPP-FGC on codes that the clients' variational autoencoders learn; needs PyTorch",
            f"{PAPER}, Algorithm 2",
            example={"n_local_steps": 2},
        ),
    )

    n_rounds: int = parameter(5, at_least=0)
    n_pretraining_rounds: int = parameter(6, at_least=0)
    n_local_steps: int = parameter(50, at_least=1)
    n_latent: int | None = parameter(None, at_least=1)
    n_hidden: int = parameter(256, at_least=1)
    clustering_weight: float = parameter(0.15, at_least=0)
    n_neighbors: int = parameter(10, at_least=1)
    n_prototypes: int | None = parameter(None, at_least=1)
    epsilon: float | None = parameter(None, above=0, at_most=1000)
    delta: float = parameter(1e-6, above=0, below=1)
    max_l1_norm: float | None = parameter(None, at_least=SMALLEST_NORM, at_most=LARGEST_NORM)
    #: Clients add the noise, which would protect against the server.
    noise: NoisePlace = dataclasses.field(default="local", init=False)

    # The server half.

    def protocol(self) -> Protocol:
        """Run Algorithm 2."""
        # Line 2: the VAE, and P_g^0.
        frame, layers = yield from self._first_layers()
        exponent = layers_exponent(layers)
        for _ in range(self._n_pretraining_rounds):
            layers, _ = yield from self._trained(frame, layers, exponent)
        replies = yield Gather(
            SPPFGCPlusClient.encoded_graph.asked(*frame, *layers, **self._upload(layers))
        )
        labels, P_g = self._server_side(replies)
        history: dict[str, list[float]] = {"reconstruction": [], "clustering": []}
        for _ in range(self.n_rounds):
            # Line 18 of the round before: each client gets the clusters of its rows.
            yield from send_labels(labels, replies)
            # Lines 5 to 7, and the mean of the layers.
            layers, losses = yield from self._trained(frame, layers, exponent, P_g)
            # Lines 8 to 12.
            replies = yield Gather(
                SPPFGCPlusClient.encoded_graph.asked(*frame, *layers, **self._upload(layers))
            )
            # Lines 14 to 18.
            labels, P_g = self._server_side(replies, P_g)
            for name, loss in zip(history, losses, strict=True):
                history[name].append(float(loss))
        # Line 21.
        warn_of_empty_clusters(self.name, np.bincount(labels, minlength=self.n_clusters))
        by_client = yield from send_labels(labels, replies)
        origin, scale = frame
        model = EncodedModel(
            encoder_of(layers), P_g, origin=origin, scale=np.full(len(origin), float(scale))
        )
        return Outcome(model, by_client, history=history)

    def _first_layers(self) -> Generator[Round, Any, tuple[tuple[Floats, Floats], list[Floats]]]:
        """Return the origin and the scale that normalize the rows together, and the first layers.

        With these layers, codes are coordinates along the principal axes or, if codes are as wide as rows, the rows.
        """
        moments, around = yield from column_moments()
        scale = float(np.sqrt(np.mean(moments.deviation**2)))
        if self._codes_are_rows:
            directions = np.eye(self.n_columns)
        else:
            (products,) = yield Sum(SPPFGCPlusClient.frame_products.asked(*around.arrays))
            moment = triangle_to_symmetric(products)
            directions = top_eigenvectors(moment, self.n_latent or self._n_latent_for(moment))
        seed = int(self.rng.integers(2**31))
        layers = new_vae(self.n_columns, directions.shape[1], self.n_hidden, seed, directions)
        return (moments.mean, np.array(scale if scale > 0 else 1.0)), layers

    def _trained(
        self,
        frame: tuple[Floats, Floats],
        layers: list[Floats],
        exponent: int,
        P_g: Floats | None = None,
    ) -> Generator[Round, Any, tuple[list[Floats], Floats]]:
        """Let every client train the layers; return their mean over rows (McMahan et al. 2017) and the mean losses."""
        wanted: dict[str, Any] = {
            "n_steps": self.n_local_steps,
            "random_state": int(self.rng.integers(2**31)),
            "weight": float(self.clustering_weight),
            "exponent": exponent,
        }
        centers = np.zeros((0, encoder_of(layers)[-1].size)) if P_g is None else P_g
        question = SPPFGCPlusClient.trained_layers.asked(*frame, centers, *layers, **wanted)
        *sums, losses, n_rows = yield Sum(question)
        return [layer / n_rows for layer in sums], losses / n_rows

    def _server_side(
        self, replies: Sequence[Reply], former: Floats | None = None
    ) -> tuple[Labels, Floats]:
        """Return the clusters of all rows, and their mean codes P_g; an empty cluster keeps its former mean."""
        uploads = read_uploads(replies, self.n_clusters)
        # Lines 15 to 17, as in Algorithm 1 by default.
        prototypes = shrunk(uploads.prototypes)
        divergences = mean_distances(prototypes)
        E = joined(uploads, prototypes, divergences, self.n_clusters)
        embedding = E.embedding(self.n_clusters, full_affinity(divergences))
        # Line 18.
        _, labels = cluster_embedding(embedding, self.n_clusters, self.rng, uploads.sizes)
        table = uploads.rows_of_prototypes(labels, self.n_clusters)
        sums = table.T @ uploads.prototypes.means
        return labels[uploads.node], centers_of(
            sums, table.sum(axis=0), np.zeros_like(sums) if former is None else former
        )

    # Bounds and budget.

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds of messages.

        Moments, axes and pretraining come first, then the first graph. Each round of the paper has
        labels, training and graphs; the last labels follow.
        """
        return MOMENT_ROUNDS + 1 + self.n_pretraining_rounds + 3 * self.n_rounds + 2

    def _n_latent_for(self, moment: Floats) -> int:
        """Return the default length of a code. Each axis needs two hidden units (:func:`new_vae`)."""
        return max(FEWEST_LATENT, min(n_axes_that_hold(HELD_VARIANCE, moment), self.n_hidden // 2))

    @property
    def _codes_are_rows(self) -> bool:
        """Whether a code is as wide as its row, and begins as the row."""
        return self.n_columns <= (self.n_latent or FEWEST_LATENT)

    @property
    def _n_pretraining_rounds(self) -> int:
        """The number of pretraining rounds: 0 if codes begin as rows, because a graph can then come first."""
        return 0 if self._codes_are_rows else self.n_pretraining_rounds

    def privacy_notes(self) -> list[str]:
        """Add what noise on the prototypes does not cover."""
        notes = super().privacy_notes()
        notes.append(
            "Graphs and the prototype of each row leave the client as they are, and so do sums of layers that were "
            "trained on the rows: nothing is promised for any of them, or for the run as a whole."
        )
        if self.epsilon is not None:
            notes.append(
                "The prototypes carry Laplace noise as the paper scales it, composed over the rounds. That proves "
                "nothing: one row moves the layers, and by them the codes of all rows. They are listed as unprotected."
            )
        return notes

    def _upload(self, layers: Sequence[Floats]) -> dict[str, Any]:
        """Return the arguments of a client's answer in a round, with a new seed each time."""
        wanted = {
            "n_clusters": self.n_clusters,
            "n_neighbors": self.n_neighbors,
            "n_prototypes": self.n_prototypes or 0,
            "random_state": int(self.rng.integers(2**31)),
        }
        if self.epsilon is None:
            return wanted
        # Two noisy releases in each graph: means and covariances.
        share = Share("laplace", 1.0, 2 * (self.n_rounds + 1))
        multiplier = calibrate({"prototypes": share}, self.epsilon, self.delta)["prototypes"]
        bound = (
            2.0 * encoder_of(layers)[-1].size
            if self.max_l1_norm is None
            else float(self.max_l1_norm)
        )
        return wanted | {"epsilon": 1.0 / multiplier, "max_l1_norm": bound}


# The client half.

UPLOAD = (
    *GRAPH,
    Sent("means of the prototypes of the client's codes", "centers"),
    Sent("covariances of the prototypes of the client's codes", "centers"),
    Sent("sizes of the prototypes of the client's codes", "centers", counts="every row"),
)


class SPPFGCPlusClient(MomentsClient, LabelsClient):
    """The client half of :class:`SPPFGCPlus`: it trains the VAE, and sends graph and prototypes of the codes."""

    @answers("sum of the outer products of the rows (upper triangle)")
    def frame_products(self, *frame: Floats) -> GridArray:
        """Return X' X of the rows as a vector, in units of the frame, so that no square overflows."""
        return GridArray(upper_triangle(second_moment(self.enter(*frame).integers, 0)[0]))

    @answers(
        *(
            f"sum of the {part}'s {content}"
            for part in ("encoder", "decoder")
            for content in ("first weights", "first biases", "last weights", "last biases")
        ),
        "sum of the losses",
        Sent("number of rows", counts_rows=True),
    )
    def trained_layers(
        self,
        origin: Floats,
        scale: Floats,
        P_g: Floats,
        *layers: Floats,
        n_steps: int,
        random_state: int,
        weight: float,
        exponent: int,
    ) -> list[GridArray]:
        """Train the layers, towards P_g if it is not empty (line 7); return layers and mean losses times n_rows."""
        towards: dict[str, Any] = {}
        if len(P_g):
            towards = {"centers": P_g, "labels": self._own_labels(), "weight": weight}
        seed = int(self.generator(random_state).integers(2**31))
        trained = trained_vae(
            self._scaled(origin, scale), layers, n_steps=n_steps, random_state=seed, **towards
        )
        n_rows = len(self.rows)
        on_grid = [
            GridArray(layer * n_rows, exponent)
            for layer in layers_onto_grid(trained.layers, exponent)
        ]
        losses = np.array(
            [np.mean(trained.reconstruction), np.mean(trained.clustering) if len(P_g) else 0.0]
        )
        return [
            *on_grid,
            GridArray.truncated(losses * n_rows, LOSS_EXPONENT),
            GridArray(np.array(n_rows)),
        ]

    @answers(*UPLOAD)
    def encoded_graph(
        self, /, origin: Floats, scale: Floats, *layers: Floats, **wanted: Any
    ) -> tuple[Array, ...]:
        """Return E^p and P_k of the codes (lines 8 to 11)."""
        return self._graph(codes_of(self._scaled(origin, scale), layers), **wanted)

    def _graph(
        self,
        Z: Floats,
        *,
        n_clusters: int,
        n_neighbors: int,
        n_prototypes: int,
        random_state: int,
        epsilon: float = math.inf,
        max_l1_norm: float = math.inf,
    ) -> tuple[Array, ...]:
        Z = clip_rows(Z, max_l1_norm, norm=1)
        copies = copies_of(self.rows)
        Z = Z[copies.first[copies.index]]  # codes of equal rows can differ by rounding
        # Line 8.
        E = client_graph(Z[copies.first], n_clusters, n_neighbors)
        if Z.shape[1] > MOST_FOR_DISTANCES:  # not in the paper
            E = E.by_shared_neighbors()
        # Line 9.
        n_atoms = n_atoms_of(len(Z), n_clusters, n_prototypes)
        labels = atoms(Z[copies.first], n_atoms, self.generator(random_state))[copies.index]
        P = prototypes_of(Z, labels, diagonal=Z.shape[1] > FULL_COLUMNS)
        # Line 10.
        if math.isfinite(epsilon):
            P = noisy_as_in_the_paper(P, epsilon, max_l1_norm, self.noise_source)
        # Line 11.
        return (*sent_graph(labels, copies, E, n_neighbors), P.means, P.covariances, P.counts)

    def _scaled(self, origin: Floats, scale: Floats) -> Floats:
        return (self.rows - origin) / float(scale)

    def _own_labels(self) -> Labels:
        kept = self.recall("labels")
        if kept is None or len(kept[0]) != len(self.rows):
            raise MissedRoundError(
                f"client {self.name} has no clusters of its rows; it missed the round that has them."
            )
        return kept[0].astype(np.intp)


SPPFGCPlus.client_type = SPPFGCPlusClient
