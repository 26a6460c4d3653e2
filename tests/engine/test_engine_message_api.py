"""The adapter to Flower's Message API, over a Grid that hands each message to a ClientApp in this process."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_iris

from flower_fedclust.checking import LocalGrid
from flower_fedclust.engine import ClientData, MessageStrategy, ProtocolError, client_app
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.feddp_kmeans import FedDPKMeans


@pytest.fixture
def parts():
    rows, labels = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(rows))
    return rows[order[:30]], np.split(rows[order[30:]], 4), np.split(labels[order[30:]], 4)


def app_for(clients, labels):
    def load(context):
        index = context.node_config["partition-id"]
        return ClientData(clients[index], labels[index])

    return client_app(FedDPKMeans.client_type, load)


def test_the_message_api_finds_the_inline_result(parts):
    public, clients, labels = parts
    strategy = FedDPKMeans(
        3, server_data=public, epsilon=None, n_rounds=2, random_state=0, federated_evaluation=True
    )
    result = MessageStrategy(strategy).start(LocalGrid(app_for(clients, labels), 4))

    inline = simulate(strategy, clients, labels=labels)
    np.testing.assert_array_equal(
        strategy.outcome.model.cluster_centers_, inline.model.cluster_centers_
    )
    np.testing.assert_array_equal(
        result.arrays.to_numpy_ndarrays()[0], inline.model.cluster_centers_
    )
    assert strategy.evaluation["nmi"] == pytest.approx(inline.metrics["nmi"])
    assert strategy.evaluation["cost"] == pytest.approx(inline.metrics["cost"])
    assert len(result.evaluate_metrics_clientapp) == 1


def test_a_run_with_too_few_rounds_is_an_error_and_no_success(parts):
    public, clients, labels = parts
    strategy = FedDPKMeans(3, server_data=public, epsilon=None, n_rounds=2, random_state=0)
    with pytest.raises(
        ProtocolError, match=r"had 2 rounds .*leave num_rounds out of MessageStrategy"
    ):
        MessageStrategy(strategy).start(LocalGrid(app_for(clients, labels), 4), num_rounds=2)


def test_a_node_that_answers_with_an_error_is_reported_and_survived(parts):
    public, clients, labels = parts
    strategy = FedDPKMeans(3, server_data=public, epsilon=None, random_state=0)
    MessageStrategy(strategy).start(LocalGrid(app_for(clients, labels), 4, silent=[1]))

    without = simulate(strategy, [clients[0], clients[2], clients[3]])
    np.testing.assert_array_equal(
        strategy.outcome.model.cluster_centers_, without.model.cluster_centers_
    )
    assert len(strategy.failures) == 1
    assert "gone" in strategy.failures[0].reason
