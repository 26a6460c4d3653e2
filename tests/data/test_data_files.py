import numpy as np
import pandas as pd
import pytest

from flower_fedclust import DataError
from flower_fedclust.data import hold_out_server_rows, partition, read_folder, read_query, read_table


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
    assert np.array_equal(table.rows, np.column_stack([frame["age"], frame["smoker"], frame["dose"]]))
    assert table.labels.tolist() == ["b", "a", "b"]
    assert table.owners.tolist() == ["oslo", "bergen", "oslo"]
    assert table.name == path.name
    assert table.server_rows is None


def test_columns_are_taken_in_the_order_asked_for(path):
    table = read_table(str(path), columns=["dose", "age"])
    assert table.columns == ["dose", "age"]
    assert table.rows[:, 1].tolist() == [31.0, 45.0, 62.0]
    assert table.labels is None
    assert table.owners is None


def test_file_partitions_by_its_client_column(path):
    federated = partition(read_table(path, client_column="site", columns=["age"]), "column")
    assert federated.names == ["bergen", "oslo"]
    assert [rows.tolist() for rows in federated.clients] == [[[45.0]], [[31.0], [62.0]]]


def test_npy_columns_are_called_by_number(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.array([[0.5, 1.0, 7.0], [0.25, 0.0, 8.0]]))
    table = read_table(path, label_column="1", client_column="2")
    assert table.columns == ["0"]
    assert table.rows.tolist() == [[0.5], [0.25]]
    assert table.labels.tolist() == [1, 0]
    assert table.labels.dtype.kind == "i"
    assert table.owners.tolist() == [7, 8]


def test_nullable_columns_of_parquet_become_floats(tmp_path):
    frame = pd.DataFrame({"a": pd.array([1, 2], dtype="Int64"), "b": pd.array([True, False], dtype="boolean")})
    assert read_table(write(frame, tmp_path / "rows.parquet")).rows.tolist() == [[1.0, 1.0], [2.0, 0.0]]


def test_missing_integer_of_parquet_is_found(tmp_path):
    frame = pd.DataFrame({"a": pd.array([1, None], dtype="Int64")})
    with pytest.raises(ValueError, match=r"rows.parquet: row 1, column 'a' is NaN"):
        read_table(write(frame, tmp_path / "rows.parquet"))


def test_folder_above_a_parquet_file_is_no_column(frame, tmp_path):
    (tmp_path / "region=3").mkdir()
    path = write(frame[["age"]], tmp_path / "region=3" / "rows.parquet")
    assert read_table(path).columns == ["age"]


def test_missing_file_names_its_path(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"There is no file {tmp_path}/rows.csv"):
        read_table(tmp_path / "rows.csv")


def test_unknown_ending_names_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"rows.xlsx is not .* give a .csv, .parquet or .npy file"):
        read_table(tmp_path / "rows.xlsx")


def test_folder_given_as_file_names_read_folder(tmp_path):
    with pytest.raises(ValueError, match="is a folder; use read_folder"):
        read_table(tmp_path)


@pytest.mark.parametrize("option", ["label_column", "client_column"])
def test_misspelt_column_names_the_nearest(path, option):
    sentence = rf"There is no column in {path.name} called 'knd': did you mean 'kind'"
    with pytest.raises(ValueError, match=sentence):
        read_table(path, **{option: "knd"})
    with pytest.raises(ValueError, match=sentence):
        read_table(path, columns=["age", "knd"])


def test_label_cannot_be_a_feature_too(path):
    with pytest.raises(ValueError, match="column 'kind' holds the labels; it cannot be a feature too"):
        read_table(path, label_column="kind", columns=["age", "kind"])


def test_text_column_is_named_with_its_row_and_without_its_value(tmp_path):
    path = csv(tmp_path, "a,b\n1,2\n3,secret\n")
    with pytest.raises(ValueError, match=r"rows.csv: row 1, column 'b' is not numeric") as caught:
        read_table(path)
    assert "secret" not in str(caught.value)


def test_dates_are_not_numbers(tmp_path):
    frame = pd.DataFrame({"day": pd.to_datetime(["2024-01-01", "2024-01-02"])})
    with pytest.raises(ValueError, match=r"rows.parquet: column 'day' is dates"):
        read_table(write(frame, tmp_path / "rows.parquet"))


@pytest.mark.parametrize(("entry", "kind"), [("", "NaN"), ("inf", "infinite")])
def test_entry_that_is_not_finite_is_named(tmp_path, entry, kind):
    path = csv(tmp_path, f"a,b\n1,2\n3,4\n5,{entry}\n")
    with pytest.raises(ValueError, match=rf"rows.csv: row 2, column 'b' is {kind}"):
        read_table(path)


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".npy"])
def test_file_of_no_bytes_is_empty(tmp_path, ending):
    path = tmp_path / f"rows{ending}"
    path.touch()
    with pytest.raises(ValueError, match=rf"rows{ending} is empty"):
        read_table(path)


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".npy"])
def test_file_of_no_rows_says_so(frame, tmp_path, ending):
    path = write(frame[["age", "dose"]].iloc[:0], tmp_path / f"rows{ending}")
    with pytest.raises(ValueError, match=rf"rows{ending} has no rows; give at least one"):
        read_table(path)


def test_csv_of_blank_lines_is_empty(tmp_path):
    with pytest.raises(ValueError, match=r"rows.csv is empty"):
        read_table(csv(tmp_path, "\n\n"))


def test_file_without_features_says_so(tmp_path):
    with pytest.raises(ValueError, match=r"rows.csv has no columns; give at least one"):
        read_table(csv(tmp_path, "kind\n1\n"), label_column="kind")


@pytest.mark.parametrize(("option", "what"), [("label_column", "label"), ("client_column", "client")])
def test_missing_label_or_client_is_named(tmp_path, option, what):
    path = csv(tmp_path, "a,name\n1,x\n2,\n")
    with pytest.raises(ValueError, match=rf"rows.csv: row 1, column 'name' is missing; give every row its {what}"):
        read_table(path, **{option: "name"})


def test_a_client_whose_name_is_written_in_two_ways_is_not_taken_for_two(tmp_path):
    for other in ("north ", "no\u0072th\u00a0", " north"):
        path = csv(tmp_path, f"a,site\n1,north\n2,{other}\n")
        with pytest.raises(
            ValueError, match=r"rows.csv: column 'site' has .*, which differ in spaces or in how Unicode"
        ):
            read_table(path, client_column="site")
    assert read_table(csv(tmp_path, "a,site\n1,north\n2,North\n"), client_column="site").owners is not None


def test_row_numbers_without_a_name_are_no_feature(frame, tmp_path):
    frame[["age"]].to_csv(tmp_path / "rows.csv")
    with pytest.raises(ValueError, match=r"rows.csv: column 0 has no name; .*index=False"):
        read_table(tmp_path / "rows.csv")
    assert read_table(tmp_path / "rows.csv", columns=["age"]).columns == ["age"]


@pytest.mark.parametrize("text", ["a,b\n1,2,3\n4,5,6\n", "a,b\n1,2\n4,5,6\n"])
def test_csv_with_fields_too_many_is_refused(tmp_path, text):
    with pytest.raises(ValueError, match=r"rows.csv cannot be read"):
        read_table(csv(tmp_path, text))


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


@pytest.mark.parametrize("text", ["a;b\n1,5;2\n1.234;4\n", "a\tb\n1,234\t2\n3\t4\n", "a,b\n1;5,2\n3,4\n"])
def test_number_whose_mark_is_not_the_files_is_text(tmp_path, text):
    with pytest.raises(ValueError, match=r"rows.csv: row [01], column 'a' is not numeric"):
        read_table(csv(tmp_path, text))


def test_csv_that_is_not_utf8_says_so(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes("a,größe\n1,2\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"rows.csv cannot be read .*UTF-8"):
        read_table(path)


@pytest.mark.parametrize("ending", [".parquet", ".npy"])
def test_file_of_another_format_cannot_be_read(tmp_path, ending):
    with pytest.raises(ValueError, match=rf"rows{ending} cannot be read as {ending[1:]}: "):
        read_table(csv(tmp_path, "a,b\n1,2\n", name=f"rows{ending}"))


def test_npy_of_objects_is_not_unpickled(tmp_path):
    np.save(tmp_path / "rows.npy", np.array([[1, "a"]], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"rows.npy: it holds Python objects"):
        read_table(tmp_path / "rows.npy")


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.arange(3.0), r"rows.npy: the rows have shape \(3,\); give two dimensions"),
        (np.array([["a"]]), "rows.npy holds entries of type <U1; give numbers"),
        (np.array([[1j]]), "rows.npy holds entries of type complex128; give numbers"),
        (np.array([[1.0, np.nan]]), "rows.npy: row 0, column '1' is NaN"),
    ],
)
def test_npy_that_is_no_table_says_why(tmp_path, array, sentence):
    np.save(tmp_path / "rows.npy", array)
    with pytest.raises(ValueError, match=sentence):
        read_table(tmp_path / "rows.npy")


def test_folder_is_one_client_a_file_in_sorted_order(tmp_path):
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
    assert federated.server_rows is None
    assert read_folder(str(tmp_path)).labels is None


def test_chosen_columns_may_stand_in_another_order(tmp_path):
    csv(tmp_path, "x,y\n1,2\n", "a.csv")
    csv(tmp_path, "z,y,x\n9,4,3\n", "b.csv")
    federated = read_folder(tmp_path, columns=["x", "y"])
    assert [rows.tolist() for rows in federated.clients] == [[[1.0, 2.0]], [[3.0, 4.0]]]


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ("x,z", "b.csv has other columns than a.csv: it lacks 'y' and adds 'z'"),
        ("x", "b.csv has other columns than a.csv: it lacks 'y'; give"),
    ],
)
def test_files_with_other_columns_are_named(tmp_path, header, sentence):
    csv(tmp_path, "x,y\n1,2\n", "a.csv")
    csv(tmp_path, header + "\n" + ",".join("1" for _ in header.split(",")) + "\n", "b.csv")
    with pytest.raises(ValueError, match=sentence):
        read_folder(tmp_path)


def test_columns_in_another_order_are_put_right(tmp_path):
    csv(tmp_path, "x,y,id\n1,2,p\n", "a.csv")
    csv(tmp_path, "y,id,x\n4,q,3\n", "b.csv")
    federated = read_folder(tmp_path, id_column="id")
    assert [rows.tolist() for rows in federated.clients] == [[[1.0, 2.0]], [[3.0, 4.0]]]
    assert [ids.tolist() for ids in federated.row_ids] == [["p"], ["q"]]
    raw = read_folder(tmp_path, id_column="id", raw=True)
    assert [list(frame.columns) for frame in raw.clients] == [["x", "y"]] * 2


def test_every_column_that_cannot_be_taken_is_named_at_once(tmp_path):
    path = csv(tmp_path, "a,b,c\n1,2,x\n3,secret,y\n,4,z\n")
    with pytest.raises(ValueError, match="is NaN") as caught:
        read_table(path)
    assert str(caught.value) == (
        "rows.csv: row 1, column 'b' is not numeric, row 0, column 'c' is not numeric and row 2, column 'a' is NaN; "
        "encode or fill them in, or leave them out, or give a schema, which takes text, dates and gaps."
    )
    raw = read_table(path, raw=True).rows
    assert raw["c"].tolist() == ["x", "y", "z"]
    assert raw["a"].isna().tolist() == [False, False, True]


def test_ten_columns_are_named_and_the_others_counted(tmp_path):
    frame = pd.DataFrame({f"c{index}": ["x"] for index in range(15)})
    with pytest.raises(ValueError, match=r"column 'c9' is not numeric and 5 other columns; encode them"):
        read_table(write(frame, tmp_path / "rows.parquet"))


def test_two_columns_of_one_name_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"rows.csv: more than one column is called 'a'; give each a name of its own"):
        read_table(csv(tmp_path, "a,b,a\n1,2,3\n"))


def test_ids_tell_rows_apart_and_are_no_feature(tmp_path):
    path = csv(tmp_path, "patient,a\np7,1\np3,2\n")
    table = read_table(path, id_column="patient")
    assert table.columns == ["a"]
    assert (table.row_ids.tolist(), table.id_column) == (["p7", "p3"], "patient")
    with pytest.raises(ValueError, match=r"rows.csv: column 'a' has one id for several rows; give each row an id"):
        read_table(csv(tmp_path, "a,b\n1,2\n1,3\n"), id_column="a")


def test_rows_keep_their_numbers_when_they_are_spread_and_held_out(tmp_path):
    path = csv(tmp_path, "site,a\n" + "".join(f"{'ab'[index % 2]},{index}\n" for index in range(10)))
    table = hold_out_server_rows(read_table(path, client_column="site"), 2)
    parts = partition(table, "column")
    for rows, ids in zip([*parts.clients, parts.server_rows], [*parts.row_ids, parts.server_row_ids], strict=True):
        assert rows[:, 0].tolist() == ids.tolist()
    raw = partition(hold_out_server_rows(read_table(path, client_column="site", raw=True), 2), "column")
    assert [frame["a"].tolist() for frame in raw.clients] == [ids.tolist() for ids in parts.row_ids]


def test_a_query_reads_files_and_databases(tmp_path):
    pytest.importorskip("duckdb")
    csv(tmp_path, "age,kind\n31,a\n45,b\n62,a\n")
    pd.DataFrame({"age": [7, 8], "kind": ["x", None]}).to_sql("visits", f"sqlite:///{tmp_path}/visits.db", index=False)
    table = read_query(f"SELECT age FROM '{tmp_path}/*.csv' WHERE kind = 'a'")
    assert table.rows.tolist() == [[31.0], [62.0]]
    table = read_query("SELECT kind, age FROM visits", f"sqlite:///{tmp_path}/visits.db", raw=True)
    assert table.columns == ["kind", "age"]
    assert table.rows["age"].tolist() == [7, 8]
    with pytest.raises(ValueError, match="the query: row 0, column 'kind' is not numeric"):
        read_query("SELECT * FROM visits", f"sqlite:///{tmp_path}/visits.db")


def test_what_a_database_says_is_not_in_the_message(tmp_path):
    pytest.importorskip("duckdb")
    csv(tmp_path, "age\nsecret\n")
    with pytest.raises(ValueError, match=r"^the query failed with ConversionException; ") as caught:
        read_query(f"SELECT CAST(age AS INTEGER) FROM '{tmp_path}/rows.csv'")
    assert not isinstance(caught.value, DataError)
    with pytest.raises(FileNotFoundError, match=r"There is no .* nowhere\.db"):
        read_query("SELECT 1", "nowhere.db")


def test_bad_file_in_a_folder_is_named(tmp_path):
    csv(tmp_path, "x\n1\n", "a.csv")
    csv(tmp_path, "x\nhello\n", "b.csv")
    with pytest.raises(ValueError, match=r"b.csv: row 0, column 'x' is not numeric"):
        read_folder(tmp_path)


def test_other_file_in_a_folder_is_refused_rather_than_left_out(tmp_path):
    csv(tmp_path, "x\n1\n", "a.csv")
    csv(tmp_path, "x\n1\n", "b.txt")
    with pytest.raises(ValueError, match=r"b.txt is not a file that can be read"):
        read_folder(tmp_path)


def test_two_files_of_one_client_are_refused(tmp_path):
    csv(tmp_path, "x\n1\n", "a.csv")
    write(pd.DataFrame({"x": [1]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a.csv and a.parquet would both be the client 'a'"):
        read_folder(tmp_path)


def test_missing_folder_names_its_path(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"There is no folder {tmp_path}/sites"):
        read_folder(tmp_path / "sites")


def test_folder_without_files_says_so(tmp_path):
    with pytest.raises(ValueError, match=r"holds no .csv, .parquet or .npy file"):
        read_folder(tmp_path)


def test_file_given_as_folder_names_read_table(tmp_path):
    with pytest.raises(ValueError, match=r"is a file, not a folder .* use read_table"):
        read_folder(csv(tmp_path, "x\n1\n"))


def test_a_first_line_of_numbers_is_taken_for_a_row_without_names(tmp_path):
    """Names leave a site when it enrols, so that a row must never pass for them."""
    (tmp_path / "rows.csv").write_text("61.5,7.2,1\n44.0,6.8,0\n")
    with pytest.raises(ValueError, match=r"rows\.csv: the first line is all numbers; put a line with the names"):
        read_table(tmp_path / "rows.csv")
    (tmp_path / "numbered.csv").write_text("0,1\n61.5,7.2\n44.0,6.8\n")
    assert read_table(tmp_path / "numbered.csv").columns == ["0", "1"]
