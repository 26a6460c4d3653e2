"""run_app(): a strategy in a ServerApp of one's own, with its result at hand and saved."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from flwr.server import ServerConfig
from flwr.server.compat import start_grid
from flwr.serverapp import Grid
from rich.console import Console

from flower_fedclust.engine import MessageStrategy, ProtocolStrategy
from flower_fedclust.harness.show import run_and_save, show_all
from flower_fedclust.inputs import Strategy, strategy_of
from flower_fedclust.results.result import Result, result_of

#: Where results go unless ``out`` says otherwise. The working directory is that in which somebody once started the
#: SuperLink, and nobody would look there.
RESULTS = Path.home() / "fedclust-results"


#: How long a round may take where nobody says, in seconds: as long as under Flower's Message API.
ROUND_TIMEOUT = 3600.0


def run_app(
    strategy: Strategy | MessageStrategy,
    grid: Grid,
    *,
    out: str | Path | None = None,
    round_timeout: float | None = ROUND_TIMEOUT,
    journal: str | Path | None = None,
    **parameters: Any,
) -> Result:
    """Run a strategy over the nodes of a ServerApp; print its result and save it.

    A run begins when no further node has appeared for a second, unless the strategy's ``expected_clients`` says how
    many there will be.

    Parameters
    ----------
    strategy : ProtocolStrategy, class or str; or MessageStrategy
        A MessageStrategy runs by Flower's Message API, anything else by its Strategy API. The result is the same.
    grid : Grid
        What Flower gives to the ServerApp.
    out : str or Path, optional
        A new folder for the result; "" or None makes one in ``~/fedclust-results`` that is named after the time.
    round_timeout : float, default=3600
        How long a round may take, in seconds; whoever has not answered by then is left out of it. None waits for as
        long as Flower keeps a message.
    journal : str or Path, optional
        A folder for what the server receives. If a run was interrupted, the same call continues it.
    **parameters
        Parameters of a strategy that is given by name or as a class.

    Returns
    -------
    Result

    Raises
    ------
    FileExistsError
        If the folder already holds something; before anything runs.
    ProtocolError
        If too few clients were left. What had left the clients by then is saved as a privacy report.

    Examples
    --------
    ::

        @app.main()
        def main(grid, context):
            strategy = fc.PrivateKMeans(n_clusters=8, epsilon=1.0, max_norm=10.0)
            result = fc.run_app(strategy, grid)
            print(result.model.cluster_centers_)
    """
    protocol: Any = strategy.strategy if isinstance(strategy, MessageStrategy) else strategy_of(strategy, parameters)
    if protocol.expected_clients is None:
        protocol.expected_clients = settled_number_of_nodes(grid, longest=protocol.wait_for_clients) or None

    def run(protocol: ProtocolStrategy) -> Result:
        start = time.perf_counter()
        if isinstance(strategy, MessageStrategy):
            strategy.start(grid, timeout=math.inf if round_timeout is None else round_timeout)
        else:
            config = ServerConfig(num_rounds=protocol.num_rounds, round_timeout=round_timeout)
            start_grid(grid=grid, strategy=protocol, config=config)
        return result_of(protocol, {}, time.perf_counter() - start)

    results, path, failed = run_and_save([protocol], run, out, parent=RESULTS, journal=journal)
    n_clients = max((len(result.names) for result in results), default=0)
    show_all(results, f"{n_clients} clients, {protocol.n_clusters} clusters", path, Console(), failed)
    return results[0]


def settled_number_of_nodes(grid: Grid, *, quiet: float = 1.0, longest: float = 60.0) -> int:
    """Return how many nodes there are: those of a simulation appear one after the other while the server begins.

    Parameters
    ----------
    grid : Grid
    quiet : float, default=1
        For how many seconds no other has to appear.
    longest : float, default=60
        For how many seconds to wait for a first one.
    """
    start = since = time.monotonic()
    n_nodes = 0
    while time.monotonic() - since < (quiet if n_nodes else longest) and time.monotonic() - start < longest + quiet:
        former, n_nodes = n_nodes, len(list(grid.get_node_ids()))
        if n_nodes != former:
            since = time.monotonic()
        time.sleep(0.05)
    return n_nodes
