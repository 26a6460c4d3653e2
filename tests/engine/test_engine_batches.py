"""Rows that are read batch by batch: the same bits as in memory, for any files, batches and threads."""

import copy

import numpy as np
import pandas as pd
import pytest

import flower_fedclust as fc
from flower_fedclust.cli.files import predict_file
from flower_fedclust.data import read_batches, read_folder, read_table
from flower_fedclust.engine import ClientData, by_row
from flower_fedclust.numerics.threads import jobs, mapped
from flower_fedclust.tables import Schema

rng = np.random.default_rng(7)
LABELS = rng.integers(0, 3, 1500)
NUMBERS = pd.DataFrame(
    np.round(1024 * (rng.normal(size=(1500, 3)) + 4.0 * np.eye(3)[LABELS])) / 1024,
    columns=["a", "b", "c"],
)
NUMBERS["whole"] = LABELS
NUMBERS["flag"] = LABELS == 1
TABLE = NUMBERS.assign(
    work=np.array(["private", "public", None], dtype=object)[LABELS],
    born=pd.Timestamp("1960-01-01") + pd.to_timedelta(rng.integers(0, 20_000, 1500), unit="D"),
    a=NUMBERS["a"].where(rng.random(1500) > 0.1),
    unused="text",
)
SCHEMA = {
    "columns": {
        **{name: {"kind": "number"} for name in ("b", "c")},
        "a": {"kind": "number", "gaps": "mean", "bounds": (-5, 10)},
        "whole": {"kind": "integer", "bounds": (0, 3)},
        "flag": {"kind": "binary", "categories": ("false", "true")},
        "work": {"kind": "category", "categories": ("private", "public"), "gaps": "category"},
        "born": {"kind": "date"},
        "unused": {"kind": "ignored"},
    }
}
STRATEGIES = {
    "private-kmeans": fc.PrivateKMeans(n_clusters=3, epsilon=8.0),
    "private-kmeans without noise": fc.PrivateKMeans(n_clusters=3, epsilon=None),
    "private-mixture": fc.PrivateMixture(n_clusters=3, epsilon=8.0),
    "private-density": fc.PrivateDensity(n_clusters=3, epsilon=8.0),
    "federated-kmeans": fc.FederatedKMeans(n_clusters=3, n_rounds=3),
    "federated-kmeans-private": fc.PrivateFederatedKMeans(n_clusters=3, epsilon=8.0, n_rounds=2),
    "spp-fgc-sums": fc.SPPFGCSums(n_clusters=3, epsilon=8.0),
}


def parts_of(table, folder):
    """Write a table as parts with columns in different orders, one of them empty."""
    folder.mkdir()
    for index, (start, stop) in enumerate(((0, 700), (700, 700), (700, 701), (701, 1500))):
        order = list(table.columns)[:: 1 if index % 2 else -1]
        table.iloc[start:stop][order].to_parquet(
            folder / f"part-{index}.parquet", row_group_size=400, index=False
        )
    return folder


def parquet(table, folder):
    path = folder / "one.parquet"
    table.to_parquet(path, row_group_size=1000, index=False)
    return path


def csv(table, folder):
    table.to_csv(folder / "one.csv", index=False)
    return folder / "one.csv"


def arrow(table, folder):
    table.to_feather(folder / "one.feather", chunksize=333)
    return folder / "one.feather"


WRITERS = {
    "parquet": parquet,
    "parts": lambda table, folder: parts_of(table, folder / "parts"),
    "csv": csv,
    "arrow": arrow,
    "query": lambda table, folder: f"SELECT * FROM '{parquet(table, folder)}';",
}


def run(strategy, rows, schema=None):
    strategy = copy.copy(strategy)
    if schema is None and hasattr(strategy, "max_norm") and strategy.epsilon is not None:
        strategy.max_norm = 8.0
    if schema is None and hasattr(strategy, "max_l1_norm"):
        strategy.max_l1_norm = 14.0
    return fc.simulate(
        strategy,
        {"north": rows, "south": NUMBERS if schema is None else TABLE},
        schema=schema,
        seed=0,
    )


@pytest.fixture(scope="module")
def in_memory():
    kept = {}

    def find(name, schema):
        if (name, schema is None) not in kept:
            kept[name, schema is None] = run(
                STRATEGIES[name], NUMBERS if schema is None else TABLE, schema
            )
        return kept[name, schema is None]

    return find


#: Which rows a batch has depends on the file, and what is asked of them on the strategy. Whatever is asked, batches of
#: any size give the same bits: see test_engine_by_row.py.
OF_FEW_ROUNDS = "federated-kmeans-private"
WAYS = {"numbers": None, "schema": SCHEMA}
QUICK = {
    ("private-kmeans", "parquet", "numbers"),
    ("federated-kmeans", "parquet", "numbers"),
    *((OF_FEW_ROUNDS, kind, "schema") for kind in WRITERS),
}
CASES = [
    pytest.param(
        name,
        kind,
        WAYS[way],
        id=f"{name}-{kind}-{way}",
        marks=[] if (name, kind, way) in QUICK else [pytest.mark.long],
    )
    for name in STRATEGIES
    for kind in WRITERS
    for way in WAYS
    if kind == "parquet" or name == OF_FEW_ROUNDS
]


@pytest.mark.parametrize(("name", "kind", "schema"), CASES)
def test_rows_of_files_give_the_same_bits_as_in_memory(
    name, kind, schema, in_memory, tmp_path, monkeypatch
):
    columns = list((NUMBERS if schema is None else TABLE).columns)
    path = WRITERS[kind](NUMBERS if schema is None else TABLE, tmp_path)
    expected = in_memory(name, schema)
    monkeypatch.setattr(by_row, "BATCH_ENTRIES", 997)
    monkeypatch.setattr(
        ClientData, "_check_fits_memory", lambda self: pytest.fail("all rows are read at once")
    )
    given = ("duckdb://", path) if kind == "query" else (path,)
    found = run(STRATEGIES[name], read_batches(*given, columns=columns).rows, schema)
    for one, other in zip(found.model.to_arrays(), expected.model.to_arrays(), strict=True):
        assert one.tobytes() == other.tobytes()
    for one, other in zip(found.labels_of_clients, expected.labels_of_clients, strict=True):
        assert np.array_equal(one, other)
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-9)


def test_rows_of_files_are_read_at_once_only_for_an_answer_that_needs_all_of_them_with_a_warning(
    tmp_path, monkeypatch
):
    rows = read_batches(parquet(NUMBERS, tmp_path)).rows
    with pytest.warns(RuntimeWarning, match=r"client north: .* all rows at once.*private-kmeans"):
        found = run(fc.KFED(n_clusters=3), rows)
    expected = run(fc.KFED(n_clusters=3), NUMBERS)
    assert np.array_equal(found.model.cluster_centers_, expected.model.cluster_centers_)
    monkeypatch.setattr("flower_fedclust.engine.client_data.machine_memory", lambda: 1000)
    with pytest.raises(fc.DataError, match=r"all rows at once.*1 MB|0 MB.*private-kmeans"):
        _ = ClientData(rows).rows


@pytest.mark.parametrize("n_jobs", [1, 2, 5])
def test_threads_keep_the_order_and_find_the_same_error(n_jobs):
    def root(number):
        if number == 37:
            raise ValueError(number)
        return number**0.5

    with jobs(n_jobs):
        assert list(mapped(root, range(37))) == [number**0.5 for number in range(37)]
        with pytest.raises(ValueError, match="37"):
            list(mapped(root, range(1000)))
        few = mapped(root, iter(range(1000)))
        assert next(few) == 0.0
        few.close()


def test_few_batches_are_in_memory_at_a_time():
    taken = []
    for done, _ in enumerate(
        mapped(lambda number: number, (taken.append(one) or one for one in range(100)), 3)
    ):
        assert len(taken) <= done + 5


# What is wrong with a file.


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("n_jobs", [1, pytest.param(3, marks=pytest.mark.long)])
def test_the_first_bad_entry_is_named_by_file_row_and_column_and_never_by_its_value(
    kind, n_jobs, tmp_path, monkeypatch
):
    monkeypatch.setattr("flower_fedclust.engine.client_data.BATCH_ENTRIES", 50)
    table = NUMBERS.astype({"whole": float})
    table.loc[[1234, 1400, 1450], "b"] = np.nan, -987654.25, np.inf
    path = WRITERS[kind](table, tmp_path)
    given = ("duckdb://", path) if kind == "query" else (path,)
    file = {"query": "the query", "parts": "part-3.parquet"}.get(kind, getattr(path, "name", ""))
    row = 1234 - 701 if kind == "parts" else 1234
    with pytest.raises(fc.DataError, match=rf"^{file}: row {row}, column 'b' is NaN") as caught:
        fc.simulate(
            STRATEGIES["federated-kmeans"],
            {"north": read_batches(*given).rows, "south": NUMBERS},
            n_jobs=n_jobs,
        )
    assert "987" not in str(caught.value)


def test_text_and_dates_are_refused_where_numbers_are_needed(tmp_path):
    table = NUMBERS.astype({"b": object})
    table.loc[1234, "b"] = "swordfish"
    path = csv(table, tmp_path)
    with pytest.raises(
        fc.DataError, match=r"^one\.csv: row 1234, column 'b' is not numeric.*schema"
    ) as caught:
        fc.simulate(
            STRATEGIES["federated-kmeans"], {"north": read_batches(path).rows, "south": NUMBERS}
        )
    assert "swordfish" not in str(caught.value)
    with pytest.raises(fc.DataError, match="column 'born' is dates"):
        ClientData(read_batches(parquet(TABLE[["born"]], tmp_path)).rows).check()


def test_a_row_that_does_not_fit_the_schema_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("flower_fedclust.engine.client_data.BATCH_ENTRIES", 500)
    table = TABLE.copy()
    table.loc[1234, "work"] = "swordfish"
    rows = read_batches(parquet(table, tmp_path)).rows
    with pytest.raises(
        fc.DataError, match=r"one\.parquet: .*column 'work': row 1234 is a category"
    ) as caught:
        run(STRATEGIES["private-kmeans"], rows, SCHEMA)
    assert "swordfish" not in str(caught.value)


def test_a_file_that_changes_during_a_run_is_noticed(tmp_path):
    path = parquet(NUMBERS, tmp_path)
    rows = read_batches(path).rows
    before = rows.fingerprint()
    parquet(NUMBERS.assign(a=0.5), tmp_path)
    assert not np.array_equal(read_batches(path).rows.fingerprint(), before)
    with pytest.raises(fc.DataError, match=r"one\.parquet has changed since it was opened"):
        list(rows.read(100))
    path.unlink()
    with pytest.raises(fc.DataError, match=r"one\.parquet"):
        list(rows.read(100))


def test_parts_with_other_columns_and_folders_without_rows_are_refused(tmp_path):
    folder = parts_of(NUMBERS, tmp_path / "parts")
    (folder / "_SUCCESS").touch()
    (folder / "part-9.parquet").touch()  # empty
    assert len(read_batches(folder).rows) == 1500
    NUMBERS[["a", "b"]].to_parquet(folder / "part-4.parquet")
    with pytest.raises(
        fc.DataError,
        match=r"part-4\.parquet has other columns than part-0\.parquet: it lacks .*'c'",
    ):
        read_batches(folder)
    (tmp_path / "none").mkdir()
    with pytest.raises(fc.DataError, match="none has no rows"):
        read_batches(tmp_path / "none")
    with pytest.raises(
        fc.DataError, match=r"cannot be read in batches; save it as one of: \.parquet"
    ):
        read_batches(tmp_path / "rows.xlsx")


def test_cells_of_a_csv_file_are_what_is_written_and_the_same_numbers_as_in_memory(tmp_path):
    table = {
        "whole": ["1", "2", "3", "4", "5"],
        "gap": ["1", "2", "", "4", "5"],
        "text": ["01", "1.50", "x", "3", ""],
        "flag": ["True", "", "False", "True", "False"],
        "mixed": ["True", "False", "1", "0", "1"],
        "empty": ["", "", "", "", ""],
    }
    path = csv(pd.DataFrame(table), tmp_path)
    found = read_batches(path).rows
    for name, cells in table.items():
        assert [None if pd.isna(one) else one for one in found.column(name)] == [
            one or None for one in cells
        ], name
    numbers = read_table(path, columns=["whole", "mixed"]).rows
    batches = read_batches(path, columns=["whole", "mixed"]).rows.read(2)
    np.testing.assert_array_equal(np.concatenate([batch.rows for batch in batches]), numbers)
    np.testing.assert_array_equal(numbers, [[1, 1], [2, 0], [3, 1], [4, 0], [5, 1]])


def test_a_row_group_larger_than_memory_allows_is_read_a_few_pages_at_a_time(tmp_path):
    path = tmp_path / "wide.parquet"
    pd.DataFrame(np.zeros((200_000, 4))).rename(columns=str).to_parquet(
        path, row_group_size=200_000
    )
    sizes = [len(batch) for batch in read_batches(path).rows.read(1000)]
    assert sizes == [1000] * 200


# Large files are read in batches without being asked.


def test_large_files_of_clients_folders_and_sites_stay_where_they_are(tmp_path, monkeypatch):
    expected = run(STRATEGIES["federated-kmeans"], NUMBERS)
    monkeypatch.setattr("flower_fedclust.data.files.MOST_IN_MEMORY", 8 * NUMBERS.size - 8)
    monkeypatch.setattr(
        ClientData, "_check_fits_memory", lambda self: pytest.fail("all rows are read at once")
    )
    folder = tmp_path / "clients"
    folder.mkdir()
    parquet(NUMBERS, folder).rename(folder / "north.parquet")
    NUMBERS[:-1].to_parquet(folder / "south.parquet", index=False)
    read = read_folder(folder)
    assert [type(one).__name__ for one in read.clients] == ["Batches", "ndarray"]
    for given in (folder / "north.parquet", parts_of(NUMBERS, tmp_path / "parts")):
        clients = {"north": given, "south": NUMBERS}
        found = fc.simulate(STRATEGIES["federated-kmeans"], clients, columns=list(NUMBERS), seed=0)
        assert np.array_equal(found.model.cluster_centers_, expected.model.cluster_centers_)
        assert np.array_equal(found.labels_of_clients[0], expected.labels_of_clients[0])


@pytest.mark.parametrize("schema", [None, SCHEMA], ids=["numbers", "schema"])
def test_a_comparison_leaves_rows_in_files_and_knows_them_again(schema, tmp_path, monkeypatch):
    table = NUMBERS if schema is None else TABLE
    clients = {
        "north": read_batches(parquet(table, tmp_path)).rows,
        "south": read_batches(csv(table, tmp_path)).rows,
    }
    options = {"n_clusters": 3, "seeds": 1, "epsilons": 8.0, "progress": False, "jobs": 1}
    options |= {} if schema is None else {"schema": Schema.of(schema)}
    expected = fc.compare("private-kmeans", dict.fromkeys(clients, table), **options)
    monkeypatch.setattr(
        ClientData, "_check_fits_memory", lambda self: pytest.fail("all rows are read at once")
    )
    for _ in range(2):  # the second call finds the same rows, and runs nothing
        found = fc.compare("private-kmeans", clients, out=tmp_path / "out", **options)
    columns = ["status", "n_rows", "cost", "bytes_up"]
    assert (
        found.to_pandas()[columns].values.tolist() == expected.to_pandas()[columns].values.tolist()
    )
    parquet(table[::-1], tmp_path)
    with pytest.raises(FileExistsError):
        fc.compare("private-kmeans", clients | {"north": read_batches(tmp_path / "one.parquet").rows},
                   out=tmp_path / "out", **options)  # fmt: skip


def test_one_file_of_many_clients_that_takes_half_the_memory_is_refused_with_a_remedy(
    tmp_path, monkeypatch
):
    path = csv(NUMBERS, tmp_path)
    monkeypatch.setattr("flower_fedclust.data.files.machine_memory", lambda: path.stat().st_size)
    with pytest.raises(fc.DataError, match="a file for each client"):
        fc.simulate("federated-kmeans", path, client_column="whole", n_clusters=3)
    parts = {"north": parts_of(NUMBERS, tmp_path / "parts")}
    assert len(fc.simulate("federated-kmeans", parts, n_clusters=3, min_clients=1).labels) == 1


@pytest.mark.parametrize("schema", [None, SCHEMA], ids=["numbers", "schema"])
def test_predictions_for_a_large_file_are_the_same_as_in_memory(schema, tmp_path, monkeypatch):
    table = NUMBERS if schema is None else TABLE
    run(STRATEGIES["private-kmeans"], table, schema).save(tmp_path / "result")
    new = table.astype({"whole": float}).assign(
        patient=[f"p{index}" for index in range(len(table))], more=1.0
    )
    new.loc[[3, 700], "b"] = np.nan
    path = parquet(new, tmp_path)
    expected = predict_file(tmp_path / "result", path, tmp_path / "memory.csv", id_column="patient")
    monkeypatch.setattr("flower_fedclust.data.files.MOST_IN_MEMORY", 1000)
    monkeypatch.setattr("flower_fedclust.cli.files.PREDICTED_ENTRIES", 997)
    found = predict_file(tmp_path / "result", path, tmp_path / "batches.csv", id_column="patient")
    assert (tmp_path / "memory.csv").read_bytes() == (tmp_path / "batches.csv").read_bytes()
    assert found == expected
    assert found.left_out == {"column 'b' is missing": 2}
