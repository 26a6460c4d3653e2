import re
import sys
import time
import unicodedata

import numpy as np
import pandas as pd
import pytest

import flower_fedclust as fc
from flower_fedclust import DataError
from flower_fedclust.data import (
    files,
    hold_out_server_rows,
    partition,
    read_batches,
    read_folder,
    read_query,
    read_table,
)
from flower_fedclust.inputs import clients_of
from flower_fedclust.tables.drafting import draft
from flower_fedclust.tables.schema import columns_with_unclear_commas


@pytest.fixture
def frame():
    return pd.DataFrame(
        {
            "age": [31, 45, 62],
            "site": ["oslo", "bergen", "oslo"],
            "smoker": [True, False, True],
            "dose": [0.1, 1 / 3, 2e-17],
            "kind": ["b", "a", "b"],
        }
    )


@pytest.fixture(params=[".csv", ".parquet"])
def path(request, frame, tmp_path):
    return write(frame, tmp_path / f"rows{request.param}")


def write(frame, path):
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        np.save(path, frame)
    return path


def csv(tmp_path, text, name="rows.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_table_has_features_labels_and_owners(path, frame):
    table = read_table(path, label_column="kind", client_column="site")
    assert table.columns == ["age", "smoker", "dose"]
    assert table.rows.dtype == np.float64
    assert np.array_equal(
        table.rows, np.column_stack([frame["age"], frame["smoker"], frame["dose"]])
    )
    assert table.labels.tolist() == ["b", "a", "b"]
    assert table.owners.tolist() == ["oslo", "bergen", "oslo"]
    assert table.name == path.name
    federated = partition(
        read_table(str(path), client_column="site", columns=["dose", "age"]), "column"
    )
    assert federated.columns == ["dose", "age"]
    assert [rows[:, 1].tolist() for rows in federated.clients] == [[45.0], [31.0, 62.0]]


def test_npy_columns_are_called_by_number(tmp_path):
    np.save(tmp_path / "rows.npy", np.array([[0.5, 1.0, 7.0], [0.25, 0.0, 8.0]]))
    table = read_table(tmp_path / "rows.npy", label_column="1", client_column="2")
    assert table.columns == ["0"]
    assert table.rows.tolist() == [[0.5], [0.25]]
    assert (table.labels.tolist(), table.labels.dtype.kind) == ([1, 0], "i")
    assert table.owners.tolist() == [7, 8]


def test_nullable_columns_of_parquet_become_floats(tmp_path):
    path = tmp_path / "rows.parquet"
    frame = pd.DataFrame(
        {"a": pd.array([1, 2], dtype="Int64"), "b": pd.array([True, False], dtype="boolean")}
    )
    assert read_table(write(frame, path)).rows.tolist() == [[1.0, 1.0], [2.0, 0.0]]
    with pytest.raises(ValueError, match="row 1, column 'a' is NaN"):
        read_table(write(pd.DataFrame({"a": pd.array([1, None], dtype="Int64")}), path))


def test_folder_above_a_parquet_file_is_no_column(frame, tmp_path):
    (tmp_path / "region=3").mkdir()
    assert read_table(write(frame[["age"]], tmp_path / "region=3" / "rows.parquet")).columns == [
        "age"
    ]


# Files that cannot be used: the message names file, row, column and remedy, and never a value.


@pytest.mark.parametrize("option", ["label_column", "client_column"])
def test_misspelt_column_names_the_nearest(path, option):
    for options in ({option: "knd"}, {"columns": ["age", "knd"]}):
        with pytest.raises(ValueError, match="'knd': did you mean 'kind'"):
            read_table(path, **options)


@pytest.mark.parametrize(
    ("text", "options", "named"),
    [
        ("a,b\n1,2\n3,secret\n", {}, "row 1, column 'b' is not numeric"),
        ("a,b\n1,2\n3,4\n5,\n", {}, "row 2, column 'b' is NaN"),
        ("a,b\n1,2\n3,4\n5,inf\n", {}, "row 2, column 'b' is infinite"),
        ("", {}, "is empty"),
        ("\n\n", {}, "is empty"),
        ("kind\n1\n", {"label_column": "kind"}, "has no columns"),
        (
            "a,kind\n1,2\n",
            {"label_column": "kind", "columns": ["a", "kind"]},
            "column 'kind' holds the labels",
        ),
        (
            "a,name\n1,x\n2,\n",
            {"label_column": "name"},
            "row 1, column 'name' is missing; give every row its label",
        ),
        (
            "a,name\n1,x\n2,\n",
            {"client_column": "name"},
            "row 1, column 'name' is missing; give every row its client",
        ),
        ("a,b\n1,2,3\n4,5,6\n", {}, "the first line has fewer fields"),
        ("a,b\n1,2\n4,5,6\n", {}, "cannot be read"),
        ("a,b,a\n1,2,3\n", {}, "more than one column is called 'a'"),
        ("a,b\n1,2\n1,3\n", {"id_column": "a"}, "column 'a' has one id for several rows"),
        ("a;b\n1,5;2\n1.234;4\n", {}, "column 'a' has numbers like 1.234"),
        ("a\tb\n1,234\t2\n3\t4\n", {}, "row [01], column 'a' is not numeric"),
        ("a,b\n1;5,2\n3,4\n", {}, "row [01], column 'a' is not numeric"),
        # Names leave a site when it enrols, so a row must never pass for them.
        ("61.5,7.2,1\n44.0,6.8,0\n", {}, "the first line is all numbers"),
    ],
)
def test_a_csv_that_cannot_be_used_says_why(tmp_path, text, options, named):
    with pytest.raises(ValueError, match=rf"rows\.csv.*{named}") as caught:
        read_table(csv(tmp_path, text), **options)
    assert "secret" not in str(caught.value)


def test_columns_may_be_numbered(tmp_path):
    assert read_table(csv(tmp_path, "0,1\n61.5,7.2\n44.0,6.8\n")).columns == ["0", "1"]


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".npy"])
def test_files_of_no_bytes_and_of_no_rows_say_so(frame, tmp_path, ending):
    path = tmp_path / f"rows{ending}"
    path.touch()
    with pytest.raises(ValueError, match=rf"rows{ending} is empty"):
        read_table(path)
    with pytest.raises(ValueError, match=rf"rows{ending} has no rows"):
        read_table(write(frame[["age", "dose"]].iloc[:0], path))


def test_files_that_do_not_exist_or_are_no_tables_say_what_to_give(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"There is no file {tmp_path}/rows.csv"):
        read_table(tmp_path / "rows.csv")
    with pytest.raises(
        ValueError,
        match=r"rows.ods is not .* \.csv, \.tsv, \.parquet, \.arrow, \.feather, \.npy, \.xlsx",
    ):
        read_table(tmp_path / "rows.ods")
    with pytest.raises(ValueError, match="read_folder"):
        read_table(tmp_path)
    with pytest.raises(ValueError, match="column 'day' is dates"):
        read_table(
            write(pd.DataFrame({"day": pd.to_datetime(["2024-01-01"])}), tmp_path / "rows.parquet")
        )


@pytest.mark.parametrize("other", ["north ", "no\u0072th\u00a0", " north"])
def test_a_client_whose_name_is_written_in_two_ways_is_not_taken_for_two(tmp_path, other):
    with pytest.raises(ValueError, match="column 'site'"):
        read_table(csv(tmp_path, f"a,site\n1,north\n2,{other}\n"), client_column="site")
    assert (
        read_table(csv(tmp_path, "a,site\n1,north\n2,North\n"), client_column="site").owners
        is not None
    )


def test_files_that_programs_leave_in_a_folder_are_no_clients(tmp_path):
    csv(tmp_path, "a\n1\n", name="north.csv")
    for name in ("~$north.xlsx", "Thumbs.db", "desktop.ini", ".DS_Store"):
        (tmp_path / name).write_bytes(b"x")
    assert read_folder(tmp_path).names == ["north"]
    (tmp_path / "README.txt").write_bytes(b"x")
    with pytest.raises(
        DataError, match=r"holds README\.txt, .* move other files out of the folder, or begin"
    ):
        read_folder(tmp_path)
    (tmp_path / "README.txt").unlink()
    for encoding in ("cp1252", "utf-16"):
        (tmp_path / "north.csv").write_bytes("größe\n1\n".encode(encoding))
        with pytest.raises(DataError, match="save it as 'CSV UTF-8'"):
            read_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.tsv", "a\tb, in mg, per day\n1\t2.5\n3\t4\n"),
        ("rows.tsv", "a\tb, in mg, per day\n1\t2,5\n3\t4\n"),
        ("rows.tsv", 'a;"b, in mg, per day"\n1;2,5\n3;4\n'),
        ("rows.tsv", 'a,"b, in mg, per day"\n1,2.5\n3,4\n'),
        ("rows.tsv", 'sep=;\na;"b, in mg, per day"\n1;2,5\n3;4\n'),
        ("rows.csv", "sep=;\na;b, in mg, per day\n1;2,5\n3;4\n"),
        ("rows.csv", "\ufeffsep=|\r\na|b, in mg, per day\r\n1|2.5\r\n3|4\r\n"),
        ("rows.csv", '"sep=;";\n"a";"b, in mg, per day"\n1;2,5\n3;4\n'),
        ("rows.csv", 'a|"b, in mg, per day"\n1|2.5\n3|4\n'),
    ],
)
def test_separators_are_what_the_file_says(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    for table in (read_table(tmp_path / name), read_batches(tmp_path / name)):
        assert table.columns == ["a", "b, in mg, per day"]
        rows = (
            table.rows
            if isinstance(table.rows, np.ndarray)
            else np.vstack([one.rows for one in table.rows.read(10)])
        )
        np.testing.assert_array_equal(rows, [[1, 2.5], [3, 4]])


@pytest.mark.parametrize(
    ("header", "lines", "column"),
    [
        ('"weight, kg"', "61,5\n72,25\n", "weight, kg"),
        ('"weight, kg"', '"61,5"\n"72,25"\n', "weight, kg"),
        ("weight, kg", '"61,5"\n"72,25"\n', "weight, kg"),
        ("weight, kg", "61.5\n72.25\n", "weight, kg"),
        ("weight (kg), of men, of women", "61,5\n72,25\n", "weight (kg), of men, of women"),
        ("weight", "61,5\n72,25\n", "weight"),
    ],
)
def test_a_tsv_file_may_have_one_column_with_commas(tmp_path, header, lines, column):
    (tmp_path / "rows.tsv").write_text(f"{header}\n{lines}")
    table = read_table(tmp_path / "rows.tsv")
    assert (table.columns, table.rows.tolist()) == ([column], [[61.5], [72.25]])
    assert read_batches(tmp_path / "rows.tsv").columns == [column]


@pytest.mark.parametrize("text", ["weight, kg\n61,5\n72,25\n", "a,b\n1.234,5\n2,5\n"])
def test_a_tsv_file_that_may_have_one_column_or_two_is_refused(tmp_path, text):
    """61,5 had been the two numbers 61 and 5."""
    (tmp_path / "rows.tsv").write_text(text)
    for read in (read_table, read_batches):
        with pytest.raises(DataError, match=r"rows\.tsv has no tabs, and its commas may separate"):
            read(tmp_path / "rows.tsv")
    (tmp_path / "rows.tsv").write_text(f"sep=,\n{text}")
    assert len(read_table(tmp_path / "rows.tsv").columns) == 2


@pytest.mark.parametrize(
    "lines",
    [
        "a;b\n1.234,5;1\n12.345,25;2\n",
        'a,b\n"1.234,5",1\n"12.345,25",2\n',
        "a\tb\n1.234,5\t1\n12.345,25\t2\n",
    ],
)
def test_points_between_thousands_and_a_decimal_comma_are_one_number(tmp_path, lines):
    schema = fc.Schema.of({"columns": {"a": {"kind": "number"}, "b": {"kind": "number"}}})
    path = csv(tmp_path, lines)
    for table in (read_table(path, raw=True).rows, next(read_batches(path).rows.read(10)).table):
        assert [values.tolist() for _, _, values in schema.values(table, owner="x")] == [
            [1234.5, 12345.25],
            [1, 2],
        ]


@pytest.mark.parametrize(
    "above",
    [
        "Patients of 2024\n",
        "# made by a program, on Monday\n",
        "Patients of 2024;;;\n",
        "A title\n\n",
    ],
)
@pytest.mark.parametrize("lines", ["a;b;c;d\n1;2;3,5;4\n2;3;4,5;5\n"])
def test_a_title_above_the_names_of_columns_is_named(tmp_path, above, lines):
    for reader in (read_table, read_batches):
        assert reader(csv(tmp_path, lines)).columns == ["a", "b", "c", "d"]
        with pytest.raises(
            DataError, match="delete titles and comments above the line of column names"
        ):
            reader(csv(tmp_path, above + lines))


@pytest.mark.parametrize("other", ["Zu\u0308rich", "Z\u00fcrich  Nord"])
def test_a_folder_or_a_dict_with_one_client_under_two_spellings_is_refused_too(tmp_path, other):
    names = [unicodedata.normalize("NFC", " ".join(other.split())), other]
    for name in names:
        csv(tmp_path, "a\n1\n2\n3\n", name=f"{name}.csv")
    with pytest.raises(DataError, match="spell each client in one way"):
        read_folder(tmp_path)
    with pytest.raises(DataError, match="spell each client in one way"):
        clients_of({name: np.eye(3) for name in names})


@pytest.mark.parametrize(
    "unseen", ["\ufeffnorth", "north\u200b", "nor\u00adth", "\u200enorth", "north\x08"]
)
def test_a_character_that_does_not_show_makes_no_second_client(tmp_path, unseen):
    """Files that are put together keep the mark of their beginning, and a guarantee covered half of a client."""
    with pytest.raises(DataError, match=r"'north' .*characters that do not show") as refused:
        read_table(csv(tmp_path, f"site;a\nsouth;1\nnorth;2\n{unseen};3\n"), client_column="site")
    assert ascii(unseen) in str(refused.value)


def test_row_numbers_without_a_name_are_no_feature(frame, tmp_path):
    frame[["age"]].to_csv(tmp_path / "rows.csv")
    with pytest.raises(ValueError, match="column 0 has no name"):
        read_table(tmp_path / "rows.csv")
    assert read_table(tmp_path / "rows.csv", columns=["age"]).columns == ["age"]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("a;größe, cm;b\n1;1,7;3\n4;-0,5;6\n", [[1, 1.7, 3], [4, -0.5, 6]]),
        ('\ufeff"a";"größe";"b, c"\r\n1;"1,7";3\r\n4;2;6\r\n', [[1, 1.7, 3], [4, 2, 6]]),
        ("a;b\n1.5;2\n3;4\n", [[1.5, 2], [3, 4]]),
        ("a\tb\n1.5\t2\n3\t4\n", [[1.5, 2], [3, 4]]),
        ("größe; cm,b\n1.5,2\n3,4\n", [[1.5, 2], [3, 4]]),
        ("a\n1.5\n3\n", [[1.5], [3]]),
    ],
)
def test_csv_as_spreadsheets_write_it_where_the_comma_is_a_decimal_mark(tmp_path, text, rows):
    np.testing.assert_array_equal(read_table(csv(tmp_path, text)).rows, rows)


def test_decimal_commas_beside_text_are_read_as_decimals_too(tmp_path):
    text = "a;b;c\n1,5;<0,5;1,234\n2,5;1.234,5;2.5\n0,5;2.000;7\n4,0;;8\n"
    rows = read_table(csv(tmp_path, text), raw=True).rows
    assert rows["b"].tolist()[:3] == ["<0.5", "1234.5", "2000"]
    assert rows["b"].isna().tolist() == [False, False, False, True]
    assert rows["c"].tolist() == ["1,234", "2.5", "7", "8"]  # its decimal mark is the point


NUMBERS = fc.Schema.of({"columns": {"v": {"kind": "number"}, "w": {"kind": "number"}}})


def read_as_numbers(part):
    """Return a client's table as lists, one for each column of the schema."""
    table = next(part.read(10)).table if hasattr(part, "read") else part
    return [values.tolist() for _, _, values in NUMBERS.values(table, owner="x")]


@pytest.mark.parametrize("most_in_memory", [2**30, 0])
@pytest.mark.parametrize(
    "other",
    ["v;w\n1.234;0,5\n2.345;0,7\n", "v;w\n1.234;5\n2.345;7\n", "v\tw\n1.234\t0,5\n2.345\t5\n"],
)
def test_the_files_of_a_folder_agree_on_decimal_commas(
    tmp_path, other, most_in_memory, monkeypatch
):
    """1.234 had been 1234 in the first file, and 1.234 in the second."""
    monkeypatch.setattr(files, "MOST_IN_MEMORY", most_in_memory)
    (tmp_path / "a.csv").write_text("v;w\n1.234;0,5\n2.345,5;0,7\n")
    (tmp_path / "b.csv").write_text(other)
    first, second = read_folder(tmp_path, raw=True).clients
    assert read_as_numbers(first) == [[1234, 2345.5], [0.5, 0.7]]
    assert read_as_numbers(second)[0] == [1234, 2345]
    with pytest.raises(DataError, match=r"column 'v' has numbers like 1\.234 in a table with"):  # noqa: PT012
        for client in clients_of(read_folder(tmp_path)).values():
            client.check()


def test_files_that_are_named_one_by_one_agree_on_decimal_commas(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("v;w\n1.234;0,5\n2.345,5;0,7\n")
    (tmp_path / "b.csv").write_text("v;w\n1.234;5\n2.345;7\n")
    paths = {name: tmp_path / f"{name}.csv" for name in "ab"}
    for most_in_memory in (2**30, 0):
        monkeypatch.setattr(files, "MOST_IN_MEMORY", most_in_memory)
        for given in (paths, {name: str(path) for name, path in paths.items()}):
            clients = clients_of(given).values()
            first = [next(iter(client.batches())).rows[0].tolist() for client in clients]
            assert first == [[1234, 0.5], [1234, 5]]


@pytest.mark.parametrize("as_folder", [True, False])
@pytest.mark.parametrize("schema", [NUMBERS, None])
@pytest.mark.parametrize(
    ("first", "name", "second"),
    [
        ("v;w\n36,5;1,2\n37,5;1,5\n", "b.tsv", "v\tw\n36.512\t1.250\n37.125\t2.500\n"),
        ("v;w\n36,5;1,2\n37,5;1,5\n", "b.csv", "v;w\n36.512;1.250\n37.125;2.500\n"),
        ("v;w\n36,5;1\n37,5;2\n", "b.csv", "v;w\n36.512;1,2\n37.125;2,5\n"),
        ("v;w\n2.345,5;1\n37,5;2\n", "b.tsv", "v\tw\n36.512\t1\n37.125\t2\n"),
        ("v;w\n2.345,5;1\n37,5;2\n", "b.csv", "v;w\n36.512;1\n0.5;1,5\n1.234;1,5\n"),
    ],
)
def test_a_file_does_not_make_numbers_of_another_a_thousand_times_larger(
    tmp_path, first, name, second, schema, as_folder
):
    """36.512 had been 36512 beside 36,5. It is certain only beside a number such as 2.345,5 in a file of this form."""
    (tmp_path / "a.csv").write_text(first)
    (tmp_path / name).write_text(second)

    def read():
        clients = {"a": tmp_path / "a.csv", "b": tmp_path / name}
        rows = clients_of(read_folder(tmp_path, raw=True) if as_folder else clients)
        for client in rows.values():
            if schema is None:
                client.check()
            else:
                schema.check(client.table, owner=client.owner)
        return [client.table["v"].tolist() for client in rows.values()]

    if "0.5" in second:
        assert read()[1] == ["36.512", "0.5", "1.234"]
        return
    with pytest.raises(DataError, match=r"'v'.* ha(s|ve) numbers like 1\.234 in a table with"):
        read()


def test_a_comma_between_thousands_stays_one_beside_a_file_with_decimal_commas(tmp_path):
    """1,234 had been 1.234 instead of 1234, without the doubt unclear-comma."""
    (tmp_path / "a.csv").write_text("v;w\n1,5;1\n2,5;2\n")
    (tmp_path / "b.tsv").write_text("v\tw\n1,234\t1\n2,345\t2\n")
    first, second = read_folder(tmp_path, raw=True).clients
    assert read_as_numbers(first)[0] == [1.5, 2.5]
    assert read_as_numbers(second)[0] == [1234, 2345]
    assert columns_with_unclear_commas([second], NUMBERS) == ["v"]


def test_a_file_with_decimal_points_keeps_them_beside_one_with_decimal_commas(tmp_path):
    (tmp_path / "a.csv").write_text("v;w\n1,234;0,5\n2345,5;0,7\n")
    (tmp_path / "b.csv").write_text("v,w\n1.234,5\n2.345,7\n")
    (tmp_path / "c.csv").write_text("v;w\n1.234;0.5\n2.345;0.7\n")
    rows = read_folder(tmp_path).clients
    assert [part[0].tolist() for part in rows] == [[1.234, 0.5], [1.234, 5], [1.234, 0.5]]


@pytest.mark.parametrize(
    "kinds", [{"v": "number", "w": "number"}, {"v": "category", "w": "number"}]
)
def test_a_point_that_may_separate_thousands_is_refused_in_a_table_with_decimal_commas(
    tmp_path, kinds
):
    """1.234 had been read as 1.234. A category may be called 1.234."""
    path = csv(tmp_path, "v;w\n1.234;0,5\n2.345;0,7\n")
    columns = {name: {"kind": kind} for name, kind in kinds.items()}
    if kinds["v"] == "category":
        columns["v"]["categories"] = ["1.234", "2.345"]
    schema = fc.Schema.of({"columns": columns})
    why = "'v'.* has numbers like 1.234 in a table with decimal commas, first in row 0; write 1234"
    for table in (read_table(path, raw=True).rows, next(read_batches(path).rows.read(10)).table):
        if kinds["v"] == "category":
            assert [values.tolist() for _, _, values in schema.values(table, owner="x")] == [
                [0, 1],
                [0.5, 0.7],
            ]
            continue
        with pytest.raises(DataError, match=why):
            schema.check(table, owner="x")
    with pytest.raises(DataError, match=why):
        read_table(path)
    with pytest.raises(DataError, match=why):
        fc.ClientData(read_batches(path).rows).check()


def test_unclear_points_are_named_by_file_and_row_with_all_columns(tmp_path):
    """The file with the decimal commas had been named, and only one of the columns."""
    (tmp_path / "a.csv").write_text("t;lat;lon\n1,5;1;2\n2,5;3;4\n")
    (tmp_path / "b.csv").write_text("t;lat;lon\n1,5;3;4\n2,5;52.520;13.405\n")
    why = "have numbers like 1.234 in a table with decimal commas, first in row 1; write 1234"
    refused = {f"b.csv: columns 'lat', 'lon' {why}": lambda: read_folder(tmp_path)}
    refused[f"b: columns 'lat', 'lon' {why}"] = lambda: [
        client.check()
        for client in clients_of({name: tmp_path / f"{name}.csv" for name in "ab"}).values()
    ]
    batches = read_batches(tmp_path / "b.csv")
    refused["b.csv: columns 'lat', 'lon' have"] = lambda: [
        batch.rows for batch in batches.rows.read(1)
    ]
    for sentence, read in refused.items():
        with pytest.raises(DataError, match=re.escape(sentence)):
            read()
    schema = fc.Schema.of({"columns": {name: {"kind": "number"} for name in ("t", "lat", "lon")}})
    with pytest.raises(DataError) as refusal:
        schema.check(read_table(tmp_path / "b.csv", raw=True).rows, owner="b")
    for name in ("lat", "lon"):
        assert f"column '{name}': it has numbers like 1.234" in str(refusal.value)
    assert "first in row 1" in str(refusal.value)


def test_a_draft_says_where_points_may_separate_thousands(tmp_path):
    path = csv(tmp_path, "v;w\n1.234;0,5\n2.345;0,7\n3.456;0,9\n")
    text = draft(read_table(path, raw=True).rows, source=path.name)
    assert text.count("the column has numbers like 1.234 in a table with decimal commas") == 1


@pytest.mark.parametrize("number", ["0.123", "1.2", "12.3456", "1234.567"])
def test_a_number_whose_point_cannot_separate_thousands_makes_its_column_clear(tmp_path, number):
    path = csv(tmp_path, f"v;w\n1.234;0,5\n{number};0,7\n")
    assert read_table(path).rows.tolist() == [[1.234, 0.5], [float(number), 0.7]]


LABELS = {"smokes": {1: "never", 2: "now"}, "visits": {9: "nine or more"}}


def written(frame, path):
    if path.suffix == ".xlsx":
        frame.to_excel(path, index=False)
    elif path.suffix == ".dta":
        frame.to_stata(path, write_index=False, value_labels=LABELS)
    else:
        pytest.importorskip("pyreadstat").write_sav(frame, path, variable_value_labels=LABELS)
    return path


@pytest.mark.parametrize("ending", [".csv", ".dta", ".parquet"])
def test_an_empty_text_is_a_gap_and_no_category_of_a_draft(tmp_path, ending):
    """Stata had "" as a category, with which the same table as CSV was refused."""
    frame = pd.DataFrame({"sex": ["", "male", "female"] * 20, "age": [1.5, 2.5, 3.5] * 20})
    path = tmp_path / f"rows{ending}"
    if ending == ".dta":
        frame.to_stata(path, write_index=False)
    elif ending == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    table = read_table(path, raw=True).rows
    schema = fc.Schema.from_toml(draft(table, source=path.name))
    assert schema.columns["sex"].categories == ("female", "male")
    assert schema.columns["sex"].gaps == "category"
    schema.check(table, owner="x")
    if ending != ".parquet":
        with pytest.raises(DataError, match="row 0, column 'sex' is missing; give every row its"):
            read_table(path, label_column="sex")


@pytest.mark.parametrize("ending", [".xlsx", ".dta", ".sav"])
def test_excel_stata_and_spss_files_are_read(tmp_path, ending):
    pytest.importorskip("openpyxl")
    seen = pd.to_datetime(["2020-01-01", "2021-02-03", "2020-05-06"])
    columns = {
        "dose": [1.5, np.nan, 3.0],
        "smokes": [1, 2, 1],
        "visits": [3, 9, 4],
        "seen": seen,
        "kind": list("aba"),
    }
    path = written(pd.DataFrame(columns), tmp_path / f"rows{ending}")
    rows = read_table(path, label_column="kind", raw=True).rows
    assert rows["dose"].tolist() == [1.5, pytest.approx(np.nan, nan_ok=True), 3.0]
    assert rows["smokes"].tolist() == (
        [1, 2, 1] if ending == ".xlsx" else ["never", "now", "never"]
    )
    assert rows["visits"].tolist() == [3, 9, 4]  # only one of its values has a label
    assert rows["seen"].tolist() == seen.tolist()
    assert read_table(path, columns=["visits"]).rows.tolist() == [[3.0], [9.0], [4.0]]


@pytest.mark.parametrize(("ending", "package"), [(".xlsx", "openpyxl"), (".sav", "pyreadstat")])
def test_a_file_whose_reader_is_not_installed_names_the_package(
    tmp_path, monkeypatch, ending, package
):
    monkeypatch.setitem(sys.modules, package, None)
    path = csv(tmp_path, "x", f"rows{ending}")
    with pytest.raises(ImportError, match=f"rows{ending} needs {package}; pip install {package}"):
        read_table(path)


@pytest.mark.parametrize("ending", [".xlsx", ".dta", ".sav"])
def test_a_damaged_excel_stata_or_spss_file_cannot_be_read(tmp_path, ending):
    pytest.importorskip("openpyxl")
    pytest.importorskip("pyreadstat")
    with pytest.raises(DataError, match=f"rows{ending} cannot be read"):
        read_table(csv(tmp_path, "secret 17", f"rows{ending}"))


def test_an_excel_file_needs_names_of_columns_and_rows_on_one_sheet(tmp_path):
    pytest.importorskip("openpyxl")
    path, frame = tmp_path / "rows.xlsx", pd.DataFrame({"x": [1, 2], "y": [3, 4]})
    for header, named in ((["x", "x"], "called 'x'"), (["3.5", "7"], "first line")):
        frame.to_excel(path, index=False, header=header)
        with pytest.raises(DataError, match=named):
            read_table(path)
    with pd.ExcelWriter(path) as file:
        frame.to_excel(file, sheet_name="north", index=False)
        frame.to_excel(file, sheet_name="south", index=False)
    with pytest.raises(DataError, match="2 sheets"):
        read_table(path)


def test_files_in_another_format_or_encoding_cannot_be_read(tmp_path):
    (tmp_path / "rows.csv").write_bytes("a,größe\n1,2\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"rows.csv cannot be read .*UTF-8"):
        read_table(tmp_path / "rows.csv")
    for ending in (".parquet", ".npy"):
        with pytest.raises(ValueError, match=rf"rows{ending} cannot be read as {ending[1:]}"):
            read_table(csv(tmp_path, "a,b\n1,2\n", name=f"rows{ending}"))


@pytest.mark.parametrize(
    ("array", "named"),
    [
        (np.array([[1, "a"]], dtype=object), "Python objects"),  # which are not unpickled
        (np.arange(3.0), r"shape \(3,\)"),
        (np.array([["a"]]), "type <U1"),
        (np.array([[1j]]), "type complex128"),
        (np.array([[1.0, np.nan]]), "row 0, column '1' is NaN"),
    ],
)
def test_npy_that_is_no_table_says_why(tmp_path, array, named):
    np.save(tmp_path / "rows.npy", array, allow_pickle=True)
    with pytest.raises(ValueError, match=rf"rows.npy.*{named}"):
        read_table(tmp_path / "rows.npy")


def test_every_column_that_cannot_be_taken_is_named_at_once(tmp_path):
    path = csv(tmp_path, "a,b,c\n1,2,x\n3,secret,y\n,4,z\n")
    places = "row 1, column 'b' .* row 0, column 'c' .* row 2, column 'a'"
    with pytest.raises(ValueError, match=places) as caught:
        read_table(path)
    assert "secret" not in str(caught.value)
    raw = read_table(path, raw=True).rows
    assert raw["c"].tolist() == ["x", "y", "z"]
    assert raw["a"].isna().tolist() == [False, False, True]
    with pytest.raises(ValueError, match="column 'c9' is not numeric and 5 other columns"):
        read_table(
            write(
                pd.DataFrame({f"c{index}": ["x"] for index in range(15)}), tmp_path / "rows.parquet"
            )
        )


# Ids.


def test_ids_tell_rows_apart_and_are_no_feature(tmp_path):
    table = read_table(csv(tmp_path, "patient,a\np7,1\np3,2\n"), id_column="patient")
    assert table.columns == ["a"]
    assert (table.row_ids.tolist(), table.id_column) == (["p7", "p3"], "patient")


def test_rows_keep_their_numbers_when_they_are_spread_and_held_out(tmp_path):
    path = csv(
        tmp_path, "site,a\n" + "".join(f"{'ab'[index % 2]},{index}\n" for index in range(10))
    )
    table = hold_out_server_rows(read_table(path, client_column="site"), 2)
    parts = partition(table, "column")
    for rows, ids in zip(
        [*parts.clients, parts.server_rows], [*parts.row_ids, parts.server_row_ids], strict=True
    ):
        assert rows[:, 0].tolist() == ids.tolist()
    raw = partition(
        hold_out_server_rows(read_table(path, client_column="site", raw=True), 2), "column"
    )
    assert [frame["a"].astype(int).tolist() for frame in raw.clients] == [
        ids.tolist() for ids in parts.row_ids
    ]


# Databases.


def test_a_query_reads_files_and_databases(tmp_path):
    pytest.importorskip("duckdb")
    csv(tmp_path, "age,kind\n31,a\n45,b\n62,a\n")
    database = f"sqlite:///{tmp_path}/visits.db"
    pd.DataFrame({"age": [7, 8], "kind": ["x", None]}).to_sql("visits", database, index=False)
    assert read_query(f"SELECT age FROM '{tmp_path}/*.csv' WHERE kind = 'a'").rows.tolist() == [
        [31.0],
        [62.0],
    ]
    table = read_query("SELECT kind, age FROM visits", database, raw=True)
    assert table.columns == ["kind", "age"]
    assert table.rows["age"].tolist() == [7, 8]
    with pytest.raises(ValueError, match="the query: row 0, column 'kind' is not numeric"):
        read_query("SELECT * FROM visits", database)


def test_what_a_database_says_is_not_in_the_message(tmp_path):
    pytest.importorskip("duckdb")
    csv(tmp_path, "age\nsecret\n")
    with pytest.raises(ValueError, match="ConversionException") as caught:
        read_query(f"SELECT CAST(age AS INTEGER) FROM '{tmp_path}/rows.csv'")
    assert not isinstance(caught.value, DataError)
    assert "secret" not in str(caught.value)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.db"):
        read_query("SELECT 1", "nowhere.db")


# Folders.


def test_folder_is_one_client_for_each_file_in_sorted_order(tmp_path):
    csv(tmp_path, "x,y,kind\n5,6,1\n", "oslo.csv")
    write(pd.DataFrame({"x": [1, 3], "y": [2, 4], "kind": [0, 1]}), tmp_path / "bergen.parquet")
    csv(tmp_path, "", ".hidden")
    csv(tmp_path, "", "_SUCCESS")
    (tmp_path / "old").mkdir()
    federated = read_folder(tmp_path, label_column="kind")
    assert federated.names == ["bergen", "oslo"]
    assert federated.columns == ["x", "y"]
    assert [rows.tolist() for rows in federated.clients] == [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]]]
    assert [labels.tolist() for labels in federated.labels] == [[0, 1], [1]]
    assert read_folder(str(tmp_path)).labels is None


def test_columns_in_another_order_are_put_right(tmp_path):
    csv(tmp_path, "x,y,id\n1,2,p\n", "a.csv")
    csv(tmp_path, "y,id,x\n4,q,3\n", "b.csv")
    for options in ({"id_column": "id"}, {"columns": ["x", "y"]}):
        federated = read_folder(tmp_path, **options)
        assert [rows.tolist() for rows in federated.clients] == [[[1.0, 2.0]], [[3.0, 4.0]]]
    raw = read_folder(tmp_path, id_column="id", raw=True)
    assert [list(frame.columns) for frame in raw.clients] == [["x", "y"]] * 2
    assert [ids.tolist() for ids in raw.row_ids] == [["p"], ["q"]]


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (
            {"a.csv": "x,y\n1,2\n", "b.csv": "x,z\n1,1\n"},
            "b.csv has other columns than a.csv: .*'y' .*'z'",
        ),
        ({"a.csv": "x,y\n1,2\n", "b.csv": "x\n1\n"}, "b.csv has other columns than a.csv: .*'y'"),
        ({"a.csv": "x\n1\n", "b.csv": "x\nhello\n"}, "b.csv: row 0, column 'x'"),
        ({"a.csv": "x\n1\n", "b.txt": "x\n1\n"}, "b.txt"),
        ({"a.csv": "x\n1\n", "a.CSV": "x\n1\n"}, "client 'a'"),
        ({"a.csv": "", "b.csv": "x\n"}, "no rows"),
        ({}, "holds no .csv, .tsv, .parquet, .arrow, .feather, .npy, .xlsx"),
    ],
)
def test_a_folder_that_cannot_be_used_says_why(tmp_path, files, named):
    for name, text in files.items():
        csv(tmp_path, text, name)
    with pytest.raises(ValueError, match=named):
        read_folder(tmp_path)


def test_a_folder_goes_on_without_files_that_have_no_rows_and_a_doubt_names_them(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a", "c"):
        write(pd.DataFrame(rng.normal(size=(30, 2)), columns=["x", "y"]), tmp_path / f"{name}.csv")
    csv(tmp_path, "", "b.csv")
    csv(tmp_path, "x,y\n", "d.csv")
    federated = read_folder(tmp_path)
    assert (federated.names, federated.empty) == (["a", "c"], ["b.csv", "d.csv"])
    result = fc.simulate("k-fed", tmp_path, n_clusters=2, seed=0, progress=False)
    (doubt,) = [one for one in result.doubts if one.code == "empty-file"]
    assert doubt.numbers == {"files": ["b.csv", "d.csv"]}
    assert "'b.csv', 'd.csv'" in doubt.sentence
    for file in ("b.csv", "d.csv"):
        (tmp_path / file).unlink()
    again = fc.simulate("k-fed", tmp_path, n_clusters=2, seed=0, progress=False)
    assert "empty-file" not in [one.code for one in again.doubts]


def test_a_folder_that_is_none_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"There is no folder {tmp_path}/sites"):
        read_folder(tmp_path / "sites")
    with pytest.raises(ValueError, match="read_table"):
        read_folder(csv(tmp_path, "x\n1\n"))


def test_a_file_without_an_end_of_line_is_refused_before_it_is_read_as_a_whole(tmp_path):
    path = tmp_path / "north.csv"
    with path.open("wb") as file:
        file.truncate(2**27)
    start = time.process_time()
    for read in (read_table, read_batches, lambda _: read_folder(tmp_path)):
        with pytest.raises(DataError, match=r"north\.csv: no line ends in 16,777,216 bytes"):
            read(path)
    assert time.process_time() - start < 3
