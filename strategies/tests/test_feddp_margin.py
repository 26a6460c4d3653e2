"""The margin of Algorithm 5, part 2, in the client that answers it."""

import math

import numpy as np
import pytest

from flower_fedclust.engine import ClientData
from flower_fedclust.exact.rows import Frame
from flower_fedclust.exact.sums import directions_onto_grid
from flower_fedclust_papers.feddp_proofs import FedDPKMeansProofsClient

RNG = np.random.default_rng(2)
D = 5
PI = directions_onto_grid(np.linalg.qr(RNG.normal(size=(D, 3)))[0])
XI = RNG.normal(size=(3, 3)) * 3
LIFTED = XI @ PI.T
ROWS = LIFTED[RNG.integers(3, size=200)] + RNG.normal(size=(200, D)) * 1.5


def ball(radius):
    return Frame(np.zeros(D), radius)


def client():
    return FedDPKMeansProofsClient(ClientData(ROWS), name="0")


def slow(margin, radius):
    clusters = [[] for _ in XI]
    for row in ROWS:
        row = row * min(1.0, radius / math.sqrt(sum(x * x for x in row)))
        distances = [math.sqrt(((row @ PI - xi) ** 2).sum()) for xi in XI]
        for r in range(3):
            if all(distances[r] <= margin * distances[s] for s in range(3) if s != r):
                clusters[r].append(row)
    return clusters


@pytest.mark.parametrize("margin", [0.25, 1 / 3, 0.9])
@pytest.mark.parametrize("radius", [4.0, 100.0])
def test_clear_rows_are_those_of_a_slow_loop(margin, radius):
    clusters = slow(margin, radius)
    sums, counts = client().clear_cluster_sums(LIFTED, XI, PI, frame=ball(radius), margin=margin)
    assert counts.values.tolist() == [len(members) for members in clusters]
    assert 0 < counts.values.sum() < len(ROWS)
    expected = [np.sum(members, axis=0) if members else np.zeros(D) for members in clusters]
    np.testing.assert_allclose(sums.values, expected, atol=len(ROWS) * radius * 2.0**-24)


def test_clear_means_are_those_of_a_slow_loop():
    clusters = slow(1 / 3, 100.0)
    offsets, presence = client().clear_cluster_means(
        LIFTED, XI, PI, frame=ball(100.0), margin=1 / 3, means_bound=100.0
    )
    assert presence.values.tolist() == [float(bool(members)) for members in clusters]
    expected = [
        np.mean(own, axis=0) - center if own else np.zeros(D)
        for own, center in zip(clusters, LIFTED, strict=True)
    ]
    np.testing.assert_allclose(offsets.values, expected, atol=100 * 2.0**-23)
