"""What a client says of its rows in SPP-FGC, and how the server reads it."""

import numpy as np
import pytest

from flower_fedclust.data import load_dataset
from flower_fedclust.engine import ClientData, DataError, Reply
from flower_fedclust.numerics.prototypes import prototypes_of
from flower_fedclust.numerics.structural_graph import (
    client_graph,
    neighbors_of_client,
    structural_graph,
)
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.strategies.spp_fgc import spp_fgc
from flower_fedclust.strategies.spp_fgc.spp_fgc import (
    SPPFGCClient,
    atoms,
    n_atoms_of,
    read_uploads,
)

RNG = np.random.default_rng(0)
MEANS = np.array([[0.0, 0, 0], [9, 0, 0], [0, 9, 0]])
CLASSES = RNG.integers(3, size=60)
ROWS = MEANS[CLASSES] + RNG.normal(size=(60, 3))
ARGUMENTS = {
    "n_clusters": 3, "n_neighbors": 5, "n_prototypes": 6, "diagonal": False,
    "random_state": 0,
}  # fmt: skip


def gathered(replies):
    return read_uploads(replies, 1)


def graph_reply(rows, name="0", **options):
    client = SPPFGCClient(ClientData(rows), name=name, noise_seed=0)
    with one_thread():  # as in a run
        return Reply(name, list(client.structural_graph(**(ARGUMENTS | options))))


def test_graph_that_arrives_is_the_one_that_the_client_has():
    found = gathered(
        [graph_reply(ROWS[:20]), graph_reply(ROWS[20:], "1"), graph_reply(ROWS[:1], "2")]
    )
    assert [block.shape[0] for block in found.blocks] == [20, 40, 1]
    for block, rows in zip(found.blocks, (ROWS[:20], ROWS[20:], ROWS[:1]), strict=True):
        graph = structural_graph(rows, neighbors_of_client(len(rows), 3, 5))
        np.testing.assert_allclose(block.toarray(), graph.symmetric.toarray(), atol=1e-7)
    dense = found.diagonal.toarray()
    assert dense.shape == (61, 61)
    assert not dense[:20, 20:].any()
    np.testing.assert_allclose(dense[:60].sum(), 60, rtol=1e-6)
    assert found.n_rows == 61


def test_prototypes_of_all_clients_are_numbered_one_after_the_other():
    replies = [graph_reply(ROWS[:20]), graph_reply(ROWS[20:], "1")]
    found = gathered(replies)
    assert found.client.tolist() == [0] * 6 + [1] * 6
    for first, rows in ((0, ROWS[:20]), (6, ROWS[20:])):
        own = found.prototype[:20] if first == 0 else found.prototype[20:]
        assert set(own) == set(range(first, first + 6))
        slow = prototypes_of(rows, own - first)
        np.testing.assert_allclose(found.prototypes.means[first : first + 6], slow.means)
        np.testing.assert_allclose(
            found.prototypes.covariances[first : first + 6], slow.covariances
        )
        assert np.array_equal(found.prototypes.counts[first : first + 6], slow.counts)


CLUMPS = np.concatenate(
    [RNG.normal(size=(6, 3)) * 0.01 + 50 * RNG.normal(size=3) for _ in range(5)]
)


def test_atoms_are_parts_of_the_clusters():
    for n_atoms in (1, 3, 9):
        labels = atoms(ROWS, n_atoms, np.random.default_rng(0))
        assert np.array_equal(np.unique(labels), np.arange(n_atoms))
        if n_atoms >= 3:
            assert all(len(set(CLASSES[labels == atom])) == 1 for atom in range(n_atoms))
    # Of more components than atoms, too.
    labels = atoms(CLUMPS, 2, np.random.default_rng(0))
    assert np.array_equal(np.unique(labels), [0, 1])
    assert all(len(set(labels[i : i + 6])) == 1 for i in range(0, 30, 6))


def test_atoms_of_many_rows_do_not_bridge_the_gaps_between_rings():
    rings = load_dataset("rings-20d", n_rows=1250, radii=(1.0, 2.0, 3.0, 4.0, 5.0))
    labels = atoms(rings.rows, n_atoms_of(1250, 5, 0), np.random.default_rng(0))
    pairs = np.unique(np.column_stack([labels, np.asarray(rings.labels)]), axis=0)
    assert len(pairs) == len(np.unique(labels))


@pytest.mark.parametrize(
    ("n_rows", "n_clusters", "wanted", "expected"),
    # Ten for each cluster; one for 11 rows; 100; half of the rows; the number that was asked for.
    [
        (200, 3, 0, 30),
        (660, 3, 0, 60),
        (5000, 3, 0, 100),
        (5000, 12, 0, 120),
        (40, 3, 0, 20),
        (660, 3, 7, 7),
    ],
)
def test_number_of_atoms_by_default(n_rows, n_clusters, wanted, expected):
    assert n_atoms_of(n_rows, n_clusters, wanted) == expected


# Equal rows


def test_of_equal_rows_the_first_has_the_edges_and_the_server_joins_them_to_one_node():
    rows = ROWS[[0, 1, 0, 2, 3, 1, 0, 4, 5, 6]]
    found = gathered(
        [graph_reply(ROWS[:5], n_prototypes=2), graph_reply(rows, "1", n_prototypes=2)]
    )
    assert found.node.tolist() == [0, 1, 2, 3, 4, 5, 6, 5, 7, 8, 6, 5, 9, 10, 11]
    assert found.sizes.tolist() == [1] * 5 + [3, 2, 1, 1, 1, 1, 1]
    assert (found.n_rows, found.n_nodes) == (15, 12)
    # Each copy has the edges of its row.
    graph = client_graph(ROWS[:7], 3, 5)
    directed = np.zeros((7, 7))
    np.put_along_axis(directed, graph.neighbors, graph.weights, axis=1)
    directed *= np.array([3.0, 2, 1, 1, 1, 1, 1])[:, None]
    np.testing.assert_allclose(found.blocks[1].toarray(), (directed + directed.T) / 2, atol=1e-6)
    assert found.rows_of_prototypes(np.zeros(12, dtype=np.intp), 1).sum() == 15


def test_a_copy_of_a_copy_is_refused():
    reply = graph_reply(ROWS[[0, 0, 1, 2, 3, 4]], n_prototypes=2)
    neighbors = reply.arrays[1].reshape(6, -1)
    neighbors[2], reply.arrays[2].reshape(6, -1)[2] = 1, 0
    with pytest.raises(DataError, match="do not fit together"):
        gathered([reply])


def test_randomness_of_a_client_with_many_rows_is_its_own(monkeypatch):
    monkeypatch.setattr(spp_fgc, "MOST_ROWS_OF_WARD", 50)
    one, same, other = (
        graph_reply(ROWS, name, n_prototypes=20).arrays[0] for name in ("0", "0", "1")
    )
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


# Replies that cannot be right


def outside(position, value):
    def change(arrays):
        arrays[position] = arrays[position].copy()
        arrays[position].flat[3] = value

    return change


def shorter(position):
    def change(arrays):
        arrays[position] = arrays[position][:-1]

    return change


def deeper(position):
    def change(arrays):
        arrays[position] = arrays[position][None]

    return change


def diagonal(arrays):
    arrays[4] = np.ones_like(arrays[3])


BAD = {
    "prototype_too_large": outside(0, 6),
    "prototype_negative": outside(0, -1),
    "neighbor_too_large": outside(1, 20),
    "neighbor_negative": outside(1, -1),
    "weight_negative": outside(2, -0.1),
    "count_of_none": outside(5, 0.0),
    **{f"shorter_{position}": shorter(position) for position in range(6)},
    **{f"deeper_{position}": deeper(position) for position in range(6)},
    "diagonal_where_others_are_full": diagonal,
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_graph_that_does_not_fit_is_refused_in_a_sentence_that_names_the_client(change):
    replies = [
        graph_reply(ROWS[:20], "a"),
        graph_reply(ROWS[20:40], "b"),
        graph_reply(ROWS[40:], "c"),
    ]
    change(replies[0].arrays)
    with pytest.raises(DataError, match="client a"):
        gathered(replies)
