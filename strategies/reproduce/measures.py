"""Data sets, partitions and measures of the papers' tables, and how a row of a table is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import entr, rel_entr

from flower_fedclust.data import FederatedRows, Table, load_dataset, partition
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.metrics import count_table
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.registry import accepted_parameters, make_strategy
from flower_fedclust.results.result import Result
from flower_fedclust.simulation import simulate
from reproduce.files import DIGITS, SETS, read_digits, read_mat
from reproduce.tables import Experiment

Measure = Callable[[Experiment, int], Mapping[str, float]]
#: From a row of a table and a seed to our figures by column.
MEASURES: dict[str, Measure] = {}
#: Data sets of the papers that the package does not have.
DATA: dict[str, Callable[[], Table]] = {
    DIGITS: read_digits,
    **{name: partial(read_mat, *found) for name, found in SETS.items()},
}


def _registered(registry: dict[str, Any], name: str) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        registry[name] = function
        return function

    return register


#: The column of `nmi_without_class_0`.
WITHOUT_CLASS_0 = "NMI without class 0"

#: Decorators that register a measure or a data set under its name in the TOML files.
measure, data = partial(_registered, MEASURES), partial(_registered, DATA)


@data("fashion-mnist of 5,000")
def fashion() -> Table:
    """Return 5,000 images of Fashion-MNIST, drawn at random."""
    return load_dataset("fashion-mnist", n_rows=5_000)


@lru_cache(maxsize=1)
def load(name: str) -> Table:
    """Load a data set; the last one is kept, because all rows of a table load it."""
    return DATA[name]() if name in DATA else load_dataset(name)


def add_noise(table: Table, level: float, seed: int) -> Table:
    """Add Gaussian noise to rows, in standard deviations of all entries together (FedSC, Table 1)."""
    if level == 0:
        return table
    drawn = np.random.default_rng([seed, 1]).normal(
        scale=level * table.rows.std(), size=table.rows.shape
    )
    return Table(table.rows + drawn, table.labels)


def split_rows(table: Table, experiment: Experiment, seed: int) -> FederatedRows:
    """Split a table over clients, also in the ways that only the papers have."""
    split = experiment.split
    if experiment.gathered is not None:
        table, split = (
            with_gathered_classes(table, experiment.gathered, experiment.clients, seed),
            "column",
        )
    elif split == "whole-classes":
        table, split = with_whole_classes(table, experiment.clients), "column"
    return partition(table, split, n_clients=experiment.clients, random_state=seed)


def with_whole_classes(table: Table, n_clients: int) -> Table:
    """Give each client the same number of whole classes ("classes:N" would share some)."""
    _, classes = np.unique(np.asarray(table.labels), return_inverse=True)
    return replace(table, owners=classes * n_clients // (classes.max() + 1))


def with_gathered_classes(table: Table, level: float, n_clients: int, seed: int) -> Table:
    """Give client ``c % n_clients`` a part (``level``) of class c, and deal the rest out evenly (SPP-FGC, Table 2)."""
    _, classes = np.unique(np.asarray(table.labels), return_inverse=True)
    rng = np.random.default_rng(seed)
    owners = np.empty(len(classes), dtype=np.intp)
    for c in range(classes.max() + 1):
        own = rng.permutation(np.flatnonzero(classes == c))
        n_home = round(level * len(own))
        owners[own[:n_home]] = c % n_clients
        # Each class begins with another client, so that the remainders do not all go to the first.
        owners[own[n_home:]] = (np.arange(len(own) - n_home) + c) % n_clients
    return replace(table, owners=owners)


def run(experiment: Experiment, seed: int, **more: Any) -> tuple[Result, FederatedRows]:
    """Run a row with as many clusters as classes; ``more`` are further parameters of the strategy."""
    table = add_noise(load(experiment.data), experiment.row_noise, seed)
    clients = split_rows(table, experiment, seed)
    n_clusters = len(np.unique(np.asarray(table.labels)))
    made = make_strategy(
        experiment.strategy, **{"n_clusters": n_clusters, **experiment.parameters, **more}
    )
    return simulate(
        made, clients.clients, labels=clients.labels, seed=seed, progress=False
    ), clients


def agreement_scores(result: Result) -> dict[str, float]:
    """Return accuracy, NMI and ARI by the names of the papers' columns."""
    names = {"accuracy": "accuracy", "NMI": "nmi", "ARI": "ari"}
    return {column: result.metrics[name] for column, name in names.items()}


@measure("agreement")
def agreement_of(experiment: Experiment, seed: int) -> dict[str, float]:
    """Measure how well clusters and classes agree."""
    result, clients = run(experiment, seed)
    scores = agreement_scores(result)
    if WITHOUT_CLASS_0 in experiment.printed:
        scores[WITHOUT_CLASS_0] = nmi_without_class_0(result, clients)
    return scores


def nmi_without_class_0(result: Result, clients: FederatedRows) -> float:
    """Return the NMI without the first class and its matched cluster, as the program of FedSC's authors computes it."""
    classes, clusters = map(np.concatenate, (clients.labels, result.labels_of_clients))
    table = np.stack(list(count_table(classes, clusters, len(np.unique(classes))).values()))
    _, matched = linear_sum_assignment(table, maximize=True)
    shares = table[:, matched] / table.sum()
    of_classes, of_clusters = shares.sum(axis=1)[1:], shares.sum(axis=0)[1:]
    information = rel_entr(shares[1:, 1:], np.outer(of_classes, of_clusters)).sum()
    return float(2.0 * information / (entr(of_classes).sum() + entr(of_clusters).sum()))


def epsilon_of(column: str) -> float | None:
    """Return the epsilon of a column "epsilon 0.5"; None for another column."""
    return float(column.removeprefix("epsilon ")) if column.startswith("epsilon ") else None


@lru_cache(maxsize=64)
def optimal_cost(n_rows: int, seed: int) -> float:
    """Return the cost of Lloyd's algorithm on all rows of FedDP-KMeans' mixture, from its true components' means."""
    from sklearn.cluster import KMeans

    table = load_dataset("gaussian-mixture", random_state=seed, n_rows=n_rows)
    labels = np.asarray(table.labels)
    means = np.stack([table.rows[labels == label].mean(axis=0) for label in np.unique(labels)])
    with one_thread():
        centers = KMeans(len(means), init=means, n_init=1).fit(table.rows).cluster_centers_
    return KMeansModel(centers).cost(table.rows)


@measure("radius of the public rows")
def radius(_: Experiment, seed: int) -> dict[str, float]:
    """Return the norm of the longest public row of FedDP-KMeans' mixture."""
    server_rows = load_dataset("gaussian-mixture", random_state=seed, n_rows=1).server_rows
    return {"radius": float(np.linalg.norm(np.asarray(server_rows), axis=1).max())}


@measure("cost over the optimum")
def cost_over_the_optimum(experiment: Experiment, seed: int) -> dict[str, float]:
    """Measure the k-means cost on FedDP-KMeans' mixture over the pooled optimum: a run for each column's epsilon."""
    given = dict(experiment.parameters)
    n_rows = experiment.clients * experiment.rows_of_each
    table = load_dataset("gaussian-mixture", random_state=seed, n_rows=n_rows)
    known = accepted_parameters(experiment.strategy)
    if "rows_per_client" in known:
        given["rows_per_client"] = experiment.rows_of_each
    if "server_data" in known and "max_norm" not in given:
        given["server_data"] = table.server_rows
    found = {}
    for column in experiment.columns:
        epsilon = epsilon_of(column)
        if (epsilon is None) == ("epsilon" in known):
            continue  # a private method, or one without privacy, has no figure in this column
        budget = {} if epsilon is None else {"epsilon": epsilon}
        made = make_strategy(experiment.strategy, n_clusters=10, **given, **budget)
        result = simulate(made, np.split(table.rows, experiment.clients), seed=seed, progress=False)
        found[column] = result.metrics["cost"] / optimal_cost(n_rows, seed)
    return found
