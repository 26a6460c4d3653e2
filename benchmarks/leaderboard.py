"""The leaderboard in docs/comparing.md: strategies on Gagolewski's suite of data with labels.

python benchmarks/leaderboard.py FOLDER [--csv leaderboard.csv] [--only NAMES] [--draws 10] [--batteries NAMES]

FOLDER holds the suite (github.com/gagolews/clustering-data-v1). Each result is a line of the CSV as soon as it is
there; the same command continues, runs what is missing, and writes the tables into the page. A figure that the CSV
lacks stays as it is on the page. The table of sets below 1,000 rows is only printed. ``--only`` runs some strategies,
``--largest`` the sets of 100,000 rows, ``--no-page`` leaves the page alone, ``--batteries`` takes others.

The rows are spread over four clients. ``max_norm`` is public knowledge here: the power of two above the longest row.
Genie runs if the package genieclust is installed.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import flower_fedclust as fc
from flower_fedclust.data import Table, load_dataset, partition
from flower_fedclust.data.suite import FOLDER, SUITE, sets_named
from flower_fedclust.numerics.metrics import best_agreement
from flower_fedclust.registry import accepted_parameters

PAGE = Path(__file__).parents[1] / "docs" / "comparing.md"
MARKS = "<!-- tables, written by benchmarks/leaderboard.py -->\n", "<!-- end of the tables -->\n"
BATTERIES = "graves,sipu,other"
#: By a column each client has a quarter of the rows, sorted by the first column: clusters should not follow the sites.
SPLITS = {
    "random": "iid",
    "Dirichlet .5": "dirichlet:0.5",
    "by class": "column",
    "by a column": "sorted:0",
}
EPSILONS = 10.0, 3.0, 1.0
N_CLIENTS, SMALL, LARGE = 4, 1_000, 10_000
FIELDS = (
    "set",
    "rows",
    "strategy",
    "split",
    "epsilon",
    "seed",
    "ari",
    "nca",
    "adjusted_accuracy",
    "seconds",
)
MEASURES = {
    "ari": "ARI",
    "nca": "normalized clustering accuracy",
    "adjusted_accuracy": "adjusted accuracy",
}

#: Strategies by what leaves the sites. The last two groups release sums, with and without noise.
GROUPS = {
    "all rows in one place": ("k-means", "spectral", "HDBSCAN", "Genie"),
    "something for each row": ("spp-fgc", "fedsc"),
    "centers of each site": ("k-fed", "ffcm"),
    "sums over the sites": (
        "federated-kmeans",
        "spp-fgc-sums",
        "fedsc-sums",
        "fed-speclust-sums",
        "private-kmeans",
        "private-density",
        "private-mixture",
    ),
}
POOLED = GROUPS["all rows in one place"]
PRIVATE = (
    "private-kmeans",
    "private-density",
    "private-mixture",
    "spp-fgc-sums",
    "fedsc-sums",
    "fed-speclust-sums",
)
#: Strategies that also run on sets of more than 10,000 rows.
FAST = ("k-means", "k-fed", "private-kmeans", "private-density", "spp-fgc-sums")


#: Sets of 100,000 rows; the others have at most 10,000.
LARGEST = ("birch1", "birch2", "worms_2", "worms_64")


@cache
def table_of(name: str) -> Table:
    return load_dataset(name)


def pooled_labels(method: str, rows: np.ndarray, n_clusters: int, seed: int) -> np.ndarray:
    from sklearn.cluster import HDBSCAN, KMeans, SpectralClustering

    if method == "Genie":
        import genieclust

        return genieclust.Genie(n_clusters).fit_predict(rows)
    if method == "HDBSCAN":
        return HDBSCAN(copy=True).fit_predict(rows)
    if method == "k-means":
        return KMeans(n_clusters, n_init=10, random_state=seed).fit_predict(rows)
    return SpectralClustering(
        n_clusters, affinity="nearest_neighbors", n_neighbors=10, random_state=seed
    ).fit_predict(rows)


def spread(table: Table, split: str, seed: int) -> fc.FederatedRows:
    """Return the rows of four clients; by class, client i has classes i, i + 4 and so on (fewer if there are fewer)."""
    classes = np.unique(table.labelings[:, 0], return_inverse=True)[1]
    owners = classes % N_CLIENTS
    return partition(
        replace(table, owners=owners), SPLITS[split], n_clients=N_CLIENTS, random_state=seed
    )


def scores(
    name: str, method: str, split: str, epsilon: float | None, seed: int
) -> dict[str, float]:
    """Return the best scores over the reference labelings; each number of classes is a run."""
    table, found, start = table_of(name), [], time.perf_counter()
    assert table.labelings is not None
    longest = float(np.linalg.norm(table.rows, axis=1).max())
    bound = 2.0 ** np.ceil(np.log2(longest))
    numbers = list(dict.fromkeys(len(np.unique(one[one > 0])) for one in table.labelings.T))
    for n_clusters in numbers:
        if method in POOLED:
            labels, order = pooled_labels(method, table.rows, n_clusters, seed), slice(None)
            # HDBSCAN's noise is one more cluster.
            labels = np.where(labels < 0, labels.max() + 1, labels)
        else:
            rows = spread(table, split, seed)
            own = {"n_clusters": n_clusters}
            if epsilon is not None:
                norms = {"max_norm": bound, "max_l1_norm": bound * table.rows.shape[1] ** 0.5}
                own |= {"epsilon": epsilon} | {
                    key: value for key, value in norms.items() if key in accepted_parameters(method)
                }
            elif "epsilon" in accepted_parameters(method):
                own["epsilon"] = None
            result = fc.simulate(method, rows, seed=seed, progress=False, **own)
            labels, order = np.concatenate(result.labels_of_clients), np.concatenate(rows.row_ids)
        n_found = max(n_clusters, int(labels.max()) + 1)
        alike = [one for one in table.labelings.T if len(np.unique(one[one > 0])) == n_clusters]
        found.append(best_agreement(np.column_stack(alike)[order], labels, n_found))
    best = {key: max(one[key] for one in found) for key in MEASURES}
    return best | {"seconds": (time.perf_counter() - start) / len(numbers)}


def tasks(given: argparse.Namespace) -> Iterator[tuple[str, str, str, str, int]]:
    """Yield set, strategy, split, epsilon and seed; what noise does not cover comes first, then draw after draw."""
    sets = [
        one for battery in given.batteries.split(",") for one in sets_named(f"{SUITE}{battery}")
    ]
    sets = [one for one in sets if given.largest == (one.split("/")[1] in LARGEST)]
    methods = [
        one for group in GROUPS.values() for one in group if one in (given.only or one).split(",")
    ]
    methods = [one for one in methods if one != "Genie" or find_spec("genieclust")]

    def runs(name: str, method: str) -> bool:
        return method in FAST or len(table_of(name).rows) <= LARGE

    for name in sets:
        for method in methods:
            splits = ["pooled"] if method in POOLED else SPLITS
            if len(table_of(name).rows) > LARGE and method not in POOLED:
                splits = ["random"]
            if runs(name, method):
                yield from ((name, method, split, "none", 0) for split in splits)
    for seed in range(given.draws):
        for name in sets:
            if len(table_of(name).rows) > LARGE and seed >= 3:
                continue
            for method in methods:
                if method in PRIVATE and runs(name, method):
                    yield from (
                        (name, method, "random", f"{epsilon:g}", seed) for epsilon in EPSILONS
                    )


def read(path: Path) -> dict[tuple[str, str, str, str, int], dict[str, str]]:
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    return {
        (one["set"], one["strategy"], one["split"], one["epsilon"], int(one["seed"])): one
        for one in lines
    }


# The page.


def means(lines: list[dict[str, str]], measure: str, n_sets: int) -> str:
    """Return the mean over the sets, with its standard error over draws; "–" if there is not every set."""
    by_set = defaultdict(list)
    for line in lines:
        by_set[line["set"]].append(float(line[measure]))
    if len(by_set) < n_sets:
        return "–"
    mean = np.mean([np.mean(one) for one in by_set.values()])
    if min(map(len, by_set.values())) < 2:
        return f"{mean:.3f}"
    # The draws of one set are independent: the variance of a mean of means.
    error = np.sqrt(sum(np.var(one, ddof=1) / len(one) for one in by_set.values())) / n_sets
    return f"{mean:.3f} ± {error:.3f}"


def as_table(header: list[str], body: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *body))


def tables_of(found: dict[tuple[str, str, str, str, int], dict[str, str]]) -> str:
    lines = list(found.values())
    sizes = {line["set"]: int(line["rows"]) for line in lines}
    sets = {
        "large": [name for name, rows in sizes.items() if SMALL <= rows <= LARGE],
        "small": [name for name, rows in sizes.items() if rows < SMALL],
        "largest": [name for name, rows in sizes.items() if rows > LARGE],
    }
    counts = {size: len(names) for size, names in sets.items()}

    def cell(size: str, method: str, split: str, epsilon: str, measure: str = "ari") -> str:
        chosen = [
            line
            for line in lines
            if line["set"] in sets[size]
            and (line["strategy"], line["split"], line["epsilon"]) == (method, split, epsilon)
        ]
        return means(chosen, measure, counts[size])

    text = []

    def without_noise(size: str) -> None:
        body = []
        for group, methods in GROUPS.items():
            for method in methods:
                splits = [cell(size, method, split, "none") for split in SPLITS]
                if method in POOLED:
                    splits = [cell(size, method, "pooled", "none")] + [""] * (len(SPLITS) - 1)
                first = "pooled" if method in POOLED else "random"
                others = [
                    cell(size, method, first, "none", one) for one in ("nca", "adjusted_accuracy")
                ]
                body.append([group, method, *splits, *others])
        header = ["what leaves the sites", "strategy", *SPLITS, "NCA", "adjusted accuracy"]
        text.append(as_table(header, body))

    def with_noise(size: str) -> None:
        body = []
        for method in PRIVATE:
            noisy = [cell(size, method, "random", f"{epsilon:g}") for epsilon in EPSILONS]
            body.append([method, cell(size, method, "random", "none"), *noisy])
        text.append(
            as_table(["strategy", "no noise", *(f"epsilon {one:g}" for one in EPSILONS)], body)
        )

    def both(size: str) -> str:
        body = []
        for method in (one for group in GROUPS.values() for one in group):
            pooled = method in POOLED
            splits = ["pooled"] if pooled else SPLITS
            plain = [cell(size, method, split, "none") for split in splits]
            noisy = [cell(size, method, "random", f"{epsilon:g}") for epsilon in EPSILONS]
            empty = [""] * (len(SPLITS) - len(plain))
            body.append([method, *plain, *empty, *(noisy if method in PRIVATE else [""] * 3)])
        header = ["strategy", *SPLITS, *(f"epsilon {one:g}" for one in EPSILONS)]
        return as_table(header, body)

    text.append(f"### No noise, {counts['large']} sets of 1,000 to 10,000 rows\n")
    without_noise("large")
    text.append(f"\n### With noise, the same {counts['large']} sets\n")
    with_noise("large")
    if counts["small"]:
        print(f"\n### {counts['small']} sets below 1,000 rows, without and with noise\n")
        print(both("small"))
    if counts["largest"]:
        text.append(
            f"\n### {counts['largest']} sets above 100,000 rows, random split, at most three draws\n"
        )
        body = []
        for method in FAST:
            first = "pooled" if method in POOLED else "random"
            noisy = [cell("largest", method, "random", f"{epsilon:g}") for epsilon in EPSILONS]
            body.append([method, cell("largest", method, first, "none"), *noisy])
        text.append(
            as_table(["strategy", "no noise", *(f"epsilon {one:g}" for one in EPSILONS)], body)
        )
    return "\n".join(text) + "\n"


def cells_of(page: str) -> Iterator[tuple[str, dict[tuple[str, str, str], str]]]:
    """Yield each line with its cells by the line before the table, strategy and column; other lines have no cells."""
    before, header = "", []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            before, header, cells = line or before, [], []
        elif not header:
            header, cells = cells, []
        strategy = cells[header.index("strategy")] if cells else ""
        yield (
            line,
            {(before, strategy, column): cell for column, cell in zip(header, cells, strict=False)},
        )


def completed(tables: str, page: str) -> str:
    """Return tables with the page's figures where a cell is "–"."""
    known = {place: cell for _, cells in cells_of(page) for place, cell in cells.items()}
    lines = []
    for line, cells in cells_of(tables):
        found = [known.get(place, cell) if cell == "–" else cell for place, cell in cells.items()]
        lines.append(f"| {' | '.join(found)} |" if cells else line)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("--csv", type=Path, default=Path("leaderboard.csv"))
    parser.add_argument("--only")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--batteries", default=BATTERIES)
    parser.add_argument("--largest", action="store_true")
    parser.add_argument("--no-page", action="store_true")
    given = parser.parse_args()
    os.environ[FOLDER] = given.folder
    warnings.simplefilter("ignore")
    if not given.csv.exists():
        given.csv.write_text(",".join(FIELDS) + "\n")
    done = read(given.csv)
    with given.csv.open("a", newline="", buffering=1) as file:
        writer = csv.DictWriter(file, FIELDS)
        for task in tasks(given):
            if task in done:
                continue
            name, method, split, epsilon, seed = task
            try:
                found = scores(
                    name, method, split, None if epsilon == "none" else float(epsilon), seed
                )
            except ValueError as error:
                print(*task, error, flush=True)
                continue
            plain = {key: f"{value:.4f}" for key, value in found.items()}
            writer.writerow(
                dict(zip(FIELDS, (name, len(table_of(name).rows), *task[1:]), strict=False)) | plain
            )
    if given.no_page:
        return
    before, _, rest = PAGE.read_text().partition(MARKS[0])
    former, _, after = rest.partition(MARKS[1])
    PAGE.write_text(
        f"{before}{MARKS[0]}\n{completed(tables_of(read(given.csv)), former)}\n{MARKS[1]}{after}"
    )


if __name__ == "__main__":
    main()
