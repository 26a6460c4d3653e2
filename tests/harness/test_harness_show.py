"""What a person reads at the end of a run."""

from __future__ import annotations

import errno
import io
import json
import os

import numpy as np
import pytest
from rich.console import Console

import flower_fedclust as fc
from flower_fedclust.checking.runs import watched_run
from flower_fedclust.cli.advice import rehearse
from flower_fedclust.harness.run import run_and_save, show_all
from flower_fedclust.results.files import write_labels

RNG = np.random.default_rng(0)
CLIENTS = [RNG.normal(size=(40, 5)) for _ in range(3)]
PUBLIC = RNG.normal(size=(30, 5))


@pytest.fixture(scope="module")
def results():
    private = fc.FedDPKMeans(3, server_data=PUBLIC, epsilon=2.0, federated_evaluation=True)
    return [fc.simulate(strategy, CLIENTS) for strategy in (private, fc.KFED(3))]


def shown(results, path):
    text = io.StringIO()
    show_all(results, "a title", path, Console(file=text), {})
    return text.getvalue()


def test_the_table_the_report_and_the_folder_are_shown(results, tmp_path):
    (tmp_path / "metrics.json").touch()
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


class Ending(fc.FedDPKMeans):
    """FedDP-KMeans that ends early."""

    def protocol(self):
        steps = super().protocol()
        yield next(steps)
        raise fc.DataError("there is nothing to cluster by.")


def run_of(strategy):
    return fc.simulate(strategy, CLIENTS)


def test_all_metrics_are_saved_together_and_nothing_is_overwritten(results, tmp_path):
    by_name = {result.strategy: result for result in results}
    _, path, failed = run_and_save(list(by_name), by_name.get, tmp_path / "out")
    assert failed == {}
    assert [summary["strategy"] for summary in json.loads((path / "metrics.json").read_text())] == [
        "feddp-kmeans",
        "k-fed",
    ]

    def never(_):
        raise AssertionError("a strategy ran although its result cannot be saved")

    with pytest.raises(FileExistsError, match="already holds something"):
        run_and_save(["k-fed"], never, tmp_path / "out")


def test_without_a_folder_one_is_named_after_the_time(results, tmp_path):
    assert run_and_save(["k-fed"], lambda _: results[1], None, parent=tmp_path)[1].parent == tmp_path


def test_a_full_disk_leaves_a_whole_result_without_labels_or_none_at_all(results, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def rows():
        yield 0
        full()

    with pytest.raises(OSError, match="No space left"):
        write_labels(tmp_path / "labels.csv", range(2), rows())
    assert not (tmp_path / "labels.csv").exists()
    monkeypatch.setattr("flower_fedclust.results.files.write_labels", full)
    kept, path, failed = run_and_save([fc.KFED(3)], lambda _: results[1], tmp_path / "small")
    loaded = fc.load(path)
    assert not loaded.labels
    assert np.array_equal(loaded.model.predict(CLIENTS[0]), kept[0].labels[0])
    with pytest.raises(OSError, match=r"without the labels of its rows: .*No space left .*; .fedclust predict. finds"):
        show_all(kept, "run", path, Console(quiet=True), failed)
    monkeypatch.setattr("flower_fedclust.results.files.write_report", full)
    _, path, failed = run_and_save([fc.KFED(3)], lambda _: results[1], tmp_path / "none")
    assert "nothing of its result can be saved in" in str(failed["k-fed"])
    assert not list(path.iterdir())


def test_a_run_that_ends_early_leaves_its_report_and_stops_no_other(tmp_path):
    ending = Ending(3, server_data=PUBLIC, epsilon=2.0)
    results, path, failed = run_and_save([ending, fc.KFED(3)], run_of, tmp_path / "out")
    assert [result.strategy for result in results] == ["k-fed"]
    assert list(failed) == [ending.name]
    report = json.loads((path / ending.name / "privacy.json").read_text())
    assert report["epsilon"] == 2.0
    assert report["composed_epsilon"] < 2.0
    assert [message["task"] for message in report["messages"]] == ["enrol", "second_moment"]
    assert report["notes"][-1] == (
        "The run ended early, in round 2 ('second_moment'). What had left the clients by then is listed here."
    )
    assert (path / ending.name / "failure.txt").read_text() == "there is nothing to cluster by.\n"
    text = io.StringIO()
    with pytest.raises(fc.DataError):
        show_all(results, "a title", path, Console(file=text), failed)
    assert f"{ending.name} failed: there is nothing to cluster by." in text.getvalue()
    assert f"Saved in {path}" in text.getvalue()


def test_replies_that_a_run_ends_without_using_are_in_its_report(tmp_path):
    """The server holds two replies when a third client is missing: what they carry has left the clients."""
    strategy = fc.FedDPKMeans(3, server_data=PUBLIC, epsilon=2.0, noise="clients")
    gone = {"2": lambda number, honest: honest() if number == 1 else 1 / 0}
    with pytest.raises(fc.ProtocolError, match="share of the noise is missing too") as caught:
        watched_run(strategy, {str(index): fc.ClientData(rows) for index, rows in enumerate(CLIENTS)}, tamper=gone)
    report = caught.value.privacy_report
    assert [message.task for message in report.messages] == ["enrol", "second_moment"]
    assert "1 client did not answer round 2 ('second_moment') as asked" in str(report)


def test_a_rehearsal_says_what_a_run_says():
    parameters = {"n_clusters": 3, "epsilon": 0.7, "delta": 1e-5, "n_rounds": 2, "privacy_unit": "client"}
    report = rehearse("feddp-kmeans", parameters, 5)
    run = fc.simulate(fc.FedDPKMeans(server_data=PUBLIC, **parameters), CLIENTS).privacy
    assert report.epsilon == run.epsilon
    assert [(m.round, m.task, m.content) for m in report.messages] == [
        (m.round, m.task, m.content) for m in run.messages
    ]
    assert [m.release.noise_multiplier for m in report.releases] == [m.release.noise_multiplier for m in run.releases]
