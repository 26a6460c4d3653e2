"""Comparisons on Ray: machines that are lost, drivers that are killed, and rows that travel once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from flower_fedclust.data import read_table
from flower_fedclust.engine import Entry, GridArray, ProtocolClient, ProtocolStrategy, Sum, answers, parameter
from flower_fedclust.harness.comparison import Comparison
from flower_fedclust.harness.runner import _Store, run_comparison
from flower_fedclust.models import KMeansModel

HERE = Path(__file__).parent


class TotalClient(ProtocolClient):
    @answers("sum of the rows", "number of rows")
    def total(self):
        return GridArray.truncated(self.rows.sum(axis=0, keepdims=True), -30), np.array([len(self.rows)])


class Waiting(ProtocolStrategy):
    """The mean of all rows; where no marker stands, it sets one that names its machine, and waits to be killed."""

    entries = (Entry("waiting", "a toy", "a test"),)
    client_type = TotalClient
    n_protocol_rounds = 1

    marker: str = parameter("")

    def protocol(self):
        total, count = yield Sum(TotalClient.total.asked())
        if not Path(self.marker).exists():
            import ray

            Path(self.marker).write_text(ray.get_runtime_context().get_node_id())
            time.sleep(300)
        return KMeansModel(total / count)


def comparison_of(marker):
    strategies = ("k-fed", "test_harness_ray_runs:Waiting")
    return Comparison(strategies, datasets=("iris",), n_clients=3, seeds=(0, 1), parameters={"marker": str(marker)})


def until(happened):
    end = time.monotonic() + 240
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_written(marker):
    return marker.exists() and len(marker.read_text()) > 0


@pytest.mark.slow
@pytest.mark.long
def test_a_killed_driver_and_a_lost_machine_cost_nothing_but_time(tmp_path, monkeypatch):
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_worker_niceness", "0")

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        machines = [cluster.add_node(num_cpus=1) for _ in range(2)]
        marker, out = tmp_path / "marker", tmp_path / "out"
        # A driver that is killed while a run waits.
        code = (
            "from test_harness_ray_runs import comparison_of, run_comparison\n"
            f"run_comparison(comparison_of({str(marker)!r}), {str(out)!r}, on={cluster.address!r})"
        )
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
        driver = subprocess.Popen([sys.executable, "-c", code], env=environment)
        until(lambda: is_written(marker) and len(list(out.glob("runs/k-fed*/run.json"))) == 2)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        done = {path: path.stat().st_mtime_ns for path in out.glob("runs/k-fed*/run.json")}
        marker.unlink()

        def lose_a_machine():
            until(lambda: is_written(marker))
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
        pd.read_parquet(one / "results.parquet").drop(columns=["seconds", "peak_memory_mb"])
        for one in (out, tmp_path / "here")
    ]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    for one in sorted((tmp_path / "here" / "runs").rglob("*.npz")):
        with np.load(one) as here, np.load(out / one.relative_to(tmp_path / "here")) as there:
            assert all(np.array_equal(here[name], there[name]) for name in here.files)


def test_rows_are_put_into_the_store_once_whatever_the_number_of_trials_on_them(tmp_path):
    path = tmp_path / "rows.csv"
    numbers = np.random.default_rng(0)
    pd.DataFrame(numbers.normal(size=(30, 2)), columns=["a", "b"]).assign(kind=np.arange(30) % 2).to_csv(
        path, index=False
    )
    comparison = Comparison(("k-fed", "pooled-kmeans"), datasets=("iris",), data=path, label_column="kind", n_clients=3)
    put = []
    store = _Store(lambda read: put.append(read) or len(put) - 1)
    references = {trial.key: store.rows_of(trial) for trial in comparison.trials()}
    assert len(references) == 2 * 2 * 3
    assert set(references.values()) == {0, 1}
    np.testing.assert_array_equal(put[1].rows.rows, read_table(path, label_column="kind").rows)


def test_where_a_comparison_cannot_run_is_said_before_it_begins(tmp_path):
    comparison = replace(comparison_of(""), strategies=("k-fed",), parameters={})
    with pytest.raises(ValueError, match="on is 'nowhere'; give ray, ray://HOST, auto, or HOST:PORT"):
        run_comparison(comparison, tmp_path / "out", on="nowhere")
    with pytest.raises(ValueError, match="leave out one of them"):
        run_comparison(replace(comparison, engine="ray"), tmp_path / "out", on="ray")
