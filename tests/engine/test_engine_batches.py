"""Rows that are read batch by batch: the same bits as in memory, for any files, batches and threads."""

import copy

import numpy as np
import pandas as pd
import pytest

import flower_fedclust as fc
from flower_fedclust.data import read_batches
from flower_fedclust.engine import ClientData, by_row
from flower_fedclust.numerics.threads import jobs, mapped

rng = np.random.default_rng(7)
LABELS = rng.integers(0, 3, 1500)
NUMBERS = pd.DataFrame(
    rng.normal(size=(1500, 3)).astype(np.float32) + 4.0 * np.eye(3, dtype=np.float32)[LABELS], columns=["a", "b", "c"]
)
NUMBERS["whole"] = LABELS
NUMBERS["flag"] = LABELS == 1
TABLE = NUMBERS.assign(
    work=np.array(["private", "public", None], dtype=object)[LABELS],
    born=pd.Timestamp("1960-01-01") + pd.to_timedelta(rng.integers(0, 20_000, 1500), unit="D"),
    a=NUMBERS["a"].where(rng.random(1500) > 0.1),
    unused="text",
)
SCHEMA = {
    "columns": {
        **{name: {"kind": "number"} for name in ("b", "c")},
        "a": {"kind": "number", "gaps": "mean", "bounds": (-5, 10)},
        "whole": {"kind": "integer", "bounds": (0, 3)},
        "flag": {"kind": "binary", "categories": ("false", "true")},
        "work": {"kind": "category", "categories": ("private", "public"), "gaps": "category"},
        "born": {"kind": "date"},
        "unused": {"kind": "ignored"},
    }
}
STRATEGIES = {
    "private-kmeans": fc.PrivateKMeans(n_clusters=3, epsilon=8.0),
    "private-kmeans without noise": fc.PrivateKMeans(n_clusters=3, epsilon=None),
    "federated-kmeans": fc.FederatedKMeans(n_clusters=3, n_rounds=3),
    "spp-fgc-sums": fc.SPPFGCSums(n_clusters=3, epsilon=8.0),
}


def parts_of(table, folder):
    """Write a table as parts with columns in different orders, one of them empty."""
    folder.mkdir()
    for index, (start, stop) in enumerate(((0, 700), (700, 700), (700, 701), (701, 1500))):
        order = list(table.columns)[:: 1 if index % 2 else -1]
        table.iloc[start:stop][order].to_parquet(folder / f"part-{index}.parquet", row_group_size=400, index=False)
    return folder


def parquet(table, folder):
    path = folder / "one.parquet"
    table.to_parquet(path, row_group_size=1000, index=False)
    return path


WRITERS = {"parquet": parquet, "parts": lambda table, folder: parts_of(table, folder / "parts")}


def run(strategy, rows, schema=None):
    strategy = copy.copy(strategy)
    if schema is None and hasattr(strategy, "max_norm") and strategy.epsilon is not None:
        strategy.max_norm = 8.0
    if schema is None and hasattr(strategy, "max_l1_norm"):
        strategy.max_l1_norm = 14.0
    return fc.simulate(strategy, {"north": rows, "south": NUMBERS if schema is None else TABLE}, schema=schema, seed=0)


@pytest.fixture(scope="module")
def in_memory():
    kept = {}

    def find(name, schema):
        if (name, schema is None) not in kept:
            kept[name, schema is None] = run(STRATEGIES[name], NUMBERS if schema is None else TABLE, schema)
        return kept[name, schema is None]

    return find


@pytest.mark.parametrize("schema", [None, SCHEMA], ids=["numbers", "schema"])
@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_rows_of_files_give_the_same_bits_as_in_memory(name, kind, schema, in_memory, tmp_path, monkeypatch):
    columns = list((NUMBERS if schema is None else TABLE).columns)
    path = WRITERS[kind](NUMBERS if schema is None else TABLE, tmp_path)
    expected = in_memory(name, schema)
    monkeypatch.setattr(by_row, "BATCH_ENTRIES", 997)
    monkeypatch.setattr(ClientData, "_check_fits_memory", lambda self: pytest.fail("all rows are read at once"))
    found = run(STRATEGIES[name], read_batches(path, columns=columns).rows, schema)
    for one, other in zip(found.model.to_arrays(), expected.model.to_arrays(), strict=True):
        assert one.tobytes() == other.tobytes()
    for one, other in zip(found.labels, expected.labels, strict=True):
        assert np.array_equal(one, other)
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-9)


def test_rows_of_files_are_read_at_once_only_for_an_answer_that_needs_all_of_them_with_a_warning(tmp_path, monkeypatch):
    rows = read_batches(parquet(NUMBERS, tmp_path)).rows
    with pytest.warns(RuntimeWarning, match=r"client north: .* all rows at once.*private-kmeans"):
        found = run(fc.KFED(n_clusters=3), rows)
    expected = run(fc.KFED(n_clusters=3), NUMBERS)
    assert np.array_equal(found.model.cluster_centers_, expected.model.cluster_centers_)
    monkeypatch.setattr("flower_fedclust.engine.client_data.machine_memory", lambda: 1000)
    with pytest.raises(fc.DataError, match=r"all rows at once.*1 MB|0 MB.*private-kmeans"):
        _ = ClientData(rows).rows


@pytest.mark.parametrize("n_jobs", [1, 2, 5])
def test_threads_keep_the_order_and_find_the_same_error(n_jobs):
    def root(number):
        if number == 37:
            raise ValueError(number)
        return number**0.5

    with jobs(n_jobs):
        assert list(mapped(root, range(37))) == [number**0.5 for number in range(37)]
        with pytest.raises(ValueError, match="37"):
            list(mapped(root, range(1000)))
        few = mapped(root, iter(range(1000)))
        assert next(few) == 0.0
        few.close()


def test_few_batches_are_in_memory_at_a_time():
    taken = []
    for done, _ in enumerate(mapped(lambda number: number, (taken.append(one) or one for one in range(100)), 3)):
        assert len(taken) <= done + 5
