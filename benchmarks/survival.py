"""How near survival curves of clusters are at epsilon 1, whether their bands hold, and what the log-rank test finds.

    python benchmarks/survival.py [--draws 300] [--tests 4000] [--runs 3] [--lifelines]
    python benchmarks/survival.py --picture    draws docs/survival.png, and nothing else

Rows of four clusters are drawn with constant hazards of the event and of being lost. Their counts get the noise of a
run of private-kmeans at epsilon 1, of which survival has its default share, and curves are compared with the life table
of the same rows with all bins and without noise. ``--runs`` also runs the strategy, noise and all, at five sites.
``--lifelines`` compares curves, means and tests without noise with the package lifelines, which must be installed.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from common import DELTA, header

import flower_fedclust as fc
from flower_fedclust.numerics.survival import LifeTables, merged_ends, n_time_bins
from flower_fedclust.results.survival import survival_figure

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "survival.png"
N_CLUSTERS, LONGEST, LOST = 4, 60.0, 0.01
#: Rows, and bins that the schema has.
SIZES = ((5_000, 12), (20_000, 24))
#: Chances of the event in a month; about 35, 50 and 70% have it within five years, or are lost.
HAZARDS = (0.008, 0.015, 0.03)
RATIO = 1.35


def schema_of(n_bins: int) -> fc.Schema:
    columns = {name: {"kind": "number", "bounds": [-2, 10]} for name in ("a", "b")}
    time = {"kind": "time-to-event", "event": "died", "unit": "months", "time_zero": "row"}
    event = {"kind": "binary", "categories": ["alive", "dead"]}
    return fc.Schema.of(
        {
            "columns": {
                **columns,
                "died": event,
                "months": {**time, "bins": ends_of(n_bins).tolist()},
            }
        }
    )


def ends_of(n_bins: int) -> np.ndarray:
    return np.linspace(LONGEST / n_bins, LONGEST, n_bins)


def deviation_of(n_bins: int) -> float:
    """Return the noise of a count at epsilon 1, and check that it costs a fifth of the whole."""
    strategy = fc.with_schema(
        fc.PrivateKMeans(N_CLUSTERS, epsilon=1.0, delta=DELTA), schema_of(n_bins)
    )
    multipliers, shares = strategy.noise_multipliers(), strategy.shares()
    costs = {name: shares[name].count / multipliers[name] ** 2 for name in multipliers}
    print(
        f"noise of a count: {multipliers['survival']:.2f}, {costs['survival'] / sum(costs.values()):.1%} of the cost"
    )
    return float(multipliers["survival"])


def times_of(
    rng: np.random.Generator, n_rows: int, hazard: float | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    until, lost = rng.exponential(1 / hazard, n_rows), rng.exponential(1 / LOST, n_rows)
    return np.minimum(until, lost), until <= lost


def tables_of(rows: Sequence[tuple[np.ndarray, np.ndarray]], ends: np.ndarray) -> LifeTables:
    """Return the life tables of groups of rows, each of times and of whether the event ended them."""
    counts = []
    for times, is_event in rows:
        bins = np.searchsorted(ends, times, side="left")
        counts.append(
            [np.bincount(bins[which], minlength=len(ends) + 1) for which in (is_event, ~is_event)]
        )
    both = np.array(counts, dtype=np.float64)
    return LifeTables(ends, both[:, 0, :-1], both[:, 1, :-1], both[:, :, -1].sum(axis=1))


def noisy(exact: LifeTables, deviation: float, rng: np.random.Generator) -> LifeTables:
    parts = [
        one + np.round(rng.normal(scale=deviation, size=one.shape))
        for one in (exact.events, exact.censored, exact.beyond)
    ]
    return LifeTables(exact.ends, *parts, deviation, fewest=10)


def draws(
    n_rows: int, n_bins: int, hazards: Sequence[float], deviation: float, n_draws: int
) -> Iterator[tuple[LifeTables, LifeTables]]:
    """Yield noisy tables in as many bins as a run asks for, and exact ones in all bins."""
    rng, ends = np.random.default_rng(0), ends_of(n_bins)
    asked = merged_ends(ends, n_time_bins(n_rows / N_CLUSTERS, deviation, n_bins))
    for _ in range(n_draws):
        rows = [times_of(rng, n_rows // N_CLUSTERS, hazard) for hazard in hazards]
        yield noisy(tables_of(rows, asked), deviation, rng), tables_of(rows, ends)


def distances(found: LifeTables, exact: LifeTables) -> np.ndarray:
    """Return each curve's largest distance from the exact one, at the ends that the noisy curve has and reaches."""
    same = np.searchsorted(exact.ends, found.ends)
    return np.asarray(np.nanmax(np.abs(found.survival - exact.survival[:, same]), axis=1))


def measure_curves(n_rows: int, n_bins: int, hazard: float, deviation: float, n_draws: int) -> None:
    apart, held, medians, means = [], [], [], []
    for found, exact in draws(n_rows, n_bins, [hazard] * N_CLUSTERS, deviation, n_draws):
        apart.append(distances(found, exact))
        lower, upper = found.simultaneous
        true = np.exp(-hazard * found.ends)
        held += ((lower <= true) & (true <= upper) | ~found.is_known).all(axis=1).tolist()
        medians += [one.low <= np.log(2) / hazard <= one.high for one in found.medians]
        mean = (1 - np.exp(-hazard * found.shared_time)) / hazard
        means += [one.low <= mean <= one.high for one in found.restricted_means()]
    print(
        f"{n_rows:6,} rows, {n_bins} bins ({found.n_bins} asked for), hazard {hazard:g}: "
        f"largest distance {np.mean(apart):.4f}, worst of four {np.mean(np.max(apart, axis=1)):.4f}; "
        f"inside: bands {np.mean(held):.1%}, medians {np.mean(medians):.1%}, restricted means {np.mean(means):.1%}",
        flush=True,
    )


def measure_test(n_rows: int, n_bins: int, ratio: float, deviation: float, n_draws: int) -> None:
    hazards = [0.015] * (N_CLUSTERS - 1) + [0.015 * ratio]
    p_values = [
        found.log_rank().p_value for found, _ in draws(n_rows, n_bins, hazards, deviation, n_draws)
    ]
    print(
        f"{n_rows:6,} rows, {n_bins} bins, hazard ratio {ratio:g}: p < .05 in {np.mean(np.less(p_values, 0.05)):.1%}"
    )


def run_of(
    n_rows: int, n_bins: int, hazards: Sequence[float], seed: int
) -> tuple[dict[str, pd.DataFrame], fc.Result]:
    """Return the tables of five sites with four clusters, and the result of private-kmeans at epsilon 1."""
    rng = np.random.default_rng(seed)
    group = rng.integers(N_CLUSTERS, size=n_rows)
    times, is_event = times_of(rng, n_rows, np.array(hazards)[group])
    place = (
        np.array([[0, 0], [1, 0], [0, 1], [1, 1]])[group] * 6
        + 1
        + rng.normal(scale=0.8, size=(n_rows, 2))
    )
    died = np.where(is_event, "dead", "alive")
    table = pd.DataFrame({"a": place[:, 0], "b": place[:, 1], "months": times, "died": died})
    sites = {f"site {index}": table.iloc[index::5] for index in range(5)}
    strategy = fc.PrivateKMeans(N_CLUSTERS, epsilon=1.0, delta=DELTA)
    return sites, fc.simulate(strategy, sites, schema=schema_of(n_bins), seed=seed, progress=False)


def draw_picture() -> None:
    """Draw the picture of docs/outcomes.md: curves of four clusters with different hazards."""
    _, result = run_of(6_000, 12, [0.005, 0.012, 0.025, 0.05], 0)
    survival_figure(result.survival, PICTURE)
    print(result.survival)


def measure_runs(n_rows: int, n_bins: int, n_runs: int) -> None:
    """Run the strategy, and compare its curves with the life tables of the same clusters."""
    apart = []
    for seed in range(n_runs):
        sites, result = run_of(n_rows, n_bins, [0.015] * N_CLUSTERS, seed)
        pooled, labels = pd.concat(sites.values()), np.concatenate(result.labels_of_clients)
        rows = [
            (part["months"].to_numpy(), (part["died"] == "dead").to_numpy())
            for part in (pooled[labels == cluster] for cluster in range(N_CLUSTERS))
        ]
        apart.append(distances(result.survival.tables, tables_of(rows, ends_of(n_bins))))
    print(
        f"{n_rows:6,} rows, {n_bins} bins, {n_runs} runs of private-kmeans: largest distance {np.mean(apart):.4f}, "
        f"worst of four {np.mean(np.max(apart, axis=1)):.4f}"
    )


def compare_with_lifelines() -> None:
    """Print the largest relative difference from lifelines on five tables without noise."""
    from lifelines import KaplanMeierFitter
    from lifelines.statistics import multivariate_logrank_test
    from lifelines.utils import restricted_mean_survival_time

    warnings.simplefilter("ignore")  # lifelines warns that half rows have weights
    worst = 0.0
    for seed in range(5):
        rng, n_bins = np.random.default_rng(seed), 6 + 4 * seed
        rows = [times_of(rng, 300 + 100 * seed, hazard) for hazard in (0.01, 0.02, 0.04)]
        found = tables_of(rows, ends_of(n_bins))
        starts = np.append(0.0, found.ends[:-1])
        middles = (starts + found.ends) / 2
        places = [(starts + middles) / 2, middles, (middles + found.ends) / 2, [LONGEST + 1]]
        groups = []
        for group in range(found.n_groups):
            halves = found.censored[group] / 2
            weights = np.concatenate(
                [halves, found.events[group], halves, found.beyond[group : group + 1]]
            )
            is_event = np.concatenate([np.zeros(n_bins), np.ones(n_bins), np.zeros(n_bins + 1)])
            frame = pd.DataFrame(
                {
                    "time": np.concatenate(places),
                    "event": is_event,
                    "weight": weights,
                    "group": group,
                }
            )
            groups.append(frame[frame["weight"] > 0])
            fitter = KaplanMeierFitter().fit(
                groups[-1]["time"], groups[-1]["event"], weights=groups[-1]["weight"]
            )
            curve = fitter.survival_function_at_times(found.ends).to_numpy()
            mean = restricted_mean_survival_time(fitter, t=LONGEST)
            worst = max(worst, float(np.max(np.abs(curve / found.survival[group] - 1))))
            worst = max(worst, abs(mean / found.restricted_means()[group].value - 1))
        every = pd.concat(groups)
        test = multivariate_logrank_test(
            *(every[name].to_numpy() for name in ("time", "group", "event")),
            weights=every["weight"].to_numpy(),
        )
        worst = max(worst, abs(test.test_statistic / found.log_rank().statistic - 1))
    print(
        f"lifelines, five tables without noise: curves, means and statistics differ by at most {worst:.1e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--tests", type=int, default=4000)
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--lifelines", action="store_true")
    parser.add_argument("--picture", action="store_true")
    chosen = parser.parse_args()
    if chosen.picture:
        draw_picture()
        return
    print(header())
    if chosen.lifelines:
        compare_with_lifelines()
    for n_rows, n_bins in SIZES:
        deviation = deviation_of(n_bins)
        for hazard in HAZARDS:
            measure_curves(n_rows, n_bins, hazard, deviation, chosen.draws)
        if chosen.runs:
            measure_runs(n_rows, n_bins, chosen.runs)
    n_rows, n_bins = SIZES[0]
    deviation = deviation_of(n_bins)
    measure_test(n_rows, n_bins, 1.0, deviation, chosen.tests)
    measure_test(n_rows, n_bins, RATIO, deviation, max(chosen.tests // 4, 1))


if __name__ == "__main__":
    main()
