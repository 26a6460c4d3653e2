import gc
import json
import math
import re
import shutil
import stat
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import flower_fedclust as fc
from flower_fedclust.cli.files import predict_file
from flower_fedclust.data import FederatedRows, hold_out_server_rows, partition, read_table
from flower_fedclust.engine import Failure

RNG = np.random.default_rng(3)
MEANS = np.array([[0.0, 0.0, 8.0], [9.0, 0.0, 0.0], [0.0, 9.0, 0.0]])
COLUMNS = ["age", "dose", "pulse"]
NAMES = ["oslo", "=cmd|' /C calc'!A0", "-x"]


def table_of(n_rows):
    return pd.DataFrame(
        MEANS[RNG.integers(3, size=n_rows)] + RNG.normal(size=(n_rows, 3)), columns=COLUMNS
    )


TABLES = {
    name: table_of(n_rows).set_index(
        pd.Index([f"{name}{row}" for row in range(n_rows)], name="patient")
    )
    for name, n_rows in zip(NAMES, (40, 30, 20), strict=True)
}
NEW = table_of(50)


@pytest.fixture(scope="module")
def result():
    labels = {name: table["age"] > 4 for name, table in TABLES.items()}
    return fc.simulate(
        fc.PrivateKMeans(3, epsilon=5.0, max_norm=15.0), TABLES, labels=labels, seed=0
    )


@pytest.fixture(scope="module")
def folder(result, tmp_path_factory):
    return result.save(tmp_path_factory.mktemp("saved") / "run" / "private-kmeans")


def test_what_is_loaded_is_what_was_saved(result, folder):
    loaded = fc.load(folder)
    assert type(loaded.model) is type(result.model)
    assert list(loaded.model.columns_) == COLUMNS
    assert np.array_equal(loaded.model.predict(NEW), result.model.predict(NEW))
    for name in (
        "strategy",
        "names",
        "traffic",
        "failures",
        "metrics",
        "seconds",
        "history",
        "doubts",
        "id_column",
    ):
        assert getattr(loaded, name) == getattr(result, name), name
    for ours, theirs in zip(
        [*loaded.labels_of_clients, *loaded.row_ids],
        [*result.labels_of_clients, *result.row_ids],
        strict=True,
    ):
        assert np.array_equal(ours, theirs)
    assert str(loaded.privacy) == str(result.privacy)
    assert loaded.privacy.epsilon == result.privacy.epsilon
    assert repr(loaded) == repr(result)
    assert fc.load(folder.parent).names == NAMES


def test_no_file_stays_open(folder):
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        fc.load(folder)
        gc.collect()
    assert [str(one.message) for one in caught] == []


def test_maps_are_loaded_bit_for_bit(tmp_path):
    made = fc.simulate(fc.FedTSNESums(3), [part.to_numpy() for part in TABLES.values()], seed=0)
    loaded = fc.load(made.save(tmp_path / "run"))
    for ours, theirs in zip(loaded.embedding, made.embedding, strict=True):
        assert np.array_equal(ours, theirs)
    assert loaded.history.keys() == made.history.keys()


def test_another_process_finds_the_same_labels_in_another_table(result, folder, tmp_path):
    table = NEW[["pulse", "age", "dose"]].assign(
        note="text", patient=[f"=p{row}" for row in range(50)]
    )
    table.loc[[3, 7], "dose"] = np.nan
    table.to_parquet(tmp_path / "new.parquet")
    command = [
        sys.executable,
        "-m",
        "flower_fedclust.cli.commands",
        "predict",
        str(folder),
        "--id-column",
        "patient",
    ]
    done = subprocess.run(
        [*command, "--data", str(tmp_path / "new.parquet"), "--out", str(tmp_path / "labels.csv")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "48 of 50 rows have a cluster" in done.stdout
    assert "2 have none: column 'dose' is missing" in done.stdout
    assert "not used: note" in done.stdout
    written = pd.read_csv(tmp_path / "labels.csv")
    # Which no spreadsheet runs.
    assert written["patient"].tolist() == [f"'=p{row}" for row in range(50)]
    assert written.index[written["cluster"].isna()].tolist() == [3, 7]
    assert written["why"].dropna().tolist() == ["column 'dose' is missing"] * 2
    whole = NEW.drop(index=[3, 7])
    assert written["cluster"].dropna().astype(int).tolist() == result.model.predict(whole).tolist()
    assert stat.S_IMODE((tmp_path / "labels.csv").stat().st_mode) == 0o600


def test_labels_are_not_written_over_a_file_that_is_there(folder, tmp_path):
    NEW.to_parquet(tmp_path / "new.parquet")
    (tmp_path / "labels.csv").write_text("mine")
    with pytest.raises(FileExistsError, match="name a new file, so that nothing is lost"):
        predict_file(folder, tmp_path / "new.parquet", tmp_path / "labels.csv")
    assert (tmp_path / "labels.csv").read_text() == "mine"


def test_tables_are_found_by_their_columns_names_and_others_are_refused(result):
    model = result.model
    assert np.array_equal(
        model.predict(NEW[["pulse", "dose", "age"]]), model.predict(NEW.to_numpy())
    )
    assert model.cost(NEW[["pulse", "dose", "age"]]) == model.cost(NEW)
    with pytest.raises(ValueError, match=r"'dose'.*'Dose'"):
        model.predict(NEW.rename(columns={"dose": "Dose"}))
    with pytest.raises(ValueError, match="row 2, column 'age'"):
        model.predict(NEW.assign(age=NEW["age"].mask(NEW.index == 2)))


def test_every_row_has_a_line_with_its_id_also_those_that_were_left_out(tmp_path):
    lines = [f"{row},{'ab'[row % 2]},{row % 3 * 9},{row % 2}" for row in range(60)]
    (tmp_path / "rows.csv").write_text("\n".join(["patient,site,age,dose", *lines]) + "\n")
    table = hold_out_server_rows(
        read_table(tmp_path / "rows.csv", client_column="site", id_column="patient"), 6
    )
    rows = partition(table, "column")
    made = fc.simulate(fc.FederatedKMeans(3, init=np.array([[0.0, 0], [9, 0], [18, 0]])), rows)
    failed = replace(
        made,
        labels_of_clients=[made.labels_of_clients[0], np.empty(0, int)],
        failures=[Failure(2, "step", "b", "client b fell asleep.")],
    )
    folder = failed.save(tmp_path / "run")
    files = {
        path.stem: pd.read_csv(path)
        for path in [*(folder / "labels").iterdir(), folder / "left-out.csv"]
    }
    assert files["b"]["why"].unique().tolist() == ["client b fell asleep."]
    assert files["left-out"]["why"].unique().tolist() == ["made public for the server"]
    every = pd.concat(files.values()).set_index("patient").sort_index()
    assert every.index.tolist() == list(range(60))
    assert every["cluster"].notna().sum() == len(made.labels_of_clients[0])
    loaded = fc.load(folder)
    assert [part.tolist() for part in loaded.row_ids] == [part.tolist() for part in rows.row_ids]
    assert loaded.server_row_ids.tolist() == rows.server_row_ids.tolist()
    assert [len(part) for part in loaded.labels_of_clients] == [len(made.labels_of_clients[0]), 0]


def test_names_that_a_file_system_does_not_take_are_shortened_or_numbered(
    result, tmp_path, monkeypatch
):
    long = replace(result, names=["北" * 100, "北" * 99 + "京", *result.names[2:]])
    assert fc.load(long.save(tmp_path / "long")).names == long.names
    monkeypatch.setattr("sys.getfilesystemencoding", lambda: "ascii")
    named = replace(result, names=["Köln", "北京", *result.names[2:]])
    folder = named.save(tmp_path / "run")
    assert {"0-K_ln.csv", "1-__.csv"} <= {path.name for path in (folder / "labels").iterdir()}
    assert fc.load(folder).names == named.names


def test_ids_that_are_called_cluster_are_not_read_as_labels(tmp_path):
    tables = [NEW.set_index(pd.RangeIndex(100, 150, name="cluster"))] * 2
    made = fc.simulate(fc.FederatedKMeans(3), tables, seed=0)
    loaded = fc.load(made.save(tmp_path / "run"))
    assert (loaded.id_column, loaded.row_ids[0][0]) == ("cluster (id)", 100)
    assert np.array_equal(loaded.labels_of_clients, made.labels_of_clients)


def test_no_name_is_a_formula_and_nobody_else_may_look(folder):
    for path in folder.rglob("*.csv"):
        for line in path.read_text().splitlines():
            assert not any(
                cell.lstrip('"').startswith(("=", "+", "@")) for cell in line.split(",")
            ), path.name
    assert not any(path.name.startswith("-") for path in (folder / "labels").iterdir())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def change_labels(folder, change):
    path = next((folder / "labels").glob("*oslo*"))
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")


def change_metric(folder, name, value):
    path = folder / "metrics.json"
    summary = json.loads(path.read_text())
    summary["metrics"][name] = value
    path.write_text(json.dumps(summary))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "model.json").unlink(), "There is no model.json beside"),
        (
            lambda folder: (folder / "model.json").write_text('{"format": 9, "version": "2.0"}'),
            "version 2.0",
        ),
        (lambda folder: (folder / "model.json").write_text("{"), "model.json"),
        (lambda folder: (folder / "model.npz").write_bytes(b"no"), "model.npz"),
        (lambda folder: (folder / "model.npz").unlink(), "model.npz"),
        (lambda folder: (folder / "result.json").unlink(), "There is no result.json beside"),
        (lambda folder: (folder / "metrics.json").write_text("{}"), "run again"),
        (lambda folder: (folder / "metrics.json").write_bytes(b"\xff"), "metrics.json"),
        (lambda folder: next((folder / "labels").iterdir()).unlink(), "labels"),
        (lambda folder: change_labels(folder, lambda lines: lines[:-1]), "39 lines for 40 rows"),
        (
            lambda folder: change_labels(folder, lambda lines: [*lines, lines[-1]]),
            "41 lines for 40 rows",
        ),
        (
            lambda folder: change_labels(folder, lambda lines: [*lines[:-1], "x,99"]),
            "client oslo is no cluster",
        ),
        (
            lambda folder: change_labels(folder, lambda lines: [*lines[:-1], "x,"]),
            "only some rows of client oslo",
        ),
        (lambda folder: change_metric(folder, "cost", math.nan), r"metrics\.json: metrics\.cost"),
        (
            lambda folder: np.savez(folder / "model.npz", np.zeros((2, 3))),
            r"model\.npz: it has 2 clusters",
        ),
    ],
)
def test_a_damaged_result_is_refused_by_file(result, tmp_path, change, words):
    folder = result.save(tmp_path / "run")
    change(folder)
    with pytest.raises((ValueError, OSError), match=words):
        fc.load(folder)


@pytest.mark.parametrize(
    ("file", "field", "value", "words"),
    [
        ("result.json", "clients", ["a", "b", "c", "d"], "files has length 3, and clients 4"),
        ("result.json", "clients", [1, 2, 3], "clients.0 should be a valid string"),
        ("result.json", "files", ["a", "b", "a"], "files has a name twice"),
        ("result.json", "files", ["../a", "b", "c"], "files.0 names a file outside its folder"),
        ("result.json", "form", "tables", "form should be 'list', 'dict' or 'table'"),
        ("result.json", "floor", -3, "floor should be greater than or equal to 0"),
        ("result.json", "floor", True, "floor should be a valid integer"),
        ("result.json", "n_rows", [40.0, 30, 20], "n_rows.0 should be a valid integer"),
        ("result.json", "n_rows", "ab", "n_rows should be a valid list"),
        ("result.json", "n_rows", [40, 30], "n_rows has length 2, and clients 3"),
        ("result.json", "n_rows", [], "the folder labels is there, but n_rows is empty"),
        ("result.json", "other", 1, "other is unknown"),
        ("result.json", "sizes", {"counts": ["1"]}, "sizes.counts.0 should be a valid number"),
        ("metrics.json", "metrics", {"cost": True}, "metrics.cost should be a valid number"),
        ("metrics.json", "metrics", {"cost": 10**400}, "metrics.cost should be a valid number"),
        ("metrics.json", "seconds", "1", "seconds should be a valid number"),
        ("metrics.json", "seconds", math.nan, "seconds should be a finite number"),
        ("metrics.json", "strategy", 7, "strategy should be a valid string"),
        ("metrics.json", "history", {"a": ["x"]}, "history.a.0 should be a valid number"),
        ("metrics.json", "clients", 4, "clients is 4, but result.json names 3"),
    ],
)
def test_a_field_of_another_kind_is_refused_by_its_name(
    result, tmp_path, file, field, value, words
):
    folder = result.save(tmp_path / "run")
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(content | {field: value}))
    with pytest.raises(fc.DataError, match=f"{re.escape(words)}; run again"):
        fc.load(folder)


def test_a_result_without_its_labels_names_the_folder(result, tmp_path):
    folder = result.save(tmp_path / "run")
    shutil.rmtree(folder / "labels")
    with pytest.raises(fc.DataError, match="the folder labels is missing; run again"):
        fc.load(folder)


def test_metrics_that_are_not_finite_are_kept(result, tmp_path):
    metrics = result.metrics | {"nmi": math.nan, "ari": math.inf}
    folder = replace(result, metrics=metrics).save(tmp_path / "run")
    np.testing.assert_equal(fc.load(folder).metrics, metrics)


def test_a_row_that_replaces_another_one_is_noticed_in_the_labels_of_a_table(tmp_path):
    table = pd.DataFrame({"x": [0.0, 1.0, 8.0, 9.0], "site": ["a", "a", "b", "b"]})
    made = fc.simulate(fc.FederatedKMeans(2), table, client_column="site", seed=0)
    folder = made.save(tmp_path / "run")
    assert np.array_equal(fc.load(folder).labels, made.labels)
    description = (folder / "result.json").read_text()
    (folder / "result.json").write_text(description.replace('"table"', '"dict"'))
    with pytest.raises(ValueError, match=r"form is 'dict', but table_rows says otherwise"):
        fc.load(folder)
    (folder / "result.json").write_text(description)
    path = folder / "labels" / "a.csv"
    path.write_text(path.read_text().replace("1,", "0,", 1))
    with pytest.raises(ValueError, match="do not have every row once"):
        fc.load(folder)


def test_a_pickle_in_place_of_a_model_is_not_run(result, tmp_path):
    folder = result.save(tmp_path / "run")
    np.savez(folder / "model.npz", np.array([print], dtype=object))
    with pytest.raises(ValueError, match=r"model.npz"):
        fc.Model.load(folder)


def test_a_model_alone_predicts(result, tmp_path):
    result.model.save(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "model.json",
        "model.npz",
    ]
    assert np.array_equal(fc.Model.load(tmp_path / "model").predict(NEW), result.model.predict(NEW))
    described = json.loads((tmp_path / "model" / "model.json").read_text())
    assert (described["class"], described["columns"], described["n_clusters"]) == (
        "KMeansModel",
        COLUMNS,
        3,
    )
    NEW.to_csv(tmp_path / "new.csv", index=False)
    assert (
        predict_file(tmp_path / "model", tmp_path / "new.csv", tmp_path / "labels.csv").n_rows == 50
    )
    with pytest.raises(FileExistsError, match=r"labels\.csv"):
        predict_file(tmp_path / "model", tmp_path / "new.csv", tmp_path / "labels.csv")


def test_rows_with_gaps_are_left_out_as_if_they_had_never_been_there(result, tmp_path):
    result.model.save(tmp_path / "model")
    gaps = NEW.copy()
    for row, column in ((0, "age"), (7, "dose"), (7, "pulse"), (49, "pulse")):
        gaps.loc[row, column] = np.nan
    tables = {"gaps": gaps, "whole": gaps.dropna()}
    found = {}
    for name, table in tables.items():
        table.rename_axis("patient").to_csv(tmp_path / f"{name}.csv")
        predict_file(
            tmp_path / "model",
            tmp_path / f"{name}.csv",
            tmp_path / f"of-{name}.csv",
            id_column="patient",
        )
        found[name] = pd.read_csv(tmp_path / f"of-{name}.csv", index_col="patient")[
            "cluster"
        ].dropna()
    assert sorted(set(range(50)) - set(found["gaps"].index)) == [0, 7, 49]
    pd.testing.assert_series_equal(found["gaps"], found["whole"], check_dtype=False)


def test_a_folder_of_several_results_asks_for_one(result, tmp_path):
    for name in ("a", "b"):
        result.save(tmp_path / name)
    with pytest.raises(ValueError, match="a, b"):
        fc.load(tmp_path)


def test_a_result_is_shown_in_ten_lines_at_most(result):
    shown = (
        replace(result, failures=[Failure(1, "enrol", "x", "away " * 99)]).__repr__().splitlines()
    )
    assert len(shown) <= 10
    assert max(map(len, shown)) <= 120
    assert shown[0].startswith("private-kmeans: 3 clusters of 90 rows at 3 clients, in ")
    assert sum(int(size) for size in shown[1].removeprefix("sizes").split(", ")) == 90
    facts = {line.split()[0] for line in shown}
    assert {"sizes", "cost", "privacy", "unprotected", "failed", "model", "look"} <= facts
    (privacy,) = [line for line in shown if line.startswith("privacy")]
    assert (
        "(5, 1e-06)-differential privacy per record; its noise has a seed and protects nobody"
        in privacy
    )


def test_a_notebook_shows_the_same_and_runs_nothing_that_a_name_says(result):
    page = replace(result, strategy="<script>")._repr_html_()
    assert "<script>" not in page
    assert "Privacy report of" in page
    assert len(repr(FederatedRows([np.zeros((2, 3))], None, ["a"]))) < 100


SCHEMA = """
[columns.age]
kind = "number"
bounds = [-5, 15]

[columns.job]
kind = "category"
categories = ["clerk", "cook"]
gaps = "category"
"""


def people(n_rows):
    jobs = np.array(["clerk", "cook", None], dtype=object)[RNG.integers(3, size=n_rows)]
    return pd.DataFrame(
        {"age": 9.0 * RNG.integers(2, size=n_rows) + RNG.normal(size=n_rows), "job": jobs}
    )


def test_a_model_of_raw_tables_is_kept_with_its_preparation_and_its_clusters(tmp_path):
    strategy = fc.PrivateKMeans(2, epsilon=5.0)
    made = fc.simulate(strategy, [people(200), people(150)], schema=SCHEMA, describe=True, seed=0)
    loaded = fc.load(made.save(tmp_path / "run"))
    new = people(60)
    assert np.array_equal(loaded.model.predict(new[["job", "age"]]), made.model.predict(new))
    assert str(loaded.clusters) == str(made.clusters)
    assert loaded.sizes.counts.tolist() == made.sizes.counts.tolist()
    assert repr(loaded) == repr(made)
    new.loc[[5, 9], "age"] = np.nan
    new.assign(free="text").to_parquet(tmp_path / "new.parquet")
    done = predict_file(tmp_path / "run", tmp_path / "new.parquet", tmp_path / "labels.csv")
    assert (done.left_out, done.unused) == ({"column 'age' is missing": 2}, ["free"])
    written = pd.read_csv(tmp_path / "labels.csv")["cluster"]
    whole = new.drop(index=[5, 9])
    assert written.dropna().astype(int).tolist() == loaded.model.predict(whole).tolist()
    new.loc[12, "job"] = "pilot"
    new.to_parquet(tmp_path / "new.parquet")
    done = predict_file(tmp_path / "run", tmp_path / "new.parquet", tmp_path / "pilots.csv")
    unlisted = "column 'job' has a category that the schema does not list"
    assert done.left_out == {"column 'age' is missing": 2, unlisted: 1}
    frame = pd.read_csv(tmp_path / "pilots.csv")
    assert frame["why"][12] == unlisted
    assert frame["cluster"].dropna().tolist() == written.drop(index=12).dropna().tolist()
    new.assign(age=["1"] * 12 + ["old"] * 48).to_parquet(tmp_path / "new.parquet")
    with pytest.raises(fc.DataError, match="column 'age': row 13"):
        predict_file(tmp_path / "run", tmp_path / "new.parquet", tmp_path / "other.csv")


@pytest.mark.parametrize("ran_with", [9, "3", [3], True])
def test_the_number_that_was_chosen_is_kept(tmp_path, ran_with):
    strategy = fc.PrivateKMeans((2, 4), epsilon=5.0, max_norm=15.0)
    made = fc.simulate(strategy, [part.to_numpy() for part in TABLES.values()], seed=0)
    folder = made.save(tmp_path / "run")
    assert fc.load(folder).number.to_dict() == made.number.to_dict()
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics["number"]["ran_with"] = ran_with
    (folder / "metrics.json").write_text(json.dumps(metrics))
    with pytest.raises(fc.DataError, match=r"ran_with is none of number\.numbers; run again"):
        fc.load(folder)


def test_a_saved_number_says_whether_there_was_noise(tmp_path):
    made = fc.simulate(fc.PrivateKMeans("auto", epsilon=None), [np.ones((30, 2))] * 2, seed=0)
    folder = made.save(tmp_path / "run")
    assert fc.load(folder).number.sentence == made.number.sentence
    metrics = json.loads((folder / "metrics.json").read_text())
    for field in (
        "has_noise",
        "ran_with",
    ):  # a result that was saved before these fields were added
        del metrics["number"][field]
    (folder / "metrics.json").write_text(json.dumps(metrics))
    assert fc.load(folder).number.numbers == made.number.numbers
    metrics["number"] |= {"ran_with": None, "has_noise": "no"}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    with pytest.raises(fc.DataError, match=r"has_noise is neither true nor false; run again"):
        fc.load(folder)
