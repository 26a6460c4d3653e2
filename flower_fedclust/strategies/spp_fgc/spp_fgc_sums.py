"""SPP-FGC by sums alone: the graph is one of prototypes, on which rows vote, and nothing else leaves a client."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import replace

import numpy as np

from flower_fedclust.engine import Entry, Outcome, Protocol, Sum, parameter
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Round, Total
from flower_fedclust.models import PrototypeModel
from flower_fedclust.numerics.checks import check_integer, warn_of_empty_clusters
from flower_fedclust.numerics.votes import vote_embedding, vote_graph
from flower_fedclust.strategies.common.spectral import cluster_embedding
from flower_fedclust.strategies.spp_fgc.cells import (
    SUMS_PART,
    Cells,
    CellsClient,
    CellsStrategy,
    laplace_part,
    moved_centers,
    weight_onto_grid,
)
from flower_fedclust.strategies.spp_fgc.spp_fgc import PAPER

#: Lloyd steps without noise, ...
LLOYD_ROUNDS = 10

#: ... and with it, where there is one, and another for each so much of epsilon, up to a number.
EPSILON_OF_A_ROUND, MOST_NOISY_LLOYD_ROUNDS = 30.0, 3


class SPPFGCSums(CellsStrategy):
    """SPP-FGC in which the server gets nothing but sums over the clients, each of which can take noise.

    The paper's clients send a graph of their rows, which no noise covers. Here the prototypes are common to all
    clients: centers that come from noisy sums, each of which stands for the rows nearest to it. In place of the graph,
    each row votes for the pair of its two nearest centers, so that centers between which rows lie are joined. The
    prototypes are clustered by that graph, spectrally, and a row has the cluster of its nearest prototype. With
    ``epsilon`` the whole run is covered, and it does not matter how the rows are distributed over the clients.

    Parameters
    ----------
    n_lloyd_rounds : int, optional
        Lloyd steps that move the prototypes; by default 10; with epsilon 1, 2 from 30 on, and 3 from 60.

    Notes
    -----
    Of the budget the origin, the directions and the votes have a fifth each, the radius has a tenth, and the centers
    have three tenths. With one prototype a cluster there is nothing to vote on, and another Lloyd step has that part.

    References
    ----------
    He, Wang, Tang, Wang, Wang and Nie, "Towards federated clustering: a client-wise private graph aggregation
    framework", whose upload this replaces.
    """

    entries = (
        Entry(
            "spp-fgc-sums",
            "clusters of any form from sums alone: rows vote for pairs of prototypes; private with epsilon",
            f"{PAPER}, with sums in place of graphs",
            finds="any form",
        ),
    )
    client_type = CellsClient

    n_lloyd_rounds: int | None = parameter(None, at_least=1)

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first parameter which cannot be right."""
        super().check_parameters()
        if self.n_prototypes is not None:
            check_integer("n_prototypes", self.n_prototypes, at_least=self.n_clusters)

    # The server half.

    def protocol(self) -> Protocol:
        """Find the prototypes, let the rows vote, and cluster the prototypes."""
        # In place of Algorithm 1's lines 5 to 7: prototypes that all clients share.
        cells = yield from self.find_cells(self._n_lloyd_rounds)
        if len(cells) == self.n_clusters:
            cells, clusters = (yield from self._last_step(cells)), np.arange(self.n_clusters)
        else:
            # In place of lines 8 to 14: a graph of the prototypes.
            (votes,) = yield Sum(CellsClient.votes.asked(cells.centers, frame=cells.frame), parts=["votes"])
            graph = vote_graph(votes, cells.centers, self.noise_scale("votes"))
            # In place of line 15.
            _, clusters = cluster_embedding(vote_embedding(graph, self.n_clusters), self.n_clusters, self.rng)
        warn_of_empty_clusters(self.name, np.bincount(clusters, minlength=self.n_clusters))
        means = cells.frame.leave(cells.centers)
        return Outcome(PrototypeModel(means, clusters, self.n_clusters, counts=cells.counts))

    def _last_step(self, cells: Cells) -> Generator[Round, Total, Cells]:
        """Return cells after a Lloyd step, which takes the place of the votes where there is nothing to vote on.

        Which of the two it is may depend on noisy counts, so that both must cost the same: one array, one release. A
        row adds its entries, of L1 norm R at most, and a weight w. With ``w = R (1 - p) / p`` that is ``R / p`` in all,
        and the noise is as large as if the sums had the part p of epsilon, and the counts the rest. The weight is a
        number of units of the grid that the rows are on.
        """
        radius = cells.frame.radius
        weight = weight_onto_grid(radius * (1.0 - SUMS_PART) / SUMS_PART, radius)
        question = CellsClient.weighted_cell_sums.asked(cells.centers, frame=cells.frame, weight=weight)
        (found,) = received = yield Sum(question, parts=["votes"])
        sums, counts = found[:, :-1], found[:, -1] / weight
        scale = received.noise[0] / math.sqrt(2.0) / weight
        centers = moved_centers(sums, counts, cells.centers, cells.frame, scale)
        return replace(cells, centers=centers, counts=np.maximum(counts, 1.0))

    # Bounds and budget.

    @property
    def n_protocol_rounds(self) -> int:
        """The frame, the directions, the Lloyd steps, and the votes."""
        return self.n_frame_rounds + 1 + self._n_lloyd_rounds + 1

    @property
    def _n_lloyd_rounds(self) -> int:
        if self.n_lloyd_rounds is not None:
            return self.n_lloyd_rounds
        if self.epsilon is None:
            return LLOYD_ROUNDS
        return min(MOST_NOISY_LLOYD_ROUNDS, 1 + int(self.epsilon / EPSILON_OF_A_ROUND))

    def parts(self) -> Mapping[str, Part]:
        """Return those of the cells, and that of the votes, or of the Lloyd step in their place."""
        cells = self.cell_parts(
            origin=0.2, distances=0.1, second_moment=0.2, lloyd=0.3, n_lloyd_rounds=self._n_lloyd_rounds
        )
        return cells | {"votes": laplace_part((CellsClient.votes, CellsClient.weighted_cell_sums), 0.2)}
