"""What comes from others is bounded: code in the folder of a site, and the size, number and work of messages."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from flower_fedclust.site import supernode
from flower_fedclust.site.cli import start_site

TABLE = "age,stay\n" + "".join(f"{30 + index},{index % 7}\n" for index in range(60))


@pytest.fixture
def site_toml(tmp_path):
    (tmp_path / "table.csv").write_text(TABLE)
    (tmp_path / "site.toml").write_text('name = "north"\ndata = "table.csv"\n')
    return tmp_path / "site.toml"


# Code in the folder in which a site is started.


def test_a_process_of_a_site_imports_nothing_from_the_folder_in_which_it_is_started(site_toml, tmp_path):
    _, environment = supernode.prepared(site_toml, ["--insecure"])
    planted = tmp_path / "planted"
    planted.mkdir()
    for name in ("numpy", "flwr", "flower_fedclust"):
        (planted / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()")
    script = site_toml.parent / "site" / "bin" / "flwr-clientapp"
    for given in (os.environ, environment):  # a task of the SuperNode, whatever of the environment it is left
        done = subprocess.run([script, "--help"], cwd=planted, env=given, capture_output=True, text=True, check=False)
        assert (done.returncode, "--parent-pid" in done.stdout) == (0, True), done.stderr
    assert not (tmp_path / "imported").exists()


def test_the_folder_is_no_part_of_the_path_once_a_site_has_started(site_toml, tmp_path, monkeypatch):
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
