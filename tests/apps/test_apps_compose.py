"""The compose file says what the deployment as processes runs, and hangs together with keys, sites and pages."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from flower_fedclust.site.policy import SiteSettings

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
SITES = [name for name in SERVICES if name != "superlink"]


def options_of(command):
    """Return what a command starts, and its options with their values, files by their names alone."""
    parts = [part for word in command for part in (word.split("=", 1) if word.startswith("--") else [word])]
    begin = next(index for index, part in enumerate(parts) if part.startswith("--"))
    found, rest = {}, parts[begin:]
    while rest:
        name = rest.pop(0)
        found[name] = Path(rest.pop(0)).name if rest and not rest[0].startswith("--") else True
    return [Path(part).name for part in parts[:begin]], found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return the keys that the head of the compose file has made, and what a deployment as processes starts."""
    folder = tmp_path_factory.mktemp("compose")
    said = re.search(r"sh deploy/keys\.sh deploy/keys (\S+) (.+)", (DEPLOY / "compose.yaml").read_text())
    sites = said[2].split()
    assert sites == SITES
    subprocess.run(
        ["sh", str(DEPLOY / "keys.sh"), str(folder / "keys"), said[1], *sites], check=True, capture_output=True
    )
    sys.path.insert(0, str(DEPLOY))
    try:
        one_machine = import_module("one_machine")
    finally:
        sys.path.remove(str(DEPLOY))
    started = {}

    class Recorded(one_machine.Deployment):
        def call(self, *command):
            return ""

        def start(self, name, port, *command):
            started[name] = options_of(command)

    Recorded(folder).start_all()
    return folder / "keys", started


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_runs_the_command_that_a_process_runs(made, name):
    what, own = options_of(SERVICES[name]["command"])
    same, of_process = made[1][name]
    assert what == same
    # Containers are reached from outside, and each has its ports for itself.
    for given in (own, of_process):
        for option in ("--host", "--port", "--superlink"):
            given.pop(option, None)
    assert own == of_process


@pytest.mark.parametrize("name", SERVICES)
def test_every_file_that_a_command_names_is_in_a_volume_and_has_been_made(made, name):
    volumes = dict(volume.split(":")[:2][::-1] for volume in SERVICES[name]["volumes"])
    for word in SERVICES[name]["command"]:
        path = Path(word.partition("=")[2] or word)
        if path.is_absolute():
            inside = next(target for target in volumes if path == Path(target) or Path(target) in path.parents)
            source = volumes[inside]
            if not source.startswith("."):
                assert source in COMPOSE["volumes"]
                continue
            there = Path(source, path.relative_to(inside))
            kept = made[0].parent if there.parts[0] == "keys" else DEPLOY
            assert (kept / there).is_file(), there


def test_the_sites_reach_the_superlink_by_a_name_of_its_certificate_and_its_port(made):
    _, own = options_of(SERVICES["superlink"]["command"])
    text = subprocess.run(
        ["openssl", "x509", "-in", str(made[0] / "superlink.pem"), "-noout", "-ext", "subjectAltName"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert {"DNS:superlink", "DNS:localhost"} <= {part.strip() for part in text.replace("\n", ",").split(",")}
    assert SERVICES["superlink"]["ports"] == [f"127.0.0.1:{own['--port']}:{own['--port']}"]
    for site in SITES:
        assert options_of(SERVICES[site]["command"])[1]["--superlink"] == f"superlink:{own['--port']}"
        assert SERVICES[site]["depends_on"] == ["superlink"]
    assert f"--superlink HOST:{own['--port']}" in (DEPLOY.parent / "docs" / "deploying.md").read_text()


@pytest.mark.parametrize("name", SITES)
def test_a_site_has_a_volume_and_settings_of_its_own(name):
    volumes = [volume.split(":") for volume in SERVICES[name]["volumes"]]
    assert ["./keys/" + name + "/node", "/keys/node", "ro"] in volumes
    assert [f"./sites/{name}", "/site"] in volumes  # the one that it writes to
    assert SERVICES[name]["read_only"]
    assert "/tmp" in SERVICES[name]["tmpfs"]
    assert SiteSettings.from_toml(DEPLOY / "sites" / name / "site.toml").name == name


def test_the_image_copies_what_there_is_and_runs_as_the_user_that_the_compose_file_names():
    text = (DEPLOY / "Containerfile").read_text()
    for line in re.findall(r"^COPY (.+)$", text, flags=re.MULTILINE):
        *sources, _ = line.split()
        assert all((DEPLOY.parent / source).exists() for source in sources)
    (user,) = re.findall(r"--uid (\d+) fedclust", text)
    assert f"run as the user {user}" in (DEPLOY / "compose.yaml").read_text()
    assert "USER fedclust" in text
    assert SERVICES["superlink"]["build"]["dockerfile"] == "deploy/Containerfile"
