"""SPP-FGC: the server's half on many rows, the graphs of Figure 5, and SPP-FGC+ round by round.

    OMP_NUM_THREADS=1 python benchmarks/fgc.py server            time and memory against n, with the slope on log axes
    OMP_NUM_THREADS=1 python benchmarks/fgc.py server DATA N     one size, in this process; DATA is mixture or moons
    OMP_NUM_THREADS=1 python benchmarks/fgc.py pictures          Figure 5, as docs/spp-fgc-graphs.png (extra: maps)
    OMP_NUM_THREADS=1 python benchmarks/fgc.py plus              Figure 3b: MNIST by round (extras: mnist, deep)

The server's half is all between the replies of ten clients and the clusters of all rows. Both the graph and, up to a
limit, the prototypes grow with n. One size a process, so that the peak memory is its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import tracemalloc
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import header, peak_megabytes
from fedsc_server import slope
from sklearn.datasets import make_blobs

import flower_fedclust as fc
from flower_fedclust.data import Table, load_dataset, partition
from flower_fedclust.numerics.global_graph import components_of
from flower_fedclust.numerics.metrics import add_tables, agreement, count_table
from flower_fedclust.numerics.prototypes import jeffreys, prototypes_of, shrunk
from flower_fedclust.numerics.structural_graph import rank_constrained_solution
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.protocol.rounds import Reply
from flower_fedclust.steps.global_clusters import Recipe, clusters_of_rows, global_graph
from flower_fedclust.steps.prototypes import atoms, gathered, n_atoms_of, own_graph, sent_graph

N_CLIENTS, N_NEIGHBORS = 10, 10
SIZES = (1_000, 2_000, 5_000, 10_000, 20_000, 40_000, 70_000)
PICTURE = Path(__file__).parents[1] / "docs" / "spp-fgc-graphs.png"
#: As many rows and columns of a graph are one dot of the picture.
ROWS_A_DOT = 5
N_ROUNDS = 8


def made(data: str, n_rows: int) -> Table:
    if data == "moons":
        return load_dataset("moons", n_rows=n_rows)
    rows, labels = make_blobs(n_rows, n_features=20, centers=10, cluster_std=4.0, random_state=0)
    return Table(rows, labels)


def replies_of(table: Table, n_clients: int) -> tuple[list[Reply], np.ndarray, int]:
    """What the clients send, as SPP-FGC has it by default, and the classes of all rows, client by client."""
    rows = partition(Table(table.rows, table.labels), "iid", n_clients=n_clients)
    assert rows.labels is not None
    n_clusters = len(np.unique(np.concatenate(rows.labels)))
    replies = []
    for name, own in zip(rows.names, rows.clients, strict=True):
        graph = own_graph(own, n_clusters, N_NEIGHBORS, "spectral")
        labels = atoms(own, graph, n_atoms_of(len(own), n_clusters, 0), np.random.default_rng(0))
        found = prototypes_of(own, labels, diagonal=False)
        parts = [*sent_graph(labels, graph, N_NEIGHBORS), found.means, found.covariances, found.counts]
        replies.append(Reply(name, parts))
    return replies, np.concatenate(rows.labels), n_clusters


def server_half(replies: list[Reply], n_clusters: int) -> np.ndarray:
    found = gathered(replies)
    return clusters_of_rows(found, shrunk(found.prototypes), n_clusters, Recipe(), np.random.default_rng(0))


def server(data: str, n_rows: int) -> dict[str, float]:
    replies, classes, n_clusters = replies_of(made(data, n_rows), N_CLIENTS)
    held = peak_megabytes()
    with one_thread():
        start = time.perf_counter()
        labels = server_half(replies, n_clusters)
        seconds = time.perf_counter() - start
        process = peak_megabytes()
        # Once more, as counting allocations takes time.
        tracemalloc.start()
        server_half(replies, n_clusters)
        megabytes = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
    accuracy = agreement(add_tables([count_table(classes, labels, n_clusters)]))["accuracy"]
    return {"seconds": seconds, "megabytes": megabytes, "process": process, "before": held, "accuracy": accuracy}


def scaling() -> None:
    print(
        "| | n | seconds | peak MB of the server's half | of the process | before | accuracy |\n"
        "|---|---|---|---|---|---|---|"
    )
    for data in ("mixture", "moons"):
        found = []
        for n_rows in SIZES:
            command = [sys.executable, __file__, "server", data, str(n_rows), "--json"]
            result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            found.append(result)
            print(
                f"| {data} | {n_rows:,} | {result['seconds']:.2f} | {result['megabytes']:.0f} "
                f"| {result['process']:.0f} | {result['before']:.0f} | {result['accuracy']:.3f} |",
                flush=True,
            )
        for first in (0, SIZES.index(5_000)):
            seconds, megabytes = (
                slope(list(SIZES[first:]), [result[what] for result in found[first:]])
                for what in ("seconds", "megabytes")
            )
            print(f"slope on log axes, {data}, n from {SIZES[first]:,}: seconds {seconds:.2f}, memory {megabytes:.2f}")


def dots(graph: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The mean weight of ROWS_A_DOT rows and columns at a time, of rows in an order."""
    n_dots = len(order) // ROWS_A_DOT
    kept = order[: n_dots * ROWS_A_DOT]
    mean: np.ndarray = graph[np.ix_(kept, kept)].reshape(n_dots, ROWS_A_DOT, n_dots, ROWS_A_DOT).mean(axis=(1, 3))
    return mean


def pictures() -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    replies, classes, n_clusters = replies_of(load_dataset("digits"), 2)
    found = gathered(replies)
    prototypes = shrunk(found.prototypes)
    E = global_graph(found, prototypes, jeffreys(prototypes), Recipe()).toarray()
    S = rank_constrained_solution(E, n_clusters)[0]
    print(f"S has {components_of(S)[0]} components.")
    n_first = found.blocks[0].shape[0]
    graphs = {
        "$E^{p,1}$, client 1": (found.blocks[0].toarray(), classes[:n_first]),
        "$E^{p,2}$, client 2": (found.blocks[1].toarray(), classes[n_first:]),
        "$E^*$, the global graph": (E, classes),
        "$S$, with a component a cluster": (S.toarray(), classes),
    }
    figure, axes = plt.subplots(1, 4, figsize=(12, 3.4), layout="constrained")
    for axis, (title, (graph, own)) in zip(axes, graphs.items(), strict=True):
        shown = dots(graph, np.argsort(own, kind="stable"))
        # Most weights are small: without a power less than 1 only the largest would be seen.
        axis.imshow(shown**0.4, cmap="Greys", vmax=np.quantile(shown[shown > 0], 0.99) ** 0.4, interpolation="nearest")
        ends = np.cumsum(np.bincount(own)) / ROWS_A_DOT
        axis.set(xticks=ends - np.diff(ends, prepend=0) / 2, yticks=[], title=title)
        axis.set_xticklabels([str(label) for label in range(len(ends))], fontsize=8)
        axis.tick_params(length=0)
        within = graph[own[:, None] == own].sum() / graph.sum()
        print(f"{title}: {within:.3f} of the weight is between rows of one class")
    figure.savefig(PICTURE, dpi=100, pil_kwargs={"optimize": True})
    print(f"{PICTURE.name}: {PICTURE.stat().st_size / 1e3:.0f} kB")


class Watched(fc.SPPFGCPlus):
    """SPP-FGC+ that keeps the clusters of every round."""

    def __init__(self, *arguments: Any, **parameters: Any) -> None:
        super().__init__(*arguments, **parameters)
        self.by_round: list[np.ndarray] = []

    def _clusters(self, replies: Sequence[Reply], former: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        labels, centers = super()._clusters(replies, former)
        self.by_round.append(labels)
        return labels, centers


def plus() -> None:
    rows = partition(load_dataset("mnist-5k"), "iid", n_clients=4)
    assert rows.labels is not None
    classes = np.concatenate(rows.labels)
    strategy = Watched(10, n_rounds=N_ROUNDS)
    result = fc.simulate(strategy, rows.clients, seed=0)
    print("| round | accuracy | NMI | reconstruction loss | clustering loss |\n|---|---|---|---|---|")
    # Round 0 is what averaged training gives, before any global prototypes.
    losses = [("", ""), *((f"{a:.4g}", f"{b:.4g}") for a, b in zip(*result.history.values(), strict=True))]
    for t, (labels, of_round) in enumerate(zip(strategy.by_round, losses, strict=True)):
        scores = agreement(add_tables([count_table(classes, labels, 10)]))
        print(f"| {t} | {scores['accuracy']:.3f} | {scores['nmi']:.3f} | {' | '.join(of_round)} |")
    print(f"{result.seconds:.0f} s")


CASES = {"server": scaling, "pictures": pictures, "plus": plus}


def main() -> None:
    warnings.simplefilter("ignore")
    case, *rest = [argument for argument in sys.argv[1:] if argument != "--json"] or ["server"]
    if case not in CASES:
        raise SystemExit(f"There is no case '{case}': there are {', '.join(CASES)}.")
    if case == "server" and rest:
        data, n_rows = rest
        result = server(data, int(n_rows))
        print(json.dumps(result) if "--json" in sys.argv else f"{header()}\n{data}, {n_rows} rows: {result}")
        return
    print(header())
    CASES[case]()


if __name__ == "__main__":
    main()
