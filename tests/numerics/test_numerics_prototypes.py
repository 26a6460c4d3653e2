import numpy as np
import pytest
from scipy.stats import multivariate_normal

from flower_fedclust.numerics.prototypes import (
    COVARIANCE_FLOOR,
    Prototypes,
    kullback_leibler,
    log_densities,
    mean_distances,
    nearest_covariances,
    prototypes_of,
    shrunk,
)

RNG = np.random.default_rng(7)
ROWS = RNG.normal(size=(60, 4)) @ RNG.normal(size=(4, 4)) + 100.0
LABELS = np.repeat([2, 0, 1, 3], [20, 25, 14, 1])


def random_prototypes(n_prototypes=5, n_columns=3, *, diagonal=False, seed=0):
    rng = np.random.default_rng(seed)
    means = 2.0 * rng.normal(size=(n_prototypes, n_columns))
    counts = rng.uniform(1, 50, n_prototypes)
    if diagonal:
        return Prototypes(means, rng.uniform(0.2, 3.0, (n_prototypes, n_columns)), counts)
    roots = rng.normal(size=(n_prototypes, n_columns, n_columns))
    return Prototypes(means, roots @ roots.transpose(0, 2, 1) + 0.3 * np.eye(n_columns), counts)


def as_full(prototypes):
    """The same prototypes, their variances written as matrices."""
    return Prototypes(
        prototypes.means, np.array([np.diag(v) for v in prototypes.covariances]), prototypes.counts
    )


def slow_divergence(prototypes, a, b):
    """Equation (10), one pair at a time."""
    S, T = prototypes.covariances[a], prototypes.covariances[b]
    difference = prototypes.means[b] - prototypes.means[a]
    inverse = np.linalg.inv(T)
    logarithm = np.linalg.slogdet(T)[1] - np.linalg.slogdet(S)[1]
    return 0.5 * (
        np.trace(inverse @ S) + difference @ inverse @ difference - len(difference) + logarithm
    )


# Means, covariances and counts


def test_prototypes_are_numpys_means_and_covariances():
    found = prototypes_of(ROWS, LABELS)
    np.testing.assert_array_equal(found.counts, [25, 14, 20, 1])
    for label, rows in enumerate([ROWS[20:45], ROWS[45:59], ROWS[:20], ROWS[59:]]):
        np.testing.assert_allclose(found.means[label], rows.mean(axis=0), rtol=1e-13)
        np.testing.assert_allclose(found.covariances[label], np.cov(rows.T, bias=True), atol=1e-11)
    assert len(found) == 4
    assert not found.is_diagonal


# Covariances that can be inverted


@pytest.mark.parametrize("deviation", [None, 0.0, 1.7])
@pytest.mark.parametrize("diagonal", [False, True])
def test_shrinkage_is_its_formula(diagonal, deviation):
    found = prototypes_of(ROWS, LABELS, diagonal=diagonal)
    eye = np.ones(4) if diagonal else np.eye(4)
    S_mean = sum(n * S for n, S in zip(found.counts, found.covariances, strict=True)) / 60
    s = (S_mean if diagonal else np.diag(S_mean)).mean()
    given = None if deviation is None else np.full(4, deviation)
    shrinkage = shrunk(found, noise_deviation=given, floor=0.02)
    for n, S, got in zip(found.counts, found.covariances, shrinkage.covariances, strict=True):
        w = n / (n + (2 if diagonal else 5))
        w *= s**2 / (s**2 + (deviation or 0.0) ** 2)
        np.testing.assert_allclose(
            got, w * S + (1 - w) * S_mean + 0.02 * s * eye, rtol=1e-10, atol=1e-12
        )
    assert shrinkage.means is found.means
    assert shrinkage.counts is found.counts


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize(
    "case", ["fewer rows than columns", "one row", "a column is constant", "a cluster is constant"]
)
def test_shrunk_covariances_have_an_inverse(diagonal, case):
    rows, labels = {
        "fewer rows than columns": (ROWS[:6], np.array([0, 0, 0, 1, 1, 1])),
        "one row": (ROWS[:5], np.array([0, 0, 0, 0, 1])),
        "a column is constant": (ROWS * [1, 1, 1, 0], LABELS),
        "a cluster is constant": (np.where((LABELS == 1)[:, None], 3.0, ROWS), LABELS),
    }[case]
    found = prototypes_of(rows, labels, diagonal=diagonal)
    shrinkage = shrunk(found)
    spread = np.average(found.variances, axis=0, weights=found.counts).mean()
    least = (
        shrinkage.covariances.min() if diagonal else np.linalg.eigvalsh(shrinkage.covariances).min()
    )
    assert least >= COVARIANCE_FLOOR * spread * (1 - 1e-9)
    assert np.isfinite(kullback_leibler(shrinkage)).all()
    assert np.isfinite(log_densities(rows, shrinkage)).all()


@pytest.mark.parametrize("diagonal", [False, True])
def test_rows_that_are_all_equal_have_the_identity_for_covariance(diagonal):
    with np.errstate(all="raise"):
        found = shrunk(
            prototypes_of(np.full((6, 3), 2.0), np.array([0, 0, 1, 1, 1, 1]), diagonal=diagonal)
        )
    eye = np.ones(3) if diagonal else np.eye(3)
    np.testing.assert_array_equal(found.covariances, [eye, eye])
    found.covariances[0] = 7.0  # an array of its own
    np.testing.assert_array_equal(found.covariances[1], eye)


def test_shrinkage_does_not_depend_on_units():
    one, other = shrunk(prototypes_of(ROWS, LABELS)), shrunk(prototypes_of(1e-3 * ROWS, LABELS))
    np.testing.assert_allclose(other.covariances, 1e-6 * one.covariances, rtol=1e-9, atol=1e-18)


# Repair


def test_nearest_covariances_are_the_frobenius_projection():
    rng = np.random.default_rng(0)
    noisy = rng.normal(size=(6, 4, 4))
    noisy += noisy.transpose(0, 2, 1)
    repaired = nearest_covariances(noisy)
    np.testing.assert_array_equal(repaired, repaired.transpose(0, 2, 1))
    for before, after in zip(noisy, repaired, strict=True):
        values, vectors = np.linalg.eigh(before)
        assert values.min() < 0
        expected = sum(
            value * np.outer(v, v) for value, v in zip(values, vectors.T, strict=True) if value > 0
        )
        np.testing.assert_allclose(after, expected, atol=1e-12)
        assert np.linalg.eigvalsh(after).min() > -1e-12
        # What was taken off is orthogonal to it, and no covariance is nearer.
        assert np.sum((before - after) * after) == pytest.approx(0.0, abs=1e-10)
        for _ in range(50):
            root = rng.normal(size=(4, 4))
            assert np.linalg.norm(before - root @ root.T) >= np.linalg.norm(before - after)


# Divergences


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_kullback_leibler_is_equation_10_for_every_pair(diagonal, offset):
    found = random_prototypes(diagonal=diagonal)
    found = Prototypes(found.means + offset, found.covariances, found.counts)
    full = as_full(found) if diagonal else found
    expected = [[slow_divergence(full, a, b) for b in range(5)] for a in range(5)]
    divergences = kullback_leibler(found)
    np.testing.assert_allclose(divergences, expected, rtol=1e-8, atol=1e-11)
    assert not divergences.diagonal().any()
    assert np.abs(divergences - divergences.T).max() > 0.1


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_distances_of_means_are_symmetric_and_those_of_a_loop(offset):
    found = random_prototypes()
    moved = Prototypes(found.means + offset, found.covariances, found.counts)
    distances = mean_distances(moved)
    np.testing.assert_array_equal(distances, distances.T)
    slow = [[((one - other) ** 2).sum() for other in found.means] for one in found.means]
    np.testing.assert_allclose(distances, slow, rtol=1e-6)
    equal = Prototypes(np.full((4, 3), 0.1 + offset), np.ones((4, 3)), np.ones(4))
    assert not mean_distances(equal).any()


def test_divergences_do_not_change_with_the_coordinates():
    found = random_prototypes()
    map_, shift = RNG.normal(size=(3, 3)), RNG.normal(size=3)
    mapped = Prototypes(
        found.means @ map_.T + shift, map_ @ found.covariances @ map_.T, found.counts
    )
    np.testing.assert_allclose(kullback_leibler(mapped), kullback_leibler(found), rtol=1e-8)
    diagonal = random_prototypes(diagonal=True)
    units = np.array([1e-3, 2.0, 50.0])
    changed = Prototypes(diagonal.means * units, diagonal.covariances * units**2, diagonal.counts)
    np.testing.assert_allclose(kullback_leibler(changed), kullback_leibler(diagonal), rtol=1e-9)


# Densities


@pytest.mark.parametrize("diagonal", [False, True])
def test_log_densities_are_scipys(diagonal):
    found = random_prototypes(diagonal=diagonal)
    full = as_full(found) if diagonal else found
    rows = np.random.default_rng(1).normal(size=(30, 3)) * 3
    expected = np.column_stack(
        [
            np.log(count) + multivariate_normal(mean, covariance).logpdf(rows)
            for mean, covariance, count in zip(
                full.means, full.covariances, full.counts, strict=True
            )
        ]
    )
    np.testing.assert_allclose(log_densities(rows, found), expected, rtol=1e-10)
