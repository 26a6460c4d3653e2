"""What the benchmarks share: the mixture of appendix G.1, and a clock that counts memory too."""

from __future__ import annotations

import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version

import numpy as np

from flower_fedclust.data import Table, load_dataset
from flower_fedclust.models import KMeansModel

DELTA = 1e-6


def mixture(n_rows: int, seed: int) -> Table:
    return load_dataset("gaussian-mixture", random_state=seed, n_rows=n_rows)


def optimum(table: Table) -> float:
    """The k-means cost of Lloyd's algorithm on all rows, from the means of the true components."""
    from sklearn.cluster import KMeans

    means = np.stack([table.rows[table.labels == label].mean(axis=0) for label in np.unique(table.labels)])
    centers = KMeans(len(means), init=means, n_init=1).fit(table.rows).cluster_centers_
    return KMeansModel(centers).cost(table.rows)


def timed(work: Callable[[], object], runs: int = 5) -> tuple[float, float, float]:
    """Return the least, the median and the greatest wall-clock time in seconds, after a run that does not count."""
    work()
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds), statistics.median(seconds), max(seconds)


def peak_megabytes() -> float:
    """The most memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def header() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("flwr", "numpy", "scikit-learn", "dp-accounting"))
    return f"Python {platform.python_version()} on {sys.platform}, {packages}"
