"""The adapter to Flower's Message API, over a Grid that hands each message to a ClientApp in this process."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from sklearn.datasets import load_iris

import flower_fedclust as fc


class LocalGrid(Grid):
    """Nodes with ids far from their partitions', as in a deployment."""

    def __init__(self, app, n_nodes, silent=()):
        self.app = app
        self.silent = set(silent)
        self.contexts = {
            9000 - index: Context(1, 9000 - index, UserConfig({"partition-id": index}), RecordDict(), UserConfig())
            for index in range(n_nodes)
        }

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def get_nodes(self):
        raise NotImplementedError

    def push_messages(self, messages):
        raise NotImplementedError

    def pull_messages(self, message_ids):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.contexts)

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = str(node)
            message.metadata.__dict__["_run_id"] = 1
            if self.contexts[node].node_config["partition-id"] in self.silent:
                replies.append(Message(Error(code=0, reason="gone"), reply_to=message))
            else:
                replies.append(self.app(message, self.contexts[node]))
        return reversed(replies)


@pytest.fixture
def parts():
    rows, labels = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(rows))
    return rows[order[:30]], np.split(rows[order[30:]], 4), np.split(labels[order[30:]], 4)


@pytest.fixture(autouse=True)
def running_task():
    """What Flower sets in the process of a ServerApp."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


def app_for(clients, labels):
    def load(context):
        index = context.node_config["partition-id"]
        return fc.ClientData(clients[index], labels[index])

    return fc.client_app(fc.FedDPKMeans.client_type, load)


def test_the_message_api_finds_the_inline_result(parts):
    public, clients, labels = parts
    strategy = fc.FedDPKMeans(
        3, server_data=public, epsilon=None, n_rounds=2, random_state=0, federated_evaluation=True
    )
    result = fc.MessageStrategy(strategy).start(LocalGrid(app_for(clients, labels), 4))

    inline = fc.simulate(strategy, clients, labels=labels)
    np.testing.assert_array_equal(strategy.outcome.model.cluster_centers_, inline.model.cluster_centers_)
    np.testing.assert_array_equal(result.arrays.to_numpy_ndarrays()[0], inline.model.cluster_centers_)
    assert strategy.evaluation["nmi"] == pytest.approx(inline.metrics["nmi"])
    assert strategy.evaluation["cost"] == pytest.approx(inline.metrics["cost"])
    assert len(result.evaluate_metrics_clientapp) == 1


def test_a_node_that_answers_with_an_error_is_reported_and_survived(parts):
    public, clients, labels = parts
    strategy = fc.FedDPKMeans(3, server_data=public, epsilon=None, random_state=0)
    fc.MessageStrategy(strategy).start(LocalGrid(app_for(clients, labels), 4, silent=[1]))

    without = fc.simulate(strategy, [clients[0], clients[2], clients[3]])
    np.testing.assert_array_equal(strategy.outcome.model.cluster_centers_, without.model.cluster_centers_)
    assert len(strategy.failures) == 1
    assert "gone" in strategy.failures[0].reason
