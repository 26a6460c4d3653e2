"""Fed-SpeClust: clusters by learned landmarks, from kernel values or from sums alone."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

from flower_fedclust import ClientData, simulate
from flower_fedclust.numerics.kernel import gaussian_kernel
from flower_fedclust.strategies.fedsc import FedSC
from flower_fedclust.strategies.maps.landmarks import Landmarks
from flower_fedclust.strategies.maps.speclust import (
    FedSpeClust,
    FedSpeClustClient,
    FedSpeClustSums,
)

RNG = np.random.default_rng(4)
MEANS = 6.0 * np.eye(4)[:3]
CLASSES = [RNG.integers(3, size=n) for n in (40, 55, 1, 64)]
CLIENTS = [MEANS[classes] + RNG.normal(size=(len(classes), 4)) for classes in CLASSES]
SMALL = {"n_landmarks": 30, "n_rounds": 4}
FORMS = (FedSpeClust, FedSpeClustSums)


def digits(one_class_each):
    bunch = load_digits()
    order = (
        np.argsort(bunch.target, kind="stable")
        if one_class_each
        else np.random.default_rng(0).permutation(1797)
    )
    parts = np.array_split(order, 10)
    return [bunch.data[part] / 16 for part in parts], [bunch.target[part] for part in parts]


@pytest.mark.long
@pytest.mark.parametrize("one_class_each", [False, True])
@pytest.mark.parametrize(
    ("strategy_type", "options", "nmi"),
    [
        (FedSpeClust, {}, 0.82),
        (FedSpeClust, {"sparsify": False}, 0.70),
        (FedSpeClustSums, {}, 0.70),
    ],
)
def test_digits_are_clustered_as_well_as_asked(strategy_type, options, nmi, one_class_each):
    clients, labels = digits(one_class_each)
    strategy = strategy_type(10, n_landmarks=100, n_rounds=20, **options)
    result = simulate(strategy, clients, labels=labels, seed=0)
    assert result.metrics["nmi"] >= nmi
    assert len(result.history["mmd"]) == 20
    assert result.history["mmd"][-1] < result.history["mmd"][0]


@pytest.mark.parametrize("strategy_type", FORMS)
def test_well_separated_clusters_are_found_and_new_rows_placed(strategy_type):
    result = simulate(strategy_type(3, **SMALL), CLIENTS, labels=CLASSES, seed=0)
    assert result.metrics["accuracy"] == 1.0
    new = MEANS[[0, 1, 2]] + 0.1
    assert len(set(result.model.predict(new))) == 3


def test_server_of_a_plain_run_can_compute_the_rows_and_the_report_says_so():
    attacks = pytest.importorskip(
        "reproduce.attacks", reason="the attacks are in flower-fedclust-papers"
    )
    rows, Y = CLIENTS[0], RNG.normal(size=(30, 4)) * 3
    client = FedSpeClustClient(ClientData(rows), name="0")
    sent = client.landmark_kernel(Y, bandwidth=4.0)
    recovered = attacks.rows_from_kernel(Y, sent, gamma=1 / (2 * 4.0**2))
    assert attacks.relative_errors(recovered, rows).max() < 1e-6
    report = simulate(FedSpeClust(3, **SMALL), CLIENTS).privacy
    assert any("The server can read the rows" in note for note in report.notes)
    assert "one per row" in {message.detail for message in report.unprotected}


def test_with_much_budget_the_private_clusters_are_those_without_noise():
    many = [np.concatenate([part] * 30) for part in CLIENTS]
    classes = [np.concatenate([part] * 30) for part in CLASSES]
    strategy = FedSpeClustSums(3, epsilon=200.0, max_norm=8.0, n_landmarks=30, n_rounds=0)
    result = simulate(strategy, many, labels=classes, seed=0)
    assert result.metrics["accuracy"] > 0.98


@pytest.mark.parametrize("gamma", [1e-12, 1e12])
@pytest.mark.parametrize("strategy_type", FORMS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_kernel_that_is_flat_or_vanishes_gives_no_nan(gamma, strategy_type):
    result = simulate(strategy_type(3, gamma=gamma, **SMALL), CLIENTS, seed=0)
    for part, labels in zip(CLIENTS, result.labels, strict=True):
        assert labels.shape == (len(part),)
        assert labels.min() >= 0
    assert np.isfinite(result.model.projection_).all()


def test_factors_reconstruct_the_kernel_of_algorithm_3():
    rows, Y = CLIENTS[0], RNG.normal(size=(20, 4)) * 3
    K, W = gaussian_kernel(rows, Y, 2.5), gaussian_kernel(Y, Y, 2.5)
    for form in FORMS:
        dictionary = form(3, n_landmarks=20, regularization=0.1).dictionary(
            Landmarks(Y, 1 / (2 * 2.5**2), 40.0)
        )
        F = K @ dictionary.factor_map(Y)
        np.testing.assert_allclose(
            F @ F.T, K @ np.linalg.inv(W + 0.1 * np.eye(20)) @ K.T, atol=1e-12
        )


def test_same_landmarks_would_give_fedsc_s_clusters():
    # Both cluster codes by the same graph: with landmarks of matched moments and no training they are one method.
    shared = {"n_rounds": 0, "random_state": 3}
    bandwidth = 2.5
    fedsc = simulate(FedSC(3, n_atoms=30, bandwidth=bandwidth, **shared), CLIENTS)
    speclust = simulate(
        FedSpeClust(3, n_landmarks=30, gamma=1 / (2 * bandwidth**2), **shared), CLIENTS
    )
    np.testing.assert_allclose(fedsc.model.dictionary_, speclust.model.dictionary_)
    pooled = [np.concatenate(result.labels) for result in (fedsc, speclust)]
    assert adjusted_rand_score(*pooled) == 1.0
