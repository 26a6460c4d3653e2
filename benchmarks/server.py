"""The server's half of FedSC, SPP-FGC and the maps on many rows: time and peak memory, beside other libraries.

    OMP_NUM_THREADS=1 python benchmarks/server.py CASE [N_ROWS]     one case, on the largest size or on N_ROWS
    OMP_NUM_THREADS=1 python benchmarks/server.py scaling CASE ...  cases against n, with the slope on log axes

Cases: fedsc (stage II on codes of 300 atoms), fedsc-exact (the same with exact neighbors), scikit-learn
(SpectralClustering on the same rows), spp-fgc and spp-fgc-moons (all between the replies of ten clients and the
clusters), maps (Fed-UMAP and Fed-tSNE, 500 landmarks), pooled-maps (umap-learn and openTSNE on the same rows; extras:
maps, mnist), map-sums (a whole run of Fed-UMAP from sums, ten clients) and pooled-umap (umap-learn on the same rows).
Each size runs in its own process.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import numpy as np
from common import header, in_own_process, measured, slope
from sklearn.cluster import SpectralClustering
from sklearn.datasets import make_blobs
from sklearn.metrics import normalized_mutual_info_score

import flower_fedclust as fc
from flower_fedclust.data import Table, load_dataset, partition
from flower_fedclust.numerics.threads import one_thread

Numbers = dict[str, float]
ATOMS, REGULARIZATION, LANDMARKS = 300, 0.01, 500


def blobs(n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of 64 columns in ten clusters that overlap enough for a connected graph."""
    return make_blobs(n_rows, n_features=64, centers=10, cluster_std=11.0, random_state=0)  # type: ignore[no-any-return]


def scored(work: Callable[[], np.ndarray], truth: np.ndarray) -> Numbers:
    labels: list[np.ndarray] = []
    with one_thread():
        found = measured(lambda: labels.append(work()))
    return {**found, "nmi": float(normalized_mutual_info_score(truth, labels[0]))}


def fedsc(n_rows: int) -> Numbers:
    from flower_fedclust.numerics.dictionary import codes, kernel_root, matched_dictionary
    from flower_fedclust.numerics.kernel import mean_distance
    from flower_fedclust.numerics.spectral import graph_embedding, n_neighbors_of, similarity_graph
    from flower_fedclust.strategies.common.spectral import cluster_embedding

    rows, truth = blobs(n_rows)
    rng = np.random.default_rng(0)
    Z = matched_dictionary(rows.mean(axis=0), rows.std(axis=0), ATOMS, rng)
    bandwidth = mean_distance(rows)
    # The server gets codes in pieces; the rows are gone before the clock starts.
    C = np.concatenate(
        [codes(one, Z, bandwidth, REGULARIZATION) for one in np.array_split(rows, 50)]
    )
    del rows

    def stage_two() -> np.ndarray:
        F = C @ kernel_root(Z, bandwidth)
        graph = similarity_graph(F, n_neighbors_of(n_rows), block_entries=2**23)
        return cluster_embedding(graph_embedding(graph, 10, F), 10, rng)[1]

    return scored(stage_two, truth)


def fedsc_exact(n_rows: int) -> Numbers:
    from flower_fedclust.numerics import spectral

    spectral.MOST_EXACT_ROWS = n_rows
    return fedsc(n_rows)


def scikit_learn(n_rows: int) -> Numbers:
    rows, truth = blobs(n_rows)
    near = int(np.ceil(np.log(n_rows)))
    estimator = SpectralClustering(
        10, affinity="nearest_neighbors", n_neighbors=near, random_state=0, n_jobs=1
    )
    return scored(lambda: estimator.fit_predict(rows), truth)


def spp_fgc(n_rows: int, data: str = "mixture") -> Numbers:
    from flower_fedclust.numerics.prototypes import Prototypes
    from flower_fedclust.simulation import simulate
    from flower_fedclust.strategies.spp_fgc.spp_fgc import SPPFGC, Uploads

    if data == "moons":
        table = load_dataset("moons", n_rows=n_rows)
    else:
        table = Table(
            *make_blobs(n_rows, n_features=20, centers=10, cluster_std=4.0, random_state=0)
        )
    rows = partition(table, "iid", n_clients=10)
    found: list[Numbers] = []

    class Timed(SPPFGC):
        def _server_side(self, uploads: Uploads, prototypes: Prototypes) -> np.ndarray:
            half = super()._server_side
            truth = np.concatenate(rows.labels or [])
            labels: list[np.ndarray] = []

            def work() -> np.ndarray:
                labels.append(half(uploads, prototypes))
                return labels[0]

            found.append(scored(work, truth))
            return labels[0]

    simulate(Timed(len(np.unique(table.labels))), rows.clients, seed=0, progress=False)
    return found[0]


def spp_fgc_moons(n_rows: int) -> Numbers:
    return spp_fgc(n_rows, "moons")


def picture_rows(n_rows: int) -> np.ndarray:
    from reproduce.maps import shifted_digits

    return shifted_digits().rows[:n_rows].copy()


def maps(n_rows: int) -> Numbers:
    from flower_fedclust.numerics.dictionary import matched_dictionary
    from flower_fedclust.numerics.embedding import (
        tsne_map,
        tsne_n_neighbors,
        umap_map,
        umap_n_neighbors,
    )
    from flower_fedclust.numerics.nystrom import (
        distances_between,
        landmark_distances,
        nystrom_neighbors,
    )

    rows = picture_rows(n_rows)
    Y = matched_dictionary(rows.mean(axis=0), rows.std(axis=0), LANDMARKS, np.random.default_rng(0))
    B, W = landmark_distances(rows, Y), distances_between(Y)
    del rows
    near: list[np.ndarray] = []
    n_umap = umap_n_neighbors(n_rows, 15)
    with one_thread():
        search = measured(
            lambda: near.extend(
                nystrom_neighbors(B, W, tsne_n_neighbors(n_rows, 30.0), squared=True)
            )
        )
        umap = measured(lambda: umap_map(near[0][:, :n_umap], near[1][:, :n_umap]))
        tsne = measured(lambda: tsne_map(near[0], near[1]))
    return {
        **_total(search, umap, tsne),
        "neighbors": search["seconds"],
        "umap": umap["seconds"],
        "tsne": tsne["seconds"],
    }


def pooled_maps(n_rows: int) -> Numbers:
    from reproduce.maps import pooled_map

    rows = picture_rows(n_rows)
    umap, tsne = (
        measured(lambda method=method: pooled_map(method, rows, 0)) for method in ("umap", "tsne")
    )
    return {**_total(umap, tsne), "umap": umap["seconds"], "tsne": tsne["seconds"]}


def map_sums(n_rows: int) -> Numbers:
    rows, _ = make_blobs(n_rows, n_features=50, centers=10, cluster_std=4.0, random_state=0)
    clients = np.split(rows, 10)
    with one_thread():
        return measured(lambda: fc.simulate(fc.FedUMAPSums(10), clients, seed=0, progress=False))


def pooled_umap(n_rows: int) -> Numbers:
    from reproduce.maps import pooled_map

    rows, _ = make_blobs(n_rows, n_features=50, centers=10, cluster_std=4.0, random_state=0)
    return measured(lambda: pooled_map("umap", rows, 0))


def _total(*parts: Numbers) -> Numbers:
    spent = {name: sum(one[name] for one in parts) for name in ("seconds", "processor")}
    return {
        **spent,
        "megabytes": max(one["megabytes"] for one in parts),
        "before": parts[0]["before"],
    }


CASES: dict[str, tuple[Callable[[int], Numbers], tuple[int, ...]]] = {
    "fedsc": (fedsc, (5_000, 10_000, 20_000, 70_000, 200_000)),
    "fedsc-exact": (fedsc_exact, (20_000, 70_000)),
    # The default solver factorizes the graph, which takes four times as long for twice the rows.
    "scikit-learn": (scikit_learn, (5_000, 10_000, 20_000)),
    "spp-fgc": (spp_fgc, (5_000, 10_000, 20_000, 40_000, 70_000)),
    "spp-fgc-moons": (spp_fgc_moons, (5_000, 10_000, 20_000, 40_000, 70_000)),
    "maps": (maps, (10_000, 20_000, 40_000)),
    "pooled-maps": (pooled_maps, (10_000, 20_000, 40_000)),
    "map-sums": (map_sums, (50_000, 200_000)),
    "pooled-umap": (pooled_umap, (50_000, 200_000)),
}


def run(case: str, sizes: tuple[int, ...]) -> None:
    found = {}
    for n_rows in sizes:
        result = in_own_process(CASES[case][0], n_rows)
        if isinstance(result, str):
            print(f"{case}, {n_rows:,} rows: {result}", flush=True)
            continue
        found[n_rows] = result
        print(
            f"{case}, {n_rows:,} rows: "
            + ", ".join(f"{name} {one:.4g}" for name, one in result.items()),
            flush=True,
        )
    if len(found) > 1:
        slopes = {
            name: slope(list(found), [one[name] for one in found.values()])
            for name in ("processor", "megabytes")
        }
        print(
            f"{case}, slopes on log axes: "
            + ", ".join(f"{name} {one:.2f}" for name, one in slopes.items())
        )


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", choices=[*CASES, "scaling"])
    parser.add_argument(
        "more", nargs="*", help="a number of rows; for scaling, cases (by default all)"
    )
    arguments = parser.parse_args()
    print(header())
    if arguments.case == "scaling":
        for case in arguments.more or CASES:
            run(case, CASES[case][1])
    else:
        run(arguments.case, tuple(map(int, arguments.more)) or CASES[arguments.case][1][-1:])


if __name__ == "__main__":
    main()
