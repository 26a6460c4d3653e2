"""The scores of a map, against slow and obvious versions of themselves."""

import numpy as np
import pytest
from sklearn.datasets import load_digits, make_blobs
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, silhouette_score

from flower_fedclust.numerics import map_quality as module
from flower_fedclust.numerics.map_quality import (
    classification_accuracy,
    map_quality,
    nearest_rows,
    neighbor_preservation,
)
from flower_fedclust.numerics.threads import one_thread

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(150, 6))
MAP = ROWS[:, :2] + 0.3 * RNG.normal(size=(150, 2))
# Many ties and many copies: 27 places for 200 rows.
LATTICE = RNG.integers(3, size=(200, 3)).astype(float)


@pytest.fixture(autouse=True)
def on_one_thread():
    """Threads that wait for each other on a busy machine take longer than one."""
    with one_thread():
        yield


def obvious_nearest(rows, k):
    distances = np.sqrt(((rows[:, None] - rows[None]) ** 2).sum(axis=2)).round(6)
    lists = []
    for row, to_others in enumerate(distances):
        others = [other for other in range(len(rows)) if other != row]
        lists.append(sorted(others, key=lambda other, to=to_others: (to[other], other))[:k])
    return np.array(lists)


def obvious_preservation(rows, embedding, k):
    pairs = zip(obvious_nearest(rows, k), obvious_nearest(embedding, k), strict=True)
    return np.mean([len(set(near) & set(near_in_map)) / k for near, near_in_map in pairs])


def turned(places, angle=0.7):
    return places @ np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


@pytest.mark.parametrize("rows", [ROWS, LATTICE, np.repeat(ROWS[:50], 4, axis=0), np.zeros((60, 2))], ids=range(4))
@pytest.mark.parametrize("k", [1, 7, 49])
def test_the_nearest_are_those_of_a_loop_over_all_pairs(rows, k):
    np.testing.assert_array_equal(nearest_rows(rows, k), obvious_nearest(rows, k))


def test_the_nearest_are_found_far_from_the_origin_and_on_any_scale():
    # Of so many columns the search multiplies matrices.
    wide = np.random.default_rng(4).normal(size=(150, 20))
    expected = obvious_nearest(wide, 49)
    for rows in (wide + 2.0**26, 1e60 * wide, 1e-60 * wide):
        np.testing.assert_array_equal(nearest_rows(rows, 49), expected)


def test_the_nearest_among_ties_do_not_depend_on_the_size_of_a_block(monkeypatch):
    expected = nearest_rows(LATTICE, 5)
    monkeypatch.setattr("flower_fedclust.numerics.blocks.BLOCK_ENTRIES", 300)
    np.testing.assert_array_equal(nearest_rows(LATTICE, 5), expected)


@pytest.mark.parametrize(("rows", "embedding"), [(ROWS, MAP), (LATTICE, LATTICE[:, :2]), (LATTICE, MAP[:200])])
def test_neighbor_preservation_is_that_of_a_loop_over_all_pairs(rows, embedding):
    rows = rows[: len(embedding)]
    scores = neighbor_preservation(rows, embedding, [10, 1, 50])
    assert list(scores) == [10, 1, 50]
    assert scores == pytest.approx({k: obvious_preservation(rows, embedding, k) for k in (10, 1, 50)})


@pytest.mark.parametrize("other", [turned(MAP), 1e-9 * MAP, 1e6 * MAP, MAP + 1e3, MAP[:, ::-1]], ids=range(5))
def test_turning_scaling_and_moving_a_map_change_no_score(other):
    labels = np.arange(150) % 3
    before, after = (map_quality(ROWS, places, labels) for places in (MAP, other))
    assert after == pytest.approx(before, abs=1e-6)


@pytest.mark.parametrize("k", [1, 10, 50])
def test_classification_accuracy_is_the_vote_of_the_nearest_seven_tenths(k):
    labels = (MAP[:, 0] > 0).astype(int) + (RNG.random(150) < 0.2)
    order = np.random.RandomState(5).permutation(150)
    test, train = order[:45], order[45:]
    right = []
    for row in test:
        nearest = train[np.argsort(np.linalg.norm(MAP[train] - MAP[row], axis=1))[:k]]
        right.append(np.bincount(labels[nearest]).argmax() == labels[row])
    assert classification_accuracy(MAP, labels, k, random_state=5) == pytest.approx(np.mean(right))


def test_the_scores_of_k_means_are_of_its_clusters_in_the_map():
    places, labels = make_blobs(200, centers=[[0, 0], [50, 0], [0, 50], [50, 50]], random_state=0)
    halves = labels // 2
    # With n_clusters the clusters are the four blobs, though there are two classes.
    scores = map_quality(places, places, halves, n_clusters=4)
    assert scores["nmi"] == pytest.approx(normalized_mutual_info_score(halves, labels))
    assert scores["ari"] == pytest.approx(adjusted_rand_score(halves, labels))
    assert scores["silhouette"] == pytest.approx(silhouette_score(places, labels))
    assert map_quality(places, places, labels)["ari"] == 1
    assert map_quality(RNG.normal(size=(200, 3)), places, labels)["silhouette"] == scores["silhouette"]


def test_of_many_rows_a_random_sample_gives_silhouette_and_trustworthiness(monkeypatch):
    rows, labels = (array[:900] for array in load_digits(return_X_y=True))
    places = PCA(2, random_state=0).fit_transform(rows)
    whole = map_quality(rows, places, labels)
    monkeypatch.setattr(module, "SAMPLE_ROWS", 600)
    sampled = map_quality(rows, places, labels)
    for name in ("silhouette", "trustworthiness"):
        assert sampled[name] != whole[name]
        assert sampled[name] == pytest.approx(whole[name], abs=0.05)
    assert {**sampled, "silhouette": 0, "trustworthiness": 0} == {**whole, "silhouette": 0, "trustworthiness": 0}
    assert map_quality(rows, places, labels) == sampled
    assert map_quality(rows, places, labels, random_state=1)["silhouette"] != sampled["silhouette"]


def test_without_labels_their_scores_are_left_out():
    without = ["npa_1", "npa_10", "npa_50", "trustworthiness"]
    assert list(map_quality(ROWS, MAP)) == without
    assert list(map_quality(ROWS, MAP, n_clusters=3)) == [*without[:3], "silhouette", "trustworthiness"]


@pytest.mark.parametrize(
    ("n_rows", "names"),
    [
        (1, {"nmi", "ari"}),
        (2, {"ca_1", "npa_1", "nmi", "ari"}),
        (15, {"ca_1", "ca_10", "npa_1", "npa_10", "nmi", "ari", "silhouette"}),
        (20, {"ca_1", "ca_10", "npa_1", "npa_10", "nmi", "ari", "silhouette"}),
        (51, {"ca_1", "ca_10", "npa_1", "npa_10", "npa_50", "nmi", "ari", "silhouette", "trustworthiness"}),
    ],
)
def test_what_so_few_rows_do_not_have_is_left_out(n_rows, names):
    scores = map_quality(ROWS[:n_rows], MAP[:n_rows], np.arange(n_rows) % 3)
    assert set(scores) == names
    assert np.isfinite(list(scores.values())).all()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: map_quality(ROWS[:-1], MAP), "There are 149 rows and 150 places"),
        (lambda: map_quality(ROWS, np.full((150, 2), np.nan)), "embedding: row 0, column 0 is NaN"),
        (lambda: map_quality(ROWS[:, 0], MAP), r"rows: the rows have shape \(150,\)"),
        (lambda: map_quality(ROWS, MAP, np.zeros(149)), r"labels have shape \(149,\); give one for each of the 150"),
        (lambda: map_quality(ROWS, MAP, ["a", None, *"b" * 148]), "The label of row 1 is missing"),
        (lambda: map_quality(ROWS, MAP, np.r_[np.zeros(149), np.nan]), "The label of row 149 is missing"),
        (lambda: map_quality(ROWS, MAP, np.array(["a", *range(149)], dtype=object)), "labels are of several types"),
        (lambda: map_quality(ROWS, MAP, n_clusters=151), "n_clusters is 151, but the map has 150 rows"),
        (lambda: map_quality(ROWS, MAP, n_clusters=0), "n_clusters is 0; it must be an integer, 1 or more"),
        (lambda: classification_accuracy(MAP, np.zeros(150), 106), "seven tenths of the 150 rows are 105"),
        (lambda: classification_accuracy(MAP, np.zeros(150), 0), "n_neighbors is 0; it must be an integer"),
        (lambda: neighbor_preservation(ROWS, MAP, [1, 150]), "n_neighbors is 150, but a row has 149 others"),
        (lambda: neighbor_preservation(ROWS, MAP, [1.5]), "n_neighbors is 1.5; it must be an integer"),
        (lambda: neighbor_preservation(ROWS, MAP, []), "n_neighbors is empty"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
