"""FedSC: the paper's figures, the steps of its protocol, and what becomes of odd rows and parameters."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from watching import failing, watched

from flower_fedclust.data.datasets import load_dataset
from flower_fedclust.data.partition import partition
from flower_fedclust.numerics.spectral import similarity_graph
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.common import spectral
from flower_fedclust.strategies.fedsc import FedSC
from flower_fedclust.strategies.maps.speclust import FedSpeClust

RNG = np.random.default_rng(0)
MEANS = np.array([[0.0, 0, 0, 0], [9, 0, 0, 0], [0, 9, 0, 0]])
CLASSES = RNG.integers(3, size=120)
ROWS = MEANS[CLASSES] + RNG.normal(size=(120, 4))
CUTS = [20, 55, 95]
CLIENTS = np.split(ROWS, CUTS)
LABELS = np.split(CLASSES, CUTS)


def run_of(clients=CLIENTS, n_clusters=3, labels=None, names=None, **options):
    """Return the result and the messages of a run."""
    strategy, _, messages = watched(FedSC)
    result = simulate(
        strategy(n_clusters, random_state=0, **options), clients, labels=labels, names=names
    )
    return result, messages


def federation(name, seed, n_clients=8):
    table = load_dataset(name)
    if name == "breast-cancer":
        table = dataclasses.replace(
            table, rows=(table.rows - table.rows.mean(axis=0)) / table.rows.std(axis=0)
        )
    return partition(table, "iid", n_clients=n_clients, random_state=seed)


FIGURES = {  # clusters, seeds, accuracy, NMI
    "iris": (3, 4, 0.89, 0.67),
    "breast-cancer": (2, 3, 0.93, 0.60),
    "digits": (10, 3, 0.80, 0.84),
    "circles": (2, 2, 0.99, 0.95),
}


@pytest.fixture(scope="module")
def figures():
    """The runs of a data set, made once."""
    made = {}

    def get(name):
        if name not in made:
            n_clusters, n_seeds, *_ = FIGURES[name]
            made[name] = []
            for seed in range(n_seeds):
                rows = federation(name, seed)
                made[name].append(
                    (rows, simulate(FedSC(n_clusters), rows.clients, labels=rows.labels, seed=seed))
                )
        return made[name]

    return get


# Equal rows


def answers_of(seed):
    """A questionnaire: 600 rows with four answers from 1 to 5, about a hundred of which differ."""
    rng = np.random.default_rng(seed)
    classes, typical = rng.integers(3, size=600), rng.integers(1, 6, size=(3, 4))
    rows = np.clip(typical[classes] + rng.choice([-1, 0, 0, 0, 1], size=(600, 4)), 1, 5).astype(
        float
    )
    return np.array_split(rows, 4), classes


@pytest.mark.parametrize(
    "strategy", [FedSC(3), FedSpeClust(3, n_rounds=10)], ids=["fedsc", "fed-speclust"]
)
def test_copies_do_not_take_the_places_of_neighbors(strategy):
    found = []
    for seed in range(2):
        clients, classes = answers_of(seed)
        result = simulate(strategy, clients, seed=seed)
        found.append(adjusted_rand_score(classes, np.concatenate(result.labels)))
        clusters = {}
        for row, label in zip(
            np.concatenate(clients).tolist(), np.concatenate(result.labels), strict=True
        ):
            assert clusters.setdefault(tuple(row), label) == label
    assert min(found) > 0.5


# Figures


@pytest.mark.long
@pytest.mark.parametrize("name", FIGURES)
def test_clusters_of_eight_clients_are_as_good_as_in_the_paper(figures, name):
    _, _, accuracy, nmi = FIGURES[name]
    metrics = [result.metrics for _, result in figures(name)]
    assert np.mean([each["accuracy"] for each in metrics]) >= accuracy
    assert np.mean([each["nmi"] for each in metrics]) >= nmi


@pytest.mark.parametrize("name", ["iris", "circles"])
def test_objective_falls_in_every_round(figures, name):
    for _, result in figures(name):
        objectives = result.history["objective"]
        assert len(objectives) == 10
        assert all(later < earlier for earlier, later in pairwise(objectives))


# Stage I


def test_fraction_fit_asks_fewer_clients_in_stage_one_and_nowhere_else():
    clients = np.array_split(ROWS, 8)
    result, _ = run_of(clients, fraction_fit=0.25, n_rounds=4)
    asked = {}
    for row in result.traffic:
        asked.setdefault((row.round, row.task), set()).add(row.client)
    assert {task: len(names) for (_, task), names in asked.items()} == {
        "enrol": 8, "entry_exponent": 8, "column_sums": 8, "reach": 8, "column_spread": 8, "dictionary_steps": 2,
        "codes": 8, "keep_labels": 8,
    }  # fmt: skip
    assert (
        len({frozenset(names) for (_, task), names in asked.items() if task == "dictionary_steps"})
        > 1
    )


def test_codes_belong_to_the_dictionary_of_the_model_and_solve_equation_14():
    result, messages = run_of(n_rounds=2, regularization=0.02)
    Z, r = result.model.dictionary_, result.model.bandwidth_
    kernel = np.array(
        [[np.exp(-np.sum((one - other) ** 2) / (2 * r**2)) for other in Z] for one in Z]
    )
    for task, name, parameters, sent, *_ in messages:
        if task == "codes":
            assert np.array_equal(parameters[0], Z)
            of_rows = np.array(
                [
                    [np.exp(-np.sum((x - z) ** 2) / (2 * r**2)) for z in Z]
                    for x in CLIENTS[int(name)]
                ]
            )
            codes = np.linalg.solve(kernel + 0.02 * np.eye(len(Z)), of_rows.T).T
            np.testing.assert_allclose(sent[0], codes, rtol=0, atol=1e-9)


# Stage II


def slow_labels(codes, Z, r, n_clusters, n_neighbors):
    """Spectral clustering of the reconstructed kernel, with arrays of n x n entries."""
    kernel = np.array(
        [[np.exp(-np.sum((one - other) ** 2) / (2 * r**2)) for other in Z] for one in Z]
    )
    similarity = codes @ kernel @ codes.T
    if n_neighbors is not None:
        similarity /= np.sqrt(np.outer(similarity.diagonal(), similarity.diagonal()))
        np.fill_diagonal(similarity, -np.inf)
        kept = np.zeros(similarity.shape)
        for row, largest in enumerate(np.argsort(similarity, axis=1)[:, -n_neighbors:]):
            kept[row, largest] = np.maximum(similarity[row, largest], 0)
        similarity = (kept + kept.T) / 2
    scale = 1 / np.sqrt(similarity.sum(axis=1))
    _, vectors = np.linalg.eigh(scale[:, None] * similarity * scale)
    top = vectors[:, -n_clusters:]
    return KMeans(n_clusters, n_init=10, random_state=0).fit_predict(
        top / np.linalg.norm(top, axis=1, keepdims=True)
    )


@pytest.mark.parametrize(
    ("options", "n_neighbors"),
    [
        ({}, 6),
        ({"n_neighbors": 20}, 20),
        ({"sparsify": False}, None),
        ({"n_neighbors": 10_000}, 149),
    ],
)
def test_labels_are_those_of_spectral_clustering_with_the_reconstructed_kernel(
    options, n_neighbors
):
    iris = federation("iris", 0)
    result, messages = run_of(iris.clients, **options)
    codes = np.concatenate([each.sent[0] for each in messages if each.task == "codes"])
    expected = slow_labels(codes, result.model.dictionary_, result.model.bandwidth_, 3, n_neighbors)
    assert adjusted_rand_score(np.concatenate(result.labels), expected) > 0.97


def test_factors_of_the_sparse_graph_have_norm_1_as_the_kernel_of_a_row_with_itself(monkeypatch):
    seen = []
    monkeypatch.setattr(
        spectral,
        "similarity_graph",
        lambda F, *a, **k: seen.append(F) or similarity_graph(F, *a, **k),
    )
    simulate(FedSC(3, random_state=0), federation("iris", 0).clients)
    np.testing.assert_allclose(np.linalg.norm(seen[0], axis=1), 1.0)


def test_rings_need_the_sparse_graph():
    circles = federation("circles", 0)
    dense = simulate(FedSC(2, sparsify=False), circles.clients, labels=circles.labels, seed=0)
    assert dense.metrics["accuracy"] < 0.7


def test_working_memory_changes_nothing(monkeypatch):
    iris = federation("iris", 0)
    large = simulate(FedSC(3, random_state=0), iris.clients)
    monkeypatch.setattr("flower_fedclust.strategies.common.spectral.WORKING_MEMORY", 1000)
    small = simulate(FedSC(3, random_state=0), iris.clients)
    for one, other in zip(large.labels, small.labels, strict=True):
        assert np.array_equal(one, other)
    for one, other in zip(large.model.to_arrays(), small.model.to_arrays(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


# What a run leaves behind


def test_clients_keep_their_labels():
    result, messages = run_of(names=["10", "9", "b", "a"], labels=LABELS)
    kept = {each.client: each.kept["labels"] for each in messages if each.task == "keep_labels"}
    assert set(kept) == set(result.names)
    assert result.metrics["accuracy"] == 1.0
    for name, labels, rows in zip(result.names, result.labels, CLIENTS, strict=True):
        assert len(labels) == len(rows)
        assert np.array_equal(kept[name], labels)


# Clients that fail


def test_client_that_sends_no_codes_gets_no_labels_and_the_others_get_theirs():
    result = simulate(failing(FedSC, "codes", {"1"})(3, random_state=0), CLIENTS, labels=LABELS)
    assert [len(labels) for labels in result.labels] == [20, 0, 40, 25]
    assert result.metrics["accuracy"] == 1.0
    assert {row.client for row in result.traffic if row.task == "keep_labels"} == {"0", "2", "3"}
    assert [(failure.task, failure.reason) for failure in result.failures] == [
        ("codes", "client 1 fails.")
    ]
    assert result.model.predict(CLIENTS[1]).shape == (35,)


# Rows that are odd


@pytest.mark.parametrize("sparsify", [True, False])
@pytest.mark.parametrize("bandwidth", [1e-9, 1e-3])
def test_a_bandwidth_so_small_that_the_kernel_vanishes_is_told_and_gives_no_nan(
    bandwidth, sparsify
):
    with pytest.warns(RuntimeWarning, match="n_clusters") as told:
        result = simulate(FedSC(3, bandwidth=bandwidth, sparsify=sparsify), CLIENTS, seed=0)
    assert len(told) == 1
    assert all(np.isfinite(array).all() for array in result.model.to_arrays())
    assert [len(labels) for labels in result.labels] == [len(rows) for rows in CLIENTS]
    assert np.isfinite(result.history["objective"]).all()


@pytest.mark.parametrize(
    "rows", [ROWS * 1e-150, ROWS * 1e100, ROWS + 1e7], ids=["tiny", "huge", "far"]
)
def test_unit_and_origin_of_the_rows_do_not_matter(rows):
    result = simulate(FedSC(3), np.split(rows, CUTS), labels=LABELS, seed=0)
    assert result.metrics["accuracy"] == 1.0
