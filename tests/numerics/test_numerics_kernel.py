import tracemalloc

import numpy as np
import pytest
from sklearn.metrics.pairwise import rbf_kernel

from flower_fedclust.numerics import blocks as blocks_module
from flower_fedclust.numerics import kernel
from flower_fedclust.numerics.kernel import gaussian_kernel, mean_distance


@pytest.fixture(
    params=[(60, 7, 5, 0), (40, 1, 3, 1), (30, 60, 12, 2), (9, 2, 1, 3), (1, 3, 1, 4)], ids=str
)
def rows_and_others(request):
    n_rows, n_columns, n_others, seed = request.param
    rng = np.random.default_rng(seed)
    return rng.normal(3, 2, (n_rows, n_columns)), rng.normal(3, 2, (n_others, n_columns))


@pytest.mark.parametrize("bandwidth", [0.3, 1.0, 17.0])
def test_the_kernel_is_that_of_footnote_2_and_scikit_learns(rows_and_others, bandwidth):
    rows, others = rows_and_others
    K = gaussian_kernel(rows, others, bandwidth)
    assert K.shape == (len(rows), len(others))
    for i, row in enumerate(rows):
        for j, other in enumerate(others):
            slow = np.exp(-sum((row - other) ** 2) / (2 * bandwidth**2))
            np.testing.assert_allclose(K[i, j], slow, rtol=1e-9)
    np.testing.assert_allclose(K, rbf_kernel(rows, others, gamma=0.5 / bandwidth**2), rtol=1e-9)


def test_the_kernel_does_not_change_when_rows_and_bandwidth_change_their_unit(rows_and_others):
    rows, others = rows_and_others
    np.testing.assert_allclose(
        gaussian_kernel(1e3 * rows, 1e3 * others, 2e3),
        gaussian_kernel(rows, others, 2.0),
        rtol=1e-9,
    )


def test_the_kernel_keeps_its_digits_for_rows_far_from_the_origin():
    rows = np.random.default_rng(0).integers(-3, 4, (20, 4)).astype(float)
    np.testing.assert_array_equal(
        gaussian_kernel(rows + 2**30, rows + 2**30, 2.0), gaussian_kernel(rows, rows, 2.0)
    )


def test_the_mean_distance_is_that_of_equations_40_and_41(rows_and_others):
    rows, _ = rows_and_others
    slow = sum(np.linalg.norm(x - y) for x in rows for y in rows) / len(rows) ** 2
    assert mean_distance(rows) == pytest.approx(slow, rel=1e-6, abs=1e-12)


def test_of_many_rows_the_mean_distance_is_that_of_some_always_the_same(monkeypatch):
    rows = np.random.default_rng(0).normal(size=(2000, 4))
    every = mean_distance(rows)
    sizes = []
    original = kernel.squared_distances

    def recorded(rows, others):
        sizes.append((len(rows), len(others)))
        return original(rows, others)

    monkeypatch.setattr(kernel, "squared_distances", recorded)
    monkeypatch.setattr(kernel, "N_ROWS_FOR_MEAN_DISTANCE", 300)
    some = mean_distance(rows)
    assert sizes == [(300, 300)]
    assert some != every
    assert some == pytest.approx(every, rel=0.05)
    assert mean_distance(rows) == some
    # They are drawn, not the first: sorted rows give about the same.
    assert mean_distance(rows[np.argsort(rows[:, 0])]) == pytest.approx(every, rel=0.05)
    monkeypatch.setattr(kernel, "N_ROWS_FOR_MEAN_DISTANCE", 2000)
    assert mean_distance(rows) == every


def test_the_mean_distance_of_many_rows_never_holds_all_pairs(monkeypatch):
    monkeypatch.setattr(blocks_module, "BLOCK_ENTRIES", 100_000)
    tracemalloc.start()
    mean_distance(np.random.default_rng(0).normal(size=(3000, 4)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8e6  # all pairs are 72 MB
