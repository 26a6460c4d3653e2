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


def test_every_bad_entry_is_named_by_row_and_column_with_the_remedy():
    message = "client 3: row 2, column 1 is NaN; fill it in or drop the row."
    assert message_of(with_entry(np.nan)) == message
    assert message_of(with_entry(None).astype(object)) == message
    named = message_of(with_entry(np.nan), columns=["height", "age", "weight"])
    assert named == message.replace("column 1", "column 'age'")
    rows = with_entry(np.inf)
    rows[0, 0] = -np.inf
    with np.errstate(invalid="ignore"):
        assert message_of(rows).startswith(
            "client 3: row 0, column 0 is infinite and row 2, column 1 is infinite;"
        )


def test_rows_that_are_finite_with_a_sum_that_overflows_are_good():
    rows = np.full((3, 2), 1e308)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(checked_rows(rows, owner="client 3"), rows)


@pytest.mark.parametrize("dtype", [object, str])
def test_a_text_column_is_named(dtype):
    rows = np.array([[1.0, 2.0, "blue"], [3.0, 4.0, "red"]], dtype=dtype)
    assert (
        message_of(rows)
        == "client 3: column 2 is not numeric; encode it as numbers or leave it out."
    )
    assert "column 'color' is not numeric" in message_of(rows, columns=["a", "b", "color"])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([1.0, 2.0], r"shape (2,)"),
        (np.ones((2, 2, 2)), "shape (2, 2, 2)"),
        (SECRET, "shape ()"),
        ([[1.0, 2.0], [SECRET]], "not of one length"),
        (np.array([[SECRET + 1j]]), "complex numbers or dates"),
        (np.array([["2020-01-01"]], dtype="datetime64[D]"), "complex numbers or dates"),
        (csr_array(np.eye(3)), "sparse matrix"),
        (np.empty((0, 3)), "no rows"),
        (np.empty((3, 0)), "no columns"),
    ],
)
def test_what_is_no_table_of_numbers_is_refused(rows, said):
    assert said in message_of(rows)


@pytest.mark.parametrize("dtype", [float, int, bool, object])
def test_what_is_masked_is_not_known(dtype):
    rows = np.ma.masked_array(
        np.ones((3, 2), dtype), mask=[[False, False], [False, True], [False, False]]
    )
    assert message_of(rows).startswith("client 3: row 1, column 1 is NaN")
    np.testing.assert_array_equal(
        checked_rows(np.ma.masked_array(np.ones((3, 2), dtype)), owner="o"), np.ones((3, 2))
    )


def test_the_message_never_contains_a_value():
    nan = np.full((3, 2), SECRET)
    nan[1, 1] = np.nan
    infinite = np.full((3, 2), -SECRET)
    infinite[1, 1] = np.inf
    text = np.array([[SECRET, "31337.25 pounds"]], dtype=object)
    for rows in (
        nan,
        infinite,
        text,
        text.astype(str),
        np.full(3, SECRET),
        np.full((1, 1, 1), SECRET),
    ):
        assert "31337" not in message_of(rows)


@pytest.mark.parametrize(
    "value", [0, -1, 2.0, np.float64(3), "3", None, True, np.True_, float("nan")]
)
def test_what_is_not_an_integer_of_the_least_size_is_refused(value):
    message = f"n_clusters is {value!r}; it must be an integer, 1 or more."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_integer("n_clusters", value, at_least=1)


@pytest.mark.parametrize(
    ("value", "limits", "said"),
    [
        (1.0, {"above": 1}, "above 1"),
        (1.0, {"below": 1}, "below 1"),
        (0, {"at_least": 1}, "at least 1"),
        (3, {"above": 0, "at_most": 2.5}, "above 0 and at most 2.5"),
    ],
)
def test_the_bounds_of_a_real_number_are_open_or_closed_as_they_are_named(value, limits, said):
    assert check_real("x", 1.0, at_least=1) == check_real("x", 1.0, at_most=1) == 1.0
    with pytest.raises(
        ValueError, match=re.escape(f"x is {value!r}; it must be a finite number {said}.")
    ):
        check_real("x", value, **limits)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), True, np.True_, "1", None, 1j, [1.0]]
)
def test_what_is_not_a_finite_number_is_refused(value):
    with pytest.raises(
        ValueError, match=f"^{re.escape(f'x is {value!r}; it must be a finite number.')}$"
    ):
        check_real("x", value)


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "1", True, None])
def test_an_epsilon_needs_a_positive_l1_norm(value):
    with pytest.raises(ValueError, match=r"^max_l1_norm is"):
        check_max_l1_norm(value, 1.0)


@pytest.mark.parametrize("value", ["loca", "", None, 1, ["local"]])
def test_a_choice_that_does_not_exist_is_told_the_choices(value):
    with pytest.raises(ValueError, match=r"^noise is .* server, local"):
        check_choice("noise", value, ("server", "local"))


@pytest.mark.parametrize(
    ("counts", "found", "wanted"),
    [([3, 0, 5], 2, 3), (np.zeros(4), 0, 4), ([0.2, -3.0, 0.0, 7.0], 2, 4), (np.array([0]), 0, 1)],
    ids=str,
)
def test_empty_clusters_are_warned_of_in_one_sentence(counts, found, wanted):
    with pytest.warns(
        RuntimeWarning, match=f"^fedsc found {found} clusters where n_clusters is {wanted}"
    ) as caught:
        warn_of_empty_clusters("fedsc", counts)
    assert len(caught) == 1
    assert caught[0].filename == __file__
