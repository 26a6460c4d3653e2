"""What a person reads at the end of a run."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from rich.console import Console

import flower_fedclust as fc
from flower_fedclust.lab.rehearsal import rehearse
from flower_fedclust.lab.show import save_all, show_all

RNG = np.random.default_rng(0)
CLIENTS = [RNG.normal(size=(40, 5)) for _ in range(3)]
PUBLIC = RNG.normal(size=(30, 5))


@pytest.fixture(scope="module")
def results():
    private = fc.FedDPKMeans(3, server_data=PUBLIC, epsilon=2.0, federated_evaluation=True)
    return [fc.simulate(strategy, CLIENTS) for strategy in (private, fc.KFED(3))]


def shown(results, path):
    text = io.StringIO()
    show_all(results, "a title", path, Console(file=text))
    return text.getvalue()


def test_the_table_the_report_and_the_folder_are_shown(results, tmp_path):
    text = shown(results, tmp_path)
    assert "a title" in text
    assert "Privacy report of feddp-kmeans" in text
    assert "k-fed: None." in text
    assert text.rstrip().endswith(f"Saved in {tmp_path}")


def test_an_epsilon_that_does_not_cover_the_whole_run_has_a_star(results, tmp_path):
    (row,) = [line for line in shown(results, tmp_path).splitlines() if "│ feddp-kmeans" in line]
    assert "2*" in row


def test_a_log_without_a_width_does_not_cut_the_table(results, tmp_path):
    assert "…" not in shown(results, tmp_path)


def test_all_metrics_are_saved_together_and_nothing_is_overwritten(results, tmp_path):
    path = save_all(results, tmp_path / "out")
    assert [summary["strategy"] for summary in json.loads((path / "metrics.json").read_text())] == [
        "feddp-kmeans",
        "k-fed",
    ]
    with pytest.raises(FileExistsError, match="already holds something"):
        save_all(results, tmp_path / "out")


def test_without_a_folder_one_is_named_after_the_time(results, tmp_path):
    assert save_all(results, None, parent=tmp_path).parent == tmp_path


def test_a_rehearsal_says_what_a_run_says():
    parameters = {"n_clusters": 3, "epsilon": 0.7, "delta": 1e-5, "n_rounds": 2, "privacy_unit": "client"}
    report = rehearse("feddp-kmeans", parameters, 5)
    run = fc.simulate(fc.FedDPKMeans(server_data=PUBLIC, **parameters), CLIENTS).privacy
    assert report.epsilon == run.epsilon
    assert [(m.round, m.task, m.content) for m in report.messages] == [
        (m.round, m.task, m.content) for m in run.messages
    ]
    assert [m.release.noise_multiplier for m in report.releases] == [m.release.noise_multiplier for m in run.releases]
