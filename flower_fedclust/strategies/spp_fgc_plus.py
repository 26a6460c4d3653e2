"""SPP-FGC+: SPP-FGC on codes that each client's variational autoencoder learns, round by round.

He, Wang, Tang, Wang, Wang and Nie, "Towards federated clustering: a client-wise private graph aggregation framework",
Algorithm 2. Z_k are the codes of client k's rows, P_g the global prototypes, E^p, P_k and E* as in Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.deep.vae import codes_of, encoder_of, new_vae, trained_vae
from flower_fedclust.models import EncodedModel
from flower_fedclust.numerics.checks import check_integer, check_real, warn_of_empty_clusters
from flower_fedclust.numerics.kmeans import centers_of
from flower_fedclust.numerics.prototypes import prototypes_of, shrunk
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.accounting import Share, calibrate
from flower_fedclust.protocol import Gather, Outcome, Protocol, ProtocolStrategy, Sum, answers
from flower_fedclust.protocol.client import MissedRoundError
from flower_fedclust.protocol.rounds import Array, Reply, Round, Scalar, Sent
from flower_fedclust.steps.cells import FULL_COLUMNS
from flower_fedclust.steps.global_clusters import Recipe, clusters_of_rows, rows_of_prototypes
from flower_fedclust.steps.moments import MomentsClient, column_moments
from flower_fedclust.steps.prototypes import (
    GRAPH,
    atoms,
    gathered,
    n_atoms_of,
    noisy_as_in_the_paper,
    own_graph,
    sent_graph,
)
from flower_fedclust.steps.spectral import LabelsClient, send_labels

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: The name under which a client keeps the layers of its own VAE.
OWN_LAYERS = "layers of the VAE"


class SPPFGCPlus(ProtocolStrategy):
    """SPP-FGC on codes that are learned: for images, and whatever rows have no clusters as they are. Needs PyTorch.

    Each client trains a variational autoencoder (VAE) on its rows. In each round it sends the graph and the prototypes
    of its codes as in :class:`SPPFGC`, the server finds clusters, and sends back the mean code of each: the global
    prototypes P_g, towards which the clients train on (equation 14).

    The paper does not say how codes of different clients come to mean the same. Here all begin with the same layers,
    and the clients' layers are averaged over the first rounds; without that, clients that hold different classes do not
    agree (accuracy 0.66 for 0.79 on digits over four of them, dealt out by a Dirichlet distribution of 0.5). After
    these, layers stay with the clients, in the Context's state; at the end the server gets the sum of the encoders, for
    a model that places new rows. As in :class:`SPPFGC`, a client has several prototypes a cluster, and not those of its
    DEC clusters.

    Nothing is proved of its privacy, with any noise: graphs are sent as they are, and codes come from layers that were
    trained on the rows, so that one row can move all codes of its client. For a guarantee, encode the rows by a network
    that has seen none of them, and take :class:`SPPFGCSums` for the codes.

    Parameters
    ----------
    n_clusters : int
        C.
    n_rounds : int, default=5
        T: rounds of training towards the global prototypes.
    n_average_rounds : int, default=6
        Rounds in which the clients' layers are averaged, before. With 0, each client trains alone for as long as 6
        would take, and no layer leaves a client before the end.
    n_local_steps : int, default=50
        Steps of a client in a round, of 128 rows each; it goes through its rows once at least.
    n_latent : int, default=10
        Numbers of a code.
    n_hidden : int, default=256
        Units between the two layers of the encoder, and of the decoder.
    clustering_weight : float, default=10
        lambda of equation (14).
    n_neighbors : int, default=10
        k of the graph at most, as in :class:`SPPFGC`.
    n_prototypes : int, optional
        Of each client, as in :class:`SPPFGC`.
    epsilon : float, optional
        For Laplace noise on the prototypes as the paper has it (equation 8): that of each round, for means and
        covariances, is such that all rounds would together spend epsilon, if the sensitivities of appendix C.II held
        and the codes did not hang on the rows. Neither is so: it is for comparison, and the report promises nothing.
    delta : float, default=1e-6
    max_l1_norm : float, optional
        With epsilon: codes are clipped to this L1 norm; by default twice n_latent. Codes have about unit variance.
    min_clients, random_state, federated_evaluation
        As in :class:`SPPFGC`.

    References
    ----------
    He, Wang, Tang, Wang, Wang and Nie, "Towards federated clustering: a client-wise private graph aggregation
    framework". Xie, Girshick and Farhadi, "Unsupervised deep embedding for clustering analysis", ICML 2016.
    """

    name = "spp-fgc-plus"
    privacy_unit = "record"
    noise = "local"

    def __init__(
        self,
        n_clusters: int,
        *,
        n_rounds: int = 5,
        n_average_rounds: int = 6,
        n_local_steps: int = 50,
        n_latent: int = 10,
        n_hidden: int = 256,
        clustering_weight: float = 10.0,
        n_neighbors: int = 10,
        n_prototypes: int | None = None,
        epsilon: float | None = None,
        delta: float = 1e-6,
        max_l1_norm: float | None = None,
        min_clients: int | None = None,
        random_state: int | None = None,
        federated_evaluation: bool = False,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_rounds = n_rounds
        self.n_average_rounds = n_average_rounds
        self.n_local_steps = n_local_steps
        self.n_latent = n_latent
        self.n_hidden = n_hidden
        self.clustering_weight = clustering_weight
        self.n_neighbors = n_neighbors
        self.n_prototypes = n_prototypes
        self.epsilon = epsilon
        self.delta = delta
        self.max_l1_norm = max_l1_norm
        self.min_clients = min_clients
        self.random_state = random_state
        self.federated_evaluation = federated_evaluation
        self.check_parameters()

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first parameter which cannot be right."""
        super().check_parameters()
        check_integer("n_clusters", self.n_clusters, at_least=2)
        check_integer("n_rounds", self.n_rounds, at_least=0)
        check_integer("n_average_rounds", self.n_average_rounds, at_least=0)
        for parameter in ("n_local_steps", "n_latent", "n_hidden", "n_neighbors"):
            check_integer(parameter, getattr(self, parameter), at_least=1)
        if self.n_prototypes is not None:
            check_integer("n_prototypes", self.n_prototypes, at_least=1)
        check_real("clustering_weight", self.clustering_weight, at_least=0)
        if self.max_l1_norm is not None:
            check_real("max_l1_norm", self.max_l1_norm, above=0)

    # The server half.

    def protocol(self) -> Protocol:
        """Run Algorithm 2."""
        # Line 2: the VAE, and P_g^0.
        frame = yield from self._frame()
        layers = yield from self._averaged_layers(frame)
        history: dict[str, list[float]] = {"reconstruction": [], "clustering": []}
        replies = yield Gather("encoded_graph", [*frame, *layers], arguments=self._arguments())
        labels, centers = self._clusters(replies)
        # Lines 4 to 19.
        for _ in range(self.n_rounds):
            arguments = self._arguments() | self._training | {"weight": float(self.clustering_weight)}
            replies = yield Gather("tuned_graph", [*frame, centers], arguments=arguments)
            labels, centers = self._clusters(replies, centers)
            losses = np.array([reply.arrays[6] for reply in replies])
            rows = np.array([len(reply.arrays[0]) for reply in replies])
            for name, loss in zip(history, np.average(losses, axis=0, weights=rows), strict=True):
                history[name].append(float(loss))
        # Line 21.
        warn_of_empty_clusters(self.name, np.bincount(labels, minlength=self.n_clusters))
        by_client = yield from send_labels(labels, replies)
        *sums, n_rows = yield Sum("own_encoder")
        origin, scale = frame
        model = EncodedModel(
            [layer / n_rows for layer in sums], centers, origin=origin, scale=np.full(len(origin), float(scale))
        )
        return Outcome(model, by_client, history=history)

    def _frame(self) -> Generator[Round, list[Array], tuple[Floats, Floats]]:
        """Return the origin and the one scale with which the rows of all clients have about mean 0 and scale 1."""
        moments = yield from column_moments()
        scale = float(np.sqrt(np.mean(moments.deviation**2)))
        return moments.mean, np.array(scale if scale > 0 else 1.0)

    def _averaged_layers(self, frame: tuple[Floats, Floats]) -> Generator[Round, Any, list[Floats]]:
        """Return the layers that all clients begin with, or none where each has trained its own."""
        layers = new_vae(self._current.n_columns, self.n_latent, self.n_hidden, int(self.rng.integers(2**31)))
        if self.n_average_rounds == 0:
            # As many steps as the rounds of the default.
            arguments = self._training | {"n_steps": 6 * self.n_local_steps}
            yield Gather("train_alone", [*frame, *layers], arguments=arguments)
            return []
        for _ in range(self.n_average_rounds):
            *sums, n_rows = yield Sum("trained_layers", [*frame, *layers], arguments=self._training)
            layers = [layer / n_rows for layer in sums]
        return layers

    def _clusters(self, replies: Sequence[Reply], former: Floats | None = None) -> tuple[Labels, Floats]:
        """Return the clusters of all rows, and P_g: the mean code of each; an empty one keeps its former mean."""
        found = gathered([Reply(reply.client, reply.arrays[:6]) for reply in replies])
        labels = clusters_of_rows(found, shrunk(found.prototypes), self.n_clusters, Recipe(), self.rng)
        table = rows_of_prototypes(found, labels, self.n_clusters)
        sums = table.T @ found.prototypes.means
        if former is None:
            former = np.zeros_like(sums)
        return labels, centers_of(sums, table.sum(axis=0), former)

    # Bounds and budget.

    @property
    def n_protocol_rounds(self) -> int:
        """The moments (two), the averaged layers, the graphs, the labels, and the encoders."""
        return 2 + max(1, self.n_average_rounds) + 1 + self.n_rounds + 2

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

    @property
    def _training(self) -> dict[str, Scalar]:
        return {"n_steps": self.n_local_steps, "random_state": int(self.rng.integers(2**31))}

    def _arguments(self) -> dict[str, Scalar]:
        arguments: dict[str, Scalar] = {
            "n_clusters": self.n_clusters,
            "n_neighbors": self.n_neighbors,
            "n_prototypes": self.n_prototypes or 0,
            "random_state": int(self.rng.integers(2**31)),
        }
        if self.epsilon is None:
            return arguments
        n_releases = 2 * (self.n_rounds + 1)
        (multiplier,) = calibrate((Share("laplace", 1.0, n_releases),), self.epsilon, self.delta)
        bound = 2.0 * self.n_latent if self.max_l1_norm is None else float(self.max_l1_norm)
        return arguments | {"epsilon": 1.0 / multiplier, "max_l1_norm": bound}


# The client half.


@dataclass(frozen=True)
class _Wanted:
    """What a client is asked for, in every round."""

    n_clusters: int
    n_neighbors: int
    n_prototypes: int
    random_state: int
    epsilon: float = math.inf
    max_l1_norm: float = math.inf


class SPPFGCPlusClient(MomentsClient, LabelsClient):
    """The client half: it trains its VAE, and sends graph and prototypes of the codes."""

    @answers(
        "trained_layers",
        sends=(
            *(
                f"sum of the {part}'s {what}"
                for part in ("encoder", "decoder")
                for what in ("first weights", "first biases", "last weights", "last biases")
            ),
            Sent("number of rows", counts_rows=True),
        ),
    )
    def trained_layers(
        self, origin: Floats, scale: Floats, *layers: Floats, n_steps: int, random_state: int
    ) -> list[Floats]:
        """Return the layers after some steps on the client's rows, by how many rows it has (McMahan et al. 2017)."""
        trained = self._train(self._scaled(origin, scale), layers, n_steps, random_state)
        n_rows = float(len(self.rows))
        return [*(layer * n_rows for layer in trained.layers), np.array(n_rows)]

    @answers("train_alone")
    def train_alone(self, origin: Floats, scale: Floats, *layers: Floats, n_steps: int, random_state: int) -> None:
        """Train the layers on the client's rows, and keep them."""
        self.remember(OWN_LAYERS, self._train(self._scaled(origin, scale), layers, n_steps, random_state).layers)

    @answers(
        "encoded_graph",
        sends=(
            *GRAPH,
            "means of the prototypes of the client's codes",
            "covariances of the prototypes of the client's codes",
            "sizes of the prototypes of the client's codes",
        ),
    )
    def encoded_graph(self, origin: Floats, scale: Floats, *layers: Floats, **wanted: Any) -> tuple[Array, ...]:
        """Return E^p and P_k of the codes: by the layers that came, which the client keeps, or by its own."""
        if layers:
            self.remember(OWN_LAYERS, layers)
        return self._graph(codes_of(self._scaled(origin, scale), self._own_layers()), _Wanted(**wanted))

    @answers(
        "tuned_graph",
        sends=(
            *GRAPH,
            "means of the prototypes of the client's codes",
            "covariances of the prototypes of the client's codes",
            "sizes of the prototypes of the client's codes",
            "losses of the client's training",
        ),
    )
    def tuned_graph(
        self, origin: Floats, scale: Floats, centers: Floats, *, n_steps: int, weight: float, **wanted: Any
    ) -> tuple[Array, ...]:
        """Train towards P_g (Algorithm 2, line 7), and return E^p and P_k of the codes (lines 8 to 11)."""
        rows = self._scaled(origin, scale)
        trained = self._train(
            rows, self._own_layers(), n_steps, int(wanted["random_state"]), centers=centers, weight=weight
        )
        self.remember(OWN_LAYERS, trained.layers)
        losses = np.array([np.mean(trained.reconstruction), np.mean(trained.clustering)])
        return (*self._graph(codes_of(rows, trained.layers), _Wanted(**wanted)), losses)

    @answers(
        "own_encoder",
        sends=(
            *(f"sum of the encoder's {what}" for what in ("weights", "biases", "code weights", "code biases")),
            Sent("number of rows", counts_rows=True),
        ),
    )
    def own_encoder(self) -> list[Floats]:
        """Return the layers that make codes of rows, by how many rows the client has."""
        n_rows = float(len(self.rows))
        return [*(layer * n_rows for layer in encoder_of(self._own_layers())), np.array(n_rows)]

    def _scaled(self, origin: Floats, scale: Floats) -> Floats:
        return (self.rows - origin) / float(scale)

    def _own_layers(self) -> list[Floats]:
        kept = self.recall(OWN_LAYERS)
        if kept is None:
            raise MissedRoundError(f"client {self.name} has no VAE yet; it missed the round that makes it.")
        return kept

    def _train(self, rows: Floats, layers: Sequence[Floats], n_steps: int, random_state: int, **towards: Any) -> Any:
        seed = int(self.generator(random_state).integers(2**31))
        return trained_vae(rows, layers, n_steps=n_steps, random_state=seed, **towards)

    def _graph(self, codes: Floats, wanted: _Wanted) -> tuple[Array, ...]:
        codes = clip_rows(codes, wanted.max_l1_norm, norm=1)
        graph = own_graph(codes, wanted.n_clusters, wanted.n_neighbors, "spectral")
        n_atoms = n_atoms_of(len(codes), wanted.n_clusters, wanted.n_prototypes)
        labels = atoms(codes, graph, n_atoms, self.generator(wanted.random_state))
        found = prototypes_of(codes, labels, diagonal=codes.shape[1] > FULL_COLUMNS)
        if math.isfinite(wanted.epsilon):
            found = noisy_as_in_the_paper(found, wanted.epsilon, wanted.max_l1_norm, self.noise_source)
        return (*sent_graph(labels, graph, wanted.n_neighbors), found.means, found.covariances, found.counts)


SPPFGCPlus.client_type = SPPFGCPlusClient
