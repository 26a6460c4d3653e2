"""Clusters of the rows of all sites, which stay where they are."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import flower_fedclust as fc
from flower_fedclust.data import load_dataset, partition, read_table


def load(context: Context) -> fc.ClientData:
    """Return the rows of one site: of its own file or, in a simulation, of its part of a data set."""
    site = context.node_config
    if "data" in site:
        table = read_table(str(site["data"]))
        return fc.ClientData(table.rows, columns=table.columns)
    rows = partition(load_dataset("iris"), "iid", n_clients=int(site["num-partitions"]))
    return fc.ClientData(rows.clients[int(site["partition-id"])], columns=rows.columns)


client = fc.client_app(fc.PrivateKMeans.client_type, load, consent=fc.Consent({"sums"}))
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the strategy with what the run config says."""
    config = context.run_config
    strategy = fc.PrivateKMeans(config["n-clusters"], epsilon=config["epsilon"], max_norm=config["max-norm"])
    fc.run_app(fc.MessageStrategy(strategy), grid, out=str(config["out"]))
