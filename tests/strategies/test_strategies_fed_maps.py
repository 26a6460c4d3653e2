"""Fed-tSNE and Fed-UMAP: figures, the steps of the protocol, and what becomes of odd rows and parameters."""

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

from flower_fedclust import DataError, FedTSNE, FedUMAP, MapModel, ProtocolError, simulate
from flower_fedclust.models import maps as models
from flower_fedclust.numerics.embedding import tsne_map
from flower_fedclust.numerics.nystrom import distances_between, nearest_others, nystrom_neighbors
from flower_fedclust.strategies import fed_maps
from flower_fedclust.strategies.fed_maps import FederatedMapClient

RNG = np.random.default_rng(0)
MEANS = np.array([[0.0, 0, 0, 0], [9, 0, 0, 0], [0, 9, 0, 0]])
CLASSES = RNG.integers(3, size=100)
ROWS = MEANS[CLASSES] + RNG.normal(size=(100, 4))
CUTS = [20, 45, 75]
CLIENTS = np.split(ROWS, CUTS)
LABELS = np.split(CLASSES, CUTS)
#: Little of what does not matter to a test.
FAST = {"n_landmarks": 20, "n_rounds": 2}
MODES = ("distances", "stay")
METHODS = (FedTSNE, FedUMAP)


class WatchedClient(FederatedMapClient):
    """Leaves behind every message: who was asked for what, what it was sent, what it sent, and what it keeps."""

    log: list  # set by the fixture

    def fit(self, parameters, config):
        sent, n_examples, facts = super().fit(parameters, config)
        kept = {key: found[0] for key in ("places", "labels") if (found := self.recall(key)) is not None}
        self.log.append((config["task"], self.name, parameters, sent, kept))
        return sent, n_examples, facts


class WatchedTSNE(FedTSNE):
    client_type = WatchedClient


class WatchedUMAP(FedUMAP):
    client_type = WatchedClient


@pytest.fixture(autouse=True)
def few_iterations(request, monkeypatch):
    """Maps are made in a third of the time where how good they are is not the question."""
    if "of_digits" in request.fixturenames or "slow" in request.keywords:
        return
    for module, name, option in (
        (fed_maps, "tsne_map", "n_iter"),
        (fed_maps, "umap_map", "n_epochs"),
        (models, "place_tsne", "n_iter"),
        (models, "place_umap", "n_epochs"),
    ):
        monkeypatch.setattr(module, name, partial(getattr(module, name), **{option: 25}))


@pytest.fixture
def log():
    WatchedClient.log = []
    return WatchedClient.log


def run(strategy_type=FedTSNE, clients=CLIENTS, labels=None, names=None, seed=0, n_clusters=3, **options):
    return simulate(strategy_type(n_clusters, **(FAST | options)), clients, labels=labels, names=names, seed=seed)


def finite(result):
    arrays = [*result.model.to_arrays(), *result.embedding]
    return all(np.isfinite(array).all() for array in arrays) and np.isfinite(list(result.metrics.values())).all()


def same_bits(one, other):
    for first, second in zip(one.model.to_arrays(), other.model.to_arrays(), strict=True):
        assert np.array_equal(first, second)
    for first, second in zip([*one.labels, *one.embedding], [*other.labels, *other.embedding], strict=True):
        assert np.array_equal(first, second)
    assert one.traffic == other.traffic
    assert one.history == other.history


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
    "distances": (FedTSNE, {}),
    "few landmarks": (FedTSNE, {"n_landmarks": 100}),
    # Several local steps of clients that are unlike pull few landmarks apart, and clusters merge on the map.
    "one local step": (FedTSNE, {"n_landmarks": 100, "n_local_steps": 1}),
    "gradients": (FedTSNE, {"n_landmarks": 100, "averaging": "gradients"}),
    "stay": (FedTSNE, {"rows": "stay"}),
    "umap": (FedUMAP, {"n_landmarks": 100}),
    "umap stay": (FedUMAP, {"rows": "stay"}),
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


@pytest.mark.parametrize(
    ("option", "scheme"),
    [
        ("distances", "iid"),
        ("distances", "one class a client"),
        ("one local step", "one class a client"),
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


@pytest.mark.parametrize(
    ("option", "scheme"), [("stay", "iid"), ("stay", "one class a client"), ("umap stay", "one class a client")]
)
def test_map_of_rows_that_stay_is_nearly_as_good(of_digits, option, scheme):
    accuracy, nmi = of_digits("pooled", None)
    result, found_accuracy, found_nmi = of_digits(option, scheme)
    assert found_accuracy > accuracy - 0.04
    assert found_nmi > nmi - 0.06
    assert result.metrics["nmi"] > 0.79


def test_who_has_which_rows_does_not_matter_where_they_stay(of_digits):
    one, other = (of_digits("stay", scheme)[0].model for scheme in PARTITIONS)
    np.testing.assert_allclose(one.landmarks_, other.landmarks_, atol=1e-9)


@pytest.mark.parametrize("option", ["distances", "stay"])
def test_new_rows_are_placed_near_their_class(of_digits, option):
    result, _, _ = of_digits(option, "one class a client")
    known = np.concatenate([DIGIT_CLASSES[part] for part in PARTITIONS["one class a client"]])
    classifier = KNeighborsClassifier(10).fit(np.concatenate(result.embedding), known)
    assert classifier.score(result.model.transform(NEW_DIGITS), NEW_CLASSES) > 0.9


def test_history_has_an_mmd_a_round_which_falls(of_digits):
    mmds = of_digits("distances", "iid")[0].history["mmd"]
    assert len(mmds) == 50
    assert mmds[-1] < mmds[0]
    assert all(later <= earlier + 1e-4 for earlier, later in pairwise(mmds))
    for option in ("few landmarks", "one local step"):
        unlike = of_digits(option, "one class a client")[0].history["mmd"]
        assert len(unlike) == 50
        assert unlike[-1] < unlike[0]


# The landmarks


def test_one_local_step_gives_the_same_landmarks_in_both_forms_and_an_mmd_that_never_rises():
    by_landmarks, by_gradients = (
        run(n_local_steps=1, n_rounds=15, averaging=averaging) for averaging in ("landmarks", "gradients")
    )
    np.testing.assert_allclose(by_landmarks.model.landmarks_, by_gradients.model.landmarks_, rtol=1e-8, atol=1e-8)
    mmds = by_landmarks.history["mmd"]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(mmds))
    several = (run(n_local_steps=4, averaging=averaging).model.landmarks_ for averaging in ("landmarks", "gradients"))
    assert not np.allclose(*several, atol=1e-3)


def test_without_a_round_the_landmarks_are_drawn_with_the_moments_of_all_columns():
    rows = ROWS * [1.0, 100.0, 0.01, 1.0] + 50.0
    result = simulate(FedTSNE(3, n_rounds=0, n_landmarks=20, random_state=5), np.split(rows, CUTS))
    expected = rows.mean(axis=0) + rows.std(axis=0) * np.random.default_rng(5).standard_normal((20, 4))
    np.testing.assert_allclose(result.model.landmarks_, expected, rtol=1e-10)
    assert result.history == {"mmd": []}
    assert result.metrics["cost"] >= 0


def test_fraction_fit_asks_fewer_clients_for_landmarks_and_nowhere_else():
    result = run(clients=np.array_split(ROWS, 8), fraction_fit=0.25, n_rounds=4)
    asked = {}
    for row in result.traffic:
        asked.setdefault((row.round, row.task), set()).add(row.client)
    assert {task: len(names) for (_, task), names in asked.items()} == {
        "enrol": 8, "column_sums": 8, "column_spread": 8, "landmark_steps": 2, "landmark_distances": 8,
        "keep_places": 8,
    }  # fmt: skip
    assert len({frozenset(names) for (_, task), names in asked.items() if task == "landmark_steps"}) > 1


def test_tol_stops_early():
    stopped, full = (run(tol=tol, n_rounds=7) for tol in (10.0, 0.0))
    assert len(stopped.history["mmd"]) == 1
    assert len(full.history["mmd"]) == 7
    last = FedTSNE(3, n_rounds=7).num_rounds
    assert max(row.round for row in stopped.traffic) == last - 6
    assert max(row.round for row in full.traffic) == last


@pytest.mark.parametrize(
    ("options", "n_rounds"),
    [
        ({"n_rounds": 0}, 5),
        ({"n_rounds": 3}, 8),
        ({"perturb": "data", "relative_noise": 0.1}, 8),
        ({"perturb": "distances", "epsilon": 9.0, "max_norm": 12.0, "noise": "local"}, 6),
        ({"rows": "stay"}, 2 + 1 + 2 * 5 + 10 + 1),
        ({"rows": "stay", "epsilon": 60.0, "max_norm": 12.0}, 3 + 1 + 5 + 1 + 1 - 1),
        ({"rows": "stay", "n_landmarks": 4}, 2 + 1 + 2 * 2 + 10 + 1),
    ],
    ids=str,
)
def test_number_of_rounds_is_that_of_the_traffic_table(options, n_rounds):
    result = run(**options)
    assert sorted({row.round for row in result.traffic}) == list(range(1, n_rounds + 1))
    # Four columns are no more than the directions, which so cost no round.
    spared = 1 if options.get("rows") == "stay" and "epsilon" in options else 0
    assert FedTSNE(3, **(FAST | options)).num_rounds == n_rounds + spared


# The map


def test_map_is_that_of_the_nystrom_distances_that_the_clients_sent(log):
    result = run(WatchedTSNE)
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
    expected = fed_maps.tsne_map(*found, random_state=int(seeds.integers(2**31)))
    assert np.array_equal(result.model.coordinates_, expected)


@pytest.mark.parametrize("strategy_type", [WatchedTSNE, WatchedUMAP])
def test_clients_keep_the_places_and_the_clusters_of_their_rows(log, strategy_type):
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


def test_nobody_else_gets_the_places_of_a_client(log):
    run(WatchedTSNE)
    for task, name, parameters, *_ in log:
        if task == "keep_places":
            assert [len(array) for array in parameters] == [len(CLIENTS[int(name)])] * 2


@pytest.mark.parametrize("private", [{}, {"epsilon": 60.0, "max_norm": 12.0}], ids=["plain", "epsilon"])
@pytest.mark.parametrize("strategy_type", [WatchedTSNE, WatchedUMAP])
def test_rows_that_stay_are_placed_by_their_clients_and_by_the_model_alike(log, strategy_type, private):
    result = run(strategy_type, labels=LABELS, rows="stay", **private)
    kept = {name: found["places"] for task, name, *_, found in log if task == "place_rows"}
    assert set(kept) == {"0", "1", "2", "3"}
    for name, (places, labels, rows) in enumerate(zip(result.embedding, result.labels, CLIENTS, strict=True)):
        assert np.array_equal(kept[str(name)], places)
        assert np.array_equal(result.model.transform(rows), places)
        assert np.array_equal(result.model.predict(rows), labels)
    assert result.metrics["accuracy"] > 0.97
    assert result.history == {}


@pytest.mark.parametrize("private", [{}, {"epsilon": 60.0, "max_norm": 12.0}], ids=["plain", "epsilon"])
def test_nothing_with_one_entry_a_row_reaches_the_server_where_rows_stay(log, private):
    clients = [rows[:size] for rows, size in zip(np.split(np.tile(ROWS, (3, 1)), 3), (97, 83, 71), strict=True)]
    result = run(WatchedTSNE, clients=clients, rows="stay", **private)
    sizes = {str(index): len(rows) for index, rows in enumerate(clients)}
    sums = "cluster_sums" if private else "cluster_sums_and_costs"
    assert {task for task, *_ in log} > {sums, "place_rows"}
    for _, name, _, sent, _ in log:
        assert sizes[name] not in {side for array in sent for side in array.shape}
    assert {len(sent) for task, _, _, sent, _ in log if task in ("place_rows", "reduce_rows")} == {0}
    assert "one per row" not in {message.detail for message in result.privacy.messages}
    messages = [message for message in result.privacy.messages if message.task != "enrol"]
    assert {message.detail for message in messages} == {"sum over the clients"}


def test_at_most_half_as_many_centers_as_rows_where_rows_stay():
    assert len(run(rows="stay", n_landmarks=300).model.landmarks_) <= 50
    assert len(run(rows="stay", n_landmarks=30).model.landmarks_) == 30


def test_centers_where_rows_stay_lie_where_the_rows_do():
    far = [rows + 1e4 for rows in CLIENTS]
    near, moved = (run(rows="stay", clients=clients).model.landmarks_ for clients in (CLIENTS, far))
    np.testing.assert_allclose(near + 1e4, moved, atol=1e-6)
    assert np.linalg.norm(near[:, None] - ROWS[None], axis=2).min(axis=1).max() < 2.5


def test_rows_that_stay_are_placed_by_fewer_neighbors():
    for strategy_type in METHODS:
        assert [run(strategy_type, rows=rows).model.n_neighbors for rows in MODES] == [5.0, 3.0]


def test_clusters_of_the_map_weigh_a_center_by_its_rows():
    clients = np.split(np.concatenate([ROWS[CLASSES == 0], np.tile(ROWS[CLASSES == 1], (4, 1)), ROWS]), [40, 90])
    model = run(rows="stay", clients=clients, n_landmarks=12).model
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
    model = run(rows="stay", clients=[np.repeat(values, 4, axis=0)] * 3).model
    assert sorted(map(tuple, np.round(model.landmarks_, 6))) == sorted(map(tuple, values))


def test_default_perplexity_and_neighbors_are_smaller_where_rows_stay():
    assert np.array_equal(run().model.coordinates_, run(perplexity=30.0).model.coordinates_)
    # Of 50 centers a perplexity of 16 is the largest.
    by_default, ten, fifteen = (
        run(rows="stay", n_landmarks=50, perplexity=perplexity).model.coordinates_ for perplexity in (None, 10.0, 15.0)
    )
    assert np.array_equal(by_default, ten)
    assert not np.array_equal(by_default, fifteen)
    one, same, other = (run(FedUMAP, rows="stay", n_neighbors=number).model.coordinates_ for number in (None, 10, 6))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_min_dist_is_that_of_the_map_and_of_the_placed_rows():
    tight, loose = (run(FedUMAP, rows="stay", min_dist=min_dist) for min_dist in (0.0, 0.9))
    assert (tight.model.min_dist, loose.model.min_dist) == (0.0, 0.9)

    def nearest(result):
        return np.median(np.sort(np.linalg.norm(result[:, None] - result[None], axis=2), axis=1)[:, 1])

    assert nearest(tight.model.coordinates_) < nearest(loose.model.coordinates_)


# What a run leaves behind


@pytest.mark.parametrize("rows", MODES)
@pytest.mark.parametrize("strategy_type", METHODS)
def test_model_is_the_same_after_it_was_saved(tmp_path, strategy_type, rows):
    names = ["north", "south/1", "b", "a"]
    result = run(strategy_type, rows=rows, names=names)
    assert isinstance(result.model, MapModel)
    folder = result.save(tmp_path / "run")
    with np.load(folder / "model.npz") as file:
        again = MapModel.from_arrays([file[name] for name in file.files])
    for one, other in zip(again.to_arrays(), result.model.to_arrays(), strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(again.transform(ROWS), result.model.transform(ROWS))
    assert np.array_equal(again.predict(ROWS), result.model.predict(ROWS))
    for file, places, labels in zip(["north", "1-south_1", "b", "a"], result.embedding, result.labels, strict=True):
        written = folder / "embedding" / f"{file}.csv"
        assert written.read_text().splitlines()[0] == "x,y"
        np.testing.assert_allclose(np.loadtxt(written, skiprows=1, delimiter=",", ndmin=2), places, rtol=1e-8)
        assert np.array_equal(np.loadtxt(folder / "labels" / f"{file}.csv", skiprows=1, dtype=int), labels)
    assert not (folder / "centers.csv").exists()
    assert ("The server can read the rows" in (folder / "privacy.txt").read_text()) == (rows == "distances")


@pytest.mark.parametrize(
    ("strategy_type", "options"),
    [
        (FedTSNE, {"fraction_fit": 0.5}),
        (FedTSNE, {"perturb": "data", "epsilon": 50.0, "max_norm": 12.0, "noise": "local"}),
        (FedTSNE, {"perturb": "distances", "epsilon": 50.0, "max_norm": 12.0, "noise": "local"}),
        (FedTSNE, {"perturb": "landmarks", "relative_noise": 0.1}),
        (FedTSNE, {"rows": "stay", "epsilon": 60.0, "max_norm": 12.0, "noise": "clients"}),
        (FedUMAP, {}),
        (FedUMAP, {"rows": "stay"}),
    ],
    ids=str,
)
def test_run_with_a_seed_gives_the_same_bits_twice_and_another_seed_others(strategy_type, options):
    first, second, other = (run(strategy_type, seed=seed, **options) for seed in (3, 3, 4))
    same_bits(first, second)
    assert first.privacy == second.privacy
    assert not np.array_equal(first.model.landmarks_, other.model.landmarks_)


@pytest.mark.parametrize("options", [{}, {"fraction_fit": 0.5}, {"rows": "stay"}], ids=str)
def test_order_of_the_clients_changes_nothing(options):
    names, order = ["10", "9", "b", "a"], [2, 0, 3, 1]
    one, other = (
        run(clients=[CLIENTS[index] for index in taken], names=[names[index] for index in taken], **options)
        for taken in (range(4), order)
    )
    for first, second in zip(one.model.to_arrays(), other.model.to_arrays(), strict=True):
        assert np.array_equal(first, second)
    for position, index in enumerate(order):
        assert np.array_equal(one.labels[index], other.labels[position])
        assert np.array_equal(one.embedding[index], other.embedding[position])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"perturb": "distances", "epsilon": 50.0, "max_norm": 12.0, "noise": "local", "fraction_fit": 0.75},
        {"rows": "stay"},
    ],
    ids=str,
)
def test_ray_equals_inline_bit_for_bit(options):
    strategy = FedTSNE(3, **(FAST | options))
    inline, ray = (simulate(strategy, CLIENTS, labels=LABELS, engine=engine, seed=11) for engine in ("inline", "ray"))
    same_bits(inline, ray)
    assert inline.privacy == ray.privacy
    assert inline.failures == ray.failures == []
    assert inline.metrics == ray.metrics


def test_clients_evaluate_the_model_where_rows_stay():
    result = run(rows="stay", labels=LABELS, federated_evaluation=True)
    assert {row.task for row in result.traffic} >= {"evaluate"}
    assert result.failures == []


# Clients that fail


def failing(task, names):
    """A FedTSNE whose clients of these names fail at a task."""

    class Failing(FederatedMapClient):
        def fit(self, parameters, config):
            self.task = config["task"]
            return super().fit(parameters, config)

        @property
        def rows(self):
            if self.task == task and self.name in names:
                raise DataError(f"client {self.name} fails.")
            return super().rows

    class Strategy(FedTSNE):
        client_type = Failing

    return Strategy


@pytest.mark.parametrize("task", ["column_sums", "column_spread", "landmark_steps"])
def test_client_that_fails_before_the_distances_is_on_the_map(task):
    result = run(failing(task, {"1"}), labels=LABELS)
    assert [len(places) for places in result.embedding] == [20, 25, 30, 25]
    assert {(failure.task, failure.client) for failure in result.failures} == {(task, "1")}
    assert result.metrics["accuracy"] == 1.0


def test_client_that_sends_no_distances_has_no_places_and_the_others_have_theirs():
    result = run(failing("landmark_distances", {"1"}), labels=LABELS)
    assert [len(labels) for labels in result.labels] == [20, 0, 30, 25]
    assert [places.shape for places in result.embedding] == [(20, 2), (0, 2), (30, 2), (25, 2)]
    assert result.metrics["accuracy"] == 1.0
    assert {row.client for row in result.traffic if row.task == "keep_places"} == {"0", "2", "3"}
    assert [(failure.task, failure.reason) for failure in result.failures] == [
        ("landmark_distances", "client 1 fails.")
    ]
    assert result.model.transform(CLIENTS[1]).shape == (25, 2)


def test_result_with_a_client_without_places_is_saved(tmp_path):
    folder = run(failing("landmark_distances", {"1"})).save(tmp_path / "run")
    assert (folder / "embedding" / "1.csv").read_text().splitlines() == ["x,y"]
    assert len((folder / "embedding" / "0.csv").read_text().splitlines()) == 21


@pytest.mark.parametrize("task", ["column_spread", "cluster_sums_and_costs", "place_rows"])
def test_client_that_fails_where_rows_stay_is_on_the_map_of_the_model(task):
    result = run(failing(task, {"1"}), labels=LABELS, rows="stay")
    assert [len(places) for places in result.embedding] == [20, 25, 30, 25]
    assert {(failure.task, failure.client) for failure in result.failures} == {(task, "1")}
    assert result.metrics["accuracy"] == 1.0


def test_client_without_noisy_rows_is_left_out_and_its_own_rows_are_never_used():
    result = run(failing("perturb_rows", {"1"}), perturb="data", epsilon=900.0, max_norm=12.0, noise="local")
    assert [len(labels) for labels in result.labels] == [20, 0, 30, 25]
    assert any("client 1 has not kept its noisy rows" in failure.reason for failure in result.failures)


def test_client_without_reduced_rows_is_left_out_and_its_own_rows_are_never_used():
    result = run(failing("reduce_rows", {"1"}), rows="stay", epsilon=60.0, max_norm=12.0)
    assert any("client 1 has not kept its reduced rows" in failure.reason for failure in result.failures)
    assert finite(result)


def test_too_few_clients_end_the_run_with_a_sentence():
    with pytest.raises(ProtocolError, match=r"\('landmark_distances'\): 1 clients answered and 2 have to"):
        run(failing("landmark_distances", {"0", "1", "2"}))
    with pytest.raises(ProtocolError, match=r"\('cluster_sums_and_costs'\): 3 clients answered and 4 have to"):
        run(failing("cluster_sums_and_costs", {"2"}), rows="stay", min_clients=4)


# Rows that are odd


@pytest.mark.parametrize("rows", MODES)
@pytest.mark.parametrize("value", [0.0, 0.1])
def test_rows_that_are_all_equal_are_refused_in_a_sentence(rows, value):
    with pytest.raises(DataError, match="all rows are equal, so that there is no map of them; give rows that differ"):
        run(clients=[np.full((20, 3), value)] * 3, rows=rows)


@pytest.mark.parametrize("gamma", [1e-300, 1e-12, 1e9, 1e200])
def test_a_kernel_that_is_0_or_1_everywhere_gives_a_map_all_the_same(gamma):
    result = run(gamma=gamma, labels=LABELS)
    assert finite(result)
    assert np.isfinite(result.history["mmd"]).all()
    assert result.metrics["accuracy"] > 0.9


@pytest.mark.parametrize("strategy_type", METHODS)
@pytest.mark.parametrize("rows", MODES)
@pytest.mark.parametrize("n_rows", [4, 6])
def test_few_rows_have_a_map(n_rows, rows, strategy_type):
    result = run(strategy_type, clients=[ROWS[:2], ROWS[2:n_rows]], rows=rows)
    assert finite(result)
    assert [len(places) for places in result.embedding] == [2, n_rows - 2]


def test_three_rows_have_no_map_from_distances_and_a_sentence_says_so():
    with pytest.raises(DataError, match=r"the clients have 3 rows together; a map of 3 clusters needs 4\."):
        run(clients=[ROWS[:2], ROWS[2:3]])


@pytest.mark.parametrize("rows", MODES)
def test_more_clusters_than_rows_are_refused_before_anything_is_sent(rows):
    with pytest.raises(ValueError, match="n_clusters is 8 and the clients have 6 rows together; ask for fewer"):
        run(clients=[ROWS[:3], ROWS[3:6]], rows=rows, n_clusters=8)


@pytest.mark.parametrize("rows", MODES)
def test_as_many_clusters_as_rows_are_a_map_or_a_sentence_of_our_own(rows):
    try:
        result = run(clients=[ROWS[:3], ROWS[3:6]], rows=rows, n_clusters=6)
    except ValueError as error:
        assert "n_samples" not in str(error)  # noqa: PT017
    else:
        assert finite(result)
        assert len(result.model.map_centers_) == 6


@pytest.mark.parametrize("rows", MODES)
@pytest.mark.parametrize("n_landmarks", [2, 3])
def test_two_landmarks_are_enough_for_a_map(n_landmarks, rows):
    assert finite(run(n_landmarks=n_landmarks, rows=rows))


def test_fewer_landmarks_than_clusters_are_a_map_or_a_sentence_of_our_own_where_rows_stay():
    try:
        assert finite(run(rows="stay", n_landmarks=5, n_clusters=9))
    except ValueError as error:
        assert "n_samples" not in str(error)  # noqa: PT017


@pytest.mark.parametrize("rows", MODES)
@pytest.mark.parametrize("options", [{"perplexity": 1000.0}, {"perplexity": 1.0}])
def test_perplexity_is_as_large_as_the_rows_allow(options, rows):
    result = run(rows=rows, labels=LABELS, **options)
    assert finite(result)
    if options["perplexity"] > 1:
        assert result.metrics["accuracy"] > 0.9


@pytest.mark.parametrize(("n_neighbors", "rows"), [(2, "stay"), (1000, "distances")])
def test_neighbors_are_as_many_as_the_rows_allow(n_neighbors, rows):
    assert finite(run(FedUMAP, rows=rows, n_neighbors=n_neighbors))


@pytest.mark.parametrize("rows", MODES)
def test_clients_with_one_row_each_are_on_the_map(rows):
    result = run(clients=[row[None] for row in ROWS[:24]], labels=[[c] for c in CLASSES[:24]], rows=rows)
    assert finite(result)
    assert [len(places) for places in result.embedding] == [1] * 24
    assert result.metrics["accuracy"] > 0.9


@pytest.mark.parametrize("rows", MODES)
def test_one_client_with_one_row_is_as_good_as_any(rows):
    result = run(clients=[ROWS[:50], ROWS[50:51], ROWS[51:]], labels=np.split(CLASSES, [50, 51]), rows=rows)
    assert [len(labels) for labels in result.labels] == [50, 1, 49]
    assert result.metrics["accuracy"] == 1.0


@pytest.mark.parametrize("strategy_type", METHODS)
@pytest.mark.parametrize("rows", MODES)
def test_rows_of_two_values_have_a_map(rows, strategy_type):
    part = np.repeat([[0.0, 0], [1, 1]], 5, axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert finite(run(strategy_type, clients=[part] * 3, rows=rows, n_clusters=2))


@pytest.mark.parametrize("rows", MODES)
def test_clients_with_the_same_rows_have_the_same_places(rows):
    result = run(clients=[ROWS[:40]] * 2, rows=rows)
    if rows == "stay":
        assert np.array_equal(*result.embedding)
    assert np.mean(result.labels[0] == result.labels[1]) > 0.95


@pytest.mark.parametrize("rows", MODES)
@pytest.mark.parametrize("change", [(1e-9, 0.0), (1e9, 0.0), (1.0, 1e7)], ids=["tiny", "huge", "far"])
def test_unit_and_origin_of_the_rows_do_not_matter(change, rows):
    factor, offset = change
    result = run(clients=[part * factor + offset for part in CLIENTS], labels=LABELS, rows=rows)
    assert result.metrics["accuracy"] == 1.0


@pytest.mark.parametrize("rows", MODES)
@pytest.mark.parametrize("strategy_type", METHODS)
@pytest.mark.parametrize("factor", [2.0**-66, 2.0**66, 2.0**-400, 2.0**400])
def test_another_unit_of_the_rows_gives_the_same_map_bit_for_bit(factor, strategy_type, rows):
    one, other = (run(strategy_type, clients=[part * unit for part in CLIENTS], rows=rows) for unit in (1.0, factor))
    for first, second in zip([*one.embedding, *one.labels], [*other.embedding, *other.labels], strict=True):
        assert np.array_equal(first, second)
    assert np.array_equal(one.model.transform(ROWS + 0.1), other.model.transform((ROWS + 0.1) * factor))


@pytest.mark.parametrize("strategy_type", METHODS)
@pytest.mark.parametrize("factor", [1e-150, 1e-20, 1e20])
def test_a_unit_that_rounds_gives_the_same_map_where_rows_stay(factor, strategy_type):
    one, other = (run(strategy_type, clients=[part * unit for part in CLIENTS], rows="stay") for unit in (1.0, factor))
    np.testing.assert_allclose(np.concatenate(other.embedding), np.concatenate(one.embedding), atol=1e-6)


@pytest.mark.parametrize("strategy_type", METHODS)
@pytest.mark.parametrize("factor", [1e-150, 1e-20, 1e20, 1e140])
def test_rows_of_extreme_units_have_a_map_of_their_classes(factor, strategy_type):
    result = run(strategy_type, clients=[part * factor for part in CLIENTS], labels=LABELS)
    assert finite(result)
    assert result.metrics["accuracy"] == 1.0


def test_landmarks_that_coincide_are_as_good_as_one():
    class Coinciding(FederatedMapClient):
        def landmark_steps(self, Y, **arguments):
            moved, discrepancy = super().landmark_steps(Y, **arguments)
            moved[len(Y) // 2 :] = moved[: len(Y) - len(Y) // 2]
            return moved, discrepancy

        landmark_steps.answer = FederatedMapClient.answer_of("landmark_steps")

    class Strategy(FedTSNE):
        client_type = Coinciding

    result = run(Strategy, labels=LABELS)
    assert len(np.unique(result.model.landmarks_, axis=0)) == 10
    assert finite(result)
    assert result.metrics["accuracy"] == 1.0


def test_noise_that_hides_the_spread_does_not_say_that_the_rows_are_equal():
    try:
        result = run(rows="stay", epsilon=0.01, max_norm=12.0)
    except DataError as error:
        assert "rows are equal" not in str(error)  # noqa: PT017
    else:
        assert finite(result)


# Parameters that cannot be right

NAN, INFINITY = float("nan"), float("inf")
LOCAL = {"epsilon": 1.0, "noise": "local", "max_norm": 1.0}
BAD = [
    ({"n_clusters": 1}, "n_clusters is 1; it must be an integer, 2 or more"),
    ({"n_clusters": 2.5}, "n_clusters is 2.5"),
    ({"n_landmarks": 1}, "n_landmarks is 1; it must be an integer, 2 or more"),
    ({"n_landmarks": 1, "rows": "stay"}, "n_landmarks is 1; it must be an integer, 2 or more"),
    ({"gamma": 0.0}, "gamma is 0.0; it must be a finite number above 0"),
    ({"gamma": NAN}, "gamma is nan"),
    ({"gamma": INFINITY}, "gamma is inf"),
    ({"n_rounds": -1}, "n_rounds is -1; it must be an integer, 0 or more"),
    ({"n_local_steps": 0}, "n_local_steps is 0; it must be an integer, 1 or more"),
    ({"averaging": "rows"}, "averaging is 'rows'; it must be one of: landmarks, gradients"),
    ({"tol": -1}, "tol is -1; it must be a finite number at least 0"),
    ({"fraction_fit": 0}, "fraction_fit is 0; it must be a finite number above 0 and at most 1"),
    ({"fraction_fit": 1.1}, "fraction_fit is 1.1"),
    ({"min_clients": 0}, "min_clients is 0; it must be an integer, 1 or more"),
    ({"rows": "kernel"}, "rows is 'kernel'; it must be one of: distances, stay"),
    ({"perturb": "rows"}, "perturb is 'rows'; it must be one of: nothing, data, landmarks, gradients, distances"),
    ({"noise": "nobody"}, "noise is 'nobody'; it must be one of: server, clients, local"),
    ({"relative_noise": -1.0}, "relative_noise is -1.0; it must be a finite number at least 0"),
    ({"max_norm": 0}, "max_norm is 0; it must be a finite number above 0"),
    ({"max_norm": NAN}, "max_norm is nan"),
    ({"budget_split": (0.5, 0.5)}, "budget_split has 2 parts; give 3"),
    ({"budget_split": (0.5, 0.0, 0.5)}, "a part of budget_split is 0.0; it must be a finite number above 0"),
    ({"rows": "stay", "perturb": "data"}, "perturb is for rows='distances'; with rows='stay' give epsilon, and every"),
    ({"rows": "stay", "relative_noise": 0.1}, "relative_noise is given and "),
    ({"relative_noise": 0.1}, "relative_noise is given and perturb is 'nothing'; say what it is added to"),
    *(
        (
            {"perturb": "landmarks", "averaging": "gradients", **level},
            "perturb is 'landmarks' and averaging is 'gradients', where no client sends landmarks; set "
            "perturb='gradients' or averaging='landmarks'.",
        )
        for level in ({"relative_noise": 0.1}, LOCAL)
    ),
    *(
        (
            {"perturb": perturb, "n_rounds": 0, **level},
            f"perturb is '{perturb}' and n_rounds is 0, so that no client sends {perturb}; give 1 or more.",
        )
        for level in ({"relative_noise": 0.1}, LOCAL)
        for perturb in ("landmarks", "gradients")
    ),
    (
        {"perturb": "data", "relative_noise": 0.1, **LOCAL},
        "epsilon and relative_noise are both given; relative noise has no epsilon, so give one",
    ),
    *(
        (
            {"perturb": perturb},
            f"perturb is '{perturb}' and there is no noise level; give epsilon and max_norm, or relative_noise",
        )
        for perturb in ("data", "landmarks", "gradients", "distances")
    ),
    ({"epsilon": 1.0, "rows": "stay"}, "max_norm is missing; noise for an epsilon needs a norm to which rows are"),
    ({"epsilon": 1.0, "perturb": "data", "noise": "local"}, "max_norm is missing"),
    ({"epsilon": 0, "rows": "stay", "max_norm": 1}, "epsilon is 0; it must be a finite number above 0"),
    ({"epsilon": 1.0, "delta": None, "rows": "stay", "max_norm": 1}, "delta is missing; an epsilon needs a delta"),
    ({"epsilon": 1.0, "delta": 1.0, "rows": "stay", "max_norm": 1}, "delta is 1.0"),
    (LOCAL, "epsilon is given and perturb is 'nothing'; say what takes the noise, or set rows='stay'"),
    *(
        (
            {"perturb": "distances", **LOCAL, "noise": noise},
            f"noise is '{noise}', and with rows='distances' the server sees what every row sends; set noise='local'",
        )
        for noise in ("server", "clients")
    ),
    (
        {"federated_evaluation": True},
        "federated_evaluation would send each client what all rows have sent, which is in the model; set rows='stay'",
    ),
]
BAD_OF_ONE = [
    (FedTSNE, {"perplexity": 0.5}, "perplexity is 0.5; it must be a finite number at least 1"),
    (FedTSNE, {"perplexity": NAN}, "perplexity is nan"),
    (FedUMAP, {"n_neighbors": 1}, "n_neighbors is 1; it must be an integer, 2 or more"),
    (FedUMAP, {"n_neighbors": 2.5}, "n_neighbors is 2.5"),
    (FedUMAP, {"min_dist": -0.1}, "min_dist is -0.1; it must be a finite number at least 0 and at most 1"),
    (FedUMAP, {"min_dist": 1.1}, "min_dist is 1.1"),
]


@pytest.mark.parametrize(
    ("strategy_type", "options", "sentence"),
    [(each, *bad) for bad in BAD for each in METHODS] + BAD_OF_ONE,
)
def test_parameter_that_cannot_be_right_is_named_in_a_sentence(strategy_type, options, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        strategy_type(**({"n_clusters": 3} | options))
    strategy = strategy_type(3).set_params(**options)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        simulate(strategy, CLIENTS)


def test_names_are_those_of_the_command_line():
    assert (FedTSNE(3).name, FedUMAP(3).name) == ("fed-tsne", "fed-umap")
