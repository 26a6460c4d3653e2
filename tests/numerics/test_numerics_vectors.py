import numpy as np
import pytest
from sklearn.datasets import load_digits

from flower_fedclust.numerics.vectors import (
    clip_norm,
    clip_rows,
    n_axes_that_hold,
    top_eigenvectors,
)


def symmetric(size, seed=0):
    matrix = np.random.default_rng(seed).normal(size=(size, size))
    return matrix + matrix.T


@pytest.mark.parametrize("radius", [0.5, 20.0, 55.0, 300.0, 1e4])
@pytest.mark.parametrize("norm", [1, 2])
def test_clipped_rows_keep_their_direction_and_short_ones_every_bit(norm, radius):
    rows = load_digits().data * np.where(np.arange(64) % 2, 1.0, -1.0)
    clipped = clip_rows(rows, radius, norm=norm)
    lengths = np.linalg.norm(rows, axis=1, ord=norm)
    np.testing.assert_allclose(
        clipped, rows * np.minimum(1.0, radius / lengths)[:, None], rtol=1e-13
    )
    np.testing.assert_array_equal(clipped[lengths < radius], rows[lengths < radius])


def test_a_row_within_the_euclidean_ball_may_lie_beyond_the_l1_ball():
    rows = np.array([[0.6, -0.6], [0.5, 0.5], [1.0, 0.0]])
    np.testing.assert_array_equal(clip_rows(rows, 1.0), rows)
    np.testing.assert_allclose(
        clip_rows(rows, 1.0, norm=1), [[0.5, -0.5], [0.5, 0.5], [1.0, 0.0]], rtol=1e-15
    )


@pytest.mark.parametrize("norm", [1, 2])
def test_rows_of_any_size_can_be_clipped(norm):
    with np.errstate(divide="raise", invalid="raise", over="ignore"):
        clipped = clip_rows(np.array([[1e308, 1e308], [0.0, 0.0], [3.0, -1.0]]), 2.0, norm=norm)
        np.testing.assert_array_equal(
            clip_rows(np.array([[1e308, 1e308]]), np.inf, norm=1), [[1e308, 1e308]]
        )
    assert np.linalg.norm(clipped, axis=1, ord=norm).max() <= 2.0
    np.testing.assert_allclose(
        clipped[1:], [[0.0, 0.0], 2.0 * np.array([3.0, -1.0]) / (4.0 if norm == 1 else 10**0.5)]
    )


@pytest.mark.parametrize("shape", [(5,), (4, 3), (2, 3, 4)])
def test_clip_norm_bounds_the_norm_of_the_whole_array(shape):
    array = np.random.default_rng(0).normal(size=shape)
    clipped = clip_norm(array, 0.25)
    assert clipped.shape == shape
    assert np.sqrt((clipped**2).sum()) == pytest.approx(0.25, rel=1e-14)
    np.testing.assert_allclose(clipped / array, 0.25 / np.sqrt((array**2).sum()), rtol=1e-13)


@pytest.fixture
def known_spectrum():
    basis, _ = np.linalg.qr(np.random.default_rng(4).normal(size=(6, 6)))
    values = np.array([-9.0, 5.0, 0.5, 3.0, -1.0, 8.0])
    return (basis * values) @ basis.T, basis, values


@pytest.mark.parametrize("n_vectors", [1, 2, 4, 6])
def test_top_eigenvectors_belong_to_the_largest_eigenvalues_in_falling_order(
    known_spectrum, n_vectors
):
    matrix, basis, values = known_spectrum
    vectors = top_eigenvectors(matrix, n_vectors)
    expected = basis[:, np.argsort(values)[::-1][:n_vectors]]
    np.testing.assert_allclose(np.abs((vectors * expected).sum(axis=0)), 1.0, atol=1e-12)
    np.testing.assert_allclose(
        matrix @ vectors, vectors * np.sort(values)[::-1][:n_vectors], atol=1e-12
    )


@pytest.mark.parametrize(("share", "n_axes"), [(0.3, 1), (0.5, 1), (0.51, 2), (0.8, 3), (1.0, 4)])
def test_axes_that_hold_a_share_are_the_fewest_that_do(share, n_axes):
    basis, _ = np.linalg.qr(np.random.default_rng(4).normal(size=(6, 6)))
    matrix = (basis * np.array([0.0, 2.0, -1e-15, 4.0, 1.0, 1.0])) @ basis.T
    assert n_axes_that_hold(share - 1e-9, matrix) == n_axes


def test_the_largest_entry_of_every_eigenvector_is_positive():
    for seed in range(10):
        vectors = top_eigenvectors(symmetric(7, seed), 7)
        assert (vectors[np.abs(vectors).argmax(axis=0), np.arange(7)] > 0).all()


def test_top_eigenvectors_span_numpys_leading_right_singular_vectors():
    rows = load_digits().data
    vectors = top_eigenvectors(rows.T @ rows, 10)
    _, _, right = np.linalg.svd(rows, full_matrices=False)
    np.testing.assert_allclose(vectors @ vectors.T, right[:10].T @ right[:10], atol=1e-9)


@pytest.mark.parametrize("norm", [1, 2])
def test_rows_near_the_largest_float_are_clipped_to_a_radius_that_is_as_large(norm):
    rows = np.array([[3e305, -4e305], [1e300, 0.0], [3.0, 4.0]])
    clipped = clip_rows(rows, 1e305, norm=norm)
    length = 7.0 if norm == 1 else 5.0
    np.testing.assert_allclose(clipped[0], np.array([3e305, -4e305]) / length, rtol=1e-12)
    assert np.array_equal(clipped[1], rows[1])
    np.testing.assert_allclose(clip_rows(rows, 1e307, norm=norm)[:2], rows[:2], rtol=0)
