"""A large file of several clients is read in batches, and has the clients that it has when it is read as a whole."""

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import flower_fedclust as fc
from flower_fedclust.data import Batches, files
from flower_fedclust.inputs import RowsChoice
from flower_fedclust.numerics.checks import DataError

RNG = np.random.default_rng(0)
ROWS = pd.DataFrame(RNG.normal(size=(5000, 3)).round(3), columns=["a", "b", "c"])
ROWS["n"] = RNG.integers(0, 9, 5000)
ROWS["site"] = RNG.choice(["north", "south", "west"], 5000)
ROWS["code"] = RNG.choice([3.0, 11.0, 7.0], 5000)
ROWS["kind"] = RNG.choice(["x", "y"], 5000)
ROWS["id"] = np.arange(5000)[::-1]
NO_DRAWING = {"needs_server_rows": False}
CHOSEN = {"columns": ["b", "a", "n"], "label_column": "kind"}


@pytest.fixture(params=["parquet", "arrow", "categories"])
def path(request, tmp_path):
    if request.param == "arrow":
        ROWS.to_feather(tmp_path / "rows.arrow")
        return tmp_path / "rows.arrow"
    rows = (
        ROWS.astype({"site": "category", "kind": "category"})
        if request.param == "categories"
        else ROWS
    )
    rows.to_parquet(tmp_path / "rows.parquet", row_group_size=700)
    return tmp_path / "rows.parquet"


def read(path, monkeypatch, most, **options):
    with monkeypatch.context() as patch:
        patch.setattr(files, "MOST_TO_SPREAD", most)
        return RowsChoice.of(path, **options).load(3, **NO_DRAWING)


@pytest.mark.parametrize("client_column", ["site", "code"])
@pytest.mark.parametrize("id_column", [None, "id"])
def test_the_clients_are_those_of_the_whole_file(path, monkeypatch, client_column, id_column):
    options = {"client_column": client_column, "id_column": id_column, **CHOSEN}
    whole, spread = (read(path, monkeypatch, most, **options) for most in (2**40, 0))
    assert all(isinstance(one, Batches) for one in spread.clients)
    assert (spread.names, spread.columns, spread.id_column) == (
        whole.names,
        whole.columns,
        whole.id_column,
    )
    for name in ("labels", "row_ids"):
        for ours, theirs in zip(getattr(spread, name), getattr(whole, name), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(spread.clients, whole.clients, strict=True):
        np.testing.assert_array_equal(
            np.concatenate([batch.rows for batch in ours.read(100)]), theirs
        )


def test_a_run_has_the_same_bits_and_the_folder_goes_with_the_rows(path, monkeypatch):
    made = fc.PrivateFederatedKMeans(3, epsilon=2.0, max_norm=12.0, n_rounds=2)
    options = {"client_column": "site", **CHOSEN}
    whole, spread = (read(path, monkeypatch, most, **options) for most in (2**40, 0))
    found = [fc.simulate(made, rows, seed=0) for rows in (whole, spread)]
    for ours, theirs in zip(found[1].model.to_arrays(), found[0].model.to_arrays(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(np.concatenate(found[1].labels), np.concatenate(found[0].labels))
    (folder,) = {part.path.parent for one in spread.clients for part in one.parts}
    copy = pickle.loads(pickle.dumps(spread))
    del copy
    assert folder.is_dir()
    del spread, found
    assert not folder.exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda rows: rows.assign(site=rows["site"].where(rows.index != 4321)),
            r"row 4321, column 'site' is missing",
        ),
        (
            lambda rows: rows.assign(a=rows["a"].where(rows.index != 4321)),
            r"^(client \w+: )?rows.parquet, among the rows of client \w+: row \d+, column 'a'",
        ),
        (lambda rows: rows.assign(id=7), "column 'id' has one id for several rows"),
        (lambda rows: rows.drop(columns="site"), "'site'"),
        (
            lambda rows: rows.assign(site=np.where(rows.index < 9, "no\u0308rd", "n\u00f6rd")),
            "column .site.",
        ),
    ],
    ids=["no client", "a gap", "equal ids", "no column", "two spellings"],
)
def test_what_is_wrong_is_said_of_the_row(tmp_path, monkeypatch, change, said):
    monkeypatch.setattr(files, "MOST_TO_SPREAD", 0)
    change(ROWS).to_parquet(tmp_path / "rows.parquet")
    options = {"client_column": "site", "id_column": "id", "columns": ["a", "b"]}
    with pytest.raises(ValueError, match=said):
        fc.simulate(
            fc.FederatedKMeans(2),
            RowsChoice.of(tmp_path / "rows.parquet", **options).load(2, **NO_DRAWING),
        )


def test_public_rows_are_drawn_from_the_whole_file(path, monkeypatch):
    monkeypatch.setattr(files, "MOST_TO_SPREAD", 0)
    drawn = fc.simulate("feddp-kmeans", path, client_column="site", n_clusters=3, **CHOSEN)
    assert sum(map(len, drawn.labels_of_clients)) == 5000 - 3 * 20


def test_a_file_of_many_clients_is_read_as_a_whole(tmp_path, monkeypatch):
    ROWS.assign(site=np.arange(5000) // 20).to_parquet(tmp_path / "rows.parquet")
    rows = read(tmp_path / "rows.parquet", monkeypatch, 0, client_column="site", columns=["a", "b"])
    assert len(rows.clients) == 250
    assert isinstance(rows.clients[0], np.ndarray)


def test_a_file_that_changes_while_its_rows_are_used_is_refused(path, monkeypatch):
    rows = read(path, monkeypatch, 0, client_column="site", columns=["a", "b"])
    pa.OSFile(str(path), "wb").close()
    Path(path).touch()
    with pytest.raises(DataError, match="has changed since it was opened"):
        fc.simulate(fc.FederatedKMeans(2), rows)
