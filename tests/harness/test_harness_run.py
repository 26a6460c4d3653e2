"""What a person reads at the end of a run, what is saved if it ends early, and how the same command goes on."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import stat

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import flower_fedclust as fc
from flower_fedclust.checking.runs import watched_run
from flower_fedclust.cli.advice import rehearse
from flower_fedclust.cli.commands import app
from flower_fedclust.engine import Journal
from flower_fedclust.engine.shards import Shard
from flower_fedclust.harness.run import run_and_save, show_all
from flower_fedclust.results.files import write_labels

RNG = np.random.default_rng(0)
CLIENTS = [RNG.normal(size=(40, 5)) for _ in range(3)]
PUBLIC = RNG.normal(size=(30, 5))


@pytest.fixture(scope="module")
def results():
    private = fc.FedDPKMeans(3, server_data=PUBLIC, epsilon=2.0, federated_evaluation=True)
    return [fc.simulate(strategy, CLIENTS) for strategy in (private, fc.KFED(3))]


def simulated(strategy):
    return fc.simulate(strategy, CLIENTS, seed=0)


def never(_):
    pytest.fail("it ran")


def shown(results, path, failed=()):
    text = io.StringIO()
    try:
        show_all(results, "a title", path, Console(file=text), dict(failed))
    finally:
        shown.text = text.getvalue()
    return shown.text


def test_the_table_the_report_and_the_folder_are_shown(results, tmp_path):
    (tmp_path / "metrics.json").touch()
    text = shown(results, tmp_path)
    assert "a title" in text
    assert "Privacy report of feddp-kmeans" in text
    assert "k-fed: None." in text
    assert text.rstrip().endswith(f"Saved in {tmp_path}")
    assert "…" not in text  # a log without a width does not cut the table
    (row,) = [line for line in text.splitlines() if "│ feddp-kmeans" in line]
    assert "2*" in row  # its epsilon does not cover the whole run


def test_all_metrics_are_saved_together_and_nothing_is_overwritten(results, tmp_path):
    by_name = {result.strategy: result for result in results}
    _, path, failed = run_and_save(list(by_name), by_name.get, tmp_path / "out")
    assert failed == {}
    metrics = json.loads((path / "metrics.json").read_text())
    assert [summary["strategy"] for summary in metrics] == ["feddp-kmeans", "k-fed"]
    with pytest.raises(FileExistsError):
        run_and_save(["k-fed"], never, tmp_path / "out")
    for journal in ("new", "known"):
        run_and_save(
            [fc.KFED(2)], simulated, tmp_path / f"second-{journal}", journal=tmp_path / "known"
        )
        with pytest.raises(FileExistsError):  # a journal replaces no result of another run
            run_and_save([fc.KFED(2)], never, tmp_path / "out", journal=tmp_path / journal)
    assert (
        run_and_save(["k-fed"], lambda _: results[1], None, parent=tmp_path / "p")[1].parent
        == tmp_path / "p"
    )


def test_a_full_disk_leaves_a_whole_result_without_labels_or_none_at_all(
    results, tmp_path, monkeypatch
):
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
    with pytest.raises(OSError, match="fedclust predict"):
        shown(kept, path, failed)
    monkeypatch.setattr("flower_fedclust.results.files.write_report", full)
    _, path, failed = run_and_save([fc.KFED(3)], lambda _: results[1], tmp_path / "none")
    assert "nothing of its result can be saved" in str(failed["k-fed"])
    assert not list(path.iterdir())


def content_of(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def in_other_process(out, command="run"):
    """Run another command with the same --out to its end, while this one is running."""
    given = {
        "run": "run k-fed --dataset iris --n-clients 3 --n-clusters 2",
        "compare": "compare --strategies k-fed --datasets iris --n-clients 3 --seeds 1 --jobs 1",
    }[command]
    done = CliRunner().invoke(app, [*given.split(), "--out", str(out)])
    assert done.exit_code == 0, done.output
    return content_of(out)


@pytest.mark.parametrize("journal", [None, "journal"])
@pytest.mark.parametrize("command", ["run", "compare"])
def test_two_runs_with_one_folder_keep_both_results_and_the_second_says_where_it_is(
    tmp_path, command, journal
):
    """The second run removed the first one's folder, and its own epsilon was spent for nothing."""
    out, theirs = tmp_path / "out", {}

    def run(strategy):
        found = simulated(strategy)
        theirs.update(in_other_process(out, command))
        return found

    journal = journal and tmp_path / journal
    with pytest.warns(RuntimeWarning, match=r"its results are in .*out-2"):
        results, path, failed = run_and_save([fc.KFED(2)], run, out, journal=journal)
    assert not failed
    assert path == tmp_path / "out-2"
    assert theirs
    assert content_of(out) == theirs
    assert np.array_equal(fc.load(path).model.cluster_centers_, results[0].model.cluster_centers_)
    # A run that goes on finds its own folder, and not the one that it was told.
    if journal is not None:
        _, path, _ = run_and_save([fc.KFED(2)], simulated, out, journal=journal)
        assert path == tmp_path / "out-2"
        assert len(list(path.glob("k-fed*"))) == 1
        assert content_of(out) == theirs


def test_a_run_that_goes_on_takes_no_folder_that_another_has_filled_in_the_meantime(
    tmp_path, monkeypatch
):
    out, journal = tmp_path / "out", tmp_path / "journal"
    with monkeypatch.context() as patched:
        interrupted_in(patched, 4)
        with pytest.raises(KeyboardInterrupt):
            run_and_save([fc.FederatedKMeans(2)], simulated, out, journal=journal)
    shutil.rmtree(out)
    theirs = in_other_process(out)
    with pytest.raises(FileExistsError):
        run_and_save([fc.FederatedKMeans(2)], never, out, journal=journal)
    _, path, failed = run_and_save(
        [fc.FederatedKMeans(2)], simulated, tmp_path / "other", journal=journal
    )
    assert (path, failed) == (tmp_path / "other", {})
    assert content_of(out) == theirs


def test_two_results_that_are_saved_into_one_folder_at_once_are_both_whole(
    results, tmp_path, monkeypatch
):
    """Both had found it empty: their files were mixed, and one that failed removed the files of the other."""
    from flower_fedclust.results import files

    (tmp_path / "out").mkdir()
    writing, theirs = files._write_files, {}

    def slow(result, path):
        monkeypatch.setattr(files, "_write_files", writing)
        with pytest.raises(FileExistsError, match="so that nothing is lost"):
            results[0].save(tmp_path / "out")
        (tmp_path / "out" / "notes.txt").write_text("of a person", encoding="utf-8")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "_write_files", slow)
    with pytest.raises(OSError, match="No space left"):
        results[1].save(tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes.txt"]
    theirs = content_of(tmp_path / "out")
    with pytest.raises(FileExistsError):
        results[1].save(tmp_path / "out")
    assert content_of(tmp_path / "out") == theirs


def test_a_saved_model_is_not_overwritten(results, tmp_path):
    results[0].model.save(tmp_path)
    before = content_of(tmp_path)
    with pytest.raises(FileExistsError, match="already holds a model"):
        results[1].model.save(tmp_path)
    assert content_of(tmp_path) == before


class Ending(fc.FedDPKMeans):
    """FedDP-KMeans that ends early."""

    def protocol(self):
        steps = super().protocol()
        yield next(steps)
        raise fc.DataError("there is nothing to cluster by.")


def test_a_run_that_ends_early_leaves_its_report_and_stops_no_other(tmp_path):
    ending = Ending(3, server_data=PUBLIC, epsilon=2.0)
    results, path, failed = run_and_save([ending, fc.KFED(3)], simulated, tmp_path / "out")
    assert [result.strategy for result in results] == ["k-fed"]
    assert list(failed) == [ending.name]
    report = json.loads((path / ending.name / "privacy.json").read_text())
    assert report["epsilon"] == 2.0
    assert report["composed_epsilon"] < 2.0
    assert [message["task"] for message in report["messages"]] == ["enrol", "second_moment"]
    assert "round 2 ('second_moment')" in report["notes"][-1]
    assert (path / ending.name / "failure.txt").read_text() == "there is nothing to cluster by.\n"
    with pytest.raises(fc.DataError):
        shown(results, path, failed)
    assert f"{ending.name} failed: there is nothing to cluster by." in shown.text
    assert f"Saved in {path}" in shown.text


def test_replies_that_a_run_ends_without_using_are_in_its_report():
    """The server holds two replies when a third client is missing: what they carry has left the clients."""
    strategy = fc.FedDPKMeans(3, server_data=PUBLIC, epsilon=2.0, noise="clients")
    gone = {"2": lambda number, honest: honest() if number == 1 else 1 / 0}
    with pytest.raises(fc.ProtocolError, match="share of the noise is missing too") as caught:
        watched_run(
            strategy,
            {str(index): fc.ClientData(rows) for index, rows in enumerate(CLIENTS)},
            tamper=gone,
        )
    report = caught.value.privacy_report
    assert [message.task for message in report.messages] == ["enrol", "second_moment"]
    assert "1 client did not answer round 2 ('second_moment') as asked" in str(report)


def test_a_rehearsal_says_what_a_run_says():
    parameters = {
        "n_clusters": 3,
        "epsilon": 0.7,
        "delta": 1e-5,
        "n_rounds": 2,
        "privacy_unit": "client",
    }
    report = rehearse("feddp-kmeans", parameters, 5)
    run = fc.simulate(fc.FedDPKMeans(server_data=PUBLIC, **parameters), CLIENTS).privacy
    assert report.epsilon == run.epsilon
    found = [
        [(one.round, one.task, one.content) for one in known.messages] for known in (report, run)
    ]
    assert found[0] == found[1]
    noise = [[one.release.noise_multiplier for one in known.releases] for known in (report, run)]
    assert noise[0] == noise[1]


def interrupted_in(monkeypatch, number):
    """Have somebody press Ctrl-C when a round has just been kept."""
    keep = Journal.keep

    def last(self, record):
        keep(self, record)
        if record.number == number:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "keep", last)


def test_ctrl_c_leaves_the_report_and_the_results_that_were_there_and_the_same_call_goes_on(
    tmp_path, monkeypatch
):
    made = [fc.KFED(2), fc.FederatedKMeans(2)]
    out, journal = tmp_path / "out", tmp_path / "journal"
    with monkeypatch.context() as patched:
        interrupted_in(patched, 4)
        with pytest.raises(KeyboardInterrupt):
            run_and_save(made, simulated, out, journal=journal)
    assert (out / "k-fed" / "model.npz").exists()
    assert "round 4 ('reach')" in (out / "federated-kmeans" / "privacy.txt").read_text(
        encoding="utf-8"
    )
    assert (out / "federated-kmeans" / "failure.txt").read_text(
        encoding="utf-8"
    ) == "KeyboardInterrupt\n"
    if os.name != "nt":  # results and journals are their owner's alone
        for folder in (out, journal / "k-fed"):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700

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
    for out, journal in (("file/out", None), ("dangling", None), ("out", tmp_path / "file")):
        with pytest.raises(PermissionError):
            run_and_save([fc.KFED(2)], never, tmp_path / out, journal=journal)


def test_the_command_goes_on_from_its_journal(tmp_path, monkeypatch):
    command = [
        "run",
        "federated-kmeans",
        "--dataset",
        "iris",
        "--n-clusters",
        "3",
        "--n-clients",
        "3",
        "--seed",
        "1",
    ]
    command += ["--journal", str(tmp_path / "journal"), "--out", str(tmp_path / "out")]
    with monkeypatch.context() as patched:
        interrupted_in(patched, 4)
        assert CliRunner().invoke(app, command).exit_code != 0
    asked, together = [], Shard.together

    def listening(self, ins, members, **options):
        asked.append(ins.config["round"])
        return together(self, ins, members, **options)

    monkeypatch.setattr(Shard, "together", listening)
    assert CliRunner().invoke(app, command).exit_code == 0
    assert min(number for number in asked if number > 1) == 5
    assert (tmp_path / "out" / "federated-kmeans" / "model.npz").exists()


def test_a_report_that_the_disk_has_no_room_for_is_printed_and_the_error_kept(
    results, tmp_path, capsys, monkeypatch
):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "journal.sqlite")
    full.privacy_report = results[0].privacy

    def run(_):
        raise full

    def write(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("flower_fedclust.harness.run.write_report", write)
    _, _, failed = run_and_save([fc.KFED(3)], run, tmp_path / "out")
    assert failed == {"k-fed": full}
    said = capsys.readouterr().out
    assert "cannot be saved ([Errno 28] No space left on device). It is:" in said
    assert str(results[0].privacy) in said
