"""PE-means, in all columns and in a projection."""

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris

import flower_fedclust as fc
from flower_fedclust_papers.pe_means import PEMeans, kept_votes, levy_steps, packed_in_ball


def in_unit_ball(rows):
    rows = rows - rows.mean(axis=0)
    return rows / np.linalg.norm(rows, axis=1).max()


def run(rows, n_clusters, seed=0, **parameters):
    strategy = PEMeans(n_clusters, max_norm=1.0, random_state=seed, **parameters)
    result = fc.simulate(strategy, np.array_split(rows, 3), seed=seed, progress=False)
    return result, result.model.cost(rows) / len(rows)


def test_the_number_of_generations_is_the_papers():
    assert [PEMeans.generations(4, epsilon) for epsilon in (0.25, 1.0, 4.0)] == [8, 8, 32]
    assert PEMeans.generations(16, 2.0) == 32


def test_iris_comes_near_the_optimum_with_the_papers_generations():
    rows = in_unit_ball(load_iris().data)
    optimum = KMeans(3, n_init=10, random_state=0).fit(rows).inertia_ / len(rows)
    options = {
        "epsilon": 8.0,
        "delta": 150**-1.1,
        "n_rows": 150,
        "n_rounds": PEMeans.generations(4, 8.0),
    }
    assert np.mean([run(rows, 3, seed, **options)[1] for seed in range(3)]) < 1.2 * optimum


def test_a_generation_is_one_sum_of_votes_and_nothing_else():
    result, _ = run(
        in_unit_ball(np.random.default_rng(0).normal(size=(200, 3))), 2, epsilon=8.0, n_rounds=3
    )
    assert {message.release.share for message in result.privacy.releases} == {"row_count", "votes"}


@pytest.mark.parametrize("n_rows", [None, 600])
def test_the_last_step_leaves_the_projection(n_rows):
    rng = np.random.default_rng(1)
    rows = in_unit_ball(
        rng.normal(size=(3, 40))[rng.integers(3, size=600)] * 3 + rng.normal(size=(600, 40)) * 0.3
    )
    result, cost = run(rows, 3, epsilon=100.0, n_rounds=12, n_directions=8, n_rows=n_rows)
    assert result.model.cluster_centers_.shape == (3, 40)
    assert cost < 0.5 * np.mean((rows**2).sum(axis=1))


def test_packed_points_are_farther_apart_than_random_ones():
    for seed in range(3):
        packed = packed_in_ball(12, 3, 2.0, np.random.default_rng(seed))
        distances = np.linalg.norm(packed[:, None] - packed, axis=2) + 9 * np.eye(12)
        assert distances.min() > 0.8
        assert np.linalg.norm(packed, axis=1).max() <= 2.0


def test_steps_have_heavy_tails():
    steps = np.abs(levy_steps((200_000,), 1.75, np.random.default_rng(0)))
    # The tail of index 1.75: ten times as far is 10^1.75 = 56 times as rare.
    assert 30 < np.mean(steps > 5) / np.mean(steps > 50) < 100


def test_the_largest_votes_are_kept_until_they_add_up():
    votes = np.array([5.0, -2.0, 30.0, 1.0, 20.0, 4.0])
    assert kept_votes(votes, 50.0).tolist() == [0, 0, 30, 0, 20, 0]
    assert kept_votes(votes, 51.0).tolist() == [5, 0, 30, 0, 20, 0]
    assert kept_votes(votes, 1000.0).tolist() == [5, 0, 30, 1, 20, 4]
