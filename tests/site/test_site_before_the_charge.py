"""Before a site has charged its ledger, nothing that it says depends on rows, and nobody else has to wait for it."""

import json
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from flwr.common import EvaluateIns
from hostile import ENROL, PLAN, Server, arrays_of, audit, plan, refused, site

from flower_fedclust.engine import ClientData
from flower_fedclust.engine.wire import as_bytes, encode
from flower_fedclust.format import FORMAT
from flower_fedclust.privacy.noise import add_noise
from flower_fedclust.site.app import Site
from flower_fedclust.site.ledger import Ledger
from flower_fedclust.site.policy import SiteSettings
from flower_fedclust.site.studies import Studies
from flower_fedclust.strategies.private_kmeans import PrivateKMeansClient
from flower_fedclust.tables.preparation import Preparation
from flower_fedclust.tables.schema import Figures, Schema

COLUMNS = "".join(f'[columns.{name}]\nkind = "number"\nbounds = [-9, 9]\n' for name in "abc")
SCHEMA = Schema.from_toml(COLUMNS)
PREPARED = as_bytes(
    json.dumps(Preparation(SCHEMA, {name: Figures(low=-9.0, high=9.0) for name in "abc"}).to_dict())
)
GOOD = ["a,b,c", *(f"{index % 7},{index % 5}.5,-1" for index in range(60))]


def changed(**lines):
    """The table with other lines, by number."""
    return "\n".join(lines.get(f"line_{number}", line) for number, line in enumerate(GOOD)) + "\n"


#: What a table may become while its site runs.
CHANGES = {
    "nothing": changed(),
    "another value": changed(line_7="8,8,8"),
    "a cell is missing": changed(line_7="1,,1"),
    "a cell is text": changed(line_7="1,none,1"),
    "a cell is infinite": changed(line_7="1,inf,1"),
    "a row is broken": changed(line_7='1,"2,3,4,5,6'),
    "fewer rows": "\n".join(GOOD[:40]) + "\n",
    "more rows": changed() + "1,1,1\n",
    "another column": changed(line_0="a,b,d"),
    "no row": "a,b,c\n",
    "no file": None,
}


def started(folder, *, schema=True, **policy):
    """A site on a file, as it is after its start."""
    folder.mkdir()
    (folder / "table.csv").write_text(CHANGES["nothing"])
    (folder / "columns.toml").write_text(COLUMNS)
    given = {"name": "north", "data": "table.csv", "policy": policy} | (
        {"schema": "columns.toml"} if schema else {}
    )
    settings = SiteSettings.checked(given, "site.toml", folder)
    own = Site(settings)
    own.create_ledger()
    assert own.data.n_rows == 60
    return settings


def change(folder, how):
    if CHANGES[how] is None:
        (folder / "table.csv").unlink()
    else:
        (folder / "table.csv").write_text(CHANGES[how])


def said_before_a_charge(settings, schema):
    """All that a server hears of messages that cost nothing, each answered by a process of its own."""

    def send(ask, **asked):
        server.site = Site(settings)
        answer = ask(**asked)
        answer.metrics.pop("ledger", None)  # the line's number, and its salted hash
        heard.append((answer.metrics, answer.parameters.tensors))

    server, heard = Server(None), []
    enrol = ENROL | ({"schema": SCHEMA.to_json()} if schema else {})
    send(lambda: server.send([], enrol))
    send(lambda: server.send([], enrol | {"goes_on": True}))
    send(server.ask_sum, columns=json.dumps(["c", "b", "a"]), n_clients=1)
    send(server.ask_sum, plan=plan({"row_sum": PLAN.shares["row_sum"]}, epsilon=5.0).to_json())
    if schema:
        send(lambda: server.ask(PrivateKMeansClient.prepare.asked(PREPARED)))
    about = {"client": PrivateKMeansClient.key(), "task": "secure keys", "round": 9, "run": "1"}
    server.site = Site(settings)
    heard.append(
        set(server.send([], about | {"secure": json.dumps({"step": "keys"})}).metrics) - {"ledger"}
    )
    return heard


@pytest.mark.parametrize("schema", [True, False], ids=["with a schema", "without"])
def test_whatever_becomes_of_a_table_is_not_heard_before_the_charge(tmp_path, schema):
    heard, booked = [], []
    for how in CHANGES:
        settings = started(tmp_path / how, schema=schema)
        change(tmp_path / how, how)
        heard.append(said_before_a_charge(settings, schema))
        booked.append(
            [(one["task"], one["epsilon"]) for one in Ledger(Site(settings).ledger.path).read()]
        )
    assert all(one == heard[0] for one in heard)
    assert all(one == booked[0] for one in booked)
    assert json.loads(heard[0][0][0]["columns"]) == list("abc")


@pytest.mark.parametrize("how", CHANGES)
def test_what_is_wrong_with_the_rows_is_found_after_the_charge_and_costs_its_epsilon(tmp_path, how):
    settings = started(tmp_path / "own", schema=False)
    server = Server(Site(settings))
    server.send([], ENROL)
    change(tmp_path / "own", how)
    server.site = Site(settings)
    answer = server.ask_sum()
    charged = server.site.ledger.read()[-1]
    assert charged["epsilon"] == pytest.approx(1.0, rel=1e-3)
    if how in ("nothing", "another value", "more rows"):
        arrays_of(answer)
    else:
        assert answer.metrics["failure"] == "failed"
        assert charged["sent"] == ""


def test_an_answer_rests_on_no_more_rows_than_there_are(tmp_path):
    settings = started(tmp_path / "own", schema=False, row_count=True, fewest_rows=10)
    change(tmp_path / "own", "fewer rows")
    own = Site(settings)
    assert Server(own).ask_sum().metrics["failure"] == "failed"
    assert "has lost rows" in audit(own)[-1]["reason"]
    change(tmp_path / "own", "fewer rows")
    assert Site(settings).outline.n_rows == 39  # a later run knows it


def restarted(settings):
    """The site in a new process, which reads its table as it starts."""
    own = Site(settings)
    assert own.data.n_rows
    return own


def n_charged(own):
    return len(own.ledger.read())


def enrolled_then_renamed(folder, **policy):
    """A run in which a site enrolled, before a column of its table was renamed."""
    settings = started(folder, schema=False, **policy)
    server = Server(Site(settings))
    assert json.loads(server.send([], ENROL).metrics["columns"]) == ["a", "b", "c"]
    change(folder, "another column")
    return server


def test_columns_that_a_run_did_not_enrol_with_fail_once_after_a_charge_and_then_before(tmp_path):
    server = enrolled_then_renamed(tmp_path / "own")
    heard = [server.ask_sum().metrics["failure"] for _ in range(3)]
    assert heard == ["failed"] * 3
    assert n_charged(server.site) == 2  # the enrolment, and the first sum
    reason = audit(server.site)[-1]["reason"]
    assert "has changed since it enrolled in this run (columns)" in reason


def test_columns_that_change_while_a_site_is_restarted_fail_before_a_charge(tmp_path):
    server = enrolled_then_renamed(tmp_path / "own")
    server.site = restarted(server.site.settings)
    assert server.ask_sum().metrics["failure"] == "failed"
    assert n_charged(server.site) == 1
    change(tmp_path / "own", "nothing")
    server.site = restarted(server.site.settings)
    arrays_of(server.ask_sum())


@pytest.mark.parametrize("more", [{}, {"goes_on": True}], ids=["as new", "goes on"])
def test_enrolling_again_in_a_run_neither_tells_nor_allows_other_columns(tmp_path, more):
    server = enrolled_then_renamed(tmp_path / "own")
    server.site = restarted(server.site.settings)
    answer = server.send([], ENROL | more)
    assert answer.metrics["failure"] == "failed"
    assert "columns" not in answer.metrics
    assert server.ask_sum().metrics["failure"] == "failed"
    assert n_charged(server.site) == 1


def test_a_run_that_enrols_after_the_change_has_the_columns_of_then(tmp_path):
    first = enrolled_then_renamed(tmp_path / "own")
    later = Server(restarted(first.site.settings), run_id=2)
    assert json.loads(later.send([], ENROL).metrics["columns"]) == ["a", "b", "d"]
    arrays_of(later.ask_sum())


def test_a_model_is_not_evaluated_on_other_columns(tmp_path):
    server = enrolled_then_renamed(tmp_path / "own", evaluations=2)
    server.site = restarted(server.site.settings)
    assert server.evaluate(np.zeros((2, 3))).metrics["failure"] == "failed"
    assert n_charged(server.site) == 1


def fewer_rows(outline):
    return replace(outline, n_rows=outline.n_rows - 1)


@pytest.mark.parametrize(
    ("changed_outline", "what"),
    [
        (fewer_rows, "number of rows"),
        (lambda outline: replace(outline, n_subjects=50), "subjects"),
        (lambda outline: replace(outline, schema=SCHEMA), "schema"),
        (lambda outline: replace(outline, columns=None, n_columns=4), "columns"),
    ],
)
def test_what_else_a_run_enrolled_with_may_not_change(tmp_path, monkeypatch, changed_outline, what):
    settings = started(tmp_path / "own", schema=False, row_count=True)
    server = Server(Site(settings))
    server.send([], ENROL)
    monkeypatch.setattr(Site, "outline", changed_outline(server.site.outline))
    assert server.ask_sum().metrics["failure"] == "failed"
    assert n_charged(server.site) == 1
    assert f"({what})" in audit(server.site)[-1]["reason"]


def test_no_row_is_read_before_a_charge(tmp_path):
    own = site(tmp_path)
    assert own.data.n_rows == 60
    own = site(tmp_path)
    own._load = lambda: pytest.fail("the rows were read")
    server = Server(own)
    assert server.send([], ENROL).metrics["columns"] == "3"
    assert "fewest_clients" in refused(server.ask_sum(n_clients=1), own)
    own._load = lambda: ClientData(np.ones((60, 3)))
    arrays_of(server.ask_sum())


def test_columns_of_a_run_are_the_sites_each_once(tmp_path):
    """A list of a hundred thousand repeated names had rows made of a hundred thousand columns."""
    settings = started(tmp_path / "own", schema=False)
    own = Site(settings)
    answer = Server(own).ask_sum(columns=json.dumps(["a", "b", "c"] + ["a"] * 100_000))
    assert answer.metrics["failure"] == "failed"
    assert own.ledger.read() == []


# Locks.


class Held:
    """Lets a computation wait in the middle, and counts how often noise was drawn."""

    def __init__(self, monkeypatch, run):
        self.began, self.goes_on, self.n_drawn = threading.Event(), threading.Event(), 0
        self.run = run

        def waiting(*given, **more):
            self.n_drawn += 1
            if threading.current_thread().name == self.run:
                self.began.set()
                assert self.goes_on.wait(30)
            return add_noise(*given, **more)

        monkeypatch.setattr("flower_fedclust.engine.client.add_noise", waiting)


def asked_in_a_thread(folder, name, answers, run=1, **policy):
    def ask():
        answers[name] = Server(site(folder, **policy), run).ask_sum(number=2)

    thread = threading.Thread(target=ask, name=name, daemon=True)
    thread.start()
    return thread


TWO = {"epsilon": 9, "delta": 1e-5}


def test_another_run_does_not_wait_while_an_answer_is_computed(tmp_path, monkeypatch):
    site(tmp_path, **TWO)
    held, answers = Held(monkeypatch, "first"), {}
    first = asked_in_a_thread(tmp_path, "first", answers, **TWO)
    assert held.began.wait(120)
    second = asked_in_a_thread(tmp_path, "second", answers, run=2, **TWO)
    second.join(20)
    is_free = not second.is_alive()
    held.goes_on.set()
    first.join(30)
    second.join(30)
    assert is_free
    assert [len(arrays_of(answers[name])) for name in ("first", "second")] == [1, 1]
    assert all(one["sent"] for one in Ledger(tmp_path / "ledger.jsonl").read())


def test_equal_messages_at_once_get_one_draw_of_the_noise(tmp_path, monkeypatch):
    site(tmp_path)
    held, answers = Held(monkeypatch, "first"), {}
    threads = [asked_in_a_thread(tmp_path, "first", answers)]
    assert held.began.wait(120)
    threads += [asked_in_a_thread(tmp_path, name, answers) for name in ("second", "third")]
    time.sleep(0.5)
    held.goes_on.set()
    for thread in threads:
        thread.join(120)
    assert held.n_drawn == 1
    assert (
        answers["first"].parameters == answers["second"].parameters == answers["third"].parameters
    )
    assert len(Ledger(tmp_path / "ledger.jsonl").read()) == 1


def test_runs_that_were_judged_at_once_do_not_spend_more_than_the_policy_allows(
    tmp_path, monkeypatch
):
    """Each is within the budget when it is judged, and only one when it is charged."""
    site(tmp_path)
    meet, check_open = threading.Barrier(2), Studies.check_open

    def together(*given, **more):
        meet.wait(120)
        return check_open(*given, **more)

    monkeypatch.setattr(Studies, "check_open", together)
    answers = {}
    threads = [asked_in_a_thread(tmp_path, f"run {run}", answers, run=run) for run in (1, 2)]
    for thread in threads:
        thread.join(120)
    assert sorted(str(answer.metrics.get("failure")) for answer in answers.values()) == [
        "None",
        "refused",
    ]
    assert len(Ledger(tmp_path / "ledger.jsonl").read()) == 1


def test_a_model_that_is_shared_labels_rows_while_others_are_answered(tmp_path, monkeypatch):
    own = site(tmp_path, **TWO)
    server = Server(own)
    server.send([], ENROL)
    locked = []

    def labeled(*given, **more):
        with own.ledger._lock().acquire(timeout=5):
            locked.append(True)
        raise ValueError("enough")

    monkeypatch.setattr("flower_fedclust.site.app.save_result", labeled)
    about = {
        "client": PrivateKMeansClient.key(),
        "model": "k-means",
        "share": True,
        "evaluate": False,
    }
    own.client(server.context).evaluate(
        EvaluateIns(encode([np.zeros((2, 3))]), {"format": FORMAT} | about)
    )
    assert locked == [True]
