import sys

import numpy as np
import pytest
from sklearn.datasets import make_blobs

from flower_fedclust.engine import DataError
from flower_fedclust.models import EncodedModel
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.baselines.ppfc_gan import PPFCGAN

pytest.importorskip("torch")

K = 4
ROWS, CLASSES = make_blobs(480, n_features=5, centers=K, random_state=1)
PARTS = np.array_split(np.random.default_rng(0).permutation(len(ROWS)), 4)
CLIENTS = [ROWS[part] for part in PARTS]

#: A run of little training, for what does not depend on how good it is.
SHORT = {"n_epochs": 2, "n_pretraining_epochs": 2, "n_targets": 1}


class Recorded(PPFCGAN):
    """Keeps the replies that it gathers."""

    def protocol(self):
        generator = super().protocol()
        brought = None
        while True:
            try:
                round_ = generator.send(brought)
            except StopIteration as stop:
                return stop.value
            self.brought.append(brought := (yield round_))


def recorded(clients=CLIENTS, seed=0, n_clusters=K, **options):
    strategy = Recorded(n_clusters, **(SHORT | options))
    Recorded.brought = []
    result = simulate(strategy, clients, seed=seed)
    return {reply.client: reply.arrays[0] for reply in Recorded.brought[0]}, result


def run_of_two(n_epochs, n_pretraining_epochs):
    """Two clients, as each trains a network."""
    strategy = PPFCGAN(K, n_epochs=n_epochs, n_pretraining_epochs=n_pretraining_epochs)
    return simulate(strategy, [ROWS[::2], ROWS[1::2]], labels=[CLASSES[::2], CLASSES[1::2]], seed=0)


@pytest.fixture(scope="module")
def result():
    return run_of_two(20, 60)


# How good it is


@pytest.mark.long
def test_blobs_are_found():
    result = run_of_two(150, 200)
    assert result.metrics["accuracy"] > 0.98
    assert result.metrics["nmi"] > 0.95
    assert not result.failures


@pytest.mark.long
def test_clients_with_clusters_of_their_own_are_no_harder():
    clients = [ROWS[index == CLASSES] for index in range(K)]
    labels = [CLASSES[index == CLASSES] for index in range(K)]
    strategy = PPFCGAN(K, n_epochs=60, n_pretraining_epochs=100)
    assert simulate(strategy, clients, labels=labels, seed=0).metrics["nmi"] > 0.9


def test_model_labels_rows_that_are_new_as_it_labels_the_clients(result):
    assert isinstance(result.model, EncodedModel)
    assert result.model.latent_centers_.shape == (K, 5)  # no more numbers than columns
    for rows, labels in zip([ROWS[::2], ROWS[1::2]], result.labels, strict=True):
        np.testing.assert_array_equal(result.model.predict(rows), labels)


def test_history_has_the_losses_and_the_reconstruction_gets_better(result):
    losses = result.history["reconstruction_loss"]
    assert losses[-1] < 0.1 * losses[0]
    assert 1 <= len(result.history["clustering_loss"]) <= 30


# Repeatable


def test_random_state_alone_makes_a_run_repeatable():
    first, second, other = (simulate(PPFCGAN(K, random_state=seed, **SHORT), CLIENTS).model for seed in (3, 3, 4))
    assert all(map(np.array_equal, first.to_arrays(), second.to_arrays()))
    assert not np.array_equal(first.latent_centers_, other.latent_centers_)


def test_clients_with_equal_rows_make_others():
    made, _ = recorded([CLIENTS[0], CLIENTS[0]])
    assert not np.array_equal(made["0"], made["1"])


# What leaves a client


@pytest.mark.parametrize(("n_synthetic", "sizes"), [(None, [40, 120, 7]), (25, [25, 25, 25])])
def test_client_makes_as_many_rows_as_it_has_or_as_is_said(n_synthetic, sizes):
    made, _ = recorded([CLIENTS[0][:40], CLIENTS[1], CLIENTS[2][:7]], n_synthetic=n_synthetic)
    assert [len(rows) for rows in made.values()] == sizes


def test_no_true_row_is_sent():
    made, _ = recorded()
    assert not {tuple(row) for row in ROWS} & {tuple(row) for rows in made.values() for row in rows}


def test_there_is_one_round(result):
    assert [row.task for row in result.traffic if row.client == "0"] == ["enrol", "synthetic_rows"]
    assert PPFCGAN(K).num_rounds == 2


def test_report_says_that_nothing_covers_the_synthetic_rows(result):
    report = result.privacy
    assert not report.covers_everything
    assert report.guarantee().startswith("None.")
    assert [message.content for message in report.unprotected] == ["synthetic rows that the client's GAN makes"]
    assert any("A GAN can repeat the rows that it was trained on" in note for note in report.notes)


# Edges


def test_client_with_one_row_says_so_and_the_others_go_on():
    _, result = recorded([CLIENTS[0], CLIENTS[1], ROWS[:1]])
    (failure,) = result.failures
    assert failure.reason == "client 2 has fewer than 2 different rows; a GAN could only repeat them."
    assert len(result.labels[2]) == 1  # the model labels it all the same


def test_constant_column_is_no_obstacle():
    clients = [np.column_stack([rows, np.full(len(rows), 7.0)]) for rows in CLIENTS]
    made, result = recorded(clients)
    assert all((rows[:, -1] == 7.0).all() for rows in made.values())
    assert result.model.origin_[-1] == 7.0


def test_fewer_synthetic_rows_than_clusters_are_refused_in_a_sentence():
    sentence = "the clients made 8 different synthetic rows and n_clusters is 9; ask for fewer clusters, or set n_synth"
    with pytest.raises(DataError, match=sentence):
        simulate(PPFCGAN(9, n_synthetic=2, **SHORT), CLIENTS, seed=0)


@pytest.mark.parametrize("scale", [1e-60, 1e60])
def test_scale_of_the_rows_changes_nothing_but_the_scale(scale):
    plain, scaled = (recorded([rows * by for rows in CLIENTS])[1] for by in (1.0, scale))
    assert np.mean(np.concatenate(plain.labels) == np.concatenate(scaled.labels)) > 0.99


def test_without_torch_there_is_a_sentence_before_anything_is_sent(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        DataError, match=r'^ppfc-gan needs PyTorch; install it with: pip install "flower-fedclust\[deep\]"'
    ):
        simulate(PPFCGAN(K), CLIENTS, seed=0)
