import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from flower_fedclust.numerics.global_graph import (
    EVERY_PAIR,
    EXACT_EVERY_PAIR,
    vote_embedding,
    vote_graph,
)
from flower_fedclust.numerics.kmeans import squared_distances
from flower_fedclust.numerics.spectral import unit_rows


def circle(radius, n_points):
    angles = 2 * np.pi * np.arange(n_points) / n_points
    return radius * np.column_stack([np.cos(angles), np.sin(angles)])


def cast(rows, centers):
    """The votes of rows for the pair of their two nearest centers, one row at a time."""
    table = np.zeros((len(centers), len(centers)))
    for nearest in np.argsort(squared_distances(rows, centers), axis=1)[:, :2]:
        table[nearest.min(), nearest.max()] += 1
    return table[np.triu_indices(len(centers), 1)]


@pytest.fixture
def rings():
    """Centers on two rings, and votes of rows on them."""
    rng = np.random.default_rng(0)
    centers = np.vstack([circle(1.0, 8), circle(4.0, 16)])
    directions = circle(1.0, 3000)
    radii = np.where(np.arange(3000) % 3 == 0, 1.0, 4.0)
    rows = directions * radii[:, None] + rng.normal(scale=0.1, size=(3000, 2))
    return centers, cast(rows, centers), np.repeat([0, 1], [8, 16])


def clusters_of(votes, centers, scale=0.0, n_clusters=2):
    embedding = vote_embedding(vote_graph(votes, centers, scale), n_clusters)
    return KMeans(n_clusters, n_init=10, random_state=0).fit_predict(embedding)


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_votes_that_noise_alone_would_give_count_as_none(scale):
    # Of 10 votes of nothing but Laplace noise, one is above scale ln(5) on average.
    threshold = scale * np.log(5.0)
    votes = threshold * np.array([1.001, 0.999, -5.0, 2.0, 0.5, 1.0, 3.0, 0.0, 1.5, 4.0])
    graph = vote_graph(votes, np.arange(5.0)[:, None], scale)
    kept = graph[np.triu_indices(5, 1)]
    np.testing.assert_array_equal(kept, np.where(votes > threshold, votes, 0.0))
    noise = np.random.default_rng(0).laplace(scale=scale, size=(100_000, 10))
    assert (noise > threshold).sum(axis=1).mean() == pytest.approx(1.0, abs=0.02)


def test_without_noise_votes_are_squared_and_a_center_without_any_is_joined_to_the_nearest():
    centers = np.array([[0.0], [1.0], [10.0], [14.0]])
    votes = np.array([6.0, 0.0, 0.0, 2.0, 0.0, 0.0])  # none for the last
    graph = vote_graph(votes, centers, 0.0)
    np.testing.assert_array_equal(
        graph, [[0, 36, 0, 0], [36, 0, 4, 0], [0, 4, 0, 20], [0, 0, 20, 0]]
    )


def test_the_graph_is_symmetric_and_not_negative_with_a_diagonal_of_0():
    rng = np.random.default_rng(0)
    for _ in range(20):
        graph = vote_graph(rng.laplace(size=28), rng.normal(size=(8, 2)), 1.0)
        np.testing.assert_array_equal(graph, graph.T)
        assert (graph >= 0).all()
        assert not graph.diagonal().any()
        assert (graph.sum(axis=1) > 0).all()


def test_votes_separate_two_rings_that_no_centers_would(rings):
    centers, votes, truth = rings
    assert adjusted_rand_score(truth, clusters_of(votes, centers)) == 1.0
    assert (
        adjusted_rand_score(truth, KMeans(2, n_init=10, random_state=0).fit_predict(centers)) < 0.5
    )


@pytest.mark.parametrize("factor", [0.1, 1.0, 1e3, 1e6])
def test_a_lonely_center_has_the_cluster_of_the_nearest_however_many_rows_vote(rings, factor):
    centers, votes, truth = rings
    first, second = np.triu_indices(len(centers), 1)
    for lonely in (3, 12):
        some = factor * np.where((first == lonely) | (second == lonely), 0.0, votes)
        assert adjusted_rand_score(truth, clusters_of(some, centers)) == 1.0


@pytest.mark.parametrize("n_vectors", [1, 2, 5, 23, 24])
def test_embedding_is_the_top_eigenvectors_with_rows_of_norm_1(rings, n_vectors):
    centers, votes, _ = rings
    graph = vote_graph(votes, centers, 0.0)
    connected = graph + EVERY_PAIR * graph.sum(axis=1).mean() / len(graph)
    roots = np.sqrt(connected.sum(axis=1))
    expected = unit_rows(
        np.linalg.eigh(connected / np.outer(roots, roots))[1][:, ::-1][:, :n_vectors]
    )
    embedding = vote_embedding(graph, n_vectors)
    assert embedding.shape == (24, n_vectors)
    np.testing.assert_allclose(embedding @ embedding.T, expected @ expected.T, atol=2e-3)


def test_a_thin_ring_with_few_votes_is_not_cut_instead_of_the_gap_to_another():
    ring, votes = np.arange(100), np.zeros((200, 200))
    for start, each in ((0, 30), (100, 10)):
        first, second = start + ring, start + (ring + 1) % 100
        votes[first, second] = votes[second, first] = each
    graph = vote_graph(votes[np.triu_indices(200, 1)], np.zeros((200, 1)), 0.0)

    def agreement(every_pair):
        labels = KMeans(2, n_init=10, random_state=0).fit_predict(
            vote_embedding(graph, 2, every_pair)
        )
        return adjusted_rand_score(np.repeat([0, 1], 100), labels)

    assert agreement(EXACT_EVERY_PAIR) == 1.0
    assert agreement(EVERY_PAIR) < 0.5
