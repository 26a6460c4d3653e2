"""The compose file says what the deployment as processes runs, and hangs together with keys, sites and pages."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from itertools import chain
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
    parts = [
        part
        for word in command
        for part in (word.split("=", 1) if word.startswith("--") else [word])
    ]
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
    said = re.search(
        r"sh deploy/keys\.sh deploy/keys (\S+) (.+)", (DEPLOY / "compose.yaml").read_text()
    )
    sites = said[2].split()
    assert sites == SITES
    subprocess.run(
        ["sh", str(DEPLOY / "keys.sh"), str(folder / "keys"), said[1], *sites],
        check=True,
        capture_output=True,
    )
    sys.path.insert(0, str(DEPLOY))
    try:
        one_machine = import_module("one_machine")
    finally:
        sys.path.remove(str(DEPLOY))
    started = {}

    class Recorded(one_machine.Deployment):
        def call(self, *command):
            listed = '{"runs": [{"status": "finished:completed"}]}'
            return listed if "list" in command else "Successfully started run 1"

        def start(self, name, port, *command):
            started[name] = options_of(command)

    deployment = Recorded(folder)
    deployment.start_all()
    deployment.run(**one_machine.STUDY)
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


UNITS = {"fedclust-site": "north", "fedclust-superlink": "superlink"}


@pytest.mark.parametrize("name", UNITS)
def test_systemd_and_the_page_start_what_a_container_starts(name):
    same, own = options_of(SERVICES[UNITS[name]]["command"])
    unit = (DEPLOY / f"{name}.service").read_text()
    page = (DEPLOY.parent / "docs" / "deploying.md").read_text()
    begin = (
        "fedclust site site.toml --superlink"
        if name == "fedclust-site"
        else "flower-superlink --host"
    )
    for text in (unit.partition("ExecStart=")[2], page[page.index(begin) :]):
        command = re.match(r"(?:.*\\\n)*.*", text)[0].replace("\\\n", "").split()
        what, options = options_of(command)
        assert what == same
        assert options | {"--superlink": own.get("--superlink")} == own | {
            "--superlink": own.get("--superlink")
        }


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_a_unit_exposes_little(name):
    """Without restrictions, systemd calls a unit 9.2 UNSAFE; with a read-only /usr it was 8.7 EXPOSED."""
    asked = [
        "systemd-analyze",
        "security",
        "--offline=true",
        "--threshold=30",
        str(DEPLOY / f"{name}.service"),
    ]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout.splitlines()[-1]
    rights = (DEPLOY / f"{name}.service").read_text()
    folder = re.search(r"ReadWritePaths=(\S+)", rights)[1]
    paths = re.findall(r"=(/srv/\S+)", rights)
    assert all(f"{path}/".startswith(f"{folder}/") for path in paths), paths


def test_images_have_the_version_of_the_package():
    wanted = f"fedclust:{importlib.metadata.version('flower-fedclust')}"
    assert {service["image"] for service in SERVICES.values()} == {wanted}
    texts = [path.read_text() for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))]
    images = {image for text in texts for image in re.findall(r"image: (\S+)", text)}
    assert images == {wanted}
    (base,) = re.findall(r"^FROM (\S+)", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", base)


@pytest.mark.parametrize("name", SERVICES)
def test_every_file_that_a_command_names_is_in_a_volume_and_has_been_made(made, name):
    volumes = dict(volume.split(":")[:2][::-1] for volume in SERVICES[name]["volumes"])
    for word in SERVICES[name]["command"]:
        path = Path(word.partition("=")[2] or word)
        if path.is_absolute():
            inside = next(
                target for target in volumes if path == Path(target) or Path(target) in path.parents
            )
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
    assert {"DNS:superlink", "DNS:localhost"} <= {
        part.strip() for part in text.replace("\n", ",").split(",")
    }
    assert SERVICES["superlink"]["ports"] == [f"127.0.0.1:{own['--port']}:{own['--port']}"]
    for site in SITES:
        assert (
            options_of(SERVICES[site]["command"])[1]["--superlink"] == f"superlink:{own['--port']}"
        )
        assert SERVICES[site]["depends_on"] == ["superlink"]
    page = (DEPLOY.parent / "docs" / "deploying.md").read_text()
    assert f"--superlink superlink.example.org:{own['--port']}" in page
    assert f'address = "superlink.example.org:{own["--port"]}"' in page


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
    sent = [
        line[1:]
        for line in (DEPLOY.parent / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    copied = {
        line.split()[-1]: line.split()[:-1]
        for line in re.findall(r"^COPY (.+)$", text, flags=re.MULTILINE)
    }
    for source in chain.from_iterable(copied.values()):
        assert (DEPLOY.parent / source).exists()
        assert source in sent
    (user,) = re.findall(r"--uid (\d+) fedclust", text)
    comment = (DEPLOY / "compose.yaml").read_text()
    assert f"run as user {user}" in comment
    assert f"chown -R {user} deploy/keys deploy/sites" in comment
    assert f"USER {user}" in text
    assert SERVICES["superlink"]["build"]["dockerfile"] == "deploy/Containerfile"


def test_the_superlink_can_write_its_volume_and_holds_the_app_and_a_run_that_the_sites_allow(made):
    text, comment = (DEPLOY / "Containerfile").read_text(), (DEPLOY / "compose.yaml").read_text()
    _, own = options_of(SERVICES["superlink"]["command"])
    (volume,) = [
        one.split(":")[1] for one in SERVICES["superlink"]["volumes"] if not one.startswith(".")
    ]
    # A volume without a name on the host takes its owner from the folder of the image.
    assert re.search(
        rf"mkdir {volume} (\S+) .* chown -R fedclust {volume} \1\n", text, flags=re.DOTALL
    )
    assert re.search(r"FLWR_HOME=(\S+)", text)[1] == re.search(r"mkdir \S+ (\S+)", text)[1]
    (written,) = re.findall(r"printf '(.+)'", text)
    here = tomllib.loads(written.replace("\\n", "\n"))["superlink"]["here"]
    assert here["address"] == f"localhost:{own['--port']}"
    assert f"--ssl-ca-certfile={here['root-certificates']}" in SERVICES["superlink"]["command"]
    bundled = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["tool"]["flwr"]["app"][
        "fab-include"
    ]
    for pattern in bundled:
        assert re.search(
            rf"^COPY .*\b{pattern.split('/')[1]}\b.* /app", text, flags=re.MULTILINE
        ), pattern
    study = tomllib.loads((DEPLOY / "first-study.toml").read_text())
    assert tomllib.loads((made[0].parent / "run.toml").read_text()) == study
    assert "deploy/first-study.toml /app/\n" in text
    assert "flwr run /app here --stream --run-config /app/first-study.toml\n" in comment
    assert Path(study["out"]).parent == Path(volume)
    assert f"cp superlink:{study['out']} ." in comment
    for site in SITES:
        policy = SiteSettings.from_toml(DEPLOY / "sites" / site / "site.toml").policy
        policy.check_run([study["strategy"]], study["study"])
        assert float(study["epsilon"]) <= policy.epsilon_per_run
        assert study["expected-clients"] == len(SITES) >= policy.fewest_clients
