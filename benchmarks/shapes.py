"""How well PrivateDensity finds clusters of any shape: Gagolewski's suite of data with labels.

python benchmarks/shapes.py FOLDER [--draws 10] [--wide 3] [--rivals] [--columns] [--batteries fcps g2mg h2mg]

FOLDER holds the suite (github.com/gagolews/clustering-data-v1). It runs on sets with two or three columns and at
least 2,000 rows, from the batteries that are named. Sets of more than 50,000 rows are timed and not in the means. The
rows are spread over four clients at random. The bound ``max_norm`` is public knowledge here: the power of two above the
longest row, times ``--wide``. Rows with the label 0 are noise and are not scored; of several labelings the best counts.
``--rivals`` runs spp-fgc-sums and private-kmeans too. ``--columns`` instead compares with these
on more columns: blobs in 4, 6, 10 and 20, and moons and rings among six, turned at random.
"""

from __future__ import annotations

import argparse
import gzip
import time
import warnings
from pathlib import Path

import numpy as np
from common import header
from sklearn.datasets import make_blobs, make_circles, make_moons
from sklearn.metrics import adjusted_rand_score

import flower_fedclust as fc

EPSILONS = (None, 3.0, 1.0)
LARGE = 50_000
RIVALS = {"spp-fgc-sums": fc.SPPFGCSums, "private-kmeans": fc.PrivateKMeans}


def read(path: Path) -> np.ndarray:
    with gzip.open(path, "rt") as file:
        return np.loadtxt(file, ndmin=2)


def sets_in(folder: Path, batteries: list[str]) -> dict[str, tuple[np.ndarray, list[np.ndarray]]]:
    """Return rows and labelings by name."""
    found = {}
    for battery in batteries:
        for path in sorted((folder / battery).glob("*.data.gz")):
            if path.name.startswith("worms_64"):
                continue
            rows = read(path)
            if len(rows) >= 2000 and rows.shape[1] in (2, 3):
                labelings = sorted(path.parent.glob(path.name.replace(".data.gz", ".labels*.gz")))
                name = path.name.removesuffix(".data.gz")
                found[f"{battery}/{name}"] = (
                    rows,
                    [read(one).ravel().astype(int) for one in labelings],
                )
    return found


def score(
    kind: type,
    rows: np.ndarray,
    labelings: list[np.ndarray],
    epsilon: float | None,
    seed: int,
    wide: float,
):
    """Return the best adjusted Rand index over the labelings, and the seconds of a run."""
    order = np.random.default_rng(seed).permutation(len(rows))
    bound = 2.0 ** np.ceil(np.log2(np.linalg.norm(rows, axis=1).max())) * wide
    norm = (
        {"max_l1_norm": bound * np.sqrt(rows.shape[1])}
        if kind is fc.SPPFGCSums
        else {"max_norm": bound}
    )
    indices, runs, start = [], {}, time.perf_counter()
    for labels in labelings:
        scored = labels[order] > 0
        number = len(np.unique(labels[labels > 0]))
        if number not in runs:
            strategy = kind(number, epsilon=epsilon, **({} if epsilon is None else norm))
            result = fc.simulate(
                strategy, np.array_split(rows[order], 4), seed=seed, progress=False
            )
            runs[number] = np.concatenate(result.labels_of_clients)
        indices.append(adjusted_rand_score(labels[order][scored], runs[number][scored]))
    return max(indices), (time.perf_counter() - start) / len(runs)


def shapes(
    sets: dict[str, tuple[np.ndarray, list[np.ndarray]]],
    draws: int,
    wide: float,
    kinds: dict[str, type],
) -> None:
    for name, kind in kinds.items():
        print(
            f"\n{name}\n\n| set | rows | no noise | epsilon 3 | epsilon 1 | seconds |\n|---|---|---|---|---|---|"
        )
        means: dict[str, list[float]] = {}
        for which, (rows, labelings) in sets.items():
            is_large, found, seconds = len(rows) > LARGE, [], 0.0
            for epsilon in EPSILONS:
                seeds = range(1 if epsilon is None or is_large else draws)
                scores = [score(kind, rows, labelings, epsilon, seed, wide) for seed in seeds]
                found.append(float(np.mean([one for one, _ in scores])))
                seconds = max(seconds, *(one for _, one in scores))
            if not is_large:
                means[which] = found
            print(
                f"| {which} | {len(rows):,} | {' | '.join(f'{one:.2f}' for one in found)} | {seconds:.1f} |",
                flush=True,
            )
        halves = {"every second set": list(means)[::2], "the others": list(means)[1::2]}
        groups = {"all": list(means), "sipu": [one for one in means if one.startswith("sipu")]}
        groups["wut and other"] = [one for one in means if not one.startswith("sipu")]
        for group, members in (groups | halves).items():
            if not members:
                continue
            average = np.mean([means[one] for one in members], axis=0)
            print(
                f"| mean of {len(members)} sets: {group} | | {' | '.join(f'{one:.3f}' for one in average)} | |"
            )


def turned(rows: np.ndarray, seed: int) -> np.ndarray:
    """Add four columns of noise, and turn the rows at random."""
    rng = np.random.default_rng(seed)
    wide = np.hstack([rows, 0.2 * rng.normal(size=(len(rows), 4))])
    return wide @ np.linalg.qr(rng.normal(size=(6, 6)))[0]


def more_columns(draws: int) -> None:
    print("\n| rows | strategy | no noise | epsilon 3 | epsilon 1 |\n|---|---|---|---|---|")
    made = {
        f"{number} blobs in {d} columns": lambda seed, d=d, number=number: make_blobs(
            10_000, d, centers=number, cluster_std=2.0, random_state=seed
        )
        for d in (10, 4, 6, 20)
        for number in (3, 5, 8)
    }
    made["moons among 6 columns"] = lambda seed: make_moons(6000, noise=0.07, random_state=seed)
    made["rings among 6 columns"] = lambda seed: make_circles(
        8000, noise=0.05, factor=0.5, random_state=seed
    )
    for which, make in made.items():
        for name, kind in ({"private-density": fc.PrivateDensity} | RIVALS).items():
            found = []
            for epsilon in EPSILONS:
                scores = []
                for seed in range(draws):
                    rows, labels = make(seed)
                    rows = turned(rows, seed) if rows.shape[1] == 2 else rows
                    scores.append(score(kind, rows, [labels + 1], epsilon, seed, 1.0)[0])
                found.append(f"{np.mean(scores):.3f}")
            print(f"| {which} | {name} | {' | '.join(found)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--wide", type=float, default=1.0)
    parser.add_argument("--rivals", action="store_true")
    parser.add_argument("--columns", action="store_true")
    parser.add_argument("--batteries", nargs="+", default=["other", "sipu", "wut"])
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print(header())
    if given.columns:
        more_columns(given.draws)
    else:
        kinds = {"private-density": fc.PrivateDensity} | (RIVALS if given.rivals else {})
        shapes(sets_in(given.folder, given.batteries), given.draws, given.wide, kinds)


if __name__ == "__main__":
    main()
