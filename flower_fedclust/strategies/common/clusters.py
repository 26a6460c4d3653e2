"""Lloyd steps on rows that stay at the clients, with or without noise: both halves, bounds and budget."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine.by_row import by_row, finishes
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Question, Round, Sent, Sum, Total
from flower_fedclust.exact.grid import from_units
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.subjects import COUNT_BITS
from flower_fedclust.exact.sums import truncated_means
from flower_fedclust.exact.terms import Term, at, clipped_total, presence
from flower_fedclust.numerics.kmeans import centers_of, shrunk_towards
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.releases import Mechanism, PrivacyUnit
from flower_fedclust.strategies.common.frame import FrameClient

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: The bound to which a client's means are clipped is this many times their typical norm. A narrow bound biases the new
#: centers towards the old ones in every run. A wide one costs more noise, which averages out over the clients.
MEANS_MARGIN = 1.5


@dataclass(frozen=True)
class ClusterStatistic:
    """What clients send about the rows nearest to each center, and how it is protected."""

    #: The parts of the budget that pay for the sums (or means) and for the counts.
    parts: tuple[str, ...] = ()
    #: Whether to shrink new centers towards the previous ones; the more noise in the sums, the more.
    shrink: bool = False
    #: If None, each client sends the sum and the number of its rows in each cluster. Otherwise it sends the means of
    #: its clusters, together clipped to this norm, and in which clusters it has rows: the variant of FedDP-KMeans for
    #: client-level privacy (appendix G.5).
    means_bound: float | None = None

    def asked(
        self, centers: Floats, frame: Frame | None, *, rows: str = "", view: Question | None = None
    ) -> Sum:
        """Return the round that asks for the statistic.

        Centers are in the coordinates of the frame or, if clients first transform their rows by a
        ``view``, in the coordinates of the transformed rows.
        """
        if self.means_bound is None:
            question = ClusterClient.cluster_sums.asked(centers, frame=frame, view=view)
        else:
            question = ClusterClient.cluster_means.asked(
                centers, frame=frame, view=view, means_bound=self.means_bound
            )
        return Sum(question, parts=self.parts, rows=rows)

    def next_centers(self, reply: Total, centers: Floats) -> Floats:
        """Return the new centers; a cluster with almost no row, or almost no client, keeps its center."""
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
    """Move each center to the mean of its nearest rows, in one round; centers are in the frame's coordinates.

    The new centers are clipped to the frame's ball, because the mean of clipped rows lies in it.
    """
    reply = yield statistic.asked(centers, frame, rows=rows)
    return clip_rows(statistic.next_centers(reply, centers), frame.radius)


def lloyd_steps(
    centers: Floats, frame: Frame, n_rounds: int, tol: float, *, rows: str = ""
) -> Generator[Round, Total, Floats]:
    """Take at most n_rounds Lloyd steps without noise, until no center moves by more than tol."""
    for _ in range(n_rounds):
        former, centers = (
            centers,
            (yield from lloyd_step(centers, frame, ClusterStatistic(), rows=rows)),
        )
        if np.linalg.norm(centers - former, axis=1).max() <= tol:
            break
    return centers


# For noise: the norms to which clients clip, and the parts of the budget.


@dataclass(frozen=True)
class ClientBounds:
    """Euclidean norms to which one client's statistics are clipped at client level (FedDP-KMeans, appendix G.5)."""

    #: For the sum of outer products of the client's rows, less its mean eigenvalue times I (Frobenius norm).
    second_moment: float
    weights: float  #: For the vector of the client's numbers of rows nearest to each server row.
    #: For the client's cluster means less the centers that the server sent, as one vector.
    means: float

    @classmethod
    def from_server_rows(
        cls, server_rows: Floats, n_clusters: int, rows_per_client: int
    ) -> ClientBounds:
        """Return the typical norms of a client with this number of rows, if its rows are like the server's.

        Each bound is the root mean square of the statistic over random clients, in closed form; the
        bound of the means is multiplied by ``MEANS_MARGIN``. ``rows_per_client`` is public: a wrong
        value costs accuracy, not privacy.
        """
        from sklearn.cluster import KMeans

        n = rows_per_client
        gram = server_rows.T @ server_rows / len(server_rows)
        fourth = np.mean(np.einsum("ij,ij->i", server_rows, server_rows) ** 2)
        # Without its trace, a matrix's squared norm is smaller by trace^2 / n_columns.
        of_rows, of_pairs = (
            fourth * (1 - 1 / len(gram)),
            np.sum(gram**2) - np.trace(gram) ** 2 / len(gram),
        )
        second_moment = np.sqrt(n * of_rows + n * (n - 1) * of_pairs)
        # If n rows fall on the server rows at random, their numbers are multinomial; this is the root of the expected
        # squared norm.
        weights = np.sqrt(n + n * (n - 1) / len(server_rows))
        if len(np.unique(server_rows, axis=0)) > n_clusters:
            within = KMeans(n_clusters, n_init=1, random_state=0).fit(server_rows).inertia_ / len(
                server_rows
            )
        else:
            # With one server row per cluster, the spread within clusters is unknown.
            within = np.trace(gram)
        # The mean of n / k rows has a squared error of the spread within a cluster over n / k; a client has at most
        # min(k, n) means.
        means = np.sqrt(min(n, n_clusters) * within / max(1.0, n / n_clusters))
        return cls(float(second_moment), float(weights), float(MEANS_MARGIN * means))


def counting(unit: PrivacyUnit) -> Mechanism:
    """Return the mechanism that adds noise to counts of rows.

    It is Laplace noise at record level, where one row moves one count by 1, and at subject level,
    where a person's rows together move the counts by 1. A client can move all counts. Laplace noise
    for their L1 norm would then be larger than Gaussian noise for their Euclidean norm.
    """
    return "gaussian" if unit == "client" else "laplace"


def lloyd_parts(
    prefix: str, sums: float, counts: float, n_steps: int, unit: PrivacyUnit
) -> dict[str, Part]:
    """Return the parts ``<prefix>sums`` (or means) and ``<prefix>counts`` of a budget, with these fractions.

    At client level, a client does not send counts, but 1 for each cluster in which it has rows, and
    0 for the others; the noise is Gaussian. The paper (FedDP-KMeans) adds Laplace noise here. But a
    client can have rows in all k clusters, so the L1 norm of this vector can be k.
    """
    answers = (ClusterClient.cluster_sums, ClusterClient.cluster_means)
    return {
        f"{prefix}sums": Part(answers, sums, n_steps),
        f"{prefix}counts": Part(answers, counts, n_steps, counting(unit)),
    }


# The client half.


def offsets_and_presence(
    totals: tuple[Term, ...], centers: Floats, means_bound: float
) -> tuple[Term, Term]:
    """Return clients' clipped offsets ``u_r - center_r`` (0 for a cluster without rows), and which clusters have rows.

    The paper sends the means themselves. The server knows the centers, so the differences carry the
    same information; they are shorter and need less noise.
    """
    sums, counts = totals
    is_there, n_rows = counts.integers > 0, counts.integers >> COUNT_BITS
    with np.errstate(over="ignore"):
        points = np.trunc(np.ldexp(centers, -sums.exponent))
    offsets = np.where(is_there[..., None], truncated_means(sums.integers, n_rows) - points, 0.0)
    words = "the client clips its means together to this norm"
    return clipped_total(from_units(offsets, sums.exponent), means_bound, words=words), presence(
        is_there
    )


class ClusterClient(FrameClient):
    """A client's answers about the rows nearest to each center."""

    @by_row(
        sums="sum of the rows in each cluster",
        counts=Sent("number of rows in each cluster", counts="every row", sizes=True),
    )
    def cluster_sums(rows: Rows, centers: Floats) -> tuple[Term, Term]:
        """Return m_r and n_r, sum and number of the rows in each cluster r (FedDP-KMeans, Algorithm 2, lines 6, 7)."""
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
        n_rows: Integers,  # noqa: ARG004
        centers: Floats,
        *,
        means_bound: float,
    ) -> tuple[Term, Term]:
        """Return the means u_r less the centers that the server sent, and the presence c_r (FedDP-KMeans, G.5)."""
        return offsets_and_presence(totals, centers, means_bound)
