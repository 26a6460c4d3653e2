"""Whole runs on the processor and on a card: whether each reply has the same bits, and how long they take.

    python benchmarks/card.py                 the first card
    python benchmarks/card.py torch           PyTorch on the processor, to try this script where no card is
    python benchmarks/card.py cuda --rows 10_000_000 --columns 384 --clusters 1000
    python benchmarks/card.py cuda --rows 10_000_000 --whole

The third line also times rounds of k-means with all rows on the card; and beside them the same on all cores, PyTorch's
own float32, and flash-kmeans if it is installed. The last one times a whole run of private-kmeans in place of rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

import flower_fedclust as fc
from flower_fedclust.engine.by_row import ByRow
from flower_fedclust.exact.device import open_device
from flower_fedclust.exact.grid import BITS
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.terms import Term, at
from flower_fedclust.numerics.threads import mapped, usable_threads

RUNS: dict[str, dict[str, Any]] = {
    "private-kmeans": {"epsilon": 1.0, "max_norm": 12.0},
    "feddp-kmeans": {
        "epsilon": 1.0,
        "server_data": np.random.default_rng(5).normal(size=(200, 20)),
    },
    "private-density": {"epsilon": 1.0, "max_norm": 12.0},
    "spp-fgc-sums": {},
    "private-kmeans, secure sums": {"epsilon": 1.0, "max_norm": 12.0, "secure": True},
}


def compare_runs(device: str, n_rows: int) -> list[str]:
    """Run each strategy on both; return those with other replies, another model or other labels, or without a reply."""
    different = []
    rng = np.random.default_rng(0)
    means = 2 * rng.normal(size=(10, 20))
    clients = list(
        np.array_split(means[rng.integers(10, size=n_rows)] + rng.normal(size=(n_rows, 20)), 4)
    )
    print(f"{n_rows:,} rows of 20 columns at four clients, 10 clusters")
    for name, parameters in RUNS.items():
        found = []
        for where in ("cpu", device):
            hashes, start = list[str](), time.perf_counter()
            with Hashes(hashes):
                result = fc.simulate(
                    name.split(",")[0], clients, n_clusters=10, seed=0, device=where, **parameters
                )
            found.append(
                (
                    hashes,
                    [one.tobytes() for one in (*result.model.to_arrays(), *result.labels)],
                    time.perf_counter() - start,
                )
            )
        (one, kept, seconds), (other, others, on_card) = found
        is_same = len(one) > 0 and one == other and kept == others
        same = "equal" if is_same else "DIFFERENT"
        different += [] if is_same else [name]
        print(
            f"  {name}: {len(one)} replies {same}; {seconds:.1f} s on the processor, {on_card:.1f} s on the device"
        )
    return different


class Hashes:
    """Collects a hash of each array that a client sends before any noise."""

    def __init__(self, hashes: list[str]) -> None:
        self.hashes, self.reply = hashes, ByRow.reply

    def __enter__(self) -> None:
        hashes, reply = self.hashes, self.reply

        def watched(asked: ByRow, *args: Any, **kwargs: Any) -> Any:
            arrays = reply(asked, *args, **kwargs)
            hashes.extend(sha256(one.integers.tobytes()).hexdigest() for one in arrays)
            return arrays

        ByRow.reply = watched  # type: ignore[method-assign, assignment]

    def __exit__(self, *_: object) -> None:
        ByRow.reply = self.reply  # type: ignore[method-assign]


def time_rounds(device: str, n_rows: int, n_columns: int, n_clusters: int) -> None:
    """Time a round of k-means with all rows on the device; beside it, on all cores, and in float32."""
    import torch

    opened, frame = open_device(device), Frame(np.zeros(n_columns), 1.0)
    on_device = {"device": opened.empty((0,)).device}
    torch.manual_seed(0)
    centers = np.random.default_rng(0).normal(size=(n_clusters, n_columns))
    centers /= 2 * np.linalg.norm(centers, axis=1, keepdims=True)
    centers.flags.writeable = (
        False  # as the arrays of a message are, so that they are prepared once
    )
    step, kept = max(1, 2**27 // n_columns), list[Rows]()
    for start in range(0, n_rows, step):
        shape = min(step, n_rows - start), n_columns
        values = torch.randn(shape, **on_device) / n_columns**0.5
        kept.append(frame.rows(values.to(torch.float64)))
    print(f"{n_rows:,} x {n_columns}, {n_clusters} clusters, rows on {opened.name}")
    _three_times("a round", partial(_rounds, kept, centers))
    if opened.is_card:
        print(f"  most memory on the card: {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")
    _time_on_all_cores(kept, centers, n_rows)
    floats = [rows.held.to(torch.float32) for rows in kept]
    del kept
    torch.backends.cuda.matmul.allow_tf32 = False
    points = torch.from_numpy(centers).to(floats[0])
    _three_times("the same in IEEE float32 of PyTorch", partial(_round_of_floats, floats, points))


def time_whole_run(device: str, n_rows: int, n_columns: int, n_clusters: int) -> None:
    """Time private-kmeans at epsilon 1 on rows of norm 1 around random means, and the clients' part of this time."""
    rng, clients = np.random.default_rng(0), list[NDArray[np.float64]]()
    means = rng.standard_normal((n_clusters, n_columns), dtype=np.float32)
    for seed in range(4):
        clients.append(np.empty((n_rows // 4, n_columns)))
        fill = partial(_fill, clients[-1], means)
        parts = np.array_split(np.arange(n_rows // 4), 64)
        list(mapped(fill, [(part, [seed, index]) for index, part in enumerate(parts)], -1))
    seconds, reply = list[float](), ByRow.reply

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        arrays = reply(*args, **kwargs)
        seconds.append(time.perf_counter() - start)
        return arrays

    ByRow.reply = timed  # type: ignore[method-assign]
    start = time.perf_counter()
    result = fc.simulate(
        "private-kmeans",
        clients,
        n_clusters=n_clusters,
        seed=0,
        epsilon=1.0,
        max_norm=1.0,
        device=device,
    )
    whole = time.perf_counter() - start
    ByRow.reply = reply  # type: ignore[method-assign]
    print(f"private-kmeans on {n_rows:,} x {n_columns}, {n_clusters} clusters: {whole:.1f} s")
    print(f"  {len(seconds)} answers of clients: {sum(seconds):.1f} s; {result.metrics}")


def _fill(
    rows: NDArray[np.float64], means: NDArray[np.float32], part: tuple[NDArray[np.intp], list[int]]
) -> None:
    places, seed = part
    rng = np.random.default_rng(seed)
    few = 0.5 * rng.standard_normal((len(places), rows.shape[1]), dtype=np.float32)
    few += means[rng.integers(len(means), size=len(places))]
    rows[places[0] : places[-1] + 1] = few / np.linalg.norm(few, axis=1, keepdims=True)


def time_flash_kmeans(n_rows: int, n_columns: int, n_clusters: int) -> None:
    """Time steps of flash-kmeans, whose float32 is TF32, on rows of as many columns as it takes: a power of two."""
    import torch

    try:
        from flash_kmeans import batch_kmeans_Euclid
    except ImportError:
        print("  flash-kmeans is not installed")
        return
    n_columns = 2 ** (n_columns - 1).bit_length()
    rows = torch.randn((1, n_rows, n_columns), device="cuda")
    for steps in (1, 1, 11):
        start = time.perf_counter()
        batch_kmeans_Euclid(rows, n_clusters, max_iters=steps, tol=0.0)
        torch.cuda.synchronize()
        print(
            f"  flash-kmeans, {n_columns} columns, steps {steps}: {time.perf_counter() - start:.3f} s"
        )


def _three_times(name: str, compute: Callable[[], object]) -> None:
    for _ in range(3):
        start = time.perf_counter()
        compute()
        print(f"  {name}: {time.perf_counter() - start:.3f} s", flush=True)


def _round(rows: Rows, centers: NDArray[np.float64]) -> tuple[Term, Term]:
    """Return the sums and counts of the rows that are nearest to each center."""
    nearest = rows.nearest(centers)
    return at(nearest, len(centers), rows), at(nearest, len(centers))


def _rounds(kept: list[Rows], centers: NDArray[np.float64]) -> None:
    """Take a round in two threads, as a client does, so that the card computes while the processor counts."""
    list(mapped(partial(_round, centers=centers), kept, 2))


def _round_of_floats(parts: list[Any], points: Any) -> None:
    sums, squares = points.new_zeros(points.shape), (points * points).sum(1)
    for part in parts:
        labels = (part @ (-2 * points.T)).add_(squares).argmin(1)
        sums.index_add_(0, labels, part)
    sums.cpu()  # waits for the card


def _time_on_all_cores(kept: list[Rows], centers: NDArray[np.float64], n_rows: int) -> None:
    """Time the round of a part of the rows on the processor, in the batches and threads of a run; compare the sums."""
    frame, threads = Frame(np.zeros(centers.shape[1]), 1.0), usable_threads()
    few = kept[0].integers / 2.0**BITS
    batches = [frame.rows(part) for part in np.array_split(few, 8 * threads)]
    for _ in range(2):
        start = time.perf_counter()
        terms = list(mapped(partial(_round, centers=centers), batches, -1))
        seconds = (time.perf_counter() - start) * n_rows / len(few)
        print(f"  the same on {threads} cores, from {len(few):,} rows: {seconds:.1f} s", flush=True)
    for number, of_rows in enumerate(_round(kept[0], centers)):
        added_up = sum(pair[number].integers for pair in terms)
        same = "equal" if np.array_equal(of_rows.integers, added_up) else "DIFFERENT"
        print(f"  {('sums', 'counts')[number]} of these rows {same}")


def main() -> None:
    """Compare whole runs, and time rounds if a number of rows is given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("device", nargs="?", default="cuda")
    parser.add_argument("--run-rows", type=int, default=200_000)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--columns", type=int, default=384)
    parser.add_argument("--clusters", type=int, default=1000)
    parser.add_argument("--whole", action="store_true")
    given = parser.parse_args()
    print(f"device: {open_device(given.device).name}")
    different = compare_runs(given.device, given.run_rows)
    if given.rows and given.whole:
        time_whole_run(given.device, given.rows, given.columns, given.clusters)
    elif given.rows:
        time_rounds(given.device, given.rows, given.columns, given.clusters)
        if given.device.startswith("cuda"):
            time_flash_kmeans(given.rows, given.columns, given.clusters)
    if different:
        raise SystemExit(f"Not the same bits: {', '.join(different)}.")


if __name__ == "__main__":
    main()
