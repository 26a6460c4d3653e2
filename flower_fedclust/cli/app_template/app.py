"""Find clusters in the rows of all sites, while the rows stay where they are."""

from pathlib import Path

import pandas as pd
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import flower_fedclust as fc
from flower_fedclust.data import load_dataset, partition

SCHEMA = Path(__file__).with_name("columns.toml")  # the public facts about the columns


def load(context: Context) -> fc.ClientData:
    """Return the table of one site: its own file or, in a simulation, its part of a data set."""
    site = context.node_config
    if "data" in site:
        return fc.ClientData(pd.read_csv(str(site["data"])))
    rows = partition(load_dataset("iris"), "iid", n_clients=int(site["num-partitions"]))
    return fc.ClientData(
        pd.DataFrame(rows.clients[int(site["partition-id"])], columns=rows.columns)
    )


client = fc.client_app(fc.PrivateKMeans.client_type, load, consent=fc.Consent({"sums"}))
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the strategy with the settings of the run config."""
    config = context.run_config
    strategy = fc.with_schema(
        fc.PrivateKMeans(config["n-clusters"], epsilon=config["epsilon"]), SCHEMA
    )
    fc.run_app(fc.MessageStrategy(strategy), grid, out=str(config["out"]))
