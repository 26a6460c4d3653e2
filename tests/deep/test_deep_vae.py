"""The variational autoencoder of SPP-FGC+: what it learns, and that it learns the same every time."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

torch = pytest.importorskip("torch")

from flower_fedclust.deep.clustering_autoencoder import soft_assignment, target_distribution  # noqa: E402
from flower_fedclust.deep.vae import codes_of, encoder_of, new_vae, trained_vae  # noqa: E402

ROWS = load_digits().data[:300] / 16.0
ROWS = (ROWS - ROWS.mean(axis=0)) / ROWS.std()


@pytest.fixture(scope="module")
def first():
    return new_vae(64, 4, 32, random_state=0)


@pytest.fixture(scope="module")
def pretrained(first):
    return trained_vae(ROWS, first, n_steps=150, random_state=1)


def mean_divergence(codes, centers):
    """KL(P || Q) of a row, for the target of these codes."""
    Q = soft_assignment(codes, centers)
    P = target_distribution(Q)
    return float(np.mean(np.sum(P * np.log(P / Q), axis=1)))


def test_everybody_with_the_seed_has_the_same_first_layers(first):
    again, other = new_vae(64, 4, 32, random_state=0), new_vae(64, 4, 32, random_state=1)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])
    assert [layer.shape for layer in first] == [(64, 32), (32,), (32, 8), (8,), (4, 32), (32,), (32, 64), (64,)]


def test_the_loss_falls_and_codes_tell_rows_apart(pretrained):
    losses = pretrained.reconstruction
    assert losses[-1] < 0.75 * losses[0]
    assert pretrained.clustering == []
    assert (codes_of(ROWS, pretrained.layers).std(axis=0) > 0.3).sum() >= 2  # a code that says nothing is all prior


def test_the_codes_are_the_means_that_torch_computes(pretrained):
    weights = [torch.tensor(layer) for layer in pretrained.layers[:4]]
    hidden = torch.relu(torch.tensor(ROWS) @ weights[0] + weights[1])
    expected = (hidden @ weights[2] + weights[3])[:, :4].numpy()
    np.testing.assert_allclose(codes_of(ROWS, pretrained.layers), expected, atol=1e-10)
    assert [layer.shape for layer in encoder_of(pretrained.layers)] == [(64, 32), (32,), (32, 4), (4,)]


def test_training_repeats_bit_for_bit_and_leaves_what_it_was_given(first):
    before = [layer.copy() for layer in first]
    state = torch.get_rng_state()
    n_threads = torch.get_num_threads()
    once, twice = (trained_vae(ROWS, first, n_steps=6, random_state=3) for _ in range(2))
    other = trained_vae(ROWS, first, n_steps=6, random_state=4)
    assert all(np.array_equal(a, b) for a, b in zip(once.layers, twice.layers, strict=True))
    assert not np.array_equal(once.layers[0], other.layers[0])
    assert all(np.array_equal(a, b) for a, b in zip(first, before, strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == n_threads


def test_codes_are_drawn_to_the_centers_and_the_more_the_larger_lambda_is(pretrained):
    codes = codes_of(ROWS, pretrained.layers)
    centers = codes[np.random.default_rng(0).choice(len(codes), 5, replace=False)]

    def distance(weight):
        trained = trained_vae(ROWS, pretrained.layers, n_steps=60, random_state=2, centers=centers, weight=weight)
        assert len(trained.clustering) == len(trained.reconstruction)
        moved = codes_of(ROWS, trained.layers)
        return np.mean(np.min(np.linalg.norm(moved[:, None] - centers, axis=2), axis=1))

    none, some, much = distance(0.0), distance(10.0), distance(100.0)
    assert much < some < none


def test_without_weight_the_centers_change_nothing(pretrained):
    centers = np.zeros((3, 4)) + np.arange(3)[:, None]
    without = trained_vae(ROWS, pretrained.layers, n_steps=6, random_state=2)
    weightless = trained_vae(ROWS, pretrained.layers, n_steps=6, random_state=2, centers=centers, weight=0.0)
    for a, b in zip(without.layers, weightless.layers, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_the_divergence_that_is_reported_is_that_of_equation_14(pretrained):
    codes = codes_of(ROWS, pretrained.layers)
    centers = codes[:4] + 0.1
    trained = trained_vae(ROWS, pretrained.layers, n_steps=1, random_state=2, centers=centers, weight=0.0)
    # It changes little in the three steps of one epoch.
    assert trained.clustering[0] == pytest.approx(mean_divergence(codes, centers), rel=0.1)


@pytest.mark.parametrize("rows", [ROWS[:1], np.zeros((5, 64)), np.repeat(ROWS[:1], 7, axis=0)])
def test_a_row_alone_and_rows_that_are_equal_can_be_trained_on(first, rows):
    centers = np.array([[0.0, 0, 0, 0], [1.0, 1, 1, 1]])
    trained = trained_vae(rows, first, n_steps=5, random_state=0, centers=centers, weight=10.0)
    assert all(np.isfinite(layer).all() for layer in trained.layers)
    assert np.isfinite(trained.clustering).all()
