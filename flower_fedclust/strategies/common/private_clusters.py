"""The bounds to which clients clip, from public rows alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine.parts import Part
from flower_fedclust.privacy.releases import Mechanism, PrivacyUnit
from flower_fedclust.strategies.common.clusters import ClusterClient

Floats = NDArray[np.float64]


#: Room in the bound of the means. A client whose means are clipped draws the centers back to where they were, in every
#: run and by as much, while the noise of a wider bound averages out over the clients.
MEANS_MARGIN = 1.5


@dataclass(frozen=True)
class ClientBounds:
    """Euclidean norms to which one client's statistics are clipped at client level (FedDP-KMeans, appendix G.5)."""

    second_moment: float  #: Of the sum of outer products of the client's rows, as a matrix.
    weights: float  #: Of the client's counts of rows by server row.
    means: float  #: Of the client's cluster means, less the centers that the server knows, all together.

    @classmethod
    def from_server_rows(cls, server_rows: Floats, n_clusters: int, rows_per_client: int) -> ClientBounds:
        """Return what a client of so many rows would typically have, if its rows were like the server's.

        Each bound is the root mean square of the statistic over random clients, in closed form; that of the means is
        ``MEANS_MARGIN`` times as much.

        Parameters
        ----------
        server_rows : ndarray of shape (n_server_rows, n_columns)
            In the coordinates of the frame.
        n_clusters : int
        rows_per_client : int
            Public knowledge; a wrong value costs accuracy, not privacy.
        """
        from sklearn.cluster import KMeans

        n = rows_per_client
        gram = server_rows.T @ server_rows / len(server_rows)
        fourth = np.mean(np.einsum("ij,ij->i", server_rows, server_rows) ** 2)
        second_moment = np.sqrt(n * fourth + n * (n - 1) * np.sum(gram**2))
        # n rows fall on as many server rows at random: the expected square of a multinomial vector's norm.
        weights = np.sqrt(n + n * (n - 1) / len(server_rows))
        if len(np.unique(server_rows, axis=0)) > n_clusters:
            within = KMeans(n_clusters, n_init=1, random_state=0).fit(server_rows).inertia_ / len(server_rows)
        else:
            within = np.trace(gram)  # one server row a cluster says nothing of the spread within
        # A mean of n / k rows is off by the spread within a cluster over n / k; k such means, or n if they are fewer.
        means = np.sqrt(min(n, n_clusters) * within / max(1.0, n / n_clusters))
        return cls(float(second_moment), float(weights), float(MEANS_MARGIN * means))


def counting(unit: PrivacyUnit) -> Mechanism:
    """Return the mechanism for counts of rows.

    At record level one row moves one count by 1; at client level all counts move, and Laplace noise for their L1 norm
    would be larger than Gaussian noise for their Euclidean norm.
    """
    return "laplace" if unit == "record" else "gaussian"


def lloyd_parts(prefix: str, sums: float, counts: float, n_steps: int, unit: PrivacyUnit) -> dict[str, Part]:
    """Return the parts of a budget for Lloyd steps: those of the sums (or means) and of the counts.

    Presence, which clients send in place of counts at client level, takes Gaussian noise, where the paper has Laplace
    noise: a client can have a row in every cluster, so that its L1 norm is k.

    Parameters
    ----------
    prefix : str
        Of the names ``<prefix>sums`` and ``<prefix>counts``.
    sums, counts : float
        The fractions.
    n_steps : int
    unit : "record" or "client"
    """
    answers = (ClusterClient.cluster_sums, ClusterClient.cluster_means)
    return {
        f"{prefix}sums": Part(answers, sums, n_steps),
        f"{prefix}counts": Part(answers, counts, n_steps, counting(unit)),
    }
