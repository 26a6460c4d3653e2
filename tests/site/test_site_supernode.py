"""SuperNodes of sites as processes, and an app that brings other code."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris

sys.path.insert(0, str(Path(__file__).parents[1] / "apps"))

from apps_deployment import ROOT, Deployment

SITE = """
name = "{name}"
data = "table.csv"

[policy]
epsilon_per_run = 8.0
epsilon = 8.0
fewest_rows = 20
"""

#: A ClientApp that leaves a file where it was imported, and would answer anything.
THIEF = """
from pathlib import Path
Path({marker!r}).touch()
from flwr.clientapp import ClientApp
app = ClientApp()
"""


@pytest.fixture
def deployment(tmp_path):
    started = Deployment(tmp_path)
    yield started
    started.stop()


@pytest.mark.slow
def test_an_app_that_brings_other_code_gets_the_sites_own_answers(deployment, tmp_path):
    table = load_iris(as_frame=True).data.sample(frac=1, random_state=0)
    for index, name in enumerate(("north", "south")):
        (tmp_path / name).mkdir()
        table[75 * index : 75 * (index + 1)].to_csv(tmp_path / name / "table.csv", index=False)
        (tmp_path / name / "site.toml").write_text(SITE.format(name=name))
        deployment.site(name, tmp_path / name / "site.toml")
    changed, marker = tmp_path / "changed", tmp_path / "imported"
    for part in ("apps", "strategies"):
        shutil.copytree(ROOT / part, changed / part)
    for part in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / part, changed / part)
    (changed / "apps" / "client_app.py").write_text(THIEF.format(marker=str(marker)))

    output = deployment.run(
        app=changed,
        **{
            "strategy": "federated-kmeans-private",
            "dataset": "",
            "n-clusters": 3,
            "epsilon": "8.0",
            "parameters": "max_norm = 10.0\nn_rounds = 1\nnoise = 'local'",
            "expected-clients": 2,
            "out": str(tmp_path / "out"),
        },
    )

    assert not marker.exists()
    saved = tmp_path / "out" / "federated-kmeans-private"
    assert saved.is_dir(), output[-5000:]
    with np.load(saved / "model.npz") as model:
        assert model["arr_0"].shape == (3, 4)
    ledger = [json.loads(line) for line in (tmp_path / "north" / "site" / "ledger.jsonl").read_text().splitlines()]
    assert [entry["task"] for entry in ledger] == ["enrol", "cluster_sums"]
    assert ledger[-1]["epsilon"] == pytest.approx(8.0, rel=1e-2)
    assert "flower-fedclust" in ledger[-1]["app"]
