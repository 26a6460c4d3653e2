"""What an operator may write into site.toml, and what is said of what cannot be."""

import stat
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from flower_fedclust.site import supernode
from flower_fedclust.site.app import Site, load_rows
from flower_fedclust.site.check import PYTHONS
from flower_fedclust.site.cli import start_site
from flower_fedclust.site.kept import Kept, place_of, run_lock
from flower_fedclust.site.policy import Policy, SiteSettings

WRONG = {
    "data": 'name = "north"',
    "policy.epsilon": 'name = "north"\ndata = "x.csv"\n[policy]\nepsilon = -1.0',
    "policy.epsilom": 'name = "north"\ndata = "x.csv"\n[policy]\nepsilom = 1.0',
    "policy.unprotected.0": 'name = "north"\ndata = "x.csv"\n[policy]\nunprotected = ["pictures"]',
    "policy.most_shares": 'name = "north"\ndata = "x.csv"\n[policy]\nmost_shares = 0',
    "columns": 'name = "north"\ndata = "x.csv"\ncolumns = []',
    "TOML": 'name = "north',
}


@pytest.mark.parametrize("where", WRONG)
def test_what_is_wrong_is_named(tmp_path, where):
    (tmp_path / "site.toml").write_text(WRONG[where])
    with pytest.raises(ValueError, match=where.replace(".", r"\.")) as error:
        SiteSettings.from_toml(tmp_path / "site.toml")
    assert str(tmp_path / "site.toml") in str(error.value)


def test_paths_are_relative_to_the_file_and_databases_stay_as_they_are(tmp_path):
    (tmp_path / "site.toml").write_text('name = "north"\ndata = "x.csv"\nfolder = "own"')
    found = SiteSettings.from_toml(tmp_path / "site.toml")
    assert (found.data, found.folder) == (str(tmp_path / "x.csv"), str(tmp_path / "own"))
    assert found.data_set == found.data
    (tmp_path / "site.toml").write_text(
        'name = "north"\ndata = "duckdb:///x.db?table=t"\ndata_set = "people"'
    )
    found = SiteSettings.from_toml(tmp_path / "site.toml")
    assert (found.data, found.data_set) == ("duckdb:///x.db?table=t", "people")


def test_a_site_reads_what_a_query_finds_and_its_password_is_in_no_ledger(tmp_path):
    pytest.importorskip("duckdb")
    (tmp_path / "rows.csv").write_text("patient,age,year\np1,31,2020\np2,45,2024\n")
    query = f"SELECT patient, age FROM '{tmp_path}/*.csv' WHERE year > 2021"
    text = f'name = "north"\ndata = "duckdb://"\nquery = "{query}"\nid_column = "patient"'
    (tmp_path / "site.toml").write_text(text)
    data = load_rows(SiteSettings.from_toml(tmp_path / "site.toml"))
    assert (data.rows.tolist(), data.ids.tolist()) == ([[45.0]], ["p2"])
    (tmp_path / "site.toml").write_text(
        text.replace("duckdb://", "postgresql://kari:secret@host/visits")
    )
    assert SiteSettings.from_toml(tmp_path / "site.toml").data_set == "postgresql://host/visits"


def test_an_operator_who_says_nothing_has_said_no():
    unset = Policy()
    assert unset.unprotected == ()
    assert (unset.evaluations, unset.most_shares, unset.trusts_server_noise) == (0, 1, False)
    assert unset.epsilon == unset.epsilon_per_run == 1.0


@pytest.fixture
def site_toml(tmp_path):
    (tmp_path / "site.toml").write_text('name = "north"\ndata = "x.csv"')
    return tmp_path / "site.toml"


@pytest.mark.parametrize(
    "option",
    [
        "--allow-runtime-dependency-installation",
        "--allow",
        "--isolation=process",
        "--iso",
        "--node-config",
    ],
)
def test_options_that_would_open_a_door_are_refused(site_toml, option):
    with pytest.raises(ValueError, match="is given;"):
        supernode.prepared(site_toml, ["--insecure", option])


def test_every_name_under_which_flower_starts_a_task_is_the_sites(site_toml):
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

    command, environment = supernode.prepared(site_toml, ["--insecure", "--port", "9999"])
    first = site_toml.parent / "site" / "bin"
    assert environment["PATH"].split(":")[0] == str(first)
    for name in TASK_TYPE_TO_COMMAND.values():
        assert "flower_fedclust.site.supernode" in (first / name).read_text()
        assert (first / name).stat().st_mode & stat.S_IXUSR
    assert command[0].endswith("flower-supernode")
    assert command[1:] == ["--insecure", "--port", "9999"]


def test_a_flower_that_nobody_has_read_is_not_run(monkeypatch):
    assert supernode.check_flower().__name__ == "flwr.supernode.runtime.run_clientapp"
    monkeypatch.setattr(supernode, "version", lambda name: "1.99.0")
    with pytest.raises(supernode.UnsupportedFlower, match=r"Flower 1\.99\.0 is installed"):
        supernode.check_flower()
    monkeypatch.undo()
    monkeypatch.setattr(supernode, "REPLACED", ("gone",))
    with pytest.raises(supernode.UnsupportedFlower, match="has no gone where"):
        supernode.check_flower()


def test_the_versions_that_a_site_supports_are_those_that_are_tested_installed_and_documented():
    root = Path(__file__).parents[2]
    flower = yaml.safe_load((root / ".github" / "workflows" / "tests.yml").read_text())["jobs"][
        "flower"
    ]
    assert tuple(flower["strategy"]["matrix"]["flower"]) == supernode.SUPPORTED
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert f"flwr[simulation]>={supernode.SUPPORTED[0]},<2" in project["dependencies"]
    classified = [one.rpartition(" ")[2] for one in project["classifiers"] if "Python :: 3." in one]
    assert [".".join(map(str, one)) for one in PYTHONS] == [classified[0], classified[-1]]
    page = (root / "docs" / "deploying.md").read_text()
    assert f"| {' or '.join(supernode.SUPPORTED)} |" in page
    assert f"tested with {' and '.join(supernode.SUPPORTED)} |" in page


def test_what_is_replaced_gets_the_apps_name_and_gives_the_sites_client(site_toml, monkeypatch):
    import flwr.supernode.cli
    import flwr.supernode.runtime.run_clientapp as module

    for name in supernode.REPLACED:
        monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr("sys.argv", ["python"])
    loaded = []

    def flowers_own():
        load = module.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
        module.install_from_fab(b"no archive", skip_prompt=True)
        loaded.append(load("somebody/app", "1.0.0", "f" * 64))
        with pytest.raises(RuntimeError, match="refused"):
            module.install_app_dependencies("path", launch_id="x")

    monkeypatch.setattr(flwr.supernode.cli, "flwr_clientapp", flowers_own)
    supernode.main(str(site_toml), "flwr-clientapp", "--insecure")
    assert loaded[0]._site.settings.name == "north"
    assert loaded[0]._site.app_of_server == "somebody/app 1.0.0 ffffffffffffffff"
    for task in supernode.OTHER_TASKS:
        with pytest.raises(SystemExit):
            supernode.main(str(site_toml), task)


def test_what_is_kept_of_a_run_goes_after_some_days_and_the_table_stays(tmp_path, monkeypatch):
    kept, now = Kept(tmp_path), time.time

    def put(*places):
        with kept.store.changing():
            for place in places:
                kept.store.put(place, "0-1", b"answer")

    with monkeypatch.context() as patch:
        patch.setattr("time.time", lambda: now() - 31 * 86400)
        put("table", place_of("old"), place_of("goes on"), place_of("computes"))
    put(place_of("goes on"), place_of("new"))
    with run_lock(tmp_path, "computes"):
        kept.forget_old_runs(30)
    assert {place for place, _, _ in kept.store.names()} == {
        "table",
        *map(place_of, ("goes on", "new", "computes")),
    }


def test_processes_that_start_at_once_have_one_key(tmp_path):
    own = [
        Site(SiteSettings(name="north", data="table.csv", folder=str(tmp_path))) for _ in range(8)
    ]
    meet = threading.Barrier(len(own))

    def key_of(one):
        meet.wait(60)
        return one.public_key

    with ThreadPoolExecutor(len(own)) as pool:
        assert len(set(pool.map(key_of, own))) == 1


def test_what_is_forgotten_is_not_in_the_file_any_more(tmp_path):
    kept = Kept(tmp_path)
    with kept.store.changing():
        kept.store.put(place_of("run"), "memory", b"a secret of the run")
    assert b"a secret of the run" in kept.path.read_bytes()
    with kept.store.changing():
        kept.store.put(place_of("run"), "memory", b"nothing")
    assert all(b"a secret" not in file.read_bytes() for file in tmp_path.glob("kept.sqlite*"))


def test_a_site_with_a_schema_starts_on_a_table_with_text_and_gaps(tmp_path, monkeypatch, capsys):
    (tmp_path / "table.csv").write_text("age,job\n" + "44,cook\n,clerk\n" * 30)
    (tmp_path / "columns.toml").write_text(
        '[columns.age]\nkind = "number"\nbounds = [0, 110]\ngaps = "mean"\n\n'
        '[columns.job]\nkind = "category"\ncategories = ["clerk", "cook"]\n'
    )
    (tmp_path / "site.toml").write_text(
        'name = "north"\ndata = "table.csv"\nschema = "columns.toml"\n'
    )
    started = []
    monkeypatch.setattr(
        "flower_fedclust.site.supernode.start", lambda *given: started.append(given)
    )
    with pytest.raises(ValueError, match="site --init"):
        start_site(SimpleNamespace(args=[]), tmp_path / "site.toml")
    start_site(SimpleNamespace(args=[]), tmp_path / "site.toml", init=True)
    with pytest.raises(ValueError, match="exists already"):
        start_site(SimpleNamespace(args=[]), tmp_path / "site.toml", init=True)
    assert started == []
    start_site(SimpleNamespace(args=[]), tmp_path / "site.toml")
    assert "60 rows of 2 columns" in capsys.readouterr().err
    assert len(started) == 1
