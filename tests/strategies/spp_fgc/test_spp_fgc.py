"""SPP-FGC: what it finds, what the printed recipe finds, and what it does with odd rows, clients and parameters."""

import dataclasses
import itertools
import warnings

import numpy as np
import pytest
from flwr.common import Code, FitRes, Status
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score
from tested import PAPERS

from flower_fedclust.data import Table
from flower_fedclust.data.datasets import load_dataset
from flower_fedclust.data.partition import partition
from flower_fedclust.engine import DataError
from flower_fedclust.engine.wire import encode, with_hash
from flower_fedclust.models import PrototypeModel
from flower_fedclust.numerics.global_graph import without_far_edges
from flower_fedclust.numerics.prototypes import mean_distances, prototypes_of, shrunk
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.spp_fgc.spp_fgc import SPPFGC

RNG = np.random.default_rng(0)
MEANS = np.array([[0.0, 0, 0, 0], [9, 0, 0, 0], [0, 9, 0, 0]])
CLASSES = RNG.integers(3, size=120)
ROWS = MEANS[CLASSES] + RNG.normal(size=(120, 4))
CUTS = [20, 55, 95]
CLIENTS = np.split(ROWS, CUTS)
LABELS = np.split(CLASSES, CUTS)

NOISE = {"epsilon": 20.0, "max_l1_norm": 20.0}
N_CLUSTERS = {"iris": 3, "breast-cancer": 2, "moons": 2}
MODES = {"own": SPPFGC(3), "diagonal": SPPFGC(3, covariance="diagonal")}
#: The task in which clients of some modes send their graphs, and modes that odd rows go through.
TASKS, ODD_MODES, PLAIN_MODES = {"own": "structural_graph"}, ["own"], ["own"]
if PAPERS:
    from flower_fedclust_papers.spp_fgc_printed import SPPFGCPrinted
    from flower_fedclust_papers.spp_fgc_private_prototypes import SPPFGCPrivatePrototypes

    OURS = {"solver": "spectral", "prototypes": "atoms", "affinity": "distances"}
    MODES |= {
        "private": SPPFGCPrivatePrototypes(3, **NOISE),
        "private_diagonal": SPPFGCPrivatePrototypes(3, **NOISE, covariance="diagonal"),
        "clr": SPPFGCPrinted(3, **OURS | {"solver": "clr", "assignment": "components"}),
        "printed": SPPFGCPrinted(3),
        "gmm": SPPFGCPrinted(3, **OURS | {"prototypes": "gmm"}),
        "kl": SPPFGCPrinted(3, **OURS | {"affinity": "kl"}),
        "paper": SPPFGCPrinted(3, **OURS, **NOISE),
        "paper_gmm": SPPFGCPrinted(3, **OURS | {"prototypes": "gmm"}, **NOISE),
    }
    TASKS, ODD_MODES = (
        {"private": "cell_prototypes", "printed": "printed_graph"},
        ["private", "printed"],
    )
    PLAIN_MODES = ["own", "gmm"]


def scaled(name):
    """The rows as the paper has them: of L1 norm 1 (Iris), or each column in [0, 1] (breast cancer)."""
    table = load_dataset(name)
    rows = table.rows
    if name == "iris":
        rows = rows / np.abs(rows).sum(axis=1, keepdims=True)
    elif name == "breast-cancer":
        rows = (rows - rows.min(axis=0)) / (rows.max(axis=0) - rows.min(axis=0))
    return dataclasses.replace(table, rows=rows)


def accuracies(name, scheme, seeds, n_clients=4, kind=SPPFGC):
    found = []
    for seed in seeds:
        parts = partition(scaled(name), scheme, n_clients=n_clients, random_state=seed)
        result = simulate(kind(N_CLUSTERS[name]), parts.clients, labels=parts.labels, seed=seed)
        found.append(result.metrics["accuracy"])
    return found


def quiet(strategy, clients, **options):
    """Run where fewer clusters than asked for may come out, and the warning of it says so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return simulate(strategy, clients, **({"seed": 0} | options))


def assert_complete(result, clients):
    assert [len(labels) for labels in result.labels] == [len(rows) for rows in clients]
    assert all(np.isfinite(array).all() for array in result.model.to_arrays())
    assert not result.failures


# What it finds


@pytest.mark.parametrize(
    ("name", "accuracy"), [("iris", 0.94), ("breast-cancer", 0.92), ("moons", 0.98)]
)
def test_clusters_of_clients_that_are_alike_are_found(name, accuracy):
    assert min(accuracies(name, "iid", range(3))) >= accuracy


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "accuracy"), [("iris", 0.90), ("breast-cancer", 0.91), ("moons", 0.90)]
)
def test_clusters_of_clients_that_differ_are_found_on_average(name, accuracy):
    assert np.mean(accuracies(name, "dirichlet:0.5", range(5))) >= accuracy


@pytest.mark.parametrize(("name", "accuracy"), [("iris", 0.94), ("moons", 0.97)])
def test_two_clients_of_which_one_lacks_much_of_a_cluster_find_it(name, accuracy):
    # A prototype whose nearest foreign one is far away must not be joined to it: moons were 0.86, iris 0.92.
    assert np.mean(accuracies(name, "dirichlet:0.5", range(5), n_clients=2)) >= accuracy


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_each_row_a_label_and_a_model_that_agrees(mode):
    result = quiet(MODES[mode], CLIENTS, labels=LABELS)
    assert_complete(result, CLIENTS)
    is_exact = MODES[mode].epsilon is None and mode != "printed"
    if mode == "printed":
        assert result.metrics["accuracy"] < 0.9  # three blobs that are far apart
    elif is_exact:
        assert result.metrics["accuracy"] == 1.0
    again = PrototypeModel.from_arrays(result.model.to_arrays())
    agree = np.concatenate([again.predict(rows) for rows in CLIENTS]) == np.concatenate(
        result.labels
    )
    assert agree.mean() >= (0.98 if is_exact else 0.7)


# The server's graph


def seen_by_the_server(mode):
    seen, kind = {}, type(MODES[mode])
    global_graph = kind._global_graph

    def watched(self, found, prototypes):
        graph, divergences = global_graph(self, found, prototypes)
        seen.update(found=found, prototypes=prototypes, divergences=divergences, graph=graph)
        return graph, divergences

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "_global_graph", watched)
        quiet(MODES[mode], CLIENTS)
    return seen


def test_global_graph_has_the_graphs_of_the_clients_on_its_diagonal_and_prototypes_between_them():
    seen = seen_by_the_server("own")
    dense, owner = seen["graph"].toarray(), seen["found"].client
    ends = [0, *CUTS, len(ROWS)]
    blocks = without_far_edges(
        seen["found"].diagonal, seen["found"].prototype, seen["divergences"], owner, 3
    ).toarray()
    for index, (start, end) in enumerate(itertools.pairwise(ends)):
        np.testing.assert_allclose(
            dense[start:end, start:end], blocks[start:end, start:end], atol=1e-12
        )
        assert (blocks[start:end, start:end] <= seen["found"].blocks[index].toarray()).all()
    between = dense[:20, 20:]
    assert between.any()
    of_prototypes = seen["graph"].affinity[
        np.ix_(seen["found"].prototype[:20], seen["found"].prototype[20:])
    ]
    assert np.array_equal(between, of_prototypes)
    assert not seen["graph"].affinity[owner[:, None] == owner].any()
    np.testing.assert_allclose(seen["divergences"], mean_distances(seen["prototypes"]))
    np.testing.assert_allclose(
        seen["prototypes"].covariances, shrunk(seen["found"].prototypes).covariances
    )


# The protocol


@pytest.mark.parametrize(("position", "value"), [(0, 99), (1, -1), (2, -1.0)])
@pytest.mark.parametrize(("mode", "task"), TASKS.items())
def test_graph_that_points_outside_ends_the_run_in_a_sentence(
    monkeypatch, mode, task, position, value
):
    client_type = MODES[mode].client_type
    fit = client_type.fit

    def lying(self, parameters, config):
        sent, n_examples, facts = fit(self, parameters, config)
        if config["task"] == task and self.name == "0":
            sent[position] = sent[position].copy()
            sent[position].flat[-1] = value
            # A client that lies sends the hash of its lie.
            facts = with_hash(FitRes(Status(Code.OK, ""), encode(sent), n_examples, facts)).metrics
        return sent, n_examples, facts

    monkeypatch.setattr(client_type, "fit", lying)
    with pytest.raises(DataError, match="client 0"):
        quiet(MODES[mode], CLIENTS)


# Rows and clients that are odd


ODD = {
    "more_clusters_than_a_client_has_rows": (
        [ROWS[6 * i : 6 * i + 6] for i in range(8)],
        {"n_clusters": 10},
    ),
    "one_row": ([*CLIENTS, ROWS[:1]], {}),
    "one_row_each": ([row[None] for row in ROWS[:15]], {}),
    "two_rows_each": ([ROWS[2 * i : 2 * i + 2] for i in range(8)], {}),
    "one_class_each": ([ROWS[c == CLASSES] for c in range(3)], {}),
    "more_neighbors_than_rows": (CLIENTS, {"n_neighbors": 500}),
    "all_equal": ([np.full((n, 4), 0.1) for n in (5, 7)], {}),
    "all_zero": ([np.zeros((n, 4)) for n in (5, 7)], {}),
    "duplicates": ([np.repeat(MEANS, 5, axis=0)] * 3, {}),
    "singular": ([rows[:, [0, 1, 1, 0]] for rows in CLIENTS], {}),
    "constant_column": ([np.column_stack([rows, np.full(len(rows), 3.0)]) for rows in CLIENTS], {}),
    "one_column": ([rows[:, :1] - rows[:, 1:2] for rows in CLIENTS], {}),
    "100_columns": (
        [np.column_stack([rows, 0.3 * RNG.normal(size=(len(rows), 96))]) for rows in CLIENTS],
        {},
    ),
    "tiny": ([1e-150 * rows for rows in CLIENTS], {}),
    "huge": ([1e100 * rows for rows in CLIENTS], {}),
    "large_and_singular": ([1e6 * rows[:, [0, 1, 1, 0]] for rows in CLIENTS], {}),
    "far": ([1e7 + rows for rows in CLIENTS], {}),
    "one_client": ([ROWS], {"min_clients": 1}),
}


@pytest.mark.parametrize(("clients", "options"), ODD.values(), ids=ODD)
@pytest.mark.parametrize("mode", ODD_MODES)
def test_odd_rows_get_labels_all_the_same(clients, options, mode):
    assert_complete(quiet(clone(MODES[mode]).set_params(**options), clients), clients)


@pytest.mark.parametrize(
    "name",
    sorted(
        ODD.keys()
        - {
            "more_clusters_than_a_client_has_rows",
            "two_rows_each",
            "one_class_each",
            "all_equal",
            "all_zero",
        }
    ),
)
@pytest.mark.parametrize("mode", PLAIN_MODES)
def test_clusters_that_are_plain_are_found_in_odd_rows(name, mode):
    clients, options = ODD[name]
    truth = {
        "duplicates": [np.repeat([0, 1, 2], 5)] * 3,
        "one_row": [*LABELS, CLASSES[:1]],
        "one_row_each": [CLASSES[i : i + 1] for i in range(15)],
        "one_client": [CLASSES],
    }.get(name, LABELS)
    result = quiet(clone(MODES[mode]).set_params(**options), clients, labels=truth)
    assert_complete(result, clients)
    assert result.metrics["accuracy"] >= 0.99


@pytest.mark.parametrize("n_points", [2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_equal_rows_are_in_one_cluster(n_points, seed):
    points = np.random.default_rng(seed).normal(size=(n_points, 2))
    rows, classes = np.repeat(points, 25, axis=0), np.repeat(np.arange(n_points), 25)
    result = simulate(SPPFGC(n_points, min_clients=2), [rows, rows[::-1]], seed=seed)
    assert (
        adjusted_rand_score(np.concatenate([classes, classes[::-1]]), np.concatenate(result.labels))
        == 1
    )
    assert np.array_equal(result.model.predict(rows), result.labels[0])
    assert result.doubts == ()


def test_a_client_with_spread_is_not_left_out_where_others_have_copies_alone():
    # The variance of three copies of 0.1 is what rounding leaves.
    copies = [np.repeat([[0.1, 0.7], [2.9, 0.3]], 3, axis=0) for _ in range(3)]
    spread = np.random.default_rng(0).normal(size=(30, 2))
    variances = [prototypes_of(rows, np.arange(6) // 3).variances.max() for rows in copies]
    assert 0 < max(variances) < 1e-20
    result = simulate(SPPFGC(2), [*copies, spread], seed=0)
    assert result.failures == []


@pytest.mark.parametrize("seed", range(2))
def test_sites_that_were_dealt_by_a_column_do_not_become_clusters(seed):
    rng = np.random.default_rng(seed)
    classes = rng.integers(2, size=1200)
    rows = rng.normal(size=(1200, 20)) + np.where(classes, 0.5, -0.5)[:, None]
    dealt = partition(Table(rows, classes), "sorted:0", n_clients=8)
    result = simulate(SPPFGC(2), dealt, seed=seed)
    assert adjusted_rand_score(np.concatenate(dealt.labels), np.concatenate(result.labels)) > 0.75


def test_covariances_are_diagonal_beyond_64_columns():
    clients, _ = ODD["100_columns"]
    assert quiet(SPPFGC(3), clients).model.covariances_.ndim == 2
    assert quiet(SPPFGC(3, covariance="full"), clients).model.covariances_.ndim == 3
    assert quiet(SPPFGC(3), CLIENTS).model.covariances_.ndim == 3


@pytest.mark.parametrize("n_different", [1, 2, 3])
def test_equal_rows_are_never_divided(n_different):
    """With fewer different rows than clusters, some clusters are empty, as with k-means of all rows."""
    rng = np.random.default_rng(0)
    different = rng.normal(size=(n_different, 3))
    clients = [different[rng.integers(n_different, size=n)] for n in (30, 20)]
    result = simulate("spp-fgc", clients, n_clusters=3, seed=0)
    rows, labels = np.concatenate(clients), np.concatenate(result.labels)
    found = [set(labels[(rows == row).all(axis=1)]) for row in different]
    assert [len(one) for one in found] == [1] * n_different
    assert len(set.union(*found)) == n_different
