"""The deployment of deploy/ as processes, with TLS and keys, and an app that brings other code."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
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
            **{
                "strategy": "federated-kmeans-private",
                "study": "first-study",
                "dataset": "",
                "n-clusters": 3,
            },
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
            **{
                "strategy": "federated-kmeans-private",
                "study": "first-study",
                "dataset": "",
                "n-clusters": 3,
            },
            **{"epsilon": "8.0", "parameters": "max_norm = 8.0\nn_rounds = 1\nnoise = 'local'"},
            **{"expected-clients": 3, "secure": True, "out": str(folder / "result")},
        )
    saved = folder / "result" / "federated-kmeans-private"
    assert saved.is_dir(), said[-5000:]
    assert "3 of 3 clients have compared the others' keys" in (saved / "privacy.txt").read_text()
    for name in one_machine.SITES:
        ledger = Ledger(folder / name / "site" / "ledger.jsonl").read()
        steps = [f"secure {step}" for step in ("keys", "roster", "share")]
        assert [entry["task"] for entry in ledger] == [
            "enrol",
            *steps,
            "cluster_sums",
            "secure confirm",
            "secure open",
        ]
        assert all(array["masked"] for entry in ledger for array in entry["arrays"])


def changed_policy(site_toml, line):
    site_toml.write_text(site_toml.read_text() + line)


@pytest.mark.slow
@pytest.mark.long
def test_a_study_waits_for_approval_is_stopped_and_an_old_ledger_is_noticed(tmp_path):
    folder, name = tmp_path / "deployment", "federated-kmeans-private"
    one_machine.make_sites(folder, name, 8.0)
    tomls = {site: folder / site / "site.toml" for site in one_machine.SITES}
    changed_policy(tomls["west"], 'approve = "studies"\n')

    def ledger(site):
        return Ledger(folder / site / "site" / "ledger.jsonl")

    def events(site):
        return [
            json.loads(line)
            for line in (folder / site / "site" / "audit.jsonl").read_text().splitlines()
        ]

    with one_machine.Deployment(folder) as deployment:

        def site(*words):
            return deployment.call(str(one_machine.BIN / "fedclust"), *words)

        def run(number, n_rounds=1):
            return deployment.run(
                **{
                    "strategy": name,
                    "study": "first-study",
                    "dataset": "",
                    "n-clusters": 3,
                    "epsilon": "8.0",
                },
                **{"parameters": f"max_norm = 8.0\nn_rounds = {n_rounds}\nnoise = 'local'"},
                **{"expected-clients": 3, "out": str(folder / f"result {number}")},
            )

        # The first run ends before anything is spent, and says how to go on.
        deployment.start_all()
        with pytest.raises(
            SystemExit,
            match=r"west says: waiting for approval of study \w+; submit the same run again",
        ):
            run(1)
        assert [entry["task"] for entry in ledger("north").read()] == ["enrol"]
        assert ledger("west").read() == []
        (study,) = re.findall(
            r'waiting +(\w{12}): .*named "first-study"', site("site", "studies", str(tomls["west"]))
        )
        backup = shutil.copytree(folder / "north" / "site", tmp_path / "backup")

        # The same run goes through once it has been approved.
        assert "Approved" in site("site", "approve", study, str(tomls["west"]))
        run(2)
        spent = {one: ledger(one).read()[-1]["epsilon"] for one in one_machine.SITES}
        assert spent == dict.fromkeys(one_machine.SITES, pytest.approx(8.0, rel=1e-2))
        witness = ledger("north")
        witness.read()

        # An old ledger beside newer answers is noticed; an old folder, by whoever has kept the hash of a line.
        now = folder / "north" / "site"
        newest = {path: (now / path).read_bytes() for path in ("ledger.jsonl", "ledger.head")}
        for path in newest:
            shutil.copy(backup / path, now / path)
        with pytest.raises(
            SystemExit, match="the ledger does not know: lines of the ledger are missing"
        ):
            site("ledger", "check", str(tomls["north"]))
        with pytest.raises(SystemExit, match="client north says: failed"):
            run(3)
        assert "lines of the ledger are missing" in events("north")[-1]["reason"]
        shutil.move(now / "kept.sqlite", tmp_path / "kept.sqlite")
        shutil.copy(backup / "kept.sqlite", now / "kept.sqlite")
        assert "1 entries" in site("ledger", "check", str(tomls["north"]))
        with pytest.raises(SystemExit, match="lines that were there are gone"):
            site("ledger", "check", str(tomls["north"]), "--head", witness.witness)
        shutil.move(tmp_path / "kept.sqlite", now / "kept.sqlite")
        for path, content in newest.items():
            (now / path).write_bytes(content)
        assert witness.witness in site(
            "ledger", "check", str(tomls["north"]), "--head", witness.witness
        )

        # A study that is stopped while it runs gets no further answer of this site; the run goes on without it.
        with pytest.raises(SystemExit, match="waiting for approval"):
            run(4, n_rounds=6)
        study = re.findall(r"waiting +(\w{12}): ", site("site", "studies", str(tomls["west"])))[-1]
        site("site", "approve", study, str(tomls["west"]))
        n_before = len(ledger("west").read())
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(run, 5, n_rounds=6)
            while not any(
                one["task"] == "cluster_sums" for one in ledger("west").read()[n_before:]
            ):
                assert not running.done(), running.result()
                time.sleep(0.2)
            assert "Stopped" in site("site", "stop", study, str(tomls["west"]))
            n_sent = sum(bool(one.get("sent")) for one in ledger("west").read()[n_before:])
            running.result()
    assert sum(bool(one.get("sent")) for one in ledger("west").read()[n_before:]) <= n_sent + 1
    assert events("west")[-1]["kind"] == "stopped"
    assert sum(one["task"] == "cluster_sums" for one in ledger("north").read()) == 1 + 6
    assert (folder / "result 5" / name).is_dir()
