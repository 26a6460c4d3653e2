"""FedSC: the paper's figures, the steps of its protocol, and what becomes of odd rows and parameters."""

import dataclasses
import re
import warnings
from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from flower_fedclust.data.datasets import load_dataset
from flower_fedclust.data.partition import partition
from flower_fedclust.engine import DataError, Sent, answers
from flower_fedclust.engine.replies import values_of
from flower_fedclust.engine.wire import received_arrays
from flower_fedclust.numerics.dictionary import kernel_root
from flower_fedclust.numerics.kernel import mean_distance
from flower_fedclust.numerics.spectral import similarity_graph
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.fedsc.fedsc import FedSC, FedSCClient

RNG = np.random.default_rng(0)
MEANS = np.array([[0.0, 0, 0, 0], [9, 0, 0, 0], [0, 9, 0, 0]])
CLASSES = RNG.integers(3, size=120)
ROWS = MEANS[CLASSES] + RNG.normal(size=(120, 4))
CUTS = [20, 55, 95]
CLIENTS = np.split(ROWS, CUTS)
LABELS = np.split(CLASSES, CUTS)


class WatchedClient(FedSCClient):
    """Leaves behind every message: who was asked for what, what it was sent, what it sent, and what it keeps."""

    log: list  # set by the fixture

    def fit(self, parameters, config):
        sent, n_examples, facts = super().fit(parameters, config)
        labels = self.recall("labels")
        values = values_of(received_arrays(sent, facts))
        self.log.append((config["task"], self.name, parameters, values, None if labels is None else labels[0]))
        return sent, n_examples, facts


class WatchedFedSC(FedSC):
    client_type = WatchedClient


@pytest.fixture
def log():
    WatchedClient.log = []
    return WatchedClient.log


def federation(name, seed, n_clients=8):
    table = load_dataset(name)
    if name == "breast-cancer":
        table = dataclasses.replace(table, rows=(table.rows - table.rows.mean(axis=0)) / table.rows.std(axis=0))
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
                made[name].append((rows, simulate(FedSC(n_clusters), rows.clients, labels=rows.labels, seed=seed)))
        return made[name]

    return get


def same_bits(one, other):
    for first, second in zip(one.model.to_arrays(), other.model.to_arrays(), strict=True):
        assert np.array_equal(first, second)
    for first, second in zip(one.labels, other.labels, strict=True):
        assert np.array_equal(first, second)
    assert one.traffic == other.traffic
    assert one.history == other.history


# Figures


@pytest.mark.long
@pytest.mark.parametrize("name", FIGURES)
def test_clusters_of_eight_clients_are_as_good_as_in_the_paper(figures, name):
    _, _, accuracy, nmi = FIGURES[name]
    metrics = [result.metrics for _, result in figures(name)]
    assert np.mean([each["accuracy"] for each in metrics]) >= accuracy
    assert np.mean([each["nmi"] for each in metrics]) >= nmi


@pytest.mark.parametrize("name", FIGURES)
def test_objective_falls_in_every_round(figures, name):
    for _, result in figures(name):
        objectives = result.history["objective"]
        assert len(objectives) == 10
        assert all(later < earlier for earlier, later in pairwise(objectives))


@pytest.mark.parametrize("name", ["iris", "digits"])
def test_model_and_labels_agree_on_the_rows_of_the_run(figures, name):
    agreement = [
        np.mean(result.model.predict(np.concatenate(rows.clients)) == np.concatenate(result.labels))
        for rows, result in figures(name)
    ]
    assert np.mean(agreement) >= 0.97


@pytest.mark.parametrize(("name", "n_clusters", "accuracy"), [("digits", 10, 0.77), ("circles", 2, 0.99)])
def test_model_predicts_rows_that_were_not_in_the_run(name, n_clusters, accuracy):
    table = load_dataset(name)
    held_out = np.random.default_rng(0).permutation(len(table.rows))[: len(table.rows) // 4]
    rest = np.delete(np.arange(len(table.rows)), held_out)
    result = simulate(FedSC(n_clusters, random_state=0), np.array_split(table.rows[rest], 8))
    found = result.model.predict(table.rows[held_out])
    counts = np.zeros((n_clusters, n_clusters))
    np.add.at(counts, (found, table.labels[held_out]), 1)
    assert counts[linear_sum_assignment(-counts)].sum() / len(held_out) >= accuracy


# Stage I


def test_default_bandwidth_is_the_mean_over_clients_of_their_mean_distance():
    model = simulate(FedSC(3, random_state=0), CLIENTS).model
    assert model.bandwidth_ == pytest.approx(np.mean([mean_distance(rows) for rows in CLIENTS]), rel=1e-6)
    assert simulate(FedSC(3, bandwidth=3.5, random_state=0), CLIENTS).model.bandwidth_ == 3.5


def test_bandwidth_leaves_out_clients_with_one_row():
    clients = [ROWS[:60], ROWS[60:61], ROWS[61:]]
    model = simulate(FedSC(3, random_state=0), clients).model
    assert model.bandwidth_ == pytest.approx((mean_distance(clients[0]) + mean_distance(clients[2])) / 2, rel=1e-6)


def test_first_dictionary_is_drawn_with_the_means_and_deviations_of_all_columns():
    rows = ROWS * [1.0, 100.0, 0.01, 1.0] + 50.0
    atoms = simulate(FedSC(3, n_rounds=0, random_state=5), np.split(rows, CUTS)).model.dictionary_
    expected = rows.mean(axis=0) + rows.std(axis=0) * np.random.default_rng(5).standard_normal((50, 4))
    np.testing.assert_allclose(atoms, expected, rtol=1e-5)


@pytest.mark.parametrize(("options", "n_atoms"), [({}, 50), ({"n_clusters": 6}, 60), ({"n_atoms": 7}, 7)])
def test_atoms_are_ten_a_cluster_and_fifty_at_least_or_what_was_given(options, n_atoms):
    assert len(simulate(FedSC(**({"n_clusters": 3} | options)), CLIENTS, seed=0).model.dictionary_) == n_atoms


def test_default_number_of_atoms_is_half_of_the_rows_at_most():
    assert len(simulate(FedSC(3), [ROWS[:20], ROWS[20:40]], seed=0).model.dictionary_) == 20


@pytest.mark.parametrize("fraction_fit", [1.0, 0.5])
def test_dictionary_is_the_mean_over_the_clients_that_were_asked(log, fraction_fit):
    clients = np.array_split(ROWS, 8)
    result = simulate(WatchedFedSC(3, fraction_fit=fraction_fit, n_rounds=3, tol=0, random_state=0), clients)
    n_asked = round(8 * fraction_fit)
    steps = [(parameters[0], sent[0]) for task, _, parameters, sent, _ in log if task == "dictionary_steps"]
    (received,) = {
        parameters[0].tobytes(): parameters[0] for task, _, parameters, *_ in log if task == "codes"
    }.values()
    assert len(steps) == 3 * n_asked
    origin = next(parameters[1] for task, _, parameters, *_ in log if task == "dictionary_steps")
    sent_out = [steps[index][0] for index in range(0, len(steps), n_asked)] + [received - origin]
    for number in range(3):
        mean = np.mean([own for _, own in steps[number * n_asked : (number + 1) * n_asked]], axis=0)
        np.testing.assert_allclose(sent_out[number + 1], mean, rtol=1e-12, atol=1e-12)
    assert np.array_equal(result.model.dictionary_, received)


def test_fraction_fit_asks_fewer_clients_in_stage_one_and_nowhere_else(log):
    clients = np.array_split(ROWS, 8)
    result = simulate(WatchedFedSC(3, fraction_fit=0.25, n_rounds=4, random_state=0), clients)
    asked = {}
    for row in result.traffic:
        asked.setdefault((row.round, row.task), set()).add(row.client)
    assert {task: len(names) for (_, task), names in asked.items()} == {
        "enrol": 8, "entry_exponent": 8, "column_sums": 8, "reach": 8, "column_spread": 8, "dictionary_steps": 2,
        "codes": 8, "keep_labels": 8,
    }  # fmt: skip
    assert len({frozenset(names) for (_, task), names in asked.items() if task == "dictionary_steps"}) > 1


def test_codes_belong_to_the_dictionary_of_the_model_and_solve_equation_14(log):
    result = simulate(WatchedFedSC(3, n_rounds=2, regularization=0.02, random_state=0), CLIENTS)
    Z, r = result.model.dictionary_, result.model.bandwidth_
    kernel = np.array([[np.exp(-np.sum((one - other) ** 2) / (2 * r**2)) for other in Z] for one in Z])
    for task, name, parameters, sent, _ in log:
        if task == "codes":
            assert np.array_equal(parameters[0], Z)
            of_rows = np.array([[np.exp(-np.sum((x - z) ** 2) / (2 * r**2)) for z in Z] for x in CLIENTS[int(name)]])
            codes = np.linalg.solve(kernel + 0.02 * np.eye(len(Z)), of_rows.T).T
            np.testing.assert_allclose(sent[0], codes, rtol=0, atol=1e-9)


def test_stage_one_stops_when_no_atom_moves_by_more_than_tol():
    stopped, full = (simulate(FedSC(3, tol=tol, n_rounds=7), CLIENTS, seed=0) for tol in (10.0, 0.0))
    assert len(stopped.history["objective"]) == 1
    assert len(full.history["objective"]) == 7
    assert max(row.round for row in stopped.traffic) == FedSC(3, n_rounds=7).num_rounds - 6
    assert max(row.round for row in full.traffic) == FedSC(3, n_rounds=7).num_rounds


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_tol_is_a_part_of_the_bandwidth_whatever_the_unit_of_the_rows(unit):
    clients = [rows * unit for rows in CLIENTS]
    full = [simulate(FedSC(3, tol=0, n_rounds=n, random_state=0), clients).model for n in range(4)]
    moved = [
        np.linalg.norm(one.dictionary_ - other.dictionary_, axis=1).max() / one.bandwidth_
        for one, other in pairwise(full)
    ]
    assert moved[0] > moved[1] > moved[2]
    tol = (moved[1] + moved[2]) / 2
    stopped = simulate(FedSC(3, tol=tol, random_state=0), clients)
    assert len(stopped.history["objective"]) == 3
    np.testing.assert_allclose(stopped.model.dictionary_, full[3].dictionary_, rtol=1e-9)


def test_more_local_steps_bring_the_objective_down_faster():
    few, many = (simulate(FedSC(3, n_local_steps=steps, n_rounds=4), CLIENTS, seed=0) for steps in (1, 10))
    assert few.history["objective"][0] == many.history["objective"][0]
    assert many.history["objective"][-1] < few.history["objective"][-1]


# Stage II


def slow_labels(codes, Z, r, n_clusters, n_neighbors):
    """Spectral clustering of the reconstructed kernel, with arrays of n x n entries."""
    kernel = np.array([[np.exp(-np.sum((one - other) ** 2) / (2 * r**2)) for other in Z] for one in Z])
    similarity = codes @ kernel @ codes.T
    if n_neighbors is not None:
        np.fill_diagonal(similarity, -np.inf)
        kept = np.zeros(similarity.shape)
        for row, largest in enumerate(np.argsort(similarity, axis=1)[:, -n_neighbors:]):
            kept[row, largest] = np.maximum(similarity[row, largest], 0)
        similarity = (kept + kept.T) / 2
    scale = 1 / np.sqrt(similarity.sum(axis=1))
    _, vectors = np.linalg.eigh(scale[:, None] * similarity * scale)
    top = vectors[:, -n_clusters:]
    return KMeans(n_clusters, n_init=10, random_state=0).fit_predict(top / np.linalg.norm(top, axis=1, keepdims=True))


@pytest.mark.parametrize(
    ("options", "n_neighbors"),
    [({}, 6), ({"n_neighbors": 20}, 20), ({"sparsify": False}, None), ({"n_neighbors": 10_000}, 149)],
)
def test_labels_are_those_of_spectral_clustering_with_the_reconstructed_kernel(log, options, n_neighbors):
    iris = federation("iris", 0)
    result = simulate(WatchedFedSC(3, random_state=0, **options), iris.clients)
    codes = np.concatenate([sent[0] for task, _, _, sent, _ in log if task == "codes"])
    expected = slow_labels(codes, result.model.dictionary_, result.model.bandwidth_, 3, n_neighbors)
    assert adjusted_rand_score(np.concatenate(result.labels), expected) > 0.97


def test_rings_need_the_sparse_graph():
    circles = federation("circles", 0)
    dense = simulate(FedSC(2, sparsify=False), circles.clients, labels=circles.labels, seed=0)
    assert dense.metrics["accuracy"] < 0.7


def test_number_of_neighbors_is_the_logarithm_of_the_rows_where_nothing_is_said():
    iris = federation("iris", 1)  # log 150 = 5.01
    by_default, six, other = (
        simulate(FedSC(3, n_neighbors=k, random_state=0), iris.clients).model.projection_ for k in (None, 6, 5)
    )
    assert np.array_equal(by_default, six)
    assert not np.array_equal(by_default, other)


def test_working_memory_changes_nothing():
    iris = federation("iris", 0)
    large, small = (simulate(FedSC(3, working_memory=memory, random_state=0), iris.clients) for memory in (64, 1e-3))
    for one, other in zip(large.labels, small.labels, strict=True):
        assert np.array_equal(one, other)
    for one, other in zip(large.model.to_arrays(), small.model.to_arrays(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_a_graph_with_more_components_than_clusters_is_merged_by_the_kernel(log):
    places = np.array([[0.0, 0], [1, 0], [20, 0], [21, 0], [10, 17], [11, 17]])
    group = np.repeat(np.arange(3), 60)
    rows = np.repeat(places, 30, axis=0) + np.random.default_rng(0).normal(size=(180, 2)) * 0.05
    order = np.random.default_rng(1).permutation(180)
    result = simulate(WatchedFedSC(3, n_neighbors=3, random_state=0), np.split(rows[order], 4))
    codes = np.concatenate([sent[0] for task, _, _, sent, _ in log if task == "codes"])
    F = codes @ kernel_root(result.model.dictionary_, result.model.bandwidth_)
    assert connected_components(similarity_graph(F, 3))[0] > 3
    assert adjusted_rand_score(np.concatenate(result.labels), group[order]) == 1.0
    assert adjusted_rand_score(result.model.predict(rows), group) == 1.0


# What a run leaves behind


def test_clients_keep_their_labels(log):
    result = simulate(WatchedFedSC(3, random_state=0), CLIENTS, names=["10", "9", "b", "a"], labels=LABELS)
    kept = {name: labels for task, name, *_, labels in log if task == "keep_labels"}
    assert set(kept) == set(result.names)
    assert result.metrics["accuracy"] == 1.0
    for name, labels, rows in zip(result.names, result.labels, CLIENTS, strict=True):
        assert len(labels) == len(rows)
        assert np.array_equal(kept[name], labels)


@pytest.mark.parametrize(
    ("options", "n_rounds"),
    [
        ({"n_rounds": 0}, 7),
        ({"n_rounds": 3}, 10),
        ({"perturb": "data", "epsilon": 9.0, "max_norm": 12.0, "n_rounds": 3}, 11),
        ({"perturb": "factors", "epsilon": 9.0, "max_norm": 12.0}, 4),
        ({"perturb": "factors", "epsilon": 9.0, "max_norm": 12.0, "n_rounds": 3}, 7),
        ({"perturb": "factors", "relative_code_noise": 0.1, "n_rounds": 3}, 10),
    ],
)
def test_number_of_rounds_is_that_of_the_traffic_table(options, n_rounds):
    strategy = FedSC(3, tol=0, **options)
    result = simulate(strategy, CLIENTS, seed=0)
    assert strategy.num_rounds == n_rounds
    assert sorted({row.round for row in result.traffic}) == list(range(1, n_rounds + 1))


# Clients that fail


def failing(task, names):
    """A FedSC whose clients of these names fail at a task."""

    class Failing(FedSCClient):
        def fit(self, parameters, config):
            self.task = config["task"]
            return super().fit(parameters, config)

        @property
        def rows(self):
            if self.task == task and self.name in names:
                raise DataError(f"client {self.name} fails.")
            return super().rows

    class Strategy(FedSC):
        client_type = Failing

    return Strategy


@pytest.mark.parametrize("task", ["entry_exponent", "column_sums", "reach", "column_spread", "dictionary_steps"])
def test_client_that_fails_before_the_codes_is_labelled_with_the_others(task):
    result = simulate(failing(task, {"1"})(3, n_rounds=2, tol=0, random_state=0), CLIENTS, labels=LABELS)
    assert [len(labels) for labels in result.labels] == [len(rows) for rows in CLIENTS]
    assert {(failure.task, failure.client) for failure in result.failures} == {(task, "1")}
    assert result.metrics["accuracy"] == 1.0


def test_client_that_sends_no_codes_gets_no_labels_and_the_others_get_theirs(log):
    result = simulate(failing("codes", {"1"})(3, random_state=0), CLIENTS, labels=LABELS)
    assert [len(labels) for labels in result.labels] == [20, 0, 40, 25]
    assert result.metrics["accuracy"] == 1.0
    assert {row.client for row in result.traffic if row.task == "keep_labels"} == {"0", "2", "3"}
    assert [(failure.task, failure.reason) for failure in result.failures] == [("codes", "client 1 fails.")]
    assert result.model.predict(CLIENTS[1]).shape == (35,)


def test_client_without_noisy_rows_is_left_out_and_its_own_rows_are_never_used():
    strategy = failing("perturb_rows", {"1"})(3, perturb="data", epsilon=90.0, max_norm=12.0)
    result = simulate(strategy, CLIENTS, seed=0)
    assert [len(labels) for labels in result.labels] == [20, 0, 40, 25]
    assert any("client 1 has not kept its noisy rows" in failure.reason for failure in result.failures)


# Rows that are odd


@pytest.mark.parametrize("bandwidth", [None, 1.0])
def test_rows_that_are_all_equal_are_refused_in_a_sentence(bandwidth):
    with pytest.raises(DataError, match="all rows are equal, so that there is nothing to cluster by; give rows that"):
        simulate(FedSC(2, bandwidth=bandwidth), [np.full((5, 2), 0.1), np.full((7, 2), 0.1)])


def test_clients_with_one_row_each_give_no_bandwidth_and_are_told_to_give_one():
    sentence = "the bandwidth r comes out as 0, because no client has two rows that differ; give bandwidth"
    with pytest.raises(DataError, match=re.escape(sentence)):
        simulate(FedSC(2), [row[None] for row in ROWS[:20]])


def test_clients_with_one_row_each_are_clustered_where_a_bandwidth_is_given():
    clients = [row[None] for row in ROWS[:40]]
    result = simulate(FedSC(3, bandwidth=4.0), clients, labels=[[c] for c in CLASSES[:40]], seed=0)
    assert result.metrics["accuracy"] == 1.0


def test_a_client_with_one_row_is_as_good_as_any():
    result = simulate(FedSC(3), [ROWS[:50], ROWS[50:51], ROWS[51:]], labels=np.split(CLASSES, [50, 51]), seed=0)
    assert result.metrics["accuracy"] == 1.0
    assert [len(labels) for labels in result.labels] == [50, 1, 69]


def test_more_atoms_than_rows_are_as_many_as_rows():
    result = simulate(FedSC(3, n_atoms=500), CLIENTS, labels=LABELS, seed=0)
    assert len(result.model.dictionary_) == 120
    assert result.metrics["accuracy"] == 1.0


@pytest.mark.parametrize("sparsify", [True, False])
@pytest.mark.parametrize("bandwidth", [1e-9, 1e-3])
def test_a_bandwidth_so_small_that_the_kernel_vanishes_is_told_and_gives_no_nan(bandwidth, sparsify):
    with pytest.warns(RuntimeWarning, match="fedsc found 1 clusters where n_clusters is 3") as told:
        result = simulate(FedSC(3, bandwidth=bandwidth, sparsify=sparsify), CLIENTS, seed=0)
    assert len(told) == 1
    assert all(np.isfinite(array).all() for array in result.model.to_arrays())
    assert [len(labels) for labels in result.labels] == [len(rows) for rows in CLIENTS]
    assert np.isfinite(result.history["objective"]).all()


def test_a_bandwidth_so_large_that_all_rows_are_alike_is_no_failure():
    result = simulate(FedSC(3, bandwidth=1e9), CLIENTS, seed=0)
    assert all(np.isfinite(array).all() for array in result.model.to_arrays())


def test_two_values_are_two_clusters():
    part = np.repeat([[0.0, 0], [1, 1]], 5, axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = simulate(FedSC(2), [part] * 3, labels=[np.repeat([0, 1], 5)] * 3, seed=0)
    assert result.metrics["accuracy"] == 1.0


@pytest.mark.parametrize("bandwidth", [None, 1e4])
def test_regularization_of_zero_is_allowed(bandwidth):
    result = simulate(FedSC(3, regularization=0, bandwidth=bandwidth), CLIENTS, seed=0)
    assert all(np.isfinite(array).all() for array in result.model.to_arrays())


@pytest.mark.parametrize("rows", [ROWS * 1e-150, ROWS * 1e100, ROWS + 1e7], ids=["tiny", "huge", "far"])
def test_unit_and_origin_of_the_rows_do_not_matter(rows):
    result = simulate(FedSC(3), np.split(rows, CUTS), labels=LABELS, seed=0)
    assert result.metrics["accuracy"] == 1.0


def test_as_many_rows_as_clusters_are_a_cluster_each():
    result = simulate(FedSC(3), [ROWS[:1], ROWS[1:3]], seed=0)
    assert sorted(np.concatenate(result.labels)) == [0, 1, 2]


def test_more_clusters_than_rows_are_refused_before_anything_is_sent():
    with pytest.raises(ValueError, match="n_clusters is 4 and the clients have 3 rows together; ask for fewer"):
        simulate(FedSC(4), [ROWS[:1], ROWS[1:3]])


@pytest.mark.parametrize("options", [{"n_atoms": 1}, {"n_neighbors": 1}, {"n_atoms": 2, "sparsify": False}])
def test_fewest_atoms_and_neighbors_are_no_failure(options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        result = simulate(FedSC(3, **options), CLIENTS, seed=0)
    assert all(np.isfinite(array).all() for array in result.model.to_arrays())


# Parameters that cannot be right

BAD = [
    ({"perturb": "data"}, "perturb is 'data' and there is no noise level; give epsilon and max_norm, or relative_data"),
    (
        {"perturb": "factors"},
        "perturb is 'factors' and there is no noise level; give epsilon and max_norm, or "
        "relative_dictionary_noise or relative_code_noise",
    ),
    ({"epsilon": 1.0}, "epsilon is given and perturb is 'nothing'; set perturb='data' or 'factors', or take FedSCSums"),
    ({"relative_data_noise": 0.1}, "relative_data_noise is 0.1 and perturb is 'nothing'; set perturb='data'"),
    (
        {"relative_data_noise": 0.1, "perturb": "factors"},
        "relative_data_noise is 0.1 and perturb is 'factors'; set perturb='data'",
    ),
    (
        {"relative_code_noise": 0.1, "perturb": "data"},
        "relative_code_noise is 0.1 and perturb is 'data'; set perturb='factors'",
    ),
    ({"relative_dictionary_noise": 0.1}, "relative_dictionary_noise is 0.1 and perturb is 'nothing'"),
    (
        {"perturb": "factors", "relative_dictionary_noise": 0.1, "n_rounds": 0},
        "relative_dictionary_noise is given and n_rounds is 0, so that no client sends a dictionary; give 1 or more.",
    ),
    (
        {"relative_data_noise": 0.1, "perturb": "data", "epsilon": 1.0, "max_norm": 1.0},
        "epsilon and relative_data_noise are both given; relative noise has no epsilon, so give one",
    ),
    (
        {"perturb": "factors", "epsilon": 1.0, "max_norm": 1.0, "regularization": 0},
        "regularization is 0 and max_code_norm is not given; one of them has to bound the codes",
    ),
]


@pytest.mark.parametrize(("options", "sentence"), BAD)
def test_parameter_that_cannot_be_right_is_named_in_a_sentence(options, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        FedSC(**({"n_clusters": 3} | options))


def test_name_says_what_is_perturbed():
    assert FedSC(3).name == "fedsc"
    assert FedSC(3, perturb="data", relative_data_noise=0.1).name == "fedsc-perturbed-data"
    assert FedSC(3, perturb="factors", relative_code_noise=0.1).name == "fedsc-perturbed-factors"


def test_clients_whose_codes_have_another_width_are_left_out():
    class Odd(FedSCClient):
        @answers(Sent("code of every row", "codes", per="row"))
        def codes(self, Z, **arguments):
            codes = super().codes(Z, **arguments)
            return codes[:, :-1] if self.name == "1" else codes

    class Strategy(FedSC):
        client_type = Odd

    result = simulate(Strategy(3, random_state=0), CLIENTS)
    assert [len(labels) for labels in result.labels] == [20, 0, 40, 25]
