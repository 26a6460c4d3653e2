"""A SuperLink and SuperNodes as processes of their own, on the loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

import flower_fedclust as fc

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise TimeoutError(f"nothing listens on port {port}")


@pytest.fixture
def sites(tmp_path):
    """Iris at two sites, and thirty rows that are public."""
    rows, labels = load_iris(return_X_y=True, as_frame=True)
    table = rows.assign(kind=labels).sample(frac=1, random_state=0).reset_index(drop=True)
    parts = {"public": table[:30], "north": table[30:80], "south": table[80:]}
    for name, part in parts.items():
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    return parts


class Deployment:
    """A SuperLink and what is needed to start SuperNodes and runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.environment = os.environ | {
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        self.port = free_port()
        self.start(
            "superlink",
            "flower-superlink",
            "--insecure",
            "--disable-runtime-dependency-installation",
            *("--port", str(self.port)),
        )
        wait_for(self.port)
        (folder / "flwr").mkdir(exist_ok=True)
        (folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )

    def start(self, name: str, *command: str) -> None:
        log = (self.folder / f"{name}.log").open("wb")
        process = subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self.environment,
            start_new_session=True,
        )
        self.processes.append(process)

    def supernode(self, name: str, data: Path) -> None:
        port = free_port()
        self.start(
            name,
            "flower-supernode",
            "--insecure",
            *("--superlink", f"127.0.0.1:{self.port}"),
            *("--port", str(port)),
            *("--node-config", f'name="{name}" data="{data}"'),
        )
        wait_for(port)

    def run(self, **config: object) -> str:
        pairs = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        done = subprocess.run(
            [str(BIN / "flwr"), "run", str(ROOT), "here", "--stream", "--run-config", pairs],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        return done.stdout + done.stderr

    def stop(self) -> None:
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait()


@pytest.fixture
def deployment(tmp_path):
    started = Deployment(tmp_path)
    yield started
    started.stop()


@pytest.mark.slow
def test_supernodes_find_the_inline_result_and_survive_one_bad_and_one_silent_site(deployment, sites, tmp_path):
    bad = sites["north"].copy()
    bad.iloc[7, 2] = np.nan
    bad.to_csv(tmp_path / "bad.csv", index=False)
    sites["south"].to_csv(tmp_path / "silent.csv", index=False)
    for name in ("north", "south", "bad", "silent"):
        deployment.supernode(name, tmp_path / f"{name}.csv")
    time.sleep(3)  # the SuperNodes have to reach the SuperLink
    os.killpg(deployment.processes[-1].pid, signal.SIGSTOP)

    output = deployment.run(
        **{
            "strategy": "feddp-kmeans",
            "dataset": "",
            "server-data": str(tmp_path / "public.csv"),
            "label-column": "kind",
            "n-clusters": 3,
            "epsilon": "none",
            "random-state": 0,
            "federated-evaluation": True,
            "round-timeout": 20,
            "min-clients": 2,
            "out": str(tmp_path / "out"),
        }
    )

    saved = tmp_path / "out" / "feddp-kmeans"
    assert saved.is_dir(), output[-5000:]
    rows = {name: part.drop(columns="kind").to_numpy() for name, part in sites.items()}
    strategy = fc.FedDPKMeans(3, server_data=rows["public"], epsilon=None, random_state=0)
    inline = fc.simulate(strategy, [rows["north"], rows["south"]], names=["north", "south"])
    with np.load(saved / "model.npz") as model:
        np.testing.assert_array_equal(model["arr_0"], inline.model.cluster_centers_)

    summary = json.loads((saved / "metrics.json").read_text())
    together = pd.concat([sites["north"], sites["south"]])
    predicted = inline.model.predict(together.drop(columns="kind").to_numpy())
    assert summary["metrics"]["nmi"] == pytest.approx(normalized_mutual_info_score(together["kind"], predicted))
    assert summary["metrics"]["ari"] == pytest.approx(adjusted_rand_score(together["kind"], predicted))
    failures = {failure["client"]: failure["reason"] for failure in summary["failures"]}
    assert len(failures) == 2
    assert "row 7" in failures["bad"]
    assert "petal length" in failures["bad"]
    assert any(reason.startswith("no answer") for name, reason in failures.items() if name != "bad")

    report = json.loads((saved / "privacy.json").read_text())
    assert not report["covers_everything"]
    assert "table of classes by clusters" in (saved / "privacy.txt").read_text()
