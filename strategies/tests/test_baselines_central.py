import numpy as np
import pytest
from sklearn.datasets import make_blobs

from flower_fedclust.checking.books import epsilon_of
from flower_fedclust.simulation import simulate
from flower_fedclust_papers.central import (
    COUNT_OVER_SUM,
    MOST_DEPTH,
    CentralDPLloyd,
    CentralFastLloyd,
    CentralLSH,
    bounded_laplace,
    folded,
    noise_of_sums,
    noisy_leaves,
    packed_centers,
)

BLOBS = make_blobs(6000, 2, centers=[[-6, -6], [6, 6], [-6, 6]], cluster_std=0.5, random_state=0)[0]


@pytest.mark.parametrize("strategy", [CentralDPLloyd, CentralFastLloyd, CentralLSH])
def test_blobs_are_found_with_a_large_budget_and_the_report_promises_nothing(strategy):
    costs = []
    for seed in range(4):
        made = strategy(n_clusters=3, max_entry=10.0, central_epsilon=100.0, random_state=seed)
        result = simulate(made, np.array_split(BLOBS, 3), seed=seed, progress=False)
        costs.append(result.metrics["cost"] / len(BLOBS))
    assert min(costs) < 0.6  # the optimum is 0.5
    assert not result.privacy.covers_everything
    assert "nothing is private" in str(result.privacy)


def test_leaves_hold_all_rows_and_their_means_where_there_is_hardly_noise():
    rows = np.random.default_rng(0).normal(size=(500, 3)) / 9
    means, counts = noisy_leaves(rows, 5, 1e-4, np.random.default_rng(1))
    assert counts.sum() == 500
    assert 10 < len(counts) <= 500
    np.testing.assert_allclose(counts @ means, rows.sum(axis=0), atol=0.1)


def test_sums_and_counts_of_the_tree_compose_to_the_budget():
    deviation = noise_of_sums(1.0, 1e-6)
    counts = [("laplace", COUNT_OVER_SUM * deviation)] * (MOST_DEPTH + 1)
    spent = epsilon_of([("gaussian", deviation), *counts], 1e-6)
    assert spent == pytest.approx(1.0, rel=0.01)


def test_packed_centers_are_apart_and_in_the_box():
    centers = packed_centers(9, 3, np.random.default_rng(0))
    distances = np.linalg.norm(centers[:, None] - centers[None], axis=2)[~np.eye(9, dtype=bool)]
    assert distances.min() >= 0.5
    assert np.abs(centers).max() <= 1


def test_folding_reflects_at_the_bounds():
    np.testing.assert_allclose(
        folded(np.array([0.5, 1.25, -1.5, 3.0, 5.0])), [0.5, 0.75, -0.5, -1.0, 1.0]
    )


@pytest.mark.parametrize(
    ("value", "epsilon", "bound"), [(0.5, 1.0, 2.0), (-8.0, 0.05, 8.0), (3.0, 5.0, 100.0)]
)
def test_bounded_laplace_is_laplace_within_the_bound(value, epsilon, bound):
    rng = np.random.default_rng(1)
    drawn = bounded_laplace(np.full(20_000, value), epsilon, 2.0, bound, rng)
    assert np.abs(drawn).max() <= bound
    # The law given the bound, by rejection; its scale is larger than that of the plain mechanism.
    scales = np.linspace(2 / epsilon, 8 / epsilon, 13)
    quartiles = []
    for scale in scales:
        plain = value + rng.laplace(scale=scale, size=200_000)
        quartiles.append(np.quantile(plain[np.abs(plain) <= bound], [0.25, 0.5, 0.75]))
    distance = np.abs(np.array(quartiles) - np.quantile(drawn, [0.25, 0.5, 0.75])).max(axis=1)
    assert distance.min() < 0.03 * bound
