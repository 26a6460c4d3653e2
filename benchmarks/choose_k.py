"""How often choose-k finds the number of blobs, and says "no clear number" for one Gaussian, at epsilon 1.

python benchmarks/choose_k.py             PrivateKMeans
python benchmarks/choose_k.py --density   PrivateDensity, on shapes in two columns, at epsilon 3 and 1
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from common import header
from sklearn.datasets import make_blobs, make_circles, make_moons

import flower_fedclust as fc

N_ROWS, N_COLUMNS, N_DRAWS, EPSILON = 20_000, 10, 10, 1.0
NUMBERS = range(2, 13)

#: The true number of clusters, and rows of two columns by seed. Blobs have random centers, so some overlap.
SHAPES: dict[str, tuple[int, Callable[[int], np.ndarray]]] = {
    **{f"{k} blobs": (k, lambda seed, k=k: _blobs(k, seed)) for k in (2, 3, 5, 8)},
    "moons": (2, lambda seed: make_moons(6000, noise=0.07, random_state=seed)[0]),
    "rings": (2, lambda seed: make_circles(8000, noise=0.05, factor=0.5, random_state=seed)[0]),
    "one Gaussian": (1, lambda seed: np.random.default_rng(seed).normal(size=(5000, 2))),
    "a uniform square": (1, lambda seed: np.random.default_rng(seed).uniform(-1, 1, (5000, 2))),
}


def _blobs(number: int, seed: int) -> np.ndarray:
    return np.asarray(make_blobs(5000, 2, centers=number, cluster_std=0.6, random_state=seed)[0])


def rows_of(number: int, seed: int) -> np.ndarray:
    """Return blobs, or one Gaussian whose spread differs by direction."""
    if number == 1:
        numbers = np.random.default_rng(seed)
        return numbers.normal(size=(N_ROWS, N_COLUMNS)) @ numbers.normal(
            size=(N_COLUMNS, N_COLUMNS)
        )
    return np.asarray(make_blobs(N_ROWS, N_COLUMNS, centers=number, random_state=seed)[0])


def density() -> None:
    print(
        "| rows | epsilon | right and clear | clear but wrong | no clear number |\n|---|---|---|---|---|"
    )
    for name, (number, drawn) in SHAPES.items():
        for epsilon in (3.0, 1.0):
            found = []
            for seed in range(N_DRAWS):
                rows = drawn(seed)
                bound = 2.0 ** np.ceil(np.log2(np.linalg.norm(rows, axis=1).max()))
                strategy = fc.PrivateDensity("auto", epsilon=epsilon, max_norm=bound)
                chosen = fc.simulate(
                    strategy, np.array_split(rows, 4), seed=seed, progress=False
                ).number
                assert chosen is not None
                found.append(chosen.chosen if chosen.is_clear else 0)
            right, unclear = found.count(number), found.count(0)
            print(
                f"| {name} | {epsilon:g} | {right} | {N_DRAWS - right - unclear} | {unclear} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--density", action="store_true", help="the peaks of PrivateDensity")
    print(header())
    if parser.parse_args().density:
        density()
        return
    print("| blobs | found | chosen |\n|---|---|---|")
    for number in (1, *NUMBERS):
        found = []
        for seed in range(N_DRAWS):
            strategy = fc.PrivateKMeans("auto", epsilon=EPSILON, max_norm=60.0)
            chosen = fc.simulate(
                strategy, np.array_split(rows_of(number, seed), 5), seed=seed, progress=False
            ).number
            assert chosen is not None
            found.append(chosen.chosen if chosen.is_clear else 0)
        right = sum(one == (0 if number == 1 else number) for one in found)
        print(
            f"| {number} | {right} of {N_DRAWS} | {', '.join(str(one or 'none') for one in found)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
