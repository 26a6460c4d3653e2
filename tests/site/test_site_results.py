"""What sites have of an honest run: answers within their policy, a model, their own labels, and a report."""

import contextlib
import json
import os
import pickle
import signal
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, RecordDict
from flwr.app.user_config import UserConfig
from flwr.common import Code, FitIns, FitRes, Status
from hostile import RNG, Proxy, audit, run, site

import flower_fedclust as fc
from flower_fedclust.engine import ProtocolError, Traffic, by_row
from flower_fedclust.engine.messages import Message
from flower_fedclust.engine.replies import traffic_of
from flower_fedclust.engine.wire import encode
from flower_fedclust.numerics import threads
from flower_fedclust.site.app import Site
from flower_fedclust.site.check import checked_rows
from flower_fedclust.site.kept import MEMORY, KeptRun
from flower_fedclust.site.ledger import Ledger
from flower_fedclust.site.policy import SiteSettings
from flower_fedclust.strategies.common.tables import with_schema
from flower_fedclust.tables.schema import Schema

CENTERS = np.array([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 3.0]])
TABLES = {
    name: np.repeat(CENTERS, 40, axis=0) + RNG.normal(scale=0.3, size=(120, 3))
    for name in ("north", "south", "west")
}
OPEN = {"epsilon_per_run": 50.0, "epsilon": 50.0, "least_noise_multiplier": 0.05}


def sites(folder, **policy):
    return [
        site(folder / name, name=name, rows=rows, **OPEN | policy) for name, rows in TABLES.items()
    ]


def private_kmeans(kind=fc.PrivateFederatedKMeans, **more):
    options = {"epsilon": 50.0, "max_norm": 5.0, "noise": "local", "random_state": 0}
    short = {} if kind is fc.PrivateKMeans else {"n_rounds": 3}
    return kind(3, **options | short | more)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sites")
    strategy, finished = private_kmeans(), []
    strategy.share_model, strategy.on_finished = True, finished.append
    own = sites(folder)
    run(strategy, own)
    return strategy, own, finished


def folder_of(one):
    (folder,) = (one.folder / "results").iterdir()
    return folder


def test_each_site_has_the_model_and_its_own_labels(shared):
    strategy, own, _ = shared
    for one in own:
        saved = folder_of(one)
        labels = np.loadtxt(
            saved / "labels" / f"{one.settings.name}.csv",
            delimiter=",",
            skiprows=1,
            usecols=-1,
            dtype=int,
        )
        np.testing.assert_array_equal(
            labels, strategy.outcome.model.predict(TABLES[one.settings.name])
        )
        assert (saved / "model.npz").exists()
        assert saved.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("source", ["file", "query"])
def test_a_site_whose_limits_say_so_answers_from_its_files_with_so_many_threads(
    source, tmp_path, monkeypatch
):
    monkeypatch.setattr("flower_fedclust.site.app.MEGABYTE", 1000)
    n_threads, mapped = [], by_row.mapped

    def noting(*given):
        n_threads.append(threads._n_jobs.get())
        return mapped(*given)

    monkeypatch.setattr(by_row, "mapped", noting)
    monkeypatch.setattr("flower_fedclust.engine.client_data.BATCH_ENTRIES", 50)
    strategy, own, found = fc.FederatedKMeans(3, init=CENTERS, n_rounds=2), [], {}
    for limits in ({"rows_mb": 2, "threads": 3}, {"rows_mb": 10}):
        own = []
        for name, rows in TABLES.items():
            folder = tmp_path / f"{limits['rows_mb']}-{name}"
            folder.mkdir()
            path = folder / "rows.parquet"
            pd.DataFrame(rows, columns=["x", "y", "z"]).to_parquet(path)
            given = {
                "name": name,
                "data": str(path),
                "folder": str(folder / "site"),
                "limits": limits,
            }
            if source == "query":
                given |= {"data": "duckdb://", "query": f"SELECT * FROM '{path}'"}
            given["policy"] = {"unprotected": ["sums"], "row_count": True}
            settings = SiteSettings.checked(given, "site.toml", folder)
            assert checked_rows(settings)[1] == []
            own.append(Site(settings))
            own[-1].create_ledger()
        n_threads.clear()
        run(strategy, own)
        assert {one.data.is_in_memory for one in own} == {limits["rows_mb"] == 10}
        assert set(n_threads) == {limits.get("threads")}
        found[limits["rows_mb"]] = strategy.outcome.model.cluster_centers_
    np.testing.assert_array_equal(found[2], found[10])


def test_the_report_of_a_site_is_that_of_its_own_ledger(shared):
    strategy, own, _ = shared
    for one in own:
        report = json.loads((folder_of(one) / "privacy.json").read_text())
        assert report["epsilon"] == pytest.approx(50.0, rel=1e-3)
        assert report["covers_everything"]
        assert [entry["task"] for entry in one.ledger.read()][-1] == "receive"
    assert [failure.reason for failure in strategy.failures] == []
    assert all(message.task != "evaluate" for message in strategy.report.messages)


def test_the_result_has_the_last_line_of_each_sites_ledger_with_every_reply(shared, tmp_path):
    strategy, own, _ = shared
    last = {row.client: row.ledger for row in strategy.traffic}
    assert last == {one.settings.name: one.ledger.witness for one in own}
    assert all(
        one.ledger.has(row.ledger)
        for row in strategy.traffic
        for one in own
        if one.settings.name == row.client
    )
    rows = [
        Traffic(1, "row_sum", "north", 1, 2, "3:" + 64 * "a"),
        Traffic(1, "row_sum", "south", 1, 2),
    ]
    result = fc.simulate(fc.FederatedKMeans(3, init=CENTERS, n_rounds=1), list(TABLES.values()))
    assert {row.ledger for row in result.traffic} == {""}
    assert fc.load(replace(result, traffic=rows).save(tmp_path / "saved")).traffic == rows


@pytest.mark.parametrize(
    "said",
    [
        None,
        7,
        "",
        "1",
        "1:" + 63 * "a",
        "1:" + 64 * "A",
        "1:" + 64 * "a" + "\n",
        999 * "1" + ":" + 64 * "a",
        b"1:a",
    ],
)
def test_what_is_no_line_of_a_ledger_is_not_kept(said):
    asked = Message("1", "north", FitIns(encode([]), {"task": "count"}))
    reply = FitRes(Status(Code.OK, ""), encode([]), 1, {"ledger": said})
    assert traffic_of(2, asked, reply).ledger == ""


def test_who_has_nothing_but_the_strategy_is_called_when_it_is_finished(shared):
    strategy, _, finished = shared
    assert finished == [strategy]
    assert finished[0].outcome.model.n_clusters == 3


def test_each_site_has_the_description_as_the_server_prints_it(tmp_path):
    columns = {name: {"kind": "number", "bounds": [-2, 5]} for name in "abc"}
    columns["died"] = {"kind": "binary", "categories": ["0", "1"]}
    columns["days"] = {
        "kind": "time-to-event",
        "event": "died",
        "bins": [5, 10],
        "time_zero": "row",
    }
    schema = Schema.of({"columns": columns})
    tables = {name: pd.DataFrame(rows, columns=list("abc")) for name, rows in TABLES.items()}
    tables = {
        name: one.assign(died=np.arange(len(one)) % 2, days=np.arange(len(one)) % 12)
        for name, one in tables.items()
    }
    own = [
        site(tmp_path / name, name=name, rows=rows, schema=schema, **OPEN)
        for name, rows in tables.items()
    ]
    strategy = with_schema(private_kmeans(max_norm=None), schema, describe=True)
    strategy.share_model = True
    run(strategy, own)
    said = str(strategy.outcome.clusters)
    assert "Cluster 2" in said
    assert [(folder_of(one) / "clusters.txt").read_text() for one in own] == [f"{said}\n"] * 3
    told = f"{strategy.outcome.survival}\n"
    assert "Half of cluster 2" in told
    assert [(folder_of(one) / "survival.txt").read_text() for one in own] == [told] * 3


def test_a_hostile_description_is_written_without_control_characters(tmp_path, shared):
    strategy, _, _ = shared
    own = sites(tmp_path)
    run(private_kmeans(), own)
    config = {
        "run": own[0].ledger.entries[0]["run"],
        "model": "k-means",
        "clusters": "Cluster 0\n\x1b[2J\rgone",
    }
    context = Context(1, 0, UserConfig({}), RecordDict(), UserConfig({}))
    own[0].keep_result(context, config, encode(strategy.outcome.model.to_arrays()))
    assert (folder_of(own[0]) / "clusters.txt").read_text() == "Cluster 0\n\\x1b[2J\\rgone\n"


def test_a_run_goes_on_without_a_site_whose_file_is_empty(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b,c\n")
    given = {
        "name": "empty",
        "data": str(tmp_path / "rows.csv"),
        "folder": str(tmp_path / "empty"),
        "policy": OPEN,
    }
    empty = Site(SiteSettings.model_validate(given))
    empty.create_ledger()
    strategy = private_kmeans()
    run(strategy, [*sites(tmp_path), empty])
    assert strategy.outcome.model.n_clusters == 3
    assert "empty" in audit(empty)[-1]["reason"] or "no rows" in audit(empty)[-1]["reason"]


def test_without_sharing_no_site_is_sent_a_model(tmp_path):
    strategy, finished = private_kmeans(), []
    strategy.on_finished = finished.append
    own = sites(tmp_path)
    run(strategy, own)
    assert len(finished) == 1
    assert not (own[0].folder / "results").exists()


def test_a_site_that_evaluates_nothing_keeps_the_model_all_the_same(tmp_path):
    strategy = private_kmeans(federated_evaluation=True)
    strategy.share_model = True
    own = sites(tmp_path)
    run(strategy, own)
    assert all((folder_of(one) / "model.npz").exists() for one in own)
    assert strategy.evaluation == {}
    assert {failure.task for failure in strategy.failures} == {"evaluate"}


def test_runs_beyond_the_budget_end_with_every_site_named(tmp_path):
    with pytest.raises(ProtocolError, match="refused"):
        run(private_kmeans(), sites(tmp_path, epsilon_per_run=49.0))


def test_noise_in_shares_counts_on_the_others_and_says_so(tmp_path):
    own = sites(tmp_path, most_shares=3)
    run(private_kmeans(noise="clients"), own)
    assert own[0].ledger.entries[-1]["is_claim"]
    with pytest.raises(ProtocolError, match="refused"):
        run(private_kmeans(noise="clients"), sites(tmp_path / "other"))


def test_of_clients_as_the_unit_a_site_counts_what_one_of_its_rows_is_promised(tmp_path):
    own = sites(tmp_path, epsilon_per_run=200.0, epsilon=200.0)
    run(private_kmeans(fc.PrivateKMeans, privacy_unit="client", rows_per_client=120), own)
    assert own[0].ledger.entries[-1]["epsilon"] > 100.0


def test_a_server_that_died_goes_on_with_the_answers_that_it_had_been_sent(tmp_path):
    own = sites(tmp_path)
    first = private_kmeans()
    first.journal = journal = fc.Journal(tmp_path / "journal")
    keep = journal.keep

    def dies(record):
        if record.number == 4:
            # The sites have answered, and the server has not written it down.
            raise KeyboardInterrupt
        keep(record)

    journal.keep = dies
    with pytest.raises(KeyboardInterrupt):
        run(first, own)
    journal.__exit__()
    sent = [entry["sent"] for entry in own[0].ledger.read()]
    second = private_kmeans()
    second.journal = fc.Journal(tmp_path / "journal")
    run(second, own)
    entries = own[0].ledger.read()
    assert [entry["sent"] for entry in entries][: len(sent)] == sent
    assert [entry["round"] for entry in entries] == list(range(1, second.num_rounds + 1))
    assert [line["round"] for line in audit(own[0]) if line["event"] == "repeated"] == [1, 4]
    assert second.outcome.model.n_clusters == 3


def test_what_a_client_remembers_outlives_the_process(tmp_path):
    own = sites(tmp_path, unprotected=["sums"])
    strategy = fc.DPFedC(3, epsilon=None, n_rounds=3, random_state=0)
    remembered = []

    def restart(number, task):
        for one in own:
            one.__init__(one.settings, one._load)
        remembered.append(
            sum(name == MEMORY for one in own for _, name, _ in one.kept.store.names())
        )

    strategy.on_round = restart
    run(strategy, own)
    again = fc.DPFedC(3, epsilon=None, n_rounds=3, random_state=0)
    simulated = fc.simulate(again, list(TABLES.values()), names=list(TABLES))
    for array, other in zip(
        strategy.outcome.model.to_arrays(), simulated.model.to_arrays(), strict=True
    ):
        np.testing.assert_array_equal(array, other)
    assert remembered[-1] == 3
    assert all(line["event"] == "answered" for line in audit(own[0]))


class Killed(Proxy):
    """A site that answers each message in a process of its own, as with Flower; one of them dies while it does."""

    number, moment, at = 0, "", ""

    def fit(self, ins, timeout=None, group_id=None):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                if ins.config["round"] == Killed.number and self.site.settings.name == Killed.at:
                    dying(*MOMENTS[Killed.moment])
                with os.fdopen(write, "wb") as pipe:
                    pickle.dump(super().fit(ins), pipe)
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            answer = pipe.read()
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            raise ConnectionError("the site's process is gone.")
        return pickle.loads(answer)


MOMENTS = {
    "before its answer is written": (KeptRun, "keep", True),
    "before the ledger has its charge": (Ledger, "append", True),
    "after the ledger has its charge": (Ledger, "append", False),
    "after the ledger says that it was sent": (Ledger, "note", False),
}


def dying(owner, name, before):
    """Have this process kill itself before a method, or after it."""
    method = getattr(owner, name)

    def last(*given, **more):
        if not before:
            method(*given, **more)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, last)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    "moment",
    [
        name if index == 2 else pytest.param(name, marks=pytest.mark.long)
        for index, name in enumerate(MOMENTS)
    ],
)
def test_each_site_is_killed_while_it_answers_and_the_run_goes_on_to_the_same_model(
    tmp_path, moment, monkeypatch
):
    def made():
        strategy = fc.FederatedKMeans(3, init=CENTERS, n_rounds=1, min_clients=3)
        strategy.journal = fc.Journal(tmp_path / "journal")
        return strategy

    own = sites(tmp_path, unprotected=["sums"])
    monkeypatch.setattr("hostile.Proxy", Killed)
    monkeypatch.setattr(Killed, "moment", moment)
    for Killed.number, Killed.at in enumerate(TABLES, start=2):
        strategy = made()
        with (
            pytest.raises(ProtocolError, match=f"client {Killed.at} did not answer"),
            strategy.journal,
        ):
            run(strategy, own)
    Killed.number, strategy = 0, made()
    with strategy.journal:
        run(strategy, own)
    whole = fc.simulate(fc.FederatedKMeans(3, init=CENTERS, n_rounds=1), list(TABLES.values()))
    np.testing.assert_array_equal(
        strategy.outcome.model.cluster_centers_, whole.model.cluster_centers_
    )
    for one in own:
        rounds = [entry["round"] for entry in one.ledger.read()]
        assert rounds == sorted(set(rounds))  # each is answered once, and written down once
