"""Find clusters, then train a model that uses them by FedAvg, in one app: Flower's Message API."""

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from task import N_CLASSES, N_CLUSTERS, N_WEIGHTS, accuracy, load, private_clusters, trained

import flower_fedclust as fc

# The mod answers the strategy that finds clusters. All other messages reach the functions below.
client = ClientApp(mods=[fc.client_mod(fc.PrivateKMeans.client_type, load)])
server = ServerApp()


def read(message: Message) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights and the centers in a message."""
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    return weights, np.reshape(message.content["config"]["centers"], (N_CLUSTERS, -1))


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train on this site's rows."""
    (weights, centers), data = read(message), load(context)
    metrics = MetricRecord({"num-examples": len(data.rows)})
    arrays = ArrayRecord([trained(weights, centers, data)])
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Say how often the model is right on this site's rows."""
    (weights, centers), data = read(message), load(context)
    metrics = MetricRecord(
        {"num-examples": len(data.rows), "accuracy": accuracy(weights, centers, data)}
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Find the clusters, then train with their centers."""
    clusters = fc.run_app(
        fc.MessageStrategy(private_clusters()), grid, out=str(context.run_config["out"])
    )
    centers = ConfigRecord({"centers": clusters.model.cluster_centers_.ravel().tolist()})
    result = FedAvg(min_train_nodes=2).start(
        grid,
        ArrayRecord([np.zeros((N_WEIGHTS, N_CLASSES))]),
        num_rounds=int(context.run_config["train-rounds"]),
        train_config=centers,
        evaluate_config=centers,
    )
    for number, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {number}: accuracy {metrics['accuracy']:.3f}")
