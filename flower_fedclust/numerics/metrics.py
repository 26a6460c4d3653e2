"""How well clusters agree with classes, from nothing but the table that counts them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Counts = NDArray[np.int64]


def count_table(classes: ArrayLike, clusters: NDArray[np.intp], n_clusters: int) -> dict[str, Counts]:
    """Count, for every class, the rows in each cluster.

    Parameters
    ----------
    classes : array-like of shape (n_rows,)
        True classes, of any type that NumPy can sort.
    clusters : ndarray of shape (n_rows,)
        Cluster numbers from 0.
    n_clusters : int

    Returns
    -------
    dict of str to ndarray of shape (n_clusters,)
        By the classes as text: one client's file may say 1 where another's says 1.0, or "1" beside a class "unknown".
    """
    names, index = np.unique(np.asarray(classes), return_inverse=True)
    table = np.zeros((len(names), n_clusters), dtype=np.int64)
    np.add.at(table, (index, clusters), 1)
    return {_class_name(name): row for name, row in zip(names.tolist(), table, strict=True)}


def _class_name(name: Hashable) -> str:
    return f"{name:.0f}" if isinstance(name, float) and name.is_integer() else str(name)


def add_tables(tables: Sequence[Mapping[str, Counts]]) -> Counts:
    """Add up tables whose classes need not be the same.

    Returns
    -------
    ndarray of shape (n_classes, n_clusters)
        One row for each class that occurs in any table.
    """
    total: dict[str, Counts] = {}
    for table in tables:
        for name, counts in table.items():
            total[name] = total[name] + counts if name in total else counts
    return np.stack([total[name] for name in sorted(total)])


def agreement(table: Counts) -> dict[str, float]:
    """Return accuracy, normalised mutual information and adjusted Rand index of a table of counts.

    Parameters
    ----------
    table : ndarray of shape (n_classes, n_clusters)

    Returns
    -------
    dict
        ``accuracy`` under the best one-to-one match of clusters with classes (Hungarian method), ``nmi``
        (arithmetic mean) and ``ari``, as scikit-learn defines them.
    """
    from scipy.optimize import linear_sum_assignment

    matched = linear_sum_assignment(table, maximize=True)
    return {
        "accuracy": float(table[matched].sum() / table.sum()),
        "nmi": _normalized_mutual_information(table),
        "ari": _adjusted_rand_index(table),
    }


def _normalized_mutual_information(table: Counts) -> float:
    from scipy.sparse import csr_array
    from sklearn.metrics import mutual_info_score

    table = table[table.any(axis=1)][:, table.any(axis=0)]
    if table.size <= 1:
        return 1.0
    shared = float(mutual_info_score(None, None, contingency=csr_array(table)))
    return shared / (0.5 * (_entropy(table.sum(axis=1)) + _entropy(table.sum(axis=0)))) if shared else 0.0


def _entropy(counts: Counts) -> float:
    parts, whole = counts.astype(np.float64), float(counts.sum())
    return float(-np.sum(parts / whole * (np.log(parts) - math.log(whole))))


def _adjusted_rand_index(table: Counts) -> float:
    """Return it from the pairs of rows that are together in both, in one alone, or in none; all are integers."""
    together, in_class, in_cluster = (int((sizes**2).sum()) for sizes in (table, table.sum(axis=1), table.sum(axis=0)))
    n_rows = int(table.sum())
    both, class_alone, cluster_alone = together - n_rows, in_class - together, in_cluster - together
    neither = n_rows**2 - class_alone - cluster_alone - together
    if class_alone == cluster_alone == 0:
        return 1.0
    by_chance = (both + class_alone) * (class_alone + neither) + (both + cluster_alone) * (cluster_alone + neither)
    return 2.0 * (both * neither - class_alone * cluster_alone) / by_chance
