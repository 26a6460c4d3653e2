import math

import pytest

from flower_fedclust.strategies.dp_fedc import noise_multiplier, sensitivity, total_epsilon


@pytest.mark.parametrize(("G", "Q_2", "eta"), [(1.0, 1, 1.0), (0.5, 11, 250.0), (1e-3, 3, 1e-6)])
def test_sensitivity_is_equation_28(G, Q_2, eta):
    assert sensitivity(G, Q_2, eta) == pytest.approx(2 * G * Q_2 / eta, rel=1e-14)


@pytest.mark.parametrize("q", [0.02, 0.5, 1.0, 5.5])
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-4), (0.1, 1e-6), (20.0, 1e-2)])
def test_noise_is_equation_29(q, epsilon, delta):
    G, Q_2, eta = 0.7, 4, 250.0
    variance = 32 * G**2 * Q_2**2 * q**2 * math.log(1.25 * q / delta) / (eta**2 * epsilon**2)
    deviation = sensitivity(G, Q_2, eta) * noise_multiplier(q, epsilon, delta)
    assert deviation**2 == pytest.approx(variance, rel=1e-12)


def test_noise_is_that_of_lemma_1_for_an_epsilon_that_sampling_makes_smaller():
    # Theorem 1: what is (epsilon / 2q, delta / q)-private on the sampled rows is (epsilon, delta)-private on all.
    q, epsilon, delta = 0.2, 0.5, 1e-5
    inner_epsilon, inner_delta = epsilon / (2 * q), delta / q
    lemma_1 = math.sqrt(2 * math.log(1.25 / inner_delta)) / inner_epsilon
    assert noise_multiplier(q, epsilon, delta) == pytest.approx(lemma_1, rel=1e-12)


def test_noise_without_gain_by_sampling_is_more_than_lemma_1_asks_for():
    epsilon, delta = 1.0, 1e-4
    lemma_1 = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    assert noise_multiplier(0.5, epsilon, delta) == pytest.approx(lemma_1, rel=0.05)
    assert noise_multiplier(1.0, epsilon, delta) == pytest.approx(2 * lemma_1, rel=1e-12)
    assert noise_multiplier(5.5, epsilon, delta) > 11 * lemma_1


@pytest.mark.parametrize(("q", "delta"), [(1e-7, 1e-6), (0.08, 0.1), (0.4, 0.5)])
def test_noise_that_equation_29_does_not_give_is_refused(q, delta):
    with pytest.raises(ValueError, match=rf"^the sampling ratio is {q:g} and delta {delta:g}: equation \(29\) needs"):
        noise_multiplier(q, 1.0, delta)


@pytest.mark.parametrize(("q", "p", "R", "c0"), [(0.5, 0.3, 100, 1.0), (0.1, 1.0, 7, 2.5), (0.99, 0.01, 1, 0.3)])
def test_total_is_equation_32(q, p, R, c0):
    epsilon = 0.7
    expected = c0 * q**2 * epsilon * math.sqrt(p * R / (1 - q))
    assert total_epsilon(epsilon, q, p, R, c0) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("q", [1.0, 1.5, 5.5])
def test_total_is_no_number_where_all_rows_are_used(q):
    assert math.isnan(total_epsilon(1.0, q, 0.3, 100, 1.0))
