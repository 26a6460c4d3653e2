"""What policy, ledger and journal take of a run's time: real processes, with them and with Flower's own SuperNodes.

    python benchmarks/overhead.py [N_SITES] [N_ROWS] [KIND ...]

One SuperLink and N_SITES (100) SuperNodes with N_ROWS (2,000) rows of 8 columns each, all on this machine, run private
federated k-means of one step: enrolment and a round. KIND "flower" is ``flower-supernode`` with the app that is
submitted, which has no policy, ledger or journal; "site" is ``fedclust site``, with a journal at the server. Printed
are the run's time from its submission to its end, and the processor time of all SuperNodes with the processes of their
messages: that is what 100 machines would share, and what one machine with few processors waits for.
"""

from __future__ import annotations

import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
from sklearn.datasets import make_blobs

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "deploy"))
one_machine = import_module("one_machine")
STRATEGY, EPSILON = "federated-kmeans-private", 8.0


class Plain(one_machine.Deployment):  # type: ignore[misc,name-defined]
    """A SuperLink and SuperNodes without TLS and keys: what these take is the same for both kinds."""

    def start_all(self, kind: str, n_sites: int) -> None:
        (self.folder / "flwr").mkdir()
        self.start(
            "superlink", self.port, str(one_machine.BIN / "flower-superlink"), "--insecure", "--port", str(self.port),
            "--disable-runtime-dependency-installation",
        )  # fmt: skip
        (self.folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        for index in range(n_sites):
            port, folder = one_machine.free_port(), self.folder / f"{index}"
            common = ["--insecure", "--superlink", f"127.0.0.1:{self.port}", "--port", str(port)]
            if kind == "site":
                command = [str(one_machine.BIN / "fedclust"), "site", str(folder / "site.toml"), *common]
            else:
                about = f'data="{folder / "table.csv"}" name="{index}"'
                command = [str(one_machine.BIN / "flower-supernode"), *common, "--node-config", about]
            self.start(f"site-{index}", port, *command)

    def seconds_of_sites(self) -> float:
        """Return the processor time of the SuperNodes and of all processes that they have started."""
        own = [psutil.Process(process.pid) for name, process in self.processes.items() if name != "superlink"]
        return sum(sum(one.cpu_times()[:4]) for node in own for one in [node, *node.children(recursive=True)])


def measured(kind: str, n_sites: int, n_rows: int) -> dict[str, Any]:
    rows, _ = make_blobs(n_sites * n_rows, n_features=8, centers=4, center_box=(-2, 2), cluster_std=0.4, random_state=0)
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent)
        for index in range(n_sites):
            (folder / f"{index}").mkdir()
            table = pd.DataFrame(rows[index::n_sites], columns=[f"c{column}" for column in range(8)])
            table.to_csv(folder / f"{index}" / "table.csv", index=False)
            (folder / f"{index}" / "site.toml").write_text(
                f'name = "{index}"\ndata = "table.csv"\n\n[policy]\nstrategies = ["{STRATEGY}"]\n'
                f"epsilon_per_run = {EPSILON}\nepsilon = {EPSILON}\n",
                encoding="utf-8",
            )
        with Plain(folder) as deployment:
            deployment.start_all(kind, n_sites)
            memory = np.median([psutil.Process(one.pid).memory_info().rss for one in deployment.processes.values()])
            before, start = deployment.seconds_of_sites(), time.monotonic()
            deployment.run(
                **{"strategy": STRATEGY, "dataset": "", "n-clusters": 4, "epsilon": str(EPSILON)},
                **{"parameters": f"noise = 'local'\nmax_norm = 12.0\nn_rounds = 1\nmin_clients = {n_sites}"},
                **{"expected-clients": n_sites, "round-timeout": 1800.0, "wait-for-clients": 600.0},
                **{"out": str(folder / "out")},
                **({"journal": str(folder / "journal")} if kind == "site" else {}),
            )  # fmt: skip
            seconds = time.monotonic() - start
            of_sites = deployment.seconds_of_sites() - before
            traffic = pd.read_csv(folder / "out" / STRATEGY / "traffic.csv")
        return {"seconds": seconds, "of_sites": of_sites, "traffic": traffic, "memory": memory / 1e6}


def main(n_sites: int, n_rows: int, kinds: list[str]) -> None:
    for kind in kinds:
        found = measured(kind, n_sites, n_rows)
        n_messages = len(found["traffic"])
        print(
            f"{kind}: {n_sites} sites of {n_rows:,} rows, {n_messages:,} messages: run {found['seconds']:.1f} s; "
            f"processor time of the sites {found['of_sites']:.1f} s, {found['of_sites'] / n_messages:.2f} s a message; "
            f"{found['memory']:.0f} MB a SuperNode",
            flush=True,
        )


if __name__ == "__main__":
    given = sys.argv[1:]
    numbers = [int(one) for one in given if one.isdigit()]
    main(
        numbers[0] if numbers else 100,
        numbers[1] if len(numbers) > 1 else 2_000,
        [one for one in given if not one.isdigit()] or ["flower", "site"],
    )
