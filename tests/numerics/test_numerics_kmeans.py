import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs

from flower_fedclust.numerics import blocks, kmeans, threads
from flower_fedclust.numerics.kmeans import (
    centers_of,
    cluster_sums,
    kmeans_cost,
    nearest_center,
    nearest_of_each,
    nearest_two,
    shrunk_towards,
    squared_distances,
    sums_of_each,
    within_margin,
)


@pytest.fixture(params=[(500, 7, 5, 0), (40, 1, 3, 1), (300, 60, 12, 2), (9, 2, 1, 3)], ids=str)
def rows_and_centers(request):
    n_rows, n_columns, n_clusters, seed = request.param
    rng = np.random.default_rng(seed)
    return rng.normal(3, 2, (n_rows, n_columns)), rng.normal(3, 2, (n_clusters, n_columns))


def test_squared_distances_are_scipys(rows_and_centers):
    rows, centers = rows_and_centers
    expected = cdist(rows, centers, "sqeuclidean")
    np.testing.assert_allclose(squared_distances(rows, centers), expected, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("shift", [0.0, 1e7])
def test_squared_distances_have_the_same_bits_with_any_number_of_threads(shift):
    rng = np.random.default_rng(0)
    rows, centers = rng.normal(shift, 1, (1700, 100)), rng.normal(shift, 1, (900, 100))
    with threads.jobs(1):
        expected = squared_distances(rows, centers)
    with threads.jobs(3):
        np.testing.assert_array_equal(squared_distances(rows, centers), expected)
    np.testing.assert_allclose(expected, cdist(rows, centers, "sqeuclidean"), rtol=1e-6)


def test_nearest_center_is_the_argmin_of_scipys_distances(rows_and_centers):
    rows, centers = rows_and_centers
    labels = nearest_center(rows, centers)
    assert labels.dtype == np.intp
    np.testing.assert_array_equal(labels, cdist(rows, centers).argmin(axis=1))


@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_the_two_nearest_centers_are_scipys(rows_and_centers, offset):
    rows, centers = (offset + one for one in rows_and_centers)
    labels, first, second = nearest_two(rows, centers)
    expected = np.sort(cdist(rows, centers, "sqeuclidean"), axis=1)
    np.testing.assert_array_equal(labels, nearest_center(rows, centers))
    np.testing.assert_allclose(first, expected[:, 0], rtol=1e-9, atol=1e-9)
    if len(centers) > 1:
        np.testing.assert_allclose(second, expected[:, 1], rtol=1e-9, atol=1e-9)
    else:
        assert np.isinf(second).all()


@pytest.mark.parametrize(("n_runs", "most"), [(1, 2**40), (7, 2**40), (7, 0), (400, 0)])
@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_runs_are_compared_together_as_they_are_one_by_one(offset, n_runs, most, monkeypatch):
    monkeypatch.setattr(threads, "MANY_MULTIPLICATIONS", most)
    rng = np.random.default_rng(0)
    rows, runs = (offset + rng.normal(size=shape) for shape in ((1300, 4), (n_runs, 5, 4)))
    weights, shared = rng.uniform(size=(n_runs, 1300)), rng.uniform(size=1300)
    labels, squared = nearest_of_each(rows, runs)
    sums, counts = sums_of_each(rows, labels, weights, 5)
    sums_of_shared, _ = sums_of_each(rows, labels, shared, 5)
    assert labels.shape == squared.shape == weights.shape
    for run in range(0, n_runs, 30):
        one, first, _ = nearest_two(rows, runs[run])
        np.testing.assert_array_equal(labels[run], one)
        np.testing.assert_allclose(squared[run], first, rtol=1e-9, atol=1e-9)
        for place in range(5):
            own = labels[run] == place
            np.testing.assert_allclose(sums[run, place], weights[run, own] @ rows[own])
            np.testing.assert_allclose(sums_of_shared[run, place], shared[own] @ rows[own])
            assert counts[run, place] == pytest.approx(weights[run, own].sum())


def test_ties_go_to_the_lower_index():
    rows = np.array([[0.0, 0.0], [0.0, 5.0], [3.0, 0.0]])
    centers = np.array([[9.0, 9.0], [1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]])
    np.testing.assert_array_equal(nearest_center(rows, centers), [1, 1, 1])
    np.testing.assert_array_equal(nearest_center(rows, centers[::-1]), [0, 0, 0])


def test_block_by_block_gives_the_labels_of_one_block(rows_and_centers, monkeypatch):
    rows, centers = rows_and_centers
    whole = nearest_center(rows, centers)
    for n_rows in (1, 7, len(rows) - 1):
        monkeypatch.setattr(
            kmeans,
            "cached_blocks",
            lambda n, _, step=n_rows: blocks.blocks(n, 1, block_entries=step),
        )
        np.testing.assert_array_equal(nearest_center(rows, centers), whole)


@pytest.mark.parametrize("margin", [0.1, 1 / 3, 0.7, 1.0])
def test_within_margin_agrees_with_a_loop_over_rows_and_centers(rows_and_centers, margin):
    rows, centers = rows_and_centers
    labels = cdist(rows, centers).argmin(axis=1)
    expected = []
    for row, label in zip(rows, labels, strict=True):
        own = np.linalg.norm(row - centers[label])
        others = [
            np.linalg.norm(row - center) for index, center in enumerate(centers) if index != label
        ]
        expected.append(all(own <= margin * other for other in others))
    np.testing.assert_array_equal(
        within_margin(squared_distances(rows, centers), labels, margin), expected
    )


def test_within_margin_keeps_the_row_that_lies_on_the_margin_and_drops_the_one_beyond():
    centers = np.array([[0.0], [4.0]])
    labels = np.zeros(3, dtype=np.intp)
    kept = within_margin(squared_distances(np.array([[0.5], [1.0], [1.5]]), centers), labels, 1 / 3)
    np.testing.assert_array_equal(kept, [True, True, False])


def test_cluster_sums_agree_with_a_loop_over_clusters(rows_and_centers):
    rows, centers = rows_and_centers
    labels = nearest_center(rows, centers)
    sums, counts = cluster_sums(rows, labels, len(centers) + 2)
    assert counts.dtype == np.float64
    for cluster in range(len(centers) + 2):
        members = rows[labels == cluster]
        assert counts[cluster] == len(members)
        np.testing.assert_allclose(sums[cluster], members.sum(axis=0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("count", [0.999, 0.5, 0.0, -0.5, -1.0, -300.0])
def test_a_cluster_with_a_count_below_one_keeps_its_former_center(count):
    sums, former = np.array([[6.0, 8.0], [5.0, 5.0]]), np.array([[-1.0, -1.0], [-2.0, -3.0]])
    with np.errstate(all="raise"):
        centers = centers_of(sums, np.array([2.0, count]), former)
    np.testing.assert_array_equal(centers, [[3.0, 4.0], [-2.0, -3.0]])


def test_a_count_of_exactly_one_divides():
    np.testing.assert_array_equal(
        centers_of(np.array([[7.0]]), np.array([1.0]), np.array([[0.0]])), [[7.0]]
    )


def test_kmeans_cost_is_scikit_learns_inertia():
    rows, _ = make_blobs(600, 5, centers=6, random_state=0)
    estimator = KMeans(6, n_init=1, random_state=0).fit(rows)
    assert kmeans_cost(rows, estimator.cluster_centers_) == pytest.approx(
        estimator.inertia_, rel=1e-10
    )


def test_kmeans_cost_is_zero_where_every_row_is_a_center_however_far_from_the_origin():
    rows = np.random.default_rng(0).normal(1e6, 1e3, (20, 3))
    assert kmeans_cost(rows, rows) == 0.0


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e8])
def test_rows_far_from_the_origin_have_the_nearest_center_too(offset):
    rng = np.random.default_rng(0)
    rows, centers = rng.normal(size=(500, 4)) + offset, rng.normal(size=(5, 4)) + offset
    slow = cdist(rows, centers).argmin(axis=1)
    assert (nearest_center(rows, centers) == slow).all()
    assert kmeans_cost(rows, centers) == pytest.approx(
        (cdist(rows, centers).min(axis=1) ** 2).sum(), rel=1e-6
    )


def test_centers_in_the_plane_are_not_shrunk():
    known, noisy = np.zeros((2, 2)), np.array([[3.0, 4.0], [0.1, 0.0]])
    assert np.array_equal(shrunk_towards(known, noisy, np.array([1.0, 1.0])), noisy)


def test_shrinking_takes_what_james_and_stein_take_and_never_more_than_all():
    known = np.ones((2, 5))
    difference = np.array([[3.0, 0.0, 4.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0, 0.5]])
    shrunk = shrunk_towards(known, known + difference, np.array([2.0, 2.0]))
    np.testing.assert_allclose(
        shrunk[0] - known[0], (1 - 3 * 2.0 / 25.0) * difference[0], rtol=1e-12
    )
    assert np.array_equal(shrunk[1], known[1])
