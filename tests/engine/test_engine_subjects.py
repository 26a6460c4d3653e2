"""Parts of subjects in the engine: one divisor for each call, in any batch, in memory as in files."""

import numpy as np
import pandas as pd
import pytest

import flower_fedclust as fc
from flower_fedclust.data.batches import Batches
from flower_fedclust.data.files import read_batches
from flower_fedclust.engine import ClientData
from flower_fedclust.engine.by_row import ByRow, by_row
from flower_fedclust.exact.rows import Frame
from flower_fedclust.exact.terms import at, count, products, total

FRAME = Frame(np.zeros(2), 3.0)


@by_row(sums="sums", moments="moments", counts="counts", places="places")
def everything(rows):
    labels = (rows.integers[:, 0] > 0).astype(np.intp)
    return total(rows), products(rows), count(rows), at(labels, 2)


def table_of(n_persons=40, seed=0):
    rng = np.random.default_rng(seed)
    each = rng.integers(1, 12, size=n_persons)
    frame = pd.DataFrame(rng.normal(size=(each.sum(), 2)), columns=["x", "y"])
    frame["patient"] = np.repeat(np.arange(n_persons) + 2**53, each)
    return frame.sample(frac=1, random_state=seed).reset_index(drop=True)


def asked(least=1):
    question = everything.asked(frame=FRAME)
    object.__setattr__(question, "rows_per_subject", least)
    return question


def slow_sums(frame, least=1):
    """Add up each row by itself, over the number of its person's rows, with Python's integers."""
    each = frame.groupby("patient")["x"].transform("size").to_numpy()
    found = None
    for row, n in zip(frame[["x", "y"]].to_numpy(), each, strict=True):
        whole = [int(value) for value in FRAME.rows(row[None]).integers[0]]
        d = max(int(n), least)
        parts = [abs(value) // d * (1 if value >= 0 else -1) for value in whole]
        of_count = 2**15 // d
        one = [
            np.array(parts),
            np.array(of_count),
            np.array([of_count * (whole[0] <= 0), of_count * (whole[0] > 0)]),
        ]
        found = one if found is None else [a + b for a, b in zip(found, one, strict=True)]
    return found


@pytest.mark.parametrize("least", [1, 5, 100])
def test_each_row_adds_its_integers_over_the_number_of_its_persons_rows(least):
    frame = table_of()
    sums, _, counts, places = everything.reply(
        asked(least), ClientData(frame, subject_column="patient")
    )
    expected = slow_sums(frame, least)
    for one, other in zip((sums, counts, places), expected, strict=True):
        np.testing.assert_array_equal(one.integers, other)


def test_batches_may_cut_a_person_anywhere(tmp_path, monkeypatch):
    frame = table_of()
    whole = everything.reply(asked(), ClientData(frame, subject_column="patient"))
    frame.to_parquet(tmp_path / "rows.parquet")
    table = read_batches(tmp_path / "rows.parquet", subject_column="patient")
    assert isinstance(table.rows, Batches)
    data = ClientData(table.rows, subjects=table.subjects)
    monkeypatch.setattr("flower_fedclust.engine.by_row.BATCH_ENTRIES", 7)
    monkeypatch.setattr(ClientData, "batches_of_subjects", lambda self, entries: self.batches(7))
    for source in (
        data,
        ClientData(frame, subject_column="patient"),
        ClientData(table.rows, subjects=table.subjects),
    ):
        found = everything.reply(asked(), source)
        for one, other in zip(whole, found, strict=True):
            np.testing.assert_array_equal(one.integers, other.integers)


def test_a_function_sees_rows_of_one_divisor_at_a_time():
    seen = []

    @by_row(counts="counts")
    def watched(rows):
        seen.append(len(rows))
        return count(rows)

    frame = table_of()
    question = watched.asked(frame=FRAME)
    object.__setattr__(question, "rows_per_subject", 1)
    watched.reply(question, ClientData(frame, subject_column="patient"))
    each = frame.groupby("patient").size()
    expected = [size * int((each == size).sum()) for size in sorted(each.unique())]
    assert sorted(seen) == sorted([0, *expected])


def test_rows_of_nobody_in_particular_are_refused():
    for source in (table_of()[["x", "y"]].to_numpy(), ClientData(table_of()[["x", "y"]])):
        with pytest.raises(fc.DataError, match="name the subject_column"):
            everything.reply(asked(), source)


SCHEMA = """
[columns.x]
kind = "number"
bounds = [-4, 4]
[columns.y]
kind = "number"
bounds = [-4, 4]
"""


def test_tables_are_prepared_and_described_for_persons():
    """With one row for each person a described run of a table has the bits of records, and copies change little."""
    once = {
        name: table_of(150, seed).drop_duplicates("patient") for seed, name in enumerate(("a", "b"))
    }
    options = {
        "n_clusters": 2,
        "n_rounds": 3,
        "epsilon": 30.0,
        "schema": SCHEMA,
        "describe": True,
        "seed": 3,
        "progress": False,
    }
    name = "federated-kmeans-private"
    records = fc.simulate(name, {k: v.drop(columns="patient") for k, v in once.items()}, **options)
    options |= {"privacy_unit": "subject", "subject_column": "patient"}
    persons = fc.simulate(name, once, **options)
    assert persons.privacy.covers_everything
    for one, other in zip(records.model.to_arrays(), persons.model.to_arrays(), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(records.clusters.sums, persons.clusters.sums)
    often = {name: pd.concat([table] * 8, ignore_index=True) for name, table in once.items()}
    copied = fc.simulate(name, often, **options)
    sizes = [np.sort(result.clusters.sums[:, 0]) for result in (persons, copied)]
    np.testing.assert_allclose(*sizes, atol=0.1 * sum(map(len, once.values())))


def test_every_answer_by_row_of_the_engine_can_take_some_of_its_rows():
    assert ByRow.taken(everything, np.arange(6.0), np.array([1, 3])).tolist() == [1.0, 3.0]
