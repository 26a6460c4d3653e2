"""A Lloyd step on rows that stay where they are: the server's half and the clients' answers to it."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine.by_row import by_row, finishes
from flower_fedclust.engine.rounds import Question, Round, Sent, Sum, Total
from flower_fedclust.exact.grid import from_units
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.sums import truncated_means
from flower_fedclust.exact.terms import Term, at, clipped_total, presence
from flower_fedclust.numerics.kmeans import centers_of, shrunk_towards
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.strategies.common.frame import FrameClient

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ClusterStatistic:
    """What the clients send of their clusters, and how it is protected."""

    parts: tuple[str, ...] = ()  #: The parts of the budget for the sums (or means), and for the counts.
    shrink: bool = False  #: Whether new centers are shrunk towards the former ones, by the noise of the sums.
    #: None: each client sends the sum and the number of its rows in each cluster. Otherwise each client sends the means
    #: of its rows, clipped together to this norm, and says which clusters it has a row in: the variant of FedDP-KMeans,
    #: appendix G.5, for client-level privacy.
    means_bound: float | None = None

    def asked(self, centers: Floats, frame: Frame | None, *, rows: str = "", view: Question | None = None) -> Sum:
        """Return the round that asks for it.

        Parameters
        ----------
        centers : ndarray of shape (n_clusters, n_columns)
            In the coordinates of the frame, or of the view.
        frame : Frame or None
        rows : str, default=""
            Which rows of the clients; see :class:`~flower_fedclust.engine.rounds.Round`.
        view : Question, optional
            What is made of the rows first.
        """
        if self.means_bound is None:
            question = ClusterClient.cluster_sums.asked(centers, frame=frame, view=view)
        else:
            question = ClusterClient.cluster_means.asked(centers, frame=frame, means_bound=self.means_bound)
        return Sum(question, parts=self.parts, rows=rows)

    def next_centers(self, reply: Total, centers: Floats) -> Floats:
        """Return the new centers; a cluster with hardly a row, or hardly a client, keeps its center."""
        sums, counts = reply
        if self.means_bound is None:
            new = centers_of(sums, counts, fallback=centers)
        else:
            new = centers + centers_of(sums, counts, fallback=np.zeros_like(centers))
        deviation = reply.noise[0] if self.shrink else 0.0
        return shrunk_towards(centers, new, (deviation / np.maximum(counts, 1.0)) ** 2)


def lloyd_step(
    centers: Floats, frame: Frame, statistic: ClusterStatistic, *, rows: str = ""
) -> Generator[Round, Total, Floats]:
    """Move each center to the mean of the rows that are nearest to it, in one round.

    Parameters
    ----------
    centers : ndarray of shape (n_clusters, n_columns)
        In the coordinates of the frame.
    frame : Frame
    statistic : ClusterStatistic
    rows : str, default=""
        Which rows of the clients.

    Returns
    -------
    ndarray of shape (n_clusters, n_columns)
        Inside the frame's ball, where the mean of clipped rows must lie whatever noise does.
    """
    reply = yield statistic.asked(centers, frame, rows=rows)
    return clip_rows(statistic.next_centers(reply, centers), frame.radius)


def lloyd_steps(
    centers: Floats, frame: Frame, n_rounds: int, tol: float, *, rows: str = ""
) -> Generator[Round, Total, Floats]:
    """Take Lloyd steps on sums, without noise, until nothing moves.

    Parameters
    ----------
    centers : ndarray of shape (n_clusters, n_columns)
        In the coordinates of the frame.
    frame : Frame
    n_rounds : int
        At most.
    tol : float
        How far a center may move and count as not moved, in the units of the rows.
    rows : str, default=""
        Which rows of the clients.
    """
    for _ in range(n_rounds):
        former, centers = centers, (yield from lloyd_step(centers, frame, ClusterStatistic(), rows=rows))
        if np.linalg.norm(centers - former, axis=1).max() <= tol:
            break
    return centers


def offsets_and_presence(totals: tuple[Term, ...], centers: Floats, means_bound: float) -> tuple[Term, Term]:
    """Return the clipped offsets of a client's cluster means from known centers, and which clusters it has.

    The paper sends the means themselves. The server knows the centers, so that their difference says as much; it
    is shorter, and takes less noise.

    Returns
    -------
    offsets : Term of shape (n_clusters, n_columns)
        ``u_r - center_r``, 0 for a cluster without a row; of Frobenius norm at most ``means_bound``.
    presence : Term of shape (n_clusters,)
        0 or 1.
    """
    sums, counts = totals
    is_there = counts.integers > 0
    with np.errstate(over="ignore"):
        points = np.trunc(np.ldexp(centers, -sums.exponent))
    offsets = np.where(is_there[:, None], truncated_means(sums.integers, counts.integers) - points, 0.0)
    words = "the client clips its means together to this norm"
    return clipped_total(from_units(offsets, sums.exponent), means_bound, words=words), presence(is_there)


class ClusterClient(FrameClient):
    """Answers of a client whose rows belong to the nearest of some centers."""

    @by_row(
        sums="sum of the rows in each cluster",
        counts=Sent("number of rows in each cluster", counts="every row", sizes=True),
    )
    def cluster_sums(rows: Rows, centers: Floats) -> tuple[Term, Term]:
        """Return m_r = sum of p in S_r and n_r = |S_r| (FedDP-KMeans, Algorithm 2, lines 6 and 7)."""
        nearest = rows.nearest(centers)
        return at(nearest, len(centers), rows), at(nearest, len(centers))

    @finishes(
        cluster_sums,
        "means_bound",
        means="mean of the client's rows in each cluster, less its center",
        presence=Sent("whether a cluster has a row of the client", counts="some rows"),
    )
    def cluster_means(
        totals: tuple[Term, ...],
        n_rows: int,  # noqa: ARG004
        centers: Floats,
        *,
        means_bound: float,
    ) -> tuple[Term, Term]:
        """Return u_r and c_r of FedDP-KMeans, appendix G.5, the means less the centers that the server sent."""
        return offsets_and_presence(totals, centers, means_bound)
