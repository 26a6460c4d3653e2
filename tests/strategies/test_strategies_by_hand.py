"""Small tables whose result is computed by hand: what stands here is arithmetic, not the output of a run."""

import numpy as np
import pytest

import flower_fedclust as fc

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
