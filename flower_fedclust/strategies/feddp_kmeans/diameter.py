"""Lemma 16 of FedDP-KMeans: far regions of space are moved together, so that rows can be clipped to a smaller ball."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import Sent, Sum, Total
from flower_fedclust.engine.by_row import by_row
from flower_fedclust.engine.rounds import Round
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.terms import Term, at
from flower_fedclust.strategies.common.frame import FrameClient

Floats = NDArray[np.float64]


def reduce_diameter(
    frame: Frame,
    Q: Floats,
    asked: Sum,
    scale: float,
    w_min: float,
    sigma_max: float | None,
    n_clusters: int,
) -> Generator[Round, Total, Frame]:
    """Return a frame in which regions that are far apart have been moved together, in one round.

    Server rows are kept where they stand for enough rows, connected where they are near, and every connected component
    is translated as a whole. The frame is returned unchanged where that would not make its radius smaller: components
    are put 100 diameters apart, so that there is only something to gain if they are farther apart than that.

    Parameters
    ----------
    frame : Frame
    Q : ndarray of shape (n_server_rows, n_columns)
        The server rows, in the coordinates of the frame.
    asked : Sum
        The round for the number of rows nearest to each server row.
    scale : float
        Of the noise in these numbers; 0 without noise.
    w_min : float
        The part of the rows in the smallest cluster.
    sigma_max : float or None
        The standard deviation of the widest cluster; None takes that of the server rows in their own clusters.
    n_clusters : int

    Returns
    -------
    Frame
    """
    from scipy.sparse.csgraph import connected_components
    from sklearn.cluster import KMeans
    from sklearn.neighbors import radius_neighbors_graph

    (weights,) = yield asked
    n = max(float(weights.sum()), math.e)
    if sigma_max is None:
        within = KMeans(n_clusters, n_init=1, random_state=0).fit(Q).inertia_ / len(Q)
        sigma_max = math.sqrt(within / Q.shape[1])
    D = 4 * math.log(n) * math.sqrt(Q.shape[1]) * sigma_max
    near = radius_neighbors_graph(Q, D, include_self=True)
    # The lemma's epsilon is that of its Laplace noise, so 1 / scale; without noise there is nothing to tell from it.
    epsilon = 1 / scale if scale > 0 else math.inf
    frozen = near.sum(axis=1) >= epsilon * n * w_min / (200 * math.log(len(Q)))
    kept = np.asarray(frozen).ravel() | (near @ weights >= n * w_min / 3)
    if not kept.any():
        return frame
    anchors = Q[kept]
    n_components, component = connected_components(near[kept][:, kept], directed=False)
    representatives = anchors[[int(np.flatnonzero(component == c)[0]) for c in range(n_components)]]
    # Twice the largest distance to a representative bounds every component's diameter.
    diameter = 2 * float(np.linalg.norm(anchors - representatives[component], axis=1).max())
    targets = np.zeros_like(representatives)
    targets[:, 0] = 100 * diameter * np.arange(n_components)
    shifts = (targets - representatives)[component]
    radius = float(np.linalg.norm(anchors + shifts, axis=1).max())
    if not 0 < radius < frame.radius:
        return frame
    return replace(frame, radius=radius, anchors=anchors, shifts=shifts, outer_radius=frame.radius)


class DiameterClient(FrameClient):
    """The answer of a client that counts its rows by region."""

    @by_row(regions=Sent("number of rows nearest to each server row", counts="every row"))
    def regions(rows: Rows, Q: Floats) -> Term:
        """Return w_q(P^j) in the original space (proof of Lemma 16)."""
        return at(rows.nearest(Q), len(Q))
