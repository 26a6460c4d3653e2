"""Small tables whose result is computed by hand: what stands here is arithmetic, not the output of a run."""

import numpy as np
import pandas as pd
import pytest

import flower_fedclust as fc
from flower_fedclust.numerics.metrics import agreement

#: Two sites. The rows lie near (0, 0) and (10, 0), three and four of them.
NORTH = np.array([[0.0, 0.0], [2.0, 0.0], [9.0, 3.0]])
SOUTH = np.array([[1.0, 3.0], [10.0, 0.0], [11.0, 0.0], [10.0, -3.0]])
LEFT = [(0 + 2 + 1) / 3, (0 + 0 + 3) / 3]
RIGHT = [(9 + 10 + 11 + 10) / 4, (3 + 0 + 0 - 3) / 4]
CENTERS = [LEFT, RIGHT]
#: The squared distances of the three and of the four rows to their center.
COST = (1 + 1) + (1 + 1) + (0 + 4) + (1 + 9) + (0 + 0) + (1 + 0) + (0 + 9)
START = np.array([[0.0, 0.0], [9.0, 0.0]])


def check(result, atol=1e-6):
    model = result.model
    order = np.argsort(model.cluster_centers_[:, 0])
    np.testing.assert_allclose(model.cluster_centers_[order], CENTERS, atol=atol)
    assert model.cost(np.vstack([NORTH, SOUTH])) == pytest.approx(COST, abs=10 * atol)
    labels = [order.tolist().index(one) for part in result.labels for one in part]
    assert labels == [0, 0, 1, 0, 1, 1, 1]


def test_one_step_of_federated_k_means_moves_centers_to_the_means_of_their_rows():
    check(fc.simulate(fc.FederatedKMeans(2, init=START, n_rounds=1), [NORTH, SOUTH]))


def test_k_means_of_pooled_rows_finds_the_means_of_the_groups():
    check(fc.simulate(fc.PooledKMeans(2), [NORTH, SOUTH], seed=0))


def test_private_k_means_without_noise_finds_the_means_of_the_groups():
    check(fc.simulate(fc.PrivateKMeans(2, epsilon=None), [NORTH, SOUTH], seed=0))


def test_the_server_of_k_fed_averages_the_centers_of_its_sites():
    """North has the centers (1, 0) and (9, 3), South (1, 3) and (31/3, -1); the server weights each alike."""
    model = fc.simulate(fc.KFED(2, n_local_clusters=2), [NORTH, SOUTH], seed=0).model
    order = np.argsort(model.cluster_centers_[:, 0])
    expected = [[(1 + 1) / 2, (0 + 3) / 2], [(9 + 31 / 3) / 2, (3 - 1) / 2]]
    np.testing.assert_allclose(model.cluster_centers_[order], expected, atol=1e-6)


def test_a_mixture_without_noise_has_the_shares_means_and_covariances_of_the_groups():
    """The deviations from the means are (-1, -1), (1, -1), (0, 2) left, and (-1, 3), (0, 0), (1, 0), (0, -3) right."""
    model = fc.simulate(
        fc.PrivateMixture(2, epsilon=None, covariance_type="full"), [NORTH, SOUTH], seed=0
    ).model
    order = np.argsort(model.means_[:, 0])
    np.testing.assert_allclose(model.weights_[order], [3 / 7, 4 / 7], atol=1e-6)
    np.testing.assert_allclose(model.means_[order], CENTERS, atol=1e-5)
    left = [[(1 + 1 + 0) / 3, (1 - 1 + 0) / 3], [(1 - 1 + 0) / 3, (1 + 1 + 4) / 3]]
    right = [
        [(1 + 0 + 1 + 0) / 4, (-3 + 0 + 0 + 0) / 4],
        [(-3 + 0 + 0 + 0) / 4, (9 + 0 + 0 + 9) / 4],
    ]
    np.testing.assert_allclose(model.covariances_[order], [left, right], atol=1e-5)


def test_a_prepared_row_has_deviations_and_codes():
    """The doses have the mean 5 and the standard deviation 2; a category of three counts as much as one of two."""
    doses = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]
    table = pd.DataFrame(
        {"dose": doses, "sex": list("ffffmmmm"), "job": ["a", "b", None, "a", "a", "b", "b", "a"]}
    )
    columns = {
        "dose": {"kind": "number", "scale": "standard"},
        "sex": {"kind": "binary", "categories": ["f", "m"]},
        "job": {"kind": "category", "categories": ["a", "b"], "gaps": "category"},
    }
    model = fc.simulate(
        fc.FederatedKMeans(2, n_rounds=1),
        [table[:3], table[3:]],
        schema={"columns": columns},
        seed=0,
    ).model
    half, job = 1 / np.sqrt(2), {"a": 0, "b": 1, None: 2}
    expected = [
        [
            (dose - 5) / 2,
            -1 / 2 if sex == "f" else 1 / 2,
            *(half * (place == job[one]) for place in range(3)),
        ]
        for dose, sex, one in zip(
            doses, "ffffmmmm", ["a", "b", None, "a", "a", "b", "b", "a"], strict=True
        )
    ]
    np.testing.assert_allclose(model.preparation.transform(table), expected, atol=1e-3)


def test_the_scores_of_a_small_table():
    """Of eight rows in two classes, three of each four are in the cluster of their class."""
    found = agreement(np.array([[3, 1], [1, 3]]))
    assert found["accuracy"] == pytest.approx((3 + 3) / 8)
    pairs, of_a_side, all_pairs = 3 + 3, 6 + 6, 8 * 7 / 2
    by_chance = of_a_side * of_a_side / all_pairs
    assert found["ari"] == pytest.approx((pairs - by_chance) / (of_a_side - by_chance))
    shared = 2 * 3 / 8 * np.log((3 / 8) / (1 / 2 * 1 / 2)) + 2 * 1 / 8 * np.log(
        (1 / 8) / (1 / 2 * 1 / 2)
    )
    assert found["nmi"] == pytest.approx(shared / np.log(2))


def test_the_cost_of_a_run_is_that_of_its_rows_and_of_their_common_mean():
    """Without clusters the mean of all seven rows is (43 / 7, 3 / 7)."""
    result = fc.simulate(fc.FederatedKMeans(2, init=START, n_rounds=1), [NORTH, SOUTH], seed=0)
    squares = (0 + 4 + 81 + 1 + 100 + 121 + 100) + (0 + 0 + 9 + 9 + 0 + 0 + 9)
    metrics = result.summary()["metrics"]
    assert metrics["cost"] == pytest.approx(COST, abs=1e-5)
    assert metrics["cost_per_row"] == pytest.approx(COST / 7, abs=1e-6)
    assert metrics["cost_of_one_cluster"] == pytest.approx(
        squares / 7 - (43 / 7) ** 2 - (3 / 7) ** 2, abs=1e-5
    )
    assert metrics["largest_cluster"] == pytest.approx(4 / 7)
