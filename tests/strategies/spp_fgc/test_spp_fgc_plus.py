"""SPP-FGC+: rounds of training, what the clients keep and send, and what is said of its privacy."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from flower_fedclust.data import Table, partition
from flower_fedclust.protocol import ClientData
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.spp_fgc import spp_fgc_plus
from flower_fedclust.strategies.spp_fgc.spp_fgc_plus import OWN_LAYERS, SPPFGCPlus

torch = pytest.importorskip("torch")

DIGITS = load_digits()
FEW = {"n_rounds": 3, "n_average_rounds": 3, "n_local_steps": 20, "n_hidden": 64}
TINY = {"n_rounds": 1, "n_average_rounds": 1, "n_local_steps": 2, "n_hidden": 8, "n_latent": 3}


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
    return [np.concatenate([rng.normal(mean, 1.0, size=(15, 3)) for mean in means]) for _ in range(3)]


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


def test_layers_stay_with_the_clients_once_the_averaging_is_over(found):
    after = [message for message in found.privacy.messages if message.task in ("encoded_graph", "tuned_graph")]
    assert after
    assert not any("weights" in m.content and "nearest rows" not in m.content for m in after)
    averaged = {message.round for message in found.privacy.messages if message.task == "trained_layers"}
    assert len(averaged) == FEW["n_average_rounds"]


def test_without_averaging_only_the_last_sum_of_encoders_leaves(blobs):
    strategy = SPPFGCPlus(3, random_state=0, **(TINY | {"n_average_rounds": 0}))
    result = simulate(strategy, blobs)
    of_layers = {m.task for m in result.privacy.messages if "encoder" in m.content or "decoder" in m.content}
    assert of_layers == {"own_encoder"}
    # Each trained alone, for long enough that they differ.
    assert result.model.n_clusters == 3


def test_a_client_keeps_its_own_layers_in_its_context(blobs, monkeypatch):
    kept = {}
    remember = SPPFGCPlus.client_type.remember

    def watched(self, key, arrays):
        kept.setdefault((self.name, key), []).append([np.array(array) for array in arrays])
        remember(self, key, arrays)

    monkeypatch.setattr(SPPFGCPlus.client_type, "remember", watched)
    simulate(SPPFGCPlus(3, random_state=0, **(TINY | {"n_rounds": 2})), blobs, names=["a", "b", "c"])
    for name in "abc":
        assert len(kept[name, OWN_LAYERS]) == 3  # the averaged ones, and those after each of two rounds
    begun = [kept[name, OWN_LAYERS][0][0] for name in "abc"]
    tuned = [kept[name, OWN_LAYERS][-1][0] for name in "abc"]
    assert np.array_equal(begun[0], begun[1])
    assert not np.array_equal(tuned[0], tuned[1])


def test_nothing_is_promised_with_or_without_noise(blobs):
    for change in ({}, {"epsilon": 10.0}):
        report = simulate(SPPFGCPlus(3, random_state=0, **TINY, **change), blobs).privacy
        assert not report.covers_everything
        assert report.releases == []
        assert report.guarantee().startswith("None.")
        assert "Graphs and the prototype of each row leave the client as they are" in str(report)
        assert ("That proves nothing" in str(report)) == bool(change)


def test_noise_on_the_prototypes_is_shared_out_over_the_rounds(blobs, monkeypatch):
    used = []

    def watched(found, epsilon, max_l1_norm, source):
        used.append(epsilon)
        return found

    monkeypatch.setattr(spp_fgc_plus, "noisy_as_in_the_paper", watched)

    def epsilon_of_a_round(n_rounds):
        used.clear()
        simulate(SPPFGCPlus(3, epsilon=10.0, random_state=0, **(TINY | {"n_rounds": n_rounds})), blobs)
        assert len(used) == 3 * (n_rounds + 1)  # every client, every round
        assert len(set(used)) == 1
        return used[0]

    # Two releases a round: for few rounds as much as the rule of the sum gives, and more for many.
    assert 10.0 / 2 <= epsilon_of_a_round(0) <= 1.1 * 10.0 / 2
    assert 10.0 / 8 <= epsilon_of_a_round(3) <= 1.5 * 10.0 / 8


def test_noise_moves_the_prototypes(blobs):
    plain, noisy = (
        simulate(SPPFGCPlus(3, random_state=0, epsilon=epsilon, **TINY), blobs, seed=0) for epsilon in (None, 0.1)
    )
    assert not np.allclose(plain.model.latent_centers_, noisy.model.latent_centers_)


def test_clients_of_one_row_and_of_equal_rows_take_part(blobs):
    clients = [*blobs, blobs[0][:1], np.repeat(blobs[0][:1], 6, axis=0)]
    result = simulate(SPPFGCPlus(3, random_state=0, **TINY), clients)
    assert [len(labels) for labels in result.labels] == [len(rows) for rows in clients]
    assert result.failures == []


def test_fewer_rows_than_clusters_is_one_sentence():
    rows = [np.array([[0.0, 1], [1, 0]]), np.array([[2.0, 2], [1, 1]])]
    with pytest.raises(ValueError, match="n_clusters is 6 and the clients have 4 rows together"):
        simulate(SPPFGCPlus(6, random_state=0, **TINY), rows)


def test_a_client_that_missed_the_training_says_so():
    client = SPPFGCPlus.client_type(ClientData(np.eye(3)), name="late", context=None)
    _, _, facts = client.fit([], {"task": "own_encoder", "round": 9, "arguments": '{"exponent": -30}'})
    assert facts["missed"]
    assert "missed the round that makes it" in facts["failure"]


def test_without_torch_it_says_what_to_install():
    code = (
        "import builtins, sys\n"
        "real = builtins.__import__\n"
        "def refused(name, *rest, **more):\n"
        "    if name == 'torch' or name.startswith('torch.'): raise ImportError(name)\n"
        "    return real(name, *rest, **more)\n"
        "builtins.__import__ = refused\n"
        "import importlib; found = importlib.import_module\n"
        "def of_module(name, *rest):\n"
        "    if name == 'torch': raise ImportError(name)\n"
        "    return found(name, *rest)\n"
        "importlib.import_module = of_module\n"
        "import numpy as np\n"
        "from flower_fedclust.simulation import simulate\n"
        "from flower_fedclust.strategies.spp_fgc.spp_fgc import SPPFGC\n"
        "from flower_fedclust.strategies.spp_fgc.spp_fgc_plus import SPPFGCPlus\n"
        "rows = [np.random.default_rng(i).normal(size=(9, 2)) for i in range(2)]\n"
        "print(simulate(SPPFGC(2), rows).model.n_clusters)\n"
        "try: simulate(SPPFGCPlus(2), rows)\n"
        "except ValueError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "2",
        'SPP-FGC+ needs PyTorch; install it with: pip install "flower-fedclust[deep]".',
    ]
