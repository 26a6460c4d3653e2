"""Find clusters, then train a model that uses them by FedAvg, in one app: Flower's Strategy API."""

import numpy as np
from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerConfig
from flwr.server.compat import start_grid
from flwr.server.strategy import FedAvg
from flwr.serverapp import Grid, ServerApp
from task import N_CLASSES, N_CLUSTERS, N_WEIGHTS, accuracy, load, private_clusters, trained

import flower_fedclust as fc


class Trainer(NumPyClient):
    """Trains on a site's rows."""

    def __init__(self, data: fc.ClientData) -> None:
        self.data = data

    def fit(self, parameters, config):
        """Return the trained weights."""
        return [trained(parameters[0], centers_in(config), self.data)], len(self.data.rows), {}

    def evaluate(self, parameters, config):
        """Return how often the model is right on this site's rows."""
        right = accuracy(parameters[0], centers_in(config), self.data)
        return 1 - right, len(self.data.rows), {"accuracy": right}


def centers_in(config) -> np.ndarray:
    """Return the centers in a message."""
    return np.frombuffer(config["centers"]).reshape(N_CLUSTERS, -1)


def client_fn(context: Context) -> Client:
    """Return the client of a site."""
    return Trainer(load(context)).to_client()


# The mod answers the strategy that finds clusters. All other messages reach the Trainer.
client = ClientApp(client_fn, mods=[fc.client_mod(fc.PrivateKMeans.client_type, load)])
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Find the clusters, then train with their centers."""
    clusters = fc.run_app(private_clusters(), grid, out=str(context.run_config["out"]))
    config = {"centers": np.ascontiguousarray(clusters.model.cluster_centers_).tobytes()}
    strategy = FedAvg(
        initial_parameters=ndarrays_to_parameters([np.zeros((N_WEIGHTS, N_CLASSES))]),
        on_fit_config_fn=lambda _: config,
        on_evaluate_config_fn=lambda _: config,
    )
    history = start_grid(
        grid=grid,
        strategy=strategy,
        config=ServerConfig(num_rounds=int(context.run_config["train-rounds"])),
    )
    for number, loss in history.losses_distributed:
        print(f"round {number}: accuracy {1 - loss:.3f}")
