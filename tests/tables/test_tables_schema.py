"""What can be wrong with a schema or a table: the error names column, row, site and remedy, and never a value."""

import datetime
import time

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import flower_fedclust as fc
from flower_fedclust.cli.commands import app
from flower_fedclust.tables.drafting import draft
from flower_fedclust.tables.schema import MisfitError, read_column

COLUMNS = {
    "age": {"kind": "integer", "bounds": [0, 100]},
    "born": {"kind": "date"},
    "job": {"kind": "category", "categories": ["cook", "pilot"]},
}


def good(**changed):
    table = {"age": [30, 40], "born": ["1990-05-01", "1985-01-31"], "job": ["cook", "pilot"]}
    return pd.DataFrame({name: values for name, values in (table | changed).items() if values is not None})


@pytest.mark.parametrize(
    ("key", "column"),
    [
        ("bounds", {"kind": "number", "bounds": [100, 0]}),
        ("bounds", {"kind": "number", "bounds": [0, float("nan")]}),
        ("bounds", {"kind": "number", "bounds": [-1e308, 1e308]}),
        ("bounds", {"kind": "number", "logarithm": True, "bounds": [-1, 1]}),
        ("bounds", {"kind": "date", "bounds": [0, 1]}),
        ("kind", {"kind": "nominal"}),
        ("kind", {}),
        ("bound is not a key", {"kind": "number", "bound": [0, 1]}),
        ("weight", {"kind": "number", "weight": 0}),
        ("weight", {"kind": "number", "weight": 1e300}),
        ("logarithm", {"kind": "date", "logarithm": True}),
        ("categories", {"kind": "category"}),
        ("categories", {"kind": "binary", "categories": ["a", "b", "c"]}),
        ("categories", {"kind": "category", "categories": ["a", "a"]}),
        ("categories", {"kind": "category", "categories": ["a", "missing"], "gaps": "category"}),
        ("categories", {"kind": "number", "categories": ["a", "b"]}),
        ("scale", {"kind": "ordinal", "categories": ["a", "b"], "scale": "rank"}),
    ],
)
def test_a_column_that_cannot_be_right_is_named_with_its_key(key, column):
    with pytest.raises(ValueError, match=f"column 'x': .*{key}"):
        fc.Schema.of({"columns": COLUMNS | {"x": column}})


def test_all_that_is_wrong_with_a_schema_is_said_at_once():
    with pytest.raises(ValueError, match=r"column 'a': .*; column 'b': "):
        fc.Schema.of({"columns": {"a": {"kind": "x"}, "b": {"kind": "binary"}}})
    with pytest.raises(ValueError, match="no column"):
        fc.Schema.of({"columns": {"a": {"kind": "ignored"}}})


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"job": ["cook", "Elvis"]}, "'job': row 1"),
        ({"job": ["cook", None]}, "'job': row 1"),
        ({"job": [["cook"], ["pilot"]]}, "'job'"),
        ({"born": ["1990-05-01", "1985-02-31"]}, "'born': row 1"),
        ({"born": [1990, 1985]}, "'born'"),
        ({"age": [30, "Elvis"]}, "'age': row 1"),
        ({"age": [30, 40.5]}, "'age': row 1"),
        ({"age": [30, np.inf]}, "'age': row 1"),
        ({"age": [None, None]}, "'age': row 0"),
        ({"age": pd.to_datetime(["2020-01-01"] * 2)}, "'age'"),
        ({"age": None}, "'age'"),
        ({"id": [1, 2]}, "'id'"),
    ],
)
def test_a_table_that_does_not_fit_is_told_which_column_and_row(changed, place):
    schema = fc.Schema.of({"columns": COLUMNS})
    with pytest.raises(fc.DataError) as caught:
        fc.simulate(fc.PrivateKMeans(2), {"north": good(), "south": good(**changed)}, schema=schema)
    assert str(caught.value).startswith(f"client south: the table does not fit the schema: column {place}")
    assert "Elvis" not in str(caught.value)


def test_a_category_of_digits_is_found_by_its_number_and_one_that_files_lose_is_no_gap():
    listed = ("01067", "0", "00", "2.50")
    column = fc.Schema.of({"columns": {"a": {"kind": "category", "categories": listed, "gaps": "mean"}}}).columns["a"]
    assert read_column(pd.Series([1067.0, 0, np.nan]), column).tolist()[:2] == [0, 1]
    assert read_column(pd.Series(["1067", "01067", "00", "2.50"]), column).tolist() == [0, 0, 2, 3]
    column = column.model_copy(update={"categories": ("None", "mild")})
    assert read_column(pd.Series(["mild", "None", None]), column).tolist()[:2] == [1, 0]
    with pytest.raises(MisfitError, match="row 1 is missing, because 'None'"):
        read_column(pd.Series(["mild", None]), column)


def test_all_columns_and_all_sites_that_do_not_fit_are_named_at_once():
    tables = {"north": good(job=["Elvis", "cook"], age=["x", 1]), "south": good(born=["?", "2020-01-01"])}
    with pytest.raises(fc.DataError) as caught:
        fc.simulate(fc.PrivateKMeans(2), tables, schema={"columns": COLUMNS})
    assert all(name in str(caught.value) for name in ("'job'", "'age'", "south", "'born'"))


def test_two_columns_with_one_name_and_columns_without_names_are_refused():
    table = good()
    table.columns = ["age", "age", "job"]
    with pytest.raises(fc.DataError, match="client 1: more than one column is called 'age'"):
        fc.simulate(fc.PrivateKMeans(2), [good(), table], schema={"columns": COLUMNS})
    with pytest.raises(fc.DataError, match=r"column 'age': .* column '0': "):
        fc.simulate(fc.PrivateKMeans(2), [np.zeros((3, 3))] * 2, schema={"columns": COLUMNS})


def test_ten_thousand_columns_are_checked_in_a_second_and_ten_of_them_named():
    schema = fc.Schema.of({"columns": {f"c{i}": {"kind": "number"} for i in range(10_000)}})
    table = pd.DataFrame(np.full((1, 10_000), np.nan), columns=list(schema.columns))
    start = time.process_time()
    with pytest.raises(fc.DataError, match=r"column 'c0': row 0 .*; and 9,990 more\.$"):
        schema.check(table, owner="site")
    assert time.process_time() - start < 5


def test_values_are_known_by_what_they_are_called():
    schema = fc.Schema.of({"columns": {"a": {"kind": "ordinal", "categories": [0, 1, True]}}})
    assert schema.columns["a"].categories == ("0", "1", "true")
    for values in ([0, 1], [0.0, 1.0], ["0", "1"], [False + 0, "1"]):
        ((_, _, codes),) = schema.values(pd.DataFrame({"a": values}), owner="x")
        np.testing.assert_array_equal(codes, [0.0, 1.0])


def test_a_schema_survives_toml_and_json():
    bounds = [datetime.date(1900, 1, 1), datetime.date(2030, 1, 1)]
    schema = fc.Schema.of({"columns": COLUMNS | {"born": {"kind": "date", "bounds": bounds, "unit": "day"}}})
    assert fc.Schema.of(schema.to_toml()) == schema
    assert fc.Schema.from_json(schema.to_json()) == schema
    assert schema.columns["born"].interval[1] == 21915


def test_a_draft_can_be_read_marks_what_comes_from_rows_and_fits(tmp_path):
    table = pd.concat([good(income=[1.5, None], flag=[True, False], same=[1, 1])] * 60, ignore_index=True)
    table.loc[:9, "income"] = 2.5
    table["name"] = [f"person {i}" for i in range(len(table))]
    table["number"] = range(len(table))
    text = draft(table, source="people")
    schema = fc.Schema.of(text)
    kinds = {"age": "integer", "born": "date", "job": "binary", "income": "number", "flag": "binary"}
    kinds |= dict.fromkeys(("same", "name", "number"), "ignored")
    assert {name: column.kind for name, column in schema.columns.items()} == kinds
    assert schema.columns["income"].gaps == "mean"
    assert schema.columns["income"].bounds is None
    assert text.count("# FROM YOUR ROWS") == 6
    assert "person 1" not in text
    schema.check(table, owner="site")


def test_the_commands_draft_a_schema_and_check_a_table(tmp_path):
    file, out = tmp_path / "people.parquet", tmp_path / "columns.toml"
    good(income=[1.5, 2.5]).to_parquet(file)
    run = CliRunner().invoke
    assert run(app, ["schema", "init", str(file), "--out", str(out)]).exit_code == 0
    assert "fits" in run(app, ["schema", "check", str(out), str(file)]).output
    out.write_text(out.read_text().replace('kind = "number"', 'kind = "number"\nbounds = [0, 1]'))
    assert "Column 'income': 100%" in run(app, ["schema", "check", str(out), str(file)]).output
    with pytest.raises(FileNotFoundError, match="fedclust schema init"):
        fc.Schema.of(tmp_path / "none.toml")
