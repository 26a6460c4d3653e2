import re

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from flower_fedclust.numerics.checks import (
    DataError,
    check_choice,
    check_integer,
    check_max_l1_norm,
    check_real,
    checked_rows,
    warn_of_empty_clusters,
)

SECRET = 31337.25


def good(shape=(4, 3)):
    return np.random.default_rng(0).normal(size=shape)


def message_of(rows, **options):
    with pytest.raises(DataError) as error:
        checked_rows(rows, owner="client 3", **options)
    return str(error.value)


def with_entry(value, row=2, column=1):
    rows = good()
    rows[row, column] = value
    return rows


@pytest.mark.parametrize(
    "rows",
    [
        [[1, 2], [3, 4]],
        np.array([[1, 2], [3, 4]], dtype=np.int8),
        np.array([[1, 2], [3, 4]], dtype=np.uint64),
        np.array([[1, 2], [3, 4]], dtype=np.float32),
        np.array([[1, 2], [3, 4]], dtype=object),
        np.asfortranarray([[1.0, 2.0], [3.0, 4.0]]),
        pd.DataFrame({"a": [1, 3], "b": [2.0, 4.0]}),
        np.array([[1.0, 9.0, 2.0, 9.0], [3.0, 9.0, 4.0, 9.0]])[:, ::2],
    ],
    ids=["list", "int8", "uint64", "float32", "object", "fortran", "frame", "strided"],
)
def test_numbers_of_any_kind_become_contiguous_floats(rows):
    checked = checked_rows(rows, owner="client 3")
    assert checked.dtype == np.float64
    assert checked.flags.c_contiguous
    np.testing.assert_array_equal(checked, [[1, 2], [3, 4]])


def test_nan_is_named_by_row_and_column():
    message = "client 3: row 2, column 1 is NaN; fill it in or drop the row."
    assert message_of(with_entry(np.nan)) == message


def test_both_infinities_do_not_hide_each_other():
    rows = with_entry(np.inf)
    rows[0, 0] = -np.inf
    with np.errstate(invalid="ignore"):
        assert message_of(rows).startswith("client 3: row 0, column 0 is infinite and row 2, column 1 is infinite;")


def test_the_name_of_the_column_is_used_where_it_is_known():
    message = "client 3: row 2, column 'age' is NaN; fill it in or drop the row."
    assert message_of(with_entry(np.nan), columns=["height", "age", "weight"]) == message


def test_a_missing_object_is_nan():
    rows = good().astype(object)
    rows[3, 0] = None
    assert message_of(rows) == "client 3: row 3, column 0 is NaN; fill it in or drop the row."


def test_rows_that_are_finite_with_a_sum_that_overflows_are_good():
    rows = np.full((3, 2), 1e308)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(checked_rows(rows, owner="client 3"), rows)


@pytest.mark.parametrize("dtype", [object, str])
def test_a_text_column_is_named(dtype):
    rows = np.array([[1.0, 2.0, "blue"], [3.0, 4.0, "red"]], dtype=dtype)
    expected = "client 3: column 2 is not numeric; encode it as numbers or leave it out."
    assert message_of(rows) == expected
    assert message_of(rows, columns=["a", "b", "colour"]) == expected.replace("column 2", "column 'colour'")


@pytest.mark.parametrize(
    ("rows", "shape"), [([1.0, 2.0], r"(2,)"), (np.ones((2, 2, 2)), "(2, 2, 2)"), (SECRET, "()")], ids=["1", "3", "0"]
)
def test_rows_that_are_not_two_dimensional_are_named_by_their_shape(rows, shape):
    assert message_of(rows) == f"client 3: the rows have shape {shape}; give two dimensions, one row a sample."


def test_rows_of_different_lengths_are_refused_in_words():
    message = "client 3: the rows are not of one length; give every row the same columns."
    assert message_of([[1.0, 2.0], [SECRET]]) == message


@pytest.mark.parametrize("rows", [np.array([[SECRET + 1j]]), np.array([["2020-01-01"]], dtype="datetime64[D]")])
def test_complex_numbers_and_dates_are_refused(rows):
    assert message_of(rows) == "client 3: the rows are complex numbers or dates; give real numbers."


@pytest.mark.parametrize("dtype", [float, int, bool, object])
def test_what_is_masked_is_not_known(dtype):
    rows = np.ma.masked_array(np.ones((3, 2), dtype), mask=[[False, False], [False, True], [False, False]])
    assert message_of(rows).startswith("client 3: row 1, column 1 is NaN")
    np.testing.assert_array_equal(checked_rows(np.ma.masked_array(np.ones((3, 2), dtype)), owner="o"), np.ones((3, 2)))


def test_a_sparse_matrix_is_called_one():
    assert message_of(csr_array(np.eye(3))).startswith("client 3: the rows are a sparse matrix; give a dense one")


def test_no_rows_are_refused():
    assert message_of(np.empty((0, 3))) == "client 3 has no rows; give at least one."


def test_the_message_never_contains_a_value():
    nan = np.full((3, 2), SECRET)
    nan[1, 1] = np.nan
    infinite = np.full((3, 2), -SECRET)
    infinite[1, 1] = np.inf
    text = np.array([[SECRET, "31337.25 pounds"]], dtype=object)
    for rows in (nan, infinite, text, text.astype(str), np.full(3, SECRET), np.full((1, 1, 1), SECRET)):
        assert "31337" not in message_of(rows)


@pytest.mark.parametrize("value", [0, -1, 2.0, np.float64(3), "3", None, True, np.True_, float("nan")])
def test_what_is_not_an_integer_of_the_least_size_is_refused(value):
    message = f"n_clusters is {value!r}; it must be an integer, 1 or more."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_integer("n_clusters", value, at_least=1)


def test_the_bounds_of_a_real_number_are_open_or_closed_as_they_are_named():
    assert check_real("x", 1.0, at_least=1) == 1.0
    assert check_real("x", 1.0, at_most=1) == 1.0
    with pytest.raises(ValueError, match=r"^x is 1\.0; it must be a finite number above 1\.$"):
        check_real("x", 1.0, above=1)
    with pytest.raises(ValueError, match=r"^x is 1\.0; it must be a finite number below 1\.$"):
        check_real("x", 1.0, below=1)
    with pytest.raises(ValueError, match=r"^x is 0; it must be a finite number at least 1\.$"):
        check_real("x", 0, at_least=1)
    with pytest.raises(ValueError, match=r"^x is 3; it must be a finite number above 0 and at most 2\.5\.$"):
        check_real("x", 3, above=0, at_most=2.5)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), True, np.True_, "1", None, 1j, [1.0]])
def test_what_is_not_a_finite_number_is_refused(value):
    with pytest.raises(ValueError, match=f"^{re.escape(f'x is {value!r}; it must be a finite number.')}$"):
        check_real("x", value)


@pytest.mark.parametrize("value", [0, 0.0, -1.0, float("inf"), float("nan"), "1", True])
@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_an_l1_norm_that_is_not_positive_is_refused(value, epsilon):
    message = f"max_l1_norm is {value!r}; it must be a finite number above 0."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_max_l1_norm(value, epsilon)


def test_an_epsilon_needs_an_l1_norm():
    message = "max_l1_norm is missing; noise for an epsilon needs an L1 norm to which rows are clipped."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_max_l1_norm(None, 1.0)


@pytest.mark.parametrize("value", ["loca", "", None, 1, ["local"]])
def test_a_choice_that_does_not_exist_is_told_the_choices(value):
    message = f"noise is {value!r}; it must be one of: server, local."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_choice("noise", value, ("server", "local"))


@pytest.mark.parametrize(
    ("counts", "found", "wanted"),
    [([3, 0, 5], 2, 3), (np.zeros(4), 0, 4), ([0.2, -3.0, 0.0, 7.0], 2, 4), (np.array([0]), 0, 1)],
    ids=str,
)
def test_empty_clusters_are_warned_of_in_one_sentence(counts, found, wanted):
    message = (
        f"fedsc found {found} clusters where n_clusters is {wanted}: the rows are too alike for more, or too far apart "
        "for the bandwidth. The others are empty."
    )
    with pytest.warns(RuntimeWarning, match=f"^{re.escape(message)}$") as caught:
        warn_of_empty_clusters("fedsc", counts)
    assert len(caught) == 1
    assert caught[0].filename == __file__
