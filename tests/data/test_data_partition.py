import warnings

import numpy as np
import pandas as pd
import pytest

from flower_fedclust.data import (
    FederatedRows,
    Table,
    hold_out_server_rows,
    load_dataset,
    partition,
    partition_indices,
)

SCHEMES = ["iid", "dirichlet:0.5", "classes:2", "sorted:0", "column"]


@pytest.fixture(scope="module")
def table():
    digits = load_dataset("digits")
    owners = np.resize(["oslo", "bergen", "tromsø"], len(digits.rows))
    return Table(
        rows=digits.rows, labels=digits.labels, owners=owners, columns=digits.columns, name="digits"
    )


def groups_of(table, scheme):
    return table.owners if scheme == "column" else table.labels


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_row_is_in_exactly_one_client_in_the_order_of_the_table(table, scheme):
    parts = partition_indices(groups_of(table, scheme), scheme, 10)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(table.rows)))
    assert all(part.dtype == np.intp and (np.diff(part) > 0).all() for part in parts)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_seed_decides_the_partition(table, scheme):
    first, same, other = (
        partition_indices(groups_of(table, scheme), scheme, 10, seed) for seed in (5, 5, 6)
    )
    assert all(map(np.array_equal, first, same))
    assert all(map(np.array_equal, first, other)) == (scheme == "column")


def test_numpys_global_random_state_is_left_alone(table):
    np.random.seed(0)  # noqa: NPY002 - this is the state in question
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    partition(table, "dirichlet:0.5", n_clients=10)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_iid_gives_equal_parts_with_all_classes_in_each(table):
    federated = partition(table, "iid", n_clients=10)
    sizes = [len(rows) for rows in federated.clients]
    assert max(sizes) - min(sizes) <= 1
    assert all(len(np.unique(labels)) == 10 for labels in federated.labels)


def test_iid_needs_no_labels_and_one_client_gets_the_table_in_its_order(table):
    federated = partition(Table(rows=table.rows), "iid", n_clients=1)
    assert federated.labels is None
    assert np.array_equal(federated.clients[0], table.rows)


def test_k_means_gives_each_client_a_cluster_of_the_rows(table):
    federated = partition(table, "k-means", n_clients=4)
    assert federated.names == ["0", "1", "2", "3"]
    assert sum(len(rows) for rows in federated.clients) == len(table.rows)
    means = np.array([rows.mean(axis=0) for rows in federated.clients])
    for index, rows in enumerate(federated.clients):
        nearest = ((rows[:, None, :] - means) ** 2).sum(axis=2).argmin(axis=1)
        assert np.all(nearest == index)
    alike = Table(rows=np.repeat([[0.0, 1.0], [5.0, 5.0]], 10, axis=0))
    with pytest.raises(ValueError, match="finds 2 clusters"):
        partition(alike, "k-means", n_clients=3)


def test_rows_dealt_by_a_column_lie_in_ranges_of_it_and_equal_values_are_dealt_at_random(table):
    rows = np.column_stack(
        [np.repeat([0.0, 1.0, 1.0, 2.0], 25), np.random.default_rng(0).normal(size=100)]
    )
    own = Table(rows=rows, columns=["level", "7"])
    first, second = (partition(own, f"sorted:{column}", n_clients=4) for column in ("level", "0"))
    assert all(map(np.array_equal, first.clients, second.clients))
    assert [sorted(set(each[:, 0])) for each in first.clients] == [[0.0], [1.0], [1.0], [2.0]]
    assert set(first.row_ids[1]) & set(range(50, 75))
    named = partition(own, "sorted:7", n_clients=3).clients
    assert [len(each) for each in named] == [34, 33, 33]
    assert named[0][:, 1].max() < named[1][:, 1].min()
    frame = pd.DataFrame(rows, columns=["level", "7"])
    assert (
        partition(Table(frame), "sorted:7", n_clients=3)
        .clients[0]
        .equals(frame.iloc[first_rows(named[0], rows)])
    )


def first_rows(part, rows):
    return np.flatnonzero(np.isin(rows[:, 1], part[:, 1]))


@pytest.mark.parametrize("seed", range(5))
def test_dirichlet_gives_every_client_a_row(seed):
    labels = load_dataset("iris").labels
    assert all(len(part) > 0 for part in partition_indices(labels, "dirichlet:0.3", 10, seed))


def test_small_alpha_makes_clients_differ_more(table):
    def largest_share(scheme):
        labels = partition(table, scheme, n_clients=5).labels
        return np.mean([np.bincount(part).max() / len(part) for part in labels])

    assert largest_share("dirichlet:0.1") > 1.5 * largest_share("dirichlet:100")


def test_a_class_is_split_at_random_and_not_in_the_order_of_the_file():
    # One class, sorted rows: cut in their order, each client would get a block of consecutive rows.
    for scheme in ("iid", "dirichlet:5", "classes:1"):
        for part in partition_indices(np.zeros(300, dtype=int), scheme, 3):
            assert part[-1] - part[0] >= len(part)


@pytest.mark.parametrize("n_each", [1, 2, 10])
def test_classes_gives_each_client_n_classes(table, n_each):
    federated = partition(table, f"classes:{n_each}", n_clients=12)
    assert all(len(np.unique(labels)) == n_each for labels in federated.labels)


def test_classes_with_fewer_clients_than_classes_loses_no_row(table):
    for seed in range(5):
        federated = partition(table, "classes:4", n_clients=5, random_state=seed)
        assert sum(len(rows) for rows in federated.clients) == len(table.rows)


def test_column_follows_the_owners_sorted_as_what_they_are(table):
    federated = partition(table, "column")
    assert federated.names == ["bergen", "oslo", "tromsø"]
    for name, rows, labels in zip(
        federated.names, federated.clients, federated.labels, strict=True
    ):
        assert np.array_equal(rows, table.rows[table.owners == name])
        assert np.array_equal(labels, table.labels[table.owners == name])
    numbered = partition(
        Table(rows=np.eye(4), owners=np.array([10, 2, 10, 1])), "column", n_clients=99
    )
    assert numbered.names == ["1", "2", "10"]
    with pytest.raises(ValueError, match="several types"):
        partition(Table(rows=np.eye(3), owners=np.array([1, "a", None], dtype=object)), "column")


@pytest.mark.parametrize("scheme", ["dirichlet:0.5", "classes:2"])
def test_text_labels_partition_like_numbers_and_stay_beside_their_rows(table, scheme):
    words = np.array([f"class {label}" for label in table.labels])
    parts = partition_indices(table.labels, scheme, 10)
    assert all(map(np.array_equal, partition_indices(words, scheme, 10), parts))
    federated = partition(table, scheme, n_clients=10)
    assert federated.columns == table.columns
    for rows, labels, part in zip(federated.clients, federated.labels, parts, strict=True):
        assert np.array_equal(rows, table.rows[part])
        assert np.array_equal(labels, table.labels[part])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_partition_prints_and_warns_nothing(table, scheme, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        partition(table, scheme, n_clients=10)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("scheme", "n_clients", "named"),
    [
        ("idd", 3, "'idd': did you mean 'iid'"),
        ("dirichelt:0.5", 3, "did you mean 'dirichlet:ALPHA'"),
        ("xyz", 3, "there are: classes:N, column, dirichlet:ALPHA, iid, k-means, sorted:COLUMN"),
        ("iid:3", 3, "takes no number"),
        ("sorted", 3, "needs a column"),
        *((f"sorted:{column}", 3, "names no column of digits") for column in ("64", "-1", "age")),
        *(
            (f"dirichlet{alpha}", 3, "ALPHA")
            for alpha in ("", ":0", ":-1", ":much", ":nan", ":inf")
        ),
        *((f"classes:{n}", 3, "classes:N") for n in (0, 1.5)),
        ("classes:11", 3, "of 11 classes"),
        ("classes:2", 3, "none of 10 classes"),
        ("classes:2", 5, "none of 10 classes"),
        ("classes:9", 400, "400 clients rows of 9 classes"),
        ("dirichlet:0.001", 50, "one of 50 clients without a row"),
        ("iid", 1798, "1798 clients"),
        *(("iid", n_clients, "n_clients") for n_clients in (0, 2.5, None)),
    ],
)
def test_bad_scheme_says_what_is_wrong(table, scheme, n_clients, named):
    with pytest.raises(ValueError, match=named):
        partition(table, scheme, n_clients=n_clients)


@pytest.mark.parametrize("scheme", ["dirichlet:0.5", "classes:2", "column"])
def test_a_scheme_names_the_labels_or_owners_that_it_lacks(table, scheme):
    with pytest.raises(ValueError, match=rf"'{scheme}' needs .* rows\.csv has none"):
        partition(Table(rows=table.rows, name="rows.csv"), scheme, n_clients=3)


# Rows for the server.


def test_held_out_rows_leave_the_table_by_the_seed():
    table = Table(
        rows=np.arange(50.0)[:, None], labels=np.arange(50), owners=np.resize(["a", "b"], 50)
    )
    rest, again, other = (hold_out_server_rows(table, 20, random_state=seed) for seed in (1, 1, 2))
    assert np.array_equal(rest.server_rows, again.server_rows)
    assert not np.array_equal(rest.server_rows, other.server_rows)
    assert len(rest.server_rows) == 20
    assert np.array_equal(
        np.sort(np.concatenate([rest.rows, rest.server_rows])[:, 0]), np.arange(50)
    )
    assert np.array_equal(rest.rows[:, 0], rest.labels)
    assert np.array_equal(rest.owners, table.owners[rest.labels])
    assert "public" in rest.server_rows_origin


def test_server_rows_that_a_table_has_are_kept_and_passed_on():
    table = load_dataset("gaussian-mixture", n_rows=200)
    assert hold_out_server_rows(table, 10) is table
    federated = partition(table, "iid", n_clients=2)
    assert federated.server_rows is table.server_rows
    assert federated.server_rows_origin == table.server_rows_origin


def test_held_out_rows_must_leave_some(table):
    for n_rows, named in ((1797, "at most 1796"), (0, "n_rows")):
        with pytest.raises(ValueError, match=named):
            hold_out_server_rows(table, n_rows)
    with pytest.raises(ValueError, match="no row to client"):
        hold_out_server_rows(
            Table(rows=np.eye(3), owners=np.array(["a", "b", "c"]), name="rows.csv"), 1
        )


def test_names_labels_and_owners_are_as_many_as_clients_and_rows():
    with pytest.raises(ValueError, match="1 names for 2 clients"):
        FederatedRows(clients=[np.eye(2), np.eye(2)], labels=None, names=["a"])
    with pytest.raises(ValueError, match="3 labels for 2 rows of a"):
        FederatedRows(clients=[np.eye(2)], labels=[np.arange(3)], names=["a"])
    with pytest.raises(ValueError, match="1 owners for 2 rows"):
        Table(rows=np.eye(2), owners=np.array(["a"]))
