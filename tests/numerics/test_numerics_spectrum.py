"""Noisy eigenvalues: their estimates are right on average, as a simulation shows, and add up to the noisy trace."""

import numpy as np
import pytest
from scipy.stats import truncnorm

from flower_fedclust.numerics.spectrum import kept_of_singular, mean_if_positive, variances_along

NOISE = 0.3
SPECTRA = {
    "three above the rest": np.array([4.0, 2.0, 1.0, 0.1, 0.1, 0.1, 0.1, 0.1]),
    "two above, many hidden": np.r_[3.0, 2.5, np.full(16, 0.02)],
    "all alike": np.ones(10),
    "nothing": np.zeros(12),
}


def draws(true, n_draws=300):
    """Yield noisy eigenvalues, the largest first, and the variances along their eigenvectors."""
    rng, d = np.random.default_rng(0), len(true)
    for _ in range(n_draws):
        upper = np.triu(rng.normal(size=(d, d)) * NOISE / np.sqrt(2), 1)
        values, vectors = np.linalg.eigh(
            np.diag(true) + upper + upper.T + np.diag(NOISE * rng.normal(size=d))
        )
        yield values[::-1], true @ vectors[:, ::-1] ** 2


@pytest.mark.parametrize("which", SPECTRA)
def test_variances_along_noisy_eigenvectors_are_right_on_average(which):
    true = SPECTRA[which]
    n_clear = int((true > 1.5).sum())
    raw, found, exact = ([], [], [])
    for values, variances in draws(true):
        estimates = variances_along(values, NOISE)
        assert (estimates >= 0).all()
        assert (np.diff(estimates) <= 1e-12).all()
        assert estimates.sum() >= values.sum() - 1e-9
        assert estimates.sum() == pytest.approx(values.sum()) or estimates[-1] == 0
        for kept, one in ((raw, values), (found, estimates), (exact, variances)):
            kept.append(one)
    raw, found, exact = (np.mean(one, axis=0) for one in (raw, found, exact))
    rest = slice(n_clear, None)
    # Clear directions one by one, and the variance that they leave for all others, on which a mixture relies.
    np.testing.assert_allclose(found[:n_clear], exact[:n_clear], atol=0.15)
    assert found[rest].mean() == pytest.approx(exact[rest].mean(), abs=0.05)
    assert abs(found[0] - exact[0]) < abs(raw[0] - exact[0])
    assert np.abs(found - exact).sum() < 0.35 * np.abs(raw - exact).sum()


def test_what_the_largest_noisy_eigenvalues_leave_is_too_little_and_their_estimates_leave_what_there_is():
    true = SPECTRA["two above, many hidden"]
    left = [
        (values[6:].sum(), variances_along(values, NOISE)[6:].sum(), true.sum() - v[:6].sum())
        for values, v in draws(true)
    ]
    raw, found, exact = np.mean(left, axis=0)
    assert raw < -2.0
    assert found == pytest.approx(exact, abs=0.35)


def test_without_noise_eigenvalues_stay_as_they_are():
    values = np.array([3.0, 1.0, 1.0, -1e-17])
    np.testing.assert_array_equal(variances_along(values, 0.0), values)
    np.testing.assert_array_equal(kept_of_singular(values, (9, 4), 0.0), np.ones(4))


def test_equal_eigenvalues_have_finite_estimates():
    for values in (np.zeros(5), np.ones(5), np.array([2.0, 1.0, 1.0])):
        assert np.isfinite(variances_along(values, 1.0)).all()
        assert np.isfinite(kept_of_singular(values, (9, len(values)), 1.0)).all()


def test_the_kept_part_of_a_singular_value_is_right_on_average():
    rng, n, d = np.random.default_rng(1), 60, 15
    left, right = (np.linalg.qr(rng.normal(size=(one, 3)))[0] for one in (n, d))
    true = left * [9.0, 6.0, 4.0] @ right.T
    found, exact = [], []
    for _ in range(300):
        U, values, Vt = np.linalg.svd(true + NOISE * rng.normal(size=(n, d)), full_matrices=False)
        found.append(kept_of_singular(values, (n, d), NOISE)[:3] * values[:3])
        exact.append([U[:, one] @ true @ Vt[one] for one in range(3)])
    assert np.mean(values[:3]) > np.mean(exact) + 0.3
    np.testing.assert_allclose(np.mean(found, axis=0), np.mean(exact, axis=0), atol=0.05)


@pytest.mark.parametrize("estimate", [-40.0, -3.0, 0.0, 0.5, 20.0])
def test_the_mean_of_a_positive_number_is_that_of_a_cut_gaussian(estimate):
    assert mean_if_positive(estimate, 2.0) == pytest.approx(
        truncnorm.mean(-estimate / 2.0, np.inf, estimate, 2.0), rel=1e-6
    )


def test_a_number_without_an_error_is_itself_or_0():
    assert [mean_if_positive(one, 0.0) for one in (-1.0, 2.0)] == [0.0, 2.0]
