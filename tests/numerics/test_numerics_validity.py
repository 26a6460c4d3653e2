from dataclasses import replace

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, calinski_harabasz_score, davies_bouldin_score

from flower_fedclust.numerics.validity import (
    ClusterNumber,
    ClusterSums,
    numbers_of,
    weighted_rand_index,
)

ROWS = np.random.default_rng(0).normal(size=(300, 4)) + 5 * np.eye(4)[np.arange(300) % 4]
MODEL = KMeans(4, n_init=1, random_state=0).fit(ROWS)


def test_measures_from_sums_are_those_of_the_rows_however_they_are_divided():
    parts = [ClusterSums.of_rows(part, MODEL.cluster_centers_) for part in (ROWS[:70], ROWS[70:])]
    found = (parts[0] + parts[1]).measures(MODEL.cluster_centers_)
    distances = np.sort(MODEL.transform(ROWS), axis=1)
    assert found["davies_bouldin"] == pytest.approx(davies_bouldin_score(ROWS, MODEL.labels_))
    assert found["calinski_harabasz"] == pytest.approx(
        calinski_harabasz_score(ROWS, MODEL.labels_), rel=1e-3
    )
    assert found["silhouette"] == pytest.approx((1 - distances[:, 0] / distances[:, 1]).mean())


def test_a_row_with_a_weight_and_a_scatter_stands_for_as_many_rows_around_it():
    scattered = np.repeat(MODEL.cluster_centers_, 2, axis=0) + np.tile(
        [[0, 0, 0, 1.0], [0, 0, 0, -1.0]], (4, 1)
    )
    together = ClusterSums.of_rows(
        MODEL.cluster_centers_, MODEL.cluster_centers_, np.full(4, 2.0), scatter=1.0
    )
    apart = ClusterSums.of_rows(scattered, MODEL.cluster_centers_)
    assert np.allclose(together.squares, apart.squares)
    assert np.array_equal(together.counts, apart.counts)


def test_a_cluster_without_rows_counts_for_nothing_and_a_single_one_has_no_measure():
    far = np.vstack([MODEL.cluster_centers_, np.full(4, 1e3)])
    assert ClusterSums.of_rows(ROWS, far).measures(far) == pytest.approx(
        ClusterSums.of_rows(ROWS, MODEL.cluster_centers_).measures(MODEL.cluster_centers_)
    )
    assert ClusterSums.of_rows(ROWS[:1], far).measures(far) == {}


def test_a_row_whose_distances_overflow_has_no_silhouette_and_raises_no_warning():
    far = np.vstack([ROWS, np.full(4, 1e200)])
    sums = ClusterSums.of_rows(far, MODEL.cluster_centers_)
    assert sums.counts.sum() == len(far)
    assert sums.silhouettes.sum() == pytest.approx(
        ClusterSums.of_rows(ROWS, MODEL.cluster_centers_).silhouettes.sum()
    )


def test_points_that_stand_for_many_rows_agree_as_these_rows_do():
    rng = np.random.default_rng(1)
    one, other, counts = (
        rng.integers(3, size=30),
        rng.integers(3, size=30),
        rng.integers(200, 900, size=30),
    )
    other[:15] = one[:15]
    of_rows = adjusted_rand_score(np.repeat(one, counts), np.repeat(other, counts))
    assert weighted_rand_index(one, other, counts.astype(float), 3) == pytest.approx(
        of_rows, abs=1e-3
    )
    assert weighted_rand_index(one * 0, other * 0, np.ones(30), 3) == 1.0


def number_with(silhouette, of_one=0.3, stability=None):
    n = len(silhouette)
    others = [np.nan] * n, [1.0] * n
    return ClusterNumber(
        list(range(2, 2 + n)), silhouette, *others, [of_one] * n, stability or [0.95] * n
    )


def test_advice_names_the_number_and_its_doubt():
    assert number_with([0.5, 0.7, 0.6]).sentence == (
        "3 clusters: their silhouette is 0.70, and 0.30 in one Gaussian of this spread; another run would find them "
        "again (stability 0.95)."
    )
    assert number_with([0.69, 0.7, 0.6]).sentence.endswith("Nearly as good: 2 (0.69).")
    assert number_with([0.5, 0.6, 0.7]).sentence.endswith("there may be more.")
    assert number_with([0.35, 0.3]).sentence.startswith("No clear number: with 2 to 3 clusters")
    unstable = number_with([0.35, 0.9], stability=[0.95, 0.1]).sentence
    assert unstable.startswith(
        "No clear number: with 2 to 3 clusters, none that another run would find again"
    )
    nothing = number_with([0.0], of_one=0.0)
    assert nothing.sentence.startswith("No clear number: noise")
    assert replace(nothing, has_noise=False).sentence.startswith(
        "No clear number: the rows have too few different values"
    )
    assert number_with([0.5, 0.7], stability=[0.2, 0.3]).sentence.startswith(
        "No clear number: with any number"
    )
    assert number_with([0.5, 0.7]).to_dict()["davies_bouldin"] == [None, None]


@pytest.mark.parametrize(
    ("silhouette", "stability", "chosen", "is_clear"),
    [
        ([0.5, 0.7, 0.6], [0.95, 0.95, 0.95], 3, True),
        ([0.5, 0.6, 0.7], [0.95, 0.95, 0.7], 3, True),  # 4 would be other clusters in the next run
        ([0.3, 0.32, 0.35], [0.95, 0.95, 0.95], 2, False),
        ([0.3, 0.32, 0.35], [0.7, 0.95, 0.95], 3, False),
        ([0.35, 0.9, 0.9], [0.95, 0.1, 0.1], 2, False),
        ([0.5, 0.6, 0.7], [0.1, 0.2, 0.3], 2, False),
        ([0.7, 0.35, 0.9], [0.1, 0.95, 0.1], 3, False),
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], 2, False),
    ],
)
def test_the_best_stable_number_is_taken_or_else_the_smallest_sensible_one(
    silhouette, stability, chosen, is_clear
):
    found = number_with(silhouette, of_one=0.3 if any(silhouette) else 0.0, stability=stability)
    assert (found.chosen, found.is_clear) == (chosen, is_clear)


@pytest.mark.parametrize(
    ("agreement", "is_clear", "says"),
    [
        (0.8, True, "another run would find them again (stability 0.80)"),
        (0.5, False, "than these 3 (stability 0.50, below 0.74); try 2 or 4 clusters"),
        (0.739, False, "than these 3 (stability 0.73, below 0.74); try 2 or 4 clusters"),
    ],
    ids=["stable", "unstable", "nearly stable"],
)
def test_after_a_run_the_number_has_the_stability_that_the_doubt_judges(agreement, is_clear, says):
    before = number_with([0.5, 0.7, 0.6], stability=[0.9, 0.96, 0.8])
    after = before.after_run(agreement)
    assert (before.chosen, after.chosen) == (3, 3)  # the run is done: no other number comes up
    assert after.is_clear == is_clear
    assert says in after.sentence
    assert after.to_dict()["stability"] == [0.9, agreement, 0.8]
    assert "0.96" not in str(after)


def test_a_number_whose_clusters_nothing_shows_is_not_stable_after_a_run():
    """Reruns that find nothing agree with each other."""
    after = number_with([0.0], of_one=0.0, stability=[0.0]).after_run(1.0)
    assert after.stability == [0.0]
    assert not after.is_clear
    assert after.sentence.startswith("No clear number: noise")


def test_a_number_that_only_the_run_has_shown_to_be_stable_is_clear():
    before = number_with([0.7, 0.6], stability=[0.5, 0.6])
    assert not before.is_clear
    assert before.after_run(0.9).is_clear
    nothing = before.after_run(0.4).sentence
    assert nothing.endswith("(stability 0.40, below 0.74); take a larger epsilon or more rows.")


@pytest.mark.parametrize("given", ["many", (5, 3), (2, 3, 4), 1, (1, 4), 2.5])
def test_what_is_no_number_of_clusters_is_refused(given):
    with pytest.raises(ValueError, match="n_clusters is"):
        numbers_of(given)
