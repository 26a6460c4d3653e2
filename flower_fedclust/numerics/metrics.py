"""Measures of agreement between clusters and classes, from the number of rows of each class in each cluster."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Counts = NDArray[np.int64]

#: Scores are computed from at most this many rows: scikit-learn needs a label for each row, and the counts may come
#: from another party.
MOST_SCORED_ROWS = 2_000_000


def count_table(
    classes: ArrayLike, clusters: NDArray[np.intp], n_clusters: int
) -> dict[str, Counts]:
    """Count, for every class, the rows in each cluster; rows with the label -1 (noise) are not counted."""
    names, index = np.unique(np.asarray(classes), return_inverse=True)
    table = np.zeros((len(names), n_clusters), dtype=np.int64)
    somewhere = clusters >= 0
    np.add.at(table, (index.ravel()[somewhere], clusters[somewhere]), 1)
    return {_class_name(name): row for name, row in zip(names.tolist(), table, strict=True)}


def cluster_sizes(labels: Sequence[NDArray[np.intp]], n_clusters: int) -> Counts:
    """Return the number of rows in each cluster; rows with the label -1 (noise) are not counted."""
    together = np.concatenate(labels)
    return np.bincount(together[together >= 0], minlength=n_clusters)


def _class_name(name: Hashable) -> str:
    return f"{name:.0f}" if isinstance(name, float) and name.is_integer() else str(name)


def add_tables(tables: Sequence[Mapping[str, Counts]]) -> Counts:
    """Add up tables of counts, each by class; the tables may have different classes."""
    total: dict[str, Counts] = {}
    for table in tables:
        for name, counts in table.items():
            total[name] = total[name] + counts if name in total else counts
    return np.stack([total[name] for name in sorted(total)])


def agreement(table: Counts) -> dict[str, float]:
    """Return accuracy, normalized mutual information and adjusted Rand index of a table of counts."""
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    matched = linear_sum_assignment(table, maximize=True)
    # The other two scores do not depend on the order of rows, so any rows with these counts give them.
    accuracy, n_rows = float(table[matched].sum() / table.sum()), int(table.sum())
    if n_rows > MOST_SCORED_ROWS:
        table = np.ceil(table * (MOST_SCORED_ROWS / n_rows)).astype(np.int64)
    classes, clusters = np.indices(table.shape)
    true = np.repeat(classes.ravel(), table.ravel())
    predicted = np.repeat(clusters.ravel(), table.ravel())
    return {
        "accuracy": accuracy,
        "nmi": float(normalized_mutual_info_score(true, predicted)),
        "ari": float(adjusted_rand_score(true, predicted)),
    }


def best_agreement(
    labelings: NDArray[np.intp], clusters: NDArray[np.intp], n_clusters: int
) -> dict[str, float]:
    """Return each score for the labeling with which it is best; rows with the label 0 are not scored.

    Only labelings with ``n_clusters`` classes are compared or, if there are none, all labelings. "nca" is the
    normalized clustering accuracy (Gagolewski 2025, earlier called adjusted asymmetric accuracy): the mean over the
    classes of the share of rows in the matched cluster, scaled so that chance is 0 and a perfect match 1.
    "adjusted_accuracy" scales the accuracy in the same way.

    Parameters
    ----------
    labelings : ndarray of shape (n_rows, n_labelings)
    clusters : ndarray of shape (n_rows,)
    n_clusters : int
    """
    tables = []
    for labels in labelings.T:
        scored = labels > 0
        tables.append(add_tables([count_table(labels[scored], clusters[scored], n_clusters)]))
    alike = [table for table in tables if len(table) == n_clusters] or tables
    found = [agreement(table) | _adjusted(table) for table in alike]
    best = {name: max(scores[name] for scores in found) for name in found[0]}
    largest = max(float(table.sum(axis=1).max() / table.sum()) for table in alike)
    return best | {"n_classes": len(alike[0]), "largest_class": largest}


def _adjusted(table: Counts) -> dict[str, float]:
    from scipy.optimize import linear_sum_assignment

    def above_chance(shares: NDArray[np.float64], number: int) -> float:
        matched = float(shares[linear_sum_assignment(shares, maximize=True)].sum())
        return (matched - 1.0 / number) / (1.0 - 1.0 / number) if number > 1 else 1.0

    by_class = table / np.maximum(table.sum(axis=1, keepdims=True), 1) / len(table)
    overall = table / table.sum()
    return {
        "nca": above_chance(by_class, len(table)),
        "adjusted_accuracy": above_chance(overall, max(table.shape)),
    }
