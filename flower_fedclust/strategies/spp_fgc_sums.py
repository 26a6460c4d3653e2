"""SPP-FGC by sums alone: the graph is one of prototypes, on which rows vote, and nothing else leaves a client."""

from __future__ import annotations

import math

import numpy as np

from flower_fedclust.models import PrototypeModel
from flower_fedclust.numerics.checks import check_budget_split, check_integer, check_max_l1_norm, warn_of_empty_clusters
from flower_fedclust.numerics.votes import vote_embedding, vote_graph
from flower_fedclust.privacy.accounting import calibrate
from flower_fedclust.privacy.releases import NoisePlace
from flower_fedclust.protocol import Outcome, Protocol, ProtocolStrategy
from flower_fedclust.steps.cells import CellNoise, CellsClient, ask_votes, find_cells, refine
from flower_fedclust.steps.spectral import cluster_embedding

#: The parts of epsilon for the origin, the radius, the directions, the centers, and the votes.
BUDGET_SPLIT = (0.2, 0.1, 0.2, 0.3, 0.2)

#: Lloyd steps without noise; and with it at most, one and another for each 30 of epsilon.
LLOYD_ROUNDS = 10
NOISY_LLOYD_ROUNDS = 3
EPSILON_OF_A_ROUND = 30.0


class SPPFGCSums(ProtocolStrategy):
    """SPP-FGC in which the server gets nothing but sums over the clients, each of which can take noise.

    The paper's clients send a graph of their rows, which no noise covers. Here the prototypes are common to all
    clients: centers that come from noisy sums, each of which stands for the rows nearest to it. In place of the graph,
    each row votes for the pair of its two nearest centers, so that centers between which rows lie are joined. The
    prototypes are clustered by that graph, spectrally, and a row has the cluster of its nearest prototype. With
    ``epsilon`` the whole run is covered, and it does not matter how the rows are distributed over the clients.

    First the origin, the radius and the directions of the rows are found, from noisy sums: Laplace noise is as large as
    the longest row that is allowed, and the rows of most data lie in a ball that is far smaller than what can be said
    beforehand.

    Parameters
    ----------
    n_clusters : int
    n_prototypes : int, optional
        Of all clients together. By default 8 a cluster, or without noise one for 25 rows where that is more, up to 200;
        but no more than one for 16 rows, and with epsilon ``n epsilon / (100 d)`` for n rows of d columns; and one a
        cluster where that gives fewer than 2.5.
    n_lloyd_rounds : int, optional
        Lloyd steps that move the prototypes; by default 10; with epsilon 1, 2 from 30 on, and 3 from 60.
    epsilon : float, optional
        The total privacy budget. Needs ``max_l1_norm``.
    delta : float, default=1e-6
    noise : "server", "clients" or "local", default="server"
        Who adds the noise.
    max_l1_norm : float, optional
        Rows are clipped to this L1 norm, the sum of their absolute values. Public; not taken from data. That it is
        large costs little: it bounds the first two releases only.
    budget_split : tuple of five float, optional
        The parts of epsilon for the origin, the radius, the directions, the centers and the votes; by default (0.2,
        0.1, 0.2, 0.3, 0.2). With one prototype a cluster there is nothing to vote on, and a Lloyd step has the last.
    min_clients, random_state, federated_evaluation
        As in :class:`FedSC`. With noise="clients" all clients have to answer unless min_clients is given, and then any
        min_clients of them bring all the noise.

    References
    ----------
    He, Wang, Tang, Wang, Wang and Nie, "Towards federated clustering: a client-wise private graph aggregation
    framework", whose upload this replaces.
    """

    name = "spp-fgc-sums"
    client_type = CellsClient
    privacy_unit = "record"

    def __init__(
        self,
        n_clusters: int,
        *,
        n_prototypes: int | None = None,
        n_lloyd_rounds: int | None = None,
        epsilon: float | None = None,
        delta: float = 1e-6,
        noise: NoisePlace = "server",
        max_l1_norm: float | None = None,
        budget_split: tuple[float, float, float, float, float] | None = None,
        min_clients: int | None = None,
        random_state: int | None = None,
        federated_evaluation: bool = False,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_prototypes = n_prototypes
        self.n_lloyd_rounds = n_lloyd_rounds
        self.epsilon = epsilon
        self.delta = delta
        self.noise = noise
        self.max_l1_norm = max_l1_norm
        self.budget_split = budget_split
        self.min_clients = min_clients
        self.random_state = random_state
        self.federated_evaluation = federated_evaluation
        self.check_parameters()

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first parameter which cannot be right."""
        super().check_parameters()
        check_integer("n_clusters", self.n_clusters, at_least=2)
        if self.n_prototypes is not None:
            check_integer("n_prototypes", self.n_prototypes, at_least=self.n_clusters)
        if self.n_lloyd_rounds is not None:
            check_integer("n_lloyd_rounds", self.n_lloyd_rounds, at_least=1)
        check_max_l1_norm(self.max_l1_norm, self.epsilon)
        if self.budget_split is not None:
            check_budget_split(
                self.budget_split, 5, "the origin, the radius, the directions, the centers and the votes"
            )

    # The server half.

    def protocol(self) -> Protocol:
        """Find the prototypes, let the rows vote, and cluster the prototypes."""
        noise = self._calibrated()
        cells = yield from find_cells(
            self.n_clusters,
            self.n_prototypes,
            self._current.n_columns,
            noise,
            self.rng,
            epsilon=self.epsilon,
            n_lloyd_rounds=self._n_lloyd_rounds,
        )
        if len(cells) == self.n_clusters:
            cells = yield from refine(cells, noise)
            clusters = np.arange(self.n_clusters)
        else:
            (votes,) = yield ask_votes(cells, noise)
            graph = vote_graph(votes, cells.centers, noise.in_sum * noise.last)
            embedding = vote_embedding(graph, self.n_clusters)
            _, clusters = cluster_embedding(embedding, self.n_clusters, self.rng)
        warn_of_empty_clusters(self.name, np.bincount(clusters, minlength=self.n_clusters))
        means = cells.frame.leave(cells.centers)
        return Outcome(PrototypeModel(means, clusters, self.n_clusters, counts=cells.counts))

    # Bounds and budget.

    @property
    def n_protocol_rounds(self) -> int:
        """The frame (one, or two with noise), the directions, the Lloyd steps, and the votes."""
        return (1 if self.epsilon is None else 2) + 1 + self._n_lloyd_rounds + 1

    @property
    def _n_lloyd_rounds(self) -> int:
        if self.n_lloyd_rounds is not None:
            return self.n_lloyd_rounds
        if self.epsilon is None:
            return LLOYD_ROUNDS
        return min(NOISY_LLOYD_ROUNDS, 1 + int(self.epsilon / EPSILON_OF_A_ROUND))

    def _calibrated(self) -> CellNoise:
        """Return the noise multipliers with which the whole run is (epsilon, delta)-private."""
        if self.epsilon is None:
            return CellNoise(max_l1_norm=math.inf if self.max_l1_norm is None else self.max_l1_norm)
        assert self.max_l1_norm is not None
        shares = CellNoise.shares(self.budget_split or BUDGET_SPLIT, self._n_lloyd_rounds)
        return CellNoise.of(calibrate(shares, self.epsilon, self.delta), self.max_l1_norm, self.noise_of_sum)
