"""Whole runs on the processor and on a card: whether each reply has the same bits, and how long they take.

    python benchmarks/card.py                 the first card
    python benchmarks/card.py torch           PyTorch on the processor, to try this script where no card is
    python benchmarks/card.py cuda --rows 10_000_000 --columns 384 --clusters 1000

The last line also times rounds of k-means with all rows on the card, and PyTorch's own float32 beside them.
"""

from __future__ import annotations

import argparse
import time
from hashlib import sha256
from typing import Any

import numpy as np

import flower_fedclust as fc
from flower_fedclust.engine.by_row import ByRow
from flower_fedclust.exact.device import open_device
from flower_fedclust.exact.rows import Frame
from flower_fedclust.exact.terms import at

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
    """Run each strategy on both; return those with other hashes of replies or other labels, or without any reply."""
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
                    [np.asarray(labels).tobytes() for labels in result.labels],
                    time.perf_counter() - start,
                )
            )
        (one, labels, seconds), (other, others, on_card) = found
        is_same = len(one) > 0 and one == other and labels == others
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
    """Time a round of k-means with all rows on the device, and a round in PyTorch's float32 beside it."""
    import torch

    opened = open_device(device)
    rng, frame = np.random.default_rng(0), Frame(np.zeros(n_columns), 1.0)
    step = max(1, 2**27 // n_columns)
    centers, kept = rng.normal(size=(n_clusters, n_columns)), []
    centers /= 2 * np.linalg.norm(centers, axis=1, keepdims=True)
    for start in range(0, n_rows, step):
        few = (
            rng.standard_normal((min(step, n_rows - start), n_columns), dtype=np.float32)
            / n_columns**0.5
        )
        kept.append(frame.rows(opened.hold(few.astype(np.float64))))
    print(f"{n_rows:,} x {n_columns}, {n_clusters} clusters, rows on {opened.name}")
    for _ in range(3):
        start_of_round = time.perf_counter()
        for rows in kept:
            nearest = rows.nearest(centers)
            at(nearest, n_clusters, rows), at(nearest, n_clusters)
        print(f"  a round: {time.perf_counter() - start_of_round:.3f} s")
    if opened.is_card:
        print(f"  most memory on the card: {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")
    floats = [rows.held.to(torch.float32) for rows in kept]
    del kept
    torch.backends.cuda.matmul.allow_tf32 = False
    on_device = torch.from_numpy(centers).to(floats[0])
    for _ in range(3):
        start_of_round, sums = time.perf_counter(), torch.zeros_like(on_device)
        for part in floats:
            labels = torch.mm(part, -2 * on_device.T).add_((on_device * on_device).sum(1)).argmin(1)
            sums.index_add_(0, labels, part)
        sums.cpu()  # waits for the card
        print(
            f"  the same in IEEE float32 of PyTorch, not exact: {time.perf_counter() - start_of_round:.3f} s"
        )


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
    given = parser.parse_args()
    print(f"device: {open_device(given.device).name}")
    different = compare_runs(given.device, given.run_rows)
    if given.rows:
        time_rounds(given.device, given.rows, given.columns, given.clusters)
    if different:
        raise SystemExit(f"Not the same bits: {', '.join(different)}.")


if __name__ == "__main__":
    main()
