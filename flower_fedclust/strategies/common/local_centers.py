"""k-FED's one round: each client clusters its own rows, the server clusters the clients' centers."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine.client import ProtocolClient
from flower_fedclust.engine.rounds import Gather, Reply, Round, Sent, answers
from flower_fedclust.numerics.initialisation import awasthi_sheffet
from flower_fedclust.numerics.kmeans import centers_of, cluster_sums, kmeans_cost, nearest_center, squared_distances

Floats = NDArray[np.float64]

#: Of how many clients the best is taken to begin with. k-FED takes any; a poor one costs all that follows.
N_CANDIDATES = 100


def merge_local_centers(
    n_clusters: int, n_local_clusters: int, rng: np.random.Generator
) -> Generator[Round, list[Reply], Floats]:
    """Return the centers of k-FED (Dennis et al. 2021, Algorithm 2), in one round.

    Parameters
    ----------
    n_clusters : int
        k, of the whole.
    n_local_clusters : int
        k', in each client.
    rng : numpy.random.Generator

    Returns
    -------
    ndarray of shape (n_clusters, n_columns)
    """
    seed = int(rng.integers(2**31))
    replies = yield Gather(LocalCentersClient.local_centers.asked(n_clusters=n_local_clusters, random_state=seed))
    local_centers = [reply.arrays[0] for reply in replies]
    pool = np.concatenate(local_centers)
    # Step 2: M starts as the centers of any one client; here, the one whose centers fit the pool best.
    costs = [kmeans_cost(pool, centers) for centers in local_centers[:N_CANDIDATES]]
    chosen = list(local_centers[int(np.argmin(costs))])
    # Steps 3 to 6: add the center of the pool that is farthest from M, until there are k.
    while len(chosen) < n_clusters:
        chosen.append(pool[squared_distances(pool, np.array(chosen)).min(axis=1).argmax()])
    # Steps 7 and 8: one Lloyd step from M on the pool of all the clients' centers.
    start = np.array(chosen[:n_clusters])
    sums, counts = cluster_sums(pool, nearest_center(pool, start), n_clusters)
    return centers_of(sums, counts, fallback=start)


class LocalCentersClient(ProtocolClient):
    """The answer of a client that clusters its own rows."""

    @answers(Sent("centers of the client's own clusters", "centers", has_columns=True))
    def local_centers(self, *, n_clusters: int, random_state: int) -> Floats:
        """Return the client's own centers, by the algorithm of Awasthi and Sheffet."""
        return awasthi_sheffet(self.rows, n_clusters, np.random.default_rng(random_state))
