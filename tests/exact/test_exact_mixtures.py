"""Gaussian mixtures on a grid: the formulas, and the same bits in every batch."""

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import multivariate_normal

from flower_fedclust.exact.mixtures import (
    STRUCTURES,
    in_two_parts,
    log_densities,
    moments,
    responsibilities,
    second_moments,
    structure_named,
    whitened,
    whitening_of,
)
from flower_fedclust.exact.rows import Frame

K, D = 3, 4
RNG = np.random.default_rng(0)
ROWS = Frame(np.zeros(D), 10.0).rows(RNG.normal(size=(500, D)) * 2)
MEANS = RNG.normal(size=(K, D))
ROOTS = np.linalg.cholesky(
    np.einsum("jab,jcb->jac", *[RNG.normal(size=(K, D, D))] * 2) + 0.1 * np.eye(D)
)
WEIGHTS = np.array([0.2, 0.3, 0.5])


def densities(integers, factors):
    whitening, constants = whitening_of(WEIGHTS, factors)
    offsets = whitened(integers, MEANS, whitening, ROWS.exponent)
    return offsets, log_densities(offsets, constants)


@pytest.mark.parametrize("factors", [ROOTS, np.abs(ROOTS[:, 0]) + 0.5])
def test_log_densities_are_those_of_gaussians(factors):
    covariances = [np.diag(one**2) if one.ndim == 1 else one @ one.T for one in factors]
    plain = np.transpose(
        [
            multivariate_normal(m, c).logpdf(ROWS.values)
            for m, c in zip(MEANS, covariances, strict=True)
        ]
    )
    _, found = densities(ROWS.integers, factors)
    np.testing.assert_allclose(
        found - D / 2 * np.log(2 * np.pi), plain + np.log(WEIGHTS), rtol=1e-4, atol=1e-4
    )
    np.testing.assert_allclose(
        responsibilities(found), softmax(found, axis=1), rtol=1e-12, atol=1e-300
    )


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_row_has_the_same_bits_in_every_batch(structure):
    def vectors(integers):
        offsets, found = densities(integers, ROOTS)
        return moments(offsets, responsibilities(found), structure, 1.5)

    together = vectors(ROWS.integers)
    for step in (1, 7, 64):
        apart = [
            vectors(ROWS.integers[start : start + step]) for start in range(0, len(ROWS), step)
        ]
        assert np.array_equal(np.concatenate(apart), together)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_moments_are_sums_over_memberships(structure):
    offsets, found = densities(ROWS.integers, ROOTS)
    weights = responsibilities(found)
    products = np.einsum("jna,jnb->jnab", offsets, offsets) - np.eye(D)
    squares = second_moments(offsets, "full")
    np.testing.assert_allclose((squares**2).sum(axis=2), (products**2).sum(axis=(2, 3)))
    added = moments(offsets, weights, structure, 2.0).sum(axis=0)
    np.testing.assert_allclose(added[:K], 2 * weights.sum(axis=0))
    np.testing.assert_allclose(
        added[K : K + K * D].reshape(K, D), 2 * np.einsum("nj,jna->ja", weights, offsets)
    )
    rest = np.einsum("nj,jna->ja", weights, np.einsum("jnaa->jna", products))
    if structure == "diag":
        np.testing.assert_allclose(added[K + K * D :].reshape(K, D), rest)
    elif structure == "spherical":
        np.testing.assert_allclose(added[K + K * D :], rest.sum(axis=1) / 2)
    else:
        trace = np.equal(*np.triu_indices(D))
        of_all = rest.sum(axis=0) if structure == "tied" else rest
        np.testing.assert_allclose(
            added[K + K * D :].reshape(*of_all.shape[:-1], -1)[..., trace], of_all
        )


def test_far_rows_belong_to_a_component_and_stay_finite():
    far = np.array([[1.0, -1.0, 0.0, 0.0]]) * 2.0**24
    offsets, found = densities(far, ROOTS * 1e-150)
    assert np.isfinite(moments(offsets, responsibilities(found), "full", 1.0)).all()
    np.testing.assert_allclose(responsibilities(found).sum(axis=1), 1.0)


def test_two_parts_hold_every_bit_of_a_float():
    values = RNG.normal(size=(50, 6)) * np.logspace(-6, 2, 6)
    high, low = in_two_parts(values, 1e4)
    exact = [float(sum(map(int, column))) for column in np.round(values.T * 2.0**66).astype(object)]
    np.testing.assert_allclose(
        high.array.values + low.array.values, np.array(exact) * 2.0**-66, rtol=1e-15, atol=1e-17
    )


def test_a_message_that_names_no_structure_is_refused():
    with pytest.raises(ValueError, match="banded"):
        structure_named("banded")
