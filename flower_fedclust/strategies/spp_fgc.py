"""SPP-FGC: clusters from the neighbour graphs of the clients' rows and Gaussian prototypes, in one shot.

He, Wang, Tang, Wang, Wang and Nie, "Towards federated clustering: a client-wise private graph aggregation framework",
Algorithm 1. E^p is a client's structural graph, P_k are its prototypes, E* is the global graph, and S the graph nearest
to it with as many components as clusters.
"""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.models import PrototypeModel
from flower_fedclust.numerics.checks import (
    check_budget_split,
    check_choice,
    check_integer,
    check_max_l1_norm,
    warn_of_empty_clusters,
)
from flower_fedclust.numerics.prototypes import Prototypes, shrunk
from flower_fedclust.privacy.accounting import calibrate
from flower_fedclust.privacy.releases import Release
from flower_fedclust.protocol import Gather, Outcome, Protocol, ProtocolStrategy
from flower_fedclust.protocol.rounds import Reply, Round
from flower_fedclust.steps.cells import FULL_COLUMNS, CellNoise, find_cells
from flower_fedclust.steps.global_clusters import Recipe, clusters_of_rows, rows_of_prototypes
from flower_fedclust.steps.prototypes import GraphClient, gathered, prototypes_of_cells
from flower_fedclust.steps.spectral import LabelsClient, send_labels

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

SOLVERS = ("spectral", "clr")
PROTOTYPES = ("atoms", "gmm")
AFFINITIES = ("jeffreys", "kl")
ASSIGNMENTS = ("eigenvectors", "components", "rows-of-s")
CALIBRATIONS = ("accountant", "paper")

#: The parts of epsilon for origin, radius, directions, centers, and prototypes.
BUDGET_SPLIT = (0.1, 0.05, 0.1, 0.25, 0.5)

#: Of the prototypes' release, the parts for counts, sums and products.
PROTOTYPE_PARTS = (0.2, 0.5, 0.3)


class SPPFGC(ProtocolStrategy):
    """Clusters from graphs: each client sends the neighbour graph of its rows and Gaussian prototypes of them.

    Each client joins each row to its nearest rows (E^p, equations 3 to 6), divides its rows into prototypes, and sends
    the graph, the prototype of each row, and the prototypes' means, covariances and counts. The server joins rows of
    different clients as far as their prototypes are alike (E*, equations 9 and 10), clusters this graph, and sends each
    client the clusters of its rows. New rows go to the cluster of the likeliest prototype. One round, and one for the
    labels.

    The paper's own recipe (``solver="clr", prototypes="gmm", affinity="kl", assignment="rows-of-s"``; by name:
    "spp-fgc-printed") does not do what it promises: on Iris with two clients it is right for 0.7 of the rows. By
    default this does what was found to work, at each place where the paper leaves a choice, or is wrong:

    - no rank constraint in the clients; more, smaller prototypes ("atoms") by spectral clustering of E^p;
    - Jeffreys' divergence in place of KL, which is not symmetric; measured by what is usual between clients, not by 1;
      only the nearest prototypes are joined; and a row gives rows of other clients half of what it gives its own,
      whatever their number;
    - the clusters are those of the normalised eigenvectors of E*, not a k-means of the rows of S.

    The graph and the prototype of each row leave the client as they are, in the paper as here. So there is no epsilon
    for the whole, with any noise on the prototypes; see :class:`SPPFGCSums` for what can be covered.

    Parameters
    ----------
    n_clusters : int
        C.
    n_neighbors : int, default=10
        k at most; a client with few rows takes half of its rows over n_clusters, but 3 at least.
    n_prototypes : int, optional
        Of each client, at most half of its rows; by default 5 a cluster, and one for 25 rows where that is more, up to
        100. With epsilon, of all clients together, which
        then share the centers; by default as in :class:`SPPFGCSums`.
    covariance : "full" or "diagonal", optional
        Of the prototypes; by default full for up to 64 columns.
    solver : "spectral" or "clr", default="spectral"
        "clr" finds E^p and S under the constraint that they have n_clusters components (equations 5, 11 and 32), by
        alternating steps. S has an entry for every two rows of all clients: for comparison, at small size.
    prototypes : "atoms" or "gmm", default="atoms"
        "gmm" is the paper's Gaussian mixture of n_clusters components (Algorithm 1, line 6).
    affinity : "jeffreys" or "kl", default="jeffreys"
        "kl" is equation (10) as it is printed.
    assignment : "eigenvectors", "components" or "rows-of-s", optional
        "eigenvectors" of E*, the default of the solver "spectral"; the "components" of S, if there are n_clusters, and
        else a k-means of its eigenvectors, the default of "clr"; or a k-means of the rows of S (Algorithm 1, line 15).
    private_graph : bool, default=True
        Without, rows of one client are joined by their prototypes, too (Table 3, "w/o PSG").
    global_graph : bool, default=True
        Without, each client's graph is clustered by itself, and the clusters by their means (Table 3, "w/o GSG").
        Without both, the prototypes are clustered by their means.
    epsilon : float, optional
        The privacy budget of the prototypes, and of nothing else. Needs ``max_l1_norm``.
    delta : float, default=1e-6
    calibration : "accountant" or "paper", default="accountant"
        "accountant": a row belongs to the nearest of centers that noisy sums give, and the sums, products and counts of
        each client's rows in each cell carry Laplace noise; with the centers, they are (epsilon, delta)-private against
        the server. "paper": equation (8) with the sensitivities of appendix C.II and epsilon for each of means and
        covariances, which proves nothing: they hold for clusters that do not change with a row.
    max_l1_norm : float, optional
        R: rows are clipped to this L1 norm (1 in the paper), for the prototypes. Public; not taken from data.
    budget_split : tuple of five float, optional
        With "accountant", the parts of epsilon for origin, radius, directions, centers (as in :class:`SPPFGCSums`) and
        prototypes; by default (0.1, 0.05, 0.1, 0.25, 0.5).
    min_clients : int, optional
        How many clients have to answer a round; 2 by default.
    random_state : int, optional
        For the prototypes and the restarts of k-means.
    federated_evaluation : bool, default=False
        Whether the clients count their classes and their cost after the run.

    References
    ----------
    He, Wang, Tang, Wang, Wang and Nie, "Towards federated clustering: a client-wise private graph aggregation
    framework". Nie, Wang, Jordan and Huang, "The constrained Laplacian rank algorithm for graph-based clustering", AAAI
    2016.
    """

    privacy_unit = "record"
    #: The server is who the noise protects from.
    noise = "local"

    def __init__(
        self,
        n_clusters: int,
        *,
        n_neighbors: int = 10,
        n_prototypes: int | None = None,
        covariance: str | None = None,
        solver: str = "spectral",
        prototypes: str = "atoms",
        affinity: str = "jeffreys",
        assignment: str | None = None,
        private_graph: bool = True,
        global_graph: bool = True,
        epsilon: float | None = None,
        delta: float = 1e-6,
        calibration: str = "accountant",
        max_l1_norm: float | None = None,
        budget_split: tuple[float, float, float, float, float] | None = None,
        min_clients: int | None = None,
        random_state: int | None = None,
        federated_evaluation: bool = False,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_neighbors = n_neighbors
        self.n_prototypes = n_prototypes
        self.covariance = covariance
        self.solver = solver
        self.prototypes = prototypes
        self.affinity = affinity
        self.assignment = assignment
        self.private_graph = private_graph
        self.global_graph = global_graph
        self.epsilon = epsilon
        self.delta = delta
        self.calibration = calibration
        self.max_l1_norm = max_l1_norm
        self.budget_split = budget_split
        self.min_clients = min_clients
        self.random_state = random_state
        self.federated_evaluation = federated_evaluation
        self.check_parameters()

    @property
    def name(self) -> str:  # type: ignore[override]
        """The printed recipe has a name of its own."""
        printed = (self.solver, self.prototypes, self.affinity, self._assignment) == ("clr", "gmm", "kl", "rows-of-s")
        return "spp-fgc-printed" if printed else "spp-fgc"

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first parameter which cannot be right."""
        super().check_parameters()
        check_integer("n_clusters", self.n_clusters, at_least=2)
        check_integer("n_neighbors", self.n_neighbors, at_least=1)
        if self.n_prototypes is not None:
            check_integer("n_prototypes", self.n_prototypes, at_least=1)
        choices = {
            "solver": SOLVERS,
            "prototypes": PROTOTYPES,
            "affinity": AFFINITIES,
            "calibration": CALIBRATIONS,
        }
        for parameter, allowed in choices.items():
            check_choice(parameter, getattr(self, parameter), allowed)
        if self.covariance is not None:
            check_choice("covariance", self.covariance, ("full", "diagonal"))
        if self.assignment is not None:
            of_solver = ASSIGNMENTS[:1] if self.solver == "spectral" else ASSIGNMENTS[1:]
            check_choice("assignment", self.assignment, of_solver)
        if not (self.private_graph and self.global_graph) and self.solver == "clr":
            raise ValueError("solver is 'clr', which needs both graphs; leave private_graph and global_graph True.")
        check_max_l1_norm(self.max_l1_norm, self.epsilon)
        if self._has_shared_cells and self.prototypes == "gmm":
            raise ValueError(
                "prototypes is 'gmm' and calibration 'accountant'; a mixture that a client fits to its rows has no "
                "sensitivity that could be stated. Take prototypes='atoms', or calibration='paper', which promises "
                "nothing."
            )
        if self.budget_split is not None:
            check_budget_split(self.budget_split, 5, "the origin, radius, directions, centers and prototypes")

    # The server half.

    def protocol(self) -> Protocol:
        """Run Algorithm 1."""
        # Lines 3 to 9: the clients' graphs and prototypes.
        if self._has_shared_cells:
            replies, deviation = yield from self._cell_prototypes()
        else:
            replies = yield Gather("structural_graph", arguments=self._arguments())
            deviation = None
        found = gathered(replies)
        # What noise has blurred is not as certain as its count says.
        prototypes = shrunk(found.prototypes, noise_deviation=deviation)
        # Lines 11 to 15.
        labels = clusters_of_rows(found, prototypes, self.n_clusters, self._recipe, self.rng)
        warn_of_empty_clusters(self.name, np.bincount(labels, minlength=self.n_clusters))
        by_client = yield from send_labels(labels, replies)
        return Outcome(self._model(prototypes, rows_of_prototypes(found, labels, self.n_clusters)), by_client)

    def _model(self, prototypes: Prototypes, table: Floats) -> PrototypeModel:
        """Return the model in which each prototype is in the cluster of most of its rows."""
        kept = table.sum(axis=1) > 0
        return PrototypeModel(
            prototypes.means[kept],
            table[kept].argmax(axis=1),
            self.n_clusters,
            covariances=prototypes.covariances[kept],
            counts=prototypes.counts[kept],
        )

    def _cell_prototypes(self) -> Generator[Round, list[Reply], tuple[list[Reply], Floats]]:
        """Gather graphs, and prototypes of cells that all clients share, with noise that is private by itself."""
        assert self.epsilon is not None
        noise = self._calibrated()
        n_columns = self._current.n_columns
        cells = yield from find_cells(
            self.n_clusters, self.n_prototypes, n_columns, noise, self.rng, epsilon=self.epsilon, n_lloyd_rounds=1
        )
        radius = cells.frame.radius
        multipliers = tuple(noise.last / part for part in PROTOTYPE_PARTS)
        of_counts, of_sums, of_products = multipliers
        clipped = "the client clips every row to this L1 norm"
        releases = [
            None,
            None,
            None,
            Release("laplace", radius, of_sums, clipped),
            Release("laplace", radius**2, of_products, "products of a row's entries; the client clips the row"),
            Release("laplace", 1.0, of_counts, "a row is in one cell"),
        ]
        arguments = self._arguments() | cells.frame.arguments
        for unused in ("n_prototypes", "prototypes", "random_state", "epsilon", "max_l1_norm"):
            arguments.pop(unused, None)
        replies = yield Gather(
            "cell_prototypes", [cells.centers, *cells.frame.arrays], arguments=arguments, releases=releases
        )
        changed = [
            prototypes_of_cells(reply, cells.frame, cells.centers, (of_sums, of_products, of_counts))
            for reply in replies
        ]
        return [reply for reply, _ in changed], np.concatenate([deviation for _, deviation in changed])

    # Bounds and budget.

    @property
    def n_protocol_rounds(self) -> int:
        """The graphs and the labels; and with centers from noisy sums, four rounds for these."""
        return 2 + (4 if self._has_shared_cells else 0)

    def privacy_notes(self) -> list[str]:
        """Add what noise on the prototypes does not cover."""
        notes = super().privacy_notes()
        notes.append(
            "The graph says of each row which rows of its client are nearest to it, and the prototype of each row says "
            "about where it lies: no noise covers either, so that nothing is promised for the run as a whole."
        )
        if self.epsilon is not None and self.calibration == "paper":
            notes.append(
                "The prototypes carry Laplace noise as the paper scales it, which proves nothing: one row can move "
                "others to another cluster, the size of the smallest cluster is taken from the rows, and the "
                "covariance is bounded in the Frobenius norm where Laplace noise needs the L1 norm. They are listed as "
                "unprotected."
            )
        return notes

    @property
    def _has_shared_cells(self) -> bool:
        return self.epsilon is not None and self.calibration == "accountant"

    @property
    def _assignment(self) -> str:
        if self.assignment is not None:
            return self.assignment
        return "eigenvectors" if self.solver == "spectral" else "components"

    @property
    def _recipe(self) -> Recipe:
        return Recipe(self.solver, self.affinity, self._assignment, self.private_graph, self.global_graph)

    def _arguments(self) -> dict[str, bool | int | float | str]:
        n_columns = self._current.n_columns
        covariance = self.covariance or ("full" if n_columns <= FULL_COLUMNS else "diagonal")
        return {
            "n_clusters": self.n_clusters,
            "n_neighbors": self.n_neighbors,
            "n_prototypes": self.n_prototypes or 0,
            "solver": self.solver,
            "prototypes": self.prototypes,
            "diagonal": covariance == "diagonal",
            "random_state": int(self.rng.integers(2**31)),
            "epsilon": math.inf if self.epsilon is None else self.epsilon,
            "max_l1_norm": math.inf if self.max_l1_norm is None else self.max_l1_norm,
        }

    def _calibrated(self) -> CellNoise:
        """Return the noise multipliers with which centers and prototypes together are (epsilon, delta)-private."""
        assert self.epsilon is not None
        assert self.max_l1_norm is not None
        shares = CellNoise.shares(self.budget_split or BUDGET_SPLIT, 1)
        return CellNoise.of(calibrate(shares, self.epsilon, self.delta), self.max_l1_norm, self.noise_of_sum)


# The client half.


class SPPFGCClient(LabelsClient, GraphClient):
    """The client half: graph and prototypes, and the labels that come back."""


SPPFGC.client_type = SPPFGCClient
