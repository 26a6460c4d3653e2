import sys
import threading
from contextlib import suppress

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.datasets import make_blobs

from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust_papers.networks.gan import synthetic_rows
from flower_fedclust_papers.networks.layers import outputs
from flower_fedclust_papers.networks.training import (
    batches,
    layers_of,
    n_epochs_for,
    network_of,
    new_layers,
    one_torch_thread,
    torch_generator,
)

torch = pytest.importorskip("torch")

MEANS = np.array([[0.0, 0.0, 500.0], [8.0, 8.0, 500.0], [0.0, 8.0, 900.0]])
ROWS, CLASSES = make_blobs(192, centers=MEANS, random_state=0)


@pytest.fixture(scope="module")
def made():
    return synthetic_rows(ROWS, 400, random_state=0, n_epochs=350)


# The rows


def test_rows_have_about_the_moments_of_the_true_ones(made):
    assert made.shape == (400, 3)
    assert (np.abs(made.mean(axis=0) - ROWS.mean(axis=0)) < 0.25 * ROWS.std(axis=0)).all()
    np.testing.assert_allclose(made.std(axis=0), ROWS.std(axis=0), rtol=0.2)
    np.testing.assert_allclose(np.corrcoef(made.T), np.corrcoef(ROWS.T), atol=0.2)


def test_rows_are_in_all_the_clusters_and_mostly_there(made):
    scale = ROWS.std(axis=0)
    distances = cdist(made / scale, MEANS / scale)
    counts = np.bincount(distances.argmin(axis=1), minlength=3)
    assert counts.min() > 60  # of 133 each
    assert np.median(distances.min(axis=1)) < 0.6  # the means are more than 1.9 apart


def test_rows_are_not_the_true_ones_but_training_brings_them_near(made):
    untrained = synthetic_rows(ROWS, 400, random_state=0, n_epochs=1)
    scale = ROWS.std(axis=0)
    to_made, to_untrained = (
        cdist(ROWS / scale, rows / scale).min(axis=1) for rows in (made, untrained)
    )
    assert to_made.min() > 1e-6
    assert to_made.mean() < 0.5 * to_untrained.mean()


def test_seed_repeats_every_bit_and_another_gives_other_rows():
    first, second, other = (
        synthetic_rows(ROWS, 30, random_state=seed, n_epochs=3) for seed in (4, 4, 5)
    )
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_the_unit_of_a_column_is_the_unit_of_the_synthetic_column(factor):
    units = np.array([1.0, factor, 1.0])
    plain, scaled = (
        synthetic_rows(rows, 30, random_state=1, n_epochs=4) for rows in (ROWS, ROWS * units)
    )
    np.testing.assert_allclose(scaled, plain * units, rtol=1e-6)


def test_constant_column_is_the_same_constant():
    rows = np.column_stack([ROWS[:, 0], np.full(len(ROWS), 0.1), ROWS[:, 1]])
    rows_made = synthetic_rows(rows, 50, random_state=0, n_epochs=2)
    assert (rows_made[:, 1] == 0.1).all()
    assert (rows_made[:, [0, 2]].std(axis=0) > 0).all()


def test_two_distinct_rows_are_enough_and_one_is_refused():
    assert np.isfinite(synthetic_rows(ROWS[:2], 5, random_state=0, n_epochs=2)).all()
    for rows in (ROWS[:1], np.tile(ROWS[:1], (9, 1))):
        with pytest.raises(DataError, match=r"^client 7"):
            synthetic_rows(rows, 5, random_state=0, owner="client 7")


# Training with PyTorch


def test_a_missing_pytorch_is_reported_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(DataError, match=r"flower-fedclust\[deep\]"):
        synthetic_rows(ROWS, 5, random_state=0)


def test_training_leaves_torchs_own_generator_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    synthetic_rows(ROWS, 5, random_state=0, n_epochs=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_number_of_threads_is_one_inside_and_the_former_afterwards():
    counts, former = [], torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with suppress(KeyError), one_torch_thread():
            with one_torch_thread():
                counts.append(torch.get_num_threads())
            counts.append(torch.get_num_threads())
            raise KeyError
        counts.append(torch.get_num_threads())
        with one_thread(), one_torch_thread():
            counts.append(torch.get_num_threads())
        counts.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(former)
    assert counts == [1, 1, 3, 1, 3]


def test_two_threads_do_not_train_at_once():
    inside = []

    def enter():
        with one_torch_thread():
            inside.append("other")

    with one_torch_thread():
        other = threading.Thread(target=enter)
        other.start()
        other.join(0.1)
        inside.append("first")
    other.join()
    assert inside == ["first", "other"]


def test_layers_have_the_variance_that_keeps_the_size_of_sums():
    layers = new_layers([50, 400, 300], torch_generator(0), last=0.5)
    assert [one.shape for one in layers] == [(50, 400), (400,), (400, 300), (300,)]
    assert layers[0].var() == pytest.approx(2 / 50, rel=0.05)
    assert layers[2].var() == pytest.approx(0.25 * 2 / 400, rel=0.05)
    assert not layers[1].any()
    assert not layers[3].any()


@pytest.mark.parametrize(
    ("activation", "module"), [("relu", torch.nn.ReLU()), ("tanh", torch.nn.Tanh())]
)
def test_outputs_in_numpy_equal_torchs(activation, module):
    layers = [*new_layers([3, 8], torch_generator(0)), *new_layers([8, 5, 2], torch_generator(1))]
    network = network_of(layers, module)
    with torch.no_grad():
        np.testing.assert_allclose(
            outputs(ROWS, layers, activation), network(torch.from_numpy(ROWS)).numpy(), rtol=1e-9
        )
    assert all(map(np.array_equal, layers_of(network), layers))


def test_batches_have_every_row_once_and_about_one_size():
    parts = list(batches(130, 64, torch_generator(0)))
    assert [len(part) for part in parts] == [44, 43, 43]
    assert sorted(torch.cat(parts).tolist()) == list(range(130))


@pytest.mark.parametrize(
    ("n_rows", "epochs"), [(10, 1000), (64, 1000), (65, 500), (64_000, 1), (640_000, 1)]
)
def test_few_rows_need_more_epochs(n_rows, epochs):
    assert n_epochs_for(1000, n_rows, 64) == epochs
