import numpy as np
import pytest
from scipy.spatial.distance import pdist
from sklearn.datasets import load_digits, load_iris

from flower_fedclust.privacy.attacks import clusters_from_codes, relative_errors, rows_from_codes

REGULARIZATION = 1e-2


def kernel(left, right, bandwidth):
    values = np.empty((len(left), len(right)))
    for i, x in enumerate(left):
        values[i] = np.exp(-((x - right) ** 2).sum(axis=1) / (2 * bandwidth**2))
    return values


def upload(rows, *, n_atoms=100, regularization=REGULARIZATION, seed=0):
    """Return what a client has at the end: a dictionary around its rows, its codes (eq. 14) and the bandwidth."""
    generator = np.random.default_rng(seed)
    dictionary = rows.mean(axis=0) + rows.std(axis=0) * generator.standard_normal((n_atoms, rows.shape[1]))
    bandwidth = pdist(rows).mean()
    gram = kernel(dictionary, dictionary, bandwidth) + regularization * np.eye(n_atoms)
    codes = np.linalg.solve(gram, kernel(dictionary, rows, bandwidth)).T
    return dictionary, codes, {"bandwidth": bandwidth, "regularization": regularization}


def accuracy(labels, found):
    """Return the share of rows whose cluster's majority has their label."""
    return sum(np.bincount(labels[found == cluster]).max() for cluster in np.unique(found)) / len(labels)


@pytest.fixture(scope="module", params=["iris", "digits"])
def rows(request):
    if request.param == "iris":
        return load_iris().data
    return load_digits().data / 16.0


def test_every_row_is_recovered_from_codes_without_noise(rows):
    dictionary, codes, options = upload(rows)
    recovered = rows_from_codes(dictionary, codes, **options)
    assert recovered.shape == rows.shape
    assert relative_errors(recovered, rows).max() < 1e-6
    assert np.abs(recovered - rows).max() < 1e-6


def test_the_fewest_atoms_are_one_more_than_the_columns():
    rows = load_iris().data
    dictionary, codes, options = upload(rows, n_atoms=5)
    assert relative_errors(rows_from_codes(dictionary, codes, **options), rows).max() < 1e-6


def test_rows_far_from_the_origin_are_recovered_too():
    rows = load_iris().data + 1e5
    dictionary, codes, options = upload(rows)
    assert relative_errors(rows_from_codes(dictionary, codes, **options), rows).max() < 1e-6


def test_a_column_in_which_nothing_differs_is_recovered_too():
    rows = np.column_stack([load_iris().data, np.full(150, 7.0)])
    dictionary, codes, options = upload(rows)
    assert np.allclose(rows_from_codes(dictionary, codes, **options), rows, atol=1e-6)


def test_perturbed_rows_are_all_that_the_attack_recovers(rows):
    noise = np.random.default_rng(1).normal(scale=3 * rows.std(), size=rows.shape)
    dictionary, codes, options = upload(rows + noise)
    recovered = rows_from_codes(dictionary, codes, **options)
    assert relative_errors(recovered, rows + noise).max() < 1e-6
    of_noise = np.linalg.norm(noise, axis=1) / np.linalg.norm(rows - rows.mean(axis=0), axis=1)
    assert np.allclose(relative_errors(recovered, rows), of_noise, rtol=1e-6)
    # The mean row, which needs no attack, is nearer to most of the rows.
    assert np.median(of_noise) > 1


def test_perturbed_codes_mislead_the_attack_and_still_give_finite_rows():
    rows = load_iris().data
    dictionary, codes, options = upload(rows)
    noisy = codes + np.random.default_rng(1).normal(scale=codes.std(), size=codes.shape)
    gram = kernel(dictionary, dictionary, options["bandwidth"]) + REGULARIZATION * np.eye(len(dictionary))
    values = noisy @ gram
    assert values.min() < 0
    assert values.max() > 1
    recovered = rows_from_codes(dictionary, noisy, **options)
    assert np.isfinite(recovered).all()
    assert np.median(relative_errors(recovered, rows)) > 1


def test_kernel_values_that_are_zero_give_finite_rows():
    generator = np.random.default_rng(0)
    dictionary = generator.standard_normal((6, 2))
    recovered = rows_from_codes(dictionary, np.zeros((3, 6)), bandwidth=1.0, regularization=0.1)
    assert np.isfinite(recovered).all()


def test_a_kernel_value_above_one_is_a_distance_of_zero():
    dictionary = np.random.default_rng(0).standard_normal((6, 2))
    gram = kernel(dictionary, dictionary, 1.0) + 0.1 * np.eye(6)
    values = np.array([[1.0, 0.5, 0.4, 0.3, 0.2, 0.1], [3.0, 0.5, 0.4, 0.3, 0.2, 0.1]])
    first, second = rows_from_codes(dictionary, np.linalg.solve(gram, values.T).T, bandwidth=1.0, regularization=0.1)
    assert np.allclose(first, second)


@pytest.mark.parametrize(("wrong", "factor"), [("bandwidth", 1.2), ("regularization", 10.0)])
def test_even_a_wrong_bandwidth_or_regularization_gives_the_rows_to_a_few_percent(wrong, factor):
    rows = load_iris().data
    dictionary, codes, options = upload(rows)
    options[wrong] *= factor
    errors = relative_errors(rows_from_codes(dictionary, codes, **options), rows)
    assert 1e-4 < np.median(errors) < 0.05


def test_codes_give_clusters_above_chance(rows):
    labels = load_iris().target if len(rows) == 150 else load_digits().target
    _, codes, _ = upload(rows)
    n_clusters = len(np.unique(labels))
    found = clusters_from_codes(codes, n_clusters)
    chance = accuracy(labels, np.random.default_rng(0).integers(n_clusters, size=len(labels)))
    assert set(found) == set(range(n_clusters))
    assert accuracy(labels, found) > 1.5 * chance
    assert np.array_equal(found, clusters_from_codes(codes, n_clusters))


def test_the_seed_of_k_means_is_used():
    codes = np.random.default_rng(0).standard_normal((200, 5))
    first = clusters_from_codes(codes, 8, random_state=1)
    assert any(not np.array_equal(first, clusters_from_codes(codes, 8, random_state=seed)) for seed in range(2, 6))


def test_errors_are_relative_to_the_distance_from_the_mean_row():
    rows = np.array([[100.0, 0.0], [104.0, 0.0], [102.0, 6.0]])  # the mean row is (102, 2)
    recovered = rows + np.array([[3.0, 4.0], [0.0, 0.0], [0.0, -2.0]])
    assert np.allclose(relative_errors(recovered, rows), [5 / np.sqrt(8), 0.0, 0.5])
    assert np.allclose(relative_errors(np.broadcast_to(rows.mean(axis=0), rows.shape), rows), 1.0)


def test_a_mean_row_counts_as_recovered_only_if_it_is_exact():
    rows = np.array([[-1.0], [0.0], [1.0]])
    assert np.array_equal(relative_errors(rows, rows), [0.0, 0.0, 0.0])
    assert np.array_equal(relative_errors(rows + 0.5, rows), [0.5, np.inf, 0.5])


@pytest.mark.parametrize(
    ("dictionary", "codes", "options", "sentence"),
    [
        ((4, 4), (3, 4), {}, "There are 4 atoms for 4 columns; rows can be recovered from 5 atoms or more"),
        ((5, 4), (3, 4), {}, r"codes has shape \(3, 4\); the dictionary asks for \(n_rows, 5\)"),
        ((5, 4), (5,), {}, r"codes has shape \(5,\); the dictionary asks for \(n_rows, 5\)"),
        ((5, 4), (3, 5), {"bandwidth": 0.0}, "bandwidth is 0.0; it must be positive"),
        ((5, 4), (3, 5), {"bandwidth": float("nan")}, "bandwidth is nan; it must be positive"),
        ((5, 4), (3, 5), {"regularization": -1.0}, "regularization is -1.0; it must be finite and not negative"),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(dictionary, codes, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        rows_from_codes(np.ones(dictionary), np.ones(codes), **{"bandwidth": 1.0, "regularization": 0.1} | options)


@pytest.mark.parametrize("n_clusters", [0, 4])
def test_n_clusters_that_the_rows_do_not_allow_is_refused(n_clusters):
    with pytest.raises(ValueError, match=f"n_clusters is {n_clusters}; 3 rows allow 1 to 3"):
        clusters_from_codes(np.ones((3, 2)), n_clusters)


def test_errors_of_other_rows_are_refused():
    with pytest.raises(ValueError, match=r"recovered has shape \(2, 2\) and rows \(3, 2\)"):
        relative_errors(np.ones((2, 2)), np.ones((3, 2)))
