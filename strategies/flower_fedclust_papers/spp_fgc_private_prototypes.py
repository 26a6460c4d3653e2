"""SPP-FGC in which the clients' prototypes are private, and their graphs are not."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import Entry, Gather, Reply, Sent, answers, parameter
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Array, Round
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.rows import Frame
from flower_fedclust.exact.sums import triangle_to_symmetric
from flower_fedclust.exact.terms import Bound, count, products, squares, total
from flower_fedclust.numerics.checks import LARGEST_NORM, SMALLEST_NORM
from flower_fedclust.numerics.copies import copies_of
from flower_fedclust.numerics.kmeans import nearest_center
from flower_fedclust.numerics.prototypes import nearest_covariances
from flower_fedclust.numerics.structural_graph import client_graph
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.releases import NoisePlace
from flower_fedclust.strategies.common.spectral import LabelsClient
from flower_fedclust.strategies.spp_fgc.spp_fgc import (
    GRAPH,
    StructuralGraphStrategy,
    Uploads,
    are_indices,
    check_fits,
    read_uploads,
    sent_graph,
)
from flower_fedclust.strategies.spp_fgc.spp_fgc_sums import (
    PAPER,
    Cells,
    CellsClient,
    CellsStrategy,
    laplace_part,
)

Floats = NDArray[np.float64]


class SPPFGCPrivatePrototypes(CellsStrategy, StructuralGraphStrategy):
    """SPP-FGC in which the prototypes, and nothing else, are private against the server.

    The same as :class:`~flower_fedclust.SPPFGC`, except for the prototypes. Noisy sums find centers that all clients
    share, and the rows nearest to a center are a cell. Each client sends the count, the sum and the products of its
    rows in each cell, with Laplace noise, and the prototypes follow from these. Prototypes and centers together are
    (epsilon, delta)-private. The graph and the prototype of each row still leave the client without noise, so the run
    as a whole has no epsilon. :class:`~flower_fedclust.SPPFGCSums` has one.

    Parameters
    ----------
    n_prototypes : int, optional
        The number of cells, which all clients share; by default as in :class:`~flower_fedclust.SPPFGCSums`.
    epsilon : float, default=1.0
        The privacy budget of the prototypes, and of nothing else.
    max_l1_norm : float
        For the prototypes, rows are clipped to this L1 norm, the sum of their absolute values. It is public, and must
        not be computed from the data.

    References
    ----------
    He, Wang, Tang, Wang, Wang and Nie, "Towards federated clustering: a client-wise private graph aggregation
    framework", whose prototypes these replace.
    """

    entries = (
        Entry(
            "spp-fgc-private-prototypes",
            "SPP-FGC whose prototypes are private; the graphs are sent as they are",
            f"{PAPER}, Algorithm 1, with shared cells for prototypes",
            example={"max_l1_norm": 1.0},
        ),
    )
    #: The run promises nothing, because no guarantee covers the graphs.
    promises = ()
    #: The guarantee of the prototypes is for adding or removing a row; what is sent about each row is not covered.
    relation = "add-or-remove"

    epsilon: float = parameter(1.0, above=0, at_most=1000)
    max_l1_norm: float = parameter(at_least=SMALLEST_NORM, at_most=LARGEST_NORM)
    #: The noise protects against the server.
    noise: NoisePlace = dataclasses.field(default="local", init=False)

    def _client_side(self) -> Generator[Round, Any, Uploads]:
        """Find cells, then gather the graphs and the noisy prototypes of these cells."""
        cells = yield from self.find_cells(n_lloyd_rounds=1)
        radius = cells.frame.radius
        replies = yield Gather(
            SPPFGCPrivatePrototypesClient.cell_prototypes.asked(
                cells.centers,
                *cells.frame.arrays,
                n_clusters=self.n_clusters,
                n_neighbors=self.n_neighbors,
                diagonal=self._is_diagonal,
            ),
            parts=[None, None, None, "prototype_sums", "prototype_products", "prototype_counts"],
        )
        # The noise in each client's own reply.
        multipliers = self.frozen_plan.multipliers
        of_products = math.sqrt(2.0) * multipliers["prototype_products"] * radius**2
        changed = [
            prototypes_of_cells(reply, cells, of_products, multipliers["prototype_counts"])
            for reply in replies
        ]
        # Because of the noise, a covariance is less certain than its count suggests.
        deviations = np.concatenate([deviation for _, deviation in changed])
        return read_uploads([reply for reply, _ in changed], self.n_clusters, deviations)

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds: for the frame, the directions, a Lloyd step, the graphs and the labels."""
        return self.n_frame_rounds + 2 + super().n_protocol_rounds

    def parts(self) -> Mapping[str, Part]:
        """Return half of the budget for the cells, and half for the prototypes."""
        answer = SPPFGCPrivatePrototypesClient.cell_prototypes
        return {
            **self.cell_parts(
                origin=0.1, distances=0.05, second_moment=0.1, lloyd=0.25, n_lloyd_rounds=1
            ),
            "prototype_sums": laplace_part(answer, 0.25),
            "prototype_products": laplace_part(answer, 0.15),
            "prototype_counts": laplace_part(answer, 0.1),
        }


def prototypes_of_cells(
    reply: Reply, cells: Cells, deviation: float, scale: float
) -> tuple[Reply, Floats]:
    """Convert a client's reply to ``cell_prototypes`` to the form of ``structural_graph``.

    Also returns the standard deviation of the noise in each covariance. Cells whose noisy count is nearly 0 are
    dropped, and their rows go to the nearest remaining cell.
    ``deviation`` is the standard deviation of the products' noise, and ``scale`` the scale of the counts' noise.
    """
    own_prototypes, neighbors, weights, sums, moments, noisy_counts = reply.arrays
    centers, frame = cells.centers, cells.frame
    n_cells, n_columns = centers.shape
    widths = (n_columns, n_columns * (n_columns + 1) // 2)
    shapes_fit = sums.shape == centers.shape and moments.shape in [
        (n_cells, width) for width in widths
    ]
    check_fits(
        reply.client,
        shapes_fit and noisy_counts.shape == (n_cells,) and are_indices(own_prototypes, n_cells),
    )
    kept = noisy_counts > max(2.0 * scale, 0.5)
    if not kept.any():
        kept = noisy_counts >= noisy_counts.max()
    sizes = np.maximum(noisy_counts[kept], 1.0)
    means = clip_rows(sums[kept] / sizes[:, None], frame.radius, norm=1)
    moments = moments[kept] / sizes[:, None]
    if moments.shape[1] == n_columns:
        covariances = nearest_covariances(moments - means**2)
    else:
        full = np.array([triangle_to_symmetric(moment) for moment in moments])
        covariances = nearest_covariances(full - means[:, :, None] * means[:, None, :])
    position = np.cumsum(kept) - 1
    moved = np.where(kept, position, nearest_center(centers, centers[kept]))[
        np.asarray(own_prototypes, dtype=np.intp)
    ]
    changed = Reply(
        reply.client, [moved, neighbors, weights, frame.leave(means), covariances, sizes]
    )
    return changed, deviation / sizes


# The client half.


def moved_by_rows(frame: Frame) -> tuple[Bound, Bound, Bound]:
    """Return how much a row, which lies in one cell, changes the sums, products and counts of all cells."""
    rows = frame.rows(np.zeros((0, len(frame.origin))))
    sums, of_products, counts = (term.bound for term in (total(rows), products(rows), count(rows)))
    return sums, of_products, counts


class SPPFGCPrivatePrototypesClient(CellsClient, LabelsClient):
    """The client half of :class:`SPPFGCPrivatePrototypes`."""

    @answers(
        *GRAPH,
        Sent("sum of the client's rows in each cell", "centers", has_columns=True),
        Sent("sum over the client's rows of the products of their entries, by cell", "centers"),
        Sent("number of the client's rows in each cell", "centers", counts="every row"),
        moved=lambda _, centers, *frame, n_clusters, n_neighbors, diagonal: (
            *(Bound(math.inf) for _ in GRAPH),
            *moved_by_rows(Frame.of_arrays(*frame)),
        ),
    )
    def cell_prototypes(
        self,
        centers: Floats,
        *frame: Floats,
        n_clusters: int,
        n_neighbors: int,
        diagonal: bool,
    ) -> tuple[Array | GridArray, ...]:
        """Return E^p, the cell of each row, and the sums, products and counts of each cell."""
        copies = copies_of(self.rows)
        E = client_graph(self.rows[copies.first], n_clusters, n_neighbors)
        rows = self.enter(*frame)
        labels = rows.nearest(centers)
        sums, counts = rows.sums(labels, len(centers))
        ends = np.cumsum(counts.integers)
        by_cell = rows.integers[np.argsort(labels, kind="stable")]
        add = squares if diagonal else products
        moments_of_cells = [
            add(dataclasses.replace(rows, held=by_cell[start:end])).array
            for start, end in pairwise([0, *ends])
        ]
        by_cell_products = GridArray(
            np.array([moment.integers for moment in moments_of_cells]), moments_of_cells[0].exponent
        )
        return (*sent_graph(labels, copies, E, n_neighbors), sums, by_cell_products, counts)


SPPFGCPrivatePrototypes.client_type = SPPFGCPrivatePrototypesClient
