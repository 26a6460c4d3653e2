"""A Lloyd step on rows that stay where they are: the server's half and the clients' answers to it."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.exact import truncated_means
from flower_fedclust.numerics.grid import GridArray, from_units
from flower_fedclust.numerics.kmeans import centers_of, shrunk_towards
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.releases import Release
from flower_fedclust.protocol.rounds import ONE_COUNT, Array, Moved, Round, Sent, Sum, answers, within
from flower_fedclust.steps.frame import Frame, FrameClient, RowsInFrame, ball_moved

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ClusterStatistic:
    """What the clients send of their clusters, and how it is protected."""

    releases: tuple[Release | None, Release | None] = (None, None)  #: For the sums (or means), and for the counts.
    #: The standard deviation of the noise that reaches an entry of the sums (or means), where the new centers are to be
    #: shrunk towards the former ones; 0 shrinks nothing.
    noise_deviation: float = 0.0
    #: None: each client sends the sum and the number of its rows in each cluster. Otherwise each client sends the means
    #: of its rows, clipped together to this norm, and says which clusters it has a row in: the variant of FedDP-KMeans,
    #: appendix G.5, for client-level privacy.
    means_bound: float | None = None

    def asked(self, centers: Floats, frame: Frame, *, rows: str = "") -> Sum:
        """Return the round that asks for it.

        Parameters
        ----------
        centers : ndarray of shape (n_clusters, n_columns)
            In the coordinates of the frame.
        frame : Frame
        rows : str, default=""
            Which rows of the clients; see :class:`~flower_fedclust.protocol.rounds.Round`.
        """
        if self.means_bound is None:
            question = ClusterClient.cluster_sums.asked(centers, *frame.arrays)
        else:
            question = ClusterClient.cluster_means.asked(centers, *frame.arrays, means_bound=self.means_bound)
        return Sum(question, releases=self.releases, rows=rows)

    def next_centers(self, reply: list[Array], centers: Floats) -> Floats:
        """Return the new centers; a cluster with hardly a row, or hardly a client, keeps its center."""
        sums, counts = reply
        if self.means_bound is None:
            new = centers_of(sums, counts, fallback=centers)
        else:
            new = centers + centers_of(sums, counts, fallback=np.zeros_like(centers))
        return shrunk_towards(centers, new, (self.noise_deviation / np.maximum(counts, 1.0)) ** 2)


def lloyd_step(
    centers: Floats, frame: Frame, statistic: ClusterStatistic, *, rows: str = ""
) -> Generator[Round, list[Array], Floats]:
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
) -> Generator[Round, list[Array], Floats]:
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


def presence_moved(centers: Floats) -> Moved:
    """Return how far one row moves 0 or 1 a cluster; a client can have a row in every cluster."""
    return replace(ONE_COUNT, of_client=math.sqrt(len(centers)))


class ClusterClient(FrameClient):
    """Answers of a client whose rows belong to the nearest of some centers."""

    @answers(
        "sum of the rows in each cluster",
        Sent("number of rows in each cluster", counts="every row", sizes=True),
        moved=lambda _, centers, *frame: (ball_moved(*frame), ONE_COUNT),
    )
    def cluster_sums(self, centers: Floats, *frame: Floats) -> tuple[GridArray, GridArray]:
        """Return m_r = sum of p in S_r and n_r = |S_r| (FedDP-KMeans, Algorithm 2, lines 6 and 7)."""
        rows = self.enter(*frame)
        return rows.sums(rows.nearest(centers), len(centers))

    @answers(
        "mean of the client's rows in each cluster, less its center",
        Sent("whether a cluster has a row of the client", counts="some rows"),
        moved=lambda _, centers, *frame, means_bound: (within(means_bound), presence_moved(centers)),
    )
    def cluster_means(self, centers: Floats, *frame: Floats, means_bound: float) -> tuple[GridArray, GridArray]:
        """Return u_r and c_r of FedDP-KMeans, appendix G.5, the means less the centers that the server sent."""
        rows = self.enter(*frame)
        return offsets_and_presence(rows, rows.nearest(centers), centers, means_bound)


def offsets_and_presence(
    rows: RowsInFrame, labels: NDArray[np.intp], centers: Floats, means_bound: float
) -> tuple[GridArray, GridArray]:
    """Return the clipped offsets of a client's cluster means from known centers, and which clusters it has.

    The paper sends the means themselves. The server knows the centers, so that their difference says as much; it
    is shorter, and takes less noise.

    Returns
    -------
    offsets : GridArray of shape (n_clusters, n_columns)
        ``u_r - center_r``, 0 for a cluster without a row; of Frobenius norm at most ``means_bound``.
    presence : GridArray of shape (n_clusters,)
        0 or 1.
    """
    sums, counts = rows.sums(labels, len(centers))
    presence = counts.integers > 0
    offsets = (truncated_means(sums.integers, counts.integers) - rows.points(centers)) * presence[:, None]
    return GridArray.clipped(from_units(offsets, rows.exponent), means_bound), GridArray(presence)
