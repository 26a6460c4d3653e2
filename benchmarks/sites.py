"""What the policy and the ledger of a site cost: runs of 100 sites with and without them.

    OMP_NUM_THREADS=1 python benchmarks/sites.py [N_ROWS]

Every site has N_ROWS rows (20,000) of 50 columns, a policy and a ledger, and waits for the disk before an answer
leaves. All sites share one process and one disk. They are asked one after another, where every wait counts, and
several at a time, as Flower does by default. Processor time, which other programs hardly change, is printed beside.
So are the time that a process for each message takes before it does anything, as in a deployment, and the cost of a
ledger of 10,000 answers.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict
from flwr.app.user_config import UserConfig
from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes
from flwr.server import Server, SimpleClientManager
from flwr.server.client_proxy import ClientProxy

import flower_fedclust as fc
from flower_fedclust.engine import client_fn
from flower_fedclust.site.app import Site
from flower_fedclust.site.ledger import Ledger
from flower_fedclust.site.policy import SiteSettings

N_SITES, N_COLUMNS, N_RUNS = 100, 50, 3


class Proxy(ClientProxy):
    """A client in this process, called as Flower's server calls it."""

    def __init__(self, index: int, make: Any) -> None:
        super().__init__(str(index))
        self.node_id = index
        self.make = make
        config = UserConfig({"name": str(index)})
        self.context = Context(
            1, index, config, RecordDict(), UserConfig({"strategy": "private-kmeans"})
        )

    def fit(self, ins: FitIns, **_: Any) -> FitRes:  # type: ignore[override]
        return self.make(self.context).fit(ins)  # type: ignore[no-any-return]

    def evaluate(self, ins: EvaluateIns, **_: Any) -> EvaluateRes:  # type: ignore[override]
        return self.make(self.context).evaluate(ins)  # type: ignore[no-any-return]

    def get_properties(self, ins: Any, timeout: float | None, group_id: int | None) -> Any:
        raise NotImplementedError

    get_parameters = reconnect = get_properties


def run(makers: list[Any], at_a_time: int | None) -> tuple[float, float, int]:
    """Return seconds, processor seconds and the number of messages of a run."""
    strategy = fc.PrivateKMeans(8, epsilon=1.0, max_norm=10.0, noise="local", random_state=0)
    manager = SimpleClientManager()
    for index, make in enumerate(makers):
        manager.register(Proxy(index, make))
    server = Server(client_manager=manager, strategy=strategy)
    server.set_max_workers(at_a_time)
    start, of_processor = time.perf_counter(), time.process_time()
    server.fit(num_rounds=strategy.num_rounds, timeout=None)
    return time.perf_counter() - start, time.process_time() - of_processor, len(strategy.traffic)


def main(n_rows: int) -> None:
    rng = np.random.default_rng(0)
    tables = [fc.ClientData(rng.normal(size=(n_rows, N_COLUMNS))) for _ in range(N_SITES)]
    plain = [
        client_fn(fc.PrivateKMeans.client_type, lambda _, table=table: table) for table in tables
    ]
    for at_a_time in (1, None):
        seconds: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
        for _ in range(N_RUNS):
            *found, n_messages = run(plain, at_a_time)
            seconds["without"].append(found)
            with tempfile.TemporaryDirectory() as folder:
                sites = [
                    Site(
                        SiteSettings(
                            name=str(index), data="none", folder=str(Path(folder) / str(index))
                        ),
                        lambda table=table: table,
                    )
                    for index, table in enumerate(tables)
                ]
                for site in sites:
                    site.create_ledger()
                seconds["with"].append(run([site.client for site in sites], at_a_time)[:2])
                assert all(len(site.ledger.read()) == n_messages // N_SITES for site in sites)
        (before, cpu_before), (after, cpu_after) = (
            np.median(seconds[name], axis=0) for name in ("without", "with")
        )
        order = "one after the other" if at_a_time else "several at a time"
        print(
            f"{N_SITES} sites of {n_rows:,} rows, {order}, {n_messages:,} messages, medians of {N_RUNS} runs:"
        )
        print(f"  without policy and ledger {before:8.2f} s, {cpu_before:.2f} s of the processor")
        print(
            f"  with both                 {after:8.2f} s, {after / before - 1:+.1%}, "
            f"{1000 * (after - before) / n_messages:.2f} ms a message; of the processor {cpu_after:.2f} s, "
            f"{cpu_after / cpu_before - 1:+.1%}, {1000 * (cpu_after - cpu_before) / n_messages:.2f} ms a message"
        )
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", "import flwr.supernode.cli, flower_fedclust.site.supernode"],
        check=True,
    )
    print(
        f"  a process of Flower's for a message, before it does anything: {time.perf_counter() - start:.2f} s"
    )
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger.jsonl")
        ledger.create()
        entry = {"run": "r", "text": "x" * 800}  # the length of a real entry
        start = time.perf_counter()
        with ledger.locked():
            for _ in range(10_000):
                ledger.append(entry)
        written = time.perf_counter() - start
        start = time.perf_counter()
        Ledger(ledger.path).read()
        print(
            f"  a ledger of 10,000 answers: written in {written:.2f} s, checked in {time.perf_counter() - start:.2f} s"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
