"""What the server makes of votes."""

import numpy as np
import pytest

from flower_fedclust.strategies.private_kmeans import (
    clustered,
    kept_votes,
    levy_steps,
    packed_in_ball,
    shrunk_offsets,
    spread_of,
)

RNG = np.random.default_rng(3)


def test_the_largest_votes_are_kept_until_they_add_up():
    votes = np.array([5.0, -2.0, 30.0, 1.0, 20.0, 4.0])
    assert kept_votes(votes, 50.0).tolist() == [0, 0, 30, 0, 20, 0]
    assert kept_votes(votes, 51.0).tolist() == [5, 0, 30, 0, 20, 0]
    assert kept_votes(votes, 1000.0).tolist() == [5, 0, 30, 1, 20, 4]


@pytest.mark.parametrize("weighted", [0, 1, 2, 6])
def test_there_are_as_many_centers_as_asked_for(weighted):
    points, weights = RNG.normal(size=(6, 2)), np.zeros(6)
    weights[:weighted] = 1.0
    centers = clustered(points, weights, 3, np.random.default_rng(0), n_init=1)
    assert centers.shape == (3, 2)
    assert np.isfinite(centers).all()
    assert clustered(points[:2], weights[:2], 3, np.random.default_rng(0), n_init=1).shape == (3, 2)


def test_the_spread_is_that_of_weighted_points():
    points, centers = np.array([[0.0, 0.0], [2.0, 0.0], [10.0, 6.0]]), np.array([[1.0, 0.0], [10.0, 10.0]])
    np.testing.assert_allclose(spread_of(points, np.array([1.0, 1.0, 2.0]), centers), np.sqrt([0.5, 8.0]))


def test_shrinking_makes_the_error_smaller_and_leaves_what_has_no_noise():
    directions = np.linalg.qr(RNG.normal(size=(20, 20)))[0]
    truth = RNG.normal(size=(8, 20)) * 0.3
    variance = np.full(8, 0.5)
    errors = np.zeros(2)
    for _ in range(20):
        noisy = truth + RNG.normal(size=truth.shape) * np.sqrt(variance)[:, None]
        shrunk = shrunk_offsets(noisy, variance, directions, 5)
        errors += ((noisy - truth) ** 2).sum(), ((shrunk - truth) ** 2).sum()
    assert errors[1] < 0.4 * errors[0]
    np.testing.assert_allclose(shrunk_offsets(truth, np.zeros(8), directions, 5), truth, atol=1e-12)


def test_packed_points_are_farther_apart_than_random_ones():
    def nearest(points):
        distances = np.linalg.norm(points[:, None] - points, axis=2)
        np.fill_diagonal(distances, np.inf)
        return distances.min()

    packed = packed_in_ball(12, 3, 2.0, np.random.default_rng(0))
    assert np.linalg.norm(packed, axis=1).max() <= 2.0
    drawn = [packed_in_ball(12, 3, 2.0, np.random.default_rng(seed)) for seed in range(3)]
    assert min(map(nearest, drawn)) > 0.8


def test_steps_have_heavy_tails():
    steps = np.abs(levy_steps((200_000,), 1.75, np.random.default_rng(0)))
    # The tail of index 1.75: ten times as far is 10^1.75 = 56 times as rare.
    assert 30 < np.mean(steps > 5) / np.mean(steps > 50) < 100
