"""One table, one answer: whatever file, database or library a table comes from, its names, codes and numbers agree."""

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import feather

from flower_fedclust.data import partition, read_batches, read_folder, read_query, read_table
from flower_fedclust.data.cells import as_cells, numbers_in
from flower_fedclust.data.identities import identities
from flower_fedclust.engine import ClientData
from flower_fedclust.inputs import RowsChoice
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.tables.schema import Schema

#: As people write them: names and codes that a program may take for numbers, truth values or gaps.
TEXTS = {
    "site": ["01", "1", "001", "1E5", "NA", "100000", "true", "1.0"],
    "number": [f"0000{index}" for index in range(8)],
    "kind": ["01", "1", "1E2", "100", "NA", "01", "1", "1E2"],
    "code": ["1E5", "100000", "01", "1", "1E5", "1", "007", "NA"],
    "long": [str(2**62 + index) for index in range(8)],
    "yes": ["TRUE", "FALSE", "TRUE", "FALSE", "FALSE", "TRUE", "TRUE", "FALSE"],
    "gap": ["a", "", "b", "a", "NA", "b", "a", "null"],
    "dose": ["1.5", "<0.5", "1e3", "-2", " 7", "+3", "NA", ""],
    "day": [
        "2024-05-31",
        "",
        "2024-01-01",
        "NA",
        "2023-12-24",
        "2024-05-31",
        "2024-05-31",
        "2024-05-31",
    ],
}
LISTED = {
    "code": ["1E5", "100000", "01", "1", "007", "NA"],
    "long": TEXTS["long"],
    "yes": ["TRUE", "FALSE"],
    "gap": ["a", "b"],
}
SCHEMA = Schema.of(
    {
        "columns": {
            name: {"kind": "category", "categories": listed} for name, listed in LISTED.items()
        }
        | {"gap": {"kind": "category", "categories": LISTED["gap"], "gaps": "category"}}
        | {"dose": {"kind": "number", "gaps": "mean"}, "day": {"kind": "date", "gaps": "mean"}}
    }
)
NAN = np.nan
#: What the schema reads: places in the list of categories, numbers, and days since 1970.
VALUES = {
    "code": [0, 1, 2, 3, 0, 3, 4, 5],
    "long": list(range(8)),
    "yes": [0, 1, 0, 1, 1, 0, 0, 1],
    "gap": [0, 2, 1, 0, 2, 1, 0, 2],
    "dose": [1.5, 0.5, 1000, -2, 7, 3, NAN, NAN],
    "day": [19874, NAN, 19723, NAN, 19715, 19874, 19874, 19874],
}
ROLES = {"client_column": "site", "label_column": "kind", "id_column": "number"}
WITHOUT_CLIENT = {"label_column": "kind", "id_column": "number"}


def written(folder, form):
    """Write the table as a file, and return its path."""
    path, frame = folder / f"rows.{form.split()[0]}", pd.DataFrame(TEXTS)
    if form == "csv of Excel":
        frame.to_csv(path, sep=";", index=False, encoding="utf-8-sig", lineterminator="\r\n")
    elif form == "csv of R":
        frame.to_csv(path, index=False, quoting=1)
    elif form == "csv with short lines":  # Excel leaves out empty cells at the end
        text = frame[[name for name in frame if name != "gap"] + ["gap"]].to_csv(index=False)
        path.write_text(text.replace(",\n", "\n"), encoding="utf-8")
    else:
        write = {"csv": frame.to_csv, "xlsx": frame.to_excel, "parquet": frame.to_parquet}.get(form)
        if write is None:
            feather.write_feather(frame, path)
        else:
            write(path, index=False)
    return path


FILES = ["csv", "csv of Excel", "csv of R", "csv with short lines", "parquet", "arrow", "xlsx"]


def rows_of(table):
    """The rows of a table as numbers, also if they are read in batches."""
    return np.concatenate(list(ClientData(table.rows).pieces()))


def check_values(table, owner="the table"):
    found = {name: values for name, _, values in SCHEMA.values(table, owner=owner)}
    for name, values in VALUES.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def check_table(table):
    assert table.owners.tolist() == TEXTS["site"]
    assert table.labels.tolist() == TEXTS["kind"]
    assert table.row_ids.tolist() == TEXTS["number"]
    check_values(table.rows)


@pytest.mark.parametrize("form", FILES)
def test_files_have_the_same_clients_classes_ids_codes_and_numbers(tmp_path, form):
    """Of a .csv file, clients 01, 1 and 001 had been one, 1E5 had been 100000, and NA had been missing."""
    path = written(tmp_path, form)
    check_table(read_table(path, raw=True, **ROLES))
    sites = partition(read_table(path, raw=True, **ROLES), "column")
    assert dict(zip(sites.names, (part.tolist() for part in sites.row_ids), strict=True)) == {
        site: [number] for site, number in zip(TEXTS["site"], TEXTS["number"], strict=True)
    }


@pytest.mark.parametrize("form", [form for form in FILES if form != "xlsx"])
def test_batches_have_the_same_too(tmp_path, form):
    path = written(tmp_path, form)
    table = read_batches(path, columns=list(VALUES), **WITHOUT_CLIENT)
    assert table.labels.tolist() == TEXTS["kind"]
    assert table.row_ids.tolist() == TEXTS["number"]
    check_values(pd.concat([batch.table for batch in table.rows.read(3)], ignore_index=True))


def test_databases_have_the_same(tmp_path):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    url = f"sqlite:///{tmp_path / 'rows.db'}"
    pd.DataFrame(TEXTS).to_sql("visits", sqlalchemy.create_engine(url), index=False)
    with duckdb.connect(str(tmp_path / "rows.duckdb")) as connection:
        frame = pd.DataFrame(TEXTS)  # noqa: F841 -- DuckDB finds it by its name
        connection.sql("CREATE TABLE visits AS SELECT * FROM frame")
    csv, parquet = written(tmp_path, "csv"), written(tmp_path, "parquet")
    for query, database in (
        ("SELECT * FROM visits", url),
        ("SELECT * FROM visits", str(tmp_path / "rows.duckdb")),
        (f"SELECT * FROM '{parquet}'", ""),
        (f"SELECT * FROM read_csv('{csv}', all_varchar = true, nullstr = '')", ""),
    ):
        check_table(read_query(query, database, raw=True, **ROLES))


@pytest.mark.parametrize(
    "make", [pd.DataFrame, pl.DataFrame, pa.table, lambda texts: pl.DataFrame(texts).lazy()]
)
def test_tables_of_python_have_the_same(make):
    read = RowsChoice.of(
        make(TEXTS), client_column="site", label_column="kind", schema=SCHEMA
    ).read()
    assert read.rows.owners.tolist() == TEXTS["site"]
    assert read.rows.labels.tolist() == TEXTS["kind"]
    check_values(read.rows.rows[list(VALUES)])


def test_a_folder_and_a_dict_have_the_same_clients(tmp_path):
    for site, part in pd.DataFrame(TEXTS).groupby("site"):
        part.to_csv(tmp_path / f"{site}.csv", index=False)
    columns = [*VALUES, "site"]
    sites = read_folder(tmp_path, raw=True, columns=columns, **WITHOUT_CLIENT)
    assert sorted(sites.names) == sorted(TEXTS["site"])
    for name, ids, labels, table in zip(
        sites.names, sites.row_ids, sites.labels, sites.clients, strict=True
    ):
        place = TEXTS["site"].index(name)
        assert ids.tolist() in ([TEXTS["number"][place]], [place])
        assert str(labels[0]) == TEXTS["kind"][place]
        found = {
            name: values[0] for name, _, values in SCHEMA.values(table[list(VALUES)], owner="x")
        }
        np.testing.assert_array_equal(list(found.values()), [VALUES[name][place] for name in found])


@pytest.mark.parametrize(
    "form", ["csv", "parquet", "arrow", "xlsx", "batches of csv", "batches of parquet"]
)
def test_numbers_and_codes_with_gaps_as_pandas_writes_them(tmp_path, form):
    """Codes with gaps are floats for pandas, which writes 1.0; they stay numbers, and codes where a schema says so."""
    frame = pd.DataFrame(
        {"code": [1, 2, np.nan, 1], "flag": [True, False, True, True], "x": [0.1, 1e-7, 3, 1 / 3]}
    )
    path = tmp_path / f"rows.{form.split()[-1]}"
    write = {"csv": frame.to_csv, "xlsx": frame.to_excel, "parquet": frame.to_parquet}.get(
        path.suffix[1:]
    )
    feather.write_feather(frame, path) if write is None else write(path, index=False)
    rows = (read_batches(path) if form.startswith("batches") else read_table(path, raw=True)).rows
    table = pd.concat([one.table for one in rows.read(9)]) if form.startswith("batches") else rows
    categories = {"code": {"kind": "category", "categories": ["1", "2", "01x"], "gaps": "category"}}
    schema = Schema.of(
        {
            "columns": categories
            | {"flag": {"kind": "binary", "categories": ["TRUE", "FALSE"]}, "x": {"kind": "number"}}
        }
    )
    found = {name: values.tolist() for name, _, values in schema.values(table, owner="x")}
    assert found == {"code": [0, 1, 3, 0], "flag": [0, 1, 0, 0], "x": [0.1, 1e-7, 3, 1 / 3]}
    numbers = (
        read_batches(path, columns=["flag", "x"])
        if form.startswith("batches")
        else read_table(path, columns=["flag", "x"])
    )
    np.testing.assert_array_equal(rows_of(numbers), [[1, 0.1], [0, 1e-7], [1, 3], [1, 1 / 3]])


@pytest.mark.parametrize("quoted", [False, True])
def test_decimal_commas_are_read_where_they_can_be_nothing_else(tmp_path, quoted):
    """Between semicolons, or quoted between commas; 1,234 alone may be either, and stays as it was."""
    text = (
        '"a","b","c"\n"1,5","1,234","x,y"\n"0,125","2,5","1,5"\n'
        if quoted
        else "a;b;c\n1,5;1,234;x,y\n0,125;2,5;1,5\n"
    )
    (tmp_path / "rows.csv").write_text(text, encoding="utf-8")
    for table in (
        read_table(tmp_path / "rows.csv", columns=["a", "b"]),
        read_batches(tmp_path / "rows.csv", columns=["a", "b"]),
    ):
        np.testing.assert_array_equal(rows_of(table), [[1.5, 1.234], [0.125, 2.5]])
    read = read_table(tmp_path / "rows.csv", client_column="c", columns=["a"])
    assert read.owners.tolist() == ["x,y", "1,5"]
    schema = Schema.of({"columns": {"c": {"kind": "category", "categories": ["x,y", "1,5"]}}})
    raw = read_table(tmp_path / "rows.csv", columns=["c"], raw=True).rows
    assert [values.tolist() for _, _, values in schema.values(raw, owner="x")] == [[0, 1]]


def test_names_keep_their_commas(tmp_path):
    (tmp_path / "rows.csv").write_text("site;a\n1,5;1,5\n2,50;2,5\n", encoding="utf-8")
    assert read_table(tmp_path / "rows.csv", client_column="site").owners.tolist() == [
        "1,5",
        "2,50",
    ]
    for read in (read_table, read_batches):
        assert read(tmp_path / "rows.csv", id_column="site").row_ids.tolist() == ["1,5", "2,50"]
        assert read(tmp_path / "rows.csv", label_column="site").labels.tolist() == ["1,5", "2,50"]


@pytest.mark.parametrize("word", ["+nan", "nan(1)", "NaN()"])
@pytest.mark.parametrize("beside", ["1", "x"])
def test_a_cell_is_a_gap_or_text_whatever_stands_beside_it(word, beside):
    _, is_text = numbers_in(pd.Series([word, None, beside], dtype="str"))
    assert is_text.tolist() == [True, False, beside == "x"]


def test_days_are_named_alike_whatever_stands_beside_them():
    days = [pd.Timestamp("2020-01-01"), pd.Timestamp("2020-01-02")]
    assert identities(pd.Series(days), "x").tolist() == ["2020-01-01", "2020-01-02"]
    with_a_time = identities(pd.Series([*days, pd.Timestamp("2020-01-03 04:05")]), "x")
    assert with_a_time.tolist() == ["2020-01-01", "2020-01-02", "2020-01-03 04:05:00"]
    assert len(identities(pd.Series([], dtype="datetime64[ns]"), "x")) == 0


@pytest.mark.parametrize(
    ("kind", "n_bits"), [("float16", 11), ("float32", 24), ("Float32", 24), ("float64", 53)]
)
def test_each_type_of_floats_names_rows_as_far_as_it_tells_them_apart(kind, n_bits):
    most = float(2**n_bits - 1)
    assert identities(pd.Series([most, -most], dtype=kind), "x").tolist() == [most, -most]
    with pytest.raises(DataError, match="too large to be told from its neighbors"):
        identities(pd.Series([most + 1], dtype=kind), "x")


@pytest.mark.parametrize(
    ("kind", "code"), [("float32", 2**24), ("Float32", 2**24), ("float64", 2**53)]
)
def test_codes_that_a_short_float_merges_are_refused_too(kind, code):
    """Stata's float is one of 32 bits: 16777216 and 16777217 had been counted as one category."""
    listed = [str(code - 1), str(code), str(code + 1)]
    schema = Schema.of({"columns": {"code": {"kind": "category", "categories": listed}}})
    ((_, _, read),) = schema.values(pd.DataFrame({"code": [code - 1]}, dtype=kind), owner="x")
    assert read.tolist() == [0]
    with pytest.raises(DataError, match="row 1 is a code too long for a column of floats"):
        list(schema.values(pd.DataFrame({"code": [code - 1, code + 1]}, dtype=kind), owner="x"))


def test_codes_that_floats_merge_are_refused_and_others_stay_apart(tmp_path):
    codes = [2**60, 2**60 + 1, 2**60 + 2]
    schema = Schema.of(
        {"columns": {"code": {"kind": "category", "categories": [str(code) for code in codes]}}}
    )
    for table in (
        pd.DataFrame({"code": codes}),
        pd.DataFrame({"code": [str(code) for code in codes]}),
    ):
        assert [values.tolist() for _, _, values in schema.values(table, owner="x")] == [[0, 1, 2]]
    with pytest.raises(DataError, match="row 0 is a code too long for a column of floats"):
        list(schema.values(pd.DataFrame({"code": [*map(float, codes), np.nan]}), owner="x"))
    with pytest.raises(DataError, match="too large to be told from its neighbors"):
        ClientData(np.ones((3, 1)), row_ids=[float(code) for code in codes])
    frame = pd.DataFrame({"id": codes, "a": 1.0})
    decimals = pa.table(frame).cast(pa.schema([("id", pa.decimal128(38, 0)), ("a", pa.float64())]))
    pa.parquet.write_table(decimals, tmp_path / "rows.parquet")
    assert read_table(tmp_path / "rows.parquet", id_column="id").row_ids.tolist() == [
        str(code) for code in codes
    ]


def test_one_entry_is_one_category_whatever_stands_beside_it():
    """For pandas, True and 1 are one value in a column of objects: the first one had decided for both."""
    schema = Schema.of({"columns": {"a": {"kind": "category", "categories": ["1", "true"]}}})
    for entries in ([True, 1, "1"], [1, True, "true"]):
        ((_, _, values),) = schema.values(
            pd.DataFrame({"a": pd.Series(entries, dtype=object)}), owner="x"
        )
        alone = [
            next(schema.values(pd.DataFrame({"a": pd.Series([one], dtype=object)}), owner="x"))[2][
                0
            ]
            for one in entries
        ]
        assert values.tolist() == alone


@pytest.mark.parametrize("read", [read_table, read_batches])
def test_a_quotation_without_an_end_is_refused(tmp_path, read):
    path = tmp_path / "rows.csv"
    path.write_text('pipe,length\n"half,1\nwhole,2\n')
    with pytest.raises(DataError, match="rows"):
        read(path)


def test_a_mark_for_inches_is_no_quotation(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('pipe,length\n5" steel,1\nwhole,2\n')
    assert read_table(path, raw=True).rows["pipe"].tolist() == ['5" steel', "whole"]


def test_cells_of_truth_values_are_numbers():
    numbers, is_text = numbers_in(as_cells(["true", "False", " TRUE", "2", "yes"]))
    assert numbers[:4].tolist() == [1, 0, 1, 2]
    assert is_text.tolist() == [False, False, False, False, True]


@pytest.mark.parametrize("are_classes", [False, True])
@pytest.mark.parametrize(
    "column",
    [
        [1.0, 2.0, 1.5, -0.0],
        np.array([3.0, 2.5], dtype=np.float32),
        ["1.0", "2.0", "1.5", "01", "1e3"],
        ["1", "2.0", "x"],
        [True, False, "x", 1],
        pd.Series([1.0, 2.5], dtype="Float64"),
        pd.Series([1.0, 2.5], dtype="category"),
        pd.Series(["1.0", "x"], dtype="category"),
    ],
    ids=str,
)
def test_the_name_of_an_entry_does_not_depend_on_the_other_entries(column, are_classes):
    """A client has some entries of a column, and its names must be those that the other clients have."""
    series = pd.Series(column)
    together = identities(series, "x", are_classes=are_classes)
    alone = [
        identities(series[place : place + 1], "x", are_classes=are_classes)[0]
        for place in series.index
    ]
    assert [str(name) for name in alone] == [str(name) for name in together]
    again = identities(together, "x", are_classes=are_classes)
    assert [str(name) for name in again] == [str(name) for name in together]


@pytest.mark.parametrize("written", ["0.0", "-0.0", "0", -0.0])
def test_the_class_of_a_zero_is_0_however_it_is_written(tmp_path, written):
    """-0.0 in a CSV file had been another class than -0.0 in a Parquet file."""
    frame = pd.DataFrame({"kind": [written, written], "x": [1.0, 2.0]})
    for path in (tmp_path / "rows.csv", tmp_path / "rows.parquet"):
        frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_parquet(path)
        assert list(map(str, read_table(path, label_column="kind").labels)) == ["0", "0"]


@pytest.mark.parametrize(
    ("written", "order"),
    [
        ([10, 2, 1], ["1", "2", "10"]),
        (["10.0", "2.0", "1.0"], ["1.0", "10.0", "2.0"]),
        (["10", "2", "x"], ["10", "2", "x"]),
    ],
)
def test_clients_are_in_the_order_of_their_names(tmp_path, written, order):
    pd.DataFrame({"site": written, "x": 1.0}).to_csv(tmp_path / "rows.csv", index=False)
    assert (
        partition(read_table(tmp_path / "rows.csv", client_column="site"), "column").names == order
    )


def test_ids_stay_as_they_are_written_and_classes_are_equal_as_numbers(tmp_path):
    (tmp_path / "a.csv").write_text("id,kind,x\n0.0,1.0,1\n1.0,2.0,2\n")
    (tmp_path / "b.csv").write_text("id,kind,x\n0.5,1,1\n1.5,1.5,2\n")
    rows = read_folder(tmp_path, id_column="id", label_column="kind")
    assert [ids.tolist() for ids in rows.row_ids] == [["0.0", "1.0"], ["0.5", "1.5"]]
    assert [list(map(str, labels)) for labels in rows.labels] == [["1", "2"], ["1", "1.5"]]


@pytest.mark.parametrize("ids", [[1.0, np.nan], ["a", None], np.array(["a", None]), [np.nan, "a"]])
def test_a_missing_id_is_named_by_its_row(ids):
    """None had been the id 'None', and NaN had been said to be too large."""
    with pytest.raises(DataError, match=rf"^north: row {int(ids[0] == ids[0])} has no id; give"):
        ClientData(np.eye(2), row_ids=ids, owner="north")
