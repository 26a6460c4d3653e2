import tracemalloc

import numpy as np
import pytest
from scipy.linalg import block_diag, subspace_angles
from scipy.sparse import block_diag as sparse_block_diag
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from flower_fedclust.numerics.global_graph import (
    BETWEEN_CLIENTS,
    GlobalGraph,
    full_affinity,
    prototype_affinity,
    without_far_edges,
    without_far_links,
)
from flower_fedclust.numerics.prototypes import Prototypes, mean_distances, prototypes_of
from flower_fedclust.numerics.spectral import components_of, top_normalized_eigenvectors, unit_rows
from flower_fedclust.numerics.structural_graph import structural_graph

CLIENT = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
COUNTS = np.array([10.0, 4.0, 7.0, 20.0, 3.0, 5.0, 5.0, 9.0, 1.0])


def random_divergences(size=9, seed=0, scale=5.0):
    J = scale * np.random.default_rng(seed).exponential(size=(size, size))
    J = J + J.T
    np.fill_diagonal(J, 0.0)
    return J


def slow_affinity(J, counts, client, n_kept, weight):
    """The affinity as its docstring says, one prototype at a time, before and after it is made symmetric."""
    size = len(J)
    others = [
        sorted((b for b in range(size) if client[b] != client[a]), key=lambda b: J[a, b])
        for a in range(size)
    ]
    nearest = [J[a, others[a][0]] for a in range(size)]
    tau = np.median([J[a, others[a][(n_kept - 1) // 3]] for a in range(size)])
    A = np.zeros((size, size))
    for a in range(size):
        for b in others[a][:n_kept]:
            A[a, b] = np.exp(-(J[a, b] - nearest[a]) / tau)
        A[a] *= weight / (A[a] @ counts)
    return A, 0.5 * (A + A.T)


# Affinities


@pytest.mark.parametrize("n_nearest", [None, 1, 2, 3, 5])
@pytest.mark.parametrize("weight", [BETWEEN_CLIENTS, 2.0])
def test_affinity_is_that_of_one_prototype_after_the_other(n_nearest, weight):
    J = random_divergences()
    one_sided, expected = slow_affinity(J, COUNTS, CLIENT, n_nearest or 2, weight)
    assert (one_sided @ COUNTS <= weight * (1 + 1e-12)).all()
    found = prototype_affinity(J, COUNTS, CLIENT, n_nearest=n_nearest, weight=weight)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-300)


def test_by_default_a_row_gives_half_to_other_clients():
    J = random_divergences()
    expected = slow_affinity(J, COUNTS, CLIENT, 2, 0.5 * np.sqrt(2))[1]
    np.testing.assert_allclose(prototype_affinity(J, COUNTS, CLIENT), expected, rtol=1e-10)


def test_affinity_is_symmetric_and_0_within_a_client():
    found = prototype_affinity(random_divergences(), COUNTS, CLIENT)
    np.testing.assert_array_equal(found, found.T)
    assert not found[CLIENT[:, None] == CLIENT].any()
    assert (found >= 0).all()
    assert (found.sum(axis=1) > 0).all()


@pytest.mark.parametrize("scale", [1e-9, 1e6, 1e12])
def test_divergences_of_any_size_neither_underflow_nor_overflow(scale):
    # What matters is how large they are in comparison with each other.
    J = random_divergences()
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        found = prototype_affinity(scale * J, COUNTS, CLIENT)
    np.testing.assert_allclose(found, prototype_affinity(J, COUNTS, CLIENT), rtol=1e-9)


def two_clients_of_which_one_lacks_a_cluster():
    """Client 0 has prototypes at 0, 1 and 50, client 1 at 0.1, 1.2 and 1.5: that at 50 has its nearest far away."""
    places, client = np.array([0.0, 1.0, 50.0, 0.1, 1.2, 1.5]), np.array([0, 0, 0, 1, 1, 1])
    return (places[:, None] - places) ** 2, client


def test_of_two_clients_only_mutual_links_count():
    J, client = two_clients_of_which_one_lacks_a_cluster()
    # As many parts as there are: no bridges.
    for n_nearest, n_clusters, expected in (
        (1, 4, [(0, 3), (1, 4)]),
        # 1 is no link of 0.1, because 1.2 and 1.5 are nearer to it.
        (None, 2, [(0, 3), (0, 4), (1, 4), (1, 5)]),
    ):
        found = prototype_affinity(
            J, np.ones(6), client, n_nearest=n_nearest, n_clusters=n_clusters
        )
        assert [tuple(map(int, pair)) for pair in np.argwhere(np.triu(found) > 0)] == expected


def test_with_two_clients_a_prototype_has_up_to_two_mutual_links():
    places, client = np.array([0.0, 1.0, 2.0, 0.1, 1.1, 2.1]), np.array([0, 0, 0, 1, 1, 1])
    J = (places[:, None] - places) ** 2
    # Three parts are allowed, so that no bridge can make up for a link that is missing.
    found = prototype_affinity(J, np.ones(6), client, n_clusters=3)
    links = [tuple(map(int, pair)) for pair in np.argwhere(np.triu(found) > 0)]
    # The two nearest of 1.1 are 1 and 2, so 0 has a single mutual link.
    assert links == [(0, 3), (1, 3), (1, 4), (2, 4), (2, 5)]


def test_bridges_are_the_shortest_links_that_leave_as_many_parts_as_there_are_clusters():
    J, client = two_clients_of_which_one_lacks_a_cluster()
    # 1 is nearer to 0.1 than 0 is to 1.2.
    for n_clusters, expected in (
        (3, [(0, 3), (1, 4), (1, 5)]),
        (2, [(0, 3), (1, 3), (1, 4), (1, 5)]),
    ):
        found = prototype_affinity(J, np.ones(6), client, n_nearest=1, n_clusters=n_clusters)
        assert [(int(a), int(b)) for a, b in np.argwhere(np.triu(found) > 0)] == expected
    # What a client's own rows join needs no bridge; and where no bridge can be, none is looked for without end.
    part = np.array([0, 0, 1, 0, 0, 0])
    for n_clusters, parts, n_links in ((2, part, 2), (1, None, 5)):
        found = prototype_affinity(
            J, np.ones(6), client, n_nearest=1, part=parts, n_clusters=n_clusters
        )
        assert (np.triu(found) > 0).sum() == n_links


def test_equally_short_bridges_come_together():
    places, client = np.array([0.0, 10.0, 1.0, 11.0]), np.array([0, 0, 1, 1])
    J = np.abs(places[:, None] - places)
    J[0, 3] = J[3, 0] = J[1, 2] = J[2, 1] = 9.0
    found = prototype_affinity(J, np.ones(4), client, n_nearest=1, n_clusters=1)
    assert (found[[0, 1], [3, 2]] > 0).all()


@pytest.mark.parametrize(
    ("n_clusters", "n_prototypes", "n_near"),
    [(2, 200, 9), (2, 40, 5), (2, 8, 2), (20, 720, 4), (20, 1200, 5), (20, 100, 2), (20, 1600, 7)],
)
def test_the_more_prototypes_a_cluster_has_the_more_of_them_are_near(
    n_clusters, n_prototypes, n_near
):
    places = np.arange(n_prototypes, dtype=np.float64)  # the first has its n-th nearest at n
    J = np.abs(places[:, None] - places)
    ends = np.array([0, 1, *range(2, n_prototypes)])
    edge = np.zeros((n_prototypes, n_prototypes))
    edge[0, :] = edge[:, 0] = 1.0
    client = np.zeros(n_prototypes, dtype=int)
    found = without_far_edges(csr_array(edge), ends, J, client, n_clusters).toarray()[0]
    assert np.flatnonzero(found == 1.0).max() == n_near


def test_more_prototypes_of_a_client_with_few_rows_are_near():
    places = np.arange(240.0)  # of one cluster: a mean twelfth are 20 of them
    J = np.abs(places[:, None] - places)
    client = np.arange(240) % 2
    edge = np.zeros((240, 240))
    edge[0, :] = edge[:, 0] = 1.0
    sizes = np.where(client == 0, 5.0, 1.0)  # 720 rows; two neighbors have 6
    for order in (np.arange(240), np.random.default_rng(0).permutation(240)):
        back = np.argsort(order)
        found = without_far_edges(
            csr_array(edge),
            back,
            J[np.ix_(order, order)],
            client[order],
            1,
            sizes=sizes,
        ).toarray()[0]
        assert np.flatnonzero(found == 1.0).max() == 20
    alone = np.where(places > 0, 1.0, 121.0)  # all clients but the first have few rows
    found = without_far_edges(
        csr_array(edge), np.arange(240), J, (places > 0).astype(int), 1, sizes=alone
    ).toarray()[0]
    assert np.flatnonzero(found == 1.0).max() == 30


def test_an_edge_between_prototypes_far_from_each_other_counts_less():
    places = np.array([0.0, 1, 2, 3, 4, 4.2, 6.3, 9])  # the fourth from 0 is at 4, from 9 at 3
    J = (places[:, None] - places) ** 2
    prototype, one = np.array([0, 0, 5, 6, 7]), np.zeros(8, dtype=int)
    found = without_far_edges(csr_array(1.0 - np.eye(5)), prototype, J, one, 1).toarray()
    expected = 1.0 - np.eye(5)
    expected[:2, 2] = expected[2, :2] = (4 / 4.2) ** 16
    expected[:2, 3:] = expected[3:, :2] = 0.03  # a part of the weight of outliers is left
    np.testing.assert_allclose(found, expected)
    np.testing.assert_allclose(
        without_far_edges(csr_array(1.0 - np.eye(5)), prototype, 1e9 * J, one, 1).toarray(),
        expected,
    )
    ones = csr_array(1.0 - np.eye(4))
    np.testing.assert_array_equal(
        without_far_edges(ones, np.zeros(4, dtype=int), np.zeros((1, 1)), one[:1], 1).toarray(),
        1 - np.eye(4),
    )


def test_a_link_longer_than_the_edges_within_clients_fades():
    J = np.array([[0.0, 2, 4, 1], [2, 0, 9, 2], [4, 9, 0, 3], [1, 2, 3, 0]])
    affinity = np.array([[0.0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]])
    # The edges of the first client join prototypes with J = 2, and one of the second joins those with J = 3.
    graph = np.zeros((5, 5))
    graph[[0, 1, 0], [1, 0, 4]] = [2.0, 2.0, 9.0]  # the last edge is within a prototype
    graph[[2, 3], [3, 2]] = 1.0
    prototype = np.array([0, 1, 2, 3, 0])
    client = np.array([0, 0, 1, 1])
    found = without_far_links(affinity, csr_array(graph), prototype, J, client, 2)
    half, far = 0.5**8, (2 / 9) ** 8
    np.testing.assert_allclose(
        found, [[0, 0, half, 1], [0, 0, far, 1], [half, far, 0, 0], [1, 1, 0, 0]]
    )
    scaled = without_far_links(affinity, csr_array(graph), prototype, 1e9 * J, client, 2)
    np.testing.assert_allclose(scaled, found)
    # No client joins two prototypes, so nothing says how long an edge may be.
    alone = csr_array(np.eye(5))
    np.testing.assert_array_equal(
        without_far_links(affinity, alone, prototype, J, client, 2), affinity
    )


def test_links_do_not_fade_if_most_edges_join_equal_rows():
    J = np.array([[0.0, 0, 4, 4], [0, 0, 4, 4], [4, 4, 0, 0], [4, 4, 0, 0]])
    affinity = np.kron([[0.0, 1], [1, 0]], np.ones((2, 2)))
    graph, own = csr_array(np.kron(np.eye(2), [[0, 1], [1, 0]])), np.arange(4)
    np.testing.assert_array_equal(without_far_links(affinity, graph, own, J, own // 2, 2), affinity)


def test_the_shortest_links_of_a_client_with_few_rows_do_not_fade():
    J = np.array([[0.0, 2, 50, 90], [2, 0, 40, 70], [50, 40, 0, 2], [90, 70, 2, 0]])
    affinity = np.kron([[0.0, 1], [1, 0]], np.ones((2, 2)))
    prototype, client = np.repeat([0, 1, 2, 3], [20, 20, 1, 1]), np.array([0, 0, 1, 1])
    graph = csr_array(np.where(J[prototype][:, prototype] == 2, 1.0, 0.0))
    found = without_far_links(affinity, graph, prototype, J, client, 2)
    np.testing.assert_array_equal(found[[2, 3], [1, 1]], [1.0, 1.0])
    assert (found[[2, 3], [0, 0]] < 0.5).all()
    many = np.repeat([0, 1, 2, 3], [20, 20, 20, 20])
    same = csr_array(np.where(J[many][:, many] == 2, 1.0, 0.0))
    assert (without_far_links(affinity, same, many, J, client, 2)[2:, :2] < 1e-9).all()


def test_where_most_of_the_nearest_divergences_are_0_their_mean_is_the_scale():
    J = np.full((5, 5), 8.0)
    J[:3, :3], J[3:, 3:] = 0.0, 4.0
    client = np.array([0, 1, 2, 0, 1])  # the nearest: 0, 0, 0, 4, 4
    with np.errstate(divide="raise", invalid="raise"):
        found = prototype_affinity(J, np.ones(5), client, weight=0.5)
    near, far = 1.0, np.exp(-(8.0 - 4.0) / (8.0 / 5.0))
    # 3 keeps 4 and, equally near, 1 and 2.
    assert found[3, 4] == pytest.approx(0.5 * near / (near + 2 * far))
    # 1 and 2 keep only what coincides with them.
    assert found[3, 1] == pytest.approx(0.5 * 0.5 * far / (near + 2 * far))
    assert found[0, 1] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("n_clients", "n_prototypes", "n_clusters", "n_links"),
    # As many as there are other clients; but 10 of many clients, or a twentieth of the prototypes of a cluster.
    [(4, 80, 1, 3), (30, 120, 1, 10), (30, 480, 2, 12), (30, 480, 10, 10), (20, 1000, 1, 19)],
)
def test_many_clients_need_no_more_links_than_a_part_of_a_cluster(
    n_clients, n_prototypes, n_clusters, n_links
):
    J = random_divergences(n_prototypes)
    client = np.arange(n_prototypes) % n_clients
    found = prototype_affinity(J, np.ones(n_prototypes), client, n_clusters=n_clusters)
    # A link that only its other end keeps is longer than the links that the prototype keeps.
    foreign = np.where(client[:, None] != client, J, np.inf)
    nearest = np.argsort(foreign, axis=1)
    kept = np.take_along_axis(found > 0, nearest, axis=1)
    assert kept[:, :n_links].all()
    assert not kept[:, n_links:].all(axis=0).any()
    assert (found > 0).sum() <= 2 * n_links * n_prototypes


def test_many_clients_do_not_tear_a_line_of_prototypes_apart():
    # The more clients share a line, the nearer the nearest prototypes are. The other links must keep their weight.
    shares = []
    for n_clients in (5, 40):
        places = np.sort(np.random.default_rng(0).uniform(size=10 * n_clients))
        J = (places[:, None] - places) ** 2
        client = np.arange(len(places)) % n_clients
        found = prototype_affinity(J, np.ones(len(places)), client, n_clusters=2)
        shares.append(np.median(found.max(axis=1) / found.sum(axis=1)))
    assert shares[1] < 0.6 * shares[0]


def test_affinity_does_not_change_with_the_units_of_the_rows():
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(90, 3)) * [1, 3, 9], np.repeat(np.arange(9), 10)

    def affinity(factor):
        return prototype_affinity(
            mean_distances(prototypes_of(factor * rows, labels)), np.full(9, 10.0), CLIENT
        )

    np.testing.assert_allclose(affinity(1e-5), affinity(1.0), rtol=1e-7)


def test_full_affinity_is_symmetric_and_positive_however_far_prototypes_are():
    KL = np.random.default_rng(0).exponential(size=(6, 6)) * 10.0 ** np.arange(6)
    np.fill_diagonal(KL, 0.0)
    J = 0.5 * (KL + KL.T)
    tau = np.median([np.delete(row, index).min() for index, row in enumerate(J)])
    found = full_affinity(KL)
    np.testing.assert_allclose(found, tau / (tau + J), rtol=1e-13)
    assert (full_affinity(1e9 * J) > 0).all()
    np.testing.assert_allclose(full_affinity(1e9 * J), found, rtol=1e-12)
    np.testing.assert_array_equal(full_affinity(np.zeros((1, 1))), [[1.0]])
    np.testing.assert_array_equal(full_affinity(np.zeros((3, 3))), np.ones((3, 3)))


# The graph


def random_graph(seed=0, *, n_edges=2, affinity=None):
    """Three clients of 12, 9 and 15 rows with nine prototypes, of which one has no row."""
    rng = np.random.default_rng(seed)
    parts, prototype = [], []
    for n_rows, own in [(12, [0, 1, 2]), (9, [3, 4]), (15, [5, 6, 7])]:
        parts.append(structural_graph(rng.normal(size=(n_rows, 2)), n_edges).symmetric)
        prototype.append(rng.permutation(np.resize(own, n_rows)))
    if affinity is None:
        affinity = prototype_affinity(random_divergences(seed=seed), COUNTS, CLIENT)
    return GlobalGraph(csr_array(sparse_block_diag(parts)), np.concatenate(prototype), affinity)


def normalized(E):
    degrees = np.where(E.sum(axis=1) > 0, E.sum(axis=1), 1.0)
    return E / np.sqrt(np.outer(degrees, degrees))


def test_toarray_is_equation_9():
    graph = random_graph()
    E = graph.toarray()
    assert graph.n_rows == 36
    client = np.repeat([0, 1, 2], [12, 9, 15])
    for i in range(36):
        for j in range(36):
            between = graph.affinity[graph.prototype[i], graph.prototype[j]]
            assert E[i, j] == (graph.blocks.toarray()[i, j] if client[i] == client[j] else between)
    np.testing.assert_allclose(E, E.T, rtol=1e-14)


def test_a_node_of_several_equal_rows_has_the_weights_of_all():
    plain, rng = random_graph(), np.random.default_rng(1)
    sizes = rng.integers(1, 4, size=36).astype(np.float64)
    each = np.repeat(np.eye(36), sizes.astype(int), axis=0)  # which node a row is
    blocks = csr_array(each.T @ (each @ plain.blocks.toarray() @ each.T) @ each)
    between = each @ (plain.toarray() - plain.blocks.toarray()) @ each.T
    graph = GlobalGraph(blocks, plain.prototype, plain.affinity, sizes)
    expected = blocks.toarray() + each.T @ between @ each
    np.testing.assert_allclose(graph.toarray(), expected, atol=1e-12)
    vectors = rng.normal(size=(36, 3))
    np.testing.assert_allclose(graph.product(vectors), expected @ vectors, atol=1e-12)


@pytest.mark.parametrize("density", [0.0, 0.05, 0.15, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_components_are_those_of_the_matrix(seed, density):
    rng = np.random.default_rng(seed)
    A = np.triu(np.where(rng.random((9, 9)) < density, 0.1, 0.0), 1) * (CLIENT[:, None] != CLIENT)
    graph = random_graph(seed, n_edges=1, affinity=A + A.T)
    n_components, component = graph.components()
    expected, labels = connected_components(graph.toarray(), directed=False)
    assert n_components == expected
    assert sorted(set(component)) == list(range(expected))
    assert adjusted_rand_score(labels, component) == 1.0
    assert component.dtype == np.intp


def test_a_prototype_without_a_row_connects_nothing():
    # With noise a cell may seem to have rows. Here 0 and 2 are near to nothing but 1, which has no row.
    A = np.array([[0.0, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.5, 0.0]])
    graph = GlobalGraph(csr_array((4, 4)), np.array([0, 0, 2, 2]), A)
    assert graph.components()[0] == 4 == components_of(csr_array(graph.toarray()))[0]


@pytest.mark.parametrize("n_vectors", [1, 2, 4])
def test_embedding_spans_the_top_eigenvectors_with_rows_of_norm_1(n_vectors):
    graph = random_graph(n_edges=4)
    assert graph.components()[0] == 1
    vectors = np.linalg.eigh(normalized(graph.toarray()))[1][:, ::-1][:, :n_vectors]
    embedding = graph.embedding(n_vectors, np.ones((9, 9)))
    expected = unit_rows(vectors)
    np.testing.assert_allclose(embedding @ embedding.T, expected @ expected.T, atol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(embedding, axis=1), 1.0)


def test_top_eigenvectors_of_products_are_those_of_the_matrix():
    graph = random_graph(n_edges=4)
    _, component = graph.components()
    found = top_normalized_eigenvectors(graph.product, graph.degrees, 5, component)
    vectors = np.linalg.eigh(normalized(graph.toarray()))[1][:, ::-1][:, :5]
    np.testing.assert_allclose(found.T @ found, np.eye(5), atol=1e-6)
    assert subspace_angles(found, vectors).max() < 1e-3
    everything = top_normalized_eigenvectors(graph.product, graph.degrees, 36, component)
    np.testing.assert_allclose(everything @ everything.T, np.eye(36), atol=1e-9)
    beyond = top_normalized_eigenvectors(graph.product, graph.degrees, 40, component)
    assert beyond.shape == (36, 40)
    assert not beyond[:, 36:].any()


def far_pieces(distance):
    """Six prototypes of three clients, each a component: two near each other, two a little farther, two far away."""
    positions = np.array([0.0, 1.0, 10.0, 11.0, 10.0 + distance, 11.0 + distance])
    found = Prototypes(positions[:, None], np.ones((6, 1)), np.full(6, 4.0))
    graph = GlobalGraph(
        csr_array(block_diag(*[np.ones((4, 4))] * 6)), np.repeat(np.arange(6), 4), np.zeros((6, 6))
    )
    return graph, full_affinity(mean_distances(found))


@pytest.mark.parametrize("distance", [40.0, 400.0, 1e4])
def test_of_more_components_than_clusters_those_with_near_prototypes_are_together(distance):
    # exp(-J) between the parts would be 0, and which of them are nearer would not be seen.
    graph, fallback = far_pieces(distance)
    for n_clusters, expected in [(2, [0, 0, 0, 0, 1, 1]), (3, [0, 0, 1, 1, 2, 2])]:
        embedding = graph.embedding(n_clusters, fallback)
        found = KMeans(n_clusters, n_init=10, random_state=0).fit_predict(embedding)
        assert adjusted_rand_score(np.repeat(expected, 4), found) == 1.0


def test_components_that_several_prototypes_have_are_compared_row_by_row():
    prototype = np.array([0, 0, 1, 2, 2, 2, 3, 3])
    affinity = np.array(
        [[1, 0.9, 0.2, 0], [0.9, 1, 0.1, 0.4], [0.2, 0.1, 1, 0.3], [0, 0.4, 0.3, 1]]
    )
    graph = GlobalGraph(
        csr_array(block_diag(*[np.ones((n, n)) for n in (3, 3, 2)])), prototype, np.zeros((4, 4))
    )
    by_row = affinity[np.ix_(prototype, prototype)]
    parts = np.split(np.arange(8), [3, 6])
    between = np.array([[by_row[np.ix_(one, other)].sum() for other in parts] for one in parts])
    expected = unit_rows(np.linalg.eigh(normalized(between))[1][:, ::-1][:, :2])
    embedding = graph.embedding(2, affinity)[[0, 3, 6]]
    np.testing.assert_allclose(embedding @ embedding.T, expected @ expected.T, atol=1e-9)


def test_no_array_of_all_rows_by_all_rows_is_made():
    n_rows = 5_000
    rng = np.random.default_rng(0)
    blocks = [structural_graph(rng.normal(size=(n_rows // 4, 2)), 5).symmetric for _ in range(4)]
    prototype = np.repeat(np.arange(20), n_rows // 20)
    client = np.repeat(np.arange(4), 5)
    counts = np.full(20, n_rows / 20)
    affinity = prototype_affinity(random_divergences(20), counts, client, n_nearest=10)
    graph = GlobalGraph(csr_array(sparse_block_diag(blocks)), prototype, affinity)
    tracemalloc.start()
    try:
        graph.product(np.ones((n_rows, 3)))
        graph.components()
        embedding = graph.embedding(3, np.ones((20, 20)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert embedding.shape == (n_rows, 3)
    assert peak < 20e6  # of all rows by all rows: 2e8 bytes
