"""How often choose-k finds the number of blobs, and says "no clear number" for one Gaussian, at epsilon 1.

python benchmarks/choose_k.py
"""

from __future__ import annotations

import numpy as np
from common import header
from sklearn.datasets import make_blobs

import flower_fedclust as fc

N_ROWS, N_COLUMNS, N_DRAWS, EPSILON = 20_000, 10, 10, 1.0
NUMBERS = range(2, 13)


def rows_of(number: int, seed: int) -> np.ndarray:
    """Return blobs, or one Gaussian whose spread differs by direction."""
    if number == 1:
        numbers = np.random.default_rng(seed)
        return numbers.normal(size=(N_ROWS, N_COLUMNS)) @ numbers.normal(size=(N_COLUMNS, N_COLUMNS))
    return np.asarray(make_blobs(N_ROWS, N_COLUMNS, centers=number, random_state=seed)[0])


def main() -> None:
    print(header())
    print("| blobs | found | chosen |\n|---|---|---|")
    for number in (1, *NUMBERS):
        found = []
        for seed in range(N_DRAWS):
            strategy = fc.PrivateKMeans("auto", epsilon=EPSILON, max_norm=60.0)
            chosen = fc.simulate(strategy, np.array_split(rows_of(number, seed), 5), seed=seed, progress=False).number
            assert chosen is not None
            found.append(chosen.chosen if chosen.is_clear else 0)
        right = sum(one == (0 if number == 1 else number) for one in found)
        print(f"| {number} | {right} of {N_DRAWS} | {', '.join(str(one or 'none') for one in found)} |", flush=True)


if __name__ == "__main__":
    main()
