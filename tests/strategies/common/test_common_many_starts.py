"""k-means without noise: near the best pooled k-means, with the same bits however the rows are distributed."""

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, load_iris, load_wine, make_blobs
from sklearn.metrics import adjusted_rand_score
from sklearn.preprocessing import StandardScaler

import flower_fedclust as fc
from flower_fedclust.engine import ClientData
from flower_fedclust.exact.rows import Frame
from flower_fedclust.strategies.common.many_starts import StartsClient, sketch_of, spectrum_of

HEPTA_MEANS = 3.0 * np.vstack([np.zeros(3), np.eye(3), -np.eye(3)])


def hepta():
    """Return seven balls, and the ball of each row."""
    classes = np.repeat(np.arange(7), 30)
    return HEPTA_MEANS[classes] + np.random.default_rng(0).uniform(
        -0.6, 0.6, size=(210, 3)
    ), classes


def iris_with_an_outlier():
    rows, classes = load_iris(return_X_y=True)
    return np.vstack([rows, rows.mean(axis=0) + 1000 * rows.std(axis=0)]), np.append(classes, 3)


def scaled_wine():
    rows, classes = load_wine(return_X_y=True)
    return StandardScaler().fit_transform(rows), classes


def strategies(n_clusters):
    made = [fc.FederatedKMeans(n_clusters), fc.PrivateKMeans(n_clusters, epsilon=None)]
    for strategy in made:
        strategy.min_clients = 1
    return made


def run(strategy, clients):
    return fc.simulate(strategy, clients, seed=0, progress=False)


@pytest.mark.parametrize("strategy", strategies(7), ids=lambda strategy: strategy.name)
def test_every_partition_of_the_rows_gives_the_same_bits(strategy):
    rows, classes = hepta()
    shuffled = np.random.default_rng(1).permutation(rows)
    by_class = [rows[classes == one] for one in range(7)]
    partitions = [
        [rows],
        by_class,
        by_class[::-1],
        np.array_split(shuffled, 10),
        np.split(shuffled, [1, 2, 200]),
        list(shuffled[:, None, :]),
    ]
    found = [run(strategy, clients).model.cluster_centers_ for clients in partitions]
    assert all(np.array_equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("strategy", strategies(7), ids=lambda strategy: strategy.name)
def test_separate_balls_are_found_although_each_client_has_only_one(strategy):
    rows, classes = hepta()
    result = run(strategy, [rows[classes == one] for one in range(7)])
    assert adjusted_rand_score(classes, np.concatenate(result.labels)) == 1.0


@pytest.mark.parametrize(
    ("load", "n_clusters"),
    [
        (lambda: load_iris(return_X_y=True), 3),
        (scaled_wine, 3),
        pytest.param(lambda: load_digits(return_X_y=True), 10, marks=pytest.mark.long),
        pytest.param(iris_with_an_outlier, 5, marks=pytest.mark.long),
        (lambda: make_blobs(3000, 40, centers=20, random_state=0), 20),
    ],
    ids=["iris", "wine", "digits", "outlier", "blobs"],
)
@pytest.mark.parametrize("index", [0, 1], ids=["federated", "private"])
def test_the_cost_is_near_the_best_of_pooled_kmeans(load, n_clusters, index):
    rows, classes = load()
    result = run(strategies(n_clusters)[index], np.array_split(rows[np.argsort(classes)], 5))
    pooled = min(
        KMeans(n_clusters, n_init=10, random_state=seed).fit(rows).inertia_ for seed in range(3)
    )
    assert result.model.cost(rows) <= 1.0025 * pooled
    assert (
        max(message.round for message in result.traffic)
        <= strategies(n_clusters)[index].num_rounds
        <= 40
    )


@pytest.mark.parametrize("n_rows", [4, 6])
def test_few_or_equal_rows_have_as_many_centers_as_asked_for(n_rows):
    for rows in (np.arange(3.0 * n_rows).reshape(n_rows, 3), np.ones((n_rows, 3))):
        for strategy in strategies(4):
            model = run(strategy, [rows]).model
            assert model.cluster_centers_.shape == (4, 3)
            assert n_rows > 4 or model.cost(rows) == pytest.approx(0.0, abs=1e-9)


def test_without_noise_no_row_is_clipped():
    rows, classes = hepta()
    result = run(
        fc.PrivateKMeans(7, epsilon=None, max_norm=0.1), [rows[classes == one] for one in range(7)]
    )
    means = [rows[classes == one].mean(axis=0) for one in range(7)]
    np.testing.assert_allclose(
        np.sort(result.model.cluster_centers_, axis=0), np.sort(means, axis=0), atol=1e-6
    )


def test_sums_of_several_starts_are_those_of_a_slow_loop():
    rng = np.random.default_rng(2)
    rows, starts, directions = (
        rng.normal(size=(60, 3)),
        rng.normal(size=(4, 5, 2)),
        np.eye(3)[:, 1:],
    )
    client = StartsClient(ClientData(rows), name="0")
    sums, counts = client.start_sums(starts, directions, frame=Frame(np.zeros(3), 8.0))
    expected, n = np.zeros((4, 5, 3)), np.zeros((4, 5))
    for index, start in enumerate(starts):
        for row in rows:
            nearest = int(np.argmin([((row[1:] - point) ** 2).sum() for point in start]))
            expected[index, nearest] += row
            n[index, nearest] += 1
    np.testing.assert_allclose(sums.values, expected, atol=1e-4)
    assert np.array_equal(counts.values, n)


@pytest.mark.parametrize("noise", [0.0, 20.0])
def test_a_sketch_has_the_largest_eigenvectors_of_the_second_moment(noise):
    rng = np.random.default_rng(0)
    rows = (
        rng.normal(size=(2000, 3)) * [3.0, 2.0, 1.5] @ np.linalg.qr(rng.normal(size=(700, 3)))[0].T
    )
    rows += 0.02 * rng.normal(size=rows.shape)
    frame, sketch = Frame(np.zeros(700), 20.0), sketch_of(700, rng)
    (found,) = StartsClient(ClientData(rows), name="0").second_moment(frame=frame, **sketch)
    assert found.integers.nbytes < 700 * 701 / 2 * 8
    moment = found.values + noise * rng.normal(size=found.integers.shape)
    values, directions, n_above, edge, total = spectrum_of(moment, sketch, 2000.0, noise)
    exact, vectors = np.linalg.eigh(rows.T @ rows / 2000)
    np.testing.assert_allclose(values[:3], exact[::-1][:3], rtol=0.02 if noise == 0 else 0.3)
    assert np.linalg.svd(directions[:, :3].T @ vectors[:, -3:])[1].min() > 0.98 - 0.01 * noise
    assert total == pytest.approx(exact.sum(), rel=0.3)
    assert (edge > 0) == (noise > 0)
    assert n_above == (100 if noise == 0 else 3)


def test_few_columns_are_not_sketched():
    assert sketch_of(500, np.random.default_rng(0)) == {}


@pytest.mark.long
@pytest.mark.parametrize("given", [{"epsilon": None}, {"max_norm": 40.0}])
def test_clusters_in_600_columns_are_found_by_sketches(given):
    rows, classes = make_blobs(6000, 600, centers=4, random_state=0, center_box=(-2, 2))
    result = run(fc.PrivateKMeans(4, **given), np.array_split(rows, 3))
    assert adjusted_rand_score(classes, np.concatenate(result.labels)) > 0.99
