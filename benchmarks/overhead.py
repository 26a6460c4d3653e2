"""What policy, ledger and journal add to the time of a run of real processes, beside Flower's own SuperNodes.

    python benchmarks/overhead.py [N_SITES] [N_ROWS] [KIND ...]
    python benchmarks/overhead.py ray [N_SITES] [N_ROWS]

One SuperLink and N_SITES (100) SuperNodes with N_ROWS (2,000) rows of 8 columns each, all on this machine, run
private federated k-means of one step: enrollment and a round. KIND "flower" is ``flower-supernode`` with the
submitted app, which has no policy, ledger or journal. KIND "site" is ``fedclust site``, with a journal at the server.
The script prints the run's time from submission to end, and the processor time of the processes that answer messages:
100 machines would share it, one machine waits for it. "ray" runs private k-means on Flower's simulation engine, which
starts no process for a message, with and without policy, ledger and journal.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import psutil
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.server import ServerAppComponents, ServerConfig
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from sklearn.datasets import make_blobs

import flower_fedclust as fc
from flower_fedclust.site.app import Site
from flower_fedclust.site.ledger import LedgerError
from flower_fedclust.site.policy import SiteSettings
from flower_fedclust.site.supernode import prepared

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "deploy"))
one_machine = import_module("one_machine")
STRATEGY, EPSILON = "federated-kmeans-private", 8.0
#: So many SuperNodes work on a message; the others wait with theirs at the SuperLink.
AT_A_TIME = 6


class Fleet(one_machine.Deployment):  # type: ignore[misc,name-defined]
    """A SuperLink and many SuperNodes without TLS and keys, whose cost is the same for both kinds.

    Each SuperNode, and the SuperExec that it would start, is a fork of one process which has imported Flower: they then
    share the memory that this takes. The processes of messages are started by them as ever.
    """

    def start_all(self, kind: str, n_sites: int) -> None:
        (self.folder / "flwr").mkdir()
        self.start(
            "superlink", self.port, str(one_machine.BIN / "flower-superlink"), "--insecure", "--port", str(self.port),
            "--disable-runtime-dependency-installation",
        )  # fmt: skip
        (self.folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        command = [
            sys.executable,
            __file__,
            "fleet",
            kind,
            str(n_sites),
            str(self.folder),
            str(self.port),
        ]
        ready = one_machine.free_port()
        self.start("fleet", ready, *command, str(ready))

    @property
    def nodes(self) -> list[psutil.Process]:
        """Return the SuperNodes and SuperExecs."""
        return list(psutil.Process(self.processes["fleet"].pid).children())

    def seconds_of_messages(self) -> float:
        """Return the processor time of all processes that answered messages."""
        ended = sum(sum(one.cpu_times()[2:4]) for one in self.nodes)
        return ended + sum(
            sum(child.cpu_times()[:2])
            for one in self.nodes
            for child in one.children(recursive=True)
        )

    def seconds_of_nodes(self) -> float:
        """Return the processor time of the SuperNodes themselves."""
        return sum(sum(one.cpu_times()[:2]) for one in self.nodes)


def be_the_fleet(kind: str, n_sites: int, folder: Path, superlink: int, ready: int) -> None:
    """Fork the SuperNodes, listen on a port to say that they are ready, and wait for the end."""
    for name in (
        "flwr.supernode.main",
        "flwr.supercore.superexec.run_superexec",
        "flower_fedclust.site.policy",
    ):
        import_module(name)
    supernode, superexec = import_module("flwr.supernode.cli"), import_module("flwr.supercore.cli")
    loop: Any = import_module("flwr.supernode.start_client_internal")
    places = multiprocessing.get_context("fork").Semaphore(AT_A_TIME)
    pull, push = loop._pull_and_store_message, loop._push_messages

    def pull_if_there_is_a_place(**given: Any) -> int | None:
        with ExitStack() as held:
            held.enter_context(places)
            if (run := pull(**given)) is not None:
                held.pop_all()  # until the reply has left
            return run  # type: ignore[no-any-return]

    def push_and_leave(**given: Any) -> None:
        try:
            push(**given)
        finally:
            places.release()

    loop._pull_and_store_message, loop._push_messages = pull_if_there_is_a_place, push_and_leave
    loop.subprocess = SimpleNamespace(Popen=lambda _: None)  # the SuperExec is forked here
    os.environ["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "3"
    gc.freeze()

    def fork(log: Path, main: Callable[[], object], *arguments: str) -> int:
        if process := os.fork():
            return process
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.argv = [log.stem, *arguments]
        main()
        os._exit(0)

    with ExitStack() as open_ports:  # open all ports at once: a closed port is soon assigned again
        probes = [
            open_ports.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(n_sites)
        ]
        ports = [int(probe.getsockname()[1]) for probe in probes]
    processes, path = [], os.environ["PATH"]
    for index, port in enumerate(ports):
        own = folder / f"{index}"
        os.environ["PATH"] = path
        options = ["--insecure", "--superlink", f"127.0.0.1:{superlink}", "--port", str(port)]
        if kind == "site":
            (_, *options), environment = prepared(own / "site.toml", options)
            os.environ["PATH"] = environment["PATH"]
        else:
            options += ["--node-config", f'data="{own / "table.csv"}" name="{index}"']
        node = fork(own / "flower-supernode.log", supernode.flower_supernode, *options)
        where = [
            "--insecure",
            "--runtime-api-address",
            f"127.0.0.1:{port}",
            "--parent-pid",
            str(node),
        ]
        one_machine.wait_for(port, SimpleNamespace(poll=lambda: None), own / "flower-supernode.log")
        processes += [node, fork(own / "flower-superexec.log", superexec.flower_superexec, *where)]
    with socket.create_server(("127.0.0.1", ready)), suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        signal.pause()
    for process in processes:
        os.kill(process, signal.SIGKILL)


def measured(kind: str, n_sites: int, n_rows: int) -> dict[str, Any]:
    rows, _ = make_blobs(
        n_sites * n_rows,
        n_features=8,
        centers=4,
        center_box=(-2, 2),
        cluster_std=0.4,
        random_state=0,
    )
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent)
        for index in range(n_sites):
            (folder / f"{index}").mkdir()
            table = pd.DataFrame(
                rows[index::n_sites], columns=[f"c{column}" for column in range(8)]
            )
            table.to_csv(folder / f"{index}" / "table.csv", index=False)
            (folder / f"{index}" / "site.toml").write_text(
                f'name = "{index}"\ndata = "table.csv"\n\n[policy]\nstrategies = ["{STRATEGY}"]\n'
                f"epsilon_per_run = {EPSILON}\nepsilon = {EPSILON}\n",
                encoding="utf-8",
            )
            if kind == "site":
                Site(SiteSettings.from_toml(folder / f"{index}" / "site.toml")).create_ledger()
        with Fleet(folder) as deployment:
            deployment.start_all(kind, n_sites)
            time.sleep(10)  # the last of them registers
            before = np.array([deployment.seconds_of_messages(), deployment.seconds_of_nodes()])
            start = time.monotonic()
            deployment.run(
                **{"strategy": STRATEGY, "dataset": "", "n-clusters": 4, "epsilon": str(EPSILON)},
                **{"parameters": f"noise = 'local'\nmax_norm = 12.0\nn_rounds = 1\nmin_clients = {n_sites}"},
                **{"expected-clients": n_sites, "round-timeout": 3600.0, "wait-for-clients": 600.0},
                **{"out": str(folder / "out")},
                **({"journal": str(folder / "journal")} if kind == "site" else {}),
            )  # fmt: skip
            seconds = time.monotonic() - start
            of_messages, of_nodes = [
                deployment.seconds_of_messages(),
                deployment.seconds_of_nodes(),
            ] - before
            memory = np.median([one.memory_full_info().uss for one in deployment.nodes])
            traffic = pd.read_csv(folder / "out" / STRATEGY / "traffic.csv")
        return {
            "seconds": seconds, "messages": of_messages, "nodes": of_nodes, "traffic": traffic, "memory": memory / 1e6
        }  # fmt: skip


@cache
def site_of(folder: str, index: int, n_rows: int) -> Site:
    rows = np.random.default_rng(index).normal(size=(n_rows, 50))
    settings = SiteSettings(name=str(index), data="none", folder=str(Path(folder) / str(index)))
    site = Site(settings, lambda: fc.ClientData(rows))
    with suppress(LedgerError):  # another Ray process has created it
        site.create_ledger()
    return site


def on_ray(n_sites: int, n_rows: int, kind: str) -> tuple[float, float, int]:
    """Return seconds, processor seconds and the number of messages of a run on Flower's simulation engine."""
    seconds: list[float] = []
    spent: list[float] = []
    strategy = fc.PrivateKMeans(8, epsilon=1.0, max_norm=10.0, noise="local", random_state=0)

    def mark(*_: object) -> None:
        seconds.append(time.monotonic())
        found = [psutil.Process(), *psutil.Process().children(recursive=True)]
        spent.append(sum(sum(one.cpu_times()[:2]) for one in found))

    strategy.on_round = mark
    with tempfile.TemporaryDirectory() as folder:
        if kind == "site":
            strategy.journal = fc.Journal(Path(folder) / "journal")

        def answer(context: Context) -> Any:
            site = import_module("overhead").site_of(
                folder, int(context.node_config["partition-id"]), n_rows
            )
            if kind == "site":
                return site.client(context)
            return fc.client_fn(fc.PrivateKMeans.client_type, lambda _: site.data)(context)

        def serve(_: Context) -> ServerAppComponents:
            return ServerAppComponents(
                strategy=strategy, config=ServerConfig(num_rounds=strategy.num_rounds)
            )

        run_simulation(
            ServerApp(server_fn=serve), ClientApp(client_fn=answer), num_supernodes=n_sites
        )
        n_messages = sum(entry.round > 1 for entry in strategy.traffic)
    # From the end of the first round: earlier, workers start and rows are generated.
    return seconds[-1] - seconds[0], spent[-1] - spent[0], n_messages


def main(n_sites: int, n_rows: int, kinds: list[str]) -> None:
    if kinds == ["ray"]:
        for kind in 2 * ["flower", "site"]:
            taken, of_processor, n_messages = on_ray(n_sites, n_rows, kind)
            print(
                f"Ray, {kind}: {n_sites} clients of {n_rows:,} rows, {n_messages:,} messages: {taken:.1f} s; processor "
                f"time of all of it {of_processor:.1f} s, {1000 * of_processor / n_messages:.1f} ms a message",
                flush=True,
            )
        return
    for kind in kinds:
        found = measured(kind, n_sites, n_rows)
        n_messages = len(found["traffic"])
        print(
            f"{kind}: {n_sites} sites of {n_rows:,} rows, {n_messages:,} messages: run {found['seconds']:.1f} s; "
            f"processor time of the messages' processes {found['messages']:.1f} s, "
            f"{found['messages'] / n_messages:.3f} s a message, and of the SuperNodes {found['nodes']:.1f} s; "
            f"{found['memory']:.0f} MB a SuperNode or SuperExec",
            flush=True,
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["fleet"]:
        be_the_fleet(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]), *map(int, sys.argv[5:]))
        raise SystemExit
    given = sys.argv[1:]
    numbers = [int(one) for one in given if one.isdigit()]
    main(
        numbers[0] if numbers else 100,
        numbers[1] if len(numbers) > 1 else 2_000,
        [one for one in given if not one.isdigit()] or ["flower", "site"],
    )
