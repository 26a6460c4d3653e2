"""What is saved where a run ends before its time, and how the same command goes on."""

import json
import os
import stat

import numpy as np
import pytest
from typer.testing import CliRunner

import flower_fedclust as fc
from flower_fedclust.cli.commands import app
from flower_fedclust.engine import Journal
from flower_fedclust.engine.inline import _InlineClient
from flower_fedclust.harness.run import run_and_save

ROWS = [np.random.default_rng(index).normal(size=(20, 2)) for index in range(3)]


def simulated(strategy):
    return fc.simulate(strategy, ROWS, seed=0)


def interrupted_in(monkeypatch, number):
    """Have somebody press Ctrl-C when a round has just been kept."""
    keep = Journal.keep

    def last(self, record):
        keep(self, record)
        if record.number == number:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "keep", last)


def test_ctrl_c_leaves_the_report_and_the_results_that_were_there_and_the_same_call_goes_on(tmp_path, monkeypatch):
    made = [fc.KFED(2), fc.FederatedKMeans(2)]
    out, journal = tmp_path / "out", tmp_path / "journal"
    with monkeypatch.context() as patched:
        interrupted_in(patched, 4)
        with pytest.raises(KeyboardInterrupt):
            run_and_save(made, simulated, out, journal=journal)
    assert (out / "k-fed" / "model.npz").exists()
    assert "round 4 ('reach')" in (out / "federated-kmeans" / "privacy.txt").read_text(encoding="utf-8")
    assert (out / "federated-kmeans" / "failure.txt").read_text(encoding="utf-8") == "KeyboardInterrupt\n"

    results, _, failed = run_and_save(made, simulated, out, journal=journal)
    assert failed == {}
    assert not (out / "federated-kmeans" / "failure.txt").exists()
    whole = simulated(fc.FederatedKMeans(2))
    np.testing.assert_array_equal(results[1].model.cluster_centers_, whole.model.cluster_centers_)
    assert results[1].privacy.messages == whole.privacy.messages
    assert len(json.loads((out / "metrics.json").read_text(encoding="utf-8"))) == 2


def test_a_folder_that_cannot_be_written_is_refused_before_the_first_round(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for out in ("file/out", "dangling"):
        with pytest.raises(PermissionError, match="cannot be written; name another folder for the results"):
            run_and_save([fc.KFED(2)], lambda _: pytest.fail("it ran"), tmp_path / out)
    with pytest.raises(PermissionError, match="cannot be written; name another folder for the journal"):
        run_and_save([fc.KFED(2)], lambda _: pytest.fail("it ran"), tmp_path / "out", journal=tmp_path / "file")


def test_a_journal_replaces_no_result_of_another_run(tmp_path):
    run_and_save([fc.KFED(2)], simulated, tmp_path / "out")
    run_and_save([fc.KFED(2)], simulated, tmp_path / "second", journal=tmp_path / "known")
    for journal in ("new", "known"):
        with pytest.raises(FileExistsError, match="already holds something"):
            run_and_save([fc.KFED(2)], lambda _: pytest.fail("it ran"), tmp_path / "out", journal=tmp_path / journal)
    assert fc.load(tmp_path / "out" / "k-fed").strategy == "k-fed"


@pytest.mark.skipif(os.name == "nt", reason="folders have other rights there")
def test_results_and_journals_are_their_owners_alone(tmp_path):
    run_and_save([fc.KFED(2)], simulated, tmp_path / "out", journal=tmp_path / "journal")
    for folder in ("out", "journal/k-fed"):
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == 0o700


def test_the_command_goes_on_from_its_journal(tmp_path, monkeypatch):
    command = ["run", "federated-kmeans", "--dataset", "iris", "--n-clusters", "3", "--n-clients", "3", "--seed", "1"]
    command += ["--journal", str(tmp_path / "journal"), "--out", str(tmp_path / "out")]
    with monkeypatch.context() as patched:
        interrupted_in(patched, 4)
        assert CliRunner().invoke(app, command).exit_code != 0
    asked, fit = [], _InlineClient.fit

    def listening(self, ins, timeout, group_id):
        asked.append(ins.config["round"])
        return fit(self, ins, timeout, group_id)

    monkeypatch.setattr(_InlineClient, "fit", listening)
    assert CliRunner().invoke(app, command).exit_code == 0
    assert min(number for number in asked if number > 1) == 5
    assert (tmp_path / "out" / "federated-kmeans" / "model.npz").exists()
