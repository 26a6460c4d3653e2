"""Codes and words for missing values: the draft names them, a schema lists them, and no run takes them for numbers."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import flower_fedclust as fc
from flower_fedclust.cli.commands import app
from flower_fedclust.data import read_table
from flower_fedclust.data.cells import as_cells
from flower_fedclust.tables.drafting import draft
from flower_fedclust.tables.schema import Column, read_column

N_ROWS = 400
SURNAMES = [
    start + end
    for start in ("Schmi", "Mül", "Wag", "Bec", "Le")
    for end in ("dt", "ler", "ner", "ker", "mann")
]
STATES = ["AL", "AK", "AZ", "AR", "CA", "CO", "CT", "DE", "FL", "GA", "HI", "ID", "IL"]


def mixed(values, *codes):
    """Replace a twentieth of the values by each code."""
    found = np.array(values, dtype=object)
    for place, code in enumerate(codes):
        found[place::20] = code
    return found


def drawn(kind):
    rng = np.random.default_rng(0)
    return {
        "age": rng.integers(18, 90, N_ROWS),
        "weight": rng.normal(75, 12, N_ROWS).round(1),
        "income": rng.lognormal(8, 0.4, N_ROWS).round(),
        "score": rng.normal(0, 1, N_ROWS).round(2),
    }[kind]


def drafted(name, values, tmp_path):
    """Return the draft of one column as the file on a disk gives it, and the table."""
    pd.DataFrame({name: values}).to_csv(tmp_path / "rows.csv", index=False)
    rows = read_table(tmp_path / "rows.csv", raw=True).rows
    return draft(rows, source="rows.csv"), rows


@pytest.mark.parametrize(
    ("kind", "codes"),
    [
        ("age", [999]),
        ("age", [-99]),
        ("age", [-1]),
        ("age", [9999, 9998]),
        ("weight", [-99]),
        ("weight", [999.9]),
        ("income", [99999]),
        ("weight", ["."]),
        ("weight", ["unknown"]),
        ("age", ["unknown", "N.A."]),
        ("age", ["hemolyzed"]),
        ("weight", ["refused", 999]),
    ],
)
def test_a_draft_names_the_codes_for_missing_values_and_runs_without_them(kind, codes, tmp_path):
    text, rows = drafted(kind, mixed(drawn(kind), *codes), tmp_path)
    column = fc.Schema.of(text).columns[kind]
    assert column.kind == ("number" if kind == "weight" else "integer")
    assert set(column.missing) == {
        f"{code:g}" if not isinstance(code, str) else code for code in codes
    }
    assert column.gaps == "mean"
    assert "logarithm" not in text
    values = read_column(rows[kind], column)
    assert np.isnan(values).sum() == len(codes) * N_ROWS // 20
    assert values[~np.isnan(values)].max() < 90_000
    assert values[~np.isnan(values)].min() > 0


@pytest.mark.parametrize("kind", ["age", "weight", "income", "score"])
def test_a_draft_of_numbers_without_codes_names_none(kind, tmp_path):
    assert "missing" not in drafted(kind, drawn(kind), tmp_path)[0].split("[columns")[1]


def test_a_code_that_stands_apart_less_is_proposed_and_not_used(tmp_path):
    text, _ = drafted("hours", mixed(drawn("age") - 8, 99), tmp_path)
    assert "# missing = [99]" in text
    assert not fc.Schema.of(text).columns["hours"].missing


def test_a_word_that_occurs_once_is_named_by_its_row_and_not_by_itself(tmp_path):
    values = np.array(drawn("weight"), dtype=object)
    values[17] = "Elvis"
    text, _ = drafted("weight", values, tmp_path)
    assert fc.Schema.of(text).columns["weight"].kind == "number"
    assert "row 17" in text
    assert "Elvis" not in text


@pytest.mark.parametrize("codes", [[], ["unknown"]])
def test_postcodes_with_leading_zeros_are_text(codes, tmp_path):
    values = [f"{value:05d}" for value in np.resize(np.arange(1000, 9000, 170), N_ROWS)]
    column = fc.Schema.of(drafted("place", mixed(values, *codes), tmp_path)[0]).columns["place"]
    assert column.categories is not None
    assert "01000" in column.categories or codes


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("surname", SURNAMES),
        ("last_name", SURNAMES[:4]),
        ("doctor", ["Kim", "Lee", "Anna Bell"]),
        ("treated_by", SURNAMES),
        (
            "by",
            [
                f"{name}, {letter}."
                for name, letter in zip(SURNAMES, "ABCDEFGHIJKLMNOPQRSTUVWXY", strict=True)
            ],
        ),
        ("said", [f"pain in place {letter}" for letter in "abcdefghijklmnop"]),
    ],
)
def test_columns_that_name_people_are_left_out_and_no_name_is_in_the_draft(name, values, tmp_path):
    rows = values if name == "said" else np.resize(values, N_ROWS)
    text, _ = drafted("x", np.arange(len(rows)) * 1.5, tmp_path)
    pd.DataFrame({name: rows, "x": np.arange(len(rows)) * 1.5}).to_csv(
        tmp_path / "rows.csv", index=False
    )
    text = draft(read_table(tmp_path / "rows.csv", raw=True).rows, source="rows.csv")
    assert fc.Schema.of(text).columns[name].kind == "ignored"
    assert not [value for value in values if value in text]


def test_short_lists_of_words_stay_categories(tmp_path):
    for values in (
        ["north", "south"],
        [f"job-{index}" for index in range(12)],
        ["Ideal", "Good", "Fair"],
        STATES,
    ):
        column = fc.Schema.of(drafted("x", np.resize(values, N_ROWS), tmp_path)[0]).columns["x"]
        assert column.categories == tuple(sorted(values))


@pytest.mark.parametrize("ending", ["dta", "sav"])
def test_a_code_with_the_label_refused_is_named(ending, tmp_path):
    path = tmp_path / f"rows.{ending}"
    frame = pd.DataFrame(
        {"age": mixed(drawn("age"), 98).astype(float), "sex": np.resize([1.0, 2.0], N_ROWS)}
    )
    labels = {"age": {98.0: "refused"}, "sex": {1.0: "man", 2.0: "woman"}}
    if ending == "dta":
        frame.to_stata(
            path,
            value_labels={
                name: {int(code): text for code, text in one.items()}
                for name, one in labels.items()
            },
        )
    else:
        pyreadstat = pytest.importorskip("pyreadstat")
        pyreadstat.write_sav(frame, path, variable_value_labels=labels)
    text = draft(read_table(path, raw=True).rows, source=path.name)
    assert "98 has the label 'refused'" in text.replace("\n# ", " ")
    columns = fc.Schema.of(text).columns
    assert (columns["age"].kind, columns["age"].missing) == ("integer", ("98",))
    assert set(columns["sex"].categories) == {"man", "woman"}


CODED = Column(kind="number", missing=[-99, 999, "unknown", "."], gaps="mean")


@pytest.mark.parametrize(
    "values",
    [
        as_cells(["1.5", "999.0", " -99", "unknown", " . ", "<3", None]),
        pd.Series(["1.5", 999, -99.0, "unknown", ".", "3", None], dtype=object),
        pd.Series([1.5, 999, -99, 999, -99, 3, np.nan], dtype="float32"),
        pd.Series([1.5, 999, -99, 999, -99, 3, None], dtype="Float64"),
        pd.Series(pd.Categorical(["1.5", "999", "-99", "unknown", ".", "3", None])),
    ],
)
def test_codes_are_missing_in_columns_of_any_type(values):
    nan = np.nan
    np.testing.assert_array_equal(read_column(values, CODED), [1.5, nan, nan, nan, nan, 3, nan])
    kept = CODED.model_copy(update={"missing": (), "gaps": "mean"})
    if values.dtype.kind == "f":
        assert read_column(values, kept)[1] == 999


def test_codes_of_dates_and_categories_are_missing():
    dates = Column(kind="date", missing=["9999-12-31", "unknown"], gaps="mean")
    assert np.isnan(
        read_column(as_cells(["2020-01-01", "9999-12-31", "unknown"]), dates)
    ).tolist() == [
        False,
        True,
        True,
    ]
    job = Column(kind="category", categories=["a", "b"], missing=[9, "refused"], gaps="category")
    for values in (as_cells(["a", "9", "refused"]), pd.Series(["a", 9.0, "refused"])):
        assert read_column(values, job).tolist() == [0, 2, 2]


@pytest.mark.parametrize(
    ("column", "wrong"),
    [
        ({"kind": "number", "missing": [99, "99"]}, "'99' twice"),
        (
            {"kind": "binary", "categories": [0, "09"], "missing": [9]},
            "'9', which is also among the categories",
        ),
        ({"kind": "ignored", "missing": [9]}, "an ignored column"),
    ],
)
def test_codes_that_cannot_be_right_are_refused(column, wrong):
    with pytest.raises(ValueError, match=wrong):
        fc.Schema.of({"columns": {"x": column, "y": {"kind": "number"}}})


def test_a_missing_code_is_refused_where_gaps_are_and_the_message_says_what_to_do():
    schema = fc.Schema.of({"columns": {"x": {"kind": "number", "missing": [999]}}})
    with pytest.raises(
        fc.DataError, match="row 1 is missing; fill it in, or let the schema say gaps"
    ):
        schema.check(pd.DataFrame({"x": [1, 999]}), owner="north")
    with pytest.raises(
        fc.DataError,
        match="row 1 is not a number; correct it, or list it in the schema, under 'missing'",
    ):
        schema.check(pd.DataFrame({"x": [1, "Elvis"]}), owner="north")


def test_the_check_names_codes_that_the_schema_does_not_list(tmp_path):
    (tmp_path / "columns.toml").write_text('[columns.age]\nkind = "integer"\n', encoding="utf-8")
    pd.DataFrame({"age": mixed(drawn("age"), 999)}).to_csv(tmp_path / "rows.csv", index=False)
    said = (
        CliRunner()
        .invoke(
            app, ["schema", "check", str(tmp_path / "columns.toml"), str(tmp_path / "rows.csv")]
        )
        .output
    )
    assert "Column 'age': 999 is far from all other values" in said
    assert "missing = [999]" in said


def test_clusters_of_a_table_with_codes_are_the_clusters_without_its_coded_rows():
    rng = np.random.default_rng(1)
    weight = np.concatenate([rng.normal(50, 2, 300), rng.normal(90, 2, 300)])
    coded = np.where(np.arange(600) % 20 == 0, -99, weight)
    column = {"kind": "number", "missing": [-99], "gaps": "mean", "bounds": [30, 120]}
    clients = {
        "north": pd.DataFrame({"weight": coded[::2]}),
        "south": pd.DataFrame({"weight": coded[1::2]}),
    }
    run = fc.simulate(
        fc.FederatedKMeans(2, random_state=0), clients, schema={"columns": {"weight": column}}
    )
    means = sorted(
        weight[run.model.predict(pd.DataFrame({"weight": weight})) == cluster].mean()
        for cluster in range(2)
    )
    np.testing.assert_allclose(means, [50, 90], atol=3)
