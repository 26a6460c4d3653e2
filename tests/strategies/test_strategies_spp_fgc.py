"""SPP-FGC: what it finds, what the printed recipe finds, and what it does with odd rows, clients and parameters."""

import dataclasses
import itertools
import re
import warnings

import numpy as np
import pytest

from flower_fedclust import SPPFGC, DataError, ProtocolError, PrototypeModel, simulate
from flower_fedclust.data.datasets import load_dataset
from flower_fedclust.data.partition import partition
from flower_fedclust.numerics.prototypes import jeffreys, kullback_leibler, shrunk
from flower_fedclust.steps import global_clusters
from flower_fedclust.strategies.spp_fgc import SPPFGCClient

RNG = np.random.default_rng(0)
MEANS = np.array([[0.0, 0, 0, 0], [9, 0, 0, 0], [0, 9, 0, 0]])
CLASSES = RNG.integers(3, size=120)
ROWS = MEANS[CLASSES] + RNG.normal(size=(120, 4))
CUTS = [20, 55, 95]
CLIENTS = np.split(ROWS, CUTS)
LABELS = np.split(CLASSES, CUTS)

PRINTED = {"solver": "clr", "prototypes": "gmm", "affinity": "kl", "assignment": "rows-of-s"}
N_CLUSTERS = {"iris": 3, "breast-cancer": 2, "moons": 2}
MODES = {
    "own": {},
    "clr": {"solver": "clr"},
    "printed": PRINTED,
    "gmm": {"prototypes": "gmm"},
    "kl": {"affinity": "kl"},
    "diagonal": {"covariance": "diagonal"},
    "no_private_graph": {"private_graph": False},
    "no_global_graph": {"global_graph": False},
    "no_graph": {"private_graph": False, "global_graph": False},
    "noise": {"epsilon": 20.0, "max_l1_norm": 20.0},
    "noise_diagonal": {"epsilon": 20.0, "max_l1_norm": 20.0, "covariance": "diagonal"},
    "paper": {"epsilon": 20.0, "max_l1_norm": 20.0, "calibration": "paper"},
    "paper_gmm": {"epsilon": 20.0, "max_l1_norm": 20.0, "calibration": "paper", "prototypes": "gmm"},
}


def scaled(name):
    """The rows as the paper has them: of L1 norm 1 (Iris), or each column in [0, 1] (breast cancer)."""
    table = load_dataset(name)
    rows = table.rows
    if name == "iris":
        rows = rows / np.abs(rows).sum(axis=1, keepdims=True)
    elif name == "breast-cancer":
        rows = (rows - rows.min(axis=0)) / (rows.max(axis=0) - rows.min(axis=0))
    return dataclasses.replace(table, rows=rows)


def accuracies(name, scheme, seeds, **options):
    found = []
    for seed in seeds:
        parts = partition(scaled(name), scheme, n_clients=4, random_state=seed)
        result = simulate(SPPFGC(N_CLUSTERS[name], **options), parts.clients, labels=parts.labels, seed=seed)
        found.append(result.metrics["accuracy"])
    return found


def quiet(strategy, clients, **options):
    """Run where fewer clusters than asked for may come out, and the warning of it says so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "spp-fgc.* found . clusters", RuntimeWarning)
        return simulate(strategy, clients, **({"seed": 0} | options))


def assert_complete(result, clients):
    assert [len(labels) for labels in result.labels] == [len(rows) for rows in clients]
    assert all(np.isfinite(array).all() for array in result.model.to_arrays())
    assert not result.failures


# What it finds


@pytest.mark.parametrize(("name", "accuracy"), [("iris", 0.94), ("breast-cancer", 0.92), ("moons", 0.98)])
def test_clusters_of_clients_that_are_alike_are_found(name, accuracy):
    assert min(accuracies(name, "iid", range(3))) >= accuracy


@pytest.mark.parametrize(("name", "accuracy"), [("iris", 0.86), ("breast-cancer", 0.88), ("moons", 0.80)])
def test_clusters_of_clients_that_differ_are_found_on_average(name, accuracy):
    assert np.mean(accuracies(name, "dirichlet:0.5", range(5))) >= accuracy


@pytest.mark.parametrize(("name", "at_most"), [("iris", 0.88), ("breast-cancer", 0.75), ("moons", 0.75)])
def test_recipe_as_it_is_printed_finds_far_less(name, at_most):
    printed = np.mean(accuracies(name, "iid", range(2), **PRINTED))
    assert printed <= at_most
    assert printed <= np.mean(accuracies(name, "iid", range(2))) - 0.08


def test_printed_recipe_has_a_name_of_its_own():
    assert SPPFGC(3, **PRINTED).name == "spp-fgc-printed"
    assert simulate(SPPFGC(3, **PRINTED), CLIENTS, seed=0).privacy.strategy == "spp-fgc-printed"
    for option, other in {"solver": "spectral", "prototypes": "atoms", "affinity": "jeffreys"}.items():
        options = PRINTED | {option: other}
        if option == "solver":
            del options["assignment"]
        assert SPPFGC(3, **options).name == "spp-fgc"
    assert SPPFGC(3, **(PRINTED | {"assignment": "components"})).name == SPPFGC(3).name == "spp-fgc"


@pytest.mark.parametrize("options", MODES.values(), ids=MODES)
def test_every_mode_gives_each_row_a_label_and_a_model_that_agrees(options):
    result = quiet(SPPFGC(3, **options), CLIENTS, labels=LABELS)
    assert_complete(result, CLIENTS)
    if options == PRINTED:
        assert result.metrics["accuracy"] < 0.9  # three blobs that are far apart
    elif "epsilon" not in options:
        assert result.metrics["accuracy"] == 1.0
    again = PrototypeModel.from_arrays(result.model.to_arrays())
    agree = np.concatenate([again.predict(rows) for rows in CLIENTS]) == np.concatenate(result.labels)
    assert agree.mean() >= (0.7 if "epsilon" in options or options == PRINTED else 0.98)


def test_model_predicts_rows_that_no_client_has():
    parts = partition(scaled("moons"), "iid", n_clients=4, random_state=0)
    model = simulate(SPPFGC(2), parts.clients, seed=0).model
    new = load_dataset("moons", random_state=7)
    agree = (model.predict(new.rows) == new.labels).mean()
    assert max(agree, 1 - agree) >= 0.97


# The server's graph


def seen_by_the_server(**options):
    seen = {}
    made = global_clusters.global_graph

    def watched(found, prototypes, divergences, recipe):
        graph = made(found, prototypes, divergences, recipe)
        seen.update(found=found, prototypes=prototypes, divergences=divergences, graph=graph)
        return graph

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(global_clusters, "global_graph", watched)
        simulate(SPPFGC(3, **options), CLIENTS, seed=0)
    return seen


def test_global_graph_has_the_graphs_of_the_clients_on_its_diagonal_and_prototypes_between_them():
    seen = seen_by_the_server()
    dense, owner = seen["graph"].toarray(), seen["found"].client
    ends = [0, *CUTS, len(ROWS)]
    for index, (start, end) in enumerate(itertools.pairwise(ends)):
        np.testing.assert_allclose(dense[start:end, start:end], seen["found"].blocks[index].toarray(), atol=1e-12)
    between = dense[:20, 20:]
    assert between.any()
    of_prototypes = seen["graph"].affinity[np.ix_(seen["found"].prototype[:20], seen["found"].prototype[20:])]
    assert np.array_equal(between, of_prototypes)
    assert not seen["graph"].affinity[owner[:, None] == owner].any()
    np.testing.assert_allclose(seen["divergences"], jeffreys(seen["prototypes"]))
    np.testing.assert_allclose(seen["prototypes"].covariances, shrunk(seen["found"].prototypes).covariances)


def test_covariances_that_noise_has_blurred_are_drawn_to_their_mean_more_than_others():
    def distances_from_the_mean(covariances):
        return np.abs(covariances - covariances.mean(axis=0)).sum(axis=(1, 2))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen = seen_by_the_server(**MODES["noise"])
    as_if_exact = shrunk(seen["found"].prototypes).covariances
    blurred = distances_from_the_mean(seen["prototypes"].covariances)
    assert blurred.sum() < 0.95 * distances_from_the_mean(as_if_exact).sum()


def test_affinity_as_printed_is_the_exponential_of_kl():
    seen = seen_by_the_server(affinity="kl")
    divergences = kullback_leibler(seen["prototypes"])
    owner = seen["found"].client
    expected = np.where(owner[:, None] != owner, np.exp(-divergences), 0.0)
    np.testing.assert_allclose(seen["graph"].affinity, 0.5 * (expected + expected.T))


def test_without_private_graphs_prototypes_of_one_client_are_joined_too():
    seen = seen_by_the_server(private_graph=False)
    assert seen["graph"].blocks.nnz == 0
    owner = seen["found"].client
    same = (owner[:, None] == owner) & ~np.eye(len(owner), dtype=bool)
    assert seen["graph"].affinity[same].any()


def test_without_the_global_graph_it_is_never_made():
    assert seen_by_the_server(global_graph=False) == {}
    assert seen_by_the_server(global_graph=False, private_graph=False) == {}


# The protocol


@pytest.mark.parametrize("options", [{}, MODES["noise"]])
def test_each_client_keeps_its_own_labels(options):
    class Keeping(SPPFGCClient):
        kept: dict = {}  # noqa: RUF012

        def keep_labels(self, labels):
            super().keep_labels(labels)
            self.kept[self.name] = self.recall("labels")[0]

        keep_labels.answer = SPPFGCClient.keep_labels.answer

    class Strategy(SPPFGC):
        client_type = Keeping

    result = quiet(Strategy(3, **options), CLIENTS)
    assert sorted(Keeping.kept) == ["0", "1", "2", "3"]
    for name, labels in zip(result.names, result.labels, strict=True):
        assert np.array_equal(Keeping.kept[name], labels)


@pytest.mark.parametrize("options", [{}, MODES["clr"], MODES["kl"], MODES["no_private_graph"]])
def test_order_of_the_clients_changes_nothing(options):
    names, order = ["10", "9", "b", "a"], [2, 0, 3, 1]
    one, other = (
        simulate(
            SPPFGC(3, random_state=0, **options), [CLIENTS[i] for i in taken], names=[names[i] for i in taken]
        )
        for taken in (range(4), order)
    )  # fmt: skip
    for first, second in zip(one.model.to_arrays(), other.model.to_arrays(), strict=True):
        assert np.array_equal(first, second)
    for position, index in enumerate(order):
        assert np.array_equal(one.labels[index], other.labels[position])


@pytest.mark.parametrize("options", [{}, MODES["noise"], MODES["paper_gmm"]])
def test_run_with_a_seed_gives_the_same_bits_twice(options):
    first, second = (quiet(SPPFGC(3, **options), CLIENTS, seed=3) for _ in range(2))
    for one, other in zip(first.model.to_arrays(), second.model.to_arrays(), strict=True):
        assert np.array_equal(one, other)
    assert all(np.array_equal(one, other) for one, other in zip(first.labels, second.labels, strict=True))
    assert first.privacy == second.privacy
    assert first.traffic == second.traffic


@pytest.mark.slow
def test_ray_equals_inline_bit_for_bit():
    inline, ray = (quiet(SPPFGC(3, **MODES["noise"]), CLIENTS, engine=engine, seed=11) for engine in ("inline", "ray"))
    for one, other in zip(inline.model.to_arrays(), ray.model.to_arrays(), strict=True):
        assert np.array_equal(one, other)
    assert all(np.array_equal(one, other) for one, other in zip(inline.labels, ray.labels, strict=True))
    assert (inline.privacy, inline.traffic) == (ray.privacy, ray.traffic)


@pytest.mark.parametrize(("options", "n_rounds"), [({}, 3), (MODES["paper"], 3), (MODES["noise"], 7)])
def test_number_of_rounds_is_that_of_the_traffic_table(options, n_rounds):
    strategy = SPPFGC(3, **options)
    result = quiet(strategy, CLIENTS)
    assert strategy.num_rounds == n_rounds
    assert sorted({row.round for row in result.traffic}) == list(range(1, n_rounds + 1))


def test_traffic_of_the_graph_is_a_few_bytes_a_neighbor():
    def bytes_of_the_graph(n, k):
        rows = RNG.normal(size=(n, 4))
        result = quiet(SPPFGC(2, n_neighbors=k, n_prototypes=4), [rows, rows + 1])
        return max(row.bytes_up for row in result.traffic if row.task == "structural_graph")

    # A neighbor is an int32 and its weight a float32; a row's prototype is an int32.
    assert bytes_of_the_graph(800, 10) - bytes_of_the_graph(400, 10) == 400 * (10 * 8 + 4)
    assert bytes_of_the_graph(400, 20) - bytes_of_the_graph(400, 10) == 400 * 10 * 8


def test_federated_evaluation_gives_the_metrics_of_the_model():
    result = simulate(SPPFGC(3, federated_evaluation=True), CLIENTS, labels=LABELS, seed=0)
    tasks = [message.task for message in result.privacy.messages]
    assert tasks.count("evaluate") == 3
    assert result.metrics["accuracy"] == 1.0


def failing(task, names):
    class Failing(SPPFGCClient):
        def fit(self, parameters, config):
            self.task = config["task"]
            return super().fit(parameters, config)

        @property
        def rows(self):
            if self.task == task and self.name in names:
                raise DataError(f"client {self.name} fails.")
            return super().rows

    class Strategy(SPPFGC):
        client_type = Failing

    return Strategy


@pytest.mark.parametrize("name", ["0", "2"])
@pytest.mark.parametrize(
    ("task", "options"),
    [("structural_graph", {}), ("cell_prototypes", MODES["noise"])],
)
def test_client_that_fails_to_send_its_graph_is_left_out(task, options, name):
    result = quiet(failing(task, {name})(3, **options), CLIENTS, labels=LABELS)
    assert [failure.reason for failure in result.failures] == [f"client {name} fails."]
    lengths = [0 if str(index) == name else len(rows) for index, rows in enumerate(CLIENTS)]
    assert [len(labels) for labels in result.labels] == lengths
    if not options:
        assert result.metrics["accuracy"] == 1.0
        index = int(name)
        others = np.concatenate([rows for i, rows in enumerate(CLIENTS) if i != index])
        alone = simulate(SPPFGC(3), [rows for i, rows in enumerate(CLIENTS) if i != index], seed=0)
        assert len(alone.model.predict(others)) == len(others)


def test_too_few_clients_end_the_run():
    with pytest.raises(ProtocolError, match=r"round 2 \('structural_graph'\): 1 clients answered and 2 have to"):
        simulate(failing("structural_graph", {"0", "1", "2"})(3), CLIENTS, seed=0)
    with pytest.raises(ProtocolError, match="3 clients answered and 4 have to"):
        simulate(failing("structural_graph", {"0"})(3, min_clients=4), CLIENTS, seed=0)


@pytest.mark.parametrize(("position", "value"), [(0, 99), (0, -1), (1, 20), (1, -1), (2, -1.0)])
@pytest.mark.parametrize(("task", "options"), [("structural_graph", {}), ("cell_prototypes", MODES["noise"])])
def test_graph_that_points_outside_ends_the_run_in_a_sentence(task, options, position, value):
    class Lying(SPPFGCClient):
        def fit(self, parameters, config):
            sent, n_examples, facts = super().fit(parameters, config)
            if config["task"] == task and self.name == "0":
                sent[position] = sent[position].copy()
                sent[position].flat[-1] = value
            return sent, n_examples, facts

    class Strategy(SPPFGC):
        client_type = Lying

    with pytest.raises(DataError, match="client 0 sent a graph and prototypes that do not fit together"):
        quiet(Strategy(3, **options), CLIENTS)


def test_client_whose_graph_is_wider_under_the_rank_constraint_is_not_left_out():
    # Of so many clumps only a graph with more neighbors has no more components than clusters.
    clumps = np.concatenate([RNG.normal(size=(6, 2)) * 0.01 + 50 * RNG.normal(size=2) for _ in range(5)])
    clients = [clumps, RNG.normal(size=(40, 2)), RNG.normal(size=(40, 2))]
    assert_complete(quiet(SPPFGC(2, solver="clr", n_neighbors=3), clients), clients)


# Rows and clients that are odd


ODD = {
    "more_clusters_than_a_client_has_rows": ([ROWS[6 * i : 6 * i + 6] for i in range(8)], {"n_clusters": 10}),
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
    "100_columns": ([np.column_stack([rows, 0.3 * RNG.normal(size=(len(rows), 96))]) for rows in CLIENTS], {}),
    "tiny": ([1e-150 * rows for rows in CLIENTS], {}),
    "huge": ([1e100 * rows for rows in CLIENTS], {}),
    "large_and_singular": ([1e6 * rows[:, [0, 1, 1, 0]] for rows in CLIENTS], {}),
    "far": ([1e7 + rows for rows in CLIENTS], {}),
    "one_client": ([ROWS], {"min_clients": 1}),
}


@pytest.mark.parametrize(("clients", "options"), ODD.values(), ids=ODD)
@pytest.mark.parametrize("mode", ["own", "clr", "printed", "no_private_graph", "no_global_graph", "noise"])
def test_odd_rows_get_labels_all_the_same(clients, options, mode):
    assert_complete(quiet(SPPFGC(**({"n_clusters": 3} | MODES[mode] | options)), clients), clients)


@pytest.mark.parametrize(
    "name",
    sorted(
        ODD.keys()
        - {"more_clusters_than_a_client_has_rows", "two_rows_each", "one_class_each", "all_equal", "all_zero"}
    ),
)
@pytest.mark.parametrize("mode", ["own", "gmm"])
def test_clusters_that_are_plain_are_found_in_odd_rows(name, mode):
    clients, options = ODD[name]
    truth = {
        "duplicates": [np.repeat([0, 1, 2], 5)] * 3,
        "one_row": [*LABELS, CLASSES[:1]],
        "one_row_each": [CLASSES[i : i + 1] for i in range(15)],
        "one_client": [CLASSES],
    }.get(name, LABELS)
    result = quiet(SPPFGC(3, **MODES[mode], **options), clients, labels=truth)
    assert result.metrics["accuracy"] >= 0.99


def test_covariances_are_diagonal_beyond_64_columns():
    clients, _ = ODD["100_columns"]
    assert quiet(SPPFGC(3), clients).model.covariances_.ndim == 2
    assert quiet(SPPFGC(3, covariance="full"), clients).model.covariances_.ndim == 3
    assert quiet(SPPFGC(3), CLIENTS).model.covariances_.ndim == 3


def test_rows_that_are_too_alike_are_told():
    with pytest.warns(RuntimeWarning, match="spp-fgc found 1 clusters where n_clusters is 3: the rows are too alike"):
        simulate(SPPFGC(3, **MODES["no_graph"]), ODD["all_equal"][0], seed=0)


def test_more_clusters_than_rows_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="n_clusters is 9 and the clients have 8 rows together; ask for fewer"):
        simulate(SPPFGC(9), [ROWS[:4], ROWS[4:8]], seed=0)
    with pytest.raises(DataError, match="the clients have 8 rows together and n_clusters is 9; ask for fewer"):
        simulate(failing("structural_graph", {"2"})(9), [ROWS[:4], ROWS[4:8], ROWS[8:]], seed=0)


def test_rank_constraint_is_refused_for_more_rows_than_fit(monkeypatch):
    monkeypatch.setattr(global_clusters, "MOST_ROWS_OF_S", 119)
    with pytest.raises(DataError, match=r"120 rows together, and S would have an entry .* 119 rows at most"):
        simulate(SPPFGC(3, solver="clr"), CLIENTS, seed=0)
    assert_complete(simulate(SPPFGC(3), CLIENTS, seed=0), CLIENTS)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_row_that_is_no_number_is_named(value):
    broken = CLIENTS[1].copy()
    broken[2, 3] = value
    with pytest.raises(ValueError, match="row 2, column 3 is"):
        simulate(SPPFGC(3), [CLIENTS[0], broken], seed=0)


NAN = float("nan")
BAD = [
    ({"n_clusters": 1}, "n_clusters is 1; it must be an integer, 2 or more"),
    ({"n_neighbors": 0}, "n_neighbors is 0; it must be an integer, 1 or more"),
    ({"n_prototypes": 0}, "n_prototypes is 0; it must be an integer, 1 or more"),
    ({"covariance": "tied"}, "covariance is 'tied'; it must be one of: full, diagonal"),
    ({"solver": "newton"}, "solver is 'newton'; it must be one of: spectral, clr"),
    ({"prototypes": "rows"}, "prototypes is 'rows'; it must be one of: atoms, gmm"),
    ({"affinity": "js"}, "affinity is 'js'; it must be one of: jeffreys, kl"),
    ({"calibration": "none"}, "calibration is 'none'; it must be one of: accountant, paper"),
    ({"assignment": "components"}, "assignment is 'components'; it must be one of: eigenvectors"),
    ({"assignment": "rows-of-s"}, "assignment is 'rows-of-s'; it must be one of: eigenvectors"),
    (
        {"solver": "clr", "assignment": "eigenvectors"},
        "assignment is 'eigenvectors'; it must be one of: components, rows-of-s",
    ),
    ({"solver": "clr", "private_graph": False}, "solver is 'clr', which needs both graphs"),
    ({"solver": "clr", "global_graph": False}, "solver is 'clr', which needs both graphs"),
    ({"epsilon": 1.0}, "max_l1_norm is missing; noise for an epsilon needs an L1 norm to which rows are clipped"),
    ({"epsilon": 1.0, "calibration": "paper"}, "max_l1_norm is missing"),
    ({"epsilon": NAN, "max_l1_norm": 1.0}, "epsilon is nan"),
    ({"epsilon": 0, "max_l1_norm": 1.0}, "epsilon is 0; it must be a finite number above 0"),
    ({"epsilon": 1.0, "max_l1_norm": 1.0, "delta": None}, "delta is missing; an epsilon needs a delta"),
    ({"max_l1_norm": 0}, "max_l1_norm is 0; it must be a finite number above 0"),
    ({"epsilon": 1.0, "max_l1_norm": 1.0, "prototypes": "gmm"}, "prototypes is 'gmm' and calibration 'accountant'"),
    ({"budget_split": (1, 1, 1)}, "budget_split has 3 parts; give 5: for the origin, radius, directions, centers and"),
    ({"budget_split": (1, 1, 1, 1, 0)}, "a part of budget_split is 0; it must be a finite number above 0"),
    ({"min_clients": 0}, "min_clients is 0; it must be an integer, 1 or more"),
]


@pytest.mark.parametrize(("options", "sentence"), BAD)
def test_parameter_that_cannot_be_right_is_named_in_a_sentence(options, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        SPPFGC(**({"n_clusters": 3} | options))
    with pytest.raises(ValueError, match=re.escape(sentence)):
        simulate(SPPFGC(3).set_params(**options), CLIENTS)
