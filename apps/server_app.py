"""The ServerApp: runs the strategies of the run config one after the other, prints and saves their results."""

from __future__ import annotations

from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from apps.config import given, parameters, rows_choice, settings, strategy_names, text
from flower_fedclust.harness.run import (
    RESULTS,
    run_and_save,
    run_on_grid,
    settled_number_of_nodes,
    show_all,
)
from flower_fedclust.inputs import read_inputs
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
    inputs = read_inputs(
        names,
        rows_choice(config, n_nodes),
        parameters(config),
        describe=bool(config["describe"]),
        floor=int(config["floor"]),
        settings=settings(config, n_nodes),
        several=True,
    )
    rows: Any = inputs.rows
    clients, timeout = inputs.clients, float(config["round-timeout"])
    results, path, failed = run_and_save(
        inputs.strategies,
        lambda strategy: run_on_grid(strategy, grid, timeout, clients),
        text(config, "out"),
        parent=RESULTS,
        labels=rows.labels,
        journal=text(config, "journal"),
    )
    n_clients = max((len(result.names) for result in results), default=0)
    title = f"{config['dataset'] or 'rows of the SuperNodes'}: {n_clients} clients, {config['n-clusters']} clusters"
    show_all(results, title, path, Console(), failed)
