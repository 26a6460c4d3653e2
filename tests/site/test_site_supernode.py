"""The deployment of deploy/ as processes, with TLS and keys, and an app that brings other code."""

from __future__ import annotations

import shutil
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from flower_fedclust.site.ledger import Ledger

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "deploy"))
one_machine = import_module("one_machine")

#: A ClientApp that leaves a file where it was imported, and would answer anything.
THIEF = """
from pathlib import Path
Path({marker!r}).touch()
from flwr.clientapp import ClientApp
app = ClientApp()
"""


@pytest.mark.slow
@pytest.mark.long
def test_sites_run_their_own_code_and_end_with_their_own_results(tmp_path):
    changed, marker, folder = tmp_path / "changed", tmp_path / "imported", tmp_path / "deployment"
    for part in ("apps", "strategies"):
        shutil.copytree(ROOT / part, changed / part)
    for part in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / part, changed / part)
    (changed / "apps" / "client_app.py").write_text(THIEF.format(marker=str(marker)))
    one_machine.make_sites(folder, "federated-kmeans-private", 8.0)
    with one_machine.Deployment(folder) as deployment:
        deployment.start_all()
        said = deployment.run(
            changed,
            **{"strategy": "federated-kmeans-private", "study": "first-study", "dataset": "", "n-clusters": 3},
            **{"epsilon": "8.0", "parameters": "max_norm = 8.0\nn_rounds = 1\nnoise = 'local'"},
            **{"expected-clients": 3, "share-model": True, "out": str(folder / "result")},
        )

    assert not marker.exists()
    saved = folder / "result" / "federated-kmeans-private"
    assert saved.is_dir(), said[-5000:]
    for name in one_machine.SITES:
        ledger = Ledger(folder / name / "site" / "ledger.jsonl").read()
        assert [entry["task"] for entry in ledger] == ["enrol", "cluster_sums", "receive"]
        assert ledger[1]["epsilon"] == pytest.approx(8.0, rel=1e-2)
        assert "flower-fedclust" in ledger[1]["app"]
        (own,) = (folder / name / "site" / "results").iterdir()
        with np.load(own / "model.npz") as kept, np.load(saved / "model.npz") as made:
            np.testing.assert_array_equal(kept[kept.files[0]], made[made.files[0]])
        assert len(pd.read_csv(own / "labels" / f"{name}.csv")) == 200
