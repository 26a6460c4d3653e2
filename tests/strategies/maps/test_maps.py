"""Fed-tSNE and Fed-UMAP, from distances and from sums: figures, the steps, odd rows, failures and parameters."""

import re
import warnings
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import normalized_mutual_info_score
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier

from flower_fedclust import DataError, ProtocolError, simulate
from flower_fedclust.engine import answers
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.models import maps as models
from flower_fedclust.numerics.embedding import tsne_map
from flower_fedclust.numerics.nystrom import distances_between, nearest_others, nystrom_neighbors
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.strategies.maps import maps as drawing
from flower_fedclust.strategies.maps.map_sums import FedTSNESums, FedUMAPSums
from flower_fedclust.strategies.maps.maps import FederatedMap, FedTSNE, FedUMAP

RNG = np.random.default_rng(0)
MEANS = np.array([[0.0, 0, 0, 0], [9, 0, 0, 0], [0, 9, 0, 0]])
CLASSES = RNG.integers(3, size=100)
ROWS = MEANS[CLASSES] + RNG.normal(size=(100, 4))
CUTS = [20, 45, 75]
CLIENTS = np.split(ROWS, CUTS)
LABELS = np.split(CLASSES, CUTS)
FORMS = (FedTSNE, FedTSNESums)
METHODS = (FedTSNE, FedTSNESums, FedUMAP, FedUMAPSums)
PRIVATE = {"epsilon": 60.0, "max_norm": 12.0}


@pytest.fixture(autouse=True)
def few_iterations(request, monkeypatch):
    """Maps are made in a third of the time where how good they are is not the question."""
    if "of_digits" in request.fixturenames:
        return
    for module, name, option in (
        (drawing, "tsne_map", "n_iter"),
        (drawing, "umap_map", "n_epochs"),
        (models, "place_tsne", "n_iter"),
        (models, "place_umap", "n_epochs"),
    ):
        monkeypatch.setattr(module, name, partial(getattr(module, name), **{option: 25}))


@pytest.fixture(autouse=True)
def on_one_thread():
    """Threads that wait for each other on a busy machine take longer than one."""
    with one_thread():
        yield


def watched(strategy_type):
    """A strategy whose clients leave behind every message: task, name, what was sent and answered, what is kept."""
    log = []

    class Watched(strategy_type.client_type):
        def fit(self, parameters, config):
            sent, n_examples, facts = super().fit(parameters, config)
            kept = {key: found[0] for key in ("places", "labels") if (found := self.recall(key)) is not None}
            log.append((config["task"], self.name, parameters, sent, kept))
            return sent, n_examples, facts

    return type("Strategy", (strategy_type,), {"client_type": Watched}), log


def made(strategy_type, n_clusters=3, **options):
    """With little of what does not matter to a test."""
    fast = {"n_landmarks": 20} | ({"n_rounds": 2} if issubclass(strategy_type, FederatedMap) else {})
    return strategy_type(n_clusters, **(fast | options))


def run(strategy_type=FedTSNE, clients=CLIENTS, labels=None, names=None, seed=0, **options):
    return simulate(made(strategy_type, **options), clients, labels=labels, names=names, seed=seed)


def finite(result):
    arrays = [*result.model.to_arrays(), *result.embedding]
    return all(np.isfinite(array).all() for array in arrays) and np.isfinite(list(result.metrics.values())).all()


# Figures

N_DIGITS = 600
_digits = load_digits()
_chosen = np.random.default_rng(0).permutation(len(_digits.data))
DIGITS, DIGIT_CLASSES = _digits.data[_chosen[:N_DIGITS]] / 16.0, _digits.target[_chosen[:N_DIGITS]]
NEW_DIGITS, NEW_CLASSES = _digits.data[_chosen[N_DIGITS : N_DIGITS + 200]] / 16.0, _digits.target[_chosen[600:800]]
PARTITIONS = {
    "iid": np.array_split(np.arange(N_DIGITS), 10),
    "one class a client": [np.flatnonzero(digit == DIGIT_CLASSES) for digit in range(10)],
}
OPTIONS = {
    "distances": (FedTSNE, {"n_rounds": 25}),
    # Several local steps of clients that are unlike pull few landmarks apart, and clusters merge on the map.
    "one local step": (FedTSNE, {"n_landmarks": 100, "n_rounds": 25, "n_local_steps": 1}),
    "gradients": (FedTSNE, {"n_landmarks": 100, "n_rounds": 25, "averaging": "gradients"}),
    "sums": (FedTSNESums, {}),
    "umap": (FedUMAP, {"n_landmarks": 100, "n_rounds": 25}),
    "umap sums": (FedUMAPSums, {}),
}


def quality(places, classes):
    """The accuracy of the ten nearest on the map, and the NMI of k-means on it."""
    accuracy = cross_val_score(KNeighborsClassifier(10), places, classes, cv=5).mean()
    found = [KMeans(10, n_init=3, random_state=seed).fit_predict(places) for seed in range(3)]
    return accuracy, np.mean([normalized_mutual_info_score(classes, clusters) for clusters in found])


@pytest.fixture(scope="module")
def of_digits():
    """The maps of digits, each made once, with its quality."""
    made = {}

    def get(option, scheme):
        if option == "pooled" and option not in made:
            places = tsne_map(*nearest_others(DIGITS, 90), random_state=0)
            made[option] = quality(places, DIGIT_CLASSES)
        elif option != "pooled" and (option, scheme) not in made:
            parts = PARTITIONS[scheme]
            strategy, options = OPTIONS[option]
            result = simulate(
                strategy(10, **options),
                [DIGITS[part] for part in parts],
                labels=[DIGIT_CLASSES[part] for part in parts],
                seed=0,
            )
            classes = np.concatenate([DIGIT_CLASSES[part] for part in parts])
            made[option, scheme] = result, *quality(np.concatenate(result.embedding), classes)
        return made[option] if option == "pooled" else made[option, scheme]

    return get


@pytest.mark.long
@pytest.mark.parametrize(
    ("option", "scheme"),
    [
        ("distances", "one class a client"),
        ("gradients", "iid"),
        ("umap", "one class a client"),
    ],
)
def test_map_from_distances_is_nearly_as_good_as_that_of_the_pooled_rows(of_digits, option, scheme):
    accuracy, nmi = of_digits("pooled", None)
    assert accuracy > 0.94
    assert nmi > 0.83
    result, found_accuracy, found_nmi = of_digits(option, scheme)
    assert found_accuracy > accuracy - 0.03
    assert found_nmi > nmi - 0.05
    assert result.metrics["nmi"] > nmi - 0.06


@pytest.mark.long
@pytest.mark.parametrize(
    ("option", "scheme"), [("sums", "iid"), ("sums", "one class a client"), ("umap sums", "one class a client")]
)
def test_map_from_sums_is_nearly_as_good(of_digits, option, scheme):
    accuracy, nmi = of_digits("pooled", None)
    result, found_accuracy, found_nmi = of_digits(option, scheme)
    assert found_accuracy > accuracy - 0.04
    assert found_nmi > nmi - 0.06
    assert result.metrics["nmi"] > 0.79


def test_who_has_which_rows_does_not_matter_to_sums():
    one, other = (
        simulate(FedTSNESums(10), [DIGITS[part] for part in parts], seed=0).model for parts in PARTITIONS.values()
    )
    assert np.array_equal(one.landmarks_, other.landmarks_)


@pytest.mark.long
@pytest.mark.parametrize("option", ["distances", "sums"])
def test_new_rows_are_placed_near_their_class(of_digits, option):
    result, _, _ = of_digits(option, "one class a client")
    known = np.concatenate([DIGIT_CLASSES[part] for part in PARTITIONS["one class a client"]])
    classifier = KNeighborsClassifier(10).fit(np.concatenate(result.embedding), known)
    assert classifier.score(result.model.transform(NEW_DIGITS), NEW_CLASSES) > 0.9


def mmds_of_digits(option, scheme):
    strategy, options = OPTIONS[option]
    return simulate(strategy(10, **options), [DIGITS[part] for part in PARTITIONS[scheme]], seed=0).history["mmd"]


@pytest.mark.long
def test_history_has_an_mmd_a_round_which_falls():
    mmds = mmds_of_digits("distances", "iid")
    assert len(mmds) == 25
    assert mmds[-1] < mmds[0]
    assert all(later <= earlier + 1e-4 for earlier, later in pairwise(mmds))
    unlike = mmds_of_digits("one local step", "one class a client")
    assert len(unlike) == 25
    assert unlike[-1] < unlike[0]


# The landmarks


def test_fraction_fit_asks_fewer_clients_for_landmarks_and_nowhere_else():
    result = run(clients=np.array_split(ROWS, 8), fraction_fit=0.25, n_rounds=4)
    asked = {}
    for row in result.traffic:
        asked.setdefault((row.round, row.task), set()).add(row.client)
    assert {task: len(names) for (_, task), names in asked.items()} == {
        "enrol": 8, "entry_exponent": 8, "column_sums": 8, "reach": 8, "column_spread": 8, "landmark_steps": 2,
        "landmark_distances": 8, "keep_places": 8,
    }  # fmt: skip
    assert len({frozenset(names) for (_, task), names in asked.items() if task == "landmark_steps"}) > 1


@pytest.mark.parametrize(
    ("strategy_type", "options", "n_rounds"),
    [
        (FedTSNE, {"n_rounds": 0}, 7),
        (FedTSNE, {"n_rounds": 3}, 10),
        (FedTSNE, {"perturb": "data", "relative_noise": 0.1}, 10),
        (FedTSNE, {"perturb": "distances", "epsilon": 9.0, "max_norm": 12.0}, 6),
        (FedTSNESums, {}, 4 + 1 + 2 * 5 + 10 + 1),
        (FedTSNESums, PRIVATE, 1 + 1 + 5 + 1 + 1),
        (FedTSNESums, {"n_landmarks": 4}, 4 + 1 + 2 * 2 + 10 + 1),
    ],
    ids=str,
)
def test_number_of_rounds_is_that_of_the_traffic_table(strategy_type, options, n_rounds):
    result = run(strategy_type, **options)
    assert sorted({row.round for row in result.traffic}) == list(range(1, n_rounds + 1))
    # Four columns are no more than the directions, which so cost no round.
    spared = strategy_type is FedTSNESums and "epsilon" in options
    assert made(strategy_type, **options).num_rounds == n_rounds + spared


# The map


def test_map_is_that_of_the_nystrom_distances_that_the_clients_sent():
    strategy_type, log = watched(FedTSNE)
    result = run(strategy_type)
    sent = {name: sent[0] for task, name, _, sent, _ in log if task == "landmark_distances"}
    Y = result.model.landmarks_
    for name, B in sent.items():
        np.testing.assert_allclose(B, np.linalg.norm(CLIENTS[int(name)][:, None] - Y[None], axis=2), rtol=1e-9)
    B = np.concatenate([sent[str(index)] for index in range(4)])
    W = distances_between(Y)
    np.testing.assert_allclose(W, np.linalg.norm(Y[:, None] - Y[None], axis=2), atol=1e-9)
    D = B @ np.linalg.pinv(W) @ B.T
    found = nystrom_neighbors(B, W, 90)
    np.testing.assert_allclose(found[1], np.sort(D - np.diag(np.diag(D) - 1e9), axis=1)[:, :90].clip(0), atol=1e-5)
    # The coordinates, up to the seed that the server drew.
    assert np.array_equal(np.concatenate(result.embedding), result.model.coordinates_)
    seeds = np.random.default_rng(0)
    seeds.standard_normal((20, 4))
    expected = drawing.tsne_map(*found, random_state=int(seeds.integers(2**31)))
    assert np.array_equal(result.model.coordinates_, expected)


@pytest.mark.parametrize("strategy_type", [FedTSNE, FedUMAP])
def test_clients_keep_the_places_and_the_clusters_of_their_rows(strategy_type):
    strategy_type, log = watched(strategy_type)
    names = ["10", "9", "b", "a"]
    result = run(strategy_type, names=names, labels=LABELS)
    kept = {name: found for task, name, *_, found in log if task == "keep_places"}
    assert set(kept) == set(names)
    assert result.metrics["accuracy"] == 1.0
    for name, labels, places, rows in zip(names, result.labels, result.embedding, CLIENTS, strict=True):
        assert labels.shape == (len(rows),)
        assert places.shape == (len(rows), 2)
        assert np.array_equal(kept[name]["labels"], labels)
        assert np.array_equal(kept[name]["places"], places)
        centers = result.model.map_centers_
        assert np.array_equal(labels, np.linalg.norm(places[:, None] - centers[None], axis=2).argmin(axis=1))


def test_nobody_else_gets_the_places_of_a_client():
    strategy_type, log = watched(FedTSNE)
    run(strategy_type)
    for task, name, parameters, *_ in log:
        if task == "keep_places":
            assert [len(array) for array in parameters] == [len(CLIENTS[int(name)])] * 2


@pytest.mark.parametrize("private", [{}, PRIVATE], ids=["plain", "epsilon"])
@pytest.mark.parametrize("strategy_type", [FedTSNESums, FedUMAPSums])
def test_clients_and_model_place_rows_alike_on_a_map_from_sums(strategy_type, private):
    strategy_type, log = watched(strategy_type)
    result = run(strategy_type, labels=LABELS, **private)
    kept = {name: found["places"] for task, name, *_, found in log if task == "place_rows"}
    assert set(kept) == {"0", "1", "2", "3"}
    for name, (places, labels, rows) in enumerate(zip(result.embedding, result.labels, CLIENTS, strict=True)):
        assert np.array_equal(kept[str(name)], places)
        assert np.array_equal(result.model.transform(rows), places)
        assert np.array_equal(result.model.predict(rows), labels)
    assert result.metrics["accuracy"] > 0.97
    assert result.history == {}


@pytest.mark.parametrize("private", [{}, PRIVATE], ids=["plain", "epsilon"])
def test_nothing_with_one_entry_a_row_reaches_the_server_in_sums(private):
    strategy_type, log = watched(FedTSNESums)
    clients = [rows[:size] for rows, size in zip(np.split(np.tile(ROWS, (3, 1)), 3), (97, 83, 71), strict=True)]
    result = run(strategy_type, clients=clients, **private)
    sizes = {str(index): len(rows) for index, rows in enumerate(clients)}
    assert {task for task, *_ in log} > {"cluster_sums" if private else "cluster_sums_and_costs", "place_rows"}
    for _, name, _, sent, _ in log:
        assert sizes[name] not in {side for array in sent for side in array.shape}
    assert {len(sent) for task, _, _, sent, _ in log if task == "place_rows"} == {0}
    messages = [message for message in result.privacy.messages if message.task != "enrol"]
    assert {message.detail for message in messages} == {"sum over the clients"}


def test_at_most_half_as_many_centers_as_rows_are_mapped():
    assert len(run(FedTSNESums, n_landmarks=300).model.landmarks_) <= 50
    assert len(run(FedTSNESums, n_landmarks=30).model.landmarks_) == 30


def test_centers_lie_where_the_rows_do():
    far = [rows + 1e4 for rows in CLIENTS]
    near, moved = (run(FedTSNESums, clients=clients).model.landmarks_ for clients in (CLIENTS, far))
    np.testing.assert_allclose(near + 1e4, moved, atol=1e-6)
    assert np.linalg.norm(near[:, None] - ROWS[None], axis=2).min(axis=1).max() < 2.5


def test_rows_are_placed_by_fewer_neighbors_on_a_map_from_sums():
    assert [run(strategy_type).model.n_neighbors for strategy_type in METHODS] == [5.0, 3.0, 5.0, 3.0]


def test_clusters_of_the_map_weigh_a_center_by_its_rows():
    clients = np.split(np.concatenate([ROWS[CLASSES == 0], np.tile(ROWS[CLASSES == 1], (4, 1)), ROWS]), [40, 90])
    model = run(FedTSNESums, clients=clients, n_landmarks=12).model
    pooled = np.concatenate(clients)
    nearest = np.linalg.norm(pooled[:, None] - model.landmarks_[None], axis=2).argmin(axis=1)
    sizes = np.bincount(nearest, minlength=len(model.landmarks_))
    places, centers = model.coordinates_, model.map_centers_
    cluster = np.linalg.norm(places[:, None] - centers[None], axis=2).argmin(axis=1)
    expected = [np.average(places[cluster == k], axis=0, weights=sizes[cluster == k]) for k in range(3)]
    np.testing.assert_allclose(centers, expected, atol=1e-6)
    assert sizes.max() > 2 * sizes.min()


def test_no_center_without_a_row_is_on_the_map():
    values = np.array([[0.0, 0], [9, 0], [0, 9], [9, 9], [20, 0], [0, 20]])
    model = run(FedTSNESums, clients=[np.repeat(values, 4, axis=0)] * 3).model
    assert sorted(map(tuple, np.round(model.landmarks_, 6))) == sorted(map(tuple, values))


def test_min_dist_is_that_of_the_map_and_of_the_placed_rows():
    tight, loose = (run(FedUMAPSums, min_dist=min_dist) for min_dist in (0.0, 0.9))
    assert (tight.model.min_dist, loose.model.min_dist) == (0.0, 0.9)

    def nearest(result):
        return np.median(np.sort(np.linalg.norm(result[:, None] - result[None], axis=2), axis=1)[:, 1])

    assert nearest(tight.model.coordinates_) < nearest(loose.model.coordinates_)


# Clients that fail


def failing(strategy_type, failing_task, names):
    """A strategy whose clients of these names fail at a task."""

    class Failing(strategy_type.client_type):
        def fit(self, parameters, config):
            self.task = config["task"]
            return super().fit(parameters, config)

        @property
        def rows(self):
            if self.task == failing_task and self.name in names:
                raise DataError(f"client {self.name} fails.")
            return super().rows

    return type("Strategy", (strategy_type,), {"client_type": Failing})


@pytest.mark.parametrize("task", ["entry_exponent", "column_sums", "reach", "column_spread", "landmark_steps"])
def test_client_that_fails_before_the_distances_is_on_the_map(task):
    result = run(failing(FedTSNE, task, {"1"}), labels=LABELS)
    assert [len(places) for places in result.embedding] == [20, 25, 30, 25]
    assert {(failure.task, failure.client) for failure in result.failures} == {(task, "1")}
    assert result.metrics["accuracy"] == 1.0


def test_client_that_sends_no_distances_has_no_places_and_the_others_have_theirs():
    result = run(failing(FedTSNE, "landmark_distances", {"1"}), labels=LABELS)
    assert [len(labels) for labels in result.labels] == [20, 0, 30, 25]
    assert [places.shape for places in result.embedding] == [(20, 2), (0, 2), (30, 2), (25, 2)]
    assert result.metrics["accuracy"] == 1.0
    assert {row.client for row in result.traffic if row.task == "keep_places"} == {"0", "2", "3"}
    assert [(failure.task, failure.reason) for failure in result.failures] == [
        ("landmark_distances", "client 1 fails.")
    ]
    assert result.model.transform(CLIENTS[1]).shape == (25, 2)


def test_result_with_a_client_without_places_is_saved(tmp_path):
    folder = run(failing(FedTSNE, "landmark_distances", {"1"})).save(tmp_path / "run")
    assert (folder / "embedding" / "1.csv").read_text().splitlines() == ["x,y"]
    assert len((folder / "embedding" / "0.csv").read_text().splitlines()) == 21


@pytest.mark.parametrize("task", ["column_spread", "cluster_sums_and_costs", "place_rows"])
def test_client_that_fails_in_sums_is_on_the_map_of_the_model(task):
    result = run(failing(FedTSNESums, task, {"1"}), labels=LABELS)
    assert [len(places) for places in result.embedding] == [20, 25, 30, 25]
    assert {(failure.task, failure.client) for failure in result.failures} == {(task, "1")}
    assert result.metrics["accuracy"] == 1.0


def test_client_without_noisy_rows_is_left_out_and_its_own_rows_are_never_used():
    result = run(failing(FedTSNE, "perturb_rows", {"1"}), perturb="data", epsilon=900.0, max_norm=12.0)
    assert [len(labels) for labels in result.labels] == [20, 0, 30, 25]
    assert any("client 1 has not kept its noisy rows" in failure.reason for failure in result.failures)


def test_too_few_clients_end_the_run_with_a_sentence():
    with pytest.raises(ProtocolError, match=r"\('landmark_distances'\): 1 clients answered and 2 have to"):
        run(failing(FedTSNE, "landmark_distances", {"0", "1", "2"}))
    with pytest.raises(ProtocolError, match=r"\('cluster_sums_and_costs'\): 3 clients answered and 4 have to"):
        run(failing(FedTSNESums, "cluster_sums_and_costs", {"2"}), min_clients=4)


# Rows that are odd


@pytest.mark.parametrize("strategy_type", FORMS)
@pytest.mark.parametrize("value", [0.0, 0.1])
def test_rows_that_are_all_equal_are_refused_in_a_sentence(value, strategy_type):
    with pytest.raises(DataError, match="all rows are equal, so that there is no map of them; give rows that differ"):
        run(strategy_type, clients=[np.full((20, 3), value)] * 3)


@pytest.mark.parametrize("gamma", [1e-300, 1e-12, 1e9, 1e200])
def test_a_kernel_that_is_0_or_1_everywhere_gives_a_map_all_the_same(gamma):
    result = run(gamma=gamma, labels=LABELS)
    assert finite(result)
    assert np.isfinite(result.history["mmd"]).all()
    assert result.metrics["accuracy"] > 0.9


@pytest.mark.parametrize("strategy_type", METHODS)
@pytest.mark.parametrize("n_rows", [4, 6])
def test_few_rows_have_a_map(n_rows, strategy_type):
    result = run(strategy_type, clients=[ROWS[:2], ROWS[2:n_rows]])
    assert finite(result)
    assert [len(places) for places in result.embedding] == [2, n_rows - 2]


def test_three_rows_have_no_map_from_distances_and_a_sentence_says_so():
    with pytest.raises(DataError, match=r"the clients have 3 rows together; a map of 3 clusters needs 4\."):
        run(clients=[ROWS[:2], ROWS[2:3]])


@pytest.mark.parametrize("strategy_type", FORMS)
def test_more_clusters_than_rows_are_refused_before_anything_is_sent(strategy_type):
    with pytest.raises(ValueError, match="n_clusters is 8 and the clients have 6 rows together; ask for fewer"):
        run(strategy_type, clients=[ROWS[:3], ROWS[3:6]], n_clusters=8)


@pytest.mark.parametrize(
    ("strategy_type", "options"),
    [
        *((strategy_type, {"clients": [ROWS[:3], ROWS[3:6]], "n_clusters": 6}) for strategy_type in FORMS),
        (FedTSNESums, {"n_landmarks": 5, "n_clusters": 9}),
    ],
)
def test_as_many_clusters_as_points_are_a_map_or_a_sentence_of_our_own(strategy_type, options):
    try:
        result = run(strategy_type, **options)
    except ValueError as error:
        assert "n_samples" not in str(error)  # noqa: PT017
    else:
        assert finite(result)
        assert len(result.model.map_centers_) == options["n_clusters"]


@pytest.mark.parametrize("strategy_type", FORMS)
@pytest.mark.parametrize("n_landmarks", [2, 3])
def test_two_landmarks_are_enough_for_a_map(n_landmarks, strategy_type):
    assert finite(run(strategy_type, n_landmarks=n_landmarks))


@pytest.mark.parametrize("strategy_type", FORMS)
@pytest.mark.parametrize("perplexity", [1.0, 1000.0])
def test_perplexity_is_as_large_as_the_rows_allow(perplexity, strategy_type):
    result = run(strategy_type, labels=LABELS, perplexity=perplexity)
    assert finite(result)
    assert perplexity == 1.0 or result.metrics["accuracy"] > 0.9


@pytest.mark.parametrize(("strategy_type", "n_neighbors"), [(FedUMAPSums, 2), (FedUMAP, 1000)])
def test_neighbors_are_as_many_as_the_rows_allow(strategy_type, n_neighbors):
    assert finite(run(strategy_type, n_neighbors=n_neighbors))


@pytest.mark.parametrize("strategy_type", FORMS)
def test_clients_with_one_row_each_are_on_the_map(strategy_type):
    labels = [[label] for label in CLASSES[:24]]
    result = run(strategy_type, clients=[row[None] for row in ROWS[:24]], labels=labels)
    assert finite(result)
    assert [len(places) for places in result.embedding] == [1] * 24
    assert result.metrics["accuracy"] > 0.9


@pytest.mark.parametrize("strategy_type", METHODS)
def test_rows_of_two_values_have_a_map(strategy_type):
    part = np.repeat([[0.0, 0], [1, 1]], 5, axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert finite(run(strategy_type, clients=[part] * 3, n_clusters=2))


@pytest.mark.parametrize("strategy_type", FORMS)
def test_clients_with_the_same_rows_have_the_same_clusters(strategy_type):
    result = run(strategy_type, clients=[ROWS[:40]] * 2)
    assert strategy_type is FedTSNE or np.array_equal(*result.embedding)
    assert np.mean(result.labels[0] == result.labels[1]) > 0.95


@pytest.mark.parametrize("strategy_type", FORMS)
@pytest.mark.parametrize("change", [(1e-9, 0.0), (1e9, 0.0), (1.0, 1e7)], ids=["tiny", "huge", "far"])
def test_unit_and_origin_of_the_rows_do_not_matter(change, strategy_type):
    factor, offset = change
    result = run(strategy_type, clients=[part * factor + offset for part in CLIENTS], labels=LABELS)
    assert result.metrics["accuracy"] == 1.0


@pytest.mark.parametrize("strategy_type", METHODS)
@pytest.mark.parametrize("factor", [2.0**-400, 2.0**66])
def test_another_unit_of_the_rows_gives_the_same_map_bit_for_bit(factor, strategy_type):
    one, other = (run(strategy_type, clients=[part * unit for part in CLIENTS]) for unit in (1.0, factor))
    for first, second in zip([*one.embedding, *one.labels], [*other.embedding, *other.labels], strict=True):
        assert np.array_equal(first, second)
    assert np.array_equal(one.model.transform(ROWS + 0.1), other.model.transform((ROWS + 0.1) * factor))


@pytest.mark.parametrize("strategy_type", METHODS)
@pytest.mark.parametrize("factor", [1e-150, 1e-20, 1e140])
def test_rows_of_extreme_units_have_a_map_of_their_classes(factor, strategy_type):
    # Their maps are not those of the rows themselves: such a unit rounds, and maps are chaotic.
    result = run(strategy_type, clients=[part * factor for part in CLIENTS], labels=LABELS)
    assert finite(result)
    assert result.metrics["accuracy"] == 1.0


def test_landmarks_that_coincide_are_as_good_as_one():
    class Coinciding(FedTSNE.client_type):
        @answers(*FedTSNE.client_type.landmark_steps.answer.sends)
        def landmark_steps(self, Y, *frame, exponent, **arguments):
            moves, discrepancy = super().landmark_steps(Y, *frame, exponent=exponent, **arguments)
            moved = Y + moves.values
            moved[len(Y) // 2 :] = moved[: len(Y) - len(Y) // 2]
            return GridArray.truncated(moved - Y, exponent), discrepancy

    result = run(type("Strategy", (FedTSNE,), {"client_type": Coinciding}), labels=LABELS)
    # But for the unit in which moves are sent.
    assert len(np.unique(np.round(result.model.landmarks_, 6) + 0.0, axis=0)) == 10
    assert finite(result)
    assert result.metrics["accuracy"] == 1.0


def test_noise_that_hides_the_spread_does_not_say_that_the_rows_are_equal():
    assert finite(run(FedTSNESums, epsilon=0.01, max_norm=12.0))


# Parameters that cannot be right

EPSILON, RELATIVE = {"epsilon": 1.0, "max_norm": 1.0}, {"relative_noise": 0.1}
BAD = [
    ({"perturb": "kernel"}, "perturb is 'kernel'; it must be one of: nothing, data, landmarks, gradients, distances"),
    ({"noise": "server"}, "noise is 'server'; it must be one of: local"),
    (RELATIVE, "relative_noise is given and perturb is 'nothing'; say what it is added to"),
    *(
        (
            {"perturb": "landmarks", "averaging": "gradients", **level},
            "perturb is 'landmarks' and averaging is 'gradients', where no client sends landmarks; set "
            "perturb='gradients' or averaging='landmarks'.",
        )
        for level in (RELATIVE, EPSILON)
    ),
    *(
        (
            {"perturb": perturb, "n_rounds": 0, **level},
            f"perturb is '{perturb}' and n_rounds is 0, so that no client sends {perturb}; give 1 or more.",
        )
        for level in (RELATIVE, EPSILON)
        for perturb in ("landmarks", "gradients")
    ),
    (
        {"perturb": "data", **RELATIVE, **EPSILON},
        "epsilon and relative_noise are both given; relative noise has no epsilon, so give one",
    ),
    *(
        (
            {"perturb": perturb},
            f"perturb is '{perturb}' and there is no noise level; give epsilon and max_norm, or relative_noise",
        )
        for perturb in ("data", "landmarks", "gradients", "distances")
    ),
    ({"epsilon": 1.0, "perturb": "data"}, "max_norm is missing; noise for an epsilon needs a norm to which rows are"),
    (EPSILON, "epsilon is given and perturb is 'nothing'; say what takes the noise"),
    (
        {"federated_evaluation": True},
        "federated_evaluation would send each client what all rows have sent, which is in the model; take FedTSNESums",
    ),
]


@pytest.mark.parametrize(("options", "sentence"), BAD)
def test_parameters_that_do_not_go_together_are_named_in_a_sentence(options, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        FedTSNE(3, **options).check_complete()
    strategy = FedTSNE(3).set_params(**options)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        simulate(strategy, CLIENTS)
