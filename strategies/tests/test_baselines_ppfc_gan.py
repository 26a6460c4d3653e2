import sys

import numpy as np
import pytest
from sklearn.datasets import make_blobs

from flower_fedclust.checking import watched_run
from flower_fedclust.engine import ClientData, DataError
from flower_fedclust.simulation import simulate
from flower_fedclust_papers.encoded_model import EncodedModel
from flower_fedclust_papers.ppfc_gan import PPFCGAN

pytest.importorskip("torch")

K = 4
ROWS, CLASSES = make_blobs(480, n_features=5, centers=K, random_state=1)
PARTS = np.array_split(np.random.default_rng(0).permutation(len(ROWS)), 4)
CLIENTS = [ROWS[part] for part in PARTS]

#: Little training, for what does not depend on how good the result is.
SHORT = {"n_epochs": 2, "n_pretraining_epochs": 2, "n_targets": 1}


def recorded(clients=CLIENTS, seed=0, **options):
    """The synthetic rows of each client, and the result."""
    data = {str(index): ClientData(rows) for index, rows in enumerate(clients)}
    run = watched_run(PPFCGAN(K, **(SHORT | options)), data, seed=seed)
    (number,) = run.rounds
    return [reply.arrays[0] for reply in run.received[number]], run.result


@pytest.fixture(scope="module")
def result():
    """Of two clients, as each trains a network."""
    strategy = PPFCGAN(K, n_epochs=5, n_pretraining_epochs=15)
    return simulate(strategy, [ROWS[::2], ROWS[1::2]], labels=[CLASSES[::2], CLASSES[1::2]], seed=0)


# How good it is


@pytest.mark.long
def test_blobs_are_found_whichever_client_has_which():
    halves = np.arange(0, 480, 2), np.arange(1, 480, 2)
    for parts in (halves, [np.flatnonzero(index == CLASSES) for index in range(K)]):
        strategy = PPFCGAN(K, n_epochs=150, n_pretraining_epochs=200)
        clients, labels = [ROWS[part] for part in parts], [CLASSES[part] for part in parts]
        assert simulate(strategy, clients, labels=labels, seed=0).metrics["nmi"] > 0.9


def test_model_labels_new_rows_as_it_labels_the_clients_rows(result):
    assert isinstance(result.model, EncodedModel)
    assert result.model.latent_centers_.shape == (K, 5)  # codes are no longer than rows
    for rows, labels in zip([ROWS[::2], ROWS[1::2]], result.labels, strict=True):
        np.testing.assert_array_equal(result.model.predict(rows), labels)


# What leaves a client


@pytest.mark.parametrize(("n_synthetic", "sizes"), [(None, [40, 120, 7]), (25, [25, 25, 25])])
def test_client_makes_as_many_rows_as_it_has_or_as_it_is_told_and_none_is_a_true_row(
    n_synthetic, sizes
):
    made, _ = recorded([CLIENTS[0][:40], CLIENTS[1], CLIENTS[2][:7]], n_synthetic=n_synthetic)
    assert [len(rows) for rows in made] == sizes
    assert not {tuple(row) for row in ROWS} & {tuple(row) for rows in made for row in rows}


def test_clients_with_equal_rows_make_different_rows():
    (first, second), _ = recorded([CLIENTS[0], CLIENTS[0]])
    assert not np.array_equal(first, second)


def test_report_says_that_nothing_covers_the_synthetic_rows(result):
    report = result.privacy
    assert not report.covers_everything
    assert [(message.task, message.reveals) for message in report.unprotected] == [
        ("synthetic_rows", "codes")
    ]
    assert any("A GAN can repeat the rows" in note for note in report.notes)


# Unusual rows


def test_client_with_one_row_fails_and_gets_labels_all_the_same():
    _, result = recorded([CLIENTS[0], CLIENTS[1], ROWS[:1]])
    assert [failure.client for failure in result.failures] == ["2"]
    assert len(result.labels[2]) == 1


def test_constant_column_stays_constant():
    made, result = recorded([np.column_stack([rows, np.full(len(rows), 7.0)]) for rows in CLIENTS])
    assert all((rows[:, -1] == 7.0).all() for rows in made)
    assert result.model.origin_[-1] == 7.0


def test_fewer_synthetic_rows_than_clusters_are_refused():
    with pytest.raises(DataError, match="n_synthetic"):
        simulate(PPFCGAN(9, n_synthetic=2, **SHORT), CLIENTS, seed=0)


def test_a_missing_pytorch_is_reported_before_anything_is_sent(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(DataError, match=r"flower-fedclust\[deep\]"):
        simulate(PPFCGAN(K), CLIENTS, seed=0)
