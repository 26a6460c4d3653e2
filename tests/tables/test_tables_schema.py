"""What can be wrong with a schema or with a table: one sentence with column, site and remedy, and no value of a row."""

import datetime
import re
import time

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import flower_fedclust as fc
from flower_fedclust.cli.commands import app
from flower_fedclust.tables.columns import MisfitError, read_column
from flower_fedclust.tables.drafting import draft

COLUMNS = {
    "age": {"kind": "integer", "bounds": [0, 100]},
    "born": {"kind": "date"},
    "job": {"kind": "category", "categories": ["cook", "pilot"]},
}


def good(**changed):
    table = {"age": [30, 40], "born": ["1990-05-01", "1985-01-31"], "job": ["cook", "pilot"]}
    return pd.DataFrame({name: values for name, values in (table | changed).items() if values is not None})


@pytest.mark.parametrize(
    ("name", "column", "sentence"),
    [
        ("age", {"kind": "number", "bounds": [100, 0]}, "column 'age': bounds are the wrong way round, or equal; give"),
        ("age", {"kind": "number", "bounds": [0, float("nan")]}, "column 'age': bounds must be finite"),
        ("age", {"kind": "nominal"}, "column 'age': kind must be one of: 'number', 'integer', 'category'"),
        ("age", {"kind": "number", "bound": [0, 1]}, "column 'age': bound is no key of a column; there are kind, unit"),
        ("age", {}, "column 'age': kind is missing"),
        ("age", {"kind": "number", "weight": 0}, "column 'age': weight must be above 0"),
        (
            "age",
            {"kind": "number", "logarithm": True, "bounds": [-1, 1]},
            "bounds begin below 0, where there is no log",
        ),
        ("born", {"kind": "date", "bounds": [0, 1]}, "column 'born': bounds must be two dates"),
        ("born", {"kind": "date", "logarithm": True}, "column 'born': logarithm is given, and a date has none"),
        ("job", {"kind": "category"}, "column 'job': categories are missing; list them, as they are known without"),
        ("job", {"kind": "binary", "categories": ["a", "b", "c"]}, "column 'job': categories has 3; give 2"),
        ("job", {"kind": "category", "categories": ["a", "a"]}, "column 'job': categories has 'a' twice"),
        (
            "job",
            {"kind": "category", "categories": ["a", "missing"], "gaps": "category"},
            "column 'job': categories has 'missing', which gaps = \"category\" adds; call yours something else",
        ),
        ("age", {"kind": "number", "bounds": [-1e308, 1e308]}, "bounds are nearer to each other, or further apart"),
        ("age", {"kind": "number", "weight": 1e300}, "column 'age': weight must be below 1e+100"),
        (
            "job",
            {"kind": "ordinal", "categories": ["a", "b"], "scale": "rank"},
            "column 'job': scale is given, and suits",
        ),
        ("job", {"kind": "number", "categories": ["a", "b"]}, "categories are listed, and the kind number has none"),
    ],
)
def test_a_schema_that_cannot_be_right_is_told_why(name, column, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        fc.Schema.of({"columns": COLUMNS | {name: column}})


def test_all_that_is_wrong_with_a_schema_is_said_at_once():
    with pytest.raises(
        ValueError, match=r"the schema: column 'a': kind must be .*; column 'b': categories are missing"
    ):
        fc.Schema.of({"columns": {"a": {"kind": "x"}, "b": {"kind": "binary"}}})
    with pytest.raises(ValueError, match="no column that is used"):
        fc.Schema.of({"columns": {"a": {"kind": "ignored"}}})


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {"job": ["cook", "Elvis"]},
            "column 'job': row 1 is a category that the schema does not list; mend it, or have",
        ),
        ({"job": ["cook", None]}, "column 'job': row 1 is missing; fill it in, or let the schema say gaps"),
        ({"job": [["cook"], ["pilot"]]}, "column 'job': it holds what is no category, such as lists; leave it out"),
        ({"born": ["1990-05-01", "1985-02-31"]}, "column 'born': row 1 is no date; write it as YYYY-MM-DD"),
        ({"born": [1990, 1985]}, "column 'born': it holds numbers where the schema says dates; change the kind"),
        ({"age": [30, "Elvis"]}, "column 'age': row 1 is no number; mend it"),
        ({"age": [30, 40.5]}, "column 'age': row 1 is no whole number; mend it"),
        ({"age": [30, np.inf]}, "column 'age': row 1 is infinite; mend it"),
        ({"age": [None, None]}, "column 'age': row 0 is missing; fill it in"),
        (
            {"age": pd.to_datetime(["2020-01-01"] * 2)},
            "column 'age': it holds dates or times where the schema says num",
        ),
        ({"age": None}, "column 'age': it is not there; add it, or mend its name"),
        ({"id": [1, 2]}, "column 'id': the schema does not have it; leave it out, or list it with kind = \"ignored\""),
    ],
)
def test_a_table_that_does_not_fit_is_told_which_column_and_why(changed, sentence):
    schema = fc.Schema.of({"columns": COLUMNS})
    with pytest.raises(fc.DataError) as caught:
        fc.simulate(fc.PrivateKMeans(2), {"north": good(), "south": good(**changed)}, schema=schema)
    assert str(caught.value).startswith("client south: the table does not fit the schema: ")
    assert sentence in str(caught.value)
    assert "Elvis" not in str(caught.value)


def test_a_category_of_digits_is_found_by_its_number_and_one_that_files_lose_is_no_gap():
    listed = ("01067", "0", "00", "2.50")
    column = fc.Schema.of({"columns": {"a": {"kind": "category", "categories": listed, "gaps": "mean"}}}).columns["a"]
    assert read_column(pd.Series([1067.0, 0, np.nan]), column).tolist()[:2] == [0, 1]
    assert read_column(pd.Series(["1067", "01067", "00", "2.50"]), column).tolist() == [0, 0, 2, 3]
    column = column.model_copy(update={"categories": ("None", "mild")})
    assert read_column(pd.Series(["mild", "None", None]), column).tolist()[:2] == [1, 0]
    with pytest.raises(
        MisfitError, match="row 1 is missing, as whatever a file calls 'None' is when it is read; rename"
    ):
        read_column(pd.Series(["mild", None]), column)


def test_all_columns_and_all_sites_that_do_not_fit_are_named_at_once():
    tables = {"north": good(job=["Elvis", "cook"], age=["x", 1]), "south": good(born=["?", "2020-01-01"])}
    with pytest.raises(fc.DataError) as caught:
        fc.simulate(fc.PrivateKMeans(2), tables, schema={"columns": COLUMNS})
    assert all(name in str(caught.value) for name in ("'job'", "'age'", "south", "'born'"))


def test_two_columns_of_one_name_are_refused():
    table = good()
    table.columns = ["age", "age", "job"]
    with pytest.raises(
        fc.DataError, match="client 1: more than one column is called 'age'; give each a name of its own"
    ):
        fc.simulate(fc.PrivateKMeans(2), [good(), table], schema={"columns": COLUMNS})


def test_columns_without_names_are_called_by_their_numbers():
    with pytest.raises(
        fc.DataError, match=r"column 'age': it is not there; .* column '0': the schema does not have it"
    ):
        fc.simulate(fc.PrivateKMeans(2), [np.zeros((3, 3))] * 2, schema={"columns": COLUMNS})


def test_ten_thousand_columns_are_checked_in_a_second_and_ten_of_them_named():
    schema = fc.Schema.of({"columns": {f"c{i}": {"kind": "number"} for i in range(10_000)}})
    table = pd.DataFrame(np.full((1, 10_000), np.nan), columns=list(schema.columns))
    start = time.process_time()
    with pytest.raises(fc.DataError, match=r"column 'c0': row 0 is missing; .*; and 9,990 more\.$"):
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
    table = good(income=[1.5, None], flag=[True, False], name=[f"p{i}" for i in range(2)], same=[1, 1])
    table = pd.concat([table] * 60, ignore_index=True)
    table.loc[:9, "income"] = 2.5
    table["name"] = [f"person {i}" for i in range(len(table))]
    table["number"] = range(len(table))
    text = draft(table, source="people")
    schema = fc.Schema.of(text)
    assert {name: column.kind for name, column in schema.columns.items()} == {
        "age": "integer",
        "born": "date",
        "job": "binary",
        "income": "number",
        "flag": "binary",
        "name": "ignored",
        "same": "ignored",
        "number": "ignored",
    }
    assert schema.columns["income"].gaps == "mean"
    assert schema.columns["income"].bounds is None
    assert text.count("# FROM YOUR ROWS") == 6
    assert "person 1" not in text
    assert "# Look for codes among the integers: postcodes" in text
    schema.check(table, owner="site")

    table.to_parquet(tmp_path / "people.parquet")
    run = CliRunner().invoke
    out = tmp_path / "columns.toml"
    assert run(app, ["schema", "init", str(tmp_path / "people.parquet"), "--out", str(out)]).exit_code == 0
    assert fc.Schema.of(out) == schema
    asked = ["schema", "check", str(out), str(tmp_path / "people.parquet")]
    assert run(app, asked).output == "people.parquet fits columns.toml.\n"
    out.write_text(out.read_text().replace('kind = "number"', 'kind = "number"\nbounds = [0, 1]'))
    said = "Column 'income': 100% of the values lie beyond its bounds and count as these; is the unit right?\n"
    assert run(app, asked).output.endswith(said)
    with pytest.raises(FileNotFoundError, match=r"There is no schema file .*; 'fedclust schema init FILE' drafts one"):
        fc.Schema.of(tmp_path / "none.toml")
