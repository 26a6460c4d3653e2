"""What can be wrong with a schema or a table: the error names column, row, site and remedy, and never a value."""

import datetime
import json
import shlex
import time
import tomllib

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import flower_fedclust as fc
from flower_fedclust.cli.commands import app
from flower_fedclust.data.cells import as_cells
from flower_fedclust.tables.drafting import draft
from flower_fedclust.tables.schema import MisfitError, read_column

COLUMNS = {
    "age": {"kind": "integer", "bounds": [0, 100]},
    "born": {"kind": "date"},
    "job": {"kind": "category", "categories": ["cook", "pilot"]},
}


def good(**changed):
    table = {"age": [30, 40], "born": ["1990-05-01", "1985-01-31"], "job": ["cook", "pilot"]}
    return pd.DataFrame(
        {name: values for name, values in (table | changed).items() if values is not None}
    )


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
    assert str(caught.value).startswith(
        f"client south: the table does not fit the schema: column {place}"
    )
    assert "Elvis" not in str(caught.value)


def test_a_category_of_digits_is_found_by_its_number_and_one_that_files_lose_is_no_gap():
    listed = ("01067", "0", "00", "2.50")
    column = fc.Schema.of(
        {"columns": {"a": {"kind": "category", "categories": listed, "gaps": "mean"}}}
    ).columns["a"]
    assert read_column(pd.Series([1067.0, 0, np.nan]), column).tolist()[:2] == [0, 1]
    assert read_column(pd.Series(["1067", "01067", "00", "2.50"]), column).tolist() == [0, 0, 2, 3]
    column = column.model_copy(update={"categories": ("None", "mild")})
    assert read_column(pd.Series(["mild", "None", None]), column).tolist()[:2] == [1, 0]
    with pytest.raises(MisfitError, match="row 1 is missing, because 'None'"):
        read_column(pd.Series(["mild", None]), column)


WITH_TIME = COLUMNS | {
    "died": {"kind": "binary", "categories": ["alive", "dead"]},
    "time": {"kind": "time-to-event", "event": "died", "bins": [5.0], "time_zero": "row"},
}


@pytest.mark.parametrize(
    "times", [["2020-01-31", "2021-05-01"], pd.to_datetime(["2020-01-31", "2021-05-01"])]
)
def test_dates_as_a_time_to_an_event_are_refused_with_the_remedy(times):
    table = good(died=["alive", "dead"], time=times)
    with pytest.raises(
        fc.DataError,
        match=r"column 'time': it holds dates, but .* subtract the date at which time begins",
    ):
        fc.Schema.of({"columns": WITH_TIME}).check(table, owner="a")


@pytest.mark.parametrize("years", [["2020", "2021"], pd.Series([2020, 2021], dtype=object)])
def test_years_are_no_dates_in_any_table(years):
    column = fc.Schema.of({"columns": {"x": {"kind": "date"}}}).columns["x"]
    with pytest.raises(MisfitError, match="row 0 is a number; write it as YYYY-MM-DD"):
        read_column(pd.Series(years), column)
    with pytest.raises(MisfitError, match="row 0 is a number; write it as YYYY-MM-DD"):
        read_column(as_cells(["2020", "2021"]), column)


@pytest.mark.parametrize(
    "text", ["-2021", "-20210301", "-2021.5", "-2021-03-01", "+2021", "now", " Today ", "20211345"]
)
def test_negative_years_and_the_present_moment_are_no_dates(text):
    column = fc.Schema.of({"columns": {"x": {"kind": "date"}}}).columns["x"]
    for values in (pd.Series(["2021-03-01", text]), as_cells(["2021-03-01", text])):
        with pytest.raises(MisfitError, match=r"row 1 is .*; write it as YYYY-MM-DD"):
            read_column(values, column)


@pytest.mark.parametrize("number", [-5, 20210301, 20210301.0])
def test_numbers_among_dates_are_no_dates(number):
    column = fc.Schema.of({"columns": {"x": {"kind": "date"}}}).columns["x"]
    with pytest.raises(MisfitError, match="row 1 is a number; write it as YYYY-MM-DD"):
        read_column(pd.Series(["2021-03-01", number], dtype=object), column)


def test_a_day_and_month_without_a_year_is_no_date():
    column = fc.Schema.of({"columns": {"x": {"kind": "date"}}}).columns["x"]
    with pytest.raises(MisfitError, match="row 0 is not a date; write it as YYYY-MM-DD"):
        read_column(pd.Series(["12.03"]), column)


@pytest.mark.parametrize("make", [pd.Series, as_cells, pd.Categorical])
def test_dates_without_hyphens_are_read_if_they_are_text(make):
    column = fc.Schema.of({"columns": {"x": {"kind": "date", "gaps": "mean"}}}).columns["x"]
    compact = pd.Series(make(["20210301", "2021-03-02", None, " 20210303 "]))
    usual = pd.Series(["2021-03-01", "2021-03-02", None, "2021-03-03"])
    np.testing.assert_array_equal(read_column(compact, column), read_column(usual, column))


@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        (pd.Series([3, True], dtype=object), "correct it"),
        (as_cells(["3", "True"]), "correct it"),
        (as_cells(["0", "false"]), 'set the kind to "binary"'),
        (pd.Series([None, False], dtype="boolean"), 'set the kind to "binary"'),
        (pd.Series([None, False], dtype="bool[pyarrow]"), 'set the kind to "binary"'),
    ],
)
def test_truth_values_are_no_integers(values, remedy):
    column = fc.Schema.of({"columns": {"x": {"kind": "integer", "gaps": "mean"}}}).columns["x"]
    with pytest.raises(MisfitError, match=f"row 1 is True or False; {remedy}"):
        read_column(values, column)
    assert read_column(as_cells(["1", "0", "3"]), column).tolist() == [1.0, 0.0, 3.0]


def test_truth_values_are_numbers_only_if_all_are():
    column = fc.Schema.of({"columns": {"x": {"kind": "number", "gaps": "mean"}}}).columns["x"]
    for values in (pd.Series([3.5, True], dtype=object), as_cells(["3.5", "True"])):
        with pytest.raises(MisfitError, match="row 1 is True or False; correct it"):
            read_column(values, column)
    for kind in (object, "boolean", "bool[pyarrow]"):
        values = read_column(pd.Series([True, False, None], dtype=kind), column)
        np.testing.assert_array_equal(values, [1.0, 0.0, np.nan])


def test_a_draft_lists_true_and_1_as_the_reader_does():
    table = pd.DataFrame({"flag": as_cells(["True", "False", "1"] * 40)})
    schema = fc.Schema.of(tomllib.loads(draft(table, source="a")))
    assert schema.columns["flag"].categories == ("1", "False", "True")
    schema.check(table, owner="a")


def test_a_gap_in_a_time_may_only_be_a_category():
    with pytest.raises(
        fc.DataError, match=r"column 'time': row 1 is missing; .* gaps = \"category\"\."
    ):
        fc.Schema.of({"columns": WITH_TIME}).check(
            good(died=["alive", "dead"], time=[1.0, None]), owner="a"
        )


def test_a_schema_may_name_the_column_that_says_whose_row_it_is():
    schema = fc.Schema.of({"columns": COLUMNS, "subject_column": "patient"})
    assert fc.Schema.from_toml(schema.to_toml()) == fc.Schema.from_json(schema.to_json()) == schema
    assert schema.without(["age"]).subject_column == "patient"
    assert "patient" not in schema.read
    with pytest.raises(
        ValueError, match=r"'age' is the subject_column, .* leave it out of the columns"
    ):
        fc.Schema.of({"columns": COLUMNS, "subject_column": "age"})
    without = fc.Schema.of({"columns": COLUMNS | {"patient": {"kind": "ignored"}}})
    with pytest.raises(fc.DataError, match="differs in subject_column"):
        schema.check_equal(without, owner="north")
    table = pd.concat([good(patient=["a", "b"])] * 30, ignore_index=True)
    run = {"n_clusters": 2, "epsilon": 5.0, "schema": schema, "seed": 0, "describe": True}
    result = fc.simulate(
        "private-kmeans", {"north": table, "south": table}, privacy_unit="subject", **run
    )
    assert result.privacy.unit == "subject"
    assert len(result.model.predict(table)) == 60
    with pytest.raises(ValueError, match="which protects single rows of a person"):
        fc.simulate("private-kmeans", {"north": table, "south": table}, **run)
    with pytest.raises(
        ValueError, match="subject_column is 'age', and in the schema it is 'patient'"
    ):
        fc.simulate("private-kmeans", {"north": table}, subject_column="age", **run)


def test_a_draft_offers_subjects_and_times_where_names_are_theirs():
    rows = np.arange(300)
    table = pd.DataFrame(
        {
            "patient_id": [f"P{person:04}" for person in rows // 3],
            "x": rows % 7 + 0.5,
            "month_of_visit": (rows % 3 - 2.0) * 3.5,
            "follow_up_months": (rows // 3) * 0.5,
            "status": np.where(rows // 3 % 2, "dead", "alive"),
        }
    )
    text = draft(table, source="visits")
    assert '# subject_column = "patient_id"' in text
    lines = [
        line.removeprefix("# ")
        for line in text.split("[columns.follow_up_months]")[1]
        .split("[columns.status]")[0]
        .splitlines()
    ]
    keys = [line for line in lines if " = " in line][1:]
    assert keys[:2] == ['kind = "time-to-event"', 'event = "status"']
    assert {'time_zero = "subject"', 'row_time = "month_of_visit"', 'unit = "months"'} <= set(keys)
    used = text.replace("# subject_column", "subject_column")
    used = used.replace(
        '[columns.follow_up_months]\nkind = "number"',
        "[columns.follow_up_months]\n" + "\n".join(keys),
    )
    schema = fc.Schema.from_toml(used)
    schema.check(table, owner="visits")
    assert (schema.subject_column, list(schema.of_outcome)) == (
        "patient_id",
        ["follow_up_months", "status", "month_of_visit"],
    )
    assert (
        "time-to-event"
        not in draft(table[["follow_up_months", "x"]], source="").split("[columns")[1]
    )


def test_all_columns_and_all_sites_that_do_not_fit_are_named_at_once():
    tables = {
        "north": good(job=["Elvis", "cook"], age=["x", 1]),
        "south": good(born=["?", "2020-01-01"]),
    }
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
    with pytest.raises(fc.DataError, match=r"column 'c0': row 0 .* and 9,990 more\.$"):
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
    schema = fc.Schema.of(
        {"columns": COLUMNS | {"born": {"kind": "date", "bounds": bounds, "unit": "day"}}}
    )
    assert fc.Schema.of(schema.to_toml()) == schema
    assert fc.Schema.from_json(schema.to_json()) == schema
    assert schema.columns["born"].interval[1] == 21915


def test_a_draft_can_be_read_marks_what_comes_from_rows_and_fits(tmp_path):
    table = pd.concat(
        [good(income=[1.5, None], flag=[True, False], same=[1, 1])] * 60, ignore_index=True
    )
    table.loc[:9, "income"] = 2.5
    table["name"] = [f"person {i}" for i in range(len(table))]
    table["number"] = range(len(table))
    text = draft(table, source="people")
    schema = fc.Schema.of(text)
    kinds = {"age": "binary", "born": "date", "job": "binary", "income": "number", "flag": "binary"}
    kinds |= dict.fromkeys(("same", "name", "number"), "ignored")
    assert {name: column.kind for name, column in schema.columns.items()} == kinds
    assert schema.columns["income"].gaps == "mean"
    assert schema.columns["income"].bounds is None
    assert text.count("# FROM YOUR ROWS") == 7
    assert "person 1" not in text
    schema.check(table, owner="site")


def coded(n_rows=400):
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "patient_id": np.repeat(np.arange(n_rows // 4), 4),
            "asthma": rng.integers(2, size=n_rows),
            "hbp": np.where(rng.random(n_rows) < 0.1, np.nan, rng.integers(2, size=n_rows)),
            "marital": rng.choice([2, 3, 4, 8], size=n_rows),
            "school": rng.integers(18, size=n_rows),
            "cost": np.round(rng.lognormal(size=n_rows), 2),
            "weight": rng.normal(70, 10, size=n_rows),
            "crp": [
                f"{value:,.1f}" if value > 900 else "<0.5"
                for value in rng.uniform(0, 3000, size=n_rows)
            ],
            "visit": [
                f"2020-01-{1 + i % 28:02d}" if i % 2 else f"{1 + i % 28}/01/2020"
                for i in range(n_rows)
            ],
        }
    )


def test_a_draft_of_a_coded_table_tells_codes_amounts_and_ids_apart():
    text = draft(coded(), source="patients")
    columns = fc.Schema.of(text).columns
    kinds = {"patient_id": "ignored", "asthma": "binary", "hbp": "category", "marital": "category"}
    kinds |= {
        "school": "integer",
        "cost": "number",
        "weight": "number",
        "crp": "number",
        "visit": "ignored",
    }
    assert {name: column.kind for name, column in columns.items()} == kinds
    assert columns["marital"].categories == ("2", "3", "4", "8")
    assert columns["hbp"].values == ("0", "1", "missing")
    parts = {name: text.split(f"[columns.{name}]")[1].split("[columns.")[0] for name in columns}
    assert [name for name, part in parts.items() if "# logarithm = true" in part] == ["cost"]
    assert [name for name, part in parts.items() if '# kind = "integer"' in part] == ["marital"]
    assert [name for name, part in parts.items() if "one person" in part] == ["patient_id"]
    assert "YYYY-MM-DD and as DD/MM/YYYY" in parts["visit"]
    fc.Schema.of(text).check(coded(), owner="site")


def test_what_a_draft_has_in_comments_can_be_used_instead():
    lines = draft(coded()[["marital", "cost"]], source="patients").splitlines()
    of_marital = lines.index('# kind = "integer"')
    del lines[lines.index('kind = "category"') : of_marital]
    schema = fc.Schema.of(
        "\n".join(lines).replace("# kind", "kind").replace("# logarithm", "logarithm")
    )
    assert schema.columns["marital"].kind == "integer"
    assert schema.columns["cost"].logarithm


@pytest.mark.parametrize(
    ("name", "values", "is_id"),
    [
        ("subjectId", np.arange(60) // 2, True),
        ("ID", np.arange(60) // 2, True),
        ("plane", [f"N{100 + i // 2}" for i in range(120)], True),
        ("patient_age", np.arange(60) // 2, False),
        ("acid", np.arange(60) // 2, False),
        ("stay", [f"{100 + i // 2} days" for i in range(120)], False),
        ("site_id", np.arange(60) % 3, False),
    ],
)
def test_ids_with_several_rows_are_marked(name, values, is_id):
    text = draft(
        pd.DataFrame({name: values, "x": np.linspace(0, 1, len(values)) ** 2}), source="rows"
    )
    assert ("one person" in text) == is_id
    assert (fc.Schema.of(text).columns[name].kind == "ignored") >= is_id


def test_a_draft_of_a_coded_table_runs_as_it_is(tmp_path):
    table = coded().assign(site=np.arange(400) % 4)
    file, out = tmp_path / "rows.csv", tmp_path / "columns.toml"
    table.to_csv(file, index=False)
    rows = ["--client-column", "site"]
    run = CliRunner().invoke
    said = run(app, ["schema", "init", str(file), *rows, "--out", str(out)], catch_exceptions=False)
    assert said.exit_code == 0
    following = shlex.split(said.output.splitlines()[-1].removeprefix("Next:"))
    assert following[:4] == ["fedclust", "run", "--data", str(file)]
    found = run(app, [*following[1:], "--out", str(tmp_path / "found")], catch_exceptions=False)
    assert found.exit_code == 0
    assert "covered by (1, " in found.output
    assert "clusters.html, one page to hand to somebody" in found.output


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("<0.5", 0.5),
        ("> 90", 90.0),
        ("≤-3", -3.0),
        (">=1,234.5", 1234.5),
        ("1,234,567", 1234567.0),
        ("12", 12.0),
        ("0,125", None),  # a decimal comma
        ("1234,567", None),
        ("1,23", None),
        ("<", None),
        ("5+", None),
        ("<nan", None),
    ],
)
def test_limits_and_thousands_separators_are_read_as_numbers(text, number):
    values = pd.Series([text, None, "7"], index=[3, 3, 3])
    column = fc.Schema.of({"columns": {"x": {"kind": "number", "gaps": "mean"}}}).columns["x"]
    if number is None:
        with pytest.raises(MisfitError, match="row 0 is not a number"):
            read_column(values, column)
    else:
        assert read_column(values, column).tolist() == [
            number,
            pytest.approx(np.nan, nan_ok=True),
            7.0,
        ]


def test_dates_in_several_formats_are_named_by_their_formats_alone():
    born = ["1990-05-17", "17/05/1991", "17.05.1992", "17 May 1993", None]
    with pytest.raises(fc.DataError) as error:
        fc.Schema.of({"columns": {"born": {"kind": "date", "gaps": "mean"}}}).check(
            pd.DataFrame({"born": born}), owner="site"
        )
    assert "column 'born'" in str(error.value)
    assert all(
        form in str(error.value)
        for form in ("YYYY-MM-DD", "DD/MM/YYYY", "DD.MM.YYYY", "name of the month")
    )
    assert not any(part in str(error.value) for part in ("17", "May", "199"))


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


def test_a_schema_of_forty_thousand_categories_is_read_in_a_moment():
    """A server's schema of 270 kB had kept a site busy for 18.6 s, before anything was judged."""
    asked = json.dumps(
        {"columns": {"job": {"kind": "category", "categories": [f"{n:x}" for n in range(40_000)]}}}
    )
    begin = time.process_time()
    assert len(fc.Schema.from_json(asked).columns["job"].categories) == 40_000
    assert time.process_time() - begin < 3


def test_a_schema_of_another_party_is_short_and_its_error_too():
    with pytest.raises(ValueError, match="send at most"):
        fc.Schema.from_json("[" * 2**20 + "[")
    wrong = json.dumps({"columns": {f"{n:x}": {"kind": "number", "x": 1} for n in range(10_000)}})
    with pytest.raises(ValueError, match=r"x is not a key of a column.*and 9,990 more") as error:
        fc.Schema.from_json(wrong)
    assert len(str(error.value)) < 3000
