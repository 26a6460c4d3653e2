"""A SuperLink and SuperNodes as processes of their own, on the loopback."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pandas as pd
import pytest
from apps_deployment import Deployment
from sklearn.datasets import load_iris
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

import flower_fedclust as fc
from flower_fedclust.data import hold_out_server_rows, load_dataset, partition


@pytest.fixture
def sites(tmp_path):
    """Iris at two sites, and thirty rows that are public."""
    rows, labels = load_iris(return_X_y=True, as_frame=True)
    table = rows.assign(kind=labels).sample(frac=1, random_state=0).reset_index(drop=True)
    parts = {"public": table[:30], "north": table[30:80], "south": table[80:]}
    for name, part in parts.items():
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    return parts


@pytest.fixture
def deployment(tmp_path):
    started = Deployment(tmp_path)
    yield started
    started.stop()


@pytest.mark.long
@pytest.mark.slow
def test_supernodes_find_the_inline_result_and_survive_one_bad_and_one_silent_site(
    deployment, sites, tmp_path
):
    bad = sites["north"].copy()
    bad.iloc[7, 2] = np.nan
    bad.to_csv(tmp_path / "bad.csv", index=False)
    sites["south"].to_csv(tmp_path / "silent.csv", index=False)
    # Another order of the columns is put right; another name is not.
    sites["south"].iloc[:, [1, 0, 2, 3, 4]].to_csv(tmp_path / "south.csv", index=False)
    sites["south"].rename(columns={"petal width (cm)": "width"}).to_csv(
        tmp_path / "renamed.csv", index=False
    )
    names = ("north", "south", "bad", "renamed", "silent")
    for name in names:
        deployment.supernode(name, tmp_path / f"{name}.csv")
    deployment.wait_for_supernodes(*names)
    os.killpg(deployment.processes[names[-1]].pid, signal.SIGSTOP)

    output = deployment.run(
        **{
            "strategy": "feddp-kmeans",
            "dataset": "",
            "server-data": str(tmp_path / "public.csv"),
            "label-column": "kind",
            "n-clusters": 3,
            "epsilon": "none",
            "parameters": "random_state = 0\nfederated_evaluation = true\nmin_clients = 2",
            "round-timeout": 600,  # the SuperLink gives the silent site up after two heartbeats
            "out": str(tmp_path / "out"),
        }
    )

    saved = tmp_path / "out" / "feddp-kmeans"
    assert saved.is_dir(), output[-5000:]
    assert deployment.state(output)["status"] == "finished:completed"
    rows = {name: part.drop(columns="kind").to_numpy() for name, part in sites.items()}
    strategy = fc.FedDPKMeans(3, server_data=rows["public"], epsilon=None, random_state=0)
    inline = fc.simulate(strategy, [rows["north"], rows["south"]], names=["north", "south"])
    with np.load(saved / "model.npz") as model:
        np.testing.assert_array_equal(model["arr_0"], inline.model.cluster_centers_)

    summary = json.loads((saved / "metrics.json").read_text())
    together = pd.concat([sites["north"], sites["south"]])
    predicted = inline.model.predict(together.drop(columns="kind").to_numpy())
    assert summary["metrics"]["nmi"] == pytest.approx(
        normalized_mutual_info_score(together["kind"], predicted)
    )
    assert summary["metrics"]["ari"] == pytest.approx(
        adjusted_rand_score(together["kind"], predicted)
    )
    failures = {failure["client"]: failure["reason"] for failure in summary["failures"]}
    assert len(failures) == 3
    assert "where the server rows have" in failures["renamed"]
    assert "row 7" in failures["bad"]
    assert "petal length" in failures["bad"]
    assert any(
        "did not answer" in reason
        for name, reason in failures.items()
        if name not in ("bad", "renamed")
    )

    report = json.loads((saved / "privacy.json").read_text())
    assert not report["covers_everything"]
    assert "table of classes by clusters" in (saved / "privacy.txt").read_text()


@pytest.fixture
def simulation(tmp_path):
    started = Deployment(tmp_path, "--simulation")
    yield started
    started.stop()


@pytest.mark.long
@pytest.mark.slow
def test_a_seeded_flwr_run_on_ray_gives_the_inline_bits(simulation, tmp_path):
    output = simulation.run(
        *("--federation-config", "num-supernodes=3"),
        **{
            "strategy": "feddp-kmeans,k-fed",
            "dataset": "iris",
            "n-clusters": 3,
            "epsilon": "5.0",
            "parameters": "noise = 'clients'\nn_rounds = 1",
            "noise-seed": 3,
            "out": str(tmp_path / "out"),
        },
    )
    assert (tmp_path / "out").is_dir(), output[-5000:]
    assert f"Saved in {tmp_path / 'out'}" in output

    rows = partition(hold_out_server_rows(load_dataset("iris"), 60), "iid", n_clients=3)
    private = fc.FedDPKMeans(
        3, server_data=rows.server_rows, epsilon=5.0, noise="clients", n_rounds=1
    )
    for strategy in (private, fc.KFED(3)):
        inline = fc.simulate(strategy, rows.clients, labels=rows.labels, seed=3)
        saved = tmp_path / "out" / strategy.name
        with np.load(saved / "model.npz") as model:
            np.testing.assert_array_equal(model["arr_0"], inline.model.cluster_centers_)
        assert json.loads((saved / "metrics.json").read_text())["metrics"] == inline.metrics
        for name, labels in zip(inline.names, inline.labels, strict=True):
            np.testing.assert_array_equal(
                pd.read_csv(saved / "labels" / f"{name}.csv")["cluster"], labels
            )


@pytest.mark.long
@pytest.mark.slow
def test_the_superlink_says_that_a_run_failed_and_why(deployment, tmp_path):
    out = tmp_path / "out"
    output = deployment.run(
        **{
            "strategy": "k-fed",
            "dataset": "",
            "n-clusters": 3,
            "wait-for-clients": 1.0,
            "out": str(out),
        }
    )
    state = deployment.state(output)
    assert state["status"] == "finished:failed"
    assert "0 clients are connected" in state["status-details"]
    assert not (out / "k-fed" / "result.json").exists()
