"""What a monitoring system can scrape from a site, and that its process ends with the SuperNode."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from hostile import ENROL, Server, site

from flower_fedclust.site.cli import start_site
from flower_fedclust.site.metrics import REASONS, Metrics
from flower_fedclust.site.policy import SiteSettings

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana.json"


@pytest.fixture
def own(tmp_path):
    made = site(tmp_path / "site", epsilon=3.0, epsilon_per_run=1.1)
    (tmp_path / "table.csv").write_text("age\n" + "44\n" * 60)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    about = 'name = "north"\ndata = "table.csv"\ndata_set = "the table"'
    text = f"{about}\n[policy]\nepsilon = 3.0\n[metrics]\nport = {port}"
    (tmp_path / "site.toml").write_text(text)
    return made


def settings(own):
    return SiteSettings.from_toml(own.folder.parent / "site.toml")


@pytest.fixture
def metrics(own):
    with closing(Metrics(settings(own))) as opened:
        yield opened


def asked(metrics, path):
    said = []
    body = b"".join(
        metrics(
            {"PATH_INFO": path, "REQUEST_METHOD": "GET"},
            lambda status, headers: said.append(status),
        )
    )
    return said[0], body.decode()


def values(text):
    return {
        name: float(value)
        for name, value in re.findall(r"^(fedclust\S*) (\S+)$", text, re.MULTILINE)
    }


def test_a_scrape_counts_answers_and_refusals_and_says_what_is_left(own, metrics):
    assert values(asked(metrics, "/metrics")[1])["fedclust_epsilon_left"] == 3.0
    server = Server(own)
    server.send([], ENROL)
    server.ask_sum()
    server.ask_sum(number=2)  # repeated
    server.ask_sum(n_clients=1)
    server.send([], ENROL | {"task": "x" * 300})
    server.send([], ENROL | {"format": 1})
    status, text = asked(metrics, "/metrics")
    found = values(text)
    assert status == "200 OK"
    assert found['fedclust_messages_total{event="answered"}'] == 2
    assert found['fedclust_messages_total{event="repeated"}'] == 1
    assert found['fedclust_messages_total{event="refused"}'] == 3
    counted = {reason: found[f'fedclust_refusals_total{{reason="{reason}"}}'] for reason in REASONS}
    assert counted == dict.fromkeys(REASONS, 0.0) | {"policy": 1, "limits": 1, "format": 1}
    assert found["fedclust_epsilon_left"] == pytest.approx(2.0, rel=1e-2)
    assert found["fedclust_seconds_count"] == found["fedclust_memory_bytes_count"] == 2
    assert found["fedclust_seconds_sum"] % 1 == 0  # rounded up to the end of a wide range
    assert found["fedclust_healthy"] == 1
    assert asked(metrics, "/health") == ("200 OK", "ok\n")
    assert asked(metrics, "/")[0] == "404 Not Found"


def test_no_text_of_a_server_is_in_the_metrics(own, metrics):
    own.note("refused", run="secret-run", study="secret-study", reason="secret", kind="secret-kind")
    own.note("secret-event")
    with (own.folder / "audit.jsonl").open("ab") as log:
        log.write(b"[secret\n{}\n7\n")
    text = asked(metrics, "/metrics")[1]
    assert "secret" not in text
    assert values(text)['fedclust_messages_total{event="other"}'] == 4
    assert values(text)['fedclust_refusals_total{reason="other"}'] == 1


def test_a_log_that_is_replaced_or_half_written_is_counted_once(own, metrics):
    path = own.folder / "audit.jsonl"
    own.note("answered")
    assert values(asked(metrics, "/metrics")[1])['fedclust_messages_total{event="answered"}'] == 1
    with path.open("ab") as log:
        log.write(b'{"event":"ans')
    asked(metrics, "/metrics")
    with path.open("ab") as log:
        log.write(b'wered"}\n')
    path.rename(path.with_name("audit.1.jsonl"))
    own.note("answered")
    for _ in range(2):
        assert (
            values(asked(metrics, "/metrics")[1])['fedclust_messages_total{event="answered"}'] == 3
        )


def test_a_site_that_cannot_answer_is_not_healthy(own, metrics):
    Server(own).send([], ENROL)
    assert asked(metrics, "/health")[0] == "200 OK"
    table = own.folder.parent / "table.csv"
    table.rename(table.with_suffix(".gone"))
    assert asked(metrics, "/health") == ("503 Service Unavailable", "table\n")
    table.with_suffix(".gone").rename(table)
    head = own.ledger.head.read_bytes()
    own.ledger.head.write_bytes(b"7:" + b"0" * 64 + b"\n")
    assert asked(metrics, "/health") == ("503 Service Unavailable", "files\n")
    own.ledger.head.write_bytes(head)
    assert asked(metrics, "/health")[0] == "200 OK"
    with own.kept.store.changing():
        own.kept.store.put("unknown", "round-1", b"")
    assert asked(metrics, "/health") == ("503 Service Unavailable", "files\n")
    assert values(asked(metrics, "/metrics")[1])["fedclust_healthy"] == 0


def test_the_dashboard_shows_metrics_that_there_are(own, metrics):
    Server(own).send([], ENROL)
    exported = asked(metrics, "/metrics")[1]
    board = json.loads(DASHBOARD.read_text())
    shown = {target["expr"] for panel in board["panels"] for target in panel["targets"]}
    named = {name for expression in shown for name in re.findall(r"fedclust_\w+", expression)}
    assert len(named) >= 6
    assert {
        name for name in named if not re.search(rf"^{name}[ {{]", exported, re.MULTILINE)
    } == set()
    for label, value in {pair for one in shown for pair in re.findall(r'(\w+)="(\w+)"', one)}:
        assert f'{label}="{value}"' in exported
    places = [panel["gridPos"] for panel in board["panels"]]
    assert len({(place["x"], place["y"]) for place in places}) == len(places)
    assert all(place["x"] + place["w"] <= 24 for place in places)


def test_a_site_without_the_package_for_metrics_does_not_start(own, monkeypatch):
    monkeypatch.setattr("flower_fedclust.site.metrics.find_spec", lambda name: None)
    monkeypatch.setattr(
        "flower_fedclust.site.supernode.start", lambda *given: pytest.fail("it has started")
    )
    with pytest.raises(ImportError, match=r"flower-fedclust\[metrics\]"):
        start_site(SimpleNamespace(args=[]), own.folder.parent / "site.toml")


@pytest.mark.skipif(
    os.name != "posix", reason="elsewhere a process does not see that its parent has ended"
)
def test_the_process_serves_on_the_loopback_until_its_supernode_ends(own):
    """A process that has called start_beside, and then sleeps, stands for the SuperNode."""
    code = (
        "import sys, time; from pathlib import Path; from flower_fedclust.site.metrics import start_beside\n"
        "start_beside(Path(sys.argv[1])); time.sleep(60)"
    )
    node = subprocess.Popen(
        [sys.executable, "-c", code, str(own.folder.parent / "site.toml")], env=os.environ
    )
    address = f"http://127.0.0.1:{settings(own).metrics.port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                health = urllib.request.urlopen(f"{address}/health", timeout=5)
                break
            except urllib.error.URLError:
                assert time.monotonic() < deadline
                time.sleep(0.2)
        assert health.read() == b"ok\n"
        assert (
            values(urllib.request.urlopen(f"{address}/metrics", timeout=5).read().decode())[
                "fedclust_healthy"
            ]
            == 1
        )
    finally:
        node.kill()
        node.wait()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5)
        except OSError:
            return
        time.sleep(0.2)
    pytest.fail("the metrics outlived the SuperNode")
