import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from flower_fedclust.data.frames import as_frame, in_order, number_rows

COLUMNS = {
    "age": [31, None, 62],
    "kind": ["b", "a", None],
    "day": [datetime.date(2024, 1, 2)] * 3,
    "cost": [Decimal("1.5"), Decimal("2.25"), Decimal("0.5")],
    "smoker": [True, False, None],
}


def polars_frame():
    return pytest.importorskip("polars").DataFrame(COLUMNS)


def polars_query():
    return polars_frame().lazy()


def arrow_table():
    return pa.table(COLUMNS)


def duckdb_relation():
    columns = arrow_table()  # DuckDB finds it by its name
    return pytest.importorskip("duckdb").sql("SELECT * FROM columns") if len(columns) else None


@pytest.mark.parametrize("make", [polars_frame, polars_query, arrow_table, duckdb_relation])
def test_every_kind_of_table_is_the_same_frame(make):
    frame = as_frame(make(), "the table")
    assert list(frame.columns) == list(COLUMNS)
    np.testing.assert_array_equal(frame["age"], [31, np.nan, 62])
    assert frame["kind"].isna().tolist() == [False, False, True]
    assert frame["kind"].tolist()[:2] == ["b", "a"]
    assert frame["day"].dt.year.tolist() == [2024] * 3
    assert number_rows(frame[["cost"]], "the table").tolist() == [[1.5], [2.25], [0.5]]
    with pytest.raises(ValueError, match="the table: row 2, column 'smoker' is NaN"):
        number_rows(frame[["smoker"]], "the table")


def test_a_frame_of_pandas_keeps_its_index_and_has_text_as_names():
    given = pd.DataFrame({0: [1.0], "b": [2.0]}, index=["p7"])
    frame = as_frame(given, "the table")
    assert (list(frame.columns), list(frame.index)) == (["0", "b"], ["p7"])
    assert list(given.columns) == [0, "b"]


def test_arrays_and_single_columns_are_no_tables():
    for given in (np.zeros((2, 2)), [[1.0]], pd.Series([1.0]), pa.array([1.0])):
        assert as_frame(given, "the table") is None


@pytest.mark.parametrize(
    "table", [pd.DataFrame([[1, 2]], columns=["a", "a"]), pd.DataFrame([[1, 2]], columns=[1, "1"])]
)
def test_two_columns_of_one_name_are_refused(table):
    with pytest.raises(
        ValueError,
        match=r"site 3: more than one column is called '[a1]'; give each a name of its own",
    ):
        as_frame(table, "site 3")


def test_a_type_that_pandas_has_not_is_refused_without_a_value():
    with pytest.raises(
        ValueError,
        match="site 3: a column has a type that cannot be taken, such as integers of 128 bits",
    ):
        as_frame(pa.table({"hour": pa.array([7], pa.time64("ns"))}), "site 3")


def test_mixed_types_are_named_with_their_row_and_without_their_value():
    frame = pd.DataFrame({"dose": [1, "secret", 2.5]})
    with pytest.raises(
        ValueError, match="site 3: row 1, column 'dose' is of mixed types; encode it"
    ) as caught:
        number_rows(frame, "site 3")
    assert "secret" not in str(caught.value)


def test_columns_are_found_by_their_names():
    frame = pd.DataFrame({"b": [2.0], "a": [1.0]})
    assert in_order(frame, ["a", "b"], "site 3", "site 1").to_numpy().tolist() == [[1.0, 2.0]]
    with pytest.raises(
        ValueError,
        match="site 3 has other columns than site 1: it lacks 'c' and adds 'b'; give both",
    ):
        in_order(frame, ["a", "c"], "site 3", "site 1")
