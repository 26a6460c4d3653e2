import numpy as np
import pytest

from flower_fedclust.numerics.initialization import SERVER_INITIALISATIONS
from flower_fedclust.simulation import simulate
from flower_fedclust_papers.dp_lloyd import DPLloyd

RNG = np.random.default_rng(3)
K, D = 4, 3
MEANS = RNG.uniform(-5, 5, size=(K, D))
ROWS = MEANS[RNG.integers(K, size=300)] + RNG.normal(size=(300, D)) * 1.5
CLIENTS = np.split(ROWS, [20, 21, 100, 230])
SERVER_ROWS = MEANS.repeat(5, axis=0) + RNG.normal(size=(5 * K, D))


def slow_lloyd(rows, centers, n_rounds):
    for _ in range(n_rounds):
        members = [[] for _ in centers]
        for row in rows:
            members[int(np.argmin([((row - center) ** 2).sum() for center in centers]))].append(row)
        centers = [
            np.mean(own, axis=0) if own else center
            for own, center in zip(members, centers, strict=True)
        ]
    return np.array(centers)


def slow_frame(rows, center_rows):
    origin = SERVER_ROWS.mean(axis=0) if center_rows else np.zeros(D)
    radius = np.linalg.norm(SERVER_ROWS - origin, axis=1).max()
    moved = rows - origin
    norms = np.linalg.norm(moved, axis=1)
    return moved * np.minimum(1, radius / norms)[:, None], SERVER_ROWS - origin, origin, radius


@pytest.mark.parametrize("init", SERVER_INITIALISATIONS)
@pytest.mark.parametrize(("center_rows", "n_rounds"), [(True, 3), (False, 1)])
def test_dp_lloyd_without_noise_equals_pooled_lloyd_from_the_same_start(
    init, center_rows, n_rounds
):
    strategy = DPLloyd(
        K,
        server_data=SERVER_ROWS,
        init=init,
        epsilon=None,
        n_rounds=n_rounds,
        center_rows=center_rows,
        random_state=7,
    )
    centers = simulate(strategy, CLIENTS).model.cluster_centers_
    rows, server_rows, origin, radius = slow_frame(ROWS, center_rows)
    start = SERVER_INITIALISATIONS[init](server_rows, K, radius, np.random.default_rng(7))
    # A center whose cluster is empty stays, but the step keeps it inside the ball.
    inside = start * np.minimum(1, radius / np.linalg.norm(start, axis=1))[:, None]
    expected = slow_lloyd(rows, start, 1)
    kept = (expected == start).all(axis=1)
    expected[kept] = inside[kept]
    expected = slow_lloyd(rows, expected, n_rounds - 1)
    np.testing.assert_allclose(centers, expected + origin, rtol=0, atol=1e-6)


def test_dp_lloyd_declares_the_radius_and_one_row():
    *_, radius = slow_frame(ROWS, True)
    report = simulate(DPLloyd(K, server_data=SERVER_ROWS), CLIENTS, seed=0).privacy
    sums, counts = (message.release for message in report.releases)
    assert (sums.mechanism, counts.mechanism) == ("gaussian", "laplace")
    assert (sums.sensitivity, counts.sensitivity) == pytest.approx((radius, 1.0))
