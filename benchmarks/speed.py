"""Time and peak memory of FedDP-KMeans inline, calibration apart, on one thread.

    OMP_NUM_THREADS=1 python benchmarks/speed.py record | client | client-5000 | lloyd | ray

One case a process, so that the peak memory is its own.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from common import DELTA, header, mixture, peak_megabytes, timed
from sklearn.cluster import KMeans

import flower_fedclust as fc
from flower_fedclust.numerics.kmeans import centers_of, cluster_sums, nearest_center
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.privacy.accounting import calibrate

CASES = {"record": ("record", 100, 1000), "client": ("client", 2000, 50), "client-5000": ("client", 5000, 50)}


def end_to_end(unit: str, n_clients: int, n_rows: int) -> None:
    table = mixture(n_clients * n_rows, seed=0)
    clients = np.split(table.rows, n_clients)
    held = peak_megabytes()
    strategy = fc.FedDPKMeans(
        10, server_data=table.server_rows, epsilon=1.0, delta=DELTA, privacy_unit=unit, random_state=0
    )
    calibrate.cache_clear()
    start = time.perf_counter()
    strategy._calibrated()
    calibration = time.perf_counter() - start
    seconds: list[float] = []

    def work() -> None:
        seconds.append(fc.simulate(strategy, clients).seconds)

    timed(work)
    run = sorted(seconds[1:])
    print(f"{unit} level, {n_clients} clients x {n_rows} rows x 100 columns, epsilon 1")
    print(f"  calibration, once: {calibration:.2f} s")
    print(f"  run: median {run[len(run) // 2]:.3f} s (least {run[0]:.3f}, greatest {run[-1]:.3f})")
    print(f"  peak memory: {peak_megabytes():.0f} MB, of which {held:.0f} MB before the run (rows and imports)")


def lloyd_step() -> None:
    for n_rows in (1_000, 100_000):
        rows = mixture(n_rows, seed=0).rows
        centers = rows[:10].copy()

        def ours(rows: np.ndarray = rows, centers: np.ndarray = centers) -> np.ndarray:
            return centers_of(*cluster_sums(rows, nearest_center(rows, centers), 10), fallback=centers)

        def theirs(rows: np.ndarray = rows, centers: np.ndarray = centers) -> np.ndarray:
            return KMeans(10, init=centers, n_init=1, max_iter=1, tol=0).fit(rows).cluster_centers_

        with one_thread():
            np.testing.assert_allclose(ours(), theirs(), atol=1e-10)
            mine, other = timed(ours, 20), timed(theirs, 20)
        print(f"one Lloyd step, {n_rows} rows x 100 columns, 10 centers, one thread")
        print(f"  a client's answer and the division: median {mine[1] * 1e3:.2f} ms")
        print(f"  KMeans(max_iter=1).fit of scikit-learn: median {other[1] * 1e3:.2f} ms (it also labels and adds up)")


def ray_beside_inline() -> None:
    table = mixture(10_000, seed=0)
    clients = np.split(table.rows, 10)
    strategy = fc.FedDPKMeans(10, server_data=table.server_rows, epsilon=1.0, n_rounds=5)
    for engine in ("inline", "ray"):
        result = fc.simulate(strategy, clients, engine=engine, seed=0)
        print(f"{engine}: {result.seconds:.2f} s, cost per row {result.metrics['cost_per_row']!r}")


def main() -> None:
    (case,) = sys.argv[1:] or ["record"]
    print(header())
    if case in CASES:
        end_to_end(*CASES[case])
    elif case == "lloyd":
        lloyd_step()
    elif case == "ray":
        ray_beside_inline()
    else:
        raise SystemExit(f"There is no case '{case}': there are {', '.join([*CASES, 'lloyd', 'ray'])}.")


if __name__ == "__main__":
    main()
