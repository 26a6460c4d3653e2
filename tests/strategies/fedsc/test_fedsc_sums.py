"""FedSCSums against the pooled computation of the same formulas, and against FedSC."""

import warnings

import numpy as np
import pytest
from sklearn.cluster import KMeans
from test_fedsc import CLASSES, CLIENTS, ROWS, federation

from flower_fedclust.numerics.kernel import mean_distance
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.fedsc import FedSCSums


def kernel(rows, Z, r):
    return np.exp(-((rows[:, None, :] - Z) ** 2).sum(axis=2) / (2 * r**2))


def nearest(rows, centers):
    return ((rows[:, None, :] - centers) ** 2).sum(axis=2).argmin(axis=1)


def means_of(rows, labels, fallback):
    return np.array(
        [
            rows[labels == c].mean(axis=0) if (labels == c).any() else fallback[c]
            for c in range(len(fallback))
        ]
    )


def slow_sums(rows, Z, r, n_clusters, rng, *, regularization=0.01, floor=1e-3, n_lloyd_rounds=20):
    """The dense variant on rows that are all at hand: projection, embedding, centers and labels."""
    values, vectors = np.linalg.eigh(kernel(Z, Z, r))
    to_factors = (
        vectors @ np.diag(np.sqrt(np.maximum(values, 0)) / (values + regularization)) @ vectors.T
    )
    F = kernel(rows, Z, r) @ to_factors
    degrees = (F @ F.T).sum(axis=1)
    degrees = np.maximum(degrees, floor * degrees.mean())
    values, vectors = np.linalg.eigh(F.T @ np.diag(1 / degrees) @ F)
    projection = to_factors @ vectors[:, ::-1][:, :n_clusters] / np.sqrt(values[::-1][:n_clusters])

    def embed(points):
        embedded = kernel(points, Z, r) @ projection
        return embedded / np.linalg.norm(embedded, axis=1, keepdims=True)

    embedded, atoms = embed(rows), embed(Z)
    cells = nearest(embedded, atoms)
    seed = int(rng.integers(2**31))
    found = KMeans(n_clusters, n_init=10, random_state=seed).fit(
        means_of(embedded, cells, atoms), sample_weight=np.bincount(cells, minlength=len(Z))
    )
    centers = found.cluster_centers_
    for _ in range(n_lloyd_rounds):
        centers = means_of(embedded, nearest(embedded, centers), centers)
    return projection, centers, nearest(embedded, centers), degrees


def assert_same_model(model, projection, centers, atol):
    # An eigenvector is one up to its sign.
    signs = np.sign(np.sum(model.projection_ * projection, axis=0))
    np.testing.assert_allclose(model.projection_, projection * signs, rtol=1e-4, atol=atol)
    np.testing.assert_allclose(model.embedding_centers_, centers * signs, rtol=0, atol=atol)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_lloyd_rounds": 1},
        {"n_lloyd_rounds": 0},
        {"degree_floor": 0.9},
        {"regularization": 0.1},
    ],
)
@pytest.mark.parametrize("n_rounds", [0, 3])
def test_without_noise_it_is_the_pooled_computation(n_rounds, options):
    iris = federation("iris", 0)
    rows = np.concatenate(iris.clients)
    result = simulate(FedSCSums(3, n_rounds=n_rounds, random_state=7, **options), iris.clients)
    rng = np.random.default_rng(7)
    r = np.mean([mean_distance(part) for part in iris.clients])
    Z = rows.mean(axis=0) + rows.std(axis=0) * rng.standard_normal(result.model.dictionary_.shape)
    if n_rounds == 0:
        np.testing.assert_allclose(result.model.dictionary_, Z, rtol=0, atol=1e-5)
    else:
        assert np.abs(result.model.dictionary_ - Z).max() > 1e-3
    assert result.model.bandwidth_ == pytest.approx(r, rel=1e-6)
    own = {{"degree_floor": "floor"}.get(name, name): value for name, value in options.items()}
    projection, centers, labels, degrees = slow_sums(
        rows, result.model.dictionary_, result.model.bandwidth_, 3, rng, **own
    )
    if "degree_floor" in options:
        assert (degrees == degrees.min()).sum() > 10  # the floor is in force
    assert_same_model(result.model, projection, centers, 1e-4)
    assert np.array_equal(np.concatenate(result.labels), labels)


@pytest.mark.parametrize(
    "clients",
    [
        [ROWS[::-1][:60], ROWS[::-1][60:]],
        [ROWS[c == CLASSES] for c in range(3)],
        [row[None] for row in ROWS],
    ],
    ids=["two", "by_class", "one_row_each"],
)
def test_partition_of_the_rows_changes_nothing_where_no_client_takes_steps_of_its_own(clients):
    def model(clients):
        return simulate(FedSCSums(3, n_rounds=0, bandwidth=6.0, random_state=0), clients).model

    one, other = model(CLIENTS), model(clients)
    np.testing.assert_allclose(one.dictionary_, other.dictionary_, rtol=0, atol=1e-5)
    assert_same_model(one, other.projection_, other.embedding_centers_, 1e-8)
    assert np.array_equal(one.predict(ROWS), other.predict(ROWS))


def blobs(n_rows=8000, n_columns=10, n_clusters=5):
    rng = np.random.default_rng(0)
    means = rng.normal(size=(n_clusters, n_columns))
    means *= 8 / np.linalg.norm(means, axis=1, keepdims=True)
    classes = np.arange(n_rows) % n_clusters
    return means[classes] + rng.normal(size=(n_rows, n_columns)) * 0.5, classes


@pytest.mark.parametrize("noise", ["server", "clients", "local"])
def test_separated_blobs_are_found_at_epsilon_1(noise):
    rows, classes = blobs()
    strategy = FedSCSums(5, epsilon=1.0, max_norm=10.0, noise=noise)
    for seed in range(2):
        result = simulate(
            strategy, np.array_split(rows, 4), labels=np.array_split(classes, 4), seed=seed
        )
        assert result.metrics["accuracy"] > 0.95
        assert result.privacy.covers_everything


# Rows and parameters that are odd


@pytest.mark.parametrize("bandwidth", [1e-9, 1e-3, 1e9])
def test_bandwidths_that_make_all_rows_alike_give_no_nan(bandwidth):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        result = simulate(FedSCSums(3, bandwidth=bandwidth), CLIENTS, seed=0)
    assert all(np.isfinite(array).all() for array in result.model.to_arrays())
    assert [len(labels) for labels in result.labels] == [len(rows) for rows in CLIENTS]
