"""One app that finds clusters and then trains with FedAvg, in both of Flower's APIs: examples/cluster-then-train."""

import importlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import flower_fedclust as fc
from flower_fedclust.checking import LocalGrid

FOLDER = Path(__file__).parents[2] / "examples" / "cluster-then-train"


@pytest.fixture(params=["message_api", "strategy_api"])
def app(request, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module(request.param)
    for name in ("message_api", "strategy_api", "task"):
        sys.modules.pop(name, None)


@pytest.mark.long
def test_one_app_finds_clusters_and_trains_with_them(app, tmp_path, capsys):
    context = SimpleNamespace(run_config={"out": str(tmp_path / "out"), "train-rounds": 3})
    app.main = app.server._main
    app.main(LocalGrid(app.client, 4), context)
    assert fc.load(tmp_path / "out" / "private-kmeans").model.cluster_centers_.shape == (10, 64)
    found = [float(one) for one in re.findall(r"round \d: accuracy (\S+)", capsys.readouterr().out)]
    assert len(found) == 3
    assert found[-1] > 0.8


def test_the_app_looks_into_no_message_of_the_strategy():
    text = "".join(path.read_text() for path in FOLDER.glob("*.py"))
    assert "config_records" not in text
    assert (
        len([line for line in (FOLDER / "message_api.py").read_text().splitlines() if line.strip()])
        < 55
    )


def test_the_mod_answers_its_strategy_alone(monkeypatch):
    for name in ("task_id", "run_id", "node_id"):  # what a message takes from the process
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    mod = fc.client_mod(fc.PrivateKMeans.client_type, lambda context: fc.ClientData(np.eye(3)))
    passed = []
    for content in (
        RecordDict(
            {"config": ConfigRecord({"centers": [1.0]}), "arrays": ArrayRecord([np.eye(2)])}
        ),
        RecordDict({"fitins.config": ConfigRecord({"format": "csv"})}),
        RecordDict(),
    ):
        message = Message(content, 1, "train")
        assert mod(message, None, lambda one, _: passed.append(one) or one) is message
    assert len(passed) == 3
