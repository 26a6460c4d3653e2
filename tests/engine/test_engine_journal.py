"""A run that was interrupted goes on to the same bits."""

import os
import shutil
import signal
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine_toys import Toy, ToyClient, drive, on_grid, paid, proxies_of, raising, toy_answers

import flower_fedclust as fc
from flower_fedclust.engine import ProtocolError, Sent, Sum
from flower_fedclust.engine.journal import Journal
from flower_fedclust.engine.shards import Shard
from flower_fedclust.engine.store import APPLICATION, Store

ROWS = [np.random.default_rng(index).normal(size=(30 + index, 3)) for index in range(4)]
PUBLIC = np.random.default_rng(9).normal(size=(12, 3))

STRATEGIES = {
    "without a seed of its own": lambda: fc.PrivateFederatedKMeans(
        3, epsilon=8.0, max_norm=4.0, n_rounds=3
    ),
    "remembering": lambda: fc.DPFedC(2, n_rounds=4, random_state=0),
    "with the server's noise": lambda: fc.FedDPKMeans(
        3, server_data=PUBLIC, epsilon=8.0, n_rounds=2
    ),
    "with kept rows": lambda: fc.FedSCSums(
        2, epsilon=8.0, max_norm=4.0, n_rounds=2, random_state=0
    ),
    "by client": lambda: fc.FedSC(2, n_rounds=1, n_atoms=4),
}


def short():
    """Return a strategy of few rounds: it has its first centers."""
    return fc.FederatedKMeans(3, init=ROWS[0][:3], n_rounds=4)


class Killed(BaseException):
    """What no code catches."""


def killed_after(monkeypatch, number):
    """Have the process end, as far as this run knows, when a round was kept."""
    keep = Journal.keep

    def last(self, record):
        keep(self, record)
        if record.number == number:
            raise Killed

    monkeypatch.setattr(Journal, "keep", last)


def bits(result):
    return [array.tobytes() for array in [*result.model.to_arrays(), *result.labels]]


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_run_that_ends_after_any_round_goes_on_to_the_same_bits_and_the_same_report(
    name, tmp_path, monkeypatch
):
    whole = fc.simulate(STRATEGIES[name](), ROWS, seed=4)
    n_rounds = whole.summary()["rounds"]
    for number in range(1, n_rounds + 1):
        with monkeypatch.context() as patched:
            killed_after(patched, number)
            with pytest.raises(Killed):
                fc.simulate(STRATEGIES[name](), ROWS, seed=4, journal=tmp_path / "j")
    again = fc.simulate(STRATEGIES[name](), ROWS, seed=4, journal=tmp_path / "j")
    assert bits(again) == bits(whole)
    assert again.privacy.messages == whole.privacy.messages
    assert again.traffic == whole.traffic
    assert again.failures == whole.failures


def run_in_a_process(journal, place, number=0):
    """Run it in a process of its own, which kills itself in the middle of a round; return how that ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        fit = Shard.fit

        def dying(self, index, ins):
            if ins.config["round"] == number and index == 2 and ins.config["task"] != "enrol":
                os.kill(os.getpid(), signal.SIGKILL)
            return fit(self, index, ins)

        Shard.fit = dying
        np.savez(
            place,
            *fc.simulate(
                fc.DPFedC(2, n_rounds=4, epsilon=8.0, max_norm=9.0), ROWS, seed=1, journal=journal
            ).labels,
        )
        code = 0
    finally:
        os._exit(code)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_that_is_killed_in_every_round_of_five_goes_on_to_the_same_labels(tmp_path):
    journal, found, whole = tmp_path / "journal", tmp_path / "found.npz", tmp_path / "whole.npz"
    assert [run_in_a_process(journal, found, number) for number in (2, 3, 4, 5)] == 4 * [
        -signal.SIGKILL
    ]
    assert run_in_a_process(journal, found) == run_in_a_process(None, whole) == 0
    with np.load(found) as after, np.load(whole) as expected:
        for name in expected.files:
            np.testing.assert_array_equal(after[name], expected[name])


@pytest.mark.parametrize(
    "name", ["without a seed of its own", pytest.param("remembering", marks=pytest.mark.long)]
)
def test_what_was_being_written_when_the_machine_stopped_is_asked_again(
    name, tmp_path, monkeypatch
):
    whole, keep = fc.simulate(STRATEGIES[name](), ROWS, seed=4), Journal.keep

    def kept(self, record):
        log = self.folder / "journal.sqlite-wal"
        before = log.stat().st_size if log.exists() else 0
        keep(self, record)
        if record.number == 3:
            shutil.copytree(self.folder, tmp_path / "complete")
            for index, size in enumerate(
                np.linspace(before, log.stat().st_size - 1, 5).astype(int)
            ):
                torn = Path(shutil.copytree(self.folder, tmp_path / f"torn-{index}"))
                os.truncate(torn / "journal.sqlite-wal", size)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "keep", kept)
        fc.simulate(STRATEGIES[name](), ROWS, seed=4, journal=tmp_path / "j")
    assert len(Journal(tmp_path / "complete").records()) == 3
    for index in range(5):
        assert len(Journal(tmp_path / f"torn-{index}").records()) == 2
        again = fc.simulate(STRATEGIES[name](), ROWS, seed=4, journal=tmp_path / f"torn-{index}")
        assert bits(again) == bits(whole)


@pytest.mark.parametrize(
    "content", [b"0", b"a letter", bytes(4096), b"SQLite format 3\0" + bytes(4080)]
)
def test_a_file_that_is_no_journal_is_refused_and_stays(tmp_path, content):
    (tmp_path / "journal.sqlite").write_bytes(content)
    with pytest.raises(ProtocolError, match=r"journal\.sqlite.*; choose an empty folder"):
        fc.simulate(fc.KFED(3), ROWS, journal=tmp_path)
    assert (tmp_path / "journal.sqlite").read_bytes() == content


def test_a_database_of_another_program_or_of_another_version_is_refused_and_stays(tmp_path):
    for folder, change, said in (
        (tmp_path / "other", "CREATE TABLE notes (text)", "the database of another program"),
        (
            tmp_path / "later",
            f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = 9",
            "has format 9",
        ),
    ):
        folder.mkdir()
        with closing(sqlite3.connect(folder / "journal.sqlite")) as connection:
            connection.executescript(change)
        before = (folder / "journal.sqlite").read_bytes()
        with pytest.raises(ProtocolError, match=said):
            fc.simulate(fc.KFED(3), ROWS, journal=folder)
        assert (folder / "journal.sqlite").read_bytes() == before
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ProtocolError, match="an older version"):
        fc.simulate(fc.KFED(3), ROWS, journal=tmp_path)


class NoisyClient(ToyClient):
    @toy_answers("sum of the rows", Sent("number of rows", counts_rows=True))
    def total(self):
        return on_grid(self.rows.sum(axis=0)), np.array(len(self.rows))


class Noisy(Toy):
    client_type = NoisyClient


RELEASES = [paid("gaussian", 2.0), paid("laplace", 2.0)]


def interrupted(folder, clients, noise, monkeypatch):
    """Run three rounds, of which the second is asked and not received, and go on."""
    rounds = 3 * [Sum(NoisyClient.total.asked(), releases=RELEASES)]

    def made():
        toy = Noisy(rounds, noise=noise, epsilon=5.0, random_state=1)
        toy.journal = Journal(folder)
        return toy

    proxies = proxies_of(NoisyClient, clients)
    for proxy in proxies:
        proxy.misbehave[3] = raising(Killed())
    first = made()
    with pytest.raises(Killed), first.journal:
        drive(first, proxies)
    second = made()
    proxies = proxies_of(NoisyClient, clients)
    with second.journal:
        drive(second, proxies)
    return first, second, proxies


@pytest.mark.parametrize(("noise", "times"), [("server", 1), ("clients", 2), ("local", 2)])
def test_noisy_answers_that_clients_may_have_sent_twice_count_twice(
    tmp_path, monkeypatch, noise, times
):
    _, toy, proxies = interrupted(
        tmp_path / "j", [rows[:, :2] for rows in ROWS], noise, monkeypatch
    )
    # The first round is not asked again.
    assert [proxy.asked["total"] for proxy in proxies] == 4 * [2]
    rounds = [message.round for message in toy.report.releases]
    assert [rounds.count(number) for number in (2, 3, 4)] == [2, 2 * times, 2]
    assert ("asked twice" in str(toy.report)) == (times == 2)


def test_messages_of_a_run_that_goes_on_have_its_name_and_its_numbers(tmp_path, monkeypatch):
    first, second, proxies = interrupted(
        tmp_path / "j", [rows[:, :2] for rows in ROWS], "server", monkeypatch
    )
    assert first._run.id == second._run.id
    configs = [ins.config for ins in proxies[0].received]
    assert [config["round"] for config in configs] == [1, 3, 4]
    assert {config["run"] for config in configs} == {first._run.id}
    assert configs[0]["goes_on"]


def test_a_client_that_does_not_come_back_is_named_and_the_others_go_on(tmp_path):
    toy = Toy(2 * [Sum(ToyClient.moments.asked())])
    proxies = proxies_of(ToyClient, [rows[:, :2] for rows in ROWS])
    proxies[0].misbehave[3] = raising(Killed())
    toy.journal = Journal(tmp_path)
    with pytest.raises(Killed), toy.journal:
        drive(toy, proxies)
    again = Toy(2 * [Sum(ToyClient.moments.asked())])
    again.journal = Journal(tmp_path)
    again.wait_for_clients = 0.0
    with again.journal:
        drive(again, proxies_of(ToyClient, [rows[:, :2] for rows in ROWS])[:3])
    assert [brought[0] for brought in again.outcome.model.brought] == [126, 93]
    assert [(one.round, one.reason) for one in again.failures] == [
        (3, "client 3 is not connected.")
    ]


def test_what_a_client_sent_for_itself_is_not_in_the_journal(tmp_path):
    rows = [np.full((3, 2), value) for value in (0.1, 0.2, 0.4)]
    toy = Noisy([Sum(NoisyClient.total.asked(), releases=RELEASES)], epsilon=5.0, random_state=1)
    toy.journal = Journal(tmp_path)
    with toy.journal:
        drive(toy, proxies_of(NoisyClient, rows))
    (_, record) = toy.journal.records()
    np.testing.assert_array_equal(record.received[0], toy.outcome.model.brought[0][0])
    assert abs(record.received[0][0] - 2.1) > 1e-6
    assert [array.shape for array in record.received] == [(2,), ()]
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
        content = path.read_bytes()
        for one in rows:
            assert one.sum(axis=0).tobytes() not in content
            assert on_grid(one.sum(axis=0)).integers.tobytes() not in content


def test_a_journal_is_of_one_run_and_is_written_by_one_process(tmp_path):
    def run(strategy, folder=tmp_path / "j", **options):
        return fc.simulate(strategy, ROWS, journal=folder, **options)

    run(fc.KFED(3, random_state=0))
    with pytest.raises(ProtocolError, match="another parameters"):
        run(fc.KFED(2, random_state=0))
    with pytest.raises(ProtocolError, match="another strategy"):
        run(fc.FederatedKMeans(3))
    with pytest.raises(ProtocolError, match="client 2 has other rows"):
        fc.simulate(
            fc.KFED(3, random_state=0), [*ROWS[:2], ROWS[2][::-1], ROWS[3]], journal=tmp_path / "j"
        )
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("keep me")
    with pytest.raises(ProtocolError, match="other files"):
        run(fc.KFED(3), tmp_path / "other")
    with Store(tmp_path / "j" / "journal.sqlite", "a journal", "", alone=True) as store:
        with pytest.raises(ProtocolError, match="another process"):
            run(fc.KFED(3, random_state=0))
        with store.changing():
            store.put("run", "run", b"{")
    with pytest.raises(ProtocolError, match=r"journal\.sqlite"):
        run(fc.KFED(3, random_state=0))
    with pytest.raises(ValueError, match="what clients on Ray remember is lost"):
        run(fc.KFED(3), engine="ray")


def test_a_full_disk_is_named_and_the_run_goes_on_once_there_is_room(tmp_path, monkeypatch):
    connected = Store._connected

    def small(self):
        connection = connected(self)
        connection.execute("PRAGMA max_page_count = 5")
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(Store, "_connected", small)
        with pytest.raises(OSError, match=rf"No space left on device: '{tmp_path}"):
            fc.simulate(short(), ROWS, seed=0, journal=tmp_path)
    kept = len(Journal(tmp_path).records())
    again = fc.simulate(short(), ROWS, seed=0, journal=tmp_path)
    assert 0 < kept < len(Journal(tmp_path).records())
    assert bits(again) == bits(fc.simulate(short(), ROWS, seed=0))


def test_a_finished_journal_gives_the_result_again_and_a_changed_round_is_refused(
    tmp_path, monkeypatch
):
    first = fc.simulate(short(), ROWS, journal=tmp_path)
    assert bits(fc.simulate(short(), ROWS, journal=tmp_path)) == bits(first)
    first, second, *rest = Journal(tmp_path).records()
    monkeypatch.setattr(
        Journal, "records", lambda _: [first, second, replace(second, number=3), *rest[1:]]
    )
    with pytest.raises(ProtocolError, match="round 3"):
        fc.simulate(short(), ROWS, journal=tmp_path)
