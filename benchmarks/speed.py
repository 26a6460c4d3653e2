"""Time and peak memory of whole runs, on one thread; each case in its own process.

    OMP_NUM_THREADS=1 python benchmarks/speed.py CASE

record                FedDP-KMeans, 100 clients of 1,000 rows
client                the same at client level, 2,000 clients of 50 rows
client-5000           5,000 clients of 50 rows
private-million       PrivateKMeans, 1,000,000 rows, beside scikit-learn
private-client-5000   PrivateKMeans, 5,000 clients of 50 rows
dp-fedc               DP-FedC on 5,000 digits over 100 clients (extra: mnist)
lloyd                 one Lloyd step of one client, beside scikit-learn's
passes                one client's answers in rounds of k-means, in products of its rows and the centers
million               FederatedKMeans on 1,000,000 overlapping rows, beside one start of scikit-learn
ray                   inline and Ray, checked to give the same result
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from common import DELTA, header, measured, timed
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs

import flower_fedclust as fc
from flower_fedclust import authoring
from flower_fedclust.data import Table, load_dataset, partition
from flower_fedclust.engine import ClientData
from flower_fedclust.engine.kept_rows import keeping_rows
from flower_fedclust.exact.rows import Frame
from flower_fedclust.numerics.kmeans import centers_of, cluster_sums, nearest_center
from flower_fedclust.numerics.threads import jobs, one_thread
from flower_fedclust.strategies.common.private_search import SearchClient

SHAPES = {
    "record": ("record", 100, 1000),
    "client": ("client", 2000, 50),
    "client-5000": ("client", 5000, 50),
}


def mixture(n_rows: int) -> Table:
    return load_dataset("gaussian-mixture", n_rows=n_rows)


def report(
    label: str, strategy: authoring.ProtocolStrategy, clients: list[np.ndarray], runs: int = 5
) -> None:
    """Print the first run, which calibrates the noise, and the runs after it."""
    results: list[fc.Result] = []

    def work() -> None:
        results.append(fc.simulate(strategy, clients, seed=0, progress=False))

    first = measured(work)
    processor = timed(work, runs, clock=time.process_time)
    seconds = sorted(result.seconds for result in results[2:])
    print(label)
    print(f"  first run, calibration included: {first['seconds']:.2f} s")
    print(
        f"  run: median {seconds[len(seconds) // 2]:.3f} s (least {seconds[0]:.3f}, greatest {seconds[-1]:.3f})"
    )
    print(
        f"  time of the processor, metrics included: median {processor[1]:.2f} s (least {processor[0]:.2f})"
    )
    print(
        f"  peak memory: {first['megabytes']:.0f} MB, of which {first['before']:.0f} MB before (rows and imports)"
    )


def feddp_kmeans(case: str) -> None:
    unit, n_clients, n_rows = SHAPES[case]
    table = mixture(n_clients * n_rows)
    strategy = fc.FedDPKMeans(
        10, server_data=table.server_rows, epsilon=1.0, delta=DELTA, privacy_unit=unit
    )
    label = f"{unit} level, {n_clients} clients x {n_rows} rows x 100 columns, epsilon 1"
    report(label, strategy, np.split(table.rows, n_clients))


def private_million() -> None:
    rows, _ = make_blobs(1_000_000, 50, centers=10, random_state=0)
    strategy = fc.PrivateKMeans(10, epsilon=1.0, delta=DELTA, max_norm=100.0)
    report(
        "1,000,000 rows x 50 columns of 10 clients, epsilon 1", strategy, np.split(rows, 10), runs=2
    )
    with one_thread():
        seconds = timed(
            lambda: KMeans(10, n_init=1, random_state=0).fit(rows), 2, clock=time.process_time
        )
    print(
        f"  scikit-learn's KMeans, one start, all rows, time of the processor: median {seconds[1]:.2f} s"
    )


def private_clients() -> None:
    strategy = fc.PrivateKMeans(
        10, epsilon=1.0, delta=DELTA, max_norm=15.0, privacy_unit="client", rows_per_client=50
    )
    label = "client level, 5,000 clients x 50 rows x 100 columns, epsilon 1"
    report(label, strategy, np.split(mixture(250_000).rows, 5000), runs=2)


def dp_fedc() -> None:
    rows = partition(load_dataset("mnist-5k"), "iid", n_clients=100)
    common: dict[str, Any] = {"n_rounds": 100, "fraction_fit": 0.3}
    budget = {"epsilon": 20.0, "delta": 1e-4, "max_norm": 10.0}
    for label, own in (("DP-FedC, no noise", {}), ("DP-FedC, (20, 1e-4)", budget)):
        report(label, fc.DPFedC(10, **common, **own), rows.clients, runs=1)


def lloyd_step() -> None:
    for n_rows in (1_000, 100_000):
        rows = mixture(n_rows).rows
        centers = rows[:10].copy()

        def ours(rows: np.ndarray = rows, centers: np.ndarray = centers) -> np.ndarray:
            return centers_of(
                *cluster_sums(rows, nearest_center(rows, centers), 10), fallback=centers
            )

        def theirs(rows: np.ndarray = rows, centers: np.ndarray = centers) -> np.ndarray:
            return KMeans(10, init=centers, n_init=1, max_iter=1, tol=0).fit(rows).cluster_centers_

        with one_thread():
            np.testing.assert_allclose(ours(), theirs(), atol=1e-10)
            mine, other = timed(ours, 20), timed(theirs, 20)
        print(f"one Lloyd step, {n_rows} rows x 100 columns, 10 centers, one thread")
        print(f"  a client's answer and the division: median {mine[1] * 1e3:.2f} ms")
        print(
            f"  KMeans(max_iter=1).fit of scikit-learn: median {other[1] * 1e3:.2f} ms (it also labels and adds up)"
        )


def overlapping(n_rows: int, n_columns: int = 50) -> tuple[np.ndarray, np.ndarray]:
    """Return rows around ten means that are about as far apart as rows of one mean, and the means."""
    rng = np.random.default_rng(0)
    means = 0.5 * rng.normal(size=(10, n_columns))
    return means[rng.integers(10, size=n_rows)] + rng.normal(size=(n_rows, n_columns)), means


def passes() -> None:
    """Time answers to the rounds of k-means with and without epsilon, each beside the product, a few times."""
    rows, means = overlapping(200_000)
    source, frame, bound = ClientData(rows), Frame(np.zeros(50), 40.0), 9.0
    centers, everywhere = means + 0.01, np.zeros((0, 0))
    questions = {
        "rows in a frame, and their sum": SearchClient.row_sum.asked(frame=frame),
        "one step at epsilon 1": SearchClient.steps.asked(
            centers[None], frame=frame, bound=bound, weight=0.4 * bound
        ),
        "the last step at epsilon 1": SearchClient.offset_sums.asked(
            centers, everywhere, frame=frame, bound=bound
        ),
        "one step without epsilon": SearchClient.start_sums.asked(
            centers[None], everywhere, frame=frame
        ),
        "one step of four starts": SearchClient.start_sums.asked(
            np.stack([centers + 0.01 * start for start in range(4)]), everywhere, frame=frame
        ),
    }
    found: dict[str, list[float]] = {name: [] for name in questions}
    with one_thread(), jobs(1):
        for _ in range(5):
            for name, question in questions.items():
                with keeping_rows(None):
                    if not name.startswith("rows"):
                        question.asks.reply(question, source)  # rows are on the grid already
                    seconds = _processor(partial(question.asks.reply, question, source))
                product = _processor(partial(_product, rows, centers))
                found[name].append(seconds / product)
    print(f"200,000 x 50, {len(centers)} centers: processor time, divided by the product's")
    for name, ratios in found.items():
        print(f"  {name}: median {sorted(ratios)[2]:.1f} (least {min(ratios):.1f})")


def _product(rows: np.ndarray, centers: np.ndarray) -> None:
    for start in range(0, len(rows), 2048):
        rows[start : start + 2048] @ centers.T


def _processor(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def million() -> None:
    """Run both three times in turn, with other seeds for scikit-learn."""
    rows, _ = overlapping(1_000_000)
    clients = np.split(rows, 10)
    few = [part[:1000] for part in clients]
    fc.simulate("federated-kmeans", few, n_clusters=10, seed=0, progress=False)
    results: list[fc.Result] = []

    def ours() -> None:
        results.append(
            fc.simulate(
                "federated-kmeans", clients, n_clusters=10, seed=0, n_jobs=1, progress=False
            )
        )

    with one_thread():
        for seed in range(3):
            estimator, seconds = KMeans(10, n_init=1, random_state=seed), _processor(ours)
            beside = _processor(partial(estimator.fit, rows))
            cost = results[-1].metrics["cost"] / estimator.inertia_ - 1
            print(
                f"{seconds:.2f} s in {results[-1].n_rounds} rounds, scikit-learn {beside:.2f} s in {estimator.n_iter_} "
                f"steps: ratio {seconds / beside:.2f}; cost {cost:+.4%}",
                flush=True,
            )


def ray_beside_inline() -> None:
    table = mixture(10_000)
    strategies = (
        fc.FedDPKMeans(10, server_data=table.server_rows, epsilon=1.0, n_rounds=5),
        fc.DPFedC(10, n_rounds=10, fraction_fit=0.3),
    )
    for strategy in strategies:
        costs = []
        for engine in ("inline", "ray"):
            result = fc.simulate(strategy, np.split(table.rows, 10), engine=engine, seed=0)
            costs.append(result.metrics["cost"])
            print(f"{strategy.name}, {engine}: {result.seconds:.2f} s, cost {costs[-1]!r}")
        assert costs[0] == costs[1], "the engines disagree"


CASES = {
    **{case: lambda case=case: feddp_kmeans(case) for case in SHAPES},
    "private-million": private_million,
    "private-client-5000": private_clients,
    "dp-fedc": dp_fedc,
    "lloyd": lloyd_step,
    "passes": passes,
    "million": million,
    "ray": ray_beside_inline,
}


def main() -> None:
    (case,) = sys.argv[1:] or ["record"]
    if case not in CASES:
        raise SystemExit(f"There is no case '{case}': there are {', '.join(CASES)}.")
    print(header())
    CASES[case]()


if __name__ == "__main__":
    main()
