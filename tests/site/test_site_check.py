"""`fedclust site --check` names what is wrong with a setup, all of it at once, and writes nothing."""

import os
import re
import shutil
import subprocess
import time
import tomllib
from itertools import takewhile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flower_fedclust.cli.commands import app
from flower_fedclust.registry import strategies
from flower_fedclust.site import check, supernode
from flower_fedclust.site.app import Site
from flower_fedclust.site.kept import place_of
from flower_fedclust.site.policy import Policy, SiteSettings

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes and owners are of POSIX")

SITE = """
name = "north"
data = "table.csv"
"""
SCHEMA = '[columns.age]\nkind = "number"\nbounds = [0, 110]\n'
KEYS = Path(__file__).parents[2] / "deploy" / "keys.sh"
ENTRY = {
    "time": "2026-01-01T00:00:00Z",
    "run": "a",
    "task": "votes",
    "answer": "round-2",
    "asked": "0",
    "arrays": [],
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    subprocess.run(
        ["sh", str(KEYS), str(folder), "superlink", "north"], check=True, capture_output=True
    )
    return folder


@pytest.fixture
def folder(tmp_path, keys):
    """A site that is well: table, ledger with an answer, certificate and key."""
    (tmp_path / "table.csv").write_text("age,stay\n" + "44,2\n31,5\n" * 30)
    (tmp_path / "site.toml").write_text(SITE)
    for source, name in ((keys / "ca.pem", "ca.pem"), (keys / "north" / "node", "node")):
        shutil.copy2(source, tmp_path / name)
    own = Site(SiteSettings.from_toml(tmp_path / "site.toml"))
    own.create_ledger()
    with own.ledger.locked():
        charge(own.ledger, own.data_set, 0.25)
    own.note("answered", run="a")
    return tmp_path


@pytest.fixture(autouse=True)
def connected(monkeypatch):
    """A SuperLink that lets the site in; test_site_connection.py asks a real one."""
    asked = []
    monkeypatch.setattr(
        check, "refusals", lambda named, insecure: asked.append(named["--superlink"]) or ()
    )
    return asked


def charge(ledger, data_set, epsilon, **more):
    ledger.append(
        ENTRY
        | {
            "data_set": data_set,
            "epsilon": epsilon,
            "delta": 1e-6,
            "unit": "record",
            "is_claim": False,
        }
        | more
    )


def options(folder):
    return [
        *("--superlink", "superlink.example.org:8000", f"--root-certificates={folder / 'ca.pem'}"),
        *("--auth-supernode-private-key", str(folder / "node")),
    ]


def settings(text, table="table.csv"):
    def change(folder):
        (folder / "site.toml").write_text(SITE.replace("table.csv", table) + text)

    return change


def schema(text):
    def change(folder):
        (folder / "columns.toml").write_text(text)
        settings('schema = "columns.toml"\n')(folder)

    return change


def mode(name, bits):
    return lambda folder: (folder / name).chmod(bits)


def content(name, text):
    return lambda folder: (folder / name).write_text(text)


def gone(name):
    return lambda folder: (folder / name).unlink()


def lost_ledger(folder):
    (folder / "site" / "ledger.jsonl").unlink()
    (folder / "site" / "ledger.head").unlink()


def changed_line(folder):
    path = folder / "site" / "ledger.jsonl"
    path.write_text(path.read_text().replace("0.25", "0.05"))


def old_ledger(folder):
    own = Site(SiteSettings.from_toml(folder / "site.toml"))
    kept = [(path, path.read_bytes()) for path in (own.ledger.path, own.ledger.head)]
    with own.ledger.locked():
        charge(own.ledger, own.data_set, 0.25, run="b")
    with own.kept.store.changing():
        own.kept.store.put(place_of("b"), "round-2", b"answer")
    for path, before in kept:
        path.write_bytes(before)


def old_head(folder):
    own = Site(SiteSettings.from_toml(folder / "site.toml"))
    before = own.ledger.head.read_bytes()
    with own.ledger.locked():
        charge(own.ledger, own.data_set, 0.25)
        charge(own.ledger, own.data_set, 0.25)
    own.ledger.head.write_bytes(before)


def all_spent(folder):
    own = Site(SiteSettings.from_toml(folder / "site.toml"))
    with own.ledger.locked():
        charge(own.ledger, own.data_set, 0.75, run="b")


def damaged_studies(folder):
    (folder / "site" / "studies.sqlite").touch(0o600)
    content("site/studies.sqlite", "{")(folder)


def older(name):
    """Leave what an older version has kept."""

    def leave(folder):
        (folder / "site" / name).touch(0o600)

    return leave


#: What is wrong -> what a finding says.
WRONG = {
    "no settings": (gone("site.toml"), "There is no file"),
    "no TOML": (content("site.toml", 'name = "north'), "site.toml cannot be read as TOML"),
    "no data": (content("site.toml", 'name = "north"'), "data: field required"),
    "a typing error": (
        settings("[policy]\nepsilom = 1.0\n"),
        "policy.epsilom: There is no setting 'epsilom': did you",
    ),
    "a wrong value": (
        settings("[policy]\nepsilon = -1.0\n"),
        "policy.epsilon: input should be greater than 0",
    ),
    "a wrong kind": (
        settings('[policy]\nunprotected = ["pictures"]\n'),
        "policy.unprotected.0: input should be",
    ),
    "a run above the total": (
        settings("[policy]\nepsilon = 0.5\n"),
        "epsilon_per_run in the policy is 1, but epsilon",
    ),
    "an unknown strategy": (
        settings('[policy]\nstrategies = ["k-fd"]\n'),
        "There is no strategy 'k-fd': did you mean",
    ),
    "a strategy without noise": (
        settings('[policy]\nstrategies = ["private-kmeans", "fedsc"]\n'),
        'no run of fedsc can satisfy the policy: it sends sums and codes without noise; set unprotected = ["sums", '
        '"codes"], or',
    ),
    "a strategy of another relation": (
        settings('[policy]\nstrategies = ["dp-fedc"]\n'),
        'set relations = ["add-or-remove", "replace"], or',
    ),
    "an unknown task": (
        settings('[policy]\ntasks = ["row_sums"]\n'),
        "There is no task of these strategies called",
    ),
    "no studies": (settings("[policy]\nstudies = []\n"), "studies in the policy is empty"),
    "a name that does not print": (
        content("site.toml", 'name = "a\\nb"\ndata = "table.csv"'),
        "servers refuse it",
    ),
    "no table": (settings("", table="tabel.csv"), "tabel.csv"),
    "text in a column": (content("table.csv", "age,job\n" + "44,cook\n" * 60), "'job'"),
    "no such column": (settings('columns = ["aeg"]\n'), "aeg"),
    "no such label": (settings('label_column = "diagnosis"\n'), "There is no column in"),
    "too few rows": (
        settings("[policy]\nfewest_rows = 61\n"),
        "has 60 rows; fewest_rows in the policy is 61",
    ),
    "too many rows": (
        settings("[limits]\nmost_rows = 59\n"),
        "has 60 rows; most_rows in the limits is 59",
    ),
    "a small sample": (
        settings("[policy]\nsample = 20\n"),
        "sample in the policy is 20, but fewest_rows is 50",
    ),
    "masks without peers": (
        settings('[policy]\nsecure = "required"\n'),
        "list the other sites' keys under [peers]",
    ),
    "shares without masks": (settings("[policy]\nmost_shares = 7\n"), "and no mask; set secure"),
    "no schema": (settings('schema = "columns.toml"\n'), "columns.toml"),
    "a schema that cannot be read": (
        schema("[columns.age]\nkind = 'numbre'\n"),
        "kind must be one of",
    ),
    "a schema of another table": (
        schema(SCHEMA + SCHEMA.replace("age", "height")),
        "column 'height'",
    ),
    "no ledger": (lost_ledger, "'fedclust site --init' creates it"),
    "no head": (gone("site/ledger.head"), "ledger.head is gone; put it back"),
    "a changed ledger": (changed_line, "ledger.jsonl, line 2: the entry does not follow"),
    "an older ledger": (
        old_ledger,
        "that the ledger does not know: lines of the ledger are missing",
    ),
    "an older head": (old_head, "ledger.head is older than"),
    "a spent budget": (all_spent, "has spent epsilon 1 of 1, so runs with noise are refused"),
    "a folder for all": (
        mode("site", 0o755),
        "site can be read by other accounts (mode 755); chmod 700",
    ),
    "a ledger for all": (
        mode("site/ledger.jsonl", 0o644),
        "ledger.jsonl can be read by other accounts (mode 644)",
    ),
    "a ledger to read only": (
        mode("site/ledger.jsonl", 0o400),
        "ledger.jsonl cannot be read and written (mode 400)",
    ),
    "settings for all": (mode("site.toml", 0o666), "site.toml can be changed by every account"),
    "damaged studies": (
        damaged_studies,
        "studies.sqlite is damaged, or does not hold studies; restore it",
    ),
    "studies of an older version": (older("studies.json"), "studies.json is of an older version"),
    "answers of an older version": (
        older("runs"),
        "runs is of an older version, which this one does not read; use",
    ),
    "no key": (gone("node"), "node: No such file or directory."),
    "a key for all": (
        mode("node", 0o644),
        "node can be read by other accounts (mode 644); chmod 600",
    ),
    "no private key": (content("node", "ssh-rsa AAAA"), "node is no private key of a node"),
    "no certificate": (content("ca.pem", "hello"), "ca.pem has no certificate"),
}


def said(folder, *more):
    done = CliRunner().invoke(
        app, ["site", "--check", str(folder / "site.toml"), *options(folder), *more]
    )
    return done.exit_code, done.output


def snapshot(folder):
    return {
        path: (path.stat().st_mtime_ns, path.stat().st_mode)
        for path in [folder, *folder.rglob("*")]
    }


@pytest.mark.parametrize("wrong", WRONG)
def test_each_of_many_wrong_setups_is_named_alone_and_nothing_is_written(folder, wrong):
    change, finding = WRONG[wrong]
    change(folder)
    before = snapshot(folder)
    code, output = said(folder)
    assert code == 1, output
    assert finding in output
    assert len(output.splitlines()) == 1, output
    assert snapshot(folder) == before


def needs_by_strategy():
    """What docs/deploying.md says that the policy needs for each strategy, in TOML; "" for nothing."""
    lines = (Path(__file__).parents[2] / "docs" / "deploying.md").read_text().splitlines()
    start = lines.index("| the policy needs | strategies |") + 2
    rows = takewhile(lambda line: line.startswith("|"), lines[start:])
    needs = {}
    for _, need, names, _ in (row.split("|") for row in rows):
        toml = "\n".join(re.findall(r"`(\w+ = [^`]+)`", need))
        if "the same two relations" in need:
            toml += '\nrelations = ["add-or-remove", "replace"]'
        needs |= dict.fromkeys(re.findall(r"`([^` ]+)`", names), toml)
    return needs


#: The table has these without an epsilon. With one, they need another policy.
BOTH_WAYS = ("coreset-k-median", "k-means-parallel")
WITH_AN_EPSILON = 'row_count = true\nrelations = ["add-or-remove", "replace"]'
NEEDS = [*needs_by_strategy().items(), *((name, WITH_AN_EPSILON) for name in BOTH_WAYS)]


def reasons(name, toml):
    policy = Policy.model_validate({"strategies": (name,), **tomllib.loads(toml)})
    return list(check._reasons_of_policy(policy))


@pytest.mark.parametrize(("name", "toml"), NEEDS)
def test_a_policy_that_a_strategy_needs_is_asked_for_and_then_enough(name, toml):
    """The deployed strategies of docs/deploying.md gave a result with this policy, and were refused without it."""
    if name not in strategies():
        pytest.skip("the second distribution is not installed")
    assert reasons(name, toml) == []
    lines = toml.splitlines()
    for line in lines:
        others = "\n".join(other for other in lines if other != line)
        found = reasons(name, others)
        assert found
        if name not in BOTH_WAYS or toml == WITH_AN_EPSILON:
            assert len(found) == 1
            assert f"set {line}, or take {name} out of strategies" in found[0]
    both = reasons(name, 'relations = ["add-or-remove", "replace"]')
    assert bool(both) == ("unprotected" in toml or "row_count" in toml)


def test_several_strategies_without_noise_are_told_all_that_they_need():
    policy = Policy(strategies=("fedsc", "k-fed", "spp-fgc"), unprotected=("sums", "codes"))
    of_k_fed, of_spp_fgc = check._reasons_of_policy(policy)
    assert "no run of k-fed can satisfy the policy" in of_k_fed
    # What the policy allows already stays in the list.
    assert 'set unprotected = ["sums", "centers", "codes"]' in of_spp_fgc
    assert list(check._reasons_of_policy(Policy())) == []  # of all strategies, some can run


def test_a_good_setup_has_no_finding(folder, connected):
    before = snapshot(folder)
    assert said(folder) == (0, "Nothing is wrong.\n")
    assert connected == ["superlink.example.org:8000"]
    assert snapshot(folder) == before


def test_a_key_that_is_mounted_for_the_sites_group_is_right(folder, monkeypatch):
    """As a secret in Kubernetes: it belongs to root, and the site's group can read it."""
    mode("node", 0o440)(folder)
    owner = (folder / "node").stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 10_001)
    assert ("node belongs to another account" in said(folder)[1]) == (owner != 0)
    mode("node", 0o444)(folder)
    assert "node belongs to another account" in said(folder)[1]


def test_all_is_said_at_once(folder):
    settings('[policy]\nepsilom = 1.0\nfewest_rows = 61\nstrategies = ["k-fd"]\n')(folder)
    mode("node", 0o644)(folder)
    changed_line(folder)
    code, output = said(folder, "--isolation=process")
    assert code == 1
    for part in (
        "epsilom",
        "k-fd",
        "has 60 rows",
        "chmod 600",
        "line 2",
        "--isolation=process is given",
    ):
        assert part in output, part
    assert [line.partition(".")[0] for line in output.splitlines()] == list("123456")


def test_versions_hosts_and_dates_that_do_not_fit(folder, monkeypatch):
    monkeypatch.setattr(supernode, "version", lambda name: "1.99.0")
    monkeypatch.setattr(check, "PYTHONS", ((3, 8), (3, 9)))
    monkeypatch.setattr(check, "find_spec", lambda name: None)
    settings("[metrics]\n")(folder)
    _, output = said(folder, "--superlink", "example.org")
    parts = (
        "Flower 1.99.0 is installed",
        "use a Python from 3.8 to 3.9",
        "pip install 'flower-fedclust[metrics]'",
    )
    for part in (*parts, "the port is missing"):
        assert part in output
    monkeypatch.undo()
    later = time.time() + 20 * 365 * 86400

    class Later(check.datetime):
        @classmethod
        def now(cls, zone=None):
            return cls.fromtimestamp(later, zone)

    monkeypatch.setattr(check, "datetime", Later)
    assert "ca.pem: a certificate has expired on" in said(folder)[1]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("age,stay\n44,2\n31,x\n", "row 3"),
        ("sep=;\nage;stay\n44;2\n31;x\n", "row 4"),
        ("\n\nage,stay\n44,2\n31,x\n", "row 5"),
        ("age,stay\ny,2\n31,x\n", "rows 2, 3"),
    ],
)
def test_rows_are_named_as_a_person_counts_them_in_the_file_too(folder, text, rows):
    (folder / "table.csv").write_text(text)
    (found,) = [one for one in check.findings(folder / "site.toml") if "is not numeric" in one]
    assert "row 1, column 'stay' is not numeric" in found
    assert found.endswith(f"(In a spreadsheet: {rows}.)")
