"""Which rows are one person's: by equality of text or integers, in memory as in files."""

import numpy as np
import pandas as pd
import pytest

from flower_fedclust.data import Table, hold_out_server_rows, partition, read_table
from flower_fedclust.data.files import read_batches
from flower_fedclust.data.subjects import subjects_in_batches, subjects_of
from flower_fedclust.engine import ClientData, DataError
from flower_fedclust.site.sample import sampled

NEXT = 2**53
IDENTITIES = {
    "long integers": np.array([NEXT, NEXT + 1, NEXT, NEXT + 2, 5, NEXT + 1]),
    "text": ["a", "b", "a", "007", "7", "b"],
    "integers and text": [7, "a", "7", "b", 8, "a"],
    "unsigned": np.array([2**64 - 1, 2**64 - 2, 2**64 - 1, 3, 4, 2**64 - 2], dtype=np.uint64),
    "spaces at the ends": ["a ", "b", " a", "c", "a b", "b\t"],
    "whole floats": [1.0, 2.0, 1.0, 3.0, 4.0, 2.0],
}
#: Which rows of these are one person's.
WHOSE = [0, 1, 0, 2, 3, 1]


@pytest.mark.parametrize("name", IDENTITIES)
def test_rows_are_one_persons_if_their_identities_are_equal(name):
    given = IDENTITIES[name]
    found = subjects_of(given, "the subjects")
    assert found.codes.tolist() == WHOSE
    assert found.rows_each.tolist() == [2, 2, 2, 1, 1, 2]


@pytest.mark.parametrize("name", IDENTITIES)
@pytest.mark.parametrize("size", [1, 2, 6])
def test_in_files_they_are_the_same_persons(name, size):
    given = pd.Series(
        IDENTITIES[name], dtype=None if isinstance(IDENTITIES[name], np.ndarray) else object
    )
    found = subjects_in_batches(
        (given[start : start + size] for start in range(0, 6, size)), "the subjects"
    )
    _, first = np.unique(found.codes, return_index=True)
    assert pd.factorize(found.codes)[0].tolist() == WHOSE
    np.testing.assert_array_equal(
        found.words, subjects_of(given, "the subjects").words[np.array(WHOSE)[first]]
    )


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([1.5, 2.0, 1.0], "holds floats"),
        ([float(NEXT), float(NEXT + 2), 1.0], "holds floats"),
        ([np.inf, 1.0, 2.0], "holds floats"),
        (["a", None, "b"], "row 1 is missing"),
        (pd.array([5, 6, None], dtype="Int64"), "row 2 is missing"),
        ([1.0, np.nan, 2.0], "row 1 is missing"),
        (["a", "b", " null "], "row 2 is missing, or a word for a gap"),
        (["a", "None", "b"], "row 1 is missing, or a word for a gap"),
    ],
    ids=[
        "fractions",
        "merged floats",
        "infinity",
        "a gap in text",
        "a gap in integers",
        "a gap in floats",
        "null with spaces",
        "None as a text",
    ],
)
def test_floats_and_gaps_are_refused_without_a_value(given, why):
    for read in (
        subjects_of,
        lambda values, where: subjects_in_batches([pd.Series(values)], where),
    ):
        with pytest.raises(DataError, match=why) as error:
            read(given, "the table: column 'patient'")
        assert "9007199254740992" not in str(error.value)


def frame_of(n_persons, seed=0):
    rng = np.random.default_rng(seed)
    each = rng.integers(1, 9, size=n_persons)
    frame = pd.DataFrame(rng.normal(size=(each.sum(), 2)), columns=["x", "y"])
    frame["patient"] = np.repeat(rng.permutation(n_persons) + NEXT, each)
    return frame.sample(frac=1, random_state=seed).reset_index(drop=True)


def test_the_column_is_read_and_never_clustered_by(tmp_path):
    frame = frame_of(30)
    frame.to_parquet(tmp_path / "rows.parquet")
    frame.to_csv(tmp_path / "rows.csv", index=False)
    expected = subjects_of(frame["patient"], "").rows_each
    for table in (
        read_table(tmp_path / "rows.parquet", subject_column="patient"),
        read_table(tmp_path / "rows.csv", subject_column="patient"),
        read_batches(tmp_path / "rows.parquet", subject_column="patient"),
        read_batches(tmp_path / "rows.csv", subject_column="patient"),
    ):
        assert table.columns == ["x", "y"]
        np.testing.assert_array_equal(table.subjects.rows_each, expected)
    own = ClientData(frame, subject_column="patient")
    assert list(own.columns) == ["x", "y"]
    np.testing.assert_array_equal(own.rows_each, expected)


@pytest.mark.parametrize("blank", ["", "  "])
def test_rows_of_unknown_persons_are_not_one_person(blank):
    column = pd.Series(["a", "b", blank, blank])
    for read in (
        subjects_of,
        lambda column, where: subjects_in_batches([column[:2], column[2:]], where),
    ):
        with pytest.raises(DataError, match="row 2 is missing"):
            read(column, "the table")


def test_categories_that_are_floats_are_refused_as_floats_are():
    with pytest.raises(DataError, match="floats"):
        subjects_of(pd.Series([2.0**53, 2.0**53 + 2.0]).astype("category"), "the table")


def test_rows_that_are_other_persons_are_other_data_in_files_too(tmp_path):
    frame = pd.DataFrame(
        {"x": np.arange(6.0), "who": [1, 1, 2, 2, 3, 3], "also": [1, 2, 2, 3, 3, 1]}
    )
    frame.to_csv(tmp_path / "rows.csv", index=False)
    for source in (frame[["x", "who", "also"]], None):
        found = {}
        for column in ("who", "also", "who"):
            given = read_batches(tmp_path / "rows.csv").rows if source is None else source
            given = given.select(["x", column]) if source is None else given[["x", column]]
            print_ = ClientData(given, subject_column=column, raw=True).fingerprint().tolist()
            assert found.setdefault(column, print_) == print_
        assert found["who"] != found["also"]


def test_public_rows_are_drawn_by_person():
    codes = np.repeat(np.arange(20), np.arange(1, 21))
    table = Table(
        np.arange(420.0).reshape(210, 2), subjects=subjects_of(codes, ""), name="rows.csv"
    )
    rest = hold_out_server_rows(table, 30)
    public, others = (
        {codes[int(row[0]) // 2] for row in one} for one in (rest.server_rows, rest.rows)
    )
    assert public & others == set()
    assert public | others == set(range(20))
    assert 30 <= len(rest.server_rows) < 50
    assert (
        f"{len(rest.server_rows)} rows of {len(public)} persons, with all rows of each, of rows.csv"
        in rest.server_rows_origin
    )
    assert len(rest.subjects) == len(rest.rows)
    with pytest.raises(ValueError, match="no person left"):
        hold_out_server_rows(table, 209)


def test_some_rows_have_the_persons_that_are_left():
    own = ClientData(frame_of(30), subject_column="patient")
    kept = np.arange(0, own.n_rows, 3)
    np.testing.assert_array_equal(
        own.chosen(kept).rows_each, subjects_of(frame_of(30)["patient"][kept], "").rows_each
    )


def test_persons_are_spread_over_clients_with_all_their_rows():
    frame = frame_of(30)
    subjects = subjects_of(frame["patient"], "")
    table = Table(frame[["x", "y"]].to_numpy(), subjects=subjects, row_ids=np.arange(len(frame)))
    parts = partition(table, "iid", n_clients=3)
    at = [set(frame["patient"][ids]) for ids in parts.row_ids]
    assert sum(map(len, at)) == len(set().union(*at)) == 30
    for rows_each, ids in zip(
        (one.rows_each for one in parts.subjects), parts.row_ids, strict=True
    ):
        np.testing.assert_array_equal(rows_each, subjects.rows_each[ids])
    with pytest.raises(ValueError, match="several clients"):
        partition(
            Table(table.rows, labels=subjects.codes % 2, subjects=subjects),
            "dirichlet:1",
            n_clients=3,
        )


def test_a_sample_of_persons_has_all_their_rows_in_any_order():
    frame = frame_of(30)
    shuffled = frame.sample(frac=1, random_state=5).reset_index(drop=True)
    found = []
    for table in (frame, shuffled):
        drawn = sampled(ClientData(table, subject_column="patient"), 10, b"k" * 32)
        kept = table.loc[drawn.ids]
        assert kept["patient"].nunique() == 10
        assert len(kept) == table["patient"].isin(kept["patient"]).sum()
        found.append(set(kept["patient"]))
    assert found[0] == found[1]
