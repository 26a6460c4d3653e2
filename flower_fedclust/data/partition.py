"""Splitting a table over clients: at random, by classes, by clusters, or by a column.

Comparisons need clients, and a single table has none. How the rows are spread decides how hard a problem is: equal
parts at random are easy, and clients with only one class are hard. Schemes that Flower Datasets has as well give the
same parts as there.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.data.federation import FederatedRows, Table
from flower_fedclust.data.frames import take
from flower_fedclust.names import look_up
from flower_fedclust.numerics.checks import check_integer

# How users write each scheme.
_SCHEMES = ("iid", "dirichlet:ALPHA", "classes:N", "k-means", "sorted:COLUMN", "column")
_SPELLING = {scheme.partition(":")[0]: scheme for scheme in _SCHEMES}
_NEED_LABELS = ("dirichlet", "classes")

# How often a random scheme is drawn again before an error is raised.
_ATTEMPTS = 11


def partition(
    table: Table, scheme: str, *, n_clients: int | None = None, random_state: int = 0
) -> FederatedRows:
    """Split the rows of a table over clients.

    Parameters
    ----------
    table : Table
        Its server rows, if it has any, go to the server and to no client.
    scheme : str
        "iid": at random, in equal parts. "dirichlet:ALPHA": the shares of the clients in each class
        are drawn from a Dirichlet distribution; the smaller ALPHA, the more the clients differ.
        "classes:N": each client has rows of N classes only. "k-means": each client has one of as
        many clusters as there are clients. "sorted:COLUMN": the rows are dealt by a column, named
        or numbered from 0: each client has an equal part of the rows, sorted by its values.
        "column": as the owners of the table say.
    n_clients : int, optional
        The number of clients; must be given, except with "column".
    random_state : int, default 0
        The same seed gives the same partition.

    Returns
    -------
    FederatedRows
        Every row belongs to exactly one client, in the order of the table. The names of the clients
        are "0", "1" and so on; with "column", they are the sorted owners.

    Raises
    ------
    ValueError
        If the scheme does not exist, if it needs labels or owners that the table does not have, if
        there are more clients than rows, or if a client or a class would get no row.
    """
    kind, _ = parsed_scheme(scheme)
    if kind == "column" and table.owners is None:
        raise ValueError(
            f"The partition 'column' needs a client for each row, and {table.name} has none; name its client column."
        )
    classes = table.labels if table.labelings is None else table.labelings[:, 0]
    if kind in _NEED_LABELS and classes is None:
        raise ValueError(
            f"The partition '{scheme}' needs labels, and {table.name} has none; name its label column or use iid."
        )
    if kind == "column":
        groups = table.owners
        names = [str(owner) for owner in _classes_and_codes(groups)[0]]
    else:
        names = [str(index) for index in range(_checked_n_clients(n_clients, len(table.rows)))]
        groups = classes if kind in _NEED_LABELS else np.zeros(len(table.rows), dtype=np.intp)
        if kind == "k-means":
            if hasattr(table.rows, "iloc"):
                raise ValueError(
                    "The partition 'k-means' is for rows that are numbers; take another for raw tables."
                )
            groups = _clusters(table, len(names), random_state)
        elif kind == "sorted":
            groups = _values_of(table, scheme.partition(":")[2])
    assert groups is not None
    if table.subjects is None or kind == "column":
        parts = partition_indices(groups, scheme, n_clients, random_state)
    else:
        parts = _parts_of_persons(table, scheme, kind, len(names), random_state)
    ids = table.row_ids_or_numbers
    return FederatedRows(
        clients=[take(table.rows, part) for part in parts],
        labels=None if table.labels is None else [table.labels[part] for part in parts],
        names=names,
        columns=table.columns,
        server_rows=table.server_rows,
        server_rows_origin=table.server_rows_origin,
        row_ids=[ids[part] for part in parts],
        id_column=table.id_column,
        server_row_ids=table.server_row_ids,
        subjects=None if table.subjects is None else [table.subjects[part] for part in parts],
    )


def _parts_of_persons(
    table: Table, scheme: str, kind: str, n_clients: int, random_state: int
) -> list[NDArray[np.intp]]:
    """Return the numbers of each client's rows; all rows of a person go to the same client.

    A guarantee per subject covers the rows that a person has at one client, so no person may be at two clients.
    """
    if kind != "iid":
        raise ValueError(
            f"The partition '{scheme}' would spread the rows of one person over several clients; take iid, or name the "
            "client_column."
        )
    assert table.subjects is not None
    persons = partition_indices(
        np.zeros(len(table.subjects.words), dtype=np.intp), scheme, n_clients, random_state
    )
    client_of = np.empty(len(table.subjects.words), dtype=np.intp)
    for index, person_rows in enumerate(persons):
        client_of[person_rows] = index
    of_row = client_of[table.subjects.codes]
    return [np.flatnonzero(of_row == index) for index in range(n_clients)]


def partition_indices(
    labels: ArrayLike, scheme: str, n_clients: int | None = None, random_state: int = 0
) -> list[NDArray[np.intp]]:
    """Return the indices of each client's rows, ascending; each row is in exactly one array.

    The rows are shuffled first, because the schemes divide the rows, or each class, in order: in a file that is sorted
    by date, each client would get one period. For the shuffled rows, the parts are the same as from Flower Datasets'
    IidPartitioner, DirichletPartitioner and PathologicalPartitioner with the same seed.

    Parameters
    ----------
    labels : array-like of shape (n_rows,)
        The classes; for "column" the owners, for "k-means" the clusters, for "sorted:COLUMN" the
        values of the column; for "iid" only the length matters.
    scheme, n_clients, random_state
        See :func:`partition`; "column" and "k-means" do not use ``n_clients``.
    """
    kind, parameter = parsed_scheme(scheme)
    names, codes = _classes_and_codes(labels)
    n_rows = len(codes)
    # The shuffle has a seed of its own, because it must not use random numbers of the partitioner.
    shuffle_seed, *seeds = (
        int(word) for word in np.random.SeedSequence(random_state).generate_state(1 + _ATTEMPTS)
    )
    order = np.random.default_rng(shuffle_seed).permutation(n_rows)
    codes = codes[order]
    if kind in ("column", "k-means"):
        parts = _rows_of(codes, len(names))
    else:
        count = _checked_n_clients(n_clients, n_rows)
        if kind == "sorted":  # the shuffle puts rows with equal values in random order
            parts = np.array_split(np.argsort(codes, kind="stable"), count)
        elif kind == "iid":
            parts = np.array_split(np.arange(n_rows), count)
        elif kind == "dirichlet":
            parts = _dirichlet_parts(codes, count, parameter, seeds[0], len(names))
        else:
            parts = _classes_parts(codes, count, int(parameter), seeds, len(names))
    return [np.sort(order[part]).astype(np.intp, copy=False) for part in parts]


def hold_out_server_rows(table: Table, n_rows: int, *, random_state: int = 0) -> Table:
    """Take random rows out of a table and make them the public rows of the server.

    If the table has subjects, random persons are taken out with all of their rows, until there are enough rows.

    Parameters
    ----------
    table : Table
        A table that already has server rows is returned as it is.
    n_rows : int
        The number of rows for the server, at least 1.
    random_state : int, default 0
        The same seed takes the same rows.

    Raises
    ------
    ValueError
        If no row would be left, or no row of one of the owners.
    """
    if table.server_rows is not None:
        return table
    total = len(table.rows)
    count = check_integer("n_rows", n_rows, at_least=1)
    if count >= total:
        raise ValueError(
            f"{table.name} has {total} rows, so the server cannot get {count} of them; give at most {total - 1}."
        )
    stays, owners = np.ones(total, dtype=bool), ""
    if table.subjects is None:
        stays[np.random.default_rng(random_state).permutation(total)[:count]] = False
    else:
        persons = np.random.default_rng(random_state).permutation(table.subjects.n_subjects)
        n_rows_each = np.bincount(table.subjects.codes, minlength=len(persons))[persons]
        drawn = persons[: int(np.searchsorted(np.cumsum(n_rows_each), count)) + 1]
        stays = ~np.isin(table.subjects.codes, drawn)
        count, owners = (
            total - int(stays.sum()),
            f" of {len(drawn)} persons, with all rows of each,",
        )
        if not stays.any():
            raise ValueError(
                f"{table.name} has no person left if the server gets {n_rows} rows; give fewer."
            )
    if table.owners is not None:
        lost = np.setdiff1d(table.owners, table.owners[stays])
        if len(lost) > 0:
            raise ValueError(
                f"Holding out {count} rows of {table.name} leaves no row to client '{lost[0]}'; hold out fewer."
            )
    return replace(
        table,
        rows=take(table.rows, np.flatnonzero(stays)),
        labels=None if table.labels is None else table.labels[stays],
        labelings=None if table.labelings is None else table.labelings[stays],
        owners=None if table.owners is None else table.owners[stays],
        row_ids=table.row_ids_or_numbers[stays],
        subjects=None if table.subjects is None else table.subjects[stays],
        server_row_ids=table.row_ids_or_numbers[~stays],
        server_rows=take(table.rows, np.flatnonzero(~stays)),
        server_rows_origin=(
            f"{count} rows{owners} of {table.name}, drawn at random and taken from the clients: "
            "these rows are public, nothing protects them."
        ),
    )


def _values_of(table: Table, column: str) -> NDArray[Any]:
    """Return the values of the column by which "sorted:COLUMN" sorts the rows."""
    names = list(table.rows.columns) if hasattr(table.rows, "iloc") else list(table.columns or ())
    n_columns = table.rows.shape[1]
    place = (
        names.index(column) if column in names else int(column) if column.isdecimal() else n_columns
    )
    if place >= n_columns:
        known = f"a number from 0 to {n_columns - 1}" + (", or one of its names" if names else "")
        raise ValueError(
            f"The partition 'sorted:{column}' names no column of {table.name}; give {known}."
        )
    values = table.rows.iloc[:, place] if hasattr(table.rows, "iloc") else table.rows[:, place]
    return np.asarray(values)


def _clusters(table: Table, n_clients: int, random_state: int) -> NDArray[np.intp]:
    """Return the cluster of each row, by scikit-learn's k-means with one start."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # scikit-learn warns if there are too few different rows; an error about them follows below
        warnings.simplefilter("ignore", ConvergenceWarning)
        clusters = KMeans(n_clients, n_init=1, random_state=random_state).fit_predict(table.rows)
    n_found = len(np.unique(clusters))
    if n_found < n_clients:
        raise ValueError(
            f"The partition 'k-means' finds {n_found} clusters in {table.name} for {n_clients} clients; its rows are "
            "too alike, so ask for fewer clients."
        )
    return np.asarray(clusters, dtype=np.intp)


def parsed_scheme(scheme: str) -> tuple[str, float]:
    """Split a scheme such as "dirichlet:0.3" into its name and its number (0 for schemes without a number).

    Raises a ValueError for an unknown scheme, or for a number that the scheme cannot take.
    """
    kind, colon, text = scheme.partition(":")
    if kind not in _SPELLING:
        look_up(scheme, dict.fromkeys(_SPELLING.values()), "partition")
    if ":" not in _SPELLING[kind]:
        if colon:
            raise ValueError(f"The partition '{kind}' takes no number; write {kind}, not {scheme}.")
        return kind, 0.0
    if kind == "sorted":
        if not text:
            raise ValueError(
                "The partition 'sorted:COLUMN' needs a column; write its name or its number, from 0."
            )
        return kind, 0.0
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    is_valid = (
        number > 0 and math.isfinite(number)
        if kind == "dirichlet"
        else number >= 1 and number.is_integer()
    )
    if not is_valid:
        wanted = "number greater than 0" if kind == "dirichlet" else "whole number of at least 1"
        raise ValueError(f"The partition '{_SPELLING[kind]}' needs a {wanted}, not '{text}'.")
    return kind, number


def _checked_n_clients(n_clients: int | None, n_rows: int) -> int:
    """Return the number of clients; raise a ValueError if there are more clients than rows."""
    count = check_integer("n_clients", n_clients, at_least=1)
    if count > n_rows:
        raise ValueError(
            f"{count} clients cannot share {n_rows} rows; give at most {n_rows} clients, so that each has a row."
        )
    return count


def _classes_and_codes(labels: ArrayLike | None) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Return the different labels, sorted, and the index of each row's label among them."""
    try:
        return np.unique(np.asarray(labels), return_inverse=True)
    except TypeError:
        raise ValueError(
            "The labels or clients of the rows have several types; give all as text or all as numbers."
        ) from None


def _rows_of(codes: NDArray[np.intp], n_codes: int) -> list[NDArray[np.intp]]:
    """Return the numbers of the rows with each code, ascending."""
    return np.split(
        np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes, minlength=n_codes))[:-1]
    )


def _dirichlet_parts(
    codes: NDArray[np.intp], n_clients: int, alpha: float, seed: int, n_classes: int
) -> list[NDArray[np.intp]]:
    """Cut each class into shares drawn from a Dirichlet distribution, one for each client.

    The shares are drawn again if a client gets no row; after several attempts, a ValueError is raised.
    """
    rng = np.random.default_rng(seed)
    rows_of_classes = _rows_of(codes, n_classes)
    for _ in range(_ATTEMPTS):
        cut: list[list[NDArray[np.intp]]] = []
        for rows in rows_of_classes:
            ends = np.cumsum(rng.dirichlet(np.full(n_clients, alpha))) * len(rows)
            cut.append(np.split(rows, ends.astype(int)[:-1]))
        parts = [np.concatenate(of_client) for of_client in zip(*cut, strict=True)]
        if all(map(len, parts)):
            return parts
    raise ValueError(
        f"The partition 'dirichlet:{alpha:g}' leaves one of {n_clients} clients without a row in {_ATTEMPTS} draws; "
        "give a larger ALPHA or fewer clients."
    )


def _classes_parts(
    codes: NDArray[np.intp], n_clients: int, n_each: int, seeds: list[int], n_classes: int
) -> list[NDArray[np.intp]]:
    """Give each client one class in turn and others at random, as Li et al. do (2022, arXiv 2102.02079).

    With fewer clients than classes, a class may be left out; the classes are then drawn again.
    """
    n_rows = np.bincount(codes, minlength=n_classes)
    for seed in seeds if n_each <= n_classes <= n_clients * n_each else ():
        chosen = _chosen_classes(np.random.default_rng(seed), n_clients, n_each, n_classes)
        n_chosen = chosen.sum(axis=0)
        if (n_chosen == 0).any() or (n_chosen > n_rows).any():
            continue
        parts: list[list[NDArray[np.intp]]] = [[] for _ in range(n_clients)]
        for code, rows in enumerate(_rows_of(codes, n_classes)):
            shares = np.array_split(rows, n_chosen[code])
            for client, share in zip(np.flatnonzero(chosen[:, code]), shares, strict=True):
                parts[client].append(share)
        return [np.concatenate(of_client) for of_client in parts]
    raise ValueError(
        f"The partition 'classes:{n_each}' cannot give {n_clients} clients rows of {n_each} classes each and leave out "
        f"none of {n_classes} classes; give another N, or another number of clients."
    )


def _chosen_classes(
    rng: np.random.Generator, n_clients: int, n_each: int, n_classes: int
) -> NDArray[np.bool_]:
    """Draw the classes that each client has; entry (i, j) says whether client i has class j."""
    chosen = np.zeros((n_clients, n_classes), dtype=bool)
    for client in range(n_clients):
        chosen[client, client % n_classes] = True
        while chosen[client].sum() < n_each:
            chosen[client, rng.choice(n_classes, size=1)[0]] = True
    return chosen
