"""FedSC's bounds on noise: the paper's equations, and what they promise of real kernels."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.distance import cdist, pdist
from sklearn.datasets import load_iris

from reproduce import fedsc_bounds as bounds
from reproduce.fedsc_bounds import FedSCBounds

DATA = FedSCBounds(n_columns=4, bandwidth=1.5, max_norm=0.8, t=4.0)
FACTORS = FedSCBounds(n_atoms=9, n_columns=4, bandwidth=1.5, max_code_norm=0.7, t=4.0)


def kernel(left, right, bandwidth):
    return np.exp(-cdist(left, right, "sqeuclidean") / (2 * bandwidth**2))


def factorized(rows, dictionary, bandwidth, regularization):
    """Return the codes (equation 14), and gamma by its definition."""
    gram, between = kernel(dictionary, dictionary, bandwidth), kernel(rows, dictionary, bandwidth)
    codes = np.linalg.solve(gram + regularization * np.eye(len(gram)), between.T).T
    return codes, math.sqrt(
        (1 - 2 * (codes * between).sum(axis=1) + ((codes @ gram) * codes).sum(axis=1)).max()
    )


def test_equations_by_hand():
    sigma_xi, theta, xi_d = 0.1 * math.sqrt(20), 0.8, math.sqrt(9 + 2 * 6 + 8)
    assert bounds.xi(4, 4.0) == pytest.approx(math.sqrt(20))
    of_rows = ((sigma_xi + math.sqrt(2) * theta) ** 2 - 2 * theta**2) / 1.5**2
    assert DATA.kernel_error_of_noisy_rows(0.1) == pytest.approx(of_rows)
    rest = replace(DATA, n_atoms=16, max_code_norm=0.5, residual=0.1)
    assert rest.reconstruction_error() == pytest.approx((4 * 0.5 + 1) * 0.1)
    assert rest.kernel_error_of_noisy_rows(0.1) == pytest.approx(of_rows + 0.3)
    of_an_atom = math.sqrt(2 * (1 - math.exp(-(0.1**2) * 20 / (2 * 1.5**2))))
    of_factors = 0.05 + 3 * (0.02 * xi_d + 0.7 * of_an_atom)
    assert replace(FACTORS, residual=0.05).factor_error(0.1, 0.02) == pytest.approx(of_factors)
    multiplier = math.sqrt(2 * math.log(1.25 / 1e-5)) / 0.5
    assert DATA.smallest_data_noise(0.5, 1e-5) == pytest.approx(2 * 0.8 * multiplier)
    codes = FedSCBounds(
        n_atoms=9, bandwidth=2.0, regularization=0.5, max_norm=1.0, max_distance=3.0
    )
    assert codes.smallest_code_noise(0.5, 1e-5) == pytest.approx(
        2 * multiplier * 3 * (1 + 3) / (4 * 0.5)
    )
    sensitivity = 2 * 3 * 0.25 * 0.5 / 4.0 * (1 + (1.0 + 3.0) * (1.0 + 4.0) / 4.0)
    of_dictionary = math.sqrt(8 * 10 * sensitivity**2 * math.log(math.e + 2.0 / 1e-5) / 2.0**2)
    dictionary = replace(
        codes,
        n_rounds=10,
        step_size=0.5,
        max_code_norm=0.25,
        max_dictionary_norm=3.0,
        max_distance=4.0,
    )
    assert dictionary.smallest_dictionary_noise(2.0, 1e-5) == pytest.approx(of_dictionary)
    with pytest.raises(ValueError, match="epsilon"):
        DATA.smallest_data_noise(1.01, 1e-5)


@pytest.mark.parametrize(("n_columns", "t"), [(1, 1.0), (5, 0.5), (40, 3.0)])
def test_a_gaussian_vector_exceeds_xi_as_rarely_as_it_says(n_columns, t):
    norms = np.linalg.norm(np.random.default_rng(0).standard_normal((100_000, n_columns)), axis=1)
    assert 0 < (norms > bounds.xi(n_columns, t)).mean() <= math.exp(-t)


def test_at_the_largest_noise_the_kernel_error_is_the_separation():
    for room, norm in ((1e-6, 100.0), (0.2, 0.8), (1.0, 0.01)):
        setting = replace(DATA, max_norm=norm, n_atoms=4, max_code_norm=1.0, residual=0.1)
        largest = setting.largest_data_noise(room + 0.3)
        assert setting.kernel_error_of_noisy_rows(largest) == pytest.approx(room + 0.3, rel=1e-9)
        assert setting.largest_data_noise(0.2) == 0.0
    for separation in (0.0, 0.1, 3.0):
        gamma = bounds.largest_factor_error(separation)
        assert bounds.kernel_error_of_noisy_factors(gamma) == pytest.approx(separation)
    assert bounds.largest_factor_error(-0.5) == 0.0


def test_the_papers_bandwidth_leaves_no_range_of_noise_and_a_wide_kernel_does():
    narrow = FedSCBounds(n_columns=1, bandwidth=2.0, max_norm=1.0, t=0.0)
    assert narrow.largest_data_noise(0.75) < narrow.smallest_data_noise(1.0, 0.9)
    wide = FedSCBounds(n_columns=1, bandwidth=1e3, max_norm=1.0, t=1.0)
    assert wide.largest_data_noise(0.6) > wide.smallest_data_noise(1.0, 1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_theorems_3_1_and_3_8_bound_the_error_of_the_reconstructed_kernel(seed):
    generator = np.random.default_rng(seed)
    rows = load_iris().data - load_iris().data.mean(axis=0)
    bandwidth = pdist(rows).mean()
    true, largest_row = kernel(rows, rows, bandwidth), np.linalg.norm(rows, axis=1).max()
    dictionary = rows.std(axis=0) * generator.standard_normal((20, 4))

    def setting(codes, residual, n_statements):
        largest = np.linalg.norm(codes, axis=1).max()
        t = math.log(n_statements / 1e-3)
        return FedSCBounds(4, 20, 1, bandwidth, largest_row, largest, residual=residual, t=t)

    noisy = rows + generator.normal(scale=0.05, size=rows.shape)
    codes, residual = factorized(noisy, dictionary, bandwidth, 1e-3)
    bound = setting(codes, residual, 150 * 149).kernel_error_of_noisy_rows(0.05)
    assert (
        0
        < np.abs(codes @ kernel(dictionary, dictionary, bandwidth) @ codes.T - true).max()
        <= bound
    )

    codes, residual = factorized(rows, dictionary, bandwidth, 0.1)
    moved = dictionary + generator.normal(scale=0.02, size=dictionary.shape)
    noisy_codes = codes + generator.normal(scale=0.001, size=codes.shape)
    gamma = setting(codes, residual, 150 + 20).factor_error(0.02, 0.001)
    error = np.abs(noisy_codes @ kernel(moved, moved, bandwidth) @ noisy_codes.T - true).max()
    assert 0 < error <= bounds.kernel_error_of_noisy_factors(gamma)


def test_the_noise_of_many_columns_breaks_the_bound_as_printed_and_not_ours():
    # Two equal atoms, each the code of one row: noise of 1000 columns drives them apart.
    atoms = np.random.default_rng(0).standard_normal((2, 1000))
    error = 1.0 - kernel(atoms, atoms, math.sqrt(1000))[0, 1]
    printed, ours = (
        FedSCBounds(n_columns, 2, bandwidth=math.sqrt(1000), max_code_norm=1.0, t=1.0).factor_error(
            1.0, 0.0
        )
        for n_columns in (2, 1000)
    )
    assert (
        2 * bounds.kernel_error_of_noisy_factors(printed)
        < error
        <= bounds.kernel_error_of_noisy_factors(ours)
    )


def test_factor_noise_is_useful_up_to_the_separation():
    error = bounds.kernel_error_of_noisy_factors(FACTORS.factor_error(0.01, 0.001))
    assert FACTORS.factor_noise_is_useful(0.01, 0.001, error * (1 + 1e-9))
    assert not FACTORS.factor_noise_is_useful(0.01, 0.001, error * (1 - 1e-6))
    assert not FACTORS.factor_noise_is_useful(0.0, 0.0, -0.1)


@pytest.mark.parametrize("n_neighbors", [1, 3, 39])
def test_separation_is_that_of_a_loop_over_rows(n_neighbors):
    generator = np.random.default_rng(n_neighbors)
    labels = generator.integers(3, size=40)
    rows = generator.standard_normal((40, 3)) + labels[:, None]
    largest = -np.inf
    for i, x in enumerate(rows):
        distances = [np.inf if j == i else np.linalg.norm(x - y) for j, y in enumerate(rows)]
        values = {True: [], False: []}
        for j in np.argsort(distances, kind="stable")[:n_neighbors]:
            values[labels[i] == labels[j]].append(math.exp(-(distances[j] ** 2) / (2 * 1.7**2)))
        largest = max(largest, max(values[False], default=0.0) - min(values[True], default=0.0))
    options = {"bandwidth": 1.7, "n_neighbors": n_neighbors, "tolerance": 0.3}
    assert bounds.separation(rows + 1e4, labels, **options) == pytest.approx(
        0.3 / 2 - largest / 4, abs=1e-9
    )
