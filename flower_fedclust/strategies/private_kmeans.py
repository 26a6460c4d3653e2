"""PrivateKMeans: private k-means where the server has no public rows.

As FedDP-KMeans (ICML 2025) does, it first finds the directions in which the rows spread most. In these directions it
divides the rows into small cells, and searches the cells for many k-means solutions. The best solutions take Lloyd
steps in the same rounds. The steps add up rows' offsets from their centers, clipped to a bound.
:mod:`.common.private_search` has these steps, which other strategies share.

docs/shape.md shows how a ``yield`` here becomes a round of Flower.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.data.frames import is_table
from flower_fedclust.engine import Entry, Protocol, parameter
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Outcome
from flower_fedclust.exact.rows import Frame
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.checks import check_scale, checked_rows
from flower_fedclust.numerics.validity import numbers_of
from flower_fedclust.strategies.common.clusters import ClusterClient
from flower_fedclust.strategies.common.many_starts import ALL_ROWS_ROUNDS, kmeans_of_all_rows
from flower_fedclust.strategies.common.noisy_cells import repeated
from flower_fedclust.strategies.common.private_search import (
    CELL_ROUNDS,
    COSTS,
    SOLUTION_ROUNDS,
    SearchClient,
    SearchStrategy,
    best_of_many,
    cells_of_rows,
    first_rounds,
    frame_of_most,
    parts_of_cells,
    parts_of_solutions,
    space_of_rows,
)
from flower_fedclust.strategies.common.small_clusters import (
    number_if_asked,
    small_clusters,
)

Floats = NDArray[np.float64]


class PrivateKMeans(SearchStrategy):
    """Private k-means without public rows: small cells, many solutions, and Lloyd steps on clipped offsets.

    The server sends points, and receives noisy sums of the offsets of the rows nearest to each point. So it learns in
    which small cells the rows lie, and sends new points there, for three rounds. From the cells it finds as many
    solutions of k-means as can be told apart in spite of the noise. They take Lloyd steps in the same rounds, and the
    solutions that cost more drop out. A client's rows, distances and centers never leave it.

    Parameters
    ----------
    max_norm : float, optional
        The Euclidean distance from ``origin`` to which every client clips its rows. Needed with an epsilon, unless
        there is ``server_data`` or a schema. It is public, and must not be computed from the data. It may be generous:
        the run finds privately how far the rows really reach.
    epsilon : float or None, default=1.0
        The privacy budget of the whole run. None means no noise and no guarantee. The run is then the same as with
        :class:`FederatedKMeans`: it clips no row, and uses no parameter but ``n_clusters`` and ``server_data``.
    center_rows : bool, default=True
        Whether the run first finds the noisy mean of the rows and measures everything from there. If False, the origin
        should lie near the middle of the rows.
    n_rows : int, optional
        The number of all rows, if it is public; otherwise the budget pays for a noisy count.
    server_data : array-like of shape (n_server_rows, n_columns), optional
        Public rows, which are among the first points that the server sends. Nothing protects them. Unless ``origin`` or
        ``max_norm`` is given, their mean is the origin and the largest distance from it is max_norm.

    References
    ----------
    "PE-means: Improved Differentially Private k-means Clustering through Private Evolution", arXiv 2606.00342;
    "Differentially private federated k-means with server-side data", ICML 2025, Algorithm 1, steps 1 and 3.
    """

    entries = (
        Entry(
            "private-kmeans",
            "private k-means without public rows, by noisy cells and clipped Lloyd steps",
            "after PE-means 2026 and FedDP-KMeans 2025",
            example={"max_norm": 3.0},
            finds="round",
        ),
    )

    center_rows: bool = parameter(True)
    n_rows: int | None = parameter(None, at_least=1)
    server_data: ArrayLike | None = parameter(None)

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first invalid parameter."""
        super().check_parameters()
        if not is_table(self.server_data):
            self._check_server_data()
        width = None if self.origin is None else len(np.asarray(self.origin))
        if (
            width
            and self.server_data is not None
            and np.asarray(self.server_data).shape[1] != width
        ):
            raise ValueError("origin and server_data have different numbers of columns.")

    def check_complete(self) -> None:
        """Raise a ValueError if there is noise and nothing bounds the rows."""
        if self.server_data is None and self.epsilon is not None and self.max_norm is None:
            raise ValueError(
                "max_norm is missing. With an epsilon, clients clip rows to it: say how far rows can be from the "
                "origin, as is known without looking at them (--set max_norm=30 on the command line), give a schema "
                "of your table, or give public rows as server_data."
            )
        self._check_server_data()

    def _check_server_data(self) -> None:
        if self.server_data is not None:
            rows = checked_rows(self.server_data, owner="server_data")
            check_scale(rows, "server_data")
            if self.max_norm is None and (rows == rows[0]).all():
                raise ValueError(
                    "server_data: all rows are equal, so that their radius is 0; give rows that differ."
                )

    # The server half.

    def protocol(self) -> Protocol:
        """Find where the rows lie, divide them into cells, and find the best of many k-means solutions."""
        if self.epsilon is None:
            public = (
                None if self.server_data is None else np.asarray(self.server_data, dtype=np.float64)
            )
            frame, centers, number = yield from kmeans_of_all_rows(
                numbers_of(self.n_clusters), self.rng, public
            )
            return Outcome(KMeansModel(frame.leave(centers)), number=number)
        # 1. Where the rows are, and in which directions they spread.
        frame, n_rows = yield from frame_of_most(
            self, center_rows=self.center_rows, n_rows=self.n_rows
        )
        space = yield from space_of_rows(self, frame, n_rows, center_rows=self.center_rows)
        # 2. Cells, and from these the number of clusters, if the user asked for it.
        space, cells = yield from cells_of_rows(self, space, self._public(space.frame))
        fine = small_clusters(cells, space.total_inside, self.most_clusters, self.rng)
        numbers = numbers_of(self.n_clusters)
        number = number_if_asked(fine, space.spread, n_rows, numbers, self.rng)
        k = self.most_clusters if number is None else number.chosen
        # 3. Many solutions from the cells; the best of them takes the last steps.
        best = yield from best_of_many(self, space, cells, k)
        # 4. An estimate of what another run would find, from all that was released.
        errors, inside = best.errors[:, :2], space.inside
        again = repeated(
            cells, best.centers, errors, inside, space.elsewhere, best.compared, self.rng
        )
        number = None if number is None else number.after_run(again.agreement)
        model = KMeansModel(space.frame.leave(best.centers))
        return Outcome(model, number=number, agreement=again.agreement, again=again)

    # Parameters and budget.

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds: to find where the rows lie and spread, for the cells, and for the solutions.

        Without an epsilon it is the number of rounds of :func:`kmeans_of_all_rows`.
        """
        if self.epsilon is None:
            return ALL_ROWS_ROUNDS
        first = first_rounds(center_rows=self.center_rows, counts_rows=self._counts_rows)
        return first + CELL_ROUNDS + SOLUTION_ROUNDS

    @property
    def expected_columns(self) -> int | None:
        """The width of the server's rows or of the origin, if one of them was given."""
        return (
            super().expected_columns
            if self.server_data is None
            else int(np.asarray(self.server_data).shape[1])
        )

    @property
    def ball(self) -> Frame:
        """The ball to which clients clip their rows at first; around the server's rows unless parameters give one."""
        if self.server_data is None:
            return super().ball
        rows = np.asarray(self.server_data, dtype=np.float64)
        origin = (
            rows.mean(axis=0) if self.origin is None else np.asarray(self.origin, dtype=np.float64)
        )
        radius = (
            float(np.linalg.norm(rows - origin, axis=1).max())
            if self.max_norm is None
            else self.max_norm
        )
        return Frame(origin, radius)

    def _public(self, frame: Frame) -> Floats | None:
        return (
            None
            if self.server_data is None
            else frame.enter(np.asarray(self.server_data, dtype=np.float64))
        )

    @property
    def _counts_rows(self) -> bool:
        return self.n_rows is None and self.privacy_unit != "client"

    def parts(self) -> Mapping[str, Part]:
        """Return the parts of the budget; in the last Lloyd step, the cluster sizes have a small part of their own."""
        client = PrivateKMeansClient
        first = parts_of_cells(
            client, center_rows=self.center_rows, counts_rows=self._counts_rows, costs=COSTS
        )
        return {**first, **parts_of_solutions(client)}

    def privacy_notes(self) -> list[str]:
        """Add the assumptions about what is public."""
        notes = super().privacy_notes()
        if self.n_rows is not None:
            notes.append(
                f"The number of all rows, {self.n_rows}, is taken to be public, and no guarantee covers it."
            )
        if self.server_data is not None:
            n_rows = len(np.asarray(self.server_data))
            note = f"The {n_rows} server rows are taken to be public, and no guarantee covers them."
            notes.append(f"{note} {self.server_data_origin}".rstrip())
        return notes


class PrivateKMeansClient(SearchClient, ClusterClient):
    """The client half of :class:`PrivateKMeans`."""


PrivateKMeans.client_type = PrivateKMeansClient
