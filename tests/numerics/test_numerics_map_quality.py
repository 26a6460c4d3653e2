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
    neighbor_preservation,
)
from flower_fedclust.numerics.threads import one_thread

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(150, 6))
MAP = ROWS[:, :2] + 0.3 * RNG.normal(size=(150, 2))


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


def test_neighbor_preservation_is_that_of_a_loop_over_all_pairs():
    scores = neighbor_preservation(ROWS + 2.0**26, MAP, [10, 1, 50])
    assert list(scores) == [10, 1, 50]
    assert scores == pytest.approx({k: obvious_preservation(ROWS, MAP, k) for k in (10, 1, 50)})


def test_copies_of_a_row_are_neighbors_and_a_map_in_one_place_is_no_better_than_chance():
    copies = np.repeat(ROWS[:50], 2, axis=0)
    assert neighbor_preservation(copies, copies, [1, 10]) == {1: 1.0, 10: 1.0}
    assert neighbor_preservation(ROWS, np.zeros((150, 2)), [50])[50] == pytest.approx(
        50 / 149, abs=0.1
    )


@pytest.mark.parametrize(
    "other", [turned(MAP), 1e-9 * MAP, 1e6 * MAP, MAP + 1e3, MAP[:, ::-1]], ids=range(5)
)
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
    assert (
        map_quality(RNG.normal(size=(200, 3)), places, labels)["silhouette"] == scores["silhouette"]
    )


def test_of_many_rows_a_random_sample_gives_silhouette_and_trustworthiness(monkeypatch):
    rows, labels = (array[:900] for array in load_digits(return_X_y=True))
    places = PCA(2, random_state=0).fit_transform(rows)
    whole = map_quality(rows, places, labels)
    monkeypatch.setattr(module, "SAMPLE_ROWS", 600)
    sampled = map_quality(rows, places, labels)
    for name in ("silhouette", "trustworthiness"):
        assert sampled[name] != whole[name]
        assert sampled[name] == pytest.approx(whole[name], abs=0.05)
    assert {**sampled, "silhouette": 0, "trustworthiness": 0} == {
        **whole,
        "silhouette": 0,
        "trustworthiness": 0,
    }
    assert map_quality(rows, places, labels) == sampled
    assert map_quality(rows, places, labels, random_state=1)["silhouette"] != sampled["silhouette"]


def test_without_labels_their_scores_are_left_out():
    without = ["npa_1", "npa_10", "npa_50", "trustworthiness"]
    assert list(map_quality(ROWS, MAP)) == without
    assert list(map_quality(ROWS, MAP, n_clusters=3)) == [
        *without[:3],
        "silhouette",
        "trustworthiness",
    ]


@pytest.mark.parametrize(
    ("n_rows", "names"),
    [
        (1, {"nmi", "ari"}),
        (2, {"ca_1", "npa_1", "nmi", "ari"}),
        (15, {"ca_1", "ca_10", "npa_1", "npa_10", "nmi", "ari", "silhouette"}),
        (20, {"ca_1", "ca_10", "npa_1", "npa_10", "nmi", "ari", "silhouette"}),
        (
            51,
            {
                "ca_1",
                "ca_10",
                "npa_1",
                "npa_10",
                "npa_50",
                "nmi",
                "ari",
                "silhouette",
                "trustworthiness",
            },
        ),
    ],
)
def test_what_so_few_rows_do_not_have_is_left_out(n_rows, names):
    scores = map_quality(ROWS[:n_rows], MAP[:n_rows], np.arange(n_rows) % 3)
    assert set(scores) == names
    assert np.isfinite(list(scores.values())).all()


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: map_quality(ROWS[:-1], MAP), "embedding"),
        (lambda: map_quality(ROWS, np.full((150, 2), np.nan)), "embedding: row 0, column 0"),
        (lambda: map_quality(ROWS[:, 0], MAP), "rows"),
        (lambda: map_quality(ROWS, MAP, np.zeros(149)), "labels"),
        (lambda: map_quality(ROWS, MAP, ["a", None, *"b" * 148]), "labels: row 1"),
        (lambda: map_quality(ROWS, MAP, np.r_[np.zeros(149), np.nan]), "labels: row 149"),
        (lambda: classification_accuracy(MAP, np.zeros(150), 106), "n_neighbors"),
        (lambda: neighbor_preservation(ROWS, MAP, [1, 150]), "n_neighbors"),
    ],
)
def test_errors_name_what_is_wrong(call, named):
    with pytest.raises(ValueError, match=named):
        call()
