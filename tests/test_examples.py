"""The strategies in examples/, which show authors what a method of their own takes."""

import sys
from pathlib import Path

import numpy as np
import pytest

import flower_fedclust as fc
from flower_fedclust import authoring

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from von_mises_fisher import SphericalMixture, SphericalMixtureClient


@pytest.fixture(scope="module")
def directions():
    rng = np.random.default_rng(0)
    means = np.linalg.qr(rng.normal(size=(6, 3)))[0].T
    classes = rng.integers(3, size=(4, 500))
    rows = means[classes] + rng.normal(scale=0.2, size=(4, 500, 6))
    return list(rows / np.linalg.norm(rows, axis=2, keepdims=True)), list(classes)


def test_an_em_step_of_the_mixture_is_that_of_the_densities(directions):
    (rows, *_), _ = directions
    rng = np.random.default_rng(1)
    means, shares, kappa = rng.normal(size=(3, 6)), np.array([0.2, 0.3, 0.5]), 7.0
    means /= np.linalg.norm(means, axis=1)[:, None]
    question = SphericalMixtureClient.expectation.asked(
        means, shares, frame=authoring.Frame(np.zeros(6), 1.0), concentration=kappa
    )
    sums, weights = (array.values for array in question.asks.reply(question, rows))
    density = shares * np.exp(kappa * rows @ means.T)
    expected = density / density.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(weights, expected.sum(axis=0), atol=0.02)
    np.testing.assert_allclose(sums, expected.T @ rows, atol=0.02)


@pytest.mark.parametrize("epsilon", [None, 2.0])
def test_the_mixture_finds_planted_directions(directions, epsilon):
    rows, classes = directions
    strategy = SphericalMixture(3, epsilon=epsilon, random_state=1)
    found = fc.simulate(strategy, rows, labels=classes, seed=0, progress=False)
    assert found.metrics["accuracy"] > 0.99


@pytest.mark.long
@pytest.mark.parametrize("unit", ["record", "client"])
def test_the_mixture_keeps_its_promises_for_rows_and_for_clients(unit):
    fc.check_strategy(SphericalMixture(3, epsilon=8.0, privacy_unit=unit))
