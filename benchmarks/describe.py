"""How many numbers of a description of clusters lie within two of their standard errors, at a total epsilon of 1.

    python benchmarks/describe.py adult.csv

The file has the columns of Adult (UCI) without a header. It does not come with the package.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from common import header

import flower_fedclust as fc
from flower_fedclust.tables.description import QUANTILES, SHAPES, Clusters, cluster_sums

NAMES = [
    *("age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship"),
    *("race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country", "income"),
]
#: As is known without a look at the rows.
BOUNDS = {
    "age": (16, 100),
    "fnlwgt": (0, 1_500_000),
    "education_num": (1, 16),
    "capital_gain": (0, 100_000),
    "capital_loss": (0, 5_000),
    "hours_per_week": (1, 99),
}
N_SITES, N_DRAWS, NUMBERS = 10, 24, (4, 6, 8)


def schema_of(table: pd.DataFrame) -> dict[str, Any]:
    """Return bounds for numbers and categories for all other columns; a gap is a category."""
    columns: dict[str, Any] = {name: {"kind": "number", "bounds": bounds} for name, bounds in BOUNDS.items()}
    for name in table.columns.difference(list(BOUNDS)):
        gaps = "category" if table[name].isna().any() else "refuse"
        columns[name] = {"kind": "category", "categories": sorted(table[name].dropna().unique()), "gaps": gaps}
    return {"columns": columns}


def main() -> None:
    print(header())
    table = pd.read_csv(sys.argv[1], header=None, names=NAMES, skipinitialspace=True, na_values="?")
    table = table.drop(columns="income")
    parts = np.random.default_rng(0).integers(N_SITES, size=len(table))
    tables = [table[parts == site] for site in range(N_SITES)]
    whole, found = pd.concat(tables), []
    for seed in range(N_DRAWS):
        strategy = fc.PrivateKMeans(NUMBERS[seed % len(NUMBERS)], epsilon=1.0)
        result = fc.simulate(strategy, tables, schema=schema_of(table), describe=True, seed=seed, progress=False)
        clusters, labels = result.clusters, np.concatenate(result.labels)
        assert clusters is not None
        columns = clusters.preparation.schema.values(whole, owner="Adult")
        sums = cluster_sums(columns, clusters.preparation, labels, clusters.n_clusters).array.values
        true: Clusters = replace(clusters, sums=sums, deviation=0.0)
        both = clusters.frame.merge(true.frame, on=["cluster", "column", "what"], suffixes=("", "_true"))
        found.append(both.dropna(subset=["value"]))
    numbers = pd.concat(found)
    # A category that should not be named, because fewer than 10 rows have it, counts as wrong.
    apart = (numbers["value"] - numbers["value_true"]).abs().fillna(np.inf)
    is_listed = ~numbers["what"].isin(["mean", *SHAPES, "share of rows", "missing"])
    kinds = numbers["what"].mask(is_listed, "share of a category").where(~numbers["what"].isin(QUANTILES), "quantile")
    within = (apart <= 2 * numbers["error"]).groupby(kinds).agg(["size", "mean"])
    print(f"{len(table):,} rows, {N_DRAWS} draws: {len(numbers):,} numbers", end="; ")
    print(f"within two standard errors: {100 * (apart <= 2 * numbers['error']).mean():.1f}%")
    print(within.to_string(float_format=lambda part: f"{100 * part:.1f}%"))
    print(f"sizes are off by {100 * apart[kinds == 'share of rows'].max():.2f} points at most")


if __name__ == "__main__":
    main()
