import tracemalloc

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from flower_fedclust.numerics import blocks, nystrom
from flower_fedclust.numerics.nystrom import (
    distances_between,
    landmark_distances,
    nearest_landmarks,
    nearest_others,
    nystrom_neighbors,
    nystrom_neighbors_of_new,
    nystrom_projection,
)


@pytest.fixture(params=[130, 333, 10_000_000])
def in_blocks(request, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_ENTRIES", request.param)


def random_case(seed=0, n_rows=80, n_landmarks=12, n_columns=5):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n_rows, n_columns)), rng.normal(size=(n_landmarks, n_columns))


def dense(B_new, W, B):
    """B W^+ B', in the order of equation (22)."""
    return B_new @ np.linalg.pinv(W, rcond=1e-10, hermitian=True) @ B.T


def assert_neighbors(distances, neighbors, found, n_neighbors, atol=1e-11):
    """The values of a dense sort, each at its neighbor, and no neighbor twice."""
    expected = np.sort(distances, axis=1)[:, :n_neighbors]
    assert neighbors.shape == found.shape == expected.shape
    assert neighbors.dtype == np.intp
    np.testing.assert_allclose(found, np.maximum(expected, 0.0), atol=atol)
    np.testing.assert_allclose(
        np.maximum(np.take_along_axis(distances, neighbors, axis=1), 0.0), found, atol=atol
    )
    assert (np.diff(found, axis=1) >= 0).all()
    assert (np.diff(np.sort(neighbors, axis=1), axis=1) > 0).all()


# Distances to landmarks


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
def test_distances_to_landmarks_are_exact_however_short_and_far_from_the_origin(offset):
    rows, Y = random_case()
    rows[:12] = Y + 10.0 ** np.arange(-12, 0)[:, None]
    rows, Y = rows + offset, Y + offset
    np.testing.assert_allclose(
        landmark_distances(rows, Y), cdist(rows, Y), rtol=1e-9, atol=1e-15 * (1 + offset)
    )


@pytest.mark.parametrize("n_neighbors", [1, 4, 30])
def test_of_landmarks_at_one_distance_the_first_come_first(n_neighbors):
    rng = np.random.default_rng(3)
    rows, Y = (
        rng.integers(0, 3, size=(200, 2)).astype(float),
        rng.integers(0, 3, size=(30, 2)).astype(float),
    )
    expected = np.argsort(landmark_distances(rows, Y), axis=1, kind="stable")[:, :n_neighbors]
    neighbors, distances = nearest_landmarks(rows, Y, n_neighbors)
    np.testing.assert_array_equal(neighbors, expected)
    np.testing.assert_array_equal(
        distances, np.sort(landmark_distances(rows, Y), axis=1)[:, :n_neighbors]
    )


def test_the_nearest_landmarks_are_those_of_a_dense_sort():
    rows, Y = random_case()
    for n_neighbors in (1, 4, 12):
        neighbors, distances = nearest_landmarks(rows, Y, n_neighbors)
        assert_neighbors(cdist(rows, Y), neighbors, distances, n_neighbors)
    W = cdist(Y, Y)
    np.fill_diagonal(W, np.inf)
    for n_neighbors in (1, 4, 11):
        assert_neighbors(W, *nearest_others(Y, n_neighbors), n_neighbors)


def test_landmarks_that_coincide_are_neighbors_of_each_other_and_not_of_themselves():
    neighbors, distances = nearest_others(np.repeat(np.eye(3), 2, axis=0), 1)
    np.testing.assert_array_equal(neighbors[:, 0], [1, 0, 3, 2, 5, 4])
    np.testing.assert_array_equal(distances, 0.0)


# Nystrom distances


@pytest.mark.parametrize("n_neighbors", [1, 5, 79])
@pytest.mark.usefixtures("in_blocks")
def test_neighbors_are_those_of_the_dense_matrix(n_neighbors):
    rows, Y = random_case()
    B, W = landmark_distances(rows, Y), distances_between(Y)
    D = dense(B, W, B)
    D = 0.5 * (D + D.T)
    np.fill_diagonal(D, np.inf)
    neighbors, distances = nystrom_neighbors(B, W, n_neighbors, squared=False)
    assert_neighbors(D, neighbors, distances, n_neighbors)
    np.testing.assert_array_equal(neighbors, np.argsort(D, axis=1)[:, :n_neighbors])


@pytest.mark.parametrize("unit", [1e-120, 1.0, 1e120])
def test_squares_give_the_distances_between_rows_from_more_landmarks_than_columns(unit):
    rows, Y = random_case()
    D = cdist(rows, rows)
    np.fill_diagonal(D, np.inf)
    B, W = unit * landmark_distances(rows, Y), unit * distances_between(Y)
    neighbors, distances = nystrom_neighbors(B, W, 7, squared=True)
    np.testing.assert_array_equal(neighbors, np.argsort(D, axis=1)[:, :7])
    np.testing.assert_allclose(distances / unit, np.sort(D, axis=1)[:, :7], rtol=1e-7)


def test_noise_makes_distances_negative_which_become_0():
    rows, Y = random_case()
    B, W = landmark_distances(rows, Y), distances_between(Y)
    B += np.random.default_rng(1).normal(size=B.shape)
    D = dense(B, W, B)
    np.fill_diagonal(D, np.inf)
    neighbors, distances = nystrom_neighbors(B, W, 5, squared=False)
    assert (D < -0.1).any()
    assert distances.min() == 0.0
    assert_neighbors(D, neighbors, distances, 5, atol=1e-9)
    # The more negative is the nearer.
    np.testing.assert_allclose(
        np.take_along_axis(D, neighbors, axis=1), np.sort(D, axis=1)[:, :5], atol=1e-9
    )


def test_a_cutoff_leaves_small_eigenvalues_out(monkeypatch):
    _, Y = random_case()
    values = np.sort(np.abs(np.linalg.eigvalsh(distances_between(Y))))[::-1]
    monkeypatch.setattr(nystrom, "EIGENVALUE_CUTOFF", values[4] / values[0] * (1 - 1e-9))
    projection, signs = nystrom_projection(distances_between(Y))
    assert projection.shape == (12, 5)
    assert len(signs) == 5


@pytest.mark.parametrize("n_landmarks", [1, 2, 6])
@pytest.mark.parametrize("squared", [False, True])
def test_where_all_landmarks_are_one_there_are_neighbors_all_the_same(n_landmarks, squared):
    rows, _ = random_case(n_rows=9)
    Y = np.ones((n_landmarks, 5))
    with np.errstate(all="raise"):
        neighbors, distances = nystrom_neighbors(
            landmark_distances(rows, Y), distances_between(Y), 4, squared=squared
        )
    np.testing.assert_array_equal(distances, 0.0)
    for i, row in enumerate(neighbors):
        assert i not in row
        assert len(set(row)) == 4


@pytest.mark.parametrize("squared", [False, True])
def test_rows_that_are_equal_have_each_other_and_never_themselves(squared):
    _, Y = random_case()
    rows = np.repeat(np.random.default_rng(1).normal(size=(4, 5)), 3, axis=0)
    neighbors, _ = nystrom_neighbors(
        landmark_distances(rows, Y), distances_between(Y), 11, squared=squared
    )
    for i, row in enumerate(neighbors):
        assert sorted([i, *row]) == list(range(12))
    _, distances = nystrom_neighbors(
        landmark_distances(rows, rows[::3]), distances_between(rows[::3]), 2, squared=squared
    )
    assert distances.max() < (1e-6 if squared else 1e-12)


@pytest.mark.parametrize("n_neighbors", [1, 5, 80])
@pytest.mark.usefixtures("in_blocks")
def test_neighbors_of_new_rows_are_those_of_the_dense_matrix(n_neighbors):
    rows, Y = random_case()
    new = np.vstack([np.random.default_rng(1).normal(size=(17, 5)), rows[:3]])
    B_new, B, W = landmark_distances(new, Y), landmark_distances(rows, Y), distances_between(Y)
    neighbors, distances = nystrom_neighbors_of_new(B_new, B, W, n_neighbors, squared=False)
    assert_neighbors(dense(B_new, W, B), neighbors, distances, n_neighbors)


@pytest.mark.parametrize("squared", [False, True])
def test_a_landmark_is_its_own_nearest_among_rows_that_are_landmarks(squared):
    _, Y = random_case()
    W = distances_between(Y)
    neighbors, distances = nystrom_neighbors_of_new(W, W, W, 3, squared=squared)
    np.testing.assert_array_equal(neighbors[:, 0], np.arange(len(Y)))
    np.testing.assert_allclose(distances[:, 0], 0.0, atol=1e-6 if squared else 1e-12)


def test_no_array_of_all_pairs_is_made(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_ENTRIES", 20_000)
    rows, Y = random_case(n_rows=5000, n_landmarks=20)
    B, W = landmark_distances(rows, Y), distances_between(Y)
    tracemalloc.start()
    nystrom_neighbors(B, W, 10, squared=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * B.nbytes + 4e6  # all pairs are 200 MB
