"""PrivateKMeans on many rows, and on many clusters in many columns, beside scikit-learn's KMeans(n_init=1).

    OMP_NUM_THREADS=1 python benchmarks/wide.py [CASE ...] [--seeds 2] [--times 2]

million            1,000,000 x 50, 10 separate blobs: KMeans converges in 2 iterations
iterations         1,000,000 x 50, 10 blobs that touch: KMeans needs about 20 iterations
spheres            100,000 x 384 unit rows, 100 planted clusters
spheres-1000       the same with 1,000 clusters
texts              docstrings of installed packages, by latent semantic analysis: 256 columns, 50 clusters
seeds              20,000 x 384 unit rows, 40 clusters: ten seeds with epsilon 3 and without
clients            300 clients of 50 rows in 600 columns, which are the unit of privacy

Each case and each epsilon has its own process, in which both sides run in turn, on one thread. Seconds are of the
processor, least of a few runs; a run ends with its metrics, as a fit of KMeans does with its labels. Costs are divided
by the cost of the planted centers (for texts: by the best of ten starts of KMeans), and are the mean over the seeds. A
planted cluster is found if some center is nearer to it than to any other planted center.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from common import DELTA, header, in_own_process
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from sklearn.metrics import pairwise_distances_argmin

import flower_fedclust as fc
from flower_fedclust.harness.runner import forget_peak_memory, peak_memory_mb
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.threads import one_thread

#: Rows, and the planted centers, if there are any.
Made = tuple[np.ndarray, np.ndarray | None]


def blobs(n_rows: int, n_columns: int, n_clusters: int, reach: float = 10.0) -> Made:
    rows, _, centers = make_blobs(
        n_rows,
        n_columns,
        centers=n_clusters,
        center_box=(-reach, reach),
        random_state=0,
        return_centers=True,
    )
    return rows, centers


def spheres(n_rows: int, n_columns: int, n_clusters: int) -> Made:
    """Return rows of length 1 around random directions."""
    rng = np.random.default_rng(0)
    classes, means = (
        rng.integers(n_clusters, size=n_rows),
        3.0 * rng.normal(size=(n_clusters, n_columns)),
    )
    rows = rng.normal(size=(n_rows, n_columns))
    rows += means[classes]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, np.array([rows[classes == index].mean(axis=0) for index in range(n_clusters)])


def texts(n_columns: int) -> Made:
    """Return embeddings of docstrings, of length 1."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    found: dict[str, None] = {}
    for package in ("numpy", "scipy", "sklearn", "pandas", "torch"):
        origin = find_spec(package).origin  # type: ignore[union-attr]
        for path in sorted(Path(str(origin)).parent.rglob("*.py")):
            for text in re.findall(
                r'"""(.*?)"""', path.read_text(encoding="utf-8", errors="replace"), re.DOTALL
            ):
                if len(text) > 300:
                    found[text] = None
    words = TfidfVectorizer(stop_words="english", sublinear_tf=True, min_df=3).fit_transform(found)
    rows = TruncatedSVD(n_columns, random_state=0).fit_transform(words)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12), None


Case = tuple[Callable[[], Made], int, tuple[float | None, ...], dict[str, object]]

UNIT = {"max_norm": 1.0}
#: What makes the rows, the number of clusters, the epsilons, and the other parameters.
CASES: dict[str, Case] = {
    "million": (partial(blobs, 1_000_000, 50, 10), 10, (1.0, None), {"max_norm": 100.0}),
    "iterations": (partial(blobs, 1_000_000, 50, 10, 0.6), 10, (1.0, None), {"max_norm": 30.0}),
    "spheres": (partial(spheres, 100_000, 384, 100), 100, (None, 3.0, 1.0), UNIT),
    "spheres-1000": (partial(spheres, 100_000, 384, 1000), 1000, (None,), UNIT),
    "texts": (partial(texts, 256), 50, (None, 3.0, 1.0), UNIT),
    "seeds": (partial(spheres, 20_000, 384, 40), 40, (None, 3.0), UNIT),
    "clients": (
        partial(spheres, 15_000, 600, 4), 4, (4.0, 8.0), UNIT | {"privacy_unit": "client", "rows_per_client": 50}
    ),
}  # fmt: skip
#: How many seeds a case has at least, and how many clients (by default ten).
SEEDS, CLIENTS = {"seeds": 10, "clients": 4}, {"clients": 300}


def measured(name: str, epsilon: float | None, n_seeds: int, n_times: int) -> dict[str, float]:
    """Run both sides in turn."""
    make, k, _, options = CASES[name]
    rows, planted = make()
    clients = np.array_split(rows, CLIENTS.get(name, 10))
    strategy = fc.PrivateKMeans(k, epsilon=epsilon, delta=DELTA, **options)
    # The noise is calibrated once for all runs of a process.
    fc.simulate(strategy, [part[: 2 * k] for part in clients], seed=0, progress=False)
    seconds: dict[str, list[float]] = {"ours": [], "KMeans": []}
    costs: dict[str, list[float]] = {"ours": [], "KMeans": []}
    found, iterations, peaks = [], [], []
    forget_peak_memory()
    before = peak_memory_mb() or np.nan

    def of_kmeans(seed: int) -> np.ndarray:
        fitted = KMeans(k, n_init=1, random_state=seed).fit(rows)
        iterations.append(fitted.n_iter_)
        return fitted.cluster_centers_

    def of_ours(seed: int) -> np.ndarray:
        forget_peak_memory()
        model = fc.simulate(strategy, clients, seed=seed, progress=False).model
        peaks.append(peak_memory_mb() or np.nan)
        return model.cluster_centers_

    with one_thread():
        for index in range(max(n_seeds, n_times)):
            for side, run in (("ours", of_ours), ("KMeans", of_kmeans)):
                start = time.process_time()
                centers = run(index % n_seeds)
                seconds[side].append(time.process_time() - start)
                if index < n_seeds:
                    costs[side].append(KMeansModel(centers).cost(rows))
                    if side == "ours" and planted is not None:
                        found.append(len(set(pairwise_distances_argmin(centers, planted))))
        if planted is None:
            best = KMeans(k, n_init=10, random_state=0).fit(rows).inertia_
        else:
            best = KMeansModel(planted).cost(rows)
    one_cluster = float(rows.var(axis=0).sum()) * len(rows) / best
    return {
        "seconds": min(seconds["ours"]),
        "of KMeans": min(seconds["KMeans"]),
        "iterations": float(np.mean(iterations)),
        "cost": float(np.mean(costs["ours"])) / best,
        "cost of KMeans": float(np.mean(costs["KMeans"])) / best,
        "cost of one cluster": one_cluster,
        "found": float(np.mean(found)) if found else np.nan,
        "megabytes": max(peaks),
        "before": before,
        "rows": float(len(rows)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; by default all"
    )
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument(
        "--limit", type=float, default=600.0, help="seconds for a case and an epsilon (600)"
    )
    given = parser.parse_args()
    if unknown := [name for name in given.cases if name not in CASES]:
        raise SystemExit(f"There is no case '{unknown[0]}': there are {', '.join(CASES)}.")
    print(header())
    print(
        "| case | rows | epsilon | seconds | KMeans (iterations) | times | cost | KMeans | one cluster |",
        end="",
    )
    print(" clusters found | peak MB (before) |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name in given.cases or CASES:
        for epsilon in CASES[name][2]:
            n_seeds = max(given.seeds, SEEDS.get(name, 1))
            one = in_own_process(measured, name, epsilon, n_seeds, given.times, limit=given.limit)
            if isinstance(one, str):
                print(f"| {name} | | {epsilon} | {one} |", flush=True)
                continue
            cells = [
                name,
                f"{one['rows']:,.0f}",
                "none" if epsilon is None else f"{epsilon:g}",
                f"{one['seconds']:.2f}",
                f"{one['of KMeans']:.2f} ({one['iterations']:.0f})",
                f"{one['seconds'] / one['of KMeans']:.2f}",
                f"{one['cost']:.4f}",
                f"{one['cost of KMeans']:.4f}",
                f"{one['cost of one cluster']:.2f}",
                "" if np.isnan(one["found"]) else f"{one['found']:.1f} of {CASES[name][1]}",
                f"{one['megabytes']:.0f} ({one['before']:.0f})",
            ]
            print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
