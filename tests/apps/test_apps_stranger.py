"""Somebody else's strategy, in a folder of its own, by the documented commands alone."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from apps_deployment import BIN, Deployment

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.long
def test_a_strategy_of_forty_lines_is_compared_reported_and_run_by_flower(tmp_path):
    theirs = HERE / "apps_sides.py"
    assert len(theirs.read_text().splitlines()) <= 40
    shutil.copy(theirs, tmp_path / "sides.py")
    kinds = np.arange(60) % 2
    rows = np.random.default_rng(0).normal(size=(60, 2)) + 6.0 * kinds[:, None] - 3.0
    frame = pd.DataFrame(rows, columns=["a", "b"]).assign(site=np.arange(60) // 20, kind=kinds)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    deployment = Deployment(tmp_path, "--simulation")

    def said(*command):
        done = subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            cwd=tmp_path,
            env=deployment.environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        columns = ("--data", "rows.csv", "--client-column", "site", "--label-column", "kind")
        options = (
            "--epsilons",
            "8",
            "--seeds",
            "1",
            "--set",
            "max_norm=10",
            "--jobs",
            "1",
            "--out",
            "out",
        )
        assert "The best is " in said(
            "fedclust", "compare", "--strategies", "sides:Sides,k-fed", *columns, *options
        )
        said("fedclust", "report", "out")
        assert "sides:Sides" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
        said("fedclust", "new-app", "mine")
        shutil.move(tmp_path / "sides.py", tmp_path / "mine")
        app = tmp_path / "mine" / "app.py"
        code = app.read_text().replace("fc.PrivateKMeans", "Sides")
        app.write_text(
            code.replace(
                "import flower_fedclust as fc",
                "import flower_fedclust as fc\nfrom sides import Sides",
            )
        )
        said(
            "flwr",
            "run",
            "mine",
            "here",
            "--stream",
            "--run-config",
            f'n-clusters=2 out="{tmp_path / "flower"}"',
        )
    finally:
        deployment.stop()
    report = json.loads((tmp_path / "flower" / "sides" / "privacy.json").read_text())
    assert report["covers_everything"]
    assert np.loadtxt(tmp_path / "flower" / "sides" / "centers.csv", delimiter=",").shape == (2, 4)
