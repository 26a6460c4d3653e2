import math

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist, pdist
from sklearn.datasets import load_iris

from flower_fedclust.strategies.fedsc import tradeoff
from flower_fedclust.strategies.fedsc.tradeoff import (
    NoiseRange,
    data_noise_range,
    factor_error,
    factor_noise_is_useful,
    kernel_error_of_noisy_factors,
    kernel_error_of_noisy_rows,
    largest_data_noise,
    largest_factor_error,
    reconstruction_error,
    separation,
    smallest_code_noise,
    smallest_data_noise,
    smallest_dictionary_noise,
    xi,
)

DATA = {"n_columns": 4, "bandwidth": 1.5, "max_norm": 0.8, "t": 4.0}
FACTORS = {"n_atoms": 9, "n_columns": 4, "bandwidth": 1.5, "max_code_norm": 0.7, "t": 4.0}
DICTIONARY = {
    "n_rounds": 10,
    "n_atoms": 9,
    "step_size": 0.5,
    "bandwidth": 2.0,
    "max_norm": 1.0,
    "max_code_norm": 0.25,
    "max_dictionary_norm": 3.0,
    "max_distance": 4.0,
}
CODES = {"n_atoms": 9, "bandwidth": 2.0, "regularization": 0.5, "max_norm": 1.0, "max_distance": 3.0}
FACTS = settings(max_examples=100, deadline=None, derandomize=True, database=None)


def kernel(left, right, bandwidth):
    return np.exp(-cdist(left, right, "sqeuclidean") / (2 * bandwidth**2))


def factorised(rows, dictionary, bandwidth, regularization=1e-3):
    """Return the codes (eq. 14), and gamma against these rows by its definition."""
    gram = kernel(dictionary, dictionary, bandwidth)
    between = kernel(rows, dictionary, bandwidth)
    codes = np.linalg.solve(gram + regularization * np.eye(len(gram)), between.T).T
    squared = 1 - 2 * (codes * between).sum(axis=1) + ((codes @ gram) * codes).sum(axis=1)
    return codes, math.sqrt(squared.max())


def test_xi_of_four_columns():
    assert xi(4, 4.0) == pytest.approx(math.sqrt(4 + 2 * 4 + 8))
    assert xi(9, 0.0) == 3.0


@pytest.mark.parametrize(("n_columns", "t"), [(1, 1.0), (5, 0.5), (40, 3.0)])
def test_a_gaussian_vector_exceeds_xi_as_rarely_as_it_says(n_columns, t):
    norms = np.linalg.norm(np.random.default_rng(0).standard_normal((100_000, n_columns)), axis=1)
    assert 0 < (norms > xi(n_columns, t)).mean() <= math.exp(-t)


def test_kernel_error_of_noisy_rows_is_equation_24():
    sigma_xi, theta = 0.1 * math.sqrt(20), 0.8
    by_hand = ((sigma_xi + math.sqrt(2) * theta) ** 2 - 2 * theta**2) / 1.5**2 + 0.05
    assert kernel_error_of_noisy_rows(0.1, **DATA, reconstruction_error=0.05) == pytest.approx(by_hand)
    assert kernel_error_of_noisy_rows(0.0, **DATA) == 0.0


def test_reconstruction_error_is_the_last_term_of_equation_24():
    assert reconstruction_error(0.1, n_atoms=16, max_code_norm=0.5) == pytest.approx((4 * 0.5 + 1) * 0.1)


@pytest.mark.parametrize("seed", range(5))
def test_theorem_3_1_bounds_the_error_of_the_reconstructed_kernel(seed):
    generator = np.random.default_rng(seed)
    rows = load_iris().data
    rows = rows - rows.mean(axis=0)
    bandwidth, sigma = pdist(rows).mean(), 0.05
    noisy = rows + generator.normal(scale=sigma, size=rows.shape)
    dictionary = rows.std(axis=0) * generator.standard_normal((40, 4))
    codes, residual = factorised(noisy, dictionary, bandwidth)
    error = np.abs(codes @ kernel(dictionary, dictionary, bandwidth) @ codes.T - kernel(rows, rows, bandwidth)).max()
    bound = kernel_error_of_noisy_rows(
        sigma,
        n_columns=4,
        bandwidth=bandwidth,
        max_norm=np.linalg.norm(rows, axis=1).max(),
        t=math.log(150 * 149 / 1e-3),
        reconstruction_error=reconstruction_error(
            residual, n_atoms=40, max_code_norm=np.linalg.norm(codes, axis=1).max()
        ),
    )
    assert 0 < error <= bound


def test_the_bound_for_rows_is_reached_to_a_factor_of_three_by_two_far_rows_in_one_column():
    # Kernel values far out on the tail would hardly change: a wide kernel is where the bound is nearly tight.
    theta, sigma, bandwidth, t = 1.0, 0.1, 20.0, 2.0
    noise = np.random.default_rng(0).normal(scale=sigma, size=(200_000, 2))
    distances = np.abs(2 * theta + noise[:, 0] - noise[:, 1])
    errors = np.abs(np.exp(-(distances**2) / (2 * bandwidth**2)) - np.exp(-((2 * theta) ** 2) / (2 * bandwidth**2)))
    bound = kernel_error_of_noisy_rows(sigma, n_columns=1, bandwidth=bandwidth, max_norm=theta, t=t)
    reached = np.quantile(errors, 1 - math.exp(-t))
    assert bound / 3 < reached <= bound


@FACTS
@given(
    room=st.floats(1e-6, 1.0),
    n_columns=st.integers(1, 1000),
    bandwidth=st.floats(0.01, 100),
    max_norm=st.floats(0, 100),
    t=st.floats(0, 30),
    rest=st.floats(0, 0.5),
)
def test_at_the_largest_noise_the_kernel_error_is_the_separation(room, n_columns, bandwidth, max_norm, t, rest):
    options = {"n_columns": n_columns, "bandwidth": bandwidth, "max_norm": max_norm, "t": t}
    options["reconstruction_error"] = rest
    largest = largest_data_noise(room + rest, **options)
    assert kernel_error_of_noisy_rows(largest, **options) == pytest.approx(room + rest, rel=1e-9)
    assert kernel_error_of_noisy_rows(1.01 * largest, **options) > room + rest


def test_largest_data_noise_is_equation_30():
    by_hand = (math.sqrt(1.5**2 * 0.2 + 2 * 0.8**2) - math.sqrt(2) * 0.8) / math.sqrt(20)
    assert largest_data_noise(0.3, **DATA, reconstruction_error=0.1) == pytest.approx(by_hand)


@pytest.mark.parametrize("b_1", [-0.5, 0.0, 0.1])
def test_no_noise_satisfies_a_bound_without_room(b_1):
    assert largest_data_noise(b_1, **DATA, reconstruction_error=0.1) == 0.0


@FACTS
@given(
    epsilon=st.floats(0.01, 1), smaller=st.floats(0.1, 0.99), delta=st.floats(1e-9, 0.1), max_norm=st.floats(0.01, 100)
)
def test_more_privacy_needs_more_noise(epsilon, smaller, delta, max_norm):
    noise = smallest_data_noise(epsilon, delta, max_norm)
    assert smallest_data_noise(smaller * epsilon, delta, max_norm) == pytest.approx(noise / smaller)
    assert smallest_data_noise(epsilon, smaller * delta, max_norm) > noise
    assert smallest_data_noise(epsilon, delta, smaller * max_norm) == pytest.approx(noise * smaller)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_the_smallest_data_noise_is_private_by_an_accountant_too(epsilon, delta):
    # Replacing a row moves it by twice its largest norm.
    multiplier = smallest_data_noise(epsilon, delta, max_norm=3.0) / 6.0
    assert multiplier == pytest.approx(math.sqrt(2 * math.log(1.25 / delta)) / epsilon)
    assert dp_accounting.get_epsilon_gaussian(multiplier, delta) <= epsilon


def test_the_range_is_made_of_both_bounds():
    found = data_noise_range(0.5, 1e-5, 0.6, **DATA, reconstruction_error=0.1)
    assert found.smallest == smallest_data_noise(0.5, 1e-5, 0.8)
    assert found.largest == largest_data_noise(0.6, **DATA, reconstruction_error=0.1)
    assert found.is_empty


def test_a_wide_kernel_leaves_a_range_of_noise():
    found = data_noise_range(1.0, 1e-5, 0.6, n_columns=1, bandwidth=1000.0, max_norm=1.0, t=1.0)
    assert found.smallest < found.largest
    assert not found.is_empty


def test_a_range_without_an_inside_is_empty():
    # The smallest noise itself is not private: c² must exceed 2 ln(1.25 / delta).
    assert NoiseRange(1.0, 1.0).is_empty
    assert NoiseRange(2.0, 1.0).is_empty
    assert not NoiseRange(1.0, 2.0).is_empty


@FACTS
@given(
    epsilon=st.floats(0.01, 1),
    delta=st.floats(1e-9, 0.999),
    n_columns=st.integers(1, 1000),
    t=st.floats(0, 30),
    share=st.floats(0.01, 1),
)
def test_the_range_is_empty_at_any_bandwidth_up_to_the_diameter(epsilon, delta, n_columns, t, share):
    found = data_noise_range(epsilon, delta, 0.75, n_columns=n_columns, bandwidth=2 * share, max_norm=1.0, t=t)
    assert found.is_empty
    assert found.largest < 0.83
    assert found.smallest > 1.33


def slow_separation(rows, labels, bandwidth, n_neighbors, tolerance):
    largest = -np.inf
    for i, x in enumerate(rows):
        distances = [np.inf if j == i else np.linalg.norm(x - y) for j, y in enumerate(rows)]
        inter, intra = [], []
        for j in np.argsort(distances, kind="stable")[:n_neighbors]:
            value = math.exp(-(distances[j] ** 2) / (2 * bandwidth**2))
            (intra if labels[i] == labels[j] else inter).append(value)
        largest = max(largest, max(inter, default=0.0) - min(intra, default=0.0))
    return tolerance / 2 - largest / 4


@pytest.mark.parametrize("n_neighbors", [1, 3, 10, 39])
@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
def test_separation_is_that_of_a_loop_over_rows(n_neighbors, spread, monkeypatch):
    generator = np.random.default_rng(n_neighbors)
    labels = generator.integers(3, size=40)
    rows = generator.standard_normal((40, 3)) + spread * labels[:, None]
    expected = slow_separation(rows, labels, 1.7, n_neighbors, 0.3)
    options = {"bandwidth": 1.7, "n_neighbors": n_neighbors, "tolerance": 0.3}
    assert separation(rows, labels, **options) == pytest.approx(expected, abs=1e-12)
    assert separation(rows + 1e6, labels, **options) == pytest.approx(expected, abs=1e-7)
    monkeypatch.setattr(tradeoff, "BLOCK_ENTRIES", 7 * 3 * n_neighbors)
    assert separation(rows, labels, **options) == pytest.approx(expected, abs=1e-12)


def test_separation_of_rows_far_from_the_origin_is_that_of_rows_near_it():
    generator = np.random.default_rng(0)
    labels = generator.integers(3, size=200)
    rows = generator.standard_normal((200, 30)) + labels[:, None]
    options = {"bandwidth": 5.0, "n_neighbors": 5, "tolerance": 0.3}
    assert separation(rows + 1e8, labels, **options) == pytest.approx(separation(rows, labels, **options), abs=1e-6)


def test_separation_of_two_pairs():
    rows = np.array([[0.0], [1.0], [10.0], [11.0]])
    within = math.exp(-0.5)
    # The nearest neighbour is of the own class: nothing of another class comes near.
    assert separation(rows, np.array([0, 0, 1, 1]), bandwidth=1.0, n_neighbors=1, tolerance=0.2) == pytest.approx(
        0.1 + within / 4
    )
    # It is of another class: nothing of the own class comes near.
    assert separation(rows, np.array([0, 1, 0, 1]), bandwidth=1.0, n_neighbors=1, tolerance=0.2) == pytest.approx(
        0.1 - within / 4
    )


def test_equal_rows_are_neighbours_of_each_other_and_not_of_themselves():
    rows = np.zeros((4, 2))
    labels = np.arange(4)
    assert separation(rows, labels, bandwidth=1.0, n_neighbors=2, tolerance=0.0) == pytest.approx(-0.25)


def test_any_kernel_error_up_to_a_safe_separation_leaves_the_order_within_the_tolerance():
    generator = np.random.default_rng(0)
    labels = np.repeat([0, 1], 30)
    rows = generator.normal(scale=0.3, size=(60, 2)) + 2 * labels[:, None]
    tolerance, bandwidth, n_neighbors = 0.1, 1.0, 35
    bound = separation(rows, labels, bandwidth=bandwidth, n_neighbors=n_neighbors, tolerance=tolerance)
    assert bound >= tolerance / 2  # the safe side: no inter-class value exceeds an intra-class one
    true = kernel(rows, rows, bandwidth)
    own = labels[:, None] == labels
    worst = true + np.where(own, -bound, bound)
    np.fill_diagonal(true, -np.inf)
    neighbors = np.argsort(-true, axis=1)[:, :n_neighbors]
    for i, of_row in enumerate(neighbors):
        inter, intra = of_row[~own[i, of_row]], of_row[own[i, of_row]]
        assert worst[i, inter].max() - worst[i, intra].min() <= tolerance


def test_factor_error_is_that_of_theorem_3_8_with_the_columns_in_the_noise_of_an_atom():
    xi_d = math.sqrt(9 + 2 * 6 + 8)
    of_an_atom = math.sqrt(2 * (1 - math.exp(-(0.1**2) * 20 / (2 * 1.5**2))))
    by_hand = 0.05 + 3 * (0.02 * xi_d + 0.7 * of_an_atom)
    assert factor_error(0.1, 0.02, **FACTORS, residual=0.05) == pytest.approx(by_hand)
    assert factor_error(0.0, 0.0, **FACTORS) == 0.0
    assert kernel_error_of_noisy_factors(0.3) == pytest.approx(0.3 * 2.3)


@pytest.mark.parametrize("seed", range(5))
def test_theorem_3_8_bounds_the_error_of_the_reconstructed_kernel(seed):
    generator = np.random.default_rng(seed)
    rows = load_iris().data
    bandwidth, of_dictionary, of_codes = pdist(rows).mean(), 0.02, 0.001
    dictionary = rows.mean(axis=0) + rows.std(axis=0) * generator.standard_normal((20, 4))
    codes, residual = factorised(rows, dictionary, bandwidth, regularization=0.1)
    noisy_codes = codes + generator.normal(scale=of_codes, size=codes.shape)
    noisy_dictionary = dictionary + generator.normal(scale=of_dictionary, size=dictionary.shape)
    found = noisy_codes @ kernel(noisy_dictionary, noisy_dictionary, bandwidth) @ noisy_codes.T
    error = np.abs(found - kernel(rows, rows, bandwidth)).max()
    gamma = factor_error(
        of_dictionary,
        of_codes,
        n_atoms=20,
        n_columns=4,
        bandwidth=bandwidth,
        max_code_norm=np.linalg.norm(codes, axis=1).max(),
        t=math.log((150 + 20) / 1e-3),
        residual=residual,
    )
    assert 0 < error <= kernel_error_of_noisy_factors(gamma)


def test_the_noise_of_many_columns_breaks_the_bound_as_printed_and_not_ours():
    # Two equal atoms, each the code of one row: noise of 1000 columns drives them apart.
    generator = np.random.default_rng(0)
    bandwidth = math.sqrt(1000)
    atoms = generator.standard_normal((2, 1000))
    error = 1.0 - kernel(atoms, atoms, bandwidth)[0, 1]
    options = {"n_atoms": 2, "bandwidth": bandwidth, "max_code_norm": 1.0, "t": 1.0}
    printed = factor_error(1.0, 0.0, n_columns=2, **options)
    assert error > 2 * kernel_error_of_noisy_factors(printed)
    assert error <= kernel_error_of_noisy_factors(factor_error(1.0, 0.0, n_columns=1000, **options))


@FACTS
@given(
    dictionary_noise=st.floats(0, 2),
    code_noise=st.floats(0, 2),
    more=st.floats(0.01, 1),
    residual=st.floats(0, 1),
)
def test_factor_error_grows_with_either_noise(dictionary_noise, code_noise, more, residual):
    error = factor_error(dictionary_noise, code_noise, **FACTORS, residual=residual)
    assert factor_error(dictionary_noise + more, code_noise, **FACTORS, residual=residual) > error
    assert factor_error(dictionary_noise, code_noise + more, **FACTORS, residual=residual) > error
    assert error >= residual


@FACTS
@given(b_1=st.floats(0, 10))
def test_the_largest_factor_error_solves_equation_35(b_1):
    gamma = largest_factor_error(b_1)
    assert gamma >= 0
    assert gamma**2 + 2 * gamma - b_1 == pytest.approx(0, abs=1e-12)
    assert kernel_error_of_noisy_factors(gamma) == pytest.approx(b_1)


def test_the_largest_factor_error_of_three_is_one_and_of_nothing_is_none():
    assert largest_factor_error(3.0) == pytest.approx(1.0)
    assert largest_factor_error(0.0) == 0.0
    assert largest_factor_error(-0.5) == 0.0


@pytest.mark.parametrize("kind", [0, 1])
def test_factor_noise_is_useful_up_to_the_noise_at_which_the_kernel_error_is_the_separation(kind):
    noise = [0.0, 0.0]
    noise[kind] = 0.01
    b_1 = kernel_error_of_noisy_factors(factor_error(*noise, **FACTORS, residual=0.02))
    assert factor_noise_is_useful(*noise, b_1 * (1 + 1e-9), **FACTORS, residual=0.02)
    assert not factor_noise_is_useful(*noise, b_1 * (1 - 1e-6), **FACTORS, residual=0.02)
    noise[kind] = 0.011
    assert not factor_noise_is_useful(*noise, b_1, **FACTORS, residual=0.02)


def test_exact_factors_are_useful_unless_the_separation_is_negative():
    assert factor_noise_is_useful(0.0, 0.0, 0.0, **FACTORS)
    assert not factor_noise_is_useful(0.0, 0.0, -0.1, **FACTORS)


def test_smallest_dictionary_noise_is_that_of_theorem_3_9():
    sensitivity = 2 * 3 * 0.25 * 1.0 * 0.5 / 4.0 * (1 + (1.0 + 3.0) * (1.0 + 4.0) / 4.0)
    by_hand = math.sqrt(8 * 10 * sensitivity**2 * math.log(math.e + 2.0 / 1e-5) / 2.0**2)
    assert smallest_dictionary_noise(2.0, 1e-5, **DICTIONARY) == pytest.approx(by_hand)


def test_a_dictionary_whose_delta_is_large_has_the_noise_of_theorem_3_9_too():
    ratio = smallest_dictionary_noise(0.5, 0.9, **DICTIONARY) / smallest_dictionary_noise(0.5, 0.1, **DICTIONARY)
    assert ratio == pytest.approx(math.sqrt(math.log(math.e + 0.5 / 0.9) / math.log(math.e + 5.0)))


def test_smallest_code_noise_is_that_of_theorem_3_9():
    by_hand = 2 * math.sqrt(2 * math.log(1.25 / 1e-5)) / 0.5 * 3 * 1.0 * (1.0 + 3.0) / (4.0 * 0.5)
    assert smallest_code_noise(0.5, 1e-5, **CODES) == pytest.approx(by_hand)


def test_the_smallest_code_noise_covers_the_replacement_of_any_row():
    # The sensitivity of lemma J.1, by trying: noise / multiplier is at least what a code moves.
    generator = np.random.default_rng(0)
    dictionary = generator.standard_normal((6, 2))
    rows = generator.standard_normal((300, 2))
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
    codes, _ = factorised(rows, dictionary, 1.0, regularization=0.1)
    options = {"n_atoms": 6, "bandwidth": 1.0, "regularization": 0.1, "max_norm": 1.0}
    noise = smallest_code_noise(1.0, 1e-5, **options, max_distance=cdist(dictionary, rows).max())
    assert pdist(codes).max() <= noise / math.sqrt(2 * math.log(1.25 / 1e-5))


def refused(function, *arguments, sentence, **options):
    with pytest.raises(ValueError, match=sentence):
        function(*arguments, **options)


@pytest.mark.parametrize(
    "function", [lambda e, d: smallest_data_noise(e, d, 1.0), lambda e, d: smallest_code_noise(e, d, **CODES)]
)
def test_the_closed_formula_is_refused_above_an_epsilon_of_one(function):
    refused(function, 1.01, 1e-5, sentence=r"epsilon is 1.01; .* holds up to 1\. The strategy .* dp-accounting")
    refused(function, 0.0, 1e-5, sentence="epsilon is 0.0; it must be a finite number above 0")
    refused(function, 0.5, 0.0, sentence="delta is 0.0; it must be a finite number above 0 and below 1")
    refused(function, 0.5, 1.0, sentence="delta is 1.0")


@pytest.mark.parametrize(
    ("function", "arguments", "options", "wrong"),
    [
        (xi, (), {"n_columns": 4, "t": 1.0}, {"n_columns": 0, "t": -1.0}),
        (kernel_error_of_noisy_rows, (0.1,), DATA, {"bandwidth": 0.0, "max_norm": -1.0, "reconstruction_error": -1.0}),
        (largest_data_noise, (0.1,), DATA, {"bandwidth": 0.0, "max_norm": -1.0, "reconstruction_error": -1.0}),
        (largest_data_noise, (-0.1,), DATA, {"t": -1.0, "n_columns": 0}),
        (factor_error, (0.1, 0.1), FACTORS, {"n_atoms": 0, "bandwidth": 0.0, "max_code_norm": -1.0, "residual": -1.0}),
        (reconstruction_error, (0.1,), {"n_atoms": 4, "max_code_norm": 1.0}, {"n_atoms": 1.5, "max_code_norm": -1.0}),
        (
            smallest_dictionary_noise,
            (2.0, 1e-5),
            DICTIONARY,
            {"n_rounds": 0, "n_atoms": 0, "step_size": 0.0, "bandwidth": 0.0, "max_norm": -1.0, "max_code_norm": -1.0}
            | {"max_dictionary_norm": -1.0, "max_distance": -1.0},
        ),
        (
            smallest_code_noise,
            (0.5, 1e-5),
            CODES,
            {"n_atoms": 0, "bandwidth": 0.0, "regularization": 0.0, "max_norm": -1.0, "max_distance": -1.0},
        ),
    ],
)
def test_a_parameter_out_of_its_range_is_named(function, arguments, options, wrong):
    for name, value in wrong.items():
        refused(function, *arguments, **options | {name: value}, sentence=f"{name} is {value}; it must be")


@pytest.mark.parametrize(
    ("function", "arguments", "options", "name"),
    [
        (kernel_error_of_noisy_rows, (-0.1,), DATA, "data_noise"),
        (largest_data_noise, (math.nan,), DATA, "separation"),
        (factor_error, (-0.1, 0.0), FACTORS, "dictionary_noise"),
        (factor_error, (0.0, -0.1), FACTORS, "code_noise"),
        (kernel_error_of_noisy_factors, (-0.1,), {}, "factor_error"),
        (largest_factor_error, (math.nan,), {}, "separation"),
        (smallest_data_noise, (0.5, 1e-5, -1.0), {}, "max_norm"),
        (smallest_dictionary_noise, (0.0, 1e-5), DICTIONARY, "epsilon"),
        (smallest_dictionary_noise, (2.0, 0.0), DICTIONARY, "delta"),
        (reconstruction_error, (-0.1,), {"n_atoms": 4, "max_code_norm": 1.0}, "residual"),
    ],
)
def test_an_argument_out_of_its_range_is_named(function, arguments, options, name):
    refused(function, *arguments, **options, sentence=f"{name} is .*; it must be a finite number")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"bandwidth": 0.0}, "bandwidth is 0.0; it must be a finite number above 0"),
        ({"tolerance": -0.1}, "tolerance is -0.1; it must be a finite number at least 0"),
        ({"n_neighbors": 0}, "n_neighbors is 0; it must be an integer, 1 or more"),
        ({"n_neighbors": 5}, "n_neighbors is 5; 5 rows allow 4 at most"),
        ({"labels": np.zeros(4, dtype=int)}, "There are 4 labels for 5 rows; give one a row"),
    ],
)
def test_separation_says_what_does_not_fit(wrong, sentence):
    options = {"labels": np.zeros(5, dtype=int), "bandwidth": 1.0, "n_neighbors": 2, "tolerance": 0.1} | wrong
    refused(separation, np.arange(10.0).reshape(5, 2), **options, sentence=sentence)
