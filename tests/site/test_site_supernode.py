"""The deployment of deploy/ as processes, with TLS and keys, and an app that brings other code."""

from __future__ import annotations

import shutil
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from flower_fedclust.site.app import Site
from flower_fedclust.site.ledger import Ledger
from flower_fedclust.site.policy import SiteSettings

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


@pytest.mark.slow
@pytest.mark.long
def test_sites_that_require_masks_add_up_over_tls(tmp_path):
    folder = tmp_path / "deployment"
    one_machine.make_sites(folder, "federated-kmeans-private", 8.0)
    files = {name: folder / name / "site.toml" for name in one_machine.SITES}
    keys = {name: Site(SiteSettings.from_toml(path)).public_key for name, path in files.items()}
    peers = "".join(f'{name} = "{key}"\n' for name, key in keys.items())
    for path in files.values():
        text = path.read_text().replace("[policy]", '[policy]\nsecure = "required"', 1)
        path.write_text(f"{text}\n[peers]\n{peers}")
    with one_machine.Deployment(folder) as deployment:
        deployment.start_all()
        said = deployment.run(
            **{"strategy": "federated-kmeans-private", "study": "first-study", "dataset": "", "n-clusters": 3},
            **{"epsilon": "8.0", "parameters": "max_norm = 8.0\nn_rounds = 1\nnoise = 'local'"},
            **{"expected-clients": 3, "secure": True, "out": str(folder / "result")},
        )
    saved = folder / "result" / "federated-kmeans-private"
    assert saved.is_dir(), said[-5000:]
    assert "3 of 3 clients have compared the others' keys" in (saved / "privacy.txt").read_text()
    for name in one_machine.SITES:
        ledger = Ledger(folder / name / "site" / "ledger.jsonl").read()
        steps = [f"secure {step}" for step in ("keys", "roster", "share")]
        assert [entry["task"] for entry in ledger] == ["enrol", *steps, "cluster_sums", "secure confirm", "secure open"]
        assert all(array["masked"] for entry in ledger for array in entry["arrays"])
