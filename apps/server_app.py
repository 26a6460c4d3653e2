"""The ServerApp: runs the strategies of the run config one after the other, prints and saves their results."""

from __future__ import annotations

from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from apps.config import given, listed, parameters, schema, settings, simulated_rows, strategy_names, text
from flower_fedclust.data import FederatedRows, read_table
from flower_fedclust.harness.run import RESULTS, run_and_save, run_on_grid, settled_number_of_nodes, show_all
from flower_fedclust.inputs import can_use_server_rows, clients_of, make_strategies
from flower_fedclust.numerics.checks import check_integer

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the strategies."""
    config = context.run_config
    names = strategy_names(config)
    simulated = str(config["dataset"]) != ""
    n_nodes = settled_number_of_nodes(grid) if simulated else given(config, "expected-clients")
    if n_nodes is not None:
        check_integer("expected-clients", n_nodes, at_least=1)
    rows = simulated_rows(config, n_nodes) if simulated else _rows_of_the_server(config, names)
    were_given = text(config, "server-data") is not None or given(config, "n-server-rows") is not None
    strategies = make_strategies(
        names,
        parameters(config),
        rows.server_rows,
        rows.server_rows_origin,
        were_given=were_given,
        schema=schema(config),
        describe=bool(config["describe"]),
        settings=settings(config, n_nodes, rows.columns),
    )
    clients, timeout = clients_of(rows), float(config["round-timeout"])
    results, path, failed = run_and_save(
        strategies,
        lambda strategy: run_on_grid(strategy, grid, timeout, clients),
        text(config, "out"),
        parent=RESULTS,
        labels=rows.labels,
        journal=text(config, "journal"),
    )
    n_clients = max((len(result.names) for result in results), default=0)
    title = f"{config['dataset'] or 'rows of the SuperNodes'}: {n_clients} clients, {config['n-clusters']} clusters"
    show_all(results, title, path, Console(), failed)


def _rows_of_the_server(config: Any, names: list[str]) -> FederatedRows:
    """Return the public rows of a deployment, whose clients' rows are elsewhere."""
    path = text(config, "server-data")
    if path is None or not can_use_server_rows(names):
        return FederatedRows(clients=[], labels=None, names=[])
    raw = text(config, "schema") is not None
    columns = listed(text(config, "columns"))
    table = read_table(path, label_column=text(config, "label-column"), columns=columns, raw=raw)
    return FederatedRows(
        clients=[],
        labels=None,
        names=[],
        columns=table.columns,
        server_rows=table.rows,
        server_rows_origin=f"They were read from {path}.",
    )
