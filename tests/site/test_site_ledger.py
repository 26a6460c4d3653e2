"""A ledger that has been changed says so; what was answered is answered again, and never otherwise."""

import json
import multiprocessing
import time

import numpy as np
import pytest
from hostile import BALL, PLAN, Server, arrays_of, gaussian, refused, site
from typer.testing import CliRunner

from flower_fedclust.cli import app
from flower_fedclust.site.budget import adaptive_epsilon, spent
from flower_fedclust.site.ledger import Ledger, LedgerError
from flower_fedclust.strategies.private_kmeans.client import PrivateKMeansClient

SUM = PrivateKMeansClient.row_sum.asked(*BALL.arrays)
NOISE = gaussian(PLAN.multipliers["row_sum"], share="row_sum")
ANNOUNCED = {"plan": PLAN.to_json()}


def entry(run="a", epsilon=0.5, data_set="table", is_claim=False, task="votes"):
    return {
        "time": "2026-01-01T00:00:00Z",
        "run": run,
        "round": 2,
        "task": task,
        "study": "=1+1",
        "strategy": "private-kmeans",
        "app": "",
        "data_set": data_set,
        "answer": "0-2",
        "asked": "0" * 64,
        "sent": "1" * 64,
        "n_bytes": 100,
        "arrays": [{"content": "votes", "reveals": "sums", "per": "client", "multiplier": 3.0}],
        "epsilon": epsilon,
        "delta": 1e-6,
        "is_claim": is_claim,
        "plan": "2" * 64,
    }


def filled(path, n_entries=5):
    ledger = Ledger(path)
    ledger.create()
    with ledger.locked():
        for index in range(n_entries):
            ledger.append(entry(run=str(index)))
    return ledger


def lines_of(ledger):
    return ledger.path.read_text().splitlines(keepends=True)


CHANGES = {
    "a figure": (lambda lines: [*lines[:2], lines[2].replace("0.5", "0.4"), *lines[3:]], "line 3"),
    "a line is gone": (lambda lines: [*lines[:1], *lines[2:]], "line 2"),
    "two are swapped": (lambda lines: [lines[1], lines[0], *lines[2:]], "line 1"),
    "one is twice": (lambda lines: [*lines, lines[-1]], "line 6"),
    "no entry": (lambda lines: [*lines, "[]\n"], "line 6"),
    "no JSON": (lambda lines: [*lines[:3], "x" + lines[3], *lines[4:]], "line 4"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_line_that_was_changed_is_found(tmp_path, change):
    ledger = filled(tmp_path / "ledger.jsonl")
    changed, where = CHANGES[change]
    ledger.path.write_text("".join(changed(lines_of(ledger))))
    with pytest.raises(LedgerError, match=where):
        Ledger(ledger.path).read()


def test_lines_that_are_taken_away_are_missed_by_who_has_read_them_and_by_who_knows_a_hash(tmp_path):
    (tmp_path / "site.toml").write_text('name = "north"\ndata = "x.csv"\n')
    ledger = filled(tmp_path / "site" / "ledger.jsonl")
    head = ledger.entries[-1]["hash"]
    checked = CliRunner().invoke(app, ["ledger", "check", str(tmp_path / "site.toml"), "--head", head])
    assert head in checked.output
    ledger.path.write_text("".join(lines_of(ledger)[:-1]))
    with pytest.raises(LedgerError, match="shorter"):
        ledger.read()
    assert Ledger(ledger.path).read()[-1]["number"] == 4
    checked = CliRunner().invoke(app, ["ledger", "check", str(tmp_path / "site.toml"), "--head", head])
    assert "no line has the hash" in str(checked.exception)
    ledger.path.unlink()
    with pytest.raises(LedgerError, match="gone"):
        ledger.read()


def test_a_line_that_was_being_written_when_the_machine_stopped_is_no_entry(tmp_path):
    ledger = filled(tmp_path / "ledger.jsonl")
    with ledger.path.open("a") as file:
        file.write('{"number":6,"ti')
    again = Ledger(ledger.path)
    with again.locked():
        assert len(again.entries) == 5
        again.append(entry(run="last"))
    assert [one["run"] for one in Ledger(ledger.path).read()] == ["0", "1", "2", "3", "4", "last"]


def write_some(path):
    ledger = Ledger(path)
    for _ in range(10):
        with ledger.locked():
            ledger.append(entry())


def test_two_processes_write_one_after_the_other(tmp_path):
    path = tmp_path / "ledger.jsonl"
    others = [multiprocessing.get_context("fork").Process(target=write_some, args=(path,)) for _ in range(2)]
    for process in others:
        process.start()
    for process in others:
        process.join()
    assert len(Ledger(path).read()) == 20


def test_ten_thousand_answers_are_checked_in_under_a_second(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda handle: None)
    filled(tmp_path / "ledger.jsonl", 10_000)
    start = time.process_time()
    assert len(Ledger(tmp_path / "ledger.jsonl").read()) == 10_000
    assert time.process_time() - start < 1.0


def test_budgets_add_up_over_the_runs_of_a_data_set():
    entries = [entry("a", 0.2), entry("a", 0.5), entry("b", 0.3, is_claim=True), entry("c", 0.7, "other")]
    entries += [entry("d", 0.0, task="evaluate")]
    total = spent(entries, "table")
    assert total.epsilon == pytest.approx(0.8)
    assert total.delta == pytest.approx(2e-6)
    assert total.claimed == pytest.approx(0.3)
    assert total.n_evaluations == 1


def test_gaussian_releases_that_a_server_chooses_one_by_one_are_as_one_and_laplace_ones_add_up():
    def of(mechanism, *multipliers):
        return [{"mechanism": mechanism, "multiplier": m, "relation": "add-or-remove"} for m in multipliers]

    one = adaptive_epsilon(of("gaussian", 3.0), 1e-6)
    assert adaptive_epsilon(of("gaussian", 3 * np.sqrt(2), 3 * np.sqrt(2)), 1e-6) == pytest.approx(one, rel=1e-6)
    assert adaptive_epsilon(of("laplace", 4.0, 4.0), 1e-6) == pytest.approx(0.5)
    assert adaptive_epsilon(of("gaussian", 3.0) + of("laplace", 2.0), 1e-6) == pytest.approx(one + 0.5)
    assert adaptive_epsilon([], 1e-6) == 0.0


def test_after_a_restart_the_same_bytes_are_sent_again_and_nothing_is_spent_twice(tmp_path):
    first = Server(site(tmp_path)).ask(SUM, releases=[NOISE], number=2, **ANNOUNCED)
    restarted = site(tmp_path)
    again = Server(restarted).ask(SUM, releases=[NOISE], number=2, **ANNOUNCED)
    assert again.parameters == first.parameters
    assert again.metrics == first.metrics
    assert len(restarted.ledger.read()) == 1


def test_a_run_that_goes_on_under_another_number_of_flowers_is_known_by_its_name(tmp_path):
    own = site(tmp_path)
    first = Server(own, 1).ask(SUM, releases=[NOISE], number=2, run="the study's run", **ANNOUNCED)
    again = Server(own, 2).ask(SUM, releases=[NOISE], number=2, run="the study's run", **ANNOUNCED)
    assert again.parameters == first.parameters
    arrays_of(Server(own, 2).ask(SUM, releases=[NOISE], number=3, run="the study's run", **ANNOUNCED))


def test_an_answer_that_is_not_kept_any_more_or_was_changed_is_not_made_again(tmp_path):
    own = site(tmp_path)
    server = Server(own)
    server.ask(SUM, releases=[NOISE], number=2, **ANNOUNCED)
    (kept,) = tmp_path.glob("runs/*/round-2.answer")
    kept.write_bytes(kept.read_bytes()[:-1] + b"x")
    assert "not kept any more" in refused(server.ask(SUM, releases=[NOISE], number=2, **ANNOUNCED), own)
    kept.unlink()
    assert "not kept any more" in refused(server.ask(SUM, releases=[NOISE], number=2, **ANNOUNCED), own)


def test_with_a_ledger_that_was_changed_a_site_answers_nothing(tmp_path):
    Server(site(tmp_path)).ask(SUM, releases=[NOISE], **ANNOUNCED)
    path = tmp_path / "ledger.jsonl"
    path.write_text(path.read_text().replace('"epsilon":0.9', '"epsilon":0.0'))
    answer = Server(site(tmp_path), 2).ask(SUM, releases=[NOISE], **ANNOUNCED)
    assert answer.metrics == {"client": "north", "failure": "failed"}


def test_nothing_of_a_site_is_for_others_to_read(tmp_path):
    folder = tmp_path / "own"
    Server(site(folder)).ask(SUM, releases=[NOISE], **ANNOUNCED)
    for path in [folder, *folder.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.fixture
def written(tmp_path):
    (tmp_path / "site.toml").write_text('name = "north"\ndata = "x.csv"\n')
    filled(tmp_path / "site" / "ledger.jsonl", 2)
    return tmp_path


def test_the_command_shows_what_is_spent(written):
    shown = CliRunner().invoke(app, ["ledger", "show", str(written / "site.toml")]).output
    assert "table: epsilon 1 at delta 2e-06 in all." in shown


def test_an_export_has_a_line_for_every_array_and_no_formula(written):
    for name in ("out.csv", "out.json"):
        done = CliRunner().invoke(app, ["ledger", "export", str(written / name), str(written / "site.toml")])
        assert done.exit_code == 0
    lines = (written / "out.csv").read_text().splitlines()
    assert len(lines) == 3
    assert "'=1+1" in lines[1]
    assert len(json.loads((written / "out.json").read_text())) == 2
    again = CliRunner().invoke(app, ["ledger", "export", str(written / "out.csv"), str(written / "site.toml")])
    assert "exists" in str(again.exception)
