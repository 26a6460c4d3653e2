"""SPP-FGC+: rounds of training, what the clients keep and send, and what is said of its privacy."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from flower_fedclust.data import Table, load_dataset, partition
from flower_fedclust.engine import ClientData
from flower_fedclust.numerics.structural_graph import client_graph
from flower_fedclust.simulation import simulate
from flower_fedclust_papers import spp_fgc_plus
from flower_fedclust_papers.networks.vae import trained_vae
from flower_fedclust_papers.spp_fgc_plus import SPPFGCPlus

torch = pytest.importorskip("torch")

DIGITS = load_digits()
FEW = {"n_rounds": 3, "n_pretraining_rounds": 3, "n_local_steps": 20, "n_hidden": 64}
TINY = {"n_rounds": 1, "n_pretraining_rounds": 1, "n_local_steps": 2, "n_hidden": 8, "n_latent": 3}


@pytest.fixture(scope="module")
def digits():
    chosen = np.random.default_rng(0).permutation(len(DIGITS.data))[:800]
    return partition(Table(DIGITS.data[chosen] / 16.0, DIGITS.target[chosen]), "iid", n_clients=4)


@pytest.fixture(scope="module")
def found(digits):
    return simulate(SPPFGCPlus(10, random_state=0, **FEW), digits.clients, labels=digits.labels)


@pytest.fixture(scope="module")
def blobs():
    rng = np.random.default_rng(1)
    means = np.array([[0.0, 0, 0], [9.0, 0, 0], [0.0, 9, 0]])
    return [
        np.concatenate([rng.normal(mean, 1.0, size=(15, 3)) for mean in means]) for _ in range(3)
    ]


def test_a_few_rounds_on_digits_lower_the_loss_and_find_the_digits(found):
    assert found.history["reconstruction"][-1] < found.history["reconstruction"][0]
    assert len(found.history["clustering"]) == FEW["n_rounds"]
    # Chance is 0.1, and about 0.15 after the matching of clusters and classes.
    assert found.metrics["accuracy"] > 0.6
    assert found.metrics["nmi"] > 0.6


def test_the_model_places_rows_that_were_not_there(found, digits):
    placed = np.concatenate([found.model.predict(rows) for rows in digits.clients])
    assert np.mean(placed == np.concatenate(found.labels)) > 0.8
    assert found.model.encode(digits.clients[0]).shape == (len(digits.clients[0]), 10)


def test_clients_train_with_the_layers_and_the_clusters_that_they_were_sent(blobs, monkeypatch):
    seen, begun = [], []

    def watched(rows, layers, **options):
        trained = trained_vae(rows, layers, **options)
        begun.append(layers[0])
        seen.append((options, trained.layers, len(rows)))
        return trained

    monkeypatch.setattr(spp_fgc_plus, "trained_vae", watched)
    strategy = SPPFGCPlus(3, random_state=0, **(TINY | {"n_rounds": 2, "n_latent": 2}))
    result = simulate(strategy, blobs)
    assert len(seen) == 3 * (1 + 2)
    assert "centers" not in seen[0][0]
    for options, _, n_rows in seen[3:]:
        assert options["centers"].shape == (3, 2)
        assert options["labels"].shape == (n_rows,)
    for first in (0, 3, 6):
        assert all(np.array_equal(begun[first], other) for other in begun[first : first + 3])
        assert len({options["random_state"] for options, _, _ in seen[first : first + 3]}) == 3
    means = [
        np.mean([layers[0] for _, layers, _ in seen[first : first + 3]], axis=0)
        for first in (0, 3, 6)
    ]
    np.testing.assert_allclose(begun[3], means[0], atol=1e-6)
    np.testing.assert_allclose(result.model.layers_[0], means[2], atol=1e-6)


def test_where_a_code_is_as_wide_as_a_row_the_first_graph_is_that_of_the_rows(blobs):
    result = simulate(
        SPPFGCPlus(3, random_state=0, **(TINY | {"n_rounds": 0, "n_hidden": 6})), blobs
    )
    tasks = {message.task for message in result.privacy.messages}
    assert "encoded_graph" in tasks
    assert not tasks & {"trained_layers", "frame_products"}
    rows = np.concatenate(blobs)
    np.testing.assert_allclose(
        result.model.encode(rows), (rows - rows.mean(axis=0)) / rows.std(axis=0).mean(), rtol=0.2
    )


@pytest.mark.parametrize(
    ("change", "n_latent"),
    [({"n_hidden": 128}, 27), ({"n_hidden": 40}, 20), ({"n_hidden": 8}, 10), ({"n_latent": 3}, 3)],
)
def test_codes_of_wide_rows_hold_most_of_their_variance(change, n_latent):
    # As long in every direction: 27 of 38 hold 70%.
    wide = np.random.default_rng(0).standard_normal((4, 500, 38))
    clients = [
        rows - rows.mean(axis=0)
        for rows in np.linalg.qr(wide.reshape(2000, 38))[0].reshape(4, 500, 38)
    ]
    strategy = SPPFGCPlus(2, random_state=0, n_rounds=0, n_pretraining_rounds=0, **change)
    assert simulate(strategy, clients).model.latent_centers_.shape == (2, n_latent)


@pytest.mark.parametrize("n_latent", [10, 11])
def test_codes_of_more_than_10_numbers_are_joined_as_far_as_they_share_neighbors(n_latent):
    Z = np.random.default_rng(0).normal(size=(60, n_latent))
    wanted = {"n_clusters": 2, "n_neighbors": 5, "n_prototypes": 4, "random_state": 0}
    sent = (
        SPPFGCPlus.client_type(ClientData(Z), name="a", context=None)
        ._graph(Z, **wanted)[2]
        .reshape(60, 5)
    )
    graph = client_graph(Z, 2, 5)
    expected = graph.by_shared_neighbors() if n_latent > 10 else graph
    np.testing.assert_array_equal(sent, expected.weights.astype(np.float32))
    assert (graph.by_shared_neighbors().weights < graph.weights).any()


def test_moons_stay_whole_through_the_rounds():
    table = load_dataset("moons", n_rows=400)
    parts = partition(table, "iid", n_clients=2, random_state=0)
    strategy = SPPFGCPlus(2, random_state=0, n_rounds=3, n_local_steps=30, n_hidden=32)
    assert simulate(strategy, parts.clients, labels=parts.labels).metrics["accuracy"] > 0.97


def test_nothing_is_promised_with_or_without_noise(blobs):
    for change in ({}, {"epsilon": 10.0}):
        report = simulate(SPPFGCPlus(3, random_state=0, **TINY, **change), blobs).privacy
        assert not report.covers_everything
        assert report.releases == []
        assert report.guarantee().startswith("None.")
        assert "Graphs and the prototype of each row leave the client as they are" in str(report)
        assert ("That proves nothing" in str(report)) == bool(change)


def test_fewer_rows_than_clusters_is_one_sentence():
    rows = [np.array([[0.0, 1], [1, 0]]), np.array([[2.0, 2], [1, 1]])]
    with pytest.raises(ValueError, match="n_clusters"):
        simulate(SPPFGCPlus(6, random_state=0, **TINY), rows)


def test_without_torch_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    rows = [np.random.default_rng(i).normal(size=(9, 2)) for i in range(2)]
    with pytest.raises(ValueError, match="PyTorch"):
        simulate(SPPFGCPlus(2), rows)
