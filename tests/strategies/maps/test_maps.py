"""Fed-tSNE and Fed-UMAP, from distances and from sums: figures, the steps, odd rows, failures and parameters."""

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import normalized_mutual_info_score
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from watching import watched

from flower_fedclust import DataError, simulate
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
METHODS = (FedTSNE, FedTSNESums, FedUMAP, FedUMAPSums)
PRIVATE = {"epsilon": 60.0, "max_norm": 12.0}


@pytest.fixture(autouse=True)
def on_one_thread():
    """Threads that wait for each other on a busy machine take longer than one."""
    with one_thread():
        yield


def made(strategy_type, n_clusters=3, **options):
    """With little of what does not matter to a test."""
    fast = {"n_landmarks": 20} | (
        {"n_rounds": 2} if issubclass(strategy_type, FederatedMap) else {}
    )
    return strategy_type(n_clusters, **(fast | options))


def run(strategy_type=FedTSNE, clients=CLIENTS, labels=None, names=None, seed=0, **options):
    return simulate(made(strategy_type, **options), clients, labels=labels, names=names, seed=seed)


def finite(result):
    arrays = [*result.model.to_arrays(), *result.embedding]
    return (
        all(np.isfinite(array).all() for array in arrays)
        and np.isfinite(list(result.metrics.values())).all()
    )


# Figures

N_DIGITS = 600
_digits = load_digits()
_chosen = np.random.default_rng(0).permutation(len(_digits.data))
DIGITS, DIGIT_CLASSES = _digits.data[_chosen[:N_DIGITS]] / 16.0, _digits.target[_chosen[:N_DIGITS]]
NEW_DIGITS, NEW_CLASSES = (
    _digits.data[_chosen[N_DIGITS : N_DIGITS + 200]] / 16.0,
    _digits.target[_chosen[600:800]],
)
PARTITIONS = {
    "iid": np.array_split(np.arange(N_DIGITS), 10),
    "one class a client": [np.flatnonzero(digit == DIGIT_CLASSES) for digit in range(10)],
}
OPTIONS = {
    "distances": (FedTSNE, {"n_rounds": 25}),
    # Several local steps of clients that are unlike pull few landmarks apart, and clusters merge on the map.
    "one local step": (FedTSNE, {"n_landmarks": 100, "n_rounds": 25, "n_local_steps": 1}),
    "sums": (FedTSNESums, {}),
    "umap": (FedUMAP, {"n_landmarks": 100, "n_rounds": 25}),
    "umap sums": (FedUMAPSums, {}),
}


def quality(places, classes):
    """The accuracy of the ten nearest on the map, and the NMI of k-means on it."""
    accuracy = cross_val_score(KNeighborsClassifier(10), places, classes, cv=5).mean()
    found = [KMeans(10, n_init=3, random_state=seed).fit_predict(places) for seed in range(3)]
    return accuracy, np.mean(
        [normalized_mutual_info_score(classes, clusters) for clusters in found]
    )


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


def test_who_has_which_rows_does_not_matter_to_sums():
    by_class = [part[part < 200] for part in PARTITIONS["one class a client"]]
    one, other = (
        simulate(FedTSNESums(10, n_landmarks=30), [DIGITS[part] for part in parts], seed=0).model
        for parts in (np.array_split(np.arange(200), 10), by_class)
    )
    assert np.array_equal(one.landmarks_, other.landmarks_)


@pytest.mark.long
@pytest.mark.parametrize("option", ["distances", "sums"])
def test_new_rows_are_placed_near_their_class(of_digits, option):
    result, _, _ = of_digits(option, "one class a client")
    known = np.concatenate([DIGIT_CLASSES[part] for part in PARTITIONS["one class a client"]])
    classifier = KNeighborsClassifier(10).fit(np.concatenate(result.embedding), known)
    assert classifier.score(result.model.transform(NEW_DIGITS), NEW_CLASSES) > 0.9


# The map


def test_map_is_that_of_the_nystrom_distances_that_the_clients_sent():
    strategy_type, _, messages = watched(FedTSNE)
    result = run(strategy_type)
    sent = {each.client: each.sent[0] for each in messages if each.task == "landmark_distances"}
    Y = result.model.landmarks_
    for name, B in sent.items():
        np.testing.assert_allclose(
            B, np.linalg.norm(CLIENTS[int(name)][:, None] - Y[None], axis=2), rtol=1e-9
        )
    B = np.concatenate([sent[str(index)] for index in range(4)])
    W = distances_between(Y)
    np.testing.assert_allclose(W, np.linalg.norm(Y[:, None] - Y[None], axis=2), atol=1e-9)
    D = np.sqrt((B**2 @ np.linalg.pinv(W**2, rcond=1e-10) @ B.T**2).clip(0))
    found = nystrom_neighbors(B, W, 90, squared=True)
    np.testing.assert_allclose(
        found[1], np.sort(D - np.diag(np.diag(D) - 1e9), axis=1)[:, :90], atol=1e-5
    )
    # The coordinates, up to the seed that the server drew.
    assert np.array_equal(np.concatenate(result.embedding), result.model.coordinates_)
    seeds = np.random.default_rng(0)
    seeds.standard_normal((20, 4))
    expected = drawing.tsne_map(*found, random_state=int(seeds.integers(2**31)))
    assert np.array_equal(result.model.coordinates_, expected)


@pytest.mark.parametrize("strategy_type", [FedTSNE, FedUMAP])
def test_clients_keep_the_places_and_the_clusters_of_their_rows(strategy_type):
    strategy_type, _, messages = watched(strategy_type)
    names = ["10", "9", "b", "a"]
    result = run(strategy_type, names=names, labels=LABELS)
    kept = {each.client: each.kept for each in messages if each.task == "keep_places"}
    assert set(kept) == set(names)
    assert result.metrics["accuracy"] == 1.0
    for name, labels, places, rows in zip(
        names, result.labels, result.embedding, CLIENTS, strict=True
    ):
        assert labels.shape == (len(rows),)
        assert places.shape == (len(rows), 2)
        assert np.array_equal(kept[name]["labels"], labels)
        assert np.array_equal(kept[name]["places"], places)
        centers = result.model.map_centers_
        assert np.array_equal(
            labels, np.linalg.norm(places[:, None] - centers[None], axis=2).argmin(axis=1)
        )


@pytest.mark.parametrize("private", [{}, PRIVATE], ids=["plain", "epsilon"])
@pytest.mark.parametrize("strategy_type", [FedTSNESums, FedUMAPSums])
def test_clients_and_model_place_rows_alike_on_a_map_from_sums(strategy_type, private):
    strategy_type, _, messages = watched(strategy_type)
    result = run(strategy_type, labels=LABELS, **private)
    kept = {each.client: each.kept["places"] for each in messages if each.task == "place_rows"}
    assert set(kept) == {"0", "1", "2", "3"}
    for name, (places, labels, rows) in enumerate(
        zip(result.embedding, result.labels, CLIENTS, strict=True)
    ):
        assert np.array_equal(kept[str(name)], places)
        assert np.array_equal(result.model.transform(rows), places)
        assert np.array_equal(result.model.predict(rows), labels)
    assert result.metrics["accuracy"] > 0.97
    assert result.history == {}


def test_clusters_of_the_map_weigh_a_center_by_its_rows():
    clients = np.split(
        np.concatenate([ROWS[CLASSES == 0], np.tile(ROWS[CLASSES == 1], (4, 1)), ROWS]), [40, 90]
    )
    model = run(FedTSNESums, clients=clients, n_landmarks=12).model
    pooled = np.concatenate(clients)
    nearest = np.linalg.norm(pooled[:, None] - model.landmarks_[None], axis=2).argmin(axis=1)
    sizes = np.bincount(nearest, minlength=len(model.landmarks_))
    places, centers = model.coordinates_, model.map_centers_
    cluster = np.linalg.norm(places[:, None] - centers[None], axis=2).argmin(axis=1)
    expected = [
        np.average(places[cluster == k], axis=0, weights=sizes[cluster == k]) for k in range(3)
    ]
    np.testing.assert_allclose(centers, expected, atol=1e-6)
    assert sizes.max() > 2 * sizes.min()


def test_no_center_without_a_row_is_on_the_map():
    values = np.array([[0.0, 0], [9, 0], [0, 9], [9, 9], [20, 0], [0, 20]])
    model = run(FedTSNESums, clients=[np.repeat(values, 4, axis=0)] * 3).model
    assert sorted(map(tuple, np.round(model.landmarks_, 6))) == sorted(map(tuple, values))


# Rows that are odd


@pytest.mark.parametrize("strategy_type", METHODS)
@pytest.mark.parametrize("n_rows", [4, 6])
def test_few_rows_have_a_map(n_rows, strategy_type):
    result = run(strategy_type, clients=[ROWS[:2], ROWS[2:n_rows]])
    assert finite(result)
    assert [len(places) for places in result.embedding] == [2, n_rows - 2]


def test_three_rows_have_no_map_from_distances_and_a_sentence_says_so():
    with pytest.raises(DataError, match="3 rows"):
        run(clients=[ROWS[:2], ROWS[2:3]])


@pytest.mark.parametrize(
    ("strategy_type", "factor"), list(zip(METHODS, [2.0**-400, 2.0**66] * 2, strict=True))
)
def test_another_unit_of_the_rows_gives_the_same_map_bit_for_bit(factor, strategy_type):
    one, other = (
        run(strategy_type, clients=[part * unit for part in CLIENTS]) for unit in (1.0, factor)
    )
    for first, second in zip(
        [*one.embedding, *one.labels], [*other.embedding, *other.labels], strict=True
    ):
        assert np.array_equal(first, second)
    assert np.array_equal(
        one.model.transform(ROWS + 0.1), other.model.transform((ROWS + 0.1) * factor)
    )


def test_noise_that_hides_the_spread_does_not_say_that_the_rows_are_equal():
    assert finite(run(FedTSNESums, epsilon=0.01, max_norm=12.0))
