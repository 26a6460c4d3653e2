"""What comes from others is bounded: code in the folder of a site, and the size, number and work of messages."""

import inspect
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hostile import (
    ANNOUNCED,
    BALL,
    ENROL,
    NOISE,
    PLAN,
    SHARES,
    SUM,
    Server,
    arrays_of,
    audit,
    gaussian,
    plan,
    refused,
    site,
)
from typer.testing import CliRunner

import flower_fedclust as fc
from flower_fedclust.cli.commands import app
from flower_fedclust.engine.by_row import Finisher, View
from flower_fedclust.engine.rounds import Askable
from flower_fedclust.privacy.accounting import Share
from flower_fedclust.registry import client_types, strategies
from flower_fedclust.site import supernode
from flower_fedclust.site.app import Site
from flower_fedclust.site.cli import start_site
from flower_fedclust.site.policy import (
    DESCRIBES,
    Policy,
    Refused,
    SiteSettings,
    is_amount,
    is_exponent,
    printable,
)
from flower_fedclust.strategies.common.spectral import LabelsClient
from flower_fedclust.strategies.private_kmeans import PrivateKMeansClient
from flower_fedclust.strategies.spp_fgc.spp_fgc import SPPFGCClient

TABLE = "age,stay\n" + "".join(f"{30 + index},{index % 7}\n" for index in range(60))


@pytest.fixture
def site_toml(tmp_path):
    (tmp_path / "table.csv").write_text(TABLE)
    (tmp_path / "site.toml").write_text('name = "north"\ndata = "table.csv"\n')
    Site(SiteSettings.from_toml(tmp_path / "site.toml")).create_ledger()
    return tmp_path / "site.toml"


# Code in the folder in which a site is started.


@pytest.mark.long
def test_a_process_of_a_site_imports_nothing_from_the_folder_in_which_it_is_started(
    site_toml, tmp_path
):
    _, environment = supernode.prepared(site_toml, ["--insecure"])
    planted = tmp_path / "planted"
    planted.mkdir()
    for name in ("numpy", "flwr", "flower_fedclust"):
        (planted / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()")
    script = site_toml.parent / "site" / "bin" / "flwr-clientapp"
    # A task of the SuperNode, whatever of the environment it is left.
    for given in (os.environ, environment):
        done = subprocess.run(
            [script, "--help"], cwd=planted, env=given, capture_output=True, text=True, check=False
        )
        assert (done.returncode, "--parent-pid" in done.stdout) == (0, True), done.stderr
    assert not (tmp_path / "imported").exists()


def test_the_folder_is_no_part_of_the_path_once_a_site_has_started(
    site_toml, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), "", ".", *sys.path])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", ".", "/opt/fedclust", "lib"]))
    started = []
    monkeypatch.setattr("os.execve", lambda *given: started.append(given))
    start_site(SimpleNamespace(args=["--insecure"]), site_toml)
    assert not {"", ".", str(tmp_path)} & set(sys.path)
    (_, _, environment) = started[0]
    assert environment["PYTHONSAFEPATH"] == "1"
    assert environment["PYTHONPATH"] == "/opt/fedclust"


# What is found before a site starts.

WRONG = {
    "strategies in the policy: There is no strategy 'private-kmean'": '[policy]\nstrategies = ["private-kmean"]',
    "tasks in the policy: There is no task of these strategies called 'row_sums'": '[policy]\ntasks = ["row_sums"]',
    "There is no task of these strategies called 'local_centers'": '[policy]\nstrategies = ["private-kmeans"]\n'
    'tasks = ["local_centers"]',
    "studies in the policy is empty": "[policy]\nstudies = []",
    "delta_per_run in the policy is 1e-05": "[policy]\ndelta_per_run = 1e-5",
    "has 60 rows; fewest_rows in the policy is 61": "[policy]\nfewest_rows = 61",
    "has 60 rows; most_rows in the limits is 59": "[limits]\nmost_rows = 59",
    "There is no column in table.csv": 'label_column = "diagnosis"',
    "column 'height'": 'schema = "missing.toml"',
    "column 'stay': row": 'schema = "narrow.toml"',
    "no-schema.toml": 'schema = "no-schema.toml"',
    "age": 'columns = ["aeg"]',
}


@pytest.mark.parametrize("reason", WRONG)
def test_what_keeps_every_run_from_working_is_found_before_the_site_starts(site_toml, reason):
    number = 'kind = "number"\nbounds = '
    columns = f"[columns.age]\n{number}[0, 110]\n"
    missing = f"{columns}[columns.stay]\n{number}[0, 9]\n[columns.height]\n{number}[0, 9]"
    (site_toml.parent / "missing.toml").write_text(missing)
    narrow = f'{columns}[columns.stay]\nkind = "category"\ncategories = ["1", "2"]'
    (site_toml.parent / "narrow.toml").write_text(narrow)
    site_toml.write_text(f"{site_toml.read_text()}{WRONG[reason]}\n")
    with pytest.raises(ValueError, match="cannot answer runs") as error:
        start_site(SimpleNamespace(args=[]), site_toml)
    assert reason in str(error.value)


def test_all_that_is_wrong_is_said_at_once(site_toml):
    site_toml.write_text(
        f'{site_toml.read_text()}[policy]\nstrategies = ["k-fd"]\nstudies = []\nfewest_rows = 99\n'
    )
    with pytest.raises(ValueError, match="cannot answer runs") as error:
        start_site(SimpleNamespace(args=[]), site_toml)
    assert all(
        part in str(error.value)
        for part in ("'k-fed'", "studies in the policy is empty", "has 60 rows")
    )


def test_text_in_a_table_without_a_schema_is_found_before_the_site_starts(site_toml):
    (site_toml.parent / "table.csv").write_text("age,job\n" + "44,cook\n" * 60)
    with pytest.raises(ValueError, match="'job'"):
        start_site(SimpleNamespace(args=[]), site_toml)


# Sizes, numbers and work.


@pytest.fixture
def careful(tmp_path):
    return site(tmp_path)


def asked_of(task, *arrays, **arguments):
    return getattr(PrivateKMeansClient, task).asked(*arrays, **arguments)


def test_logs_do_not_grow_with_what_others_say(careful):
    """Ten refused messages had grown the log to 75 MB."""
    long = "x" * 7_500_000
    for where in ("task", "run", "client", "plan", "arguments", "rows"):
        for _ in range(10):
            answer = Server(careful).ask_sum(**{where: long})
            assert answer.metrics["failure"] in ("refused", "failed")
    Server(careful, study=long).ask(SUM)
    Server(careful, strategy=long).ask(SUM, client="x")
    assert (careful.folder / "audit.jsonl").stat().st_size < 1e5


def test_a_log_that_is_full_takes_the_place_of_the_one_before(tmp_path):
    own = site(tmp_path, limits={"log_mb": 1})
    for index in range(40):
        own.note(
            "refused", reason=f"{index} " + 450 * "x", **{f"more{n}": 450 * "y" for n in range(150)}
        )
    kept = sorted(path.name for path in own.folder.glob("audit*"))
    assert kept == ["audit.1.jsonl", "audit.jsonl"]
    assert sum(path.stat().st_size for path in own.folder.glob("audit*")) < 2.2e6
    assert audit(own)[-1]["reason"].startswith("39 ")


FORGED = [
    "a\nrefused: nothing",
    "\x1b[2K\ranswered: run 7",
    "a\u2028b",
    "\u202etxt.exe",
    "[red]x[/red]\x07",
    "\ud800",
]


@pytest.mark.parametrize("name", FORGED, ids=ascii)
@pytest.mark.parametrize(
    "where", ["run", "task", "study", "strategy", "client", "plan", "arguments", "rows"]
)
def test_no_name_forges_a_line_of_a_log(careful, caplog, where, name):
    server = Server(careful, **({where: name} if where in ("study", "strategy") else {}))
    config = {} if where in ("study", "strategy") else {where: name}
    answer = server.ask(
        SUM, releases=[NOISE], **ANNOUNCED | {"client": PrivateKMeansClient.key()} | config
    )
    assert answer.metrics["failure"] in ("refused", "failed")
    lines = (careful.folder / "audit.jsonl").read_text().splitlines()
    assert len(lines) == 1
    ours = [record for record in caplog.records if record.name == "flower_fedclust.site.app"]
    assert len(ours) == 1
    assert ours[0].getMessage().isprintable()
    assert not careful.ledger.read()


def test_what_stands_in_a_ledger_is_shown_as_it_is_and_in_one_line(site_toml):
    own = Site(SiteSettings.from_toml(site_toml))
    with own.ledger.locked():
        own.ledger.append(
            {
                "time": "now",
                "run": "[red]\x1b[2K",
                "study": "a\nb",
                "strategy": "[bold]k-fed",
                "data_set": own.data_set,
            }
            | {"round": 1, "task": "enrol", "answer": "enrol-1", "app": "", "sent": "", "asked": ""}
            | {
                "arrays": [],
                "epsilon": 0.0,
                "delta": 0.0,
                "unit": "",
                "is_claim": False,
                "plan": "",
            }
        )
    shown = CliRunner().invoke(app, ["ledger", "show", str(site_toml)]).output
    assert "[bold]k-fed" in shown
    assert "[red]" in shown
    assert "\x1b" not in shown
    assert "a\\nb" in shown


def test_what_was_said_is_one_line_that_ends():
    assert printable("plain") == "plain"
    assert printable(7) == 7
    assert printable("a\nb\x1b\u2028") == "a\\nb\\x1b\\u2028"
    assert len(printable("x" * 10**6)) < 600


@pytest.mark.parametrize("days", [0, 2])
def test_a_day_has_so_many_runs(tmp_path, monkeypatch, days):
    own = site(tmp_path, limits={"runs_per_day": 3})
    said = [Server(own, number).send([], ENROL).metrics.get("failure") for number in range(5)]
    assert said == [None, None, None, "refused", "refused"]
    assert len({place for place, *_ in own.kept.store.names()} - {"table"}) == 3
    assert Server(own, 1).send([], ENROL).metrics.get("failure") is None  # a run that goes on
    # As if they were over.
    monkeypatch.setattr("flower_fedclust.site.policy.DAY", 86400 if days == 0 else -86400)
    assert Server(own, 9).send([], ENROL).metrics.get("failure") == (
        "refused" if days == 0 else None
    )


def test_a_run_has_so_many_answers(tmp_path):
    own = site(tmp_path, limits={"answers_per_run": 2})
    server = Server(own)
    for _ in range(2):
        arrays_of(server.ask_sum())
    assert "answers_per_run" in refused(server.ask_sum(), own)


def test_so_much_is_kept(tmp_path):
    own = site(tmp_path, limits={"kept_mb": 1})
    labels = np.zeros(10**5)
    server = Server(own, strategy="spp-fgc")
    answers = [
        server.ask(LabelsClient.keep_labels.asked(labels), client=SPPFGCClient.key())
        for _ in range(4)
    ]
    assert [answer.metrics.get("failure") for answer in answers] == [
        None,
        None,
        "refused",
        "refused",
    ]
    assert "kept_mb" in audit(own)[-1]["reason"]


BIG = {
    "20 million candidates": asked_of(
        "cells",
        np.zeros((2 * 10**7, 3), dtype=np.int8),
        np.eye(3),
        frame=BALL,
        bound=0.5,
        weight=0.5,
    ),
    "an array without entries": asked_of(
        "cells", np.zeros((10**9, 0)), np.eye(3), frame=BALL, bound=0.5, weight=0.5
    ),
    "text": asked_of("row_sum", np.array(["a" * 9]), np.zeros(2)),
    "complex": asked_of("row_sum", np.zeros(3, dtype=complex), np.zeros(2)),
    "dates": asked_of("row_sum", np.zeros(3, dtype="M8[s]"), np.zeros(2)),
    "fields": asked_of("row_sum", np.zeros(3, dtype=[("a", float)]), np.zeros(2)),
}


@pytest.mark.parametrize("what", BIG)
def test_messages_that_are_too_large_or_odd_are_refused_before_anything_is_computed(careful, what):
    answer = Server(careful).ask_sum(question=BIG[what])
    assert answer.metrics["failure"] in ("refused", "failed")
    assert (
        "the message has" in audit(careful)[-1]["reason"]
        or "not an array" in audit(careful)[-1]["reason"]
    )
    assert careful.ledger.read() == []


def test_work_is_counted_by_public_bounds_and_not_by_the_rows(tmp_path):
    said = []
    for most_rows in (100, 10**6):
        own = site(tmp_path / str(most_rows), limits={"most_rows": most_rows, "most_work": 1e9})
        asked = asked_of("cells", np.zeros((500, 3)), np.eye(3), frame=BALL, bound=0.5, weight=0.5)
        answer = Server(own).ask(asked, releases=[gaussian(9.0, 1.0)])
        said.append(answer.metrics.get("failure"))
    assert said == [None, "refused"]


def test_a_plan_of_many_shares_or_of_hardly_any_noise_is_not_composed(careful):
    many = {f"share {index}": Share("laplace", 1.0 + index / 1e3, 1) for index in range(60)}
    announced = plan(SHARES).to_json()
    told = json.loads(announced)
    told["shares"] = {
        name: told["shares"]["row_sum"]
        | {"mechanism": "laplace", "multiplier": 500 + share.fraction, "count": 1}
        for name, share in many.items()
    }
    assert "shares" in refused(
        Server(careful).ask(SUM, releases=[NOISE], plan=json.dumps(told)), careful
    )
    tiny = announced.replace(f'"multiplier": {PLAN.multipliers["row_sum"]}', '"multiplier": 0.3')
    assert tiny != announced
    assert "least_noise_multiplier" in refused(
        Server(careful).ask(SUM, releases=[NOISE], plan=tiny), careful
    )


def test_every_argument_of_every_task_is_known_to_the_limits():
    """An amount is called n_..., so that the limits count it; nothing else may be one."""
    found = [getattr(client, name) for client in client_types(strategies()) for name in dir(client)]
    tasks = {task for task in found if isinstance(task, Askable | View)}
    assert len(tasks) > 50
    for task in tasks:
        takes = inspect.signature(task.function).parameters
        for name, parameter in list(takes.items())[2 if isinstance(task, Finisher) else 1 :]:
            if parameter.kind is parameter.VAR_KEYWORD:
                continue
            if parameter.kind is not parameter.KEYWORD_ONLY:
                assert not is_amount(name), f"{task}: '{name}' is an amount; give it by name"
            elif parameter.annotation == "int":
                is_known = (
                    is_amount(name)
                    or is_exponent(name)
                    or name in ("random_state", "batch_size", "floor")
                )
                assert is_known, f"{task}: what '{name}' may cost is not known"


@pytest.mark.parametrize("task", ["description", "plain_description", "survival", "plain_survival"])
def test_a_run_whose_floor_is_below_the_sites_gets_no_description(task):
    policy = Policy(floor=11)
    for arguments in ('{"model": "k-means", "floor": 10}', "{}", '{"floor": "11"}', "[]"):
        with pytest.raises(Refused, match="needs floor = 11 or more"):
            policy.check_floor(task, {"arguments": arguments})
    policy.check_floor(task, {"arguments": '{"floor": 11}'})
    policy.check_floor("histograms", {"arguments": "{}"})


@pytest.mark.parametrize(
    "strategy", [fc.FederatedKMeans(2), fc.DPFedC(2, epsilon=None, n_rounds=2)]
)
def test_a_run_states_its_floor_to_its_sites(strategy):
    asked = []
    table = pd.DataFrame({"x": np.repeat([0.0, 1.0], 40), "died": "no", "days": 1.0})
    columns = {
        "x": {"kind": "number", "bounds": [0, 1]},
        "died": {"kind": "binary", "categories": ["no", "yes"]},
    }
    columns["days"] = {
        "kind": "time-to-event",
        "event": "died",
        "bins": [1, 2, 3],
        "time_zero": "row",
    }
    strategy = fc.with_schema(strategy, {"columns": columns}, describe=True, floor=12)
    strategy.on_received = lambda round_, _: asked.append(round_)
    fc.simulate(strategy, [table, table], seed=0)
    told = [one.question for one in asked if one.question.answer.task in DESCRIBES]
    assert [one.arguments["floor"] for one in told] == [12, 12]


# The process of a message.


def test_the_process_of_a_message_ends_where_it_takes_too_much():
    # As CUDA does, without filling it.
    reserves = "import mmap; mmap.mmap(-1, 10**10, prot=mmap.PROT_READ)"
    cases = [
        ({"memory_mb": 4000, "cpu_seconds": 60}, "bytearray(10**10)", 1),
        ({"memory_mb": 16_000, "cpu_seconds": 1}, "while True: pass", -24),
        ({"memory_mb": 16_000, "cpu_seconds": 60}, "print()", 0),
        ({"memory_mb": 4000, "cpu_seconds": 60}, reserves, 1),
        ({"memory_mb": 4000, "cpu_seconds": 60, "device": "cuda"}, reserves, 0),
        ({"memory_mb": 4000, "cpu_seconds": 60, "device": "cuda"}, "bytearray(10**10)", 1),
    ]
    # Each case is a fork of one process, because the limits cannot be taken back.
    code = f"""
import os
from flower_fedclust.site.policy import Limits, restrict_process
for limits, work, ending in {cases!r}:
    if (pid := os.fork()) == 0:
        code = 1
        try:
            restrict_process(Limits(**limits))
            exec(work)
            code = 0
        finally:
            os._exit(code)
    found = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert found == ending, (limits, work, found)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
