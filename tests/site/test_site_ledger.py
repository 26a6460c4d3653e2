"""A ledger that has been changed says so; what was answered is answered again, and never otherwise."""

import itertools
import json
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
from hostile import BALL, ENROL, FAILED, Server, arrays_of, audit, refused, site
from typer.testing import CliRunner

from flower_fedclust.cli.commands import app
from flower_fedclust.engine.rounds import MissedRoundError
from flower_fedclust.exact.rows import Frame
from flower_fedclust.format import FORMAT
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.site.budget import spent
from flower_fedclust.site.kept import fit_res
from flower_fedclust.site.ledger import Ledger, LedgerError
from flower_fedclust.strategies.private_kmeans import PrivateKMeansClient


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
        "unit": "record",
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
    "two are swapped": (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "line 2"),
    "one is twice": (lambda lines: [*lines, lines[-1]], "line 7"),
    "no entry": (lambda lines: [*lines, "[]\n"], "line 7"),
    "no JSON": (lambda lines: [*lines[:3], "x" + lines[3], *lines[4:]], "line 4"),
    "nested without end": (lambda lines: [*lines[:3], "[" * 100_000 + "\n", *lines[4:]], "line 4"),
    "another format": (
        lambda lines: [lines[0].replace(f'"format":{FORMAT}', '"format":3'), *lines[1:]],
        "line 1: has format 3",
    ),
    "the first line is gone": (lambda lines: lines[1:], "line 1: states no known format"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_line_that_was_changed_is_found(tmp_path, change):
    ledger = filled(tmp_path / "ledger.jsonl")
    changed, where = CHANGES[change]
    ledger.path.write_text("".join(changed(lines_of(ledger))))
    with pytest.raises(LedgerError, match=where):
        Ledger(ledger.path).read()


@pytest.mark.parametrize("name", ["ledger.jsonl", "ledger.head"])
def test_every_byte_that_is_changed_and_every_end_that_is_cut_off_is_found(tmp_path, name):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.create()
    with ledger.locked():
        ledger.note(ledger.append({"run": "a"}), sent="")
    content = (tmp_path / name).read_bytes()
    assert Ledger(ledger.path).read()
    wrong = [content[:cut] for cut in range(len(content))] + [bytes(len(content))]
    for at, byte in enumerate(content):
        # A carriage return for a line's end: what splits lines may take both for one.
        wrong += [
            content[:at] + bytes([other]) + content[at + 1 :] for other in {byte ^ 1, 13} - {byte}
        ]
    for changed in wrong:
        (tmp_path / name).write_bytes(changed)
        with pytest.raises(LedgerError):
            Ledger(ledger.path).read()


def test_lines_that_are_taken_away_are_missed_by_the_head_and_by_who_knows_a_line(tmp_path):
    (tmp_path / "site.toml").write_text('name = "north"\ndata = "x.csv"\n')
    ledger = filled(tmp_path / "site" / "ledger.jsonl")
    older, witness = ledger.head.read_bytes(), ledger.witness
    with ledger.locked():
        ledger.append(entry())
        ledger.append(entry())

    def check(*more):
        return CliRunner().invoke(app, ["ledger", "check", str(tmp_path / "site.toml"), *more])

    assert ledger.witness in check("--head", witness).output
    assert ledger.witness in check("--head", witness.partition(":")[2]).output
    for other in ("1" + witness, "", "x:" + witness.partition(":")[2], "6:" + 64 * "0"):
        assert "has no line" in str(check("--head", other).exception)
    ledger.path.write_text("".join(lines_of(ledger)[:-2]))
    with pytest.raises(LedgerError, match="shorter"):
        ledger.read()
    assert "ledger.head says" in str(check().exception)
    # Both are older now: only who knows one of the lines that are gone misses it.
    ledger.head.write_bytes(older)
    assert check("--head", witness).exit_code == 0
    assert "has no line" in str(check("--head", ledger.witness).exception)
    ledger.path.unlink()
    for one in (ledger, Ledger(ledger.path)):
        with pytest.raises(LedgerError, match=r"ledger\.jsonl is gone"):
            one.read()


def test_a_head_that_is_older_by_more_than_a_line_is_found_before_anything_is_written(tmp_path):
    ledger = filled(tmp_path / "ledger.jsonl")
    for n_more in (1, 2):
        older = ledger.head.read_bytes()
        with ledger.locked():
            for _ in range(n_more):
                ledger.append(entry())
        newer = ledger.head.read_bytes()
        ledger.head.write_bytes(older)
        if n_more == 1:  # as after a machine that stopped between the two files: the line counts
            with ledger.locked():
                assert len(ledger.entries) == 6
        else:
            with pytest.raises(LedgerError, match="older than"), Ledger(ledger.path).locked():
                pass
        ledger.head.write_bytes(newer)


def test_a_line_that_was_being_written_when_the_machine_stopped_is_no_entry(tmp_path):
    ledger = filled(tmp_path / "ledger.jsonl")
    with ledger.path.open("a") as file:
        file.write('{"number":7,"ti')
    again = Ledger(ledger.path)
    with again.locked():
        assert len(again.entries) == 5
        again.append(entry(run="last"))
    assert [one["run"] for one in Ledger(ledger.path).read()] == ["0", "1", "2", "3", "4", "last"]


def test_a_ledger_is_created_once_and_by_nothing_else(tmp_path):
    ledger = Ledger(tmp_path / "new" / "ledger.jsonl")
    with pytest.raises(LedgerError, match="site --init"), ledger.locked():
        pass
    assert list(tmp_path.iterdir()) == []
    ledger.create()
    for kept, gone in ((ledger.path, ledger.head), (ledger.head, ledger.path)):
        content = gone.read_bytes()
        gone.unlink()
        with pytest.raises(LedgerError, match=f"{gone.name} is gone"):
            Ledger(ledger.path).read()
        with pytest.raises(LedgerError, match=f"{kept.name} exists"):
            Ledger(ledger.path).create()
        gone.write_bytes(content)


def test_hashes_tell_nothing_of_the_lines(tmp_path):
    one, other = (filled(tmp_path / name / "ledger.jsonl", 1) for name in ("one", "other"))
    assert one.witness != other.witness


def write_some(path):
    ledger = Ledger(path)
    for _ in range(10):
        with ledger.locked():
            ledger.append(entry())


def test_two_processes_write_one_after_the_other(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path).create()
    others = [
        multiprocessing.get_context("fork").Process(target=write_some, args=(path,))
        for _ in range(2)
    ]
    for process in others:
        process.start()
    for process in others:
        process.join()
    assert len(Ledger(path).read()) == 20


@pytest.mark.long
def test_thousands_of_answers_are_checked_in_under_a_second(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda handle: None)
    filled(tmp_path / "ledger.jsonl", 3_000)
    start = time.process_time()
    assert len(Ledger(tmp_path / "ledger.jsonl").read()) == 3_000
    assert time.process_time() - start < 0.3


def test_budgets_add_up_over_the_runs_of_a_data_set():
    entries = [
        entry("a", 0.2),
        entry("a", 0.5),
        entry("b", 0.3, is_claim=True),
        entry("c", 0.7, "other"),
    ]
    entries += [entry("d", 0.0, task="evaluate")]
    total = spent(entries, "table")
    assert total.epsilon == pytest.approx(0.8)
    assert total.delta == pytest.approx(2e-6)
    assert total.claimed == pytest.approx(0.3)
    assert total.n_evaluations == 1


def test_after_a_restart_the_same_bytes_are_sent_again_and_nothing_is_spent_twice(tmp_path):
    first = Server(site(tmp_path)).ask_sum(number=2)
    restarted = site(tmp_path)
    again = Server(restarted).ask_sum(number=2)
    assert again.parameters == first.parameters
    assert again.metrics == first.metrics
    assert len(restarted.ledger.read()) == 1


def test_a_run_that_goes_on_under_another_number_of_flowers_is_known_by_its_name(tmp_path):
    own = site(tmp_path)
    first = Server(own, 1).ask_sum(number=2, run="the study's run")
    again = Server(own, 2).ask_sum(number=2, run="the study's run")
    assert again.parameters == first.parameters
    arrays_of(Server(own, 2).ask_sum(number=3, run="the study's run"))


def test_an_answer_that_is_not_kept_any_more_or_was_changed_is_not_made_again(tmp_path):
    own = site(tmp_path)
    server = Server(own)
    server.ask_sum(number=2)
    (place,) = {place for place, name, _ in own.kept.store.names() if name == "round-2"}
    content = own.kept.store.get(place, "round-2")
    for at in range(0, len(content), 7):
        with own.kept.store.changing():
            own.kept.store.put(
                place, "round-2", content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
            )
        assert "no longer kept" in refused(server.ask_sum(number=2), own)
    with pytest.raises(LedgerError, match=r"round-2\) is not what the ledger says"):
        own.check_kept(whole=True)
    with own.kept.store.changing():
        own.kept.store.forget(place, "round-2")
    assert "no longer kept" in refused(server.ask_sum(number=2), own)


def states(folder, monkeypatch):
    """Answer three rounds; return the last answer, and the files as they were without a ledger and after every line."""
    found = []

    def look():
        paths = [
            path
            for path in folder.rglob("*")
            if path.is_file() and path.suffix in (".jsonl", ".head", ".sqlite")
        ]
        found.append(
            {
                path.relative_to(folder): path.read_bytes()
                for path in paths
                if path.name != "audit.jsonl"
            }
        )

    write = Ledger._write

    def written(*given, **more):
        line = write(*given, **more)
        look()
        return line

    look()
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_write", written)
        server = Server(site(folder))
        for number in (2, 3, 4):
            last = server.ask_sum(number=number)
    assert len(found) == 1 + 1 + 2 * 3
    return last, found


def test_where_ledger_head_and_answers_are_of_different_times_nothing_is_answered_anew(
    tmp_path, monkeypatch
):
    """With one of the three as it is now, and the others from any time before, or gone."""
    last, found = states(tmp_path / "now", monkeypatch)
    now = len(found) - 1
    for times in itertools.product(range(now + 1), repeat=3):
        if now not in times:
            continue
        folder = tmp_path / "-".join(map(str, times))
        for suffix, at in zip((".jsonl", ".head", ".sqlite"), times, strict=True):
            for path, content in found[at].items():
                if path.suffix == suffix:
                    (folder / path).parent.mkdir(parents=True, exist_ok=True)
                    (folder / path).write_bytes(content)
        answer = Server(site(folder, init=False)).ask_sum(number=4)
        if "failure" not in answer.metrics:
            assert answer.parameters == last.parameters, times
            assert times[0] == times[2] == now
        other = Server(site(folder, init=False), 2).ask_sum()
        assert other.metrics["failure"] in ("refused", "failed"), times
        assert other.parameters.tensors == []
        with pytest.raises(LedgerError):
            site(folder, init=False).create_ledger()


def test_what_all_is_older_together_cannot_be_known_but_by_a_witness(tmp_path, monkeypatch):
    last, found = states(tmp_path / "now", monkeypatch)
    for path, content in found[3].items():
        (tmp_path / "older" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "older" / path).write_bytes(content)
    older = site(tmp_path / "older", init=False)
    again = Server(older).ask_sum(number=4)
    assert again.parameters != last.parameters
    assert last.metrics["ledger"].startswith("7:")
    assert not older.ledger.has(last.metrics["ledger"])


BROKEN = {
    "deleted": lambda path: path.unlink(),
    "emptied": lambda path: path.write_bytes(b""),
    "cut at a line": lambda path: path.write_bytes(
        b"".join(path.read_bytes().splitlines(keepends=True)[:-1])
    ),
    "cut within the last line": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "filled with NUL": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "a smaller epsilon": lambda path: path.write_text(
        path.read_text().replace('"epsilon":0.9', '"epsilon":0.0')
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_with_a_ledger_that_was_changed_a_site_answers_nothing(tmp_path, how):
    Server(site(tmp_path)).ask_sum()
    BROKEN[how](tmp_path / "ledger.jsonl")
    own = site(tmp_path)
    for server in (Server(own), Server(own, 2)):
        answer = server.ask_sum()
        assert answer.metrics == FAILED
        assert "ledger.jsonl" in audit(own)[-1]["reason"]
        assert server.evaluate(np.zeros((2, 3))).metrics == FAILED
        assert server.send([], ENROL).metrics == FAILED


def test_a_site_without_a_ledger_answers_nothing_and_begins_none(tmp_path):
    own = site(tmp_path / "own", init=False)
    assert Server(own).ask_sum().metrics == FAILED
    assert "site --init" in audit(own)[-1]["reason"]
    assert [path.name for path in own.folder.iterdir() if not path.name.endswith(".lock")] == [
        "audit.jsonl"
    ]


class Killed(BaseException):
    """The end of a process, of which nothing that the site runs hears."""


def ask(own, **more):
    return Server(own).ask_sum(number=2, **more)


def test_what_is_computed_was_charged_before(tmp_path, monkeypatch):
    own, seen = site(tmp_path), []

    def add_noise(arrays, *more, **options):
        seen.append([entry["epsilon"] for entry in Ledger(own.ledger.path).read()])
        raise ValueError("patient 7 has a fever of 41.3")

    monkeypatch.setattr("flower_fedclust.engine.client.add_noise", add_noise)
    assert ask(own).metrics == FAILED
    assert seen == [[pytest.approx(1.0, rel=1e-3)]]
    monkeypatch.undo()
    # What fails now and then is no coin that a server may throw again.
    for again in (own, site(tmp_path)):
        assert ask(again).metrics == FAILED
    assert "in other runs" in refused(Server(own, 2).ask_sum(), own)


def test_every_failure_after_the_charge_is_the_same_message(tmp_path, monkeypatch):
    own, answers = site(tmp_path, epsilon_per_run=50, epsilon=500, delta=1e-4), []
    errors = [
        ValueError("x" * 999),
        DataError("row 7 of 'age'"),
        MissedRoundError("x"),
        MemoryError(),
        OSError(28),
    ]
    for run, error in enumerate(errors, start=1):
        with monkeypatch.context() as patch:
            patch.setattr(
                "flower_fedclust.engine.client.add_noise",
                lambda *_, error=error, **__: throw(error),
            )
            answers.append(Server(own, run).ask_sum())
        answers.append(Server(own, run).ask_sum())
    monkeypatch.setattr("flower_fedclust.site.app.answer_to_bytes", lambda _: throw(OSError(28)))
    answers.append(Server(own, 99).ask_sum())
    assert all(answer == fit_res([], FAILED) for answer in answers)
    assert len(own.ledger.entries) == len(errors) + 1


def throw(error):
    raise error


@pytest.mark.parametrize("moment", ["add_noise", "sent_arrays"])
def test_a_computation_that_is_killed_counts_and_is_begun_once_more_and_no_third_time(
    tmp_path, monkeypatch, moment
):
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(
                f"flower_fedclust.engine.client.{moment}", lambda *_, **__: throw(Killed())
            )
            with pytest.raises(Killed):
                ask(site(tmp_path))
        (charged,) = Ledger(tmp_path / "ledger.jsonl").read()
        assert charged["epsilon"] == pytest.approx(1.0, rel=1e-3)
    assert charged["begun"] == 2
    assert ask(site(tmp_path)).metrics == FAILED
    own = site(tmp_path)
    assert "in other runs" in refused(Server(own, 2).ask_sum(), own)


def test_after_a_kill_the_same_question_is_answered_by_the_same_policy_alone(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("flower_fedclust.engine.client.add_noise", lambda *_, **__: throw(Killed()))
        with pytest.raises(Killed):
            ask(site(tmp_path))
    other = PrivateKMeansClient.row_sum.asked(frame=Frame(np.ones(3), BALL.radius))
    own = site(tmp_path)
    assert "to another question" in refused(Server(own).ask_sum(question=other, number=2), own)
    own = site(tmp_path, delta_per_run=5e-7, epsilon_per_run=1.2, epsilon=1.2)
    assert "charged before" in refused(ask(own), own)
    own = site(tmp_path)
    arrays_of(ask(own))
    assert [entry["begun"] for entry in own.ledger.read()] == [2]


def test_an_answer_that_was_written_when_the_process_was_killed_is_neither_sent_nor_drawn_again(
    tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "note", lambda *_, **__: throw(Killed()))
        with pytest.raises(Killed):
            ask(site(tmp_path))
    assert [name for _, name, _ in site(tmp_path).kept.store.names() if name == "round-2"] == [
        "round-2"
    ]
    for _ in range(3):
        assert ask(site(tmp_path)).metrics == FAILED


def test_evaluations_and_enrolments_are_charged_before_as_well(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(
            "flower_fedclust.engine.client.count_table", lambda *_: throw(ValueError("41.3"))
        )
        patch.setattr(PrivateKMeansClient, "_columns", lambda *_: throw(ValueError("41.3")))
        own = site(tmp_path, evaluations=1, labels=np.zeros(60))
        assert Server(own).evaluate(np.zeros((2, 3))).metrics == FAILED
        for _ in range(3):
            assert Server(own).send([], ENROL).metrics == FAILED
    assert [(entry["task"], entry["sent"]) for entry in own.ledger.entries] == [
        ("evaluate", ""),
        ("enrol", ""),
    ]
    assert "evaluation number 2" in refused(Server(own, 2).evaluate(np.zeros((2, 3))), own)
    assert Server(own).evaluate(np.zeros((2, 3))).metrics == FAILED
    # This tells no more than the site's columns.
    assert Server(own).send([], ENROL).metrics["columns"] == "3"
    assert own.ledger.entries[1]["sent"]
    n_lines = len(lines_of(own.ledger))
    for number in range(1, 9):
        Server(own).send([], ENROL | {"round": number})
    assert len(lines_of(own.ledger)) == n_lines


def test_a_reply_has_the_last_line_of_the_ledger_and_a_failure_has_not(tmp_path):
    own = site(tmp_path)
    answer = ask(own)
    assert answer.metrics["ledger"] == own.ledger.witness == own.ledger.head.read_text().strip()
    assert "ledger" not in Server(own, 2).ask_sum().metrics


def test_nothing_of_a_site_is_for_others_to_read(tmp_path):
    folder = tmp_path / "own"
    Server(site(folder)).ask_sum()
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
        done = CliRunner().invoke(
            app, ["ledger", "export", str(written / name), str(written / "site.toml")]
        )
        assert done.exit_code == 0
    lines = (written / "out.csv").read_text().splitlines()
    assert len(lines) == 3
    assert "'=1+1" in lines[1]
    assert len(json.loads((written / "out.json").read_text())) == 2
    again = CliRunner().invoke(
        app, ["ledger", "export", str(written / "out.csv"), str(written / "site.toml")]
    )
    assert "exists" in str(again.exception)


@pytest.mark.parametrize("days", [-4000, -2, 2, 40, 4000])
def test_a_clock_that_jumps_neither_draws_noise_again_nor_gives_back_what_was_spent(
    tmp_path, monkeypatch, days
):
    server = Server(site(tmp_path))
    first = server.ask_sum(number=2)
    arrays_of(server.ask_sum(number=3))
    now = time.time
    monkeypatch.setattr("time.time", lambda: now() + 86400 * days)
    server.site = site(tmp_path)
    assert Server(server.site, 9).send([], ENROL).metrics["columns"] == "3"  # forgets what is old
    again = server.ask_sum(number=2)
    if days < 30:
        assert again.parameters == first.parameters
    else:
        assert "no longer kept" in refused(again, server.site)
    arrays_of(server.ask_sum(number=4))
    assert "asks for more" in refused(server.ask_sum(number=5), server.site)
    assert "in other runs" in refused(Server(server.site, 10).ask_sum(), server.site)
    assert spent(server.site.ledger.read(), server.site.data_set).epsilon == pytest.approx(
        1.0, rel=1e-3
    )


def _killed(folder):
    def end(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flower_fedclust.engine.client.add_noise", end)
        ask(site(folder))


def test_a_process_that_is_killed_within_an_answer_leaves_no_lock_and_a_charge(tmp_path):
    site(tmp_path)
    process = multiprocessing.get_context("fork").Process(target=_killed, args=(tmp_path,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    (charged,) = Ledger(tmp_path / "ledger.jsonl").read()
    assert charged["epsilon"] == pytest.approx(1.0, rel=1e-3)
    assert "sent" not in charged
    own = site(tmp_path)
    arrays_of(ask(own))
    assert "in other runs" in refused(Server(own, 2).ask_sum(), own)
