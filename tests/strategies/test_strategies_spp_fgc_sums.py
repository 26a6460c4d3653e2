"""SPP-FGC by sums alone: what it finds, that it does not matter who holds which row, and odd rows and clients."""

import dataclasses
import re
import warnings

import numpy as np
import pytest
from sklearn.cluster import KMeans

from flower_fedclust import DataError, ProtocolError, PrototypeModel, SPPFGCSums, simulate
from flower_fedclust.data.datasets import load_dataset
from flower_fedclust.data.partition import partition
from flower_fedclust.numerics.kmeans import kmeans_cost
from flower_fedclust.steps.cells import CellsClient
from flower_fedclust.strategies import spp_fgc_sums

RNG = np.random.default_rng(0)
MEANS = np.array([[0.0, 0, 0, 0], [9, 0, 0, 0], [0, 9, 0, 0]])
CLASSES = RNG.integers(3, size=120)
ROWS = MEANS[CLASSES] + RNG.normal(size=(120, 4))
CUTS = [20, 55, 95]
CLIENTS = np.split(ROWS, CUTS)
LABELS = np.split(CLASSES, CUTS)

NOISE = {"epsilon": 20.0, "max_l1_norm": 20.0}


def table_of(name):
    table = load_dataset(name)
    if name == "iris":
        table = dataclasses.replace(table, rows=table.rows / np.abs(table.rows).sum(axis=1, keepdims=True))
    return table


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


MOONS = table_of("moons")


@pytest.mark.parametrize("scheme", ["iid", "dirichlet:0.5", "classes:1"])
def test_moons_are_found_whoever_holds_the_rows(scheme):
    parts = partition(MOONS, scheme, n_clients=4, random_state=0)
    assert simulate(SPPFGCSums(2), parts.clients, labels=parts.labels, seed=0).metrics["accuracy"] >= 0.98


@pytest.mark.parametrize("options", [{}, {"n_prototypes": 20}, {"n_prototypes": 2, "n_lloyd_rounds": 2}])
def test_partition_of_the_rows_changes_nothing_but_rounding(options):
    models = []
    for scheme in ("iid", "dirichlet:0.5", "classes:1"):
        parts = partition(MOONS, scheme, n_clients=6, random_state=0)
        models.append(simulate(SPPFGCSums(2, random_state=0, **options), parts.clients).model)
    models.append(simulate(SPPFGCSums(2, random_state=0, **options), [row[None] for row in MOONS.rows[:1]] + [
        MOONS.rows[1:]
    ]).model)  # fmt: skip
    for other in models[1:]:
        for one, two in zip(models[0].to_arrays(), other.to_arrays(), strict=True):
            np.testing.assert_allclose(one, two, rtol=0, atol=1e-9)
        assert np.array_equal(models[0].predict(MOONS.rows), other.predict(MOONS.rows))


@pytest.mark.parametrize(("name", "n_clusters", "bound", "n_draws"), [("iris", 3, 1.0, 60), ("moons", 2, 3.2, 30)])
def test_epsilon_10_costs_little(name, n_clusters, bound, n_draws):
    def accuracy(seed, **options):
        strategy = SPPFGCSums(n_clusters, random_state=seed, **options)
        return simulate(strategy, parts.clients, labels=parts.labels, seed=seed).metrics["accuracy"]

    parts = partition(table_of(name), "iid", n_clients=4, random_state=0)
    exact = np.mean([accuracy(seed) for seed in range(5)])
    noisy = np.mean([accuracy(seed, epsilon=10.0, max_l1_norm=bound) for seed in range(n_draws)])
    assert exact >= 0.95
    assert noisy >= exact - 0.05


def test_with_one_prototype_a_cluster_it_is_k_means():
    parts = partition(table_of("iris"), "iid", n_clients=4, random_state=0)
    rows = np.concatenate(parts.clients)
    model = simulate(SPPFGCSums(3, n_prototypes=3, n_lloyd_rounds=30), parts.clients, seed=0).model
    best = KMeans(3, n_init=10, random_state=0).fit(rows)
    assert kmeans_cost(rows, model.means_) <= best.inertia_ * (1 + 1e-6)
    assert sorted(model.clusters_) == [0, 1, 2]


def test_labels_are_those_that_the_model_predicts_and_the_model_can_be_stored():
    result = simulate(SPPFGCSums(3), CLIENTS, labels=LABELS, seed=0)
    assert result.metrics["accuracy"] == 1.0
    again = PrototypeModel.from_arrays(result.model.to_arrays())
    for labels, rows in zip(result.labels, CLIENTS, strict=True):
        assert np.array_equal(labels, again.predict(rows))
    assert result.model.covariances_ is None
    assert result.model.counts_.sum() == len(ROWS)


def test_bound_that_is_ten_times_too_large_costs_little():
    parts = partition(MOONS, "iid", n_clients=4, random_state=0)

    def accuracy(bound):
        strategy = SPPFGCSums(2, epsilon=20.0, max_l1_norm=bound)
        return np.mean(
            [simulate(strategy, parts.clients, labels=parts.labels, seed=s).metrics["accuracy"] for s in range(20)]
        )

    assert accuracy(32.0) >= accuracy(3.2) - 0.08


# The protocol


def test_order_of_the_clients_changes_nothing():
    names, order = ["10", "9", "b", "a"], [2, 0, 3, 1]
    one, other = (
        simulate(SPPFGCSums(3, random_state=0), [CLIENTS[i] for i in taken], names=[names[i] for i in taken])
        for taken in (range(4), order)
    )
    for first, second in zip(one.model.to_arrays(), other.model.to_arrays(), strict=True):
        assert np.array_equal(first, second)
    for position, index in enumerate(order):
        assert np.array_equal(one.labels[index], other.labels[position])


@pytest.mark.parametrize("options", [{}, NOISE, NOISE | {"noise": "clients", "n_prototypes": 9}])
def test_run_with_a_seed_gives_the_same_bits_twice(options):
    first, second = (quiet(SPPFGCSums(3, **options), CLIENTS, seed=3) for _ in range(2))
    for one, other in zip(first.model.to_arrays(), second.model.to_arrays(), strict=True):
        assert np.array_equal(one, other)
    assert first.privacy == second.privacy
    assert first.traffic == second.traffic


@pytest.mark.slow
def test_ray_equals_inline_bit_for_bit():
    strategy = SPPFGCSums(3, **NOISE, noise="clients")
    inline, ray = (quiet(strategy, CLIENTS, labels=LABELS, engine=engine, seed=11) for engine in ("inline", "ray"))
    for one, other in zip(inline.model.to_arrays(), ray.model.to_arrays(), strict=True):
        assert np.array_equal(one, other)
    assert (inline.privacy, inline.traffic, inline.metrics) == (ray.privacy, ray.traffic, ray.metrics)


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({"n_lloyd_rounds": 2}, ["cluster_sums", "entry_products", "cluster_sums", "cluster_sums", "votes"]),
        ({"n_lloyd_rounds": 1, "n_prototypes": 3}, ["cluster_sums", "entry_products", "cluster_sums", "cluster_sums"]),
        (NOISE, ["cluster_sums", "distance_counts", "entry_products", "cluster_sums", "cluster_sums"]),
        (
            NOISE | {"epsilon": 500.0, "n_prototypes": 9, "n_lloyd_rounds": 2},
            ["cluster_sums", "distance_counts", "entry_products", "cluster_sums", "cluster_sums", "votes"],
        ),
    ],
)
def test_rounds_are_the_frame_the_directions_lloyd_steps_and_votes_or_one_more_step(options, tasks):
    strategy = SPPFGCSums(3, **options)
    result = quiet(strategy, CLIENTS)
    of_round = {row.round: row.task for row in result.traffic}
    assert [of_round[number] for number in sorted(of_round)] == ["enrol", *tasks]
    assert strategy.num_rounds == len(tasks) + 1


def test_lloyd_steps_are_ten_without_noise_and_one_with_it():
    assert SPPFGCSums(3).n_protocol_rounds == 13
    assert SPPFGCSums(3, **NOISE).n_protocol_rounds == 5
    assert SPPFGCSums(3, **NOISE, n_lloyd_rounds=4).n_protocol_rounds == 8


def test_federated_evaluation_gives_the_metrics_of_the_model():
    result = simulate(SPPFGCSums(3, federated_evaluation=True), CLIENTS, labels=LABELS, seed=0)
    assert [message.task for message in result.privacy.messages].count("evaluate") == 3
    assert result.metrics["accuracy"] == 1.0


def failing(task, names):
    class Failing(CellsClient):
        def fit(self, parameters, config):
            self.task = config["task"]
            return super().fit(parameters, config)

        @property
        def rows(self):
            if self.task == task and self.name in names:
                raise DataError(f"client {self.name} fails.")
            return super().rows

    class Strategy(SPPFGCSums):
        client_type = Failing

    return Strategy


@pytest.mark.parametrize("task", ["cluster_sums", "entry_products", "votes"])
def test_client_that_fails_is_labelled_by_the_model_of_the_others(task):
    result = simulate(failing(task, {"1"})(3), CLIENTS, labels=LABELS, seed=0)
    assert {failure.reason for failure in result.failures} == {"client 1 fails."}
    assert [len(labels) for labels in result.labels] == [len(rows) for rows in CLIENTS]
    assert result.metrics["accuracy"] == 1.0


def test_missing_share_of_the_noise_ends_the_run_unless_min_clients_is_given():
    with pytest.raises(ProtocolError, match=r"3 clients answered and 4 have to \(with noise='clients'"):
        quiet(failing("votes", {"1"})(3, **NOISE, noise="clients", n_prototypes=9), CLIENTS)
    strategy = failing("distance_counts", {"1"})(3, **NOISE, noise="clients", min_clients=3)
    assert {failure.client for failure in quiet(strategy, CLIENTS).failures} == {"1"}


@pytest.mark.parametrize(("noise", "in_sum"), [("server", 1.0), ("local", 2.0)])
def test_votes_are_read_with_the_noise_that_is_in_their_sum(monkeypatch, noise, in_sum):
    scales = []
    graph_of = spp_fgc_sums.vote_graph
    monkeypatch.setattr(spp_fgc_sums, "vote_graph", lambda *given: scales.append(given[2]) or graph_of(*given))
    strategy = SPPFGCSums(3, epsilon=500.0, max_l1_norm=20.0, n_prototypes=9, noise=noise)
    report = quiet(strategy, CLIENTS).privacy
    (release,) = (message.release for message in report.releases if message.task == "votes")
    assert scales == [pytest.approx(in_sum * release.scale)]
    quiet(SPPFGCSums(3), CLIENTS)
    assert scales[1] == 0.0


# Rows and parameters that are odd


ODD = {
    "one_row_each": [row[None] for row in ROWS],
    "one_class_each": [ROWS[c == CLASSES] for c in range(3)],
    "all_equal": [np.full((n, 4), 0.1) for n in (5, 7)],
    "all_zero": [np.zeros((n, 4)) for n in (5, 7)],
    "duplicates": [np.repeat(MEANS, 5, axis=0)] * 3,
    "singular": [rows[:, [0, 1, 1, 0]] for rows in CLIENTS],
    "constant_column": [np.column_stack([rows, np.full(len(rows), 3.0)]) for rows in CLIENTS],
    "one_column": [rows[:, :1] - rows[:, 1:2] for rows in CLIENTS],
    "100_columns": [np.column_stack([rows, 0.3 * RNG.normal(size=(len(rows), 96))]) for rows in CLIENTS],
    "tiny": [1e-150 * rows for rows in CLIENTS],
    "huge": [1e100 * rows for rows in CLIENTS],
    "far": [1e6 + rows for rows in CLIENTS],
    "as_few_as_clusters": [ROWS[:2], ROWS[2:3]],
}


@pytest.mark.parametrize("clients", ODD.values(), ids=ODD)
@pytest.mark.parametrize("options", [{}, NOISE, NOISE | {"n_prototypes": 12, "noise": "local"}])
def test_odd_rows_get_labels_all_the_same(clients, options):
    result = quiet(SPPFGCSums(3, **options), clients)
    assert_complete(result, clients)
    assert result.privacy.covers_everything is bool(options)


@pytest.mark.parametrize("name", sorted(ODD.keys() - {"all_equal", "all_zero", "as_few_as_clusters"}))
def test_clusters_that_are_plain_are_found_in_odd_rows(name):
    truth = {
        "duplicates": [np.repeat([0, 1, 2], 5)] * 3,
        "one_row_each": np.split(CLASSES, len(ROWS)),
        "one_class_each": [CLASSES[c == CLASSES] for c in range(3)],
    }.get(name, LABELS)
    result = quiet(SPPFGCSums(3), ODD[name], labels=truth)
    # With one cell a cluster it is Lloyd's algorithm from one start, which 96 columns of noise lead a little astray.
    assert result.metrics["accuracy"] >= (0.9 if name == "100_columns" else 0.99)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 3.0])
@pytest.mark.parametrize("noise", ["server", "clients", "local"])
@pytest.mark.parametrize("n_prototypes", [None, 9])
def test_more_noise_than_rows_is_no_failure(epsilon, noise, n_prototypes):
    strategy = SPPFGCSums(3, epsilon=epsilon, max_l1_norm=12.0, noise=noise, n_prototypes=n_prototypes)
    result = quiet(strategy, CLIENTS)
    assert_complete(result, CLIENTS)
    assert result.privacy.covers_everything


def test_more_clusters_than_rows_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="n_clusters is 9 and the clients have 8 rows together; ask for fewer"):
        simulate(SPPFGCSums(9), [ROWS[:4], ROWS[4:8]], seed=0)
    with pytest.raises(DataError, match="the clients have 8 rows together and n_clusters is 9; ask for fewer"):
        simulate(failing("cluster_sums", {"2"})(9), [ROWS[:4], ROWS[4:8], ROWS[8:]], seed=0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_row_that_is_no_number_is_named(value):
    broken = CLIENTS[1].copy()
    broken[2, 3] = value
    with pytest.raises(ValueError, match="row 2, column 3 is"):
        simulate(SPPFGCSums(3), [CLIENTS[0], broken], seed=0)


NAN = float("nan")
BAD = [
    ({"n_clusters": 1}, "n_clusters is 1; it must be an integer, 2 or more"),
    ({"n_prototypes": 2}, "n_prototypes is 2; it must be an integer, 3 or more"),
    ({"n_lloyd_rounds": 0}, "n_lloyd_rounds is 0; it must be an integer, 1 or more"),
    ({"max_l1_norm": 0}, "max_l1_norm is 0; it must be a finite number above 0"),
    ({"epsilon": 1.0}, "max_l1_norm is missing; noise for an epsilon needs an L1 norm to which rows are clipped"),
    ({"epsilon": NAN, "max_l1_norm": 1.0}, "epsilon is nan"),
    ({"epsilon": 1.0, "max_l1_norm": 1.0, "delta": None}, "delta is missing; an epsilon needs a delta"),
    ({"noise": "none"}, "noise is 'none'; it must be one of: server, clients, local"),
    ({"min_clients": 0}, "min_clients is 0; it must be an integer, 1 or more"),
    (
        {"budget_split": (1, 1)},
        "budget_split has 2 parts; give 5: for the origin, the radius, the directions, the cent",
    ),
    ({"budget_split": (1, 1, 1, -1, 1)}, "a part of budget_split is -1; it must be a finite number above 0"),
]


@pytest.mark.parametrize(("options", "sentence"), BAD)
def test_parameter_that_cannot_be_right_is_named_in_a_sentence(options, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        SPPFGCSums(**({"n_clusters": 3} | options))
    with pytest.raises(ValueError, match=re.escape(sentence)):
        simulate(SPPFGCSums(3).set_params(**options), CLIENTS)
