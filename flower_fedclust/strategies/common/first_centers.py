"""First centers for strategies that move centers: from the user, by k-FED, or drawn without looking at the rows.

Lloyd's algorithm is only as good as its start. Without noise one round of k-FED gives a good start.
With noise that round would cost budget, so unless the user gives centers, they are drawn at random
from the ball that holds the rows.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.data.frames import is_table
from flower_fedclust.engine import ProtocolStrategy, parameter
from flower_fedclust.engine.client import ProtocolClient
from flower_fedclust.engine.rounds import Gather, Reply, Round, Sent, answers
from flower_fedclust.exact.grid import unit_exponent
from flower_fedclust.exact.rows import Frame
from flower_fedclust.numerics.checks import checked_rows
from flower_fedclust.numerics.initialization import awasthi_sheffet
from flower_fedclust.numerics.kmeans import (
    centers_of,
    cluster_sums,
    kmeans_cost,
    nearest_center,
    squared_distances,
)
from flower_fedclust.numerics.vectors import clip_rows

Floats = NDArray[np.float64]

#: k-FED may start from the centers of any client, and a poor start gives a poor result. So the centers of up to this
#: many clients are compared, and the best ones are taken.
N_CANDIDATES = 100

#: A note in the report of a run with an epsilon and given first centers.
GIVEN_CENTERS_NOTE = (
    "The first centers were given and count as public: the rows they may come from are not covered."
)


def check_given_centers(init: ArrayLike, n_clusters: int) -> None:
    """Raise a ValueError unless there are as many centers as clusters."""
    centers: Any = init if is_table(init) else checked_rows(init, owner="init")
    if len(centers) != n_clusters:
        raise ValueError(f"init has {len(centers)} centers and n_clusters is {n_clusters}.")


@dataclass(frozen=True)
class FirstCenters:
    """How first centers are found: given as ``init``; or else at random in a ball of ``radius``; or else by k-FED."""

    init: ArrayLike | None
    radius: float | None = None  #: With noise: the radius of the ball that holds the rows.

    @property
    def by_k_fed(self) -> bool:
        """Whether finding the centers takes k-FED's round."""
        return self.init is None and self.radius is None

    @property
    def n_columns(self) -> int | None:
        """The number of columns of the centers in ``init``; None if no centers are given."""
        return None if self.init is None else int(np.asarray(self.init).shape[1])

    def privacy_notes(self) -> list[str]:
        """Return the notes of the privacy report about given centers."""
        return [] if self.radius is None or self.init is None else [GIVEN_CENTERS_NOTE]

    def find(
        self, n_clusters: int, n_columns: int, rng: np.random.Generator
    ) -> Generator[Round, list[Reply], Floats]:
        """Find the centers in at most one round; with a radius, clip them to the ball of that radius."""
        if self.init is not None:
            centers: Floats = checked_rows(self.init, owner="init")
        elif self.radius is None:
            centers = yield from merge_local_centers(n_clusters, n_clusters, rng)
        else:
            centers = points_in_ball(n_clusters, n_columns, self.radius, rng)
        return clip_rows(centers, math.inf if self.radius is None else self.radius)


class FirstCentersStrategy(ProtocolStrategy):
    """Base of strategies that move centers from a start, which may be given as ``init``."""

    init: ArrayLike | None = parameter(None)

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first invalid parameter."""
        super().check_parameters()
        if self.init is not None:
            check_given_centers(self.init, self.n_clusters)

    @property
    def _start(self) -> FirstCenters:
        """How this strategy finds its first centers."""
        return FirstCenters(self.init, getattr(self, "max_norm", None))

    @property
    def expected_columns(self) -> int | None:
        """The number of columns of the centers in ``init``; None if no centers are given."""
        return self._start.n_columns

    def privacy_notes(self) -> list[str]:
        """Add the notes of the report about given centers."""
        return [*super().privacy_notes(), *self._start.privacy_notes()]


def points_in_ball(
    n_points: int, n_columns: int, radius: float, rng: np.random.Generator
) -> Floats:
    """Draw points uniformly from a ball around the origin."""
    directions = rng.standard_normal((n_points, n_columns))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    points: Floats = radius * rng.uniform(size=(n_points, 1)) ** (1.0 / n_columns) * directions
    return points


def frame_with_centers(
    frame: Frame, centers: Floats, *, times_the_reach: float
) -> tuple[Frame, Floats]:
    """Return a frame whose ball holds the first centers as well as the rows, and the centers in its coordinates.

    A wider ball has a coarser grid. So the ball grows only if centers lie outside it. Its radius
    becomes the distance of the farthest center, but at most ``times_the_reach`` times the former
    radius or, if that is larger, the distance of the nearest center; and then the next power of
    two. Centers outside the new ball are moved onto its surface.
    """
    # Half of each is subtracted, because a difference may overflow. The unit is a power of two, which rounds nothing.
    halves = 0.5 * centers - 0.5 * frame.origin
    power = math.frexp(float(np.abs(halves).max()))[1]
    scaled = np.ldexp(halves, -power)
    distances = np.linalg.norm(scaled, axis=1)
    reach = _times_power(frame.radius, -1 - power)
    most = times_the_reach * max(reach, float(distances.min()))
    wanted = min(float(distances.max()), most)
    if wanted > reach:
        exponent = unit_exponent(wanted, bits=0) + 1 + power
        frame = replace(frame, radius=math.ldexp(1.0, min(exponent, 1023)))
        reach = _times_power(frame.radius, -1 - power)
    # Slightly inside, so that no rounding moves a center out again.
    within = clip_rows(scaled, reach * (1.0 - 2.0**-40))
    return frame, np.ldexp(within, 1 + power)


def _times_power(radius: float, power: int) -> float:
    """Return a radius times 2^power; infinity if it overflows."""
    with np.errstate(over="ignore"):
        return float(np.ldexp(radius, power))


def merge_local_centers(
    n_clusters: int, n_local_clusters: int, rng: np.random.Generator
) -> Generator[Round, list[Reply], Floats]:
    """Return the centers of k-FED (Dennis et al. 2021, Algorithm 2), in one round.

    Each client clusters its own rows into n_local_clusters (k'), and the server clusters the
    clients' centers into n_clusters (k).
    """
    seed = int(rng.integers(2**31))
    replies = yield Gather(
        LocalCentersClient.local_centers.asked(n_clusters=n_local_clusters, random_state=seed)
    )
    local_centers = [reply.arrays[0] for reply in replies]
    pool = np.concatenate(local_centers)
    # Step 2: M starts as the centers of any one client; here, of the client whose centers fit the pool best.
    costs = [kmeans_cost(pool, centers) for centers in local_centers[:N_CANDIDATES]]
    chosen = list(local_centers[int(np.argmin(costs))])
    # Steps 3 to 6: add the center of the pool that is farthest from M, until there are k.
    while len(chosen) < n_clusters:
        chosen.append(pool[squared_distances(pool, np.array(chosen)).min(axis=1).argmax()])
    # Steps 7 and 8: one Lloyd step from M on the pool of all clients' centers.
    start = np.array(chosen[:n_clusters])
    sums, counts = cluster_sums(pool, nearest_center(pool, start), n_clusters)
    return centers_of(sums, counts, fallback=start)


class LocalCentersClient(ProtocolClient):
    """A client that answers with the centers of its own rows."""

    @answers(Sent("centers of the client's own clusters", "centers", has_columns=True))
    def local_centers(self, *, n_clusters: int, random_state: int) -> Floats:
        """Return the client's own centers, by the algorithm of Awasthi and Sheffet."""
        return awasthi_sheffet(self.rows, n_clusters, np.random.default_rng(random_state))
