"""Many small clients: inline, on Ray's actors, and on a cluster that loses a machine.

    OMP_NUM_THREADS=1 python benchmarks/shards.py CASE

calls   one call of a client in a round of sums: 1,000 clients of 50 rows x 20 columns, inline
empty   a client that answers nothing, engine "shards": 10,000 clients, 20 rounds
lost    100,000 clients of 20 rows x 20 columns on a test cluster of three nodes, one of which is killed during the run;
        checked to give the bits of engine "inline"
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import defaultdict
from typing import Any

import numpy as np
from common import DELTA, header

import flower_fedclust as fc
from flower_fedclust import authoring
from flower_fedclust.engine import Gather, Outcome, answers
from flower_fedclust.engine.rounds import Protocol
from flower_fedclust.engine.shards import Shard
from flower_fedclust.models import KMeansModel


def mixture(
    n_clients: int, n_rows: int, n_columns: int, n_clusters: int = 10
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the rows of clients, and a few for the server."""
    rng = np.random.default_rng(0)
    means = 3.0 * rng.normal(size=(n_clusters, n_columns))
    rows = means[rng.integers(n_clusters, size=n_clients * n_rows)]
    rows += rng.normal(size=rows.shape)
    return np.split(rows, n_clients), np.repeat(means, 20, axis=0) + rng.normal(
        size=(20 * n_clusters, n_columns)
    )


def calls() -> None:
    """Print the least time of each task over the runs, for one client, and how many clients answered together."""
    clients, public = mixture(1000, 50, 20)
    private = {"epsilon": 1.0, "delta": DELTA, "max_norm": 20.0}
    strategies: dict[str, authoring.ProtocolStrategy] = {
        "private-kmeans": fc.PrivateKMeans(10, **private),
        "feddp-kmeans": fc.FedDPKMeans(10, server_data=public, epsilon=1.0, n_rounds=2),
        "federated-kmeans": fc.FederatedKMeans(10),
        "fedsc-sums": fc.FedSCSums(10),
        "spp-fgc-sums": fc.SPPFGCSums(10),
        "fed-umap-sums": fc.FedUMAPSums(10),
    }
    together, fit, spent = Shard.together, Shard.fit, defaultdict[str, list[float]](list)

    def timed(self: Shard, ins: Any, members: Any, **options: Any) -> Any:
        start = time.perf_counter()
        found = together(self, ins, members, **options)
        n_joined = len(members) - len(found[1])
        if n_joined:
            spent[ins.config["task"]].append((time.perf_counter() - start) / n_joined)
        return found

    def timed_alone(self: Shard, index: int, ins: Any) -> Any:
        start = time.perf_counter()
        found = fit(self, index, ins)
        spent[ins.config["task"] + " (alone)"].append(time.perf_counter() - start)
        return found

    Shard.together, Shard.fit = timed, timed_alone  # type: ignore[method-assign]
    for name, strategy in strategies.items():
        spent.clear()
        for _ in range(2):
            result = fc.simulate(strategy, clients, seed=0, progress=False)
        found = ", ".join(f"{task} {1000 * min(seconds):.3f}" for task, seconds in spent.items())
        print(f"{name}: run {result.seconds:.2f} s; ms for one client: {found}", flush=True)


class EmptyClient(authoring.ProtocolClient):
    """Answers nothing."""

    @answers()
    def nothing(self) -> None:
        """Do nothing."""


class Empty(authoring.ProtocolStrategy):
    """Asks for nothing, 20 times."""

    client_type = EmptyClient
    n_protocol_rounds = 20

    def protocol(self) -> Protocol:
        """Ask for nothing."""
        for _ in range(self.n_protocol_rounds):
            yield Gather(EmptyClient.nothing.asked())
        return Outcome(KMeansModel(np.zeros((2, 1))))


def empty() -> None:
    clients = [np.zeros((1, 1))] * 10_000
    times: list[float] = []
    for engine in ("inline", "shards"):
        strategy = Empty(2)
        strategy.on_round = lambda number, task: times.append(time.perf_counter())
        times.clear()
        fc.simulate(strategy, clients, engine=engine, progress=False)
        rounds = np.diff(times[1:])
        print(f"{engine}: {1000 * rounds.min() / len(clients):.3f} ms for a client and round, at most "
              f"{1000 * rounds.max() / len(clients):.3f}", flush=True)  # fmt: skip


def lost() -> None:
    import ray
    from ray.cluster_utils import Cluster

    clients, public = mixture(100_000, 20, 20)
    strategy = fc.FedDPKMeans(
        10,
        server_data=public,
        epsilon=1.0,
        delta=DELTA,
        privacy_unit="client",
        rows_per_client=20,
        n_rounds=2,
    )
    start = time.perf_counter()
    inline = fc.simulate(strategy, clients, seed=0, progress=False)
    print(
        f"inline: run {inline.seconds:.1f} s, with data and metrics {time.perf_counter() - start:.1f} s",
        flush=True,
    )
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    others = [cluster.add_node(num_cpus=1) for _ in range(2)]
    os.environ["RAY_ADDRESS"] = cluster.address
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    print("nodes before:", sum(node["Alive"] for node in ray.nodes()), flush=True)

    def kill(number: int, _: str) -> None:
        if number == 2 and others:
            threading.Timer(
                0.2, cluster.remove_node, args=(others.pop(),), kwargs={"allow_graceful": False}
            ).start()

    strategy.on_round = kill
    start = time.perf_counter()
    shards = fc.simulate(strategy, clients, seed=0, engine="shards", progress=False)
    print(
        f"shards: run {shards.seconds:.1f} s, with data and metrics {time.perf_counter() - start:.1f} s"
    )
    print("nodes after:", sum(node["Alive"] for node in ray.nodes()))
    same = np.array_equal(inline.model.cluster_centers_, shards.model.cluster_centers_)
    print(
        f"same bits: {same}; same report: {inline.privacy == shards.privacy}; failures: {len(shards.failures)}"
    )
    ray.shutdown()
    cluster.shutdown()


CASES = {"calls": calls, "empty": empty, "lost": lost}


def main() -> None:
    (case,) = sys.argv[1:] or ["calls"]
    if case not in CASES:
        raise SystemExit(f"There is no case '{case}': there are {', '.join(CASES)}.")
    print(header())
    CASES[case]()


if __name__ == "__main__":
    main()
